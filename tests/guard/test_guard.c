/* ctest: timeout=120 labels=tsan */
/* The guard as its users see it, on host memory and on several partitions of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fenv.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

#include "base/mem.h"
#include "base/pool.h"
#include "guard/engine_host.h"
#include "guard/guard_internal.h"
#include "guard/scan_kernels.h"

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static void check_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%.17g, expected %.17g", got, want);
}

static esper_guard *open_guard(int n_threads)
{
    esper_guard_options options;
    esper_guard *guard;

    esper_guard_options_init(&options);
    options.n_threads = n_threads;
    check_good(esper_guard_open(&options, &guard));
    return guard;
}

static esper_guard_tensor tensor_of(const char *name, const char *group, esper_guard_role role, float *data,
                                    uint64_t count)
{
    return (esper_guard_tensor){.name = name,
                                .group = group,
                                .role = role,
                                .dtype = ESPER_GUARD_F32,
                                .device = ESPER_GUARD_HOST,
                                .data = data,
                                .count = count};
}

static const esper_guard_report *scan(esper_guard *guard, const esper_guard_scan *request)
{
    const esper_guard_report *report;

    check_good(esper_guard_launch(guard, request));
    check_good(esper_guard_read(guard, &report));
    return report;
}

static float noise(uint64_t i)
{
    uint64_t z = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return (float)((double)(z >> 40) / (double)(1 << 24) - 0.5);
}

/* ------------------------------------------------------------------------------------------------------- statistics */

static void statistics_of_one_tensor(void **state)
{
    float data[8] = {3.0f, -4.0f, 0.0f, -0.0f, 1e-9f, 0.0f, 0.0f, 0.0f};
    esper_guard_tensor tensor = tensor_of("w", "host", ESPER_GUARD_ROLE_PARAM, data, 8);
    esper_guard *guard = open_guard(1);
    const esper_guard_report *report;

    (void)state;
    check_good(esper_guard_add(guard, &tensor, 1));
    report = scan(guard, NULL);
    assert_int_equal(report->sequence, 1);
    assert_int_equal(report->bad, 0);
    assert_int_equal(report->first_bad, ESPER_GUARD_NONE);
    assert_int_equal(report->n_tensors, 1);
    assert_int_equal(report->stats[0].n_zero, 5);
    assert_int_equal(report->stats[0].n_tiny, 6);
    assert_true(report->stats[0].max_abs == 4.0);
    assert_true(report->stats[0].min_abs == (double)1e-9f);
    check_near(report->stats[0].norm, 5.0, 1e-15);
    check_near(report->stats[0].mean, -0.125, 1e-8);
    assert_int_equal(report->stats[0].scanned, 1);
    data[3] = NAN;
    data[6] = -INFINITY;
    report = scan(guard, NULL);
    assert_int_equal(report->sequence, 2);
    assert_int_equal(report->bad, ESPER_GUARD_BAD_NAN_STATE | ESPER_GUARD_BAD_INF_STATE);
    assert_int_equal(report->first_bad, 0);
    assert_int_equal(report->n_bad, 1);
    assert_int_equal(report->stats[0].first_bad, 3);
    assert_int_equal(report->stats[0].n_nan, 1);
    assert_int_equal(report->stats[0].n_neg_inf, 1);
    assert_true(isnan(report->stats[0].norm));
    assert_true(report->stats[0].max_abs == 4.0);
    check_near(report->stats[0].mean, -1.0 / 6.0, 1e-8);
    esper_guard_close(guard);
}

/* NaN in the data, Inf in the data, and a norm that overflows although the data are finite. */
static void not_finite_is_told_apart(void **state)
{
    float huge[4] = {3e38f, -3e38f, 1e19f, 1e20f}, inf[2] = {1.0f, INFINITY};
    double wide[2] = {1e200, 1.0}, narrow[2] = {1e-200, 0.0};
    esper_guard_tensor tensors[] = {
        tensor_of("huge", "a", ESPER_GUARD_ROLE_PARAM, huge, 4),
        tensor_of("inf", "a", ESPER_GUARD_ROLE_PARAM, inf, 2),
        {.name = "wide", .group = "b", .dtype = ESPER_GUARD_F64, .device = ESPER_GUARD_HOST, .data = wide, .count = 2},
        {.name = "narrow",
         .group = "c",
         .dtype = ESPER_GUARD_F64,
         .device = ESPER_GUARD_HOST,
         .data = narrow,
         .count = 2},
    };
    esper_guard *guard = open_guard(1);
    const esper_guard_report *report;
    char text[256];

    (void)state;
    check_good(esper_guard_add(guard, tensors, 4));
    report = scan(guard, NULL);
    check_near(report->stats[0].norm, sqrt(2.0) * (double)3e38f, 1e-14);
    assert_int_equal(report->stats[0].norm_overflow, 0);
    assert_true(isinf(report->stats[1].norm));
    assert_int_equal(report->stats[1].norm_overflow, 0);
    assert_true(isinf(report->stats[2].norm));
    assert_int_equal(report->stats[2].norm_overflow, 1);
    assert_int_equal(report->stats[2].first_bad, ESPER_GUARD_NONE);
    assert_true(report->stats[3].norm == 1e-200);
    assert_int_equal(report->bad, ESPER_GUARD_BAD_INF_STATE);
    assert_int_equal(report->n_bad, 1);
    assert_int_equal(report->n_groups, 3);
    assert_int_equal(report->groups[1].norm_not_finite, 1);
    assert_int_equal(report->groups[1].n_inf, 0);
    assert_int_equal(report->groups[1].n_exploding, 1);
    inf[1] = 0.0f;
    report = scan(guard, NULL);
    assert_int_equal(report->bad, 0);
    assert_string_equal(esper_guard_describe(guard, report, text, sizeof(text)),
                        "all 4 tensors are finite, but the norm of wide (param, b) overflows");
    esper_guard_close(guard);
}

