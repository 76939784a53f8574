/* ctest: timeout=120 cost=7 sealed=also */
/* Training under guard, rung by rung: what is skipped, what is gone back to, what follows, when it ends; and whole runs that
 * are hit, tell of it, and can be gone on with. Random faults are in tests/fault. */
#include <inttypes.h>
#include <math.h>

#include "base/file.h"
#include "engine/guarded_internal.h"
#include "engine/helpers.h"

#define PACE "max_steps = 8\nsnapshot_every = 3\nthreads = 1\nbatch = 4\nchannels = 2\nblocks = 2\nepochs = 40\n"

typedef struct fixture {
    esper_network *network, *clean;
    /* What the drill does: spoils a gradient or the first weight in these calls. */
    int n_calls, bad_grads_from, bad_grads_to, bad_weight_at;
    int bad_pass_at, bad_buffer_at; /* -1: never */
    float was;
} fixture;

/* What a NaN or Inf in the forward pass does: a weight that is huge during the pass, and good before and behind it. */
static void spoil_pass(fixture *self, esper_drill_point point)
{
    float *weight = slab_values(&self->network->slab, ESPER_FAMILY_PARAM);

    if (point == ESPER_DRILL_BEFORE_FORWARD) {
        self->was = *weight;
        *weight = 3e38f;
    } else if (point == ESPER_DRILL_GRADIENTS) {
        *weight = self->was;
    }
}

static void spoil(void *context, esper_network *network, esper_drill_point point)
{
    fixture *self = context;
    esper_slab *slab = &self->network->slab;

    (void)network;
    if (point == ESPER_DRILL_GRADIENTS && self->n_calls >= self->bad_grads_from && self->n_calls < self->bad_grads_to)
        slab_values(slab, ESPER_FAMILY_GRAD)[0] = (float)INFINITY;
    if (point == ESPER_DRILL_BETWEEN_STEPS && self->n_calls == self->bad_weight_at)
        slab_values(slab, ESPER_FAMILY_PARAM)[0] = (float)NAN;
    if (self->n_calls == self->bad_pass_at)
        spoil_pass(self, point);
    if (point == ESPER_DRILL_BEFORE_FORWARD && self->n_calls == self->bad_buffer_at)
        slab_values(slab, ESPER_FAMILY_BUFFER)[0] = (float)NAN;
}

static fixture *open_with(const char *more)
{
    esper_config config = config_of("synth", PACE, more);
    fixture *self = calloc(1, sizeof(*self));

    assert_non_null(self);
    self->bad_weight_at = self->bad_pass_at = self->bad_buffer_at = -1;
    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_TRAIN, &self->network));
    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_TRAIN, &self->clean));
    check_good(esper_guarded_open(self->network));
    esper_guarded_set_drill(self->network, spoil, self);
    return self;
}

static void close_all(fixture *self)
{
    esper_single_close(self->network);
    esper_single_close(self->clean);
    free(self);
    assert_int_equal(live_blocks(), 0);
}

static esper_incident step(fixture *self)
{
    esper_incident incident;

    if (self->network->cursor.batch >= self->network->engine->steps_per_epoch)
        esper_network_next_epoch(self->network);
    check_good(esper_guarded_step(self->network, &incident));
    self->n_calls++;
    return incident;
}

static void steps(fixture *self, int n)
{
    for (int i = 0; i < n; i++) {
        esper_incident incident = step(self);

        if (incident.action != ESPER_GOVERNOR_GO)
            fail_msg("step %d of %d: action %d", i, n, incident.action);
    }
}

static esper_incident judge(fixture *self, double loss)
{
    esper_incident incident;

    check_good(esper_guarded_judge(self->network, loss, &incident));
    return incident;
}

static void expect(esper_incident incident, esper_governor_action action, uint64_t to_step)
{
    if (incident.action != action)
        fail_msg("action %d, expected %d", incident.action, action);
    if (incident.restored != (action >= ESPER_GOVERNOR_ROLL_BACK) || (incident.restored && incident.to.step != to_step))
        fail_msg("restored %d, to step %" PRIu64 ", expected %" PRIu64, incident.restored, incident.to.step, to_step);
}

