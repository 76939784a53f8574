/* ctest: timeout=240 cost=30 sealed=also */
/* Environments beside each other: an episode has the same bits in whatever company, one that panics goes back alone, what fails says
 * so, and rewards add up. */
#include "fault/alloc.h"
#include "learn/fleeting.h"

static const uint64_t seeds[MAX_ENVS] = {11, 12, 13, 14, 15, 16, 17, 18};

/* ------------------------------------------------------------------------------------------------ the same bits */

/* Each seed in a fleet of its own. */
static void play_alone(const char *more, outcome out[MAX_ENVS])
{
    stage s;

    stage_open(&s, more, 1, 1);
    for (int i = 0; i < MAX_ENVS; i++) {
        check_good(play_own(&s, &seeds[i], 1));
        out[i] = outcome_of(&s, 0);
    }
    stage_close(&s);
}

static void own_decisions_in_any_company(void **state)
{
    static const int picks[3] = {5, 0, 3}, threads[] = {2, 1, 4};
    outcome alone[MAX_ENVS], now;
    int n_germinated = 0;
    char what[64];

    (void)state;
    play_alone("", alone);
    for (int i = 0; i < MAX_ENVS; i++)
        n_germinated += alone[i].episode.n_germinated;
    assert_true(n_germinated > MAX_ENVS / 2); /* or there is little to compare */
    assert_true(alone[0].weights != alone[1].weights);
    for (int k = 0; k < effort(3, 1); k++) {
        uint64_t some[3] = {seeds[picks[0]], seeds[picks[1]], seeds[picks[2]]};
        stage s;

        stage_open(&s, "", MAX_ENVS, threads[k]);
        check_good(play_own(&s, seeds, MAX_ENVS));
        for (int i = 0; i < MAX_ENVS; i++) {
            snprintf(what, sizeof(what), "environment %d of 8, %d threads", i, threads[k]);
            now = outcome_of(&s, i);
            check_same_outcome(&alone[i], &now, what);
        }
        check_good(play_own(&s, some, 3)); /* the fleet's second round, with fewer environments */
        assert_int_equal(esper_fleet_envs(s.fleet), 3);
        for (int i = 0; i < 3; i++) {
            snprintf(what, sizeof(what), "environment %d of 3, %d threads", i, threads[k]);
            now = outcome_of(&s, i);
            check_same_outcome(&alone[picks[i]], &now, what);
        }
        stage_close(&s);
    }
}

/* Decisions are drawn by the run's seed, the number of the episode and the step, not by who plays beside. */
static void drawn_decisions_in_any_company(void **state)
{
    static const struct {
        int first, n_envs, n_threads;
    } cases[] = {{0, 8, 2}, {5, 3, 2}, {0, 8, 4}, {2, 3, 1}, {4, 1, 1}, {7, 1, 1}};
    const int n_cases = effort((int)(sizeof(cases) / sizeof(cases[0])), 2);
    school *c = calloc(1, sizeof(*c));
    outcome alone[MAX_ENVS], now;
    char what[64];

    (void)state;
    school_open(c, "", 1, 1);
    for (int i = 0; i < MAX_ENVS; i++) {
        school_play(c, (uint64_t)i);
        alone[i] = outcome_of(&c->stage, 0);
    }
    assert_true(c->n_decided[ESPER_SLOT_OP_GERMINATE] > 4);
    school_close(c);
    for (int k = 0; k < n_cases; k++) {
        school_open(c, "", cases[k].n_envs, cases[k].n_threads);
        school_play(c, (uint64_t)cases[k].first);
        for (int i = 0; i < cases[k].n_envs; i++) {
            snprintf(what, sizeof(what), "episode %d, %d environments, %d threads", cases[k].first + i, cases[k].n_envs,
                     cases[k].n_threads);
            now = outcome_of(&c->stage, i);
            check_same_outcome(&alone[cases[k].first + i], &now, what);
        }
        school_close(c);
    }
    free(c);
}

