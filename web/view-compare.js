// Several runs beside each other: what came out, curves over each other, and where their settings differ.
import { get } from "./api.js";
import { Chart, Shared } from "./chart.js";
import { clear, duration, el, isNumber, percent, scaled, section, short, shortPolicy, signed, whole } from "./dom.js";
import { Run } from "./model.js";

const AXES = {
  epoch: { name: "epoch", of: (row) => row.epoch, format: short },
  flops: { name: "training FLOPs", of: (row) => row.flops_train, format: (x) => scaled(x) },
  time: { name: "minutes", of: (row, run) => (row.time - run.run.began) / 60, format: short },
};

export function showCompare(main, ids, frame) {
  const shared = new Shared();
  const options = (title, more) => ({ title, seek: null, x: "any", ...more });
  const charts = {
    accuracy: new Chart(shared, options("Validation accuracy", { unit: "percent", height: 240, format: (y) => (isNumber(y) ? y.toFixed(1) : y) })),
    loss: new Chart(shared, options("Validation loss", { unit: "nats", height: 200 })),
    params: new Chart(shared, options("Parameters", { format: (y) => scaled(y), zero: true })),
    rate: new Chart(shared, options("Learning rate", { zero: true, height: 130 })),
    total: new Chart(shared, options("Return", { height: 200 })),
  };
  let runs = [];
  let axis = "epoch";
  let closed = false;

  frame.crumb(el("a", { href: frame.link.runs(), text: "Runs" }), `${ids.length} compared`);
  clear(main, el("p", { class: "soft", text: "Reading …" }));

  const smoother = /** @type {HTMLInputElement} */ (el("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: 0, "aria-label": "Smooth", oninput: () => { shared.weight = Number(smoother.value); shared.tell("smooth"); } }));
  const over = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "Over", onchange: () => { axis = over.value; shared.range = null; shared.cursor = null; draw(); } }, Object.entries(AXES).map(([key, a]) => el("option", { value: key, text: a.name }))));

  function draw() {
    const { of, format } = AXES[axis];
    const grown = runs.filter((run) => !run.learns);
    const learned = runs.filter((run) => run.learns);
    const line = (key) => grown.map((run) => ({ name: run.name, kind: `c${runs.indexOf(run) % 8}`, points: run.epochs.map((row) => [of(row, run), row[key]]), step: key === "params" }));
    const all = grown.flatMap((run) => run.epochs.map((row) => of(row, run))).concat(learned.flatMap((run) => run.rows.updates.map((u) => u.round))).filter(isNumber);
    shared.all = all.length > 0 ? [Math.min(...all), Math.max(...all)] : [0, 1];
    for (const chart of Object.values(charts)) chart.options.xFormat = format;
    charts.accuracy.set({ series: line("acc_valid") });
    charts.loss.set({ series: line("loss_valid") });
    charts.params.set({ series: line("params") });
    charts.rate.set({ series: line("lr") });
    charts.total.set({ series: learned.map((run) => ({ name: run.name, kind: `c${runs.indexOf(run) % 8}`, points: run.rows.updates.map((u) => [u.round, u.return_mean]) })) });
    for (const key of ["accuracy", "loss", "params", "rate"]) charts[key].element.hidden = grown.length === 0;
    charts.total.element.hidden = learned.length === 0;
  }

  function results() {
    const last = (run) => run.epochs.at(-1);
    const rows = [
      ["Task", (r) => r.run.task], ["Policy", (r) => shortPolicy(r.run.policy)], ["Random seed", (r) => r.run.rng_seed],
      ["Test accuracy", (r) => r.run.acc_test, percent, 1], ["Validation accuracy", (r) => last(r)?.acc_valid, percent, 1], ["Validation loss", (r) => last(r)?.loss_valid, (v) => (isNumber(v) ? v.toFixed(4) : v ?? "–"), -1],
      ["Over its static control", (r) => (isNumber(r.run.acc_test) && isNumber(r.control?.acc_test) ? r.run.acc_test - r.control.acc_test : null), signed, 1],
      ["Parameters", (r) => r.run.params ?? last(r)?.params, whole, -1], ["FLOPs a sample", (r) => r.run.flops, scaled, -1], ["Training FLOPs", (r) => r.run.flops_train ?? last(r)?.flops_train, scaled, -1],
      ["Epochs", (r) => r.lastEpoch, whole], ["Time", (r) => r.run.seconds, duration, -1],
      ["Seeds kept", (r) => r.seeds?.filter((s) => s.stage === "fossilized").map((s) => `${s.blueprint} in ${s.slot}`).join(", ") || "none"],
      ["Trials", (r) => r.trials?.length ?? 0, whole], ["Rollbacks", (r) => r.rows.rollbacks.length, whole, -1],
    ];
    return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Results" }, el("table", { class: "versus" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }), runs.map((run, i) => el("th", { scope: "col", class: "n" }, el("i", { class: `swatch c${i % 8}` }), el("a", { href: frame.link.run(run.id), text: run.name }))))),
      el("tbody", {}, rows.map(([name, of, format = (v) => v ?? "–", better = 0]) => {
        const values = runs.map(of);
        const known = values.filter(isNumber);
        const best = better === 0 || known.length < 2 || Math.min(...known) === Math.max(...known) ? null : better > 0 ? Math.max(...known) : Math.min(...known);
        return el("tr", {}, el("th", { scope: "row", text: name }), values.map((value) => el("td", { class: "n" + (best !== null && value === best ? " best" : "") }, String(format(value)), best !== null && value === best ? el("span", { class: "hidden", text: " (best)" }) : null)));
      }))));
  }

  function differences() {
    const keys = [...new Set(runs.flatMap((run) => [...run.settings.keys()]))].filter((key) => new Set(runs.map((run) => run.settings.get(key))).size > 1);
    if (keys.length === 0) return el("p", { class: "soft", text: "Their settings are the same." });
    return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Settings that differ" }, el("table", { class: "versus" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "Setting" }), runs.map((run, i) => el("th", { scope: "col", class: "n" }, el("i", { class: `swatch c${i % 8}` }), run.name)))),
      el("tbody", {}, keys.map((key) => el("tr", {}, el("th", { scope: "row", text: key }), runs.map((run) => el("td", { class: "n", text: run.settings.get(key) ?? "–" })))))));
  }

  async function load() {
    const read = await Promise.all(ids.map((id) => get("api/run", { run: id }).then((whole) => new Run(whole), () => null)));
    if (closed) return;
    runs = read.filter(Boolean);
    if (runs.length === 0) {
      clear(main, el("p", { class: "note", text: "None of these runs is there." }));
      return;
    }
    clear(main, el("div", { class: "bar" }, el("h1", { text: `${runs.length} runs compared` })),
      runs.length < ids.length ? el("p", { class: "note", text: `${ids.length - runs.length} of them is not there any more.` }) : null,
      section("What came out", results()),
      section("Curves", el("div", { class: "tools" }, el("label", {}, "Over ", over), el("label", {}, "Smooth ", smoother), el("button", { type: "button", onclick: () => shared.reset() }, "Show all")),
        el("div", { class: "curves" }, Object.values(charts).map((c) => c.element))),
      section("Settings that differ", differences()));
    draw();
    main.dataset.ready = "yes";
  }
  load();

  return {
    close() {
      closed = true;
    },
    keys: { "+": () => shared.scale(0.5), "=": () => shared.scale(0.5), "-": () => shared.scale(2), 0: () => shared.reset() },
  };
}
