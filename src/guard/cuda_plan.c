/* Cutting tensors into blocks. */
#include "guard/cuda_plan.h"

#include <assert.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"

/* Chunks grow with the total so that there are about this many of them, each with a record of 88 bytes: enough to
 * spread evenly over a large device (an H200 runs 528 blocks at once), few enough to stay below half a megabyte. */
#ifndef ESPER_CUDA_CHUNKS
#define ESPER_CUDA_CHUNKS 4096
#endif
/* The least a block is worth: a few loads by each thread. */
#ifndef ESPER_CUDA_LEAST_TILES
#define ESPER_CUDA_LEAST_TILES 2
#endif

enum {
    PACK_BYTES = 4096, /* a tensor up to this is one warp's: eight loads by each thread */
    MAX_TENSORS = 1 << 24,
    COPY_CHUNKS = 8192, /* a copy leaves no record behind, and is faster in smaller pieces */
    TILE_VECTORS = GPU_TILE / GPU_VECTOR,
};

static const uint32_t element_bytes[] = {
#define X(name, text, bytes) bytes,
    ESPER_GUARD_DTYPE_LIST(X)
#undef X
};

static uint32_t chunk_vectors_for(uint64_t total_bytes, uint32_t n_chunks)
{
    uint64_t tiles = total_bytes / n_chunks / GPU_TILE + 1;

    return (uint32_t)(tiles < ESPER_CUDA_LEAST_TILES ? ESPER_CUDA_LEAST_TILES : tiles) * TILE_VECTORS;
}

static uint64_t vectors_of(uint64_t bytes)
{
    return bytes / GPU_VECTOR + (bytes % GPU_VECTOR != 0);
}

static uint32_t chunks_of(uint64_t vectors, uint32_t chunk_vectors)
{
    assert(chunk_vectors > 0);
    return (uint32_t)((vectors + chunk_vectors - 1) / chunk_vectors);
}

static bool is_small(const esper_scan_tensor *tensor)
{
    return tensor->count * element_bytes[tensor->dtype] <= PACK_BYTES;
}

/* What 2^50 bytes cannot hold is a mistake; below that no sum here overflows. */
static esper_status check_tensors(const esper_scan_tensor *tensors, size_t n_tensors, size_t n_groups,
                                  uint64_t *total_out)
{
    uint64_t total = 0;

    if (n_tensors > MAX_TENSORS || n_groups > INT32_MAX)
        return ESPER_FAIL(ESPER_E_ARG, "%zu tensors on a device: at most %d are possible", n_tensors, MAX_TENSORS);
    for (size_t i = 0; i < n_tensors; i++) {
        if (tensors[i].count > UINT64_C(1) << 47)
            return ESPER_FAIL(ESPER_E_ARG, "tensor %zu of the device has %llu elements", i,
                              (unsigned long long)tensors[i].count);
        if (tensors[i].group >= n_groups)
            return ESPER_FAIL(ESPER_E_ARG, "tensor %zu of the device is of group %u, but there are %zu", i,
                              tensors[i].group, n_groups);
        total += tensors[i].count * element_bytes[tensors[i].dtype];
    }
    if (total > UINT64_C(1) << 50)
        return ESPER_FAIL(ESPER_E_ARG, "tensors of %llu bytes on one device", (unsigned long long)total);
    *total_out = total;
    return ESPER_OK;
}

/* ---------------------------------------------------------------------------------------------------- tensors, blocks */

/* Where the tensors of a group are, in device order, and what of the tree stands for them. */
typedef struct group_span {
    uint32_t role;
    uint32_t first, n_large, n_small;
    uint32_t next[2]; /* where the next large and the next small one go */
    uint32_t first_node, n_nodes;
} group_span;

static bool is_in(const group_span *span, int role)
{
    return span->n_large + span->n_small != 0 && (int)span->role == role;
}

