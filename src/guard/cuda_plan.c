/* Cutting tensors into blocks. */
#include "guard/cuda_plan.h"

#include "base/mem.h"
#include "base/status.h"

/* Chunks grow with the total so that there are about this many of them, each with a record of 88 bytes: enough to
 * spread evenly over a large device (an H200 runs 528 blocks at once), few enough to stay below a megabyte. */
#ifndef ESPER_CUDA_CHUNKS
#define ESPER_CUDA_CHUNKS 8192
#endif
/* The least a block is worth: a few loads by each thread. */
#ifndef ESPER_CUDA_LEAST_TILES
#define ESPER_CUDA_LEAST_TILES 2
#endif

enum {
    PACK_BYTES = 4096, /* a tensor up to this is one warp's: eight loads by each lane */
    MAX_TENSORS = 1 << 24,
    TILE_VECTORS = GPU_TILE / GPU_VECTOR,
};

static const uint32_t element_bytes[] = {
#define X(name, text, bytes) bytes,
    ESPER_GUARD_DTYPE_LIST(X)
#undef X
};

static uint32_t chunk_vectors_for(uint64_t total_bytes)
{
    uint64_t tiles = total_bytes / ESPER_CUDA_CHUNKS / GPU_TILE + 1;

    return (uint32_t)(tiles < ESPER_CUDA_LEAST_TILES ? ESPER_CUDA_LEAST_TILES : tiles) * TILE_VECTORS;
}

static uint64_t vectors_of(uint64_t bytes)
{
    return bytes / GPU_VECTOR + (bytes % GPU_VECTOR != 0);
}

static uint32_t chunks_of(uint64_t vectors, uint32_t chunk_vectors)
{
    return (uint32_t)((vectors + chunk_vectors - 1) / chunk_vectors);
}

static bool is_small(const esper_scan_tensor *tensor)
{
    return tensor->count * element_bytes[tensor->dtype] <= PACK_BYTES;
}

/* What 2^50 bytes cannot hold is a mistake; below that no sum here overflows. */
static esper_status check_tensors(const esper_scan_tensor *tensors, size_t n_tensors, uint64_t *total_out)
{
    uint64_t total = 0;

    if (n_tensors > MAX_TENSORS)
        return ESPER_FAIL(ESPER_E_ARG, "%zu tensors on a device: at most %d are possible", n_tensors, MAX_TENSORS);
    for (size_t i = 0; i < n_tensors; i++) {
        if (tensors[i].count > UINT64_C(1) << 47)
            return ESPER_FAIL(ESPER_E_ARG, "tensor %zu of the device has %llu elements", i,
                              (unsigned long long)tensors[i].count);
        total += tensors[i].count * element_bytes[tensors[i].dtype];
    }
    if (total > UINT64_C(1) << 50)
        return ESPER_FAIL(ESPER_E_ARG, "tensors of %llu bytes on one device", (unsigned long long)total);
    *total_out = total;
    return ESPER_OK;
}

/* Device order: by role, large before small, otherwise as registered. */
static void order_tensors(esper_cuda_plan *plan, const esper_scan_tensor *tensors,
                          uint32_t first_small[ESPER_GUARD_N_ROLES])
{
    uint32_t place = 0;

    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++) {
        plan->first_tensor[role] = place;
        for (int small = 0; small < 2; small++) {
            if (small)
                first_small[role] = place;
            for (uint32_t i = 0; i < plan->n_tensors; i++)
                if ((int)tensors[i].role == role && is_small(&tensors[i]) == (small == 1))
                    plan->places[i] = place++;
        }
    }
    plan->first_tensor[ESPER_GUARD_N_ROLES] = place;
}

static void fill_tensors(esper_cuda_plan *plan, const esper_scan_tensor *tensors)
{
    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        const esper_scan_tensor *from = &tensors[i];
        uint64_t vectors = vectors_of(from->count * element_bytes[from->dtype]);

        plan->tensors[plan->places[i]] =
            (gpu_tensor){.data = (uintptr_t)from->data,
                         .count = from->count,
                         .dtype = from->dtype,
                         .role = from->role,
                         .n_chunks = is_small(from) ? 1 : chunks_of(vectors, plan->chunk_vectors)};
    }
    for (uint32_t place = 0; place < plan->n_tensors; place++) {
        gpu_tensor *tensor = &plan->tensors[place];

        tensor->first_partial = plan->n_partials;
        if (tensor->n_chunks > 1)
            plan->n_partials += tensor->n_chunks;
    }
}

