/* Optimisers: a lane for each group that is on, rebuilt into standing tables at every step. */
#include "nn/optim.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

typedef struct optim_group {
    esper_group settings; /* its own; t counts here */
    esper_group used;     /* in the last step: those of region 0 where it has joined that */
    esper_lane  lane;
    bool        on, joined;
} optim_group;

struct esper_optim {
    esper_backend *backend;
    esper_op_kind  kind;
    int            n_networks;
    int           *first;    /* (n_networks + 1) first group of a network */
    optim_group   *groups;   /* (n_groups) */
    esper_lane    *lanes;    /* (n_groups) those that are on */
    double        *norms;    /* (n_groups) as of the last step, for who asks */
    esper_group   *settings; /* (n_groups) of the next launch, to be sent */
    /* On the backend: */
    esper_group   *sent;        /* (n_groups) what lanes read */
    double        *norms_found; /* (n_groups) what launches write */
    double        *partials;    /* one for each chunk of each group */
};

static int64_t region_count(const esper_slab *slab, int region)
{
    assert(region >= 0 && region < slab->n_regions);
    assert(slab->param_begin[region] <= slab->param_begin[region + 1]);
    return slab->param_begin[region + 1] - slab->param_begin[region];
}

static int64_t region_chunks(const esper_slab *slab, int region)
{
    return (region_count(slab, region) + ESPER_FLAT_CHUNK - 1) / ESPER_FLAT_CHUNK;
}

/* Groups of all slabs, and chunks of all groups. */
static void count_all(const esper_slab *const *slabs, int n_slabs, size_t *groups_out, size_t *chunks_out)
{
    *groups_out = *chunks_out = 0;
    for (int k = 0; k < n_slabs; k++)
        for (int r = 0; r < slabs[k]->n_regions; r++) {
            *groups_out += 1;
            *chunks_out += (size_t)region_chunks(slabs[k], r);
        }
}

size_t esper_optim_bytes(const esper_slab *const *slabs, int n_slabs)
{
    size_t groups, chunks;

    count_all(slabs, n_slabs, &groups, &chunks);
    return sizeof(esper_optim) + (size_t)(n_slabs + 1) * sizeof(int) +
           groups * (sizeof(optim_group) + sizeof(esper_lane) + 2 * sizeof(esper_group) + 2 * sizeof(double)) +
           (chunks > 0 ? chunks : 1) * sizeof(double);
}

static esper_view flat_view(const esper_slab *slab, int region, esper_family data, int64_t count)
{
    esper_view view = {.count = count, .rank = 1, .dim = {1, 1, 1, 1}};

    if (slab->family[data] != NULL)
        view.data = slab->family[data] + slab->param_begin[region];
    return view;
}

/* norms: of all regions of the slab. */
static esper_lane group_lane(const esper_slab *slab, int region, const esper_group *settings, double *norms,
                             double *partial, const uint32_t *flag)
{
    int64_t count = region_count(slab, region);
    esper_lane lane = {.group = settings};

    lane.in[0] = flat_view(slab, region, ESPER_FAMILY_PARAM, count);
    lane.in[0].grad = slab->family[ESPER_FAMILY_GRAD] + slab->param_begin[region];
    lane.in[1] = flat_view(slab, region, ESPER_FAMILY_MOMENT1, count);
    lane.in[2] = flat_view(slab, region, ESPER_FAMILY_MOMENT2, count);
    lane.in[3] = (esper_view){.data = norms, .count = slab->n_regions, .rank = 1, .dim = {1, 1, 1, 1}};
    lane.in[4] = (esper_view){.data = (void *)(uintptr_t)flag, .count = 1, .rank = 1, .dim = {1, 1, 1, 1}};
    lane.out[0] = (esper_view){.data = &norms[region], .count = 1, .rank = 1, .dim = {1, 1, 1, 1}};
    lane.out[1] = (esper_view){.data = partial, .count = region_chunks(slab, region), .rank = 1, .dim = {1, 1, 1, 1}};
    return lane;
}

static esper_status take_tables(esper_optim *optim, const esper_optim_desc *desc)
{
    size_t n_groups, n_chunks;
    void *memory;

    count_all(desc->slabs, desc->n_slabs, &n_groups, &n_chunks);
    optim->first = esper_mem_alloc((size_t)(desc->n_slabs + 1) * sizeof(*optim->first));
    optim->groups = esper_mem_alloc(n_groups * sizeof(*optim->groups));
    optim->lanes = esper_mem_alloc(n_groups * sizeof(*optim->lanes));
    optim->norms = esper_mem_alloc(n_groups * sizeof(*optim->norms));
    optim->settings = esper_mem_alloc(n_groups * sizeof(*optim->settings));
    if (optim->first == NULL || optim->groups == NULL || optim->lanes == NULL || optim->norms == NULL ||
        optim->settings == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "optimiser of %zu groups", n_groups);
    ESPER_TRY(esper_backend_alloc(optim->backend, n_groups * sizeof(esper_group), &memory));
    optim->sent = memory;
    ESPER_TRY(esper_backend_alloc(optim->backend, n_groups * sizeof(double), &memory));
    optim->norms_found = memory;
    ESPER_TRY(esper_backend_alloc(optim->backend, (n_chunks > 0 ? n_chunks : 1) * sizeof(double), &memory));
    optim->partials = memory;
    return ESPER_OK;
}

