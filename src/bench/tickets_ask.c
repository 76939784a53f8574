/* How array libraries answer "is any element NaN?" and "how many are 0?": a mask as long as the values, then a sum over the
 * mask. Written as well as that way allows: vectors, all threads, memory taken beforehand. What remains is the traffic. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "bench/tickets.h"

enum { PART = 1 << 15, BLOCK = 64 }; /* elements that a thread takes at a time, and in the inner loop */

typedef void (*mask_function)(const float *restrict values, unsigned char *restrict mask, uint64_t count);

/* One body for each question and vector width. Whole blocks are what compilers turn into vectors. */
#define MASK(name, holds, attributes)                                                                       \
    attributes static void name(const float *restrict values, unsigned char *restrict mask, uint64_t count) \
    {                                                                                                       \
        uint64_t i = 0;                                                                                     \
                                                                                                            \
        for (; i + BLOCK <= count; i += BLOCK)                                                              \
            for (int j = 0; j < BLOCK; j++) {                                                               \
                float x = values[i + j];                                                                    \
                                                                                                            \
                mask[i + j] = (holds) ? 1 : 0;                                                              \
            }                                                                                               \
        for (; i < count; i++) {                                                                            \
            float x = values[i];                                                                            \
                                                                                                            \
            mask[i] = (holds) ? 1 : 0;                                                                      \
        }                                                                                                   \
    }

#define MASKS(set, attributes)                             \
    MASK(nan_##set, x != x, attributes)                    \
    MASK(inf_##set, fabsf(x) > FLT_MAX, attributes)        \
    MASK(zero_##set, x == 0.0f, attributes)                \
    static const mask_function masks_##set[] = {           \
        [ESPER_TICKET_NAN] = nan_##set,                    \
        [ESPER_TICKET_INF] = inf_##set,                    \
        [ESPER_TICKET_ZERO] = zero_##set,                  \
    };

MASKS(portable, )
#if defined(__x86_64__)
MASKS(avx2, __attribute__((target("avx2"))))
#endif

static mask_function mask_of(esper_ticket_question question)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return masks_avx2[question];
#endif
    return masks_portable[question];
}

/* Eight bytes of 0 or 1 at a time: the product's highest byte is their sum. */
static uint64_t sum_mask(const unsigned char *mask, uint64_t count)
{
    uint64_t sum = 0, i = 0;

    for (; i + 8 <= count; i += 8) {
        uint64_t eight;

        memcpy(&eight, mask + i, sizeof(eight));
        sum += eight * 0x0101010101010101u >> 56;
    }
    for (; i < count; i++)
        sum += mask[i];
    return sum;
}

typedef struct ask_job {
    mask_function  write;
    const float   *values;
    float         *to; /* of a copy */
    unsigned char *mask;
    uint64_t       count;
    uint64_t      *answers; /* (n_parts) */
} ask_job;

static uint64_t part_count(const ask_job *job, int item)
{
    uint64_t left = job->count - (uint64_t)item * PART;

    return left < PART ? left : PART;
}

static void write_part(void *context, int item, int worker)
{
    const ask_job *job = context;
    uint64_t begin = (uint64_t)item * PART;

    (void)worker;
    job->write(job->values + begin, job->mask + begin, part_count(job, item));
}

static void sum_part(void *context, int item, int worker)
{
    const ask_job *job = context;

    (void)worker;
    job->answers[item] = sum_mask(job->mask + (uint64_t)item * PART, part_count(job, item));
}

static void copy_part(void *context, int item, int worker)
{
    const ask_job *job = context;
    uint64_t begin = (uint64_t)item * PART;

    (void)worker;
    memcpy(job->to + begin, job->values + begin, part_count(job, item) * sizeof(float));
}

uint64_t esper_ticket_n_parts(uint64_t count)
{
    return (count + PART - 1) / PART;
}

uint64_t esper_ticket_ask(esper_pool *pool, esper_ticket_question question, const float *values, uint64_t count,
                          unsigned char *mask, uint64_t *answers)
{
    ask_job job = {.write = mask_of(question), .values = values, .mask = mask, .count = count, .answers = answers};
    int n_parts = (int)esper_ticket_n_parts(count);
    uint64_t sum = 0;

    esper_pool_run(pool, n_parts, write_part, &job);
    esper_pool_run(pool, n_parts, sum_part, &job);
    for (int i = 0; i < n_parts; i++)
        sum += answers[i];
    return sum;
}

void esper_ticket_copy(esper_pool *pool, float *to, const float *from, uint64_t count)
{
    ask_job job = {.values = from, .to = to, .count = count};

    esper_pool_run(pool, (int)esper_ticket_n_parts(count), copy_part, &job);
}
