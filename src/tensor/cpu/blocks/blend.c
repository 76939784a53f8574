/* How a seed's output s joins its host's h: blend_add, blend_mul, blend_gate (ref/blend.c defines them).
 *
 * Alpha and the gate are a number for each sample, so a vector of them serves a whole block. Where a weight is exactly 0
 * or 1 a sample takes h or s as it is, whatever stands in the other one.
 *
 * h, s and u may be the same tensor and then share a gradient, so each is finished before the next is begun. */
#include "tensor/cpu/blocks/kernels.h"
#include "tensor/cpu/simd_pool.h"
#include "tensor/cpu/vec_math.h"

/* A NaN stays. */
SIMD_INLINE simd_vec clamp01(simd_vec x)
{
    x = simd_select((simd_mask)(x < 0.0f), simd_all(0), x);
    return simd_select((simd_mask)(x > 1.0f), simd_all(1), x);
}

/* The numbers that input `i` has for the samples of a plane's block, clamped. */
SIMD_INLINE simd_acc weights_of(const esper_lane *lane, int i, int plane)
{
    simd_acc w = simd_acc_load(data_block(&lane->in[i], plane / lane->out[0].dim[0]));

    for (int v = 0; v < SIMD_VECS; v++)
        w.v[v] = clamp01(w.v[v]);
    return w;
}

/* Puts factor * g into the gradient of an input. */
static void put_scaled(const esper_lane *lane, int input, int plane, simd_acc factor)
{
    const esper_view *view = &lane->in[input];

    if (view->grad != NULL)
        simd_put_scaled(grad_plane(&lane->out[0], plane), factor, plane_size(view) / SIMD_WIDTH, view->add,
                        grad_plane(view, plane));
}

static simd_acc one_less(simd_acc e)
{
    for (int v = 0; v < SIMD_VECS; v++)
        e.v[v] = 1.0f - e.v[v];
    return e;
}

/* h + e (s - h), reckoned from the nearer end. */
SIMD_INLINE simd_vec between(simd_vec h, simd_vec s, simd_vec e)
{
    simd_vec y = simd_select((simd_mask)(e < 0.5f), h + e * (s - h), s - (1.0f - e) * (s - h));

    y = simd_select((simd_mask)(e == 0.0f), h, y);
    return simd_select((simd_mask)(e == 1.0f), s, y);
}

static void interpolate(const esper_lane *lane, int plane, simd_acc e)
{
    const float *h = data_plane(&lane->in[0], plane), *s = data_plane(&lane->in[1], plane);
    float *y = data_plane(&lane->out[0], plane);

    for (size_t i = 0; i < plane_size(&lane->in[0]); i += SIMD_WIDTH)
        for (int v = 0; v < SIMD_VECS; v++) {
            size_t at = i + (size_t)v * SIMD_VEC;

            simd_store(y + at, between(simd_load(h + at), simd_load(s + at), e.v[v]));
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
        simd_acc a = weights_of(lane, 3, p);

        for (size_t i = 0; i < plane_size(&lane->in[0]); i += SIMD_WIDTH)
            for (int v = 0; v < SIMD_VECS; v++) {
                size_t at = i + (size_t)v * SIMD_VEC;
                simd_vec host = simd_load(h + at), t = vec_tanh(simd_load(s + at) - simd_load(u + at));

                simd_store(y + at, simd_select((simd_mask)(a.v[v] == 0.0f), host, host * (1.0f + a.v[v] * t)));
            }
    }
}

/* dh = g (1 + a tanh m), ds = q = g h a (1 - tanh^2 m), du = -q, with m = s - u; h's alone where a is 0. */
SIMD_INLINE simd_vec blend_mul_slope(int input, simd_vec g, simd_vec h, simd_vec m, simd_vec a)
{
    simd_mask off = (simd_mask)(a == 0.0f);
    simd_vec t = vec_tanh(m), q = g * h * a * (1.0f - t * t);

    if (input == 0)
        return simd_select(off, g, g * (1.0f + a * t));
    return simd_select(off, g * 0.0f, input == 1 ? q : -q);
}

static void blend_mul_put(const esper_lane *lane, int input, int p)
{
    const esper_view *view = &lane->in[input];
    const float *g = grad_plane(&lane->out[0], p), *h = data_plane(&lane->in[0], p);
    const float *s = data_plane(&lane->in[1], p), *u = data_plane(&lane->in[2], p);
    float *to = grad_plane(view, p);
    simd_acc a = weights_of(lane, 3, p);

    if (to == NULL)
        return;
    for (size_t i = 0; i < plane_size(view); i += SIMD_WIDTH)
        for (int v = 0; v < SIMD_VECS; v++) {
            size_t at = i + (size_t)v * SIMD_VEC;
            simd_vec m = simd_load(s + at) - simd_load(u + at);
            simd_vec part = blend_mul_slope(input, simd_load(g + at), simd_load(h + at), m, a.v[v]);

            simd_put(to + at, view->add, part);
        }
}

static void blend_mul_backward(const esper_lane *lane, int begin, int end)
{
    for (int p = begin; p < end; p++)
        for (int input = 0; input < 3; input++)
            blend_mul_put(lane, input, p);
}

/* The weight of s in blend_gate. */
static simd_acc gated(const esper_lane *lane, int plane)
{
    simd_acc gate = weights_of(lane, 2, plane), a = weights_of(lane, 3, plane);

    for (int v = 0; v < SIMD_VECS; v++)
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
    double sum[SIMD_WIDTH] = {0};

    for (int64_t first = 0; first < lane->in[0].count; first += RUN) {
        int64_t last = first + RUN < lane->in[0].count ? first + RUN : lane->in[0].count;
        float part[SIMD_WIDTH] = {0};

        for (int64_t i = first; i < last; i++)
            for (int l = 0; l < SIMD_WIDTH; l++)
                part[l] += g[i * SIMD_WIDTH + l] * (s[i * SIMD_WIDTH + l] - h[i * SIMD_WIDTH + l]);
        for (int l = 0; l < SIMD_WIDTH; l++)
            sum[l] += (double)part[l];
    }
    for (int l = 0; l < SIMD_WIDTH; l++) {
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

const esper_op_kernels ESPER_BLOCK_KERNELS(blend_add) = {
    .forward = {{blend_add_forward, count_planes}},
    .backward = {{blend_add_backward, count_planes}},
    .local_forward = true,
    .local_backward = true,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(blend_mul) = {
    .forward = {{blend_mul_forward, count_planes}},
    .backward = {{blend_mul_backward, count_planes}},
    .local_forward = true,
    .local_backward = true,
};

const esper_op_kernels ESPER_BLOCK_KERNELS(blend_gate) = {
    .forward = {{blend_gate_forward, count_planes}},
    .backward = {{blend_gate_backward, count_blocks}},
    .local_forward = true,
};
