/* What a frontier says, in words, tables and two plots. */
#include "ui/frontier.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/json_write.h"
#include "base/status.h"
#include "ui/compare_plot.h"
#include "ui/compare_table.h"
#include "ui/report_chart.h"
#include "ui/report_html.h"
#include "ui/report_sections.h"

enum { OBJECT_BYTES = 1024, SENTENCE_CHARS = 400, RIGHT = 24, TOP = 12, HEIGHT = 330, FOOT = 44 };

static const esper_compare_line *line_of(const esper_frontier *frontier, const esper_frontier_point *point)
{
    return &frontier->budgets[point->budget].lines[point->line];
}

static const char *side_of(const esper_frontier_point *point)
{
    return point->grown ? "grown" : "static";
}

/* "... at 9 of 12 sizes (above it at 8) whatever the FLOPs, ..." */
static void write_verdict(const esper_frontier *frontier, char text[SENTENCE_CHARS])
{
    esper_frontier_share both = esper_frontier_by_both(frontier), params = esper_frontier_by_params(frontier),
                         flops = esper_frontier_by_flops(frontier);

    snprintf(
        text, SENTENCE_CHARS,
        "Grown networks are on or above the static frontier at %d of %d sizes whatever the FLOPs (above it at %d), at %d of "
        "%d budgets of training FLOPs whatever the size (%d), and at %d of %d budgets with a limit on the size as well (%d).",
        params.n_on, params.n, params.n_above, flops.n_on, flops.n, flops.n_above, both.n_on, both.n, both.n_above);
}

/* "+0.42 (+0.10 to +0.74)"; a dash where a side has no network. */
static void gap_text(const esper_frontier_gap *gap, char text[64])
{
    double margin = esper_compare_margin(&gap->acc);

    if (gap->acc.n == 0)
        snprintf(text, 64, "-");
    else if (isnan(margin))
        snprintf(text, 64, "%+.2f", gap->acc.mean);
    else
        snprintf(text, 64, "%+.2f (%+.2f to %+.2f)", gap->acc.mean, gap->acc.mean - margin, gap->acc.mean + margin);
}

/* ------------------------------------------------------------------------------------------------ text */

static void write_row(const esper_frontier *frontier, int budget, double params, const char *limit, esper_page *page)
{
    esper_frontier_gap gap = esper_frontier_compare(frontier, params, budget);
    char name[ESPER_FRONTIER_NAME_CHARS], flops[ESPER_TEXT_CHARS], text[64];

    gap_text(&gap, text);
    esper_page_print(page, "| %s, %s | %s | ", esper_frontier_name(frontier, budget, name),
                     esper_text_flops(frontier->budgets[budget].flops, flops), limit);
    if (gap.fixed != NULL)
        esper_page_print(page, "%.2f %s | ", gap.fixed->summary.acc.mean, line_of(frontier, gap.fixed)->name);
    else
        esper_page_print(page, "- | ");
    if (gap.grown != NULL)
        esper_page_print(page, "%.2f %s | %s |\n", gap.grown->summary.acc.mean, line_of(frontier, gap.grown)->name,
                         text);
    else
        esper_page_print(page, "- | %s |\n", text);
}

void esper_frontier_write(const esper_frontier *frontier, esper_page *page)
{
    const esper_compare *first = &frontier->budgets[0];
    char text[SENTENCE_CHARS], count[ESPER_TEXT_CHARS];

    write_verdict(frontier, text);
    esper_page_print(page, "### %s: %d networks, %d seed%s each\n\n%s\n\n", first->task->name, frontier->n_points,
                     first->n_seeds, first->n_seeds == 1 ? "" : "s", text);
    esper_page_print(
        page, "| training FLOPs up to | parameters up to | best static %% | best grown %% | grown less static |\n"
              "|---|---:|---|---|---:|\n");
    for (int b = 0; b < frontier->n_budgets; b++) {
        for (int c = 0; c < frontier->n_caps; c++)
            write_row(frontier, b, (double)frontier->caps[c], esper_text_count(frontier->caps[c], count), page);
        write_row(frontier, b, (double)INFINITY, "any", page);
    }
    esper_page_print(
        page, "\nChosen by validation, read by the test, trials included in the FLOPs; differences paired by seed, in "
              "points, with 95 %% intervals.\n");
    for (int b = 0; b < frontier->n_budgets; b++)
        for (int i = 0; i < frontier->budgets[b].n_runs; i++) {
            const esper_compare_run *run = &frontier->budgets[b].runs[i];
            char name[ESPER_COMPARE_NAME_CHARS], budget[ESPER_FRONTIER_NAME_CHARS];

            if (run->result.outcome == ESPER_COMPARE_GOOD)
                continue;
            esper_compare_name(&frontier->budgets[b], run, name);
            esper_page_print(page, "Not counted: %s/%s: %s%s%s\n", esper_frontier_name(frontier, b, budget), name,
                             esper_compare_outcome_name(run->result.outcome), run->result.why[0] != '\0' ? ": " : "",
                             run->result.why);
        }
}

