/* Convolution: stride 1, square kernel, zero padding, groups.
 *
 *     y[o][p] = sum over taps q of w[o][q] seen[q][p]        a tap is (channel of the group, ky, kx), p a pixel
 *
 * where seen[q][p] is what tap q sees from pixel p: zero outside of the image. Tiles of `seen` are gathered on the stack
 * and multiplied; it is never made as a whole. The gradient of x is the same product with the roles turned (each pixel of
 * x looks at the outputs that used it), and the gradient of w is the incoming gradient times `seen`.
 *
 * Rejected: adding one shifted row after the other to y. It needs no tiles, but at 8 x 8 pixels and less, where half of
 * the work is, a row is shorter than a vector. */
#include <string.h>

#include "tensor/cpu/matmul.h"

/* A tile is 16 KB (32 KB in double): it stays in the first cache while all output channels use it. */
enum { TILE_TAPS = 32, TILE_PIXELS = 128, TILE_CHANNELS = 64 };

_Static_assert(TILE_PIXELS % PANEL_COLS == 0, "product_add reads whole panels of a tile");

typedef struct conv {
    int kernel, pad, groups;
    int in_c, out_c; /* channels of one group */
    int in_h, in_w, out_h, out_w;
    size_t in_plane, out_plane; /* pixels of one channel */
    size_t taps;                /* of one output channel */
} conv;

/* How one image is seen from the pixels of another. */
typedef struct sight {
    int kernel, pad;
    int sign;     /* +1: outputs look at inputs; -1: inputs look at the outputs that used them */
    int h, w;     /* of the image looked at */
    int from_w;   /* of the image looked from */
    size_t plane; /* pixels of one channel of the image looked at */
} sight;

static conv conv_of(const esper_lane *lane)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1], *y = &lane->out[0];
    conv v = {.kernel = w->dim[2], .pad = lane->attr.conv.pad, .groups = lane->attr.conv.groups};

    v.in_c = x->dim[0] / v.groups;
    v.out_c = y->dim[0] / v.groups;
    v.in_h = x->dim[1];
    v.in_w = x->dim[2];
    v.out_h = y->dim[1];
    v.out_w = y->dim[2];
    v.in_plane = (size_t)v.in_h * (size_t)v.in_w;
    v.out_plane = (size_t)v.out_h * (size_t)v.out_w;
    v.taps = (size_t)v.in_c * (size_t)(v.kernel * v.kernel);
    return v;
}

static int clamp_int(int value, int low, int high)
{
    return value < low ? low : value > high ? high : value;
}

/* The smaller of what is left and the size of a tile. */
static int at_most(size_t left, int size)
{
    return left < (size_t)size ? (int)left : size;
}

/* n pixels of a row, the first of them at `first`; zeros left and right of the image. */
static void see_row(const real *row, int width, int first, int n, real *seen)
{
    int begin = clamp_int(-first, 0, n);
    int end = clamp_int(width - first, begin, n);

    for (int i = 0; i < begin; i++)
        seen[i] = 0;
    for (int i = begin; i < end; i++)
        seen[i] = row[first + i];
    for (int i = end; i < n; i++)
        seen[i] = 0;
}

/* What taps tap .. tap+n_taps-1 see from pixels pixel .. pixel+n_pixels-1 of one sample: one row of the tile for each tap. */
static void look(const sight *s, const real *planes, size_t tap, int n_taps, size_t pixel, int n_pixels, real *tile)
{
    size_t kk = (size_t)(s->kernel * s->kernel);
    int y0 = (int)(pixel / (size_t)s->from_w), x0 = (int)(pixel % (size_t)s->from_w);

    for (int q = 0; q < n_taps; q++, tap++, tile += TILE_PIXELS) {
        const real *plane = planes + tap / kk * s->plane;
        int ky = (int)(tap % kk) / s->kernel, kx = (int)(tap % kk) % s->kernel;
        int x = x0, y = y0 + s->sign * (ky - s->pad);

        for (int p = 0, n; p < n_pixels; p += n, x = 0, y++) {
            n = at_most((size_t)(n_pixels - p), s->from_w - x);
            if (y < 0 || y >= s->h)
                memset(tile + p, 0, (size_t)n * sizeof(real));
            else
                see_row(plane + (size_t)y * (size_t)s->w, s->w, x + s->sign * (kx - s->pad), n, tile + p);
        }
    }
}

/* Zeros after the last pixel of each row of a tile. */
static void pad_rows(real *tile, int n_rows, int n_pixels)
{
    for (int i = 0; i < n_rows; i++)
        memset(tile + i * TILE_PIXELS + n_pixels, 0, (size_t)(TILE_PIXELS - n_pixels) * sizeof(real));
}

/* out (rows x pixels) += weights times what is seen; the weight of (row, tap) is w[row * w_row + channel * w_channel + ...]
 * where the tap belongs to the channel. */
static void see_and_add(const sight *s, const real *planes, size_t n_taps, size_t n_pixels, const real *w, size_t w_row,
                        size_t w_channel, int rows, real *out)
{
    size_t kk = (size_t)(s->kernel * s->kernel);
    real tile[TILE_TAPS * TILE_PIXELS];
    size_t at[TILE_TAPS];

    for (size_t tap = 0; tap < n_taps; tap += TILE_TAPS) {
        int taps = at_most(n_taps - tap, TILE_TAPS);

        for (size_t q = 0; q < (size_t)taps; q++)
            at[q] = (tap + q) / kk * w_channel + (tap + q) % kk;
        for (size_t pixel = 0; pixel < n_pixels; pixel += TILE_PIXELS) {
            int pixels = at_most(n_pixels - pixel, TILE_PIXELS);

            look(s, planes, tap, taps, pixel, pixels, tile);
            pad_rows(tile, taps, pixels);
            product_add(rows, pixels, taps, (left_side){w, w_row, at}, tile, TILE_PIXELS, out + pixel, n_pixels);
        }
    }
}

