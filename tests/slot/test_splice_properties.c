/* What holds for every seed in the stream, whatever its blueprint and weights: the forward pass and the gradients of a slot
 * by stage and operator, and a whole host around it. Which test shows which property is told in docs/parity.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "nn/optim.h"
#include "slot/splice.h"
#include "support/grown_slots.h"
#include "support/small_net.h"

enum { N_SAMPLES = 3, MAX_VALUES = 4096, N_BACKENDS = 2, N_BLENDS = 3 };

static const char *const backends[N_BACKENDS] = {"ref", "cpu"};
static const int blends[N_BLENDS] = {ESPER_BLEND_ADD, ESPER_BLEND_MULTIPLY, ESPER_BLEND_GATE};

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static esper_rng new_rng(uint32_t step)
{
    esper_rng_key key = {.seed = 11, .purpose = ESPER_RNG_TEST, .step = step};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    return rng;
}

/* ------------------------------------------------------------------------------------------------ one slot */

/* A stream with one slot in it, and all that came out of a pass. */
typedef struct stream {
    const char            *backend;
    esper_topology         topology;
    grown_seed             seed;
    const esper_blueprint *stand_in;
    float                  alpha;     /* below 0: the slot's own */
    float                  magnitude; /* of h; 0 = 1 */
    bool                   positive;  /* h and weights are */
    esper_slots            slots;
    small_run              run;
    int                    n; /* values of h */
    float                  h[MAX_VALUES], y[MAX_VALUES], grad_h[MAX_VALUES];
} stream;

static void draw(float *values, int64_t n, uint32_t step, float scale, bool positive)
{
    esper_rng rng = new_rng(step);

    for (int64_t i = 0; i < n; i++) {
        float x = 2.0f * esper_rng_uniform(&rng) - 1.0f;

        values[i] = scale * (positive ? fabsf(x) + 0.01f : x);
    }
}

static void build_stream(stream *s)
{
    static const int image[] = {4, 5, 5}, tokens[] = {6, 16};
    bool is_cnn = s->topology == ESPER_TOPOLOGY_CNN;
    esper_boundary boundary = {.slot = "r0c0", .channels = is_cnn ? 4 : 16};
    esper_splice splice = {.topology = s->topology, .slots = &s->slots, .training = true, .stand_in = s->stand_in};
    esper_net *net = &s->run.net;

    check_good(esper_slots_init(&s->slots, &boundary, 1, &(esper_slot_rules){.permissive = true}));
    check_good(grown_slot(&s->slots.slot[0], &s->seed));
    esper_net_init(net);
    net->input = esper_net_input(net, "h", ESPER_F32, is_cnn ? 3 : 2, is_cnn ? image : tokens);
    net->tensors[net->input].want_grad = true;
    net->hook = esper_splice_put;
    net->hook_context = &splice;
    net->output = esper_net_boundary(net, boundary, net->input);
    net->hook = NULL;
    s->n = N_SAMPLES * (int)net->tensors[net->input].count;
    assert_true(s->n <= MAX_VALUES);
}

/* Weights are drawn by name, so that they are the same in every program with the seed. */
static void fill_stream(stream *s)
{
    const esper_net *net = &s->run.net;
    int alpha = esper_net_find(net, "r0c0.alpha");

    draw(s->h, s->n, 1, s->magnitude > 0.0f ? s->magnitude : 1.0f, s->positive);
    memcpy(esper_plan_data(s->run.plan, 0, net->input), s->h, (size_t)s->n * sizeof(float));
    for (int t = 0; t < net->n_tensors; t++) {
        uint32_t name = 2;

        for (const char *c = net->tensors[t].name; *c != '\0'; c++)
            name = name * 31 + (unsigned char)*c;
        if (net->tensors[t].role == ESPER_ROLE_PARAM)
            draw(esper_slab_at(&s->run.slab, ESPER_FAMILY_PARAM, &net->tensors[t]), net->tensors[t].count, name, 0.7f,
                 s->positive);
    }
    for (int i = 0; alpha != ESPER_NO_TENSOR && i < N_SAMPLES; i++)
        ((float *)esper_plan_data(s->run.plan, 0, alpha))[i] =
            s->alpha >= 0.0f ? s->alpha : (float)s->slots.slot[0].alpha.value;
}