/* The clean network's steps, to the same place, and the same weights. */
static void expect_clean_run(fixture *self)
{
    while (self->clean->cursor.epoch < self->network->cursor.epoch ||
           (self->clean->cursor.epoch == self->network->cursor.epoch &&
            self->clean->cursor.batch < self->network->cursor.batch)) {
        if (self->clean->cursor.batch >= self->clean->engine->steps_per_epoch)
            esper_network_next_epoch(self->clean);
        else
            check_good(esper_network_step(self->clean));
    }
    assert_int_equal(self->clean->cursor.step, self->network->cursor.step);
    if (esper_network_hash(self->clean) != esper_network_hash(self->network))
        fail_msg("weights %016" PRIx64 ", of the clean run %016" PRIx64, esper_network_hash(self->network),
                 esper_network_hash(self->clean));
}

/* ------------------------------------------------------------------------------------------------ the ladder */

/* A bad gradient is passed over with its batch; what it was is told. */
static void bad_gradient_is_skipped(void **state)
{
    fixture *self = open_with("");
    esper_incident incident;
    char text[256];

    (void)state;
    self->bad_grads_from = 2;
    self->bad_grads_to = 4;
    steps(self, 2);
    incident = step(self);
    expect(incident, ESPER_GOVERNOR_SKIP, 0);
    assert_string_equal(incident.tensor, "blocks.0.conv.weight");
    assert_string_equal(incident.role, "grad");
    assert_string_equal(incident.problem, "Inf");
    assert_int_equal(incident.n_elements, 1);
    assert_int_equal(incident.first_index, 0);
    assert_int_equal(self->network->cursor.step, 2);
    assert_int_equal(self->network->cursor.batch, 3);
    assert_string_equal(
        esper_incident_describe(&incident, text, sizeof(text)),
        "Inf in blocks.0.conv.weight (grad): 1 element, the first at 0; 1 bad tensor; batch 3 of epoch 1 is "
        "passed over");
    expect(step(self), ESPER_GOVERNOR_SKIP, 0);
    steps(self, 6);
    check_good(esper_network_pass_over(self->clean, 0, 2));
    check_good(esper_network_pass_over(self->clean, 0, 3));
    expect_clean_run(self);
    close_all(self);
}

static uint32_t n_bad_buffers(const fixture *self)
{
    const float *buffers = slab_values(&self->network->slab, ESPER_FAMILY_BUFFER);
    uint32_t n = 0;

    for (int64_t i = 0; i < (int64_t)esper_slab_count(&self->network->slab, ESPER_FAMILY_BUFFER); i++)
        n += !isfinite(buffers[i]);
    return n;
}

/* A forward pass that is not finite spoils the norm buffers too. The weights are good: skipped, and a gradient named. */
static void bad_pass_is_skipped(void **state)
{
    fixture *self = open_with("");
    esper_incident incident;

    (void)state;
    self->bad_pass_at = 2;
    steps(self, 2);
    incident = step(self);
    expect(incident, ESPER_GOVERNOR_SKIP, 0);
    assert_string_equal(incident.role, "grad");
    assert_true(incident.n_tensors > 1);
    assert_int_equal(n_bad_buffers(self), 0);
    steps(self, 5);
    check_good(esper_network_pass_over(self->clean, 0, 2));
    expect_clean_run(self);
    close_all(self);
}

/* A buffer alone, behind the scan of the state: named, put back from the copy, and the step is skipped. */
static void bad_buffer_in_a_pass_is_skipped(void **state)
{
    fixture *self = open_with("");
    esper_incident incident;

    (void)state;
    self->bad_buffer_at = 2;
    steps(self, 2);
    incident = step(self);
    expect(incident, ESPER_GOVERNOR_SKIP, 0);
    assert_string_equal(incident.role, "buffer");
    assert_int_equal(incident.n_elements, 1);
    assert_int_equal(n_bad_buffers(self), 0);
    steps(self, 5);
    check_good(esper_network_pass_over(self->clean, 0, 2));
    expect_clean_run(self);
    close_all(self);
}

