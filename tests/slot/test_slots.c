/* ctest: timeout=120 */
/* The table of slots: names, policy and execution order, independence, the hash, and the packed form with
 * every byte of it damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#include "base/rng.h"
#include "slot/slot_id.h"
#include "slot/slots.h"
#include "support/slot_traffic.h"

static void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

/* ------------------------------------------------------------------------------------------------------------ names */

static void test_ids(void **state)
{
    static const char *const bad[] = {
        "",       "r",     "r0",    "r0c",   "0c0",   "R0C0",       "r0c0 ",
        "r0c0\n", " r0c0", "r-1c0", "r0c-1", "r00c0", "r0c01",      "r+1c0",
        "r0c0c0", "early", "mid",   "Late",  "r0x0",  "r1000000c0", "r0c99999999999999999999",
        "r0c0_",  "r0c0_0", "r0c0_1", "r0c0_02", "r0c0_100", "r0c0_2_2", "r0c0_2x",
        "r１c0"};
    char id[ESPER_SLOT_CHARS];
    int row, col;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        row = col = -7;
        if (esper_slot_id_parse(bad[i], &row, &col) != ESPER_E_ARG || row != -7 || col != -7)
            fail_msg("\"%s\" was taken for a slot: row %d, column %d", bad[i], row, col);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) { /* but for words, they are no names at all */
        bool is_word = strcmp(bad[i], "r") == 0 || strcmp(bad[i], "early") == 0 || strcmp(bad[i], "mid") == 0;

        if (esper_slot_id_is_name(bad[i]) != is_word || esper_slot_id_fits(bad[i], 0, 0) != is_word)
            fail_msg("\"%s\" %s", bad[i], is_word ? "is no name" : "is taken for a name");
    }
    assert_true(esper_slot_id_is_name("r2c0") && esper_slot_id_fits("r2c0", 2, 0) && !esper_slot_id_fits("r2c0", 0, 2));
    assert_true(esper_slot_id_is_name("r2c0_2") && esper_slot_id_fits("r2c0_99", 2, 0) &&
                !esper_slot_id_fits("r2c0_2", 0, 0));
    assert_int_equal(esper_slot_id_parse("r2c0_2", &row, &col), ESPER_E_ARG);
    assert_true(esper_slot_id_is_name("stem_2b") && !esper_slot_id_is_name("sixteen_letters_"));
    assert_false(esper_slot_id_is_name("caf\xc3\xa9") || esper_slot_id_is_name("a.b") || esper_slot_id_is_name("a-b"));
    assert_int_equal(esper_slot_id_parse(NULL, &row, &col), ESPER_E_ARG);
    assert_int_equal(esper_slot_id_format(-1, 0, id), ESPER_E_ARG);
    assert_int_equal(esper_slot_id_format(0, ESPER_SLOT_ID_MAX + 1, id), ESPER_E_ARG);
    for (int r = 0; r <= ESPER_SLOT_ID_MAX; r = r < 120 ? r + 1 : r * 10 + 9)
        for (int c = 0; c <= ESPER_SLOT_ID_MAX; c = c < 120 ? c + 1 : c * 10 + 9) {
            check_good(esper_slot_id_format(r, c, id));
            check_good(esper_slot_id_parse(id, &row, &col));
            assert_true(row == r && col == c);
        }
}

static void test_stage_codes(void **state)
{
    bool seen[ESPER_N_STAGES] = {false};
    int n = 0;

    (void)state;
    for (int code = -2; code < 20; code++) {
        int index = esper_stage_index(code);

        assert_int_equal(index >= 0, esper_stage_name(code) != NULL);
        if (index < 0)
            continue;
        assert_true(index < ESPER_N_STAGES && !seen[index]);
        seen[index] = true;
        n++;
    }
    assert_int_equal(n, ESPER_N_STAGES);
    assert_int_equal(esper_stage_index(5), -1);
}

/* ------------------------------------------------------------------------------------------------------------ table */

static esper_slots new_slots(int n_cols)
{
    esper_slots slots;

    check_good(slot_traffic_table(n_cols, &slots));
    return slots;
}

