/* The thin wrappers everybody calls. */
#include "tensor/backend.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "tensor/net.h"
#include "tensor/op_shapes.h"

esper_status esper_backend_open(const char *name, esper_pool *pool, esper_backend **be_out)
{
    const esper_backend_ops *const *backends = esper_backend_list();

    for (int i = 0; backends[i] != NULL; i++) {
        if (strcmp(name, "auto") != 0 && strcmp(name, backends[i]->name) != 0)
            continue;
        if (backends[i]->abi != ESPER_BACKEND_ABI)
            return ESPER_FAIL(ESPER_E_UNSUPPORTED, "backend %s was made for interface %u, this is %d",
                              backends[i]->name, backends[i]->abi, ESPER_BACKEND_ABI);
        return backends[i]->open(pool, be_out);
    }
    return ESPER_FAIL(ESPER_E_ARG, "no backend is called '%s': see `esper info`", name);
}

void esper_backend_close(esper_backend *be)
{
    if (be != NULL)
        be->ops->close(be);
}

const char *esper_precision_name(esper_precision precision)
{
    static const char *const names[] = {[ESPER_FP32] = "fp32", [ESPER_TF32] = "tf32", [ESPER_BF16] = "bf16"};

    return names[precision];
}

esper_status esper_backend_set_precision(esper_backend *be, esper_precision precision)
{
    if (precision == be->precision)
        return ESPER_OK;
    if (be->ops->set_precision == NULL)
        return ESPER_FAIL(
            ESPER_E_CONFIG,
            "backend %s computes in fp32 alone: %s is for an NVIDIA GPU (--backend cuda), or leave out --precision",
            be->ops->name, esper_precision_name(precision));
    ESPER_TRY(be->ops->set_precision(be, precision));
    be->precision = precision;
    return ESPER_OK;
}

esper_status esper_backend_alloc(esper_backend *be, size_t bytes, void **mem_out)
{
    if (bytes == 0) {
        *mem_out = NULL;
        return ESPER_OK;
    }
    return be->ops->alloc(be, bytes, mem_out);
}

void esper_backend_release(esper_backend *be, void *mem)
{
    if (mem != NULL)
        be->ops->release(be, mem);
}

bool esper_backend_supports(const esper_backend *be, esper_op_kind kind)
{
    return be->ops->supports(be, kind);
}

size_t esper_backend_bytes(const esper_backend *be, const esper_tensor *tensor, int max_samples)
{
    if (be->ops->bytes != NULL)
        return be->ops->bytes(be, tensor, max_samples);
    assert(tensor->layout == 0);
    return (size_t)tensor->count * sizeof(float) * (size_t)(tensor->per_sample ? max_samples : 1);
}

const char *esper_backend_name(const esper_backend *be)
{
    return be->ops->name;
}

const char *esper_backend_identity(const esper_backend *be)
{
    return be->ops->identity(be);
}

/* What kernels take for granted. Nothing here looks into the backend's memory. */
static void assert_view(const esper_view *view, bool flat)
{
    (void)view, (void)flat; /* without assertions */
    assert(view->data != NULL || view->grad == NULL);
    assert((uintptr_t)view->data % sizeof(float) == 0 && (uintptr_t)view->grad % sizeof(float) == 0);
    assert(0 <= view->rank && view->rank <= ESPER_MAX_RANK && view->count >= 0);
    assert(flat || view->data == NULL ||
           view->count == (int64_t)view->dim[0] * view->dim[1] * view->dim[2] * view->dim[3]);
}

static void assert_launch(const esper_launch *launch)
{
    const esper_op_info *info = esper_op_info_of(launch->kind);

    assert(0 <= (int)launch->kind && launch->kind < ESPER_N_KINDS);
    assert(launch->direction == ESPER_FORWARD || launch->direction == ESPER_BACKWARD);
    assert(launch->n_lanes > 0 && launch->lanes != NULL && launch->variant >= 0);
    for (int l = 0; l < launch->n_lanes; l++) {
        const esper_lane *lane = &launch->lanes[l];

        assert((lane->pass == NULL) != (lane->group == NULL) || launch->kind == ESPER_OP_GRAD_NORM);
        assert((uintptr_t)lane->scratch % sizeof(double) == 0);
        assert(launch->part == ESPER_PART_WHOLE || (lane->spread && lane->scratch != NULL));
        for (int i = 0; i < info->n_in; i++)
            assert_view(&lane->in[i], lane->pass == NULL);
        for (int i = 0; i < info->n_out; i++)
            assert_view(&lane->out[i], lane->pass == NULL);
        esper_assert_shapes(launch->kind, lane);
    }
}

static void assert_program(const esper_program *program)
{
    for (int i = 0; i < program->n_launches; i += program->chain[i]) {
        assert(program->chain[i] > 0 && i + program->chain[i] <= program->n_launches);
        for (int j = i; j < i + program->chain[i]; j++) {
            assert(j == i || program->chain[j] == 0);
            assert(program->launches[j].n_lanes == 1);
            assert_launch(&program->launches[j]);
        }
    }
}

esper_status esper_backend_enqueue(esper_backend *be, esper_backend_stream *stream, const esper_launch *launch)
{
    assert(stream == NULL || stream->backend == be);
    assert_launch(launch);
    return be->ops->enqueue(be, stream, launch);
}

