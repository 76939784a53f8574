/* ctest: timeout=240 cost=3 driver=only */
/* Random networks on the cuda backend beside ref: hosts from random texts and settings (images, tables, text), seeds in random
 * stages in their slots, batches that no block divides, either optimiser, dropout. From the same weights both take N_STEPS steps,
 * free-running; losses, gradients, norm buffers and weights are compared, whole tensors by the norm of their difference.
 *
 * Two computations that differ in their last bits can take different ways at a ReLU or a pool, and a norm over a few values makes
 * much of little: a gradient then differs by more than rounding. How much that can be, ref itself says: where a network differs
 * it is reckoned N_NUDGES times more, from weights whose last bits are others, and what those differ by from ref is allowed,
 * ALLOWED times. That need not find every such place: beyond it a network may differ on one batch, on the next two it must not; of all
 * networks at most one in MOST_DIFFER may differ at all. All are compared, and those that are wrong listed, before the test fails.
 *
 * And the same bits: networks alone, three together, all together, once more.
 *
 * ESPER_TEST_COUNT says how many networks, ESPER_TEST_FIRST which is the first. ESPER_TEST_GPU=1: on the machine's device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "nn/init.h"
#include "nn/optim.h"
#include "slot/splice.h"
#include "support/effort.h"
#include "support/grown_slots.h"
#include "tensor/plan.h"

enum {
    N_STEPS = 3,
    GROUP = 250,
    MOST_DIFFER = 50,
    MOST_THREADS = 32,
    TOGETHER = 64,
    ALONE = 4,
    TRIO = 3,
    N_NUDGES = 8
};

/* The tolerance is of a tensor's size, or of LEAST of all gradients' where that is more: gradients that cancel to nothing (a
 * convolution's in front of a norm, in some directions) have no size of their own. */
static const double TOLERANCE = 2e-4, LEAST = 0.05, MOST_FLOPS = 3e7; /* FLOPs of a step: the reference is slow */

/* A weight is nudged by up to this share of itself: about what a layer's sums in single precision differ by. */
static const double NUDGE = 2e-6, ALLOWED = 4;

/* ------------------------------------------------------------------------------------------------ drawing */

typedef struct job {
    uint32_t number, batch; /* which network, and which data */
    esper_host host;
    esper_slots slots;
    esper_net net;
    char text[2048]; /* what it is, for people */
    int n_samples;
    esper_op_kind optimiser;
    float *born[ESPER_N_FAMILIES];               /* parameters and buffers before the first step */
    struct trace *ref, *cuda, *nudged[N_NUDGES]; /* the last: NULL where nobody has asked */
    uint32_t nudge;                              /* which of them is being reckoned; 0: none */
    char failure[600];
} job;

/* What came of the steps: of each step losses of samples and gradients, and in the end parameters and buffers. */
typedef struct trace {
    /* (N_STEPS, samples), (N_STEPS, parameters), (parameters), (buffers), one behind the other */
    float *loss, *grad, *param, *buffer;
    int64_t n_params, n_buffers;
} trace;

static esper_rng rng_of(uint32_t number, uint32_t purpose, uint32_t step)
{
    esper_rng_key key = {.seed = 31, .purpose = ESPER_RNG_TEST, .network = number, .step = step, .sample = purpose};
    esper_rng rng;

    esper_rng_init(&rng, &key);
    return rng;
}

enum { RNG_NETWORK, RNG_WEIGHTS, RNG_DATA, RNG_NUDGES };

static int between(esper_rng *rng, int low, int high)
{
    return low + (int)esper_rng_below(rng, (uint32_t)(high - low + 1));
}

static bool one_in(esper_rng *rng, uint32_t n)
{
    return esper_rng_below(rng, n) == 0;
}

static void say(esper_host *host, const char *format, ...)
{
    size_t used = strlen(host->text);
    va_list args;

    va_start(args, format);
    vsnprintf(host->text + used, sizeof(host->text) - used, format, args);
    va_end(args);
}

