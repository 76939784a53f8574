/* Files to samples. Tables: what a column became is told by the set's columns and numbers (data/table.c writes them). */
#include "data/inputs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/utf8.h"
#include "data/arrays.h"
#include "data/csv.h"
#include "data/picture.h"

enum { MAX_FILE_BYTES = 1 << 30, LISTED_CHARS = 300 };

static bool ends_in(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);

    return n > m && strcasecmp(path + n - m, ending) == 0;
}

bool esper_inputs_is_image(const char *path)
{
    return ends_in(path, ".png") || ends_in(path, ".jpg") || ends_in(path, ".jpeg");
}

/* ------------------------------------------------------------------------------------------------ images */

static esper_status take_bytes(const esper_dataset *set, const uint8_t *pixels, uint64_t n, esper_inputs *out)
{
    const esper_dataset_info *info = esper_dataset_info_get(set);
    uint64_t plane = (uint64_t)info->height * (uint64_t)info->width, each = plane * (uint64_t)info->channels;

    out->values = esper_mem_alloc((size_t)(n * each) * sizeof(*out->values));
    if (out->values == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%" PRIu64 " images", n);
    for (uint64_t i = 0; i < n * each; i++)
        out->values[i] = esper_dataset_levels(set, (int)(i / plane % (uint64_t)info->channels))[pixels[i]];
    out->n = n;
    return ESPER_OK;
}

static esper_status read_picture(const esper_dataset *set, const char *path, esper_inputs *out)
{
    const esper_dataset_info *info = esper_dataset_info_get(set);
    size_t n_pixels = (size_t)info->channels * (size_t)info->height * (size_t)info->width, n;
    uint8_t *pixels = esper_mem_alloc(n_pixels);
    esper_picture picture = {0};
    char *bytes = NULL;
    esper_status status = pixels != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "%s", path);

    if (status == ESPER_OK && info->channels != 1 && info->channels != 3)
        status = ESPER_FAIL(ESPER_E_CONFIG, "%s: the network takes images of %d channels, which no image file has",
                            path, info->channels);
    if (status == ESPER_OK)
        status = esper_file_read(path, MAX_FILE_BYTES, &bytes, &n);
    if (status == ESPER_OK)
        status = esper_picture_decode(path, (const uint8_t *)bytes, n, &picture);
    if (status == ESPER_OK)
        status = esper_picture_fit(&picture, info->channels, info->height, info->width, pixels);
    if (status == ESPER_OK)
        status = take_bytes(set, pixels, 1, out);
    esper_picture_fini(&picture);
    esper_mem_free(bytes);
    esper_mem_free(pixels);
    return status;
}

/* ------------------------------------------------------------------------------------------------ rows */

/* Less the mean, by the deviation; a missing number is the mean. */
static void scale_row(const esper_dataset *set, float *row)
{
    for (uint32_t f = 0; f < esper_dataset_feature_count(set); f++) {
        float mean, std;

        (void)esper_dataset_feature(set, f, &mean, &std);
        row[f] = isnan(row[f]) ? 0.0f : (row[f] - mean) / std;
    }
}

static esper_status read_arrays(const esper_dataset *set, const char *path, esper_inputs *out)
{
    const esper_dataset_info *info = esper_dataset_info_get(set);
    const esper_source_plan plan = {
        .channels = info->channels, .height = info->height, .width = info->width, .features = info->features};
    esper_store store = {0};
    esper_status status = esper_arrays_read(path, info->kind, &plan, &store);

    if (status == ESPER_OK && info->kind == ESPER_DATASET_IMAGES)
        status = take_bytes(set, store.images, store.n_items, out);
    if (status == ESPER_OK && info->kind == ESPER_DATASET_VECTORS) {
        for (uint64_t i = 0; i < store.n_items; i++)
            scale_row(set, store.rows + i * (uint64_t)info->features);
        out->values = store.rows;
        out->n = store.n_items;
        store.rows = NULL;
    }
    esper_mem_free(store.images);
    esper_mem_free(store.rows);
    return status;
}

/* What became of a column in training. */
typedef enum fate { FATE_NUMBER, FATE_WORDS, FATE_OTHER } fate;

