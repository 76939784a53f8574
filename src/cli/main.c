/* esper: the command line. Finds the subcommand and hands over. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/build_info.h"
#include "base/status.h"
#include "base/suggest.h"
#include "cli/cli.h"
#include "dist/launch.h"
#include "run/settings.h"
#include "run/task_lists.h"
#include "ui/ascii.h"
#include "ui/messages.h"
#include "ui/terminal.h"

static const esper_command *const commands[] = {
    &esper_command_grow,    &esper_command_learn,   &esper_command_train,  &esper_command_eval,
    &esper_command_inspect, &esper_command_predict, &esper_command_export, &esper_command_report,
    &esper_command_replay,  &esper_command_compare, &esper_command_runs,   &esper_command_watch,
    &esper_command_serve,   &esper_command_info,    &esper_command_bench,  NULL,
};

enum { HELP_COLUMNS = 100 }; /* wider lines are hard to read */

static const char *program = "esper";

const char *esper_cli_argv0(void)
{
    return program;
}

const char *esper_cli_program(void)
{
    static char quoted[ESPER_SHELL_CHARS];

    return esper_shell_quote_path(program, quoted);
}

static void print_help(void)
{
    printf("esper grows neural networks while they train. usage: esper COMMAND [arguments]\n\n");
    for (int i = 0; commands[i] != NULL; i++)
        esper_terminal_print(stdout, "  esper %-8s %-22s  %s\n", commands[i]->name, commands[i]->arguments,
                             commands[i]->summary);
    printf("\nA first run:            esper grow fashion --static-control\n"
           "What a command takes:   esper COMMAND --help\n"
           "Settings and tasks:     esper info config, esper info tasks\n");
}

/* Whether a command takes that setting as a flag. */
static bool takes(const esper_command *command, int key)
{
    const char *const *own = command->keys;

    if (command->job != 0)
        return (esper_config_jobs_of(key) & command->job) != 0;
    assert(key >= 0 && key < ESPER_CONFIG_N_KEYS);
    while (own != NULL && *own != NULL && strcmp(*own, esper_config_key_at(key)->name) != 0)
        own++;
    return own == NULL || *own != NULL;
}

/* What a command has to say about a setting of its own; NULL: nothing. */
static const esper_command_own *find_own(const esper_command *command, const char *key)
{
    for (const esper_command_own *own = command->own; own != NULL && own->key != NULL; own++)
        if (strcmp(own->key, key) == 0)
            return own;
    return NULL;
}

/* What the help of a command says of a setting; false: nothing. */
static bool describe_key(esper_config_key *key, const void *context)
{
    const esper_command *command = context;
    const esper_command_own *own = find_own(command, key->name);

    if (own != NULL && own->preset != NULL)
        key->preset = own->preset;
    if (own != NULL && own->help != NULL)
        key->help = own->help;
    return takes(command, esper_config_find(key->name));
}

static void print_command(const esper_command *command)
{
    int room = esper_terminal_look(stdout).room;

    esper_terminal_print(stdout, "usage: esper %s %s\n\n%s\n", command->name, command->arguments, command->help);
    if (command->more_help != NULL)
        command->more_help();
    if (!command->has_config)
        return;
    printf("\nSettings come from, the strongest first: these flags; environment variables\n"
           "(ESPER_LR=0.1 for --lr 0.1); a file of `key = value` lines (--config FILE or\n"
           "ESPER_CONFIG=FILE); the task; and defaults.\n\n");
    esper_config_help(stdout, room < HELP_COLUMNS ? room : HELP_COLUMNS, describe_key, command);
}

static int own_rank = -1; /* -1: there is but one */

void esper_cli_name_rank(int rank)
{
    own_rank = rank;
}

