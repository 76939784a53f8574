/* Internal. esper bench tickets: the five findings that the engine began with, each as it was found and as it is now.
 *
 * A ticket is two ways of doing the same work, timed in turn. Where a machine lacks what one of them needs, the ticket
 * measures nothing and the figures recorded elsewhere are shown, as such. */
#ifndef ESPER_BENCH_TICKETS_H
#define ESPER_BENCH_TICKETS_H

#include "bench/bench.h"
#include "bench/guard_model.h"

/* What was measured; written by a ticket that could. */
typedef struct esper_ticket_result {
    double before, after, ratio; /* in the ticket's unit; ratio = before / after, the median of the rounds' own */
    double before_ms, after_ms;  /* of a ticket whose unit is not a time: how long each took; else 0 */
    int    n_rounds;
    bool   measured;             /* false: what it needs is not here */
    bool   silent;               /* another rank prints */
    char   machine[96];          /* "host, 2 threads" */
} esper_ticket_result;

/* Both ways over one context. `prepare` (or NULL) comes before each of them and is not timed. */
typedef struct esper_ticket_pair {
    esper_status (*before)(void *context);
    esper_status (*after)(void *context);
    esper_status (*prepare)(void *context);
    void        *context;
    int          n_rounds; /* 0: as many as take a second. Ranks, which must do the same, say how many */
} esper_ticket_pair;

/* Times both in turn, which is first changing from round to round: before, after in ms, ratio, n_rounds. */
esper_status esper_ticket_time(const esper_ticket_pair *pair, bool quick, esper_ticket_result *result);

/* The tickets. B7-PT-02 and B7-PT-03 are measured in host memory, B1-PT-02 and B3-CR-05 where there is a CUDA device. */
esper_status esper_ticket_checks(const esper_bench_request *request, esper_ticket_result *result);     /* B7-PT-02 */
esper_status esper_ticket_statistics(const esper_bench_request *request, esper_ticket_result *result); /* B7-PT-03 */
esper_status esper_ticket_rollback(const esper_bench_request *request, esper_ticket_result *result);   /* B1-PT-02 */
esper_status esper_ticket_norms(const esper_bench_request *request, esper_ticket_result *result);      /* B3-CR-05 */

/* B3-DRL-18, in a job of two ranks or more; every rank calls it. */
esper_status esper_ticket_gate(const esper_bench_request *request, esper_ticket_result *result);

/* A question about every element of some values, as array libraries answer it: a mask with a byte for each element is
 * written, then read and summed up. */
typedef enum esper_ticket_question { ESPER_TICKET_NAN, ESPER_TICKET_INF, ESPER_TICKET_ZERO } esper_ticket_question;

/* How many elements it holds for. Work is cut for all threads of the pool; mask has a byte for each element, answers a word
 * for each part (esper_ticket_n_parts). */
uint64_t esper_ticket_ask(esper_pool *pool, esper_ticket_question question, const float *values, uint64_t count,
                          unsigned char *mask, uint64_t *answers);
uint64_t esper_ticket_n_parts(uint64_t count);

/* A copy by all threads. */
void esper_ticket_copy(esper_pool *pool, float *to, const float *from, uint64_t count);

#endif