/* A pass forward, and back from L = sum of y. The caller closes s->run. */
static void stream_run(stream *s)
{
    const esper_net *net = &s->run.net;
    float *grad;

    build_stream(s);
    small_run_open(&s->run, s->backend, N_SAMPLES, true);
    fill_stream(s);
    check_good(esper_plan_forward(s->run.plan));
    check_good(esper_backend_sync(s->run.backend));
    memcpy(s->y, esper_plan_data(s->run.plan, 0, net->output), (size_t)s->n * sizeof(float));
    if (net->n_ops == 0)
        return;
    grad = esper_plan_grad(s->run.plan, 0, net->output);
    for (int i = 0; i < s->n; i++)
        grad[i] = 1.0f;
    check_good(esper_plan_backward(s->run.plan));
    check_good(esper_backend_sync(s->run.backend));
    grad = esper_plan_grad(s->run.plan, 0, net->input);
    for (int i = 0; i < s->n; i++)
        s->grad_h[i] = grad != NULL ? grad[i] : 0.0f;
}

/* The same, and closed at once. */
static void stream_pass(stream *s)
{
    stream_run(s);
    small_run_close(&s->run);
}

static stream new_stream(const char *backend, esper_topology topology, const char *blueprint, int stage, int blend)
{
    return (stream){.backend = backend,
                    .topology = topology,
                    .seed = {"r0c0", blueprint, stage, blend, 0.5, false},
                    .alpha = -1.0f};
}

static const char *label(const stream *s, char text[128])
{
    snprintf(text, 128, "%s, %s %s in %s, blend %d", s->backend, esper_topology_name(s->topology), s->seed.blueprint,
             esper_stage_name(s->seed.stage), s->seed.blend);
    return text;
}

static void check_all(const stream *s, const float *values, const float *expected, double allowed, const char *what)
{
    char text[128];

    for (int i = 0; i < s->n; i++)
        if (!(fabs((double)values[i] - (double)expected[i]) <= allowed * (1.0 + fabs((double)expected[i]))))
            fail_msg("%s: %s %d is %.9g, expected %.9g", label(s, text), what, i, (double)values[i],
                     (double)expected[i]);
}

static void check_constant(const stream *s, const float *values, float expected, const char *what)
{
    float all[MAX_VALUES];

    for (int i = 0; i < s->n; i++)
        all[i] = expected;
    check_all(s, values, all, 0.0, what);
}

/* The largest gradient of the seed's own parameters, and of its gate network's. */
static double largest_grad(const stream *s, bool gate)
{
    double largest = 0.0;

    for (int t = 0; t < s->run.net.n_tensors; t++) {
        const esper_tensor *tensor = &s->run.net.tensors[t];
        const float *grad =
            tensor->role == ESPER_ROLE_PARAM ? esper_slab_at(&s->run.slab, ESPER_FAMILY_GRAD, tensor) : NULL;

        if (grad != NULL && (strncmp(tensor->name, "r0c0.gate.", 10) == 0) == gate)
            for (int64_t i = 0; i < tensor->count; i++)
                largest = fmax(largest, fabs((double)grad[i]));
    }
    return largest;
}

typedef void (*stream_check)(const char *backend, esper_topology topology, const char *blueprint, int blend);

/* Every backend, blueprint and operator. */
static void for_all(stream_check check)
{
    for (int b = 0; b < N_BACKENDS; b++)
        for (int topology = 0; topology < 2; topology++) {
            const esper_blueprint *const *list = esper_blueprint_list((esper_topology)topology);

            for (int i = 0; list[i] != NULL; i++)
                for (int k = 0; k < N_BLENDS; k++)
                    check(backends[b], (esper_topology)topology, list[i]->name, blends[k]);
        }
}

/* ------------------------------------------------------------------------------------------------ 13: training */

static int n_built;

static int build_counted(esper_net *net, int x, esper_blueprint_how how)
{
    (void)how;
    n_built++;
    return esper_net_relu(net, x);
}

