/* Internal. Words of commands that people are to type: quoted where a shell would take them apart. */
#ifndef ESPER_BASE_SHELL_H
#define ESPER_BASE_SHELL_H

#include <stdbool.h>

enum { ESPER_SHELL_CHARS = 5000 };

/* Writes one word into `quoted` and returns it: as it is where that is safe, 'between quotes' where there are blanks or
 * characters with a meaning, and as $'\303\274' where there are control characters, bytes that are no UTF-8 or, when `ascii`,
 * any beyond ASCII. A text that has no room even so (of more than 1,240 bytes) is returned as it is. */
const char *esper_shell_quote(const char *text, bool ascii, char quoted[ESPER_SHELL_CHARS]);

#endif
