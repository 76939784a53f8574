/* Internal. Batch norm, and the ReLU and max pool that may follow, at a pixel or in a window. */
#ifndef ESPER_TENSOR_CUDA_BLOCK_NORM_CUH
#define ESPER_TENSOR_CUDA_BLOCK_NORM_CUH

#include "tensor/cuda/block.cuh"

/* The reference's "0 where x <= 0, else x": NaN stays. */
FUNCTION float relu_of(float x)
{
    return x <= 0 ? 0.0f : x;
}

/* g where ReLU lets it through, x being its input or output; NaN does. */
FUNCTION float relu_let(float x, float g)
{
    return x <= 0 ? 0.0f : g;
}

/* Whether b takes the place of a as the first maximum, NaN being the largest. */
FUNCTION bool beats(float b, float a)
{
    return !(b <= a) && a == a;
}

/* Number of the first maximum of a window, in row-major order. */
FUNCTION int winner_of(float a, float b, float c, float d, float *most_out)
{
    bool right_above = beats(b, a), right_below = beats(d, c), below;
    float above = right_above ? b : a, under = right_below ? d : c;

    below = beats(under, above);
    *most_out = below ? under : above;
    return below ? 2 + right_below : right_above;
}

/* ------------------------------------------------------------------------------------------------ batch norm */

/* z = (y - mean) * factor + shift */
struct affine {
    float mean, factor, shift;
};

FUNCTION affine affine_of(const block_norm &n, int c)
{
    affine a;

    a.mean = ((const float *)n.mean_used->data)[c];
    a.factor = ((const float *)n.scale->data)[c] * ((const float *)n.rstd_used->data)[c];
    a.shift = ((const float *)n.shift->data)[c];
    return a;
}

FUNCTION float z_of(const affine &a, float off)
{
    return fmaf(off, a.factor, a.shift);
}

/* From the gradient of what comes out to dy = (g - mean_g - (y - mean) * slope) * factor. */
struct way_back {
    affine a;
    float  level, tilt; /* what the batch takes: mean_g and slope, times factor */
    bool   relu;
};

FUNCTION way_back way_back_of(const esper_lane *lane, const block_norm &n, int c)
{
    block_scratch s = block_scratch_of(lane, true, lane->max_samples);
    way_back back;

    back.a = affine_of(n, c);
    back.level = ((const float *)((const char *)lane->scratch + s.mean_g))[c] * back.a.factor;
    back.tilt = ((const float *)((const char *)lane->scratch + s.slope))[c] * back.a.factor;
    back.relu = n.relu;
    return back;
}

/* Of a pixel: off is y - mean. The product is rounded by itself, so that a window's winner and a pixel alone get the same. */
FUNCTION float dy_of(const way_back &back, float off, float g)
{
    float let = back.relu ? relu_let(z_of(back.a, off), g) : g;

    return __fsub_rn(__fmul_rn(let, back.a.factor), fmaf(off, back.tilt, back.level));
}

/* Of a window with a pool, the four pixels. */
FUNCTION void dy_of(const way_back &back, const float (&off)[4], float g, float (&dy)[4])
{
    float most, let;
    int winner = winner_of(z_of(back.a, off[0]), z_of(back.a, off[1]), z_of(back.a, off[2]), z_of(back.a, off[3]), &most);

    let = __fmul_rn(back.relu ? relu_let(most, g) : g, back.a.factor);
#pragma unroll
    for (int j = 0; j < 4; j++)
        dy[j] = __fsub_rn(winner == j ? let : 0.0f, fmaf(off[j], back.tilt, back.level));
}

/* ------------------------------------------------------------------------------------------------ four samples */

/* Four samples at one place. */
struct quad {
    float v[4];
};

FUNCTION quad load_quad(const float *from)
{
    float4 four = *reinterpret_cast<const float4 *>(from);
    quad q;

    q.v[0] = four.x;
    q.v[1] = four.y;
    q.v[2] = four.z;
    q.v[3] = four.w;
    return q;
}

FUNCTION void store_quad(float *to, const quad &q)
{
    *reinterpret_cast<float4 *>(to) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
}

/* As a gradient is written. */
FUNCTION void put_quad(float *to, bool add, quad q)
{
    if (add) {
        quad old = load_quad(to);

#pragma unroll
        for (int i = 0; i < 4; i++)
            q.v[i] = old.v[i] + q.v[i];
    }
    store_quad(to, q);
}

#endif