/* A seed is part of the program in four stages and no others. */
static void test_inactive_stages_do_not_run_the_seed(void **state)
{
    static const esper_blueprint counted = {.name = "counted", .build = build_counted};

    (void)state;
    for (int stage = ESPER_STAGE_GERMINATED; stage < ESPER_STAGE_CODES; stage++) {
        stream s = new_stream("ref", ESPER_TOPOLOGY_CNN, "counted", stage, ESPER_BLEND_ADD);
        bool runs = stage >= ESPER_STAGE_TRAINING && stage <= ESPER_STAGE_FOSSILIZED;

        if (esper_stage_name(stage) == NULL)
            continue;
        s.stand_in = &counted;
        n_built = 0;
        stream_pass(&s);
        assert_int_equal(n_built, runs);
        if (!runs)
            assert_memory_equal(s.y, s.h, (size_t)s.n * sizeof(float));
    }
}

static void check_training(const char *backend, esper_topology topology, const char *blueprint, int blend)
{
    stream s = new_stream(backend, topology, blueprint, ESPER_STAGE_TRAINING, blend);
    bool is_noop = strcmp(blueprint, "noop") == 0;

    for (int isolated = 0; isolated < 2; isolated++) { /* the setting is about later stages */
        s.seed.isolated = isolated != 0;
        stream_run(&s);
        assert_memory_equal(s.y, s.h, (size_t)s.n * sizeof(float));
        check_constant(&s, s.grad_h, 1.0f, "gradient of the host");
        if ((largest_grad(&s, false) > 0.0) == is_noop)
            fail_msg("%s: largest gradient of the seed %g", blueprint, largest_grad(&s, false));
        assert_true(largest_grad(&s, true) == 0.0);
        small_run_close(&s.run);
    }
}

static void test_training_leaves_the_host_alone(void **state)
{
    (void)state;
    for_all(check_training);
}

/* In a whole network, too: every gradient of the host, bit for bit, is that of the host without the seed. */
static void check_host_gradients(esper_host host, const grown_seed *seeds)
{
    small_run with = {0}, without = {0};
    esper_slots *slots = calloc(1, sizeof(*slots));
    small_run *const runs[] = {&without, &with};
    int n_compared = 0;

    assert_non_null(slots);
    for (int i = 0; i < 2; i++) {
        esper_splice splice = {.topology = host.topology, .slots = slots, .training = true};
        small_run *run = runs[i];

        host.with_loss = false;
        check_good(grown_slots(slots, &host, i == 0 ? NULL : seeds));
        esper_net_init(&run->net);
        check_good(esper_splice_build(&splice, &host, &run->net));
        small_run_open(run, "cpu", N_SAMPLES, true);
        if (host.topology == ESPER_TOPOLOGY_CNN)
            draw(esper_plan_data(run->plan, 0, run->net.input), N_SAMPLES * run->net.tensors[run->net.input].count, 3,
                 1.0f, false);
        check_good(esper_plan_forward(run->plan));
        draw(esper_plan_grad(run->plan, 0, run->net.output), N_SAMPLES * run->net.tensors[run->net.output].count, 4,
             1.0f, false);
        check_good(esper_plan_backward(run->plan));
        check_good(esper_backend_sync(run->backend));
    }
    for (int t = 0; t < without.net.n_tensors; t++) {
        const esper_tensor *tensor = &without.net.tensors[t];
        int twin = esper_net_find(&with.net, tensor->name);

        if (tensor->role != ESPER_ROLE_PARAM)
            continue;
        assert_true(twin != ESPER_NO_TENSOR);
        assert_memory_equal(esper_slab_at(&without.slab, ESPER_FAMILY_GRAD, tensor),
                            esper_slab_at(&with.slab, ESPER_FAMILY_GRAD, &with.net.tensors[twin]),
                            (size_t)tensor->count * sizeof(float));
        n_compared++;
    }
    assert_true(n_compared > 5 && with.net.n_ops > without.net.n_ops);
    small_run_close(&with);
    small_run_close(&without);
    free(slots);
}

static void test_host_gradients_are_those_without_the_seed(void **state)
{
    static const grown_seed convs[] = {{"r0c0", "conv_heavy", ESPER_STAGE_TRAINING, ESPER_BLEND_ADD, 0.0, false},
                                       {"r1c0", "attention", ESPER_STAGE_TRAINING, ESPER_BLEND_GATE, 0.0, false},
                                       {"r0c1", "norm", ESPER_STAGE_TRAINING, ESPER_BLEND_MULTIPLY, 0.0, false},
                                       {0}};
    static const grown_seed tokens[] = {{"r0c0", "mlp", ESPER_STAGE_TRAINING, ESPER_BLEND_ADD, 0.0, false},
                                        {"r0c1", "attention", ESPER_STAGE_TRAINING, ESPER_BLEND_GATE, 0.0, false},
                                        {0}};

    (void)state;
    check_host_gradients(small_cnn(), convs);
    check_host_gradients(small_transformer(0.0f), tokens);
}

