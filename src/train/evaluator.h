/* Internal. Validation of a network, and of what it would be without some of its seeds or with a trial one, in one go.
 *
 * The network as it is goes over the whole split. Each variant goes over a slice, the first batches of it; what stands
 * before the first slot in which it differs is not computed again. Nothing of the training is touched: programs here are
 * for inference and share the slab alone. Results are compared sample by sample, so that differences have errors. */
#ifndef ESPER_TRAIN_EVALUATOR_H
#define ESPER_TRAIN_EVALUATOR_H

#include "data/batch.h"
#include "slot/splice.h"
#include "tensor/plan.h"
#include "train/trainer.h"

typedef struct esper_evaluator esper_evaluator;

/* Everything is borrowed until close. The slot table and the weights may change between runs. */
typedef struct esper_evaluator_desc {
    esper_backend       *backend;
    esper_pool          *pool;
    const esper_host    *host;
    const esper_slab    *slab;
    const esper_slots   *slots;
    const esper_sampler *sampler; /* of the split */
    int                  batch;   /* its largest batch */
} esper_evaluator_desc;

esper_status esper_evaluator_open(const esper_evaluator_desc *desc, esper_evaluator **evaluator_out);
void         esper_evaluator_close(esper_evaluator *evaluator);

typedef struct esper_variant {
    uint8_t presence[ESPER_MAX_SLOTS]; /* esper_presence, by index of the table */
} esper_variant;

/* One variant against the network as it is, over the slice. Accuracies of a sample: its share of right targets. */
typedef struct esper_variant_result {
    esper_tally tally; /* of the variant */
    double      difference;    /* mean over samples of (accuracy of the network - of the variant), points of a percent scale */
    double      error;         /* standard error of that mean, paired by sample */
    uint64_t    n_samples;
} esper_variant_result;

/* The network over batches [0, n_batches), n_variants over [0, n_slice). results_out: (n_variants). E_STOPPED as
 * esper_trainer_evaluate. Plans made for earlier runs are used again where programs are equal. */
esper_status esper_evaluator_run(esper_evaluator *evaluator, uint32_t n_batches, const esper_variant *variants,
                                 int n_variants, uint32_t n_slice, const esper_follower *follower,
                                 esper_tally *tally_out, esper_variant_result *results_out);

/* FLOPs of a forward pass of one sample: of the network as it is, and of what a variant computes beyond it. */
esper_status esper_evaluator_flops(esper_evaluator *evaluator, const esper_variant *variants, int n_variants,
                                   double *network_out, double *variants_out);

#endif
