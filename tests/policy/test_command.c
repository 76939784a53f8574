/* ctest: timeout=120 cost=7 */
/* A policy in another program: one that answers well, and all the ways in which one can fail. None may make us wait beyond
 * the deadline, die of SIGPIPE, or leave a process or a descriptor behind. */
#include "policy/helpers.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "policy/child.h"

enum { SHORT_MS = 300 };

static int count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

/* Each test leaves nothing behind: no block, no descriptor, no child. */
static uint64_t blocks_before;
static int descriptors_before;

static int before_each(void **state)
{
    (void)state;
    blocks_before = live_blocks();
    descriptors_before = count_descriptors();
    return 0;
}

static int after_each(void **state)
{
    (void)state;
    if (live_blocks() != blocks_before)
        fail_msg("%d blocks left behind", (int)(live_blocks() - blocks_before));
    if (count_descriptors() != descriptors_before)
        fail_msg("%d descriptors, %d before", count_descriptors(), descriptors_before);
    errno = 0;
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD)
        fail_msg("a child is left behind");
    return 0;
}

static esper_policy *open_command(const char *command, int deadline_ms)
{
    esper_policy_setup setup = plain_setup();

    setup.command = command;
    setup.deadline_ms = deadline_ms;
    return open_policy("command", &setup);
}

/* Opens, asks once for epoch 10, closes; the decision is written only on success. */
static esper_status ask_once(const char *command, int deadline_ms, esper_decision *decision)
{
    esper_policy *policy = open_command(command, deadline_ms);
    esper_status status;
    scene s;

    set_scene(&s, ESPER_TOPOLOGY_CNN);
    put_seed(&s, 0, ESPER_STAGE_HOLDING, "norm");
    memset(decision, 0x55, sizeof(*decision));
    status = esper_policy_decide(policy, &s.view, decision);
    esper_policy_close(policy);
    if (status != ESPER_OK && decision->op != 0x55555555)
        fail_msg("%s: it failed, but gave a decision", command);
    return status;
}

static void expect_failure(const char *command, esper_status expected, const char *words)
{
    uint64_t start = esper_clock_ns();
    esper_decision decision;
    esper_status status = ask_once(command, 20000, &decision);
    double seconds = (double)(esper_clock_ns() - start) / 1e9;

    if (status != expected || strstr(esper_last_error(), words) == NULL)
        fail_msg("%s: %s, \"%s\", expected %s and \"%s\"", command, esper_status_name(status), esper_last_error(),
                 esper_status_name(expected), words);
    if (strstr(esper_last_error(), "policy program '") == NULL || strstr(esper_last_error(), "epoch 10") == NULL)
        fail_msg("\"%s\" does not name the program and the epoch", esper_last_error());
    if (seconds > 10.0)
        fail_msg("%s: took %.1f s", command, seconds);
}

/* A shell program that reads a view and prints one answer. */
#define ANSWER(json) "read view; echo '" json "'"

/* ------------------------------------------------------------------------------------------------ good answers */

