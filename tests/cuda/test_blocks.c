/* ctest: timeout=400 cost=20 cuda=only */
/* Image networks on blocks of 32 samples, drawn at random: kernels of 1 to 7 with any padding, groups, depthwise, odd images,
 * batches that no block divides, norms of both kinds with and without what follows them. The kernels of tensor/cuda/, run on the
 * host, give the loss, gradients and running statistics that the reference gives; the same bits in whatever order blocks and
 * threads take; and in two parts, as ranks have them, and frozen what they give otherwise.
 *
 * Somebody who looks at what a pool is given, and gives no gradient, changes no bit: a seed in training is one.
 *
 * Two computations that differ in their last bits can take different ways at a ReLU or a pool. That is rare: of a network's
 * batches one may differ, and the next one or two must not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cuda/host_cuda_run.h"
#include "support/effort.h"
#include "support/small_net.h"

static double tolerance = 2e-3; /* of a tensor's norm: ReLUs and pools behind several norms */

/* With activations of bf16, and gradients of them: what is off by 2^-8 at most, and 2^-10 in the mean, at every layer. */
static const double TOLERANCE_BF16 = 0.1;
static bool in_bf16;

static esper_rng rng_of(uint32_t number, uint32_t purpose)
{
    esper_rng_key key = {.seed = 22, .purpose = ESPER_RNG_TEST, .network = number, .step = purpose};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    return rng;
}

static int between(esper_rng *rng, int low, int high)
{
    return low + (int)esper_rng_below(rng, (uint32_t)(high - low + 1));
}

/* ------------------------------------------------------------------------------------------------ networks */

static char names[64][ESPER_NAME_CHARS];
static int  n_names;

static const char *fresh_name(void)
{
    snprintf(names[n_names], sizeof(names[0]), "p%d", n_names);
    return names[n_names++];
}

static int vector(esper_net *net, int n, float about)
{
    return esper_net_param(net, fresh_name(), 1, &n, (esper_init){ESPER_INIT_CONSTANT, about});
}

static int draw_conv(esper_net *net, esper_rng *rng, int x)
{
    const esper_tensor *in = &net->tensors[x];
    int C = in->dim[0], smaller = in->dim[1] < in->dim[2] ? in->dim[1] : in->dim[2], k, pad, groups = 1, O;

    do {
        k = between(rng, 0, 2) > 0 ? 3 : between(rng, 1, 7);
        pad = between(rng, 0, 2) > 0 ? k / 2 : between(rng, 0, k - 1);
    } while (smaller + 2 * pad < k);
    if (between(rng, 0, 3) == 0)
        groups = C;
    else if (C % 2 == 0 && between(rng, 0, 3) == 0)
        groups = 2;
    O = groups == 1 ? between(rng, 0, 3) > 0 ? between(rng, 1, 20) : between(rng, 20, 70)
                    : groups * between(rng, 1, groups == 2 ? 9 : 2);
    return esper_net_conv2d(net, x,
                            esper_net_param(net, fresh_name(), 4, (int[]){O, C / groups, k, k},
                                            (esper_init){ESPER_INIT_NORMAL, 1.0f / sqrtf((float)(C / groups * k * k))}),
                            pad, groups);
}

static int add_batch_norm(esper_net *net, int x)
{
    int C = net->tensors[x].dim[0];
    int mean = esper_net_buffer(net, fresh_name(), 1, &C, 0.1f), var = esper_net_buffer(net, fresh_name(), 1, &C, 0.9f);

    return esper_net_batch_norm(net, x, vector(net, C, 1.0f), vector(net, C, 0.1f), mean, var, 1e-5f, 0.1f);
}

static int add_group_norm(esper_net *net, esper_rng *rng, int x)
{
    int C = net->tensors[x].dim[0], groups = C % 2 == 0 && between(rng, 0, 1) ? 2 : between(rng, 0, 1) ? C : 1;

    return esper_net_group_norm(net, x, vector(net, C, 1.0f), vector(net, C, 0.1f), groups, 1e-5f);
}

/* What every pool is given has another reader, no gradient of which comes back. */
static bool is_watched;

