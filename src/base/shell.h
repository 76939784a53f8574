/* Internal. Words of commands that people are to type: quoted where a shell would take them apart. */
#ifndef ESPER_BASE_SHELL_H
#define ESPER_BASE_SHELL_H

#include <stdbool.h>

enum { ESPER_SHELL_CHARS = 5000 };

/* Whether words keep to ASCII from now on; they do not at first. One switch for the process, like the locale it stands for: who
 * finds out what the terminal can show (ui/terminal.h) says so once, before there are threads. */
void esper_shell_keep_ascii(bool ascii);

/* Writes one word into `quoted` and returns it: as it is where that is safe, 'between quotes' where there are blanks or
 * characters with a meaning, and as $'\303\274' where there are control characters, bytes that are no UTF-8 or, where words keep
 * to ASCII, any beyond it. A text that has no room even so (of more than 1,240 bytes) is returned as it is. */
const char *esper_shell_quote(const char *text, char quoted[ESPER_SHELL_CHARS]);

/* The same for a path: one that begins with a minus, and would be taken for an option, gets ./ before it. */
const char *esper_shell_quote_path(const char *path, char quoted[ESPER_SHELL_CHARS]);

#endif
