/* Lowering to blocks of 32 samples. */
#include "tensor/cuda/block_lower.h"

#include "base/status.h"
#include "tensor/cuda/block.h"
#include "tensor/lower.h"

_Static_assert((int)ESPER_CUDA_BLOCKED == (int)ESPER_BLOCKED, "what lowering writes is what the table is asked for");

/* Smaller batches would leave most of a block empty. */
enum { LEAST_SAMPLES = 4 };

static bool has_blocks(const void *of, esper_op_kind kind)
{
    (void)of;
    return esper_cuda_op_of(kind, ESPER_CUDA_BLOCKED) != NULL;
}

esper_status esper_cuda_lower(const esper_net *net, int max_samples, esper_net *lowered_out)
{
    esper_lower_rules rules = {has_blocks, NULL, BLOCK_KERNEL};

    if (max_samples < LEAST_SAMPLES || !esper_lower_applies(net, &rules))
        return ESPER_E_UNSUPPORTED;
    ESPER_TRY(esper_lower(net, lowered_out));
    for (int o = 0; o < lowered_out->n_ops; o++)
        if (lowered_out->ops[o].kind == ESPER_OP_PACK && lowered_out->ops[o].in[0] == net->input)
            lowered_out->ops[o].attr.pack.of_batch = net->tensors[net->input].rank == 3;
    return ESPER_OK;
}

/* Blocks are whole, however many samples the last one has. */
size_t esper_cuda_bytes(const esper_tensor *tensor, int max_samples)
{
    int samples = tensor->layout == ESPER_BLOCKED ? esper_cuda_blocks_of(max_samples) * ESPER_CUDA_BLOCK : max_samples;

    return (size_t)tensor->count * sizeof(float) * (size_t)(tensor->per_sample ? samples : 1);
}
