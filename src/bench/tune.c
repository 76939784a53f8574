/* esper bench tune: measures both ways of every work in the tune table (tensor/tune.h), for the kernel set in force, and
 * writes the table anew.
 *
 * Each way runs through the cpu backend on its threads, on layers typical of a class of widths, in turn with the other. A
 * way that stands in the table stays unless the other one is faster by GAIN. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/atomic_file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"
#include "bench/bench.h"
#include "tensor/backends.h"
#include "tensor/lower.h"
#include "ui/terminal.h"

enum {
    ROUNDS = 9,
    LEAST_ROUNDS = 3,
    QUICK_ROUNDS = 1,
    LAYERS = 3,
    SEQUENCES = 16,
    TOKENS = 128,
    IMAGES = 32,
    WIDEST = 1536
};

static const double round_seconds = 0.01, enough_seconds = 1, gain = 1.03;

/* A layer: inputs or channels, outputs, and how many pixels an image is wide. */
typedef struct layer {
    int in, out, size;
} layer;

/* What a layer gives: GFLOP/s of each way, and by how much the second is faster, in turn with it. */
typedef struct figures {
    double speed[ESPER_WAYS], ratio;
} figures;

typedef struct bench {
    esper_pool          *pool;
    esper_backend       *backend;
    esper_tune_table     table;
    int                  set;
    esper_bench_request *request;
} bench;

/* One lane with memory of its own. */
typedef struct stage {
    esper_pass   pass;
    esper_lane   lane;
    esper_launch launch;
    void        *memory[12];
    int          n_memory;
} stage;

static bool is_conv(esper_work work)
{
    return work == ESPER_WORK_CONV_Y || work == ESPER_WORK_CONV_DX;
}

/* ------------------------------------------------------------------------------------------------ a layer on stage */

static esper_status take(stage *s, size_t count, float **memory_out)
{
    float *memory = esper_mem_alloc((count > 0 ? count : 1) * sizeof(*memory));

    if (memory == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "bench tune: %zu floats", count);
    for (size_t i = 0; i < count; i++)
        memory[i] = (float)(i % 61) / 61.0f - 0.5f;
    s->memory[s->n_memory++] = memory;
    *memory_out = memory;
    return ESPER_OK;
}

/* A tensor of `times` samples, or a parameter (1), with a gradient or not. */
static esper_status put(stage *s, esper_view *view, int times, bool graded, int rank, const int32_t dim[4])
{
    float *data, *grad = NULL;
    size_t count = 1;

    for (int i = 0; i < 4; i++)
        count *= (size_t)dim[i];
    ESPER_TRY(take(s, (size_t)times * count, &data));
    if (graded)
        ESPER_TRY(take(s, (size_t)times * count, &grad));
    *view = (esper_view){.data = data, .grad = grad, .count = (int64_t)count, .rank = rank};
    memcpy(view->dim, dim, sizeof(view->dim));
    return ESPER_OK;
}

static esper_status set_linear(stage *s, esper_work work, layer l)
{
    bool dx = work == ESPER_WORK_LINEAR_DX, dw = work == ESPER_WORK_LINEAR_DW;

    s->launch.kind = ESPER_OP_LINEAR;
    ESPER_TRY(put(s, &s->lane.in[0], SEQUENCES, dx, 2, (const int32_t[]){TOKENS, l.in, 1, 1}));
    ESPER_TRY(put(s, &s->lane.in[1], 1, dw, 2, (const int32_t[]){l.out, l.in, 1, 1}));
    ESPER_TRY(put(s, &s->lane.in[2], 1, dw, 1, (const int32_t[]){l.out, 1, 1, 1}));
    return put(s, &s->lane.out[0], SEQUENCES, dx || dw, 2, (const int32_t[]){TOKENS, l.out, 1, 1});
}

