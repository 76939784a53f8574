/* The closing tables of a comparison. */
#include "ui/compare_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ui/text.h"

static const char *const heads[] = {"line",           "runs",   "test %", "sd", "min",    "max",
                                    "over none",      "sd",     "return", "sd", "params", "FLOPs/sample",
                                    "training FLOPs", "epochs", "time"};
static const char *const pair_heads[] = {"line", "seeds", "return", "95 %", "test %", "95 %", "params", "95 %"};

enum {
    OVER_NONE = 6, /* that column; the next is its deviation */
    N_COLUMNS = sizeof(heads) / sizeof(heads[0]),
    N_PAIR_COLUMNS = sizeof(pair_heads) / sizeof(pair_heads[0]),
    MAX_ROWS = 1 + ESPER_COMPARE_MAX_LINES
};

typedef char cell[ESPER_COMPARE_LABEL_CHARS];

_Static_assert(sizeof(cell) >= ESPER_TEXT_CHARS, "a cell has room for any text of ours");

typedef struct sheet {
    cell cells[MAX_ROWS][N_COLUMNS];
    int  n_rows, n_columns; /* the first row is the head */
} sheet;

static void begin_sheet(sheet *table, const char *const *names, int n)
{
    for (int c = 0; c < n; c++)
        snprintf(table->cells[0][c], ESPER_TEXT_CHARS, "%s", names[c]);
    table->n_columns = n;
    table->n_rows = 1;
}

/* ------------------------------------------------------------------------------------------------ cells */

static void put_points(double value, bool is_difference, cell text)
{
    if (isnan(value))
        snprintf(text, ESPER_TEXT_CHARS, "-");
    else
        snprintf(text, ESPER_TEXT_CHARS, is_difference ? "%+.2f" : "%.2f", value);
}

static void put_flops(double value, cell text)
{
    if (isnan(value))
        snprintf(text, ESPER_TEXT_CHARS, "-");
    else
        esper_text_flops(value, text);
}

static void put_epochs(double value, cell text)
{
    if (isnan(value))
        snprintf(text, ESPER_TEXT_CHARS, "-");
    else
        snprintf(text, ESPER_TEXT_CHARS, value == floor(value) ? "%.0f" : "%.1f", value);
}

static void put_row(const esper_compare *compare, int line, const esper_compare_summary *summary, cell *row)
{
    int n_good = summary->acc.n;

    snprintf(row[0], sizeof(cell), "%s", compare->lines[line].name);
    if (summary->n_bad == 0)
        snprintf(row[1], ESPER_TEXT_CHARS, "%d", n_good);
    else
        snprintf(row[1], ESPER_TEXT_CHARS, "%d of %d", n_good, n_good + summary->n_bad);
    put_points(summary->acc.mean, false, row[2]);
    put_points(summary->acc.sd, false, row[3]);
    put_points(summary->acc.min, false, row[4]);
    put_points(summary->acc.max, false, row[5]);
    put_points(line != compare->host ? summary->gain.mean : (double)NAN, true, row[OVER_NONE]);
    put_points(line != compare->host ? summary->gain.sd : (double)NAN, false, row[OVER_NONE + 1]);
    put_points(summary->total_reward.mean, false, row[8]);
    put_points(summary->total_reward.sd, false, row[9]);
    snprintf(row[10], ESPER_TEXT_CHARS, "-");
    if (n_good > 0)
        esper_text_count((int64_t)(summary->params.mean + 0.5), row[10]);
    put_flops(summary->flops.mean, row[11]);
    put_flops(summary->flops_train.mean, row[12]);
    put_epochs(summary->epochs.mean, row[13]);
    snprintf(row[14], ESPER_TEXT_CHARS, "-");
    if (n_good > 0)
        esper_text_duration(summary->seconds.mean, row[14]);
}

/* Takes columns out again that say nothing. */
static void drop_columns(sheet *table, int first, int n)
{
    for (int r = 0; r < table->n_rows; r++)
        memmove(table->cells[r][first], table->cells[r][first + n],
                (size_t)(table->n_columns - first - n) * sizeof(cell));
    table->n_columns -= n;
}

static void fill_table(const esper_compare *compare, bool equal_flops, sheet *table_out)
{
    esper_compare_summary summary;

    begin_sheet(table_out, heads, N_COLUMNS);
    for (int line = 0; line < compare->n_lines; line++)
        if (esper_compare_summarise(compare, line, equal_flops, &summary))
            put_row(compare, line, &summary, table_out->cells[table_out->n_rows++]);
    if (compare->host < 0)
        drop_columns(table_out, OVER_NONE, 2);
}

