/* Internal to the report. The parts of the page that have files of their own. */
#ifndef ESPER_UI_REPORT_SECTIONS_H
#define ESPER_UI_REPORT_SECTIONS_H

#include <stddef.h>

#include "ui/report_chart.h"
#include "ui/report_data.h"

extern const char esper_report_style[]; /* CSS */

/* Any page, up to its heading inside of <header>; `style` is CSS of its own, after that of all pages. */
void esper_report_begin(esper_page *page, const char *title, const char *style);
/* A cell of <dl class="facts">; an empty text was not recorded. */
void esper_report_fact(esper_page *page, const char *name, const char *text);
void esper_report_fact_int(esper_page *page, const char *name, int64_t value);
/* How many classes the data has, and what the first of them are called; nothing where it does not name them. */
void esper_report_classes(esper_page *page, const esper_report_rows *classes);
/* Those that every run has: threads, build, name, when it began. */
void esper_report_run_facts(esper_page *page, const esper_store_run *run);

/* All settings of a run, folded; "" = none are recorded. */
void esper_report_configuration(esper_page *page, const char *text);

/* A column of those rows that stand, over another one. */
typedef struct esper_report_curve {
    const char              *name, *style; /* as in a chart's line */
    const esper_report_rows *rows;
    size_t                   x, y;       /* where the columns are in a record: x an int64_t, y a double */
    bool                     whole;      /* y is an int64_t */
    bool                     step, dots; /* as in a chart's line */
    const double            *least;      /* what is below it is drawn there; NULL: all is as it is */
} esper_report_curve;

enum { ESPER_REPORT_MAX_CURVES = 8 };

/* A chart with these curves; those without rows are left out. */
void esper_report_chart(esper_page *page, esper_chart chart, const esper_report_curve *curves, int n_curves);

/* A cell: a bar from the middle to the value, and a line from bound to bound. most: what the longest bar stands for. */
void esper_report_gauge(esper_page *page, double value, double lower, double upper, double most);

/* Begins a row of a table: struck through where it has been undone. */
void esper_report_row_begin(esper_page *page, const esper_report_row *row);

/* Each writes a section, heading included; one that has nothing to show says so in a sentence. */
void esper_report_trials(esper_page *page, const esper_report_data *data);
void esper_report_timeline(esper_page *page, const esper_report_data *data);
void esper_report_lineage(esper_page *page, const esper_report_data *data);
void esper_report_gates(esper_page *page, const esper_report_data *data);
void esper_report_decisions(esper_page *page, const esper_report_data *data);
void esper_report_health(esper_page *page, const esper_report_data *data);
void esper_report_attributions(esper_page *page, const esper_report_data *data);

/* The whole page of a run that learned a policy. */
esper_status esper_report_learning(esper_store_reader *reader, const esper_store_run *run, esper_page *page);

/* The rows of an epoch table, folded; nothing where there is none. */
void esper_report_epochs(esper_page *page, const esper_report_rows *rows, const char *whose);

/* "seed 3 (conv_light in r0c1)"; a seed that does not stand has its number alone. */
void esper_report_seed_name(const esper_report_data *data, int64_t seed, char *text, size_t chars);

#endif
