/* Linear layers of (I), softmax and cross-entropy on blocks of samples. */
#include "tensor/cuda/block_launch.h"

/* A warp for each four elements of a block of samples. */
static void push_elements(block_list *list, const esper_lane *lane, const char *kernel, int elements)
{
    block_push(list, kernel, BLOCK_THREADS,
               esper_cuda_divide(block_most(lane) * esper_cuda_divide(elements, HEAD_EACH), BLOCK_WARPS), 0);
}

static int linear_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    (void)part;
    push_elements(&list, lane, "esper_block_linear", lane->in[1].dim[0]);
    return list.n;
}

static int linear_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};
    const esper_view *w = &lane->in[1];

    (void)part;
    if (lane->in[0].grad != NULL)
        push_elements(&list, lane, "esper_block_linear_back", w->dim[1]);
    if (w->grad != NULL || lane->in[2].grad != NULL)
        block_push(
            &list, "esper_block_linear_weights", BLOCK_THREADS,
            esper_cuda_divide((int64_t)esper_cuda_divide(w->dim[0], HEAD_EACH) * esper_cuda_divide(w->dim[1], HEAD_IN),
                              BLOCK_WARPS),
            0);
    return list.n;
}

/* A thread for each sample. */
static int launch_samples(const esper_lane *lane, const char *kernel, esper_cuda_launch *launches_out)
{
    block_list list = {launches_out, 0};

    block_push(&list, kernel, BLOCK_THREADS, esper_cuda_divide(lane->max_samples, BLOCK_THREADS), 0);
    return list.n;
}

static int xent_forward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return launch_samples(lane, "esper_block_xent", launches_out);
}

static int xent_backward(const esper_lane *lane, esper_part part, esper_cuda_launch *launches_out)
{
    (void)part;
    return lane->in[0].grad == NULL ? 0 : launch_samples(lane, "esper_block_xent_back", launches_out);
}

const esper_cuda_op esper_cuda_blocked_linear = {.forward = linear_forward, .backward = linear_backward};
const esper_cuda_op esper_cuda_blocked_softmax_xent = {.forward = xent_forward, .backward = xent_backward};
