/* Internal. Words of blocks of samples (block_half.h), as threads read and write them. */
#ifndef ESPER_TENSOR_CUDA_BLOCK_HALF_CUH
#define ESPER_TENSOR_CUDA_BLOCK_HALF_CUH

#include "tensor/cuda/block_half.h"
#include "tensor/cuda/block_norm.cuh"
#include "tensor/cuda/mma_half.cuh"

/* Words of a view in a block of samples. */
FUNCTION size_t words_of(const esper_view *view)
{
    return (size_t)half_pairs(view->dim[0]) * (size_t)(view->dim[1] * view->dim[2]) * ESPER_CUDA_BLOCK;
}

FUNCTION unsigned *data_words(const esper_view *view, int block)
{
    return (unsigned *)view->data + (size_t)block * words_of(view);
}

FUNCTION unsigned *grad_words(const esper_view *view, int block)
{
    return (unsigned *)view->grad + (size_t)block * words_of(view);
}

/* Four samples of a pair of channels. */
struct oct {
    float v[2][4];
};

FUNCTION oct load_oct(const unsigned *from)
{
    uint4 four = *reinterpret_cast<const uint4 *>(from);
    const unsigned words[4] = {four.x, four.y, four.z, four.w};
    oct x;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.v[0][i] = bf16_low(words[i]);
        x.v[1][i] = bf16_high(words[i]);
    }
    return x;
}

FUNCTION void store_oct(unsigned *to, const oct &x)
{
    *reinterpret_cast<uint4 *>(to) = make_uint4(bf16_pack(x.v[0][0], x.v[1][0]), bf16_pack(x.v[0][1], x.v[1][1]),
                                                bf16_pack(x.v[0][2], x.v[1][2]), bf16_pack(x.v[0][3], x.v[1][3]));
}

/* As a gradient is written. */
FUNCTION void put_oct(unsigned *to, bool add, oct x)
{
    if (add) {
        oct old = load_oct(to);

#pragma unroll
        for (int i = 0; i < 8; i++)
            x.v[i / 4][i % 4] = old.v[i / 4][i % 4] + x.v[i / 4][i % 4];
    }
    store_oct(to, x);
}

#endif
