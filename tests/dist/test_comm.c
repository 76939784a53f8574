/* ctest: timeout=60 */
/* What every communicator promises, the same for all kinds and numbers of ranks: alone this tests self,
 * tests/dist/test_ranks.sh runs it with mpi. All ranks draw everybody's numbers, so each knows what must come out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "dist/agree.h"
#include "dist/ranks.h"

enum { MOST_RANKS = 16, GUARD = 64 };

static esper_comm *comm;
static int rank, size;

static const size_t counts[] = {0, 1, 2, 3, 5, 7, 8, 13, 64, 997, 16384, 16385, 32768, 32769, 100003, 1 << 20};
enum { N_COUNTS = sizeof(counts) / sizeof(counts[0]) };

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("rank %d: %s: %s", rank, esper_status_name(status), esper_last_error());
}

/* Sizes from 1e-6 to 1e6: another order of adding gives other bits. */
static double number(int of_rank, uint32_t i)
{
    static const double scales[] = {1e-6, 1.0, 1e6, 1e-3, 1e3, 3.0};
    uint32_t counter[4] = {i, (uint32_t)of_rank, 0, 0}, key[2] = {7, 7}, out[4];

    esper_philox(counter, key, out);
    return ((double)out[0] / 4294967296.0 - 0.5) * scales[out[1] % 6];
}

/* The order as it is promised: pairs are folded from the front until a power of two is left, then neighbours. */
#define SUM_AS_PROMISED(name, type)             \
    static type name(type *x, int n)            \
    {                                           \
        int whole = 1;                          \
                                                \
        while (2 * whole <= n)                  \
            whole *= 2;                         \
        for (int k = 0; k < n - whole; k++)     \
            x[k] = x[2 * k] + x[2 * k + 1];     \
        for (int k = n - whole; k < whole; k++) \
            x[k] = x[k + n - whole];            \
        for (; whole > 1; whole /= 2)           \
            for (int k = 0; k < whole / 2; k++) \
                x[k] = x[2 * k] + x[2 * k + 1]; \
        return x[0];                            \
    }

SUM_AS_PROMISED(sum_f64, double)
SUM_AS_PROMISED(sum_f32, float)

/* Room for so many bytes and a guard behind them. */
static unsigned char *new_bytes(size_t bytes)
{
    unsigned char *memory = esper_mem_alloc(bytes + GUARD);

    assert_non_null(memory);
    memset(memory + bytes, 0xa5, GUARD);
    return memory;
}

static void free_bytes(unsigned char *memory, size_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if (memory[bytes + i] != 0xa5)
            fail_msg("rank %d: wrote %d bytes behind %zu", rank, i + 1, bytes);
    esper_mem_free(memory);
}

/* The same bytes on every rank. */
static void check_same(const void *bytes, size_t n, const char *what)
{
    uint64_t hash = XXH64(bytes, n, 1), all[MOST_RANKS];

    check_good(esper_comm_gather(comm, &hash, sizeof(hash), all));
    for (int r = 0; r < size; r++)
        if (all[r] != hash)
            fail_msg("%s of %zu bytes: rank %d has %016llx, rank %d %016llx", what, n, rank, (unsigned long long)hash,
                     r, (unsigned long long)all[r]);
}

static void test_sums_f32(void **state)
{
    (void)state;
    for (int c = 0; c < N_COUNTS; c++) {
        size_t n = counts[c], bytes = n * sizeof(float);
        unsigned char *memory = new_bytes(bytes);
        float *values = (float *)(void *)memory;

        for (size_t i = 0; i < n; i++)
            values[i] = (float)number(rank, (uint32_t)i);
        check_good(esper_comm_sum_f32(comm, values, n));
        for (size_t i = 0; i<n; i += n> 40000 ? 11 : 1) {
            float of[MOST_RANKS], sum;

            for (int r = 0; r < size; r++)
                of[r] = (float)number(r, (uint32_t)i);
            sum = sum_f32(of, size);
            if (memcmp(&sum, &values[i], sizeof(sum)) != 0)
                fail_msg("rank %d: number %zu of %zu: %.9g, expected %.9g", rank, i, n, (double)values[i], (double)sum);
        }
        check_same(values, bytes, "sum_f32");
        free_bytes(memory, bytes);
    }
}

