/* Internal. The one list of what a run store holds. It yields the structs, the SQL schema, the statements and the tables of
 * docs/store.md (scripts/docs store).
 *
 *     TABLE(NAME, name, table, lane, fate, meaning)   and for each an ESPER_STORE_<NAME>_COLUMNS(COL, e) of
 *     COL(e, kind, size, name, meaning)               e: the record's name, handed through
 *
 * lane  KEPT: the last quarter of the queue is kept free for it; MANY: dropped first when the writer is behind
 * fate  UNDONE: a rollback can undo what it tells, so there is a view <table>_standing without such rows; FACT: it cannot
 * kind  INT, REAL, TEXT (of size bytes with its zero), U64 (decimal text: SQLite's integers have a sign), HASH (16
 *       hexadecimal digits); size is 0 but for TEXT
 *
 * A run that learns (esper learn) writes episodes, their rewards, updates, and of its decisions those that germinate. Its `epoch` is the round, from 1, and its
 * `step` counts steps of all environments together, so that it is cut back and resumed as any other.
 *
 * Every table but `runs` begins with run, seq, time, epoch, step, nonfinite; see store.h. Any change of a name, a kind or a
 * meaning, and any new table or column, needs a new ESPER_STORE_VERSION: stores of another one are refused. */
#ifndef ESPER_TELEMETRY_STORE_LIST_H
#define ESPER_TELEMETRY_STORE_LIST_H

#include "policy/reward.h"

#define ESPER_STORE_VERSION 3

#define ESPER_STORE_LIST(TABLE)                                                                              \
    TABLE(EPOCH, epoch_done, epochs, KEPT, UNDONE, "an epoch was trained and validated")                          \
    TABLE(GERMINATION, germination, germinations, KEPT, UNDONE, "a seed came into a slot")                   \
    TABLE(STAGE, stage, stages, KEPT, UNDONE, "a seed went from one stage to another")                       \
    TABLE(SEED_EPOCH, seed_epoch, seed_epochs, MANY, UNDONE, "how a seed stood at the end of an epoch")      \
    TABLE(GATE, gate, gates, KEPT, UNDONE, "a gate was evaluated, passed or not")                            \
    TABLE(CHECK, check, gate_checks, KEPT, UNDONE, "one check of that evaluation: the evidence")             \
    TABLE(DECISION, decision, decisions, KEPT, UNDONE, "a decision, as in the decision log")                 \
    TABLE(HEALTH, health, health, MANY, FACT, "a reading of the guard")                                      \
    TABLE(ROLLBACK, rollback, rollbacks, KEPT, FACT, "the run went back to a snapshot")                      \
    TABLE(ATTRIBUTION, attribution, attributions, MANY, UNDONE, "what a seed, or a pair, is worth")          \
    TABLE(REWARD, reward, rewards, MANY, UNDONE, "what a decided epoch was worth, part by part")                  \
    TABLE(EPISODE, episode, episodes, KEPT, FACT, "a learner played an episode to its end")                       \
    TABLE(UPDATE, update, updates, KEPT, FACT, "a learner's policy was updated")                                  \
    TABLE(EVENT, event, events, MANY, FACT, "an event, as in events.jsonl")

/* ---- runs. The identity is written when a run begins, the result when it ends, the rest by the store. ---- */

#define ESPER_STORE_RUN_OWN_COLUMNS(COL, e)                                        \
    COL(e, INT, 0, id, "number of the run in this store")                          \
    COL(e, REAL, 0, began, "wall clock, seconds since 1970")                       \
    COL(e, REAL, 0, ended, "the same; NULL while it runs, and when it was killed") \
    COL(e, INT, 0, n_resumed, "how often it went on from a checkpoint")

