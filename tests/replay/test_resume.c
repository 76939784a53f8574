/* ctest: timeout=120 cost=14 */
/* A run that was stopped and resumed is the unbroken run, bit for bit: weights, moments, norm buffers, position, and the
 * epochs it told about. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "engine/helpers.h"

enum { EPOCHS = 3, STEPS_PER_EPOCH = 5, MAX_RECORDS = 64 };

/* ---- what a run left on disk ---- */

/* Everything but what names the place or the time: tensors, cursor, tally, hashes of both files are the same. */
static void check_same_state(const char *path_a, const char *path_b)
{
    static const char *const notes[] = {"task",  "kernels",   "seed",  "cursor",
                                        "tally", "last_step", "optim", "weight_hash"};
    esper_safetensors *a, *b;

    check_good(esper_safetensors_open(path_a, &a));
    check_good(esper_safetensors_open(path_b, &b));
    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++)
        assert_string_equal(esper_safetensors_note_find(a, notes[i]), esper_safetensors_note_find(b, notes[i]));
    assert_int_equal(esper_safetensors_count(a), esper_safetensors_count(b));
    for (size_t i = 0; i < esper_safetensors_count(a); i++) {
        const esper_safetensors_tensor *x = esper_safetensors_at(a, i), *y = esper_safetensors_at(b, i);

        assert_string_equal(x->name, y->name);
        assert_int_equal(x->n_bytes, y->n_bytes);
        if (memcmp(x->data, y->data, (size_t)x->n_bytes) != 0)
            fail_msg("%s differs between %s and %s", x->name, path_a, path_b);
    }
    esper_safetensors_close(a);
    esper_safetensors_close(b);
}

/* All events of a run; the caller frees the array. */
static json_t *events_of(const char *run_dir)
{
    char path[ESPER_PATH_CHARS], *text, *rest, *line;
    json_t *events = json_array();
    size_t bytes;

    check_good(esper_run_path(run_dir, ESPER_RUN_EVENTS, path));
    check_good(esper_file_read(path, 1 << 24, &text, &bytes));
    rest = text;
    while ((line = strsep(&rest, "\n")) != NULL && *line != '\0') {
        json_t *event = json_loads(line, JSON_REJECT_DUPLICATES, NULL);

        if (event == NULL)
            fail_msg("%s: no JSON: %s", path, line);
        if (json_integer_value(json_object_get(event, "seq")) != (json_int_t)json_array_size(events))
            fail_msg("%s: event %zu has the number %lld", path, json_array_size(events),
                     (long long)json_integer_value(json_object_get(event, "seq")));
        json_array_append_new(events, event);
    }
    esper_mem_free(text);
    return events;
}

/* The epoch_ended events, without what the clock says. */
static json_t *epochs_of(const char *run_dir)
{
    static const char *const of_the_clock[] = {"seq", "time", "samples_per_s", "seconds"};
    json_t *events = events_of(run_dir), *epochs = json_array(), *event;
    size_t i;

    json_array_foreach(events, i, event) {
        if (strcmp(json_string_value(json_object_get(event, "event")), "epoch_ended") != 0)
            continue;
        for (size_t k = 0; k < sizeof(of_the_clock) / sizeof(of_the_clock[0]); k++)
            json_object_del(event, of_the_clock[k]);
        json_array_append(epochs, event);
    }
    json_decref(events);
    return epochs;
}

static void check_same_epochs(const char *run_a, const char *run_b)
{
    json_t *a = epochs_of(run_a), *b = epochs_of(run_b);

    assert_int_equal(json_array_size(a), EPOCHS);
    if (!json_equal(a, b)) {
        char *text_a = json_dumps(a, JSON_INDENT(1)), *text_b = json_dumps(b, JSON_INDENT(1));

        print_message("%s\n%s\n", text_a, text_b);
        free(text_a);
        free(text_b);
        fail_msg("the epochs of %s and %s differ", run_a, run_b);
    }
    json_decref(a);
    json_decref(b);
}

