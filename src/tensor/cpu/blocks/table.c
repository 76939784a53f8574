/* The family over blocks of a kernel set: what image networks are made of. */
#include "tensor/cpu/blocks/kernels.h"

/* kind, the name of its table */
#define BLOCKS_LIST(X)                           \
    X(CONV2D, conv2d)                           \
    X(BATCH_NORM, batch_norm)                   \
    X(GROUP_NORM, group_norm)                   \
    X(RELU, relu)                               \
    X(GELU, gelu)                               \
    X(SIGMOID, sigmoid)                         \
    X(TANH, tanh)                               \
    X(MAX_POOL, max_pool)                       \
    X(GLOBAL_MEAN, global_mean)                 \
    X(LINEAR, linear)                           \
    X(ADD, add)                                 \
    X(MUL, mul)                                 \
    X(CHANNEL_SCALE, channel_scale)             \
    X(MIX_TANH, mix_tanh)                       \
    X(SOFTMAX_XENT, softmax_xent)               \
    X(STRAIGHT_THROUGH, straight_through)       \
    X(BLEND_ADD, blend_add)                     \
    X(BLEND_MUL, blend_mul)                     \
    X(BLEND_GATE, blend_gate)                   \
    X(PACK, pack)                               \
    X(UNPACK, unpack)                           \
    X(CONV_NORM, conv_norm)

#define X(kind, name) extern const esper_op_kernels ESPER_BLOCK_KERNELS(name);
BLOCKS_LIST(X)
#undef X

extern const esper_op_kernels *const ESPER_PASTE(esper, blocks, ESPER_KERNELS)[ESPER_N_KINDS];
const esper_op_kernels *const ESPER_PASTE(esper, blocks, ESPER_KERNELS)[ESPER_N_KINDS] = {
#define X(kind, name) [ESPER_OP_##kind] = &ESPER_BLOCK_KERNELS(name),
    BLOCKS_LIST(X)
#undef X
};
