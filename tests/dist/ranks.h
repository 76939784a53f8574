/* Internal. A test program that is one rank of a job: alone it is a job of one; tests/dist/test_ranks.sh starts several. */
#ifndef ESPER_TESTS_DIST_RANKS_H
#define ESPER_TESTS_DIST_RANKS_H

#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "dist/comm.h"

/* ESPER_TEST_COMM says which kind is to be tested ("self" unless said), ESPER_TEST_RANKS how many there must be. */
static inline esper_status ranks_open(double deadline_s, const volatile sig_atomic_t *abort, esper_comm **comm_out)
{
    const char *kind = getenv("ESPER_TEST_COMM");
    esper_comm_options options = {.kind = kind != NULL ? kind : "self", .deadline_s = deadline_s, .abort = abort};

    return esper_comm_open(&options, comm_out);
}

static inline int ranks_expected(void)
{
    const char *n = getenv("ESPER_TEST_RANKS");

    return n != NULL ? (int)strtol(n, NULL, 10) : 1;
}

/* For the setup of a group of tests: 0, or it has said what is wrong. */
static inline int ranks_begin(esper_comm **comm_out, int *rank_out, int *size_out)
{
    if (ranks_open(30.0, NULL, comm_out) != ESPER_OK) {
        printf("%s\n", esper_last_error());
        return 1;
    }
    *rank_out = esper_comm_rank(*comm_out);
    *size_out = esper_comm_size(*comm_out);
    if (*size_out == ranks_expected())
        return 0;
    printf("%d ranks, expected %d\n", *size_out, ranks_expected());
    return 1;
}

#endif