static int count_events(const char *run_dir, const char *name)
{
    json_t *events = events_of(run_dir), *event;
    size_t i;
    int n = 0;

    json_array_foreach(events, i, event)
        n += strcmp(json_string_value(json_object_get(event, "event")), name) == 0;
    json_decref(events);
    return n;
}

/* The event of a resumption tells where the run came from, and what it is from here on. */
static void check_resumed_from(const char *run_dir, const char *path)
{
    json_t *events = events_of(run_dir), *event;
    char place[ESPER_PATH_CHARS], *config;
    esper_checkpoint checkpoint;
    size_t i, bytes;

    check_good(esper_run_path(run_dir, ESPER_RUN_CONFIG, place));
    check_good(esper_file_read(place, 1 << 20, &config, &bytes));
    check_good(esper_checkpoint_init(checkpoint_of(run_dir, place), &checkpoint));
    json_array_foreach(events, i, event) {
        if (strcmp(json_string_value(json_object_get(event, "event")), "run_resumed") != 0)
            continue;
        assert_string_equal(json_string_value(json_object_get(event, "path")), path);
        assert_string_equal(json_string_value(json_object_get(event, "kernels")), checkpoint.kernels);
        assert_int_equal(json_integer_value(json_object_get(event, "threads")), 1);
        assert_string_equal(json_string_value(json_object_get(event, "config")),
                            strchr(config, '\n') + 1); /* behind the line that names the task */
    }
    esper_checkpoint_fini(&checkpoint);
    esper_mem_free(config);
    json_decref(events);
}

static void check_same_results(const esper_run_result *a, const esper_run_result *b)
{
    if (a->weight_hash != b->weight_hash)
        fail_msg("weights %016" PRIx64 " and %016" PRIx64, a->weight_hash, b->weight_hash);
    if (a->loss_test != b->loss_test || a->acc_test != b->acc_test)
        fail_msg("test loss %a and %a, accuracy %g and %g", a->loss_test, b->loss_test, a->acc_test, b->acc_test);
    if (a->last.loss_train != b->last.loss_train || a->last.loss_valid != b->last.loss_valid ||
        a->last.lr != b->last.lr || a->last.grad_norm != b->last.grad_norm || a->last.acc_train != b->last.acc_train)
        fail_msg("last epoch: losses %a, %a and %a, %a", a->last.loss_train, a->last.loss_valid, b->last.loss_train,
                 b->last.loss_valid);
}

/* ---- stop and resume ---- */

static esper_config in_dir(const esper_config *config, const char *run_dir)
{
    esper_config copy = *config;
    char line[64];

    snprintf(line, sizeof(line), "run_dir = %s\n", run_dir);
    set_keys(&copy, line);
    return copy;
}

/* Stops after k steps, again after as many more as `again` says (< 0: not again), and goes on to the end. */
static void check_broken_run(const char *task, const esper_config *config, const esper_run_result *whole, int k,
                             int again)
{
    esper_config nothing;
    esper_run_result part, end;
    char name[64], path_a[ESPER_PATH_CHARS], path_b[ESPER_PATH_CHARS];
    esper_config mine;

    snprintf(name, sizeof(name), "%s-%d-%d", task, k, again);
    mine = in_dir(config, name);
    esper_config_init(&nothing);
    check_good(run_steps(task, &mine, NULL, k, &part));
    assert_true(part.stopped);
    if (again >= 0) {
        check_good(run_steps(NULL, &nothing, name, again, &part));
        assert_true(part.stopped);
    }
    check_good(run_steps(NULL, &nothing, name, -1, &end));
    assert_false(end.stopped);
    assert_string_equal(end.run_dir, name);
    check_same_results(whole, &end);
    check_same_state(checkpoint_of(whole->run_dir, path_a), checkpoint_of(name, path_b));
    check_same_epochs(whole->run_dir, name);
    assert_int_equal(count_events(name, "run_started"), 1);
    assert_int_equal(count_events(name, "run_resumed"), again >= 0 ? 2 : 1);
}

