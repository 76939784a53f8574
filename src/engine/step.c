/* A network's step and evaluation. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "nn/schedule.h"
#include "engine/guarded.h"
#include "engine/side.h"

/* ------------------------------------------------------------------------------------------------ a batch */

esper_pool *esper_network_pool(const esper_network *network)
{
    return network->stream == NULL ? network->engine->pool : NULL;
}

esper_status esper_network_wait(const esper_network *network)
{
    return esper_backend_wait(network->engine->backend, network->stream);
}

static const esper_sampler *sampler_of(const esper_network *network, esper_split split)
{
    return split == ESPER_SPLIT_TRAIN && network->order != NULL ? network->order : network->engine->samplers[split];
}

/* Where the backend has the data set it is told which samples, and makes the batch itself. */
static esper_status gather_batch(const esper_network *network, esper_plan *plan, const esper_net *net,
                                 const esper_sampler *sampler, esper_split split, uint32_t batch, int32_t *targets)
{
    const esper_samples *samples = &network->engine->samples;
    esper_gather gather = samples->of_split[split];
    esper_pick *picks = network->staged;
    bool is_read = network->engine->host.widen; /* new channels come from images, past where their programs begin */

    esper_batch_pick(sampler, batch, picks, network->sample_ids);
    gather.n = (int32_t)esper_sampler_batch_count(sampler, batch);
    gather.cutout = esper_batch_cutout(sampler);
    gather.targets = targets == NULL ? esper_plan_data(plan, 0, net->target) : NULL;
    if (targets != NULL)
        esper_batch_fill(sampler, batch, NULL, &(esper_batch){.targets = targets});
    for (int b = 0; b < net->n_boundaries; b++) /* programs that begin there are handed it */
        is_read = is_read || net->boundaries[b].tensor == net->input;
    return esper_plan_gather(plan, network->stream, 0, is_read, &gather, picks);
}

/* Batches are made where the backend's memory is the host's own, in its stead, unless the stream may be behind. */
esper_status esper_network_put_batch(const esper_network *network, esper_plan *plan, const esper_net *net,
                                     esper_split split, uint32_t batch, int32_t *targets)
{
    const esper_backend *backend = network->engine->backend;
    const esper_sampler *sampler = sampler_of(network, split);
    esper_dataset_kind kind = esper_dataset_info_get(network->engine->data)->kind;
    bool behind = esper_backend_is_behind(backend);
    int n = (int)esper_sampler_batch_count(sampler, batch);
    void *input = behind ? network->staged : esper_backend_address(backend, esper_plan_data(plan, 0, net->input));
    void *target = behind ? (float *)network->staged + (int64_t)n * net->tensors[net->input].count
                          : esper_backend_address(backend, esper_plan_data(plan, 0, net->target));
    esper_batch dest = {
        .images = kind == ESPER_DATASET_IMAGES ? input : NULL,
        .features = kind == ESPER_DATASET_VECTORS ? input : NULL,
        .tokens = kind == ESPER_DATASET_TOKENS ? input : NULL,
        .targets = targets != NULL ? targets : target,
        .ids = network->sample_ids,
    };

    if (network->engine->samples.backend != NULL)
        return gather_batch(network, plan, net, sampler, split, batch, targets);
    esper_batch_fill(sampler, batch, esper_network_pool(network), &dest);
    if (!behind)
        return ESPER_OK;
    ESPER_TRY(esper_plan_write(plan, network->stream, 0, net->input, input, n));
    return targets == NULL ? esper_plan_write(plan, network->stream, 0, net->target, target, n) : ESPER_OK;
}

esper_status esper_network_load(esper_network *network, esper_plan *plan, const esper_net *net, esper_split split,
                                uint32_t batch)
{
    const esper_sampler *sampler = sampler_of(network, split);
    int inputs[ESPER_MAX_SLOTS];

    memcpy(inputs, network->alpha_input, sizeof(inputs));
    ESPER_TRY(esper_network_put_batch(network, plan, net, split, batch, NULL));
    network->pass.n_samples = (int32_t)esper_sampler_batch_count(sampler, batch);
    network->pass.training = split == ESPER_SPLIT_TRAIN;
    network->pass.step = (uint32_t)network->cursor.step;
    network->pass.skip =
        network->pass.training && !esper_backend_reports(network->engine->backend) ? network->flag : NULL;
    network->n_loaded = esper_sampler_batch_total(sampler, batch);
    network->pass.loss_scale = 1.0f / ((float)network->n_loaded * (float)net->tensors[net->target].count);
    if (net != &network->net) /* another program of the same slots */
        esper_splice_find_alphas(&network->splice, net, inputs);
    return esper_splice_fill_alphas(&network->splice, inputs, plan, network->stream, network->pass.n_samples);
}

