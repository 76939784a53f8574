/* The vector environment: from a task and settings to a fleet. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "policy/policy.h"
#include "run/grow_env_internal.h"
#include "run/own.h"
#include "run/settings.h"
#include "run/single.h"

void esper_grow_env_options_init(esper_grow_env_options *options)
{
    *options = (esper_grow_env_options){.size = sizeof(*options), .n_envs = 4};
}

int esper_grow_env_abi(void)
{
    return ESPER_GROW_ENV_ABI;
}

/* What is somebody else's affair here: who decides is the caller, and there is no run on disk. A program is never started. */
static esper_status check_key(const char *key)
{
    static const char *const not_here[] = {"envs",
                                           "policy",
                                           "policy_cmd",
                                           "policy_deadline",
                                           "decisions",
                                           "rounds",
                                           "patience",
                                           "run_dir",
                                           "progress",
                                           "log",
                                           "log_level",
                                           "rank_deadline",
                                           "join_deadline",
                                           "comm",
                                           "checkpoint_every",
                                           "host_seeds",
                                           NULL};

    if (!esper_settings_list_has(not_here, key))
        return ESPER_OK;
    if (strcmp(key, "envs") == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "envs is no setting of an environment: give n_envs");
    return ESPER_FAIL(ESPER_E_CONFIG,
                      "%s is no setting of an environment: whoever steps it decides, and nothing of it is kept on disk",
                      key);
}

static esper_status take_settings(esper_config *config, const esper_grow_env_options *options)
{
    static const esper_config_source by_caller = {.place = ESPER_CONFIG_FLAG};
    char n_envs[16];

    esper_config_init(config);
    if (options->n_settings > 0 && options->settings == NULL)
        return ESPER_FAIL(ESPER_E_ARG, "%zu settings, and NULL where they should be", options->n_settings);
    for (size_t i = 0; i < options->n_settings; i++) {
        const esper_grow_env_setting *setting = &options->settings[i];

        if (setting->key == NULL || setting->value == NULL)
            return ESPER_FAIL(ESPER_E_ARG, "setting %zu has no %s", i, setting->key == NULL ? "key" : "value");
        ESPER_TRY(check_key(setting->key));
        ESPER_TRY(esper_config_set(config, setting->key, setting->value, &by_caller));
    }
    snprintf(n_envs, sizeof(n_envs), "%" PRIu32, options->n_envs);
    ESPER_TRY(esper_config_set(config, "envs", n_envs, &by_caller));
    return esper_settings_read_texts(config);
}

/* As `esper learn` has it for a program that learns by itself. */
static esper_status configure(esper_grow_env *env, const esper_grow_env_options *options, const esper_task **task_out)
{
    esper_config *config = &env->config;
    esper_config_use use;

    ESPER_TRY(take_settings(config, options));
    ESPER_TRY(esper_own_find(options->task, config, task_out));
    ESPER_TRY(esper_task_configure(*task_out, ESPER_CONFIG_IN_LEARN, config));
    use = esper_settings_use(*task_out, ESPER_CONFIG_IN_LEARN, config);
    use.deciders = ESPER_CONFIG_BY_PROGRAM;
    use.launched = false;
    ESPER_TRY(esper_settings_check(config, config, &use, NULL));
    if (config->epochs < 2)
        return ESPER_FAIL(ESPER_E_CONFIG, "an episode of %d epochs leaves nothing to decide: set epochs to 2 or more",
                          config->epochs);
    config->policy_cmd[0] = '\0';
    snprintf(config->policy, sizeof(config->policy), "%s", esper_policy_none.name);
    return ESPER_OK;
}

