/* What is kept of learning, in a store: every episode, what each of its decisions was worth, and every update. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/status.h"
#include "tensor/backend.h"
#include "run/learn_internal.h"

/* ------------------------------------------------------------------------------------------------ the run */

static esper_store_run identity_of(const learn *self)
{
    esper_store_run run = esper_store_run_of(self->result.run_dir);

    ESPER_STORE_SET(run.task, self->task->name);
    ESPER_STORE_SET(run.policy, "learner");
    ESPER_STORE_SET(run.reward_mode, self->config.reward);
    ESPER_STORE_SET(run.gate_mode, esper_config_gates_name(self->config.gates));
    run.rng_seed = self->config.seed;
    run.threads = esper_pool_threads(self->engine->pool);
    ESPER_STORE_SET(run.build, esper_build_commit());
    run.params_host = self->params_host;
    return run;
}

static esper_status open_store(learn *self)
{
    char path[ESPER_PATH_CHARS];
    esper_store_run run = identity_of(self);
    esper_status status = ESPER_E_NOTFOUND;
    int64_t id;

    ESPER_TRY(esper_run_path(self->result.run_dir, ESPER_RUN_STORE, path));
    ESPER_TRY(esper_store_open(path, NULL, &self->store));
    if (self->desc->resume != NULL)
        status = esper_store_resume(self->store, self->result.run_dir, self->round, (int64_t)self->n_steps,
                                    ESPER_STORE_NO_INT, &id);
    return status == ESPER_E_NOTFOUND ? esper_store_begin(self->store, &run, self->record, &id) : status;
}

void learn_open_records(learn *self)
{
    if (self->ranks.rank > 0 || open_store(self) == ESPER_OK)
        return;
    esper_log_warn(self->desc->log, "the learning is not recorded in a store: %s", esper_last_error());
    esper_store_close(self->store);
    self->store = NULL;
}

void learn_close_records(learn *self, esper_status status)
{
    esper_store_run end = esper_store_run_of(self->result.run_dir);

    if (self->store == NULL)
        return;
    ESPER_STORE_SET(end.status, esper_status_name(status));
    end.epochs = self->round;
    end.steps = (int64_t)self->n_steps;
    end.total_reward = self->result.last.round > 0 ? self->result.last.total_reward : ESPER_STORE_NO_REAL;
    end.seconds = self->result.seconds;
    if (esper_store_end(self->store, &end) != ESPER_OK)
        esper_log_warn(self->desc->log, "the store does not know how the learning ended: %s", esper_last_error());
    esper_store_close(self->store);
}

/* ------------------------------------------------------------------------------------------------ a round */

static esper_store_record record_of(const learn *self, esper_store_kind kind)
{
    return esper_store_record_of(kind, self->round, (int64_t)self->n_steps);
}

/* What was put where, in the table that a run that grows has its decisions in. There is no log to have a place in: decisions of
 * all episodes are counted one after another. */
static void push_germination(learn *self, int lane, int t)
{
    const esper_rollout *rollout = esper_learner_rollout(self->learner);
    size_t at = esper_rollout_at(rollout, lane, t);
    uint64_t episode = self->n_episodes - (uint64_t)self->config.envs + (uint64_t)lane;
    esper_store_record record = record_of(self, ESPER_STORE_DECISION);
    const esper_blueprint *blueprint;
    esper_decision decision;
    esper_action action;
    char line[96];

    memcpy(action.choice, rollout->actions + at * ESPER_N_HEADS, sizeof(action.choice));
    esper_action_decide(&action, &decision);
    blueprint = esper_policy_blueprint(self->identity.topology, decision.blueprint);
    snprintf(line, sizeof(line), "{\"round\":%" PRIu32 ",\"env\":%d,\"epoch\":%d}", self->round, lane, t + 1);
    record.decision.number = (int64_t)episode * self->config.epochs + t;
    record.decision.accepted = rollout->accepted[at];
    record.decision.tempo = decision.tempo;
    record.decision.alpha_target = decision.target;
    ESPER_STORE_SET(record.decision.source, "policy");
    ESPER_STORE_SET(record.decision.op, esper_slot_op_name(decision.op));
    ESPER_STORE_SET(record.decision.slot, self->identity.slots[decision.slot]);
    ESPER_STORE_SET(record.decision.blueprint, blueprint != NULL ? blueprint->name : "");
    ESPER_STORE_SET(record.decision.blend, esper_blend_name(esper_style_blend(decision.style)));
    ESPER_STORE_SET(record.decision.line, line);
    esper_store_push(self->store, &record);
}