/* Prints "esper: " and the last error, and gives the exit code for a status. */
static int fail(esper_status status)
{
    if (own_rank >= 0)
        fprintf(stderr, "esper: rank %d: %s\n", own_rank, esper_last_error());
    else
        fprintf(stderr, "esper: %s\n", esper_last_error());
    if (status == ESPER_E_STOPPED)
        return ESPER_EXIT_STOPPED;
    return status == ESPER_E_CONFIG || status == ESPER_E_ARG ? ESPER_EXIT_USAGE : ESPER_EXIT_FAILED;
}

esper_status esper_cli_usage(esper_cli_call *call, const char *format, ...)
{
    const esper_command *command = call->command;
    va_list args;

    fprintf(stderr, "esper: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nusage: esper %s %s\nmore:  esper %s --help\n", command->name, command->arguments, command->name);
    call->code = ESPER_EXIT_USAGE;
    return ESPER_OK;
}

esper_status esper_cli_print(void (*write)(FILE *stream, const void *context), const void *context)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    bool good = stream != NULL;

    if (good)
        write(stream, context);
    good = good && fclose(stream) == 0;
    if (good)
        esper_terminal_print(stdout, "%s", text);
    free(text);
    return good ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "what is to be printed");
}

/* A flag that a command would pass over in silence is refused; environment and files serve all commands. */
static esper_status check_keys(const esper_command *command, const esper_config *config)
{
    char flag[ESPER_CONFIG_NAME_CHARS];
    const char *whose, *instead;

    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const esper_command_own *own = find_own(command, esper_config_key_at(i)->name);
        esper_config_use use = {.job = command->job};

        if (esper_config_place_of(config, i) != ESPER_CONFIG_FLAG || takes(command, i))
            continue;
        esper_config_flag_name(esper_config_key_at(i)->name, flag);
        if (command->job == 0)
            return ESPER_FAIL(ESPER_E_CONFIG, "esper %s takes no %s; --help lists what it takes", command->name, flag);
        whose = own != NULL && own->refusal != NULL ? own->refusal : esper_config_why_not(config, i, &use, &instead);
        return ESPER_FAIL(ESPER_E_CONFIG, "esper %s takes no %s: %s", command->name, flag, whose);
    }
    return ESPER_OK;
}

/* Reads what was typed, the environment and the file; *help_out: help is all that is wanted. */
static esper_status configure(esper_cli_call *call, int argc, char **argv, bool *help_out)
{
    const esper_command_option *own = call->command->options;
    const char *help = NULL, *file = getenv("ESPER_CONFIG");
    esper_config_option options[2 + ESPER_CLI_MAX_OPTIONS] = {{.name = "help", .letter = 'h', .text_out = &help},
                                                              {.name = "config", .has_value = true, .text_out = &file}};
    int n = 0;

    for (; own != NULL && own[n].name != NULL; n++) {
        assert(n < ESPER_CLI_MAX_OPTIONS);
        options[2 + n] =
            (esper_config_option){.name = own[n].name, .has_value = own[n].has_value, .text_out = &call->given[n]};
    }
    esper_config_init(&call->config);
    call->words = argv;
    ESPER_TRY(esper_config_parse_args(&call->config, argc, argv, options, 2 + n, &call->n_words));
    *help_out = help != NULL;
    if (*help_out)
        return ESPER_OK;
    ESPER_TRY(check_keys(call->command, &call->config));
    ESPER_TRY(esper_config_load_environ(&call->config));
    if (file != NULL && file[0] != '\0')
        ESPER_TRY(esper_config_load_file(&call->config, file));
    if (call->command->job == ESPER_CONFIG_IN_LEARN)
        ESPER_TRY(esper_task_lists_expand(call->config.tasks));
    return esper_settings_read_texts(&call->config);
}

static esper_status run_command(esper_cli_call *call, int argc, char **argv)
{
    const esper_command *command = call->command;
    bool help;

    assert(command->wants != NULL || command->most_words > 0);
    ESPER_TRY(configure(call, argc, argv, &help));
    if (help)
        print_command(command);
    else if (command->wants != NULL && call->n_words != 1)
        return esper_cli_usage(call, "expected %s, got %d", command->wants, call->n_words);
    else if (command->wants == NULL && call->n_words > command->most_words)
        return esper_cli_usage(call, "%s'%s' is too much",
                               command->most_words == 1 && command->job != 0 ? "one task at a time: " : "",
                               call->words[command->most_words]);
    return help ? ESPER_OK : command->run(call);
}

