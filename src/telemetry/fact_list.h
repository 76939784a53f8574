/* Internal. The one list of what a run tells: each fact, with its fields, once. From it come the struct that is filled
 * (fact.h), the lines of events.jsonl, the tables, schema and statements of the run store (store.h), the entries of the
 * decision log (grow/decision_log.h), and the tables of docs/events.md, docs/store.md and docs/decisions.md (scripts/docs).
 *
 *     FACT(NAME, name, table, event, priority, fate, meaning)   and for each an ESPER_FACT_<NAME>_FIELDS(F, e) of
 *     F(e, where, kind, arg, name, meaning)                     e: the fact's name, handed through
 *
 * event     what a line of it is called; NULL: it has none
 * priority  KEPT: the last quarter of the store's queue is kept free for it; MANY: dropped first when the writer is behind
 * fate      UNDONE: a rollback can undo what it tells, so there is a view <table>_standing without such rows; STANDS: it cannot
 * where     BOTH: in lines and rows under its name; LINE, ROW: in one of them; AS(x): in both, in lines called x;
 *           LINE_AS(x): in lines alone, called x; LOG: in the decision log, which has kinds of its own, below
 * kind      INT, REAL, TEXT (borrowed by the fact; arg: bytes of it in a row, with its zero), NAME (a code that travels; arg:
 *           its vocabulary in fact.c, which makes the text), U64 (decimal text: readers of JSON and SQLite's integers end
 *           before 64 bits), HASH (16 hexadecimal digits), EPOCH (the one that every fact has, as a member of its line)
 *
 * Lines carry v, event, seq, time and step besides. A reader passes over events and members that it does not know, so adding
 * one needs no new ESPER_EVENT_VERSION; renaming, removing or changing the meaning of one does. Rows begin with run, seq,
 * time, epoch, step, nonfinite; any change of a table or column needs a new ESPER_STORE_VERSION.
 *
 * A run that learns (esper learn) writes episodes, their rewards, updates, and of its decisions those that germinate. Its
 * `epoch` is the round, from 1, and its `step` counts steps of all environments together, so that it is cut back and resumed
 * as any other. */
#ifndef ESPER_TELEMETRY_FACT_LIST_H
#define ESPER_TELEMETRY_FACT_LIST_H

#include "policy/reward.h"

#define ESPER_EVENT_VERSION 1

/* 4 is 3 without the table `events`, which nobody filled; 5 is 4 with the column `gain` of `rewards`; 6 is 5 with the table
 * `parts`; 7 is 6 with the table `classes`. Older stores are read, and gone on with (store_sql.c). */
#define ESPER_STORE_VERSION        7
#define ESPER_STORE_VERSION_OLDEST 3

#define ESPER_FACT_TABLE_LIST(FACT) \
    FACT(EPOCH, epoch_done, epochs, "epoch_ended", KEPT, UNDONE, "an epoch was trained and validated") \
    FACT(GERMINATION, germination, germinations, NULL, KEPT, UNDONE, "a seed came into a slot") \
    FACT(STAGE, stage, stages, "seed_moved", KEPT, UNDONE, "a seed went from one stage to another") \
    FACT(SEED_EPOCH, seed_epoch, seed_epochs, NULL, MANY, UNDONE, "how a seed stood at the end of an epoch") \
    FACT(GATE, gate, gates, "gate_judged", KEPT, UNDONE, "a gate was asked about a seed, and let it pass or not") \
    FACT(CHECK, check, gate_checks, NULL, KEPT, UNDONE, "one check of that evaluation: the evidence") \
    FACT(DECISION, decision, decisions, "decided", KEPT, UNDONE, "what was decided, and whether it was done") \
    FACT(HEALTH, health, health, "guard_tripped", MANY, STANDS, "the guard found something, and what was done") \
    FACT(ROLLBACK, rollback, rollbacks, "rolled_back", KEPT, STANDS, "the run went back to a snapshot") \
    FACT(ATTRIBUTION, attribution, attributions, NULL, MANY, UNDONE, "what a seed, or a pair, is worth") \
    FACT(REWARD, reward, rewards, NULL, MANY, UNDONE, "what a decided epoch was worth, part by part") \
    FACT(EPISODE, episode, episodes, NULL, KEPT, STANDS, "a learner played an episode to its end") \
    FACT(UPDATE, update, updates, NULL, KEPT, STANDS, "a learner's policy was updated") \
    FACT(PART, part, parts, NULL, KEPT, STANDS, "a part of the network as its host was built: a block, or a slot") \
    FACT(CLASS, class, classes, NULL, KEPT, STANDS, "a class of the data, where the data names them")