/* A skip is about one step: the loss of an epoch that ended with one is judged by itself. */
static void skip_at_an_epochs_end_is_over(void **state)
{
    fixture *self = open_with("");

    (void)state;
    self->bad_grads_from = 7;
    self->bad_grads_to = 8;
    steps(self, 7);
    check_good(esper_network_read(self->network));
    self->network->grad_norm = 7.0; /* as if a checkpoint had said so */
    expect(step(self), ESPER_GOVERNOR_SKIP, 0);
    assert_true(self->network->grad_norm == 7.0); /* the last step's, still */
    assert_int_equal(self->network->cursor.batch, 8);
    expect(judge(self, 1.0), ESPER_GOVERNOR_GO, 0);
    assert_int_equal(self->network->detour.n_passed, 1);
    assert_int_equal(esper_guarded_reading(self->network).reason, ESPER_GOVERNOR_NONE);
    assert_int_equal(esper_guarded_reading(self->network).n_skipped, 1);
    steps(self, 8);
    check_good(esper_network_pass_over(self->clean, 0, 7));
    expect_clean_run(self);
    close_all(self);
}

/* Ten in a row are skipped, the eleventh goes back; the way ahead passes over all eleven. */
static void too_many_skips_go_back(void **state)
{
    fixture *self = open_with("max_steps = 30\n");

    (void)state;
    self->bad_grads_from = 5;
    self->bad_grads_to = 16;
    steps(self, 5); /* snapshots at 0 and 3 */
    for (int i = 0; i < 10; i++)
        expect(step(self), ESPER_GOVERNOR_SKIP, 0);
    expect(step(self), ESPER_GOVERNOR_ROLL_BACK, 3);
    steps(self, 8);
    for (uint32_t batch = 5; batch < 16; batch++)
        check_good(esper_network_pass_over(self->clean, 0, batch));
    expect_clean_run(self);
    assert_int_equal(esper_guarded_reading(self->network).n_skipped, 10);
    close_all(self);
}

/* Bad weights: back to the newest snapshot, and the batch before, whose step may have done it, is passed over. */
static void bad_weights_go_back(void **state)
{
    fixture *self = open_with("");
    esper_incident incident;
    char text[256];

    (void)state;
    self->bad_weight_at = 5;
    steps(self, 5);
    incident = step(self);
    expect(incident, ESPER_GOVERNOR_ROLL_BACK, 3);
    assert_string_equal(incident.tensor, "blocks.0.conv.weight");
    assert_string_equal(incident.role, "param");
    assert_string_equal(
        esper_incident_describe(&incident, text, sizeof(text)),
        "NaN in blocks.0.conv.weight (param): 1 element, the first at 0; 1 bad tensor; back from step 5 to "
        "step 3");
    assert_int_equal(self->network->detour.n_passed, 1);
    steps(self, 12);
    check_good(esper_network_pass_over(self->clean, 0, 4));
    expect_clean_run(self);
    close_all(self);
}

/* Found before validation too. */
static void settling_finds_bad_weights(void **state)
{
    fixture *self = open_with("");
    esper_incident incident;

    (void)state;
    steps(self, 8);
    check_good(esper_guarded_settle(self->network, &incident));
    expect(incident, ESPER_GOVERNOR_GO, 0);
    slab_values(&self->network->slab, ESPER_FAMILY_MOMENT1)[0] = -(float)INFINITY;
    check_good(esper_guarded_settle(self->network, &incident));
    expect(incident, ESPER_GOVERNOR_ROLL_BACK, 6);
    assert_string_equal(incident.tensor, "moment1/blocks.0.conv.weight");
    assert_string_equal(incident.role, "moment");
    expect_clean_run(self);
    assert_int_equal(self->network->detour.n_passed, 0); /* the clean scan came after the last batch */
    steps(self, 9);
    expect_clean_run(self);
    close_all(self);
}