static esper_status load_batch(esper_network *network, esper_split split, uint32_t batch)
{
    return esper_network_load(network, network->plan, &network->net, split, batch);
}

uint32_t esper_network_n_loaded(const esper_network *network)
{
    return network->n_loaded;
}

/* ------------------------------------------------------------------------------------------------ results */

/* A row has a guard's verdicts on a batch, and its results as the backend leaves them, a value for each sample: losses, then
 * right targets. Rows are gathered on the backend, behind the passes, and read when somebody wants to know. There are two banks of
 * them: while one is on its way to the host the other one is filled. */

static size_t row_floats(const esper_network *network)
{
    return ESPER_N_VERDICTS + 2 * (size_t)esper_engine_max_samples(network->engine);
}

size_t esper_network_row_bytes(const esper_network *network)
{
    return row_floats(network) * sizeof(*network->results);
}

int esper_network_place_of_row(const esper_network *network, int row)
{
    assert(row >= 0 && row < ESPER_NETWORK_ROWS);
    return network->bank * ESPER_NETWORK_ROWS + row;
}

static float *result_of(const esper_network *network, int row)
{
    return network->results + (size_t)esper_network_place_of_row(network, row) * row_floats(network);
}

static const float *losses_of(const esper_network *network, int row)
{
    return network->read + (size_t)esper_network_place_of_row(network, row) * row_floats(network) + ESPER_N_VERDICTS;
}

static const float *corrects_of(const esper_network *network, int row)
{
    return losses_of(network, row) + esper_engine_max_samples(network->engine);
}

uint32_t *esper_network_verdicts(const esper_network *network, int row)
{
    _Static_assert(sizeof(uint32_t) == sizeof(float), "a verdict takes the place of a value");
    return (uint32_t *)(void *)result_of(network, row);
}

static esper_status keep_result(const esper_network *network, int tensor, float *to)
{
    return esper_backend_copy(network->engine->backend, network->stream, to, esper_plan_data(network->plan, 0, tensor),
                              (size_t)network->pass.n_samples * sizeof(*to));
}

static esper_status queue_row(esper_network *network)
{
    float *losses = result_of(network, network->n_rows) + ESPER_N_VERDICTS;

    ESPER_TRY(keep_result(network, network->net.loss, losses));
    ESPER_TRY(keep_result(network, network->net.correct, losses + esper_engine_max_samples(network->engine)));
    network->rows[network->n_rows++] = (esper_row){.cursor = network->cursor,
                                                   .lr_before = network->lr,
                                                   .n_samples = network->pass.n_samples,
                                                   .n_total = network->n_loaded};
    return ESPER_OK;
}

/* Rows first and following are to come to the host. */
static esper_status queue_fetch(const esper_network *network, int first)
{
    size_t offset = (size_t)esper_network_place_of_row(network, first) * row_floats(network);

    return esper_backend_copy_out(network->engine->backend, network->stream, network->read + offset,
                                  network->results + offset,
                                  (size_t)(network->n_rows - first) * esper_network_row_bytes(network));
}

static esper_status fetch_rows(const esper_network *network, int first)
{
    if (first < network->n_rows)
        ESPER_TRY(queue_fetch(network, first));
    return esper_network_wait(network);
}

/* The sum of the first half and that of the second, as gradients are summed: the halves may be those of two ranks. */
static double sum_in_halves(const float *values, int n)
{
    int half = n - n / 2;

    if (n <= 1)
        return n == 1 ? (double)values[0] : 0.0;
    return sum_in_halves(values, half) + sum_in_halves(values + half, n - half);
}

static esper_batch_sums sum_row(const esper_network *network, int row)
{
    int n = network->rows[row].n_samples;

    return (esper_batch_sums){.loss = sum_in_halves(losses_of(network, row), n),
                              .correct = sum_in_halves(corrects_of(network, row), n)};
}

static void count_samples(const esper_network *network, uint32_t n, esper_tally *tally)
{
    tally->samples += n;
    tally->targets += n * (uint64_t)network->net.tensors[network->net.target].count;
}

