/* Internal. A network's outputs for samples of anybody's: classes with probabilities; of text, how well it is foretold, and how it goes
 * on. */
#ifndef ESPER_RUN_PREDICT_H
#define ESPER_RUN_PREDICT_H

#include "engine/network.h"

/* Elements that a sample takes and gives. */
int64_t esper_predict_inputs(const esper_network *network);
int64_t esper_predict_outputs(const esper_network *network);

/* The most samples at once: the batch of the engine's configuration. */
int esper_predict_room(const esper_network *network);

/* Logits of n samples, at most as many as there is room for: floats, or int32 ids. */
esper_status esper_predict_logits(esper_network *network, const void *samples, int n, float *logits);

/* Sample `index` of a split of the engine's data, as the network takes it; its label (of tokens 0). */
void esper_predict_take(const esper_dataset *data, esper_split split, uint32_t index, void *sample, int *label_out);

/* In place: exponentials that sum to 1. */
void esper_predict_softmax(const float *logits, int n, double *probabilities);

/* A class and how sure the network is, the likeliest first. Returns how many. */
typedef struct esper_choice {
    int    class;
    double probability;
} esper_choice;

int esper_predict_choose(const float *logits, int n, int most, esper_choice *choices_out);

/* Right and wrong answers over a split: (classes, classes) counts, a row for each true class. */
esper_status esper_predict_confusion(esper_network *network, esper_split split, uint64_t *counts_out);

/* How well each token but the first is foretold by those before it, in windows of the network's context. */
typedef struct esper_foretold {
    uint64_t n_tokens; /* that were foretold */
    double   loss;     /* nats, their sum */
} esper_foretold;

esper_status esper_predict_foretell(esper_network *network, const int32_t *tokens, uint64_t n, esper_foretold *out);

/* Goes on from a prompt: n_out tokens, drawn by the seed from probabilities sharpened (temperature below 1) or flattened; 0: always the
 * likeliest. The same arguments give the same tokens. */
esper_status esper_predict_continue(esper_network *network, const int32_t *prompt, int n_prompt, double temperature,
                                    uint64_t seed, int32_t *tokens_out, int n_out);

#endif
