/* ctest: timeout=120 cost=8 */
/* Successive halving: which networks are drawn, what they may spend, who wins, and that it is one and the same search whatever
 * computes it. */
#include <inttypes.h>
#include <math.h>

#include "engine/helpers.h"
#include "run/halving.h"
#include "tensor/cost.h"

#define SEARCHED                                                                                       \
    "threads = 1\nbatch = 8\nchannels = 4\nblocks = 2\nmax_steps = 7\nepochs = 60\nschedule = hold\n" \
    "max_params = 3000\nprogress = none\n"

/* ------------------------------------------------------------------------------------------------ the draw */

static esper_network *host_of(const char *task, const char *more)
{
    esper_config config = config_of(task, strcmp(task, "synth") == 0 ? SEARCHED : SMALL_TEXT, more);
    esper_network *network;

    check_good(esper_single_open(task_named(task), &config, ESPER_USE_GROW, &network));
    return network;
}

static int draw(const esper_network *network, int64_t most, uint64_t seed,
                esper_halving_set sets[ESPER_HALVING_NETWORKS])
{
    esper_halving_room room = {.params = most, .flops = -1.0};
    int n;

    check_good(esper_halving_draw(&network->slots, &network->engine->host, &room, seed, sets, &n));
    return n;
}

/* Nothing stands behind an empty slot of its place. */
static void draws_no_closed_slots(void **state)
{
    esper_network *network = host_of("synth", "stack = 2\n");
    esper_halving_set sets[ESPER_HALVING_NETWORKS];
    int n_behind = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        assert_int_equal(draw(network, 100000, seed, sets), ESPER_HALVING_NETWORKS);
        for (int i = 0; i < ESPER_HALVING_NETWORKS; i++)
            for (int k = 0; k < network->slots.n; k++) {
                int behind = esper_slots_behind(&network->slots, k);

                if (sets[i].blueprint[k] < 0 || behind < 0)
                    continue;
                assert_true(sets[i].blueprint[behind] >= 0);
                n_behind++;
            }
    }
    assert_true(n_behind > 100);
    esper_single_close(network);
}

/* By seed, all different, none too large, no noop, and every slot and blueprint in its turn. */
static void draws_by_seed(void **state)
{
    esper_network *network = host_of("synth", "");
    const esper_blueprint *const *list = esper_blueprint_list(ESPER_TOPOLOGY_CNN);
    esper_halving_set a[ESPER_HALVING_NETWORKS], b[ESPER_HALVING_NETWORKS];
    bool seen[ESPER_MAX_SLOTS][32] = {{false}};
    int n_empty = 0, n_differ = 0, n_blueprints = 0;

    (void)state;
    while (list[n_blueprints] != NULL)
        n_blueprints++;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        assert_int_equal(draw(network, 1000, seed, a), ESPER_HALVING_NETWORKS);
        assert_int_equal(draw(network, 1000, seed, b), ESPER_HALVING_NETWORKS);
        assert_memory_equal(a, b, sizeof(a));
        draw(network, 1000, seed + 1, b);
        n_differ += memcmp(a, b, sizeof(a)) != 0;
        for (int i = 0; i < ESPER_HALVING_NETWORKS; i++) {
            int64_t params = 0;

            for (int k = 0; k < network->slots.n; k++) {
                if (a[i].blueprint[k] < 0)
                    continue;
                assert_string_not_equal(list[a[i].blueprint[k]]->name, "noop");
                params += esper_splice_count_params(list[a[i].blueprint[k]], network->slots.slot[k].channels);
                seen[k][a[i].blueprint[k]] = true;
            }
            assert_int_equal(params, a[i].params);
            assert_in_range(params, 0, 1000);
            n_empty += params == 0;
            for (int j = 0; j < i; j++)
                assert_memory_not_equal(a[i].blueprint, a[j].blueprint, sizeof(a[i].blueprint));
        }
    }
    assert_int_equal(n_differ, 200);
    assert_in_range(n_empty, 0, 16 * 20); /* the bare host is one set among many */
    for (int k = 0; k < network->slots.n; k++)
        for (int b_at = 0; b_at < n_blueprints; b_at++)
            if (!seen[k][b_at] && strcmp(list[b_at]->name, "noop") != 0 &&
                esper_splice_count_params(list[b_at], network->slots.slot[k].channels) <= 1000)
                fail_msg("%s is never drawn in slot %s", list[b_at]->name, network->slots.slot[k].id);
    esper_single_close(network);
}

