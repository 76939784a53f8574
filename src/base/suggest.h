/* Internal. "Did you mean": finds, among the names that exist, the one a person probably wanted to type. */
#ifndef ESPER_BASE_SUGGEST_H
#define ESPER_BASE_SUGGEST_H

#include <stddef.h>

enum { ESPER_SUGGEST_TEXT_CHARS = 128 };

typedef struct esper_suggest {
    const char *word; /* borrowed, as is every name offered */
    const char *best; /* NULL while nothing offered is near enough */
    size_t      distance;
} esper_suggest;

/* Offer every name that exists; the nearest (the first of equals) is in `best` afterwards. */
void esper_suggest_init(esper_suggest *suggest, const char *word);
void esper_suggest_offer(esper_suggest *suggest, const char *name);

/* "; did you mean 'batch'?" with `before` ("--") put in front of the name; "" when nothing is near. Returns text. */
const char *esper_suggest_text(const esper_suggest *suggest, const char *before, char text[ESPER_SUGGEST_TEXT_CHARS]);

/* Letters to insert, delete, replace or swap with their neighbour to turn one word into the other.
 * Words of more than 63 characters are as far apart as the longer one is long. */
size_t esper_suggest_distance(const char *a, const char *b);

#endif