static void test_orders(void **state)
{
    esper_slots slots = new_slots(3);
    static const char *const ids[] = {"r0c0", "r0c1", "r0c2", "r1c0", "r1c1", "r1c2"};
    static const int places[] = {0, 2, 4, 1, 3, 5};

    (void)state;
    for (int k = 0; k < 6; k++) {
        assert_string_equal(slots.slot[k].id, ids[k]);
        assert_int_equal(slots.slot[k].depth, places[k]);
        assert_int_equal(esper_slots_find(&slots, ids[k]), k);
        assert_null(esper_slot_fault(&slots.slot[k]));
    }
    assert_int_equal(esper_slots_find(&slots, "r9c9"), -1);
    assert_int_equal(esper_slots_count(&slots, 1u << ESPER_STAGE_DORMANT), 6);
}

static void test_refused_tables(void **state)
{
    esper_boundary good[] = {{.slot = "r0c0", .channels = 4}, {.slot = "r0c1", .col = 1, .order = 1, .channels = 4}},
                   b[2];
    esper_slot_rules rules = {.permissive = false};
    esper_slots slots, untouched;

    (void)state;
    memset(&slots, 7, sizeof(slots));
    untouched = slots;
#define REFUSED(change)                                                            \
    do {                                                                           \
        memcpy(b, good, sizeof(b));                                                \
        change;                                                                    \
        assert_int_equal(esper_slots_init(&slots, b, 2, &rules), ESPER_E_ARG);     \
    } while (0)
    REFUSED(strcpy(b[1].slot, "r0c0"));
    REFUSED((strcpy(b[1].slot, "r0c0"), b[1].col = 0));
    REFUSED(b[1].order = 0);
    REFUSED(b[1].order = -1);
    REFUSED(b[0].channels = 0);
    REFUSED(strcpy(b[0].slot, "Mid"));
#undef REFUSED
    assert_int_equal(esper_slots_init(&slots, good, 0, &rules), ESPER_E_ARG);
    assert_int_equal(esper_slots_init(&slots, good, ESPER_MAX_SLOTS + 1, &rules), ESPER_E_ARG);
    assert_memory_equal(&slots, &untouched, sizeof(slots));
    check_good(esper_slots_init(&slots, good, 2, &rules));
    strcpy(good[0].slot, "mid"); /* a word says nothing of the place */
    check_good(esper_slots_init(&slots, good, 2, &rules));
}

static void test_neighbours(void **state)
{
    esper_slots slots = new_slots(2); /* executed r0c0 r1c0 r0c1 r1c1 = indices 0 2 1 3 */

    (void)state;
    for (int k = 0; k < 4; k++)
        slots.slot[k].alpha.value = k == 3 ? 0.125 : 0.25 * (k + 1);
    esper_slots_sum_neighbours(&slots, 0xb); /* without index 2 */
    assert_true(slots.slot[0].alpha_upstream == 0.0 && slots.slot[0].alpha_downstream == 0.625);
    assert_true(slots.slot[1].alpha_upstream == 0.25 && slots.slot[1].alpha_downstream == 0.125);
    assert_true(slots.slot[3].alpha_upstream == 0.75 && slots.slot[3].alpha_downstream == 0.0);
    assert_true(slots.slot[2].alpha_upstream == 0.0 && slots.slot[2].alpha_downstream == 0.0);
    esper_slots_sum_neighbours(&slots, 0xf); /* by place, not by index */
    assert_true(slots.slot[2].alpha_upstream == 0.25 && slots.slot[2].alpha_downstream == 0.625);
    assert_true(slots.slot[1].alpha_upstream == 1.0 && slots.slot[1].alpha_downstream == 0.125);
    esper_slot_clear_interactions(&slots.slot[3]);
    assert_true(slots.slot[3].alpha_upstream == 0.0);
}

enum { LIFE = SLOT_TRAFFIC_LIFE };

static void stir(esper_slot *slot, esper_rng *rng, esper_slot_events *events)
{
    check_good(slot_traffic_stir(slot, rng, events));
}

static esper_rng new_rng(uint32_t step)
{
    esper_rng_key key = {.seed = 11, .purpose = ESPER_RNG_TEST, .step = step};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    return rng;
}

