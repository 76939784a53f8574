/* Internal. The files of web/, as part of the program: the page of `esper serve`, and colours that reports share with it. */
#ifndef ESPER_UI_WEB_FILES_H
#define ESPER_UI_WEB_FILES_H

#include <stddef.h>
#include <stdint.h>

typedef struct esper_web_file {
    const char    *name; /* "app.js" */
    const uint8_t *bytes; /* a zero follows them */
    size_t         n_bytes;
} esper_web_file;

/* NULL: there is none of that name. */
const esper_web_file *esper_web_file_find(const char *name);

/* "text/javascript; charset=utf-8", by the name's ending. */
const char *esper_web_file_type(const char *name);

/* Names this build's files, for caches: 16 hexadecimal digits in quotes. */
const char *esper_web_file_tag(void);

#endif
