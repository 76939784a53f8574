/* Accuracy against parameters. Lines are told apart by shape as well as by colour. */
#include "ui/compare_plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ui/report_chart.h"
#include "ui/report_html.h"

enum { WIDTH = 1032, LEFT = 84, RIGHT = 24, TOP = 12, HEIGHT = 400, FOOT = 44, LABEL_CHAR = 7, LABEL_HIGH = 13 };

const char esper_compare_plot_style[] =
    ".c0{--c:var(--grown)}.c1{--c:var(--static)}.c2{--c:var(--fossilized)}.c3{--c:var(--holding)}"
    ".c4{--c:var(--blending)}.c5{--c:var(--training)}.c6{--c:var(--soft)}\n"
    ".run{fill:none;stroke:var(--c);stroke-width:1.3;opacity:.55}\n"
    ".mean{fill:var(--c);stroke:var(--ink);stroke-width:1}.span{stroke:var(--c);stroke-width:1.8}\n"
    ".front{fill:none;stroke:var(--ink);stroke-width:1.2;stroke-dasharray:6 4}\n"
    "svg text.name{fill:var(--ink);font-weight:600}\n"
    "td svg{max-width:none}\n"; /* marks keep their size where a table is wide */

/* Each drawn around the place moved to. More lines than shapes differ in colour from those with the same shape. */
static const char *const shapes[] = {
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",    /* a ring */
    "m-3.6 -3.6h7.2v7.2h-7.2z",               /* a square */
    "m-4.4 3.5h8.8l-4.4 -7.8z",               /* a triangle */
    "m-4.8 0l4.8 -4.8l4.8 4.8l-4.8 4.8z",     /* a diamond */
    "m-4.4 -3.5h8.8l-4.4 7.8z",               /* a triangle that stands on its point */
    "m-4 -2h8l-4 6zm0 4h8l-4 -6z",            /* a star */
    "m-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z", /* a plus */
    "m-5 -2.2h10v4.4h-10z",                   /* a bar */
};

enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]), N_COLOURS = 7 };

typedef struct plot {
    const esper_compare  *compare;
    esper_compare_summary summary[ESPER_COMPARE_MAX_LINES]; /* at equal epochs */
    esper_scale           x, y;
    double                low_x, high_x, low_y, high_y; /* of all that is drawn */
    int                   n;                            /* runs */
} plot;

/* ------------------------------------------------------------------------------------------------ measures */

static void include(plot *self, double params, double acc)
{
    self->low_x = fmin(self->low_x, params);
    self->high_x = fmax(self->high_x, params);
    self->low_y = fmin(self->low_y, acc);
    self->high_y = fmax(self->high_y, acc);
}

static bool is_drawn(const esper_compare_run *run)
{
    return !run->equal_flops && run->result.outcome == ESPER_COMPARE_GOOD && isfinite(run->result.acc_test) &&
           run->result.params >= 0;
}

/* A margin that is not known takes no room. */
static double room_of(const esper_compare_spread *spread)
{
    double margin = esper_compare_margin(spread);

    return isfinite(margin) ? margin : 0.0;
}

static void measure(plot *self)
{
    const esper_compare *compare = self->compare;

    self->low_x = self->low_y = (double)INFINITY;
    self->high_x = self->high_y = -(double)INFINITY;
    for (int i = 0; i < compare->n_runs; i++)
        if (is_drawn(&compare->runs[i])) {
            include(self, (double)compare->runs[i].result.params, compare->runs[i].result.acc_test);
            self->n++;
        }
    for (int line = 0; line < compare->n_lines; line++) {
        esper_compare_summary *summary = &self->summary[line];

        if (!esper_compare_summarise(compare, line, false, summary) || summary->acc.n == 0)
            continue;
        for (int side = -1; side <= 1; side += 2)
            include(self, summary->params.mean + side * room_of(&summary->params),
                    summary->acc.mean + side * room_of(&summary->acc));
    }
    if (self->n == 0)
        return;
    self->x = esper_scale_round(fmax(self->low_x, 0.0), self->high_x, 8, true);
    self->y = esper_scale_round(self->low_y, self->high_y, 8, false);
}

static double x_of(const plot *self, double params)
{
    return fmax(esper_scale_place(&self->x, params, LEFT, WIDTH - RIGHT), LEFT);
}

