/* esper bench guard: health scans and rollbacks, each in turn with the least that any program could do in its place:
 * reading, or copying, the same bytes once, by the same threads or on the same device. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "bench/bench.h"
#include "bench/guard_model.h"
#include "bench/place.h"
#include "ui/terminal.h"

enum { LEAST_ROUNDS = 11, MOST_ROUNDS = 301, QUICK_ROUNDS = 3, LEAST_CALLS = 3, PAGE = 4096 };
enum { GRADS = 1u << ESPER_GUARD_ROLE_GRAD };

static const double least_seconds = 1.0, paced_seconds = 0.05;

typedef enum bench_kind { SCAN, ROLLBACK, ROLLBACK_PINNED } bench_kind;

typedef struct bench_case {
    const char        *name;
    bench_kind         kind;
    esper_bench_shapes shapes;
    const char        *families; /* see bench/guard_model.h */
    uint32_t           roles;    /* of a scan; 0 = all */
    bool               cuda_only;
} bench_case;

static const bench_case cases[] = {
    {"guard.scan.gpt2", SCAN, ESPER_BENCH_GPT2, "pg", 0, false},
    {"guard.scan.gpt2_grads", SCAN, ESPER_BENCH_GPT2, "pg", GRADS, false},
    {"guard.scan.small100", SCAN, ESPER_BENCH_SMALL100, "pg", 0, false},
    {"guard.scan.small100_grads", SCAN, ESPER_BENCH_SMALL100, "pg", GRADS, false},
    {"guard.scan.tiny10k", SCAN, ESPER_BENCH_TINY, "pg", 0, false},
    {"guard.scan.1b", SCAN, ESPER_BENCH_1B, "pg", 0, true},
    {"guard.scan.1b_grads", SCAN, ESPER_BENCH_1B, "pg", GRADS, true},
    {"guard.rollback.gpt2", ROLLBACK, ESPER_BENCH_GPT2, "p", 0, false},
    {"guard.rollback.gpt2_adam", ROLLBACK, ESPER_BENCH_GPT2, "pmv", 0, false},
    {"guard.rollback.gpt2_pinned", ROLLBACK_PINNED, ESPER_BENCH_GPT2, "p", 0, true},
};

enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

/* What is measured: the guard over a model's tensors, with a ring where it is about rollback. */
typedef struct bench_setup {
    const bench_case  *bench;
    esper_bench_place *place;
    esper_bench_model *model;
    esper_guard       *guard;
    esper_ring        *ring;
    void              *copy;        /* the source of the copy that is a rollback's limit */
    char              *span;        /* the bytes concerned, of the model's memory */
    uint64_t           span_bytes;
    uint64_t           extra_bytes; /* what the guard took on the tensors' device */
} bench_setup;

typedef struct bench_figures {
    int    n_rounds;
    double value[MOST_ROUNDS], limit[MOST_ROUNDS], ratio[MOST_ROUNDS]; /* ms, ms, limit / value of each round */
} bench_figures;

/* ---- the guard's memory, counted */

/* Host memory that a device will use has its pages to itself; where it really begins is kept before it. */
static void *take_pages(size_t bytes)
{
    char *block = esper_mem_alloc(bytes + 2 * PAGE), *pages;

    if (block == NULL)
        return NULL;
    pages = block + PAGE - (uintptr_t)block % PAGE;
    memcpy(pages - sizeof(block), &block, sizeof(block));
    return pages;
}

static void give_pages(void *pages)
{
    char *block;

    memcpy(&block, (char *)pages - sizeof(block), sizeof(block));
    esper_mem_free(block);
}

static void *take_memory(void *context, int32_t device, size_t bytes)
{
    bench_setup *setup = context;
    void *memory = NULL;

    if (device == ESPER_GUARD_HOST)
        return take_pages(bytes);
    if (esper_device_alloc(setup->place->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &memory) != ESPER_OK)
        return NULL;
    setup->extra_bytes += bytes;
    return memory;
}

static void give_memory(void *context, int32_t device, void *memory)
{
    bench_setup *setup = context;

    if (device == ESPER_GUARD_HOST)
        give_pages(memory);
    else
        esper_device_release(setup->place->device, memory);
}

/* ---- setting up */

static esper_status scan(bench_setup *setup, const esper_guard_report **report_out)
{
    esper_guard_scan options;

    esper_guard_scan_init(&options);
    options.roles = setup->bench->roles;
    options.stream = esper_stream_native(setup->place->stream);
    ESPER_TRY(esper_guard_launch(setup->guard, &options));
    return esper_guard_read(setup->guard, report_out);
}

