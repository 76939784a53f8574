/* Run directories: how they are made and how people name them. */
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "engine/helpers.h"

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* Every test begins without runs. */
static int set_up(void **state)
{
    (void)state;
    nftw("runs", remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}

/* A run as far as names go: an events file so many seconds old, and a checkpoint if wanted. */
static void put_run(const char *dir, int age_s, int with_checkpoint)
{
    char path[ESPER_PATH_CHARS];
    struct timespec times[2] = {{.tv_sec = 1000000 - age_s}, {.tv_sec = 1000000 - age_s}};

    check_good(esper_file_make_dirs(dir));
    check_good(esper_run_path(dir, ESPER_RUN_EVENTS, path));
    check_good(esper_file_write(path, "{}\n", 3));
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    check_good(esper_run_path(dir, ESPER_RUN_CHECKPOINT, path));
    if (with_checkpoint)
        check_good(esper_file_write(path, "x", 1));
}

static void check_found(const char *text, const char *wanted)
{
    char path[ESPER_PATH_CHARS] = "";

    check_good(esper_run_dir_find(text, path));
    assert_string_equal(path, wanted);
}

static void check_not_found(const char *text, const char *words)
{
    char path[ESPER_PATH_CHARS];

    check_fails(esper_run_dir_find(text, path), ESPER_E_NOTFOUND, words);
}

/* ---- finding ---- */

static void none_there(void **state)
{
    (void)state;
    check_not_found("last", "no run below runs/|esper train");
    check_not_found("synth", "'synth' is no run|runs/");
    check_good(esper_file_make_dirs("runs/not-a-run"));
    check_not_found("last", "no run below runs/");
    check_not_found("not", "'not' is no run");
    check_not_found("runs/not-a-run", "holds no run|" ESPER_RUN_EVENTS);
}

static void by_directory(void **state)
{
    (void)state;
    put_run("runs/a-1", 0, 1);
    put_run("some/where", 0, 1);
    check_found("runs/a-1", "runs/a-1");
    check_found("./runs/a-1/", "./runs/a-1/");
    check_found("some/where", "some/where");
}

static void by_unique_prefix(void **state)
{
    (void)state;
    put_run("runs/fashion-20260101-1", 30, 1);
    put_run("runs/synth-20260101-1", 20, 1);
    check_found("f", "runs/fashion-20260101-1");
    check_found("fashion-2026", "runs/fashion-20260101-1");
    check_found("synth-20260101-1", "runs/synth-20260101-1");
    check_not_found("synth-20260101-12", "is no run");
    check_not_found("ashion", "is no run"); /* the beginning, not any part */
}

static void ambiguous_prefix_lists_them(void **state)
{
    (void)state;
    put_run("runs/synth-20260101-1", 30, 1);
    put_run("runs/synth-20260101-2", 20, 1);
    put_run("runs/other-1", 10, 1);
    check_not_found("synth", "beginning of 2 runs|synth-20260101-1|synth-20260101-2");
    assert_null(strstr(esper_last_error(), "other-1"));
    check_not_found("", "beginning of 3 runs");
}

/* Runs of `esper learn` have a policy in place of events. Who wants a network, or a policy, finds the newest of those; who wants
 * any run finds the newest of all. */
static void policies_are_found_among_their_own(void **state)
{
    char path[ESPER_PATH_CHARS];
    int lock;

    (void)state;
    put_run("runs/synth-1", 0, 1);
    check_fails(esper_run_policy_find("last", path), ESPER_E_NOTFOUND, "no run below runs/|esper learn");
    check_fails(esper_run_policy_find("runs/synth-1", path), ESPER_E_NOTFOUND,
                "runs/synth-1 is no run of `esper learn`|" ESPER_RUN_POLICY);
    check_good(esper_file_make_dirs("runs/learn-synth-1"));
    check_good(esper_file_write("runs/learn-synth-1/" ESPER_RUN_POLICY, "x", 1));
    check_good(esper_run_policy_find("last", path));
    assert_string_equal(path, "runs/learn-synth-1/" ESPER_RUN_POLICY);
    check_good(esper_run_policy_find("learn", path));
    assert_string_equal(path, "runs/learn-synth-1/" ESPER_RUN_POLICY);
    check_good(esper_run_policy_find("runs/learn-synth-1/" ESPER_RUN_POLICY, path));
    check_found("last", "runs/learn-synth-1");
    check_found("learn", "runs/learn-synth-1");
    check_found("runs/learn-s", "runs/learn-synth-1");
    check_found("synth", "runs/synth-1");
    check_good(esper_run_network_find("last", path));
    assert_string_equal(path, "runs/synth-1");
    check_good(esper_run_checkpoint_find("last", path));
    assert_string_equal(path, "runs/synth-1/" ESPER_RUN_CHECKPOINT);
    check_fails(esper_run_checkpoint_find("learn", path), ESPER_E_NOTFOUND,
                "runs/learn-synth-1 is a run of `esper learn`");
    check_fails(esper_run_policy_find("synth", path), ESPER_E_NOTFOUND, "runs/synth-1 is no run of `esper learn`");
    check_fails(esper_run_checkpoint_find("runs/learn-synth-1", path), ESPER_E_NOTFOUND,
                "is a run of `esper learn`|no network|inspect runs/learn-synth-1/" ESPER_RUN_POLICY);
    check_fails(esper_run_dir_make("runs/learn-synth-1", "synth", path), ESPER_E_CONFIG, "already holds a run");
    check_good(esper_file_write("runs/learn-synth-1/" ESPER_RUN_POLICY ".4711-0.tmp", "x", 1));
    check_good(esper_run_dir_begin("runs/learn-synth-1", "synth", "", true, &lock));
    close(lock);
    assert_int_not_equal(access("runs/learn-synth-1/" ESPER_RUN_POLICY ".4711-0.tmp", F_OK), 0);
    assert_int_equal(access("runs/learn-synth-1/" ESPER_RUN_POLICY, F_OK), 0);
}

/* With nothing but runs that learned, there is a last run, and no last network. */
static void runs_that_learned_alone(void **state)
{
    const struct timespec times[2] = {{.tv_sec = 1000000 - 20}, {.tv_sec = 1000000 - 20}};
    char path[ESPER_PATH_CHARS];

    (void)state;
    check_good(esper_file_make_dirs("runs/learn-synth-1"));
    check_good(esper_file_write("runs/learn-synth-1/" ESPER_RUN_POLICY, "x", 1));
    check_found("last", "runs/learn-synth-1");
    check_fails(esper_run_checkpoint_find("last", path), ESPER_E_NOTFOUND,
                "no run below runs/ yet that trained a network|`esper train`");
    put_run("runs/synth-1", 10, 1);
    assert_int_equal(utimensat(AT_FDCWD, "runs/learn-synth-1/" ESPER_RUN_POLICY, times, 0), 0);
    check_found("last", "runs/synth-1");
    check_good(esper_file_make_dirs("runs/apart-1"));
    check_good(esper_file_write("runs/apart-1/" ESPER_RUN_STORE, "x", 1));
    check_good(esper_file_write("runs/apart-1/" ESPER_RUN_CONFIG, "policy_cmd = ./mine\n", 20));
    check_found("apart", "runs/apart-1"); /* a program learned there */
    check_fails(esper_run_policy_find("apart", path), ESPER_E_NOTFOUND, "a program learned there");
}

static void check_taken(const char *text, const char *wanted)
{
    char path[ESPER_PATH_CHARS];

    check_good(esper_run_policy_take(text, path));
    assert_string_equal(path, wanted);
}

/* What --policy may be: a name, a file, or a run that learned. */
static void policies_are_taken_from_their_runs(void **state)
{
    char path[ESPER_PATH_CHARS];

    (void)state;
    check_good(esper_file_make_dirs("runs/learn-synth-1"));
    check_good(esper_file_write("runs/learn-synth-1/" ESPER_RUN_POLICY, "x", 1));
    check_good(esper_file_make_dirs("random"));
    check_taken("random", "random"); /* a name is a name, whatever lies there */
    check_taken("absent.safetensors", "absent.safetensors");
    check_taken("runs/learn-synth-1", "runs/learn-synth-1/" ESPER_RUN_POLICY);
    check_taken("runs/learn-synth-1//", "runs/learn-synth-1/" ESPER_RUN_POLICY);
    check_taken("runs/learn-synth-1/" ESPER_RUN_POLICY, "runs/learn-synth-1/" ESPER_RUN_POLICY);
    check_taken("last", "runs/learn-synth-1/" ESPER_RUN_POLICY);
    check_taken("learn-s", "runs/learn-synth-1/" ESPER_RUN_POLICY);
    check_taken("runs/learn-s", "runs/learn-synth-1/" ESPER_RUN_POLICY);
    check_taken("heuristik", "heuristik"); /* no run begins so: whoever opens it says what there is */
    check_taken("", "");
    check_fails(esper_run_policy_take("learned", path), ESPER_E_NOTFOUND, "does not say which|directory|'last'|file");
    check_good(esper_file_make_dirs("runs/learn-synth-2"));
    check_good(esper_file_write("runs/learn-synth-2/" ESPER_RUN_POLICY, "x", 1));
    check_fails(esper_run_policy_take("learn", path), ESPER_E_NOTFOUND, "beginning of 2 runs|learn-synth-1");
    put_run("runs/synth-1", 0, 1);
    check_taken("synth", "synth"); /* trained a network */
    check_fails(esper_run_policy_take("runs/synth-1", path), ESPER_E_NOTFOUND,
                "runs/synth-1 is a run that trained a network|`esper learn`");
    check_good(esper_file_make_dirs("outside"));
    check_fails(esper_run_policy_take("outside", path), ESPER_E_NOTFOUND,
                "outside is a directory without a " ESPER_RUN_POLICY "|`esper learn`");
    check_good(esper_file_write("outside/" ESPER_RUN_STORE, "x", 1));
    check_good(esper_file_write("outside/" ESPER_RUN_CONFIG, "lr = 1\n", 7)); /* somebody has lost the policy */
    check_fails(esper_run_policy_take("outside", path), ESPER_E_NOTFOUND, "outside is a directory without a");
    check_good(esper_file_write("outside/" ESPER_RUN_CONFIG, "policy_cmd = ./mine\n", 20));
    check_fails(esper_run_policy_take("outside", path), ESPER_E_NOTFOUND, "a program learned there|--policy-cmd");
    check_fails(esper_run_policy_find("outside", path), ESPER_E_NOTFOUND, "a program learned there|Start another run");
    check_fails(esper_run_checkpoint_find("outside", path), ESPER_E_NOTFOUND, "`esper report outside`|no network");
    check_fails(esper_run_dir_make("outside", "synth", path), ESPER_E_CONFIG, "outside already holds a run");
    check_good(esper_run_dir_find("outside", path));
}

/* A whole name wins over longer ones that begin like it. */
static void whole_name_wins(void **state)
{
    (void)state;
    put_run("runs/synth-1", 30, 1);
    for (int i = 10; i < 15; i++) {
        char dir[32];

        snprintf(dir, sizeof(dir), "runs/synth-%d", i);
        put_run(dir, i, 1);
    }
    check_found("synth-1", "runs/synth-1");
    check_found("synth-12", "runs/synth-12");
}

/* So many and so long that not all names fit into a message. */
static void very_many_runs(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        char dir[64];

        snprintf(dir, sizeof(dir), "runs/a-rather-long-name-of-a-run-%d", i);
        put_run(dir, 100 - i, 0);
    }
    check_not_found("a-", "beginning of 40 runs|a-rather-long-name");
    check_found("last", "runs/a-rather-long-name-of-a-run-39");
}

