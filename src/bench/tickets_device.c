/* B1-PT-02 and B3-CR-05, on a CUDA device. A rollback beside a stream that has nothing to do with it: before, everything on
 * the device is waited for; after, the ring waits for the streams that write the tensors. Gradients on two devices, one of
 * them the host: before, a norm at a time is moved; after, each device sends one block of records. */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/status.h"
#include "bench/tickets.h"
#include "device/device_cuda.h"

static const uint64_t busy_ns = 50 * 1000 * 1000,
                      quick_ns = 5 * 1000 * 1000; /* of work that the neighbour has queued */

/* One thread that looks at the clock until so many ns are over: it takes nothing from others but time. */
static const char spin_code[] = ".version 6.4\n.target sm_70\n.address_size 64\n"
                                ".visible .entry esper_spin(.param .u64 sink, .param .u64 ns)\n"
                                "{\n"
                                "    .reg .pred %p;\n"
                                "    .reg .u64 %to, %ns, %began, %now, %spent;\n"
                                "    ld.param.u64 %to, [sink];\n"
                                "    ld.param.u64 %ns, [ns];\n"
                                "    cvta.to.global.u64 %to, %to;\n"
                                "    mov.u64 %began, %globaltimer;\n"
                                "again:\n"
                                "    mov.u64 %now, %globaltimer;\n"
                                "    sub.u64 %spent, %now, %began;\n"
                                "    setp.lt.u64 %p, %spent, %ns;\n"
                                "    @%p bra again;\n"
                                "    st.global.u64 [%to], %spent;\n"
                                "    ret;\n"
                                "}\n";

/* The machine's place for CUDA, or NULL where there is none or the host was asked for. */
static esper_status find_device(const esper_bench_request *request, esper_bench_place **place_out)
{
    esper_bench_place *place;

    *place_out = NULL;
    ESPER_TRY(esper_bench_place_open(request->device, request->config->threads, &place));
    if (place->number == ESPER_GUARD_HOST)
        esper_bench_place_close(place);
    else
        *place_out = place;
    return ESPER_OK;
}

/* ---- B1-PT-02: a rollback beside a busy neighbour */

typedef struct rollback_setup {
    esper_bench_place *place;     /* its stream trains the network that has to go back */
    esper_stream      *neighbour; /* trains another */
    CUmodule           module;
    CUfunction         spin;
    void              *sink;
    uint64_t           ns;
    esper_bench_model *model;
    esper_guard       *guard;
    esper_ring        *ring;
    void              *kept;  /* before: the state to go back to, in pinned host memory */
    void              *moved; /* before: the same, brought to the device */
} rollback_setup;

static esper_status launch_spin(rollback_setup *setup)
{
    CUdeviceptr sink = (CUdeviceptr)(uintptr_t)setup->sink;
    void *parameters[] = {&sink, &setup->ns};
    esper_status status;

    ESPER_TRY(esper_cuda_enter(setup->place->device));
    status = ESPER_CUDA(cuLaunchKernel, setup->spin, 1, 1, 1, 1, 1, 1, 0,
                        (CUstream)esper_stream_native(setup->neighbour), parameters, NULL);
    esper_cuda_leave();
    return status;
}

static esper_status make_busy(void *context)
{
    rollback_setup *setup = context;

    ESPER_TRY(esper_stream_sync(setup->neighbour));
    ESPER_TRY(esper_stream_sync(setup->place->stream));
    return launch_spin(setup);
}

/* Every tensor to the device, all streams of the device idle, every tensor into its place. There are two streams, and both
 * are waited for: nothing in the engine can stop a device as a whole. */
static esper_status stop_and_restore(void *context)
{
    rollback_setup *setup = context;
    const esper_bench_model *model = setup->model;
    esper_stream *stream = setup->place->stream;

    for (size_t i = 0; i < model->n_tensors; i++) {
        size_t at = (size_t)((char *)model->tensors[i].data - model->memory);

        ESPER_TRY(esper_stream_copy(stream, (char *)setup->moved + at, (char *)setup->kept + at,
                                    model->tensors[i].count * sizeof(float)));
    }
    ESPER_TRY(esper_stream_sync(stream));
    ESPER_TRY(esper_stream_sync(setup->neighbour));
    for (size_t i = 0; i < model->n_tensors; i++) {
        size_t at = (size_t)((char *)model->tensors[i].data - model->memory);

        ESPER_TRY(esper_stream_copy(stream, model->tensors[i].data, (char *)setup->moved + at,
                                    model->tensors[i].count * sizeof(float)));
    }
    return esper_stream_sync(stream);
}

static esper_status roll_back(void *context)
{
    rollback_setup *setup = context;
    esper_ring_restored restored;

    return esper_ring_rollback(setup->ring, 1, &restored);
}

