/* Curves over epochs.
 *
 *     left                                         right
 *      |  germinated  o      o                        |   band: a row for each kind of mark that there is
 *      |  pruned             x                        |
 *      |----------------------------------------------|   plot
 *      |        0     5     10     15                 |   epochs */
#include "ui/report_chart.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/status.h"
#include "ui/report_html.h"

enum { RIGHT = 14, TOP = 8, BAND_ROW = 17, FOOT = 38, MOST_DOTS = 120 };

/* A value so far above nearly all others that they would be squeezed into one line: when, and where the axis ends
 * instead. */
static const double usual_share = 0.9, usual_times = 4.0, usual_room = 1.6;

/* Nothing larger is drawn: differences of such numbers could be infinite. */
static const double most = 1e30;

/* ------------------------------------------------------------------------------------------------ scales */

static void set_step(esper_scale *scale, double low, double high, int n_wanted, bool whole)
{
    double step = (high - low) / n_wanted, power = pow(10.0, floor(log10(step))), lead = step / power;
    int decimals;

    assert(n_wanted > 0 && step > 0.0);
    scale->step = power * (lead < 1.5 ? 1.0 : lead < 3.5 ? 2.0 : lead < 7.5 ? 5.0 : 10.0);
    if (whole && scale->step < 1.0)
        scale->step = 1.0;
    decimals = (int)-floor(log10(scale->step) + 1e-9);
    scale->decimals = decimals < 0 ? 0 : decimals > 9 ? 9 : decimals;
}

/* A single value gets room around it, and so much that the labels of the axis stay short: LEFT has room for nine characters. */
static void widen(double *low, double *high, bool whole)
{
    double least = fmax(whole ? 1.0 : 1e-6, fabs(*high) * 1e-4);

    if (*high - *low < least) {
        *low -= least / 2.0;
        *high += least / 2.0;
    }
}

esper_scale esper_scale_round(double low, double high, int n_wanted, bool whole)
{
    esper_scale scale;

    widen(&low, &high, whole);
    set_step(&scale, low, high, n_wanted, whole);
    scale.first = scale.low = floor(low / scale.step + 1e-9) * scale.step;
    scale.high = ceil(high / scale.step - 1e-9) * scale.step;
    scale.n_ticks = (int)lround((scale.high - scale.low) / scale.step) + 1;
    return scale;
}

esper_scale esper_scale_inside(double low, double high, int n_wanted, bool whole)
{
    esper_scale scale;

    widen(&low, &high, whole);
    set_step(&scale, low, high, n_wanted, whole);
    scale.low = low;
    scale.high = high;
    scale.first = ceil(low / scale.step - 1e-9) * scale.step;
    scale.n_ticks = (int)floor((high - scale.first) / scale.step + 1e-9) + 1;
    return scale;
}

double esper_scale_place(const esper_scale *scale, double value, double from, double to)
{
    assert(scale->high > scale->low);
    return from + (value - scale->low) / (scale->high - scale->low) * (to - from);
}

/* ------------------------------------------------------------------------------------------------ plots */

double esper_plot_x(const esper_plot *plot, double value)
{
    return fmax(esper_scale_place(&plot->x, value, plot->left, plot->right), plot->left);
}

double esper_plot_y(const esper_plot *plot, double value)
{
    return fmax(esper_scale_place(&plot->y, value, plot->bottom, plot->top), plot->top);
}

void esper_svg_segment(esper_page *page, const char *style, double x1, double y1, double x2, double y2)
{
    esper_html(page, "<line class=\"%s\" x1=\"%a\" y1=\"%a\" x2=\"%a\" y2=\"%a\"/>\n", style, x1, y1, x2, y2);
}

void esper_plot_begin(esper_page *page, const esper_plot *plot, int foot, const char *id, const char *title)
{
    int height = (int)plot->bottom + foot;

    esper_html(page,
               "<div><svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-t %s-d\">\n"
               "<title id=\"%s-t\">%s</title>\n<desc id=\"%s-d\">",
               ESPER_PLOT_WIDTH, height, id, id, id, title, id);
}

void esper_plot_axes(esper_page *page, const esper_plot *plot, bool whole, const char *unit, const char *x_name)
{
    for (int i = 0; i < plot->y.n_ticks; i++) {
        double value = plot->y.first + i * plot->y.step, y = esper_plot_y(plot, value);

        esper_svg_segment(page, i == 0 ? "axis" : "grid", plot->left, y, plot->right, y);
        esper_html(page, "<text x=\"%a\" y=\"%a\" text-anchor=\"end\">%.*f%s</text>\n", plot->left - 8.0, y + 4.0,
                   whole ? 0 : plot->y.decimals, value == 0.0 ? 0.0 : value, unit); /* not -0 */
    }
    for (int i = 0; i < plot->x.n_ticks; i++) {
        double value = plot->x.first + i * plot->x.step, x = esper_plot_x(plot, value);

        esper_svg_segment(page, "axis", x, plot->bottom, x, plot->bottom + 4.0);
        esper_html(page, "<text x=\"%a\" y=\"%a\" text-anchor=\"middle\">%.0f</text>\n", x, plot->bottom + 18.0, value);
    }
    esper_html(page, "<text x=\"%a\" y=\"%a\" text-anchor=\"middle\">%s</text>\n", (plot->left + plot->right) / 2.0,
               plot->bottom + 34.0, x_name);
}

