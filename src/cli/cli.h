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

typedef struct esper_command {
    const char *name;
    const char *arguments; /* "TASK [options]" */
    const char *summary;   /* one line for `esper --help` */
    const char *help;      /* the rest of `esper NAME --help`, before the options */
    void (*more_help)(void); /* prints what follows `help`, where that is not the same in every build; or NULL */
    bool        has_config; /* its help lists the configuration's flags */
    bool        has_ranks;  /* several processes may work on it together; others are refused below a launcher */
    esper_config_job job;    /* it makes runs, and takes the settings that can change them; 0: it takes `keys` ... */
    const char *const *keys; /* ... NULL at the end; NULL = all. Others are refused as flags */
    const esper_command_own *own; /* for its help, key NULL at the end; NULL = none */
    int (*run)(int argc, char **argv); /* arguments after the command's name; returns the exit code */
} esper_command;

extern const esper_command esper_command_train, esper_command_grow, esper_command_learn, esper_command_eval,
    esper_command_info, esper_command_inspect, esper_command_bench, esper_command_export, esper_command_report,
    esper_command_replay, esper_command_compare;

/* All commands, NULL at the end. */
const esper_command *const *esper_command_list(void);

/* The program as it was called. */
const char *esper_cli_argv0(void);
/* The same, quoted, for commands to type next. */
const char *esper_cli_program(void);
/* A word of such a command, quoted where the shell needs it: `word` itself, or what is now in `quoted`. */
const char *esper_cli_quote(const char *word, char quoted[ESPER_SHELL_CHARS]);

void esper_command_help(const esper_command *command);

/* Whether a command takes that setting as a flag. */
bool esper_command_takes(const esper_command *command, int key);

/* Prints "esper: " and the last error, and gives the exit code for a status. */
int esper_cli_fail(esper_status status);

/* Failures are said to be of this rank from now on. */
void esper_cli_name_rank(int rank);

/* Prints a usage error with a pointer to the command's help. */
int esper_cli_usage(const esper_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Flags, environment and configuration file (--config or ESPER_CONFIG), strongest first. Positional arguments end up at the
 * front of argv, *n_left_out of them. `options` are the command's own. Prints the help and returns false when asked to. */
esper_status esper_cli_configure(const esper_command *command, esper_config *config, int argc, char **argv,
                                 const esper_config_option *options, int n_options, int *n_left_out, bool *help_out);

#endif
