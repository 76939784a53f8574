/* Calibration: ranges, weights in 8 bits, and the numbers that bring sums back to 16. */
#include "nn/fixed.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

enum {
    MOST_INPUTS = 1536, /* of an output, up to which second moments are kept: a table of so many squared */
    ROWS = 24,          /* inputs of outputs looked at in each sample */
    SWEEPS = 12,        /* over a row's weights, at most */
};

static const float HEADROOM = 1.25f; /* of a range, for what the samples did not show */

/* ------------------------------------------------------------------------------------------------ what samples show */

/* Inputs that one output is a sum of, and the outputs of a sample. */
static int inputs_of(const esper_infer *infer, const esper_infer_op *op)
{
    const esper_infer_weights *w = &infer->weights[op->w];

    return (int)(w->count / w->dim[0]);
}

static bool is_sum(const esper_infer_op *op)
{
    return op->kind == ESPER_INFER_CONV || op->kind == ESPER_INFER_LINEAR;
}

static int groups_of(const esper_infer_op *op)
{
    return op->kind == ESPER_INFER_CONV ? op->groups : 1;
}

/* The pixels under a convolution's kernel for its result at (row, column), 0 beyond the border. */
static void take_patch(const esper_infer *infer, const esper_infer_op *op, const float *x, int group, int row,
                       int column, float *patch)
{
    const esper_infer_tensor *t = &infer->tensors[op->in[0]];
    const esper_infer_weights *w = &infer->weights[op->w];
    int k = w->dim[2], height = t->dim[1], width = t->dim[2];

    for (int c = 0; c < w->dim[1]; c++)
        for (int i = 0; i < k; i++)
            for (int j = 0; j < k; j++) {
                int r = row - op->pad + i, s = column - op->pad + j;
                bool inside = r >= 0 && r < height && s >= 0 && s < width;

                *patch++ = inside ? x[((group * w->dim[1] + c) * height + r) * width + s] : 0.0f;
            }
}

static void add_moments(esper_fixed_op *to, int n_groups, int group, int K, const float *patch)
{
    float *square = to->moments + (size_t)group * (size_t)K * (size_t)K;
    float *sum = to->moments + (size_t)n_groups * (size_t)K * (size_t)K + (size_t)group * (size_t)K;

    for (int i = 0; i < K; i++) {
        if (patch[i] == 0.0f)
            continue; /* often, behind a ReLU */
        sum[i] += patch[i];
        for (int j = 0; j <= i; j++)
            square[i * K + j] += patch[i] * patch[j];
    }
}

/* Looks at the inputs of some outputs, spread over the sample, others in every sample. */
static void see_inputs(esper_fixed *self, int o, const float *x)
{
    const esper_infer *infer = self->infer;
    const esper_infer_op *op = &infer->ops[o];
    const esper_infer_tensor *t = &infer->tensors[op->in[0]];
    esper_fixed_op *to = &self->ops[o];
    int K = inputs_of(infer, op), n_groups = groups_of(op), columns = 1, n_outputs;
    float patch[MOST_INPUTS];

    if (to->moments == NULL)
        return;
    if (op->kind == ESPER_INFER_CONV) {
        columns = t->dim[2] + 2 * op->pad - infer->weights[op->w].dim[3] + 1;
        n_outputs = columns * (t->dim[1] + 2 * op->pad - infer->weights[op->w].dim[2] + 1);
    } else
        n_outputs = (int)(t->count / K);
    for (int n = 0; n < ROWS && n < n_outputs; n++) {
        int at =
            (int)((to->n_seen * 7919 + (int64_t)n * n_outputs / (ROWS < n_outputs ? ROWS : n_outputs)) % n_outputs);

        for (int group = 0; group < n_groups; group++) {
            if (op->kind == ESPER_INFER_CONV)
                take_patch(infer, op, x, group, at / columns, at % columns, patch);
            else
                memcpy(patch, x + (int64_t)at * K, (size_t)K * sizeof(*patch));
            add_moments(to, n_groups, group, K, patch);
        }
        to->n_seen++;
    }
}

