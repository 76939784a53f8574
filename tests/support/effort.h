/* Internal to the tests. How much of the same is enough: a sanitizer sees in the first steps what it sees in the hundredth, and
 * takes up to twenty times as long over each. What only many steps show is looked at in the plain build. */
#ifndef ESPER_TESTS_EFFORT_H
#define ESPER_TESTS_EFFORT_H

#include <stdbool.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif

/* A count: of steps, seeds, repetitions. */
static inline int effort(int plain, int sanitized)
{
    return SANITIZED ? sanitized : plain;
}

#endif
