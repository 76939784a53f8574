/* Internal. Sixteen samples side by side in vectors.
 *
 * A block holds 16 samples of a tensor (C, H, W): float [C][H][W][SIMD_WIDTH], 64-byte aligned, float l = sample
 * 16 * block + l. The sixteen values of a pixel are SIMD_VECS vectors, as wide as the instructions of the kernel set.
 *
 * Every source that includes this is compiled once for each set. Vectors are spelled out with the compiler's vector type;
 * loops over SIMD_VECS and over small tiles have constant bounds, so that they unroll and their arrays stay in registers. */
#ifndef ESPER_TENSOR_CPU_SIMD_H
#define ESPER_TENSOR_CPU_SIMD_H

#include <stddef.h>

#if defined(__SSE__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define SIMD_VEC_BYTES 64
#elif defined(__AVX__)
#define SIMD_VEC_BYTES 32
#else
#define SIMD_VEC_BYTES 16
#endif

enum {
    SIMD_WIDTH = 16,                            /* samples of a block */
    SIMD_VEC = SIMD_VEC_BYTES / sizeof(float), /* floats of a vector */
    SIMD_VECS = SIMD_WIDTH / SIMD_VEC,        /* vectors of a pixel: 4, 2 or 1 */
};

typedef float simd_vec __attribute__((vector_size(SIMD_VEC_BYTES), may_alias));
typedef int   simd_mask __attribute__((vector_size(SIMD_VEC_BYTES), may_alias)); /* what comparing two gives */
typedef float simd_quad __attribute__((vector_size(16), may_alias));

#define SIMD_INLINE static inline __attribute__((always_inline))

/* One value of each of the sixteen samples; or a sum over pixels that is kept apart for each of them. */
typedef struct simd_acc {
    simd_vec v[SIMD_VECS];
} simd_acc;

/* ------------------------------------------------------------------------------------------------ one vector */

SIMD_INLINE simd_vec simd_load(const float *from)
{
    return *(const simd_vec *)from;
}

SIMD_INLINE void simd_store(float *to, simd_vec v)
{
    *(simd_vec *)to = v;
}

/* The same value everywhere. Written out so that it becomes one broadcast; `zeros + value` would be an addition. */
SIMD_INLINE simd_vec simd_all(float value)
{
#if SIMD_VEC_BYTES == 64
    return (simd_vec){value, value, value, value, value, value, value, value,
                      value, value, value, value, value, value, value, value};
#elif SIMD_VEC_BYTES == 32
    return (simd_vec){value, value, value, value, value, value, value, value};
#else
    return (simd_vec){value, value, value, value};
#endif
}

/* if_set where the mask is set, otherwise if_not. */
SIMD_INLINE simd_vec simd_select(simd_mask mask, simd_vec if_set, simd_vec if_not)
{
    return (simd_vec)((mask & (simd_mask)if_set) | (~mask & (simd_mask)if_not));
}

/* The larger of two; b where one of them is not a number. */
SIMD_INLINE simd_vec simd_max(simd_vec a, simd_vec b)
{
#if defined(__AVX512F__)
    return (simd_vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (simd_vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (simd_vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    return simd_select((simd_mask)(a > b), a, b);
#endif
}

/* Halves added to each other until four are left: i and i + 8, then i and i + 4. */
SIMD_INLINE simd_quad simd_fold(simd_vec v)
{
#if SIMD_VEC_BYTES == 64
    typedef float half_vec __attribute__((vector_size(32)));
    half_vec half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);

    return (simd_quad)(__builtin_shufflevector(half, half, 0, 1, 2, 3) +
                       __builtin_shufflevector(half, half, 4, 5, 6, 7));
#elif SIMD_VEC_BYTES == 32
    return (simd_quad)(__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7));
#else
    return (simd_quad)v;
#endif
}

/* The sums of each of four vectors. */
SIMD_INLINE simd_quad simd_sum_four(simd_vec a, simd_vec b, simd_vec c, simd_vec d)
{
    simd_quad qa = simd_fold(a), qb = simd_fold(b), qc = simd_fold(c), qd = simd_fold(d);
    simd_quad ab = __builtin_shufflevector(qa, qb, 0, 4, 1, 5) + __builtin_shufflevector(qa, qb, 2, 6, 3, 7);
    simd_quad cd = __builtin_shufflevector(qc, qd, 0, 4, 1, 5) + __builtin_shufflevector(qc, qd, 2, 6, 3, 7);

    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/* ------------------------------------------------------------------------------------------------ sixteen samples */

SIMD_INLINE simd_acc simd_acc_load(const float *from)
{
    simd_acc acc;

    for (int i = 0; i < SIMD_VECS; i++)
        acc.v[i] = simd_load(from + i * SIMD_VEC);
    return acc;
}

SIMD_INLINE void simd_acc_store(float *to, simd_acc acc)
{
    for (int i = 0; i < SIMD_VECS; i++)
        simd_store(to + i * SIMD_VEC, acc.v[i]);
}

/* The sum over the samples: halves are added to each other, 8 and 8, 4 and 4, ..., whatever the width of a vector. */
SIMD_INLINE float simd_acc_sum(simd_acc acc)
{
    float part[SIMD_WIDTH] __attribute__((aligned(64)));

    simd_acc_store(part, acc);
    for (int half = SIMD_WIDTH / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

#endif
