/* Which kernels compute what: the list of operations of the cuda backend, by layout. */
#include "tensor/cuda/kernels.h"

/* kind, the name of its table */
#define CANONICAL_LIST(X)    \
    X(RELU, relu)           \
    X(GELU, gelu)           \
    X(SIGMOID, sigmoid)     \
    X(TANH, tanh)

#define BLOCKED_LIST(X)      \
    X(RELU, relu)           \
    X(GELU, gelu)           \
    X(SIGMOID, sigmoid)     \
    X(TANH, tanh)

#define X(kind, name) extern const esper_cuda_op esper_cuda_##name;
CANONICAL_LIST(X)
#undef X
#define X(kind, name) extern const esper_cuda_op esper_cuda_blocked_##name;
BLOCKED_LIST(X)
#undef X

static const esper_cuda_op *const ops[][ESPER_N_KINDS] = {
    [ESPER_CUDA_CANONICAL] =
        {
#define X(kind, name) [ESPER_OP_##kind] = &esper_cuda_##name,
            CANONICAL_LIST(X)
#undef X
        },
    [ESPER_CUDA_BLOCKED] =
        {
#define X(kind, name) [ESPER_OP_##kind] = &esper_cuda_blocked_##name,
            BLOCKED_LIST(X)
#undef X
        },
};

const esper_cuda_op *esper_cuda_op_of(esper_op_kind kind, int variant)
{
    return ops[variant][kind];
}
