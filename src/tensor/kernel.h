/* Internal. How operations are computed on a CPU: kernels over ranges, and the sets they come in.
 *
 * A kernel computes a range of independent results of one lane: samples (each owns its slice of every activation) or
 * *units* (output channels, rows, columns, chunks: whatever owns its slice of a parameter's gradient or a statistic). A
 * unit sums over all samples in order. So a range may be cut anywhere and run by any thread without changing a bit.
 *
 * The sources in tensor/ref/ are compiled once for each set: `ref` is the definition, `ref64` the same in double for
 * finite differences. The sets of the cpu backend (portable, avx2, avx512) are builds of the same text for their
 * instructions, except for the operations that have a faster source of the same name in tensor/cpu/; they also have the
 * family of tensor/cpu/blocks/. */
#ifndef ESPER_TENSOR_KERNEL_H
#define ESPER_TENSOR_KERNEL_H

#include <stddef.h>

#include "tensor/op.h"

/* Computes results begin .. end-1 of a lane. */
typedef void (*esper_kernel)(const esper_lane *lane, int begin, int end);

typedef struct esper_phase {
    esper_kernel run;                     /* NULL ends the list */
    int (*units)(const esper_lane *lane); /* how many results there are; NULL = the samples of the pass */
} esper_phase;

enum { ESPER_MAX_PHASES = 6 };

/* Work that can be cut for the caches in two ways: name, the first way, which a table of phases has, and the other one. Both
 * give the same bits. Which is taken is said by the tune table (tensor/tune.h).
 *
 *   linear.y, linear.dx   columns of w that are packed together: 64 or 192
 *   linear.dw             the gradient of w in tiles, or in bands of rows, which pack their rows once
 *   conv.y, conv.dx       all channels that are summed over in one go, or a few at a time */
#define ESPER_WORK_LIST(X)                          \
    X(LINEAR_Y, "linear.y", "narrow", "wide")       \
    X(LINEAR_DX, "linear.dx", "narrow", "wide")     \
    X(LINEAR_DW, "linear.dw", "tiles", "bands")     \
    X(CONV_Y, "conv.y", "whole", "split")           \
    X(CONV_DX, "conv.dx", "whole", "split")

typedef enum esper_work {
#define X(work, ...) ESPER_WORK_##work,
    ESPER_WORK_LIST(X)
#undef X
        ESPER_N_WORKS
} esper_work;

enum { ESPER_WAYS = 2 };

/* The other way of one phase. A list ends where width is NULL. */
typedef struct esper_ways {
    int         phase; /* number of it */
    esper_work  work;
    int (*width)(const esper_lane *lane); /* of the layer, as the tune table counts */
    esper_phase other;
} esper_ways;

/* The phases of an operation run one after the other, each over all its results. Flat work has forward phases only. */
typedef struct esper_op_kernels {
    esper_phase forward[ESPER_MAX_PHASES + 1];
    esper_phase backward[ESPER_MAX_PHASES + 1];
    /* Bytes of lane->scratch that the phases of a direction want for batches of up to max_samples; NULL = none. Asked while
     * planning: of the lane only shapes and settings are there. */
    size_t (*scratch)(const esper_lane *lane, bool backward, int max_samples);
    /* The direction's one phase makes result u of the inputs' parts u alone, all tensors being alike: operations like this
     * that follow each other may run as a chain, a few results at a time. */
    bool local_forward, local_backward;
    const esper_ways *ways_forward, *ways_backward; /* phases that can be computed otherwise; NULL = none */
    /* The phases of a training pass where the batch is spread over ranks (lane->spread), in a table of their own; NULL =
     * they are the same, samples having nothing to do with each other. Both tables ask for the same scratch. */
    const struct esper_op_kernels *shared;
    /* The same in finer units, for threads that share a few blocks of samples: what one thread would do in one go, while it is in
     * its caches, takes a phase more. NULL = there are none. Same bits, same scratch. */
    const struct esper_op_kernels *fine;
    /* Of such a table: how many doubles ranks add up, and their place in scratch (as esper_backend_ops.sums; of the lane
     * only shapes and settings are there); and in each direction the phase that finds them added up. */
    size_t (*sums)(const esper_lane *lane, bool backward, size_t *offset_out);
    int summed_forward, summed_backward;
} esper_op_kernels;

/* The table a lane is to be computed with: the operation's own, or its shared one. */
static inline const esper_op_kernels *esper_kernels_of(const esper_op_kernels *op, const esper_lane *lane)
{
    return lane->spread && op->shared != NULL && esper_lane_trains(lane) ? op->shared : op;
}

/* The phases that a part of a launch runs, of a table that esper_kernels_of gave: from begin to before end, or to the end of
 * the list where that comes first. What ranks do not add up is all done by the second part. */
typedef struct esper_phases {
    int begin, end;
} esper_phases;

static inline esper_phases esper_phases_of(const esper_op_kernels *op, bool backward, esper_part part)
{
    int cut = op->sums == NULL ? 0 : backward ? op->summed_backward : op->summed_forward;

    return (esper_phases){part == ESPER_PART_AFTER ? cut : 0, part == ESPER_PART_BEFORE ? cut : ESPER_MAX_PHASES};
}

/* Two families. `op` computes on canonical layouts. `blocks` is the CPU backend's for image networks, on blocks of samples
 * (tensor/cpu/block.h): a backend that lowers a network to blocks launches it with this one. */
typedef struct esper_kernel_set {
    const char             *name;
    const esper_op_kernels *op[ESPER_N_OPS];
    const esper_op_kernels *const
        *blocks; /* (ESPER_N_KINDS) NULL where there is none; NULL: no such family in this set */
} esper_kernel_set;

extern const esper_kernel_set esper_kernels_ref, esper_kernels_ref64;
extern const esper_kernel_set esper_kernels_portable, esper_kernels_avx2, esper_kernels_avx512;

/* The fastest set this processor can run, or the one that the environment variable ESPER_KERNELS names
 * (portable, avx2, avx512); NULL when that names none this processor can run. */
const esper_kernel_set *esper_kernels_choose(void);

/* "avx2 or portable": the sets of the cpu backend that this processor can run, fastest first. */
void esper_kernels_names(char *text, size_t chars);

#endif