static void last_is_the_newest(void **state)
{
    (void)state;
    put_run("runs/b", 30, 1);
    put_run("runs/a", 10, 1);
    put_run("runs/c", 20, 1);
    check_good(esper_file_make_dirs("runs/newer-but-no-run"));
    check_found("last", "runs/a");
    put_run("runs/c", 5, 1); /* it wrote an event since */
    check_found("last", "runs/c");
}

static void checkpoints_are_found(void **state)
{
    char path[ESPER_PATH_CHARS];

    (void)state;
    put_run("runs/synth-1", 30, 1);
    put_run("runs/young-1", 10, 0);
    check_good(esper_run_checkpoint_find("synth", path));
    assert_string_equal(path, "runs/synth-1/" ESPER_RUN_CHECKPOINT);
    check_good(esper_run_checkpoint_find("runs/synth-1/" ESPER_RUN_CHECKPOINT, path));
    assert_string_equal(path, "runs/synth-1/" ESPER_RUN_CHECKPOINT);
    check_good(esper_run_checkpoint_find("runs/synth-1/" ESPER_RUN_EVENTS, path)); /* a file is taken at its word */
    check_fails(esper_run_checkpoint_find("young", path), ESPER_E_NOTFOUND, "runs/young-1|no checkpoint yet");
    check_fails(esper_run_checkpoint_find("last", path), ESPER_E_NOTFOUND, "runs/young-1|no checkpoint yet");
    check_fails(esper_run_checkpoint_find("nothing", path), ESPER_E_NOTFOUND, "'nothing' is no run");
}