static void good_answers(void **state)
{
    esper_decision decision;

    (void)state;
    check_good(ask_once(ANSWER("{\"epoch\": 10, \"op\": \"wait\"}"), 0, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    assert_int_equal(decision.slot, -1);
    assert_int_equal(decision.reason, ESPER_REASON_PROGRAM);
    check_good(ask_once(
        ANSWER("{\"op\":\"germinate\",\"slot\":\"r2c0\",\"blueprint\":\"conv_heavy\",\"style\":\"linear_"
               "multiply\",\"tempo\":3,\"target\":0.5,\"birth\":\"zero\",\"reason\":\"because\",\"epoch\":10}"),
        20000, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.slot, 2);
    assert_int_equal(decision.blueprint, 7);
    assert_int_equal(decision.birth, ESPER_BIRTH_ZERO);
    assert_int_equal(decision.style, ESPER_STYLE_LINEAR_MULTIPLY);
    assert_int_equal(decision.tempo, 3);
    assert_true(decision.target == 0.5);
    assert_string_equal(decision.text, "because");
    check_good(ask_once(ANSWER("{\"epoch\":10,\"op\":\"set_alpha_target\",\"slot\":\"r0c0\",\"target\":1,\"speed\":0,"
                               "\"curve\":\"cosine\",\"blueprint\":null,\"memory\":null,\"reason\":null}"),
                        20000, &decision));
    assert_int_equal(decision.curve, ESPER_ALPHA_CHOICE_COSINE);
    assert_int_equal(decision.style, ESPER_STYLE_KEEP);
    /* An answer that comes before the question was read is one all the same; so is one in two pieces. */
    check_good(ask_once("echo '{\"epoch\":10,\"op\":\"wait\"}'; cat >/dev/null", 20000, &decision));
    check_good(
        ask_once("read view; printf '{\"epoch\":10,'; sleep 0.1; printf '\"op\":\"wait\"}\\n'", 20000, &decision));
    check_good(ask_once("read view; echo noise >&2; echo '{\"epoch\":10,\"op\":\"wait\"}'", 20000, &decision));
}

/* The view as the program sees it is JSON, and what stands there is what we know. */
static void the_view(void **state)
{
    esper_policy *policy = open_command("read -r view; printf '%s\\n' \"$view\" >view.json; "
                                        "echo '{\"epoch\":10,\"op\":\"wait\"}'; cat >/dev/null",
                                        20000);
    json_t *view, *slot, *seed;
    esper_decision decision;
    json_error_t error;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    s.view.signals.loss_delta = (double)INFINITY;
    s.view.signals.n_history = 2;
    s.view.signals.losses[1] = 0.25;
    s.slots[1].evidence = 0.5;
    put_seed(&s, 0, ESPER_STAGE_HOLDING, "norm")->contribution = 1.25;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    esper_policy_close(policy);
    view = json_load_file("view.json", 0, &error);
    if (view == NULL)
        fail_msg("view.json: %s", error.text);
    assert_int_equal(int_of(view, "protocol"), 1);
    assert_int_equal(int_of(view, "epoch"), 10);
    assert_string_equal(text_of(view, "topology"), "cnn");
    assert_true(real_of(json_object_get(view, "valid"), "accuracy") == 78);
    assert_string_equal(text_of(json_object_get(view, "signals"), "loss_delta"), "inf");
    assert_int_equal(json_array_size(json_object_get(json_object_get(view, "signals"), "losses")), 2);
    assert_int_equal(json_array_size(json_object_get(view, "slots")), N_SLOTS);
    slot = json_array_get(json_object_get(view, "slots"), 0);
    seed = json_object_get(slot, "seed");
    assert_string_equal(text_of(slot, "stage"), "holding");
    assert_true(json_is_null(json_object_get(slot, "evidence")));
    assert_string_equal(text_of(seed, "blueprint"), "norm");
    assert_true(real_of(seed, "contribution") == 1.25);
    assert_true(json_is_null(json_object_get(seed, "contribution_low")));
    assert_int_equal(json_array_size(json_object_get(slot, "legal")), 4); /* wait, set_alpha_target, prune, fossilize */
    slot = json_array_get(json_object_get(view, "slots"), 1);
    assert_true(json_is_null(json_object_get(slot, "seed")));
    assert_int_equal(json_object_size(json_object_get(slot, "blueprints")), 7);
    assert_true(json_is_null(json_object_get(view, "memory")));
    json_decref(view);
}

/* As many slots as there can be, each as long as it can be: more than a pipe holds. */
static void set_large_scene(scene *s, const char *ids[ESPER_POLICY_MAX_SLOTS])
{
    set_scene(s, ESPER_TOPOLOGY_CNN);
    s->view.n_slots = ESPER_POLICY_MAX_SLOTS;
    for (int i = 0; i < ESPER_POLICY_MAX_SLOTS; i++) {
        esper_policy_slot *slot = &s->slots[i];

        esper_policy_slot_init(slot, ESPER_TOPOLOGY_CNN, "r10c10");
        put_seed(s, i, ESPER_STAGE_HOLDING, "conv_light");
        memset(slot->seed, '\x01', sizeof(slot->seed) - 1); /* six characters each in JSON */
        slot->alpha = slot->alpha_target = slot->contribution = slot->contribution_low = -1.0 / 3.0;
        slot->contribution_high = slot->trial_gain = slot->gradient_ratio = slot->improvement_total = -1e300 / 3.0;
        slot->gradient_health = slot->evidence = slot->improvement = -1e-300 / 3.0;
        slot->params = INT64_MIN;
        for (int b = 0; b < ESPER_POLICY_BLUEPRINTS; b++)
            slot->blueprint_params[b] = INT64_MIN;
        ids[i] = slot->id;
    }
}

static esper_policy *open_large(scene *s, const char *ids[ESPER_POLICY_MAX_SLOTS], const char *command)
{
    esper_policy_setup setup = plain_setup();

    set_large_scene(s, ids);
    setup.n_slots = ESPER_POLICY_MAX_SLOTS;
    setup.slot_ids = ids;
    setup.command = command;
    return open_policy("command", &setup);
}

static void large_views(void **state)
{
    const char *ids[ESPER_POLICY_MAX_SLOTS];
    esper_policy *policy;
    esper_decision decision;
    scene s;

    (void)state;
    policy = open_large(&s, ids,
                        "while read -r view; do [ ${#view} -gt 70000 ] || exit 1; n=$((n + 1)); "
                        "echo \"{\\\"epoch\\\":$n,\\\"op\\\":\\\"wait\\\"}\"; done");
    for (s.view.epoch = 1; s.view.epoch <= 5; s.view.epoch++)
        check_good(esper_policy_decide(policy, &s.view, &decision));
    esper_policy_close(policy);
}

/* ------------------------------------------------------------------------------------------------ bad answers */

static void nonsense(void **state)
{
    static const struct {
        const char *command, *words;
    } rows[] = {
        {"read view; echo hello", "no JSON"},
        {"read view; echo", "no JSON"},
        {"read view; echo '{\"epoch\":10,\"op\":\"wait\"'", "no JSON"},
        {"read view; printf '\\377\\376{}\\n'", "no JSON"},
        {"read view; echo '[10]'", "no object"},
        {"read view; echo 10", "no JSON"},
        {ANSWER("{\"op\":\"wait\"}"), "no epoch"},
        {ANSWER("{\"epoch\":\"10\",\"op\":\"wait\"}"), "no epoch"},
        {ANSWER("{\"epoch\":9,\"op\":\"wait\"}"), "answered for epoch 9 when asked for epoch 10"},
        {ANSWER("{\"epoch\":10}"), "no op"},
        {ANSWER("{\"epoch\":10,\"op\":0}"), "no op"},
        {ANSWER("{\"epoch\":10,\"op\":\"wiat\"}"), "no op 'wiat'; did you mean 'wait'?"},
        {ANSWER("{\"epoch\":10,\"op\":\"advance\"}"), "slot is missing"},
        {ANSWER("{\"epoch\":10,\"op\":\"advance\",\"slot\":\"r7c7\"}"), "no slot 'r7c7'"},
        {ANSWER("{\"epoch\":10,\"op\":\"advance\",\"slot\":0}"), "no slot"},
        {ANSWER("{\"epoch\":10,\"op\":\"germinate\",\"slot\":\"r1c0\"}"), "blueprint is missing"},
        {ANSWER("{\"epoch\":10,\"op\":\"germinate\",\"slot\":\"r1c0\",\"blueprint\":\"x\"}"), "'x'"},
        {ANSWER("{\"epoch\":10,\"op\":\"germinate\",\"slot\":\"r1c0\",\"blueprint\":\"norm\",\"birth\":\"copy\"}"),
         "norm cannot be born by copy"},
        {ANSWER("{\"epoch\":10,\"op\":\"germinate\",\"slot\":\"r1c0\",\"blueprint\":[1]}"), "neither a text nor"},
        {ANSWER("{\"epoch\":10,\"op\":\"germinate\",\"slot\":\"r1c0\",\"blueprint\":\"norm\",\"tempo\":2.5}"), "2.5"},
        {ANSWER("{\"epoch\":10,\"op\":\"prune\",\"slot\":\"r0c0\",\"speeed\":1}"), "did you mean 'speed'?"},
        {ANSWER("{\"epoch\":10,\"op\":\"wait\",\"op\":\"wait\"}"), "duplicate"},
        {ANSWER("{\"epoch\":10,\"op\":\"wait\",\"reason\":7}"), "reason is no text"},
        {ANSWER("{\"epoch\":10,\"op\":\"wait\",\"memory\":{}}"), "memory is no text"},
        {"read view; head -c 20000 /dev/zero | tr '\\0' x | "
         "sed 's/.*/{\"epoch\":10,\"op\":\"wait\",\"memory\":\"&\"}/'; echo",
         "memory is no text of up to 16383"},
        {"head -c 300000 /dev/zero | tr '\\0' x; sleep 5", "more than 262143 bytes in one line"},
        {"cat /dev/zero", "more than 262143 bytes in one line"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        expect_failure(rows[i].command, ESPER_E_FORMAT, rows[i].words);
    expect_failure(ANSWER("{\"epoch\":10,\"op\":\"advance\",\"slot\":\"r0c0\"}"), ESPER_E_STATE,
                   "advance r0c0 needs a seed that is germinated, training or blending; r0c0 is holding");
}

/* A program that says two lines for one view is found out with the next view. */
static void too_many_answers(void **state)
{
    esper_policy *policy = open_command("while read view; do echo '{\"epoch\":10,\"op\":\"wait\"}'; "
                                        "echo '{\"epoch\":10,\"op\":\"wait\"}'; done",
                                        20000);
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    check_good(esper_policy_decide(policy, &s.view, &decision));
    s.view.epoch = 11;
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_FORMAT, "epoch 10 when asked for epoch 11");
    esper_policy_close(policy);
}

/* ------------------------------------------------------------------------------------------------ dead and deaf */

static void deaths(void **state)
{
    (void)state;
    expect_failure("exit 0", ESPER_E_IO, "exit status 0");
    expect_failure("read view; exit 3", ESPER_E_IO, "ended without an answer, exit status 3");
    expect_failure("read view; printf '{\"epoch\":10,'; exit 4", ESPER_E_IO, "exit status 4");
    expect_failure("read view; kill -9 $$", ESPER_E_IO, "ended by signal 9 (Killed)");
    expect_failure("read view; exec >&-; sleep 5", ESPER_E_IO, "closed its output, but still runs");
    expect_failure("no-such-program-at-all", ESPER_E_IO, "could not be run (exit status 127)");
}

/* A program that closes its input while the view is larger than a pipe: no SIGPIPE, with the signal at its default. */
static void closed_input(void **state)
{
    const char *ids[ESPER_POLICY_MAX_SLOTS];
    esper_decision decision;
    esper_policy *policy;
    scene s;

    (void)state;
    signal(SIGPIPE, SIG_DFL);
    policy = open_large(&s, ids, "exec <&-; sleep 5");
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_IO, "closed its input, but still runs");
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_STATE, "not asked again");
    esper_policy_close(policy);
}

/* The deadline holds for a program that is silent, that reads nothing, that is stopped, and that drips. */
static void hangs(void **state)
{
    static const char *const commands[] = {
        "read view; sleep 30",
        "sleep 30",
        "read view; kill -STOP $$",
        "read view; while :; do printf x; sleep 0.05; done",
        "trap '' TERM; read view; while :; do sleep 0.05; done",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        uint64_t start = esper_clock_ns();
        esper_decision decision;
        esper_status status = ask_once(commands[i], SHORT_MS, &decision);
        double seconds = (double)(esper_clock_ns() - start) / 1e9;

        if (status != ESPER_E_IO || strstr(esper_last_error(), "before the deadline") == NULL)
            fail_msg("%s: %s, \"%s\"", commands[i], esper_status_name(status), esper_last_error());
        if (strstr(esper_last_error(), "deadline 0.3 s") == NULL)
            fail_msg("\"%s\" does not say how long", esper_last_error());
        if (seconds < SHORT_MS / 1000.0 || seconds > 5.0)
            fail_msg("%s: took %.2f s", commands[i], seconds);
    }
}

/* A late answer is no answer, and the program is not asked again. */
static void late_answers(void **state)
{
    esper_policy *policy =
        open_command("while read view; do sleep 0.6; echo '{\"epoch\":10,\"op\":\"wait\"}'; done", SHORT_MS);
    esper_decision decision;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_IO, "no answer before the deadline");
    usleep(500000);
    check_fails(esper_policy_decide(policy, &s.view, &decision), ESPER_E_STATE, "not asked again");
    esper_policy_close(policy);
}

static pid_t read_pid(const char *path)
{
    FILE *file = fopen(path, "r");
    int pid = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d", &pid), 1);
    fclose(file);
    return pid;
}

/* State of a process ('Z' once it has ended and nobody collected it); 0 = gone. */
static char process_state(pid_t pid)
{
    char path[64], name[64], state = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*d (%63[^)]) %c", name, &state) != 2)
        state = 0;
    fclose(file);
    return state;
}