/* Those without a table of their own. The first two are the row of a run in `runs`. */
#define ESPER_FACT_OTHER_LIST(FACT)                                                                         \
    FACT(RUN_STARTED, run_started, NONE, "run_started", KEPT, STANDS, "a run begins; its identity in full") \
    FACT(RUN_ENDED, run_ended, NONE, "run_ended", KEPT, STANDS, "a run is over, well or not")               \
    FACT(CHECKPOINT_SAVED, checkpoint_saved, NONE, "checkpoint_saved", KEPT, STANDS,                        \
         "a checkpoint is complete on disk")                                                                \
    FACT(RUN_RESUMED, run_resumed, NONE, "run_resumed", KEPT, STANDS, "a run goes on from a checkpoint")    \
    FACT(WARNING, warning, NONE, "warning", KEPT, STANDS, "something a person should know; the run goes on")

#define ESPER_FACT_LIST(FACT) ESPER_FACT_TABLE_LIST(FACT) ESPER_FACT_OTHER_LIST(FACT)

/* ---- the run ---- */

#define ESPER_FACT_RUN_STARTED_FIELDS(F, e) \
    F(e, BOTH, TEXT, 64, task, "name of the task") \
    F(e, AS(run), TEXT, 256, name, "the run's directory") \
    F(e, AS(seed), U64, 0, rng_seed, "seed of all random numbers, decimal") \
    F(e, LINE, TEXT, 0, config, "the whole configuration as text, which the store keeps apart") \
    F(e, BOTH, TEXT, 64, kernels, "backend and kernel set, part of the run's identity") \
    F(e, BOTH, INT, 0, threads, "threads in use") \
    F(e, LINE, INT, 0, ranks, "processes that work on it") \
    F(e, LINE, INT, 0, params, "trained parameters") \
    F(e, AS(commit), TEXT, 64, build, "commit the program was built from") \
    F(e, BOTH, TEXT, 64, policy, \
      "a policy's name; a program; learned, hash and name of its file; learner: a run of esper learn") \
    F(e, ROW, TEXT, 16, gate_mode, "strict or permissive") \
    F(e, ROW, INT, 0, parent_run, "run of this store that it belongs to; NULL: none") \
    F(e, ROW, TEXT, 32, relation, "what it is to that run: static-control; NULL: none") \
    F(e, ROW, INT, 0, params_host, "parameters of the host without seeds, planted ones neither") \
    F(e, ROW, TEXT, 16, reward_mode, "what rewards go by; NULL: there are none") \
    F(e, ROW, INT, 0, flops_host, "FLOPs of a forward pass of one sample through that host")

#define ESPER_FACT_RUN_ENDED_FIELDS(F, e) \
    F(e, BOTH, NAME, status, status, "name of an esper_status") \
    F(e, BOTH, INT, 0, epochs, "epochs done") \
    F(e, BOTH, INT, 0, steps, "optimiser steps done") \
    F(e, ROW, INT, 0, params, "of the network that is tested: the host, and seeds that blend, hold or were kept") \
    F(e, ROW, INT, 0, flops, "FLOPs of a forward pass of one sample through that network") \
    F(e, ROW, INT, 0, flops_train, "FLOPs spent on training, attribution included") \
    F(e, BOTH, REAL, 0, loss_test, "mean over the test split, nats") \
    F(e, BOTH, REAL, 0, acc_test, "percent of the test split") \
    F(e, BOTH, HASH, 0, weight_hash, "of all weights and norm buffers at the end") \
    F(e, BOTH, REAL, 0, seconds, "wall clock of the run, in this process") \
    F(e, ROW, REAL, 0, total_reward, \
      "the sum of its rewards; of a learner the mean return of its last round; NULL: there were none, or they go by gain, and it had no twin")

#define ESPER_FACT_CHECKPOINT_SAVED_FIELDS(F, e) \
    F(e, LINE, TEXT, 0, path, "the file") \
    F(e, LINE, EPOCH, 0, epoch, "epochs finished") \
    F(e, LINE, INT, 0, bytes, "of the file")

