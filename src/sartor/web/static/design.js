// The design view: a search for a chip, started here, or the study file of `sartor design`, loaded or watched.

import { ask, catalog, Refused } from "./api.js";
import { legend, paint, parts } from "./charts.js";
import { card, download, h, put, table, term } from "./dom.js";
import { bytes, count, interval, seconds, share, whole } from "./format.js";
import { keep, kept } from "./kept.js";
import { question, state, update } from "./state.js";
import { gantt } from "./timeline.js";
import { chart } from "./vega.js";
import { worker } from "./work.js";

const EVERY_MS = 2000;
const AREA = {
  arrays_mm2: "multiply arrays",
  lanes_mm2: "vector lanes",
  private_buffers_mm2: "private buffers",
  global_buffer_mm2: "global buffer",
  memory_phys_mm2: "memory interfaces",
  links_mm2: "links",
  die_to_die_mm2: "links between dies",
  network_mm2: "on-chip network",
  control_mm2: "control",
  uncore_mm2: "host interface, clock, unused",
};
const POWER = {
  static_w: "idle",
  arrays_w: "multiply arrays",
  lanes_w: "vector lanes",
  private_buffers_w: "private buffers",
  global_buffer_w: "global buffer",
  memory_w: "memory",
  links_w: "links",
  die_to_die_w: "links between dies",
};
const job = (m) =>
  m.phase === "decode"
    ? `decode, ${whole(m.context_len)} tokens of context`
    : `${m.phase === "prefill" ? "prefill, " : ""}seq ${whole(m.seq_len)}`;
const STEP = {
  microbatches_s: "microbatches",
  fill_s: "pipeline fill and drain",
  resync_s: "gradient reduction",
  optimizer_s: "optimizer step",
};
const OBJECTIVES = ["", "_per_mm2", "_per_watt", "_per_dollar", "_per_ownership_dollar"].map((of) => `throughput${of}`);
const ENDINGS = {
  running: "running",
  complete: "complete: proved",
  interrupted: "interrupted",
  time: "ended by its time limit",
  disk: "ended by a full disk",
  empty: "nothing yet",
};