/* How many rows come before a guard's flag went up. */
static int count_good(const esper_network *network, esper_verdict *verdict_out)
{
    int row = 0;

    for (; row < network->n_rows && network->rows[row].judged; row++) {
        const void *at = losses_of(network, row) - ESPER_N_VERDICTS;
        uint32_t verdicts[ESPER_N_VERDICTS];

        memcpy(verdicts, at, sizeof(verdicts));
        *verdict_out = verdicts[ESPER_VERDICT_STATE] != 0 ? ESPER_VERDICT_STATE : ESPER_VERDICT_PASS;
        if (verdicts[*verdict_out] != 0)
            return row;
    }
    return network->n_rows;
}

static void use_bank(esper_network *network, int bank, int n_rows)
{
    network->bank = bank;
    network->rows = network->banks[bank];
    network->n_rows = n_rows;
}

/* The rows of the bank in use have come to the host. n_later: steps that were queued behind them, which were none either if the flag
 * went up. Says whether it did not. */
static esper_status hear_rows(esper_network *network, int n_later, bool *good_out)
{
    bool many = esper_ranks_are_many(&network->engine->ranks);
    esper_verdict verdict = ESPER_VERDICT_STATE;
    int n_rows = network->n_rows, n_good = count_good(network, &verdict);

    for (int row = 0; row < n_good; row++) {
        esper_batch_sums sums = many ? network->rows[row].sums : sum_row(network, row);

        network->tally.loss += sums.loss;
        network->tally.correct += (uint64_t)sums.correct;
        count_samples(network, network->rows[row].n_total, &network->tally);
    }
    if (n_good > 0) /* else it stays that of the last step, which may have been another process's */
        network->grad_norm = esper_optim_norm(network->optim, 0, 0);
    *good_out = n_good == n_rows;
    if (n_good < n_rows) { /* steps from there on were skipped: the network stands where it did before them */
        ESPER_TRY(esper_network_wait(network)); /* those that were queued later have passed by */
        esper_optim_untake(network->optim, 0, (uint32_t)(n_rows - n_good + n_later));
        network->cursor = network->rows[n_good].cursor;
        network->lr = network->rows[n_good].lr_before;
    }
    network->n_rows = 0;
    return esper_guarded_hear(network, n_good, n_good < n_rows ? &verdict : NULL);
}

/* The other bank has come to the host. */
static esper_status hear_bank_under_way(esper_network *network, bool *good_out)
{
    int bank = network->bank, n_rows = network->n_rows;

    use_bank(network, 1 - bank, network->n_under_way);
    network->n_under_way = 0;
    ESPER_TRY(hear_rows(network, n_rows, good_out));
    if (*good_out)
        use_bank(network, bank, n_rows);
    return ESPER_OK;
}

bool esper_network_has_unread(const esper_network *network)
{
    return network->n_rows > 0 || network->n_under_way > 0;
}

static esper_status queue_reading(esper_network *network)
{
    ESPER_TRY(esper_optim_read_one(network->optim, network->stream, 0));
    return queue_fetch(network, 0);
}

esper_status esper_network_read(esper_network *network)
{
    bool good = true;

    if (!esper_network_has_unread(network))
        return ESPER_OK;
    if (network->n_rows > 0)
        ESPER_TRY(queue_reading(network));
    ESPER_TRY(esper_network_wait(network));
    if (network->n_under_way > 0)
        ESPER_TRY(hear_bank_under_way(network, &good));
    return good && network->n_rows > 0 ? hear_rows(network, 0, &good) : ESPER_OK;
}

/* The backend has the next rows before we wait for those before them. */
esper_status esper_network_read_behind(esper_network *network)
{
    esper_backend *backend = network->engine->backend;
    bool good = true;
    uint64_t ticket;

    if (!esper_backend_is_behind(backend))
        return esper_network_read(network);
    if (network->n_rows == 0)
        return ESPER_OK;
    ESPER_TRY(queue_reading(network));
    ESPER_TRY(esper_backend_submit(backend, network->stream, &ticket));
    if (network->n_under_way > 0) {
        ESPER_TRY(esper_backend_wait_for(backend, network->stream, network->ticket));
        ESPER_TRY(hear_bank_under_way(network, &good));
    }
    if (!good)
        return ESPER_OK;
    network->n_under_way = network->n_rows;
    network->ticket = ticket;
    use_bank(network, 1 - network->bank, 0);
    return ESPER_OK;
}

