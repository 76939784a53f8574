/* Internal. Tasks: a name for a data set, a host and the settings that go with them. */
#ifndef ESPER_RUN_TASK_H
#define ESPER_RUN_TASK_H

#include "base/config.h"
#include "data/dataset.h"
#include "nn/host.h"

typedef struct esper_task {
    const char  *name;
    esper_source source;
    const char  *settings; /* "key = value" lines laid over the defaults of the configuration */
    const char  *growth;   /* more of them, for runs that grow; "" = none */
    const char  *about;
    struct {
        int      channels, height, width;
        uint32_t n_train; /* before carving */
    } synth; /* of synthetic images; 0 = the source's own */
} esper_task;

/* All tasks, NULL at the end; the first is the default. */
const esper_task *const *esper_task_list(void);

/* By name, in any case, '-' for '_' too. E_CONFIG with the nearest name and the list when there is none. */
esper_status esper_task_find(const char *name, const esper_task **task_out);

/* Lays the task's settings over the defaults, and what fits its data where that is people's own (run/own.h); then, unless it is trained as it is, those for growing; and for learning gates as
 * its spec wants them. What somebody asked for stays. */
esper_status esper_task_configure(const esper_task *task, esper_config_job job, esper_config *config);

/* What flows through the task's host: its data decides. */
esper_topology esper_task_topology(const esper_task *task);

/* The data set and the host that a task and a configuration describe. The description borrows texts of config. */
esper_dataset_desc esper_task_data(const esper_task *task, const esper_config *config);
esper_host         esper_task_host(const esper_task *task, const esper_config *config, const esper_dataset_info *data);

/* That host's program; freed by esper_net_fini. */
esper_status esper_task_build(const esper_task *task, const esper_config *config, const esper_dataset_info *data,
                              esper_net *net_out);

/* The size of that host, and of the smallest seed with any that fits one of its slots (INT64_MAX, INFINITY: there is none). Looks at
 * the data, but loads none. */
typedef struct esper_task_size {
    int64_t params, least_seed;
    double  flops, least_seed_flops; /* of a sample, forward */
} esper_task_size;

esper_status esper_task_measure_host(const esper_task *task, const esper_config *config, esper_task_size *size_out);

#endif
