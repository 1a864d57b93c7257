// Start: take the state from the build the views, keep them in step.

import { onServer, onWarnings } from "./api.js";
import { questionBar, refreshBar } from "./bar.js";
import { h, put, target } from "./dom.js";
import { shapeView } from "./shape.js";
import { canUndo, fromAddress, onChange, redo, state, undo, undoing, update, writeAddress } from "./state.js";
import { explainOnHover } from "./terms.js";
import { configDialog, deviceDialog, dropAnywhere } from "./upload.js";

const main = document.getElementById("main"),
  bannerBox = document.getElementById("banner");
const statusBox = document.getElementById("status"),
  tabs = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("[data-view]")]);
const say = { banner, status };
const makers = {
  // the other views are loaded when they are opened
  shape: async () => shapeView,
  compare: async () => (await import("./compare.js")).compareView,
  deploy: async () => (await import("./deploy.js")).deployView,
  plan: async () => (await import("./plan.js")).planView,
  design: async () => (await import("./design.js")).designView,
  diagnose: async () => (await import("./diagnose.js")).diagnoseView,
};
const views = {};
let shown = "",
  heldUntil = 0,
  dropped = null; // a run that the diagnose view takes once it is shown

let aboutLink = ""; // stays over the first answer, until something is entered

function banner(message) {
  message ||= aboutLink;
  put(
    bannerBox,
    message
      ? h("p", {}, message, " ", canUndo() ? h("button", { class: "small", onclick: undo }, `Undo ${undoing()}`) : null)
      : null,
  );
}

/** What is said at the foot; `held` ms long nothing else is. */
function status(message, held = 0) {
  if (performance.now() < heldUntil) return;
  heldUntil = performance.now() + held;
  statusBox.textContent = message;
}

async function show() {
  const name = state.view in makers ? state.view : "shape";
  for (const tab of tabs) {
    const chosen = tab.dataset.view === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  if (!views[name]) {
    const make = await makers[name]().catch(() => null);
    if (!make) {
      banner("This view could not be loaded: is `sartor page` still running? Reload the page.");
      return;
    }
    if (name !== state.view && shown) return; // another one was opened meanwhile
    views[name] ??= make(say);
  }
  if (shown !== name) {
    shown = name;
    banner("");
    put(main, views[name].element);
    document.body.dataset.view = name;
    main.setAttribute("aria-labelledby", `tab-${name}`);
    document.title = `sartor: ${name}`;
  }
  refreshBar();
  views[name].refresh(dropped);
  dropped = null;
}

onWarnings((sentences) =>
  put(
    document.getElementById("warnings"),
    sentences.map((words) => {
      const [what, ...why] = words.split(": ");
      return h("p", {}, h("b", {}, what), why.length ? `: ${why.join(": ")}` : "");
    }),
  ),
);

// what has been chosen from a menu, or left for another place, closes
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]"))
    if (!menu.contains(target(event)) || target(event).closest(".menu-items")) menu.removeAttribute("open");
});

onServer((what) => {
  if (what === "lost")
    banner("The server cannot be reached: is `sartor page` still running? This page goes on when it answers again.");
  else banner("");
  if (what === "restarted") status("The server was restarted; this page goes on with it.", 6000);
  if (what === "back") status("The server answers again.");
});

function chooseView(name) {
  if (name !== state.view)
    update(
      (s) => {
        s.view = name;
      },
      { visit: true },
    );
}

function diagnose(file) {
  dropped = file;
  if (state.view === "diagnose") show();
  else chooseView("diagnose");
}

for (const tab of tabs) {
  tab.addEventListener("click", () => chooseView(tab.dataset.view));
  tab.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const next = tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length];
    next.focus();
    chooseView(next.dataset.view);
  });
}

function themeButton() {
  const button = document.getElementById("theme"),
    root = document.documentElement;
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => {
    button.textContent = dark() ? "Light" : "Dark";
  };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("sartor-theme", root.dataset.theme);
    } catch {
      /* kept for this page only */
    }
    label();
  });
  label();
}

document.getElementById("link").addEventListener("click", async () => {
  await writeAddress();
  try {
    await navigator.clipboard.writeText(location.href);
    status("Link copied.");
  } catch {
    status("The address of this page is the link.");
  }
});

document.addEventListener("input", (event) => {
  target(event).dataset.dirty = "1";
});
for (const done of ["change", "focusout"])
  document.addEventListener(done, (event) => {
    delete target(event).dataset?.dirty;
  });

document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z") return;
  const typing = target(event).matches?.("input[type=text], textarea") && target(event).dataset.dirty;
  if (typing) return; // undo of what is being typed
  event.preventDefault();
  (event.shiftKey ? redo : undo)();
});

addEventListener("hashchange", async () => {
  if (await fromAddress()) show();
});

async function start() {
  if (!(await fromAddress())) aboutLink = "The link could not be read; this is the default page.";
  addEventListener(
    "input",
    () => {
      aboutLink = "";
    },
    { once: true },
  );
  themeButton();
  explainOnHover();
  const openConfig = configDialog(say),
    openDevice = deviceDialog();
  dropAnywhere(say, openConfig, diagnose);
  onChange(show);
  show();
  await questionBar(document.getElementById("question"), { onConfig: () => openConfig(), onDevice: openDevice });
  refreshBar();
  if (aboutLink) banner("");
}

start();
