/* Internal. A program that is asked and answers in lines, over its standard input and output.
 *
 * It is started by /bin/sh in a process group of its own; its standard error is ours. Every wait has a deadline on the
 * monotonic clock. However it ends, its group is ended and it is collected when the child is closed. */
#ifndef ESPER_POLICY_CHILD_H
#define ESPER_POLICY_CHILD_H

#include <stddef.h>
#include <sys/types.h>

#include "esper.h"

enum { ESPER_CHILD_LINE_BYTES = 256 << 10 }; /* the longest answer, its line end included */

typedef struct esper_child esper_child;

/* E_IO when there is no shell to start. A command that does not exist shows when it is asked: the shell has ended then. */
esper_status esper_child_open(const char *command, esper_child **child_out);

/* Ends the program: its input ends, and after half a second each, or at once for one that failed, SIGTERM and SIGKILL go to
 * its group. */
void esper_child_close(esper_child *child);

/* Writes the text (with its line end) and reads one line, without its end; it belongs to the child until the next call.
 * E_IO: no line within the deadline, or the program ended or closed its pipes; E_FORMAT: the line is too long. Nothing
 * more can be asked after a failure (E_STATE). */
esper_status esper_child_ask(esper_child *child, const char *text, size_t bytes, int deadline_ms, const char **line_out,
                             size_t *line_bytes_out);

#endif
