/* Read before every file by scripts/lint: shows clang-tidy, which looks at one file at a time, that a described
 * failure is never ESPER_OK. */
#include "base/status.h"

#undef ESPER_FAIL
#define ESPER_FAIL(status, ...) (esper_fail((status), __VA_ARGS__), (status))