static void add_block(esper_cuda_plan *plan, uint32_t tensor, uint32_t chunk)
{
    if (plan->blocks != NULL)
        plan->blocks[plan->n_blocks] = (gpu_block){.tensor = tensor, .chunk = chunk};
    plan->n_blocks++;
}

/* Walked twice: without `blocks` it counts them. */
static void fill_blocks(esper_cuda_plan *plan, const uint32_t first_small[ESPER_GUARD_N_ROLES])
{
    plan->n_blocks = 0;
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++) {
        uint32_t end = plan->first_tensor[role + 1];

        plan->first_block[role] = plan->n_blocks;
        for (uint32_t t = plan->first_tensor[role]; t < first_small[role]; t++)
            for (uint32_t chunk = 0; chunk < plan->tensors[t].n_chunks; chunk++)
                add_block(plan, t, chunk);
        for (uint32_t t = first_small[role]; t < end; t += GPU_WARPS)
            add_block(plan, t, GPU_PACK + (end - t < GPU_WARPS ? end - t : GPU_WARPS));
    }
    plan->first_block[ESPER_GUARD_N_ROLES] = plan->n_blocks;
}

esper_status esper_cuda_plan_init(esper_cuda_plan *plan, const esper_scan_tensor *tensors, size_t n_tensors)
{
    uint32_t first_small[ESPER_GUARD_N_ROLES];
    uint64_t total = 0;

    *plan = (esper_cuda_plan){.n_tensors = 0};
    ESPER_TRY(check_tensors(tensors, n_tensors, &total));
    if (n_tensors == 0)
        return ESPER_OK;
    plan->n_tensors = (uint32_t)n_tensors;
    plan->chunk_vectors = chunk_vectors_for(total);
    plan->places = esper_mem_alloc(n_tensors * sizeof(*plan->places));
    plan->tensors = esper_mem_alloc(n_tensors * sizeof(*plan->tensors));
    if (plan->places == NULL || plan->tensors == NULL)
        goto fail;
    order_tensors(plan, tensors, first_small);
    fill_tensors(plan, tensors);
    fill_blocks(plan, first_small);
    plan->blocks = esper_mem_alloc(plan->n_blocks * sizeof(*plan->blocks));
    if (plan->blocks == NULL)
        goto fail;
    fill_blocks(plan, first_small);
    return ESPER_OK;
fail:
    esper_cuda_plan_fini(plan);
    return ESPER_FAIL(ESPER_E_NOMEM, "a plan for %zu tensors", n_tensors);
}

void esper_cuda_plan_fini(esper_cuda_plan *plan)
{
    esper_mem_free(plan->places);
    esper_mem_free(plan->tensors);
    esper_mem_free(plan->blocks);
    *plan = (esper_cuda_plan){.n_tensors = 0};
}

esper_status esper_cuda_plan_parts(const esper_copy_part *parts, size_t n_parts, gpu_block **blocks_out,
                                   uint32_t *n_blocks_out, uint32_t *chunk_vectors_out)
{
    uint64_t total = 0;
    uint32_t n_blocks = 0, at = 0, chunk_vectors;
    gpu_block *blocks;

    if (n_parts > MAX_TENSORS)
        return ESPER_FAIL(ESPER_E_ARG, "a snapshot of %zu parts: at most %d are possible", n_parts, MAX_TENSORS);
    for (size_t i = 0; i < n_parts; i++)
        total += parts[i].bytes;
    chunk_vectors = chunk_vectors_for(total);
    for (size_t i = 0; i < n_parts; i++)
        n_blocks += chunks_of(vectors_of(parts[i].bytes), chunk_vectors);
    blocks = esper_mem_alloc((n_blocks + 1) * sizeof(*blocks));
    if (blocks == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a plan for a snapshot of %zu parts", n_parts);
    for (size_t i = 0; i < n_parts; i++)
        for (uint32_t chunk = 0; chunk < chunks_of(vectors_of(parts[i].bytes), chunk_vectors); chunk++)
            blocks[at++] = (gpu_block){.tensor = (uint32_t)i, .chunk = chunk};
    *blocks_out = blocks;
    *n_blocks_out = n_blocks;
    *chunk_vectors_out = chunk_vectors;
    return ESPER_OK;
}