static void write_stage(esper_host *host, esper_rng *rng, int depth)
{
    static const char *const same[] = {"norm", "relu", "gelu"};
    int kind = between(rng, 0, 9);

    if (kind == 0 && depth < 2) {
        int n = between(rng, 1, 2), copies = between(rng, 1, 3);

        say(host, "[");
        for (int i = 0; i < n; i++) {
            say(host, i > 0 ? " | " : "");
            write_stage(host, rng, depth + 1);
        }
        say(host, "]");
        say(host, copies > 1 ? "x%d" : "", copies);
        say(host, one_in(rng, 2) ? " residual" : "");
    } else if (kind < 4) {
        say(host, "%s", same[between(rng, 0, 2)]);
    } else if (kind == 4) {
        say(host, "dropout 0.%d", between(rng, 1, 5));
    } else if (host->topology == ESPER_TOPOLOGY_CNN) {
        static const char *const kernels[] = {"", " 1x1", " 5x5", " 7x7"};

        if (kind == 5 && depth == 0)
            say(host, "pool");
        else
            say(host, "conv %d%s%s", one_in(rng, 3) ? between(rng, 1, 70) : between(rng, 1, 20),
                kernels[one_in(rng, 2) ? 0 : between(rng, 1, 3)], one_in(rng, 4) ? " bare" : "");
    } else if (host->topology == ESPER_TOPOLOGY_TRANSFORMER && kind < 9) {
        say(host, "%s %d", one_in(rng, 3) ? "attention" : "layer", 1 << between(rng, 0, 2));
    } else {
        say(host, "linear %d%s", 4 * between(rng, 1, one_in(rng, 3) ? 40 : 10), one_in(rng, 4) ? " bare" : "");
    }
    if (depth == 0 && one_in(rng, 2))
        say(host, " | slot");
}

static void write_host(esper_host *host, esper_rng *rng)
{
    int n = between(rng, 1, 5);

    if (host->topology == ESPER_TOPOLOGY_TRANSFORMER)
        say(host, "embed %d | ", 4 * between(rng, 1, one_in(rng, 4) ? 40 : 10));
    for (int i = 0; i < n; i++) {
        write_stage(host, rng, 0);
        say(host, " | ");
    }
    if (host->topology == ESPER_TOPOLOGY_CNN)
        say(host, "mean | ");
    say(host, host->topology == ESPER_TOPOLOGY_TRANSFORMER && one_in(rng, 3) ? "linear tied" : "linear");
}

static esper_host draw_host(esper_rng *rng)
{
    esper_host host = {.topology = (esper_topology)between(rng, 0, ESPER_N_TOPOLOGIES - 1), .with_loss = true};
    int heads = between(rng, 1, 4);

    switch (host.topology) {
    case ESPER_TOPOLOGY_CNN:
        host.cnn = (esper_host_cnn){.in_channels = between(rng, 1, 4),
                                    .height = between(rng, 5, 24),
                                    .width = between(rng, 5, 24),
                                    .classes = between(rng, 2, 17),
                                    .blocks = between(rng, 2, 4),
                                    .channels = one_in(rng, 3) ? between(rng, 1, 40) : between(rng, 1, 12),
                                    .kernel = 2 * between(rng, 0, 2) + 1,
                                    .pools = between(rng, 0, 2)};
        break;
    case ESPER_TOPOLOGY_MLP:
        host.mlp = (esper_host_mlp){.features = between(rng, 1, 40),
                                    .classes = between(rng, 2, 12),
                                    .layers = between(rng, 1, 4),
                                    .width = 2 * between(rng, 1, 60),
                                    .dropout = 0.1f * (float)between(rng, 0, 2)};
        break;
    case ESPER_TOPOLOGY_TRANSFORMER:
        host.transformer = (esper_host_transformer){.vocab = between(rng, 5, 90),
                                                    .width = 4 * heads * between(rng, 1, 8),
                                                    .heads = heads,
                                                    .layers = between(rng, 1, 3),
                                                    .context = between(rng, 3, 40),
                                                    .segments = 1,
                                                    .dropout = 0.1f * (float)between(rng, 0, 1),
                                                    .embed_std = 0.3f};
        break;
    }
    if (one_in(rng, 2))
        write_host(&host, rng);
    return host;
}

static grown_seed draw_seed(esper_rng *rng, const esper_slot *slot, esper_topology topology)
{
    static const int stages[] = {ESPER_STAGE_GERMINATED, ESPER_STAGE_TRAINING, ESPER_STAGE_BLENDING,
                                 ESPER_STAGE_BLENDING,   ESPER_STAGE_HOLDING,  ESPER_STAGE_FOSSILIZED,
                                 ESPER_STAGE_EMBARGOED};
    static const int blends[] = {ESPER_BLEND_ADD, ESPER_BLEND_MULTIPLY, ESPER_BLEND_GATE};
    const esper_blueprint *const *list = esper_blueprint_list(topology);
    int n = 0;

    while (list[n] != NULL)
        n++;
    return (grown_seed){slot->id,
                        list[between(rng, 0, n - 1)]->name,
                        stages[between(rng, 0, (int)(sizeof(stages) / sizeof(stages[0])) - 1)],
                        blends[between(rng, 0, 2)],
                        0.1 * between(rng, 0, 10),
                        one_in(rng, 2)};
}

