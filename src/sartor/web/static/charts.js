// Figures as SVG: scales, axes, and the marks that more than one view draws.

import { h, put, s, sized } from "./dom.js";
import { share } from "./format.js";
import "./d3-scale.js"; // vendored, see d3.LICENSE

const { scaleLinear, scaleLog } = globalThis.d3;

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

/** Parts of a step and of a device's memory, in words. */
export const SPENT = {
  compute_s: "compute",
  tp_s: "tensor parallel",
  pp_bubble_s: "pipeline bubble",
  pp_transfer_s: "pipeline transfers",
  dp_exposed_s: "data parallel, not hidden",
  ep_s: "expert exchange",
  cp_s: "context exchange",
  optimizer_s: "optimizer",
  overhead_s: "fixed costs",
};
export const HELD = {
  param_bytes: "parameters",
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
export const log = (domain, range) => scaleLog(domain, range);

/** Round values of an axis {scale, text}, about `many` of them (in multiples of `unit`): [px, words]. */
export function ticks({ scale, text, many = 5, unit = 1 }) {
  const inUnit = scale.copy().domain(scale.domain().map((value) => value / unit)),
    words = scale.base ? scale.tickFormat(many, text) : text; // of a logarithmic axis those that have room
  return inUnit
    .ticks(many)
    .map((value) => [inUnit(value), words(value * unit)])
    .filter(([, word]) => word);
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

/** A line each of `rows` {name, tip, low, high, colour, dots}: an interval [s] as a bar, and `dots` [s, radius, colour]
 * on it; from 0 where `zero`. */
export function whiskers({ label, title, rows, zero = false }) {
  const holder = h("div", {}),
    all = rows.flatMap(({ low, high, dots }) => [low, high, ...dots.map(([at]) => at)]),
    [least, most] = [zero ? 0 : 0.97 * Math.min(...all), 1.02 * Math.max(...all)],
    letters = Math.max(...rows.map(({ name }) => name.length)),
    [unit, word] = timeUnit(most);
  sized(holder, (width) => {
    const em = rem(),
      row = 1.7 * em,
      height = row * rows.length + 3 * em,
      frame = box(width, height, { left: Math.min(0.42 * letters + 1, (0.4 * width) / em), top: 0.4 }),
      shown = Math.floor((frame.left / em - 1) / 0.42),
      x = linear([least, most], [frame.left, frame.right]),
      across = { scale: x, text: secondsTicks(unit) };
    const line = ({ name, tip, low, high, colour, dots }, i) => {
      const y = frame.top + row * (i + 0.5),
        bar = { stroke: colour, "stroke-width": 6, "stroke-linecap": "round", opacity: 0.45 },
        words = name.length > shown ? `${name.slice(0, shown - 1)}…` : name;
      return s(
        "g",
        { "data-tip": tip },
        s("line", { class: "faintline", x1: frame.left, x2: frame.right, y1: y, y2: y }),
        s("line", { x1: x(low), x2: x(high), y1: y, y2: y, ...bar }),
        dots.map(([at, r, fill]) => s("circle", { cx: x(at), cy: y, r, fill })),
        s("text", { class: "tick", x: frame.left - 8, y: y + 0.25 * em, "text-anchor": "end" }, words),
      );
    };
    put(
      holder,
      figure(width, height, label, axes(frame, { ...across, title: `${title} [${word}]` }, null), rows.map(line)),
    );
  });
  return holder;
}

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
