// One field: its number, its slider, and what the same work would take at every value around it.

import { linear, path, rem, secondsTicks, ticks, timeUnit } from "./charts.js";
import { h, put, s, sized, term } from "./dom.js";
import { change, counted, seconds, times, whole } from "./format.js";

const TOP = 1.1,
  BOTTOM = 1.05; // room for words above and below the curve, in rem
const STEP = 0.01; // least rise at equal work to be marked as a wave or tile that begins
const EDGE = 8; // px left and right: half a slider's thumb, so that it stands under its point

/** A card for `field`. `onValue(value, live)` is called with what the person chose. */
export function sawtooth(field, { onValue, onOffer, onFix }) {
  let data = null,
    equal = [],
    own = null,
    pointed = null,
    cross = null,
    readout = null,
    xOf = null,
    value = null,
    low = 1,
    high = 2,
    dragging = false,
    typing = false; // typing: the number is the person's until it is entered
  const id = `field-${field}`;
  const number = h("input", {
    id,
    type: "text",
    inputmode: "numeric",
    autocomplete: "off",
    "aria-describedby": `${id}-says`,
    oninput: () => {
      typing = true;
    },
    onchange: () => typed(),
    onblur: () => {
      typing = false;
    },
    onkeydown: (e) => stepped(e),
  });
  const slider = h("input", {
    type: "range",
    "aria-label": `${field}, slider`,
    oninput: () => slid(true),
    onchange: () => slid(false),
    onkeydown: (e) => stepped(e),
  });
  const plot = h("div", { class: "plot" });
  const offers = h("div", { class: "offers" });
  const says = h("div", { class: "says", id: `${id}-says` });
  const element = h(
    "section",
    { class: "field card", "data-field": field },
    h("div", { class: "head" }, h("label", { for: id }, term(field, field)), number),
    plot,
    slider,
    offers,
    says,
  );

  const width = sized(plot, () => draw());
  plot.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && !event.target.closest("[data-offer]")) {
      dragging = true;
      plot.setPointerCapture(event.pointerId);
      moved(event, true);
    }
  });
  plot.addEventListener("pointermove", (event) => {
    if (dragging) moved(event, true);
    else hover(event);
  });
  plot.addEventListener("pointerup", (event) => {
    if (dragging) {
      dragging = false;
      moved(event, false);
    }
  });
  plot.addEventListener("pointercancel", () => {
    dragging = false;
  });
  plot.addEventListener("pointerleave", () => point(null));

  function typed() {
    typing = false;
    const text = number.value.replaceAll(/[,_ ]/g, "");
    onValue(/^\d+$/.test(text) ? Number(text) : text, false);
  }

  function stepped(event) {
    const by = {
      ArrowUp: 1,
      ArrowDown: -1,
      PageUp: 10,
      PageDown: -10,
      ...(event.target === slider ? { ArrowRight: 1, ArrowLeft: -1 } : {}),
    }[event.key];
    if (!by || !data) return;
    event.preventDefault();
    typing = false;
    onValue(neighbour(value, by), false);
  }

  function neighbour(from, by) {
    const can = data.values.filter((_, i) => data.time_s[i] !== null && !data.fine.has(data.values[i]));
    const at = by > 0 ? can.findIndex((v) => v > from) : can.findLastIndex((v) => v < from);
    if (at < 0) return from;
    return can[Math.min(Math.max(at + by - Math.sign(by), 0), can.length - 1)];
  }

  function slid(live) {
    const wanted = nearest(Number(slider.value));
    if (wanted !== null) onValue(wanted, live);
  }

  function moved(event, live) {
    const wanted = nearest(valueAt(event));
    if (wanted !== null) onValue(wanted, live);
  }

  function hover(event) {
    point(nearest(valueAt(event)));
  }

  function valueAt(event) {
    const box = plot.getBoundingClientRect();
    return low + ((event.clientX - box.left - EDGE) / Math.max(box.width - 2 * EDGE, 1)) * (high - low);
  }

  /** The value of the sweep nearest to where the hand is; values that cannot be are skipped. */
  function nearest(wanted) {
    if (!data) return null;
    let best = null;
    for (let i = 0; i < data.values.length; i++) {
      const v = data.values[i];
      if (
        data.time_s[i] !== null &&
        !data.fine.has(v) &&
        (best === null || Math.abs(v - wanted) < Math.abs(best - wanted))
      )
        best = v;
    }
    return best;
  }

  function timeOf(at) {
    const i = data ? data.values.indexOf(at) : -1;
    return i < 0 ? null : data.time_s[i];
  }

  /** Where the hand points: a line there, and what is read off. */
  function point(at) {
    if (at === pointed) return;
    pointed = at;
    if (cross)
      put(
        cross,
        at === null
          ? null
          : s("line", {
              class: "cross",
              x1: xOf(at),
              x2: xOf(at),
              y1: TOP * rem(),
              y2: plot.clientHeight - BOTTOM * rem(),
            }),
      );
    if (readout) readout.textContent = readOff(at ?? value);
  }

  function readOff(at) {
    const t = timeOf(at);
    if (t === null) return "";
    if (at === data.asked) return `${whole(at)}: ${seconds(t)} a microbatch`;
    const i = data.values.indexOf(at),
      base = data.values.indexOf(data.asked);
    return `${whole(at)}: ${seconds(t)}, ${times(equal[base] / equal[i])} at equal work`;
  }

  function draw() {
    if (!data || !width()) return;
    const w = width(),
      em = rem(),
      height = plot.clientHeight,
      top = TOP * em,
      bottom = height - BOTTOM * em;
    const shown = [...data.values.keys()].filter((i) => data.time_s[i] !== null);
    const least = Math.min(...shown.map((i) => equal[i])),
      most = Math.max(...shown.map((i) => equal[i])),
      room = Math.max(most - least, least * 0.01) * 0.12;
    const x = linear([low, high], [EDGE, w - EDGE]),
      y = linear([least - room, most + room], [bottom, top]);
    const [unit, word] = timeUnit(most),
      inside = (at) => Math.min(Math.max(at, top), bottom);
    const heights = ticks({ scale: y, many: 3, text: secondsTicks(unit) });
    const span = `${field} ${whole(low)} to ${whole(high)}`;
    const xs = shown.map((i) => x(data.values[i])),
      at = data.values.indexOf(value),
      real = (v) =>
        shown.reduce((near, i) => (Math.abs(data.values[i] - v) < Math.abs(near - v) ? data.values[i] : near), low);
    xOf = x;
    cross = s("g", {});
    readout = s("text", { class: "tick readout", x: 2, y: 0.75 * em }, readOff(pointed ?? value));
    put(
      plot,
      s(
        "svg",
        {
          width: w,
          height,
          role: "img",
          "aria-label": `Time of a microbatch at equal work from ${span}: ${seconds(least)} to ${seconds(most)}`,
        },
        heights.map(([t]) => s("line", { class: "grid", x1: 0, x2: w, y1: t, y2: t })),
        s("path", {
          class: "size",
          d: path(
            xs,
            shown.map((i) => (Math.abs(inside(y(data.time_s[i])) - y(data.time_s[i])) > 0 ? null : y(data.time_s[i]))),
          ),
        }),
        s("path", {
          class: "saw",
          d: path(
            xs,
            shown.map((i) => y(equal[i])),
          ),
        }),
        shown.length < 70
          ? shown.map((i, k) => s("circle", { class: "dot", cx: xs[k], cy: y(equal[i]), r: 1.8 }))
          : null,
        heights.map(
          ([t, words]) => t > 1.6 * em && s("text", { class: "tick", x: 1, y: t - 2 }, words), // clear of the readout
        ),
        s("text", { class: "tick", x: w - 2, y: 0.75 * em, "text-anchor": "end" }, word),
        readout,
        aligned(field, [low, high], x, bottom, w),
        steps(field, data, equal, x, y),
        s("line", { class: "base", x1: 0, x2: w, y1: bottom, y2: bottom }),
        [...new Set(x.ticks(4).map(real))].map((v) =>
          s(
            "text",
            { class: "tick", x: Math.min(Math.max(x(v), em), w - em), y: height - 2, "text-anchor": "middle" },
            whole(v),
          ),
        ),
        own === null || own === value || own < low || own > high
          ? null
          : s("line", {
              class: "own",
              x1: x(own),
              x2: x(own),
              y1: top,
              y2: bottom,
              "data-tip": `The model's own: ${whole(own)}`,
            }),
        data.better.map((offer) => better(offer, data, equal, x, y, onOffer)),
        cross,
        at < 0 || equal[at] === null
          ? null
          : [
              s("line", { class: "now", x1: x(value), x2: x(value), y1: top, y2: bottom }),
              s("circle", { class: "now", cx: x(value), cy: y(equal[at]), r: 5 }),
            ],
      ),
    );
  }

  return {
    element,
    /** New figures from the server. */
    show(sweep, now, around, ownValue = null) {
      value = now;
      own = ownValue;
      pointed = null;
      if (sweep) {
        const step = commonStep(sweep.values);
        data = { ...sweep, fine: new Set(sweep.values.filter((v) => v % step && v !== now && v !== around)) };
        equal = atEqualWork(data);
        low = sweep.values[0];
        high = sweep.values.at(-1);
        slider.min = low;
        slider.max = high;
        slider.step = 1;
      }
      slider.disabled = number.disabled = !data;
      if (!typing) number.value = now;
      slider.value = now;
      slider.setAttribute("aria-valuetext", `${whole(now)}, ${seconds(timeOf(now))}`);
      put(
        offers,
        (data?.better ?? []).map((offer) => chipOf(offer, now, timeOf(offer.value), onOffer)),
        data?.better.length ? null : h("span", { class: "muted", "data-term": "equal_work" }, "no better value nearby"),
      );
      draw();
    },
    /** The values offered, and which findings each would add: said once they are known. */
    offered: () => (data?.better ?? []).map((offer) => offer.value),
    news(at, found) {
      const chip = offers.querySelector(`[data-value="${at}"]`);
      if (!chip) return;
      chip.querySelector(".news").textContent = found.length ? `, ${counted(found.length, "finding")}` : ", clean";
      if (found.length) chip.dataset.tip += ` ${found.map((f) => f.message).join(" ")}`;
    },
    /** Move the mark at once, before the server has answered. */
    move(now) {
      value = now;
      if (!typing) number.value = now;
      if (document.activeElement !== slider) slider.value = now;
      pointed = null;
      draw();
    },
    /** While another size moves, those that follow it move too. */
    follow(now) {
      if (now !== value && now !== undefined) this.move(now);
    },
    findings(found) {
      element.classList.toggle("has-finding", found.length > 0);
      put(
        says,
        found
          .slice(0, 1)
          .map((f) =>
            h(
              "div",
              { class: `finding ${f.grade}` },
              h("span", { class: "grade" }, f.grade),
              h("span", { class: "what", "data-tip": f.message, tabindex: "0" }, f.rule),
              Object.keys(f.fix).length
                ? h(
                    "button",
                    { class: "chip", onclick: () => onFix(f.fix), "aria-label": `fix: ${fixWords(f.fix)}` },
                    "fix",
                  )
                : null,
            ),
          ),
      );
    },
    error(message) {
      number.setAttribute("aria-invalid", message ? "true" : "false");
      element.classList.toggle("has-error", Boolean(message));
      if (message) put(says, h("div", { class: "wrong", "data-tip": message, tabindex: "0" }, message));
    },
    focus() {
      number.focus();
      number.scrollIntoView({ block: "nearest" });
    }, // clear of what is said at the foot of the page
  };
}

