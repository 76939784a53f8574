/* Internal. Matrix products of row-major matrices, held in registers: what linear layers and attention are made of.
 *
 *     C (m x n) = base + A (m x n_k) B (n_k x n)
 *
 * A tile of GEMM_ROWS x GEMM_COLS sums stays in registers while k runs. It reads B from a *panel*, GEMM_COLS columns of B
 * copied next to each other, which is small enough for the first cache and meets all rows of A:
 *
 *     panel [n_k][GEMM_COLS], the last one filled up with zeros; panels of a block follow each other
 *
 * A is read where it lies: entry (i, k) is first[i * row + k * col]. Where its columns are far apart it is copied too.
 *
 * The sum of an entry runs over k in order, whatever tile the entry falls into, so how a caller cuts rows and columns
 * changes no bit. How he cuts k does: that must not depend on the range a kernel was given. */
#ifndef ESPER_TENSOR_CPU_GEMM_H
#define ESPER_TENSOR_CPU_GEMM_H

#include <assert.h>

#include "tensor/cpu/rows.h"

enum {
#if defined(__AVX512F__)
    GEMM_ROWS = 12, /* 24 vectors of sums, 2 of B and 1 of A: fits 32 registers */
#else
    GEMM_ROWS = 6, /* 12 + 2 + 1: fits 16 */
#endif
    GEMM_VECS = 2,
    GEMM_COLS = GEMM_VECS * SIMD_VEC,
    GEMM_HALF = 6,        /* edges are cut into tiles of at most that many rows */
    GEMM_K = 256,         /* a panel of that depth (16 KB) leaves room in the first cache for the rows that meet it */
    GEMM_PACK_ROWS = 16,  /* rows of a matrix that are packed together */
    GEMM_BLOCK_ROWS = 96, /* rows that meet one panel after the other: 96 KB at that depth, for the second cache */
};

/* The left side: entry (i, k) is first[i * row + k * col]. */
typedef struct gemm_left {
    const float *first;
    size_t       row, col;
} gemm_left;

/* Where entry (i, j) goes: to[i * row + j] = sum + base[i * base_row + j]. base may be `to`, a row of biases (base_row 0),
 * or NULL for nothing. */
typedef struct gemm_out {
    float       *to;
    size_t       row;
    const float *base;
    size_t       base_row;
} gemm_out;

SIMD_INLINE gemm_left gemm_left_at(gemm_left a, size_t i, size_t k)
{
    a.first += i * a.row + k * a.col;
    return a;
}

SIMD_INLINE gemm_out gemm_out_at(gemm_out c, size_t i, size_t j)
{
    c.to += i * c.row + j;
    if (c.base != NULL)
        c.base += i * c.base_row + j;
    return c;
}

/* The same place, for what is added to a sum begun before. */
SIMD_INLINE gemm_out gemm_out_more(gemm_out c)
{
    c.base = c.to;
    c.base_row = c.row;
    return c;
}

/* ------------------------------------------------------------------------------------------------ tiles */

/* m x GEMM_COLS sums into their places. Here and below, loops over sums are unrolled before the compiler looks for variables
 * to keep in registers: else the sums pass through memory. */
SIMD_INLINE void gemm_put(int m, simd_vec sum[GEMM_ROWS][GEMM_VECS], gemm_out c)
{
    if (c.base == NULL) {
#pragma GCC unroll 16
        for (int i = 0; i < m; i++, c.to += c.row)
            for (int j = 0; j < GEMM_VECS; j++)
                rows_store(c.to + j * SIMD_VEC, sum[i][j]);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < m; i++, c.to += c.row, c.base += c.base_row)
        for (int j = 0; j < GEMM_VECS; j++)
            rows_store(c.to + j * SIMD_VEC, sum[i][j] + rows_load(c.base + j * SIMD_VEC));
}

/* m rows, a constant where this is inlined. Rows of A are addressed in threes, by a pointer and one distance: that leaves
 * registers enough for a whole tile. */
