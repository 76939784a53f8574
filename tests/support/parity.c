/* What all parity checks share: backends, and a network that is ready to run. */
#include "support/parity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "nn/init.h"
#include "tensor/kernel.h"

enum { MAX_SAMPLES = 64 };

const parity_backend parity_backends[] = {
    {"ref", NULL}, /* one set of kernels */
    {"cpu", "portable"}, {"cpu", "avx2"}, {"cpu", "avx512"}, {"cuda", NULL}, /* where there is a device */
    {NULL, NULL},
};

esper_status parity_backend_open(const parity_backend *wanted, esper_pool *pool, esper_backend **be_out)
{
    const char *asked = getenv("ESPER_KERNELS");
    char before[32] = "";
    esper_status status = ESPER_OK;

    if (strcmp(wanted->name, "cuda") == 0)
        return parity_cuda_open(pool, be_out);
    if (wanted->kernels == NULL)
        return esper_backend_open(wanted->name, pool, be_out);
    snprintf(before, sizeof(before), "%s", asked != NULL ? asked : "");
    setenv("ESPER_KERNELS", wanted->kernels, 1);
    if (esper_kernels_choose() == NULL)
        status = ESPER_FAIL(ESPER_E_UNSUPPORTED, "this processor cannot run %s", wanted->kernels);
    else
        status = esper_backend_open(wanted->name, pool, be_out);
    if (asked != NULL)
        setenv("ESPER_KERNELS", before, 1);
    else
        unsetenv("ESPER_KERNELS");
    return status;
}

/* ------------------------------------------------------------------------------------------------ a network to run */

esper_status parity_run_open(parity_run *run, esper_backend *backend, int n_samples, bool training)
{
    static const uint32_t sample_ids[MAX_SAMPLES]; /* they key dropout, which no parity run has */
    esper_plan_net net = {.net = &run->net, .slab = &run->slab, .pass = &run->pass};
    esper_plan_desc desc = {
        .backend = backend, .nets = &net, .n_nets = 1, .max_samples = n_samples, .training = training};

    if (n_samples > MAX_SAMPLES)
        return ESPER_FAIL(ESPER_E_ARG, "%d samples: parity runs take at most %d", n_samples, MAX_SAMPLES);
    ESPER_TRY(esper_net_status(&run->net));
    ESPER_TRY(esper_slab_init(&run->slab, backend, &run->net, &(esper_slab_desc){.n_moments = training ? 1 : 0}));
    esper_init_net(&run->net, &run->slab, 1, 0, -1);
    run->pass = (esper_pass){.n_samples = n_samples, .training = training, .loss_scale = 1.0f, .sample_id = sample_ids};
    return esper_plan_open(&desc, &run->plan);
}

void parity_run_close(parity_run *run)
{
    esper_plan_close(run->plan);
    esper_slab_fini(&run->slab);
    esper_net_fini(&run->net);
    run->plan = NULL;
}

/* <prefix><name of the tensor> */
static const char *recorded_name(char *name, size_t chars, const char *prefix, const esper_tensor *tensor)
{
    snprintf(name, chars, "%s%s", prefix, tensor->name);
    return name;
}

static unsigned long long recorded_dim(const esper_safetensors_tensor *tensor, int i)
{
    return i < tensor->rank ? (unsigned long long)tensor->shape[i] : 1;
}

/* Element counts are compared by the loader; this compares shapes, so that a transposed weight does not pass. */
static void compare_shape(golden *vectors, const char *name, const esper_tensor *tensor)
{
    const esper_safetensors_tensor *recorded = golden_find(vectors, name);
    bool same = recorded != NULL && recorded->rank == tensor->rank;

    for (int i = 0; same && i < tensor->rank; i++)
        same = recorded->shape[i] == (uint64_t)tensor->dim[i];
    if (recorded != NULL && !same)
        golden_mismatch(
            vectors->tally, vectors->name, name, "%d dimensions (%d,%d,%d,%d) here, %d (%llu,%llu,%llu,%llu) recorded",
            tensor->rank, tensor->dim[0], tensor->dim[1], tensor->dim[2], tensor->dim[3], recorded->rank,
            recorded_dim(recorded, 0), recorded_dim(recorded, 1), recorded_dim(recorded, 2), recorded_dim(recorded, 3));
}

