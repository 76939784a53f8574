/* Internal. What batch norm does between its passes over the data, with a convolution before it or without: choosing the
 * statistics, and turning two sums of each channel into gradients. Where the batch is spread over ranks, each of the two is
 * done in halves, between which the ranks meet with the values that tensor/ref/batch_norm.c defines. */
#ifndef ESPER_TENSOR_CPU_LANES_BATCH_STATISTICS_H
#define ESPER_TENSOR_CPU_LANES_BATCH_STATISTICS_H

#include <math.h>

#include "tensor/cpu/lanes/kernels.h"
#include "tensor/cpu/lanes_norm.h"

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
    lanes_moments *moments;        /* (blocks, C) forward */
    double        *sums;           /* (blocks, C, 2) backward: of g, and of g (x - mean) */
    double        *values;         /* (1 + 2 C) where shared: what ranks sum */
} batch_norm;

static inline size_t batch_norm_n_values(const batch_norm *norm)
{
    return 1 + 2 * norm->channels;
}

static inline void batch_norm_lay_out(batch_norm *norm, bool backward, int n_blocks, scratch_cursor *at)
{
    norm->factor = scratch_take(at, norm->channels * sizeof(float));
    norm->values = scratch_take(at, norm->shared ? batch_norm_n_values(norm) * sizeof(double) : 0);
    if (!backward) {
        norm->moments = scratch_take(at, (size_t)n_blocks * norm->channels * sizeof(lanes_moments));
        return;
    }
    norm->mean_g = scratch_take(at, norm->channels * sizeof(float));
    norm->slope = scratch_take(at, norm->channels * sizeof(float));
    norm->sums = scratch_take(at, (size_t)n_blocks * norm->channels * 2 * sizeof(double));
}

/* Of channel c of a block, which begins at x. */
static inline void batch_norm_measure(const batch_norm *norm, const esper_lane *lane, int block, const float *x)
{
    for (size_t c = 0; c < norm->channels; c++)
        lanes_norm_moments(x + c * norm->pixels * LANES_WIDTH, norm->pixels, samples_in(lane, block),
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

/* Units are channels: the batch's statistics in training, which move the running ones; otherwise those. */
static inline void batch_norm_choose(const batch_norm *norm, const esper_lane *lane, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++) {
        double mean = (double)norm->mean[c], var = (double)norm->var[c];

        if (lane->pass->training) {
            lanes_norm_join(norm->moments + c, count_blocks(lane), norm->channels, &mean, &var);
            batch_norm_move_running(norm, c, batch_norm_count(norm, lane), mean, var);
        }
        batch_norm_use(norm, c, mean, var);
    }
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
    double count = batch_norm_count(norm, lane);

    for (size_t c = begin; c < end; c++) {
        double mean, var;

        lanes_norm_join(norm->moments + c, count_blocks(lane), norm->channels, &mean, &var);
        batch_norm_put_values(norm, lane, c, mean * count, (var + mean * mean) * count);
    }
}

/* Units are channels. After it: the statistics of the whole batch, which move the running ones. */
static inline void batch_norm_choose_shared(const batch_norm *norm, size_t begin, size_t end)
{
    double count = norm->values[0];

    for (size_t c = begin; c < end; c++) {
        double mean = norm->values[1 + 2 * c] / count, var = norm->values[2 + 2 * c] / count - mean * mean;

        var = var < 0 ? 0 : var;
        batch_norm_move_running(norm, c, count, mean, var);
        batch_norm_use(norm, c, mean, var);
    }
}

/* Units are channels: scale / std as it was forward. */
static inline void batch_norm_factors(const batch_norm *norm, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++)
        norm->factor[c] = ((const float *)norm->scale->data)[c] * norm->rstd_used[c];
}

/* The channel's two sums over all blocks; the gradients of scale and shift are made of them. */
static inline void batch_norm_sum_blocks(const batch_norm *norm, const esper_lane *lane, size_t c, double sum[2])
{
    sum[0] = sum[1] = 0;
    for (int b = 0; b < count_blocks(lane); b++) {
        sum[0] += norm->sums[((size_t)b * norm->channels + c) * 2];
        sum[1] += norm->sums[((size_t)b * norm->channels + c) * 2 + 1];
    }
    if (norm->scale->grad != NULL)
        grad_put(norm->scale, (float *)norm->scale->grad + c, (float)(sum[1] * (double)norm->rstd_used[c]));
    if (norm->shift->grad != NULL)
        grad_put(norm->shift, (float *)norm->shift->grad + c, (float)sum[0]);
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
        if (lane->pass->training)
            batch_norm_level(norm, c, sum, batch_norm_count(norm, lane));
        else
            norm->mean_g[c] = norm->slope[c] = 0;
    }
}

/* Units are channels. Before the ranks meet: the sums of this one, and what the gradients of scale and shift have of them,
 * which like those of all parameters are the rank's own. */
static inline void batch_norm_offer_back(const batch_norm *norm, const esper_lane *lane, size_t begin, size_t end)
{
    double sum[2];

    for (size_t c = begin; c < end; c++) {
        batch_norm_sum_blocks(norm, lane, c, sum);
        batch_norm_put_values(norm, lane, c, sum[0], sum[1]);
    }
}

/* Units are channels. After it. */
static inline void batch_norm_join_shared(const batch_norm *norm, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++)
        batch_norm_level(norm, c, norm->values + 1 + 2 * c, norm->values[0]);
}

#endif
