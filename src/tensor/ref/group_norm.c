/* Group norm: the channels of a sample are normalised in groups, over the group's channels and pixels.
 *
 *     y = (x - mean) / sqrt(var + eps) * scale + shift
 *
 * A group lies in one piece. Its (mean, 1/std) are left in out[1] for the backward pass. */
#include <math.h>

#include "tensor/ref/sums.h"

typedef struct shape {
    int groups, channels; /* channels of one group */
    size_t plane;         /* pixels */
    size_t size;          /* elements of one group */
} shape;

static shape shape_of(const esper_lane *lane)
{
    const esper_view *x = &lane->in[0];
    shape s = {.groups = lane->attr.norm.groups, .plane = (size_t)x->dim[1] * (size_t)x->dim[2]};

    s.channels = x->dim[0] / s.groups;
    s.size = (size_t)s.channels * s.plane;
    return s;
}

/* x and y point to the group's first element, scale and shift to its first channel. */
static void normalise(const shape *s, const real *x, real mean, real rstd, const real *scale, const real *shift,
                      real *y)
{
    for (int c = 0; c < s->channels; c++, x += s->plane, y += s->plane) {
        real factor = scale[c] * rstd;

        for (size_t i = 0; i < s->plane; i++)
            y[i] = (x[i] - mean) * factor + shift[c];
    }
}

static void forward(const esper_lane *lane, int begin, int end)
{
    const real *scale = lane->in[1].data, *shift = lane->in[2].data;
    shape s = shape_of(lane);

    for (int n = begin; n < end; n++)
        for (int g = 0; g < s.groups; g++) {
            const real *x = data_at(&lane->in[0], n) + (size_t)g * s.size;
            real *stat = data_at(&lane->out[1], n) + 2 * g;
            double mean = sum_of(x, s.size) / (double)s.size;
            double var = sum_squares(x, mean, s.size) / (double)s.size;

            stat[0] = (real)mean;
            stat[1] = (real)(1 / sqrt(var + (double)lane->attr.norm.eps));
            normalise(&s, x, stat[0], stat[1], scale + g * s.channels, shift + g * s.channels,
                      data_at(&lane->out[0], n) + (size_t)g * s.size);
        }
}

/* dx = (g scale - mean of g scale - xhat * mean of g scale xhat) / std, over one group. */
static void backward_group(const esper_lane *lane, const shape *s, int n, int group)
{
    const esper_view *view = &lane->in[0];
    const real *scale = (const real *)lane->in[1].data + group * s->channels;
    const real *stat = data_at(&lane->out[1], n) + 2 * group;
    size_t offset = (size_t)group * s->size;
    const real *g = grad_at(&lane->out[0], n) + offset, *x = data_at(view, n) + offset;
    real *dx = grad_at(view, n) + offset;
    double sum_g = 0, sum_gx = 0;
    real mean_g, slope;

    for (int c = 0; c < s->channels; c++) {
        sum_g += (double)scale[c] * sum_of(g + (size_t)c * s->plane, s->plane);
        sum_gx += (double)scale[c] *
                  sum_product(g + (size_t)c * s->plane, x + (size_t)c * s->plane, (double)stat[0], s->plane);
    }
    mean_g = (real)(sum_g / (double)s->size);
    slope = (real)(sum_gx / (double)s->size * (double)stat[1] * (double)stat[1]);
    for (int c = 0; c < s->channels; c++, g += s->plane, x += s->plane, dx += s->plane)
        for (size_t i = 0; i < s->plane; i++)
            grad_put(view, &dx[i], (g[i] * scale[c] - mean_g - (x[i] - stat[0]) * slope) * stat[1]);
}

static void backward_x(const esper_lane *lane, int begin, int end)
{
    shape s = shape_of(lane);

    if (lane->in[0].grad == NULL)
        return;
    for (int n = begin; n < end; n++)
        for (int g = 0; g < s.groups; g++)
            backward_group(lane, &s, n, g);
}

/* Units are channels. */
static void backward_scale_shift(const esper_lane *lane, int begin, int end)
{
    const esper_view *scale = &lane->in[1], *shift = &lane->in[2];
    shape s = shape_of(lane);

    for (int c = begin; c < end; c++) {
        double sum_g = 0, sum_gx = 0; /* of g, and of g xhat */

        for (int n = 0; n < lane->pass->n_samples; n++) {
            const real *g = grad_at(&lane->out[0], n) + (size_t)c * s.plane;
            const real *x = data_at(&lane->in[0], n) + (size_t)c * s.plane;
            const real *stat = data_at(&lane->out[1], n) + 2 * (c / s.channels);

            sum_g += sum_of(g, s.plane);
            sum_gx += sum_product(g, x, (double)stat[0], s.plane) * (double)stat[1];
        }
        if (scale->grad != NULL)
            grad_put(scale, (real *)scale->grad + c, (real)sum_gx);
        if (shift->grad != NULL)
            grad_put(shift, (real *)shift->grad + c, (real)sum_g);
    }
}

const esper_op_kernels ESPER_OP_KERNELS(group_norm) = {
    .forward = {{forward, NULL}},
    .backward = {{backward_x, NULL}, {backward_scale_shift, units_of_channels}},
};
