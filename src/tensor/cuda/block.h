/* Internal. How image operations on blocks of samples are cut for a device: what launches and kernels both have to know.
 *
 * A warp has the 32 samples of a block at one pixel. A convolution's warp makes a tile of 4 x 4 pixels of a few output
 * channels, each thread for its sample; the gradient of x is a convolution, too, with the weights turned. Sums over samples
 * and pixels are taken in parts (tiles of pixels, or chunks of them, of one block), which lie in scratch until a second
 * kernel joins them in order. */
#ifndef ESPER_TENSOR_CUDA_BLOCK_H
#define ESPER_TENSOR_CUDA_BLOCK_H

#include "tensor/cuda/kernels.h"

/* 0: convolutions never use tensor cores. (dev/gpu/conv_lab.cu compares the two.) */
#ifndef ESPER_BLOCK_CONV_TENSOR
#define ESPER_BLOCK_CONV_TENSOR 1
#endif

#ifdef __CUDACC__
#define BLOCK_FUNCTION static __host__ __device__ __forceinline__
#else
#define BLOCK_FUNCTION static inline
#endif

/* The largest kernel of a convolution on blocks: lowering lets no larger one pass. */
enum { BLOCK_KERNEL = 7 };

enum {
    BLOCK_TILE = 4,      /* pixels of a convolution's tile in each direction */
    BLOCK_WARPS = 4,     /* of a block of threads */
    BLOCK_THREADS = 128,
    BLOCK_QUADS = 8,     /* a thread that has no need to know its neighbours works on four samples: so many are a block */
    BLOCK_ITEMS = 512,   /* quads of samples at a pixel, or at a window, that a block of threads works on at once */
    BLOCK_WEIGHTS = 9216, /* floats of shared memory for weights: they come a few channels at a time */
    BLOCK_WEIGHTS_TENSOR = 6000, /* where tensor cores are used, beside rows of pixels in 64 KiB: 16 channels to 32 */
    BLOCK_OUT_TENSOR = 8, /* output channels of a warp there */
    BLOCK_ROW_PIXELS = 64, /* a part of the weights' gradient is a sum over at least so many pixels */
    BLOCK_PARTS_FLOATS = 1 << 14, /* where these parts of one block of samples take more, there are fewer of them */
    BLOCK_GROUP_THREADS = 256,
    HEAD_EACH = 4, /* outputs of a linear layer that a warp makes, or inputs on the way back */
    HEAD_IN = 8    /* inputs of a warp that makes weights: of HEAD_EACH outputs */
};

BLOCK_FUNCTION int block_divide(int n, int each)
{
    return (n + each - 1) / each;
}

/* ------------------------------------------------------------------------------------------------ convolution */

/* One group of a convolution. */
typedef struct block_conv {
    int in_c, out_c, groups;
    int kernel, pad;
    int in_h, in_w, out_h, out_w;
} block_conv;

BLOCK_FUNCTION bool block_has_conv(const esper_lane *lane)
{
    return lane->in[1].rank == 4; /* weights */
}

BLOCK_FUNCTION bool block_has_norm(const esper_lane *lane)
{
    return lane->out[1].rank > 0;
}

/* The convolution's output, or what a norm by itself is given. */
BLOCK_FUNCTION const esper_view *block_y(const esper_lane *lane)
{
    if (!block_has_conv(lane))
        return &lane->in[0];
    return block_has_norm(lane) ? &lane->out[1] : &lane->out[0];
}

/* Back: from the gradient of y to that of x. */
BLOCK_FUNCTION block_conv block_conv_of(const esper_lane *lane, bool back)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1], *y = block_y(lane);
    const esper_view *in = back ? y : x, *out = back ? x : y;
    block_conv v;

    v.groups = block_has_norm(lane) ? lane->attr.conv_norm.groups : lane->attr.conv.groups;
    v.kernel = w->dim[2];
    v.pad = block_has_norm(lane) ? lane->attr.conv_norm.pad : lane->attr.conv.pad;
    v.pad = back ? v.kernel - 1 - v.pad : v.pad;
    v.in_c = in->dim[0] / v.groups;
    v.out_c = out->dim[0] / v.groups;
    v.in_h = in->dim[1];
    v.in_w = in->dim[2];
    v.out_h = out->dim[1];
    v.out_w = out->dim[2];
    return v;
}

