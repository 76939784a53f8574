/* ctest: timeout=300 cost=14 */
/* Random image hosts, most of them with seeds in their slots: the cpu backend, with its own layout and operations that
 * have become one, computes what the reference computes, and on any number of threads the same bits. Channels 1 to 96,
 * images of 5 to 40 pixels a side, batches that no block divides. ESPER_HOSTS says how many (40).
 *
 * Two computations that differ in their last bits can take different ways at a ReLU or a pool, and a gradient then differs
 * by more than rounding. That is rare: of a host's batches one may differ, and the next one or two must not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "support/small_net.h"

enum { N_HOSTS = 40, MAX_SEEDS = 3 };

static const double TOLERANCE = 2e-3, MOST_FLOPS = 4e8; /* FLOPs of a step: the reference is slow */

static esper_rng rng_of(uint32_t number, uint32_t purpose)
{
    esper_rng_key key = {.seed = 4, .purpose = ESPER_RNG_TEST, .network = number, .step = purpose};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    return rng;
}

static int between(esper_rng *rng, int low, int high)
{
    return low + (int)esper_rng_below(rng, (uint32_t)(high - low + 1));
}

static double step_flops(const esper_host_cnn *cnn, int n_samples)
{
    double flops = 0;
    int h = cnn->height, w = cnn->width, in = cnn->in_channels;

    for (int b = 0; b < cnn->blocks; b++) {
        int out = cnn->channels << b;

        flops += 6.0 * in * out * cnn->kernel * cnn->kernel * h * w;
        in = out;
        h /= b < cnn->pools ? 2 : 1;
        w /= b < cnn->pools ? 2 : 1;
    }
    return flops * n_samples;
}

/* Narrow and wide, small and large; never more work than the reference can do in a moment. */
static esper_host draw_host(esper_rng *rng, int *n_samples_out)
{
    esper_host host = {.topology = ESPER_TOPOLOGY_CNN, .with_loss = true};

    do {
        int side;

        host.cnn = (esper_host_cnn){
            .in_channels = between(rng, 1, 4),
            .height = between(rng, 5, 40),
            .width = between(rng, 5, 40),
            .classes = between(rng, 2, 17),
            .blocks = between(rng, 2, 4),
            .channels = between(rng, 0, 2) == 0 ? between(rng, 1, 96) : between(rng, 1, 12),
            .kernel = 2 * between(rng, 0, 2) + 1,
        };
        side = host.cnn.height < host.cnn.width ? host.cnn.height : host.cnn.width;
        host.cnn.pools = between(rng, 0, host.cnn.blocks);
        while (side >> host.cnn.pools == 0)
            host.cnn.pools--;
        *n_samples_out = between(rng, 4, 50);
    } while (host.cnn.channels << (host.cnn.blocks - 1) > 200 || step_flops(&host.cnn, *n_samples_out) > MOST_FLOPS);
    return host;
}

static int draw_seeds(esper_rng *rng, const esper_host *host, char slots[MAX_SEEDS][ESPER_SLOT_CHARS],
                      small_seed *seeds)
{
    const esper_blueprint *const *list = esper_blueprint_list(ESPER_TOPOLOGY_CNN);
    int n = between(rng, 0, MAX_SEEDS < host->cnn.blocks ? MAX_SEEDS : host->cnn.blocks), n_blueprints = 0;

    while (list[n_blueprints] != NULL)
        n_blueprints++;
    for (int i = 0; i < n; i++) { /* one in each block, before or behind its pool */
        snprintf(slots[i], sizeof(slots[i]), "r%dc%d", i < host->cnn.pools ? between(rng, 0, 1) : 0, i);
        seeds[i] = (small_seed){slots[i], list[between(rng, 0, n_blueprints - 1)]->name,
                                (small_mode)between(rng, 0, SMALL_N_MODES - 1)};
    }
    seeds[n] = (small_seed){0};
    return n;
}

/* Norm scales and blends are born at values that hide mistakes: give every parameter some of its own. */
static void stir_parameters(small_run *run, uint32_t number)
{
    esper_rng rng = rng_of(number, 1);

    for (int t = 0; t < run->net.n_tensors; t++) {
        float *data = esper_slab_at(&run->slab, ESPER_FAMILY_PARAM, &run->net.tensors[t]);

        for (int64_t i = 0; run->net.tensors[t].role == ESPER_ROLE_PARAM && i < run->net.tensors[t].count; i++)
            data[i] += 0.2f * esper_rng_uniform(&rng) - 0.1f;
    }
}

static void fill_inputs(small_run *run, uint32_t number, uint32_t batch, int classes)
{
    esper_rng rng = rng_of(number, 2 + batch);
    int n = run->pass.n_samples;

    for (int t = 0; t < run->net.n_tensors; t++) {
        const esper_tensor *tensor = &run->net.tensors[t];
        void *data = esper_plan_data(run->plan, 0, t);

        for (int64_t i = 0; tensor->role == ESPER_ROLE_INPUT && i < tensor->count * n; i++) {
            if (tensor->dtype == ESPER_I32)
                ((int32_t *)data)[i] = between(&rng, -1, classes - 1); /* -1: not counted */
            else
                ((float *)data)[i] = tensor->count == 1 ? esper_rng_uniform(&rng) /* alpha */
                                                        : 4.0f * esper_rng_uniform(&rng) - 1.0f;
        }
    }
}

