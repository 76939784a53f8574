// Trials: the forks with a seed against the one that got nothing.
import { clear, el, fixed, gauge, isNumber, plural, scaled, section, shortPolicy, signed, table, whole } from "./dom.js";

export function trials(desk) {
  const body = el("div", {});
  let drawn = "";

  function update() {
    const run = desk.run;
    const key = run.trials.map((t) => `${t.epoch}:${t.forks.length}:${t.verdict?.seq}:${t.stands}`).join() || whyNone(run);
    if (key === drawn && key) return;
    drawn = key;
    if (run.trials.length === 0) {
      const why = whyNone(run);
      const other = run.run.policy && run.run.policy !== "trials" ? `${shortPolicy(run.run.policy)} decided, which decides otherwise` : null;
      clear(body, el("p", { class: "soft", text: `No trial was held${run.isOver ? "" : " yet"}${other ?? why ? `: ${other ?? why}` : ""}.` }));
      return;
    }
    clear(body,
      el("p", { class: "soft", text: "The run is forked: once as it is, and once with each candidate. All train on the same batches while their rate falls to 0. Gain: validation loss of the fork that got nothing less the candidate's, with the interval that is right for all candidates together." }),
      run.trials.map(trialOf));
  }
  return { title: "Trials", update, element: section("Trials: forks against nothing", body) };
}

/** The last reason that is one: "it is over" tells nobody why nothing came before. As esper_report_why_nothing of src/ui/report_trials.c. */
function whyNone(run) {
  const empty = ["The rate falls: growing is over", "Nothing is left to try, or to try it with"];
  return run.rows.decisions.findLast((d) => d.stands && d.source === "policy" && d.reason && !empty.includes(d.reason))?.reason ?? null;
}

function trialOf(trial) {
  const most = Math.max(1e-9, ...trial.forks.map((f) => (isNumber(f.gain) && isNumber(f.reach) ? Math.abs(f.gain) + f.reach : 0)));
  const outcome = trial.winner ? `${trial.winner.blueprint} in ${trial.winner.slot} wins` : trial.asked ? `asked for, and ${trial.asked.blueprint} in ${trial.asked.slot} did best` : trial.verdict ? "none pays" : "not decided";
  const share = isNumber(trial.share) ? `, ${(100 * trial.share).toFixed(0)} % of the training FLOPs spent by its end` : "";
  return el("div", { class: "trial" + (trial.stands ? "" : " undone") },
    el("h3", { text: `Epoch ${trial.epoch}${share}: ${outcome}` }),
    trial.verdict?.reason ? el("p", { class: "soft", text: trial.verdict.reason }) : null,
    table([{ name: "Slot" }, { name: "Blueprint" }, { name: "Gain over nothing" }, { name: "nats", n: true }, { name: "Interval", n: true, kind: "extra" }, { name: "Loss", n: true, kind: "extra" }, { name: "Rounds", n: true, kind: "extra" }, { name: "Steps", n: true, kind: "extra" }, { name: "FLOPs", n: true, kind: "extra" }],
      trial.forks.map((fork) => ({
        className: fork === trial.winner ? "won" : null,
        cells: fork.slot
          ? [fork.slot, fork.blueprint, gauge(fork.gain, fork.gain - fork.reach, fork.gain + fork.reach, most), signed(fork.gain, 4), `${fixed(fork.gain - fork.reach, 4)} to ${fixed(fork.gain + fork.reach, 4)}`, fixed(fork.loss, 4), whole(fork.rounds), whole(fork.steps), scaled(fork.flops)]
          : ["nothing", el("span", { class: "soft", text: "as it is" }), el("span", { class: "soft", text: "what they are measured against" }), "0", "–", fixed(fork.loss, 4), whole(fork.rounds), whole(fork.steps), scaled(fork.flops)],
      })), { label: `Forks of the trial at epoch ${trial.epoch}: ${plural(trial.forks.length, "fork")}` }));
}