static void forward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0], *y = &lane->out[0];
    const real *w = lane->in[1].data;
    conv v = conv_of(lane);
    sight s = {v.kernel, v.pad, 1, v.in_h, v.in_w, v.out_w, v.in_plane};
    size_t kk = (size_t)(v.kernel * v.kernel);

    for (int n = begin; n < end; n++) {
        memset(data_at(y, n), 0, (size_t)y->count * sizeof(real));
        for (int g = 0; g < v.groups; g++) {
            size_t in = (size_t)g * (size_t)v.in_c, out = (size_t)g * (size_t)v.out_c;

            see_and_add(&s, data_at(x, n) + in * v.in_plane, v.taps, v.out_plane, w + out * v.taps, v.taps, kk, v.out_c,
                        data_at(y, n) + out * v.out_plane);
        }
    }
}

static void backward_x(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0], *y = &lane->out[0];
    const real *w = lane->in[1].data;
    conv v = conv_of(lane);
    sight s = {v.kernel, v.pad, -1, v.out_h, v.out_w, v.in_w, v.out_plane};
    size_t kk = (size_t)(v.kernel * v.kernel);

    if (x->grad == NULL)
        return;
    for (int n = begin; n < end; n++) {
        if (!x->add)
            memset(grad_at(x, n), 0, (size_t)x->count * sizeof(real));
        for (int g = 0; g < v.groups; g++) {
            size_t in = (size_t)g * (size_t)v.in_c, out = (size_t)g * (size_t)v.out_c;

            see_and_add(&s, grad_at(y, n) + out * v.out_plane, (size_t)v.out_c * kk, v.in_plane, w + out * v.taps, kk,
                        v.taps, v.in_c, grad_at(x, n) + in * v.in_plane);
        }
    }
}

/* Stretches of pixels of all samples, taken as one long row, in tiles. */
typedef struct stretch {
    size_t sample, pixel;
    int n, at; /* pixels, and where they go in the tile */
} stretch;

/* The next stretch of a tile; false when the tile is full or the samples are used up. Begin with {0} in each tile. */
static bool next_stretch(const conv *v, size_t tile_begin, size_t n_pixels, stretch *next)
{
    size_t at = tile_begin + (size_t)(next->at + next->n);
    int room = TILE_PIXELS - next->at - next->n;

    if (room == 0 || at == n_pixels)
        return false;
    next->at += next->n;
    next->sample = at / v->out_plane;
    next->pixel = at % v->out_plane;
    next->n = at_most(v->out_plane - next->pixel, room);
    return true;
}

/* Adds to the weights' gradient of output channels o .. o+rows-1, all of one group, what one tile of pixels gives. */
static void add_weights(const esper_lane *lane, const conv *v, size_t tile_begin, size_t n_pixels, int o, int rows)
{
    const esper_view *x = &lane->in[0], *y = &lane->out[0];
    size_t first_in = (size_t)(o / v->out_c) * (size_t)v->in_c * v->in_plane;
    int used = at_most(n_pixels - tile_begin, TILE_PIXELS);
    real *dw = (real *)lane->in[1].grad + (size_t)o * v->taps;
    real seen[TILE_TAPS * TILE_PIXELS], g[TILE_CHANNELS * TILE_PIXELS];
    sight s = {v->kernel, v->pad, 1, v->in_h, v->in_w, v->out_w, v->in_plane};

    for (stretch part = {0}; next_stretch(v, tile_begin, n_pixels, &part);)
        for (int i = 0; i < rows; i++)
            memcpy(g + i * TILE_PIXELS + part.at,
                   grad_at(y, (int)part.sample) + (size_t)(o + i) * v->out_plane + part.pixel,
                   (size_t)part.n * sizeof(real));
    pad_rows(g, rows, used);
    for (size_t tap = 0; tap < v->taps; tap += TILE_TAPS) {
        int taps = at_most(v->taps - tap, TILE_TAPS);

        for (stretch part = {0}; next_stretch(v, tile_begin, n_pixels, &part);)
            look(&s, data_at(x, (int)part.sample) + first_in, tap, taps, part.pixel, part.n, seen + part.at);
        pad_rows(seen, taps, used);
        product_add_rows(rows, taps, TILE_PIXELS, g, TILE_PIXELS, seen, TILE_PIXELS, dw + tap, v->taps);
    }
}

/* Units are output channels. */
static void backward_w(const esper_lane *lane, int begin, int end)
{
    const esper_view *w = &lane->in[1];
    conv v = conv_of(lane);
    size_t n_pixels = (size_t)lane->pass->n_samples * v.out_plane;
    int rows;

    if (w->grad == NULL)
        return;
    if (!w->add)
        memset((real *)w->grad + (size_t)begin * v.taps, 0, (size_t)(end - begin) * v.taps * sizeof(real));
    for (int o = begin; o < end; o += rows) {
        int group_end = (o / v.out_c + 1) * v.out_c;

        rows = at_most((size_t)((group_end < end ? group_end : end) - o), TILE_CHANNELS);
        for (size_t tile = 0; tile < n_pixels; tile += TILE_PIXELS)
            add_weights(lane, &v, tile, n_pixels, o, rows);
    }
}

const esper_op_kernels ESPER_OP_KERNELS(conv2d) = {
    .forward = {{forward, NULL}},
    .backward = {{backward_x, NULL}, {backward_w, units_of_channels}},
};
