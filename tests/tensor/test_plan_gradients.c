/* Gradients under a plan: they add up where a tensor is used several times, stop where it is isolated, are zero where
 * nobody writes them, and need nothing but what the list of operations saves. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "support/small_net.h"

/* ------------------------------------------------------------------------------------------------ adding up */

/* What one operation makes of x. Built twice, it shares its parameters. */
typedef int (*builder)(esper_net *net, int x);

static int param(esper_net *net, const char *name, int rank, const int *dim)
{
    int found = esper_net_find(net, name);

    return found != ESPER_NO_TENSOR ? found
                                    : esper_net_param(net, name, rank, dim, (esper_init){ESPER_INIT_NORMAL, 0.5f});
}

static int side_input(esper_net *net, const char *name, int rank, const int *dim)
{
    int found = esper_net_find(net, name);

    return found != ESPER_NO_TENSOR ? found : esper_net_input(net, name, ESPER_F32, rank, dim);
}

static int vector(esper_net *net, const char *name, int n)
{
    return param(net, name, 1, &n);
}

static int buffer(esper_net *net, const char *name, int n)
{
    int found = esper_net_find(net, name);

    return found != ESPER_NO_TENSOR ? found : esper_net_buffer(net, name, 1, &n, 1.0f);
}

static int make_conv(esper_net *net, int x)
{
    return esper_net_conv2d(net, x, param(net, "w", 4, (int[]){4, 4, 3, 3}), 1, 1);
}

static int make_depthwise(esper_net *net, int x)
{
    return esper_net_conv2d(net, x, param(net, "w", 4, (int[]){4, 1, 3, 3}), 1, 4);
}

static int make_batch_norm(esper_net *net, int x)
{
    return esper_net_batch_norm(net, x, vector(net, "s", 4), vector(net, "b", 4), buffer(net, "m", 4),
                                buffer(net, "v", 4), 1e-5f, 0.1f);
}

static int make_group_norm(esper_net *net, int x)
{
    return esper_net_group_norm(net, x, vector(net, "s", 4), vector(net, "b", 4), 2, 1e-5f);
}

static int make_layer_norm(esper_net *net, int x)
{
    return esper_net_layer_norm(net, x, vector(net, "s", 12), vector(net, "b", 12), 1e-5f);
}

static int make_linear(esper_net *net, int x)
{
    return esper_net_linear(net, x, param(net, "w", 2, (int[]){12, 12}), vector(net, "b", 12));
}

static int make_attention(esper_net *net, int x)
{
    return esper_net_linear(net, esper_net_attention(net, x, 2, 0.0f), param(net, "w", 2, (int[]){12, 4}),
                            ESPER_NO_TENSOR);
}

static int make_mean_mul(esper_net *net, int x)
{
    return esper_net_mul(net, x, esper_net_global_mean(net, x));
}

static int make_square(esper_net *net, int x)
{
    return esper_net_mul(net, x, x);
}

static int make_twice(esper_net *net, int x)
{
    return esper_net_add(net, x, x);
}

static int make_scale(esper_net *net, int x)
{
    return esper_net_channel_scale(net, x, vector(net, "s", 4));
}

static int make_mix(esper_net *net, int x)
{
    return esper_net_mix_tanh(net, x, esper_net_tanh(net, x), vector(net, "s", 1));
}

static int make_straight(esper_net *net, int x)
{
    return esper_net_straight_through(net, x, esper_net_gelu(net, x));
}

static int make_concat(esper_net *net, int x)
{
    return esper_net_concat(net, x, esper_net_tanh(net, x));
}

/* x is one group of rows. */
static int make_rows(esper_net *net, int x)
{
    int there = esper_net_relu(net, side_input(net, "there", 1, (int[]){5})); /* half of them 0 */
    int pooled = esper_net_pool_rows(net, x, there, 1);

    return esper_net_add_rows(net, x,
                              esper_net_linear(net, pooled, param(net, "w", 2, (int[]){12, 24}), ESPER_NO_TENSOR));
}

