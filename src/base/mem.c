/* The allocation border. A block is preceded by a 64-byte head that remembers its size:
 *
 *     | head: size ... (64 bytes) | block, aligned to 64 |
 */
#define _DEFAULT_SOURCE /* madvise */
#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

enum { ALIGN = 64, HUGE_PAGE = 1 << 21 };

typedef struct block_head {
    size_t bytes;
} block_head;

static atomic_uint_fast64_t n_allocs, n_live, live_bytes, peak_bytes, fail_countdown;

static block_head *head_of(void *block)
{
    return (block_head *)((char *)block - ALIGN);
}

/* Whether this allocation is the one a test wants to see fail. */
static int must_fail(void)
{
    uint_fast64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);

    while (left != 0)
        if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1))
            return left == 1;
    return 0;
}

static void count_taken(size_t bytes)
{
    uint_fast64_t live = atomic_fetch_add(&live_bytes, bytes) + bytes;
    uint_fast64_t peak = atomic_load(&peak_bytes);

    atomic_fetch_add(&n_allocs, 1);
    atomic_fetch_add(&n_live, 1);
    while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live))
        ;
}

/* Activations and weights are read over and over: with pages of 2 MiB the processor finds their addresses without looking
 * them up. Where there are no such pages nothing is lost. */
static void *take(size_t bytes)
{
    void *memory;

    if (posix_memalign(&memory, bytes < HUGE_PAGE ? ALIGN : HUGE_PAGE, bytes) != 0)
        return NULL;
#if defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE)
        madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return memory;
}

void *esper_mem_alloc(size_t bytes)
{
    size_t padded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    block_head *head;

    if (bytes == 0 || padded < bytes || padded + ALIGN < padded || must_fail())
        return NULL;
    head = take(padded + ALIGN);
    if (head == NULL)
        return NULL;
    memset(head, 0, padded + ALIGN);
    head->bytes = bytes;
    count_taken(bytes);
    return (char *)head + ALIGN;
}

void *esper_mem_grow(void *block, size_t bytes)
{
    void *larger = esper_mem_alloc(bytes);

    if (larger == NULL || block == NULL)
        return larger;
    memcpy(larger, block, head_of(block)->bytes < bytes ? head_of(block)->bytes : bytes);
    esper_mem_free(block);
    return larger;
}

char *esper_mem_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = esper_mem_alloc(bytes);

    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

void esper_mem_free(void *block)
{
    if (block == NULL)
        return;
    assert((uintptr_t)block % ALIGN == 0 && head_of(block)->bytes > 0);
    assert(atomic_load(&n_live) > 0 && atomic_load(&live_bytes) >= head_of(block)->bytes);
    atomic_fetch_sub(&live_bytes, head_of(block)->bytes);
    atomic_fetch_sub(&n_live, 1);
    free(head_of(block));
}

void esper_mem_give_back(void)
{
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

void esper_mem_stats_get(esper_mem_stats *stats_out)
{
    stats_out->n_allocs = atomic_load(&n_allocs);
    stats_out->n_live = atomic_load(&n_live);
    stats_out->live_bytes = atomic_load(&live_bytes);
    stats_out->peak_bytes = atomic_load(&peak_bytes);
}

void esper_mem_reset_peak(void)
{
    atomic_store(&peak_bytes, atomic_load(&live_bytes));
}

void esper_mem_fail_at(uint64_t nth)
{
    atomic_store(&fail_countdown, nth);
}