static esper_status open_guard(bench_setup *setup, const esper_config *config)
{
    esper_guard_options options;
    esper_mem_stats before, after;
    const esper_guard_report *report;

    esper_mem_stats_get(&before);
    esper_guard_options_init(&options);
    options.n_threads = config->threads;
    if (setup->place->number != ESPER_GUARD_HOST && setup->bench->kind == SCAN) {
        options.alloc = take_memory;
        options.release = give_memory;
        options.alloc_context = setup;
    }
    ESPER_TRY(esper_guard_open(&options, &setup->guard));
    ESPER_TRY(esper_guard_add(setup->guard, setup->model->tensors, setup->model->n_tensors));
    ESPER_TRY(scan(setup, &report));
    esper_mem_stats_get(&after);
    if (setup->place->number == ESPER_GUARD_HOST)
        setup->extra_bytes = after.live_bytes - before.live_bytes;
    return ESPER_OK;
}

static esper_status open_ring(bench_setup *setup)
{
    bool pinned = setup->bench->kind == ROLLBACK_PINNED;
    esper_ring_options options;
    esper_ring_status status;

    esper_ring_options_init(&options);
    options.mirror = 0; /* a copy to the host in the background would be measured too */
    options.place = pinned ? ESPER_RING_HOST : ESPER_RING_DEVICE;
    if (setup->place->number == ESPER_GUARD_HOST)
        options.place = ESPER_RING_AUTO;
    ESPER_TRY(esper_ring_open(setup->guard, &options, &setup->ring));
    if (setup->place->number != ESPER_GUARD_HOST)
        ESPER_TRY(esper_ring_add_stream(setup->ring, setup->place->number, esper_stream_native(setup->place->stream)));
    ESPER_TRY(esper_ring_take(setup->ring, 1, NULL, 0));
    ESPER_TRY(esper_ring_status_get(setup->ring, 1, &status));
    if (status.newest != ESPER_RING_GOOD)
        return ESPER_FAIL(ESPER_E_STATE, "%s: the snapshot is not good", setup->bench->name);
    if (pinned)
        return esper_device_alloc(setup->place->device, setup->span_bytes, ESPER_DEVICE_MEMORY_PINNED, &setup->copy);
    return esper_bench_place_alloc(setup->place, setup->span_bytes, &setup->copy);
}

static esper_status roll_back(bench_setup *setup)
{
    esper_ring_restored restored;

    return esper_ring_rollback(setup->ring, 1, &restored);
}

/* The first element of the last tensor, out and in. */
static esper_status move_element(bench_setup *setup, void *to, const void *from)
{
    ESPER_TRY(esper_stream_copy(setup->place->stream, to, from, sizeof(float)));
    return esper_stream_sync(setup->place->stream);
}

/* Before anything is measured: what is measured works. A NaN is found where it was put, and is gone afterwards. */
static esper_status prove(bench_setup *setup)
{
    size_t last = setup->model->n_tensors - 1;
    void *element = setup->model->tensors[last].data;
    const esper_guard_report *report;
    uint64_t found;
    float kept;

    ESPER_TRY(move_element(setup, &kept, element));
    ESPER_TRY(esper_guard_inject(setup->guard, last, 0, ESPER_FAULT_NAN, 0, esper_stream_native(setup->place->stream)));
    ESPER_TRY(scan(setup, &report));
    found = report->first_bad;
    if (setup->ring != NULL)
        ESPER_TRY(roll_back(setup));
    else
        ESPER_TRY(move_element(setup, element, &kept));
    ESPER_TRY(scan(setup, &report));
    if (found != last || report->bad != 0)
        return ESPER_FAIL(ESPER_E_STATE,
                          "%s: a NaN in tensor %zu was found in %lld, and %llu are bad after it was removed",
                          setup->bench->name, last, (long long)found, (unsigned long long)report->n_bad);
    return ESPER_OK;
}

static esper_status open_setup(bench_setup *setup, const esper_bench_request *request)
{
    const bench_case *bench = setup->bench;

    ESPER_TRY(esper_bench_model_open(setup->place, bench->shapes, bench->families, request->quick, &setup->model));
    esper_bench_model_span(setup->model, bench->roles, &setup->span, &setup->span_bytes);
    ESPER_TRY(open_guard(setup, request->config));
    if (bench->kind != SCAN)
        ESPER_TRY(open_ring(setup));
    return prove(setup);
}

static void close_setup(bench_setup *setup)
{
    esper_ring_close(setup->ring);
    esper_guard_close(setup->guard);
    esper_bench_place_release(setup->place, setup->copy);
    esper_bench_model_close(setup->model);
}

/* ---- measuring */

