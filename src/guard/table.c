/* Tables of tensors: made whole from the one before and what is added. */
#include "guard/table.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/scan_kernels.h"

/* ----------------------------------------------------------------------------------------------------------- checks */

esper_status esper_guard_tensor_check(const esper_guard_tensor *tensor, size_t position)
{
    if (tensor->name == NULL || tensor->name[0] == '\0')
        return ESPER_FAIL(ESPER_E_ARG, "tensor %zu has no name", position);
    if (tensor->group == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "tensor %zu (%s) has no group", position, tensor->name);
    if ((unsigned)tensor->role >= ESPER_GUARD_N_ROLES)
        return ESPER_FAIL(ESPER_E_ARG, "tensor %zu (%s): role %d is unknown", position, tensor->name,
                          (int)tensor->role);
    if ((unsigned)tensor->dtype >= ESPER_GUARD_N_DTYPES)
        return ESPER_FAIL(ESPER_E_ARG, "tensor %zu (%s): dtype %d is unknown", position, tensor->name,
                          (int)tensor->dtype);
    if (tensor->device < ESPER_GUARD_HOST_LAST)
        return ESPER_FAIL(
            ESPER_E_ARG,
            "tensor %zu (%s): device %d: expected ESPER_GUARD_HOST (%d), the number of a CUDA device, or %d "
            "to %d for further partitions of host memory",
            position, tensor->name, tensor->device, ESPER_GUARD_HOST, ESPER_GUARD_HOST - 1, ESPER_GUARD_HOST_LAST);
    if (tensor->count > (uint64_t)PTRDIFF_MAX / esper_guard_dtype_bytes(tensor->dtype))
        return ESPER_FAIL(ESPER_E_ARG, "tensor %zu (%s): %llu elements are more than memory can hold", position,
                          tensor->name, (unsigned long long)tensor->count);
    if (tensor->data == NULL && tensor->count > 0)
        return ESPER_FAIL(ESPER_E_ARG, "tensor %zu (%s): %llu elements at NULL", position, tensor->name,
                          (unsigned long long)tensor->count);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------------------ names */

static uint64_t hash_text(const char *text, uint64_t hash)
{
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return (hash ^ hash >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

/* A set of (text, role) pairs: indices of tensors, NO_TENSOR where there is none. */
typedef struct name_set {
    uint32_t *buckets;
    size_t    mask;
} name_set;

#define NO_TENSOR UINT32_MAX

static esper_status name_set_init(name_set *set, size_t n_names)
{
    size_t n_buckets = 16;

    while (n_buckets < n_names * 2)
        n_buckets *= 2;
    set->buckets = esper_mem_alloc(n_buckets * sizeof(*set->buckets));
    if (set->buckets == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "names of %zu tensors", n_names);
    memset(set->buckets, 0xff, n_buckets * sizeof(*set->buckets));
    set->mask = n_buckets - 1;
    return ESPER_OK;
}

static const char *text_of(const esper_guard_tensor *tensor, bool group)
{
    return group ? tensor->group : tensor->name;
}

/* The tensor that first had the name (or group) and role of tensor `index`: itself when it is the first. */
static uint32_t name_set_put(name_set *set, const esper_guard_tensor *tensors, uint32_t index, bool group)
{
    const esper_guard_tensor *tensor = &tensors[index];
    size_t at =
        (size_t)hash_text(text_of(tensor, group), UINT64_C(0xcbf29ce484222325) + (uint64_t)tensor->role) & set->mask;

    assert(index < NO_TENSOR && tensor->role < ESPER_GUARD_N_ROLES);
    while (set->buckets[at] != NO_TENSOR) {
        const esper_guard_tensor *other = &tensors[set->buckets[at]];

        if (other->role == tensor->role && strcmp(text_of(other, group), text_of(tensor, group)) == 0)
            return set->buckets[at];
        at = (at + 1) & set->mask;
    }
    set->buckets[at] = index;
    return index;
}

static esper_status check_names(const esper_guard_table *table)
{
    esper_status status = ESPER_OK;
    name_set set;

    ESPER_TRY(name_set_init(&set, table->n_tensors));
    for (uint32_t i = 0; i < table->n_tensors && status == ESPER_OK; i++) {
        uint32_t first = name_set_put(&set, table->tensors, i, false);

        if (first != i)
            status = ESPER_FAIL(ESPER_E_ARG,
                                "%s is the name of tensors %u and %u, which have the same role: names are unique "
                                "within a role",
                                table->tensors[i].name, first, i);
    }
    esper_mem_free(set.buckets);
    return status;
}

static void add_size(esper_report_size *size, const esper_guard_tensor *tensor)
{
    size->n_tensors++;
    size->n_elements += tensor->count;
}

/* Groups in the order of their first tensors. */
static esper_status make_groups(esper_guard_table *table)
{
    name_set set;

    ESPER_TRY(name_set_init(&set, table->n_tensors));
    for (uint32_t i = 0; i < table->n_tensors; i++) {
        const esper_guard_tensor *tensor = &table->tensors[i];
        uint32_t first = name_set_put(&set, table->tensors, i, true);

        if (first == i) {
            table->groups[table->n_groups] = (esper_guard_group){.name = tensor->group, .role = tensor->role};
            table->group_of[i] = (uint32_t)table->n_groups++;
        } else {
            table->group_of[i] = table->group_of[first];
        }
        add_size(&table->group_sizes[table->group_of[i]], tensor);
        add_size(&table->role_sizes[tensor->role], tensor);
    }
    esper_mem_free(set.buckets);
    return ESPER_OK;
}

/* ----------------------------------------------------------------------------------------------------------- arrays */

/* Arrays for all tensors, with what is known of the old ones and the new ones behind them. */
static esper_status take_arrays(esper_guard_table *table, const esper_guard_table *old,
                                const esper_guard_tensor *tensors)
{
    const size_t n = table->n_tensors;

    assert(n > old->n_tensors);
    table->tensors = esper_mem_alloc(n * sizeof(*table->tensors));
    table->group_of = esper_mem_alloc(n * sizeof(*table->group_of));
    table->stats = esper_mem_alloc(n * sizeof(*table->stats));
    table->remembered = esper_mem_alloc(n * sizeof(*table->remembered));
    table->remembers = esper_mem_alloc(n * sizeof(*table->remembers));
    table->data = esper_mem_alloc(n * sizeof(*table->data));
    table->groups = esper_mem_alloc(n * sizeof(*table->groups));
    table->group_sizes = esper_mem_alloc(n * sizeof(*table->group_sizes));
    if (table->tensors == NULL || table->group_of == NULL || table->stats == NULL || table->remembered == NULL ||
        table->remembers == NULL || table->data == NULL || table->groups == NULL || table->group_sizes == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "table of %zu tensors", n);
    if (old->n_tensors > 0) {
        memcpy(table->tensors, old->tensors, old->n_tensors * sizeof(*table->tensors));
        memcpy(table->remembered, old->remembered, old->n_tensors * sizeof(*table->remembered));
        memcpy(table->remembers, old->remembers, old->n_tensors * sizeof(*table->remembers));
    }
    memcpy(table->tensors + old->n_tensors, tensors, (n - old->n_tensors) * sizeof(*table->tensors));
    return ESPER_OK;
}

static const char *keep_text(const char *text, char **to)
{
    size_t bytes = strlen(text) + 1;
    char *kept = memcpy(*to, text, bytes);

    *to += bytes;
    return kept;
}

/* Copies the texts, and lets the tensors point to the copies. */
static esper_status keep_texts(esper_guard_table *table)
{
    size_t bytes = 0;
    char *to;

    for (size_t i = 0; i < table->n_tensors; i++)
        bytes += strlen(table->tensors[i].name) + strlen(table->tensors[i].group) + 2;
    to = table->text = esper_mem_alloc(bytes);
    if (to == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "names of %zu tensors", table->n_tensors);
    for (size_t i = 0; i < table->n_tensors; i++) {
        table->tensors[i].name = keep_text(table->tensors[i].name, &to);
        table->tensors[i].group = keep_text(table->tensors[i].group, &to);
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------------- partitions */

static esper_guard_partition *find_partition(esper_guard_table *table, int32_t device)
{
    for (size_t s = 0; s < table->n_partitions; s++)
        if (table->partitions[s].device == device)
            return &table->partitions[s];
    return NULL;
}

/* Makes a partition for every device: those of the old table, which have engines, and new ones. */
static esper_status open_partitions(esper_guard_table *table, const esper_guard_table *old)
{
    table->partitions = esper_mem_alloc((old->n_partitions + 1) * sizeof(*table->partitions));
    if (table->partitions == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "table of %zu devices", old->n_partitions + 1);
    for (size_t s = 0; s < old->n_partitions; s++)
        table->partitions[s] = (esper_guard_partition){.engine = old->partitions[s].engine,
                                                       .device = old->partitions[s].device,
                                                       .stale = old->partitions[s].stale};
    table->n_partitions = old->n_partitions;
    for (size_t i = 0; i < table->n_tensors; i++) {
        esper_guard_partition *part = find_partition(table, table->tensors[i].device);

        if (part == NULL) {
            esper_guard_partition *partitions =
                esper_mem_grow(table->partitions, (table->n_partitions + 1) * sizeof(*partitions));

            if (partitions == NULL)
                return ESPER_FAIL(ESPER_E_NOMEM, "table of %zu devices", table->n_partitions + 1);
            table->partitions = partitions;
            part = &partitions[table->n_partitions++];
            *part = (esper_guard_partition){.device = table->tensors[i].device};
        }
        part->n_tensors++;
        part->roles |= 1u << table->tensors[i].role;
    }
    for (size_t s = 0; s < table->n_partitions; s++) {
        esper_guard_partition *part = &table->partitions[s];
        size_t n = 0;

        part->index = esper_mem_alloc(part->n_tensors * sizeof(*part->index));
        if (part->index == NULL && part->n_tensors > 0)
            return ESPER_FAIL(ESPER_E_NOMEM, "table of %zu tensors", part->n_tensors);
        for (size_t i = 0; i < table->n_tensors; i++)
            if (table->tensors[i].device == part->device)
                part->index[n++] = i;
        assert(n == part->n_tensors);
    }
    return ESPER_OK;
}

esper_status esper_guard_partition_bind(const esper_guard_table *table, esper_guard_partition *part)
{
    esper_scan_tensor *tensors = esper_mem_alloc(part->n_tensors * sizeof(*tensors));
    esper_status status;

    assert(part->engine != NULL && part->n_tensors > 0 && part->n_tensors <= table->n_tensors);
    if (tensors == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "table of %zu tensors", part->n_tensors);
    for (size_t i = 0; i < part->n_tensors; i++) {
        const esper_guard_tensor *tensor = &table->tensors[part->index[i]];

        tensors[i] = (esper_scan_tensor){.data = tensor->data,
                                         .count = tensor->count,
                                         .dtype = tensor->dtype,
                                         .role = tensor->role,
                                         .group = table->group_of[part->index[i]]};
    }
    status = part->engine->ops->bind(part->engine, tensors, part->n_tensors, table->n_groups);
    part->stale = status != ESPER_OK;
    esper_mem_free(tensors);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------ table */

void esper_guard_table_free(esper_guard_table *table)
{
    for (size_t s = 0; s < table->n_partitions; s++)
        esper_mem_free(table->partitions[s].index);
    esper_mem_free(table->partitions);
    esper_mem_free(table->group_sizes);
    esper_mem_free(table->groups);
    esper_mem_free(table->data);
    esper_mem_free(table->remembers);
    esper_mem_free(table->remembered);
    esper_mem_free(table->stats);
    esper_mem_free(table->group_of);
    esper_mem_free(table->text);
    esper_mem_free(table->tensors);
    *table = (esper_guard_table){0};
}

esper_status esper_guard_table_make(const esper_guard_table *old, const esper_guard_tensor *tensors, size_t n_tensors,
                                    esper_guard_table *table_out)
{
    esper_guard_table table = {0};
    esper_status status;

    if (n_tensors > (size_t)INT32_MAX - old->n_tensors)
        return ESPER_FAIL(ESPER_E_ARG, "%zu tensors after %zu are too many", n_tensors, old->n_tensors);
    table.n_tensors = old->n_tensors + n_tensors;
    status = take_arrays(&table, old, tensors);
    if (status == ESPER_OK)
        status = check_names(&table);
    if (status == ESPER_OK)
        status = keep_texts(&table);
    if (status == ESPER_OK)
        status = make_groups(&table);
    if (status == ESPER_OK)
        status = open_partitions(&table, old);
    if (status != ESPER_OK) {
        esper_guard_table_free(&table);
        return status;
    }
    *table_out = table;
    return ESPER_OK;
}