/* ----------------------------------------------------------------------------------------------------------- groups */

static void groups_and_totals(void **state)
{
    float small[2] = {1e-9f, 0.0f}, fine[4] = {1.0f, 1.0f, 1.0f, 1.0f}, large[1] = {11.0f}, param[1] = {2.0f};
    esper_guard_tensor tensors[] = {
        tensor_of("a", "host", ESPER_GUARD_ROLE_GRAD, small, 2),
        tensor_of("a", "host", ESPER_GUARD_ROLE_PARAM, param, 1), /* the same name in another role */
        tensor_of("b", "seed r0c1", ESPER_GUARD_ROLE_GRAD, fine, 4),
        tensor_of("c", "host", ESPER_GUARD_ROLE_GRAD, large, 1),
    };
    esper_guard *guard = open_guard(1);
    const esper_guard_report *report;
    const esper_guard_group *host, *total;
    esper_guard_scan grads_only;

    (void)state;
    check_good(esper_guard_add(guard, tensors, 4));
    report = scan(guard, NULL);
    assert_int_equal(report->n_groups, 3); /* host grad, host param, seed grad: in the order of their first tensors */
    host = &report->groups[0];
    assert_string_equal(host->name, "host");
    assert_int_equal(host->role, ESPER_GUARD_ROLE_GRAD);
    assert_int_equal(host->n_tensors, 2);
    assert_int_equal(host->n_elements, 3);
    assert_int_equal(host->n_zero, 1);
    assert_int_equal(host->n_vanishing, 1);
    assert_int_equal(host->n_exploding, 1);
    check_near(host->norm, 11.0, 1e-15);
    check_near(host->health, 1.0 - 0.25 - 0.4, 1e-15);
    check_near(host->norm_ratio, 11.0 / (double)1e-9f, 1e-15);
    check_near(host->zero_fraction, 1.0 / 3.0, 1e-15);
    assert_int_equal(host->is_healthy, 0);
    assert_string_equal(report->groups[2].name, "seed r0c1");
    assert_int_equal(report->groups[2].is_healthy, 1);
    check_near(esper_guard_ratio(&report->groups[2], host), (2.0 / 2.0) / (11.0 / sqrt(3.0) + 1e-8), 1e-14);
    total = &report->totals[ESPER_GUARD_ROLE_GRAD];
    assert_int_equal(total->n_tensors, 3);
    check_near(total->norm, sqrt(125.0), 1e-15);
    check_near(report->grad_norm, sqrt(125.0), 1e-15);
    assert_int_equal(report->totals[ESPER_GUARD_ROLE_MOMENT].measured, 0);
    esper_guard_scan_init(&grads_only);
    grads_only.roles = 1u << ESPER_GUARD_ROLE_GRAD;
    report = scan(guard, &grads_only);
    assert_int_equal(report->stats[1].scanned, 0);
    assert_true(report->stats[1].norm == 0.0 && report->stats[1].first_bad == 0);
    assert_int_equal(report->groups[1].measured, 0);
    assert_int_equal(report->groups[1].is_healthy, 0);
    assert_true(isnan(esper_guard_ratio(&report->groups[1], host)));
    assert_int_equal(report->groups[0].measured, 1);
    esper_guard_close(guard);
}

static void describing(void **state)
{
    static float grads[600000];
    float weights[3] = {0.5f, 0.5f, 0.5f}, other[2] = {1.0f, 2.0f};
    esper_guard_tensor tensors[] = {
        tensor_of("w", "host", ESPER_GUARD_ROLE_PARAM, weights, 3),
        tensor_of("blocks.7.attn.c_proj.weight", "host", ESPER_GUARD_ROLE_GRAD, grads, 589824),
        tensor_of("b", "host", ESPER_GUARD_ROLE_GRAD, other, 2),
    };
    esper_guard *guard = open_guard(2);
    const esper_guard_report *report;
    char text[256], brief[9];

    (void)state;
    check_good(esper_guard_add(guard, tensors, 3));
    grads[0] = 1.234f;
    other[0] = other[1] = 0.0f;
    report = scan(guard, NULL);
    assert_string_equal(esper_guard_describe(guard, report, text, sizeof(text)),
                        "all 3 tensors are finite, gradient norm 1.234");
    grads[41102] = grads[50000] = grads[589823] = NAN;
    other[1] = INFINITY;
    weights[2] = NAN;
    report = scan(guard, NULL);
    assert_string_equal(esper_guard_describe(guard, report, text, sizeof(text)),
                        "NaN in w (param, host): 1 of 3, first at 2; 2 more tensors");
    weights[2] = 0.0f;
    report = scan(guard, NULL);
    assert_string_equal(
        esper_guard_describe(guard, report, text, sizeof(text)),
        "NaN in blocks.7.attn.c_proj.weight (grad, host): 3 of 589,824, first at 41,102; 1 more tensor");
    assert_string_equal(esper_guard_describe(guard, report, brief, sizeof(brief)), "NaN in b");
    esper_guard_close(guard);
}

