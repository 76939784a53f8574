// Elements, and numbers as text. What comes from a run is put into the page as text and never as markup: there is no other way here.

/**
 * @param {string} tag
 * @param {Object<string, any>} [properties] attributes; `on...` are listeners; `class`, `text`, `dataset`; false and null leave one out
 * @param {...(Node|string|null|undefined|false)} children
 */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else if (name === "dataset") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity))
    if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

export function clear(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

const NONE = "–";

/** A number with so many decimals; "nan" and "inf" were measured and are shown as they are, a dash was not. */
export function fixed(value, decimals = 2) {
  if (typeof value === "string") return value;
  if (!isNumber(value)) return NONE;
  return value.toFixed(decimals);
}

export function signed(value, decimals = 2) {
  if (!isNumber(value)) return typeof value === "string" ? value : NONE;
  return (value >= 0 ? "+" : "−") + Math.abs(value).toFixed(decimals);
}

export function whole(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en-US") : NONE;
}

export function percent(value, decimals = 2) {
  return isNumber(value) ? value.toFixed(decimals) + " %" : typeof value === "string" ? value : NONE;
}

/** "8.27 T": four digits at most. */
export function scaled(value, unit = "") {
  if (!isNumber(value)) return typeof value === "string" ? value : NONE;
  const steps = ["", "k", "M", "G", "T", "P", "E"];
  let step = 0;
  let rest = Math.abs(value);
  while (rest >= 1000 && step < steps.length - 1) {
    rest /= 1000;
    step++;
  }
  const digits = rest >= 100 || (step === 0 && Number.isInteger(rest)) ? 0 : rest >= 10 ? 1 : 2;
  const space = steps[step] || unit ? " " : "";
  return (value < 0 ? "−" : "") + rest.toFixed(digits) + space + steps[step] + unit;
}

/** A number for an axis or a reading, as short as it can be. */
export function short(value) {
  if (!isNumber(value)) return typeof value === "string" ? value : NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  const all = Math.round(seconds);
  const h = Math.floor(all / 3600);
  const m = Math.floor(all / 60) % 60;
  const s = String(all % 60).padStart(2, "0");
  return h > 0 ? `${h}:${String(m).padStart(2, "0")}:${s}` : `${m}:${s}`;
}

export function moment(seconds) {
  if (!isNumber(seconds)) return NONE;
  const when = new Date(seconds * 1000);
  const two = (n) => String(n).padStart(2, "0");
  return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${two(when.getHours())}:${two(when.getMinutes())}`;
}

/** "learned 20b23721e81ccdbe policy.safetensors" in few letters. */
export function shortPolicy(policy) {
  const found = policy?.match(/^learned ([0-9a-f]{16})/);
  return found ? `learned ${found[1].slice(0, 6)}` : policy;
}

export const plural = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;

/** A table with its head; cells are texts, numbers as text, or nodes. `n` marks columns of numbers. */
export function table(columns, rows, options = {}) {
  const head = el("tr", {}, columns.map((c) => el("th", { scope: "col", class: [c.n ? "n" : "", c.kind === "extra" ? "extra" : ""].join(" ").trim() || null, title: c.title }, c.name ?? c)));
  const body = rows.map((row) =>
    el("tr", { class: row.className ?? null },
      (row.cells ?? row).map((cell, i) => el("td", { class: [columns[i].n ? "n" : "", columns[i].kind ?? ""].join(" ").trim() || null, dataset: { name: columns[i].name } }, cell ?? NONE))));
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": options.label ?? "Table" },
    el("table", { class: "cards" }, el("thead", {}, head), el("tbody", {}, body)));
}

/** A part of the page with its heading. */
export function section(title, ...children) {
  return el("section", {}, el("h2", { tabindex: -1, text: title }), children);
}

/** Where a number lies in an interval, beside 0: a bar from 0 to the value with whiskers. */
export function gauge(value, low, high, most) {
  const at = (v) => 50 + (Math.max(-most, Math.min(most, v)) / (most || 1)) * 48;
  if (!isNumber(value)) return el("span", { class: "soft", text: NONE });
  const known = isNumber(low) && isNumber(high);
  return svg("svg", { class: "gauge", viewBox: "0 0 100 14", width: 160, height: 18, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: value >= 0 ? "gain" : "loss", x: Math.min(50, at(value)), y: 3, width: Math.abs(at(value) - 50), height: 8 }),
    svg("line", { class: "axis", x1: 50, x2: 50, y1: 0, y2: 14 }),
    known ? svg("path", { class: "whisker", d: `M${at(low)} 4V10M${at(low)} 7H${at(high)}M${at(high)} 4V10` }) : null);
}
