/* ctest: timeout=120 */
/* 10,000 epochs of random lifecycle traffic, every rank for itself, an agreement after each; now and then one rank is made to
 * differ, which all must see in the same epoch. Alone this is a job of one; tests/dist/test_ranks.sh runs it with mpi. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "dist/agree.h"
#include "dist/ranks.h"
#include "slot/slots.h"
#include "support/slot_traffic.h"

enum { EPOCHS = 10000, COLUMNS = 5, OPS = 3, EVERY = 37, COMPARE_EVERY = 200 };

static esper_comm *comm;
static int rank, size;

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("rank %d: %s: %s", rank, esper_status_name(status), esper_last_error());
}

static void check_agreed(const esper_slots *slots, int epoch)
{
    esper_agree_state mine = {.table = esper_slots_hash(slots), .sequence = (uint64_t)epoch};
    esper_agree_result result;

    check_good(esper_agree(comm, &mine, &result));
    if (result.fields != 0)
        fail_msg("rank %d: epoch %d: not agreed", rank, epoch);
}

/* Byte for byte, not by the hash. */
static void check_identical(const esper_slots *slots, int epoch)
{
    size_t bytes = sizeof(slots->slot[0]) * (size_t)slots->n;
    char *all = esper_mem_alloc(bytes * (size_t)size);

    assert_non_null(all);
    check_good(esper_comm_gather(comm, slots->slot, bytes, all));
    for (int r = 0; r < size; r++)
        if (memcmp(all + (size_t)r * bytes, slots->slot, bytes) != 0)
            fail_msg("epoch %d: the tables of ranks %d and %d differ", epoch, rank, r);
    esper_mem_free(all);
}

/* The victim goes into the agreement with another table; everybody must name it. */
static void check_caught(const esper_slots *slots, const esper_slots *wrong, int victim, int epoch)
{
    esper_agree_state mine = {.table = esper_slots_hash(rank == victim ? wrong : slots), .sequence = (uint64_t)epoch};
    esper_agree_result result;
    char text[400];

    check_good(esper_agree(comm, &mine, &result));
    esper_agree_text(&result, size, text, sizeof(text));
    if (size == 1) {
        assert_int_equal(result.fields, 0);
        return;
    }
    if (result.fields != 1u << ESPER_AGREE_TABLE)
        fail_msg("rank %d: epoch %d: rank %d differs, and the agreement says \"%s\"", rank, epoch, victim, text);
    if (size == 2) {
        assert_true(result.n_differing == 2 && !result.has_majority && result.rank[0] == 0 && result.rank[1] == 1);
    } else if (result.n_differing != 1 || result.rank[0] != victim) {
        fail_msg("rank %d: epoch %d: rank %d differs, and the agreement says \"%s\"", rank, epoch, victim, text);
    }
}

static void stir(esper_slots *slots, esper_rng *rng)
{
    check_good(slot_traffic_stir(&slots->slot[esper_rng_below(rng, 2 * COLUMNS)], rng, NULL));
}

static void flip_bit(esper_slots *slots, esper_rng *rng)
{
    uint32_t bit = esper_rng_below(rng, (uint32_t)(sizeof(slots->slot[0]) * (size_t)slots->n * 8));

    ((unsigned char *)slots->slot)[bit / 8] ^= (unsigned char)(1u << bit % 8);
}

static void test_traffic(void **state)
{
    static esper_slots slots, wrong;
    int n_skips = 0, n_flips = 0;

    (void)state;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        esper_rng_key key = {.seed = 21, .purpose = ESPER_RNG_TEST, .step = (uint32_t)epoch};
        int victim;
        esper_rng rng;

        esper_rng_init(&rng, &key);
        victim = (int)esper_rng_below(&rng, (uint32_t)size);
        if (epoch % (SLOT_TRAFFIC_LIFE * 2 / OPS) == 0)
            check_good(slot_traffic_table(COLUMNS, &slots));
        for (int k = 0; k < OPS; k++) {
            wrong = slots; /* as if the last operation had been skipped */
            stir(&slots, &rng);
        }
        if (epoch % EVERY == 0 && memcmp(&wrong, &slots, sizeof(slots)) != 0) {
            check_caught(&slots, &wrong, victim, epoch);
            n_skips++;
        } else if (epoch % EVERY == 1) {
            wrong = slots;
            flip_bit(&wrong, &rng);
            check_caught(&slots, &wrong, victim, epoch);
            n_flips++;
        }
        check_agreed(&slots, epoch);
        if (epoch % COMPARE_EVERY == 0)
            check_identical(&slots, epoch);
    }
    assert_true(n_skips > 50 && n_flips > 200);
}

static int open_comm(void **state)
{
    (void)state;
    return ranks_begin(&comm, &rank, &size);
}

static int close_comm(void **state)
{
    (void)state;
    esper_comm_close(comm);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_traffic)};

    return cmocka_run_group_tests(tests, open_comm, close_comm);
}
