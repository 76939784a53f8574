/* ctest: timeout=240 cost=20 sealed=also */
/* A policy that learns from a fleet: what is not finite is left out, counted and told, and reaches neither weights nor statistics;
 * credit and memory end where the governor went back; its file is all that the next round depends on. */
#include "base/file.h"
#include "fault/alloc.h"
#include "support/ring_arena.h"
#include "engine/guarded_internal.h"
#include "learn/fleeting.h"
#include "grow/growth_internal.h"
#include "learn/learner_internal.h"

static school *school_new(const char *more, int n_envs)
{
    school *c = calloc(1, sizeof(*c));

    assert_non_null(c);
    school_open(c, more, n_envs, 1);
    return c;
}

static void school_free(school *c)
{
    school_close(c);
    free(c);
}

/* Weights and moments of the policy. */
static uint64_t hash_policy(const school *c)
{
    return slab_hash(esper_policy_net_slab(esper_ppo_net(esper_learner_ppo(c->learner))), 0);
}

static void check_finite(const school *c)
{
    const esper_learner *l = c->learner;
    const esper_slab *slab = esper_policy_net_slab(esper_ppo_net(l->ppo));

    for (int i = 0; i < l->norm->n; i++)
        if (!isfinite(l->norm->mean[i]) || !isfinite(l->norm->variance[i]) || !isfinite(l->norm->count[i]))
            fail_msg("observation %d: mean %g, variance %g", i, l->norm->mean[i], l->norm->variance[i]);
    assert_true(isfinite(l->reward_norm.mean) && isfinite(l->reward_norm.squares) && isfinite(l->reward_norm.count));
    assert_true(isfinite(l->value_norm.mean) && isfinite(l->value_norm.variance) && isfinite(l->value_norm.count));
    for (int64_t i = 0; i < esper_slab_count(slab, ESPER_FAMILY_PARAM); i++)
        assert_true(isfinite(slab_values(slab, ESPER_FAMILY_PARAM)[i]));
}

static esper_learner_report learn_round(school *c, uint64_t number, esper_learner_fault fault)
{
    esper_learner_report report;

    esper_learner_drill(c->learner, fault);
    school_play(c, number);
    check_good(esper_learner_finish(c->learner, &report));
    check_finite(c);
    return report;
}

/* ------------------------------------------------------------------------------------------------ what is not finite */

static void learns_when_all_is_well(void **state)
{
    school *c = school_new("", 4);
    uint64_t before = hash_policy(c);
    esper_learner_report report = learn_round(c, 0, ESPER_LEARNER_NO_FAULT);
    double sum = 0.0, returns = 0.0;

    (void)state;
    assert_true(report.update.performed);
    assert_int_equal(report.update.health, ESPER_PPO_FINE);
    assert_int_equal(report.n_steps, 4 * EPOCHS);
    assert_int_equal(report.n_bad_rewards, 0);
    assert_int_equal(report.n_bad_observations, 0);
    assert_true(hash_policy(c) != before);
    assert_true(c->learner->norm->count[0] > 0.0 || c->learner->norm->how[0] == ESPER_NORM_AS_IS);
    assert_true(same_real(c->learner->reward_norm.count, 4 * EPOCHS) || c->learner->reward_norm.count > 4 * EPOCHS - 1);
    for (int part = 0; part < ESPER_N_REWARD_PARTS; part++)
        sum += report.parts[part];
    for (int env = 0; env < 4; env++)
        returns += esper_fleet_episode(c->stage.fleet, env).total_reward / 4;
    if (!(fabs(sum - returns) < 1e-9))
        fail_msg("parts of an episode add up to %.17g, the mean return is %.17g", sum, returns);
    school_free(c);
}

/* What the policy saw in acting is what the update's first pass computes again. */
static void ratios_begin_at_one(void **state)
{
    school *c = school_new("ppo_chunk = 6\n", 4);

    (void)state;
    for (uint64_t round = 0; round < 3; round++) {
        esper_learner_report report = learn_round(c, 4 * round, ESPER_LEARNER_NO_FAULT);

        if (!(report.update.log_prob_gap < 1e-4))
            fail_msg("round %d: log-probabilities of acting and learning differ by %g", (int)round,
                     report.update.log_prob_gap);
    }
    school_free(c);
}

