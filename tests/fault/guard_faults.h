/* Internal to tests/fault. Faults in running trainings: small networks of both kinds are trained under guard, one element of
 * one tensor is spoiled at one place of one step, and what follows is held against clean runs:
 *
 *   found     by the first scan after it, and the tensor that was hit is the one named
 *   restored  after a rollback, the state is that of a clean run at the snapshot's step, bit for bit
 *   same      from there on, every step is that of a clean run told to pass over the same batches, bit for bit
 */
#ifndef ESPER_TESTS_FAULT_GUARD_FAULTS_H
#define ESPER_TESTS_FAULT_GUARD_FAULTS_H

#include <inttypes.h>
#include <math.h>
#include <xxhash.h>

#include "base/rng.h"
#include "engine/guarded.h"
#include "engine/helpers.h"

enum { EPOCHS = 3, STEPS = 7, MAX_PASSED = 64 };

/* ------------------------------------------------------------------------------------------------ networks */

/* One network with all that its runs share. Opened once: runs begin by putting its first state back. */
typedef struct lab {
    const char   *name, *task, *settings;
    esper_config  config;
    esper_network *hit, *clean; /* the one that is spoiled, and the one that is told */
    float        *first;      /* the slab at birth */
    esper_position start;     /* the rest of it */
    uint64_t      path[EPOCHS * STEPS]; /* hashes of a clean run that passes over nothing, before each step */
} lab;

#define LAB_CNN  "threads = 1\nbatch = 4\nchannels = 2\nblocks = 2\n"
#define LAB_TEXT "threads = 1\nbatch = 2\nlayers = 2\nwidth = 8\nheads = 2\ncontext = 8\n"
#define LAB_ALL  "snapshot_every = 3\nmax_steps = 7\nlength = epochs\nepochs = 3\n"

static lab all_labs[] = {
    {.name = "cnn, sgd", .task = "synth", .settings = LAB_CNN LAB_ALL},
    {.name = "cnn, adamw",
     .task = "synth",
     .settings = LAB_CNN LAB_ALL "optimizer = adamw\nlr = 1e-3\ncrop = 2\nflip = true\n"},
    {.name = "transformer, adamw", .task = "synth_text", .settings = LAB_TEXT LAB_ALL "dropout = 0.1\n"},
    {.name = "transformer, sgd",
     .task = "synth_text",
     .settings = LAB_TEXT LAB_ALL "optimizer = sgd\nlr = 0.01\nschedule = cosine\n"},
};

enum { N_LABS = sizeof(all_labs) / sizeof(all_labs[0]) };

/* Everything that a step can depend on or change, but for what is decided by the configuration. */
static inline uint64_t state_hash(esper_network *network)
{
    uint64_t hash = XXH64(&network->cursor, sizeof(network->cursor), 1);

    check_good(esper_network_read(network));
    hash = XXH64(&network->tally, sizeof(network->tally), hash);
    return slab_hash(&network->slab, hash);
}

static inline void put_back(const lab *self, esper_network *network)
{
    memcpy(slab_values(&network->slab, ESPER_FAMILY_PARAM), self->first, network->slab.bytes);
    check_good(esper_network_go_back(network, &self->start));
    network->detour.n_passed = 0;
    network->detour.lr_scale = 1.0;
    esper_network_redraw(network, 0);
}

static inline void record_path(lab *self)
{
    for (int i = 0; i < EPOCHS * STEPS; i++) {
        if (self->clean->cursor.batch == STEPS)
            esper_network_next_epoch(self->clean);
        self->path[i] = state_hash(self->clean);
        check_good(esper_network_step(self->clean));
    }
}

static inline void lab_open(lab *self)
{
    self->config = config_of(self->task, self->settings, "");
    check_good(esper_single_open(task_named(self->task), &self->config, ESPER_USE_TRAIN, &self->hit));
    check_good(esper_single_open(task_named(self->task), &self->config, ESPER_USE_TRAIN, &self->clean));
    assert_int_equal(self->hit->engine->steps_per_epoch, STEPS);
    self->first = esper_mem_alloc(self->hit->slab.bytes);
    assert_non_null(self->first);
    memcpy(self->first, slab_values(&self->hit->slab, ESPER_FAMILY_PARAM), self->hit->slab.bytes);
    esper_network_position(self->hit, &self->start);
    record_path(self);
}

