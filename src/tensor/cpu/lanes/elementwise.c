/* Functions of single elements. They do not care how elements lie, so a block passes as one large sample of the canonical
 * kernels. */
#include "tensor/cpu/lanes/kernels.h"

/* The same lane with blocks for samples. */
static esper_lane blocks_as_samples(const esper_lane *lane, int n_in)
{
    esper_lane blocks = *lane;

    for (int i = 0; i < n_in; i++)
        blocks.in[i].count *= LANES_WIDTH;
    blocks.out[0].count *= LANES_WIDTH;
    return blocks;
}

#define ELEMENTWISE(op, n_in)                                             \
    extern const esper_op_kernels ESPER_OP_KERNELS(op);                   \
                                                                          \
    static void op##_forward(const esper_lane *lane, int begin, int end)  \
    {                                                                     \
        esper_lane blocks = blocks_as_samples(lane, n_in);                \
                                                                          \
        ESPER_OP_KERNELS(op).forward[0].run(&blocks, begin, end);         \
    }                                                                     \
                                                                          \
    static void op##_backward(const esper_lane *lane, int begin, int end) \
    {                                                                     \
        esper_lane blocks = blocks_as_samples(lane, n_in);                \
                                                                          \
        ESPER_OP_KERNELS(op).backward[0].run(&blocks, begin, end);        \
    }                                                                     \
                                                                          \
    const esper_op_kernels ESPER_LANES_KERNELS(op) = {                    \
        .forward = {{op##_forward, count_blocks}},                        \
        .backward = {{op##_backward, count_blocks}},                      \
    }

ELEMENTWISE(relu, 1);
ELEMENTWISE(gelu, 1);
ELEMENTWISE(sigmoid, 1);
ELEMENTWISE(tanh, 1);
ELEMENTWISE(add, 2);
ELEMENTWISE(straight_through, 2);
