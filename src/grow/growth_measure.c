/* What growth measures: accuracies of coalitions, gradients of seeds, and what an empty slot promises. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "grow/growth_internal.h"

/* FLOPs of the present program; looked up when it has changed. */
void growth_count_flops(esper_growth *growth)
{
    growth_measuring *measuring = &growth->measuring;
    const esper_network *network = growth->network;
    double none;

    if (measuring->counted_program == network->program && measuring->step_flops > 0.0)
        return;
    measuring->step_flops = (double)network->step_cost;
    if (esper_evaluator_flops(measuring->evaluator, NULL, 0, &measuring->sample_flops, &none) != ESPER_OK)
        measuring->sample_flops =
            esper_plan_stats_of(network->plan).forward.flops / esper_engine_max_samples(network->engine);
    measuring->counted_program = network->program;
}

/* ------------------------------------------------------------------------------------------------ gradients */

void growth_charge(esper_growth *growth, double flops)
{
    growth->facts.flops += flops;
    esper_network_charge(growth->network, flops);
}

static const esper_guard_group *find_group(const esper_guard_report *report, const char *name)
{
    for (size_t i = 0; i < report->n_groups; i++)
        if (report->groups[i].role == ESPER_GUARD_ROLE_GRAD && strcmp(report->groups[i].name, name) == 0)
            return &report->groups[i];
    return NULL;
}

/* A seed whose gradients say something: one that learns and is not kept yet. */
static bool is_looked_at(const esper_slot *slot)
{
    return slot->stage == ESPER_STAGE_TRAINING || slot->stage == ESPER_STAGE_BLENDING ||
           slot->stage == ESPER_STAGE_HOLDING;
}

bool growth_wants_gradients(void *context)
{
    const esper_slots *slots = &((const esper_growth *)context)->network->slots;

    for (int k = 0; k < slots->n; k++)
        if (is_looked_at(&slots->slot[k]))
            return true;
    return false;
}

/* Called for every step with good gradients: the scan that guards is the one that measures. */
void growth_watch_gradients(void *context, const esper_row *row, const esper_guard_report *report)
{
    esper_growth *growth = context;
    const esper_network *network = growth->network;
    const esper_guard_group *host;

    growth_count_flops(growth);
    growth->facts.flops += growth->measuring.step_flops * row->n_total / network->engine->config.batch;
    if (report == NULL)
        return;
    host = find_group(report, "host");
    for (int k = 0; k < network->slots.n; k++) {
        const esper_guard_group *group = find_group(report, network->slots.slot[k].id);
        growth_seed *seed = &growth->state.seed[k];

        if (!is_looked_at(&network->slots.slot[k]))
            continue;
        if (group == NULL || host == NULL || !group->measured)
            continue; /* no gradients: that is neither healthy nor ill */
        seed->sample[0] = group->norm;
        seed->sample[1] = group->health;
        seed->sample[2] = esper_guard_ratio(group, host);
        seed->vanishing = group->n_vanishing > 0;
        seed->exploding = group->n_exploding > 0;
        seed->sampled = 1;
    }
}

/* ------------------------------------------------------------------------------------------------ coalitions */

/* Which coalitions, over which slice, and whether in this epoch at all. */
static esper_status plan_coalitions(esper_growth *growth, esper_variant *variants, uint32_t *n_slice_out,
                                    double *flops_out)
{
    growth_measuring *measuring = &growth->measuring;
    const esper_network *network = growth->network;
    esper_attribution_options options;
    esper_attribution_cost cost = {
        .share = network->engine->config.attribution,
        .batch = (uint32_t)network->engine->config.batch,
        .n_batches = esper_engine_batches(network->engine, ESPER_SPLIT_VALID),
        .min_samples = ESPER_ATTRIBUTION_MIN_SAMPLES,
    };
    double each[ESPER_MAX_COALITIONS], whole;
    esper_attribution_pace pace;

    esper_attribution_options_init(&options);
    options.include_fossils =
        network->cursor.epoch + 1 >= esper_network_epochs(network) /* for the report */ ||
        growth->deciding.reward_config.drip_fraction > 0.0; /* kept seeds earn what they still bring */
    esper_attribution_plan_make(&network->slots, &options, &measuring->plan);
    *n_slice_out = 0;
    if (measuring->plan.n_coalitions == 0)
        return ESPER_OK;
    for (int i = 0; i < measuring->plan.n_coalitions; i++)
        memcpy(variants[i].presence, measuring->plan.coalition[i].presence, sizeof(variants[i].presence));
    ESPER_TRY(esper_evaluator_flops(measuring->evaluator, variants, measuring->plan.n_coalitions, &whole, each));
    for (int i = 0; i < measuring->plan.n_coalitions; i++)
        cost.variant_flops += each[i];
    growth_count_flops(growth);
    cost.training_flops = measuring->step_flops * network->engine->steps_per_epoch;
    pace = esper_attribution_budget(&cost);
    *flops_out = cost.variant_flops;
    if (esper_attribution_is_due(pace, network->cursor.epoch + 1))
        *n_slice_out = pace.n_slice;
    return ESPER_OK;
}

