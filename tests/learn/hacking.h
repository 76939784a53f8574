/* Internal to the tests. Who is paid most: somebody who grows honestly, or somebody who seeds and prunes in a loop, hoards
 * parameters, waits, or leaves seeds on probation? Up to twenty variants of each on the fast task, the best of which has to stay
 * behind. */
#ifndef ESPER_TESTS_LEARN_HACKING_H
#define ESPER_TESTS_LEARN_HACKING_H

#include "run/learn.h"
#include "grow/rules.h"

enum { HONEST, LOOPS, HOARDS, WAITS, CLINGS, N_FAMILIES };

enum { MOST_VARIANTS = 20, MOST_AGENTS = MOST_VARIANTS * N_FAMILIES };

static const char *const family_names[N_FAMILIES] = {"honest", "seeds and prunes", "hoards", "waits",
                                                     "leaves on probation"};

/* Points by which a seed on probation may be ahead of a kept one: chance, as it is the same network. */
#define CHANCE 1.0

/* Small and large ones, useful and useless. */
static const char *const kinds[] = {"norm", "conv_light", "conv_heavy", "attention", "depthwise"};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static rules base_rules(int i)
{
    return (rules){.blueprint = kinds[i % N_KINDS],
                   .style = ESPER_STYLE_SIGMOID_ADD,
                   .tempo = 3 + i % 3,
                   .first_slot = i / N_KINDS % 6,
                   .n_slots = 6,
                   .start = 1 + i % 3,
                   .most = 1000,
                   .rests_in = ESPER_STAGE_FOSSILIZED};
}

static rules variant(int family, int i)
{
    static const int stages[] = {ESPER_STAGE_TRAINING, ESPER_STAGE_BLENDING, ESPER_STAGE_HOLDING,
                                 ESPER_STAGE_GERMINATED};
    rules r = base_rules(i);

    switch (family) {
    case HONEST: /* keeps what proves itself, at once or for five epochs, removes what does not, and sows a few seeds at most */
        r.keeps_from = 1.0;
        r.keeps_after = i % 2 == 0 ? 5 : 0;
        r.prunes_in = ESPER_STAGE_HOLDING;
        r.prunes_after = 7;
        r.most = 1 + i % 3;
        break;
    case LOOPS: /* never keeps: a seed is removed in one of its stages, sooner or later */
        r.keeps_from = (double)INFINITY;
        r.prunes_in = stages[i % 4];
        r.prunes_after = i / 4 % 4;
        r.speed = i % 3 == 0 ? 0 : 3;
        r.rests_in = r.prunes_in;
        break;
    case HOARDS: /* a seed in every slot; kept whatever it is worth, or never decided about */
        r.n_slots = 6;
        r.keeps_from = i % 2 == 0 ? -100.0 : (double)INFINITY;
        break;
    case WAITS: /* nothing at all, or a seed that never joins the stream */
        r.start = i == 0 ? 0 : 1 + i / 4 * 4;
        r.most = 1;
        r.rests_in = i % 2 == 0 ? ESPER_STAGE_GERMINATED : ESPER_STAGE_TRAINING;
        break;
    default: /* as honest, but nothing is ever decided about */
        r.most = 1 + i % 3;
        r.rests_in = ESPER_STAGE_HOLDING;
        break;
    }
    return r;
}

static void print_best(int family, const rules *r, double mean, double worst)
{
    printf("%-20s  best %8.3f, worst %8.3f  (%s from epoch %d, slot %d on)\n", family_names[family], mean, worst,
           r->blueprint, r->start, r->first_slot);
}

/* Mean returns of all variants over some seeds; the best honest one has to be ahead of all others. */
static void compare_agents(int n_variants, int n_seeds)
{
    const esper_task *task = task_named("fashion_fast");
    double means[MOST_AGENTS] = {0}, best[N_FAMILIES], worst[N_FAMILIES];
    int which[N_FAMILIES] = {0}, n_agents = N_FAMILIES * n_variants;
    rules list[MOST_AGENTS];
    esper_episode episodes[MOST_AGENTS];
    esper_dataset_desc data_desc;
    esper_dataset *data;
    esper_config config;
    esper_engine *engine;
    esper_fleet *fleet;

    esper_config_init(&config);
    check_good(esper_task_configure(task, ESPER_CONFIG_IN_LEARN, &config));
    set_keys(&config, "policy = none\n");
    data_desc = esper_task_data(task, &config);
    if (esper_dataset_open(&data_desc, &data) != ESPER_OK) {
        print_message("skipped: %s\n", esper_last_error());
        skip();
    }
    check_good(esper_single_engine(task, &config, ESPER_USE_GROW, data, 0, &engine));
    check_good(esper_fleet_open(&(esper_fleet_desc){.engine = engine, .n_envs = n_agents}, &fleet));
    for (int i = 0; i < n_agents; i++)
        list[i] = variant(i / n_variants, i % n_variants);
    for (int s = 0; s < n_seeds; s++) {
        rules_play(fleet, list, n_agents, config.epochs, 1001 + (uint64_t)s, episodes);
        for (int i = 0; i < n_agents; i++) {
            assert_true(isfinite(episodes[i].total_reward));
            means[i] += episodes[i].total_reward / n_seeds;
            if (i / n_variants == WAITS) /* what never joins has gained nothing, and costs its parameters */
                assert_true(list[i].start == 0 ? episodes[i].total_reward == 0.0 : episodes[i].total_reward < 0.0);
        }
    }
    for (int f = 0; f < N_FAMILIES; f++) {
        best[f] = -(double)INFINITY;
        worst[f] = (double)INFINITY;
        for (int i = f * n_variants; i < (f + 1) * n_variants; i++) {
            if (means[i] > best[f]) {
                best[f] = means[i];
                which[f] = i;
            }
            worst[f] = fmin(worst[f], means[i]);
        }
        print_best(f, &list[which[f]], best[f], worst[f]);
    }
    assert_true(best[WAITS] == 0.0 && best[HONEST] > 5.0);
    for (int f = HONEST + 1; f < N_FAMILIES; f++)
        if (!(best[f] < best[HONEST] + (f == CLINGS ? CHANCE : 0.0)))
            fail_msg("somebody who %s earns %g, honest growth %g", family_names[f], best[f], best[HONEST]);
    esper_fleet_close(fleet);
    esper_engine_close(engine);
    esper_dataset_close(data);
}

#endif