static void leaves_out_bad_gradients(void **state)
{
    school *c = school_new("", 4);
    uint64_t before;
    esper_learner_report report;

    (void)state;
    learn_round(c, 0, ESPER_LEARNER_NO_FAULT);
    before = hash_policy(c);
    report = learn_round(c, 4, ESPER_LEARNER_FAULT_GRADIENT);
    assert_false(report.update.performed);
    assert_int_equal(report.update.health, ESPER_PPO_DEGRADED);
    assert_int_equal(report.update.failed, 1u << ESPER_PPO_SOURCE_GRADIENT);
    assert_true(report.update.n_skipped > 1);
    assert_int_equal(hash_policy(c), before);
    report = learn_round(c, 8, ESPER_LEARNER_NO_FAULT);
    assert_int_equal(report.update.health, ESPER_PPO_FINE);
    assert_true(hash_policy(c) != before);
    school_free(c);
}

static void leaves_out_bad_observations(void **state)
{
    school *c = school_new("", 4);
    uint64_t before = hash_policy(c);
    esper_learner_report report = learn_round(c, 0, ESPER_LEARNER_FAULT_OBSERVATION);

    (void)state;
    assert_false(report.update.performed);
    assert_int_equal(report.update.failed, 1u << ESPER_PPO_SOURCE_OBSERVATION);
    assert_int_equal(report.update.n_skipped, 1);
    assert_int_equal(hash_policy(c), before);
    school_free(c);
}

static void leaves_out_bad_rewards(void **state)
{
    school *c = school_new("", 4);
    esper_learner_report report = learn_round(c, 0, ESPER_LEARNER_FAULT_REWARD);
    const esper_rollout *rollout = esper_learner_rollout(c->learner);

    (void)state;
    assert_int_equal(report.n_bad_rewards, EPOCHS); /* all of the first environment's */
    assert_true(report.update.performed);
    assert_int_equal(report.update.failed, 0);
    for (int t = 0; t < EPOCHS; t++)
        assert_true(rollout->rewards[t] == 0.0f);
    assert_true(c->learner->reward_norm.count <= 3 * EPOCHS + 1); /* and none of them counts */
    assert_int_equal(learn_round(c, 4, ESPER_LEARNER_NO_FAULT).n_bad_rewards, 0);
    school_free(c);
}

static void third_failure_is_the_last(void **state)
{
    static const esper_learner_fault faults[] = {ESPER_LEARNER_FAULT_GRADIENT, ESPER_LEARNER_FAULT_OBSERVATION,
                                                 ESPER_LEARNER_FAULT_GRADIENT};
    static const int healths[] = {ESPER_PPO_DEGRADED, ESPER_PPO_DEGRADED, ESPER_PPO_HALTED};
    school *c = school_new("", 2);

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(learn_round(c, 2 * (uint64_t)i, faults[i]).update.health, healths[i]);
    school_free(c);
}

/* ------------------------------------------------------------------------------------------------ going back */

static void memory_ends_where_it_went_back(void **state)
{
    school *c = school_new("", 2);
    const esper_rollout *rollout;
    esper_learner_report report;
    int n_begins[2] = {0};

    (void)state;
    esper_fleet_inject(c->stage.fleet, 1, "12:host:param:nan");
    school_play(c, 0);
    rollout = esper_learner_rollout(c->learner);
    for (int env = 0; env < 2; env++)
        for (int t = 0; t < EPOCHS; t++) {
            size_t at = esper_rollout_at(rollout, env, t);

            n_begins[env] += rollout->begins[at];
            if (t > 0 && rollout->begins[at]) {
                assert_int_equal(rollout->done[at - 1], 1);
                assert_true(rollout->rewards[at - 1] <= -9.99f);
            }
        }
    assert_int_equal(n_begins[0], 1);
    assert_int_equal(n_begins[1], 2);
    check_good(esper_learner_finish(c->learner, &report));
    assert_int_equal(report.n_rollbacks, 1);
    assert_int_equal(report.n_rollbacks_lost, 0);
    assert_true(report.update.log_prob_gap < 1e-4); /* the update's pass forgets there, too */
    school_free(c);
}

