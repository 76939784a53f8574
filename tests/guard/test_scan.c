/* ctest: timeout=120 */
/* The host's kernels against plain loops: every set this processor runs, every type, random sizes and addresses,
 * special values. All sets must give the same bits; sums are compared with long double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/pool.h"
#include "guard/scan_kernels.h"

enum { MAX_COUNT = 3 * ESPER_SCAN_BLOCK + 100, MAX_OFFSET = 64, MEMORY = MAX_COUNT * 8 + MAX_OFFSET + 64 };

static const char *const set_names[] = {"portable", "avx2", "avx512"};
static const char *const dtype_names[] = {
#define X(name, text, bytes) text,
    ESPER_GUARD_DTYPE_LIST(X)
#undef X
};

static unsigned char memory[MEMORY], work[MEMORY];
static uint64_t random_state = 1;

static uint64_t random_bits(void)
{
    uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t random_below(uint64_t n)
{
    return random_bits() % n;
}

/* -------------------------------------------------------------------------------------------------------- reference */

/* Sign, exponent and mantissa of an element. */
typedef struct number {
    double value; /* of a finite one */
    int    kind;  /* 0 finite, 1 NaN, 2 +Inf, 3 -Inf */
} number;

typedef struct format {
    int bytes, n_mantissa, n_exponent;
} format;

static const format formats[] = {{4, 23, 8}, {2, 10, 5}, {2, 7, 8}, {8, 52, 11}};

static number decode(const unsigned char *at, esper_guard_dtype dtype)
{
    const format *f = &formats[dtype];
    uint64_t bits = 0, mantissa, all_ones = (UINT64_C(1) << f->n_exponent) - 1, exponent;
    int bias = (int)(all_ones >> 1);
    number n = {0};
    bool negative;

    memcpy(&bits, at, (size_t)f->bytes);
    mantissa = bits & ((UINT64_C(1) << f->n_mantissa) - 1);
    exponent = bits >> f->n_mantissa & all_ones;
    negative = (bits >> (f->n_mantissa + f->n_exponent) & 1) != 0;
    if (exponent == all_ones)
        n.kind = mantissa != 0 ? 1 : negative ? 3 : 2;
    else if (exponent == 0)
        n.value = ldexp((double)mantissa, 1 - bias - f->n_mantissa);
    else
        n.value = ldexp((double)(mantissa | UINT64_C(1) << f->n_mantissa), (int)exponent - bias - f->n_mantissa);
    n.value = negative ? -n.value : n.value;
    return n;
}

typedef struct reference {
    esper_scan_record record; /* but for the sums */
    long double       sum, sum_abs, squares;
} reference;

static uint64_t reference_checksum(const unsigned char *data, uint64_t bytes)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i * 8 < bytes; i++) {
        uint64_t word = 0, t;

        memcpy(&word, data + i * 8, bytes - i * 8 < 8 ? (size_t)(bytes - i * 8) : 8);
        t = word ^ (i * ESPER_CHECKSUM_STEP);
        sum += (t & 0xffffffffu) * (t >> 32) + t;
    }
    return sum;
}

static reference reference_scan(const unsigned char *data, uint64_t n, esper_guard_dtype dtype, double tiny)
{
    reference r = {.record = {.first_bad = UINT64_MAX}};

    for (uint64_t i = 0; i < n; i++) {
        number x = decode(data + i * (uint64_t)formats[dtype].bytes, dtype);
        double size = fabs(x.value);

        r.record.n_nan += x.kind == 1;
        r.record.n_pos_inf += x.kind == 2;
        r.record.n_neg_inf += x.kind == 3;
        if (x.kind != 0) {
            r.record.first_bad = r.record.first_bad == UINT64_MAX ? i : r.record.first_bad;
            continue;
        }
        r.record.n_zero += size == 0.0;
        r.record.n_tiny += size < tiny;
        r.record.max_abs = size > r.record.max_abs ? size : r.record.max_abs;
        if (size > 0.0 && (r.record.min_abs == 0.0 || size < r.record.min_abs))
            r.record.min_abs = size;
        r.sum += (long double)x.value;
        r.sum_abs += (long double)size;
        r.squares += (long double)x.value * (long double)x.value;
    }
    r.record.checksum = reference_checksum(data, n * (uint64_t)formats[dtype].bytes);
    return r;
}

