/* Internal. Validation of a network, and of what it would be without some of its seeds or with a trial one, in one go.
 *
 * The network as it is goes over the whole split. Each variant goes over a slice, the first batches of it, and begins at
 * the first slot in which it differs: what stands before that is the network's own and is not computed again.
 *
 *     images -> host -> r0c0 -> host -> r1c0 -> host -> r0c1 -> host -> loss      the network, every batch
 *                                         |
 *                                         +---> without its seed -> ... -> loss   a variant that differs at r1c0, the slice
 *
 * Nothing of the training is touched: programs here are for inference and share the slab alone. Results are compared
 * sample by sample, so that differences have errors. */
#ifndef ESPER_ENGINE_EVALUATOR_H
#define ESPER_ENGINE_EVALUATOR_H

#include "engine/network.h"

typedef struct esper_evaluator esper_evaluator;

/* Of one of the splits that are not shuffled. The network is borrowed until close; its slots and weights may change between
 * runs. */
esper_status esper_evaluator_open(esper_network *network, esper_split split, esper_evaluator **evaluator_out);
void         esper_evaluator_close(esper_evaluator *evaluator);

typedef struct esper_variant {
    uint8_t presence[ESPER_MAX_SLOTS]; /* esper_presence, by index of the table */
} esper_variant;

/* One variant against the network as it is, over the slice. Accuracy of a sample: its share of right targets. */
typedef struct esper_variant_result {
    esper_tally tally;      /* of the variant */
    double      difference; /* mean over samples of (accuracy of the network - of the variant), points of a percent scale;
                               NaN when the loss of either is not finite: such a network has no accuracy to speak of */
    double      error;      /* standard error of that mean, paired by sample; NaN likewise, and of a single sample */
    uint64_t    n_samples;
} esper_variant_result;

/* The network over batches [0, n_batches), n_variants over [0, n_slice). results_out: (n_variants). E_STOPPED as
 * esper_network_evaluate, asked before every pass. Plans made for the run before are used again where programs are equal;
 * those it has no use for are closed. Variants that come to the same are computed once, and not at all when they come to
 * the network itself. */
esper_status esper_evaluator_run(esper_evaluator *evaluator, uint32_t n_batches, const esper_variant *variants,
                                 int n_variants, uint32_t n_slice, const esper_follower *follower,
                                 esper_tally *tally_out, esper_variant_result *results_out);

/* FLOPs of a forward pass of one sample: of the network as it is, and of what each variant computes beyond it.
 * variants_out: (n_variants); 0 where nothing is computed. */
esper_status esper_evaluator_flops(const esper_evaluator *evaluator, const esper_variant *variants, int n_variants,
                                   double *network_out, double *variants_out);

/* How many programs are planned at present, the network's among them. */
int esper_evaluator_count_plans(const esper_evaluator *evaluator);

#endif