/* Kernels are compiled for odd sizes: one of an even size has zeros for its last taps. */
BLOCK_FUNCTION int block_side(const block_conv *v)
{
    return v->kernel | 1;
}

/* Whether y, or the gradient of x, is made on tensor cores: products of 8 output by 8 input channels, or by 4 where there are no
 * more, with 3 x 3 taps. With much fewer channels most of the products would be of zeros. */
BLOCK_FUNCTION bool block_is_tensor(const block_conv *v)
{
    return ESPER_BLOCK_CONV_TENSOR && block_side(v) == 3 && v->in_c >= 3 && v->out_c >= 5;
}

/* Where no image has more than 2 x 2 pixels a tile has them all. */
BLOCK_FUNCTION bool block_is_small(const block_conv *v)
{
    return v->out_h <= 2 && v->out_w <= 2 && v->in_c > 4;
}

/* Input channels that such a product has. */
BLOCK_FUNCTION int block_depth(const block_conv *v)
{
    return v->in_c <= 4 ? 4 : 8;
}

/* Output channels of a warp. Eight with more than one tap would take so many registers that too few warps are there to hide how
 * long pixels take to come. */
BLOCK_FUNCTION int block_channels(const block_conv *v)
{
    if (block_is_tensor(v))
        return BLOCK_OUT_TENSOR;
    return v->out_c == 1 ? 1 : v->out_c <= 4 || v->kernel > 1 ? 4 : 8;
}

/* Which block of threads does what: its warps are so many tiles of channels by so many tiles of pixels. On tensor cores a warp
 * has half of the samples of a tile. */
typedef struct block_cut {
    int channel_warps, pixel_warps;
    int channel_tiles, channel_blocks; /* of one group */
    int tiles_x, tiles, shares, pixel_blocks; /* shares: of tiles, those of one warp */
    int turns;  /* shares that a warp makes, one after the other */
    int stride; /* floats of shared memory from a tap to the next: in whatever order weights are put there, eight channels of
                   four taps lie in 32 banks */
    int chunk;  /* input channels whose weights are there at once */
    int blocks; /* of threads, for one block of samples */
} block_cut;

BLOCK_FUNCTION block_cut block_cut_of(const block_conv *v)
{
    int channels = block_channels(v), taps = block_side(v) * block_side(v), width;
    block_cut cut;

    cut.channel_tiles = block_divide(v->out_c, channels);
    cut.channel_warps = cut.channel_tiles > 2 ? 4 : cut.channel_tiles;
    cut.pixel_warps = BLOCK_WARPS / cut.channel_warps;
    cut.channel_blocks = block_divide(cut.channel_tiles, cut.channel_warps);
    cut.tiles_x = block_divide(v->out_w, BLOCK_TILE);
    cut.tiles = cut.tiles_x * block_divide(v->out_h, BLOCK_TILE);
    cut.shares = block_is_tensor(v) ? 2 * cut.tiles : cut.tiles;
    cut.turns = cut.tiles < 64 ? 1 : 2;
    if (block_is_tensor(v)) /* what comes before and after takes longer than a share */
        cut.turns = cut.tiles < 16 ? 1 : cut.tiles < 64 ? 2 : 4;
    cut.pixel_blocks = block_divide(cut.shares, cut.pixel_warps * cut.turns);
    width = cut.channel_warps * channels;
    cut.stride = width > 8 ? width + 8 : 8;
    cut.chunk = (block_is_tensor(v) ? BLOCK_WEIGHTS_TENSOR : BLOCK_WEIGHTS) / (taps * cut.stride);
    if (block_is_tensor(v)) {
        int depth = block_depth(v), all = block_divide(v->in_c, depth) * depth;

        cut.chunk = cut.chunk / depth * depth;
        cut.chunk = cut.chunk < all ? cut.chunk : all;
    } else
        cut.chunk = cut.chunk < v->in_c ? cut.chunk : v->in_c;
    cut.blocks = v->groups * cut.channel_blocks * cut.pixel_blocks;
    return cut;
}

/* On tensor cores pixels come two rows ahead: rows of shared memory for so many pixels, and from a channel to the next, in floats; and all
 * of them. */