/* ------------------------------------------------------------------------------------------------------- comparison */

#define CHECK_EQUAL(what, format)                                                                             \
    do {                                                                                                      \
        if (got->what != want->record.what)                                                                   \
            fail_msg("%s: " #what " is " format ", expected " format, where, got->what, want->record.what);   \
    } while (0)

/* Sums of n doubles in 16 lanes: each addition may round, so the error is below n/16 + 4 roundings of the largest
 * partial sum, which sum_abs bounds. */
static void check_sums(const char *where, const esper_scan_record *got, const reference *want, uint64_t n)
{
    long double roundings = ((long double)n / 16 + 20) * 0x1p-53L;

    if (want->squares > 1e308L) { /* overflows a double, or is about to */
        assert_false(isnan(got->sum_squares));
        return;
    }
    if (fabsl((long double)got->sum - want->sum) > want->sum_abs * roundings)
        fail_msg("%s: sum is %.17g, expected %.17Lg", where, got->sum, want->sum);
    if (fabsl((long double)got->sum_squares - want->squares) > want->squares * roundings + 0x1p-1060L)
        fail_msg("%s: sum of squares is %.17g, expected %.17Lg", where, got->sum_squares, want->squares);
}

static void check_record(const char *where, const esper_scan_record *got, const reference *want, uint64_t n)
{
    CHECK_EQUAL(n_nan, "%lu");
    CHECK_EQUAL(n_pos_inf, "%lu");
    CHECK_EQUAL(n_neg_inf, "%lu");
    CHECK_EQUAL(first_bad, "%lu");
    CHECK_EQUAL(n_zero, "%lu");
    CHECK_EQUAL(n_tiny, "%lu");
    CHECK_EQUAL(max_abs, "%.17g");
    CHECK_EQUAL(min_abs, "%.17g");
    CHECK_EQUAL(checksum, "%lx");
    check_sums(where, got, want, n);
}

/* Scans with every set; the first answers for all. */
static esper_scan_record check_scan(const unsigned char *data, uint64_t n, esper_guard_dtype dtype, double tiny)
{
    const esper_scan_settings settings = esper_scan_settings_make(tiny, true);
    reference want = reference_scan(data, n, dtype, tiny);
    esper_scan_record first = {0}, record;

    for (size_t s = 0; s < sizeof(set_names) / sizeof(set_names[0]); s++) {
        const esper_scan_kernels *kernels = esper_scan_kernels_find(set_names[s]);
        char where[128];

        if (kernels == NULL)
            continue;
        snprintf(where, sizeof(where), "%s, %s, %lu elements, tiny %g", set_names[s], dtype_names[dtype], n, tiny);
        memset(&record, 0xa5, sizeof(record));
        kernels->scan[dtype](data, 0, n, &settings, &record);
        check_record(where, &record, &want, n);
        if (s == 0)
            first = record;
        if (memcmp(&first, &record, sizeof(first)) != 0)
            fail_msg("%s: other bits than %s: sum %a and %a, squares %a and %a", where, set_names[0], record.sum,
                     first.sum, record.sum_squares, first.sum_squares);
    }
    return first;
}

/* ----------------------------------------------------------------------------------------------------------- values */

static void put_bits(unsigned char *data, uint64_t i, esper_guard_dtype dtype, uint64_t bits)
{
    memcpy(data + i * (uint64_t)formats[dtype].bytes, &bits, (size_t)formats[dtype].bytes);
}

/* Bits of a number by its parts; exponent -1 stands for the largest, of Inf and NaN. */
static uint64_t make_bits(esper_guard_dtype dtype, bool negative, int64_t exponent, uint64_t mantissa)
{
    const format *f = &formats[dtype];
    uint64_t all_ones = (UINT64_C(1) << f->n_exponent) - 1;

    return (uint64_t)negative << (f->n_mantissa + f->n_exponent) | ((uint64_t)exponent & all_ones) << f->n_mantissa |
           (mantissa & ((UINT64_C(1) << f->n_mantissa) - 1));
}

/* Something finite of moderate size, so that float64 does not overflow its squares. */
static uint64_t moderate_bits(esper_guard_dtype dtype)
{
    int64_t half = (INT64_C(1) << (formats[dtype].n_exponent - 1)) - 1;

    return make_bits(dtype, random_below(2) != 0, half - (int64_t)random_below(formats[dtype].n_exponent > 5 ? 40 : 15),
                     random_bits());
}

static uint64_t special_bits(esper_guard_dtype dtype)
{
    uint64_t quiet = UINT64_C(1) << (formats[dtype].n_mantissa - 1);
    bool negative = random_below(2) != 0;
    int64_t largest = (INT64_C(1) << formats[dtype].n_exponent) - 2;

    switch (random_below(9)) {
    case 0:
        return make_bits(dtype, negative, 0, 0); /* zeros */
    case 1:
        return make_bits(dtype, negative, 0, 1); /* the smallest denormal */
    case 2:
        return make_bits(dtype, negative, 0, random_bits() | 1); /* some denormal */
    case 3:
        return make_bits(dtype, negative, -1, 0); /* infinities */
    case 4:
        return make_bits(dtype, negative, -1, quiet); /* NaN */
    case 5:
        return make_bits(dtype, negative, -1, quiet | random_bits()); /* with a payload */
    case 6:
        return make_bits(dtype, negative, -1, (random_bits() & (quiet - 1)) | 1); /* signalling */
    case 7:
        return make_bits(dtype, negative, 1, 0); /* the smallest normal */
    default:
        return make_bits(dtype, negative, dtype == ESPER_GUARD_F64 ? largest / 2 : largest, ~UINT64_C(0)); /* huge */
    }
}

/* ------------------------------------------------------------------------------------------------------------ tests */

static void random_tensors(void **state)
{
    static const double tinies[] = {1e-8, 0.0, 1.0, 3e-5, 1e300, 1.1754943508222875e-38, 1e-46};

    (void)state;
    for (int round = 0; round < 400; round++) {
        esper_guard_dtype dtype = (esper_guard_dtype)(round % ESPER_GUARD_N_DTYPES);
        uint64_t n = random_below(random_below(2) != 0 ? 70 : MAX_COUNT);
        unsigned char *data = memory + random_below(MAX_OFFSET); /* any address, not only multiples of an element */
        uint64_t one_in = UINT64_C(1) << random_below(14);

        for (uint64_t i = 0; i < n; i++)
            put_bits(data, i, dtype, random_below(one_in) == 0 ? special_bits(dtype) : moderate_bits(dtype));
        check_scan(data, n, dtype, tinies[random_below(sizeof(tinies) / sizeof(tinies[0]))]);
    }
}

/* One special element at each place around the edges of vectors and blocks. */
static void one_special_element(void **state)
{
    static const uint64_t counts[] = {1, 15, 16, 17, 33, ESPER_SCAN_BLOCK, ESPER_SCAN_BLOCK + 1};

    (void)state;
    for (int dtype = 0; dtype < ESPER_GUARD_N_DTYPES; dtype++) {
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            uint64_t n = counts[c];

            for (uint64_t place = 0; place < n; place += place < 40 || place + 40 > n ? 1 : 97) {
                esper_scan_record record;
                uint64_t nan = make_bits((esper_guard_dtype)dtype, place % 2 != 0, -1, 1);

                for (uint64_t i = 0; i < n; i++)
                    put_bits(memory, i, (esper_guard_dtype)dtype, moderate_bits((esper_guard_dtype)dtype));
                put_bits(memory, place, (esper_guard_dtype)dtype, nan);
                record = check_scan(memory, n, (esper_guard_dtype)dtype, 1e-8);
                assert_int_equal(record.first_bad, place);
                assert_int_equal(record.n_nan, 1);
            }
        }
    }
}

