/* ctest: timeout=60 */
/* A disk that is full, acted by a limit on the size of files: the run comes to its end and says what is not saved, and what was saved
 * before is still good to go on from. */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/helpers.h"

static rlim_t limit_now(void)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    return limit.rlim_cur;
}

static void set_limit(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static size_t size_of(const char *path)
{
    char *data;
    size_t bytes;

    check_good(esper_file_read(path, 1 << 24, &data, &bytes));
    esper_mem_free(data);
    return bytes;
}

static void check_no_draft(const char *dir_path)
{
    DIR *dir = opendir(dir_path);
    const struct dirent *entry;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        if (strstr(entry->d_name, ".tmp") != NULL)
            fail_msg("%s/%s was left behind", dir_path, entry->d_name);
    closedir(dir);
}

/* The limit falls at every kind of place: the length, the header, the tensors, the last byte. */
static void save_leaves_the_old_one(void **state)
{
    esper_config config = config_of("synth", SMALL_CNN, "");
    esper_network *network;
    char *before, *after;
    size_t n_before, n_after;
    rlim_t full;

    (void)state;
    check_good(esper_file_make_dirs("saves"));
    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_TRAIN, &network));
    check_good(esper_network_step(network));
    check_good(esper_checkpoint_save(network, "saves/x.safetensors"));
    check_good(esper_file_read("saves/x.safetensors", 1 << 24, &before, &n_before));
    check_good(esper_network_step(network));
    full = limit_now();
    for (size_t i = 0; i <= 8; i++) {
        size_t room = i < 8 ? n_before * i / 8 + (i == 0 ? 4 : 0) : n_before - 1;
        esper_status status;

        set_limit(room);
        status = esper_checkpoint_save(network, "saves/x.safetensors");
        set_limit(full);
        check_fails(status, ESPER_E_IO, "saves/x.safetensors|cannot be written");
        check_good(esper_file_read("saves/x.safetensors", 1 << 24, &after, &n_after));
        assert_int_equal(n_after, n_before);
        assert_memory_equal(before, after, n_before);
        esper_mem_free(after);
        check_no_draft("saves");
    }
    esper_mem_free(before);
    esper_single_close(network);
}

/* Lowers the limit below a checkpoint's size once an epoch was saved. */
typedef struct filler {
    int    epochs_left;
    rlim_t room;
} filler;

static void fill_disk(void *context, const esper_run_view *view, const esper_epoch_record *record)
{
    filler *self = context;

    (void)view;
    (void)record;
    if (--self->epochs_left == 0)
        set_limit(self->room);
}

static void run_can_go_on_afterwards(void **state)
{
    esper_config config = config_of("synth", SMALL_CNN, "epochs = 4\nrun_dir = whole\n"), nothing;
    esper_run_result whole, result;
    filler filling = {.epochs_left = 2};
    esper_run_observer observer = {.context = &filling, .epoch = fill_disk};
    esper_run_desc desc = {.task = task_named("synth"), .config = &config, .observer = &observer};
    uint64_t live = live_blocks();
    esper_checkpoint checkpoint;
    char path[ESPER_PATH_CHARS];
    esper_status status;
    rlim_t full = limit_now();

    (void)state;
    check_good(run_steps("synth", &config, NULL, -1, &whole));
    filling.room = size_of(checkpoint_of("whole", path)) - 100; /* events still fit, a checkpoint does not */
    set_keys(&config, "run_dir = full\n");
    status = esper_run_train(&desc, &result);
    set_limit(full);
    check_good(status);
    assert_non_null(strstr(result.unwritten, "full/" ESPER_RUN_CHECKPOINT ": cannot be written"));
    assert_non_null(strstr(result.unwritten, "--resume full goes on from epoch 1"));
    assert_int_equal(result.weight_hash, whole.weight_hash);
    assert_int_equal(live_blocks(), live);
    check_no_draft("full");
    check_good(esper_checkpoint_init(checkpoint_of("full", path), &checkpoint));
    assert_non_null(strstr(esper_safetensors_note_find(checkpoint.file, "cursor"), "epoch 1 batch 0 step 5 "));
    esper_checkpoint_fini(&checkpoint);
    esper_config_init(&nothing);
    check_good(run_steps(NULL, &nothing, "full", -1, &result));
    if (result.weight_hash != whole.weight_hash)
        fail_msg("weights %016" PRIx64 ", unbroken %016" PRIx64, result.weight_hash, whole.weight_hash);
}

/* Room for checkpoints but not for the events: the run trains to its end, is saved, and says what was lost. */
static void lost_events_are_told(void **state)
{
    esper_config config = config_of("synth", SMALL_CNN, "run_dir = silent\nepochs = 1\n");
    esper_checkpoint checkpoint;
    esper_run_result result;
    char path[ESPER_PATH_CHARS], padding[8192];
    rlim_t full = limit_now();
    esper_status status;
    FILE *file;

    (void)state;
    check_good(run_steps("synth", &config, NULL, 2, &result));
    memset(padding, ' ', sizeof(padding)); /* lines, as any other would be cut off */
    padding[0] = '{';
    memcpy(padding + sizeof(padding) - 2, "}\n", 2);
    file = fopen("silent/" ESPER_RUN_EVENTS, "a");
    assert_non_null(file);
    while (ftell(file) < (1 << 20))
        fwrite(padding, 1, sizeof(padding), file);
    fputs("{}\n", file);
    fclose(file);
    set_limit(1 << 20);
    esper_config_init(&config);
    status = run_steps(NULL, &config, "silent", -1, &result);
    set_limit(full);
    check_good(status);
    assert_non_null(strstr(result.unwritten, "silent/" ESPER_RUN_EVENTS ": "));
    assert_non_null(strstr(result.unwritten, " events lost"));
    check_good(esper_checkpoint_init(checkpoint_of("silent", path), &checkpoint));
    assert_non_null(strstr(esper_safetensors_note_find(checkpoint.file, "cursor"), "epoch 1 batch 0 step 5 "));
    esper_checkpoint_fini(&checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(save_leaves_the_old_one),
        cmocka_unit_test(run_can_go_on_afterwards),
        cmocka_unit_test(lost_events_are_told),
    };

    signal(SIGXFSZ, SIG_IGN); /* so that the write fails, as on a full disk, instead of ending the process */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
