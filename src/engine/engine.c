/* What networks share. */
#include "engine/engine.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/status.h"

/* Programs whose plans are kept: a fleet in which each network has grown otherwise has a few hundred, coalitions included. */
enum { PLANS_KEPT = 256 };

static const char *const backend_names[] = {
#define X(of, name, text) text,
    ESPER_CONFIG_BACKEND_LIST(X)
#undef X
};

_Static_assert((int)ESPER_CONFIG_PRECISION_TF32 == (int)ESPER_TF32 &&
                   (int)ESPER_CONFIG_PRECISION_BF16 == (int)ESPER_BF16,
               "a setting is cast");

/* ------------------------------------------------------------------------------------------------ opening */

int64_t esper_engine_params_limit(const esper_config *config)
{
    int64_t by_size = (int64_t)fmin(config->max_kib * 1024.0 / sizeof(float), 9e18);

    if (config->max_kib <= 0.0 || (config->max_params > 0 && config->max_params < by_size))
        return config->max_params;
    return by_size > 0 ? by_size : 1; /* 0 would be no limit */
}

esper_sampler_desc esper_engine_sampler(const esper_engine *engine, esper_split split, uint64_t seed)
{
    const esper_config *config = &engine->config;

    return (esper_sampler_desc){
        .set = engine->data,
        .split = split,
        .batch_size = (uint32_t)config->batch,
        .training = engine->use != ESPER_USE_EVALUATE && split == ESPER_SPLIT_TRAIN,
        .seed = seed,
        .augment = {.crop = config->crop, .flip = config->flip, .cutout = config->cutout},
    };
}

/* Batch statistics of a single value are undefined. */
static esper_status check_batch_norms(const esper_engine *engine)
{
    uint32_t n_samples = esper_sampler_batch_total(engine->samplers[ESPER_SPLIT_TRAIN], 0);

    if (!engine->config.sync_norm)
        n_samples /= (uint32_t)engine->ranks.size;
    for (int o = 0; o < engine->plain.n_ops; o++) {
        const esper_op *op = &engine->plain.ops[o];
        const esper_tensor *x = &engine->plain.tensors[op->in[0]];

        if (op->kind == ESPER_OP_BATCH_NORM && (int64_t)n_samples * x->dim[1] * x->dim[2] == 1)
            return ESPER_FAIL(ESPER_E_CONFIG,
                              "%s of one sample with maps of one pixel leave batch norm nothing to "
                              "average: use a larger --batch or fewer --pools",
                              esper_ranks_are_many(&engine->ranks) ? "parts of a batch" : "batches");
    }
    return ESPER_OK;
}

static esper_status open_parts(esper_engine *engine, int threads, const char *backend)
{
    const esper_config *config = &engine->config;

    if (!engine->beside) {
        ESPER_TRY(esper_pool_open(config->threads > 0 ? config->threads : threads, &engine->pool));
        ESPER_TRY(esper_backend_open(backend != NULL ? backend : backend_names[config->backend], engine->pool,
                                     &engine->backend));
        if (engine->use != ESPER_USE_EVALUATE || engine->backend->ops->set_precision != NULL) /* exact is right, too */
            ESPER_TRY(esper_backend_set_precision(engine->backend, (esper_precision)config->precision));
        ESPER_TRY(esper_plan_cache_open(engine->backend, PLANS_KEPT, &engine->plans));
    }
    if (!engine->beside_data)
        ESPER_TRY(esper_samples_init(&engine->samples, engine->backend, engine->data));
    for (int split = 0; split < ESPER_N_SPLITS; split++) { /* that of training says how many batches there are */
        esper_sampler_desc desc = esper_engine_sampler(engine, (esper_split)split, config->seed);

        ESPER_TRY(esper_sampler_open(&desc, &engine->samplers[split]));
    }
    ESPER_TRY(esper_host_build(&engine->host, &engine->plain));
    if (engine->use == ESPER_USE_EVALUATE)
        return ESPER_OK;
    engine->steps_per_epoch = esper_engine_batches(engine, ESPER_SPLIT_TRAIN);
    return check_batch_norms(engine);
}

