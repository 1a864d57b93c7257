// A config.json of one's own: pasted, chosen or dropped. It is sent with each question and kept nowhere.

import { h } from "./dom.js";
import { update } from "./state.js";

const MOST = 900_000;

export function useConfig(text, name, { banner }) {
  if (text.length > MOST) { banner(`config.json of ${text.length} characters: must be at most ${MOST}; nearest: without its id2label tables`); return false; }
  update((s) => { Object.assign(s.q, { config: text, name, model: null, set: {} }); s.pins = []; });
  return true;
}

function nameOf(file) {
  const bare = file.name.replace(/\.json$/i, "");
  return bare === "config" ? "" : bare;
}

export function configDialog(say) {
  const area = h("textarea", { id: "config-text", rows: 14, spellcheck: "false", "aria-label": "config.json", placeholder: '{\n  "model_type": "llama",\n  "hidden_size": 4096, …' });
  const name = h("input", { type: "text", id: "config-name", "aria-label": "Name of the model", placeholder: "name (optional)" });
  const file = h("input", { type: "file", id: "config-file", accept: ".json,application/json", "aria-label": "Choose a config.json", onchange: async () => { if (file.files[0]) { area.value = await file.files[0].text(); name.value ||= nameOf(file.files[0]); } } });
  const dialog = h("dialog", { id: "config-dialog", "aria-labelledby": "config-title" },
    h("form", { method: "dialog" },
      h("h2", { id: "config-title" }, "A model's config.json"),
      h("p", { class: "muted" }, "Paste it, choose a file, or drop one anywhere on the page. It goes to your own sartor only."),
      file, area, name,
      h("div", { class: "row" },
        h("button", { type: "button", class: "primary", id: "config-use", onclick: () => { if (useConfig(area.value, name.value.trim(), say)) dialog.close(); } }, "Use it"),
        h("button", { type: "submit" }, "Cancel"))));
  document.body.append(dialog);
  return () => { dialog.showModal(); area.focus(); };
}

export function dropAnywhere(say) {
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  addEventListener("drop", async (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const file = event.dataTransfer?.files[0];
    if (!file || event.defaultPrevented && event.target.closest?.("[data-takes-files]")) return;
    if (file.size > MOST) { say.banner(`${file.name} has ${file.size} bytes: a config.json has at most ${MOST}`); return; }
    useConfig(await file.text(), nameOf(file), say);
  });
}