static void checkpoint_alone_is_a_run(void **state)
{
    char path[ESPER_PATH_CHARS];

    (void)state;
    check_good(esper_file_make_dirs("carried"));
    check_good(esper_file_write("carried/" ESPER_RUN_CHECKPOINT, "x", 1));
    check_good(esper_run_checkpoint_find("carried", path));
    assert_string_equal(path, "carried/" ESPER_RUN_CHECKPOINT);
}

static void names_that_are_too_long(void **state)
{
    char text[4096], path[ESPER_PATH_CHARS];

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    check_fails(esper_run_path(text, "name", path), ESPER_E_ARG, "too long");
    check_fails(esper_run_checkpoint_find(text, path), ESPER_E_NOTFOUND, "is no run");
}

/* ---- making ---- */

static void numbered_anew(void **state)
{
    char path[3][ESPER_PATH_CHARS];

    (void)state;
    for (int i = 0; i < 3; i++) {
        check_good(esper_run_dir_make("", "synth", path[i]));
        assert_int_equal(strncmp(path[i], "runs/synth-20", 13), 0);
        assert_int_equal(access(path[i], W_OK), 0);
    }
    assert_string_equal(strrchr(path[0], '-'), "-1");
    assert_string_equal(strrchr(path[1], '-'), "-2");
    assert_string_equal(strrchr(path[2], '-'), "-3");
}

