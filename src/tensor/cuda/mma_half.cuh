/* Internal. Tensor cores as in mma.cuh, with factors of bf16: a float whose lower half is left out. Two of them are a word, the lower half
 * first, and words take the place of TF32's floats; so twice as many k are a product:
 *
 *     a  (16,16)   a[0] (row, 2 column and the next)    a[1] (row+8, those)    a[2] (row, those + 8)    a[3] (row+8, those + 8)
 *     b  (16,8)    b[0] (2 column and the next, row)    b[1] (those + 8, row)
 *     c  (16,8)    as in mma.cuh
 *
 * With eight k there are a[0], a[1] and b[0]. */
#ifndef ESPER_TENSOR_CUDA_MMA_HALF_CUH
#define ESPER_TENSOR_CUDA_MMA_HALF_CUH

#include "tensor/cuda/mma.cuh"

#ifndef ESPER_CUDA_ON_HOST /* the host's are in tests/cuda/host_mma_half.h */

/* The nearest, halves to even; what is not a number stays none. */
FUNCTION unsigned bf16_pack(float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned word;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    __trap();
    return 0;
#endif
}

/* c += a b */
FUNCTION void mma_16x8x16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}

FUNCTION void mma_16x8x8_half(float (&c)[4], const unsigned (&a)[2], unsigned b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    __trap();
#endif
}

#endif

FUNCTION float bf16_low(unsigned word)
{
    return __uint_as_float(word << 16);
}

FUNCTION float bf16_high(unsigned word)
{
    return __uint_as_float(word & 0xffff0000u);
}

#endif