/* What the network would lose without any seed on probation: the coalition of fossils alone. */
static void take_probation(esper_growth *growth, const esper_attribution_reading *readings)
{
    growth_measuring *measuring = &growth->measuring;
    const esper_slots *slots = &growth->network->slots;
    uint32_t fossils = 0, all = 0;

    for (int i = 0; i < measuring->plan.n_participants; i++) {
        all |= 1u << i;
        if (slots->slot[measuring->plan.participant[i]].stage == ESPER_STAGE_FOSSILIZED)
            fossils |= 1u << i;
        else
            measuring->n_probation++;
    }
    if (fossils == all)
        measuring->probation = 0.0;
    for (int i = 0; i < measuring->plan.n_coalitions; i++)
        if (measuring->plan.coalition[i].trial < 0 && measuring->plan.coalition[i].on == fossils)
            measuring->probation = readings[i].difference;
}

static void take_results(esper_growth *growth, const esper_variant_result *results, double flops)
{
    growth_measuring *measuring = &growth->measuring;
    esper_attribution_reading readings[ESPER_MAX_COALITIONS];

    assert(measuring->plan.n_coalitions > 0 && measuring->plan.n_coalitions <= ESPER_MAX_COALITIONS);
    for (int i = 0; i < measuring->plan.n_coalitions; i++)
        readings[i] = (esper_attribution_reading){.difference = results[i].difference,
                                                  .error = results[i].error,
                                                  .accuracy = esper_tally_accuracy(&results[i].tally),
                                                  .n_samples = results[i].n_samples};
    esper_attribution_take(&measuring->plan, readings, &measuring->found);
    take_probation(growth, readings);
    measuring->measured = true;
    growth_charge(growth, flops * (double)results[0].n_samples);
}

esper_status esper_growth_validate(esper_growth *growth, const esper_follower *follower,
                                   const esper_growth_settler *settler, esper_tally *tally_out)
{
    growth_measuring *measuring = &growth->measuring;
    esper_variant *variants = esper_mem_alloc(ESPER_MAX_COALITIONS * sizeof(*variants));
    esper_variant_result *results = esper_mem_alloc(ESPER_MAX_COALITIONS * sizeof(*results));
    uint32_t n_slice = 0;
    double flops = 0.0;
    bool good = true;
    esper_status status = variants != NULL && results != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "coalitions");

    measuring->measured = false;
    measuring->probation = (double)NAN;
    measuring->n_probation = 0;
    growth->spent_before = growth->network->cursor.spent;
    if (status == ESPER_OK)
        status = plan_coalitions(growth, variants, &n_slice, &flops);
    if (status == ESPER_OK)
        status = esper_evaluator_run(
            measuring->evaluator, esper_engine_batches(growth->network->engine, ESPER_SPLIT_VALID), variants,
            n_slice > 0 ? measuring->plan.n_coalitions : 0, n_slice, follower, tally_out, results);
    if (status == ESPER_OK && settler != NULL)
        status = settler->settle(settler->context, &good);
    if (status == ESPER_OK && good && n_slice > 0)
        take_results(growth, results, flops);
    esper_mem_free(variants);
    esper_mem_free(results);
    growth->follower = follower != NULL ? *follower : (esper_follower){0};
    if (status == ESPER_OK && good && !growth->deciding.tries)
        status = growth_probe(growth);
    if (status != ESPER_OK)
        growth->network->cursor.spent = growth->spent_before; /* it is measured once more */
    return status;
}

/* ------------------------------------------------------------------------------------------------ empty slots */

/* Whether somebody wants to know: policies that look at evidence, when no seed is on its way. From the host's first calm epoch
 * on, so that there are readings when it counts as settled and the first seed is to be placed. A replay has no policy, but the
 * same to pay. */
