/* Recorded vectors: the list of files, the table of tolerances, and the comparison. */
#include "support/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/status.h"

/* Left out here: policy_small, which belongs to the policy. */
const golden_entry golden_entries[] = {
    {"blueprints", GOLDEN_BIRTHS, true},
    {"cnn_noop_8", GOLDEN_SEED, true},
    {"cnn_noop_16", GOLDEN_SEED, false},
    {"cnn_norm_8", GOLDEN_SEED, true},
    {"cnn_norm_16", GOLDEN_SEED, false},
    {"cnn_attention_8", GOLDEN_SEED, true},
    {"cnn_attention_16", GOLDEN_SEED, false},
    {"cnn_conv_small_8", GOLDEN_SEED, true},
    {"cnn_conv_small_16", GOLDEN_SEED, false},
    {"cnn_bottleneck_8", GOLDEN_SEED, true},
    {"cnn_bottleneck_16", GOLDEN_SEED, false},
    {"cnn_depthwise_8", GOLDEN_SEED, true},
    {"cnn_depthwise_16", GOLDEN_SEED, false},
    {"cnn_conv_light_8", GOLDEN_SEED, true},
    {"cnn_conv_light_16", GOLDEN_SEED, false},
    {"cnn_conv_heavy_8", GOLDEN_SEED, true},
    {"cnn_conv_heavy_16", GOLDEN_SEED, false},
    {"transformer_noop_16", GOLDEN_SEED, true},
    {"transformer_norm_16", GOLDEN_SEED, true},
    {"transformer_lora_16", GOLDEN_SEED, true},
    {"transformer_lora_large_16", GOLDEN_SEED, false},
    {"transformer_attention_16", GOLDEN_SEED, true},
    {"transformer_flex_attention_16", GOLDEN_SEED, false},
    {"transformer_mlp_small_16", GOLDEN_SEED, true},
    {"transformer_mlp_16", GOLDEN_SEED, false},
    {"gate_cnn_64", GOLDEN_GATE, false},
    {"gate_transformer_16", GOLDEN_GATE, true},
    {"cnn_host_minimal", GOLDEN_HOST, false},
    {"cnn_host_two_pools", GOLDEN_HOST, true},
    {"cnn_host_b8", GOLDEN_HOST, false},
    {"transformer_host_tiny", GOLDEN_HOST, true},
    {"slotted_cnn", GOLDEN_SLOTTED, true},
    {"slotted_cnn_fossil", GOLDEN_SLOTTED, false},
    {"slotted_transformer", GOLDEN_SLOTTED, false},
    {"blend", GOLDEN_BLEND, true},
    {"masks", GOLDEN_POLICY, true},
    {"features", GOLDEN_POLICY, true},
    {"gae", GOLDEN_POLICY, true},
    {"rewards_helpers", GOLDEN_POLICY, true},
    {"rewards_shaped", GOLDEN_POLICY, true},
    {"rewards_escrow", GOLDEN_POLICY, true},
    {"rewards_basic", GOLDEN_POLICY, true},
    {"rewards_basic_plus", GOLDEN_POLICY, true},
    {"rewards_simplified", GOLDEN_POLICY, true},
    {"rewards_sparse", GOLDEN_POLICY, true},
    {"rewards_minimal", GOLDEN_POLICY, true},
    {"rewards_loss", GOLDEN_POLICY, true},
    {NULL, GOLDEN_HOST, false},
};

/* The one table of tolerances: the first line that fits a file and a tensor counts. `of_largest` is the difference that
 * is allowed, as a part of the tensor's largest recorded entry. */
typedef struct tolerance {
    const char *file, *tensor; /* patterns of the shell, with @(a|b) */
    double      of_largest;
    const char *reason;
} tolerance;