/* Whether it still runs after a moment. One that has ended may wait for whoever adopted it to collect it. */
static bool is_running(pid_t pid)
{
    for (int i = 0; i < 200; i++) {
        char state = process_state(pid);

        if (state == 0 || state == 'Z')
            return false;
        usleep(10000);
    }
    return true;
}

/* Closing ends the program and what it started, politely first. */
static void closing(void **state)
{
    esper_decision decision;
    esper_policy *policy;
    pid_t grandchild;
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    policy = open_command("sleep 30 & echo $! >pid; read view; echo '{\"epoch\":10,\"op\":\"wait\"}'; "
                          "while read view; do :; done; echo bye >farewell",
                          20000);
    check_good(esper_policy_decide(policy, &s.view, &decision));
    grandchild = read_pid("pid");
    assert_true(is_running(grandchild));
    esper_policy_close(policy);
    assert_int_equal(access("farewell", R_OK), 0); /* its input ended and it had time for the rest */
    if (is_running(grandchild))
        fail_msg("process %d is still there", (int)grandchild);
    /* Never asked at all. */
    esper_policy_close(open_command("sleep 30", 20000));
    esper_policy_close(open_command("exit 1", 20000));
    esper_policy_close(NULL);
}

/* ------------------------------------------------------------------------------------------------ memory, setup */

