// The shape view: every size with its sawtooth, and what the whole comes to.

import { card, download, h, put, s, sized, term } from "./dom.js";
import { ask, line, Refused } from "./api.js";
import { axes, BOUND, box, figure, legend, log, logTicks } from "./charts.js";
import { change, count, interval, seconds, share, whole } from "./format.js";
import { markBar, refreshBar } from "./bar.js";
import { fixWords, sawtooth } from "./sawtooth.js";
import { canRedo, canUndo, devices, question, redo, state, undo, update } from "./state.js";

const next = line("/api/shape");
const ROWS = 12;
const AT_GPU = ["gpu_toml", "calibration"];
const ASKED = ["seq_len", "microbatch_size", "context_len", "tp", "gpu", "dtype", "phase", "attention", "model"];

export function shapeView({ banner, status }) {
  const fields = new Map(), anchors = {};
  let answer = null, modelKey = "", live = false, edit = null, pending = 0;
  const grid = h("div", { class: "fields" });
  const total = h("div", { class: "total" }), actions = h("div", { class: "actions" });
  const operators = h("div", { class: "operators" }), roof = h("div", { class: "roofline" });
  const findings = h("div", { class: "findings" }), notes = h("div", { class: "notes" });
  const side = h("div", { class: "side" },
    h("section", { class: "card summary", "aria-label": "Totals" }, total, actions),
    h("div", { class: "column" }, card(term("finding", "Findings"), findings), card("Operators by time", operators)),
    h("div", { class: "column" }, card(term("roofline", "Roofline"), roof), card("From the file, and assumptions", notes)));
  const element = h("div", { class: "shape unasked" }, grid, side);
  const roofWidth = sized(roof, () => drawRoof());

  async function refresh() {
    const key = JSON.stringify([state.q.model, state.q.config]);
    const asked = { ...question(), around: key === modelKey ? { ...anchors } : {} };
    pending += 1;
    element.classList.add("waiting");
    try {
      const found = await next(asked);
      if (found === null) return; // overtaken by a newer question
      if (key !== modelKey) { modelKey = key; for (const k of Object.keys(anchors)) delete anchors[k]; edit = null; put(grid); fields.clear(); }
      answer = found;
      element.classList.remove("unasked");
      show();
      banner("");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      refuse(error);
    } finally {
      pending -= 1;
      element.classList.toggle("waiting", pending > 0);
    }
  }

  function refuse(error) {
    const field = error.field.replace(/^--/, "").replaceAll("-", "_");
    for (const [name, one] of fields) one.error(name === field ? error.message : "");
    const known = ASKED.includes(field) || fields.has(field);
    const atBar = markBar(AT_GPU.includes(field) || (state.q.gpu_toml && !known) ? "gpu" : ASKED.includes(field) ? field : "", error.message);
    banner(error.message);
    if (!atBar && fields.has(field)) fields.get(field).focus();
  }

  function show() {
    const { model, baseline } = answer;
    refreshBar(answer.workload);
    markBar("", "");
    for (const sweep of answer.sweeps) {
      if (!fields.has(sweep.field)) add(sweep.field);
      anchors[sweep.field] ??= sweep.asked;
      const one = fields.get(sweep.field);
      one.error("");
      one.show(sweep, model[sweep.field], anchors[sweep.field]);
      one.findings(answer.findings.filter((f) => f.field === sweep.field));
    }
    for (const [name, one] of fields) one.element.classList.toggle("changed", baseline && baseline.fields?.[name] !== undefined && baseline.fields[name] !== model[name]);
    drawTotal();
    drawActions();
    drawFindings();
    drawOperators();
    drawRoof();
    put(notes, h("ul", { class: "plain" }, model.assumptions.map((line) => h("li", {}, line))));
    status(live ? "" : `${model.name || "model"}: ${seconds(answer.totals.time_s)}, ${count(model.num_params)} parameters`);
  }

  function add(field) {
    const one = sawtooth(field, { onValue: (value, isLive) => choose(field, value, isLive), onOffer: (value) => choose(field, value, false), onFix: applyFix });
    fields.set(field, one);
    grid.append(one.element);
  }

  function choose(field, value, isLive) {
    live = isLive;
    if (typeof value === "number") fields.get(field)?.move(value);
    edit = null;
    update((s) => { s.q.set = { ...s.q.set, [field]: value }; tidy(s); }, { live: isLive });
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
    edit = null;
    update((s) => {
      for (const [field, value] of Object.entries(fix)) {
        if (ASKED.includes(field)) s.q[field] = value;
        else s.q.set = { ...s.q.set, [field]: value };
      }
      tidy(s);
    });
  }

  function drawTotal() {
    const { totals, baseline, model } = answer;
    const faster = baseline ? totals.time_s / baseline.time_s - 1 : 0;
    const moved = baseline?.num_params ? model.num_params / baseline.num_params - 1 : 0;
    const low = baseline?.low_s ?? totals.low_s, high = baseline?.high_s ?? totals.high_s;
    const most = Math.max(totals.high_s, high) * 1.05, at = (v) => `${(100 * v) / most}%`;
    put(total,
      h("div", { class: "big" }, h("strong", { id: "step-time" }, seconds(totals.time_s)), h("span", { class: `delta ${Math.abs(faster) < 5e-5 ? "" : faster < 0 ? "good" : "bad"}` }, change(faster))),
      h("div", { class: "whisker", role: "img", "aria-label": `80% interval ${interval(totals.low_s, totals.high_s)}` },
        h("i", { class: "was", style: { left: at(low), width: at(high - low) } }), h("i", { class: "is", style: { left: at(totals.low_s), width: at(totals.high_s - totals.low_s) } }), h("b", { style: { left: at(totals.time_s) } })),
      h("dl", { class: "facts" },
        fact("step", "interval", interval(totals.low_s, totals.high_s)),
        fact("params", "parameters", h("span", { id: "params" }, `${count(model.num_params, 4)} `), h("span", { class: "delta" }, change(moved, 2))),
        fact("tokens_per_s", "tokens/s", count(totals.tokens_per_s)),
        fact("mfu", "MFU", share(totals.mfu)),
        fact("step", "source", totals.source)),
      answer.runs ? null : h("p", { class: "wrong" }, `does not split over tp=${answer.workload.tp}: shown for tp=1`));
  }

  function fact(key, label, ...value) {
    return [h("dt", {}, term(key, label)), h("dd", {}, value)];
  }

  function drawActions() {
    const changed = Object.keys(state.q.set).length > 0;
    const button = (id, label, onclick, disabled, title) => h("button", { id, onclick, disabled, title }, label);
    put(actions,
      h("div", { class: "row" }, button("undo", "Undo", undo, !canUndo(), "Ctrl+Z"), button("redo", "Redo", redo, !canRedo(), "Ctrl+Shift+Z"),
        button("reset", "Reset", () => update((s) => { s.q.set = {}; }), !changed, "Back to the model's own sizes")),
      h("button", { id: "smallest", class: "primary", onclick: smallest, "data-tip": "Search all same-size shapes near the model's own and take the one with the fewest changed fields that keeps most of the gain at equal work." }, "Apply the smallest useful edit"),
      h("p", { class: "edit", id: "edit-says", role: "status" }, edit ?? (changed ? `changed: ${fixWords(state.q.set)}` : "as the model is")),
      h("div", { class: "row" },
        button("pin", "Pin to compare", pin, false, "Keep this shape for the Compare view"),
        h("details", { class: "menu" }, h("summary", { role: "button", id: "downloads" }, "Download"), h("div", { class: "menu-items" },
          button("get-config", "config.json", getConfig), button("get-report", "report (HTML)", getReport), button("get-json", "estimate (JSON)", () => getJson("estimate")), button("get-lint", "findings (JSON)", () => getJson("lint"))))));
  }

  async function smallest() {
    const button = document.getElementById("smallest");
    button.disabled = true;
    button.textContent = "Searching …";
    try {
      const { gpu, phase, ...rest } = question({ set: {} });
      const found = await ask("/api/advise", { ...rest, ...devices(), objective: phase });
      const best = found.smallest_edit;
      if (!best) { edit = `Keep this shape: of ${whole(found.evaluated)} priced, none of the same size surely gains.`; show(); return; }
      edit = `${Object.entries(best.changed).map(([f, [a, b]]) => `${f} ${whole(a)} → ${whole(b)}`).join(", ")}: ${best.efficiency_gain.toFixed(3)}× as fast at equal work, of ${whole(found.evaluated)} shapes priced`;
      const said = edit;
      update((s) => { s.q.set = Object.fromEntries(Object.entries(best.changed).map(([f, [, to]]) => [f, to])); });
      edit = said;
    } catch (error) {
      if (error instanceof Refused) refuse(error); else throw error;
    } finally {
      if (answer) drawActions();
    }
  }

  function pin() {
    update((s) => { if (!s.pins.some((p) => JSON.stringify(p.set) === JSON.stringify(s.q.set))) s.pins.push({ name: `pinned ${s.pins.length + 1}`, set: { ...s.q.set } }); });
    status("Pinned: see Compare");
    drawActions();
  }

  const fileName = () => (answer?.model.name || "model").toLowerCase().replaceAll(/[^a-z0-9.]+/g, "-");

  async function getConfig() {
    await orSay(async () => {
      const { model, config, name, set } = question();
      download("config.json", await ask("/api/config", config ? { config, name, set } : { model, set }, { as: "text" }));
    });
  }

  async function getReport() {
    await orSay(async () => {
      status("Writing the report …");
      const { gpu, phase, ...rest } = question();
      download(`${fileName()}.html`, await ask("/api/report", { ...rest, ...devices(), objective: phase }, { as: "text" }), "text/html");
      status("");
    });
  }

  async function getJson(what) {
    await orSay(async () => download(`${fileName()}${what === "lint" ? "-findings" : ""}.json`, await ask(`/api/${what}`, question(), { as: "text" })));
  }

  async function orSay(what) {
    try { await what(); } catch (error) { if (error instanceof Refused) banner(error.message); else throw error; }
  }

  function drawFindings() {
    const faults = answer.findings.filter((f) => !f.remark), remarks = answer.findings.filter((f) => f.remark);
    put(findings,
      faults.length ? faults.map(drawFinding) : h("p", { class: "muted" }, "Clean: no rule finds waste in this shape."),
      remarks.length ? h("h3", {}, "Remarks on the architecture, to be chosen before training") : null,
      remarks.map(drawFinding));
  }

  function drawFinding(f) {
    return h("div", { class: `finding full ${f.grade}` },
      h("div", {}, h("span", { class: "grade" }, f.grade), h("a", { href: `#field-${f.field}`, onclick: (e) => { e.preventDefault(); (fields.get(f.field) ?? { focus() {} }).focus(); } }, f.rule), f.gain_fraction ? h("span", { class: "gain" }, `${change(-f.gain_fraction)} time`) : null),
      h("p", {}, f.message),
      f.reasons.slice(1).map((r) => h("p", { class: "muted" }, `also ${r.code} ${r.rule}: ${r.message}`)),
      Object.keys(f.fix).length ? h("button", { class: "chip", onclick: () => applyFix(f.fix) }, `set ${fixWords(f.fix)}`) : null);
  }

  function drawOperators() {
    const rows = answer.operators.map((op) => ({ ...op, total: op.count * op.time_s })).sort((a, b) => b.total - a.total);
    const all = answer.totals.microbatch_s, shown = rows.slice(0, ROWS), rest = rows.slice(ROWS);
    const most = shown[0]?.total ?? 1;
    put(operators,
      legend(Object.entries(BOUND).map(([word, colour]) => [word, colour])),
      h("ol", { class: "bars" }, shown.map((op) => h("li", { "data-tip": explain(op), tabindex: "0" },
        h("span", { class: "name" }, op.name.replace(/^layer\./, ""), h("small", {}, ` ${op.pass}`)),
        h("span", { class: "bar" }, h("i", { style: { width: `${(100 * op.total) / most}%`, background: BOUND[op.bound_by] ?? "var(--grey)" } })),
        h("span", { class: "number" }, seconds(op.total)), h("span", { class: "number share" }, share(op.total / all))))),
      rest.length ? h("p", { class: "muted" }, `${rest.length} others: ${seconds(rest.reduce((a, op) => a + op.total, 0))}`) : null);
  }

  function explain(op) {
    const size = op.k ? `${op.batch > 1 ? `${whole(op.batch)} × ` : ""}${whole(op.m)} × ${whole(op.n)} × ${whole(op.k)}` : `${whole(op.m)} × ${whole(op.n)}`;
    const tiles = op.tile_m ? `, tiles ${op.tile_m}×${op.tile_n}, ${op.waves ? `${Number(op.waves.toPrecision(3))} waves, ` : ""}tile efficiency ${share(op.tile_efficiency)}, wave efficiency ${share(op.wave_efficiency)}` : "";
    return `${op.kind} ${size}, ${whole(op.count)} times ${seconds(op.time_s)} (${interval(op.low_s, op.high_s)}), bound by ${op.bound_by}${tiles}; ${op.source}`;
  }

  function drawRoof() {
    const width = roofWidth();
    if (!answer || !width) return;
    const r = answer.roofline, height = Math.max(190, Math.min(420, width * 0.6));
    const ridge = r.peak_flops_per_s / r.hbm_bytes_per_s;
    const points = r.names.map((name, i) => ({ name, pass: r.passes[i], x: r.intensity_flops_per_byte[i], y: r.achieved_flops_per_s[i], share: r.share[i] }));
    const xs = [Math.min(ridge / 8, ...points.map((p) => p.x)) / 1.5, Math.max(ridge * 4, ...points.map((p) => p.x)) * 1.5];
    const ys = [Math.min(xs[0] * r.hbm_bytes_per_s, ...points.map((p) => p.y)) / 1.3, r.peak_flops_per_s * 1.6];
    const frame = box(width, height, { left: 3 });
    const x = log(xs, [frame.left, frame.right]), y = log(ys, [frame.bottom, frame.top]);
    put(roof, figure(width, height, `Roofline of ${r.device}: ${points.length} GEMMs under a peak of ${whole(r.peak_flops_per_s / 1e12)} TFLOP/s`,
      axes(frame, { scale: x, ticks: logTicks(...xs, width > 420 ? [1, 3] : [1]), text: (v) => count(v), title: "FLOP per byte" }, { scale: y, ticks: logTicks(...ys, [1]), text: (v) => count(v / 1e12), title: "TFLOP/s" }),
      s("path", { class: "roof", d: `M${x(Math.max(xs[0], ys[0] / r.hbm_bytes_per_s))} ${y(Math.max(ys[0], xs[0] * r.hbm_bytes_per_s))}L${x(ridge)} ${y(r.peak_flops_per_s)}L${x(xs[1])} ${y(r.peak_flops_per_s)}` }),
      s("text", { class: "tick", x: frame.right, y: y(r.peak_flops_per_s) - 5, "text-anchor": "end" }, `peak ${whole(r.peak_flops_per_s / 1e12)} TFLOP/s (${r.dtype})`),
      points.map((p) => s("circle", { class: "point", cx: x(p.x), cy: y(p.y), r: 2.5 + 9 * Math.sqrt(p.share), "data-tip": `${p.name} ${p.pass}: ${whole(p.y / 1e12)} TFLOP/s at ${count(p.x)} FLOP/byte, ${share(p.share)} of the time` }))));
  }

  return { element, refresh };
}
