/* Internal. The random numbers of base/rng.h on a GPU, each made for itself: number `at` of a stream is one of the four of block
 * at / 4. What dropout draws is what tensor/ref/keep.h draws, bit for bit. */
#ifndef ESPER_TENSOR_CUDA_RANDOM_CUH
#define ESPER_TENSOR_CUDA_RANDOM_CUH

#include "base/rng.h"
#include "tensor/cuda/dialect.cuh"

typedef struct random_stream {
    uint32_t key[2], counter[4];
} random_stream;

FUNCTION random_stream random_stream_of(const esper_lane *lane, int sample, uint32_t tag)
{
    const esper_pass *pass = lane->pass;

    return {{(uint32_t)pass->seed, (uint32_t)(pass->seed >> 32)},
            {tag << 20, pass->sample_id[sample], pass->step, (uint32_t)ESPER_RNG_DROPOUT << 24 | pass->network}};
}

FUNCTION uint4 random_block(const random_stream *stream, uint32_t block)
{
    uint32_t c0 = stream->counter[0] + block, c1 = stream->counter[1], c2 = stream->counter[2], c3 = stream->counter[3];
    uint32_t k0 = stream->key[0], k1 = stream->key[1];

#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t n0 = __umulhi(0xCD9E8D57u, c2) ^ c1 ^ k0, n2 = __umulhi(0xD2511F53u, c0) ^ c3 ^ k1;

        c1 = 0xCD9E8D57u * c2;
        c3 = 0xD2511F53u * c0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* [0, 1), 24 bits. */
FUNCTION float random_uniform(const random_stream *stream, uint32_t at)
{
    uint4 four = random_block(stream, at / 4);
    uint32_t bits = at % 4 == 0 ? four.x : at % 4 == 1 ? four.y : at % 4 == 2 ? four.z : four.w;

    return (float)(bits >> 8) * 0x1p-24f;
}

#endif
