/* Internal. Who of this machine's ranks has come, and who is gone: known without MPI, whose calls that join ranks wait for all
 * of them without end and without a word.
 *
 * A file in the directory that the launcher keeps for the job on this machine, with an entry for each rank here. A rank
 * writes its own before its first call of MPI, has a lock on it as long as it lives, and while it joins or leaves the job
 * writes the time into it, over and over:
 *
 *   nothing written             it has not come
 *   written, and no lock        it has ended
 *   locked, and the time old    it does not move: stopped
 *
 * Nobody makes a call of MPI before all ranks of its machine have come: a launcher that has to end a job in which some are in
 * the midst of MPI_Init does not always end itself. Where the launcher has no such directory, ranks are not named. */
#ifndef ESPER_DIST_MPI_ROSTER_H
#define ESPER_DIST_MPI_ROSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dist/launch.h"

enum { ESPER_ROSTER_NOTE_CHARS = 256 };

typedef enum esper_roster_stage {
    ESPER_ROSTER_NOT_COME,
    ESPER_ROSTER_JOINING,
    ESPER_ROSTER_JOINED,
    ESPER_ROSTER_LEAVING,
    ESPER_ROSTER_LEFT, /* by itself, in order or after a failure that it tells: if it ends now, nobody has to say so */
} esper_roster_stage;

typedef struct esper_roster {
    int  file;                     /* -1: there is none */
    int  rank, size, here, n_here; /* as the launcher says */
    char path[512];
} esper_roster;

/* Finds the file, or makes it. */
void esper_roster_init(esper_roster *roster, const esper_launcher *launcher);
void esper_roster_fini(esper_roster *roster);

/* "I am at that stage, now." */
void esper_roster_sign(const esper_roster *roster, esper_roster_stage stage);

/* What the first rank that gives up has seen. The launcher, when it ends the others then, wakes those that were stopped: who it
 * was can no longer be seen. */
void esper_roster_note(const esper_roster *roster, const char *text);
bool esper_roster_read_note(const esper_roster *roster, char note[ESPER_ROSTER_NOTE_CHARS]);

/* Everybody has come: nobody will look for the file again. */
void esper_roster_hide(const esper_roster *roster);

bool esper_roster_is_full(const esper_roster *roster); /* all ranks of this machine have come, or there is no roster */

/* Ranks of this machine that have ended without leaving, "rank 1, rank 3"; returns how many. */
int esper_roster_ended(const esper_roster *roster, char *text, size_t chars);

/* Who keeps the others waiting at a stage, each with why, or what can be said of them; for the end of a sentence. Who has not
 * moved for silent_ns counts as stopped. */
void esper_roster_tell(const esper_roster *roster, esper_roster_stage stage, uint64_t silent_ns, char *text,
                       size_t chars);

#endif
