/* Internal. The command line: one file for each subcommand, and what they share. */
#ifndef ESPER_CLI_CLI_H
#define ESPER_CLI_CLI_H

#include "base/config.h"
#include "base/shell.h"
#include "run/task.h"

/* Exit codes. */
enum { ESPER_EXIT_OK = 0, ESPER_EXIT_FAILED = 1, ESPER_EXIT_USAGE = 2, ESPER_EXIT_STOPPED = 130 };

/* A setting that is not in this command what it is in others. */
typedef struct esper_command_own {
    const char *key;
    const char *preset;  /* NULL: the table's */
    const char *help;    /* NULL: the table's */
    const char *refusal; /* why the command does not take it; NULL: it does, or the table says why */
} esper_command_own;

/* An option of a command beside the settings: --resume RUN, --json. */
typedef struct esper_command_option {
    const char *name; /* NULL at the end of a list */
    bool        has_value;
} esper_command_option;

enum { ESPER_CLI_MAX_OPTIONS = 16 };

typedef struct esper_command esper_command;

/* A command with what was typed behind it. */
typedef struct esper_cli_call {
    const esper_command *command;
    esper_config         config; /* flags, environment and configuration file (--config or ESPER_CONFIG), strongest first */
    const char          *given[ESPER_CLI_MAX_OPTIONS]; /* by `options`: the value, "" of one without; NULL: not given */
    char               **words;                        /* what is neither option nor value */
    int                  n_words;
    int                  code; /* of the exit, where nothing fails */
} esper_cli_call;

struct esper_command {
    const char *name;
    const char *arguments; /* "TASK [options]" */
    const char *summary;   /* one line for `esper --help` */
    const char *help;      /* the rest of `esper NAME --help`, before the options */
    void (*more_help)(void); /* prints what follows `help`, where that is not the same in every build; or NULL */
    bool        has_config; /* its help lists the configuration's flags */
    bool        has_ranks;  /* several processes may work on it together; others are refused below a launcher */
    esper_config_job job;    /* it makes runs, and takes the settings that can change them; 0: it takes `keys` ... */
    const char *const *keys; /* ... NULL at the end; NULL = all. Others are refused as flags */
    const esper_command_own    *own;     /* for its help, key NULL at the end; NULL = none */
    const esper_command_option *options; /* NULL = none */
    const char *wants;      /* "one run": it takes one word, of that kind; NULL: at most `most_words` */
    int         most_words; /* 1: a task */
    esper_status (*run)(esper_cli_call *call);
};

extern const esper_command esper_command_train, esper_command_grow, esper_command_learn, esper_command_eval,
    esper_command_info, esper_command_inspect, esper_command_bench, esper_command_export, esper_command_report,
    esper_command_predict, esper_command_replay, esper_command_compare, esper_command_runs, esper_command_serve,
    esper_command_watch;

/* The program as it was called. */
const char *esper_cli_argv0(void);
/* The same, quoted, for commands to type next. */
const char *esper_cli_program(void);

/* Failures are said to be of this rank from now on. */
void esper_cli_name_rank(int rank);

/* Prints what `write` writes to a stream, in lines that fit the terminal. */
esper_status esper_cli_print(void (*write)(FILE *stream, const void *context), const void *context);

/* Prints a usage error with a pointer to the command's help. It is the code of the exit from now on, and no failure: ESPER_OK. */
esper_status esper_cli_usage(esper_cli_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
