/* Internal. Loops over the elements of a row with vectors: whole vectors where they lie, and the rest of the row in one more
 * that is filled up.
 *
 * An element's place in a vector is its place in the row modulo LANES_VEC, and a sum over a row is joined in a fixed order:
 * nothing depends on what else is computed. */
#ifndef ESPER_TENSOR_CPU_ROWS_H
#define ESPER_TENSOR_CPU_ROWS_H

#include <string.h>

#include "tensor/cpu/lanes.h"

/* A vector anywhere in memory. */
typedef float rows_vec_in_place __attribute__((vector_size(LANES_VEC_BYTES), aligned(4), may_alias));

LANES_INLINE lanes_vec rows_load(const float *from)
{
    return *(const rows_vec_in_place *)from;
}

LANES_INLINE void rows_store(float *to, lanes_vec v)
{
    *(rows_vec_in_place *)to = v;
}

/* The first n lanes. */
LANES_INLINE lanes_mask rows_first(size_t n)
{
    lanes_mask place;

    for (int i = 0; i < LANES_VEC; i++)
        place[i] = i;
    return place < (int)n;
}

/* n < LANES_VEC elements, filled up. Where the processor can leave out lanes, nothing goes through memory. */
LANES_INLINE lanes_vec rows_load_some(const float *from, size_t n, float fill)
{
#if defined(__AVX2__)
    lanes_mask here = rows_first(n);

#if defined(__AVX512F__)
    lanes_vec v = (lanes_vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), from);
#else
    lanes_vec v = (lanes_vec)_mm256_maskload_ps(from, (__m256i)here);
#endif
    return lanes_select(here, v, lanes_all(fill));
#else
    lanes_vec v = lanes_all(fill);

    for (size_t i = 0; i < n; i++)
        v[i] = from[i];
    return v;
#endif
}

LANES_INLINE void rows_store_some(float *to, lanes_vec v, size_t n)
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

/* The sum over the lanes, halves added to each other. */
LANES_INLINE float rows_sum(lanes_vec v)
{
    float part[LANES_VEC] __attribute__((aligned(64)));

    lanes_store(part, v);
    for (int half = LANES_VEC / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

LANES_INLINE float rows_largest(lanes_vec v)
{
    float top = v[0];

    for (int i = 1; i < LANES_VEC; i++)
        top = v[i] > top ? v[i] : top;
    return top;
}

/* Runs `body` with `at` = the first element of a vector and `some` = 0, and once more for the rest of n elements with
 * `some` = their number. */
#define ROWS_EACH(at, some, n, body)                                                              \
    do {                                                                                          \
        size_t at = 0;                                                                            \
        for (const size_t some = 0; at + LANES_VEC <= (size_t)(n); at += LANES_VEC)               \
            body for (const size_t some = (size_t)(n)-at; at < (size_t)(n); at += LANES_VEC) body \
    } while (0)

/* Loads and stores inside of ROWS_EACH. */
LANES_INLINE lanes_vec rows_get(const float *from, size_t at, size_t some, float fill)
{
    return some == 0 ? rows_load(from + at) : rows_load_some(from + at, some, fill);
}

LANES_INLINE void rows_put(float *to, size_t at, size_t some, lanes_vec v)
{
    if (some == 0)
        rows_store(to + at, v);
    else
        rows_store_some(to + at, v, some);
}

#endif
