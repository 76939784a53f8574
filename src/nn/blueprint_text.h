/* Internal. Blueprints as text: kinds of seeds that are added without compiling.
 *
 *     wide = conv 2w | conv w; thin = conv w/4 1x1 | conv w
 *
 * The language is that of hosts (nn/host_text.h), with w for the width of the stream that a seed is put behind. What the text says is
 * added to the stream: of images behind a scale for each channel, of tokens and rows as it is, and so it ends there in `linear w
 * bare`. The scale, or that layer, is what a birth makes silent or small. A blueprint belongs to every topology whose stream it
 * can be built on. In a file a name and '=' begin a line, and the text may go on over several. */
#ifndef ESPER_NN_BLUEPRINT_TEXT_H
#define ESPER_NN_BLUEPRINT_TEXT_H

#include "nn/host_text.h"

/* What somebody gave: the texts, or a file of them. Writes the printed form, on one line. */
esper_status esper_blueprint_texts_resolve(const char *given, char texts[ESPER_HOST_CHARS]);

/* Adds them to the lists of blueprints, for as long as the program runs: names are found there by everybody, files and logs among
 * them. To be called while configurations are read, before anything computes. What is there already, with the same text in the
 * same place, stays; another text under that name, or in that place, is E_CONFIG. */
esper_status esper_blueprint_texts_add(const char *texts);

#endif
