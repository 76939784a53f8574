/* Internal. Settings given in vain. A flag that cannot have an effect on a run is refused; what the environment or a file says
 * is told by name, and the run goes on: these serve several tasks. What a run's record says was never given here. */
#ifndef ESPER_RUN_SETTINGS_H
#define ESPER_RUN_SETTINGS_H

#include "base/log.h"
#include "run/task.h"

/* What the table of settings asks of a run. Who decides is read off the configuration; a comparison knows that better. */
esper_config_use esper_settings_use(const esper_task *task, esper_config_job job, const esper_config *config);

/* Puts the text itself in the place of what the settings `host` and `add_blueprints` name: the name of a host, or a file, which may
 * change or go. Blueprints are added then. */
esper_status esper_settings_read_texts(esper_config *config);

/* Whether a list of keys, NULL at the end, has this one. */
bool esper_settings_list_has(const char *const *keys, const char *key);

/* Who decides about seeds where that is the policy, a name or a file: ESPER_CONFIG_BY_*. */
unsigned esper_settings_decider(const char *policy);

/* Judges what was asked for by the configuration in force, which may be `asked` itself. E_CONFIG names the flag, the reason and
 * what to do. Warnings go to the log, those of one reason in one line; of files only values that are not the task's anyway, as
 * a run's record names every key. */
esper_status esper_settings_check(const esper_config *asked, const esper_config *config, const esper_config_use *use,
                                  const esper_log *log);

/* Whether the program in `config` that decides about seeds, where there is one, was named by a flag or the environment. E_CONFIG
 * shows what the file names, and how to allow it. */
esper_status esper_settings_check_program(const esper_config *asked, const esper_config *config, const char *file);

/* The same as esper_settings_check for a run that is resumed: by its record, with what was asked for laid over it. What has no effect is withdrawn from
 * `asked`, so that it does not keep the run from going on. A record that cannot be read, or is of another kind of run, is left to
 * whoever resumes. */
esper_status esper_settings_check_resumed(const char *run, esper_config_job job, esper_config *asked,
                                          const esper_log *log);

#endif