SIMD_INLINE void gemm_tile(int m, int n_k, gemm_left a, const float *panel, gemm_out c)
{
    const float *three[GEMM_ROWS / 3];
    simd_vec sum[GEMM_ROWS][GEMM_VECS];

#pragma GCC unroll 16
    for (int i = 0; i < m; i++)
        for (int j = 0; j < GEMM_VECS; j++)
            sum[i][j] = (simd_vec){0};
    for (int i = 0; i < m; i += 3)
        three[i / 3] = a.first + (size_t)i * a.row;
#pragma GCC unroll 4
    for (int k = 0; k < n_k; k++, panel += GEMM_COLS) {
        simd_vec b[GEMM_VECS];

        for (int j = 0; j < GEMM_VECS; j++)
            b[j] = simd_load(panel + j * SIMD_VEC);
#pragma GCC unroll 16
        for (int i = 0; i < m; i++)
            for (int j = 0; j < GEMM_VECS; j++)
                sum[i][j] += three[i / 3][(size_t)(i % 3) * a.row] * b[j];
        for (int i = 0; i < m; i += 3)
            three[i / 3] += a.col;
    }
    gemm_put(m, sum, c);
}

/* A whole tile of rows as they lie. It is a function, so that it has all registers for itself. */
static __attribute__((noinline)) void gemm_tile_rows(int n_k, gemm_left a, const float *panel, gemm_out c)
{
    gemm_tile(GEMM_ROWS, n_k, (gemm_left){a.first, a.row, 1}, panel, c);
}

/* m rows, at most GEMM_HALF. */
static __attribute__((noinline)) void gemm_edge(size_t m, int n_k, gemm_left a, const float *panel, gemm_out c)
{
#define X(rows)                            \
    case rows:                             \
        gemm_tile(rows, n_k, a, panel, c); \
        break;
    assert(m <= GEMM_HALF);
    switch (m) {
        X(6) X(5) X(4) X(3) X(2) X(1) default : break;
    }
#undef X
}

/* m rows, at most GEMM_ROWS: one tile, or what is left of a matrix in two. */
SIMD_INLINE void gemm_whole_strip(size_t m, int n_k, gemm_left a, const float *panel, gemm_out c)
{
    if (m == GEMM_ROWS && a.col == 1) {
        gemm_tile_rows(n_k, a, panel, c);
        return;
    }
    if (m == GEMM_ROWS && a.row == 1) {
        gemm_tile(GEMM_ROWS, n_k, (gemm_left){a.first, 1, a.col}, panel, c);
        return;
    }
    if (m > GEMM_HALF) {
        gemm_edge(GEMM_HALF, n_k, a, panel, c);
        m -= GEMM_HALF;
        a = gemm_left_at(a, GEMM_HALF, 0);
        c = gemm_out_at(c, GEMM_HALF, 0);
    }
    gemm_edge(m, n_k, a, panel, c);
}

/* The same where only the first n columns exist: by way of a whole one. */
static __attribute__((noinline)) void gemm_some_strip(size_t m, size_t n, int n_k, gemm_left a, const float *panel,
                                                      gemm_out c)
{
    float value[GEMM_ROWS][GEMM_COLS] __attribute__((aligned(64)));

    gemm_whole_strip(m, n_k, a, panel, (gemm_out){.to = value[0], .row = GEMM_COLS});
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c.to[i * c.row + j] = value[i][j] + (c.base != NULL ? c.base[i * c.base_row + j] : 0.0f);
}

/* m <= GEMM_ROWS rows, n <= GEMM_COLS columns. */
SIMD_INLINE void gemm_strip(size_t m, size_t n, size_t n_k, gemm_left a, const float *panel, gemm_out c)
{
    if (n == GEMM_COLS)
        gemm_whole_strip(m, (int)n_k, a, panel, c);
    else
        gemm_some_strip(m, n, (int)n_k, a, panel, c);
}