static void seeds_are_told_apart(void **state)
{
    (void)state;
    for (uint64_t run = 1; run < 4; run++)
        for (uint64_t a = 0; a < 200; a++) {
            assert_true(esper_fleet_seed(run, a) >> 63 == 1); /* none that people count: 1, 2, 3 ... */
            for (uint64_t b = 0; b < a; b++)
                assert_true(esper_fleet_seed(run, a) != esper_fleet_seed(run, b));
            assert_true(esper_fleet_seed(run, a) != esper_fleet_seed(run + 1, a));
        }
}

/* A network that grows has all its decisions: an episode is as many epochs as were asked for, whatever they cost and whatever a run
 * may spend. */
static void episodes_are_whole(void **state)
{
    static const uint64_t four[] = {1, 2, 3, 4};
    int n_grown = 0;
    stage s;

    (void)state;
    stage_open(&s, "epochs = 12\nschedule = hold\nflops = 1\n", 4, 1);
    check_good(play_own(&s, four, 4));
    for (int env = 0; env < 4; env++) {
        const esper_network *network = look_at(&s, env).network;

        assert_int_equal(esper_fleet_episode(s.fleet, env).n_steps, 12);
        assert_int_equal(network->cursor.step, 12 * 5);
        n_grown += esper_fleet_episode(s.fleet, env).n_germinated > 0;
    }
    assert_true(n_grown > 0);
    stage_close(&s);
}

/* ------------------------------------------------------------------------------------------------ one that panics */

static void one_goes_back_alone(void **state)
{
    outcome plain[3], now[3];
    stage s;

    (void)state;
    stage_open(&s, "", 3, 2);
    check_good(play_own(&s, seeds, 3));
    for (int i = 0; i < 3; i++)
        plain[i] = outcome_of(&s, i);
    esper_fleet_inject(s.fleet, 1, "12:host:param:nan");
    check_good(play_own(&s, seeds, 3));
    for (int i = 0; i < 3; i++)
        now[i] = outcome_of(&s, i);
    check_same_outcome(&plain[0], &now[0], "the environment before");
    check_same_outcome(&plain[2], &now[2], "the environment behind");
    assert_int_equal(now[1].episode.n_rollbacks, 1);
    assert_false(now[1].episode.stopped);
    assert_int_equal(now[1].episode.n_steps, EPOCHS);
    assert_true(now[1].weights != plain[1].weights); /* a batch was passed over */
    assert_true(now[1].episode.total_reward < plain[1].episode.total_reward);
    check_good(play_own(&s, seeds, 3)); /* a drill is for one episode */
    now[1] = outcome_of(&s, 1);
    check_same_outcome(&plain[1], &now[1], "the environment itself, in the next round");
    stage_close(&s);
}

static void one_is_stopped_alone(void **state)
{
    static const char limit[] = "max_rollbacks = 1\n";
    outcome plain[3], now[3];
    stage s;

    (void)state;
    stage_open(&s, limit, 3, 2);
    check_good(play_own(&s, seeds, 3));
    for (int i = 0; i < 3; i++)
        plain[i] = outcome_of(&s, i);
    esper_fleet_inject(s.fleet, 1, "7:host:param:nan,13:host:param:nan");
    check_good(play_own(&s, seeds, 3));
    for (int i = 0; i < 3; i++)
        now[i] = outcome_of(&s, i);
    check_same_outcome(&plain[0], &now[0], "the environment before");
    check_same_outcome(&plain[2], &now[2], "the environment behind");
    assert_true(now[1].episode.stopped);
    assert_in_range(now[1].episode.n_steps, 1, EPOCHS - 1);
    assert_null(look_at(&s, 1).view);
    check_good(esper_fleet_play(s.fleet, 1, false, NULL, NULL)); /* it stays where it is */
    assert_int_equal(esper_fleet_episode(s.fleet, 1).n_steps, now[1].episode.n_steps);
    stage_close(&s);
}

