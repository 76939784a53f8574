/* Internal. Long sums over the pixels of a block, kept apart for each sample.
 *
 * Short runs are summed in float, in a few independent accumulators that stay in registers, and the runs in double: as
 * fast as float alone, and good to about 1e-7 of the sum of the absolute values. */
#ifndef ESPER_TENSOR_CPU_SIMD_SUMS_H
#define ESPER_TENSOR_CPU_SIMD_SUMS_H

#include "tensor/cpu/simd.h"

enum {
    SIMD_AT_ONCE = 4 / SIMD_VECS, /* pixels: four vectors, so that sums do not wait for each other */
    SIMD_RUN = 64,                 /* pixels of a run: at most so many terms are summed in float */
    SIMD_WIDE_VEC = SIMD_VEC_BYTES / sizeof(double),
    SIMD_WIDE_VECS = SIMD_WIDTH / SIMD_WIDE_VEC,
};

typedef double simd_wide_vec __attribute__((vector_size(SIMD_VEC_BYTES), may_alias));

/* A double of each sample. Spelled out in vectors as gcc takes loops over arrays of sixteen to pieces. */
typedef struct simd_wide {
    simd_wide_vec v[SIMD_WIDE_VECS];
} simd_wide;

/* Two sums of each sample. */
typedef struct simd_sums {
    simd_wide a, b;
} simd_sums;

/* The two sums of a run, for each of the pixels taken at once. */
typedef struct simd_run {
    simd_acc a[SIMD_AT_ONCE], b[SIMD_AT_ONCE];
} simd_run;

SIMD_INLINE simd_wide simd_widen(simd_acc x)
{
    typedef float half __attribute__((vector_size(SIMD_VEC_BYTES / 2), may_alias));
    float sample[SIMD_WIDTH] __attribute__((aligned(64)));
    simd_wide wide;

    simd_acc_store(sample, x);
    for (int i = 0; i < SIMD_WIDE_VECS; i++)
        wide.v[i] = __builtin_convertvector(*(const half *)(sample + i * SIMD_WIDE_VEC), simd_wide_vec);
    return wide;
}

SIMD_INLINE void simd_add_wide(simd_wide *sum, simd_acc part)
{
    simd_wide wide = simd_widen(part);

    for (int i = 0; i < SIMD_WIDE_VECS; i++)
        sum->v[i] += wide.v[i];
}

SIMD_INLINE void simd_wide_store(double sample[SIMD_WIDTH], simd_wide x)
{
    for (int i = 0; i < SIMD_WIDE_VECS; i++)
        *(simd_wide_vec *)(sample + i * SIMD_WIDE_VEC) = x.v[i];
}

/* The accumulators of the pixels taken at once, added. */
SIMD_INLINE simd_acc simd_run_total(const simd_acc *part)
{
    simd_acc total = part[0];

    for (int p = 1; p < SIMD_AT_ONCE; p++)
        for (int i = 0; i < SIMD_VECS; i++)
            total.v[i] += part[p].v[i];
    return total;
}

SIMD_INLINE void simd_sums_add(simd_sums *sums, const simd_run *run)
{
    simd_add_wide(&sums->a, simd_run_total(run->a));
    simd_add_wide(&sums->b, simd_run_total(run->b));
}

