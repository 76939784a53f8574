/* Exact moments, and the three normalisers that absorb them. */
#include "policy/normaliser.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "policy/pack.h"

/* ------------------------------------------------------------------------------------------------ moments */

typedef __int128 wide;

static const double unit = 4294967296.0; /* 2^32 */

static wide wide_of(const uint64_t words[2])
{
    return (wide)((unsigned __int128)words[1] << 64 | words[0]);
}

static void add_wide(uint64_t words[2], wide more)
{
    wide sum = wide_of(words) + more;

    words[0] = (uint64_t)sum;
    words[1] = (uint64_t)(sum >> 64);
}

bool esper_moments_add(esper_moments *moments, double value)
{
    int64_t q;

    if (!isfinite(value)) {
        moments->n_bad++;
        return false;
    }
    q = llrint(fmin(fmax(value, -ESPER_MOMENTS_LIMIT), ESPER_MOMENTS_LIMIT) * unit);
    moments->n++;
    add_wide(moments->sum, q);
    add_wide(moments->squares, (wide)q * q);
    return true;
}

void esper_moments_merge(esper_moments *moments, const esper_moments *other)
{
    moments->n += other->n;
    moments->n_bad += other->n_bad;
    add_wide(moments->sum, wide_of(other->sum));
    add_wide(moments->squares, wide_of(other->squares));
}

double esper_moments_mean(const esper_moments *moments)
{
    return moments->n > 0 ? (double)wide_of(moments->sum) / (double)moments->n / unit : 0.0;
}

/* Around the whole number nearest below the mean, where nothing cancels; then around the mean itself. */
double esper_moments_variance(const esper_moments *moments)
{
    wide n = (wide)moments->n, sum, middle, around;
    double rest;

    if (moments->n == 0)
        return 0.0;
    sum = wide_of(moments->sum);
    middle = sum / n;
    around = wide_of(moments->squares) - 2 * middle * sum + n * middle * middle;
    rest = (double)(sum - middle * n) / (double)n;
    return fmax(0.0, (double)around / (double)n - rest * rest) / unit / unit;
}

/* A mean and variance that slide towards those of a batch: each round the same part of the way. */
static void slide(double momentum, const esper_moments *batch, double *mean, double *variance)
{
    double part = 1.0 - momentum, b = esper_moments_mean(batch), delta = b - *mean;

    assert(momentum >= 0.0 && momentum < 1.0);
    *mean = momentum * *mean + part * b;
    *variance = momentum * *variance + part * esper_moments_variance(batch) + momentum * part * delta * delta;
}

/* Those of all values so far. */
static void pool(double count, double least, const esper_moments *batch, double *mean, double *variance)
{
    double n = (double)batch->n, total = fmax(least, count + n), delta = esper_moments_mean(batch) - *mean;
    double squares = *variance * count + esper_moments_variance(batch) * n + delta * delta * count * n / total;

    assert(count >= 0.0 && total > 0.0);
    *mean += delta * n / total;
    *variance = squares / total;
}

/* ------------------------------------------------------------------------------------------------ observations */

