/* The drawing as SVG, from top to bottom:
 *
 *     names |   boxes on the stream, as wide as their parameters   | of a seed: slot, blueprint, stage, weight, parameters
 *
 * It is as wide as half a page, so that two stand beside each other, and as a phone. */
#include "ui/drawing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "ui/report_html.h"

enum {
    WIDTH = 520,
    STREAM = 232, /* where it runs */
    NAMES = 118,  /* where names end */
    NOTES = 346,  /* where notes begin */
    LEAST_BOX = 12,
    MOST_BOX = 208,
    BLOCK = 22, /* heights of rows */
    PASSING = 12,
    EMPTY = 18,
    SEED = 36,
    GAP = 7,
    EDGE = 16,
    NAME_CHARS = 16, /* that fit */
    NOTE_CHARS = 24,
};

/* At most so many characters, an ellipsis for what is more. */
static const char *shorten(const char *text, int most, char out[4 * (NOTE_CHARS + 1) + 4])
{
    size_t left = strlen(text), used = 0, kept = 0;
    int n = 0;

    while (used < left && n < most) {
        size_t length = esper_utf8_length((const uint8_t *)text + used, left - used);

        if (n < most - 1)
            kept = used;
        used += length > 0 ? length : 1;
        n++;
    }
    if (used >= left)
        snprintf(out, 4 * (NOTE_CHARS + 1) + 4, "%s", text);
    else
        snprintf(out, 4 * (NOTE_CHARS + 1) + 4, "%.*s…", (int)kept, text);
    return out;
}

static const char *class_of(int stage)
{
    switch (stage) {
    case ESPER_STAGE_GERMINATED:
    case ESPER_STAGE_TRAINING:
    case ESPER_STAGE_BLENDING:
    case ESPER_STAGE_HOLDING:
    case ESPER_STAGE_FOSSILIZED:
        return esper_stage_name(stage);
    default:
        return "other";
    }
}

static double width_of(const esper_drawing *drawing, int64_t params)
{
    double share = (double)params / (double)(drawing->params_largest > 0 ? drawing->params_largest : 1);

    return LEAST_BOX + (MOST_BOX - LEAST_BOX) * sqrt(share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share);
}

static int height_of(const esper_drawing_part *part)
{
    if (esper_drawing_has_seed(part))
        return SEED;
    return part->is_slot ? EMPTY : part->params > 0 ? BLOCK : PASSING;
}

/* Share of a box that is filled: what is not a number is nothing. */
static double fill_of(const esper_drawing_part *part)
{
    return part->alpha > 0.0 ? fmin(part->alpha, 1.0) : 0.0;
}

static void describe(esper_page *page, const esper_drawing *drawing)
{
    for (int i = 0; i < drawing->n; i++) {
        const esper_drawing_part *part = &drawing->part[i];

        if (esper_drawing_has_seed(part))
            esper_html(page, "Slot %s: %s, %s, alpha %.2f, %" PRIi64 " parameters. ", part->name,
                       part->blueprint[0] != '\0' ? part->blueprint : "a planted seed", class_of(part->stage),
                       part->alpha, part->params);
        else if (part->is_slot)
            esper_html(page, "Slot %s: empty. ", part->name);
        else
            esper_html(page, "%s: %" PRIi64 " parameters. ", part->name, part->params);
    }
}

