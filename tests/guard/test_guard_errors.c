/* ctest: timeout=120 */
/* What can be done wrong with a guard: each time a clear error, and nothing has changed. Memory that runs out anywhere:
 * no leak, and what was registered before still works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/mem.h"
#include "guard/guard_internal.h"
#include "guard/scan_kernels.h"

static float first[4] = {3.0f, 4.0f, 0.0f, 0.0f}, second[2] = {1.0f, 2.0f};

static void expect(esper_status got, esper_status want, const char *words)
{
    if (got != want)
        fail_msg("%s (%s), expected %s", esper_status_name(got), esper_last_error(), esper_status_name(want));
    if (words != NULL && strstr(esper_last_error(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", esper_last_error(), words);
}

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static esper_guard_tensor good_tensor(void)
{
    return (esper_guard_tensor){.name = "w",
                                .group = "host",
                                .role = ESPER_GUARD_ROLE_PARAM,
                                .dtype = ESPER_GUARD_F32,
                                .device = ESPER_GUARD_HOST,
                                .data = first,
                                .count = 4};
}

static esper_guard *open_guard(void)
{
    esper_guard_tensor tensor = good_tensor();
    esper_guard *guard;

    check_good(esper_guard_open(NULL, &guard));
    check_good(esper_guard_add(guard, &tensor, 1));
    return guard;
}

/* The guard knows its one tensor, and nothing else. */
static void check_unchanged(esper_guard *guard)
{
    esper_guard_tensor tensor = good_tensor();
    const esper_guard_report *report;

    assert_int_equal(esper_guard_count(guard), 1);
    check_good(esper_guard_verify(guard, &tensor, 1));
    check_good(esper_guard_launch(guard, NULL));
    check_good(esper_guard_read(guard, &report));
    assert_int_equal(report->n_tensors, 1);
    assert_true(report->stats[0].norm == 5.0);
}

static void bad_options(void **state)
{
    esper_guard_options options;
    esper_guard *guard = NULL;

    (void)state;
    expect(esper_guard_open(NULL, NULL), ESPER_E_ARG, "no place");
    esper_guard_options_init(&options);
    options.size--;
    expect(esper_guard_open(&options, &guard), ESPER_E_ARG, "esper_guard_options_init");
    memset(&options, 0, sizeof(options));
    expect(esper_guard_open(&options, &guard), ESPER_E_ARG, "esper_guard_options_init");
    esper_guard_options_init(&options);
    options.n_threads = -1;
    expect(esper_guard_open(&options, &guard), ESPER_E_ARG, "n_threads");
    esper_guard_options_init(&options);
    options.tiny = NAN;
    expect(esper_guard_open(&options, &guard), ESPER_E_ARG, "tiny");
    esper_guard_options_init(&options);
    options.vanishing = -1.0;
    expect(esper_guard_open(&options, &guard), ESPER_E_ARG, "vanishing");
    esper_guard_options_init(&options);
    options.release = (esper_guard_release)(void (*)(void))abort;
    expect(esper_guard_open(&options, &guard), ESPER_E_ARG, "both or none");
    assert_null(guard);
}

typedef struct bad_tensor {
    const char        *words;
    esper_guard_tensor tensor;
} bad_tensor;

