/* Internal. A frame around packed memory: whose it is, how long, and a hash, so that damage is met before it is used.
 *
 *     | "esperpol" | version u32 | bytes u32 | name, 16 chars | XXH64 of the rest of the frame and the payload | payload | */
#ifndef ESPER_POLICY_PACK_H
#define ESPER_POLICY_PACK_H

#include <stddef.h>

#include "esper.h"

enum { ESPER_PACK_HEAD_BYTES = 40, ESPER_PACK_NAME_CHARS = 16 };

/* The payload already lies ESPER_PACK_HEAD_BYTES into the memory. Writes the head before it. */
void esper_pack_seal(void *memory, const char *name, size_t payload_bytes);

/* The payload inside a frame of that name (borrowed). E_FORMAT: it is damaged, cut, or another's. */
esper_status esper_pack_open(const void *memory, size_t bytes, const char *name, const void **payload_out,
                             size_t *payload_bytes_out);

#endif
