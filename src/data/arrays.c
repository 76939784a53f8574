/* Arrays of people's own.
 *
 * Samples and labels are found by their names, of which the first pair that is there counts:
 *
 *     X y, x y, images labels, data labels, data target, features labels, features target, x labels,
 *     x_train y_train, X_train y_train, train_images train_labels, images_train labels_train
 *
 * and for the test, if there is one, x_test y_test, X_test y_test, test_images test_labels, images_test labels_test. A .npy file is one
 * array; the others lie beside it in its folder, as .npy files of these names. */
#include "data/arrays.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/npy.h"
#include "data/picture.h"

static const char *const names[ESPER_N_STORES][12][2] = {
    {{"X", "y"},
     {"x", "y"},
     {"images", "labels"},
     {"data", "labels"},
     {"data", "target"},
     {"features", "labels"},
     {"features", "target"},
     {"x", "labels"},
     {"x_train", "y_train"},
     {"X_train", "y_train"},
     {"train_images", "train_labels"},
     {"images_train", "labels_train"}},
    {{"x_test", "y_test"}, {"X_test", "y_test"}, {"test_images", "test_labels"}, {"images_test", "labels_test"}}};

enum { N_NAMES = 12, MAX_LISTED = 400, MAX_BESIDE = 8 };

typedef struct bundle {
    const char        *path;
    esper_safetensors *tensors;
    esper_npz         *npz;
    char              *bytes; /* of an .npz or .npy */
    /* A .npy and those beside it that were asked for. */
    struct {
        char                    *name, *bytes;
        esper_safetensors_tensor array;
    } beside[MAX_BESIDE];
    int n_beside;
} bundle;

typedef struct samples {
    const esper_safetensors_tensor *x, *y;
} samples;

static bool ends_in(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);

    return n > m && strcasecmp(path + n - m, ending) == 0;
}

bool esper_arrays_is_file(const char *path)
{
    return ends_in(path, ".npy") || ends_in(path, ".npz") || ends_in(path, ".safetensors");
}

/* ------------------------------------------------------------------------------------------------ files */

static void bundle_fini(bundle *self)
{
    esper_safetensors_close(self->tensors);
    esper_npz_close(self->npz);
    esper_mem_free(self->bytes);
    for (int i = 0; i < self->n_beside; i++) {
        esper_mem_free(self->beside[i].name);
        esper_mem_free(self->beside[i].bytes);
    }
    *self = (bundle){0};
}

static esper_status bundle_open(bundle *self, const char *path)
{
    size_t n;

    self->path = path;
    if (ends_in(path, ".safetensors"))
        return esper_safetensors_open(path, &self->tensors);
    if (ends_in(path, ".npy"))
        return ESPER_OK; /* read by its name, as those beside it */
    ESPER_TRY(esper_file_read(path, SIZE_MAX / 2, &self->bytes, &n));
    return esper_npz_open(path, self->bytes, n, &self->npz);
}

