/* ctest: timeout=120 sealed=also */
/* Checkpoints: exact, and refused with a reason when they are none, of another version, cut short or changed. */
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "engine/helpers.h"

#define TINY "threads = 1\nbatch = 4\nchannels = 1\nblocks = 2\nkernel = 1\nmax_steps = 3\n"

/* A network after some steps, its checkpoint in memory, and a second network to restore into. */
typedef struct fixture {
    esper_config  config;
    esper_network *network, *other;
    char         *bytes;
    size_t        n_bytes;
} fixture;

static void write_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static int set_up(void **state)
{
    fixture *self = calloc(1, sizeof(*self));

    assert_non_null(self);
    self->config = config_of("synth", TINY, "optimizer = adamw\n");
    check_good(esper_single_open(task_named("synth"), &self->config, ESPER_USE_TRAIN, &self->network));
    check_good(esper_single_open(task_named("synth"), &self->config, ESPER_USE_TRAIN, &self->other));
    check_good(esper_network_step(self->network));
    check_good(esper_network_step(self->network));
    check_good(esper_checkpoint_save(self->network, "good.safetensors"));
    check_good(esper_file_read("good.safetensors", 1 << 24, &self->bytes, &self->n_bytes));
    *state = self;
    return 0;
}

static int tear_down(void **state)
{
    fixture *self = *state;

    esper_single_close(self->network);
    esper_single_close(self->other);
    esper_mem_free(self->bytes);
    free(self);
    assert_int_equal(live_blocks(), 0);
    return 0;
}

/* Opens and restores: what `esper train --resume` does. */
static esper_status load(const char *path, esper_network *network)
{
    esper_checkpoint checkpoint;
    esper_status status;

    ESPER_TRY(esper_checkpoint_init(path, &checkpoint));
    status = esper_checkpoint_restore(&checkpoint, network);
    esper_checkpoint_fini(&checkpoint);
    return status;
}

/* ---- good ones ---- */

static void round_trip_is_exact(void **state)
{
    fixture *self = *state;
    const esper_network *a = self->network, *b = self->other;

    check_good(load("good.safetensors", self->other));
    assert_memory_equal(&a->cursor, &b->cursor, sizeof(a->cursor));
    assert_memory_equal(&a->tally, &b->tally, sizeof(a->tally));
    for (int f = 0; f < ESPER_N_FAMILIES; f++) {
        size_t bytes = (size_t)esper_slab_count(&a->slab, (esper_family)f) * sizeof(float);

        if (f != ESPER_FAMILY_GRAD &&
            memcmp(slab_values(&a->slab, (esper_family)f), slab_values(&b->slab, (esper_family)f), bytes) != 0)
            fail_msg("%s differs", esper_family_name((esper_family)f));
    }
    assert_true(esper_network_hash(a) == esper_network_hash(b));
    check_good(esper_network_step(self->network));
    check_good(esper_network_step(self->other));
    if (esper_network_hash(a) != esper_network_hash(b))
        fail_msg("after one more step: %016" PRIx64 " and %016" PRIx64, esper_network_hash(a), esper_network_hash(b));
}

static void opened_checkpoint_tells_what_it_is(void **state)
{
    fixture *self = *state;
    esper_checkpoint checkpoint;
    char was[ESPER_CONFIG_RECORD_CHARS], is[ESPER_CONFIG_RECORD_CHARS];

    check_good(esper_checkpoint_init("good.safetensors", &checkpoint));
    assert_ptr_equal(checkpoint.task, task_named("synth"));
    assert_string_equal(checkpoint.kernels, esper_backend_identity(self->network->engine->backend));
    esper_config_write(&self->config, was);
    esper_config_write(&checkpoint.config, is);
    assert_string_equal(was, is);
    esper_checkpoint_fini(&checkpoint);
    esper_checkpoint_fini(&checkpoint); /* fine */
}

/* The same state gives the same bytes, and saving leaves no other file behind. */
static void saving_is_repeatable(void **state)
{
    fixture *self = *state;
    char *again;
    size_t n;

    check_good(load("good.safetensors", self->other));
    check_good(esper_checkpoint_save(self->other, "again.safetensors"));
    check_good(esper_file_read("again.safetensors", 1 << 24, &again, &n));
    assert_int_equal(n, self->n_bytes);
    assert_memory_equal(again, self->bytes, n);
    esper_mem_free(again);
}

