/* Batches: orders that are permutations and come back, and augmentation that depends on the sample alone. */
#include "data/helpers.h"

#include "base/rng.h"
#include "data/batch.h"
#include "data/shuffle.h"

enum { SIDE_H = 5, SIDE_W = 13, CHANNELS = 2, PLANE = SIDE_H * SIDE_W, PIXELS = CHANNELS * PLANE, N_TRAIN = 103 };

static esper_dataset *open_images(void)
{
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_SYNTH_IMAGES);
    esper_dataset *set = NULL;

    desc.channels = CHANNELS;
    desc.height = SIDE_H;
    desc.width = SIDE_W;
    desc.n_train = N_TRAIN;
    desc.n_test = 25;
    desc.valid_fraction = 0.0;
    assert_ok(esper_dataset_open(&desc, &set));
    return set;
}

static esper_dataset *open_tokens(int context)
{
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_SYNTH_TOKENS);
    esper_dataset *set = NULL;

    desc.context = context;
    desc.n_train = 50;
    assert_ok(esper_dataset_open(&desc, &set));
    return set;
}

static esper_sampler *open_sampler(const esper_sampler_desc *desc)
{
    esper_sampler *sampler = NULL;

    assert_ok(esper_sampler_open(desc, &sampler));
    return sampler;
}

static esper_sampler_desc training(const esper_dataset *set, uint32_t batch_size)
{
    return (esper_sampler_desc){
        .set = set, .split = ESPER_SPLIT_TRAIN, .batch_size = batch_size, .training = true, .seed = 11};
}

/* ---------------------------------------------------------------- orders */

static void read_order(esper_sampler *sampler, uint32_t epoch, uint32_t *order)
{
    esper_sampler_redraw(sampler, epoch, 0);
    memcpy(order, esper_sampler_batch_ids(sampler, 0), N_TRAIN * sizeof(*order));
}

static void test_permutations(void **state)
{
    esper_dataset *set = open_images();
    esper_sampler_desc desc = training(set, 10);
    esper_sampler *sampler = open_sampler(&desc), *other;
    uint32_t first[N_TRAIN], order[N_TRAIN];
    int n_fixed = 0;

    (void)state;
    read_order(sampler, 0, first);
    for (uint32_t epoch = 0; epoch < 20; epoch++) {
        uint8_t seen[N_TRAIN] = {0};

        read_order(sampler, epoch, order);
        for (int i = 0; i < N_TRAIN; i++) {
            assert_in_range(order[i], 0, N_TRAIN - 1);
            assert_int_equal(seen[order[i]]++, 0);
            n_fixed += order[i] == (uint32_t)i;
        }
        assert_int_equal(memcmp(order, first, sizeof(order)) == 0, epoch == 0);
    }
    assert_in_range(n_fixed, 5, 50); /* one per epoch stays in its place by chance */
    read_order(sampler, 0, order);   /* back to the beginning */
    assert_memory_equal(order, first, sizeof(order));

    desc.seed++;
    other = open_sampler(&desc);
    assert_memory_not_equal(esper_sampler_batch_ids(other, 0), first, sizeof(first));
    esper_sampler_close(other);
    desc.seed--;
    desc.network = 1;
    other = open_sampler(&desc);
    assert_memory_not_equal(esper_sampler_batch_ids(other, 0), first, sizeof(first));
    esper_sampler_close(other);
    desc.network = 0;
    desc.batch_size = 64; /* the order does not depend on the size of a batch */
    other = open_sampler(&desc);
    assert_memory_equal(esper_sampler_batch_ids(other, 0), first, sizeof(first));
    esper_sampler_close(other);
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

/* Every place is equally likely for every sample: a chi-squared test over many epochs, with its 1 in 10^6 limit. */
static void test_permutations_are_fair(void **state)
{
    enum { N = 8, EPOCHS = 4000 };
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_SYNTH_IMAGES);
    int seen[N][N] = {{0}};
    esper_dataset *set = NULL;
    esper_sampler_desc order;
    esper_sampler *sampler;
    double sum = 0;

    (void)state;
    desc.channels = desc.height = desc.width = 1;
    desc.n_train = N;
    desc.valid_fraction = 0.0;
    assert_ok(esper_dataset_open(&desc, &set));
    order = training(set, N);
    sampler = open_sampler(&order);
    for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
        esper_sampler_redraw(sampler, epoch, 0);
        for (int i = 0; i < N; i++)
            seen[i][esper_sampler_batch_ids(sampler, 0)[i]]++;
    }
    for (int i = 0; i < N * N; i++) {
        double excess = seen[i / N][i % N] - (double)EPOCHS / N;

        sum += excess * excess / ((double)EPOCHS / N);
    }
    if (sum > 115.0) /* 49 degrees of freedom */
        fail_msg("chi-squared is %.1f, wanted below 115", sum);
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

