/* esper runs: all runs together: list, compare, tag, delete, ask. */
#include <assert.h>
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cli.h"
#include "run/index.h"
#include "ui/terminal.h"
#include "ui/text.h"

enum { JSON, FILTER, SORT, REVERSE, MOST, YES };

static const esper_command_option options[] = {
    [JSON] = {"json", false}, [FILTER] = {"filter", true}, [SORT] = {"sort", true}, [REVERSE] = {"reverse", false},
    [MOST] = {"most", true},  [YES] = {"yes", false},      {.name = NULL}};

static const char home[] = "runs";

/* ------------------------------------------------------------------------------------------------ listing */

enum { CELL_CHARS = 64, N_CELLS = 9 };

typedef struct row {
    char cells[N_CELLS][CELL_CHARS];
} row;

/* Rows as they will be printed: the widths follow from all of them. */
typedef struct table {
    row *rows;
    int n, room;
    int width[N_CELLS];
} table;

static const char *const titles[N_CELLS] = {"run",      "state",  "task",  "policy", "epochs",
                                            "accuracy", "params", "seeds", "tags"};
static const bool is_number[N_CELLS] = {[4] = true, [5] = true, [6] = true, [7] = true};

static void set(char cell[CELL_CHARS], const char *text)
{
    snprintf(cell, CELL_CHARS, "%s", text != NULL ? text : "-");
}

/* The test accuracy where there is one; what is shown of a run that goes on is its last validation. */
static void set_accuracy(char cell[CELL_CHARS], const char *test, const char *valid)
{
    const char *text = test != NULL ? test : valid;

    if (text == NULL)
        set(cell, NULL);
    else
        snprintf(cell, CELL_CHARS, "%.2f%s", atof(text), test != NULL ? " " : "v");
}

static esper_status add_row(void *to, const char *const texts[ESPER_INDEX_N_COLUMNS])
{
    table *all = to;
    char count[ESPER_TEXT_CHARS];
    row *next;

    if (all->n == all->room) {
        int room = 2 * all->room + 64;
        row *larger = esper_mem_grow(all->rows, (size_t)room * sizeof(*larger));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "a list of %d runs", room);
        all->rows = larger;
        all->room = room;
    }
    next = &all->rows[all->n++];
    set(next->cells[0], texts[ESPER_INDEX_run]);
    set(next->cells[1], texts[ESPER_INDEX_state]);
    set(next->cells[2], texts[ESPER_INDEX_task]);
    set(next->cells[3], texts[ESPER_INDEX_policy]);
    if (texts[ESPER_INDEX_policy] != NULL && strncmp(texts[ESPER_INDEX_policy], "learned ", 8) == 0)
        set(next->cells[3], "learned"); /* the rest is a hash and a file */
    set(next->cells[4], texts[ESPER_INDEX_epochs]);
    set_accuracy(next->cells[5], texts[ESPER_INDEX_acc_test], texts[ESPER_INDEX_acc_valid]);
    set(next->cells[6],
        texts[ESPER_INDEX_params] != NULL ? esper_text_count(atoll(texts[ESPER_INDEX_params]), count) : NULL);
    if (texts[ESPER_INDEX_n_seeds] != NULL)
        snprintf(next->cells[7], CELL_CHARS, "%.8s/%.8s", texts[ESPER_INDEX_n_kept], texts[ESPER_INDEX_n_seeds]);
    else
        set(next->cells[7], NULL);
    set(next->cells[8], texts[ESPER_INDEX_tags] != NULL ? texts[ESPER_INDEX_tags] : "");
    return ESPER_OK;
}

static void print_cells(const table *all, const char cells[][CELL_CHARS], const esper_terminal *terminal, bool is_head)
{
    esper_line line;

    esper_line_init(&line, terminal->is_tty ? terminal->room : ESPER_LINE_BYTES / 2, terminal->colour);
    if (is_head)
        esper_line_colour(&line, "2");
    for (int i = 0; i < N_CELLS; i++) {
        int blanks = all->width[i] - (int)strlen(cells[i]);

        if (is_number[i])
            esper_line_put(&line, "%*s", blanks > 0 ? blanks : 0, "");
        esper_line_put(&line, "%s", cells[i]);
        if (!is_number[i] && i + 1 < N_CELLS)
            esper_line_put(&line, "%*s", blanks > 0 ? blanks : 0, "");
        if (i + 1 < N_CELLS)
            esper_line_put(&line, "  ");
    }
    if (is_head)
        esper_line_colour(&line, "0");
    while (line.used > 0 && line.text[line.used - 1] == ' ')
        line.text[--line.used] = '\0';
    printf("%s\n", line.text);
}