/* The age of the optimiser is state of its own: it is not made up from the number of steps, and it counts. */
static void age_of_the_optimiser_is_restored(void **state)
{
    fixture *self = *state;
    esper_group *group = esper_optim_group(self->other->optim, 0, 0);
    uint64_t hash;

    check_good(load("good.safetensors", self->other));
    assert_int_equal(group->t, 2);
    group->t = 4000000000u;
    check_good(esper_checkpoint_save(self->other, "aged.safetensors"));
    group->t = 0;
    check_good(load("aged.safetensors", self->other));
    assert_int_equal(group->t, 4000000000u);
    assert_int_equal(self->other->cursor.step, 2);
    check_good(esper_network_step(self->other));
    hash = esper_network_hash(self->other);
    check_good(load("good.safetensors", self->other));
    assert_int_equal(group->t, 2);
    check_good(esper_network_step(self->other));
    if (hash == esper_network_hash(self->other))
        fail_msg("%016" PRIx64 " after a step of either age", hash);
}

/* Whatever the loss was, and wherever the program speaks with a decimal comma. */
static void loss_comes_back(void **state)
{
    static const double losses[] = {0.0,      -0.0,      0.1, 1.0 / 3.0, 123456.789e10, 5e-324, 1.7976931348623157e308,
                                    INFINITY, -INFINITY, NAN};
    fixture *self = *state;
    double before = self->network->tally.loss;
    const char *locale = setlocale(LC_ALL, "de_DE.UTF-8");

    if (locale == NULL)
        print_message("no German locale here: only the decimal point is tried\n");
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        double found;

        self->network->tally.loss = losses[i];
        check_good(esper_checkpoint_save(self->network, "loss.safetensors"));
        check_good(load("loss.safetensors", self->other));
        found = self->other->tally.loss;
        if (isnan(losses[i]) ? !isnan(found) : memcmp(&found, &losses[i], sizeof(found)) != 0)
            fail_msg("%a came back as %a", losses[i], found);
        assert_int_equal(self->other->tally.samples, self->network->tally.samples);
    }
    setlocale(LC_ALL, "C");
    self->network->tally.loss = before;
}

/* Weights alone go into a network without an optimiser. */
static void inference_takes_the_weights(void **state)
{
    fixture *self = *state;
    esper_network *reader;
    esper_tally a, b;

    check_good(esper_single_open(task_named("synth"), &self->config, ESPER_USE_EVALUATE, &reader));
    check_good(load("good.safetensors", reader));
    check_good(load("good.safetensors", self->other));
    check_good(esper_network_evaluate(reader, ESPER_SPLIT_TEST, NULL, &a));
    check_good(esper_network_evaluate(self->other, ESPER_SPLIT_TEST, NULL, &b));
    if (memcmp(&a, &b, sizeof(a)) != 0)
        fail_msg("loss %a without an optimiser, %a with one", a.loss, b.loss);
    check_fails(esper_network_step(reader), ESPER_E_STATE, "no training step");
    esper_single_close(reader);
}

/* A network of another shape is refused, tensor by tensor. */
static void another_network_is_refused(void **state)
{
    fixture *self = *state;
    esper_config config = config_of("synth", TINY, "channels = 2\noptimizer = adamw\n");
    esper_network *network;

    (void)self;
    check_good(esper_single_open(task_named("synth"), &config, ESPER_USE_TRAIN, &network));
    check_fails(load("good.safetensors", network), ESPER_E_FORMAT, "good.safetensors|blocks.0.conv.weight|wanted");
    esper_single_close(network);
}

/* ---- bad ones ---- */

