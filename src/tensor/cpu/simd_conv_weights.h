/* Internal. The gradient of a convolution's weights from one block of sixteen samples (simd_conv.h).
 *
 *     dw[o][c][ky][kx] = sum over pixels p and samples of g[o][p] x[c][p + (ky, kx) - pad]
 *
 * In two ways, chosen by shape:
 *     dot products      vectors along the samples, 4 output channels by 3 taps at once; each sum ends with a sum over samples,
 *                       which costs little when there are many pixels
 *     outer products    a piece of g is transposed, so that vectors are along the output channels and values of x are loaded
 *                       into a whole vector; no sums over samples, so good for small images, if the transposed piece is used often */
#ifndef ESPER_TENSOR_CPU_SIMD_CONV_WEIGHTS_H
#define ESPER_TENSOR_CPU_SIMD_CONV_WEIGHTS_H

#include <stdint.h>

#include "tensor/cpu/simd_conv.h"

/* ------------------------------------------------------------------------------------------------ dot products */

/* A tile is the products of 4 planes of g with 3 taps kx, kx+1, kx+2 (streams) of one channel of x. */
enum { SIMD_DOT_OUT = 4, SIMD_DOT_STREAMS = 3, SIMD_DOT_PARTS = 2, SIMD_DOT_PIXELS = 64, SIMD_DOT_RUNS = 16 };

/* Columns of the image in which streams begin .. end-1 are inside of it. */
typedef struct simd_dot_run {
    int       begin, end;
    int       n;    /* columns */
    ptrdiff_t x_at; /* floats from where the row begins to the first column of stream 0 */
    size_t    g_at;
} simd_dot_run;

typedef struct simd_dot {
    int           in_c, n_streams, n_rows, n_runs;
    simd_dot_run run[SIMD_DOT_RUNS];
    size_t        x_row, x_channel, g_row, g_channel; /* floats from one to the next */
    size_t        dw_in, dw_channel;                  /* the same of what is written */
    bool          add;
} simd_dot;

typedef simd_vec simd_dot_sums[SIMD_DOT_OUT][SIMD_DOT_STREAMS][SIMD_DOT_PARTS];

/* A single output channel takes the halves of a pixel apart, to have enough sums under way. */
SIMD_INLINE int simd_dot_parts(int m)
{
    return m == 1 && SIMD_VECS > 1 ? SIMD_DOT_PARTS : 1;
}

/* The columns of one run in all rows; m, begin and end are constants where this is inlined. */
SIMD_INLINE void simd_dot_columns(int m, int begin, int end, const simd_dot *d, const simd_dot_run *r, const float *x,
                                  const float *g, simd_dot_sums sum)
{
    const int n_parts = simd_dot_parts(m);

    x += r->x_at;
    g += r->g_at;
    for (int row = 0; row < d->n_rows; row++, x += d->x_row, g += d->g_row)
        for (int at = 0; at < r->n * SIMD_WIDTH; at += n_parts * SIMD_VEC)
            for (int part = 0; part < n_parts; part++) {
                const float *xp = x + at + part * SIMD_VEC, *gp = g + at + part * SIMD_VEC;
                simd_vec seen[SIMD_DOT_STREAMS];

                for (int s = begin; s < end; s++)
                    seen[s] = simd_load(xp + s * SIMD_WIDTH);
                for (int i = 0; i < m; i++) {
                    simd_vec gi = simd_load(gp + (size_t)i * d->g_channel);

                    for (int s = begin; s < end; s++)
                        sum[i][s][part] += gi * seen[s];
                }
            }
}

/* The sum over pixels and samples of one stream, for each of the m output channels. */
SIMD_INLINE simd_quad simd_dot_total(int m, int s, simd_dot_sums sum)
{
    simd_vec whole[SIMD_DOT_OUT];

    for (int i = 0; i < SIMD_DOT_OUT; i++) {
        whole[i] = sum[i < m ? i : 0][s][0];
        if (simd_dot_parts(m) == 2)
            whole[i] += sum[i < m ? i : 0][s][1];
    }
    return simd_sum_four(whole[0], whole[1], whole[2], whole[3]);
}