/* An environment that is stopped on the way to its last decision is blamed once, also when the round is finished. */
static void stopped_envs_are_blamed_once(void **state)
{
    school *c = school_new("max_rollbacks = 0\n", 2);
    const esper_rollout *rollout;
    esper_learner_report report;

    (void)state;
    esper_fleet_inject(c->stage.fleet, 1, "27:host:param:nan");
    school_play(c, 0);
    assert_true(esper_fleet_episode(c->stage.fleet, 1).stopped);
    rollout = esper_learner_rollout(c->learner);
    assert_int_equal(rollout->n_stored[0], EPOCHS);
    assert_int_equal(rollout->n_stored[1], EPOCHS - 1);
    assert_int_equal(rollout->done[esper_rollout_at(rollout, 1, EPOCHS - 2)], 1);
    check_good(esper_learner_finish(c->learner, &report));
    assert_int_equal(report.n_rollbacks, 1);
    assert_int_equal(report.n_rollbacks_lost, 0);
    assert_int_equal(report.n_steps, 2 * EPOCHS - 1);
    assert_true(report.update.performed);
    school_free(c);
}

/* In its last epoch: a weight is lost, and so is every state that could be gone back to. */
static void lose_all(void *context, esper_network *network, esper_drill_point point)
{
    uint64_t bytes;
    char *arena;

    (void)context;
    if (point != ESPER_DRILL_BETWEEN_STEPS || network->cursor.step != 27)
        return;
    slab_values(&network->slab, ESPER_FAMILY_PARAM)[3] = NAN;
    for (int mirror = 0; mirror < 2; mirror++)
        for (uint32_t age = 0; (arena = ring_arena(network->guarded->ring, age, 0, mirror != 0, &bytes)) != NULL; age++)
            memset(arena, 0x55, bytes);
}

/* The governor stops an environment that cannot go back: that is no better than going back. */
static void stopped_without_a_snapshot_is_blamed(void **state)
{
    school *c = school_new("", 2);
    const esper_rollout *rollout;
    esper_learner_report report;
    esper_env_look look;
    size_t last;

    (void)state;
    check_good(esper_fleet_begin(c->stage.fleet, 0));
    look = look_at(&c->stage, 1);
    esper_guarded_set_drill(look.growth->network, lose_all, NULL);
    school_play_begun(c, 0);
    look = look_at(&c->stage, 1);
    assert_true(look.stopped);
    assert_int_equal(look.n_rollbacks_all, 0); /* or it would be the case above */
    rollout = esper_learner_rollout(c->learner);
    assert_int_equal(rollout->n_stored[1], EPOCHS - 1);
    last = esper_rollout_at(rollout, 1, EPOCHS - 2);
    assert_int_equal(rollout->done[last], 1);
    assert_true(rollout->rewards[last] <= -9.99f);
    for (int t = 0; t < EPOCHS - 2; t++)
        assert_true(rollout->rewards[esper_rollout_at(rollout, 1, t)] == 0.0f); /* forfeited */
    assert_true(same_real(esper_fleet_episode(c->stage.fleet, 1).total_reward, ESPER_GROWTH_PENALTY));
    check_good(esper_learner_finish(c->learner, &report));
    assert_int_equal(report.n_rollbacks, 1);
    assert_int_equal(report.n_rollbacks_lost, 0);
    assert_true(report.update.performed);
    school_free(c);
}

/* ------------------------------------------------------------------------------------------------ its file */