/* Nothing but one value: zeros, -0.0, infinities, NaN, denormals, the largest numbers. */
static void uniform_tensors(void **state)
{
    static const uint64_t counts[] = {0, 1, 7, 16, 100, ESPER_SCAN_BLOCK * 2 + 5};

    (void)state;
    for (int d = 0; d < ESPER_GUARD_N_DTYPES; d++) {
        esper_guard_dtype dtype = (esper_guard_dtype)d;
        int64_t largest = (INT64_C(1) << formats[d].n_exponent) - 2;
        const uint64_t values[] = {0,
                                   make_bits(dtype, true, 0, 0),
                                   make_bits(dtype, false, -1, 0),
                                   make_bits(dtype, true, -1, 0),
                                   make_bits(dtype, false, -1, 1),
                                   make_bits(dtype, true, 0, 1),
                                   make_bits(dtype, false, largest, ~UINT64_C(0))};

        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++)
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                for (uint64_t i = 0; i < counts[c]; i++)
                    put_bits(memory, i, dtype, values[v]);
                check_scan(memory, counts[c], dtype, 1e-8);
            }
    }
}

/* The limit of "tiny" to the last bit: the float below it counts, the one at it does not. */
static void tiny_is_exact(void **state)
{
    static const double tinies[] = {1e-8, 1e-30, 1e-40, 0.1};

    (void)state;
    for (size_t t = 0; t < sizeof(tinies) / sizeof(tinies[0]); t++) {
        float near = (float)tinies[t], values[3] = {nextafterf(near, 0.0f), near, nextafterf(near, 1.0f)};

        memcpy(memory, values, sizeof(values));
        check_scan(memory, 3, ESPER_GUARD_F32, tinies[t]);
        check_scan(memory, 3, ESPER_GUARD_F32, (double)near);
    }
}

