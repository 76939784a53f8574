// Curves as SVG: series over x with bands behind them and marks above, a cursor that many charts share, zoom by dragging.
import { clear, el, isNumber, short, svg } from "./dom.js";
import { smooth } from "./model.js";

const LEFT = 52;
const RIGHT = 14;
const BOTTOM = 24;
const STRIP = 16; // marks, above the plot
const GLYPHS = {
  germinate: "M0 -5L5 4H-5Z", fossilize: "M-4.500 -4.500H4.500V4.500H-4.500Z", prune: "M-4 -4L4 4M4 -4L-4 4", trial: "M0 -5.500L5 0L0 5.500L-5 0Z",
  rollback: "M5 -4V4L-2 0ZM-4 -4V4", skip: "M-4 0H4", fault: "M1 -6L-4 1H0L-1 6L4 -1H0Z", refused: "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0M-3 3L3 -3", other: "M0 -4A4 4 0 1 0 0 4A4 4 0 1 0 0 -4",
};

export function glyph(kind, x = 0, y = 0) {
  return svg("path", { class: `glyph g-${GLYPHS[kind] ? kind : "other"}`, d: GLYPHS[kind] ?? GLYPHS.other, transform: `translate(${x} ${y})` });
}

/** Numbers that read well, about n of them, within the range. */
export function ticks(low, high, n) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, n);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((s) => s * power >= raw) * power;
  const all = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) all.push(i * step);
  return all;
}

/** What several charts have in common: the range of x that is shown, the cursor, and how much curves are smoothed. */
export class Shared extends EventTarget {
  constructor() {
    super();
    this.range = null; // [from, to]; null: all
    this.all = [1, 1];
    this.cursor = null;
    this.weight = 0;
  }

  get shown() {
    return this.range ?? this.all;
  }

  tell(what) {
    this.dispatchEvent(new Event(what));
  }

  zoom(from, to) {
    const [low, high] = this.all;
    from = Math.max(low, from);
    to = Math.min(high, to);
    this.range = to - from < Math.min(1, (high - low) / 2) || (from <= low && to >= high) ? (to - from < 1 ? this.range : null) : [from, to];
    this.tell("range");
  }

  /** By a factor around the cursor, or the middle. */
  scale(factor) {
    const [from, to] = this.shown;
    const at = this.cursor !== null && this.cursor >= from && this.cursor <= to ? this.cursor : (from + to) / 2;
    this.zoom(at - (at - from) * factor, at + (to - at) * factor);
  }

  reset() {
    this.range = null;
    this.tell("range");
  }

  point(x) {
    this.cursor = x;
    this.tell("cursor");
  }
}

/**
 * @typedef {{name: string, kind: string, points: [number, number][], band?: [number, number, number][], step?: boolean}} Series
 * `kind` is a class of the style sheet; points are [x, y], band is [x, low, high].
 */
export class Chart {
  /**
   * @param {Shared} shared
   * @param {{title: string, unit?: string, x?: string, format?: (y: number) => string, height?: number, log?: boolean, zero?: boolean, seek?: (x: number) => void}} options
   */
  constructor(shared, options) {
    this.shared = shared;
    this.options = { height: 170, format: short, x: "epoch", ...options };
    this.series = [];
    this.bands = [];
    this.marks = [];
    this.readings = el("span", { class: "readings" });
    this.plot = svg("svg", { class: "chart", role: "img", tabindex: 0 });
    this.element = el("figure", { class: "curve" },
      el("figcaption", {}, el("b", { text: options.title }), options.unit ? el("span", { class: "soft", text: " " + options.unit }) : null, this.readings),
      this.plot);
    this.width = 0;
    new ResizeObserver(() => {
      const width = Math.round(this.plot.clientWidth);
      if (width > 0 && width !== this.width) {
        this.width = width;
        this.draw();
      }
    }).observe(this.plot);
    shared.addEventListener("range", () => this.draw());
    shared.addEventListener("smooth", () => this.draw());
    shared.addEventListener("cursor", () => this.drawCursor());
    this.plot.addEventListener("pointerdown", (event) => this.drag(event));
    this.plot.addEventListener("pointermove", (event) => this.hover(event));
    this.plot.addEventListener("dblclick", () => shared.reset());
  }