static void make_groups(esper_optim *optim, const esper_optim_desc *desc)
{
    double *partial = optim->partials;
    int g = 0;

    for (int k = 0; k < desc->n_slabs; k++) {
        const esper_slab *slab = desc->slabs[k];

        optim->first[k] = g;
        for (int r = 0; r < slab->n_regions; r++, g++) {
            optim_group *group = &optim->groups[g];

            group->settings = desc->settings;
            group->on = region_count(slab, r) > 0;
            if (!group->on)
                continue;
            group->lane = group_lane(slab, r, &optim->sent[g], &optim->norms_found[optim->first[k]], partial,
                                     desc->flags != NULL ? desc->flags[k] : NULL);
            partial += region_chunks(slab, r);
        }
    }
    optim->first[desc->n_slabs] = g;
}

static esper_status check(const esper_optim_desc *desc)
{
    if (desc->kind != ESPER_OP_SGD && desc->kind != ESPER_OP_ADAMW)
        return ESPER_FAIL(ESPER_E_ARG, "%s is no optimiser", esper_op_info_of(desc->kind)->name);
    if (desc->n_slabs < 1)
        return ESPER_FAIL(ESPER_E_ARG, "optimiser for %d networks", desc->n_slabs);
    for (int k = 0; k < desc->n_slabs; k++)
        if (esper_slab_count(desc->slabs[k], ESPER_FAMILY_PARAM) > 0 &&
            desc->slabs[k]->family[desc->kind == ESPER_OP_ADAMW ? ESPER_FAMILY_MOMENT2 : ESPER_FAMILY_MOMENT1] == NULL)
            return ESPER_FAIL(ESPER_E_ARG, "network %d: its slab has no room for the moments of %s", k,
                              esper_op_info_of(desc->kind)->name);
    return ESPER_OK;
}

esper_status esper_optim_open(const esper_optim_desc *desc, esper_optim **optim_out)
{
    esper_optim *optim;
    esper_status status;

    ESPER_TRY(check(desc));
    optim = esper_mem_alloc(sizeof(*optim));
    if (optim == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "optimiser");
    optim->backend = desc->backend;
    optim->kind = desc->kind;
    optim->n_networks = desc->n_slabs;
    status = take_tables(optim, desc);
    if (status != ESPER_OK) {
        esper_optim_close(optim);
        return status;
    }
    make_groups(optim, desc);
    *optim_out = optim;
    return ESPER_OK;
}

void esper_optim_close(esper_optim *optim)
{
    if (optim == NULL)
        return;
    esper_mem_free(optim->first);
    esper_mem_free(optim->groups);
    esper_mem_free(optim->lanes);
    esper_mem_free(optim->norms);
    esper_mem_free(optim->settings);
    esper_backend_release(optim->backend, optim->sent);
    esper_backend_release(optim->backend, optim->norms_found);
    esper_backend_release(optim->backend, optim->partials);
    esper_mem_free(optim);
}

static optim_group *group_of(const esper_optim *optim, int network, int region)
{
    assert(network >= 0 && network < optim->n_networks);
    assert(region >= 0 && region < optim->first[network + 1] - optim->first[network]);
    return &optim->groups[optim->first[network] + region];
}

esper_group *esper_optim_group(esper_optim *optim, int network, int region)
{
    return &group_of(optim, network, region)->settings;
}

void esper_optim_enable(esper_optim *optim, int network, int region, bool on)
{
    optim_group *group = group_of(optim, network, region);

    group->on = on && group->lane.in[0].count > 0;
}

void esper_optim_join(esper_optim *optim, int network, int region, bool joined)
{
    optim_group *group = group_of(optim, network, region);

    group->joined = joined && region > 0 && group->lane.in[0].count > 0;
}

esper_status esper_optim_reset(esper_optim *optim, esper_backend_stream *stream, int network, int region)
{
    optim_group *group = group_of(optim, network, region);
    size_t count = (size_t)group->lane.in[0].count;

    group->settings.t = 0;
    if (count == 0)
        return ESPER_OK;
    ESPER_TRY(esper_backend_fill(optim->backend, stream, group->lane.in[0].grad, 0.0f, count));
    for (int m = 1; m <= 2; m++)
        if (group->lane.in[m].data != NULL)
            ESPER_TRY(esper_backend_fill(optim->backend, stream, group->lane.in[m].data, 0.0f, count));
    return ESPER_OK;
}

