/* Internal. For terminals whose characters are not UTF-8: streams that write ASCII and nothing else, whatever is printed. */
#ifndef ESPER_UI_ASCII_H
#define ESPER_UI_ASCII_H

#include <stdio.h>

/* A stream that writes to `fd`. Characters beyond ASCII (in the names of files, in words of other programs) become \u00fc,
 * with two surrogates beyond \uffff, as JSON has it; bytes that are no UTF-8 become \xfc. Lines are written at once. NULL for
 * want of memory. fclose leaves `fd` open. */
FILE *esper_ascii_open(int fd);

#endif