#define ESPER_STORE_RUN_BEGIN_COLUMNS(COL, e)                                                            \
    COL(e, TEXT, 256, name, "the run's directory")                                                       \
    COL(e, TEXT, 64, task, "name of the task")                                                           \
    COL(e, TEXT, 64, policy,                                                                             \
        "a policy's name; a program; learned, hash and name of its file; learner: a run of esper learn") \
    COL(e, TEXT, 16, gate_mode, "strict or permissive")                                                  \
    COL(e, U64, 0, rng_seed, "seed of all random numbers, decimal")                                      \
    COL(e, TEXT, 64, kernels, "backend and kernel set, part of the run's identity")                      \
    COL(e, INT, 0, threads, "threads in use")                                                            \
    COL(e, TEXT, 64, build, "commit the program was built from")                                         \
    COL(e, INT, 0, parent_run, "run of this store that it belongs to; NULL: none")                       \
    COL(e, TEXT, 32, relation, "what it is to that run: static-control; NULL: none")                     \
    COL(e, INT, 0, params_host, "parameters of the host without seeds, planted ones neither")            \
    COL(e, TEXT, 16, reward_mode, "how rewards are reckoned; NULL: not at all")                          \
    COL(e, INT, 0, flops_host, "FLOPs of a forward pass of one sample through that host")

#define ESPER_STORE_RUN_END_COLUMNS(COL, e)                                      \
    COL(e, TEXT, 32, status, "name of an esper_status")                          \
    COL(e, INT, 0, epochs, "epochs done")                                        \
    COL(e, INT, 0, steps, "optimiser steps done")                                \
    COL(e, INT, 0, params, "of the network that is tested: the host, and seeds that blend, hold or were kept") \
    COL(e, INT, 0, flops, "FLOPs of a forward pass of one sample through that network") \
    COL(e, INT, 0, flops_train, "FLOPs spent on training, attribution included") \
    COL(e, REAL, 0, loss_test, "mean over the test split, nats")                 \
    COL(e, REAL, 0, acc_test, "percent of the test split")                       \
    COL(e, HASH, 0, weight_hash, "of all weights and norm buffers at the end")   \
    COL(e, REAL, 0, seconds, "wall clock of the run, in this process")           \
    COL(e, REAL, 0, total_reward,                                                \
        "the sum of its rewards; of a learner the mean return of its last round; NULL: there were none")

/* ---- records ---- */

#define ESPER_STORE_EPOCH_COLUMNS(COL, e)                                        \
    COL(e, REAL, 0, loss_train, "mean over the epoch's batches, nats")           \
    COL(e, REAL, 0, acc_train, "percent of the epoch's samples")                 \
    COL(e, REAL, 0, loss_valid, "mean over the validation split, nats")          \
    COL(e, REAL, 0, acc_valid, "percent of the validation split")                \
    COL(e, REAL, 0, lr, "learning rate of the last step")                        \
    COL(e, REAL, 0, grad_norm, "norm of the last gradient, before clipping")     \
    COL(e, INT, 0, params, "of the host and all seeds in slots, after the epoch's decision") \
    COL(e, INT, 0, n_seeds, "seeds in slots then, fossilised ones included")     \
    COL(e, INT, 0, flops_train, "FLOPs spent on training so far")                \
    COL(e, REAL, 0, samples_per_s, "speed of training, validation not included") \
    COL(e, REAL, 0, seconds, "wall clock of the epoch")                          \
    COL(e, HASH, 0, weight_hash, "of all weights and norm buffers after it")

#define ESPER_STORE_GERMINATION_COLUMNS(COL, e)                                   \
    COL(e, INT, 0, seed, "number of the seed in this run")                        \
    COL(e, TEXT, 16, slot, "such as r0c1")                                        \
    COL(e, TEXT, 48, blueprint, "what it was made from")                          \
    COL(e, TEXT, 16, blend, "how it joins: add, multiply, gate")                  \
    COL(e, INT, 0, params, "its parameters")                                      \
    COL(e, INT, 0, parent_run, "run it was carried over from; NULL: it is new")   \
    COL(e, INT, 0, parent_seed, "its number there")                               \
    COL(e, REAL, 0, acc_valid, "percent, when it came: what it is measured from") \
    COL(e, TEXT, 160, reason, "why it was put there")

#define ESPER_STORE_STAGE_COLUMNS(COL, e)                                       \
    COL(e, INT, 0, seed, "the seed")                                            \
    COL(e, TEXT, 16, slot, "its slot")                                          \
    COL(e, TEXT, 16, from_stage, "stage it left")                               \
    COL(e, TEXT, 16, to_stage, "stage it entered")                              \
    COL(e, REAL, 0, alpha, "its weight; for a prune, the weight before it")     \
    COL(e, REAL, 0, acc_delta, "percentage points since it germinated")         \
    COL(e, INT, 0, epochs_in_stage, "spent in the stage it left")               \
    COL(e, TEXT, 16, initiator, "policy, governor or auto")                     \
    COL(e, TEXT, 160, reason, "why")

