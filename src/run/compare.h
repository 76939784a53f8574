/* Internal. A comparison: the same task trained in several ways, by several seeds, to see what growing is worth.
 *
 *     none          the static host
 *     a policy      the host, grown by it
 *     a file        the host, grown by the policy that was learned
 *     halving       the best of 16 static networks drawn by chance, found by successive halving
 *     static-final  what a grown run of that seed ended with, from scratch
 *     static-equal  a wider static host of about as many parameters
 *
 * All have the same length: as many FLOPs of training, or, by `length = epochs`, as many epochs.
 *
 * Here is what needs no processes: which runs there are, what each one waits for and is configured with, what its store says,
 * and statistics. Whoever runs them (cli/cmd_compare.c) goes through `runs` until none is pending. */
#ifndef ESPER_RUN_COMPARE_H
#define ESPER_RUN_COMPARE_H

#include "run/policy_note.h"
#include "run/run_dir.h"
#include "run/task.h"

enum {
    ESPER_COMPARE_MAX_LINES = 64,
    ESPER_COMPARE_LABEL_CHARS = 64, /* "static-final-" and the name of a policy, or its name and settings of its own */
    ESPER_COMPARE_MAX_SEEDS = 1000,
    ESPER_COMPARE_NAME_CHARS = 96,
    ESPER_COMPARE_WHY_CHARS = 240,
};

#define ESPER_COMPARE_POLICIES "none,trials,halving,static-final,static-equal"

typedef enum esper_compare_kind {
    ESPER_COMPARE_HOST,  /* policy none */
    ESPER_COMPARE_GROWN, /* any other policy, but for halving */
    ESPER_COMPARE_SEARCH,
    ESPER_COMPARE_FINAL,
    ESPER_COMPARE_EQUAL,
} esper_compare_kind;

typedef struct esper_compare_line {
    char               name[ESPER_COMPARE_LABEL_CHARS];
    esper_compare_kind kind;
    int                of; /* of static-final and static-equal: the line of the network that they are made after; else -1 */
    const struct esper_policy_ops *ops; /* of a policy that has a name, `none` among them; else NULL */
    char settings[ESPER_COMPARE_LABEL_CHARS]; /* its own, "lr=0.05:max_params=30000"; "" = it has what all have */
    int  size;                                /* of its host: channels, width or eighths; 0 = the task's */
    /* of a learned policy */
    char     file[ESPER_CONFIG_TEXT_CHARS]; /* "" = it is none */
    char     reward[64];                    /* what it was trained by */
    char     weights[ESPER_CONFIG_TEXT_CHARS]; /* of that reward, those that were set; "" = none */
    bool     weights_known;                    /* false: the file does not tell */
    char     gates[16];
    uint64_t hash;                          /* of the file */
    char     note[ESPER_POLICY_NOTE_CHARS];  /* where the runs are not like those it was trained in; "" = nowhere */
} esper_compare_line;

/* How a run stands: enum name, the word people see. Only GOOD ones enter means. */
#define ESPER_COMPARE_OUTCOME_LIST(X)                                        \
    X(PENDING, "not run yet")                                                \
    X(RUNNING, "running")                                                    \
    X(GOOD, "ok")                                                            \
    X(NOT_FINITE, "not finite") /* it ended, and its loss is no number */    \
    X(BROKEN_OFF, "broken off") /* by the governor, or since the loss was lost */ \
    X(FAILED, "failed")                                                      \
    X(STOPPED, "stopped")       /* on request; it can go on */               \
    X(SKIPPED, "not run")       /* since a run it needs has no good result */

typedef enum esper_compare_outcome {
#define X(name, text) ESPER_COMPARE_##name,
    ESPER_COMPARE_OUTCOME_LIST(X)
#undef X
} esper_compare_outcome;

const char *esper_compare_outcome_name(esper_compare_outcome outcome);

/* What came out of a run. Numbers that are not known are NaN, or -1. */
typedef struct esper_compare_result {
    esper_compare_outcome outcome;
    double                acc_test, loss_test, total_reward;
    double                acc_valid; /* of the last epoch: what may choose between networks, as the test may not */
    double                flops, flops_train, seconds;
    int64_t               params, epochs;
    char                  policy[64];                      /* who decided, as the store has it */
    char                  tested[ESPER_CONFIG_TEXT_CHARS]; /* seeds with a part in the network, as `plant` takes them */
    char                  why[ESPER_COMPARE_WHY_CHARS];  /* of an outcome that is not good */
} esper_compare_result;

typedef struct esper_compare_run {
    int line, seed; /* which line; which seed, from 0 */
    /* chosen by esper_compare_prepare */
    bool                 prepared;
    double               flops;       /* of training that it may spend; 0: it goes by its epochs */
    int                  size;        /* channels or width of static-equal; 0 = the task's */
    int64_t              size_params; /* parameters of such a host */
    char                 plant[ESPER_CONFIG_TEXT_CHARS];
    int                  same_as;     /* another run that is configured alike, whose result is this one's; -1 = none */
    esper_compare_result result;
} esper_compare_run;

typedef struct esper_compare {
    const esper_task  *task;
    esper_config       config; /* what all runs share; the first seed */
    double             flops;  /* what `epochs` cost the host */
    esper_dataset_info data;
    esper_compare_line lines[ESPER_COMPARE_MAX_LINES];
    int                n_lines, n_seeds;
    int                grown; /* the line that static ones are measured by; -1 = nothing grows */
    int                host;  /* the line `none`; -1 = it is not there */
    int                against; /* the line that all others are held against, pair by pair */
    esper_compare_run *runs;
    int                n_runs; /* all of a seed stand together, those that others wait for first */
} esper_compare;

