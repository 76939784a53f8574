/* Internal. Benchmarks: a file for each subject (train.c, fleet.c, guard.c, gate.c, ranks.c,
 * tune.c, tickets.c, learn.c, env.c), listed in cli/cmd_bench.c; what they share. */
#ifndef ESPER_BENCH_BENCH_H
#define ESPER_BENCH_BENCH_H

#include "base/config.h"

/* What was asked for. */
typedef struct esper_bench_request {
    const char         *name;   /* a benchmark's whole name, or its beginning up to a point */
    const esper_config *config;
    const char         *device; /* "host", "cuda", "cuda:1"; NULL = not said */
    const char         *out;    /* a file to write; NULL = not said */
    bool                json;
    bool                quick;  /* small shapes and few rounds: to see it work, not to measure */
    bool                paced;  /* a round for each line of standard input */
    int                 n_run;  /* benchmarks that the name meant: the subject counts */
} esper_bench_request;

typedef struct esper_bench_subject {
    const char *name;
    esper_status (*run)(esper_bench_request *request);
} esper_bench_subject;

extern const esper_bench_subject esper_bench_train, esper_bench_fleet, esper_bench_guard, esper_bench_gate,
    esper_bench_ranks, esper_bench_tune, esper_bench_tickets, esper_bench_learn, esper_bench_env;

bool esper_bench_is_wanted(const esper_bench_request *request, const char *name);

/* The value below which a part of the values lies (0.5: the median). Sorts them. */
double esper_bench_quantile(double *values, int n_values, double part);

#endif
