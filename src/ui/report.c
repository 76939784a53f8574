/* The report of a run: the page from top to bottom. */
#include "ui/report.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "ui/report_chart.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

/* ------------------------------------------------------------------------------------------------ head */

/* How it stands, in a sentence. */
static void write_state(esper_page *page, const esper_report_data *data)
{
    const esper_report_line *grown = &data->closing.grown;

    if (!grown->ended)
        esper_html(page,
                   "<p class=\"note\">This run has not ended: it is still going on, or it was stopped. %" PRId64
                   " epoch%s recorded so far.</p>\n",
                   grown->epochs, grown->epochs == 1 ? " is" : "s are");
    else if (data->run.status[0] != '\0' && strcmp(data->run.status, esper_status_name(ESPER_OK)) != 0)
        esper_html(page, "<p class=\"note\">The run ended early, with %s, after %" PRId64 " epoch%s.</p>\n",
                   data->run.status, grown->epochs, grown->epochs == 1 ? "" : "s");
    if (data->n_dropped_all == 0)
        return;
    esper_html(page, "<p class=\"note\">%" PRIu64 " record%s did not get into the store, so there are gaps below:",
               data->n_dropped_all, data->n_dropped_all == 1 ? "" : "s");
    for (int kind = 0; kind < ESPER_STORE_N_KINDS; kind++)
        if (data->n_dropped[kind] > 0)
            esper_html(page, " %s %" PRIu64, esper_store_table((esper_store_kind)kind), data->n_dropped[kind]);
    esper_html(page, ".</p>\n");
}

static void write_difference(esper_page *page, const esper_report_numbers *closing)
{
    double more = closing->difference.acc_test;
    int64_t host = closing->host.params, grown = closing->grown.params;
    bool compared = esper_html_is_known(more);

    esper_html(page, "The grown host reaches %.2f %% test accuracy", closing->grown.acc_test);
    if (compared)
        esper_html(page, ", %.2f points %s than its static host", fabs(more), more < 0.0 ? "less" : "more");
    if (host > 0 && grown == host)
        esper_html(page, ", with as many parameters%s", compared ? "" : " as its static host");
    else if (host > 0 && grown > 0)
        esper_html(page, ", with %.2f times %s", (double)grown / (double)host,
                   compared ? "its parameters" : "the parameters of its static host");
    esper_html(page, ". ");
}

/* What came out, in two sentences. */
static void write_lead(esper_page *page, const esper_report_data *data)
{
    const esper_report_line *grown = &data->closing.grown;
    int n_kept = 0, n_pruned = 0;

    for (int i = 0; i < data->n_seeds; i++) {
        bool pruned = data->seeds[i].pruned_epoch != ESPER_STORE_NO_INT;

        n_pruned += pruned;
        n_kept += !pruned && data->seeds[i].fossilized_epoch != ESPER_STORE_NO_INT;
    }
    esper_html(page, "<p class=\"lead\">");
    if (esper_html_is_known(grown->acc_test))
        write_difference(page, &data->closing);
    else if (esper_html_is_known(grown->acc_valid))
        esper_html(page, "Validation accuracy is %.2f %% after epoch %" PRId64 ". ", grown->acc_valid, grown->epochs);
    if (data->n_seeds == 0)
        esper_html(page, "No seed has germinated%s.</p>\n",
                   grown->params > data->run.params_host ? "; what it has beside its host was planted before it began"
                                                         : "");
    else
        esper_html(page, "%d seed%s germinated: %d kept, %d pruned, %d not decided.</p>\n", data->n_seeds,
                   data->n_seeds == 1 ? "" : "s", n_kept, n_pruned, data->n_seeds - n_kept - n_pruned);
}

static void write_facts(esper_page *page, const esper_report_data *data)
{
    const esper_store_run *run = &data->run;
    char seed[24];

    snprintf(seed, sizeof(seed), "%" PRIu64, run->rng_seed);
    esper_html(page, "<dl class=\"facts\">\n");
    esper_report_fact(page, "Task", run->task);
    esper_report_fact(page, "Policy", run->policy);
    esper_report_fact(page, "Gates", run->gate_mode);
    esper_report_fact(page, "Random seed", seed);
    esper_report_fact(page, "Kernels", run->kernels);
    esper_report_run_facts(page, run);
    esper_report_fact_int(page, "Epochs", data->closing.grown.epochs);
    esper_report_fact_int(page, "Times resumed", run->n_resumed);
    esper_report_fact_int(page, "Rollbacks", data->rollbacks.n);
    esper_report_classes(page, &data->classes);
    esper_html(page, "</dl>\n");
}

