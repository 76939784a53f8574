/* The module's front: MPI started and ended, and each call handed to the way of exchange that fits the job: shared memory
 * when all ranks are on one machine, messages otherwise. ESPER_MPI_SHARED=0 in the environment takes messages always. */
#include <assert.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h" /* for ESPER_TRY alone: a module shares no symbol with the engine */
#include "dist/mpi/helper.h"
#include "dist/mpi/messages.h"
#include "dist/mpi/roster.h"
#include "dist/mpi/window.h"

typedef struct mpi_link {
    esper_comm_link  link;
    esper_wait_rules rules;
    MPI_Comm         comm, node; /* all ranks; those of this machine */
    MPI_Win          memory;     /* MPI_WIN_NULL: messages */
    esper_messages   messages;
    esper_window     window;
    esper_roster     roster;
    esper_helper     helper;
    esper_status     joined;            /* how joining went */
    uint64_t         began, join_ns;    /* when that began, and how long it may take */
    char             build[ESPER_COMM_BUILD_CHARS];
    void *(*alloc)(size_t bytes);
    void (*release)(void *block);
} mpi_link;

/* Processes are started one by one, from slow disks too. */
static const double JOIN_SECONDS = 60.0;

enum {
    WATCH_NS = 1000000,     /* between looks whether the helper is done, */
    LOOK_NS = 50000000,     /* and whether all are there */
    /* A rank that was stopped, and that the launcher wakes to end it, may be about to greet the launcher: if it is gone before that is
     * answered, Open MPI's mpirun now and then waits for it for ever. */
    GREETING_NS = 500000000,
    SILENT_NS = 1000000000, /* a rank that has not moved for so long is stopped; half the deadline where that is less */
};

/* Only the part up to the first comma: "Open MPI v4.1.4". */
static void about(char *text, size_t chars)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;

    MPI_Get_library_version(version, &n);
    version[strcspn(version, ",\n")] = '\0';
    snprintf(text, chars, "%s", version);
}

/* --------------------------------------------------------------------------------------------------------- watching */

static bool is_window(const mpi_link *mpi)
{
    return mpi->memory != MPI_WIN_NULL;
}

/* What is told of ranks that keep others waiting: by the first that gives up. By the time the next one looks, the launcher may
 * have woken or ended those that it was about. */
static esper_status give_up(const mpi_link *mpi, esper_roster_stage stage, uint64_t deadline_ns, esper_wait_end end,
                            char *why)
{
    const char *doing = stage == ESPER_ROSTER_JOINING ? "joined" : "left the job";
    uint64_t half = deadline_ns / 2, silent_ns = deadline_ns == 0 || half > SILENT_NS ? SILENT_NS : half;
    char who[ESPER_ROSTER_NOTE_CHARS];

    if (end != ESPER_WAIT_ABORT && esper_roster_read_note(&mpi->roster, who)) {
        snprintf(why, ESPER_COMM_WHY_CHARS, "%s", who);
        return ESPER_E_PEER;
    }
    if (end == ESPER_WAIT_LONG) {
        (void)esper_roster_ended(&mpi->roster, who, sizeof(who));
        snprintf(why, ESPER_COMM_WHY_CHARS, "%s has ended before all ranks had %s", who, doing);
    } else if (end == ESPER_WAIT_LATE) {
        esper_roster_tell(&mpi->roster, stage, silent_ns, who, sizeof(who));
        snprintf(why, ESPER_COMM_WHY_CHARS, "the ranks have not all %s within %.3g s: %s", doing,
                 1e-9 * (double)deadline_ns, who);
    } else {
        if (!esper_roster_read_note(&mpi->roster, who))
            esper_roster_tell(&mpi->roster, stage, silent_ns, who, sizeof(who));
        snprintf(why, ESPER_COMM_WHY_CHARS, "stopped by request before all ranks had %s: %s", doing, who);
        return ESPER_E_STOPPED;
    }
    esper_roster_note(&mpi->roster, why);
    return ESPER_E_PEER;
}

