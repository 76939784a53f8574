/* Configuration from the command line and the environment. */
#include <assert.h>
#include <ctype.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/status.h"
#include "base/suggest.h"

/* ---- environment ---- */

static const char prefix[] = "ESPER_";

enum { PREFIX_CHARS = sizeof(prefix) - 1 };

/* Variables that are no keys; a '*' stands for any end. In small letters, without the prefix. */
static const char *const other_variables[] = {"config", "kernels", "tune",   "nvrtc",  "mpi_shared",    "golden",
                                              "test_*", "cuda_*",  "fuzz_*", "guard_library", "engine_library"};

enum { N_OTHER_VARIABLES = sizeof(other_variables) / sizeof(other_variables[0]) };

static bool is_other_variable(const char *name)
{
    for (int i = 0; i < N_OTHER_VARIABLES; i++) {
        size_t n = strcspn(other_variables[i], "*");

        if (strncmp(name, other_variables[i], n) == 0 && (other_variables[i][n] == '*' || name[n] == '\0'))
            return true;
    }
    return false;
}

/* `entry` is "ESPER_LR=0.1". */
static esper_status set_from_variable(esper_config *config, const char *entry)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_ENVIRON};
    char shown[ESPER_CONFIG_NAME_CHARS], name[ESPER_CONFIG_NAME_CHARS], exact[ESPER_CONFIG_NAME_CHARS] = "";
    size_t n = strcspn(entry, "=");
    esper_suggest suggest;
    int index;

    if (entry[n] == '\0')
        return ESPER_OK; /* no variable at all; the system passes such entries on */
    snprintf(shown, sizeof(shown), "%.*s", (int)(n < sizeof(shown) ? n : sizeof(shown)), entry);
    snprintf(name, sizeof(name), "%s", shown + PREFIX_CHARS);
    for (char *at = name; *at != '\0'; at++)
        *at = (char)tolower((unsigned char)*at);
    if (is_other_variable(name))
        return ESPER_OK;
    index = esper_config_find(name);
    if (index >= 0)
        esper_config_variable_name(esper_config_key_at(index)->name, exact);
    if (strcmp(shown, exact) == 0) /* ESPER_lr is not ESPER_LR */
        return esper_config_set(config, name, entry + n + 1, &source);
    esper_config_suggest(&suggest, name);
    for (int i = 0; i < N_OTHER_VARIABLES; i++)
        esper_suggest_offer(&suggest, other_variables[i]);
    if (suggest.best == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "environment variable %s names no configuration key; unset it", shown);
    esper_config_variable_name(suggest.best, exact);
    return ESPER_FAIL(ESPER_E_CONFIG, "environment variable %s names no configuration key; did you mean '%s'?", shown,
                      exact);
}

esper_status esper_config_load_environ(esper_config *config)
{
    esper_config loaded = *config;

    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        if (strncmp(*entry, prefix, PREFIX_CHARS) == 0)
            ESPER_TRY(set_from_variable(&loaded, *entry));
    *config = loaded;
    return ESPER_OK;
}

/* ---- command line ---- */

typedef struct arg_reader {
    esper_config              *config;
    const esper_config_option *options;
    int                        n_options;
    int                        argc, next; /* next: the argument to look at */
    char                     **argv;
} arg_reader;

/* What people call some options elsewhere; as keys are spelt in the list. */
static const struct {
    const char *elsewhere, *here;
} aliases[] = {
    {"learning_rate", "lr"}, {"output", "run_dir"},    {"output_dir", "run_dir"}, {"dir", "run_dir"},
    {"gpu", "backend"},      {"cuda", "backend"},      {"device", "backend"},
};

/* `name` is the argument without its dashes and value. */
static esper_status fail_option(const arg_reader *args, const char *argument, const char *name)
{
    char word[ESPER_CONFIG_NAME_CHARS], flag[ESPER_CONFIG_NAME_CHARS];
    esper_suggest suggest;

    snprintf(word, sizeof(word), "%s", name);
    for (char *at = word; *at != '\0'; at++)
        *at = *at == '-' ? '_' : *at; /* as the keys are spelt in the list */
    esper_config_suggest(&suggest, word);
    for (int i = 0; i < args->n_options; i++)
        esper_suggest_offer(&suggest, args->options[i].name);
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (strcmp(word, aliases[i].elsewhere) == 0)
            suggest.best = aliases[i].here;
    if (suggest.best == NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "there is no option '%.60s'; --help lists them", argument);
    esper_config_flag_name(suggest.best, flag);
    return ESPER_FAIL(ESPER_E_CONFIG, "there is no option '%.60s'; did you mean '%s'?", argument, flag);
}