static void print_table(table *all)
{
    esper_terminal terminal = esper_terminal_look(stdout);
    char head[N_CELLS][CELL_CHARS];

    for (int i = 0; i < N_CELLS; i++) {
        set(head[i], titles[i]);
        all->width[i] = (int)strlen(titles[i]);
        for (int r = 0; r < all->n; r++)
            if ((int)strlen(all->rows[r].cells[i]) > all->width[i])
                all->width[i] = (int)strlen(all->rows[r].cells[i]);
    }
    print_cells(all, head, &terminal, true);
    for (int r = 0; r < all->n; r++)
        print_cells(all, all->rows[r].cells, &terminal, false);
}

static esper_status list(const esper_cli_call *call, esper_index *index, const esper_index_news *news)
{
    esper_index_query query = {.filter = call->given[FILTER],
                               .sort = call->given[SORT],
                               .reverse = call->given[REVERSE] != NULL,
                               .most = call->given[MOST] != NULL ? atoi(call->given[MOST]) : 0};
    table all = {.n = 0};
    esper_page page = {0};
    esper_status status;

    if (call->given[JSON] != NULL) {
        status = esper_index_json(index, &query, &page);
        if (status == ESPER_OK)
            fputs(page.text, stdout);
        esper_page_fini(&page);
        return status;
    }
    status = esper_index_list(index, &query, add_row, &all);
    if (status == ESPER_OK && all.n == 0)
        esper_terminal_print(stdout,
                             news->n_runs == 0 ? "no runs yet below %s/: `esper grow fashion` makes one\n"
                                               : "no run below %s/ is like that\n",
                             home);
    else if (status == ESPER_OK)
        print_table(&all);
    if (status == ESPER_OK && news->n_unreadable > 0)
        esper_terminal_print(stderr,
                             "esper: %d store%s cannot be read; why: esper runs --filter state=unreadable --json\n",
                             news->n_unreadable, news->n_unreadable == 1 ? "" : "s");
    esper_mem_free(all.rows);
    return status;
}

/* ------------------------------------------------------------------------------------------------ comparing */

enum { MOST_COMPARED = 6, COMPARED_CHARS = 64 };

typedef struct compared {
    int n;
    char names[MOST_COMPARED][ESPER_PATH_CHARS];
    char cells[MOST_COMPARED][ESPER_INDEX_N_COLUMNS][COMPARED_CHARS];
    bool found[MOST_COMPARED];
} compared;

/* The row of a run that is meant, by its name in the index. */
static esper_status take_compared(void *to, const char *const texts[ESPER_INDEX_N_COLUMNS])
{
    compared *all = to;

    for (int r = 0; r < all->n; r++)
        if (strcmp(texts[ESPER_INDEX_run], all->names[r]) == 0) {
            all->found[r] = true;
            for (int i = 0; i < ESPER_INDEX_N_COLUMNS; i++)
                snprintf(all->cells[r][i], COMPARED_CHARS, "%s", texts[i] != NULL ? texts[i] : "-");
        }
    return ESPER_OK;
}

/* Below runs/ a run's name is what follows; others are not in the index. */
static esper_status name_of(const char *text, char name[ESPER_PATH_CHARS])
{
    char dir[ESPER_PATH_CHARS];
    size_t n = strlen(home);

    ESPER_TRY(esper_run_dir_find(text, dir));
    if (strncmp(dir, home, n) != 0 || dir[n] != '/')
        return ESPER_FAIL(ESPER_E_NOTFOUND, "%s does not lie below %s/, so it is not among all runs", dir, home);
    snprintf(name, ESPER_PATH_CHARS, "%s", dir + n + 1 + strspn(dir + n + 1, "/"));
    while (name[0] != '\0' && name[strlen(name) - 1] == '/')
        name[strlen(name) - 1] = '\0';
    return ESPER_OK;
}