SIMD_INLINE void simd_dot_run_columns(int m, const simd_dot *d, const simd_dot_run *r, const float *x, const float *g,
                                      simd_dot_sums sum)
{
    if (r->begin == 0 && r->end == 3)
        simd_dot_columns(m, 0, 3, d, r, x, g, sum);
    else if (r->begin == 0 && r->end == 2)
        simd_dot_columns(m, 0, 2, d, r, x, g, sum);
    else if (r->begin == 1 && r->end == 3)
        simd_dot_columns(m, 1, 3, d, r, x, g, sum);
    else if (r->begin == 0 && r->end == 1)
        simd_dot_columns(m, 0, 1, d, r, x, g, sum);
    else if (r->begin == 1 && r->end == 2)
        simd_dot_columns(m, 1, 2, d, r, x, g, sum);
    else
        simd_dot_columns(m, 2, 3, d, r, x, g, sum);
}

/* m output channels with every channel of x. The loop over those is in here so that the compiler keeps the sums in
 * registers: it unrolls short loops early enough only where they are inside of others. */
SIMD_INLINE void simd_dot_channels(int m, const simd_dot *d, const float *x, const float *g, float *dw)
{
    for (int c = 0; c < d->in_c; c++, x += d->x_channel, dw += d->dw_in) {
        simd_dot_sums sum;

        for (int i = 0; i < m; i++)
            for (int s = 0; s < SIMD_DOT_STREAMS; s++)
                sum[i][s][0] = sum[i][s][1] = (simd_vec){0};
        for (int i = 0; i < d->n_runs; i++)
            simd_dot_run_columns(m, d, &d->run[i], x, g, sum);
        for (int s = 0; s < SIMD_DOT_STREAMS; s++) {
            simd_quad total = simd_dot_total(m, s, sum);

            for (int i = 0; i < m && s < d->n_streams; i++) {
                float *to = dw + (size_t)i * d->dw_channel + s;

                *to = d->add ? *to + total[i] : total[i];
            }
        }
    }
}

typedef void simd_dot_function(const simd_dot *d, const float *x, const float *g, float *dw);

#define SIMD_DOT_FUNCTION(m)                                                                                      \
    __attribute__((noinline, unused)) static void simd_dot_##m(const simd_dot *d, const float *x, const float *g, \
                                                               float *dw)                                         \
    {                                                                                                             \
        simd_dot_channels(m, d, x, g, dw);                                                                        \
    }

SIMD_DOT_FUNCTION(1)
SIMD_DOT_FUNCTION(2)
SIMD_DOT_FUNCTION(3)
SIMD_DOT_FUNCTION(4)

/* The runs of columns for taps kx .. kx+n_streams-1. */
SIMD_INLINE void simd_dot_find_runs(const simd_conv *v, int kx, simd_dot *d)
{
    d->n_runs = 0;
    for (int ox = 0; ox < v->out_w; ox++) {
        int begin, end = simd_conv_range(v->kernel, v->pad, v->in_w, ox, &begin);
        simd_dot_run *r = &d->run[d->n_runs];

        begin = begin > kx ? begin - kx : 0;
        end = end < kx + d->n_streams ? end - kx : d->n_streams;
        if (begin >= end)
            continue;
        if (d->n_runs > 0 && r[-1].begin == begin && r[-1].end == end) {
            r[-1].n++;
            continue;
        }
        assert(d->n_runs < SIMD_DOT_RUNS);
        *r = (simd_dot_run){begin, end, 1, (ptrdiff_t)(ox + kx - v->pad) * SIMD_WIDTH, (size_t)ox * SIMD_WIDTH};
        d->n_runs++;
    }
}

/* All channels with one row of taps, from a few rows of the image. */
SIMD_INLINE void simd_dot_all(const simd_conv *v, const simd_dot *d, const float *x, const float *g, float *dw)
{
    static simd_dot_function *const functions[SIMD_DOT_OUT] = {simd_dot_1, simd_dot_2, simd_dot_3, simd_dot_4};
    int n_tiles = (v->out_c + SIMD_DOT_OUT - 1) / SIMD_DOT_OUT;

    for (int tile = 0, o = 0, m; o < v->out_c; tile++, o += m) {
        m = v->out_c / n_tiles + (tile < v->out_c % n_tiles ? 1 : 0);
        functions[m - 1](d, x, g + (size_t)o * d->g_channel, dw + (size_t)o * d->dw_channel);
    }
}

