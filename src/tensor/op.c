/* The lists of operations as data. */
#include "tensor/op.h"

#include <stddef.h>

static const esper_op_info op_info[ESPER_N_KINDS] = {
#define X(kind, name, n_in, n_out, grad_in, saved_in, saved_out) \
    [ESPER_OP_##kind] = {#name, n_in, n_out, grad_in, saved_in, saved_out},
    ESPER_OP_LIST(X) ESPER_LOWERED_LIST(X)
#undef X
};

const esper_op_info *esper_op_info_of(esper_op_kind kind)
{
    return (unsigned)kind < ESPER_N_KINDS ? &op_info[kind] : NULL;
}
