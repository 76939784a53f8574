/* The lab for the guard's CUDA kernels: how long a scan takes, on the host's clock (launch, wait, statistics there) and
 * on the device's, and how copies of snapshots compare with plain ones. Prints a JSON object for each figure:
 *
 *   {"name": ..., "median_us": ..., "low_us": ..., "high_us": ..., "bytes": ..., "GBps": ..., "goal_us": ...}
 *
 * low and high are the 10th and 90th percentile. Results are checked before anything is timed. Of a scan:
 *
 *   scan.NAME           launch and read by the host's clock, of which
 *   scan.NAME.launch    the launch and
 *   scan.NAME.read      the wait and what follows;
 *   scan.NAME.device    by events around one launch, on a stream with nothing else;
 *   scan.NAME.kernel    by events around many, a launch's share
 *
 *   usage: scan_lab [PREFIX]     figures whose name begins so; all without */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/device_cuda.h"
#include "guard/engine_cuda.h"
#include "guard/report.h"

enum { MAX_TENSORS = 30000, REPEATS = 60, WARM_UP = 10, IN_A_ROW = 20, PATTERN_WORDS = 1 << 22 };

typedef struct lab {
    esper_device     *device;
    esper_stream     *stream;
    CUevent           begin, end;
    const char       *prefix;
    esper_scan_tensor tensors[MAX_TENSORS];
    size_t            n;
    uint64_t          bytes;
    char             *memory;
} lab;

static CUresult (*elapsed)(float *ms, CUevent begin, CUevent end);

static void must(esper_status status)
{
    if (status == ESPER_OK)
        return;
    fprintf(stderr, "scan_lab: %s: %s\n", esper_status_name(status), esper_last_error());
    exit(1);
}

static void expect(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "scan_lab: wrong result: %s\n", what);
    exit(1);
}

static bool is_wanted(const lab *l, const char *name)
{
    return l->prefix == NULL || strncmp(name, l->prefix, strlen(l->prefix)) == 0;
}

/* ----------------------------------------------------------------------------------------------------------- shapes */

static void add(lab *l, uint64_t count)
{
    if (l->n == MAX_TENSORS)
        exit(1);
    l->tensors[l->n++] = (esper_scan_tensor){.count = count, .dtype = ESPER_GUARD_F32, .role = ESPER_GUARD_ROLE_PARAM};
}

static void add_gpt(lab *l, uint64_t vocabulary, uint64_t context, uint64_t width, int layers)
{
    add(l, vocabulary * width);
    add(l, context * width);
    for (int i = 0; i < layers; i++) {
        const uint64_t shapes[] = {width,  width, 3 * width * width, 3 * width, width * width,     width,
                                   width,  width, 4 * width * width, 4 * width, 4 * width * width, width};

        for (int k = 0; k < 12; k++)
            add(l, shapes[k]);
    }
    add(l, width);
    add(l, width);
}

static void add_model(lab *l, const char *name)
{
    l->n = 0;
    if (strcmp(name, "gpt2") == 0)
        add_gpt(l, 50304, 1024, 768, 12);
    else if (strcmp(name, "1b") == 0)
        add_gpt(l, 50304, 2048, 2048, 18);
    else if (strcmp(name, "small100") == 0)
        for (int i = 0; i < 100; i++)
            add(l, i % 2 == 0 ? 64 * 64 * 3 * 3 : 64);
    else
        for (int i = 0; i < 5000; i++)
            add(l, 64);
}

/* The same tensors once more in another role. */
static void add_again(lab *l, size_t n, esper_guard_role role)
{
    for (size_t i = 0; i < n; i++) {
        add(l, l->tensors[i].count);
        l->tensors[l->n - 1].role = role;
        l->tensors[l->n - 1].group = role;
    }
}

