/* Files of C and ONNX. */
#include "run/export_program.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "nn/c99_export.h"
#include "nn/onnx_export.h"
#include "run/export.h"
#include "run/predict.h"
#include "run/run_dir.h"

enum { TEST_SAMPLES = 4, CALIBRATED = 512, COMPARED = 1000 };

/* ------------------------------------------------------------------------------------------------ the program */

/* What is exported, and what it is made of. */
typedef struct program {
    esper_network     *network;
    esper_slab         mirror;
    esper_infer        infer;
    char               names[ESPER_MAX_SLOTS][ESPER_NAME_CHARS];
    esper_infer_number numbers[ESPER_MAX_SLOTS];
    const char        *classes[ESPER_DATASET_MAX_CLASSES];
    esper_c99_feature *features;
    int                n_numbers, n_classes, n_features;
} program;

static void list_alphas(program *self)
{
    esper_network *network = self->network;

    for (int k = 0; k < network->slots.n; k++) {
        char *name = self->names[self->n_numbers];

        snprintf(name, ESPER_NAME_CHARS, "%s.alpha", network->slots.slot[k].id);
        if (esper_net_find(&network->net, name) != ESPER_NO_TENSOR)
            self->numbers[self->n_numbers++] = (esper_infer_number){name, esper_splice_alpha(&network->splice, k)};
    }
}

static esper_status list_names(program *self)
{
    const esper_dataset *data = self->network->engine->data;
    const esper_dataset_info *info = esper_dataset_info_get(data);

    self->n_classes = info->kind == ESPER_DATASET_TOKENS ? 0 : info->classes;
    for (int c = 0; c < self->n_classes; c++)
        self->classes[c] = esper_dataset_class_name(data, c);
    self->n_features = (int)esper_dataset_feature_count(data);
    self->features = esper_mem_alloc((size_t)self->n_features * sizeof(*self->features));
    if (self->n_features > 0 && self->features == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%d names", self->n_features);
    for (int f = 0; f < self->n_features; f++)
        self->features[f].name =
            esper_dataset_feature(data, (uint32_t)f, &self->features[f].mean, &self->features[f].std);
    return ESPER_OK;
}

static void program_fini(program *self)
{
    esper_infer_fini(&self->infer);
    esper_slab_fini(&self->mirror);
    esper_mem_free(self->features);
}

static esper_status program_init(program *self, esper_network *network)
{
    esper_status status;

    *self = (program){.network = network};
    ESPER_TRY(esper_slab_mirror(
        &network->slab, ESPER_FAMILY_BIT(ESPER_FAMILY_PARAM) | ESPER_FAMILY_BIT(ESPER_FAMILY_BUFFER), &self->mirror));
    list_alphas(self);
    status = list_names(self);
    if (status == ESPER_OK) {
        const esper_infer_desc desc = {&network->net, &self->mirror, self->numbers, self->n_numbers};

        status = esper_infer_init(&self->infer, &desc);
    }
    if (status != ESPER_OK)
        program_fini(self);
    return status;
}

/* ------------------------------------------------------------------------------------------------ samples */

/* Of a training split, for calibration: spread over it, the same each time. */
typedef struct sampling {
    const esper_dataset *data;
    float               *sample;
} sampling;

static const void *next_sample(void *context, int index)
{
    const sampling *self = context;
    uint32_t n = esper_dataset_count(self->data, ESPER_SPLIT_TRAIN), most = n < CALIBRATED ? n : CALIBRATED;
    int label;

    if ((uint32_t)index >= most)
        return NULL;
    esper_predict_take(self->data, ESPER_SPLIT_TRAIN, (uint32_t)((uint64_t)index * n / most), self->sample, &label);
    return self->sample;
}

static esper_status calibrate(const program *self, esper_fixed *fixed)
{
    sampling from = {.data = self->network->engine->data,
                     .sample = esper_mem_alloc((size_t)esper_predict_inputs(self->network) * sizeof(float))};
    esper_status status;

    if (from.sample == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a sample");
    status = esper_fixed_init(fixed, &self->infer, next_sample, &from);
    esper_mem_free(from.sample);
    return status;
}

static int largest(const float *values, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        best = values[i] > values[best] ? i : best;
    return best;
}

/* Answers in whole numbers beside the engine's, over the validation split. Of text every token has one. */
static esper_status compare_fixed(const program *self, const esper_fixed *fixed, esper_export_size *size)
{
    const esper_dataset *data = self->network->engine->data;
    const esper_infer_tensor *output = &self->infer.tensors[self->infer.output];
    int n = output->dim[output->rank - 1], label;
    uint32_t n_samples = esper_dataset_count(data, ESPER_SPLIT_VALID);
    size_t n_out = (size_t)output->count;
    float *sample = esper_mem_alloc((size_t)esper_predict_inputs(self->network) * sizeof(*sample));
    float *outputs = esper_mem_alloc(2 * n_out * sizeof(*outputs));
    esper_status status = sample != NULL && outputs != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "a sample");

    for (uint32_t i = 0; status == ESPER_OK && i < n_samples && i < COMPARED; i++) {
        esper_predict_take(data, ESPER_SPLIT_VALID, i, sample, &label);
        status = esper_predict_logits(self->network, sample, 1, outputs);
        esper_fixed_run(fixed, sample, outputs + n_out);
        for (size_t at = 0; status == ESPER_OK && at < n_out; at += (size_t)n) {
            size->n_compared++;
            size->n_same += largest(outputs + at, n) == largest(outputs + n_out + at, n);
        }
    }
    esper_mem_free(sample);
    esper_mem_free(outputs);
    return status;
}

/* Samples for the test: noise as a network takes it, the same each time. */
static void draw_samples(const program *self, void *kept, float *inputs)
{
    const esper_dataset *data = self->network->engine->data;
    const esper_dataset_info *info = esper_dataset_info_get(data);
    esper_rng_key key = {.seed = 1, .purpose = ESPER_RNG_SAMPLE, .tag = 1};
    int64_t n = esper_predict_inputs(self->network), plane = (int64_t)info->height * info->width;
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int64_t i = 0; i < n * TEST_SAMPLES; i++)
        if (info->kind == ESPER_DATASET_IMAGES) {
            uint8_t pixel = (uint8_t)esper_rng_below(&rng, 256);

            ((uint8_t *)kept)[i] = pixel;
            inputs[i] = esper_dataset_levels(data, (int)(i % n / plane))[pixel];
        } else if (info->kind == ESPER_DATASET_TOKENS)
            ((int32_t *)kept)[i] = ((int32_t *)inputs)[i] = (int32_t)esper_rng_below(&rng, (uint32_t)info->vocab);
        else
            ((float *)kept)[i] = inputs[i] = esper_rng_normal(&rng);
}