/* The second from one snapshot halves the rate, a later snapshot is fresh ground, and after three comes the end. */
static void prune_and_stop(void **state)
{
    fixture *self = open_with("max_steps = 30\n");
    esper_incident incident;
    double lr;
    char text[512];

    (void)state;
    steps(self, 5);
    lr = self->network->lr;
    self->bad_weight_at = self->n_calls;
    expect(step(self), ESPER_GOVERNOR_ROLL_BACK, 3);
    self->bad_weight_at = self->n_calls;
    expect(step(self), ESPER_GOVERNOR_PRUNE, 3);
    steps(self, 1);
    assert_true(self->network->lr == 0.5 * lr);
    steps(self, 4); /* a snapshot at 6 */
    self->bad_weight_at = self->n_calls;
    expect(step(self), ESPER_GOVERNOR_ROLL_BACK, 6);
    self->bad_weight_at = self->n_calls;
    incident = step(self);
    expect(incident, ESPER_GOVERNOR_STOP, 6);
    esper_incident_describe(&incident, text, sizeof(text));
    if (strstr(text, "and there the run ends") == NULL)
        fail_msg("\"%s\" does not say that the run ends", text);
    check_fails(esper_guarded_step(self->network, &incident), ESPER_E_STATE, "governor has stopped");
    check_fails(esper_guarded_settle(self->network, &incident), ESPER_E_STATE, "governor has stopped");
    check_fails(esper_guarded_judge(self->network, 1.0, &incident), ESPER_E_STATE, "governor has stopped");
    close_all(self);
}

/* Weights that were bad from the start: nothing to go back to. */
static void nowhere_to_go_back_to(void **state)
{
    fixture *self = open_with("");
    esper_incident incident;
    char text[256];

    (void)state;
    esper_guarded_close(self->network);
    slab_values(&self->network->slab, ESPER_FAMILY_PARAM)[0] = (float)NAN;
    check_good(esper_guarded_open(self->network));
    incident = step(self);
    assert_int_equal(incident.action, ESPER_GOVERNOR_STOP);
    assert_false(incident.restored);
    esper_incident_describe(&incident, text, sizeof(text));
    if (strstr(text, "there is no way back: ") == NULL || incident.failure[0] == '\0')
        fail_msg("\"%s\" does not say that there is no way back, and why", text);
    check_fails(esper_guarded_step(self->network, &incident), ESPER_E_STATE, "governor has stopped");
    close_all(self);
}

/* A panic of the vital signs: back to the start of the epoch, whose order is drawn anew. */
static void vital_panic_draws_anew(void **state)
{
    fixture *self = open_with("snapshot_every = 100\n");
    uint64_t first_way, hash;

    (void)state;
    steps(self, 16);
    first_way = esper_network_hash(self->network);
    expect(judge(self, (double)NAN), ESPER_GOVERNOR_ROLL_BACK, 8);
    assert_int_equal(self->network->cursor.epoch, 1);
    assert_int_equal(self->network->cursor.batch, 0);
    assert_int_equal(self->network->detour.draw, 1);
    expect_clean_run(self);
    steps(self, 8);
    hash = esper_network_hash(self->network);
    assert_true(hash != first_way);
    esper_network_redraw(self->clean, 1);
    expect_clean_run(self);
    close_all(self);
}

/* Anomalies are not blessed: while they are not judged no snapshot is taken, and the third goes back behind the first. */
static void no_snapshot_while_pending(void **state)
{
    fixture *self = open_with("");

    (void)state;
    for (int epoch = 0; epoch < 12; epoch++) {
        steps(self, 8);
        expect(judge(self, 1.0), ESPER_GOVERNOR_GO, 0);
        esper_network_next_epoch(self->network);
    }
    for (int i = 0; i < 2; i++) {
        steps(self, 8);
        expect(judge(self, 100.0), ESPER_GOVERNOR_GO, 0);
        esper_network_next_epoch(self->network);
    }
    steps(self, 8);
    expect(judge(self, 100.0), ESPER_GOVERNOR_ROLL_BACK, 12 * 8 + 6); /* the first anomalous epoch's last snapshot */
    close_all(self);
}

