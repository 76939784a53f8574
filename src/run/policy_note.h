/* Internal. Where a run is not like those that a learned policy was trained in. Nothing here keeps a policy from deciding: what
 * does is found by esper_learned_check. */
#ifndef ESPER_RUN_POLICY_NOTE_H
#define ESPER_RUN_POLICY_NOTE_H

#include "policy/learned.h"
#include "run/task.h"

enum { ESPER_POLICY_NOTE_CHARS = 512, ESPER_POLICY_FLAGS_CHARS = 1024 };

/* The settings that learning recorded in the policy's file; false: it did not, or they are unknown here. */
bool esper_policy_settings(const esper_learned_file *file, esper_config *was_out);

/* "the policy was trained with channels = 8, here 12; with ...": gates, length and settings that differ; "" = nothing does. */
void esper_policy_note(const esper_learned_file *file, const esper_config *config, char text[ESPER_POLICY_NOTE_CHARS]);

/* " --epochs=3 --max-steps=2": what `esper grow TASK` is to be told, so that nothing differs from the training of the policy in
 * that file; "" = nothing, or nobody knows. */
void esper_policy_flags(const char *path, const esper_task *task, char text[ESPER_POLICY_FLAGS_CHARS]);

#endif
