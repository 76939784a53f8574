// Decisions with their reasons, and the settings of the run.
import { clear, el, section, table } from "./dom.js";

const MOST = 500;

export function decisions(desk) {
  const waits = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", onchange: update }));
  const forks = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", onchange: update }));
  const list = el("div", {});
  const settings = el("pre", {});
  let drawn = "";

  function update() {
    const run = desk.run;
    const key = `${run.mark} ${waits.checked} ${forks.checked}`;
    if (key === drawn) return;
    drawn = key;
    settings.textContent = run.config;
    const rows = group(run.rows.decisions.filter((d) => (waits.checked || d.op !== "wait" || d.source !== "policy") && (forks.checked || d.source !== "trial")));
    clear(list, rows.length === 0 ? el("p", { class: "soft", text: "Nothing but waiting was decided." }) : table(
      [{ name: "Epoch", n: true }, { name: "Who" }, { name: "What" }, { name: "Slot" }, { name: "Blueprint", kind: "extra" }, { name: "Done" }, { name: "Why", kind: "why" }],
      rows.slice(-MOST).map(({ row, last, n }) => ({ className: row.stands ? null : "undone", cells: [n > 1 ? `${row.epoch}–${last.epoch}` : String(row.epoch), row.source, n > 1 ? `${row.op} ×${n}` : row.op, row.slot, row.blueprint, el("span", { class: row.accepted === 0 ? "failed" : "passed", text: row.accepted === 0 ? "refused" : "done" }), row.reason] })), { label: "Decisions" }),
      rows.length > MOST ? el("p", { class: "soft", text: `The last ${MOST} of ${rows.length}; decisions.jsonl has all.` }) : null);
  }
  return {
    title: "Decisions", update,
    element: section("Decisions and why",
      el("div", { class: "tools" }, el("label", {}, waits, " waits too"), el("label", {}, forks, " forks on trial too")), list,
      el("details", {}, el("summary", { text: "Settings of the run" }), settings)),
  };
}

/** Waits for one reason share a row. */
function group(rows) {
  const all = [];
  for (const row of rows) {
    const last = all.at(-1);
    if (last && row.op === "wait" && last.row.op === "wait" && last.row.reason === row.reason && last.row.stands === row.stands && last.row.source === row.source) {
      last.n++;
      last.last = row;
    } else {
      all.push({ row, last: row, n: 1 });
    }
  }
  return all;
}