#define BLOCK_AHEAD_ROWS(side)    ((side) / 2)
#define BLOCK_AHEAD_CHANNEL(side) (16 * (side) + 8)

BLOCK_FUNCTION int block_ahead_floats(const block_conv *v)
{
    int side = block_is_small(v) ? 4 : BLOCK_TILE + 2;

    return BLOCK_WARPS * BLOCK_AHEAD_ROWS(side) * block_depth(v) * BLOCK_AHEAD_CHANNEL(side);
}

/* How the gradient of the weights is cut: a warp makes `out` by `in` channels with so many rows of taps, over some rows of
 * pixels of a block of samples. */
typedef struct block_weights_cut {
    int out, in, rows;
    int out_tiles, in_tiles, row_tiles; /* of one group */
    int warps;                          /* for a part */
    int parts, part_rows;               /* of one block of samples, and the rows of pixels of each */
} block_weights_cut;

BLOCK_FUNCTION block_weights_cut block_weights_cut_of(const block_conv *v)
{
    int most = BLOCK_PARTS_FLOATS / (v->groups * v->out_c * v->in_c * v->kernel * v->kernel);
    int wanted = v->out_h * v->out_w / BLOCK_ROW_PIXELS;
    block_weights_cut cut;

    cut.out = v->out_c == 1 && v->kernel > 1 ? 1 : 8;
    cut.in = v->kernel == 1 ? 8 : 1;
    cut.rows = v->kernel <= 3 ? block_side(v) : 1;
    cut.out_tiles = block_divide(v->out_c, cut.out);
    cut.in_tiles = block_divide(v->in_c, cut.in);
    cut.row_tiles = block_divide(v->kernel, cut.rows);
    cut.warps = v->groups * cut.out_tiles * cut.in_tiles * cut.row_tiles;
    wanted = wanted < most ? wanted : most;
    wanted = wanted < 1 ? 1 : wanted > v->out_h ? v->out_h : wanted;
    cut.part_rows = block_divide(v->out_h, wanted);
    cut.parts = block_divide(v->out_h, cut.part_rows);
    return cut;
}

/* The same on tensor cores (block_weigh.cu), of 3 x 3 taps: a block of threads makes 8 output by 4 input channels, or 16 by 8, over some
 * rows of pixels of a block of samples; over all rows of several blocks where an image is small. */
typedef struct block_weigh_cut {
    bool wide; /* 16 by 8 */
    int in_tiles, out_tiles; /* of one group */
    int parts, part_rows;    /* of one block of samples, and the rows of pixels of each */
    int span;                /* blocks of samples for a part */
    int blocks;              /* of threads, for all parts that a block of samples is the first of */
} block_weigh_cut;

BLOCK_FUNCTION bool block_weighs_on_cores(const block_conv *v)
{
    return v->kernel == 3 && v->in_c > 1 && v->out_c > 1;
}

BLOCK_FUNCTION block_weigh_cut block_weigh_cut_of(const block_conv *v)
{
    int pixels = v->out_h * v->out_w, wanted = pixels / BLOCK_ROW_PIXELS;
    block_weigh_cut cut;

    cut.wide = v->out_c > 8 && v->in_c > 4;
    cut.in_tiles = block_divide(v->in_c, cut.wide ? 8 : 4);
    cut.out_tiles = block_divide(v->out_c, cut.wide ? 16 : 8);
    wanted = wanted < 1 ? 1 : wanted > v->out_h ? v->out_h : wanted;
    cut.part_rows = block_divide(v->out_h, wanted);
    cut.part_rows += cut.wide ? 0 : cut.part_rows % 2; /* two are made at once */
    cut.parts = block_divide(v->out_h, cut.part_rows);
    cut.span = pixels < BLOCK_ROW_PIXELS ? BLOCK_ROW_PIXELS / pixels : 1;
    cut.blocks = v->groups * cut.in_tiles * cut.out_tiles * cut.parts;
    return cut;
}

/* A first layer whose norm is behind it: of dy only the gradient of the weights is made, which can form it on the way. */
BLOCK_FUNCTION bool block_forms_dy(const esper_lane *lane)
{
    block_conv v;

    if (!block_has_conv(lane) || !block_has_norm(lane) || lane->in[0].grad != 0 || lane->in[1].grad == 0)
        return false;
    v = block_conv_of(lane, false);
    return block_weighs_on_cores(&v) && v.groups == 1 && v.in_c <= 4;
}

