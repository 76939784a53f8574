/* Two ways of doing the same work, timed in turn. */
#include "base/clock.h"
#include "base/status.h"
#include "bench/tickets.h"

enum { LEAST_ROUNDS = 7, MOST_ROUNDS = 301, QUICK_ROUNDS = 3, WARM_ROUNDS = 2 };

static const double least_seconds = 1.0;

static esper_status time_one(const esper_ticket_pair *pair, bool after, double *ms_out)
{
    double began;

    if (pair->prepare != NULL)
        ESPER_TRY(pair->prepare(pair->context));
    began = esper_clock_seconds();
    ESPER_TRY(after ? pair->after(pair->context) : pair->before(pair->context));
    *ms_out = 1e3 * (esper_clock_seconds() - began);
    return ESPER_OK;
}

static esper_status time_round(const esper_ticket_pair *pair, int round, double *before_out, double *after_out)
{
    bool after_first = round % 2 == 1;

    ESPER_TRY(time_one(pair, after_first, after_first ? after_out : before_out));
    return time_one(pair, !after_first, after_first ? before_out : after_out);
}

esper_status esper_ticket_time(const esper_ticket_pair *pair, bool quick, esper_ticket_result *result)
{
    double before[MOST_ROUNDS], after[MOST_ROUNDS], ratio[MOST_ROUNDS], spent = 0.0;
    double enough = quick || pair->n_rounds > 0 ? 0.0 : 1e3 * least_seconds;
    int least = pair->n_rounds > 0 ? pair->n_rounds : quick ? QUICK_ROUNDS : LEAST_ROUNDS, n = 0;

    for (int warm = 0; warm < WARM_ROUNDS; warm++)
        ESPER_TRY(time_round(pair, warm, &before[0], &after[0]));
    for (; n < least || (n < MOST_ROUNDS && spent < enough); n++) {
        ESPER_TRY(time_round(pair, n, &before[n], &after[n]));
        ratio[n] = before[n] / after[n];
        spent += before[n] + after[n];
    }
    result->before = esper_bench_quantile(before, n, 0.5);
    result->after = esper_bench_quantile(after, n, 0.5);
    result->ratio = esper_bench_quantile(ratio, n, 0.5);
    result->n_rounds = n;
    return ESPER_OK;
}