/* Memory for all of them, each at a multiple of 512 bytes as frameworks do, filled with normal-looking numbers. */
static void place(lab *l)
{
    float *pattern = malloc(PATTERN_WORDS * sizeof(*pattern));
    uint64_t total = 0, state = 88172645463325252u;
    void *memory;

    l->bytes = 0;
    for (size_t i = 0; i < l->n; i++) {
        l->bytes += l->tensors[i].count * 4;
        total += (l->tensors[i].count * 4 + 511) / 512 * 512;
    }
    must(esper_device_alloc(l->device, total, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    l->memory = memory;
    for (int i = 0; i < PATTERN_WORDS; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        pattern[i] = (float)((double)(int64_t)state * 0x1p-63 * 0.05);
    }
    for (uint64_t at = 0; at < total; at += PATTERN_WORDS * 4)
        must(esper_stream_copy(l->stream, l->memory + at, pattern,
                               total - at < PATTERN_WORDS * 4 ? total - at : PATTERN_WORDS * 4));
    must(esper_stream_sync(l->stream));
    free(pattern);
    total = 0;
    for (size_t i = 0; i < l->n; i++) {
        l->tensors[i].data = l->memory + total;
        total += (l->tensors[i].count * 4 + 511) / 512 * 512;
    }
}

static void unplace(lab *l)
{
    esper_device_release(l->device, l->memory);
}

/* ----------------------------------------------------------------------------------------------------------- timing */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print(const lab *l, const char *name, double *us, uint64_t bytes, double goal_us)
{
    (void)l;
    qsort(us, REPEATS, sizeof(*us), compare);
    printf(
        "{\"name\": \"%s\", \"median_us\": %.2f, \"low_us\": %.2f, \"high_us\": %.2f, \"bytes\": %llu, \"GBps\": %.0f, "
        "\"goal_us\": %g}\n",
        name, us[REPEATS / 2], us[REPEATS / 10], us[REPEATS * 9 / 10], (unsigned long long)bytes,
        (double)bytes / us[REPEATS / 2] * 1e-3, goal_us);
    fflush(stdout);
}

static void record(lab *l, CUevent event)
{
    must(esper_cuda_enter(l->device));
    must(ESPER_CUDA(cuEventRecord, event, esper_stream_native(l->stream)));
    esper_cuda_leave();
}

static double between_us(lab *l)
{
    float ms = 0;

    must(esper_cuda_enter(l->device));
    must(ESPER_CUDA(cuEventSynchronize, l->end));
    expect(elapsed(&ms, l->begin, l->end) == CUDA_SUCCESS, "elapsed time");
    esper_cuda_leave();
    return (double)ms * 1e3;
}

/* ------------------------------------------------------------------------------------------------------------ scans */

typedef struct scan_case {
    const char *name;
    uint32_t    roles;
    bool        checksum;
    double      clip_norm;
    double      goal_us; /* of the host's clock; 0 = none */
} scan_case;

static void check_result(const lab *l, const scan_case *c, const esper_scan_result *result)
{
    expect(isfinite(esper_scan_norm(&result->roles[ESPER_GUARD_ROLE_GRAD])), "norm");
    for (size_t i = 0; i < l->n; i++) {
        const esper_guard_stat *stat = &result->stats[i];

        if (c->roles >> l->tensors[i].role & 1)
            expect(stat->scanned == 1 && stat->first_bad == UINT64_MAX && stat->max_abs > 0 && stat->max_abs <= 0.05,
                   "statistics");
        else
            expect(stat->scanned == 0 && stat->max_abs == 0, "statistics of other roles");
    }
}

static void print_part(const lab *l, const scan_case *c, const char *part, double *us, uint64_t bytes)
{
    char name[96];

    snprintf(name, sizeof(name), "%s.%s", c->name, part);
    print(l, name, us, bytes, 0);
}

static void time_on_host(const lab *l, esper_engine *engine, const scan_case *c, const esper_scan_request *request,
                         uint64_t bytes)
{
    double total_us[REPEATS], launch_us[REPEATS], read_us[REPEATS];
    esper_scan_result result;

    for (int i = -WARM_UP; i < REPEATS; i++) {
        uint64_t began = esper_clock_ns(), launched;

        must(esper_engine_cuda.scan(engine, request));
        launched = esper_clock_ns();
        must(esper_engine_cuda.collect(engine, &result));
        if (i < 0)
            continue;
        total_us[i] = (double)(esper_clock_ns() - began) * 1e-3;
        launch_us[i] = (double)(launched - began) * 1e-3;
        read_us[i] = total_us[i] - launch_us[i];
    }
    check_result(l, c, &result);
    print(l, c->name, total_us, bytes, c->goal_us);
    print_part(l, c, "launch", launch_us, bytes);
    print_part(l, c, "read", read_us, bytes);
}

/* n launches between two events; a launch's share of the time. */
static void time_on_device(lab *l, esper_engine *engine, const scan_case *c, const esper_scan_request *request, int n,
                           const char *part, uint64_t bytes)
{
    double us[REPEATS];
    esper_scan_result result;

    for (int i = -WARM_UP; i < REPEATS; i++) {
        record(l, l->begin);
        for (int k = 0; k < n; k++)
            must(esper_engine_cuda.scan(engine, request));
        record(l, l->end);
        if (i >= 0)
            us[i] = between_us(l) / n;
        must(esper_engine_cuda.collect(engine, &result));
    }
    check_result(l, c, &result);
    print_part(l, c, part, us, bytes);
}

static void time_scan(lab *l, esper_engine *engine, const scan_case *c, uint64_t bytes)
{
    const esper_scan_request request = {.roles = c->roles,
                                        .tiny = 1e-8,
                                        .checksum = c->checksum,
                                        .clip_norm = c->clip_norm,
                                        .stream = esper_stream_native(l->stream)};

    time_on_host(l, engine, c, &request, bytes);
    time_on_device(l, engine, c, &request, 1, "device", bytes);
    time_on_device(l, engine, c, &request, IN_A_ROW, "kernel", bytes);
}

static void run_scans(lab *l, const char *model, const scan_case *cases, int n_cases)
{
    esper_guard_options options = {.size = sizeof(options), .tiny = 1e-8, .vanishing = 1e-7, .exploding = 10.0};
    esper_engine *engine;
    bool any = false;

    for (int i = 0; i < n_cases; i++)
        any = any || is_wanted(l, cases[i].name);
    if (!any)
        return;
    add_model(l, model);
    add_again(l, l->n, ESPER_GUARD_ROLE_GRAD);
    place(l);
    must(esper_engine_cuda.open(0, &options, &engine));
    must(esper_engine_cuda.bind(engine, l->tensors, l->n, ESPER_GUARD_N_ROLES));
    printf("{\"name\": \"tables.%s\", \"bytes\": %llu, \"kernels\": \"%s\"}\n", model,
           (unsigned long long)esper_cuda_engine_bytes(engine), esper_cuda_engine_origin(engine));
    for (int i = 0; i < n_cases; i++)
        if (is_wanted(l, cases[i].name))
            time_scan(l, engine, &cases[i], cases[i].roles == 3 ? l->bytes : l->bytes / 2);
    esper_engine_cuda.close(engine);
    unplace(l);
}

/* ----------------------------------------------------------------------------------------------------------- copies */

typedef enum copy_kind { COPY_PLAIN, COPY_GATHER, COPY_SCATTER, COPY_SUM } copy_kind;

static void time_copy(lab *l, esper_cuda_copy *copy, copy_kind kind, char *arena, uint64_t arena_bytes, uint64_t *sum,
                      const char *name, double goal_us)
{
    void *stream = esper_stream_native(l->stream);
    double us[REPEATS];

    if (!is_wanted(l, name))
        return;
    for (int i = -WARM_UP; i < REPEATS; i++) {
        must(esper_stream_set(l->stream, sum, 0, sizeof(*sum)));
        record(l, l->begin);
        if (kind == COPY_PLAIN)
            must(esper_stream_copy(l->stream, l->memory, arena, arena_bytes));
        else if (kind == COPY_GATHER)
            must(esper_cuda_copy_gather(copy, arena, sum, stream));
        else if (kind == COPY_SCATTER)
            must(esper_cuda_copy_scatter(copy, arena, sum, stream));
        else
            must(esper_cuda_copy_checksum(copy, sum, stream));
        record(l, l->end);
        if (i >= 0)
            us[i] = between_us(l);
    }
    print(l, name, us, (kind == COPY_SUM ? 1 : 2) * l->bytes, goal_us);
}

static uint64_t read_sum(lab *l, const uint64_t *sum)
{
    uint64_t value = 0;

    must(esper_stream_copy(l->stream, &value, sum, sizeof(value)));
    must(esper_stream_sync(l->stream));
    return value;
}

/* The three ways to the same sum. */
static void check_copies(lab *l, esper_cuda_copy *copy, char *arena, uint64_t *sum)
{
    void *stream = esper_stream_native(l->stream);
    uint64_t first;

    must(esper_stream_set(l->stream, sum, 0, sizeof(*sum)));
    must(esper_cuda_copy_gather(copy, arena, sum, stream));
    first = read_sum(l, sum);
    must(esper_cuda_copy_scatter(copy, arena, sum, stream));
    expect(read_sum(l, sum) == 2 * first, "sum of scatter");
    must(esper_cuda_copy_checksum(copy, sum, stream));
    expect(read_sum(l, sum) == 3 * first && first != 0, "sum of the live tensors");
}

static void run_copies(lab *l, bool with_moments)
{
    static esper_copy_part parts[MAX_TENSORS];
    const char *names[2][4] = {
        {"rollback.gpt2.plain_copy", "rollback.gpt2.gather", "rollback.gpt2.scatter", "rollback.gpt2.sum"},
        {"rollback.gpt2_adam.plain_copy", "rollback.gpt2_adam.gather", "rollback.gpt2_adam.scatter",
         "rollback.gpt2_adam.sum"}};
    uint64_t arena_bytes = 0;
    esper_cuda_copy *copy;
    void *arena, *sum;
    size_t n;

    add_model(l, "gpt2");
    n = l->n;
    if (with_moments) {
        add_again(l, n, ESPER_GUARD_ROLE_MOMENT);
        add_again(l, n, ESPER_GUARD_ROLE_MOMENT);
    }
    place(l);
    for (size_t i = 0; i < l->n; i++) {
        parts[i] =
            (esper_copy_part){.data = l->tensors[i].data, .bytes = l->tensors[i].count * 4, .offset = arena_bytes};
        arena_bytes += (parts[i].bytes + 255) / 256 * 256;
    }
    must(esper_device_alloc(l->device, arena_bytes, ESPER_DEVICE_MEMORY_NORMAL, &arena));
    must(esper_device_alloc(l->device, sizeof(uint64_t), ESPER_DEVICE_MEMORY_NORMAL, &sum));
    must(esper_cuda_copy_open(l->device, parts, l->n, &copy));
    check_copies(l, copy, arena, sum);
    for (int kind = COPY_PLAIN; kind <= COPY_SUM; kind++)
        time_copy(l, copy, (copy_kind)kind, arena, arena_bytes, sum, names[with_moments][kind],
                  kind == COPY_SCATTER && !with_moments ? 300 : 0);
    esper_cuda_copy_close(copy);
    esper_device_release(l->device, sum);
    esper_device_release(l->device, arena);
    unplace(l);
}

/* ---------------------------------------------------------------------------------------------------------- ceiling */

static void run_ceiling(lab *l)
{
    const uint64_t bytes = (uint64_t)4 << 30;
    double us[REPEATS];
    void *from, *to;

    if (!is_wanted(l, "ceiling"))
        return;
    must(esper_device_alloc(l->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &from));
    must(esper_device_alloc(l->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &to));
    for (int i = -WARM_UP; i < REPEATS; i++) {
        record(l, l->begin);
        must(esper_stream_copy(l->stream, to, from, bytes));
        record(l, l->end);
        if (i >= 0)
            us[i] = between_us(l);
    }
    print(l, "ceiling.copy", us, 2 * bytes, 0);
    esper_device_release(l->device, from);
    esper_device_release(l->device, to);
}

static void open_lab(lab *l, const char *prefix)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW),
         *function = library != NULL ? dlsym(library, "cuEventElapsedTime") : NULL;

    l->prefix = prefix;
    must(esper_device_open("cuda", 0, &l->device));
    expect(function != NULL, "the driver has no cuEventElapsedTime");
    memcpy(&elapsed, &function, sizeof(function));
    must(esper_stream_open(l->device, &l->stream));
    must(esper_cuda_enter(l->device));
    must(ESPER_CUDA(cuEventCreate, &l->begin, 0));
    must(ESPER_CUDA(cuEventCreate, &l->end, 0));
    esper_cuda_leave();
}

