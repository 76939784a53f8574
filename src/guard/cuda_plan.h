/* Internal. How work is cut into blocks for the kernels of cuda/scan.cu: by a rule that looks at the tensors alone, so
 * that results do not depend on the device.
 *
 *     device order:  | params: group 0: large ... small ... group 2: ... | grads: group 1: ... | moments ...
 *     blocks:          a block for each chunk of a large tensor, a block for each pack of GPU_WARPS small ones
 *     nodes:           packs and large tensors -> (some of a group ->) group -> (some groups ->) role
 *
 * Roles lie together, so that a scan of some of them is one range of blocks; groups do, so that packs are of one. */
#ifndef ESPER_GUARD_CUDA_PLAN_H
#define ESPER_GUARD_CUDA_PLAN_H

#include "guard/cuda/scan_types.h"
#include "guard/engine.h"

typedef struct esper_cuda_plan {
    uint32_t    n_tensors, n_groups, n_blocks;
    uint32_t    n_partials; /* records of chunks */
    uint32_t    n_nodes;
    uint32_t    first_role; /* node of the first role; the others follow */
    uint32_t    chunk_vectors;
    uint32_t    first_tensor[ESPER_GUARD_N_ROLES + 1]; /* of each role, in device order; the last is the end */
    uint32_t    first_block[ESPER_GUARD_N_ROLES + 1];
    uint32_t   *order_of;  /* (n_tensors): where in device order each is */
    gpu_tensor *tensors; /* (n_tensors), in device order */
    gpu_block  *blocks;  /* (n_blocks) */
    gpu_node   *nodes;   /* (n_nodes) */
} esper_cuda_plan;

/* E_ARG for tensors that cannot be: too many, or too large. */
esper_status esper_cuda_plan_init(esper_cuda_plan *plan, const esper_scan_tensor *tensors, size_t n_tensors,
                                  size_t n_groups);
void         esper_cuda_plan_fini(esper_cuda_plan *plan);

/* The same for the parts of a snapshot: their blocks, freed with esper_mem_free. */
esper_status esper_cuda_plan_parts(const esper_copy_part *parts, size_t n_parts, gpu_block **blocks_out,
                                   uint32_t *n_blocks_out, uint32_t *chunk_vectors_out);

#endif
