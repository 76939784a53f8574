/* Internal. The plan: where every activation lives, and which launches make up a pass.
 *
 * A plan covers one network or a fleet. Operations that stand at the same place of several networks share a launch, one
 * lane for each network. Everything is decided when the plan is opened; running it takes no memory. */
#ifndef ESPER_TENSOR_PLAN_H
#define ESPER_TENSOR_PLAN_H

#include "tensor/backend.h"
#include "tensor/cost.h"
#include "tensor/net.h"
#include "tensor/slab.h"

typedef struct esper_plan esper_plan;

/* How the ranks of a job, each with a slice of the same batch, add up what they have counted: batch norm then takes its
 * statistics of the whole batch. `sum` replaces every value by its sum over the ranks, with the same bits on each of them.
 * It is called between launches, by the thread that runs the pass, never twice at a time, in the same order on every rank.
 * When it fails, the pass ends with its status. */
typedef struct esper_exchange {
    esper_status (*sum)(void *context, double *values, size_t count);
    void *context;
} esper_exchange;

/* One network of a plan. Slab, pass and exchange are borrowed until the plan is closed, the net while it is opened; the pass
 * is the host's, and goes to the backend anew in every pass, with as many sample ids as it has samples. */
typedef struct esper_plan_net {
    const esper_net  *net;
    const esper_slab *slab;
    const esper_pass *pass;
    uint64_t          frozen; /* bits 1 << region: parameters there get no gradient from this plan, and batch norm
                                 and dropout are as in evaluation, so that no buffer there moves */
    /* The network's batches are spread over ranks, and batch norm counts them together in training; borrowed as well. All
     * ranks have the same network, max_samples and order of passes, and each at least one sample. NULL: one rank, or each
     * for itself. */
    const esper_exchange *exchange;
    bool                  exact; /* in FP32, whatever the backend's precision is; of plans without a cache */
} esper_plan_net;

/* Schedules, which are all of a plan but its addresses, kept for plans to come: a network whose program was planned before
 * (with the same batch, purpose and frozen regions) is only bound to its memory. For one backend, and opened and closed by
 * whoever owns that. Any number of threads may open and close plans with it at a time, and plans may outlive it. */
typedef struct esper_plan_cache esper_plan_cache;

/* Keeps up to `room` schedules, those that were used last. */
esper_status esper_plan_cache_open(const esper_backend *backend, int room, esper_plan_cache **cache_out);
void         esper_plan_cache_close(esper_plan_cache *cache);

typedef struct esper_plan_cache_stats {
    int64_t n_made; /* schedules, in all: networks that were not found */
    int     n_kept;
    size_t  bytes;
} esper_plan_cache_stats;

esper_plan_cache_stats esper_plan_cache_stats_of(esper_plan_cache *cache);

typedef struct esper_plan_desc {
    esper_backend        *backend;
    const esper_plan_net *nets;
    int                   n_nets;
    int                   max_samples; /* the largest batch of a network */
    bool                  training;    /* with a backward pass; without one, more memory is used twice */
    esper_plan_cache     *cache;       /* of the same backend; NULL: every schedule is made for this plan alone */
} esper_plan_desc;

esper_status esper_plan_open(const esper_plan_desc *desc, esper_plan **plan_out);
/* Plans anew, after a network has changed: *plan becomes the new one, which takes over the old one's memory when that is
 * large enough. What was in inputs and outputs is gone. On failure the old plan stays as it was. */
esper_status esper_plan_reopen(const esper_plan_desc *desc, esper_plan **plan);
void         esper_plan_close(esper_plan *plan);

/* Enqueues a pass over pass->n_samples of each network. Backward follows the forward pass of the same batch; it overwrites
 * the gradients of all parameters that take part. With an exchange, gradients of parameters are those of the rank's own
 * samples: summed over ranks they are the batch's. After a failed exchange, running statistics and gradients are those of
 * a pass that broke off half-way. */
esper_status esper_plan_forward(esper_plan *plan);
esper_status esper_plan_backward(esper_plan *plan);
/* Both: no network waits for another between them. */
esper_status esper_plan_gradients(esper_plan *plan);
/* The same for one of the networks, on a stream: several threads may do this at a time, each with another network that has
 * no exchange. */
esper_status esper_plan_forward_one(esper_plan *plan, esper_backend_stream *stream, int net_index);
esper_status esper_plan_gradients_one(esper_plan *plan, esper_backend_stream *stream, int net_index);

/* Sends the networks' passes to the backend, as every pass does at its beginning: for whoever enqueues launches of the
 * plan without it. */
esper_status esper_plan_refresh(esper_plan *plan);

/* The memory of a tensor, which is the backend's: inputs to write before a pass; the loss, outputs and kept tensors to read
 * after it. NULL for tensors without memory of their own here. */
void  *esper_plan_data(const esper_plan *plan, int net_index, int tensor);
float *esper_plan_grad(const esper_plan *plan, int net_index, int tensor);

/* Copies of such a tensor's first n_samples samples, to the backend and from it, and one value for all their elements. */
esper_status esper_plan_write(const esper_plan *plan, esper_backend_stream *stream, int net_index, int tensor,
                              const void *from, int n_samples);
/* Makes the net's next input where the backend has the samples (esper_backend_gather): `inputs` and `blocks` are the plan's to say.
 * Where its programs begin by packing the input into blocks, it is made there, and in the input stands what stood there, unless
 * `is_read`: somebody else wants to read it. */
esper_status esper_plan_gather(esper_plan *plan, esper_backend_stream *stream, int net_index, bool is_read,
                               esper_gather *gather, const esper_pick *picks);
bool         esper_plan_is_packed(const esper_plan *plan, int net_index); /* the input is in blocks alone */
esper_status esper_plan_read(const esper_plan *plan, esper_backend_stream *stream, int net_index, int tensor, void *to,
                             int n_samples);
esper_status esper_plan_fill(const esper_plan *plan, esper_backend_stream *stream, int net_index, int tensor,
                             float value, int n_samples);

/* What the plan will cost. */
typedef struct esper_plan_stats {
    size_t     arena_bytes; /* activations and their gradients */
    size_t     arena_bytes_unshared; /* what they would take without reuse */
    size_t     table_bytes; /* the plan's own tables; schedules that a cache keeps are counted there */
    int        n_forward, n_backward; /* launches */
    esper_cost forward, backward;     /* for full batches */
} esper_plan_stats;

esper_plan_stats esper_plan_stats_of(const esper_plan *plan);

/* Launch `index` of a direction, all networks together; NULL past the end. */
const esper_launch *esper_plan_launch(const esper_plan *plan, esper_direction direction, int index);

/* What one of the networks does in a direction. */
const esper_program *esper_plan_program(const esper_plan *plan, esper_direction direction, int net_index);

#endif
