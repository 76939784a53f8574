/* Internal. Optimisers on flat ranges: one group for each region of each network's slab (the host, and every slot), with its
 * own rate, decay and clipping. A slot's group can join the host's: then both are one group with one rate and one norm, but
 * each keeps its moments and its age. The step of all networks is two launches. */
#ifndef ESPER_NN_OPTIM_H
#define ESPER_NN_OPTIM_H

#include "tensor/slab.h"

typedef struct esper_optim esper_optim;

typedef struct esper_optim_desc {
    esper_backend          *backend;
    const esper_slab *const *slabs; /* one for each network; borrowed until close */
    int                     n_slabs;
    esper_op_kind           kind;     /* ESPER_OP_SGD or ESPER_OP_ADAMW */
    esper_group             settings; /* of every group at first; t = 0 */
    /* (n_slabs) words of the backend's memory: while one is not 0, steps of that network change nothing but the count of them.
     * NULL: there are none. */
    const uint32_t *const  *flags;
} esper_optim_desc;

esper_status esper_optim_open(const esper_optim_desc *desc, esper_optim **optim_out);
void         esper_optim_close(esper_optim *optim);

/* The settings of a group, to change between steps. Its t, the steps it has taken, is state like the moments: whoever
 * saves or sets those does the same with t. */
esper_group *esper_optim_group(esper_optim *optim, int network, int region);

/* A group that is off is not touched by a step: no decay, no momentum. All are on at first. */
void esper_optim_enable(esper_optim *optim, int network, int region, bool on);

/* A region that has joined takes the settings of region 0 (all but t, which stays its own) and is clipped by one norm over
 * region 0 and all that have joined it and are on. Its own settings stay as they are, for when it leaves. None has joined at
 * first; region 0 itself and an empty region cannot. */
void esper_optim_join(esper_optim *optim, int network, int region, bool joined);

/* A region that begins anew: no steps taken, moments and gradients zero (another seed's tensors lie elsewhere in it, and what
 * the old one left between them would count in the norm). */
esper_status esper_optim_reset(esper_optim *optim, esper_backend_stream *stream, int network, int region);

/* Enqueues a step of every group that is on: norm, clip, update. */
esper_status esper_optim_step(esper_optim *optim);
/* The same for one of the networks, on a stream: several threads may do this at a time, each with another network. Its norms
 * are not sent to the host before they are asked for. */
esper_status esper_optim_step_one(esper_optim *optim, esper_backend_stream *stream, int network);
esper_status esper_optim_read_one(esper_optim *optim, esper_backend_stream *stream, int network);

/* The last n_steps of a network were skipped by its flag: its groups are as old as before them. */
void esper_optim_untake(esper_optim *optim, int network, uint32_t n_steps);

/* The norm of the group's gradients before clipping, as of the last step: with all that had joined it then, and of the region
 * alone. Read after a sync. */
double esper_optim_norm(const esper_optim *optim, int network, int region);
double esper_optim_norm_alone(const esper_optim *optim, int network, int region);

/* Bytes that esper_optim_open takes. */
size_t esper_optim_bytes(const esper_slab *const *slabs, int n_slabs);

#endif