static bool has_come_together(mpi_link *mpi)
{
    return esper_roster_is_full(&mpi->roster);
}

static bool has_done_its_work(mpi_link *mpi)
{
    return esper_helper_is_done(&mpi->helper);
}

/* Until something is over, which at the deadline, or when a rank has ended, or another has given up, is not waited for any more;
 * who it was is in why. */
static esper_status watch(mpi_link *mpi, bool (*is_over)(mpi_link *mpi), esper_roster_stage stage, uint64_t began,
                          uint64_t deadline_ns, char *why)
{
    uint64_t looked = 0;
    char who[ESPER_ROSTER_NOTE_CHARS];

    while (!is_over(mpi)) {
        uint64_t now = esper_clock_ns();

        if (mpi->rules.abort != NULL && *mpi->rules.abort)
            return give_up(mpi, stage, deadline_ns, ESPER_WAIT_ABORT, why);
        if (deadline_ns != 0 && now - began > deadline_ns)
            return give_up(mpi, stage, deadline_ns, ESPER_WAIT_LATE, why);
        if (now - looked > LOOK_NS) {
            esper_roster_sign(&mpi->roster, stage);
            if (esper_roster_ended(&mpi->roster, who, sizeof(who)) > 0 || esper_roster_read_note(&mpi->roster, who))
                return give_up(mpi, stage, deadline_ns, ESPER_WAIT_LONG, why);
            looked = now;
        }
        nanosleep(&(struct timespec){.tv_nsec = WATCH_NS}, NULL);
    }
    return ESPER_OK;
}

/* ---------------------------------------------------------------------------------------------------------- opening */

/* Of what is to be said, the first reason counts. */
static esper_status fail(mpi_link *mpi, esper_status status, const char *why)
{
    snprintf(mpi->link.why, ESPER_COMM_WHY_CHARS, "%s", why);
    return status;
}

/* The helper makes some calls, the thread that works with the ranks all others: never two at once. */
static esper_status start_mpi(mpi_link *mpi)
{
    int is_begun = 0, is_ended = 0, level = MPI_THREAD_SINGLE;

    MPI_Initialized(&is_begun);
    MPI_Finalized(&is_ended);
    if (is_begun || is_ended)
        return fail(mpi, ESPER_E_STATE, "it was opened before in this process, and MPI begins only once");
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
        return fail(mpi, ESPER_E_UNSUPPORTED, "MPI does not start");
    if (level < MPI_THREAD_SERIALIZED)
        return fail(mpi, ESPER_E_UNSUPPORTED, "this MPI is for programs of one thread");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return ESPER_OK;
}

static void release_all(mpi_link *mpi)
{
    esper_roster_fini(&mpi->roster);
    mpi->release(mpi->messages.scratch);
    mpi->release(mpi->window.letters);
    mpi->release(mpi->window.seats);
    mpi->release(mpi->messages.is_lost);
    mpi->release(mpi);
}

static esper_status take_memory(mpi_link *mpi)
{
    size_t size;

    MPI_Comm_rank(MPI_COMM_WORLD, &mpi->link.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi->link.size);
    assert(mpi->link.rank >= 0 && mpi->link.rank < mpi->link.size);
    size = (size_t)mpi->link.size;
    mpi->messages.is_lost = mpi->alloc(size * sizeof(bool));
    mpi->window.seats = mpi->alloc(size * sizeof(*mpi->window.seats));
    mpi->window.letters = mpi->alloc(size * sizeof(*mpi->window.letters));
    mpi->messages.scratch = mpi->alloc(ESPER_MESSAGE_BYTES);
    if (mpi->messages.is_lost != NULL && mpi->window.seats != NULL && mpi->window.letters != NULL &&
        mpi->messages.scratch != NULL)
        return ESPER_OK;
    return fail(mpi, ESPER_E_NOMEM, "no memory");
}