export function designView({ banner, status }) {
  const results = h("div", { class: "results" }),
    says = h("p", { class: "muted", id: "study-says" }),
    title = h("h2", {}, "Study"),
    search = h("div", { class: "row wrap" });
  const file = h("input", {
    type: "file",
    multiple: true,
    id: "study-file",
    "aria-label": "Study file, with its -wal file if it is being written",
    onchange: () => {
      if (file.files.length) load([...file.files]);
    },
  });
  const watch = h("button", { id: "watch", hidden: true, onclick: () => load() }, "Show the study being watched");
  const form = h("form", {
      class: "card form",
      "aria-label": "Search for a chip",
      onsubmit: (event) => {
        event.preventDefault();
        begin();
      },
    }),
    inputs = new Map();
  const progress = h("div", {}),
    work = worker(progress);
  const element = h(
    "div",
    { class: "stack" },
    form,
    progress,
    card(null, title, h("div", { class: "row wrap" }, file, watch, search), says, hint()),
    results,
  );
  element.addEventListener("drop", (event) => {
    const dropped = [...(event.dataTransfer?.files ?? [])];
    if (dropped.length) {
      event.preventDefault();
      event.stopPropagation();
      document.body.classList.remove("dropping");
      load(dropped);
    }
  });
  let timer = 0,
    shownId = null,
    drawn = "",
    turn = 0,
    adopted = "";

  build();

  async function build() {
    const spaces = await catalog("spaces");
    const text = (name, placeholder = "") =>
      h("input", {
        type: "text",
        autocomplete: "off",
        size: 9,
        placeholder,
        onchange: (e) => set(name, e.target.value.trim()),
      });
    const select = (name, options) =>
      h(
        "select",
        { onchange: (e) => set(name, e.target.value) },
        options.map((o) => h("option", { value: o }, o)),
      );
    const field = (name, key, words, input) => {
      inputs.set(name, input);
      input.id = `design-${name}`;
      return h("label", { class: "ask", for: input.id }, h("span", {}, key ? term(key, words) : words), input);
    };
    put(
      form,
      field("also", "", "also for these models", text("also", "gpt2-xl, …")),
      field("num_devices", "num_devices", "num_devices", text("num_devices")),
      field("global_batch_size", "global_batch_size", "global_batch_size", text("global_batch_size")),
      field("seq_len", "seq_len", "seq_len", text("seq_len", "own")),
      field(
        "space",
        "space",
        "space",
        select(
          "space",
          spaces.map((space) => space.name),
        ),
      ),
      field("objective", "", "objective", select("objective", OBJECTIVES)),
      field("area_mm2", "area", "at most mm²", text("area_mm2", "any")),
      field("power_w", "power", "at most W", text("power_w", "any")),
      field("hbm_gib", "hbm", "at most GiB", text("hbm_gib", "any")),
      field("time_limit", "", "time limit [s]", text("time_limit")),
      h("button", { class: "primary", id: "run-design", type: "submit" }, "Search"),
    );
    fill();
  }

  const set = (name, value) =>
    update((st) => {
      st.design[name] = value === "" ? null : value;
    });
  const fill = () => {
    for (const [name, input] of inputs) if (!input.dataset.dirty) input.value = state.design[name] ?? "";
  };

  async function refresh() {
    fill();
    if (state.design.id !== shownId) {
      const first = shownId === null;
      shownId = state.design.id;
      if (shownId) {
        load(shownId);
        return;
      }
      if (!first) return;
      if (state.design.file) {
        again(state.design.file);
        return;
      }
      const health = await ask("/health").catch(() => ({}));
      watch.hidden = !health.watching;
      if (health.watching) load();
      else example();
    }
  }

  /** The view opens on an answer: a search of our own, recorded. */
  async function example() {
    const answer = await ask("/api/study/example").catch(() => null);
    if (!answer || turn || shownId) return;
    draw(answer);
    title.textContent = title.textContent.replace("Study", "Example, searched on 2026-11-30");
  }

  /** The file that the link was made with, where this browser has kept it. */
  async function again(name) {
    const files = await kept("study", name);
    if (files) load(files);
    else banner(`This link shows the study ${name}, which this browser does not have: choose the file again.`);
  }

  /** Start a search; its study is shown as it grows, here and wherever the link is opened. */
  async function begin() {
    clearTimeout(timer);
    try {
      const found = await work.run("Starting the search", (signal) =>
        ask("/api/design", asked(), { signal, once: true }),
      );
      if (found === null) return;
      shownId = found.id;
      update(
        (st) => {
          st.design.id = found.id;
          st.design.file = "";
        },
        { visit: true },
      );
      banner("");
      mark(null);
      follow(found, found.id);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      mark(inputs.get(error.field));
      banner(error.message);
    }
  }

  function mark(wrong) {
    for (const input of inputs.values()) input.setAttribute("aria-invalid", String(input === wrong));
    wrong?.focus();
  }

  /** Load a file (with its log), a search that was started here by its name, or what is being watched; those again
   * while they run. */
  async function load(from) {
    clearTimeout(timer);
    const mine = ++turn;
    element.classList.add("waiting");
    try {
      const named = typeof from === "string",
        files = from && !named;
      if (files) from.sort((a, b) => a.name.endsWith("-wal") - b.name.endsWith("-wal")); // the database, then its log
      const found = named
        ? await ask(`/api/design/${encodeURIComponent(from)}`)
        : await ask("/api/study", files ? new Blob(from) : undefined);
      if (mine !== turn) return;
      if (files) {
        shownId = "";
        update((st) => {
          st.design.id = "";
          st.design.file = from[0].name;
        });
        keep("study", from);
      }
      banner("");
      adopt(found);
      follow(found, files ? null : from);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (mine === turn) {
        banner(error.message);
        put(search);
      }
    } finally {
      if (mine === turn) element.classList.remove("waiting");
    }
  }

  /** A study is shown under its own question, also in the form above. */
  async function adopt({ question: q, id }) {
    const key = JSON.stringify([id, q]);
    if (key === adopted) return;
    adopted = key;
    await taken(q);
  }

  function follow(found, from) {
    draw(found);
    const running = found.status === "running",
      id = found.id;
    put(
      search,
      !id
        ? null
        : running
          ? [
              h("progress", { "aria-label": "Searching" }),
              h(
                "span",
                {},
                `Searching for ${whole((Date.now() - Date.parse(found.sessions.at(-1).started)) / 1000)} s`,
              ),
              h("button", { id: "stop-design", class: "small", onclick: () => stop(id) }, "Cancel"),
            ]
          : h("button", { id: "get-study", class: "small", onclick: () => save(id) }, "Download the study file"),
    );
    if (running && from !== null)
      timer = setTimeout(() => {
        if (element.isConnected) load(from);
        else shownId = null;
      }, EVERY_MS);
  }

  async function stop(id) {
    clearTimeout(timer);
    put(search, h("span", { class: "muted" }, "Cancelling: the best so far is kept …"));
    try {
      follow(await ask(`/api/design/${id}/stop`, {}), id);
    } catch (error) {
      if (error instanceof Refused) banner(error.message);
      else throw error;
    }
  }

  async function save(id) {
    try {
      download("study.db", await ask(`/api/design/${id}/file`, undefined, { as: "blob" }));
    } catch (error) {
      if (error instanceof Refused) banner(error.message);
      else throw error;
    }
  }

  function draw(found) {
    const q = found.question,
      { unit } = found,
      batch = q.global_batch_size ? `, ${whole(q.global_batch_size)} sequences a step` : "";
    const models = q.models.map((m) => `${m.name} (${job(m)})`).join(", "),
      points = `${whole(found.evaluated)} ${found.evaluated === 1 ? "point" : "points"} evaluated`;
    title.textContent = `Study: ${models} on ${whole(q.num_devices)} devices`;
    put(
      says,
      `${models} on ${whole(q.num_devices)} devices${batch}, space ${q.space}: `,
      h("b", {}, ENDINGS[found.status] ?? found.status),
      `; ${points}, ${whole(found.pruned)} ruled out by their bound`,
      found.waiting ? `, ${whole(found.waiting)} waiting` : "",
      found.left_s ? `, about ${seconds(found.left_s)} left` : "",
    );
    const key = JSON.stringify([found.evaluated, found.status, found.upper_bound]);
    if (key === drawn) return;
    drawn = key;
    const best = found.best;
    put(
      results,
      best
        ? winner(found, best, unit)
        : card(
            "Best so far",
            h(
              "p",
              { class: "muted" },
              found.evaluated
                ? "No point found so far fits."
                : found.status === "running"
                  ? "No point has been evaluated yet."
                  : "The search ended before a point was evaluated.",
            ),
          ),
      found.figures.convergence ? card("Convergence of the search", chart(found.figures.convergence)) : null,
      found.figures.cloud ? card("Evaluated points", chart(found.figures.cloud)) : null,
      ...(best?.detail ? detailed(best.detail) : []),
      found.pareto.labels.length ? card(term("pareto", "Pareto front"), front(found, unit)) : null,
    );
    status(
      best
        ? `Best ${rate(best.objective)} ${unit}` +
            (found.gap ? `, nothing more than ${share(found.gap)} better` : found.gap === 0 ? ", proved" : "")
        : "",
    );
  }

  return { element, refresh };
}

