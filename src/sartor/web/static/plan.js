// The plan view: how to spread a model's training over a cluster.

import { ask, catalog, Refused } from "./api.js";
import { TRAINERS } from "./bar.js";
import { HELD, parts, SPENT } from "./charts.js";
import { card, h, put, table, term } from "./dom.js";
import { axesOf, bytes, seconds, whole } from "./format.js";
import { AXES, counts, infeasible, launch, steps, tiles, timeline, top, whyNot, words } from "./plan_figures.js";
import { fixWords } from "./sawtooth.js";
import { question, state, update } from "./state.js";
import { clusterDialog, nameIn } from "./upload.js";
import { chart } from "./vega.js";
import { worker } from "./work.js";

const OWN = "own",
  CHOSEN = "chosen";

export function planView({ banner, status }) {
  const inputs = new Map();
  const form = h("form", {
    class: "card form",
    "aria-label": "Job",
    onsubmit: (event) => {
      event.preventDefault();
      run();
    },
  });
  const results = h("div", { class: "results" });
  let answered = ""; // the question that the results are of
  const progress = h("div", {}),
    beside = h("div", { class: "beside" }),
    work = worker(progress),
    asking = worker(beside);
  const element = h("div", { class: "stack" }, form, progress, results);
  const openCluster = clusterDialog();
  let started = false,
    shownPlans = null;
  build();

  async function build() {
    const clusters = await catalog("clusters");
    put(
      form,
      field("cluster", "cluster", clusterSelect(clusters.map((c) => c.name))),
      field("num_devices", "num_devices", text("num_devices")),
      field("global_batch_size", "global_batch_size", text("global_batch_size")),
      field("seq_len", "seq_len", text("seq_len", "own")),
      field("dtype", "dtype", text("dtype", "own")),
      field("framework", "framework", select("framework", TRAINERS)),
      field("optimizer", "optimizer", select("optimizer", ["adam", "sgd", "muon"])),
      field("fix", "fix", text("fix", "tp=8, pp=4")),
      h("button", { class: "primary", id: "run-plan", type: "submit" }, "Plan"),
    );
    refresh();
  }

  function field(name, key, input) {
    inputs.set(name, input);
    input.id = `plan-${name}`;
    return h("label", { class: "ask", for: input.id }, h("span", {}, term(key, name)), input);
  }

  function select(name, options) {
    return h(
      "select",
      { onchange: (e) => set(name, e.target.value) },
      options.map((o) => h("option", { value: o }, o)),
    );
  }

  /** The menu of clusters, and one of one's own. */
  function clusterSelect(names) {
    return h(
      "select",
      {
        onchange: (e) => {
          if (e.target.value === OWN) {
            refresh();
            openCluster();
          } else
            update((st) => {
              Object.assign(st.plan, { cluster: e.target.value, cluster_toml: null });
            });
        },
      },
      h("option", { value: CHOSEN, hidden: true }, ""),
      h("option", { value: OWN }, "own TOML …"),
      names.map((name) => h("option", { value: name }, name)),
    );
  }

  function showCluster(input) {
    const { cluster, cluster_toml } = state.plan;
    const name = nameIn(cluster_toml);
    input.firstChild.textContent = !cluster_toml ? "" : name === OWN ? OWN : `${name} (own)`;
    input.value = cluster_toml ? CHOSEN : cluster;
  }

  function text(name, placeholder) {
    return h("input", {
      type: "text",
      autocomplete: "off",
      placeholder,
      size: 9,
      onchange: (e) => set(name, e.target.value.trim()),
    });
  }

  function set(name, value) {
    update((st) => {
      st.plan[name] = value === "" ? null : value;
    });
  }

  function refresh() {
    for (const [name, input] of inputs)
      if (name === "cluster") showCluster(input);
      else if (!input.dataset.dirty) input.value = state.plan[name] ?? "";
    results.classList.toggle("stale", answered !== "" && answered !== JSON.stringify(asked()));
    if (!started && inputs.size) run(); // a link, a page loaded again, and the first look: an answered example
  }

  async function run() {
    started = true;
    update(
      (st) => {
        st.plan.ran = true;
      },
      { live: true },
    );
    const body = asked();
    element.classList.add("waiting");
    try {
      const counts = [body.num_devices].flat(),
        parts = [];
      const found = await work.run("Pricing all legal plans", async (signal, say) => {
        for (const count of counts) {
          if (counts.length > 1)
            say(`Pricing all legal plans: ${parts.length + 1} of ${counts.length} numbers of devices`);
          parts.push(await ask("/api/plan", { ...body, num_devices: count }, { signal }));
          mark(null);
          banner("");
          draw(together(parts), null, ofBest(parts, body));
          answered = JSON.stringify(body);
          results.classList.toggle("stale", answered !== JSON.stringify(asked()));
        }
        return together(parts);
      });
      if (found === null) {
        if (!work.busy)
          status(
            parts.length
              ? `Cancelled after ${parts.length} of ${counts.length} numbers of devices.`
              : "Cancelled: the result before is still shown.",
          );
        return;
      }
      const among = found.fitting === 1 ? "Only one plan fits" : `Best of ${whole(found.fitting)} plans that fit`;
      status(found.best ? `${among}: ${seconds(found.best.step_s)} per step` : "Nothing fits");
      if (!found.best) return;
      const drawn = await work.run("Drawing", (signal) => ask("/api/plan/figures", ofBest(parts, body), { signal }));
      if (drawn !== null) draw(found, drawn, ofBest(parts, body));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const name = error.field.replace(/^--/, "").replaceAll("-", "_");
      const input =
        inputs.get(name) ??
        (name === "cluster_toml" || state.plan.cluster_toml ? inputs.get("cluster") : null) ??
        (AXES.includes(name) || name.startsWith("fix") ? inputs.get("fix") : null);
      mark(input);
      banner(error.message);
      status("");
    } finally {
      if (!work.busy) element.classList.remove("waiting");
    }
  }

  function mark(wrong) {
    for (const input of inputs.values()) input.setAttribute("aria-invalid", String(input === wrong));
    wrong?.focus();
  }

  function draw(found, drawn, body) {
    if (!found.best) {
      shownPlans = null;
      put(results, infeasible(found), whyNot(found));
      return;
    }
    const key = JSON.stringify(body),
      before = shownPlans?.key === key ? shownPlans : null;
    if (before?.drawn) return; // the same question has the same answer: what is opened, zoomed and compared in it stays
    if (!before) put(beside);
    const f = drawn?.figures ?? {},
      files = before?.files ?? card("Launch files", launch(body, set));
    shownPlans = { found, body, key, drawn, files };
    put(
      results,
      card(
        found.status === "infeasible" ? "The leanest plan" : null,
        found.status === "infeasible"
          ? null
          : h(
              "p",
              { class: "promise-head" },
              h("strong", {}, seconds(found.best.step_s)),
              ` a step, as ${words(found.best)}`,
            ),
        h(
          "p",
          { class: "lead", id: "plan-headline" },
          drawn?.headline ?? `${words(found.best)}: ${seconds(found.best.step_s)} per step.`,
        ),
        body.set && Object.keys(body.set).length
          ? h("p", { class: "muted" }, `Of the shape with ${fixWords(body.set)}.`)
          : null,
        tiles(found.best),
      ),
      card("Where the time goes", parts(found.best.time, SPENT, found.best.step_s, seconds)),
      card(
        term("peak_bytes", "Memory of the fullest device"),
        parts(
          found.best.memory,
          HELD,
          Math.max(found.best.peak_bytes, f.pipeline_memory?.limit_bytes ?? 0),
          bytes,
          f.pipeline_memory?.limit_bytes,
        ),
        f.memory ? chart(f.memory) : null,
      ),
      f.plans
        ? card(
            "Time against memory",
            chart(f.plans, choose),
            h("p", { class: "muted" }, "A plan you click, or reach with the arrow keys and Enter, is compared below."),
          )
        : null,
      card("Compared with the best", whyForm(), beside),
      f.pipeline ? card("The step in time", timeline(f.pipeline, f.pipeline_memory, body, banner)) : null,
      found.searches.length > 1 ? card("By number of devices", counts(found)) : null,
      card("Best plans by parallel degrees", f.step ? chart(f.step, choose) : null, top(found, compare)),
      whyNot(found),
      files,
      found.next_steps.length ? card("What to try next", steps(found)) : null,
      card(
        "Assumptions",
        h(
          "ul",
          { class: "plain" },
          found.assumptions.map((line) => h("li", {}, line)),
        ),
      ),
    );
  }

  /** A point of the figure: a plan whose terms are at hand, or the fastest one of its parallel degrees. */
  function choose({ plan, label = plan, memory = null }) {
    const { found } = shownPlans,
      axes = AXES.map((axis) => [axis, Number(label.match(new RegExp(`\\b${axis} (\\d+)`))?.[1] ?? 1)]),
      same = (p) =>
        axes.every(([a, n]) => p[a] === n) && (memory === null || Math.abs(p.peak_bytes / memory / 2 ** 30 - 1) < 1e-6),
      known = [found.best, ...found.top, ...found.front].find(same);
    if (known) compare(words(known), known);
    else whyNotThis(Object.fromEntries(axes));
  }

  function compare(label, plan) {
    const { best } = shownPlans.found,
      keys = (of) => Object.keys(of).filter((key) => key in SPENT || key in HELD);
    const terms = {
      step_s: [best.step_s, plan.step_s],
      ...Object.fromEntries(keys(plan.time).map((key) => [key, [best.time[key], plan.time[key]]])),
      ...Object.fromEntries(keys(plan.memory).map((key) => [key, [best.memory[key], plan.memory[key]]])),
      peak_bytes: [best.peak_bytes, plan.peak_bytes],
    };
    besideBest(label, null, terms);
  }

  async function whyNotThis(axes) {
    try {
      const found = await asking.run("Pricing that plan", (signal) =>
        ask("/api/plan/why", { ...shownPlans.body, why_not: axes }, { signal }),
      );
      if (found !== null) besideBest(found.plan ? words(found.plan) : found.asked, found.reason, found.terms);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      put(beside, h("p", { class: "wrong" }, error.message));
    }
    beside.scrollIntoView({ block: "nearest" });
  }

  function whyForm() {
    const input = h("input", { type: "text", id: "why-not", autocomplete: "off", placeholder: "tp=8, pp=2", size: 12 });
    return h(
      "form",
      {
        class: "row wrap",
        onsubmit: (e) => {
          e.preventDefault();
          if (input.value.trim()) whyNotThis(axesOf(input.value));
        },
      },
      h("label", { class: "ask", for: "why-not" }, h("span", {}, "Why not"), input),
      h("button", { type: "submit", id: "ask-why" }, "Compare"),
    );
  }

  /** Another plan beside the best: term by term, what differs most first. */
  function besideBest(label, reason, terms) {
    const word = (key) => ({ step_s: "step", peak_bytes: "fullest device", ...SPENT, ...HELD })[key] ?? key,
      form = (key) => (key.endsWith("_bytes") ? bytes : seconds);
    const rows = Object.entries(terms).filter(([, [a, b]]) => a || b),
      whole_ = ["step_s", "peak_bytes"];
    const head = ["term", "best", label, "difference"].map((text, k) => ({ label: text, number: k > 0 }));
    const line = ([key, [a, b]]) => [
      word(key),
      form(key)(a),
      form(key)(b),
      a === b ? "0" : `${b > a ? "+" : "−"}${form(key)(Math.abs(b - a))}`,
    ];
    put(
      beside,
      reason ? h("p", { class: "wrong" }, reason) : null,
      rows.length
        ? table(
            "Compared with the best plan",
            head,
            ["step_s", "_s", "peak_bytes", "_bytes"].flatMap((kind) =>
              rows
                .filter(([key]) => (kind.startsWith("_") ? key.endsWith(kind) && !whole_.includes(key) : key === kind))
                .sort(([, x], [, y]) => Math.abs(y[1] - y[0]) - Math.abs(x[1] - x[0]))
                .map(line),
            ),
          )
        : null,
    );
    beside.scrollIntoView({ block: "nearest" });
  }

  return { element, refresh };
}

