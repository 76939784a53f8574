/* Which kernels compute what: the list of operations of the cuda backend, by layout. */
#include "tensor/cuda/kernels.h"

/* kind, the name of its table */
#define CANONICAL_LIST(X)                 \
    X(RELU, relu)                         \
    X(GELU, gelu)                         \
    X(SIGMOID, sigmoid)                   \
    X(TANH, tanh)                         \
    X(ADD, add)                           \
    X(MUL, mul)                           \
    X(CHANNEL_SCALE, channel_scale)       \
    X(MIX_TANH, mix_tanh)                 \
    X(STRAIGHT_THROUGH, straight_through) \
    X(BLEND_ADD, blend_add)               \
    X(BLEND_MUL, blend_mul)               \
    X(BLEND_GATE, blend_gate)             \
    X(DROPOUT, dropout)                   \
    X(CONCAT, concat)                     \
    X(ADD_ROWS, add_rows)                 \
    X(POOL_ROWS, pool_rows)               \
    X(EMBEDDING, embedding)               \
    X(SOFTMAX_XENT, softmax_xent)         \
    X(GRAD_NORM, grad_norm)               \
    X(SGD, sgd)                           \
    X(ADAMW, adamw)                       \
    X(LINEAR, linear)                     \
    X(ATTENTION, attention)               \
    X(LAYER_NORM, layer_norm)             \
    X(LSTM, lstm)                         \
    X(CONV2D, conv2d)                     \
    X(BATCH_NORM, batch_norm)             \
    X(GROUP_NORM, group_norm)             \
    X(MAX_POOL, max_pool)                 \
    X(GLOBAL_MEAN, global_mean)

#define BLOCKED_LIST(X)                   \
    X(RELU, relu)                         \
    X(GELU, gelu)                         \
    X(SIGMOID, sigmoid)                   \
    X(TANH, tanh)                         \
    X(ADD, add)                           \
    X(MUL, mul)                           \
    X(CHANNEL_SCALE, channel_scale)       \
    X(MIX_TANH, mix_tanh)                 \
    X(STRAIGHT_THROUGH, straight_through) \
    X(BLEND_ADD, blend_add)               \
    X(BLEND_MUL, blend_mul)               \
    X(BLEND_GATE, blend_gate)             \
    X(CONV2D, conv2d)                     \
    X(BATCH_NORM, batch_norm)             \
    X(GROUP_NORM, group_norm)             \
    X(MAX_POOL, max_pool)                 \
    X(GLOBAL_MEAN, global_mean)           \
    X(LINEAR, linear)                     \
    X(SOFTMAX_XENT, softmax_xent)         \
    X(PACK, pack)                         \
    X(UNPACK, unpack)                     \
    X(CONV_NORM, conv_norm)

#define HALVES_LIST(X)          \
    X(CONV2D, conv2d)           \
    X(GLOBAL_MEAN, global_mean) \
    X(PACK, pack)               \
    X(UNPACK, unpack)           \
    X(CONV_NORM, conv_norm)

#define CHANGE_LIST(X) X(PACK, pack) X(UNPACK, unpack)

#define X(kind, name) extern const esper_cuda_op esper_cuda_##name;
CANONICAL_LIST(X)
#undef X
#define X(kind, name) extern const esper_cuda_op esper_cuda_blocked_##name;
BLOCKED_LIST(X)
#undef X
#define X(kind, name) extern const esper_cuda_op esper_cuda_halves_##name;
HALVES_LIST(X)
#undef X
#define X(kind, name) extern const esper_cuda_op esper_cuda_change_##name;
CHANGE_LIST(X)
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
    [ESPER_CUDA_HALVES] =
        {
#define X(kind, name) [ESPER_OP_##kind] = &esper_cuda_halves_##name,
            HALVES_LIST(X)
#undef X
        },
    [ESPER_CUDA_CHANGE] =
        {
#define X(kind, name) [ESPER_OP_##kind] = &esper_cuda_change_##name,
            CHANGE_LIST(X)
#undef X
        },
};

const esper_cuda_op *esper_cuda_op_of(esper_op_kind kind, int variant)
{
    return ops[variant][kind];
}
