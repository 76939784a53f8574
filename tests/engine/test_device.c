/* ctest: timeout=240 cost=20 driver=only */
/* Networks on the cuda backend: alone and together they go the same way to the bit, and one that is poisoned goes back while the
 * others go on. Few steps: the device is made of the host here. */
#include "engine/set_sequences.h"

enum { N_STEPS = 3 };

static void alone_and_together(void **state)
{
    house it = house_open(2);
    life lives[4] = {
        {.network = born(&it, 3)}, {.network = born(&it, 4)}, {.network = born(&it, 3)}, {.network = born(&it, 4)}};
    life *pair[2] = {&lives[0], &lives[1]}, *one[1];

    (void)state;
    grow_seed(lives[1].network, 0);
    grow_seed(lives[3].network, 0);
    step_set(&it, pair, 2, N_STEPS);
    for (int i = 2; i < 4; i++) {
        one[0] = &lives[i];
        step_set(&it, one, 1, N_STEPS);
        assert_true(hash_of(lives[i].network) == hash_of(lives[i - 2].network));
    }
    assert_true(hash_of(lives[0].network) != hash_of(lives[1].network));
    for (int i = 0; i < 4; i++)
        esper_network_remove(lives[i].network);
    house_close(&it);
}

static void one_goes_back(void **state)
{
    house it = house_open(2);
    esper_network *networks[3];
    esper_incident incidents[3];
    uint64_t before;

    (void)state;
    for (int i = 0; i < 3; i++)
        networks[i] = born(&it, (uint64_t)i + 1);
    check_good(esper_engine_step(it.engine, networks, 3, 2, incidents));
    before = hash_of(networks[0]);
    poison(networks[1]);
    check_good(esper_engine_step(it.engine, networks + 1, 2, 1, incidents));
    assert_int_equal(incidents[0].action, ESPER_GOVERNOR_ROLL_BACK);
    assert_true(incidents[0].restored);
    assert_non_null(incidents[0].tensor);
    assert_int_equal(networks[2]->cursor.step, 3);
    assert_true(before == hash_of(networks[0]));
    for (int i = 0; i < 3; i++)
        esper_network_remove(networks[i]);
    house_close(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_and_together),
        cmocka_unit_test(one_goes_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
