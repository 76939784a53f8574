/* ctest: timeout=240 cost=20 sealed=also */
/* The learner: toy tasks solved on five seeds of five, the same bits at any number of threads and after a resume, and
 * nothing that is not finite in a weight.
 *
 *   memory   a cue is shown at the first step alone, and asked for at the last: cannot be solved without memory
 *   slots    four slots of different worth, some closed, or waiting: an operation and, if it asks, a slot
 *   travel   the same where slots are seen by their properties, and two operations: one pays what the slot is worth, the other
 *            what it is not, and a sign says which of them pays at all. What was learned on four slots then decides about eight */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "policy/masked.h"
#include "policy/ppo.h"
#include "support/effort.h"
#include "support/memory.h"

enum { ENVS = 32, STEPS = 6, MOST = ENVS * STEPS, FEATURES = 18, HEADS = 2, HIDDEN = 32, SLOTS = 4, CUES = 3 };
enum { SLOT = 0, OP = 1 }; /* heads of the task with slots */

static const double WAIT_REWARD = 0.5;

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* ------------------------------------------------------------------------------------------------ a learner and a task */

typedef struct toy {
    bool           memory; /* or slots */
    int            properties; /* of so many slots, in the task `travel`; 0: another task */
    uint64_t       seed;
    esper_pool    *pool;
    esper_backend *backend;
    esper_ppo     *ppo;
    int            n_heads;
    /* the rollout */
    float    obs[MOST * FEATURES], log_probs[MOST * HEADS], values[MOST], rewards[MOST], advantages[MOST], targets[MOST];
    int32_t  actions[MOST * HEADS];
    uint64_t masks[MOST * HEADS];
    uint32_t asked[MOST];
    uint8_t  forced[MOST], reset[MOST];
    float    h[ENVS * HIDDEN], c[ENVS * HIDDEN];
    int      cue[ENVS], stored[ENVS];
    double   optimum; /* of the rollout, in all */
} toy;

static esper_ppo_desc desc_of(bool memory, uint64_t seed)
{
    esper_ppo_desc d;

    esper_ppo_desc_init(&d);
    d.net.n_features = memory ? CUES + 2 : 2 * SLOTS + 1;
    d.net.n_heads = memory ? 1 : HEADS;
    d.net.heads[SLOT] =
        (esper_policy_head){memory ? "answer" : "slot", memory ? CUES : SLOTS, false, ESPER_POLICY_OF_RUN};
    d.net.heads[OP] = (esper_policy_head){"op", 2, false, ESPER_POLICY_OF_RUN};
    d.net.width = d.net.hidden = HIDDEN;
    d.n_envs = ENVS;
    d.max_steps = d.chunk_steps = STEPS;
    d.batch_chunks = ENVS / 2;
    d.lr = memory ? 3e-3 : 5e-3;
    d.target_kl = 0.1;
    d.weights.entropy = memory ? 0.03 : 0.01;
    d.seed = seed;
    return d;
}

static esper_ppo_desc desc_of_travel(int n_slots, uint64_t seed)
{
    esper_ppo_desc d = desc_of(false, seed);

    d.net.n_features = 2;
    d.net.n_slots = n_slots;
    d.net.n_slot_features = 2;
    d.net.there = 1;
    d.net.slot_width = 16;
    d.net.q_head = OP;
    d.net.heads[SLOT] = (esper_policy_head){"slot", n_slots, false, ESPER_POLICY_AMONG_SLOTS};
    d.net.heads[OP].size = 3;
    d.weights.entropy = 0.03;
    return d;
}

static void open_toy(toy *t, bool memory, uint64_t seed, const char *backend, int threads, const esper_ppo_desc *desc)
{
    esper_ppo_desc d = desc != NULL ? *desc : desc_of(memory, seed);

    memset(t, 0, sizeof(*t));
    t->memory = memory;
    t->seed = seed;
    t->n_heads = d.net.n_heads;
    t->properties = d.net.n_slots;
    check_good(esper_pool_open(threads, &t->pool));
    check_good(esper_backend_open(backend, t->pool, &t->backend));
    check_good(esper_ppo_open(t->backend, &d, &t->ppo));
}

static void close_toy(toy *t)
{
    esper_ppo_close(t->ppo);
    esper_backend_close(t->backend);
    esper_pool_close(t->pool);
}

