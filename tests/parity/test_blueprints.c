/* ctest: labels=golden */
/* Recorded seeds, gate networks and births beside ours, on every backend and kernel set this machine can run; and
 * what was not so when they were recorded: which blueprints are identities at birth, and
 * learns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "nn/blueprint.h"
#include "nn/optim.h"
#include "support/parity.h"
#include "tensor/backends.h"

enum { SAMPLES = 4, STEPS = 5 };

/* ------------------------------------------------------------------------------------------------ recorded */

static void test_seeds_match(void **state)
{
    const parity_backend *wanted = *state;
    int n_mismatches = -1;
    esper_status status;

    if (golden_count(GOLDEN_SEED | GOLDEN_GATE | GOLDEN_BIRTHS) == 0) /* golden_say has said so */
        skip();
    status = parity_check_backend(wanted, GOLDEN_SEED | GOLDEN_GATE | GOLDEN_BIRTHS, &n_mismatches);
    if (status == ESPER_E_UNSUPPORTED) {
        printf("%s/%s: skipped, this processor cannot run it\n", wanted->name, wanted->kernels);
        skip();
    }
    if (status != ESPER_OK)
        fail_msg("%s", esper_last_error());
    assert_int_equal(n_mismatches, 0);
}

/* ------------------------------------------------------------------------------------------------ ours alone */

/* A blueprint as it is born, behind an input, with a plan to train it. */
typedef struct young_seed {
    parity_run     run;
    esper_backend *backend;
    esper_birth    birth;
    char           name[96]; /* for messages */
} young_seed;

static void require_ok(esper_status status, const char *where)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", where, esper_last_error());
}

static void open_seed(young_seed *seed, const esper_blueprint *blueprint, int width, esper_blend blend,
                      esper_birth birth)
{
    esper_net *net = &seed->run.net;

    *seed = (young_seed){.birth = birth};
    snprintf(seed->name, sizeof(seed->name), "%s %s, width %d, to be %s, born %s",
             esper_topology_name(blueprint->topology), blueprint->name, width,
             blend == ESPER_BLEND_MULTIPLY ? "multiplied" : "added", esper_birth_name(birth));
    esper_net_init(net);
    net->input =
        blueprint->topology == ESPER_TOPOLOGY_CNN   ? esper_net_input(net, "x", ESPER_F32, 3, (int[]){width, 5, 6})
        : blueprint->topology == ESPER_TOPOLOGY_MLP ? esper_net_input(net, "x", ESPER_F32, 1, &width)
                                                    : esper_net_input(net, "x", ESPER_F32, 2, (int[]){6, width});
    net->tensors[net->input].want_grad = true;
    net->output =
        esper_blueprint_build(blueprint, net, net->input, (esper_blueprint_how){.blend = blend, .birth = birth});
    require_ok(esper_backend_open("ref", NULL, &seed->backend), seed->name);
    require_ok(parity_run_open(&seed->run, seed->backend, SAMPLES, true), seed->name);
}

static void close_seed(young_seed *seed)
{
    parity_run_close(&seed->run);
    esper_backend_close(seed->backend);
}

static void fill_normal(float *values, int64_t count, uint32_t tag)
{
    esper_rng_key key = {.seed = 11, .purpose = ESPER_RNG_TEST, .tag = tag};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int64_t i = 0; i < count; i++)
        values[i] = esper_rng_normal(&rng);
}

static int64_t count_values(const young_seed *seed, int tensor)
{
    return SAMPLES * seed->run.net.tensors[tensor].count;
}

static bool is_identity(young_seed *seed)
{
    const esper_net *net = &seed->run.net;
    float *x = esper_plan_data(seed->run.plan, 0, net->input);

    fill_normal(x, count_values(seed, net->input), 1);
    require_ok(esper_plan_forward(seed->run.plan), seed->name);
    return memcmp(x, esper_plan_data(seed->run.plan, 0, net->output),
                  (size_t)count_values(seed, net->input) * sizeof(*x)) == 0;
}

/* Steps towards a random target: half the squared distance has the gradient output - target. */
static void train(young_seed *seed)
{
    const esper_net *net = &seed->run.net;
    const esper_slab *slabs[] = {&seed->run.slab};
    int64_t count = count_values(seed, net->output);
    float *output = esper_plan_data(seed->run.plan, 0, net->output);
    float *grad = esper_plan_grad(seed->run.plan, 0, net->output);
    float *target = esper_mem_alloc((size_t)count * sizeof(*target));
    esper_optim_desc desc = {.backend = seed->backend, .slabs = slabs, .n_slabs = 1, .kind = ESPER_OP_SGD};
    esper_optim *optim;

    desc.settings = (esper_group){.lr = 0.05f, .clip = 1.0f};
    require_ok(esper_optim_open(&desc, &optim), seed->name);
    fill_normal(esper_plan_data(seed->run.plan, 0, net->input), count_values(seed, net->input), 1);
    fill_normal(target, count, 2);
    for (int step = 0; step < STEPS; step++) {
        require_ok(esper_plan_forward(seed->run.plan), seed->name);
        for (int64_t i = 0; i < count; i++)
            grad[i] = output[i] - target[i];
        require_ok(esper_plan_backward(seed->run.plan), seed->name);
        require_ok(esper_optim_step(optim), seed->name);
    }
    esper_optim_close(optim);
    esper_mem_free(target);
}