/* What the engine computes for them, or, in whole numbers, what the file is to compute. */
static esper_status compute_expected(const program *self, const esper_fixed *fixed, const float *inputs,
                                     float *expected)
{
    int64_t n_in = esper_predict_inputs(self->network), n_out = esper_predict_outputs(self->network);

    for (int i = 0; i < TEST_SAMPLES; i++)
        if (fixed != NULL)
            esper_fixed_run(fixed, inputs + i * n_in, expected + i * n_out);
        else
            ESPER_TRY(esper_predict_logits(self->network, inputs + i * n_in, 1, expected + i * n_out));
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the files of C */

typedef struct file {
    char        name[ESPER_C99_NAME_CHARS + 8];
    const char *text;
} file;

enum { N_FILES = 3 };

static esper_status write_files(const char *dir, const file files[N_FILES], const char *ending)
{
    char path[ESPER_PATH_CHARS + 64], whole[ESPER_PATH_CHARS];

    for (int i = 0; i < N_FILES; i++) {
        ESPER_TRY(esper_run_path(dir, files[i].name, whole));
        snprintf(path, sizeof(path), "%s%s", whole, ending);
        ESPER_TRY(esper_file_write(path, files[i].text, strlen(files[i].text)));
    }
    return ESPER_OK;
}

/* All drafts are whole before the first is moved. */
static esper_status write_into(const char *dir, const file files[N_FILES], bool force)
{
    char ending[64], from[ESPER_PATH_CHARS + 64], to[ESPER_PATH_CHARS];
    esper_status status;

    for (int i = 0; i < N_FILES; i++) {
        ESPER_TRY(esper_run_path(dir, files[i].name, to));
        ESPER_TRY(esper_export_check_free(to, force));
    }
    snprintf(ending, sizeof(ending), ".%ld-new.tmp", (long)getpid());
    status = write_files(dir, files, ending);
    for (int i = 0; i < N_FILES; i++) {
        if (esper_run_path(dir, files[i].name, to) != ESPER_OK)
            continue;
        snprintf(from, sizeof(from), "%s%s", to, ending);
        if (status == ESPER_OK && rename(from, to) != 0)
            status = esper_file_fail("cannot be put in place", to);
        if (status != ESPER_OK)
            unlink(from);
    }
    return status;
}

static esper_status write_whole(const char *dir, const file files[N_FILES])
{
    char fresh[ESPER_PATH_CHARS], path[ESPER_PATH_CHARS];
    size_t n = strlen(dir);
    esper_status status;

    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (snprintf(fresh, sizeof(fresh), "%.*s.%ld-new.tmp", (int)n, dir, (long)getpid()) >= ESPER_PATH_CHARS)
        return ESPER_FAIL(ESPER_E_ARG, "the path %.60s... is too long", dir);
    status = esper_file_make_dirs(fresh);
    if (status == ESPER_OK)
        status = write_files(fresh, files, "");
    if (status == ESPER_OK && rename(fresh, dir) != 0)
        status = esper_file_fail("cannot be put in place", dir);
    if (status == ESPER_OK)
        return esper_file_sync_dir_of(dir);
    for (int i = 0; i < N_FILES; i++)
        if (esper_run_path(fresh, files[i].name, path) == ESPER_OK)
            unlink(path);
    rmdir(fresh);
    return esper_fail_within(status, "the files of %s cannot be made: ", dir);
}

static esper_status write_c(const esper_export_program *what, const program *self, const esper_fixed *fixed,
                            const char *dir, esper_export_size *size)
{
    const esper_dataset_info *info = esper_dataset_info_get(self->network->engine->data);
    bool images = info->kind == ESPER_DATASET_IMAGES;
    size_t n_in = (size_t)esper_predict_inputs(self->network), n_out = (size_t)esper_predict_outputs(self->network);
    void *kept = esper_mem_alloc(TEST_SAMPLES * n_in * sizeof(float));
    float *inputs = esper_mem_alloc(TEST_SAMPLES * n_in * sizeof(*inputs));
    float *expected = esper_mem_alloc(TEST_SAMPLES * n_out * sizeof(*expected));
    esper_c99_desc desc = {.infer = &self->infer,
                           .fixed = fixed,
                           .name = what->name,
                           .about = what->about,
                           .classes = self->classes,
                           .n_classes = self->n_classes,
                           .features = self->features,
                           .n_features = self->n_features,
                           .mean = images ? info->mean : NULL,
                           .std = images ? info->std : NULL,
                           .samples = kept,
                           .expected = expected,
                           .n_samples = TEST_SAMPLES};
    esper_c99 c99 = {0};
    file files[N_FILES] = {{.text = NULL}};
    struct stat there;
    esper_status status =
        kept != NULL && inputs != NULL && expected != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "samples of a test");

    if (status == ESPER_OK) {
        draw_samples(self, kept, inputs);
        status = compute_expected(self, fixed, inputs, expected);
    }
    if (status == ESPER_OK)
        status = esper_c99_init(&c99, &desc);
    if (status == ESPER_OK) {
        snprintf(files[0].name, sizeof(files[0].name), "%s.h", what->name);
        snprintf(files[1].name, sizeof(files[1].name), "%s.c", what->name);
        snprintf(files[2].name, sizeof(files[2].name), "main.c");
        files[0].text = c99.header;
        files[1].text = c99.source;
        files[2].text = c99.test;
        status = lstat(dir, &there) == 0 ? write_into(dir, files, what->force) : write_whole(dir, files);
        size->weight_bytes = c99.weight_bytes;
        size->memory_bytes = c99.memory_bytes;
        size->macs = esper_infer_macs(&self->infer);
    }
    esper_c99_fini(&c99);
    esper_mem_free(kept);
    esper_mem_free(inputs);
    esper_mem_free(expected);
    return status;
}

