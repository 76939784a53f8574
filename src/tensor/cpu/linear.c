/* Linear layer: y = x w^T + b, for every row of x.
 *
 * Two of the three products, y and the gradient of x, have many rows and share a matrix: w. Their units are tiles of a group
 * of columns and a chunk of rows, chunks of a group following each other, so that a range packs the group's part of w once
 * for all its rows. The third, the gradient of w, is a sum over all rows: its units are tiles of w, which pack their share
 * of both sides a stretch of rows at a time. The bias gradient belongs to the tiles of the first columns. */
#include <string.h>

#include "tensor/cpu/gemm.h"
#include "tensor/ref/ref.h"

enum {
    NARROW_COLS = 64,  /* a group of columns, packed GEMM_K deep: 64 KB */
    WIDE_COLS = 192,   /* 192 KB; rows of x that do not fit the caches are read a third as often */
    CHUNK_ROWS = 256,  /* enough that packing (about 0.3 ns an entry) is lost in the products (9 ns) */
    TILE_ROWS = 128,   /* of the gradient of w: 128 KB packed */
    TILE_COLS = 128,   /* and 128 KB */
    BAND_ROWS = 192,   /* of a tile that goes through all columns: its rows are packed once for all of them */
    BAND_COLS = 64,    /* a band is shared by threads in pieces of so many columns */
    MOST_ROWS = BAND_ROWS > TILE_ROWS ? BAND_ROWS : TILE_ROWS,
    LEAST_TILE = 60,   /* rows worth a tile of their own */
    TILES_TOGETHER = 4 /* their number is a multiple of that where it can be: threads end together */
};

/* c = a b + bias, or c += a b; a (rows, depth), c (rows, cols). */
typedef struct product {
    size_t       rows, cols, depth;
    const float *a, *b;
    size_t       group;  /* columns that are packed together: NARROW_COLS or WIDE_COLS */
    bool         turned; /* b is (cols, depth) instead of (depth, cols) */
    const float *bias;   /* (cols) or NULL */
    float       *c;
    bool         add;
} product;

static size_t inputs(const esper_lane *lane)
{
    return (size_t)lane->in[1].dim[1];
}

static size_t outputs(const esper_lane *lane)
{
    return (size_t)lane->in[1].dim[0];
}

/* Rows of x in the batch. */
static size_t rows_of(const esper_lane *lane)
{
    return (size_t)lane->pass->n_samples * (size_t)lane->in[0].count / inputs(lane);
}

static size_t parts_of(size_t n, size_t size)
{
    return (n + size - 1) / size;
}

/* Where part i of n things in `parts` begins: parts of about equal size, multiples of `step`. */
static size_t part_begin(size_t n, size_t parts, size_t step, size_t i)
{
    return gemm_least(n, parts_of(parts_of(n, parts), step) * step * i);
}

/* ------------------------------------------------------------------------------------------------ y and dx */

static void pack_group(const product *p, size_t col, size_t cols, size_t k, size_t n_k, float *packed)
{
    if (p->turned)
        gemm_pack_turned(cols, n_k, p->b + col * p->depth + k, p->depth, packed);
    else
        gemm_pack_rows(cols, n_k, p->b + k * p->cols + col, p->cols, packed);
}

/* Rows begin .. end-1 of the group of columns that begins at `col`. */
static void multiply_group(const product *p, size_t col, size_t begin, size_t end)
{
    float packed[GEMM_K * WIDE_COLS] __attribute__((aligned(64)));
    size_t cols = gemm_least(p->cols - col, p->group);
    gemm_left a = {p->a + begin * p->depth, p->depth, 1};
    gemm_out c = {.to = p->c + begin * p->cols + col, .row = p->cols};

    if (p->bias != NULL)
        c.base = p->bias + col;
    if (p->add)
        c = gemm_out_more(c);
    for (size_t k = 0; k < p->depth; k += GEMM_K) {
        size_t n_k = gemm_least(p->depth - k, GEMM_K);

        pack_group(p, col, cols, k, n_k, packed);
        gemm_block(end - begin, cols, n_k, gemm_left_at(a, 0, k), packed, c);
        c = gemm_out_more(c);
    }
}

static void multiply(const product *p, int begin, int end)
{
    size_t chunks = parts_of(p->rows, CHUNK_ROWS);

    for (size_t unit = (size_t)begin, next; unit < (size_t)end; unit = next) {
        size_t group = unit / chunks, first = unit % chunks;

        next = gemm_least((group + 1) * chunks, (size_t)end);
        multiply_group(p, group * p->group, part_begin(p->rows, chunks, GEMM_ROWS, first),
                       part_begin(p->rows, chunks, GEMM_ROWS, first + next - unit));
    }
}

