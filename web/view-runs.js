// All runs: a table to search, to sort, and to choose from for comparing.
import { get, listen } from "./api.js";
import { spark } from "./chart.js";
import { clear, duration, el, fixed, isNumber, moment, percent, plural, scaled, shortPolicy, signed, whole } from "./dom.js";

/** @typedef {{key: string, name: string, n?: boolean, extra?: boolean, title?: string, value: (run: any) => any, cell?: (run: any) => any}} Column */

// A run here is its row of the index, as in docs/runs.md.
const accuracy = (run) => (isNumber(run.acc_test) ? run.acc_test : run.acc_valid);
const learns = (run) => run.kind === "learn";
export const overStatic = (run) => (isNumber(run.acc_static) && isNumber(run.acc_test) ? run.acc_test - run.acc_static : null);
const timeOf = (run) => (isNumber(run.seconds) ? run.seconds : isNumber(run.changed) && isNumber(run.began) ? run.changed - run.began : null);
const pointsOf = (run) => (run.points ? run.points.split(",").map(Number) : []);

const hasStore = (run) => run.kind !== "train";

export const badge = (state) => el("span", { class: "badge b-" + state.replace(" ", "-"), text: state });
export const nameOf = (name) => (name === "." ? "this run" : name);

/** @type {Column[]} */
const columns = [
  { key: "name", name: "Run", value: (r) => r.run },
  { key: "task", name: "Task", extra: true, value: (r) => r.task },
  { key: "policy", name: "Policy", extra: true, value: (r) => (learns(r) ? "learns one" : r.policy), cell: (r) => (learns(r) ? "learns one" : el("span", { title: r.policy, text: shortPolicy(r.policy) ?? "–" })) },
  { key: "state", name: "State", value: (r) => r.state, cell: (r) => badge(r.state) },
  { key: "epochs", name: "Epochs", n: true, extra: true, title: "of a policy that learns: rounds", value: (r) => r.epochs, cell: (r) => whole(r.epochs) },
  { key: "accuracy", name: "Accuracy", n: true, title: "of the test split; while it runs, of validation (in italics)", value: accuracy,
    cell: (r) => (learns(r) ? el("span", { title: "mean return of its last round", text: `return ${fixed(r.total_reward)}` }) : isNumber(r.acc_test) ? percent(r.acc_test) : el("i", { text: percent(r.acc_valid) })) },
  { key: "gain", name: "Over static", n: true, extra: true, title: "points of test accuracy over the same host, not grown", value: overStatic, cell: (r) => signed(overStatic(r)) },
  { key: "params", name: "Parameters", n: true, value: (r) => r.params, cell: (r) => [whole(r.params), isNumber(r.params_host) && r.params > r.params_host && !learns(r) ? el("span", { class: "soft", text: ` ×${(r.params / r.params_host).toFixed(1)}` }) : null] },
  { key: "kept", name: "Seeds", n: true, extra: true, title: "kept, of those that came", value: (r) => r.n_kept, cell: (r) => (r.kind === "grow" ? `${r.n_kept} of ${r.n_seeds}` : "–") },
  { key: "flops", name: "FLOPs", n: true, extra: true, title: "spent on training", value: (r) => r.flops_train, cell: (r) => scaled(r.flops_train) },
  { key: "seconds", name: "Time", n: true, extra: true, value: (r) => timeOf(r), cell: (r) => duration(timeOf(r)) },
  { key: "curve", name: "Curve", extra: true, title: "accuracy of validation by epoch, or return by round", value: (r) => r.acc_best, cell: (r) => spark(pointsOf(r), learns(r) ? "return" : "accuracy") },
  { key: "began", name: "Began", n: true, extra: true, value: (r) => r.began, cell: (r) => el("span", { title: moment(r.began), text: moment(r.began).slice(new Date().getFullYear() === new Date(1000 * r.began).getFullYear() ? 5 : 0) }) },
];

const kept = { order: { key: "began", down: true }, search: "", selected: new Set() }; // over visits to other views