static esper_status open_spin(rollback_setup *setup)
{
    esper_device *device = setup->place->device;
    esper_status status;

    ESPER_TRY(esper_stream_open(device, &setup->neighbour));
    ESPER_TRY(esper_device_alloc(device, 8, ESPER_DEVICE_MEMORY_NORMAL, &setup->sink));
    ESPER_TRY(esper_cuda_enter(device));
    status = ESPER_CUDA(cuModuleLoadData, &setup->module, spin_code);
    if (status == ESPER_OK)
        status = ESPER_CUDA(cuModuleGetFunction, &setup->spin, setup->module, "esper_spin");
    esper_cuda_leave();
    return status;
}

/* Both ways restore from pinned host memory, so that only the waiting differs. */
static esper_status open_ring(rollback_setup *setup)
{
    esper_stream *stream = setup->place->stream;
    esper_ring_options options;
    esper_ring_status status;

    esper_ring_options_init(&options);
    options.mirror = 0;
    options.place = ESPER_RING_HOST;
    ESPER_TRY(esper_ring_open(setup->guard, &options, &setup->ring));
    ESPER_TRY(esper_ring_add_stream(setup->ring, setup->place->number, esper_stream_native(stream)));
    ESPER_TRY(esper_ring_take(setup->ring, 1, NULL, 0));
    ESPER_TRY(esper_ring_status_get(setup->ring, 1, &status));
    if (status.newest != ESPER_RING_GOOD)
        return ESPER_FAIL(ESPER_E_STATE, "the snapshot is not good");
    ESPER_TRY(esper_device_alloc(setup->place->device, setup->model->bytes, ESPER_DEVICE_MEMORY_PINNED, &setup->kept));
    ESPER_TRY(esper_device_alloc(setup->place->device, setup->model->bytes, ESPER_DEVICE_MEMORY_NORMAL, &setup->moved));
    ESPER_TRY(esper_stream_copy(stream, setup->kept, setup->model->memory, setup->model->bytes));
    return esper_stream_sync(stream);
}

static esper_status open_rollback(rollback_setup *setup, const esper_bench_request *request)
{
    setup->ns = request->quick ? quick_ns : busy_ns;
    ESPER_TRY(open_spin(setup));
    ESPER_TRY(esper_bench_model_open(setup->place, ESPER_BENCH_GPT2, "p", request->quick, &setup->model));
    ESPER_TRY(esper_guard_open(NULL, &setup->guard));
    ESPER_TRY(esper_guard_add(setup->guard, setup->model->tensors, setup->model->n_tensors));
    return open_ring(setup);
}

static void close_rollback(rollback_setup *setup)
{
    esper_device *device = setup->place->device;

    esper_ring_close(setup->ring);
    esper_guard_close(setup->guard);
    if (setup->neighbour != NULL)
        (void)esper_stream_sync(setup->neighbour);
    if (setup->module != NULL && esper_cuda_enter(device) == ESPER_OK) {
        (void)ESPER_CUDA_RAW(cuModuleUnload, setup->module);
        esper_cuda_leave();
    }
    esper_device_release(device, setup->sink);
    esper_device_release(device, setup->moved);
    esper_device_release(device, setup->kept);
    esper_bench_model_close(setup->model);
    if (setup->neighbour != NULL)
        esper_stream_close(setup->neighbour);
}

/* One way puts a NaN right. */
static esper_status prove_restore(rollback_setup *setup, esper_status (*restore)(void *context))
{
    void *stream = esper_stream_native(setup->place->stream);
    const esper_guard_report *report;
    esper_guard_scan options;

    ESPER_TRY(esper_guard_inject(setup->guard, setup->model->n_tensors - 1, 0, ESPER_FAULT_NAN, 0, stream));
    ESPER_TRY(restore(setup));
    esper_guard_scan_init(&options);
    options.stream = stream;
    ESPER_TRY(esper_guard_launch(setup->guard, &options));
    ESPER_TRY(esper_guard_read(setup->guard, &report));
    return report->bad == 0 ? ESPER_OK : ESPER_FAIL(ESPER_E_STATE, "a rollback left a NaN behind");
}

/* Both ways restore, and the neighbour is as busy as it is said to be. */
static esper_status prove_rollback(rollback_setup *setup)
{
    double began;

    ESPER_TRY(prove_restore(setup, stop_and_restore));
    ESPER_TRY(prove_restore(setup, roll_back));
    ESPER_TRY(make_busy(setup));
    began = esper_clock_seconds();
    ESPER_TRY(esper_stream_sync(setup->neighbour));
    if (1e9 * (esper_clock_seconds() - began) < 0.9 * (double)setup->ns)
        return ESPER_FAIL(ESPER_E_STATE, "the neighbour's work was over too soon");
    return ESPER_OK;
}

esper_status esper_ticket_rollback(const esper_bench_request *request, esper_ticket_result *result)
{
    rollback_setup setup = {0};
    esper_ticket_pair pair = {.before = stop_and_restore, .after = roll_back, .prepare = make_busy, .context = &setup};
    esper_status status;

    ESPER_TRY(find_device(request, &setup.place));
    if (setup.place == NULL)
        return ESPER_OK;
    status = open_rollback(&setup, request);
    if (status == ESPER_OK)
        status = prove_rollback(&setup);
    if (status == ESPER_OK)
        status = esper_ticket_time(&pair, request->quick, result);
    if (status == ESPER_OK) {
        snprintf(result->machine, sizeof(result->machine), "%s", esper_cuda_device_title(setup.place->device));
        result->measured = true;
    }
    close_rollback(&setup);
    esper_bench_place_close(setup.place);
    return status;
}

