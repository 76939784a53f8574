/* Frozen regions of a plan: in a training pass they compute as in evaluation, while all others train. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/pool.h"
#include "base/rng.h"
#include "base/status.h"
#include "nn/init.h"
#include "nn/layer.h"
#include "tensor/backends.h"
#include "tensor/plan.h"

enum { SAMPLES = 20, CHANNELS = 4, SIDE = 6 };
enum { HOST = 1u << 0, SEED = 1u << 1 }; /* regions */

/* A host, a seed behind it, or both. */
typedef struct part {
    esper_net net;
    esper_slab slab;
    esper_pass pass;
    esper_plan *plan;
    esper_exchange exchange;
    int n_meetings;
} part;

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s", esper_last_error());
}

static int block(esper_net *net, int x, float drop)
{
    x = esper_layer_conv(net, "conv", x, (esper_conv){CHANNELS, CHANNELS, 3, 1});
    return esper_net_dropout(net, esper_net_relu(net, esper_layer_batch_norm(net, "bn", x, 1.0f)), drop);
}

/* One rank that has all of the batch: the sums are what it has found. */
static esper_status count_meeting(void *context, double *values, size_t count)
{
    (void)values;
    (void)count;
    ++*(int *)context;
    return ESPER_OK;
}

static void open_part(part *p, esper_backend *backend, unsigned regions, unsigned frozen, bool spread, float drop)
{
    static uint32_t ids[SAMPLES];
    esper_plan_net net = {.net = &p->net, .slab = &p->slab, .pass = &p->pass, .frozen = frozen};
    esper_plan_desc desc = {.backend = backend, .nets = &net, .n_nets = 1, .max_samples = SAMPLES, .training = true};
    int x;

    *p = (part){.exchange = {count_meeting, &p->n_meetings}};
    esper_net_init(&p->net);
    x = p->net.input = esper_net_input(&p->net, "x", ESPER_F32, 3, (int[]){CHANNELS, SIDE, SIDE});
    p->net.tensors[x].want_grad = true;
    if ((regions & HOST) != 0)
        x = block(&p->net, x, drop);
    esper_net_enter(&p->net, "r0c0.", 1);
    if ((regions & SEED) != 0)
        x = block(&p->net, x, 0.0f);
    p->net.output = x;
    p->net.tensors[x].keep = true;
    check_good(esper_net_status(&p->net));
    check_good(esper_slab_init(&p->slab, backend, &p->net, &(esper_slab_desc){.n_moments = 1}));
    esper_init_net(&p->net, &p->slab, 1, 0, -1); /* by names: alike in all parts */
    p->pass = (esper_pass){.n_samples = SAMPLES, .training = true, .loss_scale = 1.0f, .sample_id = ids};
    net.exchange = spread ? &p->exchange : NULL;
    check_good(esper_plan_open(&desc, &p->plan));
}

static void close_part(part *p)
{
    esper_plan_close(p->plan);
    esper_slab_fini(&p->slab);
    esper_net_fini(&p->net);
}

static void fill(float *values, int64_t count, uint32_t tag)
{
    esper_rng_key key = {.seed = 3, .purpose = ESPER_RNG_TEST, .tag = tag};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int64_t i = 0; i < count; i++)
        values[i] = esper_rng_normal(&rng);
}

static size_t bytes_of(const part *p, int tensor)
{
    return (size_t)SAMPLES * (size_t)p->net.tensors[tensor].count * sizeof(float);
}

/* From this input, or where it is NULL from one that is always the same. */
static void run_part(part *p, const float *input)
{
    float *x = esper_plan_data(p->plan, 0, p->net.input);

    if (input != NULL)
        memcpy(x, input, bytes_of(p, p->net.input));
    else
        fill(x, SAMPLES * p->net.tensors[p->net.input].count, 1);
    check_good(esper_plan_forward(p->plan));
    fill(esper_plan_grad(p->plan, 0, p->net.output), SAMPLES * p->net.tensors[p->net.output].count, 2);
    check_good(esper_plan_backward(p->plan));
}

static const float *state_of(const part *p, esper_family family, const char *name)
{
    int t = esper_net_find(&p->net, name);

    assert_true(t != ESPER_NO_TENSOR);
    return esper_slab_at(&p->slab, family, &p->net.tensors[t]);
}

static void check_same(const part *a, const part *b, esper_family family, const char *name)
{
    size_t count = (size_t)a->net.tensors[esper_net_find(&a->net, name)].count;

    if (memcmp(state_of(a, family, name), state_of(b, family, name), count * sizeof(float)) != 0)
        fail_msg("%s differs", name);
}