/* Where there is room for little, there are few; planted slots stay as they are. */
static void draws_what_there_is(void **state)
{
    esper_network *network = host_of("synth", "plant = r0c0:norm,r0c1:norm,r1c0:norm\n");
    esper_halving_set sets[ESPER_HALVING_NETWORKS];
    char text[ESPER_CONFIG_TEXT_CHARS];
    int n = draw(network, -1, 3, sets);

    (void)state;
    assert_in_range(n, 2, 15); /* none, or one of the blueprints, in the last slot */
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++)
            assert_int_equal(sets[i].blueprint[k], -1);
    n = draw(network, 0, 3, sets);
    assert_in_range(n, 1, 3); /* the host, and what has no parameters */
    assert_int_equal(sets[0].params, 0);
    assert_true(esper_halving_text(&sets[0], &network->slots, ESPER_TOPOLOGY_CNN, text));
    esper_single_close(network);
}

/* By FLOPs, too: what is drawn is counted once more on the network that has it. */
static void draws_below_flops(void **state)
{
    esper_network *network = host_of("synth", "");
    double host = esper_net_flops(&network->net);
    esper_halving_room room = {.params = -1, .flops = 0.3 * host};
    esper_halving_set sets[ESPER_HALVING_NETWORKS];
    char plant[ESPER_CONFIG_TEXT_CHARS + 16] = "plant = ", text[ESPER_CONFIG_TEXT_CHARS];
    int n, n_near = 0;

    (void)state;
    check_good(esper_halving_draw(&network->slots, &network->engine->host, &room, 5, sets, &n));
    assert_in_range(n, 4, ESPER_HALVING_NETWORKS);
    for (int i = 0; i < n; i++) {
        esper_network *planted;
        double more;

        assert_true(esper_halving_text(&sets[i], &network->slots, ESPER_TOPOLOGY_CNN, text));
        snprintf(plant, sizeof(plant), "plant = %s\n", text);
        planted = host_of("synth", plant);
        more = esper_net_flops(&planted->net) - host;
        assert_true(more <= room.flops);
        n_near += more > 0.1 * room.flops;
        esper_single_close(planted);
    }
    assert_in_range(n_near, 1, n);
    esper_single_close(network);
}

/* ------------------------------------------------------------------------------------------------ the search */

typedef struct stops {
    int steps_left;
} stops;

static esper_status stop_soon(void *context)
{
    stops *self = context;

    return self->steps_left-- == 0 ? ESPER_FAIL(ESPER_E_STOPPED, "enough") : ESPER_OK;
}

/* What a step costs the dearest of the networks that are drawn. */
static double dearest_step(esper_network *network, const esper_halving_set sets[ESPER_HALVING_NETWORKS])
{
    char *plant = network->engine->config.plant;
    double most = 0.0;

    for (int i = 0; i < ESPER_HALVING_NETWORKS; i++) {
        esper_network *one;

        assert_true(esper_halving_text(&sets[i], &network->slots, ESPER_TOPOLOGY_CNN, plant));
        check_good(esper_network_add(network->engine, network->seed, NULL, &one));
        most = fmax(most, (double)one->step_cost);
        esper_network_remove(one);
    }
    plant[0] = '\0';
    return most;
}

/* The FLOPs are those of one run, within a step for each network in each round; what is left is the winner's, who is one of those that
 * were drawn, the best of the last round, and named in the configuration. */
static void spends_what_one_run_may(void **state)
{
    static const char *const seeds[] = {"seed = 1\n", "seed = 2\n", "seed = 3\nmax_params = 0\n"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        esper_network *network = host_of("synth", seeds[i]);
        esper_halving_set sets[ESPER_HALVING_NETWORKS];
        int64_t host = esper_net_count_params(&network->net, -1), most = network->engine->config.max_params;
        double budget = (double)network->budget, spent = 0.0, step;
        char text[ESPER_CONFIG_TEXT_CHARS], *said = NULL;
        const char *plant = network->engine->config.plant, *last = NULL;
        size_t size;
        esper_log log = {.level = ESPER_LOG_INFO, .stream = open_memstream(&said, &size)};
        bool drawn = false;

        assert_int_equal(draw(network, most > 0 ? most - host : -1, network->seed, sets), ESPER_HALVING_NETWORKS);
        step = dearest_step(network, sets);
        check_good(esper_halving_search(&(esper_halving_desc){.log = &log}, &network, &spent));
        fclose(log.stream);
        assert_true(spent <= 0.8 * budget && spent >= 0.8 * budget - (16 + 8 + 4 + 2) * step);
        assert_true(fabs((double)(network->budget - network->cursor.spent) - (budget - spent)) <= 1.0);
        /* its part of the rounds: a sixteenth, an eighth, a quarter and half of a fifth */
        assert_true((double)network->cursor.spent <= 0.1875 * budget &&
                    (double)network->cursor.spent >= 0.1875 * budget - 4.0 * step);
        assert_int_equal(network->descent.n_steps, 0);
        assert_true(esper_network_rate(network) == network->engine->config.lr);
        for (int k = 0; k < ESPER_HALVING_NETWORKS; k++)
            if (esper_halving_text(&sets[k], &network->slots, ESPER_TOPOLOGY_CNN, text) && strcmp(text, plant) == 0) {
                drawn = true;
                assert_int_equal(esper_network_params(network), host + sets[k].params);
            }
        assert_true(drawn);
        for (const char *at = said; (at = strstr(at, "the best is ")) != NULL; last = at)
            at += strlen("the best is ");
        assert_non_null(last);
        assert_memory_equal(last, plant[0] != '\0' ? plant : "the host", strlen(plant));
        free(said);
        esper_single_close(network);
    }
    assert_int_equal(live_blocks(), 0);
}

