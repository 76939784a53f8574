/* Helpers that several sources share. */
#include "data/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

enum { FOUND_CHARS = 256 };

const char *esper_source_path(const esper_dataset_desc *desc, const char *otherwise)
{
    return desc->path != NULL && desc->path[0] != '\0' ? desc->path : otherwise;
}

char *esper_source_join(const char *dir, const char *name)
{
    size_t n = strlen(dir) + 1 + strlen(name) + 1;
    char *path = esper_mem_alloc(n);

    if (path != NULL)
        snprintf(path, n, "%s/%s", dir, name);
    return path;
}

/* What to do about missing files. Who named a place knows what should be there, and is not told to install things. */
static const char *advice(const esper_dataset_desc *desc)
{
    if (desc->source == ESPER_SOURCE_TEXT)
        return "--data FILE|DIR with text of yours; `esper train synth_text` needs no files";
    if (desc->source == ESPER_SOURCE_TOKENS)
        return "--data DIR|FILE with tokens of yours; `esper train synth_text` needs no files";
    if (desc->path != NULL && desc->path[0] != '\0')
        return "--data DIR with the directory that holds them; `esper train synth` needs no files";
    if (desc->source == ESPER_SOURCE_FASHION)
        return "`apt-get install dataset-fashion-mnist`, or --data DIR with the directory that holds them;\n"
               "             `esper train synth` needs no files";
    return "--data DIR with the directory that holds them; `esper train synth` needs no files;\n"
           "             `esper train fashion` has a package: `apt-get install dataset-fashion-mnist`";
}

esper_status esper_source_missing(const esper_dataset_desc *desc, const char *found, const char *place,
                                  const char *wants)
{
    char copy[FOUND_CHARS]; /* `found` may be the very text that is about to be overwritten */

    snprintf(copy, sizeof(copy), "%s", found);
    return ESPER_FAIL(ESPER_E_NOTFOUND,
                      "%s: no data: %s\n"
                      "  looked in  %.200s\n"
                      "  wanted     %s\n"
                      "  try        %s",
                      esper_source_name(desc->source), copy, place, wants, advice(desc));
}

esper_status esper_source_check_labels(const char *path, const uint8_t *labels, uint64_t n, int n_classes)
{
    for (uint64_t i = 0; i < n; i++)
        if (labels[i] >= n_classes)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: label %d of sample %" PRIu64 ": expected 0 to %d", path, labels[i],
                              i, n_classes - 1);
    return ESPER_OK;
}
