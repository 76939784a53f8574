/* Internal. Tensor cores: a warp multiplies a 16 x 8 by an 8 x 8 matrix of TF32 (a float of 10 bits behind the point) and adds the
 * product to 16 x 8 floats. Which of them a thread has, with row = lane / 4 and column = lane % 4:
 *
 *     a  (16,8)    a[0] (row, column)    a[1] (row+8, column)    a[2] (row, column+4)    a[3] (row+8, column+4)
 *     b  (8,8)     b[0] (column, row)    b[1] (column+4, row)                        b's row is k, its column n
 *     c  (16,8)    c[0] (row, 2 column)  c[1] (row, 2 column+1)  c[2] (row+8, 2 column)  c[3] (row+8, 2 column+1)
 *
 * A sum over k is the same whatever the order of k, if a and b have the same one; rows of a and columns of b may be any samples,
 * pixels or channels, if results are put where they belong. So fragments can be loaded 16 bytes at a time straight from where
 * numbers lie, without a way through shared memory.
 *
 * A float is the sum of two TF32 but for 2^-22 of it. Three products, hi lo + lo hi + hi hi, are a product of floats but for about
 * that: what `mma_3` adds is as exact as a chain of fused multiply-adds, at a third of the tensor cores' speed, which is still
 * faster. What is not finite comes out not finite, an infinity maybe as NaN.
 *
 * One product of the nearest TF32 is what is asked for with precision TF32 (tensor/op.h): kernels have the number of products, three or
 * one, as a template's argument.
 *
 * Devices before 8.0 have none of this: kernels do something else there (HAS_TENSOR_CORES). */
#ifndef ESPER_TENSOR_CUDA_MMA_CUH
#define ESPER_TENSOR_CUDA_MMA_CUH

#include "tensor/cuda/dialect.cuh"

#ifndef ESPER_CUDA_ON_HOST /* the host's are in tests/cuda/host_cuda.h */

/* Of the device that is compiled for. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HAS_TENSOR_CORES false
#else
#define HAS_TENSOR_CORES true
#endif

/* The nearest TF32, halves away from 0. (The instruction for it becomes five, for what is not finite; an infinity stays one here,
 * and of a NaN that does not, what is left, lo, does.) */
FUNCTION unsigned tf32_of(float x)
{
    return (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
}

/* c += a b */
FUNCTION void mma_16x8x8(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}

/* The same with four k: of a thread's a the first two, of its b the first. */
FUNCTION void mma_16x8x4(float (&c)[4], const unsigned (&a)[2], unsigned b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    __trap();
#endif
}

#endif

/* x = hi + lo, both TF32 but for the last bits of lo, which the tensor cores leave out. */
FUNCTION void tf32_split(float x, unsigned *hi, unsigned *lo)
{
    *hi = tf32_of(x);
    *lo = __float_as_uint(x - __uint_as_float(*hi));
}

/* The same with hi cut off and not rounded: of lo the tensor cores leave out up to 2^-21 of x. That is one instruction
 * less, or more where a conversion to TF32 is several. */
FUNCTION void tf32_cut(float x, unsigned *hi, unsigned *lo)
{
    *hi = __float_as_uint(x) & 0xffffe000u;
    *lo = __float_as_uint(x - __uint_as_float(*hi));
}

/* What a product of one TF32 takes of x: what is behind its last bit is cut off, after x has grown by so much that this errs neither
 * way in the mean. One multiplication, through which an infinity and a NaN stay what they are. */
FUNCTION unsigned tf32_near(float x)
{
    return __float_as_uint(x * 1.0003386f);
}

/* For so many PRODUCTS, three or one. Of one, lo is nothing. */
template <int PRODUCTS> FUNCTION void tf32_parts(float x, unsigned *hi, unsigned *lo)
{
    if (PRODUCTS == 3) {
        tf32_split(x, hi, lo);
    } else {
        *hi = tf32_near(x);
        *lo = 0;
    }
}

/* c += a b of floats, given as hi and lo; the smaller products come first. */
FUNCTION void mma_3(float (&c)[4], const unsigned (&a_hi)[4], const unsigned (&a_lo)[4], const unsigned (&b_hi)[2],
                    const unsigned (&b_lo)[2])
{
    mma_16x8x8(c, a_lo, b_hi);
    mma_16x8x8(c, a_hi, b_lo);
    mma_16x8x8(c, a_hi, b_hi);
}

FUNCTION void mma_3(float (&c)[4], const unsigned (&a_hi)[2], const unsigned (&a_lo)[2], unsigned b_hi, unsigned b_lo)
{
    mma_16x8x4(c, a_lo, b_hi);
    mma_16x8x4(c, a_hi, b_lo);
    mma_16x8x4(c, a_hi, b_hi);
}

#endif
