/* B7-PT-02 and B7-PT-03, in host memory. Before: a check that asks four questions of each parameter, one answer after the
 * other; statistics over a flat copy of all gradients. After, both times: one scan of the guard's. */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/status.h"
#include "bench/tickets.h"

enum { GRADS = 1u << ESPER_GUARD_ROLE_GRAD };

typedef struct scan_setup {
    esper_bench_place *place;
    esper_bench_model *model; /* parameters, then gradients, of the same shapes */
    esper_guard       *guard;
    uint32_t           roles; /* of the scan; 0 = all */
    uint64_t           count; /* elements of the longest tensor, or of all gradients */
    float             *flat;  /* (count) the copy; NULL for the check */
    unsigned char     *mask;  /* (count) */
    uint64_t          *answers;
    uint64_t           before_bytes, after_bytes; /* taken by either way beside the tensors */
    uint64_t           found;                     /* before: tensors, or elements, that are not finite */
    uint64_t           reported;                  /* after: the same */
} scan_setup;

/* ---- the two ways */

static bool is_any(scan_setup *setup, esper_ticket_question question, const esper_guard_tensor *tensor)
{
    return esper_ticket_ask(setup->place->pool, question, tensor->data, tensor->count, setup->mask, setup->answers) > 0;
}

/* Each answer is looked at before the next question is asked. */
static esper_status check_each(void *context)
{
    scan_setup *setup = context;

    setup->found = 0;
    for (size_t i = 0; i < setup->model->n_tensors; i++) {
        bool has_nan = is_any(setup, ESPER_TICKET_NAN, &setup->model->tensors[i]);
        bool has_inf = is_any(setup, ESPER_TICKET_INF, &setup->model->tensors[i]);

        setup->found += has_nan || has_inf;
    }
    return ESPER_OK;
}

/* The counts alone: norms, which a scan gives too, would come on top. */
static esper_status copy_and_count(void *context)
{
    scan_setup *setup = context;
    esper_pool *pool = setup->place->pool;
    uint64_t at = 0, n[3];

    for (size_t i = 0; i < setup->model->n_tensors; i++) {
        const esper_guard_tensor *tensor = &setup->model->tensors[i];

        if (tensor->role != ESPER_GUARD_ROLE_GRAD)
            continue;
        esper_ticket_copy(pool, setup->flat + at, tensor->data, tensor->count);
        at += tensor->count;
    }
    for (int question = ESPER_TICKET_NAN; question <= ESPER_TICKET_ZERO; question++)
        n[question] =
            esper_ticket_ask(pool, (esper_ticket_question)question, setup->flat, at, setup->mask, setup->answers);
    setup->found = n[ESPER_TICKET_NAN] + n[ESPER_TICKET_INF];
    return ESPER_OK;
}

static esper_status scan(void *context)
{
    scan_setup *setup = context;
    const esper_guard_report *report;
    esper_guard_scan options;

    esper_guard_scan_init(&options);
    options.roles = setup->roles;
    ESPER_TRY(esper_guard_launch(setup->guard, &options));
    ESPER_TRY(esper_guard_read(setup->guard, &report));
    setup->reported = report->n_bad;
    return ESPER_OK;
}

/* ---- setting up */

static uint64_t live_bytes(void)
{
    esper_mem_stats stats;

    esper_mem_stats_get(&stats);
    return stats.live_bytes;
}

/* Room for both ways, taken before anything is timed and counted by the same counter. */
static esper_status take_memory(scan_setup *setup, bool has_copy)
{
    uint64_t began = live_bytes();

    if (has_copy)
        setup->flat = esper_mem_alloc(setup->count * sizeof(float));
    setup->mask = esper_mem_alloc(setup->count);
    setup->answers = esper_mem_alloc(esper_ticket_n_parts(setup->count) * sizeof(uint64_t));
    if ((has_copy && setup->flat == NULL) || setup->mask == NULL || setup->answers == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the way it was before needs %.0f MB beside the tensors",
                          (double)setup->count * (has_copy ? 5 : 1) / 1e6);
    setup->before_bytes = live_bytes() - began;
    return ESPER_OK;
}

