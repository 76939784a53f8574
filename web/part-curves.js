// Curves over epochs, with bands of phases behind them, marks above them, and other runs laid over them.
import { get } from "./api.js";
import { Chart, glyph } from "./chart.js";
import { clear, el, isNumber, scaled, section, short, svg } from "./dom.js";
import { Run } from "./model.js";

/** Epochs whose rows were lost leave a gap. */
const points = (rows, key) => rows.flatMap((row, i) => (i > 0 && row.epoch > rows[i - 1].epoch + 1 ? [[row.epoch - 0.5, null], [row.epoch, row[key]]] : [[row.epoch, row[key]]]));
const accuracy = (y) => (isNumber(y) ? y.toFixed(1) : String(y));

/** The epoch of the run at which it had spent as much: what a control is compared by. Without FLOPs, its own epoch. */
function epochAtFlops(run) {
  const known = run.epochs.filter((e) => isNumber(e.flops_train));
  return (row) => {
    if (!isNumber(row.flops_train) || known.length === 0) return row.epoch;
    const after = known.findIndex((e) => e.flops_train >= row.flops_train);
    if (after < 0) return row.flops_train <= known.at(-1).flops_train * 1.001 ? known.at(-1).epoch : Infinity;
    const b = known[after];
    const a = after > 0 ? known[after - 1] : { epoch: 0, flops_train: 0 };
    return a.epoch + ((row.flops_train - a.flops_train) / (b.flops_train - a.flops_train || 1)) * (b.epoch - a.epoch);
  };
}

export function curves(desk) {
  const seek = (x) => desk.seek(x);
  const charts = {
    accuracy: new Chart(desk.shared, { title: "Accuracy", unit: "percent", format: accuracy, height: 210, seek }),
    loss: new Chart(desk.shared, { title: "Loss", unit: "nats", seek }),
    rate: new Chart(desk.shared, { title: "Learning rate", zero: true, height: 130, seek }),
    params: new Chart(desk.shared, { title: "Parameters", format: (y) => scaled(y), zero: true, height: 130, seek }),
    flops: new Chart(desk.shared, { title: "Training FLOPs", unit: "spent", format: (y) => scaled(y), zero: true, height: 130, seek }),
    norm: new Chart(desk.shared, { title: "Gradient norm", unit: "logarithmic", log: true, height: 130, seek }),
  };
  const smoother = /** @type {HTMLInputElement} */ (el("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: 0, "aria-label": "Smooth", oninput: () => { desk.shared.weight = Number(smoother.value); desk.shared.tell("smooth"); } }));
  const whole = el("button", { type: "button", onclick: () => desk.shared.reset() }, "Show all");
  const overlay = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "Lay another run over it", onchange: lay }, el("option", { value: "", text: "no other run" })));
  let other = null;
  let isListed = false;

  async function list() {
    if (isListed) return;
    isListed = true;
    const { runs } = await get("api/runs").catch(() => ({ runs: [] }));
    for (const run of runs)
      if (run.kind === "grow" && run.id !== desk.run.id) overlay.append(el("option", { value: run.id, text: run.run }));
  }
  overlay.addEventListener("focus", list);
  overlay.addEventListener("pointerdown", list);

  async function lay() {
    const id = overlay.value;
    other = null;
    if (id) {
      const read = await get("api/run", { run: id }).catch(() => null);
      if (read && overlay.value === id) other = new Run(read);
    }
    update();
  }

  function series(key, validOnly) {
    const run = desk.run;
    const all = [];
    if (other) all.push({ name: other.name, kind: "other", points: points(other.epochs, validOnly ?? key) });
    const place = epochAtFlops(run);
    if (run.controlRows.length > 0) all.push({ name: "static", kind: "static", points: run.controlRows.map((row) => [place(row), row[validOnly ?? key]]).filter(([x]) => x !== Infinity) });
    if (validOnly && key) all.push({ name: "training", kind: "grown thin", points: points(run.epochs, key) });
    all.push({ name: validOnly ? "validation" : "grown", kind: "grown", points: points(run.epochs, validOnly ?? key) });
    return all;
  }

  function update() {
    const { phases, marks } = desk.run;
    const shown = { bands: phases, marks };
    charts.accuracy.set({ ...shown, series: series("acc_train", "acc_valid") });
    charts.loss.set({ ...shown, series: series("loss_train", "loss_valid") });
    charts.rate.set({ bands: phases, series: series("lr").filter((s) => s.kind !== "static") });
    charts.params.set({ bands: phases, series: series("params").map((s) => ({ ...s, step: true })) });
    charts.flops.set({ bands: phases, series: series("flops_train").filter((s) => s.kind !== "static") });
    charts.norm.set({ bands: phases, series: series("grad_norm") });
    clear(key, keyOf(marks), desk.run.controlRows.length > 0 ? el("li", {}, el("i", { class: "swatch static" }), "static: the same host without growth, at the same training FLOPs") : null);
  }

  const key = el("ul", { class: "key" });
  return {
    title: "Curves", update,
    element: section("Curves",
      el("div", { class: "tools" },
        el("label", {}, "Smooth ", smoother), el("label", {}, "Lay over it ", overlay), whole,
        el("span", { class: "soft hint", text: "drag to zoom, double click for all, click for that epoch" })),
      key,
      el("div", { class: "curves" }, charts.accuracy.element, charts.loss.element, charts.rate.element, charts.params.element, charts.flops.element, charts.norm.element)),
  };
}

const WORDS = { germinate: "a seed is put in", fossilize: "kept", prune: "pruned", trial: "trial", rollback: "went back", skip: "step skipped", refused: "refused", fault: "a fault on purpose", advance: "on to the next stage", set_alpha_target: "another weight" };

/** Phases and those marks that there are. */
function keyOf(marks) {
  const phases = { hold: "rate held", grow: "a seed joins", trial: "trial", fall: "rate falls" };
  const kinds = [...new Set(marks.map((m) => m.kind))];
  const box = (kind) => svg("svg", { width: 16, height: 12, "aria-hidden": "true" }, svg("rect", { class: `phase sample p-${kind}`, x: 0.5, y: 0.5, width: 15, height: 11 }));
  return [
    ...Object.entries(phases).map(([kind, text]) => el("li", {}, box(kind), text)),
    ...kinds.map((kind) => el("li", {}, svg("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, glyph(kind)), WORDS[kind] ?? kind)),
  ];
}