static void no_checkpoint_at_all(void **state)
{
    static const float value = 1.0f;
    esper_safetensors_tensor tensor = {.name = "x", .dtype = ESPER_SAFETENSORS_F32, .data = &value};
    esper_checkpoint checkpoint;

    (void)state;
    check_fails(esper_checkpoint_init("absent", &checkpoint), ESPER_E_NOTFOUND, "absent");
    check_fails(esper_checkpoint_init(".", &checkpoint), ESPER_E_IO, "not a regular file");
    write_bytes("empty", "", 0);
    check_fails(esper_checkpoint_init("empty", &checkpoint), ESPER_E_FORMAT, "empty|truncated");
    write_bytes("text", "seed = 1\nthreads = 4\n", 21);
    check_fails(esper_checkpoint_init("text", &checkpoint), ESPER_E_FORMAT, "text|not a safetensors file");
    check_good(esper_safetensors_write("plain.safetensors", &tensor, 1, NULL, 0));
    check_fails(esper_checkpoint_init("plain.safetensors", &checkpoint), ESPER_E_FORMAT,
                "plain.safetensors|no Esper checkpoint");
}

static uint64_t hash_text(const char *text, uint64_t hash)
{
    return XXH64(text, strlen(text) + 1, hash);
}

/* The contents_hash, as docs/checkpoint.md describes it. */
static uint64_t hash_contents(const esper_safetensors_note *notes, size_t n_notes,
                              const esper_safetensors_tensor *tensors, size_t n_tensors)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < n_notes; i++)
        hash = hash_text(notes[i].value, hash_text(notes[i].key, hash));
    for (size_t i = 0; i < n_tensors; i++) {
        hash = XXH64(tensors[i].shape, (size_t)tensors[i].rank * 8, hash_text(tensors[i].name, hash));
        hash = XXH64(tensors[i].data, (size_t)tensors[i].n_bytes, hash);
    }
    return hash;
}

/* Writes the good checkpoint's notes and tensors again, with one note changed (NULL: left out). The contents_hash
 * stays, or is made to fit. */
static void rewrite(const char *path, const char *key, const char *value, bool fitting)
{
    esper_safetensors_note notes[32];
    esper_safetensors_tensor tensors[128];
    esper_safetensors *file;
    char hash[20];
    size_t n = 0;

    check_good(esper_safetensors_open("good.safetensors", &file));
    assert_true(esper_safetensors_note_count(file) <= 32 && esper_safetensors_count(file) <= 128);
    for (size_t i = 0; i < esper_safetensors_note_count(file); i++) {
        esper_safetensors_note note = esper_safetensors_note_at(file, i);

        if (strcmp(note.key, key) == 0)
            note.value = value;
        if (note.value != NULL)
            notes[n++] = note;
    }
    for (size_t i = 0; i < esper_safetensors_count(file); i++)
        tensors[i] = *esper_safetensors_at(file, i);
    if (fitting) {
        snprintf(hash, sizeof(hash), "%016" PRIx64,
                 hash_contents(notes, n - 1, tensors, esper_safetensors_count(file)));
        notes[n - 1].value = hash;
    }
    check_good(esper_safetensors_write(path, tensors, esper_safetensors_count(file), notes, n));
    esper_safetensors_close(file);
}

static void rewrite_note(const char *path, const char *key, const char *value)
{
    rewrite(path, key, value, false);
}

static void other_versions_say_so(void **state)
{
    static const char *const versions[] = {"2", "0", "11", "1.5", "-1", "one"};
    esper_checkpoint checkpoint;

    (void)state;
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        char words[64];

        rewrite_note("version", "format_version", versions[i]);
        snprintf(words, sizeof(words), "format %s|reads format %d|%s", versions[i], ESPER_CHECKPOINT_VERSION,
                 ESPER_VERSION);
        check_fails(esper_checkpoint_init("version", &checkpoint), ESPER_E_FORMAT, words);
    }
}

