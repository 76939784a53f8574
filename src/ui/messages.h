/* Internal. Standard error: lines for people, with words in them that come from anywhere. */
#ifndef ESPER_UI_MESSAGES_H
#define ESPER_UI_MESSAGES_H

#include <stdbool.h>
#include <stdio.h>

/* A stream whose lines go to `under`, which it borrows and buffers, but for what would command a terminal: controls, and bytes
 * that are no UTF-8, become \x1b and the like; with `ascii` so does everything beyond ASCII (ui/ascii.h). On a terminal lines
 * are broken as by esper_terminal_print. NULL for want of memory. */
FILE *esper_messages_open(FILE *under, bool ascii);

#endif
