/* Training under guard. The order of things is in guarded.h; the rules are the governor's. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "guard/guard_internal.h"
#include "guard/report.h"
#include "engine/guarded_internal.h"

/* ------------------------------------------------------------------------------------------------ scanning */

static esper_guard_scan scan_of(uint32_t roles, sums what)
{
    esper_guard_scan request;

    esper_guard_scan_init(&request);
    request.roles = roles;
    request.checksum = (uint32_t)what;
    return request;
}

/* Queues a scan, which raises the network's flag. */
static esper_status queue_scan(esper_guarded *guarded, uint32_t roles, sums what)
{
    const esper_network *network = guarded->network;
    esper_guard_scan request = scan_of(roles, what);

    guarded->report = NULL;
    guarded->asked = roles;
    return esper_backend_scan(network->engine->backend, network->stream, guarded->guard, &request, network->flag);
}

/* Scans what stands there, which is what the scan of these roles found that raised the flag. */
static esper_status scan_again(esper_guarded *guarded, uint32_t roles, sums what)
{
    esper_guard_scan request = scan_of(roles, what);

    esper_guard_give_up(guarded->guard);
    ESPER_TRY(esper_guard_launch(guarded->guard, &request));
    return esper_guard_read(guarded->guard, &guarded->report);
}

/* After a wait: of the scan that raised the flag, or else the last one. */
static esper_status read_report(esper_guarded *guarded)
{
    if (guarded->report != NULL)
        return ESPER_OK;
    if (esper_backend_reports(guarded->network->engine->backend))
        return esper_guard_read(guarded->guard, &guarded->report);
    return scan_again(guarded, guarded->asked, SUMS_OFF);
}

/* The flag as it is now, into a row: what is read of it later. */
static esper_status keep_verdict(const esper_guarded *guarded, int row, esper_verdict verdict)
{
    const esper_network *network = guarded->network;

    return esper_backend_copy(network->engine->backend, network->stream, esper_network_verdicts(network, row) + verdict,
                              network->flag, sizeof(*network->flag));
}

/* Where it costs nothing the host looks at the flag; else it is as good as down until results are read. */
static uint32_t look_at_flag(const esper_guarded *guarded)
{
    const esper_network *network = guarded->network;
    const esper_backend *backend = network->engine->backend;

    return esper_backend_is_behind(backend) ? 0 : *(const uint32_t *)esper_backend_address(backend, network->flag);
}

/* The flag with all that is queued before it: one wait, in which results are read as well. */
static esper_status read_flag(esper_guarded *guarded, uint32_t *flag_out)
{
    esper_network *network = guarded->network;

    ESPER_TRY(
        esper_backend_copy_out(network->engine->backend, network->stream, flag_out, network->flag, sizeof(*flag_out)));
    return esper_network_has_unread(network) ? esper_network_read(network) : esper_network_wait(network);
}

/* What any rank has found is everybody's finding: its flag goes up on all of them. */
static esper_status share_flag(esper_guarded *guarded, uint32_t *flag)
{
    const esper_network *network = guarded->network;
    uint64_t anywhere = *flag;

    ESPER_TRY(esper_ranks_any(&network->engine->ranks, &anywhere));
    if (*flag == (uint32_t)anywhere)
        return ESPER_OK;
    *flag = (uint32_t)anywhere;
    return esper_backend_copy_in(network->engine->backend, network->stream, network->flag, flag, sizeof(*flag));
}

/* Where the norm buffers are kept as they were before a row's pass. */
static float *buffers_of_row(const esper_guarded *guarded, int row)
{
    size_t place = (size_t)esper_network_place_of_row(guarded->network, row);

    return guarded->buffers + place * guarded->buffer_bytes / sizeof(*guarded->buffers);
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
    const esper_guard_tensor *tensor = esper_guard_tensor_at(guarded->guard, found->index);

    snprintf(guarded->named, sizeof(guarded->named), "%s", tensor->name);
    incident->tensor = guarded->named;
    incident->role = esper_guard_role_name(tensor->role);
    incident->n_tensors = found->n_tensors;
    incident->n_elements = found->n_nan + found->n_inf;
    incident->problem = incident->n_elements == 0 ? "changed" : found->n_nan > 0 ? "NaN" : "Inf";
    incident->first_index = found->first_index;
}