static void open_host(small_run *run, const char *backend, int n_threads, const esper_host *host,
                      const small_seed *seeds, uint32_t number, int n_samples)
{
    if (small_build(&run->net, host, seeds) != ESPER_OK)
        fail_msg("host %u: %s", number, esper_last_error());
    small_run_open_on(run, backend, n_threads, n_samples, true);
    run->pass.loss_scale = 1.0f / (float)n_samples;
    stir_parameters(run, number);
}

static void run_host(small_run *run, uint32_t number, uint32_t batch, const esper_host *host)
{
    fill_inputs(run, number, batch, host->cnn.classes);
    assert_int_equal(esper_plan_gradients(run->plan), ESPER_OK);
}

/* Whole tensors, by the norm of their difference. The first that differs is described in `first`. */
static void check_close(char first[256], const char *what, const char *name, const float *expected, const float *found,
                        int64_t count, double least)
{
    double difference = 0, size = 0;

    for (int64_t i = 0; i < count; i++) {
        difference += ((double)expected[i] - (double)found[i]) * ((double)expected[i] - (double)found[i]);
        size += (double)expected[i] * (double)expected[i];
    }
    if (!(sqrt(difference) <= TOLERANCE * (sqrt(size) + least)) && first[0] == '\0')
        snprintf(first, 256, "%s of %s: differs by %.3g, its size is %.3g", what, name, sqrt(difference), sqrt(size));
}

/* Gradients that cancel to nothing (a convolution's in front of a norm, in some directions) are compared by the size of
 * the whole gradient. */
static double gradient_size(const small_run *run)
{
    int64_t count = esper_slab_count(&run->slab, ESPER_FAMILY_GRAD);
    double size = 0;

    for (int64_t i = 0; i < count; i++)
        size += pow((double)run->slab.family[ESPER_FAMILY_GRAD][i], 2);
    return sqrt(size);
}

static void compare(const small_run *ref, const small_run *cpu, char first[256])
{
    double least = 0.05 * gradient_size(ref);
    int n = ref->pass.n_samples;

    for (int t = 0; t < ref->net.n_tensors; t++) {
        const esper_tensor *tensor = &ref->net.tensors[t];

        if (tensor->role == ESPER_ROLE_PARAM)
            check_close(first, "the gradient", tensor->name, esper_slab_at(&ref->slab, ESPER_FAMILY_GRAD, tensor),
                        esper_slab_at(&cpu->slab, ESPER_FAMILY_GRAD, tensor), tensor->count, least);
        if (tensor->role == ESPER_ROLE_BUFFER)
            check_close(first, "the value", tensor->name, esper_slab_at(&ref->slab, ESPER_FAMILY_BUFFER, tensor),
                        esper_slab_at(&cpu->slab, ESPER_FAMILY_BUFFER, tensor), tensor->count, 1e-3);
    }
    check_close(first, "the loss", "each sample", esper_plan_data(ref->plan, 0, ref->net.loss),
                esper_plan_data(cpu->plan, 0, cpu->net.loss), n, 1e-3);
    check_close(first, "the logits", "each sample", esper_plan_data(ref->plan, 0, ref->net.output),
                esper_plan_data(cpu->plan, 0, cpu->net.output), n * ref->net.tensors[ref->net.output].count, 1e-3);
}

/* Returns how many batches there were. */
static uint32_t check_batches(small_run *ref, small_run *cpu, uint32_t number, const esper_host *host, const char *text)
{
    int n_agree = 0, n_differ = 0;
    uint32_t batch = 0;

    for (; n_agree < 1 + n_differ; batch++) {
        char first[256] = "";

        run_host(ref, number, batch, host);
        run_host(cpu, number, batch, host);
        compare(ref, cpu, first);
        n_agree += first[0] == '\0';
        n_differ += first[0] != '\0';
        if (n_differ == 2)
            fail_msg("%s: %s", text, first);
    }
    return batch;
}

/* Work is cut into other ranges where there are more threads: gradients and statistics may not change in a bit. */
static void check_bits(const small_run *one, const small_run *many, int n_threads, const char *text)
{
    static const esper_family families[] = {ESPER_FAMILY_GRAD, ESPER_FAMILY_BUFFER};

    for (int t = 0; t < one->net.n_tensors; t++)
        for (int f = 0; f < 2; f++) {
            const esper_tensor *tensor = &one->net.tensors[t];
            const float *a = esper_slab_at(&one->slab, families[f], tensor);
            const float *b = esper_slab_at(&many->slab, families[f], tensor);

            if (a != NULL && memcmp(a, b, (size_t)tensor->count * sizeof(float)) != 0)
                fail_msg("%s: the %s of %s on %d threads is not what it is on one", text,
                         esper_family_name(families[f]), tensor->name, n_threads);
        }
}

