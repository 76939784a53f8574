/* ctest: timeout=240 cost=10 sealed=also driver=also */
/* Environments that decide together: what is decided for one, and what is remembered of it, has the bits that it has alone. On a
 * device all are asked at once. */
#include "learn/fleeting.h"
#include "learn/learner_internal.h"

/* Over a driver made of the host every pass takes long. */
#ifdef ESPER_TEST_DRIVER
enum { N_ENVS = 3, N_DECISIONS = 1 };
#else
enum { N_ENVS = 5, N_DECISIONS = 3 };
#endif

#define SMALL "channels = 2\nmax_steps = 1\nbatch = 4\nepochs = 3\n"

/* The largest number of environments that were asked for at once, and how often somebody was asked. */
typedef struct counter {
    school *school;
    int     n_most, n_asked;
} counter;

static esper_status count(void *context, esper_fleet_ask *asks, int n, esper_backend_stream *stream)
{
    counter *self = context;

    self->n_most = n > self->n_most ? n : self->n_most;
    self->n_asked += n;
    for (int i = 1; i < n; i++)
        assert_true(asks[i].env > asks[i - 1].env);
    return school_decide(self->school, asks, n, stream);
}

static esper_status settle(void *context, int env, const esper_env_look *look)
{
    return school_settle(((counter *)context)->school, env, look);
}

static void check_choice(const esper_learned_choice *a, const esper_learned_choice *b)
{
    assert_memory_equal(&a->action, &b->action, sizeof(a->action));
    assert_memory_equal(a->masks, b->masks, sizeof(a->masks));
    assert_memory_equal(a->log_probs, b->log_probs, sizeof(a->log_probs));
    assert_memory_equal(&a->value, &b->value, sizeof(a->value));
}

/* Two learners of one beginning: one is asked for all at once, in any order of its rows; the other for each by itself. */
static void one_by_one_and_together(void **state)
{
    school *together = calloc(1, sizeof(*together)), *alone = calloc(1, sizeof(*alone));
    esper_fleet_mind at_once, singly;
    size_t bytes;

    (void)state;
    school_open(together, SMALL, N_ENVS, 2);
    school_open(alone, SMALL, N_ENVS, 1);
    bytes = N_ENVS * together->learner->width * sizeof(float);
    at_once = esper_learner_mind(together->learner);
    singly = esper_learner_mind(alone->learner);
    check_good(esper_fleet_begin(together->stage.fleet, 0));
    check_good(esper_fleet_advance(together->stage.fleet, NULL));
    esper_learner_begin(together->learner, 0);
    esper_learner_begin(alone->learner, 0);
    for (int n = N_ENVS; n > 1; n--) { /* from the second time on there is something to remember */
        esper_fleet_ask asks[N_ENVS];

        for (int i = 0; i < n; i++)
            asks[i] = (esper_fleet_ask){.env = i + N_ENVS - n, .view = look_at(&together->stage, i + N_ENVS - n).view};
        check_good(at_once.decide(at_once.context, asks, n, NULL));
        for (int i = 0; i < n; i++) {
            esper_fleet_ask one = {.env = asks[i].env, .view = asks[i].view};

            check_good(singly.decide(singly.context, &one, 1, NULL));
            assert_int_equal(one.decision.op, asks[i].decision.op);
            assert_int_equal(one.decision.slot, asks[i].decision.slot);
            assert_int_equal(one.decision.blueprint, asks[i].decision.blueprint);
            check_choice(&together->learner->envs[asks[i].env].choice, &alone->learner->envs[asks[i].env].choice);
        }
        assert_memory_equal(together->learner->h, alone->learner->h, bytes);
        assert_memory_equal(together->learner->c, alone->learner->c, bytes);
    }
    school_close(together);
    school_close(alone);
    free(together);
    free(alone);
}

/* Episodes of a fleet, and the same alone. Where each has a thread that waits for a device, all are asked for together. */
static void in_any_company(void **state)
{
    school *c = calloc(1, sizeof(*c));
    counter counted = {.school = c};
    esper_fleet_mind mind = {.context = &counted, .decide = count, .settle = settle};
    outcome together[N_ENVS], now;
    bool behind;

    (void)state;
    school_open(c, SMALL, N_ENVS, 2);
    behind = esper_backend_width(c->stage.engine->backend, c->stage.engine->pool) > 2;
    for (int round = 0; round < 2; round++) { /* the second closes what the threads of the first have played */
        counted.n_asked = 0;
        check_good(esper_fleet_begin(c->stage.fleet, 7));
        esper_learner_begin(c->learner, 7);
        check_good(esper_fleet_play(c->stage.fleet, N_DECISIONS, true, &mind, NULL));
    }
    for (int i = 0; i < N_ENVS; i++)
        together[i] = outcome_of(&c->stage, i);
    assert_int_equal(counted.n_asked, N_ENVS * N_DECISIONS);
    if (behind)
        assert_int_equal(counted.n_most, N_ENVS);
    school_close(c);
    school_open(c, SMALL, 1, 1);
    for (int i = 0; i < (behind ? 1 : effort(N_ENVS, 2)); i++) {
        check_good(esper_fleet_begin(c->stage.fleet, 7 + (uint64_t)i));
        esper_learner_begin(c->learner, 7 + (uint64_t)i);
        check_good(esper_fleet_play(c->stage.fleet, N_DECISIONS, true, &mind, NULL));
        now = outcome_of(&c->stage, 0);
        check_same_outcome(&together[i], &now, "alone");
    }
    school_close(c);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_by_one_and_together),
        cmocka_unit_test(in_any_company),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