#define ESPER_STORE_SEED_EPOCH_COLUMNS(COL, e)                                   \
    COL(e, INT, 0, seed, "the seed")                                             \
    COL(e, TEXT, 16, slot, "its slot")                                           \
    COL(e, TEXT, 16, stage, "its stage")                                         \
    COL(e, INT, 0, epochs_in_stage, "so far")                                    \
    COL(e, REAL, 0, alpha, "its weight, 0 to 1")                                 \
    COL(e, REAL, 0, alpha_target, "where its weight is going")                   \
    COL(e, INT, 0, params, "its parameters")                                     \
    COL(e, REAL, 0, grad_norm, "norm of its gradient")                           \
    COL(e, REAL, 0, grad_ratio, "its gradient for each parameter beside the host's") \
    COL(e, REAL, 0, grad_health, "0 to 1: no vanishing and no exploding gradients")

#define ESPER_STORE_GATE_COLUMNS(COL, e)                     \
    COL(e, INT, 0, seed, "the seed")                         \
    COL(e, TEXT, 16, slot, "its slot")                       \
    COL(e, TEXT, 8, gate, "G0, G1, G2, G3 or G5")            \
    COL(e, TEXT, 16, mode, "strict or permissive")           \
    COL(e, TEXT, 16, to_stage, "stage behind the gate")      \
    COL(e, INT, 0, passed, "1 or 0")                         \
    COL(e, REAL, 0, score, "0 to 1, for people alone")       \
    COL(e, TEXT, 160, message, "one line for people")

#define ESPER_STORE_CHECK_COLUMNS(COL, e)                                   \
    COL(e, INT, 0, gate, "seq of the evaluation in gates")                  \
    COL(e, TEXT, 40, name, "what was looked at")                            \
    COL(e, REAL, 0, value, "what was measured; NULL: nothing was")          \
    COL(e, REAL, 0, threshold, "what it was held against; NULL: it was yes or no") \
    COL(e, INT, 0, passed, "1 or 0")

#define ESPER_STORE_DECISION_COLUMNS(COL, e)                                  \
    COL(e, INT, 0, number, "place in the decision log, from 0")               \
    COL(e, TEXT, 16, source, "policy, governor or injection")                 \
    COL(e, TEXT, 32, op, "an operation of a policy, a rung of the governor's ladder, or a fault") \
    COL(e, TEXT, 16, slot, "where")                                           \
    COL(e, INT, 0, seed, "with which seed")                                   \
    COL(e, TEXT, 48, blueprint, "germinate: what to make")                    \
    COL(e, TEXT, 16, blend, "how it joins")                                   \
    COL(e, INT, 0, tempo, "epochs of blending")                               \
    COL(e, REAL, 0, alpha_target, "where its weight shall go")                \
    COL(e, INT, 0, alpha_speed, "in so many epochs")                          \
    COL(e, TEXT, 16, alpha_curve, "along this curve")                         \
    COL(e, INT, 0, accepted, "1: done; 0: refused, which a policy alone can be") \
    COL(e, TEXT, 160, reason, "why it was decided, or refused; of a fault: what was hit") \
    COL(e, TEXT, 512, line, "the line of the decision log; what is longer is cut short")

#define ESPER_STORE_HEALTH_COLUMNS(COL, e)                                       \
    COL(e, REAL, 0, grad_norm, "of all gradients")                               \
    COL(e, REAL, 0, param_norm, "of all parameters")                             \
    COL(e, INT, 0, n_skipped, "steps skipped so far")                            \
    COL(e, INT, 0, n_tensors, "bad tensors found; 0: all is well")               \
    COL(e, TEXT, 128, tensor, "the first of them")                               \
    COL(e, TEXT, 16, role, "param, grad, moment or buffer")                      \
    COL(e, TEXT, 16, problem, "NaN, Inf, or changed")                            \
    COL(e, INT, 0, n_elements, "bad ones in that tensor")                        \
    COL(e, INT, 0, first_index, "the first of these")                            \
    COL(e, REAL, 0, loss, "validation loss, when that was judged")               \
    COL(e, TEXT, 32, reason, "the governor's word")                              \
    COL(e, TEXT, 16, action, "go, skip, roll_back, prune or stop")

