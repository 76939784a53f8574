/* How a seed's output s joins its host's h: straight_through, blend_add, blend_mul, blend_gate.
 *
 * A weight of exactly 0 gives h and a weight of exactly 1 (blend_add, blend_gate) gives s, bit for bit and whatever stands
 * in the other one: a seed that fails while it has no weight does not reach the host. Weights are clamped to [0, 1]; a NaN
 * among them stays and shows in y. Alpha is one number for each sample and receives no gradient.
 *
 * h, s and u may be the same tensor and then share a gradient, so each is finished before the next is begun. */
#include <string.h>
#include <tgmath.h>

#include "tensor/ref/elements.h"
#include "tensor/ref/sums.h"

static real clamp01(real x)
{
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

/* A per-sample number among the inputs: alpha or the gate. */
static real number_at(const esper_lane *lane, int input, int sample)
{
    return *data_at(&lane->in[input], sample);
}

static void straight_through_forward(const esper_lane *lane, int begin, int end)
{
    memmove(data_at(&lane->out[0], begin), data_at(&lane->in[0], begin), elements(lane, begin, end) * sizeof(real));
}

static void straight_through_backward(const esper_lane *lane, int begin, int end)
{
    put_scaled(lane, 0, 1, begin, end);
    put_scaled(lane, 1, 1, begin, end);
}

/* y = h + e (s - h), reckoned from the nearer end. */
static void interpolate(const esper_lane *lane, int sample, real e)
{
    const real *h = data_at(&lane->in[0], sample), *s = data_at(&lane->in[1], sample);
    real *y = data_at(&lane->out[0], sample);
    int64_t count = lane->in[0].count;

    if (e == 0 || e == 1)
        memmove(y, e == 0 ? h : s, (size_t)count * sizeof(real));
    else if (e < (real)0.5)
        for (int64_t i = 0; i < count; i++)
            y[i] = h[i] + e * (s[i] - h[i]);
    else
        for (int64_t i = 0; i < count; i++)
            y[i] = s[i] - (1 - e) * (s[i] - h[i]);
}

static void blend_add_forward(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++)
        interpolate(lane, n, clamp01(number_at(lane, 2, n)));
}

static void blend_add_backward(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++) {
        real a = clamp01(number_at(lane, 2, n));

        put_scaled(lane, 0, 1 - a, n, n + 1);
        put_scaled(lane, 1, a, n, n + 1);
    }
}

static void blend_mul_forward(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++) {
        const real *h = data_at(&lane->in[0], n), *s = data_at(&lane->in[1], n), *u = data_at(&lane->in[2], n);
        real *y = data_at(&lane->out[0], n), a = clamp01(number_at(lane, 3, n));

        if (a == 0)
            memmove(y, h, (size_t)lane->in[0].count * sizeof(real));
        else
            for (int64_t i = 0; i < lane->in[0].count; i++)
                y[i] = h[i] * (1 + a * tanh(s[i] - u[i]));
    }
}

/* dh = g (1 + a tanh m), ds = q = g h a (1 - tanh^2 m), du = -q, with m = s - u. */
static void blend_mul_backward_sample(const esper_lane *lane, int n, real a)
{
    const esper_view *h = &lane->in[0], *s = &lane->in[1], *u = &lane->in[2];
    const real *g = grad_at(&lane->out[0], n), *hs = data_at(h, n), *ss = data_at(s, n), *us = data_at(u, n);

    for (int64_t i = 0; i < h->count; i++) {
        real t = tanh(ss[i] - us[i]);
        real q = g[i] * hs[i] * a * (1 - t * t);

        if (h->grad != NULL)
            grad_put(h, grad_at(h, n) + i, g[i] * (1 + a * t));
        if (s->grad != NULL)
            grad_put(s, grad_at(s, n) + i, q);
        if (u->grad != NULL)
            grad_put(u, grad_at(u, n) + i, -q);
    }
}

static void blend_mul_backward(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++) {
        real a = clamp01(number_at(lane, 3, n));

        if (a != 0) {
            blend_mul_backward_sample(lane, n, a);
            continue;
        }
        put_scaled(lane, 0, 1, n, n + 1);
        put_scaled(lane, 1, 0, n, n + 1);
        put_scaled(lane, 2, 0, n, n + 1);
    }
}

/* The weight of s in blend_gate. */
static real gated(const esper_lane *lane, int sample)
{
    return clamp01(clamp01(number_at(lane, 3, sample)) * clamp01(number_at(lane, 2, sample)));
}

static void blend_gate_forward(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++)
        interpolate(lane, n, gated(lane, n));
}

/* The gradient of the gate: a * sum of g (s - h), and none where the gate was clamped; its ends 0 and 1 count as inside. */
static real gate_gradient(const esper_lane *lane, int n)
{
    const real *g = grad_at(&lane->out[0], n);
    real gate = number_at(lane, 2, n), a = clamp01(number_at(lane, 3, n));
    size_t count = (size_t)lane->in[0].count;

    if (gate < 0 || gate > 1 || a == 0)
        return 0;
    return (real)((double)a * (sum_product(g, data_at(&lane->in[1], n), 0, count) -
                               sum_product(g, data_at(&lane->in[0], n), 0, count)));
}

static void blend_gate_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *gate = &lane->in[2];

    for (int n = begin; n < end; n++) {
        put_scaled(lane, 0, 1 - gated(lane, n), n, n + 1);
        put_scaled(lane, 1, gated(lane, n), n, n + 1);
        if (gate->grad != NULL)
            grad_put(gate, grad_at(gate, n), gate_gradient(lane, n));
    }
}

const esper_op_kernels ESPER_OP_KERNELS(straight_through) = {
    .forward = {{straight_through_forward, NULL}},
    .backward = {{straight_through_backward, NULL}},
};

const esper_op_kernels ESPER_OP_KERNELS(blend_add) = {
    .forward = {{blend_add_forward, NULL}},
    .backward = {{blend_add_backward, NULL}},
};

const esper_op_kernels ESPER_OP_KERNELS(blend_mul) = {
    .forward = {{blend_mul_forward, NULL}},
    .backward = {{blend_mul_backward, NULL}},
};

const esper_op_kernels ESPER_OP_KERNELS(blend_gate) = {
    .forward = {{blend_gate_forward, NULL}},
    .backward = {{blend_gate_backward, NULL}},
};
