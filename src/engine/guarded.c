/* Training under guard. The order of things is in guarded.h; the rules are the governor's. */
#include "engine/guarded.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/governor.h"

enum { N_SNAPSHOTS = 2, WINDOW = 20, MOST_VITALS = WINDOW + 16 };

/* What is remembered of a snapshot beside what lies in the ring. */
typedef struct taken {
    esper_cursor cursor;
    uint32_t     unkept; /* bits 1 << slot: seeds that were there, and not kept */
    uint32_t     n_passed, draw; /* of the detour then */
    double       lr_scale;
    size_t       n_vitals;
    double       vitals[MOST_VITALS]; /* the governor's memory then */
} taken;

/* Below so many bytes of state one thread scans faster than several meet. */
static const size_t one_thread_bytes = (size_t)4 << 20;

static const double lr_lowered_by = 0.5;

#define ROLE_BIT(role) (1u << ESPER_GUARD_ROLE_##role)

static const uint32_t state_roles = ROLE_BIT(PARAM) | ROLE_BIT(MOMENT) | ROLE_BIT(BUFFER) | ROLE_BIT(OTHER);

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

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]), NAME_CHARS = ESPER_NAME_CHARS + 16 };

typedef struct esper_guarded {
    esper_network  *network;
    esper_guard    *guard; /* knows every tensor of the network by name */
    esper_guard    *whole; /* knows the slab's families as they lie, room for seeds included: what snapshots are made of */
    esper_ring     *ring;
    esper_governor *governor;
    float          *buffers; /* on the backend: the norm buffers before the forward pass; NULL when the network has none */
    size_t          buffer_bytes;
    bool            checksum;
    void           *blob; /* what goes into a snapshot beside the slab: an esper_position, then the companion's */
    size_t          blob_bytes;
    /* The batch used since the last clean scan of the state: when that is bad, it is not used again. */
    bool         has_suspect;
    esper_cursor suspect;
    /* The snapshots that may be gone back to, the newest first. */
    int          n_taken;
    taken        taken[N_SNAPSHOTS];
    /* The state on which ranks last agreed, beside them; NULL for a rank alone, and before they have. */
    esper_ring  *kept_ring;
    taken        kept;
    esper_drill  drill;
    void        *drill_context;
    esper_clerk        clerk; /* or NULL */
    void              *clerk_context;
    esper_scan_watcher watcher; /* or NULL */
    void              *watcher_context;
    char               named[NAME_CHARS]; /* the tensor of the last incident: the network may change before it is told */
} esper_guarded;

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
            .device = ESPER_GUARD_HOST,
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

static int count_threads(const esper_network *network)
{
    esper_pool *pool = esper_network_pool(network);

    return pool == NULL || network->slab.bytes < one_thread_bytes ? 1 : esper_pool_threads(pool);
}

static esper_status open_guard(esper_guarded *guarded)
{
    const esper_network *network = guarded->network;
    esper_guard_options options;

    esper_guard_options_init(&options);
    options.n_threads = count_threads(network);
    ESPER_TRY(esper_guard_open(&options, &guarded->guard));
    return add_tensors(guarded);
}

/* A snapshot must fit whatever has grown or gone since: so it is of the whole slab, not of the tensors of the day. */
static esper_status open_whole(esper_guarded *guarded)
{
    const esper_slab *slab = &guarded->network->slab;
    esper_guard_options options;
    esper_guard_tensor list[N_FAMILIES];
    size_t n = 0;

    esper_guard_options_init(&options);
    options.n_threads = count_threads(guarded->network);
    ESPER_TRY(esper_guard_open(&options, &guarded->whole));
    for (int f = 0; f < N_FAMILIES; f++)
        if (families[f].role != ESPER_GUARD_ROLE_GRAD && slab->family[families[f].family] != NULL &&
            esper_slab_count(slab, families[f].family) > 0)
            list[n++] = (esper_guard_tensor){
                .name = esper_family_name(families[f].family),
                .group = "slab",
                .role = families[f].role,
                .dtype = ESPER_GUARD_F32,
                .device = ESPER_GUARD_HOST,
                .data = esper_backend_address(slab->backend, slab->family[families[f].family]),
                .count = (uint64_t)esper_slab_count(slab, families[f].family),
            };
    return esper_guard_add(guarded->whole, list, n);
}