static void draw_net(esper_net *net, uint32_t number)
{
    esper_rng rng = rng_of(number, 0);
    int blocks = between(&rng, 1, 3), classes = between(&rng, 2, 12), x, weight, bias = ESPER_NO_TENSOR;
    int most = number % 8 == 7 ? 36 : 18; /* a large image: warps have two tiles of its pixels */

    n_names = 0;
    esper_net_init(net);
    net->input =
        esper_net_input(net, "x", ESPER_F32, 3,
                        (int[]){between(&rng, 1, 5), most > 18 ? most : between(&rng, 3, 18), between(&rng, 3, most)});
    net->target = esper_net_input(net, "target", ESPER_I32, 1, (int[]){1});
    net->tensors[net->input].want_grad = between(&rng, 0, 1) == 1;
    x = net->input;
    for (int b = 0; b < blocks; b++) {
        if (between(&rng, 0, 5) > 0)
            x = draw_conv(net, &rng, x);
        if (between(&rng, 0, 3) > 0)
            x = add_batch_norm(net, x);
        else if (between(&rng, 0, 1) == 0)
            x = add_group_norm(net, &rng, x);
        if (between(&rng, 0, 2) > 0)
            x = esper_net_relu(net, x);
        if (between(&rng, 0, 1) > 0 && net->tensors[x].dim[1] > 1 && net->tensors[x].dim[2] > 1) {
            if (is_watched)
                net->tensors[esper_net_global_mean(net, esper_net_isolate(net, x))].keep = true;
            x = esper_net_max_pool(net, x);
        }
    }
    if (between(&rng, 0, 3) == 0)
        net->tensors[x].keep = true; /* unpacked */
    x = esper_net_global_mean(net, x);
    weight = esper_net_param(net, fresh_name(), 2, (int[]){classes, net->tensors[x].dim[0]},
                             (esper_init){ESPER_INIT_NORMAL, 0.5f});
    if (between(&rng, 0, 1) == 1)
        bias = vector(net, classes, 0.1f);
    x = esper_net_linear(net, x, weight, bias);
    net->output = x;
    esper_net_softmax_xent(net, x, net->target);
    if (esper_net_status(net) != ESPER_OK)
        fail_msg("network %u: %s", number, esper_last_error());
}

/* ------------------------------------------------------------------------------------------------ running them */

static int batch_of(uint32_t number)
{
    esper_rng rng = rng_of(number, 1);

    return between(&rng, 0, 1) ? between(&rng, 4, 40) : between(&rng, 30, 100);
}

static void stir_parameters(small_run *run, uint32_t number)
{
    esper_rng rng = rng_of(number, 2);

    for (int t = 0; t < run->net.n_tensors; t++) {
        float *data = esper_slab_at(&run->slab, ESPER_FAMILY_PARAM, &run->net.tensors[t]);

        for (int64_t i = 0; run->net.tensors[t].role == ESPER_ROLE_PARAM && i < run->net.tensors[t].count; i++)
            data[i] += 0.6f * esper_rng_uniform(&rng) - 0.3f;
        if (number % 5 == 2 && run->net.tensors[t].rank == 1 &&
            run->net.tensors[t].init.value == 1) /* a norm's scale */
            for (int64_t i = 0; i < run->net.tensors[t].count; i++)
                data[i] *= i % 2 == 0 ? 0.01f : 1;
    }
}

typedef enum mode { TRAINING, FIXED_STATISTICS, RANKS } mode;

/* Another rank that has the same samples. */
static esper_status twice(void *context, double *values, size_t count)
{
    (void)context;
    for (size_t i = 0; i < count; i++)
        values[i] *= 2;
    return ESPER_OK;
}

static void open_net(small_run *run, const char *backend, uint32_t number, mode how)
{
    static const esper_exchange exchange = {.sum = twice};

    draw_net(&run->net, number);
    small_run_open_on(run, backend, 1, batch_of(number), true);
    if (how == RANKS) {
        esper_plan_net net = {.net = &run->net, .slab = &run->slab, .pass = &run->pass, .exchange = &exchange};
        esper_plan_desc desc = {
            .backend = run->backend, .nets = &net, .n_nets = 1, .max_samples = run->pass.n_samples, .training = true};

        esper_plan_close(run->plan);
        assert_int_equal(esper_plan_open(&desc, &run->plan), ESPER_OK);
    }
    run->pass.training = how != FIXED_STATISTICS;
    run->pass.loss_scale = 1.0f / (float)run->pass.n_samples;
    stir_parameters(run, number);
}