static esper_status set_conv(stage *s, esper_work work, layer l)
{
    bool dx = work == ESPER_WORK_CONV_DX;

    s->launch.kind = ESPER_OP_CONV2D;
    s->launch.variant = ESPER_BLOCKED;
    s->lane.attr.conv.pad = 1;
    s->lane.attr.conv.groups = 1;
    ESPER_TRY(put(s, &s->lane.in[0], IMAGES, dx, 3, (const int32_t[]){l.in, l.size, l.size, 1}));
    ESPER_TRY(put(s, &s->lane.in[1], 1, false, 4, (const int32_t[]){l.out, l.in, 3, 3}));
    return put(s, &s->lane.out[0], IMAGES, dx, 3, (const int32_t[]){l.out, l.size, l.size, 1});
}

/* The plan's part: scratch, the direction, the samples. */
static esper_status set_stage(bench *b, stage *s, esper_work work, layer l)
{
    float *scratch;

    s->pass = (esper_pass){.n_samples = is_conv(work) ? IMAGES : SEQUENCES, .training = true, .loss_scale = 1};
    s->lane.pass = &s->pass;
    s->launch.n_lanes = 1;
    s->launch.lanes = &s->lane;
    s->launch.direction = work == ESPER_WORK_LINEAR_Y || work == ESPER_WORK_CONV_Y ? ESPER_FORWARD : ESPER_BACKWARD;
    ESPER_TRY(is_conv(work) ? set_conv(s, work, l) : set_linear(s, work, l));
    ESPER_TRY(take(s, b->backend->ops->scratch(b->backend, &s->launch, s->pass.n_samples) / sizeof(float), &scratch));
    s->lane.scratch = scratch;
    return ESPER_OK;
}

static double flops_of(esper_work work, layer l)
{
    double seen = 3.0 * l.size - 2; /* taps of all pixels of a row: none of them beside the image */

    return 2.0 * l.in * l.out * (is_conv(work) ? IMAGES * seen * seen : (double)SEQUENCES * TOKENS);
}

/* ------------------------------------------------------------------------------------------------ measuring */

static esper_status time_way(bench *b, const stage *s, int way, int runs, double *seconds_out)
{
    esper_tune tune = {.hash = 0};
    double began;

    memset(tune.way, way, sizeof(tune.way));
    esper_backend_cpu_tune(b->backend, tune);
    began = esper_clock_seconds();
    for (int i = 0; i < runs; i++)
        ESPER_TRY(esper_backend_enqueue(b->backend, NULL, &s->launch));
    ESPER_TRY(esper_backend_sync(b->backend));
    *seconds_out = (esper_clock_seconds() - began) / runs;
    return ESPER_OK;
}

static esper_status measure_stage(bench *b, const stage *s, double flops, figures *figures_out)
{
    int most = b->request->quick ? QUICK_ROUNDS : ROUNDS, rounds = 0, runs;
    double times[ESPER_WAYS][ROUNDS], ratios[ROUNDS], warm, began;

    ESPER_TRY(time_way(b, s, 0, 1, &warm));
    ESPER_TRY(time_way(b, s, 1, 1, &warm));
    runs = b->request->quick || warm > round_seconds ? 1 : (int)(round_seconds / warm) + 1;
    began = esper_clock_seconds();
    for (; rounds < most && (rounds < LEAST_ROUNDS || esper_clock_seconds() - began < enough_seconds); rounds++) {
        for (int i = 0; i < ESPER_WAYS; i++) { /* the order changes from round to round */
            int way = (i + rounds) % ESPER_WAYS;

            ESPER_TRY(time_way(b, s, way, runs, &times[way][rounds]));
        }
        ratios[rounds] = times[0][rounds] / times[1][rounds];
    }
    for (int way = 0; way < ESPER_WAYS; way++)
        figures_out->speed[way] = flops / esper_bench_quantile(times[way], rounds, 0.5) / 1e9;
    figures_out->ratio = esper_bench_quantile(ratios, rounds, 0.5);
    return ESPER_OK;
}

