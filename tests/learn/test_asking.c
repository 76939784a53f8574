/* ctest: timeout=240 cost=10 sealed=also driver=also */
/* Environments whose policy asks for trials: episodes stay what their seeds and decisions make of them, whatever the threads and
 * whoever plays beside them; the twin is left alone; and the FLOPs of forks are paid for. */
#include "learn/fleeting.h"

/* Over a driver made of the host every pass takes long. */
#ifdef ESPER_TEST_DRIVER
#define SMALL "backend = cuda\nchannels = 2\nkernel = 1\nmax_steps = 1\nbatch = 4\ntrain_limit = 40\ntrial_steps = 1\n"
enum { N_EPISODES = 2 };
#else
#define SMALL "trial_steps = 4\n"
enum { N_EPISODES = 4 };
#endif

#define ASKING "reward = gain\ntrial_share = 1\nepochs = 8\ngate_epochs = 1\n" SMALL

enum { N_STEPS = 8 };

/* By the epoch: a trial, the seed that it found, and another trial beside it. Without `asks` it waits instead. */
typedef struct asker {
    bool asks;
    int  n_held, n_answers; /* trials; views that show one */
} asker;

static void answer_one(asker *self, const esper_policy_view *view, esper_decision *decision)
{
    int slot = (int)(view->epoch % 2);

    esper_decision_init(decision, ESPER_SLOT_OP_WAIT);
    for (int k = 0; k < view->n_slots; k++)
        self->n_answers += view->slots[k].fork_blueprint > 0;
    if (view->epoch == 4) {
        esper_decision_init(decision, ESPER_SLOT_OP_GERMINATE);
        decision->slot = 1;
        decision->blueprint = 1;
        decision->tempo = 1;
    } else if (view->epoch >= 5 && view->slots[1].stage == ESPER_STAGE_GERMINATED) {
        esper_decision_init(decision, ESPER_SLOT_OP_ADVANCE);
        decision->slot = 1;
    } else if (self->asks && view->epoch != 5 && esper_mask_legal(view, slot, ESPER_SLOT_OP_TRY)) {
        esper_decision_init(decision, ESPER_SLOT_OP_TRY);
        decision->slot = slot;
        self->n_held++;
    }
}

static esper_status answer(void *context, esper_fleet_ask *asks, int n, esper_backend_stream *stream)
{
    (void)stream;
    for (int i = 0; i < n; i++)
        answer_one(context, asks[i].view, &asks[i].decision);
    return ESPER_OK;
}

/* Episodes 0 to 3 in a fleet of so many environments. */
static asker play(const char *more, int n_envs, int n_threads, bool asks, outcome outcomes[N_EPISODES])
{
    asker self = {.asks = asks};
    esper_fleet_mind mind = {.context = &self, .decide = answer};
    char settings[512];
    stage s;

    snprintf(settings, sizeof(settings), "%s%s", ASKING, more);
    stage_open(&s, settings, n_envs, n_threads);
    for (int first = 0; first < N_EPISODES; first += n_envs) {
        check_good(esper_fleet_begin(s.fleet, (uint64_t)first));
        check_good(esper_fleet_play(s.fleet, N_STEPS, true, &mind, NULL));
        for (int i = 0; i < n_envs; i++)
            outcomes[first + i] = outcome_of(&s, i);
    }
    stage_close(&s);
    return self;
}

static void the_same_whoever_plays(void **state)
{
    outcome alone[N_EPISODES], together[N_EPISODES], again[N_EPISODES];
    asker asked = play("", 1, 1, true, alone);

    (void)state;
    assert_true(asked.n_held >= 2 * N_EPISODES && asked.n_answers > 0);
    (void)play("", N_EPISODES, 3, true, together);
    (void)play("", N_EPISODES / 2, 2, true, again);
    for (int i = 0; i < N_EPISODES; i++) {
        check_same_outcome(&alone[i], &together[i], "three threads");
        check_same_outcome(&alone[i], &again[i], "two threads");
    }
}

/* Its network is the one that asked for nothing; of what that earned it loses the price of its forks, and nothing else. */
static void only_the_price_differs(void **state)
{
    outcome asked[N_EPISODES], silent[N_EPISODES], dear[N_EPISODES];

    (void)state;
    (void)play("reward_weights = flops_price=0\n", N_EPISODES, 2, true, asked);
    (void)play("reward_weights = flops_price=0\n", N_EPISODES, 2, false, silent);
    for (int i = 0; i < N_EPISODES; i++)
        check_same_outcome(&asked[i], &silent[i], "without a price");
    (void)play("", N_EPISODES, 2, true, dear);
    (void)play("", N_EPISODES, 2, false, silent);
    for (int i = 0; i < N_EPISODES; i++) {
        assert_true(dear[i].weights == silent[i].weights);
        assert_true(dear[i].episode.total_reward < silent[i].episode.total_reward - 0.05);
    }
}

/* A policy that learns draws it among the rest, and its rounds are the same on any number of threads. */
static void a_learner_asks(void **state)
{
    outcome outcomes[2][4];

    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        school c;

        school_open(&c, SMALL "trial_share = 1\n", 4, threads);
        school_play(&c, 0);
        assert_true(c.n_decided[ESPER_SLOT_OP_TRY] > 0);
        for (int i = 0; i < 4; i++)
            outcomes[threads - 1][i] = outcome_of(&c.stage, i);
        school_close(&c);
        school_open(&c, SMALL "trial_share = 0\n", 4, threads);
        school_play(&c, 0);
        assert_int_equal(c.n_decided[ESPER_SLOT_OP_TRY], 0);
        school_close(&c);
    }
    for (int i = 0; i < 4; i++)
        check_same_outcome(&outcomes[0][i], &outcomes[1][i], "a learner's episodes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_whoever_plays),
        cmocka_unit_test(only_the_price_differs),
        cmocka_unit_test(a_learner_asks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
