/* Internal. The tensors a guard knows, with everything that is kept for each: a table is made whole and then exchanged
 * for the one before, so that adding is all or nothing.
 *
 * A partition is a device with its share of the tensors. Engines belong to the guard's current table; the next one takes
 * them over. */
#ifndef ESPER_GUARD_TABLE_H
#define ESPER_GUARD_TABLE_H

#include "guard/engine.h"
#include "guard/report.h"

typedef struct esper_guard_partition {
    esper_scan_engine      *engine; /* NULL until opened */
    int32_t            device;
    uint32_t           roles; /* bits of the roles its tensors have */
    size_t             n_tensors;
    size_t            *index;     /* (n_tensors) which of the table's tensors these are */
    esper_scan_result  result;    /* of its latest scan */
    bool               stale;     /* what the engine knows is in doubt: it is bound anew before its next scan */
    bool               queued;    /* a scan is on its way */
    bool               collected; /* its result is one of the guard's latest scan */
} esper_guard_partition;

typedef struct esper_guard_table {
    esper_guard_tensor *tensors;
    size_t              n_tensors;
    char               *text;       /* all names, one after the other */
    uint32_t           *group_of;   /* (n_tensors) */
    esper_guard_stat   *stats;      /* (n_tensors) of several devices; zero as long as there is only one */
    uint64_t           *remembered; /* (n_tensors) checksums ... */
    bool               *remembers;  /* ... and whether there is one */
    void              **data;       /* (n_tensors) room for the addresses of one partition */
    esper_guard_group  *groups;      /* of at most n_tensors */
    esper_report_size  *group_sizes; /* the same */
    esper_report_size   role_sizes[ESPER_GUARD_N_ROLES];
    size_t              n_groups;
    esper_guard_partition   *partitions;
    size_t              n_partitions;
} esper_guard_table;

/* Complains about a tensor that could not be registered: `position` is its place in the caller's list. */
esper_status esper_guard_tensor_check(const esper_guard_tensor *tensor, size_t position);

/* The tensors of `old`, then the new ones; partitions have engines where `old` has one. E_ARG: a name stands twice in a
 * role. */
esper_status esper_guard_table_make(const esper_guard_table *old, const esper_guard_tensor *tensors, size_t n_tensors,
                                    esper_guard_table *table_out);

/* Frees what the table holds but its engines; it is empty then. */
void esper_guard_table_free(esper_guard_table *table);

/* Tells a partition's engine which tensors it has. */
esper_status esper_guard_partition_bind(const esper_guard_table *table, esper_guard_partition *part);

#endif