void parity_load_params(parity_run *run, golden *vectors, const char *prefix, const char *born_one)
{
    char name[2 * ESPER_NAME_CHARS], param_prefix[ESPER_NAME_CHARS];

    snprintf(param_prefix, sizeof(param_prefix), "%sparam/", prefix);
    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        float *values = tensor->role == ESPER_ROLE_PARAM ? esper_slab_at(&run->slab, ESPER_FAMILY_PARAM, tensor) : NULL;

        if (values == NULL)
            continue;
        if (born_one != NULL && strcmp(tensor->name, born_one) == 0) {
            for (int64_t i = 0; i < tensor->count; i++)
                values[i] = 1.0f;
            continue;
        }
        recorded_name(name, sizeof(name), param_prefix, tensor);
        compare_shape(vectors, name, tensor);
        golden_load(vectors, name, values, tensor->count);
    }
}

void parity_compare_state(parity_run *run, golden *vectors, const char *prefix, esper_family family, const char *skip)
{
    char name[2 * ESPER_NAME_CHARS];

    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        const float *values = NULL;

        if (tensor->role == ESPER_ROLE_PARAM || tensor->role == ESPER_ROLE_BUFFER)
            values = esper_slab_at(&run->slab, family, tensor);
        if (values == NULL || (skip != NULL && strcmp(tensor->name, skip) == 0))
            continue;
        golden_compare(vectors, recorded_name(name, sizeof(name), prefix, tensor), values, tensor->count);
    }
}

int parity_check(esper_backend *backend, const golden_entry *entry, golden_tally *tally)
{
    switch (entry->part) {
    case GOLDEN_HOST:
        return parity_check_host(backend, entry, tally);
    case GOLDEN_SEED:
        return parity_check_seed(backend, entry, tally);
    case GOLDEN_GATE:
        return parity_check_gate(backend, entry, tally);
    case GOLDEN_SLOTTED:
        return parity_check_slotted(backend, entry, tally);
    case GOLDEN_BLEND:
        return parity_check_blend(backend, entry, tally);
    default:
        return parity_check_births(backend, entry, tally);
    }
}

/* ------------------------------------------------------------------------------------------------ a whole backend */

static uint64_t live_blocks(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.n_live;
}

static esper_status check_files(const parity_backend *wanted, esper_pool *pool, unsigned parts, golden_tally *tally)
{
    char label[64];
    esper_backend *backend;

    ESPER_TRY(parity_backend_open(wanted, pool, &backend));
    snprintf(label, sizeof(label), "%s", esper_backend_identity(backend));
    tally->label = label;
    for (const golden_entry *entry = golden_entries; entry->name != NULL; entry++)
        if ((entry->part & parts) != 0 && golden_is_here(entry))
            parity_check(backend, entry, tally);
    printf("%s: %ld values of %ld tensors compared, %ld mismatches; nearest to its limit (%.0f %% of it): %s\n", label,
           tally->n_values, tally->n_tensors, tally->n_mismatches, 100.0 * tally->share, tally->share_where);
    fflush(stdout);
    tally->label = "";
    esper_backend_close(backend);
    return ESPER_OK;
}

esper_status parity_check_backend(const parity_backend *wanted, unsigned parts, int *n_mismatches_out)
{
    uint64_t live = live_blocks();
    golden_tally tally = {0};
    esper_pool *pool;
    esper_status status;

    ESPER_TRY(esper_pool_open(2, &pool));
    status = check_files(wanted, pool, parts, &tally);
    esper_pool_close(pool);
    if (status != ESPER_OK)
        return status;
    if (tally.n_tensors == 0)
        golden_mismatch(&tally, "all files", "", "nothing was compared");
    if (live_blocks() != live)
        golden_mismatch(&tally, "all files", "memory", "%llu blocks were not freed",
                        (unsigned long long)(live_blocks() - live));
    *n_mismatches_out = (int)tally.n_mismatches;
    return ESPER_OK;
}
