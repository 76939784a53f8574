/* Internal. Jobs of the CPU backend: a phase of one launch, or of several in turn, cut into items.
 *
 * Kernels promise that a range may be cut anywhere without changing a bit, so how finely work is cut is a matter of balance
 * alone, and results depend neither on the number of threads nor on the number of networks. */
#ifndef ESPER_TENSOR_CPU_BACKEND_JOB_H
#define ESPER_TENSOR_CPU_BACKEND_JOB_H

#include "tensor/backend.h"
#include "tensor/kernel.h"

enum { ESPER_JOB_PHASES = 16 };

/* An item is (lane, range). */
typedef struct esper_job {
    const esper_phase *phase[ESPER_JOB_PHASES];
    const esper_lane  *lanes[ESPER_JOB_PHASES];
    int                n_phases;
    int                n_lanes;        /* of each of them */
    int                block;          /* results of an item */
    int                items_per_lane; /* of the longest lane; shorter ones leave their last items empty */
} esper_job;

/* The operation's own table, which answers what is asked while planning. */
const esper_op_kernels *esper_job_table(const esper_kernel_set *set, const esper_launch *launch);

/* The kernels of a launch of one lane, or of lanes that are all alike. */
const esper_op_kernels *esper_job_kernels(const esper_kernel_set *set, const esper_launch *launch);

/* Cuts the job into n_wanted items or a few more, and returns how many: 0 = there is nothing to do. */
int esper_job_cut(esper_job *job, int n_wanted);

void esper_job_run_items(const esper_job *job, int begin, int end);

#endif
