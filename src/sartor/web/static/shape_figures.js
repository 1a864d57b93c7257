// What the shape view draws of an answer: its sentence with time and memory, findings, operators.

import { BOUND, HELD, legend, parts, SPENT } from "./charts.js";
import { h, put, term } from "./dom.js";
import { bytes, gainOf, interval, seconds, share, times, whole } from "./format.js";
import { fixWords } from "./sawtooth.js";

const ROWS = 12;

/** The answer in a sentence, and what time and memory are made of. */
export function drawStory(story, ticker, answer, moved) {
  const { totals, baseline, model, says } = answer,
    spent = totals.time ?? { [answer.workload.phase]: totals.time_s },
    most = Math.max(totals.peak_bytes, totals.usable_bytes),
    held = `${bytes(totals.peak_bytes)} of ${bytes(totals.usable_bytes)}`,
    fits = totals.fits === false ? "wrong" : "";
  put(
    story,
    h(
      "p",
      { class: "lead", id: "headline" },
      answer.runs ? "" : h("span", { class: "wrong" }, unsplit(answer)),
      `${says.takes} `,
      h("strong", { id: "step-time" }, seconds(totals.time_s)),
      ` (80%: ${interval(totals.low_s, totals.high_s)}). `,
      h("span", { class: fits, id: "fit" }, says.memory),
      totals.would_fit.length ? ` It would with ${totals.would_fit.map(settings).join(", or with ")}.` : "",
    ),
    says.turns.map((line) => h("p", { class: "muted turn" }, line)),
    h("h2", {}, term("step", "Time"), ` ${seconds(totals.time_s)}`),
    parts(spent, { ...SPENT, [answer.workload.phase]: "operators" }, totals.time_s, seconds),
    h("h2", {}, term("peak_bytes", "Memory"), ` ${held}`),
    parts(totals.memory ?? {}, HELD, most, bytes, totals.usable_bytes),
  );
  const gain = moved && baseline ? gainOf(baseline, { ...model, ...totals }) : 1;
  put(
    ticker,
    h("strong", {}, seconds(totals.time_s)),
    moved && baseline ? h("span", { class: `delta ${gain > 1 ? "good" : "bad"}` }, times(gain)) : null,
    h("span", { class: fits }, held),
  );
}

const unsplit = ({ workload, split }) => `It does not split over tp=${workload.tp}: shown for tp=${split.tp}. `;

const settings = ({ num_devices: devices, global_batch_size: _, ...changes }) =>
  Object.entries(changes)
    .map(([name, value]) => `${name}=${value}`)
    .join(" and ") + (devices ? ` on ${whole(devices)} devices` : "");

/** Findings and remarks; `focus(field)` goes to a size, `fix(fix)` takes what a finding proposes. */
export function drawFindings(findings, answer, { focus, fix }) {
  const faults = answer.findings.filter((f) => !f.remark),
    remarks = answer.findings.filter((f) => f.remark);
  const one = (f) => finding(f, { focus, fix });
  put(
    findings,
    faults.length ? faults.map(one) : h("p", { class: "muted" }, "No rule finds waste in this shape."),
    remarks.length ? h("h3", {}, "Remarks on the architecture, to be chosen before training") : null,
    remarks.map(one),
  );
}

function finding(f, { focus, fix }) {
  const go = (event) => {
    event.preventDefault();
    focus(f.field);
  };
  return h(
    "div",
    { class: `finding full ${f.grade}` },
    h(
      "div",
      {},
      h("span", { class: "grade" }, f.grade),
      h("a", { href: `#field-${f.field}`, onclick: go }, f.rule),
      f.gain_fraction ? h("span", { class: "gain" }, times(1 / (1 - f.gain_fraction))) : null,
    ),
    h("p", {}, f.message),
    f.reasons.slice(1).map((r) => h("p", { class: "muted" }, `also ${r.code} ${r.rule}: ${r.message}`)),
    Object.keys(f.fix).length
      ? h("button", { class: "chip", onclick: () => fix(f.fix) }, `set ${fixWords(f.fix)}`)
      : null,
  );
}

export function drawOperators(operators, answer) {
  const rows = answer.operators.map((op) => ({ ...op, total: op.count * op.time_s })).sort((a, b) => b.total - a.total);
  const all = answer.totals.microbatch_s,
    shown = rows.slice(0, ROWS),
    rest = rows.slice(ROWS),
    most = shown[0]?.total ?? 1,
    bounds = Object.entries(BOUND).filter(([word]) => shown.some((op) => op.bound_by === word));
  const bar = (op) =>
    h("i", { style: { width: `${(100 * op.total) / most}%`, background: BOUND[op.bound_by] ?? "var(--grey)" } });
  put(
    operators,
    legend(bounds.map(([word, colour]) => [`bound by ${word}`, colour])),
    h(
      "ol",
      { class: "bars" },
      shown.map((op) =>
        h(
          "li",
          { "data-tip": explain(op), tabindex: "0" },
          h(
            "span",
            { class: "name" },
            op.name.replace(/^layer\./, ""),
            op.name.endsWith(op.pass) ? null : h("small", {}, ` ${op.pass}`),
          ),
          h("span", { class: "bar" }, bar(op)),
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
  const batch = op.batch > 1 ? `${(Math.round(10 * op.batch) / 10).toLocaleString("en")} × ` : "",
    size = `${op.k ? batch : ""}${[op.m, op.n, ...(op.k ? [op.k] : [])].map(whole).join(" × ")}`,
    waves = op.waves ? `${Number(op.waves.toPrecision(3))} waves, ` : "";
  const tiles = op.tile_m
    ? `, tiles ${op.tile_m}×${op.tile_n}, ${waves}tile efficiency ${share(op.tile_efficiency)}, ` +
      `wave efficiency ${share(op.wave_efficiency)}`
    : "";
  const time = `${whole(op.count)} times ${seconds(op.time_s)} (${interval(op.low_s, op.high_s)})`;
  return `${op.kind} ${size}, ${time}, bound by ${op.bound_by}${tiles}; ${op.source}`;
}
