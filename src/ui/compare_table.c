/* The closing tables of a comparison. */
#include "ui/compare_table.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "policy/reward.h"
#include "ui/text.h"

static const char *const heads[] = {
    "line",   "runs",         "test %",         "sd",     "min",  "max",           "over none", "sd", "return", "sd",
    "params", "FLOPs/sample", "training FLOPs", "epochs", "time", "return a TFLOP"};
static const char *const pair_heads[] = {"line", "seeds",  "return", "95 %",           "test %",
                                         "95 %", "params", "95 %",   "return a TFLOP", "95 %"};

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
    assert(n <= N_COLUMNS);
    for (int c = 0; c < n; c++)
        snprintf(table->cells[0][c], ESPER_TEXT_CHARS, "%s", names[c]);
    table->n_columns = n;
    table->n_rows = 1;
}

/* ------------------------------------------------------------------------------------------------ cells */

/* A figure, or a dash for what is not known. */
static __attribute__((format(printf, 3, 4))) void put(cell text, double value, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(cell), isnan(value) ? "-" : format, args);
    va_end(args);
}

static void put_row(const esper_compare *compare, int line, const esper_compare_summary *summary, cell *row)
{
    const esper_compare_spread *acc = &summary->acc, *earned = &summary->total_reward;
    double gain = line != compare->host ? summary->gain.mean : (double)NAN, epochs = summary->epochs.mean;
    double gain_sd = line != compare->host ? summary->gain.sd : (double)NAN;
    double good = acc->n > 0 ? 0.0 : (double)NAN; /* there is a run to tell of */
    char text[ESPER_TEXT_CHARS];

    put(row[0], 0.0, "%s", compare->lines[line].name);
    put(row[1], 0.0, summary->n_bad == 0 ? "%d" : "%d of %d", acc->n, acc->n + summary->n_bad);
    put(row[2], acc->mean, "%.2f", acc->mean);
    put(row[3], acc->sd, "%.2f", acc->sd);
    put(row[4], acc->min, "%.2f", acc->min);
    put(row[5], acc->max, "%.2f", acc->max);
    put(row[OVER_NONE], gain, "%+.2f", gain);
    put(row[OVER_NONE + 1], gain_sd, "%.2f", gain_sd);
    put(row[8], earned->mean, "%.2f", earned->mean);
    put(row[9], earned->sd, "%.2f", earned->sd);
    put(row[10], good, "%s", esper_text_count(acc->n > 0 ? (int64_t)(summary->params.mean + 0.5) : 0, text));
    put(row[11], summary->flops.mean, "%s", esper_text_flops(summary->flops.mean, text));
    put(row[12], summary->flops_train.mean, "%s", esper_text_flops(summary->flops_train.mean, text));
    put(row[13], epochs, epochs == floor(epochs) ? "%.0f" : "%.1f", epochs);
    put(row[14], good, "%s", esper_text_duration(summary->seconds.mean, text));
    put(row[15], summary->per_tflop.mean, "%.2f", summary->per_tflop.mean);
}

/* ------------------------------------------------------------------------------------------------ layout */

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
        const char *next = end + 1 < table->n_columns ? table->cells[0][end + 1] : "";
        int n = strcmp(next, "sd") == 0 || strcmp(next, "95 %") == 0 ? 2 : 1;

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

