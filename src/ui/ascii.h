/* Internal. For terminals whose characters are not UTF-8: streams that write ASCII and nothing else, whatever is printed. */
#ifndef ESPER_UI_ASCII_H
#define ESPER_UI_ASCII_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { ESPER_ASCII_CHARS = 16 };

/* What stands for the character at `at`, of which n > 0 bytes may be read: itself, or for what is beyond ASCII, for controls and
 * for bytes that are no UTF-8 one of \u00fc, \x1b and \xfc; with two surrogates beyond \uffff, as JSON has it. Returns how many
 * bytes it took. */
size_t esper_ascii_escape(const uint8_t *at, size_t n, char text[ESPER_ASCII_CHARS]);

/* A stream that writes to `fd`, with characters beyond ASCII (in the names of files, in words of other programs) and bytes that
 * are no UTF-8 as above. Controls stay: the live view draws by them. Lines are written at once. NULL for want of memory. fclose
 * leaves `fd` open. */
FILE *esper_ascii_open(int fd);

#endif
