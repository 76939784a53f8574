/* Tensors of odd sizes, all types and odd addresses for the ring's tests, each between bytes that nobody may touch. */
#ifndef TESTS_GUARD_RING_HELPERS_H
#define TESTS_GUARD_RING_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "esper.h"
#include "support/ring_arena.h"

static inline void check_good(esper_status status)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", esper_status_name(status), esper_last_error());
}

static inline void check_status(esper_status status, esper_status expected)
{
    if (status != expected)
        fail_msg("%s, expected %s; last error: %s", esper_status_name(status), esper_status_name(expected),
                 esper_last_error());
}

static inline void check_error_says(const char *words)
{
    if (strstr(esper_last_error(), words) == NULL)
        fail_msg("the error is \"%s\", which does not say \"%s\"", esper_last_error(), words);
}

static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

enum { MARGIN = 64, MARGIN_BYTE = 0xA5, MAX_TENSORS = 64 };

/* A set of tensors in host memory. */
typedef struct model {
    size_t             n;
    esper_guard_tensor tensors[MAX_TENSORS];
    unsigned char     *blocks[MAX_TENSORS]; /* each with a margin on both sides */
    size_t             shifts[MAX_TENSORS]; /* of the tensor within its block, behind the margin */
    char               names[MAX_TENSORS][16];
} model;

static inline size_t dtype_size(esper_guard_dtype dtype)
{
    static const size_t sizes[] = {
#define X(name, text, bytes) bytes,
        ESPER_GUARD_DTYPE_LIST(X)
#undef X
    };

    return sizes[dtype];
}

static inline size_t model_bytes(const model *m, size_t i)
{
    return m->tensors[i].count * dtype_size(m->tensors[i].dtype);
}

/* Any finite value, from the bits: an exponent of all ones loses one. */
static inline void fill_finite(void *data, esper_guard_dtype dtype, size_t count, uint64_t *random)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = next_random(random);
        unsigned char *at = (unsigned char *)data + i * dtype_size(dtype);

        switch (dtype) {
        case ESPER_GUARD_F32:
            bits &= (bits & 0x7F800000u) == 0x7F800000u ? ~(uint64_t)0x00800000u : UINT64_MAX;
            break;
        case ESPER_GUARD_F16:
            bits &= (bits & 0x7C00u) == 0x7C00u ? ~(uint64_t)0x0400u : UINT64_MAX;
            break;
        case ESPER_GUARD_BF16:
            bits &= (bits & 0x7F80u) == 0x7F80u ? ~(uint64_t)0x0080u : UINT64_MAX;
            break;
        default:
            bits &= (bits & 0x7FF0000000000000u) == 0x7FF0000000000000u ? ~(uint64_t)0x0010000000000000u : UINT64_MAX;
            break;
        }
        memcpy(at, &bits, dtype_size(dtype));
    }
}

static inline void model_fill(model *m, uint64_t seed)
{
    for (size_t i = 0; i < m->n; i++)
        fill_finite(m->tensors[i].data, m->tensors[i].dtype, m->tensors[i].count, &seed);
}

static inline void model_add(model *m, esper_guard_role role, esper_guard_dtype dtype, size_t count, size_t shift)
{
    size_t i = m->n++, bytes = count * dtype_size(dtype);

    assert_in_range(i, 0, MAX_TENSORS - 1);
    snprintf(m->names[i], sizeof(m->names[i]), "t%zu", i);
    m->shifts[i] = shift * dtype_size(dtype);
    m->blocks[i] = malloc(bytes + 2 * MARGIN + m->shifts[i]);
    assert_non_null(m->blocks[i]);
    memset(m->blocks[i], MARGIN_BYTE, bytes + 2 * MARGIN + m->shifts[i]);
    m->tensors[i] = (esper_guard_tensor){
        .name = m->names[i],
        .group = "host",
        .role = role,
        .dtype = dtype,
        .device = ESPER_GUARD_HOST,
        .data = m->blocks[i] + MARGIN + m->shifts[i],
        .count = count,
    };
}

/* Every type with every size, at shifting addresses; roles in turn. */
static inline void model_init_all(model *m)
{
    static const size_t counts[] = {1, 3, 8, 31, 64, 65, 127, 1023, 4097, 20011};
    static const esper_guard_role roles[] = {ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_ROLE_MOMENT, ESPER_GUARD_ROLE_BUFFER};

    *m = (model){0};
    for (int dtype = 0; dtype < ESPER_GUARD_N_DTYPES; dtype++)
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
            model_add(m, roles[m->n % 3], (esper_guard_dtype)dtype, counts[i], m->n % 5);
    model_fill(m, 1);
}