static esper_status measure_layer(bench *b, esper_work work, layer l, figures *figures_out)
{
    stage s = {.n_memory = 0};
    esper_status status = set_stage(b, &s, work, l);

    if (status == ESPER_OK)
        status = measure_stage(b, &s, flops_of(work, l), figures_out);
    for (int i = 0; i < s.n_memory; i++)
        esper_mem_free(s.memory[i]);
    return status;
}

/* Layers of a width: square ones, and those between it and a smaller width. */
static void list_layers(esper_work work, int width, layer layers[LAYERS])
{
    int narrow = width / (is_conv(work) ? 2 : 4), size = width > 512 ? 4 : width > 128 ? 8 : 16;

    layers[0] = (layer){width, width, size};
    layers[1] = (layer){narrow, width, size};
    layers[2] = (layer){width, narrow, size};
}

/* Geometric means over the layers of a width. */
static esper_status measure(bench *b, esper_work work, int width, figures *figures_out)
{
    layer layers[LAYERS];
    figures mean = {.speed = {1, 1}, .ratio = 1};

    list_layers(work, width, layers);
    for (int i = 0; i < LAYERS; i++) {
        figures f = {.ratio = 1};

        ESPER_TRY(measure_layer(b, work, layers[i], &f));
        mean.speed[0] *= pow(f.speed[0], 1.0 / LAYERS);
        mean.speed[1] *= pow(f.speed[1], 1.0 / LAYERS);
        mean.ratio *= pow(f.ratio, 1.0 / LAYERS);
    }
    *figures_out = mean;
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the table */

static void print_line(const bench *b, esper_work work, const char *width, const figures *f, int was, int way)
{
    char text[512], name[64];
    esper_json out;

    if (!b->request->json) {
        esper_terminal_print(stdout, "%-9s %-10s %-5s %-7s %7.1f   %-7s %7.1f GFLOP/s   %5.1f %%   %s%s\n",
                             esper_tune_set_name(b->set), esper_tune_work_name(work), width,
                             esper_tune_way_name(work, 0), f->speed[0], esper_tune_way_name(work, 1), f->speed[1],
                             100 * (f->ratio - 1), esper_tune_way_name(work, way), way == was ? "" : "  (changed)");
        fflush(stdout);
        return;
    }
    snprintf(name, sizeof(name), "tune.%s.%s", esper_tune_work_name(work), width);
    esper_json_init(&out, text, sizeof(text));
    esper_json_object_begin(&out);
    esper_json_key(&out, "name"), esper_json_text(&out, name);
    esper_json_key(&out, "kernels"), esper_json_text(&out, esper_tune_set_name(b->set));
    esper_json_key(&out, "first"), esper_json_text(&out, esper_tune_way_name(work, 0));
    esper_json_key(&out, "first_speed"), esper_json_real(&out, f->speed[0]);
    esper_json_key(&out, "other"), esper_json_text(&out, esper_tune_way_name(work, 1));
    esper_json_key(&out, "other_speed"), esper_json_real(&out, f->speed[1]);
    esper_json_key(&out, "unit"), esper_json_text(&out, "GFLOP/s");
    esper_json_key(&out, "ratio"), esper_json_real(&out, f->ratio);
    esper_json_key(&out, "was"), esper_json_text(&out, esper_tune_way_name(work, was));
    esper_json_key(&out, "way"), esper_json_text(&out, esper_tune_way_name(work, way));
    esper_json_object_end(&out);
    printf("%s\n", text);
    fflush(stdout);
}

static esper_status tune_work(bench *b, esper_work work)
{
    for (int i = 0; i < ESPER_TUNE_WIDTHS; i++) {
        uint8_t *way = &b->table.way[b->set][work][i];
        int width = esper_tune_width(i), was = *way;
        char label[16] = "more";
        figures f = {.ratio = 1};

        if (b->request->quick && i > 1)
            break;
        if (width > 0)
            snprintf(label, sizeof(label), "%d", width);
        ESPER_TRY(measure(b, work, width > 0 ? width : WIDEST, &f));
        if (was == 0 && f.ratio > gain)
            *way = 1;
        if (was == 1 && f.ratio < 1 / gain)
            *way = 0;
        print_line(b, work, label, &f, was, *way);
    }
    return ESPER_OK;
}

/* Before minutes are spent on measuring: could the table be written? */
static esper_status check_out(const char *path)
{
    char folder[4096];
    struct stat about;
    char *slash;

    if (path == NULL)
        return ESPER_OK;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return ESPER_FAIL(ESPER_E_IO, "--out %s: this is a directory: name a file in it", path);
    if (snprintf(folder, sizeof(folder), "%s", path) >= (int)sizeof(folder))
        return ESPER_FAIL(ESPER_E_CONFIG, "--out: the path is too long");
    slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder] = '\0';
    if (access(slash != NULL ? folder : ".", W_OK) != 0)
        return ESPER_FAIL(ESPER_E_IO, "--out %s: its directory cannot be written: %s", path, strerror(errno));
    return ESPER_OK;
}