/* Device order: by role, then group, large before small, otherwise as registered. */
static void order_tensors(esper_cuda_plan *plan, const esper_scan_tensor *tensors, group_span *spans)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        group_span *span = &spans[tensors[i].group];

        span->role = tensors[i].role;
        span->n_small += is_small(&tensors[i]);
        span->n_large += !is_small(&tensors[i]);
    }
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++) {
        plan->first_tensor[role] = at;
        for (uint32_t g = 0; g < plan->n_groups; g++) {
            if (!is_in(&spans[g], role))
                continue;
            spans[g].first = spans[g].next[0] = at;
            spans[g].next[1] = at + spans[g].n_large;
            at += spans[g].n_large + spans[g].n_small;
        }
    }
    plan->first_tensor[ESPER_GUARD_N_ROLES] = at;
    for (uint32_t i = 0; i < plan->n_tensors; i++)
        plan->order_of[i] = spans[tensors[i].group].next[is_small(&tensors[i])]++;
}

static void fill_tensors(esper_cuda_plan *plan, const esper_scan_tensor *tensors)
{
    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        const esper_scan_tensor *from = &tensors[i];
        uint64_t vectors = vectors_of(from->count * element_bytes[from->dtype]);

        plan->tensors[plan->order_of[i]] =
            (gpu_tensor){.data = (uintptr_t)from->data,
                         .count = from->count,
                         .dtype = from->dtype,
                         .role = from->role,
                         .n_chunks = is_small(from) ? 1 : chunks_of(vectors, plan->chunk_vectors),
                         .index = i};
    }
    for (uint32_t at = 0; at < plan->n_tensors; at++) {
        gpu_tensor *tensor = &plan->tensors[at];

        tensor->first_partial = plan->n_partials;
        if (tensor->n_chunks > 1)
            plan->n_partials += tensor->n_chunks;
    }
}

static void add_block(esper_cuda_plan *plan, uint32_t tensor, uint32_t chunk)
{
    assert(tensor < plan->n_tensors);
    if (plan->blocks != NULL)
        plan->blocks[plan->n_blocks] = (gpu_block){.tensor = tensor, .chunk = chunk};
    plan->n_blocks++;
}

/* The blocks of a group; its units are the tree's next nodes. */
static void fill_group(esper_cuda_plan *plan, group_span *span)
{
    const uint32_t first_small = span->first + span->n_large, end = first_small + span->n_small;

    span->first_node = plan->n_nodes;
    for (uint32_t t = span->first; t < first_small; t++) {
        plan->tensors[t].node = plan->n_nodes++;
        for (uint32_t chunk = 0; chunk < plan->tensors[t].n_chunks; chunk++)
            add_block(plan, t, chunk);
    }
    for (uint32_t t = first_small; t < end; t += GPU_WARPS) {
        plan->tensors[t].node = plan->n_nodes++;
        add_block(plan, t, GPU_PACK + (end - t < GPU_WARPS ? end - t : GPU_WARPS));
    }
    span->n_nodes = plan->n_nodes - span->first_node;
}

/* Walked twice: without `blocks` it counts them. */
static void fill_blocks(esper_cuda_plan *plan, group_span *spans)
{
    plan->n_blocks = 0;
    plan->n_nodes = 0;
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++) {
        plan->first_block[role] = plan->n_blocks;
        for (uint32_t g = 0; g < plan->n_groups; g++)
            if (is_in(&spans[g], role))
                fill_group(plan, &spans[g]);
    }
    plan->first_block[ESPER_GUARD_N_ROLES] = plan->n_blocks;
}

/* ---------------------------------------------------------------------------------------------------------- the tree */

static uint32_t add_node(esper_cuda_plan *plan, uint32_t result)
{
    plan->nodes[plan->n_nodes] = (gpu_node){.parent = GPU_NONE, .n_siblings = 1, .result = result};
    return plan->n_nodes++;
}

static void adopt(esper_cuda_plan *plan, uint32_t first, uint32_t n, uint32_t parent)
{
    assert(first + n <= plan->n_nodes && parent < plan->n_nodes);
    for (uint32_t k = first; k < first + n; k++) {
        plan->nodes[k].parent = parent;
        plan->nodes[k].first = first;
        plan->nodes[k].n_siblings = n;
    }
}

/* Puts nodes between `n` siblings to be and their parent to be, until there are few enough; `first` and `n` are those
 * then. */
