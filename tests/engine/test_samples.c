/* ctest: timeout=120 cost=3 driver=only */
/* Batches that a device makes of the data set are those that the host makes, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "engine/samples.h"
#include "tensor/cuda/kernels.h"

enum { BATCH = 41 };

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* The nearest bf16, halves to even. */
static uint32_t half_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

/* The same in blocks of words of two channels: of C channels the last word has one, if C is odd. */
static void compare_halves(esper_backend *be, esper_gather *gather, const esper_pick *picks, const float *wanted,
                           size_t n_in)
{
    size_t n = (size_t)gather->n, n_blocks = (n + 31) / 32, C = (size_t)gather->dim[0], plane = n_in / C;
    size_t each = (C + 1) / 2 * plane, bytes = n_blocks * 32 * each * sizeof(uint32_t);
    uint32_t *given = malloc(bytes);
    void *blocks;

    check_good(esper_backend_alloc(be, bytes, &blocks));
    check_good(esper_backend_fill(be, NULL, blocks, 7.0f, bytes / sizeof(float)));
    gather->blocks = blocks;
    gather->layout = ESPER_CUDA_HALVES;
    check_good(esper_backend_gather(be, NULL, gather, picks));
    check_good(esper_backend_read(be, given, blocks, bytes));
    for (size_t s = 0; s < n_blocks * 32; s++)
        for (size_t i = 0; i < each; i++) {
            size_t low = s * n_in + i / plane * 2 * plane + i % plane;
            uint32_t word = given[(s / 32 * each + i) * 32 + s % 32];
            uint32_t right = s < n ? half_of(wanted[low]) : 0;

            if (s < n && i / plane * 2 + 1 < C)
                right |= half_of(wanted[low + plane]) << 16;
            if (word != right)
                fail_msg("sample %zu of %zu, word %zu: %08x, expected %08x", s, n, i, word, right);
        }
    gather->blocks = NULL;
    gather->layout = 0;
    esper_backend_release(be, blocks);
    free(given);
}

/* The same in blocks of 32 samples, of which the last one is filled up with zeros. */
static void compare_blocks(esper_backend *be, esper_gather *gather, const esper_pick *picks, const float *wanted,
                           size_t n_in)
{
    size_t n = (size_t)gather->n, n_blocks = (n + 31) / 32;
    float *given = malloc(n_blocks * 32 * n_in * sizeof(float));
    int32_t *targets = malloc(n * sizeof(*targets)), *targets_before = malloc(n * sizeof(*targets));
    void *blocks;

    check_good(esper_backend_alloc(be, n_blocks * 32 * n_in * sizeof(float), &blocks));
    check_good(esper_backend_fill(be, NULL, blocks, 7.0f, n_blocks * 32 * n_in));
    check_good(esper_backend_read(be, targets_before, gather->targets, n * sizeof(*targets)));
    check_good(esper_backend_fill(be, NULL, (float *)(void *)gather->targets, 7.0f, n));
    gather->blocks = blocks;
    check_good(esper_backend_gather(be, NULL, gather, picks));
    check_good(esper_backend_read(be, given, blocks, n_blocks * 32 * n_in * sizeof(float)));
    check_good(esper_backend_read(be, targets, gather->targets, n * sizeof(*targets)));
    assert_memory_equal(targets, targets_before, n * sizeof(*targets));
    for (size_t s = 0; s < n_blocks * 32; s++)
        for (size_t i = 0; i < n_in; i++) {
            float value = given[(s / 32 * n_in + i) * 32 + s % 32];

            if (value != (s < n ? wanted[s * n_in + i] : 0.0f))
                fail_msg("sample %zu of %zu, value %zu: %g", s, n, i, (double)value);
        }
    gather->blocks = NULL;
    esper_backend_release(be, blocks);
    free(given);
    free(targets);
    free(targets_before);
}

