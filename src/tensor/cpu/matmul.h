/* Internal. The inner loops of convolution and linear layers: small blocks of matrix products held in registers.
 *
 *     product_add       C += A B      B is a panel laid out for it, its columns padded to a multiple of PANEL_COLS
 *     product_add_rows  C += A B^T    every entry is a dot product of two rows, padded to a multiple of VEC_REALS
 *
 * The sum of an entry runs over k in order (product_add_rows: in VEC_REALS interleaved parts that are joined in a fixed tree),
 * whatever block the entry falls into. So how a caller cuts the rows of C changes no bit. How he cuts k does: that must
 * not depend on the range a kernel was given.
 *
 * Vectors are as wide as the instructions of the kernel set. They are spelled out with the compiler's vector type since
 * gcc makes poor code of the same loops over arrays: it transposes the block in registers. */
#ifndef ESPER_TENSOR_CPU_MATMUL_H
#define ESPER_TENSOR_CPU_MATMUL_H

#include "tensor/ref/ref.h"

#if defined(__AVX512F__)
enum { VEC_BYTES = 64 };
#elif defined(__AVX__)
enum { VEC_BYTES = 32 };
#else
enum { VEC_BYTES = 16 };
#endif

enum {
    VEC_REALS = VEC_BYTES / sizeof(real),
    BLOCK_ROWS = 4, /* 4 x 2 vectors of sums, 2 of B and 1 of A: fits 16 registers */
    BLOCK_VECS = 2,
    PANEL_COLS = BLOCK_VECS * VEC_REALS,
};

typedef real vec __attribute__((vector_size(VEC_BYTES)));
typedef real vec_in_place __attribute__((vector_size(VEC_BYTES), aligned(sizeof(real)), may_alias));

#define ESPER_INLINE static inline __attribute__((always_inline))

/* The left side of product_add: entry (i, k) is first[i * row + at[k]]. */
typedef struct left_side {
    const real   *first;
    size_t        row;
    const size_t *at; /* (n_k) */
} left_side;

ESPER_INLINE vec vec_load(const real *from)
{
    return *(const vec_in_place *)from;
}

ESPER_INLINE real vec_sum(vec v)
{
    real part[VEC_REALS];

    *(vec_in_place *)part = v;
    for (int half = VEC_REALS / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            part[i] += part[i + half];
    return part[0];
}

/* m x PANEL_COLS entries, of which the first n columns are stored. m is a constant where this is inlined. */
ESPER_INLINE void product_block(int m, int n, int n_k, left_side a, const real *b, size_t b_row, real *c, size_t c_row)
{
    vec sum[BLOCK_ROWS][BLOCK_VECS] = {{{0}}};

    for (int k = 0; k < n_k; k++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < BLOCK_VECS; j++)
                sum[i][j] += a.first[(size_t)i * a.row + a.at[k]] * vec_load(b + (size_t)k * b_row + j * VEC_REALS);
    for (int i = 0; i < m; i++, c += c_row) {
        const real *row = (const real *)sum[i];

        if (n == PANEL_COLS)
            for (int j = 0; j < PANEL_COLS; j++)
                c[j] += row[j];
        else
            for (int j = 0; j < n; j++)
                c[j] += row[j];
    }
}

/* C (m x n, rows c_row apart) += A (m x n_k) B (n_k x n, rows b_row apart). */
static inline void product_add(int m, int n, int n_k, left_side a, const real *b, size_t b_row, real *c, size_t c_row)
{
    for (int j = 0; j < n; j += PANEL_COLS) {
        int n_here = n - j < PANEL_COLS ? n - j : PANEL_COLS;
        int left = m;
        left_side a_here = a;
        real *c_here = c + j;

        for (; left >= BLOCK_ROWS; left -= BLOCK_ROWS) {
            product_block(BLOCK_ROWS, n_here, n_k, a_here, b + j, b_row, c_here, c_row);
            a_here.first += BLOCK_ROWS * a.row;
            c_here += BLOCK_ROWS * c_row;
        }
        if (left == 3)
            product_block(3, n_here, n_k, a_here, b + j, b_row, c_here, c_row);
        else if (left == 2)
            product_block(2, n_here, n_k, a_here, b + j, b_row, c_here, c_row);
        else if (left == 1)
            product_block(1, n_here, n_k, a_here, b + j, b_row, c_here, c_row);
    }
}

/* m x n dot products of rows of A and B; m and n are constants where this is inlined. */
ESPER_INLINE void dot_block(int m, int n, int n_k, const real *a, size_t a_row, const real *b, size_t b_row, real *c,
                            size_t c_row)
{
    vec sum[BLOCK_ROWS][BLOCK_VECS] = {{{0}}};

    for (int k = 0; k < n_k; k += VEC_REALS)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++)
                sum[i][j] += vec_load(a + (size_t)i * a_row + k) * vec_load(b + (size_t)j * b_row + k);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            c[(size_t)i * c_row + (size_t)j] += vec_sum(sum[i][j]);
}

/* C (m x n, rows c_row apart) += A (m x n_k, rows a_row apart) times the transpose of B (n x n_k, rows b_row apart). */
static inline void product_add_rows(int m, int n, int n_k, const real *a, size_t a_row, const real *b, size_t b_row,
                                    real *c, size_t c_row)
{
    int i = 0;

    for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS, a += BLOCK_ROWS * a_row, c += BLOCK_ROWS * c_row) {
        int j = 0;

        for (; j + BLOCK_VECS <= n; j += BLOCK_VECS)
            dot_block(BLOCK_ROWS, BLOCK_VECS, n_k, a, a_row, b + (size_t)j * b_row, b_row, c + j, c_row);
        if (j < n)
            dot_block(BLOCK_ROWS, 1, n_k, a, a_row, b + (size_t)j * b_row, b_row, c + j, c_row);
    }
    for (; i < m; i++, a += a_row, c += c_row)
        for (int j = 0; j < n; j++)
            dot_block(1, 1, n_k, a, a_row, b + (size_t)j * b_row, b_row, c + j, c_row);
}

#endif