double esper_network_rate(const esper_network *network)
{
    static const esper_schedule_kind kinds[] = {[ESPER_CONFIG_SCHEDULE_CONSTANT] = ESPER_SCHEDULE_CONSTANT,
                                                [ESPER_CONFIG_SCHEDULE_COSINE] = ESPER_SCHEDULE_COSINE,
                                                [ESPER_CONFIG_SCHEDULE_HOLD] = ESPER_SCHEDULE_HOLD};
    const esper_config *config = &network->engine->config;
    const esper_descent *descent = &network->descent;
    esper_schedule schedule = {
        .kind = kinds[config->schedule],
        .lr = config->lr,
        .lr_min = config->lr_min,
        .fall = config->fall,
        .warmup_steps = (uint64_t)llround(config->warmup * network->engine->steps_per_epoch),
    };

    if (descent->n_steps > 0) {
        uint64_t done = network->cursor.step - descent->from;

        assert(network->cursor.step >= descent->from);
        return done < descent->n_steps ? descent->lr * (1.0 - (double)done / (double)descent->n_steps) : 0.0;
    }
    return esper_schedule_lr(&schedule, network->cursor.step, esper_network_share(network));
}

/* A seed in TRAINING is young whatever the age of the host: it learns at the full rate, and at the host's from then on. */
static double seed_rate(const esper_network *network, int slot)
{
    bool young = network->slots.slot[slot].stage == ESPER_STAGE_TRAINING;
    double rate = young ? network->engine->config.lr * network->detour.lr_scale : network->lr;

    return rate * network->engine->config.seed_lr;
}

/* ------------------------------------------------------------------------------------------------ a step */

static bool is_passed_over(const esper_network *network)
{
    const esper_detour *detour = &network->detour;

    for (uint32_t i = 0; i < detour->n_passed; i++)
        if (detour->passed[i].batch == network->cursor.batch && detour->passed[i].epoch == network->cursor.epoch &&
            detour->passed[i].draw == detour->draw)
            return true;
    return false;
}

bool esper_network_batch_due(esper_network *network)
{
    while (!esper_network_epoch_done(network) && is_passed_over(network)) {
        network->cursor.batch++;
        network->cursor.spent += network->step_cost; /* it was computed, and undone: a run is no longer for it */
    }
    return !esper_network_epoch_done(network);
}

esper_status esper_network_gradients(esper_network *network)
{
    if (network->optim == NULL || esper_network_epoch_done(network))
        return ESPER_FAIL(ESPER_E_STATE, "no training step is due");
    if (!network->epoch_drawn) {
        esper_sampler_redraw(network->order, network->cursor.epoch, network->detour.draw);
        network->epoch_drawn = true;
    }
    ESPER_TRY(load_batch(network, ESPER_SPLIT_TRAIN, network->cursor.batch));
    ESPER_TRY(esper_side_take_targets(network));
    ESPER_TRY(esper_plan_gradients_one(network->plan, network->stream, 0));
    ESPER_TRY(esper_side_gradients(network));
    return network->n_rows == ESPER_NETWORK_ROWS ? esper_network_read_behind(network) : ESPER_OK;
}

/* The host's and those with a seed in them, whether it learns or not. */
static uint64_t regions_in_use(const esper_network *network)
{
    uint64_t regions = 1;

    for (int k = 0; k < network->slots.n && k + 1 < network->slab.n_regions; k++)
        if (esper_splice_has_seed(&network->splice, k))
            regions |= (uint64_t)1 << (k + 1);
    return regions;
}

esper_status esper_network_exchange(esper_network *network)
{
    esper_ranks *ranks = &network->engine->ranks;
    double share = (double)network->pass.n_samples / network->n_loaded;
    int row = network->n_rows;

    assert(network->n_loaded > 0);
    ESPER_TRY(queue_row(network));
    if (!esper_ranks_are_many(ranks))
        return ESPER_OK;
    ESPER_TRY(fetch_rows(network, row));
    network->rows[row].sums = sum_row(network, row);
    network->n_rows = row; /* until it has gone well */
    ESPER_TRY(esper_ranks_exchange(ranks, &network->slab, network->stream, regions_in_use(network), share,
                                   &network->rows[row].sums));
    network->n_rows++;
    return ESPER_OK;
}

/* Where nothing is under way the device has nothing to do while the first bank is filled: it begins with the first rows of it. A round
 * more is not worth it: networks at different places of their epochs meet where pages are long. */