static esper_status time_value(bench_setup *setup, double *seconds_out)
{
    const esper_guard_report *report;
    double began = esper_clock_seconds();

    if (setup->bench->kind == SCAN)
        ESPER_TRY(scan(setup, &report));
    else
        ESPER_TRY(roll_back(setup));
    *seconds_out = esper_clock_seconds() - began;
    return ESPER_OK;
}

static esper_status time_limit(bench_setup *setup, double *seconds_out)
{
    if (setup->bench->kind == SCAN)
        return esper_bench_place_read(setup->place, setup->span, setup->span_bytes, seconds_out);
    return esper_bench_place_copy(setup->place, setup->span, setup->copy, setup->span_bytes, seconds_out);
}

/* Both, in turn: which is first changes from round to round. */
static esper_status time_round(bench_setup *setup, int round, double *value_out, double *limit_out)
{
    if (round % 2 == 1)
        ESPER_TRY(time_limit(setup, limit_out));
    ESPER_TRY(time_value(setup, value_out));
    if (round % 2 == 0)
        ESPER_TRY(time_limit(setup, limit_out));
    return ESPER_OK;
}

static esper_status time_rounds(bench_setup *setup, bool quick, bench_figures *figures)
{
    int least = quick ? QUICK_ROUNDS : LEAST_ROUNDS;
    double value, limit, spent = 0.0, enough = quick ? 0.0 : least_seconds;

    figures->n_rounds = 0;
    for (int warm = 0; warm < 2; warm++)
        ESPER_TRY(time_round(setup, warm, &value, &limit));
    for (int round = 0; round < least || (round < MOST_ROUNDS && spent < enough); round++) {
        ESPER_TRY(time_round(setup, round, &value, &limit));
        figures->value[round] = 1e3 * value;
        figures->limit[round] = 1e3 * limit;
        figures->ratio[round] = limit / value;
        figures->n_rounds++;
        spent += value + limit;
    }
    return ESPER_OK;
}

/* ---- printing */

static void put_spread(esper_json *out, const char *key, double *values, int n)
{
    assert(n > 0 && n <= MOST_ROUNDS);
    esper_json_key(out, key);
    esper_json_array_begin(out);
    esper_json_real(out, esper_bench_quantile(values, n, 0.1));
    esper_json_real(out, esper_bench_quantile(values, n, 0.9));
    esper_json_array_end(out);
}

/* ratio is that of the medians; ratio_paired the median of the rounds' own, which a machine whose speed changes under
 * the run disturbs less. */
static void print_json(const bench_setup *setup, bench_figures *figures, bool quick)
{
    double value = esper_bench_quantile(figures->value, figures->n_rounds, 0.5);
    double limit = esper_bench_quantile(figures->limit, figures->n_rounds, 0.5);
    char text[1024], place[16];
    esper_json out;

    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, setup->bench->name);
    esper_json_key(&out, "value"), esper_json_real(&out, value);
    esper_json_key(&out, "unit"), esper_json_text(&out, "ms");
    esper_json_key(&out, "limit"), esper_json_real(&out, limit);
    esper_json_key(&out, "ratio"), esper_json_real(&out, limit / value);
    esper_json_key(&out, "ratio_paired");
    esper_json_real(&out, esper_bench_quantile(figures->ratio, figures->n_rounds, 0.5));
    put_spread(&out, "value_p10_p90", figures->value, figures->n_rounds);
    put_spread(&out, "limit_p10_p90", figures->limit, figures->n_rounds);
    put_spread(&out, "ratio_p10_p90", figures->ratio, figures->n_rounds);
    esper_json_key(&out, "limit_is"), esper_json_text(&out, setup->bench->kind == SCAN ? "read" : "copy");
    esper_json_key(&out, "rounds"), esper_json_int(&out, figures->n_rounds);
    esper_json_key(&out, "tensors"), esper_json_int(&out, (int64_t)setup->model->n_tensors);
    esper_json_key(&out, "bytes"), esper_json_int(&out, (int64_t)setup->span_bytes);
    esper_json_key(&out, "gb_per_s"), esper_json_real(&out, (double)setup->span_bytes / value / 1e6);
    if (setup->bench->kind == SCAN)
        esper_json_key(&out, "extra_bytes"), esper_json_int(&out, (int64_t)setup->extra_bytes);
    esper_json_key(&out, "device"), esper_json_text(&out, esper_bench_place_name(setup->place, place));
    esper_json_key(&out, "threads"), esper_json_int(&out, esper_pool_threads(setup->place->pool));
    esper_json_key(&out, "commit"), esper_json_text(&out, esper_build_commit());
    if (quick)
        esper_json_key(&out, "quick"), esper_json_bool(&out, true);
    esper_json_object_end(&out);
    printf("%s\n", text);
    fflush(stdout);
}