/* With checksums any bit is found, named, and healed without passing anything over. */
static void checksums_find_any_bit(void **state)
{
    fixture *self = open_with("guard_checksum = true\n");
    uint32_t *words = (uint32_t *)(void *)slab_values(&self->network->slab, ESPER_FAMILY_PARAM);
    esper_incident incident;

    (void)state;
    steps(self, 5);
    words[3] ^= 1; /* the last bit of a mantissa */
    incident = step(self);
    expect(incident, ESPER_GOVERNOR_ROLL_BACK, 3);
    assert_string_equal(incident.problem, "changed");
    assert_string_equal(incident.tensor, "blocks.0.conv.weight");
    assert_int_equal(self->network->detour.n_passed, 0);
    steps(self, 20);
    expect_clean_run(self);
    close_all(self);
}

/* As when ranks are lost between a scan and its reading: what is rescued then must not fail for it. */
static void goes_back_with_a_scan_under_way(void **state)
{
    fixture *self = open_with("guard_checksum = true\n");
    const esper_network *network = self->network;
    esper_guard_scan request;

    (void)state;
    steps(self, 8);
    esper_guard_scan_init(&request);
    check_good(esper_backend_scan(network->engine->backend, network->stream, network->guarded->guard, &request,
                                  network->flag));
    check_good(esper_guarded_retreat(self->network));
    steps(self, 8);
    close_all(self);
}

static void healthy_steps_take_no_memory(void **state)
{
    fixture *self = open_with("guard_checksum = true\n");
    esper_mem_stats before, after;

    (void)state;
    steps(self, 8); /* every entry of the ring has had its first blob */
    esper_mem_stats_get(&before);
    steps(self, 100);
    esper_mem_stats_get(&after);
    assert_int_equal(after.n_allocs, before.n_allocs);
    close_all(self);
}

static void inference_is_refused(void **state)
{
    esper_config config = config_of("synth", PACE, "");
    esper_network *network;

    (void)state;
    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_EVALUATE, &network));
    check_fails(esper_guarded_open(network), ESPER_E_ARG, "without an optimiser");
    esper_single_close(network);
}

/* ------------------------------------------------------------------------------------------------ checkpoints */

/* Detours and the governor's memory come back. */
static void checkpoint_keeps_the_way(void **state)
{
    fixture *self = open_with(""), *other = open_with("");
    esper_checkpoint checkpoint;
    const esper_detour *detour = &other->network->detour;

    (void)state;
    judge(self, 1.5); /* before the snapshot that is gone back to: it stays */
    steps(self, 5);
    self->bad_weight_at = self->n_calls;
    expect(step(self), ESPER_GOVERNOR_ROLL_BACK, 3); /* batch 4 lies ahead */
    judge(self, (double)NAN);                        /* prunes, and draws anew: batch 4 is another now */
    check_good(esper_network_pass_over(self->network, 0, 6));
    check_good(esper_network_pass_over(self->network, 2, 1));
    check_good(esper_checkpoint_save(self->network, "way.safetensors"));
    check_good(esper_checkpoint_init("way.safetensors", &checkpoint));
    assert_string_equal(esper_safetensors_note_find(checkpoint.file, "detour"), "draw 1 lr_scale 0x1p-1 pass 0:6 2:1");
    check_good(esper_checkpoint_restore(&checkpoint, other->network));
    check_good(esper_checkpoint_restore_part(&checkpoint, other->network, "governor"));
    esper_checkpoint_fini(&checkpoint);
    assert_int_equal(detour->draw, 1);
    assert_true(detour->lr_scale == 0.5);
    assert_int_equal(detour->n_passed, 2);
    assert_int_equal(esper_guarded_reading(other->network).n_rollbacks, 2);
    assert_int_equal(esper_guarded_reading(other->network).history_count, 1);
    steps(self, 12);
    steps(other, 12);
    assert_true(esper_network_hash(self->network) == esper_network_hash(other->network));
    esper_single_close(other->network);
    esper_single_close(other->clean);
    free(other);
    close_all(self);
}