/* ------------------------------------------------------------------------------------------------ one that fails */

static void failures_speak(void **state)
{
    uint64_t too_many[MAX_ENVS + 1] = {0};
    uint64_t live = live_blocks();
    outcome plain, now;
    stage s;

    (void)state;
    stage_open(&s, "", 3, 2);
    check_good(play_own(&s, seeds, 3));
    plain = outcome_of(&s, 2);
    esper_fleet_inject(s.fleet, 1, "nonsense");
    check_fails(play_own(&s, seeds, 3), ESPER_E_CONFIG, "environment 1 (seed 12): |inject: 'nonsense'");
    check_good(play_own(&s, seeds, 3));
    now = outcome_of(&s, 2);
    check_same_outcome(&plain, &now, "after a round that failed");
    check_fails(esper_fleet_begin_at(s.fleet, too_many, MAX_ENVS + 1), ESPER_E_ARG, "9 seeds for a fleet of 3");
    check_fails(esper_fleet_begin_at(s.fleet, too_many, 0), ESPER_E_ARG, "0 seeds");
    stage_close(&s);
    stage_open(&s, "policy = scripted\ndecisions = absent.txt\n", 2, 1);
    check_fails(esper_fleet_begin(s.fleet, 0), ESPER_E_NOTFOUND, "environment 0|absent.txt");
    stage_close(&s);
    assert_int_equal(live_blocks(), live);
}

/* Decisions for environments that have none to make are passed over; one that is due cannot be made twice. */
static void decisions_are_made_once(void **state)
{
    esper_env *env;
    stage s;

    (void)state;
    stage_open(&s, "", 1, 1);
    check_good(esper_env_open(&(esper_env_desc){.engine = s.engine, .seed = s.config.seed}, &env));
    check_fails(esper_env_decide(env, NULL, false), ESPER_E_STATE, "has not been advanced");
    check_good(esper_env_advance(env));
    check_good(esper_env_decide(env, NULL, false));
    check_fails(esper_env_decide(env, NULL, false), ESPER_E_STATE, "has not been advanced");
    esper_env_close(env);
    stage_close(&s);
}

/* ------------------------------------------------------------------------------------------------ without memory */

static esper_status try_fleet(void *context)
{
    stage *s = context;
    esper_fleet *fleet = NULL;
    esper_status status = esper_fleet_open(&(esper_fleet_desc){.engine = s->engine, .n_envs = 2}, &fleet);

    if (status == ESPER_OK)
        status = esper_fleet_begin_at(fleet, seeds, 2);
    if (status == ESPER_OK)
        status = esper_fleet_advance(fleet, NULL);
    for (int step = 0; status == ESPER_OK && step < 3; step++)
        status = esper_fleet_play(fleet, 1, false, NULL, NULL);
    if (status == ESPER_OK)
        status = esper_fleet_play(fleet, 1, true, NULL, NULL);
    esper_fleet_close(fleet);
    return status;
}

static void leaves_nothing_without_memory(void **state)
{
    stage s;

    (void)state;
    stage_open(&s, "max_steps = 1\n", 1, 1);
    check_good(try_fleet(&s)); /* the engine keeps the plans */
    fail_each("a fleet", try_fleet, NULL, &s, 31);
    stage_close(&s);
}

/* ------------------------------------------------------------------------------------------------ rewards */

/* What growth_forfeit says, kept beside it. */
typedef struct account {
    double earned, segment;
    int    n_segment, n_forfeits;
} account;

static void check_parts(const esper_reward *reward)
{
    double sum = 0.0;

    for (int part = 0; part < ESPER_N_REWARD_PARTS; part++) {
        assert_true(isfinite(reward->part[part]));
        sum += reward->part[part];
    }
    if (!(fabs(sum - reward->total) <= 1e-12 * fmax(1.0, fabs(sum))))
        fail_msg("parts add up to %.17g, the reward is %.17g", sum, reward->total);
}