/* Rows oy .. end-1 of the image. */
SIMD_INLINE void simd_dot_rows(const simd_conv *v, int oy, int end, const float *x, const float *g, float *dw, bool add)
{
    simd_dot d = {.in_c = v->in_c, .add = add};

    d.x_row = (size_t)v->in_w * SIMD_WIDTH;
    d.x_channel = simd_conv_in_plane(v);
    d.g_row = (size_t)v->out_w * SIMD_WIDTH;
    d.g_channel = simd_conv_out_plane(v);
    d.dw_in = simd_conv_taps(v);
    d.dw_channel = (size_t)v->in_c * d.dw_in;
    for (int kx = 0; kx < v->kernel; kx += SIMD_DOT_STREAMS) {
        d.n_streams = v->kernel - kx < SIMD_DOT_STREAMS ? v->kernel - kx : SIMD_DOT_STREAMS;
        simd_dot_find_runs(v, kx, &d);
        for (int ky = 0; ky < v->kernel; ky++) {
            int first = oy < v->pad - ky ? v->pad - ky : oy;
            int last = end < v->in_h + v->pad - ky ? end : v->in_h + v->pad - ky;

            d.n_rows = last - first;
            simd_dot_all(v, &d, x + (ptrdiff_t)(first + ky - v->pad) * (ptrdiff_t)d.x_row, g + (size_t)first * d.g_row,
                         dw + ky * v->kernel + kx);
        }
    }
}

static inline void simd_conv_weights_dot(const simd_conv *v, const float *x, const float *g, float *dw, bool add)
{
    int n_rows = SIMD_DOT_PIXELS / v->out_w > 0 ? SIMD_DOT_PIXELS / v->out_w : 1;

    for (int oy = 0; oy < v->out_h; oy += n_rows)
        simd_dot_rows(v, oy, oy + n_rows < v->out_h ? oy + n_rows : v->out_h, x, g, dw, add || oy > 0);
}

/* ------------------------------------------------------------------------------------------------ outer products */

/* A tile is 2 vectors of output channels by 6 channels of x with one tap. */
enum {
    SIMD_OUTER_VECS = 2,
    SIMD_OUTER_OUT = SIMD_OUTER_VECS * SIMD_VEC,
    SIMD_OUTER_IN = 6,
    SIMD_OUTER_PIXELS = 16, /* of the transposed piece: 16 KB with vectors of 8 */
};

/* Transposes 4 x 4 floats, added to what is there or not. */
SIMD_INLINE void simd_turn(const float *from, size_t from_row, float *to, size_t to_row, bool add)
{
    typedef float quad_in_place __attribute__((vector_size(16), aligned(4), may_alias));
    simd_quad r[4], ab, cd, t[4];

    for (int i = 0; i < 4; i++)
        r[i] = *(const quad_in_place *)(from + (size_t)i * from_row);
    ab = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    cd = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    t[0] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    t[1] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    ab = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    cd = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    t[2] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    t[3] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++) {
        quad_in_place *at = (quad_in_place *)(to + (size_t)i * to_row);

        if (add)
            t[i] += *at;
        *at = t[i];
    }
}

/* Where one tap falls: rows of n values each, the pixels and samples of a row side by side. */
typedef struct simd_outer_tap {
    int       n_rows, n;
    ptrdiff_t x_at;
    size_t    g_at;
} simd_outer_tap;

typedef struct simd_outer {
    int             n_taps;
    size_t          x_row, x_channel, g_row; /* floats from one to the next */
    simd_outer_tap tap[SIMD_CONV_TAPS];
} simd_outer;

/* sums (n_c, n_taps, n_v vectors of output channels) of n_c channels of x. n_v and n_c are constants where this is
 * inlined. A single vector takes even and odd values apart, to have as many sums under way. */