static void print_figures(const bench_setup *setup, bench_figures *figures, const esper_bench_request *request)
{
    double value, limit;

    if (request->json) {
        print_json(setup, figures, request->quick);
        return;
    }
    value = esper_bench_quantile(figures->value, figures->n_rounds, 0.5);
    limit = esper_bench_quantile(figures->limit, figures->n_rounds, 0.5);
    if (request->quick) { /* of shapes that fit a cache, a few times: no figure to compare with anything */
        printf("%-26s %10.4f ms   quick\n", setup->bench->name, value);
        fflush(stdout);
        return;
    }
    esper_terminal_print(stdout, "%-26s %10.4f ms   limit %10.4f ms   %5.1f %%   %7.1f GB/s\n", setup->bench->name,
                         value, limit, 100.0 * limit / value, (double)setup->span_bytes / value / 1e6);
    fflush(stdout);
}

static void print_skipped(const bench_case *bench, bool json)
{
    static const char why[] = "needs a CUDA device";

    if (json)
        printf("{\"name\":\"%s\",\"skipped\":\"%s\"}\n", bench->name, why);
    else
        esper_terminal_print(stdout, "%-26s skipped: %s\n", bench->name, why);
}

/* ---- a round for each line of standard input */

/* The median of as many calls as take a twentieth of a second, at least three. */
static esper_status time_paced(bench_setup *setup, double *ms_out)
{
    double times[MOST_ROUNDS], spent = 0.0;
    int n = 0;

    while (n < LEAST_CALLS || (n < MOST_ROUNDS && spent < paced_seconds)) {
        ESPER_TRY(time_value(setup, &times[n]));
        spent += times[n++];
    }
    *ms_out = 1e3 * esper_bench_quantile(times, n, 0.5);
    return ESPER_OK;
}

static esper_status run_paced(bench_setup *setup)
{
    char line[64], place[16];
    double ms;

    printf("{\"name\":\"%s\",\"ready\":true,\"device\":\"%s\",\"threads\":%d,\"commit\":\"%s\"}\n", setup->bench->name,
           esper_bench_place_name(setup->place, place), esper_pool_threads(setup->place->pool), esper_build_commit());
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin) != NULL) {
        ESPER_TRY(time_paced(setup, &ms));
        printf("{\"name\":\"%s\",\"value\":%.6f,\"unit\":\"ms\"}\n", setup->bench->name, ms);
        fflush(stdout);
    }
    return ESPER_OK;
}

/* ---- the subject */

static esper_status run_case(const bench_case *bench, esper_bench_place *place, const esper_bench_request *request)
{
    bench_setup setup = {.bench = bench, .place = place};
    bench_figures *figures = esper_mem_alloc(sizeof(*figures));
    esper_status status;

    if (figures == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
    status = open_setup(&setup, request);
    if (status == ESPER_OK && request->paced)
        status = run_paced(&setup);
    else if (status == ESPER_OK)
        status = time_rounds(&setup, request->quick, figures);
    if (status == ESPER_OK && !request->paced)
        print_figures(&setup, figures, request);
    close_setup(&setup);
    esper_mem_free(figures);
    return status;
}

static esper_status check_request(const esper_bench_request *request)
{
    int backend = esper_config_find("backend");

    if (esper_config_place_of(request->config, backend) == ESPER_CONFIG_FLAG)
        return ESPER_FAIL(ESPER_E_CONFIG, "the guard's benchmarks take no --backend; --device says where they run");
    if (request->paced && request->n_run != 1)
        return ESPER_FAIL(ESPER_E_CONFIG, "--paced takes the whole name of one benchmark, '%s' means %d", request->name,
                          request->n_run);
    return ESPER_OK;
}

static esper_status run(esper_bench_request *request)
{
    esper_bench_place *place;
    esper_status status = ESPER_OK;
    int n_wanted = 0;

    for (int i = 0; i < N_CASES; i++)
        n_wanted += esper_bench_is_wanted(request, cases[i].name);
    if (n_wanted == 0)
        return ESPER_OK;
    request->n_run += n_wanted;
    ESPER_TRY(check_request(request));
    ESPER_TRY(esper_bench_place_open(request->device, request->config->threads, &place));
    for (int i = 0; i < N_CASES && status == ESPER_OK; i++) {
        if (!esper_bench_is_wanted(request, cases[i].name))
            continue;
        if (cases[i].cuda_only && place->number == ESPER_GUARD_HOST)
            print_skipped(&cases[i], request->json);
        else
            status = run_case(&cases[i], place, request);
    }
    esper_bench_place_close(place);
    return status;
}

const esper_bench_subject esper_bench_guard = {.name = "guard", .run = run};