static void write_seed(esper_page *page, const esper_drawing *drawing, const esper_drawing_part *part, double y)
{
    const char *stage = class_of(part->stage);
    double width = width_of(drawing, part->params), left = STREAM - width / 2.0, top = y + 5.0;
    char name[4 * (NOTE_CHARS + 1) + 4], words[sizeof(part->name) + sizeof(part->blueprint) + 4];

    snprintf(words, sizeof(words), "%s %s", part->name, part->blueprint[0] != '\0' ? part->blueprint : "planted");
    esper_html(page,
               "<rect class=\"shell%s e-%s\" x=\"%a\" y=\"%a\" width=\"%a\" height=\"%d\" rx=\"4\"><title>%s: %s, "
               "alpha %.2f, %" PRIi64 " parameters</title></rect>\n",
               esper_stage_runs_seed(part->stage) && part->stage != ESPER_STAGE_TRAINING ? "" : " aside", stage, left,
               top, width, SEED - 10, words, stage, part->alpha, part->params);
    if (fill_of(part) > 0.0)
        esper_html(page, "<rect class=\"s-%s\" x=\"%a\" y=\"%a\" width=\"%a\" height=\"%d\" rx=\"3\"/>\n", stage,
                   left + 1.0, top + 1.0, (width - 2.0) * fill_of(part), SEED - 12);
    esper_html(page, "<text x=\"%d\" y=\"%a\">%s</text>\n", NOTES, y + 15.0, shorten(words, NOTE_CHARS, name));
    if (part->stage == ESPER_STAGE_BLENDING)
        esper_html(page, "<text class=\"soft\" x=\"%d\" y=\"%a\">%s %.2f, %" PRIi64 "</text>\n", NOTES, y + 31.0, stage,
                   part->alpha, part->params);
    else
        esper_html(page, "<text class=\"soft\" x=\"%d\" y=\"%a\">%s, %" PRIi64 "</text>\n", NOTES, y + 31.0, stage,
                   part->params);
}

static void write_block(esper_page *page, const esper_drawing *drawing, const esper_drawing_part *part, double y)
{
    double width = part->params > 0 ? width_of(drawing, part->params) : LEAST_BOX;
    char name[4 * (NOTE_CHARS + 1) + 4];

    esper_html(page,
               "<rect class=\"block\" x=\"%a\" y=\"%a\" width=\"%a\" height=\"%d\" rx=\"3\"><title>%s: %" PRIi64
               " parameters%s%s</title></rect>\n",
               STREAM - width / 2.0, y, width, height_of(part), part->name, part->params,
               part->shape[0] != '\0' ? ", to " : "", part->shape);
    esper_html(page, "<text class=\"%s\" x=\"%d\" y=\"%a\" text-anchor=\"end\">%s</text>\n",
               part->params > 0 ? "" : "soft", NAMES, y + height_of(part) / 2.0 + 4.5,
               shorten(part->name, NAME_CHARS, name));
    if (part->params > 0)
        esper_html(page, "<text class=\"soft\" x=\"%d\" y=\"%a\">%" PRIi64 "</text>\n", NOTES, y + 15.5, part->params);
}

static void write_vacant(esper_page *page, const esper_drawing_part *part, double y)
{
    bool rests = esper_stage_cools_down(part->stage);
    char name[4 * (NOTE_CHARS + 1) + 4];

    esper_html(page, "<circle class=\"vacant\" cx=\"%d\" cy=\"%a\" r=\"6\"><title>%s: %s</title></circle>\n", STREAM,
               y + EMPTY / 2.0, part->name, rests ? "rests after a prune" : "empty");
    esper_html(page, "<text class=\"soft\" x=\"%d\" y=\"%a\">%s%s</text>\n", NOTES, y + 13.5,
               shorten(part->name, NAME_CHARS, name), rests ? ", rests" : "");
}

void esper_drawing_svg(esper_page *page, const esper_drawing *drawing, const char *id, const char *title)
{
    int height = 2 * EDGE;
    double y = EDGE;

    for (int i = 0; i < drawing->n; i++)
        height += height_of(&drawing->part[i]) + (i > 0 ? GAP : 0);
    esper_html(page,
               "<svg class=\"network\" viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-t %s-d\">\n"
               "<title id=\"%s-t\">%s</title>\n<desc id=\"%s-d\">",
               WIDTH, height, id, id, id, title, id);
    describe(page, drawing);
    esper_html(page, "</desc>\n<path class=\"stream\" d=\"M%d 2V%dm-5 -6l5 6l5 -6\"/>\n", STREAM, height - 3);
    for (int i = 0; i < drawing->n; i++) {
        const esper_drawing_part *part = &drawing->part[i];

        if (esper_drawing_has_seed(part))
            write_seed(page, drawing, part, y);
        else if (part->is_slot)
            write_vacant(page, part, y);
        else
            write_block(page, drawing, part, y);
        y += height_of(part) + GAP;
    }
    esper_html(page, "</svg>\n");
}
