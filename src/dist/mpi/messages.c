/* Exchange by messages: non-blocking calls that are tested until they are done, late, or not wanted any more. */
#include "dist/mpi/messages.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "dist/mpi/tree.h"

enum { NOBODY = MPI_PROC_NULL, TAG = 1 };

static esper_status fail_mpi(esper_messages *m, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    MPI_Error_string(error, text, &n);
    snprintf(m->link->why, ESPER_COMM_WHY_CHARS, "MPI: %.300s", text);
    return ESPER_E_PEER;
}

/* Who does not answer may itself wait for somebody, so nobody is marked as lost but for a partner without partners. */
static esper_status fail_wait(esper_messages *m, int from, int to, esper_wait_end end)
{
    int rank = from != NOBODY ? from : to;

    if (end == ESPER_WAIT_ABORT) {
        snprintf(m->link->why, ESPER_COMM_WHY_CHARS, "stopped by request while waiting for rank %d", rank);
        return ESPER_E_STOPPED;
    }
    m->link->is_lost[rank] = m->link->size == 2;
    snprintf(m->link->why, ESPER_COMM_WHY_CHARS, "rank %d did not answer within %.3g s%s", rank,
             1e-9 * (double)m->rules->deadline_ns, m->link->size > 2 ? ", or a rank that it waits for" : "");
    return ESPER_E_PEER;
}

static esper_status exchange(esper_messages *m, int to, const void *sent, size_t n_sent, int from, void *received,
                             size_t n_received)
{
    MPI_Comm comm = *(const MPI_Comm *)m->comm;
    MPI_Request requests[2];
    esper_wait wait = {0};
    int done = 0, error;

    error = MPI_Irecv(received, (int)n_received, MPI_BYTE, from, TAG, comm, &requests[0]);
    if (error == MPI_SUCCESS)
        error = MPI_Isend(sent, (int)n_sent, MPI_BYTE, to, TAG, comm, &requests[1]);
    while (error == MPI_SUCCESS) {
        esper_wait_end end;

        error = MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE);
        if (error != MPI_SUCCESS || done)
            break;
        end = esper_wait_once(m->rules, &wait);
        if (end != ESPER_WAIT_ON && end != ESPER_WAIT_LONG)
            return fail_wait(m, from, to, end);
    }
    return error == MPI_SUCCESS ? ESPER_OK : fail_mpi(m, error);
}

/* Round by round everybody hears from twice as many. */
esper_status esper_messages_barrier(esper_messages *m)
{
    int rank = m->link->rank, size = m->link->size;

    for (int d = 1; d < size; d *= 2) {
        esper_status status = exchange(m, (rank + d) % size, NULL, 0, (rank - d + size) % size, NULL, 0);

        if (status != ESPER_OK)
            return status;
    }
    return ESPER_OK;
}

/* The same with the words of all heard so far: to hear of a rank twice does no harm. */
static esper_status or_piece(esper_messages *m, uint64_t *words, size_t n)
{
    int rank = m->link->rank, size = m->link->size;
    const uint64_t *theirs = m->scratch;

    for (int d = 1; d < size; d *= 2) {
        esper_status status = exchange(m, (rank + d) % size, words, n * sizeof(*words), (rank - d + size) % size,
                                       m->scratch, n * sizeof(*words));

        if (status != ESPER_OK)
            return status;
        for (size_t i = 0; i < n; i++)
            words[i] |= theirs[i];
    }
    return ESPER_OK;
}

esper_status esper_messages_or(esper_messages *m, uint64_t *words, size_t count)
{
    enum { MOST = ESPER_MESSAGE_BYTES / sizeof(uint64_t) };

    for (size_t at = 0; at < count; at += MOST) {
        esper_status status = or_piece(m, words + at, count - at < MOST ? count - at : MOST);

        if (status != ESPER_OK)
            return status;
    }
    return ESPER_OK;
}

/* A binomial tree: in round d the first d ranks (counted from the root) tell d others. */
static esper_status broadcast_piece(esper_messages *m, void *bytes, size_t n, int root)
{
    int size = m->link->size, place = (m->link->rank - root + size) % size;

    for (int d = 1; d < size; d *= 2) {
        esper_status status = ESPER_OK;

        if (place < d && place + d < size)
            status = exchange(m, (place + d + root) % size, bytes, n, NOBODY, NULL, 0);
        else if (place >= d && place < 2 * d)
            status = exchange(m, NOBODY, NULL, 0, (place - d + root) % size, bytes, n);
        if (status != ESPER_OK)
            return status;
    }
    return ESPER_OK;
}