/* "folder/NAME.npy" beside the file, read once; NULL in array_out where there is none. */
static esper_status find_beside(bundle *self, const char *name, const esper_safetensors_tensor **array_out)
{
    const char *slash = strrchr(self->path, '/');
    int folder = slash != NULL ? (int)(slash + 1 - self->path) : 0;
    char path[4352];
    size_t n;

    *array_out = NULL;
    for (int i = 0; i < self->n_beside; i++)
        if (strcmp(self->beside[i].name, name) == 0) {
            *array_out = &self->beside[i].array;
            return ESPER_OK;
        }
    if (snprintf(path, sizeof(path), "%.*s%s.npy", folder, self->path, name) >= (int)sizeof(path) ||
        access(path, F_OK) != 0 || self->n_beside == MAX_BESIDE)
        return ESPER_OK;
    self->beside[self->n_beside].name = esper_mem_strdup(name);
    if (self->beside[self->n_beside].name == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s", path);
    self->n_beside++;
    ESPER_TRY(esper_file_read(path, SIZE_MAX / 2, &self->beside[self->n_beside - 1].bytes, &n));
    ESPER_TRY(esper_npy_read(self->beside[self->n_beside - 1].name, self->beside[self->n_beside - 1].bytes, n,
                             &self->beside[self->n_beside - 1].array));
    *array_out = &self->beside[self->n_beside - 1].array;
    return ESPER_OK;
}

static esper_status find_array(bundle *self, const char *name, const esper_safetensors_tensor **array_out)
{
    *array_out = NULL;
    if (self->tensors != NULL)
        *array_out = esper_safetensors_find(self->tensors, name);
    for (size_t i = 0; self->npz != NULL && i < esper_npz_count(self->npz); i++)
        if (strcmp(esper_npz_at(self->npz, i)->name, name) == 0)
            *array_out = esper_npz_at(self->npz, i);
    if (self->tensors != NULL || self->npz != NULL)
        return ESPER_OK;
    return find_beside(self, name, array_out);
}

/* Whether a name is that of the .npy file that was given. */
static bool is_given(const bundle *self, const char *name)
{
    const char *slash = strrchr(self->path, '/'), *file = slash != NULL ? slash + 1 : self->path;

    return strlen(file) == strlen(name) + 4 && strncmp(file, name, strlen(name)) == 0;
}

static esper_status find_samples(bundle *self, int store, samples *out)
{
    bool plain = ends_in(self->path, ".npy");

    for (int i = 0; i < N_NAMES && names[store][i][0] != NULL; i++) {
        *out = (samples){0};
        if (plain && store == ESPER_STORE_TRAIN && !is_given(self, names[store][i][0]))
            continue;
        ESPER_TRY(find_array(self, names[store][i][0], &out->x));
        if (out->x != NULL)
            ESPER_TRY(find_array(self, names[store][i][1], &out->y));
        if (out->x != NULL && out->y != NULL)
            return ESPER_OK;
    }
    *out = (samples){0};
    return ESPER_OK;
}

static esper_status fail_not_found(const bundle *self)
{
    char list[MAX_LISTED] = "";
    size_t n = self->npz != NULL       ? esper_npz_count(self->npz)
               : self->tensors != NULL ? esper_safetensors_count(self->tensors)
                                       : 0;

    for (size_t i = 0; i < n; i++) {
        const char *name =
            self->npz != NULL ? esper_npz_at(self->npz, i)->name : esper_safetensors_at(self->tensors, i)->name;

        if (strlen(list) + strlen(name) + 8 < sizeof(list))
            snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i > 0 ? ", " : "", name);
    }
    if (ends_in(self->path, ".npy"))
        return ESPER_FAIL(
            ESPER_E_FORMAT,
            "%s: samples and labels are two files side by side: X.npy and y.npy, images.npy and labels.npy, "
            "or x_train.npy and y_train.npy; give the first of them",
            self->path);
    return ESPER_FAIL(ESPER_E_FORMAT,
                      "%s: samples and labels are not found by their names: expected X and y, images and labels, or "
                      "x_train and y_train (and x_test, y_test). There is: %s",
                      self->path, list[0] != '\0' ? list : "nothing");
}

/* ------------------------------------------------------------------------------------------------ numbers */

static float half_of(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)fraction, -24)
                                  : ldexpf((float)(fraction + 1024), exponent - 25);

    return (bits & 0x8000) != 0 ? -value : value;
}

static double number_at(const esper_safetensors_tensor *array, uint64_t index)
{
    union {
        double   f64;
        float    f32;
        int64_t  i64;
        int32_t  i32;
        int16_t  i16;
        int8_t   i8;
        uint64_t u64;
        uint32_t u32;
        uint16_t u16;
        uint8_t  u8;
    } v = {0};
    size_t bytes = esper_safetensors_dtype_bytes(array->dtype);

    memcpy(&v, (const char *)array->data + index * bytes, bytes);
    switch (array->dtype) {
    case ESPER_SAFETENSORS_F64:
        return v.f64;
    case ESPER_SAFETENSORS_F32:
        return (double)v.f32;
    case ESPER_SAFETENSORS_F16:
        return (double)half_of(v.u16);
    case ESPER_SAFETENSORS_BF16:
        v.u32 = (uint32_t)v.u16 << 16;
        return (double)v.f32;
    case ESPER_SAFETENSORS_I64:
        return (double)v.i64;
    case ESPER_SAFETENSORS_I32:
        return v.i32;
    case ESPER_SAFETENSORS_I16:
        return v.i16;
    case ESPER_SAFETENSORS_I8:
        return v.i8;
    case ESPER_SAFETENSORS_U64:
        return (double)v.u64;
    case ESPER_SAFETENSORS_U32:
        return v.u32;
    case ESPER_SAFETENSORS_U16:
        return v.u16;
    default:
        return v.u8;
    }
}

