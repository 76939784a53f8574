/* What is told of a run: facts for its files, lines for the log, views for who watches. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/status.h"
#include "guard/governor.h"
#include "nn/parts.h"
#include "run/run_internal.h"
#include "run/settings.h"

/* ------------------------------------------------------------------------------------------------ what can be seen */

/* Counts the training samples still to come; validation is the small part and left out. */
static double seconds_left(const run *self, double samples_per_s)
{
    const esper_network *network = self->network;
    double epochs_left = esper_network_epochs(network) - (double)network->cursor.epoch;
    double steps_left = epochs_left * network->engine->steps_per_epoch - network->cursor.batch;

    return samples_per_s > 0.0 ? steps_left * network->engine->config.batch / samples_per_s : -1.0;
}

static esper_run_view view_of(const run *self)
{
    double samples_per_s = esper_epoch_speed(&self->player);

    return (esper_run_view){.task = self->base.task,
                            .network = self->network,
                            .growth = self->growth,
                            .run_dir = self->base.dir,
                            .samples_per_s = samples_per_s,
                            .seconds_left = seconds_left(self, samples_per_s)};
}

/* ------------------------------------------------------------------------------------------------ facts */

esper_fact run_fact(const run *self, esper_fact_kind kind)
{
    return esper_fact_of(kind, self->network->cursor.epoch, (int64_t)self->network->cursor.step);
}

/* The run's identity, for its first line and its row. */
esper_fact run_start(const run *self)
{
    const esper_engine *engine = self->base.engine;
    const esper_run_kin *kin = self->desc->kin;
    esper_fact fact = esper_fact_of(ESPER_FACT_RUN_STARTED, 0, (int64_t)self->network->cursor.step);

    fact.run_started.task = self->base.task->name;
    fact.run_started.name = self->base.dir;
    fact.run_started.rng_seed = engine->config.seed;
    fact.run_started.config = self->base.record;
    fact.run_started.kernels = esper_backend_identity(engine->backend);
    fact.run_started.threads = esper_pool_threads(engine->pool);
    fact.run_started.ranks = engine->ranks.size;
    fact.run_started.params = self->result.params;
    fact.run_started.build = esper_build_commit();
    fact.run_started.params_host = self->result.params_host;
    if (self->growth == NULL)
        return fact;
    fact.run_started.policy = esper_growth_decider(self->growth);
    fact.run_started.reward_mode = engine->config.reward;
    fact.run_started.gate_mode = esper_config_gates_name(engine->config.gates);
    fact.run_started.flops_host = (int64_t)esper_growth_account_of(self->growth).flops_host;
    if (kin != NULL) {
        fact.run_started.parent_run = kin->parent;
        fact.run_started.relation = kin->relation;
    }
    return fact;
}

/* How the run ended, for its last line and its row. */
esper_fact run_end(const run *self, esper_status status)
{
    const esper_run_result *result = &self->result;
    esper_fact fact = esper_fact_of(ESPER_FACT_RUN_ENDED, result->cursor.epoch, (int64_t)result->cursor.step);

    fact.run_ended.status = (int)status;
    fact.run_ended.epochs = result->cursor.epoch;
    fact.run_ended.steps = (int64_t)result->cursor.step;
    fact.run_ended.params = result->params;
    fact.run_ended.flops = (int64_t)result->flops_sample;
    fact.run_ended.flops_train = (int64_t)result->flops_train;
    fact.run_ended.loss_test = esper_fact_known(result->loss_test);
    fact.run_ended.acc_test = esper_fact_known(result->acc_test);
    fact.run_ended.weight_hash = result->weight_hash;
    fact.run_ended.seconds = result->seconds;
    fact.run_ended.total_reward = esper_fact_known(result->total_reward);
    return fact;
}

void run_tell(run *self, esper_fact *fact)
{
    esper_bus_tell(&self->bus, fact, 1);
}

static void warn(run *self, const char *text)
{
    esper_fact fact = run_fact(self, ESPER_FACT_WARNING);

    fact.warning.text = text;
    run_tell(self, &fact);
    esper_log_warn(self->desc->log, "%s", text);
}

/* What there is to draw, for a store that does not have it: a new one, or one of a version that did not tell. */
static void tell_parts(run *self)
{
    esper_host_part parts[ESPER_HOST_MAX_PARTS];
    int n = esper_parts_list(&self->base.engine->plain, parts);

    for (int i = 0; i < n; i++) {
        esper_fact fact = esper_fact_of(ESPER_FACT_PART, 0, (int64_t)self->network->cursor.step);

        fact.part.number = i;
        fact.part.what = parts[i].is_slot ? "slot" : "block";
        fact.part.name = parts[i].name;
        fact.part.channels = parts[i].channels;
        fact.part.shape = parts[i].shape;
        if (parts[i].is_slot)
            fact.part.position = (double)parts[i].position;
        else
            fact.part.params = parts[i].params;
        run_tell(self, &fact);
    }
}

/* Likewise the classes, where they have names. */
static void tell_classes(run *self)
{
    const esper_dataset *data = self->base.engine->data;

    if (!esper_dataset_names_classes(data))
        return;
    for (int i = 0; i < esper_dataset_info_get(data)->classes; i++) {
        esper_fact fact = esper_fact_of(ESPER_FACT_CLASS, 0, (int64_t)self->network->cursor.step);

        fact.class.number = i;
        fact.class.name = esper_dataset_class_name(data, i);
        run_tell(self, &fact);
    }
}