static esper_status submit_first_rows(const esper_network *network)
{
    bool first = network->n_under_way == 0 && network->n_rows == 2;

    return first ? esper_backend_submit(network->engine->backend, network->stream, NULL) : ESPER_OK;
}

esper_status esper_network_apply(esper_network *network)
{
    assert(network->cursor.batch < network->engine->steps_per_epoch);
    network->lr = esper_network_rate(network) * network->detour.lr_scale;
    esper_optim_group(network->optim, 0, 0)->lr = (float)network->lr;
    for (int r = 1; r < network->slab.n_regions; r++)
        esper_optim_group(network->optim, 0, r)->lr = (float)seed_rate(network, r - 1);
    ESPER_TRY(esper_optim_step_one(network->optim, network->stream, 0));
    network->cursor.batch++;
    network->cursor.step++;
    network->cursor.spent += network->step_cost;
    return submit_first_rows(network);
}

esper_status esper_network_queue_step(esper_network *network)
{
    if (!esper_network_epoch_done(network) && !esper_network_batch_due(network))
        return ESPER_OK;
    ESPER_TRY(esper_network_gradients(network));
    ESPER_TRY(esper_network_exchange(network));
    return esper_network_apply(network);
}

esper_status esper_network_step(esper_network *network)
{
    ESPER_TRY(esper_network_queue_step(network));
    return esper_network_read(network);
}

/* ------------------------------------------------------------------------------------------------ evaluation */

/* Adds the results of the batches that were run, in the order of their samples. */
static esper_status add_rows(esper_request *request, esper_batch_sums *sums, size_t *n_done)
{
    esper_network *network = request->network;
    float n_targets = (float)network->net.tensors[network->net.target].count;

    ESPER_TRY(fetch_rows(network, 0));
    for (int row = 0; row < network->n_rows; row++) {
        const float *loss = losses_of(network, row), *correct = corrects_of(network, row);

        for (int i = 0; i < network->rows[row].n_samples; i++) {
            sums->loss += (double)loss[i];
            sums->correct += (double)correct[i];
            if (request->losses != NULL)
                request->losses[*n_done] = loss[i] / n_targets;
            if (request->corrects != NULL)
                request->corrects[*n_done] = correct[i];
            (*n_done)++;
        }
    }
    network->n_rows = 0;
    return ESPER_OK;
}

static esper_status answer(esper_request *request, const esper_follower *follower)
{
    esper_network *network = request->network;
    uint32_t n = request->n_batches > 0 ? request->n_batches : esper_engine_batches(network->engine, request->split);
    esper_batch_sums sums = {0};
    esper_tally tally = {0};
    size_t n_done = 0;
    double both[2];

    for (uint32_t batch = 0; batch < n; batch++) {
        if (follower->stop != NULL && *follower->stop != 0)
            return ESPER_FAIL(ESPER_E_STOPPED, "evaluation of the %s split", esper_split_name(request->split));
        if (follower->batch != NULL)
            follower->batch(follower->context, request->split, batch, n);
        ESPER_TRY(load_batch(network, request->split, batch));
        count_samples(network, network->n_loaded, &tally);
        if (network->pass.n_samples == 0)
            continue;
        network->pass.training = false;
        ESPER_TRY(esper_plan_forward_one(network->plan, network->stream, 0));
        ESPER_TRY(queue_row(network));
        if (network->n_rows == ESPER_NETWORK_ROWS)
            ESPER_TRY(add_rows(request, &sums, &n_done));
    }
    ESPER_TRY(add_rows(request, &sums, &n_done));
    both[0] = sums.loss;
    both[1] = sums.correct;
    ESPER_TRY(esper_ranks_sum(&network->engine->ranks, both, 2));
    tally.loss = both[0];
    tally.correct = (uint64_t)both[1];
    request->tally = tally;
    return ESPER_OK;
}

/* Rows that are not added up are nobody's: the next to read would take them for steps. */
esper_status esper_network_answer(esper_request *request, const esper_follower *follower)
{
    static const esper_follower nobody;
    esper_status status;

    ESPER_TRY(esper_network_read(request->network));
    status = answer(request, follower != NULL ? follower : &nobody);
    request->network->n_rows = 0;
    return status;
}

esper_status esper_network_evaluate(esper_network *network, esper_split split, const esper_follower *follower,
                                    esper_tally *tally_out)
{
    esper_request request = {.network = network, .split = split};

    ESPER_TRY(esper_network_answer(&request, follower));
    *tally_out = request.tally;
    return ESPER_OK;
}