static void describe_shape(const esper_safetensors_tensor *array, char *text, size_t chars)
{
    int n = snprintf(text, chars, "%s (", esper_safetensors_dtype_name(array->dtype));

    for (int i = 0; i < array->rank && n > 0 && (size_t)n < chars; i++)
        n += snprintf(text + n, chars - (size_t)n, "%s%" PRIu64, i > 0 ? "," : "", array->shape[i]);
    if (n > 0 && (size_t)n + 1 < chars)
        snprintf(text + n, chars - (size_t)n, ")");
}

/* ------------------------------------------------------------------------------------------------ labels */

typedef struct label_list {
    double value[ESPER_DATASET_MAX_CLASSES]; /* rising */
    int    n;
} label_list;

static int find_label(const label_list *list, double value)
{
    int low = 0, high = list->n;

    while (low < high) {
        int middle = (low + high) / 2;

        if (list->value[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The different labels of the training data, in order: classes are called by them. */
static esper_status list_labels(const bundle *self, const samples *s, label_list *list)
{
    for (uint64_t i = 0; i < s->x->shape[0]; i++) {
        double value = number_at(s->y, i);
        int at;

        if (value != floor(value) || !isfinite(value))
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: label %" PRIu64 " is %g: labels are whole numbers", self->path, i,
                              value);
        at = find_label(list, value);
        if (at < list->n && list->value[at] == value)
            continue;
        if (list->n == ESPER_DATASET_MAX_CLASSES)
            return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                              "%s: more than %d different labels: at most so many classes can be told apart",
                              self->path, (int)ESPER_DATASET_MAX_CLASSES);
        memmove(list->value + at + 1, list->value + at, (size_t)(list->n - at) * sizeof(*list->value));
        list->value[at] = value;
        list->n++;
    }
    if (list->n < 2)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: all %" PRIu64 " samples have one label: there is nothing to tell apart",
                          self->path, s->x->shape[0]);
    return ESPER_OK;
}

static esper_status fill_labels(const bundle *self, const samples *s, const label_list *list, uint8_t *labels)
{
    for (uint64_t i = 0; i < s->x->shape[0]; i++) {
        double value = number_at(s->y, i);
        int at = find_label(list, value);

        if (at == list->n || list->value[at] != value)
            return ESPER_FAIL(ESPER_E_FORMAT,
                              "%s: label %g is in the test and not in the training data: it could not be learned",
                              self->path, value);
        labels[i] = (uint8_t)at;
    }
    return ESPER_OK;
}

static esper_status check_samples(const bundle *self, const samples *s)
{
    char x[96], y[96];
    uint64_t n = s->x->rank > 0 ? s->x->shape[0] : 0;

    describe_shape(s->x, x, sizeof(x));
    describe_shape(s->y, y, sizeof(y));
    if (s->x->rank < 2 || n == 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s is %s: expected (N,H,W), (N,H,W,C) or (N,C,H,W) of bytes, or (N,F)",
                          self->path, s->x->name, x);
    if (!(s->y->rank == 1 || (s->y->rank == 2 && s->y->shape[1] == 1)) || s->y->shape[0] != n)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: %s is %s, and there are %" PRIu64 " samples in %s: expected a label for each",
                          self->path, s->y->name, y, n, s->x->name);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ images */

/* How the pixels of an array lie: steps from channel to channel, row to row, column to column. */
typedef struct layout {
    int    channels, height, width;
    size_t channel_step, row_step, column_step;
    bool   last; /* channels come last */
} layout;

static esper_status find_layout(const bundle *self, const esper_safetensors_tensor *x, layout *out)
{
    const uint64_t *d = x->shape;
    bool first = x->rank == 4 && d[1] <= 4, last = x->rank == 4 && d[3] <= 4;
    char text[96];
    uint64_t h, w, c;

    describe_shape(x, text, sizeof(text));
    if (x->dtype != ESPER_SAFETENSORS_U8)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s is %s: images are bytes (uint8) from 0 to 255", self->path, x->name,
                          text);
    if (x->rank == 4 && first == last)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: %s is %s: it cannot be told where its channels are: expected (N,H,W,C) or "
                          "(N,C,H,W) with 1 to 4 channels",
                          self->path, x->name, text);
    h = last || x->rank == 3 ? d[1] : d[2];
    w = last || x->rank == 3 ? d[2] : d[3];
    c = x->rank == 3 ? 1 : last ? d[3] : d[1];
    if (x->rank > 4 || h == 0 || w == 0 || c == 0 || h > ESPER_DATASET_MAX_SIDE || w > ESPER_DATASET_MAX_SIDE)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s is %s: expected (N,H,W), (N,H,W,C) or (N,C,H,W), up to %d a side",
                          self->path, x->name, text, (int)ESPER_DATASET_MAX_SIDE);
    *out = (layout){.channels = (int)c, .height = (int)h, .width = (int)w, .last = last};
    out->column_step = last ? (size_t)c : 1;
    out->row_step = out->column_step * (size_t)w;
    out->channel_step = last ? 1 : (size_t)h * (size_t)w;
    return ESPER_OK;
}

