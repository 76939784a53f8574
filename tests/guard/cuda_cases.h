/* What the CUDA engine promises, as cases for cmocka: test_cuda.c runs them on a device, test_cuda_emulated.c on the
 * host. Includes what both need; a file that includes this defines
 *
 *   large_bytes()               how much the largest tensors have
 *   capture_begin(f) ...        see there
 */
#ifndef ESPER_TESTS_GUARD_CUDA_CASES_H
#define ESPER_TESTS_GUARD_CUDA_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/device_cuda.h"
#include "guard/engine_cuda.h"
#include "guard/report.h"
#include "support/cuda_waits.h"

static uint64_t large_bytes(void);

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static const uint32_t dtype_bytes[] = {4, 2, 2, 8};

static const esper_guard_options no_options = {.size = sizeof(esper_guard_options), .tiny = 1e-8};

/* ------------------------------------------------------------------------------------------------------ random data */

static uint64_t random_state = 0x853c49e6748fea9bu;

static uint64_t random_u64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545F4914F6CDD1Du;
}

static uint64_t random_below(uint64_t n)
{
    return random_u64() % n;
}

static uint64_t bits_of_value(esper_guard_dtype dtype, double value)
{
    float single = (float)value;
    uint32_t word;
    uint64_t bits;

    memcpy(&word, &single, sizeof(word));
    memcpy(&bits, &value, sizeof(bits));
    switch (dtype) {
    case ESPER_GUARD_F64:
        return bits;
    case ESPER_GUARD_F32:
        return word;
    case ESPER_GUARD_BF16:
        return word >> 16;
    default: { /* float16, cut off: within its normal range */
        uint32_t exponent = word >> 23 & 0xff;

        return (word >> 16 & 0x8000) |
               (exponent < 113 || exponent > 142 ? 0 : (exponent - 112) << 10 | (word >> 13 & 0x3ff));
    }
    }
}

static const uint64_t infinities[] = {0x7f800000, 0x7c00, 0x7f80, 0x7ff0000000000000};

static uint64_t sign_bit(esper_guard_dtype dtype)
{
    return (uint64_t)1 << (8 * dtype_bytes[dtype] - 1);
}

typedef enum data_kind {
    DATA_PLAIN,
    DATA_SMALL,
    DATA_SPECIAL,
    DATA_ANY_BITS,
    DATA_ALL_INF,
    DATA_ZERO,
    N_DATA_KINDS
} data_kind;

static uint64_t random_element(esper_guard_dtype dtype, data_kind kind)
{
    uint64_t inf = infinities[dtype], sign = random_below(2) ? sign_bit(dtype) : 0;
    double plain = ((double)random_below(2000001) - 1000000) / 300000;

    if (kind == DATA_ANY_BITS)
        return random_u64() & (sign_bit(dtype) * 2 - 1);
    if (kind == DATA_ALL_INF)
        return inf | sign;
    if (kind == DATA_ZERO)
        return sign;
    if (kind == DATA_SMALL)
        switch (random_below(4)) {
        case 0:
            return sign; /* a zero of either sign */
        case 1:
            return sign | (1 + random_below(3)); /* the smallest denormals */
        case 2:
            return bits_of_value(dtype, 1e-8);
        }
    if (kind == DATA_SPECIAL && random_below(50) == 0)
        switch (random_below(4)) {
        case 0:
            return inf | sign;
        case 1:
            return inf | sign | (1 + random_below(3)); /* NaN with a payload */
        case 2:
            return (inf - 1) | sign; /* the largest finite */
        default:
            return (sign_bit(dtype) - 1) | sign; /* NaN, all bits set */
        }
    return bits_of_value(dtype, plain);
}

static void fill(void *memory, uint64_t count, esper_guard_dtype dtype, data_kind kind)
{
    char *at = memory;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = random_element(dtype, kind);

        memcpy(at + i * dtype_bytes[dtype], &bits, dtype_bytes[dtype]); /* little-endian */
    }
}

/* --------------------------------------------------------------------------------------------- the scalar reference */

static uint64_t element_at(const void *data, uint64_t i, esper_guard_dtype dtype)
{
    uint64_t bits = 0;

    memcpy(&bits, (const char *)data + i * dtype_bytes[dtype], dtype_bytes[dtype]);
    return bits;
}

static double value_of_bits(esper_guard_dtype dtype, uint64_t bits)
{
    uint64_t magnitude = bits & ~sign_bit(dtype);
    double value;
    float single;
    uint32_t word;

    if (dtype == ESPER_GUARD_F64) {
        memcpy(&value, &bits, sizeof(value));
        return value;
    }
    if (dtype == ESPER_GUARD_F16) {
        value = magnitude < 0x400 ? ldexp((double)magnitude, -24)
                                  : ldexp((double)((magnitude & 0x3ff) | 0x400), (int)(magnitude >> 10) - 25);
        return magnitude == bits ? value : -value;
    }
    word = (uint32_t)(dtype == ESPER_GUARD_BF16 ? bits << 16 : bits);
    memcpy(&single, &word, sizeof(single));
    return (double)single;
}

static uint64_t reference_mix(uint64_t word, uint64_t index)
{
    uint64_t t = word ^ (index * ESPER_CHECKSUM_STEP);

    return (t & 0xffffffff) * (t >> 32) + t;
}

static uint64_t reference_checksum(const void *data, uint64_t bytes)
{
    uint64_t sum = 0;

    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;

        memcpy(&word, (const char *)data + at, bytes - at < 8 ? bytes - at : 8);
        sum += reference_mix(word, at / 8);
    }
    return sum;
}

/* magnitudes: the sum of |x|, which bounds the error that a sum may have. */
static esper_scan_record reference_scan(const void *data, uint64_t count, esper_guard_dtype dtype, double tiny,
                                        double *magnitudes_out)
{
    esper_scan_record record = {.first_bad = UINT64_MAX};
    long double sum = 0, squares = 0, magnitudes = 0;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = element_at(data, i, dtype), magnitude = bits & ~sign_bit(dtype);
        double value = value_of_bits(dtype, bits);

        if (magnitude >= infinities[dtype]) {
            record.n_nan += magnitude > infinities[dtype];
            record.n_pos_inf += bits == infinities[dtype];
            record.n_neg_inf += bits == (infinities[dtype] | sign_bit(dtype));
            record.first_bad = record.first_bad == UINT64_MAX ? i : record.first_bad;
            continue;
        }
        sum += (long double)value;
        squares += (long double)value * (long double)value;
        magnitudes += fabsl((long double)value);
        record.n_zero += value == 0;
        record.n_tiny += fabs(value) < tiny;
        record.max_abs = fmax(record.max_abs, fabs(value));
        if (value != 0 && (record.min_abs == 0 || fabs(value) < record.min_abs))
            record.min_abs = fabs(value);
    }
    record.sum = (double)sum;
    record.sum_squares = (double)squares;
    record.checksum = reference_checksum(data, count * dtype_bytes[dtype]);
    *magnitudes_out = (double)magnitudes;
    return record;
}

/* ----------------------------------------------------------------------------------- tensors on the host and device */

typedef struct twin {
    char    *host;   /* the data */
    char    *device; /* the block it is copied to, at an offset */
    uint64_t shift;  /* elements by which the tensor begins later */
} twin;

enum { MAX_TWINS = 128, N_GROUPS = ESPER_GUARD_N_ROLES }; /* a role is a group, unless a case says otherwise */

