/* Linear layer: y = x w^T + b, for every row of x.
 *
 * All three products (y, and the gradients of x and w) are one function over differently strided matrices: it copies a
 * panel of the right side to the stack and multiplies. The bias gradient is a sum over columns. */
#include <string.h>

#include "tensor/ref/columns.h"
#include "tensor/cpu/matmul.h"

/* The panel (8 KB) stays in the first cache, the part of the left side that meets it (128 KB) in the second. */
enum { TILE_K = 128, TILE_ROWS = 256 };

/* Entry (i, j) is first[i * row + j * col]. */
typedef struct matrix {
    const real *first;
    size_t row, col;
} matrix;

static int at_most(size_t left, int size)
{
    return left < (size_t)size ? (int)left : size;
}

/* n_k x n entries of b, rows PANEL_COLS long, zeros after the last column. */
static void copy_panel(matrix b, int n_k, int n, real *panel)
{
    for (int k = 0; k < n_k; k++, b.first += b.row, panel += PANEL_COLS) {
        if (b.col == 1 && n == PANEL_COLS) {
            memcpy(panel, b.first, PANEL_COLS * sizeof(real));
            continue;
        }
        for (int j = 0; j < n; j++)
            panel[j] = b.first[(size_t)j * b.col];
        for (int j = n; j < PANEL_COLS; j++)
            panel[j] = 0;
    }
}

/* C (m x n, dense rows) += A (m x n_k) B (n_k x n). Where k is cut depends on n_k alone. */
static void multiply(size_t m, size_t n, size_t n_k, matrix a, matrix b, real *c)
{
    real panel[TILE_K * PANEL_COLS];
    size_t at[TILE_K];

    for (size_t k = 0; k < TILE_K; k++)
        at[k] = k * a.col;
    for (size_t k = 0; k < n_k; k += TILE_K)
        for (size_t i = 0; i < m; i += TILE_ROWS)
            for (size_t j = 0; j < n; j += PANEL_COLS) {
                int ks = at_most(n_k - k, TILE_K), cols = at_most(n - j, PANEL_COLS);

                copy_panel((matrix){b.first + k * b.row + j * b.col, b.row, b.col}, ks, cols, panel);
                product_add(at_most(m - i, TILE_ROWS), cols, ks,
                            (left_side){a.first + i * a.row + k * a.col, a.row, at}, panel, PANEL_COLS, c + i * n + j,
                            n);
            }
}

static size_t inputs(const esper_lane *lane)
{
    return (size_t)lane->in[1].dim[1];
}

static size_t outputs(const esper_lane *lane)
{
    return (size_t)lane->in[1].dim[0];
}

/* Rows of x in n samples. */
static size_t rows_in(const esper_lane *lane, int n)
{
    return (size_t)n * (size_t)lane->in[0].count / inputs(lane);
}

static void forward(const esper_lane *lane, int begin, int end)
{
    size_t I = inputs(lane), O = outputs(lane), rows = rows_in(lane, end - begin);
    const real *bias = lane->in[2].data;
    real *y = data_at(&lane->out[0], begin);

    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < O; o++)
            y[r * O + o] = bias != NULL ? bias[o] : 0;
    multiply(rows, O, I, (matrix){data_at(&lane->in[0], begin), I, 1}, (matrix){lane->in[1].data, 1, I}, y);
}

static void backward_x(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    size_t I = inputs(lane), O = outputs(lane), rows = rows_in(lane, end - begin);

    if (x->grad == NULL)
        return;
    if (!x->add)
        memset(grad_at(x, begin), 0, rows * I * sizeof(real));
    multiply(rows, I, O, (matrix){grad_at(&lane->out[0], begin), O, 1}, (matrix){lane->in[1].data, I, 1},
             grad_at(x, begin));
}

/* Units are outputs: rows of w. */
static void backward_w(const esper_lane *lane, int begin, int end)
{
    const esper_view *w = &lane->in[1];
    size_t I = inputs(lane), O = outputs(lane), rows = rows_in(lane, lane->pass->n_samples);
    real *dw;

    if (w->grad == NULL)
        return;
    dw = (real *)w->grad + (size_t)begin * I;
    if (!w->add)
        memset(dw, 0, (size_t)(end - begin) * I * sizeof(real));
    multiply((size_t)(end - begin), I, rows, (matrix){(const real *)lane->out[0].grad + begin, 1, O},
             (matrix){lane->in[0].data, I, 1}, dw);
}

static void backward_b(const esper_lane *lane, int begin, int end)
{
    const esper_view *b = &lane->in[2];

    if (b->grad != NULL)
        put_column_sums(b, lane->out[0].grad, rows_in(lane, lane->pass->n_samples), outputs(lane), begin, end);
}

static int out_rows(const esper_lane *lane)
{
    return (int)outputs(lane);
}

const esper_op_kernels ESPER_OP_KERNELS(linear) = {
    .forward = {{forward, NULL}},
    .backward = {{backward_x, NULL}, {backward_w, out_rows}, {backward_b, out_rows}},
};
