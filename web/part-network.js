// The network as it stood after an epoch, with a slider over all of them.
import { get } from "./api.js";
import { clear, el, fixed, percent, section, whole } from "./dom.js";

export function network(desk) {
  const cache = new Map(); // by epoch
  const picture = el("div", { class: "picture", id: "drawing" });
  const slider = /** @type {HTMLInputElement} */ (el("input", { type: "range", min: 0, max: 1, step: 1, dataset: { epochs: "yes" }, "aria-label": "Epoch", oninput: () => desk.seek(Number(slider.value)) }));
  const play = el("button", { type: "button", onclick: () => desk.play() }, "Watch it grow");
  const now = el("output", { class: "now", id: "now" });
  const happened = el("ul", { class: "happened" });
  let wanted = -1;
  let busy = false;

  async function draw() {
    if (busy) return;
    busy = true;
    while (wanted >= 0) {
      const epoch = wanted;
      wanted = -1;
      let text = cache.get(epoch);
      if (text === undefined) {
        try {
          text = await get("api/drawing", { run: desk.run.id, epoch: String(epoch) }, "text");
        } catch {
          text = "";
        }
        if (epoch < desk.run.lastEpoch || desk.run.isOver) cache.set(epoch, text);
      }
      if (wanted < 0) put(text);
    }
    busy = false;
  }

  /** Markup of our own server, read into a page that is not shown; no more than the drawing is taken from there. */
  function put(text) {
    const drawn = new DOMParser().parseFromString(text, "text/html").querySelector("svg.network");
    clear(picture, drawn ? document.importNode(drawn, true) : el("p", { class: "soft", text: "The network of this epoch cannot be drawn." }));
  }

  function seek(epoch) {
    const run = desk.run;
    const row = run.epochAt(epoch);
    slider.value = String(epoch);
    slider.setAttribute("aria-valuetext", `epoch ${epoch} of ${run.lastEpoch}`);
    clear(now, el("b", { text: epoch === 0 ? "as it began" : `epoch ${epoch}` }), ` of ${run.lastEpoch}`,
      row && epoch > 0 ? ` · ${percent(row.acc_valid)} · loss ${fixed(row.loss_valid, 4)} · ${whole(row.params)} parameters` : "");
    const marks = run.marks.filter((m) => m.epoch === epoch);
    clear(happened, marks.map((m) => el("li", {}, el("span", { class: `chip m-${m.kind}`, text: m.kind }), " ", m.text)));
    wanted = epoch;
    draw();
  }

  function update() {
    slider.max = String(desk.run.lastEpoch);
  }

  return {
    title: "Network", update, seek,
    plays: (on) => { play.textContent = on ? "Stop" : "Watch it grow"; },
    element: section("The network as it grew",
      el("div", { class: "player" }, play, slider, now), picture, happened),
  };
}