/* ------------------------------------------------------------------------------------------------------ determinism */

enum { N_MIXED = 60 };

/* Tensors of all sizes and types; float64 and halves are filled through float. */
static void fill_mixed(esper_guard_tensor *tensors, char names[N_MIXED][16], unsigned char *memory, int n_devices)
{
    uint64_t at = 0;

    for (int i = 0; i < N_MIXED; i++) {
        uint64_t count = i == 7 ? 700000 : i == 30 ? 150000 : (uint64_t)(i * i * 3 % 997);
        esper_guard_dtype dtype = (esper_guard_dtype)(i % ESPER_GUARD_N_DTYPES);

        snprintf(names[i], 16, "t%d", i);
        tensors[i] = (esper_guard_tensor){.name = names[i],
                                          .group = i % 3 == 0 ? "host" : "seed",
                                          .role = (esper_guard_role)(i % 2),
                                          .dtype = dtype,
                                          .device = ESPER_GUARD_HOST - i % n_devices,
                                          .data = memory + at,
                                          .count = count};
        for (uint64_t e = 0; e < count; e++) {
            float value = noise(at + e);
            double wide = (double)value;
            uint16_t half = (uint16_t)(0x3000 + (at + e) * 40503 % 0x0bff);

            if (dtype == ESPER_GUARD_F32)
                memcpy(memory + at + e * 4, &value, 4);
            else if (dtype == ESPER_GUARD_F64)
                memcpy(memory + at + e * 8, &wide, 8);
            else
                memcpy(memory + at + e * 2, &half, 2);
        }
        at += count * 8 + (uint64_t)(i % 3);
    }
}

/* A report as numbers that can be compared: tensors, then groups. */
typedef struct report_hash {
    uint64_t stats, groups;
} report_hash;

