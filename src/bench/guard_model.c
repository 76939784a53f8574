/* The tensors of the guard's benchmarks. */
#include "bench/guard_model.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

enum { NAME_CHARS = 24, ALIGN = 256, MAX_SHAPES = 5000 };

typedef struct shape_list {
    uint64_t counts[MAX_SHAPES];
    size_t   n;
} shape_list;

static void add(shape_list *list, uint64_t count)
{
    list->counts[list->n++] = count;
}

/* A decoder-only transformer with tied embeddings: weights and biases in the order of its layers. */
static void add_transformer(shape_list *list, uint64_t vocabulary, uint64_t context, uint64_t width, int layers)
{
    const uint64_t of_layer[] = {width, width, 3 * width * width, 3 * width, width * width, width,
                                 width, width, 4 * width * width, 4 * width, 4 * width * width, width};

    add(list, vocabulary * width);
    add(list, context * width);
    for (int layer = 0; layer < layers; layer++)
        for (size_t i = 0; i < sizeof(of_layer) / sizeof(of_layer[0]); i++)
            add(list, of_layer[i]);
    add(list, width);
    add(list, width);
}

/* For a quick look, an eighth of the width. */
static void list_shapes(esper_bench_shapes shapes, bool quick, shape_list *list)
{
    const unsigned part = quick ? 8 : 1;

    list->n = 0;
    switch (shapes) {
    case ESPER_BENCH_GPT2:
        add_transformer(list, 50304 / part, 1024 / part, 768 / part, 12);
        break;
    case ESPER_BENCH_1B:
        add_transformer(list, 50304 / part, 2048 / part, 2048 / part, 18);
        break;
    case ESPER_BENCH_SMALL100:
        for (int i = 0; i < 100; i++)
            add(list, i % 2 == 0 ? 64 * (64 / part) * 9 : 64);
        break;
    case ESPER_BENCH_TINY:
        for (int i = 0; i < MAX_SHAPES / (int)part; i++)
            add(list, 64);
        break;
    }
}

static uint64_t padded(uint64_t count)
{
    return (count * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN;
}

static esper_guard_role role_of(char family)
{
    return family == 'p' ? ESPER_GUARD_ROLE_PARAM : family == 'g' ? ESPER_GUARD_ROLE_GRAD : ESPER_GUARD_ROLE_MOMENT;
}

static void place_tensors(esper_bench_model *model, const shape_list *list, const char *families)
{
    esper_guard_tensor *tensor = model->tensors;
    char *name = model->names, *at = model->memory;

    for (const char *family = families; *family != '\0'; family++)
        for (size_t i = 0; i < list->n; i++, tensor++, name += NAME_CHARS) {
            snprintf(name, NAME_CHARS, "%c%zu", *family, i);
            tensor->name = name;
            tensor->group = "host";
            tensor->role = role_of(*family);
            tensor->dtype = ESPER_GUARD_F32;
            tensor->device = model->place->number;
            tensor->data = at;
            tensor->count = list->counts[i];
            at += padded(tensor->count);
        }
}

esper_status esper_bench_model_open(esper_bench_place *place, esper_bench_shapes shapes, const char *families,
                                    bool quick, esper_bench_model **model_out)
{
    esper_bench_model *model = esper_mem_alloc(sizeof(*model));
    shape_list *list = esper_mem_alloc(sizeof(*list));
    esper_status status = ESPER_OK;
    void *memory;

    if (model == NULL || list == NULL)
        goto no_memory;
    list_shapes(shapes, quick, list);
    for (size_t i = 0; i < list->n; i++)
        model->bytes += padded(list->counts[i]) * strlen(families);
    model->place = place;
    model->n_tensors = list->n * strlen(families);
    model->tensors = esper_mem_alloc(model->n_tensors * sizeof(model->tensors[0]));
    model->names = esper_mem_alloc(model->n_tensors * NAME_CHARS);
    if (model->tensors == NULL || model->names == NULL)
        goto no_memory;
    status = esper_bench_place_alloc(place, model->bytes, &memory);
    if (status != ESPER_OK)
        goto fail;
    model->memory = memory;
    place_tensors(model, list, families);
    esper_mem_free(list);
    *model_out = model;
    return ESPER_OK;
no_memory:
    status = ESPER_FAIL(ESPER_E_NOMEM, "benchmark");
fail:
    esper_mem_free(list);
    esper_bench_model_close(model);
    return status;
}

void esper_bench_model_close(esper_bench_model *model)
{
    if (model == NULL)
        return;
    if (model->place != NULL)
        esper_bench_place_release(model->place, model->memory);
    esper_mem_free(model->names);
    esper_mem_free(model->tensors);
    esper_mem_free(model);
}

void esper_bench_model_span(const esper_bench_model *model, uint32_t roles, char **begin_out, uint64_t *bytes_out)
{
    char *begin = NULL, *end = NULL;

    for (size_t i = 0; i < model->n_tensors; i++) {
        const esper_guard_tensor *tensor = &model->tensors[i];

        if (roles != 0 && (roles & 1u << tensor->role) == 0)
            continue;
        if (begin == NULL)
            begin = tensor->data;
        end = (char *)tensor->data + padded(tensor->count);
    }
    *begin_out = begin;
    *bytes_out = (uint64_t)(end - begin);
}
