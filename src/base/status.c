/* Statuses and the description of the last failure.
 *
 * The description is kept per thread, like errno: it is the one piece of state that does not hang from a handle, because
 * the call that fails may be the one that should have made the handle. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ERROR_CHARS = 1024 };

static _Thread_local char last_error[ERROR_CHARS];

esper_status esper_fail(esper_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(last_error, sizeof(last_error), format, args);
    va_end(args);
    return status;
}

esper_status esper_fail_within(esper_status status, const char *format, ...)
{
    char inner[ERROR_CHARS];
    va_list args;
    size_t used;

    memcpy(inner, last_error, sizeof(inner));
    va_start(args, format);
    vsnprintf(last_error, sizeof(last_error), format, args);
    va_end(args);
    used = strlen(last_error);
    snprintf(last_error + used, sizeof(last_error) - used, "%.*s", (int)(sizeof(last_error) - used - 1), inner);
    return status;
}

const char *esper_last_error(void)
{
    return last_error;
}

const char *esper_status_name(esper_status status)
{
    switch (status) {
#define X(name, value, text) \
    case ESPER_##name:       \
        return "ESPER_" #name;
        ESPER_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

const char *esper_status_text(esper_status status)
{
    switch (status) {
#define X(name, value, text) \
    case ESPER_##name:       \
        return text;
        ESPER_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

const char *esper_version(void)
{
    return ESPER_VERSION;
}
