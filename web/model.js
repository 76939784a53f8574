// A run as the page thinks of it: the rows of its store, those that stand, and what follows from them.
import { isNumber } from "./dom.js";

/** Rows as objects, from columns and arrays. */
function objects(columns, rows) {
  return rows.map((row) => {
    const one = {};
    for (let i = 0; i < columns.length; i++) one[columns[i]] = row[i];
    return one;
  });
}

/** A number of a line of the decision log, which may be cut short. */
export function numberIn(line, key) {
  const found = line?.match(new RegExp(`"${key}":(-?[0-9.eE+-]+)`));
  return found ? Number(found[1]) : NaN;
}

/** How far chance reaches around a gain, in standard errors, for n candidates together: esper_trial_bound of src/policy/trials.c. */
export function boundFor(n) {
  const tail = 0.05 / Math.max(1, n);
  let low = 0;
  let high = 7;
  while (high - low > 1e-9) {
    const middle = (low + high) / 2;
    if (1 - cumulative(middle) > tail) low = middle;
    else high = middle;
  }
  return high;
}

/** The normal distribution, by the series of Abramowitz and Stegun 26.2.11, which converges for all x we meet. */
function cumulative(x) {
  let term = x;
  let sum = x;
  for (let i = 3; i < 300 && Math.abs(term) > 1e-16; i += 2) {
    term *= (x * x) / i;
    sum += term;
  }
  return 0.5 + sum * Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
}

export class Run {
  constructor(whole) {
    this.id = whole.id;
    this.name = whole.name;
    this.mark = whole.mark;
    this.run = whole.run;
    this.control = whole.control;
    this.config = whole.config;
    this.dropped = whole.n_dropped;
    this.checks = whole.checks ?? {};
    this.columns = {};
    this.rows = {};
    for (const [name, table] of Object.entries(whole.tables)) {
      this.columns[name] = table.columns;
      this.rows[name] = objects(table.columns, table.rows);
    }
    this.controlRows = whole.control_epochs ? objects(whole.control_epochs.columns, whole.control_epochs.rows) : [];
    this.settings = readConfig(this.config);
    this.derive();
  }

  /** News of the server, which end at `mark`; false: there was nothing new in them. */
  add(news, mark) {
    const seen = Number(this.mark.split(".")[1]);
    const seenControl = Number(this.mark.split(".")[2]);
    const same = mark === this.mark && (!news.run || JSON.stringify(news.run) === JSON.stringify(this.run)) && (!news.control || JSON.stringify(news.control) === JSON.stringify(this.control));
    if (same) return false;
    if (news.run) this.run = news.run;
    if (news.control) this.control = news.control;
    this.dropped = news.n_dropped;
    for (const [name, rows] of Object.entries(news.rows))
      this.rows[name].push(...objects(this.columns[name], rows).filter((row) => row.seq > seen));
    this.controlRows.push(...objects(this.columns.epochs, news.control_rows).filter((row) => row.seq > seenControl));
    this.mark = mark;
    this.derive();
    return true;
  }

  get learns() {
    return this.run.policy === "learner";
  }

  get isOver() {
    return this.run.ended !== null;
  }

  /** Rows that no later rollback has undone: the rule of the views <table>_standing. */
  standing(name) {
    const back = this.rows.rollbacks;
    return this.rows[name].filter((row) => {
      if (name === "decisions" && (row.source === "governor" || row.source === "injection")) return true;
      return !back.some((b) => b.seq > row.seq && b.to_step < row.step);
    });
  }

  derive() {
    for (const row of this.rows.rollbacks) row.stands = true;
    for (const name of ["epochs", "germinations", "stages", "seed_epochs", "gates", "gate_checks", "decisions", "attributions"]) {
      for (const row of this.rows[name]) row.stands = false;
      for (const row of this.standing(name)) row.stands = true;
    }
    this.epochs = this.rows.epochs.filter((row) => row.stands);
    this.lastEpoch = this.epochs.reduce((last, row) => Math.max(last, row.epoch), Math.max(1, this.run.epochs ?? 1));
    if (this.learns) {
      this.lastEpoch = this.rows.updates.reduce((last, row) => Math.max(last, row.round), 1);
      return;
    }
    this.trials = findTrials(this.rows.decisions);
    this.seeds = findSeeds(this);
    this.phases = findPhases(this);
    this.marks = findMarks(this);
  }

