/* ctest: timeout=120 cost=25 */
/* Out of memory while a network grows: opening, validating and every end of an epoch of a seed's whole life. A call that fails
 * leaves slots, weights and state as they were, so that it can be made again; in the end it is the life that nothing happened
 * to. And a decision log without room: the run goes on, and its decisions wait. */
#include <signal.h>
#include <sys/resource.h>
#include <xxhash.h>

#include "base/file.h"
#include "grow/growing.h"

#define LIFE                                                                                            \
    "1 r0c0 germinate blueprint=conv_light style=gated_gate tempo=2\n2 r0c0 advance\n3 r0c1 try\n" \
    "13 r0c0 advance\n"                                                                                 \
    "16 r0c0 advance\n17 r0c0 set_alpha_target target=0.5 speed=2\n20 r0c0 prune\n"                     \
    "21 r0c1 germinate blueprint=conv_light tempo=1\n22 r0c1 advance\n"

#define ASKING "trial_share = 1\ntrial_steps = 1\n"

/* From the fourth epoch to the eleventh the seed learns aside, and each is like the third. */
enum { LAST_EPOCH = 24, QUIET_FROM = 4, QUIET_TO = 11 };

static esper_status try_open(garden *g)
{
    ESPER_TRY(esper_single_open(task_named("synth"), &g->config, ESPER_USE_GROW, &g->network));
    ESPER_TRY(esper_growth_open(g->network, NULL, NULL, &g->growth));
    ESPER_TRY(esper_guarded_open(g->network));
    return esper_growth_attach(g->growth, &(esper_growth_records){.decisions = "open.jsonl"});
}

static void opens_or_leaves_nothing(void **state)
{
    garden *g = calloc(1, sizeof(*g));
    uint64_t live = live_blocks(), nth = 0;
    esper_status status;

    (void)state;
    write_file("script.txt", LIFE);
    g->config = config_of("synth", GROWING, "policy = scripted\ndecisions = script.txt\n");
    do {
        nth += (uint64_t)effort(1, 3);
        esper_mem_fail_at(nth);
        status = try_open(g);
        esper_mem_fail_at(0);
        if (status != ESPER_OK && status != ESPER_E_NOMEM)
            fail_msg("allocation %" PRIu64 " failed: %s (%s)", nth, esper_status_name(status), esper_last_error());
        if (g->network != NULL)
            garden_close(g);
        g->growth = NULL;
        g->network = NULL;
        if (live_blocks() != live)
            fail_msg("allocation %" PRIu64 " failed: blocks are left behind", nth);
    } while (status != ESPER_OK);
    print_message("open: %" PRIu64 " allocations failed in turn\n", nth - 1);
    assert_true(nth > 20);
    free(g);
}

/* Slots, weights, moments, buffers, the program and what growth remembers. */
static uint64_t hash_all(const garden *g)
{
    const esper_slab *slab = &g->network->slab;
    uint8_t *memory = calloc(1, g->network->companion.bytes);
    uint64_t hash = esper_slots_hash(&g->network->slots);

    g->network->companion.pack(g->network->companion.context, memory);
    hash = XXH64(memory, g->network->companion.bytes - sizeof(double), hash); /* the last are the FLOPs spent */
    hash = slab_hash(slab, hash);
    hash = XXH64(&g->network->program, sizeof(g->network->program), hash);
    for (int r = 0; r < slab->n_regions; r++)
        hash = XXH64(&esper_optim_group(g->network->optim, 0, r)->t, sizeof(uint32_t), hash);
    free(memory);
    return hash;
}

static void check_failure(esper_status status, const garden *g, uint64_t before, const char *what, uint64_t nth)
{
    if (status != ESPER_E_NOMEM)
        fail_msg("epoch %u: %s, allocation %" PRIu64 ": %s (%s)", g->network->cursor.epoch + 1, what, nth,
                 esper_status_name(status), esper_last_error());
    if (hash_all(g) != before)
        fail_msg("epoch %u: %s, allocation %" PRIu64 " failed (%s): something has changed",
                 g->network->cursor.epoch + 1, what, nth, esper_last_error());
}

