// The shape view: every size with its sawtooth, and what the whole comes to.

import { ask, line, Refused } from "./api.js";
import { markBar, refreshBar } from "./bar.js";
import { axes, BOUND, box, figure, HELD, legend, log, logTicks, parts, SPENT } from "./charts.js";
import { card, download, h, put, s, sized, term } from "./dom.js";
import { bytes, change, count, interval, seconds, share, whole } from "./format.js";
import { offers } from "./offers.js";
import { fixWords, sawtooth } from "./sawtooth.js";
import { canRedo, canUndo, devices, question, redo, redoing, state, undo, undoing, update } from "./state.js";

const next = line("/api/shape");
const ROWS = 12;
const AT_GPU = ["gpu_toml", "calibration"];
const ASKED = ["seq_len", "microbatch_size", "context_len", "tp", "gpu", "dtype", "phase", "attention", "fix", "model"];
const AXES = ["pp", "dp", "cp", "ep"]; // of the plan, without an input of their own

export function shapeView({ banner, status }) {
  const fields = new Map(),
    anchors = {};
  let answer = null,
    modelKey = "",
    live = false,
    moving = false,
    best = "",
    pending = 0,
    newest = 0;
  const grid = h("div", { class: "fields" });
  const story = h("section", { class: "card story", "aria-label": "Summary" });
  const ticker = h("div", { class: "ticker", "aria-hidden": "true" });
  const total = h("div", { class: "total" }),
    actions = h("div", { class: "actions" });
  const operators = h("div", { class: "operators" }),
    roof = h("div", { class: "roofline" });
  const scrolls = (name, label) => h("div", { class: name, tabindex: "0", role: "region", "aria-label": label });
  const findings = scrolls("findings", "Findings"),
    notes = scrolls("notes", "Assumptions");
  const advice = offers({
    apply: applyShape,
    say: (words) => {
      best = words;
      if (answer) drawStory();
    },
  });
  const side = h(
    "div",
    { class: "side" },
    advice.element,
    h("section", { class: "card summary", "aria-label": "Shape" }, total, actions),
    card(term("finding", "Findings"), findings),
    card("From the file, and assumptions", notes),
  );
  const middle = h(
    "div",
    { class: "middle" },
    card("Operators by time", operators),
    card(term("roofline", "Roofline"), roof),
  );
  const element = h("div", { class: "shape unasked" }, ticker, story, grid, middle, side);
  const roofWidth = sized(roof, () => drawRoof());

  async function refresh() {
    const key = JSON.stringify([state.q.model, state.q.config]);
    const asked = { ...question(), around: key === modelKey ? { ...anchors } : {}, moving: live && key === modelKey };
    pending += 1;
    element.classList.add("waiting");
    try {
      const found = await next(asked);
      if (found === null) return; // overtaken by a newer question
      if (key !== modelKey) forget(key);
      if (asked.moving) {
        found.sweeps = answer.sweeps;
        found.findings = answer.findings;
        found.totals.would_fit = answer.totals.would_fit;
      }
      answer = found;
      moving = asked.moving;
      element.classList.remove("unasked", "refused", "stale");
      show();
      banner("");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (key !== modelKey && answer) {
        forget(key);
        element.classList.add("refused");
      } else element.classList.add("stale"); // never another model's figures
      refuse(error);
    } finally {
      pending -= 1;
      element.classList.toggle("waiting", pending > 0);
    }
    if (!live) {
      advice.about();
      news();
    }
  }

  /** What the offered values would be found fault with, asked one at a time once nothing else is. */
  async function news() {
    const mine = ++newest,
      idle = () => mine === newest && !live && pending === 0;
    await new Promise((done) => setTimeout(done, 800));
    for (const [field, one] of fields)
      for (const value of one.offered()) {
        if (!idle()) return;
        const found = await ask("/api/lint", question({ set: { ...state.q.set, [field]: value } })).catch(() => null);
        if (found && idle())
          one.news(
            value,
            found.findings.filter(
              (f) => !f.remark && !answer.findings.some((g) => g.rule === f.rule && g.field === f.field),
            ),
          );
      }
  }

  function forget(key) {
    modelKey = key;
    for (const k of Object.keys(anchors)) delete anchors[k];
    put(grid);
    fields.clear();
  }

  function refuse(error) {
    const said = error.field.replace(/^--/, "").replaceAll("-", "_");
    const field = said.startsWith("fix") || AXES.includes(said) || said in (state.q.fix ?? {}) ? "fix" : said;
    for (const [name, one] of fields) one.error(name === field ? error.message : "");
    const known = ASKED.includes(field) || fields.has(field);
    const atBar = markBar(
      AT_GPU.includes(field) || (state.q.gpu_toml && !known) ? "gpu" : ASKED.includes(field) ? field : "",
      error.message,
    );
    banner(error.message);
    if (!atBar && fields.has(field)) fields.get(field).focus();
    if (answer) drawActions();
  }

  function show() {
    const { model, baseline } = answer;
    refreshBar(answer.workload);
    markBar("", "");
    for (const sweep of moving ? [] : answer.sweeps) {
      if (!fields.has(sweep.field)) add(sweep.field);
      anchors[sweep.field] ??= sweep.asked;
      const one = fields.get(sweep.field);
      one.error("");
      one.show(sweep, model[sweep.field], anchors[sweep.field], baseline?.fields?.[sweep.field] ?? null);
      one.findings(answer.findings.filter((f) => f.field === sweep.field));
    }
    if (moving) for (const [name, one] of fields) one.follow(model[name]);
    for (const [name, one] of fields)
      one.element.classList.toggle(
        "changed",
        baseline && baseline.fields?.[name] !== undefined && baseline.fields[name] !== model[name],
      );
    drawStory();
    drawTotal();
    drawActions();
    drawFindings();
    drawOperators();
    drawRoof();
    put(
      notes,
      h(
        "ul",
        { class: "plain" },
        model.assumptions.map((line) => h("li", {}, line)),
      ),
    );
    status(
      live ? "" : `${model.name || "model"}: ${seconds(answer.totals.time_s)}, ${count(model.num_params)} parameters`,
    );
  }

  function add(field) {
    const one = sawtooth(field, {
      onValue: (value, isLive) => choose(field, value, isLive),
      onOffer: (value) => choose(field, value, false),
      onFix: applyFix,
    });
    fields.set(field, one);
    grid.append(one.element);
  }

  function choose(field, value, isLive) {
    live = isLive;
    if (typeof value === "number") fields.get(field)?.move(value);
    update(
      (s) => {
        s.q.set = { ...s.q.set, [field]: value };
        tidy(s);
      },
      { live: isLive },
    );
    if (!isLive && typeof value === "number") recentre(field, value);
  }

  /** A field that is back at the model's own value is no change. */
  function tidy(s) {
    const own = answer?.baseline?.fields;
    if (!own) return;
    for (const [name, value] of Object.entries(s.q.set)) if (own[name] === value) delete s.q.set[name];
  }

  /** Where a value has left its picture, the picture follows once the hand is off. */
  function recentre(field, value) {
    const sweep = answer?.sweeps.find((one) => one.field === field);
    if (sweep && (value < sweep.values[0] || value > sweep.values.at(-1))) anchors[field] = value;
  }

  function applyFix(fix) {
    update((s) => {
      for (const [field, value] of Object.entries(fix)) {
        if (ASKED.includes(field)) s.q[field] = value;
        else if (AXES.includes(field)) s.q.fix = { ...s.q.fix, [field]: value };
        else s.q.set = { ...s.q.set, [field]: value };
      }
      tidy(s);
    });
  }

  /** The answer in a sentence, and what time and memory are made of. */
  function drawStory() {
    const { totals, baseline, says } = answer;
    const faster = baseline ? totals.time_s / baseline.time_s - 1 : 0,
      moved = Object.keys(state.q.set).length > 0;
    const delta = h(
      "span",
      { class: `delta ${Math.abs(faster) < 5e-5 ? "" : faster < 0 ? "good" : "bad"}` },
      change(faster),
    );
    const spent = totals.time ?? { [answer.workload.phase]: totals.time_s },
      most = Math.max(totals.peak_bytes, totals.usable_bytes);
    put(
      story,
      h(
        "p",
        { class: "lead", id: "headline" },
        `${says.takes} `,
        h("strong", { id: "step-time" }, seconds(totals.time_s)),
        ` (80%: ${interval(totals.low_s, totals.high_s)}). `,
        moved ? ["That is ", delta, " against the model's own sizes. "] : null,
        h("span", { class: totals.fits ? "" : "wrong", id: "fit" }, says.memory),
        totals.would_fit.length ? ` It would with ${totals.would_fit.map(settings).join(", or with ")}.` : "",
        answer.runs
          ? ""
          : h(
              "span",
              { class: "wrong" },
              ` It does not split over tp=${answer.workload.tp}: shown for tp=${answer.split.tp}.`,
            ),
        h("span", { id: "best-says" }, best ? ` ${best}` : ""),
      ),
      h(
        "div",
        { class: "halves" },
        h(
          "div",
          {},
          h("h2", {}, term("step", "Time"), ` ${seconds(totals.time_s)}`),
          parts(spent, { ...SPENT, [answer.workload.phase]: "operators" }, totals.time_s, seconds),
        ),
        h(
          "div",
          {},
          h("h2", {}, term("peak_bytes", "Memory"), ` ${bytes(totals.peak_bytes)} of ${bytes(totals.usable_bytes)}`),
          parts(totals.memory ?? {}, HELD, most, bytes, totals.usable_bytes),
        ),
      ),
    );
    put(
      ticker,
      h("strong", {}, seconds(totals.time_s)),
      moved ? delta.cloneNode(true) : null,
      h("span", { class: totals.fits ? "" : "wrong" }, `${bytes(totals.peak_bytes)} of ${bytes(totals.usable_bytes)}`),
    );
  }

  const settings = ({ num_devices: devices, global_batch_size: _, ...change_ }) =>
    Object.entries(change_)
      .map(([name, value]) => `${name}=${value}`)
      .join(" and ") + (devices ? ` on ${whole(devices)} devices` : "");

  function drawTotal() {
    const { totals, baseline, model } = answer;
    const moved = baseline?.num_params ? model.num_params / baseline.num_params - 1 : 0;
    put(
      total,
      h(
        "dl",
        { class: "facts" },
        fact(
          "params",
          "parameters",
          h("span", { id: "params" }, `${count(model.num_params, 4)} `),
          h("span", { class: "delta" }, change(moved, 2)),
        ),
        fact("step", "one microbatch", seconds(totals.microbatch_s)),
        fact("tokens_per_s", "tokens/s per device", count(totals.tokens_per_s_per_device)),
        fact("mfu", "MFU", share(totals.mfu)),
        fact("step", "source", totals.source),
      ),
    );
  }

  function fact(key, label, ...value) {
    return [h("dt", {}, term(key, label)), h("dd", {}, value)];
  }

  function drawActions() {
    const changed = Object.keys(state.q.set).length > 0;
    const button = (id, label, onclick, disabled, title) => h("button", { id, onclick, disabled, title }, label);
    put(
      actions,
      h(
        "div",
        { class: "row wrap" },
        button("undo", undoing() ? `Undo ${undoing()}` : "Undo", undo, !canUndo(), "Ctrl+Z"),
        button("redo", "Redo", redo, !canRedo(), redoing() ? `Redo ${redoing()} (Ctrl+Shift+Z)` : "Ctrl+Shift+Z"),
        button(
          "reset",
          "Reset",
          () =>
            update((s) => {
              s.q.set = {};
            }),
          !changed,
          "Back to the model's own sizes",
        ),
      ),
      h(
        "p",
        { class: "edit", id: "edit-says", role: "status" },
        changed ? `Changed: ${fixWords(state.q.set)}` : "The model's own sizes.",
      ),
      h(
        "div",
        { class: "row" },
        button("pin", "Pin to compare", pin, false, "Keep this shape for the Compare view"),
        h(
          "details",
          { class: "menu" },
          h("summary", { role: "button", id: "downloads" }, "Download"),
          h(
            "div",
            { class: "menu-items" },
            button("get-config", "config.json", getConfig),
            button("get-report", "report (HTML)", getReport),
            button("get-json", "estimate (JSON)", () => getJson("estimate")),
            button("get-lint", "findings (JSON)", () => getJson("lint")),
          ),
        ),
      ),
    );
  }

  /** An advised shape, in place of all changes made by hand. */
  function applyShape(changed) {
    update((s) => {
      s.q.set = Object.fromEntries(Object.entries(changed).map(([f, [, to]]) => [f, to]));
    });
  }

  function pin() {
    update((s) => {
      if (!s.pins.some((p) => JSON.stringify(p.set) === JSON.stringify(s.q.set)))
        s.pins.push({ name: `pinned ${s.pins.length + 1}`, set: { ...s.q.set } });
    });
    status("Pinned: see Compare");
    drawActions();
  }

  const fileName = () => (answer?.model.name || "model").toLowerCase().replaceAll(/[^a-z0-9.]+/g, "-");

  async function getConfig() {
    await orSay(async () => {
      const { model, config, name, set } = question();
      download(
        "config.json",
        await ask("/api/config", config ? { config, name, set } : { model, set }, { as: "text" }),
      );
    });
  }

  async function getReport() {
    await orSay(async () => {
      status("Writing the report …");
      const { gpu, phase, ...rest } = question();
      download(
        `${fileName()}.html`,
        await ask("/api/report", { ...rest, ...devices(), objective: phase }, { as: "text" }),
        "text/html",
      );
      status("");
    });
  }

  async function getJson(what) {
    await orSay(async () =>
      download(
        `${fileName()}${what === "lint" ? "-findings" : ""}.json`,
        await ask(`/api/${what}`, question(), { as: "text" }),
      ),
    );
  }

  async function orSay(what) {
    try {
      await what();
    } catch (error) {
      if (error instanceof Refused) banner(error.message);
      else throw error;
    }
  }

  function drawFindings() {
    const faults = answer.findings.filter((f) => !f.remark),
      remarks = answer.findings.filter((f) => f.remark);
    put(
      findings,
      faults.length ? faults.map(drawFinding) : h("p", { class: "muted" }, "No rule finds waste in this shape."),
      remarks.length ? h("h3", {}, "Remarks on the architecture, to be chosen before training") : null,
      remarks.map(drawFinding),
    );
  }

  function drawFinding(f) {
    return h(
      "div",
      { class: `finding full ${f.grade}` },
      h(
        "div",
        {},
        h("span", { class: "grade" }, f.grade),
        h(
          "a",
          {
            href: `#field-${f.field}`,
            onclick: (e) => {
              e.preventDefault();
              (fields.get(f.field) ?? { focus() {} }).focus();
            },
          },
          f.rule,
        ),
        f.gain_fraction ? h("span", { class: "gain" }, `${change(-f.gain_fraction)} time`) : null,
      ),
      h("p", {}, f.message),
      f.reasons.slice(1).map((r) => h("p", { class: "muted" }, `also ${r.code} ${r.rule}: ${r.message}`)),
      Object.keys(f.fix).length
        ? h("button", { class: "chip", onclick: () => applyFix(f.fix) }, `set ${fixWords(f.fix)}`)
        : null,
    );
  }

  function drawOperators() {
    const rows = answer.operators
      .map((op) => ({ ...op, total: op.count * op.time_s }))
      .sort((a, b) => b.total - a.total);
    const all = answer.totals.microbatch_s,
      shown = rows.slice(0, ROWS),
      rest = rows.slice(ROWS);
    const most = shown[0]?.total ?? 1;
    put(
      operators,
      legend(Object.entries(BOUND).map(([word, colour]) => [word, colour])),
      h(
        "ol",
        { class: "bars" },
        shown.map((op) =>
          h(
            "li",
            { "data-tip": explain(op), tabindex: "0" },
            h("span", { class: "name" }, op.name.replace(/^layer\./, ""), h("small", {}, ` ${op.pass}`)),
            h(
              "span",
              { class: "bar" },
              h("i", {
                style: { width: `${(100 * op.total) / most}%`, background: BOUND[op.bound_by] ?? "var(--grey)" },
              }),
            ),
            h("span", { class: "number" }, seconds(op.total)),
            h("span", { class: "number share" }, share(op.total / all)),
          ),
        ),
      ),
      rest.length
        ? h("p", { class: "muted" }, `${rest.length} others: ${seconds(rest.reduce((a, op) => a + op.total, 0))}`)
        : null,
    );
  }

  function explain(op) {
    const size = op.k
      ? `${op.batch > 1 ? `${(Math.round(10 * op.batch) / 10).toLocaleString("en")} × ` : ""}${whole(op.m)} × ${whole(op.n)} × ${whole(op.k)}`
      : `${whole(op.m)} × ${whole(op.n)}`;
    const tiles = op.tile_m
      ? `, tiles ${op.tile_m}×${op.tile_n}, ${op.waves ? `${Number(op.waves.toPrecision(3))} waves, ` : ""}tile efficiency ${share(op.tile_efficiency)}, wave efficiency ${share(op.wave_efficiency)}`
      : "";
    const time = `${whole(op.count)} times ${seconds(op.time_s)} (${interval(op.low_s, op.high_s)})`;
    return `${op.kind} ${size}, ${time}, bound by ${op.bound_by}${tiles}; ${op.source}`;
  }

  function drawRoof() {
    const width = roofWidth();
    if (!answer || !width) return;
    const r = answer.roofline,
      height = Math.max(190, Math.min(420, width * 0.6));
    const ridge = r.peak_flops_per_s / r.hbm_bytes_per_s;
    const points = r.names.map((name, i) => ({
      name,
      pass: r.passes[i],
      x: r.intensity_flops_per_byte[i],
      y: r.achieved_flops_per_s[i],
      share: r.share[i],
    }));
    const xs = [
      Math.min(ridge / 8, ...points.map((p) => p.x)) / 1.5,
      Math.max(ridge * 4, ...points.map((p) => p.x)) * 1.5,
    ];
    const ys = [Math.min(xs[0] * r.hbm_bytes_per_s, ...points.map((p) => p.y)) / 1.3, r.peak_flops_per_s * 1.6];
    const frame = box(width, height, { left: 3 });
    const x = log(xs, [frame.left, frame.right]),
      y = log(ys, [frame.bottom, frame.top]);
    put(
      roof,
      figure(
        width,
        height,
        `Roofline of ${r.device}: ${points.length} GEMMs under a peak of ${whole(r.peak_flops_per_s / 1e12)} TFLOP/s`,
        axes(
          frame,
          {
            scale: x,
            ticks: logTicks(...xs, width > 420 ? [1, 3] : [1]),
            text: (v) => count(v),
            title: "FLOP per byte",
          },
          { scale: y, ticks: logTicks(...ys, [1]), text: (v) => count(v / 1e12), title: "TFLOP/s" },
        ),
        s("path", {
          class: "roof",
          d: `M${x(Math.max(xs[0], ys[0] / r.hbm_bytes_per_s))} ${y(Math.max(ys[0], xs[0] * r.hbm_bytes_per_s))}L${x(ridge)} ${y(r.peak_flops_per_s)}L${x(xs[1])} ${y(r.peak_flops_per_s)}`,
        }),
        s(
          "text",
          { class: "tick", x: frame.right, y: y(r.peak_flops_per_s) - 5, "text-anchor": "end" },
          `peak ${whole(r.peak_flops_per_s / 1e12)} TFLOP/s (${r.dtype})`,
        ),
        points.map((p) =>
          s("circle", {
            class: "point",
            cx: x(p.x),
            cy: y(p.y),
            r: 2.5 + 9 * Math.sqrt(p.share),
            "data-tip": `${p.name} ${p.pass}: ${whole(p.y / 1e12)} TFLOP/s at ${count(p.x)} FLOP/byte, ${share(p.share)} of the time`,
          }),
        ),
      ),
    );
  }

  return { element, refresh };
}
