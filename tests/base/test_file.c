/* Whole files: limits, odd inputs, and that a file is replaced whole or not at all. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/mem.h"

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static void check_failed(esper_status status, esper_status expected, const char *part)
{
    if (status != expected || strstr(esper_last_error(), part) == NULL)
        fail_msg("%s (%s) instead of %s with \"%s\"", esper_status_name(status), esper_last_error(),
                 esper_status_name(expected), part);
}

static void check_contents(const char *path, const char *expected)
{
    char *data;
    size_t bytes;

    check_good(esper_file_read(path, 1 << 20, &data, &bytes));
    assert_int_equal(bytes, strlen(expected));
    assert_string_equal(data, expected);
    esper_mem_free(data);
}

/* Files of the directory whose name has `part` in it. */
static int count_files(const char *directory, const char *part)
{
    DIR *dir = opendir(directory);
    int n = 0;

    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        n += strstr(entry->d_name, part) != NULL;
    closedir(dir);
    return n;
}

static void contents_come_back(void **state)
{
    static char data[200000];
    char *read_data;
    size_t bytes;

    (void)state;
    for (size_t n = 0; n <= sizeof(data); n = n * 7 + 1) {
        memset(data, (int)(n & 0xFF), sizeof(data));
        check_good(esper_file_write("some", data, n));
        check_good(esper_file_read("some", sizeof(data), &read_data, &bytes));
        assert_int_equal(bytes, n);
        assert_memory_equal(read_data, data, n);
        assert_int_equal(read_data[n], 0);
        esper_mem_free(read_data);
    }
}

static void reading_keeps_the_limit(void **state)
{
    char *data = NULL;
    size_t bytes = 77;

    (void)state;
    check_good(esper_file_write("ten", "0123456789", 10));
    check_good(esper_file_read("ten", 10, &data, &bytes));
    esper_mem_free(data);
    data = NULL;
    bytes = 77;
    check_failed(esper_file_read("ten", 9, &data, &bytes), ESPER_E_IO, "ten: 10 bytes, more than the 9 allowed here");
    check_failed(esper_file_read("/dev/zero", 100000, &data, &bytes), ESPER_E_IO, "more than the 100000 bytes");
    assert_null(data);
    assert_int_equal(bytes, 77);
}

/* Files that do not know their size: /proc says 0. */
static void files_without_a_size_are_read_to_their_end(void **state)
{
    char *data;
    size_t bytes;

    (void)state;
    check_good(esper_file_read("/dev/null", 100, &data, &bytes));
    assert_int_equal(bytes, 0);
    esper_mem_free(data);
    check_good(esper_file_read("/proc/self/status", 1 << 20, &data, &bytes));
    assert_true(bytes > 100);
    assert_int_equal(bytes, strlen(data));
    esper_mem_free(data);
}

static void missing_and_odd_paths_are_told(void **state)
{
    char *data;
    size_t bytes;

    (void)state;
    check_failed(esper_file_read("absent", 10, &data, &bytes), ESPER_E_NOTFOUND, "absent: cannot be opened: No such");
    check_failed(esper_file_read("", 10, &data, &bytes), ESPER_E_NOTFOUND, "No such file");
    check_failed(esper_file_read(".", 10000, &data, &bytes), ESPER_E_IO, "Is a directory");
    check_failed(esper_file_write("absent/file", "x", 1), ESPER_E_NOTFOUND, "absent/file");
    check_failed(esper_file_write("", "x", 1), ESPER_E_NOTFOUND, "No such file");
    check_good(esper_file_make_dirs("a_directory"));
    check_failed(esper_file_write("a_directory", "x", 1), ESPER_E_IO, "a_directory: cannot be put in place");
    assert_int_equal(count_files(".", ".tmp"), 0);
}

/* Root may read every directory, so root becomes nobody for a while. */
static void an_unreadable_directory_is_told(void **state)
{
    static const uid_t nobody = 65534;
    uid_t self = geteuid();
    char *data;
    size_t bytes;

    (void)state;
    check_good(esper_file_make_dirs("locked"));
    check_good(esper_file_write("locked/file", "x", 1));
    if (self == 0 && (chown("locked", nobody, (gid_t)-1) != 0 || seteuid(nobody) != 0)) {
        print_message("skipped: root cannot become anybody else here\n");
        skip();
    }
    assert_int_equal(chmod("locked", 0), 0);
    check_failed(esper_file_read("locked/file", 10, &data, &bytes), ESPER_E_IO, "Permission denied");
    check_failed(esper_file_write("locked/file", "y", 1), ESPER_E_IO, "Permission denied");
    check_failed(esper_file_make_dirs("locked/inner"), ESPER_E_IO, "Permission denied");
    assert_int_equal(chmod("locked", 0300), 0); /* may be written but not listed: the sync of its names is let go */
    check_good(esper_file_write("locked/file", "y", 1));
    check_contents("locked/file", "y");
    assert_int_equal(chmod("locked", 0700), 0);
    assert_int_equal(seteuid(self), 0);
}