static void bad_tensors(void **state)
{
    const esper_guard_tensor good = good_tensor();
    bad_tensor cases[] = {
        {"has no name", good},      {"has no name", good},
        {"has no group", good},     {"role 5", good},
        {"role -1", good},          {"dtype 4", good},
        {"dtype 77", good},         {"4 elements at NULL", good},
        {"more than memory", good}, {"do not fit behind", good},
        {"same role", good},        {"no 4000 bytes of host memory", good},
        {"device -65", good},       {"device -2147483648", good},
    };
    void *nothing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    esper_guard *guard = open_guard();
    size_t n = 0;

    (void)state;
    assert_true(nothing != MAP_FAILED);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cases[i].tensor.name = "other";
    cases[n++].tensor.name = NULL;
    cases[n++].tensor.name = "";
    cases[n++].tensor.group = NULL;
    cases[n++].tensor.role = (esper_guard_role)ESPER_GUARD_N_ROLES;
    cases[n++].tensor.role = (esper_guard_role)-1;
    cases[n++].tensor.dtype = (esper_guard_dtype)ESPER_GUARD_N_DTYPES;
    cases[n++].tensor.dtype = (esper_guard_dtype)77;
    cases[n++].tensor.data = NULL;
    cases[n++].tensor.count = UINT64_MAX / 4;
    cases[n++].tensor.data = (void *)(uintptr_t)(UINTPTR_MAX - 8);
    cases[n++].tensor.name = "w";
    cases[n].tensor.count = 1000;
    cases[n++].tensor.data = nothing;
    cases[n++].tensor.device = ESPER_GUARD_HOST_LAST - 1;
    cases[n++].tensor.device = INT32_MIN;
    assert_int_equal(n, sizeof(cases) / sizeof(cases[0]));
    for (size_t i = 0; i < n; i++) {
        esper_guard_tensor list[2] = {good, cases[i].tensor};

        list[0].name = "fine"; /* all or none: it does not get in either */
        expect(esper_guard_add(guard, list, 2), ESPER_E_ARG, cases[i].words);
        check_unchanged(guard);
    }
    expect(esper_guard_add(guard, NULL, 1), ESPER_E_ARG, "NULL");
    check_good(esper_guard_add(guard, NULL, 0));
    expect(esper_guard_add(NULL, &good, 1), ESPER_E_ARG, "no guard");
    check_unchanged(guard);
    esper_guard_close(guard);
    munmap(nothing, 4096);
}

static void missing_device(void **state)
{
    esper_guard_tensor tensors[2] = {good_tensor(), good_tensor()};
    esper_guard *guard = open_guard();
    esper_status status;

    (void)state;
    tensors[0].name = "on the host";
    tensors[1].name = "elsewhere";
    tensors[1].device = 1000;
    status = esper_guard_add(guard, tensors, 2);
    if (status != ESPER_E_UNSUPPORTED && status != ESPER_E_NOTFOUND)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
    assert_true(strlen(esper_last_error()) > 10);
    check_unchanged(guard);
    esper_guard_close(guard);
}

static void bad_order(void **state)
{
    esper_guard_tensor tensor = good_tensor();
    esper_guard *guard = open_guard();
    const esper_guard_report *report = NULL;
    void *data[2] = {first, first};

    (void)state;
    expect(esper_guard_read(guard, &report), ESPER_E_STATE, "nothing was launched");
    check_good(esper_guard_launch(guard, NULL));
    tensor.name = "more";
    expect(esper_guard_launch(guard, NULL), ESPER_E_STATE, "esper_guard_read first");
    expect(esper_guard_add(guard, &tensor, 1), ESPER_E_STATE, "esper_guard_read first");
    expect(esper_guard_clear(guard), ESPER_E_STATE, "esper_guard_read first");
    expect(esper_guard_replace(guard, data, 1), ESPER_E_STATE, "esper_guard_read first");
    expect(esper_guard_read(guard, NULL), ESPER_E_ARG, "no place");
    check_good(esper_guard_read(guard, &report));
    expect(esper_guard_read(guard, &report), ESPER_E_STATE, "nothing was launched");
    expect(esper_guard_read(NULL, &report), ESPER_E_ARG, "no guard");
    expect(esper_guard_launch(NULL, NULL), ESPER_E_ARG, "no guard");
    expect(esper_guard_clear(NULL), ESPER_E_ARG, "no guard");
    expect(esper_guard_replace(NULL, data, 1), ESPER_E_ARG, "no guard");
    expect(esper_guard_replace(guard, data, 2), ESPER_E_ARG, "2 addresses for 1");
    expect(esper_guard_replace(guard, NULL, 1), ESPER_E_ARG, "no addresses");
    data[0] = NULL;
    expect(esper_guard_replace(guard, data, 1), ESPER_E_ARG, "at NULL");
    data[0] = (void *)8;
    expect(esper_guard_replace(guard, data, 1), ESPER_E_ARG, "w: ");
    check_unchanged(guard);
    esper_guard_close(guard);
}