SIMD_INLINE void simd_outer_sum(int n_v, int n_c, const simd_outer *d, const float *x, const float *g, float *sums)
{
    const int step = SIMD_OUTER_VECS / n_v;

    for (int t = 0; t < d->n_taps; t++, sums += n_v * SIMD_VEC) {
        const float *xt = x + d->tap[t].x_at, *gt = g + d->tap[t].g_at;
        int n = d->tap[t].n;
        simd_vec sum[SIMD_OUTER_IN][SIMD_OUTER_VECS];

        for (int i = 0; i < n_c; i++)
            sum[i][0] = sum[i][1] = (simd_vec){0};
        for (int row = 0; row < d->tap[t].n_rows; row++, xt += d->x_row, gt += d->g_row)
            for (int k = 0; k < n; k += step) {
                simd_vec g0 = simd_load(gt + k * n_v * SIMD_VEC);
                simd_vec g1 = simd_load(gt + k * n_v * SIMD_VEC + SIMD_VEC);

                for (int i = 0; i < n_c; i++) {
                    const float *xi = xt + (size_t)i * d->x_channel + k;

                    sum[i][0] += simd_all(xi[0]) * g0;
                    sum[i][1] += simd_all(xi[step - 1]) * g1;
                }
            }
        for (int i = 0; i < n_c; i++) {
            float *to = sums + i * d->n_taps * n_v * SIMD_VEC;

            if (n_v == 1)
                sum[i][0] += sum[i][1];
            else
                simd_store(to + SIMD_VEC, sum[i][1]);
            simd_store(to, sum[i][0]);
        }
    }
}

typedef void simd_outer_function(const simd_outer *d, const float *x, const float *g, float *sums);

#define SIMD_OUTER_FUNCTION(n_v, n_c)                                                                           \
    __attribute__((noinline, unused)) static void simd_outer_##n_v##_##n_c(const simd_outer *d, const float *x, \
                                                                           const float *g, float *sums)         \
    {                                                                                                           \
        simd_outer_sum(n_v, n_c, d, x, g, sums);                                                                \
    }

#define SIMD_OUTER_SIZES(X, n_v) X(n_v, 1) X(n_v, 2) X(n_v, 3) X(n_v, 4) X(n_v, 5) X(n_v, 6)

SIMD_OUTER_SIZES(SIMD_OUTER_FUNCTION, 1)
SIMD_OUTER_SIZES(SIMD_OUTER_FUNCTION, 2)

/* Output channels o .. o+n_o-1 of n_rows rows of g, from row oy: (pixel, sample, channel), n_v vectors of channels. */
SIMD_INLINE void simd_outer_turn_g(const simd_conv *v, int oy, int n_rows, int n_o, int n_v, const float *g,
                                   float *turned)
{
    size_t plane = simd_conv_out_plane(v), width = (size_t)(n_v * SIMD_VEC);
    size_t first = (size_t)(oy * v->out_w) * SIMD_WIDTH;
    int n = n_rows * v->out_w * SIMD_WIDTH, o = 0;

    for (; o + 4 <= n_o; o += 4)
        for (int k = 0; k < n; k += 4)
            simd_turn(g + (size_t)o * plane + first + k, plane, turned + (size_t)k * width + o, width, false);
    for (; o < n_v * SIMD_VEC; o++)
        for (int k = 0; k < n; k++)
            turned[(size_t)k * width + o] = o < n_o ? g[(size_t)o * plane + first + k] : 0;
}

/* sums (n_taps, n_v vectors of channels) to dw: n_o rows, dw_row apart, of n_taps values. */
SIMD_INLINE void simd_outer_put(const float *sums, int n_taps, int n_o, int n_v, float *dw, size_t dw_row, bool add)
{
    size_t width = (size_t)(n_v * SIMD_VEC);
    int whole_o = n_o / 4 * 4, whole = n_taps / 4 * 4;

    for (int o = 0; o < whole_o; o += 4)
        for (int t = 0; t < whole; t += 4)
            simd_turn(sums + (size_t)t * width + o, width, dw + (size_t)o * dw_row + t, dw_row, add);
    for (int o = 0; o < n_o; o++)
        for (int t = o < whole_o ? whole : 0; t < n_taps; t++) {
            float *to = dw + (size_t)o * dw_row + t, sum = sums[(size_t)t * width + o];

            *to = add ? *to + sum : sum;
        }
}

