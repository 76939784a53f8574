/* ctest: labels=golden */
/* Advantages: the recorded rollouts, through the buffer that holds them, and the sums of the specification. */
#include "policy/helpers.h"

#include "policy/normaliser.h"
#include "policy/rollout.h"

enum { MAX_ENVS = 16, N_FEATURES = 2 };

static int n_compared, n_rollbacks, n_envs_seen;
static double worst;

/* float32 recursions were recorded: 3e-5 of the largest in the environment. */
static void compare(const json_t *entry, const char *what, const json_t *list, const float *ours, int n)
{
    double largest = 1.0;

    for (size_t i = 0; i < json_array_size(list); i++)
        largest = fmax(largest, fabs(number_of(json_array_get(list, i))));
    assert_int_equal(json_array_size(list), n);
    for (int i = 0; i < n; i++) {
        double recorded = number_of(json_array_get(list, (size_t)i)), miss = fabs((double)ours[i] - recorded) / largest;

        worst = fmax(worst, miss);
        if (!(miss <= 3e-5))
            fail_msg("case %d: %s %d: %.9g, recorded %.9g", int_of(entry, "case"), what, i, (double)ours[i], recorded);
    }
}

static double item(const json_t *row, const char *key, size_t i)
{
    return number_of(json_array_get(json_object_get(row, key), i));
}

/* Fills an environment. Where a rollback was recorded, the steps before its episode are an episode of their own. */
static void fill_env(esper_rollout *rollout, int env, const json_t *row, const json_t *rollback)
{
    bool rolled = !json_is_null(rollback) && json_integer_value(json_array_get(rollback, 0)) == env;
    size_t n = (size_t)int_of(row, "steps");
    int32_t blueprint = -1;
    float features[N_FEATURES] = {0};

    for (size_t i = 0; i < n; i++) {
        esper_rollout_step step = {.features = features,
                                   .blueprints = &blueprint,
                                   .value = (float)item(row, "values", i),
                                   .reward = item(row, "rewards", i),
                                   .effective_op = (int)item(row, "ops", i)};
        size_t at = esper_rollout_at(rollout, env, (int)i);

        check_good(esper_rollout_add(rollout, env, &step));
        rollout->done[at] = item(row, "done", i) != 0.0;
        rollout->truncated[at] = item(row, "truncated", i) != 0.0;
        rollout->bootstraps[at] = (float)item(row, "bootstrap", i);
    }
    if (rolled) {
        rollout->segment[env] = (int)json_integer_value(json_array_get(rollback, 1));
        n_rollbacks += esper_rollout_rollback(rollout, env, number_of(json_array_get(rollback, 2)));
    }
}

/* A head learns from the steps whose operation asks it: from the scaled advantage there, from nothing elsewhere. */
static void compare_heads(const json_t *entry, const esper_rollout *rollout, double mean, double std)
{
    const char *name;
    const json_t *list;

    json_object_foreach(json_object_get(json_object_get(entry, "out"), "per_head_env0"), name, list) {
        float ours[64];
        int head = 0;

        while (strcmp(esper_head_name(head), name) != 0)
            head++;
        for (int i = 0; i < rollout->n_stored[0]; i++)
            ours[i] = esper_action_matters(rollout->effective_ops[i], head)
                          ? (float)(((double)rollout->advantages[i] - mean) / (fmax(std, 0.1) + 1e-8))
                          : 0.0f;
        compare(entry, name, list, ours, rollout->n_stored[0]);
    }
}

