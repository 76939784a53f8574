/* ctest: cost=5 */
/* The tune table: reading, writing, finding; and that both ways of every work give the same bits, for every kernel set,
 * whatever the number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "tensor/backends.h"
#include "tensor/cpu/block.h"
#include "tensor/lower.h"

/* ------------------------------------------------------------------------------------------------ the table */

static void compiled_in(char text[ESPER_TUNE_TEXT], esper_tune_table *table)
{
    unsetenv("ESPER_TUNE");
    assert_int_equal(esper_tune_load(table), ESPER_OK);
    esper_tune_write(table, text);
}

static void test_round_trip(void **state)
{
    esper_tune_table table, again;
    char text[ESPER_TUNE_TEXT], twice[ESPER_TUNE_TEXT];

    (void)state;
    compiled_in(text, &table);
    table.way[1][ESPER_WORK_LINEAR_DW][3] ^= 1;
    esper_tune_write(&table, text);
    assert_int_equal(esper_tune_read(text, strlen(text), "text", &again), ESPER_OK);
    assert_memory_equal(&again, &table, sizeof(table));
    esper_tune_write(&again, twice);
    assert_string_equal(twice, text);
}

static void test_hash(void **state)
{
    char text[ESPER_TUNE_TEXT];
    esper_tune_table table;
    uint32_t before;

    (void)state;
    compiled_in(text, &table);
    before = esper_tune_of(&table, 1).hash;
    table.way[0][0][0] ^= 1;
    assert_int_equal(esper_tune_of(&table, 1).hash, before); /* another set's */
    for (int work = 0; work < ESPER_N_WORKS; work++)
        for (int i = 0; i < ESPER_TUNE_WIDTHS; i++) {
            table.way[1][work][i] ^= 1;
            assert_int_not_equal(esper_tune_of(&table, 1).hash, before);
            table.way[1][work][i] ^= 1;
        }
}

static void test_classes(void **state)
{
    static const int cases[][2] = {{1, 0}, {64, 0}, {65, 1}, {128, 1}, {129, 2}, {512, 3}, {1024, 4}, {1025, 5}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (esper_tune_class(cases[i][0]) != cases[i][1])
            fail_msg("width %d: class %d, expected %d", cases[i][0], esper_tune_class(cases[i][0]), cases[i][1]);
}

static void check_refused(const char *text, size_t chars, const char *words)
{
    esper_tune_table table, before;
    esper_status status;

    memset(&table, 7, sizeof(table));
    before = table;
    status = esper_tune_read(text, chars, "a.table", &table);
    if (status != ESPER_E_CONFIG || strstr(esper_last_error(), words) == NULL ||
        strstr(esper_last_error(), "a.table") == NULL)
        fail_msg("status %d, message \"%s\", expected %d with \"%s\"", status, esper_last_error(), ESPER_E_CONFIG,
                 words);
    assert_memory_equal(&table, &before, sizeof(table));
}

/* The table with one piece replaced. */
static void check_replaced(const char *piece, const char *by, const char *words)
{
    char text[ESPER_TUNE_TEXT], changed[2 * ESPER_TUNE_TEXT];
    esper_tune_table table;
    const char *at;

    compiled_in(text, &table);
    at = strstr(text, piece);
    assert_non_null(at);
    snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, by, at + strlen(piece));
    check_refused(changed, strlen(changed), words);
}

static void test_damaged(void **state)
{
    char text[ESPER_TUNE_TEXT];
    esper_tune_table table;

    (void)state;
    check_refused("", 0, "not a tune table");
    check_refused("esper-tune 2\n", 13, "not a tune table");
    check_refused("esper-tune 1\n", 13, "no line for 'portable linear.y'");
    check_replaced("esper-tune 1", "esper-tune 11", "not a tune table");
    check_replaced("avx2      linear.y", "avx3 linear.y", "no kernel set 'avx3'");
    check_replaced("avx2      linear.y ", "avx2 linear.z ", "no work 'linear.z'");
    check_replaced("avx2      linear.dx", "avx2 linear.y", "'avx2 linear.y' has a line already");
    check_replaced("avx2      linear.y  ", "avx2 linear.y dnnl ", "6 ways");
    check_replaced("\navx2 ", "\navx2 linear.y\navx2 ", "6 ways");
    check_replaced("avx512    conv.dx", "#", "no line for 'avx512 conv.dx'");
    compiled_in(text, &table);
    for (size_t n = 0; n + 7 < strlen(text);
         n += 13) { /* the last word may lose letters and still be wrong, not short */
        esper_tune_table unused;

        if (esper_tune_read(text, n, "a.table", &unused) != ESPER_E_CONFIG)
            fail_msg("the first %zu bytes of a table are taken for one", n);
    }
}

