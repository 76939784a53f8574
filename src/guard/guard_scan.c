/* Scans: launched on every device, read as one report.
 *
 * Engines are asked in the order of their devices' first tensors and each is collected once. They yield finished
 * statistics of tensors and groups: what is left is to add up groups over devices, in that order, so the report does not
 * depend on which device was ready first. Where all tensors lie on one device nothing here walks over them.
 *
 * Clipping and the skip flag need everything they depend on in one place at once. On one device the engine does both by
 * itself; over several partitions of host memory the guard does it inside launch, where all scans are done already;
 * over several devices of which one is CUDA's it would take a wait, and is refused. */
#include <assert.h>
#include <fenv.h>
#include <math.h>
#include <stdio.h>

#include "base/status.h"
#include "guard/engine_cuda.h"
#include "guard/engine_host.h"
#include "guard/guard_internal.h"
#include "guard/guard_state.h"
#include "guard/report.h"

enum { ALL_ROLES = (1 << ESPER_GUARD_N_ROLES) - 1, GRADS = 1 << ESPER_GUARD_ROLE_GRAD };

/* ----------------------------------------------------------------------------------------------------------- launch */

void esper_guard_scan_init(esper_guard_scan *scan)
{
    if (scan != NULL)
        *scan = (esper_guard_scan){.size = sizeof(*scan)};
}

/* Which partitions a scan concerns. */
typedef struct scan_plan {
    uint32_t roles;
    size_t   n_active, n_grads; /* partitions with a tensor to scan; with gradients to scan */
    bool     cuda, cuda_grads;  /* whether one of them is a CUDA device */
} scan_plan;

static scan_plan make_plan(const esper_guard *guard, const esper_guard_scan *scan)
{
    scan_plan plan = {.roles = scan->roles != 0 ? scan->roles : ALL_ROLES};

    for (size_t s = 0; s < guard->table.n_partitions; s++) {
        const esper_guard_partition *part = &guard->table.partitions[s];

        plan.n_active += (part->roles & plan.roles) != 0;
        plan.n_grads += (part->roles & plan.roles & GRADS) != 0;
        plan.cuda |= part->device >= 0 && (part->roles & plan.roles) != 0;
        plan.cuda_grads |= part->device >= 0 && (part->roles & plan.roles & GRADS) != 0;
    }
    return plan;
}

static esper_status check_scan(const esper_guard_scan *scan)
{
    char roles[ESPER_GUARD_ROLES_CHARS];

    if (scan->size != sizeof(*scan))
        return ESPER_FAIL(ESPER_E_ARG, "a scan of %zu bytes, expected %zu: begin with esper_guard_scan_init",
                          scan->size, sizeof(*scan));
    if ((scan->roles & ~(uint32_t)ALL_ROLES) != 0)
        return ESPER_FAIL(ESPER_E_ARG, "scan roles %s: expected bits 1u << role, or 0 for all",
                          esper_guard_roles_text(scan->roles, roles));
    if (!(scan->clip_norm >= 0.0))
        return ESPER_FAIL(ESPER_E_ARG, "scan clip_norm %g: expected 0 (no clipping) or more", scan->clip_norm);
    if (scan->clip_norm > 0.0 && scan->roles != 0 && (scan->roles & GRADS) == 0)
        return ESPER_FAIL(ESPER_E_ARG, "scan clip_norm %g, but the roles asked for, %s, leave gradients out",
                          scan->clip_norm, esper_guard_roles_text(scan->roles, roles));
    if (scan->checksum > 2)
        return ESPER_FAIL(ESPER_E_ARG, "scan checksum %u: expected 0, 1 (remember) or 2 (compare)", scan->checksum);
    if (scan->stream != NULL && scan->streams != NULL)
        return ESPER_FAIL(ESPER_E_ARG, "scan: give stream or streams, not both");
    if (scan->streams == NULL && scan->n_streams > 0)
        return ESPER_FAIL(ESPER_E_ARG, "scan: %zu streams at NULL", scan->n_streams);
    return ESPER_OK;
}

/* Whether the flag lies where the scan can set it. Asked once for each address and the roles whose devices set it, not at
 * every launch. */
