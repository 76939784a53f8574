/* What is told of a run: events for its file, lines for the log, views for who watches. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/status.h"
#include "guard/governor.h"
#include "run/run_internal.h"

/* ------------------------------------------------------------------------------------------------ events */

void run_emit(run *self, esper_event *event)
{
    event->step = (int64_t)self->network->cursor.step;
    esper_bus_emit(&self->bus, event);
}

static void warn(run *self, const char *text)
{
    esper_event event = {.kind = ESPER_EVENT_WARNING};

    event.warning.text = text;
    run_emit(self, &event);
    esper_log_warn(self->desc->log, "%s", text);
}

static void tell_resumed(run *self)
{
    const char *identity = esper_backend_identity(self->network->engine->backend);
    esper_event event = {.kind = ESPER_EVENT_RUN_RESUMED};
    char text[256];

    event.run_resumed.path = self->resumed_from;
    event.run_resumed.epoch = self->network->cursor.epoch;
    event.run_resumed.kernels = identity;
    event.run_resumed.threads = esper_pool_threads(self->network->engine->pool);
    event.run_resumed.ranks = self->network->engine->ranks.size;
    event.run_resumed.config = self->record;
    run_emit(self, &event);
    if (run_computes_alike(identity, self->resumed_kernels))
        return;
    snprintf(text, sizeof(text),
             "the run was begun with %s and goes on with %s: results will differ in their last bits",
             self->resumed_kernels, identity);
    warn(self, text);
}

/* Who decides about nothing keeps nothing. */
static void warn_if_short(run *self)
{
    const esper_config *config = &self->network->engine->config;
    char text[ESPER_GROWTH_HINT_CHARS];
    bool grows =
        self->growth != NULL && (config->policy_cmd[0] != '\0' || strcmp(config->policy, esper_policy_none.name) != 0);

    if (grows && run_writes(self) && esper_growth_foresee(config, text)[0] != '\0')
        warn(self, text);
}

void run_tell_start(run *self)
{
    esper_event event = {.kind = ESPER_EVENT_RUN_STARTED};

    if (self->desc->resume != NULL) {
        tell_resumed(self);
        return;
    }
    event.run_started.task = self->task->name;
    event.run_started.run = self->result.run_dir;
    event.run_started.seed = self->network->engine->config.seed;
    event.run_started.config = self->record;
    event.run_started.kernels = esper_backend_identity(self->network->engine->backend);
    event.run_started.threads = esper_pool_threads(self->network->engine->pool);
    event.run_started.ranks = self->network->engine->ranks.size;
    event.run_started.params = self->result.params;
    event.run_started.commit = esper_build_commit();
    event.run_started.policy = self->growth != NULL ? esper_growth_decider(self->growth) : "";
    run_emit(self, &event);
    if (self->policy_note[0] != '\0')
        warn(self, self->policy_note);
    warn_if_short(self);
}

void run_tell_epoch(run *self, const esper_epoch_record *record)
{
    esper_event event = {.kind = ESPER_EVENT_EPOCH_ENDED};

    event.epoch_ended.epoch = record->epoch;
    event.epoch_ended.loss_train = record->loss_train;
    event.epoch_ended.acc_train = record->acc_train;
    event.epoch_ended.loss_valid = record->loss_valid;
    event.epoch_ended.acc_valid = record->acc_valid;
    event.epoch_ended.lr = record->lr;
    event.epoch_ended.grad_norm = record->grad_norm;
    event.epoch_ended.samples_per_s = record->samples_per_s;
    event.epoch_ended.seconds = record->seconds;
    run_emit(self, &event);
}

static void tell_rollback(run *self, const esper_incident *incident)
{
    esper_event event = {.kind = ESPER_EVENT_ROLLED_BACK};

    event.rolled_back.from_step = (int64_t)incident->at.step;
    event.rolled_back.to_step = (int64_t)incident->to.step;
    event.rolled_back.damaged = incident->n_damaged;
    event.rolled_back.reason = esper_governor_reason_name(incident->reason);
    event.rolled_back.seconds = incident->seconds;
    run_emit(self, &event);
}

void run_tell_incident(run *self, const esper_incident *incident)
{
    esper_event event = {.kind = ESPER_EVENT_GUARD_TRIPPED};
    char text[512];

    event.guard_tripped.tensor = incident->tensor != NULL ? incident->tensor : "";
    event.guard_tripped.role = incident->role != NULL ? incident->role : "";
    event.guard_tripped.problem = incident->problem;
    event.guard_tripped.count = (int64_t)incident->n_elements;
    event.guard_tripped.first_index = incident->first_index != ESPER_GUARD_NONE ? (int64_t)incident->first_index : -1;
    event.guard_tripped.loss = incident->loss;
    event.guard_tripped.reason = esper_governor_reason_name(incident->reason);
    event.guard_tripped.action = esper_governor_action_name(incident->action);
    run_emit(self, &event);
    if (incident->restored)
        tell_rollback(self, incident);
    if (self->desc->observer == NULL || self->desc->observer->incident == NULL) /* else it is told there */
        esper_log_warn(self->desc->log, "guard: %s", esper_incident_describe(incident, text, sizeof(text)));
}

void run_tell_end(run *self, esper_status status)
{
    esper_event event = {.kind = ESPER_EVENT_RUN_ENDED};

    event.run_ended.status = esper_status_name(status);
    event.run_ended.epochs = self->network->cursor.epoch;
    event.run_ended.steps = (int64_t)self->network->cursor.step;
    event.run_ended.loss_test = self->result.loss_test;
    event.run_ended.acc_test = self->result.acc_test;
    event.run_ended.weight_hash = self->result.weight_hash;
    event.run_ended.seconds = esper_clock_seconds() - self->began;
    run_emit(self, &event);
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

/* Counts the training samples still to come; validation is the small part and left out. */
static double seconds_left(const run *self, double samples_per_s)
{
    const esper_network *network = self->network;
    double epochs_left = network->engine->config.epochs - (double)network->cursor.epoch;
    double steps_left = epochs_left * network->engine->steps_per_epoch - network->cursor.batch;

    return samples_per_s > 0.0 ? steps_left * network->engine->config.batch / samples_per_s : -1.0;
}

static esper_run_view view_of(const run *self)
{
    double samples_per_s = esper_epoch_speed(&self->player);

    return (esper_run_view){.task = self->task,
                            .network = self->network,
                            .growth = self->growth,
                            .run_dir = self->result.run_dir,
                            .samples_per_s = samples_per_s,
                            .seconds_left = seconds_left(self, samples_per_s)};
}

void run_show_begin(const run *self)
{
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    if (observer != NULL && observer->begin != NULL)
        observer->begin(observer->context, &view);
}

void run_show_step(const run *self)
{
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    if (observer != NULL && observer->step != NULL)
        observer->step(observer->context, &view);
}

void run_show_epoch(const run *self, const esper_epoch_record *record)
{
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    if (observer != NULL && observer->epoch != NULL)
        observer->epoch(observer->context, &view, record);
}

void run_show_incident(const run *self, const esper_incident *incident)
{
    const esper_run_observer *observer = self->desc->observer;
    esper_run_view view = view_of(self);

    if (observer != NULL && observer->incident != NULL)
        observer->incident(observer->context, &view, incident);
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
