/* Internal to the tests. A network that grows by a decision file, epoch by epoch, as a run does it but without one. */
#ifndef ESPER_TESTS_GROW_GROWING_H
#define ESPER_TESTS_GROW_GROWING_H

#include <inttypes.h>
#include <math.h>

#include "grow/growth.h"
#include "engine/helpers.h"

/* Epochs of five steps of a millisecond; gates that ask for safety alone. */
#define GROWING                                                                                       \
    "threads = 1\nbatch = 8\nchannels = 4\nblocks = 2\nmax_steps = 5\nlength = epochs\nepochs = 40\n" \
    "gates = permissive\nsnapshot_every = 3\n"

typedef struct garden {
    esper_config       config;
    esper_network *network;
    esper_growth      *growth; /* NULL: a host that stays as it is */
    esper_epoch_record last;
    /* what the guard met, in order */
    esper_incident incidents[16];
    int            n_incidents;
} garden;

static inline void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    fclose(file);
}

/* Opens a garden on the task synth. script NULL: policy none, unless `more` says otherwise. log: path of a decision log, or
 * NULL. On storage that does not move. */
static inline void garden_open(garden *g, const char *more, const char *script, const char *log)
{
    esper_growth_records records = {.decisions = log};

    memset(g, 0, sizeof(*g));
    g->config = config_of("synth", GROWING, "policy = none\n");
    if (script != NULL) {
        write_file("script.txt", script);
        set_keys(&g->config, "policy = scripted\ndecisions = script.txt\n");
    }
    set_keys(&g->config, more);
    check_good(esper_single_open(task_named("synth"), &g->config, ESPER_USE_GROW, &g->network));
    check_good(esper_growth_open(g->network, NULL, NULL, &g->growth));
    check_good(esper_guarded_open(g->network));
    check_good(esper_growth_attach(g->growth, &records));
}

static inline void garden_close(garden *g)
{
    esper_growth_close(g->growth);
    esper_single_close(g->network);
}

static inline void heed(garden *g, const esper_incident *incident)
{
    if (incident->action == ESPER_GOVERNOR_GO)
        return;
    assert_in_range(g->n_incidents, 0, 15);
    g->incidents[g->n_incidents++] = *incident;
    check_good(esper_growth_heed(g->growth, incident));
}

/* The steps of the cursor's epoch that are left; more, where the guard goes back. */
static inline void train_epoch(garden *g)
{
    esper_incident incident;

    while (g->network->cursor.batch < g->network->engine->steps_per_epoch) {
        check_good(esper_guarded_step(g->network, &incident));
        heed(g, &incident);
        if (incident.action == ESPER_GOVERNOR_STOP)
            return;
    }
}

/* Measures the epoch that has been trained. */
static inline esper_epoch_record measure_epoch(garden *g)
{
    esper_tally valid;

    check_good(esper_network_read(g->network));
    check_good(esper_growth_validate(g->growth, NULL, NULL, &valid));
    return (esper_epoch_record){.epoch = g->network->cursor.epoch + 1,
                                .loss_train = esper_tally_loss(&g->network->tally),
                                .acc_train = esper_tally_accuracy(&g->network->tally),
                                .loss_valid = esper_tally_loss(&valid),
                                .acc_valid = esper_tally_accuracy(&valid)};
}

static inline esper_status try_epoch(garden *g)
{
    train_epoch(g);
    g->last = measure_epoch(g);
    ESPER_TRY(esper_growth_end_epoch(g->growth, &g->last));
    esper_network_next_epoch(g->network);
    return ESPER_OK;
}

/* Until so many epochs are over. */
static inline void grow_until(garden *g, uint32_t n_epochs)
{
    while (g->network->cursor.epoch < n_epochs)
        check_good(try_epoch(g));
}

static inline const esper_slot *slot_at(const garden *g, int k)
{
    return &g->network->slots.slot[k];
}

static inline void check_stage(const garden *g, int k, int stage)
{
    if (slot_at(g, k)->stage != stage)
        fail_msg("after %u epochs slot %s is %s, expected %s (%s)", g->network->cursor.epoch, slot_at(g, k)->id,
                 esper_stage_name(slot_at(g, k)->stage), esper_stage_name(stage),
                 esper_growth_look_at(g->growth).refusal);
}

/* ---- memory of regions: 0 is the host, k + 1 the seed of slot k ---- */

static inline float *region_of(const esper_network *network, int family, int region, size_t *n_out)
{
    const esper_slab *slab = &network->slab;
    const int64_t *begin = family == ESPER_FAMILY_BUFFER ? slab->buffer_begin : slab->param_begin;

    *n_out = slab->family[family] != NULL ? (size_t)(begin[region + 1] - begin[region]) : 0;
    return *n_out > 0 ? slab_values(slab, (esper_family)family) + begin[region] : NULL;
}

/* Weights, moments and norm buffers of a region are the same bits in both. */
static inline void check_same_region(const esper_network *a, const esper_network *b, int region, const char *what)
{
    for (int f = 0; f < ESPER_N_FAMILIES; f++) {
        size_t n, m;
        const float *x = region_of(a, f, region, &n), *y = region_of(b, f, region, &m);

        if (f == ESPER_FAMILY_GRAD)
            continue;
        assert_int_equal(n, m);
        for (size_t i = 0; i < n; i++)
            if (memcmp(&x[i], &y[i], sizeof(float)) != 0)
                fail_msg("%s: step %" PRIu64 ": %s %zu of region %d: %.9g and %.9g", what, a->cursor.step,
                         esper_family_name((esper_family)f), i, region, (double)x[i], (double)y[i]);
    }
}

static inline bool region_is_zero(const esper_network *network, int region)
{
    for (int f = 0; f < ESPER_N_FAMILIES; f++) {
        size_t n;
        const float *x = region_of(network, f, region, &n);

        for (size_t i = 0; i < n; i++)
            if (x[i] != 0.0f)
                return false;
    }
    return true;
}

#endif
