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

/* The numbers that input `i` has for the samples of a plane's block, clamped. */
LANES_INLINE lanes_acc weights_of(const esper_lane *lane, int i, int plane)
{
    lanes_acc w = lanes_acc_load(data_block(&lane->in[i], plane / lane->out[0].dim[0]));

    for (int v = 0; v < LANES_VECS; v++)
        w.v[v] = clamp01(w.v[v]);
    return w;
}

/* Puts factor * g into the gradient of an input. */
static void put_scaled(const esper_lane *lane, int input, int plane, lanes_acc factor)
{
    const esper_view *view = &lane->in[input];

    if (view->grad != NULL)
        lanes_put_scaled(grad_plane(&lane->out[0], plane), factor, plane_size(view) / LANES_WIDTH, view->add,
                         grad_plane(view, plane));
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

static void interpolate(const esper_lane *lane, int plane, lanes_acc e)
{
    const float *h = data_plane(&lane->in[0], plane), *s = data_plane(&lane->in[1], plane);
    float *y = data_plane(&lane->out[0], plane);

    for (size_t i = 0; i < plane_size(&lane->in[0]); i += LANES_WIDTH)
        for (int v = 0; v < LANES_VECS; v++) {
            size_t at = i + (size_t)v * LANES_VEC;

            lanes_store(y + at, between(lanes_load(h + at), lanes_load(s + at), e.v[v]));
        }
}

static void blend_add_forward(const esper_lane *lane, int begin, int end)
{
    for (int p = begin; p < end; p++)
        interpolate(lane, p, weights_of(lane, 2, p));
}

static void blend_add_backward(const esper_lane *lane, int begin, int end)
{
    for (int p = begin; p < end; p++) {
        put_scaled(lane, 0, p, one_less(weights_of(lane, 2, p)));
        put_scaled(lane, 1, p, weights_of(lane, 2, p));
    }
}

static void blend_mul_forward(const esper_lane *lane, int begin, int end)
{
    for (int p = begin; p < end; p++) {
        const float *h = data_plane(&lane->in[0], p), *s = data_plane(&lane->in[1], p);
        const float *u = data_plane(&lane->in[2], p);
        float *y = data_plane(&lane->out[0], p);
        lanes_acc a = weights_of(lane, 3, p);

        for (size_t i = 0; i < plane_size(&lane->in[0]); i += LANES_WIDTH)
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

static void blend_mul_put(const esper_lane *lane, int input, int p)
{
    const esper_view *view = &lane->in[input];
    const float *g = grad_plane(&lane->out[0], p), *h = data_plane(&lane->in[0], p);
    const float *s = data_plane(&lane->in[1], p), *u = data_plane(&lane->in[2], p);
    float *to = grad_plane(view, p);
    lanes_acc a = weights_of(lane, 3, p);

    if (to == NULL)
        return;
    for (size_t i = 0; i < plane_size(view); i += LANES_WIDTH)
        for (int v = 0; v < LANES_VECS; v++) {
            size_t at = i + (size_t)v * LANES_VEC;
            lanes_vec m = lanes_load(s + at) - lanes_load(u + at);
            lanes_vec part = blend_mul_slope(input, lanes_load(g + at), lanes_load(h + at), m, a.v[v]);

            lanes_put(to + at, view->add, part);
        }
}

static void blend_mul_backward(const esper_lane *lane, int begin, int end)
{
    for (int p = begin; p < end; p++)
        for (int input = 0; input < 3; input++)
            blend_mul_put(lane, input, p);
}

/* The weight of s in blend_gate. */
static lanes_acc gated(const esper_lane *lane, int plane)
{
    lanes_acc gate = weights_of(lane, 2, plane), a = weights_of(lane, 3, plane);

    for (int v = 0; v < LANES_VECS; v++)
        a.v[v] = clamp01(a.v[v] * gate.v[v]);
    return a;
}

static void blend_gate_forward(const esper_lane *lane, int begin, int end)
{
    for (int p = begin; p < end; p++)
        interpolate(lane, p, gated(lane, p));
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

/* Units are blocks: the gate's gradient is a sum over all channels. */
static void blend_gate_backward(const esper_lane *lane, int begin, int end)
{
    int C = lane->out[0].dim[0];

    for (int p = begin * C; p < end * C; p++) {
        put_scaled(lane, 0, p, one_less(gated(lane, p)));
        put_scaled(lane, 1, p, gated(lane, p));
    }
    for (int b = begin; b < end && lane->in[2].grad != NULL; b++)
        put_gate(lane, b);
}

const esper_op_kernels ESPER_LANES_KERNELS(blend_add) = {
    .forward = {{blend_add_forward, count_planes}},
    .backward = {{blend_add_backward, count_planes}},
    .local_forward = true,
    .local_backward = true,
};

const esper_op_kernels ESPER_LANES_KERNELS(blend_mul) = {
    .forward = {{blend_mul_forward, count_planes}},
    .backward = {{blend_mul_backward, count_planes}},
    .local_forward = true,
    .local_backward = true,
};

const esper_op_kernels ESPER_LANES_KERNELS(blend_gate) = {
    .forward = {{blend_gate_forward, count_planes}},
    .backward = {{blend_gate_backward, count_blocks}},
    .local_forward = true,
};