/* Zeros alone, then one element just below the limit, at it and above it, in a tensor of larger ones: a block is counted
 * again only where there is something to count, and each place must be seen. */
static void few_are_tiny(void **state)
{
    static const uint64_t places[] = {
        0, 1, 15, 16, 1000, ESPER_SCAN_BLOCK - 1, ESPER_SCAN_BLOCK, ESPER_SCAN_BLOCK + 20};
    const uint64_t n = ESPER_SCAN_BLOCK + 21;

    (void)state;
    for (int d = 0; d < ESPER_GUARD_N_DTYPES; d++) {
        esper_guard_dtype dtype = (esper_guard_dtype)d;
        const uint64_t limit_bits = make_bits(dtype, false, (INT64_C(1) << (formats[d].n_exponent - 1)) - 15, 3);
        double limit;

        put_bits(memory, 0, dtype, limit_bits);
        limit = decode(memory, dtype).value;
        for (uint64_t i = 0; i < n; i++)
            put_bits(memory, i, dtype, moderate_bits(dtype) | limit_bits);
        assert_int_equal(check_scan(memory, n, dtype, limit).n_tiny, 0);
        for (size_t p = 0; p < sizeof(places) / sizeof(places[0]); p++) {
            put_bits(memory, places[p], dtype, make_bits(dtype, p % 2 != 0, 0, 0));
            assert_int_equal(check_scan(memory, n, dtype, limit).n_tiny, p + 1);
            assert_int_equal(check_scan(memory, n, dtype, 0.0).n_tiny, 0);
        }
        for (size_t p = 0; p < sizeof(places) / sizeof(places[0]); p++) {
            for (int64_t off = -1; off <= 1; off++) {
                put_bits(memory, places[p], dtype, limit_bits + (uint64_t)off);
                check_scan(memory, n, dtype, limit);
                check_scan(memory, n, dtype, nextafter(limit, 1.0));
            }
        }
    }
}