static double y_of(const plot *self, double acc)
{
    return esper_scale_place(&self->y, acc, TOP + HEIGHT, TOP);
}

/* ------------------------------------------------------------------------------------------------ drawing */

static void write_axes(const plot *self, esper_page *page)
{
    for (int i = 0; i < self->y.n_ticks; i++) {
        double value = self->y.first + i * self->y.step, y = y_of(self, value);

        esper_svg_segment(page, i == 0 ? "axis" : "grid", LEFT, y, WIDTH - RIGHT, y);
        esper_svg_text(page, NULL, LEFT - 8, y + 4.0, "end");
        esper_html_real(page, value, self->y.decimals);
        esper_page_print(page, " %%</text>\n");
    }
    for (int i = 0; i < self->x.n_ticks; i++) {
        double value = self->x.first + i * self->x.step, x = x_of(self, value);

        esper_svg_segment(page, "axis", x, TOP + HEIGHT, x, TOP + HEIGHT + 4);
        esper_svg_text(page, NULL, x, TOP + HEIGHT + 18, "middle");
        esper_html_int(page, (int64_t)llround(value));
        esper_page_print(page, "</text>\n");
    }
    esper_svg_text(page, NULL, (LEFT + WIDTH - RIGHT) / 2.0, TOP + HEIGHT + 36, "middle");
    esper_page_print(page, "parameters</text>\n");
}

/* Without its end, so that a tip can follow. */
static void begin_mark(esper_page *page, const char *style, int line, double x, double y, const char *transform)
{
    esper_page_print(page, "<path class=\"%s c%d\"%s d=\"M", style, line % N_COLOURS, transform);
    esper_html_at(page, x);
    esper_page_print(page, " ");
    esper_html_at(page, y);
    esper_page_print(page, "%s\">", shapes[line % N_SHAPES]);
}

static void write_runs(const plot *self, esper_page *page)
{
    const esper_compare *compare = self->compare;
    char name[ESPER_COMPARE_NAME_CHARS];

    for (int i = 0; i < compare->n_runs; i++) {
        const esper_compare_run *run = &compare->runs[i];

        if (!is_drawn(run))
            continue;
        esper_compare_name(compare, run, name);
        begin_mark(page, "run", run->line, x_of(self, (double)run->result.params), y_of(self, run->result.acc_test),
                   "");
        esper_page_print(page, "<title>%s: ", name);
        esper_html_real(page, run->result.acc_test, 2);
        esper_page_print(page, " %%, ");
        esper_html_int(page, run->result.params);
        esper_page_print(page, " parameters</title></path>\n");
    }
}

/* A step wherever the front goes up: from the smallest network to the largest. */
static void write_front(const plot *self, esper_page *page)
{
    double last = -(double)INFINITY;
    bool open = false;

    esper_page_print(page, "<path class=\"front\" d=\"");
    for (;;) {
        int next = -1;

        for (int line = 0; line < self->compare->n_lines; line++) {
            double params = self->summary[line].params.mean;

            if (params > last && esper_compare_on_front(self->compare, line) &&
                (next < 0 || params < self->summary[next].params.mean))
                next = line;
        }
        if (next < 0)
            break;
        last = self->summary[next].params.mean;
        esper_page_print(page, open ? "H" : "M");
        esper_html_at(page, x_of(self, last));
        esper_page_print(page, open ? "V" : " ");
        esper_html_at(page, y_of(self, self->summary[next].acc.mean));
        open = true;
    }
    esper_page_print(page, "\"/>\n");
}

static void write_mean(const plot *self, int line, esper_page *page)
{
    const esper_compare_summary *summary = &self->summary[line];
    double acc = room_of(&summary->acc), params = room_of(&summary->params);
    double x = x_of(self, summary->params.mean), y = y_of(self, summary->acc.mean);
    char span[24];

    snprintf(span, sizeof(span), "span c%d", line % N_COLOURS);
    esper_svg_segment(page, span, x, y_of(self, summary->acc.mean - acc), x, y_of(self, summary->acc.mean + acc));
    esper_svg_segment(page, span, x_of(self, summary->params.mean - params), y,
                      x_of(self, summary->params.mean + params), y);
    begin_mark(page, "mean", line, x, y, "");
    esper_page_print(page, "<title>%s, mean of %d: ", self->compare->lines[line].name, summary->acc.n);
    esper_html_real(page, summary->acc.mean, 2);
    esper_page_print(page, " %%, ");
    esper_html_int(page, (int64_t)llround(summary->params.mean));
    esper_page_print(page, " parameters%s</title></path>\n",
                     esper_compare_on_front(self->compare, line) ? ", on the front" : "");
}

