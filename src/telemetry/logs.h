/* Internal. Copies of a run's numbers for other people's tools: a table as CSV, and event files as TensorBoard reads them. What is
 * logged is what the store has in `epochs` and `seed_epochs`, or, of a run that learns, in `updates` (docs/logs.md). */
#ifndef ESPER_TELEMETRY_LOGS_H
#define ESPER_TELEMETRY_LOGS_H

#include "telemetry/fact.h"

#define ESPER_LOGS_CSV "metrics.csv"

/* What `log = tensorboard,csv` asks for, as bits; E_CONFIG: a word that is neither. */
enum { ESPER_LOGS_TENSORBOARD_BIT = 1, ESPER_LOGS_CSV_BIT = 2 };

esper_status esper_logs_parse(const char *text, unsigned *logs_out);

typedef struct esper_logs_from {
    bool    resumed; /* goes on behind `epoch`: what was logged of later ones is cut off, or told to be void */
    int64_t epoch;
    bool    grows;   /* an epoch is complete when its row is told; else when its line is */
} esper_logs_from;

/* A row for each epoch, or round, in the file; its first line names the columns. What is not known is empty, and what is not finite
 * nan, inf or -inf. */
esper_status esper_sink_csv_open(const char *path, esper_logs_from from, esper_sink *sink_out);

/* An event file of its own for each process, in the directory. */
esper_status esper_sink_tensorboard_open(const char *dir, esper_logs_from from, esper_sink *sink_out);

/* Whether these sinks take the fact. */
bool esper_logs_take(const esper_fact *fact, bool grows);

/* A field as a number; false: it is none, or not known. */
bool esper_logs_number(const esper_fact *fact, const esper_fact_field *field, double *value_out);

#endif