/* What the program gives to remember comes back with every view, also after a checkpoint, in a new process. */
static void memory(void **state)
{
    static const char counter[] =
        "while read -r view; do m=${view##*\\\"memory\\\":}; m=${m%\\}}; m=${m#\\\"}; m=${m%\\\"}; [ $m = null ] && m=0; "
        "m=$((m + 1)); echo \"{\\\"epoch\\\":10,\\\"op\\\":\\\"wait\\\",\\\"memory\\\":\\\"$m\\\",\\\"reason\\\":\\\"$m\\\"}\";"
        " done";
    esper_policy *policy = open_command(counter, 20000);
    esper_decision decision;
    char packed[256], empty[256];
    size_t bytes, n_empty = esper_policy_pack_bytes(policy);
    scene s;

    (void)state;
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    esper_policy_pack(policy, empty);
    for (int i = 1; i <= 3; i++) {
        check_good(esper_policy_decide(policy, &s.view, &decision));
        assert_int_equal(atoi(decision.text), i);
    }
    bytes = esper_policy_pack_bytes(policy);
    esper_policy_pack(policy, packed);
    esper_policy_close(policy);
    policy = open_command(counter, 20000);
    check_good(esper_policy_unpack(policy, packed, bytes));
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_string_equal(decision.text, "4");
    check_good(esper_policy_unpack(policy, packed, bytes)); /* a rollback */
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_string_equal(decision.text, "4");
    check_good(esper_policy_unpack(policy, empty, n_empty));
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_string_equal(decision.text, "1");
    esper_policy_close(policy);
}

