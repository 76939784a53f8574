/* Optimisers: a lane for each group that is on, rebuilt into standing tables at every step. */
#include "nn/optim.h"

#include "base/mem.h"
#include "base/status.h"

typedef struct optim_group {
    esper_group settings;
    esper_lane  lane;
    bool        on;
} optim_group;

struct esper_optim {
    esper_backend *backend;
    esper_op_kind  kind;
    int            n_networks;
    int           *first;    /* (n_networks + 1) first group of a network */
    optim_group   *groups;   /* (n_groups) */
    esper_lane    *lanes;    /* (n_groups) those that are on */
    double        *norms;    /* (n_groups) on the backend */
    double        *partials; /* one for each chunk of each group, on the backend */
};

static int64_t region_count(const esper_slab *slab, int region)
{
    return slab->param_begin[region + 1] - slab->param_begin[region];
}

static int64_t region_chunks(const esper_slab *slab, int region)
{
    return (region_count(slab, region) + ESPER_FLAT_CHUNK - 1) / ESPER_FLAT_CHUNK;
}

static int count_groups(const esper_slab *const *slabs, int n_slabs)
{
    int n = 0;

    for (int k = 0; k < n_slabs; k++)
        n += slabs[k]->n_regions;
    return n;
}

static int64_t count_chunks(const esper_slab *const *slabs, int n_slabs)
{
    int64_t n = 0;

    for (int k = 0; k < n_slabs; k++)
        for (int r = 0; r < slabs[k]->n_regions; r++)
            n += region_chunks(slabs[k], r);
    return n;
}

size_t esper_optim_bytes(const esper_slab *const *slabs, int n_slabs)
{
    size_t groups = (size_t)count_groups(slabs, n_slabs), chunks = (size_t)count_chunks(slabs, n_slabs);

    return sizeof(esper_optim) + (size_t)(n_slabs + 1) * sizeof(int) +
           groups * (sizeof(optim_group) + sizeof(esper_lane)) + (groups + (chunks > 0 ? chunks : 1)) * sizeof(double);
}

static esper_view flat_view(const esper_slab *slab, int region, esper_family data, int64_t count)
{
    esper_view view = {.count = count, .rank = 1, .dim = {1, 1, 1, 1}};

    if (slab->family[data] != NULL)
        view.data = slab->family[data] + slab->param_begin[region];
    return view;
}

static esper_lane group_lane(const esper_slab *slab, int region, const esper_group *settings, double *norm,
                             double *partial)
{
    int64_t count = region_count(slab, region);
    esper_lane lane = {.group = settings};

    lane.in[0] = flat_view(slab, region, ESPER_FAMILY_PARAM, count);
    lane.in[0].grad = slab->family[ESPER_FAMILY_GRAD] + slab->param_begin[region];
    lane.in[1] = flat_view(slab, region, ESPER_FAMILY_MOMENT1, count);
    lane.in[2] = flat_view(slab, region, ESPER_FAMILY_MOMENT2, count);
    lane.out[0] = (esper_view){.data = norm, .count = 1, .rank = 1, .dim = {1, 1, 1, 1}};
    lane.out[1] = (esper_view){.data = partial, .count = region_chunks(slab, region), .rank = 1, .dim = {1, 1, 1, 1}};
    return lane;
}

static esper_status take_tables(esper_optim *optim, const esper_optim_desc *desc)
{
    size_t n_groups = (size_t)count_groups(desc->slabs, desc->n_slabs);
    size_t n_chunks = (size_t)count_chunks(desc->slabs, desc->n_slabs);
    void *memory;

    optim->first = esper_mem_alloc((size_t)(desc->n_slabs + 1) * sizeof(*optim->first));
    optim->groups = esper_mem_alloc(n_groups * sizeof(*optim->groups));
    optim->lanes = esper_mem_alloc(n_groups * sizeof(*optim->lanes));
    if (optim->first == NULL || optim->groups == NULL || optim->lanes == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "optimiser of %zu groups", n_groups);
    ESPER_TRY(esper_backend_alloc(optim->backend, n_groups * sizeof(double), &memory));
    optim->norms = memory;
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
            group->lane = group_lane(slab, r, &group->settings, &optim->norms[g], partial);
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
    if (optim->norms != NULL)
        esper_backend_release(optim->backend, optim->norms);
    if (optim->partials != NULL)
        esper_backend_release(optim->backend, optim->partials);
    esper_mem_free(optim);
}

static optim_group *group_of(const esper_optim *optim, int network, int region)
{
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

double esper_optim_norm(const esper_optim *optim, int network, int region)
{
    return optim->norms[optim->first[network] + region];
}

esper_status esper_optim_step(esper_optim *optim)
{
    esper_launch launch = {.kind = ESPER_OP_GRAD_NORM, .direction = ESPER_FORWARD, .lanes = optim->lanes};

    for (int g = 0; g < optim->first[optim->n_networks]; g++) {
        if (!optim->groups[g].on)
            continue;
        optim->groups[g].settings.t++;
        optim->lanes[launch.n_lanes++] = optim->groups[g].lane;
    }
    if (launch.n_lanes == 0)
        return ESPER_OK;
    ESPER_TRY(esper_backend_enqueue(optim->backend, &launch));
    launch.kind = optim->kind;
    return esper_backend_enqueue(optim->backend, &launch);
}