static report_hash hash_report(const esper_guard_report *report)
{
    const unsigned char *bytes = (const unsigned char *)report->stats;
    report_hash hash = {0, 0};

    for (size_t i = 0; i < report->n_tensors * sizeof(*report->stats); i++)
        hash.stats = (hash.stats ^ bytes[i]) * UINT64_C(0x100000001b3);
    for (size_t g = 0; g < report->n_groups; g++) {
        uint64_t bits[2];

        memcpy(bits, (double[2]){report->groups[g].norm, report->groups[g].health}, sizeof(bits));
        hash.groups = (hash.groups ^ bits[0]) * UINT64_C(0x100000001b3);
        hash.groups = (hash.groups ^ bits[1]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static report_hash hash_scan(const esper_guard_tensor *tensors, size_t n, int n_threads)
{
    esper_guard *guard = open_guard(n_threads);
    esper_guard_scan request;
    report_hash hash, again;

    esper_guard_scan_init(&request);
    request.checksum = 1;
    check_good(esper_guard_add(guard, tensors, n / 2));
    check_good(esper_guard_add(guard, tensors + n / 2, n - n / 2));
    hash = hash_report(scan(guard, &request));
    again = hash_report(scan(guard, &request));
    assert_int_equal(again.stats, hash.stats);
    assert_int_equal(again.groups, hash.groups);
    esper_guard_close(guard);
    return hash;
}

/* Any number of threads, any set of kernels: the same bits. Any partition of the memory as well, but for groups, which
 * partitions add up first. */
static void same_bits_everywhere(void **state)
{
    static const char *const sets[] = {"portable", "avx2", "avx512"};
    unsigned char *memory = esper_mem_alloc(12 << 20);
    esper_guard_tensor tensors[N_MIXED];
    char names[N_MIXED][16];
    report_hash want = {0, 0};

    (void)state;
    for (int n_devices = 1; n_devices <= 3; n_devices++) {
        fill_mixed(tensors, names, memory, n_devices);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            report_hash hash = hash_scan(tensors, N_MIXED, n_threads);

            want.stats = want.stats == 0 ? hash.stats : want.stats;
            want.groups = n_threads == 1 ? hash.groups : want.groups;
            if (hash.stats != want.stats || hash.groups != want.groups)
                fail_msg("%d threads, %d partitions: hash %lx %lx, expected %lx %lx", n_threads, n_devices, hash.stats,
                         hash.groups, want.stats, want.groups);
        }
    }
    for (size_t s = 0; s < sizeof(sets) / sizeof(sets[0]); s++) {
        if (esper_scan_kernels_find(sets[s]) == NULL)
            continue;
        setenv("ESPER_KERNELS", sets[s], 1);
        assert_int_equal(hash_scan(tensors, N_MIXED, 2).stats, want.stats);
        assert_int_equal(hash_scan(tensors, N_MIXED, 2).groups, want.groups);
        unsetenv("ESPER_KERNELS");
    }
    esper_mem_free(memory);
}

/* A caller that flushes denormals to zero gets the same statistics as one that does not. */
static void callers_floating_point_mode(void **state)
{
#if defined(__x86_64__)
    const unsigned flush = 0x8040u, towards_zero = 0x6000u, before = _mm_getcsr();
    float data[100];
    esper_guard_tensor tensor = tensor_of("d", "g", ESPER_GUARD_ROLE_PARAM, data, 100);
    esper_guard *guard = open_guard(1);
    double norm, norm_flushed;
    unsigned set, after;

    (void)state;
    for (int i = 0; i < 100; i++)
        data[i] = 1e-40f;
    check_good(esper_guard_add(guard, &tensor, 1));
    norm = scan(guard, NULL)->stats[0].norm;
    _mm_setcsr(before | flush | towards_zero);
    set = _mm_getcsr();
    norm_flushed = scan(guard, NULL)->stats[0].norm;
    after = _mm_getcsr();
    _mm_setcsr(before);
    assert_int_equal(scan(guard, NULL)->stats[0].n_zero, 0);
    esper_guard_close(guard);
    check_near(norm, 10.0 * (double)1e-40f, 1e-14);
    assert_true(norm_flushed == norm);
    if ((set & flush) != flush) {
        printf("skipped: this processor is emulated without such modes\n");
        skip();
    }
    assert_int_equal(after & 0xffc0u, set & 0xffc0u); /* as the caller had left it */
#else
    (void)state;
    printf("skipped: no such modes on this processor\n");
    skip();
#endif
}

/* ------------------------------------------------------------------------------------------------ clipping and flag */

static void clipping(void **state)
{
    for (int n_devices = 1; n_devices <= 2; n_devices++) {
        float a[3] = {3.0f, 0.0f, 0.0f}, b[1] = {4.0f}, w[1] = {100.0f};
        uint32_t flag = 99;
        esper_guard_tensor tensors[] = {tensor_of("a", "g", ESPER_GUARD_ROLE_GRAD, a, 3),
                                        tensor_of("b", "g", ESPER_GUARD_ROLE_GRAD, b, 1),
                                        tensor_of("w", "g", ESPER_GUARD_ROLE_PARAM, w, 1)};
        esper_guard *guard = open_guard(2);
        const esper_guard_report *report;
        esper_guard_scan request;

        (void)state;
        tensors[1].device = ESPER_GUARD_HOST - (n_devices - 1);
        check_good(esper_guard_add(guard, tensors, 3));
        esper_guard_scan_init(&request);
        request.clip_norm = 1.0;
        request.skip_flag = &flag;
        report = scan(guard, &request);
        assert_int_equal(flag, 0);
        check_near(report->grad_norm, 5.0, 1e-15);
        check_near(report->clip_factor, 1.0 / (5.0 + 1e-6), 1e-15);
        check_near(report->stats[0].norm, 3.0, 1e-15); /* before clipping */
        assert_true(a[0] == 3.0f * (float)report->clip_factor);
        assert_true(b[0] == 4.0f * (float)report->clip_factor);
        assert_true(w[0] == 100.0f);
        a[0] = 0.25f; /* well within the limit */
        b[0] = 0.5f;
        report = scan(guard, &request);
        assert_true(report->clip_factor == 1.0);
        assert_true(a[0] == 0.25f && b[0] == 0.5f);
        a[0] = NAN;
        b[0] = 40.0f;
        report = scan(guard, &request);
        assert_int_equal(flag, ESPER_GUARD_BAD_NAN_GRAD);
        assert_true(isnan(report->grad_norm));
        assert_true(report->clip_factor == 1.0);
        assert_true(b[0] == 40.0f);
        a[0] = 0.0f;
        b[0] = INFINITY;
        w[0] = -INFINITY;
        report = scan(guard, &request);
        assert_int_equal(flag, ESPER_GUARD_BAD_INF_GRAD | ESPER_GUARD_BAD_INF_STATE);
        assert_true(isinf(report->grad_norm));
        esper_guard_close(guard);
    }
}

/* Over all types and more than one piece: the norm afterwards is the limit. */
static void clipping_of_large_gradients(void **state)
{
    unsigned char *memory = esper_mem_alloc(12 << 20);
    esper_guard_tensor tensors[N_MIXED];
    char names[N_MIXED][16];
    esper_guard *guard = open_guard(2);
    esper_guard_scan request;

    (void)state;
    fill_mixed(tensors, names, memory, 1);
    check_good(esper_guard_add(guard, tensors, N_MIXED));
    esper_guard_scan_init(&request);
    request.clip_norm = 1.5;
    assert_true(scan(guard, &request)->grad_norm > 100.0);
    check_near(scan(guard, NULL)->grad_norm, 1.5, 1e-3); /* bfloat16 has three digits */
    esper_guard_close(guard);
    esper_mem_free(memory);
}

/* The caller's rounding is the caller's: no statistic, sum or factor depends on it, and it is found as it was. */
static void rounding_changes_nothing(void **state)
{
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    unsigned char *memory = esper_mem_alloc(12 << 20);
    esper_guard_tensor tensors[N_MIXED];
    char names[N_MIXED][16];
    esper_guard_stat stats[N_MIXED];
    esper_guard_group totals[ESPER_GUARD_N_ROLES];

    (void)state;
    fill_mixed(tensors, names, memory, 1);
    for (int split = 0; split < 2; split++) {
        esper_guard *guard = open_guard(1);

        for (size_t i = 0; i < N_MIXED; i++)
            tensors[i].device = split && i % 2 ? ESPER_GUARD_HOST - 1 : ESPER_GUARD_HOST;
        check_good(esper_guard_add(guard, tensors, N_MIXED));
        for (int m = 0; m < 4; m++) {
            const esper_guard_report *report;

            fesetround(modes[m]);
            report = scan(guard, NULL);
            assert_int_equal(fegetround(), modes[m]);
            fesetround(FE_TONEAREST);
            if (m == 0) {
                memcpy(stats, report->stats, sizeof(stats));
                memcpy(totals, report->totals, sizeof(totals));
            }
            assert_memory_equal(report->stats, stats, sizeof(stats));
            assert_memory_equal(report->totals, totals, sizeof(totals));
        }
        esper_guard_close(guard);
    }
    esper_mem_free(memory);
}

/* ----------------------------------------------------------------------------------------------- addresses and sums */

static void new_addresses(void **state)
{
    float a[2] = {1.0f, 0.0f}, b[2] = {2.0f, 0.0f}, c[2] = {7.0f, 0.0f};
    esper_guard_tensor tensors[] = {tensor_of("a", "g", ESPER_GUARD_ROLE_PARAM, a, 2),
                                    tensor_of("b", "g", ESPER_GUARD_ROLE_PARAM, b, 2),
                                    tensor_of("none", "g", ESPER_GUARD_ROLE_PARAM, NULL, 0)};
    void *const data[] = {a, c, NULL};
    esper_guard *guard = open_guard(1);
    const esper_guard_report *report;
    esper_mem_stats before, after;

    (void)state;
    tensors[1].device = -2;
    check_good(esper_guard_add(guard, tensors, 3));
    check_good(esper_guard_verify(guard, tensors, 3));
    esper_mem_stats_get(&before);
    check_good(esper_guard_replace(guard, data, 3));
    report = scan(guard, NULL);
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_allocs, before.n_allocs); /* neither takes memory, nor does a scan */
    check_near(report->stats[1].norm, 7.0, 1e-15);
    assert_int_equal(report->stats[2].scanned, 1);
    assert_true(report->stats[2].norm == 0.0);
    assert_int_equal(esper_guard_verify(guard, tensors, 3), ESPER_E_STATE);
    assert_non_null(strstr(esper_last_error(), "tensor 1 (b): its address"));
    tensors[1].data = c;
    check_good(esper_guard_verify(guard, tensors, 3));
    assert_ptr_equal(esper_guard_tensor_at(guard, 1)->data, c);
    check_good(esper_guard_clear(guard));
    assert_int_equal(esper_guard_count(guard), 0);
    assert_null(esper_guard_tensor_at(guard, 0));
    assert_int_equal(esper_guard_launch(guard, NULL), ESPER_E_STATE);
    assert_non_null(strstr(esper_last_error(), "esper_guard_add comes first"));
    check_good(esper_guard_add(guard, tensors, 1));
    check_near(scan(guard, NULL)->stats[0].norm, 1.0, 1e-15);
    esper_guard_close(guard);
}

/* The same without a question to the system for each address. */
static void addresses_that_are_trusted(void **state)
{
    float a[2] = {1.0f, 0.0f}, b[2] = {2.0f, 0.0f}, c[2] = {7.0f, 0.0f};
    esper_guard_tensor tensors[] = {tensor_of("a", "g", ESPER_GUARD_ROLE_GRAD, a, 2),
                                    tensor_of("b", "g", ESPER_GUARD_ROLE_GRAD, b, 2),
                                    tensor_of("none", "g", ESPER_GUARD_ROLE_GRAD, NULL, 0)};
    void *data[] = {c, a, NULL};
    esper_guard *guard = open_guard(1);
    const esper_guard_report *report;
    esper_mem_stats before, after;

    (void)state;
    tensors[1].device = -2;
    check_good(esper_guard_add(guard, tensors, 3));
    esper_mem_stats_get(&before);
    check_good(esper_guard_move(guard, data, 3));
    report = scan(guard, NULL);
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_allocs, before.n_allocs);
    check_near(report->stats[0].norm, 7.0, 1e-15);
    check_near(report->stats[1].norm, 1.0, 1e-15);
    assert_ptr_equal(esper_guard_tensor_at(guard, 1)->data, a);
    data[1] = NULL; /* what can be seen without asking is */
    assert_int_equal(esper_guard_move(guard, data, 3), ESPER_E_ARG);
    assert_non_null(strstr(esper_last_error(), "tensor 1 (b): 2 elements at NULL"));
    assert_int_equal(esper_guard_move(guard, data, 2), ESPER_E_ARG);
    assert_non_null(strstr(esper_last_error(), "esper_guard_move: 2 addresses for 3 tensors"));
    data[1] = (void *)16; /* nobody's memory: believed, and not read */
    check_good(esper_guard_move(guard, data, 3));
    data[1] = b;
    check_good(esper_guard_move(guard, data, 3));
    check_near(scan(guard, NULL)->stats[1].norm, 2.0, 1e-15);
    check_good(esper_guard_launch(guard, NULL));
    assert_int_equal(esper_guard_move(guard, data, 3), ESPER_E_STATE);
    esper_guard_close(guard);
}