/* ------------------------------------------------------------------------------------------------ norm */

/* Where the parts of a batch norm's lane are. */
typedef struct block_norm {
    const esper_view *y; /* what is normalised */
    const esper_view *scale, *shift, *mean, *var;
    const esper_view *mean_used, *rstd_used;
    float eps, momentum;
    bool relu, pool;
    int C, H, W;
} block_norm;

BLOCK_FUNCTION block_norm block_norm_of(const esper_lane *lane)
{
    bool has_conv = block_has_conv(lane);
    const esper_view *in = lane->in + has_conv, *out = lane->out + has_conv;
    block_norm n;

    n.y = block_y(lane);
    n.scale = &in[1];
    n.shift = &in[2];
    n.mean = &in[3];
    n.var = &in[4];
    n.mean_used = &out[1];
    n.rstd_used = &out[2];
    n.eps = has_conv ? lane->attr.conv_norm.eps : lane->attr.norm.eps;
    n.momentum = has_conv ? lane->attr.conv_norm.momentum : lane->attr.norm.momentum;
    n.relu = has_conv && lane->attr.conv_norm.relu;
    n.pool = has_conv && lane->attr.conv_norm.pool;
    n.C = n.y->dim[0];
    n.H = n.y->dim[1];
    n.W = n.y->dim[2];
    return n;
}

/* Sums over a channel of a block of samples are taken in so many parts: by the convolution's tiles, or by the pixels, on the way back
 * the windows, that a block of threads works on at once. */
BLOCK_FUNCTION int block_norm_cells(const block_norm *n, bool pool)
{
    return pool ? (n->H / 2) * (n->W / 2) : n->H * n->W;
}

BLOCK_FUNCTION int block_norm_parts(const esper_lane *lane, bool back)
{
    block_norm n = block_norm_of(lane);

    if (!back && block_has_conv(lane)) {
        block_conv v = block_conv_of(lane, false);

        return block_cut_of(&v).shares;
    }
    if (back && block_norm_cells(&n, true) == 0)
        return 1;
    return block_divide(block_norm_cells(&n, back) * BLOCK_QUADS, BLOCK_ITEMS);
}

/* ------------------------------------------------------------------------------------------------ scratch */

/* Where its pieces begin, in bytes. The values that ranks sum come first: they lie where they lie, whatever the batch. */
typedef struct block_scratch {
    size_t values;        /* (1 + 2 C) double */
    size_t mean_g, slope; /* (C) float, backward: what the batch takes from every gradient */
    size_t sums;          /* (blocks, parts, C, 2) double */
    size_t weights;       /* (blocks, parts, all weights) float, backward; on tensor cores blocks / span, or fewer */
    size_t bytes;
} block_scratch;

BLOCK_FUNCTION size_t block_take(block_scratch *s, size_t bytes)
{
    size_t at = s->bytes;

    s->bytes += (bytes + 63) / 64 * 64;
    return at;
}

BLOCK_FUNCTION block_scratch block_scratch_of(const esper_lane *lane, bool back, int max_samples)
{
    size_t n_blocks = (size_t)block_divide(max_samples, ESPER_CUDA_BLOCK);
    block_scratch s;

    s.values = s.mean_g = s.slope = s.sums = s.weights = s.bytes = 0;
    if (block_has_norm(lane)) {
        size_t C = (size_t)block_y(lane)->dim[0];

        s.values = block_take(&s, (1 + 2 * C) * sizeof(double));
        s.mean_g = block_take(&s, C * sizeof(float));
        s.slope = block_take(&s, C * sizeof(float));
        s.sums = block_take(&s, n_blocks * (size_t)block_norm_parts(lane, back) * C * 2 * sizeof(double));
    }
    if (block_has_conv(lane) && back) {
        block_conv v = block_conv_of(lane, false);
        int parts = block_weights_cut_of(&v).parts,
            others = block_weighs_on_cores(&v) ? block_weigh_cut_of(&v).parts : 0;

        s.weights = block_take(&s, n_blocks * (size_t)(parts > others ? parts : others) * (size_t)lane->in[1].count *
                                       sizeof(float));
    }
    return s;
}

#endif