/* Mid-epoch, at an epoch's end, right after it, right before the end. */
static void check_stops(const char *task, const char *settings, const char *more)
{
    static const int stops[] = {1, 3, 4, 5, 6, 10, 14};
    esper_config config = config_of(task, settings, more), mine;
    esper_run_result whole;
    char name[64];
    uint64_t live = live_blocks();

    assert_int_equal(STEPS_PER_EPOCH, 5); /* what the stops above are made for */
    assert_int_equal(EPOCHS, 3);
    snprintf(name, sizeof(name), "%s-whole", task);
    mine = in_dir(&config, name);
    check_good(run_steps(task, &mine, NULL, -1, &whole));
    assert_int_equal(whole.last.epoch, EPOCHS);
    for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++)
        check_broken_run(task, &config, &whole, stops[i], -1);
    check_broken_run(task, &config, &whole, 2, 4); /* twice: in the first epoch, then in the second */
    check_broken_run(task, &config, &whole, 1, 1);
    assert_int_equal(live_blocks(), live);
}

static void cnn_resumes_exactly(void **state)
{
    (void)state;
    check_stops("synth", SMALL_CNN, "crop = 2\nflip = true\ncutout = 5\nschedule = cosine\nwarmup = 0.5\n");
}

static void transformer_resumes_exactly(void **state)
{
    (void)state;
    check_stops("synth_text", SMALL_TEXT, "dropout = 0.2\nschedule = cosine\n");
}

/* ---- stops while it evaluates ---- */

/* Asks a run to stop in the midst of its nth evaluation. */
typedef struct eval_stopper {
    int                   n_left;
    volatile sig_atomic_t stop;
} eval_stopper;

static void stop_in_evaluation(void *context, const esper_run_view *view, esper_split split, double part)
{
    eval_stopper *self = context;

    (void)view;
    (void)split;
    if (part == 0.0)
        self->n_left--;
    else if (self->n_left == 0)
        self->stop = 1;
}

static esper_run_result stop_evaluation(const char *run_dir, int nth)
{
    eval_stopper stopping = {.n_left = nth};
    esper_run_observer observer = {.context = &stopping, .evaluation = stop_in_evaluation};
    esper_config all = config_of("synth", SMALL_CNN, ""), config = in_dir(&all, run_dir);
    esper_run_desc desc = {
        .task = task_named("synth"), .config = &config, .observer = &observer, .stop = &stopping.stop};
    esper_run_result result;

    check_good(esper_run_train(&desc, &result));
    assert_true(result.stopped);
    return result;
}

/* The epoch is trained and not ended; a resumed run begins with its validation. */
static void stops_in_validation(void **state)
{
    static const char *const names[] = {"valid-1", "valid-2", "valid-3"};
    esper_config all = config_of("synth", SMALL_CNN, ""), mine = in_dir(&all, "valid-whole"), nothing;
    esper_run_result whole, part, end;
    char path_a[ESPER_PATH_CHARS], path_b[ESPER_PATH_CHARS];

    (void)state;
    esper_config_init(&nothing);
    check_good(run_steps("synth", &mine, NULL, -1, &whole));
    for (int i = 0; i < EPOCHS; i++) {
        part = stop_evaluation(names[i], i + 1);
        assert_int_equal(part.cursor.epoch, i);
        assert_int_equal(part.cursor.batch, STEPS_PER_EPOCH);
        assert_int_equal(part.last.epoch, i);
        check_good(run_steps(NULL, &nothing, names[i], -1, &end));
        check_same_results(&whole, &end);
        check_same_state(checkpoint_of("valid-whole", path_a), checkpoint_of(names[i], path_b));
        check_same_epochs("valid-whole", names[i]);
    }
}

/* All epochs are saved, and only the test is left: resumed, it is made; once. */
static void stops_in_test(void **state)
{
    esper_run_result part = stop_evaluation("tested", EPOCHS + 1), end;
    esper_config nothing;

    (void)state;
    esper_config_init(&nothing);
    assert_int_equal(part.cursor.epoch, EPOCHS);
    assert_int_equal(part.last.epoch, EPOCHS);
    assert_true(isnan(part.acc_test));
    check_good(run_steps(NULL, &nothing, "tested", -1, &end));
    assert_false(end.stopped);
    assert_int_equal(end.weight_hash, part.weight_hash);
    assert_true(end.acc_test >= 0.0);
    check_fails(run_steps(NULL, &nothing, "tested", -1, &end), ESPER_E_STATE, "3 epochs|esper eval");
}