/* After an advance or the finish, which followed a decision if `decided`. */
static void keep_account(const stage *s, int env, bool decided, account *a)
{
    esper_env_look look = look_at(s, env);
    const esper_reward *reward = esper_growth_reward(look.growth);

    if (decided) {
        check_parts(reward);
        a->earned += reward->total;
        a->segment += reward->total;
        a->n_segment++;
    }
    if (look.n_rollbacks > 0) {
        if (a->n_segment > 0)
            a->earned += ESPER_GROWTH_PENALTY - a->segment;
        a->n_forfeits += a->n_segment > 0;
        a->segment = 0.0;
        a->n_segment = 0;
    }
    if (!same_real(a->earned, esper_growth_account_of(look.growth).total_reward))
        fail_msg("environment %d: a return of %.17g, expected %.17g", env,
                 esper_growth_account_of(look.growth).total_reward, a->earned);
}

/* In every mode, under a sanitizer in some. Environment 1 goes back twice: before anybody could be blamed, and in the midst. Environment 2 is stopped by it. */
static void rewards_add_up(void **state)
{
    (void)state;
    for (int mode = 0; mode < ESPER_N_REWARD_MODES; mode += effort(1, 3)) {
        account a[3] = {{0}};
        bool due[3] = {false};
        char more[96];
        stage s;

        snprintf(more, sizeof(more), "max_rollbacks = 2\nreward = %s\n", esper_reward_mode_name(mode));
        stage_open(&s, more, 3, 1);
        esper_fleet_inject(s.fleet, 0,
                           "27:host:param:nan"); /* on the way to the last decision, which is not to blame */
        esper_fleet_inject(s.fleet, 1, "2:host:param:nan,17:host:param:nan");
        esper_fleet_inject(s.fleet, 2, "7:host:param:nan,8:host:param:nan,13:host:param:nan");
        check_good(esper_fleet_begin_at(s.fleet, seeds, 3));
        check_good(esper_fleet_advance(s.fleet, NULL));
        for (int step = 0;; step++) {
            for (int i = 0; i < 3; i++) {
                keep_account(&s, i, due[i], &a[i]);
                due[i] = look_at(&s, i).view != NULL;
            }
            if (step == EPOCHS)
                break;
            check_good(step + 1 < EPOCHS ? esper_fleet_play(s.fleet, 1, false, NULL, NULL)
                                         : esper_fleet_play(s.fleet, 1, true, NULL, NULL));
        }
        assert_int_equal(a[0].n_forfeits, 1);
        assert_int_equal(a[1].n_forfeits, 1);
        assert_int_equal(esper_fleet_episode(s.fleet, 1).n_rollbacks, 2);
        assert_true(esper_fleet_episode(s.fleet, 2).stopped);
        assert_true(a[2].n_forfeits > 0);
        assert_true(esper_fleet_episode(s.fleet, 2).total_reward <= ESPER_GROWTH_PENALTY);
        stage_close(&s);
    }
}

/* By gain. A network that waits is its own twin; one with a seed that stays aside computes what its twin computes, bit for bit, and
 * pays for its parameters once; one that went back before anything grew has gained nothing, either. */
