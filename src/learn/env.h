/* Internal. An environment: one network that grows, as a policy that learns meets it.
 *
 *     open ──> advance: an epoch is trained, validated, judged ──> view ──> decide ──> advance ...
 *
 * An environment has its own weights, order of samples, slots, guard and governor, and computes on the thread that calls it. So an episode is a function of its seed and its decisions, however many others run beside it.
 *
 * When the governor goes back, the epochs since are played anew; whoever learns takes note of it (n_rollbacks) and ends the
 * credit there. When it stops, the episode is over. */
#ifndef ESPER_LEARN_ENV_H
#define ESPER_LEARN_ENV_H

#include <signal.h>

#include "grow/growth.h"
#include "learn/twin.h"

typedef struct esper_env esper_env;

typedef struct esper_env_desc {
    esper_engine *engine; /* of which it is a network; borrowed */
    esper_backend_stream *stream; /* on which it is opened: that of the calling thread */
    uint64_t      seed;   /* of the episode */
    esper_twin_book *twins; /* of episodes with seeds in common; borrowed. NULL: there are none */
    const char   *inject; /* faults for a drill; NULL: those of the configuration */
    const volatile sig_atomic_t
        *stop; /* becomes non-zero: an epoch ends where it is, with E_STOPPED, and so does the episode. Or NULL */
} esper_env_desc;

esper_status esper_env_open(const esper_env_desc *desc, esper_env **env_out);
void         esper_env_close(esper_env *env);

/* From now on it computes on this stream of the engine's. */
void esper_env_move(esper_env *env, esper_backend_stream *stream);

/* A thread more, with a stream of its own, may train what an environment is held against, while that trains: it is expected before either
 * comes, serves until it is dismissed, and the environment's thread dismisses it when it leaves. */
bool esper_env_has_twin(const esper_env *env);
void esper_env_expect_helper(esper_env *env);
void esper_env_help(esper_env *env, esper_backend_stream *stream);
void esper_env_dismiss_helper(esper_env *env);

/* Trains until there is something to decide. A stopped environment stays where it is. */
esper_status esper_env_advance(esper_env *env);

/* What became of the last advance. */
typedef struct esper_env_look {
    const esper_policy_view *view;   /* waits for a decision; NULL = none does */
    bool                     stopped; /* by the governor */
    const esper_growth      *growth;
    const esper_network     *network;
    int      n_rollbacks;            /* since the last decision */
    uint64_t n_rollbacks_all, n_skipped; /* of the episode */
    double   best_accuracy;          /* on validation, percent; NaN = none yet */
    double   seconds_train, seconds_valid, seconds_act; /* of the episode; train: with its twin */
} esper_env_look;

esper_env_look esper_env_look_at(const esper_env *env);

/* Does it. NULL: what the policy of the configuration says. `last`: the episode ends with it. */
esper_status esper_env_decide(esper_env *env, const esper_decision *decision, bool last);

#endif