static void bad_scans(void **state)
{
    esper_guard_tensor grad = good_tensor();
    esper_guard *guard = open_guard(), *empty;
    esper_guard_scan scan;
    uint32_t flag = 7;

    (void)state;
    esper_guard_scan_init(&scan);
    scan.size = 8;
    expect(esper_guard_launch(guard, &scan), ESPER_E_ARG, "esper_guard_scan_init");
    esper_guard_scan_init(&scan);
    scan.roles = 1u << ESPER_GUARD_N_ROLES | 1u << ESPER_GUARD_ROLE_GRAD;
    expect(esper_guard_launch(guard, &scan), ESPER_E_ARG, "scan roles grad+unknown 0x20:");
    esper_guard_scan_init(&scan);
    scan.clip_norm = NAN;
    expect(esper_guard_launch(guard, &scan), ESPER_E_ARG, "clip_norm");
    scan.clip_norm = -1.0;
    expect(esper_guard_launch(guard, &scan), ESPER_E_ARG, "clip_norm");
    scan.clip_norm = 1.0;
    scan.roles = 1u << ESPER_GUARD_ROLE_PARAM;
    expect(esper_guard_launch(guard, &scan), ESPER_E_ARG,
           "clip_norm 1, but the roles asked for, param, leave gradients out");
    esper_guard_scan_init(&scan);
    scan.checksum = 3;
    expect(esper_guard_launch(guard, &scan), ESPER_E_ARG, "checksum");
    scan.checksum = 2;
    expect(esper_guard_launch(guard, &scan), ESPER_E_STATE, "none of w is remembered");
    esper_guard_scan_init(&scan);
    scan.n_streams = 2;
    expect(esper_guard_launch(guard, &scan), ESPER_E_ARG, "streams at NULL");
    scan.streams = (void *[]){NULL, NULL};
    scan.stream = &scan;
    expect(esper_guard_launch(guard, &scan), ESPER_E_ARG, "not both");
    esper_guard_scan_init(&scan);
    scan.skip_flag = (uint32_t *)16;
    expect(esper_guard_launch(guard, &scan), ESPER_E_ARG, "skip_flag: ");
    scan.skip_flag = &flag;
    scan.roles = 1u << ESPER_GUARD_ROLE_MOMENT;
    expect(esper_guard_launch(guard, &scan), ESPER_E_STATE, "skip_flag");
    check_good(esper_guard_open(NULL, &empty));
    expect(esper_guard_launch(empty, &scan), ESPER_E_STATE, "no tensor is registered");
    expect(esper_guard_launch(empty, NULL), ESPER_E_STATE, "no tensor is registered");
    esper_guard_close(empty);
    assert_int_equal(flag, 7);
    check_unchanged(guard);
    /* A tensor that came after the sums were taken is not remembered, though others are. */
    esper_guard_scan_init(&scan);
    scan.checksum = 1;
    check_good(esper_guard_launch(guard, &scan));
    check_good(esper_guard_read(guard, &(const esper_guard_report *){NULL}));
    grad.name = "late";
    check_good(esper_guard_add(guard, &grad, 1));
    scan.checksum = 2;
    expect(esper_guard_launch(guard, &scan), ESPER_E_STATE, "none of late is remembered");
    esper_guard_close(guard);
}

