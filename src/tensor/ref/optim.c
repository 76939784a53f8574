/* Flat work on a group's range of a slab: the norm of its gradients, and the steps of SGD and AdamW.
 *
 * Units are chunks of ESPER_FLAT_CHUNK elements. The norm is kept in double from the first square on: a single gradient of
 * 1e19 would already overflow a float. */
#include <tgmath.h>

#include "tensor/ref/sums.h"

/* Elements begin .. end-1 of a flat lane. */
typedef struct stretch {
    size_t begin, end;
} stretch;

static int chunks(const esper_lane *lane)
{
    return (int)((lane->in[0].count + ESPER_FLAT_CHUNK - 1) / ESPER_FLAT_CHUNK);
}

static stretch stretch_of(const esper_lane *lane, int begin, int end)
{
    size_t count = (size_t)lane->in[0].count;
    stretch s = {(size_t)begin * ESPER_FLAT_CHUNK, (size_t)end * ESPER_FLAT_CHUNK};

    if (s.end > count)
        s.end = count;
    return s;
}

/* Whether the step is not to be taken. */
static bool is_skipped(const esper_lane *lane)
{
    return lane->in[4].data != NULL && *(const uint32_t *)lane->in[4].data != 0;
}

static void grad_norm_chunks(const esper_lane *lane, int begin, int end)
{
    double *partial = lane->out[1].data;

    if (is_skipped(lane))
        return;
    for (int c = begin; c < end; c++) {
        stretch s = stretch_of(lane, c, c + 1);

        partial[c] = sum_squares((const real *)lane->in[0].grad + s.begin, 0, s.end - s.begin);
    }
}

static void grad_norm_join(const esper_lane *lane, int begin, int end)
{
    const double *partial = lane->out[1].data;
    int n = chunks(lane);
    double sum = 0;

    if (begin == end || is_skipped(lane))
        return;
    for (int c = 0; c < n; c++)
        sum += partial[c];
    *(double *)lane->out[0].data = sqrt(sum);
}

/* What gradients are multiplied with; always done when clipping is on, so that it costs the same whether it acts. */
static real clip_factor(const esper_lane *lane)
{
    double norm, factor;

    if (!(lane->group->clip > 0) || lane->out[0].data == NULL)
        return 1;
    norm = *(const double *)lane->out[0].data; /* the group's own, or that of all it is clipped with */
    if (lane->group->with != 0 && lane->in[3].data != NULL)
        norm = sqrt(esper_sum_norms(lane->in[3].data, lane->group->with));
    factor = (double)lane->group->clip / (norm + 1e-6);
    return factor > 1 ? 1 : (real)factor;
}

static void sgd(const esper_lane *lane, int begin, int end)
{
    real lr = (real)lane->group->lr, momentum = (real)lane->group->momentum, decay = (real)lane->group->decay;
    real *p = lane->in[0].data, *buf = lane->in[1].data;
    const real *g = lane->in[0].grad;
    stretch s = stretch_of(lane, begin, end);
    real factor = clip_factor(lane);

    if (is_skipped(lane))
        return;
    for (size_t i = s.begin; i < s.end; i++) {
        buf[i] = momentum * buf[i] + (g[i] * factor + decay * p[i]);
        p[i] -= lr * buf[i];
    }
}

/* Decay is decoupled: it shrinks the parameter and does not enter the moments. */
static void adamw(const esper_lane *lane, int begin, int end)
{
    const esper_group *group = lane->group;
    double beta1 = (double)group->beta1, beta2 = (double)group->beta2;
    real b1 = (real)beta1, b2 = (real)beta2, new1 = (real)(1 - beta1), new2 = (real)(1 - beta2);
    real keep = (real)(1 - (double)group->lr * (double)group->decay), eps = (real)group->eps;
    real step = (real)((double)group->lr / (1 - pow(beta1, group->t))); /* m / (1 - beta1^t), times lr */
    real grow = (real)(1 / sqrt(1 - pow(beta2, group->t)));             /* sqrt of 1 / (1 - beta2^t) */
    real *p = lane->in[0].data, *m = lane->in[1].data, *v = lane->in[2].data;
    const real *g = lane->in[0].grad;
    stretch s = stretch_of(lane, begin, end);
    real factor = clip_factor(lane);

    if (is_skipped(lane))
        return;
    for (size_t i = s.begin; i < s.end; i++) {
        real clipped = g[i] * factor;

        m[i] = b1 * m[i] + new1 * clipped;
        v[i] = b2 * v[i] + new2 * clipped * clipped;
        p[i] = p[i] * keep - step * m[i] / (sqrt(v[i]) * grow + eps);
    }
}

const esper_op_kernels ESPER_OP_KERNELS(grad_norm) = {
    .forward = {{grad_norm_chunks, chunks}, {grad_norm_join, one_unit}},
};

const esper_op_kernels ESPER_OP_KERNELS(sgd) = {
    .forward = {{sgd, chunks}},
};

const esper_op_kernels ESPER_OP_KERNELS(adamw) = {
    .forward = {{adamw, chunks}},
};
