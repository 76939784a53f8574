/* Internal. Waiting for other ranks without ever hanging: what happens between two looks at what is waited for.
 *
 * At first it spins, since on an idle machine the answer is a few hundred nanoseconds away; then it gives the core away,
 * since there may be more ranks than cores; after a millisecond it sleeps between looks. The abort flag and the clock are
 * looked at every 64 spins, and from then on each time. */
#ifndef ESPER_DIST_MPI_WAIT_H
#define ESPER_DIST_MPI_WAIT_H

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/clock.h"

typedef enum esper_wait_end {
    ESPER_WAIT_ON,    /* look again */
    ESPER_WAIT_LONG,  /* the same; it has been a while, look also whether those waited for are still there */
    ESPER_WAIT_LATE,  /* the deadline has passed */
    ESPER_WAIT_ABORT, /* the abort flag is up */
} esper_wait_end;

enum {
    ESPER_WAIT_SPINS = 1024,
    ESPER_WAIT_LOOK = 64,
    ESPER_WAIT_PATIENCE_NS = 1000000,
    ESPER_WAIT_SLEEP_NS = 20000,
};

/* Of a link, and the same for all its waits. */
typedef struct esper_wait_rules {
    const volatile sig_atomic_t *abort;
    uint64_t                     deadline_ns; /* 0 = none */
    unsigned                     n_spins;     /* ESPER_WAIT_SPINS, or less where ranks share cores */
} esper_wait_rules;

/* Of one wait; begins as {0}. */
typedef struct esper_wait {
    uint64_t began_ns;
    unsigned n_looks;
} esper_wait;

static inline void esper_wait_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* The clock and the flag; and sleeping, when it has been long. */
static inline esper_wait_end esper_wait_slow(const esper_wait_rules *rules, esper_wait *wait)
{
    uint64_t now = esper_clock_ns();

    if (rules->abort != NULL && *rules->abort)
        return ESPER_WAIT_ABORT;
    if (wait->began_ns == 0)
        wait->began_ns = now;
    if (rules->deadline_ns != 0 && now - wait->began_ns > rules->deadline_ns)
        return ESPER_WAIT_LATE;
    if (wait->n_looks < rules->n_spins)
        return ESPER_WAIT_ON;
    if (now - wait->began_ns < ESPER_WAIT_PATIENCE_NS) {
        sched_yield();
        return ESPER_WAIT_ON;
    }
    nanosleep(&(struct timespec){.tv_nsec = ESPER_WAIT_SLEEP_NS}, NULL);
    return ESPER_WAIT_LONG;
}

static inline esper_wait_end esper_wait_once(const esper_wait_rules *rules, esper_wait *wait)
{
    if (++wait->n_looks < rules->n_spins && wait->n_looks % ESPER_WAIT_LOOK != 0) {
        esper_wait_relax();
        return ESPER_WAIT_ON;
    }
    return esper_wait_slow(rules, wait);
}

#endif