/* The state comes from x as well: every gradient has a place where it is added. */
static int make_lstm(esper_net *net, int x)
{
    int mean = esper_net_global_mean(net, x);
    esper_net_lstm_in in = {.gates = x, .weight = param(net, "w", 2, (int[]){12, 3}), .bias = vector(net, "b", 12)};

    in.h = esper_net_linear(net, mean, param(net, "h", 2, (int[]){3, 12}), ESPER_NO_TENSOR);
    in.c = esper_net_linear(net, mean, param(net, "c", 2, (int[]){3, 12}), ESPER_NO_TENSOR);
    in.reset = esper_net_relu(net, side_input(net, "reset", 1, (int[]){5})); /* half of them 0 */
    return esper_net_linear(net, esper_net_lstm(net, in, NULL), param(net, "out", 2, (int[]){12, 3}), ESPER_NO_TENSOR);
}

static int make_blend_add(esper_net *net, int x)
{
    return esper_net_blend_add(net, x, esper_net_gelu(net, x), side_input(net, "alpha", 1, (int[]){1}));
}

static int make_blend_mul(esper_net *net, int x)
{
    return esper_net_blend_mul(net, x, esper_net_gelu(net, x), x, side_input(net, "alpha", 1, (int[]){1}));
}

static int make_blend_gate(esper_net *net, int x)
{
    return esper_net_blend_gate(net, x, esper_net_gelu(net, x), side_input(net, "gate", 1, (int[]){1}),
                                side_input(net, "alpha", 1, (int[]){1}));
}

static const struct {
    const char *name;
    builder     make;
    bool        tokens; /* x is (5,12) instead of (4,6,6) */
} additive[] = {
    {"conv2d", make_conv, false},
    {"depthwise conv2d", make_depthwise, false},
    {"batch_norm", make_batch_norm, false},
    {"group_norm", make_group_norm, false},
    {"layer_norm", make_layer_norm, true},
    {"relu", esper_net_relu, false},
    {"gelu", esper_net_gelu, false},
    {"sigmoid", esper_net_sigmoid, false},
    {"tanh", esper_net_tanh, false},
    {"max_pool", esper_net_max_pool, false},
    {"global_mean", esper_net_global_mean, false},
    {"linear", make_linear, true},
    {"attention", make_attention, true},
    {"mul by the mean", make_mean_mul, false},
    {"mul by itself", make_square, false},
    {"add to itself", make_twice, false},
    {"channel_scale", make_scale, false},
    {"mix_tanh", make_mix, false},
    {"straight_through", make_straight, false},
    {"blend_add", make_blend_add, false},
    {"blend_mul", make_blend_mul, false},
    {"blend_gate", make_blend_gate, false},
    {"concat", make_concat, true},
    {"pool_rows and add_rows", make_rows, true},
    {"lstm", make_lstm, true},
};

enum { N_ADDITIVE = sizeof(additive) / sizeof(additive[0]), ADD_SAMPLES = 3 };

static void fill_noise(float *data, int64_t n, uint32_t step)
{
    esper_rng_key key = {.seed = 5, .purpose = ESPER_RNG_TEST, .step = step};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int64_t i = 0; i < n; i++)
        data[i] = esper_rng_normal(&rng);
}

/* y = f(x) once, or the sum of two f(x) that share their parameters; the gradient of y is the same noise in both. */
static void run_additive(small_run *p, int which, bool twice, const char *backend)
{
    esper_net *net = &p->net;
    int x, y;

    esper_net_init(net);
    x = additive[which].tokens ? esper_net_input(net, "x", ESPER_F32, 2, (int[]){5, 12})
                               : esper_net_input(net, "x", ESPER_F32, 3, (int[]){4, 6, 6});
    net->tensors[x].want_grad = true;
    y = additive[which].make(net, x);
    net->output = twice ? esper_net_add(net, y, additive[which].make(net, x)) : y;
    if (esper_net_status(net) != ESPER_OK)
        fail_msg("%s: %s", additive[which].name, esper_last_error());
    small_run_open(p, backend, ADD_SAMPLES, true);
    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].role == ESPER_ROLE_INPUT)
            fill_noise(esper_plan_data(p->plan, 0, t), net->tensors[t].count * ADD_SAMPLES,
                       (uint32_t)net->tensors[t].count);
    assert_int_equal(esper_plan_forward(p->plan), ESPER_OK);
    fill_noise(esper_plan_grad(p->plan, 0, net->output), net->tensors[net->output].count * ADD_SAMPLES, 999);
    assert_int_equal(esper_plan_backward(p->plan), ESPER_OK);
}