static void forward(const esper_lane *lane, size_t group, int begin, int end)
{
    product p = {
        .group = group,
        .rows = rows_of(lane),
        .cols = outputs(lane),
        .depth = inputs(lane),
        .a = lane->in[0].data,
        .b = lane->in[1].data,
        .turned = true,
        .bias = lane->in[2].data,
        .c = lane->out[0].data,
    };

    multiply(&p, begin, end);
}

static int forward_units(const esper_lane *lane, size_t group)
{
    return (int)(parts_of(outputs(lane), group) * parts_of(rows_of(lane), CHUNK_ROWS));
}

static void backward_x(const esper_lane *lane, size_t group, int begin, int end)
{
    product p = {
        .group = group,
        .rows = rows_of(lane),
        .cols = inputs(lane),
        .depth = outputs(lane),
        .a = lane->out[0].grad,
        .b = lane->in[1].data,
        .c = lane->in[0].grad,
        .add = lane->in[0].add,
    };

    multiply(&p, begin, end);
}

static int backward_x_units(const esper_lane *lane, size_t group)
{
    return lane->in[0].grad == NULL ? 0 : (int)(parts_of(inputs(lane), group) * parts_of(rows_of(lane), CHUNK_ROWS));
}

/* ------------------------------------------------------------------------------------------------ dw and db */

/* A tile of w: rows begin .. row_end-1, columns col .. col_end-1. */
typedef struct tile {
    size_t row, row_end, col, col_end;
} tile;

static size_t tiles_across(const esper_lane *lane, bool bands)
{
    return parts_of(inputs(lane), bands ? BAND_COLS : TILE_COLS);
}

/* Rows of tiles: as few as possible, since each packs all of x, but enough that threads end together. */
static size_t tiles_down(const esper_lane *lane, bool bands)
{
    size_t rows = outputs(lane), least = parts_of(rows, bands ? BAND_ROWS : TILE_ROWS), most = rows / LEAST_TILE;

    if ((!bands && tiles_across(lane, bands) >= TILES_TOGETHER) || least >= most)
        return least;
    return gemm_least(parts_of(least, TILES_TOGETHER) * TILES_TOGETHER, most);
}

/* Units begin .. end-1, which lie side by side. */
static tile tile_of(const esper_lane *lane, bool bands, size_t begin, size_t end)
{
    size_t across = tiles_across(lane, bands), down = tiles_down(lane, bands);
    size_t y = begin / across;

    return (tile){
        .row = part_begin(outputs(lane), down, GEMM_ROWS, y),
        .row_end = part_begin(outputs(lane), down, GEMM_ROWS, y + 1),
        .col = part_begin(inputs(lane), across, GEMM_COLS, begin - y * across),
        .col_end = part_begin(inputs(lane), across, GEMM_COLS, end - y * across),
    };
}

/* The packed rows of a tile with up to TILE_COLS columns of x, n_k rows of which begin at `from`. */
static void add_columns(size_t rows, size_t cols, size_t n_k, const float *left, const float *from, size_t from_row,
                        gemm_out c)
{
    float right[GEMM_K * TILE_COLS] __attribute__((aligned(64)));

    gemm_pack_rows(cols, n_k, from, from_row, right);
    for (size_t j = 0; j < cols; j += GEMM_COLS)
        for (size_t i = 0; i < rows; i += GEMM_ROWS)
            gemm_strip(gemm_least(rows - i, GEMM_ROWS), gemm_least(cols - j, GEMM_COLS), n_k,
                       (gemm_left){left + i * n_k, 1, GEMM_ROWS}, right + j * n_k, gemm_out_at(c, i, j));
}

/* Rows k .. k+n_k-1 of x and of the gradient of y into a tile of the gradient of w. */
static void add_products(const esper_lane *lane, tile t, size_t k, size_t n_k, gemm_out c)
{
    float left[GEMM_K * (MOST_ROWS + GEMM_ROWS)] __attribute__((aligned(64)));
    const float *x = lane->in[0].data, *g = lane->out[0].grad;
    size_t I = inputs(lane), O = outputs(lane), rows = t.row_end - t.row;

    gemm_pack_left(rows, n_k, g + k * O + t.row, O, left);
    for (size_t col = t.col; col < t.col_end; col += TILE_COLS)
        add_columns(rows, gemm_least(t.col_end - col, TILE_COLS), n_k, left, x + k * I + col, I,
                    gemm_out_at(c, 0, col - t.col));
}