/* Every allocation of the call fails once; returns how many that were. */
static uint64_t validate_hard(garden *g, esper_tally *valid)
{
    uint64_t before = hash_all(g), nth = 1;
    esper_status status;

    for (;; nth++) {
        esper_mem_fail_at(nth);
        status = esper_growth_validate(g->growth, NULL, NULL, valid);
        esper_mem_fail_at(0);
        if (status == ESPER_OK)
            return nth - 1;
        check_failure(status, g, before, "validation", nth);
    }
}

static uint64_t end_hard(garden *g)
{
    uint64_t before = hash_all(g), nth = 1;
    esper_status status;

    for (;; nth++) {
        esper_mem_fail_at(nth);
        status = esper_growth_end_epoch(g->growth, &g->last);
        esper_mem_fail_at(0);
        if (status == ESPER_OK)
            return nth - 1;
        check_failure(status, g, before, "end", nth);
        check_good(esper_checkpoint_save(g->network, "before.safetensors")); /* it asks again */
    }
}

static void fails_whole_or_not_at_all(void **state)
{
    static const char *const incubations[] = {"incubation = aside\n" ASKING, "incubation = straight\n" ASKING};

    (void)state;
    for (int i = 0; i < effort(2, 1); i++) {
        garden *hard = calloc(1, sizeof(*hard)), *easy = calloc(1, sizeof(*easy));
        uint64_t n_validate = 0, n_end = 0;

        garden_open(hard, incubations[i], LIFE, NULL);
        garden_open(easy, incubations[i], LIFE, NULL);
        while (hard->network->cursor.epoch < LAST_EPOCH) {
            uint32_t epoch = hard->network->cursor.epoch + 1;
            esper_tally valid;

            check_good(try_epoch(easy));
            if (epoch >= QUIET_FROM && epoch <= QUIET_TO) {
                check_good(try_epoch(hard));
                continue;
            }
            train_epoch(hard);
            n_validate += validate_hard(hard, &valid);
            hard->last = measure_epoch(hard);
            n_end += end_hard(hard);
            esper_network_next_epoch(hard->network);
            if (hash_all(hard) != hash_all(easy))
                fail_msg("after epoch %u the two differ", hard->network->cursor.epoch);
        }
        check_stage(hard, 1, ESPER_STAGE_TRAINING);
        print_message("%s%" PRIu64 " failed allocations in validations, %" PRIu64 " in ends of epochs\n",
                      incubations[i], n_validate, n_end);
        assert_true(n_validate > 20 && n_end > 20);
        garden_close(hard);
        garden_close(easy);
        free(hard);
        free(easy);
    }
}

/* ------------------------------------------------------------------------------------------------ no room for the log */