static void check_as_born(const part *p, const char *norm)
{
    char name[ESPER_NAME_CHARS];

    for (int c = 0; c < CHANNELS; c++) {
        snprintf(name, sizeof(name), "%s.running_mean", norm);
        assert_true(state_of(p, ESPER_FAMILY_BUFFER, name)[c] == 0.0f);
        snprintf(name, sizeof(name), "%s.running_var", norm);
        assert_true(state_of(p, ESPER_FAMILY_BUFFER, name)[c] == 1.0f);
    }
}

static const char *const seeds[] = {"r0c0.conv.weight", "r0c0.bn.weight", "r0c0.bn.bias"};

/* Behind a frozen host, a seed does what it does behind an evaluation of it. */
static void check_seed_trains(esper_backend *backend, bool spread)
{
    part whole, host, seed;

    open_part(&whole, backend, HOST | SEED, HOST, spread, 0.0f);
    open_part(&host, backend, HOST, 0, false, 0.0f);
    open_part(&seed, backend, SEED, 0, spread, 0.0f);
    host.pass.training = false;
    run_part(&whole, NULL);
    run_part(&host, NULL);
    run_part(&seed, esper_plan_data(host.plan, 0, host.net.output));
    assert_memory_equal(esper_plan_data(whole.plan, 0, whole.net.output),
                        esper_plan_data(seed.plan, 0, seed.net.output), bytes_of(&seed, seed.net.output));
    for (size_t i = 0; i < sizeof(seeds) / sizeof(*seeds); i++)
        check_same(&whole, &seed, ESPER_FAMILY_GRAD, seeds[i]);
    check_same(&whole, &seed, ESPER_FAMILY_BUFFER, "r0c0.bn.running_mean");
    check_same(&whole, &seed, ESPER_FAMILY_BUFFER, "r0c0.bn.running_var");
    assert_true(state_of(&whole, ESPER_FAMILY_BUFFER, "r0c0.bn.running_var")[0] != 1.0f);
    check_as_born(&whole, "bn");
    assert_int_equal(whole.n_meetings, spread ? 2 : 0); /* of the seed's norm alone, in each direction */
    close_part(&whole);
    close_part(&host);
    close_part(&seed);
}

/* A seed that is frozen, behind a host that trains; its gradient still reaches the host. */
static void check_host_trains(esper_backend *backend)
{
    part frozen, all;

    open_part(&frozen, backend, HOST | SEED, SEED, false, 0.0f);
    open_part(&all, backend, HOST | SEED, 0, false, 0.0f);
    run_part(&frozen, NULL);
    run_part(&all, NULL);
    check_as_born(&frozen, "r0c0.bn");
    check_same(&frozen, &all, ESPER_FAMILY_BUFFER, "bn.running_mean");
    check_same(&frozen, &all, ESPER_FAMILY_BUFFER, "bn.running_var");
    assert_true(state_of(&frozen, ESPER_FAMILY_BUFFER, "bn.running_var")[0] != 1.0f);
    assert_true(state_of(&frozen, ESPER_FAMILY_GRAD, "conv.weight")[0] != 0.0f);
    close_part(&frozen);
    close_part(&all);
}

/* All frozen, a training pass is an evaluation, dropout included. */
static void check_all_frozen(esper_backend *backend)
{
    part frozen, evaluated;

    open_part(&frozen, backend, HOST | SEED, HOST | SEED, false, 0.5f);
    open_part(&evaluated, backend, HOST | SEED, 0, false, 0.5f);
    evaluated.pass.training = false;
    run_part(&frozen, NULL);
    run_part(&evaluated, NULL);
    assert_memory_equal(esper_plan_data(frozen.plan, 0, frozen.net.output),
                        esper_plan_data(evaluated.plan, 0, evaluated.net.output), bytes_of(&frozen, frozen.net.output));
    assert_memory_equal(esper_plan_grad(frozen.plan, 0, frozen.net.input),
                        esper_plan_grad(evaluated.plan, 0, evaluated.net.input), bytes_of(&frozen, frozen.net.input));
    close_part(&frozen);
    close_part(&evaluated);
}

static void test_frozen_regions(void **state)
{
    const char *const backends[] = {"ref", "cpu"};
    esper_pool *pool;

    (void)state;
    check_good(esper_pool_open(2, &pool));
    for (int i = 0; i < 2; i++) {
        esper_backend *backend;

        check_good(esper_backend_open(backends[i], pool, &backend));
        check_seed_trains(backend, false);
        check_seed_trains(backend, true);
        check_host_trains(backend);
        check_all_frozen(backend);
        esper_backend_close(backend);
    }
    esper_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_frozen_regions)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
