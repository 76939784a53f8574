/* Internal. `esper info data`: what is in a data set, and what growing on it would begin with. */
#ifndef ESPER_CLI_INFO_DATA_H
#define ESPER_CLI_INFO_DATA_H

#include "run/task.h"

/* `word` is what was typed for the task. */
esper_status esper_info_data(const char *word, const esper_task *task, const esper_config *config, bool as_json);

#endif
