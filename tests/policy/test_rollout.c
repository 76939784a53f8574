/* The buffer of a round: what goes in comes out, rollbacks reach it whenever they happen, and credit stops there. */
#include "policy/helpers.h"

#include "policy/rollout.h"

enum { ENVS = 3, STEPS = 10, SLOTS = 2, FEATURES = 5 };

static const esper_rollout_shape plain = {ENVS, STEPS, SLOTS, FEATURES};

/* A step that can be told from every other. */
static void add(esper_rollout *rollout, int env, double reward)
{
    int t = rollout->n_stored[env];
    float features[FEATURES], contributions[SLOTS] = {(float)t, NAN};
    int32_t blueprints[SLOTS] = {t, -1};
    esper_reward paid = {.total = reward};
    esper_rollout_step step = {.features = features,
                               .blueprints = blueprints,
                               .value = (float)(100 * env + t),
                               .reward = reward,
                               .paid = &paid,
                               .effective_op = t % 6,
                               .forced = t % 2 == 1,
                               .contributions = contributions};

    paid.part[ESPER_PART_RENT] = -1.0;
    paid.part[ESPER_PART_ATTRIBUTION] = reward + 1.0;
    for (int i = 0; i < FEATURES; i++)
        features[i] = (float)(1000 * env + 10 * t + i);
    for (int h = 0; h < ESPER_N_HEADS; h++) {
        step.action.choice[h] = (t + h) % 3;
        step.masks[h] = UINT64_C(1) << 63 | (uint64_t)t;
        step.open[h] = 7u + (uint64_t)t;
        step.log_probs[h] = -0.25f * (float)(t + h);
    }
    check_good(esper_rollout_add(rollout, env, &step));
}

static double sum_of_parts(const esper_rollout *rollout, size_t at)
{
    double sum = 0.0;

    for (size_t p = 0; p < ESPER_N_REWARD_PARTS; p++)
        sum += rollout->parts[at * ESPER_N_REWARD_PARTS + p];
    return sum;
}

static void keeps_what_it_is_given(void **state)
{
    uint64_t blocks = live_blocks();
    esper_rollout *rollout;

    (void)state;
    check_good(esper_rollout_open(&plain, &rollout));
    assert_int_equal(live_blocks(), blocks + 1);
    for (int round = 0; round < 2; round++) {
        for (int t = 0; t < STEPS; t++)
            for (int env = 0; env < ENVS; env++)
                add(rollout, env, 0.5 * t);
        for (int env = 0; env < ENVS; env++)
            for (int t = 0; t < STEPS; t++) {
                size_t at = esper_rollout_at(rollout, env, t);

                assert_true(rollout->values[at] == (float)(100 * env + t));
                assert_true(rollout->features[at * FEATURES + 4] == (float)(1000 * env + 10 * t + 4));
                assert_int_equal(rollout->actions[at * ESPER_N_HEADS + 2], (t + 2) % 3);
                assert_true(rollout->masks[at * ESPER_N_HEADS] == (UINT64_C(1) << 63 | (uint64_t)t));
                assert_true(rollout->open[at * ESPER_N_HEADS + 7] == 7u + (uint64_t)t);
                for (int h = 0; h < ESPER_N_HEADS; h++)
                    assert_int_equal(rollout->asked[at] >> h & 1u, esper_action_matters(t % 6, h));
                assert_int_equal(rollout->blueprints[at * SLOTS], t);
                assert_true(isnan(rollout->contributions[at * SLOTS + 1]));
                assert_true(rollout->log_probs[at * ESPER_N_HEADS + 7] == -0.25f * (float)(t + 7));
                assert_int_equal(rollout->forced[at], t % 2);
                assert_int_equal(rollout->begins[at], t == 0);
                assert_true(sum_of_parts(rollout, at) == 0.5 * t);
            }
        assert_int_equal(esper_rollout_count_steps(rollout), ENVS * STEPS);
        check_fails(esper_rollout_add(rollout, 1, &(esper_rollout_step){.value = 0.0f}), ESPER_E_STATE,
                    "environment 1");
        esper_rollout_reset(rollout);
        assert_int_equal(esper_rollout_count_steps(rollout), 0);
    }
    esper_rollout_close(rollout);
    assert_int_equal(live_blocks(), blocks);
}

/* ------------------------------------------------------------------------------------------------ rollbacks */

/* Time is up for an environment: its last step is followed by something of this value. */
static void truncate_env(esper_rollout *rollout, int env, float bootstrap)
{
    size_t at = esper_rollout_at(rollout, env, rollout->n_stored[env] - 1);

    rollout->done[at] = rollout->truncated[at] = 1;
    rollout->bootstraps[at] = bootstrap;
}