/* Seeds in some of the host's slots. */
static esper_status grow(job *self, esper_rng *rng, const esper_net *plain)
{
    if (plain->n_boundaries == 0) {
        self->slots.n = 0;
        return ESPER_OK;
    }
    ESPER_TRY(esper_slots_init(&self->slots, plain->boundaries, plain->n_boundaries,
                               &(esper_slot_rules){.permissive = true}));
    for (int k = 0; k < self->slots.n; k++) {
        esper_slot *slot = &self->slots.slot[k];
        grown_seed seed = draw_seed(rng, slot, self->host.topology);
        const esper_blueprint *blueprint;
        size_t used = strlen(self->text);

        ESPER_TRY(esper_blueprint_find(self->host.topology, seed.blueprint, &blueprint));
        if (one_in(rng, 4) || esper_splice_count_params(blueprint, slot->channels) < 0)
            continue;
        ESPER_TRY(grown_slot(slot, &seed));
        snprintf(self->text + used, sizeof(self->text) - used, ", %s in %s (%s, %s, alpha %g)", seed.blueprint,
                 seed.slot, esper_stage_name(seed.stage), esper_blend_name(seed.blend), slot->alpha.value);
    }
    return ESPER_OK;
}

/* One draw; false: it makes no network, or one that is too much for the reference. */
static bool draws(job *self, esper_rng *rng)
{
    esper_splice splice;
    esper_net plain;
    bool good;

    self->host = draw_host(rng);
    self->n_samples = between(rng, 1, one_in(rng, 3) ? 70 : 20);
    esper_net_init(&plain);
    esper_net_init(&self->net);
    good = esper_host_build(&self->host, &plain) == ESPER_OK;
    if (good) {
        char described[ESPER_HOST_CHARS] = "";

        (void)esper_host_describe(&self->host, described);
        snprintf(self->text, sizeof(self->text), "network %u: %s, batch of %d: %s", self->number,
                 esper_topology_name(self->host.topology), self->n_samples, described);
        good = grow(self, rng, &plain) == ESPER_OK;
    }
    esper_net_fini(&plain);
    splice = (esper_splice){.topology = self->host.topology, .slots = &self->slots, .training = true};
    if (good && self->slots.n > 0)
        good = esper_splice_build(&splice, &self->host, &self->net) == ESPER_OK;
    else if (good)
        good = esper_host_build(&self->host, &self->net) == ESPER_OK;
    if (good && 3.0 * self->n_samples * esper_net_flops(&self->net) <= MOST_FLOPS)
        return true;
    esper_net_fini(&self->net);
    return false;
}

static void draw_job(job *self, uint32_t number, uint32_t batch)
{
    esper_rng rng = rng_of(number, RNG_NETWORK, 0);

    *self = (job){.number = number, .batch = batch};
    while (!draws(self, &rng))
        ;
    self->optimiser = one_in(&rng, 2) ? ESPER_OP_SGD : ESPER_OP_ADAMW;
}

/* ------------------------------------------------------------------------------------------------ one on a backend */

typedef struct side {
    job *job;
    esper_backend *backend;
    esper_slab slab;
    esper_pass pass;
    esper_plan *plan;
    esper_optim *optim;
    uint32_t *sample_ids; /* (samples) */
    trace *out;
    esper_status status;
    char message[512];
} side;

static void close_side(side *self)
{
    esper_optim_close(self->optim);
    esper_plan_close(self->plan);
    if (self->slab.memory != NULL)
        esper_slab_fini(&self->slab);
    free(self->sample_ids);
    *self = (side){0};
}