/* What it holds has been judged or will be. */
esper_status guarded_remember_sums(esper_guarded *guarded)
{
    esper_guard_scan request = scan_of(state_roles, SUMS_REMEMBER);

    if (!guarded->checksum)
        return ESPER_OK;
    ESPER_TRY(esper_network_wait(guarded->network));
    esper_guard_give_up(guarded->guard); /* one may be under way: ranks were lost before it was read */
    ESPER_TRY(esper_guard_launch(guarded->guard, &request));
    return esper_guard_read(guarded->guard, &guarded->report);
}

/* ------------------------------------------------------------------------------------------------ what follows */

/* Does what the governor said. */
static esper_status obey(esper_guarded *guarded, const esper_governor_reading *reading, esper_incident *incident)
{
    esper_network *network = guarded->network;

    incident->action = reading->action;
    incident->reason = reading->reason;
    esper_ring_hold(guarded->ring, reading->pending != 0);
    if (reading->action > ESPER_GOVERNOR_SKIP && guarded->n_taken > 0) {
        incident->to = guarded->taken[0].cursor;
        incident->unkept = guarded->taken[0].unkept;
    }
    if (reading->action != ESPER_GOVERNOR_GO && guarded->clerk != NULL)
        ESPER_TRY(guarded->clerk(guarded->clerk_context, incident));
    if (reading->action == ESPER_GOVERNOR_GO)
        return ESPER_OK;
    if (reading->action == ESPER_GOVERNOR_SKIP) { /* the batch is passed over, now and when the run comes by again */
        guarded->has_suspect = false;
        ESPER_TRY(esper_network_pass_over(network, network->cursor.epoch, network->cursor.batch));
        esper_network_batch_due(network);
        return ESPER_OK;
    }
    ESPER_TRY(guarded_go_back(guarded, incident));
    esper_ring_hold(guarded->ring, 0);
    return ESPER_OK;
}