static esper_status open_ring(esper_guarded *guarded, esper_ring **ring_out)
{
    esper_ring_options options;

    esper_ring_options_init(&options);
    options.n_entries = N_SNAPSHOTS;
    options.place = ESPER_RING_HOST;
    options.roles = state_roles;
    return esper_ring_open(guarded->whole, &options, ring_out);
}

/* A loss that is normal for language is far too high for images. */
static esper_status open_governor(esper_guarded *guarded)
{
    const esper_network *network = guarded->network;
    const esper_dataset_info *info = esper_dataset_info_get(network->engine->data);
    bool images = info->kind == ESPER_DATASET_IMAGES;
    esper_governor_options options;

    esper_governor_options_init(&options);
    options.absolute = images ? 12.0 : 15.0;
    options.random_guess_loss = log((double)(images ? info->classes : info->vocab));
    options.max_rollbacks = (uint32_t)network->engine->config.max_rollbacks;
    options.window = WINDOW;
    return esper_governor_open(&options, &guarded->governor);
}

static esper_status take_blob(esper_guarded *guarded)
{
    guarded->blob_bytes = sizeof(esper_position) + guarded->network->companion.bytes;
    guarded->blob = esper_mem_alloc(guarded->blob_bytes);
    return guarded->blob != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "guarded network");
}

static esper_status take_buffers(esper_guarded *guarded)
{
    const esper_slab *slab = &guarded->network->slab;
    void *memory;

    guarded->buffer_bytes = (size_t)esper_slab_count(slab, ESPER_FAMILY_BUFFER) * sizeof(float);
    if (guarded->buffer_bytes == 0)
        return ESPER_OK;
    ESPER_TRY(esper_backend_alloc(slab->backend, guarded->buffer_bytes, &memory));
    guarded->buffers = memory;
    return ESPER_OK;
}

static esper_status remember_sums(esper_guarded *guarded);
static esper_status take_snapshot(esper_guarded *guarded);

static esper_status open_parts(esper_guarded *guarded)
{
    ESPER_TRY(open_guard(guarded));
    ESPER_TRY(open_whole(guarded));
    ESPER_TRY(open_ring(guarded, &guarded->ring));
    ESPER_TRY(take_blob(guarded));
    ESPER_TRY(open_governor(guarded));
    ESPER_TRY(take_buffers(guarded));
    ESPER_TRY(remember_sums(guarded));
    return take_snapshot(guarded); /* so that there is one to go back to from the first step on */
}

/* The governor's memory, number by number. */
static esper_status write_governor(void *context, esper_text *out)
{
    const esper_guarded *guarded = context;
    double numbers[MOST_VITALS];
    size_t n = esper_governor_memory_count(guarded->governor);

    assert(n <= MOST_VITALS);
    esper_governor_pack(guarded->governor, numbers);
    for (size_t i = 0; i < n; i++)
        esper_text_add(out, i == 0 ? "%a" : " %a", numbers[i]);
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
        return status;
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
    network->guarded = NULL;
    esper_network_drop_part(network, "governor");
    if (guarded->buffers != NULL)
        esper_backend_release(network->engine->backend, guarded->buffers);
    esper_mem_free(guarded->blob);
    esper_governor_close(guarded->governor);
    esper_ring_close(guarded->kept_ring);
    esper_ring_close(guarded->ring);
    esper_guard_close(guarded->whole);
    esper_guard_close(guarded->guard);
    esper_mem_free(guarded);
}

/* ------------------------------------------------------------------------------------------------ scanning */

/* What a scan does with checksums. */
typedef enum sums { SUMS_OFF, SUMS_REMEMBER, SUMS_COMPARE } sums;

static esper_status scan(esper_guarded *guarded, uint32_t roles, sums what, const esper_guard_report **report_out)
{
    esper_guard_scan request;

    esper_guard_scan_init(&request);
    request.roles = roles;
    request.checksum = (uint32_t)what;
    ESPER_TRY(esper_guard_launch(guarded->guard, &request));
    return esper_guard_read(guarded->guard, report_out);
}

/* For state that was just put there by us; what it holds has been judged or will be. */
static esper_status remember_sums(esper_guarded *guarded)
{
    const esper_guard_report *report;

    return guarded->checksum ? scan(guarded, state_roles, SUMS_REMEMBER, &report) : ESPER_OK;
}