static void wanted_directory(void **state)
{
    char path[ESPER_PATH_CHARS];

    (void)state;
    check_good(esper_run_dir_make("deep/down/here", "synth", path));
    assert_string_equal(path, "deep/down/here");
    check_good(esper_run_dir_make("deep/down/here", "synth", path)); /* empty still */
}

static void directory_that_holds_a_run(void **state)
{
    char path[ESPER_PATH_CHARS];

    (void)state;
    put_run("taken", 0, 0);
    check_fails(esper_run_dir_make("taken", "synth", path), ESPER_E_CONFIG, "taken already holds a run|--resume taken");
    check_good(esper_file_make_dirs("half-taken"));
    check_good(esper_file_write("half-taken/" ESPER_RUN_CHECKPOINT, "x", 1));
    check_fails(esper_run_dir_make("half-taken", "synth", path), ESPER_E_CONFIG, "half-taken already holds a run");
}

static void put_text(const char *dir, const char *name, const char *text)
{
    char path[ESPER_PATH_CHARS];

    check_good(esper_run_path(dir, name, path));
    check_good(esper_file_write(path, text, strlen(text)));
}

/* What ended before its first checkpoint gives way to a new run; what was trained, or goes on, does not. */
static void what_never_began_gives_way(void **state)
{
    static const char started[] = "{\"v\":1,\"event\":\"run_started\"}\n",
                      trained[] = "{\"v\":1,\"event\":\"run_started\"}\n{\"v\":1,\"event\":\"epoch_ended\"}\n";
    char path[ESPER_PATH_CHARS];
    int held;

    (void)state;
    check_good(esper_file_make_dirs("unbegun"));
    put_text("unbegun", ESPER_RUN_CONFIG, "# task: synth\nlr = 1\n");
    put_text("unbegun", ESPER_RUN_EVENTS, started);
    check_good(esper_run_dir_make("unbegun", "synth", path));
    check_good(
        esper_run_dir_begin("unbegun", "synth", "lr = 1\n", true, &held)); /* from a checkpoint of another name */
    close(held);
    assert_int_equal(access("unbegun/" ESPER_RUN_EVENTS, F_OK), 0);
    check_good(esper_run_dir_begin("unbegun", "synth", "lr = 2\n", false, &held));
    close(held);
    assert_int_equal(access("unbegun/" ESPER_RUN_EVENTS, F_OK), -1);
    put_text("unbegun", ESPER_RUN_EVENTS, trained); /* its checkpoint was moved away */
    check_fails(esper_run_dir_make("unbegun", "synth", path), ESPER_E_CONFIG, "already holds a run");
}

/* A configuration alone may be a copy of somebody's: it is not replaced, unless by the same. */
static void a_copied_record_stays(void **state)
{
    int held;

    (void)state;
    check_good(esper_file_make_dirs("copied"));
    put_text("copied", ESPER_RUN_CONFIG, "# task: synth\nlr = 1\n");
    check_fails(esper_run_dir_begin("copied", "synth", "lr = 2\n", false, &held), ESPER_E_CONFIG,
                "copied/" ESPER_RUN_CONFIG " is there already");
    close(held);
    check_good(esper_run_dir_begin("copied", "synth", "lr = 1\n", false, &held));
    close(held);
}

