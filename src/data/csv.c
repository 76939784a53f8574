/* Tables as text. */
#include "data/csv.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "base/suggest.h"
#include "base/utf8.h"

enum { N_SLOTS = 4 * ESPER_CSV_MAX_WORDS };

/* ------------------------------------------------------------------------------------------------ cells */

/* What stands between two separators. `from` .. `to` is the text itself; a quoted one that holds quotes was copied to get there. */
typedef struct cell {
    const char *from, *to;
} cell;

/* Where quoted fields with quotes in them are put together; one for all readers of a table. */
typedef struct scratch {
    char  *text;
    size_t room;
} scratch;

typedef struct reader {
    const char *name;
    const char *at, *end;
    uint64_t    line;      /* of `at` */
    char        separator;
    scratch    *copy;
} reader;

/* Powers of ten that a double holds exactly. */
static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static bool slow_number(const char *from, const char *to, double *value_out)
{
    char text[128];
    size_t n = (size_t)(to - from);

    if (n >= sizeof(text))
        return false;
    memcpy(text, from, n);
    text[n] = '\0';
    return esper_number_read_real(text, value_out);
}

/* Digits as one whole number and a power of ten: where both are small the quotient or product is the nearest double (Clinger). */
bool esper_csv_number(const char *from, const char *to, double *value_out)
{
    const char *at = from;
    uint64_t digits = 0;
    int n_digits = 0, power = 0, exponent = 0;
    bool negative = false, negative_power = false;

    if (at < to && (*at == '-' || *at == '+'))
        negative = *at++ == '-';
    for (; at < to && *at >= '0' && *at <= '9'; at++, n_digits++)
        digits = digits * 10 + (uint64_t)(*at - '0');
    if (at < to && *at == '.')
        for (at++; at < to && *at >= '0' && *at <= '9'; at++, n_digits++, power--)
            digits = digits * 10 + (uint64_t)(*at - '0');
    if (n_digits == 0)
        return false;
    if (at < to && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < to && (*at == '-' || *at == '+'))
            negative_power = *at++ == '-';
        if (at == to)
            return false;
        for (; at < to && *at >= '0' && *at <= '9'; at++)
            exponent = exponent < 10000 ? exponent * 10 + (*at - '0') : exponent;
        power += negative_power ? -exponent : exponent;
    }
    if (at != to)
        return false;
    if (n_digits > 15 || power < -22 || power > 22)
        return slow_number(from + (from < to && *from == '+'), to, value_out);
    *value_out = power < 0 ? (double)digits / tens[-power] : (double)digits * tens[power];
    if (negative)
        *value_out = -*value_out;
    return true;
}

/* "1,5" and "-0,25": a number where commas stand before fractions. */
static bool has_decimal_comma(const cell *c)
{
    const char *comma = memchr(c->from, ',', (size_t)(c->to - c->from));
    char text[ESPER_CSV_SHOWN_CHARS];
    size_t n = (size_t)(c->to - c->from);
    double value;

    if (comma == NULL || n >= sizeof(text))
        return false;
    memcpy(text, c->from, n);
    text[comma - c->from] = '.';
    return esper_csv_number(text, text + n, &value);
}

static bool is_missing(const cell *c)
{
    static const char *const words[] = {"NA", "N/A", "NaN", "null", "None", "?"};
    size_t n = (size_t)(c->to - c->from);

    if (n == 0)
        return true;
    if (n > 4 || (c->from[0] >= '0' && c->from[0] <= '9'))
        return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i]) == n && strncasecmp(c->from, words[i], n) == 0)
            return true;
    return false;
}

static esper_status fail_long(const reader *self, uint64_t line)
{
    return ESPER_FAIL(ESPER_E_FORMAT, "%s: line %" PRIu64 " has a field of more than %d bytes: is this a table?",
                      self->name, line, (int)ESPER_CSV_MAX_FIELD);
}

/* So far a field may reach: what is too long is refused there, and not at the end of the file. */
static const char *reach_of(const reader *self, const char *from)
{
    return self->end - from > ESPER_CSV_MAX_FIELD ? from + ESPER_CSV_MAX_FIELD + 1 : self->end;
}

static esper_status append(const reader *self, const char *from, size_t n, size_t *used)
{
    scratch *copy = self->copy;

    assert(*used + n > 0); /* a quote at least */
    if (*used + n > copy->room) {
        char *larger = esper_mem_grow(copy->text, 2 * (*used + n));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: a field", self->name);
        copy->text = larger;
        copy->room = 2 * (*used + n);
    }
    memcpy(copy->text + *used, from, n);
    *used += n;
    return ESPER_OK;
}

