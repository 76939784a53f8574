/* The guard around a network: opening, and which tensors it knows. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/guard_internal.h"
#include "engine/guarded_internal.h"

/* Below so many bytes of state one thread scans faster than several meet. */
static const size_t one_thread_bytes = (size_t)4 << 20;

/* The families in the order in which they are registered, and so named: state before the gradients it leads to. */
static const struct {
    esper_family     family;
    esper_guard_role role;
    const char      *prefix; /* the two moments of a parameter must have two names */
} families[] = {
    {ESPER_FAMILY_PARAM, ESPER_GUARD_ROLE_PARAM, ""},
    {ESPER_FAMILY_MOMENT1, ESPER_GUARD_ROLE_MOMENT, "moment1/"},
    {ESPER_FAMILY_MOMENT2, ESPER_GUARD_ROLE_MOMENT, "moment2/"},
    {ESPER_FAMILY_BUFFER, ESPER_GUARD_ROLE_BUFFER, ""},
    {ESPER_FAMILY_GRAD, ESPER_GUARD_ROLE_GRAD, ""},
};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

/* ------------------------------------------------------------------------------------------------ opening */

static void list_family(const esper_network *network, int f, esper_guard_tensor *list, char (*names)[NAME_CHARS],
                        size_t *n)
{
    for (int t = 0; t < network->net.n_tensors; t++) {
        const esper_tensor *tensor = &network->net.tensors[t];
        bool has_state = tensor->role == ESPER_ROLE_PARAM || tensor->role == ESPER_ROLE_BUFFER;
        float *values = has_state ? esper_slab_at(&network->slab, families[f].family, tensor) : NULL;

        if (values == NULL)
            continue;
        snprintf(names[*n], NAME_CHARS, "%s%s", families[f].prefix, tensor->name);
        list[*n] = (esper_guard_tensor){
            .name = names[*n],
            .group = tensor->region == 0 ? "host" : network->slots.slot[tensor->region - 1].id,
            .role = families[f].role,
            .dtype = ESPER_GUARD_F32,
            .device = esper_backend_device(network->engine->backend),
            .data = esper_backend_address(network->engine->backend, values),
            .count = (uint64_t)tensor->count,
        };
        ++*n;
    }
}

static esper_status add_tensors(esper_guarded *guarded)
{
    size_t most = (size_t)guarded->network->net.n_tensors * N_FAMILIES, n = 0;
    esper_guard_tensor *list = esper_mem_alloc(most * sizeof(*list));
    char(*names)[NAME_CHARS] = esper_mem_alloc(most * sizeof(*names));
    esper_status status;

    if (list == NULL || names == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "list of %zu tensors to guard", most);
    else {
        for (int f = 0; f < N_FAMILIES; f++)
            list_family(guarded->network, f, list, names, &n);
        status = esper_guard_add(guarded->guard, list, n);
    }
    esper_mem_free(list);
    esper_mem_free(names);
    return status;
}

static esper_status open_guard(const esper_network *network, esper_guard **guard_out)
{
    esper_pool *pool = esper_network_pool(network);
    esper_guard_options options;

    esper_guard_options_init(&options);
    options.n_threads = pool == NULL || network->slab.bytes < one_thread_bytes ? 1 : esper_pool_threads(pool);
    return esper_guard_open(&options, guard_out);
}

/* A snapshot must fit whatever has grown or gone since: so it is of the whole slab, not of the tensors of the day. */
static esper_status add_whole(esper_guarded *guarded)
{
    const esper_slab *slab = &guarded->network->slab;
    esper_guard_tensor list[N_FAMILIES];
    size_t n = 0;

    for (int f = 0; f < N_FAMILIES; f++)
        if (families[f].role != ESPER_GUARD_ROLE_GRAD && slab->family[families[f].family] != NULL &&
            esper_slab_count(slab, families[f].family) > 0)
            list[n++] = (esper_guard_tensor){
                .name = esper_family_name(families[f].family),
                .group = "slab",
                .role = families[f].role,
                .dtype = ESPER_GUARD_F32,
                .device = esper_backend_device(slab->backend),
                .data = esper_backend_address(slab->backend, slab->family[families[f].family]),
                .count = (uint64_t)esper_slab_count(slab, families[f].family),
            };
    return esper_guard_add(guarded->whole, list, n);
}

esper_status guarded_open_ring(esper_guarded *guarded, esper_ring **ring_out)
{
    esper_ring_options options;

    esper_ring_options_init(&options);
    options.n_entries = N_SNAPSHOTS;
    options.place = esper_backend_device(guarded->network->engine->backend) == ESPER_GUARD_HOST ? ESPER_RING_HOST
                                                                                                : ESPER_RING_DEVICE;
    options.roles = state_roles;
    return esper_ring_open(guarded->whole, &options, ring_out);
}