typedef struct encoding {
    const char *name;
    fate        fate;
    int         at, n_words; /* its (first) number in a row */
    int         gap;         /* the number that is 1 where it is missing; -1 = none */
    bool        is_target, found;
} encoding;

typedef struct table {
    const esper_dataset *set;
    const char          *path;
    int                  features;
    encoding            *columns; /* (n_columns) of the set; none: every column of the file is a number */
    int                  n_columns;
    /* The file. */
    char    **first;  /* (n_first) cells of its first line */
    int      *which;  /* (n_first) the set's column; -1 = another */
    int       n_first;
    float    *rows;
    uint64_t  n_rows, room, n_new_words;
    char      new_word[96];
} table;

/* The descriptions are data/table.c's own words ("number from 1 to 9, 3 missing", "category of 4 values"), in the order of the file;
 * numbers of a row come in that order too, those of the columns of numbers first. */
static esper_status find_encodings(table *self)
{
    int at = 0;

    self->n_columns = (int)esper_dataset_column_count(self->set);
    self->columns = esper_mem_alloc((size_t)(self->n_columns + 1) * sizeof(*self->columns));
    if (self->columns == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: columns", self->path);
    for (int i = 0; i < self->n_columns; i++) {
        encoding *column = &self->columns[i];
        const char *about;
        unsigned n_words;

        *column = (encoding){.fate = FATE_OTHER, .gap = -1};
        column->name = esper_dataset_column(self->set, (uint32_t)i, &about);
        column->is_target = strncmp(about, "target, ", 8) == 0;
        if (strncmp(about, "number from ", 12) == 0) {
            column->fate = FATE_NUMBER;
            column->at = at++;
        } else if (sscanf(about, "category of %u values", &n_words) == 1 && n_words <= ESPER_CSV_MAX_WORDS) {
            column->fate = FATE_WORDS;
            column->n_words = (int)n_words;
        }
    }
    for (int i = 0; i < self->n_columns; i++) {
        encoding *column = &self->columns[i];
        const char *about;

        (void)esper_dataset_column(self->set, (uint32_t)i, &about);
        if (column->fate == FATE_WORDS) {
            column->at = at;
            at += column->n_words;
        }
        if (column->fate != FATE_OTHER && ends_in(about, " missing"))
            column->gap = at++;
    }
    if (self->n_columns > 0 && (at != self->features || (uint32_t)at != esper_dataset_feature_count(self->set)))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: what is known of the columns gives %d numbers, and a row has %d",
                          self->path, at, self->features);
    return ESPER_OK;
}

/* Whether a text of a file is what the set keeps of it: what commands terminals is shown as so many '?' there (esper_utf8_show). */
static bool is_shown_as(const char *shown, const char *from, size_t n)
{
    if (strlen(shown) != n)
        return false;
    for (size_t i = 0, length; i < n; i += length) {
        length = esper_utf8_length((const uint8_t *)from + i, n - i);
        length = length > 0 ? length : 1;
        if (esper_utf8_is_control((const uint8_t *)from + i, length) ? strspn(shown + i, "?") < length
                                                                     : memcmp(shown + i, from + i, length) != 0)
            return false;
    }
    return true;
}

/* Where the first line names columns, one without a name is called by its number, as data/csv.c does it. */
static void match_unnamed(table *self)
{
    char number[32];

    for (int i = 0; i < self->n_first; i++) {
        snprintf(number, sizeof(number), "column %d", i + 1);
        for (int c = 0; self->first[i][0] == '\0' && c < self->n_columns; c++)
            if (!self->columns[c].found && strcmp(self->columns[c].name, number) == 0) {
                self->which[i] = c;
                self->columns[c].found = true;
            }
    }
}