/* Where the taps fall in rows oy .. end-1, for pieces of g of n_v vectors. */
SIMD_INLINE void simd_outer_find_taps(const simd_conv *v, int oy, int end, int n_v, simd_outer *d)
{
    size_t width = (size_t)(n_v * SIMD_VEC);

    d->n_taps = 0;
    d->x_row = (size_t)v->in_w * SIMD_WIDTH;
    d->x_channel = simd_conv_in_plane(v);
    d->g_row = (size_t)(v->out_w * SIMD_WIDTH) * width;
    for (int ky = 0; ky < v->kernel; ky++) {
        int y0 = oy < v->pad - ky ? v->pad - ky : oy;
        int y1 = end < v->in_h + v->pad - ky ? end : v->in_h + v->pad - ky;

        for (int kx = 0; kx < v->kernel; kx++) {
            simd_outer_tap *tap = &d->tap[d->n_taps++];
            int x0 = v->pad > kx ? v->pad - kx : 0;
            int x1 = v->out_w < v->in_w + v->pad - kx ? v->out_w : v->in_w + v->pad - kx;

            tap->n_rows = y1 - y0;
            tap->n = (x1 - x0) * SIMD_WIDTH;
            tap->x_at = ((ptrdiff_t)(y0 + ky - v->pad) * v->in_w + x0 + kx - v->pad) * SIMD_WIDTH;
            tap->g_at = (size_t)((y0 - oy) * v->out_w + x0) * SIMD_WIDTH * width;
        }
    }
}

/* Channels of x are cut into tiles of nearly equal size; the larger ones come first. */
SIMD_INLINE int simd_outer_tiles(const simd_conv *v)
{
    return (v->in_c + SIMD_OUTER_IN - 1) / SIMD_OUTER_IN;
}

/* The first channel of a tile. */
SIMD_INLINE int simd_outer_channel(const simd_conv *v, int tile)
{
    int n_tiles = simd_outer_tiles(v), larger = v->in_c % n_tiles;

    return tile * (v->in_c / n_tiles) + (tile < larger ? tile : larger);
}

/* n_o output channels, of which g and dw are the first, by tiles first .. last-1 of channels of x, from rows oy .. end-1. */
static inline void simd_outer_tile(const simd_conv *v, int oy, int end, int n_o, int first, int last, const float *x,
                                   const float *g, float *dw, bool add)
{
#define X(n_v, n_c) simd_outer_##n_v##_##n_c,
    static simd_outer_function *const functions[SIMD_OUTER_VECS][SIMD_OUTER_IN] = {{SIMD_OUTER_SIZES(X, 1)},
                                                                                   {SIMD_OUTER_SIZES(X, 2)}};
#undef X
    float turned[SIMD_OUTER_PIXELS * SIMD_WIDTH * SIMD_OUTER_OUT] __attribute__((aligned(64)));
    float sums[SIMD_OUTER_IN * SIMD_CONV_TAPS * SIMD_OUTER_OUT] __attribute__((aligned(64)));
    int n_v = (n_o + SIMD_VEC - 1) / SIMD_VEC;
    simd_outer d;

    assert(n_o > 0 && n_o <= SIMD_OUTER_OUT && (end - oy) * v->out_w <= SIMD_OUTER_PIXELS);
    simd_outer_find_taps(v, oy, end, n_v, &d);
    simd_outer_turn_g(v, oy, end - oy, n_o, n_v, g, turned);
    for (int tile = first; tile < last; tile++) {
        int c = simd_outer_channel(v, tile), n_c = simd_outer_channel(v, tile + 1) - c;

        functions[n_v - 1][n_c - 1](&d, x + (size_t)c * d.x_channel, turned, sums);
        simd_outer_put(sums, n_c * d.n_taps, n_o, n_v, dw + c * d.n_taps, (size_t)(v->in_c * d.n_taps), add);
    }
}

