// Figures that Vega draws from the specifications of the report. Its library comes with the first one that is seen.

import { h, sized } from "./dom.js";

const LIBRARY = "vega-embed.js";
const OPTIONS = { actions: false, renderer: "svg", ast: true, mode: "vega-lite", tooltip: false, defaultStyle: false };
const UNSEEN_MS = 10_000;
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

let loading = null;

function library() {
  loading ??= new Promise((done, fail) => {
    const script = h("script", { src: LIBRARY, onload: () => done(/** @type {any} */ (globalThis).vegaEmbed) });
    script.addEventListener("error", () => {
      loading = null;
      script.remove();
      fail(new Error("the server does not answer"));
    });
    document.head.append(script);
  });
  return loading;
}

/** A figure {title, spec}, or what asks for one: then it is asked for when it comes into view. Its marks say their
 * numbers to the pointer and, once it has the focus, to the arrow keys; `choose` takes the datum of a mark that is
 * clicked, or on which Enter is pressed. */
export function chart(figure, choose = null) {
  const caption = h("figcaption", {}, figure.title),
    plot = h("div", { class: "vega", tabindex: "0", role: "group", "aria-label": figure.title });
  let drawing = figure.spec ? Promise.resolve() : seen(plot),
    asked = figure.spec ? figure : null;
  plot.append(h("p", { class: "muted" }, "Drawing …"));

  async function draw(width) {
    try {
      asked ??= figure();
      const { title, spec } = await asked;
      caption.textContent = title;
      plot.setAttribute("aria-label", title);
      plot.style.minHeight = `${spec.height}px`;
      const { view, finalize } = await (await library())(plot, { ...spec, description: title, width }, OPTIONS);
      await view.resize().runAsync(); // the legend's columns follow from the width
      plot.querySelectorAll("[role=graphics-symbol]").forEach(datum); // named from the start
      finalize(); // what is drawn stays; marks are listened to here, and another width draws anew
    } catch (error) {
      asked = figure.spec ? figure : null; // another width asks again
      plot.textContent = `This figure could not be drawn: ${error.message}.`;
    }
  }

  /** What a mark stands for, with its words for the pointer and the reader of the screen. */
  function datum(mark) {
    const { tooltip, datum } = mark?.__data__ ?? {};
    if (!tooltip) return null;
    const words = Object.entries(tooltip).map(([name, value]) => (name.trim() ? `${name}: ${value}` : value));
    mark.dataset.tip = words.join("; ");
    mark.setAttribute("aria-label", mark.dataset.tip);
    return datum;
  }

  function take(mark) {
    const chosen = datum(mark);
    if (chosen) choose?.(chosen);
  }

  plot.addEventListener("pointerover", (event) => datum(event.target));
  plot.addEventListener("click", (event) => take(event.target));
  plot.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (event.key === "Enter") take(document.activeElement);
    if (!step) return;
    event.preventDefault();
    const marks = [...plot.querySelectorAll("[role=graphics-symbol]")].filter(datum),
      at = marks.indexOf(document.activeElement),
      next = marks[at < 0 ? 0 : (at + step + marks.length) % marks.length];
    next?.setAttribute("tabindex", "-1");
    next?.focus();
  });
  sized(plot, (width) => {
    drawing = drawing.then(() => draw(width));
  });
  return h("figure", { class: choose ? "chooses" : null }, caption, plot);
}

/** Resolves when an element has come into view, or has stood out of it for a while: no browser waits for a figure when
 * it prints.
 * @returns {Promise<void>} */
const seen = (element) =>
  new Promise((done) => {
    const watch = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) found();
    });
    const found = () => {
      watch.disconnect();
      done();
    };
    watch.observe(element);
    setTimeout(found, UNSEEN_MS);
  });