static void verifying(void **state)
{
    esper_guard *guard = open_guard();
    esper_guard_tensor tensor;

    (void)state;
    tensor = good_tensor();
    expect(esper_guard_verify(NULL, &tensor, 1), ESPER_E_ARG, "no guard");
    expect(esper_guard_verify(guard, NULL, 1), ESPER_E_ARG, "no tensors");
    expect(esper_guard_verify(guard, &tensor, 0), ESPER_E_STATE, "1 are registered");
    tensor.count = 3;
    expect(esper_guard_verify(guard, &tensor, 1), ESPER_E_STATE,
           "tensor 0 (w): its count is 3, but 4 is registered: esper_guard_clear, and add");
    assert_null(strstr(esper_last_error(), "replace"));
    tensor = good_tensor();
    tensor.data = second;
    expect(esper_guard_verify(guard, &tensor, 1), ESPER_E_STATE, "its address");
    expect(esper_guard_verify(guard, &tensor, 1), ESPER_E_STATE, "esper_guard_replace");
    assert_null(strstr(esper_last_error(), "clear"));
    tensor = good_tensor();
    tensor.dtype = ESPER_GUARD_BF16;
    expect(esper_guard_verify(guard, &tensor, 1), ESPER_E_STATE, "its type is bfloat16, but float32 is");
    tensor = good_tensor();
    tensor.device = 0;
    expect(esper_guard_verify(guard, &tensor, 1), ESPER_E_STATE, "its device is 0, but -1 is");
    tensor = good_tensor();
    tensor.role = ESPER_GUARD_ROLE_GRAD;
    expect(esper_guard_verify(guard, &tensor, 1), ESPER_E_STATE, "its role is grad, but param is");
    tensor = good_tensor();
    tensor.name = NULL;
    expect(esper_guard_verify(guard, &tensor, 1), ESPER_E_STATE, "its name is NULL, but w is");
    tensor = good_tensor();
    tensor.group = "seed r0c1";
    expect(esper_guard_verify(guard, &tensor, 1), ESPER_E_STATE, "its group is seed r0c1, but host is");
    esper_guard_close(guard);
}

static void unknown_kernels(void **state)
{
    esper_guard_tensor tensor = good_tensor();
    esper_guard *guard;

    (void)state;
    setenv("ESPER_KERNELS", "sse9", 1);
    check_good(esper_guard_open(NULL, &guard));
    expect(esper_guard_add(guard, &tensor, 1), ESPER_E_UNSUPPORTED, "ESPER_KERNELS=sse9");
    unsetenv("ESPER_KERNELS");
    check_good(esper_guard_add(guard, &tensor, 1));
    check_unchanged(guard);
    esper_guard_close(guard);
}

/* Gradients and flags that may be read but not written: told before anything is scaled, not by a signal. */
static void read_only_memory(void **state)
{
    float *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    esper_guard_tensor tensor = good_tensor();
    const esper_guard_report *report;
    esper_guard_scan request;
    esper_guard *guard = open_guard();
    void *data[1] = {page};

    (void)state;
    assert_true(page != MAP_FAILED);
    page[0] = 100.0f;
    assert_int_equal(mprotect(page, 4096, PROT_READ), 0);
    tensor.role = ESPER_GUARD_ROLE_GRAD;
    tensor.data = page;
    check_good(esper_guard_add(guard, &tensor, 1));
    esper_guard_scan_init(&request);
    request.clip_norm = 1.0;
    expect(esper_guard_launch(guard, &request), ESPER_E_ARG, "cannot be written");
    expect(esper_guard_launch(guard, &request), ESPER_E_ARG, "clip_norm");
    request.clip_norm = 0.0;
    request.skip_flag = (uint32_t *)(void *)(page + 8);
    expect(esper_guard_launch(guard, &request), ESPER_E_ARG, "cannot be written");
    expect(esper_guard_launch(guard, &request), ESPER_E_ARG, "skip_flag");
    request.skip_flag = NULL;
    check_good(esper_guard_launch(guard, &request)); /* reading is all right */
    check_good(esper_guard_read(guard, &report));
    assert_true(report->grad_norm == 100.0);
    request.clip_norm = 1.0;
    tensor = good_tensor();
    check_good(esper_guard_clear(guard));
    tensor.role = ESPER_GUARD_ROLE_GRAD;
    tensor.data = second;
    tensor.count = 2;
    check_good(esper_guard_add(guard, &tensor, 1));
    check_good(esper_guard_launch(guard, &request));
    check_good(esper_guard_read(guard, &report));
    check_good(esper_guard_replace(guard, data, 1));
    expect(esper_guard_launch(guard, &request), ESPER_E_ARG, "cannot be written"); /* asked anew for new addresses */
    second[0] = 1.0f;
    second[1] = 2.0f;
    esper_guard_close(guard);
    munmap(page, 4096);
}

static void words_for_nobody(void **state)
{
    char text[64];

    (void)state;
    assert_string_equal(esper_guard_describe(NULL, NULL, text, sizeof(text)), "no report");
    assert_string_equal(esper_guard_describe(NULL, NULL, NULL, 0), "");
    assert_int_equal(esper_guard_count(NULL), 0);
    assert_null(esper_guard_tensor_at(NULL, 0));
    esper_guard_options_init(NULL);
    esper_guard_scan_init(NULL);
}