/* ------------------------------------------------------------------------------------------------ layout */

static bool is_spread(const char *head)
{
    return strcmp(head, "sd") == 0 || strcmp(head, "95 %") == 0;
}

static int width_of(const sheet *table, int column)
{
    int width = 0;

    for (int r = 0; r < table->n_rows; r++)
        if ((int)strlen(table->cells[r][column]) > width)
            width = (int)strlen(table->cells[r][column]);
    return width;
}

/* The column after the last that fits beside the first one; a deviation or an interval is not parted from its mean. */
static int last_fitting(const sheet *table, int first, int room)
{
    int used = 2 + width_of(table, 0), end = first;

    while (end < table->n_columns) {
        bool is_pair = end + 1 < table->n_columns && is_spread(table->cells[0][end + 1]);
        int n = is_pair ? 2 : 1;

        for (int c = end; c < end + n; c++)
            used += 2 + width_of(table, c);
        if (used > room && end > first)
            break;
        end += n;
    }
    return end;
}

/* What does not fit beside the names of the lines stands below, with these names again. */
static void write_plain(const sheet *table, int room, esper_page *page)
{
    int end;

    for (int first = 1; first < table->n_columns; first = end) {
        end = last_fitting(table, first, room);
        esper_page_print(page, "%s", first > 1 ? "\n" : "");
        for (int r = 0; r < table->n_rows; r++) {
            esper_page_print(page, "  %-*s", width_of(table, 0), table->cells[r][0]);
            for (int c = first; c < end; c++)
                esper_page_print(page, "  %*s", width_of(table, c), table->cells[r][c]);
            esper_page_print(page, "\n");
        }
    }
}

static void write_markdown(const sheet *table, esper_page *page)
{
    for (int r = 0; r < table->n_rows; r++) {
        esper_page_print(page, "|");
        for (int c = 0; c < table->n_columns; c++)
            esper_page_print(page, " %s |", table->cells[r][c]);
        esper_page_print(page, "\n");
        if (r > 0)
            continue;
        esper_page_print(page, "|---|");
        for (int c = 1; c < table->n_columns; c++)
            esper_page_print(page, "---:|");
        esper_page_print(page, "\n");
    }
}

static void write_sheet(const sheet *table, esper_compare_style style, esper_page *page)
{
    if (style.format == ESPER_COMPARE_MARKDOWN)
        write_markdown(table, page);
    else
        write_plain(table, style.room, page);
}

static void write_table(const esper_compare *compare, bool equal_flops, esper_compare_style style, esper_page *page)
{
    sheet table;

    fill_table(compare, equal_flops, &table);
    write_sheet(&table, style, page);
}

/* ------------------------------------------------------------------------------------------------ differences */

/* "+1.20"; whole numbers are counts: "+1,234". */
static const char *signed_text(double value, int decimals, char text[ESPER_TEXT_CHARS])
{
    char count[ESPER_TEXT_CHARS];

    if (decimals == 0 && fabs(value) < 1e12)
        snprintf(text, ESPER_TEXT_CHARS, "%s%s", llround(value) < 0 ? "" : "+",
                 esper_text_count(llround(value), count));
    else
        snprintf(text, ESPER_TEXT_CHARS, "%+.*f", decimals, value);
    return text;
}

/* "+1.20" and "+0.80 to +1.60" */
static void put_difference(const esper_compare_spread *spread, int decimals, cell mean, cell interval)
{
    double margin = esper_compare_margin(spread);
    char low[ESPER_TEXT_CHARS], high[ESPER_TEXT_CHARS];

    snprintf(mean, ESPER_TEXT_CHARS, "-");
    snprintf(interval, sizeof(cell), "-");
    if (spread->n > 0)
        signed_text(spread->mean, decimals, mean);
    if (!isnan(margin))
        snprintf(interval, sizeof(cell), "%.19s to %.19s", signed_text(spread->mean - margin, decimals, low),
                 signed_text(spread->mean + margin, decimals, high));
}

static void put_pair(const esper_compare *compare, int line, const esper_compare_pair *pair, cell *row)
{
    snprintf(row[0], sizeof(cell), "%s", compare->lines[line].name);
    snprintf(row[1], ESPER_TEXT_CHARS, "%d", pair->acc.n);
    put_difference(&pair->total_reward, 3, row[2], row[3]);
    put_difference(&pair->acc, 2, row[4], row[5]);
    put_difference(&pair->params, 0, row[6], row[7]);
}

