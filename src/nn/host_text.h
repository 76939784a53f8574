/* Internal. Networks as text: the language that hosts and blueprints are written in.
 *
 *     conv 16 | pool | [conv 32]x2 residual | pool | mean | linear
 *
 *     host   := stage { separator stage }          separator: '|', or the end of a line
 *     stage  := word { argument }                  as ESPER_HOST_STAGE_LIST has them
 *             | '[' host ']' ['x' number] ['residual']
 *
 * What stands behind a bracket is for each copy: [conv 32]x2 residual are two residual blocks. '#' begins a comment. Text is
 * parsed into a list of stages, printed from it on one line, and both ways give the same: a run keeps the printed form. What can
 * be known without data is checked here; shapes are when a network is built (nn/host_build.h). */
#ifndef ESPER_NN_HOST_TEXT_H
#define ESPER_NN_HOST_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "esper.h"
#include "tensor/net.h"

enum {
    ESPER_HOST_CHARS = 1024,         /* of a printed text, terminator included: what a setting holds */
    ESPER_HOST_SOURCE_CHARS = 65536, /* of a file */
    ESPER_HOST_STAGES = 192,         /* written; repeats are not counted */
    ESPER_HOST_DEPTH = 8,            /* of brackets */
    ESPER_HOST_MOST = 65536,         /* channels, width */
    ESPER_HOST_REPEATS = 64,
    ESPER_HOST_KERNEL = 31,
    ESPER_HOST_HEADS = 256,
};

/* What a stage takes: a size it needs, may have, or none; then words. */
enum {
    ESPER_TAKES_SIZE = 1,
    ESPER_TAKES_NO_SIZE = 2,
    ESPER_TAKES_KERNEL = 4,
    ESPER_TAKES_BARE = 8,
    ESPER_TAKES_TIED = 16,
    ESPER_TAKES_DROPOUT = 32,
    ESPER_TAKES_NAME = 64,
    ESPER_TAKES_SHARE = 128
};

/* X(kind, word, takes, arguments as people read them, meaning) */
#define ESPER_HOST_STAGE_LIST(X)                                                                          \
    X(CONV, "conv", ESPER_TAKES_SIZE | ESPER_TAKES_KERNEL | ESPER_TAKES_BARE | ESPER_TAKES_DROPOUT,       \
      "C [KxK] [bare] [dropout P]",                                                                       \
      "convolution to C channels, 3x3 unless said, batch norm, ReLU; bare: without the two")              \
    X(LINEAR, "linear",                                                                                   \
      ESPER_TAKES_SIZE | ESPER_TAKES_NO_SIZE | ESPER_TAKES_BARE | ESPER_TAKES_TIED | ESPER_TAKES_DROPOUT, \
      "D [bare] [dropout P]", "linear layer to D numbers, layer norm, ReLU; bare: without the two")       \
    X(POOL, "pool", ESPER_TAKES_NO_SIZE, "", "halves height and width, by the largest of 2x2")            \
    X(NORM, "norm", ESPER_TAKES_NO_SIZE, "", "batch norm of images, layer norm of the rest")              \
    X(RELU, "relu", ESPER_TAKES_NO_SIZE, "", "what is below 0 becomes 0")                                 \
    X(GELU, "gelu", ESPER_TAKES_NO_SIZE, "", "the same, smoothly")                                        \
    X(DROPOUT, "dropout", ESPER_TAKES_SHARE, "P", "blanks a share P of the numbers while training")       \
    X(MEAN, "mean", ESPER_TAKES_NO_SIZE, "", "of each channel over height and width")                     \
    X(EMBED, "embed", ESPER_TAKES_SIZE | ESPER_TAKES_DROPOUT, "D [dropout P]",                            \
      "D numbers for each token and its position; text begins so")                                        \
    X(LAYER, "layer", ESPER_TAKES_SIZE | ESPER_TAKES_DROPOUT, "HEADS [dropout P]",                        \
      "transformer layer: norm, attention, norm, MLP of four times the width, each added to the stream")  \
    X(ATTENTION, "attention", ESPER_TAKES_SIZE | ESPER_TAKES_DROPOUT, "HEADS [dropout P]",                \
      "causal attention alone, between two linear layers")                                                \
    X(SLOT, "slot", ESPER_TAKES_NAME | ESPER_TAKES_NO_SIZE, "[NAME]",                                     \
      "a place to grow; a text without any has one behind every block, pool and layer")

typedef enum esper_host_stage_kind {
#define X(kind, word, takes, arguments, about) ESPER_HOST_STAGE_##kind,
    ESPER_HOST_STAGE_LIST(X)
#undef X
        ESPER_N_HOST_STAGES,
    ESPER_HOST_STAGE_GROUP = ESPER_N_HOST_STAGES, /* brackets; its stages follow it */
} esper_host_stage_kind;

typedef struct esper_host_stage {
    esper_host_stage_kind kind;
    int   size;   /* channels, width or heads; 0 = none: the head of a network, which the data gives its size */
    int times,
        part; /* blueprints alone: instead of a size so many times the stream's width, or one part of so many; 0 = not so */
    int   kernel; /* of conv */
    float dropout;
    bool  bare, tied;
    char  slot[ESPER_SLOT_CHARS]; /* the name of a place, "r0c2", or a word; "" = called by its place */
    int   end;      /* of a group: behind its last stage */
    int   repeat;   /* likewise: copies */
    bool  residual; /* likewise: each copy is added to what goes into it */
    int   at, length; /* where it stands in the text */
} esper_host_stage;

typedef struct esper_host_text {
    int              n;
    esper_host_stage stages[ESPER_HOST_STAGES];
} esper_host_text;

typedef enum esper_text_use { ESPER_TEXT_HOST, ESPER_TEXT_BLUEPRINT } esper_text_use;

/* E_CONFIG: what is wrong, the line it stands in, and a mark below. `name` is what the text is called there. */
esper_status esper_host_text_parse(const char *text, const char *name, esper_text_use use, esper_host_text *out);

/* On one line. E_CONFIG where it does not fit ESPER_HOST_CHARS. */
esper_status esper_host_text_print(const esper_host_text *host, char text[ESPER_HOST_CHARS]);

/* Whether both say the same, wherever that stands in their texts. */
bool esper_host_text_equal(const esper_host_text *a, const esper_host_text *b);

/* Describes a failure at a place of a text: the message, the line, a mark below. Returns the status. */
esper_status esper_host_text_fail(esper_status status, const char *text, const char *name, int at, int length,
                                  const char *format, ...) __attribute__((format(printf, 6, 7)));

/* Whether a slot's name is that of a place, "r0c2", and which. */
bool esper_host_slot_place(const char *slot, int *row_out, int *col_out);

const char *esper_host_stage_word(esper_host_stage_kind kind); /* "conv"; "[" of a group */

/* Heads and dropout of the first layer, or attention, in a sound text; 1 and 0 where it has none. */
void esper_host_text_layers(const char *text, int *heads_out, float *dropout_out);

/* The same host with so many eighths of its channels and widths, those of text a multiple of all heads. E_CONFIG where a number gets
 * too large. */
esper_status esper_host_text_scale(const char *text, int eighths, char scaled[ESPER_HOST_CHARS]);

/* Hosts that have a name. */
typedef struct esper_host_preset {
    const char *name, *text, *about;
} esper_host_preset;

/* NULL name at the end. */
const esper_host_preset *esper_host_presets(void);

/* What somebody may give for a host: the name of a preset, a file, or the text itself. Writes the printed form. */
esper_status esper_host_text_resolve(const char *given, char text[ESPER_HOST_CHARS]);

#endif
