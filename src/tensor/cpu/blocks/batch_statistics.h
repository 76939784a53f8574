/* Internal. What batch norm does between its passes over the data, with a convolution before it or without: choosing the
 * statistics, and turning two sums of each channel into gradients. Where the batch is spread over ranks, each of the two is
 * done in halves, between which the ranks meet with the values that tensor/ref/batch_norm.c defines. */
#ifndef ESPER_TENSOR_CPU_BLOCKS_BATCH_STATISTICS_H
#define ESPER_TENSOR_CPU_BLOCKS_BATCH_STATISTICS_H

#include <math.h>

#include "tensor/cpu/blocks/kernels.h"
#include "tensor/cpu/simd_norm.h"

/* Where the views of a lane and the pieces of its scratch lie. */
typedef struct batch_norm {
    const esper_view *scale, *shift;         /* (C) */
    float            *mean, *var;            /* (C) running */
    float            *mean_used, *rstd_used; /* (C) */
    size_t            channels, pixels;
    float             eps, momentum;
    bool              shared; /* the batch is spread over ranks */
    /* scratch */
    float         *factor;         /* (C) scale / std */
    float         *mean_g, *slope; /* (C) backward: what the batch takes from every gradient */
    simd_moments *moments;        /* (blocks, C) forward */
    double        *sums;           /* (blocks, C, 2) backward: of g, and of g (x - mean) */
    double        *values;         /* (1 + 2 C) where shared: what ranks sum */
} batch_norm;

static inline size_t batch_norm_n_values(const batch_norm *norm)
{
    return 1 + 2 * norm->channels;
}

static inline void batch_norm_lay_out(batch_norm *norm, bool backward, int n_blocks, scratch_cursor *at)
{
    /* values before all that grows with the blocks: they lie where they lie, whatever the batch */
    norm->factor = scratch_take(at, norm->channels * sizeof(float));
    norm->values = scratch_take(at, norm->shared ? batch_norm_n_values(norm) * sizeof(double) : 0);
    if (!backward) {
        norm->moments = scratch_take(at, (size_t)n_blocks * norm->channels * sizeof(simd_moments));
        return;
    }
    norm->mean_g = scratch_take(at, norm->channels * sizeof(float));
    norm->slope = scratch_take(at, norm->channels * sizeof(float));
    norm->sums = scratch_take(at, (size_t)n_blocks * norm->channels * 2 * sizeof(double));
}

/* Of channels begin .. end-1 of a block, which begins at x. */
static inline void batch_norm_measure(const batch_norm *norm, const esper_lane *lane, int block, size_t begin,
                                      size_t end, const float *x)
{
    for (size_t c = begin; c < end; c++)
        simd_norm_moments(x + c * norm->pixels * SIMD_WIDTH, norm->pixels, samples_in(lane, block),
                          &norm->moments[(size_t)block * norm->channels + c]);
}

/* Elements of a channel here: on all ranks together it is the first of the values. */
static inline double batch_norm_count(const batch_norm *norm, const esper_lane *lane)
{
    return (double)norm->pixels * lane->pass->n_samples;
}

static inline void batch_norm_move_running(const batch_norm *norm, size_t c, double count, double mean, double var)
{
    double share = (double)norm->momentum;

    norm->mean[c] = (float)((1 - share) * (double)norm->mean[c] + share * mean);
    norm->var[c] = (float)((1 - share) * (double)norm->var[c] + share * (var * count / (count - 1)));
}

/* What a channel is normalised with. */
static inline void batch_norm_use(const batch_norm *norm, size_t c, double mean, double var)
{
    norm->mean_used[c] = (float)mean;
    norm->rstd_used[c] = (float)(1 / sqrt(var + (double)norm->eps));
    norm->factor[c] = ((const float *)norm->scale->data)[c] * norm->rstd_used[c];
}

/* A channel's sums over n_blocks blocks, of which these are the first. */
static inline simd_moments batch_norm_add_moments(const batch_norm *norm, const simd_moments *blocks, int n_blocks)
{
    int half = blocks_in_half(n_blocks);
    simd_moments first, second;

    if (n_blocks == 1)
        return *blocks;
    first = batch_norm_add_moments(norm, blocks, half);
    second = batch_norm_add_moments(norm, blocks + (size_t)half * norm->channels, n_blocks - half);
    return (simd_moments){first.sum + second.sum, first.squares + second.squares};
}

/* The statistics of the whole batch, which move the running ones. */
static inline void batch_norm_use_batch(const batch_norm *norm, size_t c, simd_moments of, double count)
{
    double mean, var;

    simd_norm_statistics(of, count, &mean, &var);
    batch_norm_move_running(norm, c, count, mean, var);
    batch_norm_use(norm, c, mean, var);
}

