/* Internal. Numbers as people read them. */
#ifndef ESPER_UI_TEXT_H
#define ESPER_UI_TEXT_H

#include <stddef.h>
#include <stdint.h>

enum { ESPER_TEXT_CHARS = 32 };

/* Each writes into `text` and returns it. */
const char *esper_text_count(int64_t count, char text[ESPER_TEXT_CHARS]);     /* 1,234,567 */
const char *esper_text_bytes(double bytes, char text[ESPER_TEXT_CHARS]);      /* 12.3 MiB */
const char *esper_text_duration(
    double seconds, char text[ESPER_TEXT_CHARS]); /* 1:02:03, 2:13 or 4.2 s; "?" when negative or no number */
const char *esper_text_loss(double loss, char text[ESPER_TEXT_CHARS]);        /* 0.1235, 2.10e+09, nan */
const char *esper_text_percent(double value, char text[ESPER_TEXT_CHARS]);    /* 84.31 %; "-" for what is not finite */
const char *esper_text_flops(double flops, char text[ESPER_TEXT_CHARS]);      /* 1.62 MFLOP */

#endif
