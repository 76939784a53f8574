/* Validation accuracy while the lines of a comparison trained, from the stores of their runs. */
#include <math.h>

#include "base/mem.h"
#include "base/status.h"
#include "ui/compare_plot.h"
#include "ui/report_chart.h"
#include "ui/report_data.h"
#include "ui/report_html.h"

enum { RIGHT = 24, TOP = 12, HEIGHT = 260, FOOT = 44, N_COLOURS = 7, N_GRID = 60 };

static const double early = 0.1; /* of the x axis: what lies there does not stretch the y axis */

typedef struct point {
    double x, y;
} point;

/* Of one run: where its line was after each epoch that stands. */
typedef struct curve {
    point *at;
    int    n, room;
    bool   by_flops;
    double budget; /* then: the FLOPs that are 100 % */
} curve;

typedef struct figure {
    const esper_compare *compare;
    curve               *curves; /* (n_runs) */
    esper_plot           at;
    int                  n; /* curves with points */
} figure;

/* ------------------------------------------------------------------------------------------------ reading */

static esper_status take_epoch(void *to, const esper_store_record *record)
{
    curve *self = to;
    double x = self->by_flops ? 100.0 * (double)record->epoch_done.flops_train / self->budget : (double)record->epoch;

    if (record->epoch_done.acc_valid == ESPER_STORE_NO_REAL || !isfinite(record->epoch_done.acc_valid) ||
        (self->by_flops && record->epoch_done.flops_train == ESPER_STORE_NO_INT))
        return ESPER_OK;
    if (self->n == self->room) {
        int room = 2 * self->room + 64;
        point *larger = esper_mem_grow(self->at, (size_t)room * sizeof(*larger));

        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "a curve of %d epochs", room);
        self->at = larger;
        self->room = room;
    }
    self->at[self->n++] = (point){x, record->epoch_done.acc_valid};
    return ESPER_OK;
}

/* A store that is gone or damaged gives no curve: the tables have been read from it before, and the page stays. */
static void read_curve(const esper_compare *compare, const esper_compare_run *run, const char *dir, curve *self)
{
    char name[ESPER_COMPARE_NAME_CHARS], run_dir[ESPER_PATH_CHARS], path[ESPER_PATH_CHARS];
    esper_store_run row = esper_store_run_of("");
    esper_store_reader *reader;
    bool found = false;

    esper_compare_name(compare, run->same_as >= 0 ? &compare->runs[run->same_as] : run, name);
    if (esper_run_path(dir, name, run_dir) != ESPER_OK || esper_run_path(run_dir, ESPER_RUN_STORE, path) != ESPER_OK ||
        esper_store_reader_glance(path, &reader) != ESPER_OK)
        return;
    if (esper_store_find_run(reader, ESPER_STORE_NO_INT, NULL, &row, &found) != ESPER_OK || !found ||
        esper_report_walk(reader, ESPER_STORE_EPOCH, row.id, true, take_epoch, self) != ESPER_OK)
        self->n = 0;
    esper_store_reader_close(reader);
}

static void measure(figure *self)
{
    double low_y = (double)INFINITY, high_y = -(double)INFINITY, high_x = 0.0;

    for (int i = 0; i < self->compare->n_runs; i++) {
        const curve *one = &self->curves[i];

        self->n += one->n > 0;
        if (one->n > 0)
            high_x = fmax(high_x, one->at[one->n - 1].x);
    }
    for (int i = 0; i < self->compare->n_runs; i++)
        for (int k = 0; k < self->curves[i].n; k++) {
            const point *p = &self->curves[i].at[k];

            high_y = fmax(high_y, p->y);
            if (p->x >= early * high_x || k == self->curves[i].n - 1)
                low_y = fmin(low_y, p->y);
        }
    self->at =
        (esper_plot){.left = ESPER_PLOT_LEFT, .right = ESPER_PLOT_WIDTH - RIGHT, .top = TOP, .bottom = TOP + HEIGHT};
    if (self->n == 0)
        return;
    self->at.x = esper_scale_round(0.0, fmax(high_x, 1.0), 5, true);
    self->at.y = esper_scale_round(low_y, high_y, 8, false);
}

/* ------------------------------------------------------------------------------------------------ drawing */

static void write_points(const figure *self, int i, esper_page *page)
{
    const curve *one = &self->curves[i];
    char name[ESPER_COMPARE_NAME_CHARS];

    esper_compare_name(self->compare, &self->compare->runs[i], name);
    esper_html(page, "<path class=\"dots c%d\" d=\"", self->compare->runs[i].line % N_COLOURS);
    for (int k = 0; k < one->n; k++)
        if (one->at[k].y >= self->at.y.low)
            esper_html(page, "M%a %ah0", esper_plot_x(&self->at, one->at[k].x), esper_plot_y(&self->at, one->at[k].y));
    esper_html(page, "\"><title>%s</title></path>\n", name);
}