/* Columns by their names, where the first line has those of all that are read; else by their places, with the target or without. */
static esper_status match_columns(table *self, bool *has_header_out)
{
    char missing[LISTED_CHARS] = "";
    int n_wanted = 0, n_found = 0, n_named = 0;
    bool passed = false; /* the target: there is one, whatever a file says */

    for (int i = 0; i < self->n_first; i++) {
        self->which[i] = -1;
        for (int c = 0; c < self->n_columns; c++)
            if (is_shown_as(self->columns[c].name, self->first[i], strlen(self->first[i]))) {
                self->which[i] = c;
                self->columns[c].found = true;
                n_named++;
            }
    }
    if (n_named > 0)
        match_unnamed(self);
    for (int c = 0; c < self->n_columns; c++) {
        const encoding *column = &self->columns[c];

        if (column->fate == FATE_OTHER)
            continue;
        n_wanted++;
        n_found += column->found;
        if (!column->found && strlen(missing) + strlen(column->name) + 8 < sizeof(missing))
            snprintf(missing + strlen(missing), sizeof(missing) - strlen(missing), "%s'%s'",
                     missing[0] != '\0' ? ", " : "", column->name);
    }
    *has_header_out = n_named > 0;
    if (n_named > 0 && n_found < n_wanted)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the network was trained with columns that are not there: %s", self->path,
                          missing);
    if (n_named > 0)
        return ESPER_OK;
    if (self->n_columns == 0 && self->n_first == self->features)
        return ESPER_OK; /* arrays have no columns: a number for each */
    for (int i = 0, c = 0; i < self->n_first; i++, c++) {
        if (!passed && self->n_first == self->n_columns - 1 && self->columns[c].is_target) {
            passed = true;
            c++;
        }
        self->which[i] = c;
    }
    if (self->n_first == self->n_columns || self->n_first == self->n_columns - 1)
        return ESPER_OK;
    return ESPER_FAIL(ESPER_E_FORMAT, "%s: %d columns without the names of the training data, which had %d", self->path,
                      self->n_first, self->n_columns > 0 ? self->n_columns : self->features);
}

static esper_status begin_row(table *self)
{
    float *row;

    if (self->n_rows == self->room) {
        uint64_t room = 2 * self->room + 64;
        float *larger = esper_mem_grow(self->rows, (size_t)room * (size_t)self->features * sizeof(*larger));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: %" PRIu64 " rows", self->path, room);
        self->rows = larger;
        self->room = room;
    }
    row = self->rows + self->n_rows++ * (uint64_t)self->features;
    memset(row, 0, (size_t)self->features * sizeof(*row));
    return ESPER_OK;
}

static esper_status take_number(const table *self, const esper_csv_cell *cell, const char *name, float *to)
{
    double value;

    if (cell->missing) {
        *to = NAN;
        return ESPER_OK;
    }
    if (!esper_csv_number(cell->from, cell->to, &value) || !isfinite((float)value))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: line %" PRIu64 ", column '%s': '%.*s' is no number", self->path,
                          cell->line, name, cell->to - cell->from < 40 ? (int)(cell->to - cell->from) : 40, cell->from);
    *to = (float)value;
    return ESPER_OK;
}

/* A word that training has not seen is none of those it has. */
static void take_word(table *self, const esper_csv_cell *cell, const encoding *column, float *row)
{
    size_t before = strlen(column->name) + 3, n = (size_t)(cell->to - cell->from);
    float mean, std;

    for (int w = 0; w < column->n_words; w++) {
        const char *feature = esper_dataset_feature(self->set, (uint32_t)(column->at + w), &mean, &std);

        if (strlen(feature) >= before && is_shown_as(feature + before, cell->from, n)) {
            row[column->at + w] = 1.0f;
            return;
        }
    }
    if (self->n_new_words++ == 0)
        snprintf(self->new_word, sizeof(self->new_word), "'%.*s' in the column '%.32s'", n < 32 ? (int)n : 32,
                 cell->from, column->name);
}

static esper_status take_cell(table *self, const esper_csv_cell *cell)
{
    float *row = self->rows + (self->n_rows - 1) * (uint64_t)self->features;
    const encoding *column;

    if (self->n_columns == 0)
        return take_number(self, cell, self->first[cell->column], &row[cell->column]);
    if (self->which[cell->column] < 0)
        return ESPER_OK;
    column = &self->columns[self->which[cell->column]];
    if (column->fate == FATE_OTHER)
        return ESPER_OK;
    if (cell->missing && column->gap >= 0)
        row[column->gap] = 1.0f;
    if (column->fate == FATE_NUMBER)
        return take_number(self, cell, column->name, &row[column->at]);
    if (!cell->missing)
        take_word(self, cell, column, row);
    return ESPER_OK;
}