/* A tensor scanned in parts, each from a multiple of the block, adds up to the whole but for the roundings of sums. */
static void parts_add_up(void **state)
{
    const esper_scan_settings settings = esper_scan_settings_make(1e-8, true);

    (void)state;
    for (int d = 0; d < ESPER_GUARD_N_DTYPES; d++) {
        const esper_scan_kernels *kernels = esper_scan_kernels_find("portable");
        const uint64_t n = 2 * ESPER_SCAN_BLOCK + 77;
        esper_scan_record sum = {.first_bad = UINT64_MAX}, part;
        reference want;

        for (uint64_t i = 0; i < n; i++)
            put_bits(memory, i, (esper_guard_dtype)d,
                     random_below(500) == 0 ? special_bits((esper_guard_dtype)d) : moderate_bits((esper_guard_dtype)d));
        want = reference_scan(memory, n, (esper_guard_dtype)d, 1e-8);
        for (uint64_t first = 0; first < n; first += ESPER_SCAN_BLOCK) {
            uint64_t left = n - first;

            kernels->scan[d](memory + first * (uint64_t)formats[d].bytes, first,
                             left < ESPER_SCAN_BLOCK ? left : ESPER_SCAN_BLOCK, &settings, &part);
            esper_scan_record_add(&sum, &part);
        }
        check_record(dtype_names[d], &sum, &want, n);
    }
}

static double nearest(double value, esper_guard_dtype dtype)
{
    const format *f = &formats[dtype];
    int exponent, lowest = 2 - (1 << (f->n_exponent - 1));
    double unit;

    if (value == 0.0 || dtype == ESPER_GUARD_F64)
        return value;
    frexp(value, &exponent);
    exponent = exponent - 1 < lowest ? lowest : exponent - 1;
    unit = ldexp(1.0, exponent - f->n_mantissa);
    return nearbyint(value / unit) * unit;
}

/* Scaling rounds the product to the nearest, ties to even, denormals included. The product of two floats is exact in
 * double, so one rounding leads there; halves are rounded twice, over float, as every library does. */
static void scaling(void **state)
{
    (void)state;
    for (int d = 0; d < ESPER_GUARD_N_DTYPES; d++) {
        for (int round = 0; round < 20; round++) {
            double factor = (double)(random_below(1000) + 1) / 1024.0;
            uint64_t n = random_below(300);

            for (uint64_t i = 0; i < n; i++)
                put_bits(memory, i, (esper_guard_dtype)d,
                         random_below(3) == 0
                             ? make_bits((esper_guard_dtype)d, false, (int64_t)random_below(3), random_bits())
                             : moderate_bits((esper_guard_dtype)d));
            for (size_t s = 0; s < sizeof(set_names) / sizeof(set_names[0]); s++) {
                const esper_scan_kernels *kernels = esper_scan_kernels_find(set_names[s]);

                if (kernels == NULL)
                    continue;
                memcpy(work + 1, memory, MEMORY - 1); /* an odd address */
                kernels->scale[d](work + 1, n, factor);
                for (uint64_t i = 0; i < n; i++) {
                    double x = decode(memory + i * (uint64_t)formats[d].bytes, (esper_guard_dtype)d).value;
                    double got = decode(work + 1 + i * (uint64_t)formats[d].bytes, (esper_guard_dtype)d).value;
                    double product = d == ESPER_GUARD_F64 ? x * factor : nearest(x * factor, ESPER_GUARD_F32);
                    double want = nearest(product, (esper_guard_dtype)d);

                    if (got != want)
                        fail_msg("%s, %s: %a * %a is %a, expected %a", set_names[s], dtype_names[d], x, factor, got,
                                 want);
                }
                assert_memory_equal(work + 1 + n * (uint64_t)formats[d].bytes, memory + n * (uint64_t)formats[d].bytes,
                                    64);
            }
        }
    }
}