static void see(void *context, int tensor, const float *values)
{
    esper_fixed *self = context;
    float largest = self->tensors[tensor].largest;

    for (int64_t i = 0; i < self->infer->tensors[tensor].count; i++)
        largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
    self->tensors[tensor].largest = largest;
    for (int o = 0; o < self->infer->n_ops; o++)
        if (is_sum(&self->infer->ops[o]) && self->infer->ops[o].in[0] == tensor)
            see_inputs(self, o, values);
}

static esper_status take_moments(esper_fixed *self)
{
    for (int o = 0; o < self->infer->n_ops; o++) {
        const esper_infer_op *op = &self->infer->ops[o];
        size_t K;

        if (!is_sum(op))
            continue;
        K = (size_t)inputs_of(self->infer, op);
        self->ops[o].correction = esper_mem_alloc((size_t)self->infer->weights[op->w].dim[0] * sizeof(float));
        if (K <= MOST_INPUTS)
            self->ops[o].moments = esper_mem_alloc((size_t)groups_of(op) * (K * K + K) * sizeof(float));
        if (self->ops[o].correction == NULL || (K <= MOST_INPUTS && self->ops[o].moments == NULL))
            return ESPER_FAIL(ESPER_E_NOMEM, "%s: moments of %zu inputs", op->name, K);
    }
    return ESPER_OK;
}

static esper_status look_at_samples(esper_fixed *self, esper_fixed_sample sample, void *context)
{
    const esper_infer_tensor *output = &self->infer->tensors[self->infer->output];
    float *results = esper_mem_alloc((size_t)output->count * sizeof(*results));
    esper_infer_runner runner = {0};
    const void *input;
    esper_status status = esper_infer_runner_init(&runner, self->infer);

    if (status == ESPER_OK && results == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "outputs of a sample");
    runner.saw = see;
    runner.context = self;
    for (int i = 0; status == ESPER_OK && (input = sample(context, i)) != NULL; i++)
        esper_infer_run(&runner, input, results);
    esper_infer_runner_fini(&runner);
    esper_mem_free(results);
    for (int t = 0; status == ESPER_OK && t < self->infer->n_tensors; t++)
        if (!isfinite(self->tensors[t].largest))
            status = ESPER_FAIL(ESPER_E_FORMAT, "the network's activations are not finite on the samples");
    return status;
}

/* ------------------------------------------------------------------------------------------------ weights */

/* Centres the moments of a group, mirrors them, and puts a little onto the diagonal, so that inputs that never moved are rounded to
 * the nearest. */
static void finish_moments(esper_fixed_op *op, int n_groups, int group, int K)
{
    float *square = op->moments + (size_t)group * (size_t)K * (size_t)K;
    float *mean = op->moments + (size_t)n_groups * (size_t)K * (size_t)K + (size_t)group * (size_t)K;
    float n = (float)(op->n_seen > 0 ? op->n_seen : 1), diagonal = 0.0f;

    for (int i = 0; i < K; i++)
        mean[i] /= n;
    for (int i = 0; i < K; i++)
        for (int j = 0; j <= i; j++)
            square[i * K + j] = square[j * K + i] = square[i * K + j] / n - mean[i] * mean[j];
    for (int i = 0; i < K; i++)
        diagonal += square[i * K + i];
    for (int i = 0; i < K; i++)
        square[i * K + i] = fmaxf(square[i * K + i], 0.0f) + 0.01f * diagonal / (float)K + 1e-12f;
}

/* To the nearest. */
static float round_row(const float *w, int K, int8_t *q)
{
    float largest = 0.0f, scale;

    for (int k = 0; k < K; k++)
        largest = fabsf(w[k]) > largest ? fabsf(w[k]) : largest;
    scale = largest > 1e-30f ? largest / ESPER_FIXED_WEIGHT : 1.0f;
    for (int k = 0; k < K; k++)
        q[k] = (int8_t)lrintf(w[k] / scale);
    return scale;
}

