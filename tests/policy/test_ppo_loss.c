/* ctest: timeout=60 labels=golden */
/* The losses of PPO: recorded evaluations with gradients, finite differences, and what holds for any numbers.
 *
 * Recorded losses divide by the steps of each head (policy D-4) and take the entropies for the penalty from the steps as they
 * were (policy D-8): `head_means`, and the same entropies given twice. Ours divide by all steps unless told so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "base/rng.h"
#include "policy/ppo_loss.h"
#include "slot/recorded.h"

enum { HEADS = 8, MOST = 64 };

static const char *const names[HEADS] = {"slot",         "blueprint",   "style",       "tempo",
                                         "alpha_target", "alpha_speed", "alpha_curve", "op"};

/* Which heads each operation asks: bits in the order above. */
static const uint32_t asks[6] = {0x80, 0x9f, 0xf5, 0xe1, 0x81, 0x81};

static const esper_ppo_weights recorded_weights = {
    .clip = 0.2,
    .forced_weight = 0.2,
    .head_means = true,
    .head_entropy = {1.0, 1.3, 1.2, 1.3, 1.2, 1.2, 1.2, 1.0},
    .head_floor = {0.15, 0.20, 0.15, 0.20, 0.10, 0.10, 0.10, 0.30},
    .head_penalty = {0.1, 0.3, 0.1, 0.3, 0.1, 0.1, 0.1, 0.3},
};

/* Numbers of up to MOST steps, and room for their gradients. */
typedef struct numbers {
    size_t   n;
    double   log_prob[MOST * HEADS], old_log_prob[MOST * HEADS], entropy[MOST * HEADS];
    double   advantage[MOST], value[MOST], target[MOST], q[MOST];
    uint32_t asked[MOST], available[MOST];
    uint8_t  forced[MOST];
    double   g_log_prob[MOST * HEADS], g_entropy[MOST * HEADS], g_open[MOST * HEADS], g_value[MOST], g_q[MOST];
} numbers;

static esper_ppo_terms terms_of(const numbers *x)
{
    return (esper_ppo_terms){.n = x->n,
                             .n_heads = HEADS,
                             .log_prob = x->log_prob,
                             .old_log_prob = x->old_log_prob,
                             .entropy = x->entropy,
                             .open_entropy = x->entropy,
                             .asked = x->asked,
                             .available = x->available,
                             .forced = x->forced,
                             .advantage = x->advantage,
                             .value = x->value,
                             .target = x->target,
                             .q = x->q};
}

static esper_ppo_losses run(const esper_ppo_weights *w, numbers *x)
{
    esper_ppo_terms terms = terms_of(x);
    esper_ppo_grads grads = {x->g_log_prob, x->g_entropy, x->g_open, x->g_value, x->g_q};

    return esper_ppo_loss(w, &terms, &grads);
}

/* ------------------------------------------------------------------------------------------------ recorded */

static int n_compared, n_contributions;

static void read_heads(const json_t *in, const char *key, double *to, size_t n)
{
    for (int head = 0; head < HEADS; head++)
        for (size_t i = 0; i < n; i++)
            to[i * HEADS + (size_t)head] =
                recorded_number(json_array_get(json_object_get(json_object_get(in, key), names[head]), i));
}

static void read_numbers(const json_t *in, numbers *x)
{
    double available[MOST * HEADS];

    memset(x, 0, sizeof(*x));
    x->n = (size_t)recorded_int(json_object_get(in, "steps"));
    assert_true(x->n <= MOST);
    read_heads(in, "log_prob", x->log_prob, x->n);
    read_heads(in, "old_log_prob", x->old_log_prob, x->n);
    read_heads(in, "entropy", x->entropy, x->n);
    read_heads(in, "available", available, x->n);
    for (size_t i = 0; i < x->n; i++) {
#define IN(key) recorded_number(json_array_get(json_object_get(in, key), i))
        x->asked[i] = asks[(int)IN("op")];
        x->forced[i] = IN("forced") != 0;
        x->advantage[i] = IN("advantage");
        x->value[i] = IN("value");
        x->target[i] = IN("target");
        x->q[i] = IN("q");
#undef IN
        for (int head = 0; head < HEADS; head++)
            x->available[i] |= available[i * HEADS + (size_t)head] != 0 ? 1u << head : 0;
    }
}