/* At a rate that no network stands, all lose, and one of them is left. */
static void somebody_wins(void **state)
{
    esper_network *network = host_of("synth", "lr = 1e6\nclip = 0\n");
    double spent;

    (void)state;
    check_good(esper_halving_search(&(esper_halving_desc){0}, &network, &spent));
    assert_true(network->cursor.step > 0);
    esper_single_close(network);
}

static void stopped_it_leaves_nothing(void **state)
{
    esper_network *network = host_of("synth", ""), *before = network;
    stops soon = {.steps_left = 30};
    double spent = -1.0;

    (void)state;
    check_fails(esper_halving_search(&(esper_halving_desc){.step = stop_soon, .context = &soon}, &network, &spent),
                ESPER_E_STOPPED, "enough");
    assert_ptr_equal(network, before);
    assert_string_equal(network->engine->config.plant, "");
    assert_int_equal(network->cursor.step, 0);
    esper_single_close(network);
    assert_int_equal(live_blocks(), 0);
}

/* ------------------------------------------------------------------------------------------------ the run */

static esper_run_result run_of(const char *more, int n_steps, const char *resume)
{
    esper_config config = config_of("synth", SEARCHED "policy = halving\n", more), nothing;
    stopper stopping = {.steps_left = n_steps};
    esper_run_observer observer = {.context = &stopping, .step = stopper_step};
    esper_run_desc desc = {.task = resume == NULL ? task_named("synth") : NULL,
                           .config = &config,
                           .resume = resume,
                           .grows = true,
                           .observer = &observer,
                           .stop = &stopping.stop};
    esper_run_result result;

    esper_config_init(&nothing);
    if (resume != NULL)
        desc.config = &nothing;
    check_good(esper_run_train(&desc, &result));
    return result;
}

static void check_same(const esper_run_result *a, const esper_run_result *b, const char *what)
{
    if (a->weight_hash != b->weight_hash || a->loss_test != b->loss_test || a->flops_train != b->flops_train)
        fail_msg("%s: weights %016" PRIx64 " and %016" PRIx64 ", loss %.9g and %.9g, FLOPs %.0f and %.0f", what,
                 a->weight_hash, b->weight_hash, a->loss_test, b->loss_test, a->flops_train, b->flops_train);
}

static void is_the_same_search_anywhere(void **state)
{
    esper_run_result one = run_of("run_dir = one\n", -1, NULL),
                     three = run_of("threads = 3\nrun_dir = three\n", -1, NULL);
    esper_run_result other = run_of("seed = 2\nrun_dir = other\n", -1, NULL), part;
    esper_network *network = host_of("synth", "");
    double budget = (double)network->budget;

    (void)state;
    esper_single_close(network);
    check_same(&one, &three, "one thread and three");
    assert_true(other.weight_hash != one.weight_hash);
    assert_true(one.params <= 3000 && other.params <= 3000);
    if (!(one.flops_train > 0.97 * budget && one.flops_train < 1.03 * budget))
        fail_msg("%.0f FLOPs of %.0f", one.flops_train, budget);
    part = run_of("run_dir = part\n", 9, NULL); /* behind the search: it goes on with what was found */
    assert_true(part.stopped);
    part = run_of("", -1, "part");
    check_same(&one, &part, "stopped and resumed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_by_seed),
        cmocka_unit_test(draws_no_closed_slots),
        cmocka_unit_test(draws_what_there_is),
        cmocka_unit_test(draws_below_flops),
        cmocka_unit_test(spends_what_one_run_may),
        cmocka_unit_test(somebody_wins),
        cmocka_unit_test(stopped_it_leaves_nothing),
        cmocka_unit_test(is_the_same_search_anywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