export function showRuns(main, frame) {
  let runs = [];
  let unread = [];
  let current = -1;
  let shown = [];
  let listed = null;
  let timer = 0;
  let closed = false;

  const search = /** @type {HTMLInputElement} */ (el("input", { type: "search", placeholder: "Search runs, tasks, policies, states, tags", "aria-label": "Search runs", value: kept.search, oninput: () => { kept.search = search.value; draw(); } }));
  const count = el("span", { class: "soft", role: "status" });
  const compare = /** @type {HTMLButtonElement} */ (el("button", { type: "button", class: "primary", onclick: goCompare }, "Compare"));
  const head = el("tr", {});
  const body = el("tbody", {});
  const rest = el("div", {});
  clear(main,
    el("div", { class: "bar" }, el("h1", { text: "Runs" }), count, el("span", { class: "spring" }), search, compare),
    el("div", { class: "wide" }, el("table", { class: "runs cards" }, el("thead", {}, head), body)), rest);
  frame.crumb("Runs");

  function goCompare() {
    if (kept.selected.size >= 2) location.hash = frame.link.compare([...kept.selected]);
  }

  function sortBy(key) {
    kept.order = { key, down: kept.order.key === key ? !kept.order.down : columns.find((c) => c.key === key).n === true };
    draw();
  }

  function drawHead() {
    clear(head, el("th", { class: "pick" }, el("span", { class: "hidden", text: "Compare" })), columns.map((column) => {
      const mine = kept.order.key === column.key;
      return el("th", { scope: "col", class: [column.n ? "n" : "", column.extra ? "extra" : ""].join(" ").trim() || null, "aria-sort": mine ? (kept.order.down ? "descending" : "ascending") : null, title: column.title },
        el("button", { type: "button", class: "sort", onclick: () => sortBy(column.key) }, column.name, el("span", { class: "arrow", "aria-hidden": "true", text: mine ? (kept.order.down ? " ↓" : " ↑") : "" })));
    }));
  }

  function choose() {
    const words = kept.search.toLowerCase().split(/\s+/).filter(Boolean);
    const column = columns.find((c) => c.key === kept.order.key);
    const sign = kept.order.down ? -1 : 1;
    shown = runs.filter((run) => {
      const text = [run.run, run.task, run.policy, run.state, run.tags, run.kind].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    shown.sort((a, b) => {
      const x = column.value(a);
      const y = column.value(b);
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return sign * (typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y);
    });
  }

  /** A run with nothing to be drawn says so in the place of a link. */
  function name(run, opens) {
    const tags = (run.tags ?? "").split(",").filter(Boolean).map((tag) => el("span", { class: "tag", text: tag }));
    return [opens ? el("a", { href: frame.link.run(run.id), title: run.run, text: nameOf(run.run) }) : el("span", { title: "esper train keeps no store: there is nothing to draw", text: nameOf(run.run) }), tags];
  }

  function rowOf(run, i) {
    const opens = hasStore(run);
    const box = opens && el("input", { type: "checkbox", "aria-label": `Compare ${run.run}`, checked: kept.selected.has(run.id), onchange: () => pick(run) });
    return el("tr", { class: i === current ? "current" : null, dataset: { id: run.id } },
      el("td", { class: "pick" }, box),
      columns.map((column) => {
        const text = column.cell ? column.cell(run) : column.value(run);
        const cell = column.key === "name" ? name(run, opens) : text;
        return el("td", { class: [column.n ? "n" : "", column.extra ? "extra" : "", column.key === "name" ? "name" : ""].join(" ").trim() || null, dataset: { name: column.name } }, cell);
      }));
  }

  function draw() {
    drawHead();
    choose();
    current = Math.min(current, shown.length - 1);
    clear(body, shown.map(rowOf));
    count.textContent = shown.length === runs.length ? plural(runs.length, "run") : `${shown.length} of ${plural(runs.length, "run")}`;
    drawPicked();
    clear(rest,
      runs.length === 0 && unread.length === 0 ? el("p", { class: "lead" }, `There is no run below ${listed?.dir ?? "the directory"} yet. Start one, and it appears here by itself: `, el("code", { text: "esper grow fashion --static-control" })) : null,
      runs.length > 0 && shown.length === 0 ? el("p", { text: "No run matches the search." }) : null,
      unread.length > 0 ? el("details", {}, el("summary", { text: `${plural(unread.length, "store")} could not be read` }), el("ul", {}, unread.map((u) => el("li", {}, el("b", { text: u.run }), `: ${u.problem}`)))) : null);
  }

  function drawPicked() {
    compare.disabled = kept.selected.size < 2;
    compare.textContent = kept.selected.size < 2 ? "Compare (choose two)" : `Compare ${kept.selected.size}`;
  }

  function pick(run) {
    if (!kept.selected.delete(run.id)) kept.selected.add(run.id);
    drawPicked();
  }

  function step(by) {
    if (shown.length === 0) return;
    current = Math.max(0, Math.min(shown.length - 1, current + by));
    for (const [i, row] of [...body.children].entries()) row.classList.toggle("current", i === current);
    /** @type {HTMLElement|null} */ (body.children[current].querySelector("a"))?.focus();
    body.children[current].scrollIntoView({ block: "nearest" });
  }

  async function load() {
    try {
      listed = await get("api/runs");
    } catch (failure) {
      if (!closed && runs.length === 0) clear(rest, el("p", { class: "note", text: failure.message }));
      return;
    }
    if (closed) return;
    unread = listed.runs.filter((run) => run.state === "unreadable");
    runs = listed.runs.filter((run) => run.state !== "unreadable");
    for (const id of [...kept.selected]) if (!runs.some((run) => run.id === id)) kept.selected.delete(id);
    const focused = document.activeElement?.closest?.("tr[data-id]")?.dataset.id;
    const wasBox = document.activeElement instanceof HTMLInputElement;
    draw();
    if (focused) /** @type {HTMLElement|null} */ (body.querySelector(`tr[data-id="${CSS.escape(focused)}"] ${wasBox ? "input" : "a"}`))?.focus({ preventScroll: true });
  }

  let version = -1;
  const stream = listen(() => ({}), {
    runs(data) {
      if (data.version === version) return;
      version = data.version;
      clearTimeout(timer);
      timer = setTimeout(load, runs.length > 300 ? 1500 : 0);
    },
  }, frame.tell);
  draw();
  load();

  return {
    close() {
      closed = true;
      clearTimeout(timer);
      stream.close();
    },
    keys: {
      "/": () => search.focus(),
      j: () => step(1),
      k: () => step(-1),
      x() {
        if (!shown[current] || !hasStore(shown[current])) return false;
        pick(shown[current]);
        body.children[current].querySelector("input").checked = kept.selected.has(shown[current].id);
      },
      c: goCompare,
      Enter() {
        if (!shown[current] || !hasStore(shown[current])) return false;
        location.hash = frame.link.run(shown[current].id);
      },
    },
  };
}