static int current_case;

/* Relative to the number; where many cancel, to `scale`. */
static void expect_near(const char *what, double found, double recorded, double scale)
{
    if (isnan(found) && isnan(recorded))
        return;
    if (!(fabs(found - recorded) <= 2e-5 * fmax(scale, fabs(recorded))))
        fail_msg("case %d: %s: found %.9g, recorded %.9g", current_case, what, found, recorded);
}

static void compare_grads(const json_t *out, const numbers *x)
{
    double grads[MOST * HEADS], entropies[MOST * HEADS];

    read_heads(out, "grad_log_prob", grads, x->n);
    read_heads(out, "grad_entropy", entropies, x->n);
    for (size_t i = 0; i < x->n * HEADS; i++) {
        expect_near("gradient of a log-probability", x->g_log_prob[i], grads[i], 1);
        expect_near("gradient of an entropy", x->g_entropy[i] + x->g_open[i], entropies[i], 1);
    }
    for (size_t i = 0; i < x->n; i++) {
        expect_near("gradient of a value", x->g_value[i],
                    recorded_number(json_array_get(json_object_get(out, "grad_value"), i)), 1);
        expect_near("gradient of a q", x->g_q[i], recorded_number(json_array_get(json_object_get(out, "grad_q"), i)),
                    1);
    }
}

static void compare_move(const json_t *out, const esper_ppo_weights *w, const numbers *x, double target_kl)
{
    esper_ppo_terms terms = terms_of(x);
    esper_ppo_move move = esper_ppo_moved(w, &terms);
    const json_t *stats = json_object_get(out, "ratio_stats");

#define OUT(key) recorded_number(json_object_get(out, key))
    expect_near("kl", move.kl, OUT("approx_kl"), 1);
    expect_near("clip fraction", move.clip_fraction, OUT("clip_fraction"), 1);
    expect_near("clipped above", move.clip_above, OUT("clip_positive"), 1);
    expect_near("clipped below", move.clip_below, OUT("clip_negative"), 1);
#undef OUT
    expect_near("ratio mean", move.ratio_mean, recorded_number(json_array_get(stats, 0)), 1);
    expect_near("ratio max", move.ratio_max, recorded_number(json_array_get(stats, 1)), 1);
    expect_near("ratio min", move.ratio_min, recorded_number(json_array_get(stats, 2)), 1);
    if (x->n > 1)
        expect_near("ratio std", move.ratio_std, recorded_number(json_array_get(stats, 3)), move.ratio_max);
    for (int head = 0; head < HEADS; head++)
        expect_near("clip fraction of a head", move.head_clip_fraction[head],
                    recorded_number(json_object_get(json_object_get(out, "per_head_clip_fraction"), names[head])), 1);
    assert_int_equal(target_kl > 0 && move.kl > 1.5 * target_kl, json_is_true(json_object_get(out, "early_stop")));
}

static void compare_contributions(const json_t *in, const json_t *out)
{
    float predicted[MOST], target[MOST];
    uint8_t counted[MOST];
    double grads[MOST], found[MOST];
    size_t n = 0, env, t, slot;
    const json_t *envs, *steps, *value;

    json_array_foreach(json_object_get(in, "predicted"), env, envs)
        json_array_foreach(envs, t, steps)
            json_array_foreach(steps, slot, value) {
#define AT(object, key) json_array_get(json_array_get(json_array_get(json_object_get(object, key), env), t), slot)
                assert_true(n < MOST);
                predicted[n] = (float)recorded_number(value);
                target[n] = (float)recorded_number(AT(in, "target"));
                counted[n] =
                    json_integer_value(AT(in, "active")) != 0 &&
                    json_integer_value(json_array_get(json_array_get(json_object_get(in, "fresh"), env), t)) != 0;
                grads[n++] = recorded_number(AT(out, "grad_predicted"));
#undef AT
            }
    expect_near("contribution loss", esper_ppo_contribution_loss(predicted, target, counted, n, found),
                recorded_number(json_object_get(out, "loss")), 1);
    for (size_t i = 0; i < n; i++)
        expect_near("gradient of a contribution", found[i], grads[i], 1);
    n_contributions++;
}