static esper_incident nothing_at(const esper_guarded *guarded)
{
    return (esper_incident){.at = guarded->network->cursor,
                            .first_index = ESPER_GUARD_NONE,
                            .rank = -1,
                            .loss = (double)NAN,
                            .problem = ""};
}

/* Which tensor to name: the first in the order of registration. The norm buffers stand before the gradients, but behind a
 * forward pass they are what it spoiled: so they give way to whatever else is bad. */
static uint64_t find_culprit(const esper_guarded *guarded, const esper_guard_report *report)
{
    for (size_t i = 0; i < report->n_tensors; i++)
        if (report->stats[i].scanned && report->stats[i].first_bad != ESPER_GUARD_NONE &&
            esper_guard_tensor_at(guarded->guard, i)->role != ESPER_GUARD_ROLE_BUFFER)
            return i;
    return report->first_bad;
}

/* What a rank has to say of its scan. Sent as it is: no holes. */
typedef struct finding {
    uint32_t bad;     /* 0 = nothing */
    uint32_t spoiled; /* what this rank gave to the exchange was not finite */
    uint64_t index;   /* of the tensor to name */
    uint64_t n_nan, n_inf, first_index, n_tensors;
} finding;

static finding find(const esper_guarded *guarded, const esper_guard_report *report, uint32_t bad)
{
    finding found = {.bad = bad, .spoiled = guarded->network->engine->ranks.spoiled};
    bool finite = report->first_bad == ESPER_GUARD_NONE;
    const esper_guard_stat *stat;

    if (bad == 0)
        return found;
    found.index = finite ? report->changed : find_culprit(guarded, report);
    stat = &report->stats[found.index];
    found.n_nan = stat->n_nan;
    found.n_inf = stat->n_pos_inf + stat->n_neg_inf;
    found.first_index = stat->first_bad;
    found.n_tensors = finite ? 1 : report->n_bad;
    return found;
}

/* The rank to name: whose state is bad, or who gave the others what is not finite, or who found something. */
static int choose_rank(const finding *found, int n_ranks)
{
    const uint32_t of_gradients = ESPER_GUARD_BAD_NAN_GRAD | ESPER_GUARD_BAD_INF_GRAD;

    for (int r = 0; r < n_ranks; r++)
        if ((found[r].bad & ~of_gradients) != 0)
            return r;
    for (int r = 0; r < n_ranks; r++)
        if (found[r].bad != 0 && found[r].spoiled != 0)
            return r;
    for (int r = 0; r < n_ranks; r++)
        if (found[r].bad != 0)
            return r;
    return 0;
}

/* Somebody found something: the same finding on every rank, and whose it is. */
static esper_status share_finding(const esper_guarded *guarded, finding *found, int *rank_out)
{
    const esper_ranks *ranks = &guarded->network->engine->ranks;
    finding *all;
    esper_status status;

    *rank_out = -1;
    if (!esper_ranks_are_many(ranks))
        return ESPER_OK;
    all = esper_mem_alloc((size_t)ranks->size * sizeof(*all));
    if (all == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "findings of %d ranks", ranks->size);
    status = esper_ranks_gather(ranks, found, sizeof(*found), all);
    if (status == ESPER_OK) {
        *rank_out = choose_rank(all, ranks->size);
        *found = all[*rank_out];
    }
    esper_mem_free(all);
    return status;
}

static void name_finding(esper_guarded *guarded, const finding *found, esper_incident *incident)
{
    static const char *const role_names[] = {
#define X(name, text) text,
        ESPER_GUARD_ROLE_LIST(X)
#undef X
    };
    const esper_guard_tensor *tensor = esper_guard_tensor_at(guarded->guard, found->index);

    snprintf(guarded->named, sizeof(guarded->named), "%s", tensor->name);
    incident->tensor = guarded->named;
    incident->role = role_names[tensor->role];
    incident->n_tensors = found->n_tensors;
    incident->n_elements = found->n_nan + found->n_inf;
    incident->problem = incident->n_elements == 0 ? "changed" : found->n_nan > 0 ? "NaN" : "Inf";
    incident->first_index = found->first_index;
}

