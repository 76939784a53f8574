/* Causal attention of several heads, as products of tiles (matmul.cuh). With S = q k^T / sqrt(width), for queries i and keys j <= i:
 *
 *     forward, a block for 32 queries of a head    p = softmax(S), kept for the backward pass     y = kept p v
 *     backward, the same                           d = kept (g v^T)      e = p (d - sum of p d) / sqrt(width)      dq = e k
 *     backward, a block for 32 keys of a head      dk = e^T q      dv = (kept p)^T g
 *
 * Scores stand in p's place until they are p, and d in e's. In scratch lie e (N,heads,T,T) and, where probabilities may be
 * dropped, p as it was kept, likewise: rows are zero beyond i, up to the last key of the last tile that anyone reads. */
#include "base/rng.h"
#include "tensor/cuda/attention.h"
#include "tensor/cuda/matmul.cuh"
#include "tensor/cuda/philox.cuh"
#include "tensor/cuda/sums.cuh"

typedef matmul_tile<1, 2, 2, 4, 8, 4, 32> tile_32x64;

enum { QUERIES = tile_32x64::BM, THREADS = tile_32x64::THREADS, WARPS = THREADS / 32 };
static_assert((int)THREADS == (int)ESPER_ATTENTION_THREADS && (int)QUERIES == (int)ESPER_ATTENTION_ROWS, "as the host has it");

/* One head of one sample, and a block's 32 queries or keys of it. */
typedef struct head {
    int          T, width, first, sample, index;
    bool         drops;
    int64_t      D;
    const float *q, *k, *v; /* (T,width), rows 3D apart */
    float       *p;         /* (T,T) */
    float       *e, *kept;  /* likewise, in scratch; kept is p where nothing is dropped */
} head;

/* Blocks: the last rows of all heads first, as they have most to do. */
FUNCTION bool head_of(const esper_lane *lane, bool backward, head *h)
{
    int heads = lane->attr.attention.heads, T = lane->out[0].dim[0], D = lane->out[0].dim[1];
    int tiles = (T + QUERIES - 1) / QUERIES, all = heads * lane->max_samples, one = (int)blockIdx.x % all;
    int64_t square = (int64_t)T * T, each = (int64_t)one * square;

    h->sample = one / heads;
    if ((int)blockIdx.x / all >= tiles || h->sample >= lane->pass->n_samples)
        return false;
    h->T = T;
    h->D = D;
    h->width = D / heads;
    h->index = one % heads;
    h->first = (tiles - 1 - (int)blockIdx.x / all) * QUERIES;
    h->drops = lane_trains(lane) && lane->attr.attention.drop > 0.0f;
    h->q = (const float *)lane->in[0].data + (int64_t)h->sample * T * 3 * D + h->index * h->width;
    h->k = h->q + D;
    h->v = h->k + D;
    h->p = (float *)lane->out[1].data + each;
    h->e = (float *)lane->scratch + each;
    h->kept = h->drops ? (float *)lane->scratch + (backward ? all * square : 0) + each : h->p;
    return true;
}

/* The query's row in y, or in its gradient. */
FUNCTION float *y_of(const head *h, void *y)
{
    return (float *)y + ((int64_t)h->sample * h->T) * h->D + h->index * h->width;
}

FUNCTION float max_of_warp(float v)
{
    for (int with = 16; with > 0; with /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, with));
    return v;
}

/* Rows first.. of a b^T, over the width of a head, for keys up to the block's last query, into a (T,T) matrix. */
template <bool WIDE>
FUNCTION void scores(const head *h, const float *a, int64_t a_stride, const float *b, int64_t b_stride, float *to, float *shared)
{
    matmul_operand rows = {a, a_stride, h->T}, columns = {b, b_stride, h->T};
    int end = min(h->first + QUERIES, h->T);
    float sum[tile_32x64::TM][tile_32x64::TN];

    for (int n = 0; n < end; n += tile_32x64::BN) {
        __syncthreads(); /* what the last tile left in shared memory is done with */
        matmul<tile_32x64, true, true, WIDE, false>::run(rows, columns, h->first, n, 0, h->width, shared, sum, NULL);
        matmul_write<tile_32x64, WIDE>(to, end, h->T, h->T, h->first, n, false, NULL, sum);
    }
    __syncthreads();
}