static void replay(const json_t *line)
{
    const json_t *in = json_object_get(line, "in"), *out = json_object_get(line, "out");
    const json_t *settings = json_object_get(in, "settings");
    esper_ppo_weights w = recorded_weights;
    static numbers x;
    esper_ppo_losses loss;
    double target_kl;

    current_case = recorded_int(json_object_get(line, "case"));
    if (settings == NULL) {
        compare_contributions(in, out);
        return;
    }
    w.clip = recorded_number(json_object_get(settings, "clip"));
    w.entropy = recorded_number(json_object_get(settings, "entropy_coef"));
    w.value = recorded_number(json_object_get(settings, "value_coef"));
    w.q = recorded_number(json_object_get(settings, "q_coef"));
    target_kl = json_is_null(json_object_get(settings, "target_kl"))
                    ? 0
                    : recorded_number(json_object_get(settings, "target_kl"));
    read_numbers(in, &x);
    loss = run(&w, &x);
#define OUT(key) recorded_number(json_object_get(out, key))
    expect_near("policy", loss.policy, OUT("policy"), 1);
    expect_near("value", loss.value, OUT("value"), 1);
    expect_near("entropy", loss.entropy, OUT("entropy"), 1);
    expect_near("penalty", loss.penalty, OUT("floor_penalty"), 1);
    expect_near("q", loss.q, OUT("q_aux"), 1);
    expect_near("total", loss.total, OUT("total"), 1);
#undef OUT
    compare_grads(out, &x);
    compare_move(out, &w, &x, target_kl);
    n_compared++;
}

static void recorded_losses(void **state)
{
    (void)state;
    golden_each_case("ppo_losses", replay);
    printf("%d evaluations and %d contribution losses as recorded\n", n_compared, n_contributions);
    assert_true(n_compared > 0 && n_contributions > 0);
}

/* ------------------------------------------------------------------------------------------------ by ourselves */

static double draw(esper_rng *rng, double low, double high)
{
    return low + (high - low) * (double)esper_rng_uniform(rng);
}

static void draw_numbers(esper_rng *rng, numbers *x)
{
    memset(x, 0, sizeof(*x));
    x->n = 1 + esper_rng_below(rng, 12);
    for (size_t i = 0; i < x->n * HEADS; i++) {
        x->old_log_prob[i] = draw(rng, -3, 0);
        x->log_prob[i] = x->old_log_prob[i] + draw(rng, -0.5, 0.5);
        x->entropy[i] = draw(rng, 0, 0.4);
    }
    for (size_t i = 0; i < x->n; i++) {
        x->asked[i] = asks[esper_rng_below(rng, 6)];
        x->available[i] = esper_rng_below(rng, 256);
        x->forced[i] = esper_rng_below(rng, 4) == 0;
        x->advantage[i] = draw(rng, -2, 2);
        x->value[i] = draw(rng, -2, 2);
        x->target[i] = draw(rng, -2, 2);
        x->q[i] = draw(rng, -2, 2);
    }
}

static double slope(const esper_ppo_weights *w, numbers *x, double *at)
{
    const double h = 1e-6, value = *at;
    double up, down;

    *at = value + h;
    up = run(w, x).total;
    *at = value - h;
    down = run(w, x).total;
    *at = value;
    return (up - down) / (2 * h);
}

static void expect_slope(const char *what, double found, double expected)
{
    if (fabs(found - expected) > 1e-6 * fmax(1, fabs(expected)))
        fail_msg("%s: finite differences %.9g, gradient %.9g", what, expected, found);
}