static esper_rng stream(const toy *t, int round, int step, int env, uint32_t tag)
{
    esper_rng rng;

    esper_rng_init(&rng, &(esper_rng_key){.seed = t->seed,
                                          .purpose = ESPER_RNG_TEST,
                                          .network = (uint32_t)env,
                                          .step = (uint32_t)round,
                                          .sample = (uint32_t)step,
                                          .tag = tag});
    return rng;
}

static void show_memory(toy *t, int step, int env, float *obs, uint64_t *mask, esper_rng *rng)
{
    if (step == 0)
        t->cue[env] = (int)esper_rng_below(rng, CUES);
    if (step == 0)
        obs[t->cue[env]] = 1.0f;
    obs[CUES] = step == STEPS - 1 ? 1.0f : 0.0f;
    obs[CUES + 1] = 1.0f;
    mask[0] = step == STEPS - 1 ? 0x7 : 0x1;
    t->forced[env * STEPS + step] = step != STEPS - 1;
}

static void show_slots(toy *t, int step, int env, float *obs, uint64_t *mask, esper_rng *rng)
{
    double best = WAIT_REWARD;

    mask[SLOT] = 1 + esper_rng_below(rng, (1u << SLOTS) - 1);
    mask[OP] = 0x3;
    for (int slot = 0; slot < SLOTS; slot++)
        if ((mask[SLOT] >> slot & 1u) != 0) {
            obs[slot] = esper_rng_uniform(rng);
            obs[SLOTS + slot] = 1.0f;
            best = fmax(best, (double)obs[slot]);
        }
    obs[2 * SLOTS] = 1.0f;
    t->reset[env * STEPS + step] = 1; /* every step is a task of its own */
    t->optimum += best;
}

/* 1 | which operation pays | worth and presence of each slot. */
static void show_properties(toy *t, int step, int env, float *obs, uint64_t *mask, esper_rng *rng)
{
    bool gives = esper_rng_below(rng, 2) == 1;
    double best = WAIT_REWARD;

    mask[SLOT] = 1 + esper_rng_below(rng, (1u << t->properties) - 1);
    mask[OP] = 0x7;
    obs[0] = 1.0f;
    obs[1] = gives ? 1.0f : 0.0f;
    for (int slot = 0; slot < t->properties; slot++)
        if ((mask[SLOT] >> slot & 1u) != 0) {
            float worth = obs[2 + 2 * slot] = esper_rng_uniform(rng);

            obs[3 + 2 * slot] = 1.0f;
            best = fmax(best, (double)(gives ? 1.0f - worth : worth));
        }
    t->reset[env * STEPS + step] = 1;
    t->optimum += best;
}

/* Draws a head, or takes the likeliest. */
static void choose(toy *t, int env, size_t entry, int head, uint64_t mask, esper_rng *rng)
{
    size_t at = entry * (size_t)t->n_heads + (size_t)head;
    esper_masked m;

    check_good(esper_ppo_head(t->ppo, env, head, t->actions + entry * (size_t)t->n_heads, mask, &m));
    t->masks[at] = mask;
    t->actions[at] = rng != NULL ? esper_masked_sample(&m, rng) : esper_masked_greedy(&m);
    t->log_probs[at] = (float)esper_masked_log_prob(&m, t->actions[at]);
}

static void act_in_env(toy *t, int round, int step, int env, const uint64_t *mask, bool greedy)
{
    size_t entry = (size_t)(env * STEPS + step);
    esper_rng draws = stream(t, round, step, env, 2), *rng = greedy ? NULL : &draws;
    const float *obs = t->obs + entry * FEATURES;

    t->asked[entry] = 1u;
    if (t->memory) {
        choose(t, env, entry, 0, mask[0], rng);
        t->rewards[entry] = step == STEPS - 1 && t->actions[entry] == t->cue[env] ? 1.0f : 0.0f;
        t->optimum += step == STEPS - 1;
        return;
    }
    choose(t, env, entry, OP, mask[OP], rng);
    t->asked[entry] = 1u << OP;
    if (t->actions[entry * HEADS + OP] > 0) {
        int op = t->actions[entry * HEADS + OP];
        const int32_t *slot = &t->actions[entry * HEADS + SLOT];

        choose(t, env, entry, SLOT, mask[SLOT], rng);
        t->asked[entry] |= 1u << SLOT;
        if (t->properties == 0)
            t->rewards[entry] = obs[*slot];
        else if (op - 1 != (int)obs[1])
            t->rewards[entry] = 0.0f;
        else
            t->rewards[entry] = op == 1 ? obs[2 + 2 * *slot] : 1.0f - obs[2 + 2 * *slot];
    } else {
        choose(t, env, entry, SLOT, 1, rng); /* not asked: one choice */
        t->rewards[entry] = (float)WAIT_REWARD;
    }
}

