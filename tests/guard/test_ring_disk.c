/* ctest: labels=tsan */
/* The ring's copy on disk: it is there when all memory fails, and nothing that happens to it disturbs the memory. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring_helpers.h"

#define DIRECTORY "ring-disk"
#define SNAPSHOT DIRECTORY "/snapshot.ring"

enum { MAX_FILE = 1 << 20 };

static int clean_up(void **state)
{
    DIR *list = opendir(DIRECTORY);
    struct dirent *item;

    while (list != NULL && (item = readdir(list)) != NULL)
        if (item->d_name[0] != '.')
            unlinkat(dirfd(list), item->d_name, 0);
    if (list != NULL)
        closedir(list);
    rmdir(DIRECTORY);
    return nothing_left(state);
}

static int n_files(void)
{
    DIR *list = opendir(DIRECTORY);
    struct dirent *item;
    int n = 0;

    assert_non_null(list);
    while ((item = readdir(list)) != NULL)
        n += item->d_name[0] != '.';
    closedir(list);
    return n;
}

static esper_ring *open_ring_in(esper_guard *guard, uint32_t resume)
{
    esper_ring_options options;
    esper_ring *ring;

    esper_ring_options_init(&options);
    options.directory = DIRECTORY;
    options.resume = resume;
    check_good(esper_ring_open(guard, &options, &ring));
    return ring;
}

/* One that goes on where an earlier one ended. */
static esper_ring *open_disk_ring(esper_guard *guard)
{
    return open_ring_in(guard, 1);
}

static void disk_scene_open(host_scene *s, void (*init)(model *m), int n_threads)
{
    host_scene_open(s, init, n_threads, 0);
    s->ring = open_disk_ring(s->guard);
}

static size_t read_file(unsigned char *data)
{
    int fd = open(SNAPSHOT, O_RDONLY);
    ssize_t n;

    assert_true(fd >= 0);
    n = read(fd, data, MAX_FILE);
    assert_in_range(n, 1, MAX_FILE - 1);
    close(fd);
    return (size_t)n;
}

static void write_file(const unsigned char *data, size_t bytes)
{
    int fd = open(SNAPSHOT, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
}

/* A ring that takes one snapshot of the model and is closed: its file stays. */
static void leave_file(esper_guard *guard, uint64_t step, const void *blob, size_t blob_bytes)
{
    esper_ring *ring = open_disk_ring(guard);

    check_good(esper_ring_take(ring, step, blob, blob_bytes));
    esper_ring_close(ring);
}

static void the_next_process_finds_it(void **state)
{
    static const char blob[] = "cursor 77";
    esper_ring_restored restored;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_all, 2, 0);
    s.taken = model_copy(&s.m);
    leave_file(s.guard, 77, blob, sizeof(blob));
    model_fill(&s.m, 3);
    s.ring = open_disk_ring(s.guard);
    assert_int_equal(ring_status(s.ring).newest, ESPER_RING_EMPTY);
    assert_int_equal(ring_status(s.ring).disk_step, 77);
    assert_int_equal(ring_status(s.ring).disk_left_over, 1);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    model_check(&s.m, s.taken);
    assert_int_equal(restored.step, 77);
    assert_int_equal(restored.from_host, 2);
    assert_int_equal(restored.blob_bytes, sizeof(blob));
    assert_string_equal(restored.blob, blob);
    assert_int_equal(ring_status(s.ring).n_good, 1); /* and it is an entry from now on */
    model_fill(&s.m, 4);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    model_check(&s.m, s.taken);
    assert_int_equal(restored.from_host, 1);
    host_scene_close(&s);
}

/* Another run's state is not restored because it lies in the same directory: it is told of, until ours takes its place. */
static void what_is_left_is_not_used_unasked(void **state)
{
    esper_ring_restored restored;
    esper_ring_status status;
    unsigned char *before, *taken;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_all, 1, 0);
    leave_file(s.guard, 77, NULL, 0);
    model_fill(&s.m, 3);
    before = model_copy(&s.m);
    s.ring = open_ring_in(s.guard, 0);
    check_status(esper_ring_rollback(s.ring, 1, NULL), ESPER_E_STATE);
    check_error_says("none was taken; an older one of step 77 lies in " SNAPSHOT);
    check_error_says("resume = 1");
    model_check(&s.m, before);
    free(before);
    status = ring_status(s.ring);
    assert_int_equal(status.disk_step, 77);
    assert_int_equal(status.disk_left_over, 1);
    assert_null(status.disk_error);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    taken = model_copy(&s.m);
    check_good(esper_ring_status_get(s.ring, 2, &status));
    assert_int_equal(status.disk_step, 1);
    assert_int_equal(status.disk_left_over, 0);
    damage(s.ring, 0, 1000); /* its own file is used */
    model_fill(&s.m, 4);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 1);
    assert_int_equal(restored.from_host, 2);
    model_check(&s.m, taken);
    free(taken);
    host_scene_close(&s);
}

