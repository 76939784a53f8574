/* Exchange through shared memory. No MPI here: somebody else brought the memory. */
#include "dist/mpi/window.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h" /* for ESPER_TRY alone: a module shares no symbol with the engine */
#include "dist/mpi/tree.h"

/* What a step is for; ranks compare it, with the count of the call. */
enum { SUM = 1, OR, BROADCAST, GATHER, BARRIER, END };

static const char *const call_names[] = {[SUM] = "a sum",       [OR] = "an OR",          [BROADCAST] = "a broadcast",
                                         [GATHER] = "a gather", [BARRIER] = "a barrier", [END] = "the end of the job"};

enum { CALL_BITS = 4, WHAT_BITS = 16 };

void esper_window_sit(esper_window *window)
{
    memset(window->mine, 0, sizeof(*window->mine));
    window->mine->process = getpid();
    window->mine->rank = window->link->rank;
}

static bool is_gone(const esper_seat *seat)
{
    return kill((pid_t)seat->process, 0) != 0 && errno == ESRCH;
}

/* Where processes have numbers of their own (containers), a number says nothing about another rank. */
bool esper_window_begin(esper_window *window)
{
    window->sees_processes = true;
    for (int r = 0; r < window->link->size; r++) {
        if (window->seats[r]->rank != r || window->seats[r]->process == 0)
            return false;
        if (is_gone(window->seats[r]))
            window->sees_processes = false;
    }
    return true;
}

void esper_window_leave(esper_window *window)
{
    atomic_store_explicit(&window->mine->has_left, true, memory_order_release);
}

/* --------------------------------------------------------------------------------------------------------- failures */

static bool has_come(const esper_window *window, int rank)
{
    const esper_seat_line *line = &window->seats[rank]->lines[window->step & 1];

    return atomic_load_explicit(&line->tag, memory_order_acquire) >> WHAT_BITS == window->step;
}

static bool will_not_come(const esper_window *window, int rank)
{
    const esper_seat *seat = window->seats[rank];

    if (atomic_load_explicit(&seat->has_left, memory_order_acquire) || (window->sees_processes && is_gone(seat)))
        return !has_come(window, rank); /* it may have come just before */
    return false;
}

/* Writes who is not there to text, "1, 3"; only_gone: and will not come. Returns how many. */
static int name_absent(esper_window *window, bool only_gone, char *text, size_t chars)
{
    size_t used = 0;
    int n = 0;

    text[0] = '\0';
    for (int r = 0; r < window->link->size; r++) {
        int wrote;

        if (has_come(window, r) || (only_gone && !will_not_come(window, r)))
            continue;
        wrote = snprintf(text + used, chars - used, "%s%d", n++ > 0 ? ", " : "", r);
        used = wrote > 0 && used + (size_t)wrote < chars ? used + (size_t)wrote : used;
    }
    return n;
}

static esper_status fail_wait(esper_window *window, int call, esper_wait_end end)
{
    char who[128];
    int n = name_absent(window, end == ESPER_WAIT_LONG, who, sizeof(who));
    const char *ranks = n == 1 ? "rank" : "ranks";
    char *why = window->link->why;

    if (end == ESPER_WAIT_ABORT) {
        snprintf(why, ESPER_COMM_WHY_CHARS, "stopped by request in %s, while %s %s had not come", call_names[call],
                 ranks, who);
        return ESPER_E_STOPPED;
    }
    if (end == ESPER_WAIT_LONG)
        snprintf(why, ESPER_COMM_WHY_CHARS, "%s %s ended or left the job, and did not come to %s", ranks, who,
                 call_names[call]);
    else
        snprintf(why, ESPER_COMM_WHY_CHARS, "%s %s did not come to %s within %.3g s", ranks, who, call_names[call],
                 1e-9 * (double)window->rules->deadline_ns);
    return ESPER_E_PEER;
}

static esper_status fail_tag(esper_window *window, int call, int rank, uint64_t tag)
{
    uint64_t other = tag & ((1 << CALL_BITS) - 1);
    char *why = window->link->why;

    if (other == END) {
        snprintf(why, ESPER_COMM_WHY_CHARS, "rank %d has ended its part of the job, this one is at %s", rank,
                 call_names[call]);
        return ESPER_E_PEER;
    }
    snprintf(why, ESPER_COMM_WHY_CHARS,
             "rank %d is at %s, this one at %s%s: ranks must make the same calls in the same order", rank,
             other >= SUM && other <= END ? call_names[other] : "something else", call_names[call],
             other == (uint64_t)call ? " of another size" : "");
    return ESPER_E_STATE;
}

/* ------------------------------------------------------------------------------------------------------------ steps */

/* Where a letter of so many bytes lies in a seat. */
static unsigned char *letter_in(esper_seat *seat, uint64_t step, size_t bytes)
{
    assert(bytes <= ESPER_LETTER_BYTES);
    return bytes <= ESPER_LINE_BYTES ? seat->lines[step & 1].letter : seat->sheets[step & 1];
}

/* The letter to write for the next step. */
static unsigned char *my_letter(const esper_window *window, size_t bytes)
{
    return letter_in(window->mine, window->step + 1, bytes);
}