/** What the lines and marks of all fields mean, once. */
export const sawLegend = () =>
  h(
    "p",
    { class: "legend" },
    [
      ["path", { class: "saw", d: "M1 6h14" }, "time at equal work"],
      ["path", { class: "size", d: "M1 6h14" }, "time"],
      ["circle", { class: "now", cx: 8, cy: 6, r: 5 }, "the value set"],
      ["line", { class: "own", x1: 8, x2: 8, y1: 0, y2: 12 }, "the model's own value"],
      ["path", { class: "better", d: "M8 1l5 5l-5 5l-5 -5z" }, "a better value"],
      ["path", { class: "step", d: "M8 9l4 -6h-8z" }, "a wave or tile more begins"],
      ["path", { class: "aligned", d: "M4 12v-6M8 12v-6M12 12v-6" }, "multiples that tiles like"],
    ].map(([tag, look, words]) => h("span", {}, s("svg", { width: 16, height: 12 }, s(tag, look)), ` ${words}`)),
  );

/** Ticks at the multiples that tiles and kernels like best, as many as can be told apart. */
function aligned(field, [low, high], x, bottom, w) {
  if (!/_size$|_dim$/.test(field)) return null;
  const step = [64, 128, 256, 512, 1024, 2048, 4096, 8192].find((n) => (w * n) / (high - low) >= 7);
  if (!step) return null;
  const first = Math.ceil(low / step);
  const values = Array.from({ length: Math.floor(high / step) - first + 1 }, (_, k) => (first + k) * step);
  return s("path", {
    class: "aligned",
    d: values.map((v) => `M${x(v).toFixed(1)} ${bottom}v-5`).join(""),
    "data-tip": `Multiples of ${step}`,
  });
}

