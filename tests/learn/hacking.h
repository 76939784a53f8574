/* Internal to the tests. Who is paid most: somebody who grows honestly, or somebody who tries to be paid for nothing in one of the
 * ways below? Up to twenty variants of each on the fast task, with slots that open again and layers that widen, and on hosts that
 * are drawn; the best of each has to stay behind. */
#ifndef ESPER_TESTS_LEARN_HACKING_H
#define ESPER_TESTS_LEARN_HACKING_H

#include "run/curriculum.h"
#include "run/learn.h"
#include "grow/rules.h"

/* name, what it does, points by which its best may be ahead of the best honest one */
#define FAMILY_LIST(X)                                                                                              \
    X(HONEST, "grows honestly", 0.0)                                                                                \
    X(LOOPS, "seeds and prunes", 0.0)                                                                               \
    X(HOARDS, "hoards", 0.0)                                                                                        \
    X(WAITS, "waits", 0.0)                                                                                          \
    X(CLINGS, "leaves on probation", 1.0) /* chance: it is the same network as a kept one */                        \
    X(SHEDS, "sheds before the end", 0.0) /* the price of what it leaned on is not to be paid */                    \
    X(LATE, "comes late", 0.0)            /* when FLOPs are few */                                                  \
    X(FAINT, "stays faint", 0.0)          /* an alpha near 0, or one that climbs for ever */                        \
    X(WIDENS, "widens for nothing", 0.0)  /* new channels that never join, or hardly */                             \
    X(CHASES, "chases luck", 0.0)         /* kept at the best reading so far, removed at any other */               \
    X(TEARS, "harms, then mends", 0.0)    /* tears out what the host leans on, and grows again */                   \
    X(STACKS, "stacks what is useless", 0.0) /* small seeds, kept so that slots open behind them */                 \
    X(ASKS, "tries for ever", 0.0)        /* trials that nothing follows from */

enum {
#define X(family, name, chance) family,
    FAMILY_LIST(X)
#undef X
        N_FAMILIES
};

enum { MOST_VARIANTS = 20, MOST_AGENTS = MOST_VARIANTS * N_FAMILIES };

static const struct {
    const char *name;
    double      chance;
} families[N_FAMILIES] = {
#define X(family, name, chance) {name, chance},
    FAMILY_LIST(X)
#undef X
};

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
    case CLINGS: /* as honest, but nothing is ever decided about */
        r.most = 1 + i % 3;
        r.rests_in = ESPER_STAGE_HOLDING;
        break;
    case SHEDS:
        r.most = 1 + i % 3;
        r.rests_in = ESPER_STAGE_HOLDING;
        r.sheds_at = 24 - r.most - i / 5 % 4; /* one at a time */
        r.speed = i % 2 == 0 ? 0 : 1;
        break;
    case LATE:
        r.start = 12 + i / N_KINDS * 2;
        r.tempo = 1;
        r.keeps_from = i % 2 == 0 ? -100.0 : 1.0;
        r.most = 1 + i % 2;
        break;
    case FAINT:
        r.most = 1 + i % 3;
        r.tempo = i % 2 == 0 ? 1 : ESPER_DECISION_MAX_TICKS;
        r.target = i % 2 == 0 ? 0.01 * (1 + i / 2 % 4) : 1.0;
        r.keeps_from = -100.0;
        break;
    case WIDENS:
        r.blueprint = "wide";
        r.place = PLACE_WIDE;
        r.most = 1 + i % 3;
        r.first_slot = i % 3;
        r.start = 1 + i / 4 * 4;
        r.rests_in = stages[i % 2 == 0 ? 0 : 3];
        break;
    case CHASES:
        r.keeps_from = -100.0;
        r.chases = true;
        r.speed = i % 3 == 0 ? 0 : 2;
        break;
    case TEARS:
        r.style = i % 2 == 0 ? ESPER_STYLE_LINEAR_MULTIPLY : ESPER_STYLE_SIGMOID_ADD;
        r.tempo = 1;
        r.tears = 1 + i % 2;
        r.most = r.tears + 1;
        r.n_slots = 1;
        r.keeps_from = 1.0;
        break;
    case ASKS: /* nothing else; or the time that is left is for growing, honestly or keeping whatever comes */
        r.tries = true;
        r.most = i % 4;
        r.start = r.most > 0 ? r.start : 0;
        r.keeps_from = i % 2 == 0 ? 1.0 : -100.0;
        break;
    default: /* STACKS */
        r.blueprint = i % 2 == 0 ? "norm" : "depthwise";
        r.place = PLACE_STACKED;
        r.n_slots = 12;
        r.tempo = 1;
        r.keeps_from = -100.0;
        break;
    }
    return r;
}

