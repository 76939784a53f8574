/* esper bench gate: what it costs ranks to agree after an epoch, and to sum gradients. Every rank runs it; rank 0 prints. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "bench/bench.h"
#include "dist/agree.h"
#include "slot/slot_id.h"
#include "slot/slots.h"
#include "ui/terminal.h"

enum { WARM = 2000, ROUNDS = 100000, QUICK_ROUNDS = 1000, SLOTS = 10, GRADIENTS = 100000, SUM_ROUNDS = 300 };

static const double deadline_s = 30.0;

/* Times in seconds, of as many rounds. */
typedef struct gate_times {
    double *value, *limit;
    int     n;
} gate_times;

/* ------------------------------------------------------------------------------------------------- a table that lives */

static esper_status make_table(esper_slots *slots)
{
    esper_boundary boundaries[SLOTS];
    esper_slot_rules rules = {.permissive = true};

    memset(boundaries, 0, sizeof(boundaries));
    for (int k = 0; k < SLOTS; k++) {
        boundaries[k].col = boundaries[k].order = k;
        boundaries[k].channels = 64;
        ESPER_TRY(esper_slot_id_format(0, k, boundaries[k].slot));
    }
    ESPER_TRY(esper_slots_init(slots, boundaries, SLOTS, &rules));
    for (int k = 0; k < SLOTS; k++) {
        esper_germination wanted;
        esper_gate_result result;

        esper_germination_init(&wanted, "norm", 0);
        ESPER_TRY(esper_slot_germinate(&slots->slot[k], &wanted, NULL));
        ESPER_TRY(esper_slot_advance(&slots->slot[k], -1, NULL, NULL, &result));
    }
    return ESPER_OK;
}

/* The same on every rank, and another table each time. */
static esper_status live(esper_slots *slots, int epoch)
{
    return esper_slot_record_accuracy(&slots->slot[epoch % SLOTS], 50.0 + epoch % 1000 * 0.01);
}

/* ---------------------------------------------------------------------------------------------------------- measuring */

/* All that an epoch's agreement takes, from the table to the answer. */
static esper_status agree_once(esper_comm *comm, const esper_slots *slots, int epoch)
{
    esper_agree_state mine = {
        .table = esper_slots_hash(slots), .sequence = (uint64_t)epoch, .verdict = 7, .weights = 9};
    esper_agree_result result;

    ESPER_TRY(esper_agree(comm, &mine, &result));
    if (result.fields != 0)
        return ESPER_FAIL(ESPER_E_STATE, "the ranks of the benchmark do not agree");
    return ESPER_OK;
}

/* An exchange of as many bytes that mean nothing; with the communicator's own word they are 64. */
static esper_status exchange_once(esper_comm *comm)
{
    uint64_t words[7] = {0};

    return esper_comm_or_u64(comm, words, 7);
}

static esper_status measure_agree(esper_comm *comm, gate_times *times)
{
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    esper_status status = slots != NULL ? make_table(slots) : ESPER_FAIL(ESPER_E_NOMEM, "benchmark");

    for (int i = -WARM; i < times->n && status == ESPER_OK; i++) {
        uint64_t began, between, ended;

        status = live(slots, i + WARM);
        if (status == ESPER_OK)
            status = exchange_once(comm); /* so that all begin together */
        began = esper_clock_ns();
        if (status == ESPER_OK)
            status = agree_once(comm, slots, i + WARM);
        between = esper_clock_ns();
        if (status == ESPER_OK)
            status = exchange_once(comm);
        ended = esper_clock_ns();
        if (i < 0)
            continue;
        times->value[i] = 1e-9 * (double)(between - began);
        times->limit[i] = 1e-9 * (double)(ended - between);
    }
    esper_mem_free(slots);
    return status;
}

static esper_status sum_once(esper_comm *comm, float *values, float *copy, double *value_out, double *limit_out)
{
    double began, between;

    for (int i = 0; i < GRADIENTS; i++)
        values[i] = (float)i;
    ESPER_TRY(esper_comm_barrier(comm));
    began = esper_clock_seconds();
    ESPER_TRY(esper_comm_sum_f32(comm, values, GRADIENTS));
    between = esper_clock_seconds();
    memcpy(copy, values, GRADIENTS * sizeof(float));
    __asm__ volatile("" ::"r"(copy) : "memory"); /* both copies are made, whoever reads them */
    memcpy(values, copy, GRADIENTS * sizeof(float));
    __asm__ volatile("" ::"r"(values) : "memory");
    *limit_out = esper_clock_seconds() - between;
    *value_out = between - began;
    return ESPER_OK;
}

