/* Internal. Communicators: how the ranks of one job reduce, share and wait for each other.
 *
 * One ops table, two kinds: `self` (a job of one, everything is the identity) and `mpi` (a module loaded at run time, so
 * that the tool runs where MPI is not installed). Every call is collective: all ranks make the same calls in the same order
 * with the same counts. Every call looks at the abort flag, and every wait at a deadline too: a rank that is gone or late
 * is an error (E_PEER), never a hang. After any failure the communicator is broken: further calls fail at once with the
 * first reason. Sums are taken in an order that depends on the world size alone, and every rank gets the same bits. */
#ifndef ESPER_DIST_COMM_H
#define ESPER_DIST_COMM_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "esper.h"

typedef struct esper_comm esper_comm;

typedef struct esper_comm_options {
    const char                  *kind;       /* "auto" (mpi when a launcher started this process), "self", "mpi" */
    double                       deadline_s; /* how long a rank may keep the others waiting; 0: for ever */
    double                       join_s;     /* the same until all have joined, in opening; 0: a minute */
    const volatile sig_atomic_t *abort;      /* or NULL; becomes non-zero: every call ends with E_STOPPED */
    const esper_log             *log;        /* or NULL; who keeps closing from being orderly is told there */
} esper_comm_options;

/* E_PEER names who has not joined within join_s, or ended meanwhile; E_CONFIG: whose build is another than rank 0's. Under a launcher without a usable MPI module this fails and says what to install: N jobs of one are not a job of N. */
esper_status esper_comm_open(const esper_comm_options *options, esper_comm **comm_out);
/* Orderly when nothing failed; else without waiting for anybody: the process should then exit non-zero soon, and the
 * launcher ends what is left of the job. Once in a process for mpi: it cannot be opened again. NULL is fine. */
void esper_comm_close(esper_comm *comm);

/* What is behind "self" or "mpi" here, in words ("Open MPI v4.1.4"); fails with the reason where it cannot be used. Starts
 * nothing. */
esper_status esper_comm_describe(const char *kind, char *text_out, size_t chars);

const char *esper_comm_name(const esper_comm *comm); /* "self", "mpi" */
int         esper_comm_rank(const esper_comm *comm);
int         esper_comm_size(const esper_comm *comm);
int         esper_comm_neighbours(const esper_comm *comm); /* ranks on this machine, this one included */

/* Whether a call has failed. */
bool esper_comm_is_broken(const esper_comm *comm);

/* Ranks that have ended without leaving the job, "rank 1, rank 3"; returns how many. Only those of this machine are seen. */
int esper_comm_ended(const esper_comm *comm, char *text_out, size_t chars);

/* In place; the same result on every rank. */
esper_status esper_comm_sum_f32(esper_comm *comm, float *values, size_t count);
esper_status esper_comm_sum_f64(esper_comm *comm, double *values, size_t count);
esper_status esper_comm_or_u64(esper_comm *comm, uint64_t *words, size_t count);

esper_status esper_comm_broadcast(esper_comm *comm, void *bytes, size_t count, int root);
/* all_out has size * count bytes, in order of ranks. */
esper_status esper_comm_gather(esper_comm *comm, const void *mine, size_t count, void *all_out);
esper_status esper_comm_barrier(esper_comm *comm);

#endif