/* kernels, threads, config: of the run from here on; the last is the checkpoint's with what was asked for over it. */
#define ESPER_FACT_RUN_RESUMED_FIELDS(F, e) \
    F(e, LINE, TEXT, 0, path, "the checkpoint") \
    F(e, LINE, EPOCH, 0, epoch, "epochs it had finished") \
    F(e, LINE, TEXT, 0, kernels, "as in run_started") \
    F(e, LINE, INT, 0, threads, "as in run_started") \
    F(e, LINE, INT, 0, ranks, "as in run_started") \
    F(e, LINE, TEXT, 0, config, "as in run_started")

#define ESPER_FACT_WARNING_FIELDS(F, e) F(e, LINE, TEXT, 0, text, "one sentence or two")

/* ---- epochs and what is decided at their ends. An epoch's line is written when it is measured, its row when what follows
 *      from it is done. ---- */

#define ESPER_FACT_EPOCH_FIELDS(F, e) \
    F(e, LINE, EPOCH, 0, epoch, "from 1") \
    F(e, BOTH, REAL, 0, loss_train, "mean over the epoch's batches, nats") \
    F(e, BOTH, REAL, 0, acc_train, "percent of the epoch's samples") \
    F(e, BOTH, REAL, 0, loss_valid, "mean over the validation split, nats") \
    F(e, BOTH, REAL, 0, acc_valid, "percent of the validation split") \
    F(e, BOTH, REAL, 0, lr, "learning rate of the last step") \
    F(e, BOTH, REAL, 0, grad_norm, "norm of the last gradient, before clipping") \
    F(e, ROW, INT, 0, params, "of the host and all seeds in slots, after the epoch's decision") \
    F(e, ROW, INT, 0, n_seeds, "seeds in slots then, fossilised ones included") \
    F(e, ROW, INT, 0, flops_train, "FLOPs spent on training so far") \
    F(e, BOTH, REAL, 0, samples_per_s, "speed of training, validation not included") \
    F(e, BOTH, REAL, 0, seconds, "wall clock of the epoch") \
    F(e, ROW, HASH, 0, weight_hash, "of all weights and norm buffers after it")

#define ESPER_FACT_GERMINATION_FIELDS(F, e) \
    F(e, ROW, INT, 0, seed, "number of the seed in this run") \
    F(e, ROW, TEXT, 16, slot, "such as r0c1") \
    F(e, ROW, TEXT, 48, blueprint, "what it was made from") \
    F(e, ROW, NAME, blend, blend, "how it joins: add, multiply, gate") \
    F(e, ROW, INT, 0, params, "its parameters") \
    F(e, ROW, INT, 0, parent_run, "run it was carried over from; NULL: it is new") \
    F(e, ROW, INT, 0, parent_seed, "its number there") \
    F(e, ROW, REAL, 0, acc_valid, "percent, when it came: what it is measured from") \
    F(e, ROW, TEXT, 160, reason, "why it was put there")

/* alpha: after the move, but before a prune. */
#define ESPER_FACT_STAGE_FIELDS(F, e) \
    F(e, LINE, EPOCH, 0, epoch, "in which it happened") \
    F(e, ROW, INT, 0, seed, "the seed") \
    F(e, BOTH, TEXT, 16, slot, "its slot") \
    F(e, LINE_AS(seed), TEXT, 0, seed_id, "the seed's name") \
    F(e, LINE, TEXT, 0, blueprint, "what it was made from") \
    F(e, AS(from), NAME, stage, from_stage, "stage it left") \
    F(e, AS(to), NAME, stage, to_stage, "stage it entered") \
    F(e, BOTH, REAL, 0, alpha, "its weight; for a prune, the weight before it") \
    F(e, ROW, REAL, 0, acc_delta, "percentage points since it germinated") \
    F(e, ROW, INT, 0, epochs_in_stage, "spent in the stage it left") \
    F(e, LINE, INT, 0, params, "its parameters") \
    F(e, BOTH, TEXT, 160, reason, "why") \
    F(e, BOTH, TEXT, 16, initiator, "policy, governor or auto")