/* Names beside the means; one that would lie on another goes below it. */
static void write_names(const plot *self, esper_page *page)
{
    double lefts[ESPER_COMPARE_MAX_LINES], ends[ESPER_COMPARE_MAX_LINES], ys[ESPER_COMPARE_MAX_LINES];
    int n = 0;

    for (int line = 0; line < self->compare->n_lines; line++) {
        double x = x_of(self, self->summary[line].params.mean), y = y_of(self, self->summary[line].acc.mean) - 8.0;
        double wide = LABEL_CHAR * (double)strlen(self->compare->lines[line].name), left;
        bool right = x + 9.0 + wide > WIDTH - RIGHT;

        if (self->summary[line].acc.n == 0)
            continue;
        x += right ? -9.0 : 9.0;
        left = right ? x - wide : x;
        for (int i = 0; i < n; i++)
            if (left < ends[i] && lefts[i] < left + wide && fabs(ys[i] - y) < LABEL_HIGH) {
                y = ys[i] + LABEL_HIGH + 0.5; /* further down than it was: this ends */
                i = -1;
            }
        lefts[n] = left;
        ends[n] = left + wide;
        ys[n++] = y;
        esper_svg_text(page, "name", x, y, right ? "end" : "start");
        esper_page_print(page, "%s</text>\n", self->compare->lines[line].name);
    }
}

static void write_svg(const plot *self, esper_page *page)
{
    esper_page_print(page,
                     "<div class=\"wide\"><svg class=\"plot\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
                     "role=\"img\" aria-labelledby=\"front-t front-d\">\n<title id=\"front-t\">Test accuracy against "
                     "parameters</title>\n<desc id=\"front-d\">",
                     WIDTH, TOP + HEIGHT + FOOT, WIDTH, TOP + HEIGHT + FOOT);
    for (int line = 0; line < self->compare->n_lines; line++)
        if (self->summary[line].acc.n > 0) {
            esper_page_print(page, "%s: ", self->compare->lines[line].name);
            esper_html_real(page, self->summary[line].acc.mean, 2);
            esper_page_print(page, " %% with ");
            esper_html_int(page, (int64_t)llround(self->summary[line].params.mean));
            esper_page_print(page, " parameters. ");
        }
    esper_page_print(page, "</desc>\n");
    write_axes(self, page);
    write_front(self, page);
    write_runs(self, page);
    for (int line = 0; line < self->compare->n_lines; line++)
        if (self->summary[line].acc.n > 0)
            write_mean(self, line, page);
    write_names(self, page);
    esper_page_print(page, "</svg></div>\n");
}

/* ------------------------------------------------------------------------------------------------ the figure */

void esper_compare_plot_mark(int line, esper_page *page)
{
    esper_page_print(
        page, "<svg width=\"14\" height=\"14\" aria-hidden=\"true\"><path class=\"mean c%d\" d=\"M7 7%s\"/></svg>",
        line % N_COLOURS, shapes[line % N_SHAPES]);
}

void esper_compare_plot(const esper_compare *compare, esper_page *page)
{
    plot self = {.compare = compare};

    measure(&self);
    if (self.n == 0) {
        esper_page_print(page, "<p class=\"soft\">No run has a result that could be drawn.</p>\n");
        return;
    }
    esper_page_print(page,
                     "<figure>\n<figcaption><b>Test accuracy against parameters</b>, at equal epochs. Small marks "
                     "are runs, large ones means over seeds with 95 %% intervals; the dashed line is the front: no "
                     "other line is as accurate with as few parameters</figcaption>\n<ul class=\"key\">");
    for (int line = 0; line < compare->n_lines; line++) {
        esper_page_print(page, "<li>");
        esper_compare_plot_mark(line, page);
        esper_page_print(page, "%s</li>", compare->lines[line].name);
    }
    esper_page_print(page, "</ul>\n");
    write_svg(&self, page);
    esper_page_print(page, "</figure>\n");
}
