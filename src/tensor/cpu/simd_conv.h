/* Internal. Convolution over one block of sixteen samples (simd.h): stride 1, square kernel, zero padding, one group.
 *
 *     forward    y[o][p] = sum over taps of w[o][c][ky][kx] x[c][p + (ky, kx) - pad]; the gradient of x is one as well
 *     weights    dw[o][c][ky][kx] = sum over pixels and samples of g[o][p] x[c][p + (ky, kx) - pad]
 *
 * Forward keeps a tile of output channels of one pixel, all its samples, in registers while it walks over the taps: each
 * weight is loaded into a whole vector and used for every vector of the pixel. At the edge of the image fewer taps
 * are walked: there is no halo, and nothing is multiplied with padding. */
#ifndef ESPER_TENSOR_CPU_SIMD_CONV_H
#define ESPER_TENSOR_CPU_SIMD_CONV_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "tensor/cpu/simd.h"

typedef struct simd_conv {
    int in_c, out_c; /* channels of one group */
    int kernel, pad;
    int in_h, in_w, out_h, out_w;
} simd_conv;

enum {
    SIMD_CONV_TAPS = 49, /* of a kernel of 7 x 7, the largest */
    SIMD_CONV_TILE = 12 / SIMD_VECS, /* output channels of a tile, at most: 12 vectors of sums */
    SIMD_CONV_PIECE = 256,            /* pixels, of all channels together, that are copied for a kernel of one tap */
    SIMD_CONV_USES = 24,              /* output channels from which on copying them pays */
    SIMD_CONV_STEP = 32,              /* channels of x at a time where they are split: 18 KB seen by a pixel, 9 taps */
    SIMD_CONV_SUMS = 8,               /* sums that must be under way at once to hide the latency of one */
};

/* Floats of one channel of x, of one channel of y, and weights between two channels. */
SIMD_INLINE size_t simd_conv_in_plane(const simd_conv *v)
{
    return (size_t)v->in_h * (size_t)v->in_w * SIMD_WIDTH;
}

SIMD_INLINE size_t simd_conv_out_plane(const simd_conv *v)
{
    return (size_t)v->out_h * (size_t)v->out_w * SIMD_WIDTH;
}

SIMD_INLINE size_t simd_conv_taps(const simd_conv *v)
{
    return (size_t)(v->kernel * v->kernel);
}

/* ------------------------------------------------------------------------------------------------ packed weights */

/* Output channels are cut into tiles of nearly equal size; the larger ones come first. */
SIMD_INLINE int simd_conv_tiles(int out_c)
{
    return (out_c + SIMD_CONV_TILE - 1) / SIMD_CONV_TILE;
}

SIMD_INLINE int simd_conv_tile_size(int out_c, int tile)
{
    int n_tiles = simd_conv_tiles(out_c);

    return out_c / n_tiles + (tile < out_c % n_tiles ? 1 : 0);
}

/* Packed weights are [tile][c][tap][channel of the tile]; weight (o, c, tap) is w[o * w_out + c * w_in + tap], taps
 * counted from the last one when turned. */
static inline void simd_conv_pack_any(const simd_conv *v, const float *w, size_t w_out, size_t w_in, bool turned,
                                      float *packed)
{
    int taps = v->kernel * v->kernel;

    for (int tile = 0, o = 0, m; o < v->out_c; tile++, o += m) {
        m = simd_conv_tile_size(v->out_c, tile);
        for (int c = 0; c < v->in_c; c++)
            for (int tap = 0; tap < taps; tap++)
                for (int i = 0; i < m; i++)
                    *packed++ = w[(size_t)(o + i) * w_out + (size_t)c * w_in + (size_t)(turned ? taps - 1 - tap : tap)];
    }
}

/* Weights (out_c, in_c, k, k) in the order in which simd_conv_forward reads them. */
static inline void simd_conv_pack(const simd_conv *v, const float *w, float *packed)
{
    size_t taps = simd_conv_taps(v);

    simd_conv_pack_any(v, w, (size_t)v->in_c * taps, taps, false, packed);
}

/* The gradient of x is a convolution of the incoming gradient: channels are exchanged, the kernel is turned by half a turn. */
SIMD_INLINE simd_conv simd_conv_turned(const simd_conv *v)
{
    return (simd_conv){.in_c = v->out_c,
                       .out_c = v->in_c,
                       .kernel = v->kernel,
                       .pad = v->kernel - 1 - v->pad,
                       .in_h = v->out_h,
                       .in_w = v->out_w,
                       .out_h = v->in_h,
                       .out_w = v->in_w};
}