typedef struct fixture {
    esper_device     *device;
    esper_stream     *stream;
    esper_scan_engine     *engine;
    esper_scan_tensor tensors[MAX_TWINS];
    twin              twins[MAX_TWINS];
    size_t            n, n_bound;
    esper_scan_result result;
    esper_guard_stat  stats[MAX_TWINS]; /* a copy of the result's */
} fixture;

static void open_fixture_with(fixture *f, const esper_guard_options *options)
{
    memset(f, 0, sizeof(*f));
    check_good(esper_device_open("cuda", 0, &f->device));
    check_good(esper_stream_open(f->device, &f->stream));
    check_good(esper_scan_engine_cuda.open(0, options, &f->engine));
}

static void open_fixture(fixture *f)
{
    open_fixture_with(f, &no_options);
}

static void close_fixture(fixture *f)
{
    esper_scan_engine_cuda.close(f->engine);
    for (size_t i = 0; i < f->n; i++) {
        esper_device_release(f->device, f->twins[i].device);
        free(f->twins[i].host);
    }
    esper_stream_close(f->stream);
    esper_device_close(f->device);
}

static uint64_t bytes_of(const fixture *f, size_t i)
{
    return f->tensors[i].count * dtype_bytes[f->tensors[i].dtype];
}

static void upload(fixture *f, size_t i)
{
    check_good(esper_stream_copy(f->stream, f->tensors[i].data, f->twins[i].host, bytes_of(f, i)));
    check_good(esper_stream_sync(f->stream));
}

static void download(fixture *f, size_t i, void *to)
{
    check_good(esper_stream_copy(f->stream, to, f->tensors[i].data, bytes_of(f, i)));
    check_good(esper_stream_sync(f->stream));
}

