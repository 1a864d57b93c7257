// What is asked, as plain data: in the address (so that a link is the whole page), with undo and redo.

export const START = {
  view: "shape",
  q: {
    model: "GPT-3 2.7B",
    config: null,
    name: "",
    gpu: "a100_sxm",
    gpu_toml: null,
    calibration: null,
    phase: "train",
    seq_len: null,
    microbatch_size: null,
    context_len: null,
    tp: null,
    dtype: null,
    attention: "flash",
    framework: "torchtitan",
    fix: null,
    set: {},
  },
  gpus: [],
  pins: [],
  scenarios: [],
  plan: {
    cluster: "dgx-a100",
    cluster_toml: null,
    num_devices: "64",
    global_batch_size: 512,
    seq_len: null,
    dtype: null,
    framework: "megatron",
    optimizer: "adam",
    fix: "",
    trainer: "megatron",
    ran: false,
  },
  deploy: {
    gpus: ["a100_sxm", "h100_sxm"],
    requests_per_s: 20,
    users: null,
    input_len: 1024,
    output_len: 256,
    ttft_s: 0.5,
    tpot_s: 0.03,
    probability: null,
    most_devices: 64,
    kernels: "vllm",
    pools: false,
  },
  design: {
    also: "",
    num_devices: 1024,
    global_batch_size: 4096,
    seq_len: null,
    space: "modern",
    objective: "throughput",
    area_mm2: null,
    power_w: null,
    hbm_gib: null,
    time_limit: 120,
    id: "",
    file: "",
  },
  run: {
    file: "",
    model: false,
    device: false,
    number: "",
    num_devices: "",
    global_batch_size: "",
    seq_len: "",
    framework: "",
  },
};

const clone = (value) => JSON.parse(JSON.stringify(value));
const past = [],
  future = [];
const listeners = new Set();
export let state = clone(START);
let settled = JSON.stringify(undoable(state));

function undoable({ q, gpus, pins, plan, scenarios }) {
  return { q, gpus, pins, plan, scenarios };
}

export const onChange = (listener) => listeners.add(listener);
export const canUndo = () => past.length > 0;
export const canRedo = () => future.length > 0;
/** What undo would take back, and redo bring back: "num_heads = 20", "model". */
export const undoing = () => (past.length ? named(JSON.parse(past.at(-1)), JSON.parse(settled)) : "");
export const redoing = () => (future.length ? named(JSON.parse(settled), JSON.parse(future.at(-1))) : "");

function named(from, to) {
  const differ = (a, b) =>
    [...new Set([...Object.keys(a), ...Object.keys(b)])].filter(
      (key) => JSON.stringify(a[key]) !== JSON.stringify(b[key]),
    );
  const other = [
    ...differ(from.q, to.q).filter((key) => key !== "set" && key !== "name"),
    ...differ(from.plan, to.plan).filter((key) => key !== "ran"),
    ...(differ(from.pins, to.pins).length ? ["pin"] : []),
    ...(differ(from.scenarios, to.scenarios).length ? ["scenario"] : []),
  ];
  if (other.includes("model") || other.includes("config")) return "model";
  const names = [
    ...differ(from.q.set, to.q.set).map((key) => (key in to.q.set ? `${key} = ${to.q.set[key]}` : key)),
    ...other,
  ];
  return names.length > 1 ? `${names[0]} and ${names.length - 1} more` : (names[0] ?? "");
}

/** Change the state by `edit(state)`. `live`: still dragging, so that undo goes back to where the drag began.
 * `visit`: a place of its own in the browser's history. */
export function update(edit, { live = false, visit = false } = {}) {
  if (visit && timer) writeAddress(); // where one comes back to
  edit(state);
  if (!live) settle();
  tell();
  if (visit) {
    stop();
    writeAddress("pushState");
  }
}

function settle() {
  const now = JSON.stringify(undoable(state));
  if (now === settled) return;
  past.push(settled);
  if (past.length > 200) past.shift();
  future.length = 0;
  settled = now;
}

export function undo() {
  step(past, future);
}
export function redo() {
  step(future, past);
}

function step(from, to) {
  if (!from.length) return;
  to.push(settled);
  settled = from.pop();
  Object.assign(state, JSON.parse(settled));
  tell();
}

function tell() {
  for (const listener of listeners) listener(state);
  keep();
}

let timer = 0;
function keep() {
  stop();
  timer = setTimeout(() => {
    timer = 0;
    writeAddress();
  }, 250);
}

function stop() {
  clearTimeout(timer);
  timer = 0;
}

let moves = 0; // back and forward, so far
addEventListener("popstate", () => {
  moves += 1;
  stop();
});

let written = Promise.resolve();
/** Put the page as it is now into the address; one after the other, so that an earlier state never comes last.
 * Whoever went back or forward meanwhile is at another place, which keeps its own address. */
export function writeAddress(how = "replaceState") {
  const url = address(),
    from = moves;
  const now = written.then(async () => {
    const href = await url;
    if (moves === from) history[how](null, "", href);
  });
  written = now.catch(() => {}); // a browser refuses too many at once: the next one brings it
  return now;
}

/** The address that shows this page as it is. */
async function address() {
  const url = new URL(location.href);
  url.hash = `s=${await pack(differences(START, state))}`;
  url.searchParams.delete("token");
  return url.href;
}

function differences(from, to) {
  const out = {};
  for (const [key, value] of Object.entries(to)) {
    if (JSON.stringify(value) === JSON.stringify(from[key])) continue;
    const plain = value && typeof value === "object" && !Array.isArray(value) && from[key] && key !== "set";
    out[key] = plain ? differences(from[key], value) : value;
  }
  return out;
}

async function pack(value) {
  const stream = new Blob([JSON.stringify(value)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const packed = new Uint8Array(await new Response(stream).arrayBuffer());
  let text = "";
  for (const byte of packed) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

async function unpack(text) {
  const raw = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const data = Uint8Array.from(raw, (c) => c.charCodeAt(0));
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

/** Take the state from the address; false where it holds none that can be read. */
export async function fromAddress() {
  const packed = new URLSearchParams(location.hash.slice(1)).get("s");
  if (!packed) {
    state = clone(START);
    settled = JSON.stringify(undoable(state));
    return true;
  }
  const from = moves;
  try {
    const changes = await unpack(packed);
    if (moves !== from) return true; // the place gone to meanwhile says what is shown
    state = merged(clone(START), changes);
    settled = JSON.stringify(undoable(state));
    return true;
  } catch {
    return false;
  }
}

function merged(base, changes) {
  for (const [key, value] of Object.entries(changes ?? {})) {
    if (!(key in base)) continue;
    const plain = base[key] && typeof base[key] === "object" && !Array.isArray(base[key]) && key !== "set";
    base[key] = plain && value && typeof value === "object" ? merged(base[key], value) : value;
  }
  return base;
}

/** The device asked about, as questions of several devices name it. */
export function devices() {
  return state.q.gpu_toml ? {} : { gpus: [state.q.gpu] };
}

/** The fields of a request that the question bar says; empty ones left out. */
export function question({ q = state.q, set = q.set } = {}) {
  const { model, config, name, ...rest } = q;
  if (rest.phase !== "train") delete rest.framework; // of training alone
  const asked = config !== null ? { config, name: name || null, ...rest, set } : { model, ...rest, set };
  return Object.fromEntries(Object.entries(asked).filter(([, value]) => value !== null && value !== ""));
}
