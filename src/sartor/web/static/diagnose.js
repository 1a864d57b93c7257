// The diagnose view: a log or trace of a real run, compared with the prediction.

import { ask, Refused } from "./api.js";
import { legend, paint } from "./charts.js";
import { card, h, put, table } from "./dom.js";
import { seconds, share } from "./format.js";
import { keep, kept } from "./kept.js";
import { question, state, update } from "./state.js";
import { gantt } from "./timeline.js";
import { chart } from "./vega.js";

const MOST = 18_000_000;
const TAKES =
  "A training log (Megatron-LM, torchtitan, DeepSpeed, NeMo, MaxText, litgpt, nanotron, nanoGPT, LLaMA-Factory, " +
  "transformers, MLPerf) or a profiler trace (PyTorch, or Nsight Systems as .sqlite), chosen or dropped here. " +
  "It is sent only to your own sartor server.";
const EXAMPLE = "An example: the made-up trace of a small GPT on an H100. Choose or drop your own run above.";
const OWN = ["model", "config", "name", "set"],
  DEVICE = ["gpu", "gpu_toml", "calibration"],
  PLAN = ["num_devices", "global_batch_size", "seq_len", "number"];
const ASKED = [...PLAN, "framework"];

export function diagnoseView({ banner, status }) {
  const results = h("div", { class: "results" }),
    inputs = {};
  const file = h("input", {
    type: "file",
    id: "run-file",
    "aria-label": "Log or trace",
    onchange: () => {
      if (file.files[0]) load(file.files[0]);
    },
  });
  const check = (key, words) =>
    h(
      "label",
      { class: "check" },
      (inputs[key] = h("input", { type: "checkbox", id: `run-${key}` })),
      h("span", {}, words),
    );
  const field = (key, words) =>
    h(
      "label",
      { class: "ask", for: `run-${key}` },
      h("span", {}, words),
      (inputs[key] = h("input", {
        type: "text",
        id: `run-${key}`,
        size: 8,
        autocomplete: "off",
        placeholder: "in the run",
      })),
    );
  const go = h(
    "button",
    { class: "primary", id: "run-diagnose", disabled: true, onclick: () => diagnose() },
    "Diagnose",
  );
  const stop = h("button", { id: "run-stop", hidden: true, onclick: () => running?.abort() }, "Cancel");
  const element = h(
    "div",
    { class: "stack" },
    card(
      "Run",
      h(
        "div",
        { class: "row wrap" },
        file,
        check("model", "of the model above"),
        check("device", "on the device above"),
        ASKED.map((key) => field(key, key === "number" ? "run number" : key)),
        go,
        stop,
      ),
      h("p", { class: "muted" }, TAKES),
    ),
    results,
  );
  let loaded = null,
    running = null,
    started = false;

  async function load(from) {
    started = true; // shown in place of what the view opens on
    if (from.size > MOST) {
      banner(`${from.name} has ${from.size} bytes: here at most ${MOST}; sartor diagnose in a terminal takes any size`);
      return;
    }
    // a log seldom says its model, a trace needs none
    if (from.name !== state.run.file) inputs.model.checked = !/\.(json|gz|sqlite)$/i.test(from.name);
    keep("run", [from]);
    await take(from);
  }

  async function take(from) {
    const shown = new DataTransfer(); // the control names the run also where it was dropped or kept
    shown.items.add(from);
    file.files = shown.files;
    loaded = { name: from.name, text: base64(new Uint8Array(await from.arrayBuffer())) };
    go.disabled = false;
    diagnose();
  }

  /** A file dropped on the page; or a link, or a page loaded again: what was asked then, of the file that this browser
   * has kept. */
  async function refresh(dropped) {
    if (dropped) load(dropped);
    if (started) return;
    started = true;
    for (const [key, input] of Object.entries(inputs))
      if (input.type === "checkbox") input.checked = state.run[key];
      else input.value = state.run[key] ?? "";
    const { file: name } = state.run;
    if (!name) {
      example();
      return;
    }
    const files = await kept("run", name);
    if (files) take(files[0]);
    else banner(`This link shows the run ${name}, which this browser does not have: choose the file again.`);
  }

  /** The view opens on an answer: our own small trace, which a file of one's own replaces. */
  async function example() {
    const answer = await fetch("example.json.gz").catch(() => null);
    if (!answer?.ok || loaded) return;
    loaded = { name: "example.json.gz", text: base64(new Uint8Array(await answer.arrayBuffer())), example: true };
    diagnose();
  }

  async function diagnose() {
    running?.abort();
    if (!loaded.example)
      update((st) => {
        st.run = {
          file: loaded.name,
          ...Object.fromEntries(
            Object.entries(inputs).map(([key, input]) => [
              key,
              input.type === "checkbox" ? input.checked : input.value.trim(),
            ]),
          ),
        };
      });
    const own = (running = new AbortController());
    element.classList.add("waiting");
    stop.hidden = false;
    status(`Reading ${loaded.name} …`);
    try {
      const found = await ask("/api/diagnose", asked(), { signal: own.signal });
      banner("");
      draw(found);
      status(found.says.title);
    } catch (error) {
      if (error.name === "AbortError") {
        if (running === own) status("Cancelled.");
        return;
      }
      if (!(error instanceof Refused)) throw error;
      banner(error.message);
      status("");
    } finally {
      if (running === own) {
        element.classList.remove("waiting");
        stop.hidden = true;
        running = null;
      }
    }
  }

  function asked() {
    const q = question(),
      take = (keys) => Object.fromEntries(Object.entries(q).filter(([key]) => keys.includes(key)));
    const said = Object.fromEntries(
      ASKED.map((key) => [key, inputs[key].value.trim().replaceAll(",", "")]).filter(([, value]) => value),
    );
    for (const key of PLAN) if (/^\d+$/.test(said[key] ?? "")) said[key] = Number(said[key]);
    const dtype = inputs.model.checked && state.q.dtype ? { dtype: state.q.dtype } : {};
    return {
      run: loaded.text,
      file: loaded.name,
      ...(inputs.model.checked ? take(OWN) : {}),
      ...(inputs.device.checked ? take(DEVICE) : {}),
      ...dtype,
      ...said,
    };
  }

  function draw(found) {
    const head = ["part", "time", "share", "points of MFU", "evidence, and what to do"].map((label, k) => ({
      label,
      number: k > 0 && k < 4,
    }));
    const rows = found.parts
      .filter((part) => Math.abs(part.share) >= 0.001)
      .map((part) => [
        found.says.parts[part.kind],
        seconds(part.seconds),
        share(part.share),
        part.points_of_mfu?.toFixed(1) ?? "–",
        prose(part),
      ]);
    const { fall, operators, timeline } = found.figures;
    put(
      results,
      loaded.example ? h("p", { class: "muted", id: "run-example" }, EXAMPLE) : null,
      card(
        found.says.title,
        headline(found),
        h(
          "div",
          { id: "run-says" },
          found.says.lines.map((line) => h("p", {}, line)),
        ),
      ),
      card("Where the time goes", fall ? chart(fall) : null, table("Parts of the mean steady step", head, rows)),
      timeline ? card("Timeline", lasting(timeline)) : null,
      operators ? card("Operators that lose most", chart(operators)) : null,
      said("Warnings", found.warnings),
      said("Assumed", found.assumptions),
    );
  }

  return { element, refresh };
}

