/* ctest: timeout=120 cost=4 sealed=also */
/* Layers that take new channels, in a run: nothing changes at birth, what was there before is left as it is, seeds that new channels
 * pass by learn aside and are measured, and trials try them. */
#include "grow/growing.h"

#define WIDENED "widen = true\ngate_epochs = 1\nmax_steps = 2\n"

static garden *garden_new(const char *more, const char *script)
{
    garden *g = calloc(1, sizeof(*g));

    assert_non_null(g);
    esper_blueprint_add_wide();
    garden_open(g, more, script, NULL);
    return g;
}

static void garden_free(garden *g)
{
    garden_close(g);
    free(g);
}

static void check_offers(const garden *g)
{
    const esper_slots *slots = &g->network->slots;

    assert_int_equal(slots->n, 6);
    assert_string_equal(slots->slot[4].id, "wide0");
    assert_string_equal(slots->slot[5].id, "wide1");
    assert_int_equal(slots->slot[4].channels, 8); /* it is added to what the next layer makes */
    assert_int_equal(slots->slot[5].channels, 10);
}

/* The slab of the host, moments too, and its statistics are the same bits as without; the new region begins with no moments. */
static void nothing_changes_at_birth(void **state)
{
    garden *with = garden_new(WIDENED, "1 wide0 germinate blueprint=wide tempo=1\n2 wide0 advance\n"),
           *without = garden_new(WIDENED, NULL);
    size_t n;
    const float *moments;

    (void)state;
    check_offers(with);
    grow_until(with, 2);
    grow_until(without, 2);
    check_stage(with, 4, ESPER_STAGE_TRAINING);
    check_same_region(with->network, without->network, 0, "host");
    moments = region_of(with->network, ESPER_FAMILY_MOMENT1, 5, &n);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++)
        assert_true(moments[i] == 0.0f);
    grow_until(with, 3);
    grow_until(without, 3);
    check_same_region(with->network, without->network, 0, "a host beside which new channels learn");
    moments = region_of(with->network, ESPER_FAMILY_MOMENT1, 5, &n);
    assert_true(moments[0] != 0.0f);
    garden_free(with);
    garden_free(without);
}

/* A seed behind a block learns aside, and is measured, while that block's new channels pass it by. */
static void seeds_learn_beside_them(void **state)
{
    garden *g =
        garden_new(WIDENED "plant = wide0:wide,wide1:wide,r1c0:norm\n",
                   "1 r0c0 germinate blueprint=conv_light tempo=1\n2 r0c0 advance\n5 r0c0 advance\n6 r0c0 advance\n");
    esper_growth_look look;

    (void)state;
    grow_until(g, 4);
    check_stage(g, 0, ESPER_STAGE_TRAINING);
    look = esper_growth_look_at(g->growth);
    assert_true(isfinite(look.trial[0].value)); /* what it would add */
    grow_until(g, 8);
    look = esper_growth_look_at(g->growth);
    assert_true(slot_at(g, 0)->stage == ESPER_STAGE_BLENDING || slot_at(g, 0)->stage == ESPER_STAGE_HOLDING);
    assert_true(isfinite(look.contribution[0].value));
    garden_free(g);
}

static void other_seeds_are_refused(void **state)
{
    static const struct {
        const char *line, *words;
    } bad[] = {
        {"1 wide0 germinate blueprint=conv_light\n", "conv_light does not fit wide0"},
        {"1 r0c0 germinate blueprint=wide\n", "wide does not fit r0c0"},
        {"1 wide0 germinate blueprint=wide style=gated_gate\n", "wide0 takes no gate network"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        garden *g = garden_new(WIDENED, bad[i].line);

        check_fails(try_epoch(g), ESPER_E_STATE, bad[i].words);
        garden_free(g);
    }
}

/* Candidates of a trial: a fork for each layer beside those for seeds. */
static void trials_try_them(void **state)
{
    garden *g = garden_new("policy = trials\nbatch = 32\nmax_steps = 20\nchannels = 2\nblocks = 2\nschedule = hold\n"
                           "lr = 0.05\nblueprints = wide\ntrial_share = 0.6\ntrial_first = 0.05\ntrial_price = 0\n"
                           "length = flops\nflops = 5e9\ngates = strict\nwiden = true\n",
                           NULL);
    int n_tried = 0;

    (void)state;
    while (g->network->cursor.epoch < 12 && n_tried == 0) {
        check_good(try_epoch(g));
        n_tried = esper_growth_look_at(g->growth).n_tried;
    }
    assert_int_equal(n_tried, 2);
    garden_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changes_at_birth),
        cmocka_unit_test(seeds_learn_beside_them),
        cmocka_unit_test(other_seeds_are_refused),
        cmocka_unit_test(trials_try_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
