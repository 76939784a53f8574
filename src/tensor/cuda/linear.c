/* Linear layers on a GPU: which tiles a lane is computed in (linear.cu), by its shape. */
#include "tensor/cuda/linear.h"

#include <assert.h>

/* Tiles of a result: rows, columns, threads of a block, and what share of the multiply-adds that its multiprocessor could do
 * such a block reaches, alone on it and among others: reckoned from instructions for a multiply-add, warps that hide latencies,
 * and how often operands are read. Those of `any` size take four numbers at a time one by one. `join`: the tiles whose pieces are
 * joined so. */
#define TILE_LIST(X)                                                \
    X(128x128, 128x128, 128, 128, 256, false, 0.85, 0.95)           \
    X(64x96, 64x96, 64, 96, 128, false, 0.70, 0.90)                 \
    X(64x96_twice, 64x96_twice, 64, 96, 256, false, 0.85, 0.85)     \
    X(64x64, 64x64, 64, 64, 128, false, 0.65, 0.82)                 \
    X(32x32, 32x32, 32, 32, 128, false, 0.40, 0.60)                 \
    X(64x64_any, 64x64_any, 64, 64, 128, true, 0.50, 0.70)          \
    X(32x32_any, 32x32_any, 32, 32, 128, true, 0.30, 0.50)

