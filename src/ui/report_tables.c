/* What was decided, what went wrong, what hangs on seeds, and the numbers behind the curves. */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

/* Longer tables would make the page heavy and help nobody; the store has all. */
enum { MOST_READINGS = 200, MOST_PAIRS = 60 };

/* ------------------------------------------------------------------------------------------------ decisions */

static bool is_wait(const esper_report_row *row)
{
    return strcmp(row->record.decision.op, "wait") == 0;
}

/* Whether two waits after each other can share a row. */
static bool is_same_wait(const esper_report_row *a, const esper_report_row *b)
{
    return is_wait(a) && is_wait(b) && a->stands == b->stands &&
           a->record.decision.accepted == b->record.decision.accepted &&
           strcmp(a->record.decision.source, b->record.decision.source) == 0 &&
           strcmp(a->record.decision.reason, b->record.decision.reason) == 0;
}

/* What was decided beside the operation: "blueprint norm, tempo 3". */
static void write_choices(esper_page *page, const esper_store_record *record)
{
    char tempo[24] = "", speed[24] = "", alpha[ESPER_NUMBER_CHARS] = "";
    const struct {
        const char *name, *text; /* "": not chosen */
    } choices[] = {{"blueprint", record->decision.blueprint},
                   {"blend", record->decision.blend},
                   {"tempo", tempo},
                   {"alpha to", alpha},
                   {"speed", speed},
                   {"curve", record->decision.alpha_curve}};
    int n = 0;

    if (record->decision.tempo != ESPER_STORE_NO_INT)
        snprintf(tempo, sizeof(tempo), "%" PRId64, record->decision.tempo);
    if (record->decision.alpha_speed != ESPER_STORE_NO_INT)
        snprintf(speed, sizeof(speed), "%" PRId64, record->decision.alpha_speed);
    if (record->decision.alpha_target != ESPER_STORE_NO_REAL)
        esper_number_write_float((float)record->decision.alpha_target, alpha);
    esper_html(page, "<td>");
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
        if (choices[i].text[0] != '\0')
            esper_html(page, "%s%s %s", n++ > 0 ? ", " : "", choices[i].name, choices[i].text);
    if (n == 0)
        esper_html(page, "%" PRIi64, ESPER_STORE_NO_INT);
    esper_html(page, "</td>");
}

/* Writes a decision, or a run of waits for one reason, and says how many rows of the table that was. */
static int write_decision(esper_page *page, const esper_report_rows *rows, int at)
{
    const esper_store_record *record = &rows->at[at].record;
    int64_t accepted = record->decision.accepted;
    int n = 1;

    while (at + n < rows->n && is_same_wait(&rows->at[at], &rows->at[at + n]))
        n++;
    esper_report_row_begin(page, &rows->at[at]);
    esper_html(page, "<td class=\"n\">%" PRId64, record->epoch);
    if (n > 1)
        esper_html(page, "\xe2\x80\x93%" PRId64, rows->at[at + n - 1].record.epoch);
    esper_html(page, "</td>");
    esper_html_cells(page, "%s", record->decision.source);
    esper_html(page, "<td>%s", record->decision.op);
    if (n > 1)
        esper_html(page, ", %d times", n);
    esper_html(page, "</td>");
    esper_html_cells(page, "name:%s %" PRIi64, record->decision.slot, record->decision.seed);
    write_choices(page, record);
    if (accepted == ESPER_STORE_NO_INT)
        esper_html_cells(page, "%s", "");
    else
        esper_html(page, "<td class=\"%s\">%s</td>", accepted != 0 ? "pass" : "fail",
                   accepted != 0 ? "done" : "refused");
    esper_html(page, "<td class=\"why\">%s%s</td></tr>\n", rows->at[at].stands ? "" : "(undone) ",
               record->decision.reason);
    return n;
}

