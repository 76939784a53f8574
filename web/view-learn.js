// A run that learned a policy: return, what the policy does, how it moved, and where it was used since.
import { get } from "./api.js";
import { Chart } from "./chart.js";
import { clear, duration, el, fixed, isNumber, percent, plural, scaled, section, signed, svg, table, whole } from "./dom.js";
import { stateOf } from "./model.js";
import { badge, overStatic } from "./view-runs.js";

const HEADS = ["op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve"];

export function showLearning(desk) {
  const seek = (x) => desk.seek(x);
  const chart = (title, options = {}) => new Chart(desk.shared, { title, x: "round", height: 150, seek, ...options });
  const charts = {
    total: chart("Return of an episode", { unit: "mean, and one standard deviation", height: 220 }),
    accuracy: chart("Validation accuracy at the end", { unit: "percent", format: (y) => (isNumber(y) ? y.toFixed(1) : y) }),
    params: chart("Parameters at the end", { format: (y) => scaled(y), zero: true }),
    entropy: chart("Entropy of the heads", { unit: "0: decided, 1: undecided", zero: true }),
    kl: chart("How far an update moved the policy", { unit: "KL, nats", zero: true }),
    explained: chart("Returns explained by the critic", { unit: "at most 1" }),
  };
  const lead = el("p", { class: "lead", id: "lead" });
  const tiles = el("dl", { class: "tiles" });
  const does = el("div", { class: "does" });
  const slider = /** @type {HTMLInputElement} */ (el("input", { type: "range", min: 1, max: 1, step: 1, dataset: { epochs: "yes" }, "aria-label": "Round", oninput: () => desk.seek(Number(slider.value)) }));
  const now = el("output", { class: "now", id: "now" });
  const used = el("div", {});
  const settings = el("pre", {});
  let isUsed = false;

  function update() {
    const run = desk.run;
    const rounds = run.rows.updates;
    const of = (key) => rounds.map((u) => [u.round, u[key]]);
    slider.max = String(run.lastEpoch);
    charts.total.set({ series: [{ name: "return", kind: "grown", points: of("return_mean"), band: rounds.map((u) => [u.round, isNumber(u.return_sd) ? u.return_mean - u.return_sd : null, isNumber(u.return_sd) ? u.return_mean + u.return_sd : null]) }] });
    charts.accuracy.set({ series: [{ name: "accuracy", kind: "grown", points: of("acc_mean") }] });
    charts.params.set({ series: [{ name: "parameters", kind: "grown", points: of("params_mean") }] });
    charts.entropy.set({ series: HEADS.map((head, i) => ({ name: head, kind: `c${i}`, points: of("entropy_" + head) })).filter((s) => s.points.some((p) => isNumber(p[1]))) });
    charts.kl.set({ series: [{ name: "KL", kind: "grown", points: of("kl") }] });
    charts.explained.set({ series: [{ name: "explained", kind: "grown", points: of("explained_variance").map(([x, y]) => [x, isNumber(y) ? Math.max(-1, y) : y]) }] });
    settings.textContent = run.config;
    drawWords(run, rounds);
    drawTransfer(run);
  }

  function drawWords(run, rounds) {
    const some = Math.max(1, Math.min(10, Math.floor(rounds.length / 2)));
    const mean = (key, list) => {
      const known = list.map((u) => u[key]).filter(isNumber);
      return known.length > 0 ? known.reduce((a, b) => a + b, 0) / known.length : null;
    };
    const change = (key) => [mean(key, rounds.slice(0, some)), mean(key, rounds.slice(-some))];
    const episodes = rounds.reduce((sum, u) => sum + (u.n_episodes ?? 0), 0);
    const [from, to] = change("return_mean");
    const [accFrom, accTo] = change("acc_mean");
    const [sizeFrom, sizeTo] = change("params_mean");
    const bad = rounds.filter((u) => u.health && u.health !== "fine");
    const skipped = rounds.reduce((sum, u) => sum + (u.n_skipped ?? 0), 0);
    clear(lead, badge(stateOf(run.run)), ` A policy for ${run.run.task} learned from ${plural(episodes, "episode")} in ${plural(rounds.length, "round")}; it is paid by ${run.run.reward_mode ?? "?"}.`);
    const tile = (question, answer, why, kind) => el("div", { class: "tile" + (kind ? " t-" + kind : "") }, el("dt", { text: question }), el("dd", {}, el("b", { text: answer }), el("span", { class: "why", text: why })));
    clear(tiles,
      tile("Does it earn more?", isNumber(to) ? signed(to - from, 2) : "–", `return ${fixed(from)} in the first ${plural(some, "round")}, ${fixed(to)} in the last`, isNumber(to) && to > from ? "good" : null),
      tile("Are its networks better?", isNumber(accTo) ? `${signed(accTo - accFrom, 2)} points` : "–", `validation accuracy ${percent(accFrom)}, then ${percent(accTo)}`),
      tile("What do they cost?", isNumber(sizeTo) ? `${whole(sizeTo)} parameters` : "–", `${whole(sizeFrom)} at first; the host has ${whole(run.run.params_host)}`),
      tile("Has it decided?", isNumber(mean("entropy", rounds.slice(-some))) ? fixed(mean("entropy", rounds.slice(-some)), 2) : "–", "entropy over heads; 0 is decided, 1 undecided"),
      tile("Is it healthy?", bad.length === 0 && skipped === 0 ? "yes" : "see rounds", bad.length > 0 ? `round ${bad.at(-1).round}: ${bad.at(-1).health}` : skipped > 0 ? `${plural(skipped, "minibatch", "minibatches")} skipped` : `every update was finite; ${duration(rounds.reduce((s, u) => s + (isNumber(u.seconds) ? u.seconds : 0), 0))} so far`, bad.length === 0 ? "good" : "warn"));
  }

  /** Which seeds it puts where: a map over rounds, and of the round under the cursor. */
  function drawPolicy(round) {
    const run = desk.run;
    const rows = run.rows.decisions.filter((d) => d.op === "germinate" && d.accepted === 1 && d.slot);
    const episodesOf = new Map(run.rows.updates.map((u) => [u.round, u.n_episodes || 1]));
    if (rows.length === 0) {
      clear(does, el("p", { class: "soft", text: "It has put in no seed, or a program outside decides." }));
      return;
    }
    const slots = [...new Set(rows.map((d) => d.slot))].sort();
    const blueprints = [...new Set(rows.map((d) => d.blueprint))].sort();
    const count = new Map();
    for (const d of rows) {
      const key = `${d.slot} ${d.blueprint} ${d.epoch}`;
      count.set(key, (count.get(key) ?? 0) + 1);
    }
    const rate = (slot, blueprint, at) => (count.get(`${slot} ${blueprint} ${at}`) ?? 0) / (episodesOf.get(at) ?? run.rows.updates.at(-1)?.n_episodes ?? 1);
    const most = Math.max(...[...count].map(([key, n]) => n / (episodesOf.get(Number(key.split(" ")[2])) ?? 1)), 0.01);
    clear(does,
      el("h3", { text: `Round ${round}: seeds put in, for each episode` }),
      el("div", { class: "wide" }, el("table", { class: "heat" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "Slot" }), blueprints.map((b) => el("th", { scope: "col", class: "n", text: b })))),
        el("tbody", {}, slots.map((slot) => el("tr", {}, el("th", { scope: "row", text: slot }), blueprints.map((b) => {
          const value = rate(slot, b, round);
          return el("td", { class: `n h${Math.min(9, Math.ceil((value / most) * 9))}`, text: value > 0 ? value.toFixed(2) : "·" });
        })))))),
      el("h3", { text: "All rounds" }), heatMap(run, slots, blueprints, rate, most, round));
  }

  function heatMap(run, slots, blueprints, rate, most, round) {
    const pairs = slots.flatMap((slot) => blueprints.map((blueprint) => ({ slot, blueprint })))
      .map((pair) => ({ ...pair, total: run.rows.updates.reduce((sum, u) => sum + rate(pair.slot, pair.blueprint, u.round), 0) }))
      .filter((pair) => pair.total > 0).sort((a, b) => b.total - a.total).slice(0, 24);
    const last = run.lastEpoch;
    const row = 16;
    const width = does.clientWidth || 900;
    const left = Math.min(170, width * 0.42);
    const room = (width - left) / last;
    return el("div", { class: "wide" }, svg("svg", { class: "heatmap", viewBox: `0 0 ${width} ${pairs.length * row + 20}`, role: "img", "aria-label": `How often each seed is put into each slot, over ${last} rounds` },
      pairs.map((pair, i) => svg("g", {},
        svg("text", { class: "lane-name", x: 0, y: i * row + 12, text: `${pair.slot} ${pair.blueprint}` }),
        Array.from({ length: last }, (_, k) => {
          const value = rate(pair.slot, pair.blueprint, k + 1);
          return value === 0 ? null : svg("rect", { class: `h${Math.min(9, Math.ceil((value / most) * 9))}`, x: left + k * room, y: i * row + 1, width: Math.max(1, room - (room > 5 ? 0.5 : 0)), height: row - 2 }, svg("title", { text: `round ${k + 1}: ${value.toFixed(2)} an episode` }));
        }))),
      svg("rect", { class: "cursor-cell", x: left + (round - 1) * room, y: 0, width: Math.max(2, room), height: pairs.length * row }),
      svg("text", { class: "tick", x: left, y: pairs.length * row + 15, text: "round 1" }), svg("text", { class: "tick", x: width, y: pairs.length * row + 15, "text-anchor": "end", text: `round ${last}` })));
  }

  /** Runs that this policy decided: they name its file, or its directory, in their settings. */
  async function drawTransfer(run) {
    if (isUsed) return;
    isUsed = true;
    const greedy = run.rows.episodes.filter((e) => isNumber(e.acc_test));
    const { runs } = await get("api/runs").catch(() => ({ runs: [] }));
    const learned = runs.filter((r) => r.policy?.startsWith("learned ")).slice(0, 60);
    const mine = [];
    for (const one of learned) {
      const whole = await get("api/run", { run: one.id }).catch(() => null);
      const named = whole?.config.match(/^policy *= *(.*)$/m)?.[1]?.trim() ?? "";
      const base = run.name.split("/").at(-1);
      if (named.split("/").includes(base) || named.split("/").at(-2) === base) mine.push(one);
    }
    clear(used,
      mine.length === 0 ? el("p", { class: "soft" }, "No run here was decided by this policy yet: ", el("code", { text: `esper grow ${run.run.task} --policy ${run.name} --static-control` })) : table(
        [{ name: "Run" }, { name: "Task" }, { name: "Accuracy", n: true }, { name: "Over static", n: true }, { name: "Parameters", n: true }, { name: "Seeds", n: true }],
        mine.map((r) => [el("a", { href: desk.link.run(r.id), text: r.run }), r.task, percent(isNumber(r.acc_test) ? r.acc_test : r.acc_valid), signed(overStatic(r)), whole(r.params), `${r.n_kept} of ${r.n_seeds}`]), { label: "Runs that this policy decided" }),
      greedy.length > 0 ? el("p", { text: `Played to be tested: ${plural(greedy.length, "episode")}, mean test accuracy ${percent(greedy.reduce((s, e) => s + e.acc_test, 0) / greedy.length)}.` }) : null);
  }

  function seekRound(epoch) {
    const round = Math.max(1, epoch);
    const u = desk.run.rows.updates.find((row) => row.round === round);
    slider.value = String(round);
    clear(now, el("b", { text: `round ${round}` }), ` of ${desk.run.lastEpoch}`, u ? ` · return ${fixed(u.return_mean)} ± ${fixed(u.return_sd)} · ${percent(u.acc_mean)} · ${whole(u.params_mean)} parameters` : "");
    drawPolicy(round);
  }

  return {
    update, seek: seekRound,
    element: el("div", {},
      el("section", { class: "first", "aria-label": "In short" }, lead, tiles),
      section("Return", el("div", { class: "player" }, slider, now), el("div", { class: "curves" }, charts.total.element, charts.accuracy.element, charts.params.element)),
      section("What the policy does", does),
      section("Transfer: runs that it decided", used),
      section("How it learned", el("div", { class: "curves" }, charts.entropy.element, charts.kl.element, charts.explained.element)),
      el("details", {}, el("summary", { text: "Settings of the run" }), settings)),
  };
}
