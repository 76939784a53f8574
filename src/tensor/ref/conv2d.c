/* Convolution: stride 1, square kernel, zero padding, groups. Written for the eye: tap by tap.
 *
 *     y[o][i][j] = sum over c, ky, kx of w[o][c][ky][kx] x[c][i + ky - pad][j + kx - pad],   c the channels of o's group
 */
#include <string.h>

#include "tensor/ref/sums.h"

/* One weight's work: the output pixels it serves, rows begin_y .. end_y-1 and columns begin_x .. end_x-1 (those whose input
 * lies inside of the image), and the step from an output pixel to its input. */
typedef struct tap {
    int    begin_y, end_y, begin_x, end_x;
    int    step_y, step_x;
    int    in_w, out_w;
    size_t in, out,
        weight; /* where its input plane, output plane and weight begin: elements within a sample, within w */
} tap;

/* Tap t of output channel o; there are C/groups * k * k of them. */
static tap tap_of(const esper_lane *lane, int o, int t)
{
    const esper_view *x = &lane->in[0], *w = &lane->in[1], *y = &lane->out[0];
    int k = w->dim[2], per_group = w->dim[1], group = o / (y->dim[0] / lane->attr.conv.groups);
    int c = group * per_group + t / (k * k);
    tap v = {.step_y = t / k % k - lane->attr.conv.pad, .step_x = t % k - lane->attr.conv.pad};

    v.in_w = x->dim[2];
    v.out_w = y->dim[2];
    v.begin_y = v.step_y < 0 ? -v.step_y : 0;
    v.end_y = y->dim[1] < x->dim[1] - v.step_y ? y->dim[1] : x->dim[1] - v.step_y;
    v.begin_x = v.step_x < 0 ? -v.step_x : 0;
    v.end_x = y->dim[2] < x->dim[2] - v.step_x ? y->dim[2] : x->dim[2] - v.step_x;
    v.in = (size_t)c * (size_t)(x->dim[1] * x->dim[2]);
    v.out = (size_t)o * (size_t)(y->dim[1] * y->dim[2]);
    v.weight = (size_t)o * (size_t)(per_group * k * k) + (size_t)t;
    return v;
}

static int taps_of(const esper_lane *lane)
{
    const esper_view *w = &lane->in[1];

    return w->dim[1] * w->dim[2] * w->dim[3];
}

/* Row i of the output pixels, and the row of input pixels they read. */
static size_t out_row(const tap *v, int i)
{
    return v->out + (size_t)(i * v->out_w + v->begin_x);
}

static size_t in_row(const tap *v, int i)
{
    return v->in + (size_t)((i + v->step_y) * v->in_w + v->begin_x + v->step_x);
}

static void forward(const esper_lane *lane, int begin, int end)
{
    const real *w = lane->in[1].data;

    for (int n = begin; n < end; n++) {
        const real *x = data_at(&lane->in[0], n);
        real *y = data_at(&lane->out[0], n);

        memset(y, 0, (size_t)lane->out[0].count * sizeof(*y));
        for (int o = 0; o < lane->out[0].dim[0]; o++)
            for (int t = 0; t < taps_of(lane); t++) {
                tap v = tap_of(lane, o, t);

                for (int i = v.begin_y; i < v.end_y; i++)
                    add_scaled(y + out_row(&v, i), x + in_row(&v, i), w[v.weight], v.end_x - v.begin_x);
            }
    }
}

static void backward_x(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];
    const real *w = lane->in[1].data;

    for (int n = begin; n < end && x->grad != NULL; n++) {
        const real *g = grad_at(&lane->out[0], n);
        real *dx = grad_at(x, n);

        if (!x->add)
            memset(dx, 0, (size_t)x->count * sizeof(*dx));
        for (int o = 0; o < lane->out[0].dim[0]; o++)
            for (int t = 0; t < taps_of(lane); t++) {
                tap v = tap_of(lane, o, t);

                for (int i = v.begin_y; i < v.end_y; i++)
                    add_scaled(dx + in_row(&v, i), g + out_row(&v, i), w[v.weight], v.end_x - v.begin_x);
            }
    }
}

/* Units are output channels. */
static void backward_w(const esper_lane *lane, int begin, int end)
{
    const esper_view *w = &lane->in[1];

    for (int o = begin; o < end && w->grad != NULL; o++)
        for (int t = 0; t < taps_of(lane); t++) {
            tap v = tap_of(lane, o, t);
            double sum = 0.0;

            for (int n = 0; n < lane->pass->n_samples; n++)
                for (int i = v.begin_y; i < v.end_y; i++)
                    sum += (double)dot(grad_at(&lane->out[0], n) + out_row(&v, i),
                                       data_at(&lane->in[0], n) + in_row(&v, i), v.end_x - v.begin_x);
            grad_put(w, (real *)w->grad + v.weight, (real)sum);
        }
}

const esper_op_kernels ESPER_OP_KERNELS(conv2d) = {
    .forward = {{forward, NULL}},
    .backward = {{backward_x, NULL}, {backward_w, units_of_channels}},
};