static void check_slopes(const esper_ppo_weights *w, numbers *x)
{
    static numbers grads;

    run(w, x);
    grads = *x;
    for (size_t i = 0; i < x->n * HEADS; i++) {
        expect_slope("log-probability", grads.g_log_prob[i], slope(w, x, &x->log_prob[i]));
        expect_slope("entropy", grads.g_entropy[i] + grads.g_open[i], slope(w, x, &x->entropy[i]));
    }
    for (size_t i = 0; i < x->n; i++) {
        expect_slope("value", grads.g_value[i], slope(w, x, &x->value[i]));
        expect_slope("q", grads.g_q[i], slope(w, x, &x->q[i]));
    }
}

static void gradients_by_differences(void **state)
{
    esper_ppo_weights w = recorded_weights;
    static numbers x;
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &(esper_rng_key){.seed = 6, .purpose = ESPER_RNG_TEST});
    w.entropy = 0.05;
    w.value = 0.5;
    w.q = 0.25;
    for (int i = 0; i < 40; i++) {
        w.head_means = i % 2 == 0;
        draw_numbers(&rng, &x);
        check_slopes(&w, &x);
    }
}

/* A head that is asked at one step of ten weighs a tenth of one that is asked always. */
static void heads_weigh_as_often_as_they_count(void **state)
{
    esper_ppo_weights w = {.clip = 0.2};
    static numbers x;

    (void)state;
    memset(&x, 0, sizeof(x));
    x.n = 10;
    for (size_t i = 0; i < x.n; i++) {
        x.asked[i] = i == 0 ? 3 : 2;
        x.advantage[i] = 1;
    }
    run(&w, &x);
    assert_true(fabs(x.g_log_prob[0] + 0.1) < 1e-12 && fabs(x.g_log_prob[1] + 0.1) < 1e-12);
    w.head_means = true;
    run(&w, &x);
    assert_true(fabs(x.g_log_prob[0] + 1.0) < 1e-12 && fabs(x.g_log_prob[1] + 0.1) < 1e-12);
}

/* Forced steps teach the critic alone. */
static void forced_steps_have_no_actor(void **state)
{
    esper_ppo_weights w = {.clip = 0.2, .value = 1, .forced_weight = 0.2, .entropy = 0.1};
    static numbers x;

    (void)state;
    memset(&x, 0, sizeof(x));
    x.n = 2;
    x.forced[0] = x.forced[1] = 1;
    x.asked[0] = x.asked[1] = 0xff;
    x.advantage[0] = x.value[0] = 1;
    run(&w, &x);
    for (size_t i = 0; i < x.n * HEADS; i++)
        assert_true(x.g_log_prob[i] == 0 && x.g_entropy[i] == 0);
    assert_true(x.g_value[0] > 0);
}

static void far_ratios_stay_finite(void **state)
{
    esper_ppo_weights w = {.clip = 0.2};
    static numbers x;
    esper_ppo_terms terms;
    esper_ppo_move move;

    (void)state;
    memset(&x, 0, sizeof(x));
    x.n = 2;
    x.asked[0] = x.asked[1] = 0xff;
    for (size_t i = 0; i < x.n * HEADS; i++)
        x.log_prob[i] = i < HEADS ? 1e6 : -1e6;
    x.advantage[0] = x.advantage[1] = -1;
    terms = terms_of(&x);
    move = esper_ppo_moved(&w, &terms);
    assert_true(isfinite(run(&w, &x).total) && isfinite(move.kl) && isfinite(move.ratio_max));
    assert_int_equal(move.n_bad, 2);
}

static void penalties_follow_the_run(void **state)
{
    (void)state;
    assert_true(esper_ppo_penalty_scale(0) == 1.5 && esper_ppo_penalty_scale(0.25) == 1.0);
    assert_true(esper_ppo_penalty_scale(0.75) == 1.0 && esper_ppo_penalty_scale(0.875) == 0.75);
    assert_true(esper_ppo_penalty_scale(1) == 0.5 && esper_ppo_penalty_scale(7) == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_losses),
        cmocka_unit_test(gradients_by_differences),
        cmocka_unit_test(heads_weigh_as_often_as_they_count),
        cmocka_unit_test(forced_steps_have_no_actor),
        cmocka_unit_test(far_ratios_stay_finite),
        cmocka_unit_test(penalties_follow_the_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
