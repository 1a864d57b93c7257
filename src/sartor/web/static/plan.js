// The plan view: how to spread a model's training over a cluster.

import { ask, catalog, Refused } from "./api.js";
import {
  axes,
  box,
  COLOURS,
  figure,
  HELD,
  legend,
  linear,
  paint,
  parts,
  path,
  rem,
  SPENT,
  secondsTicks,
  ticks,
  timeUnit,
} from "./charts.js";
import { card, download, h, put, s, sized, table, term } from "./dom.js";
import { axesOf, bytes, count, interval, seconds, share, whole } from "./format.js";
import { fixWords } from "./sawtooth.js";
import { question, state, update } from "./state.js";
import { gantt } from "./timeline.js";
import { clusterDialog, nameIn } from "./upload.js";
import { worker } from "./work.js";

const GIB = 2 ** 30;
const OWN = "own",
  CHOSEN = "chosen";
const WORKED = ["forward", "backward", "weight gradient"];
const AXES = ["tp", "pp", "dp", "cp", "ep"];

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
  const progress = h("div", {}),
    beside = h("div", { class: "beside" }),
    work = worker(progress),
    asking = worker(beside);
  const element = h("div", { class: "stack" }, form, progress, results);
  const openCluster = clusterDialog({ banner });
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
      field(
        "framework",
        "framework",
        select("framework", [
          "megatron",
          "megatron-bridge",
          "torchtitan",
          "deepspeed",
          "nemo",
          "fsdp",
          "maxtext",
          "pytorch",
        ]),
      ),
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
    if (state.plan.ran && !started && inputs.size) {
      run();
      return;
    } // a link, or a page loaded again
    if (!started && !results.childElementCount)
      put(
        results,
        h(
          "p",
          { class: "empty" },
          "Choose a cluster, the number of devices and the batch size, and press Plan. ",
          "All valid plans are priced; rejected ones are counted by reason.",
        ),
      );
  }

  const number = (value) =>
    typeof value === "string" && /^-?\d+$/.test(value.replaceAll(/[,_ ]/g, ""))
      ? Number(value.replaceAll(/[,_ ]/g, ""))
      : value;

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
      status(
        found.best
          ? `${found.fitting === 1 ? "Only one plan fits" : `Best of ${whole(found.fitting)} plans that fit`}: ${seconds(found.best.step_s)} per step`
          : "Nothing fits",
      );
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
      files = before?.files ?? card("Launch files", launch(body));
    shownPlans = { found, body, key, drawn, files };
    put(
      results,
      card(
        "Best plan",
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
          Math.max(found.best.peak_bytes, f.plans?.limit_bytes ?? 0),
          bytes,
          f.plans?.limit_bytes,
        ),
      ),
      f.plans ? card("Time against memory", cloud(f.plans)) : null,
      card("Compared with the best", whyForm(), beside),
      f.pipeline ? card("The step in time", timeline(f.pipeline, f.pipeline_memory, body)) : null,
      found.searches.length > 1 ? card("By number of devices", counts(found)) : null,
      card("Best plans by parallel degrees", top(found)),
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

  function tiles(best) {
    const facts = [
      ["step", "step", seconds(best.step_s)],
      ["interval", "80% interval", interval(best.low_s, best.high_s)],
      ["mfu", "MFU", share(best.mfu)],
      ["tokens_per_s", "tokens/s per device", count(best.tokens_per_s_per_device)],
      ["peak_bytes", "fullest device", bytes(best.peak_bytes)],
      ...AXES.map((a) => [a, a, whole(best[a])]),
      ["microbatch_size", "microbatch", `${whole(best.num_microbatches)} × ${whole(best.microbatch_size)}`],
      ["zero", "ZeRO", whole(best.zero_stage)],
      ["recompute", "recompute", best.recompute],
    ];
    return h(
      "dl",
      { class: "tiles" },
      facts.map(([key, label, value]) => h("div", {}, h("dt", {}, term(key, label)), h("dd", {}, value))),
    );
  }

  function cloud(c) {
    const holder = h("div", {});
    sized(holder, (width) => {
      const height = Math.max(220, Math.min(520, width * 0.5)),
        frame = box(width, height);
      const ts = c.step_s,
        bs = c.device_bytes,
        [unit, word] = timeUnit(Math.max(...ts));
      const sorted = [...ts].sort((a, b) => a - b),
        most = Math.min(sorted.at(-1), sorted[0] * 6);
      const xs = [sorted[0] * 0.97, most * 1.03],
        ys = [0, Math.max(c.limit_bytes, ...bs) * 1.05];
      const x = linear(xs, [frame.left, frame.right]),
        y = linear(ys, [frame.bottom, frame.top]);
      const degrees = [...new Set(c.tp)].sort((a, b) => a - b),
        colour = (tp) => paint(`tp ${tp}`);
      const away = ts.filter((t) => t > most).length;
      put(
        holder,
        legend(degrees.map((tp) => [`tp ${tp}`, colour(tp)])),
        figure(
          width,
          height,
          `${ts.length} plans that fit: step ${seconds(sorted[0])} and longer`,
          axes(
            frame,
            {
              scale: x,
              ticks: ticks(...xs, width > 500 ? 8 : 4),
              text: secondsTicks(unit),
              title: `step [${word}]${away ? `; ${away} slower plans not drawn` : ""}`,
            },
            {
              scale: y,
              ticks: ticks(...ys.map((v) => v / GIB), 6).map((v) => v * GIB),
              text: (v) => String(Math.round(v / GIB)),
              title: "fullest device [GiB]",
            },
          ),
          s("line", { class: "limit", x1: frame.left, x2: frame.right, y1: y(c.limit_bytes), y2: y(c.limit_bytes) }),
          s(
            "text",
            { class: "tick", x: frame.right, y: y(c.limit_bytes) - 4, "text-anchor": "end" },
            `usable ${bytes(c.limit_bytes)}`,
          ),
          ts.map((t, i) =>
            t > most
              ? null
              : s("circle", {
                  cx: x(t),
                  cy: y(bs[i]),
                  r: i === c.best ? 7 : c.on_front[i] ? 5 : 3,
                  fill: colour(c.tp[i]),
                  onclick: () => choose(c.labels[i], t, bs[i]),
                  "fill-opacity": c.on_front[i] ? 1 : 0.55,
                  class: i === c.best ? "best pick" : "pick",
                  "data-tip": `${c.labels[i]}: ${seconds(t)}, ${bytes(bs[i])}`,
                }),
          ),
        ),
      );
    });
    return [
      h(
        "p",
        { class: "muted" },
        c.title,
        ". Large: on the ",
        term("pareto", "front"),
        "; ringed: the best. Click a plan to compare it.",
      ),
      holder,
    ];
  }

  function timeline(p, memory, body) {
    const kinds = [...new Set(p.kind)],
      colour = paint;
    const bars = p.stage.map((stage, i) => ({
      line: stage,
      start: p.start_s[i],
      end: p.end_s[i],
      colour: colour(p.kind[i]),
      light: p.kind[i] === "forward",
      words: WORKED.includes(p.kind[i]) ? String(p.microbatch[i]) : "",
      tip: `${p.kind[i]}${WORKED.includes(p.kind[i]) ? ` of microbatch ${p.microbatch[i]}${p.chunk[i] ? `, chunk ${p.chunk[i]}` : ""}` : ""}: ${seconds(p.start_s[i])} to ${seconds(p.end_s[i])}`,
    }));
    const lines = Array.from({ length: p.num_stages }, (_, i) => `stage ${i}`);
    const below = memory ? (...room) => track(memory, ...room) : null;
    const perfetto = h(
      "button",
      {
        class: "small",
        id: "get-trace",
        "data-tip": "For ui.perfetto.dev or chrome://tracing: every microbatch and transfer, and memory.",
        onclick: () => trace(perfetto, body),
      },
      "Download for Perfetto",
    );
    return [
      h("p", { class: "muted" }, p.title),
      legend(kinds.map((kind) => [kind, colour(kind)])),
      gantt({ label: p.title, lines, bars, below, beside: perfetto }),
    ];
  }

  async function trace(button, body) {
    button.disabled = true;
    try {
      download("step.perfetto.json", await ask("/api/plan/trace", body, { as: "blob" }));
    } catch (error) {
      if (error instanceof Refused) banner(error.message);
      else throw error;
    } finally {
      button.disabled = false;
    }
  }

  function track(m, width, left, [from, end], unit, word) {
    const height = 10.5 * rem(),
      frame = box(width, height, { left });
    const most = Math.max(m.limit_bytes, ...m.bytes.flat()) * 1.05;
    const x = linear([from, end], [frame.left, frame.right]),
      y = linear([0, most], [frame.bottom, frame.top]);
    const steps = (times, held) => {
      const xs = [],
        ys = [];
      times.forEach((t, i) => {
        if ((times[i + 1] ?? t) < from || (times[i - 1] ?? t) > end) return;
        const at = x(Math.min(Math.max(t, from), end));
        if (xs.length) {
          xs.push(at);
          ys.push(y(held[i - 1]));
        }
        xs.push(at);
        ys.push(y(held[i]));
      });
      return path(xs, ys);
    };
    return [
      figure(
        width,
        height,
        m.title,
        axes(
          frame,
          { scale: x, ticks: ticks(from, end, width > 500 ? 8 : 4), text: secondsTicks(unit), title: `time [${word}]` },
          {
            scale: y,
            ticks: ticks(0, most / GIB, 3).map((v) => v * GIB),
            text: (v) => String(Math.round(v / GIB)),
            title: "held [GiB]",
          },
        ),
        s("line", { class: "limit", x1: frame.left, x2: frame.right, y1: y(m.limit_bytes), y2: y(m.limit_bytes) }),
        m.times_s.map((times, i) =>
          s("path", { class: "track", d: steps(times, m.bytes[i]), stroke: COLOURS[i % COLOURS.length] }),
        ),
      ),
      legend(m.stages.map((stage, i) => [`stage ${stage}`, COLOURS[i % COLOURS.length]])),
    ];
  }

  function top(found) {
    const head = ["plan", "step", "80% interval", "MFU", "memory", "microbatch", "ZeRO", "recompute"].map(
      (label, k) => ({ label, number: k > 0 && k < 7 }),
    );
    const rows = found.top.map((p) => [
      h("button", { class: "quiet small row-plan", onclick: () => compare(words(p), p) }, words(p)),
      seconds(p.step_s),
      interval(p.low_s, p.high_s),
      share(p.mfu),
      bytes(p.peak_bytes),
      `${whole(p.num_microbatches)} × ${whole(p.microbatch_size)}`,
      whole(p.zero_stage),
      p.recompute,
    ]);
    return table("The best plans", head, rows, 0);
  }

  const words = (p) =>
    AXES.filter((a) => p[a] > 1)
      .map((a) => `${a} ${p[a]}`)
      .join(" ") || "one device";

  /** A point of the figure: a plan whose terms are at hand, or the fastest one of its parallel degrees. */
  function choose(label, step_s, held) {
    const { found } = shownPlans,
      same = (p) => Math.abs(p.step_s / step_s - 1) < 1e-6 && Math.abs(p.peak_bytes / held - 1) < 1e-6;
    const known = [found.best, ...found.top, ...found.front].find(same);
    if (known) {
      compare(label, known);
      return;
    }
    whyNotThis(
      Object.fromEntries(AXES.map((axis) => [axis, Number(label.match(new RegExp(`\\b${axis} (\\d+)`))?.[1] ?? 1)])),
    );
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

  function counts(found) {
    const head = ["devices", "step", "80% interval", "MFU", "device seconds a step", "plan"].map((label, k) => ({
      label,
      number: k > 0 && k < 5,
    }));
    const rows = found.searches.map((one) => [
      whole(one.num_devices),
      ...(one.step_s === null
        ? ["nothing fits", "", "", "", ""]
        : [
            seconds(one.step_s),
            interval(one.low_s, one.high_s),
            share(one.mfu),
            whole(one.num_devices * one.step_s),
            AXES.filter((a) => one.plan[a] > 1)
              .map((a) => `${a} ${one.plan[a]}`)
              .join(" ") || "one device",
          ]),
    ]);
    return table("The best plan for each number of devices", head, rows);
  }

  function whyNot(found) {
    const rows = Object.entries(found.rejected).sort((a, b) => b[1] - a[1]),
      most = rows[0]?.[1] ?? 1;
    return card(
      "Why not the others",
      h(
        "p",
        { class: "muted" },
        `${whole(found.space_size)} points of the grid: ${whole(found.fitting)} fit and were priced, the others were rejected.`,
      ),
      h(
        "ol",
        { class: "bars why" },
        rows.map(([why, n]) =>
          h(
            "li",
            {},
            h("span", { class: "name" }, why),
            h("span", { class: "bar" }, h("i", { style: { width: `${(100 * n) / most}%` } })),
            h("span", { class: "number" }, whole(n)),
          ),
        ),
      ),
    );
  }

  function infeasible(found) {
    const t = found.tightest;
    return card(
      "Nothing fits",
      h("p", { class: "lead" }, t?.message ?? "No valid plan fits."),
      t?.relaxations?.length
        ? h(
            "ul",
            { class: "plain" },
            t.relaxations.map((r) => h("li", {}, `${r.change}`)),
          )
        : null,
    );
  }

  function steps(found) {
    return h(
      "ul",
      { class: "plain" },
      found.next_steps.map((step) =>
        h(
          "li",
          {},
          Object.entries(step)
            .filter(([, v]) => typeof v === "string")
            .map(([, v]) => v)
            .join(": "),
          typeof step.step_s === "number" ? ` (${seconds(step.step_s)})` : "",
        ),
      ),
    );
  }

  function launch(body) {
    const files = h("div", { class: "files" });
    const trainer = h(
      "select",
      { "aria-label": "Trainer of the launch files", id: "trainer", onchange: (e) => set("trainer", e.target.value) },
      ["megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate"].map((t) =>
        h("option", { value: t, selected: t === state.plan.trainer }, t),
      ),
    );
    const button = h(
      "button",
      {
        id: "get-launch",
        onclick: async () => {
          button.disabled = true;
          try {
            const made = await ask("/api/plan/launch", { ...body, trainer: trainer.value });
            put(
              files,
              made.notes.map((note) => h("p", { class: "muted" }, note)),
              made.files.map((file) =>
                h(
                  "details",
                  { open: made.files.length === 1 },
                  h(
                    "summary",
                    {},
                    file.name,
                    " ",
                    h(
                      "button",
                      {
                        class: "chip",
                        "data-file": file.name,
                        onclick: (e) => {
                          e.preventDefault();
                          download(file.name.split("/").at(-1), file.text, "text/plain");
                        },
                      },
                      "download",
                    ),
                  ),
                  h("pre", { tabindex: "0" }, file.text),
                ),
              ),
            );
          } catch (error) {
            if (error instanceof Refused) put(files, h("p", { class: "wrong" }, error.message));
            else throw error;
          } finally {
            button.disabled = false;
          }
        },
      },
      "Write them",
    );
    return [h("div", { class: "row" }, trainer, button), files];
  }

  return { element, refresh };
}