/* Moves weights by whole steps as long as the expected square of the output's error, e^T G e, falls. */
static esper_status improve_row(const float *w, float scale, const float *G, int K, int8_t *q)
{
    float *error = esper_mem_alloc(2 * (size_t)K * sizeof(float)), *h = error + K;
    bool moved = true;

    if (error == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "rounding of %d weights", K);
    for (int k = 0; k < K; k++)
        error[k] = w[k] - scale * (float)q[k];
    for (int i = 0; i < K; i++) {
        h[i] = 0.0f;
        for (int j = 0; j < K; j++)
            h[i] += G[i * K + j] * error[j];
    }
    for (int sweep = 0; sweep < SWEEPS && moved; sweep++) {
        moved = false;
        for (int k = 0; k < K; k++) {
            float wanted = (float)q[k] + rintf(h[k] / (scale * G[k * K + k]));
            int to = wanted > ESPER_FIXED_WEIGHT    ? ESPER_FIXED_WEIGHT
                     : wanted < -ESPER_FIXED_WEIGHT ? -ESPER_FIXED_WEIGHT
                                                    : (int)wanted;
            float step = scale * (float)(to - q[k]);

            if (to == q[k])
                continue;
            moved = true;
            q[k] = (int8_t)to;
            for (int j = 0; j < K; j++)
                h[j] -= step * G[k * K + j];
        }
    }
    esper_mem_free(error);
    return ESPER_OK;
}

static esper_status take_weights(esper_fixed *self, int w)
{
    const esper_infer_weights *from = &self->infer->weights[w];
    esper_fixed_weights *to = &self->weights[w];
    int rows = from->dim[0], K = (int)(from->count / rows);

    if (to->q != NULL)
        return ESPER_OK; /* shared */
    to->q = esper_mem_alloc((size_t)from->count);
    to->scale = esper_mem_alloc((size_t)rows * sizeof(*to->scale));
    if (to->q == NULL || to->scale == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "weights in 8 bits");
    for (int r = 0; r < rows; r++)
        to->scale[r] = round_row(from->values + (int64_t)r * K, K, to->q + (int64_t)r * K);
    return ESPER_OK;
}

/* Whether an embedding reads the same table: its rows then stay as near as they can be. */
static bool is_embedding(const esper_infer *infer, int w)
{
    for (int o = 0; o < infer->n_ops; o++)
        if (infer->ops[o].kind == ESPER_INFER_EMBEDDING && infer->ops[o].w == w)
            return true;
    return false;
}