static void check_threads(const small_run *one, const esper_host *host, const small_seed *seeds, uint32_t number,
                          uint32_t batch, const char *text)
{
    static const int n_threads[] = {2, 3, 7};
    static small_run many;
    int n = n_threads[number % 3];

    open_host(&many, "cpu", n, host, seeds, number, one->pass.n_samples);
    for (uint32_t b = 0; b <= batch; b++)
        run_host(&many, number, b, host);
    check_bits(one, &many, n, text);
    small_run_close(&many);
}

static void check_host(uint32_t number)
{
    esper_rng rng = rng_of(number, 0);
    char slots[MAX_SEEDS][ESPER_SLOT_CHARS], text[256];
    small_seed seeds[MAX_SEEDS + 1];
    static small_run ref, cpu;
    uint32_t n_batches;
    int n_samples;
    esper_host host = draw_host(&rng, &n_samples);
    int used = snprintf(text, sizeof(text), "host %u: batch %d, %dx%dx%d, %d blocks of %d, kernel %d, %d pools", number,
                        n_samples, host.cnn.in_channels, host.cnn.height, host.cnn.width, host.cnn.blocks,
                        host.cnn.channels, host.cnn.kernel, host.cnn.pools);
    int n_seeds = draw_seeds(&rng, &host, slots, seeds);

    for (int i = 0; i < n_seeds && used < (int)sizeof(text); i++)
        used += snprintf(text + used, sizeof(text) - (size_t)used, ", %s in %s (%s)", seeds[i].blueprint, seeds[i].slot,
                         small_mode_name(seeds[i].mode));
    open_host(&ref, "ref", 1, &host, seeds, number, n_samples);
    open_host(&cpu, "cpu", 1, &host, seeds, number, n_samples);
    n_batches = check_batches(&ref, &cpu, number, &host, text);
    check_threads(&cpu, &host, seeds, number, n_batches - 1, text);
    small_run_close(&cpu);
    small_run_close(&ref);
}

static void test_hosts(void **state)
{
    const char *wanted = getenv("ESPER_HOSTS");
    int n = wanted != NULL ? atoi(wanted) : N_HOSTS;

    (void)state;
    for (int i = 0; i < n; i++)
        check_host((uint32_t)i);
    print_message("%d hosts agree with the reference\n", n);
}

/* Kernels larger than lanes have, and padding wider than a kernel: such a network stays in canonical layout. */
static void build_unusual(esper_net *net, int kernel, int pad, int pad_of_point)
{
    int x, bias;

    esper_net_init(net);
    net->input = esper_net_input(net, "x", ESPER_F32, 3, (int[]){3, 12, 11});
    net->target = esper_net_input(net, "target", ESPER_I32, 1, (int[]){1});
    x = esper_net_conv2d(
        net, net->input,
        esper_net_param(net, "a", 4, (int[]){8, 3, kernel, kernel}, (esper_init){ESPER_INIT_UNIFORM, 0.1f}), pad, 1);
    x = esper_net_relu(net, x);
    x = esper_net_conv2d(net, x,
                         esper_net_param(net, "b", 4, (int[]){32, 8, 1, 1}, (esper_init){ESPER_INIT_UNIFORM, 0.1f}),
                         pad_of_point, 1);
    bias = esper_net_param(net, "d", 1, (int[]){5}, (esper_init){ESPER_INIT_UNIFORM, 0.1f});
    x = esper_net_linear(net, esper_net_global_mean(net, x),
                         esper_net_param(net, "c", 2, (int[]){5, 32}, (esper_init){ESPER_INIT_UNIFORM, 0.1f}), bias);
    net->output = x;
    esper_net_softmax_xent(net, x, net->target);
}

static void check_unusual(int kernel, int pad, int pad_of_point)
{
    static small_run ref, cpu;
    const esper_host host = {.cnn = {.classes = 5}};
    char first[256] = "";

    build_unusual(&ref.net, kernel, pad, pad_of_point);
    small_run_open(&ref, "ref", 19, true);
    build_unusual(&cpu.net, kernel, pad, pad_of_point);
    small_run_open(&cpu, "cpu", 19, true);
    run_host(&ref, 0, 0, &host);
    run_host(&cpu, 0, 0, &host);
    compare(&ref, &cpu, first);
    if (first[0] != '\0')
        fail_msg("kernel %d padded by %d, kernel 1 by %d: %s", kernel, pad, pad_of_point, first);
    small_run_close(&cpu);
    small_run_close(&ref);
}

static void test_unusual_kernels(void **state)
{
    (void)state;
    check_unusual(7, 3, 0);
    check_unusual(9, 4, 0);
    check_unusual(3, 1, 1);
    check_unusual(3, 4, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hosts), cmocka_unit_test(test_unusual_kernels)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
