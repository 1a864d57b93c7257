// Figures as SVG: scales, axes, and the marks that more than one view draws.

import { h, s } from "./dom.js";
import { share } from "./format.js";
import "./d3-scale.js"; // vendored, see d3.LICENSE

const { scaleLinear } = globalThis.d3;

export const COLOURS = [
  "var(--blue)",
  "var(--orange)",
  "var(--green)",
  "var(--vermillion)",
  "var(--sky)",
  "var(--purple)",
  "var(--grey)",
  "color-mix(in srgb, var(--blue) 50%, var(--ink))",
  "color-mix(in srgb, var(--orange) 50%, var(--ink))",
];
export const BOUND = {
  compute: "var(--blue)",
  memory: "var(--orange)",
  network: "var(--purple)",
  overhead: "var(--grey)",
};

/** Parts of a step and of a device's memory, in the words of the report. */
export const SPENT = {
  compute_s: "compute",
  tp_s: "tensor-parallel communication",
  pp_bubble_s: "pipeline bubble",
  pp_transfer_s: "pipeline transfers",
  dp_exposed_s: "exposed data-parallel communication",
  ep_s: "expert-parallel communication",
  cp_s: "context-parallel communication",
  optimizer_s: "optimizer step",
  overhead_s: "kernel launches, jitter, fixed costs",
};
export const HELD = {
  param_bytes: "weights",
  grad_bytes: "gradients",
  optimizer_bytes: "optimizer",
  stash_bytes: "activations",
  kv_cache_bytes: "KV cache",
  workspace_bytes: "workspace",
  reserved_bytes: "allocator, context",
  context_bytes: "context",
};

/** The colour of what is drawn: the same in every figure here and in the report (theme.css). */
export const paint = (name) => `var(--of-${name.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}, var(--grey))`;

/** One rem in px: figures keep their proportions where letters are larger. */
export const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

export const linear = (domain, range) => scaleLinear(domain, range);

/** Round values of an axis {scale, text}, about `many` of them (in multiples of `unit`): [px, words]. */
export function ticks({ scale, text, many = 5, unit = 1 }) {
  const inUnit = scale.copy().domain(scale.domain().map((value) => value / unit));
  return inUnit.ticks(many).map((value) => [inUnit(value), text(value * unit)]);
}

/** A figure of a size, named for who cannot see it. */
export function figure(width, height, label, ...children) {
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "figure" },
    children,
  );
}

/** Axes with grid lines: `x` and `y` are {scale, text, title, many, unit}, see `ticks`; `box` is {left, right, top,
 * bottom} in px. */
export function axes(box, x, y) {
  const out = [],
    em = rem(),
    many = box.right - box.left > 30 * em ? 8 : 4;
  for (const [at, words] of y ? ticks(y) : []) {
    out.push(
      s("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }),
      s("text", { class: "tick", x: box.left - 6, y: at + 0.27 * em, "text-anchor": "end" }, words),
    );
  }
  for (const [at, words] of x ? ticks({ many, ...x }) : []) {
    out.push(
      s("line", { class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom }),
      s("text", { class: "tick", x: at, y: box.bottom + em, "text-anchor": "middle" }, words),
    );
  }
  if (x?.title)
    out.push(
      s(
        "text",
        { class: "title", x: (box.left + box.right) / 2, y: box.bottom + 2.1 * em, "text-anchor": "middle" },
        x.title,
      ),
    );
  if (y?.title)
    out.push(
      s(
        "text",
        { class: "title", x: Math.max(box.left - 3.3 * em, 0), y: box.top - 0.5 * em, "text-anchor": "start" },
        y.title,
      ),
    );
  return out;
}

/** A line across at what is usable, with its words. */
export const limitLine = (box, y, words) => [
  s("line", { class: "limit", x1: box.left, x2: box.right, y1: y, y2: y }),
  s("text", { class: "tick", x: box.right, y: y - 4, "text-anchor": "end" }, words),
];

/** Where a figure's axes stand: room for `left` and `bottom` words, in px. */
export function box(width, height, { left = 3.7, right = 0.8, top = 1.5, bottom = 2.5 } = {}) {
  const em = rem();
  return { left: left * em, right: width - right * em, top: top * em, bottom: height - bottom * em };
}

/** Points as a path; a null breaks the line. */
export function path(xs, ys) {
  let out = "",
    pen = false;
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null || ys[i] === undefined || !Number.isFinite(ys[i])) {
      pen = false;
      continue;
    }
    out += `${pen ? "L" : "M"}${xs[i].toFixed(1)} ${ys[i].toFixed(1)}`;
    pen = true;
  }
  return out;
}

/** A row of coloured squares with words. */
export function legend(entries) {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const [words, colour] of entries) {
    const item = document.createElement("li"),
      mark = document.createElement("i");
    mark.style.background = colour;
    item.append(mark, words);
    list.append(item);
  }
  return list;
}

/** Unit for all times of one axis: [scale, word]. */
export function timeUnit(largest) {
  return largest >= 1 ? [1, "s"] : largest >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
}

export const secondsTicks = (unit) => (at) => String(Number((at / unit).toPrecision(4)));

/** A whole as its parts: one bar, and the parts with their numbers; a `limit` as a mark. */
export function parts(values, words, whole, form, limit = null) {
  const rows = Object.entries(words)
    .map(([key, label]) => [label, values[key] ?? 0, paint(key.replace(/_(mm2|w)$/, ""))])
    .filter(([, value]) => value / whole >= 0.0005);
  return [
    h(
      "div",
      { class: "stackbar", role: "img", "aria-label": rows.map(([l, v]) => `${l} ${form(v)}`).join(", ") },
      rows.map(([label, v, colour]) =>
        h("i", {
          style: { width: `${(100 * v) / whole}%`, background: colour },
          "data-tip": `${label}: ${form(v)}, ${share(v / whole)}`,
        }),
      ),
      limit
        ? h("b", { style: { left: `${Math.min((100 * limit) / whole, 99.6)}%` }, "data-tip": `usable ${form(limit)}` })
        : null,
    ),
    h(
      "ul",
      { class: "legend values" },
      rows.map(([label, v, colour]) =>
        h("li", {}, h("i", { style: { background: colour } }), `${label} `, h("b", {}, form(v))),
      ),
    ),
  ];
}
