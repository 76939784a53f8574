/* The tune table: reading and writing it, and finding a lane's way in it. */
#include "tensor/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"

#if __has_include("generated/tune_table.h")
#include "generated/tune_table.h"
#else /* compiled by hand, outside CMake: a table must be given */
#define ESPER_TUNE_TABLE ""
#endif

static const char *const set_names[ESPER_TUNE_SETS] = {"portable", "avx2", "avx512"};
static const int widths[ESPER_TUNE_WIDTHS] = {64, 128, 256, 512, 1024, 0};

#define X(work, name, ...) name,
static const char *const work_names[ESPER_N_WORKS] = {ESPER_WORK_LIST(X)};
#undef X
#define X(work, name, ...) {__VA_ARGS__},
static const char *const way_names[ESPER_N_WORKS][ESPER_WAYS] = {ESPER_WORK_LIST(X)};
#undef X

static const char first_line[] = "esper-tune 1";

const char *esper_tune_work_name(esper_work work)
{
    return work_names[work];
}

const char *esper_tune_way_name(esper_work work, int way)
{
    return way_names[work][way];
}

const char *esper_tune_set_name(int set)
{
    return set_names[set];
}

static int find(const char *const *names, int n_names, const char *name)
{
    for (int i = 0; i < n_names; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

int esper_tune_set(const char *set)
{
    return find(set_names, ESPER_TUNE_SETS, set);
}

int esper_tune_width(int width_class)
{
    return widths[width_class];
}

int esper_tune_class(int width)
{
    int i = 0;

    while (widths[i] != 0 && width > widths[i])
        i++;
    return i;
}

esper_tune esper_tune_of(const esper_tune_table *table, int set)
{
    esper_tune tune;

    memcpy(tune.way, table->way[set], sizeof(tune.way));
    tune.hash = XXH32(tune.way, sizeof(tune.way), 0);
    return tune;
}

/* ------------------------------------------------------------------------------------------------ reading */

/* A line of a table, cut into words. */
typedef struct line {
    const char *source;
    int         number;
    char        text[160];
    const char *word[2 + ESPER_TUNE_WIDTHS + 1]; /* one more than there may be */
    int         n_words;
} line;

/* The next line, without its end; false after the last. */
static bool next_line(line *at, const char **text, const char *end)
{
    const char *stop = *text < end ? memchr(*text, '\n', (size_t)(end - *text)) : NULL;
    size_t n;

    if (*text >= end)
        return false;
    stop = stop != NULL ? stop : end;
    n = (size_t)(stop - *text);
    n = n < sizeof(at->text) ? n : sizeof(at->text) - 1; /* too long: cut, and then not understood */
    memcpy(at->text, *text, n);
    at->text[n] = '\0';
    at->number++;
    *text = stop + 1;
    return true;
}

typedef bool seen_lines[ESPER_TUNE_SETS][ESPER_N_WORKS];

static esper_status read_line(const line *at, esper_tune_table *table, seen_lines seen)
{
    int set, work;

    if (at->n_words != 2 + ESPER_TUNE_WIDTHS)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: expected a kernel set, a work and %d ways", at->source, at->number,
                          ESPER_TUNE_WIDTHS);
    set = esper_tune_set(at->word[0]);
    work = find(work_names, ESPER_N_WORKS, at->word[1]);
    if (set < 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: there is no kernel set '%s'", at->source, at->number, at->word[0]);
    if (work < 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: this build knows no work '%s'", at->source, at->number, at->word[1]);
    if (seen[set][work])
        return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: '%s %s' has a line already", at->source, at->number, at->word[0],
                          at->word[1]);
    seen[set][work] = true;
    for (int i = 0; i < ESPER_TUNE_WIDTHS; i++) {
        int way = find(way_names[work], ESPER_WAYS, at->word[2 + i]);

        if (way < 0)
            return ESPER_FAIL(ESPER_E_CONFIG, "%s:%d: this build has no way '%s' for %s: %s or %s", at->source,
                              at->number, at->word[2 + i], work_names[work], way_names[work][0], way_names[work][1]);
        table->way[set][work][i] = (uint8_t)way;
    }
    return ESPER_OK;
}

esper_status esper_tune_read(const char *text, size_t chars, const char *source, esper_tune_table *table_out)
{
    const char *end = text + chars;
    seen_lines seen = {{false}};
    line at = {.source = source};
    esper_tune_table table;

    if (!next_line(&at, &text, end) || strcmp(at.text, first_line) != 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s: not a tune table: its first line is not '%s'", source, first_line);
    while (next_line(&at, &text, end)) {
        char *rest = NULL;

        at.n_words = 0;
        for (char *word = strtok_r(at.text, " \t\r", &rest); word != NULL && at.n_words < 2 + ESPER_TUNE_WIDTHS + 1;
             word = strtok_r(NULL, " \t\r", &rest))
            at.word[at.n_words++] = word;
        if (at.n_words > 0 && at.word[0][0] != '#')
            ESPER_TRY(read_line(&at, &table, seen));
    }
    for (int set = 0; set < ESPER_TUNE_SETS; set++)
        for (int work = 0; work < ESPER_N_WORKS; work++)
            if (!seen[set][work])
                return ESPER_FAIL(
                    ESPER_E_CONFIG,
                    "%s: no line for '%s %s': unset ESPER_TUNE and write the table anew with esper bench tune", source,
                    set_names[set], work_names[work]);
    *table_out = table;
    return ESPER_OK;
}

esper_status esper_tune_load(esper_tune_table *table_out)
{
    const char *path = getenv("ESPER_TUNE");
    esper_status status;
    size_t chars;
    char *text;

    if (path == NULL || path[0] == '\0')
        return esper_tune_read(ESPER_TUNE_TABLE, sizeof(ESPER_TUNE_TABLE) - 1, "the table of this build", table_out);
    status = esper_file_read(path, ESPER_TUNE_TEXT, &text, &chars);
    if (status != ESPER_OK)
        return esper_fail_within(status, "ESPER_TUNE: ");
    status = esper_tune_read(text, chars, path, table_out);
    esper_mem_free(text);
    return status;
}

/* ------------------------------------------------------------------------------------------------ writing */

/* A line of words under each other. */
static void write_words(char *text, const char *set, const char *work, const char *const *words)
{
    size_t used = strlen(text);

    used += (size_t)snprintf(text + used, ESPER_TUNE_TEXT - used, "%-9s %-10s", set, work);
    for (int i = 0; i < ESPER_TUNE_WIDTHS; i++)
        used += (size_t)snprintf(text + used, ESPER_TUNE_TEXT - used, i + 1 < ESPER_TUNE_WIDTHS ? " %-7s" : " %s\n",
                                 words[i]);
}

void esper_tune_write(const esper_tune_table *table, char text[ESPER_TUNE_TEXT])
{
    static const char *const head[ESPER_TUNE_WIDTHS] = {"64", "128", "256", "512", "1024", "more"};

    snprintf(text, ESPER_TUNE_TEXT,
             "%s\n# Which way of computing is taken, by kernel set, work and width of a layer (src/tensor/tune.h).\n"
             "# Written by esper bench tune.\n",
             first_line);
    write_words(text, "#", "work", head);
    for (int set = 0; set < ESPER_TUNE_SETS; set++)
        for (int work = 0; work < ESPER_N_WORKS; work++) {
            const char *words[ESPER_TUNE_WIDTHS];

            for (int i = 0; i < ESPER_TUNE_WIDTHS; i++)
                words[i] = way_names[work][table->way[set][work][i]];
            write_words(text, set_names[set], work_names[work], words);
        }
}

/* ------------------------------------------------------------------------------------------------ finding */

const esper_phase *esper_tune_phase(const esper_tune *tune, const esper_op_kernels *op, bool backward, int phase,
                                    const esper_lane *lane)
{
    const esper_phase *phases = backward ? op->backward : op->forward;

    for (const esper_ways *w = backward ? op->ways_backward : op->ways_forward; w != NULL && w->width != NULL; w++)
        if (w->phase == phase && tune != NULL) {
            int way = tune->way[w->work][esper_tune_class(w->width(lane))];

            return way == 0 ? &phases[phase] : &w->other;
        }
    return &phases[phase];
}
