/* What was decided, what went wrong, what seeds are worth, and the numbers behind the curves. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

/* Longer tables would make the page heavy and help nobody; the store has all. */
enum { MOST_READINGS = 200, MOST_PAIRS = 60 };

static void begin_row(esper_page *page, bool stands)
{
    esper_page_print(page, "%s", stands ? "<tr>" : "<tr class=\"undone\">");
}

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

static void write_choice(esper_page *page, bool *any, const char *name, const char *text)
{
    if (text[0] == '\0')
        return;
    esper_page_print(page, "%s%s ", *any ? ", " : "", name);
    esper_html_text(page, text);
    *any = true;
}

static void write_choice_int(esper_page *page, bool *any, const char *name, int64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRId64, value);
    write_choice(page, any, name, value != ESPER_STORE_NO_INT ? text : "");
}

static void write_choices(esper_page *page, const esper_store_record *record)
{
    bool any = false;

    write_choice(page, &any, "blueprint", record->decision.blueprint);
    write_choice(page, &any, "blend", record->decision.blend);
    write_choice_int(page, &any, "tempo", record->decision.tempo);
    if (record->decision.alpha_target != ESPER_STORE_NO_REAL) {
        esper_page_print(page, "%salpha to ", any ? ", " : "");
        esper_html_general(page, record->decision.alpha_target);
        any = true;
    }
    write_choice_int(page, &any, "speed", record->decision.alpha_speed);
    write_choice(page, &any, "curve", record->decision.alpha_curve);
    if (!any)
        esper_html_int(page, ESPER_STORE_NO_INT);
}

static void write_outcome(esper_page *page, int64_t accepted)
{
    if (accepted == ESPER_STORE_NO_INT)
        esper_html_cell(page, NULL, "");
    else
        esper_html_cell(page, accepted != 0 ? "pass" : "fail", accepted != 0 ? "done" : "refused");
}

/* Writes a decision, or a run of waits for one reason, and says how many rows of the table that was. */
static int write_decision(esper_page *page, const esper_report_rows *rows, int at)
{
    const esper_store_record *record = &rows->at[at].record;
    int n = 1;

    while (at + n < rows->n && is_same_wait(&rows->at[at], &rows->at[at + n]))
        n++;
    begin_row(page, rows->at[at].stands);
    esper_page_print(page, "<td class=\"n\">%" PRId64, record->epoch);
    if (n > 1)
        esper_page_print(page, "\xe2\x80\x93%" PRId64, rows->at[at + n - 1].record.epoch);
    esper_page_print(page, "</td>");
    esper_html_cell(page, NULL, record->decision.source);
    esper_page_print(page, "<td>");
    esper_html_text(page, record->decision.op);
    if (n > 1)
        esper_page_print(page, ", %d times", n);
    esper_page_print(page, "</td>");
    esper_html_cell(page, "name", record->decision.slot);
    esper_html_cell_int(page, record->decision.seed);
    esper_page_print(page, "<td>");
    write_choices(page, record);
    esper_page_print(page, "</td>");
    write_outcome(page, record->decision.accepted);
    esper_page_print(page, "<td class=\"why\">%s", rows->at[at].stands ? "" : "(undone) ");
    esper_html_text(page, record->decision.reason);
    esper_page_print(page, "</td></tr>\n");
    return n;
}

void esper_report_decisions(esper_page *page, const esper_report_data *data)
{
    static const char *const columns[] = {"#Epoch", "Source",  "Operation", "Slot", "#Seed",
                                          "Choices", "Outcome", "Reason",    NULL};
    int n_waits = 0;

    esper_page_print(page, "<h2 id=\"decisions\">Decisions</h2>\n");
    if (data->decisions.n == 0) {
        esper_page_print(page, "<p>No decision has been recorded.</p>\n");
        return;
    }
    for (int i = 0; i < data->decisions.n; i++)
        n_waits += is_wait(&data->decisions.at[i]);
    esper_page_print(page, "<details%s><summary>%d decision%s, %d of them to wait</summary>\n",
                     data->decisions.n - n_waits <= 30 ? " open=\"open\"" : "", data->decisions.n,
                     data->decisions.n == 1 ? "" : "s", n_waits);
    esper_html_table(page, "decisions", NULL, columns);
    for (int i = 0; i < data->decisions.n;)
        i += write_decision(page, &data->decisions, i);
    esper_html_table_end(page);
    esper_page_print(page, "</details>\n");
}

