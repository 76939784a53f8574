/* The loop of `esper learn`. */
#include "run/learn.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build_info.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/shell.h"
#include "base/status.h"
#include "dist/agree.h"
#include "run/learn_internal.h"
#include "run/pact.h"
#include "run/settings.h"

/* ------------------------------------------------------------------------------------------------ opening */

/* What a policy that learned on this entry alone would be for, out of an environment as it will be met. */
static esper_status identify_entry(learn *self, const esper_curriculum_entry *entry, esper_learned_identity *identity)
{
    const esper_config *config = &self->base.config;
    const char *ids[ESPER_MAX_SLOTS];
    const esper_network *network;
    esper_env *env;
    esper_status status;

    ESPER_TRY(esper_env_open(&(esper_env_desc){.engine = entry->engine, .seed = config->seed}, &env));
    network = esper_env_look_at(env).network;
    for (int k = 0; k < network->slots.n; k++)
        ids[k] = network->slots.slot[k].id;
    esper_learned_identity_init(identity);
    snprintf(identity->task, sizeof(identity->task), "%s", self->base.task->name);
    snprintf(identity->reward, sizeof(identity->reward), "%.*s", (int)sizeof(identity->reward) - 1, config->reward);
    identity->topology = entry->engine->host.topology;
    identity->max_epochs = entry->engine->config.epochs;
    identity->gates = config->gates;
    identity->width = identity->hidden = config->policy_width;
    if (entry == self->curriculum.entry)
        self->params_host = esper_net_count_params(&network->net, 0);
    status = esper_learned_identity_set_slots(identity, ids, network->slots.n);
    esper_env_close(env);
    return status == ESPER_OK ? ESPER_OK : esper_fail_within(status, "%s: ", entry->task->name);
}

/* What the policy is for: the kinds of all hosts, with room for the slots of the one that has most, and for the longest episodes. */
static esper_status identify(learn *self)
{
    esper_learned_identity *identity = &self->identity;

    self->each = esper_mem_alloc((size_t)self->curriculum.n * sizeof(*self->each));
    if (self->each == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "what %d tasks are", self->curriculum.n);
    for (int i = 0; i < self->curriculum.n; i++)
        ESPER_TRY(identify_entry(self, &self->curriculum.entry[i], &self->each[i]));
    *identity = self->each[0];
    for (int i = 0; i < self->curriculum.n; i++) {
        identity->topologies |= 1u << self->each[i].topology;
        if (self->each[i].n_slots > identity->n_slots) {
            identity->n_slots = self->each[i].n_slots;
            identity->n_features = self->each[i].n_features;
            memcpy(identity->slots, self->each[i].slots, sizeof(identity->slots));
        }
    }
    identity->max_epochs = self->curriculum.most_epochs;
    return ESPER_OK;
}

int learn_entry_of(const learn *self, uint64_t episode, uint32_t rounds_before)
{
    return esper_curriculum_draw(&self->curriculum, episode, (double)rounds_before / self->base.config.rounds);
}

static esper_engine *engine_of(void *context, uint64_t episode)
{
    const learn *self = context;

    return self->curriculum.entry[learn_entry_of(self, episode, self->round)].engine;
}

/* The pact is about the run's own task; what else there is to learn on may lie in folders, which ranks may have each their own of. */
static esper_status check_lists(const learn *self)
{
    bool alike;

    for (int i = 1; i < self->curriculum.n; i++) {
        const esper_curriculum_entry *entry = &self->curriculum.entry[i];

        ESPER_TRY(esper_ranks_are_alike(&self->base.ranks, esper_dataset_hash(entry->data), &alike));
        if (!alike)
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "tasks: %s: ranks have different data (task %d of %d): give all of them the same files",
                              entry->task->name, i + 1, self->curriculum.n);
    }
    return ESPER_OK;
}