static void checksums(void **state)
{
    static float w[70000], m[100];
    uint32_t bits;
    esper_guard_tensor tensors[] = {tensor_of("w", "g", ESPER_GUARD_ROLE_PARAM, w, 70000),
                                    tensor_of("m", "g", ESPER_GUARD_ROLE_MOMENT, m, 100)};
    esper_guard *guard = open_guard(2);
    const esper_guard_report *report;
    esper_guard_scan remember, compare;
    char text[128];

    (void)state;
    for (uint64_t i = 0; i < 70000; i++)
        w[i] = noise(i);
    check_good(esper_guard_add(guard, tensors, 2));
    esper_guard_scan_init(&remember);
    esper_guard_scan_init(&compare);
    remember.checksum = 1;
    compare.checksum = 2;
    assert_int_equal(esper_guard_launch(guard, &compare), ESPER_E_STATE);
    assert_int_equal(scan(guard, &remember)->changed, ESPER_GUARD_NONE);
    assert_int_equal(scan(guard, &compare)->changed, ESPER_GUARD_NONE);
    memcpy(&bits, &w[66000], 4);
    bits ^= 1;
    memcpy(&w[66000], &bits, 4);
    m[3] = -0.0f; /* a flipped sign of zero counts too */
    report = scan(guard, &compare);
    assert_int_equal(report->changed, 0);
    assert_string_equal(esper_guard_describe(guard, report, text, sizeof(text)),
                        "all 2 tensors are finite; bytes of w (param, g) have changed");
    bits ^= 1;
    memcpy(&w[66000], &bits, 4);
    assert_int_equal(scan(guard, &compare)->changed, 1);
    assert_int_equal(scan(guard, NULL)->changed, ESPER_GUARD_NONE); /* not asked */
    esper_guard_close(guard);
}

