// Figures as SVG: scales, axes, and the marks that more than one view draws.

import { h, put, s, sized } from "./dom.js";
import { share } from "./format.js";

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

/** @param {number[]} domain @param {number[]} range */
export function linear([d0, d1], [r0, r1]) {
  const k = d1 === d0 ? 0 : (r1 - r0) / (d1 - d0);
  const scale = (value) => r0 + (value - d0) * k;
  scale.invert = (at) => (k ? d0 + (at - r0) / k : d0);
  return scale;
}

/** @param {number[]} domain @param {number[]} range */
export function log([d0, d1], [r0, r1]) {
  const inner = linear([Math.log(d0), Math.log(d1)], [r0, r1]);
  const scale = (value) => inner(Math.log(value));
  scale.invert = (at) => Math.exp(inner.invert(at));
  return scale;
}

/** Round values between two, about `many` of them. */
export function ticks(low, high, many = 5) {
  if (!(high > low)) return [low];
  const raw = (high - low) / many,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw);
  const out = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step)
    out.push(Number(at.toPrecision(12)));
  return out;
}

export function logTicks(low, high, digits = [1, 3]) {
  const out = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of digits) out.push(Number((digit * 10 ** power).toPrecision(6)));
  }
  return out.filter((at) => at >= low && at <= high);
}

/** A figure of a size, named for who cannot see it. */
export function figure(width, height, label, ...children) {
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "figure" },
    children,
  );
}

/** Axes with grid lines: `x` and `y` are {scale, ticks, text, title}; `box` is {left, right, top, bottom} in px. */
export function axes(box, x, y) {
  const out = [],
    em = rem();
  for (const at of y?.ticks ?? []) {
    out.push(
      s("line", { class: "grid", x1: box.left, x2: box.right, y1: y.scale(at), y2: y.scale(at) }),
      s("text", { class: "tick", x: box.left - 6, y: y.scale(at) + 0.27 * em, "text-anchor": "end" }, y.text(at)),
    );
  }
  for (const at of x?.ticks ?? []) {
    out.push(
      s("line", { class: "grid", x1: x.scale(at), x2: x.scale(at), y1: box.top, y2: box.bottom }),
      s("text", { class: "tick", x: x.scale(at), y: box.bottom + em, "text-anchor": "middle" }, x.text(at)),
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
      across = { scale: x, ticks: ticks(least, most, width > 500 ? 8 : 4), text: secondsTicks(unit) };
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
