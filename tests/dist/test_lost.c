/* A job in which one rank fails the others, each time in another way. Every survivor must notice in time, know who, fail at
 * once from then on, and leave without waiting. tests/dist/test_lost.sh runs it: a survivor for whom all of this held
 * writes what it was told to survivor.RANK. Alone there is nobody to lose. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "dist/ranks.h"

enum { LOST = 1, N = 1000 };

/* How long ranks wait for each other: briefly where it is seen that they do, else so long that nobody ever waits to its end.
 * Any machine may be busy, so what must not wait has a second or more for it. */
static double deadline_s = 20.0;
static const double grace_s = 5.0;

static volatile sig_atomic_t abort_flag;

static void on_alarm(int number)
{
    (void)number;
    abort_flag = 1;
}

static void rest(double seconds)
{
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
        NULL);
}

static int bad(int rank, const char *what)
{
    printf("FAILED: rank %d: %s: %s\n", rank, what, esper_last_error());
    fflush(stdout);
    rest(0.5);
    _exit(1);
}

/* How the lost rank goes. Does not return. */
static void get_lost(esper_comm *comm, const char *how)
{
    char bytes[8] = "", all[64 * 8];

    if (strcmp(how, "exit") == 0)
        _exit(3);
    if (strcmp(how, "stop") == 0)
        raise(SIGSTOP);
    if (strcmp(how, "kill") == 0)
        raise(SIGKILL);
    abort_flag = strcmp(how, "told") == 0;
    if (strcmp(how, "other") == 0 || strcmp(how, "told") == 0) /* told: it makes no call any more, this one neither */
        (void)esper_comm_gather(comm, bytes, sizeof(bytes), all);
    if (strcmp(how, "close") == 0)
        esper_comm_close(comm);
    rest(40.0); /* never, other, told, close: does not come again */
    _exit(3);
}

/* The first call that the lost rank does not come to. */
static double call_in_vain(esper_comm *comm, esper_status *status_out)
{
    static float values[N];
    double began = esper_clock_seconds();

    *status_out = esper_comm_sum_f32(comm, values, N);
    return esper_clock_seconds() - began;
}

static esper_status expected_status(const char *how, bool shared)
{
    if (strcmp(how, "abort") == 0 || strcmp(how, "told") == 0)
        return ESPER_E_STOPPED;
    return strcmp(how, "other") == 0 && shared ? ESPER_E_STATE : ESPER_E_PEER;
}

/* The lost rank is known; where memory is shared all but waiting for it is noticed at once. */
static void check_failure(esper_comm *comm, const char *how, bool shared, double took, esper_status status)
{
    int rank = esper_comm_rank(comm);
    bool is_late = strcmp(how, "never") == 0 || strcmp(how, "stop") == 0;
    char reason[400], name[32];

    if (status != expected_status(how, shared) && !(status == ESPER_E_PEER && !shared))
        bad(rank, esper_status_name(status));
    if (took > (is_late ? deadline_s : 0.0) + grace_s)
        bad(rank, "took too long");
    if (is_late && took < deadline_s * 0.9)
        bad(rank, "did not wait for the deadline");
    snprintf(reason, sizeof(reason), "%s", esper_last_error());
    snprintf(name, sizeof(name), "rank %d", LOST);
    if ((shared || status == ESPER_E_PEER) && strstr(reason, name) == NULL)
        bad(rank, "the lost rank is not named");
}

static void check_broken(esper_comm *comm, esper_status first)
{
    double began = esper_clock_seconds();
    char reason[400];
    float value = 1.0f;

    snprintf(reason, sizeof(reason), "%s", esper_last_error());
    for (int k = 0; k < 3; k++)
        if (!esper_comm_is_broken(comm) || esper_comm_barrier(comm) != first ||
            strcmp(reason, esper_last_error()) != 0 || esper_comm_sum_f32(comm, &value, 1) != first ||
            strcmp(reason, esper_last_error()) != 0)
            bad(esper_comm_rank(comm), "a later call does not give the first reason");
    if (esper_clock_seconds() - began > 2.0) /* six of them, and none waits; this machine may be busy */
        bad(esper_comm_rank(comm), "later calls wait");
}

/* The launcher ends everybody once somebody has ended: waits until the others have written theirs, too. */
static void write_survivor(int rank, int size, double took, const char *reason)
{
    double began = esper_clock_seconds();
    char path[32], unfinished[40];
    FILE *file;

    snprintf(path, sizeof(path), "survivor.%d", rank);
    snprintf(unfinished, sizeof(unfinished), "%s.tmp", path);
    file = fopen(unfinished, "w");
    if (file == NULL || fprintf(file, "%.3f s: %s\n", took, reason) < 0 || fclose(file) != 0 ||
        rename(unfinished, path) != 0)
        bad(rank, path);
    for (int other = 0; other < size; other++) {
        snprintf(path, sizeof(path), "survivor.%d", other);
        while (other != LOST && access(path, F_OK) != 0 && esper_clock_seconds() - began < 10.0)
            rest(0.01);
    }
}

/* A job of one waits for nobody: neither the flag nor the deadline means anything to it. */
static int check_alone(void)
{
    float value = 1.0f;
    esper_comm *comm;

    abort_flag = 1;
    if (ranks_open(1e-9, &abort_flag, &comm) != ESPER_OK || esper_comm_barrier(comm) != ESPER_OK ||
        esper_comm_sum_f32(comm, &value, 1) != ESPER_OK)
        bad(0, "alone");
    if (esper_comm_is_broken(comm) || value != 1.0f)
        bad(0, "alone, and something is lost");
    esper_comm_close(comm);
    esper_comm_close(NULL);
    return 0;
}

int main(int argc, char **argv)
{
    const char *shared_text = getenv("ESPER_MPI_SHARED");
    bool shared = shared_text == NULL || strcmp(shared_text, "0") != 0;
    const char *how = argc > 1 ? argv[1] : "";
    float values[N] = {0};
    char reason[400];
    esper_status status;
    esper_comm *comm;
    double took, began;
    int rank, size;

    if (argc < 2)
        return check_alone();
    if (strcmp(how, "never") == 0 || strcmp(how, "stop") == 0 ||
        strcmp(how, "close") == 0) /* by messages it asks then */
        deadline_s = 0.9;
    if (ranks_open(deadline_s, &abort_flag, &comm) != ESPER_OK)
        bad(-1, "open");
    rank = esper_comm_rank(comm);
    size = esper_comm_size(comm);
    for (int k = 0; k < 20; k++)
        if (esper_comm_sum_f32(comm, values, N) != ESPER_OK)
            bad(rank, "before anything happened");
    if (rank == LOST)
        get_lost(comm, how);
    if (strcmp(how, "abort") == 0 || strcmp(how, "told") == 0) {
        signal(SIGALRM, on_alarm);
        ualarm(900000, 0); /* by then it waits in the call */
    }
    took = call_in_vain(comm, &status);
    check_failure(comm, how, shared, took, status);
    check_broken(comm, status);
    snprintf(reason, sizeof(reason), "%s", esper_last_error());
    began = esper_clock_seconds();
    esper_comm_close(comm);
    if (esper_clock_seconds() - began > 2.0)
        bad(rank, "close waits");
    write_survivor(rank, size, took, reason);
    return 1;
}