/* What happens in one slot is seen in that slot alone; and in the hash. */
static void test_independence(void **state)
{
    esper_slots slots = new_slots(4), before;
    esper_rng rng = new_rng(1);
    int n_changes = 0;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        int k = (int)esper_rng_below(&rng, 8);

        if (i % LIFE == 0)
            slots = new_slots(4);
        before = slots;
        stir(&slots.slot[k], &rng, NULL);
        for (int j = 0; j < 8; j++)
            if (j != k)
                assert_memory_equal(&before.slot[j], &slots.slot[j], sizeof(esper_slot));
        n_changes += memcmp(&before, &slots, sizeof(slots)) != 0;
        assert_int_equal(esper_slots_hash(&before) != esper_slots_hash(&slots),
                         memcmp(&before, &slots, sizeof(slots)) != 0);
    }
    assert_true(n_changes > 5000);
}

/* Whether anybody listens, and whether there is room for what they would hear, changes nothing. */
static void test_deaf_listeners(void **state)
{
    static esper_slot_event list[64];
    uint64_t hash[4];
    int n_heard[4];

    (void)state;
    for (int way = 0; way < 4; way++) {
        esper_slots slots = new_slots(2);
        esper_rng rng = new_rng(2);

        hash[way] = 0;
        n_heard[way] = 0;
        for (int i = 0; i < 20000; i++) {
            esper_slot_events events = {.events = list, .capacity = way == 2 ? 1 : way == 3 ? 64 : 0};

            if (i % LIFE == 0) {
                hash[way] = hash[way] * 31 + esper_slots_hash(&slots);
                slots = new_slots(2);
            }
            stir(&slots.slot[i % 4], &rng, way == 0 ? NULL : &events);
            n_heard[way] += events.n + events.n_dropped;
            assert_true(events.n <= events.capacity && (way != 3 || events.n_dropped == 0));
        }
    }
    assert_true(hash[0] == hash[1] && hash[0] == hash[2] && hash[0] == hash[3]);
    assert_true(n_heard[1] > 1000 && n_heard[1] == n_heard[2] && n_heard[1] == n_heard[3]);
}

/* Every event is whole: kinds in order, stages that follow each other. */
static void test_events_tell_the_story(void **state)
{
    static esper_slot_event list[8];
    esper_slots slots = new_slots(1);
    esper_slot *slot = &slots.slot[0];
    esper_rng rng = new_rng(3);
    int stage = ESPER_STAGE_DORMANT;

    (void)state;
    for (int i = 0; i < 50000; i++) {
        esper_slot_events events = {.events = list, .capacity = 8};

        if (i % LIFE == 0) {
            slots = new_slots(1);
            stage = ESPER_STAGE_DORMANT;
        }
        stir(slot, &rng, &events);
        for (int e = 0; e < events.n; e++) {
            assert_true(list[e].kind <= ESPER_SLOT_EVENT_PRUNED);
            assert_string_equal(list[e].slot, "r0c0");
            assert_true(list[e].seed_id[0] != '\0' && list[e].blueprint[0] != '\0' && list[e].number > 0);
            if (list[e].kind != ESPER_SLOT_EVENT_GERMINATED && list[e].kind != ESPER_SLOT_EVENT_STAGE)
                continue;
            assert_int_equal(list[e].from, stage);
            assert_true(esper_stage_may_move(stage, list[e].to));
            stage = list[e].to;
        }
        assert_int_equal(stage, slot->stage);
    }
}

/* ----------------------------------------------------------------------------------------------------------- packed */

/* A table with its eight slots in as many stages as there are, half-way in ramps and cooldowns. */
static esper_slots stirred_slots(uint32_t step)
{
    esper_slots slots = new_slots(4);
    esper_rng rng = new_rng(step);

    for (int i = 0; i < 600; i++)
        stir(&slots.slot[i % 8], &rng, NULL);
    return slots;
}

static unsigned char *packed(const esper_slots *slots)
{
    unsigned char *bytes = malloc(esper_slots_pack_bytes(slots));

    assert_non_null(bytes);
    esper_slots_pack(slots, bytes);
    return bytes;
}

