/* Accuracy against parameters. Lines are told apart by shape as well as by colour. */
#include "ui/compare_plot.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ui/report_chart.h"
#include "ui/report_html.h"

enum { RIGHT = 24, TOP = 12, HEIGHT = 330, FOOT = 44, LABEL_CHAR = 7, LABEL_HIGH = 13 };

const char esper_compare_plot_style[] =
    ".c0{--c:var(--grown)}.c1{--c:var(--static)}.c2{--c:var(--fossilized)}.c3{--c:var(--holding)}"
    ".c4{--c:var(--blending)}.c5{--c:var(--training)}.c6{--c:var(--soft)}\n"
    ".run{fill:none;stroke:var(--c);stroke-width:1.3;opacity:.55}\n"
    ".mean{fill:var(--c);stroke:var(--ink);stroke-width:1}.span{stroke:var(--c);stroke-width:1.8}\n"
    ".front{fill:none;stroke:var(--ink);stroke-width:1.2;stroke-dasharray:6 4}\n"
    ".dots{fill:none;stroke:var(--c);stroke-width:3;stroke-linecap:round;opacity:.4}"
    ".course{fill:none;stroke:var(--c);stroke-width:2}.key .line{width:18px;height:3px;background:var(--c)}\n"
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
    esper_compare_summary summary[ESPER_COMPARE_MAX_LINES];
    esper_plot            at;
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
    return run->result.outcome == ESPER_COMPARE_GOOD && isfinite(run->result.acc_test) && run->result.params >= 0;
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

        esper_compare_summarise(compare, line, summary);
        if (summary->acc.n == 0)
            continue;
        for (int side = -1; side <= 1; side += 2)
            include(self, summary->params.mean + side * room_of(&summary->params),
                    summary->acc.mean + side * room_of(&summary->acc));
    }
    self->at =
        (esper_plot){.left = ESPER_PLOT_LEFT, .right = ESPER_PLOT_WIDTH - RIGHT, .top = TOP, .bottom = TOP + HEIGHT};
    if (self->n == 0)
        return;
    self->at.x = esper_scale_round(fmax(self->low_x, 0.0), self->high_x, 5, true);
    self->at.y = esper_scale_round(self->low_y, self->high_y, 8, false);
}

/* ------------------------------------------------------------------------------------------------ drawing */

/* Without its end, so that a tip can follow. */
static void begin_mark(esper_page *page, const char *style, int line, double x, double y)
{
    esper_html(page, "<path class=\"%s c%d\" d=\"M%a %a%s\">", style, line % N_COLOURS, x, y, shapes[line % N_SHAPES]);
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
        begin_mark(page, "run", run->line, esper_plot_x(&self->at, (double)run->result.params),
                   esper_plot_y(&self->at, run->result.acc_test));
        esper_html(page, "<title>%s: %.2f %%, %" PRIi64 " parameters</title></path>\n", name, run->result.acc_test,
                   run->result.params);
    }
}

/* A step wherever the front goes up: from the smallest network to the largest. */
static void write_front(const plot *self, esper_page *page)
{
    double last = -(double)INFINITY;
    bool open = false;

    esper_html(page, "<path class=\"front\" d=\"");
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
        esper_html(page, "%s%a%s%a", open ? "H" : "M", esper_plot_x(&self->at, last), open ? "V" : " ",
                   esper_plot_y(&self->at, self->summary[next].acc.mean));
        open = true;
    }
    esper_html(page, "\"/>\n");
}