/* In the middle, twice in an environment, in the last step, in the first; the other environments do not notice. */
static void rollbacks_reach_it(void **state)
{
    esper_rollout *rollout;

    (void)state;
    check_good(esper_rollout_open(&plain, &rollout));
    assert_false(esper_rollout_rollback(rollout, 0, -10.0)); /* nobody to blame */
    for (int t = 0; t < 4; t++) {
        add(rollout, 0, 1.0);
        add(rollout, 1, 1.0);
    }
    assert_true(esper_rollout_rollback(rollout, 0, -25.0));
    assert_false(esper_rollout_rollback(rollout, 0, -25.0)); /* again, before anything was done */
    for (int t = 0; t < 3; t++)
        add(rollout, 0, 2.0);
    assert_true(esper_rollout_rollback(rollout, 0, -10.0));
    for (int t = 0; t < 3; t++)
        add(rollout, 0, 3.0);
    truncate_env(rollout, 0, 7.0f);
    for (int t = 0; t < STEPS; t++) {
        static const float expected[STEPS] = {0, 0, 0, -10, 0, 0, -10, 3, 3, 3};
        static const double raw[STEPS] = {0, 0, 0, -25, 0, 0, -10, 3, 3, 3};
        size_t at = esper_rollout_at(rollout, 0, t);

        assert_true(rollout->rewards[at] == expected[t]);
        assert_true(fabs(sum_of_parts(rollout, at) - raw[t]) < 1e-12);
        assert_int_equal(rollout->done[at], t == 3 || t == 6 || t == 9);
        assert_int_equal(rollout->truncated[at], t == 9);
        assert_int_equal(rollout->begins[at], t == 0 || t == 4 || t == 7);
    }
    for (int t = 0; t < 4; t++)
        assert_true(rollout->rewards[esper_rollout_at(rollout, 1, t)] == 1.0f);
    assert_int_equal(rollout->n_rollbacks_asked, 4);
    assert_int_equal(rollout->n_rollbacks_applied, 2);
    assert_int_equal(rollout->n_rollbacks_lost, 2);
    assert_int_equal(rollout->n_steps_forfeited, 5);
    esper_rollout_close(rollout);
}

/* No advantage before a rollback depends on anything behind it. */
static void credit_stops_there(void **state)
{
    float before[2][4];

    (void)state;
    for (int i = 0; i < 2; i++) {
        esper_rollout *rollout;

        check_good(esper_rollout_open(&plain, &rollout));
        for (int t = 0; t < 4; t++)
            add(rollout, 0, 1.0);
        assert_true(esper_rollout_rollback(rollout, 0, -10.0));
        for (int t = 0; t < 4; t++)
            add(rollout, 0, i == 0 ? -50.0 : 50.0);
        truncate_env(rollout, 0, i == 0 ? -100.0f : 100.0f);
        esper_rollout_credit(rollout, 0, &(esper_credit){0.995, 0.98, 1.0});
        memcpy(before[i], rollout->advantages, sizeof(before[i]));
        assert_true((i == 0) == (rollout->advantages[7] < 0.0f));
        esper_rollout_close(rollout);
    }
    assert_memory_equal(before[0], before[1], sizeof(before[0]));
}

static void bad_rewards(void **state)
{
    esper_rollout *rollout;

    (void)state;
    check_good(esper_rollout_open(&plain, &rollout));
    add(rollout, 2, (double)NAN);
    add(rollout, 2, (double)INFINITY);
    add(rollout, 2, 1.0);
    assert_int_equal(rollout->n_bad_rewards, 2);
    assert_true(rollout->rewards[esper_rollout_at(rollout, 2, 0)] == 0.0f);
    esper_rollout_end(rollout, 1); /* nothing there: nothing happens */
    esper_rollout_close(rollout);
}

static void bad_shapes(void **state)
{
    esper_rollout_shape shape = plain;
    esper_rollout *rollout;

    (void)state;
    shape.n_slots = 65;
    check_fails(esper_rollout_open(&shape, &rollout), ESPER_E_ARG, "65 slots");
    shape = plain;
    shape.n_envs = 0;
    check_fails(esper_rollout_open(&shape, &rollout), ESPER_E_ARG, "0 environments");
    esper_mem_fail_at(1);
    check_fails(esper_rollout_open(&plain, &rollout), ESPER_E_NOMEM, "rollout");
    esper_mem_fail_at(0);
    esper_rollout_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_what_it_is_given),
        cmocka_unit_test(rollbacks_reach_it),
        cmocka_unit_test(credit_stops_there),
        cmocka_unit_test(bad_rewards),
        cmocka_unit_test(bad_shapes),
    };

    return cmocka_run_group_tests_name("policy/rollout", tests, NULL, NULL);
}
