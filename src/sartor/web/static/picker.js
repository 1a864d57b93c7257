// A list to search: the models and devices of the catalogue in groups, each with the figures one chooses by.

import { h, put } from "./dom.js";

/** A dialog over `groups()` of {label, entries: [{name, about}]}; `take(name)` is told the choice. */
export function picker({ id, title, groups, take }) {
  const list = h("div", { class: "picks" }),
    search = h("input", {
      type: "search",
      id: `${id}-search`,
      placeholder: "Search …",
      "aria-label": `Search: ${title}`,
      autocomplete: "off",
      oninput: () => draw(),
      onkeydown: enter,
    }),
    dialog = h(
      "dialog",
      { id, "aria-labelledby": `${id}-title`, class: "picker" },
      h("h2", { id: `${id}-title` }, title),
      h("div", { class: "row" }, search, h("button", { onclick: () => dialog.close() }, "Close")),
      list,
    );
  document.body.append(dialog);
  let all = [];

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (entry, label) =>
      words.every((word) => `${label} ${entry.name} ${entry.about}`.toLowerCase().includes(word));
    const shown = all
      .map(({ label, entries }) => ({ label, entries: entries.filter((entry) => fits(entry, label)) }))
      .filter(({ entries }) => entries.length);
    put(
      list,
      shown.map(({ label, entries }) => [
        h("h3", {}, label),
        h(
          "ul",
          {},
          entries.map((entry) => h("li", {}, row(entry))),
        ),
      ]),
      shown.length ? null : h("p", { class: "muted" }, "Nothing in the catalogue has these words."),
    );
  }

  const row = ({ name, about }) =>
    h(
      "button",
      { class: "quiet", "data-pick": name, onclick: () => chosen(name) },
      h("b", {}, name),
      h("small", {}, about),
    );

  function chosen(name) {
    dialog.close();
    take(name);
  }

  function enter(event) {
    const first = list.querySelector("[data-pick]");
    if (event.key !== "Enter" || !first) return;
    event.preventDefault();
    chosen(first.dataset.pick);
  }

  return async () => {
    all = await groups();
    search.value = "";
    draw();
    dialog.showModal();
    search.focus();
  };
}
