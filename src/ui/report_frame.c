/* What every page has: its head, its style, facts in a row, and curves. */
#include "ui/report_sections.h"

#include <assert.h>
#include <inttypes.h>
#include <time.h>

#include "base/mem.h"
#include "base/status.h"
#include "ui/report_html.h"
#include "ui/web_files.h"

enum { MOST_CLASSES = 20 }; /* that are named */

void esper_report_begin(esper_page *page, const char *title, const char *style)
{
    esper_html(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>%s</title>\n",
        title);
    esper_page_print(page, "<style>\n%s%s%s</style>\n", (const char *)esper_web_file_find("palette.css")->bytes,
                     esper_report_style, style);
    esper_html(page, "</head>\n<body>\n<header>\n<h1>%s</h1>\n", title);
}

void esper_report_fact(esper_page *page, const char *name, const char *text)
{
    esper_html(page, "<div><dt>%s</dt><dd>%s</dd></div>\n", name, text[0] != '\0' ? text : "not recorded");
}

void esper_report_fact_int(esper_page *page, const char *name, int64_t value)
{
    esper_html(page, "<div><dt>%s</dt><dd>%" PRIi64 "</dd></div>\n", name, value);
}

void esper_report_classes(esper_page *page, const esper_report_rows *classes)
{
    if (classes->n == 0)
        return;
    esper_html(page, "<div class=\"wide\"><dt>Data</dt><dd>%d class%s: ", classes->n, classes->n == 1 ? "" : "es");
    for (int i = 0; i < classes->n && i < MOST_CLASSES; i++)
        esper_html(page, "%s%s", i > 0 ? ", " : "", classes->at[i].record.class.name);
    if (classes->n > MOST_CLASSES)
        esper_html(page, " and %d more", classes->n - MOST_CLASSES);
    esper_html(page, "</dd></div>\n");
}

void esper_report_run_facts(esper_page *page, const esper_store_run *run)
{
    char began[40] = "";
    time_t when = run->began > 0.0 && run->began < 1e11 ? (time_t)run->began : 0; /* since 1970 */
    struct tm day;

    esper_report_fact_int(page, "Threads", run->threads);
    esper_report_fact(page, "Build", run->build);
    esper_report_fact(page, "Run", run->name);
    if (when != 0 && gmtime_r(&when, &day) != NULL)
        strftime(began, sizeof(began), "%Y-%m-%d %H:%M UTC", &day);
    esper_report_fact(page, "Began", began);
}

void esper_report_configuration(esper_page *page, const char *text)
{
    if (text[0] != '\0')
        esper_html(page, "<details><summary>Configuration</summary>\n<pre>%s</pre></details>\n", text);
}

void esper_report_row_begin(esper_page *page, const esper_report_row *row)
{
    esper_page_print(page, row->stands ? "<tr>" : "<tr class=\"undone\">");
}

/* Fills in a line; returns how many places it took. */
static int fill_line(const esper_report_curve *curve, int64_t *x, double *y)
{
    int n = 0;

    for (int i = 0; i < curve->rows->n; i++) {
        const char *record = (const char *)&curve->rows->at[i].record;
        const void *value = record + curve->y;

        if (!curve->rows->at[i].stands)
            continue;
        x[n] = *(const int64_t *)(const void *)(record + curve->x);
        if (curve->whole)
            y[n] =
                *(const int64_t *)value != ESPER_STORE_NO_INT ? (double)*(const int64_t *)value : ESPER_STORE_NO_REAL;
        else
            y[n] = *(const double *)value;
        if (curve->least != NULL && y[n] < *curve->least && y[n] != ESPER_STORE_NO_REAL)
            y[n] = *curve->least;
        n++;
    }
    return n;
}

void esper_report_chart(esper_page *page, esper_chart chart, const esper_report_curve *curves, int n_curves)
{
    esper_chart_line lines[ESPER_REPORT_MAX_CURVES];
    size_t n = 1, used = 0; /* 1: there may be none */
    int64_t *x;
    double *y;

    assert(n_curves <= ESPER_REPORT_MAX_CURVES);
    for (int c = 0; c < n_curves; c++)
        n += (size_t)curves[c].rows->n;
    x = esper_mem_alloc(n * sizeof(*x));
    y = esper_mem_alloc(n * sizeof(*y));
    if (x != NULL && y != NULL) {
        for (int c = 0; c < n_curves; c++) {
            const esper_report_curve *curve = &curves[c];
            int length = fill_line(curve, x + used, y + used);

            if (length > 0)
                lines[chart.n_lines++] = (esper_chart_line){.name = curve->name,
                                                            .style = curve->style,
                                                            .x = x + used,
                                                            .y = y + used,
                                                            .n = length,
                                                            .step = curve->step,
                                                            .dots = curve->dots};
            used += (size_t)length;
        }
        chart.lines = lines;
        esper_chart_write(page, &chart);
    } else
        page->status = ESPER_FAIL(ESPER_E_NOMEM, "report: curves of %zu points", n - 1);
    esper_mem_free(x);
    esper_mem_free(y);
}