static esper_status open_side(side *self, job *of, esper_backend *backend, trace *out)
{
    esper_slab_desc room = {.n_moments = 2};
    const esper_slab *slabs[1] = {&self->slab};
    esper_plan_net net = {.net = &of->net, .slab = &self->slab, .pass = &self->pass};
    esper_plan_desc plan = {
        .backend = backend, .nets = &net, .n_nets = 1, .max_samples = of->n_samples, .training = true};
    /* eps: a gradient that is rounding alone does not become a step of full length */
    esper_optim_desc optim = {
        .backend = backend,
        .slabs = slabs,
        .n_slabs = 1,
        .kind = of->optimiser,
        .settings = {
            .lr = 0.01f, .momentum = 0.9f, .decay = 5e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-3f, .clip = 1.0f}};

    *self = (side){.job = of, .backend = backend, .out = out};
    self->sample_ids = calloc((size_t)of->n_samples, sizeof(*self->sample_ids));
    self->pass = (esper_pass){
        .n_samples = of->n_samples, .training = true, .seed = 5, .network = of->number, .sample_id = self->sample_ids};
    ESPER_TRY(esper_slab_init(&self->slab, backend, &of->net, &room));
    ESPER_TRY(esper_plan_open(&plan, &self->plan));
    return esper_optim_open(&optim, &self->optim);
}

/* Away from birth: scales that begin as 0, statistics that begin as 0 and 1. The slab is the host's. */
static esper_status be_born(side *self)
{
    const esper_net *net = &self->job->net;
    esper_rng rng = rng_of(self->job->number, RNG_WEIGHTS, 0);

    ESPER_TRY(esper_init_net(net, &self->slab, 7, self->job->number, -1));
    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        bool is_buffer = tensor->role == ESPER_ROLE_BUFFER;
        float *values = esper_slab_at(&self->slab, is_buffer ? ESPER_FAMILY_BUFFER : ESPER_FAMILY_PARAM, tensor);

        for (int64_t i = 0; values != NULL && i < tensor->count; i++)
            values[i] += is_buffer ? 0.5f * esper_rng_uniform(&rng) : 0.2f * esper_rng_uniform(&rng) - 0.1f;
    }
    return ESPER_OK;
}

static trace *trace_of(const job *of, const esper_slab *slab)
{
    trace *out = calloc(1, sizeof(*out));

    if (out == NULL)
        abort();
    out->n_params = esper_slab_count(slab, ESPER_FAMILY_PARAM);
    out->n_buffers = esper_slab_count(slab, ESPER_FAMILY_BUFFER);
    out->loss =
        calloc((size_t)(N_STEPS * (of->n_samples + out->n_params) + out->n_params + out->n_buffers), sizeof(float));
    if (out->loss == NULL)
        abort();
    out->grad = out->loss + N_STEPS * of->n_samples;
    out->param = out->grad + N_STEPS * out->n_params;
    out->buffer = out->param + out->n_params;
    return out;
}

static void free_trace(trace *out)
{
    if (out == NULL)
        return;
    free(out->loss);
    free(out);
}

static esper_status put_inputs(side *self, esper_backend_stream *stream, uint32_t step)
{
    const job *of = self->job;
    const esper_tensor *logits = &of->net.tensors[of->net.output];
    int n_words = of->host.topology == ESPER_TOPOLOGY_TRANSFORMER ? of->host.transformer.vocab : 1;
    esper_rng rng = rng_of(of->number, RNG_DATA, of->batch * N_STEPS + step);

    for (int t = 0; t < of->net.n_tensors; t++) {
        const esper_tensor *tensor = &of->net.tensors[t];
        int64_t count = tensor->count * of->n_samples;
        esper_status status;
        union {
            float number;
            int32_t id;
        } * values;

        if (tensor->role != ESPER_ROLE_INPUT)
            continue;
        values = calloc((size_t)count, sizeof(*values));
        if (values == NULL)
            abort();
        for (int64_t i = 0; i < count; i++)
            if (t == of->net.target)
                values[i].id = between(&rng, -1, logits->dim[logits->rank - 1] - 1); /* -1: not counted */
            else if (tensor->dtype == ESPER_I32)
                values[i].id = between(&rng, 0, n_words - 1);
            else
                values[i].number =
                    strstr(tensor->name, ".alpha") != NULL ? esper_rng_uniform(&rng) : esper_rng_normal(&rng);
        status = esper_plan_write(self->plan, stream, 0, t, values, of->n_samples);
        free(values);
        ESPER_TRY(status);
    }
    return ESPER_OK;
}

static void nudge(const job *of, float *params, int64_t count)
{
    esper_rng rng = rng_of(of->number, RNG_NUDGES, of->nudge);

    for (int64_t i = 0; i < count; i++)
        params[i] *= (float)(1.0 + NUDGE * (2.0 * (double)esper_rng_uniform(&rng) - 1.0));
}

