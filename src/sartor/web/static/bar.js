// The question bar: which model, on what, doing what.

import { catalog } from "./api.js";
import { h, put, term } from "./dom.js";
import { axesOf, axesWords } from "./format.js";
import { state, update } from "./state.js";
import { nameIn } from "./upload.js";

const PHASES = ["train", "prefill", "decode"];
const OWN = "own",
  CHOSEN = "chosen";
const INPUTS = new Map();

/** Build the bar once; `refresh` follows the state. */
export async function questionBar(element, { onConfig, onDevice }) {
  const [models, gpus, chips] = await Promise.all(["models", "gpus", "accelerators"].map(catalog));
  const dtypes = [...new Set(gpus.flatMap((gpu) => Object.keys(gpu.peak_flops_per_s)))];
  put(
    element,
    labelled("model", null, modelSelect(models)),
    h("button", { class: "quiet", id: "open-config", onclick: onConfig }, "config.json …"),
    labelled("gpu", "gpu", deviceSelect(gpus, chips, onDevice)),
    labelled("phase", "phase", select("phase", PHASES)),
    labelled("dtype", "dtype", select("dtype", [["", "device's own"], ...dtypes])),
    labelled("seq_len", "seq_len", number("seq_len", "own")),
    labelled("context_len", "context_len", number("context_len", "own")),
    labelled("microbatch_size", "microbatch_size", number("microbatch_size", "own")),
    labelled("tp", "tp", number("tp", "auto")),
    labelled("attention", "attention", select("attention", ["flash", "unfused"])),
    labelled(
      "fix",
      "fix",
      text({ placeholder: "pp=4, recompute=none", size: 16 }, (value) => set("fix", value ? axesOf(value) : null)),
    ),
  );
}

function labelled(field, key, input) {
  INPUTS.set(field, input);
  input.id = `ask-${field}`;
  return h(
    "label",
    { class: "ask", for: input.id, "data-ask": field },
    h("span", {}, key ? term(key, field) : field),
    input,
  );
}

function modelSelect(models) {
  const families = [...new Set(models.map((m) => m.family ?? ""))];
  return h(
    "select",
    { onchange: (event) => choose(event.target.value) },
    h("option", { value: "", hidden: true }, "config.json"),
    families.map((family) =>
      h(
        "optgroup",
        { label: family },
        models.filter((m) => (m.family ?? "") === family).map((m) => h("option", { value: m.name }, m.name)),
      ),
    ),
  );
}

function deviceSelect(gpus, chips, onDevice) {
  return h(
    "select",
    {
      onchange: (event) => {
        if (event.target.value === OWN) {
          refreshBar();
          onDevice();
        } else
          update((s) => {
            Object.assign(s.q, { gpu: event.target.value, gpu_toml: null, calibration: null });
          });
      },
    },
    h("option", { value: CHOSEN, hidden: true }, ""),
    h("option", { value: OWN }, "own TOML …"),
    deviceGroups(gpus, chips),
  );
}

/** Options of a menu: the catalogue's GPUs, then the accelerators described by their parts. */
export function deviceGroups(gpus, chips) {
  const names = (entries) => entries.map(({ name }) => h("option", { value: name }, name));
  return [names(gpus), h("optgroup", { label: "accelerators" }, names(chips))];
}

function showDevice(input) {
  const { gpu, gpu_toml, calibration } = state.q;
  const name = gpu_toml ? nameIn(gpu_toml) : gpu,
    own = gpu_toml && name !== OWN ? " (own)" : "";
  input.firstChild.textContent = `${name}${own}${calibration ? ", calibrated" : ""}`;
  input.value = gpu_toml || calibration ? CHOSEN : gpu;
}

function select(field, options) {
  return h(
    "select",
    { onchange: (event) => set(field, event.target.value || null) },
    options.map((o) => (Array.isArray(o) ? h("option", { value: o[0] }, o[1]) : h("option", { value: o }, o))),
  );
}

function text(props, change) {
  return h("input", {
    type: "text",
    autocomplete: "off",
    ...props,
    onchange: (event) => change(event.target.value.trim()),
  });
}

function number(field, placeholder) {
  return text({ inputmode: "numeric", placeholder, size: 6 }, (value) => {
    const digits = value.replaceAll(/[,_ ]/g, "");
    set(field, digits === "" ? null : /^-?\d+$/.test(digits) ? Number(digits) : digits);
  });
}

function set(field, value) {
  update((s) => {
    s.q[field] = value;
  });
}

/** Another model: its changes do not carry over. */
function choose(name) {
  update((s) => {
    Object.assign(s.q, { model: name, config: null, name: "", set: {} });
    s.pins = [];
  });
}

let last = null;
export function refreshBar(workload) {
  last = workload ?? last;
  const q = state.q;
  for (const [field, input] of INPUTS) {
    if (field === "gpu") {
      showDevice(input);
      continue;
    }
    const value = field === "model" && q.config !== null ? "" : field === "fix" ? axesWords(q.fix) : q[field];
    if (field === "model") input.firstChild.textContent = q.config !== null ? q.name || "config.json" : "config.json";
    if (!input.dataset.dirty) input.value = value ?? "";
    if (last && input.placeholder && field in last) input.placeholder = String(last[field]);
  }
  INPUTS.get("context_len")
    ?.closest("label")
    .classList.toggle("faint", q.phase === "train");
  INPUTS.get("fix")
    ?.closest("label")
    .classList.toggle("faint", q.phase !== "train");
}

/** Mark the input an error speaks of; true where there is one. */
export function markBar(field, message) {
  let found = false;
  for (const [name, input] of INPUTS) {
    const wrong = Boolean(message) && name === field;
    found ||= wrong;
    input.setAttribute("aria-invalid", String(wrong));
    input.title = wrong ? message : "";
  }
  return found;
}