#define ESPER_FACT_SEED_EPOCH_FIELDS(F, e) \
    F(e, ROW, INT, 0, seed, "the seed") \
    F(e, ROW, TEXT, 16, slot, "its slot") \
    F(e, ROW, NAME, stage, stage, "its stage") \
    F(e, ROW, INT, 0, epochs_in_stage, "so far") \
    F(e, ROW, REAL, 0, alpha, "its weight, 0 to 1") \
    F(e, ROW, REAL, 0, alpha_target, "where its weight is going") \
    F(e, ROW, INT, 0, params, "its parameters") \
    F(e, ROW, REAL, 0, grad_norm, "norm of its gradient") \
    F(e, ROW, REAL, 0, grad_ratio, "its gradient for each parameter beside the host's") \
    F(e, ROW, REAL, 0, grad_health, "0 to 1: no vanishing and no exploding gradients")

#define ESPER_FACT_GATE_FIELDS(F, e) \
    F(e, LINE, EPOCH, 0, epoch, "in which it was asked") \
    F(e, ROW, INT, 0, seed, "the seed") \
    F(e, BOTH, TEXT, 16, slot, "its slot") \
    F(e, LINE_AS(seed), TEXT, 0, seed_id, "the seed's name") \
    F(e, BOTH, NAME, gate, gate, "G0, G1, G2, G3 or G5") \
    F(e, ROW, NAME, mode, mode, "strict or permissive") \
    F(e, ROW, NAME, stage, to_stage, "stage behind the gate") \
    F(e, BOTH, INT, 0, passed, "1 or 0") \
    F(e, ROW, REAL, 0, score, "0 to 1, for people alone") \
    F(e, BOTH, TEXT, 160, message, "one line for people")

#define ESPER_FACT_CHECK_FIELDS(F, e) \
    F(e, ROW, INT, 0, gate, "seq of the evaluation in gates") \
    F(e, ROW, NAME, check, name, "what was looked at") \
    F(e, ROW, REAL, 0, value, "what was measured; NULL: nothing was") \
    F(e, ROW, REAL, 0, threshold, "what it was held against; NULL: it was yes or no") \
    F(e, ROW, INT, 0, passed, "1 or 0")

/* Policies have a line, and governor and drills, whose lines are others, have a row alone. op and reason: in three vocabularies,
 * so they travel as texts. */
#define ESPER_FACT_DECISION_FIELDS(F, e) \
    F(e, LINE, EPOCH, 0, epoch, "at whose end") \
    F(e, ROW, INT, 0, number, "place in the decision log, from 0") \
    F(e, ROW, TEXT, 16, source, "policy, governor, injection or trial") \
    F(e, BOTH, TEXT, 32, op, "an operation of a policy, a rung of the governor's ladder, or a fault") \
    F(e, BOTH, TEXT, 16, slot, "where") \
    F(e, ROW, INT, 0, seed, "with which seed") \
    F(e, BOTH, TEXT, 48, blueprint, "germinate: what to make") \
    F(e, ROW, NAME, blend, blend, "how it joins") \
    F(e, ROW, INT, 0, tempo, "epochs of blending") \
    F(e, ROW, REAL, 0, alpha_target, "where its weight shall go") \
    F(e, ROW, INT, 0, alpha_speed, "in so many epochs") \
    F(e, ROW, NAME, curve, alpha_curve, "along this curve") \
    F(e, BOTH, INT, 0, accepted, "1: done; 0: refused, which a policy alone can be") \
    F(e, LINE_AS(reason), TEXT, 0, text, "why it was decided") \
    F(e, LINE, TEXT, 0, refusal, "why it was not done") \
    F(e, ROW, TEXT, 160, reason, "why it was decided, or refused; of a fault: what was hit") \
    F(e, ROW, TEXT, 512, line, "the line of the decision log; what is longer is cut short")

/* ---- incidents ---- */

/* A tensor with bad elements, or, without one, a validation loss. In lines a first_index of -1 is not known. */
#define ESPER_FACT_HEALTH_FIELDS(F, e) \
    F(e, ROW, REAL, 0, grad_norm, "of all gradients") \
    F(e, ROW, REAL, 0, param_norm, "of all parameters") \
    F(e, ROW, INT, 0, n_skipped, "steps skipped so far") \
    F(e, ROW, INT, 0, n_tensors, "bad tensors found; 0: all is well") \
    F(e, BOTH, TEXT, 128, tensor, "the first of them") \
    F(e, BOTH, TEXT, 16, role, "param, grad, moment or buffer") \
    F(e, BOTH, TEXT, 16, problem, "NaN, Inf, or changed") \
    F(e, AS(count), INT, 0, n_elements, "bad ones in that tensor") \
    F(e, BOTH, INT, 0, first_index, "the first of these") \
    F(e, BOTH, REAL, 0, loss, "validation loss, when that was judged") \
    F(e, BOTH, NAME, cause, reason, "the governor's word") \
    F(e, BOTH, NAME, action, action, "go, skip, roll_back, prune or stop")

