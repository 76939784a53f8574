/* Internal. Loops over the elements of a row with vectors: whole vectors where they lie, and the rest of the row in one more
 * that is filled up.
 *
 * An element's place in a vector is its place in the row modulo SIMD_VEC, and a sum over a row is joined in a fixed order:
 * nothing depends on what else is computed. */
#ifndef ESPER_TENSOR_CPU_ROWS_H
#define ESPER_TENSOR_CPU_ROWS_H

#include <string.h>

#include "tensor/cpu/simd.h"

/* A vector anywhere in memory. */
typedef float rows_vec_in_place __attribute__((vector_size(SIMD_VEC_BYTES), aligned(4), may_alias));

SIMD_INLINE simd_vec rows_load(const float *from)
{
    return *(const rows_vec_in_place *)from;
}

SIMD_INLINE void rows_store(float *to, simd_vec v)
{
    *(rows_vec_in_place *)to = v;
}

/* The first n elements of a vector. */
SIMD_INLINE simd_mask rows_first(size_t n)
{
    simd_mask place;

    for (int i = 0; i < SIMD_VEC; i++)
        place[i] = i;
    return place < (int)n;
}

/* n < SIMD_VEC elements, filled up. Where the processor can leave out elements, nothing goes through memory. */
SIMD_INLINE simd_vec rows_load_some(const float *from, size_t n, float fill)
{
#if defined(__AVX2__)
    simd_mask here = rows_first(n);

#if defined(__AVX512F__)
    simd_vec v = (simd_vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), from);
#else
    simd_vec v = (simd_vec)_mm256_maskload_ps(from, (__m256i)here);
#endif
    return simd_select(here, v, simd_all(fill));
#else
    simd_vec v = simd_all(fill);

    for (size_t i = 0; i < n; i++)
        v[i] = from[i];
    return v;
#endif
}

SIMD_INLINE void rows_store_some(float *to, simd_vec v, size_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1), (__m512)v);
#elif defined(__AVX2__)
    _mm256_maskstore_ps(to, (__m256i)rows_first(n), (__m256)v);
#else
    for (size_t i = 0; i < n; i++)
        to[i] = v[i];
#endif
}

/* One half of a vector beside the other: element i of what comes back is element i + half, where there is one. */
#if SIMD_VEC_BYTES == 64
#define ROWS_FOLD_8(v) __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define ROWS_FOLD_4(v) __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define ROWS_FOLD_2(v) __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define ROWS_FOLD_1(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif SIMD_VEC_BYTES == 32
#define ROWS_FOLD_4(v) __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3)
#define ROWS_FOLD_2(v) __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5)
#define ROWS_FOLD_1(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define ROWS_FOLD_2(v) __builtin_shufflevector(v, v, 2, 3, 0, 1)
#define ROWS_FOLD_1(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#endif

/* The sum of a vector, halves added to each other. */
SIMD_INLINE float rows_sum(simd_vec v)
{
#if SIMD_VEC_BYTES == 64
    v += ROWS_FOLD_8(v);
#endif
#if SIMD_VEC_BYTES >= 32
    v += ROWS_FOLD_4(v);
#endif
    v += ROWS_FOLD_2(v);
    v += ROWS_FOLD_1(v);
    return v[0];
}

/* The largest of a vector. */
SIMD_INLINE float rows_largest(simd_vec v)
{
#if SIMD_VEC_BYTES == 64
    v = simd_max(v, ROWS_FOLD_8(v));
#endif
#if SIMD_VEC_BYTES >= 32
    v = simd_max(v, ROWS_FOLD_4(v));
#endif
    v = simd_max(v, ROWS_FOLD_2(v));
    v = simd_max(v, ROWS_FOLD_1(v));
    return v[0];
}

/* Runs `body` with `at` = the first element of a vector and `some` = 0, and once more for the rest of n elements with
 * `some` = their number. */
#define ROWS_EACH(at, some, n, body)                                                              \
    do {                                                                                          \
        size_t at = 0;                                                                            \
        for (const size_t some = 0; at + SIMD_VEC <= (size_t)(n); at += SIMD_VEC)               \
            body for (const size_t some = (size_t)(n)-at; at < (size_t)(n); at += SIMD_VEC) body \
    } while (0)

/* Loads and stores inside of ROWS_EACH. */
SIMD_INLINE simd_vec rows_get(const float *from, size_t at, size_t some, float fill)
{
    return some == 0 ? rows_load(from + at) : rows_load_some(from + at, some, fill);
}

SIMD_INLINE void rows_put(float *to, size_t at, size_t some, simd_vec v)
{
    if (some == 0)
        rows_store(to + at, v);
    else
        rows_store_some(to + at, v, some);
}

#endif