esper_status esper_engine_open(const esper_engine_desc *desc, esper_engine **engine_out)
{
    esper_engine *engine = esper_mem_alloc(sizeof(*engine));
    esper_status status;

    if (engine == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "engine");
    snprintf(engine->task, sizeof(engine->task), "%s", desc->task);
    engine->config = *desc->config;
    engine->use = desc->use;
    engine->data = desc->data;
    engine->host = *desc->host;
    engine->ranks.size = 1;
    engine->beside = desc->beside != NULL;
    if (engine->beside) {
        engine->pool = desc->beside->pool;
        engine->backend = desc->beside->backend;
        engine->plans = desc->beside->plans;
        engine->beside_data = desc->beside->data == desc->data;
        if (engine->beside_data)
            engine->samples = desc->beside->samples;
    }
    assert(desc->host->with_loss);
    esper_net_init(&engine->plain);
    if (desc->backend_why != NULL)
        snprintf(engine->backend_why, sizeof(engine->backend_why), "%s", desc->backend_why);
    status = open_parts(engine, desc->threads, desc->backend);
    if (status != ESPER_OK) {
        esper_engine_close(engine);
        return status;
    }
    *engine_out = engine;
    return ESPER_OK;
}

void esper_engine_close(esper_engine *engine)
{
    if (engine == NULL)
        return;
    assert(engine->n_networks == 0);
    esper_ranks_fini(&engine->ranks);
    esper_net_fini(&engine->plain);
    for (int split = 0; split < ESPER_N_SPLITS; split++)
        esper_sampler_close(engine->samplers[split]);
    if (!engine->beside_data)
        esper_samples_fini(&engine->samples);
    if (!engine->beside) {
        esper_plan_cache_close(engine->plans);
        esper_backend_close(engine->backend);
        esper_pool_close(engine->pool);
    }
    esper_mem_free(engine);
}

/* ------------------------------------------------------------------------------------------------ ranks */

static esper_status sum_over_ranks(void *ranks, double *values, size_t count)
{
    return esper_ranks_sum(ranks, values, count);
}

esper_status esper_engine_join(esper_engine *engine, esper_comm *comm)
{
    uint32_t n = esper_sampler_batch_total(engine->samplers[ESPER_SPLIT_TRAIN], 0);

    assert(engine->n_networks == 0);
    esper_ranks_init(&engine->ranks, comm);
    if (!esper_ranks_are_many(&engine->ranks))
        return ESPER_OK;
    for (int split = 0; split < ESPER_N_SPLITS; split++)
        esper_sampler_share(engine->samplers[split], (uint32_t)engine->ranks.rank, (uint32_t)engine->ranks.size);
    if (n < (uint32_t)engine->ranks.size) /* a rank with nothing of a batch would have no gradients to give */
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "batches of %u samples cannot be shared by %d ranks: use a larger --batch or fewer ranks", n,
                          engine->ranks.size);
    if (engine->config.sync_norm)
        engine->exchange = (esper_exchange){.sum = sum_over_ranks, .context = &engine->ranks};
    return engine->use != ESPER_USE_EVALUATE ? check_batch_norms(engine) : ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ many at a time */

void esper_engine_each(esper_engine *engine, int n_items, esper_backend_item run_item, void *context)
{
    if (esper_ranks_are_many(&engine->ranks)) { /* which meet on the way, all in the same order */
        for (int item = 0; item < n_items; item++)
            run_item(context, item, NULL);
        return;
    }
    esper_backend_each(engine->backend, n_items, run_item, context);
}

/* ------------------------------------------------------------------------------------------------ about it */

uint32_t esper_engine_batches(const esper_engine *engine, esper_split split)
{
    uint32_t n = esper_sampler_batches(engine->samplers[split]), cap = (uint32_t)engine->config.max_steps;

    return cap > 0 && cap < n && split != ESPER_SPLIT_TEST ? cap : n;
}

int esper_engine_max_samples(const esper_engine *engine)
{
    return (engine->config.batch + engine->ranks.size - 1) / engine->ranks.size;
}

esper_status esper_engine_tell_room(const esper_engine *engine, esper_status status, int n_whole)
{
    char why[512];

    if (status != ESPER_E_NOMEM || esper_backend_device(engine->backend) == ESPER_GUARD_HOST)
        return status;
    snprintf(why, sizeof(why), "%s", esper_last_error());
    if (n_whole == 0)
        return ESPER_FAIL(status, "%s (not one network of %s fits: a smaller --batch or host may)", why, engine->task);
    return ESPER_FAIL(status, "%s (%d network%s of %s fit%s)", why, n_whole, n_whole == 1 ? "" : "s", engine->task,
                      n_whole == 1 ? "s" : "");
}

double esper_engine_plan_flops(const esper_engine *engine, const esper_plan *plan)
{
    esper_plan_stats stats = esper_plan_stats_of(plan);

    return (stats.forward.flops + stats.backward.flops) * engine->config.batch / esper_engine_max_samples(engine);
}
