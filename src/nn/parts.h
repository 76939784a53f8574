/* Internal. A host as people see it: blocks in the order of execution, and slots between them. For drawings; nothing is
 * computed by it. */
#ifndef ESPER_NN_PARTS_H
#define ESPER_NN_PARTS_H

#include "tensor/net.h"

enum { ESPER_HOST_MAX_PARTS = 128, ESPER_HOST_SHAPE_CHARS = 32 };

typedef struct esper_host_part {
    bool is_slot;
    char name[ESPER_NAME_CHARS]; /* "r0c1"; "blocks.0", as its parameters' names begin; "max_pool", when it has none */
    char shape[ESPER_HOST_SHAPE_CHARS]; /* of what leaves it, for one sample: "64x16x16" */
    int channels;                       /* of that */
    float position;                     /* of a slot, 0 to 1 along the host */
    int64_t params;                     /* of a block; a tensor that two blocks share is the first one's */
} esper_host_part;

/* The parts of a host without seeds; returns how many. A host of very many blocks has one from each slot to the next. */
int esper_parts_list(const esper_net *net, esper_host_part parts_out[ESPER_HOST_MAX_PARTS]);

#endif
