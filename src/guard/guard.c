/* The guard: tensors registered once. How they are scanned is told in guard_scan.c.
 *
 * There is one engine for each device. Devices below ESPER_GUARD_HOST (-2, -3, ...) are further partitions of host
 * memory, each with an engine of its own. What is registered changes as a whole or not at all: a new table is made, its
 * engines are told, and only then does it take the place of the old one. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/guard_internal.h"
#include "guard/guard_state.h"
#include "guard/report.h"
#include "guard/scan_kernels.h"

/* ---------------------------------------------------------------------------------------------------------- options */

void esper_guard_options_init(esper_guard_options *options)
{
    if (options != NULL)
        *options = (esper_guard_options){.size = sizeof(*options), .vanishing = 1e-7, .exploding = 10.0, .tiny = 1e-8};
}

static esper_status check_options(const esper_guard_options *options)
{
    const struct {
        const char *name;
        double      value;
    } limits[] = {{"vanishing", options->vanishing}, {"exploding", options->exploding}, {"tiny", options->tiny}};

    if (options->size != sizeof(*options))
        return ESPER_FAIL(ESPER_E_ARG, "guard options of %zu bytes, expected %zu: begin with esper_guard_options_init",
                          options->size, sizeof(*options));
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        if (!(limits[i].value >= 0.0))
            return ESPER_FAIL(ESPER_E_ARG, "guard option %s is %g: expected 0 or more", limits[i].name,
                              limits[i].value);
    if (options->n_threads < 0 || options->n_threads > 1024)
        return ESPER_FAIL(ESPER_E_ARG, "guard option n_threads is %d: expected 0 (one for each core) to 1024",
                          options->n_threads);
    if ((options->alloc == NULL) != (options->release == NULL))
        return ESPER_FAIL(ESPER_E_ARG, "guard options alloc and release: give both or none");
    return ESPER_OK;
}