static bool probe_is_due(const esper_growth *growth)
{
    const esper_config *config = &growth->network->engine->config;
    bool asked = growth->deciding.follows || config->policy_cmd[0] != '\0' ||
                 strcmp(config->policy, esper_policy_heuristic.name) == 0;
    uint32_t rests = 1u << ESPER_STAGE_DORMANT | 1u << ESPER_STAGE_FOSSILIZED;
    const esper_slots *slots = &growth->network->slots;

    return asked && (growth->deciding.tracker.state.is_stable || growth->deciding.tracker.state.stable_epochs > 0) &&
           esper_slots_count(slots, rests) == slots->n && esper_slots_count(slots, 1u << ESPER_STAGE_DORMANT) > 0;
}

/* As many batches as the budget for measuring allows; two at least have to agree, so fewer are none. */
static uint32_t count_probe_batches(esper_growth *growth)
{
    const esper_network *network = growth->network;
    double budget =
        network->engine->config.attribution * growth->measuring.step_flops * network->engine->steps_per_epoch;
    double n = floor(budget / (esper_engine_plan_flops(network->engine, growth->measuring.probe_plan) + 1.0));
    uint32_t most = esper_engine_batches(network->engine, ESPER_SPLIT_VALID);

    while (most > 0 && esper_sampler_batch_total(network->engine->samplers[ESPER_SPLIT_VALID], most - 1) <
                           (uint32_t)network->engine->ranks.size)
        most--; /* a rank without samples would have nothing to say */
    return n < 2.0 || most < 2 ? 0 : n < most ? (uint32_t)n : most;
}

/* The host with a silent linear map in every empty slot. */
static esper_status plan_probe(esper_growth *growth)
{
    growth_measuring *measuring = &growth->measuring;
    esper_network *network = growth->network;
    esper_splice splice = network->splice;
    esper_plan_net net = {.net = &measuring->probe_net, .slab = &network->slab, .pass = &network->pass};
    esper_plan_desc desc = {
        .backend = network->engine->backend,
        .cache = network->engine->plans,
        .nets = &net,
        .n_nets = 1,
        .max_samples = esper_engine_max_samples(network->engine),
        .training = true,
    };
    uint64_t key;

    splice.probes = true;
    key = esper_splice_key(&splice);
    if (measuring->probe_plan != NULL && key == measuring->probe_program)
        return ESPER_OK;
    esper_plan_close(measuring->probe_plan);
    measuring->probe_plan = NULL;
    esper_net_fini(&measuring->probe_net);
    esper_net_init(&measuring->probe_net);
    ESPER_TRY(esper_splice_build(&splice, &network->engine->host, &measuring->probe_net));
    measuring->probe_program = key;
    return esper_plan_open(&desc, &measuring->probe_plan);
}

/* What several batches say of a probe: the sum of their gradients, and the sum of these gradients' squared norms. */
typedef struct probe_sums {
    float *sum;
    double squares;
    bool   found; /* there is a probe */
} probe_sums;

static esper_status add_probes(const esper_growth *growth, probe_sums *sums, float *grad)
{
    const esper_network *network = growth->network;
    char name[ESPER_NAME_CHARS];

    for (int k = 0; k < network->slots.n; k++) {
        const esper_tensor *tensor;
        int t;

        snprintf(name, sizeof(name), "%s.probe.weight", network->slots.slot[k].id);
        t = esper_net_find(&growth->measuring.probe_net, name);
        if (t == ESPER_NO_TENSOR)
            continue;
        tensor = &growth->measuring.probe_net.tensors[t];
        sums[k].found = true;
        ESPER_TRY(esper_backend_copy_out(network->engine->backend, network->stream, grad,
                                         esper_slab_at(&network->slab, ESPER_FAMILY_GRAD, tensor),
                                         (size_t)tensor->count * sizeof(*grad)));
        ESPER_TRY(esper_network_wait(network));
        ESPER_TRY(esper_ranks_sum_f32(&network->engine->ranks, grad, (size_t)tensor->count));
        for (int64_t i = 0; i < tensor->count; i++) {
            sums[k].sum[i] += grad[i];
            sums[k].squares += (double)grad[i] * (double)grad[i];
        }
    }
    return ESPER_OK;
}

/* How far the loss would fall if the probe were trained: 1/2 g' F^-1 g, of the gradient g of its weights and their Fisher
 * information F, which is taken for the same in all directions: the variance of a sample's gradient, spread over the weights.
 * It has no unit, so slots of any size, depth and scale can be compared by it. The squared norm of a batch's gradient is mostly
 * noise; what two batches agree on is not, so it is estimated by the mean product of two different ones. Below 0 there is nothing
 * but noise. */
