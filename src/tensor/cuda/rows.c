/* Rows in groups, in canonical layout. */
#include "tensor/cuda/plain.h"

static int add_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return plain_elements("esper_add_rows", lane, lane->in[0].count, launches_out);
}

static int add_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return plain_elements("esper_add_rows_back", lane, lane->in[1].count, launches_out);
}

static int pool_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return plain_elements("esper_pool_rows", lane, lane->out[0].count / 2, launches_out);
}

static int pool_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return lane->in[0].grad == NULL
               ? 0
               : plain_elements("esper_pool_rows_back", lane, lane->out[0].count / 2, launches_out);
}

const esper_cuda_op esper_cuda_add_rows = {.forward = add_forward, .backward = add_backward};
const esper_cuda_op esper_cuda_pool_rows = {.forward = pool_forward, .backward = pool_backward};
