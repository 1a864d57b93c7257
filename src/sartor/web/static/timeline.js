// Bars in time, into which one can look: d3-zoom (vendored, see d3.LICENSE) keeps the window.

import { axes, box, figure, linear, rem, secondsTicks, timeUnit } from "./charts.js";
import { h, put, s, sized } from "./dom.js";
import { interval } from "./format.js";
import "./d3-zoom.js";

const { select, zoom, zoomIdentity } = globalThis.d3;
const LEAST_PX = 12; // the shortest bar can be made at least this wide
const KEYS = {
  "+": ["scaleBy", 2],
  "=": ["scaleBy", 2],
  "-": ["scaleBy", 0.5],
  ArrowRight: ["translateBy", -80],
  ArrowLeft: ["translateBy", 80],
  0: ["transform", zoomIdentity],
};

/** Bars in time: `bars` of {line, start, end, colour, tip, words} [s] on named `lines`, as wide as what holds it.
 * `below(width, left, window, unit, word)` draws what stands under it in the same window of time. */
export function gantt({ label, lines, bars, tallest = 1.6, below = null, beside = null }) {
  const end = bars.reduce((most, bar) => Math.max(most, bar.end), 0),
    shortest = bars.reduce((least, bar) => (bar.end > bar.start ? Math.min(least, bar.end - bar.start) : least), end);
  const drawn = h("div", {
      class: "zoomed",
      tabindex: "0",
      role: "group",
      "aria-label": `${label}. + and − zoom, left and right move, 0 shows all, up and down go from bar to bar.`,
    }),
    shown = h("output", { class: "muted" }),
    detail = h("p", { class: "detail", role: "status" });
  const unit = timeUnit(end),
    longest = () => (width > 900 ? 36 : 21); // letters of a line's name
  let frame = null,
    width = 0,
    transform = zoomIdentity,
    chosen = null,
    asked = 0;

  /** A notch of a mouse's wheel is a third more; what is pinched on a trackpad comes in many small steps. */
  const turned = (event) => -event.deltaY * (event.deltaMode ? 0.05 : 0.002) * (Math.abs(event.deltaY) < 50 ? 10 : 2);
  const room = () => [
    [frame?.left ?? 0, 0],
    [frame?.right ?? 1, 1],
  ];
  const behaviour = zoom()
    .extent(room)
    .filter(mine)
    .wheelDelta(turned)
    .on("zoom", (event) => {
      transform = event.transform;
      cancelAnimationFrame(asked);
      asked = requestAnimationFrame(draw);
    });
  const turn = (how, by) => select(drawn).call(behaviour[how], by, ...(how === "translateBy" ? [0] : []));

  /** What is for the timeline: the wheel alone scrolls the page, as does one finger. */
  function mine(event) {
    if (event.type === "wheel") return event.ctrlKey || event.metaKey;
    return !event.button && (event.touches ? event.touches.length > 1 : true);
  }

  function draw() {
    const em = rem(),
      row = Math.max(0.4 * em, Math.min(tallest * em, (23 * em) / lines.length)),
      height = row * lines.length + 2.9 * em;
    const left = Math.min(width > 900 ? 15 : 9, Math.max(3.7, ...lines.map((line) => 0.42 * line.length + 0.8)));
    frame = box(width, height, { left, top: 0.4 });
    const whole = linear([0, end], [frame.left, frame.right]),
      at = [frame.left, frame.right].map((px) => whole.invert(transform.invertX(px))),
      x = linear(at, [frame.left, frame.right]);
    put(
      drawn,
      figure(
        width,
        height,
        label,
        axes(
          frame,
          {
            scale: x,
            text: secondsTicks(unit[0]),
            title: `time [${unit[1]}]`,
          },
          null,
        ),
        names(row, em),
        visible(at, x).map((bar) => mark(bar, x, row, em)),
      ),
      below?.(width, frame.left / em, at, ...unit),
    );
    shown.textContent = transform.k > 1.001 ? interval(...at) : "";
  }

  function names(row, em) {
    const every = Math.ceil(lines.length / Math.floor((23 * em) / Math.max(row, 0.9 * em)));
    return lines.map((line, i) =>
      i % every
        ? null
        : s(
            "text",
            { class: "tick", x: frame.left - 6, y: frame.top + row * (i + 0.5) + 0.25 * em, "text-anchor": "end" },
            line.length > longest() ? `${line.slice(0, longest() - 1)}…` : line,
          ),
    );
  }

  /** Bars within the window; of those thinner than a pixel, one a pixel. */
  function visible(at, x) {
    const last = new Map();
    return bars.filter((bar) => {
      if (bar.end < at[0] || bar.start > at[1]) return false;
      const px = x(bar.end),
        before = last.get(bar.line);
      if (before !== undefined && px >= before && px - before < 0.7) return false;
      last.set(bar.line, px);
      return true;
    });
  }

  function mark(bar, x, row, em) {
    const from = Math.max(x(bar.start), frame.left),
      wide = Math.max(Math.min(x(bar.end), frame.right) - from - 0.4, 0.4),
      y = frame.top + row * bar.line;
    const words = bar.words && row >= em && wide > 0.5 * em * bar.words.length;
    return [
      s("rect", {
        x: from,
        y: y + 0.5,
        width: wide,
        height: row - 1,
        fill: bar.colour,
        class: bar === chosen ? "chosen" : null,
        "data-tip": bar.tip,
        onclick: () => pick(bar),
      }),
      words
        ? s(
            "text",
            {
              class: bar.light ? "inbar" : "inbar dark",
              x: from + wide / 2,
              y: y + row / 2 + 0.25 * em,
              "text-anchor": "middle",
            },
            bar.words,
          )
        : null,
    ];
  }

  /** The bar whose detail stays below, also where no mouse hovers. */
  function pick(bar) {
    chosen = bar;
    detail.textContent = `${lines[bar.line]}: ${bar.tip}`;
    draw();
  }

  /** The next or the previous bar on the chosen one's line, moved into the window. */
  function stepped(by) {
    const row = bars.filter((bar) => bar.line === (chosen?.line ?? bars[0]?.line)).sort((a, b) => a.start - b.start),
      next = row[Math.min(Math.max(row.indexOf(chosen) + by, 0), row.length - 1)];
    if (!next) return;
    const scale = linear([0, end], [frame.left, frame.right]),
      px = transform.applyX(scale((next.start + next.end) / 2));
    pick(next);
    if (px < frame.left || px > frame.right) turn("translateBy", ((frame.left + frame.right) / 2 - px) / transform.k);
  }

  /** Drawn anew at another width, the window of time stays. */
  function resized(now) {
    const of = frame && (frame.left - transform.x) / transform.k / frame.right;
    width = now;
    draw();
    behaviour
      .translateExtent([
        [frame.left, 0],
        [frame.right, 1],
      ])
      .scaleExtent([1, Math.max(1, (LEAST_PX * end) / (shortest * (frame.right - frame.left)))]);
    if (transform.k > 1)
      select(drawn).call(
        behaviour.transform,
        zoomIdentity.translate(frame.left - of * frame.right * transform.k, 0).scale(transform.k),
      );
  }

  sized(drawn, resized);
  select(drawn)
    .call(behaviour)
    .on("dblclick.zoom", () => turn("scaleBy", 2));
  drawn.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      event.preventDefault();
      stepped(by);
    }
    if (event.key in KEYS && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      turn(...KEYS[event.key]);
    }
  });
  const button = (text, name, ...how) =>
    h("button", { class: "small", "aria-label": name || null, onclick: () => turn(...how) }, text);
  return h(
    "div",
    {},
    h(
      "div",
      { class: "row wrap" },
      button("+", "zoom in", "scaleBy", 2),
      button("−", "zoom out", "scaleBy", 0.5),
      button("Show all", "", "transform", zoomIdentity),
      shown,
      h("span", { class: "muted" }, "Ctrl + wheel or two fingers zoom, drag moves, a click or ↑ ↓ says what a bar is."),
      beside,
    ),
    drawn,
    detail,
  );
}