/* ------------------------------------------------------------------------------------------------ closing table */

static void write_closing_line(esper_page *page, const char *name, const esper_report_line *line, bool is_difference)
{
    char flops[ESPER_TEXT_CHARS], training[ESPER_TEXT_CHARS], seconds[ESPER_TEXT_CHARS];
    const char *unit = !esper_html_is_known(line->acc_test) ? "" : is_difference ? " points" : " %";
    const struct {
        bool        positive;
        const char *text; /* NULL: the count */
        int64_t     count;
    } cells[] = {{line->params > 0, NULL, line->params},
                 {line->flops > 0, esper_html_flops(line->flops, flops), 0},
                 {line->flops_train > 0, esper_html_flops(line->flops_train, training), 0},
                 {line->epochs > 0, NULL, line->epochs},
                 {line->seconds > 0.0, esper_html_seconds(line->seconds, seconds), 0}};

    esper_html(page, "<tr><th scope=\"row\">%s</th>", name);
    if (is_difference)
        esper_html(page, "<td class=\"n\">%+.2f%s</td>", line->acc_test, unit);
    else
        esper_html(page, "<td class=\"n\">%.2f%s</td>", line->acc_test, unit);
    for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
        esper_html(page, "<td class=\"n\">%s", is_difference && cells[i].positive ? "+" : "");
        if (cells[i].text != NULL)
            esper_html(page, "%s</td>", cells[i].text);
        else
            esper_html(page, "%" PRIi64 "</td>", cells[i].count);
    }
    esper_html(page, "</tr>\n");
}

static void write_closing(esper_page *page, const esper_report_data *data)
{
    static const char *const columns[] = {"Network",         "#Test accuracy", "#Parameters", "#FLOPs per sample",
                                          "#Training FLOPs", "#Epochs",        "#Time",       NULL};
    const esper_report_numbers *closing = &data->closing;

    esper_html(page, "<h2 id=\"closing\">Result</h2>\n");
    esper_html_table(page, "closing", NULL, columns);
    write_closing_line(page, "static host", &closing->host, false);
    write_closing_line(page, "grown host", &closing->grown, false);
    write_closing_line(page, "difference", &closing->difference, true);
    esper_html_table_end(page);
    if (closing->host.run == ESPER_STORE_NO_INT)
        esper_html(page, "<p class=\"soft\">The static host was not trained beside this run, so only its size is "
                         "known.</p>\n");
    else if (!closing->host.ended)
        esper_html(page, "<p class=\"soft\">The static host has not ended: its numbers are those of its last "
                         "epoch.</p>\n");
    if (!closing->grown.ended)
        esper_html(page, "<p class=\"soft\">The grown host has not ended: its numbers are those of its last epoch, "
                         "and it has not seen the test split.</p>\n");
    else if (data->run.n_resumed > 0)
        esper_html(page, "<p class=\"soft\">The run was resumed: its time is the sum of its epochs'.</p>\n");
}

/* ------------------------------------------------------------------------------------------------ the network */

/* As it began and as it stands, on one scale. */
static void write_network(esper_page *page, const esper_report_data *data)
{
    const esper_drawing *began = &data->began, *now = &data->now;
    int n_vacant = 0, n_seeds = 0;
    char title[96];

    for (int i = 0; i < now->n; i++) {
        n_seeds += esper_drawing_has_seed(&now->part[i]);
        n_vacant += now->part[i].is_slot && !esper_drawing_has_seed(&now->part[i]);
    }
    esper_html(page, "<h2 id=\"network\">The network</h2>\n<p class=\"soft\">From input to output. A box is as wide as "
                     "the root of its parameters; the colour of a seed is its stage, its filling its weight alpha; a "
                     "ring is an empty slot, and a dashed box is not part of the network yet.");
    if (now->guessed)
        esper_html(page, " The store is of an earlier version, which did not record the parts of the host.");
    esper_html(page, "</p>\n<ul class=\"key\">");
    for (int stage = ESPER_STAGE_GERMINATED; stage <= ESPER_STAGE_FOSSILIZED; stage++)
        if (esper_stage_has_seed(stage))
            esper_html(page,
                       "<li><svg width=\"14\" height=\"14\" aria-hidden=\"true\"><rect class=\"s-%s\" width=\"14\" "
                       "height=\"14\" rx=\"3\"/></svg>%s</li>",
                       esper_stage_name(stage), esper_stage_name(stage));
    esper_html(page, "</ul>\n<div class=\"pair\">\n");
    if (now->epoch > 0) {
        esper_html(page, "<figure>\n<figcaption><b>As it began</b>, %" PRIi64 " parameters</figcaption>\n",
                   began->params_host + began->params_seeds);
        esper_drawing_svg(page, began, "network-began", "The network as it began");
        esper_html(page, "</figure>\n");
    }
    snprintf(title, sizeof(title), "The network after epoch %" PRId64, now->epoch);
    esper_html(page,
               "<figure>\n<figcaption><b>After epoch %" PRId64 "</b>, %" PRIi64
               " parameters, %d seed%s, %d empty slot%s"
               "</figcaption>\n",
               now->epoch, now->params_host + now->params_seeds, n_seeds, n_seeds == 1 ? "" : "s", n_vacant,
               n_vacant == 1 ? "" : "s");
    esper_drawing_svg(page, now, "network-now", title);
    esper_html(page, "</figure>\n</div>\n");
}