static void compare_doubled(const char *name, const char *tensor, const float *once, const float *twice, int64_t n)
{
    double largest = 0.0;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)once[i]));
    if (largest == 0.0)
        fail_msg("%s: the gradient of %s is zero", name, tensor);
    for (int64_t i = 0; i < n; i++)
        if (fabs((double)twice[i] - 2.0 * (double)once[i]) > 1e-5 * largest)
            fail_msg("%s: gradient %lld of %s is %.9g when used twice, %.9g once", name, (long long)i, tensor,
                     (double)twice[i], (double)once[i]);
}

static void check_additive(int which, const char *backend)
{
    small_run one = {0}, two = {0};

    run_additive(&one, which, false, backend);
    run_additive(&two, which, true, backend);
    for (int t = 0; t < one.net.n_tensors; t++) {
        const esper_tensor *tensor = &one.net.tensors[t];
        int in_two = esper_net_find(&two.net, tensor->name);

        if (tensor->role == ESPER_ROLE_PARAM || tensor->want_grad)
            compare_doubled(additive[which].name, tensor->name, esper_plan_grad(one.plan, 0, t),
                            esper_plan_grad(two.plan, 0, in_two),
                            tensor->count * (tensor->role == ESPER_ROLE_PARAM ? 1 : ADD_SAMPLES));
    }
    small_run_close(&one);
    small_run_close(&two);
}

static void test_gradients_add_up(void **state)
{
    (void)state;
    for (int i = 0; i < N_ADDITIVE; i++) {
        check_additive(i, "ref");
        check_additive(i, "cpu");
    }
}

/* By hand: y = x x and z = x + x have the gradients 2 x g and 2 g. */
static void test_same_tensor_on_both_sides(void **state)
{
    (void)state;
    for (int which = 0; which < N_ADDITIVE; which++) {
        small_run p = {0};
        const float *x, *gx, *gy;

        if (additive[which].make != make_square && additive[which].make != make_twice)
            continue;
        run_additive(&p, which, false, "ref");
        x = esper_plan_data(p.plan, 0, 0);
        gx = esper_plan_grad(p.plan, 0, 0);
        gy = esper_plan_grad(p.plan, 0, p.net.output);
        for (int64_t i = 0; i < p.net.tensors[0].count * ADD_SAMPLES; i++) {
            double expected = 2.0 * (double)gy[i] * (additive[which].make == make_square ? (double)x[i] : 1.0);

            if (fabs((double)gx[i] - expected) > 1e-6 * (1.0 + fabs(expected)))
                fail_msg("%s: gradient %lld is %.9g, expected %.9g", additive[which].name, (long long)i, (double)gx[i],
                         expected);
        }
        small_run_close(&p);
    }
}

/* y = W (W x) on numbers that can be followed: W = 3, x = 2, g = 1: dW = h + W x = 6 + 6, dx = 9. */
static void test_tied_weights(void **state)
{
    small_run p = {0};
    int x, w, one = 1;

    (void)state;
    esper_net_init(&p.net);
    x = esper_net_input(&p.net, "x", ESPER_F32, 1, &one);
    w = esper_net_param(&p.net, "w", 2, (int[]){1, 1}, (esper_init){ESPER_INIT_CONSTANT, 3.0f});
    p.net.tensors[x].want_grad = true;
    p.net.output = esper_net_linear(&p.net, esper_net_linear(&p.net, x, w, ESPER_NO_TENSOR), w, ESPER_NO_TENSOR);
    small_run_open(&p, "ref", 1, true);
    *(float *)esper_plan_data(p.plan, 0, x) = 2.0f;
    assert_int_equal(esper_plan_forward(p.plan), ESPER_OK);
    *esper_plan_grad(p.plan, 0, p.net.output) = 1.0f;
    assert_int_equal(esper_plan_backward(p.plan), ESPER_OK);
    assert_true(*(float *)esper_plan_data(p.plan, 0, p.net.output) == 18.0f);
    assert_true(*esper_plan_grad(p.plan, 0, w) == 12.0f);
    assert_true(*esper_plan_grad(p.plan, 0, x) == 9.0f);
    small_run_close(&p);
}

