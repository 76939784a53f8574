/* Curves over epochs.
 *
 *     LEFT                                      WIDTH - RIGHT
 *      |  germinated  o      o                        |   band: a row for each kind of mark that there is
 *      |  pruned             x                        |
 *      |----------------------------------------------|   plot
 *      |        0     5     10     15                 |   epochs */
#include "ui/report_chart.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "telemetry/store.h"
#include "ui/report_html.h"
#include "ui/text.h"

enum { WIDTH = 1032, LEFT = 84, RIGHT = 14, TOP = 8, BAND_ROW = 17, FOOT = 38, MOST_DOTS = 120 };

/* A value so far above nearly all others that they would be squeezed into one line: when, and where the axis ends
 * instead. */
static const double usual_share = 0.9, usual_times = 4.0, usual_room = 1.6;

/* Nothing larger is drawn: differences of such numbers could be infinite. */
static const double most = 1e30;

/* ------------------------------------------------------------------------------------------------ scales */

static double round_step(double step)
{
    double power = pow(10.0, floor(log10(step))), lead = step / power;

    return power * (lead < 1.5 ? 1.0 : lead < 3.5 ? 2.0 : lead < 7.5 ? 5.0 : 10.0);
}

static int decimals_of(double step)
{
    int decimals = (int)-floor(log10(step) + 1e-9);

    return decimals < 0 ? 0 : decimals > 9 ? 9 : decimals;
}

static void set_step(esper_scale *scale, double low, double high, int n_wanted, bool whole)
{
    scale->step = round_step((high - low) / n_wanted);
    if (whole && scale->step < 1.0)
        scale->step = 1.0;
    scale->decimals = decimals_of(scale->step);
}

/* A single value gets room around it, and so much that the labels of the axis stay short: LEFT has room for ten characters. */
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
    return from + (value - scale->low) / (scale->high - scale->low) * (to - from);
}

/* ------------------------------------------------------------------------------------------------ what is drawn */

