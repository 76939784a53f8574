/* Internal. What the parts of learning (run/learn.h) share: learn.c is the loop, learn_record.c what is written down of it. */
#ifndef ESPER_RUN_LEARN_INTERNAL_H
#define ESPER_RUN_LEARN_INTERNAL_H

#include "run/curriculum.h"
#include "run/learn.h"
#include "run/run_base.h"

enum { LEARN_RECENT = 10 }; /* rounds whose mean return is looked at */

typedef struct learn {
    run_base                base;
    esper_bus               logs; /* copies for other people's tools */
    const esper_learn_desc *desc;
    esper_learned_identity  identity;   /* of all that it learns on */
    esper_curriculum        curriculum; /* and what that is */
    esper_learned_identity *each;       /* (curriculum.n) what each of them would be the identity of */
    esper_learner          *learner;
    esper_fleet            *fleet;
    esper_policy           *program; /* that decides and learns outside; NULL: the learner does */
    esper_decision         *decisions; /* (own environments) */
    const esper_policy_view **last_views; /* (own environments) that the program was shown last */
    esper_episode          *own_episodes, *episodes; /* (own environments), (environments of all ranks) of the last round */
    int64_t                 params_host;
    char                    record_file[ESPER_CONFIG_RECORD_CHARS]; /* the configuration, without where it is kept and shown */
    double                  began;
    /* what a file carries over */
    uint32_t round, first_round; /* that are done; that were when this process began */
    uint32_t saved_round;        /* whose policy is in the file */
    bool     is_unsaved;         /* the disk did not take that of the last round */
    char     why_unsaved[512];
    uint64_t n_episodes, n_steps;
    double   returns[LEARN_RECENT], best; /* of the last rounds, by round % LEARN_RECENT; NaN = none yet */
    uint32_t best_round;
    int64_t  rows[ESPER_FACT_N_TABLES]; /* told, by table: what a store has of it */
    bool     counted;                   /* false: the file was of a version that does not count them */
    /* and what it does not */
    esper_learn_times  times; /* policy: of one thread */
    int                n_shown;  /* decisions of a round that were shown */
    double             deciding; /* seconds of threads in which a fleet's policy decided */
    double             round_wall, fleet_wall;
    esper_learn_result result;
} learn;

/* The entry of the curriculum that an episode is of, of the round behind so many others. */
int learn_entry_of(const learn *self, uint64_t episode, uint32_t rounds_before);

/* learn_outside.c: a program decides about all environments, and is told what its decisions were worth. */
esper_status learn_open_program(learn *self);
esper_status learn_ask_program(learn *self, int step);
esper_status learn_tell_program(learn *self); /* the round is over */

/* Names of what failed to be finite in an update: "gradient, reward". */
enum { LEARN_FAILURES_CHARS = 256 };
const char *learn_failures(const esper_ppo_report *report, char text[LEARN_FAILURES_CHARS]);

/* learn_record.c. Learning goes on without its store, and says so. */
void learn_open_records(learn *self);
void learn_record_round(learn *self, const esper_learn_round *round);
void learn_close_records(learn *self, esper_status status);

/* The rows told so far as a note of the file, and back. Returns false when the text is none. */
enum { LEARN_ROWS_CHARS = ESPER_FACT_N_TABLES * 48 };
void learn_write_rows(const learn *self, char text[LEARN_ROWS_CHARS]);
bool learn_read_rows(learn *self, const char *text);

#endif