static esper_status check_flag(esper_guard *guard, uint32_t *flag, uint32_t roles)
{
    const bool is_known = flag == guard->known_flag && (roles & ~guard->known_flag_roles) == 0;

    for (size_t s = 0; !is_known && s < guard->table.n_partitions; s++) {
        esper_guard_partition *part = &guard->table.partitions[s];
        esper_status status = ESPER_OK;

        if ((part->roles & roles) != 0)
            status = part->engine->ops->check(part->engine, flag, sizeof(*flag));
        if (status == ESPER_OK && (part->roles & roles) != 0 && part->device < 0)
            status = esper_scan_engine_host_check_writable(flag, sizeof(*flag));
        if (status != ESPER_OK)
            return esper_fail_within(status, "skip_flag: ");
    }
    guard->known_flag_roles = flag == guard->known_flag ? guard->known_flag_roles | roles : roles;
    guard->known_flag = flag;
    return ESPER_OK;
}

/* Whether gradients in host memory may be scaled: asked before anything is, not found out by a signal. */
static esper_status check_grads(esper_guard *guard)
{
    for (size_t s = 0; s < guard->table.n_partitions; s++) {
        esper_guard_partition *part = &guard->table.partitions[s];
        esper_status status = ESPER_OK;

        if (part->device >= 0 || (part->roles & GRADS) == 0)
            continue;
        if (part->stale)
            status = esper_guard_partition_bind(&guard->table, part);
        if (status == ESPER_OK)
            status = esper_scan_engine_host_check_grads(part->engine);
        if (status != ESPER_OK)
            return esper_fail_within(status, "clip_norm: a gradient at ");
    }
    return ESPER_OK;
}

static esper_status check_plan(const esper_guard *guard, const esper_guard_scan *scan, const scan_plan *plan)
{
    if (scan->clip_norm > 0.0 && plan->n_grads > 1 && plan->cuda_grads)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                          "clipping gradients on %zu devices would have to wait for all of them: scan "
                          "without clip_norm and scale them by the report's grad_norm",
                          plan->n_grads);
    if (scan->skip_flag != NULL && plan->n_active == 0)
        return ESPER_FAIL(ESPER_E_STATE,
                          "skip_flag, but no tensor of these roles is registered: where the flag lies is told "
                          "by them");
    if (scan->skip_flag != NULL && plan->n_active > 1 && plan->cuda)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                          "one skip_flag for tensors on %zu devices: scan the roles of one device, or "
                          "use the report's verdict",
                          plan->n_active);
    for (size_t i = 0; scan->checksum == 2 && i < guard->table.n_tensors; i++)
        if ((plan->roles >> guard->table.tensors[i].role & 1) != 0 && !guard->table.remembers[i])
            return ESPER_FAIL(ESPER_E_STATE, "checksum 2: none of %s is remembered; scan it with checksum 1 first",
                              guard->table.tensors[i].name);
    return ESPER_OK;
}

/* The stream of a partition. `stream` is meant for the CUDA device with the lowest number. */
static esper_status stream_of(const esper_guard *guard, const esper_guard_scan *scan, const esper_guard_partition *part,
                              void **stream_out)
{
    *stream_out = scan->stream;
    if (part->device < 0 || scan->streams == NULL) {
        for (size_t s = 0; s < guard->table.n_partitions; s++)
            if (guard->table.partitions[s].n_tensors > 0 && guard->table.partitions[s].device >= 0 &&
                guard->table.partitions[s].device < part->device)
                *stream_out = NULL;
        return ESPER_OK;
    }
    if ((size_t)part->device >= scan->n_streams)
        return ESPER_FAIL(ESPER_E_ARG, "scan: %zu streams, but tensors lie on CUDA device %d", scan->n_streams,
                          part->device);
    *stream_out = scan->streams[part->device];
    return ESPER_OK;
}

/* A scan is part of graphs as a whole or not at all: host memory is scanned in the call, once. */
static esper_scan_capture capture_of(const esper_guard *guard, const scan_plan *plan)
{
    size_t n_queued = 0, n_captured = 0;

    for (size_t s = 0; s < guard->table.n_partitions; s++) {
        const esper_guard_partition *part = &guard->table.partitions[s];

        if ((part->roles & plan->roles) != 0 && part->device < 0)
            return ESPER_SCAN_CAPTURE_NEVER;
        n_queued += part->queued;
        n_captured += part->queued && esper_cuda_engine_captured(part->engine);
    }
    return n_queued == 0     ? ESPER_SCAN_CAPTURE_ANY
           : n_captured == 0 ? ESPER_SCAN_CAPTURE_NEVER
                             : ESPER_SCAN_CAPTURE_ALWAYS;
}

