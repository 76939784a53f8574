/* Internal. Launches: schedules bound to addresses.
 *
 * Each network has its programs, launches of one lane; operations that stand at the same place of several networks also
 * have a launch in common, with a lane for each. Both point to the same lanes. */
#ifndef ESPER_TENSOR_PLAN_LAUNCHES_H
#define ESPER_TENSOR_PLAN_LAUNCHES_H

#include "tensor/plan_schedule.h"
#include "tensor/slab.h"

/* One network of a plan and where it lies. */
typedef struct esper_bound {
    esper_schedule   *schedule; /* held; others may use it too */
    const esper_slab *slab;
    const esper_pass *pass;  /* what lanes read of a pass, in the backend's memory */
    char             *arena; /* its part of the plan's */
    bool              packed; /* its input was last written as blocks (esper_plan_gather) */
} esper_bound;

/* A tensor's memory; NULL where it has none of its own here. */
void *esper_bound_data(const esper_bound *net, int tensor);
void *esper_bound_grad(const esper_bound *net, int tensor);

typedef struct esper_launches {
    int            n_nets;
    int            n_together[2]; /* by direction */
    esper_launch  *together[2];   /* of all networks together */
    esper_program *programs[2];   /* (n_nets) of each by itself */
    esper_program *gradients;     /* (n_nets) forward and backward in one, the longest first */
    esper_launch  *single;        /* launches of all programs, network by network, forward and then backward */
    esper_lane    *lanes[2];      /* in the order of `together` */
    int           *next;          /* (n_nets) the next step of each, while launches are put together */
    size_t         table_bytes;
} esper_launches;

/* Takes the memory. On failure, too, fini is to be called. */
esper_status esper_launches_init(esper_launches *launches, const esper_bound *nets, int n_nets);
void         esper_launches_fini(esper_launches *launches);

/* Fills them in: takes no memory and cannot fail. */
void esper_launches_bind(esper_launches *launches, const esper_bound *nets);

#endif