static esper_status open_parts(learn *self)
{
    const esper_config *config = &self->base.config;
    esper_learner_desc learner = {
        .config = config, .identity = &self->identity, .ranks = &self->base.ranks, .n_envs = config->envs};
    esper_config hosts = *config;
    esper_fleet_desc fleet = {0};
    esper_status status;

    if (config->epochs < 2)
        return ESPER_FAIL(ESPER_E_CONFIG, "an episode of %d epochs leaves nothing to decide: set epochs to 2 or more",
                          config->epochs);
    hosts.policy_cmd[0] = '\0'; /* it is not each environment's own */
    snprintf(hosts.policy, sizeof(hosts.policy), "%s", esper_policy_none.name);
    if (config->policy_cmd[0] != '\0')
        hosts.tasks[0] = '\0'; /* a program is shown one kind of host */
    status = run_base_open_engine(&self->base, &hosts);
    if (status == ESPER_OK)
        status = esper_curriculum_init(&self->curriculum, self->base.task, self->base.engine);
    if (status == ESPER_OK)
        status = identify(self);
    ESPER_TRY(run_base_settle(&self->base, status));
    if (esper_ranks_are_many(&self->base.ranks)) { /* can they work together? */
        ESPER_TRY(esper_pact_check(self->base.engine, true, self->base.ranks.comm));
        ESPER_TRY(check_lists(self));
    }
    learner.backend = self->base.engine->backend;
    learner.n_steps = self->curriculum.most_epochs;
    ESPER_TRY(esper_learner_open(&learner, &self->learner));
    fleet.engine = self->base.engine;
    if (self->curriculum.n > 1) {
        fleet.engine_of = engine_of;
        fleet.context = self;
    }
    fleet.n_envs = esper_learner_own_envs(self->learner);
    fleet.n_seeds = config->host_seeds;
    assert(fleet.n_envs >= 1 && fleet.n_envs <= config->envs);
    ESPER_TRY(esper_fleet_open(&fleet, &self->fleet));
    self->decisions = esper_mem_alloc((size_t)fleet.n_envs * sizeof(*self->decisions));
    self->own_episodes = esper_mem_alloc((size_t)fleet.n_envs * sizeof(*self->own_episodes));
    self->episodes = esper_mem_alloc((size_t)config->envs * sizeof(*self->episodes));
    self->last_views = esper_mem_alloc((size_t)fleet.n_envs * sizeof(*self->last_views));
    if (self->decisions == NULL || self->own_episodes == NULL || self->episodes == NULL || self->last_views == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%d environments", config->envs);
    return config->policy_cmd[0] != '\0' ? learn_open_program(self) : ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the file */

/* What its environments are trained on; not in files of 0.1. */
static const char data_note[] = "learn_data";

/* How many rows a store has been told of it, by table; not in older files of 0.1. */
static const char rows_note[] = "learn_rows";

static esper_status write_policy(learn *self)
{
    char round[32], episodes[32], steps[32], data[32], history[LEARN_RECENT * 32 + 96], rows[LEARN_ROWS_CHARS];
    const esper_safetensors_note notes[] = {
        {ESPER_LEARNED_CONFIG_NOTE, self->record_file},
        {"learn_round", round},
        {"learn_episodes", episodes},
        {"learn_steps", steps},
        {"learn_returns", history},
        {data_note, data},
        {"learn_build", esper_build_commit()},
        {rows_note, rows}, /* the last, so that it can be left out */
    };
    size_t n_notes = sizeof(notes) / sizeof(notes[0]) - (self->counted ? 0 : 1);
    int n = 0;
    esper_status status = ESPER_OK;

    snprintf(round, sizeof(round), "%" PRIu32, self->round);
    snprintf(episodes, sizeof(episodes), "%" PRIu64, self->n_episodes);
    snprintf(steps, sizeof(steps), "%" PRIu64, self->n_steps);
    snprintf(data, sizeof(data), "%016" PRIx64, esper_curriculum_hash_data(&self->curriculum));
    learn_write_rows(self, rows);
    n = snprintf(history, sizeof(history), "%a %" PRIu32, self->best, self->best_round);
    for (int i = 0; i < LEARN_RECENT; i++)
        n += snprintf(history + n, sizeof(history) - (size_t)n, " %a", self->returns[i]);
    if (self->base.writes && self->program == NULL) {
        esper_store_catch_up(self->base.store);
        status = esper_learner_save(self->learner, notes, n_notes, self->result.policy);
    }
    if (status != ESPER_OK)
        snprintf(self->why_unsaved, sizeof(self->why_unsaved), "%s", esper_last_error());
    return status;
}

static esper_status save(learn *self)
{
    ESPER_TRY(run_base_settle(&self->base, write_policy(self)));
    self->saved_round = self->round;
    return ESPER_OK;
}

/* A disk that is full, or fails, is no reason to stop learning: it is told, and tried again after the next round. */
static esper_status save_or_go_on(learn *self)
{
    esper_status status = write_policy(self);
    uint64_t unsaved = status == ESPER_E_IO;

    ESPER_TRY(run_base_settle(&self->base, esper_ranks_any(&self->base.ranks, &unsaved)));
    if (unsaved == 0) {
        if (status != ESPER_OK)
            status = ESPER_FAIL(status, "%s", self->why_unsaved);
        ESPER_TRY(run_base_settle(&self->base, status));
        if (self->is_unsaved && self->base.writes)
            esper_log_write(self->desc->log, ESPER_LOG_INFO, "the policy is saved again, as of round %" PRIu32,
                            self->round);
        self->saved_round = self->round;
    } else if (!self->is_unsaved && self->base.writes) {
        esper_log_warn(self->desc->log, "%s. The learning goes on, and the policy is saved when there is room",
                       self->why_unsaved);
    }
    self->is_unsaved = unsaved != 0;
    return ESPER_OK;
}

static void note_unwritten(learn *self)
{
    char quoted[ESPER_SHELL_CHARS];

    if (self->is_unsaved && self->base.writes && !self->result.stopped)
        snprintf(self->result.unwritten, sizeof(self->result.unwritten),
                 "the learning came to its end, but its policy is not saved: %s. When there is room, --resume %s goes "
                 "on from round %" PRIu32,
                 self->why_unsaved, esper_shell_quote_path(self->base.dir, quoted), self->saved_round);
}

/* For the records: learning whose policy is not saved is not done. */
static esper_status way_it_ended(const learn *self, esper_status status)
{
    if (status != ESPER_OK)
        return status;
    return self->result.stopped ? ESPER_E_STOPPED : self->is_unsaved ? ESPER_E_IO : ESPER_OK;
}

static esper_status read_number(const esper_safetensors *file, const char *key, uint64_t *value_out)
{
    const char *text = esper_safetensors_note_find(file, key);
    char *end;

    if (text == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s does not say its %s: it is a policy, but no checkpoint of a training",
                          esper_safetensors_name(file), key);
    *value_out = strtoull(text, &end, 10);
    return *end == '\0' && end != text
               ? ESPER_OK
               : ESPER_FAIL(ESPER_E_FORMAT, "%s: '%.40s' is no %s", esper_safetensors_name(file), text, key);
}

/* Where it stood. */
static esper_status take_up(learn *self, const esper_learned_file *file)
{
    const esper_safetensors *content = esper_learned_content(file);
    const char *returns = esper_safetensors_note_find(content, "learn_returns");
    const char *recorded = esper_safetensors_note_find(content, data_note);
    const char *rows = esper_safetensors_note_find(content, rows_note);
    char data[32], *at;
    uint64_t round;

    ESPER_TRY(esper_learned_check(file, &self->identity));
    snprintf(data, sizeof(data), "%016" PRIx64, esper_curriculum_hash_data(&self->curriculum));
    if (recorded != NULL && strcmp(recorded, data) != 0)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "%s: the data is not what the policy has learned on so far: it would go on as another run. "
                          "Bring that data back (--data PATH where it has moved), or start a new run",
                          esper_safetensors_name(content));
    ESPER_TRY(read_number(content, "learn_round", &round));
    ESPER_TRY(read_number(content, "learn_episodes", &self->n_episodes));
    ESPER_TRY(read_number(content, "learn_steps", &self->n_steps));
    if (returns == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s does not say its returns", esper_safetensors_name(content));
    self->best = strtod(returns, &at);
    self->best_round = (uint32_t)strtoul(at, &at, 10);
    for (int i = 0; i < LEARN_RECENT; i++)
        self->returns[i] = strtod(at, &at);
    if (*at != '\0')
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: its returns are damaged", esper_safetensors_name(content));
    self->counted = rows != NULL;
    if (self->counted && !learn_read_rows(self, rows))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: its counts of rows are damaged", esper_safetensors_name(content));
    self->round = (uint32_t)round;
    return esper_learner_resume(self->learner, file);
}

/* ------------------------------------------------------------------------------------------------ beginning */

/* The learner decides. Who asked for somebody else is told; what files and the environment say serves other commands. */
static esper_status take_over(esper_config *config)
{
    static const char *const keys[] = {"policy", "decisions"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (esper_config_place_of(config, esper_config_find(keys[i])) == ESPER_CONFIG_FLAG)
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "%s says who decides, and here a policy learns to: leave it out. (A program that learns "
                              "by itself is given by policy_cmd)",
                              keys[i]);
    snprintf(config->policy, sizeof(config->policy), "none");
    config->decisions[0] = '\0';
    if (esper_config_place_of(config, esper_config_find("policy_cmd")) != ESPER_CONFIG_FLAG)
        config->policy_cmd[0] = '\0';
    return ESPER_OK;
}

/* The configuration of the file with what was asked for laid over it, and its task. */
static esper_status take_settings(learn *self, const char *path, const esper_learned_file *file)
{
    const char *text = esper_safetensors_note_find(esper_learned_content(file), ESPER_LEARNED_CONFIG_NOTE);
    const esper_task *task;
    esper_config saved;

    if (text == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s is a policy, but no checkpoint of a training: it cannot be resumed",
                          path);
    esper_config_init(&saved);
    ESPER_TRY(esper_config_load_text(&saved, text, strlen(text), path));
    esper_config_withdraw(&saved, esper_config_find("cache")); /* where to write is not for a file to say */
    ESPER_TRY(esper_task_find(esper_learned_identity_of(file)->task, &task));
    ESPER_TRY(run_base_take_up(&self->base, path, task, &saved));
    return esper_settings_check_program(self->base.asked.config, &self->base.config, path);
}

/* All ranks go on from the same content, wherever each has it from. */
static esper_status resume_alike(learn *self, const char *path, const esper_learned_file *file)
{
    bool alike;

    ESPER_TRY(esper_ranks_are_alike(&self->base.ranks, esper_learned_hash_of(file), &alike));
    if (!alike)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "ranks have different policies to go on with; here it is %s: give all of "
                          "them the same --resume",
                          path);
    ESPER_TRY(open_parts(self));
    return run_base_settle(&self->base, take_up(self, file));
}

static esper_status resume(learn *self, char path[ESPER_PATH_CHARS])
{
    char quoted[ESPER_SHELL_CHARS];
    esper_learned_file *file = NULL;
    esper_status status = esper_run_policy_find(self->desc->resume, path);

    if (status == ESPER_OK)
        status = esper_learned_open(path, &file);
    if (status == ESPER_OK)
        status = take_settings(self, path, file);
    status = run_base_settle(&self->base, status);
    if (status == ESPER_OK)
        status = resume_alike(self, path, file);
    esper_learned_close(file);
    ESPER_TRY(status);
    if (self->round < (uint32_t)self->base.config.rounds)
        return ESPER_OK;
    return ESPER_FAIL(ESPER_E_STATE,
                      "%s has had %" PRIu32 " rounds, and %d were asked for: ask for more with --rounds N, or use "
                      "it: `esper grow %s --policy %s`",
                      path, self->round, self->base.config.rounds, self->base.task->name,
                      esper_shell_quote_path(path, quoted));
}

static esper_status begin(learn *self)
{
    const char *from = NULL;
    char path[ESPER_PATH_CHARS];
    esper_config config, usual;

    self->best = (double)NAN;
    for (int i = 0; i < LEARN_RECENT; i++)
        self->returns[i] = (double)NAN;
    if (self->desc->resume != NULL) {
        ESPER_TRY(resume(self, path));
        from = path;
    } else {
        self->counted = true;
        ESPER_TRY(take_over(&self->base.config));
        ESPER_TRY(open_parts(self));
    }
    self->first_round = self->saved_round = self->round;
    if (self->desc->hears != NULL)
        *self->desc->hears = ESPER_HEARS;
    ESPER_TRY(run_base_make_dir(&self->base, from));
    ESPER_TRY(run_base_begin_dir(&self->base));
    ESPER_TRY(esper_run_path(self->base.dir, ESPER_RUN_POLICY, self->result.policy));
    /* The policy's file does not say where it lies and who watched, so that the same learning gives the same bytes anywhere. */
    config = self->base.config;
    esper_config_init(&usual);
    config.run_dir[0] = '\0';
    config.progress = usual.progress;
    config.log_level = usual.log_level;
    esper_config_write(&config, self->record_file);
    if (from != NULL && run_base_stays(&self->base, from))
        return ESPER_OK;
    return save(
        self); /* a place that cannot be written is better known now than after a round; and it can be resumed */
}

/* ------------------------------------------------------------------------------------------------ a round */

static esper_learn_view view_of(learn *self, double part)
{
    double done = self->round - self->first_round + part;
    double each = (esper_clock_seconds() - self->began) / done; /* seconds of a round */

    return (esper_learn_view){
        .task = self->base.task,
        .config = &self->base.config,
        .identity = &self->identity,
        .run_dir = self->base.dir,
        .params_host = self->params_host,
        .params_policy =
            esper_net_count_params(esper_policy_net_program(esper_ppo_net(esper_learner_ppo(self->learner))), 0),
        .n_ranks = self->base.ranks.size,
        .n_threads = esper_pool_threads(self->base.engine->pool),
        .round = self->round + 1,
        .part = part,
        .seconds_left = done < 0.25 ? -1.0 : each * ((double)self->base.config.rounds - self->round - part),
    };
}

/* Between steps all ranks hear of a wish to stop, and of a failure. */
static esper_status settle_step(learn *self, esper_status status)
{
    uint64_t wanted = self->desc->stop != NULL && *self->desc->stop != 0;

    if (run_base_is_ended(&self->base))
        return ESPER_FAIL(ESPER_E_STOPPED, "the launcher has ended the job");
    ESPER_TRY(run_base_settle(&self->base, status));
    ESPER_TRY(esper_ranks_any(&self->base.ranks, &wanted));
    return wanted == 0 ? ESPER_OK : ESPER_FAIL(ESPER_E_STOPPED, "somebody wants the learning to stop");
}

static void show(learn *self, double part, const esper_learn_round *round)
{
    const esper_learn_observer *observer = self->desc->observer;
    esper_learn_view view = view_of(self, part);

    if (observer != NULL && round != NULL && observer->round != NULL)
        observer->round(observer->context, &view, round);
    if (observer != NULL && round == NULL && observer->step != NULL)
        observer->step(observer->context, &view);
}

/* While environments are played: when they have made as many decisions together as one more of each. The last is shown when the
 * round is whole. */
static void show_part(void *context, double part)
{
    learn *self = context;
    int n = (int)(part * self->curriculum.most_epochs);

    if (n <= self->n_shown || n >= self->curriculum.most_epochs)
        return;
    self->n_shown = n;
    show(self, (double)n / self->curriculum.most_epochs, NULL);
}

/* Decisions of all environments from this one on, and the way to the next. Returns how many: all that are left where nobody has
 * to be heard between them; a program is asked for one of each in turn, and ranks meet after each. */
static esper_status play_steps(learn *self, int step, int *n_out)
{
    int epochs = self->curriculum.most_epochs;
    esper_fleet_mind mind = esper_learner_mind(self->learner);
    esper_fleet_follower all = {.stop = self->desc->stop, .context = self, .step = show_part};
    double began = esper_clock_seconds();

    *n_out = 1;
    self->n_shown = step;
    if (self->program == NULL && !esper_ranks_are_many(&self->base.ranks)) {
        *n_out = epochs - step;
        return esper_fleet_play(self->fleet, *n_out, true, &mind, &all);
    }
    if (self->program == NULL)
        return esper_fleet_play(self->fleet, 1, step + 1 == epochs, &mind, NULL);
    ESPER_TRY(learn_ask_program(self, step));
    self->times.policy += esper_clock_seconds() - began;
    return (step + 1 < epochs ? esper_fleet_advance : esper_fleet_finish)(self->fleet, self->decisions);
}

static esper_status begin_round(learn *self)
{
    ESPER_TRY(esper_fleet_begin(self->fleet, self->n_episodes + (uint64_t)esper_learner_first_env(self->learner)));
    esper_learner_begin(self->learner, self->n_episodes);
    return self->program != NULL ? esper_fleet_advance(self->fleet, NULL) : ESPER_OK;
}

/* Episodes of all ranks, in the order of environments, and what they come to. */
static esper_status sum_up(learn *self, esper_learn_round *round)
{
    int own = esper_learner_own_envs(self->learner);
    double n = self->base.config.envs, squares = 0.0, sum = 0.0;

    for (int i = 0; i < own; i++)
        self->own_episodes[i] = esper_fleet_episode(self->fleet, i);
    ESPER_TRY(esper_ranks_gather(&self->base.ranks, self->own_episodes, (size_t)own * sizeof(*self->own_episodes),
                                 self->episodes));
    for (int i = 0; i < self->base.config.envs; i++) {
        const esper_episode *episode = &self->episodes[i];

        sum += episode->total_reward;
        round->accuracy += (isfinite(episode->accuracy_final) ? episode->accuracy_final : 0.0) / n;
        round->params += (double)episode->params / n;
        round->n_kept += episode->n_kept / n;
        round->n_germinated += episode->n_germinated / n;
    }
    round->total_reward = sum / n;
    for (int i = 0; i < self->base.config.envs; i++)
        squares += pow(self->episodes[i].total_reward - round->total_reward, 2.0);
    round->total_reward_error = n > 1.0 ? sqrt(squares / (n - 1.0) / n) : (double)NAN;
    return ESPER_OK;
}

/* The mean of the last rounds, and whether it is the highest so far. */
static void take_recent(learn *self, esper_learn_round *round)
{
    double mean = 0.0;

    self->returns[self->round % LEARN_RECENT] = round->total_reward;
    for (int i = 0; i < LEARN_RECENT; i++)
        mean += self->returns[i] / LEARN_RECENT;
    round->recent = mean; /* NaN until there are enough */
    if (isfinite(mean) && !(mean <= self->best)) {
        self->best = mean;
        self->best_round = self->round + 1;
    }
    round->best = self->best;
}

/* Threads that play environments: the pool's, or one for each environment where they wait for a device. */
static double count_threads(const learn *self)
{
    int n_envs = self->learner != NULL ? esper_learner_own_envs(self->learner) : 1, n_threads, width;

    if (self->base.engine == NULL)
        return 1.0;
    n_threads = esper_pool_threads(self->base.engine->pool);
    width = esper_backend_width(self->base.engine->backend, self->base.engine->pool);
    return width <= n_threads ? n_threads : n_envs < width ? n_envs : width;
}

static void add_times(learn *self, double wall, const esper_fleet_times *before)
{
    esper_fleet_times now = esper_fleet_times_of(self->fleet);
    double threads = count_threads(self), busy;

    self->times.hosts += now.train - before->train;
    self->times.validation += now.valid - before->valid;
    busy = now.train - before->train + now.valid - before->valid + now.act - before->act + now.open - before->open +
           now.mind - before->mind;
    self->deciding += now.mind - before->mind;
    self->times.waiting += (now.wall - before->wall) * threads - busy;
    self->times.bookkeeping += now.act - before->act + now.open - before->open;
    self->round_wall += wall;
    self->fleet_wall += now.wall - before->wall;
}

static esper_status learn_from(learn *self, esper_learn_round *round)
{
    if (self->program == NULL)
        return esper_learner_finish(self->learner, &round->report);
    round->report.n_steps = self->base.config.envs * self->curriculum.most_epochs;
    for (int head = 0; head < ESPER_N_HEADS; head++)
        round->report.update.head_entropy[head] = (double)NAN;
    round->report.update.move.kl = round->report.update.explained_variance = (double)NAN;
    return learn_tell_program(self);
}

/* Every rank computes the whole update: what differs afterwards is a fault, and nobody can go on. The policy that was saved is
 * one on which all agreed. */
static esper_status agree(const learn *self)
{
    esper_agree_state state = {.sequence = self->round + 1};
    esper_agree_result result;
    char text[512];

    if (!esper_ranks_are_many(&self->base.ranks))
        return ESPER_OK;
    state.weights = esper_learner_hash(self->learner);
    ESPER_TRY(esper_agree(self->base.ranks.comm, &state, &result));
    if (result.fields == 0)
        return ESPER_OK;
    esper_agree_text(&result, self->base.ranks.size, text, sizeof(text));
    return ESPER_FAIL(ESPER_E_STATE,
                      "round %" PRIu32 ": %s. The ranks no longer learn the same. The policy of round %" PRIu32
                      ", on which they agreed, is kept: --resume %s",
                      self->round + 1, text, self->round, self->base.dir);
}

static esper_status play_round(learn *self, esper_learn_round *round_out)
{
    esper_fleet_times before = esper_fleet_times_of(self->fleet);
    esper_learn_round round = {.round = self->round + 1};
    double began = esper_clock_seconds(), updating;
    esper_status status;

    if (self->desc->drill != NULL)
        esper_learner_drill(self->learner, self->desc->drill(round.round));
    status = settle_step(self, begin_round(self));
    for (int step = 0, n; status == ESPER_OK && step < self->curriculum.most_epochs; step += n) {
        status = settle_step(self, play_steps(self, step, &n));
        if (status == ESPER_OK)
            show(self, (double)(step + n) / self->curriculum.most_epochs, NULL);
    }
    if (status != ESPER_OK) { /* what it was spent on is known all the same */
        add_times(self, esper_clock_seconds() - began, &before);
        return status;
    }
    ESPER_TRY(sum_up(self, &round));
    updating = esper_clock_seconds();
    ESPER_TRY(run_base_settle(&self->base, learn_from(self, &round)));
    ESPER_TRY(agree(self));
    self->times.policy += esper_clock_seconds() - updating;
    take_recent(self, &round);
    round.seconds = esper_clock_seconds() - began;
    round.steps_per_s = round.report.n_steps / round.seconds;
    add_times(self, round.seconds, &before);
    *round_out = round;
    return ESPER_OK;
}

const char *learn_failures(const esper_ppo_report *report, char text[LEARN_FAILURES_CHARS])
{
    text[0] = '\0';
    for (int i = 0; i < ESPER_PPO_N_SOURCES; i++)
        if (report->failed >> i & 1u)
            snprintf(text + strlen(text), LEARN_FAILURES_CHARS - strlen(text), "%s%s", text[0] != '\0' ? ", " : "",
                     esper_ppo_source_name(i));
    return text;
}

static void warn_about(const learn *self, const esper_learn_round *round)
{
    const esper_ppo_report *report = &round->report.update;
    char names[LEARN_FAILURES_CHARS];

    if (!self->base.writes)
        return;
    if (report->failed != 0)
        esper_log_warn(self->desc->log, "round %" PRIu32 ": not finite: %s; %d minibatch%s skipped%s", round->round,
                       learn_failures(report, names), report->n_skipped, report->n_skipped == 1 ? "" : "es",
                       report->performed ? "" : ", and with them the whole update");
    if (round->report.n_bad_rewards + round->report.n_bad_observations > 0)
        esper_log_warn(self->desc->log,
                       "round %" PRIu32 ": %" PRIu64 " reward%s and %" PRIu64 " reading%s not finite, left out",
                       round->round, round->report.n_bad_rewards, round->report.n_bad_rewards == 1 ? "" : "s",
                       round->report.n_bad_observations, round->report.n_bad_observations == 1 ? "" : "s");
    for (int i = 0; i < ESPER_N_ANOMALIES; i++)
        if (report->findings.told >> i & 1u)
            esper_log_debug(self->desc->log, "round %" PRIu32 ": %s", round->round, esper_anomaly_name(i));
}

static esper_status end_round(learn *self, const esper_learn_round *round)
{
    char names[LEARN_FAILURES_CHARS];

    assert(round->round == self->round + 1);
    self->round++;
    self->n_episodes += (uint64_t)self->base.config.envs;
    self->n_steps += (uint64_t)round->report.n_steps;
    self->result.last = *round;
    self->result.n_skipped += (uint64_t)round->report.update.n_skipped;
    self->result.n_bad_rewards += round->report.n_bad_rewards;
    self->result.n_bad_observations += round->report.n_bad_observations;
    self->result.last.n_episodes = self->n_episodes;
    warn_about(self, round);
    learn_record_round(self, &self->result.last);
    ESPER_TRY(save_or_go_on(self));
    show(self, 0.0, &self->result.last);
    if (round->report.update.health != ESPER_PPO_HALTED)
        return ESPER_OK;
    return ESPER_FAIL(
        ESPER_E_STATE,
        "%d updates in a row failed, the last because of what is not finite: %s. The policy is saved as it "
        "was before them: %s. A lower ppo_lr may help",
        (int)ESPER_PPO_MAX_FAILURES, learn_failures(&round->report.update, names), self->result.policy);
}

static esper_status play_rounds(learn *self)
{
    esper_learn_round round;
    double played;

    while (self->round < (uint32_t)self->base.config.rounds && !self->result.settled) {
        ESPER_TRY(play_round(self, &round));
        played = esper_clock_seconds();
        ESPER_TRY(end_round(self, &round));
        self->round_wall += esper_clock_seconds() - played; /* records and the file: bookkeeping, too */
        self->result.settled = self->base.config.patience > 0 && isfinite(self->best) &&
                               self->round - self->best_round >= (uint32_t)self->base.config.patience;
    }
    return ESPER_OK;
}

/* To be stopped, by hand or by the launcher, is no failure. Where a rank was lost, what is saved is told with it. */
static esper_status play_all(learn *self)
{
    bool many = esper_ranks_are_many(&self->base.ranks);
    esper_status status = play_rounds(self);
    char message[1024];

    if (status == ESPER_E_STOPPED || (status != ESPER_OK && run_base_is_ended(&self->base))) {
        self->round = self->saved_round; /* it may have been counted, and not saved */
        self->result.stopped = true;
        return ESPER_OK;
    }
    if (status == ESPER_OK || !many || !esper_comm_is_broken(self->base.ranks.comm) || self->program != NULL)
        return status;
    snprintf(message, sizeof(message), "%s", esper_last_error());
    return ESPER_FAIL(status, "%s. The policy of round %" PRIu32 " is saved: --resume %s goes on from there", message,
                      self->saved_round, self->base.dir);
}

/* ------------------------------------------------------------------------------------------------ the whole */

static void take_result(learn *self)
{
    double threads = count_threads(self);

    self->result.task = self->base.task->name;
    if (self->program != NULL)
        self->result.policy[0] = '\0';
    self->result.rounds = self->round;
    self->result.rounds_asked = (uint32_t)self->base.config.rounds;
    self->result.n_episodes = self->n_episodes;
    self->result.n_steps = self->n_steps;
    self->result.seconds = esper_clock_seconds() - self->began;
    self->result.times = self->times;
    self->result.times.bookkeeping += (self->round_wall - self->fleet_wall - self->times.policy) * threads;
    self->result.times.deciding = self->deciding;
    self->result.times.policy = self->times.policy * threads + self->deciding; /* all threads are there for the first */
}

static esper_status run_all(learn *self)
{
    const esper_learn_observer *observer = self->desc->observer;
    char text[ESPER_GROWTH_HINT_CHARS];
    esper_learn_view view;
    esper_status status;

    ESPER_TRY(begin(self));
    self->began = esper_clock_seconds();
    learn_open_records(self);
    if (self->base.writes && esper_growth_foresee(&self->base.config, text)[0] != '\0')
        esper_log_warn(self->desc->log, "%s", text); /* before there is a view to write into */
    for (int i = 0; self->base.writes && self->curriculum.n > 1 && i < self->curriculum.n; i++) {
        char told[2 * ESPER_CONFIG_TEXT_CHARS];

        esper_curriculum_tell(&self->curriculum.entry[i], told, sizeof(told));
        esper_log_debug(self->desc->log, "task %d of %d: %s", i + 1, self->curriculum.n, told);
    }
    view = view_of(self, 0.0);
    if (observer != NULL && observer->begin != NULL)
        observer->begin(observer->context, &view);
    status = play_all(self);
    if (self->desc->hears != NULL)
        *self->desc->hears = ESPER_HEARS_AND_LEAVES;
    take_result(self);
    note_unwritten(self);
    return status;
}

esper_status esper_learn_run(const esper_learn_desc *desc, esper_learn_result *result_out)
{
    const run_asked asked = {desc->task, desc->config,  desc->resume,  desc->log, desc->comm,
                             desc->stop, desc->cut_off, desc->threads, NULL};
    learn *self = esper_mem_alloc(sizeof(*self));
    char message[1024]; /* closing must not hide what went wrong first */
    esper_status status;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "learning");
    self->desc = desc;
    run_base_init(&self->base, &asked, ESPER_CONFIG_IN_LEARN, self->result.run_dir);
    status = run_all(self);
    snprintf(message, sizeof(message), "%s", esper_last_error());
    learn_close_records(self, way_it_ended(self, status));
    esper_fleet_close(self->fleet);
    esper_learner_close(self->learner);
    esper_curriculum_fini(&self->curriculum);
    esper_mem_free(self->each);
    esper_policy_close(self->program);
    run_base_fini(&self->base);
    esper_mem_free(self->decisions);
    esper_mem_free(self->last_views);
    esper_mem_free(self->own_episodes);
    esper_mem_free(self->episodes);
    if (status == ESPER_OK)
        *result_out = self->result;
    esper_mem_free(self);
    return status == ESPER_OK ? ESPER_OK : ESPER_FAIL(status, "%s", message);
}
