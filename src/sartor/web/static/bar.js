// The question bar: which model, on what, doing what.

import { catalog } from "./api.js";
import { h, put, term } from "./dom.js";
import { axesOf, axesWords, bytes, count, whole } from "./format.js";
import { picker } from "./picker.js";
import { state, update } from "./state.js";
import { nameIn } from "./upload.js";

const PHASES = ["train", "prefill", "decode"];
export const TRAINERS = [
  "megatron",
  "megatron-bridge",
  "torchtitan",
  "deepspeed",
  "nemo",
  "fsdp",
  "maxtext",
  "pytorch",
];
const OWN = "own",
  CHOSEN = "chosen";
const INPUTS = new Map();

/** Build the bar once; `refresh` follows the state. */
export async function questionBar(element, { onConfig, onDevice }) {
  const [models, gpus, chips] = await Promise.all(["models", "gpus", "accelerators"].map(catalog));
  const dtypes = [...new Set(gpus.flatMap((gpu) => Object.keys(gpu.peak_flops_per_s)))];
  const pickModel = picker({
    id: "pick-model",
    title: "Models",
    groups: async () => modelGroups(models),
    take: choose,
  });
  const pickDevice = picker({
    id: "pick-gpu",
    title: "Devices",
    groups: async () => vendors(gpus, chips),
    take: chooseDevice,
  });
  const find = (what, open) =>
    h("button", { class: "quiet find", "aria-label": `search ${what}`, onclick: open }, "Find");
  put(
    element,
    labelled("model", null, modelSelect(models)),
    find("models", pickModel),
    h("button", { class: "quiet", id: "open-config", onclick: onConfig }, "config.json …"),
    labelled("gpu", "gpu", deviceSelect(gpus, chips, onDevice)),
    find("devices", pickDevice),
    labelled("phase", "phase", select("phase", PHASES)),
    more(element),
    labelled("dtype", "dtype", select("dtype", [["", "device's own"], ...dtypes])),
    labelled("seq_len", "seq_len", number("seq_len", "own")),
    labelled("context_len", "context_len", number("context_len", "own")),
    labelled("microbatch_size", "microbatch_size", number("microbatch_size", "own")),
    labelled("tp", "tp", number("tp", "auto")),
    labelled("attention", "attention", select("attention", ["flash", "unfused"])),
    labelled("framework", "framework", select("framework", [["", "usual"], ...TRAINERS])),
    labelled(
      "fix",
      "fix",
      text({ placeholder: "pp=4, recompute=none", size: 11 }, (value) => set("fix", value ? axesOf(value) : null)),
    ),
  );
}

/** On a phone the answer comes before what one seldom changes. */
function more(element) {
  const button = h("button", { class: "quiet more", "aria-expanded": "false", onclick: turn }, "More settings");
  function turn() {
    button.setAttribute("aria-expanded", String(element.classList.toggle("all")));
  }
  return button;
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

const groupsOf = (entries, label) =>
  [...new Set(entries.map(label))].map((name) => ({
    label: name,
    entries: entries.filter((one) => label(one) === name),
  }));

const modelGroups = (models) =>
  groupsOf(models, (model) => model.family ?? "").map(({ label, entries }) => ({
    label,
    entries: entries.map(({ name, params, released }) => ({
      name,
      about: `${count(params?.total)} · ${released ?? ""}`,
    })),
  }));

/** Devices by vendor, then the accelerators described by their parts. */
function vendors(gpus, chips) {
  const rate = ({ peak_flops_per_s: peak }) =>
    `${whole((peak.bf16 ?? peak.fp16 ?? Object.values(peak)[0]) / 1e12)} TFLOP/s`;
  const about = (gpu) => [gpu.title, rate(gpu), bytes(gpu.hbm_bytes), gpu.generation].filter(Boolean).join(" · ");
  const made = (shelf, say) => shelf.map((one) => ({ name: one.name, about: say(one) }));
  const groups = groupsOf(gpus, (gpu) => gpu.vendor).map(({ label, entries }) => ({
    label,
    entries: made(entries, about),
  }));
  return [...groups, { label: "accelerators", entries: made(chips, () => "described by its parts") }];
}

const optionGroups = (groups) =>
  groups.map(({ label, entries }) =>
    h(
      "optgroup",
      { label },
      entries.map(({ name }) => h("option", { value: name }, name)),
    ),
  );

function modelSelect(models) {
  return h(
    "select",
    { onchange: (event) => choose(event.target.value) },
    h("option", { value: "", hidden: true }, "config.json"),
    optionGroups(modelGroups(models)),
  );
}

function deviceSelect(gpus, chips, onDevice) {
  const chosen = (event) => {
    if (event.target.value !== OWN) return chooseDevice(event.target.value);
    refreshBar();
    return onDevice();
  };
  return h(
    "select",
    { onchange: chosen },
    h("option", { value: CHOSEN, hidden: true }, ""),
    h("option", { value: OWN }, "own TOML …"),
    deviceGroups(gpus, chips),
  );
}

function chooseDevice(name) {
  update((s) => {
    Object.assign(s.q, { gpu: name, gpu_toml: null, calibration: null });
  });
}

/** Options of a menu of devices. */
export const deviceGroups = (gpus, chips) => optionGroups(vendors(gpus, chips));

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
  return text({ inputmode: "numeric", placeholder, size: 4 }, (value) => {
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
