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

static esper_fact start_of(const learn *self)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_RUN_STARTED, 0, 0);

    fact.run_started.name = self->result.run_dir;
    fact.run_started.task = self->task->name;
    fact.run_started.policy = "learner";
    fact.run_started.reward_mode = self->config.reward;
    fact.run_started.gate_mode = esper_config_gates_name(self->config.gates);
    fact.run_started.rng_seed = self->config.seed;
    fact.run_started.threads = esper_pool_threads(self->engine->pool);
    fact.run_started.build = esper_build_commit();
    fact.run_started.params_host = self->params_host;
    return fact;
}

static esper_status open_store(learn *self)
{
    char path[ESPER_PATH_CHARS];
    esper_fact start = start_of(self);
    esper_store_run run = esper_store_run_from(&start);
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
    esper_fact fact = esper_fact_of(ESPER_FACT_RUN_ENDED, self->round, (int64_t)self->n_steps);
    esper_store_run end;

    if (self->store == NULL)
        return;
    fact.run_ended.status = (int)status;
    fact.run_ended.epochs = self->round;
    fact.run_ended.steps = (int64_t)self->n_steps;
    if (self->result.last.round > 0)
        fact.run_ended.total_reward = self->result.last.total_reward;
    fact.run_ended.seconds = self->result.seconds;
    end = esper_store_run_from(&fact);
    if (esper_store_end(self->store, &end) != ESPER_OK)
        esper_log_warn(self->desc->log, "the store does not know how the learning ended: %s", esper_last_error());
    esper_store_close(self->store);
}

/* ------------------------------------------------------------------------------------------------ a round */

static esper_fact fact_of(const learn *self, esper_fact_kind kind)
{
    return esper_fact_of(kind, self->round, (int64_t)self->n_steps);
}

/* What was put where, in the table that a run that grows has its decisions in. There is no log to have a place in: decisions of
 * all episodes are counted one after another. */
static void push_germination(learn *self, int env, int t)
{
    const esper_rollout *rollout = esper_learner_rollout(self->learner);
    size_t at = esper_rollout_at(rollout, env, t);
    uint64_t episode = self->n_episodes - (uint64_t)self->config.envs + (uint64_t)env;
    esper_fact fact = fact_of(self, ESPER_FACT_DECISION);
    const esper_blueprint *blueprint;
    esper_decision decision;
    esper_action action;
    char line[96];

    memcpy(action.choice, rollout->actions + at * ESPER_N_HEADS, sizeof(action.choice));
    esper_action_decide(&action, &decision);
    blueprint = esper_policy_blueprint(self->identity.topology, decision.blueprint);
    snprintf(line, sizeof(line), "{\"round\":%" PRIu32 ",\"env\":%d,\"epoch\":%d}", self->round, env, t + 1);
    fact.decision.number = (int64_t)episode * self->config.epochs + t;
    fact.decision.accepted = rollout->accepted[at];
    fact.decision.tempo = decision.tempo;
    fact.decision.alpha_target = decision.target;
    fact.decision.source = "policy";
    fact.decision.op = esper_slot_op_name(decision.op);
    fact.decision.slot = self->identity.slots[decision.slot];
    fact.decision.blueprint = blueprint != NULL ? blueprint->name : "";
    fact.decision.blend = esper_style_blend(decision.style);
    fact.decision.line = line;
    esper_store_tell(self->store, &fact, 1);
}

static void push_rewards(learn *self, int env)
{
    const esper_rollout *rollout = esper_learner_rollout(self->learner);

    for (int t = 0; t < rollout->n_stored[env]; t++) {
        esper_fact fact = fact_of(self, ESPER_FACT_REWARD);
        size_t at = esper_rollout_at(rollout, env, t);
        const double *parts = rollout->parts + at * ESPER_N_REWARD_PARTS;
        double total = 0.0;

        for (int part = 0; part < ESPER_N_REWARD_PARTS; part++)
            total += parts[part];
        fact.reward.round = self->round;
        fact.reward.env = env;
        fact.reward.episode_epoch = t + 1;
        fact.reward.op = rollout->effective_ops[at];
        esper_fact_set_reward(&fact, total, parts);
        esper_store_tell(self->store, &fact, 1);
        if (rollout->effective_ops[at] == ESPER_SLOT_OP_GERMINATE)
            push_germination(self, env, t);
    }
}

static void push_episode(learn *self, int env)
{
    const esper_episode *episode = &self->episodes[env];
    esper_fact fact = fact_of(self, ESPER_FACT_EPISODE);

    fact.episode.round = self->round;
    fact.episode.env = env;
    fact.episode.rng_seed = episode->seed;
    fact.episode.policy = self->program == NULL ? "learned" : esper_policy_command.name;
    fact.episode.total_reward = episode->total_reward;
    fact.episode.acc_valid = episode->accuracy_final;
    fact.episode.acc_valid_best = episode->accuracy_best;
    fact.episode.params = episode->params;
    fact.episode.n_germinated = episode->n_germinated;
    fact.episode.n_kept = episode->n_kept;
    fact.episode.n_pruned = episode->n_pruned;
    fact.episode.n_rollbacks = episode->n_rollbacks;
    fact.episode.n_steps = episode->n_steps;
    fact.episode.seconds = episode->seconds;
    esper_store_tell(self->store, &fact, 1);
}

static const char *health_name(int health)
{
    static const char *const names[] = {"fine", "degraded", "halted"};

    return names[health];
}

static void push_update(learn *self, const esper_learn_round *round)
{
    const esper_ppo_report *report = &round->report.update;
    esper_fact fact = fact_of(self, ESPER_FACT_UPDATE);
    char health[64];
    int n = snprintf(health, sizeof(health), "%s", health_name(report->health));

    for (int i = 0; i < ESPER_PPO_N_SOURCES; i++)
        if ((report->failed >> i & 1u) && n < (int)sizeof(health))
            n += snprintf(health + n, sizeof(health) - (size_t)n, ", %s", esper_ppo_source_name(i));
    fact.update.round = self->round;
    fact.update.n_episodes = self->config.envs;
    fact.update.return_mean = round->total_reward;
    fact.update.return_sd = round->total_reward_error * sqrt(self->config.envs);
    fact.update.acc_mean = round->accuracy;
    fact.update.params_mean = round->params;
    fact.update.kl = report->move.kl;
    fact.update.clip_fraction = report->move.clip_fraction;
    fact.update.explained_variance = report->explained_variance;
    fact.update.loss_policy = report->loss.policy;
    fact.update.loss_value = report->loss.value;
    fact.update.entropy = report->entropy;
    esper_fact_set_entropy(&fact, report->head_entropy);
    fact.update.n_learned = report->n_updates;
    fact.update.n_skipped = report->n_skipped;
    fact.update.grad_norm = report->grad_norm_mean;
    fact.update.steps_per_s = round->steps_per_s;
    fact.update.seconds = round->seconds;
    fact.update.health = health;
    esper_store_tell(self->store, &fact, 1);
}

void learn_record_round(learn *self, const esper_learn_round *round)
{
    if (self->store == NULL)
        return;
    for (int env = 0; env < self->config.envs; env++) {
        push_rewards(self, env);
        push_episode(self, env);
    }
    push_update(self, round);
    if (esper_store_status(self->store) != ESPER_OK)
        esper_log_warn(self->desc->log, "the learning is no longer recorded: %s", esper_last_error());
}
