// The page: which part of it is shown, keys, light and dark.
import { clear, el } from "./dom.js";
import { showCompare } from "./view-compare.js";
import { showRun } from "./view-run.js";
import { showRuns } from "./view-runs.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const state = document.getElementById("state");
const help = /** @type {HTMLDialogElement} */ (document.getElementById("help"));
let view = null; // {close, keys}

export const link = {
  runs: () => "#/",
  run: (id) => "#/run/" + encodeURIComponent(id),
  compare: (ids) => "#/compare/" + ids.map(encodeURIComponent).join("/"),
};

/** What views are given: where they are, and how they say whether they are live. */
const frame = {
  link,
  crumb(...parts) {
    clear(crumbs, parts.map((part) => el("span", { class: "crumb" }, part)));
    document.title = [...parts.map((p) => (typeof p === "string" ? p : p.textContent)), "Esper"].join(" – ");
  },
  tell(what) {
    const words = { live: "live", waiting: "reconnecting …", over: "", gone: "gone" };
    state.textContent = words[what] ?? what;
    state.className = "state s-" + what;
  },
};

function show() {
  const [what, ...rest] = location.hash.replace(/^#\//, "").split("/");
  const ids = rest.map(readable);

  view?.close();
  frame.tell("over");
  clear(main);
  if (what === "run" && ids.length > 0) view = showRun(main, ids.join("/"), frame);
  else if (what === "compare" && ids.length > 0) view = showCompare(main, ids, frame);
  else view = showRuns(main, frame);
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
}

function readable(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/* ---- light and dark */

const stored = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } }, set: (v) => { try { localStorage.setItem("theme", v); } catch { /* private windows keep nothing */ } } };
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");

function theme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

function paint(choice) {
  if (choice) document.documentElement.dataset.theme = choice;
  themeButton.textContent = theme() === "dark" ? "Light" : "Dark";
}

function turn() {
  const choice = theme() === "dark" ? "light" : "dark";
  stored.set(choice);
  paint(choice);
}

/* ---- keys */

function onKey(event) {
  const at = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (at instanceof HTMLInputElement && at.type !== "range" && at.type !== "checkbox") {
    if (event.key === "Escape") at.blur();
    return;
  }
  if (at instanceof HTMLSelectElement) return;
  const own = { "?": () => help.showModal(), t: turn, u: () => { location.hash = "#/"; } };
  const handle = view?.keys?.[event.key] ?? own[event.key];
  if (!handle) return;
  if ((event.key === " " || event.key === "Enter") && at instanceof Element && at.closest("button, a, summary, input")) return;
  if (handle(event) !== false) event.preventDefault();
}

document.addEventListener("keydown", onKey);
document.getElementById("keys").addEventListener("click", () => help.showModal());
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
themeButton.addEventListener("click", turn);
dark.addEventListener("change", () => paint());
paint(stored.get());
window.addEventListener("hashchange", show);
show();