/* The steps, all of them queued before anybody waits; nudged ones are those of ref, whose slab is the host's. */
static esper_status take_steps(side *self, esper_backend_stream *stream)
{
    const job *of = self->job;
    trace *out = self->out;
    int64_t n_targets = of->net.tensors[of->net.target].count;

    for (int f = 0; f < ESPER_N_FAMILIES; f++)
        if (of->born[f] != NULL && self->slab.family[f] != NULL)
            ESPER_TRY(esper_backend_copy_in(self->backend, stream, self->slab.family[f], of->born[f],
                                            (size_t)esper_slab_count(&self->slab, (esper_family)f) * sizeof(float)));
    if (of->nudge != 0)
        nudge(of, self->slab.family[ESPER_FAMILY_PARAM], out->n_params);
    for (uint32_t step = 0; step < N_STEPS; step++) {
        for (int i = 0; i < of->n_samples; i++)
            self->sample_ids[i] = step * (uint32_t)of->n_samples + (uint32_t)i;
        self->pass.step = step;
        self->pass.loss_scale = 1.0f / (float)(of->n_samples * n_targets);
        ESPER_TRY(put_inputs(self, stream, step));
        ESPER_TRY(esper_plan_gradients_one(self->plan, stream, 0));
        ESPER_TRY(
            esper_plan_read(self->plan, stream, 0, of->net.loss, out->loss + (int)step * of->n_samples, of->n_samples));
        ESPER_TRY(esper_backend_copy_out(self->backend, stream, out->grad + step * out->n_params,
                                         self->slab.family[ESPER_FAMILY_GRAD], (size_t)out->n_params * sizeof(float)));
        ESPER_TRY(esper_optim_step_one(self->optim, stream, 0));
    }
    ESPER_TRY(esper_backend_copy_out(self->backend, stream, out->param, self->slab.family[ESPER_FAMILY_PARAM],
                                     (size_t)out->n_params * sizeof(float)));
    ESPER_TRY(esper_backend_copy_out(self->backend, stream, out->buffer, self->slab.family[ESPER_FAMILY_BUFFER],
                                     (size_t)out->n_buffers * sizeof(float)));
    return esper_backend_wait(self->backend, stream);
}

/* ------------------------------------------------------------------------------------------------ the reference */

static esper_status reckon(job *self)
{
    esper_backend *backend;
    side ref;
    esper_status status;

    ESPER_TRY(esper_backend_open("ref", NULL, &backend));
    status = open_side(&ref, self, backend, NULL);
    if (status == ESPER_OK)
        status = be_born(&ref);
    if (status == ESPER_OK) {
        static const esper_family kept[] = {ESPER_FAMILY_PARAM, ESPER_FAMILY_BUFFER};

        for (int i = 0; i < 2; i++) {
            size_t bytes = (size_t)esper_slab_count(&ref.slab, kept[i]) * sizeof(float);

            self->born[kept[i]] = bytes > 0 ? malloc(bytes) : NULL;
            if (self->born[kept[i]] != NULL)
                memcpy(self->born[kept[i]], ref.slab.family[kept[i]], bytes);
        }
        self->ref = ref.out = trace_of(self, &ref.slab);
        status = take_steps(&ref, NULL);
    }
    close_side(&ref);
    esper_backend_close(backend);
    return status;
}

/* Once more, N_NUDGES times, each from weights whose last bits are others. */
static esper_status reckon_nudged(job *self, esper_backend *backend)
{
    esper_status status = ESPER_OK;

    for (int i = 0; i < N_NUDGES && status == ESPER_OK; i++) {
        side ref;

        self->nudge = (uint32_t)i + 1;
        status = open_side(&ref, self, backend, NULL);
        if (status == ESPER_OK) {
            self->nudged[i] = ref.out = trace_of(self, &ref.slab);
            status = take_steps(&ref, NULL);
        }
        close_side(&ref);
    }
    self->nudge = 0;
    return status;
}

typedef struct crew {
    job *jobs;
    const uint32_t *numbers;
    uint32_t batch;
    int n;
    atomic_int next;
} crew;

static void *draw_and_reckon(void *context)
{
    crew *all = context;

    for (int i; (i = all->next++) < all->n;) {
        draw_job(&all->jobs[i], all->numbers[i], all->batch);
        if (reckon(&all->jobs[i]) != ESPER_OK)
            snprintf(all->jobs[i].failure, sizeof(all->jobs[i].failure), "ref: %s", esper_last_error());
    }
    return NULL;
}