static void print_compared(const compared *all)
{
    esper_terminal terminal = esper_terminal_look(stdout);

    for (int i = 0; i < ESPER_INDEX_N_COLUMNS; i++) {
        bool same = true, known = false;
        esper_line line;

        for (int r = 0; r < all->n; r++) {
            same = same && strcmp(all->cells[r][i], all->cells[0][i]) == 0;
            known = known || strcmp(all->cells[r][i], "-") != 0;
        }
        if (!known)
            continue;
        esper_line_init(&line, terminal.is_tty ? terminal.room : ESPER_LINE_BYTES / 2, terminal.colour);
        esper_line_colour(&line, same ? "2" : "1");
        esper_line_put(&line, "%c %-14s", same ? ' ' : '*', esper_index_column_name((esper_index_column)i));
        for (int r = 0; r < all->n; r++)
            esper_line_put(&line, "  %-*.*s", 24, 24, all->cells[r][i]);
        esper_line_colour(&line, "0");
        printf("%s\n", line.text);
    }
    printf("* differs\n");
}

static esper_status compare(const esper_cli_call *call, esper_index *index)
{
    compared *all = esper_mem_alloc(sizeof(*all));
    esper_status status = ESPER_OK;

    if (all == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "runs to compare");
    memset(all, 0, sizeof(*all));
    for (int i = 1; i < call->n_words && status == ESPER_OK; i++)
        status = all->n < MOST_COMPARED ? name_of(call->words[i], all->names[all->n++])
                                        : ESPER_FAIL(ESPER_E_ARG, "at most %d runs beside each other", MOST_COMPARED);
    if (status == ESPER_OK)
        status = esper_index_list(index, &(esper_index_query){.filter = NULL}, take_compared, all);
    for (int r = 0; r < all->n && status == ESPER_OK; r++)
        if (!all->found[r])
            status = ESPER_FAIL(ESPER_E_NOTFOUND, "%s/%s has neither a store nor events", home, all->names[r]);
    if (status == ESPER_OK)
        print_compared(all);
    esper_mem_free(all);
    return status;
}

/* ------------------------------------------------------------------------------------------------ tags, deleting */

static esper_status tag(esper_cli_call *call, bool remove)
{
    char dir[ESPER_PATH_CHARS];

    if (call->n_words < 3)
        return esper_cli_usage(call, "expected a run and one tag or more");
    ESPER_TRY(esper_run_dir_find(call->words[1], dir));
    for (int i = 2; i < call->n_words; i++)
        ESPER_TRY(esper_index_tag(dir, call->words[i], remove));
    return ESPER_OK;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static int64_t n_bytes; /* of the tree that is walked */

static int add_bytes(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)path;
    (void)kind;
    (void)where;
    n_bytes += info->st_size;
    return 0;
}

/* A directory of a run below runs/, which nobody works on: nothing else is deleted. Links are removed, not followed. */
static esper_status check_deletable(const char *text, char dir[ESPER_PATH_CHARS])
{
    char name[ESPER_PATH_CHARS];
    struct stat info;

    ESPER_TRY(name_of(text, name));
    snprintf(dir, ESPER_PATH_CHARS, "%s/%.*s", home, ESPER_PATH_CHARS - (int)sizeof(home) - 2, name);
    if (strstr(name, "..") != NULL || lstat(dir, &info) != 0 || !S_ISDIR(info.st_mode))
        return ESPER_FAIL(ESPER_E_ARG, "%s is not a directory of a run below %s/", dir, home);
    if (esper_index_is_running(dir))
        return ESPER_FAIL(ESPER_E_STATE, "%s is running: end it first (Ctrl-C saves and leaves)", dir);
    return ESPER_OK;
}

