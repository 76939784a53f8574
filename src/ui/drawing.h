/* Internal. The network drawn: the blocks of its host in the order of execution, its slots between them, and the seeds in these.
 * The size of a block or seed is that of its parameters, the colour of a seed its stage, and how far it is filled its weight
 * alpha. One model, from a store at any epoch or from a run that is watched; and renderers: SVG for pages, JSON for those who
 * draw themselves, characters for terminals.
 *
 * A store of an earlier version does not know the host's parts: the drawing has the host as one block, and the slots that
 * anything happened in behind it. */
#ifndef ESPER_UI_DRAWING_H
#define ESPER_UI_DRAWING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/page.h"
#include "nn/parts.h"
#include "slot/stage.h"
#include "telemetry/store.h"
#include "ui/terminal.h"

typedef struct esper_drawing_part {
    bool is_slot;
    char name[ESPER_NAME_CHARS];
    char shape[ESPER_HOST_SHAPE_CHARS]; /* of what leaves it; "": not known */
    int64_t params;                     /* of a block, or of the seed in a slot */
    /* of a slot */
    int stage; /* esper_stage; DORMANT: it is empty */
    double alpha;
    int64_t seed;       /* its number; ESPER_STORE_NO_INT: none */
    char blueprint[48]; /* "": none, or not known: it was planted */
    /* private: what is known of the slot comes from the record of this number */
    int64_t seq;
} esper_drawing_part;

typedef struct esper_drawing {
    esper_drawing_part part[ESPER_HOST_MAX_PARTS];
    int n;
    bool guessed;  /* the store does not know the host's parts */
    int64_t epoch; /* as it stood at the end of this one; 0: as it began */
    int64_t params_host, params_seeds;
    int64_t params_largest; /* of its parts: the scale. Give two drawings the larger one's, to compare them */
} esper_drawing;

#define ESPER_DRAWING_LAST INT64_MAX

/* Leaves out slots that are closed: those behind another one at the same place that holds no kept seed yet. */
void esper_drawing_drop_closed(esper_drawing *drawing);

/* A run of a store as it stood at the end of an epoch, or of the last one. What rollbacks have undone is not there, nor are
 * closed slots. E_NOTFOUND: there is no such run. */
esper_status esper_drawing_read(esper_store_reader *reader, int64_t run, int64_t epoch, esper_drawing *drawing_out);

/* From a host, with empty slots; esper_drawing_set puts a seed into a slot (one that is not there is left out). */
void esper_drawing_of_host(const esper_net *plain, esper_drawing *drawing_out);
void esper_drawing_set(esper_drawing *drawing, const char *slot, int stage, double alpha, const char *blueprint,
                       int64_t params);

/* Whether a seed lives in the part. */
bool esper_drawing_has_seed(const esper_drawing_part *part);

/* An <svg> of class "network", from top to bottom, 520 units wide and responsive; `id` is a word for references inside the page,
 * `title` what it shows. Its looks are in web/palette.css. */
void esper_drawing_svg(esper_page *page, const esper_drawing *drawing, const char *id, const char *title);

/* {"epoch":12,"params_host":12345,"params_seeds":8512,"guessed":false,"parts":[{"what":"block","name":"blocks.0","params":448,
 * "shape":"16x8x8"},{"what":"slot","name":"r0c0","shape":"16x8x8","stage":"blending","alpha":0.4,"seed":1,"blueprint":
 * "conv_light","params":8512}, ...]}; an empty slot has the stage dormant and no more. */
void esper_drawing_json(esper_page *page, const esper_drawing *drawing);

/* The colour of a stage in terminals, by its number in ECMA-48; faint where there is no seed. */
const char *esper_drawing_colour(int stage);

/* Two lines: the stream with its blocks and seeds, and the names of slots below with a letter for the stage of a seed. Where
 * they do not all fit, the smaller of the names are left out, then the smallest blocks are drawn as one character. */
void esper_drawing_lines(const esper_drawing *drawing, bool utf8, esper_line *stream, esper_line *names);

#endif
