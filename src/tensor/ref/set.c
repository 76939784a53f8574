/* The table of a kernel set: what every operation is computed by. */
#include "tensor/ref/ref.h"

#define X(kind, name, ...) extern const esper_op_kernels ESPER_OP_KERNELS(name);
ESPER_OP_LIST(X)
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
#define X(kind, name, ...) [ESPER_OP_##kind] = &ESPER_OP_KERNELS(name),
            ESPER_OP_LIST(X)
#undef X
        },
#ifdef ESPER_HAS_BLOCKS
    .blocks = ESPER_PASTE(esper, blocks, ESPER_KERNELS),
#endif
};
