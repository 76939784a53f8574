/* Internal. Sums over one stretch of elements, in double, and the two loops over rows that attention is made of.
 *
 * A sum is kept in eight interleaved parts, joined in a fixed order: the order is the same in every kernel set and range,
 * and the compiler may hold the parts in vectors without being allowed to reorder anything. */
#ifndef ESPER_TENSOR_REF_SUMS_H
#define ESPER_TENSOR_REF_SUMS_H

#include "tensor/ref/ref.h"

enum { SUM_PARTS = 8 };

static inline double join_parts(const double part[SUM_PARTS])
{
    return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

static inline double sum_of(const real *x, size_t n)
{
    double part[SUM_PARTS] = {0};
    size_t i = 0;

    for (; i + SUM_PARTS <= n; i += SUM_PARTS)
        for (size_t j = 0; j < SUM_PARTS; j++)
            part[j] += (double)x[i + j];
    for (; i < n; i++)
        part[i % SUM_PARTS] += (double)x[i];
    return join_parts(part);
}

/* The sum of (x - centre)^2. */
static inline double sum_squares(const real *x, double centre, size_t n)
{
    double part[SUM_PARTS] = {0};
    size_t i = 0;

    for (; i + SUM_PARTS <= n; i += SUM_PARTS)
        for (size_t j = 0; j < SUM_PARTS; j++) {
            double off = (double)x[i + j] - centre;

            part[j] += off * off;
        }
    for (; i < n; i++) {
        double off = (double)x[i] - centre;

        part[i % SUM_PARTS] += off * off;
    }
    return join_parts(part);
}

/* The sum of g (x - centre). */
static inline double sum_product(const real *g, const real *x, double centre, size_t n)
{
    double part[SUM_PARTS] = {0};
    size_t i = 0;

    for (; i + SUM_PARTS <= n; i += SUM_PARTS)
        for (size_t j = 0; j < SUM_PARTS; j++)
            part[j] += (double)g[i + j] * ((double)x[i + j] - centre);
    for (; i < n; i++)
        part[i % SUM_PARTS] += (double)g[i] * ((double)x[i] - centre);
    return join_parts(part);
}

/* A short dot product, in real. */
static inline real dot(const real *a, const real *b, int n)
{
    real part[SUM_PARTS] = {0};
    int i = 0;

    for (; i + SUM_PARTS <= n; i += SUM_PARTS)
        for (int j = 0; j < SUM_PARTS; j++)
            part[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        part[i % SUM_PARTS] += a[i] * b[i];
    return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

static inline void add_scaled(real *restrict to, const real *restrict from, real factor, int n)
{
    for (int i = 0; i < n; i++)
        to[i] += factor * from[i];
}

#endif