  /** What is known of the epoch itself, or of the last one before it. */
  epochAt(epoch) {
    let best = null;
    for (const row of this.epochs) if (row.epoch <= epoch && (best === null || row.epoch >= best.epoch)) best = row;
    return best;
  }
}

/** The words of the index (docs/runs.md), of a run as its store has it. */
export function stateOf(row) {
  if (row.running) return "running";
  if (row.ended === null) return "cut off";
  if (row.status === "ESPER_OK") return "done";
  return row.status === "ESPER_E_STOPPED" ? "stopped" : "failed";
}

export function readConfig(text) {
  const settings = new Map();
  for (const line of (text ?? "").split("\n")) {
    const found = line.match(/^([a-z_0-9]+) *= *(.*)$/);
    if (found) settings.set(found[1], found[2].trim());
  }
  return settings;
}

/** The fork that got nothing begins a trial; what a policy decides behind the last of its forks came of it. */
function findTrials(decisions) {
  const trials = [];
  let trial = null;
  for (const row of decisions) {
    if (row.source !== "trial") {
      if (trial && !trial.verdict && row.source === "policy") trial.verdict = row;
      trial = null;
      continue;
    }
    if (!trial || !row.slot) {
      trial = { epoch: row.epoch, stands: row.stands, share: numberIn(row.line, "share"), forks: [], verdict: null };
      trials.push(trial);
    }
    trial.forks.push({
      row,
      slot: row.slot,
      blueprint: row.blueprint,
      rounds: numberIn(row.line, "round") + 1,
      steps: numberIn(row.line, "n_steps"),
      loss: numberIn(row.line, "loss"),
      gain: numberIn(row.line, "gain"),
      error: numberIn(row.line, "error"),
      flops: numberIn(row.line, "flops"),
    });
  }
  for (const one of trials) {
    const bound = boundFor(one.forks.length - 1);
    for (const fork of one.forks) fork.reach = bound * fork.error;
    one.winner = one.verdict && one.verdict.op === "germinate" && one.verdict.accepted === 1
      ? one.forks.find((f) => f.slot === one.verdict.slot && f.blueprint === one.verdict.blueprint) ?? null
      : null;
    one.asked = one.verdict?.op === "try" ? one.forks[1] ?? null : null; // by a policy, to decide by it later
    one.flops = one.forks.reduce((sum, f) => sum + (isNumber(f.flops) ? f.flops : 0), 0);
  }
  return trials;
}

/** Each seed that came and was not undone: where, when, its stages with their spans, what it is worth. */
function findSeeds(run) {
  const seeds = [];
  for (const born of run.rows.germinations) {
    if (!born.stands) continue;
    const moves = run.rows.stages.filter((m) => m.stands && m.seed === born.seed && m.seq > born.seq);
    const end = moves.findLast((m) => m.to_stage === "fossilized" || m.to_stage === "pruned") ?? null;
    const worth = run.rows.attributions.findLast((a) => a.stands && a.seed === born.seed && a.measure === "contribution" && a.seq > born.seq) ?? null;
    const trial = run.trials.find((t) => t.winner && t.verdict.stands && t.epoch === born.epoch && t.verdict.slot === born.slot) ?? null;
    const birth = run.rows.decisions.find((d) => d.stands && d.op === "germinate" && d.accepted === 1 && d.slot === born.slot && d.epoch === born.epoch);
    const spans = [];
    let stage = "germinated";
    let from = born.epoch;
    for (const move of moves) {
      if (move.to_stage === stage) continue;
      if (move.epoch > from || stage !== "germinated") spans.push({ stage, from, to: move.epoch });
      stage = move.to_stage;
      from = move.epoch;
    }
    const isGone = stage === "pruned" || stage === "embargoed" || stage === "resetting" || stage === "dormant";
    if (!isGone) spans.push({ stage, from, to: Math.max(run.lastEpoch, from) });
    seeds.push({
      seed: born.seed, slot: born.slot, blueprint: born.blueprint, params: born.params, born: born.epoch,
      share: birth ? numberIn(birth.line, "share") : NaN,
      stage: end?.to_stage ?? stage, end: end?.epoch ?? null, reason: end?.reason ?? born.reason, initiator: end?.initiator ?? null,
      spans, moves, worth, trial, fork: trial?.winner ?? null,
      alphas: run.rows.seed_epochs.filter((e) => e.stands && e.seed === born.seed),
      gates: run.rows.gates.filter((g) => g.seed === born.seed),
    });
  }
  return seeds;
}

