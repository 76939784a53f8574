/* Networks for other programs. The module's text is nn/torch_export.c's; here it meets the weights and the disk. */
#include "run/export.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/safetensors.h"
#include "run/run_dir.h"

esper_status esper_export_check_free(const char *path, bool force)
{
    struct stat info;

    if (stat(path, &info) != 0)
        return ESPER_OK; /* whatever is wrong with it, writing will say */
    if (S_ISDIR(info.st_mode))
        return ESPER_FAIL(ESPER_E_CONFIG, "%s is a directory, and a file is to be written there", path);
    if (!force)
        return ESPER_FAIL(ESPER_E_CONFIG, "%s is there already: --force replaces it", path);
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ weights */

/* An entry of the state_dict as the file holds it. `n_batches` is where the module's counters are read from. */
static esper_safetensors_tensor describe(const esper_export *what, const esper_slab *mirror,
                                         const esper_torch_entry *entry, const int64_t *n_batches)
{
    const esper_tensor *tensor = &what->torch.net->tensors[entry->tensor];
    esper_safetensors_tensor out = {.name = entry->name, .dtype = ESPER_SAFETENSORS_F32, .rank = tensor->rank};

    for (int i = 0; i < tensor->rank; i++)
        out.shape[i] = (uint64_t)tensor->dim[i];
    switch (entry->source) {
    case ESPER_TORCH_STATE:
        out.data =
            esper_slab_at(mirror, tensor->role == ESPER_ROLE_PARAM ? ESPER_FAMILY_PARAM : ESPER_FAMILY_BUFFER, tensor);
        break;
    case ESPER_TORCH_NUMBER:
        out.data = &entry->value;
        break;
    case ESPER_TORCH_BATCHES:
        out.dtype = ESPER_SAFETENSORS_I64;
        out.rank = 0;
        out.data = n_batches;
        break;
    }
    return out;
}

static esper_status write_weights(const esper_export *what, const esper_torch *torch, const char *path)
{
    const esper_safetensors_note notes[] = {
        {"format", "pt"}, /* what other readers of such files look for */
        {"esper_version", ESPER_VERSION},
        {"origin", what->origin},
    };
    int64_t n_batches = (int64_t)what->n_batches;
    esper_safetensors_tensor *tensors;
    esper_slab mirror;
    esper_status status;

    ESPER_TRY(esper_slab_mirror(what->slab,
                                ESPER_FAMILY_BIT(ESPER_FAMILY_PARAM) | ESPER_FAMILY_BIT(ESPER_FAMILY_BUFFER), &mirror));
    tensors = esper_mem_alloc((size_t)torch->n_entries * sizeof(*tensors) + 1);
    if (tensors == NULL) {
        esper_slab_fini(&mirror);
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: %d tensors", path, torch->n_entries);
    }
    for (int i = 0; i < torch->n_entries; i++)
        tensors[i] = describe(what, &mirror, &torch->entries[i], &n_batches);
    status = esper_safetensors_write(path, tensors, (size_t)torch->n_entries, notes, what->origin != NULL ? 3 : 2);
    esper_mem_free(tensors);
    esper_slab_fini(&mirror);
    return status;
}

esper_status esper_export_weights(const esper_export *what, const char *path)
{
    esper_torch torch;
    esper_status status;

    ESPER_TRY(esper_export_check_free(path, what->force));
    ESPER_TRY(esper_torch_init(&torch, &what->torch));
    status = write_weights(what, &torch, path);
    esper_torch_fini(&torch);
    return status;
}

/* ------------------------------------------------------------------------------------------------ module and weights */

static bool exists(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0;
}

/* One of the two files: where it goes, what is to come there, and what was there. */
typedef struct place {
    char path[ESPER_PATH_CHARS];
    char fresh[ESPER_PATH_CHARS + 64], old[ESPER_PATH_CHARS + 64];
    bool had;
} place;

static esper_status find_place(const esper_export *what, const char *dir, const char *name, place *out)
{
    ESPER_TRY(esper_run_path(dir, name, out->path));
    ESPER_TRY(esper_export_check_free(out->path, what->force));
    snprintf(out->fresh, sizeof(out->fresh), "%s.%ld-new.tmp", out->path, (long)getpid());
    snprintf(out->old, sizeof(out->old), "%s.%ld-old.tmp", out->path, (long)getpid());
    out->had = exists(out->path);
    return ESPER_OK;
}

static esper_status write_pair(const esper_export *what, const esper_torch *torch, const char *model,
                               const char *weights)
{
    ESPER_TRY(esper_file_write(model, torch->text, strlen(torch->text)));
    return write_weights(what, torch, weights);
}

/* A second name for a file that is there, to bring it back by; where there are no second names, its only one. */
static esper_status set_aside(const place *at)
{
    if (!at->had)
        return ESPER_OK;
    unlink(at->old);
    if (link(at->path, at->old) == 0 || rename(at->path, at->old) == 0)
        return ESPER_OK;
    return esper_file_fail("cannot be replaced", at->path);
}

static esper_status move_in(const place *at)
{
    if (rename(at->fresh, at->path) != 0)
        return esper_file_fail("cannot be put in place", at->path);
    return esper_file_sync_dir_of(at->path);
}

/* Both are whole on disk. The module goes first and comes last, so that one that is there, whatever happens on the way, belongs to
 * the weights beside it. */
static esper_status replace_pair(const place *model, const place *weights)
{
    ESPER_TRY(set_aside(model));
    ESPER_TRY(set_aside(weights));
    if (model->had && unlink(model->path) != 0 && errno != ENOENT)
        return esper_file_fail("cannot be replaced", model->path);
    if (model->had)
        ESPER_TRY(esper_file_sync_dir_of(model->path));
    ESPER_TRY(move_in(weights));
    return move_in(model);
}

/* What cannot be brought back stays under the name it was set aside by. */
static void bring_back(const place *at)
{
    if (!at->had)
        unlink(at->path);
    else if (exists(at->old) && (rename(at->old, at->path) == 0 || link(at->old, at->path) == 0))
        unlink(at->old);
}

static esper_status write_into(const esper_export *what, const esper_torch *torch, const char *dir)
{
    place model, weights;
    esper_status status;

    ESPER_TRY(find_place(what, dir, ESPER_EXPORT_MODEL, &model));
    ESPER_TRY(find_place(what, dir, ESPER_EXPORT_WEIGHTS, &weights));
    status = write_pair(what, torch, model.fresh, weights.fresh);
    if (status == ESPER_OK) {
        status = replace_pair(&model, &weights);
        if (status != ESPER_OK) {
            unlink(model.path); /* a new one must not stand beside old weights, not even for a moment */
            bring_back(&weights);
            bring_back(&model);
        } else {
            unlink(model.old);
            unlink(weights.old);
        }
    }
    unlink(model.fresh);
    unlink(weights.fresh);
    return status;
}

/* A directory that is not there yet comes into its place as a whole. */
static esper_status write_whole(const esper_export *what, const esper_torch *torch, const char *dir)
{
    char fresh[ESPER_PATH_CHARS], model[ESPER_PATH_CHARS], weights[ESPER_PATH_CHARS];
    size_t n = strlen(dir);
    esper_status status;
    bool moved = false;

    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (snprintf(fresh, sizeof(fresh), "%.*s.%ld-new.tmp", (int)n, dir, (long)getpid()) >= ESPER_PATH_CHARS)
        return ESPER_FAIL(ESPER_E_ARG, "the path %.60s... is too long", dir);
    ESPER_TRY(esper_run_path(fresh, ESPER_EXPORT_MODEL, model));
    ESPER_TRY(esper_run_path(fresh, ESPER_EXPORT_WEIGHTS, weights));
    status = esper_file_make_dirs(fresh);
    if (status == ESPER_OK)
        status = write_pair(what, torch, model, weights);
    if (status == ESPER_OK) {
        moved = rename(fresh, dir) == 0;
        status = moved ? esper_file_sync_dir_of(dir) : esper_file_fail("cannot be put in place", dir);
    }
    if (status == ESPER_OK)
        return ESPER_OK;
    if (!moved || rename(dir, fresh) == 0) {
        unlink(model);
        unlink(weights);
        rmdir(fresh);
    }
    return esper_fail_within(status,
                             "%.*s/" ESPER_EXPORT_MODEL " and %.*s/" ESPER_EXPORT_WEIGHTS " cannot be made: ", (int)n,
                             dir, (int)n, dir);
}

esper_status esper_export_torch(const esper_export *what, const char *dir)
{
    esper_torch torch;
    esper_status status;

    ESPER_TRY(esper_torch_init(&torch, &what->torch));
    status = exists(dir) ? write_into(what, &torch, dir) : write_whole(what, &torch, dir);
    esper_torch_fini(&torch);
    return status;
}