#define ESPER_STORE_ROLLBACK_COLUMNS(COL, e)                                  \
    COL(e, TEXT, 16, action, "rung of the ladder: roll_back, prune or stop")  \
    COL(e, INT, 0, from_epoch, "epochs finished when it happened")            \
    COL(e, INT, 0, from_step, "optimiser steps done then")                    \
    COL(e, INT, 0, to_epoch, "epochs finished at the snapshot")               \
    COL(e, INT, 0, to_step, "optimiser steps done at the snapshot")           \
    COL(e, INT, 0, n_damaged, "newer snapshots that could not be used")       \
    COL(e, INT, 0, n_pruned, "seeds pruned with it")                          \
    COL(e, REAL, 0, lr_scale, "factor on the learning rate from here on")     \
    COL(e, REAL, 0, seconds, "it took")                                       \
    COL(e, TEXT, 128, reason, "why")

#define ESPER_STORE_ATTRIBUTION_COLUMNS(COL, e)                                      \
    COL(e, TEXT, 16, measure, "contribution, synergy, shapley, trial, or evidence of an empty slot") \
    COL(e, INT, 0, seed, "the seed")                                                 \
    COL(e, TEXT, 16, slot, "its slot")                                               \
    COL(e, INT, 0, other_seed, "the second of a pair")                               \
    COL(e, REAL, 0, value, "percentage points of validation accuracy; of evidence: no unit") \
    COL(e, REAL, 0, lower, "one-sided 95 % bound below")                             \
    COL(e, REAL, 0, upper, "one-sided 95 % bound above")                             \
    COL(e, INT, 0, n_samples, "validation samples it rests on")                      \
    COL(e, INT, 0, n_epochs, "epochs it rests on")

/* The parts are those of ESPER_REWARD_PART_LIST, a column each. */
#define ESPER_STORE_REWARD_PART(COL, part, name, about) COL(reward, REAL, 0, name, about)
#define ESPER_STORE_REWARD_COLUMNS(COL, e)                                                          \
    COL(e, INT, 0, round, "of a learner; NULL: it is a run of its own")                             \
    COL(e, INT, 0, env, "environment of the learner, from 0")                                       \
    COL(e, INT, 0, episode_epoch, "epoch of the episode, from 1; of a run: its epoch")              \
    COL(e, TEXT, 32, op, "the operation, as it came out")                                           \
    COL(e, REAL, 0, total, "the sum of all that follow")                                            \
    ESPER_REWARD_PART_LIST(ESPER_STORE_REWARD_PART, COL)

#define ESPER_STORE_EPISODE_COLUMNS(COL, e)                                                         \
    COL(e, INT, 0, round, "in which it was played")                                                 \
    COL(e, INT, 0, env, "environment that played it, from 0")                                       \
    COL(e, U64, 0, rng_seed, "seed of its random numbers, decimal")                                 \
    COL(e, TEXT, 64, policy, "who decided: learned, greedy, or a policy's name")                    \
    COL(e, REAL, 0, total_reward, "its return: the sum of its rewards")                             \
    COL(e, REAL, 0, acc_valid, "percent of the validation split, at the end")                       \
    COL(e, REAL, 0, acc_valid_best, "the best of its epochs")                                       \
    COL(e, REAL, 0, acc_test, "percent of the test split; NULL: it was played to learn from")       \
    COL(e, INT, 0, params, "of the network at the end, as runs.params")                             \
    COL(e, INT, 0, n_germinated, "seeds that came")                                                 \
    COL(e, INT, 0, n_kept, "seeds that were kept")                                                  \
    COL(e, INT, 0, n_pruned, "seeds that were removed")                                             \
    COL(e, INT, 0, n_rollbacks, "times it went back to a snapshot")                                 \
    COL(e, INT, 0, n_steps, "decisions")                                                            \
    COL(e, REAL, 0, seconds, "wall clock")