/* ------------------------------------------------------------------------------------------------ health */

static void write_rollbacks(esper_page *page, const esper_report_data *data)
{
    static const char *const columns[] = {"#From epoch",   "#step",        "#To epoch", "#step", "Action",
                                          "#Seeds pruned", "#Rate factor", "#Seconds",  "Why",   NULL};

    esper_page_print(page, "<h3>Rollbacks</h3>\n");
    if (data->rollbacks.n == 0) {
        esper_page_print(page, "<p>The run was never rolled back.</p>\n");
        return;
    }
    esper_html_table(page, "rollbacks", NULL, columns);
    for (int i = 0; i < data->rollbacks.n; i++) {
        const esper_store_record *record = &data->rollbacks.at[i].record;

        esper_page_print(page, "<tr>");
        esper_html_cell_int(page, record->rollback.from_epoch);
        esper_html_cell_int(page, record->rollback.from_step);
        esper_html_cell_int(page, record->rollback.to_epoch);
        esper_html_cell_int(page, record->rollback.to_step);
        esper_html_cell(page, NULL, record->rollback.action);
        esper_html_cell_int(page, record->rollback.n_pruned);
        esper_page_print(page, "<td class=\"n\">");
        esper_html_general(page, record->rollback.lr_scale);
        esper_page_print(page, "</td>");
        esper_html_cell_real(page, record->rollback.seconds, 3);
        esper_html_cell(page, "why", record->rollback.reason);
        esper_page_print(page, "</tr>\n");
    }
    esper_html_table_end(page);
}

static void write_reading(esper_page *page, const esper_store_record *record)
{
    esper_page_print(page, "<tr>");
    esper_html_cell_int(page, record->epoch);
    esper_html_cell_int(page, record->step);
    esper_html_cell(page, "why", record->health.tensor);
    esper_html_cell(page, NULL, record->health.role);
    esper_html_cell(page, NULL, record->health.problem);
    esper_html_cell_int(page, record->health.n_elements);
    esper_html_cell_int(page, record->health.n_tensors);
    esper_html_cell_real(page, record->health.loss, 4);
    esper_html_cell(page, NULL, record->health.reason);
    esper_html_cell(page, NULL, record->health.action);
    esper_page_print(page, "</tr>\n");
}

static void write_readings(esper_page *page, const esper_report_data *data)
{
    static const char *const columns[] = {
        "#Epoch",       "#Step", "First bad tensor", "Role",   "Problem", "#Bad elements",
        "#Bad tensors", "#Loss", "Governor",         "Action", NULL};
    int n = data->readings.n;

    esper_page_print(page, "<h3>Readings of the guard</h3>\n");
    if (data->n_readings == 0) {
        esper_page_print(page, "<p>The guard has recorded no reading.</p>\n");
        return;
    }
    esper_page_print(page, "<p>%" PRId64 " reading%s, %d with something to report; %" PRId64 " step%s skipped.</p>\n",
                     data->n_readings, data->n_readings == 1 ? "" : "s", n, data->n_skipped,
                     data->n_skipped == 1 ? "" : "s");
    if (n == 0)
        return;
    esper_html_table(page, "readings", NULL, columns);
    for (int i = 0; i < n && i < MOST_READINGS; i++)
        write_reading(page, &data->readings.at[i].record);
    esper_html_table_end(page);
    if (n > MOST_READINGS)
        esper_page_print(page, "<p class=\"soft\">%d more are in the store, table <code>health</code>.</p>\n",
                         n - MOST_READINGS);
}

void esper_report_health(esper_page *page, const esper_report_data *data)
{
    esper_page_print(page, "<h2 id=\"health\">Health and rollbacks</h2>\n");
    write_rollbacks(page, data);
    write_readings(page, data);
}

/* ------------------------------------------------------------------------------------------------ attributions */

static bool is_of(const esper_store_record *record, const char *measure)
{
    return strcmp(record->attribution.measure, measure) == 0;
}

static bool is_drawn(double value)
{
    return isfinite(value) && value != ESPER_STORE_NO_REAL;
}