static void narrow(esper_cuda_plan *plan, uint32_t *first, uint32_t *n)
{
    while (*n > GPU_FAN_OUT) {
        const uint32_t above = plan->n_nodes;

        for (uint32_t k = 0; k < *n; k += GPU_FAN_OUT)
            adopt(plan, *first + k, *n - k < GPU_FAN_OUT ? *n - k : GPU_FAN_OUT, add_node(plan, GPU_NONE));
        *first = above;
        *n = plan->n_nodes - above;
    }
}

/* Above the units, which are there. */
static void grow_tree(esper_cuda_plan *plan, group_span *spans)
{
    uint32_t first[ESPER_GUARD_N_ROLES], n[ESPER_GUARD_N_ROLES];

    for (uint32_t u = 0; u < plan->n_nodes; u++)
        plan->nodes[u] = (gpu_node){.parent = GPU_NONE, .n_siblings = 1, .result = GPU_NONE};
    for (uint32_t g = 0; g < plan->n_groups; g++)
        narrow(plan, &spans[g].first_node, &spans[g].n_nodes);
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++) {
        first[role] = plan->n_nodes;
        for (uint32_t g = 0; g < plan->n_groups; g++)
            if (is_in(&spans[g], role))
                adopt(plan, spans[g].first_node, spans[g].n_nodes, add_node(plan, g));
        n[role] = plan->n_nodes - first[role];
    }
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++)
        narrow(plan, &first[role], &n[role]);
    plan->first_role = plan->n_nodes;
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++)
        adopt(plan, first[role], n[role], add_node(plan, plan->n_groups + (uint32_t)role));
}

static esper_status fill_plan(esper_cuda_plan *plan, const esper_scan_tensor *tensors, group_span *spans)
{
    plan->order_of = esper_mem_alloc(plan->n_tensors * sizeof(*plan->order_of));
    plan->tensors = esper_mem_alloc(plan->n_tensors * sizeof(*plan->tensors));
    if (plan->order_of == NULL || plan->tensors == NULL)
        return ESPER_E_NOMEM;
    order_tensors(plan, tensors, spans);
    fill_tensors(plan, tensors);
    fill_blocks(plan, spans);
    plan->blocks = esper_mem_alloc(plan->n_blocks * sizeof(*plan->blocks));
    plan->nodes = esper_mem_alloc(2 * ((size_t)plan->n_nodes + plan->n_groups + ESPER_GUARD_N_ROLES) *
                                  sizeof(*plan->nodes)); /* what narrow adds is far less than half */
    if (plan->blocks == NULL || plan->nodes == NULL)
        return ESPER_E_NOMEM;
    fill_blocks(plan, spans);
    grow_tree(plan, spans);
    return ESPER_OK;
}

esper_status esper_cuda_plan_init(esper_cuda_plan *plan, const esper_scan_tensor *tensors, size_t n_tensors,
                                  size_t n_groups)
{
    uint64_t total = 0;
    group_span *spans;
    esper_status st;

    *plan = (esper_cuda_plan){.n_tensors = 0};
    ESPER_TRY(check_tensors(tensors, n_tensors, n_groups, &total));
    if (n_tensors == 0)
        return ESPER_OK;
    plan->n_tensors = (uint32_t)n_tensors;
    plan->n_groups = (uint32_t)n_groups;
    plan->chunk_vectors = chunk_vectors_for(total, ESPER_CUDA_CHUNKS);
    spans = esper_mem_alloc(n_groups * sizeof(*spans));
    st = spans != NULL ? fill_plan(plan, tensors, spans) : ESPER_E_NOMEM;
    esper_mem_free(spans);
    if (st == ESPER_OK)
        return ESPER_OK;
    esper_cuda_plan_fini(plan);
    return ESPER_FAIL(ESPER_E_NOMEM, "a plan for %zu tensors", n_tensors);
}

void esper_cuda_plan_fini(esper_cuda_plan *plan)
{
    esper_mem_free(plan->order_of);
    esper_mem_free(plan->tensors);
    esper_mem_free(plan->blocks);
    esper_mem_free(plan->nodes);
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
    chunk_vectors = chunk_vectors_for(total, COPY_CHUNKS);
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
