/* The report of a run: the page from top to bottom. */
#include "ui/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "ui/report_chart.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

static bool is_measured(double value)
{
    return isfinite(value) && value != ESPER_STORE_NO_REAL;
}

/* ------------------------------------------------------------------------------------------------ head */

/* Who decided, for a title; the facts have hash and file of a learned policy. */
static const char *policy_title(const char *policy)
{
    static const char learned[] = "learned ";

    if (policy[0] == '\0')
        return "an unnamed policy";
    return strncmp(policy, learned, strlen(learned)) == 0 ? "a learned policy" : policy;
}

static void begin_page(esper_page *page, const esper_report_data *data)
{
    bool grows = strcmp(data->run.policy, "none") != 0;
    char title[256];

    snprintf(title, sizeof(title), "%s%s%s", data->run.task[0] != '\0' ? data->run.task : "a run",
             grows ? ", grown by " : ", policy ", policy_title(data->run.policy));
    esper_report_begin(page, title, "");
}

/* How it stands, in a sentence. */
static void write_state(esper_page *page, const esper_report_data *data)
{
    const esper_report_line *grown = &data->closing.grown;
    const char *good = esper_status_name(ESPER_OK);

    if (!grown->ended)
        esper_page_print(page,
                         "<p class=\"note\">This run has not ended: it is still going on, or it was stopped. %" PRId64
                         " epoch%s recorded so far.</p>\n",
                         grown->epochs, grown->epochs == 1 ? " is" : "s are");
    else if (data->run.status[0] != '\0' && strcmp(data->run.status, good) != 0) {
        esper_page_print(page, "<p class=\"note\">The run ended early, with ");
        esper_html_text(page, data->run.status);
        esper_page_print(page, ", after %" PRId64 " epoch%s.</p>\n", grown->epochs, grown->epochs == 1 ? "" : "s");
    }
    if (data->n_dropped_all > 0) {
        esper_page_print(page,
                         "<p class=\"note\">%" PRIu64 " record%s did not get into the store, so there are gaps below:",
                         data->n_dropped_all, data->n_dropped_all == 1 ? "" : "s");
        for (int kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
            if (data->n_dropped[kind] > 0)
                esper_page_print(page, " %s %" PRIu64, esper_store_table((esper_store_kind)kind),
                                 data->n_dropped[kind]);
        esper_page_print(page, ".</p>\n");
    }
}

static void count_fates(const esper_report_data *data, int *n_kept_out, int *n_pruned_out)
{
    *n_kept_out = *n_pruned_out = 0;
    for (int i = 0; i < data->n_seeds; i++) {
        bool pruned = data->seeds[i].pruned_epoch != ESPER_STORE_NO_INT;

        *n_pruned_out += pruned;
        *n_kept_out += !pruned && data->seeds[i].fossilized_epoch != ESPER_STORE_NO_INT;
    }
}

static void write_gain(esper_page *page, const esper_report_numbers *closing)
{
    double gain = closing->difference.acc_test;

    esper_page_print(page, "The grown host reaches ");
    esper_html_real(page, closing->grown.acc_test, 2);
    esper_page_print(page, " %% test accuracy");
    if (is_measured(gain)) {
        esper_page_print(page, ", ");
        esper_html_real(page, fabs(gain), 2);
        esper_page_print(page, " points %s than its static host", gain < 0.0 ? "less" : "more");
    }
    if (closing->host.params > 0 && closing->grown.params == closing->host.params)
        esper_page_print(page, ", with as many parameters%s", is_measured(gain) ? "" : " as its static host");
    else if (closing->host.params > 0 && closing->grown.params > 0) {
        esper_page_print(page, ", with ");
        esper_html_real(page, (double)closing->grown.params / (double)closing->host.params, 2);
        esper_page_print(page, " times %s", is_measured(gain) ? "its parameters" : "the parameters of its static host");
    }
    esper_page_print(page, ". ");
}

/* What came out, in two sentences. */
static void write_lead(esper_page *page, const esper_report_data *data)
{
    int n_kept, n_pruned;

    count_fates(data, &n_kept, &n_pruned);
    esper_page_print(page, "<p class=\"lead\">");
    if (is_measured(data->closing.grown.acc_test))
        write_gain(page, &data->closing);
    else if (is_measured(data->closing.grown.acc_valid)) {
        esper_page_print(page, "Validation accuracy is ");
        esper_html_real(page, data->closing.grown.acc_valid, 2);
        esper_page_print(page, " %% after epoch %" PRId64 ". ", data->closing.grown.epochs);
    }
    if (data->n_seeds == 0)
        esper_page_print(page, "No seed has germinated%s.</p>\n",
                         data->closing.grown.params > data->run.params_host
                             ? "; what it has beside its host was planted before it began"
                             : "");
    else
        esper_page_print(page, "%d seed%s germinated: %d kept, %d pruned, %d not decided.</p>\n", data->n_seeds,
                         data->n_seeds == 1 ? "" : "s", n_kept, n_pruned, data->n_seeds - n_kept - n_pruned);
}

static void write_facts(esper_page *page, const esper_report_data *data)
{
    const esper_store_run *run = &data->run;
    char seed[24];

    snprintf(seed, sizeof(seed), "%" PRIu64, run->rng_seed);
    esper_page_print(page, "<dl class=\"facts\">\n");
    esper_report_fact(page, "Task", run->task);
    esper_report_fact(page, "Policy", run->policy);
    esper_report_fact(page, "Gates", run->gate_mode);
    esper_report_fact(page, "Random seed", seed);
    esper_report_fact(page, "Kernels", run->kernels);
    esper_report_fact_int(page, "Threads", run->threads);
    esper_report_fact(page, "Build", run->build);
    esper_report_fact(page, "Run", run->name);
    esper_report_fact_time(page, "Began", run->began);
    esper_report_fact_int(page, "Epochs", data->closing.grown.epochs);
    esper_report_fact_int(page, "Times resumed", run->n_resumed);
    esper_report_fact_int(page, "Rollbacks", data->rollbacks.n);
    esper_page_print(page, "</dl>\n");
}

static void write_head(esper_page *page, const esper_report_data *data)
{
    begin_page(page, data);
    write_lead(page, data);
    write_state(page, data);
    write_facts(page, data);
    esper_report_configuration(page, data->config);
    esper_page_print(page,
                     "<nav aria-label=\"Sections\"><a href=\"#closing\">Result</a><a href=\"#curves\">Curves</a>"
                     "<a href=\"#timeline\">Timeline</a><a href=\"#lineage\">Lineage</a>"
                     "<a href=\"#gates\">Gates</a><a href=\"#decisions\">Decisions</a>"
                     "<a href=\"#health\">Health</a><a href=\"#attributions\">Worth</a></nav>\n</header>\n<main>\n");
}

/* ------------------------------------------------------------------------------------------------ closing table */

static void write_percent(esper_page *page, double value, bool is_difference)
{
    esper_page_print(page, "<td class=\"n\">");
    if (is_difference)
        esper_html_signed(page, value, 2);
    else
        esper_html_real(page, value, 2);
    esper_page_print(page, "%s</td>", !is_measured(value) ? "" : is_difference ? " points" : " %");
}

static void write_plus(esper_page *page, bool is_difference, bool positive)
{
    esper_page_print(page, "<td class=\"n\">%s", is_difference && positive ? "+" : "");
}

static void write_closing_line(esper_page *page, const char *name, const esper_report_line *line, bool is_difference)
{
    esper_page_print(page, "<tr><th scope=\"row\">%s</th>", name);
    write_percent(page, line->acc_test, is_difference);
    write_plus(page, is_difference, line->params > 0);
    esper_html_int(page, line->params);
    esper_page_print(page, "</td>");
    write_plus(page, is_difference, line->flops > 0);
    esper_html_flops(page, line->flops);
    esper_page_print(page, "</td>");
    write_plus(page, is_difference, line->flops_train > 0);
    esper_html_flops(page, line->flops_train);
    esper_page_print(page, "</td>");
    write_plus(page, is_difference, line->epochs > 0);
    esper_html_int(page, line->epochs);
    esper_page_print(page, "</td>");
    write_plus(page, is_difference, line->seconds > 0.0);
    esper_html_seconds(page, line->seconds);
    esper_page_print(page, "</td></tr>\n");
}

static void write_closing_notes(esper_page *page, const esper_report_data *data)
{
    const esper_report_numbers *closing = &data->closing;

    if (closing->host.run == ESPER_STORE_NO_INT)
        esper_page_print(page, "<p class=\"soft\">The static host was not trained beside this run, so only its size is "
                               "known.</p>\n");
    else if (!closing->host.ended)
        esper_page_print(page, "<p class=\"soft\">The static host has not ended: its numbers are those of its last "
                               "epoch.</p>\n");
    if (!closing->grown.ended)
        esper_page_print(page,
                         "<p class=\"soft\">The grown host has not ended: its numbers are those of its last epoch, "
                         "and it has not seen the test split.</p>\n");
    else if (data->run.n_resumed > 0)
        esper_page_print(page, "<p class=\"soft\">The run was resumed: its time is the sum of its epochs'.</p>\n");
}

static void write_closing(esper_page *page, const esper_report_data *data)
{
    static const char *const columns[] = {"Network",         "#Test accuracy", "#Parameters", "#FLOPs per sample",
                                          "#Training FLOPs", "#Epochs",        "#Time",       NULL};
    const esper_report_numbers *closing = &data->closing;

    esper_page_print(page, "<h2 id=\"closing\">Result</h2>\n");
    esper_html_table(page, "closing", NULL, columns);
    write_closing_line(page, "static host", &closing->host, false);
    write_closing_line(page, "grown host", &closing->grown, false);
    write_closing_line(page, "difference", &closing->difference, true);
    esper_html_table_end(page);
    write_closing_notes(page, data);
}

/* ------------------------------------------------------------------------------------------------ marks */

typedef struct mark_list {
    esper_chart_mark *at;
    int               n, room;
} mark_list;

static esper_chart_mark *find_mark(mark_list *marks, esper_mark_kind kind, int64_t epoch)
{
    for (int i = 0; i < marks->n; i++)
        if (marks->at[i].kind == kind && marks->at[i].epoch == epoch)
            return &marks->at[i];
    if (marks->n == marks->room)
        return NULL;
    marks->at[marks->n] = (esper_chart_mark){.kind = kind, .epoch = epoch};
    snprintf(marks->at[marks->n].text, sizeof(marks->at[marks->n].text), "epoch %" PRId64 ", %s: ", epoch,
             esper_mark_name(kind));
    return &marks->at[marks->n++];
}

/* Texts that no longer fit are cut; the lineage has them all. */
static void add_mark(mark_list *marks, esper_mark_kind kind, int64_t epoch, const char *text)
{
    esper_chart_mark *mark = epoch != ESPER_STORE_NO_INT ? find_mark(marks, kind, epoch) : NULL;
    size_t used;

    if (mark == NULL)
        return;
    used = strlen(mark->text);
    snprintf(mark->text + used, sizeof(mark->text) - used, "%s%s", mark->n > 0 ? ", " : "", text);
    mark->n++;
}

static void mark_seeds(const esper_report_data *data, mark_list *marks)
{
    char name[128];

    for (int i = 0; i < data->n_seeds; i++) {
        const esper_store_seed *seed = &data->seeds[i];

        esper_report_seed_name(data, seed->seed, name, sizeof(name));
        add_mark(marks, ESPER_MARK_GERMINATED, seed->germinated_epoch, name);
        add_mark(marks, ESPER_MARK_BLENDED, seed->blended_epoch, name);
        add_mark(marks, ESPER_MARK_FOSSILIZED, seed->fossilized_epoch, name);
        add_mark(marks, ESPER_MARK_PRUNED, seed->pruned_epoch, name);
    }
}

static void mark_rollbacks(const esper_report_data *data, mark_list *marks)
{
    char text[200];

    for (int i = 0; i < data->rollbacks.n; i++) {
        const esper_store_record *record = &data->rollbacks.at[i].record;

        snprintf(text, sizeof(text), "to the end of epoch %" PRId64 " (%s)", record->rollback.to_epoch,
                 record->rollback.reason);
        add_mark(marks, ESPER_MARK_ROLLBACK, record->rollback.from_epoch, text);
    }
}

static esper_status make_marks(const esper_report_data *data, mark_list *marks_out)
{
    mark_list marks = {.room = 4 * data->n_seeds + data->rollbacks.n};

    if (marks.room > 0) {
        marks.at = esper_mem_alloc((size_t)marks.room * sizeof(*marks.at));
        if (marks.at == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "report: %d marks", marks.room);
        mark_seeds(data, &marks);
        mark_rollbacks(data, &marks);
    }
    *marks_out = marks;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ curves */

/* What a curve shows. */
typedef enum measure { ACC_VALID, ACC_TRAIN, LOSS_VALID, LOSS_TRAIN, PARAMS, N_MEASURES } measure;

/* The epochs of a run that stand, column by column. */
typedef struct columns {
    int64_t *epochs;
    double  *values[N_MEASURES];
    int      n;
} columns;

static double value_of(const esper_store_record *record, measure which)
{
    switch (which) {
    case ACC_VALID:
        return record->epoch_done.acc_valid;
    case ACC_TRAIN:
        return record->epoch_done.acc_train;
    case LOSS_VALID:
        return record->epoch_done.loss_valid;
    case LOSS_TRAIN:
        return record->epoch_done.loss_train;
    default:
        return record->epoch_done.params != ESPER_STORE_NO_INT ? (double)record->epoch_done.params
                                                               : ESPER_STORE_NO_REAL;
    }
}

static void free_columns(columns *cols)
{
    esper_mem_free(cols->epochs);
    esper_mem_free(cols->values[0]);
    *cols = (columns){0};
}

static esper_status make_columns(const esper_report_rows *rows, columns *columns_out)
{
    columns cols = {0};

    if (rows->n > 0) {
        cols.epochs = esper_mem_alloc((size_t)rows->n * sizeof(*cols.epochs));
        cols.values[0] = esper_mem_alloc((size_t)rows->n * N_MEASURES * sizeof(*cols.values[0]));
        if (cols.epochs == NULL || cols.values[0] == NULL) {
            free_columns(&cols);
            return ESPER_FAIL(ESPER_E_NOMEM, "report: curves of %d epochs", rows->n);
        }
    }
    for (int m = 1; m < N_MEASURES && rows->n > 0; m++)
        cols.values[m] = cols.values[0] + (size_t)m * (size_t)rows->n;
    for (int i = 0; i < rows->n; i++) {
        if (!rows->at[i].stands)
            continue;
        cols.epochs[cols.n] = rows->at[i].record.epoch;
        for (int m = 0; m < N_MEASURES; m++)
            cols.values[m][cols.n] = value_of(&rows->at[i].record, (measure)m);
        cols.n++;
    }
    *columns_out = cols;
    return ESPER_OK;
}

/* All that the curves are drawn from. */
typedef struct curves {
    const esper_report_data *data;
    columns                  grown, control;
    mark_list                marks;
} curves;

static void add_line(esper_chart_line *lines, int *n, const columns *cols, measure which, const char *name,
                     const char *style)
{
    if (cols->n > 0)
        lines[(*n)++] = (esper_chart_line){.name = name,
                                           .style = style,
                                           .x = cols->epochs,
                                           .y = cols->values[which],
                                           .n = cols->n,
                                           .step = which == PARAMS,
                                           .dots = which == ACC_VALID || which == LOSS_VALID};
}

/* "Grown host, validation: from 61.20 in epoch 1 to 90.10 in epoch 40." for each line. */
static void describe(const esper_chart_line *lines, int n, esper_page *about)
{
    for (int l = 0; l < n; l++) {
        const esper_chart_line *line = &lines[l];

        esper_page_print(about, "%s%s: from ", l > 0 ? " " : "", line->name);
        esper_html_general(about, line->y[0]);
        esper_page_print(about, " in epoch %" PRId64 " to ", line->x[0]);
        esper_html_general(about, line->y[line->n - 1]);
        esper_page_print(about, " in epoch %" PRId64 ".", line->x[line->n - 1]);
    }
}

static void write_chart(esper_page *page, const curves *all, esper_chart chart)
{
    esper_page about = {0};

    describe(chart.lines, chart.n_lines, &about);
    chart.about = about.text != NULL ? about.text : "";
    chart.last_epoch = all->data->last_epoch;
    if (about.status == ESPER_OK)
        esper_chart_write(page, &chart);
    else
        page->status = about.status;
    esper_page_fini(&about);
}

static void write_pair(esper_page *page, const curves *all, measure valid, measure train, esper_chart chart)
{
    esper_chart_line lines[4];
    int n = 0;

    add_line(lines, &n, &all->grown, valid, "grown host, validation", "grown");
    add_line(lines, &n, &all->control, valid, "static host, validation", "static");
    add_line(lines, &n, &all->grown, train, "grown host, training", "grown thin");
    add_line(lines, &n, &all->control, train, "static host, training", "static thin");
    chart.lines = lines;
    chart.n_lines = n;
    chart.marks = all->marks.at;
    chart.n_marks = all->marks.n;
    chart.height = 290;
    write_chart(page, all, chart);
}

static void write_params(esper_page *page, const curves *all)
{
    esper_chart chart = {
        .id = "params", .title = "Parameters", .unit = "", .height = 150, .from_zero = true, .whole = true};
    esper_chart_line lines[2];
    int n = 0;

    add_line(lines, &n, &all->grown, PARAMS, "grown host with its seeds", "grown");
    add_line(lines, &n, &all->control, PARAMS, "static host", "static");
    chart.lines = lines;
    chart.n_lines = n;
    write_chart(page, all, chart);
}

static void draw_curves(esper_page *page, const curves *all)
{
    write_pair(page, all, ACC_VALID, ACC_TRAIN, (esper_chart){.id = "accuracy", .title = "Accuracy", .unit = "%"});
    write_pair(page, all, LOSS_VALID, LOSS_TRAIN, (esper_chart){.id = "loss", .title = "Loss", .unit = "nats"});
    write_params(page, all);
    esper_report_epochs(page, &all->data->epochs, "the grown host");
    esper_report_epochs(page, &all->data->control_epochs, "the static host");
}

static void write_curves(esper_page *page, const esper_report_data *data)
{
    curves all = {.data = data};
    esper_status status;

    esper_page_print(page, "<h2 id=\"curves\">Curves</h2>\n");
    if (data->epochs.n == 0 && data->control_epochs.n == 0) {
        esper_page_print(page, "<p>No epoch has been finished.</p>\n");
        return;
    }
    status = make_columns(&data->epochs, &all.grown);
    if (status == ESPER_OK)
        status = make_columns(&data->control_epochs, &all.control);
    if (status == ESPER_OK)
        status = make_marks(data, &all.marks);
    if (status == ESPER_OK)
        draw_curves(page, &all);
    else
        page->status = status;
    free_columns(&all.grown);
    free_columns(&all.control);
    esper_mem_free(all.marks.at);
}

/* ------------------------------------------------------------------------------------------------ the page */

static void write_page(esper_page *page, const esper_report_data *data)
{
    write_head(page, data);
    write_closing(page, data);
    write_curves(page, data);
    esper_report_timeline(page, data);
    esper_report_lineage(page, data);
    esper_report_gates(page, data);
    esper_report_decisions(page, data);
    esper_report_health(page, data);
    esper_report_attributions(page, data);
    esper_page_print(page, "</main>\n<footer><p>Made by esper report from the run store of ");
    esper_html_text(page, data->run.name[0] != '\0' ? data->run.name : "this run");
    esper_page_print(page,
                     ". Accuracies and contributions are in percent and percentage points; an epoch counts from 1, "
                     "and what is decided after an epoch belongs to it.</p></footer>\n</body>\n</html>\n");
}

esper_status esper_report_write(esper_store_reader *reader, int64_t run, esper_page *page)
{
    esper_report_data data;
    esper_store_run about;

    ESPER_TRY(esper_report_find_run(reader, run, &about));
    if (strcmp(about.policy, ESPER_REPORT_LEARNER) == 0)
        return esper_report_learning(reader, &about, page);
    ESPER_TRY(esper_report_data_read(reader, run, &data));
    write_page(page, &data);
    esper_report_data_fini(&data);
    return page->status;
}
