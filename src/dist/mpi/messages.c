/* Exchange by messages: non-blocking calls that are tested until they are done, late, or not wanted any more. */
#include "dist/mpi/messages.h"

#include <assert.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h" /* for ESPER_TRY alone: a module shares no symbol with the engine */
#include "dist/mpi/tree.h"

enum {
    NOBODY = MPI_PROC_NULL,
    ROLL_TAG = 1,
    FIRST_TAG = 16,
    ROLL_LEAST_NS = 300000000,
    ROSTER_NS = 20000000, /* between looks into the roster */
};

/* MPI allows tags up to 32767 at least. */
enum { SUM_F32, SUM_F64, OR, BROADCAST, GATHER, BARRIER, END, N_CALLS, N_TURNS = 2048 };

static void begin_call(esper_messages *m, int call)
{
    m->call = (char)call;
    m->tag = FIRST_TAG + (int)(m->n_calls++ % N_TURNS) * N_CALLS + call;
}

static esper_status fail_mpi(esper_messages *m, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    MPI_Error_string(error, text, &n);
    snprintf(m->link->why, ESPER_COMM_WHY_CHARS, "MPI: %.300s", text);
    return ESPER_E_PEER;
}

/* -------------------------------------------------------------------------------------------------------- roll call */

/* Whom one waits for may itself wait for another. So a rank whose wait was too long tells all others that it is there, and at
 * which call, and listens for a while who else does: ranks that wait for the same one come to this at about the same time. Marks
 * the ranks that are not heard of, and those that want to end the job; returns how many are not heard of. */
static int call_roll(esper_messages *m, MPI_Comm comm, int *n_ended_out)
{
    uint64_t quarter = m->rules->deadline_ns / 4;
    uint64_t listen_ns = quarter < ROLL_LEAST_NS        ? ROLL_LEAST_NS
                         : quarter > ESPER_ROLL_MOST_NS ? ESPER_ROLL_MOST_NS
                                                        : quarter;
    uint64_t end = esper_clock_ns() + listen_ns;
    int n_missing = m->link->size - 1;

    for (int r = 0; r < m->link->size; r++) {
        MPI_Request request;

        m->is_lost[r] = r != m->link->rank;
        if (m->is_lost[r] && MPI_Isend(&m->call, 1, MPI_BYTE, r, ROLL_TAG, comm, &request) == MPI_SUCCESS)
            MPI_Request_free(&request); /* nobody waits for it */
    }
    while (n_missing > 0 && esper_clock_ns() < end && (m->rules->abort == NULL || !*m->rules->abort)) {
        MPI_Status status;
        int is_there = 0;
        char byte;

        if (MPI_Iprobe(MPI_ANY_SOURCE, ROLL_TAG, comm, &is_there, &status) != MPI_SUCCESS)
            break;
        if (!is_there) {
            nanosleep(&(struct timespec){.tv_nsec = ESPER_WAIT_SLEEP_NS}, NULL);
            continue;
        }
        MPI_Recv(&byte, 1, MPI_BYTE, status.MPI_SOURCE, ROLL_TAG, comm, MPI_STATUS_IGNORE);
        m->is_lost[status.MPI_SOURCE] = byte == END;
        *n_ended_out += byte == END;
        n_missing--;
    }
    return n_missing;
}

/* Whether a rank of this machine has ended, of which the launcher would tell later and in fewer words, or nobody. */
static bool has_lost_neighbour(esper_messages *m)
{
    uint64_t now = esper_clock_ns();
    char who[128];

    if (now - m->looked_ns < ROSTER_NS)
        return false;
    m->looked_ns = now;
    if (esper_roster_ended(m->roster, who, sizeof(who)) == 0)
        return false;
    snprintf(m->link->why, ESPER_COMM_WHY_CHARS, "%s ended, and did not leave the job before", who);
    return true;
}

static esper_status fail_wait(esper_messages *m, int rank, esper_wait_end end)
{
    double seconds = 1e-9 * (double)m->rules->deadline_ns;
    char *why = m->link->why, who[128] = "";
    int n_missing, n_ended = 0;
    size_t used = 0;

    if (end == ESPER_WAIT_ABORT) {
        snprintf(why, ESPER_COMM_WHY_CHARS, "stopped by request while waiting for rank %d", rank);
        return ESPER_E_STOPPED;
    }
    n_missing = call_roll(m, *(const MPI_Comm *)m->comm, &n_ended);
    for (int r = 0; r < m->link->size && used + 16 < sizeof(who); r++)
        if (m->is_lost[r])
            used += (size_t)snprintf(who + used, sizeof(who) - used, "%s%d", used > 0 ? ", " : "", r);
    if (n_ended > 0)
        snprintf(why, ESPER_COMM_WHY_CHARS, "%s %s has ended its part of the job",
                 n_missing + n_ended == 1 ? "rank" : "one of ranks", who);
    else if (n_missing > 0)
        snprintf(why, ESPER_COMM_WHY_CHARS, "%s %s did not come within %.3g s, nor answer then",
                 n_missing == 1 ? "rank" : "ranks", who, seconds);
    else
        snprintf(why, ESPER_COMM_WHY_CHARS,
                 "rank %d did not come within %.3g s, though all ranks answer: they are not at the "
                 "same call",
                 rank, seconds);
    return ESPER_E_PEER;
}

