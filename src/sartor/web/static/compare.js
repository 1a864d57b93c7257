// The compare view: shapes beside each other on one or several devices.

import { ask, catalog, Refused } from "./api.js";
import { deviceGroups } from "./bar.js";
import { card, h, put, table, term } from "./dom.js";
import { chance, change, count, counted, gainOf, interval, seconds, share, times, whole } from "./format.js";
import { scenarioTable } from "./scenarios.js";
import { question, state, update } from "./state.js";
import { nameIn } from "./upload.js";
import { chart } from "./vega.js";
import { worker } from "./work.js";

export function compareView({ banner, status }) {
  const chips = h("div", { class: "row wrap", role: "group", "aria-label": "Devices" });
  const shapes = h("div", {}),
    results = h("div", { class: "results" });
  const scenarios = scenarioTable(),
    progress = h("div", {}),
    work = worker(progress);
  const element = h(
    "div",
    { class: "stack" },
    card("Saved scenarios", scenarios.element),
    card("Shapes of the model above", shapes, progress),
    card("Devices", chips),
    results,
  );
  let asking = 0,
    about = "",
    example = true; // the view opens on something to compare

  function wanted() {
    const list = [{ name: "as it is", set: {} }];
    const add = (entry) => {
      if (!list.some((one) => JSON.stringify(one.set) === JSON.stringify(entry.set))) list.push(entry);
    };
    if (Object.keys(state.q.set).length) add({ name: "now", set: state.q.set });
    state.pins.forEach(add);
    return list.slice(0, 12);
  }

  const first = () => (state.q.gpu_toml ? nameIn(state.q.gpu_toml) : state.q.gpu);
  const gpus = () => [first(), ...state.gpus.filter((gpu) => gpu !== first())].slice(0, 8);

  async function refresh() {
    scenarios.refresh();
    drawDevices();
    if (example && !state.pins.length && !Object.keys(state.q.set).length) advised();
    example = false;
    const turn = ++asking,
      list = wanted(),
      now = JSON.stringify([question({ set: {} }), gpus()]);
    if (now !== about) put(progress); // what was said of another question
    about = now;
    element.classList.add("waiting");
    drawShapes(list, null);
    try {
      const { gpu, set, ...rest } = question();
      const found = await ask("/api/compare", { ...rest, gpus: gpus(), shapes: list });
      if (turn !== asking) return;
      banner("");
      drawShapes(list, found);
      put(
        results,
        found.times.map((one) => device(found, one)),
      );
      status(`${counted(found.shapes.length, "shape")} on ${counted(found.gpus.length, "device")}`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (turn === asking) banner(error.message);
    } finally {
      if (turn === asking) element.classList.remove("waiting");
    }
  }

  async function drawDevices() {
    const others = (await Promise.all(["gpus", "accelerators"].map(catalog))).map((shelf) =>
      shelf.filter(({ name }) => !gpus().includes(name)),
    );
    const more = h(
      "select",
      {
        "aria-label": "Add a device",
        id: "add-gpu",
        onchange: (event) => {
          const name = event.target.value;
          if (name)
            update((s) => {
              s.gpus = [...s.gpus, name];
            });
        },
      },
      h("option", { value: "" }, "add a device …"),
      deviceGroups(...others),
    );
    put(
      chips,
      gpus().map((name, i) =>
        i === 0
          ? h("span", { class: "chip still" }, name)
          : h(
              "button",
              {
                class: "chip",
                "aria-label": `remove ${name}`,
                onclick: () =>
                  update((s) => {
                    s.gpus = s.gpus.filter((gpu) => gpu !== name);
                  }),
              },
              name,
              " ×",
            ),
      ),
      more,
    );
  }

  function drawShapes(list, found) {
    const names = found ? Object.keys(found.shapes[0].fields) : [];
    const base = found?.shapes[0];
    const rows = list.map((entry, i) => {
      const one = found?.shapes[i];
      const pinned = state.pins.findIndex((p) => JSON.stringify(p.set) === JSON.stringify(entry.set));
      return [
        entry.name,
        ...names.map((name) =>
          h(
            "span",
            { class: one && one.fields[name] !== base.fields[name] ? "strong" : "" },
            one ? whole(one.fields[name]) : "",
          ),
        ),
        one ? `${count(one.num_params, 4)} (${change(one.num_params / base.num_params - 1, 2)})` : "",
        h(
          "span",
          { class: "row" },
          h(
            "button",
            {
              class: "quiet small",
              onclick: () =>
                update((s) => {
                  s.q.set = { ...entry.set };
                  s.view = "shape";
                }),
            },
            "open",
          ),
          pinned >= 0
            ? h(
                "button",
                {
                  class: "quiet small",
                  "aria-label": `remove ${entry.name}`,
                  onclick: () =>
                    update((s) => {
                      s.pins.splice(pinned, 1);
                    }),
                },
                "×",
              )
            : null,
        ),
      ];
    });
    const head = ["shape", ...names, "parameters", "set"].map((label, k) => ({
      label: k && k <= names.length ? term(label, label) : label,
      number: k > 0 && k <= names.length + 1,
    }));
    put(
      shapes,
      table("Shapes compared", head, rows),
      h(
        "div",
        { class: "row wrap" },
        h(
          "button",
          {
            id: "advised",
            class: "primary",
            onclick: advised,
            "data-tip": "The best same-size shapes of the search, for the devices below.",
          },
          "Add the recommended shapes",
        ),
        state.pins.length
          ? h(
              "button",
              {
                onclick: () =>
                  update((s) => {
                    s.pins = [];
                  }),
              },
              "Clear pins",
            )
          : null,
      ),
    );
  }

  async function advised() {
    const { gpu: _, phase, ...rest } = question({ set: {} });
    try {
      const found = await work.run("Searching shapes of the same size", (signal) =>
        ask("/api/advise", { ...rest, gpus: gpus(), objective: phase, top: 3 }, { signal }),
      );
      if (found === null) return;
      const take = [
        ["smallest edit", found.smallest_edit],
        ["suits all", found.minimax],
        ...found.candidates.map((c, i) => [`advised ${i + 1}`, c]),
      ].filter(([, c]) => c);
      if (!take.length) {
        put(
          progress,
          h("p", { class: "muted", id: "well-cut" }, "Well cut: no shape of the same size is surely faster."),
        );
        return;
      }
      update((s) => {
        for (const [name, c] of take) {
          const set = Object.fromEntries(Object.entries(c.changed).map(([f, [, to]]) => [f, to]));
          if (!s.pins.some((p) => JSON.stringify(p.set) === JSON.stringify(set))) s.pins.push({ name, set });
        }
      });
    } catch (error) {
      if (error instanceof Refused) banner(error.message);
      else throw error;
    }
  }

  return { element, refresh };
}

function device(found, one) {
  const names = found.shapes.map((shape) => shape.name);
  const shapeAt = (i) => ({ ...found.shapes[i], ...one.totals[i] });
  const gains = (t, i) => {
    if (!i) return ["1", ""];
    const gain = gainOf(shapeAt(0), shapeAt(i)),
      part = gain / t.speedup;
    return [times(gain), `${times(t.speedup_low * part)} to ${times(t.speedup_high * part)}`];
  };
  const rows = one.totals.map((t, i) => [
    names[i],
    seconds(t.time_s),
    interval(t.low_s, t.high_s),
    ...gains(t, i),
    share(t.mfu),
    t.source,
  ]);
  const head = [
    "shape",
    "time",
    "80% interval",
    term("equal_work", "gain at equal work"),
    "80% interval",
    "MFU",
    "source",
  ].map((label, k) => ({
    label,
    number: k > 0 && k < 6,
  }));
  return card(
    `${one.gpu}, ${one.dtype}`,
    chart(one.figure),
    table(`Times on ${one.gpu}`, head, rows),
    names.length > 1 ? beats(one, names) : null,
  );
}

function beats(one, names) {
  const numbers = names.map((label) => ({ label, number: true }));
  const head = [{ label: term("beats", "row is faster than …") }, ...numbers];
  const rows = names.map((name, i) => [
    name,
    ...names.map((_, k) => {
      const p = one.beats[i][k];
      return p === null
        ? ""
        : h(
            "span",
            {
              class: "odds",
              style: { background: `color-mix(in srgb, var(--blue) ${Math.round(60 * p)}%, transparent)` },
            },
            chance(p),
          );
    }),
  ]);
  return table(`Probability on ${one.gpu} that the row is faster than the column`, head, rows);
}
