/* A job of one. There is nobody to exchange anything with. */
#include <stdio.h>

#include "dist/kind.h"

typedef struct self_link {
    esper_comm_link link;
    void (*release)(void *block);
} self_link;

static void about(char *text, size_t chars)
{
    snprintf(text, chars, "a job of one process");
}

static esper_status open_self(const esper_comm_start *start, esper_comm_link **link_out)
{
    self_link *self = start->alloc(sizeof(*self));

    if (self == NULL) {
        snprintf(start->why, ESPER_COMM_WHY_CHARS, "no memory");
        return ESPER_E_NOMEM;
    }
    self->release = start->release;
    self->link.size = self->link.n_here = 1;
    *link_out = &self->link;
    return ESPER_OK;
}

static void close_self(esper_comm_link *link, bool orderly, char *why)
{
    (void)orderly;
    (void)why;
    ((self_link *)link)->release(link);
}

const esper_comm_kind esper_comm_self = {
    .abi = ESPER_COMM_ABI, .name = "self", .about = about, .open = open_self, .close = close_self};