/* Units are channels: the batch's statistics in training, otherwise the running ones. */
static inline void batch_norm_choose(const batch_norm *norm, const esper_lane *lane, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++)
        if (lane->pass->training)
            batch_norm_use_batch(norm, c, batch_norm_add_moments(norm, norm->moments + c, count_blocks(lane)),
                                 batch_norm_count(norm, lane));
        else
            batch_norm_use(norm, c, (double)norm->mean[c], (double)norm->var[c]);
}

static inline void batch_norm_put_values(const batch_norm *norm, const esper_lane *lane, size_t c, double first,
                                         double second)
{
    if (c == 0)
        norm->values[0] = batch_norm_count(norm, lane);
    norm->values[1 + 2 * c] = first;
    norm->values[2 + 2 * c] = second;
}

/* Units are channels. Before the ranks meet: the sums of this one. */
static inline void batch_norm_offer(const batch_norm *norm, const esper_lane *lane, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++) {
        simd_moments sums = batch_norm_add_moments(norm, norm->moments + c, count_blocks(lane));

        batch_norm_put_values(norm, lane, c, sums.sum, sums.squares);
    }
}

/* Units are channels. After it. */
static inline void batch_norm_choose_shared(const batch_norm *norm, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++)
        batch_norm_use_batch(norm, c, (simd_moments){norm->values[1 + 2 * c], norm->values[2 + 2 * c]},
                             norm->values[0]);
}

/* Units are channels: scale / std as it was forward. */
static inline void batch_norm_factors(const batch_norm *norm, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++)
        norm->factor[c] = ((const float *)norm->scale->data)[c] * norm->rstd_used[c];
}

/* A channel's sum k over n_blocks blocks, of which these are the first. */
static inline double batch_norm_add_sums(const batch_norm *norm, const double *blocks, int n_blocks)
{
    int half = blocks_in_half(n_blocks);

    if (n_blocks == 1)
        return *blocks;
    return batch_norm_add_sums(norm, blocks, half) +
           batch_norm_add_sums(norm, blocks + (size_t)half * norm->channels * 2, n_blocks - half);
}

static inline void batch_norm_sum_blocks(const batch_norm *norm, const esper_lane *lane, size_t c, double sum[2])
{
    for (size_t k = 0; k < 2; k++)
        sum[k] = batch_norm_add_sums(norm, norm->sums + 2 * c + k, count_blocks(lane));
}

/* The gradients of scale and shift, of which this rank gives a share. */
static inline void batch_norm_put_gradients(const batch_norm *norm, size_t c, const double sum[2], double share)
{
    if (norm->scale->grad != NULL)
        grad_put(norm->scale, (float *)norm->scale->grad + c, (float)(sum[1] * share * (double)norm->rstd_used[c]));
    if (norm->shift->grad != NULL)
        grad_put(norm->shift, (float *)norm->shift->grad + c, (float)(sum[0] * share));
}

/* What the batch takes from every gradient of a channel. */
static inline void batch_norm_level(const batch_norm *norm, size_t c, const double sum[2], double count)
{
    double rstd = (double)norm->rstd_used[c];

    norm->mean_g[c] = (float)(sum[0] / count);
    norm->slope[c] = (float)(sum[1] / count * rstd * rstd);
}

/* Units are channels: the gradients of scale and shift, and what the batch takes from every gradient. */
static inline void batch_norm_join(const batch_norm *norm, const esper_lane *lane, size_t begin, size_t end)
{
    double sum[2];

    for (size_t c = begin; c < end; c++) {
        batch_norm_sum_blocks(norm, lane, c, sum);
        batch_norm_put_gradients(norm, c, sum, 1.0);
        if (lane->pass->training)
            batch_norm_level(norm, c, sum, batch_norm_count(norm, lane));
        else
            norm->mean_g[c] = norm->slope[c] = 0;
    }
}

/* Units are channels. Before the ranks meet: the sums of this one. */
static inline void batch_norm_offer_back(const batch_norm *norm, const esper_lane *lane, size_t begin, size_t end)
{
    double sum[2];

    for (size_t c = begin; c < end; c++) {
        batch_norm_sum_blocks(norm, lane, c, sum);
        batch_norm_put_values(norm, lane, c, sum[0], sum[1]);
    }
}

/* Units are channels. After it. All ranks have all of the gradients of scale and shift, and as gradients are summed over
 * ranks, each gives its share of them. With equal shares of a power of two nothing is rounded: the sum is that of one rank. */
static inline void batch_norm_join_shared(const batch_norm *norm, const esper_lane *lane, size_t begin, size_t end)
{
    double share = batch_norm_count(norm, lane) / norm->values[0];

    for (size_t c = begin; c < end; c++) {
        batch_norm_put_gradients(norm, c, norm->values + 1 + 2 * c, share);
        batch_norm_level(norm, c, norm->values + 1 + 2 * c, norm->values[0]);
    }
}

#endif