static esper_status wait_for(esper_window *window, int call, int rank)
{
    esper_wait wait = {0};

    while (!has_come(window, rank)) {
        esper_wait_end end = esper_wait_once(window->rules, &wait);

        if (end == ESPER_WAIT_ON || (end == ESPER_WAIT_LONG && !will_not_come(window, rank)))
            continue;
        return fail_wait(window, call, end);
    }
    return ESPER_OK;
}

/* My letter of so many bytes is written: puts the tag, and waits for all. Then letters[] are everybody's. The tag is the step, and
 * what it is for: the call, and as much of its count as there is room for. What else a call has (the kind of number, the root) its
 * caller puts into the count. */
static esper_status do_step(esper_window *window, int call, size_t count, size_t bytes)
{
    uint64_t step = ++window->step, what = (uint64_t)count % 4093 << CALL_BITS | (uint64_t)call,
             tag = step << WHAT_BITS | what;

    assert(call >= SUM && call <= END && bytes <= ESPER_LETTER_BYTES);
    atomic_store_explicit(&window->mine->lines[step & 1].tag, tag, memory_order_release);
    for (int r = 0; r < window->link->size; r++) {
        esper_seat *seat = window->seats[r];

        ESPER_TRY(wait_for(window, call, r));
        if (seat->lines[step & 1].tag != tag)
            return fail_tag(window, call, r, seat->lines[step & 1].tag);
        window->letters[r] = letter_in(seat, step, bytes);
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------------------ calls */

esper_status esper_window_barrier(esper_window *window)
{
    return do_step(window, BARRIER, 0, 0);
}

esper_status esper_window_end(esper_window *window)
{
    return do_step(window, END, 0, 0);
}

esper_status esper_window_or(esper_window *window, uint64_t *words, size_t count)
{
    enum { MOST = ESPER_LETTER_BYTES / sizeof(uint64_t) };

    for (size_t at = 0; at < count; at += MOST) {
        size_t n = count - at < MOST ? count - at : MOST;

        memcpy(my_letter(window, n * sizeof(uint64_t)), words + at, n * sizeof(uint64_t));
        ESPER_TRY(do_step(window, OR, count, n * sizeof(uint64_t)));
        for (int r = 0; r < window->link->size; r++) {
            const uint64_t *theirs = window->letters[r];

            for (size_t i = 0; i < n; i++)
                words[at + i] |= theirs[i];
        }
    }
    return ESPER_OK;
}

esper_status esper_window_broadcast(esper_window *window, void *bytes, size_t count, int root)
{
    for (size_t at = 0; at < count; at += ESPER_LETTER_BYTES) {
        size_t n = count - at < ESPER_LETTER_BYTES ? count - at : ESPER_LETTER_BYTES;

        if (window->link->rank == root)
            memcpy(my_letter(window, n), (const char *)bytes + at, n);
        ESPER_TRY(do_step(window, BROADCAST, count + (size_t)root * 31, n));
        if (window->link->rank != root)
            memcpy((char *)bytes + at, window->letters[root], n);
    }
    return ESPER_OK;
}

esper_status esper_window_gather(esper_window *window, const void *mine, size_t count, void *all_out)
{
    for (size_t at = 0; at < count; at += ESPER_LETTER_BYTES) {
        size_t n = count - at < ESPER_LETTER_BYTES ? count - at : ESPER_LETTER_BYTES;

        memcpy(my_letter(window, n), (const char *)mine + at, n);
        ESPER_TRY(do_step(window, GATHER, count, n));
        for (int r = 0; r < window->link->size; r++)
            memcpy((char *)all_out + (size_t)r * count + at, window->letters[r], n);
    }
    return ESPER_OK;
}

/* Each rank adds a part of the numbers, in whole cache lines. */
static size_t part_begin(size_t count, size_t bytes, int rank, int size)
{
    size_t line = 64 / bytes, per_rank = ((count + (size_t)size - 1) / (size_t)size + line - 1) / line * line;
    size_t begin = per_rank * (size_t)rank;

    assert(rank >= 0 && rank <= size);
    return begin < count ? begin : count;
}

/* Two steps: everybody's numbers, then everybody's part of the sums. */
static esper_status sum_letter(esper_window *window, void *values, size_t n, size_t count, esper_comm_number number)
{
    size_t bytes = esper_tree_bytes(number);
    int rank = window->link->rank, size = window->link->size;

    memcpy(my_letter(window, n * bytes), values, n * bytes);
    ESPER_TRY(do_step(window, SUM, 2 * count + number, n * bytes));
    esper_tree_sum(number, window->letters, size, part_begin(n, bytes, rank, size),
                   part_begin(n, bytes, rank + 1, size), my_letter(window, n * bytes));
    ESPER_TRY(do_step(window, SUM, 2 * count + number, n * bytes));
    for (int r = 0; r < size; r++) {
        size_t begin = part_begin(n, bytes, r, size), end = part_begin(n, bytes, r + 1, size);

        memcpy((char *)values + begin * bytes, (const char *)window->letters[r] + begin * bytes, (end - begin) * bytes);
    }
    return ESPER_OK;
}

esper_status esper_window_sum(esper_window *window, void *values, size_t count, esper_comm_number number)
{
    size_t bytes = esper_tree_bytes(number), most = ESPER_LETTER_BYTES / bytes;

    for (size_t at = 0; at < count; at += most) {
        size_t n = count - at < most ? count - at : most;
        ESPER_TRY(sum_letter(window, (char *)values + at * bytes, n, count, number));
    }
    return ESPER_OK;
}
