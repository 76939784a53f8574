/* Successive halving over static networks. */
#include "run/halving.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "tensor/cost.h"

/* ------------------------------------------------------------------------------------------------ drawing */

enum { MOST_DRAWS = 200000, MOST_BLUEPRINTS = 32 };

static bool is_drawn(const esper_halving_set *sets, int n, const esper_halving_set *set)
{
    for (int i = 0; i < n; i++)
        if (memcmp(sets[i].blueprint, set->blueprint, sizeof(set->blueprint)) == 0)
            return true;
    return false;
}

/* Each slot has one of its blueprints or none, all alike: so every set is as likely as any other. Those that are too large, or are
 * there already, are drawn again. */
esper_status esper_halving_draw(const esper_slots *slots, const esper_host *host, const esper_halving_room *room,
                                uint64_t seed, esper_halving_set sets_out[ESPER_HALVING_NETWORKS], int *n_out)
{
    const esper_blueprint *const *list = esper_blueprint_list(host->topology);
    int64_t params[ESPER_MAX_SLOTS][MOST_BLUEPRINTS];
    double flops[MOST_BLUEPRINTS][ESPER_MAX_SLOTS] = {{0.0}};
    int8_t fit[ESPER_MAX_SLOTS][MOST_BLUEPRINTS];
    int n_fit[ESPER_MAX_SLOTS] = {0}, n = 0;
    char text[ESPER_CONFIG_TEXT_CHARS];
    esper_status status;
    esper_net plain;
    esper_rng rng;

    esper_net_init(&plain);
    status = esper_host_build(host, &plain);
    for (int k = 0; status == ESPER_OK && k < slots->n; k++)
        for (int b = 0; list[b] != NULL; b++) {
            assert(b < MOST_BLUEPRINTS);
            params[k][b] = esper_splice_count_seed(list[b], &plain, slots->slot[k].id);
            if (params[k][b] >= 0 && strcmp(list[b]->name, "noop") != 0)
                fit[k][n_fit[k]++] = (int8_t)b;
        }
    esper_net_fini(&plain);
    ESPER_TRY(status);
    for (int b = 0; room->flops >= 0.0 && list[b] != NULL; b++)
        ESPER_TRY(esper_splice_count_flops(host, slots, list[b], flops[b]));
    esper_rng_init(&rng, &(esper_rng_key){.seed = seed, .purpose = ESPER_RNG_SEARCH});
    for (int draw = 0; draw < MOST_DRAWS && n < ESPER_HALVING_NETWORKS; draw++) {
        esper_halving_set *set = &sets_out[n];
        double set_flops = 0.0;

        set->params = 0;
        memset(set->blueprint, -1, sizeof(set->blueprint));
        for (int k = 0; k < slots->n; k++) {
            uint32_t which = esper_rng_below(&rng, (uint32_t)n_fit[k] + 1);
            int behind = esper_slots_behind(slots, k); /* that comes first in the table */
            bool open = esper_slots_is_open(slots, k) || set->blueprint[behind] >= 0;

            if (which == (uint32_t)n_fit[k] || !open || !esper_slot_is_empty(&slots->slot[k]))
                continue;
            set->blueprint[k] = fit[k][which];
            set->params += params[k][set->blueprint[k]];
            set_flops += flops[set->blueprint[k]][k];
        }
        if ((room->params < 0 || set->params <= room->params) && (room->flops < 0.0 || set_flops <= room->flops) &&
            !is_drawn(sets_out, n, set) && esper_halving_text(set, slots, host->topology, text))
            n++;
    }
    *n_out = n;
    return ESPER_OK;
}

bool esper_halving_text(const esper_halving_set *set, const esper_slots *slots, esper_topology topology,
                        char text[ESPER_CONFIG_TEXT_CHARS])
{
    const esper_blueprint *const *list = esper_blueprint_list(topology);
    size_t used = 0;

    text[0] = '\0';
    for (int k = 0; k < slots->n && used < ESPER_CONFIG_TEXT_CHARS; k++)
        if (set->blueprint[k] >= 0)
            used += (size_t)snprintf(text + used, ESPER_CONFIG_TEXT_CHARS - used, "%s%s:%s", used > 0 ? "," : "",
                                     slots->slot[k].id, list[set->blueprint[k]]->name);
    return used < ESPER_CONFIG_TEXT_CHARS;
}

/* ------------------------------------------------------------------------------------------------ rounds */

typedef struct candidate {
    esper_network *network;
    char           plant[ESPER_CONFIG_TEXT_CHARS];
    double         loss; /* when it was last measured; one that is no number is the worst */
} candidate;

typedef struct search {
    const esper_halving_desc *desc;
    esper_engine             *engine;
    candidate                 all[ESPER_HALVING_NETWORKS]; /* the best first, those that are out behind them */
    int                       n, n_rounds;
    double                    budget, spent;
} search;

