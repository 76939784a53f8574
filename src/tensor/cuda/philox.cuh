/* Internal. The random numbers of base/rng.h on a device: the same streams, a block of four numbers at a time. */
#ifndef ESPER_TENSOR_CUDA_PHILOX_CUH
#define ESPER_TENSOR_CUDA_PHILOX_CUH

#include "tensor/cuda/dialect.cuh"

/* Block `index` of the stream that is keyed by the pass, one of its samples, a purpose and a tag: numbers 4 index and on. */
FUNCTION uint4 philox_block(const esper_pass *pass, int64_t sample, uint32_t purpose, uint32_t tag, uint32_t index)
{
    uint32_t c0 = (tag << 20) + index, c1 = pass->sample_id[sample], c2 = pass->step, c3 = purpose << 24 | pass->network;
    uint32_t k0 = static_cast<uint32_t>(pass->seed), k1 = static_cast<uint32_t>(pass->seed >> 32);

#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        uint32_t high2 = __umulhi(0xCD9E8D57u, c2), low2 = 0xCD9E8D57u * c2;

        c0 = high2 ^ c1 ^ k0;
        c2 = high0 ^ c3 ^ k1;
        c1 = low2;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

/* [0, 1), 24 bits. */
FUNCTION float philox_uniform(uint32_t number)
{
    return static_cast<float>(number >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
}

#endif