/* On tensor cores (linear_cores.cu) what a block reaches goes by how often it reads shared memory: one word for so many products. */
#define CORES_LIST(X, precision)                                            \
    X(128x128_##precision, 128x128, 128, 128, 256, false, 0.60, 0.90)       \
    X(64x64_##precision, 64x64, 64, 64, 128, false, 0.40, 0.70)             \
    X(32x32_##precision, 32x32, 32, 32, 128, false, 0.20, 0.35)             \
    X(64x64_any_##precision, 64x64_any, 64, 64, 128, true, 0.20, 0.35)

/* The same for three products in the place of one, measured (dev/gpu/linear_lab.cu), beside the best there is. */
#define FLOATS_LIST(X)                                   \
    X(64x96_fp32, 64x96, 64, 96, 128, false, 0.54, 0.81) \
    X(64x64_fp32, 64x64, 64, 64, 128, false, 0.52, 0.70) \
    X(32x32_fp32, 32x32, 32, 32, 128, false, 0.30, 0.52) \
    X(64x64_any_fp32, 64x64_any, 64, 64, 128, true, 0.38, 0.60)

typedef struct tile_kind {
    int         rows, columns, threads;
    bool        any;
    double      alone, crowd;
    const char *y, *dx, *dw, *join;
} tile_kind;

enum { MOST_TILES = 8, MULTIPROCESSORS = 132, JOIN_THREADS = 256 };

#define X(name, joined, rows, columns, threads, any, alone, crowd) \
    {rows,                                                         \
     columns,                                                      \
     threads,                                                      \
     any,                                                          \
     alone,                                                        \
     crowd,                                                        \
     "esper_linear_y_" #name,                                      \
     "esper_linear_dx_" #name,                                     \
     "esper_linear_dw_" #name,                                     \
     "esper_linear_join_" #joined},

/* Behind the last one there is nothing. */
static const tile_kind without_cores[MOST_TILES] = {TILE_LIST(X)};
static const tile_kind tiles[][MOST_TILES] = {
    [ESPER_FP32] = {FLOATS_LIST(X)},
    [ESPER_TF32] = {CORES_LIST(X, tf32)},
    [ESPER_BF16] = {CORES_LIST(X, bf16)},
};
#undef X

typedef struct layer {
    int              I, O, max_rows;
    const tile_kind *tiles;
} layer;

static layer layer_of(const esper_lane *lane, int max_samples)
{
    int I = lane->in[1].dim[1];
    int64_t rows = lane->in[0].count / I * max_samples;

    assert(rows <= INT32_MAX && lane->in[0].count <= INT32_MAX);
    return (layer){I, lane->in[1].dim[0], (int)rows, lane->cores ? tiles[lane->precision] : without_cores};
}

static bool is_aligned(const esper_view *view)
{
    return (uintptr_t)view->data % 16 == 0 && (uintptr_t)view->grad % 16 == 0;
}

/* Four numbers at a time can be loaded and stored. */
static bool fits_wide(const esper_lane *lane, const layer *at)
{
    return at->I % 4 == 0 && at->O % 4 == 0 && is_aligned(&lane->in[0]) && is_aligned(&lane->in[1]) &&
           is_aligned(&lane->out[0]) && (uintptr_t)lane->scratch % 16 == 0;
}

static int tiles_in(const tile_kind *tile, int m, int n)
{
    return esper_cuda_divide(m, tile->rows) * esper_cuda_divide(n, tile->columns);
}

/* Multiply-adds of the multiprocessor that has most to do, for each k, at full speed. */
static double cost_of(const tile_kind *tile, int blocks)
{
    int most = esper_cuda_divide(blocks, MULTIPROCESSORS);

    return (double)most * tile->rows * tile->columns / (most > 1 ? tile->crowd : tile->alone);
}

/* The tiles for y or dx. */
static const tile_kind *tile_for(const layer *at, int m, int n, bool wide)
{
    const tile_kind *best = NULL;

    for (const tile_kind *tile = at->tiles; tile->rows > 0; tile++)
        if (tile->any == !wide &&
            (best == NULL || cost_of(tile, tiles_in(tile, m, n)) < cost_of(best, tiles_in(best, m, n))))
            best = tile;
    return best;
}

static int pieces_of(const tile_kind *tile, const layer *at)
{
    return esper_linear_pieces(tiles_in(tile, at->O, at->I), at->max_rows);
}

static double cost_of_dw(const tile_kind *tile, const layer *at)
{
    const double join = 8; /* multiply-adds that there would be time for while an element is written and read again */
    int pieces = pieces_of(tile, at);

    return cost_of(tile, pieces * tiles_in(tile, at->O, at->I)) * esper_linear_piece_rows(pieces, at->max_rows) +
           (pieces > 1 ? join * pieces * at->O * at->I / MULTIPROCESSORS : 0);
}

static const tile_kind *tile_for_dw(const layer *at, bool wide)
{
    const tile_kind *best = NULL;

    for (const tile_kind *tile = at->tiles; tile->rows > 0; tile++)
        if (tile->any == !wide && (best == NULL || cost_of_dw(tile, at) < cost_of_dw(best, at)))
            best = tile;
    return best;
}

static int forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    layer at = layer_of(lane, lane->max_samples);
    const tile_kind *tile = tile_for(&at, at.max_rows, at.O, fits_wide(lane, &at));

    (void)part;
    launches_out[0] = (esper_cuda_launch){tile->y, tile->threads, tiles_in(tile, at.max_rows, at.O), 0};
    return 1;
}

static int backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    layer at = layer_of(lane, lane->max_samples);
    bool wide = fits_wide(lane, &at);
    int n = 0;

    (void)part;
    if (lane->in[0].grad != NULL) {
        const tile_kind *tile = tile_for(&at, at.max_rows, at.I, wide);

        launches_out[n++] = (esper_cuda_launch){tile->dx, tile->threads, tiles_in(tile, at.max_rows, at.I), 0};
    }
    if (lane->in[1].grad != NULL || lane->in[2].grad != NULL) {
        const tile_kind *tile = tile_for_dw(&at, wide);
        int pieces = pieces_of(tile, &at);
        int64_t elements = (int64_t)at.O * at.I + at.O;

        launches_out[n++] = (esper_cuda_launch){tile->dw, tile->threads, pieces * tiles_in(tile, at.O, at.I), 0};
        if (pieces > 1)
            launches_out[n++] =
                (esper_cuda_launch){tile->join, JOIN_THREADS, esper_cuda_divide(elements, JOIN_THREADS), 0};
    }
    return n;
}

/* Addresses are not known yet: enough for either kind of tiles. */
static size_t scratch(const esper_lane *lane, bool is_backward, int max_samples)
{
    layer at = layer_of(lane, max_samples);
    int pieces = 1;

    for (int wide = 0; is_backward && wide < 2; wide++) {
        int n = pieces_of(tile_for_dw(&at, wide), &at);

        pieces = n > pieces ? n : pieces;
    }
    return pieces > 1 ? (size_t)pieces * ((size_t)at.O * (size_t)at.I + (size_t)at.O) * sizeof(float) : 0;
}

const esper_cuda_op esper_cuda_linear = {.forward = forward, .backward = backward, .scratch = scratch};