#define ESPER_FACT_ROLLBACK_FIELDS(F, e) \
    F(e, ROW, NAME, action, action, "rung of the ladder: roll_back, prune or stop") \
    F(e, ROW, INT, 0, from_epoch, "epochs finished when it happened") \
    F(e, BOTH, INT, 0, from_step, "optimiser steps done then") \
    F(e, ROW, INT, 0, to_epoch, "epochs finished at the snapshot") \
    F(e, BOTH, INT, 0, to_step, "optimiser steps done at the snapshot") \
    F(e, AS(damaged), INT, 0, n_damaged, "newer snapshots that could not be used") \
    F(e, LINE_AS(reason), NAME, cause, cause, "the governor's word") \
    F(e, ROW, INT, 0, n_pruned, "seeds pruned with it") \
    F(e, ROW, REAL, 0, lr_scale, "factor on the learning rate from here on") \
    F(e, BOTH, REAL, 0, seconds, "it took") \
    F(e, ROW, TEXT, 128, reason, "why")

/* ---- what seeds are worth, and what is learned from it ---- */

#define ESPER_FACT_ATTRIBUTION_FIELDS(F, e)                                                                                                                       \
    F(e, ROW, NAME, measure, measure,                                                                                                                             \
      "contribution (the dependence: accuracy lost without it), synergy, shapley, trial (what a seed that trains aside would add), or evidence of an empty slot") \
    F(e, ROW, INT, 0, seed, "the seed")                                                                                                                           \
    F(e, ROW, TEXT, 16, slot, "its slot")                                                                                                                         \
    F(e, ROW, INT, 0, other_seed, "the second of a pair")                                                                                                         \
    F(e, ROW, REAL, 0, value, "percentage points of validation accuracy; of evidence: no unit")                                                                   \
    F(e, ROW, REAL, 0, lower, "one-sided 95 % bound below")                                                                                                       \
    F(e, ROW, REAL, 0, upper, "one-sided 95 % bound above")                                                                                                       \
    F(e, ROW, INT, 0, n_samples, "validation samples it rests on")                                                                                                \
    F(e, ROW, INT, 0, n_epochs, "epochs it rests on")

/* The parts are those of ESPER_REWARD_PART_LIST, a column each. */
#define ESPER_FACT_REWARD_PART(F, part, name, about) F(reward, ROW, REAL, 0, name, about)
#define ESPER_FACT_REWARD_FIELDS(F, e) \
    F(e, ROW, INT, 0, round, "of a learner; NULL: it is a run of its own") \
    F(e, ROW, INT, 0, env, "environment of the learner, from 0") \
    F(e, ROW, INT, 0, episode_epoch, "epoch of the episode, from 1; of a run: its epoch") \
    F(e, ROW, NAME, op, op, "the operation, as it came out") \
    F(e, ROW, REAL, 0, total, "the sum of all that follow") \
    ESPER_REWARD_PART_LIST(ESPER_FACT_REWARD_PART, F)

#define ESPER_FACT_EPISODE_FIELDS(F, e) \
    F(e, ROW, INT, 0, round, "in which it was played") \
    F(e, ROW, INT, 0, env, "environment that played it, from 0") \
    F(e, ROW, U64, 0, rng_seed, "seed of its random numbers, decimal") \
    F(e, ROW, TEXT, 64, policy, "who decided: learned, greedy, or a policy's name") \
    F(e, ROW, REAL, 0, total_reward, "its return: the sum of its rewards") \
    F(e, ROW, REAL, 0, acc_valid, "percent of the validation split, at the end") \
    F(e, ROW, REAL, 0, acc_valid_best, "the best of its epochs") \
    F(e, ROW, REAL, 0, acc_test, "percent of the test split; NULL: it was played to learn from") \
    F(e, ROW, INT, 0, params, "of the network at the end, as runs.params") \
    F(e, ROW, INT, 0, n_germinated, "seeds that came") \
    F(e, ROW, INT, 0, n_kept, "seeds that were kept") \
    F(e, ROW, INT, 0, n_pruned, "seeds that were removed") \
    F(e, ROW, INT, 0, n_rollbacks, "times it went back to a snapshot") \
    F(e, ROW, INT, 0, n_steps, "decisions") \
    F(e, ROW, REAL, 0, seconds, "wall clock")

