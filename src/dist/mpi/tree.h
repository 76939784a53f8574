/* Internal. The one order in which ranks are summed. It depends on the number of ranks alone, not on how many numbers there
 * are, who adds them or which machine a rank is on, so every way of exchanging gives the same bits.
 *
 *   6 ranks:   0 + 1    2 + 3    4    5      the first pairs are folded, so that a power of two is left: the leaves
 *                  \    /         \  /
 *                    +     +       +         leaves are added in pairs, pairs in pairs, ... */
#ifndef ESPER_DIST_MPI_TREE_H
#define ESPER_DIST_MPI_TREE_H

#include <stddef.h>

#include "dist/kind.h"

typedef struct esper_tree {
    int n_leaves; /* the largest power of two up to the number of ranks */
    int n_folded; /* the first so many leaves are pairs of ranks */
} esper_tree;

static inline esper_tree esper_tree_of(int n_ranks)
{
    esper_tree tree = {1, 0};

    while (tree.n_leaves <= n_ranks / 2)
        tree.n_leaves *= 2;
    tree.n_folded = n_ranks - tree.n_leaves;
    return tree;
}

/* The first rank of a leaf. */
static inline int esper_tree_rank(const esper_tree *tree, int leaf)
{
    return leaf < tree->n_folded ? 2 * leaf : leaf + tree->n_folded;
}

size_t esper_tree_bytes(esper_comm_number number); /* of one number */

/* to += from */
void esper_tree_add(esper_comm_number number, void *to, const void *from, size_t count);

/* All ranks' numbers begin..end are at hand: ranks[r] is where those of rank r begin. out gets their sums, also from
 * `begin` on. */
void esper_tree_sum(esper_comm_number number, const void *const *ranks, int n_ranks, size_t begin, size_t end,
                    void *out);

#endif