esper_status esper_messages_broadcast(esper_messages *m, void *bytes, size_t count, int root)
{
    for (size_t at = 0; at < count; at += ESPER_MESSAGE_BYTES) {
        esper_status status = broadcast_piece(
            m, (char *)bytes + at, count - at < ESPER_MESSAGE_BYTES ? count - at : ESPER_MESSAGE_BYTES, root);

        if (status != ESPER_OK)
            return status;
    }
    return ESPER_OK;
}

/* A ring: everybody hands on what it heard last, until all have gone round. Rare and small here, so not the fastest. */
esper_status esper_messages_gather(esper_messages *m, const void *mine, size_t count, void *all_out)
{
    int rank = m->link->rank, size = m->link->size, to = (rank + 1) % size, from = (rank - 1 + size) % size;
    char *all = all_out;

    if (count > 0)
        memmove(all + (size_t)rank * count, mine, count);
    for (int round = 0; round + 1 < size; round++) {
        char *sent = all + (size_t)((rank - round + size) % size) * count;
        char *received = all + (size_t)((from - round + size) % size) * count;

        for (size_t at = 0; at < count; at += ESPER_MESSAGE_BYTES) {
            size_t n = count - at < ESPER_MESSAGE_BYTES ? count - at : ESPER_MESSAGE_BYTES;
            esper_status status = exchange(m, to, sent + at, n, from, received + at, n);

            if (status != ESPER_OK)
                return status;
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

    ranges[0] = whole;
    for (int d = 1; d < tree->n_leaves; d *= 2, n_rounds++) {
        esper_status status;

        ranges[n_rounds + 1] = ranges[n_rounds];
        status = halve(m, &ranges[n_rounds + 1], esper_tree_rank(tree, leaf ^ d), (leaf & d) != 0);
        if (status != ESPER_OK)
            return status;
    }
    for (int i = n_rounds; i > 0; i--) {
        const range *mine = &ranges[i], *both = &ranges[i - 1];
        size_t begin = mine->begin == both->begin ? mine->end : both->begin;
        size_t end = mine->begin == both->begin ? both->end : mine->begin;
        int partner = esper_tree_rank(tree, leaf ^ 1 << (i - 1));
        esper_status status =
            exchange(m, partner, whole.values + mine->begin * whole.bytes, (mine->end - mine->begin) * whole.bytes,
                     partner, whole.values + begin * whole.bytes, (end - begin) * whole.bytes);

        if (status != ESPER_OK)
            return status;
    }
    return ESPER_OK;
}

static esper_status sum_piece(esper_messages *m, range whole)
{
    esper_tree tree = esper_tree_of(m->link->size);
    size_t n = whole.end - whole.begin;
    int rank = m->link->rank;
    bool is_folded = rank < 2 * tree.n_folded;
    esper_status status = ESPER_OK;

    if (is_folded && rank % 2 != 0) { /* hands its numbers to its neighbour, and hears of the sums */
        status = exchange(m, rank - 1, whole.values, n * whole.bytes, NOBODY, NULL, 0);
        return status == ESPER_OK ? exchange(m, NOBODY, NULL, 0, rank - 1, whole.values, n * whole.bytes) : status;
    }
    if (is_folded) {
        status = exchange(m, NOBODY, NULL, 0, rank + 1, m->scratch, n * whole.bytes);
        if (status == ESPER_OK)
            esper_tree_add(whole.number, whole.values, m->scratch, n);
    }
    if (status == ESPER_OK)
        status = sum_leaves(m, whole, is_folded ? rank / 2 : rank - tree.n_folded, &tree);
    if (status == ESPER_OK && is_folded)
        status = exchange(m, rank + 1, whole.values, n * whole.bytes, NOBODY, NULL, 0);
    return status;
}

esper_status esper_messages_sum(esper_messages *m, void *values, size_t count, esper_comm_number number)
{
    size_t bytes = esper_tree_bytes(number), most = ESPER_MESSAGE_BYTES / bytes;

    for (size_t at = 0; at < count; at += most) {
        size_t n = count - at < most ? count - at : most;
        esper_status status =
            sum_piece(m, (range){.values = (char *)values + at * bytes, .end = n, .bytes = bytes, .number = number});

        if (status != ESPER_OK)
            return status;
    }
    return ESPER_OK;
}
