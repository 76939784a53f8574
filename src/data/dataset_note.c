/* What is known of data that is not there: a description that travels with the network, and a set without samples made of it.
 *
 *     {"source": "table", "features": 3, "scaled": 2, "classes": 2, "numbers": [["age", 37.5, 11.2], ...], "columns": [["age", "number
 *      from 17 to 90"], ...]}
 *
 * The text comes from a file, so nothing in it is believed that could not be used. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/source.h"

/* ------------------------------------------------------------------------------------------------ describing */

static void write_channels(esper_json *json, const char *key, const float *values, int n)
{
    esper_json_key(json, key), esper_json_array_begin(json);
    for (int c = 0; c < n; c++)
        esper_json_real(json, (double)values[c]);
    esper_json_array_end(json);
}

static void write_numbers(esper_json *json, const esper_dataset *set)
{
    float mean, std;

    esper_json_key(json, "numbers"), esper_json_array_begin(json);
    for (uint32_t f = 0; f < esper_dataset_feature_count(set); f++) {
        esper_json_array_begin(json);
        esper_json_text(json, esper_dataset_feature(set, f, &mean, &std));
        esper_json_real(json, (double)mean);
        esper_json_real(json, (double)std);
        esper_json_array_end(json);
    }
    esper_json_array_end(json);
    esper_json_key(json, "columns"), esper_json_array_begin(json);
    for (uint32_t i = 0; i < esper_dataset_column_count(set); i++) {
        const char *about, *name = esper_dataset_column(set, i, &about);

        esper_json_array_begin(json);
        esper_json_text(json, name);
        esper_json_text(json, about);
        esper_json_array_end(json);
    }
    esper_json_array_end(json);
}

/* As much as all names could take, each character escaped. */
static size_t room_for(const esper_dataset *set)
{
    size_t room = 4096;
    float mean, std;

    for (uint32_t f = 0; f < esper_dataset_feature_count(set); f++)
        room += 6 * strlen(esper_dataset_feature(set, f, &mean, &std)) + 80;
    for (uint32_t i = 0; i < esper_dataset_column_count(set); i++) {
        const char *about, *name = esper_dataset_column(set, i, &about);

        room += 6 * (strlen(name) + strlen(about)) + 16;
    }
    return room;
}

esper_status esper_dataset_describe(const esper_dataset *set, esper_page *out)
{
    const esper_dataset_info *info = esper_dataset_info_get(set);
    size_t room = room_for(set);
    char *text = esper_mem_alloc(room);
    esper_json json;

    if (text == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "description of the data");
    esper_json_init(&json, text, room);
    esper_json_object_begin(&json);
    esper_json_key(&json, "source"), esper_json_text(&json, info->name);
    if (info->kind == ESPER_DATASET_TOKENS) {
        esper_json_key(&json, "context"), esper_json_int(&json, info->context);
        esper_json_key(&json, "vocab"), esper_json_int(&json, info->vocab);
    } else {
        esper_json_key(&json, "classes"), esper_json_int(&json, info->classes);
        if (esper_dataset_is_part(set)) /* which of the source's they are their names tell */
            esper_json_key(&json, "part"), esper_json_bool(&json, true);
    }
    if (info->kind == ESPER_DATASET_IMAGES) {
        esper_json_key(&json, "channels"), esper_json_int(&json, info->channels);
        esper_json_key(&json, "height"), esper_json_int(&json, info->height);
        esper_json_key(&json, "width"), esper_json_int(&json, info->width);
        write_channels(&json, "mean", info->mean, info->channels);
        write_channels(&json, "std", info->std, info->channels);
    }
    if (info->kind == ESPER_DATASET_VECTORS) {
        esper_json_key(&json, "features"), esper_json_int(&json, info->features);
        esper_json_key(&json, "scaled"), esper_json_int(&json, esper_dataset_scaled(set));
        write_numbers(&json, set);
    }
    esper_json_object_end(&json);
    esper_page_print(out, "%s", text);
    esper_mem_free(text);
    return json.overflow ? ESPER_FAIL(ESPER_E_NOMEM, "description of the data") : out->status;
}

/* ------------------------------------------------------------------------------------------------ recalling */

typedef struct recollection {
    esper_source_blank blank;
    esper_source_texts texts;
    float             *mean, *std; /* of rows */
} recollection;

static esper_status fail_unknown(const char *what)
{
    return ESPER_FAIL(ESPER_E_FORMAT, "the description of the data is not what Esper writes: %s", what);
}

static bool read_count(const json_t *from, const char *key, int least, int most, int *value_out)
{
    const json_t *value = json_object_get(from, key);

    if (!json_is_integer(value) || json_integer_value(value) < least || json_integer_value(value) > most)
        return false;
    *value_out = (int)json_integer_value(value);
    return true;
}

static bool read_float(const json_t *value, float *value_out)
{
    *value_out = json_is_number(value) ? (float)json_number_value(value) : NAN;
    return isfinite(*value_out);
}

static bool read_channels(const json_t *from, const char *key, int n, float *values)
{
    const json_t *list = json_object_get(from, key);

    if (json_array_size(list) != (size_t)n)
        return false;
    for (int c = 0; c < n; c++)
        if (!read_float(json_array_get(list, (size_t)c), &values[c]))
            return false;
    return true;
}

static void add_text(recollection *self, const char *text)
{
    esper_page_print(&self->texts.page, "%s%c", text, 0);
}

