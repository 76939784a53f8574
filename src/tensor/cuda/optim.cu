/* Flat work on a group's range of a slab: the norm of its gradients, and the steps of SGD and AdamW.
 *
 * The norm is kept in double from the first square on: a single gradient of 1e19 would already overflow a float. */
#include "tensor/cuda/elements.cuh"
#include "tensor/cuda/sums.cuh"

static_assert((int)ELEMENTS_EACH == (int)ESPER_FLAT_CHUNK, "a block has a chunk");

/* Whether the step is not to be taken. */
FUNCTION bool is_skipped(const esper_lane *lane)
{
    return lane->in[4].data != NULL && *static_cast<const uint32_t *>(lane->in[4].data) != 0;
}

/* A chunk's squares. */
ESPER_KERNEL(esper_grad_norm_chunks, ELEMENTS_THREADS)
{
    __shared__ double of_warp[ELEMENTS_THREADS / WARP];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    double sum = 0;

    if (is_skipped(lane) || static_cast<int64_t>(blockIdx.x) * ELEMENTS_EACH >= lane->in[0].count)
        return;
    for_fours(lane->in[0].count, [&](int64_t at, int n) {
        four g = grad_four(&lane->in[0], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            sum += static_cast<double>(g.v[k]) * static_cast<double>(g.v[k]);
    });
    sum = block_sum<ELEMENTS_THREADS>(sum, of_warp);
    if (threadIdx.x == 0)
        static_cast<double *>(lane->out[1].data)[blockIdx.x] = sum;
}

/* One block. */
ESPER_KERNEL(esper_grad_norm_join, ELEMENTS_THREADS)
{
    __shared__ double of_warp[ELEMENTS_THREADS / WARP];
    const esper_lane *lane = lanes.lane[blockIdx.y];
    int64_t chunks = (lane->in[0].count + ESPER_FLAT_CHUNK - 1) / ESPER_FLAT_CHUNK;
    double sum = 0;

    if (is_skipped(lane) || blockIdx.x != 0)
        return;
    for (int64_t c = threadIdx.x; c < chunks; c += ELEMENTS_THREADS)
        sum += static_cast<const double *>(lane->out[1].data)[c];
    sum = block_sum<ELEMENTS_THREADS>(sum, of_warp);
    if (threadIdx.x == 0)
        *static_cast<double *>(lane->out[0].data) = sqrt(sum);
}

/* What gradients are multiplied with; always done when clipping is on, so that it costs the same whether it acts. */
FUNCTION float clip_factor(const esper_lane *lane)
{
    const esper_group *group = lane->group;
    double norm, factor;

    if (!(group->clip > 0) || lane->out[0].data == NULL)
        return 1;
    norm = *static_cast<const double *>(lane->out[0].data); /* the group's own, or that of all it is clipped with */
    if (group->with != 0 && lane->in[3].data != NULL) {
        const double *norms = static_cast<const double *>(lane->in[3].data);
        double sum = 0;

        for (int r = 0; r < 64 && group->with >> r != 0; r++)
            if ((group->with >> r & 1u) != 0)
                sum += norms[r] * norms[r];
        norm = sqrt(sum);
    }
    factor = static_cast<double>(group->clip) / (norm + 1e-6);
    return factor > 1 ? 1 : static_cast<float>(factor);
}

ESPER_KERNEL(esper_sgd, ELEMENTS_THREADS)
{
    __shared__ float clip_of_block;
    const esper_lane *lane = lanes.lane[blockIdx.y];
    float lr = lane->group->lr, momentum = lane->group->momentum, decay = lane->group->decay;

    if (is_skipped(lane) || static_cast<int64_t>(blockIdx.x) * ELEMENTS_EACH >= lane->in[0].count)
        return;
    if (threadIdx.x == 0)
        clip_of_block = clip_factor(lane);
    __syncthreads();

    float clip = clip_of_block;

    for_fours(lane->in[0].count, [&](int64_t at, int n) {
        four p = data_four(&lane->in[0], at, n), g = grad_four(&lane->in[0], at, n), m = data_four(&lane->in[1], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++) {
            m.v[k] = momentum * m.v[k] + (g.v[k] * clip + decay * p.v[k]);
            p.v[k] -= lr * m.v[k];
        }
        write_four(&lane->in[1], at, n, m);
        write_four(&lane->in[0], at, n, p);
    });
}

/* What an AdamW step is made of, the same for all elements. */
struct adam {
    float b1, b2, new1, new2, keep, eps, step, grow, clip;
};

FUNCTION adam adam_of(const esper_lane *lane)
{
    const esper_group *group = lane->group;
    double beta1 = static_cast<double>(group->beta1), beta2 = static_cast<double>(group->beta2);
    double lr = static_cast<double>(group->lr), t = static_cast<double>(group->t);
    adam a;

    a.b1 = group->beta1;
    a.b2 = group->beta2;
    a.new1 = static_cast<float>(1 - beta1);
    a.new2 = static_cast<float>(1 - beta2);
    a.keep = static_cast<float>(1 - lr * static_cast<double>(group->decay));
    a.eps = group->eps;
    a.step = static_cast<float>(lr / (1 - pow(beta1, t)));       /* m / (1 - beta1^t), times lr */
    a.grow = static_cast<float>(1 / sqrt(1 - pow(beta2, t)));    /* sqrt of 1 / (1 - beta2^t) */
    a.clip = clip_factor(lane);
    return a;
}

/* Decay is decoupled: it shrinks the parameter and does not enter the moments. */
ESPER_KERNEL(esper_adamw, ELEMENTS_THREADS)
{
    __shared__ adam of_block;
    const esper_lane *lane = lanes.lane[blockIdx.y];

    if (is_skipped(lane) || static_cast<int64_t>(blockIdx.x) * ELEMENTS_EACH >= lane->in[0].count)
        return;
    if (threadIdx.x == 0)
        of_block = adam_of(lane);
    __syncthreads();

    adam a = of_block;

    for_fours(lane->in[0].count, [&](int64_t at, int n) {
        four p = data_four(&lane->in[0], at, n), g = grad_four(&lane->in[0], at, n);
        four m = data_four(&lane->in[1], at, n), v = data_four(&lane->in[2], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++) {
            float clipped = g.v[k] * a.clip;

            m.v[k] = a.b1 * m.v[k] + a.new1 * clipped;
            v.v[k] = a.b2 * v.v[k] + a.new2 * clipped * clipped;
            p.v[k] = p.v[k] * a.keep - a.step * m.v[k] / (sqrtf(v.v[k]) * a.grow + a.eps);
        }
        write_four(&lane->in[1], at, n, m);
        write_four(&lane->in[2], at, n, v);
        write_four(&lane->in[0], at, n, p);
    });
}