/* One image, (C, H, W) as it is, or brought to another size or to grey. */
static esper_status put_image(const uint8_t *from, const layout *l, const esper_source_plan *plan, uint8_t *scratch,
                              uint8_t *out)
{
    esper_picture picture = {.height = l->height, .width = l->width, .channels = l->channels, .pixels = scratch};
    bool same = plan->height == l->height && plan->width == l->width && plan->channels == l->channels;

    for (int c = 0; c < l->channels; c++)
        for (int i = 0; i < l->height; i++)
            for (int j = 0; j < l->width; j++) {
                uint8_t value =
                    from[(size_t)c * l->channel_step + (size_t)i * l->row_step + (size_t)j * l->column_step];

                if (same)
                    out[((size_t)c * (size_t)l->height + (size_t)i) * (size_t)l->width + (size_t)j] = value;
                else
                    scratch[((size_t)i * (size_t)l->width + (size_t)j) * (size_t)l->channels + (size_t)c] = value;
            }
    return same ? ESPER_OK : esper_picture_fit(&picture, plan->channels, plan->height, plan->width, out);
}

static esper_status fill_images(const samples *s, const layout *l, const esper_source_plan *plan, uint8_t *images)
{
    size_t n_from = (size_t)l->channels * (size_t)l->height * (size_t)l->width;
    size_t n_to = (size_t)plan->channels * (size_t)plan->height * (size_t)plan->width;
    uint8_t *scratch = esper_mem_alloc(n_from);
    esper_status status = scratch != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "an image");

    for (uint64_t i = 0; status == ESPER_OK && i < s->x->shape[0]; i++)
        status = put_image((const uint8_t *)s->x->data + i * n_from, l, plan, scratch, images + i * n_to);
    esper_mem_free(scratch);
    return status;
}

static esper_status plan_images(const esper_dataset_desc *desc, const bundle *self, const layout *l,
                                esper_source_plan *plan)
{
    plan->channels = desc->grey ? 1 : l->channels;
    ESPER_TRY(esper_image_size_read(desc->image_size, &plan->height, &plan->width));
    if (plan->height == 0) {
        plan->height = l->height;
        plan->width = l->width;
    }
    if (l->channels != 1 && l->channels != 3 &&
        (plan->channels != l->channels || plan->height != l->height || plan->width != l->width))
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "%s: images of %d channels are taken as they are: leave --image-size and --grey out",
                          self->path, l->channels);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ rows */