static double expected_fall(const float *sum, int64_t n_weights, double squares, double n_batches, double n_samples)
{
    double of_sum = 0.0, signal, noise;

    assert(n_batches > 1.0 && n_samples > 0.0);
    for (int64_t i = 0; i < n_weights; i++)
        of_sum += (double)sum[i] * (double)sum[i];
    signal = (of_sum - squares) / (n_batches * (n_batches - 1.0));
    noise = n_samples * (squares / n_batches - signal); /* of one sample */
    return noise > 0.0 ? 0.5 * (double)n_weights * signal / noise : 0.0;
}

/* What a map there costs, as a part of the network it joins: FLOPs of a sample's forward pass. */
static double relative_cost(const esper_growth *growth, const esper_slot *slot, int64_t n_weights)
{
    const esper_net *net = &growth->measuring.probe_net;

    for (int i = 0; i < net->n_boundaries; i++) {
        const esper_boundary *boundary = &net->boundaries[i];

        if (strcmp(boundary->slot, slot->id) == 0) {
            double places = (double)(net->tensors[boundary->tensor].count / boundary->channels);

            return 2.0 * (double)n_weights * places / fmax(growth->measuring.sample_flops, 1.0);
        }
    }
    return 1.0;
}

/* The fall for its cost: early slots see many places, where the same fall is paid for by more computing. */
static void take_evidence(esper_growth *growth, const probe_sums *sums, uint32_t n_batches)
{
    for (int k = 0; k < growth->network->slots.n; k++) {
        const esper_slot *slot = &growth->network->slots.slot[k];
        int64_t n_weights = esper_splice_count_probe(growth->network->engine->host.topology, slot->channels);

        if (!esper_slot_is_empty(slot) || !sums[k].found)
            continue;
        if (n_batches > 1)
            growth->measuring.probed[k] = expected_fall(sums[k].sum, n_weights, sums[k].squares, n_batches,
                                                        growth->network->engine->config.batch) /
                                          relative_cost(growth, slot, n_weights);
        esper_network_clear_region(growth->network, k);
    }
}

static esper_status run_probe(esper_growth *growth, probe_sums *sums, float *grad)
{
    growth_measuring *measuring = &growth->measuring;
    esper_network *network = growth->network;
    uint32_t n = count_probe_batches(growth);
    double flops = esper_engine_plan_flops(network->engine, measuring->probe_plan);

    for (uint32_t batch = 0; batch < n; batch++) {
        ESPER_TRY(esper_network_load(network, measuring->probe_plan, &measuring->probe_net, ESPER_SPLIT_VALID, batch));
        network->pass.training = true; /* batch statistics: the ones that gradients go through */
        ESPER_TRY(esper_plan_gradients_one(measuring->probe_plan, network->stream, 0));
        ESPER_TRY(add_probes(growth, sums, grad));
        growth_charge(growth, flops * esper_network_n_loaded(network) / network->engine->config.batch);
    }
    take_evidence(growth, sums, n);
    return ESPER_OK;
}

/* The norm buffers are put back: a probe leaves nothing behind but its readings. */
esper_status growth_probe(esper_growth *growth)
{
    growth_measuring *measuring = &growth->measuring;
    esper_network *network = growth->network;
    const esper_slots *slots = &network->slots;
    size_t bytes = (size_t)esper_slab_count(&network->slab, ESPER_FAMILY_BUFFER) * sizeof(float);
    probe_sums sums[ESPER_MAX_SLOTS] = {{0}};
    float *memory; /* for each slot as much as the largest takes, and once more for the gradient of a batch */
    size_t most = 0;
    esper_status status, put_back;

    for (int k = 0; k < ESPER_MAX_SLOTS; k++)
        measuring->probed[k] = (double)NAN;
    if (!probe_is_due(growth))
        return ESPER_OK;
    for (int k = 0; k < slots->n; k++) {
        size_t n = (size_t)esper_splice_count_probe(network->engine->host.topology, slots->slot[k].channels);

        most = n > most ? n : most;
    }
    memory = esper_mem_alloc(((size_t)slots->n + 1) * most * sizeof(*memory));
    if (memory == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "probe of %d slots", slots->n);
    for (int k = 0; k < slots->n; k++)
        sums[k].sum = memory + (size_t)k * most;
    status = esper_backend_copy(network->engine->backend, network->stream, measuring->buffers,
                                network->slab.family[ESPER_FAMILY_BUFFER], bytes);
    if (status == ESPER_OK) {
        status = plan_probe(growth);
        if (status == ESPER_OK)
            status = run_probe(growth, sums, memory + (size_t)slots->n * most);
        put_back = esper_backend_copy(network->engine->backend, network->stream,
                                      network->slab.family[ESPER_FAMILY_BUFFER], measuring->buffers, bytes);
        status = status != ESPER_OK ? status : put_back;
    }
    esper_mem_free(memory);
    return status;
}

