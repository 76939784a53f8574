/* The ground on which seeds are tried: forks of the run, trained and validated beside each other (policy/trials.h).
 *
 * While a trial lasts the run stands still: nothing of it changes but what it has spent. A fork has the run's weights, moments,
 * cursor and data, and its seed is born as it would be in the run, so the winner begins there with its fork's bits. One that is
 * not finite loses, and nobody goes back. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "engine/set.h"
#include "policy/mask.h"
#include "grow/growth_internal.h"

enum {
    FORKS_AT_A_TIME = 8, /* each has activations of its own */
    STEPS_AT_A_TIME = 8, /* between looks at who follows */
    /* Of a trial that is asked for: */
    PARTS_OF_RUN = 100,
    LEAST_STEPS = 12,
};

/* A round of a trial. */
typedef struct trial_round {
    esper_growth  *growth;
    uint32_t       n_steps;
    int            n_forks, n_done; /* of the round; whose training is over */
    uint64_t       spent; /* FLOPs, when the forks at hand were made */
    esper_request  requests[FORKS_AT_A_TIME];
    esper_network *networks[FORKS_AT_A_TIME];
    float         *nothing; /* (samples) losses of the fork that got nothing */
    float         *losses;  /* (forks at a time, samples) */
    size_t         n_samples; /* that a rank has at most */
} trial_round;

/* ------------------------------------------------------------------------------------------------ forks */

/* The slots of the run with the fork's seed in its place. */
static esper_status seed_slots(const esper_growth *growth, const esper_fork *fork, esper_slots *slots)
{
    const esper_merit untested = {.value = 1.0, .how = ESPER_MERIT_FORKS};
    esper_gate_result result;
    esper_decision decision;

    *slots = growth->network->slots;
    if (fork->slot < 0)
        return ESPER_OK;
    esper_decision_init(&decision, ESPER_SLOT_OP_GERMINATE);
    decision.blueprint = fork->blueprint;
    decision.style = ESPER_STYLE_LINEAR_ADD;
    decision.birth = (int32_t)growth->network->engine->config.birth;
    ESPER_TRY(growth_put_seed(growth, &slots->slot[fork->slot], &decision, NULL));
    return esper_slot_join(&slots->slot[fork->slot], &untested, NULL, &result);
}

static esper_status open_fork(trial_round *self, const esper_fork *fork, esper_network **network_out)
{
    esper_network *parent = self->growth->network, *network = NULL;
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    esper_status status;

    if (slots == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "slots of a fork");
    status = seed_slots(self->growth, fork, slots);
    if (status == ESPER_OK)
        status = esper_network_fork(parent, slots, &network);
    if (status == ESPER_OK && fork->slot >= 0)
        status = esper_network_bear(network, fork->slot);
    esper_mem_free(slots);
    if (status != ESPER_OK) {
        esper_network_remove(network);
        return status;
    }
    network->descent =
        (esper_descent){.lr = esper_network_rate(parent), .from = network->cursor.step, .n_steps = self->n_steps};
    if (esper_network_epoch_done(network))
        esper_network_next_epoch(network);
    *network_out = network;
    return ESPER_OK;
}