esper_status esper_export_c(const esper_export_program *what, const char *dir, esper_export_size *size_out)
{
    esper_export_size size = {0};
    esper_fixed fixed = {0};
    program self;
    esper_status status = ESPER_OK;

    if (!esper_c99_is_name(what->name) || strcmp(what->name, "main") == 0)
        return ESPER_FAIL(
            ESPER_E_CONFIG,
            "'%.40s' is no name for functions and files of C: a letter, then letters, digits and _, at most %d, and not main",
            what->name, ESPER_C99_NAME_CHARS - 1);
    ESPER_TRY(program_init(&self, what->network));
    if (what->int8)
        status = calibrate(&self, &fixed);
    if (status == ESPER_OK && what->int8)
        status = compare_fixed(&self, &fixed, &size);
    if (status == ESPER_OK)
        status = write_c(what, &self, what->int8 ? &fixed : NULL, dir, &size);
    esper_fixed_fini(&fixed);
    program_fini(&self);
    if (status == ESPER_OK)
        *size_out = size;
    return status;
}

/* ------------------------------------------------------------------------------------------------ ONNX */

/* Names of classes, and how inputs are normalised, as JSON: {"classes": [...], "mean": [...]}, a text for each. */
typedef struct notes {
    char           *texts[4];
    esper_onnx_note list[5];
    int             n, n_texts;
} notes;