static void test_sums_f64(void **state)
{
    (void)state;
    for (int c = 0; c + 1 < N_COUNTS; c++) {
        size_t n = counts[c], bytes = n * sizeof(double);
        unsigned char *memory = new_bytes(bytes);
        double *values = (double *)(void *)memory;

        for (size_t i = 0; i < n; i++)
            values[i] = number(rank, (uint32_t)i);
        check_good(esper_comm_sum_f64(comm, values, n));
        for (size_t i = 0; i<n; i += n> 40000 ? 11 : 1) {
            double of[MOST_RANKS], sum;

            for (int r = 0; r < size; r++)
                of[r] = number(r, (uint32_t)i);
            sum = sum_f64(of, size);
            if (memcmp(&sum, &values[i], sizeof(sum)) != 0)
                fail_msg("rank %d: number %zu of %zu: %.17g, expected %.17g", rank, i, n, values[i], sum);
        }
        check_same(values, bytes, "sum_f64");
        free_bytes(memory, bytes);
    }
}

/* The same again and again, and NaN from one rank is NaN on all. */
static void test_repeats(void **state)
{
    enum { N = 1009 };
    static float first[N], again[N];

    (void)state;
    for (int k = 0; k < 200; k++) {
        float *values = k == 0 ? first : again;

        for (uint32_t i = 0; i < N; i++)
            values[i] = (float)number(rank, i);
        check_good(esper_comm_sum_f32(comm, values, N));
        if (k > 0 && memcmp(first, again, sizeof(first)) != 0)
            fail_msg("rank %d: time %d gave other bits than the first", rank, k);
    }
    for (uint32_t i = 0; i < N; i++)
        again[i] = rank == size - 1 && i == 77 ? (float)NAN : 1.0f;
    check_good(esper_comm_sum_f32(comm, again, N));
    assert_true(again[77] != again[77] && again[78] == (float)size);
    check_same(again, sizeof(again), "sum with NaN");
}

static void test_or(void **state)
{
    (void)state;
    for (int c = 0; c + 1 < N_COUNTS; c++) {
        size_t n = counts[c];
        unsigned char *memory = new_bytes(n * 8);
        uint64_t *words = (uint64_t *)(void *)memory;

        for (size_t i = 0; i < n; i++)
            words[i] = (uint64_t)(i * 7) << 32 | 1ull << rank;
        check_good(esper_comm_or_u64(comm, words, n));
        for (size_t i = 0; i < n; i++)
            if (words[i] != ((uint64_t)(i * 7) << 32 | ((1ull << size) - 1)))
                fail_msg("rank %d: word %zu of %zu: %016llx", rank, i, n, (unsigned long long)words[i]);
        free_bytes(memory, n * 8);
    }
}

static unsigned char byte_of(int of_rank, size_t i)
{
    return (unsigned char)(i * 131 + i / 251 + (size_t)of_rank * 17 + 1);
}

static void test_broadcast(void **state)
{
    (void)state;
    for (int root = 0; root < size; root++)
        for (int c = 0; c < N_COUNTS; c++) {
            size_t n = counts[c];
            unsigned char *memory = new_bytes(n);

            for (size_t i = 0; i < n; i++)
                memory[i] = byte_of(rank, i);
            check_good(esper_comm_broadcast(comm, memory, n, root));
            for (size_t i = 0; i < n; i++)
                if (memory[i] != byte_of(root, i))
                    fail_msg("rank %d: byte %zu of %zu from %d: %d, expected %d", rank, i, n, root, memory[i],
                             byte_of(root, i));
            free_bytes(memory, n);
        }
}

static void test_gather(void **state)
{
    (void)state;
    for (int c = 0; c < N_COUNTS; c++) {
        size_t n = counts[c] < 200000 ? counts[c] : 200003;
        unsigned char *mine = new_bytes(n), *all = new_bytes(n * (size_t)size);

        for (size_t i = 0; i < n; i++)
            mine[i] = byte_of(rank, i);
        check_good(esper_comm_gather(comm, mine, n, all));
        for (int r = 0; r < size; r++)
            for (size_t i = 0; i < n; i++)
                if (all[(size_t)r * n + i] != byte_of(r, i))
                    fail_msg("rank %d: byte %zu of %zu of rank %d: %d", rank, i, n, r, all[(size_t)r * n + i]);
        free_bytes(mine, n);
        free_bytes(all, n * (size_t)size);
    }
}

/* Nobody is out before all are in. */
static void test_barrier(void **state)
{
    (void)state;
    for (int k = 0; k < 10; k++) {
        uint64_t mine[2], all[2 * MOST_RANKS];

        nanosleep(&(struct timespec){.tv_nsec = (rank + k) % size * 2000000}, NULL);
        mine[0] = esper_clock_ns();
        check_good(esper_comm_barrier(comm));
        mine[1] = esper_clock_ns();
        check_good(esper_comm_gather(comm, mine, sizeof(mine), all));
        for (int a = 0; a < size; a++)
            for (int b = 0; b < size; b++)
                if (all[2 * a + 1] < all[2 * b])
                    fail_msg("rank %d was out %llu ns before rank %d was in", a,
                             (unsigned long long)(all[2 * b] - all[2 * a + 1]), b);
    }
}