/* All in memory is damaged and what is on disk is another's: the words for that. */
static void what_is_left_is_no_last_resort(void **state)
{
    struct rlimit before, limit;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_all, 1, 0);
    leave_file(s.guard, 77, NULL, 0);
    s.ring = open_ring_in(s.guard, 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 100000; /* ours cannot be written */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    esper_ring_disk_wait(s.ring);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(ring_status(s.ring).disk_step, 77);
    damage(s.ring, 0, 1000);
    check_status(esper_ring_rollback(s.ring, 1, NULL), ESPER_E_DEVICE);
    check_error_says("an older one of step 77");
    host_scene_close(&s);
}

/* A file that does not fit: told of at once, no reason not to begin, and gone with the first snapshot. */
static void what_is_left_does_not_fit(void **state)
{
    esper_ring_status status;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 0);
    leave_file(s.guard, 5, NULL, 0);
    write_file((const unsigned char *)"no snapshot at all", 18);
    s.ring = open_ring_in(s.guard, 0);
    status = ring_status(s.ring);
    assert_int_equal(status.disk_step, ESPER_GUARD_NONE);
    assert_int_equal(status.disk_left_over, 0);
    assert_non_null(status.disk_error);
    check_status(esper_ring_rollback(s.ring, 1, NULL), ESPER_E_STATE);
    check_good(esper_ring_take(s.ring, 6, NULL, 0));
    check_good(esper_ring_status_get(s.ring, 2, &status));
    assert_int_equal(status.disk_step, 6);
    assert_null(status.disk_error);
    host_scene_close(&s);
}

/* With wait 2 the newest good one is on disk, also when the writer was busy with the one before. */
static void waiting_for_the_disk(void **state)
{
    esper_ring_status status;
    host_scene s;

    (void)state;
    host_scene_open(&s, model_init_all, 1, 0);
    s.ring = open_ring_in(s.guard, 0);
    check_good(esper_ring_status_get(s.ring, 2, &status)); /* nothing to wait for */
    assert_int_equal(status.disk_step, ESPER_GUARD_NONE);
    for (uint64_t step = 1; step <= 20; step += 2) {
        check_good(esper_ring_take(s.ring, step, NULL, 0));
        check_good(esper_ring_take(s.ring, step + 1, NULL, 0));
        check_good(esper_ring_status_get(s.ring, 2, &status));
        assert_int_equal(status.disk_step, step + 1);
    }
    host_scene_close(&s);
}

static void it_is_used_when_all_memory_is_damaged(void **state)
{
    esper_ring_restored restored;
    host_scene s;

    (void)state;
    disk_scene_open(&s, model_init_all, 1);
    for (uint64_t step = 1; step <= 2; step++) {
        model_fill(&s.m, step);
        check_good(esper_ring_take(s.ring, step, &step, sizeof(step)));
        esper_ring_disk_wait(s.ring);
        assert_int_equal(ring_status(s.ring).disk_step, step);
        assert_null(ring_status(s.ring).disk_error);
    }
    s.taken = model_copy(&s.m);
    damage(s.ring, 0, 1000);
    damage(s.ring, 1, 1000);
    model_fill(&s.m, 9);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    model_check(&s.m, s.taken);
    assert_int_equal(restored.step, 2);
    assert_int_equal(*(const uint64_t *)restored.blob, 2);
    assert_int_equal(restored.from_host, 2);
    assert_int_equal(restored.n_passed_over, 2);
    host_scene_close(&s);
}

/* Killed between writing and renaming: the drafts of the dead are not read, and removed. */
static void drafts_of_the_dead(void **state)
{
    unsigned char *data = malloc(MAX_FILE), *taken;
    esper_ring_restored restored;
    size_t bytes;
    FILE *draft;
    host_scene s;

    (void)state;
    assert_non_null(data);
    host_scene_open(&s, model_init_all, 1, 0);
    taken = model_copy(&s.m);
    leave_file(s.guard, 5, NULL, 0);
    bytes = read_file(data);
    for (int i = 0; i < 2; i++) { /* half of one, and a whole one that was never renamed */
        draft = fopen(i == 0 ? SNAPSHOT ".999999-0.tmp" : SNAPSHOT ".999999-1.tmp", "wb");
        assert_non_null(draft);
        assert_int_equal(fwrite(data, 1, i == 0 ? bytes / 2 : bytes, draft), i == 0 ? bytes / 2 : bytes);
        fclose(draft);
    }
    assert_int_equal(n_files(), 4); /* with the lock */
    s.ring = open_disk_ring(s.guard);
    assert_int_equal(n_files(), 2);
    model_fill(&s.m, 6);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 5);
    model_check(&s.m, taken);
    free(taken);
    free(data);
    host_scene_close(&s);
}