#define ESPER_STORE_UPDATE_COLUMNS(COL, e)                                                          \
    COL(e, INT, 0, round, "whose episodes it learned from")                                         \
    COL(e, INT, 0, n_episodes, "of them")                                                           \
    COL(e, REAL, 0, return_mean, "their mean return")                                               \
    COL(e, REAL, 0, return_sd, "its sample standard deviation")                                     \
    COL(e, REAL, 0, acc_mean, "mean validation accuracy at their ends, percent")                    \
    COL(e, REAL, 0, params_mean, "mean of the parameters at their ends")                            \
    COL(e, REAL, 0, kl, "how far the policy moved, nats")                                           \
    COL(e, REAL, 0, clip_fraction, "share of the steps whose ratio, of all heads together, was clipped") \
    COL(e, REAL, 0, explained_variance, "of returns by the critic, at most 1")                      \
    COL(e, REAL, 0, loss_policy, "mean over minibatches")                                           \
    COL(e, REAL, 0, loss_value, "the same, of the critic")                                          \
    COL(e, REAL, 0, entropy, "mean over heads; 0: decided, 1: undecided")                             \
    COL(e, REAL, 0, entropy_slot, "of a head, where it had a choice, before the update")            \
    COL(e, REAL, 0, entropy_blueprint, "the same")                                                  \
    COL(e, REAL, 0, entropy_style, "the same")                                                      \
    COL(e, REAL, 0, entropy_tempo, "the same")                                                      \
    COL(e, REAL, 0, entropy_alpha_target, "the same")                                               \
    COL(e, REAL, 0, entropy_alpha_speed, "the same")                                                \
    COL(e, REAL, 0, entropy_alpha_curve, "the same")                                                \
    COL(e, REAL, 0, entropy_op, "the same")                                                         \
    COL(e, INT, 0, n_learned, "optimiser steps taken")                                              \
    COL(e, INT, 0, n_skipped, "minibatches left out because something was not finite")              \
    COL(e, REAL, 0, grad_norm, "mean over minibatches, before clipping")                            \
    COL(e, REAL, 0, steps_per_s, "steps of all environments, for each second of the round")         \
    COL(e, REAL, 0, seconds, "wall clock of the round")                                             \
    COL(e, TEXT, 64, health, "fine, degraded or halted, and what was not finite")

#define ESPER_STORE_EVENT_COLUMNS(COL, e)                                        \
    COL(e, TEXT, 24, event, "its name, see events.md")                           \
    COL(e, INT, 0, event_seq, "its seq in events.jsonl")                         \
    COL(e, TEXT, 480, data, "its fields as a JSON object; long texts are cut short")

/* ---- losses: how many records of a table did not get in; written when a run ends or is closed ---- */

#define ESPER_STORE_DROP_COLUMNS(COL, e)                                           \
    COL(e, INT, 0, run, "the run")                                                 \
    COL(e, TEXT, 24, records, "name of the table")                                 \
    COL(e, INT, 0, n, "records lost: the queue was full, or the disk")

/* ---- the view `seeds`: the lineage, one row for each seed whose germination stands ---- */

#define ESPER_STORE_SEED_COLUMNS(COL, e)                                                \
    COL(e, INT, 0, run, "the run")                                                      \
    COL(e, INT, 0, seed, "number of the seed in that run")                              \
    COL(e, TEXT, 16, slot, "its slot")                                                  \
    COL(e, TEXT, 48, blueprint, "what it was made from")                                \
    COL(e, TEXT, 16, blend, "how it joins")                                             \
    COL(e, INT, 0, params, "its parameters")                                            \
    COL(e, INT, 0, parent_run, "run it was carried over from; NULL: it is new")         \
    COL(e, INT, 0, parent_seed, "its number there")                                     \
    COL(e, TEXT, 16, stage, "where it stands, or stood at the end")                     \
    COL(e, INT, 0, germinated_epoch, "when it came")                                    \
    COL(e, INT, 0, blended_epoch, "when blending began, first")                         \
    COL(e, INT, 0, fossilized_epoch, "when it was kept; NULL: not (yet)")               \
    COL(e, INT, 0, pruned_epoch, "when it was removed; NULL: it is still there")        \
    COL(e, TEXT, 16, initiator, "who kept or removed it")                               \
    COL(e, TEXT, 160, reason, "why it was kept or removed; until then, why it came")    \
    COL(e, REAL, 0, contribution, "last measured, percentage points")                   \
    COL(e, REAL, 0, contribution_lower, "its lower bound")

#endif