/* Calls of all kinds in a random order, small and quick after each other. */
static void test_mixed(void **state)
{
    esper_rng_key key = {.seed = 3, .purpose = ESPER_RNG_TEST};
    esper_rng rng;

    (void)state;
    esper_rng_init(&rng, &key);
    for (int k = 0; k < 2000; k++) {
        uint32_t call = esper_rng_below(&rng, 5), root = esper_rng_below(&rng, (uint32_t)size);
        double sum[2] = {1.0, rank}, all[2 * MOST_RANKS];
        uint64_t word = 1ull << (rank + k % 30);
        int told = rank == (int)root ? k : -1;

        switch (call) {
        case 0:
            check_good(esper_comm_sum_f64(comm, sum, 2));
            assert_true(sum[0] == size && sum[1] == size * (size - 1) / 2.0);
            break;
        case 1:
            check_good(esper_comm_or_u64(comm, &word, 1));
            assert_true(word == ((1ull << size) - 1) << k % 30);
            break;
        case 2:
            check_good(esper_comm_broadcast(comm, &told, sizeof(told), (int)root));
            assert_int_equal(told, k);
            break;
        case 3:
            check_good(esper_comm_gather(comm, sum, sizeof(sum), all));
            assert_true(all[2 * (size - 1) + 1] == size - 1);
            break;
        default:
            check_good(esper_comm_barrier(comm));
            break;
        }
    }
}

/* One rank differs in one field: all ranks see it, and who it is. */
static void test_agreement(void **state)
{
    (void)state;
    for (int other = 0; other < size; other++)
        for (int field = -1; field < ESPER_AGREE_N_FIELDS; field++) {
            esper_agree_state mine = {.health = 1ull << rank, .table = 5, .sequence = 6, .verdict = 7, .weights = 8};
            uint64_t *fields[] = {&mine.table, &mine.sequence, &mine.verdict, &mine.weights};
            esper_agree_result result = {0};
            char text[400];

            if (field >= 0 && rank == other)
                *fields[field] ^= 1ull << (other * 9 + field);
            check_good(esper_agree(comm, &mine, &result));
            esper_agree_text(&result, size, text, sizeof(text));
            assert_true(result.health == (1ull << size) - 1);
            if (size == 1 || field < 0) {
                assert_int_equal(result.fields, 0);
                continue;
            }
            assert_int_equal(result.fields, 1u << field);
            assert_int_equal(result.n_differing, size == 2 ? 2 : 1);
            assert_int_equal(result.rank[0], size == 2 ? 0 : other);
            assert_non_null(strstr(text, esper_agree_field_name(field)));
        }
}

static void test_bad_root(void **state)
{
    int value = rank;

    (void)state;
    assert_int_equal(esper_comm_broadcast(comm, &value, sizeof(value), -1), ESPER_E_ARG);
    assert_int_equal(esper_comm_broadcast(comm, &value, sizeof(value), size), ESPER_E_ARG);
    assert_false(esper_comm_is_broken(comm));
    check_good(esper_comm_barrier(comm));
}

/* Nothing is allocated by a call, whatever its size. */
static void test_no_allocation(void **state)
{
    enum { N = 50000 };
    float *values = esper_mem_alloc(N * sizeof(float));
    esper_mem_stats before, after;
    esper_agree_state mine = {.table = 1};
    esper_agree_result result;

    (void)state;
    assert_non_null(values);
    esper_mem_stats_get(&before);
    for (int k = 0; k < 10; k++) {
        check_good(esper_comm_sum_f32(comm, values, N));
        check_good(esper_agree(comm, &mine, &result));
        check_good(esper_comm_barrier(comm));
    }
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_allocs, before.n_allocs);
    esper_mem_free(values);
}

static int open_comm(void **state)
{
    (void)state;
    return ranks_begin(&comm, &rank, &size) != 0 || size > MOST_RANKS;
}

static int close_comm(void **state)
{
    esper_mem_stats stats;

    (void)state;
    esper_comm_close(comm);
    esper_mem_stats_get(&stats);
    if (stats.n_live != 0)
        printf("%llu blocks are not freed\n", (unsigned long long)stats.n_live);
    return stats.n_live != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_f32),  cmocka_unit_test(test_sums_f64),
        cmocka_unit_test(test_repeats),   cmocka_unit_test(test_or),
        cmocka_unit_test(test_broadcast), cmocka_unit_test(test_gather),
        cmocka_unit_test(test_barrier),   cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_agreement), cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_bad_root),
    };

    return cmocka_run_group_tests(tests, open_comm, close_comm);
}
