/* Functions of single elements. They do not care how elements lie, so a plane passes as a sample of the canonical kernels. */
#include "tensor/cpu/blocks/kernels.h"

#define ELEMENTWISE(op, n_in)                                             \
    extern const esper_op_kernels ESPER_OP_KERNELS(op);                   \
                                                                          \
    static void op##_forward(const esper_lane *lane, int begin, int end)  \
    {                                                                     \
        esper_lane planes = planes_as_samples(lane, n_in);                \
                                                                          \
        ESPER_OP_KERNELS(op).forward[0].run(&planes, begin, end);         \
    }                                                                     \
                                                                          \
    static void op##_backward(const esper_lane *lane, int begin, int end) \
    {                                                                     \
        esper_lane planes = planes_as_samples(lane, n_in);                \
                                                                          \
        ESPER_OP_KERNELS(op).backward[0].run(&planes, begin, end);        \
    }                                                                     \
                                                                          \
    const esper_op_kernels ESPER_BLOCK_KERNELS(op) = {                    \
        .forward = {{op##_forward, count_planes}},                        \
        .backward = {{op##_backward, count_planes}},                      \
        .local_forward = true,                                            \
        .local_backward = true,                                           \
    }

ELEMENTWISE(relu, 1);
ELEMENTWISE(gelu, 1);
ELEMENTWISE(sigmoid, 1);
ELEMENTWISE(tanh, 1);
ELEMENTWISE(add, 2);
ELEMENTWISE(straight_through, 2);