/* ------------------------------------------------------------------------------------------------ what is drawn */

/* A chart with its measures. */
typedef struct drawing {
    const esper_chart *chart;
    esper_plot         plot;
    int                row_of[ESPER_MARK_N_KINDS];   /* in the band; -1: no such mark */
    int                n_rows, n_lost, n_above;      /* values that are not finite; values above the axis */
} drawing;

static bool is_drawn(double value)
{
    return fabs(value) < most; /* and it is a number, and was measured */
}

static int compare_reals(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* From the values that can be drawn; *n_out of them, 0: there are no scales. */
static esper_status set_scales(drawing *draw, int *n_out)
{
    const esper_chart *chart = draw->chart;
    double *values, low, high, usual;
    int n = 0, used = 0;

    for (int l = 0; l < chart->n_lines; l++)
        for (int i = 0; i < chart->lines[l].n; i++)
            n += is_drawn(chart->lines[l].y[i]);
    *n_out = n;
    if (n == 0)
        return ESPER_OK;
    values = esper_mem_alloc((size_t)n * sizeof(*values));
    if (values == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "report: %d points of a curve", n);
    for (int l = 0; l < chart->n_lines; l++)
        for (int i = 0; i < chart->lines[l].n; i++)
            if (is_drawn(chart->lines[l].y[i]))
                values[used++] = chart->lines[l].y[i];
    assert(used == n);
    qsort(values, (size_t)n, sizeof(*values), compare_reals);
    low = chart->from_zero ? 0.0 : values[0];
    high = values[n - 1];
    usual = values[(int)(usual_share * (n - 1))];
    esper_mem_free(values);
    if (usual > 0.0 && high > usual_times * usual)
        high = usual_room * usual;
    draw->plot.y = esper_scale_round(low, high, chart->height / 48, chart->whole);
    draw->plot.x = esper_scale_inside(0.0, (double)chart->last_epoch, 7, true);
    for (int l = 0; l < chart->n_lines; l++)
        for (int i = 0; i < chart->lines[l].n; i++) {
            draw->n_lost += !isfinite(chart->lines[l].y[i]);
            draw->n_above += isfinite(chart->lines[l].y[i]) && chart->lines[l].y[i] > draw->plot.y.high;
        }
    return ESPER_OK;
}

static void set_band(drawing *draw)
{
    for (int kind = 0; kind < ESPER_MARK_N_KINDS; kind++) {
        draw->row_of[kind] = -1;
        for (int i = 0; i < draw->chart->n_marks && draw->row_of[kind] < 0; i++)
            if ((int)draw->chart->marks[i].kind == kind)
                draw->row_of[kind] = draw->n_rows++;
    }
    draw->plot.top = TOP + draw->n_rows * BAND_ROW + (draw->n_rows > 0 ? 12 : 0);
    draw->plot.bottom = draw->plot.top + draw->chart->height;
}

/* ------------------------------------------------------------------------------------------------ lines */

static bool is_percent(const esper_chart *chart)
{
    return chart->unit[0] == '%';
}

static void write_path(esper_page *page, const drawing *draw, const esper_chart_line *line)
{
    bool open = false;

    esper_html(page, "<path class=\"line %s\" d=\"", line->style);
    for (int i = 0; i < line->n; i++) {
        double x = esper_plot_x(&draw->plot, (double)line->x[i]);

        if (is_drawn(line->y[i])) {
            if (open && line->step)
                esper_html(page, "H%a", x);
            esper_html(page, "%s%a %a", open ? "L" : "M", x, esper_plot_y(&draw->plot, line->y[i]));
        }
        open = is_drawn(line->y[i]);
    }
    esper_html(page, "\"/>\n");
}

/* A point that has no neighbours is drawn in any case: a line does not show it. */
static void write_dots(esper_page *page, const drawing *draw, const esper_chart_line *line)
{
    const esper_chart *chart = draw->chart;

    for (int i = 0; i < line->n; i++) {
        bool alone = (i == 0 || !is_drawn(line->y[i - 1])) && (i + 1 == line->n || !is_drawn(line->y[i + 1]));

        if (!is_drawn(line->y[i]) || (!alone && (!line->dots || line->n > MOST_DOTS)))
            continue;
        esper_html(page,
                   "<circle class=\"dot %s\" r=\"%s\" cx=\"%a\" cy=\"%a\"><title>%s, %s %" PRId64
                   ": %.*f%s</title></circle>\n",
                   line->style, line->n > 40 && !alone ? "2" : "2.6", esper_plot_x(&draw->plot, (double)line->x[i]),
                   esper_plot_y(&draw->plot, line->y[i]), line->name, chart->x_name, line->x[i],
                   chart->whole        ? 0
                   : is_percent(chart) ? 2
                                       : 4,
                   line->y[i], is_percent(chart) ? " %" : "");
    }
}

/* Crosses at the foot of the plot, where a value was not finite. */
static void write_lost(esper_page *page, const drawing *draw, const esper_chart_line *line)
{
    for (int i = 0; i < line->n; i++)
        if (!isfinite(line->y[i]))
            esper_html(page,
                       "<path class=\"lost\" d=\"M%a %al8 8m0 -8l-8 8\"><title>%s, %s %" PRId64
                       ": not finite</title></path>\n",
                       esper_plot_x(&draw->plot, (double)line->x[i]) - 4.0, draw->plot.bottom - 11.0, line->name,
                       draw->chart->x_name, line->x[i]);
}

/* ------------------------------------------------------------------------------------------------ marks */

/* Each kind has a shape of its own, drawn around the place moved to. */
static const struct {
    const char *name, *shape;
} marks[ESPER_MARK_N_KINDS] = {
    [ESPER_MARK_GERMINATED] = {"germinated", "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0"}, /* a ring */
    [ESPER_MARK_BLENDED] = {"blending", "m-4.5 3.5h9l-4.5 -8z"},                    /* a triangle */
    [ESPER_MARK_FOSSILIZED] = {"fossilised", "m-5 0l5 -5l5 5l-5 5z"},               /* a diamond */
    [ESPER_MARK_PRUNED] = {"pruned", "m-4 -4l8 8m0 -8l-8 8"},                       /* a cross */
    [ESPER_MARK_ROLLBACK] = {"rolled back", "m-5 0l8 -5v10z"},                      /* an arrow head to the left */
    [ESPER_MARK_RATE] = {"rate raised", "m-5 2l5 -6l5 6m-5 -6v9"},                  /* an arrow up */
};

const char *esper_mark_name(esper_mark_kind kind)
{
    assert((unsigned)kind < ESPER_MARK_N_KINDS);
    return marks[kind].name;
}

static void write_band(esper_page *page, const drawing *draw)
{
    for (int kind = 0; kind < ESPER_MARK_N_KINDS; kind++)
        if (draw->row_of[kind] >= 0)
            esper_html(page, "<text x=\"%a\" y=\"%a\" text-anchor=\"end\">%s</text>\n", draw->plot.left - 8.0,
                       TOP + BAND_ROW * (draw->row_of[kind] + 0.5) + 4.0, marks[kind].name);
    for (int i = 0; i < draw->chart->n_marks; i++) {
        const esper_chart_mark *mark = &draw->chart->marks[i];
        char drop[16];
        double x = esper_plot_x(&draw->plot, (double)mark->epoch),
               y = TOP + BAND_ROW * (draw->row_of[mark->kind] + 0.5);

        assert(draw->row_of[mark->kind] >= 0);
        snprintf(drop, sizeof(drop), "drop m%d", (int)mark->kind);
        if (mark->kind != ESPER_MARK_BLENDED) /* it is at the same place as another one, or says little */
            esper_svg_segment(page, drop, x, draw->plot.top, x, draw->plot.bottom);
        esper_html(page, "<path class=\"mark m%d\" d=\"M%a %a%s\"><title>%s</title></path>\n", (int)mark->kind, x, y,
                   marks[mark->kind].shape, mark->text);
        if (mark->n > 1)
            esper_html(page, "<text x=\"%a\" y=\"%a\" text-anchor=\"start\">%d</text>\n", x + 7.0, y + 4.0, mark->n);
    }
}

/* ------------------------------------------------------------------------------------------------ phases */

static const struct {
    const char *name, *meaning;
} phases[ESPER_PHASE_N_KINDS] = {
    [ESPER_PHASE_HOLD] = {"hold", "nothing grows, and the learning rate is held"},
    [ESPER_PHASE_TRIAL] = {"trial", "forks with and without a seed were tried at its end"},
    [ESPER_PHASE_GROW] = {"grow", "a seed lives that is not decided yet"},
    [ESPER_PHASE_FALL] = {"fall", "the rate falls to its end"},
};

const char *esper_phase_name(esper_phase phase)
{
    return phases[phase].name;
}

void esper_phase_key(esper_page *page)
{
    esper_html(page, "<ul class=\"key\">");
    for (int i = 0; i < ESPER_PHASE_N_KINDS; i++)
        esper_html(page,
                   "<li><svg width=\"22\" height=\"14\" aria-hidden=\"true\"><rect class=\"phase p-%s\" width=\"22\" "
                   "height=\"14\"/></svg>%s: %s</li>",
                   phases[i].name, phases[i].name, phases[i].meaning);
    esper_html(page, "</ul>\n");
}

/* Bands behind all else; those that are wide enough have their name at the top. */
static void write_phases(esper_page *page, const drawing *draw)
{
    enum { LEAST_NAMED = 30 };

    for (int i = 0; i < draw->chart->n_bands; i++) {
        const esper_chart_band *band = &draw->chart->bands[i];
        const char *name = phases[band->phase].name;
        double left = esper_plot_x(&draw->plot, (double)band->from),
               right = esper_plot_x(&draw->plot, (double)band->to);

        esper_html(page,
                   "<rect class=\"phase p-%s\" x=\"%a\" y=\"%a\" width=\"%a\" height=\"%a\"><title>%s, %s %" PRId64
                   " to %" PRId64 ": %s</title></rect>\n",
                   name, left, draw->plot.top, right - left, draw->plot.bottom - draw->plot.top, name,
                   draw->chart->x_name, band->from + 1, band->to, phases[band->phase].meaning);
        if (right - left >= LEAST_NAMED)
            esper_html(page, "<text class=\"phase-name\" x=\"%a\" y=\"%a\" text-anchor=\"middle\">%s</text>\n",
                       (left + right) / 2.0, draw->plot.bottom - 6.0, name);
    }
}

/* ------------------------------------------------------------------------------------------------ the figure */

static void write_caption(esper_page *page, const drawing *draw)
{
    const esper_chart *chart = draw->chart;

    esper_html(page, "<figcaption><b>%s</b>%s%s", chart->title, chart->unit[0] != '\0' ? ", " : "", chart->unit);
    if (draw->n_lost > 0)
        esper_html(page, ". %d value%s not finite: a cross at the foot", draw->n_lost,
                   draw->n_lost == 1 ? " was" : "s were");
    if (draw->n_above > 0)
        esper_html(page, ". %d value%s above the axis and cut off", draw->n_above,
                   draw->n_above == 1 ? " lies" : "s lie");
    esper_html(page, "</figcaption>\n<ul class=\"key\">");
    for (int i = 0; i < chart->n_lines; i++)
        esper_html(page,
                   "<li><svg width=\"28\" height=\"10\" aria-hidden=\"true\"><path class=\"line %s\" "
                   "d=\"M0 5H28\"/></svg>%s</li>",
                   chart->lines[i].style, chart->lines[i].name);
    esper_html(page, "</ul>\n");
}

static void write_svg(esper_page *page, const drawing *draw)
{
    const esper_chart *chart = draw->chart;
    char title[160];

    snprintf(title, sizeof(title), "%s over %ss", chart->title, chart->x_name);
    esper_plot_begin(page, &draw->plot, FOOT, chart->id, title);
    for (int l = 0; l < chart->n_lines; l++) { /* what is drawn, for those who cannot see it: the ends of each line */
        const esper_chart_line *line = &chart->lines[l];
        int last = line->n - 1;

        assert(last >= 0);
        esper_html(page, "%s%s: %g in %s %" PRId64 ", %g in %s %" PRId64 ".", l > 0 ? " " : "", line->name, line->y[0],
                   chart->x_name, line->x[0], line->y[last], chart->x_name, line->x[last]);
    }
    esper_html(page, "</desc>\n");
    write_phases(page, draw);
    esper_plot_axes(page, &draw->plot, chart->whole, is_percent(chart) ? " %" : "", chart->x_name);
    write_band(page, draw);
    for (int i = chart->n_lines - 1; i >= 0; i--) { /* the first on top */
        write_path(page, draw, &chart->lines[i]);
        write_dots(page, draw, &chart->lines[i]);
        write_lost(page, draw, &chart->lines[i]);
    }
    esper_html(page, "</svg></div>\n");
}

void esper_chart_write(esper_page *page, const esper_chart *chart)
{
    drawing draw = {.chart = chart, .plot = {.left = ESPER_PLOT_LEFT, .right = ESPER_PLOT_WIDTH - RIGHT}};
    int n;
    esper_status status = set_scales(&draw, &n);

    if (status != ESPER_OK) {
        page->status = status;
        return;
    }
    if (n == 0) {
        esper_html(page, "<p class=\"soft\">%s: there is no finite number to draw.</p>\n", chart->title);
        return;
    }
    set_band(&draw);
    esper_html(page, "<figure>\n");
    write_caption(page, &draw);
    write_svg(page, &draw);
    esper_html(page, "</figure>\n");
}
