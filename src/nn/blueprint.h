/* Internal. Seed blueprints: small modules that keep the shape of what they are put behind.
 *
 * Where they differ, on purpose, from the recorded behaviour in the golden files:
 *   - conv_small, bottleneck, depthwise, conv_light and conv_heavy have batch norms, named bn, where group norms, named gn,
 *     were recorded: as many parameters, running statistics beside them, and on Fashion-MNIST 0.5 to 0.9 points more.
 *   - conv_small, depthwise, conv_light and conv_heavy end in a per-channel scale born 1/2, after their last ReLU: C more
 *     parameters named `scale`. They learn from the first step (conv_small's zero convolution in front of a norm and a
 *     ReLU never did; with a scale born 0 they begin at a saddle). With the scale at 1, and group norms, they compute what was
 *     recorded.
 *   - The last convolution of conv_small and bottleneck is born like any other instead of as zeros; the norm behind
 *     bottleneck's, which is its scale, with weights of 1/2. (Zeros in front of a norm are brought to full strength by one step.)
 *   - For a multiplying blend the last convolution or linear layer is born as zeros, except in those four, which would
 *     stop learning.
 * CNN attention keeps its recorded start: it begins as 0.9526 x (0.5 x for a multiplying blend), not as an identity. */
#ifndef ESPER_NN_BLUEPRINT_H
#define ESPER_NN_BLUEPRINT_H

#include "base/config_keys.h"
#include "nn/host.h"

/* How a seed is put into the stream. The values are the recorded codes. */
typedef enum esper_blend { ESPER_BLEND_ADD = 1, ESPER_BLEND_MULTIPLY = 2, ESPER_BLEND_GATE = 3 } esper_blend;

/* How a seed's weights are born: the choices of the setting `birth`.
 *   OWN    as the blueprint has them
 *   ZERO   its output is silent: the stream goes on as it was
 *   SMALL  its output is a tenth of what it usually is
 *   COPY   weights, moments and age of the host's layer before the slot (esper_network_bear)
 *   FIRST  silent, and of several draws the one whose first step would lower the loss fastest (likewise) */
typedef enum esper_birth {
#define X(of, name, text) ESPER_BIRTH_##name,
    ESPER_CONFIG_BIRTH_LIST(X)
#undef X
        ESPER_N_BIRTHS
} esper_birth;

enum { ESPER_BIRTH_UNSAID = -1 }; /* of a decision: the setting's */

/* What a builder is told. */
typedef struct esper_blueprint_how {
    esper_blend blend;
    esper_birth birth;
    int         heads;   /* of the host's attention; 0 = 1: no size depends on it */
    float       dropout; /* the host's */
    int         size;    /* the blueprint's, as below, which esper_blueprint_build fills in */
    const char *text;    /* likewise */
    const esper_wide *wide; /* of a slot that takes new channels, and no other seed; NULL = it is none */
} esper_blueprint_how;

typedef struct esper_blueprint {
    const char    *name;
    esper_topology topology;
    int            index;    /* the policy's number of this blueprint, the same in cnn and transformer */
    int            estimate; /* parameters at 64 channels (cnn), width 384 (transformer) or 64 (mlp), to sort and to show */
    const char    *about;
    int            size; /* kernel, rank, heads or expansion, where builders serve several blueprints */
    unsigned       births; /* bits 1u << esper_birth: how it can be born */
    const char    *text;   /* of one that was added (nn/blueprint_text.h); NULL = none */
    int (*build)(esper_net *net, int x, esper_blueprint_how how);
} esper_blueprint;

/* Numbers of those that were added: behind all others, and without room in the head of a learned policy. All numbers are below
 * ESPER_BLUEPRINT_NUMBERS: sets of blueprints are bits of 32. */
enum {
    ESPER_BLUEPRINT_FIRST_TEXT = 14,
    ESPER_BLUEPRINT_TEXTS = 16,
    ESPER_BLUEPRINT_WIDE = 30, /* new channels for a layer */
    ESPER_BLUEPRINT_NUMBERS = 32,
    ESPER_BLUEPRINT_NAME_CHARS = 20
};

/* "add", "multiply", "gate"; NULL for other codes. The operator of that name; -1 = there is none. */
const char *esper_blend_name(int blend);
int         esper_blend_find(const char *name);

/* "own" and so on; NULL for other codes. Whether the stream goes on as it was. E_ARG, with a sentence, where a blueprint cannot be
 * born so. */
const char  *esper_birth_name(int birth);
bool         esper_birth_is_silent(int birth);
esper_status esper_blueprint_check_birth(const esper_blueprint *blueprint, int birth);

/* All blueprints of a topology, by (estimate, name); NULL at the end. */
const esper_blueprint *const *esper_blueprint_list(esper_topology topology);

/* For nn/blueprint_text.c: one that was added, and its place at the end of the list of its topology. */
void esper_blueprint_init_text(esper_blueprint *blueprint, esper_topology topology, const char *name, const char *text,
                               int place);
void esper_blueprint_append(const esper_blueprint *blueprint);

/* Adds `wide` to the list of images, for as long as the program runs: before anything computes, where slots take new channels (`widen`
 * of a host). It is in no other list, as it fits no other slot. */
void esper_blueprint_add_wide(void);

/* E_ARG with the names there are when there is none of that name. */
esper_status esper_blueprint_find(esper_topology topology, const char *name, const esper_blueprint **blueprint_out);

/* Appends the module to the net behind x, in the net's present prefix and region. Returns its output. */
int esper_blueprint_build(const esper_blueprint *blueprint, esper_net *net, int x, esper_blueprint_how how);

/* The gate network of a gated blend: mean, linear, ReLU, linear, sigmoid -> one value for each sample. */
int esper_gate_build(esper_net *net, int x);

#endif
