// Health: a map of tensors over epochs, and where the run went back.
import { clear, el, fixed, isNumber, plural, section, svg, table } from "./dom.js";

const ROW = 18;

export function health(desk) {
  const map = el("div", { class: "lanes" });
  const words = el("p", { class: "soft" });
  const list = el("div", {});
  let width = 0;
  let cursor = null;
  let at = () => 0;

  new ResizeObserver(() => {
    if (Math.round(map.clientWidth) !== width && desk.run) draw();
  }).observe(map);
  desk.shared.addEventListener("range", draw);
  desk.shared.addEventListener("cursor", drawCursor);

  function rows() {
    const run = desk.run;
    const norms = run.epochs.filter((e) => isNumber(e.grad_norm)).map((e) => e.grad_norm).sort((a, b) => a - b);
    const usual = norms[Math.floor(norms.length / 2)] || 1;
    const all = [{ name: "all gradients", cells: run.epochs.map((e) => ({ epoch: e.epoch, level: typeof e.grad_norm === "string" ? 3 : isNumber(e.grad_norm) ? (e.grad_norm > 30 * usual ? 2 : e.grad_norm > 8 * usual ? 1 : 0) : null, text: `gradient norm ${fixed(e.grad_norm, 3)}` })) },
      { name: "loss", cells: run.epochs.map((e) => ({ epoch: e.epoch, level: typeof e.loss_valid === "string" || typeof e.loss_train === "string" ? 3 : 0, text: `loss ${fixed(e.loss_train, 4)}, validation ${fixed(e.loss_valid, 4)}` })) }];
    for (const seed of run.seeds)
      all.push({ name: `${seed.slot} ${seed.blueprint}`, cells: seed.alphas.filter((e) => isNumber(e.grad_health) || typeof e.grad_norm === "string").map((e) => ({ epoch: e.epoch, level: typeof e.grad_norm === "string" ? 3 : e.grad_health > 0.8 ? 0 : e.grad_health > 0.3 ? 1 : 2, text: `gradient health ${fixed(e.grad_health, 2)}, norm ${fixed(e.grad_norm, 4)}` })) });
    const hit = new Map();
    for (const h of run.rows.health) {
      if (!(h.n_tensors > 0) || !h.tensor) continue;
      if (!hit.has(h.tensor)) hit.set(h.tensor, []);
      hit.get(h.tensor).push({ epoch: h.epoch, level: 3, text: `step ${h.step}: ${h.problem} in ${h.n_elements} elements of ${h.role}, first at ${h.first_index}; ${h.action}` });
    }
    for (const [tensor, cells] of hit) all.push({ name: tensor, cells, isTensor: true });
    return all;
  }

  function draw() {
    const run = desk.run;
    if (!run) return;
    width = Math.round(map.clientWidth);
    if (width === 0) return;
    const all = rows();
    const left = Math.min(220, Math.max(110, width * 0.3));
    const [from, to] = desk.shared.shown;
    const room = (width - left - 8) / (to - from + 1);
    const height = all.length * ROW + 4;
    at = (epoch) => left + (epoch - from) * room;
    cursor = svg("rect", { class: "cursor-cell", y: 0, height, width: Math.max(2, room) });
    clear(map, svg("svg", { class: "health", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Health of gradients and tensors over epochs" },
      all.map((row, i) => svg("g", {},
        svg("text", { class: "lane-name", x: 0, y: i * ROW + 14, text: shorten(row.name, Math.floor(left / 7)) }, svg("title", { text: row.name })),
        row.isTensor ? svg("line", { class: "grid", x1: left, x2: width - 8, y1: i * ROW + 10, y2: i * ROW + 10 }) : null,
        merge(row.cells.filter((c) => c.level !== null && c.epoch >= from && c.epoch <= to), room).map((cell) =>
          svg("g", {}, svg("rect", { class: `level l${cell.level}`, x: at(cell.epoch), y: i * ROW + 3, width: Math.max(2, room * cell.n - (room > 4 ? 1 : 0)), height: ROW - 4 }, svg("title", { text: cell.n > 1 ? `epochs ${cell.epoch} to ${cell.epoch + cell.n - 1}: well` : `epoch ${cell.epoch}: ${cell.text}` })),
            cell.level === 3 && room > 8 ? svg("text", { class: "cross", x: at(cell.epoch) + room / 2, y: i * ROW + 14, "text-anchor": "middle", text: "✕" }) : null)))), cursor));
    drawCursor();
  }

  function drawCursor() {
    const x = desk.shared.cursor;
    if (!cursor) return;
    const hidden = x === null || x < desk.shared.shown[0] || x > desk.shared.shown[1];
    cursor.setAttribute("visibility", hidden ? "hidden" : "visible");
    if (!hidden) cursor.setAttribute("x", at(x));
  }

  function update() {
    const run = desk.run;
    const bad = run.rows.health.filter((h) => h.n_tensors > 0).length;
    words.textContent = run.rows.rollbacks.length === 0 && bad === 0 ? "The guard found nothing bad, and the run never went back." : `${plural(bad, "finding")} of bad numbers, ${plural(run.rows.rollbacks.length, "rollback")}.`;
    draw();
    clear(list, run.rows.rollbacks.length === 0 ? null : [el("h3", { text: "Rollbacks" }), table(
      [{ name: "From epoch", n: true }, { name: "step", n: true }, { name: "To epoch", n: true }, { name: "step", n: true }, { name: "Rung" }, { name: "Rate ×", n: true }, { name: "Pruned", n: true }, { name: "Took, s", n: true }, { name: "Why", kind: "why" }],
      run.rows.rollbacks.map((b) => [String(b.from_epoch), String(b.from_step), String(b.to_epoch), String(b.to_step), b.action, fixed(b.lr_scale, 2), String(b.n_pruned ?? 0), fixed(b.seconds, 3), b.reason]), { label: "Rollbacks" })],
      bad === 0 ? null : [el("h3", { text: "Findings of the guard" }), table(
        [{ name: "Epoch", n: true }, { name: "Step", n: true }, { name: "Tensor", kind: "why" }, { name: "Role" }, { name: "Problem" }, { name: "Elements", n: true }, { name: "First", n: true }, { name: "Done" }],
        run.rows.health.filter((h) => h.n_tensors > 0).slice(-200).map((h) => [String(h.epoch), String(h.step), h.tensor, h.role, h.problem, String(h.n_elements ?? "–"), String(h.first_index ?? "–"), h.action]), { label: "Findings" })]);
  }

  return {
    title: "Health", update,
    element: section("Health and rollbacks", words,
      el("ul", { class: "key" }, [["l0", "well"], ["l1", "unusual"], ["l2", "far off, or hardly any gradient"], ["l3", "not finite, or changed ✕"]].map(([kind, text]) => el("li", {}, el("i", { class: `swatch fill ${kind}` }), text))),
      map, list),
  };
}

const shorten = (text, most) => (text.length <= most ? text : "…" + text.slice(text.length - most + 1));

/** Neighbours that are well are one cell where each would be thinner than a pixel or two. */
function merge(cells, room) {
  const all = [];
  for (const cell of cells) {
    const last = all.at(-1);
    if (room < 4 && last && last.level === 0 && cell.level === 0 && last.epoch + last.n === cell.epoch) last.n++;
    else all.push({ ...cell, n: 1 });
  }
  return all;
}