/* --------------------------------------------------------------------------------------------------------- messages */

static esper_status exchange(esper_messages *m, int to, const void *sent, size_t n_sent, int from, void *received,
                             size_t n_received)
{
    MPI_Comm comm = *(const MPI_Comm *)m->comm;
    MPI_Request requests[2];
    MPI_Status statuses[2];
    esper_wait wait = {0};
    int done = 0, n_came = 0, error;

    assert(n_sent <= ESPER_MESSAGE_BYTES && n_received <= ESPER_MESSAGE_BYTES);
    error = MPI_Irecv(received, (int)n_received, MPI_BYTE, from, m->tag, comm, &requests[0]);
    if (error == MPI_SUCCESS)
        error = MPI_Isend(sent, (int)n_sent, MPI_BYTE, to, m->tag, comm, &requests[1]);
    while (error == MPI_SUCCESS) {
        esper_wait_end end;

        error = MPI_Testall(2, requests, &done, statuses);
        if (error != MPI_SUCCESS || done)
            break;
        end = esper_wait_once(m->rules, &wait);
        if (end == ESPER_WAIT_LONG && has_lost_neighbour(m))
            return ESPER_E_PEER;
        if (end != ESPER_WAIT_ON && end != ESPER_WAIT_LONG)
            return fail_wait(m, from != NOBODY ? from : to, end);
    }
    if (error == MPI_SUCCESS && from != NOBODY)
        error = MPI_Get_count(&statuses[0], MPI_BYTE, &n_came);
    if (error != MPI_SUCCESS)
        return fail_mpi(m, error);
    if (from == NOBODY || n_came == (int)n_received)
        return ESPER_OK;
    snprintf(m->link->why, ESPER_COMM_WHY_CHARS,
             "rank %d sent %d bytes, %zu were expected: ranks must make the same calls in the same order", from, n_came,
             n_received);
    return ESPER_E_STATE;
}

/* Round by round everybody hears from twice as many. */
static esper_status meet(esper_messages *m, int call)
{
    int rank = m->link->rank, size = m->link->size;

    begin_call(m, call);
    for (int d = 1; d < size; d *= 2) {
        ESPER_TRY(exchange(m, (rank + d) % size, NULL, 0, (rank - d + size) % size, NULL, 0));
    }
    return ESPER_OK;
}

esper_status esper_messages_barrier(esper_messages *m)
{
    return meet(m, BARRIER);
}

esper_status esper_messages_end(esper_messages *m)
{
    return meet(m, END);
}

/* The same with the words of all heard so far: to hear of a rank twice does no harm. */
esper_status esper_messages_or(esper_messages *m, uint64_t *words, size_t count)
{
    enum { MOST = ESPER_MESSAGE_BYTES / sizeof(uint64_t) };
    int rank = m->link->rank, size = m->link->size;
    const uint64_t *theirs = m->scratch;

    begin_call(m, OR);
    for (size_t at = 0; at < count; at += MOST) {
        size_t n = count - at < MOST ? count - at : MOST;

        for (int d = 1; d < size; d *= 2) {
            ESPER_TRY(exchange(m, (rank + d) % size, words + at, n * sizeof(*words), (rank - d + size) % size,
                               m->scratch, n * sizeof(*words)));
            for (size_t i = 0; i < n; i++)
                words[at + i] |= theirs[i];
        }
    }
    return ESPER_OK;
}

/* A binomial tree: in round d the first d ranks (counted from the root) tell d others. */
esper_status esper_messages_broadcast(esper_messages *m, void *bytes, size_t count, int root)
{
    int size = m->link->size, place = (m->link->rank - root + size) % size;

    assert(root >= 0 && root < size);
    begin_call(m, BROADCAST);
    for (size_t at = 0; at < count; at += ESPER_MESSAGE_BYTES) {
        size_t n = count - at < ESPER_MESSAGE_BYTES ? count - at : ESPER_MESSAGE_BYTES;
        char *piece = (char *)bytes + at;

        for (int d = 1; d < size; d *= 2) {
            if (place < d && place + d < size)
                ESPER_TRY(exchange(m, (place + d + root) % size, piece, n, NOBODY, NULL, 0));
            else if (place >= d && place < 2 * d)
                ESPER_TRY(exchange(m, NOBODY, NULL, 0, (place - d + root) % size, piece, n));
        }
    }
    return ESPER_OK;
}