/* As the configuration plants them. It has no budget of its own: the rate is held, whatever was spent. */
static esper_status add_networks(search *self, const esper_network *plain)
{
    const esper_config *config = &self->engine->config;
    int64_t params = esper_net_count_params(&plain->net, -1), most = esper_engine_params_limit(config);
    double flops = esper_net_flops(&plain->net);
    esper_halving_room room = {.params = most > 0 ? (most > params ? most - params : 0) : -1,
                               .flops = config->max_flops > 0.0 ? fmax(config->max_flops - flops, 0.0) : -1.0};
    esper_topology topology = self->engine->host.topology;
    esper_halving_set sets[ESPER_HALVING_NETWORKS];

    ESPER_TRY(esper_halving_draw(&plain->slots, &self->engine->host, &room, plain->seed, sets, &self->n));
    assert(self->n >= 1); /* the host alone is one of them */
    for (int i = 0; i < self->n; i++) {
        candidate *one = &self->all[i];

        esper_halving_text(&sets[i], &plain->slots, topology, one->plant);
        memcpy(self->engine->config.plant, one->plant, sizeof(one->plant));
        ESPER_TRY(esper_network_add(self->engine, plain->seed, plain->stream, &one->network));
        one->network->budget = UINT64_MAX / 2;
    }
    for (self->n_rounds = 1; 1 << (self->n_rounds - 1) < self->n;)
        self->n_rounds++;
    return ESPER_OK;
}

static esper_status train(search *self, esper_network *network, uint64_t n_steps)
{
    for (uint64_t i = 0; i < n_steps; i++) {
        if (self->desc->step != NULL)
            ESPER_TRY(self->desc->step(self->desc->context));
        if (esper_network_epoch_done(network))
            esper_network_next_epoch(network);
        ESPER_TRY(esper_network_step(network));
    }
    return ESPER_OK;
}

/* One network's part of a round: held, then falling, then measured. */
static esper_status play(search *self, candidate *one, double flops)
{
    esper_network *network = one->network;
    uint64_t before = network->cursor.spent;
    uint64_t n_steps = (uint64_t)fmax(floor(flops / (double)network->step_cost), 1.0);
    uint64_t n_fall = (uint64_t)fmax(self->engine->config.fall * (double)n_steps, 1.0);
    esper_tally tally;

    ESPER_TRY(train(self, network, n_steps - n_fall));
    network->descent = (esper_descent){esper_network_rate(network), network->cursor.step, n_fall};
    ESPER_TRY(train(self, network, n_fall));
    network->descent = (esper_descent){0};
    ESPER_TRY(esper_network_evaluate(network, ESPER_SPLIT_VALID, NULL, &tally));
    one->loss = isfinite(esper_tally_loss(&tally)) ? esper_tally_loss(&tally) : (double)INFINITY;
    self->spent += (double)(network->cursor.spent - before);
    return ESPER_OK;
}

/* The first of equals stays the first. */
static void rank(candidate *all, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && all[j].loss < all[j - 1].loss; j--) {
            candidate other = all[j];

            all[j] = all[j - 1];
            all[j - 1] = other;
        }
}

static esper_status play_round(search *self, int round)
{
    double flops = self->budget / self->n_rounds / self->n;

    for (int i = 0; i < self->n; i++)
        ESPER_TRY(play(self, &self->all[i], flops));
    rank(self->all, self->n);
    esper_log_write(self->desc->log, ESPER_LOG_INFO,
                    "halving: round %d of %d, %d networks: loss %.4f to %.4f, the best is %s", round + 1,
                    self->n_rounds, self->n, self->all[0].loss, self->all[self->n - 1].loss,
                    self->all[0].plant[0] != '\0' ? self->all[0].plant : "the host");
    while (self->n > 1 && self->n > 1 << (self->n_rounds - 2 - round)) {
        esper_network_remove(self->all[--self->n].network);
        self->all[self->n].network = NULL;
    }
    return ESPER_OK;
}

esper_status esper_halving_search(const esper_halving_desc *desc, esper_network **network, double *spent_out)
{
    search *self = esper_mem_alloc(sizeof(*self));
    esper_network *plain = *network, *winner;
    esper_status status;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "networks to search among");
    assert(plain->cursor.step == 0 && plain->budget > 0);
    self->desc = desc;
    self->engine = plain->engine;
    self->budget = (double)plain->budget;
    status = add_networks(self, plain);
    for (int round = 0; status == ESPER_OK && round < self->n_rounds - 1; round++)
        status = play_round(self, round);
    if (status == ESPER_OK) {
        winner = self->all[0].network;
        winner->budget = winner->cursor.spent + (uint64_t)fmax(self->budget - self->spent, 1.0);
        memcpy(self->engine->config.plant, self->all[0].plant, sizeof(self->all[0].plant));
        *spent_out = self->spent;
        *network = winner;
        self->all[0].network = plain;
    } else {
        self->engine->config.plant[0] = '\0';
    }
    for (int i = 0; i < ESPER_HALVING_NETWORKS; i++)
        esper_network_remove(self->all[i].network);
    esper_mem_free(self);
    return status;
}