/* Every note counts, also those that this build would not look at. */
static void changed_notes_are_found(void **state)
{
    static const char *const keys[] = {"esper_version", "commit", "task",  "config",      "kernels",      "seed",
                                       "cursor",        "tally",  "optim", "weight_hash", "contents_hash"};
    esper_checkpoint checkpoint;

    (void)state;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        rewrite_note("changed", keys[i], "something else");
        check_fails(esper_checkpoint_init("changed", &checkpoint), ESPER_E_FORMAT, "changed|damaged|hash");
        rewrite_note("changed", keys[i], NULL);
        check_fails(esper_checkpoint_init("changed", &checkpoint), ESPER_E_FORMAT, "changed|damaged|hash");
    }
    rewrite_note("changed", "format", "other");
    check_fails(esper_checkpoint_init("changed", &checkpoint), ESPER_E_FORMAT, "no Esper checkpoint");
    rewrite_note("changed", "format", "esper-checkpoint");
    check_good(esper_checkpoint_init("changed", &checkpoint)); /* the rewriting itself changes nothing */
    esper_checkpoint_fini(&checkpoint);
}

/* Whole files that do not say where the run stood are refused, by name. */
static void unreadable_positions(void **state)
{
    static const struct {
        const char *key, *value, *words;
    } cases[] = {
        {"cursor", NULL, "strange|where the run stood"},
        {"cursor", "epoch 0 batch", "strange|where the run stood"},
        {"cursor", "epoch 0 batch 1000 step 2", "strange|batch 1000 of an epoch of 3|other data"},
        {"tally", NULL, "strange|what the epoch had brought"},
        {"tally", "loss 1,5 correct 1 targets 8 samples 8", "strange|what the epoch had brought"},
        {"tally", "loss 0x1p3 correct 1 targets 8 samples 8", "strange|what the epoch had brought"},
        {"tally", "loss 1.5 correct 1 targets 8", "strange|what the epoch had brought"},
        {"optim", NULL, "strange|in each of 1 regions"},
        {"optim", "", "strange|in each of 1 regions"},
        {"optim", "t", "strange|in each of 1 regions"},
        {"optim", "t two", "strange|in each of 1 regions"},
        {"optim", "t 2 0", "strange|in each of 1 regions"},
        {"weight_hash", "0123456789abcdef", "strange|0123456789abcdef|the network is another"},
    };
    fixture *self = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        rewrite("strange", cases[i].key, cases[i].value, true);
        check_fails(load("strange", self->other), ESPER_E_FORMAT, cases[i].words);
    }
    rewrite("strange", "optim", "t 7", true);
    check_good(load("strange", self->other));
    assert_int_equal(esper_optim_group(self->other->optim, 0, 0)->t, 7);
}

/* As 0.1 wrote them: nothing of what was spent, and settings that are gone. */
static void older_ones_are_read(void **state)
{
    static const struct {
        const char *lines, *words; /* NULL: it is read */
    } cases[] = {
        {"\nlr_epochs = 0\nlr_finish = 0\n", NULL},
        {"\nlr_epochs = 3\n", "lr_epochs is no setting any more|schedule = hold"},
        {"\nlr_finish = 3\n", "lr_finish is no setting any more|schedule = hold"},
    };
    fixture *self = *state;
    esper_safetensors *file;
    char *text;

    rewrite("older", "cursor", "epoch 0 batch 2 step 2", true);
    check_good(load("older", self->other));
    assert_int_equal(self->other->cursor.step, 2);
    assert_int_equal(self->other->cursor.spent, 2 * self->network->step_cost);
    rewrite("older", "cursor", "epoch 0 batch 2 step 2 spent 77 of 0", true); /* a run by epochs */
    check_good(load("older", self->other));
    assert_int_equal(self->other->cursor.spent, 77);
    rewrite("older", "cursor", "epoch 0 batch 2 step 2 spent 77", true);
    check_fails(load("older", self->other), ESPER_E_FORMAT, "older|where the run stood");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check_good(esper_safetensors_open("good.safetensors", &file));
        assert_true(asprintf(&text, "%s%s", esper_safetensors_note_find(file, "config"), cases[i].lines) > 0);
        esper_safetensors_close(file);
        rewrite("older", "config", text, true);
        free(text);
        if (cases[i].words == NULL)
            check_good(load("older", self->other));
        else
            check_fails(load("older", self->other), ESPER_E_FORMAT, cases[i].words);
    }
}

