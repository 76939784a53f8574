/* The drawing as characters, from left to right. Blocks are as wide as their parameters, seeds stand between brackets, filled as
 * far as their weight:
 *
 *     ███─○─█─[██░░]─█████─○─█──███       or, without UTF-8,       ###-o-#-[##..]-#####-o-#--###
 *       r0c0   r1c0 B     r0c1                                        r0c0   r1c0 B     r0c1 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ui/drawing.h"

enum { MOST_CELLS = 14, MOST_SEED = 6, LETTER = 2 /* " B" behind the name of a slot */ };

typedef struct plan {
    int cells[ESPER_HOST_MAX_PARTS]; /* that a part takes, the stream around it not counted */
    int begin[ESPER_HOST_MAX_PARTS]; /* its first column */
    bool named;                      /* there are names below */
} plan;

static double share_of(const esper_drawing *drawing, const esper_drawing_part *part)
{
    double share = (double)part->params / (double)(drawing->params_largest > 0 ? drawing->params_largest : 1);

    return sqrt(share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share);
}

/* Cells that the name of a slot takes, with the letter of its seed. */
static int name_cells(const esper_drawing_part *part)
{
    return (int)strnlen(part->name, ESPER_SLOT_CHARS) + (esper_drawing_has_seed(part) ? LETTER : 0);
}

/* The columns in all when the largest part has so many cells. */
static int lay_out(const esper_drawing *drawing, int largest, bool named, plan *out)
{
    int column = 0, name_end = -1;

    out->named = named;
    for (int i = 0; i < drawing->n; i++) {
        const esper_drawing_part *part = &drawing->part[i];
        bool seed = esper_drawing_has_seed(part);
        int most = seed && largest > MOST_SEED ? MOST_SEED : largest;

        out->cells[i] = part->is_slot && !seed ? 1 : (int)lround(1.0 + (most - 1) * share_of(drawing, part)) + 2 * seed;
        column += i > 0;
        if (named && part->is_slot) { /* names must not touch: the stream is longer before a slot, if need be */
            int lead = (name_cells(part) - out->cells[i]) / 2;

            if (column - lead <= name_end)
                column = name_end + 1 + lead;
            name_end = column - lead + name_cells(part);
        }
        out->begin[i] = column;
        column += out->cells[i];
    }
    return name_end > column ? name_end : column;
}

const char *esper_drawing_colour(int stage)
{
    static const char *const colours[] = {[ESPER_STAGE_GERMINATED] = "33",                                /* yellow */
                                          [ESPER_STAGE_TRAINING] = "33",   [ESPER_STAGE_BLENDING] = "36", /* cyan */
                                          [ESPER_STAGE_HOLDING] = "35",                                   /* magenta */
                                          [ESPER_STAGE_FOSSILIZED] = "32",                                /* green */
                                          [ESPER_STAGE_PRUNED] = "31"};                                   /* red */
    bool known = stage >= 0 && (size_t)stage < sizeof(colours) / sizeof(colours[0]) && colours[stage] != NULL;

    return known ? colours[stage] : "2";
}

static void put_cells(esper_line *line, const char *cell, int n)
{
    for (int i = 0; i < n; i++)
        esper_line_put(line, "%s", cell);
}

static void put_part(const esper_drawing_part *part, int cells, bool utf8, esper_line *line)
{
    double alpha = part->alpha > 0.0 ? fmin(part->alpha, 1.0) : 0.0;
    int filled;

    if (!part->is_slot) {
        put_cells(line, part->params == 0 ? (utf8 ? "▪" : "=") : utf8 ? "█" : "#", cells);
    } else if (!esper_drawing_has_seed(part)) {
        put_cells(line,
                  utf8 ? (esper_stage_cools_down(part->stage) ? "×" : "○")
                       : (esper_stage_cools_down(part->stage) ? "x" : "o"),
                  cells);
    } else {
        filled = (int)lround(alpha * (cells - 2));
        esper_line_colour(line, esper_drawing_colour(part->stage));
        esper_line_put(line, "[");
        put_cells(line, utf8 ? "█" : "#", filled);
        put_cells(line, utf8 ? "░" : ".", cells - 2 - filled);
        esper_line_put(line, "]");
        esper_line_colour(line, "0");
    }
}

/* The first letter of its stage, but for germinated. */
static char letter_of(int stage)
{
    switch (stage) {
    case ESPER_STAGE_TRAINING:
        return 'T';
    case ESPER_STAGE_BLENDING:
        return 'B';
    case ESPER_STAGE_HOLDING:
        return 'H';
    case ESPER_STAGE_FOSSILIZED:
        return 'F';
    default:
        return 'G';
    }
}

static void put_name(const esper_drawing_part *part, int column, esper_line *names)
{
    while (names->columns < column && !names->full)
        esper_line_put(names, " ");
    if (!esper_drawing_has_seed(part)) {
        esper_line_colour(names, "2");
        esper_line_put(names, "%.*s", ESPER_SLOT_CHARS, part->name);
    } else {
        esper_line_colour(names, esper_drawing_colour(part->stage));
        esper_line_put(names, "%.*s %c", ESPER_SLOT_CHARS, part->name, letter_of(part->stage));
    }
    esper_line_colour(names, "0");
}

void esper_drawing_lines(const esper_drawing *drawing, bool utf8, esper_line *stream, esper_line *names)
{
    int from = stream->columns, room = stream->room - from, largest = MOST_CELLS;
    plan out;

    while (largest > 1 && lay_out(drawing, largest, true, &out) > room)
        largest--;
    if (lay_out(drawing, largest, true, &out) > room) /* names first, then what is at the end */
        for (largest = MOST_CELLS; lay_out(drawing, largest, false, &out) > room && largest > 1;)
            largest--;
    for (int i = 0; i < drawing->n && out.begin[i] + out.cells[i] <= room; i++) {
        const esper_drawing_part *part = &drawing->part[i];
        int lead = (name_cells(part) - out.cells[i]) / 2;

        put_cells(stream, utf8 ? "─" : "-", from + out.begin[i] - stream->columns);
        put_part(part, out.cells[i], utf8, stream);
        if (out.named && part->is_slot)
            put_name(part, from + out.begin[i] - lead, names);
    }
}
