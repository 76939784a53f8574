/* Internal. A convolution over blocks, as conv2d and conv_norm both need it: groups, packed weights, and the weights'
 * gradient.
 *
 * The gradient of a few weights is summed for each block apart and then joined; the sums of many would not fit the caches,
 * so there a unit is a few output channels, with a part of those of x, and goes through all blocks. Which it is depends on the weights alone; the sums
 * are taken in the same order. */
#ifndef ESPER_TENSOR_CPU_BLOCKS_CONVOLUTION_H
#define ESPER_TENSOR_CPU_BLOCKS_CONVOLUTION_H

#include <string.h>

#include "tensor/cpu/blocks/kernels.h"
#include "tensor/cpu/simd_conv.h"
#include "tensor/cpu/simd_conv_weights.h"

_Static_assert((int)SIMD_CONV_TAPS == ESPER_BLOCK_KERNEL * ESPER_BLOCK_KERNEL, "lowering lets no larger kernel pass");

enum { MANY_WEIGHTS = 1 << 16, UNIT_CHANNELS = SIMD_OUTER_OUT, UNIT_PARTS = 4 };

/* A block is shared by threads in so many parts of its output channels, where there are tiles enough. */
enum { MOST_PARTS = 4 };

typedef struct convolution {
    simd_conv group; /* what one group does */
    int        groups;
    bool       depthwise;
    size_t     in_size, out_size; /* floats of a group's channels in a block */
    size_t     weights;           /* of one group */
} convolution;

static inline convolution convolution_of(const esper_view *x, const esper_view *w, const esper_view *y, int pad,
                                         int groups)
{
    convolution v = {
        .group = {.in_c = x->dim[0] / groups,
                  .out_c = y->dim[0] / groups,
                  .kernel = w->dim[2],
                  .pad = pad,
                  .in_h = x->dim[1],
                  .in_w = x->dim[2],
                  .out_h = y->dim[1],
                  .out_w = y->dim[2]},
        .groups = groups,
        .in_size = block_size(x) / (size_t)groups,
        .out_size = block_size(y) / (size_t)groups,
        .weights = (size_t)w->count / (size_t)groups,
    };

    v.depthwise = v.group.in_c == 1 && v.group.out_c == 1;
    return v;
}

/* What one group does in a direction: the gradient of x is a convolution, too. */
static inline simd_conv one_group(const convolution *v, bool back)
{
    return back ? simd_conv_turned(&v->group) : v->group;
}

/* Tiles of the output channels that a direction makes, those of all groups. */
static inline int tiles_in(const convolution *v, bool back)
{
    return v->groups * (v->depthwise ? 1 : simd_conv_tiles(one_group(v, back).out_c));
}

static inline int parts_in(const convolution *v, bool back)
{
    int n_tiles = tiles_in(v, back);

    return n_tiles < MOST_PARTS ? n_tiles : MOST_PARTS;
}

/* The first output channel of a tile, and of a part. */
static inline int tile_begin(const convolution *v, bool back, int tile)
{
    int channels = one_group(v, back).out_c, n_tiles = tiles_in(v, back) / v->groups;
    int at = tile % n_tiles, larger = channels % n_tiles;

    return tile / n_tiles * channels + at * (channels / n_tiles) + (at < larger ? at : larger);
}

static inline int part_begin(const convolution *v, bool back, int part)
{
    return tile_begin(v, back, tiles_in(v, back) * part / parts_in(v, back));
}

/* Output channels begin .. end-1 of one group, out of those of all. They are whole tiles, and make a convolution of their own
 * whose tiles are the same. */
static inline simd_conv channels_in(const simd_conv *one, int group, int begin, int end, size_t *first_out)
{
    int first = begin - group * one->out_c, last = end - group * one->out_c;
    simd_conv some = *one;

    first = first > 0 ? first : 0;
    some.out_c = (last < one->out_c ? last : one->out_c) - first;
    *first_out = (size_t)first;
    return some;
}