/* ------------------------------------------------------------------------------------------------ JSON */

static void put_real(esper_json *json, const char *key, double value)
{
    esper_json_key(json, key);
    if (isfinite(value))
        esper_json_real(json, value);
    else
        esper_json_null(json);
}

static void put_text(esper_json *json, const char *key, const char *text)
{
    esper_json_key(json, key);
    esper_json_text(json, text);
}

static void begin_object(esper_json *json, char text[OBJECT_BYTES], const char *what)
{
    esper_json_init(json, text, OBJECT_BYTES);
    esper_json_object_begin(json);
    put_text(json, "frontier", what);
}

static void put_object(esper_json *json, esper_page *page)
{
    esper_json_object_end(json);
    if (json->overflow && page->status == ESPER_OK)
        page->status = ESPER_FAIL(ESPER_E_FORMAT, "an object of more than %d bytes", (int)OBJECT_BYTES);
    esper_page_print(page, "%s\n", json->text);
}

static void put_best(esper_json *json, const esper_frontier *frontier, const char *key,
                     const esper_frontier_point *point)
{
    esper_json_key(json, key);
    if (point == NULL) {
        esper_json_null(json);
        return;
    }
    esper_json_object_begin(json);
    put_text(json, "line", line_of(frontier, point)->name);
    put_real(json, "acc_test", point->summary.acc.mean);
    esper_json_object_end(json);
}

static void write_limit_json(const esper_frontier *frontier, int budget, double params, esper_page *page)
{
    esper_frontier_gap gap = esper_frontier_compare(frontier, params, budget);
    char text[OBJECT_BYTES];
    esper_json json;

    begin_object(&json, text, "limit");
    put_real(&json, "flops", frontier->budgets[budget].flops);
    put_real(&json, "params", params);
    put_best(&json, frontier, "static", gap.fixed);
    put_best(&json, frontier, "grown", gap.grown);
    put_real(&json, "gain", gap.acc.mean);
    put_real(&json, "gain_lower", gap.acc.mean - esper_compare_margin(&gap.acc));
    put_real(&json, "gain_upper", gap.acc.mean + esper_compare_margin(&gap.acc));
    put_object(&json, page);
}

static void write_share_json(const char *by, esper_frontier_share share, esper_page *page)
{
    char text[OBJECT_BYTES];
    esper_json json;

    begin_object(&json, text, "share");
    put_text(&json, "by", by);
    esper_json_key(&json, "n");
    esper_json_int(&json, share.n);
    esper_json_key(&json, "on_or_above");
    esper_json_int(&json, share.n_on);
    esper_json_key(&json, "above");
    esper_json_int(&json, share.n_above);
    put_object(&json, page);
}

