/* Internal. A convolution over blocks, as conv2d and conv_norm both need it: groups, packed weights, and the weights'
 * gradient.
 *
 * The gradient of a few weights is summed for each block apart and then joined; the sums of many would not fit the caches,
 * so there a unit is a few output channels, and goes through all blocks. Which it is depends on the weights alone; the sums
 * are taken in the same order. */
#ifndef ESPER_TENSOR_CPU_BLOCKS_CONVOLUTION_H
#define ESPER_TENSOR_CPU_BLOCKS_CONVOLUTION_H

#include <string.h>

#include "tensor/cpu/blocks/kernels.h"
#include "tensor/cpu/simd_conv.h"
#include "tensor/cpu/simd_conv_weights.h"

_Static_assert((int)SIMD_CONV_TAPS == ESPER_BLOCK_KERNEL * ESPER_BLOCK_KERNEL, "lowering lets no larger kernel pass");

enum { MANY_WEIGHTS = 1 << 16, UNIT_CHANNELS = SIMD_OUTER_OUT };

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

/* Units are groups: weights in the order in which a direction reads them, as many as there are. Depthwise kernels need none. */
static inline void pack_weights(const convolution *v, bool back, const float *w, int begin, int end, float *packed)
{
    for (int g = begin; g < end && !v->depthwise; g++) {
        if (back)
            simd_conv_pack_back(&v->group, w + (size_t)g * v->weights, packed + (size_t)g * v->weights);
        else
            simd_conv_pack(&v->group, w + (size_t)g * v->weights, packed + (size_t)g * v->weights);
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

/* One block forward. `w` are the weights themselves, for depthwise kernels. */
static inline void convolve(const convolution *v, bool split, const float *x, const float *w, const float *packed,
                            float *y)
{
    if (v->depthwise)
        simd_depthwise_forward(&v->group, v->groups, x, w, y, false);
    for (int g = 0; g < v->groups && !v->depthwise; g++)
        convolve_group(&v->group, split, x + (size_t)g * v->in_size, packed + (size_t)g * v->weights,
                       y + (size_t)g * v->out_size, false);
}

/* One block of the gradient of x. */
static inline void convolve_back(const convolution *v, bool split, const float *g, const float *w, const float *packed,
                                 float *dx, bool add)
{
    simd_conv back = simd_conv_turned(&v->group);

    if (v->depthwise)
        simd_depthwise_back(&v->group, v->groups, g, w, dx, add);
    for (int i = 0; i < v->groups && !v->depthwise; i++)
        convolve_group(&back, split, g + (size_t)i * v->out_size, packed + (size_t)i * v->weights,
                       dx + (size_t)i * v->in_size, add);
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
    size_t            n, all;  /* weights of these channels, and of the whole convolution */
} weights_part;

/* What n_blocks blocks give, of which `first` is the first. waiting: room behind it for the halves. */
static inline void weights_of_blocks(const weights_part *p, int first, int n_blocks, float *dw, float *waiting)
{
    int half = blocks_in_half(n_blocks);

    if (n_blocks == 1) {
        simd_conv_weights(&p->conv, data_block(p->x, first) + p->in_at, p->g + (size_t)first * p->g_block, dw, false);
        return;
    }
    weights_of_blocks(p, first, half, dw, waiting + p->all);
    weights_of_blocks(p, first + half, n_blocks - half, waiting, waiting + p->all);
    for (size_t i = 0; i < p->n; i++)
        dw[i] += waiting[i];
}

static inline void put_part(const weights_part *p, bool add, int n_blocks, float *dw, float *waiting)
{
    if (!add) {
        weights_of_blocks(p, 0, n_blocks, dw, waiting);
        return;
    }
    weights_of_blocks(p, 0, n_blocks, waiting, waiting + p->all);
    for (size_t i = 0; i < p->n; i++)
        dw[i] += waiting[i];
}

/* What all blocks give to the weights of output channels begin .. end-1, of which each lies in one group. g is the gradient
 * at the convolution's output, g_block floats for each block. */
static inline void weights_of_channels(const convolution *v, const esper_view *x, const float *g, size_t g_block,
                                       float *waiting, int n_blocks, int begin, int end, const esper_view *w)
{
    size_t taps = v->weights / (size_t)v->group.out_c, plane = v->out_size / (size_t)v->group.out_c;

    for (int o = begin, n; o < end; o += n) {
        int group = o / v->group.out_c, group_end = (group + 1) * v->group.out_c;
        weights_part part = {.conv = v->group,
                             .x = x,
                             .in_at = (size_t)group * v->in_size,
                             .g = g + (size_t)o * plane,
                             .g_block = g_block,
                             .all = (size_t)w->count};

        n = (group_end < end ? group_end : end) - o;
        part.conv.out_c = n;
        part.n = (size_t)n * taps;
        put_part(&part, w->add, n_blocks, (float *)w->grad + (size_t)o * taps, waiting + (size_t)o * taps);
    }
}

/* Units of the last phase: chunks of joined sums, or a few output channels. */
static inline int weight_units(const esper_view *w)
{
    return (int)(has_many_weights(w) ? (w->dim[0] + UNIT_CHANNELS - 1) / UNIT_CHANNELS
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
    else /* unit by unit: how sums are taken depends on how many channels there are */
        for (int unit = begin; unit < end; unit++) {
            int first = unit * UNIT_CHANNELS, left = w->dim[0] - first;

            weights_of_channels(v, x, g, g_block, partial, n_blocks, first,
                                first + (left < UNIT_CHANNELS ? left : UNIT_CHANNELS), w);
        }
}

#endif