/* What there is to decide about, out of a network as it will be met. */
static esper_status identify(esper_grow_env *env)
{
    esper_grow_env_shape *shape = &env->shape;
    const esper_network *network;
    esper_env *one;
    int n_slots;

    ESPER_TRY(esper_env_open(&(esper_env_desc){.engine = env->engine, .seed = env->config.seed}, &one));
    network = esper_env_look_at(one).network;
    n_slots = network->slots.n;
    for (int k = 0; k < n_slots && k < ESPER_POLICY_MAX_SLOTS; k++)
        snprintf(env->slots[k], sizeof(env->slots[k]), "%s", network->slots.slot[k].id);
    shape->params_host = esper_net_count_params(&network->net, 0);
    esper_env_close(one);
    if (n_slots < 1 || n_slots > ESPER_POLICY_MAX_SLOTS)
        return ESPER_FAIL(ESPER_E_CONFIG, "the host has %d slots, and a policy chooses among 1 to %d", n_slots,
                          (int)ESPER_POLICY_MAX_SLOTS);
    env->topology = env->engine->host.topology;
    shape->size = sizeof(*shape);
    shape->n_envs = (uint32_t)env->config.envs;
    shape->n_decisions = (uint32_t)env->config.epochs;
    shape->n_slots = (uint32_t)n_slots;
    shape->n_features = (uint32_t)esper_features_count(n_slots);
    shape->n_heads = ESPER_N_HEADS;
    shape->n_ops = ESPER_N_SLOT_OPS;
    shape->n_blueprints = (uint32_t)esper_head_size(ESPER_HEAD_BLUEPRINT, n_slots);
    shape->n_styles = ESPER_N_STYLES;
    shape->n_parts = ESPER_N_REWARD_PARTS;
    shape->seed = env->config.seed;
    return ESPER_OK;
}

static esper_status open_parts(esper_grow_env *env, const esper_grow_env_options *options)
{
    size_t n = options->n_envs;
    const esper_task *task;
    esper_dataset_desc data;

    ESPER_TRY(configure(env, options, &task));
    data = esper_task_data(task, &env->config);
    ESPER_TRY(esper_dataset_open(&data, &env->data));
    ESPER_TRY(esper_single_engine(task, &env->config, ESPER_USE_GROW, env->data, 0, &env->engine));
    ESPER_TRY(identify(env));
    ESPER_TRY(esper_fleet_open(&(esper_fleet_desc){.engine = env->engine, .n_envs = (int)n, .stop = &env->stop},
                               &env->fleet));
    env->members = esper_mem_alloc(n * sizeof(*env->members));
    env->which = esper_mem_alloc(n * sizeof(*env->which));
    if (env->members == NULL || env->which == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%zu environments", n);
    return esper_grow_env_seek(env, env->config.seed, 0);
}

esper_status esper_grow_env_open(const esper_grow_env_options *options, esper_grow_env **env_out)
{
    esper_grow_env *env;
    char message[1024]; /* closing must not hide what went wrong first */
    esper_status status;

    if (options == NULL || options->size < sizeof(*options))
        return ESPER_FAIL(ESPER_E_ARG, "options of an environment: set them up with esper_grow_env_options_init");
    if (options->task == NULL || options->task[0] == '\0')
        return ESPER_FAIL(ESPER_E_ARG, "an environment needs a task");
    env = esper_mem_alloc(sizeof(*env));
    if (env == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "an environment");
    env->pid = getpid();
    status = open_parts(env, options);
    if (status != ESPER_OK) {
        snprintf(message, sizeof(message), "%s", esper_last_error());
        esper_grow_env_close(env);
        return ESPER_FAIL(status, "%s", message);
    }
    *env_out = env;
    return ESPER_OK;
}

/* In a child of the process that opened it there are no threads that could be ended, so nothing is touched: what memory it has is
 * the parent's, too. */
void esper_grow_env_close(esper_grow_env *env)
{
    if (env == NULL || env->pid != getpid())
        return;
    esper_fleet_close(env->fleet);
    esper_engine_close(env->engine);
    esper_dataset_close(env->data);
    esper_mem_free(env->members);
    esper_mem_free(env->which);
    esper_mem_free(env);
}