static esper_status round_weights(esper_fixed *self, int o)
{
    const esper_infer_op *op = &self->infer->ops[o];
    const esper_infer_weights *from = &self->infer->weights[op->w];
    esper_fixed_op *to = &self->ops[o];
    int K = inputs_of(self->infer, op), n_groups = groups_of(op), rows = from->dim[0];
    const float *means;

    ESPER_TRY(take_weights(self, op->w));
    if (to->moments == NULL || to->n_seen == 0)
        return ESPER_OK;
    for (int g = 0; g < n_groups; g++)
        finish_moments(to, n_groups, g, K);
    means = to->moments + (size_t)n_groups * (size_t)K * (size_t)K;
    for (int r = 0; r < rows; r++) {
        int group = r / (rows / n_groups);
        const float *w = from->values + (int64_t)r * K;
        int8_t *q = self->weights[op->w].q + (int64_t)r * K;
        float scale = self->weights[op->w].scale[r], lost = 0.0f;

        if (!is_embedding(self->infer, op->w))
            ESPER_TRY(improve_row(w, scale, to->moments + (size_t)group * (size_t)K * (size_t)K, K, q));
        for (int k = 0; k < K; k++)
            lost += (w[k] - scale * (float)q[k]) * means[group * K + k];
        to->correction[r] = lost;
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ ranges */

/* The largest number an activation may have so that no sum of what reads it leaves 32 bits. */
static void limit_range(esper_fixed *self, int o)
{
    const esper_infer_op *op = &self->infer->ops[o];
    const esper_infer_weights *w = &self->infer->weights[op->w];
    esper_fixed_tensor *x = &self->tensors[op->in[0]];
    int K = inputs_of(self->infer, op);

    for (int r = 0; r < w->dim[0]; r++) {
        double bias = fabs((double)self->infer->weights[op->b].values[r]) + fabs((double)self->ops[o].correction[r]);
        double sum = bias / ((double)x->largest * (double)self->weights[op->w].scale[r]), most;

        for (int k = 0; k < K; k++)
            sum += abs(self->weights[op->w].q[(int64_t)r * K + k]);
        most = floor((2147483647.0 - 8.0) / (sum > 1.0 ? sum : 1.0));
        x->most = most < x->most ? (int32_t)most : x->most;
    }
}

static esper_status choose_ranges(esper_fixed *self)
{
    for (int t = 0; t < self->infer->n_tensors; t++) {
        float largest = self->tensors[t].largest * HEADROOM;

        self->tensors[t].largest = largest > 1e-20f ? largest : 1.0f;
        self->tensors[t].most = ESPER_FIXED_MOST;
    }
    for (int o = 0; o < self->infer->n_ops; o++)
        if (is_sum(&self->infer->ops[o]))
            limit_range(self, o);
    for (int t = 0; t < self->infer->n_tensors; t++) {
        if (self->tensors[t].most < 1)
            return ESPER_FAIL(ESPER_E_UNSUPPORTED, "a bias is too large beside its layer's weights for whole numbers");
        self->tensors[t].scale = self->tensors[t].largest / (float)self->tensors[t].most;
    }
    return ESPER_OK;
}

/* ratio = factor / 2^shift, factor in 31 bits. */
static void split_ratio(double ratio, int32_t *factor, uint8_t *shift)
{
    int exponent;
    double part = frexp(ratio, &exponent) * 2147483648.0;

    if (rint(part) >= 2147483648.0) {
        part /= 2.0;
        exponent++;
    }
    *factor = exponent < -31 ? 0 : (int32_t)rint(part);
    *shift = (uint8_t)(exponent < -31 ? 1 : 31 - exponent);
}

static esper_status choose_factors(esper_fixed *self, int o)
{
    const esper_infer_op *op = &self->infer->ops[o];
    int rows = self->infer->weights[op->w].dim[0];
    const esper_fixed_tensor *x = &self->tensors[op->in[0]], *y = &self->tensors[op->out];
    esper_fixed_op *to = &self->ops[o];

    to->bias = esper_mem_alloc((size_t)rows * sizeof(*to->bias));
    to->factor = esper_mem_alloc((size_t)rows * sizeof(*to->factor));
    to->shift = esper_mem_alloc((size_t)rows);
    if (to->bias == NULL || to->factor == NULL || to->shift == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: factors", op->name);
    to->last =
        op->kind == ESPER_INFER_LINEAR && op->out == self->infer->output && self->infer->tensors[op->out].n_uses == 1;
    for (int r = 0; r < rows; r++) {
        double unit = (double)x->scale * (double)self->weights[op->w].scale[r];
        double bias = (double)self->infer->weights[op->b].values[r] + (double)to->correction[r];

        to->bias[r] = (int32_t)lrint(bias / unit);
        if (unit / (double)y->scale >= 1073741824.0)
            return ESPER_FAIL(ESPER_E_UNSUPPORTED, "%s: its results are too small beside its weights", op->name);
        split_ratio(unit / (double)y->scale, &to->factor[r], &to->shift[r]);
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ all of it */

static esper_status place(esper_fixed *self)
{
    const esper_infer *infer = self->infer;
    int64_t *sizes = esper_mem_alloc((size_t)infer->n_tensors * sizeof(*sizes));
    int64_t *none = esper_mem_alloc((size_t)(infer->n_ops + 1) * sizeof(*none));
    esper_status status = sizes != NULL && none != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "places");

    for (int t = 0; status == ESPER_OK && t < infer->n_tensors; t++)
        sizes[t] = infer->tensors[t].ids ? 0 : infer->tensors[t].count;
    for (int o = 0; status == ESPER_OK && o < infer->n_ops; o++) {
        int64_t n = esper_infer_scratch(infer, &infer->ops[o]);

        self->n_scratch = n > self->n_scratch ? n : self->n_scratch;
        if (self->ops[o].last)
            sizes[infer->output] = 0;
    }
    if (status == ESPER_OK)
        status = esper_infer_place(infer, sizes, none, 1, &self->places);
    esper_mem_free(sizes);
    esper_mem_free(none);
    ESPER_TRY(status);
    self->memory = esper_mem_alloc((size_t)(self->places.size + 1) * sizeof(*self->memory));
    self->scratch = esper_mem_alloc((size_t)(self->n_scratch + 1) * sizeof(*self->scratch));
    return self->memory != NULL && self->scratch != NULL ? ESPER_OK : ESPER_FAIL(ESPER_E_NOMEM, "activations");
}

static esper_status calibrate(esper_fixed *self, esper_fixed_sample sample, void *context)
{
    const esper_infer *infer = self->infer;

    ESPER_TRY(take_moments(self));
    ESPER_TRY(look_at_samples(self, sample, context));
    for (int o = 0; o < infer->n_ops; o++) {
        if (is_sum(&infer->ops[o]))
            ESPER_TRY(round_weights(self, o));
        else if (infer->ops[o].kind == ESPER_INFER_EMBEDDING) {
            ESPER_TRY(take_weights(self, infer->ops[o].w));
            if (infer->ops[o].b != ESPER_INFER_NONE)
                ESPER_TRY(take_weights(self, infer->ops[o].b));
        }
        esper_mem_free(self->ops[o].moments);
        self->ops[o].moments = NULL;
    }
    ESPER_TRY(choose_ranges(self));
    for (int o = 0; o < infer->n_ops; o++)
        if (is_sum(&infer->ops[o]))
            ESPER_TRY(choose_factors(self, o));
    return place(self);
}

esper_status esper_fixed_init(esper_fixed *fixed, const esper_infer *infer, esper_fixed_sample sample, void *context)
{
    esper_fixed made = {.infer = infer};
    esper_status status;

    made.tensors = esper_mem_alloc((size_t)infer->n_tensors * sizeof(*made.tensors));
    made.ops = esper_mem_alloc((size_t)(infer->n_ops + 1) * sizeof(*made.ops));
    made.weights = esper_mem_alloc((size_t)(infer->n_weights + 1) * sizeof(*made.weights));
    status = made.tensors != NULL && made.ops != NULL && made.weights != NULL
                 ? calibrate(&made, sample, context)
                 : ESPER_FAIL(ESPER_E_NOMEM, "a program of %d operations", infer->n_ops);
    if (status == ESPER_OK)
        *fixed = made;
    else
        esper_fixed_fini(&made);
    return status;
}

void esper_fixed_fini(esper_fixed *fixed)
{
    for (int o = 0; fixed->ops != NULL && o < fixed->infer->n_ops; o++) {
        esper_mem_free(fixed->ops[o].bias);
        esper_mem_free(fixed->ops[o].factor);
        esper_mem_free(fixed->ops[o].shift);
        esper_mem_free(fixed->ops[o].moments);
        esper_mem_free(fixed->ops[o].correction);
    }
    for (int w = 0; fixed->weights != NULL && w < fixed->infer->n_weights; w++) {
        esper_mem_free(fixed->weights[w].q);
        esper_mem_free(fixed->weights[w].scale);
    }
    esper_mem_free(fixed->tensors);
    esper_mem_free(fixed->ops);
    esper_mem_free(fixed->weights);
    esper_mem_free(fixed->memory);
    esper_mem_free(fixed->scratch);
    esper_infer_places_fini(&fixed->places);
    *fixed = (esper_fixed){0};
}
