/* Internal. What a kind of communicator gives to comm.c, which keeps what all kinds have in common: the first failure, and
 * that nothing is tried after it.
 *
 * A kind may live in a module (libesper-mpi.so) that is loaded at run time. It then shares no symbol with the engine:
 * memory and words for failures pass through the records below, and ESPER_COMM_ABI tells whether both mean the same. */
#ifndef ESPER_DIST_KIND_H
#define ESPER_DIST_KIND_H

#include "dist/comm.h"
#include "dist/launch.h"

enum { ESPER_COMM_ABI = 3, ESPER_COMM_WHY_CHARS = 400, ESPER_COMM_BUILD_CHARS = 192 };

#define ESPER_COMM_MODULE_ENTRY "esper_comm_module" /* an esper_comm_kind of that name is all a module exports */

/* What a kind's own record begins with. Functions that fail write `why`, and name in it who is lost. */
typedef struct esper_comm_link {
    int  rank, size;
    int  n_here; /* ranks on this machine */
    char why[ESPER_COMM_WHY_CHARS];
} esper_comm_link;

/* How a link is to be. */
typedef struct esper_comm_start {
    const esper_comm_options *options;
    const esper_launcher     *launch;
    const char               *build; /* in words, below ESPER_COMM_BUILD_CHARS: must be the same on all ranks */
    void *(*alloc)(size_t bytes); /* base/mem.h */
    void (*release)(void *block);
    char *why; /* ESPER_COMM_WHY_CHARS, for a failure to open */
} esper_comm_start;

typedef enum esper_comm_number { ESPER_COMM_F32, ESPER_COMM_F64 } esper_comm_number;

typedef struct esper_comm_kind {
    int         abi;
    const char *name;
    void (*about)(char *text, size_t chars); /* "Open MPI v4.1.4"; anytime */
    esper_status (*open)(const esper_comm_start *start, esper_comm_link **link_out);
    /* not orderly: without waiting. Whoever is waited for in vain is named in why (ESPER_COMM_WHY_CHARS); else it is empty. */
    void (*close)(esper_comm_link *link, bool orderly, char *why);
    int (*ended)(const esper_comm_link *link, char *text, size_t chars); /* esper_comm_ended */
    /* called in jobs of several ranks alone: for one they are the identity */
    esper_status (*sum)(esper_comm_link *link, void *values, size_t count, esper_comm_number number);
    esper_status (*or_u64)(esper_comm_link *link, uint64_t *words, size_t count);
    esper_status (*broadcast)(esper_comm_link *link, void *bytes, size_t count, int root);
    esper_status (*gather)(esper_comm_link *link, const void *mine, size_t count, void *all_out);
    esper_status (*barrier)(esper_comm_link *link);
} esper_comm_kind;

extern const esper_comm_kind esper_comm_self;

#endif