void esper_report_decisions(esper_page *page, const esper_report_data *data)
{
    static const char *const columns[] = {"#Epoch", "Source",  "Operation", "Slot", "#Seed",
                                          "Choices", "Outcome", "Reason",    NULL};
    int n_waits = 0, n;

    esper_html(page, "<h2 id=\"decisions\">Decisions</h2>\n");
    if (data->decisions.n == 0) {
        esper_html(page, "<p>No decision has been recorded.</p>\n");
        return;
    }
    for (int i = 0; i < data->decisions.n; i++)
        n_waits += is_wait(&data->decisions.at[i]);
    n = data->decisions.n - data->n_forks;
    esper_page_print(page, "<details%s><summary>%d decision%s, %d of them to wait</summary>\n",
                     n - n_waits <= 30 ? " open=\"open\"" : "", n, n == 1 ? "" : "s", n_waits);
    esper_html_table(page, "decisions", NULL, columns);
    assert(n_waits <= n);
    for (int i = 0; i < data->decisions.n;) /* forks have a section of their own */
        i += esper_report_is_fork(&data->decisions.at[i]) ? 1 : write_decision(page, &data->decisions, i);
    esper_html_table_end(page);
    esper_html(page, "</details>\n");
}

/* ------------------------------------------------------------------------------------------------ health */

static void write_rollbacks(esper_page *page, const esper_report_data *data)
{
    static const char *const columns[] = {"#From epoch",   "#step",        "#To epoch", "#step", "Action",
                                          "#Seeds pruned", "#Rate factor", "#Seconds",  "Why",   NULL};

    esper_html(page, "<h3>Rollbacks</h3>\n");
    if (data->rollbacks.n == 0) {
        esper_html(page, "<p>The run was never rolled back.</p>\n");
        return;
    }
    esper_html_table(page, "rollbacks", NULL, columns);
    for (int i = 0; i < data->rollbacks.n; i++) {
        const esper_store_record *record = &data->rollbacks.at[i].record;

        esper_html(page, "<tr>");
        esper_html_cells(page, "%" PRIi64 " %" PRIi64 " %" PRIi64 " %" PRIi64 " %s %" PRIi64 " %g %.3f why:%s",
                         record->rollback.from_epoch, record->rollback.from_step, record->rollback.to_epoch,
                         record->rollback.to_step, record->rollback.action, record->rollback.n_pruned,
                         record->rollback.lr_scale, record->rollback.seconds, record->rollback.reason);
        esper_html(page, "</tr>\n");
    }
    esper_html_table_end(page);
}

static void write_readings(esper_page *page, const esper_report_data *data)
{
    static const char *const columns[] = {
        "#Epoch",       "#Step", "First bad tensor", "Role",   "Problem", "#Bad elements",
        "#Bad tensors", "#Loss", "Governor",         "Action", NULL};
    int n = data->readings.n;

    esper_html(page, "<h3>Readings of the guard</h3>\n");
    if (data->n_readings == 0) {
        esper_html(page, "<p>The guard has recorded no reading.</p>\n");
        return;
    }
    esper_html(page, "<p>%" PRId64 " reading%s, %d with something to report; %" PRId64 " step%s skipped.</p>\n",
               data->n_readings, data->n_readings == 1 ? "" : "s", n, data->n_skipped, data->n_skipped == 1 ? "" : "s");
    if (n == 0)
        return;
    esper_html_table(page, "readings", NULL, columns);
    for (int i = 0; i < n && i < MOST_READINGS; i++) {
        const esper_store_record *record = &data->readings.at[i].record;

        esper_html(page, "<tr>");
        esper_html_cells(page, "%" PRIi64 " %" PRIi64 " why:%s %s %s %" PRIi64 " %" PRIi64 " %.4f %s %s", record->epoch,
                         record->step, record->health.tensor, record->health.role, record->health.problem,
                         record->health.n_elements, record->health.n_tensors, record->health.loss,
                         record->health.reason, record->health.action);
        esper_html(page, "</tr>\n");
    }
    esper_html_table_end(page);
    if (n > MOST_READINGS)
        esper_html(page, "<p class=\"soft\">%d more are in the store, table <code>health</code>.</p>\n",
                   n - MOST_READINGS);
}

void esper_report_health(esper_page *page, const esper_report_data *data)
{
    esper_html(page, "<h2 id=\"health\">Health and rollbacks</h2>\n");
    write_rollbacks(page, data);
    write_readings(page, data);
}

/* ------------------------------------------------------------------------------------------------ attributions */

static bool is_of(const esper_store_record *record, const char *measure)
{
    return strcmp(record->attribution.measure, measure) == 0;
}

/* The largest size of a value or a bound, for the scale of the bars. */
static double largest(const esper_store_record *const *rows, int n)
{
    double most = 0.0;

    for (int i = 0; i < n; i++) {
        const double values[] = {rows[i]->attribution.value, rows[i]->attribution.lower, rows[i]->attribution.upper};

        for (int k = 0; k < 3; k++)
            if (esper_html_is_known(values[k]))
                most = fmax(most, fabs(values[k]));
    }
    return most > 0.0 ? most : 1.0;
}