static void run_batch(small_run *run, uint32_t number, uint32_t batch)
{
    esper_rng rng = rng_of(number, 3 + batch);
    float *x = esper_plan_data(run->plan, 0, run->net.input);
    int32_t *targets = esper_plan_data(run->plan, 0, run->net.target);

    for (int64_t i = 0; i < run->net.tensors[run->net.input].count * run->pass.n_samples; i++)
        x[i] = 4.0f * esper_rng_uniform(&rng) - 1.0f;
    for (int i = 0; i < run->pass.n_samples; i++)
        targets[i] = between(&rng, -1, run->net.tensors[run->net.output].dim[0] - 1);
    assert_int_equal(esper_plan_gradients(run->plan), ESPER_OK);
}

/* ------------------------------------------------------------------------------------------------ comparing them */

/* Whole tensors, by the norm of their difference. The first that differs is described in `first`. */
static void check_close(char first[256], const char *what, const char *name, const float *expected, const float *found,
                        int64_t count, double least)
{
    double difference = 0, size = 0;

    for (int64_t i = 0; i < count; i++) {
        difference += ((double)expected[i] - (double)found[i]) * ((double)expected[i] - (double)found[i]);
        size += (double)expected[i] * (double)expected[i];
    }
    if (!(sqrt(difference) <= tolerance * (sqrt(size) + least)) && first[0] == '\0')
        snprintf(first, 256, "%s of %s: differs by %.3g, its size is %.3g", what, name, sqrt(difference), sqrt(size));
}

static double gradient_size(const small_run *run)
{
    double size = 0;

    for (int64_t i = 0; i < esper_slab_count(&run->slab, ESPER_FAMILY_GRAD); i++)
        size += pow((double)run->slab.family[ESPER_FAMILY_GRAD][i], 2);
    return sqrt(size);
}

static void compare(const small_run *ref, const small_run *cuda, char first[256])
{
    double least = 0.05 * gradient_size(ref);
    int n = ref->pass.n_samples;

    for (int t = 0; t < ref->net.n_tensors; t++) {
        const esper_tensor *tensor = &ref->net.tensors[t];

        if (tensor->role == ESPER_ROLE_PARAM)
            check_close(first, "the gradient", tensor->name, esper_slab_at(&ref->slab, ESPER_FAMILY_GRAD, tensor),
                        esper_slab_at(&cuda->slab, ESPER_FAMILY_GRAD, tensor), tensor->count, least);
        if (tensor->role == ESPER_ROLE_BUFFER)
            check_close(first, "the value", tensor->name, esper_slab_at(&ref->slab, ESPER_FAMILY_BUFFER, tensor),
                        esper_slab_at(&cuda->slab, ESPER_FAMILY_BUFFER, tensor), tensor->count, 1e-3);
        if (tensor->keep && tensor->per_sample)
            check_close(first, "the value", tensor->name, esper_plan_data(ref->plan, 0, t),
                        esper_plan_data(cuda->plan, 0, t), n * tensor->count, 1e-3);
        if (tensor->want_grad)
            check_close(first, "the gradient", tensor->name, esper_plan_grad(ref->plan, 0, t),
                        esper_plan_grad(cuda->plan, 0, t), n * tensor->count, 1e-4);
    }
    check_close(first, "the loss", "each sample", esper_plan_data(ref->plan, 0, ref->net.loss),
                esper_plan_data(cuda->plan, 0, cuda->net.loss), n, 1e-3);
    check_close(first, "the logits", "each sample", esper_plan_data(ref->plan, 0, ref->net.output),
                esper_plan_data(cuda->plan, 0, cuda->net.output), n * ref->net.tensors[ref->net.output].count, 1e-3);
}

/* Returns how many batches there were. */
static uint32_t check_batches(small_run *ref, small_run *cuda, uint32_t number)
{
    int n_agree = 0, n_differ = 0;
    uint32_t batch = 0;

    for (; n_agree < 1 + n_differ; batch++) {
        char first[256] = "";

        run_batch(ref, number, batch);
        run_batch(cuda, number, batch);
        compare(ref, cuda, first);
        n_agree += first[0] == '\0';
        n_differ += first[0] != '\0';
        if (n_differ == 2) {
            esper_net_print(&ref->net, stderr);
            fail_msg("network %u, batch of %d: %s", number, ref->pass.n_samples, first);
        }
    }
    return batch;
}

