/* Internal to the report. The parts of the page that have files of their own. */
#ifndef ESPER_UI_REPORT_SECTIONS_H
#define ESPER_UI_REPORT_SECTIONS_H

#include "ui/report_data.h"

extern const char esper_report_style[]; /* CSS */

/* Any page, up to its heading inside of <header>; `style` is CSS of its own, after that of all pages. */
void esper_report_begin(esper_page *page, const char *title, const char *style);
/* A cell of <dl class="facts">; an empty text was not recorded. */
void esper_report_fact(esper_page *page, const char *name, const char *text);
void esper_report_fact_int(esper_page *page, const char *name, int64_t value);
void esper_report_fact_time(esper_page *page, const char *name, double seconds); /* since 1970 */

/* All settings of a run, folded; "" = none are recorded. */
void esper_report_configuration(esper_page *page, const char *text);

/* Each writes a section, heading included; one that has nothing to show says so in a sentence. */
void esper_report_timeline(esper_page *page, const esper_report_data *data);
void esper_report_lineage(esper_page *page, const esper_report_data *data);
void esper_report_gates(esper_page *page, const esper_report_data *data);
void esper_report_decisions(esper_page *page, const esper_report_data *data);
void esper_report_health(esper_page *page, const esper_report_data *data);
void esper_report_attributions(esper_page *page, const esper_report_data *data);

/* The whole page of a run that learned a policy. */
esper_status esper_report_learning(esper_store_reader *reader, const esper_store_run *run, esper_page *page);

/* The rows of an epoch table, folded. */
void esper_report_epochs(esper_page *page, const esper_report_rows *rows, const char *whose);

/* "seed 3 (conv_light in r0c1)"; a seed that does not stand has its number alone. */
void esper_report_seed_name(const esper_report_data *data, int64_t seed, char *text, size_t chars);

#endif