/* `policies` are names of lines and files of learned policies (or directories of the runs that learned them) separated by
 * commas. `none` and what grows may have settings of their own behind them, "trials:max_params=30000:lr=0.05"; `size` among these is
 * that of the host. A single file is called `learned`; of several each has the name of its file, or of the directory, that tells it from
 * the others. static-final is made after the line `grown`, and once more after every learned policy; where these are several,
 * each says whose network it is: static-final-heuristic, static-final-learned. Where gates was not asked for, all lines take
 * those that the files were trained with. Looks at the data for its shapes, and into the files. E_CONFIG: a name that is none
 * or stands there twice, no seeds, lines that need a growing policy without one, a policy of another task. */
esper_status esper_compare_init(esper_compare *compare, const esper_task *task, const esper_config *config,
                                const char *policies, int64_t n_seeds);
void         esper_compare_fini(esper_compare *compare);

/* Which line the others are held against: NULL takes the first learned policy, else the one that static lines follow, else the
 * first; `static-final` is the first of those. E_CONFIG: no line is called so. */
esper_status esper_compare_set_against(esper_compare *compare, const char *name);

const esper_compare_run *esper_compare_find(const esper_compare *compare, int line, int seed);
uint64_t                 esper_compare_seed(const esper_compare *compare, int seed);

/* "static-final-3" */
void esper_compare_name(const esper_compare *compare, const esper_compare_run *run,
                        char text[ESPER_COMPARE_NAME_CHARS]);

/* Chooses what the run is to be as soon as those it depends on have ended; *ready_out false: not yet. Takes over the result of
 * a run that is configured alike, or of one it needs and that failed; then it is no longer PENDING. */
esper_status esper_compare_prepare(esper_compare *compare, esper_compare_run *run, bool *ready_out);

/* The configuration of a prepared run. */
esper_status esper_compare_configure(const esper_compare *compare, const esper_compare_run *run, const char *run_dir,
                                     int threads, esper_config *config_out);

/* What all runs of a line have alike. */
esper_status esper_compare_configure_line(const esper_compare *compare, int line, esper_config *config_out);

/* What the store in a run's directory says; PENDING where it has not ended, or never began. E_CONFIG: the run there was
 * configured otherwise, with the first key that differs. */
esper_status esper_compare_read(const char *run_dir, const esper_config *config, esper_compare_result *result_out);

/* ------------------------------------------------------------------------------------------------ numbers */

/* The run's return. By the reward `gain` it is what the run has over `none` on the same seed, as tested, less the price of its size;
 * without `none`, or where it spent other FLOPs and the length is a budget of them, there is none. NaN where nobody decided about
 * its seeds: static-final and static-equal pay rent, or none, for a choice that was not theirs, and a search is paid for nothing. */
double esper_compare_return(const esper_compare *compare, const esper_compare_run *run);

/* The host of the task's shape whose parameters come nearest: its channels, or its width. */
esper_status esper_compare_size(const esper_task *task, const esper_config *config, const esper_dataset_info *data,
                                int64_t params, int *size_out, int64_t *params_out);
/* The size of the task's host, in the units of its key. */
int esper_compare_own_size(const esper_task *task, const esper_config *config);
/* Gives a configuration a host of that size, in the units of its key; 0 leaves it as it is. */
esper_status esper_compare_set_size(const esper_compare *compare, int size, esper_config *config);
const char *esper_compare_size_key(
    const esper_task *task,
    const esper_config *config); /* "channels" or "width", or "eighths" of a host given as text */

/* Of numbers that are all finite; of none, all are NaN, and so is the deviation of one. */
typedef struct esper_compare_spread {
    int    n;
    double mean, sd, min, max; /* sd: of a sample, n - 1 */
} esper_compare_spread;

esper_compare_spread esper_compare_spread_of(const double *values, int n);

/* Half the width of the 95 % interval of the mean: Student's t with n - 1 degrees of freedom; NaN of fewer than two. */
double esper_compare_margin(const esper_compare_spread *spread);
/* The t that 95 % of all lie within; n_free >= 1. */
double esper_compare_t95(int n_free);

/* One row of the closing table. */
typedef struct esper_compare_summary {
    int                  n_bad; /* runs without a good result */
    esper_compare_spread acc, acc_valid, params, flops, flops_train, seconds, epochs;
    esper_compare_spread total_reward; /* over those that have one */
    esper_compare_spread per_tflop;    /* the same for 1e12 FLOPs of training */
    esper_compare_spread gain; /* accuracy over `none` on the same seed; n = pairs */
} esper_compare_summary;

void esper_compare_summarise(const esper_compare *compare, int line, esper_compare_summary *summary_out);

/* Two lines on the same seeds: `against` less the line; over the seeds on which both are good. */
typedef struct esper_compare_pair {
    esper_compare_spread total_reward, acc, params, per_tflop;
} esper_compare_pair;

/* False: the line is the one that others are held against. */
bool esper_compare_pair_up(const esper_compare *compare, int line, esper_compare_pair *pair_out);

/* Whether no other line is, in its means, as accurate with as few parameters or better. */
bool esper_compare_on_front(const esper_compare *compare, int line);

#endif
