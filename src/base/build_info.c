/* Which build this is. The only file that includes the header the build writes, so that a new commit recompiles no other. */
#include "base/build_info.h"

#if __has_include("generated/build_info.h")
#include "generated/build_info.h"
#else /* compiled by hand, outside CMake */
#define ESPER_BUILD_COMMIT   "unknown"
#define ESPER_BUILD_TYPE     "unknown"
#define ESPER_BUILD_COMPILER __VERSION__
#endif

const char *esper_build_commit(void)
{
    return ESPER_BUILD_COMMIT;
}

const char *esper_build_type(void)
{
    return ESPER_BUILD_TYPE;
}

const char *esper_build_compiler(void)
{
    return ESPER_BUILD_COMPILER;
}
