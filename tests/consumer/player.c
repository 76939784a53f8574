/* A stranger's program that plays growing networks: the experimental part of the header, as C99 and as C++. */
#include <esper.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ENVS = 2, OP_HEAD = 7 };

static int fail(void)
{
    fprintf(stderr, "%s\n", esper_last_error());
    return 1;
}

int main(void)
{
    static const esper_grow_env_setting settings[] = {{"epochs", "4"},   {"max_steps", "2"}, {"batch", "8"},
                                                      {"channels", "4"}, {"blocks", "2"},    {"threads", "1"}};
    esper_grow_env_options options;
    esper_grow_env_shape shape;
    esper_grow_env_arrays shown;
    esper_grow_env *env;
    double reward[N_ENVS], sum = 0.0;
    uint8_t terminated[N_ENVS] = {0, 0};
    int32_t *actions;
    int n = 0, i;

    esper_grow_env_options_init(&options);
    options.task = "synth";
    options.n_envs = N_ENVS;
    options.settings = settings;
    options.n_settings = sizeof(settings) / sizeof(settings[0]);
    if (esper_grow_env_abi() != ESPER_GROW_ENV_ABI || esper_grow_env_open(&options, &env) != ESPER_OK)
        return fail();
    shape.size = sizeof(shape);
    if (esper_grow_env_shape_get(env, &shape) != ESPER_OK)
        return fail();
    memset(&shown, 0, sizeof(shown));
    shown.size = sizeof(shown);
    shown.reward = reward;
    shown.terminated = terminated;
    actions = (int32_t *)calloc(N_ENVS * shape.n_heads, sizeof(*actions)); /* 0 of the operations: wait */
    if (actions == NULL || esper_grow_env_reset(env, NULL, NULL, &shown) != ESPER_OK)
        return fail();
    while (!terminated[0]) {
        if (esper_grow_env_step(env, actions, &shown) != ESPER_OK)
            return fail();
        for (i = 0; i < N_ENVS; i++)
            sum += reward[i];
        n++;
    }
    printf("%d decisions of %d networks, %g in all\n", n, N_ENVS, sum);
    actions[OP_HEAD] = 99;
    if (esper_grow_env_step(env, actions, &shown) != ESPER_E_ARG)
        return 1;
    free(actions);
    esper_grow_env_close(env);
    return 0;
}