static void directories_are_made_on_the_way(void **state)
{
    struct stat info;

    (void)state;
    check_good(esper_file_make_dirs("one/two//three/"));
    assert_int_equal(stat("one/two/three", &info), 0);
    assert_true(S_ISDIR(info.st_mode));
    check_good(esper_file_make_dirs("one/two/three"));
    check_good(esper_file_make_dirs("/"));
    check_good(esper_file_make_dirs("."));
    check_good(esper_file_write("plain", "x", 1));
    check_failed(esper_file_make_dirs("plain"), ESPER_E_IO, "plain: directory cannot be made: File exists");
    check_failed(esper_file_make_dirs("plain/below/it"), ESPER_E_IO, "plain: directory cannot be made");
    check_failed(esper_file_make_dirs(""), ESPER_E_NOTFOUND, "No such file");
}

/* ---- drafts ---- */

static void nothing_shows_before_the_commit(void **state)
{
    esper_draft *draft;

    (void)state;
    check_good(esper_file_write("target", "old", 3));
    check_good(esper_draft_open("target", &draft));
    check_good(esper_draft_write(draft, "ne", 2));
    check_contents("target", "old");
    check_good(esper_draft_write(draft, NULL, 0));
    check_good(esper_draft_write(draft, "w", 1));
    check_good(esper_draft_commit(draft));
    check_contents("target", "new");
    check_failed(esper_draft_commit(draft), ESPER_E_STATE, "target: committed already");
    esper_draft_close(draft);
    check_contents("target", "new");
    assert_int_equal(count_files(".", ".tmp"), 0);
    esper_draft_close(NULL);
}

static void an_abandoned_draft_leaves_nothing(void **state)
{
    esper_draft *draft;

    (void)state;
    check_good(esper_file_write("target", "old", 3));
    check_good(esper_draft_open("target", &draft));
    check_good(esper_draft_write(draft, "new", 3));
    assert_int_equal(count_files(".", ".tmp"), 1);
    esper_draft_close(draft);
    check_contents("target", "old");
    assert_int_equal(count_files(".", ".tmp"), 0);
}

static void two_drafts_of_one_file_do_not_meet(void **state)
{
    esper_draft *a, *b;

    (void)state;
    check_good(esper_draft_open("shared", &a));
    check_good(esper_draft_open("shared", &b));
    check_good(esper_draft_write(a, "aaaa", 4));
    check_good(esper_draft_write(b, "bb", 2));
    check_good(esper_draft_commit(b));
    check_contents("shared", "bb");
    check_good(esper_draft_commit(a));
    check_contents("shared", "aaaa");
    esper_draft_close(a);
    esper_draft_close(b);
    assert_int_equal(count_files(".", ".tmp"), 0);
}

/* The system lets a file of ours grow to 1000 bytes only: what a full disk looks like from here. */
static void a_full_disk_leaves_the_old_file(void **state)
{
    static char large[100000];
    struct rlimit limit, small;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    check_good(esper_file_write("precious", "old", 3));
    small = limit;
    small.rlim_cur = 1000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    check_failed(esper_file_write("precious", large, sizeof(large)), ESPER_E_IO,
                 "precious: cannot be written: File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    check_contents("precious", "old");
    assert_int_equal(count_files(".", ".tmp"), 0);
    check_good(esper_file_write("precious", large, sizeof(large)));
}

static void every_failed_allocation_is_survived(void **state)
{
    esper_mem_stats before, after;
    esper_status st = ESPER_E_NOMEM;
    int n_failures = 0;

    (void)state;
    check_good(esper_file_write("target", "old", 3));
    esper_mem_stats_get(&before);
    while (st == ESPER_E_NOMEM) {
        esper_mem_fail_at((uint64_t)n_failures + 1);
        st = esper_file_write("target", "new", 3);
        esper_mem_fail_at(0);
        check_contents("target", st == ESPER_OK ? "new" : "old");
        n_failures += st == ESPER_E_NOMEM;
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_live, before.n_live);
        assert_int_equal(count_files(".", ".tmp"), 0);
    }
    check_good(st);
    assert_int_equal(n_failures, 3);
    esper_mem_fail_at(1);
    check_failed(esper_file_make_dirs("new_one"), ESPER_E_NOMEM, "new_one");
    esper_mem_fail_at(0);
}

/* No descriptor is left open by any of the ways through. */
static void descriptors_are_given_back(void **state)
{
    int before = count_files("/proc/self/fd", "");
    char *data;
    size_t bytes;
    esper_draft *draft;

    (void)state;
    check_good(esper_file_write("target", "x", 1));
    check_good(esper_file_read("target", 10, &data, &bytes));
    esper_mem_free(data);
    check_failed(esper_file_read("target", 0, &data, &bytes), ESPER_E_IO, "more than the 0 allowed");
    check_failed(esper_file_write("a_directory/../absent/x", "x", 1), ESPER_E_NOTFOUND, "absent");
    check_good(esper_draft_open("target", &draft));
    esper_draft_close(draft);
    assert_int_equal(count_files("/proc/self/fd", ""), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents_come_back),
        cmocka_unit_test(reading_keeps_the_limit),
        cmocka_unit_test(files_without_a_size_are_read_to_their_end),
        cmocka_unit_test(missing_and_odd_paths_are_told),
        cmocka_unit_test(an_unreadable_directory_is_told),
        cmocka_unit_test(directories_are_made_on_the_way),
        cmocka_unit_test(nothing_shows_before_the_commit),
        cmocka_unit_test(an_abandoned_draft_leaves_nothing),
        cmocka_unit_test(two_drafts_of_one_file_do_not_meet),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(descriptors_are_given_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