/* The weights of output channels begin .. end-1 in the order in which a direction reads them. Depthwise kernels need none. */
static inline void pack_weights(const convolution *v, bool back, const float *w, int begin, int end, float *packed)
{
    simd_conv one = one_group(v, back);
    size_t taps = simd_conv_taps(&one), row = (size_t)v->group.in_c * taps, first;

    for (int g = begin / one.out_c; g * one.out_c < end && !v->depthwise; g++) {
        simd_conv some = channels_in(&one, g, begin, end, &first);

        simd_conv_pack_any(&some, w + (size_t)g * v->weights + first * (back ? taps : row), back ? taps : row,
                           back ? row : taps, back, packed + (size_t)g * v->weights + first * (size_t)one.in_c * taps);
    }
}

/* One group, not depthwise. A kernel of one tap sees no neighbours and gains nothing from splitting channels. */
static inline void convolve_group(const simd_conv *v, bool split, const float *x, const float *packed, float *y,
                                  bool add)
{
    if (split && v->kernel > 1)
        simd_conv_forward_split(v, x, packed, y, add);
    else
        simd_conv_forward(v, x, packed, y, add);
}

/* Output channels begin .. end-1 of a block, in a direction. `w` are the weights themselves, for depthwise kernels. */
static inline void convolve(const convolution *v, bool back, bool split, const float *x, const float *w,
                            const float *packed, int begin, int end, float *y, bool add)
{
    simd_conv one = one_group(v, back);
    size_t in = simd_conv_in_plane(&one), out = simd_conv_out_plane(&one), taps = simd_conv_taps(&one), first;

    if (v->depthwise) {
        (back ? simd_depthwise_back : simd_depthwise_forward)(&v->group, end - begin, x + (size_t)begin * in,
                                                              w + (size_t)begin * taps, y + (size_t)begin * out, add);
        return;
    }
    for (int g = begin / one.out_c; g * one.out_c < end; g++) {
        simd_conv some = channels_in(&one, g, begin, end, &first);

        convolve_group(&some, split, x + (size_t)(g * one.in_c) * in,
                       packed + (size_t)g * v->weights + first * (size_t)one.in_c * taps,
                       y + ((size_t)(g * one.out_c) + first) * out, add);
    }
}

/* ------------------------------------------------------------------------------------------ the weights' gradient */

static inline bool has_many_weights(const esper_view *w)
{
    return w->count > MANY_WEIGHTS;
}

/* What one block gives to all weights. */
static inline void weights_of_block(const convolution *v, const float *x, const float *g, float *dw)
{
    if (v->depthwise)
        simd_depthwise_weights(&v->group, v->groups, x, g, dw, false);
    for (int i = 0; i < v->groups && !v->depthwise; i++)
        simd_conv_weights(&v->group, x + (size_t)i * v->in_size, g + (size_t)i * v->out_size,
                          dw + (size_t)i * v->weights, false);
}

/* Floats of scratch behind the weights' gradient: what each block gives to few weights; of many, the halves of sums that
 * wait for their other half. */
static inline size_t weights_room(const esper_view *w, int n_blocks)
{
    size_t n_waiting = w->add ? 1 : 0; /* the whole sum is one that waits where there is a gradient already */

    if (!has_many_weights(w))
        return (size_t)n_blocks * (size_t)w->count;
    for (; n_blocks > 1; n_blocks = blocks_in_half(n_blocks))
        n_waiting++;
    return n_waiting * (size_t)w->count;
}

/* Output channels of one group, and all that is needed for the gradient of their weights. */
typedef struct weights_part {
    simd_conv        conv; /* of these channels */
    const esper_view *x;
    size_t            in_at;   /* where the group begins in a block of x */
    const float      *g;       /* the gradient at the first of these channels in the first block */
    size_t            g_block; /* floats from a block of it to the next */
    size_t            all;     /* weights of the whole convolution */
    int               begin, end; /* of UNIT_PARTS parts of the channels of x */
} weights_part;

/* to += from, where the part has weights. */
static inline void add_part(const weights_part *p, const float *from, float *to)
{
    size_t taps = simd_conv_taps(&p->conv), row = (size_t)p->conv.in_c * taps;
    size_t first = (size_t)simd_conv_weights_begin(&p->conv, p->begin, UNIT_PARTS) * taps;
    size_t last = (size_t)simd_conv_weights_begin(&p->conv, p->end, UNIT_PARTS) * taps;

    for (size_t o = 0; o < (size_t)p->conv.out_c * row; o += row)
        for (size_t i = o + first; i < o + last; i++)
            to[i] += from[i];
}