static inline void lab_close(lab *self)
{
    esper_mem_free(self->first);
    esper_single_close(self->hit);
    esper_single_close(self->clean);
}

static inline int labs_open(void **state)
{
    (void)state;
    for (int i = 0; i < N_LABS; i++)
        lab_open(&all_labs[i]);
    return 0;
}

static inline int labs_close(void **state)
{
    (void)state;
    for (int i = 0; i < N_LABS; i++)
        lab_close(&all_labs[i]);
    assert_int_equal(live_blocks(), 0);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ faults */

/* kind, text, has to be found at once, whether checksums are on */
#define FAULT_CLASS_LIST(X)                                                              \
    X(NAN, "NaN", true, false)                                                           \
    X(INF, "Inf", true, false)                                                           \
    X(EXPONENT_BAD, "exponent bit, becomes NaN or Inf", true, false)                     \
    X(EXPONENT_SUMMED, "exponent bit, stays finite, with checksum", true, true)          \
    X(MANTISSA_SUMMED, "mantissa bit between steps, with checksum", true, true)          \
    X(EXPONENT_PLAIN, "exponent bit, stays finite, without checksum", false, false)      \
    X(MANTISSA_PLAIN, "mantissa bit between steps, without checksum", false, false)

typedef enum fault_class {
#define X(name, text, must, summed) CLASS_##name,
    FAULT_CLASS_LIST(X)
#undef X
    N_CLASSES
} fault_class;

static const struct {
    const char *text;
    bool        must, summed;
} classes[] = {
#define X(name, text, must, summed) {text, must, summed},
    FAULT_CLASS_LIST(X)
#undef X
};

typedef struct fault {
    /* What is to happen. */
    fault_class       class;
    lab              *where;
    esper_guard_role  role;
    int               when; /* calls of esper_guarded_step before it */
    esper_drill_point point;
    esper_rng         dice;
    /* What has happened. */
    int         n_calls;
    bool        done;
    esper_cursor at;
    size_t      tensor;
    uint64_t    element;
    char        name[128];
    uint32_t    bits_before, bits_after;
} fault;

static inline fault fault_new(uint32_t number, fault_class class)
{
    static const esper_guard_role roles[] = {ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_ROLE_MOMENT, ESPER_GUARD_ROLE_BUFFER,
                                             ESPER_GUARD_ROLE_GRAD};
    esper_rng_key key = {.seed = 7, .purpose = ESPER_RNG_TEST, .step = number, .sample = class};
    fault self = {.class = class};
    bool anywhere = !classes[class].summed && class != CLASS_MANTISSA_PLAIN && class != CLASS_EXPONENT_BAD;

    esper_rng_init(&self.dice, &key);
    self.where = &all_labs[esper_rng_below(&self.dice, N_LABS)];
    self.role = roles[esper_rng_below(&self.dice, anywhere ? 4 : 3)];
    self.when = (int)esper_rng_below(&self.dice, EPOCHS * STEPS);
    self.point = (esper_drill_point)esper_rng_below(&self.dice, 3);
    if (self.role == ESPER_GUARD_ROLE_GRAD)
        self.point = ESPER_DRILL_GRADIENTS; /* there are none before */
    else if (classes[class].summed || class == CLASS_MANTISSA_PLAIN)
        self.point = ESPER_DRILL_BETWEEN_STEPS;
    return self;
}

static inline uint32_t bits_of(const esper_guard_tensor *tensor, uint64_t element)
{
    uint32_t bits;

    memcpy(&bits, (const float *)tensor->data + element, sizeof(bits));
    return bits;
}

static inline bool is_finite(uint32_t bits)
{
    return (bits >> 23 & 0xff) != 0xff;
}

/* A random tensor of the role, or of the parameters where the network has none. */
static inline void choose_tensor(fault *self, esper_guard *guard)
{
    size_t candidates[256], n = 0;

    for (size_t i = 0; i < esper_guard_count(guard); i++)
        if (esper_guard_tensor_at(guard, i)->role == self->role && n < 256)
            candidates[n++] = i;
    if (n == 0) {
        self->role = ESPER_GUARD_ROLE_PARAM;
        choose_tensor(self, guard);
        return;
    }
    self->tensor = candidates[esper_rng_below(&self->dice, (uint32_t)n)];
    self->element = esper_rng_below(&self->dice, (uint32_t)esper_guard_tensor_at(guard, self->tensor)->count);
}

/* Only the flip of the exponent's highest bit in numbers of [1, 2) leaves the finite: the next such element from the chosen
 * one on, of any state. There always is one: scales of norms are near 1 and rarely all below. */
static inline bool seek_near_one(fault *self, esper_guard *guard)
{
    size_t n = esper_guard_count(guard);

    for (size_t i = 0; i < n; i++) {
        size_t at = (self->tensor + i) % n;
        const esper_guard_tensor *tensor = esper_guard_tensor_at(guard, at);

        for (uint64_t e = i == 0 ? self->element : 0; tensor->role != ESPER_GUARD_ROLE_GRAD && e < tensor->count; e++)
            if ((bits_of(tensor, e) >> 23 & 0xff) == 0x7f) {
                self->tensor = at;
                self->element = e;
                self->role = tensor->role;
                return true;
            }
    }
    return false;
}

static inline uint32_t choose_bit(fault *self, esper_guard *guard, esper_fault *kind_out)
{
    uint32_t before = bits_of(esper_guard_tensor_at(guard, self->tensor), self->element), bit;

    switch (self->class) {
    case CLASS_NAN:
        *kind_out = ESPER_FAULT_NAN;
        return 0;
    case CLASS_INF:
        *kind_out = esper_rng_below(&self->dice, 2) == 0 ? ESPER_FAULT_INF : ESPER_FAULT_NEG_INF;
        return 0;
    case CLASS_EXPONENT_BAD:
        *kind_out = ESPER_FAULT_EXPONENT;
        return 7;
    case CLASS_EXPONENT_SUMMED:
    case CLASS_EXPONENT_PLAIN:
        *kind_out = ESPER_FAULT_EXPONENT;
        do
            bit = esper_rng_below(&self->dice, 8);
        while (!is_finite(before ^ 1u << (23 + bit)));
        return bit;
    default:
        *kind_out = ESPER_FAULT_MANTISSA;
        return esper_rng_below(&self->dice, 23);
    }
}

static inline void strike(fault *self, esper_network *network)
{
    esper_guard *guard = esper_guarded_guard(network);
    const esper_guard_tensor *tensor;
    esper_fault kind;
    uint32_t bit;

    choose_tensor(self, guard);
    if (self->class == CLASS_EXPONENT_BAD && !seek_near_one(self, guard))
        return; /* later, then */
    bit = choose_bit(self, guard, &kind);
    tensor = esper_guard_tensor_at(guard, self->tensor);
    self->bits_before = bits_of(tensor, self->element);
    check_good(esper_guard_inject(guard, self->tensor, self->element, kind, bit, NULL));
    self->bits_after = bits_of(tensor, self->element);
    assert_true(self->bits_before != self->bits_after);
    snprintf(self->name, sizeof(self->name), "%s", tensor->name);
    self->at = self->where->hit->cursor;
    self->done = true;
}

static inline void drill(void *context, esper_network *network, esper_drill_point point)
{
    fault *self = context;

    if (point == self->point && self->n_calls >= self->when && !self->done)
        strike(self, network);
}

static inline void describe_fault(const fault *self, char *text, size_t chars)
{
    snprintf(text, chars, "%s in %s: %s (role %d, element %" PRIu64 ", %08x to %08x) at epoch %u, batch %u, point %d",
             classes[self->class].text, self->where->name, self->name, (int)self->role, self->element,
             self->bits_before, self->bits_after, self->at.epoch, self->at.batch, (int)self->point);
}

/* ------------------------------------------------------------------------------------------------ a run */

/* What a run with a fault came to. */
typedef struct outcome {
    int         n_incidents;
    bool        found;    /* in the call in which it struck */
    bool        named;
    bool        rolled_back, restored;
    bool        stopped; /* by the governor: a huge but finite number had got into the snapshots */
    int         n_restores;
    esper_place passed[MAX_PASSED]; /* in the order in which it was decided */
    int         n_passed;
    uint64_t    steps[EPOCHS][STEPS]; /* hashes after each batch; 0 = passed over */
    uint64_t    last;
} outcome;

static inline void note_passed(outcome *out, uint32_t epoch, uint32_t batch)
{
    assert_true(out->n_passed < MAX_PASSED);
    out->passed[out->n_passed++] = (esper_place){.epoch = epoch, .batch = batch};
    out->steps[epoch][batch] = 0;
}

static inline void note_restore(const fault *self, const esper_incident *incident, uint32_t n_before, outcome *out)
{
    esper_network *network = self->where->hit;
    uint64_t want = self->where->path[incident->to.step], got = state_hash(network);

    out->rolled_back = true;
    if (out->n_restores++ == 0)
        out->restored = want == got;
    if (network->detour.n_passed > n_before) {
        esper_place place = network->detour.passed[network->detour.n_passed - 1];

        note_passed(out, place.epoch, place.batch);
    }
}

/* What a bad element leads to: gradients, and norm buffers that were hit behind the scan of the state, of which there is a
 * copy, are passed over with their step. */
static inline esper_governor_action action_for(const fault *self)
{
    bool of_the_step = self->role == ESPER_GUARD_ROLE_GRAD ||
                       (self->role == ESPER_GUARD_ROLE_BUFFER && self->point != ESPER_DRILL_BETWEEN_STEPS);

    return of_the_step ? ESPER_GOVERNOR_SKIP : ESPER_GOVERNOR_ROLL_BACK;
}

static inline void note_incident(const fault *self, const esper_incident *incident, bool just_struck, uint32_t n_before,
                                 outcome *out)
{
    if (out->n_incidents++ == 0) {
        out->found = just_struck;
        out->named =
            incident->tensor != NULL && strcmp(incident->tensor, self->name) == 0 &&
            (incident->n_elements == 0 || (incident->n_elements == 1 && incident->first_index == self->element));
        if (classes[self->class].must && incident->action != action_for(self))
            fail_msg("a bad %s led to action %d", incident->role, incident->action);
    }
    if (incident->action == ESPER_GOVERNOR_SKIP)
        note_passed(out, incident->at.epoch, incident->at.batch);
    if (incident->restored)
        note_restore(self, incident, n_before, out);
}

/* One call, whatever it meets. */
static inline void step_once(fault *self, esper_network *network, outcome *out)
{
    uint32_t n_before = network->detour.n_passed;
    bool struck_before = self->done;
    esper_incident incident;
    esper_cursor before;

    if (!esper_network_batch_due(network))
        return;
    before = network->cursor;
    check_good(esper_guarded_step(network, &incident));
    self->n_calls++;
    out->stopped = incident.action == ESPER_GOVERNOR_STOP;
    if (incident.action != ESPER_GOVERNOR_GO)
        note_incident(self, &incident, self->done && !struck_before, n_before, out);
    else if (network->cursor.step > before.step)
        out->steps[before.epoch][before.batch] = state_hash(network);
}

static inline void run_with(fault *self, outcome *out)
{
    esper_network *network = self->where->hit;

    memset(out, 0, sizeof(*out));
    put_back(self->where, network);
    network->engine->config.guard_checksum = classes[self->class].summed;
    check_good(esper_guarded_open(network));
    esper_guarded_set_drill(network, drill, self);
    while (network->cursor.epoch < EPOCHS && !out->stopped) {
        while (network->cursor.batch < STEPS && !out->stopped)
            step_once(self, network, out);
        if (network->cursor.batch >= STEPS)
            esper_network_next_epoch(network);
    }
    out->last = state_hash(network);
    esper_guarded_close(network);
}

/* The clean run that is told. Returns whether every step was the same. */
static inline bool same_as_told(const fault *self, const outcome *out)
{
    esper_network *network = self->where->clean;

    put_back(self->where, network);
    for (int i = 0; i < out->n_passed; i++)
        check_good(esper_network_pass_over(network, out->passed[i].epoch, out->passed[i].batch));
    for (; network->cursor.epoch < EPOCHS; esper_network_next_epoch(network))
        while (esper_network_batch_due(network)) {
            esper_cursor before = network->cursor;

            check_good(esper_network_step(network));
            if (out->steps[before.epoch][before.batch] != state_hash(network))
                return false;
        }
    return out->last == state_hash(network);
}

/* ------------------------------------------------------------------------------------------------ the table */

typedef struct tally {
    int n, n_found, n_named, n_skipped, n_rolled_back, n_restored, n_same, n_later, n_stopped;
} fault_tally;

static inline void try_fault(uint32_t number, fault_class class, fault_tally *tally)
{
    fault self = fault_new(number, class);
    outcome out;
    char text[512];

    run_with(&self, &out);
    if (!self.done)
        return; /* nothing of the kind to spoil at that time */
    tally->n++;
    tally->n_found += out.found;
    tally->n_later += !out.found && out.n_incidents > 0;
    tally->n_named += out.found && out.named;
    tally->n_rolled_back += out.rolled_back;
    tally->n_skipped += out.found && !out.rolled_back;
    tally->n_restored += out.restored;
    tally->n_stopped += out.stopped;
    describe_fault(&self, text, sizeof(text));
    if (!classes[class].must)
        return;
    if (out.stopped)
        fail_msg("fault %u, %s: the governor stopped the run", number, text);
    if (!out.found || !out.named)
        fail_msg("fault %u, %s: %s", number, text, out.found ? "another tensor was named" : "not found");
    if (out.rolled_back && !out.restored)
        fail_msg("fault %u, %s: the state is not that of the snapshot's step", number, text);
    if (!same_as_told(&self, &out))
        fail_msg("fault %u, %s: what followed is not the clean run that was told", number, text);
    tally->n_same++;
}

/* Spreads so many faults over the classes and prints what came of them. */
static inline void try_faults(int n_faults)
{
    fault_tally tallies[N_CLASSES] = {0};

    for (int i = 0; i < n_faults; i++)
        try_fault((uint32_t)i, (fault_class)(i % N_CLASSES), &tallies[i % N_CLASSES]);
    print_message("%-46s %6s %6s %6s %8s %10s %9s %6s %6s %8s\n", "class", "faults", "found", "named", "skipped",
                  "went back", "restored", "same", "later", "stopped");
    for (int c = 0; c < N_CLASSES; c++) {
        const fault_tally *row = &tallies[c];

        print_message("%-46s %6d %6d %6d %8d %10d %9d %6d %6d %8d\n", classes[c].text, row->n, row->n_found,
                      row->n_named, row->n_skipped, row->n_rolled_back, row->n_restored, row->n_same, row->n_later,
                      row->n_stopped);
        assert_true(row->n > 0);
        if (classes[c].must)
            assert_true(row->n_found == row->n && row->n_named == row->n && row->n_same == row->n);
    }
}

/* ------------------------------------------------------------------------------------------------ healthy */

/* Healthy training raises no alarm, takes its snapshots, and ends where it ends without a guard, bit for bit. */
static inline void train_healthy(lab *self, int n_steps, bool checksum)
{
    esper_network *network = self->hit;
    esper_incident incident;
    esper_tally tally;

    put_back(self, network);
    put_back(self, self->clean);
    network->engine->config.guard_checksum = checksum;
    network->engine->config.epochs = self->clean->engine->config.epochs = n_steps / STEPS + 1; /* a cosine ends there */
    check_good(esper_guarded_open(network));
    for (int i = 0; i < n_steps; i++) {
        check_good(esper_guarded_step(network, &incident));
        assert_int_equal(incident.action, ESPER_GOVERNOR_GO);
        check_good(esper_network_step(self->clean));
        if (network->cursor.batch < STEPS)
            continue;
        check_good(esper_guarded_settle(network, &incident));
        assert_int_equal(incident.action, ESPER_GOVERNOR_GO);
        check_good(esper_network_evaluate(network, ESPER_SPLIT_VALID, NULL, &tally));
        check_good(esper_guarded_judge(network, esper_tally_loss(&tally), &incident));
        if (incident.action != ESPER_GOVERNOR_GO || esper_guarded_reading(network).consecutive > 0)
            fail_msg("%s: a false alarm after %d steps: %s, loss %g", self->name, i + 1,
                     esper_governor_reason_name(incident.reason), incident.loss);
        esper_network_next_epoch(network);
        esper_network_next_epoch(self->clean);
    }
    if (state_hash(network) != state_hash(self->clean))
        fail_msg("%s: the guard changed the training", self->name);
    assert_int_equal(esper_guarded_reading(network).n_skipped, 0);
    assert_int_equal(esper_guarded_reading(network).n_rollbacks, 0);
    esper_guarded_close(network);
    network->engine->config.epochs = self->clean->engine->config.epochs = EPOCHS;
}

#endif