static void test_unknown_way(void **state)
{
    char text[ESPER_TUNE_TEXT], *at;
    esper_tune_table table;

    (void)state;
    compiled_in(text, &table);
    at = strstr(text, "avx2      conv.y");
    assert_non_null(at);
    at += strlen("avx2      conv.y     ");
    memcpy(at, "dnnl ", 5);
    check_refused(text, strlen(text), "no way 'dnnl' for conv.y: whole or split");
    memset(at, 'x', 300); /* one long line */
    check_refused(text, strlen(text), "a.table:");
}

/* ------------------------------------------------------------------------------------------------ in force */

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void test_identity(void **state)
{
    char text[ESPER_TUNE_TEXT], first[64];
    esper_backend *backend;
    esper_tune_table table;
    esper_pool *pool;

    (void)state;
    compiled_in(text, &table);
    assert_int_equal(esper_pool_open(1, &pool), ESPER_OK);
    setenv("ESPER_KERNELS", "portable", 1);
    assert_int_equal(esper_backend_open("cpu", pool, &backend), ESPER_OK);
    snprintf(first, sizeof(first), "cpu/portable/t%08x", esper_tune_of(&table, 0).hash);
    assert_string_equal(esper_backend_identity(backend), first);
    esper_backend_close(backend);
    table.way[0][0][0] ^= 1;
    esper_tune_write(&table, text);
    write_file("other.table", text);
    setenv("ESPER_TUNE", "other.table", 1);
    assert_int_equal(esper_backend_open("cpu", pool, &backend), ESPER_OK);
    assert_string_not_equal(esper_backend_identity(backend), first);
    esper_backend_close(backend);
    setenv("ESPER_TUNE", "absent.table", 1);
    assert_int_not_equal(esper_backend_open("cpu", pool, &backend), ESPER_OK);
    unsetenv("ESPER_TUNE");
    unsetenv("ESPER_KERNELS");
    esper_pool_close(pool);
}

/* ------------------------------------------------------------------------------------------------ both ways */

enum { MOST_BUFFERS = 24 };

/* One lane. Its buffers are filled with the same numbers whenever it is set. */
typedef struct stage {
    esper_pass   pass;
    esper_lane   lane;
    esper_launch launch;
    float       *buffer[MOST_BUFFERS];
    size_t       count[MOST_BUFFERS];
    int          n_buffers;
} stage;

static float *put_buffer(stage *s, size_t count)
{
    esper_rng_key key = {.seed = 5, .purpose = ESPER_RNG_TEST, .step = (uint32_t)s->n_buffers};
    float *buffer = esper_mem_alloc(count * sizeof(*buffer));
    esper_rng rng;

    assert_non_null(buffer);
    assert_true(s->n_buffers < MOST_BUFFERS);
    esper_rng_init(&rng, &key);
    for (size_t i = 0; i < count; i++)
        buffer[i] = esper_rng_uniform(&rng) - 0.5f;
    s->buffer[s->n_buffers] = buffer;
    s->count[s->n_buffers++] = count;
    return buffer;
}

/* times: samples of its memory; 1 for parameters. */
static void put(stage *s, esper_view *view, int times, int rank, int a, int b, int c, int d)
{
    *view = (esper_view){.count = (int64_t)a * b * c * d, .dim = {a, b, c, d}, .rank = rank};
    view->data = put_buffer(s, (size_t)times * (size_t)view->count);
    view->grad = put_buffer(s, (size_t)times * (size_t)view->count);
}

static void set_linear(stage *s, int samples, int tokens, int in, int out)
{
    s->pass.n_samples = samples;
    s->launch.kind = ESPER_OP_LINEAR;
    put(s, &s->lane.in[0], samples, 2, tokens, in, 1, 1);
    put(s, &s->lane.in[1], 1, 2, out, in, 1, 1);
    put(s, &s->lane.in[2], 1, 1, out, 1, 1, 1);
    put(s, &s->lane.out[0], samples, 2, tokens, out, 1, 1);
}