const rate = (value) => Number(value.toPrecision(4)).toLocaleString("en");

function winner(found, best, unit) {
  const a = best.architecture;
  const facts = [
    ["gap", "gap", found.gap === null ? "—" : share(found.gap, 2)],
    ["area", "area", `${whole(best.area_mm2)} mm²`],
    ["power", "power", `${whole(best.power_w)} W`],
    ["cores", "tensor cores", `${a.num_tensor_cores} × ${a.array_rows}×${a.array_cols}`],
    ["cores", "vector cores", `${a.num_vector_cores} × ${a.vector_lanes} lanes`],
    ["buffer", "global buffer", bytes(a.global_buffer_bytes)],
    ["hbm", "memory", `${bytes(a.hbm_bytes)} ${a.memory}`],
    ["clock", "clock", `${(a.clock_hz / 1e9).toFixed(2)} GHz`],
    ["node", "node", `${a.node_nm} nm`],
  ];
  const models = best.models.filter(Boolean);
  const head = [
    "model",
    "step",
    "80% interval",
    "tokens/s",
    "MFU",
    "tp",
    "pp",
    "dp",
    "cp",
    "chunks",
    "ZeRO",
    "recompute",
  ].map((label, k) => ({
    label: ["tp", "pp", "dp", "cp"].includes(label) ? term(label, label) : label,
    number: k > 0 && k < 11,
  }));
  const rows = models.map((m) => {
    const d = best.detail?.models.find((each) => each.name === m.name);
    return [
      m.name,
      seconds(m.step_s),
      d ? interval(d.low_s, d.high_s) : "—",
      count(m.tokens_per_s),
      d ? share(d.mfu) : "—",
      m.tp,
      m.pp,
      m.dp,
      m.cp,
      m.virtual_stages,
      m.zero_stage,
      m.recompute,
    ];
  });
  return card(
    found.status === "running" ? "Best so far" : null,
    h(
      "p",
      { class: "promise-head", id: "study-best" },
      h("strong", {}, rate(best.objective)),
      ` ${unit} on ${best.label}`,
    ),
    h(
      "dl",
      { class: "tiles" },
      facts.map(([key, label, value]) => h("div", {}, h("dt", {}, term(key, label)), h("dd", {}, value))),
    ),
    table("How each model runs", head, rows),
  );
}

