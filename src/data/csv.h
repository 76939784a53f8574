/* Internal to src/data. Tables as text: RFC 4180, and what people write besides (';' and tabs between fields, CRLF, a byte order
 * mark, no header).
 *
 * One pass over the bytes, without an allocation for a field: a cell becomes a number at once, or a word's place in its column's
 * list of words. Only a column that begins as numbers and turns out to hold words costs a second pass. */
#ifndef ESPER_DATA_CSV_H
#define ESPER_DATA_CSV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/page.h"
#include "esper.h"

enum {
    ESPER_CSV_MAX_COLUMNS = 16384,
    ESPER_CSV_MAX_WORDS = 1024,      /* different words of a column that are kept; more are only counted as too many */
    ESPER_CSV_MAX_FIELD = 1 << 20,   /* bytes */
    ESPER_CSV_SHOWN_CHARS = 40,    /* of a cell in a message */
};

typedef struct esper_csv_column {
    char    *name;
    bool     is_words;  /* its cells are words, not numbers */
    uint64_t n_missing; /* cells that are empty, or NA, N/A, NaN, null, None or ? */
    uint64_t n_numbers; /* cells of a column of words that are numbers */
    uint64_t n_commas;                /* and those that would be, were their commas points */
    uint64_t word_line; /* where the first cell that is not one stands; 0 = nowhere */
    char word[ESPER_CSV_SHOWN_CHARS]; /* the beginning of that cell */
    float    least, most; /* of numbers */
    /* Words in the order they were met. */
    esper_page words;   /* one after the other, each with a zero at its end */
    uint32_t  *starts;  /* (n_words) */
    uint32_t  *slots;   /* hash table of 1 + word; 0 = free */
    uint32_t   n_words;
    bool       too_many;
} esper_csv_column;

typedef struct esper_csv {
    esper_csv_column *columns; /* (n_columns) */
    int               n_columns;
    int               target;     /* a column, of words whatever it holds */
    uint64_t          n_rows, room;
    float            *cells;      /* (n_rows, n_columns) numbers, or words' places; NaN where it is missing */
    char              separator;
    bool              has_header, had_mark;
    uint64_t          n_blank;    /* empty lines, which are passed over */
} esper_csv;

/* `target` names a column, "" or NULL the last. `name` stands in messages, which give lines as editors count them. Start from zeros;
 * call fini also on failure. */
esper_status esper_csv_read(const char *name, const char *bytes, size_t n, const char *target, esper_csv *csv);
void         esper_csv_fini(esper_csv *csv);

/* Whether a cell's text means that nothing is there. */
bool esper_csv_missing(const char *from, const char *to);

/* The same bytes cell by cell, the first line among them; lines that are not as long as it are refused. A cell's text holds until the
 * next. */
typedef struct esper_csv_cell {
    uint64_t    row, line; /* row: from 0 */
    int         column;
    const char *from, *to;
    bool        missing, last; /* last: of its line */
} esper_csv_cell;

typedef esper_status (*esper_csv_visit)(void *context, const esper_csv_cell *cell);

esper_status esper_csv_walk(const char *name, const char *bytes, size_t n, esper_csv_visit visit, void *context);

const char *esper_csv_word(const esper_csv_column *column, uint32_t index);

/* A number as it is written in tables; false when it is none, all of it. */
bool esper_csv_number(const char *from, const char *to, double *value_out);

#endif
