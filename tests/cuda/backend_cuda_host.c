/* A backend for tests: the kernels of tensor/cuda/ in host memory, run by host_cuda.c in the place of every backend that computes.
 * ESPER_CUDA_HOST=canonical in the environment leaves out lowering, so that image networks meet the canonical kernels;
 * ESPER_CUDA_HOST_PRECISION=tf32 or bf16 is for programs that open it by way of others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cuda/cuda_host.h"
#include "cuda/host_cuda_run.h"
#include "tensor/backends.h"
#include "tensor/cuda/block_lower.h"
#include "tensor/cuda/kernels.h"
#include "tensor/net.h"

typedef struct steps {
    int               n;
    esper_cuda_launch launch[ESPER_CUDA_MAX_LAUNCHES];
} steps;

static steps steps_of(const esper_cuda_op *op, const esper_launch *launch, int lane)
{
    steps s;

    memset(&s, 0, sizeof(s));
    s.n =
        (launch->direction == ESPER_FORWARD ? op->forward : op->backward)(&launch->lanes[lane], launch->part, s.launch);
    if (s.n < 0 || s.n > ESPER_CUDA_MAX_LAUNCHES)
        abort();
    return s;
}

/* All but blocks. */
static bool are_alike(const steps *a, const steps *b)
{
    bool alike = a->n == b->n;

    for (int i = 0; i < a->n && alike; i++)
        alike = strcmp(a->launch[i].kernel, b->launch[i].kernel) == 0 && a->launch[i].threads == b->launch[i].threads &&
                a->launch[i].shared == b->launch[i].shared;
    return alike;
}

static void widen(steps *together, const steps *one)
{
    for (int i = 0; i < one->n; i++)
        if (one->launch[i].blocks > together->launch[i].blocks)
            together->launch[i].blocks = one->launch[i].blocks;
}

void cuda_host_run(const esper_launch *launch)
{
    const esper_cuda_op *op = esper_cuda_op_of(launch->kind, launch->variant);
    static esper_cuda_lanes lanes; /* 4 KB; launches are made by one thread at a time */

    if (op == NULL) {
        fprintf(stderr, "CUDA on the host: there is no %s in layout %d\n", esper_op_info_of(launch->kind)->name,
                launch->variant);
        abort();
    }
    for (int l = 0; l < launch->n_lanes;) {
        steps together = steps_of(op, launch, l);
        int n = 0;

        for (; l < launch->n_lanes && n < ESPER_CUDA_LANES; l++, n++) {
            steps one = steps_of(op, launch, l);

            if (!are_alike(&together, &one))
                break;
            widen(&together, &one);
            lanes.lane[n] = &launch->lanes[l];
        }
        for (int i = 0; i < together.n; i++)
            host_cuda_launch(together.launch[i].kernel, together.launch[i].blocks, n, together.launch[i].threads,
                             together.launch[i].shared, &lanes);
    }
}

/* ----------------------------------------------------------------------------------------------------- as a backend */

static esper_status open_host(esper_pool *pool, esper_backend **be_out);

static bool supports_host(const esper_backend *be, esper_op_kind kind)
{
    (void)be;
    return esper_cuda_op_of(kind, ESPER_CUDA_CANONICAL) != NULL || esper_cuda_op_of(kind, ESPER_CUDA_BLOCKED) != NULL;
}

static esper_status lower_host(const esper_backend *be, const esper_net *net, int max_samples, esper_net *lowered_out)
{
    const char *wanted = getenv("ESPER_CUDA_HOST");

    if (wanted != NULL && strcmp(wanted, "canonical") == 0)
        return ESPER_E_UNSUPPORTED;
    return esper_cuda_lower(net, max_samples, be->precision, lowered_out);
}

static size_t bytes_host(const esper_backend *be, const esper_tensor *tensor, int max_samples)
{
    (void)be;
    return esper_cuda_bytes(tensor, max_samples);
}

static size_t scratch_host(const esper_backend *be, const esper_launch *launch, int max_samples)
{
    const esper_cuda_op *op = esper_cuda_op_of(launch->kind, launch->variant);

    (void)be;
    return op->scratch == NULL ? 0 : op->scratch(launch->lanes, launch->direction == ESPER_BACKWARD, max_samples);
}

static size_t sums_host(const esper_backend *be, const esper_launch *launch, size_t *offset_out)
{
    const esper_cuda_op *op = esper_cuda_op_of(launch->kind, launch->variant);

    (void)be;
    return op->sums == NULL ? 0 : op->sums(launch->lanes, launch->direction == ESPER_BACKWARD, offset_out);
}

static esper_status set_precision_host(esper_backend *be, esper_precision precision)
{
    (void)be;
    (void)precision;
    return ESPER_OK;
}

static esper_status enqueue_host(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    (void)be;
    (void)stream;
    cuda_host_run(launch);
    return ESPER_OK;
}

static const esper_backend_ops cuda_host = {
    .abi = ESPER_BACKEND_ABI,
    .name = "cpu",
    .about = "the kernels of the cuda backend, on the host",
    .open = open_host,
    .close = esper_ram_backend_close,
    .alloc = esper_ram_backend_alloc,
    .release = esper_ram_backend_release,
    .sync = esper_ram_backend_sync,
    .identity = esper_ram_backend_identity,
    .copy_in = esper_ram_copy,
    .copy_out = esper_ram_copy,
    .copy = esper_ram_copy,
    .fill = esper_ram_fill,
    .scan = esper_ram_scan,
    .supports = supports_host,
    .lower = lower_host,
    .bytes = bytes_host,
    .scratch = scratch_host,
    .sums = sums_host,
    .enqueue = enqueue_host,
    .set_precision = set_precision_host,
};

static esper_status open_host(esper_pool *pool, esper_backend **be_out)
{
    const char *wanted = getenv("ESPER_CUDA_HOST_PRECISION");
    esper_status status = esper_ram_backend_open(&cuda_host, pool, NULL, be_out);

    if (status == ESPER_OK && wanted != NULL)
        (*be_out)->precision = strcmp(wanted, "bf16") == 0 ? ESPER_BF16 : ESPER_TF32;
    return status;
}

/* It answers to the name of the one that programs compare with ref. */
const esper_backend_ops *const *esper_backend_list(void)
{
    static const esper_backend_ops *const backends[] = {&cuda_host, &esper_backend_ref, &esper_backend_null, NULL};

    return backends;
}