/** Where the next aligned value takes surely longer for the same work: a wave or a tile more has begun. */
function steps(field, data, equal, x, y) {
  if (["num_heads", "num_kv_heads"].includes(field)) return null;
  const on = [...data.values.keys()].filter((i) => data.time_s[i] !== null && !data.fine.has(data.values[i]));
  const jumps = on.filter((i, k) => k > 0 && equal[i] > equal[on[k - 1]] * (1 + STEP));
  if (jumps.length > 14) return null;
  return jumps.map((i) =>
    s("path", {
      class: "step",
      d: `M${x(data.values[i])} ${y(equal[i]) - 4}l3 -5h-6z`,
      "data-tip": `${whole(data.values[i])}: one more wave or tile begins`,
    }),
  );
}

function better(offer, data, equal, x, y, onOffer) {
  const i = data.values.indexOf(offer.value);
  if (i < 0 || equal[i] === null) return null;
  return s("path", {
    class: "better",
    "data-offer": offer.value,
    d: `M${x(offer.value)} ${y(equal[i]) - 5}l5 5l-5 5l-5 -5z`,
    onclick: () => onOffer(offer.value),
  });
}

export const fixWords = (fix) =>
  Object.entries(fix)
    .map(([field, to]) => `${field} = ${whole(to)}`)
    .join(", ");

