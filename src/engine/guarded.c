/* Training under guard. The order of things is in guarded.h; the rules are the governor's. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "engine/guarded_internal.h"

/* ------------------------------------------------------------------------------------------------ scanning */

esper_status guarded_scan(esper_guarded *guarded, uint32_t roles, sums what, const esper_guard_report **report_out)
{
    esper_guard_scan request;

    esper_guard_scan_init(&request);
    request.roles = roles;
    request.checksum = (uint32_t)what;
    ESPER_TRY(esper_guard_launch(guarded->guard, &request));
    return esper_guard_read(guarded->guard, report_out);
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

/* For state that was just put there by us; what it holds has been judged or will be. */
esper_status guarded_remember_sums(esper_guarded *guarded)
{
    const esper_guard_report *report;

    return guarded->checksum ? guarded_scan(guarded, state_roles, SUMS_REMEMBER, &report) : ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ what follows */

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
    ESPER_TRY(guarded_go_back(guarded, incident));
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

    ESPER_TRY(guarded_scan(guarded, roles, what, &report));
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
        if (guarded_snapshot_due(guarded))
            ESPER_TRY(guarded_take_snapshot(guarded));
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
    guarded_remember(guarded, &guarded->taken[0]);
    return ESPER_OK;
}