/* ---- B3-CR-05: norms of gradients on two devices */

enum { N_GRADS = 100 };

typedef struct norms_setup {
    esper_bench_place *place, *host;
    esper_bench_model *on_device, *on_host; /* all shapes on both; of each tensor one is used */
    esper_guard_tensor tensors[N_GRADS];
    size_t             n_on_device;
    esper_guard       *guard;
    float             *norms;      /* (N_GRADS) on the device */
    float              here[N_GRADS];
    double             grad_norm;
} norms_setup;

/* One norm after the other is brought to where the first lies, as a library's blocking copy does it. Computing them is
 * left out. */
static esper_status move_each(void *context)
{
    norms_setup *setup = context;
    esper_stream *stream = setup->place->stream;

    for (size_t i = 0; i < setup->n_on_device; i++) {
        ESPER_TRY(esper_stream_copy(stream, &setup->here[i], &setup->norms[i], sizeof(float)));
        ESPER_TRY(esper_stream_sync(stream));
    }
    return ESPER_OK;
}

/* Everything: reading all gradients on both devices, one transfer from each, the sum. */
static esper_status scan_both(void *context)
{
    norms_setup *setup = context;
    const esper_guard_report *report;
    esper_guard_scan options;

    esper_guard_scan_init(&options);
    options.stream = esper_stream_native(setup->place->stream);
    ESPER_TRY(esper_guard_launch(setup->guard, &options));
    ESPER_TRY(esper_guard_read(setup->guard, &report));
    setup->grad_norm = report->grad_norm;
    return ESPER_OK;
}

/* Both models are filled alike, so that the host's holds every gradient. */
static esper_status prove_norms(norms_setup *setup)
{
    double sum = 0.0, apart;

    for (size_t i = 0; i < N_GRADS; i++) {
        const float *values = setup->on_host->tensors[i].data;

        for (uint64_t j = 0; j < setup->on_host->tensors[i].count; j++)
            sum += (double)values[j] * (double)values[j];
    }
    ESPER_TRY(scan_both(setup));
    apart = fabs(setup->grad_norm - sqrt(sum));
    if (!(apart <= 1e-9 * sqrt(sum)))
        return ESPER_FAIL(ESPER_E_STATE, "gradients on two devices: the norm is %.12g, expected %.12g",
                          setup->grad_norm, sqrt(sum));
    return ESPER_OK;
}

/* Layers of two tensors in turn: one on the device, one on the host. */
static void spread(norms_setup *setup)
{
    for (size_t i = 0; i < N_GRADS; i++) {
        bool here = i / 2 % 2 == 1;

        setup->tensors[i] = (here ? setup->on_host : setup->on_device)->tensors[i];
        setup->n_on_device += here ? 0 : 1;
    }
}

static esper_status open_norms(norms_setup *setup, const esper_bench_request *request)
{
    esper_guard_options options;
    void *norms;

    ESPER_TRY(esper_bench_place_open("host", request->config->threads, &setup->host));
    ESPER_TRY(esper_bench_model_open(setup->place, ESPER_BENCH_SMALL100, "g", request->quick, &setup->on_device));
    ESPER_TRY(esper_bench_model_open(setup->host, ESPER_BENCH_SMALL100, "g", request->quick, &setup->on_host));
    ESPER_TRY(esper_device_alloc(setup->place->device, N_GRADS * sizeof(float), ESPER_DEVICE_MEMORY_NORMAL, &norms));
    setup->norms = norms;
    spread(setup);
    esper_guard_options_init(&options);
    options.n_threads = request->config->threads;
    ESPER_TRY(esper_guard_open(&options, &setup->guard));
    ESPER_TRY(esper_guard_add(setup->guard, setup->tensors, N_GRADS));
    return prove_norms(setup);
}

static void close_norms(norms_setup *setup)
{
    esper_guard_close(setup->guard);
    esper_device_release(setup->place->device, setup->norms);
    esper_bench_model_close(setup->on_host);
    esper_bench_model_close(setup->on_device);
    esper_bench_place_close(setup->host);
}

esper_status esper_ticket_norms(const esper_bench_request *request, esper_ticket_result *result)
{
    norms_setup setup = {0};
    esper_ticket_pair pair = {.before = move_each, .after = scan_both, .context = &setup};
    esper_status status;

    ESPER_TRY(find_device(request, &setup.place));
    if (setup.place == NULL)
        return ESPER_OK;
    status = open_norms(&setup, request);
    if (status == ESPER_OK)
        status = esper_ticket_time(&pair, request->quick, result);
    if (status == ESPER_OK) {
        snprintf(result->machine, sizeof(result->machine), "%s and host, %d threads",
                 esper_cuda_device_title(setup.place->device), esper_pool_threads(setup.place->pool));
        result->measured = true;
    }
    close_norms(&setup);
    esper_bench_place_close(setup.place);
    return status;
}