static esper_status delete (esper_cli_call *call)
{
    char dir[ESPER_PATH_CHARS], size[ESPER_TEXT_CHARS];

    if (call->n_words < 2)
        return esper_cli_usage(call, "expected a run to delete");
    for (int i = 1; i < call->n_words; i++)
        ESPER_TRY(check_deletable(call->words[i], dir)); /* all of them, or none */
    for (int i = 1; i < call->n_words; i++) {
        ESPER_TRY(check_deletable(call->words[i], dir));
        n_bytes = 0;
        nftw(dir, add_bytes, 16, FTW_PHYS);
        if (call->given[YES] != NULL && nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
            return esper_file_fail("cannot be deleted", dir);
        esper_terminal_print(stdout, "%s %s (%s)\n", call->given[YES] != NULL ? "deleted" : "would delete", dir,
                             esper_text_bytes((double)n_bytes, size));
    }
    if (call->given[YES] == NULL)
        printf("nothing is deleted without --yes\n");
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the command */

static esper_status ask(esper_cli_call *call, esper_index *index)
{
    esper_page page = {0};
    esper_status status;

    if (call->n_words != 2)
        return esper_cli_usage(call, "expected one query");
    status = esper_index_ask(index, call->words[1], &page);
    if (status == ESPER_OK)
        fputs(page.text, stdout);
    esper_page_fini(&page);
    return status;
}

static esper_status run(esper_cli_call *call)
{
    const char *verb = call->n_words > 0 ? call->words[0] : "list";
    esper_index *index = NULL;
    esper_index_news news = {0};
    esper_status status;

    if (strcmp(verb, "tag") == 0 || strcmp(verb, "untag") == 0)
        return tag(call, verb[0] == 'u');
    if (strcmp(verb, "delete") == 0)
        return delete (call);
    if (strcmp(verb, "list") != 0 && strcmp(verb, "compare") != 0 && strcmp(verb, "sql") != 0)
        return esper_cli_usage(
            call, "'%s' is nothing to do with runs: expected list, compare, tag, untag, delete or sql", verb);
    if (strcmp(verb, "list") == 0 && call->n_words > 1)
        return esper_cli_usage(call, "'%s' is too much; --filter run~%s lists those", call->words[1], call->words[1]);
    if (strcmp(verb, "compare") == 0 && call->n_words < 3)
        return esper_cli_usage(call, "expected two runs or more to compare");
    if (call->given[MOST] != NULL && atoi(call->given[MOST]) <= 0)
        return esper_cli_usage(call, "--most %s: expected a number of runs", call->given[MOST]);
    ESPER_TRY(esper_index_open(home, &index));
    status = esper_index_refresh(index, &news);
    if (status == ESPER_OK)
        status = verb[0] == 'l' ? list(call, index, &news) : verb[0] == 's' ? ask(call, index) : compare(call, index);
    esper_index_close(index);
    return status;
}

static void print_columns(void)
{
    printf("\ncolumns, for --filter and --sort:\n");
    for (int i = 0; i < ESPER_INDEX_N_COLUMNS; i++)
        esper_terminal_print(stdout, "  %-14s  %s\n", esper_index_column_name((esper_index_column)i),
                             esper_index_column_meaning((esper_index_column)i));
}

const esper_command esper_command_runs = {
    .name = "runs",
    .arguments = "[VERB RUN...] [flags]",
    .summary = "all runs: list, compare, tag, delete, ask",
    .help =
        "Lists the runs below runs/, the newest first; `v` behind an accuracy says that it is of the validation split,\n"
        "since the test split has not been seen; seeds are those kept, of those that germinated. What is listed comes\n"
        "from runs/index.db, which is brought up to date each time and can be deleted: training never touches it.\n\n"
        "  esper runs                        all of them\n"
        "  esper runs compare RUN RUN...     beside each other, with what differs marked\n"
        "  esper runs tag RUN TAG...         tags are yours\n"
        "  esper runs untag RUN TAG...       and are taken away again\n"
        "  esper runs delete RUN... --yes    the run's directory with all that is in it\n"
        "  esper runs sql QUERY              a SELECT on the index, whose tables are runs, seeds and trials; as JSON\n\n"
        "  --filter WHAT   conditions, with commas between them: task=fashion,acc_test>=90,tag=good\n"
        "                  (= != < <= > >= and ~, which is `contains`)\n"
        "  --sort COLUMN   numbers begin with the largest, texts with the first; --reverse the other way round\n"
        "  --most N        no more than so many\n"
        "  --json          all columns, as an array of objects\n\n"
        "examples:  esper runs --filter task=fashion --sort acc_test --most 5\n"
        "           esper runs sql 'SELECT blueprint, slot, avg(gain) FROM trials GROUP BY 1, 2 ORDER BY 3 DESC'",
    .more_help = print_columns,
    .keys = (const char *const[]){NULL},
    .options = options,
    .most_words = 64,
    .run = run,
};
