/* The slab: sizes first, one allocation, pointers after. */
#include "tensor/slab.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"

static const char *const family_names[] = {
#define X(family, text) text,
    ESPER_FAMILY_LIST(X)
#undef X
};

const char *esper_family_name(esper_family family)
{
    return family_names[family];
}

/* Elements of a region: what is reserved or used, the larger, up to where the next tensor may begin. */
static int64_t region_size(int64_t reserved, int64_t used)
{
    int64_t larger = reserved > used ? reserved : used;

    return (larger + ESPER_SLAB_ALIGN - 1) / ESPER_SLAB_ALIGN * ESPER_SLAB_ALIGN;
}

/* Region limits within the families; everything else follows from them. */
static void lay_out(esper_slab *slab, const esper_net *net, const esper_slab_desc *desc)
{
    slab->n_regions = desc->n_regions > net->n_regions ? desc->n_regions : net->n_regions;
    for (int r = 0; r < slab->n_regions; r++) {
        slab->param_begin[r + 1] = slab->param_begin[r] + region_size(desc->region_params[r], net->region_params[r]);
        slab->buffer_begin[r + 1] =
            slab->buffer_begin[r] + region_size(desc->region_buffers[r], net->region_buffers[r]);
    }
}

static bool has_family(const esper_slab_desc *desc, esper_family family)
{
    static const int n_moments[] = {
        [ESPER_FAMILY_GRAD] = 1, [ESPER_FAMILY_MOMENT1] = 1, [ESPER_FAMILY_MOMENT2] = 2, [ESPER_FAMILY_BUFFER] = 0};

    return desc->n_moments >= n_moments[family];
}

int64_t esper_slab_count(const esper_slab *slab, esper_family family)
{
    return family == ESPER_FAMILY_BUFFER ? slab->buffer_begin[slab->n_regions] : slab->param_begin[slab->n_regions];
}

static size_t bytes_of(const esper_slab *slab, const esper_slab_desc *desc)
{
    int64_t count = 0;

    for (int f = 0; f < ESPER_N_FAMILIES; f++)
        if (has_family(desc, (esper_family)f))
            count += esper_slab_count(slab, (esper_family)f);
    return (size_t)count * sizeof(float);
}

size_t esper_slab_bytes(const esper_net *net, const esper_slab_desc *desc)
{
    static const esper_slab_desc inference;
    esper_slab slab = {0};

    lay_out(&slab, net, desc != NULL ? desc : &inference);
    return bytes_of(&slab, desc != NULL ? desc : &inference);
}

esper_status esper_slab_init(esper_slab *slab, esper_backend *backend, const esper_net *net,
                             const esper_slab_desc *desc)
{
    static const esper_slab_desc inference;
    esper_slab made = {.backend = backend};
    void *memory = NULL;
    float *next;

    if (desc == NULL)
        desc = &inference;
    ESPER_TRY(esper_net_status(net));
    if (desc->n_regions > ESPER_MAX_REGIONS || desc->n_moments < 0 || desc->n_moments > 2)
        return ESPER_FAIL(ESPER_E_ARG, "slab of %d regions with %d moments", desc->n_regions, desc->n_moments);
    lay_out(&made, net, desc);
    made.bytes = bytes_of(&made, desc);
    if (made.bytes > 0) /* a net without parameters has an empty slab */
        ESPER_TRY(esper_backend_alloc(backend, made.bytes, &memory));
    made.memory = next = memory;
    for (int f = 0; f < ESPER_N_FAMILIES && memory != NULL; f++)
        if (has_family(desc, (esper_family)f)) {
            made.family[f] = next;
            next += esper_slab_count(&made, (esper_family)f);
        }
    *slab = made;
    return ESPER_OK;
}

void esper_slab_fini(esper_slab *slab)
{
    if (slab->backend == NULL)
        esper_mem_free(slab->memory); /* a mirror */
    else if (slab->memory != NULL)
        esper_backend_release(slab->backend, slab->memory);
    *slab = (esper_slab){0};
}

float *esper_slab_at(const esper_slab *slab, esper_family family, const esper_tensor *tensor)
{
    bool is_buffer = tensor->role == ESPER_ROLE_BUFFER;

    if (slab->family[family] == NULL || !(is_buffer || tensor->role == ESPER_ROLE_PARAM) ||
        is_buffer != (family == ESPER_FAMILY_BUFFER))
        return NULL;
    return slab->family[family] + (is_buffer ? slab->buffer_begin : slab->param_begin)[tensor->region] + tensor->offset;
}

esper_status esper_slab_mirror(const esper_slab *slab, uint32_t families, esper_slab *mirror_out)
{
    esper_slab mirror = *slab;
    esper_status status = ESPER_OK;
    float *next;

    mirror.backend = NULL;
    mirror.bytes = 0;
    for (int f = 0; f < ESPER_N_FAMILIES; f++)
        if ((families & ESPER_FAMILY_BIT(f)) != 0 && slab->family[f] != NULL)
            mirror.bytes += (size_t)esper_slab_count(slab, (esper_family)f) * sizeof(float);
    mirror.memory = next = esper_mem_alloc(mirror.bytes > 0 ? mirror.bytes : 1);
    if (mirror.memory == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "copy of a network's %zu bytes", mirror.bytes);
    for (int f = 0; f < ESPER_N_FAMILIES; f++) {
        bool is_wanted = (families & ESPER_FAMILY_BIT(f)) != 0 && slab->family[f] != NULL;
        size_t count = (size_t)esper_slab_count(slab, (esper_family)f);

        mirror.family[f] = is_wanted ? next : NULL;
        next += is_wanted ? count : 0;
        if (is_wanted && status == ESPER_OK)
            status =
                esper_backend_copy_out(slab->backend, NULL, mirror.family[f], slab->family[f], count * sizeof(float));
    }
    if (status == ESPER_OK)
        status = esper_backend_sync(slab->backend);
    if (status != ESPER_OK) {
        esper_slab_fini(&mirror);
        return status;
    }
    *mirror_out = mirror;
    return ESPER_OK;
}