/* One rollout of all environments; the part of the optimum that was reached. */
static double play(toy *t, int round, bool greedy)
{
    esper_policy_io io = esper_policy_net_io(esper_ppo_net(t->ppo), ESPER_POLICY_ACT);
    size_t wide = esper_policy_net_wide(&esper_ppo_desc_of(t->ppo)->net);
    double reward = 0;

    memset(t->obs, 0, sizeof(t->obs));
    memset(t->h, 0, sizeof(t->h));
    memset(t->c, 0, sizeof(t->c));
    t->optimum = 0;
    for (int env = 0; env < ENVS; env++)
        t->stored[env] = STEPS;
    for (int step = 0; step < STEPS; step++) {
        static float rows[ENVS * FEATURES];
        uint64_t masks[ENVS][HEADS];
        esper_ppo_step now = {.n_envs = ENVS, .obs = rows, .h = t->h, .c = t->c};

        for (int env = 0; env < ENVS; env++) {
            esper_rng rng = stream(t, round, step, env, 1);
            float *obs = t->obs + (size_t)(env * STEPS + step) * FEATURES;

            (t->memory           ? show_memory
             : t->properties > 0 ? show_properties
                                 : show_slots)(t, step, env, obs, masks[env], &rng);
            memcpy(rows + (size_t)env * wide, obs, wide * sizeof(float));
        }
        if (!t->memory) {
            memset(t->h, 0, sizeof(t->h));
            memset(t->c, 0, sizeof(t->c));
        }
        check_good(esper_ppo_act(t->ppo, &now));
        for (int env = 0; env < ENVS; env++) {
            t->values[env * STEPS + step] = io.value[env];
            act_in_env(t, round, step, env, masks[env], greedy);
            reward += (double)t->rewards[env * STEPS + step];
        }
    }
    return reward / t->optimum;
}

/* What comes after a step, undiscounted: the answer's reward for all steps before it, or the step's own. */
static void find_returns(toy *t)
{
    for (int step = 0; step < STEPS; step++)
        for (int env = 0; env < ENVS; env++) {
            int entry = env * STEPS + step, pays = t->memory ? env * STEPS + STEPS - 1 : entry;

            t->targets[entry] = t->rewards[pays];
            t->advantages[entry] = t->rewards[pays] - t->values[entry];
        }
}

/* Rows of FEATURES become rows of what the network has. */
static esper_ppo_batch batch_of(toy *t)
{
    static float packed[MOST * FEATURES];
    size_t wide = esper_policy_net_wide(&esper_ppo_desc_of(t->ppo)->net);

    for (size_t i = 0; i < MOST; i++)
        memcpy(packed + i * wide, t->obs + i * FEATURES, wide * sizeof(float));
    return (esper_ppo_batch){.n_steps = STEPS,
                             .n_envs = ENVS,
                             .n_stored = t->stored,
                             .obs = packed,
                             .actions = t->actions,
                             .masks = t->masks,
                             .open = t->masks,
                             .asked = t->asked,
                             .forced = t->forced,
                             .reset = t->reset,
                             .log_probs = t->log_probs,
                             .rewards = t->rewards,
                             .values = t->values,
                             .advantages = t->advantages,
                             .targets = t->targets};
}

static esper_ppo_report learn(toy *t, int round)
{
    esper_ppo_report report;
    esper_ppo_batch batch;

    play(t, round, false);
    find_returns(t);
    batch = batch_of(t);
    check_good(esper_ppo_update(t->ppo, &batch, (double)NAN, NULL, &report));
    return report;
}

