// What somebody wants to know first: which seed paid, when it came, what it cost, whether it helped, whether all is well.
import { clear, duration, el, fixed, isNumber, percent, plural, scaled, shortPolicy, signed, whole } from "./dom.js";
import { stateOf } from "./model.js";
import { badge } from "./view-runs.js";

export function answers(desk) {
  const lead = el("p", { class: "lead", id: "lead" });
  const tiles = el("dl", { class: "tiles" });
  const facts = el("p", { class: "facts soft" });
  const notes = el("div", {});

  function update() {
    const run = desk.run;
    clear(lead, leadOf(run));
    clear(tiles, [whichPaid(run), whenCame(run), whatCost(run), didHelp(run), isHealthy(run)].map(tile));
    clear(facts, factsOf(run).flatMap((fact, i) => [i > 0 ? " · " : "", fact]));
    clear(notes, run.dropped > 0 ? el("p", { class: "note", text: `${plural(run.dropped, "record")} of this run were lost (a full queue or disk): curves may have gaps.` }) : null);
  }
  return { element: el("section", { class: "first", "aria-label": "In short" }, lead, tiles, facts, notes), update };
}

function tile({ question, answer, why, kind, id }) {
  return el("div", { class: "tile" + (kind ? " t-" + kind : ""), id }, el("dt", { text: question }), el("dd", {}, el("b", { text: answer }), el("span", { class: "why" }, why)));
}

function leadOf(run) {
  const state = stateOf(run.run);
  const words = { running: "is running", "cut off": "was cut off (its process was killed)", done: "is done", stopped: "was stopped", failed: "failed" };
  const last = run.epochs.at(-1);
  return [badge(state), ` ${run.run.task ?? "?"}, decided by ${shortPolicy(run.run.policy) ?? "nobody"}: it ${words[state]} after ${plural(last?.epoch ?? 0, "epoch")}`,
    last ? `, with ${percent(isNumber(run.run.acc_test) ? run.run.acc_test : last.acc_valid)} of ${isNumber(run.run.acc_test) ? "the test split" : "validation"} right and ${whole(last.params)} parameters${apart(run)}.` : "."];
}

/** A seed that is not blended in yet is counted, and is no part of what the network computes. */
function apart(run) {
  const learning = run.seeds.filter((s) => s.stage === "germinated" || s.stage === "training");
  const params = learning.reduce((sum, s) => sum + (s.params ?? 0), 0);
  return params > 0 ? `, ${whole(params)} of them in ${learning.length === 1 ? "a seed that still learns" : `${learning.length} seeds that still learn`} beside it` : "";
}

const named = (seed) => `${seed.blueprint} in ${seed.slot}`;

/** Those that were kept, the largest gain first; where none was yet, those that are part of the network. */
function payers(run) {
  const kept = run.seeds.filter((s) => s.stage === "fossilized");
  const chosen = kept.length > 0 ? kept : run.seeds.filter((s) => s.stage === "blending" || s.stage === "holding");
  return chosen.toSorted((a, b) => (b.fork?.gain ?? b.worth?.value ?? 0) - (a.fork?.gain ?? a.worth?.value ?? 0));
}

function whichPaid(run) {
  const paid = payers(run);
  const question = "Which seed paid?";
  const gone = run.seeds.filter((s) => s.stage === "pruned").length;
  if (paid.length === 0)
    return { id: "answer-which", question, answer: run.isOver ? "none" : "none yet", why: run.seeds.length > gone ? `${run.seeds.filter((s) => s.stage !== "pruned").map((s) => `${named(s)} is ${s.stage === "training" ? "in training" : s.stage}`).join(", ")}${gone > 0 ? `; ${gone} pruned` : ""}` : gone > 0 ? `${plural(gone, "seed")} came and went again` : run.trials.length > 0 ? `${plural(run.trials.length, "trial")} held, no candidate paid` : "no seed has come" };
  const first = paid[0];
  const evidence = first.fork
    ? `best of ${first.trial.forks.length - 1} tried: its fork's validation loss ended ${fixed(first.fork.gain, 4)} nats below that of the fork without a seed (${fixed(first.fork.gain - first.fork.reach, 4)} to ${fixed(first.fork.gain + first.fork.reach, 4)})`
    : first.worth ? `without it accuracy is ${fixed(first.worth.value, 2)} points lower` : first.reason ?? "";
  const rest = paid.slice(1).map(named).join(", ");
  return { id: "answer-which", question, answer: named(first), kind: first.stage === "fossilized" ? "good" : null,
    why: [first.stage === "fossilized" ? "kept; " : `it joined, and is not kept yet (${first.stage}); `, evidence, rest ? `; also ${rest}` : "", gone > 0 ? `; ${gone} pruned` : ""] };
}

function whenCame(run) {
  const paid = payers(run);
  const question = "When was it put in?";
  if (paid.length === 0) return { id: "answer-when", question, answer: "–", why: run.seeds.length > 0 ? `${run.seeds.map((s) => `${named(s)} came at epoch ${s.born}`).slice(0, 3).join(", ")}${run.seeds.length > 3 ? " …" : ""}; none is part of the network` : run.trials.length > 0 ? `trials at epoch ${run.trials.map((t) => t.epoch).join(", ")}` : "no seed has come" };
  const first = paid[0];
  const share = isNumber(first.share) ? `; by then ${(100 * first.share).toFixed(0)} % of the training FLOPs were spent, trials included` : "";
  const until = first.end !== null ? `kept for good at epoch ${first.end}` : `${first.stage} now, not kept for good yet`;
  return { id: "answer-when", question, answer: `epoch ${first.born}`, why: `of ${run.lastEpoch}${share}; ${until}${paid.length > 1 ? `; the others at ${paid.slice(1).map((s) => s.born).join(", ")}` : ""}` };
}