static void print_best(int family, const rules *r, double mean, double worst)
{
    printf("%-24s  best %8.3f, worst %8.3f  (%s from epoch %d, slot %d on)\n", families[family].name, mean, worst,
           r->blueprint, r->start, r->first_slot);
}

/* Adds to the means of all agents their returns on one host, the task's own (NULL) or another, over some seeds. */
static void play_host(esper_dataset *data, const char *host, const rules *list, int n_agents, int n_seeds, double share,
                      double *means)
{
    const esper_task *task = task_named("fashion_fast");
    esper_episode episodes[MOST_AGENTS];
    esper_config config;
    esper_engine *engine;
    esper_fleet *fleet;

    esper_config_init(&config);
    check_good(esper_task_configure(task, ESPER_CONFIG_IN_LEARN, &config));
    set_keys(&config, "policy = none\nstack = 1\nwiden = true\n");
    if (host != NULL)
        snprintf(config.host, sizeof(config.host), "%s", host);
    check_good(esper_single_engine(task, &config, ESPER_USE_GROW, data, 0, &engine));
    check_good(esper_fleet_open(&(esper_fleet_desc){.engine = engine, .n_envs = n_agents}, &fleet));
    for (int s = 0; s < n_seeds; s++) {
        rules_play(fleet, list, n_agents, config.epochs, 1001 + (uint64_t)s, episodes);
        for (int i = 0; i < n_agents; i++) {
            assert_true(isfinite(episodes[i].total_reward));
            means[i] += episodes[i].total_reward * share / n_seeds;
        }
    }
    esper_fleet_close(fleet);
    esper_engine_close(engine);
}

static esper_dataset *open_data(void)
{
    const esper_task *task = task_named("fashion_fast");
    esper_dataset_desc desc;
    esper_dataset *data;
    esper_config config;

    esper_config_init(&config);
    check_good(esper_task_configure(task, ESPER_CONFIG_IN_LEARN, &config));
    desc = esper_task_data(task, &config);
    if (esper_dataset_open(&desc, &data) != ESPER_OK) {
        print_message("skipped: %s\n", esper_last_error());
        skip();
    }
    return data;
}

/* Mean returns of all variants over some seeds, on the task's host and on some that are drawn; the best honest one has to be ahead
 * of all others. */
static void compare_agents(int n_variants, int n_seeds, int n_drawn)
{
    double means[MOST_AGENTS] = {0}, best[N_FAMILIES], worst[N_FAMILIES];
    int which[N_FAMILIES] = {0}, n_agents = N_FAMILIES * n_variants;
    char host[ESPER_CONFIG_TEXT_CHARS];
    rules list[MOST_AGENTS];
    esper_dataset *data = open_data();

    esper_blueprint_add_wide();
    for (int i = 0; i < n_agents; i++)
        list[i] = variant(i / n_variants, i % n_variants);
    for (int h = 0; h <= n_drawn; h++) {
        if (h > 0)
            esper_curriculum_host(ESPER_TOPOLOGY_CNN, 1001, h - 1, host);
        play_host(data, h > 0 ? host : NULL, list, n_agents, n_seeds, 1.0 / (1 + n_drawn), means);
    }
    for (int f = 0; f < N_FAMILIES; f++) {
        best[f] = -(double)INFINITY;
        worst[f] = (double)INFINITY;
        for (int i = f * n_variants; i < (f + 1) * n_variants; i++) {
            bool never_joins = f == WAITS || (f == WIDENS && list[i].rests_in != ESPER_STAGE_FOSSILIZED);

            if (never_joins) /* has gained nothing, and costs its parameters and FLOPs */
                assert_true(list[i].start == 0 ? means[i] == 0.0 : means[i] < 0.0);
            if (f == ASKS && list[i].start == 0) /* answers that nobody uses cost their FLOPs */
                assert_true(means[i] < 0.0);
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
        if (!(best[f] < best[HONEST] + families[f].chance))
            fail_msg("somebody who %s earns %g, honest growth %g", families[f].name, best[f], best[HONEST]);
    esper_dataset_close(data);
}

#endif
