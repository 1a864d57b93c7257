// One field: its number, its slider, and the predicted time at every value around it.

import { h, put, s, sized, term } from "./dom.js";
import { linear, path, rem } from "./charts.js";
import { change, count, seconds, whole } from "./format.js";

const TOP = 1.1, BOTTOM = 1.05; // room for words above and below the curve, in rem
const EDGE = 8; // px left and right: half a slider's thumb, so that it stands under its point

/** A card for `field`. `onValue(value, live)` is called with what the person chose. */
export function sawtooth(field, { onValue, onOffer, onFix }) {
  let data = null, value = null, low = 1, high = 2, dragging = false, typing = false; // typing: the number is the person's until it is entered
  const id = `field-${field}`;
  const number = h("input", { id, type: "text", inputmode: "numeric", autocomplete: "off", "aria-describedby": `${id}-says`, oninput: () => { typing = true; }, onchange: () => typed(), onblur: () => { typing = false; }, onkeydown: (e) => stepped(e) });
  const time = h("output", { class: "then", for: id });
  const slider = h("input", { type: "range", "aria-label": `${field}, slider`, oninput: () => slid(true), onchange: () => slid(false), onkeydown: (e) => stepped(e) });
  const plot = h("div", { class: "plot" });
  const offers = h("div", { class: "offers" });
  const says = h("div", { class: "says", id: `${id}-says` });
  const element = h("section", { class: "field card", "data-field": field },
    h("div", { class: "head" }, h("label", { for: id }, term(field, field)), number, time), plot, slider, offers, says);

  const width = sized(plot, () => draw());
  plot.addEventListener("pointerdown", (event) => { if (event.button === 0 && !event.target.closest("[data-offer]")) { dragging = true; plot.setPointerCapture(event.pointerId); moved(event, true); } });
  plot.addEventListener("pointermove", (event) => { if (dragging) moved(event, true); else hover(event); });
  plot.addEventListener("pointerup", (event) => { if (dragging) { dragging = false; moved(event, false); } });
  plot.addEventListener("pointercancel", () => { dragging = false; });
  plot.addEventListener("pointerleave", () => caption(value));

  function typed() {
    typing = false;
    const text = number.value.replaceAll(/[,_ ]/g, "");
    onValue(/^\d+$/.test(text) ? Number(text) : text, false);
  }

  function stepped(event) {
    const by = { ArrowUp: 1, ArrowDown: -1, PageUp: 10, PageDown: -10, ...(event.target === slider ? { ArrowRight: 1, ArrowLeft: -1 } : {}) }[event.key];
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
    const at = nearest(valueAt(event));
    if (at !== null) caption(at);
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
      if (data.time_s[i] !== null && !data.fine.has(v) && (best === null || Math.abs(v - wanted) < Math.abs(best - wanted))) best = v;
    }
    return best;
  }

  function timeOf(at) {
    const i = data ? data.values.indexOf(at) : -1;
    return i < 0 ? null : data.time_s[i];
  }

  function caption(at) {
    const t = timeOf(at);
    time.textContent = t === null ? "" : `${at === value ? "" : `${whole(at)}: `}${seconds(t)}`;
  }

  function draw() {
    if (!data || !width()) return;
    const w = width(), can = data.time_s.filter((t) => t !== null), em = rem();
    const height = plot.clientHeight, top = TOP * em, bottom = height - BOTTOM * em;
    const x = linear([low, high], [EDGE, w - EDGE]);
    const least = Math.min(...can), most = Math.max(...can);
    const y = linear([least, most === least ? least * 1.01 + 1e-12 : most], [bottom - 3, top]);
    const shown = data.values.map((v, i) => (data.time_s[i] === null ? -1 : i)).filter((i) => i >= 0);
    const xs = shown.map((i) => x(data.values[i])), ys = shown.map((i) => y(data.time_s[i]));
    const t = timeOf(value), rate = shown.map((i) => data.flops[i] / data.time_s[i]);
    const slow = Math.min(...rate), fast = Math.max(...rate), z = linear([slow, fast === slow ? fast * 1.01 + 1 : fast], [bottom - 3, top]);
    put(plot, s("svg", { width: w, height, role: "img", "aria-label": `Predicted time from ${field} ${whole(low)} to ${whole(high)}: ${seconds(least)} to ${seconds(most)}` },
      s("path", { class: "rate", d: path(xs, rate.map(z)) }),
      s("text", { class: "tick rate", x: w - 2, y: 0.75 * em, "text-anchor": "end" }, `${whole(slow / 1e12)} to ${whole(fast / 1e12)} TFLOP/s`),
      s("path", { class: "saw", d: path(xs, ys) }),
      shown.length < 70 ? shown.map((i, k) => s("circle", { class: "dot", cx: xs[k], cy: ys[k], r: 1.8 })) : null,
      s("text", { class: "tick", x: 2, y: height - 2 }, whole(low)),
      s("text", { class: "tick", x: w - 2, y: height - 2, "text-anchor": "end" }, whole(high)),
      s("line", { class: "grid", x1: 0, x2: w, y1: bottom, y2: bottom }), s("text", { class: "tick", x: 2, y: 0.75 * em }, `${seconds(least)} to ${seconds(most)}`),
      data.better.map((offer) => mark(offer, x, y)),
      t === null ? null : [s("line", { class: "now", x1: x(value), x2: x(value), y1: top - 4, y2: bottom }), s("circle", { class: "now", cx: x(value), cy: y(t), r: 5 })]));
  }

  function mark(offer, x, y) {
    const t = timeOf(offer.value);
    if (t === null) return null;
    const cx = x(offer.value), cy = y(t);
    return s("path", { class: "better", "data-offer": offer.value, d: `M${cx} ${cy - 5}l5 5l-5 5l-5 -5z`, onclick: () => onOffer(offer.value) });
  }

  return {
    element,
    /** New figures from the server. */
    show(sweep, now, around) {
      value = now;
      if (sweep) {
        const step = commonStep(sweep.values);
        data = { ...sweep, fine: new Set(sweep.values.filter((v) => v % step && v !== now && v !== around)) };
        low = sweep.values[0]; high = sweep.values.at(-1);
        slider.min = low; slider.max = high; slider.step = 1;
      }
      slider.disabled = number.disabled = !data;
      if (!typing) number.value = now;
      slider.value = now;
      slider.setAttribute("aria-valuetext", `${whole(now)}, ${seconds(timeOf(now))}`);
      caption(now);
      put(offers, (data?.better ?? []).map((offer) => h("button", {
        class: "chip", onclick: () => onOffer(offer.value),
        "data-tip": `At equal work ${change(-offer.saving)} time; in total ${change(offer.time_change)} time, ${change(offer.params_change, 2)} parameters.`,
      }, offer.value < now ? "◂ " : "", whole(offer.value), h("small", {}, ` ${change(-offer.saving)}`), offer.value > now ? " ▸" : "")),
        data?.better.length ? null : h("span", { class: "muted", "data-term": "equal_work" }, "no better value near by"));
      draw();
    },
    /** Move the mark at once, before the server has answered. */
    move(now) {
      value = now;
      if (!typing) number.value = now;
      if (document.activeElement !== slider) slider.value = now;
      caption(now);
      draw();
    },
    /** While another size moves: this one's value, and the time of all. */
    now(at, t) {
      if (at !== value && at !== undefined) this.move(at);
      time.textContent = seconds(t);
    },
    findings(found) {
      element.classList.toggle("has-finding", found.length > 0);
      put(says, found.slice(0, 1).map((f) => h("div", { class: `finding ${f.grade}` },
        h("span", { class: "grade" }, f.grade), h("span", { class: "what", "data-tip": f.message, tabindex: "0" }, f.message),
        Object.keys(f.fix).length ? h("button", { class: "chip", onclick: () => onFix(f.fix), "aria-label": `fix: ${fixWords(f.fix)}` }, "fix") : null)));
    },
    error(message) {
      number.setAttribute("aria-invalid", message ? "true" : "false");
      element.classList.toggle("has-error", Boolean(message));
      if (message) put(says, h("div", { class: "wrong", "data-tip": message, tabindex: "0" }, message));
    },
    focus() { number.focus(); number.scrollIntoView({ block: "nearest" }); }, // clear of what is said at the foot of the page
  };
}

export const fixWords = (fix) => Object.entries(fix).map(([field, to]) => `${field} = ${whole(to)}`).join(", ");
export const paramsWords = (n) => count(n, 4);

/** The step of a sweep's grid: the most frequent distance between neighbours, where it is a power of two. */
function commonStep(values) {
  let step = 1;
  for (let i = 1; i < values.length; i++) {
    const gap = values[i] - values[i - 1];
    if (gap > step && (gap & (gap - 1)) === 0) step = gap;
  }
  return step > 1 && values.filter((v) => v % step === 0).length > values.length / 8 ? step : 1;
}