#define ESPER_FACT_UPDATE_FIELDS(F, e) \
    F(e, ROW, INT, 0, round, "whose episodes it learned from") \
    F(e, ROW, INT, 0, n_episodes, "of them") \
    F(e, ROW, REAL, 0, return_mean, "their mean return") \
    F(e, ROW, REAL, 0, return_sd, "its sample standard deviation") \
    F(e, ROW, REAL, 0, acc_mean, "mean validation accuracy at their ends, percent") \
    F(e, ROW, REAL, 0, params_mean, "mean of the parameters at their ends") \
    F(e, ROW, REAL, 0, kl, "how far the policy moved, nats") \
    F(e, ROW, REAL, 0, clip_fraction, "share of the steps whose ratio, of all heads together, was clipped") \
    F(e, ROW, REAL, 0, explained_variance, "of returns by the critic, at most 1") \
    F(e, ROW, REAL, 0, loss_policy, "mean over minibatches") \
    F(e, ROW, REAL, 0, loss_value, "the same, of the critic") \
    F(e, ROW, REAL, 0, entropy, "mean over heads; 0: decided, 1: undecided") \
    F(e, ROW, REAL, 0, entropy_slot, "of a head, where it had a choice, before the update") \
    F(e, ROW, REAL, 0, entropy_blueprint, "the same") \
    F(e, ROW, REAL, 0, entropy_style, "the same") \
    F(e, ROW, REAL, 0, entropy_tempo, "the same") \
    F(e, ROW, REAL, 0, entropy_alpha_target, "the same") \
    F(e, ROW, REAL, 0, entropy_alpha_speed, "the same") \
    F(e, ROW, REAL, 0, entropy_alpha_curve, "the same") \
    F(e, ROW, REAL, 0, entropy_op, "the same") \
    F(e, ROW, INT, 0, n_learned, "optimiser steps taken") \
    F(e, ROW, INT, 0, n_skipped, "minibatches left out because something was not finite") \
    F(e, ROW, REAL, 0, grad_norm, "mean over minibatches, before clipping") \
    F(e, ROW, REAL, 0, steps_per_s, "steps of all environments, for each second of the round") \
    F(e, ROW, REAL, 0, seconds, "wall clock of the round") \
    F(e, ROW, TEXT, 64, health, "fine, degraded or halted, and what was not finite")

/* ---- what there is to draw. Told once, before anything else; a run that was begun by an earlier version tells it when it is
 *      resumed. ---- */

#define ESPER_FACT_PART_FIELDS(F, e)                                                                 \
    F(e, ROW, INT, 0, number, "its place in the order of execution, from 0")                         \
    F(e, ROW, TEXT, 8, what, "block or slot")                                                        \
    F(e, ROW, TEXT, 80, name,                                                                        \
      "a slot's, such as r0c1; of a block, how the names of its parameters begin, or its operation") \
    F(e, ROW, REAL, 0, position, "of a slot along the host, 0 to 1; NULL: a block")                  \
    F(e, ROW, INT, 0, channels, "of what leaves it")                                                 \
    F(e, ROW, TEXT, 32, shape, "of what leaves it, for one sample, such as 64x16x16")                \
    F(e, ROW, INT, 0, params, "of a block; NULL: a slot")

/* Told at the same time. A name is any text that somebody gave a folder or wrote into a table. */
#define ESPER_FACT_CLASS_FIELDS(F, e)                        \
    F(e, ROW, INT, 0, number, "its label, from 0")           \
    F(e, ROW, TEXT, 256, name, "as the data names it; a longer one is cut off")

/* ---- what the store adds: columns of `runs` that it fills itself, its losses, and the view `seeds`, the lineage with a row for
 *      each seed whose germination stands ---- */

#define ESPER_FACT_RUN_OWN_FIELDS(F, e) \
    F(e, ROW, INT, 0, id, "number of the run in this store") \
    F(e, ROW, REAL, 0, began, "wall clock, seconds since 1970") \
    F(e, ROW, REAL, 0, ended, "the same; NULL while it runs, and when it was killed") \
    F(e, ROW, INT, 0, n_resumed, "how often it went on from a checkpoint")

