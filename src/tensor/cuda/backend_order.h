/* Internal. A common order of steps for programs that run side by side.
 *
 * A launch has a lane for each program whose next launch is of the same kind: the same kernel with blocks of as many threads, whatever
 * the lanes' shapes are. Each program's launches stay in their order; where programs differ, which of them wait for which is
 * free, and decides how many launches there are:
 *
 *     program a   conv  norm  pool  conv  norm            the seed conv-norm in the first slot
 *     program b   conv  pool  conv  norm                  and none
 *     steps       conv  norm  pool  conv  norm            a has a lane in all of them, b in four
 *
 * Steps are found for a program by the longest common subsequence of its kinds and the steps that are there, those in which many
 * have a lane before others; what is not among them becomes a step of its own. A sequence of kinds is aligned so once: programs of one
 * form, those of equal networks, share it. So putting programs together takes no longer than listing their lanes, also where a network
 * has changed a moment ago. */
#ifndef ESPER_TENSOR_CUDA_BACKEND_ORDER_H
#define ESPER_TENSOR_CUDA_BACKEND_ORDER_H

#include <stddef.h>
#include <stdint.h>

#include "esper.h"

/* Programs with one sequence of kinds. */
typedef struct cuda_form {
    struct cuda_form *next; /* in its bucket */
    uint64_t          hash;
    int               n;
    uint32_t         *kinds; /* (n) */
    int              *steps; /* (n) which one each is, by its number */
} cuda_form;

typedef struct cuda_step {
    uint32_t kind;
    int      n_forms; /* that have a launch in it */
    int      rank;    /* in the common order, from 0 */
} cuda_step;

enum { CUDA_FORM_BUCKETS = 1024 };

typedef struct cuda_order {
    cuda_step *steps;    /* (n_steps) by number */
    int       *sequence; /* (n_steps) numbers in the common order */
    int        n_steps, room_steps;
    cuda_form *forms[CUDA_FORM_BUCKETS];
    int        n_forms;
    void      *work;     /* for aligning */
    size_t     work_bytes;
} cuda_order;

void cuda_order_fini(cuda_order *order);

/* Where it has become long, of networks that are no more, it is begun anew. */
void cuda_order_tidy(cuda_order *order);

/* The steps of a sequence; they stay until the order is tidied, their ranks until the next form is new. */
esper_status cuda_order_find(cuda_order *order, const uint32_t *kinds, int n, const cuda_form **form_out);

#endif
