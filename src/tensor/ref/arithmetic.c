/* Sums and products of tensors: add, mul, channel_scale, mix_tanh.
 *
 * Two inputs may be the same tensor and then share a gradient, so input 0 is finished before input 1 is begun. */
#include <tgmath.h>

#include "tensor/ref/elements.h"
#include "tensor/ref/sums.h"

static void add_forward(const esper_lane *lane, int begin, int end)
{
    const real *a = data_at(&lane->in[0], begin), *b = data_at(&lane->in[1], begin);
    real *y = data_at(&lane->out[0], begin);
    size_t n = elements(lane, begin, end);

    for (size_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void add_backward(const esper_lane *lane, int begin, int end)
{
    put_scaled(lane, 0, 1, begin, end);
    put_scaled(lane, 1, 1, begin, end);
}

/* Elements of a that share one factor: the pixels of a channel, or 1 when b is like a. */
static size_t plane_of(const esper_lane *lane)
{
    return (size_t)lane->in[0].count / (size_t)lane->in[1].count;
}

/* to = from times one factor for each plane. */
static void scale_planes(const real *from, const real *factor, size_t planes, size_t plane, real *to)
{
    for (size_t c = 0; c < planes; c++)
        for (size_t i = 0; i < plane; i++)
            to[c * plane + i] = from[c * plane + i] * factor[c];
}

/* The gradient of scale_planes' `from`. */
static void put_planes(const esper_view *view, const real *g, const real *factor, size_t planes, size_t plane, real *to)
{
    for (size_t c = 0; c < planes; c++)
        for (size_t i = 0; i < plane; i++)
            grad_put(view, &to[c * plane + i], g[c * plane + i] * factor[c]);
}

/* to[i] = a[i] b[i] into a gradient. */
static void put_products(const esper_view *view, const real *a, const real *b, size_t n, real *to)
{
    for (size_t i = 0; i < n; i++)
        grad_put(view, &to[i], a[i] * b[i]);
}

static void mul_forward(const esper_lane *lane, int begin, int end)
{
    size_t plane = plane_of(lane), planes = (size_t)lane->in[1].count;
    const real *a = data_at(&lane->in[0], begin), *b = data_at(&lane->in[1], begin);
    real *y = data_at(&lane->out[0], begin);
    size_t n = elements(lane, begin, end);

    if (plane != 1) {
        scale_planes(a, b, planes * (size_t)(end - begin), plane, y);
        return;
    }
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] * b[i];
}

static void mul_backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *a = &lane->in[0], *b = &lane->in[1];
    const real *g = grad_at(&lane->out[0], begin);
    size_t plane = plane_of(lane), planes = (size_t)b->count * (size_t)(end - begin);

    if (a->grad != NULL && plane == 1)
        put_products(a, g, data_at(b, begin), planes, grad_at(a, begin));
    else if (a->grad != NULL)
        put_planes(a, g, data_at(b, begin), planes, plane, grad_at(a, begin));
    if (b->grad != NULL && plane == 1)
        put_products(b, g, data_at(a, begin), planes, grad_at(b, begin));
    else if (b->grad != NULL)
        for (size_t c = 0; c < planes; c++)
            grad_put(b, grad_at(b, begin) + c,
                     (real)sum_product(g + c * plane, data_at(a, begin) + c * plane, 0, plane));
}

static void channel_scale_forward(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++)
        scale_planes(data_at(&lane->in[0], n), lane->in[1].data, (size_t)lane->in[1].count, plane_of(lane),
                     data_at(&lane->out[0], n));
}

static void channel_scale_backward_x(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    if (x->grad == NULL)
        return;
    for (int n = begin; n < end; n++)
        put_planes(x, grad_at(&lane->out[0], n), lane->in[1].data, (size_t)lane->in[1].count, plane_of(lane),
                   grad_at(x, n));
}

/* Units are channels. */
static void channel_scale_backward_s(const esper_lane *lane, int begin, int end)
{
    const esper_view *s = &lane->in[1];
    size_t plane = plane_of(lane);

    if (s->grad == NULL)
        return;
    for (int c = begin; c < end; c++) {
        size_t offset = (size_t)c * plane;
        double sum = 0;

        for (int n = 0; n < lane->pass->n_samples; n++)
            sum += sum_product(grad_at(&lane->out[0], n) + offset, data_at(&lane->in[0], n) + offset, 0, plane);
        grad_put(s, (real *)s->grad + c, (real)sum);
    }
}

/* tanh(w), how much of z there is in mix_tanh. */
static real mix_of(const esper_lane *lane)
{
    return tanh(*(const real *)lane->in[2].data);
}

static void mix_tanh_forward(const esper_lane *lane, int begin, int end)
{
    const real *x = data_at(&lane->in[0], begin), *z = data_at(&lane->in[1], begin);
    real *y = data_at(&lane->out[0], begin), mix = mix_of(lane);
    size_t n = elements(lane, begin, end);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] + mix * (z[i] - x[i]);
}

static void mix_tanh_backward_x_z(const esper_lane *lane, int begin, int end)
{
    put_scaled(lane, 0, 1 - mix_of(lane), begin, end);
    put_scaled(lane, 1, mix_of(lane), begin, end);
}

/* One unit: dw = (1 - tanh(w)^2) * sum of g (z - x). */
static void mix_tanh_backward_w(const esper_lane *lane, int begin, int end)
{
    const esper_view *w = &lane->in[2];
    real mix = mix_of(lane);
    double sum = 0;

    if (w->grad == NULL || begin == end)
        return;
    for (int n = 0; n < lane->pass->n_samples; n++) {
        const real *g = grad_at(&lane->out[0], n);
        size_t count = (size_t)lane->in[0].count;

        sum += sum_product(g, data_at(&lane->in[1], n), 0, count) - sum_product(g, data_at(&lane->in[0], n), 0, count);
    }
    grad_put(w, w->grad, (real)((1 - (double)mix * (double)mix) * sum));
}

const esper_op_kernels ESPER_OP_KERNELS(add) = {
    .forward = {{add_forward, NULL}},
    .backward = {{add_backward, NULL}},
};

const esper_op_kernels ESPER_OP_KERNELS(mul) = {
    .forward = {{mul_forward, NULL}},
    .backward = {{mul_backward, NULL}},
};

const esper_op_kernels ESPER_OP_KERNELS(channel_scale) = {
    .forward = {{channel_scale_forward, NULL}},
    .backward = {{channel_scale_backward_x, NULL}, {channel_scale_backward_s, units_of_channels}},
};

const esper_op_kernels ESPER_OP_KERNELS(mix_tanh) = {
    .forward = {{mix_tanh_forward, NULL}},
    .backward = {{mix_tanh_backward_x_z, NULL}, {mix_tanh_backward_w, one_unit}},
};