/* ------------------------------------------------------------------------------------------------ into the slots */

/* Contributions, and bounds on them while the seed is fully blended in: those at less weight are of another network. */
static void take_contributions(esper_growth *growth)
{
    growth_measuring *measuring = &growth->measuring;
    esper_slots *slots = &growth->network->slots;
    uint32_t measured = 0;

    for (int k = 0; k < slots->n; k++) {
        const esper_estimate *found = &measuring->found.contribution[k];
        esper_slot *slot = &slots->slot[k];

        if (slot->stage != ESPER_STAGE_HOLDING)
            esper_bound_reset(&growth->state.seed[k].bound);
        if (!measuring->measured || isnan(found->value) || slot->stage == ESPER_STAGE_FOSSILIZED)
            continue;
        esper_slot_set_contribution(slot, found->value);
        if (slot->stage == ESPER_STAGE_HOLDING)
            esper_bound_add(&growth->state.seed[k].bound, found->value, found->error);
        measured |= 1u << k;
    }
    if (!measuring->measured)
        return;
    for (int k = 0; k < slots->n; k++)
        if (esper_slot_is_active(&slots->slot[k]))
            esper_slot_clear_interactions(&slots->slot[k]);
    for (int i = 0; i < measuring->found.n_synergies; i++) {
        esper_slot_add_interaction(&slots->slot[measuring->found.synergy[i].first], measuring->found.synergy[i].value);
        esper_slot_add_interaction(&slots->slot[measuring->found.synergy[i].second], measuring->found.synergy[i].value);
    }
    esper_slots_sum_neighbours(slots, measured);
}

/* Each seed that was removed there halves it: what was tried in vain is evidence too. */
double growth_evidence(const esper_growth *growth, int slot)
{
    double promise = growth->state.promise[slot];

    return isnan(promise) ? promise : ldexp(fmax(promise, 0.0), -growth->network->slots.slot[slot].n_seeds);
}

void growth_take_readings(esper_growth *growth, const esper_epoch_record *record)
{
    esper_slots *slots = &growth->network->slots;

    for (int k = 0; k < slots->n;
         k++) { /* smoothed from epoch to epoch: one probe of a settled host is still half noise */
        double *promise = &growth->state.promise[k], probed = growth->measuring.probed[k];

        if (!isnan(probed))
            *promise = isnan(*promise) ? probed : 0.7 * *promise + 0.3 * probed;
    }
    take_contributions(growth);
    for (int k = 0; k < slots->n; k++) { /* the epoch's last look at a seed's gradients becomes the slot's */
        growth_seed *seed = &growth->state.seed[k];

        if (!esper_slot_is_active(&slots->slot[k]))
            continue;
        (void)esper_slot_record_accuracy(&slots->slot[k], record->acc_valid); /* the governor has seen to it: finite */
        if (!seed->sampled)
            continue;
        if (isfinite(seed->sample[2])) /* smoothed from epoch to epoch */
            seed->ratio = isnan(seed->ratio) ? seed->sample[2] : 0.9 * seed->ratio + 0.1 * seed->sample[2];
        esper_slot_set_gradient(&slots->slot[k], &(esper_slot_gradient){.norm = seed->sample[0],
                                                                        .health = seed->sample[1],
                                                                        .ratio = seed->ratio,
                                                                        .vanishing = seed->vanishing != 0,
                                                                        .exploding = seed->exploding != 0});
    }
}

/* What takes the place of plain numbers at strict gates. */
esper_slot_merits growth_merits(const esper_growth *growth, int slot)
{
    const esper_bound *bound = &growth->state.seed[slot].bound;
    double lower = esper_bound_lower(bound), gain = growth->measuring.found.trial[slot].value;
    esper_slot_merits merits = {{.how = ESPER_MERIT_NONE}, {.how = ESPER_MERIT_NONE}};

    if (growth->measuring.measured && !isnan(gain))
        merits.improvement = (esper_merit){.value = gain, .how = ESPER_MERIT_TRIAL, .n_epochs = 1};
    if (!isnan(lower))
        merits.contribution =
            (esper_merit){.value = lower, .how = ESPER_MERIT_LOWER_BOUND, .n_epochs = (int32_t)bound->n_epochs};
    return merits;
}
