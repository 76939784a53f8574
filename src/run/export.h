/* Internal. Networks for other programs: a PyTorch module with its weights, or the weights alone.
 *
 * Files are put in place whole. What is there already is refused unless `force` is set, and then replaced. */
#ifndef ESPER_RUN_EXPORT_H
#define ESPER_RUN_EXPORT_H

#include "nn/torch_export.h"
#include "tensor/slab.h"

#define ESPER_EXPORT_MODEL   "model.py"
#define ESPER_EXPORT_WEIGHTS "model.safetensors"

typedef struct esper_export {
    esper_torch_desc  torch;
    const esper_slab *slab;      /* of torch.net */
    uint64_t          n_batches; /* seen by its batch norms */
    const char       *origin;    /* for the file's notes: where the weights come from */
    bool              force;
} esper_export;

/* Makes `dir` if need be, and model.py and model.safetensors in it. On failure nothing new is left behind; after a crash there are
 * both, or those that were there before, or no model.py. */
esper_status esper_export_torch(const esper_export *what, const char *dir);

/* The weights alone, under the names they have in the module. */
esper_status esper_export_weights(const esper_export *what, const char *path);

/* Whether a file can be put there: none is there, or it may be replaced. */
esper_status esper_export_check_free(const char *path, bool force);

#endif
