/* What is kept of learning, in a store: every episode, what each of its decisions was worth, and every update. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/status.h"
#include "tensor/backend.h"
#include "run/learn_internal.h"

/* ------------------------------------------------------------------------------------------------ the run */

/* Counted whether there is a store or not: one that is begun later tells what it has not. */
static void tell(learn *self, const esper_fact *fact)
{
    esper_fact copy = *fact; /* which gets its time there */

    self->rows[fact->kind]++;
    if (self->base.store != NULL)
        esper_store_tell(self->base.store, fact, 1);
    esper_bus_tell(&self->logs, &copy, 1);
}

/* For a store that does not have them: a new one, or one of a version that did not tell. */
static void tell_classes(learn *self)
{
    const esper_dataset *data = self->base.data;

    if (!esper_dataset_names_classes(data))
        return;
    for (int i = 0; i < esper_dataset_info_get(data)->classes; i++) {
        esper_fact fact = esper_fact_of(ESPER_FACT_CLASS, 0, 0);

        fact.class.number = i;
        fact.class.name = esper_dataset_class_name(data, i);
        tell(self, &fact);
    }
}

void learn_open_records(learn *self)
{
    esper_fact fact = esper_fact_of(ESPER_FACT_RUN_STARTED, 0, 0);

    fact.run_started.name = self->base.dir;
    fact.run_started.task = self->base.task->name;
    fact.run_started.policy = "learner";
    fact.run_started.reward_mode = self->base.config.reward;
    fact.run_started.gate_mode = esper_config_gates_name(self->base.config.gates);
    fact.run_started.rng_seed = self->base.config.seed;
    fact.run_started.threads = esper_pool_threads(self->base.engine->pool);
    fact.run_started.build = esper_build_commit();
    fact.run_started.params_host = self->params_host;
    esper_bus_init(&self->logs, 0);
    if (self->base.writes)
        run_base_add_logs(&self->base, &self->logs, false, self->round);
    if (self->base.writes)
        run_base_open_store(&self->base, &fact, NULL,
                            &(run_mark){self->round, (int64_t)self->n_steps, ESPER_STORE_NO_INT,
                                        self->desc->resume != NULL && self->counted ? self->rows : NULL});
    if (self->rows[ESPER_FACT_CLASS] == 0)
        tell_classes(self);
}

void learn_close_records(learn *self, esper_status status)
{
    esper_status logged = esper_bus_fini(&self->logs);

    esper_fact fact = esper_fact_of(ESPER_FACT_RUN_ENDED, self->round, (int64_t)self->n_steps);

    fact.run_ended.status = (int)status;
    fact.run_ended.epochs = self->round;
    fact.run_ended.steps = (int64_t)self->n_steps;
    if (self->result.last.round > 0)
        fact.run_ended.total_reward = self->result.last.total_reward;
    fact.run_ended.seconds = self->result.seconds;
    run_base_close_store(&self->base, &fact);
    if (logged != ESPER_OK)
        esper_log_warn(self->desc->log, "%s", esper_last_error());
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
    uint64_t episode = self->n_episodes - (uint64_t)self->base.config.envs + (uint64_t)env;
    esper_fact fact = fact_of(self, ESPER_FACT_DECISION);
    const esper_learned_identity *of;
    const esper_blueprint *blueprint;
    esper_decision decision;
    esper_action action;
    char line[96];

    memcpy(action.choice, rollout->actions + at * ESPER_N_HEADS, sizeof(action.choice));
    esper_action_decide(&action, &decision);
    of = &self->each[learn_entry_of(self, episode, self->round - 1)];
    blueprint = esper_policy_blueprint(of->topology, decision.blueprint);
    snprintf(line, sizeof(line), "{\"round\":%" PRIu32 ",\"env\":%d,\"epoch\":%d}", self->round, env, t + 1);
    fact.decision.number = (int64_t)episode * self->curriculum.most_epochs + t;
    fact.decision.accepted = rollout->accepted[at];
    fact.decision.tempo = decision.tempo;
    fact.decision.alpha_target = decision.target;
    fact.decision.source = "policy";
    fact.decision.op = esper_slot_op_name(decision.op);
    fact.decision.slot = of->slots[decision.slot];
    fact.decision.blueprint = blueprint != NULL ? blueprint->name : "";
    fact.decision.blend = esper_style_blend(decision.style);
    fact.decision.line = line;
    tell(self, &fact);
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
        tell(self, &fact);
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
    tell(self, &fact);
}

static void push_update(learn *self, const esper_learn_round *round)
{
    const esper_ppo_report *report = &round->report.update;
    esper_fact fact = fact_of(self, ESPER_FACT_UPDATE);
    static const char *const words[] = {"fine", "degraded", "halted"};
    char health[LEARN_FAILURES_CHARS + 16], names[LEARN_FAILURES_CHARS];

    assert((size_t)report->health < sizeof(words) / sizeof(words[0]));
    snprintf(health, sizeof(health), "%s%s%s", words[report->health], report->failed != 0 ? ", " : "",
             learn_failures(report, names));
    fact.update.round = self->round;
    fact.update.n_episodes = self->base.config.envs;
    fact.update.return_mean = round->total_reward;
    fact.update.return_sd = round->total_reward_error * sqrt(self->base.config.envs);
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
    tell(self, &fact);
}

void learn_record_round(learn *self, const esper_learn_round *round)
{
    for (int env = 0; env < self->base.config.envs; env++) {
        push_rewards(self, env);
        push_episode(self, env);
    }
    push_update(self, round);
    if (self->base.store != NULL && esper_store_status(self->base.store) != ESPER_OK)
        esper_log_warn(self->desc->log, "the learning is no longer recorded: %s", esper_last_error());
}

/* ------------------------------------------------------------------------------------------------ rows, counted */

void learn_write_rows(const learn *self, char text[LEARN_ROWS_CHARS])
{
    size_t used = 0;

    for (int kind = 0; kind < ESPER_FACT_N_TABLES; kind++)
        used += (size_t)snprintf(text + used, LEARN_ROWS_CHARS - used, "%s%s %" PRId64, kind > 0 ? " " : "",
                                 esper_store_table((esper_store_kind)kind), self->rows[kind]);
    assert(used < LEARN_ROWS_CHARS);
}

bool learn_read_rows(learn *self, const char *text)
{
    char name[48];
    long long n;
    int used;

    for (; sscanf(text, " %47s %lld%n", name, &n, &used) == 2; text += used)
        for (int kind = 0; kind < ESPER_FACT_N_TABLES; kind++)
            if (strcmp(name, esper_store_table((esper_store_kind)kind)) == 0 && n >= 0 && n <= INT32_MAX)
                self->rows[kind] = n;
    return *text == '\0';
}
