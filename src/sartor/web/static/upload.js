// Files of one's own, pasted, chosen or dropped: a model, a device, a cluster, a calibration. They are sent with each
// question and kept nowhere.

import { ask, Refused } from "./api.js";
import { h, target } from "./dom.js";
import { state, update } from "./state.js";

const MOST = 900_000;
const TRACE = /"(schemaVersion|traceEvents)"/; // what a profiler's .json begins with

function useConfig(text, name, { banner }) {
  if (text.length > MOST) {
    banner(`config.json of ${text.length} characters: must be at most ${MOST}; nearest: without its id2label tables`);
    return false;
  }
  update((s) => {
    Object.assign(s.q, { config: text, name, model: null, set: {} });
    s.pins = [];
  });
  return true;
}

/** A dropped TOML is what the view is about: a cluster where one plans, else a device. */
function useToml(text) {
  update((s) => {
    if (s.view === "plan") s.plan.cluster_toml = text;
    else s.q.gpu_toml = text;
  });
}

function nameOf(file) {
  const bare = file.name.replace(/\.json$/i, "");
  return bare === "config" ? "" : bare;
}

/** A dialog that takes files as text. `parts`: {id, label, accept, placeholder, rows}; `check(values)` asks the server
 * and throws its refusal, which is said here and at its line; `use(values)` takes them. */
function textDialog({ id, title, about, parts, check, use, more = [] }) {
  const areas = {},
    said = h("p", { class: "wrong", role: "alert" });
  const chooser = (one, area) => {
    const file = h("input", {
      type: "file",
      id: `${one.id}-file`,
      accept: one.accept,
      "aria-label": `Choose a file: ${one.label}`,
      onchange: async () => {
        if (!file.files[0]) return;
        area.value = await file.files[0].text();
        one.chosen?.(file.files[0]);
      },
    });
    return file;
  };
  const part = (one) => {
    const { rows, label, placeholder } = one;
    const area = h("textarea", { id: one.id, rows, spellcheck: "false", "aria-label": label, placeholder });
    areas[one.id] = area;
    const head = h("div", { class: "row wrap" }, h("label", { for: one.id }, label), chooser(one, area));
    return h("div", { class: "part" }, head, area);
  };
  const button = h(
    "button",
    { type: "button", class: "primary", id: id.replace("dialog", "use"), onclick: accept },
    "Use it",
  );
  const dialog = h(
    "dialog",
    { id, "aria-labelledby": `${id}-title` },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: `${id}-title` }, title),
      h("p", { class: "muted" }, about),
      parts.map(part),
      more,
      said,
      h("div", { class: "row" }, button, h("button", { type: "submit" }, "Cancel")),
    ),
  );
  document.body.append(dialog);

  async function accept() {
    const values = Object.fromEntries(Object.entries(areas).map(([key, area]) => [key, area.value]));
    button.disabled = true;
    say("");
    try {
      const length = Object.values(values).reduce((all, text) => all + text.length, 0);
      if (length > MOST) throw new Refused({ message: `${length} characters: must be at most ${MOST}` }, 0);
      await check(values);
      use(values);
      dialog.close();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      say(error.message, error.field);
    } finally {
      button.disabled = false;
    }
  }

  /** The refusal, and its line selected in the text that has it. */
  function say(message, field = "") {
    said.textContent = message;
    for (const area of Object.values(areas)) area.setAttribute("aria-invalid", "false");
    if (!message) return;
    const wrong = areas[parts.find(({ of }) => of === field)?.id ?? parts[0].id],
      lines = wrong.value.split("\n"),
      word = field.split(".").at(-1),
      numbered = Number(/\bline (\d+)/.exec(message)?.[1] ?? 0) - 1,
      at = numbered >= 0 ? numbered : lines.findIndex((one) => word && new RegExp(`^\\W*${word}\\b`).test(one));
    wrong.setAttribute("aria-invalid", "true");
    wrong.focus();
    if (at < 0 || at >= lines.length) return;
    const start = lines.slice(0, at).reduce((all, one) => all + one.length + 1, 0);
    wrong.setSelectionRange(start, start + lines[at].length);
    wrong.scrollTop = Math.max(0, at - 3) * (wrong.scrollHeight / lines.length);
  }

  function open(values = {}) {
    for (const [key, text] of Object.entries(values)) areas[key].value = text ?? "";
    say("");
    dialog.showModal();
    const first = areas[parts[0].id];
    first.focus();
    first.setSelectionRange(0, 0);
    first.scrollTop = 0;
  }

  return { open, say };
}

export function configDialog(say) {
  const name = h("input", {
    type: "text",
    id: "config-name",
    "aria-label": "Name of the model",
    placeholder: "name (optional)",
  });
  const config = {
    id: "config-text",
    rows: 14,
    label: "config.json",
    accept: ".json,application/json",
    placeholder: '{\n  "model_type": "llama",\n  "hidden_size": 4096, …',
    chosen: (file) => {
      name.value ||= nameOf(file);
    },
  };
  const made = textDialog({
    id: "config-dialog",
    title: "A model's config.json",
    parts: [config],
    more: [name],
    about: "Paste it, choose a file, or drop one anywhere on the page. It is sent only to your own sartor server.",
    check: (text) => ask("/api/shape", { config: text["config-text"], name: name.value.trim() || null }),
    use: (text) => useConfig(text["config-text"], name.value.trim(), say),
  });
  return (text = null, called = "", refusal = null) => {
    made.open(text === null ? {} : { "config-text": text });
    if (text === null) return;
    name.value = called;
    made.say(refusal.message, refusal.field);
  };
}

