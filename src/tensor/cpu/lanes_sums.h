/* Internal. Long sums over the pixels of a block, kept apart for each lane.
 *
 * Short runs are summed in float, in a few independent accumulators that stay in registers, and the runs in double: as
 * fast as float alone, and good to about 1e-7 of the sum of the absolute values. */
#ifndef ESPER_TENSOR_CPU_LANES_SUMS_H
#define ESPER_TENSOR_CPU_LANES_SUMS_H

#include "tensor/cpu/lanes.h"

enum {
    LANES_AT_ONCE = 4 / LANES_VECS, /* pixels: four vectors, so that sums do not wait for each other */
    LANES_RUN = 64,                 /* pixels of a run: at most so many terms are summed in float */
    LANES_WIDE_VEC = LANES_VEC_BYTES / sizeof(double),
    LANES_WIDE_VECS = LANES_WIDTH / LANES_WIDE_VEC,
};

typedef double lanes_wide_vec __attribute__((vector_size(LANES_VEC_BYTES), may_alias));

/* A double of each lane. Spelled out in vectors as gcc takes loops over arrays of sixteen to pieces. */
typedef struct lanes_wide {
    lanes_wide_vec v[LANES_WIDE_VECS];
} lanes_wide;

/* Two sums of each lane. */
typedef struct lanes_sums {
    lanes_wide a, b;
} lanes_sums;

/* The two sums of a run, for each of the pixels taken at once. */
typedef struct lanes_run {
    lanes_acc a[LANES_AT_ONCE], b[LANES_AT_ONCE];
} lanes_run;

LANES_INLINE lanes_wide lanes_widen(lanes_acc x)
{
    typedef float half __attribute__((vector_size(LANES_VEC_BYTES / 2), may_alias));
    float lane[LANES_WIDTH] __attribute__((aligned(64)));
    lanes_wide wide;

    lanes_acc_store(lane, x);
    for (int i = 0; i < LANES_WIDE_VECS; i++)
        wide.v[i] = __builtin_convertvector(*(const half *)(lane + i * LANES_WIDE_VEC), lanes_wide_vec);
    return wide;
}

LANES_INLINE void lanes_add_wide(lanes_wide *sum, lanes_acc part)
{
    lanes_wide wide = lanes_widen(part);

    for (int i = 0; i < LANES_WIDE_VECS; i++)
        sum->v[i] += wide.v[i];
}

LANES_INLINE void lanes_wide_store(double lane[LANES_WIDTH], lanes_wide x)
{
    for (int i = 0; i < LANES_WIDE_VECS; i++)
        *(lanes_wide_vec *)(lane + i * LANES_WIDE_VEC) = x.v[i];
}

/* The accumulators of the pixels taken at once, added. */
LANES_INLINE lanes_acc lanes_run_total(const lanes_acc *part)
{
    lanes_acc total = part[0];

    for (int p = 1; p < LANES_AT_ONCE; p++)
        for (int i = 0; i < LANES_VECS; i++)
            total.v[i] += part[p].v[i];
    return total;
}

LANES_INLINE void lanes_sums_add(lanes_sums *sums, const lanes_run *run)
{
    lanes_add_wide(&sums->a, lanes_run_total(run->a));
    lanes_add_wide(&sums->b, lanes_run_total(run->b));
}

