/* ctest: timeout=60 */
/* A job of learning in which one rank's update comes out otherwise: all of them notice, and know who. tests/run/
 * test_learn_ranks.sh starts several; each rank then writes what it was told to parted.RANK. Alone there is nobody to part from. */
#include <string.h>

#include "base/atomic_file.h"
#include "dist/ranks.h"
#include "engine/helpers.h"
#include "run/learn.h"

enum { PARTED = 1, ROUND = 2 };

static int own_rank;

/* Its gradients are not finite in one round, so that its policy stays as it was. */
static esper_learner_fault drill(uint32_t round)
{
    return own_rank == PARTED && round == ROUND ? ESPER_LEARNER_FAULT_GRADIENT : ESPER_LEARNER_NO_FAULT;
}

static esper_status learn_together(esper_comm *comm, esper_learn_result *result_out)
{
    esper_log log = {.level = ESPER_LOG_ERROR, .stream = stderr};
    esper_config config;
    esper_learn_desc desc = {
        .task = task_named("synth"), .config = &config, .log = &log, .comm = comm, .threads = 1, .drill = drill};

    esper_config_init(&config);
    check_good(esper_task_configure(desc.task, ESPER_CONFIG_IN_LEARN, &config));
    set_keys(&config,
             "threads = 1\nbatch = 8\nchannels = 2\nblocks = 2\nmax_steps = 2\nepochs = 3\nrounds = 3\nenvs = 6\n"
             "policy_width = 8\nppo_chunk = 3\nppo_batch = 2\nppo_epochs = 2\nrun_dir = parted\n");
    return esper_learn_run(&desc, result_out);
}

static void all_know_who_parted(void **state)
{
    esper_learn_result result;
    esper_comm *comm = NULL;
    char path[32], message[1024];
    int size = 0;

    (void)state;
    assert_int_equal(ranks_begin(&comm, &own_rank, &size), 0);
    if (size == 1) {
        check_good(learn_together(comm, &result));
        assert_int_equal(result.rounds, 3);
    } else {
        check_fails(learn_together(comm, &result), ESPER_E_STATE, "round 2: rank|in: weights|policy of round 1");
        snprintf(message, sizeof(message), "%s\n", esper_last_error());
        snprintf(path, sizeof(path), "parted.%d", own_rank);
        check_good(esper_file_write(path, message, strlen(message)));
    }
    esper_comm_close(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_know_who_parted)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