static uint64_t bits_of(toy *t)
{
    const esper_slab *slab = esper_policy_net_slab(esper_ppo_net(t->ppo));
    uint64_t hash = 1469598103934665603u;
    esper_slab mirror;

    check_good(esper_slab_mirror(slab, ~0u, &mirror));
    for (int family = ESPER_FAMILY_PARAM; family <= ESPER_FAMILY_MOMENT2; family++) {
        const unsigned char *bytes = (const unsigned char *)mirror.family[family];
        size_t n = (size_t)esper_slab_count(slab, (esper_family)family) * sizeof(float);

        for (size_t i = 0; family != ESPER_FAMILY_GRAD && i < n; i++)
            hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    esper_slab_fini(&mirror);
    return hash;
}

/* ------------------------------------------------------------------------------------------------ toys */

/* Under a sanitizer one seed, for a few rounds: it is not asked how well it learned. */
static void solve(bool memory, int n_rounds_full)
{
    int n_rounds = effort(n_rounds_full, 6);
    static toy t;

    for (uint64_t seed = 1; seed <= (uint64_t)effort(5, 1); seed++) {
        double before, after = 0, sum = 0;

        open_toy(&t, memory, seed, "cpu", 2, NULL);
        before = play(&t, 100000, true);
        for (int round = 0; round < n_rounds; round++) {
            esper_ppo_report r = learn(&t, round);

            assert_true(r.performed && r.health == ESPER_PPO_FINE && r.log_prob_gap < 1e-4);
        }
        for (int k = 0; k < 4; k++)
            sum += play(&t, 200000 + k, true);
        after = sum / 4;
        printf("%s, seed %d: %.3f of the optimum before, %.3f after %d rounds\n", memory ? "memory" : "slots",
               (int)seed, before, after, n_rounds);
        if (after < 0.95 && !is_brief())
            fail_msg("%s, seed %d: %.3f of the optimum", memory ? "memory" : "slots", (int)seed, after);
        close_toy(&t);
    }
}

static void decides_about_more_slots(void **state)
{
    static toy t, more;

    (void)state;
    for (uint64_t seed = 1; seed <= (uint64_t)effort(3, 1); seed++) {
        esper_ppo_desc few = desc_of_travel(SLOTS, seed), many = desc_of_travel(2 * SLOTS, seed + 100);
        double learned = 0, sum = 0;
        esper_safetensors *file;

        open_toy(&t, false, seed, "cpu", 2, &few);
        for (int round = 0; round < effort(120, 6); round++) {
            esper_ppo_report r = learn(&t, round);

            assert_true(r.performed && r.health == ESPER_PPO_FINE && r.log_prob_gap < 1e-4);
        }
        for (int k = 0; k < 4; k++)
            learned += play(&t, 200000 + k, true) / 4;
        check_good(esper_ppo_save(t.ppo, "few.safetensors", NULL, 0, NULL, 0));
        close_toy(&t);
        open_toy(&more, false, seed, "cpu", 2, &many);
        check_good(esper_safetensors_open("few.safetensors", &file));
        check_good(esper_ppo_load(more.ppo, file, false));
        esper_safetensors_close(file);
        for (int k = 0; k < 4; k++)
            sum += play(&more, 200000 + k, true) / 4;
        printf("travel, seed %d: %.3f of the optimum, %.3f on twice the slots\n", (int)seed, learned, sum);
        if (sum < 0.95 && !is_brief())
            fail_msg("travel, seed %d: %.3f of the optimum", (int)seed, sum);
        close_toy(&more);
    }
}

static void remembers_the_first_observation(void **state)
{
    (void)state;
    solve(true, 120);
}

static void chooses_slots(void **state)
{
    (void)state;
    solve(false, 60);
}

/* ------------------------------------------------------------------------------------------------ the same bits */

static void expect_same(const esper_ppo_report *a, const esper_ppo_report *b)
{
    if (a->loss.total != b->loss.total || a->move.kl != b->move.kl || a->grad_norm_max != b->grad_norm_max ||
        a->state.c.norm != b->state.c.norm || a->n_updates != b->n_updates || a->findings.found != b->findings.found)
        fail_msg("loss %.17g and %.17g, kl %.17g and %.17g, norm %.17g and %.17g", a->loss.total, b->loss.total,
                 a->move.kl, b->move.kl, a->grad_norm_max, b->grad_norm_max);
}

static void threads_change_nothing(void **state)
{
    static toy one, three;

    (void)state;
    open_toy(&one, true, 11, "cpu", 1, NULL);
    open_toy(&three, true, 11, "cpu", 3, NULL);
    for (int round = 0; round < 3; round++) {
        esper_ppo_report a = learn(&one, round), b = learn(&three, round);

        expect_same(&a, &b);
    }
    assert_true(bits_of(&one) == bits_of(&three));
    close_toy(&one);
    close_toy(&three);
}

/* Saved after two rounds and loaded into a learner born of another seed's weights: goes on to the same bits. */
static void resume_is_exact(void **state)
{
    static const char *const path = "policy.safetensors";
    const esper_safetensors_note note = {"task", "toy"};
    esper_safetensors *file;
    static toy t, again;
    esper_ppo_report a, b;

    (void)state;
    open_toy(&t, false, 12, "cpu", 2, NULL);
    learn(&t, 0);
    learn(&t, 1);
    check_good(esper_ppo_save(t.ppo, path, NULL, 0, &note, 1));
    a = learn(&t, 2);
    open_toy(&again, false, 12, "cpu", 1, NULL);
    learn(&again, 77); /* whatever it was */
    check_good(esper_safetensors_open(path, &file));
    assert_string_equal(esper_safetensors_note_find(file, "task"), "toy");
    check_good(esper_ppo_load(again.ppo, file, true));
    esper_safetensors_close(file);
    b = learn(&again, 2);
    expect_same(&a, &b);
    assert_true(bits_of(&t) == bits_of(&again));
    assert_true(esper_ppo_hash_counts(again.ppo) == esper_ppo_hash_counts(t.ppo));
    close_toy(&t);
    close_toy(&again);
    unlink(path);
}

static void other_files_are_refused(void **state)
{
    static const char *const path = "other.safetensors";
    const esper_safetensors_note old = {"policy_version", "0"};
    const float one = 1;
    const esper_safetensors_tensor any = {.name = "x", .dtype = ESPER_SAFETENSORS_F32, .rank = 0, .data = &one};
    esper_safetensors *file;
    static toy slots, memory;
    uint64_t before;

    (void)state;
    open_toy(&slots, false, 13, "ref", 1, NULL);
    open_toy(&memory, true, 13, "ref", 1, NULL);
    before = bits_of(&slots);
    check_good(esper_ppo_save(memory.ppo, path, NULL, 0, NULL, 0));
    check_good(esper_safetensors_open(path, &file));
    assert_int_equal(esper_ppo_load(slots.ppo, file, true), ESPER_E_CONFIG);
    assert_non_null(strstr(esper_last_error(), "features: 5, but here 9"));
    esper_safetensors_close(file);
    check_good(esper_safetensors_write(path, &any, 1, &old, 1));
    check_good(esper_safetensors_open(path, &file));
    assert_int_equal(esper_ppo_load(slots.ppo, file, true), ESPER_E_FORMAT);
    assert_non_null(strstr(esper_last_error(), "version 0"));
    esper_safetensors_close(file);
    check_good(esper_safetensors_write(path, &any, 1, NULL, 0));
    check_good(esper_safetensors_open(path, &file));
    assert_int_equal(esper_ppo_load(slots.ppo, file, true), ESPER_E_FORMAT);
    esper_safetensors_close(file);
    assert_true(bits_of(&slots) == before);
    close_toy(&slots);
    close_toy(&memory);
    unlink(path);
}

/* Chunks of 2 or all 6 steps: the pass over the rollout carries memory from one to the next, so that what the actor said is
 * found again to rounding, with resets and steps that are missing. */
static void chunks_carry_memory(void **state)
{
    (void)state;
    for (int steps = 2; steps <= 4; steps += 2) {
        esper_ppo_desc d = desc_of(true, 14);
        esper_ppo_report report;
        esper_ppo_batch batch;
        static toy t;

        d.chunk_steps = steps;
        d.batch_chunks = 5;
        open_toy(&t, true, 14, "cpu", 2, &d);
        play(&t, 0, false);
        find_returns(&t);
        t.stored[3] = 4;
        batch = batch_of(&t);
        check_good(esper_ppo_update(t.ppo, &batch, (double)NAN, NULL, &report));
        assert_true(report.performed && report.log_prob_gap < 1e-5);
        assert_int_equal(report.n_steps, MOST - 2);
        assert_int_equal(report.n_forced, (STEPS - 1) * ENVS - 1);
        assert_true(report.state.healthy && isfinite(report.explained_variance));
        close_toy(&t);
    }
}

/* ------------------------------------------------------------------------------------------------ what fails */

static void expect_failure(toy *t, const esper_ppo_batch *batch, esper_ppo_source source, esper_ppo_health health)
{
    uint64_t before = bits_of(t);
    esper_ppo_report report;

    check_good(esper_ppo_update(t->ppo, batch, (double)NAN, NULL, &report));
    if (report.performed || report.failed != 1u << source || report.health != health || report.n_skipped < 1)
        fail_msg("%s: performed %d, failed %#x, health %d, skipped %d", esper_ppo_source_name(source), report.performed,
                 report.failed, report.health, report.n_skipped);
    assert_true(bits_of(t) == before);
}

/* Two failures in a row, a good one, and three in a row: only then is it over. */
static void what_is_not_finite_is_skipped(void **state)
{
    float *weight;
    esper_backend *backend;
    float kept;
    const esper_net *net;
    esper_ppo_report report;
    esper_ppo_batch batch;
    static toy t;

    (void)state;
    open_toy(&t, false, 15, "cpu", 2, NULL);
    play(&t, 0, false);
    find_returns(&t);
    t.obs[5] = NAN;
    batch = batch_of(&t);
    expect_failure(&t, &batch, ESPER_PPO_SOURCE_OBSERVATION, ESPER_PPO_DEGRADED);
    t.obs[5] = 0;
    t.rewards[7] = INFINITY;
    batch = batch_of(&t);
    expect_failure(&t, &batch, ESPER_PPO_SOURCE_REWARD, ESPER_PPO_DEGRADED);
    report = learn(&t, 1);
    assert_true(report.performed && report.health == ESPER_PPO_FINE);
    t.targets[0] = NAN;
    batch = batch_of(&t);
    expect_failure(&t, &batch, ESPER_PPO_SOURCE_RETURN, ESPER_PPO_DEGRADED);
    t.targets[0] = 0;
    net = esper_policy_net_program(esper_ppo_net(t.ppo));
    backend = esper_policy_net_backend(esper_ppo_net(t.ppo));
    weight = esper_slab_at(esper_policy_net_slab(esper_ppo_net(t.ppo)), ESPER_FAMILY_PARAM,
                           &net->tensors[esper_net_find(net, "slot_head.2.bias")]);
    kept = memory_peek(backend, &weight[1]);
    memory_poke(backend, &weight[1], NAN);
    batch = batch_of(&t);
    expect_failure(&t, &batch, ESPER_PPO_SOURCE_LOGITS, ESPER_PPO_DEGRADED);
    memory_poke(backend, &weight[1], kept);
    t.advantages[3] = NAN;
    batch = batch_of(&t);
    expect_failure(&t, &batch, ESPER_PPO_SOURCE_RETURN, ESPER_PPO_HALTED);
    close_toy(&t);
}

/* Values are finite, and so is their loss in double; the gradient is not in float. */
static void gradients_are_looked_at(void **state)
{
    esper_ppo_desc d = desc_of(true, 16);
    esper_ppo_batch batch;
    static toy t;

    (void)state;
    d.weights.value = 1e6;
    open_toy(&t, true, 16, "ref", 1, &d);
    play(&t, 0, false);
    find_returns(&t);
    for (int i = 0; i < MOST; i++)
        t.targets[i] = 3e38f * (i % 2 == 0 ? 1.0f : -1.0f);
    batch = batch_of(&t);
    expect_failure(&t, &batch, ESPER_PPO_SOURCE_GRADIENT, ESPER_PPO_DEGRADED);
    close_toy(&t);
}

static void moving_too_far_stops(void **state)
{
    esper_ppo_desc d = desc_of(false, 17);
    esper_ppo_report report;
    static toy t;

    (void)state;
    d.target_kl = 1e-6;
    d.lr = 0.02;
    open_toy(&t, false, 17, "cpu", 2, &d);
    report = learn(&t, 0);
    assert_true(report.performed && report.stop_epoch == 1 && report.n_epochs == 1);
    assert_true(report.move.kl > 1.5e-6 && report.health == ESPER_PPO_FINE);
    close_toy(&t);
}

static void bad_batches_are_refused(void **state)
{
    esper_ppo_report report;
    esper_ppo_batch batch;
    static toy t;

    (void)state;
    open_toy(&t, false, 18, "ref", 1, NULL);
    play(&t, 0, false);
    find_returns(&t);
    batch = batch_of(&t);
    t.actions[10] = 4;
    assert_int_equal(esper_ppo_update(t.ppo, &batch, (double)NAN, NULL, &report), ESPER_E_ARG);
    t.actions[10] = 0;
    t.masks[10] = 2;
    assert_int_equal(esper_ppo_update(t.ppo, &batch, (double)NAN, NULL, &report), ESPER_E_ARG);
    assert_non_null(strstr(esper_last_error(), "is not open"));
    batch.n_envs = ENVS + 1;
    assert_int_equal(esper_ppo_update(t.ppo, &batch, (double)NAN, NULL, &report), ESPER_E_ARG);
    close_toy(&t);
}

/* A clear loss of entropy at one head: the penalty for it changes the update. */
static void penalties_count(void **state)
{
    esper_ppo_desc d = desc_of(false, 19);
    uint64_t open[MOST * HEADS];
    esper_ppo_report report;
    esper_ppo_batch batch;
    static toy t;

    (void)state;
    d.weights.head_floor[SLOT] = d.weights.head_floor[OP] = 2; /* more than there is: always missing */
    d.weights.head_penalty[SLOT] = 0.3;
    open_toy(&t, false, 19, "ref", 1, &d);
    play(&t, 0, false);
    find_returns(&t);
    batch = batch_of(&t);
    for (int i = 0; i < MOST; i++) {
        open[i * HEADS + SLOT] = 0x7;
        open[i * HEADS + OP] = 0x1; /* nothing to choose: left out */
    }
    batch.open = open;
    check_good(esper_ppo_update(t.ppo, &batch, (double)NAN, NULL, &report));
    assert_true(report.loss.penalty > 0.2 && report.loss.penalty < 0.4);
    close_toy(&t);
}

/* Each allocation of opening and of saving fails once: it is said, and everything is given back. */
static void memory_can_run_out(void **state)
{
    static const char *const path = "short.safetensors";
    esper_ppo_desc d = desc_of(false, 21);
    esper_status status = ESPER_E_NOMEM;
    esper_mem_stats before, after;
    esper_ppo *ppo = NULL;
    static toy t;
    uint64_t n = 0;

    (void)state;
    open_toy(&t, false, 21, "ref", 1, NULL);
    for (n = 1; status != ESPER_OK; n++) {
        esper_mem_stats_get(&before);
        esper_mem_fail_at(n);
        status = esper_ppo_open(t.backend, &d, &ppo);
        esper_mem_fail_at(0);
        esper_mem_stats_get(&after);
        if (status != ESPER_OK && (status != ESPER_E_NOMEM || after.n_live != before.n_live))
            fail_msg("allocation %d: %s, %d blocks are left", (int)n, esper_status_name(status),
                     (int)(after.n_live - before.n_live));
    }
    esper_ppo_close(ppo);
    assert_true(n > 40);
    status = ESPER_E_NOMEM;
    for (n = 1; status != ESPER_OK; n++) {
        esper_mem_stats_get(&before);
        esper_mem_fail_at(n);
        status = esper_ppo_save(t.ppo, path, NULL, 0, NULL, 0);
        esper_mem_fail_at(0);
        esper_mem_stats_get(&after);
        assert_true(after.n_live == before.n_live && (status == ESPER_OK || status == ESPER_E_NOMEM));
    }
    assert_true(n > 3);
    close_toy(&t);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(resume_is_exact),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(chunks_carry_memory),
        cmocka_unit_test(what_is_not_finite_is_skipped),
        cmocka_unit_test(gradients_are_looked_at),
        cmocka_unit_test(moving_too_far_stops),
        cmocka_unit_test(bad_batches_are_refused),
        cmocka_unit_test(penalties_count),
        cmocka_unit_test(memory_can_run_out),
        cmocka_unit_test(remembers_the_first_observation),
        cmocka_unit_test(chooses_slots),
        cmocka_unit_test(decides_about_more_slots),
    };

    return cmocka_run_group_tests(tests, NULL, memory_is_given_back);
}