static esper_status open_guard(scan_setup *setup, int n_threads)
{
    uint64_t began = live_bytes();
    esper_guard_options options;

    esper_guard_options_init(&options);
    options.n_threads = n_threads;
    ESPER_TRY(esper_guard_open(&options, &setup->guard));
    ESPER_TRY(esper_guard_add(setup->guard, setup->model->tensors, setup->model->n_tensors));
    ESPER_TRY(scan(setup));
    setup->after_bytes = live_bytes() - began;
    return ESPER_OK;
}

static uint64_t count_elements(const esper_bench_model *model, bool of_all_grads)
{
    uint64_t longest = 0, all = 0;

    for (size_t i = 0; i < model->n_tensors; i++) {
        longest = model->tensors[i].count > longest ? model->tensors[i].count : longest;
        all += model->tensors[i].role == ESPER_GUARD_ROLE_GRAD ? model->tensors[i].count : 0;
    }
    return of_all_grads ? all : longest;
}

static esper_status open_setup(scan_setup *setup, const esper_bench_request *request, bool statistics)
{
    int n_threads = request->config->threads;

    setup->roles = statistics ? GRADS : 0;
    ESPER_TRY(esper_bench_place_open("host", n_threads, &setup->place));
    ESPER_TRY(esper_bench_model_open(setup->place, ESPER_BENCH_GPT2, "pg", request->quick, &setup->model));
    setup->count = count_elements(setup->model, statistics);
    ESPER_TRY(take_memory(setup, statistics));
    return open_guard(setup, n_threads);
}

static void close_setup(scan_setup *setup)
{
    esper_guard_close(setup->guard);
    esper_mem_free(setup->answers);
    esper_mem_free(setup->mask);
    esper_mem_free(setup->flat);
    esper_bench_model_close(setup->model);
    esper_bench_place_close(setup->place);
}

/* Before anything is timed: both ways see a NaN in the last gradient, and nothing when it is gone. */
static esper_status prove(const esper_ticket_pair *pair, scan_setup *setup)
{
    float *element = setup->model->tensors[setup->model->n_tensors - 1].data, kept = *element;

    for (int bad = 1; bad >= 0; bad--) {
        *element = bad == 1 ? NAN : kept;
        ESPER_TRY(pair->before(setup));
        ESPER_TRY(pair->after(setup));
        if (setup->found != (uint64_t)bad || setup->reported != (uint64_t)bad)
            return ESPER_FAIL(ESPER_E_STATE, "with %d NaN in the gradients, one way found %llu and the other %llu", bad,
                              (unsigned long long)setup->found, (unsigned long long)setup->reported);
    }
    return ESPER_OK;
}

static esper_status measure(const esper_bench_request *request, bool statistics, scan_setup *setup,
                            esper_ticket_result *result)
{
    esper_ticket_pair pair = {.before = statistics ? copy_and_count : check_each, .after = scan, .context = setup};
    int n_threads;

    ESPER_TRY(open_setup(setup, request, statistics));
    ESPER_TRY(prove(&pair, setup));
    ESPER_TRY(esper_ticket_time(&pair, request->quick, result));
    n_threads = esper_pool_threads(setup->place->pool);
    snprintf(result->machine, sizeof(result->machine), "host, %d thread%s", n_threads, n_threads == 1 ? "" : "s");
    result->measured = true;
    return ESPER_OK;
}

esper_status esper_ticket_checks(const esper_bench_request *request, esper_ticket_result *result)
{
    scan_setup setup = {0};
    esper_status status = measure(request, false, &setup, result);

    close_setup(&setup);
    return status;
}

/* What is compared is memory; the times are told as well. */
esper_status esper_ticket_statistics(const esper_bench_request *request, esper_ticket_result *result)
{
    scan_setup setup = {0};
    esper_status status = measure(request, true, &setup, result);

    if (status == ESPER_OK) {
        result->before_ms = result->before;
        result->after_ms = result->after;
        result->before = (double)setup.before_bytes / 1e6;
        result->after = (double)setup.after_bytes / 1e6;
        result->ratio = result->before / result->after;
    }
    close_setup(&setup);
    return status;
}