static void tell_resumed(run *self)
{
    const char *identity = esper_backend_identity(self->base.engine->backend);
    esper_fact fact = run_fact(self, ESPER_FACT_RUN_RESUMED);
    char text[256];

    fact.run_resumed.path = self->resumed_from;
    fact.run_resumed.kernels = identity;
    fact.run_resumed.threads = esper_pool_threads(self->base.engine->pool);
    fact.run_resumed.ranks = self->base.ranks.size;
    fact.run_resumed.config = self->base.record;
    run_tell(self, &fact);
    if (run_computes_alike(identity, self->resumed_kernels))
        return;
    snprintf(text, sizeof(text),
             "the run was begun with %s and goes on with %s: results will differ in their last bits",
             self->resumed_kernels, identity);
    warn(self, text);
}

void run_tell_start(run *self)
{
    const esper_run_observer *observer = self->desc->observer;
    const esper_config *config = &self->base.config;
    /* who decides about nothing keeps nothing, by trials seeds join at once, and a budget is no number of epochs */
    unsigned at_once = ESPER_CONFIG_BY_SEARCH | ESPER_CONFIG_BY_TRIALS;
    bool by_stages = config->flops <= 0.0 &&
                     (config->policy_cmd[0] != '\0' || (esper_settings_decider(config->policy) & ~at_once) != 0);
    esper_run_view view = view_of(self);
    esper_fact fact = run_start(self);
    char text[ESPER_GROWTH_HINT_CHARS];

    if (self->desc->resume != NULL) {
        tell_resumed(self);
    } else {
        run_tell(self, &fact);
        if (self->policy_note[0] != '\0')
            warn(self, self->policy_note);
        if (self->growth != NULL && by_stages && self->base.writes && esper_growth_foresee(config, text)[0] != '\0')
            warn(self, text);
    }
    if (self->growth != NULL && self->desc->replay == NULL && self->bus.n_rows[ESPER_FACT_PART] == 0)
        tell_parts(self);
    if (self->growth != NULL && self->desc->replay == NULL && self->bus.n_rows[ESPER_FACT_CLASS] == 0)
        tell_classes(self);
    if (observer != NULL && observer->begin != NULL)
        observer->begin(observer->context, &view);
}

static void tell_rollback(run *self, const esper_incident *incident, const char *why)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_ROLLBACK, incident->to.epoch + 1, (int64_t)incident->to.step);

    fact.rollback.action = incident->action;
    fact.rollback.from_epoch = incident->at.epoch + 1;
    fact.rollback.from_step = (int64_t)incident->at.step;
    fact.rollback.to_epoch = incident->to.epoch + 1;
    fact.rollback.to_step = (int64_t)incident->to.step;
    fact.rollback.n_damaged = incident->n_damaged;
    fact.rollback.n_pruned = incident->action == ESPER_GOVERNOR_PRUNE ? __builtin_popcount(incident->unkept)
                                                                      : 0; /* which growth does next */
    fact.rollback.lr_scale = self->network->detour.lr_scale;
    fact.rollback.cause = incident->reason;
    fact.rollback.seconds = incident->seconds;
    fact.rollback.reason = why;
    run_tell(self, &fact);
}

void run_tell_incident(run *self, const esper_incident *incident)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_HEALTH, incident->at.epoch + 1, (int64_t)incident->at.step);
    char text[512];

    esper_incident_describe(incident, text, sizeof(text));
    fact.health.n_skipped = (int64_t)esper_guarded_reading(self->network).n_skipped;
    fact.health.n_tensors = (int64_t)incident->n_tensors;
    fact.health.tensor = incident->tensor;
    fact.health.role = incident->role;
    fact.health.problem = incident->problem;
    if (incident->tensor != NULL)
        fact.health.n_elements = (int64_t)incident->n_elements;
    if (incident->first_index != ESPER_GUARD_NONE)
        fact.health.first_index = (int64_t)incident->first_index;
    fact.health.loss = esper_fact_known(incident->loss);
    fact.health.reason = incident->reason;
    fact.health.action = incident->action;
    run_tell(self, &fact);
    if (incident->restored)
        tell_rollback(self, incident, text);
    if (self->desc->observer == NULL || self->desc->observer->incident == NULL) /* else it is told there */
        esper_log_warn(self->desc->log, "guard: %s", text);
}

/* Said once: a loss that is not a number stays so until someone acts. Under guard, somebody does. */
void run_warn_if_not_finite(run *self, const esper_epoch_record *record)
{
    char text[256], kept[64] = "";

    if (self->warned || self->network->guarded != NULL ||
        (isfinite(record->loss_train) && isfinite(record->loss_valid)))
        return;
    self->warned = true;
    if (!isfinite(record->loss_valid))
        snprintf(kept, sizeof(kept), "; the checkpoint of epoch %u is kept", self->saved_epoch);
    snprintf(text, sizeof(text),
             "epoch %u: the loss is no longer finite: start again with a lower lr, or with clip on%s", record->epoch,
             kept);
    warn(self, text);
}

/* ------------------------------------------------------------------------------------------------ watching */

void run_show(const run *self, const esper_epoch_record *record, const esper_incident *incident)
{
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view;

    if (observer == NULL)
        return;
    view = view_of(self);
    if (record != NULL && observer->epoch != NULL)
        observer->epoch(observer->context, &view, record);
    if (incident != NULL && observer->incident != NULL)
        observer->incident(observer->context, &view, incident);
    if (record == NULL && incident == NULL && observer->step != NULL)
        observer->step(observer->context, &view);
}

void run_show_evaluation(void *context, esper_split split, uint32_t n_done, uint32_t n_batches)
{
    run *self = context;
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    (void)run_ask_to_stop(self); /* a failure is everybody's next one */
    if (observer != NULL && observer->evaluation != NULL)
        observer->evaluation(observer->context, &view, split, (double)n_done / n_batches);
}