/* Gradients that come in at several places: a = 3 x, b = 2 a; with 5 given for a and 7 for b, a receives 5 + 2 * 7. */
static void test_given_gradients(void **state)
{
    small_run p = {0};
    int x, v, w, a, b, one = 1;

    (void)state;
    esper_net_init(&p.net);
    x = esper_net_input(&p.net, "x", ESPER_F32, 1, &one);
    v = esper_net_param(&p.net, "v", 2, (int[]){1, 1}, (esper_init){ESPER_INIT_CONSTANT, 3.0f});
    w = esper_net_param(&p.net, "w", 2, (int[]){1, 1}, (esper_init){ESPER_INIT_CONSTANT, 2.0f});
    p.net.tensors[x].want_grad = true;
    a = esper_net_linear(&p.net, x, v, ESPER_NO_TENSOR);
    b = esper_net_linear(&p.net, a, w, ESPER_NO_TENSOR);
    esper_net_take_grad(&p.net, a);
    esper_net_take_grad(&p.net, b);
    small_run_open(&p, "ref", 1, true);
    *(float *)esper_plan_data(p.plan, 0, x) = 10.0f;
    for (int pass = 0; pass < 2; pass++) { /* what the first pass has left there does not count */
        assert_int_equal(esper_plan_forward(p.plan), ESPER_OK);
        *esper_plan_grad(p.plan, 0, a) = 5.0f;
        *esper_plan_grad(p.plan, 0, b) = 7.0f;
        assert_int_equal(esper_plan_backward(p.plan), ESPER_OK);
        assert_true(*(float *)esper_plan_data(p.plan, 0, a) == 30.0f);
        assert_true(*(float *)esper_plan_data(p.plan, 0, b) == 60.0f);
        assert_true(*esper_plan_grad(p.plan, 0, w) == 210.0f);
        assert_true(*esper_plan_grad(p.plan, 0, v) == 190.0f);
        assert_true(*esper_plan_grad(p.plan, 0, x) == 57.0f);
    }
    small_run_close(&p);
}

/* ------------------------------------------------------------------------------------------------ isolation */

static bool has_nonzero(const float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (values[i] != 0.0f)
            return true;
    return false;
}

/* Output and gradients of the host must be the same bits; some gradient of the seed must be there. */
static void compare_host(const small_fleet *plain, const small_fleet *grown, const char *what)
{
    const esper_net *net = &plain->members[0].net, *other = &grown->members[0].net;
    const esper_tensor *logits = &net->tensors[net->output];

    if (memcmp(esper_plan_data(plain->plan, 0, net->output), esper_plan_data(grown->plan, 0, other->output),
               (size_t)logits->count * SMALL_SAMPLES * sizeof(float)) != 0)
        fail_msg("%s: the output differs from the host's own", what);
    for (int t = 0; t < net->n_tensors; t++) {
        int64_t count, other_count;
        const float *own, *with_seed;

        if (net->tensors[t].role != ESPER_ROLE_PARAM)
            continue;
        own = small_fleet_grad(plain, 0, net->tensors[t].name, &count);
        with_seed = small_fleet_grad(grown, 0, net->tensors[t].name, &other_count);
        assert_int_equal(count, other_count);
        if (memcmp(own, with_seed, (size_t)count * sizeof(float)) != 0)
            fail_msg("%s: the gradient of %s differs from the host's own", what, net->tensors[t].name);
        if (!has_nonzero(own, count))
            fail_msg("%s: the gradient of %s is zero", what, net->tensors[t].name);
    }
}

static void check_seed_learns(const small_fleet *grown, const char *slot, const char *what)
{
    const esper_net *net = &grown->members[0].net;
    bool learns = false;

    for (int t = 0; t < net->n_tensors; t++)
        if (net->tensors[t].role == ESPER_ROLE_PARAM && strncmp(net->tensors[t].name, slot, strlen(slot)) == 0)
            learns |= has_nonzero(esper_plan_grad(grown->plan, 0, t), net->tensors[t].count);
    if (!learns)
        fail_msg("%s: no gradient reaches the seed", what);
}

