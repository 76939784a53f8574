/* Internal. The order of samples in an epoch, and batches filled from it.
 *
 * What comes next is decided by (epoch, batch) and the sampler's description alone, so a run resumes exactly from those
 * two numbers. What augmentation does to a sample is decided by (seed, network, epoch, sample id) alone, so it does not
 * matter which batch, rank or thread the sample falls to. After opening nothing here takes memory. */
#ifndef ESPER_DATA_BATCH_H
#define ESPER_DATA_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "data/dataset.h"
#include "tensor/backend.h"

/* Applied in this order to the raw image, before it is normalised; what they uncover or blot out is black (raw 0).
 * Every sample makes the same draws in the same order whichever of them are on, so that turning one on or off leaves
 * the others as they were. Images alone have them. */
typedef struct esper_augment {
    int  crop;   /* a window of the image's size out of the image padded by so many pixels on each side; 0 = off */
    bool flip;   /* left to right, every other time */
    int  cutout; /* a square of so many pixels a side around a random pixel, cut off at the border; 0 = off */
} esper_augment;

typedef struct esper_sampler_desc {
    const esper_dataset *set; /* borrowed; must outlive the sampler */
    esper_split          split;
    uint32_t             batch_size;
    bool                 training; /* random order, augmentation, a last batch that is short is dropped; otherwise in
                                      order, as they are, all of them */
    uint64_t             seed;
    uint32_t             network;  /* which of a fleet: each may have its own order */
    esper_augment        augment;  /* used in training only */
} esper_sampler_desc;

typedef struct esper_sampler esper_sampler;

/* Opens at epoch 0, draw 0. */
esper_status esper_sampler_open(const esper_sampler_desc *desc, esper_sampler **sampler_out);
void         esper_sampler_close(esper_sampler *sampler);

/* Bytes such a sampler will hold. */
uint64_t esper_sampler_predict_bytes(uint32_t n_samples);

/* Draws the order of an epoch: nothing but these two numbers is needed to come back to it. Draw 0 is the usual one, others are
 * other orders for the same epoch. */
enum { ESPER_SAMPLER_DRAWS = 1 << 12 };
void esper_sampler_redraw(esper_sampler *sampler, uint32_t epoch, uint32_t draw); /* draw < ESPER_SAMPLER_DRAWS */

/* Batches of every epoch. A training split smaller than a batch makes one short batch. */
uint32_t esper_sampler_batches(const esper_sampler *sampler);

/* From now on batches are the part of them that falls to one rank of several: parts differ by one sample at most, and may
 * be empty where a batch has fewer samples than there are ranks. */
void esper_sampler_share(esper_sampler *sampler, uint32_t rank, uint32_t n_ranks);

/* Samples of a batch that fall to this rank, and of all ranks together. */
uint32_t esper_sampler_batch_count(const esper_sampler *sampler, uint32_t batch);
uint32_t esper_sampler_batch_total(const esper_sampler *sampler, uint32_t batch);

/* The ids of this rank's samples; the list holds until the next start. */
const uint32_t *esper_sampler_batch_ids(const esper_sampler *sampler, uint32_t batch);

/* Where a batch goes: the caller's memory, n = samples of the batch. Members that are NULL are not written. */
typedef struct esper_batch {
    float    *images;   /* (n, C, H, W) normalised; image sets */
    float    *features; /* (n, F) normalised; vector sets */
    int32_t  *tokens;   /* (n, T); token sets */
    int32_t  *targets;  /* (n) labels, or (n, T) next tokens */
    uint32_t *ids;      /* (n) sample ids */
} esper_batch;

/* The same batch as picks of the data set's items (esper_dataset_items), for backends that have those: `picks` has room for the
 * samples of the batch, and their ids go to `ids` unless that is NULL. */
void esper_batch_pick(const esper_sampler *sampler, uint32_t batch, esper_pick *picks, uint32_t *ids);

/* The side of the square that is blotted out of its images; 0 = none. */
int esper_batch_cutout(const esper_sampler *sampler);

/* Fills samples begin .. end-1 of a batch. Different ranges may be filled by different threads at the same time. */
void esper_batch_fill_range(const esper_sampler *sampler, uint32_t batch, uint32_t begin, uint32_t end,
                            const esper_batch *dest);

/* Fills a whole batch, over the pool when one is given. */
void esper_batch_fill(const esper_sampler *sampler, uint32_t batch, esper_pool *pool, const esper_batch *dest);

#endif
