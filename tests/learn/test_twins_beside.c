/* ctest: timeout=240 cost=8 driver=only */
/* On a device a thread more trains what an environment is held against, while that trains: the same rewards and weights as where one
 * thread does both. */
#include "learn/fleeting.h"

enum { N_ENVS = 2, N_EPOCHS = 4 };

/* A seed that is in the stream from its first step on, so that a network and its twin part early. */
#define JOINING                                                                                                     \
    "backend = cuda\nchannels = 2\nkernel = 1\nmax_steps = 2\nbatch = 4\nepochs = 4\ntrain_limit = 40\nreward = gain\n" \
    "valid_fraction = 0.3\nincubation = straight\npolicy = scripted\ndecisions = beside.txt\n"

static void write_decisions(void)
{
    FILE *file = fopen("beside.txt", "w");

    assert_non_null(file);
    assert_true(fputs("1 r0c0 germinate blueprint=norm tempo=1\n2 r0c0 advance\n", file) >= 0);
    fclose(file);
}

/* An episode on one thread. */
static esper_status play_alone(void *context, int env, esper_backend_stream *stream)
{
    stage *s = context;
    esper_decision decision;

    ESPER_TRY(esper_fleet_renew(s->fleet, env, 5 + (uint64_t)env, stream));
    for (int i = 0; i <= N_EPOCHS; i++) {
        if (i > 0)
            ESPER_TRY(esper_growth_ask((esper_growth *)(uintptr_t)look_at(s, env).growth, &decision));
        ESPER_TRY(esper_fleet_move(s->fleet, env, i > 0 ? &decision : NULL, i == N_EPOCHS, stream));
    }
    return ESPER_OK;
}

static void same_as_on_one_thread(void **state)
{
    const uint64_t seeds[N_ENVS] = {5, 6};
    outcome beside[N_ENVS], alone;
    stage s;

    (void)state;
    write_decisions();
    stage_open(&s, JOINING, N_ENVS, 1);
    for (int round = 0; round < 2; round++) /* those who helped in the first have left */
        check_good(play_own(&s, seeds, N_ENVS));
    for (int i = 0; i < N_ENVS; i++)
        beside[i] = outcome_of(&s, i);
    check_good(esper_fleet_each(s.fleet, NULL, play_alone, &s));
    for (int i = 0; i < N_ENVS; i++) {
        alone = outcome_of(&s, i);
        assert_int_equal(alone.episode.n_germinated, 1);
        check_same_outcome(&beside[i], &alone, "on one thread");
        assert_true(alone.episode.total_reward != 0.0);
    }
    stage_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_on_one_thread)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