/* Weights for that one. */
static inline void simd_conv_pack_back(const simd_conv *v, const float *w, float *packed)
{
    simd_conv back = simd_conv_turned(v);
    size_t taps = simd_conv_taps(v);

    simd_conv_pack_any(&back, w, taps, (size_t)v->in_c * taps, true, packed);
}

/* ------------------------------------------------------------------------------------------------ forward */

/* Pixels side by side that see the same taps: n_outer x n_inner runs of n_kx taps. */
typedef struct simd_conv_walk {
    int    n_outer, n_inner, n_kx;
    int    n_pixels;
    size_t x_outer, x_inner; /* floats from one run to the next */
    size_t w_outer, w_inner;
    size_t y_channel; /* floats from one output channel to the next */
    bool   add;
} simd_conv_walk;

/* Taps that fall into an image of `size` pixels from pixel `at`: *begin .. return value - 1. */
SIMD_INLINE int simd_conv_range(int kernel, int pad, int size, int at, int *begin)
{
    int end = size + pad - at;

    *begin = at < pad ? pad - at : 0;
    return end < kernel ? end : kernel;
}

typedef simd_vec simd_conv_sums[SIMD_CONV_TILE][SIMD_CONV_SUMS][SIMD_VECS];

/* One tap: m channels of n_p pixels. The order is such that few registers are needed beside the sums: a pixel waits for
 * weight after weight, or, where there are several pixels and few weights, the weights wait. */
SIMD_INLINE void simd_conv_tap(int m, int n_p, const float *x, const float *w, simd_conv_sums sum)
{
    if (n_p == 1)
        for (int i = 0; i < m; i++)
            for (int k = 0; k < SIMD_VECS; k++)
                sum[i][0][k] += simd_all(w[i]) * simd_load(x + k * SIMD_VEC);
    else
        for (int p = 0; p < n_p; p++)
            for (int k = 0; k < SIMD_VECS; k++)
                for (int i = 0; i < m; i++)
                    sum[i][p][k] += simd_all(w[i]) * simd_load(x + p * SIMD_WIDTH + k * SIMD_VEC);
}

/* m channels of n_p pixels. m, n_p and n_kx (but where it is walk->n_kx) are constants where this is inlined. */
SIMD_INLINE void simd_conv_sum(int m, int n_p, int n_kx, const simd_conv_walk *walk, const float *x, const float *w,
                               float *y)
{
    simd_conv_sums sum;

    for (int i = 0; i < m; i++)
        for (int p = 0; p < n_p; p++)
            for (int k = 0; k < SIMD_VECS; k++)
                sum[i][p][k] = walk->add ? simd_load(y + (size_t)i * walk->y_channel + p * SIMD_WIDTH + k * SIMD_VEC)
                                         : (simd_vec){0};
    for (int a = 0; a < walk->n_outer; a++, x += walk->x_outer, w += walk->w_outer) {
        const float *xb = x, *wb = w;

        for (int b = 0; b < walk->n_inner; b++, xb += walk->x_inner, wb += walk->w_inner)
            for (int kx = 0; kx < n_kx; kx++)
                simd_conv_tap(m, n_p, xb + kx * SIMD_WIDTH, wb + kx * m, sum);
    }
    for (int i = 0; i < m; i++)
        for (int p = 0; p < n_p; p++)
            for (int k = 0; k < SIMD_VECS; k++)
                simd_store(y + (size_t)i * walk->y_channel + p * SIMD_WIDTH + k * SIMD_VEC, sum[i][p][k]);
}

/* All pixels of a walk, as many at once as it takes to have enough sums under way. */
SIMD_INLINE void simd_conv_walk_pixels(int m, int n_kx, const simd_conv_walk *walk, const float *x, const float *w,
                                       float *y)
{
    const int at_once = (SIMD_CONV_SUMS + m * SIMD_VECS - 1) / (m * SIMD_VECS);
    int p = 0;

    for (; p + at_once <= walk->n_pixels; p += at_once)
        simd_conv_sum(m, at_once, n_kx, walk, x + p * SIMD_WIDTH, w, y + p * SIMD_WIDTH);
    for (; at_once > 1 && p < walk->n_pixels; p++)
        simd_conv_sum(m, 1, n_kx, walk, x + p * SIMD_WIDTH, w, y + p * SIMD_WIDTH);
}