static esper_status fill_rows(const bundle *self, const samples *s, float *rows, uint64_t *n_missing)
{
    uint64_t n = s->x->shape[0] * s->x->shape[1];

    for (uint64_t i = 0; i < n; i++) {
        rows[i] = (float)number_at(s->x, i);
        if (isinf(rows[i]))
            return ESPER_FAIL(ESPER_E_FORMAT,
                              "%s: row %" PRIu64 ", column %" PRIu64 " of %s is infinite, or too large for a float",
                              self->path, i / s->x->shape[1], i % s->x->shape[1], s->x->name);
        if (isnan(rows[i])) {
            rows[i] = NAN; /* one of the many that there are */
            (*n_missing)++;
        }
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ all of it */

static void tell_shapes(esper_prepared *set, const samples s[ESPER_N_STORES])
{
    char x[96], y[96];

    for (int k = 0; k < ESPER_N_STORES; k++)
        if (s[k].x != NULL) {
            describe_shape(s[k].x, x, sizeof(x));
            describe_shape(s[k].y, y, sizeof(y));
            esper_prepared_remark(set, "%s: %s %s with labels %s %s", k == ESPER_STORE_TRAIN ? "samples" : "test",
                                  s[k].x->name, x, s[k].y->name, y);
        }
}

static esper_status fill_set(const esper_dataset_desc *desc, bundle *self, esper_dataset_kind kind,
                             const samples s[ESPER_N_STORES], esper_prepared *set)
{
    esper_source_plan *plan = &set->plan;
    label_list labels = {.n = 0};
    layout layouts[ESPER_N_STORES];
    uint64_t n_missing = 0;

    ESPER_TRY(list_labels(self, &s[ESPER_STORE_TRAIN], &labels));
    plan->classes = labels.n;
    for (int c = 0; c < labels.n; c++) {
        char name[32];

        snprintf(name, sizeof(name), "%.0f", labels.value[c]);
        esper_prepared_class(set, name);
    }
    for (int k = 0; k < ESPER_N_STORES; k++) {
        if (s[k].x == NULL)
            continue;
        plan->n_items[k] = s[k].x->shape[0];
        if (kind == ESPER_DATASET_IMAGES)
            ESPER_TRY(find_layout(self, s[k].x, &layouts[k]));
    }
    if (kind == ESPER_DATASET_IMAGES)
        ESPER_TRY(plan_images(desc, self, &layouts[ESPER_STORE_TRAIN], plan));
    else
        plan->features = plan->numbers = (int)s[ESPER_STORE_TRAIN].x->shape[1];
    ESPER_TRY(esper_prepared_alloc(set));
    tell_shapes(set, s);
    for (int k = 0; k < ESPER_N_STORES; k++) {
        if (s[k].x == NULL)
            continue;
        ESPER_TRY(fill_labels(self, &s[k], &labels, set->stores[k].labels));
        if (kind == ESPER_DATASET_IMAGES)
            ESPER_TRY(fill_images(&s[k], &layouts[k], plan, set->stores[k].images));
        else
            ESPER_TRY(fill_rows(self, &s[k], set->stores[k].rows, &n_missing));
    }
    if (kind == ESPER_DATASET_IMAGES) {
        esper_images_normalise(&set->stores[ESPER_STORE_TRAIN], plan);
        esper_prepared_remark(set, "%dx%d%s%s", plan->height, plan->width, plan->channels == 1 ? ", grey" : "",
                              plan->channels == 1               ? ""
                              : layouts[ESPER_STORE_TRAIN].last ? ", channels last"
                                                                : ", channels first");
        esper_images_tell_normalised(set);
    } else if (n_missing > 0)
        esper_prepared_remark(set, "%" PRIu64 " numbers are missing (NaN): the mean takes their place", n_missing);
    for (int f = 0; f < plan->features; f++)
        esper_prepared_feature(set, "column %d", f);
    return ESPER_OK;
}

/* Whether the arrays of the test fit those of the training. */
static esper_status check_pair(const bundle *self, const samples s[ESPER_N_STORES])
{
    const esper_safetensors_tensor *a = s[ESPER_STORE_TRAIN].x, *b = s[ESPER_STORE_TEST].x;
    bool same = b == NULL || (a->rank == b->rank && a->dtype == b->dtype);

    for (int i = 1; same && b != NULL && i < a->rank; i++)
        same = a->shape[i] == b->shape[i];
    return same
               ? ESPER_OK
               : ESPER_FAIL(ESPER_E_FORMAT, "%s: %s and %s are of another type or shape", self->path, a->name, b->name);
}

static esper_status open_samples(const char *path, bundle *self, samples s[ESPER_N_STORES])
{
    ESPER_TRY(bundle_open(self, path));
    ESPER_TRY(find_samples(self, ESPER_STORE_TRAIN, &s[ESPER_STORE_TRAIN]));
    if (s[ESPER_STORE_TRAIN].x == NULL)
        return fail_not_found(self);
    ESPER_TRY(find_samples(self, ESPER_STORE_TEST, &s[ESPER_STORE_TEST]));
    for (int k = 0; k < ESPER_N_STORES; k++)
        if (s[k].x != NULL)
            ESPER_TRY(check_samples(self, &s[k]));
    return check_pair(self, s);
}

esper_status esper_arrays_prepare(const esper_dataset_desc *desc, esper_dataset_kind kind, esper_prepared *set_out)
{
    samples s[ESPER_N_STORES] = {0};
    bundle self = {0};
    esper_status status = open_samples(desc->path, &self, s);

    if (status == ESPER_OK && (s[0].x->rank == 2) != (kind == ESPER_DATASET_VECTORS))
        status = ESPER_FAIL(ESPER_E_FORMAT, "%s: %s holds %s: use the task `%s`", desc->path, s[0].x->name,
                            s[0].x->rank == 2 ? "rows" : "images", s[0].x->rank == 2 ? "table" : "images");
    if (status == ESPER_OK && s[0].x->rank == 2 && s[0].x->shape[1] > ESPER_DATASET_MAX_FEATURES)
        status = ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: %" PRIu64 " numbers in a row: at most %d", desc->path,
                            s[0].x->shape[1], (int)ESPER_DATASET_MAX_FEATURES);
    if (status == ESPER_OK)
        status = fill_set(desc, &self, kind, s, set_out);
    bundle_fini(&self);
    return status;
}

esper_status esper_arrays_kind(const char *path, esper_dataset_kind *kind_out)
{
    samples s[ESPER_N_STORES] = {0};
    bundle self = {0};
    esper_status status = open_samples(path, &self, s);

    if (status == ESPER_OK)
        *kind_out = s[0].x->rank == 2 ? ESPER_DATASET_VECTORS : ESPER_DATASET_IMAGES;
    bundle_fini(&self);
    return status;
}

esper_status esper_arrays_hash(const char *path, uint64_t *hash_out)
{
    char beside[4352];
    const char *slash = strrchr(path, '/');
    uint64_t hash = 0, one;

    ESPER_TRY(esper_prepared_hash_file(path, &hash));
    for (int k = 0; k < ESPER_N_STORES && ends_in(path, ".npy"); k++)
        for (int i = 0; i < N_NAMES && names[k][i][0] != NULL; i++)
            for (int part = 0; part < 2; part++) {
                snprintf(beside, sizeof(beside), "%.*s%s.npy", slash != NULL ? (int)(slash + 1 - path) : 0, path,
                         names[k][i][part]);
                if (access(beside, F_OK) == 0 && esper_prepared_hash_file(beside, &one) == ESPER_OK)
                    hash = hash * 0x9e3779b97f4a7c15u + one;
            }
    *hash_out = hash;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ samples alone */

/* Samples by their names, or the only array that could be some. */
static esper_status find_unlabelled(bundle *self, const esper_safetensors_tensor **x_out)
{
    size_t n = self->npz != NULL       ? esper_npz_count(self->npz)
               : self->tensors != NULL ? esper_safetensors_count(self->tensors)
                                       : 0;
    int n_found = 0;

    *x_out = NULL;
    if (ends_in(self->path, ".npy")) {
        const char *slash = strrchr(self->path, '/'), *file = slash != NULL ? slash + 1 : self->path;
        char name[256];

        size_t n_bytes;

        snprintf(name, sizeof(name), "%.*s", (int)strlen(file) - 4, file);
        self->beside[0].name = esper_mem_strdup(name);
        if (self->beside[0].name == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s", self->path);
        self->n_beside = 1; /* the file that was given, however its ending is written */
        ESPER_TRY(esper_file_read(self->path, SIZE_MAX / 2, &self->beside[0].bytes, &n_bytes));
        ESPER_TRY(esper_npy_read(self->beside[0].name, self->beside[0].bytes, n_bytes, &self->beside[0].array));
        *x_out = &self->beside[0].array;
        return ESPER_OK;
    }
    for (int s = ESPER_N_STORES - 1; s >= 0 && *x_out == NULL; s--) /* those of a test first */
        for (int i = 0; i < N_NAMES && names[s][i][0] != NULL && *x_out == NULL; i++)
            ESPER_TRY(find_array(self, names[s][i][0], x_out));
    for (size_t i = 0; i < n && *x_out == NULL; i++)
        n_found += (self->npz != NULL ? esper_npz_at(self->npz, i) : esper_safetensors_at(self->tensors, i))->rank >= 2;
    for (size_t i = 0; i < n && *x_out == NULL && n_found == 1; i++) {
        const esper_safetensors_tensor *array =
            self->npz != NULL ? esper_npz_at(self->npz, i) : esper_safetensors_at(self->tensors, i);

        *x_out = array->rank >= 2 ? array : NULL;
    }
    return ESPER_OK;
}

static esper_status take_unlabelled(bundle *self, esper_dataset_kind kind, const esper_source_plan *plan,
                                    esper_store *store)
{
    samples s = {0};
    layout l;
    uint64_t n_missing = 0;
    char text[96];

    ESPER_TRY(find_unlabelled(self, &s.x));
    if (s.x == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: no array in it is called x_test, X, images or the like", self->path);
    describe_shape(s.x, text, sizeof(text));
    if (s.x->rank < 2 || s.x->shape[0] == 0 || s.x->shape[0] > UINT32_MAX)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s is %s: expected a sample for each row", self->path, s.x->name, text);
    store->n_items = s.x->shape[0];
    if (kind == ESPER_DATASET_VECTORS) {
        if (s.x->rank != 2 || s.x->shape[1] != (uint64_t)plan->features)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s is %s, and the network takes rows of %d numbers", self->path,
                              s.x->name, text, plan->features);
        store->rows = esper_mem_alloc((size_t)store->n_items * (size_t)plan->features * sizeof(float));
        if (store->rows == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s", self->path);
        return fill_rows(self, &s, store->rows, &n_missing);
    }
    ESPER_TRY(find_layout(self, s.x, &l));
    if (l.channels != plan->channels &&
        ((l.channels != 1 && l.channels != 3) || (plan->channels != 1 && plan->channels != 3)))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %s is %s, and the network takes images of %d channels", self->path,
                          s.x->name, text, plan->channels);
    store->images =
        esper_mem_alloc((size_t)store->n_items * (size_t)plan->channels * (size_t)plan->height * (size_t)plan->width);
    return store->images != NULL ? fill_images(&s, &l, plan, store->images)
                                 : ESPER_FAIL(ESPER_E_NOMEM, "%s", self->path);
}

esper_status esper_arrays_read(const char *path, esper_dataset_kind kind, const esper_source_plan *plan,
                               esper_store *store_out)
{
    bundle self = {0};
    esper_status status = bundle_open(&self, path);

    if (status == ESPER_OK)
        status = take_unlabelled(&self, kind, plan, store_out);
    bundle_fini(&self);
    return status;
}