enum { GAUGE_WIDTH = 220, GAUGE_HALF = GAUGE_WIDTH / 2, GAUGE_HEIGHT = 16 };

void esper_report_gauge(esper_page *page, double value, double lower, double upper, double most)
{
    double unit = (GAUGE_HALF - 2) / most;

    esper_html(page, "<td class=\"gauge\">");
    if (esper_html_is_known(value)) {
        esper_html(page,
                   "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" aria-hidden=\"true\"><rect class=\"%s\" "
                   "y=\"3\" height=\"10\" x=\"%a\" width=\"%a\"/>",
                   GAUGE_WIDTH, GAUGE_HEIGHT, GAUGE_WIDTH, GAUGE_HEIGHT, value < 0.0 ? "minus" : "plus",
                   GAUGE_HALF + fmin(value, 0.0) * unit, fabs(value) * unit);
        if (esper_html_is_known(lower) && esper_html_is_known(upper))
            esper_html(page, "<line class=\"whisker\" y1=\"8\" y2=\"8\" x1=\"%a\" x2=\"%a\"/>",
                       GAUGE_HALF + lower * unit, GAUGE_HALF + upper * unit);
        esper_html(page, "<line class=\"axis\" x1=\"%d\" y1=\"0\" x2=\"%d\" y2=\"%d\"/></svg>", GAUGE_HALF, GAUGE_HALF,
                   GAUGE_HEIGHT);
    }
    esper_html(page, "</td>");
}

static void write_seed_cell(esper_page *page, const esper_report_data *data, int64_t seed)
{
    char name[128];

    esper_report_seed_name(data, seed, name, sizeof(name));
    esper_html_cells(page, "%s", seed != ESPER_STORE_NO_INT ? name : "");
}

static void write_attribution(esper_page *page, const esper_report_data *data, const esper_store_record *record,
                              double most)
{
    esper_html(page, "<tr>");
    write_seed_cell(page, data, record->attribution.seed);
    if (is_of(record, "synergy"))
        write_seed_cell(page, data, record->attribution.other_seed);
    esper_html_cells(page, "%" PRIi64 " %+.2f %+.2f %+.2f %" PRIi64, record->epoch, record->attribution.value,
                     record->attribution.lower, record->attribution.upper, record->attribution.n_samples);
    esper_report_gauge(page, record->attribution.value, record->attribution.lower, record->attribution.upper, most);
    esper_html(page, "</tr>\n");
}

/* The largest first; what is no number comes last. */
static int compare_reals(double x, double y)
{
    if (!esper_html_is_known(x) || !esper_html_is_known(y))
        return esper_html_is_known(y) - esper_html_is_known(x);
    return (x < y) - (x > y);
}

static double value_at(const void *row)
{
    return (*(const esper_store_record *const *)row)->attribution.value;
}

static int compare_worth(const void *a, const void *b)
{
    return compare_reals(value_at(a), value_at(b));
}

/* By size, for pairs that get in each other's way are as telling as those that help each other. */
static int compare_size(const void *a, const void *b)
{
    bool known = esper_html_is_known(value_at(a)) && esper_html_is_known(value_at(b));

    return known ? compare_reals(fabs(value_at(a)), fabs(value_at(b))) : compare_reals(value_at(a), value_at(b));
}

/* Those of a measure; of Shapley values only the last set, since they share what they add up to. */
static int choose(const esper_report_data *data, const char *measure, bool last_set,
                  const esper_store_record **rows_out)
{
    int64_t newest = INT64_MIN;
    int n = 0;

    for (int i = 0; i < data->attributions.n; i++)
        if (is_of(&data->attributions.at[i].record, measure) && data->attributions.at[i].record.epoch > newest)
            newest = data->attributions.at[i].record.epoch;
    for (int i = 0; i < data->attributions.n; i++) {
        const esper_store_record *record = &data->attributions.at[i].record;

        if (is_of(record, measure) && (!last_set || record->epoch == newest))
            rows_out[n++] = record;
    }
    return n;
}