static esper_status write_table(const bench *b)
{
    const char *path = b->request->out;
    char text[ESPER_TUNE_TEXT];

    if (path == NULL) {
        if (!b->request->json)
            printf("nothing is written without --out FILE\n");
        return ESPER_OK;
    }
    esper_tune_write(&b->table, text);
    if (b->request->quick) {
        size_t used = strlen(text);

        snprintf(text + used, sizeof(text) - used, "# quick: to see it work, not measured\n");
    }
    ESPER_TRY(esper_file_write(path, text, strlen(text)));
    if (!b->request->json)
        esper_terminal_print(stdout, "%s: t%08x for %s; ESPER_TUNE=%s takes it\n", path,
                             esper_tune_of(&b->table, b->set).hash, esper_tune_set_name(b->set), path);
    return ESPER_OK;
}

static bool is_wanted(const esper_bench_request *request, int work)
{
    char name[64];

    snprintf(name, sizeof(name), "tune.%s", esper_tune_work_name((esper_work)work));
    return esper_bench_is_wanted(request, name);
}

static esper_status tune_all(bench *b)
{
    b->set = esper_tune_set(((const esper_ram_backend *)b->backend)->kernels->name);
    ESPER_TRY(esper_tune_load(&b->table));
    if (!b->request->json)
        esper_terminal_print(
            stdout, "both ways with %s, %d thread%s; in percent: how much faster the second is; and the way to take\n",
            esper_backend_identity(b->backend), esper_pool_threads(b->pool),
            esper_pool_threads(b->pool) == 1 ? "" : "s");
    for (int work = 0; work < ESPER_N_WORKS; work++)
        if (is_wanted(b->request, work))
            ESPER_TRY(tune_work(b, (esper_work)work));
    return write_table(b);
}

static esper_status run(esper_bench_request *request)
{
    bench b = {.request = request};
    esper_status status;
    int n_wanted = 0;

    for (int work = 0; work < ESPER_N_WORKS; work++)
        n_wanted += is_wanted(request, work);
    if (n_wanted == 0)
        return ESPER_OK;
    request->n_run += n_wanted;
    if (request->paced || request->device != NULL)
        return ESPER_FAIL(ESPER_E_CONFIG, "tune takes neither --device nor --paced");
    ESPER_TRY(check_out(request->out));
    ESPER_TRY(esper_pool_open(request->config->threads, &b.pool));
    status = esper_backend_open("cpu", b.pool, &b.backend);
    if (status == ESPER_OK)
        status = tune_all(&b);
    esper_backend_close(b.backend);
    esper_pool_close(b.pool);
    return status;
}

const esper_bench_subject esper_bench_tune = {.name = "tune", .run = run};