esper_status esper_guarded_restructure(esper_network *network)
{
    esper_guarded *guarded = network->guarded;

    if (guarded == NULL)
        return ESPER_OK;
    ESPER_TRY(esper_guard_clear(guarded->guard));
    ESPER_TRY(add_tensors(guarded));
    return remember_sums(guarded);
}

/* ------------------------------------------------------------------------------------------------ going back */

/* What follows a restore goes another way than before: it passes over what may have done the damage, or, when the vital
 * signs panicked, meets the samples in another order. */
static esper_status take_detour(esper_guarded *guarded, const esper_incident *incident)
{
    esper_network *network = guarded->network;

    if (incident->action == ESPER_GOVERNOR_PRUNE)
        network->detour.lr_scale *= lr_lowered_by;
    if (incident->reason != ESPER_GOVERNOR_SCAN)
        esper_network_redraw(network, network->detour.draw + 1);
    else if (guarded->has_suspect)
        return esper_network_pass_over(network, guarded->suspect.epoch, guarded->suspect.batch);
    return ESPER_OK;
}

/* The snapshots that are still ahead of us will not be gone back to. */
static void forget_newer(esper_guarded *guarded, const esper_cursor *cursor)
{
    while (guarded->n_taken > 0 && memcmp(&guarded->taken[0].cursor, cursor, sizeof(*cursor)) != 0)
        memmove(&guarded->taken[0], &guarded->taken[1], (size_t)--guarded->n_taken * sizeof(guarded->taken[0]));
}

static uint32_t unkept_seeds(const esper_network *network)
{
    uint32_t bits = 0;

    _Static_assert(ESPER_MAX_SLOTS <= 32, "a bit for every slot");
    for (int k = 0; k < network->slots.n; k++)
        if (esper_slot_is_active(&network->slots.slot[k]) && network->slots.slot[k].stage != ESPER_STAGE_FOSSILIZED)
            bits |= 1u << k;
    return bits;
}

/* The rest of a snapshot: where the run stood, what the network was, and what a companion knew then. */
static esper_status put_back(esper_guarded *guarded, const void *blob, bool whole, esper_cursor *cursor_out)
{
    esper_network *network = guarded->network;

    memcpy(guarded->blob, blob, guarded->blob_bytes);
    ESPER_TRY(esper_network_go_back(network, guarded->blob));
    if (network->companion.pack != NULL)
        ESPER_TRY(network->companion.unpack(network->companion.context, (char *)guarded->blob + sizeof(esper_position),
                                            whole));
    *cursor_out = network->cursor;
    return remember_sums(guarded);
}

/* Puts the newest good snapshot back. That there is none, or none that is whole, is a finding and ends the run; it is not
 * this call that failed. */
static esper_status go_back(esper_guarded *guarded, esper_incident *incident)
{
    esper_ring_restored restored;
    bool found =
        esper_ring_rollback(guarded->ring, 1, &restored) == ESPER_OK && restored.blob_bytes == guarded->blob_bytes;
    bool alike;

    snprintf(incident->failure, sizeof(incident->failure), "%s", found ? "" : esper_last_error());
    ESPER_TRY(esper_ranks_are_alike(&guarded->network->engine->ranks, found ? restored.step : UINT64_MAX, &alike));
    if (!alike)
        snprintf(incident->failure, sizeof(incident->failure), "snapshots of some ranks are damaged and others not");
    if (!found || !alike) {
        incident->action = ESPER_GOVERNOR_STOP;
        return esper_governor_rolled_back(guarded->governor, 0, 1);
    }
    ESPER_TRY(put_back(guarded, restored.blob, false, &incident->to));
    forget_newer(guarded, &incident->to);
    ESPER_TRY(esper_governor_unpack_history(guarded->governor, guarded->taken[0].vitals, guarded->taken[0].n_vitals));
    incident->unkept = unkept_seeds(guarded->network);
    incident->restored = true;
    incident->n_damaged = restored.n_passed_over;
    incident->seconds = restored.seconds;
    ESPER_TRY(take_detour(guarded, incident));
    guarded->has_suspect = false;
    if (incident->action != ESPER_GOVERNOR_STOP)
        return esper_governor_rolled_back(guarded->governor, restored.step, 0);
    esper_network_drop_part(guarded->network, "governor"); /* it has given up: who goes on begins with another */
    return ESPER_OK;
}

