// What the plan view draws of an answer: its figures, tables, timeline and launch files.

import { ask, Refused } from "./api.js";
import { axes, box, COLOURS, figure, legend, limitLine, linear, paint, path, rem, secondsTicks } from "./charts.js";
import { card, download, h, put, s, table, term } from "./dom.js";
import { bytes, count, interval, seconds, share, whole } from "./format.js";
import { state } from "./state.js";
import { gantt } from "./timeline.js";

const GIB = 2 ** 30;
const WORKED = ["forward", "backward", "weight gradient"];
export const AXES = ["tp", "pp", "dp", "cp", "ep"];

export function tiles(best) {
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

export function timeline(p, memory, body, banner) {
  const kinds = [...new Set(p.kind)],
    colour = paint;
  const chunk = (i) => (p.chunk[i] ? `, chunk ${p.chunk[i]}` : ""),
    part = (i) => (WORKED.includes(p.kind[i]) ? ` of microbatch ${p.microbatch[i]}${chunk(i)}` : "");
  const bars = p.stage.map((stage, i) => ({
    line: stage,
    start: p.start_s[i],
    end: p.end_s[i],
    colour: colour(p.kind[i]),
    light: p.kind[i] === "forward",
    words: WORKED.includes(p.kind[i]) ? String(p.microbatch[i]) : "",
    tip: `${p.kind[i]}${part(i)}: ${interval(p.start_s[i], p.end_s[i])}, ${seconds(p.end_s[i] - p.start_s[i])}`,
  }));
  const lines = Array.from({ length: p.num_stages }, (_, i) => `stage ${i}`);
  const below = memory ? (...room) => track(memory, ...room) : null;
  const perfetto = h(
    "button",
    {
      class: "small",
      id: "get-trace",
      "data-tip": "For ui.perfetto.dev or chrome://tracing: every microbatch and transfer, and memory.",
      onclick: () => trace(perfetto, body, banner),
    },
    "Download for Perfetto",
  );
  return [
    h("p", { class: "muted" }, p.title),
    legend(kinds.map((kind) => [kind, colour(kind)])),
    gantt({ label: p.title, lines, bars, below, beside: perfetto }),
  ];
}

async function trace(button, body, banner) {
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
        { scale: x, text: secondsTicks(unit), title: `time [${word}]` },
        {
          scale: y,
          many: 3,
          unit: GIB,
          text: (v) => String(Math.round(v / GIB)),
          title: "held [GiB]",
        },
      ),
      limitLine(frame, y(m.limit_bytes), `usable ${bytes(m.limit_bytes)}`),
      m.times_s.map((times, i) =>
        s("path", { class: "track", d: steps(times, m.bytes[i]), stroke: COLOURS[i % COLOURS.length] }),
      ),
    ),
    legend(m.stages.map((stage, i) => [`stage ${stage}`, COLOURS[i % COLOURS.length]])),
  ];
}

export function top(found, compare) {
  const head = ["plan", "step", "80% interval", "MFU", "memory", "microbatch", "ZeRO", "recompute"].map((label, k) => ({
    label,
    number: k > 0 && k < 7,
  }));
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

export const words = (p) =>
  AXES.filter((a) => p[a] > 1)
    .map((a) => `${a} ${p[a]}`)
    .join(" ") || "one device";

export function counts(found) {
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

export function whyNot(found) {
  const rows = Object.entries(found.rejected).sort((a, b) => b[1] - a[1]),
    most = rows[0]?.[1] ?? 1;
  return card(
    "Why not the others",
    h(
      "p",
      { class: "muted" },
      `${whole(found.space_size)} points of the grid: ${whole(found.fitting)} fit and were priced, ` +
        "the others were rejected.",
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

export function infeasible(found) {
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

export function steps(found) {
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

export function launch(body, set) {
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
