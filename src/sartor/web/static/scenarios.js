// Questions that were saved, side by side: each with its own model, device and sizes, all of them in the link.

import { ask, Refused } from "./api.js";
import { h, put, table, term } from "./dom.js";
import { bytes, count, interval, seconds, share } from "./format.js";
import { fixWords } from "./sawtooth.js";
import { question, state, update } from "./state.js";
import { nameIn } from "./upload.js";

const MOST = 8;

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const nameOf = (q) => q.name || q.model || "config.json";
const deviceOf = (q) => (q.gpu_toml ? nameIn(q.gpu_toml) : q.gpu);

/** Save what the bar and the sizes ask now, where it is not saved already. */
function saveScenario() {
  const { q, scenarios } = state;
  if (scenarios.some((one) => same(one.q, q)) || scenarios.length >= MOST) return;
  const taken = new Set(scenarios.map((one) => one.name)),
    stem = `${nameOf(q)} on ${deviceOf(q)}`;
  let name = stem;
  for (let k = 2; taken.has(name); k++) name = `${stem} (${k})`;
  update((s) => {
    s.scenarios = [...s.scenarios, { name, q: JSON.parse(JSON.stringify(q)) }];
  });
}

/** The table of scenarios: the question on screen first. */
export function scenarioTable() {
  const element = h("div", {});
  let turn = 0;

  async function refresh() {
    const mine = ++turn,
      kept = state.scenarios.find((one) => same(one.q, state.q)),
      now = { name: kept ? `now, saved as ${kept.name}` : "now", q: state.q },
      list = [now, ...state.scenarios.filter((one) => !same(one.q, now.q))];
    const answers = await Promise.all(list.map(({ q }) => priced(q)));
    if (mine === turn) draw(list, answers);
  }

  async function priced(q) {
    try {
      return await ask("/api/estimate", question({ q, set: q.set }));
    } catch (error) {
      if (error instanceof Refused) return error;
      throw error;
    }
  }

  function draw(list, answers) {
    const head = ["scenario", "model", "device", "sizes changed", "time", "80% interval", "tokens/s per device", "MFU"];
    const more = ["memory", "USD per 1M tokens", h("span", { class: "hidden" }, "open or remove")];
    const rows = list.map(({ name, q }, i) => [
      name,
      nameOf(q),
      deviceOf(q),
      fixWords(q.set) || "none",
      ...figures(answers[i]),
      tools(name, q),
    ]);
    put(
      element,
      table(
        "Scenarios",
        [...head, ...more].map((label, k) => ({
          label: label === "MFU" ? term("mfu", label) : label,
          number: k > 3 && k < 10,
        })),
        rows,
      ),
      h(
        "div",
        { class: "row wrap" },
        h("button", { id: "save-scenario", onclick: saveScenario }, "Save what is asked now"),
        h("span", { class: "muted" }, "The link keeps all of them."),
      ),
    );
  }

  function figures(answer) {
    if (answer instanceof Refused) return [h("span", { class: "wrong" }, answer.message), "", "", "", "", ""];
    const t = answer.totals,
      cost = t.cost?.usd_per_million_tokens;
    return [
      seconds(t.time_s),
      interval(t.low_s, t.high_s),
      count(t.tokens_per_s_per_device),
      share(t.mfu),
      h(
        "span",
        { class: t.fits === false ? "wrong" : "" },
        `${bytes(t.peak_bytes)}${t.fits === false ? ": does not fit" : t.fits ? "" : ": unknown whether it fits"}`,
      ),
      cost ? Number(cost.toPrecision(3)) : "—",
    ];
  }

  function tools(name, q) {
    if (q === state.q) return "";
    const open = () =>
      update((s) => {
        Object.assign(s, { q: JSON.parse(JSON.stringify(q)), view: "shape" });
      });
    const remove = () =>
      update((s) => {
        s.scenarios = s.scenarios.filter((one) => one.name !== name);
      });
    return h(
      "span",
      { class: "row" },
      h("button", { class: "quiet small", onclick: open }, "open"),
      h("button", { class: "quiet small", "aria-label": `remove ${name}`, onclick: remove }, "×"),
    );
  }

  return { element, refresh };
}