  /** @param {{series: Series[], bands?: any[], marks?: any[]}} data */
  set(data) {
    this.series = data.series;
    this.bands = data.bands ?? [];
    this.marks = data.marks ?? [];
    this.draw();
  }

  get inner() {
    return { left: LEFT, right: this.width - RIGHT, top: this.marks.length > 0 ? STRIP + 4 : 6, bottom: this.options.height - BOTTOM };
  }

  atX(x) {
    const { left, right } = this.inner;
    const [from, to] = this.shared.shown;
    return left + ((x - from) / (to - from || 1)) * (right - left);
  }

  fromX(pixel) {
    const { left, right } = this.inner;
    const [from, to] = this.shared.shown;
    return from + ((pixel - left) / (right - left || 1)) * (to - from);
  }

  /** The range of y over what is shown; a few values far out do not squeeze all others: they are cut off, and counted. */
  scaleY(curves) {
    const [from, to] = this.shared.shown;
    const seen = [];
    for (const one of curves) {
      for (const [x, y] of one.points) if (x >= from && x <= to && isNumber(y) && (!this.options.log || y > 0)) seen.push(y);
      for (const [x, low, high] of one.band ?? []) if (x >= from && x <= to && isNumber(low) && isNumber(high)) seen.push(low, high);
    }
    if (seen.length === 0) return [0, 1];
    seen.sort((a, b) => a - b);
    let low = seen[0];
    let high = seen[seen.length - 1];
    if (!this.options.log && seen.length > 20) {
      const most = seen[Math.floor(seen.length * 0.97)];
      const middle = seen[Math.floor(seen.length / 2)];
      if (high - low > 6 * (most - low) && most > middle) high = most + (most - low) * 0.25;
    }
    if (this.options.zero) low = Math.min(0, low);
    if (this.options.log) return low === high ? [low / 2, high * 2] : [low, high];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.options.zero && low === 0 ? 0 : low - room, high + room];
  }

  draw() {
    if (this.width === 0) return;
    const { left, right, top, bottom } = this.inner;
    const raw = this.series;
    const curves = raw.map((one) => ({ ...one, points: one.step || one.band ? one.points : smooth(one.points, this.shared.weight) }));
    const [low, high] = this.scaleY(raw);
    const log = this.options.log;
    const bend = log ? Math.log10 : (y) => y;
    const atY = (y) => bottom - ((bend(y) - bend(low)) / (bend(high) - bend(low) || 1)) * (bottom - top);
    const id = (this.clip ??= "clip" + Math.random().toString(36).slice(2));

    this.atY = atY;
    this.curves = curves;
    this.plot.setAttribute("viewBox", `0 0 ${this.width} ${this.options.height}`);
    this.plot.setAttribute("height", this.options.height);
    this.plot.setAttribute("aria-label", this.describe());
    const body = svg("g", { "clip-path": `url(#${id})` });
    clear(this.plot,
      svg("defs", {}, svg("clipPath", { id }, svg("rect", { x: left, y: top - 2, width: Math.max(0, right - left), height: bottom - top + 4 }))),
      this.drawBands(top, bottom, id),
      this.drawAxes(low, high, atY),
      body,
      this.drawMarks(top, bottom));
    for (const [i, one] of curves.entries()) {
      if (one.band) body.append(svg("path", { class: `spread ${one.kind}`, d: bandPath(one.band, (x) => this.atX(x), atY) }));
      if (this.shared.weight > 0 && !one.step) body.append(svg("path", { class: `line faint ${one.kind}`, d: linePath(raw[i].points, (x) => this.atX(x), atY, false, log) }));
      body.append(svg("path", { class: `line ${one.kind}`, d: linePath(one.points, (x) => this.atX(x), atY, one.step, log) }));
      if (one.points.length === 1 && isNumber(one.points[0][1])) body.append(svg("circle", { class: `dot ${one.kind}`, cx: this.atX(one.points[0][0]), cy: atY(one.points[0][1]), r: 3 }));
      for (const [x, y] of one.points)
        if (y !== null && !isNumber(y)) body.append(svg("text", { class: "lost", x: this.atX(x), y: top + 10, "text-anchor": "middle", text: String(y) }));
    }
    this.cursorLine = svg("line", { class: "cursor", y1: top - 2, y2: bottom });
    this.brush = svg("rect", { class: "brush", y: top, height: bottom - top, width: 0 });
    this.plot.append(this.cursorLine, this.brush);
    this.drawCursor();
  }

  drawBands(top, bottom, id) {
    const group = svg("g", { "clip-path": `url(#${id})` });
    for (const band of this.bands) {
      const x = this.atX(band.from);
      const width = Math.max(1.5, this.atX(band.to) - x);
      const isTrack = band.kind === "grow" || band.kind === "trial";
      group.append(svg("rect", { class: `phase p-${band.kind}`, x, y: top, width, height: bottom - top }, svg("title", { text: band.text ?? band.kind })));
      if (isTrack) group.append(svg("rect", { class: `track p-${band.kind}`, x, y: bottom - 6, width, height: 6 }));
      if (!isTrack && width > 34) group.append(svg("text", { class: "phase-name", x: Math.max(x, LEFT) + 4, y: bottom - 9, text: band.kind }));
    }
    return group;
  }

  drawAxes(low, high, atY) {
    const { left, right, bottom } = this.inner;
    const [from, to] = this.shared.shown;
    const group = svg("g", {});
    const levels = this.options.log ? logTicks(low, high) : ticks(low, high, 4);
    for (const y of levels)
      group.append(svg("line", { class: "grid", x1: left, x2: right, y1: atY(y), y2: atY(y) }),
        svg("text", { class: "tick", x: left - 6, y: atY(y) + 4, "text-anchor": "end", text: this.options.format(y) }));
    const xFormat = this.options.xFormat ?? short;
    for (const x of ticks(from, to, Math.max(2, (right - left) / 90))) {
      if (this.options.x === "epoch" && !Number.isInteger(x)) continue;
      group.append(svg("text", { class: "tick", x: this.atX(x), y: bottom + 16, "text-anchor": "middle", text: xFormat(x) }));
    }
    group.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    return group;
  }

  drawMarks(top, bottom) {
    const group = svg("g", { class: "marks" });
    const [from, to] = this.shared.shown;
    const drawn = new Map();
    const taken = []; // pixels, so that those of one epoch stand beside each other
    for (const mark of this.marks) {
      if (mark.epoch < from || mark.epoch > to) continue;
      const x = this.atX(mark.epoch);
      const key = `${mark.kind} ${Math.round(x / 4)}`; // those that would lie on each other
      if (drawn.has(key)) {
        drawn.get(key).textContent += `\nepoch ${mark.epoch}: ${mark.text}`;
        continue;
      }
      const title = svg("title", { text: `epoch ${mark.epoch}: ${mark.text}` });
      let place = x;
      while (taken.some((t) => Math.abs(t - place) < 10)) place += 11;
      taken.push(place);
      drawn.set(key, title);
      group.append(svg("g", { class: `mark m-${mark.kind}` }, title,
        svg("line", { class: "drop", x1: x, x2: x, y1: top - 2, y2: bottom }),
        svg("rect", { class: "hit", x: place - 7, y: 0, width: 14, height: STRIP + 2 }),
        glyph(mark.kind, place, STRIP / 2 + 1)));
    }
    return group;
  }

  drawCursor() {
    if (!this.cursorLine) return;
    const [from, to] = this.shared.shown;
    const at = this.shared.cursor;
    const visible = at !== null && at >= from && at <= to;
    this.cursorLine.setAttribute("visibility", visible ? "visible" : "hidden");
    if (visible) {
      this.cursorLine.setAttribute("x1", this.atX(at));
      this.cursorLine.setAttribute("x2", this.atX(at));
    }
    clear(this.readings, this.curves.map((one) => {
      const value = at === null ? lastOf(one.points) : valueAt(one.points, at);
      return el("span", { class: "reading" }, el("i", { class: `swatch ${one.kind}` }), `${one.name} `, el("b", { text: value === null ? "–" : this.options.format(value) }));
    }));
  }

  hover(event) {
    if (event.buttons !== 0 || event.pointerType === "touch") return;
    this.readAt(event);
  }

  readAt(event) {
    const x = this.fromX(event.offsetX);
    const [from, to] = this.shared.shown;
    if (x < from - 0.5 || x > to + 0.5) return;
    this.shared.point(this.options.x === "epoch" || this.options.x === "round" ? Math.round(x) : x);
  }

  /** A drag of more than some pixels zooms; less is a click, which moves the slider. */
  drag(event) {
    if (event.button !== 0) return;
    const start = event.offsetX;
    const { left, right } = this.inner;
    const move = (e) => {
      const now = Math.max(left, Math.min(right, start + (e.clientX - event.clientX)));
      this.brush.setAttribute("x", Math.min(start, now));
      this.brush.setAttribute("width", Math.abs(now - start));
    };
    const up = (e) => {
      const now = Math.max(left, Math.min(right, start + (e.clientX - event.clientX)));
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      window.removeEventListener("pointercancel", up);
      this.brush.setAttribute("width", 0);
      if (e.type === "pointercancel") return;
      if (Math.abs(now - start) > 8) this.shared.zoom(Math.min(this.fromX(start), this.fromX(now)), Math.max(this.fromX(start), this.fromX(now)));
      else if (this.options.seek) this.options.seek(this.fromX(start));
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
    window.addEventListener("pointercancel", up);
  }

  /** For those who do not see it. */
  describe() {
    const parts = this.series.map((one) => {
      const known = one.points.filter((p) => isNumber(p[1]));
      return known.length === 0 ? `${one.name}: nothing yet` : `${one.name} from ${this.options.format(known[0][1])} to ${this.options.format(known[known.length - 1][1])}`;
    });
    return `${this.options.title}: ${parts.join("; ")}`;
  }
}