static mpi_link *make_link(const esper_comm_start *start)
{
    double join_s = start->options->join_s > 0.0 ? start->options->join_s : JOIN_SECONDS;
    mpi_link *mpi = start->alloc(sizeof(*mpi));

    if (mpi == NULL)
        return NULL;
    mpi->alloc = start->alloc;
    mpi->release = start->release;
    mpi->memory = MPI_WIN_NULL;
    snprintf(mpi->build, sizeof(mpi->build), "%s", start->build);
    mpi->join_ns = (uint64_t)(join_s * 1e9);
    mpi->began = esper_clock_ns();
    mpi->rules.abort = start->options->abort;
    mpi->rules.n_spins = ESPER_WAIT_SPINS;
    mpi->messages.link = mpi->window.link = &mpi->link;
    mpi->messages.rules = mpi->window.rules = &mpi->rules;
    mpi->messages.comm = &mpi->comm;
    mpi->messages.roster = &mpi->roster;
    esper_roster_init(&mpi->roster, start->launch);
    esper_roster_sign(&mpi->roster, ESPER_ROSTER_JOINING);
    return mpi;
}

/* Whether all ranks can say yes. */
static esper_status all_say(mpi_link *mpi, bool yes, bool *all_out)
{
    uint64_t no = yes ? 0 : 1;
    esper_status status = esper_messages_or(&mpi->messages, &no, 1);

    *all_out = no == 0;
    return status;
}

static bool allocate_seats(mpi_link *mpi)
{
    void *base = NULL;

    if (MPI_Win_allocate_shared((MPI_Aint)sizeof(esper_seat) + 64, 1, MPI_INFO_NULL, mpi->node, &base, &mpi->memory) !=
        MPI_SUCCESS) {
        mpi->memory = MPI_WIN_NULL;
        return false;
    }
    for (int r = 0; r < mpi->link.size; r++) {
        MPI_Aint bytes;
        int unit;

        if (MPI_Win_shared_query(mpi->memory, r, &bytes, &unit, &base) != MPI_SUCCESS || base == NULL)
            return false;
        /* the first whole cache line: MPI gives memory of any alignment, but the same in every process */
        mpi->window.seats[r] = (esper_seat *)(((uintptr_t)base + 63) / 64 * 64);
    }
    mpi->window.mine = mpi->window.seats[mpi->link.rank];
    MPI_Win_lock_all(MPI_MODE_NOCHECK, mpi->memory);
    esper_window_sit(&mpi->window);
    return true;
}

/* Ranks must not be of two minds: what one of them cannot do, none does. */
static esper_status open_window(mpi_link *mpi)
{
    const char *setting = getenv("ESPER_MPI_SHARED");
    bool wanted = mpi->link.n_here == mpi->link.size && (setting == NULL || strcmp(setting, "0") != 0), all_good;
    esper_status status = all_say(mpi, wanted, &all_good);

    if (status != ESPER_OK || !all_good)
        return status;
    status = all_say(mpi, allocate_seats(mpi), &all_good); /* is the barrier between sitting and beginning, too */
    if (status == ESPER_OK && all_good)
        status = all_say(mpi, esper_window_begin(&mpi->window), &all_good);
    if (status == ESPER_OK && !all_good)
        mpi->memory = MPI_WIN_NULL; /* what there is of it stays until the process ends */
    if (sysconf(_SC_NPROCESSORS_ONLN) < mpi->link.size)
        mpi->rules.n_spins = 0; /* to spin would keep from the core whom we wait for */
    return status;
}

/* Ranks of two builds may mean different things by the same bytes: this comes before anything else that they exchange. */
static esper_status compare_builds(mpi_link *mpi)
{
    char *all = mpi->alloc((size_t)mpi->link.size * ESPER_COMM_BUILD_CHARS);
    esper_status status;

    if (all == NULL)
        return fail(mpi, ESPER_E_NOMEM, "no memory");
    status = esper_messages_gather(&mpi->messages, mpi->build, ESPER_COMM_BUILD_CHARS, all);
    for (int r = 1; r < mpi->link.size && status == ESPER_OK; r++) {
        const char *theirs = all + (size_t)r * ESPER_COMM_BUILD_CHARS;

        if (memcmp(all, theirs, ESPER_COMM_BUILD_CHARS) == 0)
            continue;
        snprintf(mpi->link.why, ESPER_COMM_WHY_CHARS,
                 "rank 0 and rank %d differ: the build is '%.120s' on rank 0 and '%.120s' on rank %d: install the same "
                 "build everywhere",
                 r, all, theirs, r);
        status = ESPER_E_CONFIG;
    }
    mpi->release(all);
    return status;
}

