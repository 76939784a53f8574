/* Internal. What a program that decides may answer (docs/policy-protocol.md). */
#ifndef ESPER_POLICY_COMMAND_H
#define ESPER_POLICY_COMMAND_H

#include "policy/policy.h"

enum { ESPER_COMMAND_MEMORY_CHARS = 16384 }; /* of the program's memory, terminator included */

/* Reads an answer, a line without its end, to that view: a decision that is legal now. Where it says what to remember, that is
 * written to `memory` and *remembers_out becomes true; they stay as they are otherwise, and when it fails. */
esper_status esper_command_take_answer(const char *line, size_t bytes, const esper_policy_view *view,
                                       esper_decision *decision_out, char memory[ESPER_COMMAND_MEMORY_CHARS],
                                       bool *remembers_out);

#endif