/** Bands over epochs: the rate is held or falls; a trial was held; a seed is neither kept nor gone. */
function findPhases(run) {
  const phases = [];
  const rates = run.epochs.filter((e) => isNumber(e.lr));
  const top = rates.reduce((most, e) => Math.max(most, e.lr), 0);
  let fallFrom = null;
  for (const row of rates) {
    if (row.lr < top * 0.999) fallFrom ??= row.epoch;
    else fallFrom = null;
  }
  if (run.epochs.length > 0) {
    const hold = (fallFrom ?? run.lastEpoch + 1) - 1;
    if (hold >= 1) phases.push({ kind: "hold", from: 0.5, to: hold + 0.5 });
    if (fallFrom !== null) phases.push({ kind: "fall", from: fallFrom - 0.5, to: run.lastEpoch + 0.5 });
  }
  for (const seed of run.seeds) {
    const until = seed.end ?? run.lastEpoch;
    if (until > seed.born) phases.push({ kind: "grow", from: seed.born, to: until, text: `${seed.blueprint} in ${seed.slot}` });
  }
  for (const trial of run.trials) phases.push({ kind: "trial", from: trial.epoch - 0.5, to: trial.epoch + 0.5, stands: trial.stands, text: `trial of ${trial.forks.length - 1}` });
  return phases;
}

/** What happened, by epoch: every decision but waiting, every trial once, every rollback. */
function findMarks(run) {
  const marks = [];
  for (const trial of run.trials)
    marks.push({ epoch: trial.epoch, kind: "trial", text: `trial of ${trial.forks.length - 1} seeds: ${trial.winner ? `${trial.winner.blueprint} in ${trial.winner.slot} wins` : trial.asked ? `${trial.asked.blueprint} in ${trial.asked.slot} did best` : trial.verdict ? "none pays" : "not decided"}` });
  for (const row of run.rows.decisions) {
    if (row.op === "wait" || row.source === "trial" || !row.stands) continue;
    if (row.op === "try" && row.accepted !== 0) continue; // told by its trial
    if (row.source === "governor" && row.op !== "skip") continue; // told by its rollback
    marks.push({ epoch: row.epoch, kind: row.accepted === 0 ? "refused" : row.source === "injection" ? "fault" : row.op, text: [row.op, row.blueprint, row.slot && `in ${row.slot}`, row.accepted === 0 && "(refused)", row.reason && `: ${row.reason}`].filter(Boolean).join(" ") });
  }
  for (const row of run.rows.stages)
    if (row.stands && row.initiator === "auto" && (row.to_stage === "pruned" || row.to_stage === "fossilized"))
      marks.push({ epoch: row.epoch, kind: row.to_stage === "pruned" ? "prune" : "fossilize", text: `${row.slot} ${row.to_stage}: ${row.reason ?? ""}` });
  for (const row of run.rows.rollbacks)
    marks.push({ epoch: row.from_epoch || row.epoch, kind: "rollback", text: `back to epoch ${row.to_epoch}, step ${row.to_step}: ${row.reason ?? ""}` });
  return marks.sort((a, b) => a.epoch - b.epoch);
}

/** Exponential mean; what is not finite is passed over. */
export function smooth(points, weight) {
  if (weight <= 0) return points;
  let mean = null;
  return points.map(([x, y]) => {
    if (!isNumber(y)) return [x, y];
    mean = mean === null ? y : weight * mean + (1 - weight) * y;
    return [x, mean];
  });
}