esper_status guarded_lower_flag(esper_guarded *guarded)
{
    static const uint32_t down = 0;
    const esper_network *network = guarded->network;

    guarded->found = false;
    return esper_backend_copy_in(network->engine->backend, network->stream, network->flag, &down, sizeof(down));
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

/* Does what follows from what was found. */
static esper_status conclude(esper_guarded *guarded, esper_incident *incident)
{
    const esper_network *network = guarded->network;
    bool behind_pass = guarded->found_by == ESPER_VERDICT_PASS;
    esper_governor_reading reading;
    finding found;
    uint64_t anywhere;
    uint32_t bad;

    assert(guarded->found && !esper_network_has_unread(network));
    incident->at = guarded->found_at;
    ESPER_TRY(read_report(guarded));
    ESPER_TRY(guarded_lower_flag(guarded));
    bad = behind_pass ? verdict_behind_pass(guarded->report) : guarded->report->bad;
    bad |= guarded->report->changed != ESPER_GUARD_NONE ? ESPER_GUARD_BAD_CHANGED : 0;
    anywhere = bad;
    ESPER_TRY(esper_ranks_any(&network->engine->ranks, &anywhere));
    assert(anywhere != 0);
    found = find(guarded, guarded->report, bad);
    incident->n_ranks = behind_pass ? network->engine->ranks.n_spoiled : 0;
    ESPER_TRY(share_finding(guarded, &found, &incident->rank));
    name_finding(guarded, &found, incident);
    ESPER_TRY(esper_governor_scan(guarded->governor, (uint32_t)anywhere, &reading));
    return obey(guarded, &reading, incident);
}

/* ------------------------------------------------------------------------------------------------ hearing of it */

/* The epoch's last step, which is waited for anyway. */
static bool is_watched(const esper_guarded *guarded, const esper_row *row)
{
    const esper_network *network = guarded->network;

    return guarded->watcher != NULL && esper_network_epoch_done(network) &&
           row->cursor.step + 1 == network->cursor.step && guarded->wishes(guarded->watcher_context);
}

/* The scan of a watched row is the last one. A scan that left the gradients out and found nothing
 * tells the governor nothing: it must not end a row of bad gradients. */
static esper_status hear_good(esper_guarded *guarded, int n_good, bool all)
{
    const esper_row *rows = guarded->network->rows;
    esper_governor_reading reading;

    for (int i = 0; i < n_good && guarded->watcher != NULL; i++) {
        bool shown = all && i == n_good - 1 && is_watched(guarded, &rows[i]);

        if (shown)
            ESPER_TRY(read_report(guarded));
        guarded->watcher(guarded->watcher_context, &rows[i], shown ? guarded->report : NULL);
    }
    ESPER_TRY(esper_governor_scan(guarded->governor, 0, &reading));
    esper_ring_hold(guarded->ring, reading.pending != 0);
    return ESPER_OK;
}

static void note_finding(esper_guarded *guarded, const esper_cursor *at, esper_verdict by)
{
    guarded->found = true;
    guarded->found_at = *at;
    guarded->found_by = by;
}

esper_status esper_guarded_hear(esper_network *network, int n_good, const esper_verdict *verdict)
{
    esper_guarded *guarded = network->guarded;
    const esper_row *rows = network->rows;

    if (guarded == NULL)
        return ESPER_OK;
    if (n_good > 0)
        ESPER_TRY(hear_good(guarded, n_good, verdict == NULL));
    if (verdict == NULL)
        return ESPER_OK;
    note_finding(guarded, &rows[n_good].cursor, *verdict);
    guarded->has_suspect = *verdict == ESPER_VERDICT_PASS || n_good > 0 || guarded->had_suspect[network->bank];
    guarded->suspect = *verdict == ESPER_VERDICT_PASS ? rows[n_good].cursor
                       : n_good > 0                   ? rows[n_good - 1].cursor
                                                      : guarded->suspect_before[network->bank];
    if (!esper_backend_reports(network->engine->backend)) /* while the norm buffers are what the pass made of them */
        ESPER_TRY(scan_again(guarded, *verdict == ESPER_VERDICT_PASS ? 0 : state_roles, SUMS_OFF));
    return esper_backend_copy(network->engine->backend, network->stream, network->slab.family[ESPER_FAMILY_BUFFER],
                              buffers_of_row(guarded, n_good), guarded->buffer_bytes);
}

/* ------------------------------------------------------------------------------------------------ a step */

/* Whoever does there what a fault would do does it by hand. */
static esper_status drill_at(esper_guarded *guarded, esper_drill_point point)
{
    if (guarded->drill == NULL)
        return ESPER_OK;
    ESPER_TRY(esper_network_wait(guarded->network));
    guarded->drill(guarded->drill_context, guarded->network, point);
    if (esper_backend_device(guarded->network->engine->backend) == ESPER_GUARD_HOST)
        return ESPER_OK;
    ESPER_TRY(scan_again(guarded, 0, SUMS_OFF)); /* behind what the drill has queued on a stream of its own */
    guarded->report = NULL;
    return ESPER_OK;
}

/* Scans the state, and says what came of it: now, or when results are read. */
static esper_status judge_state(esper_guarded *guarded, sums what, bool now)
{
    esper_network *network = guarded->network;
    esper_cursor at = network->cursor;
    uint32_t flag;

    if (network->n_rows == 0) {
        guarded->had_suspect[network->bank] = guarded->has_suspect;
        guarded->suspect_before[network->bank] = guarded->suspect;
    }
    ESPER_TRY(queue_scan(guarded, state_roles, what));
    if (!now && look_at_flag(guarded) == 0)
        return keep_verdict(guarded, network->n_rows, ESPER_VERDICT_STATE);
    ESPER_TRY(read_flag(guarded, &flag));
    if (guarded->found)
        return ESPER_OK; /* by an earlier one */
    if (flag == 0 && what != SUMS_OFF) { /* checksums are the host's to remember and to compare */
        if (esper_backend_reports(network->engine->backend))
            ESPER_TRY(read_report(guarded));
        else
            ESPER_TRY(scan_again(guarded, state_roles, what));
        flag = guarded->report->changed != ESPER_GUARD_NONE ? ESPER_GUARD_BAD_CHANGED : 0;
    }
    ESPER_TRY(share_flag(guarded, &flag));
    guarded->has_suspect = guarded->has_suspect && flag != 0;
    if (flag != 0)
        note_finding(guarded, &at, ESPER_VERDICT_STATE);
    return flag != 0 ? ESPER_OK : keep_verdict(guarded, network->n_rows, ESPER_VERDICT_STATE);
}

/* Everything behind a forward pass. */
static esper_status judge_pass(esper_guarded *guarded, int row)
{
    uint32_t flag;

    ESPER_TRY(queue_scan(guarded, 0, SUMS_OFF));
    if (esper_ranks_are_many(&guarded->network->engine->ranks)) {
        ESPER_TRY(esper_backend_copy_out(guarded->network->engine->backend, guarded->network->stream, &flag,
                                         guarded->network->flag, sizeof(flag)));
        ESPER_TRY(esper_network_wait(guarded->network));
        ESPER_TRY(share_flag(guarded, &flag));
    }
    guarded->network->rows[row].judged = true;
    return keep_verdict(guarded, row, ESPER_VERDICT_PASS);
}

/* Nothing is decided between the gradients and the step they make: that is what the flag is for. */
static esper_status train_batch(esper_guarded *guarded)
{
    esper_network *network = guarded->network;
    int row = network->n_rows;

    ESPER_TRY(esper_backend_copy(network->engine->backend, network->stream, buffers_of_row(guarded, row),
                                 network->slab.family[ESPER_FAMILY_BUFFER], guarded->buffer_bytes));
    guarded->has_suspect = true;
    guarded->suspect = network->cursor;
    ESPER_TRY(drill_at(guarded, ESPER_DRILL_BEFORE_FORWARD));
    ESPER_TRY(esper_network_gradients(network));
    ESPER_TRY(drill_at(guarded, ESPER_DRILL_GRADIENTS));
    ESPER_TRY(esper_network_exchange(network));
    ESPER_TRY(judge_pass(guarded, row));
    return esper_network_apply(network);
}

/* Whether nobody has to know what is found before others have queued more. */
static bool may_be_behind(const esper_guarded *guarded)
{
    const esper_network *network = guarded->network;

    return guarded->settles_behind && guarded->drill == NULL && !guarded->checksum &&
           esper_backend_is_behind(network->engine->backend) && !esper_ranks_are_many(&network->engine->ranks) &&
           !esper_guarded_reading(network).pending;
}

/* Whether somebody has to know now what the last steps have brought: else it is soon enough when the next ones are under way. */
static bool is_read_due(const esper_guarded *guarded)
{
    const esper_network *network = guarded->network;

    return look_at_flag(guarded) != 0 || (esper_network_epoch_done(network) && !may_be_behind(guarded)) ||
           guarded->drill != NULL || guarded->checksum || esper_ranks_are_many(&network->engine->ranks) ||
           esper_guarded_reading(network).pending;
}

static esper_status take_step(esper_guarded *guarded)
{
    esper_network *network = guarded->network;
    bool trains = esper_network_batch_due(network), snapshot = trains && guarded_snapshot_due(guarded);
    esper_cursor began = network->cursor;

    if (snapshot && may_be_behind(guarded) && !esper_network_has_unread(network)) {
        ESPER_TRY(esper_network_wait(network)); /* seldom for anything: the epoch before was settled */
        ESPER_TRY(guarded_take_snapshot(guarded)); /* which scans what it takes */
        snapshot = false;
    }
    ESPER_TRY(drill_at(guarded, ESPER_DRILL_BETWEEN_STEPS));
    ESPER_TRY(judge_state(guarded, guarded->checksum ? SUMS_COMPARE : SUMS_OFF,
                          !trains || snapshot || guarded->checksum || esper_ranks_are_many(&network->engine->ranks)));
    if (guarded->found || !trains)
        return ESPER_OK;
    if (snapshot)
        ESPER_TRY(guarded_take_snapshot(guarded));
    ESPER_TRY(train_batch(guarded));
    if (is_read_due(guarded))
        ESPER_TRY(esper_network_read(network));
    else if (network->n_rows == ESPER_NETWORK_ROWS)
        ESPER_TRY(esper_network_read_behind(network));
    if (guarded->found || !guarded->checksum)
        return ESPER_OK;
    ESPER_TRY(judge_state(guarded, SUMS_REMEMBER, true));
    guarded->found_at = began;
    return ESPER_OK;
}

static esper_status check_usable(const esper_guarded *guarded)
{
    if (esper_guarded_reading(guarded->network).faulted)
        return ESPER_FAIL(ESPER_E_STATE, "the governor has stopped this run: begin again from a checkpoint");
    return ESPER_OK;
}

static esper_incident nothing_at(const esper_network *network)
{
    return (esper_incident){.at = network->guarded != NULL ? network->cursor : (esper_cursor){0},
                            .first_index = ESPER_GUARD_NONE,
                            .rank = -1,
                            .loss = (double)NAN,
                            .problem = ""};
}

esper_status esper_guarded_step(esper_network *network, esper_incident *incident_out)
{
    esper_guarded *guarded = network->guarded;
    esper_incident incident;

    if (guarded == NULL) {
        *incident_out = nothing_at(network);
        return esper_network_queue_step(network);
    }
    ESPER_TRY(check_usable(guarded));
    if (esper_network_epoch_done(network))
        return ESPER_FAIL(ESPER_E_STATE, "no training step is due");
    incident = nothing_at(network);
    if (!guarded->found)
        ESPER_TRY(take_step(guarded));
    if (guarded->found)
        ESPER_TRY(conclude(guarded, &incident));
    *incident_out = incident;
    return ESPER_OK;
}

void esper_guarded_let_behind(esper_network *network, bool on)
{
    if (network->guarded != NULL)
        network->guarded->settles_behind = on;
}

esper_status esper_guarded_settle_behind(esper_network *network, bool *queued_out)
{
    esper_guarded *guarded = network->guarded;
    uint32_t asked;

    *queued_out = false;
    if (guarded == NULL || guarded->found || !may_be_behind(guarded))
        return ESPER_OK;
    ESPER_TRY(esper_network_read_behind(network));
    if (guarded->found)
        return ESPER_OK;
    asked = guarded->asked;
    ESPER_TRY(queue_scan(guarded, state_roles, SUMS_OFF));
    guarded->asked = asked; /* a watcher of the last step wants to know of its gradients */
    ESPER_TRY(esper_backend_copy_out(network->engine->backend, network->stream, &guarded->settled_flag, network->flag,
                                     sizeof(guarded->settled_flag)));
    guarded->settling = *queued_out = true;
    return ESPER_OK;
}

/* What was queued so is known. */
static esper_status hear_settled(esper_guarded *guarded)
{
    esper_network *network = guarded->network;

    guarded->settling = false;
    ESPER_TRY(esper_network_wait(network));
    ESPER_TRY(esper_network_read(network));
    if (guarded->found)
        return ESPER_OK; /* by a step before it */
    guarded->has_suspect = guarded->has_suspect && guarded->settled_flag != 0;
    if (guarded->settled_flag == 0)
        return ESPER_OK;
    guarded->asked = state_roles;
    guarded->report = NULL;
    note_finding(guarded, &network->cursor, ESPER_VERDICT_STATE);
    return ESPER_OK;
}

esper_status esper_guarded_settle(esper_network *network, esper_incident *incident_out)
{
    esper_guarded *guarded = network->guarded;
    bool settled = guarded != NULL && guarded->settling;
    esper_incident incident;

    ESPER_TRY(settled ? hear_settled(guarded) : esper_network_read(network));
    incident = nothing_at(network);
    if (guarded != NULL) {
        ESPER_TRY(check_usable(guarded));
        if (!guarded->found && !settled)
            ESPER_TRY(judge_state(guarded, guarded->checksum ? SUMS_COMPARE : SUMS_OFF, true));
        if (guarded->found)
            ESPER_TRY(conclude(guarded, &incident));
    }
    *incident_out = incident;
    return ESPER_OK;
}

esper_status esper_guarded_begin_epoch(esper_network *network, esper_incident *incident_out)
{
    const esper_guarded *guarded = network->guarded;

    ESPER_TRY(esper_guarded_settle(network, incident_out));
    if (guarded == NULL || incident_out->action != ESPER_GOVERNOR_GO || !guarded_snapshot_due(guarded))
        return ESPER_OK;
    return guarded_take_snapshot(network->guarded);
}

esper_status esper_guarded_judge(esper_network *network, double loss, esper_incident *incident_out)
{
    esper_guarded *guarded = network->guarded;
    esper_incident incident = nothing_at(network);
    esper_governor_reading reading;

    if (guarded != NULL) {
        ESPER_TRY(check_usable(guarded));
        incident.loss = loss;
        ESPER_TRY(esper_governor_check(guarded->governor, loss, &reading));
        ESPER_TRY(obey(guarded, &reading, &incident));
    }
    *incident_out = incident;
    return ESPER_OK;
}

void esper_guarded_forget_losses(esper_network *network)
{
    if (network->guarded != NULL)
        esper_governor_forget_losses(network->guarded->governor);
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

void esper_guarded_set_drill(esper_network *network, esper_drill drill, void *context)
{
    network->guarded->drill = drill;
    network->guarded->drill_context = context;
}

void esper_guarded_watch(esper_network *network, esper_scan_watcher watcher, esper_scan_wish wishes, void *context)
{
    network->guarded->watcher = watcher;
    network->guarded->wishes = wishes;
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
