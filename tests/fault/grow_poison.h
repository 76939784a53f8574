/* Internal to tests/fault. Runs that grow, each hit by a fault of its own at a random step: a number of the host or of a seed,
 * in a parameter, a moment or a gradient, becomes NaN or Inf. Every fault is found at once, by its own name; the run
 * recovers and finishes; and a second run of the same seed is the same run, bit for bit. */
#ifndef ESPER_TESTS_FAULT_GROW_POISON_H
#define ESPER_TESTS_FAULT_GROW_POISON_H

#include <ftw.h>
#include <inttypes.h>

#include "base/file.h"
#include "base/rng.h"
#include "engine/helpers.h"

enum { POISON_EPOCHS = 18, POISON_STEPS = 3, POISON_PATH = 64 };

#define POISON_CNN  "threads = 1\nbatch = 4\nchannels = 2\nblocks = 2\n"
#define POISON_TEXT "threads = 1\nbatch = 2\nlayers = 2\nwidth = 8\nheads = 2\ncontext = 8\n"
#define POISON_ALL \
    "max_steps = 3\nlength = epochs\nepochs = 18\nsnapshot_every = 2\ngates = permissive\npolicy = scripted\ndecisions = poison.txt\n"

typedef struct poison {
    const char *task;
    bool        two;   /* faults, both behind the birth of the seed */
    char        inject[128];
    esper_config config;
} poison;

static inline int unlink_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* What goes wrong in run i. */
static inline poison poison_of(uint32_t i)
{
    static const char *const roles[] = {"param", "moment", "grad"}, *const faults[] = {"nan", "inf", "neg_inf"};
    esper_rng_key key = {.seed = 5, .purpose = ESPER_RNG_TEST, .sample = i};
    poison self = {.task = i % 3 == 2 ? "synth_text" : "synth", .two = i % 4 == 3};
    uint32_t least = self.two ? 2 * POISON_STEPS : 0;
    uint32_t n =
        POISON_EPOCHS * POISON_STEPS - least - 2; /* a first fault costs a batch: the last steps may not come */
    char lines[256];
    size_t used = 0;
    esper_rng rng;

    esper_rng_init(&rng, &key);
    for (int f = 0; f < 1 + self.two; f++) {
        bool seed = esper_rng_below(&rng, 2) == 1;
        uint32_t half = n / (self.two ? 2 : 1), step = least + (uint32_t)f * half + esper_rng_below(&rng, half);

        used +=
            (size_t)snprintf(self.inject + used, sizeof(self.inject) - used, "%s%u:%s:%s:%s", f > 0 ? "," : "", step,
                             seed ? "seed" : "host", roles[esper_rng_below(&rng, 3)], faults[esper_rng_below(&rng, 3)]);
    }
    self.config = config_of(self.task, i % 3 == 2 ? POISON_TEXT : POISON_CNN, POISON_ALL);
    snprintf(lines, sizeof(lines), "seed = %u\noptimizer = %s\nincubation = %s\ninject = %s\n", i + 1,
             i % 2 == 0 ? "sgd" : "adamw", i % 5 == 4 ? "straight" : "aside", self.inject);
    set_keys(&self.config, lines);
    return self;
}

/* With one fault, the seed lives on into holding; with two it may be pruned by the governor, and nobody asks for more. */
static inline void write_plan(const poison *self)
{
    FILE *file = fopen("poison.txt", "w");
    const char *blueprint = strcmp(self->task, "synth") == 0 ? "conv_light" : "mlp_small";

    assert_non_null(file);
    fprintf(file, "1 r0c0 germinate blueprint=%s tempo=1\n2 r0c0 advance\n", blueprint);
    if (!self->two)
        fprintf(file, "13 r0c0 advance\n15 r0c0 advance\n");
    fclose(file);
}

static inline void run_poisoned(const poison *self, const char *dir, esper_run_result *result)
{
    esper_config config = self->config;
    esper_run_desc desc = {.task = task_named(self->task), .config = &config, .grows = true};
    char line[POISON_PATH];

    nftw(dir, unlink_entry, 16, FTW_DEPTH | FTW_PHYS);
    snprintf(line, sizeof(line), "run_dir = %s\n", dir);
    set_keys(&config, line);
    if (esper_run_train(&desc, result) != ESPER_OK)
        fail_msg("inject %s on %s: %s", self->inject, self->task, esper_last_error());
    assert_int_equal(result->last.epoch, POISON_EPOCHS);
}

/* Each injection is followed by the governor's answer to it, which names what was hit. */
static inline int check_answers(const poison *self, const char *path)
{
    esper_decision_history history;
    int n = 0;

    check_good(esper_decision_history_read(path, UINT64_MAX, &history));
    for (uint64_t i = 0; i < history.n; i++) {
        const esper_log_entry *hit = &history.entries[i], *found = hit + 1;

        if (hit->source != ESPER_LOG_INJECTION)
            continue;
        n++;
        if (i + 1 == history.n || found->source != ESPER_LOG_GOVERNOR || found->step != hit->step)
            fail_msg("inject %s on %s: nobody noticed NaN or Inf in %s", self->inject, self->task,
                     hit->injection.tensor);
        if (strcmp(found->governor.tensor, hit->injection.tensor) != 0 || found->governor.role != hit->injection.role ||
            found->governor.first_index != hit->injection.element)
            fail_msg("inject %s on %s: %s %" PRIu64 " was hit, %s %" PRIu64 " is named", self->inject, self->task,
                     hit->injection.tensor, hit->injection.element, found->governor.tensor,
                     found->governor.first_index);
        assert_string_equal(found->governor.problem,
                            strcmp(esper_log_fault_name(hit->injection.fault), "nan") == 0 ? "NaN" : "Inf");
    }
    esper_decision_history_free(&history);
    return n;
}

static inline void check_same_file(const char *path_a, const char *path_b)
{
    char *a, *b;
    size_t n, m;

    check_good(esper_file_read(path_a, 1 << 24, &a, &n));
    check_good(esper_file_read(path_b, 1 << 24, &b, &m));
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    esper_mem_free(a);
    esper_mem_free(b);
}

static inline void poison_runs(uint32_t first, uint32_t n_runs)
{
    uint64_t n_skipped = 0, n_rollbacks = 0;
    int n_found = 0;

    for (uint32_t i = first; i < first + n_runs; i++) {
        poison self = poison_of(i);
        esper_run_result one, two;
        int n;

        write_plan(&self);
        run_poisoned(&self, "poisoned", &one);
        n = check_answers(&self, "poisoned/" ESPER_RUN_DECISIONS);
        if (n != 1 + self.two)
            fail_msg("run %u, inject %s on %s: %d of its faults came about", i, self.inject, self.task, n);
        run_poisoned(&self, "again", &two);
        if (one.weight_hash != two.weight_hash)
            fail_msg("inject %s on %s: weights %016" PRIx64 ", the second time %016" PRIx64, self.inject, self.task,
                     one.weight_hash, two.weight_hash);
        check_same_file("poisoned/" ESPER_RUN_DECISIONS, "again/" ESPER_RUN_DECISIONS);
        n_found += n;
        n_skipped += one.n_skipped;
        n_rollbacks += one.n_rollbacks;
    }
    print_message("%u runs: %d faults found and named, %" PRIu64 " steps skipped, %" PRIu64 " rollbacks\n", n_runs,
                  n_found, n_skipped, n_rollbacks);
    assert_true(n_skipped > 0 && n_rollbacks > 0);
}

#endif