/* ----------------------------------------------------------------------------------------------------- many tensors */

/* Ten thousand tiny tensors: each has its statistics, and the work is not an item for each. */
static void many_tiny_tensors(void **state)
{
    enum { N = 10000, COUNT = 37 };
    esper_guard_tensor *tensors = esper_mem_alloc(N * sizeof(*tensors));
    float *data = esper_mem_alloc(N * COUNT * sizeof(*data));
    char(*names)[16] = esper_mem_alloc(N * sizeof(*names));
    esper_guard *guard = open_guard(2);
    const esper_guard_report *report;

    (void)state;
    for (int i = 0; i < N; i++) {
        snprintf(names[i], 16, "t%d", i);
        tensors[i] = tensor_of(names[i], "g", ESPER_GUARD_ROLE_GRAD, data + i * COUNT, COUNT);
        data[i * COUNT + i % COUNT] = (float)(i + 1);
    }
    data[7777 * COUNT + 5] = NAN;
    check_good(esper_guard_add(guard, tensors, N));
    report = scan(guard, NULL);
    assert_int_equal(report->first_bad, 7777);
    assert_int_equal(report->n_bad, 1);
    for (int i = 0; i < N; i++) {
        if (i == 7777)
            continue;
        if (report->stats[i].norm != (double)(i + 1) || report->stats[i].n_zero != COUNT - 1)
            fail_msg("tensor %d: norm %g, %lu zeros", i, report->stats[i].norm, report->stats[i].n_zero);
    }
    assert_int_equal(report->groups[0].n_tensors, N);
    esper_guard_close(guard);
    esper_mem_free(names);
    esper_mem_free(data);
    esper_mem_free(tensors);
}

/* Tensors of several groups and roles, dealt out over partitions of host memory. */
enum { N_DEALT = 1200, DEALT_COUNT = 20, N_DEALT_GROUPS = 43 };

typedef struct dealt {
    esper_guard_tensor tensors[N_DEALT];
    char               names[N_DEALT][16], groups[N_DEALT_GROUPS][16];
    float              data[N_DEALT * DEALT_COUNT];
} dealt;

/* Group 0 has one half of them, more than fit into one item of work; the others are many and mixed up. */
static void deal(dealt *d, int n_devices)
{
    for (int g = 0; g < N_DEALT_GROUPS; g++)
        snprintf(d->groups[g], 16, "g%d", g);
    for (int i = 0; i < N_DEALT; i++) {
        int g = i % 2 == 0 ? 0 : 1 + i / 2 * 5 % (N_DEALT_GROUPS - 1);

        snprintf(d->names[i], 16, "t%d", i);
        d->tensors[i] =
            tensor_of(d->names[i], d->groups[g], g % 2 == 0 ? ESPER_GUARD_ROLE_GRAD : ESPER_GUARD_ROLE_PARAM,
                      d->data + i * DEALT_COUNT, DEALT_COUNT);
        d->tensors[i].device = ESPER_GUARD_HOST - i / 5 % n_devices;
        for (int k = 0; k < DEALT_COUNT; k++)
            d->data[i * DEALT_COUNT + k] = noise((uint64_t)(i * 31 + k)) * (i % 50 == 0 ? 100.0f : 1.0f);
    }
}