/* Every batch of two epochs, made here and there. */
static void compare(const esper_dataset_desc *desc, esper_split split, bool training, esper_augment augment)
{
    const esper_dataset_info *info;
    esper_sampler_desc order = {
        .split = split, .batch_size = BATCH, .training = training, .seed = 5, .augment = augment};
    esper_dataset *set;
    esper_backend *be;
    esper_sampler *sampler;
    esper_samples samples;
    size_t n_in, n_out;
    float *wanted, *given;
    int32_t *targets, *given_targets;
    esper_pick picks[BATCH];
    uint32_t ids[BATCH], given_ids[BATCH];
    void *inputs, *labels;

    check_good(esper_dataset_open(desc, &set));
    order.set = set;
    info = esper_dataset_info_get(set);
    check_good(esper_backend_open("cuda", NULL, &be));
    check_good(esper_sampler_open(&order, &sampler));
    check_good(esper_samples_init(&samples, be, set));
    assert_non_null(samples.backend);
    n_in = info->kind == ESPER_DATASET_IMAGES    ? (size_t)(info->channels * info->height * info->width)
           : info->kind == ESPER_DATASET_VECTORS ? (size_t)info->features
                                                 : (size_t)info->context;
    n_out = info->kind == ESPER_DATASET_TOKENS ? n_in : 1;
    wanted = malloc(BATCH * n_in * sizeof(float));
    given = malloc(BATCH * n_in * sizeof(float));
    targets = malloc(BATCH * n_out * sizeof(int32_t));
    given_targets = malloc(BATCH * n_out * sizeof(int32_t));
    check_good(esper_backend_alloc(be, BATCH * n_in * sizeof(float), &inputs));
    check_good(esper_backend_alloc(be, BATCH * n_out * sizeof(int32_t), &labels));
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        esper_sampler_redraw(sampler, epoch, 0);
        for (uint32_t b = 0; b < esper_sampler_batches(sampler); b++) {
            uint32_t n = esper_sampler_batch_count(sampler, b);
            esper_batch dest = {.targets = targets, .ids = ids};
            esper_gather gather = samples.of_split[split];

            *(info->kind == ESPER_DATASET_IMAGES    ? (void **)&dest.images
              : info->kind == ESPER_DATASET_VECTORS ? (void **)&dest.features
                                                    : (void **)&dest.tokens) = wanted;
            esper_batch_fill(sampler, b, NULL, &dest);
            esper_batch_pick(sampler, b, picks, given_ids);
            gather.n = (int32_t)n;
            gather.cutout = esper_batch_cutout(sampler);
            gather.inputs = inputs;
            gather.targets = labels;
            check_good(esper_backend_gather(be, NULL, &gather, picks));
            memset(picks, 0xff, sizeof(picks)); /* the caller may do so at once */
            check_good(esper_backend_read(be, given, inputs, n * n_in * sizeof(float)));
            check_good(esper_backend_read(be, given_targets, labels, n * n_out * sizeof(int32_t)));
            assert_memory_equal(given, wanted, n * n_in * sizeof(float));
            assert_memory_equal(given_targets, targets, n * n_out * sizeof(int32_t));
            assert_memory_equal(given_ids, ids, n * sizeof(*ids));
            if (info->kind == ESPER_DATASET_IMAGES) {
                esper_batch_pick(sampler, b, picks, given_ids);
                compare_blocks(be, &gather, picks, wanted, n_in);
                compare_halves(be, &gather, picks, wanted, n_in);
            }
        }
    }
    esper_backend_release(be, inputs);
    esper_backend_release(be, labels);
    free(wanted);
    free(given);
    free(targets);
    free(given_targets);
    esper_samples_fini(&samples);
    esper_sampler_close(sampler);
    esper_backend_close(be);
    esper_dataset_close(set);
}

static esper_dataset_desc images(int channels, int height, int width)
{
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_SYNTH_IMAGES);

    desc.channels = channels;
    desc.height = height;
    desc.width = width;
    desc.n_train = 61;
    desc.n_test = 23;
    return desc;
}

static void test_images_as_they_are(void **state)
{
    esper_dataset_desc odd = images(2, 5, 13), wide = images(3, 32, 40);

    (void)state;
    compare(&odd, ESPER_SPLIT_TRAIN, false, (esper_augment){0});
    compare(&odd, ESPER_SPLIT_TEST, false, (esper_augment){0});
    compare(&wide, ESPER_SPLIT_VALID, false, (esper_augment){0});
}

static void test_augmented_images(void **state)
{
    esper_dataset_desc odd = images(2, 5, 13), wide = images(1, 33, 9);

    (void)state;
    compare(&odd, ESPER_SPLIT_TRAIN, true, (esper_augment){.crop = 2, .flip = true, .cutout = 3});
    compare(&odd, ESPER_SPLIT_TRAIN, true, (esper_augment){.crop = 20}); /* windows that miss the image */
    compare(&wide, ESPER_SPLIT_TRAIN, true, (esper_augment){.flip = true, .cutout = 40});
}

static void test_rows_and_tokens(void **state)
{
    esper_dataset_desc rows = esper_dataset_desc_default(ESPER_SOURCE_SYNTH_TABLE),
                       tokens = esper_dataset_desc_default(ESPER_SOURCE_SYNTH_TOKENS);

    (void)state;
    rows.n_train = tokens.n_train = 70;
    tokens.context = 11;
    compare(&rows, ESPER_SPLIT_TRAIN, true, (esper_augment){0});
    compare(&rows, ESPER_SPLIT_TEST, false, (esper_augment){0});
    compare(&tokens, ESPER_SPLIT_TRAIN, true, (esper_augment){0});
    compare(&tokens, ESPER_SPLIT_VALID, false, (esper_augment){0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_images_as_they_are),
        cmocka_unit_test(test_augmented_images),
        cmocka_unit_test(test_rows_and_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
