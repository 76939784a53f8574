/* Internal to tests/fault. Fails every allocation in turn (or every `stride`th of them) of what opens, saves, restores
 * and trains: each time the call must say E_NOMEM, leave no block behind and no checkpoint damaged. */
#ifndef ESPER_TESTS_FAULT_ALLOC_H
#define ESPER_TESTS_FAULT_ALLOC_H

#include <ftw.h>
#include <sys/stat.h>

#include "base/file.h"
#include "engine/helpers.h"

/* Something that takes memory, can fail, and gives back all it took. */
typedef esper_status (*attempt)(void *context);

/* After each failure: what was there before is still good. NULL: nothing to look at. */
typedef void (*afterwards)(void *context);

/* Lets allocation 1, 1 + stride, ... fail until the attempt succeeds, which it must in the end. */
static inline void fail_each(const char *what, attempt try_it, afterwards look, void *context, uint64_t stride)
{
    uint64_t live = live_blocks(), nth = 1, n_failed = 0;

    for (;; nth += stride, n_failed++) {
        esper_status status;

        esper_fail(ESPER_OK, "no message");
        esper_mem_fail_at(nth);
        status = try_it(context);
        esper_mem_fail_at(0);
        if (live_blocks() != live)
            fail_msg("%s: allocation %llu failed: %lld blocks left behind", what, (unsigned long long)nth,
                     (long long)(live_blocks() - live));
        if (look != NULL)
            look(context);
        if (status == ESPER_OK)
            break;
        if (status != ESPER_E_NOMEM || strcmp(esper_last_error(), "no message") == 0)
            fail_msg("%s: allocation %llu failed: %s (%s), expected ESPER_E_NOMEM and a reason", what,
                     (unsigned long long)nth, esper_status_name(status), esper_last_error());
    }
    print_message("%s: %llu allocations failed in turn\n", what, (unsigned long long)n_failed);
    assert_true(n_failed > 0);
}

/* ---- the tasks: a text of a few lines opens in no time; images are here for batch norm's buffers ---- */

typedef struct subject {
    const char   *task;
    esper_config  config;
    esper_network *network;
    char         *checkpoint; /* bytes of a good one at run/ */
    size_t        n_checkpoint;
} subject;

static inline void write_text_file(void)
{
    FILE *file = fopen("text.txt", "w");

    assert_non_null(file);
    for (int i = 0; i < 60; i++)
        fprintf(file, "%d green bottles hanging on the wall\n", 60 - i);
    fclose(file);
}

#define FAULT_TEXT                                                                       \
    "threads = 2\nbatch = 2\nlayers = 2\nwidth = 4\nheads = 2\ncontext = 8\nmax_steps = 2\n" \
    "epochs = 2\ndata = text.txt\n"
#define FAULT_CNN "threads = 1\nbatch = 4\nchannels = 1\nblocks = 2\nkernel = 1\nmax_steps = 2\nepochs = 2\n"

static inline subject *subject_new(const char *task, const char *settings)
{
    subject *self = calloc(1, sizeof(*self));

    assert_non_null(self);
    write_text_file();
    self->task = task;
    self->config = config_of(task, settings, "run_dir = run\n");
    return self;
}

/* ---- attempts ---- */

static inline esper_status try_network(void *context)
{
    subject *self = context;

    ESPER_TRY(esper_single_open(task_named(self->task), &self->config, ESPER_USE_TRAIN, &self->network));
    esper_single_close(self->network);
    return ESPER_OK;
}

static inline esper_status try_reader(void *context)
{
    subject *self = context;

    ESPER_TRY(esper_single_open(task_named(self->task), &self->config, ESPER_USE_EVALUATE, &self->network));
    esper_single_close(self->network);
    return ESPER_OK;
}

static inline esper_status try_save(void *context)
{
    subject *self = context;

    return esper_checkpoint_save(self->network, "saved.safetensors");
}

static inline esper_status try_restore(void *context)
{
    subject *self = context;
    esper_checkpoint checkpoint;
    esper_status status;

    ESPER_TRY(esper_checkpoint_init("saved.safetensors", &checkpoint));
    status = esper_checkpoint_restore(&checkpoint, self->network);
    esper_checkpoint_fini(&checkpoint);
    return status;
}

static inline int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static inline esper_status try_run(void *context)
{
    subject *self = context;
    esper_run_result result;

    nftw("run", remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return run_steps(self->task, &self->config, NULL, -1, &result);
}

static inline esper_status try_resume(void *context)
{
    subject *self = context;
    esper_run_result result;
    esper_config nothing;
    FILE *file = fopen("run/" ESPER_RUN_CHECKPOINT, "wb"); /* as it was when the run was stopped */

    assert_non_null(file);
    assert_int_equal(fwrite(self->checkpoint, 1, self->n_checkpoint, file), self->n_checkpoint);
    fclose(file);
    esper_config_init(&nothing);
    return run_steps(NULL, &nothing, "run", -1, &result);
}

/* ---- afterwards ---- */

static inline void check_saved_is_good(void *context)
{
    esper_checkpoint checkpoint;

    (void)context;
    check_good(esper_checkpoint_init("saved.safetensors", &checkpoint));
    esper_checkpoint_fini(&checkpoint);
}

/* A draft that was given up is gone. */
static inline int find_draft(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    if (strstr(path, ".tmp") != NULL)
        fail_msg("%s was left behind", path);
    return 0;
}

static inline void check_run_is_good(void *context)
{
    esper_checkpoint checkpoint;

    (void)context;
    check_good(esper_checkpoint_init("run/" ESPER_RUN_CHECKPOINT, &checkpoint));
    esper_checkpoint_fini(&checkpoint);
    nftw("run", find_draft, 16, FTW_PHYS);
}

/* ---- tests ---- */

static inline void fail_network(subject *self, uint64_t stride)
{
    fail_each("init", try_network, NULL, self, stride);
    fail_each("init without optimiser", try_reader, NULL, self, stride);
}

static inline void fail_checkpoint(subject *self, uint64_t stride)
{
    check_good(esper_single_open(task_named(self->task), &self->config, ESPER_USE_TRAIN, &self->network));
    check_good(esper_network_step(self->network));
    check_good(esper_checkpoint_save(self->network, "saved.safetensors"));
    fail_each("save", try_save, check_saved_is_good, self, stride);
    fail_each("open and restore", try_restore, check_saved_is_good, self, stride);
    esper_single_close(self->network);
}

static inline void fail_run(subject *self, uint64_t stride)
{
    esper_run_result result;

    fail_each("run", try_run, NULL, self, stride);
    nftw("run", remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    check_good(run_steps(self->task, &self->config, NULL, 1, &result));
    assert_true(result.stopped);
    check_good(esper_file_read("run/" ESPER_RUN_CHECKPOINT, 1 << 24, &self->checkpoint, &self->n_checkpoint));
    fail_each("resume", try_resume, check_run_is_good, self, stride);
    esper_mem_free(self->checkpoint);
}

#endif
