/* Text that grows while it is written. */
#include "base/page.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/status.h"

enum { PAGE_STEP = 4096 };

/* Room for n more characters and the terminator. */
static bool make_room(esper_page *page, size_t n)
{
    size_t room = page->used + n + 1;
    char *larger;

    assert(page->text == NULL || page->used < page->room);
    if (page->text != NULL && room <= page->room)
        return true;
    room += PAGE_STEP + page->used / 2;
    larger = esper_mem_grow(page->text, room);
    if (larger == NULL) {
        page->status = ESPER_FAIL(ESPER_E_NOMEM, "text of %zu characters", room);
        return false;
    }
    page->text = larger;
    page->room = room;
    return true;
}

void esper_page_print(esper_page *page, const char *format, ...)
{
    va_list args;
    int n;

    if (page->status != ESPER_OK)
        return;
    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !make_room(page, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(page->text + page->used, (size_t)n + 1, format, args);
    va_end(args);
    page->used += (size_t)n;
}

void esper_page_fini(esper_page *page)
{
    esper_mem_free(page->text);
    *page = (esper_page){0};
}
