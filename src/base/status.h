/* Internal. How a failure is described once, where it is discovered, and passed up in silence. */
#ifndef ESPER_BASE_STATUS_H
#define ESPER_BASE_STATUS_H

#include "esper.h"

/* Describes the failure for esper_last_error() and yields the status: return ESPER_FAIL(ESPER_E_ARG, "slot %s", name); */
#define ESPER_FAIL(status, ...) esper_fail((status), __VA_ARGS__)

/* With nothing to unwind: passes a failure up as it is. The callee has already said why. */
#define ESPER_TRY(call)                     \
    do {                                    \
        esper_status try_status_ = (call);  \
        if (try_status_ != ESPER_OK)        \
            return try_status_;             \
    } while (0)

esper_status esper_fail(esper_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts words before the description of a failure that is being passed up: "runs/x/last.safetensors: " + "truncated". */
esper_status esper_fail_within(esper_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