/* The largest size of a value or a bound, for the scale of the bars. */
static double largest(const esper_store_record *const *rows, int n)
{
    double most = 0.0;

    for (int i = 0; i < n; i++) {
        const double values[] = {rows[i]->attribution.value, rows[i]->attribution.lower, rows[i]->attribution.upper};

        for (int k = 0; k < 3; k++)
            if (is_drawn(values[k]))
                most = fmax(most, fabs(values[k]));
    }
    return most > 0.0 ? most : 1.0;
}

enum { GAUGE_WIDTH = 220, GAUGE_HALF = GAUGE_WIDTH / 2, GAUGE_HEIGHT = 16 };

/* A bar from the middle to the value, and a line from bound to bound. */
static void write_gauge(esper_page *page, const esper_store_record *record, double most)
{
    double unit = (GAUGE_HALF - 2) / most, value = record->attribution.value;

    esper_page_print(page, "<td class=\"gauge\">");
    if (is_drawn(value)) {
        esper_page_print(page,
                         "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" aria-hidden=\"true\">"
                         "<rect class=\"%s\" y=\"3\" height=\"10\"",
                         GAUGE_WIDTH, GAUGE_HEIGHT, GAUGE_WIDTH, GAUGE_HEIGHT, value < 0.0 ? "minus" : "plus");
        esper_html_attribute(page, "x", GAUGE_HALF + fmin(value, 0.0) * unit);
        esper_html_attribute(page, "width", fabs(value) * unit);
        esper_page_print(page, "/>");
        if (is_drawn(record->attribution.lower) && is_drawn(record->attribution.upper)) {
            esper_page_print(page, "<line class=\"whisker\" y1=\"8\" y2=\"8\"");
            esper_html_attribute(page, "x1", GAUGE_HALF + record->attribution.lower * unit);
            esper_html_attribute(page, "x2", GAUGE_HALF + record->attribution.upper * unit);
            esper_page_print(page, "/>");
        }
        esper_page_print(page, "<line class=\"axis\" x1=\"%d\" y1=\"0\" x2=\"%d\" y2=\"%d\"/></svg>", GAUGE_HALF,
                         GAUGE_HALF, GAUGE_HEIGHT);
    }
    esper_page_print(page, "</td>");
}

static void write_seed_cell(esper_page *page, const esper_report_data *data, int64_t seed)
{
    char name[128];

    esper_report_seed_name(data, seed, name, sizeof(name));
    esper_html_cell(page, NULL, seed != ESPER_STORE_NO_INT ? name : "");
}

static void write_attribution(esper_page *page, const esper_report_data *data, const esper_store_record *record,
                              double most)
{
    esper_page_print(page, "<tr>");
    write_seed_cell(page, data, record->attribution.seed);
    if (is_of(record, "synergy"))
        write_seed_cell(page, data, record->attribution.other_seed);
    esper_html_cell_int(page, record->epoch);
    esper_html_cell_signed(page, record->attribution.value, 2);
    esper_html_cell_signed(page, record->attribution.lower, 2);
    esper_html_cell_signed(page, record->attribution.upper, 2);
    esper_html_cell_int(page, record->attribution.n_samples);
    write_gauge(page, record, most);
    esper_page_print(page, "</tr>\n");
}

/* By value, the largest first; what is no number comes last. */
static int compare_worth(const void *a, const void *b)
{
    double x = (*(const esper_store_record *const *)a)->attribution.value;
    double y = (*(const esper_store_record *const *)b)->attribution.value;

    if (!is_drawn(x) || !is_drawn(y))
        return is_drawn(y) - is_drawn(x);
    return (x < y) - (x > y);
}