#define ESPER_FACT_DROP_FIELDS(F, e) \
    F(e, ROW, INT, 0, run, "the run") \
    F(e, ROW, TEXT, 24, records, "name of the table") \
    F(e, ROW, INT, 0, n, "records lost: the queue was full, or the disk")

#define ESPER_FACT_SEED_FIELDS(F, e) \
    F(e, ROW, INT, 0, run, "the run") \
    F(e, ROW, INT, 0, seed, "number of the seed in that run") \
    F(e, ROW, TEXT, 16, slot, "its slot") \
    F(e, ROW, TEXT, 48, blueprint, "what it was made from") \
    F(e, ROW, TEXT, 16, blend, "how it joins") \
    F(e, ROW, INT, 0, params, "its parameters") \
    F(e, ROW, INT, 0, parent_run, "run it was carried over from; NULL: it is new") \
    F(e, ROW, INT, 0, parent_seed, "its number there") \
    F(e, ROW, TEXT, 16, stage, "where it stands, or stood at the end") \
    F(e, ROW, INT, 0, germinated_epoch, "when it came") \
    F(e, ROW, INT, 0, blended_epoch, "when blending began, first") \
    F(e, ROW, INT, 0, fossilized_epoch, "when it was kept; NULL: not (yet)") \
    F(e, ROW, INT, 0, pruned_epoch, "when it was removed; NULL: it is still there") \
    F(e, ROW, TEXT, 16, initiator, "who kept or removed it") \
    F(e, ROW, TEXT, 160, reason, "why it was kept or removed; until then, why it came") \
    F(e, ROW, REAL, 0, contribution, "the dependence: accuracy lost without it, last measured, percentage points") \
    F(e, ROW, REAL, 0, contribution_lower, "its lower bound")

/* ---- the decision log: a header, and entries that begin with ENTRY and go on with the part of their source. It is read as
 *      strictly as it is written, so any change needs a new ESPER_LOG_VERSION.
 *
 * kind  INT (32 bits), COUNT (64 bits; ESPER_GUARD_NONE is null), REAL, U64, HASH; CODE (arg: its
 *       vocabulary) and MAYBE_CODE (-1 is null); TEXT (arg: bytes with its zero) and MAYBE_TEXT ("" is null); WORDS (a text
 *       that keeps what is no UTF-8), BLUEPRINT (its number, which is a name in the file), SLOTS (n_<name> ids)
 * e     where it lies in esper_log_entry ---- */

#define ESPER_LOG_VERSION 3

#define ESPER_FACT_LOG_HEAD_FIELDS(F, e)                                                                     \
    F(e, LOG, TEXT, ESPER_LOG_WORD_CHARS, task, "name of the task")                                          \
    F(e, LOG, CODE, topology, topology, "what kind of network it grows: `cnn`, `transformer` or `mlp`")             \
    F(e, LOG, U64, 0, seed, "seed of all random numbers")                                                    \
    F(e, LOG, TEXT, ESPER_LOG_WORD_CHARS, kernels, "backend and kernel set")                                 \
    F(e, LOG, INT, 0, ranks, "processes that computed it: sums of another number differ in their last bits") \
    F(e, LOG, U64, 0, budget, "training FLOPs it was to spend when it began; a resumption may have asked for others") \
    F(e, LOG, MAYBE_HASH, 0, data, "hash of the data; left out where it is not known, as in older logs")

#define ESPER_FACT_LOG_ENTRY_FIELDS(F, e) \
    F(e, LOG, COUNT, 0, number, "its place in the log, from 0") \
    F(e, LOG, INT, 0, epoch, "when it was decided: epochs count from 1") \
    F(e, LOG, COUNT, 0, step, "optimiser steps done then") \
    F(e, LOG, REAL, 0, share, "share of the budget spent then, by which the rate goes; 0 to 1") \
    F(e, LOG, HASH, 0, weights, \
      "hash of all weights when it was decided, 16 hexadecimal digits; all 0 in a log made by hand: not known, and a replay does not compare it") \
    F(e, LOG, CODE, source, source, "who: `policy`, `governor`, `injection` or, of a fork, `trial`")

