// Elements in one line each, and the few habits every view shares.

const SVG = "http://www.w3.org/2000/svg";

/** h("button", {class: "x", onclick: f, "aria-label": "y"}, "text", child): an HTML element.
 * @returns {any} */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG.
 * @returns {any} */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style")
      Object.assign(element.style, value); // by property: attributes are not allowed here
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** What an event befell.
 * @param {Event} event
 * @returns {any} */
export const target = (event) => event.target;

export function put(element, ...children) {
  element.replaceChildren(
    ...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Call `draw(width)` whenever the element's width is known to have changed. */
export function sized(element, draw) {
  let last = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width && width !== last) {
      last = width;
      draw(width);
    }
  }).observe(element);
  return () => last;
}

/** Offer text or bytes as a file. */
export function download(name, data, type = "application/json") {
  const url = URL.createObjectURL(data instanceof Blob ? data : new Blob([data], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A word that explains itself on hover and focus: see terms.js. */
export function term(key, text) {
  return h("span", { class: "term", tabindex: "0", "data-term": key }, text ?? key);
}

export function card(title, ...children) {
  const head = title ? h("h2", {}, title) : null;
  return h("section", { class: "card" }, head, children);
}

/** A table in a box that scrolls sideways on a phone. */
export function table(caption, head, rows, marked = -1) {
  const cells = (row, i) =>
    h(
      "tr",
      { class: i === marked ? "marked" : null },
      row.map((cell, k) =>
        k === 0 ? h("th", { scope: "row" }, cell) : h("td", { class: head[k].number ? "number" : null }, cell),
      ),
    );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "hidden" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          head.map((c) => h("th", { scope: "col", class: c.number ? "number" : null }, c.label)),
        ),
      ),
      h("tbody", {}, rows.map(cells)),
    ),
  );
}