/* By size, for pairs that get in each other's way are as telling as those that help each other. */
static int compare_size(const void *a, const void *b)
{
    double x = (*(const esper_store_record *const *)a)->attribution.value;
    double y = (*(const esper_store_record *const *)b)->attribution.value;

    if (!is_drawn(x) || !is_drawn(y))
        return is_drawn(y) - is_drawn(x);
    return (fabs(x) < fabs(y)) - (fabs(x) > fabs(y));
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

static void write_shapley(esper_page *page, const esper_report_data *data, const esper_store_record **rows)
{
    static const char *const columns[] = {
        "Seed", "#Epoch", "#Value", "#Lower bound", "#Upper bound", "#Samples", "Points of accuracy", NULL};
    int n = choose(data, "shapley", true, rows);
    double most = largest(rows, n);

    esper_page_print(page, "<h3>Shapley values</h3>\n");
    if (n == 0) {
        esper_page_print(page, "<p>No Shapley value has been measured.</p>\n");
        return;
    }
    qsort(rows, (size_t)n, sizeof(*rows), compare_worth); /* NOLINT(bugprone-sizeof-expression): pointers are sorted */
    esper_page_print(page, "<p class=\"soft\">How the validation accuracy that all seeds add together is shared among "
                           "them, in percentage points, as last measured.</p>\n");
    esper_html_table(page, "shapley", NULL, columns);
    for (int i = 0; i < n; i++)
        write_attribution(page, data, rows[i], most);
    esper_html_table_end(page);
}

static void write_synergies(esper_page *page, const esper_report_data *data, const esper_store_record **rows)
{
    static const char *const columns[] = {
        "Seed", "And", "#Epoch", "#Value", "#Lower bound", "#Upper bound", "#Samples", "Points of accuracy", NULL};
    int n = choose(data, "synergy", false, rows);
    double most = largest(rows, n);

    esper_page_print(page, "<h3>Synergies</h3>\n");
    if (n == 0) {
        esper_page_print(page, "<p>No pair of seeds has been measured.</p>\n");
        return;
    }
    qsort(rows, (size_t)n, sizeof(*rows), compare_size); /* NOLINT(bugprone-sizeof-expression): pointers are sorted */
    esper_page_print(page,
                     "<p class=\"soft\">What two seeds are worth together beyond what each is worth: above 0 they "
                     "help each other, below 0 they do the same work. As last measured for each pair.</p>\n");
    esper_html_table(page, "synergies", NULL, columns);
    for (int i = 0; i < n && i < MOST_PAIRS; i++)
        write_attribution(page, data, rows[i], most);
    esper_html_table_end(page);
    if (n > MOST_PAIRS)
        esper_page_print(page,
                         "<p class=\"soft\">%d weaker pairs are in the store, table <code>attributions</code>.</p>\n",
                         n - MOST_PAIRS);
}

void esper_report_attributions(esper_page *page, const esper_report_data *data)
{
    const esper_store_record **rows;

    esper_page_print(page, "<h2 id=\"attributions\">What seeds are worth</h2>\n");
    if (data->attributions.n == 0) {
        esper_page_print(page, "<p>No attribution has been measured.</p>\n");
        return;
    }
    rows = esper_mem_alloc((size_t)data->attributions.n * sizeof(*rows));
    if (rows == NULL) {
        page->status = ESPER_FAIL(ESPER_E_NOMEM, "report: %d attributions", data->attributions.n);
        return;
    }
    write_shapley(page, data, rows);
    write_synergies(page, data, rows);
    esper_mem_free(rows);
}

/* ------------------------------------------------------------------------------------------------ epochs */

static void write_epoch(esper_page *page, const esper_report_row *row)
{
    const esper_store_record *record = &row->record;

    begin_row(page, row->stands);
    esper_html_cell_int(page, record->epoch);
    esper_html_cell_real(page, record->epoch_done.loss_train, 4);
    esper_html_cell_real(page, record->epoch_done.loss_valid, 4);
    esper_html_cell_real(page, record->epoch_done.acc_train, 2);
    esper_html_cell_real(page, record->epoch_done.acc_valid, 2);
    esper_page_print(page, "<td class=\"n\">");
    esper_html_general(page, record->epoch_done.lr);
    esper_page_print(page, "</td>");
    esper_html_cell_real(page, record->epoch_done.grad_norm, 3);
    esper_html_cell_int(page, record->epoch_done.params);
    esper_html_cell_int(page, record->epoch_done.n_seeds);
    esper_html_cell_real(page, record->epoch_done.seconds, 1);
    esper_page_print(page, "</tr>\n");
}

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
    esper_page_print(page, "<details><summary>The numbers behind the curves: %s, epoch by epoch</summary>\n", whose);
    esper_html_table(page, "epochs", NULL, columns);
    for (int i = 0; i < rows->n; i++)
        write_epoch(page, &rows->at[i]);
    esper_html_table_end(page);
    esper_page_print(page, "</details>\n");
}
