/* "Did you mean": edit distance (insert, delete, replace, swap of neighbours) with a limit that grows with the word. */
#include "base/suggest.h"

#include <stdio.h>
#include <string.h>

enum { WORD_CHARS = 64, PREFIX_MIN = 3 };

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t esper_suggest_distance(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b);
    size_t rows[3][WORD_CHARS]; /* of the table of distances between prefixes: this row and the two before */

    if (n_a >= WORD_CHARS || n_b >= WORD_CHARS)
        return strcmp(a, b) == 0 ? 0 : n_a > n_b ? n_a : n_b;
    for (size_t j = 0; j <= n_b; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *row = rows[i % 3], *last = rows[(i + 2) % 3], *before_last = rows[(i + 1) % 3];

        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            row[j] = min_size(last[j - 1] + (a[i - 1] != b[j - 1]), min_size(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = min_size(row[j], before_last[j - 2] + 1);
        }
    }
    return rows[n_a % 3][n_b];
}

void esper_suggest_init(esper_suggest *suggest, const char *word)
{
    suggest->word = word;
    suggest->best = NULL;
    suggest->distance = strlen(word) / 3 + 2; /* beyond a third of the word a name is no typing mistake */
    if (suggest->distance > strlen(word))
        suggest->distance = strlen(word);     /* with every letter replaced any name would do */
}

void esper_suggest_offer(esper_suggest *suggest, const char *name)
{
    size_t shared = min_size(strlen(suggest->word), strlen(name));
    size_t distance = esper_suggest_distance(suggest->word, name);

    /* A word that merely goes on after a name ("batch_size"), or stops early ("optim"), is as near as one wrong letter. */
    if (shared >= PREFIX_MIN && strncmp(suggest->word, name, shared) == 0)
        distance = min_size(1, distance);
    if (distance < suggest->distance) {
        suggest->distance = distance;
        suggest->best = name;
    }
}

const char *esper_suggest_text(const esper_suggest *suggest, const char *before, char text[ESPER_SUGGEST_TEXT_CHARS])
{
    text[0] = '\0';
    if (suggest->best != NULL)
        snprintf(text, ESPER_SUGGEST_TEXT_CHARS, "; did you mean '%s%s'?", before, suggest->best);
    return text;
}
