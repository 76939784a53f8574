/* Internal. Text that grows while it is written. The first failure is kept and makes every later call a no-op, so a writer
 * reads as a plain list of lines and looks at the status once, at the end. */
#ifndef ESPER_BASE_PAGE_H
#define ESPER_BASE_PAGE_H

#include "esper.h"

/* Begins as zeros. */
typedef struct esper_page {
    esper_status status;
    char        *text; /* zero-terminated; NULL as long as nothing was written */
    size_t       used, room;
} esper_page;

void esper_page_print(esper_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

void esper_page_fini(esper_page *page);

#endif
