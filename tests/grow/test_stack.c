/* ctest: timeout=120 cost=6 sealed=also */
/* Slots that open again: closed until the seed before was kept, then slots like others; and closed again when that is undone. */
#include "grow/growing.h"

#define STACKED "stack = 2\ngate_epochs = 1\nmax_steps = 2\n"
#define KEEP_FIRST \
    "1 r0c1 germinate blueprint=conv_light tempo=1\n2 r0c1 advance\n3 r0c1 advance\n4 r0c1 advance\n5 r0c1 fossilize\n"
#define KEEP_SECOND                                                                                                   \
    "6 r0c1_2 germinate blueprint=conv_heavy tempo=1\n7 r0c1_2 advance\n8 r0c1_2 advance\n9 r0c1_2 advance\n" \
    "10 r0c1_2 fossilize\n"

static garden *garden_new(const char *more, const char *script)
{
    garden *g = calloc(1, sizeof(*g));

    assert_non_null(g);
    garden_open(g, more, script, NULL);
    return g;
}

static void garden_free(garden *g)
{
    garden_close(g);
    free(g);
}

static int find(const garden *g, const char *id)
{
    int k = esper_slots_find(&g->network->slots, id);

    assert_in_range(k, 0, ESPER_MAX_SLOTS - 1);
    return k;
}

static bool is_open(const garden *g, const char *id)
{
    return esper_slots_is_open(&g->network->slots, find(g, id));
}

static void opens_one_after_the_other(void **state)
{
    garden *g = garden_new(STACKED, KEEP_FIRST KEEP_SECOND);
    size_t n_params[2];

    (void)state;
    assert_int_equal(g->network->slots.n, 12);
    assert_int_equal(find(g, "r0c1"), 1); /* the first at each place have the numbers that they have without */
    assert_int_equal(find(g, "r0c1_2"), 5);
    assert_int_equal(esper_slots_behind(&g->network->slots, 1), -1);
    assert_int_equal(esper_slots_behind(&g->network->slots, find(g, "r0c1_3")), 5);
    for (int k = 0; k < 12; k++)
        assert_int_equal(esper_slots_is_open(&g->network->slots, k), k < 4);
    grow_until(g, 4);
    check_stage(g, 1, ESPER_STAGE_HOLDING);
    assert_false(is_open(g, "r0c1_2")); /* on probation is not kept */
    grow_until(g, 5);
    check_stage(g, 1, ESPER_STAGE_FOSSILIZED);
    assert_true(is_open(g, "r0c1_2") && !is_open(g, "r0c1_3") && !is_open(g, "r0c0_2"));
    (void)region_of(g->network, ESPER_FAMILY_PARAM, 2, &n_params[0]); /* with as much room as the first one */
    (void)region_of(g->network, ESPER_FAMILY_PARAM, 6, &n_params[1]);
    assert_int_equal(n_params[0], n_params[1]);
    grow_until(g, 10);
    check_stage(g, 5, ESPER_STAGE_FOSSILIZED);
    assert_true(is_open(g, "r0c1_3"));
    assert_int_equal(esper_net_count_params(&g->network->net, 6), 2 * 8 * (8 * 9 + 2) + 8);
    assert_true(isfinite(g->last.loss_valid));
    garden_free(g);
}

/* Behind a kept seed is room for what the limit allows, and for what is planted. */
static void room_is_what_the_limit_allows(void **state)
{
    static const char *const more[] = {"", "max_params = 1400\n", "max_params = 1400\nplant = r0c1:norm\n"};
    size_t first[3], second[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        char all[128];
        garden *g;

        snprintf(all, sizeof(all), STACKED "%s", more[i]);
        g = garden_new(all, NULL);
        (void)region_of(g->network, ESPER_FAMILY_PARAM, 2, &first[i]);
        (void)region_of(g->network, ESPER_FAMILY_PARAM, 6, &second[i]);
        garden_free(g);
    }
    assert_true(first[0] == first[1] && first[1] == first[2]);
    assert_true(second[0] == first[0] && second[2] == first[0]);
    assert_true(second[1] < first[1] && second[1] > 8 * 8 * 9); /* a host of some 500, and conv_heavy has 1,192 */
}

/* What is shown of a closed slot, and that nothing germinates there. */
static void closed_slots_are_refused(void **state)
{
    garden *g = garden_new(STACKED, "1 r0c1_2 germinate blueprint=norm tempo=1\n");

    (void)state;
    check_fails(try_epoch(g), ESPER_E_STATE, "r0c1_2|a kept seed in the slot before it");
    garden_free(g);
}

/* Slots in which nothing grows change nothing, whoever decides. */
static void closed_slots_cost_nothing(void **state)
{
    static const char *const others[] = {"policy = random\n",
                                         "policy = heuristic\nplateau = 100\nplateau_epochs = 1\n"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char more[128];
        garden *with, *without;

        snprintf(more, sizeof(more), "max_steps = 2\nslots = r0c1\n%s", others[i]);
        without = garden_new(more, NULL);
        set_keys(&without->config, "stack = 0\n");
        strcat(more, "stack = 3\n");
        with = garden_new(more, NULL);
        grow_until(without, 12);
        grow_until(with, 12);
        assert_true(slot_at(with, 0)->n_seeds > 0);
        check_same_region(with->network, without->network, 0, "host");
        check_same_region(with->network, without->network, 1, "seed");
        assert_int_equal(with->network->cursor.spent, without->network->cursor.spent);
        garden_free(with);
        garden_free(without);
    }
}

/* A run that goes back to before the seed was kept. */
static void a_rollback_closes(void **state)
{
    garden *g = garden_new(STACKED "snapshot_every = 1000\n", KEEP_FIRST);
    esper_incident incident;

    (void)state;
    grow_until(g, 4);
    g->config.snapshot_every = g->network->engine->config.snapshot_every = 1;
    check_good(esper_guarded_step(g->network, &incident)); /* a snapshot is taken before it */
    g->config.snapshot_every = g->network->engine->config.snapshot_every = 1000;
    grow_until(g, 5);
    assert_true(is_open(g, "r0c1_2"));
    slab_values(&g->network->slab, ESPER_FAMILY_PARAM)[3] = (float)NAN;
    check_good(esper_guarded_settle(g->network, &incident));
    heed(g, &incident);
    assert_true(incident.restored);
    assert_int_equal(incident.to.epoch, 4);
    check_stage(g, 1, ESPER_STAGE_HOLDING);
    assert_false(is_open(g, "r0c1_2"));
    garden_free(g);
}

/* Planted ones, in any order, and what cannot be. */
static void plants_behind_what_is_planted(void **state)
{
    garden *g = garden_new(STACKED "plant = r0c1_2:norm,r0c1:conv_light\n", NULL), bad = {0};

    (void)state;
    grow_until(g, 1);
    assert_true(is_open(g, "r0c1_3") && !is_open(g, "r0c0_2"));
    garden_free(g);
    bad.config = config_of("synth", GROWING STACKED "plant = r0c1:norm,r1c1_2:norm\n", "");
    check_fails(esper_single_open(task_named("synth"), &bad.config, ESPER_USE_GROW, &bad.network), ESPER_E_CONFIG,
                "plant|r1c1_2 opens behind a seed in r1c1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_one_after_the_other),     cmocka_unit_test(closed_slots_are_refused),
        cmocka_unit_test(closed_slots_cost_nothing),     cmocka_unit_test(a_rollback_closes),
        cmocka_unit_test(plants_behind_what_is_planted), cmocka_unit_test(room_is_what_the_limit_allows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
