/* Internal. Random cases of every operation, and lanes built by hand to run a kernel set on them.
 *
 * A case is shapes, settings and values, independent of a set's element type (values are floats, widened to double). A run
 * is a case in memory for one set: every buffer in its own block between guard bytes, filled with a pattern where the
 * kernels have to write. */
#ifndef ESPER_TESTS_OP_CASES_H
#define ESPER_TESTS_OP_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"
#include "tensor/kernel.h"

enum { OP_CASE_MAX_SAMPLES = 8, OP_RUN_MAX_BUFFERS = 16 };

typedef enum op_role {
    OP_ABSENT,
    OP_SAMPLE, /* one slice for each sample */
    OP_WHOLE,  /* one for all samples: parameters, statistics, flat ranges */
    OP_IDS,    /* int32, one slice for each sample */
    OP_DOUBLE, /* doubles whatever the set's element type */
} op_role;

typedef struct op_tensor {
    op_role role;
    int     rank;
    int32_t dim[ESPER_MAX_RANK];
    size_t  count;    /* elements of dim */
    size_t  total;    /* elements in memory */
    double *value;    /* (total) contents before the run; NULL: written by the kernels */
    double *grad;     /* (total) of an output: the incoming gradient; of an input: what stands there before; or NULL */
    bool    add;      /* an input's gradient is added to */
    int     same_as;  /* an input that is the same tensor as an earlier one: its index, else -1 */
} op_tensor;

typedef struct op_case {
    esper_op_kind kind;
    op_tensor     in[ESPER_OP_MAX_IN], out[ESPER_OP_MAX_OUT];
    esper_attr    attr;
    esper_pass    pass;
    esper_group   group;
    uint32_t      sample_id[OP_CASE_MAX_SAMPLES];
    bool          flat; /* grad_norm, sgd, adamw: forward only */
    char          text[256];
} op_case;

/* Draws case `number` of an operation; the same number gives the same case. Not for isolate, which computes nothing. */
void op_case_init(op_case *c, esper_op_kind kind, uint32_t number);
void op_case_fini(op_case *c);

/* A tensor of an operation that a test sets up by hand: zeroed values for an input, none for an output. */
void op_tensor_init(op_tensor *t, op_role role, int n_samples, int rank, const int32_t *dim, bool is_output);

typedef enum op_element { OP_REAL, OP_INT32, OP_FLOAT64 } op_element;

typedef struct op_buffer {
    char       name[24]; /* "in[1].grad" */
    op_element element;
    size_t     count, bytes;
    char      *block; /* guard, buffer, guard */
} op_buffer;

typedef struct op_run {
    const op_case *c;
    size_t         real_bytes; /* 4 or 8 */
    esper_lane     lane;
    op_buffer      buffers[OP_RUN_MAX_BUFFERS];
    int            n_buffers;
    void          *scratch; /* of the direction that ran last */
} op_run;

/* `fill` is the byte that stands wherever the kernels have to write. The case must outlive the run. */
void op_run_init(op_run *run, const op_case *c, size_t real_bytes, unsigned char fill);
void op_run_fini(op_run *run);

/* Runs all phases. With `cuts`, each phase's results are computed in ranges of random length, in random order. */
void op_run_forward(op_run *run, const esper_kernel_set *set, esper_rng *cuts);
void op_run_backward(op_run *run, const esper_kernel_set *set, esper_rng *cuts);

/* The buffer of that name; NULL when the run has none. */
const op_buffer *op_run_find(const op_run *run, const char *name);

void  *op_buffer_mem(const op_buffer *b);
double op_run_get(const op_run *run, const op_buffer *b, size_t at);
void   op_run_set(op_run *run, const op_buffer *b, size_t at, double value);

/* The first buffer whose guard bytes were written to; NULL when none was. */
const op_buffer *op_run_broken_guard(const op_run *run);

#endif