/* The sum over all samples: halves are added to each other, as in simd_acc_sum. */
SIMD_INLINE double simd_join_all(simd_wide x)
{
    double part[SIMD_WIDE_VEC] __attribute__((aligned(64)));

    for (int half = SIMD_WIDE_VECS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            x.v[i] += x.v[i + half];
    *(simd_wide_vec *)part = x.v[0];
    for (int half = SIMD_WIDE_VEC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

/* The sum over the valid samples. */
static inline double simd_join(simd_wide x, int n_valid)
{
    double sample[SIMD_WIDTH] __attribute__((aligned(64)));

    if (n_valid == SIMD_WIDTH)
        return simd_join_all(x);
    simd_wide_store(sample, x);
    for (int l = n_valid; l < SIMD_WIDTH; l++)
        sample[l] = 0;
    for (int i = 0; i < SIMD_WIDE_VECS; i++)
        x.v[i] = *(const simd_wide_vec *)(sample + i * SIMD_WIDE_VEC);
    return simd_join_all(x);
}

/* ------------------------------------------------------------------------------------- values about a near centre */

/* The mean of eight pixels spread over x, for each sample: near enough to the mean to subtract before squaring. A step
 * that is no round number keeps them from all lying on the border, where convolutions give other values. */
SIMD_INLINE simd_acc simd_near_mean(const float *x, size_t pixels)
{
    simd_acc sum = {0};

    for (size_t k = 0; k < 8; k++)
        for (int i = 0; i < SIMD_VECS; i++)
            sum.v[i] += simd_load(x + (2 * k + 1) * pixels / 17 * SIMD_WIDTH + i * SIMD_VEC);
    for (int i = 0; i < SIMD_VECS; i++)
        sum.v[i] *= 0.125f;
    return sum;
}

/* Adds `n` pixels' x - centre to a and its square to b. */
SIMD_INLINE void simd_run_moments(const float *x, simd_acc centre, int n, simd_run *run)
{
    for (int p = 0; p < n; p++)
        for (int i = 0; i < SIMD_VECS; i++) {
            simd_vec off = simd_load(x + p * SIMD_WIDTH + i * SIMD_VEC) - centre.v[i];

            run->a[p].v[i] += off;
            run->b[p].v[i] += off * off;
        }
}

/* a: the sum of x - centre, b: of its square, over the pixels of each sample. */
static inline void simd_moment_sums(const float *x, size_t pixels, simd_acc centre, simd_sums *sums)
{
    for (size_t done = 0; done < pixels;) {
        size_t end = pixels - done < SIMD_RUN ? pixels : done + SIMD_RUN;
        simd_run run = {0};

        for (; done + SIMD_AT_ONCE <= end; done += SIMD_AT_ONCE)
            simd_run_moments(x + done * SIMD_WIDTH, centre, SIMD_AT_ONCE, &run);
        for (; done < end; done++)
            simd_run_moments(x + done * SIMD_WIDTH, centre, 1, &run);
        simd_sums_add(sums, &run);
    }
}

/* ------------------------------------------------------------------------------------- products of two */

SIMD_INLINE void simd_run_products(const float *g, const float *x, simd_acc centre, int n, simd_run *run)
{
    for (int p = 0; p < n; p++)
        for (int i = 0; i < SIMD_VECS; i++) {
            simd_vec grad = simd_load(g + p * SIMD_WIDTH + i * SIMD_VEC);

            run->a[p].v[i] += grad;
            run->b[p].v[i] += grad * (simd_load(x + p * SIMD_WIDTH + i * SIMD_VEC) - centre.v[i]);
        }
}

/* a: the sum of g, b: of g (x - centre), over the pixels of each sample. */
static inline void simd_product_sums(const float *g, const float *x, size_t pixels, simd_acc centre, simd_sums *sums)
{
    for (size_t done = 0; done < pixels;) {
        size_t end = pixels - done < SIMD_RUN ? pixels : done + SIMD_RUN;
        simd_run run = {0};

        for (; done + SIMD_AT_ONCE <= end; done += SIMD_AT_ONCE)
            simd_run_products(g + done * SIMD_WIDTH, x + done * SIMD_WIDTH, centre, SIMD_AT_ONCE, &run);
        for (; done < end; done++)
            simd_run_products(g + done * SIMD_WIDTH, x + done * SIMD_WIDTH, centre, 1, &run);
        simd_sums_add(sums, &run);
    }
}

/* The sum of x over the pixels of each sample. */
static inline void simd_plain_sums(const float *x, size_t pixels, simd_wide *sum)
{
    for (size_t done = 0; done < pixels;) {
        size_t end = pixels - done < SIMD_RUN ? pixels : done + SIMD_RUN;
        simd_acc part[SIMD_AT_ONCE] = {{{{0}}}};

        for (; done + SIMD_AT_ONCE <= end; done += SIMD_AT_ONCE)
            for (int p = 0; p < SIMD_AT_ONCE; p++)
                for (int i = 0; i < SIMD_VECS; i++)
                    part[p].v[i] += simd_load(x + (done + (size_t)p) * SIMD_WIDTH + i * SIMD_VEC);
        for (; done < end; done++)
            for (int i = 0; i < SIMD_VECS; i++)
                part[0].v[i] += simd_load(x + done * SIMD_WIDTH + i * SIMD_VEC);
        simd_add_wide(sum, simd_run_total(part));
    }
}

#endif