function whatCost(run) {
  const paid = payers(run);
  const params = paid.reduce((sum, s) => sum + (s.params ?? 0), 0);
  const host = run.run.params_host;
  const spent = run.run.flops_train ?? run.epochs.at(-1)?.flops_train;
  const forks = run.trials.filter((t) => t.stands).reduce((sum, t) => sum + t.flops, 0);
  const more = [];
  if (isNumber(run.run.flops) && isNumber(run.run.flops_host)) more.push(`${scaled(run.run.flops)} FLOPs a sample, ×${(run.run.flops / run.run.flops_host).toFixed(2)}`);
  if (forks > 0 && spent > 0) more.push(`trials took ${((100 * forks) / spent).toFixed(1)} % of ${scaled(spent)}FLOPs of training`);
  return { id: "answer-cost", question: "What did it cost?", answer: params > 0 ? `${whole(params)} parameters` : "nothing",
    why: [isNumber(host) && params > 0 ? `the host has ${whole(host)}: ×${((host + params) / host).toFixed(2)} in all` : "", ...more].filter(Boolean).join("; ") };
}

function didHelp(run) {
  const question = "Did it help?";
  const grown = run.run.acc_test;
  const fixedHost = run.control?.acc_test;
  if (isNumber(grown) && isNumber(fixedHost)) {
    const difference = grown - fixedHost;
    return { id: "answer-help", question, answer: `${signed(difference)} points`, kind: Math.abs(difference) < 0.005 ? null : difference > 0 ? "good" : "bad",
      why: `test accuracy ${percent(grown)}, the same host without growth ${percent(fixedHost)}${payers(run).length > 0 ? "; one run of each" : "; no seed is part of the network"}` };
  }
  const mine = run.epochs.at(-1)?.acc_valid;
  const control = run.controlRows.at(-1);
  const first = payers(run)[0];
  if (isNumber(mine) && isNumber(control?.acc_valid))
    return { id: "answer-help", question, answer: `${signed(mine - control.acc_valid)} points so far`, why: `validation accuracy ${percent(mine)}, the static control at its epoch ${control.epoch} ${percent(control.acc_valid)}` };
  if (first?.fork) return { id: "answer-help", question, answer: `${signed(first.fork.gain, 4)} nats`, kind: first.fork.gain > 0 ? "good" : "bad", why: "of validation loss, against the fork that got no seed in its trial; there is no static control (--static-control) to compare the ends" };
  if (first?.worth) return { id: "answer-help", question, answer: `${signed(first.worth.value)} points`, why: "of accuracy depend on it, which is not what it gained: that takes a trial or a static control" };
  return { id: "answer-help", question, answer: "–", why: "nothing grew, or nothing to compare with" };
}

function isHealthy(run) {
  const backs = run.rows.rollbacks.length;
  const hits = run.rows.health.filter((h) => h.n_tensors > 0);
  const skipped = Math.max(0, ...run.rows.health.map((h) => h.n_skipped ?? 0));
  const broken = run.rows.epochs.filter((e) => e.stands && (typeof e.loss_valid === "string" || typeof e.loss_train === "string")).length;
  const last = run.epochs.at(-1);
  const failed = run.isOver && run.run.status !== "ESPER_OK" && run.run.status !== "ESPER_E_STOPPED";
  const tensors = new Set(hits.map((h) => h.tensor)).size;
  const words = [];
  if (backs > 0) words.push(`went back ${plural(backs, "time")}, last to epoch ${run.rows.rollbacks.at(-1).to_epoch}`);
  if (skipped > 0) words.push(`${plural(skipped, "step")} skipped`);
  if (hits.length > 0) words.push(`${plural(tensors, "tensor")} went bad`);
  if (broken > 0) words.push(`${plural(broken, "epoch")} with a loss that is not finite`);
  if (failed) words.push(`ended as ${run.run.status}`);
  const bad = failed || broken > 0;
  const answer = bad ? "no" : words.length > 0 ? "yes, after repairs" : "yes";
  return { id: "answer-healthy", question: "Is it healthy?", answer, kind: bad ? "bad" : words.length > 0 ? "warn" : "good",
    why: words.length > 0 ? words.join("; ") : `nothing went bad, no rollback${last ? `; gradient norm ${fixed(last.grad_norm, 2)}` : ""}` };
}

function factsOf(run) {
  const r = run.run;
  const time = isNumber(r.seconds) ? r.seconds : run.epochs.reduce((sum, e) => sum + (isNumber(e.seconds) ? e.seconds : 0), 0);
  const classes = run.rows.classes?.map((c) => c.name) ?? [];
  const data = classes.length > 0 ? `${plural(classes.length, "class", "classes")}: ${classes.slice(0, 20).join(", ")}${classes.length > 20 ? ` and ${classes.length - 20} more` : ""}` : null;
  return [data, `random seed ${r.rng_seed}`, r.kernels, r.threads ? plural(r.threads, "thread") : null, r.gate_mode ? `${r.gate_mode} gates` : null, `time ${duration(time)}`, r.build ? `build ${r.build}` : null, r.n_resumed > 0 ? `resumed ${plural(r.n_resumed, "time")}` : null].filter(Boolean);
}