double esper_optim_norm_alone(const esper_optim *optim, int network, int region)
{
    assert(network >= 0 && network < optim->n_networks && region >= 0);
    return optim->norms[optim->first[network] + region];
}

double esper_optim_norm(const esper_optim *optim, int network, int region)
{
    uint64_t with = group_of(optim, network, region)->used.with;

    if (with == 0)
        return esper_optim_norm_alone(optim, network, region);
    return sqrt(esper_sum_norms(&optim->norms[optim->first[network]], with));
}

/* Region 0 and all that have joined it, as far as they are on; 0 when none has. */
static uint64_t joined_regions(const esper_optim *optim, int network)
{
    const optim_group *groups = &optim->groups[optim->first[network]];
    int n = optim->first[network + 1] - optim->first[network];
    uint64_t with = 0;

    assert(n <= 64 && !groups[0].joined); /* a bit for each */
    for (int r = 1; r < n; r++)
        if (groups[r].on && groups[r].joined)
            with |= (uint64_t)1 << r;
    return with != 0 && groups[0].on ? with | 1u : with;
}

/* Ages the groups of a network that are on, settles what they use, and writes their lanes; returns how many. */
static int make_lanes(esper_optim *optim, int network, esper_lane *lanes)
{
    optim_group *groups = &optim->groups[optim->first[network]];
    int n = optim->first[network + 1] - optim->first[network];
    uint64_t with = joined_regions(optim, network);
    int n_lanes = 0;

    for (int r = 0; r < n; r++) {
        optim_group *group = &groups[r];
        bool joint = r == 0 || group->joined;

        if (!group->on)
            continue;
        group->settings.t++;
        group->used = joint ? groups[0].settings : group->settings;
        group->used.t = group->settings.t;
        group->used.with = joint ? with : 0;
        optim->settings[group - optim->groups] = group->used;
        lanes[n_lanes++] = group->lane;
    }
    return n_lanes;
}

/* The step of groups first .. last-1: their settings in, two launches. */
static esper_status launch(esper_optim *optim, esper_backend_stream *stream, int first, int last,
                           const esper_lane *lanes, int n_lanes)
{
    esper_launch launch = {.kind = ESPER_OP_GRAD_NORM, .direction = ESPER_FORWARD, .lanes = lanes, .n_lanes = n_lanes};
    size_t n = (size_t)(last - first);

    assert(first <= last && n_lanes <= last - first);
    if (n_lanes == 0)
        return ESPER_OK;
    ESPER_TRY(esper_backend_copy_in(optim->backend, stream, &optim->sent[first], &optim->settings[first],
                                    n * sizeof(*optim->sent)));
    ESPER_TRY(esper_backend_enqueue(optim->backend, stream, &launch));
    launch.kind = optim->kind;
    return esper_backend_enqueue(optim->backend, stream, &launch);
}

static esper_status read_norms(esper_optim *optim, esper_backend_stream *stream, int first, int last)
{
    return esper_backend_copy_out(optim->backend, stream, &optim->norms[first], &optim->norms_found[first],
                                  (size_t)(last - first) * sizeof(*optim->norms));
}

esper_status esper_optim_step(esper_optim *optim)
{
    int n_lanes = 0;

    for (int k = 0; k < optim->n_networks; k++)
        n_lanes += make_lanes(optim, k, &optim->lanes[n_lanes]);
    ESPER_TRY(launch(optim, NULL, 0, optim->first[optim->n_networks], optim->lanes, n_lanes));
    return read_norms(optim, NULL, 0, optim->first[optim->n_networks]);
}

esper_status esper_optim_step_one(esper_optim *optim, esper_backend_stream *stream, int network)
{
    esper_lane *lanes = &optim->lanes[optim->first[network]];

    assert(network >= 0 && network < optim->n_networks);
    return launch(optim, stream, optim->first[network], optim->first[network + 1], lanes,
                  make_lanes(optim, network, lanes));
}

esper_status esper_optim_read_one(esper_optim *optim, esper_backend_stream *stream, int network)
{
    assert(network >= 0 && network < optim->n_networks);
    return read_norms(optim, stream, optim->first[network], optim->first[network + 1]);
}

void esper_optim_untake(esper_optim *optim, int network, uint32_t n_steps)
{
    for (int g = optim->first[network]; g < optim->first[network + 1]; g++)
        if (optim->groups[g].on) {
            assert(optim->groups[g].settings.t >= n_steps);
            optim->groups[g].settings.t -= n_steps;
        }
}