static size_t room_for_names(const program *self)
{
    size_t room = 4096;

    for (int c = 0; c < self->n_classes; c++)
        room += 6 * strlen(self->classes[c]) + 8;
    for (int f = 0; f < self->n_features; f++)
        room += 6 * strlen(self->features[f].name) + 80;
    return room;
}

static void add_classes(const program *self, esper_json *json)
{
    esper_json_array_begin(json);
    for (int c = 0; c < self->n_classes; c++)
        esper_json_text(json, self->classes[c]);
    esper_json_array_end(json);
}

/* [[name, mean, deviation], ...] */
static void add_features(const program *self, esper_json *json)
{
    esper_json_array_begin(json);
    for (int f = 0; f < self->n_features; f++) {
        esper_json_array_begin(json);
        esper_json_text(json, self->features[f].name);
        esper_json_real(json, (double)self->features[f].mean);
        esper_json_real(json, (double)self->features[f].std);
        esper_json_array_end(json);
    }
    esper_json_array_end(json);
}

static void add_pixels(const program *self, esper_json *json)
{
    const esper_dataset_info *info = esper_dataset_info_get(self->network->engine->data);

    esper_json_object_begin(json);
    for (int which = 0; which < 2; which++) {
        esper_json_key(json, which == 0 ? "mean" : "std"), esper_json_array_begin(json);
        for (int c = 0; c < info->channels; c++)
            esper_json_real(json, (double)(which == 0 ? info->mean : info->std)[c]);
        esper_json_array_end(json);
    }
    esper_json_object_end(json);
}

static esper_status add_note(notes *to, const program *self, const char *key,
                             void (*write)(const program *self, esper_json *json))
{
    size_t room = room_for_names(self);
    char *text = esper_mem_alloc(room);
    esper_json json;

    if (text == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "names");
    to->texts[to->n_texts++] = text;
    esper_json_init(&json, text, room);
    write(self, &json);
    assert(!json.overflow);
    to->list[to->n++] = (esper_onnx_note){key, text};
    return ESPER_OK;
}

static esper_status list_notes(const program *self, notes *to)
{
    to->list[to->n++] = (esper_onnx_note){"task", self->network->engine->task};
    if (self->n_classes > 0)
        ESPER_TRY(add_note(to, self, "classes", add_classes));
    if (self->n_features > 0)
        ESPER_TRY(add_note(to, self, "features", add_features));
    if (esper_dataset_info_get(self->network->engine->data)->kind == ESPER_DATASET_IMAGES)
        ESPER_TRY(add_note(to, self, "pixels", add_pixels));
    return ESPER_OK;
}

esper_status esper_export_onnx(const esper_export_program *what, const char *path)
{
    notes known = {.n = 0};
    esper_onnx onnx = {0};
    program self;
    esper_status status;

    ESPER_TRY(esper_export_check_free(path, what->force));
    ESPER_TRY(program_init(&self, what->network));
    status = list_notes(&self, &known);
    if (status == ESPER_OK) {
        const esper_onnx_desc desc = {
            .infer = &self.infer, .about = what->about, .notes = known.list, .n_notes = known.n};

        status = esper_onnx_init(&onnx, &desc);
    }
    if (status == ESPER_OK)
        status = esper_file_write(path, onnx.bytes, onnx.n);
    esper_onnx_fini(&onnx);
    for (int i = 0; i < known.n_texts; i++)
        esper_mem_free(known.texts[i]);
    program_fini(&self);
    return status;
}