static void set_limit(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static rlim_t size_of(const char *path)
{
    size_t bytes;
    char *text;

    check_good(esper_file_read(path, 1 << 24, &text, &bytes));
    esper_mem_free(text);
    return (rlim_t)bytes;
}

static void check_log(const char *path, const char *wanted_path, const char *what)
{
    char *is, *wanted;
    size_t n, m;

    check_good(esper_file_read(path, 1 << 24, &is, &n));
    check_good(esper_file_read(wanted_path, 1 << 24, &wanted, &m));
    if (n != m || memcmp(is, wanted, n) != 0)
        fail_msg("%s: %s has %zu bytes, %s %zu, or other ones", what, path, n, wanted_path, m);
    esper_mem_free(is);
    esper_mem_free(wanted);
}

/* A decision that finds no room is acted on as any other. Its line waits, and comes into the file when there is room. */
static void decisions_wait_for_room(void **state)
{
    static const char script[] = "2 r0c0 germinate blueprint=conv_light\n";
    garden *g = calloc(1, sizeof(*g)), *easy = calloc(1, sizeof(*easy));
    uint64_t n_waiting, n_logged;
    esper_status status, still_full;
    struct rlimit old;
    rlim_t bytes;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    garden_open(easy, "", script, "room.jsonl");
    grow_until(easy, 2);
    garden_open(g, "", script, "full.jsonl");
    grow_until(g, 1);
    train_epoch(g);
    g->last = measure_epoch(g);
    bytes = size_of("full.jsonl");
    n_logged = esper_growth_account_of(g->growth).n_logged;
    set_limit(bytes + 10);
    status = esper_growth_end_epoch(g->growth, &g->last);
    still_full = esper_growth_write_log(g->growth);
    n_waiting = esper_growth_account_of(g->growth).n_waiting;
    set_limit(old.rlim_cur); /* before anything is checked: a limit that stays makes all that follows fail */
    check_good(status);
    check_fails(still_full, ESPER_E_IO, "full.jsonl");
    check_stage(g, 0, ESPER_STAGE_GERMINATED);
    assert_true(n_waiting > 0);
    assert_int_equal(esper_growth_account_of(g->growth).n_logged - n_logged, n_waiting);
    assert_int_equal(size_of("full.jsonl"), bytes); /* nothing of a line stays there */
    check_good(esper_growth_write_log(g->growth));
    assert_int_equal(esper_growth_account_of(g->growth).n_waiting, 0);
    check_log("full.jsonl", "room.jsonl", "when there is room");
    esper_network_next_epoch(g->network);
    assert_int_equal(hash_all(g), hash_all(easy));
    garden_close(easy);
    garden_close(g);
    free(easy);
    free(g);
}

typedef struct filler {
    struct rlimit old;
    uint32_t epoch;
    rlim_t left; /* bytes of the log when the disk became full */
} filler;

/* From this epoch on the disk is full: the log has no room for its next entry. */
static void fill_disk(void *context, const esper_run_view *view)
{
    filler *self = context;

    if (view->network->cursor.epoch == self->epoch && view->network->cursor.batch == 1) {
        self->left = size_of("full/" ESPER_RUN_DECISIONS);
        set_limit(self->left + 10);
    }
}

/* It ends as the run that had room, says what is not saved, and is gone on with from what was. */
static void a_run_goes_on_without_room(void **state)
{
    esper_config config = config_of("synth", GROWING "epochs = 6\n", "policy = scripted\ndecisions = script.txt\n"),
                 nothing;
    filler filling = {.epoch = 3};
    esper_run_observer observer = {.context = &filling, .step = fill_disk};
    esper_run_desc desc = {.task = task_named("synth"), .config = &config, .grows = true};
    esper_run_result whole, result;
    esper_status status;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    write_file("script.txt", "1 r0c0 germinate blueprint=conv_light\n2 r0c0 advance\n");
    esper_config_init(&nothing);
    set_keys(&config, "run_dir = room\n");
    check_good(esper_run_train(&desc, &whole));
    assert_string_equal(whole.unwritten, "");
    set_keys(&config, "run_dir = full\n");
    desc.observer = &observer;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &filling.old), 0);
    status = esper_run_train(&desc, &result);
    set_limit(filling.old.rlim_cur);
    check_good(status);
    assert_true(filling.left > 0);
    assert_int_equal(size_of("full/" ESPER_RUN_DECISIONS), filling.left);
    assert_true(filling.left < size_of("room/" ESPER_RUN_DECISIONS));
    assert_int_equal(result.weight_hash, whole.weight_hash);
    if (strstr(result.unwritten, "its weights are not saved, nor the last") == NULL)
        fail_msg("what is not saved is told as \"%s\"", result.unwritten);
    desc = (esper_run_desc){.config = &nothing, .resume = "full", .grows = true};
    check_good(esper_run_train(&desc, &result));
    assert_string_equal(result.unwritten, "");
    assert_int_equal(result.weight_hash, whole.weight_hash);
    check_log("full/" ESPER_RUN_DECISIONS, "room/" ESPER_RUN_DECISIONS, "gone on with");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_or_leaves_nothing),
        cmocka_unit_test(fails_whole_or_not_at_all),
        cmocka_unit_test(decisions_wait_for_room),
        cmocka_unit_test(a_run_goes_on_without_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
