/* Internal. The one list of events: the contract between a run and everyone who watches it. It yields the structs, the
 * JSON and, for stores, the columns.
 *
 *     EVENT(NAME, name, meaning)   and for each an ESPER_EVENT_<NAME>_FIELDS(FIELD, e) of
 *     FIELD(e, kind, name)         e: the event's name, handed through
 *                                  kind: INT, REAL, TEXT, U64 (decimal text in JSON), HASH (16 hexadecimal digits)
 *
 * Every event also carries seq, time and step (event.h). A reader must pass over events and fields it does not know, so
 * adding either needs no new version; renaming, removing or changing the meaning of one does. */
#ifndef ESPER_BASE_EVENT_LIST_H
#define ESPER_BASE_EVENT_LIST_H

#define ESPER_EVENT_VERSION 1

#define ESPER_EVENT_LIST(EVENT)                                                   \
    EVENT(RUN_STARTED, run_started, "a run begins; its identity in full")         \
    EVENT(EPOCH_ENDED, epoch_ended, "an epoch was trained and validated")         \
    EVENT(CHECKPOINT_SAVED, checkpoint_saved, "a checkpoint is complete on disk") \
    EVENT(RUN_RESUMED, run_resumed, "a run goes on from a checkpoint")            \
    EVENT(GUARD_TRIPPED, guard_tripped, "the guard found something, and what was done") \
    EVENT(ROLLED_BACK, rolled_back, "the run went back to a snapshot")            \
    EVENT(DECIDED, decided, "what a policy wanted at the end of an epoch, and whether it was done") \
    EVENT(GATE_JUDGED, gate_judged, "a gate was asked about a seed")              \
    EVENT(SEED_MOVED, seed_moved, "a seed went from one stage to another")        \
    EVENT(RUN_ENDED, run_ended, "a run is over, well or not")                     \
    EVENT(WARNING, warning, "something a person should know; the run goes on")

/* config: the whole configuration as esper_config_write gives it. kernels: the kernel set, part of a run's identity.
 * policy: who decides, with hash and name of a learned policy's file; "" in a run that does not grow. */
#define ESPER_EVENT_RUN_STARTED_FIELDS(FIELD, e) \
    FIELD(e, TEXT, task)                         \
    FIELD(e, TEXT, run)                          \
    FIELD(e, U64, seed)                          \
    FIELD(e, TEXT, config)                       \
    FIELD(e, TEXT, kernels)                      \
    FIELD(e, INT, threads)                       \
    FIELD(e, INT, ranks)                         \
    FIELD(e, INT, params)                        \
    FIELD(e, TEXT, commit)                       \
    FIELD(e, TEXT, policy)

/* Losses are means over targets, in nats; accuracies in percent. Non-finite readings are told as such. */
#define ESPER_EVENT_EPOCH_ENDED_FIELDS(FIELD, e) \
    FIELD(e, INT, epoch)                         \
    FIELD(e, REAL, loss_train)                   \
    FIELD(e, REAL, acc_train)                    \
    FIELD(e, REAL, loss_valid)                   \
    FIELD(e, REAL, acc_valid)                    \
    FIELD(e, REAL, lr)                           \
    FIELD(e, REAL, grad_norm)                    \
    FIELD(e, REAL, samples_per_s)                \
    FIELD(e, REAL, seconds)

#define ESPER_EVENT_CHECKPOINT_SAVED_FIELDS(FIELD, e) \
    FIELD(e, TEXT, path)                              \
    FIELD(e, INT, epoch)                              \
    FIELD(e, INT, bytes)

/* kernels, threads, config: of the run from here on; the last is the checkpoint's with what was asked for over it. */
#define ESPER_EVENT_RUN_RESUMED_FIELDS(FIELD, e) \
    FIELD(e, TEXT, path)                         \
    FIELD(e, INT, epoch)                         \
    FIELD(e, TEXT, kernels)                      \
    FIELD(e, INT, threads)                       \
    FIELD(e, INT, ranks)                         \
    FIELD(e, TEXT, config)

/* What was found: a tensor with bad elements (problem: NaN, Inf, changed; index -1 = not known), or, with an empty tensor,
 * a validation loss. reason: as the governor calls it. action: skip, roll_back, prune, stop. */
#define ESPER_EVENT_GUARD_TRIPPED_FIELDS(FIELD, e) \
    FIELD(e, TEXT, tensor)                         \
    FIELD(e, TEXT, role)                           \
    FIELD(e, TEXT, problem)                        \
    FIELD(e, INT, count)                           \
    FIELD(e, INT, first_index)                     \
    FIELD(e, REAL, loss)                           \
    FIELD(e, TEXT, reason)                         \
    FIELD(e, TEXT, action)

/* Steps as the optimiser counts them. damaged: newer snapshots that could not be used. */
#define ESPER_EVENT_ROLLED_BACK_FIELDS(FIELD, e) \
    FIELD(e, INT, from_step)                     \
    FIELD(e, INT, to_step)                       \
    FIELD(e, INT, damaged)                       \
    FIELD(e, TEXT, reason)                       \
    FIELD(e, REAL, seconds)

/* op and slot ("" = none) as in the decision log; accepted: 1 or 0; reason: why it was decided; refusal: why not done. */
#define ESPER_EVENT_DECIDED_FIELDS(FIELD, e) \
    FIELD(e, INT, epoch)                     \
    FIELD(e, TEXT, op)                       \
    FIELD(e, TEXT, slot)                     \
    FIELD(e, TEXT, blueprint)                \
    FIELD(e, INT, accepted)                  \
    FIELD(e, TEXT, reason)                   \
    FIELD(e, TEXT, refusal)

#define ESPER_EVENT_GATE_JUDGED_FIELDS(FIELD, e) \
    FIELD(e, INT, epoch)                         \
    FIELD(e, TEXT, slot)                         \
    FIELD(e, TEXT, seed)                         \
    FIELD(e, TEXT, gate)                         \
    FIELD(e, INT, passed)                        \
    FIELD(e, TEXT, message)

/* from, to: names of stages. reason and initiator: of a prune. */
#define ESPER_EVENT_SEED_MOVED_FIELDS(FIELD, e) \
    FIELD(e, INT, epoch)                        \
    FIELD(e, TEXT, slot)                        \
    FIELD(e, TEXT, seed)                        \
    FIELD(e, TEXT, blueprint)                   \
    FIELD(e, TEXT, from)                        \
    FIELD(e, TEXT, to)                          \
    FIELD(e, REAL, alpha)                       \
    FIELD(e, INT, params)                       \
    FIELD(e, TEXT, reason)                      \
    FIELD(e, TEXT, initiator)

/* status: the name of an esper_status. */
#define ESPER_EVENT_RUN_ENDED_FIELDS(FIELD, e) \
    FIELD(e, TEXT, status)                     \
    FIELD(e, INT, epochs)                      \
    FIELD(e, INT, steps)                       \
    FIELD(e, REAL, loss_test)                  \
    FIELD(e, REAL, acc_test)                   \
    FIELD(e, HASH, weight_hash)                \
    FIELD(e, REAL, seconds)

#define ESPER_EVENT_WARNING_FIELDS(FIELD, e) FIELD(e, TEXT, text)

#endif
