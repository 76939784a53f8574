/* A job that some of its ranks do not join. Every other rank must notice in time and know who: it writes what it was told to
 * told.RANK, for tests/dist/test_join.sh, which runs it. Alone there is nobody to miss.
 *   usage: test_join RANK:HOW [RANK:HOW]     HOW: never, exit, stop: before it joins; stop-within, kill-within: while it does;
 *   nap: it joins as the others do, and sleeps over its deadline, deaf to the launcher */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "dist/ranks.h"

static const double join_s = 1.5, grace_s = 8.0; /* the machine may be busy */

static volatile sig_atomic_t told_to_end;
static int signal_within;

static void on_term(int number)
{
    (void)number;
    told_to_end = 1;
}

static void rest(double seconds)
{
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
        NULL);
}

static void on_alarm(int number)
{
    (void)number;
    if (signal_within != 0)
        raise(signal_within);
    else
        rest(0.9);
}

/* What this rank does before it joins. The others come later, so that whoever is struck a moment after it began to join has
 * come, and is not through. */
static void prepare(const char *how)
{
    if (strcmp(how, "exit") == 0)
        _exit(0);
    if (strcmp(how, "stop") == 0)
        raise(SIGSTOP);
    if (strcmp(how, "never") == 0)
        rest(40.0);
    if (strcmp(how, "nap") == 0)
        signal(SIGTERM, SIG_IGN);
    else if (how[0] != '\0')
        signal_within = strcmp(how, "stop-within") == 0 ? SIGSTOP : SIGKILL;
    if (signal_within == 0)
        rest(1.2);
    if (how[0] != '\0') {
        signal(SIGALRM, on_alarm);
        ualarm(800000, 0);
    }
}

int main(int argc, char **argv)
{
    esper_comm_options options = {.kind = "auto", .deadline_s = 30.0, .join_s = join_s, .abort = &told_to_end};
    const char *rank_text = getenv("OMPI_COMM_WORLD_RANK"), *how = "";
    char name[32];
    double began, took;
    esper_status status;
    esper_comm *comm;
    FILE *file;

    if (argc < 2) {
        if (esper_comm_open(&options, &comm) != ESPER_OK)
            return 1;
        esper_comm_close(comm);
        return 0;
    }
    if (rank_text == NULL || strlen(rank_text) > 8)
        return 2;
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], rank_text, strlen(rank_text)) == 0 && argv[i][strlen(rank_text)] == ':')
            how = argv[i] + strlen(rank_text) + 1;
    signal(SIGTERM, on_term);
    prepare(how);
    began = esper_clock_seconds();
    status = esper_comm_open(&options, &comm);
    took = esper_clock_seconds() - began;
    snprintf(name, sizeof(name), "told.%s", rank_text);
    file = fopen(name, "w");
    if (file == NULL)
        return 2;
    if (status == ESPER_OK)
        fprintf(file, "joined\n");
    else
        fprintf(file, "%s: %s\n", took > join_s + grace_s ? "late" : "in time", esper_last_error());
    return fclose(file) == 0 ? 1 : 2;
}
