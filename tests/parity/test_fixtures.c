/* ctest: labels=golden */
/* The recorded vectors themselves: no file is forgotten, the committed part is small, and it is a copy; the differences on
 * purpose are documented. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "support/difference.h"
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

/* What a recording and the committed part of one have in common. */
static int n_same, n_other;

/* The tensor that a net was asked with: "input", "init/input". NULL: there is none. */
static const esper_safetensors_tensor *input_of(const esper_safetensors *net)
{
    for (size_t i = 0; i < esper_safetensors_count(net); i++) {
        const esper_safetensors_tensor *tensor = esper_safetensors_at(net, i);
        size_t n = strlen(tensor->name);

        if (n >= 5 && strcmp(tensor->name + n - 5, "input") == 0)
            return tensor;
    }
    return NULL;
}

static bool same_bytes(const esper_safetensors_tensor *a, const esper_safetensors_tensor *b)
{
    return a != NULL && b != NULL && a->n_bytes == b->n_bytes && memcmp(a->data, b->data, a->n_bytes) == 0;
}

/* A net that was asked the same has answered the same, in every tensor. */
static void compare_nets(const golden_entry *entry)
{
    char path[GOLDEN_PATH_CHARS];
    esper_safetensors *copy, *original;

    if (esper_safetensors_open(golden_fixture_path(entry, path), &copy) != ESPER_OK ||
        esper_safetensors_open(golden_path(entry, path), &original) != ESPER_OK)
        fail_msg("%s", esper_last_error());
    assert_non_null(input_of(copy));
    if (same_bytes(input_of(copy), input_of(original))) {
        assert_int_equal(esper_safetensors_count(copy), esper_safetensors_count(original));
        for (size_t i = 0; i < esper_safetensors_count(copy); i++)
            if (!same_bytes(esper_safetensors_at(copy, i),
                            esper_safetensors_find(original, esper_safetensors_at(copy, i)->name)))
                fail_msg("%s: %s is another one in tests/golden", path, esper_safetensors_at(copy, i)->name);
        n_same++;
    } else {
        n_other++;
    }
    esper_safetensors_close(copy);
    esper_safetensors_close(original);
}

static json_t *fixtures; /* the cases of one fixture */

static void take_fixture(const char *path)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    fixtures = json_array();
    while (getline(&text, &size, file) > 0) {
        json_t *line = json_loads(text, 0, NULL);

        if (line == NULL || text[strlen(text) - 1] != '\n')
            fail_msg("%s: line %zu is no JSON, or does not end", path, json_array_size(fixtures) + 1);
        assert_int_equal(json_array_append_new(fixtures, line), 0);
    }
    free(text);
    fclose(file);
}

static bool same_member(const json_t *a, const json_t *b, const char *key)
{
    json_t *x = json_object_get(a, key), *y = json_object_get(b, key);

    return x == y || json_equal(x, y); /* both may be absent */
}

/* A case that was asked the same has answered the same. */
static void compare_case(const json_t *recorded)
{
    for (size_t i = 1; i < json_array_size(fixtures); i++) {
        const json_t *ours = json_array_get(fixtures, i);

        if (!same_member(ours, recorded, "in") || !same_member(ours, recorded, "kind"))
            continue;
        if (!same_member(ours, recorded, "out"))
            fail_msg("case %d of tests/golden, %d of the recording: other answers to the same",
                     (int)json_integer_value(json_object_get(ours, "case")),
                     (int)json_integer_value(json_object_get(recorded, "case")));
        n_same++;
        return;
    }
    n_other++;
}

/* Where the recording that is read holds what tests/golden holds, both say the same. Of another recording, or of
 * tests/golden itself, this shows that each file can be read. */
static void test_fixtures_are_copies(void **state)
{
    (void)state;
    for (const golden_entry *entry = golden_entries; entry->name != NULL; entry++) {
        char path[GOLDEN_PATH_CHARS];

        if (!entry->fixture || !golden_is_here(entry))
            continue;
        n_same = n_other = 0;
        if ((entry->part & (GOLDEN_BLEND | GOLDEN_BIRTHS | GOLDEN_POLICY)) == 0) {
            compare_nets(entry);
        } else {
            take_fixture(golden_fixture_path(entry, path));
            golden_each_case(entry->name, compare_case);
            json_decref(fixtures);
        }
        printf("%s: %d in both, %d in the recording alone\n", entry->name, n_same, n_other);
        if (!golden_is_whole())
            assert_true(n_same > 0 && n_other == 0);
    }
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
    snprintf(path, sizeof(path), "%s/nets", golden_dir());
    for_each_file(path, require_listed, NULL);
}

/* docs/parity.md shows the list of differences, row by row, and no row that is not in it. */
static void test_differences_are_documented(void **state)
{
    const char *const path = ESPER_SOURCE_DIR "/docs/parity.md";
    const char *head = "| file | mark | recorded | ours |\n|---|---|---|---|\n", *at;
    char *text = NULL, row[DIFFERENCE_ROW_CHARS];
    size_t n_bytes;

    (void)state;
    if (access(path, F_OK) != 0) {
        printf("skipped: the documentation is not here\n");
        skip();
    }
    assert_int_equal(esper_file_read(path, MAX_FILE_BYTES, &text, &n_bytes), ESPER_OK);
    at = strstr(text, head);
    if (at == NULL)
        fail_msg("%s has no table of differences", path);
    at += strlen(head);
    for (int d = 0; d < N_DIFFERENCES; d++) {
        difference_row(d, row);
        if (strncmp(at, row, strlen(row)) != 0)
            fail_msg("%s: expected this row next, as in tests/support/difference.h:\n%s", path, row);
        at += strlen(row);
    }
    assert_true(at[0] != '|');
    esper_mem_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures_are_small),
        cmocka_unit_test(test_fixtures_are_copies),
        cmocka_unit_test(test_no_recorded_net_is_forgotten),
        cmocka_unit_test(test_differences_are_documented),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
