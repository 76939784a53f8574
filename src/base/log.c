/* Levelled logging. A line is composed first and written with one call, so that threads do not mix their lines. */
#include "base/log.h"

#include <assert.h>
#include <stdarg.h>

static const char *const level_names[] = {
#define X(name, text) text,
    ESPER_LOG_LEVEL_LIST(X)
#undef X
};

void esper_log_write(const esper_log *log, esper_log_level level, const char *format, ...)
{
    char text[1024];
    va_list args;

    assert((unsigned)level < sizeof(level_names) / sizeof(level_names[0]));
    if (log == NULL || log->stream == NULL || level > log->level)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (level == ESPER_LOG_INFO)
        fprintf(log->stream, "esper: %s\n", text);
    else
        fprintf(log->stream, "esper: %s: %s\n", level_names[level], text);
    fflush(log->stream);
}