/* A convolution by itself, or with a norm, ReLU and pool behind it. */
static void set_conv(stage *s, bool norm, int samples, int in, int out, int groups, int height, int width)
{
    int lanes = esper_blocks_of(samples) * ESPER_BLOCK_SAMPLES;

    s->pass.n_samples = samples;
    s->launch.kind = norm ? ESPER_OP_CONV_NORM : ESPER_OP_CONV2D;
    s->launch.variant = ESPER_BLOCKED;
    put(s, &s->lane.in[0], lanes, 3, in, height, width, 1);
    put(s, &s->lane.in[1], 1, 4, out, in / groups, 3, 3);
    put(s, &s->lane.out[0], lanes, 3, out, norm ? height / 2 : height, norm ? width / 2 : width, 1);
    if (!norm) {
        s->lane.attr.conv.pad = 1;
        s->lane.attr.conv.groups = groups;
        return;
    }
    s->lane.attr.conv_norm.pad = 1;
    s->lane.attr.conv_norm.groups = groups;
    s->lane.attr.conv_norm.eps = 1e-5f;
    s->lane.attr.conv_norm.momentum = 0.1f;
    s->lane.attr.conv_norm.relu = s->lane.attr.conv_norm.pool = true;
    for (int i = 2; i < 6; i++)
        put(s, &s->lane.in[i], 1, 1, out, 1, 1, 1);
    put(s, &s->lane.out[1], lanes, 3, out, height, width, 1);
    put(s, &s->lane.out[2], 1, 1, out, 1, 1, 1);
    put(s, &s->lane.out[3], 1, 1, out, 1, 1, 1);
}

static void run_direction(stage *s, esper_backend *backend, esper_direction direction)
{
    void *scratch;

    s->launch.direction = direction;
    scratch = esper_mem_alloc(backend->ops->scratch(backend, &s->launch, s->pass.n_samples) + 64);
    assert_non_null(scratch);
    s->lane.scratch = scratch;
    assert_int_equal(esper_backend_enqueue(backend, NULL, &s->launch), ESPER_OK);
    esper_mem_free(scratch);
}

typedef void set_stage(stage *s);

static void run_way(set_stage *set, int way, int threads, stage *s)
{
    esper_tune tune = {.hash = 0};
    esper_backend *backend;
    esper_pool *pool;

    memset(s, 0, sizeof(*s));
    s->pass = (esper_pass){.training = true, .loss_scale = 1};
    s->lane.pass = &s->pass;
    s->launch.n_lanes = 1;
    s->launch.lanes = &s->lane;
    set(s);
    assert_int_equal(esper_pool_open(threads, &pool), ESPER_OK);
    assert_int_equal(esper_backend_open("cpu", pool, &backend), ESPER_OK);
    memset(tune.way, way, sizeof(tune.way));
    esper_backend_cpu_tune(backend, tune);
    run_direction(s, backend, ESPER_FORWARD);
    run_direction(s, backend, ESPER_BACKWARD);
    esper_backend_close(backend);
    esper_pool_close(pool);
}

static void free_stage(stage *s)
{
    for (int i = 0; i < s->n_buffers; i++)
        esper_mem_free(s->buffer[i]);
}

static void check_ways(set_stage *set, const char *text)
{
    static const char *const names[] = {"portable", "avx2", "avx512"};

    unsetenv("ESPER_TUNE");
    for (int i = 0; i < 3; i++) {
        stage first, other;

        setenv("ESPER_KERNELS", names[i], 1);
        if (esper_kernels_choose() == NULL)
            continue;
        run_way(set, 0, 1, &first);
        for (int threads = 1; threads <= 3; threads++) {
            run_way(set, 1, threads, &other);
            for (int k = 0; k < first.n_buffers; k++)
                if (memcmp(first.buffer[k], other.buffer[k], first.count[k] * sizeof(float)) != 0)
                    fail_msg("%s, %s, %d threads: the two ways differ in buffer %d", text, names[i], threads, k);
            free_stage(&other);
        }
        free_stage(&first);
    }
    unsetenv("ESPER_KERNELS");
}

static void linear_odd(stage *s)
{
    set_linear(s, 3, 67, 300, 417);
}

static void linear_deep(stage *s)
{
    set_linear(s, 5, 120, 530, 193);
}

static void linear_small(stage *s)
{
    set_linear(s, 1, 1, 5, 3);
}

static void conv_plain(stage *s)
{
    set_conv(s, false, 19, 70, 45, 1, 5, 7);
}

static void conv_groups(stage *s)
{
    set_conv(s, false, 16, 90, 80, 2, 4, 4);
}

static void conv_norm(stage *s)
{
    set_conv(s, true, 21, 65, 67, 1, 6, 5);
}

static void test_ways(void **state)
{
    (void)state;
    check_ways(linear_odd, "linear 201x300->417");
    check_ways(linear_deep, "linear 600x530->193");
    check_ways(linear_small, "linear 1x5->3");
    check_ways(conv_plain, "conv 70->45");
    check_ways(conv_groups, "conv 90->80 in 2 groups");
    check_ways(conv_norm, "conv_norm 65->67");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_hash),        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_damaged),    cmocka_unit_test(test_unknown_way), cmocka_unit_test(test_identity),
        cmocka_unit_test(test_ways),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