/* Rows k .. k+n_k-1 of the gradient of y into the sums of its columns, in float and then in double. */
static void add_to_bias(const esper_lane *lane, tile t, size_t k, size_t n_k, double *sum)
{
    size_t O = outputs(lane), n = t.row_end - t.row;
    const float *g = (const float *)lane->out[0].grad + k * O + t.row;
    float part[MOST_ROWS + GEMM_ROWS] = {0};

    for (size_t r = 0; r < n_k; r++, g += O)
        for (size_t j = 0; j < n; j++)
            part[j] += g[j];
    for (size_t j = 0; j < n; j++)
        sum[j] += (double)part[j];
}

/* A tile of w and, where it is of the first columns, its share of b: both from the same rows while they are at hand. */
static void put_tile(const esper_lane *lane, tile t)
{
    const esper_view *w = &lane->in[1], *b = &lane->in[2];
    size_t I = inputs(lane), rows = rows_of(lane);
    gemm_out c = {.row = I};
    bool has_bias = b->grad != NULL && t.col == 0;
    double sum[MOST_ROWS + GEMM_ROWS] = {0};

    if (w->grad != NULL)
        c.to = (float *)w->grad + t.row * I + t.col;
    if (w->add)
        c = gemm_out_more(c);
    for (size_t k = 0; k < rows; k += GEMM_K) {
        size_t n_k = gemm_least(rows - k, GEMM_K);

        if (w->grad != NULL)
            add_products(lane, t, k, n_k, c);
        if (has_bias)
            add_to_bias(lane, t, k, n_k, sum);
        c = gemm_out_more(c);
    }
    for (size_t j = 0; j < t.row_end - t.row && has_bias; j++)
        grad_put(b, (float *)b->grad + t.row + j, (float)sum[j]);
}

/* Units are tiles of w; those of a band are computed in one go. */
static void backward_w_b(const esper_lane *lane, bool bands, int begin, int end)
{
    size_t across = tiles_across(lane, bands);

    for (size_t unit = (size_t)begin, next; unit < (size_t)end; unit = next) {
        next = bands ? gemm_least((unit / across + 1) * across, (size_t)end) : unit + 1;
        tile t = tile_of(lane, bands, unit, next);

        if (t.row != t.row_end && t.col != t.col_end)
            put_tile(lane, t);
    }
}

static int backward_w_b_units(const esper_lane *lane, bool bands)
{
    return (int)(tiles_down(lane, bands) * tiles_across(lane, bands));
}

/* ------------------------------------------------------------------------------------------------ both ways */

/* One way of a phase: the kernel and its units, with what it passes on. */
#define WAY(way, kernel, setting)                               \
    static void way(const esper_lane *lane, int begin, int end) \
    {                                                           \
        kernel(lane, setting, begin, end);                      \
    }                                                           \
                                                                \
    static int way##_units(const esper_lane *lane)              \
    {                                                           \
        return kernel##_units(lane, setting);                   \
    }

WAY(forward_narrow, forward, NARROW_COLS)
WAY(forward_wide, forward, WIDE_COLS)
WAY(backward_x_narrow, backward_x, NARROW_COLS)
WAY(backward_x_wide, backward_x, WIDE_COLS)
WAY(backward_w_tiles, backward_w_b, false)
WAY(backward_w_bands, backward_w_b, true)

static int width(const esper_lane *lane)
{
    return (int)(inputs(lane) > outputs(lane) ? inputs(lane) : outputs(lane));
}

static const esper_ways ways_forward[] = {
    {0, ESPER_WORK_LINEAR_Y, width, {forward_wide, forward_wide_units}},
    {.width = NULL},
};

static const esper_ways ways_backward[] = {
    {0, ESPER_WORK_LINEAR_DX, width, {backward_x_wide, backward_x_wide_units}},
    {1, ESPER_WORK_LINEAR_DW, width, {backward_w_bands, backward_w_bands_units}},
    {.width = NULL},
};

const esper_op_kernels ESPER_OP_KERNELS(linear) = {
    .forward = {{forward_narrow, forward_narrow_units}},
    .backward = {{backward_x_narrow, backward_x_narrow_units}, {backward_w_tiles, backward_w_tiles_units}},
    .ways_forward = ways_forward,
    .ways_backward = ways_backward,
};