static esper_status recall_images(const json_t *from, esper_dataset_info *info)
{
    if (!read_count(from, "channels", 1, ESPER_DATASET_MAX_CHANNELS, &info->channels) ||
        !read_count(from, "height", 1, ESPER_DATASET_MAX_SIDE, &info->height) ||
        !read_count(from, "width", 1, ESPER_DATASET_MAX_SIDE, &info->width) ||
        !read_channels(from, "mean", info->channels, info->mean) ||
        !read_channels(from, "std", info->channels, info->std))
        return fail_unknown("images");
    for (int c = 0; c < info->channels; c++)
        if (!(info->std[c] > 0.0f))
            return fail_unknown("a deviation");
    return ESPER_OK;
}

static esper_status recall_names(recollection *self, const json_t *from)
{
    const json_t *numbers = json_object_get(from, "numbers"), *columns = json_object_get(from, "columns");
    size_t n = json_array_size(numbers);

    if (n != 0 && n != (size_t)self->blank.info.features)
        return fail_unknown("names of numbers");
    for (size_t i = 0; i < json_array_size(columns); i++) {
        const char *name = json_string_value(json_array_get(json_array_get(columns, i), 0));
        const char *about = json_string_value(json_array_get(json_array_get(columns, i), 1));

        if (name == NULL || about == NULL || i >= ESPER_DATASET_MAX_FEATURES)
            return fail_unknown("columns");
        add_text(self, name);
        add_text(self, about);
        self->texts.n_columns++;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(numbers, i);
        const char *name = json_string_value(json_array_get(entry, 0));
        float mean, std;

        if (name == NULL || !read_float(json_array_get(entry, 1), &mean) ||
            !read_float(json_array_get(entry, 2), &std) || !(std > 0.0f))
            return fail_unknown("numbers");
        if ((int)i < self->blank.n_scaled) {
            self->mean[i] = mean;
            self->std[i] = std;
        }
        add_text(self, name);
        self->texts.n_features++;
    }
    return (int)n >= self->blank.n_scaled ? ESPER_OK : fail_unknown("numbers that are normalised");
}

static esper_status recall_rows(recollection *self, const json_t *from)
{
    esper_source_blank *blank = &self->blank;
    size_t bytes;

    if (!read_count(from, "features", 1, ESPER_DATASET_MAX_FEATURES, &blank->info.features) ||
        !read_count(from, "scaled", 0, blank->info.features, &blank->n_scaled))
        return fail_unknown("rows");
    bytes = (size_t)blank->info.features * sizeof(float);
    blank->row_mean = self->mean = esper_mem_alloc(bytes);
    blank->row_std = self->std = esper_mem_alloc(bytes);
    if (self->mean == NULL || self->std == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "rows of %d numbers", blank->info.features);
    return recall_names(self, from);
}

/* Own data has names of its own; the others' are known by their source, unless there are but some of them. */
static esper_status recall_classes(recollection *self, const json_t *from, esper_source source, const char *classes)
{
    json_t *list;
    bool good;

    if (!esper_source_is_own(source) && !json_is_true(json_object_get(from, "part")))
        return ESPER_OK;
    list = classes != NULL ? json_loads(classes, 0, NULL) : NULL;
    good = list != NULL && json_array_size(list) == (size_t)self->blank.info.classes;
    for (size_t i = 0; good && i < json_array_size(list); i++) {
        good = json_string_value(json_array_get(list, i)) != NULL;
        if (good)
            add_text(self, json_string_value(json_array_get(list, i)));
    }
    json_decref(list);
    self->texts.n_classes = (uint32_t)self->blank.info.classes;
    return good ? ESPER_OK : fail_unknown("names of classes");
}

static esper_status recall_all(recollection *self, const json_t *from, const char *classes)
{
    const char *name = json_string_value(json_object_get(from, "source"));
    esper_dataset_info *info = &self->blank.info;
    int source = 0;

    while (source < ESPER_N_SOURCES && (name == NULL || strcmp(name, esper_source_name((esper_source)source)) != 0))
        source++;
    if (source == ESPER_N_SOURCES)
        return fail_unknown("its source");
    info->name = esper_source_name((esper_source)source);
    info->kind = esper_source_kind((esper_source)source);
    if (info->kind == ESPER_DATASET_TOKENS)
        return read_count(from, "context", 1, 65536, &info->context) &&
                       read_count(from, "vocab", 1, ESPER_DATASET_MAX_VOCAB, &info->vocab)
                   ? ESPER_OK
                   : fail_unknown("tokens");
    if (!read_count(from, "classes", 1, ESPER_DATASET_MAX_CLASSES, &info->classes))
        return fail_unknown("classes");
    ESPER_TRY(recall_classes(self, from, (esper_source)source, classes));
    return info->kind == ESPER_DATASET_IMAGES ? recall_images(from, info) : recall_rows(self, from);
}

esper_status esper_dataset_recall(const char *text, const char *classes, esper_dataset **set_out)
{
    json_t *from = json_loads(text, 0, NULL);
    recollection self = {.mean = NULL};
    esper_status status = from != NULL ? recall_all(&self, from, classes) : fail_unknown("JSON");

    if (status == ESPER_OK)
        status = self.texts.page.status;
    if (status == ESPER_OK)
        status = esper_dataset_open_empty(&self.blank, &self.texts, set_out);
    esper_page_fini(&self.texts.page);
    esper_mem_free(self.mean);
    esper_mem_free(self.std);
    json_decref(from);
    return status;
}
