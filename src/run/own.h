/* Internal. Data of people's own: a path where a task's name is expected.
 *
 * A path becomes one of the tasks for such data, with the path as its setting `data`; so a run's record holds all that is needed to
 * go on, to be repeated or evaluated. What fits the data (host, batch, length) is chosen by a rule that looks at sizes and numbers
 * alone, as settings of the task: whoever asks for something else gets that. */
#ifndef ESPER_RUN_OWN_H
#define ESPER_RUN_OWN_H

#include "run/task.h"

/* The preset that such settings come from. */
#define ESPER_OWN_PRESET "your data"

/* The task that a word stands for: its name, or a path that leads to data; then config->data is set, as if by a flag. A task's name
 * wins over a folder of the same name: "./fashion" is the folder. */
esper_status esper_own_find(const char *word, esper_config *config, const esper_task **task_out);

/* Lays what fits the data over the task's settings. Nothing for other tasks, and before the data is named. */
esper_status esper_own_choose(const esper_task *task, esper_config_job job, esper_config *config);

enum { ESPER_OWN_FEW_CHARS = 512 };

/* Whether there are so few samples of a class that what is learned and measured on them is chance; if so, words about the class that
 * has the fewest. */
bool esper_own_is_few(const esper_dataset *data, char words_out[ESPER_OWN_FEW_CHARS]);

#endif
