/* ctest: cost=1 */
/* The best network of a run, and patience: what is offered, when waiting ends, what a checkpoint carries. */
#include <math.h>

#include "engine/helpers.h"
#include "run/best.h"
#include "run/checkpoint.h"
#include "run/single.h"

static esper_network *network_of(const char *more)
{
    esper_config config = config_of("synth", SMALL_CNN, more);
    esper_network *network;

    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_TRAIN, &network));
    return network;
}

static void only_a_lower_loss_is_better(void **state)
{
    esper_best best = {0};

    (void)state;
    assert_false(esper_best_offer(&best, 1, (double)NAN, 50.0));
    assert_true(esper_best_offer(&best, 2, 1.5, 40.0));
    assert_false(esper_best_offer(&best, 3, 1.5, 60.0));
    assert_false(esper_best_offer(&best, 4, (double)INFINITY, 60.0));
    assert_true(esper_best_offer(&best, 5, 1.25, 10.0));
    assert_int_equal(best.epoch, 5);
    assert_true(best.loss == 1.25 && best.accuracy == 10.0);
}

/* A rate that is held falls first; then the run ends. Without patience nothing of the kind. */
static void waiting_ends(void **state)
{
    esper_network *network = network_of("schedule = hold\nfall = 0.5\nepochs = 100\n");
    uint64_t whole = network->budget;
    esper_best best = {0};

    (void)state;
    network->cursor.spent = whole / 10;
    (void)esper_best_offer(&best, 3, 1.0, 50.0);
    assert_int_equal(esper_best_wait(&best, 0, 90, network), ESPER_BEST_GO_ON);
    assert_int_equal(esper_best_wait(&best, 4, 6, network), ESPER_BEST_GO_ON);
    assert_int_equal(network->budget, whole);
    assert_int_equal(esper_best_wait(&best, 4, 7, network), ESPER_BEST_FALL);
    assert_int_equal(network->budget, 2 * (whole / 10));
    assert_int_equal(best.budget, network->budget);
    assert_int_equal(esper_best_wait(&best, 4, 10, network), ESPER_BEST_GO_ON); /* it waits anew */
    network->cursor.spent += network->cursor.spent / 2;
    (void)esper_best_offer(&best, 10, 0.5, 60.0);
    assert_int_equal(esper_best_wait(&best, 4, 13, network), ESPER_BEST_GO_ON);
    assert_int_equal(esper_best_wait(&best, 4, 14, network), ESPER_BEST_END);
    assert_true(esper_network_is_over(network));
    esper_single_close(network);
}

/* A rate that does not fall, and a length in epochs: the end comes at once. */
static void without_a_fall_the_run_ends(void **state)
{
    esper_network *network = network_of("schedule = constant\nlength = epochs\nepochs = 100\n");
    esper_best best = {0};

    (void)state;
    network->cursor = (esper_cursor){.epoch = 8, .step = 40, .spent = 4000};
    (void)esper_best_offer(&best, 5, 1.0, 50.0);
    assert_int_equal(esper_best_wait(&best, 2, 7, network), ESPER_BEST_END);
    assert_true(esper_network_is_over(network));
    esper_single_close(network);
}

static void a_checkpoint_carries_it(void **state)
{
    esper_network *network = network_of(""), *other = network_of("");
    esper_best best, read;
    esper_checkpoint checkpoint;

    (void)state;
    esper_best_attach(&best, network);
    esper_best_attach(&read, other);
    (void)esper_best_offer(&best, 7, 0.1 + 0.2, 100.0 / 3.0);
    best.budget = 12345678901;
    check_good(esper_checkpoint_save(network, "best.safetensors"));
    check_good(esper_checkpoint_init("best.safetensors", &checkpoint));
    check_good(esper_checkpoint_restore_part(&checkpoint, other, "best"));
    esper_checkpoint_fini(&checkpoint);
    assert_int_equal(read.epoch, best.epoch);
    assert_int_equal(read.waits_from, best.waits_from);
    assert_int_equal(read.budget, best.budget);
    assert_true(read.loss == best.loss && read.accuracy == best.accuracy);
    for (int i = 0; i < other->n_parts; i++)
        if (strcmp(other->parts[i].name, "best") == 0)
            check_fails(other->parts[i].read(&read, "epoch 1 loss x accuracy 2 waits_from 0 budget 0"), ESPER_E_FORMAT,
                        "best");
    esper_single_close(other);
    esper_single_close(network);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_lower_loss_is_better),
        cmocka_unit_test(waiting_ends),
        cmocka_unit_test(without_a_fall_the_run_ends),
        cmocka_unit_test(a_checkpoint_carries_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