static esper_status queue_partition(esper_guard *guard, esper_guard_partition *part, const esper_guard_scan *scan,
                                    const scan_plan *plan)
{
    esper_scan_request request = {
        .roles = plan->roles,
        .tiny = guard->options.tiny,
        .checksum = scan->checksum != 0,
        .clip_norm = plan->n_grads == 1 && (part->roles & GRADS) != 0 ? scan->clip_norm : 0.0,
        .skip_flag = plan->n_active == 1 ? scan->skip_flag : NULL,
        .tag = scan->checksum,
        .capture = capture_of(guard, plan),
    };

    assert(part->n_tensors > 0);
    ESPER_TRY(stream_of(guard, scan, part, &request.stream));
    if (part->stale)
        ESPER_TRY(esper_guard_partition_bind(&guard->table, part));
    ESPER_TRY(part->engine->ops->scan(part->engine, &request));
    part->queued = true;
    return ESPER_OK;
}

/* Other devices first: they work while the host does. */
static esper_status queue_partitions(esper_guard *guard, const esper_guard_scan *scan, const scan_plan *plan)
{
    for (int host = 0; host < 2; host++) {
        for (size_t s = 0; s < guard->table.n_partitions; s++) {
            esper_guard_partition *part = &guard->table.partitions[s];

            if ((part->roles & plan->roles) != 0 && (part->device < 0) == (host == 1))
                ESPER_TRY(queue_partition(guard, part, scan, plan));
        }
    }
    return ESPER_OK;
}

/* Takes a partition's result over, waiting for it. */
static esper_status collect_partition(esper_guard_partition *part)
{
    assert(part->engine != NULL);
    part->queued = part->collected = false;
    ESPER_TRY(part->engine->ops->collect(part->engine, &part->result));
    part->collected = true;
    return ESPER_OK;
}

/* Of all devices. */
static esper_scan_sums sums_of_role(const esper_guard *guard, esper_guard_role role)
{
    esper_scan_sums sums;

    esper_scan_sums_init(&sums);
    for (size_t s = 0; s < guard->table.n_partitions; s++) {
        const esper_guard_partition *part = &guard->table.partitions[s];

        if (part->collected && (part->roles & guard->roles & 1u << role) != 0)
            esper_scan_sums_add(&sums, &part->result.roles[role]);
    }
    return sums;
}

/* Clipping and flag over several partitions of host memory, whose scans are done. */
static esper_status act_on_host(esper_guard *guard, const esper_guard_scan *scan, const scan_plan *plan)
{
    esper_scan_sums grads;
    uint32_t bad = 0;
    fenv_t callers;

    for (size_t s = 0; s < guard->table.n_partitions; s++)
        if (guard->table.partitions[s].queued && guard->table.partitions[s].device < 0)
            ESPER_TRY(collect_partition(&guard->table.partitions[s]));
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++) {
        esper_scan_sums sums = sums_of_role(guard, (esper_guard_role)role);

        bad |= esper_scan_bad(&sums, (esper_guard_role)role);
    }
    if (scan->skip_flag != NULL && plan->n_active > 1)
        *scan->skip_flag = bad;
    if (plan->n_grads <= 1)
        return ESPER_OK; /* one engine has clipped them */
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    grads = sums_of_role(guard, ESPER_GUARD_ROLE_GRAD);
    guard->clip_factor = esper_guard_clip_factor(esper_scan_norm(&grads), scan->clip_norm);
    fesetenv(&callers);
    for (size_t s = 0; guard->clip_factor < 1.0 && s < guard->table.n_partitions; s++) {
        esper_guard_partition *part = &guard->table.partitions[s];

        if ((part->roles & GRADS) != 0)
            ESPER_TRY(part->engine->ops->scale(part->engine, guard->clip_factor, NULL));
    }
    return ESPER_OK;
}

/* Whether what was queued went into graphs under capture, to be run again and again: all of it then. */
static bool is_captured(const esper_guard *guard)
{
    for (size_t s = 0; s < guard->table.n_partitions; s++)
        if (guard->table.partitions[s].queued && guard->table.partitions[s].device >= 0)
            return esper_cuda_engine_captured(guard->table.partitions[s].engine);
    return false;
}