/* What tiles first .. last-1 of channels of x give: a part of each row of dw. */
static inline void simd_conv_weights_outer(const simd_conv *v, int first, int last, const float *x, const float *g,
                                           float *dw, bool add)
{
    size_t plane = simd_conv_out_plane(v), taps = (size_t)v->in_c * simd_conv_taps(v);
    int n_rows = SIMD_OUTER_PIXELS / v->out_w;

    for (int oy = 0; oy < v->out_h; oy += n_rows)
        for (int o = 0; o < v->out_c; o += SIMD_OUTER_OUT)
            simd_outer_tile(v, oy, oy + n_rows < v->out_h ? oy + n_rows : v->out_h,
                            v->out_c - o < SIMD_OUTER_OUT ? v->out_c - o : SIMD_OUTER_OUT, first, last, x,
                            g + (size_t)o * plane, dw + (size_t)o * taps, add || oy > 0);
}

/* ------------------------------------------------------------------------------------------------ either */

static inline bool simd_conv_weights_can_outer(const simd_conv *v)
{
    return v->out_w <= SIMD_OUTER_PIXELS;
}

/* Which of the two is faster: costs, in parts of a pixel's worth of work, fitted to what dev/kernels/lab measured. A dot
 * product ends with a sum over samples that costs as much as 8 pixels, and is slow with one tap a row; outer products fill
 * whole vectors of output channels, best two at once, and transpose g. */
static inline bool simd_conv_weights_is_outer(const simd_conv *v)
{
    int64_t pixels = v->out_h * v->out_w, taps = v->in_c * v->kernel * v->kernel;
    int64_t filled = (v->out_c + SIMD_VEC - 1) / SIMD_VEC * SIMD_VEC;
    int64_t dot = (v->kernel == 1 ? 25 : 14) * v->out_c * (pixels + 8);
    int64_t outer = (v->out_c > SIMD_VEC ? 13 : 15) * filled * (pixels + 1) + 91 * pixels * v->out_c / taps;

    return simd_conv_weights_can_outer(v) && outer < dot;
}

/* A kernel of one tap without padding sees no neighbours: the image may have any width. One that fits a piece of outer
 * products. */
SIMD_INLINE simd_conv simd_conv_narrow(const simd_conv *v)
{
    simd_conv narrow = *v;
    int pixels = v->out_h * v->out_w, width = SIMD_OUTER_PIXELS;

    while (pixels % width != 0)
        width--;
    narrow.in_w = narrow.out_w = width;
    narrow.in_h = narrow.out_h = pixels / width;
    return narrow;
}

/* Channels of x that part `part` of `parts` begins with, where the gradient of the weights is taken in parts: tiles of outer
 * products; dot products are not parted, and belong to the first. */
static inline int simd_conv_weights_begin(const simd_conv *v, int part, int parts)
{
    simd_conv narrow = v->kernel == 1 ? simd_conv_narrow(v) : *v;

    if (!simd_conv_weights_is_outer(&narrow))
        return part > 0 ? v->in_c : 0;
    return simd_outer_channel(v, simd_outer_tiles(v) * part / parts);
}

/* Parts begin .. end-1 of `parts` of dw (out_c, in_c, k, k) = or += sum over the pixels and samples of g (out_c, out_h, out_w, 16)
 * times what x shows there. No bit depends on the parts. */
static inline void simd_conv_weights_parts(const simd_conv *v, int begin, int end, int parts, const float *x,
                                           const float *g, float *dw, bool add)
{
    simd_conv narrow = v->kernel == 1 ? simd_conv_narrow(v) : *v;
    int n_tiles = simd_outer_tiles(v);

    if (simd_conv_weights_is_outer(&narrow))
        simd_conv_weights_outer(&narrow, n_tiles * begin / parts, n_tiles * end / parts, x, g, dw, add);
    else if (begin == 0)
        simd_conv_weights_dot(v, x, g, dw, add);
}

static inline void simd_conv_weights(const simd_conv *v, const float *x, const float *g, float *dw, bool add)
{
    simd_conv_weights_parts(v, 0, 1, 1, x, g, dw, add);
}

/* The same for channels by themselves: v has one channel in and out, dw is (channels, k, k). */
static inline void simd_depthwise_weights(const simd_conv *v, int channels, const float *x, const float *g, float *dw,
                                          bool add)
{
    size_t in_plane = simd_conv_in_plane(v), out_plane = simd_conv_out_plane(v), taps = simd_conv_taps(v);

    for (size_t c = 0; c < (size_t)channels; c++)
        simd_conv_weights_dot(v, x + c * in_plane, g + c * out_plane, dw + c * taps, add);
}

#endif
