/* The lists that come with the program, and reading others. */
#include "run/task_lists.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"

enum { MOST_FILE = 1 << 16 };

/* `fast` is for a policy that is to ship (dev/gpu/learn.sh): episodes of a second or two, and those of a table cost next to nothing. The
 * first entry of a kind is a host as people have it; the others are by chance, and no two alike. */
static const esper_tasks_named lists[] = {
    {"fast", "small images and tables: Fashion-MNIST and a synthetic table, episodes of a second or two",
     "fashion_fast kernel=3, fashion_fast drawn=4 draws=all, synth_table, synth_table drawn=3 draws=all"},
    {"synthetic", "images and tables that need no files",
     "synth batch=64, synth batch=64 drawn=4 draws=all, synth_table, synth_table drawn=4 draws=all"},
    {"kinds", "hosts of all three kinds: images, tables and text",
     "fashion_fast kernel=3, fashion_fast drawn=4 draws=all, synth_table, synth_table drawn=3 draws=all, synth_text, "
     "synth_text drawn=3 draws=all"},
    {NULL, NULL, NULL},
};

const esper_tasks_named *esper_task_lists(void)
{
    return lists;
}

char *esper_task_lists_entry_end(char *text)
{
    bool quoted = false;

    for (; *text != '\0' && (quoted || *text != ','); text++)
        quoted = quoted != (*text == '\'');
    return text;
}

/* Adds to a text that has an end. */
__attribute__((format(printf, 2, 3))) static esper_status add(char tasks[ESPER_CONFIG_TEXT_CHARS], const char *format,
                                                              ...)
{
    size_t used = strlen(tasks);
    va_list args;
    int more;

    va_start(args, format);
    more = vsnprintf(tasks + used, ESPER_CONFIG_TEXT_CHARS - used, format, args);
    va_end(args);
    return more >= 0 && used + (size_t)more < ESPER_CONFIG_TEXT_CHARS
               ? ESPER_OK
               : ESPER_FAIL(ESPER_E_CONFIG, "tasks: the list takes more than %d characters",
                            ESPER_CONFIG_TEXT_CHARS - 1);
}

/* It begins with a '#' at the start or behind a blank, and not between quotes. */
static void cut_comment(char *line)
{
    bool quoted = false;

    for (char *at = line; *at != '\0'; at++) {
        quoted = quoted != (*at == '\'');
        if (*at == '#' && !quoted && (at == line || at[-1] == ' ' || at[-1] == '\t')) {
            *at = '\0';
            return;
        }
    }
}

/* Without what is blank at both ends. */
static char *trim(char *text)
{
    static const char blanks[] = " \t\r";
    char *end;

    text += strspn(text, blanks);
    for (end = text + strlen(text); end > text && strchr(blanks, end[-1]) != NULL; end--)
        end[-1] = '\0';
    return text;
}

/* The entries of a file, a comma between them. */
static esper_status add_file(char tasks[ESPER_CONFIG_TEXT_CHARS], const char *path)
{
    esper_status status = ESPER_OK;
    size_t bytes;
    char *text;
    int n = 0;

    if (esper_file_read(path, MOST_FILE, &text, &bytes) != ESPER_OK)
        return esper_fail_within(ESPER_E_CONFIG, "tasks: ");
    if (strlen(text) != bytes)
        status = ESPER_FAIL(ESPER_E_CONFIG, "tasks: %s: that is no text", path);
    for (char *line = text; status == ESPER_OK && line != NULL;) {
        char *next = strchr(line, '\n'), *entry;

        if (next != NULL)
            *next++ = '\0';
        cut_comment(line);
        entry = trim(line);
        if (entry[0] == '@')
            status = ESPER_FAIL(ESPER_E_CONFIG, "tasks: %s: '%s': a file names no other file", path, entry);
        else if (entry[0] != '\0')
            status = add(tasks, "%s%s", n++ > 0 ? ", " : "", entry);
        line = next;
    }
    esper_mem_free(text);
    if (status == ESPER_OK && n == 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "tasks: %s: there is no entry in it", path);
    return status;
}

static const char *text_of(const char *name)
{
    for (int i = 0; lists[i].name != NULL; i++)
        if (strcmp(lists[i].name, name) == 0)
            return lists[i].text;
    return NULL;
}

/* Either files or names; every other entry as it was typed, so that what a record has is what can be given again. */
static esper_status expand(char tasks[ESPER_CONFIG_TEXT_CHARS], bool files)
{
    char given[ESPER_CONFIG_TEXT_CHARS], *at = given;

    memcpy(given, tasks, sizeof(given));
    tasks[0] = '\0';
    for (bool more = true; more;) {
        char *end = esper_task_lists_entry_end(at), typed[ESPER_CONFIG_TEXT_CHARS], *entry;
        const char *text;

        more = *end == ',';
        *end = '\0';
        snprintf(typed, sizeof(typed), "%s", at);
        entry = trim(typed);
        text = files ? NULL : text_of(entry);
        if (files && entry[0] == '@')
            ESPER_TRY(add_file(tasks, entry + 1));
        else
            ESPER_TRY(add(tasks, "%s%s", text != NULL && at != given ? " " : "", text != NULL ? text : at));
        if (more)
            ESPER_TRY(add(tasks, ","));
        at = end + 1;
    }
    return ESPER_OK;
}

esper_status esper_task_lists_expand(char tasks[ESPER_CONFIG_TEXT_CHARS])
{
    if (tasks[0] == '\0')
        return ESPER_OK;
    ESPER_TRY(expand(tasks, true)); /* names may be in them */
    return expand(tasks, false);
}
