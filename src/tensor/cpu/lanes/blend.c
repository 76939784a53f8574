/* How a seed's output s joins its host's h: blend_add, blend_mul, blend_gate (ref/blend.c defines them).
 *
 * Alpha and the gate are a number for each sample, so a vector of them serves a whole block. Where a weight is exactly 0
 * or 1 a lane takes h or s as it is, whatever stands in the other one.
 *
 * h, s and u may be the same tensor and then share a gradient, so each is finished before the next is begun. */
#include "tensor/cpu/lanes/kernels.h"
#include "tensor/cpu/lanes_pool.h"
#include "tensor/cpu/vec_math.h"

/* A NaN stays. */
LANES_INLINE lanes_vec clamp01(lanes_vec x)
{
    x = lanes_select((lanes_mask)(x < 0.0f), lanes_all(0), x);
    return lanes_select((lanes_mask)(x > 1.0f), lanes_all(1), x);
}

/* The numbers that input `i` has for the samples of a block, clamped. */
LANES_INLINE lanes_acc weights_of(const esper_lane *lane, int i, int block)
{
    lanes_acc w = lanes_acc_load(data_block(&lane->in[i], block));

    for (int v = 0; v < LANES_VECS; v++)
        w.v[v] = clamp01(w.v[v]);
    return w;
}

/* Puts factor * g into the gradient of an input. */
static void put_scaled(const esper_lane *lane, int input, int block, lanes_acc factor)
{
    const esper_view *view = &lane->in[input];
    const float *g = grad_block(&lane->out[0], block);
    float *to = grad_block(view, block);

    if (to == NULL)
        return;
    for (int64_t i = 0; i < view->count; i++, g += LANES_WIDTH, to += LANES_WIDTH)
        for (int v = 0; v < LANES_VECS; v++) {
            lanes_vec part = factor.v[v] * lanes_load(g + v * LANES_VEC);

            lanes_put(to + v * LANES_VEC, view->add, part);
        }
}

static lanes_acc one_less(lanes_acc e)
{
    for (int v = 0; v < LANES_VECS; v++)
        e.v[v] = 1.0f - e.v[v];
    return e;
}

/* h + e (s - h), reckoned from the nearer end. */
LANES_INLINE lanes_vec between(lanes_vec h, lanes_vec s, lanes_vec e)
{
    lanes_vec y = lanes_select((lanes_mask)(e < 0.5f), h + e * (s - h), s - (1.0f - e) * (s - h));

    y = lanes_select((lanes_mask)(e == 0.0f), h, y);
    return lanes_select((lanes_mask)(e == 1.0f), s, y);
}

static void interpolate(const esper_lane *lane, int block, lanes_acc e)
{
    const float *h = data_block(&lane->in[0], block), *s = data_block(&lane->in[1], block);
    float *y = data_block(&lane->out[0], block);

    for (size_t i = 0; i < block_size(&lane->in[0]); i += LANES_WIDTH)
        for (int v = 0; v < LANES_VECS; v++) {
            size_t at = i + (size_t)v * LANES_VEC;

            lanes_store(y + at, between(lanes_load(h + at), lanes_load(s + at), e.v[v]));
        }
}

static void blend_add_forward(const esper_lane *lane, int begin, int end)
{
    for (int b = begin; b < end; b++)
        interpolate(lane, b, weights_of(lane, 2, b));
}

static void blend_add_backward(const esper_lane *lane, int begin, int end)
{
    for (int b = begin; b < end; b++) {
        put_scaled(lane, 0, b, one_less(weights_of(lane, 2, b)));
        put_scaled(lane, 1, b, weights_of(lane, 2, b));
    }
}

static void blend_mul_forward(const esper_lane *lane, int begin, int end)
{
    for (int b = begin; b < end; b++) {
        const float *h = data_block(&lane->in[0], b), *s = data_block(&lane->in[1], b);
        const float *u = data_block(&lane->in[2], b);
        float *y = data_block(&lane->out[0], b);
        lanes_acc a = weights_of(lane, 3, b);

        for (size_t i = 0; i < block_size(&lane->in[0]); i += LANES_WIDTH)
            for (int v = 0; v < LANES_VECS; v++) {
                size_t at = i + (size_t)v * LANES_VEC;
                lanes_vec host = lanes_load(h + at), t = vec_tanh(lanes_load(s + at) - lanes_load(u + at));

                lanes_store(y + at, lanes_select((lanes_mask)(a.v[v] == 0.0f), host, host * (1.0f + a.v[v] * t)));
            }
    }
}