/* A decision's slot is known by its id. */
#define ESPER_FACT_LOG_POLICY_FIELDS(F, e)                                                           \
    F(e, LOG, CODE, op, op, "the operation")                                                         \
    F(, LOG, MAYBE_TEXT, ESPER_SLOT_CHARS, slot, "the slot's id; `null` for a `wait` without one")   \
    F(e, LOG, BLUEPRINT, 0, blueprint, "of a germination; else `null`")                              \
    F(e, LOG, MAYBE_CODE, birth, birth, "how its weights are born; else `null`. Not before version 3")     \
    F(e, LOG, MAYBE_CODE, style, style, "how it is blended in; `null` keeps what is there")          \
    F(e, LOG, INT, 0, tempo,                                                                         \
      "epochs of blending; what an operation does not ask for, here and below, has its usual value") \
    F(e, LOG, REAL, 0, target, "where its weight shall go")                                          \
    F(e, LOG, INT, 0, speed, "in so many epochs")                                                    \
    F(e, LOG, CODE, curve, curve, "along this curve")                                                \
    F(e, LOG, CODE, reason, reason, "one word, to count by")                                         \
    F(e, LOG, REAL, 0, confidence, "0 to 1")                                                         \
    F(e, LOG, WORDS, 0, text,                                                                        \
      "the reason in words; where they are no UTF-8, `text_bytes` follows: its bytes, in hexadecimal")

/* A fork on trial, before the decision that came of it. */
#define ESPER_FACT_LOG_TRIAL_FIELDS(F, e)                                                            \
    F(, LOG, MAYBE_TEXT, ESPER_SLOT_CHARS, slot, "where it had a seed; `null`: it got nothing")       \
    F(e, LOG, BLUEPRINT, 0, blueprint, "the seed's; else `null`")                                    \
    F(e, LOG, INT, 0, round, "the last round it took part in, from 0")                               \
    F(e, LOG, COUNT, 0, n_steps, "steps it was trained for in that")                                 \
    F(e, LOG, COUNT, 0, n_samples, "samples it was validated on")                                    \
    F(e, LOG, REAL, 0, loss, "of validation, then")                                                  \
    F(e, LOG, REAL, 0, gain, "loss of the fork that got nothing less its own, mean over samples")    \
    F(e, LOG, REAL, 0, error, "standard error of that, paired by sample")                            \
    F(e, LOG, REAL, 0, flops, "spent on it, in all rounds")                                          \
    F(e, LOG, HASH, 0, fork, "hash of its weights at the end")

#define ESPER_FACT_LOG_GOVERNOR_FIELDS(F, e) \
    F(e, LOG, CODE, action, action, "`skip`, `roll_back`, `prune` or `stop`") \
    F(e, LOG, CODE, cause, reason, "`governor_nan`, `governor_scan`, ...") \
    F(e, LOG, MAYBE_TEXT, ESPER_LOG_TENSOR_CHARS, tensor, "what was found bad; `null` when it was the vital signs") \
    F(e, LOG, MAYBE_CODE, role, role, "what it is to the training; `null` likewise") \
    F(e, LOG, TEXT, ESPER_LOG_PROBLEM_CHARS, problem, "`NaN`, `Inf` or `changed`; empty likewise") \
    F(e, LOG, COUNT, 0, n_elements, "bad elements of the tensor") \
    F(e, LOG, COUNT, 0, first_index, "the first of them") \
    F(e, LOG, REAL, 0, loss, "of the vital signs") \
    F(e, LOG, COUNT, 0, to_step, "the snapshot to go back to, by the optimiser steps done then; `null` for a `skip`") \
    F(e, LOG, SLOTS, 0, pruned, \
      "of `prune`: ids of the slots whose seeds are removed, which are those of the snapshot that are not kept; else empty") \
    F(e, LOG, REAL, 0, lr_scale, "of the learning rate until then")

#define ESPER_FACT_LOG_INJECTION_FIELDS(F, e) \
    F(e, LOG, TEXT, ESPER_LOG_TENSOR_CHARS, tensor, "what was hit") \
    F(e, LOG, CODE, role, role, "what it is to the training") \
    F(e, LOG, COUNT, 0, element, "which of its elements") \
    F(e, LOG, CODE, fault, fault, "`nan`, `inf`, `neg_inf`, `exponent` or `mantissa`") \
    F(e, LOG, COUNT, 0, bit, "of the exponent or mantissa") \
    F(e, LOG, CODE, point, point, "when in the step: `between_steps`, `before_forward` or `gradients`")

#endif
