/* Validation with variants. A program is a network, whole or cut, with its plan; a job is one variant of a run: which
 * program computes it, and its sums. Equal bits: a cut program's operations are those of the whole one, over equal inputs. */
#include "engine/evaluator.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/cost.h"

enum {
    WHOLE = -1,
    MOST_UNREAD = 32, /* batches whose results are read together: one wait */
    SUBMITTED = 16,   /* so many are begun while the next are queued */
};

typedef struct program {
    struct program *next;
    uint64_t        key;   /* esper_splice_key */
    int             cut;   /* index of the slot it begins at; WHOLE = at the host's input */
    uint32_t        kept;  /* bits 1u << index: slots before which its tensor is kept */
    uint32_t        passed; /* the same: slots of new channels for which is kept what passes those */
    bool            used;  /* by the present run */
    esper_net       net;
    esper_pass      pass;
    esper_plan     *plan;
    int             alpha[ESPER_MAX_SLOTS];  /* its inputs, by index; ESPER_NO_TENSOR = none */
    int             before[ESPER_MAX_SLOTS]; /* the tensor before a slot, by index; ESPER_NO_TENSOR = cut off */
} program;

struct esper_evaluator {
    esper_network *network;
    esper_split    split;
    int            n_targets; /* of a sample */
    int32_t       *targets;   /* (batch, n_targets) of the present batch: inputs do not survive a pass */
    float         *results;   /* of the network's passes, of batches that are not read yet */
    float         *others;    /* the same of variants; kept for the next run */
    size_t         n_others;  /* floats */
    program       *programs;
};

/* Of a batch, by sample. Each program that is run has room of its own for each batch that is not read yet. */
typedef struct results {
    float *losses, *correct;
} results;

typedef struct job {
    esper_splice splice;
    int          cut;     /* as in program; WHOLE = it comes to the network itself */
    int          same_as; /* an earlier job that it comes to; -1 = none */
    program     *program; /* NULL where nothing is computed */
    esper_tally  tally;
    int64_t      sum, sum_squares; /* over samples, of (right targets of the network - of the variant) */
    double       flops;            /* of a sample, when that is what was asked */
    float       *results;          /* as the evaluator's; NULL where nothing is computed */
} job;

typedef struct evaluation {
    esper_splice splice; /* the network as it is */
    program     *network;
    esper_tally  tally, slice; /* of the network: in all, and of the slice */
    job         *jobs;
    int          n_jobs;
    uint32_t     n_unread; /* batches */
} evaluation;

static const esper_sampler *sampler_of(const esper_evaluator *evaluator)
{
    return evaluator->network->engine->samplers[evaluator->split];
}

/* ------------------------------------------------------------------------------------------------ what differs */

static esper_splice splice_of(const esper_evaluator *evaluator, const esper_variant *variant)
{
    esper_splice splice = {.topology = evaluator->network->engine->host.topology, .slots = &evaluator->network->slots};

    if (variant != NULL)
        memcpy(splice.presence, variant->presence, sizeof(splice.presence));
    return splice;
}

/* The slot, first in the order of execution, at which two programs differ; WHOLE = they are equal. In programs for inference
 * a seed's part is decided by whether it is there and its alpha. */
static int first_difference(const esper_splice *a, const esper_splice *b)
{
    int first = WHOLE;

    for (int k = 0; k < a->slots->n; k++) {
        bool in_a = esper_splice_has_seed(a, k), in_b = esper_splice_has_seed(b, k);
        bool differs = in_a != in_b || (in_a && esper_splice_alpha(a, k) != esper_splice_alpha(b, k));

        if (differs && (first == WHOLE || a->slots->slot[k].depth < a->slots->slot[first].depth))
            first = k;
    }
    return first;
}

static bool is_computed(const job *self)
{
    return self->cut != WHOLE && self->same_as < 0;
}