/* dh = g (1 + a tanh m), ds = q = g h a (1 - tanh^2 m), du = -q, with m = s - u; h's alone where a is 0. */
LANES_INLINE lanes_vec blend_mul_slope(int input, lanes_vec g, lanes_vec h, lanes_vec m, lanes_vec a)
{
    lanes_mask off = (lanes_mask)(a == 0.0f);
    lanes_vec t = vec_tanh(m), q = g * h * a * (1.0f - t * t);

    if (input == 0)
        return lanes_select(off, g, g * (1.0f + a * t));
    return lanes_select(off, g * 0.0f, input == 1 ? q : -q);
}

static void blend_mul_put(const esper_lane *lane, int input, int b)
{
    const esper_view *view = &lane->in[input];
    const float *g = grad_block(&lane->out[0], b), *h = data_block(&lane->in[0], b);
    const float *s = data_block(&lane->in[1], b), *u = data_block(&lane->in[2], b);
    float *to = grad_block(view, b);
    lanes_acc a = weights_of(lane, 3, b);

    if (to == NULL)
        return;
    for (size_t i = 0; i < block_size(view); i += LANES_WIDTH)
        for (int v = 0; v < LANES_VECS; v++) {
            size_t at = i + (size_t)v * LANES_VEC;
            lanes_vec m = lanes_load(s + at) - lanes_load(u + at);
            lanes_vec part = blend_mul_slope(input, lanes_load(g + at), lanes_load(h + at), m, a.v[v]);

            lanes_put(to + at, view->add, part);
        }
}

static void blend_mul_backward(const esper_lane *lane, int begin, int end)
{
    for (int b = begin; b < end; b++)
        for (int input = 0; input < 3; input++)
            blend_mul_put(lane, input, b);
}

/* The weight of s in blend_gate. */
static lanes_acc gated(const esper_lane *lane, int block)
{
    lanes_acc gate = weights_of(lane, 2, block), a = weights_of(lane, 3, block);

    for (int v = 0; v < LANES_VECS; v++)
        a.v[v] = clamp01(a.v[v] * gate.v[v]);
    return a;
}

static void blend_gate_forward(const esper_lane *lane, int begin, int end)
{
    for (int b = begin; b < end; b++)
        interpolate(lane, b, gated(lane, b));
}

/* a * sum of g (s - h), and none where the gate was clamped; its ends 0 and 1 count as inside. Short runs of the sum are
 * kept in float, the whole in double. */
static void put_gate(const esper_lane *lane, int b)
{
    enum { RUN = 64 };
    const esper_view *gate = &lane->in[2];
    const float *g = grad_block(&lane->out[0], b), *h = data_block(&lane->in[0], b), *s = data_block(&lane->in[1], b);
    const float *value = data_block(gate, b), *alpha = data_block(&lane->in[3], b);
    double sum[LANES_WIDTH] = {0};

    for (int64_t first = 0; first < lane->in[0].count; first += RUN) {
        int64_t last = first + RUN < lane->in[0].count ? first + RUN : lane->in[0].count;
        float part[LANES_WIDTH] = {0};

        for (int64_t i = first; i < last; i++)
            for (int l = 0; l < LANES_WIDTH; l++)
                part[l] += g[i * LANES_WIDTH + l] * (s[i * LANES_WIDTH + l] - h[i * LANES_WIDTH + l]);
        for (int l = 0; l < LANES_WIDTH; l++)
            sum[l] += (double)part[l];
    }
    for (int l = 0; l < LANES_WIDTH; l++) {
        float a = alpha[l] < 0 ? 0 : alpha[l] > 1 ? 1 : alpha[l];
        bool off = value[l] < 0 || value[l] > 1 || a == 0;

        grad_put(gate, grad_block(gate, b) + l, off ? 0 : (float)((double)a * sum[l]));
    }
}

static void blend_gate_backward(const esper_lane *lane, int begin, int end)
{
    for (int b = begin; b < end; b++) {
        put_scaled(lane, 0, b, one_less(gated(lane, b)));
        put_scaled(lane, 1, b, gated(lane, b));
        if (lane->in[2].grad != NULL)
            put_gate(lane, b);
    }
}

const esper_op_kernels ESPER_LANES_KERNELS(blend_add) = {
    .forward = {{blend_add_forward, count_blocks}},
    .backward = {{blend_add_backward, count_blocks}},
};

const esper_op_kernels ESPER_LANES_KERNELS(blend_mul) = {
    .forward = {{blend_mul_forward, count_blocks}},
    .backward = {{blend_mul_backward, count_blocks}},
};

const esper_op_kernels ESPER_LANES_KERNELS(blend_gate) = {
    .forward = {{blend_gate_forward, count_blocks}},
    .backward = {{blend_gate_backward, count_blocks}},
};
