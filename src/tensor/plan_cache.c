/* Schedules that are kept, so that a network whose program was planned before is only given its addresses.
 *
 * A schedule is found by its key: the program and all else that it is made of, packed into bytes and compared to the last
 * one. Whoever finds none makes it without holding the lock, as planning takes its time and other networks are planned
 * meanwhile; when two have made the same one, the second gives its own back. The one that was asked for the longest time ago
 * makes room for another. */
#include <assert.h>
#include <pthread.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "tensor/plan.h"
#include "tensor/plan_schedule.h"

typedef struct cache_key {
    void    *bytes;
    size_t   n_bytes;
    uint64_t hash; /* of them: most that differ are told apart by this */
} cache_key;

typedef struct cached {
    cache_key       key;
    esper_schedule *schedule;
    int64_t         asked; /* when, counted in calls */
} cached;

struct esper_plan_cache {
    const esper_backend *backend;
    pthread_mutex_t      lock; /* of all that follows */
    cached              *kept; /* (room) */
    int                  n_kept, room;
    int64_t              n_asked, n_made;
};

/* ------------------------------------------------------------------------------------------------ keys */

/* What a schedule depends on. Names, initial values and boundaries are not among it. Keys are written field by field over
 * zeros, so that holes between fields are equal too. */
typedef struct key_head {
    int32_t  n_tensors, n_ops, max_samples, training, spread;
    int32_t  input, target, output, loss, correct;
    uint64_t frozen;
} key_head;

typedef struct key_tensor {
    int32_t role, dtype, rank, dim[ESPER_MAX_RANK];
    int32_t per_sample, keep, want_grad, take_grad;
    int32_t region;
    int64_t offset;
} key_tensor;

typedef struct key_op {
    int32_t    kind, in[ESPER_OP_MAX_IN], out[ESPER_OP_MAX_OUT], region;
    uint32_t   place;
    esper_attr attr;
} key_op;

static void put_head(const esper_schedule_desc *desc, key_head *head)
{
    const esper_net *net = desc->net;

    head->n_tensors = net->n_tensors;
    head->n_ops = net->n_ops;
    head->max_samples = desc->max_samples;
    head->training = desc->training;
    head->spread = desc->spread;
    head->input = net->input;
    head->target = net->target;
    head->output = net->output;
    head->loss = net->loss;
    head->correct = net->correct;
    head->frozen = desc->frozen;
}

static void put_tensor(const esper_tensor *tensor, key_tensor *to)
{
    assert(tensor->layout == 0); /* it is for the backend to lower it */
    to->role = (int32_t)tensor->role;
    to->dtype = (int32_t)tensor->dtype;
    to->rank = tensor->rank;
    memcpy(to->dim, tensor->dim, sizeof(to->dim));
    to->per_sample = tensor->per_sample;
    to->keep = tensor->keep;
    to->want_grad = tensor->want_grad;
    to->take_grad = tensor->take_grad;
    to->region = tensor->region;
    to->offset = tensor->offset;
}

static void put_op(const esper_op *op, key_op *to)
{
    assert(op->variant == 0);
    to->kind = (int32_t)op->kind;
    memcpy(to->in, op->in, sizeof(to->in));
    memcpy(to->out, op->out, sizeof(to->out));
    to->place = op->place;
    to->region = op->region;
    memcpy(&to->attr, &op->attr, sizeof(to->attr));
}

