/* Embedding: the row of each token's id plus the row of its position, where there are positions.
 *
 * A table's gradient is a scatter: rows of the incoming gradient are added where their ids point, samples and tokens in
 * order. The unit is a column of the tables, so that no two units meet in an element; a range of columns is walked row by
 * row. Ids were checked when the data was read. */
#include <assert.h>
#include <string.h>

#include "tensor/ref/ref.h"

static const int32_t *ids_at(const esper_lane *lane, int sample)
{
    return (const int32_t *)lane->in[0].data + (size_t)sample * (size_t)lane->in[0].count;
}

static void forward(const esper_lane *lane, int begin, int end)
{
    const real *tokens = lane->in[1].data, *positions = lane->in[2].data;
    size_t D = (size_t)lane->in[1].dim[1], T = (size_t)lane->in[0].count;

    for (int n = begin; n < end; n++) {
        const int32_t *ids = ids_at(lane, n);
        real *y = data_at(&lane->out[0], n);

        for (size_t t = 0; t < T; t++) {
            const real *token = tokens + (size_t)ids[t] * D;

            assert(ids[t] >= 0 && ids[t] < lane->in[1].dim[0]);
            for (size_t d = 0; d < D; d++)
                y[t * D + d] = positions != NULL ? token[d] + positions[t * D + d] : token[d];
        }
    }
}

/* Zeroes columns begin .. end-1 of a table's gradient unless it is to be added to. */
static void begin_columns(const esper_view *table, int begin, int end)
{
    size_t D = (size_t)table->dim[1];

    if (!table->add)
        for (int row = 0; row < table->dim[0]; row++)
            memset((real *)table->grad + (size_t)row * D + begin, 0, (size_t)(end - begin) * sizeof(real));
}

static void add_row(const esper_view *table, size_t row, const real *g, int begin, int end)
{
    real *to = (real *)table->grad + row * (size_t)table->dim[1];

    for (int d = begin; d < end; d++)
        to[d] += g[d];
}

static void backward_tokens(const esper_lane *lane, int begin, int end)
{
    const esper_view *tokens = &lane->in[1];
    size_t D = (size_t)tokens->dim[1], T = (size_t)lane->in[0].count;

    if (tokens->grad == NULL)
        return;
    begin_columns(tokens, begin, end);
    for (int n = 0; n < lane->pass->n_samples; n++)
        for (size_t t = 0; t < T; t++)
            add_row(tokens, (size_t)ids_at(lane, n)[t], grad_at(&lane->out[0], n) + t * D, begin, end);
}

static void backward_positions(const esper_lane *lane, int begin, int end)
{
    const esper_view *positions = &lane->in[2];
    size_t D = (size_t)positions->dim[1], T = (size_t)lane->in[0].count;

    if (positions->grad == NULL)
        return;
    begin_columns(positions, begin, end);
    for (int n = 0; n < lane->pass->n_samples; n++)
        for (size_t t = 0; t < T; t++)
            add_row(positions, t, grad_at(&lane->out[0], n) + t * D, begin, end);
}

static int columns(const esper_lane *lane)
{
    return lane->in[1].dim[1];
}

const esper_op_kernels ESPER_OP_KERNELS(embedding) = {
    .forward = {{forward, NULL}},
    .backward = {{backward_tokens, columns}, {backward_positions, columns}},
};