static void twins_are_alike(void **state)
{
    static const uint64_t same[3] = {7, 7, 7};
    const esper_blueprint *blueprint;
    esper_decision decisions[3];
    double paid = 0.0;
    stage s;

    (void)state;
    stage_open(&s, "reward = gain\nincubation = aside\n", 3, 2);
    check_good(esper_blueprint_find(ESPER_TOPOLOGY_CNN, "conv_light", &blueprint));
    esper_fleet_inject(s.fleet, 2, "7:host:param:nan");
    check_good(esper_fleet_begin_at(s.fleet, same, 3));
    check_good(esper_fleet_advance(s.fleet, NULL));
    for (int step = 0; step < EPOCHS; step++) {
        for (int i = 0; i < 3; i++)
            esper_decision_init(&decisions[i], ESPER_SLOT_OP_WAIT);
        if (step == 1) {
            esper_decision_init(&decisions[0], ESPER_SLOT_OP_GERMINATE);
            decisions[0].blueprint = blueprint->index;
        } else if (step == 2) {
            esper_decision_init(&decisions[0], ESPER_SLOT_OP_ADVANCE);
        }
        decisions[0].slot = step == 1 || step == 2 ? 0 : decisions[0].slot;
        check_good((step + 1 < EPOCHS ? esper_fleet_advance : esper_fleet_finish)(s.fleet, decisions));
        for (int i = 0; i < 3; i++)
            assert_true(esper_growth_reward(look_at(&s, i).growth)->part[ESPER_PART_GAIN] == 0.0);
        paid += esper_growth_reward(look_at(&s, 0).growth)->part[ESPER_PART_RENT];
    }
    assert_int_equal(look_at(&s, 0).network->slots.slot[0].stage, ESPER_STAGE_TRAINING);
    assert_true(paid < 0.0 && same_real(esper_fleet_episode(s.fleet, 0).total_reward, paid));
    assert_true(esper_fleet_episode(s.fleet, 1).total_reward == 0.0);
    assert_true(esper_fleet_episode(s.fleet, 2).n_rollbacks == 1);
    assert_true(same_real(esper_fleet_episode(s.fleet, 2).total_reward, ESPER_GROWTH_PENALTY));
    stage_close(&s);
}

/* A seed that joins: conv_light in r0c0 from the second decision on. In environments that are no gardeners nothing grows. */
static void grow_one(stage *s, int n, const bool *gardener)
{
    static const int ops[EPOCHS] = {ESPER_SLOT_OP_GERMINATE, ESPER_SLOT_OP_ADVANCE, ESPER_SLOT_OP_ADVANCE};
    const esper_blueprint *blueprint;
    esper_decision decisions[MAX_ENVS];

    check_good(esper_blueprint_find(ESPER_TOPOLOGY_CNN, "conv_light", &blueprint));
    check_good(esper_fleet_advance(s->fleet, NULL));
    for (int step = 0; step < EPOCHS; step++) {
        for (int i = 0; i < n; i++) {
            esper_decision_init(&decisions[i], gardener[i] ? (esper_slot_op)ops[step] : ESPER_SLOT_OP_WAIT);
            decisions[i].slot = decisions[i].op == ESPER_SLOT_OP_WAIT ? -1 : 0;
            decisions[i].tempo = 1;
            if (decisions[i].op == ESPER_SLOT_OP_GERMINATE)
                decisions[i].blueprint = blueprint->index;
        }
        check_good((step + 1 < EPOCHS ? esper_fleet_advance : esper_fleet_finish)(s->fleet, decisions));
    }
}

/* A network that grew is paid by what it has over the network of its seed in which nothing did, to the last digit. */
static void gain_is_over_nothing(void **state)
{
    static const uint64_t same[2] = {7, 7};
    static const bool gardener[2] = {true, false};
    double gain, params;
    esper_episode grown, bare;
    stage s;

    (void)state;
    stage_open(&s, "reward = gain\nreward_weights = flops_price=0\ngate_epochs = 1\n", 2, 2);
    check_good(esper_fleet_begin_at(s.fleet, same, 2));
    grow_one(&s, 2, gardener);
    grown = esper_fleet_episode(s.fleet, 0);
    bare = esper_fleet_episode(s.fleet, 1);
    assert_true(grown.params > bare.params && look_at(&s, 0).network->slots.slot[0].alpha.value > 0.0);
    params = esper_reward_doublings((double)grown.params, (double)bare.params);
    gain = grown.accuracy_final - bare.accuracy_final;
    if (!(fabs(grown.total_reward - (gain - 0.5 * params)) < 1e-9) ||
        (gain == 0.0 && !is_brief())) /* narrow ones may come to the same */
        fail_msg("%g points over nothing, %g doublings: %.17g is paid", gain, params, grown.total_reward);
    assert_true(bare.total_reward == 0.0);
    stage_close(&s);
}

