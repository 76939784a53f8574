/* Steps of an LSTM, one after the other. A row of gates is [i | f | g | o], each H wide. With h and c of the step before,
 *
 *     a = gates[t] + w h + b      i, f, o = sigmoid(a)   g = tanh(a)      c[t] = f c + i g      y[t] = o tanh(c[t])
 *
 * What the gates have become stands in out[2], for the backward pass. A step whose reset is not 0 reads neither h nor c:
 * it begins from nothing, whatever was there before, and no gradient goes back from it.
 *
 * Scratch of the backward pass: the gradients of the sums a (N,T,4H), and those of h and c on their way back (N,2H). */
#include <string.h>
#include <tgmath.h>

#include "tensor/ref/columns.h"
#include "tensor/ref/sums.h"

typedef struct steps {
    int         T, H;
    const real *w, *b;
    const real *gates, *h, *c, *reset; /* inputs of one sample */
    real       *y, *cells, *open;      /* outputs */
} steps;

static steps steps_of(const esper_lane *lane, int n)
{
    return (steps){
        .T = lane->out[0].dim[0],
        .H = lane->out[0].dim[1],
        .w = lane->in[1].data,
        .b = lane->in[2].data,
        .gates = data_at(&lane->in[0], n),
        .h = data_at(&lane->in[3], n),
        .c = data_at(&lane->in[4], n),
        .reset = data_at(&lane->in[5], n),
        .y = data_at(&lane->out[0], n),
        .cells = data_at(&lane->out[1], n),
        .open = data_at(&lane->out[2], n),
    };
}

static const real *before(const real *first, const real *rows, int t, int H)
{
    return t == 0 ? first : rows + (size_t)(t - 1) * (size_t)H;
}

/* h before step t; NULL: there is none. */
static const real *h_before(const steps *s, int t)
{
    return s->reset[t] != 0 ? NULL : before(s->h, s->y, t, s->H);
}

static const real *c_before(const steps *s, int t)
{
    return s->reset[t] != 0 ? NULL : before(s->c, s->cells, t, s->H);
}

static real sigmoid(real x)
{
    return 1 / (1 + exp(-x));
}

static void open_gates(const steps *s, int t)
{
    const real *h = h_before(s, t);
    size_t H = (size_t)s->H, row = (size_t)t * 4 * H;

    for (size_t k = 0; k < 4 * H; k++) {
        real a = s->gates[row + k] + s->b[k] + (h != NULL ? dot(s->w + k * H, h, s->H) : 0);

        s->open[row + k] = k / H == 2 ? tanh(a) : sigmoid(a);
    }
}