static void write_mean(const plot *self, int line, esper_page *page)
{
    const esper_compare_summary *summary = &self->summary[line];
    double acc = room_of(&summary->acc), params = room_of(&summary->params);
    double x = esper_plot_x(&self->at, summary->params.mean), y = esper_plot_y(&self->at, summary->acc.mean);
    char span[24];

    snprintf(span, sizeof(span), "span c%d", line % N_COLOURS);
    esper_svg_segment(page, span, x, esper_plot_y(&self->at, summary->acc.mean - acc), x,
                      esper_plot_y(&self->at, summary->acc.mean + acc));
    esper_svg_segment(page, span, esper_plot_x(&self->at, fmax(summary->params.mean - params, 0.0)), y,
                      esper_plot_x(&self->at, summary->params.mean + params), y);
    begin_mark(page, "mean", line, x, y);
    esper_html(page, "<title>%s, mean of %d: %.2f %%, %.0f parameters%s</title></path>\n",
               self->compare->lines[line].name, summary->acc.n, summary->acc.mean, summary->params.mean,
               esper_compare_on_front(self->compare, line) ? ", on the front" : "");
}

/* Names beside the means; one that would lie on another goes below it. */
static void write_names(const plot *self, esper_page *page)
{
    double lefts[ESPER_COMPARE_MAX_LINES], ends[ESPER_COMPARE_MAX_LINES], ys[ESPER_COMPARE_MAX_LINES];
    int n = 0;

    for (int line = 0; line < self->compare->n_lines; line++) {
        double x = esper_plot_x(&self->at, self->summary[line].params.mean),
               y = esper_plot_y(&self->at, self->summary[line].acc.mean) - 8.0;
        double wide = LABEL_CHAR * (double)strlen(self->compare->lines[line].name), left;
        bool right = x + 9.0 + wide > self->at.right;

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
        esper_html(page, "<text class=\"name\" x=\"%a\" y=\"%a\" text-anchor=\"%s\">%s</text>\n", x, y,
                   right ? "end" : "start", self->compare->lines[line].name);
    }
}

static void write_svg(const plot *self, esper_page *page)
{
    esper_plot_begin(page, &self->at, FOOT, "front", "Test accuracy against parameters");
    for (int line = 0; line < self->compare->n_lines; line++)
        if (self->summary[line].acc.n > 0)
            esper_html(page, "%s: %.2f %% with %.0f parameters. ", self->compare->lines[line].name,
                       self->summary[line].acc.mean, self->summary[line].params.mean);
    esper_html(page, "</desc>\n");
    esper_plot_axes(page, &self->at, false, " %", "parameters");
    write_front(self, page);
    write_runs(self, page);
    for (int line = 0; line < self->compare->n_lines; line++)
        if (self->summary[line].acc.n > 0)
            write_mean(self, line, page);
    write_names(self, page);
    esper_html(page, "</svg></div>\n");
}

/* ------------------------------------------------------------------------------------------------ the figure */

void esper_compare_plot_mark(int line, esper_page *page)
{
    assert(line >= 0 && line < ESPER_COMPARE_MAX_LINES);
    esper_html(page,
               "<svg width=\"14\" height=\"14\" aria-hidden=\"true\"><path class=\"mean c%d\" d=\"M7 7%s\"/></svg>",
               line % N_COLOURS, shapes[line % N_SHAPES]);
}

void esper_compare_plot(const esper_compare *compare, esper_page *page)
{
    plot self = {.compare = compare};

    assert(compare->n_lines <= ESPER_COMPARE_MAX_LINES);
    measure(&self);
    if (self.n == 0) {
        esper_html(page, "<p class=\"soft\">No run has a result that could be drawn.</p>\n");
        return;
    }
    esper_html(page,
               "<figure>\n<figcaption><b>Test accuracy against parameters</b>, at equal training FLOPs. Small marks "
               "are runs, large ones means over seeds with 95 %% intervals; the dashed line is the front: no "
               "other line is as accurate with as few parameters</figcaption>\n<ul class=\"key\">");
    for (int line = 0; line < compare->n_lines; line++) {
        esper_html(page, "<li>");
        esper_compare_plot_mark(line, page);
        esper_html(page, "%s</li>", compare->lines[line].name);
    }
    esper_html(page, "</ul>\n");
    write_svg(&self, page);
    esper_html(page, "</figure>\n");
}