/* Episodes of two seeds: the second time their twins are looked up, and the bits are the same. One that went back is not written
 * down; nor does it look up. */
static void twins_are_trained_once(void **state)
{
    static const bool gardener[2] = {true, true};
    outcome first[2], again;
    stage s;

    (void)state;
    stage_open_seeds(&s, "reward = gain\ngate_epochs = 1\n", 2, 2, 2);
    for (int turn = 0; turn < 3; turn++) {
        if (turn == 1)
            esper_fleet_inject(s.fleet, 0, "2:host:param:nan");
        check_good(esper_fleet_begin(s.fleet, (uint64_t)turn * 2));
        grow_one(&s, 2, gardener);
        assert_int_equal(s.engine->n_networks, turn == 0   ? 4
                                               : turn == 1 ? 3
                                                           : 2); /* those with a twin that is trained */
        for (int i = 0; i < 2; i++) {
            again = outcome_of(&s, i);
            if (turn == 0)
                first[i] = again;
            else if (turn == 2)
                check_same_outcome(&first[i], &again, "an episode of a seed that was there before");
        }
        if (turn == 1)
            assert_int_equal(esper_fleet_episode(s.fleet, 0).n_rollbacks, 1);
    }
    stage_close(&s);
}

/* FLOPs beside the steps have the price of those that are steps: of two seeds that stay aside, the one whose weights were chosen
 * among draws costs as much more. */
static void births_have_their_price(void **state)
{
    static const uint64_t same[2] = {7, 7};
    const esper_blueprint *blueprint;
    esper_decision decisions[2];
    double paid[2], begun, flops, draws, params;
    stage s;

    (void)state;
    stage_open(&s, "reward = gain\nincubation = aside\n", 2, 1);
    check_good(esper_blueprint_find(ESPER_TOPOLOGY_CNN, "conv_light", &blueprint));
    check_good(esper_fleet_begin_at(s.fleet, same, 2));
    check_good(esper_fleet_advance(s.fleet, NULL));
    begun = (double)EPOCHS * s.engine->steps_per_epoch * (double)look_at(&s, 0).network->step_cost;
    for (int step = 0; step < EPOCHS; step++) {
        for (int i = 0; i < 2; i++) {
            esper_decision_init(&decisions[i], step == 1   ? ESPER_SLOT_OP_GERMINATE
                                               : step == 2 ? ESPER_SLOT_OP_ADVANCE
                                                           : ESPER_SLOT_OP_WAIT);
            decisions[i].slot = step == 1 || step == 2 ? 0 : -1;
            if (step != 1)
                continue;
            decisions[i].blueprint = blueprint->index;
            decisions[i].birth = i == 0 ? ESPER_BIRTH_OWN : ESPER_BIRTH_FIRST;
        }
        check_good((step + 1 < EPOCHS ? esper_fleet_advance : esper_fleet_finish)(s.fleet, decisions));
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(look_at(&s, i).network->slots.slot[0].stage, ESPER_STAGE_TRAINING);
        paid[i] = esper_fleet_episode(s.fleet, i).total_reward;
    }
    draws = (double)(look_at(&s, 1).network->cursor.spent - look_at(&s, 0).network->cursor.spent);
    params = esper_reward_doublings((double)esper_growth_params(look_at(&s, 0).growth),
                                    (double)esper_fleet_episode(s.fleet, 0).params_host);
    flops = begun * exp2(-2.0 * paid[0] - params); /* a doubling costs half a point */
    assert_true(draws >= ESPER_BIRTH_DRAWS * begun / EPOCHS / s.engine->steps_per_epoch && paid[0] < 0.0);
    if (!(fabs(paid[0] - paid[1] - 0.5 * log2((flops + draws) / flops)) < 1e-9))
        fail_msg("own weights %.17g, chosen ones %.17g: %g of %g FLOPs are not paid", paid[0], paid[1], draws, flops);
    stage_close(&s);
}