static void forward(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++) {
        steps s = steps_of(lane, n);

        for (int t = 0; t < s.T; t++) {
            const real *c = c_before(&s, t), *open = s.open + (size_t)t * 4 * (size_t)s.H;
            real *cells = s.cells + (size_t)t * (size_t)s.H, *y = s.y + (size_t)t * (size_t)s.H;

            open_gates(&s, t);
            for (int j = 0; j < s.H; j++) {
                cells[j] = open[j] * open[2 * s.H + j] + (c != NULL ? open[s.H + j] * c[j] : 0);
                y[j] = open[3 * s.H + j] * tanh(cells[j]);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------ backward */

/* Rows of 4H in the batch. */
static size_t rows_of(const esper_lane *lane, int n_samples)
{
    return (size_t)n_samples * (size_t)lane->out[0].dim[0];
}

static size_t scratch(const esper_lane *lane, bool is_backward, int max_samples)
{
    size_t H = (size_t)lane->out[0].dim[1];

    return is_backward ? (rows_of(lane, max_samples) * 4 * H + (size_t)max_samples * 2 * H) * sizeof(real) : 0;
}

/* The gradients of the sums of all steps of a sample, and of its h and c. */
static real *sums_at(const esper_lane *lane, int n)
{
    return (real *)lane->scratch + rows_of(lane, n) * 4 * (size_t)lane->out[0].dim[1];
}

static real *state_at(const esper_lane *lane, int n)
{
    return sums_at(lane, lane->pass->n_samples) + (size_t)n * 2 * (size_t)lane->out[0].dim[1];
}

/* From the gradients of y[t] (dh) and of c[t] (dc, what comes from later steps) to those of the four sums, and of the c
 * before. */
static void close_gates(const steps *s, int t, const real *dh, real *dc, real *da)
{
    const real *open = s->open + (size_t)t * 4 * (size_t)s->H, *cells = s->cells + (size_t)t * (size_t)s->H;
    const real *c = c_before(s, t);
    int H = s->H;

    for (int j = 0; j < H; j++) {
        real i = open[j], f = open[H + j], g = open[2 * H + j], o = open[3 * H + j];
        real bent = tanh(cells[j]), d = dc[j] + dh[j] * o * (1 - bent * bent);

        da[j] = d * g * i * (1 - i);
        da[H + j] = c != NULL ? d * c[j] * f * (1 - f) : 0;
        da[2 * H + j] = d * i * (1 - g * g);
        da[3 * H + j] = dh[j] * bent * o * (1 - o);
        dc[j] = c != NULL ? d * f : 0;
    }
}

static void backward_sample(const esper_lane *lane, int n)
{
    steps s = steps_of(lane, n);
    size_t H = (size_t)s.H;
    real *dh = state_at(lane, n), *dc = dh + H;
    const real *g = grad_at(&lane->out[0], n);

    memset(dh, 0, 2 * H * sizeof(*dh));
    for (int t = s.T - 1; t >= 0; t--) {
        real *da = sums_at(lane, n) + (size_t)t * 4 * H;

        for (size_t j = 0; j < H; j++)
            dh[j] += g[(size_t)t * H + j];
        close_gates(&s, t, dh, dc, da);
        memset(dh, 0, H * sizeof(*dh));
        for (size_t k = 0; k < 4 * H && h_before(&s, t) != NULL; k++)
            add_scaled(dh, s.w + k * H, da[k], s.H);
    }
}

static void backward_steps(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++) {
        backward_sample(lane, n);
        grad_put_all(&lane->in[0], n, sums_at(lane, n));
        grad_put_all(&lane->in[3], n, state_at(lane, n));
        grad_put_all(&lane->in[4], n, state_at(lane, n) + lane->out[0].dim[1]);
    }
}

static int sums(const esper_lane *lane)
{
    return 4 * lane->out[0].dim[1];
}

/* Units are rows of w. */
static void backward_w(const esper_lane *lane, int begin, int end)
{
    const esper_view *w = &lane->in[1];
    size_t H = (size_t)lane->out[0].dim[1];

    if (w->grad == NULL)
        return;
    if (!w->add)
        memset((real *)w->grad + (size_t)begin * H, 0, (size_t)(end - begin) * H * sizeof(real));
    for (int n = 0; n < lane->pass->n_samples; n++) {
        steps s = steps_of(lane, n);

        for (int t = 0; t < s.T; t++) {
            const real *da = sums_at(lane, n) + (size_t)t * 4 * H, *h = h_before(&s, t);

            for (int k = begin; k < end && h != NULL; k++)
                add_scaled((real *)w->grad + (size_t)k * H, h, da[k], s.H);
        }
    }
}

static void backward_b(const esper_lane *lane, int begin, int end)
{
    if (lane->in[2].grad != NULL)
        put_column_sums(&lane->in[2], lane->scratch, rows_of(lane, lane->pass->n_samples), (size_t)sums(lane), begin,
                        end);
}

const esper_op_kernels ESPER_OP_KERNELS(lstm) = {
    .forward = {{forward, NULL}},
    .backward = {{backward_steps, NULL}, {backward_w, sums}, {backward_b, sums}},
    .scratch = scratch,
};