static void setups(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_policy *policy = NULL;

    (void)state;
    check_fails(esper_policy_open("command", &setup, &policy), ESPER_E_CONFIG, "needs a program");
    setup.command = " \t";
    check_fails(esper_policy_open("command", &setup, &policy), ESPER_E_CONFIG, "needs a program");
    setup.command = "true";
    setup.deadline_ms = -1;
    check_fails(esper_policy_open("command", &setup, &policy), ESPER_E_CONFIG, "-1 ms");
    assert_null(policy);
}

/* Standard input and output that are closed here do not confuse the pipes. */
static void closed_standard_streams(void **state)
{
    esper_decision decision;
    pid_t pid;
    int status;

    (void)state;
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(0);
        close(1);
        _exit(ask_once(ANSWER("{\"epoch\":10,\"op\":\"wait\"}"), 20000, &decision) == ESPER_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ------------------------------------------------------------------------------------------------ the example */

/* examples/policy.py through a small life: germinates where evidence is, advances, keeps what is proven. */
static void the_example(void **state)
{
    esper_policy_setup setup = plain_setup();
    esper_decision decision;
    esper_policy_slot *slot;
    esper_policy *policy;
    scene s;

    (void)state;
    if (system("python3 -c 'import json' 2>/dev/null") != 0) {
        printf("skipped: no python3 here\n");
        skip();
    }
    setup.command = "exec python3 '" ESPER_SOURCE_DIR "/examples/policy.py'";
    policy = open_policy("command", &setup);
    set_scene(&s, ESPER_TOPOLOGY_CNN);
    s.view.signals.plateau_epochs = 2;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    s.view.epoch++;
    s.view.signals.plateau_epochs = 3;
    s.slots[1].evidence = 0.5;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.slot, 1);
    assert_int_equal(decision.blueprint, 1);
    assert_string_equal(decision.text, "plateau of 3 epochs");
    slot = put_seed(&s, 1, ESPER_STAGE_TRAINING, "conv_light");
    s.view.epoch++;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_ADVANCE);
    slot->stage = ESPER_STAGE_HOLDING;
    slot->contribution = 1.5;
    slot->contribution_low = 1.1;
    slot->contribution_high = 1.9;
    slot->contribution_epochs = 3;
    s.view.epoch++;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_FOSSILIZE);
    slot->contribution_low = 0.4;
    s.view.epoch++;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_WAIT);
    slot->epochs_in_stage = 10;
    s.view.epoch++;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_PRUNE);
    slot->stage = ESPER_STAGE_EMBARGOED;
    s.view.epoch++;
    check_good(esper_policy_decide(policy, &s.view, &decision));
    assert_int_equal(decision.op, ESPER_SLOT_OP_GERMINATE);
    assert_int_equal(decision.blueprint, 7); /* the next in turn: it remembers */
    esper_policy_close(policy);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, before_each, after_each)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(good_answers),
        TEST(the_view),
        TEST(large_views),
        TEST(nonsense),
        TEST(too_many_answers),
        TEST(deaths),
        TEST(closed_input),
        TEST(hangs),
        TEST(late_answers),
        TEST(closing),
        TEST(memory),
        TEST(setups),
        TEST(closed_standard_streams),
        TEST(the_example),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