/* ------------------------------------------------------------------------------------------------ 14: add */

static void check_halves(const char *backend, esper_topology topology, const char *blueprint, int blend)
{
    stream s = new_stream(backend, topology, blueprint, ESPER_STAGE_BLENDING, ESPER_BLEND_ADD);
    bool is_noop = strcmp(blueprint, "noop") == 0;
    int n_other = 0;

    if (blend != ESPER_BLEND_ADD)
        return;
    s.seed.isolated = true;
    stream_pass(&s);
    check_constant(&s, s.grad_h, 0.5f, "isolated gradient of the host");
    s.seed.isolated = false;
    stream_pass(&s);
    if (is_noop)
        check_constant(&s, s.grad_h, 1.0f, "gradient of the host through an identity");
    for (int i = 0; i < s.n; i++)
        n_other += s.grad_h[i] != 0.5f;
    assert_true(n_other > s.n / 2);
}

static void test_add_at_half(void **state)
{
    (void)state;
    for_all(check_halves);
}

/* ------------------------------------------------------------------------------------------------ 15: ends, multiply */

/* The seed's own output: what a program goes on with that has folded it in. */
static void output_of_seed(const stream *like, stream *folded)
{
    *folded = new_stream(like->backend, like->topology, like->seed.blueprint, ESPER_STAGE_HOLDING, ESPER_BLEND_ADD);
    folded->magnitude = like->magnitude;
    folded->positive = like->positive;
    stream_pass(folded);
}

static void check_ends(const char *backend, esper_topology topology, const char *blueprint, int blend)
{
    stream s = new_stream(backend, topology, blueprint, ESPER_STAGE_BLENDING, blend), folded;

    s.alpha = 0.0f;
    stream_pass(&s);
    assert_memory_equal(s.y, s.h, (size_t)s.n * sizeof(float));
    check_constant(&s, s.grad_h, 1.0f, "gradient of the host at weight 0");
    if (blend != ESPER_BLEND_ADD)
        return;
    s.alpha = 1.0f;
    stream_pass(&s);
    output_of_seed(&s, &folded);
    assert_memory_equal(s.y, folded.y, (size_t)s.n * sizeof(float));
}

static void test_ends_are_exact(void **state)
{
    (void)state;
    for_all(check_ends);
}

static void check_multiply(const char *backend, esper_topology topology, const char *blueprint, int blend)
{
    static stream s[4]; /* at a quarter, a half, three quarters and all of the weight */
    bool is_noop = strcmp(blueprint, "noop") == 0;

    if (blend != ESPER_BLEND_MULTIPLY)
        return;
    for (int k = 0; k < 4; k++) {
        s[k] = new_stream(backend, topology, blueprint, ESPER_STAGE_BLENDING, blend);
        s[k].alpha = 0.25f * (float)(k + 1);
        s[k].seed.isolated = true;
        stream_pass(&s[k]);
        for (int i = 0; i < s[k].n; i++) {
            double a = (double)s[k].alpha, m = (double)s[k].grad_h[i], h = (double)s[k].h[i];

            if (!(m >= 1.0 - a - 1e-6 && m <= 1.0 + a + 1e-6) || fabs((double)s[k].y[i] - m * h) > 1e-5)
                fail_msg("%s: multiplier %g, y %g, h %g, weight %g", blueprint, m, (double)s[k].y[i], h, a);
        }
        if (is_noop)
            assert_memory_equal(s[k].y, s[k].h, (size_t)s[k].n * sizeof(float));
    }
    for (int i = 0; i < s[0].n; i++) { /* affine: equal steps of the weight are equal steps of y */
        double first = (double)s[1].y[i] - (double)s[0].y[i], second = (double)s[3].y[i] - (double)s[2].y[i];

        if (fabs(first - second) > 1e-5)
            fail_msg("%s: y rises by %g, then by %g", blueprint, first, second);
    }
}

static int build_twice(esper_net *net, int x, esper_blueprint_how how)
{
    (void)how;
    return esper_net_add(net, x, x);
}