static const tolerance tolerances[] = {
    {"*_noop_*", "*/output", 0.0, "no operation at all: the output is the input"},
    {"@(cnn_@(norm|bottleneck|conv_small)|transformer_*)_*", "init/output", 0.0,
     "an identity at birth adds exact zeros: bits are equal"},
    {"cnn_norm_8", "init/param_grad/scale", 1e-4,
     "one number, in which products of size 2.2 in all cancel to 0.0054: the recorder's own float32 was 1.1e-5 off"},
    {"*", "@(input_grad|*/input_grad|*param_grad/*)", 2e-5,
     "two float32 roundings per layer, sums in another order; a float64 replay stays below 2e-6 of the recorded"},
    {"*", "train/grad_norms_before_clip", 2e-5, "as the gradients it is made of"},
    {"*", "train/losses*", 1e-5, "each loss is a float32 mean; ten steps of differences in the weights stay below it"},
    {"*", "train/final_*", 1e-5, "ten steps at rate 0.01 scale down what the gradients differ by"},
    {"*", "buffer_after_one_training_forward/*", 1e-5, "a mean and a variance of an output, tolerated as outputs are"},
    {"*", "*", 1e-5, "outputs: sums in another order than the recorder's, all in float32"},
};

double golden_tolerance(const char *file, const char *tensor, const char **reason_out)
{
    const tolerance *entry = tolerances;

    while (fnmatch(entry->file, file, FNM_EXTMATCH) != 0 || fnmatch(entry->tensor, tensor, FNM_EXTMATCH) != 0)
        entry++; /* the last line fits all */
    *reason_out = entry->reason;
    return entry->of_largest;
}

/* ------------------------------------------------------------------------------------------------ files */

/* A program that cannot do what it was asked for must not end as one that has passed. */
static void quit(const char *before, const char *what, const char *behind)
{
    fflush(stdout);
    fprintf(stderr, "%s%s%s\n", before, what, behind);
    exit(EXIT_FAILURE);
}

static const char *whole_dir(void)
{
    const char *dir = getenv("ESPER_GOLDEN"), *labels = getenv("ESPER_TEST_LABELS"); /* the latter of ctest */
    struct stat info;

    if (labels != NULL && strstr(labels, "golden") == NULL)
        quit("this test reads recorded vectors and is not labelled golden: labels=", labels, " in its ctest comment");
    if (dir == NULL || dir[0] == '\0')
        return NULL;
    if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode))
        quit("ESPER_GOLDEN=", dir, ": no such folder (tests run in folders of their own: give the whole path)");
    return dir;
}

const char *golden_fixture_dir(void)
{
    return ESPER_SOURCE_DIR "/tests/golden";
}

bool golden_is_whole(void)
{
    return whole_dir() != NULL;
}

const char *golden_dir(void)
{
    return golden_is_whole() ? whole_dir() : golden_fixture_dir();
}

/* As people are told. */
static const char *dir_name(void)
{
    return golden_is_whole() ? whole_dir() : "tests/golden (ESPER_GOLDEN is not set)";
}

static const char *path_in(const char *dir, const golden_entry *entry, char path[GOLDEN_PATH_CHARS])
{
    if ((entry->part & (GOLDEN_BIRTHS | GOLDEN_BLEND | GOLDEN_POLICY)) != 0)
        snprintf(path, GOLDEN_PATH_CHARS, "%s/%s.jsonl", dir, entry->name);
    else
        snprintf(path, GOLDEN_PATH_CHARS, "%s/nets/%s.safetensors", dir, entry->name);
    return path;
}

const char *golden_path(const golden_entry *entry, char path[GOLDEN_PATH_CHARS])
{
    return path_in(golden_dir(), entry, path);
}

const char *golden_fixture_path(const golden_entry *entry, char path[GOLDEN_PATH_CHARS])
{
    return path_in(golden_fixture_dir(), entry, path);
}

bool golden_is_here(const golden_entry *entry)
{
    char path[GOLDEN_PATH_CHARS];

    return access(golden_path(entry, path), F_OK) == 0;
}

int golden_count(unsigned parts)
{
    int n = 0;

    for (const golden_entry *entry = golden_entries; entry->name != NULL; entry++)
        n += (entry->part & parts) != 0 && golden_is_here(entry);
    return n;
}