/* A rollback from the file as it stands fails, says why, and leaves the tensors alone. */
static void check_refused(esper_guard *guard, model *m, const char *words)
{
    esper_ring *ring = open_disk_ring(guard);
    unsigned char *before = model_copy(m);

    check_status(esper_ring_rollback(ring, 1, NULL), ESPER_E_FORMAT);
    check_error_says("no snapshot in memory is good; that on disk: " SNAPSHOT);
    check_error_says(words);
    model_check(m, before);
    free(before);
    esper_ring_close(ring);
}

static void a_truncated_file(void **state)
{
    unsigned char *data = malloc(MAX_FILE);
    size_t bytes;
    host_scene s;

    (void)state;
    assert_non_null(data);
    host_scene_open(&s, model_init_small, 1, 0);
    leave_file(s.guard, 5, "blob", 5);
    bytes = read_file(data);
    for (size_t cut = 0; cut < bytes; cut += cut < 200 ? 7 : 97) {
        write_file(data, cut);
        check_refused(s.guard, &s.m, "truncated");
    }
    write_file(data, bytes);
    data[bytes] = 0;
    write_file(data, bytes + 1);
    check_refused(s.guard, &s.m, "bytes");
    free(data);
    host_scene_close(&s);
}

/* Any byte of it. */
static void a_damaged_file(void **state)
{
    unsigned char *data = malloc(MAX_FILE);
    uint64_t random = 8;
    size_t bytes;
    host_scene s;

    (void)state;
    assert_non_null(data);
    host_scene_open(&s, model_init_small, 1, 0);
    leave_file(s.guard, 5, "blob", 5);
    bytes = read_file(data);
    for (size_t at = 0; at < bytes; at += at < 200 ? 1 : 61) {
        unsigned char flip = (unsigned char)(1u << next_random(&random) % 8);

        data[at] ^= flip;
        write_file(data, bytes);
        check_refused(s.guard, &s.m, at < 8 ? "is no snapshot" : "");
        data[at] ^= flip;
    }
    data[8] = 2;
    write_file(data, bytes);
    check_refused(s.guard, &s.m, "is of version 2, this library reads version 1");
    free(data);
    host_scene_close(&s);
}

static void of_other_tensors(void **state)
{
    host_scene s;
    model other;

    (void)state;
    host_scene_open(&s, model_init_small, 1, 0);
    leave_file(s.guard, 5, NULL, 0);
    esper_guard_close(s.guard);
    model_init_small(&other);
    other.tensors[3].dtype = ESPER_GUARD_F16; /* as long as before */
    s.guard = model_guard(&other, 1);
    check_refused(s.guard, &other, "holds other tensors");
    esper_guard_close(s.guard);
    model_fini(&other);
    model_fini(&s.m);
}

/* The disk is full: said in the status, the older file stays, the entries in memory are as good as ever. */
static void a_full_disk(void **state)
{
    struct rlimit before, limit;
    esper_ring_restored restored;
    esper_ring_status status;
    host_scene s;

    (void)state;
    disk_scene_open(&s, model_init_all, 1);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    esper_ring_disk_wait(s.ring);
    assert_int_equal(ring_status(s.ring).disk_step, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 100000; /* the file is larger; the writer must survive the signal that comes with it */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    model_fill(&s.m, 2);
    s.taken = model_copy(&s.m);
    check_good(esper_ring_take(s.ring, 2, NULL, 0));
    esper_ring_disk_wait(s.ring);
    status = ring_status(s.ring);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status.disk_step, 1);
    assert_non_null(status.disk_error);
    assert_non_null(strstr(status.disk_error, SNAPSHOT ": cannot be written: "));
    assert_int_equal(status.n_good, 2);
    assert_int_equal(n_files(), 2); /* no draft is left */
    model_fill(&s.m, 3);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 2);
    model_check(&s.m, s.taken);
    check_good(esper_ring_take(s.ring, 3, NULL, 0)); /* there is room again */
    esper_ring_disk_wait(s.ring);
    assert_int_equal(ring_status(s.ring).disk_step, 3);
    assert_null(ring_status(s.ring).disk_error);
    host_scene_close(&s);
}

