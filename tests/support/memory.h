/* Internal. The backend's memory, read and written by tests: a failure fails the test. */
#ifndef ESPER_TESTS_MEMORY_H
#define ESPER_TESTS_MEMORY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tensor/backend.h"

static inline void memory_read(esper_backend *backend, void *to, const void *from, size_t bytes)
{
    if (esper_backend_read(backend, to, from, bytes) != ESPER_OK)
        fail_msg("%s", esper_last_error());
}

static inline void memory_write(esper_backend *backend, void *to, const void *from, size_t bytes)
{
    if (esper_backend_copy_in(backend, NULL, to, from, bytes) != ESPER_OK)
        fail_msg("%s", esper_last_error());
}

static inline float memory_peek(esper_backend *backend, const float *at)
{
    float value;

    memory_read(backend, &value, at, sizeof(value));
    return value;
}

static inline void memory_poke(esper_backend *backend, float *at, float value)
{
    memory_write(backend, at, &value, sizeof(value));
}

/* For tests of everything around the numbers: *state is a backend that computes nothing. */
static inline int memory_open_null(void **state)
{
    esper_backend *backend;

    if (esper_backend_open("null", NULL, &backend) != ESPER_OK)
        return -1;
    *state = backend;
    return 0;
}

static inline int memory_close_null(void **state)
{
    esper_backend_close(*state);
    return 0;
}

/* For the end of a group of tests: everything was given back. */
static inline int memory_is_given_back(void **state)
{
    esper_mem_stats stats;

    (void)state;
    esper_mem_stats_get(&stats);
    return stats.n_live == 0 ? 0 : -1;
}

#endif
