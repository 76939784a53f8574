/* Internal. What batch norm does between its passes over the data, with a convolution before it or without: choosing the
 * statistics, and turning two sums of each channel into gradients. */
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
    /* scratch */
    float         *factor;         /* (C) scale / std */
    float         *mean_g, *slope; /* (C) backward: what the batch takes from every gradient */
    lanes_moments *moments;        /* (blocks, C) forward */
    double        *sums;           /* (blocks, C, 2) backward: of g, and of g (x - mean) */
} batch_norm;

static inline void batch_norm_lay_out(batch_norm *norm, bool backward, int n_blocks, scratch_cursor *at)
{
    norm->factor = scratch_take(at, norm->channels * sizeof(float));
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

static inline void batch_norm_move_running(const batch_norm *norm, const esper_lane *lane, size_t c, double mean,
                                           double var)
{
    double share = (double)norm->momentum, count = (double)norm->pixels * lane->pass->n_samples;

    norm->mean[c] = (float)((1 - share) * (double)norm->mean[c] + share * mean);
    norm->var[c] = (float)((1 - share) * (double)norm->var[c] + share * (var * count / (count - 1)));
}

/* Units are channels: the batch's statistics in training, which move the running ones; otherwise those. */
static inline void batch_norm_choose(const batch_norm *norm, const esper_lane *lane, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++) {
        double mean = (double)norm->mean[c], var = (double)norm->var[c];

        if (lane->pass->training) {
            lanes_norm_join(norm->moments + c, count_blocks(lane), norm->channels, &mean, &var);
            batch_norm_move_running(norm, lane, c, mean, var);
        }
        norm->mean_used[c] = (float)mean;
        norm->rstd_used[c] = (float)(1 / sqrt(var + (double)norm->eps));
        norm->factor[c] = ((const float *)norm->scale->data)[c] * norm->rstd_used[c];
    }
}

/* Units are channels: scale / std as it was forward. */
static inline void batch_norm_factors(const batch_norm *norm, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++)
        norm->factor[c] = ((const float *)norm->scale->data)[c] * norm->rstd_used[c];
}

/* Units are channels: the gradients of scale and shift, and what the batch takes from every gradient. */
static inline void batch_norm_join(const batch_norm *norm, const esper_lane *lane, size_t begin, size_t end)
{
    double count = (double)norm->pixels * lane->pass->n_samples;

    for (size_t c = begin; c < end; c++) {
        double sum_g = 0, sum_gx = 0, rstd = (double)norm->rstd_used[c];

        for (int b = 0; b < count_blocks(lane); b++) {
            sum_g += norm->sums[((size_t)b * norm->channels + c) * 2];
            sum_gx += norm->sums[((size_t)b * norm->channels + c) * 2 + 1];
        }
        norm->mean_g[c] = lane->pass->training ? (float)(sum_g / count) : 0;
        norm->slope[c] = lane->pass->training ? (float)(sum_gx / count * rstd * rstd) : 0;
        if (norm->scale->grad != NULL)
            grad_put(norm->scale, (float *)norm->scale->grad + c, (float)(sum_gx * rstd));
        if (norm->shift->grad != NULL)
            grad_put(norm->shift, (float *)norm->shift->grad + c, (float)sum_g);
    }
}

#endif