static esper_status measure_sum(esper_comm *comm, gate_times *times)
{
    float *values = esper_mem_alloc(2 * GRADIENTS * sizeof(float));
    esper_status status = values != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
    double value, limit;

    times->n = times->n < SUM_ROUNDS ? times->n : SUM_ROUNDS;
    for (int i = -10; i < times->n && status == ESPER_OK; i++) {
        status = sum_once(comm, values, values + GRADIENTS, &value, &limit);
        if (i < 0)
            continue;
        times->value[i] = value;
        times->limit[i] = limit;
    }
    esper_mem_free(values);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- printing */

static void print_line(const char *name, gate_times *times, const esper_comm *comm, const esper_bench_request *request)
{
    double value = 1e6 * esper_bench_quantile(times->value, times->n, 0.5);
    double p99 = 1e6 * esper_bench_quantile(times->value, times->n, 0.99);
    double limit = 1e6 * esper_bench_quantile(times->limit, times->n, 0.5);
    char text[512];
    esper_json out;

    if (!request->json) {
        esper_terminal_print(stdout, "%-12s %10.3f us   limit %10.3f us   %5.1f %%   p99 %.3f us   %d rank%s (%s)%s\n",
                             name, value, limit, 100.0 * limit / value, p99, esper_comm_size(comm),
                             esper_comm_size(comm) == 1 ? "" : "s", esper_comm_name(comm),
                             request->quick ? "   quick" : "");
        return;
    }
    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, name);
    esper_json_key(&out, "value"), esper_json_real(&out, value);
    esper_json_key(&out, "unit"), esper_json_text(&out, "us");
    esper_json_key(&out, "limit"), esper_json_real(&out, limit);
    esper_json_key(&out, "ratio"), esper_json_real(&out, limit / value);
    esper_json_key(&out, "p99"), esper_json_real(&out, p99);
    esper_json_key(&out, "rounds"), esper_json_int(&out, times->n);
    esper_json_key(&out, "ranks"), esper_json_int(&out, esper_comm_size(comm));
    esper_json_key(&out, "comm"), esper_json_text(&out, esper_comm_name(comm));
    esper_json_key(&out, "commit"), esper_json_text(&out, esper_build_commit());
    if (request->quick)
        esper_json_key(&out, "quick"), esper_json_bool(&out, true);
    esper_json_object_end(&out);
    printf("%s\n", text);
}

static const struct {
    const char *name;
    esper_status (*measure)(esper_comm *comm, gate_times *times);
} cases[] = {{"gate.agree", measure_agree}, {"gate.sum", measure_sum}};

enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

/* A round takes as long as it takes the slowest rank: one that comes last finds the others' letters there, and would find
 * itself quick. */
static esper_status take_slowest(esper_comm *comm, double *times, int n)
{
    assert(n > 0);
    enum { PIECE = 1024 };
    size_t size = (size_t)esper_comm_size(comm);
    double *all = esper_mem_alloc(size * PIECE * sizeof(double));
    esper_status status = all != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "benchmark");

    for (int at = 0; at < n && status == ESPER_OK; at += PIECE) {
        size_t count = (size_t)(n - at < PIECE ? n - at : PIECE);

        status = esper_comm_gather(comm, times + at, count * sizeof(double), all);
        for (size_t i = 0; i < size * count && status == ESPER_OK; i++)
            if (all[i] > times[at + (int)(i % count)])
                times[at + (int)(i % count)] = all[i];
    }
    esper_mem_free(all);
    return status;
}

static esper_status bench_case(int i, esper_comm *comm, const esper_bench_request *request)
{
    gate_times times = {.n = request->quick ? QUICK_ROUNDS : ROUNDS};
    esper_status status;

    times.value = esper_mem_alloc((size_t)times.n * 2 * sizeof(double));
    if (times.value == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
    times.limit = times.value + times.n;
    status = cases[i].measure(comm, &times);
    if (status == ESPER_OK)
        status = take_slowest(comm, times.value, times.n);
    if (status == ESPER_OK)
        status = take_slowest(comm, times.limit, times.n);
    if (status == ESPER_OK && esper_comm_rank(comm) == 0)
        print_line(cases[i].name, &times, comm, request);
    esper_mem_free(times.value);
    return status;
}

static esper_status run(esper_bench_request *request)
{
    esper_comm_options options = {.kind = "auto", .deadline_s = deadline_s};
    esper_status status = ESPER_OK;
    esper_comm *comm = NULL;

    for (int i = 0; i < N_CASES && status == ESPER_OK; i++) {
        if (!esper_bench_is_wanted(request, cases[i].name))
            continue;
        request->n_run++;
        if (request->device != NULL || request->paced)
            return ESPER_FAIL(ESPER_E_CONFIG, "gate takes no --device and no --paced");
        if (comm == NULL)
            status = esper_comm_open(&options, &comm);
        if (status == ESPER_OK && esper_comm_size(comm) == 1 && cases[i].measure == measure_sum)
            continue; /* there is nothing to add */
        if (status == ESPER_OK)
            status = bench_case(i, comm, request);
    }
    fflush(stdout);
    esper_comm_close(comm);
    return status;
}

const esper_bench_subject esper_bench_gate = {.name = "gate", .run = run};