/* Between the two epochs around x; x is within the curve. */
static double value_at(const curve *one, double x)
{
    int k = 0;

    while (k + 1 < one->n - 1 && one->at[k + 1].x < x)
        k++;
    if (one->n == 1 || one->at[k + 1].x <= one->at[k].x)
        return one->at[k].y;
    return one->at[k].y + (one->at[k + 1].y - one->at[k].y) * (x - one->at[k].x) / (one->at[k + 1].x - one->at[k].x);
}

/* The mean over seeds, from where all of them have a value to where the first of them ends. */
static void write_mean(const figure *self, int line, esper_page *page)
{
    double from = 0.0, to = (double)INFINITY;
    bool open = false;
    int n = 0;

    for (int i = 0; i < self->compare->n_runs; i++) {
        const curve *one = &self->curves[i];

        if (self->compare->runs[i].line != line || one->n == 0)
            continue;
        from = fmax(from, one->at[0].x);
        to = fmin(to, one->at[one->n - 1].x);
        n++;
    }
    if (n == 0 || !(from < to))
        return;
    esper_html(page, "<path class=\"course c%d\" d=\"", line % N_COLOURS);
    for (int k = 0; k <= N_GRID; k++) {
        double x = from + (to - from) * k / N_GRID, sum = 0.0;

        for (int i = 0; i < self->compare->n_runs; i++)
            if (self->compare->runs[i].line == line && self->curves[i].n > 0)
                sum += value_at(&self->curves[i], x);
        if (sum / n < self->at.y.low)
            continue;
        esper_html(page, "%s%a %a", open ? "L" : "M", esper_plot_x(&self->at, x), esper_plot_y(&self->at, sum / n));
        open = true;
    }
    esper_html(page, "\"><title>%s, mean of %d</title></path>\n", self->compare->lines[line].name, n);
}

static void write_figure(const figure *self, bool by_flops, esper_page *page)
{
    const esper_compare *compare = self->compare;

    esper_html(
        page,
        "<figure>\n<figcaption><b>Validation accuracy while they trained</b>, over %s. Points are epochs of every "
        "seed, lines the mean over seeds; what lies below the axis at the beginning is left out</figcaption>\n"
        "<ul class=\"key\">",
        by_flops ? "the share of the training FLOPs" : "epochs");
    for (int line = 0; line < compare->n_lines; line++)
        esper_html(page, "<li class=\"c%d\"><span class=\"line\"></span>%s</li>", line % N_COLOURS,
                   compare->lines[line].name);
    esper_html(page, "</ul>\n");
    esper_plot_begin(page, &self->at, FOOT, "course", "Validation accuracy while they trained");
    esper_html(page, "%d runs.</desc>\n", self->n);
    esper_plot_axes(page, &self->at, false, " %", by_flops ? "percent of the training FLOPs" : "epoch");
    for (int i = 0; i < compare->n_runs; i++)
        if (self->curves[i].n > 0)
            write_points(self, i, page);
    for (int line = 0; line < compare->n_lines; line++)
        write_mean(self, line, page);
    esper_html(page, "</svg></div>\n</figure>\n");
}

void esper_compare_curves(const esper_compare *compare, const char *dir, esper_page *page)
{
    bool by_flops = compare->config.length == ESPER_CONFIG_LENGTH_FLOPS && compare->flops > 0.0;
    figure self = {.compare = compare};

    self.curves = compare->n_runs > 0 ? esper_mem_alloc((size_t)compare->n_runs * sizeof(*self.curves)) : NULL;
    if (self.curves == NULL) {
        esper_html(page, "<p class=\"soft\">There are no curves to draw.</p>\n");
        return;
    }
    for (int i = 0; i < compare->n_runs; i++) {
        self.curves[i] = (curve){.by_flops = by_flops, .budget = compare->flops};
        if (compare->runs[i].result.outcome == ESPER_COMPARE_GOOD)
            read_curve(compare, &compare->runs[i], dir, &self.curves[i]);
    }
    measure(&self);
    if (self.n > 0)
        write_figure(&self, by_flops, page);
    else
        esper_html(page, "<p class=\"soft\">There are no curves to draw.</p>\n");
    for (int i = 0; i < compare->n_runs; i++)
        esper_mem_free(self.curves[i].at);
    esper_mem_free(self.curves);
}
