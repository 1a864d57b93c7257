// The deploy view: which GPUs, how many and in which layout serve the model at the least cost.

import { ask, catalog, Refused } from "./api.js";
import { deviceGroups } from "./bar.js";
import { card, h, put, table } from "./dom.js";
import { chance, seconds, whole } from "./format.js";
import { question, state, update } from "./state.js";
import { chart } from "./vega.js";
import { worker } from "./work.js";

const NUMBERS = {
  requests_per_s: "requests/s",
  users: "or always in flight",
  input_len: "tokens in (or p50=800,p95=3000)",
  output_len: "tokens out",
  ttft_s: "first token within [s]",
  tpot_s: "a token within [s]",
  probability: "with probability",
  most_devices: "at most devices",
};
const KERNELS = ["vllm", "sglang", "trtllm", "any"];
export function deployView({ banner, status }) {
  const inputs = new Map(),
    results = h("div", { class: "results" }),
    progress = h("div", {}),
    work = worker(progress),
    devices = h("div", { class: "row wrap", role: "group", "aria-label": "GPUs to choose from" });
  const submit = (event) => {
    event.preventDefault();
    run();
  };
  const form = h("form", { class: "card form", "aria-label": "Service", onsubmit: submit });
  const element = h("div", { class: "stack" }, form, progress, results);
  let asked = "",
    traffic = null;
  const recorded = h("input", {
    type: "file",
    id: "deploy-traffic",
    accept: ".csv",
    onchange: async () => {
      traffic = (await recorded.files[0]?.text()) ?? null;
    },
  });

  for (const [name, words] of Object.entries(NUMBERS)) input(name, words, h("input", { type: "text", size: 7 }));
  input(
    "kernels",
    "engine",
    h(
      "select",
      {},
      KERNELS.map((name) => h("option", { value: name }, name)),
    ),
  );
  const pools = h("input", { type: "checkbox", id: "deploy-pools", onchange: () => set("pools", pools.checked) });
  put(
    form,
    devices,
    [...inputs].map(([name, { label, words }]) => h("label", { class: "ask", for: `deploy-${name}` }, words, label)),
    h("label", { class: "ask", for: "deploy-traffic" }, h("span", {}, "or recorded: CSV of time,in,out"), recorded),
    h("label", { class: "check" }, pools, h("span", {}, "also servers for prompts alone (slower search)")),
    h("button", { class: "primary", id: "run-deploy", type: "submit" }, "Deploy"),
  );

  function input(name, words, label) {
    label.id = `deploy-${name}`;
    label.addEventListener("change", () => set(name, label.value.trim()));
    inputs.set(name, { label, words: h("span", {}, words) });
  }

  function set(name, value) {
    update((st) => {
      st.deploy[name] = value === "" ? null : value;
    });
  }

  async function drawDevices() {
    const chosen = state.deploy.gpus,
      gpus = (await catalog("gpus")).filter(({ name }) => !chosen.includes(name));
    const without = (name) => () =>
      set(
        "gpus",
        chosen.filter((gpu) => gpu !== name),
      );
    put(
      devices,
      chosen.map((name) =>
        h(
          "button",
          { type: "button", class: "chip", "aria-label": `remove ${name}`, onclick: without(name) },
          `${name} ×`,
        ),
      ),
      h(
        "select",
        { id: "deploy-add", "aria-label": "Add a GPU", onchange: (e) => set("gpus", [...chosen, e.target.value]) },
        h("option", { value: "" }, "add a GPU …"),
        deviceGroups(gpus, []),
      ),
    );
  }

  /** A link, and the first look: the view opens with its example answered. */
  function refresh() {
    drawDevices();
    for (const [name, { label }] of inputs) if (!label.dataset.dirty) label.value = state.deploy[name] ?? "";
    pools.checked = state.deploy.pools;
    if (asked !== model()) run();
  }

  const model = () => JSON.stringify([state.q.model, state.q.config, state.q.set]);

  function body() {
    const { model: name_, config, name, set: sizes } = question(),
      number = (value) => (typeof value === "string" && /^[\d.]+$/.test(value) ? Number(value) : value);
    const instead = traffic ? { traffic, requests_per_s: null, users: null, input_len: null, output_len: null } : {};
    const fields = { model: name_, config, name, set: sizes, ...state.deploy, ...instead };
    const kept = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return Object.fromEntries(kept.map(([key, value]) => [key, number(value)]));
  }

  async function run() {
    asked = model();
    element.classList.add("waiting");
    mark(null);
    try {
      const found = await work.run("Pricing all layouts", (signal) =>
        ask("/api/deploy", { ...body(), says: true }, { signal }),
      );
      if (found === null) return;
      banner("");
      draw(results, found);
      status(found.best ? `${whole(found.best.num_devices)} ${found.best.gpu}` : "No deployment meets this");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      mark(inputs.get(error.field)?.label);
      banner(error.message);
    } finally {
      if (!work.busy) element.classList.remove("waiting");
    }
  }

  function mark(wrong) {
    for (const { label } of inputs.values()) label.setAttribute("aria-invalid", String(label === wrong));
    wrong?.focus();
  }

  return { element, refresh };
}

/** The words are those of the terminal. */
function draw(results, { best, says, model, ...found }) {
  put(
    results,
    card(
      best ? null : "No deployment meets this",
      best
        ? h(
            "p",
            { class: "promise-head" },
            h("strong", {}, `${whole(best.num_devices)} × ${best.gpu}`),
            best.replicas > 1 ? ` as ${whole(best.replicas)} replicas` : "",
          )
        : null,
      h(
        "div",
        { id: "deploy-headline" },
        says.lines.map((line) => h("p", {}, line)),
      ),
    ),
    best ? card("Start", h("pre", { tabindex: "0" }, says.start)) : null,
    best ? card(says.layouts, choices(found)) : null,
    found.figure ? card("What a faster request costs in throughput", chart(found.figure)) : null,
    card(
      "Assumed",
      h(
        "ul",
        { class: "plain" },
        model.assumptions.map((line) => h("li", {}, line)),
      ),
    ),
  );
}

function choices(found) {
  const head = ["layout", "GPU", "devices", "USD per 1M", "first token", "per token", "likely", "in flight a replica"];
  const rows = found.choices.map((one) => [
    one.layout,
    `${one.gpu} ${one.dtype}`,
    whole(one.num_devices),
    one.usd_per_million_tokens ? Number(one.usd_per_million_tokens.toPrecision(3)) : "—",
    seconds(one.ttft_s),
    seconds(one.tpot_s),
    chance(one.slo_probability) || "—",
    whole(one.most_in_flight),
  ]);
  return table(
    "Layouts",
    head.map((label, k) => ({ label, number: k > 1 })),
    rows,
    0,
  );
}