esper_status esper_normaliser_open(int n, const uint8_t *how, double momentum, esper_normaliser **norm_out)
{
    size_t each = sizeof(esper_moments) + 3 * sizeof(double) + 1;
    esper_normaliser *norm;

    if (n < 1 || !(momentum >= 0.0 && momentum < 1.0))
        return ESPER_FAIL(ESPER_E_ARG, "a normaliser of %d values with momentum %g", n, momentum);
    norm = esper_mem_alloc(sizeof(*norm) + (size_t)n * each);
    if (norm == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a normaliser of %d values", n);
    norm->n = n;
    norm->momentum = momentum;
    norm->round = (esper_moments *)(norm + 1);
    norm->mean = (double *)(norm->round + n);
    norm->variance = norm->mean + n;
    norm->count = norm->variance + n;
    norm->how = (uint8_t *)(norm->count + n);
    for (int i = 0; i < n; i++) {
        norm->variance[i] = 1.0;
        norm->count[i] = ESPER_NORM_EPSILON;
        norm->how[i] = how != NULL ? how[i] : (uint8_t)ESPER_NORM_RUNNING;
    }
    *norm_out = norm;
    return ESPER_OK;
}

void esper_normaliser_close(esper_normaliser *norm)
{
    esper_mem_free(norm);
}

static bool is_missing(const esper_normaliser *norm, int i, float value)
{
    return norm->how[i] == ESPER_NORM_OR_MISSING && value == -1.0f;
}

void esper_normaliser_gather(esper_normaliser *norm, const float *row)
{
    for (int i = 0; i < norm->n; i++)
        if (!is_missing(norm, i, row[i]))
            (void)esper_moments_add(&norm->round[i], (double)row[i]);
}

void esper_normaliser_merge(esper_normaliser *norm, const esper_moments *others)
{
    for (int i = 0; i < norm->n; i++)
        esper_moments_merge(&norm->round[i], &others[i]);
}

uint64_t esper_normaliser_update(esper_normaliser *norm)
{
    uint64_t n_bad = 0;

    for (int i = 0; i < norm->n; i++) {
        const esper_moments *round = &norm->round[i];

        n_bad += round->n_bad;
        if (round->n > 0 && norm->momentum > 0.0)
            slide(norm->momentum, round, &norm->mean[i], &norm->variance[i]);
        else if (round->n > 0)
            pool(norm->count[i], 0.0, round, &norm->mean[i], &norm->variance[i]);
        norm->count[i] += (double)round->n;
    }
    memset(norm->round, 0, (size_t)norm->n * sizeof(*norm->round));
    return n_bad;
}

static double clip(double x)
{
    return fmin(fmax(x, -ESPER_NORM_CLIP), ESPER_NORM_CLIP);
}

void esper_normaliser_apply(const esper_normaliser *norm, const float *row, float *row_out)
{
    for (int i = 0; i < norm->n; i++) {
        double x = (double)row[i];

        if (is_missing(norm, i, row[i]) || !isfinite(x))
            x = 0.0;
        else if (norm->how[i] != ESPER_NORM_AS_IS)
            x = (x - norm->mean[i]) / sqrt(norm->variance[i] + ESPER_NORM_EPSILON);
        row_out[i] = (float)clip(x);
    }
}

/* ------------------------------------------------------------------------------------------------ packed */

/*     | n, momentum | moments of the round | mean | variance | count | how |     all but the first two as they lie */
typedef struct packed_head {
    uint64_t n;
    double   momentum;
} packed_head;

static const char pack_name[] = "normaliser";

static size_t body_bytes(const esper_normaliser *norm)
{
    return (size_t)norm->n * (sizeof(esper_moments) + 3 * sizeof(double) + 1);
}

size_t esper_normaliser_pack_bytes(const esper_normaliser *norm)
{
    return ESPER_PACK_HEAD_BYTES + sizeof(packed_head) + body_bytes(norm);
}

void esper_normaliser_pack(const esper_normaliser *norm, void *memory)
{
    packed_head head = {.n = (uint64_t)norm->n, .momentum = norm->momentum};
    char *at = (char *)memory + ESPER_PACK_HEAD_BYTES;

    memcpy(at, &head, sizeof(head));
    memcpy(at + sizeof(head), norm->round, body_bytes(norm));
    esper_pack_seal(memory, pack_name, sizeof(head) + body_bytes(norm));
}

esper_status esper_normaliser_unpack(esper_normaliser *norm, const void *memory, size_t bytes)
{
    const void *payload;
    const char *body;
    packed_head head;
    size_t room;

    ESPER_TRY(esper_pack_open(memory, bytes, pack_name, &payload, &room));
    if (room != sizeof(head) + body_bytes(norm))
        return ESPER_FAIL(ESPER_E_CONFIG, "packed normaliser: not of %d values: of another number of slots", norm->n);
    memcpy(&head, payload, sizeof(head));
    body = (const char *)payload + sizeof(head);
    if (head.n != (uint64_t)norm->n || !(head.momentum >= 0.0 && head.momentum < 1.0))
        return ESPER_FAIL(ESPER_E_FORMAT, "packed normaliser: damaged");
    if (memcmp(body + body_bytes(norm) - norm->n, norm->how, (size_t)norm->n) != 0)
        return ESPER_FAIL(ESPER_E_CONFIG, "packed normaliser: treats values in another way: of another version");
    norm->momentum = head.momentum;
    memcpy(norm->round, body, body_bytes(norm));
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ returns */

static const double value_momentum = 0.99;

void esper_value_norm_init(esper_value_norm *norm)
{
    *norm = (esper_value_norm){.variance = 1.0};
}

void esper_value_norm_update(esper_value_norm *norm, const esper_moments *returns)
{
    if (returns->n == 0)
        return;
    if (norm->count >= ESPER_VALUE_WARMUP)
        slide(value_momentum, returns, &norm->mean, &norm->variance);
    else
        pool(norm->count, 1.0, returns, &norm->mean, &norm->variance);
    norm->count += (double)returns->n;
}

double esper_value_norm_scale(const esper_value_norm *norm)
{
    return norm->count >= ESPER_VALUE_WARMUP ? sqrt(norm->variance + ESPER_NORM_EPSILON) : 1.0;
}

/* ------------------------------------------------------------------------------------------------ rewards */

void esper_reward_norm_init(esper_reward_norm *norm)
{
    *norm = (esper_reward_norm){0};
}

void esper_reward_norm_update(esper_reward_norm *norm, const esper_moments *rewards)
{
    double n = (double)rewards->n, total = norm->count + n, delta = esper_moments_mean(rewards) - norm->mean;

    if (rewards->n == 0)
        return;
    norm->squares += esper_moments_variance(rewards) * n + delta * delta * norm->count * n / total;
    norm->mean += delta * n / total;
    norm->count = total;
}

double esper_reward_norm_apply(const esper_reward_norm *norm, double reward)
{
    if (!isfinite(reward))
        return 0.0;
    if (norm->count < 2.0)
        return clip(reward);
    return clip(reward / fmax(1e-8, sqrt(norm->squares / (norm->count - 1.0))));
}