/* The sum over all lanes: halves are added to each other, as in lanes_acc_sum. */
LANES_INLINE double lanes_join_all(lanes_wide x)
{
    double part[LANES_WIDE_VEC] __attribute__((aligned(64)));

    for (int half = LANES_WIDE_VECS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            x.v[i] += x.v[i + half];
    *(lanes_wide_vec *)part = x.v[0];
    for (int half = LANES_WIDE_VEC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

/* The sum over the valid lanes. */
static inline double lanes_join(lanes_wide x, int n_valid)
{
    double lane[LANES_WIDTH] __attribute__((aligned(64)));

    if (n_valid == LANES_WIDTH)
        return lanes_join_all(x);
    lanes_wide_store(lane, x);
    for (int l = n_valid; l < LANES_WIDTH; l++)
        lane[l] = 0;
    for (int i = 0; i < LANES_WIDE_VECS; i++)
        x.v[i] = *(const lanes_wide_vec *)(lane + i * LANES_WIDE_VEC);
    return lanes_join_all(x);
}

/* ------------------------------------------------------------------------------------- values about a near centre */

/* The mean of eight pixels spread over x, for each lane: near enough to the mean to subtract before squaring. A step
 * that is no round number keeps them from all lying on the border, where convolutions give other values. */
LANES_INLINE lanes_acc lanes_near_mean(const float *x, size_t pixels)
{
    lanes_acc sum = {0};

    for (size_t k = 0; k < 8; k++)
        for (int i = 0; i < LANES_VECS; i++)
            sum.v[i] += lanes_load(x + (2 * k + 1) * pixels / 17 * LANES_WIDTH + i * LANES_VEC);
    for (int i = 0; i < LANES_VECS; i++)
        sum.v[i] *= 0.125f;
    return sum;
}

/* Adds `n` pixels' x - centre to a and its square to b. */
LANES_INLINE void lanes_run_moments(const float *x, lanes_acc centre, int n, lanes_run *run)
{
    for (int p = 0; p < n; p++)
        for (int i = 0; i < LANES_VECS; i++) {
            lanes_vec off = lanes_load(x + p * LANES_WIDTH + i * LANES_VEC) - centre.v[i];

            run->a[p].v[i] += off;
            run->b[p].v[i] += off * off;
        }
}

/* a: the sum of x - centre, b: of its square, over the pixels of each lane. */
static inline void lanes_moment_sums(const float *x, size_t pixels, lanes_acc centre, lanes_sums *sums)
{
    for (size_t done = 0; done < pixels;) {
        size_t end = pixels - done < LANES_RUN ? pixels : done + LANES_RUN;
        lanes_run run = {0};

        for (; done + LANES_AT_ONCE <= end; done += LANES_AT_ONCE)
            lanes_run_moments(x + done * LANES_WIDTH, centre, LANES_AT_ONCE, &run);
        for (; done < end; done++)
            lanes_run_moments(x + done * LANES_WIDTH, centre, 1, &run);
        lanes_sums_add(sums, &run);
    }
}

/* ------------------------------------------------------------------------------------- products of two */

LANES_INLINE void lanes_run_products(const float *g, const float *x, lanes_acc centre, int n, lanes_run *run)
{
    for (int p = 0; p < n; p++)
        for (int i = 0; i < LANES_VECS; i++) {
            lanes_vec grad = lanes_load(g + p * LANES_WIDTH + i * LANES_VEC);

            run->a[p].v[i] += grad;
            run->b[p].v[i] += grad * (lanes_load(x + p * LANES_WIDTH + i * LANES_VEC) - centre.v[i]);
        }
}

/* a: the sum of g, b: of g (x - centre), over the pixels of each lane. */
static inline void lanes_product_sums(const float *g, const float *x, size_t pixels, lanes_acc centre, lanes_sums *sums)
{
    for (size_t done = 0; done < pixels;) {
        size_t end = pixels - done < LANES_RUN ? pixels : done + LANES_RUN;
        lanes_run run = {0};

        for (; done + LANES_AT_ONCE <= end; done += LANES_AT_ONCE)
            lanes_run_products(g + done * LANES_WIDTH, x + done * LANES_WIDTH, centre, LANES_AT_ONCE, &run);
        for (; done < end; done++)
            lanes_run_products(g + done * LANES_WIDTH, x + done * LANES_WIDTH, centre, 1, &run);
        lanes_sums_add(sums, &run);
    }
}

/* The sum of x over the pixels of each lane. */
static inline void lanes_plain_sums(const float *x, size_t pixels, lanes_wide *sum)
{
    for (size_t done = 0; done < pixels;) {
        size_t end = pixels - done < LANES_RUN ? pixels : done + LANES_RUN;
        lanes_acc part[LANES_AT_ONCE] = {{{{0}}}};

        for (; done + LANES_AT_ONCE <= end; done += LANES_AT_ONCE)
            for (int p = 0; p < LANES_AT_ONCE; p++)
                for (int i = 0; i < LANES_VECS; i++)
                    part[p].v[i] += lanes_load(x + (done + (size_t)p) * LANES_WIDTH + i * LANES_VEC);
        for (; done < end; done++)
            for (int i = 0; i < LANES_VECS; i++)
                part[0].v[i] += lanes_load(x + done * LANES_WIDTH + i * LANES_VEC);
        lanes_add_wide(sum, lanes_run_total(part));
    }
}

#endif
