/* Networks for other programs. The module's text is nn/torch_export.c's; here it meets the weights and the disk. */
#include "run/export.h"

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

static esper_status check_free(const esper_export *what, const char *path)
{
    struct stat info;

    if (stat(path, &info) != 0)
        return ESPER_OK; /* whatever is wrong with it, writing will say */
    if (S_ISDIR(info.st_mode))
        return ESPER_FAIL(ESPER_E_CONFIG, "%s is a directory, and a file is to be written there", path);
    if (!what->force)
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

    ESPER_TRY(check_free(what, path));
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

/* Where the pair of files goes, and where its parts wait. */
typedef struct places {
    char model[ESPER_PATH_CHARS], weights[ESPER_PATH_CHARS];
    char fresh[ESPER_PATH_CHARS + 64],
        old[ESPER_PATH_CHARS + 64]; /* weights: those to come, and those that were there */
} places;

/* A second name for the weights that are there, to bring them back by; where there are no second names, their only one. */
static esper_status set_aside(const places *at)
{
    unlink(at->old);
    if (link(at->weights, at->old) == 0 || rename(at->weights, at->old) == 0)
        return ESPER_OK;
    return esper_file_fail("cannot be replaced", at->weights);
}

/* Both are whole on disk. When the second move fails, the first is undone. */
static esper_status put_in_place(const places *at, esper_draft *model)
{
    bool had_weights = exists(at->weights);
    esper_status status = had_weights ? set_aside(at) : ESPER_OK;

    if (status == ESPER_OK && rename(at->fresh, at->weights) != 0)
        status = esper_file_fail("cannot be put in place", at->weights);
    if (status == ESPER_OK)
        status = esper_draft_commit(model);
    if (status != ESPER_OK && had_weights && rename(at->old, at->weights) != 0)
        return status; /* what was there before stays, if under the name it was set aside by */
    if (status != ESPER_OK && !had_weights)
        unlink(at->weights);
    unlink(at->old);
    return status;
}

/* Module and weights belong together: both are written under temporary names before either is moved. */
static esper_status write_into(const esper_export *what, const esper_torch *torch, const char *dir)
{
    bool had_dir = exists(dir);
    esper_draft *draft = NULL;
    esper_status status;
    places at;

    ESPER_TRY(esper_run_path(dir, ESPER_EXPORT_MODEL, at.model));
    ESPER_TRY(esper_run_path(dir, ESPER_EXPORT_WEIGHTS, at.weights));
    snprintf(at.fresh, sizeof(at.fresh), "%s.%ld-new.tmp", at.weights, (long)getpid());
    snprintf(at.old, sizeof(at.old), "%s.%ld-old.tmp", at.weights, (long)getpid());
    ESPER_TRY(check_free(what, at.model));
    ESPER_TRY(check_free(what, at.weights));
    ESPER_TRY(esper_file_make_dirs(dir));
    status = esper_draft_open(at.model, &draft);
    if (status == ESPER_OK)
        status = esper_draft_write(draft, torch->text, strlen(torch->text));
    if (status == ESPER_OK)
        status = write_weights(what, torch, at.fresh);
    if (status == ESPER_OK)
        status = put_in_place(&at, draft);
    esper_draft_close(draft);
    unlink(at.fresh);
    if (status != ESPER_OK && !had_dir)
        rmdir(dir);
    return status;
}

esper_status esper_export_torch(const esper_export *what, const char *dir)
{
    esper_torch torch;
    esper_status status;

    ESPER_TRY(esper_torch_init(&torch, &what->torch));
    status = write_into(what, &torch, dir);
    esper_torch_fini(&torch);
    return status;
}
