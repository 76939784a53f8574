/* Tables of people's own: a CSV file (csv.h) as rows of numbers with a class each, kept in the cache (prepared.h).
 *
 *     a row: numbers of all columns of numbers | for each of the other columns one number per word | one for each column with gaps
 *
 * A column of numbers is one number, normalised when the set is opened, by the training split alone; where cells are missing there
 * is a second one, 1 where it is. A column of words is one number for each word, 1 for the word that it is, "missing" among them. What
 * says nothing (one value alone) or too much (a name for every row) is left out and told. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/arrays.h"
#include "data/csv.h"
#include "data/prepared.h"

enum {
    MOST_WORDS = 64,        /* of a column, each with a number of its own */
    MOST_REAL_CLASSES = 20, /* different numbers with fractions that are still taken for names of classes */
};

/* What becomes of a column. */
typedef enum fate { FATE_NUMBERS, FATE_WORDS, FATE_TARGET, FATE_OUT } fate;

typedef struct encoding {
    fate     fate;
    int      at;      /* its (first) number in a row */
    int      gap;     /* the number that is 1 where the cell is missing; -1 = none */
} encoding;

typedef struct table {
    const char     *path;
    esper_csv       csv;
    encoding       *of;      /* (n_columns) */
    uint32_t       *class_of; /* (words of the target) */
    uint64_t        n_unlabelled;
    esper_prepared *set;
} table;

/* ------------------------------------------------------------------------------------------------ classes */