/* What is learned from is what was paid: steps of the rollout add up to the return, forfeits and penalties included. */
static void rollouts_agree(void **state)
{
    school *c = calloc(1, sizeof(*c));
    const esper_rollout *rollout;

    (void)state;
    school_open(c, "max_rollbacks = 2\n", 4, 2);
    esper_fleet_inject(c->stage.fleet, 0, "27:host:param:nan");
    esper_fleet_inject(c->stage.fleet, 1, "2:host:param:nan,17:host:param:nan");
    esper_fleet_inject(c->stage.fleet, 2, "7:host:param:nan,8:host:param:nan,13:host:param:nan");
    school_play(c, 0);
    rollout = esper_learner_rollout(c->learner);
    for (int env = 0; env < 4; env++) {
        esper_episode episode = esper_fleet_episode(c->stage.fleet, env);
        double sum = 0.0;

        assert_int_equal(rollout->n_stored[env], episode.n_steps);
        for (int t = 0; t < rollout->n_stored[env]; t++)
            for (int part = 0; part < ESPER_N_REWARD_PARTS; part++)
                sum += rollout->parts[esper_rollout_at(rollout, env, t) * ESPER_N_REWARD_PARTS + (size_t)part];
        if (!(fabs(sum - episode.total_reward) < 1e-9))
            fail_msg("environment %d: steps add up to %.17g, the return is %.17g", env, sum, episode.total_reward);
    }
    assert_int_equal(rollout->n_rollbacks_asked, rollout->n_rollbacks_applied + rollout->n_rollbacks_lost);
    assert_int_equal(rollout->n_rollbacks_lost, 1); /* environment 1, in its first epoch */
    assert_true(rollout->n_rollbacks_applied >= 3);
    school_close(c);
    free(c);
}

static void times_are_kept(void **state)
{
    esper_fleet_times before, after;
    stage s;

    (void)state;
    stage_open(&s, "", 2, 1);
    check_good(play_own(&s, seeds, 2));
    before = esper_fleet_times_of(s.fleet);
    assert_true(before.train > 0.0 && before.valid > 0.0 && before.act > 0.0 && before.open > 0.0);
    assert_true(before.train + before.valid + before.act + before.open <= before.wall);
    assert_true(before.train + before.valid + before.act + before.open > 0.5 * before.wall); /* whoever else is busy */
    check_good(play_own(&s, seeds, 2)); /* episodes that are gone still count */
    after = esper_fleet_times_of(s.fleet);
    assert_true(after.train > before.train && after.open > before.open && after.act > before.act);
    stage_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_decisions_in_any_company),
        cmocka_unit_test(drawn_decisions_in_any_company),
        cmocka_unit_test(seeds_are_told_apart),
        cmocka_unit_test(episodes_are_whole),
        cmocka_unit_test(one_goes_back_alone),
        cmocka_unit_test(one_is_stopped_alone),
        cmocka_unit_test(failures_speak),
        cmocka_unit_test(decisions_are_made_once),
        cmocka_unit_test(leaves_nothing_without_memory),
        cmocka_unit_test(rewards_add_up),
        cmocka_unit_test(twins_are_alike),
        cmocka_unit_test(gain_is_over_nothing),
        cmocka_unit_test(twins_are_trained_once),
        cmocka_unit_test(births_have_their_price),
        cmocka_unit_test(rollouts_agree),
        cmocka_unit_test(times_are_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