static esper_status make_key(const esper_schedule_desc *desc, cache_key *key_out)
{
    size_t n_tensors = (size_t)desc->net->n_tensors, n_ops = (size_t)desc->net->n_ops;
    size_t n_bytes = sizeof(key_head) + n_tensors * sizeof(key_tensor) + n_ops * sizeof(key_op);
    char *bytes = esper_mem_alloc(n_bytes), *at = bytes;

    if (bytes == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "key of %zu operations", n_ops);
    put_head(desc, (key_head *)at);
    at += sizeof(key_head);
    for (size_t t = 0; t < n_tensors; t++, at += sizeof(key_tensor))
        put_tensor(&desc->net->tensors[t], (key_tensor *)at);
    for (size_t o = 0; o < n_ops; o++, at += sizeof(key_op))
        put_op(&desc->net->ops[o], (key_op *)at);
    assert(at == bytes + n_bytes);
    *key_out = (cache_key){bytes, n_bytes, XXH3_64bits(bytes, n_bytes)};
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ the cache */

esper_status esper_plan_cache_open(const esper_backend *backend, int room, esper_plan_cache **cache_out)
{
    esper_plan_cache *cache;

    if (room < 1)
        return ESPER_FAIL(ESPER_E_ARG, "a cache for %d schedules", room);
    cache = esper_mem_alloc(sizeof(*cache));
    if (cache == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "cache of schedules");
    cache->kept = esper_mem_alloc((size_t)room * sizeof(*cache->kept));
    if (cache->kept == NULL) {
        esper_mem_free(cache);
        return ESPER_FAIL(ESPER_E_NOMEM, "cache of %d schedules", room);
    }
    cache->backend = backend;
    cache->room = room;
    pthread_mutex_init(&cache->lock, NULL);
    *cache_out = cache;
    return ESPER_OK;
}

static void forget(cached *entry)
{
    esper_schedule_release(entry->schedule);
    esper_mem_free(entry->key.bytes);
    *entry = (cached){0};
}

void esper_plan_cache_close(esper_plan_cache *cache)
{
    if (cache == NULL)
        return;
    for (int i = 0; i < cache->n_kept; i++)
        forget(&cache->kept[i]);
    pthread_mutex_destroy(&cache->lock);
    esper_mem_free(cache->kept);
    esper_mem_free(cache);
}

/* Under the lock: the schedule of that key, held for the caller; NULL when there is none. */
static esper_schedule *find(esper_plan_cache *cache, const cache_key *key)
{
    for (cached *at = cache->kept; at < cache->kept + cache->n_kept; at++)
        if (at->key.hash == key->hash && at->key.n_bytes == key->n_bytes &&
            memcmp(at->key.bytes, key->bytes, key->n_bytes) == 0) {
            at->asked = ++cache->n_asked;
            esper_schedule_hold(at->schedule);
            return at->schedule;
        }
    return NULL;
}

/* Under the lock: where another can be put. */
static cached *make_room(esper_plan_cache *cache)
{
    cached *oldest = &cache->kept[0];

    if (cache->n_kept < cache->room)
        return &cache->kept[cache->n_kept++];
    for (int i = 1; i < cache->n_kept; i++)
        if (cache->kept[i].asked < oldest->asked)
            oldest = &cache->kept[i];
    forget(oldest);
    return oldest;
}

esper_status esper_plan_cache_get(esper_plan_cache *cache, const esper_schedule_desc *desc,
                                  esper_schedule **schedule_out)
{
    esper_schedule *made, *found;
    esper_status status;
    cache_key key;

    assert(cache->backend == desc->backend);
    ESPER_TRY(esper_net_status(desc->net));
    ESPER_TRY(make_key(desc, &key));
    pthread_mutex_lock(&cache->lock);
    found = find(cache, &key);
    pthread_mutex_unlock(&cache->lock);
    if (found != NULL) {
        esper_mem_free(key.bytes);
        *schedule_out = found;
        return ESPER_OK;
    }
    status = esper_schedule_open(desc, &made);
    if (status != ESPER_OK) {
        esper_mem_free(key.bytes);
        return status;
    }
    pthread_mutex_lock(&cache->lock);
    cache->n_made++;
    found = find(cache, &key);
    if (found == NULL) {
        *make_room(cache) = (cached){key, made, ++cache->n_asked};
        esper_schedule_hold(made);
    }
    pthread_mutex_unlock(&cache->lock);
    if (found != NULL) { /* another thread was faster */
        esper_mem_free(key.bytes);
        esper_schedule_release(made);
    }
    *schedule_out = found != NULL ? found : made;
    return ESPER_OK;
}

esper_plan_cache_stats esper_plan_cache_stats_of(esper_plan_cache *cache)
{
    esper_plan_cache_stats stats = {.bytes = sizeof(*cache) + (size_t)cache->room * sizeof(*cache->kept)};

    pthread_mutex_lock(&cache->lock);
    stats.n_made = cache->n_made;
    stats.n_kept = cache->n_kept;
    for (int i = 0; i < cache->n_kept; i++)
        stats.bytes += cache->kept[i].key.n_bytes + cache->kept[i].schedule->table_bytes;
    pthread_mutex_unlock(&cache->lock);
    return stats;
}
