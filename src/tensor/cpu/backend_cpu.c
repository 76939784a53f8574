/* The CPU backend: the kernels built for this processor, run by a crew of threads. */
#include <assert.h>
#include <stdio.h>

#include "base/status.h"
#include "tensor/backends.h"
#include "tensor/cpu/backend_crew.h"
#include "tensor/cpu/backend_job.h"
#include "tensor/cpu/block.h"
#include "tensor/lower.h"

/* Smaller batches would leave most of a block empty. */
enum { LEAST_SAMPLES = 4 };

static esper_status open_cpu(esper_pool *pool, esper_backend **be_out)
{
    const esper_kernel_set *kernels = esper_kernels_choose();
    esper_ram_backend *host;
    esper_backend *be;
    esper_status status;
    esper_tune_table table;
    char names[64];

    if (pool == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "backend cpu needs a thread pool");
    if (kernels == NULL) {
        esper_kernels_names(names, sizeof(names));
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "ESPER_KERNELS names no kernel set this processor can run: use %s, or unset it", names);
    }
    ESPER_TRY(esper_tune_load(&table));
    ESPER_TRY(esper_ram_backend_open(&esper_backend_cpu, pool, kernels, &be));
    host = (esper_ram_backend *)be;
    esper_backend_cpu_tune(be, esper_tune_of(&table, esper_tune_set(kernels->name)));
    status = esper_crew_open(be, pool, kernels, &host->tune, &host->crew);
    if (status != ESPER_OK) {
        esper_ram_backend_close(be);
        return status;
    }
    *be_out = be;
    return ESPER_OK;
}

void esper_backend_cpu_tune(esper_backend *be, esper_tune tune)
{
    esper_ram_backend *host = (esper_ram_backend *)be;

    host->tune = tune;
    snprintf(host->identity, sizeof(host->identity), "%s/%s/t%08x", be->ops->name, host->kernels->name, tune.hash);
}

static void close_cpu(esper_backend *be)
{
    esper_crew_close(((esper_ram_backend *)be)->crew);
    esper_ram_backend_close(be);
}

static const esper_op_kernels *table_of(const esper_backend *be, const esper_launch *launch)
{
    return esper_job_table(((const esper_ram_backend *)be)->kernels, launch);
}

static bool has_blocks(const void *of, esper_op_kind kind)
{
    const esper_kernel_set *kernels = of;

    return kernels->blocks != NULL && kernels->blocks[kind] != NULL;
}

static esper_status lower_cpu(const esper_backend *be, const esper_net *net, int max_samples, esper_net *lowered_out)
{
    esper_lower_rules rules = {has_blocks, ((const esper_ram_backend *)be)->kernels, ESPER_BLOCK_KERNEL};

    if (max_samples < LEAST_SAMPLES || !esper_lower_applies(net, &rules))
        return ESPER_E_UNSUPPORTED;
    return esper_lower(net, lowered_out);
}

/* Blocks are whole, however many samples the last one has. */
static size_t bytes_cpu(const esper_backend *be, const esper_tensor *tensor, int max_samples)
{
    int samples = tensor->layout == ESPER_BLOCKED ? esper_blocks_of(max_samples) * ESPER_BLOCK_SAMPLES : max_samples;

    (void)be;
    return (size_t)tensor->count * sizeof(float) * (size_t)(tensor->per_sample ? samples : 1);
}

static size_t scratch_cpu(const esper_backend *be, const esper_launch *launch, int max_samples)
{
    return esper_ram_scratch(table_of(be, launch), launch, max_samples);
}

static size_t sums_cpu(const esper_backend *be, const esper_launch *launch, size_t *offset_out)
{
    return esper_ram_sums(table_of(be, launch), launch, offset_out);
}

static esper_status enqueue_cpu(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    esper_crew_run_launch(((const esper_ram_backend *)be)->crew, stream, launch);
    return ESPER_OK;
}

/* The results of both depend on their own parts alone, and their tensors have one shape. */
static bool chains_cpu(const esper_backend *be, const esper_launch *before, const esper_launch *launch)
{
    const esper_view *a = &before->lanes[0].out[0], *b = &launch->lanes[0].out[0];
    const esper_op_kernels *first = table_of(be, before), *second = table_of(be, launch);
    bool forward = launch->direction == ESPER_FORWARD;

    assert(before->direction == launch->direction);
    return before->variant == ESPER_BLOCKED && launch->variant == ESPER_BLOCKED &&
           (forward ? first->local_forward && second->local_forward
                    : first->local_backward && second->local_backward) &&
           a->count == b->count && a->dim[0] == b->dim[0];
}

static esper_status enqueue_programs_cpu(esper_backend *be, esper_backend_stream *stream, const esper_program *programs,
                                         int n_programs)
{
    esper_crew_run(((const esper_ram_backend *)be)->crew, stream, programs, n_programs);
    return ESPER_OK;
}

static void each_cpu(esper_backend *be, int n_items, esper_backend_item run_item, void *context)
{
    esper_crew_each(((const esper_ram_backend *)be)->crew, n_items, run_item, context);
}

const esper_backend_ops esper_backend_cpu = {
    ESPER_RAM_BACKEND_OPS,
    .name = "cpu",
    .about = "all cores, kernels for this processor",
    .open = open_cpu,
    .close = close_cpu,
    .lower = lower_cpu,
    .bytes = bytes_cpu,
    .scratch = scratch_cpu,
    .sums = sums_cpu,
    .chains = chains_cpu,
    .enqueue_programs = enqueue_programs_cpu,
    .enqueue = enqueue_cpu,
    .each = each_cpu,
};
