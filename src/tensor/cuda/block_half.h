/* Internal. Image operations on blocks of samples whose activations are bf16 (ESPER_CUDA_HALVES): how they are cut.
 *
 * A word has two channels of a sample at a pixel, the even one in its lower half: [block][pair of channels][row][column][sample], so that a
 * line of 128 bytes is a pixel of 32 samples, as with floats, and has twice as much. Where channels are odd in number, the last upper half
 * is 0. What a product of tensor cores takes and gives are such words (mma_half.cuh): nothing is rearranged on the way.
 *
 * Convolutions of 3 x 3 taps without groups, the norm, ReLU and pool behind them and the mean over an image are made so; what other
 * operations read and write is changed to floats and back (block_halves.c). */
#ifndef ESPER_TENSOR_CUDA_BLOCK_HALF_H
#define ESPER_TENSOR_CUDA_BLOCK_HALF_H

#include "tensor/cuda/block.h"

enum {
    HALF_TILE =
        4, /* pixels of a convolution's tile in each direction, of 16 samples and HALF_OUT output channels: a warp's share */
    HALF_OUT = 8,
    HALF_WARPS = 4, /* of a block of threads */
    HALF_THREADS = 128,
    HALF_WORDS = 11520,    /* of shared memory for weights, which come a few channels at a time */
    HALF_ITEMS = 512,      /* quads of samples at a pixel, or at a window, that a block of threads works on */
    HALF_PART_PIXELS = 128 /* a part of the weights' gradient is a sum over at least so many pixels */
};

BLOCK_FUNCTION int half_pairs(int channels)
{
    return (channels + 1) / 2;
}

/* Pairs of input channels that one product takes. */
BLOCK_FUNCTION int half_depth(int in_c)
{
    return in_c <= 4 ? 2 : in_c <= 8 ? 4 : 8;
}

/* Which block of threads does what: warps are so many tiles of channels by so many of pixels. */
typedef struct half_cut {
    int channel_warps, pixel_warps, channel_blocks;
    int tiles_x, shares, pixel_blocks; /* shares: of 16 samples, two for a tile */
    int turns;                         /* shares that a warp makes, one after the other */
    int stride;                        /* words from a tap to the next: eight channels of four pairs lie in 32 banks */
    int chunk;                         /* pairs of input channels whose weights are there at once */
    int blocks;                        /* of threads, for a block of samples */
} half_cut;

BLOCK_FUNCTION half_cut half_cut_of(const block_conv *v)
{
    int channel_tiles = block_divide(v->out_c, HALF_OUT), tiles, width, depth = half_depth(v->in_c),
        pairs = half_pairs(v->in_c);
    half_cut cut;

    cut.channel_warps = channel_tiles > 2 ? 4 : channel_tiles;
    cut.pixel_warps = HALF_WARPS / cut.channel_warps;
    cut.channel_blocks = block_divide(channel_tiles, cut.channel_warps);
    cut.tiles_x = block_divide(v->out_w, HALF_TILE);
    tiles = cut.tiles_x * block_divide(v->out_h, HALF_TILE);
    cut.shares = 2 * tiles;
    cut.turns = tiles < 16 ? 1 : tiles < 64 ? 2 : 4; /* what comes before and after takes longer than a share */
    cut.pixel_blocks = block_divide(cut.shares, cut.pixel_warps * cut.turns);
    width = cut.channel_warps * HALF_OUT;
    cut.stride = width > 8 ? width + 8 : 8;
    cut.chunk = HALF_WORDS / (9 * cut.stride) / depth * depth;
    pairs = block_divide(pairs, depth) * depth;
    cut.chunk = cut.chunk < pairs ? cut.chunk : pairs;
    cut.blocks = cut.channel_blocks * cut.pixel_blocks;
    return cut;
}

/* The gradient of the weights: a block of threads makes 2 `out` by 2 `in` channels over some rows of a block of samples, or over all of
 * several. Its warps have 16 samples each, and every second step of rows. */
typedef struct half_weigh_cut {
    int out, in; /* pairs of channels */
    int rows;    /* of y that a step takes: two where the pairs are four */
    int out_tiles, in_tiles;
    int parts, part_rows; /* of one block of samples, and the rows of pixels of each */
    int span;             /* blocks of samples for a part */
    int blocks;           /* of threads, for all parts that a block of samples is the first of */
} half_weigh_cut;

BLOCK_FUNCTION half_weigh_cut half_weigh_cut_of(const block_conv *v)
{
    int pixels = v->out_h * v->out_w, wanted = pixels / HALF_PART_PIXELS;
    half_weigh_cut cut;

    cut.in = half_depth(v->in_c);
    cut.out = v->out_c <= 8 && cut.in <= 4 ? 4 : 8;
    cut.rows = 8 / cut.out;
    cut.in_tiles = block_divide(half_pairs(v->in_c), cut.in);
    cut.out_tiles = block_divide(half_pairs(v->out_c), cut.out);
    wanted = wanted < 1 ? 1 : wanted > v->out_h ? v->out_h : wanted;
    cut.part_rows = block_divide(block_divide(v->out_h, wanted), 2 * cut.rows) * 2 * cut.rows;
    cut.parts = block_divide(v->out_h, cut.part_rows);
    cut.span = pixels < HALF_PART_PIXELS ? HALF_PART_PIXELS / pixels : 1;
    cut.blocks = cut.in_tiles * cut.out_tiles * cut.parts;
    return cut;
}

/* Parts that a channel's sums over a block of samples are taken in. */
BLOCK_FUNCTION int half_norm_parts(const esper_lane *lane, bool back)
{
    block_norm n = block_norm_of(lane);

    if (!back) {
        block_conv v = block_conv_of(lane, false);

        return half_cut_of(&v).shares;
    }
    if (block_norm_cells(&n, n.pool) == 0)
        return 1;
    return block_divide(block_norm_cells(&n, n.pool) * BLOCK_QUADS, HALF_ITEMS);
}

/* Where pieces of scratch begin, in bytes. What ranks sum and what the batch takes lie where block_scratch has them. */
typedef struct half_scratch {
    size_t sums;    /* (blocks, parts, 2 pairs, 2) double */
    size_t weights; /* (blocks, parts, all weights) float, backward */
    size_t bytes;
} half_scratch;

BLOCK_FUNCTION half_scratch half_scratch_of(const esper_lane *lane, bool back, int max_samples)
{
    size_t n_blocks = (size_t)block_divide(max_samples, ESPER_CUDA_BLOCK);
    block_scratch s = block_scratch_of(lane, back, 0);
    half_scratch h;

    s.bytes = s.sums;
    h.sums = s.sums;
    if (block_has_norm(lane))
        h.sums = block_take(&s, n_blocks * (size_t)half_norm_parts(lane, back) *
                                    (size_t)half_pairs(block_y(lane)->dim[0]) * 4 * sizeof(double));
    h.weights = s.bytes;
    if (back) {
        block_conv v = block_conv_of(lane, false);

        h.weights =
            block_take(&s, n_blocks * (size_t)half_weigh_cut_of(&v).parts * (size_t)lane->in[1].count * sizeof(float));
    }
    h.bytes = s.bytes;
    return h;
}

#endif