/* A ring: everybody hands on what it heard last, until all have gone round. Rare and small here, so not the fastest. */
esper_status esper_messages_gather(esper_messages *m, const void *mine, size_t count, void *all_out)
{
    int rank = m->link->rank, size = m->link->size, to = (rank + 1) % size, from = (rank - 1 + size) % size;
    char *all = all_out;

    begin_call(m, GATHER);
    if (count > 0)
        memmove(all + (size_t)rank * count, mine, count);
    for (int round = 0; round + 1 < size; round++) {
        char *sent = all + (size_t)((rank - round + size) % size) * count;
        char *received = all + (size_t)((from - round + size) % size) * count;

        for (size_t at = 0; at < count; at += ESPER_MESSAGE_BYTES) {
            size_t n = count - at < ESPER_MESSAGE_BYTES ? count - at : ESPER_MESSAGE_BYTES;
            ESPER_TRY(exchange(m, to, sent + at, n, from, received + at, n));
        }
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------------------- sums */

/* A range of the numbers, and how it is halved. */
typedef struct range {
    char  *values;
    size_t begin, end; /* numbers */
    size_t bytes;      /* of one */
    esper_comm_number number;
} range;

/* Sends one half, adds the other's to the half that is kept. */
static esper_status halve(esper_messages *m, range *r, int partner, bool keeps_upper)
{
    size_t middle = r->begin + (r->end - r->begin) / 2;
    size_t keep_begin = keeps_upper ? middle : r->begin, keep_end = keeps_upper ? r->end : middle;
    size_t give_begin = keeps_upper ? r->begin : middle, give_end = keeps_upper ? middle : r->end;
    esper_status status = exchange(m, partner, r->values + give_begin * r->bytes, (give_end - give_begin) * r->bytes,
                                   partner, m->scratch, (keep_end - keep_begin) * r->bytes);

    if (status == ESPER_OK)
        esper_tree_add(r->number, r->values + keep_begin * r->bytes, m->scratch, keep_end - keep_begin);
    r->begin = keep_begin;
    r->end = keep_end;
    return status;
}

/* Leaves halve with their neighbours, then with neighbours of neighbours, ...: of each number one leaf has the whole sum.
 * Then the same way back, with the sums. Both halves of a pair know the range that was halved: it is kept for each round. */
static esper_status sum_leaves(esper_messages *m, range whole, int leaf, const esper_tree *tree)
{
    range ranges[32];
    int n_rounds = 0;

    assert(leaf >= 0 && leaf < tree->n_leaves && tree->n_leaves <= 1 << 30);
    ranges[0] = whole;
    for (int d = 1; d < tree->n_leaves; d *= 2, n_rounds++) {
        ranges[n_rounds + 1] = ranges[n_rounds];
        ESPER_TRY(halve(m, &ranges[n_rounds + 1], esper_tree_rank(tree, leaf ^ d), (leaf & d) != 0));
    }
    for (int i = n_rounds; i > 0; i--) {
        const range *mine = &ranges[i], *both = &ranges[i - 1];
        size_t begin = mine->begin == both->begin ? mine->end : both->begin;
        size_t end = mine->begin == both->begin ? both->end : mine->begin;
        int partner = esper_tree_rank(tree, leaf ^ 1 << (i - 1));
        ESPER_TRY(exchange(m, partner, whole.values + mine->begin * whole.bytes,
                           (mine->end - mine->begin) * whole.bytes, partner, whole.values + begin * whole.bytes,
                           (end - begin) * whole.bytes));
    }
    return ESPER_OK;
}

static esper_status sum_piece(esper_messages *m, range whole)
{
    esper_tree tree = esper_tree_of(m->link->size);
    size_t n = whole.end - whole.begin;
    int rank = m->link->rank;
    bool is_folded = rank < 2 * tree.n_folded;

    if (is_folded && rank % 2 != 0) { /* hands its numbers to its neighbour, and hears of the sums */
        ESPER_TRY(exchange(m, rank - 1, whole.values, n * whole.bytes, NOBODY, NULL, 0));
        return exchange(m, NOBODY, NULL, 0, rank - 1, whole.values, n * whole.bytes);
    }
    if (is_folded) {
        ESPER_TRY(exchange(m, NOBODY, NULL, 0, rank + 1, m->scratch, n * whole.bytes));
        esper_tree_add(whole.number, whole.values, m->scratch, n);
    }
    ESPER_TRY(sum_leaves(m, whole, is_folded ? rank / 2 : rank - tree.n_folded, &tree));
    return is_folded ? exchange(m, rank + 1, whole.values, n * whole.bytes, NOBODY, NULL, 0) : ESPER_OK;
}

esper_status esper_messages_sum(esper_messages *m, void *values, size_t count, esper_comm_number number)
{
    size_t bytes = esper_tree_bytes(number), most = ESPER_MESSAGE_BYTES / bytes;

    begin_call(m, number == ESPER_COMM_F32 ? SUM_F32 : SUM_F64);
    for (size_t at = 0; at < count; at += most) {
        size_t n = count - at < most ? count - at : most;
        ESPER_TRY(
            sum_piece(m, (range){.values = (char *)values + at * bytes, .end = n, .bytes = bytes, .number = number}));
    }
    return ESPER_OK;
}