SIMD_INLINE size_t gemm_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* m x n entries; n_k <= GEMM_K rows of B, packed. */
static inline void gemm_block(size_t m, size_t n, size_t n_k, gemm_left a, const float *packed, gemm_out c)
{
    for (size_t block = 0; block < m; block += GEMM_BLOCK_ROWS)
        for (size_t j = 0; j < n; j += GEMM_COLS) {
            size_t end = gemm_least(block + GEMM_BLOCK_ROWS, m);

            for (size_t i = block; i < end; i += GEMM_ROWS)
                gemm_strip(gemm_least(end - i, GEMM_ROWS), gemm_least(n - j, GEMM_COLS), n_k, gemm_left_at(a, i, 0),
                           packed + j * n_k, gemm_out_at(c, i, j));
        }
}

/* ------------------------------------------------------------------------------------------------ packing */

/* Asks for n elements of each of n_k rows that will be packed next: pieces of rows that lie far apart are not foreseen by
 * the processor. */
SIMD_INLINE void gemm_ask(size_t n, size_t n_k, const float *from, size_t row)
{
    enum { LINE = 16 }; /* floats of a cache line */

    for (size_t k = 0; k < n_k; k++, from += row)
        for (size_t j = 0; j < n; j += LINE)
            __builtin_prefetch(from + j);
}

/* One panel of n <= GEMM_COLS columns, n_k rows: entry (k, j) is from[k * row + j]. */
SIMD_INLINE void gemm_pack_panel(size_t n, size_t n_k, const float *from, size_t row, float *panel)
{
    for (size_t k = 0; k < n_k; k++, panel += GEMM_COLS, from += row) {
        if (n == GEMM_COLS) {
            for (int v = 0; v < GEMM_VECS; v++)
                simd_store(panel + v * SIMD_VEC, rows_load(from + v * SIMD_VEC));
            continue;
        }
        memset(panel, 0, GEMM_COLS * sizeof(float));
        memcpy(panel, from, n * sizeof(float));
    }
}

/* Panels of B whose rows lie as they are. A few rows at a time: they are read whole, as memory likes it. */
static inline void gemm_pack_rows(size_t n, size_t n_k, const float *from, size_t row, float *packed)
{
    for (size_t k = 0; k < n_k; k += GEMM_PACK_ROWS) {
        size_t here = gemm_least(n_k - k, GEMM_PACK_ROWS);

        gemm_ask(n, gemm_least(n_k - k - here, GEMM_PACK_ROWS), from + (k + here) * row, row);
        for (size_t j = 0; j < n; j += GEMM_COLS)
            gemm_pack_panel(gemm_least(n - j, GEMM_COLS), here, from + k * row + j, row,
                            packed + j * n_k + k * GEMM_COLS);
    }
}

/* Of every two vectors `half` apart, the elements listed first go to the upper one and those listed second to the lower one. */
#define GEMM_LIST(...) __VA_ARGS__
#define GEMM_SWAP(v, half, first, second)                                              \
    _Pragma("GCC unroll 16") for (int i = 0; i < SIMD_VEC; i++) if ((i & (half)) == 0) \
    {                                                                                  \
        simd_vec upper = (v)[i], lower = (v)[i + (half)];                              \
                                                                                       \
        (v)[i] = __builtin_shufflevector(upper, lower, GEMM_LIST first);               \
        (v)[i + (half)] = __builtin_shufflevector(upper, lower, GEMM_LIST second);     \
    }

/* Swaps rows and columns of SIMD_VEC x SIMD_VEC entries: the off-diagonal quarters change places, then the quarters of
 * the quarters, and so on. */
