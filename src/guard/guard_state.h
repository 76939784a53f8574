/* Internal. What a guard is: guard.c registers tensors, guard_scan.c scans them. Nobody else looks inside. */
#ifndef ESPER_GUARD_GUARD_STATE_H
#define ESPER_GUARD_GUARD_STATE_H

#include "guard/table.h"

struct esper_guard {
    esper_guard_options options;
    esper_guard_table   table;
    uint64_t            sequence;
    bool                launched; /* and not read yet */
    bool                replayed; /* the launched scan is part of CUDA graphs, which run without us */
    uint32_t            roles;    /* of the launched scan, like the rest */
    uint32_t            checksum;
    double              clip_factor; /* of several partitions of host memory, found in launch; 0 = ask the engine */
    const uint32_t     *known_flag; /* the skip flag that was last found to lie on the right device ... */
    uint32_t            known_flag_roles; /* ... for scans of these roles */
    esper_guard_report  report;
};

/* E_ARG without a guard, E_STATE while a scan is to be read; `what` is the function that was called. */
esper_status esper_guard_check_idle(const esper_guard *guard, const char *what);

#endif