static void push_rewards(learn *self, int lane)
{
    const esper_rollout *rollout = esper_learner_rollout(self->learner);

    for (int t = 0; t < rollout->n_stored[lane]; t++) {
        esper_store_record record = record_of(self, ESPER_STORE_REWARD);
        size_t at = esper_rollout_at(rollout, lane, t);
        const double *parts = rollout->parts + at * ESPER_N_REWARD_PARTS;
        double total = 0.0;

        for (int part = 0; part < ESPER_N_REWARD_PARTS; part++)
            total += parts[part];
        record.reward.round = self->round;
        record.reward.env = lane;
        record.reward.episode_epoch = t + 1;
        ESPER_STORE_SET(record.reward.op, esper_slot_op_name(rollout->effective_ops[at]));
        esper_store_set_reward(&record, total, parts);
        esper_store_push(self->store, &record);
        if (rollout->effective_ops[at] == ESPER_SLOT_OP_GERMINATE)
            push_germination(self, lane, t);
    }
}

static void push_episode(learn *self, int lane)
{
    const esper_episode *episode = &self->episodes[lane];
    esper_store_record record = record_of(self, ESPER_STORE_EPISODE);

    record.episode.round = self->round;
    record.episode.env = lane;
    record.episode.rng_seed = episode->seed;
    ESPER_STORE_SET(record.episode.policy, self->program == NULL ? "learned" : esper_policy_command.name);
    record.episode.total_reward = episode->total_reward;
    record.episode.acc_valid = episode->accuracy_final;
    record.episode.acc_valid_best = episode->accuracy_best;
    record.episode.params = episode->params;
    record.episode.n_germinated = episode->n_germinated;
    record.episode.n_kept = episode->n_kept;
    record.episode.n_pruned = episode->n_pruned;
    record.episode.n_rollbacks = episode->n_rollbacks;
    record.episode.n_steps = episode->n_steps;
    record.episode.seconds = episode->seconds;
    esper_store_push(self->store, &record);
}

static const char *health_name(int health)
{
    static const char *const names[] = {"fine", "degraded", "halted"};

    return names[health];
}

static void push_update(learn *self, const esper_learn_round *round)
{
    const esper_ppo_report *report = &round->report.update;
    esper_store_record record = record_of(self, ESPER_STORE_UPDATE);
    char health[64];
    int n = snprintf(health, sizeof(health), "%s", health_name(report->health));

    for (int i = 0; i < ESPER_PPO_N_SOURCES; i++)
        if ((report->failed >> i & 1u) && n < (int)sizeof(health))
            n += snprintf(health + n, sizeof(health) - (size_t)n, ", %s", esper_ppo_source_name(i));
    record.update.round = self->round;
    record.update.n_episodes = self->config.envs;
    record.update.return_mean = round->total_reward;
    record.update.return_sd = round->total_reward_error * sqrt(self->config.envs);
    record.update.acc_mean = round->accuracy;
    record.update.params_mean = round->params;
    record.update.kl = report->move.kl;
    record.update.clip_fraction = report->move.clip_fraction;
    record.update.explained_variance = report->explained_variance;
    record.update.loss_policy = report->loss.policy;
    record.update.loss_value = report->loss.value;
    record.update.entropy = report->entropy;
    esper_store_set_entropy(&record, report->head_entropy);
    record.update.n_learned = report->n_updates;
    record.update.n_skipped = report->n_skipped;
    record.update.grad_norm = report->grad_norm_mean;
    record.update.steps_per_s = round->steps_per_s;
    record.update.seconds = round->seconds;
    ESPER_STORE_SET(record.update.health, health);
    esper_store_push(self->store, &record);
}

void learn_record_round(learn *self, const esper_learn_round *round)
{
    if (self->store == NULL)
        return;
    for (int lane = 0; lane < self->config.envs; lane++) {
        push_rewards(self, lane);
        push_episode(self, lane);
    }
    push_update(self, round);
    if (esper_store_status(self->store) != ESPER_OK)
        esper_log_warn(self->desc->log, "the learning is no longer recorded: %s", esper_last_error());
}
