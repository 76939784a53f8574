/* Internal. Sixteen samples in the lanes of vectors.
 *
 * A block holds 16 samples of a tensor (C, H, W): float [C][H][W][LANES_WIDTH], 64-byte aligned, lane l = sample
 * 16 * block + l. The sixteen values of a pixel are LANES_VECS vectors, as wide as the instructions of the kernel set.
 *
 * Every source that includes this is compiled once for each set. Vectors are spelled out with the compiler's vector type;
 * loops over LANES_VECS and over small tiles have constant bounds, so that they unroll and their arrays stay in registers. */
#ifndef ESPER_TENSOR_CPU_LANES_H
#define ESPER_TENSOR_CPU_LANES_H

#include <stddef.h>

#if defined(__SSE__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES_VEC_BYTES 64
#elif defined(__AVX__)
#define LANES_VEC_BYTES 32
#else
#define LANES_VEC_BYTES 16
#endif

enum {
    LANES_WIDTH = 16,                            /* samples of a block */
    LANES_VEC = LANES_VEC_BYTES / sizeof(float), /* floats of a vector */
    LANES_VECS = LANES_WIDTH / LANES_VEC,        /* vectors of a pixel: 4, 2 or 1 */
};

typedef float lanes_vec __attribute__((vector_size(LANES_VEC_BYTES), may_alias));
typedef int   lanes_mask __attribute__((vector_size(LANES_VEC_BYTES), may_alias)); /* what comparing two gives */
typedef float lanes_quad __attribute__((vector_size(16), may_alias));

#define LANES_INLINE static inline __attribute__((always_inline))

/* One value of each of the sixteen samples; or a sum over pixels that is kept apart for each of them. */
typedef struct lanes_acc {
    lanes_vec v[LANES_VECS];
} lanes_acc;

/* ------------------------------------------------------------------------------------------------ one vector */

LANES_INLINE lanes_vec lanes_load(const float *from)
{
    return *(const lanes_vec *)from;
}

LANES_INLINE void lanes_store(float *to, lanes_vec v)
{
    *(lanes_vec *)to = v;
}

/* The same value in all lanes. Written out so that it becomes one broadcast; `zeros + value` would be an addition. */
LANES_INLINE lanes_vec lanes_all(float value)
{
#if LANES_VEC_BYTES == 64
    return (lanes_vec){value, value, value, value, value, value, value, value,
                       value, value, value, value, value, value, value, value};
#elif LANES_VEC_BYTES == 32
    return (lanes_vec){value, value, value, value, value, value, value, value};
#else
    return (lanes_vec){value, value, value, value};
#endif
}

/* if_set where the mask is set, otherwise if_not. */
LANES_INLINE lanes_vec lanes_select(lanes_mask mask, lanes_vec if_set, lanes_vec if_not)
{
    return (lanes_vec)((mask & (lanes_mask)if_set) | (~mask & (lanes_mask)if_not));
}

/* The larger of two; b where one of them is not a number. */
LANES_INLINE lanes_vec lanes_max(lanes_vec a, lanes_vec b)
{
#if defined(__AVX512F__)
    return (lanes_vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (lanes_vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE__)
    return (lanes_vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    return lanes_select((lanes_mask)(a > b), a, b);
#endif
}

/* Halves added to each other until four lanes are left: lane i and i + 8, then i and i + 4. */
LANES_INLINE lanes_quad lanes_fold(lanes_vec v)
{
#if LANES_VEC_BYTES == 64
    typedef float half_vec __attribute__((vector_size(32)));
    half_vec half = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);

    return (lanes_quad)(__builtin_shufflevector(half, half, 0, 1, 2, 3) +
                        __builtin_shufflevector(half, half, 4, 5, 6, 7));
#elif LANES_VEC_BYTES == 32
    return (lanes_quad)(__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7));
#else
    return (lanes_quad)v;
#endif
}

/* The sums over the lanes of four vectors. */
LANES_INLINE lanes_quad lanes_sum_four(lanes_vec a, lanes_vec b, lanes_vec c, lanes_vec d)
{
    lanes_quad qa = lanes_fold(a), qb = lanes_fold(b), qc = lanes_fold(c), qd = lanes_fold(d);
    lanes_quad ab = __builtin_shufflevector(qa, qb, 0, 4, 1, 5) + __builtin_shufflevector(qa, qb, 2, 6, 3, 7);
    lanes_quad cd = __builtin_shufflevector(qc, qd, 0, 4, 1, 5) + __builtin_shufflevector(qc, qd, 2, 6, 3, 7);

    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/* ------------------------------------------------------------------------------------------------ sixteen lanes */

LANES_INLINE lanes_acc lanes_acc_load(const float *from)
{
    lanes_acc acc;

    for (int i = 0; i < LANES_VECS; i++)
        acc.v[i] = lanes_load(from + i * LANES_VEC);
    return acc;
}

LANES_INLINE void lanes_acc_store(float *to, lanes_acc acc)
{
    for (int i = 0; i < LANES_VECS; i++)
        lanes_store(to + i * LANES_VEC, acc.v[i]);
}

/* The sum over the lanes: halves are added to each other, 8 and 8, 4 and 4, ..., whatever the width of a vector. */
LANES_INLINE float lanes_acc_sum(lanes_acc acc)
{
    float part[LANES_WIDTH] __attribute__((aligned(64)));

    lanes_acc_store(part, acc);
    for (int half = LANES_WIDTH / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

#endif