esper_status esper_guard_open(const esper_guard_options *options, esper_guard **guard_out)
{
    esper_guard_options defaults;
    esper_guard *guard;

    if (guard_out == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_guard_open: no place for the guard");
    esper_guard_options_init(&defaults);
    if (options == NULL)
        options = &defaults;
    ESPER_TRY(check_options(options));
    guard = esper_mem_alloc(sizeof(*guard));
    if (guard == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "guard");
    guard->options = *options;
    *guard_out = guard;
    return ESPER_OK;
}

void esper_guard_close(esper_guard *guard)
{
    if (guard == NULL)
        return;
    for (size_t s = 0; s < guard->table.n_partitions; s++)
        guard->table.partitions[s].engine->ops->close(guard->table.partitions[s].engine);
    esper_guard_table_free(&guard->table);
    esper_mem_free(guard);
}

const esper_guard_options *esper_guard_options_of(const esper_guard *guard)
{
    return &guard->options;
}

static esper_scan_engine *engine_in(const esper_guard_table *table, int32_t device)
{
    for (size_t s = 0; s < table->n_partitions; s++)
        if (table->partitions[s].device == device)
            return table->partitions[s].engine;
    return NULL;
}

esper_scan_engine *esper_guard_engine(const esper_guard *guard, int32_t device)
{
    return engine_in(&guard->table, device);
}

/* ----------------------------------------------------------------------------------------------------- registration */

esper_status esper_guard_check_idle(const esper_guard *guard, const char *what)
{
    if (guard == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "%s: no guard", what);
    if (guard->launched && !guard->replayed)
        return ESPER_FAIL(ESPER_E_STATE, "%s: a scan was launched and not read yet; call esper_guard_read first", what);
    return ESPER_OK;
}

/* Asks the device's engine whether the tensor may lie there. */
static esper_status check_memory(const esper_guard_table *table, const esper_guard_tensor *tensor, const void *data)
{
    esper_scan_engine *engine = engine_in(table, tensor->device);
    esper_status status =
        engine->ops->check(engine, data, tensor->count * (uint64_t)esper_guard_dtype_bytes(tensor->dtype));

    assert(engine->device == tensor->device);
    return status == ESPER_OK ? status : esper_fail_within(status, "%s: ", tensor->name);
}

/* Whether a partition of the next table knows more tensors than the same one of the current table. */
static bool has_grown(const esper_guard *guard, const esper_guard_table *table, size_t s)
{
    return table->partitions[s].n_tensors > (s < guard->table.n_partitions ? guard->table.partitions[s].n_tensors : 0);
}

static esper_status prepare_engines(esper_guard *guard, esper_guard_table *table)
{
    for (size_t s = 0; s < table->n_partitions; s++) {
        esper_guard_partition *part = &table->partitions[s];
        const esper_scan_engine_ops *ops = part->device < 0 ? &esper_scan_engine_host : &esper_scan_engine_cuda;

        if (part->engine == NULL)
            ESPER_TRY(ops->open(part->device, &guard->options, &part->engine));
    }
    for (size_t i = guard->table.n_tensors; i < table->n_tensors; i++)
        ESPER_TRY(check_memory(table, &table->tensors[i], table->tensors[i].data));
    for (size_t s = 0; s < table->n_partitions; s++)
        if (has_grown(guard, table, s) || table->partitions[s].stale)
            ESPER_TRY(esper_guard_partition_bind(table, &table->partitions[s]));
    return ESPER_OK;
}

/* After a failure: engines opened for the next table go, others are told their old tensors again. One that cannot even
 * do that is told so at the next launch, which fails while it cannot. */
static void restore_engines(esper_guard *guard, esper_guard_table *table)
{
    assert(table->n_partitions >= guard->table.n_partitions); /* those of the current table come first */
    for (size_t s = 0; s < table->n_partitions; s++) {
        esper_guard_partition *part = &table->partitions[s];

        if (s >= guard->table.n_partitions) {
            if (part->engine != NULL)
                part->engine->ops->close(part->engine);
        } else if (guard->table.partitions[s].n_tensors > 0 && has_grown(guard, table, s)) {
            esper_status ignored = esper_guard_partition_bind(&guard->table, &guard->table.partitions[s]);

            (void)ignored; /* it has left a mark */
        }
    }
}

esper_status esper_guard_add(esper_guard *guard, const esper_guard_tensor *tensors, size_t n_tensors)
{
    esper_guard_table table;
    esper_status status;

    ESPER_TRY(esper_guard_check_idle(guard, "esper_guard_add"));
    if (n_tensors == 0)
        return ESPER_OK;
    if (tensors == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_guard_add: %zu tensors at NULL", n_tensors);
    for (size_t i = 0; i < n_tensors; i++)
        ESPER_TRY(esper_guard_tensor_check(&tensors[i], i));
    ESPER_TRY(esper_guard_table_make(&guard->table, tensors, n_tensors, &table));
    status = prepare_engines(guard, &table);
    if (status != ESPER_OK) {
        char why[512];

        snprintf(why, sizeof(why), "%s", esper_last_error());
        restore_engines(guard, &table);
        esper_guard_table_free(&table);
        return ESPER_FAIL(status, "%s", why);
    }
    esper_guard_table_free(&guard->table);
    guard->table = table;
    guard->replayed = false;
    guard->known_flag = NULL;
    return ESPER_OK;
}

/* Engines stay open, without tensors, until some come again. */
esper_status esper_guard_clear(esper_guard *guard)
{
    esper_guard_table *table;

    ESPER_TRY(esper_guard_check_idle(guard, "esper_guard_clear"));
    table = &guard->table;
    table->n_tensors = table->n_groups = 0;
    memset(table->role_sizes, 0, sizeof(table->role_sizes));
    for (size_t s = 0; s < table->n_partitions; s++) {
        table->partitions[s].n_tensors = 0;
        table->partitions[s].roles = 0;
        table->partitions[s].stale = false;
    }
    guard->replayed = false;
    guard->known_flag = NULL;
    return ESPER_OK;
}

/* Asking about memory takes a call of the system or of the driver for each tensor; with `trusts` that is left to the caller. */
static esper_status give_addresses(esper_guard *guard, void *const *data, size_t n_tensors, bool trusts,
                                   const char *what)
{
    esper_guard_table *table;
    esper_status status = ESPER_OK;

    ESPER_TRY(esper_guard_check_idle(guard, what));
    table = &guard->table;
    if (n_tensors != table->n_tensors)
        return ESPER_FAIL(ESPER_E_ARG, "%s: %zu addresses for %zu tensors", what, n_tensors, table->n_tensors);
    if (n_tensors == 0)
        return ESPER_OK;
    if (data == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "%s: no addresses", what);
    for (size_t i = 0; i < n_tensors; i++) {
        const esper_guard_tensor *tensor = &table->tensors[i];

        if (data[i] == NULL && tensor->count > 0)
            return ESPER_FAIL(ESPER_E_ARG, "tensor %zu (%s): %llu elements at NULL", i, tensor->name,
                              (unsigned long long)tensor->count);
        if (data[i] != tensor->data && !trusts)
            ESPER_TRY(check_memory(table, tensor, data[i]));
    }
    for (size_t s = 0; s < table->n_partitions && status == ESPER_OK; s++) {
        const esper_guard_partition *part = &table->partitions[s];

        if (part->stale || part->n_tensors == 0)
            continue; /* it is bound as a whole before its next scan */
        for (size_t i = 0; i < part->n_tensors; i++)
            table->data[i] = data[part->index[i]];
        status = part->engine->ops->rebind(part->engine, table->data);
    }
    if (status != ESPER_OK) { /* engines that have the new ones are bound anew, to the old ones, before the next scan */
        for (size_t s = 0; s < table->n_partitions; s++)
            table->partitions[s].stale = true;
        return status;
    }
    for (size_t i = 0; i < n_tensors; i++)
        table->tensors[i].data = data[i];
    return ESPER_OK;
}

esper_status esper_guard_replace(esper_guard *guard, void *const *data, size_t n_tensors)
{
    return give_addresses(guard, data, n_tensors, false, "esper_guard_replace");
}

esper_status esper_guard_move(esper_guard *guard, void *const *data, size_t n_tensors)
{
    return give_addresses(guard, data, n_tensors, true, "esper_guard_move");
}

static esper_status differs(const esper_guard_tensor *known, size_t i, const char *what, const char *is,
                            const char *was)
{
    return ESPER_FAIL(
        ESPER_E_STATE,
        "tensor %zu (%s): its %s is %s, but %s is registered: esper_guard_clear, and add all tensors again", i,
        known->name, what, is, was);
}

static bool same_text(const char *text, const char *known)
{
    return text != NULL && strcmp(text, known) == 0;
}

static const char *shown(const char *text)
{
    return text != NULL ? text : "NULL";
}

static const char *dtype_name(esper_guard_dtype dtype)
{
    static const char *const names[] = {
#define X(name, text, bytes) text,
        ESPER_GUARD_DTYPE_LIST(X)
#undef X
    };

    return (unsigned)dtype < ESPER_GUARD_N_DTYPES ? names[dtype] : "unknown";
}

/* A tensor that only moved is mended by its new address; any other difference makes it another tensor. */
static esper_status compare(const esper_guard_tensor *tensor, const esper_guard_tensor *known, size_t i)
{
    if (!same_text(tensor->name, known->name))
        return differs(known, i, "name", shown(tensor->name), known->name);
    if (!same_text(tensor->group, known->group))
        return differs(known, i, "group", shown(tensor->group), known->group);
    if (tensor->role != known->role)
        return differs(known, i, "role", esper_guard_role_name(tensor->role), esper_guard_role_name(known->role));
    if (tensor->dtype != known->dtype)
        return differs(known, i, "type", dtype_name(tensor->dtype), dtype_name(known->dtype));
    if (tensor->device != known->device || tensor->count != known->count) {
        bool on_other = tensor->device != known->device;
        char is[24], was[24];

        snprintf(is, sizeof(is), "%lld", on_other ? (long long)tensor->device : (long long)tensor->count);
        snprintf(was, sizeof(was), "%lld", on_other ? (long long)known->device : (long long)known->count);
        return differs(known, i, on_other ? "device" : "count", is, was);
    }
    if (tensor->data != known->data)
        return ESPER_FAIL(ESPER_E_STATE,
                          "tensor %zu (%s): its address is %p, but %p is registered: give the new addresses with "
                          "esper_guard_replace",
                          i, known->name, tensor->data, known->data);
    return ESPER_OK;
}

esper_status esper_guard_verify(const esper_guard *guard, const esper_guard_tensor *tensors, size_t n_tensors)
{
    if (guard == NULL || (tensors == NULL && n_tensors > 0))
        return ESPER_FAIL(ESPER_E_ARG, "esper_guard_verify: %s", guard == NULL ? "no guard" : "no tensors");
    if (n_tensors != guard->table.n_tensors)
        return ESPER_FAIL(ESPER_E_STATE, "%zu tensors, but %zu are registered; clear and add them again", n_tensors,
                          guard->table.n_tensors);
    for (size_t i = 0; i < n_tensors; i++)
        ESPER_TRY(compare(&tensors[i], &guard->table.tensors[i], i));
    return ESPER_OK;
}

uint64_t esper_guard_find(const esper_guard *guard, const char *name, esper_guard_role role)
{
    for (size_t i = 0; name != NULL && i < esper_guard_count(guard); i++)
        if (guard->table.tensors[i].role == role && strcmp(guard->table.tensors[i].name, name) == 0)
            return i;
    return ESPER_GUARD_NONE;
}

size_t esper_guard_count(const esper_guard *guard)
{
    return guard != NULL ? guard->table.n_tensors : 0;
}

const esper_guard_tensor *esper_guard_tensor_at(const esper_guard *guard, size_t index)
{
    return index < esper_guard_count(guard) ? &guard->table.tensors[index] : NULL;
}
