/* The common order: forms, and their alignment. */
#include "tensor/cuda/backend_order.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"

enum {
    MOST_STEPS = 2048,     /* beyond them, or beyond so many forms, it is begun anew */
    MOST_FORMS = 2048,
    STEP_WORTH = 1 << 12,  /* of sharing a step; one for each form that does besides */
};

void cuda_order_fini(cuda_order *order)
{
    for (int b = 0; b < CUDA_FORM_BUCKETS; b++)
        while (order->forms[b] != NULL) {
            cuda_form *form = order->forms[b];

            order->forms[b] = form->next;
            esper_mem_free(form);
        }
    esper_mem_free(order->steps);
    esper_mem_free(order->sequence);
    esper_mem_free(order->work);
    *order = (cuda_order){0};
}

void cuda_order_tidy(cuda_order *order)
{
    if (order->n_steps > MOST_STEPS || order->n_forms > MOST_FORMS)
        cuda_order_fini(order);
}

/* ------------------------------------------------------------------------------------------------ aligning */

/* What a launch at this rank is worth to a form that comes there. */
static uint32_t worth_of(const cuda_order *order, int rank)
{
    int others = order->steps[order->sequence[rank]].n_forms;

    return (uint32_t)(STEP_WORTH + (others < STEP_WORTH ? others : STEP_WORTH - 1));
}

/* Which way the best alignment of the first i kinds with the first j steps ends. */
enum { SKIPS_STEP, SKIPS_KIND, SHARES };

static esper_status make_room(cuda_order *order, int n)
{
    size_t width = (size_t)order->n_steps + 1, wanted = 2 * width * sizeof(uint32_t) + ((size_t)n + 1) * width;
    int room = order->n_steps + n;
    void *larger;

    if (wanted > order->work_bytes) {
        larger = esper_mem_grow(order->work, 2 * wanted);
        if (larger == NULL)
            return ESPER_FAIL(ESPER_E_NOMEM, "order of %d steps", room);
        order->work = larger;
        order->work_bytes = 2 * wanted;
    }
    if (room <= order->room_steps)
        return ESPER_OK;
    larger = esper_mem_grow(order->steps, 2 * (size_t)room * sizeof(*order->steps));
    if (larger == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "order of %d steps", room);
    order->steps = larger;
    larger = esper_mem_grow(order->sequence, 2 * (size_t)room * sizeof(*order->sequence));
    if (larger == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "order of %d steps", room);
    order->sequence = larger;
    order->room_steps = 2 * room;
    return ESPER_OK;
}

/* ways: ((n + 1), (n_steps + 1)); best: two rows of what they are worth. */
static void compare(const cuda_order *order, const cuda_form *form, uint32_t *best, unsigned char *ways)
{
    size_t width = (size_t)order->n_steps + 1;

    memset(best, 0, width * sizeof(*best));
    memset(ways, SKIPS_STEP, width);
    for (int i = 1; i <= form->n; i++) {
        uint32_t *row = best + (size_t)(i & 1) * width, *above = best + (size_t)(~i & 1) * width;
        unsigned char *way = ways + (size_t)i * width;

        row[0] = 0;
        way[0] = SKIPS_KIND;
        for (int j = 1; j < (int)width; j++) {
            row[j] = row[j - 1];
            way[j] = SKIPS_STEP;
            if (above[j] > row[j]) {
                row[j] = above[j];
                way[j] = SKIPS_KIND;
            }
            if (order->steps[order->sequence[j - 1]].kind == form->kinds[i - 1] &&
                above[j - 1] + worth_of(order, j - 1) > row[j]) {
                row[j] = above[j - 1] + worth_of(order, j - 1);
                way[j] = SHARES;
            }
        }
    }
}

/* Walks back along the best way, and puts the steps that are new into the sequence from its end on. */
static void join(cuda_order *order, cuda_form *form, const unsigned char *ways)
{
    int i = form->n, j = order->n_steps, n_new = 0, at;
    size_t width = (size_t)order->n_steps + 1;

    for (int a = i, b = j; a > 0;) {
        unsigned char way = ways[(size_t)a * width + (size_t)b];

        n_new += way == SKIPS_KIND;
        a -= way != SKIPS_STEP;
        b -= way != SKIPS_KIND;
    }
    at = order->n_steps + n_new;
    while (i > 0) {
        unsigned char way = ways[(size_t)i * width + (size_t)j];

        if (way == SKIPS_KIND) {
            order->steps[order->n_steps] = (cuda_step){.kind = form->kinds[i - 1]};
            order->sequence[--at] = order->n_steps++;
        } else {
            order->sequence[at - 1] = order->sequence[j - 1];
            at--;
            j--;
        }
        if (way == SKIPS_STEP)
            continue;
        i--;
        form->steps[i] = order->sequence[at];
        order->steps[form->steps[i]].n_forms++;
    }
    assert(at == j); /* what is left stands where it stood */
    for (int rank = 0; rank < order->n_steps; rank++)
        order->steps[order->sequence[rank]].rank = rank;
}

/* ------------------------------------------------------------------------------------------------ forms */

esper_status cuda_order_find(cuda_order *order, const uint32_t *kinds, int n, const cuda_form **form_out)
{
    uint64_t hash = XXH64(kinds, (size_t)n * sizeof(*kinds), 0);
    cuda_form **bucket = &order->forms[hash % CUDA_FORM_BUCKETS], *form;
    size_t bytes = sizeof(*form) + (size_t)n * (sizeof(*form->kinds) + sizeof(*form->steps));
    unsigned char *ways;

    for (form = *bucket; form != NULL; form = form->next)
        if (form->hash == hash && form->n == n && memcmp(form->kinds, kinds, (size_t)n * sizeof(*kinds)) == 0) {
            *form_out = form;
            return ESPER_OK;
        }
    ESPER_TRY(make_room(order, n));
    form = esper_mem_alloc(bytes);
    if (form == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "form of %d launches", n);
    form->hash = hash;
    form->n = n;
    form->kinds = (uint32_t *)(void *)(form + 1);
    form->steps = (int *)(void *)(form->kinds + n);
    memcpy(form->kinds, kinds, (size_t)n * sizeof(*kinds));
    ways = (unsigned char *)order->work + 2 * ((size_t)order->n_steps + 1) * sizeof(uint32_t);
    compare(order, form, order->work, ways);
    join(order, form, ways);
    form->next = *bucket;
    *bucket = form;
    order->n_forms++;
    *form_out = form;
    return ESPER_OK;
}
