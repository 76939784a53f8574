/* The recorded vectors themselves: no file is forgotten, the committed part is small, and it is a copy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "support/golden.h"

enum { MAX_FILE_BYTES = 1 << 20 };

static bool is_listed(const char *file, bool fixtures_only)
{
    for (const golden_entry *entry = golden_entries; entry->name != NULL; entry++) {
        char path[GOLDEN_PATH_CHARS];
        const char *slash = strrchr(golden_fixture_path(entry, path), '/');

        if (strcmp(slash + 1, file) == 0)
            return entry->fixture || !fixtures_only;
    }
    return false;
}

typedef void (*file_visit)(const char *path, const char *file, void *context);

/* Calls for every entry of a directory that is not hidden. */
static void for_each_file(const char *dir_path, file_visit visit, void *context)
{
    DIR *dir = opendir(dir_path);
    struct dirent *item;

    if (dir == NULL)
        fail_msg("%s: cannot be read", dir_path);
    while ((item = readdir(dir)) != NULL) {
        char path[GOLDEN_PATH_CHARS];

        if (item->d_name[0] == '.')
            continue;
        if (snprintf(path, sizeof(path), "%s/%s", dir_path, item->d_name) >= (int)sizeof(path))
            fail_msg("%s/%s: too long a name", dir_path, item->d_name);
        visit(path, item->d_name, context);
    }
    closedir(dir);
}

static void add_bytes(const char *path, const char *file, void *context)
{
    struct stat info;

    assert_int_equal(stat(path, &info), 0);
    if (S_ISDIR(info.st_mode)) {
        for_each_file(path, add_bytes, context);
        return;
    }
    *(long *)context += (long)info.st_size;
    if (!is_listed(file, true) && strcmp(file, "README.md") != 0)
        fail_msg("%s is not in the list of fixtures (tests/support/golden.c)", path);
}

static void test_fixtures_are_small(void **state)
{
    long bytes = 0;

    (void)state;
    for_each_file(golden_fixture_dir(), add_bytes, &bytes);
    printf("tests/golden: %ld bytes of at most %d\n", bytes, GOLDEN_FIXTURE_BYTES);
    assert_in_range(bytes, 1, GOLDEN_FIXTURE_BYTES);
}

static void require_same(const golden_entry *entry)
{
    char path[GOLDEN_PATH_CHARS], *original = NULL, *copy = NULL;
    size_t n_original = 0, n_copy = 0;

    if (esper_file_read(golden_path(entry, path), MAX_FILE_BYTES, &original, &n_original) != ESPER_OK ||
        esper_file_read(golden_fixture_path(entry, path), MAX_FILE_BYTES, &copy, &n_copy) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    if (n_original != n_copy || memcmp(original, copy, n_copy) != 0)
        fail_msg("%s: %zu bytes here, %zu recorded, or not the same ones", path, n_copy, n_original);
    esper_mem_free(original);
    esper_mem_free(copy);
}

/* Every line of the part is one of the whole, in its order. */
static void require_part(const golden_entry *entry)
{
    char path[GOLDEN_PATH_CHARS], *original = NULL, *copy = NULL;
    size_t n_original = 0, n_copy = 0;
    const char *from;

    if (esper_file_read(golden_path(entry, path), MAX_FILE_BYTES, &original, &n_original) != ESPER_OK ||
        esper_file_read(golden_fixture_path(entry, path), MAX_FILE_BYTES, &copy, &n_copy) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    from = original;
    for (char *line = copy, *end; *line != '\0'; line = end + 1) {
        char kept;

        end = strchr(line, '\n');
        if (end == NULL)
            fail_msg("%s: its last line does not end", path);
        kept = end[1];
        end[1] = '\0';
        from = strstr(from, line);
        if (from == NULL)
            fail_msg("%s: not a recorded line, or not in its order: %.60s", path, line);
        end[1] = kept;
    }
    esper_mem_free(original);
    esper_mem_free(copy);
}

/* Where all vectors are here, each fixture must equal its original; elsewhere this shows that each can be read. */
static void test_fixtures_are_copies(void **state)
{
    (void)state;
    for (const golden_entry *entry = golden_entries; entry->name != NULL; entry++)
        if (entry->fixture && (entry->part & (GOLDEN_BLEND | GOLDEN_BIRTHS | GOLDEN_POLICY)) != 0)
            require_part(entry);
        else if (entry->fixture)
            require_same(entry);
}

static void require_listed(const char *path, const char *file, void *context)
{
    (void)context;
    if (!is_listed(file, false) && strcmp("policy_small.safetensors", file) != 0)
        fail_msg("%s is compared with nothing: add it to the list (tests/support/golden.c)", path);
}

static void test_no_recorded_net_is_forgotten(void **state)
{
    char path[GOLDEN_PATH_CHARS];

    (void)state;
    if (!golden_is_whole()) {
        printf("../shared/golden absent: skipped\n");
        skip();
    }
    snprintf(path, sizeof(path), "%s/nets", golden_whole_dir());
    for_each_file(path, require_listed, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures_are_small),
        cmocka_unit_test(test_fixtures_are_copies),
        cmocka_unit_test(test_no_recorded_net_is_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