/* An entry that was damaged after it was found good does not take the place of a good file. */
static void a_damaged_entry_is_not_written(void **state)
{
    esper_ring_restored restored;
    esper_ring_status status;
    host_scene s;

    (void)state;
    disk_scene_open(&s, model_init_small, 1);
    check_good(esper_ring_take(s.ring, 1, NULL, 0));
    esper_ring_disk_wait(s.ring);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    /* Offer an entry of which a bit has changed since, as if the writer had been busy until now. */
    s.ring->entries[0].sequence = ++s.ring->sequence;
    s.ring->entries[0].step = 2;
    damage(s.ring, 0, 9);
    status = ring_status(s.ring);
    esper_ring_disk_wait(s.ring);
    status = ring_status(s.ring);
    assert_int_equal(status.disk_step, 1);
    assert_non_null(status.disk_error);
    assert_non_null(strstr(status.disk_error, "the snapshot of step 2 is damaged"));
    host_scene_close(&s);
}

static void a_directory_that_cannot_be(void **state)
{
    esper_ring_options options;
    esper_ring *second = NULL;
    FILE *file;
    host_scene s;

    (void)state;
    disk_scene_open(&s, model_init_small, 1);
    esper_ring_options_init(&options);
    options.directory = DIRECTORY;
    check_status(esper_ring_open(s.guard, &options, &second), ESPER_E_STATE);
    check_error_says("another ring keeps its snapshots here");
    assert_null(second);
    file = fopen(DIRECTORY "/file", "w");
    assert_non_null(file);
    fclose(file);
    options.directory = DIRECTORY "/file/below";
    check_status(esper_ring_open(s.guard, &options, &second), ESPER_E_IO);
    check_error_says(DIRECTORY "/file");
    assert_null(second);
    options.directory = "";
    check_status(esper_ring_open(s.guard, &options, &second), ESPER_E_ARG);
    check_error_says("the directory is \"\"");
    options.directory = NULL;
    options.resume = 1;
    check_status(esper_ring_open(s.guard, &options, &second), ESPER_E_ARG);
    check_error_says("resume without a directory");
    assert_null(second);
    host_scene_close(&s);
}

/* Many takes while the writer writes: entries are overwritten under it, and the file is always a whole one. */
static void takes_go_on_while_it_writes(void **state)
{
    esper_ring_restored restored;
    host_scene s;

    (void)state;
    disk_scene_open(&s, model_init_all, 2);
    for (uint64_t step = 1; step <= 60; step++) {
        model_fill(&s.m, step);
        check_good(esper_ring_take(s.ring, step, &step, sizeof(step)));
        if (ring_status(s.ring).disk_error != NULL)
            fail_msg("step %llu: %s", (unsigned long long)step, ring_status(s.ring).disk_error);
    }
    s.taken = model_copy(&s.m);
    esper_ring_close(s.ring); /* the newest one is written at last */
    model_fill(&s.m, 1000);
    s.ring = open_disk_ring(s.guard);
    check_good(esper_ring_rollback(s.ring, 1, &restored));
    assert_int_equal(restored.step, 60);
    assert_int_equal(*(const uint64_t *)restored.blob, 60);
    model_check(&s.m, s.taken);
    host_scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_next_process_finds_it, clean_up),
        cmocka_unit_test_teardown(what_is_left_is_not_used_unasked, clean_up),
        cmocka_unit_test_teardown(what_is_left_is_no_last_resort, clean_up),
        cmocka_unit_test_teardown(what_is_left_does_not_fit, clean_up),
        cmocka_unit_test_teardown(waiting_for_the_disk, clean_up),
        cmocka_unit_test_teardown(it_is_used_when_all_memory_is_damaged, clean_up),
        cmocka_unit_test_teardown(drafts_of_the_dead, clean_up),
        cmocka_unit_test_teardown(a_truncated_file, clean_up),
        cmocka_unit_test_teardown(a_damaged_file, clean_up),
        cmocka_unit_test_teardown(of_other_tensors, clean_up),
        cmocka_unit_test_teardown(a_full_disk, clean_up),
        cmocka_unit_test_teardown(a_damaged_entry_is_not_written, clean_up),
        cmocka_unit_test_teardown(a_directory_that_cannot_be, clean_up),
        cmocka_unit_test_teardown(takes_go_on_while_it_writes, clean_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