/* ------------------------------------------------------------------------------------------------ marks */

typedef struct mark_list {
    esper_chart_mark *at;
    int               n, room;
} mark_list;

/* Texts that no longer fit are cut; the lineage has them all. */
static void add_mark(mark_list *marks, esper_mark_kind kind, int64_t epoch, const char *text)
{
    esper_chart_mark *mark = marks->at;
    size_t used;

    if (epoch == ESPER_STORE_NO_INT)
        return;
    while (mark < marks->at + marks->n && (mark->kind != kind || mark->epoch != epoch))
        mark++;
    if (mark == marks->at + marks->n) {
        assert(marks->n < marks->room); /* one for each time this is called at most */
        *mark = (esper_chart_mark){.kind = kind, .epoch = epoch};
        snprintf(mark->text, sizeof(mark->text), "epoch %" PRId64 ", %s: ", epoch, esper_mark_name(kind));
        marks->n++;
    }
    used = strlen(mark->text);
    snprintf(mark->text + used, sizeof(mark->text) - used, "%s%s", mark->n > 0 ? ", " : "", text);
    mark->n++;
}

static esper_status make_marks(const esper_report_data *data, mark_list *marks)
{
    static const double raised_by = 1.02; /* a little more is rounding, or a warm-up's slope */
    double last_rate = ESPER_STORE_NO_REAL;
    char text[200];

    marks->room = 4 * data->n_seeds + data->rollbacks.n + data->epochs.n;
    marks->at = esper_mem_alloc((size_t)marks->room * sizeof(*marks->at) + 1);
    if (marks->at == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "report: %d marks", marks->room);
    for (int i = 0; i < data->n_seeds; i++) {
        const esper_store_seed *seed = &data->seeds[i];

        esper_report_seed_name(data, seed->seed, text, sizeof(text));
        add_mark(marks, ESPER_MARK_GERMINATED, seed->germinated_epoch, text);
        add_mark(marks, ESPER_MARK_BLENDED, seed->blended_epoch, text);
        add_mark(marks, ESPER_MARK_FOSSILIZED, seed->fossilized_epoch, text);
        add_mark(marks, ESPER_MARK_PRUNED, seed->pruned_epoch, text);
    }
    for (int i = 0; i < data->rollbacks.n; i++) {
        const esper_store_record *record = &data->rollbacks.at[i].record;

        snprintf(text, sizeof(text), "to the end of epoch %" PRId64 " (%s)", record->rollback.to_epoch,
                 record->rollback.reason);
        add_mark(marks, ESPER_MARK_ROLLBACK, record->rollback.from_epoch, text);
    }
    for (int i = 0; i < data->epochs.n; i++) {
        const esper_report_row *row = &data->epochs.at[i];
        double lr = row->record.epoch_done.lr;

        if (!row->stands || !esper_html_is_known(lr))
            continue;
        if (i > 0 && esper_html_is_known(last_rate) && lr > raised_by * last_rate) {
            snprintf(text, sizeof(text), "from %.3g to %.3g", last_rate, lr);
            add_mark(marks, ESPER_MARK_RATE, row->record.epoch - 1, text); /* where the epoch that has it begins */
        }
        last_rate = lr;
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ phases */

typedef struct band_list {
    esper_chart_band *at;
    int               n;
} band_list;

static bool lived_in(const esper_store_seed *seed, int64_t epoch)
{
    int64_t end = seed->pruned_epoch != ESPER_STORE_NO_INT       ? seed->pruned_epoch
                  : seed->fossilized_epoch != ESPER_STORE_NO_INT ? seed->fossilized_epoch
                                                                 : INT64_MAX;

    return epoch > seed->germinated_epoch && epoch <= end; /* what comes after an epoch is there from the next one on */
}

/* The epoch behind which the rate only falls, to its end; INT64_MAX: it does not, or has not begun to. */
static int64_t fall_begins(const esper_report_rows *epochs)
{
    double later = -1.0;
    int64_t begin = INT64_MAX;

    for (int i = epochs->n - 1; i >= 0; i--) {
        double lr = epochs->at[i].record.epoch_done.lr;

        if (!epochs->at[i].stands || !esper_html_is_known(lr))
            continue;
        if (later >= 0.0 && lr <= later)
            break;
        begin = later >= 0.0 ? epochs->at[i].record.epoch : begin;
        later = lr;
    }
    return begin;
}

static esper_phase phase_of(const esper_report_data *data, int64_t epoch, int64_t fall)
{
    for (int i = 0; i < data->n_trials; i++)
        if (data->trials[i].n > 0 && data->trials[i].forks[0].row->stands &&
            data->trials[i].forks[0].row->record.epoch == epoch)
            return ESPER_PHASE_TRIAL;
    for (int i = 0; i < data->n_seeds; i++)
        if (lived_in(&data->seeds[i], epoch))
            return ESPER_PHASE_GROW;
    return epoch > fall ? ESPER_PHASE_FALL : ESPER_PHASE_HOLD;
}

/* A band for each stretch of epochs of one phase, of the grown run. */
static esper_status make_bands(const esper_report_data *data, band_list *bands)
{
    int64_t fall = fall_begins(&data->epochs);

    bands->at = esper_mem_alloc((size_t)data->epochs.n * sizeof(*bands->at) + 1);
    if (bands->at == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "report: phases of %d epochs", data->epochs.n);
    for (int i = 0; i < data->epochs.n; i++) {
        int64_t epoch = data->epochs.at[i].record.epoch;
        esper_phase phase = phase_of(data, epoch, fall);
        esper_chart_band *last = bands->n > 0 ? &bands->at[bands->n - 1] : NULL;

        if (!data->epochs.at[i].stands || epoch < 1)
            continue;
        if (last != NULL && last->phase == phase && epoch == last->to + 1)
            last->to = epoch;
        else if (last == NULL || epoch > last->to)
            bands->at[bands->n++] = (esper_chart_band){phase, epoch - 1, epoch};
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ curves */

#define OF_EPOCH(name) .x = offsetof(esper_store_record, epoch), .y = offsetof(esper_store_record, epoch_done.name)

static void write_curves(esper_page *page, const esper_report_data *data)
{
    const esper_report_rows *grown = &data->epochs, *control = &data->control_epochs;
    const esper_report_curve accuracy[] = {
        {"grown host, validation", "grown", grown, OF_EPOCH(acc_valid), .dots = true},
        {"static host, validation", "static", control, OF_EPOCH(acc_valid), .dots = true},
        {"grown host, training", "grown thin", grown, OF_EPOCH(acc_train)},
        {"static host, training", "static thin", control, OF_EPOCH(acc_train)}};
    const esper_report_curve loss[] = {
        {"grown host, validation", "grown", grown, OF_EPOCH(loss_valid), .dots = true},
        {"static host, validation", "static", control, OF_EPOCH(loss_valid), .dots = true},
        {"grown host, training", "grown thin", grown, OF_EPOCH(loss_train)},
        {"static host, training", "static thin", control, OF_EPOCH(loss_train)}};
    const esper_report_curve params[] = {
        {"grown host with its seeds", "grown", grown, OF_EPOCH(params), .whole = true, .step = true},
        {"static host", "static", control, OF_EPOCH(params), .whole = true, .step = true}};
    const esper_report_curve rate[] = {{"grown host", "grown", grown, OF_EPOCH(lr)},
                                       {"static host", "static", control, OF_EPOCH(lr)}};
    esper_chart chart = {.x_name = "epoch", .last_epoch = data->last_epoch, .height = 250};
    band_list bands = {0};
    mark_list marks = {0};
    esper_status status;

    esper_html(page, "<h2 id=\"curves\">Curves</h2>\n");
    if (grown->n == 0 && control->n == 0) {
        esper_html(page, "<p>No epoch has been finished.</p>\n");
        return;
    }
    status = make_marks(data, &marks);
    if (status == ESPER_OK)
        status = make_bands(data, &bands);
    if (status != ESPER_OK) {
        esper_mem_free(marks.at);
        page->status = status;
        return;
    }
    esper_html(page, "<p class=\"soft\">Behind the curves is what the grown run was doing");
    if (data->has_control && data->closing.grown.epochs < data->closing.host.epochs)
        esper_html(page, ". Both have spent the same training FLOPs: an epoch of a larger network costs more");
    esper_html(page, ".</p>\n");
    esper_phase_key(page);
    esper_html(page, "<div class=\"pair\">\n");
    chart.marks = marks.at;
    chart.n_marks = marks.n;
    chart.bands = bands.at;
    chart.n_bands = bands.n;
    chart.id = "accuracy";
    chart.title = "Accuracy";
    chart.unit = "%";
    esper_report_chart(page, chart, accuracy, 4);
    chart.id = "loss";
    chart.title = "Loss";
    chart.unit = "nats";
    esper_report_chart(page, chart, loss, 4);
    chart = (esper_chart){.id = "params",
                          .title = "Parameters",
                          .unit = "",
                          .x_name = "epoch",
                          .last_epoch = data->last_epoch,
                          .height = 150,
                          .bands = bands.at,
                          .n_bands = bands.n,
                          .from_zero = true,
                          .whole = true};
    esper_report_chart(page, chart, params, 2);
    chart.id = "rate";
    chart.title = "Learning rate";
    chart.whole = false;
    esper_report_chart(page, chart, rate, 2);
    esper_html(page, "</div>\n");
    esper_mem_free(marks.at);
    esper_mem_free(bands.at);
    esper_report_epochs(page, grown, "the grown host");
    esper_report_epochs(page, control, "the static host");
}

/* ------------------------------------------------------------------------------------------------ the page */

static void write_page(esper_page *page, const esper_report_data *data)
{
    const char *task = data->run.task[0] != '\0' ? data->run.task : "a run", *policy = data->run.policy;
    char title[256];

    if (policy[0] == '\0')
        policy = "an unnamed policy";
    else if (strncmp(policy, "learned ", strlen("learned ")) == 0) /* the facts have its hash and file */
        policy = "a learned policy";
    snprintf(title, sizeof(title), "%s%s%s", task, strcmp(policy, "none") != 0 ? ", grown by " : ", policy ", policy);
    esper_report_begin(page, title, "");
    write_lead(page, data);
    write_state(page, data);
    write_facts(page, data);
    esper_report_configuration(page, data->config);
    esper_html(page,
               "<nav aria-label=\"Sections\"><a href=\"#closing\">Result</a><a href=\"#network\">Network</a>"
               "<a href=\"#curves\">Curves</a>"
               "<a href=\"#trials\">Trials</a><a href=\"#timeline\">Timeline</a><a href=\"#lineage\">Lineage</a>"
               "<a href=\"#gates\">Gates</a><a href=\"#decisions\">Decisions</a>"
               "<a href=\"#health\">Health</a><a href=\"#attributions\">Dependence</a></nav>\n</header>\n<main>\n");
    write_closing(page, data);
    write_network(page, data);
    write_curves(page, data);
    esper_report_trials(page, data);
    esper_report_timeline(page, data);
    esper_report_lineage(page, data);
    esper_report_gates(page, data);
    esper_report_decisions(page, data);
    esper_report_health(page, data);
    esper_report_attributions(page, data);
    esper_html(
        page,
        "</main>\n<footer><p>Made by esper report from the run store of %s. Accuracies and dependences are in "
        "percent and percentage points, losses and gains in nats; an epoch counts from 1, and what is decided after an epoch belongs to "
        "it.</p></footer>\n</body>\n</html>\n",
        data->run.name[0] != '\0' ? data->run.name : "this run");
}

esper_status esper_report_write(esper_store_reader *reader, int64_t run, esper_page *page)
{
    esper_report_data data;
    esper_store_run about, control;
    bool has_control;

    ESPER_TRY(esper_report_find_runs(reader, run, &about, &control, &has_control));
    if (strcmp(about.policy, ESPER_REPORT_LEARNER) == 0)
        return esper_report_learning(reader, &about, page);
    ESPER_TRY(esper_report_data_read(reader, run, &data));
    write_page(page, &data);
    esper_report_data_fini(&data);
    return page->status;
}