/* A (rows first.. of a (T,T) matrix) times the rows of b, into rows of `to`. */
template <bool WIDE>
FUNCTION void weigh(const head *h, const float *a, const float *b, int64_t b_stride, float *to, int64_t to_stride, bool add,
                    float *shared)
{
    matmul_operand rows = {a, h->T, h->T}, columns = {b, b_stride, h->width};
    int end = min(h->first + QUERIES, h->T);
    float sum[tile_32x64::TM][tile_32x64::TN];

    for (int n = 0; n < h->width; n += tile_32x64::BN) {
        __syncthreads();
        matmul<tile_32x64, true, false, WIDE, false>::run(rows, columns, h->first, n, 0, end, shared, sum, NULL);
        matmul_write<tile_32x64, WIDE>(to, end, h->width, to_stride, h->first, n, add, NULL, sum);
    }
}

/* What dropout does to probability j of query i: 0, or what makes up for the dropped ones. Draws are counted over a sample's
 * heads and queries, j <= i. */
FUNCTION float factor_of(const esper_lane *lane, const head *h, int i, int j)
{
    uint32_t triangle = (uint32_t)h->T * ((uint32_t)h->T + 1) / 2;
    uint32_t at = (uint32_t)h->index * triangle + (uint32_t)i * ((uint32_t)i + 1) / 2 + (uint32_t)j;
    uint4 four = philox_block(lane->pass, h->sample, ESPER_RNG_DROPOUT, lane->attr.attention.tag, at / 4);
    uint32_t number = at % 4 == 0 ? four.x : at % 4 == 1 ? four.y : at % 4 == 2 ? four.z : four.w;
    float drop = lane->attr.attention.drop;

    return philox_uniform(number) < drop ? 0.0f : 1.0f / (1.0f - drop);
}

/* Scores of query i become its probabilities. By one warp. */
FUNCTION void soften(const esper_lane *lane, const head *h, int i)
{
    int lane_of_warp = (int)threadIdx.x % 32;
    float *p = h->p + (int64_t)i * h->T, *kept = h->kept + (int64_t)i * h->T;
    float scale = 1.0f / sqrtf((float)h->width), top = -INFINITY, sum = 0.0f, part;

    for (int j = lane_of_warp; j <= i; j += 32)
        top = fmaxf(top, p[j] * scale);
    top = max_of_warp(top);
    for (int j = lane_of_warp; j <= i; j += 32) {
        float v = expf(p[j] * scale - top);

        p[j] = v;
        sum += v;
    }
    part = 1.0f / warp_sum(sum);
    for (int j = lane_of_warp; j < h->T; j += 32) {
        float v = j <= i ? p[j] * part : 0.0f;

        p[j] = v;
        if (h->drops)
            kept[j] = j <= i ? v * factor_of(lane, h, i, j) : 0.0f;
    }
}

template <bool WIDE> FUNCTION void forward(const esper_lane *lane, float *shared)
{
    head h;

    if (!head_of(lane, false, &h))
        return;
    scores<WIDE>(&h, h.q, 3 * h.D, h.k, 3 * h.D, h.p, shared);
    for (int i = h.first + (int)threadIdx.x / 32; i < min(h.first + QUERIES, h.T); i += WARPS)
        soften(lane, &h, i);
    weigh<WIDE>(&h, h.kept, h.v, 3 * h.D, y_of(&h, lane->out[0].data), h.D, false, shared);
}