/* To what a ring's newest snapshot should be. */
static esper_status retreat_to(esper_guarded *guarded, esper_ring *ring, const taken *then)
{
    esper_network *network = guarded->network;
    esper_detour *detour = &network->detour;
    esper_ring_restored restored;
    esper_cursor cursor;

    ESPER_TRY(esper_ring_rollback(ring, 1, &restored));
    if (restored.blob_bytes != guarded->blob_bytes)
        return ESPER_FAIL(ESPER_E_STATE, "the snapshot is not one of this run's");
    ESPER_TRY(put_back(guarded, restored.blob, true, &cursor));
    if (memcmp(&then->cursor, &cursor, sizeof(cursor)) != 0)
        return ESPER_FAIL(ESPER_E_STATE, "the newest snapshot is damaged");
    detour->n_passed = then->n_passed; /* since then they were added alone */
    detour->lr_scale = then->lr_scale;
    esper_network_redraw(network, then->draw);
    return esper_governor_unpack(guarded->governor, then->vitals, then->n_vitals);
}

esper_status esper_guarded_retreat(esper_network *network)
{
    esper_guarded *guarded = network->guarded;

    if (guarded->n_taken == 0)
        return ESPER_FAIL(ESPER_E_STATE, "there is no snapshot");
    return retreat_to(guarded, guarded->ring, &guarded->taken[0]);
}

esper_status esper_guarded_retreat_to_kept(esper_network *network)
{
    esper_guarded *guarded = network->guarded;

    if (guarded->kept_ring == NULL)
        return ESPER_FAIL(ESPER_E_STATE, "the ranks have not agreed yet");
    return retreat_to(guarded, guarded->kept_ring, &guarded->kept);
}

/* The step is not taken and its batch is passed over, now and when the run comes by again. */
static esper_status skip(esper_guarded *guarded)
{
    esper_network *network = guarded->network;

    ESPER_TRY(esper_backend_copy(network->engine->backend, network->stream, network->slab.family[ESPER_FAMILY_BUFFER],
                                 guarded->buffers, guarded->buffer_bytes));
    esper_network_skip(network);
    guarded->has_suspect = false;
    ESPER_TRY(esper_network_pass_over(network, network->cursor.epoch, network->cursor.batch));
    esper_network_batch_due(network);
    return ESPER_OK;
}

/* Does what the governor said. */
static esper_status obey(esper_guarded *guarded, const esper_governor_reading *reading, esper_incident *incident)
{
    incident->action = reading->action;
    incident->reason = reading->reason;
    esper_ring_hold(guarded->ring, reading->pending != 0);
    if (reading->action > ESPER_GOVERNOR_SKIP && guarded->n_taken > 0) {
        incident->to = guarded->taken[0].cursor;
        incident->unkept = guarded->taken[0].unkept;
    }
    if (reading->action != ESPER_GOVERNOR_GO && guarded->clerk != NULL)
        ESPER_TRY(guarded->clerk(guarded->clerk_context, incident));
    if (reading->action == ESPER_GOVERNOR_SKIP)
        return skip(guarded);
    if (reading->action == ESPER_GOVERNOR_GO)
        return ESPER_OK;
    ESPER_TRY(go_back(guarded, incident));
    esper_ring_hold(guarded->ring, 0);
    return ESPER_OK;
}

/* The verdict behind a forward pass. The norm buffers were found clean before it and a copy of them is kept, so what it
 * left in them is undone with the step, and counts as its gradients do: parameters and moments alone are state here. */
static uint32_t verdict_behind_pass(const esper_guard_report *report)
{
    const esper_guard_group *buffers = &report->totals[ESPER_GUARD_ROLE_BUFFER];
    uint32_t bad = report->bad & (ESPER_GUARD_BAD_NAN_GRAD | ESPER_GUARD_BAD_INF_GRAD);

    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++) {
        if (role == ESPER_GUARD_ROLE_GRAD || role == ESPER_GUARD_ROLE_BUFFER)
            continue;
        bad |= report->totals[role].n_nan > 0 ? ESPER_GUARD_BAD_NAN_STATE : 0;
        bad |= report->totals[role].n_inf > 0 ? ESPER_GUARD_BAD_INF_STATE : 0;
    }
    bad |= buffers->n_nan > 0 ? ESPER_GUARD_BAD_NAN_GRAD : 0;
    bad |= buffers->n_inf > 0 ? ESPER_GUARD_BAD_INF_GRAD : 0;
    return bad;
}

