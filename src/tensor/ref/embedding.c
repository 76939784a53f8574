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

/* Columns begin .. end-1 of the gradient of a table: of the tokens by their ids, or of the positions. */
static void put_table(const esper_lane *lane, int input, int begin, int end)
{
    const esper_view *table = &lane->in[input];
    size_t D = (size_t)table->dim[1], T = (size_t)lane->in[0].count;

    for (int row = 0; row < table->dim[0] && !table->add; row++)
        memset((real *)table->grad + (size_t)row * D + begin, 0, (size_t)(end - begin) * sizeof(real));
    for (int n = 0; n < lane->pass->n_samples; n++)
        for (size_t t = 0; t < T; t++) {
            const real *g = grad_at(&lane->out[0], n) + t * D;
            real *to = (real *)table->grad + (input == 1 ? (size_t)ids_at(lane, n)[t] : t) * D;

            for (int d = begin; d < end; d++)
                to[d] += g[d];
        }
}

static void backward(const esper_lane *lane, int begin, int end)
{
    for (int input = 1; input <= 2; input++)
        if (lane->in[input].grad != NULL)
            put_table(lane, input, begin, end);
}

static int columns(const esper_lane *lane)
{
    return lane->in[1].dim[1];
}

const esper_op_kernels ESPER_OP_KERNELS(embedding) = {
    .forward = {{forward, NULL}},
    .backward = {{backward, columns}},
};