/* Every group's figures once more, from the tensors'. */
static void check_groups(const dealt *d, const esper_guard_report *report)
{
    for (size_t g = 0; g < report->n_groups; g++) {
        const esper_guard_group *group = &report->groups[g];
        uint64_t n = 0, n_exploding = 0, n_nan = 0;
        double squares = 0.0, most = 0.0;

        for (int i = 0; i < N_DEALT; i++) {
            const esper_guard_stat *stat = &report->stats[i];

            if (!stat->scanned || strcmp(d->tensors[i].group, group->name) != 0)
                continue;
            n++;
            n_nan += stat->n_nan;
            n_exploding += !(stat->norm <= 10.0);
            squares += stat->norm * stat->norm;
            most = stat->norm > most ? stat->norm : most;
        }
        assert_int_equal(group->measured, n > 0);
        assert_int_equal(group->n_tensors, n);
        assert_int_equal(group->n_elements, n * DEALT_COUNT);
        assert_int_equal(group->n_exploding, n_exploding);
        assert_int_equal(group->n_nan, n_nan);
        assert_true(group->max_norm == most);
        if (n_nan == 0)
            assert_true(fabs(group->norm - sqrt(squares)) <= 1e-13 * group->norm);
        else
            assert_true(isnan(group->norm));
    }
}

static void groups_over_partitions(void **state)
{
    dealt *d = esper_mem_alloc(sizeof(*d));

    (void)state;
    for (int n_devices = 1; n_devices <= 3; n_devices++) {
        esper_guard *guard = open_guard(2);
        const esper_guard_report *report;

        deal(d, n_devices);
        check_good(esper_guard_add(guard, d->tensors, N_DEALT));
        report = scan(guard, NULL);
        assert_int_equal(report->n_groups, N_DEALT_GROUPS);
        assert_int_equal(report->first_bad, ESPER_GUARD_NONE);
        check_groups(d, report);
        d->data[900 * DEALT_COUNT] = NAN; /* in the large group, far behind ... */
        d->data[1101 * DEALT_COUNT] = NAN;
        report = scan(guard, NULL);
        assert_int_equal(report->first_bad, 900);
        assert_int_equal(report->n_bad, 2);
        check_groups(d, report);
        d->data[333 * DEALT_COUNT + 7] = NAN; /* ... and in another, registered before */
        report = scan(guard, NULL);
        assert_int_equal(report->first_bad, 333);
        assert_int_equal(report->n_bad, 3);
        check_groups(d, report);
        esper_guard_close(guard);
    }
    esper_mem_free(d);
}

/* What an earlier scan of other roles found does not show in this one. */
static void roles_take_turns(void **state)
{
    static const uint32_t turns[] = {3, 1, 2, 2, 1, 4, 3, 2};
    const esper_guard_stat zero = {0};
    dealt *d = esper_mem_alloc(sizeof(*d));

    (void)state;
    for (int n_devices = 1; n_devices <= 2; n_devices++) {
        esper_guard *guard = open_guard(2);

        deal(d, n_devices);
        d->data[0] = NAN; /* a gradient */
        check_good(esper_guard_add(guard, d->tensors, N_DEALT));
        for (size_t turn = 0; turn < sizeof(turns) / sizeof(turns[0]); turn++) {
            const esper_guard_report *report;
            esper_guard_scan request;

            esper_guard_scan_init(&request);
            request.roles = turns[turn];
            report = scan(guard, &request);
            for (int i = 0; i < N_DEALT; i++) {
                assert_int_equal(report->stats[i].scanned, turns[turn] >> d->tensors[i].role & 1);
                if (!report->stats[i].scanned)
                    assert_memory_equal(&report->stats[i], &zero, sizeof(zero));
            }
            assert_int_equal(report->bad, turns[turn] & 2 ? ESPER_GUARD_BAD_NAN_GRAD : 0);
            assert_int_equal(report->first_bad, turns[turn] & 2 ? 0 : ESPER_GUARD_NONE);
            assert_int_equal(report->n_bad, turns[turn] & 2 ? 1 : 0);
            check_groups(d, report);
        }
        esper_guard_close(guard);
    }
    esper_mem_free(d);
}

static void what_others_may_ask(void **state)
{
    float a[2] = {1.0f, 2.0f};
    esper_guard_tensor tensor = tensor_of("a", "g", ESPER_GUARD_ROLE_PARAM, a, 2);
    esper_guard *guard = open_guard(3);

    (void)state;
    assert_int_equal(esper_guard_options_of(guard)->n_threads, 3);
    assert_null(esper_guard_engine(guard, ESPER_GUARD_HOST));
    check_good(esper_guard_add(guard, &tensor, 1));
    assert_non_null(esper_guard_engine(guard, ESPER_GUARD_HOST));
    assert_int_equal(esper_pool_threads(esper_scan_engine_host_pool(esper_guard_engine(guard, ESPER_GUARD_HOST))), 3);
    esper_guard_close(guard);
    esper_guard_close(NULL);
}

