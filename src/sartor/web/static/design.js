// The design view: what a study of `sartor design` has found, loaded from a file or watched while it runs.

import { card, h, put } from "./dom.js";
import { ask, Refused } from "./api.js";

export function designView({ banner, status }) {
  const results = h("div", { class: "results" });
  const file = h("input", { type: "file", id: "study-file", "aria-label": "Study file", "data-takes-files": true, onchange: () => { if (file.files[0]) load(file.files[0]); } });
  const element = h("div", { class: "stack" }, card("Study", h("div", { class: "row wrap" }, file, h("button", { id: "watch", onclick: () => load(undefined) }, "Show the study being watched"))), results);

  async function load(from) {
    try {
      draw(await ask("/api/study", from));
      banner("");
      status("");
    } catch (error) {
      if (error instanceof Refused) banner(error.message); else throw error;
    }
  }

  function draw(found) {
    put(results, card("Study", h("pre", {}, JSON.stringify(found, null, 1).slice(0, 2000))));
  }

  return { element, refresh() {} };
}
