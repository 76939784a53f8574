/* Causal attention of several heads. A row of qkv is [q | k | v], each D wide, the columns of a head together.
 *
 *     p[i][j] = softmax over j <= i of q_i . k_j / sqrt(D / heads)        y_i = sum over j <= i of kept(p[i][j]) v_j
 *
 * p is saved as it is before dropout; what dropout keeps is drawn again in the backward pass: head by head, query by
 * query, one draw for each key j <= i. Rows of p are zero beyond i. */
#include "tensor/ref/attention.h"

static void forward(const esper_lane *lane, int begin, int end)
{
    for (int n = begin; n < end; n++) {
        esper_rng rng = stream_of(lane, n);

        for (int index = 0; index < lane->attr.attention.heads; index++) {
            head h = head_of(lane, index);

            forward_head(lane, &h, data_at(&lane->in[0], n), &rng, data_at(&lane->out[1], n),
                         data_at(&lane->out[0], n));
        }
    }
}

static void backward(const esper_lane *lane, int begin, int end)
{
    const esper_view *x = &lane->in[0];

    if (x->grad == NULL)
        return;
    for (int n = begin; n < end; n++) {
        esper_rng rng = stream_of(lane, n);

        if (!x->add)
            memset(grad_at(x, n), 0, (size_t)x->count * sizeof(real));
        for (int index = 0; index < lane->attr.attention.heads; index++) {
            head h = head_of(lane, index);

            backward_head(lane, &h, n, &rng);
        }
    }
}

const esper_op_kernels ESPER_OP_KERNELS(attention) = {
    .forward = {{forward, NULL}},
    .backward = {{backward, NULL}},
};