/* How long ranks wait for each other's messages while they join: who is missed then is known by name, so it comes before the
 * watch, which for ranks of other machines knows less, loses its patience. */
static uint64_t patience(const mpi_link *mpi)
{
    uint64_t least = mpi->join_ns / 4, used = esper_clock_ns() - mpi->began + ESPER_ROLL_MOST_NS + LOOK_NS;

    return mpi->join_ns > used + least ? mpi->join_ns - used : least;
}

/* On the helper's thread. */
static void join(void *context)
{
    mpi_link *mpi = context;

    mpi->joined = start_mpi(mpi);
    if (mpi->joined == ESPER_OK)
        mpi->joined = take_memory(mpi);
    if (mpi->joined != ESPER_OK)
        return;
    mpi->comm = MPI_COMM_WORLD;
    mpi->rules.deadline_ns = patience(mpi);
    mpi->joined = esper_messages_barrier(&mpi->messages);
    if (mpi->joined == ESPER_OK)
        mpi->joined = compare_builds(mpi);
    if (mpi->joined != ESPER_OK)
        return;
    if (MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm) != MPI_SUCCESS ||
        MPI_Comm_split_type(mpi->comm, MPI_COMM_TYPE_SHARED, mpi->link.rank, MPI_INFO_NULL, &mpi->node) !=
            MPI_SUCCESS) {
        mpi->joined = fail(mpi, ESPER_E_PEER, "MPI makes no communicators");
        return;
    }
    MPI_Comm_size(mpi->node, &mpi->link.n_here);
    mpi->joined = open_window(mpi);
}

static esper_status open_mpi(const esper_comm_start *start, esper_comm_link **link_out)
{
    mpi_link *mpi = make_link(start);
    esper_status status;

    if (mpi == NULL) {
        snprintf(start->why, ESPER_COMM_WHY_CHARS, "no memory");
        return ESPER_E_NOMEM;
    }
    status = watch(mpi, has_come_together, ESPER_ROSTER_JOINING, mpi->began, mpi->join_ns, start->why);
    if (status == ESPER_OK && !esper_helper_start(&mpi->helper)) {
        snprintf(start->why, ESPER_COMM_WHY_CHARS, "no thread");
        status = ESPER_E_NOMEM;
    }
    if (status != ESPER_OK) {
        esper_roster_sign(&mpi->roster, ESPER_ROSTER_LEFT);
        release_all(mpi);
        return status;
    }
    esper_helper_give(&mpi->helper, join, mpi);
    status = watch(mpi, has_done_its_work, ESPER_ROSTER_JOINING, mpi->began, mpi->join_ns, start->why);
    if (status != ESPER_OK) {
        esper_roster_sign(&mpi->roster, ESPER_ROSTER_LEFT);
        nanosleep(&(struct timespec){.tv_nsec = GREETING_NS}, NULL);
        return status; /* the helper is stuck with all of it */
    }
    if (mpi->joined != ESPER_OK) {
        status = mpi->joined;
        snprintf(start->why, ESPER_COMM_WHY_CHARS, "%s", mpi->link.why);
        esper_roster_sign(&mpi->roster, ESPER_ROSTER_LEFT);
        esper_helper_stop(&mpi->helper);
        release_all(mpi);
        return status;
    }
    esper_roster_sign(&mpi->roster, ESPER_ROSTER_JOINED);
    esper_roster_hide(&mpi->roster);
    mpi->rules.deadline_ns = (uint64_t)(start->options->deadline_s * 1e9);
    *link_out = &mpi->link;
    return ESPER_OK;
}

/* ---------------------------------------------------------------------------------------------------------- closing */

