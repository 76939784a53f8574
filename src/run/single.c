/* A task's data, engine and network. */
#include "run/single.h"

#include "base/status.h"

esper_status esper_single_engine(const esper_task *task, const esper_config *config, esper_use use, esper_dataset *data,
                                 int threads, esper_engine **engine_out)
{
    esper_host host = esper_task_host(task, config, esper_dataset_info_get(data));

    return esper_engine_open(
        &(esper_engine_desc){
            .task = task->name, .data = data, .host = &host, .config = config, .use = use, .threads = threads},
        engine_out);
}

esper_status esper_single_engine_beside(const esper_task *task, const esper_config *config, esper_use use,
                                        esper_dataset *data, const esper_engine *beside, esper_engine **engine_out)
{
    esper_host host = esper_task_host(task, config, esper_dataset_info_get(data));

    return esper_engine_open(
        &(esper_engine_desc){
            .task = task->name, .data = data, .host = &host, .config = config, .use = use, .beside = beside},
        engine_out);
}

/* Takes over the data. */
static esper_status open_on(const esper_task *task, const esper_config *config, esper_use use, esper_dataset *data,
                            esper_network **network_out)
{
    esper_engine *engine = NULL;
    esper_status status = esper_single_engine(task, config, use, data, 0, &engine);

    if (status == ESPER_OK)
        status = esper_network_add(engine, config->seed, NULL, network_out);
    if (status != ESPER_OK) {
        esper_engine_close(engine);
        esper_dataset_close(data);
    }
    return status;
}

esper_status esper_single_open(const esper_task *task, const esper_config *config, esper_use use,
                               esper_network **network_out)
{
    esper_dataset_desc desc = esper_task_data(task, config);
    esper_dataset *data;

    ESPER_TRY(esper_dataset_open(&desc, &data));
    return open_on(task, config, use, data, network_out);
}

esper_status esper_single_recall(const esper_checkpoint *checkpoint, const esper_config *config,
                                 esper_network **network_out)
{
    esper_dataset *data = NULL;
    esper_network *network = NULL;
    esper_status status;

    ESPER_TRY(esper_checkpoint_recall_data(checkpoint, &data));
    if (data != NULL)
        status = open_on(checkpoint->task, config, ESPER_USE_EVALUATE, data, &network);
    else
        status = esper_single_open(checkpoint->task, config, ESPER_USE_EVALUATE, &network);
    if (status != ESPER_OK && data == NULL)
        return esper_fail_within(status,
                                 "the checkpoint is of a version that did not keep what its data was like, so the "
                                 "data is needed (--data PATH says where it is): ");
    if (status == ESPER_OK)
        status = esper_checkpoint_restore(checkpoint, network);
    if (status != ESPER_OK) {
        esper_single_close(network);
        return status;
    }
    *network_out = network;
    return ESPER_OK;
}

void esper_single_close(esper_network *network)
{
    esper_engine *engine;
    esper_dataset *data;

    if (network == NULL)
        return;
    engine = network->engine;
    data = engine->data;
    esper_network_remove(network);
    esper_engine_close(engine);
    esper_dataset_close(data);
}