/** What can be saved of the step, or how long it takes. */
function headline({ measured, parts, losses = [] }) {
  if (!measured.step_s) return null;
  const gain_s = parts.reduce((sum, part) => sum + (losses.includes(part.kind) ? part.gain_s : 0), 0),
    step = `${seconds(measured.step_s)}${measured.mfu ? ` at ${share(measured.mfu)} of peak (MFU)` : ""}`;
  return h(
    "p",
    { class: "promise-head" },
    gain_s > 0
      ? [h("strong", {}, share(gain_s / measured.step_s)), ` of the step can be saved: it takes ${step}`]
      : [h("strong", {}, seconds(measured.step_s)), " a step"],
  );
}

function prose(part) {
  return h(
    "div",
    { class: "prose" },
    part.evidence.slice(0, 3).map((line) => h("div", {}, line)),
    part.fix ? h("div", { class: "muted" }, `To do: ${part.fix}`) : null,
  );
}

function said(title, lines) {
  return lines.length
    ? card(
        title,
        h(
          "ul",
          {},
          lines.map((line) => h("li", {}, line)),
        ),
      )
    : null;
}

function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
}

function lasting(line) {
  const kinds = [...new Set(line.kind)];
  const bars = line.kind.map((kind, i) => ({
    line: line.lanes.indexOf(line.lane[i]),
    start: line.begin_s[i],
    end: line.end_s[i],
    colour: paint(kind),
    tip: `${kind}: ${seconds(line.end_s[i] - line.begin_s[i])}${line.kernels[i] ? `; ${line.kernels[i]}` : ""}`,
  }));
  return [
    h("p", { class: "muted" }, line.title),
    legend(kinds.map((kind) => [kind, paint(kind)])),
    gantt({ label: line.title, lines: line.lanes, bars, tallest: 2.2 }),
  ];
}