static void finding(void **state)
{
    float a[2] = {1.0f, 2.0f};
    esper_guard_tensor tensors[] = {tensor_of("a", "g", ESPER_GUARD_ROLE_PARAM, a, 2),
                                    tensor_of("b", "g", ESPER_GUARD_ROLE_PARAM, a, 2),
                                    tensor_of("b", "g", ESPER_GUARD_ROLE_GRAD, a, 2)};
    esper_guard *guard = open_guard(1);
    char text[64];

    (void)state;
    assert_int_equal(esper_guard_find(guard, "a", ESPER_GUARD_ROLE_PARAM), ESPER_GUARD_NONE);
    check_good(esper_guard_add(guard, tensors, 1));
    assert_string_equal(esper_guard_describe(guard, scan(guard, NULL), text, sizeof(text)), "1 tensor is finite");
    check_good(esper_guard_add(guard, tensors + 1, 2));
    assert_int_equal(esper_guard_find(guard, "a", ESPER_GUARD_ROLE_PARAM), 0);
    assert_int_equal(esper_guard_find(guard, "b", ESPER_GUARD_ROLE_PARAM), 1);
    assert_int_equal(esper_guard_find(guard, "b", ESPER_GUARD_ROLE_GRAD), 2);
    assert_int_equal(esper_guard_find(guard, "a", ESPER_GUARD_ROLE_GRAD), ESPER_GUARD_NONE);
    assert_int_equal(esper_guard_find(guard, NULL, ESPER_GUARD_ROLE_GRAD), ESPER_GUARD_NONE);
    assert_int_equal(esper_guard_find(NULL, "a", ESPER_GUARD_ROLE_PARAM), ESPER_GUARD_NONE);
    esper_guard_close(guard);
}

/* How often threads other than this one have gone to sleep; 0 while one has not yet. */
static unsigned long count_sleeps(void)
{
    unsigned long sleeps, sum = 0, fewest = 1;
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;

    assert_non_null(tasks);
    while ((task = readdir(tasks)) != NULL) {
        char path[300], line[128];
        FILE *file;

        snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
        file = task->d_name[0] == '.' || atoi(task->d_name) == (int)gettid() ? NULL : fopen(path, "r");
        while (file != NULL && fgets(line, sizeof(line), file) != NULL)
            if (sscanf(line, "voluntary_ctxt_switches: %lu", &sleeps) == 1) {
                sum += sleeps;
                fewest = sleeps < fewest ? sleeps : fewest;
            }
        if (file != NULL)
            fclose(file);
    }
    closedir(tasks);
    return fewest > 0 ? sum : 0;
}

/* Scans of 16 tensors of so many elements, with time in between to fall asleep: whether anybody was woken. */
static bool wakes_threads(uint64_t count)
{
    static float data[16 << 16];
    char names[16][8];
    const struct timespec a_while = {.tv_nsec = 5000000};
    esper_guard_tensor tensors[16];
    esper_guard *guard = open_guard(3);
    unsigned long before = 0;

    for (uint64_t i = 0; i < 16 * count; i++)
        data[i] = noise(i);
    for (size_t t = 0; t < 16; t++) {
        snprintf(names[t], sizeof(names[t]), "t%zu", t);
        tensors[t] = tensor_of(names[t], "g", ESPER_GUARD_ROLE_GRAD, data + t * count, count);
    }
    check_good(esper_guard_add(guard, tensors, 16));
    do { /* until all of them have begun, and sleep */
        before = count_sleeps();
        nanosleep(&a_while, NULL);
    } while (before == 0 || count_sleeps() != before);
    for (int i = 0; i < 10; i++) {
        esper_guard_scan request;

        esper_guard_scan_init(&request);
        request.clip_norm = pow(0.5, i);
        assert_true(scan(guard, &request)->clip_factor < 1.0); /* scaled too */
        nanosleep(&a_while, NULL);
    }
    before = count_sleeps() - before;
    esper_guard_close(guard);
    return before != 0;
}

/* Little work is done before another thread is awake. */
static void small_work_wakes_nobody(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    skip(); /* has a thread of its own that sleeps and wakes */
#endif
    assert_true(wakes_threads(1 << 16)); /* 4 MiB; or the next line proves nothing */
    assert_false(wakes_threads(1 << 10)); /* 64 KiB */
}

/* What the library fills has no size of its own: who changes one of these raises the library's SOVERSION. */
static void layouts_of_soversion_0(void **state)
{
    (void)state;
    assert_int_equal(ESPER_VERSION_MAJOR, 0);
    assert_int_equal(sizeof(esper_guard_tensor), 48);
    assert_int_equal(sizeof(esper_guard_stat), 96);
    assert_int_equal(sizeof(esper_guard_group), 136);
    assert_int_equal(sizeof(esper_guard_report), 768);
    assert_int_equal(sizeof(esper_ring_status), 80);
    assert_int_equal(sizeof(esper_ring_restored), 40);
    assert_int_equal(sizeof(esper_governor_reading), 72);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_of_one_tensor),
        cmocka_unit_test(not_finite_is_told_apart),
        cmocka_unit_test(groups_and_totals),
        cmocka_unit_test(describing),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(callers_floating_point_mode),
        cmocka_unit_test(clipping),
        cmocka_unit_test(clipping_of_large_gradients),
        cmocka_unit_test(rounding_changes_nothing),
        cmocka_unit_test(new_addresses),
        cmocka_unit_test(addresses_that_are_trusted),
        cmocka_unit_test(checksums),
        cmocka_unit_test(many_tiny_tensors),
        cmocka_unit_test(groups_over_partitions),
        cmocka_unit_test(roles_take_turns),
        cmocka_unit_test(what_others_may_ask),
        cmocka_unit_test(finding),
        cmocka_unit_test(small_work_wakes_nobody),
        cmocka_unit_test(layouts_of_soversion_0),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
