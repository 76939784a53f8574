// The life of every seed: its stages over epochs, its weight, the gates it met, and what it is worth.
import { clear, el, fixed, isNumber, section, signed, svg, table, whole } from "./dom.js";

const ROW = 34;

export function seeds(desk) {
  const lanes = el("div", { class: "lanes" });
  const list = el("div", {});
  const none = el("p", { class: "soft" });
  let cursor = null;
  let at = () => 0;
  let width = 0;

  new ResizeObserver(() => {
    if (Math.round(lanes.clientWidth) !== width && desk.run) draw();
  }).observe(lanes);
  desk.shared.addEventListener("range", draw);
  desk.shared.addEventListener("cursor", drawCursor);

  function draw() {
    const run = desk.run;
    if (!run) return;
    width = Math.round(lanes.clientWidth);
    const left = Math.min(150, Math.max(96, width * 0.22));
    const [from, to] = desk.shared.shown;
    at = (epoch) => left + 8 + ((epoch - from) / (to - from || 1)) * (width - left - 20);
    const height = run.seeds.length * ROW + 6;
    if (width === 0) return;
    if (run.seeds.length === 0) return clear(lanes);
    cursor = svg("line", { class: "cursor", y1: 0, y2: height });
    clear(lanes, svg("svg", { class: "timeline", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Stages of ${run.seeds.length} seeds over epochs; the table below has them as text` },
      svg("defs", {}, svg("clipPath", { id: "lane-clip" }, svg("rect", { x: left, y: 0, width: Math.max(0, width - left), height }))),
      run.seeds.map((seed, i) => lane(seed, i, left)), cursor));
    drawCursor();
  }

  function lane(seed, i, left) {
    const top = i * ROW + 4;
    const bottom = top + ROW - 10;
    const group = svg("g", { "clip-path": "url(#lane-clip)" });
    for (const span of seed.spans)
      group.append(svg("rect", { class: `stage s-${span.stage} back`, x: at(span.from), y: top, width: Math.max(2, at(span.to) - at(span.from)), height: bottom - top },
        svg("title", { text: `${seed.blueprint} in ${seed.slot}: ${span.stage}, epochs ${span.from} to ${span.to}` })));
    for (const span of seed.spans) group.append(weight(seed, span, top, bottom));
    for (const gate of seed.gates) {
      const good = gate.passed === 1;
      group.append(svg("g", { class: "gate", transform: `translate(${at(gate.epoch)} ${bottom + 3})` },
        svg("title", { text: `epoch ${gate.epoch}: gate ${gate.gate} to ${gate.to_stage}: ${good ? "passed" : "not passed"}. ${gate.message ?? ""}` }),
        svg("path", { class: good ? "passed" : "failed", d: good ? "M-4 0L-1 3L4 -4" : "M-3 -3L3 3M3 -3L-3 3" })));
    }
    if (seed.stage === "pruned" && seed.end !== null) group.append(svg("path", { class: "ended", d: `M${at(seed.end) - 5} ${top + 4}l10 ${bottom - top - 8}m0 ${8 - bottom + top}l-10 ${bottom - top - 8}` }));
    return svg("g", {},
      svg("text", { class: "lane-name", x: 0, y: top + 11, text: seed.slot }),
      svg("text", { class: "lane-kind", x: 0, y: top + 24, text: seed.blueprint }), group);
  }

  /** Its weight alpha as height: a fossilised seed has all of its own. */
  function weight(seed, span, top, bottom) {
    const inside = seed.alphas.filter((e) => e.epoch >= span.from && e.epoch <= span.to && e.alpha !== null);
    const full = span.stage === "fossilized" && inside.length === 0;
    const y = (alpha) => bottom - Math.max(0, Math.min(1, alpha)) * (bottom - top);
    if (inside.length === 0 && !full) return null;
    const line = full ? [[span.from, 1], [span.to, 1]] : inside.map((e) => [e.epoch, e.alpha]);
    if (span.stage === "fossilized") line.push([span.to, line.at(-1)[1]]);
    return svg("path", { class: `stage s-${span.stage}`, d: `M${at(line[0][0])} ${bottom}` + line.map(([x, a]) => `L${at(x)} ${y(a)}`).join("") + `L${at(line.at(-1)[0])} ${bottom}Z` },
      svg("title", { text: `${seed.blueprint} in ${seed.slot}: ${span.stage}, weight ${fixed(line.at(-1)[1], 2)}` }));
  }

  function drawCursor() {
    const x = desk.shared.cursor;
    if (!cursor) return;
    cursor.setAttribute("visibility", x === null || x < desk.shared.shown[0] || x > desk.shared.shown[1] ? "hidden" : "visible");
    cursor.setAttribute("x1", at(x));
    cursor.setAttribute("x2", at(x));
  }

  function update() {
    const run = desk.run;
    none.textContent = run.seeds.length === 0 ? "No seed has come, or none that stands." : "";
    draw();
    clear(list, run.seeds.length === 0 ? null : table(
      [{ name: "Seed", n: true }, { name: "Slot" }, { name: "Blueprint" }, { name: "Parameters", n: true }, { name: "Born", n: true }, { name: "End" }, { name: "Gain", n: true, title: "validation loss that its fork won over the one that got nothing, nats" }, { name: "Dependence", n: true, title: "accuracy that is lost when it is taken away, points" }, { name: "Gates", kind: "evidence" }, { name: "Why", kind: "why" }],
      run.seeds.map((seed) => [String(seed.seed), seed.slot, seed.blueprint, whole(seed.params), String(seed.born),
        el("span", { class: `chip s-${seed.stage}`, text: seed.end !== null ? `${seed.stage} ${seed.end}` : seed.stage }),
        seed.fork ? [signed(seed.fork.gain, 4), el("span", { class: "soft", text: ` ±${fixed(seed.fork.reach, 4)}` })] : null,
        seed.worth ? [signed(seed.worth.value, 1), el("span", { class: "soft", text: ` [${fixed(seed.worth.lower, 1)}, ${fixed(seed.worth.upper, 1)}]` })] : null,
        gates(run, seed), seed.reason]), { label: "Seeds" }));
  }

  return {
    title: "Seeds", update,
    element: section("Seeds and their gates", none,
      el("ul", { class: "key" }, ["germinated", "training", "blending", "holding", "fossilized"].map((stage) => el("li", {}, el("i", { class: `swatch fill s-${stage}` }), stage)),
        el("li", {}, el("span", { class: "passed", text: "✓" }), "gate passed"), el("li", {}, el("span", { class: "failed", text: "✕" }), "gate not passed"), el("li", { class: "soft", text: "height: its weight alpha" })),
      lanes, list),
  };
}

/** "epochs in this stage: 3 measured, 4 asked for"; "has it germinated? yes". */
function checkWords(run, check) {
  const about = run.checks[check.name] ?? check.name;
  if (about.endsWith("?")) return `${about} ${check.passed === 1 ? "yes" : "no"}`;
  const short = (value) => (isNumber(value) ? String(Number(value.toFixed(3))) : String(value));
  return `${about}: ${check.value === null ? "not" : short(check.value)} measured${check.threshold === null ? "" : `, ${short(check.threshold)} asked for`}`;
}

/** Gates that it met, each with its checks behind a click; many refusals of one gate share a line. */
function gates(run, seed) {
  const lines = [];
  for (const gate of seed.gates) {
    const last = lines.at(-1);
    if (last && last.gate.gate === gate.gate && last.gate.passed === gate.passed && last.gate.passed === 0) {
      last.n++;
      last.to = gate;
    } else {
      lines.push({ gate, to: gate, n: 1 });
    }
  }
  if (lines.length === 0) return null;
  return el("details", {}, el("summary", { text: lines.map((l) => `${l.gate.gate}${l.gate.passed === 1 ? "✓" : "✕"}`).join(" ") }),
    el("ul", { class: "checks" }, lines.map((line) => el("li", {},
      el("b", { class: line.gate.passed === 1 ? "passed" : "failed", text: `${line.gate.gate} ${line.gate.passed === 1 ? "passed" : "not passed"}` }),
      ` epoch ${line.gate.epoch}${line.n > 1 ? ` to ${line.to.epoch}, ${line.n} times` : ""}: ${line.to.message ?? ""}`,
      el("ul", {}, run.rows.gate_checks.filter((c) => c.gate === line.to.seq).map((c) => el("li", { class: c.passed === 1 ? null : "failed" }, `${c.passed === 1 ? "✓" : "✕"} ${checkWords(run, c)}`)))))));
}
