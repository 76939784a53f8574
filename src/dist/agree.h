/* Internal. The agreement record: whether all ranks are in the same state, for the price of one OR of 64 bytes.
 *
 *   word   0       1      2       3        4         5                    6                  7
 *          health  table  ~table  verdict  ~verdict  sequence, ~sequence  weights, ~weights  the communicator's own step
 *
 * The last one is not ours to fill: it travels with every exchange. So all of it is one cache line. Sequence number and
 * weights have half a word each, and their complement the other half.
 *
 * After the OR a pair in which all ranks said the same is still a number and its complement: exactly one of each two bits
 * is set. A bit that is set on both sides was 1 on one rank and 0 on another. Only then is everybody asked in full, and the
 * ranks that differ from the majority are named.
 *
 * Filling and judging are pure functions. That ranks differ is a reading, not a failure: the caller stops the job. */
#ifndef ESPER_DIST_AGREE_H
#define ESPER_DIST_AGREE_H

#include "dist/comm.h"

/* What must be the same on every rank: name, words. */
#define ESPER_AGREE_LIST(X)             \
    X(TABLE, table, "slot table")       \
    X(SEQUENCE, sequence, "sequence number") \
    X(VERDICT, verdict, "verdicts")     \
    X(WEIGHTS, weights, "weights")

typedef enum esper_agree_field {
#define X(name, member, text) ESPER_AGREE_##name,
    ESPER_AGREE_LIST(X)
#undef X
    ESPER_AGREE_N_FIELDS
} esper_agree_field;

/* What a rank has to say. health may differ: its bits are the caller's, and everybody learns which are up anywhere. The
 * others are hashes and counts the caller makes; of sequence and weights the record carries 32 bits. */
typedef struct esper_agree_state {
    uint64_t health;
    uint64_t table, sequence, verdict, weights;
} esper_agree_state;

typedef struct esper_agree_record {
    uint64_t words[7];
} esper_agree_record;

enum { ESPER_AGREE_NAMED = 8 };

typedef struct esper_agree_result {
    uint64_t health; /* bits that are up on any rank */
    unsigned fields; /* bits 1u << esper_agree_field that are not the same everywhere; 0 = agreed */
    /* the rest only when they are not */
    bool     has_majority; /* false: nobody can say who is right, and all are named */
    int      n_differing;  /* ranks; the first ESPER_AGREE_NAMED are named, with what differs in them and both values */
    int      rank[ESPER_AGREE_NAMED];
    unsigned rank_fields[ESPER_AGREE_NAMED];
    int      field;    /* the first that differs in the first of them */
    uint64_t value[ESPER_AGREE_NAMED]; /* what each of them says there */
    uint64_t majority; /* and what most say there, if there is a majority */
} esper_agree_result;

const char *esper_agree_field_name(int field);

void esper_agree_fill(const esper_agree_state *state, esper_agree_record *record_out);

/* The fields that are not the same everywhere, from the record that was reduced over all ranks. */
unsigned esper_agree_differing(const esper_agree_record *reduced);

/* Who differs, from what all ranks said, in order of ranks. */
void esper_agree_judge(const esper_agree_state *states, int n_ranks, esper_agree_result *result_out);

/* "rank 2 of 4 differs from the others in its slot table (...)"; "" when they agree. */
void esper_agree_text(const esper_agree_result *result, int n_ranks, char *text_out, size_t chars);

/* All ranks, once for each epoch. Fails only when the exchange does. */
esper_status esper_agree(esper_comm *comm, const esper_agree_state *state, esper_agree_result *result_out);

#endif