/* Scans some roles (0: all, behind a forward pass) and does what follows from it. A scan that left the gradients out and found nothing tells the governor
 * nothing: it must not end a row of bad gradients. */
static esper_status inspect(esper_guarded *guarded, uint32_t roles, sums what, esper_incident *incident)
{
    const esper_guard_report *report;
    esper_governor_reading reading;
    uint64_t anywhere;
    uint32_t bad;

    ESPER_TRY(scan(guarded, roles, what, &report));
    bad = roles == 0 ? verdict_behind_pass(report) : report->bad;
    bad |= what == SUMS_COMPARE && report->changed != ESPER_GUARD_NONE ? ESPER_GUARD_BAD_CHANGED : 0;
    anywhere = bad;
    ESPER_TRY(esper_ranks_any(&guarded->network->engine->ranks, &anywhere));
    if (anywhere == 0 && roles == state_roles)
        return ESPER_OK;
    if (anywhere != 0) {
        finding found = find(guarded, report, bad);

        incident->n_ranks = roles == 0 ? guarded->network->engine->ranks.n_spoiled : 0;
        ESPER_TRY(share_finding(guarded, &found, &incident->rank));
        name_finding(guarded, &found, incident);
    } else if (roles == 0 && guarded->watcher != NULL)
        guarded->watcher(guarded->watcher_context, report);
    ESPER_TRY(esper_governor_scan(guarded->governor, (uint32_t)anywhere, &reading));
    return obey(guarded, &reading, incident);
}

/* ------------------------------------------------------------------------------------------------ snapshots */

/* At the first step of an epoch and every so many steps; put off while something is not yet judged. */
static bool snapshot_due(const esper_guarded *guarded)
{
    const esper_cursor *now = &guarded->network->cursor, *last = &guarded->taken[0].cursor;

    if (esper_guarded_reading(guarded->network).pending)
        return false;
    return guarded->n_taken == 0 || now->epoch != last->epoch ||
           now->step - last->step >= (uint64_t)guarded->network->engine->config.snapshot_every;
}

/* What is known now, beside what lies in a ring. */
static void remember(const esper_guarded *guarded, taken *now)
{
    const esper_detour *detour = &guarded->network->detour;

    now->cursor = guarded->network->cursor;
    now->unkept = unkept_seeds(guarded->network);
    now->n_passed = detour->n_passed;
    now->draw = detour->draw;
    now->lr_scale = detour->lr_scale;
    now->n_vitals = esper_governor_memory_count(guarded->governor);
    assert(now->n_vitals <= MOST_VITALS);
    esper_governor_pack(guarded->governor, now->vitals);
}

static esper_status take_into(esper_guarded *guarded, esper_ring *ring, bool *good_out)
{
    const esper_network *network = guarded->network;
    esper_ring_status status;

    ESPER_TRY(esper_network_read(guarded->network));
    esper_network_position(network, guarded->blob);
    if (network->companion.pack != NULL)
        network->companion.pack(network->companion.context, (char *)guarded->blob + sizeof(esper_position));
    ESPER_TRY(esper_ring_take(ring, network->cursor.step, guarded->blob, guarded->blob_bytes));
    ESPER_TRY(esper_ring_status_get(ring, 1, &status));
    *good_out = status.newest == ESPER_RING_GOOD;
    return ESPER_OK;
}

static esper_status take_snapshot(esper_guarded *guarded)
{
    bool good;

    ESPER_TRY(take_into(guarded, guarded->ring, &good));
    if (!good)
        return ESPER_OK; /* spoiled since the scan just before: the next one will say so */
    memmove(&guarded->taken[1], &guarded->taken[0], (N_SNAPSHOTS - 1) * sizeof(guarded->taken[0]));
    guarded->n_taken += guarded->n_taken < N_SNAPSHOTS;
    guarded->taken[0].cursor = guarded->network->cursor;
    if (guarded->kept_ring == NULL) /* else what is kept counts on all that were passed over before it */
        esper_network_forget_before(guarded->network, &guarded->taken[guarded->n_taken - 1].cursor);
    ESPER_TRY(esper_governor_snapshot(guarded->governor, guarded->network->cursor.step));
    remember(guarded, &guarded->taken[0]);
    return ESPER_OK;
}

