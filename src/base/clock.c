/* The monotonic clock. */
#include "base/clock.h"

#include <time.h>

uint64_t esper_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

double esper_clock_seconds(void)
{
    return (double)esper_clock_ns() * 1e-9;
}
