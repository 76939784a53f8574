/* Frames: sealed and opened. */
#include "policy/pack.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/status.h"

typedef struct head {
    char     magic[8];
    uint32_t version, bytes;
    char     name[ESPER_PACK_NAME_CHARS];
    uint64_t hash;
} head;

_Static_assert(sizeof(head) == ESPER_PACK_HEAD_BYTES, "a head has no holes");

static const char magic[8] = {'e', 's', 'p', 'e', 'r', 'p', 'o', 'l'};

enum { VERSION = 1 };

static uint64_t hash_of(const head *h, const void *payload)
{
    return XXH64(payload, h->bytes, XXH64(h, offsetof(head, hash), 0));
}

void esper_pack_seal(void *memory, const char *name, size_t payload_bytes)
{
    head h = {.version = VERSION, .bytes = (uint32_t)payload_bytes};

    memcpy(h.magic, magic, sizeof(magic));
    snprintf(h.name, sizeof(h.name), "%s", name);
    h.hash = hash_of(&h, (const char *)memory + sizeof(h));
    memcpy(memory, &h, sizeof(h));
}

esper_status esper_pack_open(const void *memory, size_t bytes, const char *name, const void **payload_out,
                             size_t *payload_bytes_out)
{
    const char *payload = (const char *)memory + sizeof(head);
    head h;

    if (bytes < sizeof(h))
        return ESPER_FAIL(ESPER_E_FORMAT, "packed memory of %s: %zu bytes are too few", name, bytes);
    memcpy(&h, memory, sizeof(h));
    if (memcmp(h.magic, magic, sizeof(magic)) != 0 || h.version != VERSION)
        return ESPER_FAIL(ESPER_E_FORMAT, "packed memory of %s: of another format or version", name);
    if (h.bytes != bytes - sizeof(h))
        return ESPER_FAIL(ESPER_E_FORMAT, "packed memory of %s: %zu bytes after its head, which says %u", name,
                          bytes - sizeof(h), (unsigned)h.bytes);
    if (h.hash != hash_of(&h, payload))
        return ESPER_FAIL(ESPER_E_FORMAT, "packed memory of %s: damaged, its hash does not fit", name);
    if (strncmp(h.name, name, sizeof(h.name)) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "packed memory belongs to '%.16s', not to '%s'", h.name, name);
    *payload_out = payload;
    *payload_bytes_out = h.bytes;
    return ESPER_OK;
}
