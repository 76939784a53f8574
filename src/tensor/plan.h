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

/* One network of a plan. All three are borrowed until the plan is closed; the pass is read anew in every pass. */
typedef struct esper_plan_net {
    const esper_net  *net;
    const esper_slab *slab;
    const esper_pass *pass;
    uint64_t          frozen; /* bits 1 << region: parameters there get no gradient from this plan */
    /* The network's batches are spread over ranks, and batch norm counts them together in training; borrowed as well. All
     * ranks have the same network, max_samples and order of passes, and each at least one sample. NULL: one rank, or each
     * for itself. */
    const esper_exchange *exchange;
} esper_plan_net;

typedef struct esper_plan_desc {
    esper_backend        *backend;
    const esper_plan_net *nets;
    int                   n_nets;
    int                   max_samples; /* the largest batch of a network */
    bool                  training;    /* with a backward pass; without one, more memory is used twice */
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
/* The same for one of the networks, on a stream: several threads may do this at a time, each with another network. */
esper_status esper_plan_forward_one(esper_plan *plan, esper_backend_stream *stream, int net_index);
esper_status esper_plan_gradients_one(esper_plan *plan, esper_backend_stream *stream, int net_index);

/* The memory of a tensor: inputs to write before a pass; the loss, outputs and kept tensors to read after it.
 * NULL for tensors without memory of their own here. */
void  *esper_plan_data(const esper_plan *plan, int net_index, int tensor);
float *esper_plan_grad(const esper_plan *plan, int net_index, int tensor);

/* What the plan will cost. */
typedef struct esper_plan_stats {
    size_t     arena_bytes; /* activations and their gradients */
    size_t     arena_bytes_unshared; /* what they would take without reuse */
    size_t     table_bytes; /* the plan's own tables */
    int        n_forward, n_backward; /* launches */
    esper_cost forward, backward;     /* for full batches */
} esper_plan_stats;

esper_plan_stats esper_plan_stats_of(const esper_plan *plan);

/* Launch `index` of a direction, all networks together; NULL past the end. */
const esper_launch *esper_plan_launch(const esper_plan *plan, esper_direction direction, int index);

/* What one of the networks does in a direction. */
const esper_program *esper_plan_program(const esper_plan *plan, esper_direction direction, int net_index);

#endif