static void write_pairs(const esper_compare *compare, esper_compare_style style, esper_page *page)
{
    char reward[ESPER_COMPARE_REWARD_CHARS];
    esper_compare_pair pair;
    sheet table;

    if (compare->n_lines < 2)
        return;
    begin_sheet(&table, pair_heads, N_PAIR_COLUMNS);
    for (int line = 0; line < compare->n_lines; line++)
        if (esper_compare_pair_up(compare, line, &pair))
            put_pair(compare, line, &pair, table.cells[table.n_rows++]);
    esper_compare_reward(compare, reward);
    esper_page_print(page,
                     "\n%s less each other line, at equal epochs on the same seeds, returns by the reward %s:\n%s",
                     compare->lines[compare->against].name, reward, style.format == ESPER_COMPARE_MARKDOWN ? "\n" : "");
    write_sheet(&table, style, page);
}

/* ------------------------------------------------------------------------------------------------ remarks */

/* Text of others may hold what a line of Markdown gives a meaning. */
static void write_remark(esper_compare_format format, const char *text, esper_page *page)
{
    esper_page_print(page, format == ESPER_COMPARE_MARKDOWN ? "- %s\n" : "  %s\n", text);
}

static bool is_bad(const esper_compare_run *run)
{
    return run->result.outcome != ESPER_COMPARE_GOOD;
}

static void write_bad(const esper_compare *compare, esper_compare_format format, esper_page *page)
{
    char name[ESPER_COMPARE_NAME_CHARS], text[ESPER_COMPARE_NAME_CHARS + ESPER_COMPARE_WHY_CHARS + 32];
    int n = 0;

    for (int i = 0; i < compare->n_runs; i++) {
        const esper_compare_run *run = &compare->runs[i];

        if (!is_bad(run))
            continue;
        if (n++ == 0)
            esper_page_print(page, "\nRuns that are not counted:\n%s", format == ESPER_COMPARE_MARKDOWN ? "\n" : "");
        esper_compare_name(compare, run, name);
        snprintf(text, sizeof(text), "%s: %s%s%s", name, esper_compare_outcome_name(run->result.outcome),
                 run->result.why[0] != '\0' ? ": " : "", run->result.why);
        write_remark(format, text, page);
    }
}

bool esper_compare_has_budget(const esper_compare *compare)
{
    for (int i = 0; i < compare->n_lines && compare->grown >= 0; i++)
        if (compare->lines[i].kind != ESPER_COMPARE_GROWN)
            return true;
    return false;
}

bool esper_compare_has_weights(const esper_compare *compare)
{
    for (int i = 0; i < compare->n_lines; i++)
        if (compare->lines[i].weights[0] != '\0')
            return true;
    return false;
}

const char *esper_compare_weights(const esper_compare_line *line)
{
    return line->weights[0] != '\0' ? line->weights : line->weights_known ? "the usual ones" : "not known";
}

static void write_learned(const esper_compare *compare, esper_compare_format format, esper_page *page)
{
    char text[2 * ESPER_CONFIG_TEXT_CHARS + 256];
    bool weights = esper_compare_has_weights(compare);
    int n = 0;

    for (int i = 0; i < compare->n_lines; i++) {
        const esper_compare_line *line = &compare->lines[i];

        if (line->file[0] == '\0')
            continue;
        if (n++ == 0)
            esper_page_print(page, "\nLearned policies:\n%s", format == ESPER_COMPARE_MARKDOWN ? "\n" : "");
        snprintf(text, sizeof(text), "%s: %s, trained by the reward %s%s%s%s with %s gates, hash %016" PRIx64,
                 line->name, line->file, line->reward, weights ? " (weights: " : "",
                 weights ? esper_compare_weights(line) : "", weights ? ")" : "", line->gates, line->hash);
        write_remark(format, text, page);
        if (line->note[0] != '\0' && format == ESPER_COMPARE_MARKDOWN) /* who watches was told when it began */
            esper_page_print(page, "  - %s: %s\n", line->name, line->note);
    }
}

