/* What benchmarks train. */
#include "bench/task.h"

#include "base/status.h"

esper_status esper_bench_configure(const char *task, const char *settings, const esper_config *asked,
                                   esper_config *config, const esper_task **task_out)
{
    esper_task with;

    esper_config_init(config);
    config->threads = asked->threads;
    config->backend = asked->backend;
    config->precision = asked->precision;
    ESPER_TRY(esper_task_find(task, task_out));
    with = **task_out;
    with.settings = settings;
    ESPER_TRY(esper_task_configure(*task_out, ESPER_CONFIG_IN_TRAIN, config));
    return esper_task_configure(&with, ESPER_CONFIG_IN_TRAIN, config);
}
