/* Internal. What the kernels of attention share: where a head lies, what dropout draws, and the plain way for one query. */
#ifndef ESPER_TENSOR_REF_ATTENTION_H
#define ESPER_TENSOR_REF_ATTENTION_H

#include <string.h>
#include <tgmath.h>

#include "tensor/ref/keep.h"
#include "tensor/ref/sums.h"

/* One head of one sample. Rows of q, k and v are `stride` apart. */
typedef struct head {
    int T, width;
    size_t stride;
    real scale;
    size_t q, k, v; /* where the head's first row begins in a sample's qkv */
    size_t y, p;    /* and in its y and p */
    size_t y_stride;
} head;

static inline head head_of(const esper_lane *lane, int index)
{
    size_t D = (size_t)lane->out[0].dim[1];
    int T = lane->out[0].dim[0], width = (int)D / lane->attr.attention.heads;
    size_t first = (size_t)index * (size_t)width;

    return (head){
        .T = T,
        .width = width,
        .stride = 3 * D,
        .scale = 1 / sqrt((real)width),
        .q = first,
        .k = D + first,
        .v = 2 * D + first,
        .y = first,
        .p = (size_t)index * (size_t)T * (size_t)T,
        .y_stride = D,
    };
}

static inline bool drops(const esper_lane *lane)
{
    return esper_lane_trains(lane) && lane->attr.attention.drop > 0;
}

/* The factor of the next probability. Draws only where dropout is on. */
static inline real next_factor(const esper_lane *lane, esper_rng *rng)
{
    return drops(lane) ? keep_factor(rng, lane->attr.attention.drop) : 1;
}

static inline esper_rng stream_of(const esper_lane *lane, int sample)
{
    return drops(lane) ? keep_stream(lane->pass, sample, lane->attr.attention.tag) : (esper_rng){0};
}

/* Row i of p. */
static inline void probabilities(const head *h, const real *qkv, int i, real *p)
{
    const real *q = qkv + h->q + (size_t)i * h->stride;
    double sum = 0;
    real top, part;

    for (int j = 0; j <= i; j++)
        p[j] = h->scale * dot(q, qkv + h->k + (size_t)j * h->stride, h->width);
    top = p[0];
    for (int j = 1; j <= i; j++)
        top = p[j] > top ? p[j] : top;
    for (int j = 0; j <= i; j++) {
        p[j] = exp(p[j] - top);
        sum += (double)p[j];
    }
    part = (real)(1 / sum);
    for (int j = 0; j <= i; j++)
        p[j] *= part;
    memset(p + i + 1, 0, (size_t)(h->T - i - 1) * sizeof(real));
}

/* Fills the head's rows of p and columns of y. */
static inline void forward_head(const esper_lane *lane, const head *h, const real *qkv, esper_rng *rng, real *p,
                                real *y)
{
    for (int i = 0; i < h->T; i++) {
        real *to = y + h->y + (size_t)i * h->y_stride, *row = p + h->p + (size_t)i * (size_t)h->T;

        probabilities(h, qkv, i, row);
        memset(to, 0, (size_t)h->width * sizeof(real));
        for (int j = 0; j <= i; j++)
            add_scaled(to, qkv + h->v + (size_t)j * h->stride, row[j] * next_factor(lane, rng), h->width);
    }
}

/* Adds query i's part to the gradients of q_i, of all k_j and of all v_j. With g the gradient of y_i and d_j that of p_j,
 *
 *     d_j = kept_j g . v_j        gradient of score j = p_j (d_j - sum of p d)
 *
 * The d are made twice, once for their sum: keeping them would take a row of scratch memory for any T. */
static inline void backward_query(const esper_lane *lane, const head *h, const real *qkv, const real *p, const real *g,
                                  int i, esper_rng *rng, real *dqkv)
{
    const real *q = qkv + h->q + (size_t)i * h->stride, *k = qkv + h->k, *v = qkv + h->v;
    real *dq = dqkv + h->q + (size_t)i * h->stride, *dk = dqkv + h->k, *dv = dqkv + h->v;
    esper_rng again = *rng;
    double sum = 0;

    for (int j = 0; j <= i; j++)
        sum += (double)p[j] * (double)(next_factor(lane, rng) * dot(g, v + (size_t)j * h->stride, h->width));
    for (int j = 0; j <= i; j++) {
        size_t row = (size_t)j * h->stride;
        real factor = next_factor(lane, &again);
        real dp = factor * dot(g, v + row, h->width);
        real dscore = p[j] * (dp - (real)sum) * h->scale;

        add_scaled(dv + row, g, p[j] * factor, h->width);
        add_scaled(dk + row, q, dscore, h->width);
        add_scaled(dq, k + row, dscore, h->width);
    }
}

/* Adds a head's part to the gradient of sample n. */
static inline void backward_head(const esper_lane *lane, const head *h, int n, esper_rng *rng)
{
    for (int i = 0; i < h->T; i++)
        backward_query(lane, h, data_at(&lane->in[0], n), data_at(&lane->out[1], n) + h->p + (size_t)i * (size_t)h->T,
                       grad_at(&lane->out[0], n) + h->y + (size_t)i * h->y_stride, i, rng, grad_at(&lane->in[0], n));
}

#endif