/* What n_blocks blocks give, of which `first` is the first. waiting: room behind it for the halves. */
static inline void weights_of_blocks(const weights_part *p, int first, int n_blocks, float *dw, float *waiting)
{
    int half = blocks_in_half(n_blocks);

    if (n_blocks == 1) {
        simd_conv_weights_parts(&p->conv, p->begin, p->end, UNIT_PARTS, data_block(p->x, first) + p->in_at,
                                p->g + (size_t)first * p->g_block, dw, false);
        return;
    }
    weights_of_blocks(p, first, half, dw, waiting + p->all);
    weights_of_blocks(p, first + half, n_blocks - half, waiting, waiting + p->all);
    add_part(p, waiting, dw);
}

static inline void put_part(const weights_part *p, bool add, int n_blocks, float *dw, float *waiting)
{
    if (!add) {
        weights_of_blocks(p, 0, n_blocks, dw, waiting);
        return;
    }
    weights_of_blocks(p, 0, n_blocks, waiting, waiting + p->all);
    add_part(p, waiting, dw);
}

/* What all blocks give to parts first .. last-1 of the weights of output channels begin .. end-1, of which each lies in one
 * group. g is the gradient at the convolution's output, g_block floats for each block. */
static inline void weights_of_channels(const convolution *v, const esper_view *x, const float *g, size_t g_block,
                                       float *waiting, int n_blocks, int begin, int end, int first, int last,
                                       const esper_view *w)
{
    size_t taps = v->weights / (size_t)v->group.out_c, plane = v->out_size / (size_t)v->group.out_c;

    for (int o = begin, n; o < end; o += n) {
        int group = o / v->group.out_c, group_end = (group + 1) * v->group.out_c;
        weights_part part = {.conv = v->group,
                             .x = x,
                             .in_at = (size_t)group * v->in_size,
                             .g = g + (size_t)o * plane,
                             .g_block = g_block,
                             .all = (size_t)w->count,
                             .begin = first,
                             .end = last};

        n = (group_end < end ? group_end : end) - o;
        part.conv.out_c = n;
        put_part(&part, w->add, n_blocks, (float *)w->grad + (size_t)o * taps, waiting + (size_t)o * taps);
    }
}

/* Units of the last phase: chunks of joined sums, or a few output channels with a part of those of x. */
static inline int weight_units(const esper_view *w)
{
    return (int)(has_many_weights(w) ? (w->dim[0] + UNIT_CHANNELS - 1) / UNIT_CHANNELS * UNIT_PARTS
                                     : (w->count + JOIN_CHUNK - 1) / JOIN_CHUNK);
}

/* The last phase of both operations. `partial` is weights_room floats. */
static inline void put_weights(const convolution *v, const esper_view *x, const esper_view *w, const float *g,
                               size_t g_block, float *partial, int n_blocks, int begin, int end)
{
    size_t last = (size_t)end * JOIN_CHUNK, count = (size_t)w->count;

    if (w->grad == NULL)
        return;
    if (!has_many_weights(w))
        join_blocks(w, partial, count, n_blocks, (size_t)begin * JOIN_CHUNK, last < count ? last : count);
    else /* a few channels at a time: how sums are taken depends on how many there are */
        for (int unit = begin, next; unit < end; unit = next) {
            int channels = unit / UNIT_PARTS, first = channels * UNIT_CHANNELS, left = w->dim[0] - first;

            next = (channels + 1) * UNIT_PARTS < end ? (channels + 1) * UNIT_PARTS : end;
            weights_of_channels(v, x, g, g_block, partial, n_blocks, first,
                                first + (left < UNIT_CHANNELS ? left : UNIT_CHANNELS), unit % UNIT_PARTS,
                                next - channels * UNIT_PARTS, w);
        }
}

/* ------------------------------------------------------------------------------------------ units */

/* Units first .. last-1 of one block, of `per_block`, as far as a range goes: it then goes on at *next. */
typedef struct block_units {
    int block, first, last;
} block_units;

static inline block_units units_in_block(int unit, int end, int per_block, int *next)
{
    int block = unit / per_block, block_end = (block + 1) * per_block;

    *next = block_end < end ? block_end : end;
    return (block_units){block, unit - block * per_block, *next - block * per_block};
}

#endif