/* Gradients of query i's kept probabilities, in e, become those of its scores. By one warp. */
FUNCTION void harden(const esper_lane *lane, const head *h, int i)
{
    int lane_of_warp = (int)threadIdx.x % 32;
    const float *p = h->p + (int64_t)i * h->T;
    float *e = h->e + (int64_t)i * h->T, *kept = h->kept + (int64_t)i * h->T;
    float scale = 1.0f / sqrtf((float)h->width), sum = 0.0f;

    for (int j = lane_of_warp; j <= i; j += 32) {
        if (h->drops) {
            float factor = factor_of(lane, h, i, j);

            kept[j] = p[j] * factor;
            e[j] *= factor;
        }
        sum = fmaf(p[j], e[j], sum);
    }
    sum = warp_sum(sum);
    for (int j = lane_of_warp; j < h->T; j += 32) {
        e[j] = j <= i ? p[j] * (e[j] - sum) * scale : 0.0f;
        if (h->drops && j > i)
            kept[j] = 0.0f;
    }
}

template <bool WIDE> FUNCTION void backward_queries(const esper_lane *lane, float *shared)
{
    head h;
    float *dq;

    if (!head_of(lane, true, &h))
        return;
    dq = (float *)lane->in[0].grad + (h.q - (const float *)lane->in[0].data);
    scores<WIDE>(&h, y_of(&h, lane->out[0].grad), h.D, h.v, 3 * h.D, h.e, shared);
    for (int i = h.first + (int)threadIdx.x / 32; i < min(h.first + QUERIES, h.T); i += WARPS)
        harden(lane, &h, i);
    weigh<WIDE>(&h, h.e, h.k, 3 * h.D, dq, 3 * h.D, lane->in[0].add, shared);
}

/* Keys first.. get the sums over queries i >= first of a^T b. */
template <bool WIDE>
FUNCTION void gather(const head *h, const float *a, const float *b, int64_t b_stride, float *to, bool add, float *shared)
{
    matmul_operand rows = {a, h->T, h->T}, columns = {b, b_stride, h->width};
    int end = min(h->first + QUERIES, h->T);
    float sum[tile_32x64::TM][tile_32x64::TN];

    for (int n = 0; n < h->width; n += tile_32x64::BN) {
        __syncthreads();
        matmul<tile_32x64, false, false, WIDE, false>::run(rows, columns, h->first, n, h->first, h->T, shared, sum, NULL);
        matmul_write<tile_32x64, WIDE>(to, end, h->width, 3 * h->D, h->first, n, add, NULL, sum);
    }
}

template <bool WIDE> FUNCTION void backward_keys(const esper_lane *lane, float *shared)
{
    head h;
    float *dk, *dv;

    if (!head_of(lane, true, &h))
        return;
    dk = (float *)lane->in[0].grad + (h.k - (const float *)lane->in[0].data);
    dv = dk + h.D;
    gather<WIDE>(&h, h.e, h.q, 3 * h.D, dk, lane->in[0].add, shared);
    gather<WIDE>(&h, h.kept, y_of(&h, lane->out[0].grad), h.D, dv, lane->in[0].add, shared);
}

#define ATTENTION_KERNELS(ending, wide)                               \
    ESPER_KERNEL_DENSE(esper_attention_forward##ending, THREADS, 4)   \
    {                                                                 \
        __shared__ float4 shared[tile_32x64::FLOATS / 4];             \
        forward<wide>(lanes.lane[blockIdx.y], (float *)shared);       \
    }                                                                 \
    ESPER_KERNEL_DENSE(esper_attention_queries##ending, THREADS, 4)   \
    {                                                                 \
        __shared__ float4 shared[tile_32x64::FLOATS / 4];             \
        backward_queries<wide>(lanes.lane[blockIdx.y], (float *)shared); \
    }                                                                 \
    ESPER_KERNEL_DENSE(esper_attention_keys##ending, THREADS, 4)      \
    {                                                                 \
        __shared__ float4 shared[tile_32x64::FLOATS / 4];             \
        backward_keys<wide>(lanes.lane[blockIdx.y], (float *)shared); \
    }

ATTENTION_KERNELS(, true)
ATTENTION_KERNELS(_any, false)
