/* The window of `esper watch`:
 *
 *     runs/fashion-1  fashion, grown by trials  running  epoch 12  valid 89.25 %  best 89.30 %  23,770 params (host 5,178)
 *     ███─○─█─○─███████─○─█─[██████]─███                                         the network
 *       r0c0 r1c0     r0c1 r1c1 F
 *       89.3 %        ▂▃▅▆▇█                                                     accuracy; in a wide window, the loss beside it
 *       74.1 %  ▁▂▃▄▅▆██████
 *     slot  blueprint   stage       alpha     params  dependence                 seeds
 *     health  ...                                                                rollbacks, skipped steps, what was found
 *     epoch 2  r1c1 conv_heavy germinated: ...                                   what happened, the last of it */
#include "ui/watch_view.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "ui/drawing.h"
#include "ui/report_data.h"
#include "ui/spark.h"
#include "ui/text.h"

enum {
    PLAIN_ROWS = 40, /* where there is no screen */
    WIDE = 120,      /* two charts beside each other */
    LABEL = 11,      /* columns of a chart's scale */
    LEAST_CHART = 3,
    MOST_CHART = 9,
    LEAST_EVENTS = 3,
};

typedef struct window {
    const esper_watch_look *look;
    const esper_terminal   *terminal;
    esper_page             *page;
    esper_line              line;
    int                     n, most; /* lines */
    int64_t                 epoch;
} window;

static esper_line *begin_line(window *self)
{
    esper_line_init(&self->line, self->terminal->room, self->terminal->colour);
    return &self->line;
}

static void end_line(window *self)
{
    if (self->n == self->most)
        return;
    esper_page_print(self->page, "%s\n", self->line.text);
    self->n++;
}

/* ------------------------------------------------------------------------------------------------ head */

static const char *state_of(const window *self, const esper_store_run *run)
{
    if (run->ended == ESPER_STORE_NO_REAL)
        return self->look->running ? "running" : "cut off";
    if (strcmp(run->status, esper_status_name(ESPER_OK)) == 0)
        return "done";
    return strcmp(run->status, esper_status_name(ESPER_E_STOPPED)) == 0 ? "stopped" : "failed";
}

static void put_head(window *self, const esper_store_run *run, const char *what)
{
    esper_line *line = begin_line(self);
    const char *state = state_of(self, run);

    esper_line_colour(line, "1");
    esper_line_put(line, "%s", self->look->name);
    esper_line_colour(line, "0");
    esper_line_put_whole(line, "  %s", run->task);
    if (run->policy[0] != '\0' && strcmp(run->policy, ESPER_REPORT_LEARNER) != 0)
        esper_line_put_whole(line, ", policy %.*s", (int)strcspn(run->policy, " "), run->policy);
    esper_line_colour(line, strcmp(state, "failed") == 0 || strcmp(state, "cut off") == 0 ? "31" : "32");
    esper_line_put_whole(line, "  %s", state);
    esper_line_colour(line, "0");
    esper_line_put_whole(line, "  %s %" PRId64, what, self->epoch);
    end_line(self);
}

static bool is_shown(const window *self, const esper_report_row *row)
{
    return row->stands && row->record.epoch <= self->epoch;
}

static void put_figures(window *self, const esper_report_data *data)
{
    char a[ESPER_TEXT_CHARS], b[ESPER_TEXT_CHARS];
    const esper_store_record *last = NULL;
    double best = (double)NAN, seconds = 0.0;
    esper_line *line = begin_line(self);

    for (int i = 0; i < data->epochs.n; i++)
        if (is_shown(self, &data->epochs.at[i])) {
            last = &data->epochs.at[i].record;
            if (!(last->epoch_done.acc_valid <= best) && last->epoch_done.acc_valid != ESPER_STORE_NO_REAL)
                best = last->epoch_done.acc_valid;
            if (isfinite(last->epoch_done.seconds) && last->epoch_done.seconds > 0.0)
                seconds += last->epoch_done.seconds;
        }
    if (last == NULL) {
        esper_line_put(line, "no epoch has been finished");
        end_line(self);
        return;
    }
    esper_line_put_whole(line, "valid %s", esper_text_percent(last->epoch_done.acc_valid, a));
    esper_line_put_whole(line, "  best %s", esper_text_percent(best, b));
    if (data->run.acc_test != ESPER_STORE_NO_REAL && self->epoch >= data->closing.grown.epochs)
        esper_line_put_whole(line, "  test %s", esper_text_percent(data->run.acc_test, a));
    if (last->epoch_done.params > 0)
        esper_line_put_whole(line, "  %s params", esper_text_count(last->epoch_done.params, a));
    if (data->run.params_host > 0 && data->run.params_host != last->epoch_done.params)
        esper_line_put_whole(line, " (host %s)", esper_text_count(data->run.params_host, a));
    if (last->epoch_done.lr != ESPER_STORE_NO_REAL)
        esper_line_put_whole(line, "  lr %.3g", last->epoch_done.lr);
    esper_line_put_whole(line, "  %s", esper_text_duration(seconds, a));
    end_line(self);
}