SIMD_INLINE void gemm_turn(simd_vec v[SIMD_VEC])
{
#if SIMD_VEC_BYTES == 64
    GEMM_SWAP(v, 8, (0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
              (8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    GEMM_SWAP(v, 4, (0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
              (4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    GEMM_SWAP(v, 2, (0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
              (2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    GEMM_SWAP(v, 1, (0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
              (1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif SIMD_VEC_BYTES == 32
    GEMM_SWAP(v, 4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
    GEMM_SWAP(v, 2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
    GEMM_SWAP(v, 1, (0, 8, 2, 10, 4, 12, 6, 14), (1, 9, 3, 11, 5, 13, 7, 15))
#else
    GEMM_SWAP(v, 2, (0, 1, 4, 5), (2, 3, 6, 7))
    GEMM_SWAP(v, 1, (0, 4, 2, 6), (1, 5, 3, 7))
#endif
}

/* SIMD_VEC columns of a panel from as many rows of a matrix, entry (k, j) = from[j * row + k]. */
static inline void gemm_turn_rows(size_t n_k, const float *from, size_t row, float *panel)
{
    size_t k = 0;

    for (; k + SIMD_VEC <= n_k; k += SIMD_VEC) {
        simd_vec v[SIMD_VEC];

        for (size_t l = 0; l < SIMD_VEC; l++)
            v[l] = rows_load(from + l * row + k);
        gemm_turn(v);
        for (size_t l = 0; l < SIMD_VEC; l++)
            simd_store(panel + (k + l) * GEMM_COLS, v[l]);
    }
    for (; k < n_k; k++)
        for (size_t l = 0; l < SIMD_VEC; l++)
            panel[k * GEMM_COLS + l] = from[l * row + k];
}

/* Panels of B whose columns lie as rows: entry (k, j) is from[j * row + k]. */
static inline void gemm_pack_turned(size_t n, size_t n_k, const float *from, size_t row, float *packed)
{
    for (size_t j = 0; j < n; j += GEMM_COLS, packed += n_k * GEMM_COLS) {
        size_t l = 0, cols = gemm_least(n - j, GEMM_COLS);

        for (; l + SIMD_VEC <= cols; l += SIMD_VEC)
            gemm_turn_rows(n_k, from + (j + l) * row, row, packed + l);
        for (; l < GEMM_COLS; l++)
            for (size_t k = 0; k < n_k; k++)
                packed[k * GEMM_COLS + l] = l < cols ? from[(j + l) * row + k] : 0;
    }
}

/* m <= GEMM_ROWS rows of A for one tile: entry (i, k) is from[k * col + i]. The first `wide` of them are copied in whole
 * vectors: what is too much comes from the next k and is overwritten by it. */
SIMD_INLINE void gemm_pack_strip(size_t m, size_t n_k, size_t wide, const float *from, size_t col, float *packed)
{
    size_t k = 0;

    for (; k < wide; k++, packed += GEMM_ROWS, from += col)
        for (int l = 0; l < GEMM_ROWS; l += SIMD_VEC)
            rows_store(packed + l, rows_load(from + l));
    for (; k < n_k; k++, packed += GEMM_ROWS, from += col)
        for (size_t i = 0; i < m; i++)
            packed[i] = from[i];
}

/* A copy of A for tiles of GEMM_ROWS rows where the rows of A lie as columns. The tile that begins at row i is at
 * packed + i * n_k, with row 1 and col GEMM_ROWS. */
static inline void gemm_pack_left(size_t m, size_t n_k, const float *from, size_t col, float *packed)
{
    enum { VECS = (GEMM_ROWS + SIMD_VEC - 1) / SIMD_VEC };

    for (size_t k = 0; k < n_k; k += GEMM_PACK_ROWS) {
        size_t here = gemm_least(n_k - k, GEMM_PACK_ROWS), wide = gemm_least(here, n_k - k - 1);

        gemm_ask(m, gemm_least(n_k - k - here, GEMM_PACK_ROWS), from + (k + here) * col, col);
        for (size_t i = 0; i < m; i += GEMM_ROWS) {
            size_t rows = gemm_least(m - i, GEMM_ROWS);

            gemm_pack_strip(rows, here, rows + col >= VECS * SIMD_VEC ? wide : 0, from + k * col + i, col,
                            packed + i * n_k + k * GEMM_ROWS);
        }
    }
}

#endif
