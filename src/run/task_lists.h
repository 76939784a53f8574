/* Internal. Lists of tasks to learn on that have a name, or are in a file.
 *
 *     esper learn --tasks fast        esper learn --tasks @mine.txt        esper learn --tasks 'fast, photos drawn=2'
 *
 * An entry that is the name of a list stands for what is in it, @FILE for the entries of a file: one a line, '#' begins a
 * comment. What an entry may be else says run/curriculum.h. */
#ifndef ESPER_RUN_TASK_LISTS_H
#define ESPER_RUN_TASK_LISTS_H

#include "base/config.h"

typedef struct esper_tasks_named {
    const char *name, *about, *text;
} esper_tasks_named;

/* All lists; a NULL for a name at the end. */
const esper_tasks_named *esper_task_lists(void);

/* Puts what names and files stand for in their places, so that a record says what was learned on, whatever becomes of them. Other
 * entries stay as they are. E_CONFIG, or why a file cannot be read. */
esper_status esper_task_lists_expand(char tasks[ESPER_CONFIG_TEXT_CHARS]);

/* The end of the entry that begins here: a comma that is not between quotes, or the end of the text. */
char *esper_task_lists_entry_end(char *text);

#endif