/* Other data is seen by its hash; a checkpoint of 0.1 has none. */
static void knows_its_data(void **state)
{
    static const char *const values[] = {NULL, "0123456789abcdef", ""};
    fixture *self = *state;
    esper_checkpoint checkpoint;

    check_good(esper_checkpoint_init("good.safetensors", &checkpoint));
    assert_true(esper_checkpoint_knows_data(&checkpoint, self->other));
    esper_checkpoint_fini(&checkpoint);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        rewrite("older", "data_hash", values[i], true);
        check_good(esper_checkpoint_init("older", &checkpoint));
        assert_int_equal(esper_checkpoint_knows_data(&checkpoint, self->other), values[i] == NULL);
        esper_checkpoint_fini(&checkpoint);
    }
    rewrite("older", "data_hash", NULL, true);
    check_good(load("older", self->other));
}

static void truncated_anywhere(void **state)
{
    fixture *self = *state;

    for (size_t n = 0; n < self->n_bytes; n = n < 64 ? n + 1 : n + 1 + n / 50) {
        write_bytes("short", self->bytes, n);
        check_fails(load("short", self->other), ESPER_E_FORMAT, "short");
    }
    write_bytes("short", self->bytes, self->n_bytes - 1);
    check_fails(load("short", self->other), ESPER_E_FORMAT, "short");
}

static void longer_than_it_was(void **state)
{
    fixture *self = *state;
    char *longer = calloc(1, self->n_bytes + 1);

    assert_non_null(longer);
    memcpy(longer, self->bytes, self->n_bytes);
    write_bytes("long", longer, self->n_bytes + 1);
    check_fails(load("long", self->other), ESPER_E_FORMAT, "long");
    free(longer);
}

/* One flipped bit in every byte of the file in turn (another bit for each byte): header, weights, buffers, moments. */
static void one_flipped_bit_anywhere(void **state)
{
    fixture *self = *state;
    uint64_t live = live_blocks();

    for (size_t i = 0; i < self->n_bytes; i++) {
        char flip = (char)(1u << (i % 8));
        esper_status status;

        self->bytes[i] ^= flip;
        write_bytes("flipped", self->bytes, self->n_bytes);
        self->bytes[i] ^= flip;
        status = load("flipped", self->other);
        if (status != ESPER_E_FORMAT)
            fail_msg("bit %zu of byte %zu of %zu flipped: %s (%s), expected ESPER_E_FORMAT", i % 8, i, self->n_bytes,
                     esper_status_name(status), status == ESPER_OK ? "" : esper_last_error());
        if (strstr(esper_last_error(), "flipped") == NULL)
            fail_msg("byte %zu flipped: the message does not name the file: %s", i, esper_last_error());
    }
    assert_int_equal(live_blocks(), live);
}

/* ---- saving ---- */

static void saving_where_it_cannot_be(void **state)
{
    fixture *self = *state;

    write_bytes("a-file", "x", 1);
    check_fails(esper_checkpoint_save(self->network, "no/such/dir/x"), ESPER_E_NOTFOUND, "no/such/dir/x");
    check_fails(esper_checkpoint_save(self->network, "a-file/x"), ESPER_E_IO, "a-file/x");
    if (geteuid() == 0) {
        print_message("skipped: root may write anywhere\n");
        return;
    }
    assert_int_equal(mkdir("closed", 0555), 0);
    check_fails(esper_checkpoint_save(self->network, "closed/x"), ESPER_E_IO, "closed/x|ermission");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip_is_exact),
        cmocka_unit_test(opened_checkpoint_tells_what_it_is),
        cmocka_unit_test(saving_is_repeatable),
        cmocka_unit_test(inference_takes_the_weights),
        cmocka_unit_test(another_network_is_refused),
        cmocka_unit_test(no_checkpoint_at_all),
        cmocka_unit_test(age_of_the_optimiser_is_restored),
        cmocka_unit_test(loss_comes_back),
        cmocka_unit_test(older_ones_are_read),
        cmocka_unit_test(knows_its_data),
        cmocka_unit_test(unreadable_positions),
        cmocka_unit_test(other_versions_say_so),
        cmocka_unit_test(changed_notes_are_found),
        cmocka_unit_test(truncated_anywhere),
        cmocka_unit_test(longer_than_it_was),
        cmocka_unit_test(one_flipped_bit_anywhere),
        cmocka_unit_test(saving_where_it_cannot_be),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
