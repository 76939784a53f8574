/* Internal. A schedule: all that a plan decides about one network without knowing an address.
 *
 * Networks with the same program have the same schedule, so it is made once and shared; a plan binds it to a slab and to
 * memory of its own. Nothing in it changes after it was made, so that several threads may use it. Made in this order:
 *
 *     the network as its backend likes it     plan_schedule.c
 *     which gradients are wanted              plan_lifetimes.c
 *     steps, and chains of them               plan_schedule.c
 *     from when to when memory is needed      plan_lifetimes.c
 *     offsets                                 plan_placement.c
 *
 * Time is counted in operations: operation o of a network runs forward at time o and backward at time 2n-1-o, where n is
 * the number of its operations. */
#ifndef ESPER_TENSOR_PLAN_SCHEDULE_H
#define ESPER_TENSOR_PLAN_SCHEDULE_H

#include <stdatomic.h>

#include "tensor/backend.h"
#include "tensor/net.h"

struct esper_plan_cache;

enum { ESPER_NEVER = -1, ESPER_ARENA_ALIGN = 64 };

/* A range of arena memory and the time it is needed. */
typedef struct esper_extent {
    size_t bytes, offset;
    int    begin, end; /* first and last time, inclusive; begin ESPER_NEVER = not needed */
    int    order;      /* settles ties, so that a layout depends on the net alone */
} esper_extent;

/* One launch of the network by itself: an operation in one direction, or a part of it. */
typedef struct esper_step {
    int        op;
    esper_part part;
    size_t     n_sums, sums_at; /* part BEFORE: doubles that ranks add up when it is done, and where in its scratch */
} esper_step;

typedef struct esper_schedule {
    atomic_int    n_holders; /* plans and caches that use it */
    int           max_samples;
    bool          training;  /* there are backward steps */
    bool          spread;    /* batches are spread over ranks */
    esper_precision precision;
    bool cores;               /* of the backend */
    uint64_t      frozen;    /* bits 1 << region */
    esper_net     net;       /* as the backend likes it; a copy of its own, without boundaries */
    bool         *has_grad;  /* (n_tensors) a gradient is wanted and arrives */
    bool         *runs_back; /* (n_ops) */
    uint32_t     *add_mask;  /* (n_ops) inputs whose gradient is added to */
    int          *home;      /* (n_tensors) the tensor whose memory it uses: itself unless isolated */
    esper_extent *data;      /* (n_tensors) of the arena; parameters have none */
    esper_extent *grad;      /* (n_tensors) */
    esper_extent *scratch[2]; /* (n_ops) by direction: what kernels want for themselves while they run */
    esper_step   *steps;     /* (n_steps of both directions) forward, then backward, as they run */
    int          *chain;     /* beside them: how many from this one on are run in one go; 0: with one before it */
    int           n_steps[2];
    size_t        arena_bytes, unshared_bytes; /* of the extents as placed, and one behind the other */
    size_t        max_sums;    /* the most doubles that ranks add up at once; 0: they meet nowhere */
    size_t        table_bytes; /* of this: the memory of a run can be predicted */
    bool          draws;       /* it has dropout */
    int           min_samples; /* in training: batch norm needs two values for each channel, on all ranks together */
} esper_schedule;

/* What a schedule is made of. */
typedef struct esper_schedule_desc {
    const esper_backend *backend;
    const esper_net     *net; /* borrowed for the call */
    int                  max_samples;
    bool                 training;
    uint64_t             frozen; /* bits 1 << region: no gradients there, and all as in evaluation */
    bool                 spread; /* batches are spread over ranks */
    bool                 exact;  /* in FP32, whatever the backend's precision is */
} esper_schedule_desc;

/* Makes one, held by the caller. The last holder that releases it frees it. */
esper_status esper_schedule_open(const esper_schedule_desc *desc, esper_schedule **schedule_out);
void         esper_schedule_hold(esper_schedule *schedule);
void         esper_schedule_release(esper_schedule *schedule);

/* One that is kept, or a new one, which is then kept; held by the caller in either case. Any thread. */
esper_status esper_plan_cache_get(struct esper_plan_cache *cache, const esper_schedule_desc *desc,
                                  esper_schedule **schedule_out);

/* The steps of a direction. */
static inline const esper_step *esper_schedule_steps(const esper_schedule *schedule, esper_direction direction)
{
    return schedule->steps + (direction == ESPER_BACKWARD ? schedule->n_steps[ESPER_FORWARD] : 0);
}

/* The shapes and settings of an operation, without any memory. */
esper_lane esper_schedule_shape(const esper_schedule *schedule, int op);

/* The parts. */
esper_status esper_schedule_trace_gradients(esper_schedule *schedule);
void         esper_schedule_find_times(esper_schedule *schedule);
esper_status esper_schedule_place(esper_schedule *schedule, const esper_backend *backend);

/* Offsets for extents that are needed at some time, sizes above 0; the list is put into another order. Returns what they take in
 * all. */
size_t esper_extents_place(esper_extent **list, int n);

/* A table of a plan. They are counted, so that the memory of a run can be predicted. */
void *esper_plan_take(size_t n, size_t element_bytes, size_t *total);

#endif