void golden_say(unsigned parts)
{
    int n_skipped = 0;

    printf("recorded vectors: %d files, from %s\n", golden_count(parts), dir_name());
    for (const golden_entry *entry = golden_entries; entry->name != NULL; entry++)
        if ((entry->part & parts) != 0 && !golden_is_here(entry))
            printf("%s%s", n_skipped++ == 0 ? "skipped: not among the recorded files: " : ", ", entry->name);
    printf("%s", n_skipped > 0 ? "\n" : "");
    fflush(stdout);
}

int golden_each_case(const char *name, void (*each)(const json_t *line))
{
    char path[GOLDEN_PATH_CHARS], *text = NULL;
    size_t size = 0;
    int n_lines = 0, n_cases = 0;
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s.jsonl", golden_dir(), name);
    file = fopen(path, "r");
    if (file == NULL) {
        printf("skipped: %s.jsonl is not in %s\n", name, dir_name());
        skip();
    }
    while (getline(&text, &size, file) > 0) {
        json_error_t error;
        json_t *line = json_loads(text, 0, &error);

        n_lines++;
        if (line == NULL)
            fail_msg("%s:%d: %s", path, n_lines, error.text);
        if (json_object_get(line, "case") != NULL) {
            each(line);
            n_cases++;
        } else if (n_lines > 1) { /* the first line tells about the file */
            fail_msg("%s:%d: not a case", path, n_lines);
        }
        json_decref(line);
    }
    free(text);
    fclose(file);
    printf("%s: %d recorded cases, from %s\n", name, n_cases, dir_name());
    assert_true(n_cases > 0);
    return n_cases;
}

/* ------------------------------------------------------------------------------------------------ mismatches */

static void note_first(golden_tally *tally, const char *file, const char *what)
{
    if (tally->n_mismatches++ == 0)
        snprintf(tally->first_bad, sizeof(tally->first_bad), "%s %s", file, what);
}

void golden_mismatch(golden_tally *tally, const char *file, const char *what, const char *format, ...)
{
    va_list args;

    note_first(tally, file, what);
    if (tally->quiet)
        return;
    fprintf(stderr, "%s: %s %s: ", tally->label, file, what);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
}

/* ------------------------------------------------------------------------------------------------ reading */

esper_status golden_open(golden *vectors, const golden_entry *entry, golden_tally *tally)
{
    char path[GOLDEN_PATH_CHARS];
    golden made = {.name = entry->name, .tally = tally};

    ESPER_TRY(esper_safetensors_open(golden_path(entry, path), &made.file));
    made.used = esper_mem_alloc(esper_safetensors_count(made.file) + 1);
    if (made.used == NULL) {
        esper_safetensors_close(made.file);
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", path);
    }
    *vectors = made;
    return ESPER_OK;
}

void golden_close(golden *vectors)
{
    esper_safetensors_close(vectors->file);
    esper_mem_free(vectors->used);
    *vectors = (golden){0};
}

const esper_safetensors_tensor *golden_find(golden *vectors, const char *name)
{
    for (size_t i = 0; i < esper_safetensors_count(vectors->file); i++) {
        const esper_safetensors_tensor *tensor = esper_safetensors_at(vectors->file, i);

        if (strcmp(tensor->name, name) == 0) {
            vectors->used[i] = true;
            return tensor;
        }
    }
    return NULL;
}

static int64_t count_of(const esper_safetensors_tensor *tensor)
{
    return (int64_t)(tensor->n_bytes / esper_safetensors_dtype_bytes(tensor->dtype));
}

/* The tensor, if it has as many elements as wanted; else a mismatch and NULL. */
static const esper_safetensors_tensor *find_sized(golden *vectors, const char *name, int64_t count)
{
    const esper_safetensors_tensor *tensor = golden_find(vectors, name);

    if (tensor == NULL) {
        golden_mismatch(vectors->tally, vectors->name, name, "not recorded, but wanted here");
        return NULL;
    }
    if (count_of(tensor) != count) {
        golden_mismatch(vectors->tally, vectors->name, name, "%lld elements here, %lld recorded", (long long)count,
                        (long long)count_of(tensor));
        return NULL;
    }
    return tensor;
}

