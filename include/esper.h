/* esper.h: the one public header of Esper, valid as C99 and C++.
 *
 * Ownership: whoever opens closes; a pointer argument is borrowed for the call unless a function says otherwise.
 * Errors: a function that can fail returns esper_status (0 good, negative bad) and writes its outputs only on success;
 * esper_last_error() then tells, in words, what the calling thread's last failing call met.
 */
#ifndef ESPER_H
#define ESPER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ESPER_VERSION_MAJOR 0
#define ESPER_VERSION_MINOR 1
#define ESPER_VERSION_PATCH 0
#define ESPER_VERSION "0.1.0"

#if defined(__GNUC__)
#define ESPER_API __attribute__((visibility("default")))
#else
#define ESPER_API
#endif

/* Code ranges say what the caller must rebuild: to -99 nothing, to -199 the device's backend, to -299 the communicator. */
#define ESPER_STATUS_LIST(X)                                    \
    X(OK, 0, "ok")                                              \
    X(E_ARG, -1, "bad argument")                                \
    X(E_NOMEM, -2, "out of memory")                             \
    X(E_STATE, -3, "not allowed in this state")                 \
    X(E_UNSUPPORTED, -4, "backend cannot do this")              \
    X(E_IO, -5, "reading or writing failed")                    \
    X(E_FORMAT, -6, "file is damaged or of another format")     \
    X(E_CONFIG, -7, "bad configuration")                        \
    X(E_NOTFOUND, -8, "not found")                              \
    X(E_STOPPED, -9, "stopped by request")                      \
    X(E_DEVICE, -100, "device lost: reopen the backend")        \
    X(E_PEER, -200, "rank lost: rebuild the communicator")

typedef enum esper_status {
#define X(name, value, text) ESPER_##name = value,
    ESPER_STATUS_LIST(X)
#undef X
} esper_status;

/* The name ("ESPER_E_ARG") and the general meaning of a status. Static strings; any thread. */
ESPER_API const char *esper_status_name(esper_status status);
ESPER_API const char *esper_status_text(esper_status status);

/* What the last failing call on this thread met, in one sentence; "" when none has failed yet.
 * The string belongs to the thread and holds until its next failing call. */
ESPER_API const char *esper_last_error(void);

/* ESPER_VERSION of the library in use. */
ESPER_API const char *esper_version(void);

#ifdef __cplusplus
}
#endif

#endif