void esper_frontier_write_json(const esper_frontier *frontier, esper_page *page)
{
    char text[OBJECT_BYTES];
    esper_json json;

    for (int i = 0; i < frontier->n_points; i++) {
        const esper_frontier_point *point = &frontier->points[i];

        begin_object(&json, text, "point");
        put_text(&json, "side", side_of(point));
        put_text(&json, "line", line_of(frontier, point)->name);
        put_real(&json, "budget", frontier->budgets[point->budget].flops);
        esper_json_key(&json, "seeds");
        esper_json_int(&json, point->summary.acc.n);
        put_real(&json, "acc_test", point->summary.acc.mean);
        put_real(&json, "acc_test_sd", point->summary.acc.sd);
        put_real(&json, "acc_valid", point->summary.acc_valid.mean);
        put_real(&json, "params", point->summary.params.mean);
        put_real(&json, "flops", point->summary.flops.mean);
        put_real(&json, "flops_train", point->summary.flops_train.mean);
        put_object(&json, page);
    }
    for (int b = 0; b < frontier->n_budgets; b++) {
        for (int c = 0; c < frontier->n_caps; c++)
            write_limit_json(frontier, b, (double)frontier->caps[c], page);
        write_limit_json(frontier, b, (double)INFINITY, page);
    }
    write_share_json("params", esper_frontier_by_params(frontier), page);
    write_share_json("flops", esper_frontier_by_flops(frontier), page);
    write_share_json("both", esper_frontier_by_both(frontier), page);
}

/* ------------------------------------------------------------------------------------------------ plots */

typedef struct figure {
    const esper_frontier *frontier;
    bool                  by_params; /* else by training FLOPs */
    double                unit;      /* of x: 1, or the FLOPs of a TFLOP or a GFLOP */
    esper_plot            at;
} figure;

static double x_of(const figure *self, const esper_frontier_point *point)
{
    return (self->by_params ? point->summary.params.mean : point->summary.flops_train.mean) / self->unit;
}

static void measure(figure *self)
{
    double low_y = (double)INFINITY, high_y = -(double)INFINITY, high_x = 0.0;

    for (int i = 0; i < self->frontier->n_points; i++) {
        const esper_frontier_point *point = &self->frontier->points[i];

        low_y = fmin(low_y, point->summary.acc.mean);
        high_y = fmax(high_y, point->summary.acc.mean);
        high_x = fmax(high_x, x_of(self, point));
    }
    self->at =
        (esper_plot){.left = ESPER_PLOT_LEFT, .right = ESPER_PLOT_WIDTH - RIGHT, .top = TOP, .bottom = TOP + HEIGHT};
    self->at.x = esper_scale_round(0.0, high_x, 5, self->by_params);
    self->at.y = esper_scale_round(low_y, high_y, 8, false);
}

/* Steps along the chosen networks of one side, as the limit rises over all points. */
static void write_steps(const figure *self, bool grown, esper_page *page)
{
    const esper_frontier *frontier = self->frontier;
    const esper_frontier_point *last = NULL;
    double from = 0.0;

    esper_html(page, "<path class=\"course c%d\" d=\"", grown ? 0 : 1);
    for (;;) { /* the next limit: the smallest x above the last one */
        const esper_frontier_point *best;
        double limit = (double)INFINITY;
        int budget = 0;

        for (int i = 0; i < frontier->n_points; i++)
            if (x_of(self, &frontier->points[i]) > from)
                limit = fmin(limit, x_of(self, &frontier->points[i]));
        if (!isfinite(limit))
            break;
        from = limit;
        while (!self->by_params && budget + 1 < frontier->n_budgets &&
               frontier->budgets[budget + 1].flops / self->unit <=
                   limit * 1.1) /* the last step may pass over a budget */
            budget++;
        best = self->by_params ? esper_frontier_best(frontier, grown, limit, frontier->n_budgets - 1)
                               : esper_frontier_best(frontier, grown, (double)INFINITY, budget);
        if (best == NULL || best == last)
            continue;
        esper_html(page, "%s%a%s%a", last != NULL ? "H" : "M", esper_plot_x(&self->at, limit), last != NULL ? "V" : " ",
                   esper_plot_y(&self->at, best->summary.acc.mean));
        last = best;
    }
    if (last != NULL)
        esper_html(page, "H%a", self->at.right);
    esper_html(page, "\"><title>%s networks, the best up to here by validation</title></path>\n",
               grown ? "grown" : "static");
}