/* A loss that is normal for language is far too high for images and tables. */
static esper_status open_governor(esper_guarded *guarded)
{
    const esper_network *network = guarded->network;
    const esper_dataset_info *info = esper_dataset_info_get(network->engine->data);
    bool text = info->kind == ESPER_DATASET_TOKENS;
    esper_governor_options options;

    esper_governor_options_init(&options);
    options.absolute = text ? 15.0 : 12.0;
    options.random_guess_loss = log((double)(text ? info->vocab : info->classes));
    options.max_rollbacks = (uint32_t)network->engine->config.max_rollbacks;
    options.window = WINDOW;
    return esper_governor_open(&options, &guarded->governor);
}

static esper_status take_buffers(esper_guarded *guarded)
{
    const esper_slab *slab = &guarded->network->slab;
    void *memory;

    guarded->buffer_bytes = (size_t)esper_slab_count(slab, ESPER_FAMILY_BUFFER) * sizeof(float);
    if (guarded->buffer_bytes == 0)
        return ESPER_OK;
    ESPER_TRY(
        esper_backend_alloc(slab->backend, ESPER_NETWORK_BANKS * ESPER_NETWORK_ROWS * guarded->buffer_bytes, &memory));
    guarded->buffers = memory;
    return ESPER_OK;
}

static esper_status open_parts(esper_guarded *guarded)
{
    ESPER_TRY(esper_network_read(guarded->network));
    ESPER_TRY(esper_network_wait(guarded->network));
    ESPER_TRY(open_guard(guarded->network, &guarded->guard));
    ESPER_TRY(add_tensors(guarded));
    ESPER_TRY(open_guard(guarded->network, &guarded->whole));
    ESPER_TRY(add_whole(guarded));
    ESPER_TRY(guarded_open_ring(guarded, &guarded->ring));
    guarded->blob_bytes = sizeof(esper_position) + guarded->network->companion.bytes;
    guarded->blob = esper_mem_alloc(guarded->blob_bytes);
    if (guarded->blob == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "guarded network");
    ESPER_TRY(open_governor(guarded));
    ESPER_TRY(take_buffers(guarded));
    ESPER_TRY(guarded_remember_sums(guarded));
    return guarded_take_snapshot(guarded); /* so that there is one to go back to from the first step on */
}

/* The governor's memory, number by number. */
static esper_status write_governor(void *context, esper_page *out)
{
    const esper_guarded *guarded = context;
    double numbers[MOST_VITALS];
    size_t n = esper_governor_memory_count(guarded->governor);

    assert(n <= MOST_VITALS);
    esper_governor_pack(guarded->governor, numbers);
    for (size_t i = 0; i < n; i++)
        esper_page_print(out, i == 0 ? "%a" : " %a", numbers[i]);
    return ESPER_OK;
}

static esper_status read_governor(void *context, const char *text)
{
    const esper_guarded *guarded = context;
    double numbers[MOST_VITALS];
    size_t n = 0;
    char *end;

    for (; n < MOST_VITALS && (numbers[n] = strtod(text, &end), end != text); n++)
        text = end;
    return esper_governor_unpack(guarded->governor, numbers, n);
}

esper_status esper_guarded_open(esper_network *network)
{
    esper_guarded *guarded;
    esper_status status;

    if (network->optim == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "a network without an optimiser has nothing to guard");
    guarded = esper_mem_alloc(sizeof(*guarded));
    if (guarded == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "guarded network");
    network->guarded = guarded;
    guarded->network = network;
    guarded->checksum = network->engine->config.guard_checksum;
    status = open_parts(guarded);
    if (status != ESPER_OK) {
        esper_guarded_close(network);
        return esper_engine_tell_room(network->engine, status, network->engine->n_networks - 1);
    }
    esper_network_add_part(
        network,
        &(esper_state_part){.name = "governor", .context = guarded, .write = write_governor, .read = read_governor});
    return ESPER_OK;
}

void esper_guarded_close(esper_network *network)
{
    esper_guarded *guarded = network->guarded;

    if (guarded == NULL)
        return;
    (void)guarded_lower_flag(guarded); /* a backend that is lost has said so before */
    (void)esper_network_wait(network);
    network->guarded = NULL;
    esper_network_drop_part(network, "governor");
    esper_backend_release(network->engine->backend, guarded->buffers);
    esper_mem_free(guarded->blob);
    esper_governor_close(guarded->governor);
    esper_ring_close(guarded->kept_ring);
    esper_ring_close(guarded->ring);
    esper_guard_close(guarded->whole);
    esper_guard_close(guarded->guard);
    esper_mem_free(guarded);
}

esper_status esper_guarded_restructure(esper_network *network)
{
    esper_guarded *guarded = network->guarded;

    if (guarded == NULL)
        return ESPER_OK;
    esper_guard_give_up(guarded->guard);
    guarded->report = NULL;
    ESPER_TRY(esper_guard_clear(guarded->guard));
    ESPER_TRY(add_tensors(guarded));
    return guarded_remember_sums(guarded);
}
