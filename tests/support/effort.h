/* Internal to the tests. How much of the same is enough: a sanitizer sees in the first steps what it sees in the hundredth, and
 * takes up to twenty times as long over each. What only many steps show is looked at in the plain build, and under sanitizers
 * where ESPER_TEST_FULL is set, as `make soak` does. */
#ifndef ESPER_TESTS_EFFORT_H
#define ESPER_TESTS_EFFORT_H

#include <stdbool.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif

static inline bool is_brief(void)
{
    return SANITIZED && getenv("ESPER_TEST_FULL") == NULL;
}

/* A count: of steps, seeds, repetitions. */
static inline int effort(int full, int brief)
{
    return is_brief() ? brief : full;
}

#endif
