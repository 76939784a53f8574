/* Rows in groups of S: one row added to all of a group, and the mean and the largest of those that are there. A thread has a
 * column of a group, and walks its rows in order. */
#include "tensor/cuda/images.cuh"

ESPER_KERNEL(esper_add_rows, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *a = &lane->in[0], *b = &lane->in[1];
    int D = a->dim[1], S = a->dim[0] / b->dim[0], n, at = element_of(lane, (int)a->count, &n);

    if (at < 0)
        return;
    data_of(&lane->out[0], n)[at] = data_of(a, n)[at] + data_of(b, n)[at / D / S * D + at % D];
}

ESPER_KERNEL(esper_add_rows_back, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *a = &lane->in[0], *b = &lane->in[1];
    int D = a->dim[1], S = a->dim[0] / b->dim[0], n, at = element_of(lane, (int)b->count, &n);
    size_t first = (size_t)(at / D) * S * D + at % D;
    double sum = 0;

    if (at < 0)
        return;
    for (int s = 0; s < S; s++) {
        float g = grad_of(&lane->out[0], n)[first + (size_t)s * D];

        sum += (double)g;
        if (a->grad != NULL)
            put_grad(a, grad_of(a, n) + first + (size_t)s * D, g);
    }
    if (b->grad != NULL)
        put_grad(b, grad_of(b, n) + at, (float)sum);
}

/* A column of a group. */
struct column {
    const float *x, *there;
    int          S, D;
};

FUNCTION float value_at(const column &c, int s)
{
    return c.x[(size_t)s * c.D];
}

FUNCTION int count_rows(const column &c)
{
    int n = 0;

    for (int s = 0; s < c.S; s++)
        n += c.there[s] != 0;
    return n;
}

/* Of equals the first; S: none is there. What is not a number is the largest. */
FUNCTION int largest_row(const column &c)
{
    int best = c.S;

    for (int s = 0; s < c.S; s++)
        if (c.there[s] != 0 && (best == c.S || (value_at(c, best) == value_at(c, best) &&
                                                !(value_at(c, s) <= value_at(c, best)))))
            best = s;
    return best;
}

FUNCTION column column_of(const esper_lane *lane, int sample, int group, int d)
{
    const esper_view *x = &lane->in[0];
    int S = x->dim[0] / lane->out[0].dim[0], D = x->dim[1];

    return {data_of(x, sample) + (size_t)group * S * D + d, data_of(&lane->in[1], sample) + (size_t)group * S, S, D};
}

ESPER_KERNEL(esper_pool_rows, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *y = &lane->out[0];
    int D = lane->in[0].dim[1], n, at = element_of(lane, (int)y->count / 2, &n);

    if (at < 0)
        return;
    column c = column_of(lane, n, at / D, at % D);
    float *to = data_of(y, n) + (size_t)(at / D) * 2 * D + at % D;
    int count = count_rows(c);
    double sum = 0;

    for (int s = 0; s < c.S; s++)
        sum += c.there[s] != 0 ? (double)value_at(c, s) : 0;
    to[0] = count > 0 ? (float)(sum / count) : 0;
    to[D] = count > 0 ? value_at(c, largest_row(c)) : 0;
}

ESPER_KERNEL(esper_pool_rows_back, PLAIN_THREADS)
{
    const esper_lane *lane = lanes.lane[blockIdx.y];
    const esper_view *x = &lane->in[0], *y = &lane->out[0];
    int D = x->dim[1], n, at = element_of(lane, (int)y->count / 2, &n);

    if (at < 0)
        return;
    column c = column_of(lane, n, at / D, at % D);
    const float *g = grad_of(y, n) + (size_t)(at / D) * 2 * D + at % D;
    float *to = grad_of(x, n) + (size_t)(at / D) * c.S * D + at % D, part = 1 / (float)count_rows(c);
    int best = largest_row(c);

    for (int s = 0; s < c.S; s++)
        put_grad(x, to + (size_t)s * D, c.there[s] != 0 ? g[0] * part + (s == best ? g[D] : 0) : 0);
}