static void write_figure(const esper_frontier *frontier, bool by_params, esper_page *page)
{
    const char *name = by_params ? "Test accuracy against parameters" : "Test accuracy against training FLOPs";
    bool small = frontier->budgets[frontier->n_budgets - 1].flops < 1e12;
    figure self = {.frontier = frontier, .by_params = by_params, .unit = by_params ? 1.0 : small ? 1e9 : 1e12};

    measure(&self);
    esper_html(
        page,
        "<figure>\n<figcaption><b>%s</b>. Marks are networks, in the mean over seeds; lines go along the best of each side "
        "up to there, chosen by validation</figcaption>\n<ul class=\"key\">"
        "<li class=\"c0\"><span class=\"line\"></span>grown</li><li class=\"c1\"><span class=\"line\"></span>static</li></ul>\n",
        name);
    esper_plot_begin(page, &self.at, FOOT, by_params ? "by-params" : "by-flops", name);
    esper_html(page, "%d networks.</desc>\n", frontier->n_points);
    esper_plot_axes(page, &self.at, false, " %",
                    by_params ? "parameters"
                    : small   ? "training GFLOP, trials included"
                              : "training TFLOP, trials included");
    for (int i = 0; i < frontier->n_points; i++) {
        const esper_frontier_point *point = &frontier->points[i];
        char budget[ESPER_FRONTIER_NAME_CHARS];

        esper_html(
            page, "<path class=\"dots c%d\" d=\"M%a %ah0\"><title>%s, %s: %.2f %%, %.0f parameters</title></path>\n",
            point->grown ? 0 : 1, esper_plot_x(&self.at, x_of(&self, point)),
            esper_plot_y(&self.at, point->summary.acc.mean), line_of(frontier, point)->name,
            esper_frontier_name(frontier, point->budget, budget), point->summary.acc.mean, point->summary.params.mean);
    }
    write_steps(&self, false, page);
    write_steps(&self, true, page);
    esper_html(page, "</svg></div>\n</figure>\n");
}

/* ------------------------------------------------------------------------------------------------ the page */

static void write_table(const esper_frontier *frontier, esper_page *page)
{
    static const char *const columns[] = {"Training FLOPs up to", "#Parameters up to", "Best static", "#Test %",
                                          "Best grown",           "#Test %",           "#Grown less static", NULL};

    esper_html_table(page, "limits", "The best of each side within a budget and a size", columns);
    for (int b = 0; b < frontier->n_budgets; b++)
        for (int c = 0; c <= frontier->n_caps; c++) {
            double params = c < frontier->n_caps ? (double)frontier->caps[c] : (double)INFINITY;
            esper_frontier_gap gap = esper_frontier_compare(frontier, params, b);
            char name[ESPER_FRONTIER_NAME_CHARS], flops[ESPER_TEXT_CHARS], count[ESPER_TEXT_CHARS], text[64];

            gap_text(&gap, text);
            esper_html(page, "<tr><td><a href=\"%s/report.html\">%s</a></td><td class=\"n\">%s</td>",
                       esper_frontier_name(frontier, b, name), esper_text_flops(frontier->budgets[b].flops, flops),
                       c < frontier->n_caps ? esper_text_count(frontier->caps[c], count) : "any");
            for (int grown = 0; grown <= 1; grown++) {
                const esper_frontier_point *point = grown ? gap.grown : gap.fixed;

                if (point != NULL)
                    esper_html(page, "<td>%s</td><td class=\"n\">%.2f</td>", line_of(frontier, point)->name,
                               point->summary.acc.mean);
                else
                    esper_html(page, "<td>-</td><td class=\"n\">-</td>");
            }
            esper_html(page, "<td class=\"n\">%s</td></tr>\n", text);
        }
    esper_html_table_end(page);
}

void esper_frontier_report(const esper_frontier *frontier, esper_page *page)
{
    char title[160], text[SENTENCE_CHARS];

    snprintf(title, sizeof(title), "%s: the frontier", frontier->budgets[0].task->name);
    esper_report_begin(page, title, esper_compare_plot_style);
    write_verdict(frontier, text);
    esper_html(page, "<p class=\"lead\">%s</p>\n</header>\n<main>\n", text);
    if (frontier->n_points == 0)
        esper_html(page, "<p class=\"soft\">No run has a result that could be drawn.</p>\n");
    else {
        write_figure(frontier, true, page);
        write_figure(frontier, false, page);
    }
    write_table(frontier, page);
    esper_html(
        page,
        "</main>\n<footer><p>Made by esper compare --frontier. Networks are chosen by their validation and read by "
        "their test; trials are included in the FLOPs. Differences are paired by seed, in points, with 95 %% "
        "intervals of the mean.</p></footer>\n</body>\n</html>\n");
}
