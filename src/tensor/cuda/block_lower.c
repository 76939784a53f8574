/* Lowering to blocks of 32 samples. */
#include "tensor/cuda/block_lower.h"

#include "base/status.h"
#include "tensor/cuda/block_half.h"
#include "tensor/lower.h"

_Static_assert((int)ESPER_CUDA_BLOCKED == (int)ESPER_BLOCKED, "what lowering writes is what the table is asked for");

/* Smaller batches would leave most of a block empty. */
enum { LEAST_SAMPLES = 4 };

static bool has_blocks(const void *of, esper_op_kind kind)
{
    (void)of;
    return esper_cuda_op_of(kind, ESPER_CUDA_BLOCKED) != NULL;
}

esper_status esper_cuda_lower(const esper_net *net, int max_samples, esper_precision precision, esper_net *lowered_out)
{
    esper_lower_rules rules = {has_blocks, NULL, BLOCK_KERNEL};
    esper_net lowered;
    esper_status status;

    if (max_samples < LEAST_SAMPLES || !esper_lower_applies(net, &rules))
        return ESPER_E_UNSUPPORTED;
    ESPER_TRY(esper_lower(net, &lowered));
    status = precision == ESPER_BF16 ? esper_cuda_halve(&lowered) : ESPER_OK;
    if (status != ESPER_OK) {
        esper_net_fini(&lowered);
        return status;
    }
    for (int o = 0; o < lowered.n_ops; o++) {
        esper_op *op = &lowered.ops[o];

        if (op->kind == ESPER_OP_PACK && op->in[0] == net->input)
            op->attr.pack.of_batch = net->tensors[net->input].rank == 3;
    }
    *lowered_out = lowered;
    return ESPER_OK;
}

/* Blocks are whole, however many samples the last one has. */
size_t esper_cuda_bytes(const esper_tensor *tensor, int max_samples)
{
    int samples =
        tensor->layout == ESPER_CANONICAL ? max_samples : esper_cuda_blocks_of(max_samples) * ESPER_CUDA_BLOCK;

    if (tensor->layout == ESPER_CUDA_HALVES)
        return (size_t)(tensor->count / tensor->dim[0]) * (size_t)half_pairs(tensor->dim[0]) * sizeof(uint32_t) *
               (size_t)samples;
    return (size_t)tensor->count * sizeof(float) * (size_t)(tensor->per_sample ? samples : 1);
}