/* With h and m = s - h above 0, more weight is more. */
static void test_multiply(void **state)
{
    static const esper_blueprint twice = {.name = "twice", .build = build_twice};
    static stream s[2];

    (void)state;
    for_all(check_multiply);
    for (int k = 0; k < 9; k++) {
        stream *now = &s[k % 2], *before = &s[(k + 1) % 2];

        *now = new_stream("cpu", ESPER_TOPOLOGY_CNN, "twice", ESPER_STAGE_BLENDING, ESPER_BLEND_MULTIPLY);
        now->stand_in = &twice;
        now->positive = true;
        now->alpha = 0.1f * (float)(k + 1);
        stream_pass(now);
        for (int i = 0; k > 0 && i < now->n; i++)
            assert_true(now->y[i] > before->y[i]);
    }
}

/* ------------------------------------------------------------------------------------------------ 16: gate */

/* 1 - e is the isolated gradient of the host: one number for each sample, e = alpha times a gate in 0..1. */
static void check_gate(const char *backend, esper_topology topology, const char *blueprint, int blend)
{
    static stream s, folded;
    double gates[3][N_SAMPLES];

    if (blend != ESPER_BLEND_GATE)
        return;
    for (int k = 0; k < 3; k++) {
        float alpha = k == 0 ? 0.25f : k == 1 ? 0.5f : 1.0f;
        int count;

        s = new_stream(backend, topology, blueprint, ESPER_STAGE_BLENDING, blend);
        s.alpha = alpha;
        s.seed.isolated = true;
        stream_pass(&s);
        output_of_seed(&s, &folded);
        count = s.n / N_SAMPLES;
        for (int i = 0; i < s.n; i++) {
            double e = 1.0 - (double)s.grad_h[i / count * count], mix;

            mix = (1.0 - e) * (double)s.h[i] + e * (double)folded.y[i];
            gates[k][i / count] = e / (double)alpha;
            assert_true(s.grad_h[i] == s.grad_h[i / count * count]);
            if (fabs(mix - (double)s.y[i]) > 1e-5 * (1.0 + fabs(mix)))
                fail_msg("%s: y is %.9g, the mix %.9g", blueprint, (double)s.y[i], mix);
        }
    }
    for (int n = 0; n < N_SAMPLES; n++)
        if (!(gates[2][n] > 0.0 && gates[2][n] < 1.0) || fabs(gates[0][n] - gates[2][n]) > 2e-6 ||
            fabs(gates[1][n] - gates[2][n]) > 2e-6)
            fail_msg("%s: the gate of sample %d is %g, %g, %g", blueprint, n, gates[0][n], gates[1][n], gates[2][n]);
    assert_true(gates[2][0] != gates[2][1]);
}

static void test_gate(void **state)
{
    (void)state;
    for_all(check_gate);
}

/* ------------------------------------------------------------------------------------------------ 17: frozen */

/* Steps with the seed's group off, then on. */
static void check_steps(const stream *s, bool frozen)
{
    const esper_slab *list[1] = {&s->run.slab};
    esper_optim_desc desc = {s->run.backend, list, 1, ESPER_OP_SGD, {.lr = 0.1f, .decay = 0.1f}, NULL};
    size_t bytes = (size_t)esper_slab_count(&s->run.slab, ESPER_FAMILY_PARAM) * sizeof(float);
    const float *weights = s->run.slab.family[ESPER_FAMILY_PARAM];
    float *before;
    esper_optim *optim;

    if (bytes == 0)
        return; /* noop */
    before = malloc(bytes);
    memcpy(before, weights, bytes);
    check_good(esper_optim_open(&desc, &optim));
    esper_optim_enable(optim, 0, 1, !frozen);
    check_good(esper_optim_step(optim));
    assert_memory_equal(before, weights, bytes);
    esper_optim_enable(optim, 0, 1, true);
    check_good(esper_optim_step(optim));
    assert_memory_not_equal(before, weights, bytes);
    esper_optim_close(optim);
    free(before);
}