/** The step of a sweep's grid: the most frequent distance between neighbours, where it is a power of two. */
function commonStep(values) {
  let step = 1;
  for (let i = 1; i < values.length; i++) {
    const gap = values[i] - values[i - 1];
    if (gap > step && (gap & (gap - 1)) === 0) step = gap;
  }
  return step > 1 && values.filter((v) => v % step === 0).length > values.length / 8 ? step : 1;
}

/** Times as the work of the shape asked about would take: over GEMM FLOPs or parameters, whichever favours less. */
function atEqualWork({ values, time_s, flops, num_params, asked }) {
  const base = values.indexOf(asked);
  return time_s.map((t, i) =>
    t === null ? null : t / Math.min(flops[i] / flops[base], num_params[i] / num_params[base]),
  );
}

function chipOf(offer, now, time_s, onOffer) {
  return h(
    "button",
    {
      class: "chip offered",
      "data-value": offer.value,
      onclick: () => onOffer(offer.value),
      "data-tip": `${seconds(time_s)} a microbatch.`,
    },
    `${offer.value < now ? "◂" : "▸"} ${whole(offer.value)}: `,
    h("b", { class: "good" }, times(1 / (1 - offer.saving))),
    " at equal work",
    h(
      "small",
      {},
      `${change(offer.time_change)} time, ${change(offer.params_change)} parameters`,
      h("span", { class: "news" }),
    ),
  );
}