/* A field in quotes; self->at is behind the first of them. */
static esper_status read_quoted(reader *self, cell *out)
{
    const char *from = self->at, *at = from, *reach = reach_of(self, from), *quote;
    uint64_t line = self->line;
    size_t n_copied = 0;

    for (;;) {
        quote = at < reach ? memchr(at, '"', (size_t)(reach - at)) : NULL;
        if ((quote != NULL ? quote : reach) - from > ESPER_CSV_MAX_FIELD)
            return fail_long(self, line);
        if (quote == NULL)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: the quote in line %" PRIu64 " is never closed", self->name, line);
        for (const char *p = at; p < quote; p++)
            self->line += *p == '\n';
        if (quote + 1 == self->end || quote[1] != '"')
            break;
        ESPER_TRY(append(self, at, (size_t)(quote + 1 - at), &n_copied)); /* a quote in the text */
        at = quote + 2;
    }
    *out = (cell){from, quote};
    if (n_copied > 0) {
        ESPER_TRY(append(self, at, (size_t)(quote - at), &n_copied));
        *out = (cell){self->copy->text, self->copy->text + n_copied};
    }
    self->at = quote + 1;
    while (self->at < self->end && *self->at == ' ')
        self->at++;
    if (self->at < self->end && *self->at != self->separator && *self->at != '\n' && *self->at != '\r')
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: line %" PRIu64 ": text behind a closing quote", self->name, self->line);
    return ESPER_OK;
}

/* The next field of a line, without the blanks around it. `last_out`: the line ends behind it, and self->at is in the next. */
static esper_status read_cell(reader *self, cell *out, bool *last_out)
{
    const char *at = self->at, *end = self->end, *from, *to;

    while (at < end && *at == ' ')
        at++;
    if (at < end && *at == '"') {
        self->at = at + 1;
        ESPER_TRY(read_quoted(self, out));
        at = self->at;
    } else {
        const char *reach = reach_of(self, at);

        from = at;
        while (at < reach && *at != self->separator && *at != '\n')
            at++;
        if (at - from > ESPER_CSV_MAX_FIELD)
            return fail_long(self, self->line);
        to = at;
        if (to > from && to[-1] == '\r' && (at == end || *at == '\n'))
            to--;
        while (to > from && to[-1] == ' ')
            to--;
        *out = (cell){from, to};
    }
    if (at < end && *at == '\r' && (at + 1 == end || at[1] == '\n'))
        at++;
    *last_out = at == end || *at == '\n';
    if (at < end) {
        self->line += *at == '\n';
        at++;
    }
    self->at = at;
    return ESPER_OK;
}

/* Passes over empty lines. */
static uint64_t skip_blank(reader *self)
{
    uint64_t n = 0;

    while (self->at < self->end) {
        const char *at = self->at;

        if (*at == '\r' && at + 1 < self->end)
            at++;
        if (*at != '\n')
            break;
        self->at = at + 1;
        self->line++;
        n++;
    }
    return n;
}

/* ------------------------------------------------------------------------------------------------ columns */

static void shown(const cell *c, char text[ESPER_CSV_SHOWN_CHARS])
{
    size_t n = (size_t)(c->to - c->from);

    snprintf(text, ESPER_CSV_SHOWN_CHARS, "%.*s%s",
             (int)(n < ESPER_CSV_SHOWN_CHARS - 4 ? n : ESPER_CSV_SHOWN_CHARS - 4), c->from,
             n < ESPER_CSV_SHOWN_CHARS - 4 ? "" : "...");
}

static esper_status check_text(const reader *self, const cell *c, uint64_t line)
{
    size_t n = (size_t)(c->to - c->from), length;

    for (size_t i = 0; i < n; i += length) {
        length = c->from[i] == '\0' ? 0 : esper_utf8_length((const uint8_t *)c->from + i, n - i);
        if (length == 0)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: line %" PRIu64 ": a field is not UTF-8 text", self->name, line);
    }
    return ESPER_OK;
}