/* Round trips in every stage; and a table that was packed half-way goes on as the one that was not. */
static void test_round_trip(void **state)
{
    uint32_t stages = 0;

    (void)state;
    for (uint32_t step = 100; step < 160; step++) {
        esper_slots slots = stirred_slots(step), again;
        unsigned char *bytes = packed(&slots);
        esper_rng rng = new_rng(step + 1000), same = rng;

        check_good(esper_slots_unpack(bytes, esper_slots_pack_bytes(&slots), &again));
        assert_memory_equal(&slots, &again, sizeof(slots));
        for (int k = 0; k < 8; k++)
            stages |= 1u << slots.slot[k].stage;
        for (int i = 0; i < 200; i++) {
            stir(&slots.slot[i % 8], &rng, NULL);
            stir(&again.slot[i % 8], &same, NULL);
        }
        assert_true(esper_slots_hash(&slots) == esper_slots_hash(&again));
        free(bytes);
    }
    for (int code = ESPER_STAGE_DORMANT; code < ESPER_STAGE_CODES; code++)
        assert_int_equal(stages >> code & 1u, esper_stage_name(code) != NULL);
}

static void expect_format(const unsigned char *bytes, size_t n_bytes, size_t at)
{
    esper_slots slots, untouched;
    esper_status status;

    memset(&slots, 9, sizeof(slots));
    untouched = slots;
    status = esper_slots_unpack(bytes, n_bytes, &slots);
    if (status != ESPER_E_FORMAT)
        fail_msg("byte %zu: %s", at, esper_status_name(status));
    assert_memory_equal(&slots, &untouched, sizeof(slots));
}

/* Every byte changed, every length cut: always E_FORMAT. */
static void test_damage(void **state)
{
    esper_slots slots = stirred_slots(7);
    size_t n_bytes = esper_slots_pack_bytes(&slots);
    unsigned char *bytes = packed(&slots);

    (void)state;
    for (size_t i = 0; i < n_bytes; i++) {
        bytes[i] ^= (unsigned char)(1u << i % 8);
        expect_format(bytes, n_bytes, i);
        bytes[i] ^= (unsigned char)(1u << i % 8);
        if (i % 13 == 0)
            expect_format(bytes, i, i);
    }
    expect_format(bytes, n_bytes + 8, n_bytes);
    free(bytes);
}

/* The same with a sum that fits, as somebody with bad intentions would do it: each byte set to several values is either
 * refused or yields sound slots, which then live on. */
static void test_forged(void **state)
{
    static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
    esper_slots slots = stirred_slots(7), read;
    size_t n_bytes = esper_slots_pack_bytes(&slots), end = n_bytes - 8;
    unsigned char *bytes = packed(&slots);
    int n_refused = 0, n_sound = 0;

    (void)state;
    for (size_t i = 0; i < end; i++) {
        unsigned char was = bytes[i];
        esper_rng rng = new_rng((uint32_t)i);

        bytes[i] = values[i % 5] == was ? (unsigned char)(was ^ 0x55) : values[i % 5];
        for (int b = 0; b < 8; b++)
            bytes[end + b] = (unsigned char)(XXH64(bytes, end, 0) >> 8 * b);
        switch (esper_slots_unpack(bytes, n_bytes, &read)) {
        case ESPER_E_FORMAT:
            n_refused++;
            break;
        case ESPER_OK:
            for (int n = 0; n < 40; n++)
                stir(&read.slot[n % 8], &rng, NULL);
            for (int k = 0; k < 8; k++)
                if (esper_slot_fault(&read.slot[k]) != NULL)
                    fail_msg("byte %zu: %s", i, esper_slot_fault(&read.slot[k]));
            n_sound++;
            break;
        default:
            fail_msg("byte %zu: %s", i, esper_last_error());
        }
        bytes[i] = was;
    }
    printf("forged: %d refused, %d sound\n", n_refused, n_sound);
    assert_true(n_refused > n_sound && n_sound > 0);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_stage_codes),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_refused_tables),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_independence),
        cmocka_unit_test(test_deaf_listeners),
        cmocka_unit_test(test_events_tell_the_story),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_forged),
    };

    return cmocka_run_group_tests_name("slot/slots", tests, NULL, NULL);
}