static int by_number(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    double p = 0.0, q = 0.0;

    esper_csv_number(*x, *x + strlen(*x), &p);
    esper_csv_number(*y, *y + strlen(*y), &q);
    return p < q ? -1 : p > q ? 1 : strcmp(*x, *y);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A target of many numbers asks for a number, not for a class. */
static esper_status check_target(const table *self, const esper_csv_column *column, bool numbers, bool fractions)
{
    if (numbers && (column->too_many || column->n_words > ESPER_DATASET_MAX_CLASSES ||
                    (fractions && column->n_words > MOST_REAL_CLASSES)))
        return ESPER_FAIL(
            ESPER_E_UNSUPPORTED,
            "%s: the target '%s' has %s%u different numbers: that asks for a number, and only classes can "
            "be learned. Name another column with --target, or put the numbers into a few groups",
            self->path, column->name, column->too_many ? "more than " : "", column->n_words);
    if (column->too_many || column->n_words > ESPER_DATASET_MAX_CLASSES)
        return ESPER_FAIL(
            ESPER_E_UNSUPPORTED,
            "%s: the target '%s' has %s%u different values, and at most %d classes can be told apart: name "
            "another column with --target",
            self->path, column->name, column->too_many ? "more than " : "", column->n_words,
            (int)ESPER_DATASET_MAX_CLASSES);
    if (column->n_words == 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the target '%s' has no values at all", self->path, column->name);
    if (column->n_words == 1)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: all rows are of one class, '%s' is '%s': there is nothing to tell apart",
                          self->path, column->name, esper_csv_word(column, 0));
    return ESPER_OK;
}

/* Classes in the order of their names, of numbers in that of numbers. */
static esper_status find_classes(table *self)
{
    const esper_csv_column *column = &self->csv.columns[self->csv.target];
    const char *names[ESPER_DATASET_MAX_CLASSES];
    bool numbers = true, fractions = false;

    for (uint32_t i = 0; i < column->n_words; i++) {
        const char *word = esper_csv_word(column, i);
        double value = 0.5;

        numbers = numbers && esper_csv_number(word, word + strlen(word), &value);
        fractions = fractions || value != floor(value);
    }
    ESPER_TRY(check_target(self, column, numbers, fractions));
    for (uint32_t i = 0; i < column->n_words; i++)
        names[i] = esper_csv_word(column, i);
    qsort(names, column->n_words, sizeof(*names), numbers ? by_number : by_text);
    self->class_of = esper_mem_alloc(column->n_words * sizeof(*self->class_of));
    if (self->class_of == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: classes", self->path);
    for (uint32_t i = 0; i < column->n_words; i++)
        for (uint32_t k = 0; k < column->n_words; k++)
            if (names[k] == esper_csv_word(column, i))
                self->class_of[i] = k;
    for (uint32_t k = 0; k < column->n_words; k++)
        esper_prepared_class(self->set, names[k]);
    self->set->plan.classes = (int)column->n_words;
    self->n_unlabelled = column->n_missing;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ columns */

/* A number in a column of names is one of them; a few words among numbers are a mistake. */
static esper_status check_mixed(const table *self, const esper_csv_column *column)
{
    uint64_t n_words = self->csv.n_rows - column->n_missing - column->n_numbers;

    if (n_words > 0 && column->n_commas == n_words)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: the column '%s' has numbers with decimal commas, such as '%s' in line %" PRIu64
                          ": write them with points (1.5, not 1,5)",
                          self->path, column->name, column->word, column->word_line);
    if (column->n_numbers == 0 || n_words >= column->n_numbers || !(column->too_many || column->n_words > MOST_WORDS))
        return ESPER_OK;
    return ESPER_FAIL(ESPER_E_FORMAT,
                      "%s: the column '%s' holds numbers, but for %" PRIu64
                      " of its cells; the first is '%s' in line %" PRIu64 ": mend %s, or leave %s empty",
                      self->path, column->name, n_words, column->word, column->word_line, n_words == 1 ? "it" : "them",
                      n_words == 1 ? "it" : "them");
}

static esper_status choose_columns(table *self)
{
    int at = 0;
    esper_csv *csv = &self->csv;
    esper_source_plan *plan = &self->set->plan;

    self->of = esper_mem_alloc((size_t)csv->n_columns * sizeof(*self->of));
    if (self->of == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: columns", self->path);
    for (int i = 0; i < csv->n_columns; i++) {
        esper_csv_column *column = &csv->columns[i];
        encoding *of = &self->of[i];
        bool constant = column->is_words ? column->n_words + (column->n_missing > 0) < 2
                                         : column->least == column->most && column->n_missing == 0;

        *of = (encoding){.gap = -1};
        if (i == csv->target)
            of->fate = FATE_TARGET;
        else if (column->n_missing == csv->n_rows || constant)
            of->fate = FATE_OUT;
        else if (!column->is_words) {
            of->fate = FATE_NUMBERS;
            of->at = at++;
        } else {
            ESPER_TRY(check_mixed(self, column));
            of->fate = column->too_many || column->n_words > MOST_WORDS ? FATE_OUT : FATE_WORDS;
        }
    }
    plan->numbers = at;
    for (int i = 0; i < csv->n_columns; i++) {
        encoding *of = &self->of[i];

        if (of->fate == FATE_WORDS) {
            of->at = at;
            at += (int)csv->columns[i].n_words;
        }
        if ((of->fate == FATE_WORDS || of->fate == FATE_NUMBERS) && csv->columns[i].n_missing > 0)
            of->gap = at++;
    }
    if (at == 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: no column but the target says anything", self->path);
    if (at > ESPER_DATASET_MAX_FEATURES)
        return ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: %d numbers in a row: at most %d", self->path, at,
                          (int)ESPER_DATASET_MAX_FEATURES);
    plan->features = at;
    return ESPER_OK;
}

static esper_status fill(table *self)
{
    const esper_csv *csv = &self->csv;
    esper_source_plan *plan = &self->set->plan;
    esper_store *store = &self->set->stores[ESPER_STORE_TRAIN];
    uint64_t n = 0;

    plan->n_items[ESPER_STORE_TRAIN] = csv->n_rows - self->n_unlabelled;
    ESPER_TRY(esper_prepared_alloc(self->set));
    for (uint64_t r = 0; r < csv->n_rows; r++) {
        const float *cells = csv->cells + r * (uint64_t)csv->n_columns;
        float *row = store->rows + n * (uint64_t)plan->features;

        if (isnan(cells[csv->target]))
            continue;
        store->labels[n++] = (uint8_t)self->class_of[(uint32_t)cells[csv->target]];
        for (int i = 0; i < csv->n_columns; i++) {
            const encoding *of = &self->of[i];
            bool gap = isnan(cells[i]);

            if (of->fate == FATE_NUMBERS)
                row[of->at] = gap ? NAN : cells[i];
            else if (of->fate == FATE_WORDS && !gap)
                row[of->at + (int)cells[i]] = 1.0f;
            if (of->gap >= 0 && gap)
                row[of->gap] = 1.0f;
        }
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ telling */

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static void tell_table(const table *self)
{
    const esper_csv *csv = &self->csv;
    const char *separator = csv->separator == ',' ? "commas" : csv->separator == ';' ? "semicolons" : "tabs";

    esper_prepared_remark(self->set, "%" PRIu64 " row%s and %d columns, with %s between them%s%s", csv->n_rows,
                          plural(csv->n_rows), csv->n_columns, separator,
                          csv->has_header ? "; the first line names them" : "",
                          csv->had_mark ? "; it begins with a byte order mark" : "");
    if (!csv->has_header)
        esper_prepared_remark(self->set, "the first line holds a number, so it is data, and columns have no names");
    esper_prepared_remark(self->set, "the target is '%s'%s", csv->columns[csv->target].name,
                          csv->target + 1 == csv->n_columns ? ", the last column (--target NAME chooses)" : "");
    if (self->n_unlabelled > 0)
        esper_prepared_remark(self->set, "%" PRIu64 " row%s without a target left out", self->n_unlabelled,
                              plural(self->n_unlabelled));
    if (csv->n_blank > 0)
        esper_prepared_remark(self->set, "%" PRIu64 " empty line%s passed over", csv->n_blank, plural(csv->n_blank));
}

/* "number from 1 to 9, 3 missing" and the like; what is left out is a remark besides. */
static void about_column(const table *self, int i, char *text, size_t chars)
{
    const esper_csv_column *column = &self->csv.columns[i];
    char missing[48] = "";

    if (column->n_missing > 0)
        snprintf(missing, sizeof(missing), ", %" PRIu64 " missing", column->n_missing);
    if (self->of[i].fate == FATE_TARGET)
        snprintf(text, chars, "target, %u classes%s", column->n_words, missing);
    else if (column->n_missing == self->csv.n_rows)
        snprintf(text, chars, "left out: nothing is in it");
    else if (!column->is_words)
        snprintf(text, chars, "%s%g to %g%s",
                 self->of[i].fate == FATE_OUT ? "left out: always the same: " : "number from ", (double)column->least,
                 (double)column->most, missing);
    else if (self->of[i].fate == FATE_OUT && column->n_words < 2)
        snprintf(text, chars, "left out: always the same%s", missing);
    else if (self->of[i].fate == FATE_OUT)
        snprintf(text, chars, "left out: text with %s%u different values, and at most %d can have a number each%s",
                 column->too_many ? "more than " : "", column->n_words, (int)MOST_WORDS, missing);
    else
        snprintf(text, chars, "category of %u values%s", column->n_words, missing);
}

static void tell_left_out(const table *self)
{
    for (int i = 0; i < self->csv.n_columns; i++) {
        char text[160];

        if (self->of[i].fate != FATE_OUT)
            continue;
        about_column(self, i, text, sizeof(text));
        esper_prepared_remark(self->set, "%s: %s", self->csv.columns[i].name, text);
    }
}

static void tell_columns(const table *self)
{
    const esper_csv *csv = &self->csv;

    for (int i = 0; i < csv->n_columns; i++) {
        char text[160];

        about_column(self, i, text, sizeof(text));
        esper_prepared_column(self->set, csv->columns[i].name, text);
    }
    for (int i = 0; i < csv->n_columns; i++)
        if (self->of[i].fate == FATE_NUMBERS)
            esper_prepared_feature(self->set, "%s", csv->columns[i].name);
    for (int i = 0; i < csv->n_columns; i++) {
        const esper_csv_column *column = &csv->columns[i];

        for (uint32_t w = 0; self->of[i].fate == FATE_WORDS && w < column->n_words; w++)
            esper_prepared_feature(self->set, "%s = %s", column->name, esper_csv_word(column, w));
        if (self->of[i].gap >= 0)
            esper_prepared_feature(self->set, "%s is missing", column->name);
    }
}

static void tell_kinds(const table *self)
{
    int n[2] = {0};

    for (int i = 0; i < self->csv.n_columns; i++) {
        n[0] += self->of[i].fate == FATE_NUMBERS;
        n[1] += self->of[i].fate == FATE_WORDS;
    }
    esper_prepared_remark(self->set, "%d column%s of numbers, %d of categories: %d number%s for a row", n[0],
                          plural((uint64_t)n[0]), n[1], self->set->plan.features,
                          plural((uint64_t)self->set->plan.features));
    tell_left_out(self);
}

/* ------------------------------------------------------------------------------------------------ all of it */

static esper_status encode(table *self)
{
    ESPER_TRY(find_classes(self));
    ESPER_TRY(choose_columns(self));
    tell_table(self);
    tell_kinds(self);
    tell_columns(self);
    return fill(self);
}

esper_status esper_table_prepare(const char *name, const char *bytes, size_t n, const char *target,
                                 esper_prepared *set_out)
{
    table self = {.path = name, .set = set_out};
    esper_status status = esper_csv_read(name, bytes, n, target, &self.csv);

    if (status == ESPER_OK)
        status = encode(&self);
    esper_csv_fini(&self.csv);
    esper_mem_free(self.of);
    esper_mem_free(self.class_of);
    return status;
}

static esper_status build_table(const esper_dataset_desc *desc, void *found, esper_prepared *set_out)
{
    char *bytes;
    size_t n;
    esper_status status;

    (void)found;
    if (desc->progress != NULL)
        desc->progress->tell(desc->progress->context, "reading", 0, 1);
    if (esper_arrays_is_file(desc->path))
        return esper_arrays_prepare(desc, ESPER_DATASET_VECTORS, set_out);
    /* Read, not mapped: a file that somebody cuts off meanwhile would end the program. */
    ESPER_TRY(esper_file_read(desc->path, SIZE_MAX / 2, &bytes, &n));
    status = esper_table_prepare(desc->path, bytes, n, desc->target, set_out);
    esper_mem_free(bytes);
    return status;
}

static esper_status look(const esper_dataset_desc *desc, uint64_t *key_out, void **found_out)
{
    if (desc->path == NULL || desc->path[0] == '\0')
        return ESPER_FAIL(ESPER_E_NOTFOUND, "table: no file is named: `esper grow FILE.csv`, or --data FILE.csv");
    *found_out = NULL;
    return esper_arrays_is_file(desc->path) ? esper_arrays_hash(desc->path, key_out)
                                            : esper_prepared_hash_file(desc->path, key_out);
}

static void close_found(void *found)
{
    (void)found;
}

static const esper_preparer preparer = {.look = look, .build = build_table, .close = close_found};

static esper_status measure(const esper_dataset_desc *desc, esper_source_plan *plan_out)
{
    return esper_prepared_measure(desc, &preparer, plan_out);
}

static esper_status load(const esper_dataset_desc *desc, const esper_source_plan *plan,
                         esper_store stores[ESPER_N_STORES])
{
    return esper_prepared_load(desc, &preparer, plan, stores);
}

const esper_source_ops esper_source_own_table = {.measure = measure, .load = load};
