/* Internal. Windows of pixels: ReLU and max pool as the reference has them. */
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
