/* Exporting to disk: what a failure leaves behind, and that the weights are the network's. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "run/export.h"
#include "run/export_program.h"
#include "engine/helpers.h"

#define TINY "threads = 1\nbatch = 4\nchannels = 1\nblocks = 2\nkernel = 1\nmax_steps = 3\n"

static bool exists(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0;
}

static esper_export export_of(const esper_network *network)
{
    return (esper_export){.torch = {.net = &network->net, .class_name = "Net"}, .slab = &network->slab, .n_batches = 7};
}

static esper_network *open_network(void)
{
    esper_network *network;
    esper_config config = config_of("synth", TINY, "");

    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_EVALUATE, &network));
    return network;
}

static void weights_are_the_slabs(void **state)
{
    esper_network *network = open_network();
    esper_export what;
    esper_safetensors *file;
    const esper_safetensors_tensor *found;
    int64_t n_batches;

    (void)state;
    what = export_of(network);
    check_good(esper_export_weights(&what, "w.safetensors"));
    check_good(esper_safetensors_open("w.safetensors", &file));
    for (int t = 0; t < network->net.n_tensors; t++) {
        const esper_tensor *tensor = &network->net.tensors[t];
        bool param = tensor->role == ESPER_ROLE_PARAM;

        if (!param && tensor->role != ESPER_ROLE_BUFFER)
            continue;
        found = esper_safetensors_find(file, tensor->name);
        assert_non_null(found);
        assert_int_equal(found->n_bytes, (uint64_t)tensor->count * sizeof(float));
        assert_memory_equal(found->data,
                            esper_slab_at(&network->slab, param ? ESPER_FAMILY_PARAM : ESPER_FAMILY_BUFFER, tensor),
                            found->n_bytes);
    }
    found = esper_safetensors_find(file, "blocks.0.bn.num_batches_tracked");
    assert_non_null(found);
    assert_int_equal(found->rank, 0);
    memcpy(&n_batches, found->data, sizeof(n_batches));
    assert_int_equal(n_batches, 7);
    esper_safetensors_close(file);
    esper_single_close(network);
}

static void nothing_is_left_without_memory(void **state)
{
    uint64_t nth = 1, live;
    esper_network *network = open_network();
    esper_status status;
    esper_export what;

    (void)state;
    what = export_of(network);
    live = live_blocks();
    do {
        esper_mem_fail_at(nth++);
        status = esper_export_torch(&what, "new");
        esper_mem_fail_at(0);
        if (live_blocks() != live)
            fail_msg("allocation %llu: %llu blocks live, expected %llu", (unsigned long long)nth - 1,
                     (unsigned long long)live_blocks(), (unsigned long long)live);
        if (status != ESPER_OK) {
            assert_int_equal(status, ESPER_E_NOMEM);
            assert_false(exists("new"));
        }
    } while (status != ESPER_OK);
    assert_true(nth > 10);
    assert_true(exists("new/model.py") && exists("new/model.safetensors"));
    esper_single_close(network);
}

static void replacing_is_asked_for(void **state)
{
    esper_network *network = open_network();
    esper_export what;

    (void)state;
    what = export_of(network);
    check_good(esper_export_torch(&what, "pair"));
    check_fails(esper_export_torch(&what, "pair"), ESPER_E_CONFIG, "pair/model.py|--force");
    what.force = true;
    check_good(esper_export_torch(&what, "pair"));
    assert_int_equal(unlink("pair/model.py"), 0);
    assert_int_equal(mkdir("pair/model.py", 0777), 0);
    check_fails(esper_export_torch(&what, "pair"), ESPER_E_CONFIG, "pair/model.py|directory");
    assert_true(exists("pair/model.safetensors"));
    esper_single_close(network);
}

static bool module_cannot_move;

/* The system's, but for a module that is to be put in its place while that flag is up. */
int rename(const char *from, const char *to)
{
    const char *name = strrchr(to, '/');

    if (module_cannot_move && name != NULL && strcmp(name, "/" ESPER_EXPORT_MODEL) == 0) {
        errno = EIO;
        return -1;
    }
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

static int count_files(const char *dir)
{
    DIR *handle = opendir(dir);
    int n = 0;

    assert_non_null(handle);
    for (struct dirent *entry = readdir(handle); entry != NULL; entry = readdir(handle))
        n += entry->d_name[0] != '.';
    closedir(handle);
    return n;
}

/* Module and weights are replaced together or not at all. */
static void a_pair_stays_a_pair(void **state)
{
    esper_network *network = open_network();
    size_t n_before, n_after;
    char *before, *after;
    esper_export what;

    (void)state;
    what = export_of(network);
    module_cannot_move = true;
    check_fails(esper_export_torch(&what, "none"), ESPER_E_IO, "none.|/model.py");
    assert_false(exists("none"));
    module_cannot_move = false;
    check_good(esper_export_torch(&what, "both"));
    check_good(esper_file_read("both/model.safetensors", 1 << 24, &before, &n_before));
    what.n_batches += 7; /* other weights */
    what.force = true;
    module_cannot_move = true;
    check_fails(esper_export_torch(&what, "both"), ESPER_E_IO, "both/model.py");
    module_cannot_move = false;
    check_good(esper_file_read("both/model.safetensors", 1 << 24, &after, &n_after));
    assert_int_equal(n_after, n_before);
    assert_memory_equal(after, before, n_before);
    assert_int_equal(count_files("both"), 2);
    esper_mem_free(after);
    check_good(esper_export_torch(&what, "both"));
    check_good(esper_file_read("both/model.safetensors", 1 << 24, &after, &n_after));
    assert_true(n_after != n_before || memcmp(after, before, n_before) != 0);
    assert_int_equal(count_files("both"), 2);
    esper_mem_free(after);
    esper_mem_free(before);
    esper_single_close(network);
}

/* All weights are finite, and what is folded out of them is not. */
static void variances_below_zero_are_refused(void **state)
{
    static const char words[] = "once norms are folded into it|not exported";
    esper_network *network = open_network();
    esper_export_program what = {.network = network, .about = "odd", .name = "model"};
    esper_export_size size;

    (void)state;
    for (int t = 0; t < network->net.n_tensors; t++)
        if (strstr(network->net.tensors[t].name, "running_var") != NULL)
            ((float *)esper_slab_at(&network->slab, ESPER_FAMILY_BUFFER, &network->net.tensors[t]))[0] = -4.0f;
    check_fails(esper_export_onnx(&what, "odd.onnx"), ESPER_E_FORMAT, words);
    check_fails(esper_export_c(&what, "odd", &size), ESPER_E_FORMAT, words);
    what.int8 = true;
    check_fails(esper_export_c(&what, "odd", &size), ESPER_E_FORMAT, words);
    assert_false(exists("odd.onnx"));
    assert_false(exists("odd"));
    esper_single_close(network);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_the_slabs),
        cmocka_unit_test(nothing_is_left_without_memory),
        cmocka_unit_test(replacing_is_asked_for),
        cmocka_unit_test(a_pair_stays_a_pair),
        cmocka_unit_test(variances_below_zero_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
