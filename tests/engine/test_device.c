/* ctest: timeout=240 cost=20 driver=only */
/* Networks on the cuda backend: alone and together they go the same way to the bit, and one that is poisoned goes back while the
 * others go on. Few steps: the device is made of the host here. */
#include "engine/set_sequences.h"
#include "support/cuda_driver.h"

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

/* Networks that have grown apart share launches where they can, and go beside each other in a graph where they cannot. The driver takes
 * what nothing orders in the wrong order; each still goes the way it would go alone. */
static void grown_apart(void **state)
{
    static const struct {
        int         slot;
        const char *blueprint;
    } seeds[] = {{0, "conv_light"}, {0, "norm"}, {1, "depthwise"}, {1, "bottleneck"}};
    enum { N = 5, TOGETHER = 3 };
    house it = house_with(2, "max_steps = 40\nsnapshot_every = 1000\n");
    esper_network *networks[2 * N];
    esper_incident incidents[N];
    int graphs = cuda_driver_graphs(), beside = cuda_driver_beside();

    (void)state;
    for (int i = 0; i < 2 * N; i++) {
        const esper_blueprint *blueprint;
        esper_slot *slot;

        networks[i] = born(&it, (uint64_t)(i % N) + 1);
        if (i % N == 0)
            continue;
        slot = &networks[i]->slots.slot[seeds[i % N - 1].slot];
        check_good(esper_blueprint_find(ESPER_TOPOLOGY_CNN, seeds[i % N - 1].blueprint, &blueprint));
        check_good(esper_slot_plant(slot, blueprint, "add", ESPER_BIRTH_OWN,
                                    esper_splice_count_params(blueprint, slot->channels), 0));
        check_good(esper_network_bear(networks[i], seeds[i % N - 1].slot));
        check_good(esper_network_replan(networks[i]));
    }
    check_good(esper_engine_step(it.engine, networks, N, TOGETHER, incidents));
    if (!cuda_driver_is_real()) {
        assert_true(cuda_driver_graphs() > graphs);
        assert_true(cuda_driver_beside() > beside);
    }
    for (int i = N; i < 2 * N; i++) {
        check_good(esper_engine_step(it.engine, &networks[i], 1, TOGETHER, incidents));
        assert_true(hash_of(networks[i]) == hash_of(networks[i - N]));
    }
    for (int i = 0; i < 2 * N; i++)
        esper_network_remove(networks[i]);
    house_close(&it);
}

static void step_some(const house *it, esper_network **networks, int n, uint32_t n_steps)
{
    esper_incident incidents[2];

    check_good(esper_engine_step(it->engine, networks, n, n_steps, incidents));
    for (int i = 0; i < n; i++)
        assert_int_equal(incidents[i].action, ESPER_GOVERNOR_GO);
}

/* In the middle of an epoch of a network under guard the host waits, but not for what it has queued last: the device always has
 * something to do. And it asks the device for nothing else, nor for memory. */
static void waits_leave_the_device_busy(void **state)
{
    house it = house_with(2, "max_steps = 38\nsnapshot_every = 1000\n");
    esper_network *network = born(&it, 1);
    int waits, idle_waits, syncs, allocations;

    (void)state;
    step_some(&it, &network, 1, 0); /* programs, graphs and pages are there */
    esper_network_next_epoch(network);
    step_some(&it, &network, 1, 1); /* and the snapshot of this epoch */
    waits = cuda_driver_waits();
    idle_waits = cuda_driver_idle_waits();
    syncs = cuda_driver_syncs();
    allocations = cuda_driver_allocations();
    step_some(&it, &network, 1, 36);
    waits = cuda_driver_waits() - waits;
    idle_waits = cuda_driver_idle_waits() - idle_waits;
    if (!cuda_driver_is_real()) {
        assert_int_equal(cuda_driver_syncs(), syncs);
        assert_int_equal(cuda_driver_allocations(), allocations);
        if (idle_waits != 0 || waits < 1 || waits > 3) /* behind 32 steps, and for pages to write on */
            fail_msg("%d waits, of which %d leave the device with nothing to do", waits, idle_waits);
    }
    step_some(&it, &network, 1, 0);
    assert_int_equal(network->tally.samples, 38 * 4);
    esper_network_remove(network);
    house_close(&it);
}

/* Threads wait for the device in one another's stead: at most once for each round. */
static void a_round_is_waited_for_once(void **state)
{
    house it = house_with(2, "max_steps = 24\nsnapshot_every = 1000\n");
    esper_network *networks[2] = {born(&it, 1), born(&it, 2)};
    esper_backend_figures before, after;
    int waits;

    (void)state;
    step_some(&it, networks, 2, 1);
    esper_backend_figures_get(it.engine->backend, &before);
    waits = cuda_driver_waits() - cuda_driver_syncs();
    step_some(&it, networks, 2, 0);
    waits = cuda_driver_waits() - cuda_driver_syncs() - waits;
    esper_backend_figures_get(it.engine->backend, &after);
    if (waits > after.n_rounds - before.n_rounds)
        fail_msg("%d waits for %d rounds", waits, (int)(after.n_rounds - before.n_rounds));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(networks[i]->tally.samples, 24 * 4);
        esper_network_remove(networks[i]);
    }
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
        cmocka_unit_test(grown_apart),
        cmocka_unit_test(waits_leave_the_device_busy),
        cmocka_unit_test(a_round_is_waited_for_once),
        cmocka_unit_test(one_goes_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
