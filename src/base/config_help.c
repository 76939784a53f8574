/* The table of keys, for people. */
#include <string.h>

#include "base/config.h"

enum { HELP_COLUMN = 30 };

/* What stands for the value in the help: "--lr X". */
static void metavar_text(const esper_config_key *key, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    if (key->kind == ESPER_CONFIG_INT || key->kind == ESPER_CONFIG_U64)
        snprintf(text, size, " N");
    else if (key->kind == ESPER_CONFIG_REAL)
        snprintf(text, size, " X");
    else if (key->kind == ESPER_CONFIG_TEXT)
        snprintf(text, size, " %s", key->unit[0] != '\0' ? key->unit : "PATH");
    for (int i = 0; key->kind == ESPER_CONFIG_CHOICE && key->choices[i] != NULL && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i == 0 ? " " : "|", key->choices[i]);
}

/* Prints words, breaking lines before `width` and indenting the next ones; `column` is where the cursor stands. */
static void print_wrapped(FILE *stream, int width, const char *text, int column)
{
    if (column + 1 >= HELP_COLUMN) {
        fputc('\n', stream);
        column = 0;
    }
    fprintf(stream, "%*s", HELP_COLUMN - column, "");
    column = HELP_COLUMN;
    while (*text != '\0') {
        int n = (int)strcspn(text, " ");

        if (column > HELP_COLUMN && column + 1 + n > width) {
            fprintf(stream, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += fprintf(stream, "%s%.*s", column > HELP_COLUMN ? " " : "", n, text);
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', stream);
}

static void print_key_help(FILE *stream, int width, const esper_config_key *key)
{
    bool is_number = key->kind == ESPER_CONFIG_INT || key->kind == ESPER_CONFIG_REAL;
    char flag[ESPER_CONFIG_NAME_CHARS], metavar[80], expected[160] = "", help[600];
    int column;

    esper_config_flag_name(key->name, flag);
    metavar_text(key, metavar, sizeof(metavar));
    column = fprintf(stream, "  %s%s", flag, metavar);
    if (key->kind == ESPER_CONFIG_BOOL)
        column += fprintf(stream, ", --no-%s", flag + 2);
    if (is_number)
        esper_config_expected_text(key, expected, sizeof(expected));
    snprintf(help, sizeof(help), key->preset[0] != '\0' ? "%s [default %s%s%s]" : "%s", key->help, key->preset,
             is_number ? "; " : "", expected);
    print_wrapped(stream, width, help, column);
}

void esper_config_help(FILE *stream, int width, esper_config_choose choose, const void *context)
{
    const char *section = NULL;

    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        esper_config_key key = *esper_config_key_at(i);

        if (choose != NULL && !choose(&key, context))
            continue;
        if (key.section != section)
            fprintf(stream, "%s%s\n", section != NULL ? "\n" : "", key.section);
        section = key.section;
        print_key_help(stream, width, &key);
    }
    fprintf(stream, "\nEach of these is also a line 'weight_decay = 0.001' of a configuration file and\n"
                    "an environment variable ESPER_WEIGHT_DECAY. A flag is stronger than the\n"
                    "environment, that than a file, a file than the preset of the task, and a preset\n"
                    "than the default.\n");
}

void esper_config_print_sources(const esper_config *config, const esper_config_use *use, bool all, FILE *stream)
{
    char value[ESPER_CONFIG_TEXT_CHARS], source[ESPER_CONFIG_TEXT_CHARS + 32];
    const char *section = NULL, *why, *instead;

    for (int i = 0; i < ESPER_CONFIG_N_KEYS; i++) {
        const esper_config_key *key = esper_config_key_at(i);

        why = esper_config_why_not(config, i, use, &instead);
        if (why != NULL && !all)
            continue;
        if (key->section != section)
            fprintf(stream, "%s# %s\n", section != NULL ? "\n" : "", key->section);
        section = key->section;
        esper_config_value_text(config, i, value);
        esper_config_source_text(config, i, source, sizeof(source));
        fprintf(stream, "%-16s = %-16s # %s%s%s\n", key->name, value, source, why != NULL ? "; no effect: " : "",
                why != NULL ? why : "");
    }
}