/* Files of those names are somebody's own, and a link may lead to anything. */
static void files_of_others_stay(void **state)
{
    static const char *const names[] = {ESPER_RUN_DECISIONS, ESPER_RUN_STORE, ESPER_RUN_CONFIG, ESPER_RUN_REPORT};
    char path[ESPER_PATH_CHARS], file[ESPER_PATH_CHARS];

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        check_good(esper_file_make_dirs("mine"));
        check_good(esper_run_path("mine", names[i], file));
        check_good(esper_file_write(file, "x", 1));
        check_fails(esper_run_dir_make("mine", "synth", path), ESPER_E_CONFIG, names[i]);
        check_fails(ESPER_E_CONFIG, ESPER_E_CONFIG, "is there already");
        assert_int_equal(unlink(file), 0);
        assert_int_equal(symlink("nowhere", file), 0);
        check_fails(esper_run_dir_make("mine", "synth", path), ESPER_E_CONFIG, names[i]);
        assert_int_equal(unlink(file), 0);
    }
    check_good(esper_run_dir_make("mine", "synth", path));
}

/* What is written in place, in a run that goes on: no link of either kind. */
static void no_run_writes_through_a_link(void **state)
{
    static const char *const names[] = {ESPER_RUN_EVENTS, ESPER_RUN_DECISIONS, ESPER_RUN_STORE, ESPER_RUN_STORE "-wal"};
    char file[ESPER_PATH_CHARS];
    int held = -1;

    (void)state;
    check_good(esper_file_make_dirs("sent"));
    check_good(esper_file_write("victim", "x", 1));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (int hard = 0; hard < 2; hard++) {
            check_good(esper_run_path("sent", names[i], file));
            assert_int_equal(hard ? link("victim", file) : symlink("../victim", file), 0);
            check_fails(esper_run_dir_begin("sent", "synth", "", true, &held), ESPER_E_STATE, "is a link");
            check_fails(ESPER_E_STATE, ESPER_E_STATE, names[i]);
            close(held);
            assert_int_equal(unlink(file), 0);
        }
    check_good(esper_run_dir_begin("sent", "synth", "", true, &held));
    close(held);
}

static void directory_that_cannot_be(void **state)
{
    char path[ESPER_PATH_CHARS];

    (void)state;
    check_good(esper_file_write("a-file", "x", 1));
    check_fails(esper_run_dir_make("a-file", "synth", path), ESPER_E_IO, "a-file");
    check_fails(esper_run_dir_make("a-file/below", "synth", path), ESPER_E_IO, "a-file");
    check_good(esper_file_write("runs", "x", 1));
    check_fails(esper_run_dir_make("", "synth", path), ESPER_E_IO, "runs");
    check_not_found("last", "no run below runs/");
}

/* ---- one process at a time ---- */

static void locked_by_one(void **state)
{
    int first, second;

    (void)state;
    check_good(esper_file_make_dirs("runs/one"));
    check_good(esper_run_dir_begin("runs/one", "synth", "", true, &first));
    check_fails(esper_run_dir_begin("runs/one", "synth", "", true, &second), ESPER_E_STATE, "is in use");
    close(first);
    check_good(esper_run_dir_begin("runs/one", "synth", "", true, &second));
    close(second);
    check_fails(esper_run_dir_begin("runs/none", "synth", "", true, &first), ESPER_E_IO, "cannot be opened");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(none_there, set_up),
        cmocka_unit_test_setup(by_directory, set_up),
        cmocka_unit_test_setup(by_unique_prefix, set_up),
        cmocka_unit_test_setup(ambiguous_prefix_lists_them, set_up),
        cmocka_unit_test_setup(policies_are_found_among_their_own, set_up),
        cmocka_unit_test_setup(runs_that_learned_alone, set_up),
        cmocka_unit_test_setup(policies_are_taken_from_their_runs, set_up),
        cmocka_unit_test_setup(whole_name_wins, set_up),
        cmocka_unit_test_setup(very_many_runs, set_up),
        cmocka_unit_test_setup(last_is_the_newest, set_up),
        cmocka_unit_test_setup(checkpoints_are_found, set_up),
        cmocka_unit_test_setup(checkpoint_alone_is_a_run, set_up),
        cmocka_unit_test_setup(names_that_are_too_long, set_up),
        cmocka_unit_test_setup(numbered_anew, set_up),
        cmocka_unit_test_setup(wanted_directory, set_up),
        cmocka_unit_test_setup(directory_that_holds_a_run, set_up),
        cmocka_unit_test_setup(what_never_began_gives_way, set_up),
        cmocka_unit_test_setup(a_copied_record_stays, set_up),
        cmocka_unit_test_setup(files_of_others_stay, set_up),
        cmocka_unit_test_setup(no_run_writes_through_a_link, set_up),
        cmocka_unit_test_setup(directory_that_cannot_be, set_up),
        cmocka_unit_test_setup(locked_by_one, set_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
