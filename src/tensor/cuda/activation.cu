/* Functions of one element: relu, gelu (exact, by the error function), sigmoid, tanh. Relu, sigmoid and tanh take their slope from
 * the output, so that the input need not be kept. NaN passes relu in both directions: what is not <= 0 is let through. */
#include "tensor/cuda/elements.cuh"

struct relu {
    static __device__ __forceinline__ float value(float x)
    {
        return x <= 0 ? 0 : x;
    }
    static __device__ __forceinline__ float slope(float y, float g)
    {
        return y <= 0 ? 0 : g;
    }
};

struct gelu {
    /* The normal distribution up to x. */
    static __device__ __forceinline__ float below(float x)
    {
        return 0.5f * (1 + erff(x * 0.70710678118654752f)); /* x / sqrt(2) */
    }
    static __device__ __forceinline__ float value(float x)
    {
        return x * below(x);
    }
    static __device__ __forceinline__ float slope(float x, float g)
    {
        return g * (below(x) + x * 0.39894228040143268f * expf(-0.5f * x * x)); /* 1 / sqrt(2 pi) */
    }
};

struct sigmoid {
    static __device__ __forceinline__ float value(float x)
    {
        return 1 / (1 + expf(-x)); /* expf may reach infinity: 0 then, as it should be */
    }
    static __device__ __forceinline__ float slope(float y, float g)
    {
        return g * y * (1 - y);
    }
};

struct tangent {
    static __device__ __forceinline__ float value(float x)
    {
        return tanhf(x);
    }
    static __device__ __forceinline__ float slope(float y, float g)
    {
        return g * (1 - y * y);
    }
};

template <class F, int LAYOUT> FUNCTION void forward(const esper_lane *lane)
{
    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four x = data_four(&lane->in[0], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            x.v[k] = F::value(x.v[k]);
        write_four(&lane->out[0], at, n, x);
    });
}

/* `kept` is what of input and output the backward pass has. */
template <class F, int LAYOUT> FUNCTION void backward(const esper_lane *lane, const esper_view *kept)
{
    if (lane->in[0].grad == NULL)
        return;
    for_fours(elements_of<LAYOUT>(lane, &lane->in[0]), [&](int64_t at, int n) {
        four x = data_four(kept, at, n), g = grad_four(&lane->out[0], at, n);

#pragma unroll
        for (int k = 0; k < 4; k++)
            g.v[k] = F::slope(x.v[k], g.v[k]);
        put_four(&lane->in[0], at, n, g);
    });
}

#define ACTIVATION(name, function, from, layout)                                                       \
    ESPER_KERNEL(name##_forward, ELEMENTS_THREADS)                                                     \
    {                                                                                                  \
        forward<function, layout>(lanes.lane[blockIdx.y]);                                             \
    }                                                                                                  \
    ESPER_KERNEL(name##_backward, ELEMENTS_THREADS)                                                    \
    {                                                                                                  \
        backward<function, layout>(lanes.lane[blockIdx.y], &lanes.lane[blockIdx.y]->from[0]);          \
    }

ACTIVATION(esper_relu, relu, out, ESPER_CUDA_CANONICAL)
ACTIVATION(esper_gelu, gelu, in, ESPER_CUDA_CANONICAL)
ACTIVATION(esper_sigmoid, sigmoid, out, ESPER_CUDA_CANONICAL)
ACTIVATION(esper_tanh, tangent, out, ESPER_CUDA_CANONICAL)
ACTIVATION(esper_blocked_relu, relu, out, ESPER_CUDA_BLOCKED)
ACTIVATION(esper_blocked_gelu, gelu, in, ESPER_CUDA_BLOCKED)
ACTIVATION(esper_blocked_sigmoid, sigmoid, out, ESPER_CUDA_BLOCKED)
ACTIVATION(esper_blocked_tanh, tangent, out, ESPER_CUDA_BLOCKED)
