// What is faster at the same size: the best shape and the best change of one field, side by side.

import { ask, Refused } from "./api.js";
import { card, h, put } from "./dom.js";
import { chance, change, whole } from "./format.js";
import { devices, question, state } from "./state.js";
import { worker } from "./work.js";

const PAUSE_MS = 400; // a person who walks through a menu asks once

/** `apply(changed)` takes a shape; `say(words)` is told the answer in a sentence. */
export function offers({ apply, say }) {
  const box = h("div", {}),
    shown = h("div", { class: "pair", id: "advice" }),
    work = worker(box);
  const element = card("Same size, faster", box, shown);
  element.classList.add("advice");
  for (const [name, value] of [
    ["tabindex", "0"],
    ["aria-label", "Same size, faster"],
  ])
    element.setAttribute(name, value); // it may scroll
  let key = "",
    found = null,
    timer = 0;

  /** The question on screen: asked where it is another one than before. The changes made by hand are no part of it. */
  function about() {
    const asked = JSON.stringify(question({ set: {} }));
    if (asked === key) {
      if (found) draw();
      return;
    }
    key = asked;
    found = null;
    say("");
    put(shown);
    work.cancel();
    clearTimeout(timer);
    timer = setTimeout(search, PAUSE_MS);
  }

  async function search() {
    const mine = key,
      { gpu, phase, ...rest } = question({ set: {} });
    try {
      const answer = await work.run("Searching shapes of the same size", (signal) =>
        ask("/api/advise", { ...rest, ...devices(), objective: phase }, { signal }),
      );
      if (mine !== key) return;
      if (answer === null) {
        again("Search cancelled.");
        return;
      }
      found = answer;
      say(sentence());
      draw();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (mine === key) again(error.message);
    }
  }

  function again(words) {
    put(
      shown,
      h("p", { class: "muted" }, words, " ", h("button", { class: "small", onclick: search }, "Search again")),
    );
  }

  function sentence() {
    const [best] = found.candidates;
    if (!best) return "No shape of the same size is surely faster.";
    return `Best same-size change: ${best.efficiency_gain.toFixed(2)}×, ${best.num_fields === 1 ? "one field" : `${best.num_fields} fields`}.`;
  }

  function draw() {
    const [best] = found.candidates,
      one = found.candidates.find((c) => c.num_fields === 1) ?? single();
    const priced = `Of ${whole(found.evaluated)} shapes priced`;
    if (best)
      put(
        shown,
        offer(best === one ? "Best shape: one field" : "Best shape", "apply-best", best),
        one && one !== best ? offer("Best one-field change", "apply-one", one) : null,
      );
    else
      put(
        shown,
        h("p", { class: "whole" }, `Keep this shape: ${priced.toLowerCase()}, none of the same size is surely faster.`),
        found.unsure ? offer("Best, but uncertain", "apply-best", found.unsure) : null,
      );
  }

  /** One field changed alone, whose gain may lie within the error of the prediction. */
  function single() {
    const [first] = [...found.single_edits].sort((a, b) => b.efficiency_gain - a.efficiency_gain);
    return first?.efficiency_gain > 1 ? first : null;
  }

  function offer(title, id, one) {
    const edits = Object.entries(one.changed),
      applied =
        edits.length === Object.keys(state.q.set).length && edits.every(([field, [, to]]) => state.q.set[field] === to);
    return h(
      "div",
      { class: "offer" },
      h("h3", {}, title),
      h(
        "p",
        {},
        h("strong", { "data-term": "equal_work", tabindex: "0" }, `${one.efficiency_gain.toFixed(2)}×`),
        " at equal work",
      ),
      h(
        "p",
        { class: "muted" },
        `${one.confidence === undefined ? "uncertain" : `${chance(one.confidence)} sure`}, ${change(one.params_change, 1)} parameters`,
      ),
      h(
        "ul",
        { class: "plain" },
        edits.map(([field, [from, to]]) => h("li", {}, `${field} ${whole(from)} → ${whole(to)}`)),
      ),
      h(
        "button",
        { id, class: applied ? "small" : "small primary", disabled: applied, onclick: () => apply(one.changed) },
        applied ? "Applied" : "Apply",
      ),
    );
  }

  return { element, about };
}