/* Which share of the list, in thousandths, each step of the shuffle picked from: its steps walked again from the
 * result. Fails unless the result is a permutation. */
static void recover_picks(const uint32_t *result, uint32_t n, uint16_t *share)
{
    uint32_t *list = malloc(n * sizeof(*list)),
             *place = malloc(n * sizeof(*place)); /* the list then, and its inverse */

    assert_true(list != NULL && place != NULL);
    for (uint32_t i = 0; i < n; i++)
        list[i] = place[i] = i;
    for (uint32_t last = n - 1; last > 0; last--) {
        uint32_t value = result[last], pick, moved = list[last];

        assert_true(value < n && place[value] <= last); /* not taken before */
        pick = place[value];
        list[pick] = moved;
        place[moved] = pick;
        place[value] = last;
        share[n - 1 - last] = (uint16_t)((uint64_t)pick * 1000 / (last + 1));
    }
    assert_int_equal(result[0], list[0]);
    free(place);
    free(list);
}

/* A list longer than one stream of random numbers: still a permutation, and no numbers are used twice. */
static void test_long_permutation(void **state)
{
    enum { N = (1 << 22) + 5, PART = 1 << 20 };
    esper_rng_key key = {.seed = 3, .purpose = ESPER_RNG_TEST};
    uint32_t *list = malloc(N * sizeof(*list));
    uint16_t *share = calloc(N, sizeof(*share));
    uint32_t n_alike = 0;

    (void)state;
    assert_true(list != NULL && share != NULL);
    for (uint32_t i = 0; i < N; i++)
        list[i] = i;
    esper_shuffle(list, N, &key);
    recover_picks(list, N, share);
    for (uint32_t k = PART; k < N - 1; k++)
        n_alike += share[k] == share[k - PART];
    assert_in_range(n_alike, 3 * PART / 1000 - 300, 3 * PART / 1000 + 300); /* one in a thousand, by chance */
    free(share);
    free(list);
}

