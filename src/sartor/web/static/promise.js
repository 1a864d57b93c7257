// What the page opens on: how much faster a shape of the same size is, what to change, and a button that does it.

import { ask, Refused } from "./api.js";
import { h, put } from "./dom.js";
import { chance, change, gainOf, seconds, times, whole } from "./format.js";
import { devices, question, START, state, undo } from "./state.js";
import { worker } from "./work.js";

const PAUSE_MS = 400; // a person who walks through a menu asks once
const SAME_SIZE = 0.01; // largest change of the parameters for a shape to be called of the same size
const SAME_SPEED = 0.005; // what rounds to 1.00
const MEASURED =
  "On our own H200 a shape proposed for this model (20 heads of 128, feed-forward width 10,112, vocabulary 50,432) " +
  "was predicted 1.19× and measured 1.18× as fast.";

/** `apply(changed)` takes a shape. */
export function promise({ apply }) {
  const head = h("p", { class: "promise-head", id: "promise", role: "status" }),
    under = h("p", { class: "muted promise-under", id: "promise-under" }),
    box = h("div", {}),
    shown = h("div", { id: "advice" }),
    work = worker(box);
  const element = h("div", { class: "promise" }, head, under, box, shown);
  let key = "",
    found = null,
    answer = null,
    timer = 0;

  /** The question on screen: asked where it is another one than before. The changes made by hand are no part of it. */
  function about(now) {
    const asked = JSON.stringify(question({ set: {} }));
    answer = now;
    if (asked !== key) {
      key = asked;
      found = null;
      put(shown);
      work.cancel();
      clearTimeout(timer);
      timer = setTimeout(search, PAUSE_MS);
    }
    draw();
  }

  /** The answer has moved under the same question. */
  function follow(now) {
    answer = now;
    draw();
  }

  async function search() {
    const mine = key,
      { gpu: _, phase, ...rest } = question({ set: {} });
    try {
      const answered = await work.run("Searching shapes of the same size", (signal) =>
        ask("/api/advise", { ...rest, ...devices(), objective: phase }, { signal }),
      );
      if (mine !== key) return;
      if (answered === null) {
        again("Search cancelled.");
        return;
      }
      found = answered;
      draw();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (mine === key) again(error.message);
    }
  }

  function again(words) {
    put(
      shown,
      h("p", { class: "muted" }, words, " ", h("button", { class: "small", onclick: search }, "Search again")),
    );
  }

  function draw() {
    const changed = Object.keys(state.q.set).length > 0;
    if (changed && answer?.baseline) moved(answer);
    else if (!found) {
      put(head, h("strong", {}, "…"), " Is another shape of the same size faster?");
      put(under);
    } else promised();
    if (!found) return;
    const [best] = found.candidates,
      one = found.candidates.find((c) => c.num_fields === 1) ?? single();
    const within = one && !applied(one) && holds(one); // of what has been applied
    const alone = one && one !== best && !within ? offer("Or one field only", "apply-one", one) : null;
    if (best)
      put(shown, offer(changed ? "The best of the same size" : "Change", "apply-best", best), alone, measured());
    else put(shown, found.unsure ? offer("Perhaps faster", "apply-best", found.unsure) : null);
  }

  /** What the best shape of the same size would give. */
  function promised() {
    const [best] = found.candidates;
    put(
      head,
      best ? [big(best.efficiency_gain), ` faster at the same size${trained()}`] : h("strong", {}, "Well cut."),
    );
    put(
      under,
      best
        ? fromTo(answer.totals.time_s, best.time_s, best.params_change)
        : `Of ${whole(found.evaluated - 1)} others of the same size none is surely faster${trained()}.`,
    );
  }

  /** What the changes on screen give. */
  function moved({ totals, model, baseline }) {
    const size = model.num_params / baseline.num_params - 1,
      gain = gainOf(baseline, { ...model, ...totals }),
      same = Math.abs(gain - 1) < SAME_SPEED;
    const words =
      Math.abs(size) > SAME_SIZE
        ? "per parameter"
        : `${same ? "as fast as" : gain > 1 ? "faster than" : "as fast as"} the model's own sizes`;
    put(head, big(same ? 1 : gain), ` ${words}${trained()}`);
    put(under, fromTo(baseline.time_s, totals.time_s, size));
  }

  const fromTo = (before, after, size) =>
    `${seconds(before)} → ${seconds(after)}${answer.workload.phase === "train" ? " a step" : ""}, ${parameters(size)}`;
  const trained = () => (answer.says.trainer ? `, trained with ${answer.says.trainer}` : "");
  const parameters = (size) => (Math.abs(size) < 5e-4 ? "as many parameters" : `${change(size)} parameters`);
  const big = (gain) => h("strong", { "data-term": "equal_work", tabindex: "0" }, times(gain));

  /** Our own measurement, beside the question it belongs to. */
  function measured() {
    const { model, phase, framework } = state.q;
    return model === START.q.model && phase === "train" && framework === START.q.framework
      ? h("p", { class: "muted measured" }, MEASURED)
      : null;
  }

  /** One field changed alone, whose gain may lie within the error of the prediction. */
  function single() {
    const [first] = [...found.single_edits].sort((a, b) => b.efficiency_gain - a.efficiency_gain);
    return first?.efficiency_gain > 1 + SAME_SPEED ? first : null;
  }

  const holds = ({ changed }) => Object.entries(changed).every(([field, [, to]]) => state.q.set[field] === to);
  const applied = (one) => holds(one) && Object.keys(one.changed).length === Object.keys(state.q.set).length;

  function offer(title, id, one) {
    const edits = Object.entries(one.changed),
      done = applied(one);
    const sure = [
      times(one.efficiency_gain),
      one.efficiency_low ? `(80%: ${times(one.efficiency_low)} to ${times(one.efficiency_high)})` : "",
      one.confidence === undefined ? "uncertain" : `${chance(one.confidence)} sure`,
      parameters(one.params_change),
    ];
    return h(
      "div",
      { class: "offer" },
      h("h2", {}, title),
      h(
        "ul",
        { class: "edits" },
        edits.map(([field, [from, to]]) => h("li", {}, `${field} `, h("b", {}, `${whole(from)} → ${whole(to)}`))),
      ),
      done
        ? h("button", { id: `undo-${id}`, onclick: undo }, "Undo")
        : h(
            "button",
            { id, class: id === "apply-best" ? "primary" : null, onclick: () => apply(one.changed) },
            "Apply",
          ),
      done ? h("span", { class: "chip still", id: `${id}-done` }, "Applied") : null,
      h("small", {}, sure.filter(Boolean).join(", ").replace(", (", " (")),
    );
  }

  return { element, about, follow };
}