/* Every flipped bit changes the sum, wherever it is. */
static void checksum_sees_every_bit(void **state)
{
    const esper_scan_kernels *kernels = esper_scan_kernels_choose();
    const uint64_t bytes = 301;
    uint64_t clean;

    (void)state;
    assert_non_null(kernels);
    for (uint64_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)random_bits();
    clean = kernels->checksum(memory, bytes, 0);
    assert_int_equal(clean, reference_checksum(memory, bytes));
    for (uint64_t bit = 0; bit < bytes * 8; bit++) {
        memory[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (kernels->checksum(memory, bytes, 0) == clean)
            fail_msg("bit %lu of %lu bytes can flip unseen", bit, bytes);
        memory[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

/* Copies by every set: same bytes, same sum, nothing behind the end; part by part as a whole. */
static void copies(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        uint64_t bytes = random_below(5000), cut = bytes / 16 * 8;
        unsigned char *from = memory + random_below(64), *to = work + (round % 2 != 0 ? random_below(64) : 0);

        for (uint64_t i = 0; i < bytes; i++)
            from[i] = (unsigned char)random_bits();
        for (size_t s = 0; s < sizeof(set_names) / sizeof(set_names[0]); s++) {
            const esper_scan_kernels *kernels = esper_scan_kernels_find(set_names[s]);
            uint64_t sum;

            if (kernels == NULL)
                continue;
            memset(to, 0x5a, bytes + 64);
            sum = kernels->copy(to, from, cut, 0, round % 3 == 0);
            sum += kernels->copy(to + cut, from + cut, bytes - cut, cut / 8, round % 3 == 0);
            assert_memory_equal(to, from, bytes);
            for (int i = 0; i < 64; i++)
                assert_int_equal(to[bytes + (uint64_t)i], 0x5a);
            assert_int_equal(sum, reference_checksum(from, bytes));
        }
    }
}

/* Snapshots: gathered and scattered parts, whatever lies where; the sum is that of the arena with its padding. */
static void arenas(void **state)
{
    enum { N_PARTS = 40, ARENA = 5 << 20 };
    unsigned char *arena = esper_mem_alloc(ARENA), *tensors = esper_mem_alloc(ARENA), *back = esper_mem_alloc(ARENA);
    esper_copy_part parts[N_PARTS];
    uint64_t offset = 0, at = 0, sum;
    esper_pool *pool;

    (void)state;
    assert_int_equal(esper_pool_open(2, &pool), ESPER_OK);
    for (int i = 0; i < N_PARTS; i++) {
        uint64_t bytes = i % 5 == 0 ? 0 : i == 17 ? 3 << 20 : random_below(20000);

        parts[i] = (esper_copy_part){.data = tensors + at, .bytes = bytes, .offset = offset};
        offset = (offset + bytes + 255) / 256 * 256;
        at += bytes + 1;
    }
    assert_true(offset < ARENA && at < ARENA);
    for (uint64_t i = 0; i < at; i++)
        tensors[i] = (unsigned char)random_bits();
    memcpy(back, tensors, at);
    sum = esper_copy_gather(pool, parts, N_PARTS, arena);
    assert_int_equal(sum, reference_checksum(arena, offset));
    assert_int_equal(sum, esper_copy_gather(NULL, parts, N_PARTS, arena));
    for (int i = 0; i < N_PARTS; i++) {
        assert_memory_equal(arena + parts[i].offset, parts[i].data, parts[i].bytes);
        memset(parts[i].data, 0, parts[i].bytes);
    }
    assert_int_equal(sum, esper_copy_scatter(pool, parts, N_PARTS, arena));
    assert_memory_equal(tensors, back, at);
    assert_int_equal(esper_copy_gather(pool, parts, 0, NULL), 0);
    esper_pool_close(pool);
    esper_mem_free(arena);
    esper_mem_free(tensors);
    esper_mem_free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_tensors),  cmocka_unit_test(one_special_element),
        cmocka_unit_test(uniform_tensors), cmocka_unit_test(tiny_is_exact),
        cmocka_unit_test(few_are_tiny),    cmocka_unit_test(parts_add_up),
        cmocka_unit_test(scaling),         cmocka_unit_test(checksum_sees_every_bit),
        cmocka_unit_test(copies),          cmocka_unit_test(arenas),
    };

    for (size_t s = 0; s < sizeof(set_names) / sizeof(set_names[0]); s++)
        printf("kernels %s: %s\n", set_names[s],
               esper_scan_kernels_find(set_names[s]) != NULL ? "tested" : "skipped, not on this processor");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