const CALIBRATION = {
  label: "Calibration (optional)",
  accept: ".toml",
  rows: 5,
  placeholder: "A file written by `sartor calibrate` from your measurements.",
};

/** A datasheet and a calibration of one's own; the datasheet of `gpu` is what one starts from. */
export function deviceDialog() {
  let given = "";
  const taken = (text) => {
    const sheet = text["device-text"],
      calibration = text["calibration-text"];
    return {
      gpu_toml: sheet.trim() && sheet.trim() !== given.trim() ? sheet : null,
      calibration: calibration.trim() ? calibration : null,
    };
  };
  const made = textDialog({
    id: "device-dialog",
    title: "Your own device",
    about: "Change the datasheet, or choose a file. With a calibration only, the device chosen in the menu stays.",
    parts: [
      {
        id: "device-text",
        label: "Datasheet (TOML)",
        accept: ".toml",
        rows: 14,
        placeholder: 'name = "mine"\nvendor = "NVIDIA"\ngeneration = "hopper"\nnum_sms = 132 …',
      },
      { id: "calibration-text", of: "calibration", ...CALIBRATION },
    ],
    check: (text) => {
      const { gpu_toml, calibration } = taken(text),
        device = gpu_toml ? { gpu_toml } : { gpu: state.q.gpu };
      return ask("/api/gemm", { m: 1024, n: 1024, k: 1024, ...device, ...(calibration ? { calibration } : {}) });
    },
    use: (text) =>
      update((s) => {
        Object.assign(s.q, taken(text));
      }),
  });
  return async () => {
    given = state.q.gpu_toml
      ? ""
      : (await sheetOf("gpus", state.q.gpu)) || (await sheetOf("accelerators", state.q.gpu));
    made.open({ "device-text": state.q.gpu_toml ?? given, "calibration-text": state.q.calibration });
  };
}

/** A cluster of one's own; the file of the one chosen is what one starts from. */
export function clusterDialog() {
  let given = "";
  const made = textDialog({
    id: "cluster-dialog",
    title: "Your own cluster",
    about: "Change the file of the cluster chosen in the menu, or choose your own.",
    parts: [
      {
        id: "cluster-text",
        label: "Cluster (TOML)",
        accept: ".toml",
        rows: 18,
        placeholder: 'name = "mine"\ngpu = "h100_sxm"\ndevices_per_node = 8\n\n[[tiers]] …',
      },
    ],
    check: async (text) => {
      const cluster_toml = text["cluster-text"]; // the smallest plan reads the whole file
      if (cluster_toml.trim())
        await ask("/api/plan", { model: "GPT-2", cluster_toml, num_devices: 1, global_batch_size: 1 });
    },
    use: (text) =>
      update((s) => {
        const file = text["cluster-text"];
        s.plan.cluster_toml = file.trim() && file.trim() !== given.trim() ? file : null;
      }),
  });
  return async () => {
    given = state.plan.cluster_toml ? "" : await sheetOf("clusters", state.plan.cluster);
    made.open({ "cluster-text": state.plan.cluster_toml ?? given });
  };
}

async function sheetOf(what, name) {
  try {
    return await ask(`/api/catalog/${what}/${encodeURIComponent(name)}/toml`, undefined, { as: "text" });
  } catch {
    return "";
  }
}

function tooLong({ banner }, ...texts) {
  const length = texts.reduce((all, text) => all + text.length, 0);
  if (length > MOST) banner(`a file of ${length} characters: must be at most ${MOST}`);
  return length > MOST;
}

/** What a TOML file calls the thing it describes. */
export const nameIn = (toml) => /^\s*name\s*=\s*"([^"]*)"/m.exec(toml ?? "")?.[1] || "own";

/** A dropped file is what its name and first bytes say: a device or cluster, a run to diagnose, else a config.json,
 * which is read once the server can: until then the answer before stays, and the dialog says why not. */
export function dropAnywhere(say, openConfig, diagnose) {
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  addEventListener("drop", async (event) => {
    document.body.classList.remove("dropping");
    if (target(event).type === "file") return; // its own control takes it
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (!file) return;
    if (/\.toml$/i.test(file.name)) {
      if (!tooLong(say, " ".repeat(Math.min(file.size, MOST + 1)))) useToml(await file.text());
      return;
    }
    if (!/\.json$/i.test(file.name) || TRACE.test(await file.slice(0, 65_536).text())) {
      diagnose(file);
      return;
    }
    if (file.size > MOST) {
      say.banner(`${file.name} has ${file.size} bytes: a config.json has at most ${MOST}`);
      return;
    }
    const text = await file.text(),
      name = nameOf(file);
    try {
      await ask("/api/shape", { config: text, name: name || null });
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      openConfig(text, name, error);
      return;
    }
    useConfig(text, name, say);
  });
}
