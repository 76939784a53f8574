/* The module's front: MPI started and ended, and each call handed to the way of exchange that fits the job: shared memory
 * when all ranks are on one machine, messages otherwise. ESPER_MPI_SHARED=0 in the environment takes messages always. */
#include <assert.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h" /* for ESPER_TRY alone: a module shares no symbol with the engine */
#include "dist/mpi/messages.h"
#include "dist/mpi/window.h"

typedef struct mpi_link {
    esper_comm_link  link;
    esper_wait_rules rules;
    MPI_Comm         comm, node; /* all ranks; those of this machine */
    MPI_Win          memory;     /* MPI_WIN_NULL: messages */
    esper_messages   messages;
    esper_window     window;
    void (*release)(void *block);
} mpi_link;

/* Only the part up to the first comma: "Open MPI v4.1.4". */
static void about(char *text, size_t chars)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;

    MPI_Get_library_version(version, &n);
    version[strcspn(version, ",\n")] = '\0';
    snprintf(text, chars, "%s", version);
}

/* ---------------------------------------------------------------------------------------------------------- opening */

static esper_status fail(const esper_comm_start *start, esper_status status, const char *why)
{
    snprintf(start->why, ESPER_COMM_WHY_CHARS, "%s", why);
    return status;
}

static esper_status start_mpi(const esper_comm_start *start)
{
    int is_begun = 0, is_ended = 0, level;

    MPI_Initialized(&is_begun);
    MPI_Finalized(&is_ended);
    if (is_begun || is_ended)
        return fail(start, ESPER_E_STATE, "it was opened before in this process, and MPI begins only once");
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return fail(start, ESPER_E_UNSUPPORTED, "MPI does not start");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return ESPER_OK;
}

static void release_all(mpi_link *mpi)
{
    mpi->release(mpi->messages.scratch);
    mpi->release(mpi->window.letters);
    mpi->release(mpi->window.seats);
    mpi->release(mpi->messages.is_lost);
    mpi->release(mpi);
}

static mpi_link *make_link(const esper_comm_start *start)
{
    mpi_link *mpi = start->alloc(sizeof(*mpi));
    size_t size;

    if (mpi == NULL)
        return NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi->link.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi->link.size);
    assert(mpi->link.rank >= 0 && mpi->link.rank < mpi->link.size);
    size = (size_t)mpi->link.size;
    mpi->release = start->release;
    mpi->memory = MPI_WIN_NULL;
    mpi->messages.is_lost = start->alloc(size * sizeof(bool));
    mpi->window.seats = start->alloc(size * sizeof(*mpi->window.seats));
    mpi->window.letters = start->alloc(size * sizeof(*mpi->window.letters));
    mpi->messages.scratch = start->alloc(ESPER_MESSAGE_BYTES);
    if (mpi->messages.is_lost != NULL && mpi->window.seats != NULL && mpi->window.letters != NULL &&
        mpi->messages.scratch != NULL)
        return mpi;
    release_all(mpi);
    return NULL;
}

/* Until all are there the deadline is at least a minute: processes are started one by one, from slow disks too. */
static void set_rules(mpi_link *mpi, const esper_comm_options *options)
{
    const double least_s = 60.0;
    double opening_s = options->deadline_s > 0.0 && options->deadline_s < least_s ? least_s : options->deadline_s;

    mpi->rules.abort = options->abort;
    mpi->rules.deadline_ns = (uint64_t)(opening_s * 1e9);
    mpi->rules.n_spins = ESPER_WAIT_SPINS;
    mpi->messages.link = mpi->window.link = &mpi->link;
    mpi->messages.rules = mpi->window.rules = &mpi->rules;
    mpi->messages.comm = &mpi->comm;
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

/* The calls that make communicators and memory wait without a deadline, so first it is seen that everybody is there. */
static esper_status join(mpi_link *mpi)
{
    mpi->comm = MPI_COMM_WORLD;
    ESPER_TRY(esper_messages_barrier(&mpi->messages));
    if (MPI_Comm_dup(MPI_COMM_WORLD, &mpi->comm) != MPI_SUCCESS ||
        MPI_Comm_split_type(mpi->comm, MPI_COMM_TYPE_SHARED, mpi->link.rank, MPI_INFO_NULL, &mpi->node) !=
            MPI_SUCCESS) {
        snprintf(mpi->link.why, ESPER_COMM_WHY_CHARS, "MPI makes no communicators");
        return ESPER_E_PEER;
    }
    MPI_Comm_size(mpi->node, &mpi->link.n_here);
    return open_window(mpi);
}

static esper_status open_mpi(const esper_comm_start *start, esper_comm_link **link_out)
{
    esper_status status;
    mpi_link *mpi;

    ESPER_TRY(start_mpi(start));
    mpi = make_link(start);
    if (mpi == NULL)
        return fail(start, ESPER_E_NOMEM, "no memory");
    set_rules(mpi, start->options);
    status = join(mpi);
    if (status != ESPER_OK) {
        fail(start, status, mpi->link.why);
        release_all(mpi);
        return status;
    }
    mpi->rules.deadline_ns = (uint64_t)(start->options->deadline_s * 1e9);
    *link_out = &mpi->link;
    return ESPER_OK;
}

/* ---------------------------------------------------------------------------------------------------------- closing */

static bool is_window(const mpi_link *mpi)
{
    return mpi->memory != MPI_WIN_NULL;
}

/* MPI_Finalize waits for everybody: it is called only when everybody is known to be there. Without it the process may
 * still exit; a launcher takes that for a failure, as it should. */
static void close_mpi(esper_comm_link *link, bool orderly)
{
    mpi_link *mpi = (mpi_link *)link;

    if (orderly)
        orderly = (is_window(mpi) ? esper_window_end(&mpi->window) : esper_messages_end(&mpi->messages)) == ESPER_OK;
    if (is_window(mpi) && !orderly)
        esper_window_leave(&mpi->window);
    if (orderly && is_window(mpi)) {
        MPI_Win_unlock_all(mpi->memory);
        MPI_Win_free(&mpi->memory);
    }
    if (orderly) {
        MPI_Comm_free(&mpi->node);
        MPI_Comm_free(&mpi->comm);
        MPI_Finalize();
    }
    release_all(mpi);
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
    .sum = sum,
    .or_u64 = or_u64,
    .broadcast = broadcast,
    .gather = gather,
    .barrier = barrier,
};
