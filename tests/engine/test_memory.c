/* ctest: timeout=120 cost=10 */
/* Memory of a network: what it takes is what it said it would take, and a step takes none. */
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/helpers.h"

enum { STEPS = 100 };

static const double most_off = 0.05;

static void take_steps(esper_network *network, int n)
{
    for (int i = 0; i < n; i++) {
        if (network->cursor.batch == network->engine->steps_per_epoch)
            esper_network_next_epoch(network);
        check_good(esper_network_step(network));
    }
}

/* A whole life: init, steps, both evaluations. Peak against prediction, and no allocation after init. */
static void check_life(const char *task, const char *settings)
{
    esper_config config = config_of(task, settings, "length = epochs\n");
    esper_network *network;
    esper_mem_stats before, opened, stepped;
    esper_memory memory;
    esper_tally tally;
    double peak, off;

    esper_mem_stats_get(&before);
    esper_mem_reset_peak();
    check_good(esper_single_open(task_named(task), &config, ESPER_USE_TRAIN, &network));
    memory = esper_network_memory(network);
    esper_mem_stats_get(&opened);
    take_steps(network, STEPS);
    check_good(esper_network_evaluate(network, ESPER_SPLIT_VALID, NULL, &tally));
    check_good(esper_network_evaluate(network, ESPER_SPLIT_TEST, NULL, &tally));
    esper_mem_stats_get(&stepped);
    peak = (double)(stepped.peak_bytes - before.live_bytes);
    off = peak / (double)memory.total - 1.0;
    print_message("%-12s predicted %zu (data %zu, slab %zu, activations %zu, tables %zu), peak %.0f: %+.2f %%\n", task,
                  memory.total, memory.data, memory.slab, memory.activations, memory.tables, peak, 100.0 * off);
    if (stepped.n_allocs != opened.n_allocs)
        fail_msg("%s: %d steps and two evaluations made %llu allocations, expected 0", task, STEPS,
                 (unsigned long long)(stepped.n_allocs - opened.n_allocs));
    if (fabs(off) > most_off)
        fail_msg("%s: peak %.0f bytes, predicted %zu: %+.2f %% where 5 %% are allowed", task, peak, memory.total,
                 100.0 * off);
    esper_single_close(network);
    assert_int_equal(live_blocks(), before.n_live);
}

static void cnn_takes_what_it_said(void **state)
{
    (void)state;
    check_life(
        "synth",
        "threads = 1\nbatch = 16\nchannels = 2\nblocks = 2\nmax_steps = 30\ncrop = 2\nflip = true\ncutout = 4\n");
}

static void adamw_takes_what_it_said(void **state)
{
    (void)state;
    check_life("synth", "threads = 3\nbatch = 8\nchannels = 4\nkernel = 1\nmax_steps = 30\noptimizer = adamw\n");
}

/* Activations outweigh the data here. */
static void large_batch_takes_what_it_said(void **state)
{
    (void)state;
    check_life("synth", "threads = 1\nbatch = 128\nchannels = 1\nkernel = 1\nblocks = 2\nmax_steps = 1\npools = 0\n");
}

static void transformer_takes_what_it_said(void **state)
{
    (void)state;
    check_life("synth_text", "threads = 1\nbatch = 4\nwidth = 16\nmax_steps = 30\ndropout = 0.1\n");
}

/* The weights outweigh everything else. */
static void wide_transformer_takes_what_it_said(void **state)
{
    (void)state;
    check_life("synth_text", "threads = 1\nbatch = 1\nwidth = 64\ncontext = 8\nlayers = 4\nmax_steps = 30\n");
}

static void fashion_takes_what_it_said(void **state)
{
    (void)state;
    if (access("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz", R_OK) != 0) {
        print_message("skipped: dataset-fashion-mnist is not installed\n");
        skip();
    }
    check_life("fashion", "batch = 16\nchannels = 2\nblocks = 2\nmax_steps = 30\n");
}

