/* The roster. Whatever cannot be read counts as not written: then a message says less. */
#include "dist/mpi/roster.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "dist/append.h"

typedef struct entry {
    int32_t  stage;
    int32_t  rank;
    uint64_t signed_ns; /* of the machine's clock, one for all of its processes */
    char     unused[48];
} entry;

_Static_assert(sizeof(entry) == 64, "an entry is written and locked by its place");

/* Of the variables only the last is different each time the launcher is called: a directory may be left over from a job
 * whose launcher had the same number. Below srun, which does not say how many ranks are here, there is no roster. */
void esper_roster_init(esper_roster *roster, const esper_launcher *launcher)
{
    const char *key = getenv("OMPI_MCA_orte_precondition_transports");
    struct flock mine = {.l_type = F_WRLCK, .l_start = launcher->here * (off_t)sizeof(entry), .l_len = sizeof(entry)};
    int length;

    *roster = (esper_roster){
        .file = -1, .rank = launcher->rank, .size = launcher->size, .here = launcher->here, .n_here = launcher->n_here};
    if (launcher->dir == NULL || launcher->job == NULL || launcher->n_here == 0 || launcher->rank < 0 ||
        launcher->size < launcher->n_here || strchr(launcher->job, '/') != NULL)
        return;
    length = snprintf(roster->path, sizeof(roster->path), "%s/esper-%s-%s", launcher->dir, launcher->job,
                      key != NULL && strchr(key, '/') == NULL ? key : "");
    if (length <= 0 || (size_t)length >= sizeof(roster->path))
        return;
    roster->file = open(roster->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (roster->file >= 0 && fcntl(roster->file, F_SETLK, &mine) != 0)
        esper_roster_fini(roster); /* a file system without locks */
}

void esper_roster_fini(esper_roster *roster)
{
    if (roster->file >= 0)
        close(roster->file);
    roster->file = -1;
}

void esper_roster_hide(const esper_roster *roster)
{
    if (roster->file >= 0 && roster->here == 0)
        unlink(roster->path);
}

void esper_roster_sign(const esper_roster *roster, esper_roster_stage stage)
{
    entry mine = {.stage = (int32_t)stage, .rank = roster->rank, .signed_ns = esper_clock_ns()};

    if (roster->file >= 0 && pwrite(roster->file, &mine, sizeof(mine), roster->here * (off_t)sizeof(mine)) < 0)
        return; /* a full disk: this rank will not be seen */
}

/* Behind the entries. */
void esper_roster_note(const esper_roster *roster, const char *text)
{
    char note[ESPER_ROSTER_NOTE_CHARS] = "";

    if (esper_roster_read_note(roster, note))
        return;
    snprintf(note, sizeof(note), "%s", text);
    if (roster->file >= 0 && pwrite(roster->file, note, sizeof(note), roster->n_here * (off_t)sizeof(entry)) < 0)
        return;
}

bool esper_roster_read_note(const esper_roster *roster, char note[ESPER_ROSTER_NOTE_CHARS])
{
    if (roster->file < 0 || pread(roster->file, note, ESPER_ROSTER_NOTE_CHARS, roster->n_here * (off_t)sizeof(entry)) !=
                                ESPER_ROSTER_NOTE_CHARS)
        return false;
    note[ESPER_ROSTER_NOTE_CHARS - 1] = '\0';
    return note[0] != '\0';
}

/* ---------------------------------------------------------------------------------------------------------- telling */

static entry entry_of(const esper_roster *roster, int here)
{
    entry found;

    if (pread(roster->file, &found, sizeof(found), here * (off_t)sizeof(found)) != sizeof(found))
        return (entry){0};
    return found;
}

static bool is_alive(const esper_roster *roster, int here)
{
    struct flock theirs = {.l_type = F_WRLCK, .l_start = here * (off_t)sizeof(entry), .l_len = sizeof(entry)};

    return here == roster->here || fcntl(roster->file, F_GETLK, &theirs) != 0 || theirs.l_type != F_UNLCK;
}

static bool has_ended(const esper_roster *roster, int here, const entry *its)
{
    return its->stage != ESPER_ROSTER_NOT_COME && its->stage != ESPER_ROSTER_LEFT && !is_alive(roster, here) &&
           entry_of(roster, here).stage != ESPER_ROSTER_LEFT; /* it may have left just before */
}

bool esper_roster_is_full(const esper_roster *roster)
{
    for (int i = 0; i < roster->n_here && roster->file >= 0; i++)
        if (entry_of(roster, i).stage == ESPER_ROSTER_NOT_COME)
            return false;
    return true;
}

int esper_roster_ended(const esper_roster *roster, char *text, size_t chars)
{
    int n = 0;

    text[0] = '\0';
    for (int i = 0; i < roster->n_here && roster->file >= 0; i++) {
        entry its = entry_of(roster, i);

        if (has_ended(roster, i, &its))
            esper_append(text, chars, "%srank %d", n++ > 0 ? ", " : "", its.rank);
    }
    return n;
}

/* Ranks of this machine by what is wrong with them; returns how many are named. On one machine the places are the ranks. */
static int tell_here(const esper_roster *roster, esper_roster_stage stage, uint64_t silent_ns, char *text, size_t chars)
{
    bool on_one_machine = roster->n_here == roster->size;
    uint64_t now = esper_clock_ns();
    int n = 0;

    for (int i = 0; i < roster->n_here; i++) {
        entry its = entry_of(roster, i);
        const char *between = n > 0 ? "; " : "";

        if (its.stage == ESPER_ROSTER_NOT_COME && on_one_machine)
            esper_append(text, chars, "%srank %d has not come", between, i);
        else if (its.stage == ESPER_ROSTER_NOT_COME)
            esper_append(text, chars, "%sthe rank with place %d of %d on this machine has not come", between, i,
                         roster->n_here);
        else if (has_ended(roster, i, &its))
            esper_append(text, chars, "%srank %d has ended", between, its.rank);
        else if (its.stage == (int32_t)stage && now > its.signed_ns && now - its.signed_ns > silent_ns)
            esper_append(text, chars, "%srank %d came and does not move", between, its.rank);
        else
            continue;
        n++;
    }
    return n;
}

/* Nothing is wrong with those here. */
static void tell_others(const esper_roster *roster, esper_roster_stage stage, char *text, size_t chars)
{
    const char *between = "";
    int n = 0;

    if (roster->n_here < roster->size) {
        esper_append(text, chars, "of this machine all have come (");
        for (int i = 0; i < roster->n_here; i++, between = ", ")
            esper_append(text, chars, "%srank %d", between, entry_of(roster, i).rank);
        esper_append(text, chars, "); of the others one or more have not, or cannot be reached");
        return;
    }
    for (int i = 0; i < roster->n_here; i++) {
        entry its = entry_of(roster, i);

        if (its.stage == (int32_t)stage + 1)
            esper_append(text, chars, "%srank %d", n++ > 0 ? ", " : "", its.rank);
    }
    esper_append(text, chars,
                 n > 0 ? " went on, and did not answer since"
                       : "all of them have come, and MPI does not bring them together");
}

void esper_roster_tell(const esper_roster *roster, esper_roster_stage stage, uint64_t silent_ns, char *text,
                       size_t chars)
{
    text[0] = '\0';
    if (roster->file < 0)
        esper_append(text, chars, "which are missing, this launcher does not let us know");
    else if (tell_here(roster, stage, silent_ns, text, chars) == 0)
        tell_others(roster, stage, text, chars);
}