/* A seed that ramps down: its group is off, and its weights stay bit for bit; but the host still learns through it. */
static void check_frozen(const char *backend, esper_topology topology, const char *blueprint, int blend)
{
    static stream s, isolated;
    esper_slot *slot = &s.slots.slot[0];
    int n_other = 0;

    isolated = new_stream(backend, topology, blueprint, ESPER_STAGE_BLENDING, blend);
    isolated.seed.isolated = true;
    isolated.alpha = 0.6f;
    stream_pass(&isolated);
    s = new_stream(backend, topology, blueprint, ESPER_STAGE_BLENDING, blend);
    s.alpha = 0.6f;
    stream_run(&s);
    for (int i = 0; i < s.n; i++)
        n_other += s.grad_h[i] != isolated.grad_h[i];
    assert_true(n_other > 0 || (strcmp(blueprint, "noop") == 0 && blend == ESPER_BLEND_MULTIPLY));
    esper_slot_tick(slot, NULL, NULL); /* the ramp up is over */
    check_good(esper_slot_schedule_prune(slot, &(esper_alpha_ramp){.n_steps = 5}, "test", NULL, NULL));
    assert_true(esper_slot_is_frozen(slot));
    check_steps(&s, esper_slot_is_frozen(slot));
    small_run_close(&s.run);
}

static void test_frozen_seeds(void **state)
{
    (void)state;
    for_all(check_frozen);
}

/* ------------------------------------------------------------------------------------------------ 18, 8, 21, 22 */

static void check_finite(const char *backend, esper_topology topology, const char *blueprint, int blend)
{
    static stream s;

    for (int k = 0; k < 4; k++) {
        s = new_stream(backend, topology, blueprint, k == 3 ? ESPER_STAGE_FOSSILIZED : ESPER_STAGE_BLENDING, blend);
        s.magnitude = 1000.0f;
        s.alpha = 0.5f * (float)k;
        s.alpha = k == 3 ? 1.0f : s.alpha;
        stream_pass(&s);
        for (int i = 0; i < s.n; i++)
            if (!isfinite(s.y[i]) || !isfinite(s.grad_h[i]))
                fail_msg("%s: y %g, gradient %g at h %g", blueprint, (double)s.y[i], (double)s.grad_h[i],
                         (double)s.h[i]);
    }
}

static void test_large_inputs_stay_finite(void **state)
{
    (void)state;
    for_all(check_finite);
}

/* Seeds stand in the program in the order of execution, whatever the policy's. */
static void test_seeds_run_in_order(void **state)
{
    static const grown_seed seeds[] = {{"r1c1", "norm", ESPER_STAGE_BLENDING, ESPER_BLEND_ADD, 0.5, false},
                                       {"r0c1", "norm", ESPER_STAGE_FOSSILIZED, ESPER_BLEND_ADD, 0.0, false},
                                       {"r1c0", "norm", ESPER_STAGE_TRAINING, ESPER_BLEND_ADD, 0.0, false},
                                       {"r0c0", "norm", ESPER_STAGE_HOLDING, ESPER_BLEND_GATE, 0.0, false},
                                       {0}};
    static const char *const expected[] = {"r0c0", "r1c0", "r0c1", "r1c1"};
    static esper_slots slots;
    esper_host host = small_cnn();
    esper_splice splice = {.topology = host.topology, .slots = &slots, .training = true};
    esper_net net;
    int n = 0, last = 0;

    (void)state;
    check_good(grown_slots(&slots, &host, seeds));
    esper_net_init(&net);
    check_good(esper_splice_build(&splice, &host, &net));
    for (int i = 0; i < net.n_ops; i++)
        for (int k = 0; k < ESPER_OP_MAX_IN; k++) {
            int t = net.ops[i].in[k], region = t != ESPER_NO_TENSOR ? net.tensors[t].region : 0;

            if (region == 0 || region == last)
                continue;
            assert_true(n < 4);
            assert_string_equal(slots.slot[region - 1].id, expected[n++]);
            last = region;
        }
    assert_int_equal(n, 4);
    esper_net_fini(&net);
}

static char *text_of(const esper_slots *slots, const esper_host *host, uint64_t *key_out)
{
    esper_splice splice = {.topology = host->topology, .slots = slots, .training = true};
    char *text = NULL;
    size_t n = 0;
    FILE *into = open_memstream(&text, &n);
    esper_net net;

    assert_non_null(into);
    esper_net_init(&net);
    check_good(esper_splice_build(&splice, host, &net));
    esper_net_print(&net, into);
    fclose(into);
    esper_net_fini(&net);
    *key_out = esper_splice_key(&splice);
    return text;
}