static void goes_on_from_its_file(void **state)
{
    school *c = school_new("", 4), *again = school_new("", 4);
    const esper_safetensors_note note = {"learn_round", "2"};
    esper_learned_file *file;
    char *one, *other;
    size_t n_one, n_other;

    (void)state;
    learn_round(c, 0, ESPER_LEARNER_NO_FAULT);
    learn_round(c, 4, ESPER_LEARNER_FAULT_GRADIENT);
    check_good(esper_learner_save(c->learner, &note, 1, "half.safetensors"));
    learn_round(c, 8, ESPER_LEARNER_NO_FAULT);
    check_good(esper_learner_save(c->learner, &note, 1, "whole.safetensors"));
    check_good(esper_learned_open("half.safetensors", &file));
    check_good(esper_learner_resume(again->learner, file));
    esper_learned_close(file);
    learn_round(again, 8, ESPER_LEARNER_NO_FAULT);
    check_good(esper_learner_save(again->learner, &note, 1, "again.safetensors"));
    check_good(esper_file_read("whole.safetensors", 1 << 26, &one, &n_one));
    check_good(esper_file_read("again.safetensors", 1 << 26, &other, &n_other));
    assert_int_equal(n_one, n_other);
    for (size_t i = 0; i < n_one; i++)
        if (one[i] != other[i])
            fail_msg("byte %zu of %zu differs", i, n_one);
    esper_mem_free(one);
    esper_mem_free(other);
    school_free(c);
    school_free(again);
}

static void refuses_what_cannot_be(void **state)
{
    school *c = school_new("", 2);
    esper_learned_identity identity = school_identity(&c->stage);
    esper_ranks three = {.size = 3};
    esper_learner *learner;
    esper_learner_desc desc = {.backend = c->stage.engine->backend,
                               .config = &c->stage.config,
                               .identity = &identity,
                               .ranks = &three,
                               .n_envs = 8,
                               .n_steps = EPOCHS};

    (void)state;
    check_fails(esper_learner_open(&desc, &learner), ESPER_E_CONFIG, "8 environments|3 ranks|envs to 9");
    desc.ranks = &c->ranks;
    c->stage.config.policy_width = 12;
    check_fails(esper_learner_open(&desc, &learner), ESPER_E_CONFIG, "policy_width is 12|multiple of 8");
    school_free(c);
}

/* ------------------------------------------------------------------------------------------------ without memory */

typedef struct trial {
    school                *school;
    esper_learned_identity identity;
} trial;

static esper_status try_learner(void *context)
{
    trial *t = context;
    esper_learner *learner = NULL;
    esper_learner_desc desc = {.backend = t->school->stage.engine->backend,
                               .config = &t->school->stage.config,
                               .identity = &t->identity,
                               .ranks = &t->school->ranks,
                               .n_envs = 2,
                               .n_steps = EPOCHS};
    esper_status status = esper_learner_open(&desc, &learner);

    esper_learner_close(learner);
    return status;
}

static esper_status try_file(void *context)
{
    trial *t = context;
    esper_learned_file *file;
    esper_status status;

    ESPER_TRY(esper_learner_save(t->school->learner, NULL, 0, "tried.safetensors"));
    ESPER_TRY(esper_learned_open("tried.safetensors", &file));
    status = esper_learner_resume(t->school->learner, file);
    esper_learned_close(file);
    return status;
}

static void leaves_nothing_without_memory(void **state)
{
    trial t = {.school = school_new("", 2)};

    (void)state;
    t.identity = school_identity(&t.school->stage);
    fail_each("a learner", try_learner, NULL, &t, 3);
    fail_each("its file", try_file, NULL, &t, 1);
    school_free(t.school);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns_when_all_is_well),
        cmocka_unit_test(ratios_begin_at_one),
        cmocka_unit_test(leaves_out_bad_gradients),
        cmocka_unit_test(leaves_out_bad_observations),
        cmocka_unit_test(leaves_out_bad_rewards),
        cmocka_unit_test(third_failure_is_the_last),
        cmocka_unit_test(memory_ends_where_it_went_back),
        cmocka_unit_test(stopped_envs_are_blamed_once),
        cmocka_unit_test(stopped_without_a_snapshot_is_blamed),
        cmocka_unit_test(goes_on_from_its_file),
        cmocka_unit_test(refuses_what_cannot_be),
        cmocka_unit_test(leaves_nothing_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
