/* ctest: timeout=120 cost=15 sealed=also */
/* Trials in a network that trains: what they leave alone, what they cost, and how the winner begins. */
#include <unistd.h>

#include "base/file.h"
#include "grow/growing.h"

/* A host that sees no neighbourhoods, and seeds that do. */
#define TRYING                                                                                                  \
    "policy = trials\nbatch = 32\nmax_steps = 20\nchannels = 2\nkernel = 1\nblocks = 3\nschedule = hold\nlr = 0.05\n" \
    "blueprints = conv_light\ntrial_share = 0.6\ntrial_first = 0.05\ntrial_price = 0\nlength = flops\nflops = 1e10\ngates = strict\n"

/* Grows until a seed is there, or no longer than so many epochs. The slot it is in; -1: none. */
static int grow_until_seed(garden *g, uint32_t most)
{
    while (g->network->cursor.epoch < most) {
        check_good(try_epoch(g));
        for (int k = 0; k < g->network->slots.n; k++)
            if (esper_slot_is_active(&g->network->slots.slot[k]))
                return k;
    }
    return -1;
}

static void a_seed_that_pays_joins(void **state)
{
    garden g;
    int k;
    uint64_t before;

    (void)state;
    garden_open(&g, TRYING, NULL, "log.jsonl");
    k = grow_until_seed(&g, 100);
    assert_in_range(k, 0, g.network->slots.n - 1);
    assert_int_equal(slot_at(&g, k)->stage, ESPER_STAGE_HOLDING);
    assert_true(slot_at(&g, k)->alpha.value == 1.0);
    for (int i = 0; i < g.network->slots.n; i++) /* losers leave no trace: their slots' next seed is the first */
        assert_int_equal(slot_at(&g, i)->n_seeds, i == k);
    assert_true(g.network->cursor.spent > 20 * g.network->cursor.epoch * 1000);
    before = esper_network_hash(g.network);
    check_good(esper_network_bear(g.network, k)); /* its weights are keyed by seed, slot and the slot's counter */
    assert_true(esper_network_hash(g.network) == before);
    garden_close(&g);
}

/* One an epoch, by what the same trial has shown of them: nothing is tried or paid for again. */
static void others_that_have_won_follow(void **state)
{
    garden g;
    int first, n_seeds = 0;

    (void)state;
    garden_open(&g, TRYING "flops = 2e10\ntrial_seeds = 3\n", NULL, NULL);
    first = grow_until_seed(&g, 100);
    assert_in_range(first, 0, g.network->slots.n - 1);
    for (int n = 2; n <= 3; n++) {
        uint64_t n_logged = esper_growth_account_of(g.growth).n_logged;

        check_good(try_epoch(&g));
        assert_null(esper_growth_look_at(g.growth).best);
        assert_int_equal(esper_growth_account_of(g.growth).n_logged, n_logged + 1); /* the decision, and no fork */
        n_seeds = 0;
        for (int k = 0; k < g.network->slots.n; k++)
            if (esper_slot_is_active(slot_at(&g, k))) {
                assert_int_equal(slot_at(&g, k)->stage, ESPER_STAGE_HOLDING);
                assert_true(slot_at(&g, k)->alpha.value == 1.0);
                n_seeds++;
            }
        assert_int_equal(n_seeds, n);
    }
    garden_close(&g);
}

/* Its weights are chosen in the fork and, the same ones, in the run: both are paid for. */
static void a_choice_at_birth_is_charged(void **state)
{
    double draws, steps;
    const esper_fork *won;
    uint64_t hash, spent;
    garden g;
    int k;

    (void)state;
    garden_open(&g, TRYING "birth = first\ntrial_rounds = 1\n", NULL, NULL);
    k = grow_until_seed(&g, 100);
    assert_in_range(k, 0, g.network->slots.n - 1);
    won = esper_growth_look_at(g.growth).best;
    draws = ESPER_BIRTH_DRAWS * (double)g.network->step_cost;
    steps = won->n_steps * (double)g.network->step_cost;
    assert_true(won->flops == draws + steps + won->sample_flops * won->n_samples);
    assert_true(esper_growth_account_of(g.growth).flops_train == (double)g.network->cursor.spent);
    hash = esper_network_hash(g.network);
    spent = g.network->cursor.spent;
    check_good(esper_network_bear(g.network, k)); /* nothing has been trained since */
    assert_true(esper_network_hash(g.network) == hash);
    assert_true((double)(g.network->cursor.spent - spent) == draws);
    garden_close(&g);
}