static void check_bits(const small_run *one, const small_run *other, uint32_t number)
{
    static const esper_family families[] = {ESPER_FAMILY_GRAD, ESPER_FAMILY_BUFFER};

    for (int t = 0; t < one->net.n_tensors; t++)
        for (int f = 0; f < 2; f++) {
            const esper_tensor *tensor = &one->net.tensors[t];
            const float *a = esper_slab_at(&one->slab, families[f], tensor);
            const float *b = esper_slab_at(&other->slab, families[f], tensor);

            if (a != NULL && memcmp(a, b, (size_t)tensor->count * sizeof(float)) != 0)
                fail_msg("network %u: the %s of %s in another order is not what it is in this", number,
                         esper_family_name(families[f]), tensor->name);
        }
}

/* ------------------------------------------------------------------------------------------------ tests */

static void check_net(uint32_t number, mode how)
{
    static small_run ref, cuda, other;
    uint32_t n_batches;

    host_cuda_set_cores(number % 4 != 1);
    open_net(&ref, "ref", number, how);
    if (in_bf16)
        setenv("ESPER_CUDA_HOST_PRECISION", "bf16", 1);
    open_net(&cuda, "cpu", number, how); /* the name that it has in the list of these programs */
    n_batches = check_batches(&ref, &cuda, number);
    if (number % 4 == 0) {
        open_net(&other, "cpu", number, how);
        host_cuda_reverse(true);
        for (uint32_t b = 0; b < n_batches; b++)
            run_batch(&other, number, b);
        host_cuda_reverse(false);
        check_bits(&cuda, &other, number);
        small_run_close(&other);
    }
    small_run_close(&cuda);
    small_run_close(&ref);
    host_cuda_set_cores(true);
    unsetenv("ESPER_CUDA_HOST_PRECISION");
}

static void test_training(void **state)
{
    const char *wanted = getenv("ESPER_NETS");
    int n = wanted != NULL ? atoi(wanted) : effort(24, 6);

    (void)state;
    for (int i = 0; i < n; i++)
        check_net((uint32_t)i, TRAINING);
}

/* Gradients where statistics are fixed, as in a frozen region. */
static void test_fixed_statistics(void **state)
{
    (void)state;
    for (int i = 0; i < effort(8, 3); i++)
        check_net(1000 + (uint32_t)i, FIXED_STATISTICS);
}

/* In two parts, between which ranks meet. */
static void test_ranks(void **state)
{
    (void)state;
    for (int i = 0; i < effort(8, 3); i++)
        check_net(2000 + (uint32_t)i, RANKS);
}

/* The same three. */
static void test_in_bf16(void **state)
{
    double usual = tolerance;

    (void)state;
    in_bf16 = true;
    tolerance = TOLERANCE_BF16;
    for (int i = 0; i < effort(12, 4); i++)
        check_net(4000 + (uint32_t)i, i % 4 == 3 ? FIXED_STATISTICS : i % 4 == 2 ? RANKS : TRAINING);
    tolerance = usual;
    in_bf16 = false;
}

static void test_watched(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < (uint32_t)effort(10, 4); i++) {
        static small_run one, other;

        open_net(&one, "cpu", 3000 + i, TRAINING);
        run_batch(&one, 3000 + i, 0);
        is_watched = true;
        open_net(&other, "cpu", 3000 + i, TRAINING);
        is_watched = false;
        run_batch(&other, 3000 + i, 0);
        for (int t = 0; t < one.net.n_tensors; t++) {
            const esper_tensor *tensor = &one.net.tensors[t];
            int twin = esper_net_find(&other.net, tensor->name);

            if (tensor->role == ESPER_ROLE_PARAM &&
                memcmp(esper_slab_at(&one.slab, ESPER_FAMILY_GRAD, tensor),
                       esper_slab_at(&other.slab, ESPER_FAMILY_GRAD, &other.net.tensors[twin]),
                       (size_t)tensor->count * sizeof(float)) != 0) {
                esper_net_print(&one.net, stderr);
                fail_msg("network %u: the gradient of %s is another one where somebody watches", 3000 + i,
                         tensor->name);
            }
        }
        small_run_close(&other);
        small_run_close(&one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training), cmocka_unit_test(test_fixed_statistics), cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_in_bf16),  cmocka_unit_test(test_watched),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