function lastOf(points) {
  for (let i = points.length - 1; i >= 0; i--) if (points[i][1] !== null) return points[i][1];
  return null;
}

/** The value at x, or the last one before it. */
function valueAt(points, x) {
  let best = null;
  for (const [at, y] of points) {
    if (at > x + 1e-9) break;
    best = y;
  }
  return best;
}

function logTicks(low, high) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    if (10 ** power >= low * 0.999 && 10 ** power <= high * 1.001) all.push(10 ** power);
  return all.length >= 2 ? all : [Number(low.toPrecision(2)), Number(high.toPrecision(2))];
}

/** A gap where nothing was measured, or what was is not finite. */
function linePath(points, atX, atY, step, log) {
  let path = "";
  let pen = false;
  for (const [x, y] of points) {
    if (!isNumber(y) || (log && y <= 0)) {
      pen = false;
      continue;
    }
    const px = atX(x).toFixed(1);
    const py = atY(y).toFixed(1);
    path += !pen ? `M${px} ${py}` : step ? `H${px}V${py}` : `L${px} ${py}`;
    pen = true;
  }
  return path;
}

function bandPath(band, atX, atY) {
  const known = band.filter(([, low, high]) => isNumber(low) && isNumber(high));
  if (known.length === 0) return "";
  const there = known.map(([x, , high]) => `${atX(x).toFixed(1)} ${atY(high).toFixed(1)}`);
  const back = known.toReversed().map(([x, low]) => `${atX(x).toFixed(1)} ${atY(low).toFixed(1)}`);
  return `M${there.join("L")}L${back.join("L")}Z`;
}

/** A line of a table: few points, no axes. */
export function spark(points, label) {
  const width = 90;
  const height = 22;
  const low = Math.min(...points);
  const high = Math.max(...points);
  const at = (y, i) => `${(2 + (i / Math.max(1, points.length - 1)) * (width - 4)).toFixed(1)} ${(height - 3 - ((y - low) / (high - low || 1)) * (height - 6)).toFixed(1)}`;
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    points.length > 1 ? svg("path", { class: "line grown", d: "M" + points.map(at).join("L") }) : points.length === 1 ? svg("circle", { class: "dot grown", cx: 4, cy: height / 2, r: 2 }) : null);
}
