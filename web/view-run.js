// One run: five answers first, then the network as it grew, curves, seeds, trials, health and decisions.
import { get, listen, Missing } from "./api.js";
import { Shared } from "./chart.js";
import { clear, el } from "./dom.js";
import { Run } from "./model.js";
import { showLearning } from "./view-learn.js";
import { answers } from "./part-answers.js";
import { curves } from "./part-curves.js";
import { decisions } from "./part-decisions.js";
import { network } from "./part-network.js";
import { health } from "./part-health.js";
import { seeds } from "./part-seeds.js";
import { trials } from "./part-trials.js";

export function showRun(main, id, frame) {
  const desk = { run: null, shared: new Shared(), epoch: 1, follows: true, seek, link: frame.link };
  let parts = [];
  let stream = null;
  let closed = false;
  let drawing = 0;
  let playing = 0;

  frame.crumb(el("a", { href: frame.link.runs(), text: "Runs" }), id === "." ? "this run" : id);
  clear(main, el("p", { class: "soft", text: "Reading …" }));

  /** All parts show this epoch. */
  function seek(epoch, follows = false) {
    desk.epoch = Math.max(0, Math.min(desk.run.lastEpoch, Math.round(epoch)));
    desk.follows = follows || (desk.epoch === desk.run.lastEpoch && !desk.run.isOver);
    desk.shared.point(desk.epoch);
    for (const part of parts) part.seek?.(desk.epoch);
  }

  function stopPlaying() {
    clearInterval(playing);
    playing = 0;
    for (const part of parts) part.plays?.(false);
  }

  desk.play = () => {
    if (playing) return stopPlaying();
    const last = desk.run.lastEpoch;
    const step = Math.max(1, Math.round(last / 120));
    if (desk.epoch >= last) seek(0);
    for (const part of parts) part.plays?.(true);
    playing = setInterval(() => {
      if (desk.epoch >= desk.run.lastEpoch) stopPlaying();
      else seek(desk.epoch + step, false);
    }, Math.max(60, Math.min(400, 8000 / last)));
  };

  function build() {
    const run = desk.run;
    const title = el("h1", { text: run.name === "." ? "this run" : run.name });
    const make = run.learns ? [showLearning] : [answers, network, curves, seeds, trials, health, decisions];
    parts = make.map((part) => part(desk));
    const contents = el("nav", { class: "contents", "aria-label": "Parts of this page" }, parts.filter((p) => p.title).map((p, i) => el("a", { href: "#", onclick: (event) => { event.preventDefault(); goTo(i); } }, p.title)));
    clear(main, el("div", { class: "bar" }, title), contents, parts.map((part) => part.element));
    update();
  }

  function goTo(i) {
    const section = parts.filter((p) => p.title)[i]?.element;
    section?.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    /** @type {HTMLElement|null} */ (section?.querySelector("h2"))?.focus({ preventScroll: true });
  }

  function update() {
    const run = desk.run;
    desk.shared.all = [run.learns ? 1 : Math.min(1, ...run.epochs.map((e) => e.epoch)), Math.max(2, run.lastEpoch)];
    for (const part of parts) part.update();
    if (desk.follows) seek(run.lastEpoch, true);
    else seek(desk.epoch);
    main.dataset.ready = "yes";
  }

  /** Many messages at once are drawn once. */
  function updateSoon() {
    if (drawing) return;
    drawing = requestAnimationFrame(() => {
      drawing = 0;
      if (!closed) update();
    });
  }

  async function load() {
    let whole;
    try {
      whole = await get("api/run", { run: id });
    } catch (failure) {
      if (!closed) {
        clear(main, el("h1", { text: id }), el("p", { class: "note", text: failure.message }), el("p", {}, el("a", { href: frame.link.runs(), text: "All runs" })));
        if (failure instanceof Missing) stream?.close();
      }
      return false;
    }
    if (closed) return false;
    const first = desk.run === null;
    desk.run = new Run(whole);
    if (first) {
      desk.epoch = desk.run.lastEpoch;
      build();
    } else {
      update();
    }
    return true;
  }

  async function start() {
    if (!(await load()) || closed) return;
    stream = listen(() => ({ run: id, since: desk.run.mark }), {
      rows(news, mark) {
        if (desk.run.add(news, mark)) updateSoon();
      },
      reset: load,
      gone: load,
    }, (state) => frame.tell(state === "live" && !desk.run.run.running && !desk.run.control?.running ? "over" : state));
  }
  start();

  const step = (by) => (event) => {
    if (!desk.run || (event.target instanceof HTMLInputElement && event.target.type === "range" && !event.target.dataset.epochs)) return false;
    stopPlaying();
    seek(desk.epoch + by * (event.shiftKey ? 10 : 1));
  };
  return {
    close() {
      closed = true;
      stopPlaying();
      cancelAnimationFrame(drawing);
      stream?.close();
    },
    keys: {
      ArrowLeft: step(-1),
      ArrowRight: step(1),
      Home: () => (desk.run ? seek(0) : false),
      End: () => (desk.run ? seek(desk.run.lastEpoch, true) : false),
      " ": () => (desk.run && !desk.run.learns ? desk.play() : false),
      "+": () => desk.shared.scale(0.5),
      "=": () => desk.shared.scale(0.5),
      "-": () => desk.shared.scale(2),
      0: () => desk.shared.reset(),
      ...Object.fromEntries([1, 2, 3, 4, 5, 6, 7, 8, 9].map((n) => [n, () => goTo(n - 1)])),
    },
  };
}