static esper_status train_forks(trial_round *self, int n)
{
    esper_engine *engine = self->growth->network->engine;
    const esper_network *first = self->networks[0]; /* all have the same batches before them */
    const esper_descent *descent = &first->descent;
    const esper_follower *follower = &self->growth->follower;
    esper_incident incidents[FORKS_AT_A_TIME];

    while (first->cursor.step - descent->from < descent->n_steps) {
        uint32_t done = (uint32_t)(first->cursor.step - descent->from), left = self->n_steps - done;

        if (follower->batch != NULL)
            follower->batch(follower->context, ESPER_SPLIT_TRAIN,
                            (uint32_t)self->n_done * self->n_steps + (uint32_t)n * done,
                            (uint32_t)self->n_forks * self->n_steps);
        if (follower->stop != NULL && *follower->stop != 0)
            return ESPER_FAIL(ESPER_E_STOPPED, "a trial");
        ESPER_TRY(
            esper_engine_step(engine, self->networks, n, left < STEPS_AT_A_TIME ? left : STEPS_AT_A_TIME, incidents));
        for (int i = 0; i < n; i++)
            if (esper_network_epoch_done(self->networks[i]))
                esper_network_next_epoch(self->networks[i]);
    }
    self->n_done += n;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ losses */

/* Gain and error, over the samples of all ranks. */
static esper_status pair_losses(const trial_round *self, const float *losses, size_t n, esper_fork *fork)
{
    double sums[3] = {0.0, 0.0, (double)n}, mean, variance;

    for (size_t i = 0; i < n; i++) {
        double gain = (double)self->nothing[i] - (double)losses[i];

        sums[0] += gain;
        sums[1] += gain * gain;
    }
    ESPER_TRY(esper_ranks_sum(&self->growth->network->engine->ranks, sums, 3));
    mean = sums[0] / sums[2];
    variance = fmax(sums[1] / sums[2] - mean * mean, 0.0);
    fork->gain = mean;
    fork->error = sqrt(variance / fmax(sums[2] - 1.0, 1.0));
    return ESPER_OK;
}

/* Samples of a request that fall to this rank. */
static size_t count_part(const esper_request *request)
{
    const esper_sampler *sampler = request->network->engine->samplers[request->split];
    size_t n = 0;

    for (uint32_t batch = 0; batch < request->n_batches; batch++)
        n += esper_sampler_batch_count(sampler, batch);
    return n;
}

/* What came of a fork that was trained and validated. */
static esper_status take_result(trial_round *self, int i, esper_fork *fork)
{
    const esper_request *request = &self->requests[i];
    double flops =
        (double)(request->network->cursor.spent - self->spent) + fork->sample_flops * (double)request->tally.samples;
    size_t n = count_part(request);

    fork->step_flops = (double)request->network->step_cost; /* was an estimate: the next round is paid exactly */
    fork->n_steps = self->n_steps;
    fork->n_samples = (uint32_t)request->tally.samples;
    fork->loss = esper_tally_loss(&request->tally);
    fork->flops += flops;
    fork->weights = esper_network_hash(request->network);
    growth_charge(self->growth, flops);
    self->growth->deciding.flops_beside += flops;
    if (fork->slot < 0)
        memcpy(self->nothing, request->losses, n * sizeof(*self->nothing));
    return pair_losses(self, request->losses, n, fork);
}

static esper_status run_group(trial_round *self, esper_fork *forks, int n, uint32_t n_batches)
{
    esper_engine *engine = self->growth->network->engine;
    esper_status status = ESPER_OK;

    assert(n <= FORKS_AT_A_TIME);
    self->spent = self->growth->network->cursor.spent;
    memset(self->networks, 0, sizeof(self->networks));
    for (int i = 0; status == ESPER_OK && i < n; i++)
        status = open_fork(self, &forks[i], &self->networks[i]);
    if (status == ESPER_OK)
        status = train_forks(self, n);
    for (int i = 0; i < n; i++)
        self->requests[i] = (esper_request){.network = self->networks[i],
                                            .split = ESPER_SPLIT_VALID,
                                            .n_batches = n_batches,
                                            .losses = self->losses + (size_t)i * self->n_samples};
    if (status == ESPER_OK)
        status = esper_engine_evaluate(engine, self->requests, n);
    for (int i = 0; status == ESPER_OK && i < n; i++)
        status = take_result(self, i, &forks[i]);
    for (int i = 0; i < n; i++)
        esper_network_remove(self->networks[i]);
    return status;
}

static esper_status compare(void *context, esper_fork *forks, int n, uint32_t n_steps, uint32_t n_batches)
{
    esper_growth *growth = context;
    const esper_engine *engine = growth->network->engine;
    trial_round *self = esper_mem_alloc(sizeof(*self));
    esper_status status = ESPER_OK;

    assert(n > 0 && n_batches > 0 && forks[0].slot < 0);
    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a trial");
    self->growth = growth;
    self->n_steps = n_steps;
    self->n_forks = n;
    self->n_samples = (size_t)n_batches * (size_t)esper_engine_max_samples(engine);
    self->losses = esper_mem_alloc(FORKS_AT_A_TIME * self->n_samples * sizeof(*self->losses));
    self->nothing = esper_mem_alloc(self->n_samples * sizeof(*self->nothing));
    if (self->losses == NULL || self->nothing == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "losses of a trial");
    growth->n_trying = n - 1;
    for (int i = 0; status == ESPER_OK && i < n; i += FORKS_AT_A_TIME)
        status = run_group(self, forks + i, n - i < FORKS_AT_A_TIME ? n - i : FORKS_AT_A_TIME, n_batches);
    growth->n_trying = 0;
    esper_mem_free(self->losses);
    esper_mem_free(self->nothing);
    esper_mem_free(self);
    return status;
}

/* ------------------------------------------------------------------------------------------------ before and after */

/* Counted on the program of the fork, which is built and not planned. */
static esper_status measure(void *context, esper_fork *fork)
{
    esper_growth *growth = context;
    const esper_network *network = growth->network;
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    esper_splice splice = network->splice;
    esper_net net;
    esper_status status;

    if (slots == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "slots of a fork");
    status = seed_slots(growth, fork, slots);
    splice.slots = slots;
    esper_net_init(&net);
    if (status == ESPER_OK)
        status = esper_splice_build(&splice, &network->engine->host, &net);
    if (status == ESPER_OK) {
        fork->sample_flops = esper_net_flops(&net);
        fork->step_flops = (double)network->step_cost * fork->sample_flops / esper_net_flops(&network->net);
        if (fork->slot >= 0 && slots->slot[fork->slot].birth == ESPER_BIRTH_FIRST)
            fork->birth_steps = ESPER_BIRTH_DRAWS;
        fork->params = esper_net_count_params(&net, -1) - esper_net_count_params(&network->net, -1);
    }
    esper_net_fini(&net);
    esper_mem_free(slots);
    return status;
}

static esper_status record(void *context, const esper_fork *forks, int n)
{
    esper_growth *growth = context;

    growth->trial_won = (esper_fork){.slot = -1, .blueprint = -1};
    for (int i = 0; i < n; i++)
        ESPER_TRY(growth_log_fork(growth, &forks[i]));
    growth->n_tried = n - 1;
    if (n > 1)
        growth->trial_won = forks[1];
    return ESPER_OK;
}

static void vouch(void *context, const esper_fork *fork)
{
    esper_growth *growth = context;

    growth->trial_won = *fork;
}

esper_trial_ground growth_trial_ground(esper_growth *growth)
{
    return (esper_trial_ground){
        .context = growth, .measure = measure, .compare = compare, .record = record, .vouch = vouch};
}

/* ------------------------------------------------------------------------------------------------ asked for by a policy */

/* Of the run as it was begun. */
static double run_steps(const esper_growth *growth)
{
    const esper_network *network = growth->network;

    return network->budget > 0 ? (double)network->budget / growth->deciding.flops_begun
                               : (double)network->engine->config.epochs * network->engine->steps_per_epoch;
}

/* What such a fork takes of the run. One that has FLOPs to spend is measured by them; one that has epochs, by its steps: those of a
 * fork with a seed cost more, and so would the run's with that seed. */
static double share_of(const esper_growth *growth, double flops, double step_flops)
{
    const esper_network *network = growth->network;

    return flops / (network->budget > 0 ? (double)network->budget : run_steps(growth) * step_flops);
}

/* Always as many in one run, so that what was gained in one trial can be held against another: a hundredth of the run where nobody
 * says, so that its share pays for several. */
static uint32_t steps_asked(const esper_growth *growth)
{
    if (growth->deciding.trials.n_steps > 0)
        return growth->deciding.trials.n_steps;
    return (uint32_t)fmin(fmax(ceil(run_steps(growth) / PARTS_OF_RUN), LEAST_STEPS), 1e6);
}

/* So many that validation takes a third of what training does, at most. */
static uint32_t batches_asked(const esper_growth *growth)
{
    uint32_t n_steps = steps_asked(growth), n_batches = growth->deciding.trials.n_batches;

    return n_batches < n_steps ? n_batches : n_steps;
}

double growth_trials_left(const esper_growth *growth)
{
    return growth->deciding.tries ? 0.0 /* they are its own */
                                  : fmax(growth->deciding.trials.share - growth->facts.asked, 0.0);
}

double growth_trial_share(const esper_growth *growth, int slot, uint32_t blueprints)
{
    const esper_network *network = growth->network;
    uint32_t kinds = blueprints & growth->deciding.trials.blueprints, n_steps = steps_asked(growth);
    double sample = esper_net_flops(&network->net), share = 0.0;
    double n_samples = (double)batches_asked(growth) * network->engine->config.batch;

    if (kinds == 0)
        return 0.0;
    for (int b = 0; b < ESPER_POLICY_BLUEPRINTS; b++) { /* 0, noop: the fork that gets nothing */
        double with_seed = sample + growth->deciding.trial_flops[slot][b];
        double step = (double)network->step_cost * with_seed / sample;
        bool is_chosen = b > 0 && network->engine->config.birth == ESPER_CONFIG_BIRTH_FIRST;

        if (b == 0 || (kinds >> b & 1u) != 0)
            share +=
                share_of(growth, (n_steps + (is_chosen ? ESPER_BIRTH_DRAWS : 0)) * step + n_samples * with_seed, step);
    }
    return share;
}

uint64_t growth_seeds_now(const esper_growth *growth)
{
    const esper_slots *slots = &growth->network->slots;
    int64_t seeds[ESPER_MAX_SLOTS] = {0};

    for (int k = 0; k < slots->n; k++)
        seeds[k] = esper_stage_has_seed(slots->slot[k].stage) ? slots->slot[k].n_seeds : 0;
    return XXH64(seeds, sizeof(seeds), 0);
}

static esper_fork fork_of(int slot, int blueprint)
{
    return (esper_fork){
        .slot = slot, .blueprint = blueprint, .loss = (double)NAN, .gain = (double)NAN, .error = (double)NAN};
}

/* One round, of nothing and of all that is tried in the slot. What came of it is state: going back forgets it, and what it cost
 * stays spent. */
esper_status growth_try(esper_growth *growth, const esper_decision *decision)
{
    growth_deciding *deciding = &growth->deciding;
    esper_fork forks[ESPER_POLICY_BLUEPRINTS];
    int n = 0, slot = decision->slot;
    uint32_t kinds;

    if (esper_mask_approve(&deciding->view, decision) != ESPER_OK)
        return ESPER_OK; /* the operation says why */
    assert(slot >= 0 && slot < growth->network->slots.n);
    kinds = deciding->views[slot].blueprints & deciding->trials.blueprints;
    forks[n++] = fork_of(-1, -1);
    for (int b = 1; b < ESPER_POLICY_BLUEPRINTS; b++)
        if ((kinds >> b & 1u) != 0)
            forks[n++] = fork_of(slot, b);
    assert(n > 1);
    for (int i = 0; i < n; i++)
        ESPER_TRY(measure(growth, &forks[i]));
    ESPER_TRY(compare(growth, forks, n, steps_asked(growth), batches_asked(growth)));
    esper_trial_rank(deciding->trials.price, forks, n);
    ESPER_TRY(record(growth, forks, n));
    for (int i = 0; i < n; i++)
        growth->facts.asked += share_of(growth, forks[i].flops, forks[i].step_flops);
    growth->state.fork[slot] = (growth_fork){.blueprint = forks[1].blueprint,
                                             .epoch = (int32_t)growth->recording.record.epoch,
                                             .n_seeds = esper_policy_view_seeds(&deciding->view),
                                             .n_steps = (int32_t)forks[1].n_steps,
                                             .gain = isfinite(forks[1].gain) ? forks[1].gain : (double)NAN,
                                             .error = isfinite(forks[1].error) ? forks[1].error : (double)NAN,
                                             .seeds = growth_seeds_now(growth)};
    return ESPER_OK;
}