static void replay(const json_t *entry)
{
    const json_t *in = json_object_get(entry, "in"), *out = json_object_get(entry, "out");
    const json_t *rows = json_object_get(in, "rows"), *scale = json_object_get(in, "value_scale");
    const json_t *used = json_object_get(out, "rewards_used"), *stats = json_object_get(out, "stats");
    esper_rollout_shape shape = {int_of(in, "num_envs"), int_of(in, "max_steps"), 1, N_FEATURES};
    esper_credit credit = {real_of(in, "gamma"), real_of(in, "lambda"),
                           json_is_null(scale) ? 1.0 : json_number_value(scale)};
    esper_moments moments = {0};
    double mean, std;
    esper_rollout *rollout;

    check_good(esper_rollout_open(&shape, &rollout));
    for (int env = 0; env < shape.n_envs; env++) {
        size_t at = esper_rollout_at(rollout, env, 0), k = (size_t)env;
        int n;

        fill_env(rollout, env, json_array_get(rows, k), json_object_get(in, "rollback"));
        n = rollout->n_stored[env];
        esper_rollout_credit(rollout, env, &credit);
        if (json_is_array(used))
            compare(entry, "reward", json_array_get(used, k), rollout->rewards + at, n);
        compare(entry, "advantage", json_array_get(json_object_get(out, "advantages"), k), rollout->advantages + at, n);
        compare(entry, "return", json_array_get(json_object_get(out, "returns"), k), rollout->returns + at, n);
        compare(entry, "error", json_array_get(json_object_get(out, "td_errors"), k), rollout->errors + at, n);
        for (int t = 0; t < n; t++)
            assert_true(esper_moments_add(&moments, (double)rollout->advantages[at + (size_t)t]));
        n_envs_seen++;
    }
    mean = esper_moments_mean(&moments);
    std = sqrt(esper_moments_variance(&moments));
    if (moments.n == 0) { /* statistics of nothing were NaN; ours are numbers */
        assert_true(isnan(number_of(json_array_get(stats, 0))) && mean == 0.0 && std == 0.0);
        difference_met(DIFFERENCE_NO_STEPS, entry);
        esper_rollout_close(rollout);
        return;
    }
    assert_true(fabs(mean - number_of(json_array_get(stats, 0))) < 3e-5 * fmax(1.0, fabs(mean)));
    assert_true(fabs(std - number_of(json_array_get(stats, 1))) < 3e-5 * fmax(1.0, std));
    compare_heads(entry, rollout, mean, std);
    esper_rollout_close(rollout);
    n_compared++;
}

static void recorded_advantages(void **state)
{
    (void)state;
    golden_each_case("gae", replay);
    printf("%d recorded rollouts of %d environments, %d with a rollback; at most %.1g off\n", n_compared, n_envs_seen,
           n_rollbacks, worst);
    difference_say("gae");
    assert_true(n_compared > 0);
}

/* The sums of the specification. */
static void known_sums(void **state)
{
    static const esper_rollout_shape shape = {1, 4, 1, 1};
    const float rewards[] = {1, 1, 10, 2}, values[] = {0.5f, 0.25f, 1, 0.75f}, feature = 0;
    const double expected[] = {1.0625, 0.75, 11.8575, 4.85}, returns[] = {1.5625, 1.0, 12.8575, 5.6};
    int32_t blueprint = -1;
    esper_rollout *rollout;

    (void)state;
    check_good(esper_rollout_open(&shape, &rollout));
    for (int i = 0; i < 4; i++)
        check_good(esper_rollout_add(
            rollout, 0,
            &(esper_rollout_step){
                .features = &feature, .blueprints = &blueprint, .value = values[i], .reward = (double)rewards[i]}));
    rollout->done[1] = rollout->done[3] = rollout->truncated[3] = 1;
    rollout->bootstraps[3] = 4;
    esper_rollout_credit(rollout, 0, &(esper_credit){0.9, 0.5, 1.0});
    for (int i = 0; i < 4; i++) {
        assert_true(fabs((double)rollout->advantages[i] - expected[i]) < 1e-6);
        assert_true(fabs((double)rollout->returns[i] - returns[i]) < 1e-6);
    }
    esper_rollout_close(rollout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_advantages),
        cmocka_unit_test(known_sums),
    };

    return cmocka_run_group_tests_name("policy/gae", tests, NULL, NULL);
}
