/* ctest: timeout=300 cost=6 labels=tsan driver=also */
/* Runs on threads of one process, with engines beside one that they share: the weights of each alone, whatever runs beside it, forks
 * of trials and a search included; one that fails says why by itself; and nothing is left. */
#include "engine/helpers.h"

#ifdef ESPER_TEST_DRIVER
#define BACKEND "cuda"
#else
#define BACKEND "cpu"
#endif

#define ALL                                                                                                       \
    "threads = 2\nbatch = 8\nlayers = 1\nwidth = 4\nmax_steps = 16\nvalid_fraction = 0.01\ncheckpoint_every = 2\n" \
    "trial_share = 0.9\ntrial_first = 0.05\ntrial_price = 0\nblueprints = norm,lora\nbackend = " BACKEND "\n"

static const char *const settings[] = {"policy = none\n",
                                       "policy = trials\n",
                                       "policy = trials\nlr = 0.01\n",
                                       "policy = halving\n",
                                       "policy = heuristic\ngates = permissive\n",
                                       "policy = none\nhost = nonsense\n",
                                       "policy = none\nseed = 2\n"};

enum { N_RUNS = sizeof(settings) / sizeof(settings[0]), FAILS = 5 };

typedef struct one_run {
    esper_status     status;
    char             message[512];
    esper_run_result result;
} one_run;

typedef struct company {
    const char         *name; /* before the numbers of directories */
    const esper_engine *house; /* NULL: each is alone */
    one_run             runs[N_RUNS];
} company;

static esper_config config_of_run(const char *name, int run)
{
    char more[256];

    snprintf(more, sizeof(more), "run_dir = %s-%d\nepochs = %d\n%s", name, run, effort(12, 8), settings[run]);
    return config_of("synth_table", ALL, more);
}

static void carry_out(void *context, int item, esper_backend_stream *stream)
{
    company *self = context;
    one_run *run = &self->runs[item];
    esper_config config = config_of_run(self->name, item);
    esper_run_desc desc = {
        .task = task_named("synth_table"), .config = &config, .grows = true, .beside = self->house, .stream = stream};

    run->status = esper_run_train(&desc, &run->result);
    snprintf(run->message, sizeof(run->message), "%s", run->status != ESPER_OK ? esper_last_error() : "");
}

/* Opens what the first run would have, and more runs beside it. */
static esper_engine *open_house(esper_dataset **data_out)
{
    esper_config config = config_of_run("house", 0);
    esper_dataset_desc desc = esper_task_data(task_named("synth_table"), &config);
    esper_engine *house;

    check_good(esper_dataset_open(&desc, data_out));
    check_good(
        esper_single_engine(task_named("synth_table"), &config, ESPER_USE_GROW, *data_out, config.threads, &house));
    return house;
}

static void runs_together_are_runs_alone(void **state)
{
    static company alone = {.name = "alone"}, together = {.name = "together"};
    esper_dataset *data;
    esper_engine *house;
    uint64_t blocks;

    (void)state;
    for (int i = 0; i < N_RUNS; i++)
        carry_out(&alone, i, NULL);
    blocks = live_blocks(); /* what the process keeps once there has been a device is there */
    house = open_house(&data);
    together.house = house;
    esper_backend_each(house->backend, N_RUNS, carry_out, &together);
    for (int i = 0; i < N_RUNS; i++) {
        if (alone.runs[i].status != together.runs[i].status)
            fail_msg("run %d: %s alone, %s together: %s", i, esper_status_name(alone.runs[i].status),
                     esper_status_name(together.runs[i].status), together.runs[i].message);
        assert_int_equal(alone.runs[i].status != ESPER_OK, i == FAILS);
        if (alone.runs[i].result.weight_hash != together.runs[i].result.weight_hash)
            fail_msg("run %d (%s): weights %016llx alone, %016llx together", i, settings[i],
                     (unsigned long long)alone.runs[i].result.weight_hash,
                     (unsigned long long)together.runs[i].result.weight_hash);
    }
    assert_string_equal(alone.runs[FAILS].message, together.runs[FAILS].message);
    esper_engine_close(house);
    esper_dataset_close(data);
    assert_int_equal(live_blocks(), blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_together_are_runs_alone)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