/* A chart with its measures. */
typedef struct drawing {
    const esper_chart *chart;
    esper_scale        x, y;
    double             top, bottom;                  /* of the plot */
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

static int count_drawn(const esper_chart *chart)
{
    int n = 0;

    for (int l = 0; l < chart->n_lines; l++)
        for (int i = 0; i < chart->lines[l].n; i++)
            n += is_drawn(chart->lines[l].y[i]);
    return n;
}

/* All values that can be drawn, sorted; free with esper_mem_free. */
static double *sorted_values(esper_page *page, const esper_chart *chart, int n)
{
    double *values = esper_mem_alloc((size_t)n * sizeof(*values));
    int used = 0;

    if (values == NULL) {
        page->status = ESPER_FAIL(ESPER_E_NOMEM, "report: %d points of a curve", n);
        return NULL;
    }
    for (int l = 0; l < chart->n_lines; l++)
        for (int i = 0; i < chart->lines[l].n; i++)
            if (is_drawn(chart->lines[l].y[i]))
                values[used++] = chart->lines[l].y[i];
    qsort(values, (size_t)n, sizeof(*values), compare_reals);
    return values;
}

static void set_y_scale(drawing *draw, const double *values, int n)
{
    double low = draw->chart->from_zero ? 0.0 : values[0], high = values[n - 1];
    double usual = values[(int)(usual_share * (n - 1))];

    if (usual > 0.0 && high > usual_times * usual)
        high = usual_room * usual;
    draw->y = esper_scale_round(low, high, draw->chart->height / 48, draw->chart->whole);
}

static void count_odd(drawing *draw)
{
    for (int l = 0; l < draw->chart->n_lines; l++)
        for (int i = 0; i < draw->chart->lines[l].n; i++) {
            double value = draw->chart->lines[l].y[i];

            draw->n_lost += !isfinite(value);
            draw->n_above += isfinite(value) && value > draw->y.high;
        }
}

static void set_band(drawing *draw)
{
    for (int kind = 0; kind < ESPER_MARK_N_KINDS; kind++) {
        draw->row_of[kind] = -1;
        for (int i = 0; i < draw->chart->n_marks && draw->row_of[kind] < 0; i++)
            if ((int)draw->chart->marks[i].kind == kind)
                draw->row_of[kind] = draw->n_rows++;
    }
    draw->top = TOP + draw->n_rows * BAND_ROW + (draw->n_rows > 0 ? 12 : 0);
    draw->bottom = draw->top + draw->chart->height;
}

static double x_of(const drawing *draw, double epoch)
{
    return esper_scale_place(&draw->x, epoch, LEFT, WIDTH - RIGHT);
}

static double y_of(const drawing *draw, double value)
{
    double y = esper_scale_place(&draw->y, value, draw->bottom, draw->top);

    return y < draw->top ? draw->top : y;
}

/* ------------------------------------------------------------------------------------------------ axes */

static const char *name_of_x(const esper_chart *chart)
{
    return chart->x_name != NULL ? chart->x_name : "epoch";
}

static void write_y_axis(esper_page *page, const drawing *draw)
{
    for (int i = 0; i < draw->y.n_ticks; i++) {
        double value = draw->y.first + i * draw->y.step, y = y_of(draw, value);

        esper_svg_segment(page, i == 0 ? "axis" : "grid", LEFT, y, WIDTH - RIGHT, y);
        esper_svg_text(page, NULL, LEFT - 8, y + 4.0, "end");
        if (draw->chart->whole)
            esper_html_int(page, (int64_t)llround(value));
        else
            esper_html_real(page, value == 0.0 ? 0.0 : value, draw->y.decimals); /* not -0 */
        esper_page_print(page, "%s</text>\n", draw->chart->unit[0] == '%' ? " %" : "");
    }
}

static void write_x_axis(esper_page *page, const drawing *draw)
{
    for (int i = 0; i < draw->x.n_ticks; i++) {
        double value = draw->x.first + i * draw->x.step, x = x_of(draw, value);

        esper_svg_segment(page, "axis", x, draw->bottom, x, draw->bottom + 4.0);
        esper_svg_text(page, NULL, x, draw->bottom + 18.0, "middle");
        esper_html_int(page, (int64_t)llround(value));
        esper_page_print(page, "</text>\n");
    }
    esper_svg_text(page, NULL, (LEFT + WIDTH - RIGHT) / 2.0, draw->bottom + 34.0, "middle");
    esper_page_print(page, "%s</text>\n", name_of_x(draw->chart));
}

/* ------------------------------------------------------------------------------------------------ lines */

static void write_path(esper_page *page, const drawing *draw, const esper_chart_line *line)
{
    bool open = false;

    esper_page_print(page, "<path class=\"line %s\" d=\"", line->style);
    for (int i = 0; i < line->n; i++) {
        double x = x_of(draw, (double)line->x[i]);

        if (!is_drawn(line->y[i])) {
            open = false;
            continue;
        }
        if (open && line->step) {
            esper_page_print(page, "H");
            esper_html_at(page, x);
        }
        esper_page_print(page, open ? "L" : "M");
        esper_html_at(page, x);
        esper_page_print(page, " ");
        esper_html_at(page, y_of(draw, line->y[i]));
        open = true;
    }
    esper_page_print(page, "\"/>\n");
}

static void write_tip(esper_page *page, const drawing *draw, const esper_chart_line *line, int i)
{
    esper_page_print(page, "<title>%s, %s %lld: ", line->name, name_of_x(draw->chart), (long long)line->x[i]);
    if (draw->chart->whole)
        esper_html_int(page, (int64_t)llround(line->y[i]));
    else
        esper_html_real(page, line->y[i], draw->chart->unit[0] == '%' ? 2 : 4);
    esper_page_print(page, "%s</title>", draw->chart->unit[0] == '%' ? " %" : "");
}

/* A point that has no neighbours is drawn in any case: a line does not show it. */
static void write_dots(esper_page *page, const drawing *draw, const esper_chart_line *line)
{
    for (int i = 0; i < line->n; i++) {
        bool alone = (i == 0 || !is_drawn(line->y[i - 1])) && (i + 1 == line->n || !is_drawn(line->y[i + 1]));

        if (!is_drawn(line->y[i]) || (!alone && (!line->dots || line->n > MOST_DOTS)))
            continue;
        esper_page_print(page, "<circle class=\"dot %s\" r=\"%s\"", line->style, line->n > 40 && !alone ? "2" : "2.6");
        esper_html_attribute(page, "cx", x_of(draw, (double)line->x[i]));
        esper_html_attribute(page, "cy", y_of(draw, line->y[i]));
        esper_page_print(page, ">");
        write_tip(page, draw, line, i);
        esper_page_print(page, "</circle>\n");
    }
}

/* Crosses at the foot of the plot, where a value was not finite. */
static void write_lost(esper_page *page, const drawing *draw, const esper_chart_line *line)
{
    for (int i = 0; i < line->n; i++) {
        if (isfinite(line->y[i]))
            continue;
        esper_page_print(page, "<path class=\"lost\" d=\"M");
        esper_html_at(page, x_of(draw, (double)line->x[i]) - 4.0);
        esper_page_print(page, " ");
        esper_html_at(page, draw->bottom - 11.0);
        esper_page_print(page, "l8 8m0 -8l-8 8\"><title>%s, %s %lld: not finite</title></path>\n", line->name,
                         name_of_x(draw->chart), (long long)line->x[i]);
    }
}

/* ------------------------------------------------------------------------------------------------ marks */

const char *esper_mark_name(esper_mark_kind kind)
{
    static const char *const names[ESPER_MARK_N_KINDS] = {"germinated", "blending", "fossilised", "pruned",
                                                          "rolled back"};

    return names[kind];
}

/* Each kind has a shape of its own, drawn around the place moved to. */
static const char *const mark_shapes[ESPER_MARK_N_KINDS] = {
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", /* a ring */
    "m-4.5 3.5h9l-4.5 -8z",             /* a triangle */
    "m-5 0l5 -5l5 5l-5 5z",               /* a diamond */
    "m-4 -4l8 8m0 -8l-8 8",               /* a cross */
    "m-5 0l8 -5v10z",                     /* an arrow head to the left */
};

static void write_mark(esper_page *page, const drawing *draw, const esper_chart_mark *mark)
{
    double x = x_of(draw, (double)mark->epoch), y = TOP + BAND_ROW * (draw->row_of[mark->kind] + 0.5);

    esper_page_print(page, "<path class=\"mark m%d\" d=\"M", (int)mark->kind);
    esper_html_at(page, x);
    esper_page_print(page, " ");
    esper_html_at(page, y);
    esper_page_print(page, "%s\"><title>", mark_shapes[mark->kind]);
    esper_html_text(page, mark->text);
    esper_page_print(page, "</title></path>\n");
    if (mark->n > 1) {
        esper_svg_text(page, NULL, x + 7.0, y + 4.0, "start");
        esper_page_print(page, "%d</text>\n", mark->n);
    }
}

static void write_band(esper_page *page, const drawing *draw)
{
    for (int kind = 0; kind < ESPER_MARK_N_KINDS; kind++) {
        if (draw->row_of[kind] < 0)
            continue;
        esper_svg_text(page, NULL, LEFT - 8, TOP + BAND_ROW * (draw->row_of[kind] + 0.5) + 4.0, "end");
        esper_page_print(page, "%s</text>\n", esper_mark_name((esper_mark_kind)kind));
    }
    for (int i = 0; i < draw->chart->n_marks; i++) {
        const esper_chart_mark *mark = &draw->chart->marks[i];
        double x = x_of(draw, (double)mark->epoch);

        if (mark->kind == ESPER_MARK_FOSSILIZED)
            esper_svg_segment(page, "drop m2", x, draw->top, x, draw->bottom);
        if (mark->kind == ESPER_MARK_ROLLBACK)
            esper_svg_segment(page, "drop m4", x, draw->top, x, draw->bottom);
        write_mark(page, draw, mark);
    }
}

/* ------------------------------------------------------------------------------------------------ the figure */

static void write_caption(esper_page *page, const drawing *draw)
{
    esper_page_print(page, "<figcaption><b>%s</b>%s%s", draw->chart->title, draw->chart->unit[0] != '\0' ? ", " : "",
                     draw->chart->unit);
    if (draw->n_lost > 0)
        esper_page_print(page, ". %d value%s not finite: a cross at the foot", draw->n_lost,
                         draw->n_lost == 1 ? " was" : "s were");
    if (draw->n_above > 0)
        esper_page_print(page, ". %d value%s above the axis and cut off", draw->n_above,
                         draw->n_above == 1 ? " lies" : "s lie");
    esper_page_print(page, "</figcaption>\n");
}

static void write_key(esper_page *page, const esper_chart *chart)
{
    esper_page_print(page, "<ul class=\"key\">");
    for (int i = 0; i < chart->n_lines; i++)
        esper_page_print(page,
                         "<li><svg width=\"28\" height=\"10\" aria-hidden=\"true\"><path class=\"line %s\" "
                         "d=\"M0 5H28\"/></svg>%s</li>",
                         chart->lines[i].style, chart->lines[i].name);
    esper_page_print(page, "</ul>\n");
}

static void write_svg(esper_page *page, const drawing *draw)
{
    const esper_chart *chart = draw->chart;

    esper_page_print(
        page,
        "<div class=\"wide\"><svg class=\"plot\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
        "aria-labelledby=\"%s-t %s-d\">\n"
        "<title id=\"%s-t\">%s over %ss</title>\n<desc id=\"%s-d\">",
        WIDTH, (int)draw->bottom + FOOT, WIDTH, (int)draw->bottom + FOOT, chart->id, chart->id, chart->id, chart->title,
        name_of_x(chart), chart->id);
    esper_html_text(page, chart->about);
    esper_page_print(page, "</desc>\n");
    write_y_axis(page, draw);
    write_x_axis(page, draw);
    write_band(page, draw);
    for (int i = chart->n_lines - 1; i >= 0; i--) { /* the first on top */
        write_path(page, draw, &chart->lines[i]);
        write_dots(page, draw, &chart->lines[i]);
        write_lost(page, draw, &chart->lines[i]);
    }
    esper_page_print(page, "</svg></div>\n");
}

void esper_chart_write(esper_page *page, const esper_chart *chart)
{
    drawing draw = {.chart = chart};
    int n = count_drawn(chart);
    double *values;

    if (n == 0) {
        esper_page_print(page, "<p class=\"soft\">%s: there is no finite number to draw.</p>\n", chart->title);
        return;
    }
    values = sorted_values(page, chart, n);
    if (values == NULL)
        return;
    set_y_scale(&draw, values, n);
    esper_mem_free(values);
    draw.x = esper_scale_inside(0.0, (double)chart->last_epoch, 12, true);
    count_odd(&draw);
    set_band(&draw);
    esper_page_print(page, "<figure>\n");
    write_caption(page, &draw);
    write_key(page, chart);
    write_svg(page, &draw);
    esper_page_print(page, "</figure>\n");
}