function asked() {
  const p = state.plan,
    { model, config, name, set } = question();
  const counts = String(p.num_devices ?? "")
    .split(",")
    .map((x) => x.trim())
    .filter(Boolean)
    .map(number);
  const held = axesOf(p.fix);
  const body = {
    model,
    config,
    name,
    set,
    ...(p.cluster_toml ? { cluster_toml: p.cluster_toml } : { cluster: p.cluster }),
    num_devices: counts.length > 1 ? counts : counts[0],
    global_batch_size: number(p.global_batch_size),
    seq_len: number(p.seq_len),
    dtype: p.dtype,
    framework: p.framework,
    optimizer: p.optimizer,
    fix: Object.keys(held).length ? held : null,
  };
  return Object.fromEntries(Object.entries(body).filter(([, v]) => v !== null && v !== undefined && v !== ""));
}

/** Of several numbers of devices, the answer with the shortest step, and the searches of all. */
function together(parts) {
  const best = parts.reduce((one, other) =>
    (other.best?.step_s ?? Infinity) < (one.best?.step_s ?? Infinity) ? other : one,
  );
  return { ...best, searches: parts.flatMap((part) => part.searches), front: parts.flatMap((part) => part.front) };
}

const ofBest = (parts, body) => ({
  ...body,
  num_devices:
    body.num_devices &&
    together(parts).searches.reduce((one, other) =>
      (other.step_s ?? Infinity) < (one.step_s ?? Infinity) ? other : one,
    ).num_devices,
});

const number = (value) =>
  typeof value === "string" && /^-?\d+$/.test(value.replaceAll(/[,_ ]/g, ""))
    ? Number(value.replaceAll(/[,_ ]/g, ""))
    : value;