typedef void simd_conv_walker(const simd_conv_walk *walk, const float *x, const float *w, float *y);

/* One function for each size of a tile: the sums of one are all the registers there are. */
#define SIMD_CONV_WALKER(m)                                                                                      \
    __attribute__((noinline, unused)) static void simd_conv_walk_##m(const simd_conv_walk *walk, const float *x, \
                                                                     const float *w, float *y)                   \
    {                                                                                                            \
        if (walk->n_kx == 3)                                                                                     \
            simd_conv_walk_pixels(m, 3, walk, x, w, y);                                                          \
        else if (walk->n_kx == 2)                                                                                \
            simd_conv_walk_pixels(m, 2, walk, x, w, y);                                                          \
        else if (walk->n_kx == 1)                                                                                \
            simd_conv_walk_pixels(m, 1, walk, x, w, y);                                                          \
        else                                                                                                     \
            simd_conv_walk_pixels(m, walk->n_kx, walk, x, w, y);                                                 \
    }

#if SIMD_VEC_BYTES >= 64
#define SIMD_CONV_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#elif SIMD_VEC_BYTES >= 32
#define SIMD_CONV_SIZES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define SIMD_CONV_SIZES(X) X(1) X(2) X(3)
#endif

SIMD_CONV_SIZES(SIMD_CONV_WALKER)

SIMD_INLINE simd_conv_walker *simd_conv_walker_of(int m)
{
#define X(m) simd_conv_walk_##m,
    static simd_conv_walker *const walkers[SIMD_CONV_TILE] = {SIMD_CONV_SIZES(X)};
#undef X

    assert(m >= 1 && m <= SIMD_CONV_TILE);
    return walkers[m - 1];
}

/* Row oy of a tile of m output channels, of which w and y are the first. */
SIMD_INLINE void simd_conv_row(const simd_conv *v, int m, int oy, const float *x, const float *w, float *y, bool add)
{
    size_t row = (size_t)v->in_w * SIMD_WIDTH, w_row = (size_t)(v->kernel * m), w_channel = (size_t)v->kernel * w_row;
    int ky0, ky1 = simd_conv_range(v->kernel, v->pad, v->in_h, oy, &ky0);
    simd_conv_walk walk = {.n_outer = v->in_c, .x_outer = simd_conv_in_plane(v), .w_outer = w_channel};

    walk.n_inner = ky1 - ky0;
    walk.x_inner = row;
    walk.w_inner = w_row;
    if (walk.n_inner == 1) /* one long loop instead of many short ones */
        walk = (simd_conv_walk){1, v->in_c, .x_inner = simd_conv_in_plane(v), .w_inner = w_channel};
    walk.y_channel = simd_conv_out_plane(v);
    walk.add = add;
    x += (size_t)(oy + ky0 - v->pad) * row;
    w += (size_t)ky0 * w_row;
    y += (size_t)(oy * v->out_w) * SIMD_WIDTH;
    for (int ox = 0; ox < v->out_w; ox += walk.n_pixels) {
        int kx0, kx1 = simd_conv_range(v->kernel, v->pad, v->in_w, ox, &kx0);

        walk.n_kx = kx1 - kx0;
        walk.n_pixels = walk.n_kx == v->kernel ? v->in_w - v->kernel + v->pad - ox + 1 : 1;
        simd_conv_walker_of(m)(&walk, x + (ptrdiff_t)(ox + kx0 - v->pad) * SIMD_WIDTH, w + kx0 * m,
                               y + ox * SIMD_WIDTH);
    }
}

/* With a kernel of one tap, whether copying x pays: there is more of it than the first cache holds, and it is used often. */
SIMD_INLINE bool simd_conv_copies(const simd_conv *v)
{
    return v->kernel == 1 && v->out_c >= SIMD_CONV_USES && v->in_c <= SIMD_CONV_PIECE &&
           (size_t)v->in_c * simd_conv_in_plane(v) > SIMD_CONV_PIECE * SIMD_WIDTH;
}

/* One tap: the image is one long row of pixels. A piece of it that fits the first cache is copied, since planes of 64 or 256
 * pixels lie a multiple of 4 KB apart and push each other out of it. */