int main(int n_args, char **args)
{
    static const scan_case gpt2[] = {{"scan.gpt2", 3, false, 0, 290},
                                     {"scan.gpt2.grads", 2, false, 0, 150},
                                     {"scan.gpt2.checksum", 3, true, 0, 0},
                                     {"scan.gpt2.clip_idle", 3, false, 1e9, 0}};
    static const scan_case billion[] = {{"scan.1b", 3, false, 0, 2200}};
    static const scan_case small[] = {{"scan.small100", 3, false, 0, 25}};
    static const scan_case tiny[] = {{"scan.tiny10k", 3, false, 0, 60}};
    static lab l;

    open_lab(&l, n_args > 1 ? args[1] : NULL);
    printf("{\"name\": \"about\", \"device\": \"%s\", \"capability\": %d}\n", esper_cuda_device_title(l.device),
           esper_cuda_capability(l.device));
    run_ceiling(&l);
    run_scans(&l, "small100", small, 1);
    run_scans(&l, "tiny10k", tiny, 1);
    run_scans(&l, "gpt2", gpt2, 4);
    run_scans(&l, "1b", billion, 1);
    if (is_wanted(&l, "rollback.gpt2")) {
        run_copies(&l, false);
        run_copies(&l, true);
    }
    must(esper_cuda_enter(l.device));
    must(ESPER_CUDA(cuEventDestroy, l.begin));
    must(ESPER_CUDA(cuEventDestroy, l.end));
    esper_cuda_leave();
    esper_stream_close(l.stream);
    esper_device_close(l.device);
    return 0;
}