static void write_table(const esper_compare *compare, esper_compare_style style, esper_page *page)
{
    esper_compare_summary summary;
    sheet table;

    begin_sheet(&table, heads, N_COLUMNS);
    for (int line = 0; line < compare->n_lines; line++) {
        esper_compare_summarise(compare, line, &summary);
        put_row(compare, line, &summary, table.cells[table.n_rows++]);
    }
    for (int r = 0; r < table.n_rows && compare->host < 0; r++) /* two columns that say nothing */
        memmove(table.cells[r][OVER_NONE], table.cells[r][OVER_NONE + 2], (N_COLUMNS - OVER_NONE - 2) * sizeof(cell));
    if (compare->host < 0)
        table.n_columns -= 2;
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

static void write_pairs(const esper_compare *compare, esper_compare_style style, esper_page *page)
{
    char reward[ESPER_COMPARE_REWARD_CHARS];
    esper_compare_pair pair;
    sheet table;

    if (compare->n_lines < 2)
        return;
    begin_sheet(&table, pair_heads, N_PAIR_COLUMNS);
    for (int line = 0; line < compare->n_lines; line++)
        if (esper_compare_pair_up(compare, line, &pair)) {
            cell *row = table.cells[table.n_rows++];

            put(row[0], 0.0, "%s", compare->lines[line].name);
            put(row[1], 0.0, "%d", pair.acc.n);
            put_difference(&pair.total_reward, 3, row[2], row[3]);
            put_difference(&pair.acc, 2, row[4], row[5]);
            put_difference(&pair.params, 0, row[6], row[7]);
            put_difference(&pair.per_tflop, 2, row[8], row[9]);
        }
    esper_compare_reward(compare, reward);
    esper_page_print(page, "\n%s less each other line, on the same seeds, returns by the reward %s:\n%s",
                     compare->lines[compare->against].name, reward, style.format == ESPER_COMPARE_MARKDOWN ? "\n" : "");
    write_sheet(&table, style, page);
}

/* ------------------------------------------------------------------------------------------------ remarks */

/* Remarks of one kind, below their title; what is printed by this is one of them. */
typedef struct remarks {
    esper_page          *page;
    esper_compare_format format;
    const char          *title;
    int                  n;
} remarks;

static __attribute__((format(printf, 2, 3))) void remark(remarks *all, const char *format, ...)
{
    bool markdown = all->format == ESPER_COMPARE_MARKDOWN;
    char text[2 * ESPER_CONFIG_TEXT_CHARS + 256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (all->n++ == 0)
        esper_page_print(all->page, "\n%s:\n%s", all->title, markdown ? "\n" : "");
    esper_page_print(all->page, markdown ? "- %s\n" : "  %s\n", text);
}

static void write_bad(const esper_compare *compare, esper_compare_format format, esper_page *page)
{
    remarks all = {page, format, "Runs that are not counted", 0};
    char name[ESPER_COMPARE_NAME_CHARS];

    for (int i = 0; i < compare->n_runs; i++) {
        const esper_compare_result *result = &compare->runs[i].result;

        if (result->outcome == ESPER_COMPARE_GOOD)
            continue;
        esper_compare_name(compare, &compare->runs[i], name);
        remark(&all, "%s: %s%s%s", name, esper_compare_outcome_name(result->outcome),
               result->why[0] != '\0' ? ": " : "", result->why);
    }
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
    remarks all = {page, format, "Learned policies", 0};
    bool weights = esper_compare_has_weights(compare);

    for (int i = 0; i < compare->n_lines; i++) {
        const esper_compare_line *line = &compare->lines[i];

        if (line->file[0] == '\0')
            continue;
        remark(&all, "%s: %s, trained by the reward %s%s%s%s with %s gates, hash %016" PRIx64, line->name, line->file,
               line->reward, weights ? " (weights: " : "", weights ? esper_compare_weights(line) : "",
               weights ? ")" : "", line->gates, line->hash);
        if (line->note[0] != '\0' && format == ESPER_COMPARE_MARKDOWN) /* who watches was told when it began */
            esper_page_print(page, "  - %s: %s\n", line->name, line->note);
    }
}

static void write_choices(const esper_compare *compare, esper_compare_format format, esper_page *page)
{
    remarks all = {page, format, "What was chosen", 0};
    char params[ESPER_TEXT_CHARS], wanted[ESPER_TEXT_CHARS];

    for (int i = 0; i < compare->n_runs; i++) {
        const esper_compare_run *run = &compare->runs[i];
        const esper_compare_line *line = &compare->lines[run->line];
        uint64_t seed = esper_compare_seed(compare, run->seed);

        if (!run->prepared || line->kind == ESPER_COMPARE_HOST || line->kind == ESPER_COMPARE_GROWN)
            continue;
        assert(line->of >= 0 || line->kind == ESPER_COMPARE_SEARCH);
        if (line->kind == ESPER_COMPARE_SEARCH && run->result.outcome != ESPER_COMPARE_GOOD)
            continue;
        if (line->kind == ESPER_COMPARE_SEARCH)
            remark(&all, "%s, seed %" PRIu64 ": %s", line->name, seed,
                   run->result.tested[0] != '\0' ? run->result.tested : "the static host");
        else if (line->kind == ESPER_COMPARE_EQUAL)
            remark(&all, "%s, seed %" PRIu64 ": %s %d, %s parameters (%s ended with %s)", line->name, seed,
                   esper_compare_size_key(compare->task, &compare->config), run->size,
                   esper_text_count(run->size_params, params), compare->lines[line->of].name,
                   esper_text_count(esper_compare_find(compare, line->of, run->seed)->result.params, wanted));
        else if (run->plant[0] == '\0')
            remark(&all,
                   "%s, seed %" PRIu64 ": no seed of %s had a part in what was tested, so this is the static host",
                   line->name, seed, compare->lines[line->of].name);
        else
            remark(&all, "%s, seed %" PRIu64 ": %s", line->name, seed, run->plant);
    }
}

/* ------------------------------------------------------------------------------------------------ all of it */

const char *esper_compare_reward(const esper_compare *compare, char text[ESPER_COMPARE_REWARD_CHARS])
{
    const char *weights = compare->config.reward_weights;

    snprintf(text, ESPER_COMPARE_REWARD_CHARS, "%s%s%s", compare->config.reward, weights[0] != '\0' ? " with " : "",
             weights);
    return text;
}

const char *esper_compare_return_text(const esper_compare *compare)
{
    bool by_gain = strcmp(compare->config.reward, esper_reward_mode_name(ESPER_REWARD_GAIN)) == 0;

    return !by_gain            ? "the sum of a run's rewards"
           : compare->host < 0 ? "known only beside the line `none`"
                               : "points over none less the price of size and FLOPs";
}

const char *esper_compare_budget(const esper_compare *compare, char text[ESPER_COMPARE_BUDGET_CHARS])
{
    const esper_config *config = &compare->config;
    char flops[ESPER_TEXT_CHARS];

    if (config->length == ESPER_CONFIG_LENGTH_EPOCHS)
        snprintf(text, ESPER_COMPARE_BUDGET_CHARS, "%d epoch%s for each", config->epochs,
                 config->epochs == 1 ? "" : "s");
    else if (config->flops > 0.0)
        snprintf(text, ESPER_COMPARE_BUDGET_CHARS, "%s for each", esper_text_flops(config->flops, flops));
    else
        snprintf(text, ESPER_COMPARE_BUDGET_CHARS, "%s for each, what %d epoch%s of the host cost",
                 esper_text_flops(compare->flops, flops), config->epochs, config->epochs == 1 ? "" : "s");
    return text;
}

void esper_compare_write(const esper_compare *compare, esper_compare_style style, esper_page *page)
{
    const esper_config *config = &compare->config;
    esper_compare_format format = style.format;
    const char *gap = format == ESPER_COMPARE_MARKDOWN ? "\n" : "";
    char budget[ESPER_COMPARE_BUDGET_CHARS];

    esper_page_print(page, "%s%s: %d seed%s from %" PRIu64 ", gates %s for all\n",
                     format == ESPER_COMPARE_MARKDOWN ? "### " : "", compare->task->name, compare->n_seeds,
                     compare->n_seeds == 1 ? "" : "s", config->seed, esper_config_gates_name(config->gates));
    esper_page_print(page, "\nAt equal %s, %s:\n%s",
                     config->length == ESPER_CONFIG_LENGTH_EPOCHS ? "epochs" : "training FLOPs",
                     esper_compare_budget(compare, budget), gap);
    write_table(compare, style, page);
    write_pairs(compare, style, page);
    write_bad(compare, format, page);
    write_learned(compare, format, page);
    write_choices(compare, format, page);
    esper_page_print(page,
                     "\nMeans over the seeds whose run has a good result; sd: sample standard deviation;%s\n"
                     "return: %s; 95 %%: interval of a mean\ndifference by Student's t over that many seeds.\n",
                     compare->host >= 0 ? " over none: differences\nof test accuracy paired by seed, in points;" : "",
                     esper_compare_return_text(compare));
}