/* The value of an option: what stands behind '=', or else the next argument. */
static esper_status take_value(arg_reader *args, const char *flag, const char *joined, const char **value_out)
{
    if (joined != NULL) {
        *value_out = joined;
        return ESPER_OK;
    }
    if (args->next == args->argc)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s expects a value", flag);
    if (strncmp(args->argv[args->next], "--", 2) == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s expects a value, not '%.60s'; if that is meant, write %s=%.60s", flag,
                          args->argv[args->next], flag, args->argv[args->next]);
    *value_out = args->argv[args->next++];
    return ESPER_OK;
}

static esper_status take_option(arg_reader *args, const esper_config_option *option, const char *flag,
                                const char *joined)
{
    const char *value = "";

    if (option->has_value)
        ESPER_TRY(take_value(args, flag, joined, &value));
    else if (joined != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s takes no value, but '%.60s' was given", flag, joined);
    *option->text_out = value;
    return ESPER_OK;
}

static esper_status take_key(arg_reader *args, int index, const char *joined)
{
    static const esper_config_source source = {.place = ESPER_CONFIG_FLAG};
    const esper_config_key *key = esper_config_key_at(index);
    char flag[ESPER_CONFIG_NAME_CHARS];
    const char *value = joined != NULL ? joined : "true";

    esper_config_flag_name(key->name, flag);
    if (key->kind != ESPER_CONFIG_BOOL)
        ESPER_TRY(take_value(args, flag, joined, &value));
    return esper_config_set(args->config, key->name, value, &source);
}

/* "--no-flip": the index of flip; -1 when there is no such yes-or-no key. */
static int find_negated(const char *name)
{
    int index = strncmp(name, "no-", 3) == 0 || strncmp(name, "no_", 3) == 0 ? esper_config_find(name + 3) : -1;

    return index >= 0 && esper_config_key_at(index)->kind == ESPER_CONFIG_BOOL ? index : -1;
}

/* `argument` begins with "--". */
static esper_status take_long(arg_reader *args, const char *argument)
{
    char name[ESPER_CONFIG_NAME_CHARS], flag[ESPER_CONFIG_NAME_CHARS + 2];
    size_t n = strcspn(argument + 2, "=");
    const char *joined = argument[2 + n] == '=' ? argument + 2 + n + 1 : NULL;

    assert(strncmp(argument, "--", 2) == 0);
    snprintf(name, sizeof(name), "%.*s", (int)(n < sizeof(name) ? n : sizeof(name)), argument + 2);
    snprintf(flag, sizeof(flag), "--%s", name);
    for (int i = 0; i < args->n_options; i++)
        if (strcmp(args->options[i].name, name) == 0)
            return take_option(args, &args->options[i], flag, joined);
    if (esper_config_find(name) >= 0)
        return take_key(args, esper_config_find(name), joined);
    if (find_negated(name) >= 0 && joined != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s takes no value", flag);
    if (find_negated(name) >= 0)
        return take_key(args, find_negated(name), "false");
    return fail_option(args, argument, name);
}

/* `argument` is "-x": only commands' own options have letters, and letters are not run together. */
static esper_status take_short(arg_reader *args, const char *argument)
{
    for (int i = 0; i < args->n_options; i++)
        if (args->options[i].letter == argument[1] && argument[2] == '\0')
            return take_option(args, &args->options[i], argument, NULL);
    return fail_option(args, argument, argument + 1);
}

esper_status esper_config_parse_args(esper_config *config, int argc, char **argv, const esper_config_option *options,
                                     int n_options, int *n_left_out)
{
    esper_config parsed = *config;
    arg_reader args = {.config = &parsed, .options = options, .n_options = n_options, .argc = argc, .argv = argv};
    bool options_ended = false;
    int n_left = 0;

    while (args.next < argc) {
        char *argument = argv[args.next++];

        if (options_ended || argument[0] != '-' || argument[1] == '\0')
            argv[n_left++] = argument; /* "-" alone is the usual name of standard input */
        else if (strcmp(argument, "--") == 0)
            options_ended = true;
        else if (argument[1] == '-')
            ESPER_TRY(take_long(&args, argument));
        else
            ESPER_TRY(take_short(&args, argument));
    }
    *config = parsed;
    *n_left_out = n_left;
    return ESPER_OK;
}