/* What devices were given already is waited for, and forgotten. */
void esper_guard_give_up(esper_guard *guard)
{
    for (size_t s = 0; s < guard->table.n_partitions; s++) {
        esper_guard_partition *part = &guard->table.partitions[s];

        if (part->queued && (part->device < 0 || !esper_cuda_engine_captured(part->engine)))
            (void)collect_partition(part);
        part->queued = false;
    }
    guard->launched = false;
}

esper_status esper_guard_launch(esper_guard *guard, const esper_guard_scan *scan)
{
    esper_guard_scan defaults;
    esper_status status;
    scan_plan plan;

    ESPER_TRY(esper_guard_check_idle(guard, "esper_guard_launch"));
    esper_guard_scan_init(&defaults);
    if (scan == NULL)
        scan = &defaults;
    ESPER_TRY(check_scan(scan));
    if (guard->table.n_tensors == 0)
        return ESPER_FAIL(ESPER_E_STATE, "esper_guard_launch: no tensor is registered: esper_guard_add comes first");
    plan = make_plan(guard, scan);
    ESPER_TRY(check_plan(guard, scan, &plan));
    if (scan->skip_flag != NULL)
        ESPER_TRY(check_flag(guard, scan->skip_flag, plan.roles));
    if (scan->clip_norm > 0.0)
        ESPER_TRY(check_grads(guard));
    guard->roles = plan.roles;
    guard->checksum = scan->checksum;
    guard->replayed = false;
    guard->clip_factor = 0.0;
    for (size_t s = 0; s < guard->table.n_partitions; s++)
        guard->table.partitions[s].collected = false;
    status = queue_partitions(guard, scan, &plan);
    if (status == ESPER_OK &&
        ((scan->clip_norm > 0.0 && plan.n_grads > 1) || (scan->skip_flag != NULL && plan.n_active > 1)))
        status = act_on_host(guard, scan, &plan);
    if (status != ESPER_OK) {
        char why[512]; /* whatever giving up has to say, these words count */

        snprintf(why, sizeof(why), "%s", esper_last_error());
        esper_guard_give_up(guard);
        return ESPER_FAIL(status, "%s", why);
    }
    guard->sequence++;
    guard->launched = true;
    guard->replayed = is_captured(guard);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------------------- read */

/* The statistics, in the order of registration: those of the one device as they lie there. */
static const esper_guard_stat *gather_stats(esper_guard_table *table)
{
    for (size_t s = 0; s < table->n_partitions; s++) {
        const esper_guard_partition *part = &table->partitions[s];

        if (part->n_tensors == table->n_tensors)
            return part->collected ? part->result.stats : table->stats;
        for (size_t i = 0; i < part->n_tensors; i++)
            table->stats[part->index[i]] = part->collected ? part->result.stats[i] : (esper_guard_stat){0};
    }
    return table->stats;
}

/* Of a group on all devices. */
static void report_group(esper_guard *guard, size_t g)
{
    esper_guard_table *table = &guard->table;
    esper_guard_group *group = &table->groups[g];
    const bool scanned = (guard->roles >> group->role & 1) != 0;
    esper_scan_sums sums;

    esper_scan_sums_init(&sums);
    for (size_t s = 0; scanned && s < table->n_partitions; s++)
        if (table->partitions[s].collected && g < table->partitions[s].result.n_groups)
            esper_scan_sums_add(&sums, &table->partitions[s].result.groups[g]);
    esper_report_group(group->name, group->role, &table->group_sizes[g], scanned ? &sums : NULL, group);
}

/* The first in the order of registration: each device knows its own first. */
static uint64_t find_first_bad(const esper_guard *guard)
{
    uint64_t first = ESPER_GUARD_NONE;

    for (size_t s = 0; s < guard->table.n_partitions; s++) {
        const esper_guard_partition *part = &guard->table.partitions[s];

        for (int role = 0; part->collected && role < ESPER_GUARD_N_ROLES; role++) {
            uint32_t bad = (part->roles & guard->roles) >> role & 1 ? part->result.roles[role].first_bad : UINT32_MAX;

            if (bad != UINT32_MAX && part->index[bad] < first)
                first = part->index[bad];
        }
    }
    return first;
}

/* What the engine that has all gradients clipped by, or what was found in launch. */
static double clip_factor_of(const esper_guard *guard)
{
    double factor = 1.0;

    if (guard->clip_factor > 0.0)
        return guard->clip_factor;
    for (size_t s = 0; s < guard->table.n_partitions; s++)
        if (guard->table.partitions[s].collected && guard->table.partitions[s].result.clip_factor < factor)
            factor = guard->table.partitions[s].result.clip_factor;
    return factor;
}

/* Compares checksums with those remembered, or remembers them: only what has been read as a whole counts. */
static void use_checksums(esper_guard *guard)
{
    esper_guard_table *table = &guard->table;

    guard->report.changed = ESPER_GUARD_NONE;
    for (size_t i = table->n_tensors; guard->checksum != 0 && i-- > 0;) {
        uint64_t sum = guard->report.stats[i].checksum;

        if ((guard->roles >> table->tensors[i].role & 1) == 0)
            continue;
        if (guard->checksum == 2 && table->remembered[i] != sum)
            guard->report.changed = i; /* from the back: the first of them stays */
        if (guard->checksum == 1) {
            table->remembered[i] = sum;
            table->remembers[i] = true;
        }
    }
}

/* In rounding of our own, whatever the caller's. */
static void build_report(esper_guard *guard)
{
    esper_guard_table *table = &guard->table;
    esper_guard_report *report = &guard->report;
    fenv_t callers;

    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    *report = (esper_guard_report){
        .sequence = guard->sequence,
        .first_bad = find_first_bad(guard),
        .clip_factor = clip_factor_of(guard),
        .n_tensors = table->n_tensors,
        .n_groups = table->n_groups,
        .stats = gather_stats(table),
        .groups = table->groups,
    };
    for (size_t g = 0; g < table->n_groups; g++)
        report_group(guard, g);
    for (int role = 0; role < ESPER_GUARD_N_ROLES; role++) {
        esper_scan_sums sums = sums_of_role(guard, (esper_guard_role)role);
        const bool scanned = (guard->roles >> role & 1) != 0;

        report->bad |= esper_scan_bad(&sums, (esper_guard_role)role);
        report->n_bad += sums.n_bad;
        esper_report_group("", (esper_guard_role)role, &table->role_sizes[role], scanned ? &sums : NULL,
                           &report->totals[role]);
    }
    report->grad_norm = report->totals[ESPER_GUARD_ROLE_GRAD].norm;
    use_checksums(guard);
    fesetenv(&callers);
}

/* Which scan it was is told by what was found: of several graphs with scans in them, the one that ran last. */
static esper_status adopt_scan(esper_guard *guard)
{
    const esper_scan_result *result = NULL;
    bool agrees = true;

    for (size_t s = 0; s < guard->table.n_partitions; s++) {
        const esper_guard_partition *part = &guard->table.partitions[s];

        if (part->collected && result == NULL)
            result = &part->result;
        agrees &= !part->collected || (part->result.asked == result->asked && part->result.tag == result->tag);
    }
    for (size_t s = 0; result != NULL && s < guard->table.n_partitions; s++)
        agrees &= guard->table.partitions[s].collected || (guard->table.partitions[s].roles & result->asked) == 0;
    if (!agrees)
        return ESPER_FAIL(ESPER_E_STATE,
                          "esper_guard_read: the devices have run different scans: launch the graphs that belong "
                          "together, then read");
    if (result != NULL) {
        guard->roles = result->asked;
        guard->checksum = result->tag;
    }
    return ESPER_OK;
}

/* Every device is collected, also behind one that fails. */
static esper_status collect_all(esper_guard *guard)
{
    esper_status first = ESPER_OK;

    for (size_t s = 0; s < guard->table.n_partitions; s++) {
        esper_guard_partition *part = &guard->table.partitions[s];
        esper_status status = ESPER_OK;

        if (part->queued || (guard->replayed && (part->roles & guard->roles) != 0))
            status = collect_partition(part);
        first = first == ESPER_OK ? status : first;
    }
    return first;
}

esper_status esper_guard_read(esper_guard *guard, const esper_guard_report **report_out)
{
    if (guard == NULL || report_out == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "esper_guard_read: %s", guard == NULL ? "no guard" : "no place for the report");
    if (!guard->launched && !guard->replayed)
        return ESPER_FAIL(ESPER_E_STATE, "esper_guard_read: nothing was launched since the last read");
    if (!guard->replayed)
        guard->launched = false;
    ESPER_TRY(collect_all(guard));
    ESPER_TRY(adopt_scan(guard));
    if (!guard->launched && guard->replayed)
        guard->sequence++; /* another replay */
    guard->launched = false;
    build_report(guard);
    *report_out = &guard->report;
    return ESPER_OK;
}