static esper_status prepare(const esper_evaluator *evaluator, const esper_variant *variants, int n_variants,
                            evaluation *run)
{
    run->splice = splice_of(evaluator, NULL);
    if (n_variants <= 0)
        return ESPER_OK;
    for (int i = 0; i < n_variants; i++)
        for (int k = 0; k < evaluator->network->slots.n; k++)
            if (variants[i].presence[k] > ESPER_PRESENCE_FULL)
                return ESPER_FAIL(ESPER_E_ARG, "variant: presence %d of slot %s", variants[i].presence[k],
                                  evaluator->network->slots.slot[k].id);
    run->jobs = esper_mem_alloc((size_t)n_variants * sizeof(*run->jobs));
    if (run->jobs == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "evaluation of %d variants", n_variants);
    run->n_jobs = n_variants;
    for (int i = 0; i < n_variants; i++) {
        job *self = &run->jobs[i];

        self->splice = splice_of(evaluator, &variants[i]);
        self->same_as = -1;
        self->cut = first_difference(&run->splice, &self->splice);
        if (self->cut != WHOLE)
            self->cut = esper_splice_cut_slot(self->splice.slots, &evaluator->network->engine->plain, self->cut);
        for (int j = 0; j < i && self->same_as < 0; j++)
            if (first_difference(&run->jobs[j].splice, &self->splice) == WHOLE)
                self->same_as = j;
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ programs */

static int tensor_before(const esper_net *net, const esper_slot *slot)
{
    const esper_boundary *boundary = esper_net_find_boundary(net, slot->id);

    return boundary != NULL ? boundary->tensor : ESPER_NO_TENSOR;
}

/* The net of a splice, cut at a slot or whole. The caller finishes it, whatever comes back. */
static esper_status build_net(const esper_evaluator *evaluator, const esper_splice *splice, int cut, esper_net *net)
{
    esper_net_init(net);
    ESPER_TRY(esper_splice_build(splice, &evaluator->network->engine->host, net));
    net->output = ESPER_NO_TENSOR; /* nobody reads the logits: their memory may be used again */
    return cut == WHOLE ? ESPER_OK : esper_net_cut(net, tensor_before(net, &splice->slots->slot[cut]));
}

static void close_program(program *self)
{
    if (self == NULL)
        return;
    esper_plan_close(self->plan);
    esper_net_fini(&self->net);
    esper_mem_free(self);
}

static esper_status plan_program(const esper_evaluator *evaluator, const esper_splice *splice, program *self)
{
    const esper_engine *engine = evaluator->network->engine;
    esper_plan_net plan_net = {.net = &self->net, .slab = &evaluator->network->slab, .pass = &self->pass};
    esper_plan_desc plan_desc = {
        .backend = engine->backend,
        .cache = engine->plans,
        .nets = &plan_net,
        .n_nets = 1,
        .max_samples = esper_engine_max_samples(engine),
    };

    ESPER_TRY(build_net(evaluator, splice, self->cut, &self->net));
    esper_splice_find_alphas(splice, &self->net, self->alpha);
    for (int k = 0; k < splice->slots->n; k++) {
        self->before[k] = tensor_before(&self->net, &splice->slots->slot[k]);
        assert((self->kept >> k & 1u) == 0 || self->before[k] != ESPER_NO_TENSOR);
        if ((self->kept >> k & 1u) != 0)
            esper_splice_keep_at(splice, &self->net, k);
    }
    return esper_plan_open(&plan_desc, &self->plan);
}

/* For which slots of new channels a program that keeps these tensors keeps what passes them: where there is a seed, be it one that is
 * no part of the program yet. */
static uint32_t find_passed(const esper_evaluator *evaluator, const esper_splice *splice, uint32_t kept)
{
    uint32_t passed = 0;

    for (int k = 0; k < splice->slots->n && kept != 0; k++)
        if (esper_stage_has_seed(splice->slots->slot[k].stage) &&
            esper_net_find_boundary(&evaluator->network->engine->plain, splice->slots->slot[k].id)->wide.channels > 0)
            passed |= 1u << k;
    return passed;
}

static esper_status open_program(esper_evaluator *evaluator, const esper_splice *splice, int cut, uint32_t kept,
                                 program **program_out)
{
    program *self = esper_mem_alloc(sizeof(*self));
    esper_status status;

    if (self == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "program of a variant");
    esper_net_init(&self->net);
    self->key = esper_splice_key(splice);
    self->cut = cut;
    self->kept = kept;
    self->passed = find_passed(evaluator, splice, kept);
    status = plan_program(evaluator, splice, self);
    if (status != ESPER_OK) {
        close_program(self);
        return status;
    }
    self->next = evaluator->programs;
    evaluator->programs = self;
    *program_out = self;
    return ESPER_OK;
}

/* The program if there is one, marked as used; else NULL. */
static program *find_program(esper_evaluator *evaluator, const esper_splice *splice, int cut, uint32_t kept)
{
    uint64_t key = esper_splice_key(splice);
    uint32_t passed = find_passed(evaluator, splice, kept);

    for (program *self = evaluator->programs; self != NULL; self = self->next)
        if (self->key == key && self->cut == cut && self->kept == kept && self->passed == passed) {
            self->used = true;
            return self;
        }
    return NULL;
}

/* What is there is found first and the rest closed, so that old and new programs do not take memory together. Variants
 * that differ in alpha alone share a program. */
static esper_status open_programs(esper_evaluator *evaluator, evaluation *run)
{
    uint32_t kept = 0;

    for (program *self = evaluator->programs; self != NULL; self = self->next)
        self->used = false;
    for (int i = 0; i < run->n_jobs; i++)
        if (is_computed(&run->jobs[i])) {
            kept |= 1u << run->jobs[i].cut;
            run->jobs[i].program = find_program(evaluator, &run->jobs[i].splice, run->jobs[i].cut, 0);
        }
    run->network = find_program(evaluator, &run->splice, WHOLE, kept);
    for (program **link = &evaluator->programs; *link != NULL;) {
        program *self = *link;

        if (self->used) {
            link = &self->next;
        } else {
            *link = self->next;
            close_program(self);
        }
    }
    if (run->network == NULL)
        ESPER_TRY(open_program(evaluator, &run->splice, WHOLE, kept, &run->network));
    for (int i = 0; i < run->n_jobs; i++) {
        job *self = &run->jobs[i];

        if (is_computed(self) && self->program == NULL)
            self->program = find_program(evaluator, &self->splice, self->cut, 0);
        if (is_computed(self) && self->program == NULL)
            ESPER_TRY(open_program(evaluator, &self->splice, self->cut, 0, &self->program));
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ passes */

static size_t floats_of_batch(const esper_evaluator *evaluator)
{
    return 2 * (size_t)esper_engine_max_samples(evaluator->network->engine);
}

static esper_status make_room(esper_evaluator *evaluator, const evaluation *run, uint32_t n_slice)
{
    size_t each = floats_of_batch(evaluator) * (n_slice < MOST_UNREAD ? n_slice : MOST_UNREAD), n = 0;

    for (int i = 0; i < run->n_jobs; i++)
        n += is_computed(&run->jobs[i]);
    if (n * each > evaluator->n_others) {
        esper_mem_free(evaluator->others);
        evaluator->n_others = 0;
        evaluator->others = esper_mem_alloc(n * each * sizeof(*evaluator->others));
        if (evaluator->others == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "results of %zu variants", n);
        evaluator->n_others = n * each;
    }
    for (int i = run->n_jobs - 1; i >= 0; i--)
        if (is_computed(&run->jobs[i]))
            run->jobs[i].results = evaluator->others + --n * each;
    return ESPER_OK;
}

/* Of the batch at that place among those that are not read. */
static results results_at(const esper_evaluator *evaluator, float *room, uint32_t at)
{
    float *losses = room + at * floats_of_batch(evaluator);

    assert(at < MOST_UNREAD);
    return (results){losses, losses + floats_of_batch(evaluator) / 2};
}

/* Everything but what the program begins with is there. */
static esper_status run_program(const esper_evaluator *evaluator, program *self, const esper_splice *splice,
                                int n_samples, const results *to)
{
    esper_backend_stream *stream = evaluator->network->stream;
    size_t n = (size_t)n_samples * (size_t)evaluator->n_targets;

    self->pass = (esper_pass){.n_samples = n_samples, .loss_scale = 1.0f / (float)n};
    ESPER_TRY(esper_splice_fill_alphas(splice, self->alpha, self->plan, stream, n_samples));
    ESPER_TRY(esper_plan_write(self->plan, stream, 0, self->net.target, evaluator->targets, n_samples));
    ESPER_TRY(esper_plan_forward_one(self->plan, stream, 0));
    ESPER_TRY(esper_plan_read(self->plan, stream, 0, self->net.loss, to->losses, n_samples));
    return esper_plan_read(self->plan, stream, 0, self->net.correct, to->correct, n_samples);
}

static esper_status hand_over(const esper_evaluator *evaluator, const program *network, int from, const program *cut,
                              int to)
{
    size_t bytes = (size_t)network->net.tensors[from].count * (size_t)network->pass.n_samples * sizeof(float);

    assert(network->net.tensors[from].count == cut->net.tensors[to].count);
    assert(from != network->net.input || !esper_plan_is_packed(network->plan, 0));
    return esper_backend_copy(evaluator->network->engine->backend, evaluator->network->stream,
                              esper_plan_data(cut->plan, 0, to), esper_plan_data(network->plan, 0, from), bytes);
}

/* Begins with what the network has computed up to there. */
static esper_status run_job(const esper_evaluator *evaluator, const evaluation *run, const job *self)
{
    const program *network = run->network;
    int passing[ESPER_MAX_REGIONS], n = esper_net_list_passing(&self->program->net, passing);
    results to = results_at(evaluator, self->results, run->n_unread);

    assert(self->program->cut == self->cut && (network->kept >> self->cut & 1u) != 0);
    ESPER_TRY(hand_over(evaluator, network, network->before[self->cut], self->program, self->program->net.input));
    for (int i = 0; i < n; i++) /* up to the cut both programs are the same, and so are the numbers of their tensors */
        ESPER_TRY(hand_over(evaluator, network, passing[i], self->program, passing[i]));
    return run_program(evaluator, self->program, &self->splice, network->pass.n_samples, &to);
}

/* Adds the results of the batch just run, in the order of its samples. */
static void add_results(const esper_evaluator *evaluator, const results *from, int n, esper_tally *tally)
{
    for (int i = 0; i < n; i++) {
        tally->loss += (double)from->losses[i];
        tally->correct += (uint64_t)from->correct[i];
    }
    tally->samples += (uint64_t)n;
    tally->targets += (uint64_t)n * (uint64_t)evaluator->n_targets;
}

static esper_status ask(const esper_evaluator *evaluator, const esper_follower *follower)
{
    if (follower->stop != NULL && *follower->stop != 0)
        return ESPER_FAIL(ESPER_E_STOPPED, "evaluation of the %s split", esper_split_name(evaluator->split));
    return ESPER_OK;
}

/* The results of a batch of the slice: the network's, the variants', and how they differ by sample. */
static void add_slice(const esper_evaluator *evaluator, evaluation *run, uint32_t at, int n)
{
    results network = results_at(evaluator, evaluator->results, at);

    add_results(evaluator, &network, n, &run->slice);
    for (int j = 0; j < run->n_jobs; j++) {
        job *self = &run->jobs[j];
        results own;

        if (!is_computed(self))
            continue;
        own = results_at(evaluator, self->results, at);
        add_results(evaluator, &own, n, &self->tally);
        for (int i = 0; i < n; i++) {
            int64_t difference = (int64_t)network.correct[i] - (int64_t)own.correct[i];

            self->sum += difference;
            self->sum_squares += difference * difference;
        }
    }
}

enum { OF_TALLY = 4, OF_JOB = OF_TALLY + 2 };

/* Counts are whole numbers far below 2^53: as doubles they are exact. */
static double *move_tally(esper_tally *tally, double *sums, bool back)
{
    double ours[OF_TALLY] = {tally->loss, (double)tally->correct, (double)tally->targets, (double)tally->samples};

    if (back)
        *tally = (esper_tally){sums[0], (uint64_t)sums[1], (uint64_t)sums[2], (uint64_t)sums[3]};
    else
        memcpy(sums, ours, sizeof(ours));
    return sums + OF_TALLY;
}

/* The sums of a run to a list, or back from it. */
static void move_sums(evaluation *run, double *sums, bool back)
{
    sums = move_tally(&run->tally, sums, back);
    sums = move_tally(&run->slice, sums, back);
    for (int i = 0; i < run->n_jobs; i++) {
        job *self = &run->jobs[i];

        sums = move_tally(&self->tally, sums, back);
        if (back) {
            self->sum = (int64_t)sums[0];
            self->sum_squares = (int64_t)sums[1];
        } else {
            sums[0] = (double)self->sum;
            sums[1] = (double)self->sum_squares;
        }
        sums += OF_JOB - OF_TALLY;
    }
}

/* The sums of all ranks. */
static esper_status join_sums(const esper_evaluator *evaluator, evaluation *run)
{
    const esper_ranks *ranks = &evaluator->network->engine->ranks;
    size_t n = 2 * OF_TALLY + (size_t)run->n_jobs * OF_JOB;
    double *sums;
    esper_status status;

    if (!esper_ranks_are_many(ranks))
        return ESPER_OK;
    sums = esper_mem_alloc(n * sizeof(*sums));
    if (sums == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "sums of %d variants", run->n_jobs);
    move_sums(run, sums, false);
    status = esper_ranks_sum(ranks, sums, n);
    if (status == ESPER_OK)
        move_sums(run, sums, true);
    esper_mem_free(sums);
    return status;
}

/* The one wait: batches up to `end` that were not read are added up, in their order. */
static esper_status read_batches(const esper_evaluator *evaluator, evaluation *run, uint32_t end, uint32_t n_slice)
{
    uint32_t first = end - run->n_unread;

    if (run->n_unread == 0)
        return ESPER_OK;
    ESPER_TRY(esper_network_wait(evaluator->network));
    for (uint32_t at = 0; at < run->n_unread; at++) {
        int n = (int)esper_sampler_batch_count(sampler_of(evaluator), first + at);
        results network = results_at(evaluator, evaluator->results, at);

        add_results(evaluator, &network, n, &run->tally);
        if (first + at < n_slice)
            add_slice(evaluator, run, at, n);
    }
    run->n_unread = 0;
    return ESPER_OK;
}

/* A batch that falls to other ranks has no samples here. */
static esper_status queue_batch(const esper_evaluator *evaluator, evaluation *run, uint32_t batch, bool in_slice,
                                const esper_follower *follower)
{
    int n = (int)esper_sampler_batch_count(sampler_of(evaluator), batch);
    results to = results_at(evaluator, evaluator->results, run->n_unread);

    if (n > 0) {
        ESPER_TRY(esper_network_put_batch(evaluator->network, run->network->plan, &run->network->net, evaluator->split,
                                          batch, evaluator->targets));
        ESPER_TRY(run_program(evaluator, run->network, &run->splice, n, &to));
    }
    for (int i = 0; n > 0 && in_slice && i < run->n_jobs; i++)
        if (is_computed(&run->jobs[i])) {
            ESPER_TRY(ask(evaluator, follower));
            ESPER_TRY(run_job(evaluator, run, &run->jobs[i]));
        }
    run->n_unread++;
    return run->n_unread % SUBMITTED == 0 && run->n_unread < MOST_UNREAD
               ? esper_backend_submit(evaluator->network->engine->backend, evaluator->network->stream, NULL)
               : ESPER_OK;
}

static esper_status run_batches(const esper_evaluator *evaluator, evaluation *run, uint32_t n_batches, uint32_t n_slice,
                                const esper_follower *follower)
{
    static const esper_follower nobody;
    esper_status status = ESPER_OK;

    if (follower == NULL)
        follower = &nobody;
    for (uint32_t batch = 0; status == ESPER_OK && batch < n_batches; batch++) {
        status = ask(evaluator, follower);
        if (status == ESPER_OK && follower->batch != NULL)
            follower->batch(follower->context, evaluator->split, batch, n_batches);
        if (status == ESPER_OK)
            status = queue_batch(evaluator, run, batch, batch < n_slice, follower);
        if (status == ESPER_OK && (run->n_unread == MOST_UNREAD || batch + 1 == n_batches))
            status = read_batches(evaluator, run, batch + 1, n_slice);
    }
    if (status != ESPER_OK) { /* what is on its way comes before its room is given back; why it failed is known */
        char message[512];

        snprintf(message, sizeof(message), "%s", esper_last_error());
        (void)esper_network_wait(evaluator->network);
        return ESPER_FAIL(status, "%s", message);
    }
    return join_sums(evaluator, run);
}

/* ------------------------------------------------------------------------------------------------ results */

/* From sums over n samples of whole numbers, each up to `scale`. */
static esper_variant_result compare(const job *self, const esper_tally *network, int scale)
{
    double n = (double)self->tally.samples, mean = (double)self->sum / n;
    double variance = ((double)self->sum_squares - mean * (double)self->sum) / (n - 1.0);
    esper_variant_result result = {.tally = self->tally, .n_samples = self->tally.samples};

    result.difference = result.error = (double)NAN;
    if (!isfinite(self->tally.loss) || !isfinite(network->loss))
        return result;
    result.difference = 100.0 * mean / scale;
    if (n > 1.0)
        result.error = 100.0 * sqrt(fmax(variance, 0.0) / n) / scale;
    return result;
}

/* ------------------------------------------------------------------------------------------------ from outside */

esper_status esper_evaluator_open(esper_network *network, esper_split split, esper_evaluator **evaluator_out)
{
    const esper_engine *engine = network->engine;
    esper_evaluator *evaluator = esper_mem_alloc(sizeof(*evaluator));
    size_t n_samples = (size_t)esper_engine_max_samples(engine);

    if (evaluator == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "evaluator");
    evaluator->network = network;
    evaluator->split = split;
    evaluator->n_targets = (int)engine->plain.tensors[engine->plain.target].count;
    evaluator->targets = esper_mem_alloc(n_samples * (size_t)evaluator->n_targets * sizeof(int32_t));
    evaluator->results = esper_mem_alloc(MOST_UNREAD * floats_of_batch(evaluator) * sizeof(*evaluator->results));
    if (evaluator->targets == NULL || evaluator->results == NULL) {
        esper_evaluator_close(evaluator);
        return ESPER_FAIL(ESPER_E_NOMEM, "evaluator for batches of %zu", n_samples);
    }
    *evaluator_out = evaluator;
    return ESPER_OK;
}

void esper_evaluator_close(esper_evaluator *evaluator)
{
    if (evaluator == NULL)
        return;
    while (evaluator->programs != NULL) {
        program *self = evaluator->programs;

        evaluator->programs = self->next;
        close_program(self);
    }
    esper_mem_free(evaluator->others);
    esper_mem_free(evaluator->results);
    esper_mem_free(evaluator->targets);
    esper_mem_free(evaluator);
}

esper_status esper_evaluator_run(esper_evaluator *evaluator, uint32_t n_batches, const esper_variant *variants,
                                 int n_variants, uint32_t n_slice, const esper_follower *follower,
                                 esper_tally *tally_out, esper_variant_result *results_out)
{
    uint32_t there = esper_sampler_batches(sampler_of(evaluator));
    evaluation run = {0};
    esper_status status;

    if (n_batches < 1 || n_batches > there)
        return ESPER_FAIL(ESPER_E_ARG, "evaluation of %u batches: the %s split has %u", n_batches,
                          esper_split_name(evaluator->split), there);
    if (n_variants > 0 && (n_slice < 1 || n_slice > n_batches))
        return ESPER_FAIL(ESPER_E_ARG, "variants over %u of %u batches", n_slice, n_batches);
    status = prepare(evaluator, variants, n_variants, &run);
    if (status == ESPER_OK)
        status = open_programs(evaluator, &run);
    if (status == ESPER_OK)
        status = make_room(evaluator, &run, n_slice);
    if (status == ESPER_OK)
        status = run_batches(evaluator, &run, n_batches, n_variants > 0 ? n_slice : 0, follower);
    if (status == ESPER_OK) {
        *tally_out = run.tally;
        for (int i = 0; i < run.n_jobs; i++) {
            job *self = &run.jobs[i];

            if (self->cut == WHOLE)
                self->tally = run.slice;
            results_out[i] =
                self->same_as >= 0 ? results_out[self->same_as] : compare(self, &run.slice, evaluator->n_targets);
        }
    }
    esper_mem_free(run.jobs);
    return status;
}

/* ------------------------------------------------------------------------------------------------ its cost */

static esper_status count_flops(const esper_evaluator *evaluator, const esper_splice *splice, int cut,
                                double *flops_out)
{
    esper_net net;
    esper_status status = build_net(evaluator, splice, cut, &net);

    if (status == ESPER_OK)
        *flops_out = esper_net_flops(&net);
    esper_net_fini(&net);
    return status;
}

esper_status esper_evaluator_flops(const esper_evaluator *evaluator, const esper_variant *variants, int n_variants,
                                   double *network_out, double *variants_out)
{
    evaluation run = {0};
    double network = 0.0;
    esper_status status = prepare(evaluator, variants, n_variants, &run);

    if (status == ESPER_OK)
        status = count_flops(evaluator, &run.splice, WHOLE, &network);
    for (int i = 0; i < run.n_jobs && status == ESPER_OK; i++)
        if (is_computed(&run.jobs[i]))
            status = count_flops(evaluator, &run.jobs[i].splice, run.jobs[i].cut, &run.jobs[i].flops);
    if (status == ESPER_OK)
        *network_out = network;
    for (int i = 0; i < run.n_jobs && status == ESPER_OK; i++)
        variants_out[i] = run.jobs[i].flops;
    esper_mem_free(run.jobs);
    return status;
}

int esper_evaluator_count_plans(const esper_evaluator *evaluator)
{
    int n = 0;

    for (const program *self = evaluator->programs; self != NULL; self = self->next)
        n++;
    return n;
}