/* ------------------------------------------------------------------------------------------------ whole runs */

/* Spoils a weight after some steps: once, or from then on always. */
typedef struct saboteur {
    int  steps_left;
    bool always;
} saboteur;

static void sabotage(void *context, const esper_run_view *view)
{
    saboteur *self = context;

    if (--self->steps_left == 0 || (self->always && self->steps_left < 0))
        slab_values(&view->network->slab, ESPER_FAMILY_PARAM)[1] = (float)NAN;
}

static char *events_of(const char *run_dir)
{
    char path[ESPER_PATH_CHARS], *text;
    size_t bytes;

    check_good(esper_run_path(run_dir, ESPER_RUN_EVENTS, path));
    check_good(esper_file_read(path, 1 << 24, &text, &bytes));
    text = esper_mem_grow(text, bytes + 1);
    assert_non_null(text);
    return text;
}

static void expect_event(const char *events, const char *words)
{
    if (strstr(events, words) == NULL)
        fail_msg("no event says %s:\n%s", words, events);
}

static esper_status run_hit(const esper_config *config, saboteur *who, esper_run_result *result)
{
    esper_run_observer observer = {.context = who, .step = sabotage};
    esper_run_desc desc = {.task = task_named("synth"), .config = config, .observer = &observer};

    return esper_run_train(&desc, result);
}

static void run_recovers(void **state)
{
    esper_config config = config_of("synth", PACE, "epochs = 3\nrun_dir = hit\n");
    saboteur who = {.steps_left = 13};
    esper_run_result hit;
    char *events;

    (void)state;
    check_good(run_hit(&config, &who, &hit));
    assert_int_equal(hit.n_rollbacks, 1);
    assert_int_equal(hit.n_skipped, 0);
    assert_true(isfinite(hit.loss_test));
    events = events_of("hit");
    expect_event(events, "\"event\":\"guard_tripped\"");
    expect_event(
        events,
        "\"tensor\":\"blocks.0.conv.weight\",\"role\":\"param\",\"problem\":\"NaN\",\"count\":1,\"first_index\":1");
    expect_event(events, "\"action\":\"roll_back\"");
    expect_event(events, "\"event\":\"rolled_back\"");
    expect_event(events, "\"from_step\":13,\"to_step\":11");
    esper_mem_free(events);
}

/* Hit on the last step of an epoch: found before the epoch is validated, so no epoch is told with bad weights. */
static void run_recovers_at_an_epochs_end(void **state)
{
    esper_config config = config_of("synth", PACE, "epochs = 2\nrun_dir = end\n");
    saboteur who = {.steps_left = 8};
    esper_run_result hit;

    (void)state;
    check_good(run_hit(&config, &who, &hit));
    assert_int_equal(hit.n_rollbacks, 1);
    assert_int_equal(hit.last.epoch, 2);
    assert_true(isfinite(hit.last.loss_valid) && isfinite(hit.loss_test));
}

/* Makes a weight so large in the last batch of the first epoch that its gradients are not finite, then takes that back.
 * Counts how often an epoch is told. */
typedef struct overflower {
    float was;
    int   n_steps, n_epochs;
} overflower;

static void overflow(void *context, const esper_run_view *view)
{
    overflower *self = context;
    float *weights = slab_values(&view->network->slab, ESPER_FAMILY_PARAM);

    if (++self->n_steps == 7) {
        self->was = weights[0];
        weights[0] = 3e38f;
    } else if (self->n_steps == 8) {
        weights[0] = self->was;
    }
}

static void count_epoch(void *context, const esper_run_view *view, const esper_epoch_record *record)
{
    overflower *self = context;

    (void)view;
    (void)record;
    if (++self->n_epochs > 3)
        fail_msg("an epoch is told again: %d times in a run of 3 epochs", self->n_epochs);
}

