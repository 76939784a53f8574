/* Internal. The report of a grown run, from its run store: one HTML page that needs nothing else (no script, no font,
 * no link), and the numbers of the closing table, which the terminal shows too.
 *
 *     report.c           the page: head, closing table, curves
 *     report_closing.c   the numbers of the closing table
 *     report_seeds.c     timeline, lineage, gate evidence
 *     report_trials.c    trials: forks beside each other
 *     report_learning.c  the page of a run that learned a policy: another one altogether
 *     report_tables.c    decisions, health, attributions, the numbers behind the curves
 *     report_data.h      what is read from the store        report_chart.h   curves as SVG
 *     report_html.h      escaped text and numbers           report_style.c   colours and layout */
#ifndef ESPER_UI_REPORT_H
#define ESPER_UI_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/page.h"
#include "telemetry/store.h"

/* In the store of a run directory the grown run comes first; its static control is a run with this relation to it. */
enum { ESPER_REPORT_RUN = 1 };

#define ESPER_REPORT_CONTROL "static-control"
#define ESPER_REPORT_LEARNER "learner" /* policy of a run that learns one */

/* One network of the closing table. What was not measured is ESPER_STORE_NO_INT or ESPER_STORE_NO_REAL. */
typedef struct esper_report_line {
    int64_t run;         /* its number in the store; NO_INT: this network was not trained */
    bool    ended;       /* else: it runs, or was killed, and the numbers are those of its last epoch */
    int64_t epochs;      /* done */
    int64_t params;
    int64_t flops;       /* of a forward pass of one sample */
    int64_t flops_train; /* all spent on training */
    double  acc_test;    /* percent */
    double  acc_valid;   /* percent, after the last epoch */
    double  seconds;     /* of the whole run; of its epochs, when it was resumed or has not ended */
} esper_report_line;

typedef struct esper_report_numbers {
    esper_report_line host;       /* the static control; without one, what is known of the host: its size */
    esper_report_line grown;
    esper_report_line difference; /* grown - host, where both are known; `run` and `ended` mean nothing */
    bool              learns;     /* it is a run of `esper learn`: the epochs of `grown` are rounds */
} esper_report_numbers;

/* The numbers of the closing table of a run. E_NOTFOUND: the store has no such run. */
esper_status esper_report_closing(esper_store_reader *reader, int64_t run, esper_report_numbers *numbers_out);

/* Writes the page about a run into an empty `page`, be it one that grew a network or one that learned a policy. The run may
 * still be going on. */
esper_status esper_report_write(esper_store_reader *reader, int64_t run, esper_page *page);

#endif