/* Adds a tensor that begins `shift` elements after an address that is a multiple of 256. */
static size_t add_tensor(fixture *f, esper_guard_role role, esper_guard_dtype dtype, uint64_t count, uint64_t shift,
                         data_kind kind)
{
    size_t i = f->n++;
    void *memory;

    assert_true(i < MAX_TWINS);
    check_good(
        esper_device_alloc(f->device, (count + shift) * dtype_bytes[dtype] + 64, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    f->twins[i] = (twin){.host = malloc(count * dtype_bytes[dtype] + 8), .device = memory, .shift = shift};
    f->tensors[i] = (esper_scan_tensor){.data = f->twins[i].device + shift * dtype_bytes[dtype],
                                        .count = count,
                                        .dtype = dtype,
                                        .role = role,
                                        .group = (uint32_t)role};
    fill(f->twins[i].host, count, dtype, kind);
    upload(f, i);
    return i;
}

static void bind(fixture *f)
{
    check_good(esper_scan_engine_cuda.bind(f->engine, f->tensors, f->n, N_GROUPS));
    f->n_bound = f->n;
}

enum {
    ALL_ROLES = (1 << ESPER_GUARD_N_ROLES) - 1,
    GRADS = 1 << ESPER_GUARD_ROLE_GRAD,
    PARAMS = 1 << ESPER_GUARD_ROLE_PARAM
};

static esper_scan_request request_of(fixture *f, uint32_t roles)
{
    return (esper_scan_request){.roles = roles, .tiny = 1e-8, .stream = esper_stream_native(f->stream)};
}

static void collect(fixture *f)
{
    check_good(esper_scan_engine_cuda.collect(f->engine, &f->result));
    if (f->n_bound != 0)
        memcpy(f->stats, f->result.stats, f->n_bound * sizeof(f->stats[0]));
}

static void scan(fixture *f, const esper_scan_request *request)
{
    check_good(esper_scan_engine_cuda.scan(f->engine, request));
    collect(f);
}

/* As the last scan found it; of roles that have no tensor it is 0. */
static double grad_norm(const fixture *f)
{
    return f->result.roles != NULL ? esper_scan_norm(&f->result.roles[ESPER_GUARD_ROLE_GRAD]) : 0;
}

#define SAME(i, field)                                                                                                 \
    do {                                                                                                               \
        if (got->field != want.field)                                                                                  \
            fail_msg("tensor %zu (type %d, %llu elements, shift %llu): " #field " %llu, expected %llu", (size_t)(i),   \
                     (int)t->dtype, (unsigned long long)t->count, (unsigned long long)f->twins[i].shift,               \
                     (unsigned long long)got->field, (unsigned long long)want.field);                                  \
    } while (0)

#define NEAR(i, field, tolerance)                                                                          \
    do {                                                                                                   \
        if (!(fabs(got->field - want.field) <= (tolerance)) && got->field != want.field)                   \
            fail_msg("tensor %zu (type %d, %llu elements): " #field " %.17g, expected %.17g", (size_t)(i), \
                     (int)t->dtype, (unsigned long long)t->count, got->field, want.field);                 \
    } while (0)

/* The statistics that follow from a record, said once more. */
static esper_guard_stat reference_stat(const esper_scan_record *record, uint64_t count)
{
    uint64_t n_bad = record->n_nan + record->n_pos_inf + record->n_neg_inf;
    double norm =
        record->sum_squares < 1e-280 ? fmax(sqrt(record->sum_squares), record->max_abs) : sqrt(record->sum_squares);

    return (esper_guard_stat){
        .n_nan = record->n_nan,
        .n_pos_inf = record->n_pos_inf,
        .n_neg_inf = record->n_neg_inf,
        .first_bad = record->first_bad,
        .n_zero = record->n_zero,
        .n_tiny = record->n_tiny,
        .norm = record->n_nan != 0 ? (double)NAN
                : n_bad != 0       ? (double)INFINITY
                                   : norm,
        .mean = count == n_bad ? 0 : record->sum / (double)(count - n_bad),
        .max_abs = record->max_abs,
        .min_abs = record->min_abs,
        .checksum = record->checksum,
        .scanned = 1,
        .norm_overflow = n_bad == 0 && isinf(norm),
    };
}

/* Sums in double, in any order, err by at most n * 2^-53 of the sum of magnitudes, and far less in practice. */
static void check_stat(fixture *f, size_t i, double tiny, bool with_checksum)
{
    const esper_scan_tensor *t = &f->tensors[i];
    const esper_guard_stat *got = &f->stats[i];
    double magnitudes;
    esper_scan_record record = reference_scan(f->twins[i].host, t->count, t->dtype, tiny, &magnitudes);
    esper_guard_stat want = reference_stat(&record, t->count);

    SAME(i, n_nan);
    SAME(i, n_pos_inf);
    SAME(i, n_neg_inf);
    SAME(i, first_bad);
    SAME(i, n_zero);
    SAME(i, n_tiny);
    SAME(i, scanned);
    SAME(i, norm_overflow);
    NEAR(i, max_abs, 0);
    NEAR(i, min_abs, 0);
    if (isfinite(magnitudes)) /* else it depends on the order whether a sum overflows */
        NEAR(i, mean, 1e-13 * magnitudes / (double)(t->count - want.n_nan - want.n_pos_inf - want.n_neg_inf));
    if (isnan(want.norm))
        assert_true(isnan(got->norm));
    else
        NEAR(i, norm, 1e-13 * want.norm);
    if (with_checksum)
        SAME(i, checksum);
}

/* ------------------------------------------------------------------------------------------------------------ cases */

static const uint64_t edge_counts[] = {0,  1,  2,  3,   4,   5,   7,   8,   9,    15,   16,   17,   31,   32,  33,
                                       63, 64, 65, 127, 128, 255, 257, 511, 1023, 1024, 1025, 2047, 2049, 4097};

static void add_random_tensors(fixture *f)
{
    size_t n_edges = sizeof(edge_counts) / sizeof(edge_counts[0]);

    for (size_t i = 0; i < n_edges * 2; i++)
        add_tensor(f, (esper_guard_role)random_below(ESPER_GUARD_N_ROLES),
                   (esper_guard_dtype)random_below(ESPER_GUARD_N_DTYPES), edge_counts[i % n_edges],
                   i < n_edges ? 0 : random_below(9), (data_kind)random_below(N_DATA_KINDS));
    for (int dtype = 0; dtype < ESPER_GUARD_N_DTYPES; dtype++)
        for (int k = 0; k < 3; k++)
            add_tensor(f, (esper_guard_role)random_below(ESPER_GUARD_N_ROLES), (esper_guard_dtype)dtype,
                       large_bytes() / dtype_bytes[dtype] + random_below(100), (uint64_t)k,
                       (data_kind)(k % N_DATA_KINDS));
}

static void scan_agrees_with_the_scalar_reference(void **state)
{
    static const double bounds[] = {1e-8, 0, 1e-3, 1e300};
    fixture f;

    (void)state;
    open_fixture(&f);
    add_random_tensors(&f);
    bind(&f);
    for (size_t b = 0; b < sizeof(bounds) / sizeof(bounds[0]); b++) {
        esper_scan_request request = request_of(&f, ALL_ROLES);

        request.tiny = bounds[b];
        request.checksum = b % 2 == 0;
        memset(f.stats, 0xEE, sizeof(f.stats));
        scan(&f, &request);
        for (size_t i = 0; i < f.n; i++)
            check_stat(&f, i, bounds[b], request.checksum);
    }
    close_fixture(&f);
}

/* Each kind of data in each type, at each shift: a vector of every make-up is met by every path. */
static void every_type_and_alignment_agrees(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < ESPER_GUARD_N_DTYPES; dtype++) {
        fixture f;
        esper_scan_request request;

        open_fixture(&f);
        for (uint64_t shift = 0; shift < 16 / dtype_bytes[dtype]; shift++)
            for (int kind = 0; kind < N_DATA_KINDS; kind++)
                add_tensor(&f, ESPER_GUARD_ROLE_MOMENT, (esper_guard_dtype)dtype, 1 + random_below(6000), shift,
                           (data_kind)kind);
        bind(&f);
        request = request_of(&f, ALL_ROLES);
        request.checksum = true;
        scan(&f, &request);
        for (size_t i = 0; i < f.n; i++)
            check_stat(&f, i, 1e-8, true);
        close_fixture(&f);
    }
}

static void results_are_the_same_bits_every_time(void **state)
{
    esper_guard_stat first[MAX_TWINS];
    esper_scan_request request;
    fixture f;
    size_t n;

    (void)state;
    open_fixture(&f);
    for (int dtype = 0; dtype < ESPER_GUARD_N_DTYPES; dtype++) {
        add_tensor(&f, ESPER_GUARD_ROLE_GRAD, (esper_guard_dtype)dtype, large_bytes() / dtype_bytes[dtype] + 3, 0,
                   DATA_PLAIN);
        add_tensor(&f, ESPER_GUARD_ROLE_GRAD, (esper_guard_dtype)dtype, 777, 0, DATA_SMALL);
    }
    n = f.n;
    for (size_t i = 0; i < n; i++) { /* the same data again, at another alignment */
        size_t copy = add_tensor(&f, ESPER_GUARD_ROLE_GRAD, f.tensors[i].dtype, f.tensors[i].count, 1, DATA_ZERO);

        memcpy(f.twins[copy].host, f.twins[i].host, bytes_of(&f, i));
        upload(&f, copy);
    }
    bind(&f);
    request = request_of(&f, ALL_ROLES);
    request.checksum = true;
    scan(&f, &request);
    memcpy(first, f.stats, sizeof(first));
    for (int turn = 0; turn < 3; turn++) {
        scan(&f, &request);
        assert_memory_equal(first, f.stats, f.n * sizeof(first[0]));
    }
    for (size_t i = 0; i < n; i++)
        assert_memory_equal(&first[i], &first[n + i], sizeof(first[0]));
    close_fixture(&f);
}

static void roles_not_asked_for_are_zero(void **state)
{
    fixture f;

    (void)state;
    open_fixture(&f);
    for (int i = 0; i < 20; i++)
        add_tensor(&f, (esper_guard_role)(i % ESPER_GUARD_N_ROLES), ESPER_GUARD_F32, i < 10 ? 50 : 20000, 0,
                   DATA_SPECIAL);
    bind(&f);
    for (uint32_t roles = 1; roles <= ALL_ROLES; roles += 3) {
        esper_scan_request request = request_of(&f, roles);
        const esper_guard_stat zero = {0};

        scan(&f, &request);
        for (size_t i = 0; i < f.n; i++) {
            if (roles >> f.tensors[i].role & 1)
                check_stat(&f, i, 1e-8, false);
            else
                assert_memory_equal(&f.stats[i], &zero, sizeof(zero));
        }
    }
    close_fixture(&f);
}

/* ------------------------------------------------------------------------------------------------- groups, in a tree */

/* Tensors of all sizes in one block of memory: group 0 is one of the parameters with so many that it takes two steps to
 * add them up, group 1 one of few gradients, and the rest many small ones of moments. */
enum { FOREST = 2600, FOREST_GROUPS = 152, FOREST_BYTES = FOREST * 256 + 8 * 40000 };

typedef struct forest {
    fixture           f;
    esper_scan_tensor tensors[FOREST];
    float            *host;
    void             *memory;
    esper_guard_stat  stats[FOREST];
    esper_scan_sums   groups[FOREST_GROUPS], roles[ESPER_GUARD_N_ROLES];
} forest;

static void grow_forest(forest *all)
{
    const esper_guard_options options = {.size = sizeof(options), .tiny = 1e-8, .vanishing = 2.0, .exploding = 9.0};
    uint64_t at = 0;

    open_fixture_with(&all->f, &options);
    check_good(esper_device_alloc(all->f.device, FOREST_BYTES, ESPER_DEVICE_MEMORY_NORMAL, &all->memory));
    all->host = malloc(FOREST_BYTES);
    fill(all->host, FOREST_BYTES / 4, ESPER_GUARD_F32, DATA_PLAIN);
    for (uint32_t i = 0; i < FOREST; i++) {
        uint32_t group = i % 13 == 12 ? 2 + i % (FOREST_GROUPS - 2) : i % 40 == 5;

        all->tensors[i] = (esper_scan_tensor){.data = (char *)all->memory + at,
                                              .count = i % 331 == 7 ? 10000
                                                       : i % 5 == 0 ? 3
                                                                    : 1 + i % 40,
                                              .role = group < 2 ? (esper_guard_role)group : ESPER_GUARD_ROLE_MOMENT,
                                              .group = group};
        at += all->tensors[i].count * 4;
        assert_true(at <= FOREST_BYTES);
    }
    check_good(esper_stream_copy(all->f.stream, all->memory, all->host, FOREST_BYTES));
    check_good(esper_scan_engine_cuda.bind(all->f.engine, all->tensors, FOREST, FOREST_GROUPS));
}

static void scan_forest(forest *all, uint32_t roles)
{
    esper_scan_request request = request_of(&all->f, roles);
    esper_scan_result *result = &all->f.result;

    check_good(esper_scan_engine_cuda.scan(all->f.engine, &request));
    check_good(esper_scan_engine_cuda.collect(all->f.engine, result));
    memcpy(all->stats, result->stats, sizeof(all->stats));
    memcpy(all->groups, result->groups, sizeof(all->groups));
    memcpy(all->roles, result->roles, sizeof(all->roles));
    assert_int_equal(result->n_groups, FOREST_GROUPS);
}

static void spoil(forest *all, uint32_t tensor, uint32_t word)
{
    char *element = (char *)all->tensors[tensor].data + 4 * (all->tensors[tensor].count - 1);

    check_good(esper_cuda_inject(all->f.engine, element, 4, 0, word, esper_stream_native(all->f.stream)));
}

/* Sums of the tensors that `group`, or where that is UINT32_MAX `role`, has, from their statistics. */
static void check_sums(const forest *all, const esper_scan_sums *got, uint32_t group, esper_guard_role role)
{
    esper_scan_sums want = {.min_norm = (double)INFINITY, .first_bad = UINT32_MAX};

    for (uint32_t i = 0; i < FOREST; i++) {
        const esper_guard_stat *stat = &all->stats[i];
        const bool is_bad = stat->first_bad != UINT64_MAX, is_finite = isfinite(stat->norm);

        if (group != UINT32_MAX ? all->tensors[i].group != group : all->tensors[i].role != role)
            continue;
        assert_int_equal(stat->scanned, 1);
        want.sum_squares += is_finite ? stat->norm * stat->norm : 0;
        want.n_nan += stat->n_nan;
        want.n_inf += stat->n_pos_inf + stat->n_neg_inf;
        want.n_zero += stat->n_zero;
        want.n_vanishing += is_finite && stat->norm < 2.0;
        want.n_exploding += !is_finite || stat->norm > 9.0;
        want.n_not_finite += !is_finite;
        want.n_bad += is_bad;
        want.first_bad = is_bad && i < want.first_bad ? i : want.first_bad;
        want.min_norm = is_finite && stat->norm < want.min_norm ? stat->norm : want.min_norm;
        want.max_norm = is_finite && stat->norm > want.max_norm ? stat->norm : want.max_norm;
    }
    if (want.n_bad == 0 && fabs(got->sum_squares - want.sum_squares) > 1e-12 * want.sum_squares)
        fail_msg("group %u, role %d: squares %.17g, expected %.17g", group, (int)role, got->sum_squares,
                 want.sum_squares);
    want.sum_squares = got->sum_squares; /* with bad tensors it is of those of their elements that are finite */
    if (memcmp(got, &want, sizeof(want)) != 0)
        fail_msg("group %u, role %d: %u bad (expected %u) from %u (%u) on, %u vanishing (%u), %u exploding (%u), norms "
                 "%g to %g (%g to %g)",
                 group, (int)role, got->n_bad, want.n_bad, got->first_bad, want.first_bad, got->n_vanishing,
                 want.n_vanishing, got->n_exploding, want.n_exploding, got->min_norm, got->max_norm, want.min_norm,
                 want.max_norm);
}

static void check_forest(const forest *all, uint32_t roles)
{
    for (uint32_t i = 0; i < FOREST; i++)
        assert_int_equal(all->stats[i].scanned, roles >> all->tensors[i].role & 1);
    for (uint32_t g = 0; g < FOREST_GROUPS; g++) {
        esper_guard_role role = g < 2 ? (esper_guard_role)g : ESPER_GUARD_ROLE_MOMENT;

        if (roles >> role & 1)
            check_sums(all, &all->groups[g], g, role);
    }
    for (int role = 0; role <= ESPER_GUARD_ROLE_MOMENT; role++)
        if (roles >> role & 1)
            check_sums(all, &all->roles[role], UINT32_MAX, (esper_guard_role)role);
}

static void groups_are_added_up(void **state)
{
    static const uint32_t turns[] = {ALL_ROLES, GRADS, PARAMS | 4, 4, ALL_ROLES};
    forest *all = calloc(2, sizeof(*all)), *first = all + 1;

    (void)state;
    grow_forest(all);
    for (size_t turn = 0; turn < sizeof(turns) / sizeof(turns[0]); turn++) {
        scan_forest(all, turns[turn]);
        check_forest(all, turns[turn]);
        if (turn == 0)
            *first = *all;
    }
    assert_memory_equal(all->stats, first->stats, sizeof(all->stats)); /* the same bits */
    assert_memory_equal(all->groups, first->groups, sizeof(all->groups));
    assert_memory_equal(all->roles, first->roles, sizeof(all->roles));
    spoil(all, 2500, 0x7fc00000); /* one of the last of a group is its first bad one ... */
    spoil(all, 2598, 0xff800000);
    scan_forest(all, ALL_ROLES);
    check_forest(all, ALL_ROLES);
    assert_int_equal(all->groups[0].first_bad, 2500);
    spoil(all, 1201, 0x7f800000); /* ... until one before it is bad too */
    scan_forest(all, ALL_ROLES);
    check_forest(all, ALL_ROLES);
    assert_int_equal(all->groups[0].first_bad, 1201);
    assert_int_equal(all->roles[ESPER_GUARD_ROLE_PARAM].n_bad, 3);
    esper_device_release(all->f.device, all->memory);
    close_fixture(&all->f);
    free(all->host);
    free(all);
}

static uint64_t calls_of(esper_cuda_function function)
{
    return atomic_load(&esper_cuda_calls[function]);
}

/* Calls that take memory. */
static uint64_t allocations(void)
{
    return calls_of(ESPER_CUDA_cuMemAlloc) + calls_of(ESPER_CUDA_cuMemHostAlloc) +
           calls_of(ESPER_CUDA_cuMemHostRegister) + calls_of(ESPER_CUDA_cuStreamCreate) +
           calls_of(ESPER_CUDA_cuEventCreate);
}

static void a_check_costs_one_launch_no_copy_and_one_wait(void **state)
{
    esper_mem_stats before, after;
    fixture f;

    (void)state;
    open_fixture(&f);
    for (int i = 0; i < 40; i++)
        add_tensor(&f, i % 2 ? ESPER_GUARD_ROLE_GRAD : ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, i == 0 ? 40000 : 100, 0,
                   DATA_PLAIN);
    bind(&f);
    for (int clips = 0; clips < 2; clips++) {
        esper_scan_request request = request_of(&f, ALL_ROLES);
        uint64_t waits, launches, taken, copies;

        request.clip_norm = clips ? 1 : 0;
        esper_mem_stats_get(&before);
        waits = esper_cuda_waits();
        launches = calls_of(ESPER_CUDA_cuLaunchKernel);
        copies = calls_of(ESPER_CUDA_cuMemcpyDtoHAsync) + calls_of(ESPER_CUDA_cuMemcpyHtoDAsync);
        taken = allocations();
        check_good(esper_scan_engine_cuda.scan(f.engine, &request));
        assert_int_equal(esper_cuda_waits(), waits);
        assert_int_equal(calls_of(ESPER_CUDA_cuLaunchKernel), launches + 1 + (uint64_t)clips);
        collect(&f);
        assert_int_equal(calls_of(ESPER_CUDA_cuMemcpyDtoHAsync) + calls_of(ESPER_CUDA_cuMemcpyHtoDAsync), copies);
        assert_int_equal(esper_cuda_waits(), waits + 1);
        assert_int_equal(allocations(), taken);
        esper_mem_stats_get(&after);
        assert_int_equal(after.n_allocs, before.n_allocs);
    }
    close_fixture(&f);
}

/* The norm of gradients by the reference. */
static double reference_norm(const fixture *f)
{
    double squares = 0, unused;

    for (size_t i = 0; i < f->n; i++)
        if (f->tensors[i].role == ESPER_GUARD_ROLE_GRAD)
            squares +=
                reference_scan(f->twins[i].host, f->tensors[i].count, f->tensors[i].dtype, 0, &unused).sum_squares;
    return sqrt(squares);
}

/* Half an ulp of a type that has so many bits of mantissa, around value; and the smallest step it has. */
static double half_step(esper_guard_dtype dtype, double value)
{
    static const int    mantissa[] = {23, 10, 7, 52};
    static const double least[] = {0x1p-149, 0x1p-24, 0x1p-133, 0x1p-1074};

    return fmax(fabs(value) * ldexp(1, -mantissa[dtype]), least[dtype]);
}

static void check_scaled(fixture *f, size_t i, double factor)
{
    const esper_scan_tensor *t = &f->tensors[i];
    char *now = malloc(bytes_of(f, i) + 8);

    download(f, i, now);
    for (uint64_t e = 0; e < t->count; e++) {
        double before = value_of_bits(t->dtype, element_at(f->twins[i].host, e, t->dtype));
        double after = value_of_bits(t->dtype, element_at(now, e, t->dtype));

        if (fabs(after - before * factor) > half_step(t->dtype, before * factor))
            fail_msg("tensor %zu (type %d), element %llu: %.17g * %.17g became %.17g", i, (int)t->dtype,
                     (unsigned long long)e, before, factor, after);
    }
    free(now);
}

static void check_unchanged(fixture *f, size_t i)
{
    char *now = malloc(bytes_of(f, i) + 8);

    download(f, i, now);
    assert_memory_equal(now, f->twins[i].host, bytes_of(f, i));
    free(now);
}

static void add_clip_tensors(fixture *f)
{
    for (int dtype = 0; dtype < ESPER_GUARD_N_DTYPES; dtype++)
        for (uint64_t shift = 0; shift < 3; shift++) {
            add_tensor(f, ESPER_GUARD_ROLE_GRAD, (esper_guard_dtype)dtype, 100 + random_below(100), shift, DATA_PLAIN);
            add_tensor(f, ESPER_GUARD_ROLE_GRAD, (esper_guard_dtype)dtype, 9000 + random_below(30000), shift,
                       DATA_PLAIN);
            add_tensor(f, ESPER_GUARD_ROLE_PARAM, (esper_guard_dtype)dtype, 9000 + random_below(100), shift,
                       DATA_PLAIN);
        }
}

static void gradients_are_clipped_and_nothing_else(void **state)
{
    esper_scan_request request;
    double norm;
    fixture f;

    (void)state;
    open_fixture(&f);
    add_clip_tensors(&f);
    bind(&f);
    norm = reference_norm(&f);
    request = request_of(&f, ALL_ROLES);
    request.clip_norm = norm * 2; /* enough: nothing happens */
    scan(&f, &request);
    assert_true(fabs(grad_norm(&f) - norm) <= 1e-12 * norm);
    assert_true(f.result.clip_factor == 1);
    for (size_t i = 0; i < f.n; i++)
        check_unchanged(&f, i);
    request.clip_norm = norm / 7;
    scan(&f, &request);
    assert_true(fabs(grad_norm(&f) - norm) <= 1e-12 * norm);
    assert_true(fabs(f.result.clip_factor - norm / 7 / (norm + 1e-6)) <= 1e-12);
    for (size_t i = 0; i < f.n; i++) {
        if (f.tensors[i].role == ESPER_GUARD_ROLE_GRAD)
            check_scaled(&f, i, f.result.clip_factor);
        else
            check_unchanged(&f, i);
    }
    request.clip_norm = 0;
    scan(&f, &request);
    assert_true(f.result.clip_factor == 1);
    assert_true(fabs(grad_norm(&f) - norm / 7) <= 1e-4 * norm); /* bfloat16 was rounded */
    close_fixture(&f);
}

static void bad_gradients_are_not_clipped(void **state)
{
    static const uint64_t bad[] = {0x7fc00001, 0x7f800000};
    fixture f;

    (void)state;
    for (int k = 0; k < 2; k++) {
        esper_scan_request request;
        size_t i;

        open_fixture(&f);
        i = add_tensor(&f, ESPER_GUARD_ROLE_GRAD, ESPER_GUARD_F32, 30000, 0, DATA_PLAIN);
        memcpy(f.twins[i].host + 4 * 12345, &bad[k], 4);
        upload(&f, i);
        bind(&f);
        request = request_of(&f, GRADS);
        request.clip_norm = 1e-3;
        scan(&f, &request);
        assert_true(f.result.clip_factor == 1);
        assert_true(k == 0 ? isnan(grad_norm(&f)) : isinf(grad_norm(&f)));
        check_stat(&f, i, 1e-8, false);
        check_unchanged(&f, i);
        request.clip_norm = 0;
        scan(&f, &request);
        assert_true(k == 0 ? isnan(grad_norm(&f)) : isinf(grad_norm(&f)));
        close_fixture(&f);
    }
}

static void engine_scales_by_a_factor_of_the_callers(void **state)
{
    fixture f;

    (void)state;
    open_fixture(&f);
    add_clip_tensors(&f);
    bind(&f);
    check_good(esper_scan_engine_cuda.scale(f.engine, 0.3, esper_stream_native(f.stream)));
    for (size_t i = 0; i < f.n; i++) {
        if (f.tensors[i].role == ESPER_GUARD_ROLE_GRAD)
            check_scaled(&f, i, 0.3);
        else
            check_unchanged(&f, i);
    }
    close_fixture(&f);
}

static uint32_t flag_after(fixture *f, uint32_t *flag, uint32_t roles)
{
    esper_scan_request request = request_of(f, roles);
    uint32_t value = 0xEEEEEEEE;

    request.skip_flag = flag;
    scan(f, &request);
    check_good(esper_stream_copy(f->stream, &value, flag, sizeof(value)));
    check_good(esper_stream_sync(f->stream));
    return value;
}

static void put_word(fixture *f, size_t i, uint64_t element, uint32_t word)
{
    memcpy(f->twins[i].host + 4 * element, &word, 4);
    upload(f, i);
}

static void flag_tells_what_is_bad(void **state)
{
    size_t param, grad, small;
    void *flag;
    fixture f;

    (void)state;
    open_fixture(&f);
    param = add_tensor(&f, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, 50000, 0, DATA_PLAIN);
    grad = add_tensor(&f, ESPER_GUARD_ROLE_GRAD, ESPER_GUARD_F32, 50000, 0, DATA_PLAIN);
    small = add_tensor(&f, ESPER_GUARD_ROLE_MOMENT, ESPER_GUARD_F32, 5, 0, DATA_PLAIN);
    check_good(esper_device_alloc(f.device, 4, ESPER_DEVICE_MEMORY_NORMAL, &flag));
    bind(&f);
    assert_int_equal(flag_after(&f, flag, ALL_ROLES), 0);
    put_word(&f, grad, 49999, 0xffffffff);
    assert_int_equal(flag_after(&f, flag, ALL_ROLES), ESPER_GUARD_BAD_NAN_GRAD);
    assert_int_equal(flag_after(&f, flag, PARAMS), 0);
    put_word(&f, grad, 0, 0xff800000);
    put_word(&f, param, 3, 0x7f800000);
    assert_int_equal(flag_after(&f, flag, ALL_ROLES),
                     ESPER_GUARD_BAD_NAN_GRAD | ESPER_GUARD_BAD_INF_GRAD | ESPER_GUARD_BAD_INF_STATE);
    put_word(&f, small, 4, 0x7fc00000);
    assert_int_equal(flag_after(&f, flag, ALL_ROLES & ~GRADS), ESPER_GUARD_BAD_INF_STATE | ESPER_GUARD_BAD_NAN_STATE);
    put_word(&f, grad, 49999, 0);
    put_word(&f, grad, 0, 0);
    put_word(&f, param, 3, 0);
    put_word(&f, small, 4, 0);
    assert_int_equal(flag_after(&f, flag, ALL_ROLES), 0); /* nothing is left over from before */
    assert_int_equal(flag_after(&f, flag, 1 << ESPER_GUARD_ROLE_OTHER), 0);
    esper_device_release(f.device, flag);
    close_fixture(&f);
}

static void addresses_can_be_replaced(void **state)
{
    esper_scan_request request;
    void *data[3];
    fixture f;

    (void)state;
    open_fixture(&f);
    for (int i = 0; i < 3; i++)
        add_tensor(&f, ESPER_GUARD_ROLE_GRAD, ESPER_GUARD_F32, i == 1 ? 30000 : 40, 0, DATA_PLAIN);
    bind(&f);
    for (int i = 0; i < 3; i++) {
        size_t other = add_tensor(&f, ESPER_GUARD_ROLE_GRAD, ESPER_GUARD_F32, f.tensors[i].count, 1, DATA_SPECIAL);

        data[i] = f.tensors[other].data;
    }
    request = request_of(&f, ALL_ROLES);
    scan(&f, &request);
    for (size_t i = 0; i < 3; i++)
        check_stat(&f, i, 1e-8, false);
    check_good(esper_scan_engine_cuda.rebind(f.engine, data));
    for (int turn = 0; turn < 2; turn++) {
        scan(&f, &request);
        for (size_t i = 0; i < 3; i++) {
            f.stats[3 + i] = f.stats[i];
            check_stat(&f, 3 + i, 1e-8, false);
        }
    }
    data[1] = (char *)data[1] + 1;
    assert_int_equal(esper_scan_engine_cuda.rebind(f.engine, data), ESPER_E_ARG);
    scan(&f, &request); /* the addresses are as they were */
    f.stats[4] = f.stats[1];
    check_stat(&f, 4, 1e-8, false);
    close_fixture(&f);
}

static void an_engine_without_tensors_scans_nothing(void **state)
{
    esper_scan_request request;
    fixture f;

    (void)state;
    open_fixture(&f);
    request = request_of(&f, ALL_ROLES);
    assert_int_equal(esper_scan_engine_cuda.collect(f.engine, &f.result), ESPER_E_STATE);
    check_good(esper_scan_engine_cuda.bind(f.engine, NULL, 0, 0));
    scan(&f, &request);
    assert_true(grad_norm(&f) == 0 && f.result.clip_factor == 1);
    add_tensor(&f, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, 10, 0, DATA_PLAIN);
    bind(&f);
    request.roles = GRADS;
    scan(&f, &request);
    assert_true(grad_norm(&f) == 0 && f.result.clip_factor == 1);
    assert_int_equal(esper_scan_engine_cuda.collect(f.engine, &f.result), ESPER_E_STATE);
    check_good(esper_scan_engine_cuda.bind(f.engine, NULL, 0, 0));
    assert_int_equal(esper_cuda_engine_bytes(f.engine), 0);
    close_fixture(&f);
}

static void expect_refused(fixture *f, esper_scan_tensor tensor, const char *word)
{
    assert_int_equal(esper_scan_engine_cuda.bind(f->engine, &tensor, 1, N_GROUPS), ESPER_E_ARG);
    if (strstr(esper_last_error(), word) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", esper_last_error(), word);
}

static void bad_tensors_are_refused(void **state)
{
    esper_scan_tensor good;
    esper_scan_engine *none = NULL;
    fixture f;

    (void)state;
    open_fixture(&f);
    add_tensor(&f, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F64, 100, 0, DATA_PLAIN);
    good = f.tensors[0];
    good.dtype = (esper_guard_dtype)9;
    expect_refused(&f, good, "type 9");
    good.dtype = ESPER_GUARD_F64;
    good.data = (char *)good.data + 4;
    expect_refused(&f, good, "multiple");
    good.data = NULL;
    expect_refused(&f, good, "no address");
    good = f.tensors[0];
    good.count = UINT64_MAX / 4;
    expect_refused(&f, good, "elements");
    good = f.tensors[0];
    good.group = N_GROUPS;
    expect_refused(&f, good, "group");
    assert_int_equal(esper_scan_engine_cuda.open(1000, &no_options, &none), ESPER_E_NOTFOUND);
    assert_int_equal(esper_scan_engine_cuda.open(-5, &no_options, &none), ESPER_E_NOTFOUND);
    assert_null(none);
    close_fixture(&f);
}

static void memory_is_told_apart(void **state)
{
    char ordinary[64];
    void *pinned;
    fixture f;

    (void)state;
    open_fixture(&f);
    add_tensor(&f, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, 100, 0, DATA_PLAIN);
    check_good(esper_device_alloc(f.device, 64, ESPER_DEVICE_MEMORY_PINNED, &pinned));
    check_good(esper_scan_engine_cuda.check(f.engine, f.tensors[0].data, 400));
    check_good(esper_scan_engine_cuda.check(f.engine, NULL, 0));
    assert_int_equal(esper_scan_engine_cuda.check(f.engine, pinned, 64), ESPER_E_ARG);
    assert_non_null(strstr(esper_last_error(), "pinned"));
    assert_int_equal(esper_scan_engine_cuda.check(f.engine, ordinary, 64), ESPER_E_ARG);
    assert_non_null(strstr(esper_last_error(), "ordinary host memory"));
    assert_int_equal(esper_scan_engine_cuda.check(f.engine, f.tensors[0].data, (uint64_t)1 << 45), ESPER_E_ARG);
    esper_device_release(f.device, pinned);
    close_fixture(&f);
}

/* A caller's allocator, which counts. */
typedef struct counting {
    esper_device *device;
    int           n_live, n_device, n_host;
} counting;

static void *count_alloc(void *context, int32_t device, size_t bytes)
{
    counting *c = context;
    void *memory;

    c->n_live++;
    if (device == ESPER_GUARD_HOST) {
        c->n_host++;
        return aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    }
    c->n_device++;
    check_good(esper_device_alloc(c->device, bytes, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    return memory;
}

static void count_release(void *context, int32_t device, void *memory)
{
    counting *c = context;

    c->n_live--;
    if (device == ESPER_GUARD_HOST)
        free(memory);
    else
        esper_device_release(c->device, memory);
}

static void callers_allocator_is_used(void **state)
{
    counting c = {.n_live = 0};
    esper_guard_options options = no_options;
    esper_scan_request request;
    fixture f;

    (void)state;
    check_good(esper_device_open("cuda", 0, &c.device));
    options.alloc = count_alloc;
    options.release = count_release;
    options.alloc_context = &c;
    open_fixture_with(&f, &options);
    add_tensor(&f, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, 30000, 0, DATA_SPECIAL);
    bind(&f);
    assert_int_equal(c.n_device, 1);
    assert_int_equal(c.n_host, 1);
    request = request_of(&f, ALL_ROLES);
    scan(&f, &request);
    check_stat(&f, 0, 1e-8, false);
    close_fixture(&f);
    assert_int_equal(c.n_live, 0);
    esper_device_close(c.device);
}

/* A GPT of 1.01 G parameters and its gradients: only the tables are made, the tensors lie nowhere. */
static void tables_stay_small_for_a_billion_parameters(void **state)
{
    static const uint64_t layer[] = {2048,        2048, 2048 * 6144, 6144, 2048 * 2048, 2048,
                                     2048,        2048, 2048 * 8192, 8192, 2048 * 8192, 2048};
    esper_scan_tensor tensors[2 * (4 + 18 * 12)];
    uint64_t total = 0, bytes;
    size_t n = 0;
    fixture f;

    (void)state;
    for (int role = 0; role < 2; role++) {
        esper_scan_tensor tensor = {
            .data = (void *)4096, .role = (esper_guard_role)role, .group = (uint32_t)role, .dtype = ESPER_GUARD_F32};

        for (int i = 0; i < 4 + 18 * 12; i++) {
            tensor.count = i >= 4   ? layer[(i - 4) % 12]
                           : i == 0 ? (uint64_t)50304 * 2048
                           : i == 1 ? (uint64_t)2048 * 2048
                                    : 2048;
            tensors[n++] = tensor;
            total += tensor.count;
        }
    }
    assert_true(total > 2000000000);
    open_fixture(&f);
    check_good(esper_scan_engine_cuda.bind(f.engine, tensors, n, 2));
    bytes = esper_cuda_engine_bytes(f.engine);
    if (bytes == 0 || bytes >= 500000)
        fail_msg("%llu bytes for %llu elements", (unsigned long long)bytes, (unsigned long long)total);
    close_fixture(&f);
}

static void elements_can_be_spoiled(void **state)
{
    fixture f;

    (void)state;
    open_fixture(&f);
    for (int dtype = 0; dtype < ESPER_GUARD_N_DTYPES; dtype++) {
        size_t i = add_tensor(&f, ESPER_GUARD_ROLE_PARAM, (esper_guard_dtype)dtype, 100, 0, DATA_PLAIN);
        uint32_t bytes = dtype_bytes[dtype];
        uint64_t was = element_at(f.twins[i].host, 41, (esper_guard_dtype)dtype);
        char *element = (char *)f.tensors[i].data + 41 * bytes;
        char *now = malloc(bytes_of(&f, i) + 8);

        check_good(esper_cuda_inject(f.engine, element, bytes, UINT64_MAX, 0x40, esper_stream_native(f.stream)));
        download(&f, i, now);
        assert_true(element_at(now, 41, (esper_guard_dtype)dtype) == (was ^ 0x40));
        check_good(esper_cuda_inject(f.engine, element, bytes, 0, infinities[dtype], esper_stream_native(f.stream)));
        download(&f, i, now);
        assert_true(element_at(now, 41, (esper_guard_dtype)dtype) == infinities[dtype]);
        memcpy(f.twins[i].host + 41 * bytes, &infinities[dtype], bytes);
        check_good(esper_stream_sync(f.stream));
        assert_memory_equal(now, f.twins[i].host, bytes_of(&f, i));
        free(now);
    }
    assert_int_equal(esper_cuda_inject(f.engine, f.tensors[0].data, 3, 0, 0, NULL), ESPER_E_ARG);
    close_fixture(&f);
}

/* ----------------------------------------------------------------------------------------------------------- copies */

enum { N_PARTS = 24 };

typedef struct copy_fixture {
    fixture          f;
    esper_copy_part  parts[N_PARTS];
    uint64_t         arena_bytes;
    char            *arena, *host_arena; /* on the device; what it should be */
    uint64_t        *sum;                /* on the device */
    esper_cuda_copy *copy;
} copy_fixture;

static void open_copies(copy_fixture *c)
{
    void *memory;

    memset(c, 0, sizeof(*c));
    open_fixture(&c->f);
    for (size_t i = 0; i < N_PARTS; i++) {
        static const uint64_t counts[] = {1, 0, 3, 64, 127, 4096, 20001, 33000};

        add_tensor(&c->f, ESPER_GUARD_ROLE_PARAM, (esper_guard_dtype)random_below(4), counts[i % 8],
                   i < 8 ? 0 : random_below(5), DATA_ANY_BITS);
        c->parts[i] =
            (esper_copy_part){.data = c->f.tensors[i].data, .bytes = bytes_of(&c->f, i), .offset = c->arena_bytes};
        c->arena_bytes += (c->parts[i].bytes + 255) / 256 * 256;
    }
    c->host_arena = calloc(1, c->arena_bytes);
    for (size_t i = 0; i < N_PARTS; i++)
        memcpy(c->host_arena + c->parts[i].offset, c->f.twins[i].host, c->parts[i].bytes);
    check_good(esper_device_alloc(c->f.device, c->arena_bytes, ESPER_DEVICE_MEMORY_NORMAL, &memory));
    c->arena = memory;
    check_good(esper_device_alloc(c->f.device, sizeof(uint64_t), ESPER_DEVICE_MEMORY_NORMAL, &memory));
    c->sum = memory;
    check_good(esper_cuda_copy_open(c->f.device, c->parts, N_PARTS, &c->copy));
}

static void close_copies(copy_fixture *c)
{
    esper_cuda_copy_close(c->copy);
    esper_device_release(c->f.device, c->arena);
    esper_device_release(c->f.device, c->sum);
    free(c->host_arena);
    close_fixture(&c->f);
}

static void clear_sum(copy_fixture *c)
{
    check_good(esper_stream_set(c->f.stream, c->sum, 0, sizeof(uint64_t)));
}

static void expect_sum(copy_fixture *c, uint64_t want)
{
    uint64_t sum = 0;

    check_good(esper_stream_copy(c->f.stream, &sum, c->sum, sizeof(sum)));
    check_good(esper_stream_sync(c->f.stream));
    if (sum != want)
        fail_msg("sum %016llx, expected %016llx", (unsigned long long)sum, (unsigned long long)want);
}

static void snapshots_are_copied_and_summed(void **state)
{
    void *stream;
    uint64_t want;
    char *back;
    copy_fixture c;

    (void)state;
    open_copies(&c);
    stream = esper_stream_native(c.f.stream);
    want = reference_checksum(c.host_arena, c.arena_bytes);
    back = malloc(c.arena_bytes);
    clear_sum(&c);
    check_good(esper_cuda_copy_gather(c.copy, c.arena, c.sum, stream));
    expect_sum(&c, want);
    check_good(esper_stream_copy(c.f.stream, back, c.arena, c.arena_bytes));
    check_good(esper_stream_sync(c.f.stream));
    assert_memory_equal(back, c.host_arena, c.arena_bytes);
    clear_sum(&c);
    check_good(esper_cuda_copy_checksum(c.copy, c.sum, stream));
    expect_sum(&c, want);
    for (size_t i = 0; i < N_PARTS; i++) /* spoil all tensors, their surroundings stay */
        check_good(esper_stream_set(c.f.stream, c.parts[i].data, 0x5A, c.parts[i].bytes));
    clear_sum(&c);
    check_good(esper_cuda_copy_scatter(c.copy, c.arena, c.sum, stream));
    expect_sum(&c, want);
    for (size_t i = 0; i < N_PARTS; i++)
        check_unchanged(&c.f, i);
    for (int k = 0; k < 20; k++) { /* every flipped bit is noticed */
        uint64_t at = random_below(c.arena_bytes);
        char byte;

        check_good(esper_stream_copy(c.f.stream, &byte, c.arena + at, 1));
        check_good(esper_stream_sync(c.f.stream));
        byte = (char)(byte ^ 1 << random_below(8));
        check_good(esper_stream_copy(c.f.stream, c.arena + at, &byte, 1));
        back[at] = byte;
        clear_sum(&c);
        check_good(esper_cuda_copy_scatter(c.copy, c.arena, c.sum, stream));
        assert_true(reference_checksum(back, c.arena_bytes) != want);
        expect_sum(&c, reference_checksum(back, c.arena_bytes));
        byte = c.host_arena[at];
        check_good(esper_stream_copy(c.f.stream, c.arena + at, &byte, 1));
        check_good(esper_stream_sync(c.f.stream));
        back[at] = byte;
    }
    free(back);
    close_copies(&c);
}

/* Bytes right before and after each tensor are not the guard's. */
static void copies_touch_nothing_else(void **state)
{
    char around[2][16];
    copy_fixture c;

    (void)state;
    open_copies(&c);
    memset(around[0], 0x77, sizeof(around[0]));
    for (size_t i = 0; i < N_PARTS; i++)
        check_good(esper_stream_copy(c.f.stream, (char *)c.parts[i].data + c.parts[i].bytes, around[0], 16));
    clear_sum(&c);
    check_good(esper_cuda_copy_gather(c.copy, c.arena, c.sum, esper_stream_native(c.f.stream)));
    check_good(esper_cuda_copy_scatter(c.copy, c.arena, c.sum, esper_stream_native(c.f.stream)));
    for (size_t i = 0; i < N_PARTS; i++) {
        check_good(esper_stream_copy(c.f.stream, around[1], (char *)c.parts[i].data + c.parts[i].bytes, 16));
        check_good(esper_stream_sync(c.f.stream));
        assert_memory_equal(around[1], around[0], 16);
    }
    close_copies(&c);
}

/* ---------------------------------------------------------------------------------------------------- under capture */

/* By the file that includes this: what is queued on the stream in between becomes a graph, which replay queues once
 * more. */
static void capture_begin(fixture *f);
static void capture_end(fixture *f);
static void capture_replay(fixture *f);
static void capture_close(fixture *f);

static void a_scan_can_be_captured_and_replayed(void **state)
{
    esper_scan_request request;
    size_t large, small;
    uint64_t waits;
    void *flag, *data[2];
    fixture f;

    (void)state;
    open_fixture(&f);
    large = add_tensor(&f, ESPER_GUARD_ROLE_GRAD, ESPER_GUARD_F32, 60000, 0, DATA_PLAIN);
    small = add_tensor(&f, ESPER_GUARD_ROLE_GRAD, ESPER_GUARD_F32, 60, 0, DATA_PLAIN);
    check_good(esper_device_alloc(f.device, 4, ESPER_DEVICE_MEMORY_NORMAL, &flag));
    bind(&f);
    request = request_of(&f, ALL_ROLES);
    request.skip_flag = flag;
    request.clip_norm = 1e9;
    request.tag = 7;
    capture_begin(&f);
    check_good(esper_scan_engine_cuda.scan(f.engine, &request));
    capture_end(&f);
    assert_true(esper_cuda_engine_captured(f.engine));
    assert_int_equal(esper_scan_engine_cuda.collect(f.engine, &f.result), ESPER_E_STATE); /* it has not run yet */
    assert_non_null(strstr(esper_last_error(), "no replay since"));
    for (int turn = 0; turn < 3; turn++) {
        put_word(&f, large, (uint64_t)turn, 0x7fc00000);
        put_word(&f, small, (uint64_t)turn, 0x7f800000);
        capture_replay(&f);
        waits = esper_cuda_waits();
        collect(&f);
        assert_int_equal(esper_cuda_waits(), waits + 1);
        assert_int_equal(f.result.asked, ALL_ROLES);
        assert_int_equal(f.result.tag, 7);
        check_stat(&f, large, 1e-8, false);
        check_stat(&f, small, 1e-8, false);
        assert_int_equal(f.stats[large].n_nan, turn + 1);
        assert_int_equal(f.result.roles[ESPER_GUARD_ROLE_GRAD].n_nan, turn + 1);
        assert_int_equal(f.result.roles[ESPER_GUARD_ROLE_GRAD].n_inf, turn + 1);
        assert_int_equal(f.result.groups[ESPER_GUARD_ROLE_GRAD].n_bad, 2);
        assert_int_equal(esper_scan_engine_cuda.collect(f.engine, &f.result), ESPER_E_STATE); /* read already */
    }
    /* new addresses reach the graph */
    fill(f.twins[large].host, f.tensors[large].count, ESPER_GUARD_F32, DATA_PLAIN);
    upload(&f, large);
    data[0] = f.tensors[large].data;
    data[1] = (char *)f.tensors[large].data + 400;
    check_good(esper_scan_engine_cuda.rebind(f.engine, data));
    capture_replay(&f);
    collect(&f);
    assert_int_equal(f.stats[small].first_bad, UINT64_MAX);
    check_stat(&f, large, 1e-8, false);
    /* a scan of its own on another stream, beside replays nobody reads: each waits for the one before */
    request.stream = NULL;
    request.tag = 8;
    for (int turn = 0; turn < 3; turn++) {
        capture_replay(&f);
        scan(&f, &request);
        assert_int_equal(f.result.tag, 8);
        assert_false(esper_cuda_engine_captured(f.engine));
        check_stat(&f, large, 1e-8, false);
    }
    capture_close(&f);
    scan(&f, &request); /* and without the graph again */
    check_stat(&f, large, 1e-8, false);
    esper_device_release(f.device, flag);
    close_fixture(&f);
}

/* clang-format off */
#define CUDA_CASES                                                         \
    cmocka_unit_test(scan_agrees_with_the_scalar_reference),               \
    cmocka_unit_test(every_type_and_alignment_agrees),                     \
    cmocka_unit_test(results_are_the_same_bits_every_time),                \
    cmocka_unit_test(roles_not_asked_for_are_zero),                        \
    cmocka_unit_test(groups_are_added_up),                                 \
    cmocka_unit_test(a_check_costs_one_launch_no_copy_and_one_wait),      \
    cmocka_unit_test(gradients_are_clipped_and_nothing_else),              \
    cmocka_unit_test(bad_gradients_are_not_clipped),                       \
    cmocka_unit_test(engine_scales_by_a_factor_of_the_callers),            \
    cmocka_unit_test(flag_tells_what_is_bad),                              \
    cmocka_unit_test(addresses_can_be_replaced),                           \
    cmocka_unit_test(an_engine_without_tensors_scans_nothing),             \
    cmocka_unit_test(bad_tensors_are_refused),                             \
    cmocka_unit_test(memory_is_told_apart),                                \
    cmocka_unit_test(callers_allocator_is_used),                           \
    cmocka_unit_test(tables_stay_small_for_a_billion_parameters),          \
    cmocka_unit_test(elements_can_be_spoiled),                             \
    cmocka_unit_test(snapshots_are_copied_and_summed),                     \
    cmocka_unit_test(copies_touch_nothing_else),                           \
    cmocka_unit_test(a_scan_can_be_captured_and_replayed)
/* clang-format on */

#endif
