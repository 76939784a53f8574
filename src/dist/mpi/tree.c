/* Sums in the order of the tree. */
#include "dist/mpi/tree.h"

#include <assert.h>
#include <string.h>

enum { BLOCK_BYTES = 2048 }; /* what a level of the tree keeps at a time: all levels stay in the first cache */

size_t esper_tree_bytes(esper_comm_number number)
{
    return number == ESPER_COMM_F32 ? sizeof(float) : sizeof(double);
}

static void add_f32(float *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

static void add_f64(double *restrict to, const double *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

void esper_tree_add(esper_comm_number number, void *to, const void *from, size_t count)
{
    if (number == ESPER_COMM_F32)
        add_f32(to, from, count);
    else
        add_f64(to, from, count);
}

typedef struct block {
    esper_comm_number  number;
    esper_tree         tree;
    const void *const *ranks;
    size_t             at, count; /* bytes, numbers */
} block;

static const void *numbers_of(const block *b, int rank)
{
    return (const char *)b->ranks[rank] + b->at;
}

static void sum_leaves(const block *b, int first, int n_leaves, void *out)
{
    int rank = esper_tree_rank(&b->tree, first);

    assert(n_leaves > 0 && first + n_leaves <= b->tree.n_leaves);
    assert(b->count * esper_tree_bytes(b->number) <= BLOCK_BYTES);
    if (n_leaves == 1) {
        memcpy(out, numbers_of(b, rank), b->count * esper_tree_bytes(b->number));
        if (first < b->tree.n_folded)
            esper_tree_add(b->number, out, numbers_of(b, rank + 1), b->count);
    } else {
        _Alignas(64) char other[BLOCK_BYTES];

        sum_leaves(b, first, n_leaves / 2, out);
        sum_leaves(b, first + n_leaves / 2, n_leaves / 2, other);
        esper_tree_add(b->number, out, other, b->count);
    }
}

void esper_tree_sum(esper_comm_number number, const void *const *ranks, int n_ranks, size_t begin, size_t end,
                    void *out)
{
    size_t bytes = esper_tree_bytes(number), step = BLOCK_BYTES / bytes;
    block b = {.number = number, .tree = esper_tree_of(n_ranks), .ranks = ranks};

    assert(begin <= end && n_ranks > 0);
    for (size_t i = begin; i < end; i += step) {
        b.at = i * bytes;
        b.count = end - i < step ? end - i : step;
        sum_leaves(&b, 0, b.tree.n_leaves, (char *)out + b.at);
    }
}