/* An IDX file of zeros: n images of 28 x 28, or n labels. */
static void write_idx(const char *path, int n, int is_images)
{
    unsigned char head[16] = {
        0, 0, 8, is_images ? 3 : 1, 0, 0, (unsigned char)(n >> 8), (unsigned char)n, 0, 0, 0, 28, 0, 0, 0, 28};
    size_t n_bytes = is_images ? (size_t)n * 28 * 28 : (size_t)n;
    char *zeros = calloc(1, n_bytes);
    FILE *file = fopen(path, "wb");

    assert_non_null(zeros);
    assert_non_null(file);
    assert_int_equal(fwrite(head, 1, is_images ? 16 : 8, file), is_images ? 16 : 8);
    assert_int_equal(fwrite(zeros, 1, n_bytes, file), n_bytes);
    fclose(file);
    free(zeros);
}

/* The shapes of fashion where the data is not installed. */
static void idx_takes_what_it_said(void **state)
{
    (void)state;
    check_good(esper_file_make_dirs("idx"));
    write_idx("idx/train-images-idx3-ubyte", 1000, 1);
    write_idx("idx/train-labels-idx1-ubyte", 1000, 0);
    write_idx("idx/t10k-images-idx3-ubyte", 200, 1);
    write_idx("idx/t10k-labels-idx1-ubyte", 200, 0);
    check_life("mnist", "threads = 1\nbatch = 32\nchannels = 2\nmax_steps = 20\ndata = idx\n");
}

static void text_takes_what_it_said(void **state)
{
    FILE *file = fopen("some.txt", "w");

    (void)state;
    assert_non_null(file);
    for (int i = 0; i < 20000; i++)
        fprintf(file, "line %d of a text\n", i);
    fclose(file);
    check_life("chars",
               "threads = 1\nbatch = 2\nlayers = 2\nwidth = 16\ncontext = 16\nmax_steps = 30\ndata = some.txt\n");
}

/* Without a backward pass there are no gradients and no moments, and more is used twice. */
static void inference_takes_less(void **state)
{
    esper_config config = config_of("synth", "threads = 1\nbatch = 16\nmax_steps = 2\nlength = epochs\n", "");
    esper_memory memory[2];

    (void)state;
    for (int training = 0; training < 2; training++) {
        esper_network *network;
        esper_mem_stats before, after;
        esper_tally tally;
        double off;

        esper_mem_stats_get(&before);
        esper_mem_reset_peak();
        check_good(esper_single_open(task_named("synth"), &config, training == 1 ? ESPER_USE_TRAIN : ESPER_USE_EVALUATE,
                                     &network));
        check_good(esper_network_evaluate(network, ESPER_SPLIT_TEST, NULL, &tally));
        memory[training] = esper_network_memory(network);
        esper_mem_stats_get(&after);
        off = (double)(after.peak_bytes - before.live_bytes) / (double)memory[training].total - 1.0;
        if (fabs(off) > most_off)
            fail_msg("training %d: peak is %+.2f %% off the prediction", training, 100.0 * off);
        esper_single_close(network);
    }
    if (memory[0].slab >= memory[1].slab || memory[0].activations >= memory[1].activations)
        fail_msg("inference takes slab %zu, activations %zu; training %zu, %zu", memory[0].slab, memory[0].activations,
                 memory[1].slab, memory[1].activations);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cnn_takes_what_it_said),
        cmocka_unit_test(adamw_takes_what_it_said),
        cmocka_unit_test(large_batch_takes_what_it_said),
        cmocka_unit_test(transformer_takes_what_it_said),
        cmocka_unit_test(wide_transformer_takes_what_it_said),
        cmocka_unit_test(fashion_takes_what_it_said),
        cmocka_unit_test(idx_takes_what_it_said),
        cmocka_unit_test(text_takes_what_it_said),
        cmocka_unit_test(inference_takes_less),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