/* The place of a word in its column's list. */
static esper_status word_of(const reader *self, esper_csv_column *column, const cell *c, uint64_t line,
                            float *place_out)
{
    size_t n = (size_t)(c->to - c->from);
    uint32_t slot = (uint32_t)XXH64(c->from, n, 0) % N_SLOTS;

    *place_out = 0.0f;
    if (column->too_many)
        return ESPER_OK;
    if (column->slots == NULL) {
        column->slots = esper_mem_alloc(N_SLOTS * sizeof(*column->slots));
        column->starts = esper_mem_alloc(ESPER_CSV_MAX_WORDS * sizeof(*column->starts));
        if (column->slots == NULL || column->starts == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: words of a column", self->name);
    }
    for (; column->slots[slot] != 0; slot = (slot + 1) % N_SLOTS) {
        uint32_t word = column->slots[slot] - 1;
        const char *text = esper_csv_word(column, word);

        if (strlen(text) == n && memcmp(text, c->from, n) == 0) {
            *place_out = (float)word;
            return ESPER_OK;
        }
    }
    if (column->n_words == ESPER_CSV_MAX_WORDS) {
        column->too_many = true;
        return ESPER_OK;
    }
    ESPER_TRY(check_text(self, c, line));
    column->starts[column->n_words] = (uint32_t)column->words.used;
    esper_page_print(&column->words, "%.*s%c", (int)n, c->from, 0);
    column->slots[slot] = ++column->n_words;
    *place_out = (float)(column->n_words - 1);
    return column->words.status;
}

const char *esper_csv_word(const esper_csv_column *column, uint32_t index)
{
    assert(index < column->n_words);
    return column->words.text + column->starts[index];
}

/* A cell of data into its place. */
static esper_status take_cell(const reader *self, esper_csv_column *column, const cell *c, uint64_t line, float *place)
{
    double value;

    if (is_missing(c)) {
        column->n_missing++;
        *place = NAN;
        return ESPER_OK;
    }
    if (!column->is_words) {
        if (esper_csv_number(c->from, c->to, &value)) {
            *place = (float)value;
            if (!isfinite(*place)) {
                char text[ESPER_CSV_SHOWN_CHARS];

                shown(c, text);
                return ESPER_FAIL(ESPER_E_FORMAT,
                                  "%s: line %" PRIu64 ", column '%s': %s is too large for a number here", self->name,
                                  line, column->name, text);
            }
            column->least = column->n_numbers == 0 || *place < column->least ? *place : column->least;
            column->most = column->n_numbers == 0 || *place > column->most ? *place : column->most;
            column->n_numbers++;
            return ESPER_OK;
        }
        if (column->word_line == 0) {
            column->word_line = line;
            shown(c, column->word);
        }
        column->n_commas += has_decimal_comma(c);
        *place = NAN; /* read again once all is known */
        return ESPER_OK;
    }
    return word_of(self, column, c, line, place);
}

/* ------------------------------------------------------------------------------------------------ the table */

static esper_status add_column(const reader *self, esper_csv *csv, const cell *c)
{
    esper_csv_column *column;
    char number[32];
    size_t n = (size_t)(c->to - c->from);

    if (csv->n_columns == ESPER_CSV_MAX_COLUMNS)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: more than %d columns", self->name, (int)ESPER_CSV_MAX_COLUMNS);
    ESPER_TRY(check_text(self, c, 1));
    if (csv->n_columns % 64 == 0) {
        column = esper_mem_grow(csv->columns, (size_t)(csv->n_columns + 64) * sizeof(*column));
        if (column == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: columns", self->name);
        csv->columns = column;
    }
    column = &csv->columns[csv->n_columns];
    *column = (esper_csv_column){0};
    if (!csv->has_header || n == 0) {
        snprintf(number, sizeof(number), "column %d", csv->n_columns + 1);
        column->name = esper_mem_strdup(number);
    } else {
        column->name = esper_mem_alloc(n + 1);
        if (column->name != NULL)
            memcpy(column->name, c->from, n);
    }
    if (column->name == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: columns", self->name);
    csv->n_columns++;
    return ESPER_OK;
}

/* What stands most often between the fields of the first line, or of as much of it as one field may have. */
static char find_separator(const char *at, const char *end)
{
    static const char candidates[] = {',', ';', '\t'};
    size_t n[sizeof(candidates)] = {0}, best = 0;
    bool quoted = false;

    end = end - at > ESPER_CSV_MAX_FIELD ? at + ESPER_CSV_MAX_FIELD : end;
    for (; at < end && (quoted || *at != '\n'); at++) {
        quoted = quoted != (*at == '"');
        for (size_t i = 0; !quoted && i < sizeof(candidates); i++)
            n[i] += *at == candidates[i];
    }
    for (size_t i = 1; i < sizeof(candidates); i++)
        best = n[i] > n[best] ? i : best;
    return candidates[best];
}

/* What a file that is no table may be. Names of columns are short: where those of the first line have four words each, it is prose. */
static const char *hint_for(const esper_csv *csv)
{
    int n_blanks = 0;

    for (int i = 0; i < csv->n_columns; i++)
        for (const char *at = csv->columns[i].name; *at != '\0'; at++)
            n_blanks += *at == ' ';
    return csv->has_header && n_blanks >= 3 * csv->n_columns
               ? ". If it is prose: a file whose name ends in .txt is read as text"
               : "";
}

static esper_status fail_ragged(const reader *self, const esper_csv *csv, uint64_t line, int n)
{
    const char *hint = hint_for(csv);

    if (hint[0] == '\0' && n > csv->n_columns)
        hint = csv->separator == ',' ? ": a field that holds a comma, a decimal comma too, needs quotes around it"
                                     : ": a field that holds what stands between fields needs quotes around it";
    return ESPER_FAIL(ESPER_E_FORMAT, "%s: line %" PRIu64 " has %d field%s, and the first has %d%s", self->name, line,
                      n, n == 1 ? "" : "s", csv->n_columns, hint);
}

/* The first line: names, unless one of them is a number. Self is left where the data begins. */
static esper_status read_header(reader *self, esper_csv *csv)
{
    reader first = *self;
    bool last = false;
    double value;
    cell c;

    csv->has_header = true;
    for (int n = 0; !last && n <= ESPER_CSV_MAX_COLUMNS; n++) { /* more are refused below */
        ESPER_TRY(read_cell(&first, &c, &last));
        csv->has_header = csv->has_header && !esper_csv_number(c.from, c.to, &value);
    }
    first = *self;
    for (last = false; !last;) {
        ESPER_TRY(read_cell(&first, &c, &last));
        ESPER_TRY(add_column(self, csv, &c));
    }
    if (csv->n_columns < 2)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: one column: expected a table with ',', ';' or tabs between its columns, one of which is "
                          "the class%s",
                          self->name, hint_for(csv));
    for (int i = 0; i < csv->n_columns; i++)
        for (int k = 0; k < i && csv->n_columns <= 2048; k++)
            if (strcmp(csv->columns[i].name, csv->columns[k].name) == 0)
                return ESPER_FAIL(ESPER_E_FORMAT, "%s: two columns are called '%s'", self->name, csv->columns[i].name);
    if (csv->has_header)
        *self = first;
    return ESPER_OK;
}

static esper_status find_target(const reader *self, esper_csv *csv, const char *target)
{
    char hint[ESPER_SUGGEST_TEXT_CHARS], list[512] = "";
    esper_suggest suggest;

    csv->target = csv->n_columns - 1;
    if (target == NULL || target[0] == '\0')
        return ESPER_OK;
    esper_suggest_init(&suggest, target);
    for (int i = 0; i < csv->n_columns; i++) {
        if (strcmp(csv->columns[i].name, target) == 0) {
            csv->target = i;
            return ESPER_OK;
        }
        esper_suggest_offer(&suggest, csv->columns[i].name);
        if (strlen(list) + strlen(csv->columns[i].name) + 8 < sizeof(list))
            snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i > 0 ? ", " : "", csv->columns[i].name);
    }
    return ESPER_FAIL(ESPER_E_CONFIG, "%s: no column is called '%s'%s There are: %s", self->name, target,
                      suggest.best != NULL ? esper_suggest_text(&suggest, "", hint) : ".", list);
}

static esper_status make_room(const reader *self, esper_csv *csv)
{
    size_t row_bytes = (size_t)csv->n_columns * sizeof(*csv->cells);
    float *larger;

    if (csv->n_rows < csv->room)
        return ESPER_OK;
    if (csv->room == 0) /* by what the rest of the file can hold at most, but not all of that at once */
        csv->room = (uint64_t)(self->end - self->at) / (2 * (uint64_t)csv->n_columns * 4) + 64;
    else
        csv->room *= 2;
    larger = esper_mem_grow(csv->cells, (size_t)csv->room * row_bytes);
    if (larger == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: %" PRIu64 " rows of %d columns", self->name, csv->room, csv->n_columns);
    csv->cells = larger;
    return ESPER_OK;
}

static esper_status read_rows(reader self, esper_csv *csv)
{
    esper_status status = ESPER_OK;

    csv->n_rows = 0;
    csv->n_blank = skip_blank(&self);
    while (self.at < self.end) {
        uint64_t line = self.line;
        float *row;
        bool last = false;
        int n = 0;

        status = make_room(&self, csv);
        row = csv->cells + csv->n_rows * (uint64_t)csv->n_columns;
        for (; status == ESPER_OK && !last; n++) {
            cell c;

            status = read_cell(&self, &c, &last);
            if (status == ESPER_OK && n == ESPER_CSV_MAX_COLUMNS)
                status =
                    ESPER_FAIL(ESPER_E_FORMAT, "%s: line %" PRIu64 " has more than %d fields, and the first has %d",
                               self.name, line, n, csv->n_columns);
            else if (status == ESPER_OK && n < csv->n_columns)
                status = take_cell(&self, &csv->columns[n], &c, line, &row[n]);
        }
        if (status == ESPER_OK && n != csv->n_columns)
            status = fail_ragged(&self, csv, line, n);
        if (status != ESPER_OK)
            break;
        csv->n_rows++;
        csv->n_blank += skip_blank(&self);
    }
    return status;
}

/* Forgets what the rows said. */
static void clear_columns(esper_csv *csv)
{
    for (int i = 0; i < csv->n_columns; i++) {
        esper_csv_column *column = &csv->columns[i];

        column->n_missing = 0;
        esper_page_fini(&column->words);
        esper_mem_free(column->slots);
        esper_mem_free(column->starts);
        column->slots = column->starts = NULL;
        column->n_words = 0;
        column->too_many = false;
        if (!column->is_words)
            column->n_numbers = 0;
    }
}

static esper_status read_table(reader *self, const char *target, esper_csv *csv)
{
    bool again = false;

    if (self->end - self->at >= 3 && memcmp(self->at, "\xef\xbb\xbf", 3) == 0) {
        self->at += 3;
        csv->had_mark = true;
    }
    (void)skip_blank(self);
    if (self->at == self->end)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the table is empty", self->name);
    self->separator = csv->separator = find_separator(self->at, self->end);
    ESPER_TRY(read_header(self, csv));
    ESPER_TRY(find_target(self, csv, target));
    csv->columns[csv->target].is_words = true;
    ESPER_TRY(read_rows(*self, csv));
    for (int i = 0; i < csv->n_columns; i++)
        if (!csv->columns[i].is_words && csv->columns[i].word_line > 0)
            again = csv->columns[i].is_words = true;
    if (!again)
        return ESPER_OK;
    clear_columns(csv);
    return read_rows(*self, csv);
}

esper_status esper_csv_read(const char *name, const char *bytes, size_t n, const char *target, esper_csv *csv)
{
    scratch copy = {0};
    reader self = {.name = name, .at = bytes, .end = bytes + n, .line = 1, .copy = &copy};
    esper_status status = read_table(&self, target, csv);

    esper_mem_free(copy.text);
    return status;
}

void esper_csv_fini(esper_csv *csv)
{
    clear_columns(csv);
    for (int i = 0; i < csv->n_columns; i++)
        esper_mem_free(csv->columns[i].name);
    esper_mem_free(csv->columns);
    esper_mem_free(csv->cells);
    *csv = (esper_csv){0};
}

bool esper_csv_missing(const char *from, const char *to)
{
    return is_missing(&(cell){from, to});
}

esper_status esper_csv_walk(const char *name, const char *bytes, size_t n, esper_csv_visit visit, void *context)
{
    scratch copy = {0};
    reader self = {.name = name, .at = bytes, .end = bytes + n, .line = 1, .copy = &copy};
    esper_status status = ESPER_OK;
    int n_columns = 0;

    if (n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)
        self.at += 3;
    (void)skip_blank(&self);
    self.separator = find_separator(self.at, self.end);
    for (uint64_t row = 0; status == ESPER_OK && self.at < self.end; row++) {
        esper_csv_cell seen = {.row = row, .line = self.line};
        cell c;

        for (; status == ESPER_OK && !seen.last; seen.column++) {
            status = read_cell(&self, &c, &seen.last);
            if (status == ESPER_OK)
                status = check_text(&self, &c, seen.line);
            if (status == ESPER_OK && seen.column == ESPER_CSV_MAX_COLUMNS)
                status = ESPER_FAIL(ESPER_E_FORMAT, "%s: line %" PRIu64 " has more than %d fields", name, seen.line,
                                    (int)ESPER_CSV_MAX_COLUMNS);
            seen.from = c.from;
            seen.to = c.to;
            if (status == ESPER_OK && row > 0 && (seen.last ? seen.column + 1 != n_columns : seen.column >= n_columns))
                status = ESPER_FAIL(ESPER_E_FORMAT, "%s: line %" PRIu64 " has %s fields than the first, which has %d",
                                    name, seen.line, seen.last ? "fewer or more" : "more", n_columns);
            if (status == ESPER_OK) {
                seen.missing = is_missing(&c);
                status = visit(context, &seen);
            }
        }
        n_columns = row == 0 ? seen.column : n_columns;
        (void)skip_blank(&self);
    }
    esper_mem_free(copy.text);
    return status;
}
