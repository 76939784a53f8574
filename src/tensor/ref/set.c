/* The table of a kernel set: what every operation is computed by. */
#include "tensor/ref/ref.h"

/* kind, the name of its table */
#define KERNEL_LIST(X)                          \
    X(CONV2D, conv2d)                           \
    X(BATCH_NORM, batch_norm)                   \
    X(GROUP_NORM, group_norm)                   \
    X(LAYER_NORM, layer_norm)                   \
    X(RELU, relu)                               \
    X(GELU, gelu)                               \
    X(SIGMOID, sigmoid)                         \
    X(TANH, tanh)                               \
    X(MAX_POOL, max_pool)                       \
    X(GLOBAL_MEAN, global_mean)                 \
    X(LINEAR, linear)                           \
    X(EMBEDDING, embedding)                     \
    X(ATTENTION, attention)                     \
    X(DROPOUT, dropout)                         \
    X(ADD, add)                                 \
    X(MUL, mul)                                 \
    X(CHANNEL_SCALE, channel_scale)             \
    X(MIX_TANH, mix_tanh)                       \
    X(SOFTMAX_XENT, softmax_xent)               \
    X(ISOLATE, isolate)                         \
    X(STRAIGHT_THROUGH, straight_through)       \
    X(BLEND_ADD, blend_add)                     \
    X(BLEND_MUL, blend_mul)                     \
    X(BLEND_GATE, blend_gate)                   \
    X(LSTM, lstm)                               \
    X(CONCAT, concat)                           \
    X(GRAD_NORM, grad_norm)                     \
    X(SGD, sgd)                                 \
    X(ADAMW, adamw)

#define X(kind, name) +1
_Static_assert(KERNEL_LIST(X) == ESPER_N_OPS, "every operation of the list has its kernels");
#undef X

#define X(kind, name) extern const esper_op_kernels ESPER_OP_KERNELS(name);
KERNEL_LIST(X)
#undef X

/* The same tensor under another name: nothing to compute in either direction. */
const esper_op_kernels ESPER_OP_KERNELS(isolate) = {.forward = {{NULL, NULL}}};

#define TEXT_(name) #name
#define TEXT(name)  TEXT_(name)

#ifdef ESPER_HAS_BLOCKS
extern const esper_op_kernels *const ESPER_PASTE(esper, blocks, ESPER_KERNELS)[ESPER_N_KINDS];
#endif

const esper_kernel_set ESPER_PASTE(esper, kernels, ESPER_KERNELS) = {
    .name = TEXT(ESPER_KERNELS),
    .op =
        {
#define X(kind, name) [ESPER_OP_##kind] = &ESPER_OP_KERNELS(name),
            KERNEL_LIST(X)
#undef X
        },
#ifdef ESPER_HAS_BLOCKS
    .blocks = ESPER_PASTE(esper, blocks, ESPER_KERNELS),
#endif
};