/* How many elements of a parameter are not as they were. */
static int64_t count_moved(const young_seed *seed, const esper_tensor *param, const float *born)
{
    const float *now = esper_slab_at(&seed->run.slab, ESPER_FAMILY_PARAM, param);
    const float *then = born + (now - seed->run.slab.family[ESPER_FAMILY_PARAM]);
    int64_t n = 0;

    for (int64_t i = 0; i < param->count; i++)
        n += now[i] != then[i] && now[i] - now[i] == 0.0f; /* moved, and to a finite value */
    return n;
}

static void require_all_learn(young_seed *seed)
{
    const esper_slab *slab = &seed->run.slab;
    size_t bytes = (size_t)esper_slab_count(slab, ESPER_FAMILY_PARAM) * sizeof(float);
    float *born = esper_mem_alloc(bytes);

    assert_non_null(born);
    memcpy(born, slab->family[ESPER_FAMILY_PARAM], bytes);
    train(seed);
    for (int t = 0; t < seed->run.net.n_tensors; t++) {
        const esper_tensor *param = &seed->run.net.tensors[t];

        if (param->role == ESPER_ROLE_PARAM && count_moved(seed, param, born) == 0)
            fail_msg("%s: %s has not moved in %d steps", seed->name, param->name, STEPS);
    }
    esper_mem_free(born);
}

typedef void (*seed_check)(young_seed *seed, const esper_blueprint *blueprint);

static void for_each_birth(esper_topology topology, const int *widths, seed_check check)
{
    for (const esper_blueprint *const *list = esper_blueprint_list(topology); *list != NULL; list++)
        for (const int *width = widths; *width != 0; width++)
            for (int i = 0; i < 2 * ESPER_BIRTH_COPY; i++) { /* each operator, and each birth that a blueprint makes */
                esper_blend blend = i % 2 == 0 ? ESPER_BLEND_ADD : ESPER_BLEND_MULTIPLY;
                young_seed seed;

                if (((*list)->births >> i / 2 & 1u) == 0)
                    continue;
                open_seed(&seed, *list, *width, blend, (esper_birth)(i / 2));
                check(&seed, *list);
                close_seed(&seed);
            }
}

static void check_identity(young_seed *seed, const esper_blueprint *blueprint)
{
    bool expected = blueprint->topology != ESPER_TOPOLOGY_CNN || strcmp(blueprint->name, "noop") == 0 ||
                    strcmp(blueprint->name, "norm") == 0;

    if (strcmp(blueprint->name, "layer") == 0) /* as the host's own layers are */
        expected = false;
    if (seed->birth != ESPER_BIRTH_OWN)
        expected = seed->birth == ESPER_BIRTH_ZERO || strcmp(blueprint->name, "noop") == 0;

    if (is_identity(seed) != expected)
        fail_msg("%s: expected %s at birth", seed->name, expected ? "an identity" : "no identity");
}

static void check_learns(young_seed *seed, const esper_blueprint *blueprint)
{
    if (strcmp(blueprint->name, "noop") == 0)
        assert_int_equal(esper_net_count_params(&seed->run.net, -1), 0);
    else
        require_all_learn(seed);
}

static void test_identity_at_birth(void **state)
{
    (void)state;
    for_each_birth(ESPER_TOPOLOGY_CNN, (int[]){1, 2, 8, 12, 16, 32, 0}, check_identity);
    for_each_birth(ESPER_TOPOLOGY_TRANSFORMER, (int[]){4, 16, 64, 0}, check_identity);
    for_each_birth(ESPER_TOPOLOGY_MLP, (int[]){4, 16, 64, 0}, check_identity);
}

static void test_every_parameter_learns(void **state)
{
    (void)state;
    for_each_birth(ESPER_TOPOLOGY_CNN, (int[]){2, 4, 8, 16, 32, 0}, check_learns);
    for_each_birth(ESPER_TOPOLOGY_TRANSFORMER, (int[]){4, 16, 64, 0}, check_learns);
    for_each_birth(ESPER_TOPOLOGY_MLP, (int[]){4, 16, 64, 0}, check_learns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity_at_birth),
        cmocka_unit_test(test_every_parameter_learns),
        {"seeds_match_ref", test_seeds_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[0]},
        {"seeds_match_cpu/portable", test_seeds_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[1]},
        {"seeds_match_cpu/avx2", test_seeds_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[2]},
        {"seeds_match_cpu/avx512", test_seeds_match, NULL, NULL, (void *)(uintptr_t)&parity_backends[3]},
    };

    golden_say(GOLDEN_SEED | GOLDEN_GATE | GOLDEN_BIRTHS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