static void run_passes_over_an_epochs_last_batch(void **state)
{
    esper_config config = config_of("synth", PACE, "epochs = 3\nrun_dir = last-batch\n");
    overflower who = {0};
    esper_run_observer observer = {.context = &who, .step = overflow, .epoch = count_epoch};
    esper_run_desc desc = {.task = task_named("synth"), .config = &config, .observer = &observer};
    esper_run_result result;

    (void)state;
    check_good(esper_run_train(&desc, &result));
    assert_int_equal(result.n_skipped, 1);
    assert_int_equal(result.n_rollbacks, 0);
    assert_int_equal(who.n_epochs, 3);
    assert_true(isfinite(result.loss_test));
}

/* Hit again and again: the run ends, says why, and leaves a good state to go on from. */
static void run_stops_and_can_go_on(void **state)
{
    esper_config config = config_of("synth", PACE, "epochs = 3\nrun_dir = stopped\n"), nothing;
    saboteur who = {.steps_left = 13, .always = true};
    esper_run_result result;
    char *events;

    (void)state;
    check_fails(run_hit(&config, &who, &result), ESPER_E_STATE,
                "governor stopped the run|blocks.0.conv.weight|stopped/last");
    events = events_of("stopped");
    expect_event(events, "\"action\":\"prune\"");
    expect_event(events, "\"action\":\"stop\"");
    expect_event(events, "\"event\":\"checkpoint_saved\"");
    expect_event(events, "\"status\":\"ESPER_E_STATE\"");
    esper_mem_free(events);
    esper_config_init(&nothing);
    check_good(run_steps(NULL, &nothing, "stopped", -1, &result));
    assert_true(isfinite(result.loss_test));
    assert_int_equal(result.last.epoch, 3);
    assert_int_equal(live_blocks(), 0);
}

/* Without a guard the same hit ruins the run; and a healthy run is the same with it and without. */
static void guard_can_be_off(void **state)
{
    esper_config config = config_of("synth", PACE, "epochs = 2\nguard = false\nrun_dir = off\n");
    saboteur who = {.steps_left = 5}, nobody = {.steps_left = -1};
    esper_run_result ruined, off, on;

    (void)state;
    check_fails(run_hit(&config, &who, &ruined), ESPER_E_STATE, "no longer finite");
    set_keys(&config, "run_dir = healthy-off\n");
    check_good(run_hit(&config, &nobody, &off));
    set_keys(&config, "run_dir = healthy-on\nguard = true\n");
    check_good(run_hit(&config, &nobody, &on));
    assert_true(on.weight_hash == off.weight_hash);
    assert_true(on.loss_test == off.loss_test);
    assert_int_equal(on.n_rollbacks + on.n_skipped, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_gradient_is_skipped),
        cmocka_unit_test(bad_pass_is_skipped),
        cmocka_unit_test(bad_buffer_in_a_pass_is_skipped),
        cmocka_unit_test(skip_at_an_epochs_end_is_over),
        cmocka_unit_test(too_many_skips_go_back),
        cmocka_unit_test(bad_weights_go_back),
        cmocka_unit_test(settling_finds_bad_weights),
        cmocka_unit_test(prune_and_stop),
        cmocka_unit_test(nowhere_to_go_back_to),
        cmocka_unit_test(vital_panic_draws_anew),
        cmocka_unit_test(no_snapshot_while_pending),
        cmocka_unit_test(checksums_find_any_bit),
        cmocka_unit_test(goes_back_with_a_scan_under_way),
        cmocka_unit_test(healthy_steps_take_no_memory),
        cmocka_unit_test(inference_is_refused),
        cmocka_unit_test(checkpoint_keeps_the_way),
        cmocka_unit_test(run_recovers),
        cmocka_unit_test(run_recovers_at_an_epochs_end),
        cmocka_unit_test(run_passes_over_an_epochs_last_batch),
        cmocka_unit_test(run_stops_and_can_go_on),
        cmocka_unit_test(guard_can_be_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