static void test_batch_counts(void **state)
{
    esper_dataset *set = open_images();
    esper_sampler_desc desc = training(set, 10);
    esper_sampler *sampler = open_sampler(&desc);

    (void)state;
    assert_int_equal(esper_sampler_batches(sampler), 10); /* 103 samples: the three left over are dropped */
    assert_int_equal(esper_sampler_batch_count(sampler, 9), 10);
    assert_int_equal(esper_sampler_batch_count(sampler, 10), 0);
    assert_ptr_equal(esper_sampler_batch_ids(sampler, 3), esper_sampler_batch_ids(sampler, 0) + 30);
    esper_sampler_close(sampler);

    desc.batch_size = 200; /* less than one batch: it is short, but it is there */
    sampler = open_sampler(&desc);
    assert_int_equal(esper_sampler_batches(sampler), 1);
    assert_int_equal(esper_sampler_batch_count(sampler, 0), 103);
    esper_sampler_close(sampler);

    desc = (esper_sampler_desc){.set = set, .split = ESPER_SPLIT_TEST, .batch_size = 10};
    sampler = open_sampler(&desc);
    assert_int_equal(esper_sampler_batches(sampler), 3); /* evaluation keeps its tail */
    assert_int_equal(esper_sampler_batch_count(sampler, 2), 5);
    for (uint32_t i = 0; i < 25; i++)
        assert_int_equal(esper_sampler_batch_ids(sampler, 0)[i], i);
    esper_sampler_close(sampler);

    desc.split = ESPER_SPLIT_VALID; /* empty here */
    sampler = open_sampler(&desc);
    assert_int_equal(esper_sampler_batches(sampler), 0);
    assert_int_equal(esper_sampler_batch_count(sampler, 0), 0);
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

static void test_bad_descriptions(void **state)
{
    esper_dataset *set = open_images();
    esper_sampler_desc desc = training(set, 0);
    esper_sampler *sampler = NULL;

    (void)state;
    assert_fails(esper_sampler_open(&desc, &sampler), ESPER_E_ARG, "batches of 0");
    desc.batch_size = 1;
    desc.augment.crop = -1;
    assert_fails(esper_sampler_open(&desc, &sampler), ESPER_E_ARG, "crop by -1");
    desc.augment.crop = 0;
    desc.augment.cutout = 5000;
    assert_fails(esper_sampler_open(&desc, &sampler), ESPER_E_ARG, "cut-out of 5000");
    assert_null(sampler);
    esper_dataset_close(set);
}

static void test_failing_memory(void **state)
{
    esper_dataset *set = open_images();
    esper_sampler_desc desc = training(set, 10);
    uint64_t before = blocks_live(), before_bytes = bytes_live();
    esper_sampler *sampler = NULL;

    (void)state;
    for (uint64_t k = 1; k <= 2; k++) {
        esper_mem_fail_at(k);
        assert_int_equal(esper_sampler_open(&desc, &sampler), ESPER_E_NOMEM);
        esper_mem_fail_at(0);
        assert_null(sampler);
        assert_int_equal(blocks_live(), before);
    }
    sampler = open_sampler(&desc);
    assert_int_equal(bytes_live() - before_bytes, esper_sampler_predict_bytes(N_TRAIN));
    esper_sampler_close(sampler);
    assert_int_equal(blocks_live(), before);
    esper_dataset_close(set);
}

/* ---------------------------------------------------------------- contents */

static void test_plain_images(void **state)
{
    esper_dataset *set = open_images();
    esper_sampler_desc desc = {
        .set = set, .split = ESPER_SPLIT_TEST, .batch_size = 10, .augment = {.crop = 2, .flip = true}};
    esper_sampler *sampler = open_sampler(&desc); /* augmentation is for training only */
    float images[10 * PIXELS];
    int32_t targets[10];
    uint32_t ids[10];

    (void)state;
    for (uint32_t b = 0; b < 3; b++) {
        esper_batch_fill(sampler, b, NULL, &(esper_batch){.images = images, .targets = targets, .ids = ids});
        for (uint32_t i = 0; i < esper_sampler_batch_count(sampler, b); i++) {
            assert_int_equal(ids[i], b * 10 + i);
            assert_int_equal(targets[i], esper_dataset_label(set, ESPER_SPLIT_TEST, ids[i]));
            for (int p = 0; p < PIXELS; p++) {
                float value = (float)esper_dataset_image(set, ESPER_SPLIT_TEST, ids[i])[p];

                assert_float_equal(images[i * PIXELS + (uint32_t)p], (value / 255.0f - 0.5f) / 0.25f, 0.0f);
            }
        }
    }
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

static void test_features(void **state)
{
    esper_dataset_desc desc = esper_dataset_desc_default(ESPER_SOURCE_SYNTH_TABLE);
    float features[7 * 5];
    int32_t targets[7];
    esper_sampler *sampler;
    esper_dataset *set;
    uint32_t ids[7];

    (void)state;
    desc.features = 5;
    desc.n_train = 60;
    assert_int_equal(esper_dataset_open(&desc, &set), ESPER_OK);
    sampler = open_sampler(&(esper_sampler_desc){.set = set, .batch_size = 7, .training = true});
    for (uint32_t b = 0; b < esper_sampler_batches(sampler); b++) {
        esper_batch_fill(sampler, b, NULL, &(esper_batch){.features = features, .targets = targets, .ids = ids});
        for (uint32_t i = 0; i < 7; i++) {
            assert_memory_equal(&features[i * 5], esper_dataset_row(set, ESPER_SPLIT_TRAIN, ids[i]), 5 * sizeof(float));
            assert_int_equal(targets[i], esper_dataset_label(set, ESPER_SPLIT_TRAIN, ids[i]));
        }
    }
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

static void test_tokens(void **state)
{
    enum { T = 6 };
    esper_dataset *set = open_tokens(T);
    esper_sampler_desc desc = training(set, 7);
    esper_sampler *sampler = open_sampler(&desc);
    int32_t tokens[7 * T], targets[7 * T];
    uint32_t ids[7];

    (void)state;
    for (uint32_t b = 0; b < esper_sampler_batches(sampler); b++) {
        esper_batch_fill(sampler, b, NULL, &(esper_batch){.tokens = tokens, .targets = targets, .ids = ids});
        for (int i = 0; i < 7; i++)
            for (int t = 0; t < T; t++) {
                const uint16_t *window = esper_dataset_window(set, ESPER_SPLIT_TRAIN, ids[i]);

                assert_int_equal(tokens[i * T + t], window[t]);
                assert_int_equal(targets[i * T + t], window[t + 1]);
            }
    }
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

/* ---------------------------------------------------------------- augmentation */

/* What may happen to an image, written down the slow and obvious way: pad, cut the window, mirror, blot out. */
typedef struct change {
    int  top, left; /* of the window in the padded image, 0 .. 2 * crop */
    bool flip;
    int  cut_y, cut_x;
} change;

static void apply(const uint8_t *image, const esper_augment *augment, const change *what, uint8_t *result)
{
    for (int c = 0; c < CHANNELS; c++) {
        uint8_t padded[SIDE_H + 20][SIDE_W + 20] = {{0}};

        assert_in_range(augment->crop, 0, 10);
        for (int y = 0; y < SIDE_H; y++)
            for (int x = 0; x < SIDE_W; x++)
                padded[augment->crop + y][augment->crop + x] = image[c * PLANE + y * SIDE_W + x];
        for (int y = 0; y < SIDE_H; y++)
            for (int x = 0; x < SIDE_W; x++) {
                int from = what->flip ? SIDE_W - 1 - x : x;
                int dy = y - (what->cut_y - augment->cutout / 2), dx = x - (what->cut_x - augment->cutout / 2);
                bool blot = dy >= 0 && dy < augment->cutout && dx >= 0 && dx < augment->cutout;

                result[c * PLANE + y * SIDE_W + x] = blot ? 0 : padded[what->top + y][what->left + from];
            }
    }
}

static bool is_result(const esper_dataset *set, const float *got, const uint8_t *wanted)
{
    for (int p = 0; p < PIXELS; p++)
        if (got[p] != esper_dataset_levels(set, p / PLANE)[wanted[p]])
            return false;
    return true;
}

/* The draws, as the header promises them: top, left, flip, centre of the square, keyed by the sample. */
static change draw(uint64_t seed, uint32_t epoch, uint32_t id, int crop)
{
    esper_rng_key key = {.seed = seed, .purpose = ESPER_RNG_AUGMENT, .step = epoch, .sample = id};
    change what;
    esper_rng rng;

    esper_rng_init(&rng, &key);
    what.top = (int)esper_rng_below(&rng, (uint32_t)(2 * crop + 1));
    what.left = (int)esper_rng_below(&rng, (uint32_t)(2 * crop + 1));
    what.flip = esper_rng_uniform(&rng) < 0.5f;
    what.cut_y = (int)esper_rng_below(&rng, SIDE_H);
    what.cut_x = (int)esper_rng_below(&rng, SIDE_W);
    return what;
}

static void check_augment(const esper_dataset *set, esper_augment augment, uint32_t epoch)
{
    esper_sampler_desc desc = training(set, N_TRAIN);
    float images[N_TRAIN * PIXELS];
    uint32_t ids[N_TRAIN];
    esper_sampler *sampler;

    desc.augment = augment;
    sampler = open_sampler(&desc);
    esper_sampler_redraw(sampler, epoch, 0);
    esper_batch_fill(sampler, 0, NULL, &(esper_batch){.images = images, .ids = ids});
    for (int i = 0; i < N_TRAIN; i++) {
        change what = draw(11, epoch, ids[i], augment.crop);
        uint8_t wanted[PIXELS];

        what.flip = what.flip && augment.flip;
        apply(esper_dataset_image(set, ESPER_SPLIT_TRAIN, ids[i]), &augment, &what, wanted);
        if (!is_result(set, images + i * PIXELS, wanted))
            fail_msg("sample %u, epoch %u: crop %d (%d, %d), flip %d, cut-out %d (%d, %d) gave another image", ids[i],
                     epoch, augment.crop, what.top, what.left, what.flip, augment.cutout, what.cut_y, what.cut_x);
    }
    esper_sampler_close(sampler);
}

static void test_augment(void **state)
{
    static const esper_augment all[] = {
        {.crop = 2},
        {.flip = true},
        {.cutout = 3},
        {.cutout = 2},
        {.cutout = 20},
        {.crop = 10, .flip = true, .cutout = 1},
        {.crop = 1, .flip = true, .cutout = 2},
    };
    esper_dataset *set = open_images();

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (uint32_t epoch = 0; epoch < 5; epoch++)
            check_augment(set, all[i], epoch);
    esper_dataset_close(set);
}

/* Worked by hand, on an image of 2 x 3 whose pixels are 1 2 3 / 4 5 6. Every image that comes out must be one of these:
 * crop by 1 shows rows y-1+top, columns x-1+left; mirrored or not. */
static void test_augment_by_hand(void **state)
{
    static const uint8_t wanted[3][3][6] = {
        /* left = 0            left = 1            left = 2 */
        {{0, 0, 0, 0, 1, 2}, {0, 0, 0, 1, 2, 3}, {0, 0, 0, 2, 3, 0}}, /* top = 0 */
        {{0, 1, 2, 0, 4, 5}, {1, 2, 3, 4, 5, 6}, {2, 3, 0, 5, 6, 0}}, /* top = 1 */
        {{0, 4, 5, 0, 0, 0}, {4, 5, 6, 0, 0, 0}, {5, 6, 0, 0, 0, 0}}, /* top = 2 */
    };
    uint8_t file[16 + 6], labels[8 + 1];
    esper_dataset_desc source = esper_dataset_desc_default(ESPER_SOURCE_MNIST);
    esper_dataset *set = NULL;
    esper_sampler_desc desc;
    esper_sampler *sampler;
    int seen[3][3][2] = {{{0}}};

    (void)state;
    make_idx(file, 3, (uint32_t[]){1, 2, 3}, (uint8_t[]){1, 2, 3, 4, 5, 6}, 6);
    make_idx(labels, 1, (uint32_t[]){1}, (uint8_t[]){5}, 1);
    make_dir("hand");
    write_file("hand/train-images-idx3-ubyte", file, sizeof(file));
    write_file("hand/t10k-images-idx3-ubyte", file, sizeof(file));
    write_file("hand/train-labels-idx1-ubyte", labels, sizeof(labels));
    write_file("hand/t10k-labels-idx1-ubyte", labels, sizeof(labels));
    source.path = "hand";
    source.valid_fraction = 0.0;
    assert_ok(esper_dataset_open(&source, &set));
    desc = training(set, 1);
    desc.augment = (esper_augment){.crop = 1, .flip = true};
    sampler = open_sampler(&desc);
    for (uint32_t epoch = 0; epoch < 1800; epoch++) {
        const float *levels = esper_dataset_levels(set, 0);
        float image[6];
        int n_matches = 0;

        esper_sampler_redraw(sampler, epoch, 0);
        esper_batch_fill(sampler, 0, NULL, &(esper_batch){.images = image});
        for (int k = 0; k < 18; k++) {
            int top = k / 6, left = k / 2 % 3, flip = k % 2, n_same = 0;

            for (int p = 0; p < 6; p++)
                n_same += image[p] == levels[wanted[top][left][flip ? p / 3 * 3 + 2 - p % 3 : p]];
            seen[top][left][flip] += n_same == 6;
            n_matches += n_same == 6;
        }
        assert_int_equal(n_matches, 1);
    }
    for (int k = 0; k < 18; k++)
        assert_in_range(seen[k / 6][k / 2 % 3][k % 2], 60, 150); /* 100 each, by chance within 5 deviations */
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

/* The pixels of a sample in an epoch, whatever else is in its batch. */
static void collect_pixels(const esper_dataset *set, uint32_t batch_size, uint32_t epoch, float *by_id)
{
    esper_sampler_desc desc = training(set, batch_size);
    float *images = calloc(batch_size, PIXELS * sizeof(float));
    uint32_t *ids = calloc(batch_size, sizeof(uint32_t));
    esper_sampler *sampler;

    assert_true(images != NULL && ids != NULL);
    desc.augment = (esper_augment){.crop = 2, .flip = true, .cutout = 2};
    sampler = open_sampler(&desc);
    esper_sampler_redraw(sampler, epoch, 0);
    for (uint32_t b = 0; b < esper_sampler_batches(sampler); b++) {
        esper_batch_fill(sampler, b, NULL, &(esper_batch){.images = images, .ids = ids});
        for (uint32_t i = 0; i < esper_sampler_batch_count(sampler, b); i++)
            memcpy(by_id + ids[i] * PIXELS, images + i * PIXELS, PIXELS * sizeof(float));
    }
    esper_sampler_close(sampler);
    free(ids);
    free(images);
}

static void test_augment_ignores_batches(void **state)
{
    static float one[N_TRAIN * PIXELS], all[N_TRAIN * PIXELS], next[N_TRAIN * PIXELS];
    esper_dataset *set = open_images();

    (void)state;
    collect_pixels(set, 1, 4, one);
    collect_pixels(set, 103, 4, all);
    assert_memory_equal(one, all, sizeof(one));
    collect_pixels(set, 103, 5, next);
    assert_memory_not_equal(all, next, sizeof(all));
    esper_dataset_close(set);
}

/* Turning one kind on leaves the draws of the others alone. */
static void test_augment_kinds_are_independent(void **state)
{
    esper_dataset *set = open_images();
    esper_sampler_desc desc = training(set, N_TRAIN);
    static float with[N_TRAIN * PIXELS], without[N_TRAIN * PIXELS];
    esper_sampler *sampler;
    int n_black = 0, n_other = 0;

    (void)state;
    desc.augment = (esper_augment){.crop = 2, .flip = true};
    sampler = open_sampler(&desc);
    esper_batch_fill(sampler, 0, NULL, &(esper_batch){.images = without});
    esper_sampler_close(sampler);
    desc.augment.cutout = 2;
    sampler = open_sampler(&desc);
    esper_batch_fill(sampler, 0, NULL, &(esper_batch){.images = with});
    esper_sampler_close(sampler);
    for (int p = 0; p < N_TRAIN * PIXELS; p++) {
        if (with[p] == without[p])
            continue;
        n_black += with[p] == esper_dataset_levels(set, 0)[0];
        n_other += with[p] != esper_dataset_levels(set, 0)[0];
    }
    assert_int_equal(n_other, 0);
    assert_in_range(n_black, 200, N_TRAIN * CHANNELS * 4);
    esper_dataset_close(set);
}

/* ---------------------------------------------------------------- threads, resume, memory */

static void fill_with(esper_sampler *sampler, int n_threads, float *images, int32_t *targets, uint32_t *ids)
{
    esper_pool *pool = NULL;

    assert_ok(esper_pool_open(n_threads, &pool));
    for (uint32_t b = 0; b < esper_sampler_batches(sampler); b++)
        esper_batch_fill(
            sampler, b, pool,
            &(esper_batch){.images = images + b * 50 * PIXELS, .targets = targets + b * 50, .ids = ids + b * 50});
    esper_pool_close(pool);
}

static void test_threads(void **state)
{
    static float images[3][100 * PIXELS];
    int32_t targets[3][100];
    uint32_t ids[3][100];
    esper_dataset *set = open_images();
    esper_sampler_desc desc = training(set, 50);
    esper_sampler *sampler;

    (void)state;
    desc.augment = (esper_augment){.crop = 2, .flip = true, .cutout = 2};
    sampler = open_sampler(&desc);
    for (int n = 0; n < 3; n++)
        fill_with(sampler, n + 1, images[n], targets[n], ids[n]);
    for (int n = 1; n < 3; n++) {
        assert_memory_equal(images[0], images[n], sizeof(images[0]));
        assert_memory_equal(targets[0], targets[n], sizeof(targets[0]));
        assert_memory_equal(ids[0], ids[n], sizeof(ids[0]));
    }
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

/* A sampler opened afresh at (epoch 3, batch 6) goes on as the one that came all the way; and nothing takes memory. */
static void test_resume_without_memory(void **state)
{
    static float walked[10 * PIXELS], resumed[10 * PIXELS];
    esper_dataset *set = open_images();
    esper_sampler_desc desc = training(set, 10);
    esper_sampler *sampler;
    esper_mem_stats before, after;

    (void)state;
    desc.augment = (esper_augment){.crop = 2, .flip = true, .cutout = 2};
    sampler = open_sampler(&desc);
    esper_mem_stats_get(&before);
    for (uint32_t epoch = 0; epoch <= 3; epoch++) {
        esper_sampler_redraw(sampler, epoch, 0);
        for (uint32_t b = 0; b < esper_sampler_batches(sampler) && (epoch < 3 || b <= 6); b++)
            esper_batch_fill(sampler, b, NULL, &(esper_batch){.images = walked});
    }
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_allocs, before.n_allocs);
    esper_sampler_close(sampler);

    sampler = open_sampler(&desc);
    esper_sampler_redraw(sampler, 3, 0);
    esper_batch_fill(sampler, 6, NULL, &(esper_batch){.images = resumed});
    assert_memory_equal(walked, resumed, sizeof(walked));
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

/* Only the range asked for is written. */
static void test_ranges(void **state)
{
    esper_dataset *set = open_images();
    esper_sampler_desc desc = training(set, 10);
    esper_sampler *sampler = open_sampler(&desc);
    int32_t targets[10], part[10];

    (void)state;
    esper_batch_fill(sampler, 2, NULL, &(esper_batch){.targets = targets});
    memset(part, 0xff, sizeof(part));
    esper_batch_fill_range(sampler, 2, 3, 7, &(esper_batch){.targets = part});
    for (int i = 0; i < 10; i++)
        assert_int_equal(part[i], i >= 3 && i < 7 ? targets[i] : -1);
    esper_sampler_close(sampler);
    esper_dataset_close(set);
}

/* The parts of ranks are the batch, in order, whatever the number of ranks. */
static void test_shares(void **state)
{
    esper_dataset *set = open_images();
    esper_sampler_desc desc = training(set, 10);
    esper_sampler *whole = open_sampler(&desc), *part = open_sampler(&desc);

    (void)state;
    desc.training = false; /* with a short last batch */
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t n_ranks = 1; n_ranks <= 13; n_ranks++) {
            for (uint32_t batch = 0; batch < esper_sampler_batches(whole); batch++) {
                const uint32_t *ids = esper_sampler_batch_ids(whole, batch);
                uint32_t total = esper_sampler_batch_total(whole, batch), n = 0;

                assert_int_equal(esper_sampler_batch_count(whole, batch), total);
                for (uint32_t rank = 0; rank < n_ranks; rank++) {
                    uint32_t count;

                    esper_sampler_share(part, rank, n_ranks);
                    count = esper_sampler_batch_count(part, batch);
                    assert_int_equal(esper_sampler_batch_total(part, batch), total);
                    assert_in_range(count, total / n_ranks, (total + n_ranks - 1) / n_ranks);
                    assert_memory_equal(esper_sampler_batch_ids(part, batch), ids + n, count * sizeof(*ids));
                    n += count;
                }
                assert_int_equal(n, total);
            }
        }
        esper_sampler_close(whole);
        esper_sampler_close(part);
        whole = open_sampler(&desc);
        part = open_sampler(&desc);
    }
    esper_sampler_close(whole);
    esper_sampler_close(part);
    esper_dataset_close(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_permutations_are_fair),
        cmocka_unit_test(test_long_permutation),
        cmocka_unit_test(test_batch_counts),
        cmocka_unit_test(test_bad_descriptions),
        cmocka_unit_test(test_failing_memory),
        cmocka_unit_test(test_plain_images),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_augment),
        cmocka_unit_test(test_augment_by_hand),
        cmocka_unit_test(test_augment_ignores_batches),
        cmocka_unit_test(test_augment_kinds_are_independent),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_resume_without_memory),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_shares),
    };

    return cmocka_run_group_tests_name("batch", tests, scratch_enter, scratch_leave);
}
