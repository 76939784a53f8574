/* The kernels of tensor/cuda/ in the shape of a kernel set: every direction of an operation is one phase, done in one go. */
#include "cuda/cuda_host.h"
#include "tensor/cuda/kernels.h"

static int one_result(const esper_lane *lane)
{
    (void)lane;
    return 1;
}

static void run(esper_op_kind kind, esper_direction direction, const esper_lane *lane)
{
    esper_lane known = *lane;

    if (lane->pass != NULL && lane->max_samples == 0)
        known.max_samples = lane->pass->n_samples; /* lanes made by hand do not say */
    cuda_host_run(&(esper_launch){.kind = kind, .direction = direction, .n_lanes = 1, .lanes = &known});
}

#define X(kind, name, ...)                                                                 \
    static void forward_##name(const esper_lane *lane, int begin, int end)                 \
    {                                                                                      \
        if (begin < end)                                                                   \
            run(ESPER_OP_##kind, ESPER_FORWARD, lane);                                     \
    }                                                                                      \
    static void backward_##name(const esper_lane *lane, int begin, int end)                \
    {                                                                                      \
        if (begin < end)                                                                   \
            run(ESPER_OP_##kind, ESPER_BACKWARD, lane);                                    \
    }                                                                                      \
    static size_t scratch_##name(const esper_lane *lane, bool backward, int samples)       \
    {                                                                                      \
        const esper_cuda_op *op = esper_cuda_op_of(ESPER_OP_##kind, ESPER_CUDA_CANONICAL); \
                                                                                           \
        return op->scratch == NULL ? 0 : op->scratch(lane, backward, samples);             \
    }
ESPER_OP_LIST(X)
#undef X

const esper_kernel_set *cuda_host_kernels(void)
{
    static esper_op_kernels ops[ESPER_N_OPS] = {
#define X(kind, name, ...)                           \
    [ESPER_OP_##kind] = {                            \
        .forward = {{forward_##name, one_result}},   \
        .backward = {{backward_##name, one_result}}, \
        .scratch = scratch_##name,                   \
    },
        ESPER_OP_LIST(X)
#undef X
    };
    static esper_kernel_set set = {.name = "cuda"};

    for (int kind = 0; kind < ESPER_N_OPS; kind++) {
        const esper_cuda_op *op = esper_cuda_op_of((esper_op_kind)kind, ESPER_CUDA_CANONICAL);

        if (op == NULL)
            continue;
        if (op->backward == NULL)
            ops[kind].backward[0].run = NULL;
        set.op[kind] = &ops[kind];
    }
    return &set;
}