/* The first line is all there: names, or the first row. */
static esper_status end_first_line(table *self, const esper_csv_cell *last)
{
    bool has_header;

    self->which = esper_mem_alloc((size_t)self->n_first * sizeof(*self->which));
    if (self->which == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: columns", self->path);
    ESPER_TRY(match_columns(self, &has_header));
    if (has_header)
        return ESPER_OK;
    ESPER_TRY(begin_row(self));
    for (int i = 0; i < self->n_first; i++) {
        esper_csv_cell cell = {.line = last->line, .column = i, .from = self->first[i]};

        cell.to = cell.from + strlen(cell.from);
        cell.missing = esper_csv_missing(cell.from, cell.to);
        ESPER_TRY(take_cell(self, &cell));
    }
    return ESPER_OK;
}

static esper_status visit(void *context, const esper_csv_cell *cell)
{
    table *self = context;
    size_t n = (size_t)(cell->to - cell->from);

    if (cell->row > 0) {
        if (cell->column == 0)
            ESPER_TRY(begin_row(self));
        return take_cell(self, cell);
    }
    if (cell->column % 64 == 0) {
        char **larger = esper_mem_grow(self->first, (size_t)(cell->column + 64) * sizeof(*larger));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: columns", self->path);
        self->first = larger;
    }
    self->first[cell->column] = esper_mem_alloc(n + 1);
    if (self->first[cell->column] == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: columns", self->path);
    self->n_first++;
    memcpy(self->first[cell->column], cell->from, n);
    return cell->last ? end_first_line(self, cell) : ESPER_OK;
}

static esper_status read_table(const esper_dataset *set, const char *path, esper_inputs *out)
{
    table self = {.set = set, .path = path, .features = esper_dataset_info_get(set)->features};
    char *bytes = NULL;
    size_t n;
    esper_status status = esper_file_read(path, MAX_FILE_BYTES, &bytes, &n);

    if (status == ESPER_OK)
        status = find_encodings(&self);
    if (status == ESPER_OK)
        status = esper_csv_walk(path, bytes, n, visit, &self);
    if (status == ESPER_OK && self.n_rows == 0)
        status = ESPER_FAIL(ESPER_E_FORMAT, "%s: the table has no rows", path);
    if (status == ESPER_OK) {
        for (uint64_t i = 0; i < self.n_rows; i++)
            scale_row(set, self.rows + i * (uint64_t)self.features);
        out->values = self.rows;
        out->n = self.n_rows;
        self.rows = NULL;
        if (self.n_new_words > 0)
            snprintf(out->remark, sizeof(out->remark),
                     "%" PRIu64 " word%s that training had not, and that say nothing: first %s", self.n_new_words,
                     self.n_new_words == 1 ? "" : "s", self.new_word);
    }
    for (int i = 0; i < self.n_first; i++)
        esper_mem_free(self.first[i]);
    esper_mem_free(self.first);
    esper_mem_free(self.which);
    esper_mem_free(self.columns);
    esper_mem_free(self.rows);
    esper_mem_free(bytes);
    return status;
}

/* ------------------------------------------------------------------------------------------------ any of them */

esper_status esper_inputs_read(const esper_dataset *set, const char *path, esper_inputs *inputs_out)
{
    bool images = esper_dataset_info_get(set)->kind == ESPER_DATASET_IMAGES;

    if (esper_arrays_is_file(path))
        return read_arrays(set, path, inputs_out);
    if (images && esper_inputs_is_image(path))
        return read_picture(set, path, inputs_out);
    if (!images && (ends_in(path, ".csv") || ends_in(path, ".tsv")))
        return read_table(set, path, inputs_out);
    return ESPER_FAIL(ESPER_E_CONFIG, "%s: the network takes %s", path,
                      images ? "images (.png, .jpg) and arrays (.npy, .npz, .safetensors)"
                             : "tables (.csv, .tsv) and arrays (.npy, .npz, .safetensors)");
}

void esper_inputs_fini(esper_inputs *inputs)
{
    esper_mem_free(inputs->values);
    *inputs = (esper_inputs){0};
}
