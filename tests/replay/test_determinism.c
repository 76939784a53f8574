/* ctest: timeout=120 cost=8 labels=tsan */
/* The same seed gives the same network, whatever the number of threads; another seed gives another. */
#include <inttypes.h>

#include "engine/helpers.h"

enum { STEPS = 7 };

static const int thread_counts[] = {1, 2, 3};

enum { N_COUNTS = sizeof(thread_counts) / sizeof(thread_counts[0]) };

/* What a run comes to. */
typedef struct outcome {
    uint64_t    weights;
    esper_tally train, valid;
    double      grad_norm;
} outcome;

static outcome train_some(const char *task, const char *settings, int threads, int seed)
{
    char more[64];
    esper_network *network;
    esper_config config;
    outcome out;

    snprintf(more, sizeof(more), "threads = %d\nseed = %d\n", threads, seed);
    config = config_of(task, settings, more);
    check_good(esper_single_open(task_named(task), &config, ESPER_USE_TRAIN, &network));
    assert_int_equal(esper_pool_threads(network->engine->pool), threads);
    for (int i = 0; i < STEPS; i++) {
        if (network->cursor.batch == network->engine->steps_per_epoch)
            esper_network_next_epoch(network); /* the order of the second epoch matters too */
        check_good(esper_network_step(network));
    }
    out.train = network->tally;
    out.grad_norm = network->grad_norm;
    check_good(esper_network_evaluate(network, ESPER_SPLIT_VALID, NULL, &out.valid));
    out.weights = esper_network_hash(network);
    esper_single_close(network);
    return out;
}

static void check_same(const char *task, int threads, const outcome *a, const outcome *b)
{
    if (a->weights != b->weights)
        fail_msg("%s: weights %016" PRIx64 " with 1 thread, %016" PRIx64 " with %d", task, a->weights, b->weights,
                 threads);
    if (memcmp(&a->train, &b->train, sizeof(a->train)) != 0 || memcmp(&a->valid, &b->valid, sizeof(a->valid)) != 0)
        fail_msg("%s: losses %a, %a with 1 thread, %a, %a with %d", task, a->train.loss, a->valid.loss, b->train.loss,
                 b->valid.loss, threads);
    if (memcmp(&a->grad_norm, &b->grad_norm, sizeof(double)) != 0)
        fail_msg("%s: gradient norm %a with 1 thread, %a with %d", task, a->grad_norm, b->grad_norm, threads);
}

static void check_threads(const char *task, const char *settings)
{
    outcome first = train_some(task, settings, thread_counts[0], 1), other;

    for (int i = 1; i < N_COUNTS; i++) {
        other = train_some(task, settings, thread_counts[i], 1);
        check_same(task, thread_counts[i], &first, &other);
    }
    other = train_some(task, settings, 1, 2);
    if (other.weights == first.weights)
        fail_msg("%s: seeds 1 and 2 give the same weights %016" PRIx64, task, first.weights);
}

/* Batches of 13: neither a whole number of sample blocks nor the same for every thread. */
#define CNN "batch = 13\nchannels = 3\nblocks = 2\nmax_steps = 4\n"

static void augmented_cnn(void **state)
{
    (void)state;
    check_threads("synth", CNN "crop = 3\nflip = true\ncutout = 7\n");
}

/* Each augmentation is part of what is computed: without one of them the network is another. */
static void augmentations_count(void **state)
{
    static const char *const settings[] = {CNN "crop = 3\nflip = true\ncutout = 7\n", CNN "flip = true\ncutout = 7\n",
                                           CNN "crop = 3\ncutout = 7\n", CNN "crop = 3\nflip = true\n"};
    uint64_t hashes[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        hashes[i] = train_some("synth", settings[i], 1, 1).weights;
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            if (hashes[i] == hashes[k])
                fail_msg("\"%s\" and \"%s\" give the same weights %016" PRIx64, settings[i], settings[k], hashes[i]);
}

#define TRANSFORMER "batch = 5\nlayers = 2\nwidth = 12\nheads = 3\ncontext = 9\nmax_steps = 4\n"

static void transformer_with_dropout(void **state)
{
    uint64_t with, without;

    (void)state;
    check_threads("synth_text", TRANSFORMER "dropout = 0.2\n");
    with = train_some("synth_text", TRANSFORMER "dropout = 0.2\n", 1, 1).weights;
    without = train_some("synth_text", TRANSFORMER, 1, 1).weights;
    if (with == without)
        fail_msg("dropout changes nothing: weights %016" PRIx64, with);
}

/* One forward pass may not disturb another: evaluating between steps leaves training as it was. */
static void evaluation_leaves_no_trace(void **state)
{
    esper_config config = config_of("synth", CNN "crop = 3\nflip = true\n", "threads = 1\n");
    uint64_t hashes[2];

    (void)state;
    for (int with = 0; with < 2; with++) {
        esper_network *network;
        esper_tally tally;

        check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_TRAIN, &network));
        for (int i = 0; i < 3; i++) {
            check_good(esper_network_step(network));
            if (with == 1)
                check_good(esper_network_evaluate(network, ESPER_SPLIT_VALID, NULL, &tally));
        }
        hashes[with] = esper_network_hash(network);
        esper_single_close(network);
    }
    if (hashes[0] != hashes[1])
        fail_msg("weights %016" PRIx64 ", but %016" PRIx64 " with evaluations between the steps", hashes[0], hashes[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(augmented_cnn),
        cmocka_unit_test(augmentations_count),
        cmocka_unit_test(transformer_with_dropout),
        cmocka_unit_test(evaluation_leaves_no_trace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
