/* Internal. One slab for each network: everything that is its state, in one allocation.
 *
 *     | PARAM: host | slot 1 | slot 2 ... | GRAD: same | MOMENT1: same | MOMENT2: same | BUFFER: host | slot 1 | ... |
 *
 * A family is a flat range of floats, a region the host's or a slot's part of it, at the same offset in PARAM, GRAD and
 * the moments. So norm, clip, all-reduce, snapshot, checkpoint and hash work on flat ranges, germinating takes no memory
 * (a slot's region is as large as the largest blueprint allowed there), and addresses never change.
 * Padding between tensors is zero and stays zero. */
#ifndef ESPER_TENSOR_SLAB_H
#define ESPER_TENSOR_SLAB_H

#include "esper.h"
#include "tensor/backend.h"
#include "tensor/net.h"

#define ESPER_FAMILY_LIST(X) \
    X(PARAM, "param") X(GRAD, "grad") X(MOMENT1, "moment1") X(MOMENT2, "moment2") X(BUFFER, "buffer")

typedef enum esper_family {
#define X(family, text) ESPER_FAMILY_##family,
    ESPER_FAMILY_LIST(X)
#undef X
    ESPER_N_FAMILIES
} esper_family;

typedef struct esper_slab_desc {
    int     n_moments;                         /* 0 (no gradients either: inference), 1 (sgd) or 2 (adamw) */
    int     n_regions;                         /* host + slots; at least the net's */
    int64_t region_params[ESPER_MAX_REGIONS];  /* elements to reserve; raised to what the net uses now */
    int64_t region_buffers[ESPER_MAX_REGIONS];
} esper_slab_desc;

typedef struct esper_slab {
    esper_backend *backend;
    float         *memory;
    size_t         bytes;
    int            n_regions;
    int64_t        param_begin[ESPER_MAX_REGIONS + 1]; /* of a region within PARAM, GRAD and the moments */
    int64_t        buffer_begin[ESPER_MAX_REGIONS + 1];
    float         *family[ESPER_N_FAMILIES]; /* NULL where the slab has none */
} esper_slab;

const char *esper_family_name(esper_family family);

/* Sizes the slab from the net and the reservations, takes the memory, zeroed. desc may be NULL: inference, no slots. */
esper_status esper_slab_init(esper_slab *slab, esper_backend *backend, const esper_net *net,
                             const esper_slab_desc *desc);
void         esper_slab_fini(esper_slab *slab);

/* What esper_slab_init would take. */
size_t esper_slab_bytes(const esper_net *net, const esper_slab_desc *desc);

/* Elements of a family in all, padding and reservations included. */
int64_t esper_slab_count(const esper_slab *slab, esper_family family);

/* The tensor's elements in a family, in the backend's memory; NULL where it has none there (moments of an inference slab,
 * buffers' gradients). */
float *esper_slab_at(const esper_slab *slab, esper_family family, const esper_tensor *tensor);

/* A copy of some families in the host's memory, to read: its addresses are plain floats, those of the other families NULL. It
 * waits for the backend's first stream. Closed by esper_slab_fini. */
#define ESPER_FAMILY_BIT(family) (1u << (family))
esper_status esper_slab_mirror(const esper_slab *slab, uint32_t families, esper_slab *mirror_out);

#endif