/* A table that was packed and read into one that never saw the seeds makes the same program: the gate network's weights
 * are where they were, and isolation is as it was, on and off. */
static void test_programs_survive_packing(void **state)
{
    static esper_slots slots, again;
    esper_host host = small_cnn();
    uint64_t keys[2][2];
    char *texts[2][2];

    (void)state;
    for (int isolated = 0; isolated < 2; isolated++) {
        grown_seed seeds[] = {{"r0c0", "conv_light", ESPER_STAGE_BLENDING, ESPER_BLEND_GATE, 0.5, isolated != 0},
                              {"r1c0", "norm", ESPER_STAGE_TRAINING, ESPER_BLEND_GATE, 0.0, isolated != 0},
                              {0}};
        void *bytes;

        check_good(grown_slots(&slots, &host, seeds));
        check_good(grown_slots(&again, &host, NULL));
        bytes = malloc(esper_slots_pack_bytes(&slots));
        esper_slots_pack(&slots, bytes);
        check_good(esper_slots_unpack(bytes, esper_slots_pack_bytes(&slots), &again));
        free(bytes);
        assert_int_equal(again.slot[esper_slots_find(&again, "r0c0")].isolate_blending, isolated);
        texts[isolated][0] = text_of(&slots, &host, &keys[isolated][0]);
        texts[isolated][1] = text_of(&again, &host, &keys[isolated][1]);
        assert_string_equal(texts[isolated][0], texts[isolated][1]);
        assert_true(keys[isolated][0] == keys[isolated][1]);
        assert_non_null(strstr(texts[isolated][0], "r0c0.gate.2.weight"));
        assert_non_null(strstr(texts[isolated][0], "r1c0.gate.2.weight"));
    }
    assert_string_not_equal(texts[0][0], texts[1][0]);
    assert_true(keys[0][0] != keys[1][0]);
    for (int i = 0; i < 4; i++)
        free(texts[i / 2][i % 2]);
}

/* What was not measured is not known: neither at birth nor after a reading that is not finite. */
static void test_nothing_is_known_before_it_is_measured(void **state)
{
    grown_seed seed = {"r0c0", "norm", ESPER_STAGE_TRAINING, ESPER_BLEND_ADD, 0.0, false};
    esper_boundary boundary = {.slot = "r0c0", .channels = 4};
    static esper_slots slots;
    esper_slot *slot = &slots.slot[0];

    (void)state;
    check_good(esper_slots_init(&slots, &boundary, 1, &(esper_slot_rules){.permissive = true}));
    check_good(grown_slot(slot, &seed));
    assert_int_equal(slot->known & (ESPER_KNOWN_RATIO | ESPER_KNOWN_HEALTH), 0);
    esper_slot_set_gradient(slot, &(esper_slot_gradient){.norm = 1.0, .health = (double)NAN, .ratio = (double)NAN});
    assert_int_equal(slot->known & (ESPER_KNOWN_RATIO | ESPER_KNOWN_HEALTH), 0);
    esper_slot_set_gradient(slot, &(esper_slot_gradient){.norm = 1.0, .health = 0.5, .ratio = 0.25});
    assert_int_equal(slot->known & (ESPER_KNOWN_RATIO | ESPER_KNOWN_HEALTH), ESPER_KNOWN_RATIO | ESPER_KNOWN_HEALTH);
    assert_true(slot->grad_ratio == 0.25 && slot->grad_health == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inactive_stages_do_not_run_the_seed),
        cmocka_unit_test(test_training_leaves_the_host_alone),
        cmocka_unit_test(test_host_gradients_are_those_without_the_seed),
        cmocka_unit_test(test_add_at_half),
        cmocka_unit_test(test_ends_are_exact),
        cmocka_unit_test(test_multiply),
        cmocka_unit_test(test_gate),
        cmocka_unit_test(test_frozen_seeds),
        cmocka_unit_test(test_large_inputs_stay_finite),
        cmocka_unit_test(test_seeds_run_in_order),
        cmocka_unit_test(test_programs_survive_packing),
        cmocka_unit_test(test_nothing_is_known_before_it_is_measured),
    };

    return cmocka_run_group_tests_name("slot/splice_properties", tests, NULL, NULL);
}