static int unknown_command(const char *name)
{
    char hint[ESPER_SUGGEST_TEXT_CHARS];
    esper_suggest suggest;

    esper_suggest_init(&suggest, name);
    for (int i = 0; commands[i] != NULL; i++)
        esper_suggest_offer(&suggest, commands[i]->name);
    fprintf(stderr, "esper: no command is called '%s'%s\nmore: esper --help\n", name,
            esper_suggest_text(&suggest, "", hint));
    return ESPER_EXIT_USAGE;
}

/* Output that went nowhere (a full disk) is a failure too. */
static int finish(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "esper: standard output cannot be written: %s\n", strerror(errno));
    return code != ESPER_EXIT_OK ? code : ESPER_EXIT_FAILED;
}

static const esper_command *find_command(const char *name)
{
    for (int i = 0; commands[i] != NULL; i++)
        if (strcmp(name, commands[i]->name) == 0)
            return commands[i];
    return NULL;
}

static bool is_one_of(const char *word, const char *a, const char *b, const char *c)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0 || strcmp(word, c) == 0;
}

static int dispatch(int argc, char **argv)
{
    esper_launcher launcher = esper_launcher_look();
    esper_cli_call call = {.code = ESPER_EXIT_OK};
    esper_status status;

    if (argc < 2) {
        print_help();
        return ESPER_EXIT_USAGE;
    }
    if (is_one_of(argv[1], "--help", "-h", "help") && argc > 2) {
        call.command = find_command(argv[2]);
        if (call.command == NULL)
            return unknown_command(argv[2]);
        print_command(call.command);
        return ESPER_EXIT_OK;
    }
    if (is_one_of(argv[1], "--help", "-h", "help")) {
        print_help();
        return ESPER_EXIT_OK;
    }
    if (is_one_of(argv[1], "--version", "-V", "version")) {
        printf("esper %s (%s, %s, %s)\n", esper_version(), esper_build_commit(), esper_build_type(),
               esper_build_compiler());
        return ESPER_EXIT_OK;
    }
    if (launcher.size > 1)
        own_rank = launcher.rank; /* what fails before ranks have joined says who tells it, too */
    call.command = find_command(argv[1]);
    if (call.command == NULL)
        return unknown_command(argv[1]);
    if (!call.command->has_ranks && launcher.launched && launcher.size != 1)
        status = esper_cli_usage(
            &call, "`esper %s` is work for one process, and a launcher (%s) has started several: call it by itself",
            call.command->name, launcher.sign);
    else
        status = run_command(&call, argc - 2, argv + 2);
    return status == ESPER_OK ? call.code : fail(status);
}

/* Where characters beyond ASCII cannot be shown, none is printed, wherever it comes from: argument, file or program. Messages
 * command no terminal, and are no wider than it is. */
static void mind_characters(void)
{
    bool utf8 = esper_terminal_look(stdout).utf8;
    FILE *out = utf8 ? NULL : esper_ascii_open(STDOUT_FILENO), *err = esper_messages_open(stderr, !utf8);

    stdout = out != NULL ? out : stdout;
    stderr = err != NULL ? err : stderr;
    esper_shell_keep_ascii(!utf8);
}

/* A standard descriptor that is closed would be the number of the next file that is opened, and what is printed would go into
 * it: a log, a checkpoint. Where even this fails there is nowhere to say so. */
static bool open_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) /* it gives the lowest that is free */
            return false;
    return true;
}

int main(int argc, char **argv)
{
    if (!open_descriptors())
        return ESPER_EXIT_FAILED;
    mind_characters();
    if (argc > 0)
        program = argv[0];
    return finish(dispatch(argc, argv));
}