/* A stop that comes with the last step is met by the validation. */
static void stop_at_the_very_end(void **state)
{
    esper_config config = config_of("synth", SMALL_CNN, "run_dir = very-end\n");
    esper_run_result result;

    (void)state;
    check_good(run_steps("synth", &config, NULL, EPOCHS * STEPS_PER_EPOCH, &result));
    assert_true(result.stopped);
    assert_int_equal(result.last.epoch, EPOCHS - 1);
    assert_int_equal(result.cursor.batch, STEPS_PER_EPOCH);
}

/* ---- what may change, and what may not ---- */

/* A run stopped in its second epoch, and the same run unbroken. */
static esper_run_result make_stopped(const char *name)
{
    char more[64];
    esper_config config;
    esper_run_result result;

    snprintf(more, sizeof(more), "run_dir = %s\n", name);
    config = config_of("synth", SMALL_CNN, more);
    check_good(run_steps("synth", &config, NULL, STEPS_PER_EPOCH + 2, &result));
    assert_true(result.stopped);
    return result;
}

static esper_run_result make_whole(const char *name, const char *keys)
{
    char more[128];
    esper_config config;
    esper_run_result result;

    snprintf(more, sizeof(more), "run_dir = %s\n%s", name, keys);
    config = config_of("synth", SMALL_CNN, more);
    check_good(run_steps("synth", &config, NULL, -1, &result));
    return result;
}

static esper_status resume_with(const char *task, const char *run, const char *keys, esper_run_result *result)
{
    esper_config config;

    esper_config_init(&config);
    set_keys(&config, keys);
    return run_steps(task, &config, run, -1, result);
}

static void threads_may_change(void **state)
{
    esper_run_result whole = make_whole("threads-whole", ""), end;

    (void)state;
    make_stopped("threads");
    check_good(resume_with(NULL, "threads", "threads = 3\nlog_level = warn\ncheckpoint_every = 0\n", &end));
    check_same_results(&whole, &end);
}

static void epochs_may_change(void **state)
{
    esper_run_result whole = make_whole("epochs-whole", "epochs = 4\n"), end;

    (void)state;
    make_stopped("epochs");
    check_good(resume_with(NULL, "epochs", "epochs = 4\n", &end));
    check_same_results(&whole, &end); /* the rate is constant: more epochs change nothing but the end */
    assert_int_equal(end.last.epoch, 4);
}

/* Saying what is so already is no change, nor is naming the task. */
static void same_values_may_be_said(void **state)
{
    esper_run_result end;

    (void)state;
    make_stopped("same");
    check_good(resume_with("synth", "same", "lr = 0.05\nseed = 1\nbatch = 8\n", &end));
    assert_false(end.stopped);
}

static void other_keys_may_not_change(void **state)
{
    static const char *const keys[] = {"lr = 0.5",        "seed = 2",       "batch = 16",     "optimizer = adamw",
                                       "channels = 4",    "crop = 1",       "max_steps = 9",  "train_limit = 100",
                                       "schedule = cosine", "backend = ref", "dropout = 0.5", "weight_decay = 0"};
    char path[ESPER_PATH_CHARS], *before, *after;
    size_t n_before, n_after;
    esper_run_result end;

    (void)state;
    make_stopped("refused");
    checkpoint_of("refused", path);
    check_good(esper_file_read(path, 1 << 24, &before, &n_before));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char words[128];

        snprintf(words, sizeof(words), "%.*s is |cannot become %s|new run", (int)strcspn(keys[i], " "), keys[i],
                 strrchr(keys[i], ' ') + 1);
        check_fails(resume_with(NULL, "refused", keys[i], &end), ESPER_E_CONFIG, words);
    }
    check_fails(resume_with("synth_text", "refused", "", &end), ESPER_E_CONFIG, "refused|synth|synth_text");
    check_good(esper_file_read(path, 1 << 24, &after, &n_after));
    assert_int_equal(n_before, n_after);
    assert_memory_equal(before, after, n_before);
    esper_mem_free(before);
    esper_mem_free(after);
}

