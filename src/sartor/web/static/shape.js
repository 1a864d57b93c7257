// The shape view: every size with its sawtooth, and what the whole comes to.

import { ask, line, Refused } from "./api.js";
import { markBar, refreshBar } from "./bar.js";
import { card, download, h, put, term } from "./dom.js";
import { change, count, seconds, share } from "./format.js";
import { promise } from "./promise.js";
import { fixWords, sawLegend, sawtooth } from "./sawtooth.js";
import { drawFindings, drawOperators, drawStory } from "./shape_figures.js";
import { canRedo, canUndo, devices, question, redo, redoing, state, undo, undoing, update } from "./state.js";
import { chart } from "./vega.js";

const next = line("/api/shape");
const AT_GPU = ["gpu_toml", "calibration"];
const ASKED = [
  "seq_len",
  "microbatch_size",
  "context_len",
  "tp",
  "gpu",
  "dtype",
  "phase",
  "attention",
  "framework",
  "fix",
  "model",
];
const AXES = ["pp", "dp", "cp", "ep"]; // of the plan, without an input of their own

export function shapeView({ banner, status }) {
  const fields = new Map(),
    anchors = {};
  let answer = null,
    modelKey = "",
    live = false,
    moving = false,
    pending = 0,
    newest = 0;
  const grid = h("div", { class: "fields" });
  const said = h("div", { class: "said" });
  const ticker = h("div", { class: "ticker", "aria-hidden": "true" });
  const total = h("div", { class: "total" }),
    actions = h("div", { class: "actions" });
  const operators = h("div", { class: "operators" }),
    roof = h("div", { class: "roofline" });
  const findings = h("div", { class: "findings" }),
    notes = h("div", {});
  const get = downloads(() => answer, { banner, status });
  const advice = promise({ apply: applyShape });
  const story = h("section", { class: "card story", "aria-label": "Summary" }, advice.element, said);
  const side = h(
    "div",
    { class: "side" },
    h("section", { class: "card summary", "aria-label": "Shape" }, total, actions),
    card(term("finding", "Findings"), findings),
  );
  const middle = h(
    "div",
    { class: "middle" },
    card("Operators by time", operators),
    card(term("roofline", "Roofline"), roof),
    card("From the file, and assumptions", notes),
  );
  const element = h(
    "div",
    { class: "shape unasked" },
    ticker,
    story,
    h("div", { class: "sizes" }, sawLegend(), grid),
    middle,
    side,
  );

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
        found.says.turns = answer.says.turns;
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
      if (answer) advice.about(answer);
      if (answer)
        put(
          roof,
          chart(() => ask("/api/shape/roofline", question())),
        );
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
    drawStory(said, ticker, answer, Object.keys(state.q.set).length > 0);
    if (live) advice.follow(answer);
    drawTotal();
    drawActions();
    drawFindings(findings, answer, { focus: (field) => fields.get(field)?.focus(), fix: applyFix });
    drawOperators(operators, answer);
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
    const edit = (s) => {
      for (const [field, value] of Object.entries(fix)) {
        if (ASKED.includes(field)) s.q[field] = value;
        else if (AXES.includes(field)) s.q.fix = { ...s.q.fix, [field]: value };
        else s.q.set = { ...s.q.set, [field]: value };
      }
      tidy(s);
    };
    update(edit, { visit: true });
  }

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
            button("get-config", "config.json", get.config),
            button("get-report", "report (HTML)", get.report),
            button("get-json", "estimate (JSON)", () => get.json("estimate")),
            button("get-lint", "findings (JSON)", () => get.json("lint")),
          ),
        ),
      ),
    );
  }

  /** An advised shape, in place of all changes made by hand. */
  function applyShape(changed) {
    const edit = (s) => {
      s.q.set = Object.fromEntries(Object.entries(changed).map(([f, [, to]]) => [f, to]));
    };
    update(edit, { visit: true });
  }

  function pin() {
    update((s) => {
      if (!s.pins.some((p) => JSON.stringify(p.set) === JSON.stringify(s.q.set)))
        s.pins.push({ name: `pinned ${s.pins.length + 1}`, set: { ...s.q.set } });
    });
    status("Pinned: see Compare");
    drawActions();
  }

  return { element, refresh };
}

/** Files of the answer on screen. */
function downloads(answerNow, { banner, status }) {
  const fileName = () => (answerNow()?.model.name || "model").toLowerCase().replaceAll(/[^a-z0-9.]+/g, "-");

  async function config() {
    await orSay(async () => {
      const { model, config, name, set } = question();
      download(
        "config.json",
        await ask("/api/config", config ? { config, name, set } : { model, set }, { as: "text" }),
      );
    });
  }

  async function report() {
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

  async function json(what) {
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

  return { config, report, json };
}