/* ----------------------------------------------------------------------------------------------- memory running out */

/* A guard with tensors on two partitions, to which tensors on these and a third are added. */
static esper_status use_guard(esper_guard **guard_out)
{
    esper_guard_tensor tensor = good_tensor(), more[3] = {good_tensor(), good_tensor(), good_tensor()};
    esper_guard_options options;

    esper_guard_options_init(&options);
    options.n_threads = 2;
    if (esper_guard_open(&options, guard_out) != ESPER_OK)
        return ESPER_E_NOMEM;
    if (esper_guard_add(*guard_out, &tensor, 1) != ESPER_OK)
        return ESPER_E_NOMEM;
    for (int i = 0; i < 3; i++)
        more[i].device = ESPER_GUARD_HOST - i;
    more[0].name = "x";
    more[1].name = "y";
    more[2].name = "z";
    return esper_guard_add(*guard_out, more, 3);
}

/* Allocation 1, 2, 3, ... fails until all goes well. What had been registered until then is still scanned as before. */
static void memory_runs_out(void **state)
{
    esper_mem_stats before, after;
    uint64_t nth = 1;
    esper_status status;

    (void)state;
    esper_mem_stats_get(&before);
    do {
        esper_guard *guard = NULL;

        esper_mem_fail_at(nth++);
        status = use_guard(&guard);
        esper_mem_fail_at(0);
        if (status != ESPER_OK) {
            expect(status, ESPER_E_NOMEM, NULL);
            if (guard != NULL && esper_guard_count(guard) == 1)
                check_unchanged(guard);
            else if (guard != NULL)
                assert_int_equal(esper_guard_count(guard), 0);
        } else {
            assert_int_equal(esper_guard_count(guard), 4);
        }
        esper_guard_close(guard);
        esper_mem_stats_get(&after);
        if (after.n_live != before.n_live)
            fail_msg("allocation %lu: %lu blocks leaked", nth - 1, after.n_live - before.n_live);
        assert_true(nth < 200);
    } while (status != ESPER_OK);
    printf("%lu allocations failed in turn\n", nth - 2);
    assert_true(nth > 30);
}

/* An engine that takes new tensors only as often as it is told to: the others must go back to theirs. */
static int n_binds_left, n_bound;

static esper_status bind_sometimes(esper_scan_engine *engine, const esper_scan_tensor *tensors, size_t n_tensors,
                                   size_t n_groups)
{
    if (n_binds_left-- <= 0) {
        n_bound = -1;
        return ESPER_E_NOMEM;
    }
    n_bound = (int)n_tensors;
    return esper_scan_engine_host.bind(engine, tensors, n_tensors, n_groups);
}

/* Going back fails too: the guard says so at launch, and does as soon as it can. */
static void engine_refuses(void **state)
{
    esper_scan_engine_ops ops = esper_scan_engine_host;
    esper_guard_tensor more = good_tensor();
    esper_guard *guard = open_guard();

    (void)state;
    ops.bind = bind_sometimes;
    esper_guard_engine(guard, ESPER_GUARD_HOST)->ops = &ops;
    more.name = "more";
    n_binds_left = 0;
    assert_int_equal(esper_guard_add(guard, &more, 1), ESPER_E_NOMEM);
    assert_int_equal(esper_guard_count(guard), 1);
    assert_int_equal(esper_guard_launch(guard, NULL), ESPER_E_NOMEM);
    n_binds_left = 1;
    check_unchanged(guard);
    assert_int_equal(n_bound, 1);
    esper_guard_engine(guard, ESPER_GUARD_HOST)->ops = &esper_scan_engine_host;
    esper_guard_close(guard);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options),     cmocka_unit_test(bad_tensors),      cmocka_unit_test(missing_device),
        cmocka_unit_test(bad_order),       cmocka_unit_test(bad_scans),        cmocka_unit_test(verifying),
        cmocka_unit_test(unknown_kernels), cmocka_unit_test(read_only_memory), cmocka_unit_test(words_for_nobody),
        cmocka_unit_test(memory_runs_out), cmocka_unit_test(engine_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