/* Weights and slots of a run after so many epochs. */
static uint64_t hash_after(const char *more, uint32_t n_epochs, uint64_t *n_logged, uint64_t *spent)
{
    garden g;
    uint64_t hash;

    garden_open(&g, more, NULL, "log.jsonl");
    grow_until(&g, n_epochs);
    hash = esper_network_hash(g.network);
    *n_logged = esper_growth_account_of(g.growth).n_logged;
    *spent = g.network->cursor.spent;
    garden_close(&g);
    return hash;
}

static void a_trial_leaves_the_run_as_it_is(void **state)
{
    uint64_t none, tried, n_none, n_tried, spent_none, spent_tried;

    (void)state;
    none = hash_after(TRYING "policy = none\nblueprints =\nschedule = constant\n", 20, &n_none, &spent_none);
    tried = hash_after(TRYING "trial_price = 1000\nschedule = constant\n", 20, &n_tried, &spent_tried);
    assert_int_equal(n_none, 20);
    assert_true(n_tried >= 27); /* with a trial of six seeds and nothing */
    assert_true(spent_tried > spent_none);
    assert_true(none == tried);
}

static void threads_do_not_matter(void **state)
{
    uint64_t one, three, n[2], spent[2];
    char *text[2];
    size_t bytes[2];

    (void)state;
    one = hash_after(TRYING, 20, &n[0], &spent[0]);
    check_good(esper_file_read("log.jsonl", 1 << 20, &text[0], &bytes[0]));
    three = hash_after(TRYING "threads = 3\n", 20, &n[1], &spent[1]);
    check_good(esper_file_read("log.jsonl", 1 << 20, &text[1], &bytes[1]));
    assert_true(one == three && n[0] == n[1] && spent[0] == spent[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(text[0], text[1], bytes[0]);
    esper_mem_free(text[0]);
    esper_mem_free(text[1]);
}

/* y = x + c, with a c that is no number. */
static int build_poison(esper_net *net, int x, esper_blueprint_how how)
{
    int channels = net->tensors[x].dim[0];
    int scale = esper_net_param(net, "scale", 1, &channels, (esper_init){ESPER_INIT_CONSTANT, NAN});

    (void)how;
    return esper_net_add(net, x, esper_net_channel_scale(net, x, scale));
}

static void forks_that_are_not_finite_lose(void **state)
{
    static const esper_blueprint poison = {
        .name = "conv_light", .topology = ESPER_TOPOLOGY_CNN, .index = 1, .build = build_poison, .about = "poison"};
    uint64_t none, n_none, spent_none;
    garden g;

    (void)state;
    none = hash_after(TRYING "policy = none\nblueprints =\nschedule = constant\n", 20, &n_none, &spent_none);
    garden_open(&g, TRYING "schedule = constant\n", NULL, NULL);
    g.network->splice.stand_in = &poison;
    grow_until(&g, 20);
    assert_true(esper_growth_account_of(g.growth).n_logged >= 27);
    assert_true(esper_network_hash(g.network) == none);
    assert_int_equal(g.n_incidents, 0);
    assert_int_equal(esper_guarded_reading(g.network).n_rollbacks, 0);
    garden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_that_have_won_follow),  cmocka_unit_test(a_seed_that_pays_joins),
        cmocka_unit_test(a_choice_at_birth_is_charged), cmocka_unit_test(a_trial_leaves_the_run_as_it_is),
        cmocka_unit_test(threads_do_not_matter),        cmocka_unit_test(forks_that_are_not_finite_lose),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