esper_status esper_guarded_keep(esper_network *network)
{
    esper_guarded *guarded = network->guarded;
    bool good;

    if (esper_guarded_reading(network).pending)
        return ESPER_OK; /* what was kept before is of a state that nobody doubts */
    if (guarded->kept_ring == NULL)
        ESPER_TRY(open_ring(guarded, &guarded->kept_ring));
    ESPER_TRY(take_into(guarded, guarded->kept_ring, &good));
    if (good)
        remember(guarded, &guarded->kept);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ a step */

static void drill_at(esper_guarded *guarded, esper_drill_point point)
{
    if (guarded->drill != NULL)
        guarded->drill(guarded->drill_context, guarded->network, point);
}

static esper_status inspect_state(esper_guarded *guarded, esper_incident *incident)
{
    ESPER_TRY(inspect(guarded, state_roles, guarded->checksum ? SUMS_COMPARE : SUMS_OFF, incident));
    if (incident->action == ESPER_GOVERNOR_GO)
        guarded->has_suspect = false;
    return ESPER_OK;
}

static esper_status train_batch(esper_guarded *guarded, esper_incident *incident)
{
    esper_network *network = guarded->network;

    ESPER_TRY(esper_backend_copy(network->engine->backend, network->stream, guarded->buffers,
                                 network->slab.family[ESPER_FAMILY_BUFFER], guarded->buffer_bytes));
    guarded->has_suspect = true;
    guarded->suspect = network->cursor;
    drill_at(guarded, ESPER_DRILL_BEFORE_FORWARD);
    ESPER_TRY(esper_network_gradients(network));
    drill_at(guarded, ESPER_DRILL_GRADIENTS);
    ESPER_TRY(esper_network_exchange(network));
    ESPER_TRY(inspect(guarded, 0, SUMS_OFF, incident));
    if (incident->action == ESPER_GOVERNOR_STOP && !incident->restored)
        esper_network_skip(network); /* there is nothing to go back to: what the batch brought does not count */
    if (incident->action != ESPER_GOVERNOR_GO)
        return ESPER_OK;
    ESPER_TRY(esper_network_apply(network));
    if (!guarded->checksum)
        return ESPER_OK;
    ESPER_TRY(inspect(guarded, state_roles, SUMS_REMEMBER, incident));
    if (incident->action == ESPER_GOVERNOR_GO)
        guarded->has_suspect = false;
    return ESPER_OK;
}

static esper_status check_usable(const esper_guarded *guarded)
{
    if (esper_guarded_reading(guarded->network).faulted)
        return ESPER_FAIL(ESPER_E_STATE, "the governor has stopped this run: begin again from a checkpoint");
    return ESPER_OK;
}

static const esper_incident nothing = {.first_index = ESPER_GUARD_NONE, .rank = -1, .loss = (double)NAN, .problem = ""};

esper_status esper_guarded_step(esper_network *network, esper_incident *incident_out)
{
    esper_guarded *guarded = network->guarded;
    esper_incident incident;

    if (guarded == NULL) {
        *incident_out = nothing;
        return esper_network_step(network);
    }
    ESPER_TRY(check_usable(guarded));
    if (network->cursor.batch >= network->engine->steps_per_epoch)
        return ESPER_FAIL(ESPER_E_STATE, "no training step is due");
    esper_network_batch_due(network);
    incident = nothing_at(guarded);
    drill_at(guarded, ESPER_DRILL_BETWEEN_STEPS);
    ESPER_TRY(inspect_state(guarded, &incident));
    if (incident.action == ESPER_GOVERNOR_GO && network->cursor.batch < network->engine->steps_per_epoch) {
        if (snapshot_due(guarded))
            ESPER_TRY(take_snapshot(guarded));
        ESPER_TRY(train_batch(guarded, &incident));
    }
    *incident_out = incident;
    return ESPER_OK;
}

esper_status esper_guarded_settle(esper_network *network, esper_incident *incident_out)
{
    esper_incident incident = nothing;

    ESPER_TRY(esper_network_read(network));
    if (network->guarded != NULL) {
        incident = nothing_at(network->guarded);
        ESPER_TRY(check_usable(network->guarded));
        ESPER_TRY(inspect_state(network->guarded, &incident));
    }
    *incident_out = incident;
    return ESPER_OK;
}

esper_status esper_guarded_judge(esper_network *network, double loss, esper_incident *incident_out)
{
    esper_guarded *guarded = network->guarded;
    esper_incident incident = nothing;
    esper_governor_reading reading;

    if (guarded != NULL) {
        incident = nothing_at(guarded);
        ESPER_TRY(check_usable(guarded));
        incident.loss = loss;
        ESPER_TRY(esper_governor_check(guarded->governor, loss, &reading));
        ESPER_TRY(obey(guarded, &reading, &incident));
    }
    *incident_out = incident;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ about it */

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* What was found, in words. */
static int describe_finding(const esper_incident *incident, char *text, size_t chars)
{
    char where[48] = "";

    if (incident->tensor == NULL)
        return snprintf(text, chars, "%s: validation loss %g", esper_governor_reason_name(incident->reason),
                        incident->loss);
    if (incident->rank >= 0 && incident->n_ranks > 1)
        snprintf(where, sizeof(where), " on rank %d and %d more", incident->rank, incident->n_ranks - 1);
    else if (incident->rank >= 0)
        snprintf(where, sizeof(where), " on rank %d", incident->rank);
    if (incident->n_elements == 0)
        return snprintf(text, chars, "%s (%s)%s is not what the last step left", incident->tensor, incident->role,
                        where);
    return snprintf(
        text, chars, "%s in %s (%s)%s: %" PRIu64 " element%s, the first at %" PRIu64 "; %" PRIu64 " bad tensor%s",
        incident->problem, incident->tensor, incident->role, where, incident->n_elements, plural(incident->n_elements),
        incident->first_index, incident->n_tensors, plural(incident->n_tensors));
}

/* What was done about it. */
static void describe_deed(const esper_incident *incident, char *text, size_t chars)
{
    if (incident->action == ESPER_GOVERNOR_SKIP)
        snprintf(text, chars, "; batch %u of epoch %u is passed over", incident->at.batch + 1, incident->at.epoch + 1);
    else if (!incident->restored)
        snprintf(text, chars, "; there is no way back: %s", incident->failure);
    else
        snprintf(text, chars, "; back from step %" PRIu64 " to step %" PRIu64 "%s", incident->at.step,
                 incident->to.step,
                 incident->action == ESPER_GOVERNOR_PRUNE  ? ", with half the learning rate"
                 : incident->action == ESPER_GOVERNOR_STOP ? ", and there the run ends"
                                                           : "");
}

const char *esper_incident_describe(const esper_incident *incident, char *text, size_t chars)
{
    int n;

    if (chars == 0)
        return text;
    if (incident->action == ESPER_GOVERNOR_GO) {
        snprintf(text, chars, "nothing");
        return text;
    }
    n = describe_finding(incident, text, chars);
    if (n >= 0 && (size_t)n < chars)
        describe_deed(incident, text + n, chars - (size_t)n);
    return text;
}

esper_governor_reading esper_guarded_reading(const esper_network *network)
{
    esper_governor_reading reading = {0};

    if (network->guarded != NULL)
        esper_governor_reading_get(network->guarded->governor, &reading);
    return reading;
}

esper_governor *esper_guarded_governor(esper_network *network)
{
    return network->guarded->governor;
}

esper_guard *esper_guarded_guard(esper_network *network)
{
    return network->guarded->guard;
}

esper_ring *esper_guarded_ring(esper_network *network)
{
    return network->guarded->ring;
}

void esper_guarded_set_drill(esper_network *network, esper_drill drill, void *context)
{
    network->guarded->drill = drill;
    network->guarded->drill_context = context;
}

void esper_guarded_watch(esper_network *network, esper_scan_watcher watcher, void *context)
{
    network->guarded->watcher = watcher;
    network->guarded->watcher_context = context;
}

void esper_guarded_set_clerk(esper_network *network, esper_clerk clerk, void *context)
{
    network->guarded->clerk = clerk;
    network->guarded->clerk_context = context;
}

esper_status esper_guarded_tell_snapshot(esper_network *network)
{
    esper_guarded *guarded = network->guarded;

    if (!esper_guarded_reading(network).pending)
        ESPER_TRY(esper_governor_snapshot(guarded->governor, guarded->taken[0].cursor.step));
    remember(guarded, &guarded->taken[0]);
    return ESPER_OK;
}
