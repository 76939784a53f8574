/* Internal. A host with its seeds as one program: what the slot table says, put into the stream while the host is built.
 *
 *     slot                          the stream h goes on as
 *     empty, germinated, cooling    h itself: no operation at all
 *     training, in a program that
 *       trains                      h; the seed learns behind it or aside, cut off from the host (esper_incubation)
 *       does not                    h: the seed is left out
 *     blending, holding, fossilized the seed's operator, weighted by the input <slot>.alpha; for the operator ADD at full
 *                                   weight the seed's output itself: nothing is added, copied or looked up for it
 *
 * Seed k of the table lives in region k + 1 of the slab, under names that begin with its slot's id. */
#ifndef ESPER_SLOT_SPLICE_H
#define ESPER_SLOT_SPLICE_H

#include "nn/host.h"
#include "slot/slots.h"
#include "tensor/plan.h"
#include "tensor/slab.h"

/* What a seed in TRAINING learns by (docs/growing.md).
 *   STRAIGHT  the gradient that reaches the stream behind it, as if the seed were added there: it never hears what its own
 *             output would do
 *   ASIDE     the loss of a program of its own, in which it is fully blended in and all else is frozen (engine/side.h); in
 *             the network's program it has a place for its weights and no operation */
#define ESPER_INCUBATION_LIST(X) X(STRAIGHT, "straight") X(ASIDE, "aside")

typedef enum esper_incubation {
#define X(name, text) ESPER_INCUBATION_##name,
    ESPER_INCUBATION_LIST(X)
#undef X
} esper_incubation;

/* What becomes of a seed in a program that asks "what if". */
typedef enum esper_presence {
    ESPER_PRESENCE_AS_IS, /* what its stage and alpha say */
    ESPER_PRESENCE_OUT,   /* as if it were not there */
    ESPER_PRESENCE_FULL,  /* its operator at full weight; seeds in TRAINING too: a trial blend */
} esper_presence;

typedef struct esper_splice {
    esper_topology     topology;
    const esper_slots *slots;
    bool               training; /* the program computes gradients */
    bool
        probes; /* an empty slot gets y = h + W * h, a 3x3 convolution (for text a matrix) with W = 0, parameter <slot>.probe.weight: the gradient
                                  * of W tells what a seed there could gain at once */
    esper_incubation   incubation;
    uint8_t            presence[ESPER_MAX_SLOTS]; /* esper_presence, by index */
    const esper_blueprint *stand_in; /* built in place of every seed, for tests; NULL = what each slot says */
    const esper_host *host; /* esper_splice_build sets it: what a seed that is like the host's layers is built by */
} esper_splice;

/* Builds the program into an initialised net without a hook. */
esper_status esper_splice_build(const esper_splice *splice, const esper_host *host, esper_net *net);

/* The same for one boundary: an esper_net_hook whose context is the splice, for networks that are no hosts. */
int esper_splice_put(esper_net *net, const esper_boundary *boundary, int x, void *context);

/* Two programs of one host have equal keys when they are equal, but for the values of alpha, and only then. A seed that
 * follows another of its kind is part of the same program: it lives at the same place. */
uint64_t esper_splice_key(const esper_splice *splice);

/* Whether the seed of a slot is part of the program, and the value its alpha input, if it has one, wants. */
bool  esper_splice_has_seed(const esper_splice *splice, int slot);
float esper_splice_alpha(const esper_splice *splice, int slot);

/* The alpha inputs of a program, by index; ESPER_NO_TENSOR where it has none. They are filled before every pass: each sample
 * has an alpha of its own, here they are all the slot's. */
void esper_splice_find_alphas(const esper_splice *splice, const esper_net *net, int inputs_out[ESPER_MAX_SLOTS]);
esper_status esper_splice_fill_alphas(const esper_splice *splice, const int inputs[ESPER_MAX_SLOTS],
                                      const esper_plan *plan, esper_backend_stream *stream, int n_samples);

/* The slot at which a program is to be cut that differs from the whole one from `slot` on. New channels arrive between a layer and its
 * norm, which are one operation on some backends where nothing stands between: to have the bits of the whole program, it is cut at
 * the slot before. (Where there is none, at this one.) */
int esper_splice_cut_slot(const esper_slots *slots, const esper_net *plain, int slot);

/* Keeps readable what a program that is cut at the slot begins with: the stream there, and what passes it (esper_net_cut). */
void esper_splice_keep_at(const esper_splice *splice, esper_net *net, int slot);

/* Elements of a probe's weight. */
int64_t esper_splice_count_probe(esper_topology topology, int channels);

/* A blueprint that cannot be built at a width: attention wants one that its heads divide. */
enum { ESPER_SPLICE_UNFIT = -2 };

/* Parameters of a blueprint, and of a gate network, in a slot of so many channels; -1 = no memory to count them, UNFIT. */
int64_t esper_splice_count_params(const esper_blueprint *blueprint, int channels);
int64_t esper_splice_count_gate(esper_topology topology, int channels);

/* Of a blueprint in a slot of the host `plain`, whatever slot it is. */
int64_t esper_splice_count_seed(const esper_blueprint *blueprint, const esper_net *plain, const char *slot);

/* FLOPs that a seed of the blueprint, or with NULL a gate network, would add to a sample's in each slot; 0 where it is unfit. */
esper_status esper_splice_count_flops(const esper_host *host, const esper_slots *slots,
                                      const esper_blueprint *blueprint, double flops_out[ESPER_MAX_SLOTS]);

/* Raises the regions of a slab's description to what every blueprint (bits 1u << index) needs in each slot, its gate network
 * and a probe included. `plain` is the host, NULL where none of its slots takes new channels. Blueprints that are unfit for a slot are passed over there, and so are, in slots that open again, those of
 * more parameters than `room`; -1: there is no limit. */
esper_status esper_splice_reserve(const esper_slots *slots, const esper_net *plain, esper_topology topology,
                                  uint32_t blueprints, int64_t room, esper_slab_desc *desc);

#endif
