/* Internal. Between the canonical layout, one sample after the other, and blocks of sixteen samples side by side.
 *
 * Either way it is the transposition of a matrix, 16 x count: in tiles of 16 x 16, a cache line of each sample against
 * a kilobyte of the block, made of smaller transpositions in registers. */
#ifndef ESPER_TENSOR_CPU_SIMD_PACK_H
#define ESPER_TENSOR_CPU_SIMD_PACK_H

#include <stdbool.h>
#include <string.h>

#include "tensor/cpu/simd.h"

/* A square of floats that is transposed in registers. Rows are unaligned on the canonical side. */
#if defined(__AVX__)
#define SIMD_SQUARE 8
#else
#define SIMD_SQUARE 4
#endif

typedef float simd_row __attribute__((vector_size(SIMD_SQUARE * sizeof(float)), may_alias));
typedef float simd_row_anywhere
    __attribute__((vector_size(SIMD_SQUARE * sizeof(float)), aligned(sizeof(float)), may_alias));

#if defined(__AVX__)

/* Pairs, then fours within the halves of a vector, then the halves. */
SIMD_INLINE void simd_transpose_square(simd_row r[SIMD_SQUARE])
{
    __m256 pair[8], four[8];

    for (int i = 0; i < 4; i++) {
        pair[2 * i] = _mm256_unpacklo_ps((__m256)r[2 * i], (__m256)r[2 * i + 1]);
        pair[2 * i + 1] = _mm256_unpackhi_ps((__m256)r[2 * i], (__m256)r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        four[4 * i] = _mm256_shuffle_ps(pair[4 * i], pair[4 * i + 2], 0x44);
        four[4 * i + 1] = _mm256_shuffle_ps(pair[4 * i], pair[4 * i + 2], 0xee);
        four[4 * i + 2] = _mm256_shuffle_ps(pair[4 * i + 1], pair[4 * i + 3], 0x44);
        four[4 * i + 3] = _mm256_shuffle_ps(pair[4 * i + 1], pair[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = (simd_row)_mm256_permute2f128_ps(four[i], four[i + 4], 0x20);
        r[i + 4] = (simd_row)_mm256_permute2f128_ps(four[i], four[i + 4], 0x31);
    }
}

#else

SIMD_INLINE void simd_transpose_square(simd_row r[SIMD_SQUARE])
{
    simd_row low = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    simd_row high = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    simd_row low2 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    simd_row high2 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);

    r[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
}

#endif

/* to[j][i] = from[i][j] for one square; rows are from_row and to_row floats apart. */
SIMD_INLINE void simd_move_square(const float *from, size_t from_row, float *to, size_t to_row)
{
    simd_row r[SIMD_SQUARE];

    for (int k = 0; k < SIMD_SQUARE; k++)
        r[k] = *(const simd_row_anywhere *)(from + (size_t)k * from_row);
    simd_transpose_square(r);
    for (int k = 0; k < SIMD_SQUARE; k++)
        *(simd_row_anywhere *)(to + (size_t)k * to_row) = r[k];
}

/* The same for 16 x 16. A cache line of a sample is finished before others are begun (by_from: `from` is the samples):
 * samples often lie a multiple of 4 KB apart, where a first-level cache holds eight lines and no more. */
SIMD_INLINE void simd_transpose_tile(const float *from, size_t from_row, float *to, size_t to_row, bool by_from)
{
    for (int a = 0; a < SIMD_WIDTH; a += SIMD_SQUARE)
        for (int b = 0; b < SIMD_WIDTH; b += SIMD_SQUARE) {
            size_t i = (size_t)(by_from ? a : b), j = (size_t)(by_from ? b : a);

            simd_move_square(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
        }
}

/* One tile where something is missing: n_samples by n_columns of it are there. */
static inline void simd_pack_part(const float *samples, size_t count, int n_samples, int n_columns, float *block)
{
    float tile[SIMD_WIDTH * SIMD_WIDTH] __attribute__((aligned(64))) = {0};
    float across[SIMD_WIDTH * SIMD_WIDTH] __attribute__((aligned(64)));

    for (int l = 0; l < n_samples; l++)
        memcpy(tile + l * SIMD_WIDTH, samples + (size_t)l * count, (size_t)n_columns * sizeof(float));
    simd_transpose_tile(tile, SIMD_WIDTH, across, SIMD_WIDTH, true);
    memcpy(block, across, (size_t)n_columns * SIMD_WIDTH * sizeof(float));
}

static inline void simd_unpack_part(const float *block, size_t count, int n_samples, int n_columns, float *samples)
{
    float tile[SIMD_WIDTH * SIMD_WIDTH] __attribute__((aligned(64))) = {0};
    float across[SIMD_WIDTH * SIMD_WIDTH] __attribute__((aligned(64)));

    memcpy(tile, block, (size_t)n_columns * SIMD_WIDTH * sizeof(float));
    simd_transpose_tile(tile, SIMD_WIDTH, across, SIMD_WIDTH, false);
    for (int l = 0; l < n_samples; l++)
        memcpy(samples + (size_t)l * count, across + l * SIMD_WIDTH, (size_t)n_columns * sizeof(float));
}

SIMD_INLINE int simd_columns_left(size_t count, size_t done)
{
    return count - done < SIMD_WIDTH ? (int)(count - done) : SIMD_WIDTH;
}

/* samples: the first sample of the block, `count` floats each, n_valid of them; the others become 0. */
static inline void simd_pack(const float *samples, size_t count, int n_valid, float *block)
{
    size_t e = 0;

    if (n_valid == SIMD_WIDTH)
        for (; e + SIMD_WIDTH <= count; e += SIMD_WIDTH)
            simd_transpose_tile(samples + e, count, block + e * SIMD_WIDTH, SIMD_WIDTH, true);
    for (; e < count; e += SIMD_WIDTH)
        simd_pack_part(samples + e, count, n_valid, simd_columns_left(count, e), block + e * SIMD_WIDTH);
}

/* Writes the n_valid samples of a block and nothing else. */
static inline void simd_unpack(const float *block, size_t count, int n_valid, float *samples)
{
    size_t e = 0;

    if (n_valid == SIMD_WIDTH)
        for (; e + SIMD_WIDTH <= count; e += SIMD_WIDTH)
            simd_transpose_tile(block + e * SIMD_WIDTH, SIMD_WIDTH, samples + e, count, false);
    for (; e < count; e += SIMD_WIDTH)
        simd_unpack_part(block + e * SIMD_WIDTH, count, n_valid, simd_columns_left(count, e), samples + e);
}

#endif