static void forward_backward(small_fleet *fleet, const small_desc *desc)
{
    if (small_fleet_open(fleet, desc) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    small_fleet_fill(fleet, 3);
    assert_int_equal(esper_plan_forward(fleet->plan), ESPER_OK);
    assert_int_equal(esper_plan_backward(fleet->plan), ESPER_OK);
}

static void check_isolation(const char *backend, esper_host host, const char *slot)
{
    const esper_blueprint *const *list = esper_blueprint_list(host.topology);
    small_desc desc = {.backend = backend, .n_threads = 2, .host = host, .n_nets = 1, .network = {9}};
    static small_fleet plain, grown;

    forward_backward(&plain, &desc);
    for (int b = 1; list[b] != NULL; b++) { /* 0 is noop */
        small_seed seeds[] = {{slot, list[b]->name, SMALL_TRAINING}, {0}};
        char what[128];

        snprintf(what, sizeof(what), "%s on %s at %s", list[b]->name, backend, slot);
        desc.seeds[0] = seeds;
        forward_backward(&grown, &desc);
        compare_host(&plain, &grown, what);
        check_seed_learns(&grown, slot, what);
        small_fleet_close(&grown);
    }
    small_fleet_close(&plain);
}

static void test_training_seeds_leave_the_host_alone(void **state)
{
    (void)state;
    check_isolation("ref", small_cnn(), "r0c0");
    check_isolation("ref", small_transformer(0.1f), "r0c0");
    check_isolation("cpu", small_cnn(), "r0c0");
    check_isolation("cpu", small_cnn(), "r1c1");
    check_isolation("cpu", small_transformer(0.1f), "r0c0");
}

/* ------------------------------------------------------------------------------------------------ what is saved */

/* A lane as a backward kernel may see it: data that the list of operations does not call saved is NaN. */
static esper_lane poisoned(const esper_launch *launch, float *poison)
{
    const esper_op_info *info = esper_op_info_of(launch->kind);
    esper_lane lane = launch->lanes[0];

    for (int i = 0; i < info->n_in; i++)
        if (lane.in[i].data != NULL && !esper_op_takes_state(launch->kind, i) && (info->saved_in & ESPER_BIT(i)) == 0)
            lane.in[i].data = poison;
    for (int i = 0; i < info->n_out; i++)
        if ((info->saved_out & ESPER_BIT(i)) == 0)
            lane.out[i].data = poison;
    return lane;
}

static void run_poisoned(small_fleet *fleet, float *poison)
{
    const esper_launch *launch;

    for (int i = 0; (launch = esper_plan_launch(fleet->plan, ESPER_BACKWARD, i)) != NULL; i++) {
        esper_lane lane = poisoned(launch, poison);
        esper_launch copy = {launch->kind, launch->direction, launch->variant, 1, &lane, launch->part, launch->place};

        assert_int_equal(esper_backend_enqueue(fleet->backend, NULL, &copy), ESPER_OK);
    }
}

/* All gradients come out the same, so nothing else was read. */
static void check_saved(esper_host host, const char *slot, const char *blueprint, small_mode mode, float *poison)
{
    small_seed seeds[] = {{slot, blueprint, mode}, {0}};
    small_desc desc = {.backend = "ref", .n_threads = 1, .host = host, .n_nets = 1, .seeds = {seeds}};
    static small_fleet fleet;
    esper_mem_stats stats;
    float *expected;
    size_t bytes;

    forward_backward(&fleet, &desc);
    bytes = (size_t)esper_slab_count(&fleet.members[0].slab, ESPER_FAMILY_GRAD) * sizeof(float);
    expected = esper_mem_alloc(bytes);
    memcpy(expected, fleet.members[0].slab.family[ESPER_FAMILY_GRAD], bytes);
    assert_int_equal(esper_plan_forward(fleet.plan), ESPER_OK); /* batch norm's running statistics do not enter */
    run_poisoned(&fleet, poison);
    if (memcmp(expected, fleet.members[0].slab.family[ESPER_FAMILY_GRAD], bytes) != 0)
        fail_msg("%s with %s in %s: a backward pass reads what is not saved", esper_topology_name(host.topology),
                 blueprint, small_mode_name(mode));
    esper_mem_free(expected);
    small_fleet_close(&fleet);
    esper_mem_stats_get(&stats);
    assert_int_equal(stats.n_live, 1); /* the poison */
}

static void check_saved_in(esper_host host, float *poison)
{
    const esper_blueprint *const *list = esper_blueprint_list(host.topology);

    for (int b = 0; list[b] != NULL; b++)
        for (int mode = 0; mode < SMALL_N_MODES; mode++)
            check_saved(host, "r0c0", list[b]->name, (small_mode)mode, poison);
}

static void test_backward_reads_only_what_is_saved(void **state)
{
    enum { PLENTY = 1 << 16 };
    float *poison = esper_mem_alloc(PLENTY * sizeof(float));

    (void)state;
    for (int i = 0; i < PLENTY; i++)
        poison[i] = NAN;
    check_saved_in(small_cnn(), poison);
    check_saved_in(small_transformer(0.1f), poison);
    esper_mem_free(poison);
}

/* ------------------------------------------------------------------------------------------------ nobody writes */

/* x -> scale (isolated, so frozen) -> linear; `spare` takes no part at all. */
static void test_unreached_gradients_are_zero(void **state)
{
    small_run p = {0};
    int x, frozen, spare, live, y, four = 4;

    (void)state;
    esper_net_init(&p.net);
    x = esper_net_input(&p.net, "x", ESPER_F32, 3, (int[]){4, 2, 2});
    frozen = esper_net_param(&p.net, "frozen", 1, &four, (esper_init){ESPER_INIT_CONSTANT, 2.0f});
    spare = esper_net_param(&p.net, "spare", 1, &four, (esper_init){ESPER_INIT_CONSTANT, 2.0f});
    live = esper_net_param(&p.net, "live", 1, &four, (esper_init){ESPER_INIT_CONSTANT, 2.0f});
    y = esper_net_isolate(&p.net, esper_net_channel_scale(&p.net, x, frozen));
    p.net.output = esper_net_channel_scale(&p.net, y, live);
    small_run_open(&p, "ref", 2, true);
    esper_plan_close(p.plan);
    for (int64_t i = 0; i < esper_slab_count(&p.slab, ESPER_FAMILY_GRAD); i++)
        p.slab.family[ESPER_FAMILY_GRAD][i] = 7.0f; /* left by an earlier plan */
    assert_int_equal(
        esper_plan_open(&(esper_plan_desc){p.backend,
                                           &(esper_plan_net){.net = &p.net, .slab = &p.slab, .pass = &p.pass}, 1, 2,
                                           false, NULL},
                        &p.plan),
        ESPER_OK);
    assert_true(p.slab.family[ESPER_FAMILY_GRAD][0] == 7.0f); /* a plan for inference has no business there */
    esper_plan_close(p.plan);
    assert_int_equal(
        esper_plan_open(&(esper_plan_desc){p.backend,
                                           &(esper_plan_net){.net = &p.net, .slab = &p.slab, .pass = &p.pass}, 1, 2,
                                           true, NULL},
                        &p.plan),
        ESPER_OK);
    fill_noise(esper_plan_data(p.plan, 0, x), 32, 1);
    assert_int_equal(esper_plan_forward(p.plan), ESPER_OK);
    fill_noise(esper_plan_grad(p.plan, 0, p.net.output), 32, 2);
    assert_int_equal(esper_plan_backward(p.plan), ESPER_OK);
    assert_false(has_nonzero(esper_slab_at(&p.slab, ESPER_FAMILY_GRAD, &p.net.tensors[frozen]), 4));
    assert_false(has_nonzero(esper_slab_at(&p.slab, ESPER_FAMILY_GRAD, &p.net.tensors[spare]), 4));
    assert_true(has_nonzero(esper_slab_at(&p.slab, ESPER_FAMILY_GRAD, &p.net.tensors[live]), 4));
    assert_null(esper_plan_grad(p.plan, 0, frozen));
    assert_int_equal(esper_plan_stats_of(p.plan).n_backward, 1);
    small_run_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_add_up),
        cmocka_unit_test(test_same_tensor_on_both_sides),
        cmocka_unit_test(test_tied_weights),
        cmocka_unit_test(test_given_gradients),
        cmocka_unit_test(test_training_seeds_leave_the_host_alone),
        cmocka_unit_test(test_backward_reads_only_what_is_saved),
        cmocka_unit_test(test_unreached_gradients_are_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
