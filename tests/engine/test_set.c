/* ctest: timeout=240 cost=30 labels=tsan sealed=also */
/* Forks, and sets of networks side by side. */
#include "engine/set_sequences.h"

/* A fork goes where its parent goes, and neither notices the other. */
static void a_fork_is_a_copy(void **state)
{
    house it = house_open(2);
    life lives[2] = {{.network = born(&it, 7)}}, *pair[2] = {&lives[0], &lives[1]};

    (void)state;
    step_set(&it, pair, 1, 4);
    grow_seed(lives[0].network, 1);
    step_set(&it, pair, 1, 2);
    lives[1].network = fork_of(lives[0].network);
    assert_true(hash_of(lives[0].network) == hash_of(lives[1].network));
    step_set(&it, pair, 2, 5);
    assert_true(hash_of(lives[0].network) == hash_of(lives[1].network));
    step_set(&it, pair + 1, 1, 1);
    assert_true(hash_of(lives[0].network) != hash_of(lives[1].network));
    step_set(&it, pair, 1, 1);
    assert_true(hash_of(lives[0].network) == hash_of(lives[1].network));
    esper_network_remove(lives[0].network);
    step_set(&it, pair + 1, 1, 2);
    esper_network_remove(lives[1].network);
    house_close(&it);
}

/* A fork with other slots: its host is the parent's, its seed is the one that the parent would bear. */
static void a_fork_may_have_other_slots(void **state)
{
    house it = house_open(1);
    life lives[2] = {{.network = born(&it, 7)}}, *pair[2] = {&lives[0], &lives[1]};
    const esper_blueprint *blueprint;
    esper_slots *slots = malloc(sizeof(*slots));

    (void)state;
    assert_non_null(slots);
    step_set(&it, pair, 1, 3);
    *slots = lives[0].network->slots;
    check_good(esper_blueprint_find(ESPER_TOPOLOGY_CNN, "conv_light", &blueprint));
    check_good(esper_slot_plant(&slots->slot[0], blueprint, "add", ESPER_BIRTH_OWN,
                                esper_splice_count_params(blueprint, slots->slot[0].channels), 0));
    check_good(esper_network_fork(lives[0].network, slots, &lives[1].network));
    check_good(esper_network_bear(lives[1].network, 0));
    assert_true(esper_slot_is_empty(&lives[0].network->slots.slot[0]));
    grow_seed(lives[0].network, 0);
    assert_true(esper_network_hash(lives[0].network) == esper_network_hash(lives[1].network));
    esper_guarded_close(lives[0].network);
    step_set(&it, pair, 2, 4);
    assert_true(esper_network_hash(lives[0].network) == esper_network_hash(lives[1].network));
    esper_network_remove(lives[0].network);
    esper_network_remove(lives[1].network);
    house_close(&it);
    free(slots);
}

/* One that is poisoned goes back; the others of the set do not notice. */
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
    assert_int_equal(incidents[1].action, ESPER_GOVERNOR_GO);
    assert_int_equal(networks[2]->cursor.step, 3);
    assert_true(before == hash_of(networks[0]));
    for (int i = 0; i < 3; i++)
        esper_network_remove(networks[i]);
    house_close(&it);
}

/* A failure names its network, and the others go on. */
static void one_fails(void **state)
{
    house it = house_open(2);
    esper_network *networks[2] = {born(&it, 1), born(&it, 2)};
    esper_incident incidents[2];

    (void)state;
    check_good(esper_engine_step(it.engine, networks, 1, 0, incidents)); /* to the end of its epoch */
    assert_int_equal(networks[0]->cursor.batch, it.engine->steps_per_epoch);
    check_fails(esper_engine_step(it.engine, networks, 2, 1, incidents), ESPER_E_STATE,
                "network 0 of 2|no training step is due");
    assert_int_equal(networks[1]->cursor.step, 1);
    esper_network_remove(networks[0]);
    esper_network_remove(networks[1]);
    house_close(&it);
}

/* Losses of single samples are those that the tally adds up. */
static void samples_add_up(void **state)
{
    house it = house_open(2);
    esper_network *network = born(&it, 1);
    uint32_t n = esper_dataset_count(it.data, ESPER_SPLIT_VALID);
    float *losses = calloc(n, sizeof(*losses));
    esper_request request = {.network = network, .split = ESPER_SPLIT_VALID, .losses = losses};
    double sum = 0.0;

    (void)state;
    assert_non_null(losses);
    request.n_batches = esper_sampler_batches(it.engine->samplers[ESPER_SPLIT_VALID]);
    check_good(esper_engine_evaluate(it.engine, &request, 1));
    assert_int_equal(request.tally.samples, n);
    for (uint32_t i = 0; i < n; i++)
        sum += (double)losses[i];
    assert_true(sum > 0.0 && sum == request.tally.loss);
    free(losses);
    esper_network_remove(network);
    house_close(&it);
}

/* The host waits for a network when it reads what its steps have brought, and not at every step; and a step takes no memory. */
static void waits_are_few(void **state)
{
    house it = house_with(2, "max_steps = 40\nsnapshot_every = 1000\n");
    esper_network *networks[2] = {born(&it, 1), born(&it, 2)};
    esper_incident incidents[2];
    esper_mem_stats before, after;
    int64_t waits;

    (void)state;
    check_good(esper_engine_step(it.engine, networks, 2, 1, incidents));
    waits = esper_backend_waits(it.engine->backend);
    esper_mem_stats_get(&before);
    check_good(esper_engine_step(it.engine, networks, 2, 0, incidents));
    esper_mem_stats_get(&after);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(networks[i]->cursor.step, 40);
        check_good(esper_network_read(networks[i]));
        assert_int_equal(networks[i]->tally.samples, 160);
    }
    waits = esper_backend_waits(it.engine->backend) - waits;
    assert_int_equal(waits, 2 * 3); /* 40 steps are 16, 16 and 8 */
    assert_int_equal(after.n_allocs, before.n_allocs);
    esper_network_remove(networks[0]);
    esper_network_remove(networks[1]);
    house_close(&it);
}

static void each_goes_its_own_way(void **state)
{
    (void)state;
    run_sequences(1, effort(30, 8), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_is_a_copy), cmocka_unit_test(a_fork_may_have_other_slots),
        cmocka_unit_test(one_goes_back),    cmocka_unit_test(one_fails),
        cmocka_unit_test(samples_add_up),   cmocka_unit_test(waits_are_few),
        cmocka_unit_test(each_goes_its_own_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
