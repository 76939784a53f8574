/* Dropout with inverted scaling. The mask is not stored: the backward pass draws it again, from a stream keyed by what the sample is
 * (tensor/ref/keep.h), so that the draws are those of every other backend, bit for bit. A thread makes a block of the generator, four
 * numbers, for four elements of a sample. */
#include "tensor/cuda/elements.cuh"
#include "tensor/cuda/philox.cuh"

enum { RNG_DROPOUT = 5 }; /* ESPER_RNG_DROPOUT */

FUNCTION bool is_on(const esper_lane *lane)
{
    return lane_trains(lane) && lane->attr.dropout.drop > 0;
}

/* Calls work(at, n, factors) for each four of this block's, with the factor of each element; all 1 where dropout is off. */
template <class Work> FUNCTION void for_kept(const esper_lane *lane, Work work)
{
    int64_t count = lane->in[0].count, fours = (count + 3) / 4, n_fours = fours * lane->pass->n_samples;
    float drop = lane->attr.dropout.drop, kept = 1 / (1 - drop);
    bool on = is_on(lane);

#pragma unroll 4
    for (int k = 0; k < ELEMENTS_EACH / 4; k += ELEMENTS_THREADS) {
        int64_t f = static_cast<int64_t>(blockIdx.x) * (ELEMENTS_EACH / 4) + k + threadIdx.x, sample = f / fours;
        int64_t first = (f - sample * fours) * 4;
        four factors = {{1, 1, 1, 1}};

        if (f >= n_fours)
            break;
        if (on) {
            uint4 drawn = philox_block(lane->pass, sample, RNG_DROPOUT, lane->attr.dropout.tag, static_cast<uint32_t>(first / 4));

            factors.v[0] = philox_uniform(drawn.x) < drop ? 0 : kept;
            factors.v[1] = philox_uniform(drawn.y) < drop ? 0 : kept;
            factors.v[2] = philox_uniform(drawn.z) < drop ? 0 : kept;
            factors.v[3] = philox_uniform(drawn.w) < drop ? 0 : kept;
        }
        work(sample * count + first, static_cast<int>(min(static_cast<int64_t>(4), count - first)), factors);
    }
}

/* A dropped NaN is gone. */
FUNCTION four kept_of(const four &x, const four &factors)
{
    four y;

#pragma unroll
    for (int k = 0; k < 4; k++)
        y.v[k] = factors.v[k] == 0 ? 0 : x.v[k] * factors.v[k];
    return y;
}

ESPER_KERNEL(esper_dropout_forward, ELEMENTS_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];

    for_kept(lane, [&](int64_t at, int n, const four &factors) {
        write_four(&lane->out[0], at, n, kept_of(data_four(&lane->in[0], at, n), factors));
    });
}

ESPER_KERNEL(esper_dropout_backward, ELEMENTS_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];

    if (lane->in[0].grad == NULL)
        return;
    for_kept(lane, [&](int64_t at, int n, const four &factors) {
        put_four(&lane->in[0], at, n, kept_of(grad_four(&lane->out[0], at, n), factors));
    });
}