static void finished_run_says_what_to_do(void **state)
{
    esper_run_result whole = make_whole("finished", ""), end;
    char path[ESPER_PATH_CHARS];

    (void)state;
    check_fails(resume_with(NULL, "finished", "", &end), ESPER_E_STATE, "3 epochs|--epochs|esper eval");
    check_fails(resume_with(NULL, "finished", "epochs = 2\n", &end), ESPER_E_STATE,
                "3 epochs|spent all that was asked for|--epochs");
    check_fails(resume_with(NULL, checkpoint_of("finished", path), "", &end), ESPER_E_STATE, "--epochs");
    check_good(resume_with(NULL, "finished", "epochs = 5\n", &end));
    assert_int_equal(end.last.epoch, 5);
    assert_true(end.weight_hash != whole.weight_hash);
}

/* ---- where a run goes on ---- */

static void goes_on_elsewhere(void **state)
{
    esper_run_result whole = make_whole("elsewhere-whole", ""), end;
    char path[ESPER_PATH_CHARS];
    struct stat before, after;

    (void)state;
    make_stopped("elsewhere");
    assert_int_equal(stat(checkpoint_of("elsewhere", path), &before), 0);
    check_good(resume_with(NULL, "elsewhere", "run_dir = other\n", &end));
    assert_string_equal(end.run_dir, "other");
    check_same_results(&whole, &end);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino); /* the run it came from is untouched */
    assert_int_equal(count_events("other", "run_resumed"), 1);
    check_resumed_from("other", path);
    check_fails(resume_with(NULL, "elsewhere", "run_dir = other\n", &end), ESPER_E_CONFIG, "other|already holds a run");
    check_good(resume_with(NULL, "elsewhere", "run_dir = ./elsewhere\n", &end)); /* the same one, spelt otherwise */
}

/* A checkpoint that was carried away is enough to go on. */
static void goes_on_from_a_file_alone(void **state)
{
    esper_run_result whole = make_whole("file-whole", ""), end;
    char path[ESPER_PATH_CHARS], *data;
    size_t bytes;

    (void)state;
    make_stopped("file");
    check_good(esper_file_read(checkpoint_of("file", path), 1 << 24, &data, &bytes));
    check_good(esper_file_make_dirs("carried"));
    check_good(esper_file_write("carried/away.safetensors", data, bytes));
    esper_mem_free(data);
    check_good(resume_with(NULL, "carried/away.safetensors", "", &end));
    assert_string_equal(end.run_dir, "carried");
    check_resumed_from("carried", "carried/away.safetensors");
    check_same_results(&whole, &end);
}

/* What a crash left of a line is cut off, and counting goes on behind it. */
static void torn_event_is_cut_off(void **state)
{
    esper_run_result end;
    FILE *file;

    (void)state;
    make_stopped("torn");
    file = fopen("torn/" ESPER_RUN_EVENTS, "a");
    assert_non_null(file);
    fputs("{\"v\":1,\"event\":\"epo", file);
    fclose(file);
    check_good(resume_with(NULL, "torn", "", &end));
    /* Reading them also checks that every line is whole and in order. */
    assert_int_equal(count_events("torn", "epoch_ended"), EPOCHS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cnn_resumes_exactly),       cmocka_unit_test(transformer_resumes_exactly),
        cmocka_unit_test(stops_in_validation),       cmocka_unit_test(stops_in_test),
        cmocka_unit_test(stop_at_the_very_end),      cmocka_unit_test(threads_may_change),
        cmocka_unit_test(epochs_may_change),         cmocka_unit_test(same_values_may_be_said),
        cmocka_unit_test(other_keys_may_not_change), cmocka_unit_test(finished_run_says_what_to_do),
        cmocka_unit_test(goes_on_elsewhere),         cmocka_unit_test(goes_on_from_a_file_alone),
        cmocka_unit_test(torn_event_is_cut_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
