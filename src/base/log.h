/* Internal. Levelled logging to standard error (or any stream). Messages for people; events (event.h) are for machines. */
#ifndef ESPER_BASE_LOG_H
#define ESPER_BASE_LOG_H

#include <stdio.h>

#define ESPER_LOG_LEVEL_LIST(X) X(ERROR, "error") X(WARN, "warn") X(INFO, "info") X(DEBUG, "debug")

typedef enum esper_log_level {
#define X(name, text) ESPER_LOG_##name,
    ESPER_LOG_LEVEL_LIST(X)
#undef X
} esper_log_level;

typedef struct esper_log {
    esper_log_level level;  /* messages above it are dropped */
    FILE           *stream; /* borrowed; NULL = silent */
} esper_log;

/* Writes one line, "esper: warn: ..." (no level name for info). A NULL log is silent. Any thread. */
void esper_log_write(const esper_log *log, esper_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define esper_log_warn(log, ...)  esper_log_write((log), ESPER_LOG_WARN, __VA_ARGS__)
#define esper_log_debug(log, ...) esper_log_write((log), ESPER_LOG_DEBUG, __VA_ARGS__)

#endif