esper_status esper_backend_enqueue_programs(esper_backend *be, esper_backend_stream *stream,
                                            const esper_program *programs, int n_programs)
{
    assert(stream == NULL || stream->backend == be);
    for (int k = 0; k < n_programs; k++)
        assert_program(&programs[k]);
    if (be->ops->enqueue_programs != NULL)
        return be->ops->enqueue_programs(be, stream, programs, n_programs);
    for (int k = 0; k < n_programs; k++)
        for (int i = 0; i < programs[k].n_launches; i++)
            ESPER_TRY(be->ops->enqueue(be, stream, &programs[k].launches[i]));
    return ESPER_OK;
}

esper_status esper_backend_copy_in(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                   size_t bytes)
{
    assert(stream == NULL || stream->backend == be);
    assert(bytes == 0 || (to != NULL && from != NULL));
    return bytes == 0 ? ESPER_OK : be->ops->copy_in(be, stream, to, from, bytes);
}

esper_status esper_backend_copy_out(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                    size_t bytes)
{
    assert(stream == NULL || stream->backend == be);
    assert(bytes == 0 || (to != NULL && from != NULL));
    return bytes == 0 ? ESPER_OK : be->ops->copy_out(be, stream, to, from, bytes);
}

esper_status esper_backend_copy(esper_backend *be, esper_backend_stream *stream, void *to, const void *from,
                                size_t bytes)
{
    assert(stream == NULL || stream->backend == be);
    assert(bytes == 0 || (to != NULL && from != NULL));
    return bytes == 0 ? ESPER_OK : be->ops->copy(be, stream, to, from, bytes);
}

esper_status esper_backend_fill(esper_backend *be, esper_backend_stream *stream, float *to, float value, size_t count)
{
    assert(stream == NULL || stream->backend == be);
    assert(count == 0 || to != NULL);
    return count == 0 ? ESPER_OK : be->ops->fill(be, stream, to, value, count);
}

esper_status esper_backend_scan(esper_backend *be, esper_backend_stream *stream, esper_guard *guard,
                                const esper_guard_scan *request, uint32_t *flag)
{
    assert(stream == NULL || stream->backend == be);
    assert(flag != NULL && request->skip_flag == NULL);
    return be->ops->scan(be, stream, guard, request, flag);
}

esper_status esper_backend_gather(esper_backend *be, esper_backend_stream *stream, const esper_gather *gather,
                                  const esper_pick *picks)
{
    assert(stream == NULL || stream->backend == be);
    return be->ops->gather == NULL ? ESPER_E_UNSUPPORTED : be->ops->gather(be, stream, gather, picks);
}

bool esper_backend_gathers(const esper_backend *be)
{
    return be->ops->gather != NULL;
}

void esper_backend_each(esper_backend *be, int n_items, esper_backend_item run_item, void *context)
{
    if (be->ops->each != NULL) {
        be->ops->each(be, n_items, run_item, context);
        return;
    }
    for (int item = 0; item < n_items; item++)
        run_item(context, item, NULL);
}

int esper_backend_width(const esper_backend *be, const esper_pool *pool)
{
    return be->ops->width != NULL ? be->ops->width(be) : esper_pool_threads(pool);
}

void esper_backend_stand_by(esper_backend *be, bool on)
{
    if (be->ops->stand_by != NULL)
        be->ops->stand_by(be, on);
}

int32_t esper_backend_device(const esper_backend *be)
{
    return be->ops->device != NULL ? be->ops->device(be) : ESPER_GUARD_HOST;
}

bool esper_backend_reports(const esper_backend *be)
{
    return !be->ops->flags_only;
}

void esper_backend_forget(esper_backend *be, uint64_t program)
{
    if (be->ops->forget != NULL)
        be->ops->forget(be, program);
}

esper_status esper_backend_wait(esper_backend *be, esper_backend_stream *stream)
{
    assert(stream == NULL || stream->backend == be);
    atomic_fetch_add_explicit(&be->n_waits, 1, memory_order_relaxed);
    return be->ops->sync(be, stream);
}

esper_status esper_backend_submit(esper_backend *be, esper_backend_stream *stream, uint64_t *ticket_out)
{
    assert(stream == NULL || stream->backend == be);
    if (be->ops->submit != NULL)
        return be->ops->submit(be, stream, ticket_out);
    if (ticket_out == NULL)
        return ESPER_OK;
    *ticket_out = 0;
    return esper_backend_wait(be, stream);
}

esper_status esper_backend_wait_for(esper_backend *be, esper_backend_stream *stream, uint64_t ticket)
{
    assert(stream == NULL || stream->backend == be);
    if (be->ops->wait_for == NULL)
        return ESPER_OK;
    atomic_fetch_add_explicit(&be->n_waits, 1, memory_order_relaxed);
    return be->ops->wait_for(be, stream, ticket);
}

void esper_backend_figures_get(esper_backend *be, esper_backend_figures *figures_out)
{
    *figures_out = (esper_backend_figures){0};
    if (be->ops->figures != NULL)
        be->ops->figures(be, figures_out);
}

esper_status esper_backend_sync(esper_backend *be)
{
    return esper_backend_wait(be, NULL);
}

int64_t esper_backend_waits(const esper_backend *be)
{
    return atomic_load_explicit(&be->n_waits, memory_order_relaxed);
}

esper_status esper_backend_read(esper_backend *be, void *to, const void *from, size_t bytes)
{
    ESPER_TRY(esper_backend_copy_out(be, NULL, to, from, bytes));
    return esper_backend_sync(be);
}

bool esper_backend_is_behind(const esper_backend *be)
{
    return be->ops->behind;
}

void *esper_backend_address(const esper_backend *be, void *mem)
{
    return be->ops->address == NULL || mem == NULL ? mem : be->ops->address(be, mem);
}