static void describe_choice(const esper_compare *compare, const esper_compare_run *run, char *text, size_t chars)
{
    char params[ESPER_TEXT_CHARS], wanted[ESPER_TEXT_CHARS];
    int of = compare->lines[run->line].of;
    const esper_compare_run *grown = esper_compare_find(compare, of, run->seed, false);
    const char *name = compare->lines[run->line].name;

    if (compare->lines[run->line].kind == ESPER_COMPARE_EQUAL)
        snprintf(text, chars, "%s, seed %" PRIu64 ": %s %d, %s parameters (%s ended with %s)", name,
                 esper_compare_seed(compare, run->seed), esper_compare_size_key(compare->task), run->size,
                 esper_text_count(run->size_params, params), compare->lines[of].name,
                 esper_text_count(grown->result.params, wanted));
    else if (run->plant[0] == '\0')
        snprintf(text, chars,
                 "%s, seed %" PRIu64 ": no seed of %s had a part in what was tested, so this is the static host", name,
                 esper_compare_seed(compare, run->seed), compare->lines[of].name);
    else
        snprintf(text, chars, "%s, seed %" PRIu64 ": %s", name, esper_compare_seed(compare, run->seed), run->plant);
}

static void write_choices(const esper_compare *compare, esper_compare_format format, esper_page *page)
{
    char text[ESPER_CONFIG_TEXT_CHARS + 128];
    int n = 0;

    for (int i = 0; i < compare->n_runs; i++) {
        const esper_compare_run *run = &compare->runs[i];
        esper_compare_kind kind = compare->lines[run->line].kind;

        if (!run->prepared || run->equal_flops || (kind != ESPER_COMPARE_FINAL && kind != ESPER_COMPARE_EQUAL))
            continue;
        if (n++ == 0)
            esper_page_print(page, "\nWhat was chosen:\n%s", format == ESPER_COMPARE_MARKDOWN ? "\n" : "");
        describe_choice(compare, run, text, sizeof(text));
        write_remark(format, text, page);
    }
}

/* ------------------------------------------------------------------------------------------------ all of it */

const char *esper_compare_reward(const esper_compare *compare, char text[ESPER_COMPARE_REWARD_CHARS])
{
    char reward[ESPER_CONFIG_TEXT_CHARS], weights[ESPER_CONFIG_TEXT_CHARS];

    esper_config_value_text(&compare->config, esper_config_find("reward"), reward);
    esper_config_value_text(&compare->config, esper_config_find("reward_weights"), weights);
    snprintf(text, ESPER_COMPARE_REWARD_CHARS, "%s%s%s", reward, weights[0] != '\0' ? " with " : "", weights);
    return text;
}

static void write_title(const esper_compare *compare, esper_compare_format format, esper_page *page)
{
    const esper_config *config = &compare->config;
    char gates[ESPER_CONFIG_TEXT_CHARS];

    esper_config_value_text(config, esper_config_find("gates"), gates);
    esper_page_print(page, "%s%s: %d seed%s from %" PRIu64 ", %d epoch%s, gates %s for all\n",
                     format == ESPER_COMPARE_MARKDOWN ? "### " : "", compare->task->name, compare->n_seeds,
                     compare->n_seeds == 1 ? "" : "s", config->seed, config->epochs, config->epochs == 1 ? "" : "s",
                     gates);
}

void esper_compare_write(const esper_compare *compare, esper_compare_style style, esper_page *page)
{
    esper_compare_format format = style.format;
    const char *gap = format == ESPER_COMPARE_MARKDOWN ? "\n" : "";

    write_title(compare, format, page);
    esper_page_print(page, "\nAt equal epochs:\n%s", gap);
    write_table(compare, false, style, page);
    if (esper_compare_has_budget(compare)) {
        esper_page_print(page, "\nAt equal training FLOPs, those of %s on the same seed:\n%s",
                         compare->lines[compare->grown].name, gap);
        write_table(compare, true, style, page);
    }
    write_pairs(compare, style, page);
    write_bad(compare, format, page);
    write_learned(compare, format, page);
    write_choices(compare, format, page);
    if (compare->host >= 0)
        esper_page_print(
            page, "\nMeans over the seeds whose run has a good result; sd: sample standard deviation; over none: "
                  "differences\nof test accuracy paired by seed, in percentage points; return: the sum of a run's "
                  "rewards; 95 %%: interval\nof a mean difference by Student's t over that many seeds.\n");
    else
        esper_page_print(page, "\nMeans over the seeds whose run has a good result; sd: sample standard deviation; "
                               "return: the sum of a run's\nrewards; 95 %%: interval of a mean difference by Student's "
                               "t over that many seeds.\n");
}