static void reckon_all(job *jobs, const uint32_t *numbers, uint32_t batch, int n)
{
    crew all = {.jobs = jobs, .numbers = numbers, .batch = batch, .n = n};
    int n_threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[MOST_THREADS];

    n_threads = n_threads > MOST_THREADS ? MOST_THREADS : n_threads;
    for (int i = 0; i < n_threads; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, draw_and_reckon, &all), 0);
    for (int i = 0; i < n_threads; i++)
        pthread_join(threads[i], NULL);
}

/* ------------------------------------------------------------------------------------------------ the device */

static void run_item(void *context, int item, esper_backend_stream *stream)
{
    side *self = &((side *)context)[item];

    if (self->status == ESPER_OK)
        self->status = take_steps(self, stream);
    if (self->status != ESPER_OK)
        snprintf(self->message, sizeof(self->message), "%s", esper_last_error());
}

/* Runs them side by side; what came of each is in traces_out. */
static void run_together(esper_backend *backend, job *const *jobs, int n, trace **traces_out)
{
    side *sides = calloc((size_t)n, sizeof(*sides));

    assert_non_null(sides);
    for (int i = 0; i < n; i++) {
        sides[i].status = open_side(&sides[i], jobs[i], backend, NULL);
        if (sides[i].status != ESPER_OK)
            fail_msg("%s: %s", jobs[i]->text, esper_last_error());
        sides[i].out = traces_out[i] = trace_of(jobs[i], &sides[i].slab);
    }
    esper_backend_each(backend, n, run_item, sides);
    for (int i = 0; i < n; i++) {
        if (sides[i].status != ESPER_OK)
            fail_msg("%s: %s", jobs[i]->text, sides[i].message);
        close_side(&sides[i]);
    }
    free(sides);
}

static void close_job(job *self)
{
    free_trace(self->ref);
    free_trace(self->cuda);
    for (int i = 0; i < N_NUDGES; i++)
        free_trace(self->nudged[i]);
    for (int f = 0; f < ESPER_N_FAMILIES; f++)
        free(self->born[f]);
    esper_net_fini(&self->net);
}

/* ------------------------------------------------------------------------------------------------ comparing */

static double size_of(const float *values, int64_t count)
{
    double size = 0;

    for (int64_t i = 0; i < count; i++)
        size += (double)values[i] * (double)values[i];
    return sqrt(size);
}