/* One of the two tables of worths. */
typedef struct worths {
    const char        *measure, *title, *none, *about, *name; /* of the table, the last */
    bool               last_set;
    int                most_rows;
    int (*compare)(const void *a, const void *b);
    const char *const *columns;
} worths;

static const char *const shapley_columns[] = {
    "Seed", "#Epoch", "#Value", "#Lower bound", "#Upper bound", "#Samples", "Points of accuracy", NULL};
static const char *const synergy_columns[] = {
    "Seed", "And", "#Epoch", "#Value", "#Lower bound", "#Upper bound", "#Samples", "Points of accuracy", NULL};

static const worths tables[] = {
    {"shapley", "Shapley values", "No Shapley value has been measured.",
     "How the validation accuracy that is lost without all seeds is shared among them, in percentage points, as last "
     "measured.",
     "shapley", true, INT_MAX, compare_worth, shapley_columns},
    {"synergy", "Synergies", "No pair of seeds has been measured.",
     "What is lost without both seeds beyond what is lost without each: above 0 they help each other, below 0 they do the "
     "same work. As last measured for each pair.",
     "synergies", false, MOST_PAIRS, compare_size, synergy_columns},
};

static void write_worths(esper_page *page, const esper_report_data *data, const worths *table,
                         const esper_store_record **rows)
{
    int n = choose(data, table->measure, table->last_set, rows);
    double most = largest(rows, n);

    assert(n <= data->attributions.n && most > 0.0);
    esper_html(page, "<h3>%s</h3>\n", table->title);
    if (n == 0) {
        esper_html(page, "<p>%s</p>\n", table->none);
        return;
    }
    qsort(rows, (size_t)n, sizeof(*rows), table->compare); /* NOLINT(bugprone-sizeof-expression): pointers are sorted */
    esper_html(page, "<p class=\"soft\">%s</p>\n", table->about);
    esper_html_table(page, table->name, NULL, table->columns);
    for (int i = 0; i < n && i < table->most_rows; i++)
        write_attribution(page, data, rows[i], most);
    esper_html_table_end(page);
    if (n > table->most_rows)
        esper_html(page, "<p class=\"soft\">%d weaker pairs are in the store, table <code>attributions</code>.</p>\n",
                   n - table->most_rows);
}

void esper_report_attributions(esper_page *page, const esper_report_data *data)
{
    const esper_store_record **rows;

    esper_html(page, "<h2 id=\"attributions\">How the network depends on its seeds</h2>\n");
    if (data->attributions.n == 0) {
        esper_html(page, "<p>No attribution has been measured.</p>\n");
        return;
    }
    rows = esper_mem_alloc((size_t)data->attributions.n * sizeof(*rows));
    if (rows == NULL) {
        page->status = ESPER_FAIL(ESPER_E_NOMEM, "report: %d attributions", data->attributions.n);
        return;
    }
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        write_worths(page, data, &tables[i], rows);
    esper_mem_free(rows);
}

/* ------------------------------------------------------------------------------------------------ epochs */

void esper_report_epochs(esper_page *page, const esper_report_rows *rows, const char *whose)
{
    static const char *const columns[] = {"#Epoch",
                                          "#Loss, training",
                                          "#Loss, validation",
                                          "#Accuracy, training",
                                          "#Accuracy, validation",
                                          "#Learning rate",
                                          "#Gradient norm",
                                          "#Parameters",
                                          "#Seeds",
                                          "#Seconds",
                                          NULL};

    if (rows->n == 0)
        return;
    esper_html(page, "<details><summary>The numbers behind the curves: %s, epoch by epoch</summary>\n", whose);
    esper_html_table(page, "epochs", NULL, columns);
    for (int i = 0; i < rows->n; i++) {
        const esper_store_record *record = &rows->at[i].record;

        esper_report_row_begin(page, &rows->at[i]);
        esper_html_cells(page, "%" PRIi64 " %.4f %.4f %.2f %.2f %g %.3f %" PRIi64 " %" PRIi64 " %.1f", record->epoch,
                         record->epoch_done.loss_train, record->epoch_done.loss_valid, record->epoch_done.acc_train,
                         record->epoch_done.acc_valid, record->epoch_done.lr, record->epoch_done.grad_norm,
                         record->epoch_done.params, record->epoch_done.n_seeds, record->epoch_done.seconds);
        esper_html(page, "</tr>\n");
    }
    esper_html_table_end(page);
    esper_html(page, "</details>\n");
}