static inline void model_init_small(model *m)
{
    *m = (model){0};
    model_add(m, ESPER_GUARD_ROLE_PARAM, ESPER_GUARD_F32, 100, 0);
    model_add(m, ESPER_GUARD_ROLE_GRAD, ESPER_GUARD_F32, 100, 0);
    model_add(m, ESPER_GUARD_ROLE_MOMENT, ESPER_GUARD_F64, 33, 1);
    model_add(m, ESPER_GUARD_ROLE_BUFFER, ESPER_GUARD_BF16, 7, 0);
    model_fill(m, 2);
}

static inline void model_fini(model *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->blocks[i]);
    *m = (model){0};
}

/* All bytes of all tensors, in the caller's hands; free it. */
static inline unsigned char *model_copy(const model *m)
{
    size_t bytes = 0, at = 0;
    unsigned char *copy;

    for (size_t i = 0; i < m->n; i++)
        bytes += model_bytes(m, i);
    copy = malloc(bytes + 1);
    assert_non_null(copy);
    for (size_t i = 0; i < m->n; i++) {
        memcpy(copy + at, m->tensors[i].data, model_bytes(m, i));
        at += model_bytes(m, i);
    }
    return copy;
}

/* The tensors against such a copy, but for those of the role `but`; and that nobody wrote beside them. */
static inline void model_check_but(const model *m, const unsigned char *copy, int but)
{
    for (size_t i = 0; i < m->n; i++) {
        size_t bytes = model_bytes(m, i);
        const unsigned char *data = m->tensors[i].data;

        for (size_t b = 0; b < bytes && (int)m->tensors[i].role != but; b++)
            if (data[b] != copy[b])
                fail_msg("tensor %zu, byte %zu: %#x, expected %#x", i, b, data[b], copy[b]);
        for (size_t b = 0; b < MARGIN; b++)
            if (data[-1 - (ptrdiff_t)b] != MARGIN_BYTE || data[bytes + b] != MARGIN_BYTE)
                fail_msg("tensor %zu: written %zu bytes outside", i, b + 1);
        copy += bytes;
    }
}

static inline void model_check(const model *m, const unsigned char *copy)
{
    model_check_but(m, copy, -1);
}

static inline esper_guard *model_guard(const model *m, int n_threads)
{
    esper_guard_options options;
    esper_guard *guard;

    esper_guard_options_init(&options);
    options.n_threads = n_threads;
    check_good(esper_guard_open(&options, &guard));
    check_good(esper_guard_add(guard, m->tensors, m->n));
    return guard;
}

static inline esper_ring *open_ring(esper_guard *guard, uint32_t n_entries)
{
    esper_ring_options options;
    esper_ring *ring;

    esper_ring_options_init(&options);
    options.n_entries = n_entries;
    check_good(esper_ring_open(guard, &options, &ring));
    return ring;
}

/* A model, the guard that knows it and a ring of it. */
typedef struct host_scene {
    model          m;
    esper_guard   *guard;
    esper_ring    *ring;
    unsigned char *taken; /* a copy of the model, or NULL */
} host_scene;

/* Without entries there is no ring yet. */
static inline void host_scene_open(host_scene *s, void (*init)(model *m), int n_threads, uint32_t n_entries)
{
    *s = (host_scene){0};
    init(&s->m);
    s->guard = model_guard(&s->m, n_threads);
    if (n_entries > 0)
        s->ring = open_ring(s->guard, n_entries);
}

static inline void host_scene_close(host_scene *s)
{
    free(s->taken);
    esper_ring_close(s->ring);
    esper_guard_close(s->guard);
    model_fini(&s->m);
}

static inline esper_ring_status ring_status(esper_ring *ring)
{
    esper_ring_status status;

    check_good(esper_ring_status_get(ring, 1, &status));
    return status;
}

/* Flips one bit of a tensor in an entry. */
static inline void damage(esper_ring *ring, uint32_t age, uint64_t bit)
{
    const esper_copy_part *part = &ring->sides[0].parts[bit % ring->sides[0].n_parts];
    uint64_t bytes;
    unsigned char *arena = ring_arena(ring, age, 0, false, &bytes);

    assert_non_null(arena);
    assert_true(part->offset + part->bytes <= bytes);
    bit = bit / 64 % (part->bytes * 8);
    arena[part->offset + bit / 8] = (unsigned char)(arena[part->offset + bit / 8] ^ 1u << bit % 8);
}

/* Proves that all is closed. */
static inline int nothing_left(void **state)
{
    esper_mem_stats stats;

    (void)state;
    esper_mem_stats_get(&stats);
    if (stats.n_live != 0)
        print_error("%llu blocks are still live\n", (unsigned long long)stats.n_live);
    return stats.n_live != 0;
}

#endif
