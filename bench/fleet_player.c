/* The engine's own fleet, playing decisions that were recorded elsewhere: what bench/grow_env holds GrowEnv against.
 *
 *   usage: fleet_player TASK N_ENVS [KEY=VALUE...]
 *
 * A line of input, "free NUMBER FILE" or "lock NUMBER FILE", is a round: the episodes NUMBER, NUMBER + 1, ... by the actions in
 * FILE, int32 (n_decisions, n_envs, n_heads). free: as `esper learn` plays them, none waiting for another; lock: one decision of
 * each at a time, as for a program that decides. A line of output: seconds by the clock, of processors, and the sum of rewards. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "run/grow_env_internal.h"

enum { MOST_SETTINGS = 32 };

typedef struct player {
    esper_grow_env *env; /* whose engine it is */
    esper_fleet *fleet;
    int32_t *actions;
    int n_envs, n_steps;
    int step[1024]; /* of each environment */
    double reward[1024];
} player;

static void die(void)
{
    fprintf(stderr, "fleet_player: %s\n", esper_last_error());
    exit(1);
}

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static esper_status decide(void *context, int env, const esper_policy_view *view, esper_backend_stream *stream,
                           esper_decision *decision_out)
{
    player *self = context;
    size_t at = ((size_t)self->step[env]++ * (size_t)self->n_envs + (size_t)env) * ESPER_N_HEADS;
    esper_action action;

    (void)view;
    (void)stream;
    memcpy(action.choice, self->actions + at, sizeof(action.choice));
    esper_action_decide(&action, decision_out);
    return ESPER_OK;
}

static esper_status settle(void *context, int env, const esper_env_look *look)
{
    player *self = context;

    if (self->step[env] > 0)
        self->reward[env] +=
            look->n_rollbacks > 0 || look->stopped ? ESPER_GROWTH_PENALTY : esper_growth_reward(look->growth)->total;
    return ESPER_OK;
}

static esper_status play(player *self, uint64_t number, bool in_lock_step)
{
    esper_fleet_mind mind = {.context = self, .decide = decide, .settle = settle};

    memset(self->step, 0, sizeof(self->step));
    memset(self->reward, 0, sizeof(self->reward));
    if (esper_fleet_begin(self->fleet, number) != ESPER_OK)
        return ESPER_E_STATE;
    if (!in_lock_step)
        return esper_fleet_play(self->fleet, self->n_steps, true, &mind, NULL);
    for (int t = 0; t < self->n_steps; t++)
        if (esper_fleet_play(self->fleet, 1, t + 1 == self->n_steps, &mind, NULL) != ESPER_OK)
            return ESPER_E_STATE;
    return ESPER_OK;
}

static void play_rounds(player *self)
{
    size_t n = (size_t)self->n_steps * (size_t)self->n_envs * ESPER_N_HEADS;
    char line[1024], mode[8], path[1000];
    uint64_t number;

    while (fgets(line, sizeof(line), stdin) != NULL &&
           sscanf(line, "%7s %" SCNu64 " %999s", mode, &number, path) == 3) {
        FILE *file = fopen(path, "rb");
        double wall, cpu, sum = 0.0;

        if (file == NULL || fread(self->actions, sizeof(int32_t), n, file) != n) {
            fprintf(stderr, "fleet_player: %s does not hold %zu numbers\n", path, n);
            exit(1);
        }
        fclose(file);
        wall = esper_clock_seconds();
        cpu = cpu_seconds();
        if (play(self, number, strcmp(mode, "lock") == 0) != ESPER_OK)
            die();
        wall = esper_clock_seconds() - wall;
        cpu = cpu_seconds() - cpu;
        for (int i = 0; i < self->n_envs; i++)
            sum += self->reward[i];
        printf("%.6f %.6f %a\n", wall, cpu, sum);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    esper_grow_env_setting settings[MOST_SETTINGS];
    esper_grow_env_options options;
    player *self = calloc(1, sizeof(*self));

    if (argc < 3 || self == NULL)
        return 2;
    esper_grow_env_options_init(&options);
    options.task = argv[1];
    options.n_envs = (uint32_t)atoi(argv[2]);
    options.settings = settings;
    for (int i = 3; i < argc && options.n_settings < MOST_SETTINGS; i++) {
        char *value = strchr(argv[i], '=');

        if (value == NULL)
            return 2;
        *value = '\0';
        settings[options.n_settings++] = (esper_grow_env_setting){argv[i], value + 1};
    }
    if (esper_grow_env_open(&options, &self->env) != ESPER_OK)
        die();
    self->n_envs = self->env->config.envs;
    self->n_steps = self->env->config.epochs;
    if (esper_fleet_open(&(esper_fleet_desc){.engine = self->env->engine, .n_envs = self->n_envs}, &self->fleet) !=
        ESPER_OK)
        die();
    self->actions = calloc((size_t)self->n_steps * (size_t)self->n_envs * ESPER_N_HEADS, sizeof(int32_t));
    if (self->actions == NULL)
        return 1;
    play_rounds(self);
    esper_fleet_close(self->fleet);
    esper_grow_env_close(self->env);
    free(self->actions);
    free(self);
    return 0;
}