static inline void simd_conv_forward_point(const simd_conv *v, const float *x, const float *packed, float *y, bool add)
{
    float piece[SIMD_CONV_PIECE * SIMD_WIDTH] __attribute__((aligned(64)));
    int n_pixels = v->out_h * v->out_w, step = SIMD_CONV_PIECE / v->in_c;
    size_t plane = simd_conv_out_plane(v);
    simd_conv_walk walk = {.n_outer = 1, .n_inner = v->in_c, .n_kx = 1, .y_channel = plane, .add = add};

    for (int p = 0; p < n_pixels; p += step) {
        walk.n_pixels = n_pixels - p < step ? n_pixels - p : step;
        walk.x_inner = (size_t)walk.n_pixels * SIMD_WIDTH;
        for (int c = 0; c < v->in_c; c++)
            for (int k = 0; k < walk.n_pixels * SIMD_WIDTH; k += SIMD_VEC)
                simd_store(piece + (size_t)c * walk.x_inner + k,
                           simd_load(x + (size_t)c * plane + (size_t)p * SIMD_WIDTH + k));
        for (int tile = 0, o = 0, m; o < v->out_c; tile++, o += m) {
            m = simd_conv_tile_size(v->out_c, tile);
            walk.w_inner = (size_t)m;
            simd_conv_walker_of(m)(&walk, piece, packed + (size_t)o * (size_t)v->in_c,
                                   y + (size_t)o * plane + (size_t)p * SIMD_WIDTH);
        }
    }
}

/* The channels of x a few at a time, all of y with each: neighbours then find in the first cache what a pixel has seen. The
 * sums go on where they were: their bits are those of simd_conv_forward. */
static inline void simd_conv_forward_split(const simd_conv *v, const float *x, const float *packed, float *y, bool add)
{
    size_t taps = simd_conv_taps(v), plane = simd_conv_out_plane(v);
    simd_conv part = *v;

    for (int c = 0; c < v->in_c; c += SIMD_CONV_STEP) {
        part.in_c = v->in_c - c < SIMD_CONV_STEP ? v->in_c - c : SIMD_CONV_STEP;
        for (int oy = 0; oy < v->out_h; oy++)
            for (int tile = 0, o = 0, m; o < v->out_c; tile++, o += m) {
                m = simd_conv_tile_size(v->out_c, tile);
                simd_conv_row(&part, m, oy, x + (size_t)c * simd_conv_in_plane(v),
                              packed + ((size_t)o * (size_t)v->in_c + (size_t)c * (size_t)m) * taps,
                              y + (size_t)o * plane, add || c > 0);
            }
    }
}

/* y (out_c, out_h, out_w, 16) = or += convolution of x (in_c, in_h, in_w, 16). */
static inline void simd_conv_forward(const simd_conv *v, const float *x, const float *packed, float *y, bool add)
{
    size_t taps = (size_t)v->in_c * simd_conv_taps(v), plane = simd_conv_out_plane(v);

    if (simd_conv_copies(v)) {
        simd_conv_forward_point(v, x, packed, y, add);
        return;
    }
    for (int oy = 0; oy < v->out_h; oy++)
        for (int tile = 0, o = 0, m; o < v->out_c; tile++, o += m) {
            m = simd_conv_tile_size(v->out_c, tile);
            simd_conv_row(v, m, oy, x, packed + (size_t)o * taps, y + (size_t)o * plane, add);
        }
}

/* ------------------------------------------------------------------------------------------------ depthwise */

/* Every channel by itself: v has one channel in and out, w is (channels, k, k). */
static inline void simd_depthwise_forward(const simd_conv *v, int channels, const float *x, const float *w, float *y,
                                          bool add)
{
    size_t in_plane = simd_conv_in_plane(v), out_plane = simd_conv_out_plane(v), taps = simd_conv_taps(v);

    for (size_t c = 0; c < (size_t)channels; c++) /* the weights of one channel are as if packed */
        simd_conv_forward(v, x + c * in_plane, w + c * taps, y + c * out_plane, add);
}

/* dx = or += the gradient of x from g, that of y. */
static inline void simd_depthwise_back(const simd_conv *v, int channels, const float *g, const float *w, float *dx,
                                       bool add)
{
    size_t in_plane = simd_conv_in_plane(v), out_plane = simd_conv_out_plane(v), taps = simd_conv_taps(v);
    simd_conv back = simd_conv_turned(v);
    float packed[SIMD_CONV_TAPS];

    for (size_t c = 0; c < (size_t)channels; c++) {
        simd_conv_pack_back(v, w + c * taps, packed);
        simd_conv_forward(&back, g + c * out_plane, packed, dx + c * in_plane, add);
    }
}

#endif
