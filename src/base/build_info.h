/* Internal. Which build this is: for `esper info`, run records and benchmark figures. Static strings. */
#ifndef ESPER_BASE_BUILD_INFO_H
#define ESPER_BASE_BUILD_INFO_H

const char *esper_build_commit(void);   /* "1a2b3c4d5e6f", with "-dirty" after local changes; "unknown" outside git */
const char *esper_build_type(void);     /* "Release", "Debug", "Debug with thread sanitizers" */
const char *esper_build_compiler(void); /* "GNU 12.2.0 -O2 -g -DNDEBUG": kernels add the flags of their set */

#endif