static double distance(const float *a, const float *b, int64_t count)
{
    double sum = 0;

    for (int64_t i = 0; i < count; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

/* The difference of some of ref's values from those of the device, as a share of what is allowed. */
static double check(job *self, const char *what, const char *name, int step, const float *expected, int64_t count,
                    double least)
{
    int64_t at = expected - self->ref->loss;
    double size = size_of(expected, count), difference = distance(expected, self->cuda->loss + at, count), nudged = 0,
           share;

    for (int i = 0; i < N_NUDGES && self->nudged[i] != NULL; i++)
        nudged = fmax(nudged, distance(expected, self->nudged[i]->loss + at, count));
    share = difference / (TOLERANCE * (size + least) + ALLOWED * nudged);
    if (!(share <= 1.0) && self->failure[0] == '\0')
        snprintf(self->failure, sizeof(self->failure),
                 "%s of %s, step %d: differs by %.3g, its size is %.3g; ref, nudged, by %.3g", what, name, step,
                 difference, size, nudged);
    return share <= 1e9 ? share : 1e9;
}

/* Returns the worst share; where that is above 1 the job has a failure. */
static double compare(job *self, int64_t first_of[ESPER_MAX_REGIONS + 1], int64_t first_buffer[ESPER_MAX_REGIONS + 1])
{
    const trace *a = self->ref;
    double worst = 0;

    for (int step = 0; step < N_STEPS; step++) {
        const float *grad = a->grad + step * a->n_params;
        double least = LEAST * size_of(grad, a->n_params) + 1e-6;

        worst = fmax(worst, check(self, "the loss", "each sample", step, a->loss + step * self->n_samples,
                                  self->n_samples, 1e-2));
        for (int t = 0; t < self->net.n_tensors; t++) {
            const esper_tensor *tensor = &self->net.tensors[t];
            int64_t at = first_of[tensor->region] + tensor->offset;

            if (tensor->role == ESPER_ROLE_PARAM)
                worst = fmax(worst, check(self, "the gradient", tensor->name, step, grad + at, tensor->count, least));
        }
    }
    for (int t = 0; t < self->net.n_tensors; t++) {
        const esper_tensor *tensor = &self->net.tensors[t];

        if (tensor->role == ESPER_ROLE_PARAM)
            worst = fmax(worst, check(self, "the weights", tensor->name, N_STEPS,
                                      a->param + first_of[tensor->region] + tensor->offset, tensor->count, 0.1));
        if (tensor->role == ESPER_ROLE_BUFFER)
            worst = fmax(worst, check(self, "the statistics", tensor->name, N_STEPS,
                                      a->buffer + first_buffer[tensor->region] + tensor->offset, tensor->count, 0.1));
    }
    return worst;
}

/* Where regions begin: as any slab of the network has them. */
static double compare_laid_out(job *self, esper_backend *backend)
{
    esper_slab_desc room = {.n_moments = 0};
    esper_slab slab;
    double worst;

    if (esper_slab_init(&slab, backend, &self->net, &room) != ESPER_OK)
        fail_msg("%s: %s", self->text, esper_last_error());
    worst = compare(self, slab.param_begin, slab.buffer_begin);
    esper_slab_fini(&slab);
    return worst;
}

/* ------------------------------------------------------------------------------------------------ tests */

static int from_environment(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text != NULL && atoi(text) > 0 ? atoi(text) : otherwise;
}

static bool on_a_device(void)
{
    const char *gpu = getenv("ESPER_TEST_GPU");

    return gpu != NULL && strcmp(gpu, "1") == 0;
}

static esper_backend *open_named(const char *name)
{
    esper_backend *backend;

    if (esper_backend_open(name, NULL, &backend) != ESPER_OK)
        fail_msg("%s: %s", name, esper_last_error());
    return backend;
}

/* Draws, reckons and runs the numbered networks, on this data. */
static job *run_jobs(esper_backend *cuda, const uint32_t *numbers, uint32_t batch, int n, double seconds[2])
{
    job *jobs = calloc((size_t)n, sizeof(*jobs)), **all = calloc((size_t)n, sizeof(*all));
    trace **traces = calloc((size_t)n, sizeof(*traces));
    double began = esper_clock_seconds(), reckoned;

    assert_true(jobs != NULL && all != NULL && traces != NULL);
    reckon_all(jobs, numbers, batch, n);
    reckoned = esper_clock_seconds();
    for (int i = 0; i < n; i++) {
        if (jobs[i].failure[0] != '\0')
            fail_msg("%s: %s", jobs[i].text, jobs[i].failure);
        all[i] = &jobs[i];
    }
    run_together(cuda, all, n, traces);
    for (int i = 0; i < n; i++)
        jobs[i].cuda = traces[i];
    seconds[0] += reckoned - began;
    seconds[1] += esper_clock_seconds() - reckoned;
    free(traces);
    free(all);
    return jobs;
}

static int by_size(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Whether it agrees with ref where what ref itself differs by, nudged, is allowed. */
static bool agrees_nudged(job *self, esper_backend *ref)
{
    self->failure[0] = '\0';
    if (reckon_nudged(self, ref) != ESPER_OK)
        fail_msg("%s: nudged: %s", self->text, esper_last_error());
    (void)compare_laid_out(self, ref);
    return self->failure[0] == '\0';
}

/* Whether a network that differed, beyond what ref does, is right on two other batches. */
static bool agrees_again(esper_backend *cuda, esper_backend *ref, const job *first, double seconds[2])
{
    bool agrees = true;

    for (uint32_t batch = 1; batch <= 2 && agrees; batch++) {
        job *again = run_jobs(cuda, &first->number, batch, 1, seconds);

        (void)compare_laid_out(again, ref);
        agrees = again->failure[0] == '\0' || agrees_nudged(again, ref);
        if (!agrees)
            print_message("WRONG: network %u, batch %u: %s\n", first->number, batch, again->failure);
        close_job(again);
        free(again);
    }
    return agrees;
}

static void networks_agree_with_ref(void **state)
{
    int first = from_environment("ESPER_TEST_FIRST", 0), n = from_environment("ESPER_TEST_COUNT", effort(8, 3)),
        n_differ = 0, n_wrong = 0, n_texts = 0, n_seeds = 0;
    double *shares = calloc((size_t)n, sizeof(*shares)), seconds[2] = {0, 0};
    esper_backend *cuda = open_named("cuda"), *ref = open_named("ref");

    (void)state;
    assert_non_null(shares);
    for (int begin = 0; begin < n; begin += GROUP) {
        int some = n - begin < GROUP ? n - begin : GROUP;
        uint32_t numbers[GROUP];
        job *jobs;

        for (int i = 0; i < some; i++)
            numbers[i] = (uint32_t)(first + begin + i);
        jobs = run_jobs(cuda, numbers, 0, some, seconds);
        for (int i = 0; i < some; i++) {
            shares[begin + i] = compare_laid_out(&jobs[i], ref);
            n_texts += jobs[i].host.text[0] != '\0';
            n_seeds += jobs[i].slots.n - esper_slots_count(&jobs[i].slots, 1u << ESPER_STAGE_DORMANT);
            if (jobs[i].failure[0] != '\0') {
                n_differ++;
                print_message("differs: %s: %s\n", jobs[i].text, jobs[i].failure);
                if (!agrees_nudged(&jobs[i], ref)) {
                    print_message("more than ref does: network %u: %s\n", jobs[i].number, jobs[i].failure);
                    n_wrong += !agrees_again(cuda, ref, &jobs[i], seconds);
                }
            }
        }
        for (int i = 0; i < some; i++)
            close_job(&jobs[i]);
        free(jobs);
    }
    qsort(shares, (size_t)n, sizeof(*shares), by_size);
    print_message(
        "%d networks (%d of texts, %d seeds), %d steps each, on %s: largest difference beside a tensor %.1e in "
        "the middle, %.1e of 99 in 100; %d above %.0e, %d wrong; ref took %.1f s, the device %.1f s\n",
        n, n_texts, n_seeds, N_STEPS, esper_backend_identity(cuda), TOLERANCE * shares[n / 2],
        TOLERANCE * shares[n * 99 / 100], n_differ, TOLERANCE, n_wrong, seconds[0], seconds[1]);
    assert_int_equal(n_wrong, 0);
    assert_true(n_differ <= n / MOST_DIFFER + 1);
    free(shares);
    esper_backend_close(ref);
    esper_backend_close(cuda);
}

static void check_equal(const job *of, const trace *a, const trace *b, const char *what)
{
    if (memcmp(a->loss, b->loss, (size_t)N_STEPS * (size_t)of->n_samples * sizeof(float)) != 0 ||
        memcmp(a->grad, b->grad, (size_t)(N_STEPS * a->n_params) * sizeof(float)) != 0 ||
        memcmp(a->param, b->param, (size_t)a->n_params * sizeof(float)) != 0 ||
        memcmp(a->buffer, b->buffer, (size_t)a->n_buffers * sizeof(float)) != 0)
        fail_msg("%s: other bits %s", of->text, what);
}

/* The first n of the networks together have the bits that they have among all. */
static void check_company(esper_backend *cuda, job *const *jobs, int n, trace *const *among_all, const char *what)
{
    trace *traces[TOGETHER];

    run_together(cuda, jobs, n, traces);
    for (int i = 0; i < n; i++) {
        check_equal(jobs[i], among_all[i], traces[i], what);
        free_trace(traces[i]);
    }
}

static void company_changes_no_bit(void **state)
{
    enum { FIRST = 100000 };
    int n = on_a_device() ? TOGETHER : effort(6, 4);
    job jobs[TOGETHER], *all[TOGETHER];
    uint32_t numbers[TOGETHER];
    trace *among_all[TOGETHER];
    esper_backend *cuda = open_named("cuda");

    (void)state;
    for (int i = 0; i < n; i++) {
        numbers[i] = FIRST + (uint32_t)i;
        all[i] = &jobs[i];
    }
    reckon_all(jobs, numbers, 0, n);
    run_together(cuda, all, n, among_all);
    for (int i = 0; i < ALONE; i++)
        check_company(cuda, all + i, 1, among_all + i, "alone");
    check_company(cuda, all, TRIO, among_all, "as one of three");
    check_company(cuda, all, n, among_all, "the second time");
    esper_backend_close(cuda);
    cuda = open_named("cuda");
    check_company(cuda, all, n, among_all, "on a backend of its own");
    esper_backend_close(cuda);
    for (int i = 0; i < n; i++) {
        free_trace(among_all[i]);
        close_job(&jobs[i]);
    }
    print_message("%d networks: the same bits alone, as one of %d, of %d, and again\n", n, TRIO, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(networks_agree_with_ref),
        cmocka_unit_test(company_changes_no_bit),
    };

    if (getenv("ESPER_TEST_FILTER") != NULL)
        cmocka_set_test_filter(getenv("ESPER_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