double golden_number(const esper_safetensors_tensor *tensor, int64_t i)
{
    const char *at = (const char *)tensor->data + (size_t)i * esper_safetensors_dtype_bytes(tensor->dtype);
    float single;
    double number;

    switch (tensor->dtype) {
    case ESPER_SAFETENSORS_F32:
        memcpy(&single, at, sizeof(single));
        return (double)single;
    case ESPER_SAFETENSORS_F64:
        memcpy(&number, at, sizeof(number));
        return number;
    default:
        return (double)NAN;
    }
}

bool golden_load(golden *vectors, const char *name, void *data_out, int64_t count)
{
    const esper_safetensors_tensor *tensor = find_sized(vectors, name, count);

    if (tensor == NULL)
        return false;
    if (tensor->dtype == ESPER_SAFETENSORS_F32) {
        memcpy(data_out, tensor->data, tensor->n_bytes);
        return true;
    }
    if (tensor->dtype != ESPER_SAFETENSORS_I64) {
        golden_mismatch(vectors->tally, vectors->name, name, "of type %s", esper_safetensors_dtype_name(tensor->dtype));
        return false;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t id;

        memcpy(&id, (const char *)tensor->data + (size_t)i * sizeof(id), sizeof(id));
        ((int32_t *)data_out)[i] = (int32_t)id;
    }
    return true;
}

void golden_expect_all_used(golden *vectors)
{
    for (size_t i = 0; i < esper_safetensors_count(vectors->file); i++)
        if (!vectors->used[i])
            golden_mismatch(vectors->tally, vectors->name, esper_safetensors_at(vectors->file, i)->name,
                            "recorded, but compared with nothing");
}

json_t *golden_detail(const golden *vectors, const char *key)
{
    const char *text = esper_safetensors_note_find(vectors->file, key);

    return text == NULL ? NULL : json_loads(text, JSON_DECODE_ANY, NULL);
}

/* ------------------------------------------------------------------------------------------------ comparing */

static void note_share(golden_tally *tally, const char *file, const char *name, double share)
{
    if (!(share > tally->share))
        return;
    tally->share = share;
    snprintf(tally->share_where, sizeof(tally->share_where), "%s %s", file, name);
}

void golden_compare_with(golden *vectors, const char *name, const float *values, const double *expected, int64_t count)
{
    const char *reason;
    double of_largest = golden_tolerance(vectors->name, name, &reason), largest = 0.0, allowed, worst = -1.0;
    int64_t n_bad = 0, worst_at = 0;

    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(expected[i]));
    allowed = of_largest * largest;
    for (int64_t i = 0; i < count; i++) {
        double gap = fabs((double)values[i] - expected[i]);

        n_bad += !(gap <= allowed); /* counts NaN */
        if (!(gap <= worst) && !isnan(worst)) {
            worst = gap;
            worst_at = i;
        }
    }
    vectors->tally->n_tensors++;
    vectors->tally->n_values += (long)count;
    if (n_bad == 0 && allowed > 0.0)
        note_share(vectors->tally, vectors->name, name, worst / allowed);
    if (n_bad > 0)
        golden_mismatch(vectors->tally, vectors->name, name,
                        "%lld of %lld values differ; worst at %lld: %.9g here, %.9g recorded, %.3g apart, %.3g allowed "
                        "(%.0e of the largest, %.3g: %s)",
                        (long long)n_bad, (long long)count, (long long)worst_at, (double)values[worst_at],
                        expected[worst_at], worst, allowed, of_largest, largest, reason);
}

void golden_compare(golden *vectors, const char *name, const float *values, int64_t count)
{
    const esper_safetensors_tensor *tensor = find_sized(vectors, name, count);
    double *expected;

    if (tensor == NULL)
        return;
    expected = esper_mem_alloc((size_t)count * sizeof(*expected));
    if (expected == NULL) {
        golden_mismatch(vectors->tally, vectors->name, name, "no memory for %lld values", (long long)count);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        expected[i] = golden_number(tensor, i);
    golden_compare_with(vectors, name, values, expected, count);
    esper_mem_free(expected);
}