function detailed(detail) {
  const mm2 = (v) => `${Number(v.toPrecision(3))} mm²`,
    watt = (v) => `${Number(v.toPrecision(3))} W`;
  const sum = (values) => Object.values(values).reduce((a, b) => a + b, 0);
  return [
    card(term("area", "Area of the die"), parts(detail.area, AREA, sum(detail.area), mm2)),
    card(
      term("power", "Power with all parts at their peak rates"),
      parts(detail.power, POWER, sum(detail.power), watt),
    ),
    ...detail.models.map((m) => card(`Step of ${m.name}`, parts(m.time, STEP, m.step_s, seconds))),
    ...detail.schedules.map((bars) => card("Schedule of a layer", schedule(bars))),
    ...detail.pipelines.map((bars) => card("The step in time", pipeline(bars))),
  ];
}

function front(found, unit) {
  const p = found.pareto,
    alike = new Map(); // points that differ in nothing but memory they do not need are one row
  p.labels.forEach((label, i) => {
    if (!p.on_front[i]) return;
    const row = [label, rate(p.objective[i]), whole(p.area_mm2[i]), whole(p.power_w[i])],
      key = row.join("|"),
      one = alike.get(key) ?? { row, held: [] };
    one.held.push(p.hbm_bytes[i]);
    alike.set(key, one);
  });
  const rows = [...alike.values()].slice(0, 40).map(({ row, held }) => [
    ...row,
    held
      .sort((a, b) => a - b)
      .map(bytes)
      .join(", "),
  ]);
  return table(
    "Pareto front",
    ["architecture", unit, "mm²", "W", "memory"].map((label, k) => ({ label, number: k > 0 })),
    rows,
    0,
  );
}

function schedule(bars) {
  const modes = [...new Set(bars.mode)];
  return [
    h("p", { class: "muted" }, bars.title),
    legend(modes.map((mode) => [mode, paint(mode)])),
    gantt({
      label: bars.title,
      lines: bars.lines,
      bars: bars.operator.map((name, i) => ({
        line: bars.lines.indexOf(bars.line[i]),
        start: bars.start_s[i],
        end: bars.end_s[i],
        colour: paint(bars.mode[i]),
        tip: `${name}: ${seconds(bars.start_s[i])} to ${seconds(bars.end_s[i])}, ${bars.mode[i]}`,
        words: name,
      })),
    }),
  ];
}

function pipeline(bars) {
  const kinds = [...new Set(bars.kind)];
  return [
    h("p", { class: "muted" }, bars.title),
    legend(kinds.map((kind) => [kind, paint(kind)])),
    gantt({
      label: bars.title,
      lines: Array.from({ length: bars.num_stages }, (_, i) => `stage ${i}`),
      bars: bars.kind.map((kind, i) => ({
        line: bars.stage[i],
        start: bars.start_s[i],
        end: bars.end_s[i],
        colour: paint(kind),
        tip: `${kind} of microbatch ${bars.microbatch[i]}: ${seconds(bars.start_s[i])} to ${seconds(bars.end_s[i])}`,
      })),
    }),
  ];
}

function asked() {
  const { model, config, name, set } = question(),
    { id, file, also, ...rest } = state.design;
  const number = (value) =>
    typeof value === "string" && /^-?[\d.,_ ]+$/.test(value) ? Number(value.replaceAll(/[,_ ]/g, "")) : value;
  const body = {
    model,
    config,
    name,
    set,
    also: (also ?? "")
      .split(",")
      .map((one) => one.trim())
      .filter(Boolean),
    ...Object.fromEntries(Object.entries(rest).map(([key, value]) => [key, number(value)])),
  };
  return Object.fromEntries(
    Object.entries(body).filter(
      ([, value]) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length),
    ),
  );
}

async function taken(q) {
  const names = q.models.map((m) => m.name),
    spaces = (await catalog("spaces")).map((space) => space.name),
    zoo = new Set((await catalog("models")).map((m) => m.name));
  update((st) => {
    const { num_devices, global_batch_size, objective, budgets } = q,
      space = spaces.includes(q.space) ? q.space : st.design.space;
    if (zoo.has(names[0]) && names[0] !== st.q.model) Object.assign(st.q, { model: names[0], config: null, set: {} });
    const also = names.slice(1).join(", "),
      { area_mm2, power_w } = budgets ?? {};
    Object.assign(st.design, { num_devices, global_batch_size, objective, space, also, area_mm2, power_w });
    st.design.seq_len = q.models[0]?.seq_len ?? null;
    st.design.hbm_gib = budgets?.hbm_bytes ? budgets.hbm_bytes / 2 ** 30 : null;
  });
}

const hint = () =>
  h(
    "p",
    { class: "muted" },
    "Start a search above, or load a study file of ",
    h("code", {}, "sartor design --study FILE"),
    " (with its ",
    h("code", {}, "-wal"),
    " file if it is still being written), or start with ",
    h("code", {}, "sartor page --study FILE"),
    " to watch one while it runs.",
  );
