/* Internal. The engine: one house for one network and for thousands.
 *
 *     open ──> add, fork ──> step, evaluate, snapshot, go back ──> remove ──> close
 *
 * The engine has what networks share: threads, backend, configuration, host, the order of samples that are not shuffled, and
 * the ranks among which it is one. The data set is borrowed. A network (network.h) is a record in it: a slab, a slot table, a
 * cursor, a seed, and a verdict. What happens to one network leaves every other's bits as they are, and no bit depends on how many
 * there are or on the number of threads. */
#ifndef ESPER_ENGINE_ENGINE_H
#define ESPER_ENGINE_ENGINE_H

#include <stdatomic.h>

#include "base/config.h"
#include "data/batch.h"
#include "nn/host.h"
#include "tensor/plan.h"
#include "engine/ranks.h"
#include "engine/samples.h"

/* What its networks are for. */
typedef enum esper_use {
    ESPER_USE_EVALUATE, /* no gradients and no moments */
    ESPER_USE_TRAIN,    /* a network that stays as it is */
    ESPER_USE_GROW,     /* the slab has room for a seed in every slot */
} esper_use;

typedef struct esper_engine_desc {
    const char          *task;    /* what data and host are called in records; copied */
    esper_dataset       *data;    /* borrowed until close */
    const esper_host    *host;    /* with its loss; copied */
    const esper_config  *config;  /* copied */
    esper_use            use;
    int                  threads; /* where the configuration says 0; 0 = every core */
    const char          *backend; /* on which it computes, and why, for people; copied. NULL: as the configuration says */
    const char          *backend_why;
    const struct esper_engine *
        beside; /* whose threads, backend and plans it shares, of the same data also what lies on the backend, and before which
                    it is closed; NULL: has its own */
} esper_engine_desc;

typedef struct esper_engine {
    /* Read-only for others. */
    char           task[32];
    esper_config   config;
    esper_use      use;
    char           backend_why[128]; /* for people: how its backend was chosen; "" = it was not */
    esper_pool    *pool;
    esper_backend *backend;
    esper_dataset *data;
    esper_host     host;
    esper_net      plain; /* the host without seeds */
    esper_ranks    ranks; /* among which it is one */
    uint32_t       steps_per_epoch;
    atomic_int     n_networks;
    esper_sampler *samplers[ESPER_N_SPLITS]; /* as they are, in their order; that of training is each network's own */
    /* Private. */
    esper_exchange exchange; /* sum NULL: norms are each rank's own */
    esper_samples     samples; /* where the backend makes batches itself */
    esper_plan_cache *plans; /* a program is planned once for all networks */
    bool              beside, beside_data; /* threads, backend and plans are another engine's; so is what lies there of the data */
} esper_engine;

esper_status esper_engine_open(const esper_engine_desc *desc, esper_engine **engine_out);
/* All networks have been removed. */
void         esper_engine_close(esper_engine *engine);

/* Becomes one of the ranks of a job (borrowed): takes its part of every batch from now on. On all ranks, before there are
 * networks. */
esper_status esper_engine_join(esper_engine *engine, esper_comm *comm);

/* Does independent items of work, spread over all threads; each is given a stream to compute on. Among ranks in turn, on all
 * threads. Returns when the last is done. */
void esper_engine_each(esper_engine *engine, int n_items, esper_backend_item run_item, void *context);

/* The most parameters that a network may grow to, by max_params and max_kib; 0: any number. */
int64_t esper_engine_params_limit(const esper_config *config);

/* The order of a split, shuffled and augmented where it is trained on. */
esper_sampler_desc esper_engine_sampler(const esper_engine *engine, esper_split split, uint64_t seed);

/* Batches of a split that count: max_steps caps validation as it caps epochs, but not the test. */
uint32_t esper_engine_batches(const esper_engine *engine, esper_split split);

/* The most samples of a batch that fall to one rank: what plans are made for. */
int esper_engine_max_samples(const esper_engine *engine);

/* What opening a network has come to. Where a device's memory was too small the message says how many of the engine's networks are on
 * it: n_whole, the one that failed not among them. Returns the status. */
esper_status esper_engine_tell_room(const esper_engine *engine, esper_status status, int n_whole);

/* FLOPs of a full batch, of all ranks together, of such a plan's passes. */
double esper_engine_plan_flops(const esper_engine *engine, const esper_plan *plan);

#endif
