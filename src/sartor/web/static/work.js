// Work that takes a while, shown where it was asked for: what it is, for how long, and a way out.

import { h, put } from "./dom.js";

const SHOWN_MS = 250; // what is answered sooner needs no words

/** Ask by `job(signal, say)` and show that in `box`, in other words once `say(words)` is called; null where it was
 * cancelled or overtaken by another question. */
export function worker(box) {
  let current = null;
  return {
    get busy() {
      return current !== null;
    },
    cancel() {
      current?.abort();
    },
    async run(words, job) {
      current?.abort();
      const mine = (current = new AbortController()),
        began = performance.now();
      const elapsed = h("span", { class: "number", "aria-hidden": "true" }),
        label = h("span", {}, words);
      const tell = () => {
        elapsed.textContent = `${((performance.now() - began) / 1000).toFixed(1)} s`;
      };
      const shown = setTimeout(
        () =>
          put(
            box,
            h(
              "p",
              { class: "working", role: "status" },
              h("progress", { "aria-label": words }),
              label,
              elapsed,
              h("button", { class: "small cancel", onclick: () => mine.abort() }, "Cancel"),
            ),
          ),
        SHOWN_MS,
      );
      const timer = setInterval(tell, 100);
      try {
        return await job(mine.signal, (now) => {
          label.textContent = now;
        });
      } catch (error) {
        if (error.name === "AbortError") return null;
        throw error;
      } finally {
        clearTimeout(shown);
        clearInterval(timer);
        if (current === mine) {
          current = null;
          put(box);
        }
      }
    },
  };
}