/* On the helper's thread, since MPI wants to be ended by who began it. */
static void end_mpi(void *context)
{
    mpi_link *mpi = context;

    if (is_window(mpi)) {
        MPI_Win_unlock_all(mpi->memory);
        MPI_Win_free(&mpi->memory);
    }
    MPI_Comm_free(&mpi->node);
    MPI_Comm_free(&mpi->comm);
    MPI_Finalize();
}

/* MPI_Finalize waits for everybody: it is called only when everybody is known to be there, and watched even so. Without it the
 * process may still exit; a launcher takes that for a failure, as it should. Ranks that end after a failure of their own are at
 * another call than the others, which say so. */
static void close_mpi(esper_comm_link *link, bool orderly, char *why)
{
    mpi_link *mpi = (mpi_link *)link;
    esper_status status = ESPER_OK;

    if (orderly) {
        esper_roster_sign(&mpi->roster, ESPER_ROSTER_LEAVING);
        status = is_window(mpi) ? esper_window_end(&mpi->window) : esper_messages_end(&mpi->messages);
        orderly = status == ESPER_OK;
        if (status == ESPER_E_PEER)
            snprintf(why, ESPER_COMM_WHY_CHARS, "%s", link->why);
    }
    if (is_window(mpi) && !orderly)
        esper_window_leave(&mpi->window);
    if (orderly) {
        esper_helper_give(&mpi->helper, end_mpi, mpi);
        status = watch(mpi, has_done_its_work, ESPER_ROSTER_LEAVING, esper_clock_ns(), mpi->rules.deadline_ns, why);
    }
    esper_roster_sign(&mpi->roster, ESPER_ROSTER_LEFT);
    if (orderly && status != ESPER_OK)
        return; /* the helper is stuck with all of it */
    esper_helper_stop(&mpi->helper);
    release_all(mpi);
}

static int ended(const esper_comm_link *link, char *text, size_t chars)
{
    return esper_roster_ended(&((const mpi_link *)link)->roster, text, chars);
}

/* ------------------------------------------------------------------------------------------------------------ calls */

static esper_status sum(esper_comm_link *link, void *values, size_t count, esper_comm_number number)
{
    mpi_link *mpi = (mpi_link *)link;

    return is_window(mpi) ? esper_window_sum(&mpi->window, values, count, number)
                          : esper_messages_sum(&mpi->messages, values, count, number);
}

static esper_status or_u64(esper_comm_link *link, uint64_t *words, size_t count)
{
    mpi_link *mpi = (mpi_link *)link;

    return is_window(mpi) ? esper_window_or(&mpi->window, words, count)
                          : esper_messages_or(&mpi->messages, words, count);
}

static esper_status broadcast(esper_comm_link *link, void *bytes, size_t count, int root)
{
    mpi_link *mpi = (mpi_link *)link;

    return is_window(mpi) ? esper_window_broadcast(&mpi->window, bytes, count, root)
                          : esper_messages_broadcast(&mpi->messages, bytes, count, root);
}

static esper_status gather(esper_comm_link *link, const void *mine, size_t count, void *all_out)
{
    mpi_link *mpi = (mpi_link *)link;

    return is_window(mpi) ? esper_window_gather(&mpi->window, mine, count, all_out)
                          : esper_messages_gather(&mpi->messages, mine, count, all_out);
}

static esper_status barrier(esper_comm_link *link)
{
    mpi_link *mpi = (mpi_link *)link;

    return is_window(mpi) ? esper_window_barrier(&mpi->window) : esper_messages_barrier(&mpi->messages);
}

extern const esper_comm_kind esper_comm_module; /* see ESPER_COMM_MODULE_ENTRY */

ESPER_API const esper_comm_kind esper_comm_module = {
    .abi = ESPER_COMM_ABI,
    .name = "mpi",
    .about = about,
    .open = open_mpi,
    .close = close_mpi,
    .ended = ended,
    .sum = sum,
    .or_u64 = or_u64,
    .broadcast = broadcast,
    .gather = gather,
    .barrier = barrier,
};
