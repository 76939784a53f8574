/* Internal to the report, and to the server for runs and walks. What a page is made from: the rows of one run and of its static control, in memory. */
#ifndef ESPER_UI_REPORT_DATA_H
#define ESPER_UI_REPORT_DATA_H

#include "ui/drawing.h"
#include "ui/report.h"

typedef struct esper_report_row {
    esper_store_record record;
    bool               stands; /* false: a later rollback has undone it */
} esper_report_row;

/* Rows of one table in the order of seq. */
typedef struct esper_report_rows {
    esper_report_row *at;
    int               n, room;
} esper_report_rows;

/* A fork on trial, from its line of the decision log. What it does not say is NaN or 0. */
typedef struct esper_report_fork {
    const esper_report_row *row;      /* of the decisions; slot and blueprint are there, and empty where it got nothing */
    int                     rounds;   /* that it took part in */
    int64_t                 n_steps;  /* of the last of them */
    double                  loss, gain, error, flops;
} esper_report_fork;

/* A trial: the fork that got nothing, and the candidates, the best first. */
typedef struct esper_report_trial {
    const esper_report_fork *forks;   /* (n) */
    int                      n;
    double                   share;   /* of the run that was spent then */
    const esper_report_row  *verdict; /* the decision that came of it; NULL: none has */
} esper_report_trial;

typedef struct esper_report_data {
    esper_store_run      run, control;
    bool                 has_control;
    esper_report_numbers closing;
    char                *config;
    esper_report_rows    epochs, control_epochs, stages, seed_epochs, gates, checks, decisions, rollbacks;
    esper_report_rows    classes;      /* of the data; none where it does not name them */
    esper_report_rows    readings;     /* of the guard, those that found something */
    esper_report_rows    attributions; /* the last one that stands of each measure, seed and other seed */
    int64_t              n_readings, n_skipped;
    esper_report_fork   *forks;  /* of all trials */
    esper_report_trial  *trials; /* by time */
    int                  n_forks, n_trials;
    esper_store_seed    *seeds; /* whose germination stands */
    int                  n_seeds, seeds_room;
    esper_drawing        began, now; /* on one scale */
    uint64_t             n_dropped[ESPER_STORE_N_KINDS];
    uint64_t             n_dropped_all;
    int64_t              last_epoch;       /* largest of all rows that are drawn, at least 1 */
    int64_t              last_grown_epoch; /* likewise without the control */
} esper_report_data;

/* Reads all; on failure there is nothing to free. */
esper_status esper_report_data_read(esper_store_reader *reader, int64_t run, esper_report_data *data_out);
void         esper_report_data_fini(esper_report_data *data);

/* The run of that number (E_NOTFOUND: there is none), and its static control: the newest that has ended, else the newest. */
esper_status esper_report_find_runs(esper_store_reader *reader, int64_t id, esper_store_run *run_out,
                                    esper_store_run *control_out, bool *has_control_out);

/* Hands every row of a table to `take`, or those that stand; a failure of it ends the walk. */
typedef esper_status (*esper_report_take)(void *to, const esper_store_record *record);

esper_status esper_report_walk(esper_store_reader *reader, esper_store_kind kind, int64_t run, bool standing,
                               esper_report_take take, void *to);

/* All rows of a table, with word on whether they stand. */
esper_status esper_report_rows_read(esper_store_reader *reader, esper_store_kind kind, int64_t run,
                                    esper_report_rows *rows_out);
void         esper_report_rows_fini(esper_report_rows *rows);

/* Whether a row of the decisions is a fork on trial. */
bool esper_report_is_fork(const esper_report_row *row);
/* Trials, from the decisions. */
esper_status esper_report_trials_read(esper_report_data *data);
/* Training FLOPs of those that stand. */
double esper_report_trial_flops(const esper_report_data *data);
/* The trial that brought a seed; NULL: it came without one. */
const esper_report_trial *esper_report_trial_of(const esper_report_data *data, const esper_store_seed *seed);
/* How far chance reaches around a fork's gain, for all candidates together. */
double esper_report_reach(const esper_report_trial *trial, const esper_report_fork *fork);
/* Why nothing has grown: what the last trial said, or else the last reason that is one; NULL: nobody says. Borrowed. */
const char *esper_report_why_nothing(const esper_report_data *data);

/* The share of the run that was spent when it germinated; NaN: nobody says. */
double esper_report_birth_share(const esper_report_data *data, const esper_store_seed *seed);

/* NULL: no seed of that number stands, or nothing was measured. */
const esper_store_seed   *esper_report_seed_of(const esper_report_data *data, int64_t seed);
const esper_store_record *esper_report_attribution_of(const esper_report_data *data, const char *measure, int64_t seed);

#endif