/* ------------------------------------------------------------------------------------------------ the network */

static esper_status put_network(window *self, const esper_report_data *data)
{
    esper_drawing *drawing = esper_mem_alloc(sizeof(*drawing));
    esper_line names;
    esper_status status;

    if (drawing == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "drawing");
    status = esper_drawing_read(self->look->reader, data->run.id, self->epoch, drawing);
    if (status == ESPER_OK) {
        esper_line_init(&names, self->terminal->room, self->terminal->colour);
        esper_drawing_lines(drawing, self->terminal->utf8, begin_line(self), &names);
        end_line(self);
        self->line = names;
        end_line(self);
    }
    esper_mem_free(drawing);
    return status;
}

/* ------------------------------------------------------------------------------------------------ curves */

typedef struct curve {
    const char       *name, *unit;
    double           *values;
    esper_spark_chart chart;
    bool              drawn;
} curve;

/* The values of a column of the epochs that are shown. */
static esper_status take_curve(const window *self, const esper_report_rows *rows, size_t offset, curve *out)
{
    out->values = esper_mem_alloc(((size_t)rows->n + 1) * sizeof(*out->values));
    if (out->values == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a curve of %d points", rows->n);
    out->chart = (esper_spark_chart){.values = out->values, .utf8 = self->terminal->utf8};
    for (int i = 0; i < rows->n; i++)
        if (is_shown(self, &rows->at[i])) {
            double value = *(const double *)((const char *)&rows->at[i].record + offset);

            out->values[out->chart.n++] = value == ESPER_STORE_NO_REAL ? (double)NAN : value;
        }
    out->drawn = esper_spark_measure(&out->chart);
    return ESPER_OK;
}

static void put_curve_row(const curve *drawn, int row, int column, esper_line *line)
{
    int n_rows = drawn->chart.n_rows;
    double value = row == 0 ? drawn->chart.high : drawn->chart.low;

    if (!drawn->drawn)
        return;
    if (column > 0)
        esper_line_tab(line, column);
    esper_line_colour(line, "2");
    if (row == 0 || row == n_rows - 1)
        esper_line_put(line, "%8.*f %-2s", fabs(value) >= 100.0 ? 1 : 2, value, drawn->unit);
    else if (row == 1 && n_rows > 2)
        esper_line_put(line, "%10s ", drawn->name);
    else
        esper_line_put(line, "%11s", "");
    esper_line_colour(line, "0");
    esper_line_put(line, " ");
    esper_spark_row(&drawn->chart, row, line);
}

/* One below the other, or beside each other where there is room. */
static void put_curves(window *self, curve *first, curve *second, int n_rows)
{
    bool wide = self->terminal->room >= WIDE;
    int columns = (wide ? self->terminal->room / 2 : self->terminal->room) - LABEL - 4;

    first->chart.n_rows = second->chart.n_rows = n_rows;
    first->chart.columns = second->chart.columns = columns > 1 ? columns : 1;
    for (int row = 0; row < n_rows && first->drawn; row++) {
        put_curve_row(first, row, 0, begin_line(self));
        if (wide)
            put_curve_row(second, row, self->terminal->room / 2, &self->line);
        end_line(self);
    }
    for (int row = 0; row < n_rows && !wide && second->drawn; row++) {
        put_curve_row(second, row, 0, begin_line(self));
        end_line(self);
    }
}

/* ------------------------------------------------------------------------------------------------ seeds */

static bool has_come(const window *self, const esper_store_seed *seed)
{
    return seed->germinated_epoch <= self->epoch;
}

static bool is_gone(const window *self, const esper_store_seed *seed)
{
    return seed->pruned_epoch != ESPER_STORE_NO_INT && seed->pruned_epoch <= self->epoch;
}

/* Where a seed stood at the epoch that is shown: the last that was told of it. */
static const esper_store_record *stand_of(const window *self, const esper_report_data *data, int64_t seed)
{
    const esper_store_record *last = NULL;

    for (int i = 0; i < data->seed_epochs.n; i++)
        if (is_shown(self, &data->seed_epochs.at[i]) && data->seed_epochs.at[i].record.seed_epoch.seed == seed)
            last = &data->seed_epochs.at[i].record;
    return last;
}

static void put_seed(window *self, const esper_report_data *data, const esper_store_seed *seed)
{
    const esper_store_record *stand = stand_of(self, data, seed->seed);
    bool kept = seed->fossilized_epoch != ESPER_STORE_NO_INT && seed->fossilized_epoch <= self->epoch;
    const char *stage = kept ? "fossilized" : stand != NULL ? stand->seed_epoch.stage : "germinated";
    char count[ESPER_TEXT_CHARS];
    esper_line *line = begin_line(self);

    esper_line_put(line, "  %s", seed->slot);
    esper_line_tab(line, 8);
    esper_line_put(line, "%s", seed->blueprint);
    esper_line_tab(line, 23);
    esper_line_colour(line, esper_drawing_colour(esper_stage_find(stage)));
    esper_line_put(line, "%s", stage);
    esper_line_colour(line, "0");
    esper_line_tab(line, 35);
    esper_line_put(line, "%.2f  %9s", stand != NULL ? stand->seed_epoch.alpha : 0.0,
                   seed->params >= 0 ? esper_text_count(seed->params, count) : "-");
    if (seed->contribution != ESPER_STORE_NO_REAL && self->epoch >= data->last_grown_epoch)
        esper_line_put_whole(line, "  %+.1f points", seed->contribution);
    if (seed->reason[0] != '\0' && self->terminal->room >= WIDE)
        esper_line_put(line, "  %s", seed->reason);
    end_line(self);
}

/* Those that are there; as many as there are lines for. */
static void put_seeds(window *self, const esper_report_data *data, int most)
{
    int n = 0, n_gone = 0, n_put = 0;

    for (int i = 0; i < data->n_seeds; i++)
        if (has_come(self, &data->seeds[i])) {
            n_gone += is_gone(self, &data->seeds[i]);
            n += !is_gone(self, &data->seeds[i]);
        }
    if (n + n_gone == 0) {
        esper_line_put(begin_line(self), "no seed has germinated");
        end_line(self);
        return;
    }
    esper_line_colour(begin_line(self), "2");
    esper_line_put(&self->line, "  slot  blueprint      stage       alpha     params  dependence");
    if (n_gone > 0)
        esper_line_put_whole(&self->line, "  (%d pruned)", n_gone);
    esper_line_colour(&self->line, "0");
    end_line(self);
    for (int i = 0; i < data->n_seeds; i++) {
        if (!has_come(self, &data->seeds[i]) || is_gone(self, &data->seeds[i]))
            continue;
        if (n_put == most - 1 && n > most) {
            esper_line_put(begin_line(self), "  and %d more", n - n_put);
            end_line(self);
            return;
        }
        put_seed(self, data, &data->seeds[i]);
        n_put++;
    }
}

/* ------------------------------------------------------------------------------------------------ health, events */

static void put_health(window *self, const esper_report_data *data)
{
    const esper_store_record *last = NULL;
    esper_line *line = begin_line(self);
    int n_rollbacks = 0;

    for (int i = 0; i < data->rollbacks.n; i++)
        n_rollbacks += data->rollbacks.at[i].record.rollback.from_epoch <= self->epoch + 1;
    for (int i = 0; i < data->readings.n; i++)
        if (data->readings.at[i].record.epoch <= self->epoch + 1)
            last = &data->readings.at[i].record;
    if (n_rollbacks == 0 && last == NULL) {
        esper_line_put(line, "health  good: nothing was found, no step was skipped, nothing rolled back");
        end_line(self);
        return;
    }
    esper_line_put(line, "health  ");
    esper_line_colour(line, "31");
    esper_line_put_whole(line, "%d rollback%s", n_rollbacks, n_rollbacks == 1 ? "" : "s");
    if (data->n_skipped > 0)
        esper_line_put_whole(line, ", %" PRId64 " step%s skipped", data->n_skipped, data->n_skipped == 1 ? "" : "s");
    esper_line_colour(line, "0");
    if (last != NULL && last->health.tensor[0] != '\0')
        esper_line_put(line, ", last %s in %s (epoch %" PRId64 ")", last->health.problem, last->health.tensor,
                       last->epoch);
    end_line(self);
}

typedef struct event {
    int64_t seq, epoch;
    int64_t seed;         /* ESPER_STORE_NO_INT: of none */
    int     first, stage; /* that a seed entered: all in one epoch are one event; the last one is for its colour */
    char    text[320];
} event;

static int compare_events(const void *a, const void *b)
{
    int64_t x = ((const event *)a)->seq, y = ((const event *)b)->seq;

    return (x > y) - (x < y);
}

static const char *blueprint_of(const esper_report_data *data, int64_t seed)
{
    const esper_store_seed *known = esper_report_seed_of(data, seed);

    return known != NULL ? known->blueprint : "a seed";
}

static int gather_events(const window *self, const esper_report_data *data, event *events)
{
    int n = 0;

    for (int i = 0; i < data->stages.n; i++) {
        const esper_store_record *row = &data->stages.at[i].record;
        int to = esper_stage_find(row->stage.to_stage);
        event *now;

        if (!is_shown(self, &data->stages.at[i]) ||
            (!esper_stage_has_seed(to) && to != ESPER_STAGE_PRUNED)) /* of slots that rest nobody wants to hear */
            continue;
        if (n == 0 || events[n - 1].seed != row->stage.seed || events[n - 1].epoch != row->epoch)
            events[n++] = (event){.epoch = row->epoch, .seed = row->stage.seed, .first = to};
        now = &events[n - 1];
        now->seq = row->seq;
        now->stage = to;
        snprintf(now->text, sizeof(now->text), "%s %s %s%s%s%s%s", row->stage.slot, blueprint_of(data, row->stage.seed),
                 now->first != to ? esper_stage_name(now->first) : "", now->first != to ? " to " : "",
                 row->stage.to_stage, row->stage.reason[0] != '\0' ? ": " : "", row->stage.reason);
    }
    for (int i = 0; i < data->rollbacks.n; i++) {
        const esper_store_record *row = &data->rollbacks.at[i].record;

        if (row->rollback.from_epoch > self->epoch + 1)
            continue;
        events[n] = (event){.seq = row->seq,
                            .epoch = row->rollback.from_epoch,
                            .seed = ESPER_STORE_NO_INT,
                            .stage = ESPER_STAGE_PRUNED};
        snprintf(events[n].text, sizeof(events[n].text), "back to the end of epoch %" PRId64 ": %s",
                 row->rollback.to_epoch, row->rollback.reason);
        n++;
    }
    qsort(events, (size_t)n, sizeof(*events), compare_events);
    return n;
}

static esper_status put_events(window *self, const esper_report_data *data)
{
    event *events = esper_mem_alloc(((size_t)data->stages.n + (size_t)data->rollbacks.n + 1) * sizeof(*events));
    int n, left = self->most - self->n;

    if (events == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "events of a run");
    n = gather_events(self, data, events);
    for (int i = n > left ? n - left : 0; i < n; i++) {
        esper_line *line = begin_line(self);

        esper_line_put(line, "epoch %4" PRId64 "  ", events[i].epoch);
        esper_line_colour(line, esper_drawing_colour(events[i].stage));
        esper_line_put(line, "%s", events[i].text);
        esper_line_colour(line, "0");
        end_line(self);
    }
    esper_mem_free(events);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ a run that grows */

static int count_living(const window *self, const esper_report_data *data)
{
    int n = 0;

    for (int i = 0; i < data->n_seeds; i++)
        n += has_come(self, &data->seeds[i]) && !is_gone(self, &data->seeds[i]);
    return n;
}

/* What is left when all else has its least goes to the curves first. */
static esper_status compose_grown(window *self, const esper_report_data *data)
{
    enum { FIXED = 2 + 2 + 1 + 1 }; /* head, network, titles of seeds, health */
    int n_seeds = count_living(self, data), n_charts = self->terminal->room >= WIDE ? 1 : 2;
    int left = self->most - FIXED - LEAST_EVENTS, seeds, chart;
    curve accuracy = {.name = "accuracy", .unit = "%"}, loss = {.name = "loss", .unit = ""};
    esper_status status;

    seeds = n_seeds < left - LEAST_CHART * n_charts ? n_seeds : left - LEAST_CHART * n_charts;
    seeds = seeds > 1 ? seeds : 1;
    chart = (left - seeds) / n_charts;
    chart = chart > MOST_CHART ? MOST_CHART : chart;
    put_head(self, &data->run, "epoch");
    put_figures(self, data);
    ESPER_TRY(put_network(self, data));
    status = take_curve(self, &data->epochs, offsetof(esper_store_record, epoch_done.acc_valid), &accuracy);
    if (status == ESPER_OK)
        status = take_curve(self, &data->epochs, offsetof(esper_store_record, epoch_done.loss_valid), &loss);
    if (status == ESPER_OK && chart > 0)
        put_curves(self, &accuracy, &loss, chart);
    esper_mem_free(accuracy.values);
    esper_mem_free(loss.values);
    ESPER_TRY(status);
    put_seeds(self, data, seeds);
    put_health(self, data);
    return put_events(self, data);
}

static esper_status look_at_grown(window *self, esper_watch_state *state)
{
    esper_report_data *data = esper_mem_alloc(sizeof(*data));
    esper_status status;

    if (data == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a run to watch");
    status = esper_report_data_read(self->look->reader, self->look->run, data);
    if (status == ESPER_OK) {
        state->last_epoch = data->closing.grown.epochs > 0 ? data->closing.grown.epochs : 0;
        state->ended = data->closing.grown.ended;
        self->epoch = state->epoch = self->look->epoch < state->last_epoch ? self->look->epoch : state->last_epoch;
        status = compose_grown(self, data);
        esper_report_data_fini(data);
    }
    esper_mem_free(data);
    return status;
}

/* ------------------------------------------------------------------------------------------------ a run that learns */

static void put_update(window *self, const esper_store_record *row)
{
    char a[ESPER_TEXT_CHARS];

    esper_line_put(begin_line(self), "return %.3f", row->update.return_mean);
    esper_line_put_whole(&self->line, " (sd %.3f)", row->update.return_sd);
    esper_line_put_whole(&self->line, "  accuracy %s", esper_text_percent(row->update.acc_mean, a));
    if (row->update.entropy != ESPER_STORE_NO_REAL)
        esper_line_put_whole(&self->line, "  entropy %.3f", row->update.entropy);
    if (row->update.kl != ESPER_STORE_NO_REAL)
        esper_line_put_whole(&self->line, "  kl %.4f", row->update.kl);
    if (row->update.health[0] != '\0')
        esper_line_put_whole(&self->line, "  %s", row->update.health);
    end_line(self);
}

static esper_status look_at_learner(window *self, const esper_store_run *run, esper_watch_state *state)
{
    curve returns = {.name = "return", .unit = ""}, accuracy = {.name = "accuracy", .unit = "%"};
    int n_charts = self->terminal->room >= WIDE ? 1 : 2, chart = (self->most - 2) / n_charts;
    esper_report_rows updates = {0};
    esper_status status = esper_report_rows_read(self->look->reader, ESPER_STORE_UPDATE, run->id, &updates);

    ESPER_TRY(status);
    state->last_epoch = updates.n > 0 ? updates.at[updates.n - 1].record.epoch : 0;
    state->ended = run->ended != ESPER_STORE_NO_REAL;
    self->epoch = state->epoch = self->look->epoch < state->last_epoch ? self->look->epoch : state->last_epoch;
    put_head(self, run, "round");
    for (int i = updates.n - 1; i >= 0; i--)
        if (is_shown(self, &updates.at[i])) {
            put_update(self, &updates.at[i].record);
            break;
        }
    status = take_curve(self, &updates, offsetof(esper_store_record, update.return_mean), &returns);
    if (status == ESPER_OK)
        status = take_curve(self, &updates, offsetof(esper_store_record, update.acc_mean), &accuracy);
    if (status == ESPER_OK && chart > 0)
        put_curves(self, &returns, &accuracy, chart > MOST_CHART ? MOST_CHART : chart);
    esper_mem_free(returns.values);
    esper_mem_free(accuracy.values);
    esper_report_rows_fini(&updates);
    return status;
}

esper_status esper_watch_compose(const esper_watch_look *look, const esper_terminal *terminal, esper_page *page,
                                 esper_watch_state *state_out)
{
    window self = {.look = look, .terminal = terminal, .page = page};
    esper_watch_state state = {0};
    esper_store_run run, control;
    bool has_control;

    self.most = terminal->rows > 1 ? terminal->rows - 1 : PLAIN_ROWS; /* the cursor stands below */
    ESPER_TRY(esper_report_find_runs(look->reader, look->run, &run, &control, &has_control));
    if (strcmp(run.policy, ESPER_REPORT_LEARNER) == 0)
        ESPER_TRY(look_at_learner(&self, &run, &state));
    else
        ESPER_TRY(look_at_grown(&self, &state));
    *state_out = state;
    return page->status;
}
