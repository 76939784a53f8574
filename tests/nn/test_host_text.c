/* ctest: timeout=120 cost=4 */
/* Hosts as text: what is read is what is printed, what is wrong is pointed at, and what settings make is text as well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "nn/host_build.h"
#include "support/effort.h"
#include "support/small_net.h"

#ifndef HOST_TEXTS /* tests/nn/test_host_text_all.c has more of them */
#define HOST_TEXTS (uint32_t) effort(600, 60)
#endif

static void require_good(esper_status status, const char *what)
{
    if (status != ESPER_OK)
        fail_msg("%s: %s", what, esper_last_error());
}

/* Data that hosts are tried on. */
static esper_host images(int side)
{
    return (esper_host){.topology = ESPER_TOPOLOGY_CNN,
                        .cnn = {.in_channels = 3, .height = side, .width = side, .classes = 5},
                        .with_loss = true};
}

static esper_host text_of(int tokens)
{
    return (esper_host){.topology = ESPER_TOPOLOGY_TRANSFORMER,
                        .transformer = {.vocab = 11, .context = tokens, .embed_std = 0.02f},
                        .with_loss = true};
}

static esper_host table(void)
{
    return (esper_host){.topology = ESPER_TOPOLOGY_MLP, .mlp = {.features = 7, .classes = 5}, .with_loss = true};
}

static void give(esper_host *host, const char *text)
{
    snprintf(host->text, sizeof(host->text), "%s", text);
}

/* ------------------------------------------------------------------------------------------------ printing */

static void check_prints(const char *text, const char *expected)
{
    static esper_host_text host, again;
    char printed[ESPER_HOST_CHARS], twice[ESPER_HOST_CHARS];

    require_good(esper_host_text_parse(text, "host", ESPER_TEXT_HOST, &host), text);
    require_good(esper_host_text_print(&host, printed), text);
    assert_string_equal(printed, expected);
    require_good(esper_host_text_parse(printed, "host", ESPER_TEXT_HOST, &again), printed);
    assert_true(esper_host_text_equal(&host, &again));
    require_good(esper_host_text_print(&again, twice), printed);
    assert_string_equal(twice, printed);
}

static void test_printed_form(void **state)
{
    (void)state;
    check_prints("linear", "linear");
    check_prints("conv 16|pool|[conv 32]x2 residual|pool|mean|linear",
                 "conv 16 | pool | [conv 32]x2 residual | pool | mean | linear");
    check_prints("# a small one\nconv 16 3x3  # as usual\n\n  pool\nmean\n\tlinear\n",
                 "conv 16 | pool | mean | linear");
    check_prints("conv 16 |\npool\n| mean | # here\n\n linear", "conv 16 | pool | mean | linear");
    check_prints("[\n conv 8 5x5 bare dropout 0.25\n norm\n relu\n] residual x3\nmean\nlinear",
                 "[conv 8 5x5 bare dropout 0.25 | norm | relu]x3 residual | mean | linear");
    check_prints("embed 32 dropout 1e-1 | [[layer 4]x2 | slot]x2 | norm | linear tied",
                 "embed 32 dropout 0.1 | [[layer 4]x2 | slot]x2 | norm | linear tied");
    check_prints("conv 8 | slot r3c12 | gelu | slot | relu | slot stem2 | mean | linear",
                 "conv 8 | slot r3c12 | gelu | slot | relu | slot stem2 | mean | linear");
    check_prints("[[linear 8]x1]x1 | linear", "[[linear 8]] | linear");
}

/* ------------------------------------------------------------------------------------------------ mistakes */

static const struct {
    const char *text, *message;
} mistakes[] = {
    {"", "host: there is no stage in it"},
    {" # nothing\n \n", "host: there is no stage in it"},
    {"conv 16 | pol | mean | linear",
     "host: there is no stage 'pol'; did you mean 'pool'?\n  conv 16 | pol | mean | linear\n            ^^^"},
    {"conv 16\nxyz\nlinear", "host, line 2: there is no stage 'xyz'. There are: conv, linear, pool, norm, relu, gelu, "
                             "dropout, mean, embed, layer, attention, slot\n  xyz\n  ^^^"},
    {"conv", "host: channels: expected a whole number from 1 to 65536\n  conv\n      ^"},
    {"conv 0 | linear", "host: channels: expected a whole number from 1 to 65536\n  conv 0 | linear\n       ^"},
    {"conv 1.5 | linear", "host: channels: expected a whole number from 1 to 65536\n  conv 1.5 | linear\n       ^^^"},
    {"conv 99999999999999999999 | linear",
     "host: channels: expected a whole number from 1 to 65536\n  conv 99999999999999999999 | linear\n       "
     "^^^^^^^^^^^^^^^^^^^^"},
    {"conv 16 4x4 | linear",
     "host: kernel: expected an odd side twice, from 1x1 to 31x31\n  conv 16 4x4 | linear\n          ^^^"},
    {"conv 16 3x5 | linear",
     "host: kernel: expected an odd side twice, from 1x1 to 31x31\n  conv 16 3x5 | linear\n          ^^^"},
    {"conv 16 bar | linear",
     "host: conv takes C [KxK] [bare] [dropout P]: not 'bar'; did you mean 'bare'?\n  conv 16 bar | linear\n          ^^^"},
    {"conv 16 pool | linear",
     "host: expected '|' or a new line before 'pool'\n  conv 16 pool | linear\n          ^^^^"},
    {"conv 16 residual | linear",
     "host: residual stands behind brackets: [conv ...] residual\n  conv 16 residual | linear\n          ^^^^^^^^"},
    {"pool 2 | linear", "host: pool takes nothing: not '2'\n  pool 2 | linear\n       ^"},
    {"conv 16 || linear", "host: expected a stage between two bars\n  conv 16 || linear\n           ^"},
    {"| linear", "host: expected a stage before '|'\n  | linear\n  ^"},
    {"conv 16 | ", "host: expected a stage behind '|'\n  conv 16 | \n          ^"},
    {"[conv 16 | linear", "host: this bracket is not closed\n  [conv 16 | linear\n  ^"},
    {"conv 16] | linear", "host: no bracket was opened for this one\n  conv 16] | linear\n         ^"},
    {"[] | linear", "host: expected a stage between the brackets\n  [] | linear\n   ^"},
    {"[conv 8]x0 | linear", "host: copies: expected x1 to x64\n  [conv 8]x0 | linear\n          ^^"},
    {"[conv 8]x2x3 | linear", NULL},
    {"[conv 8] 3 | linear",
     "host: behind brackets: expected xN, residual, '|' or a new line\n  [conv 8] 3 | linear\n           ^"},
    {"conv 8 | [slot | conv 8] residual | linear",
     "host: a slot cannot stand inside a residual block, as the shortcut would go past it: put it behind the block\n"
     "  conv 8 | [slot | conv 8] residual | linear\n            ^^^^"},
    {"conv 8 | [conv 8 | slot r0c0]x2 | linear",
     "host: a slot that is repeated cannot have a name: leave out r0c0\n  conv 8 | [conv 8 | slot r0c0]x2 | linear\n"
     "                     ^^^^"},
    {"conv 8 | slot r0c0 | relu | slot r0c0 | linear",
     "host: another slot has that name\n  conv 8 | slot r0c0 | relu | slot r0c0 | linear\n"
     "                              ^^^^"},
    {"conv 8 | slot First | linear",
     "host: a slot is called by a place, such as r0c2, or by a word of up to 15 letters, digits and '_' that begins with a "
     "small letter: not 'First'\n  conv 8 | slot First | linear\n                ^^^^^"},
    {"conv 8 | slot a_name_too_long_ | linear",
     "host: a slot is called by a place, such as r0c2, or by a word of up to 15 letters, digits and '_' that begins with a "
     "small letter: not 'a_name_too_long_'\n  conv 8 | slot a_name_too_long_ | linear\n                ^^^^^^^^^^^^^^^^"},
    {"conv 8 | slot blocks | linear",
     "host: a slot cannot be called 'blocks', which has another meaning\n  conv 8 | slot blocks | linear\n"
     "                ^^^^^^"},
    {"conv 8 | slot pool | linear", "host: a slot cannot be called 'pool', which has another meaning\n"
                                    "  conv 8 | slot pool | linear\n                ^^^^"},
    {"conv 8 | slot early | relu | slot early | linear",
     "host: another slot has that name\n  conv 8 | slot early | relu | slot early | linear\n"
     "                               ^^^^"},
    {"conv 8 | slot r01c0 | linear",
     "host: the name of a place is r, its row, c, its column, such as r0c2: not 'r01c0'\n"
     "  conv 8 | slot r01c0 | linear\n                ^^^^^"},
    {"slot | conv 8 | linear", "host: a slot stands behind a stage\n  slot | conv 8 | linear\n  ^^^^"},
    {"conv 8 | mean", "host: a host ends in linear without a width: what the data has to be told apart gives it one\n"
                      "  conv 8 | mean\n           ^^^^"},
    {"linear | linear", "host: linear without a width ends a host; with one, such as linear 64, it goes on\n"
                        "  linear | linear\n  ^^^^^^"},
    {"linear 8 | [linear]", "host: linear without a width ends a host, behind all brackets\n  linear 8 | [linear]\n"
                            "              ^^^^^^"},
    {"conv 8 | embed 16 | linear",
     "host: embed stands at the beginning\n  conv 8 | embed 16 | linear\n           ^^^^^"},
    {"dropout 1 | linear",
     "host: dropout: expected a share above 0 and below 1, such as 0.1\n  dropout 1 | linear\n          ^"},
    {"linear 2w | linear",
     "host: w, the stream's width, is for blueprints: a host says how wide it is\n  linear 2w | linear\n         ^^"},
    {"conv 3y | linear", "host: '3y' is no number\n  conv 3y | linear\n       ^^"},
    {"conv 16 \x1b[31m | linear",
     "host: a host has no place for this character\n  conv 16 ?[31m | linear\n          ^"},
    {"[[[[[[[[[conv 1]]]]]]]]] | linear", NULL},
};

static void test_mistakes_are_pointed_at(void **state)
{
    static esper_host_text host;

    (void)state;
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        assert_int_equal(esper_host_text_parse(mistakes[i].text, "host", ESPER_TEXT_HOST, &host), ESPER_E_CONFIG);
        if (mistakes[i].message != NULL && strcmp(esper_last_error(), mistakes[i].message) != 0)
            fail_msg("'%s' says\n%s\nnot\n%s", mistakes[i].text, esper_last_error(), mistakes[i].message);
    }
}

/* Of a long line what is around the mistake. */
static void test_long_lines_are_cut(void **state)
{
    static esper_host_text host;
    char text[2048] = "";

    (void)state;
    for (int i = 0; i < 60; i++)
        strcat(text, i == 40 ? "pol | " : "conv 16 | ");
    strcat(text, "linear");
    assert_int_equal(esper_host_text_parse(text, "host", ESPER_TEXT_HOST, &host), ESPER_E_CONFIG);
    assert_string_equal(esper_last_error(),
                        "host: there is no stage 'pol'; did you mean 'pool'?\n"
                        "  ... 16 | conv 16 | conv 16 | conv 16 | pol | conv 16 | conv 16 | conv 16 | ...\n"
                        "                                         ^^^");
}

/* What fits no data, or not this. */
static const struct {
    esper_topology topology;
    const char    *text, *words;
} misfits[] = {
    {ESPER_TOPOLOGY_CNN, "embed 8 | linear", "embed is for text, and the data is images\n  embed 8 | linear\n  ^^^^^"},
    {ESPER_TOPOLOGY_CNN, "layer 2 | linear", "layer is for text, and the data is images"},
    {ESPER_TOPOLOGY_CNN, "conv 8 | linear",
     "linear takes rows, and this is a stream of images: put mean before it\n"
     "  conv 8 | linear\n           ^^^^^^"},
    {ESPER_TOPOLOGY_CNN, "conv 8 | linear 9 | mean | linear", "put mean before it"},
    {ESPER_TOPOLOGY_CNN, "mean | conv 8 | linear", "behind mean there are no images any more"},
    {ESPER_TOPOLOGY_CNN, "mean | mean | linear", "there is a mean before it"},
    {ESPER_TOPOLOGY_CNN, "[pool]x4 | mean | linear",
     "the image is 1x1 here and cannot be halved: leave out this pool\n  [pool]x4 | mean | linear\n   ^^^^"},
    {ESPER_TOPOLOGY_CNN, "[conv 8 | pool] residual | mean | linear",
     "a residual block keeps height and width: put pool and mean outside"},
    {ESPER_TOPOLOGY_CNN, "[mean] residual | linear", "put pool and mean outside"},
    {ESPER_TOPOLOGY_CNN, "conv 4 | mean | slot | linear", "behind mean nothing can grow"},
    {ESPER_TOPOLOGY_CNN, "conv 4 | slot | slot | mean | linear", "there is a slot at this place already"},
    {ESPER_TOPOLOGY_CNN, "[slot | conv 4] | mean | linear", "a slot stands behind a stage"},
    {ESPER_TOPOLOGY_CNN, "conv 4 | slot | conv 4 | slot r0c0 | mean | linear",
     "another slot has that place already: name that one"},
    {ESPER_TOPOLOGY_CNN, "[conv 1]x33 | mean | linear", "the host has 33 slots, and 32 at most can grow"},
    {ESPER_TOPOLOGY_CNN, "[[[conv 1 bare]x64]x64]x2 | mean | linear", "more stages than can be built"},
    {ESPER_TOPOLOGY_CNN, "conv 4 | mean | linear tied", "tied: the host has no embed"},
    {ESPER_TOPOLOGY_TRANSFORMER, "linear 8 | linear", "a host for text begins with embed, such as embed 128"},
    {ESPER_TOPOLOGY_TRANSFORMER, "embed 8 | mean | linear", "mean is for images, and the data is text"},
    {ESPER_TOPOLOGY_TRANSFORMER, "embed 8 | layer 3 | linear",
     "3 heads do not divide the stream, which is 8 wide here"},
    {ESPER_TOPOLOGY_TRANSFORMER, "embed 8 | linear 9 | linear tied", "tied: the stream is 9 wide here, and embed 8"},
    {ESPER_TOPOLOGY_MLP, "conv 8 | mean | linear", "conv is for images, and the data is a table"},
    {ESPER_TOPOLOGY_MLP, "linear 8 | pool | linear", "pool is for images, and the data is a table"},
    {ESPER_TOPOLOGY_MLP, "attention 1 | linear", "attention is for text, and the data is a table"},
};

static esper_host data_of(esper_topology topology)
{
    return topology == ESPER_TOPOLOGY_CNN ? images(9) : topology == ESPER_TOPOLOGY_MLP ? table() : text_of(6);
}

static void check_refused(const esper_host *host, const char *words)
{
    esper_net net;

    esper_net_init(&net);
    if (esper_host_build(host, &net) != ESPER_E_CONFIG)
        fail_msg("'%s' is not refused", host->text);
    if (strstr(esper_last_error(), words) == NULL)
        fail_msg("'%s' says\n%s\nwithout \"%s\"", host->text, esper_last_error(), words);
    esper_net_fini(&net);
}

static void test_hosts_that_cannot_take_the_data(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(misfits) / sizeof(misfits[0]); i++) {
        esper_host host = data_of(misfits[i].topology);

        give(&host, misfits[i].text);
        check_refused(&host, misfits[i].words);
    }
}

/* ------------------------------------------------------------------------------------------------ presets */

/* The same program, whether settings or the text that they make are given. */
static void check_same_by_text(const esper_host *host)
{
    esper_host by_text = *host;
    char *a, *b;
    esper_net net;

    require_good(esper_host_describe(host, by_text.text), "settings");
    if (host->topology == ESPER_TOPOLOGY_CNN)
        by_text.cnn.blocks = by_text.cnn.channels = by_text.cnn.kernel = by_text.cnn.pools = 0;
    else if (host->topology == ESPER_TOPOLOGY_MLP)
        by_text.mlp.layers = by_text.mlp.width = 0;
    else
        by_text.transformer.layers = by_text.transformer.width = by_text.transformer.segments = 0;
    require_good(small_build(&net, host, NULL), "by settings");
    a = small_text(&net);
    esper_net_fini(&net);
    require_good(small_build(&net, &by_text, NULL), by_text.text);
    b = small_text(&net);
    esper_net_fini(&net);
    assert_string_equal(a, b);
    free(a);
    free(b);
    check_prints(by_text.text, by_text.text); /* and it is in the printed form */
}

static void test_settings_make_texts(void **state)
{
    esper_host host;
    char text[ESPER_HOST_CHARS];

    (void)state;
    for (int blocks = 2; blocks <= 5; blocks++)
        for (int pools = 0; pools <= blocks; pools++) {
            host = spec_cnn(blocks, 2, 1 + 2 * (pools % 3), pools);
            check_same_by_text(&host);
        }
    for (int layers = 1; layers <= 6; layers++)
        for (int segments = 1; segments <= layers; segments++) {
            host = small_transformer(layers % 2 == 0 ? 0.1f : 0.0f);
            host.transformer.layers = layers;
            host.transformer.segments = segments;
            if (layers % segments == 0)
                check_same_by_text(&host);
        }
    for (int layers = 1; layers <= 4; layers++) {
        host = small_mlp(layers % 2 == 0 ? 0.1f : 0.0f);
        host.mlp.layers = layers;
        check_same_by_text(&host);
    }
    host = spec_cnn(3, 8, 5, 2);
    require_good(esper_host_describe(&host, text), "cnn");
    assert_string_equal(text, "conv 8 5x5 | pool | conv 16 5x5 | pool | conv 32 5x5 | mean | linear");
    host = spec_transformer();
    require_good(esper_host_describe(&host, text), "transformer");
    assert_string_equal(text, "embed 384 dropout 0.1 | [[layer 6 dropout 0.1]x2 | slot]x3 | norm | linear tied");
}

static void test_presets_are_sound(void **state)
{
    char text[ESPER_HOST_CHARS];

    (void)state;
    for (const esper_host_preset *preset = esper_host_presets(); preset->name != NULL; preset++) {
        bool built = false;

        check_prints(preset->text, preset->text);
        require_good(esper_host_text_resolve(preset->name, text), preset->name);
        assert_string_equal(text, preset->text);
        for (int topology = 0; topology < ESPER_N_TOPOLOGIES; topology++) {
            esper_host host = topology == ESPER_TOPOLOGY_CNN ? images(32) : data_of((esper_topology)topology);
            esper_net net;

            give(&host, preset->text);
            esper_net_init(&net);
            built |= esper_host_build(&host, &net) == ESPER_OK && net.n_boundaries > 1;
            esper_net_fini(&net);
        }
        if (!built)
            fail_msg("%s: %s", preset->name, esper_last_error());
    }
}

/* ------------------------------------------------------------------------------------------------ slots */

static void check_slots(const char *text, esper_topology topology, const char *only, const char *expected)
{
    esper_host host = topology == ESPER_TOPOLOGY_CNN ? images(32) : data_of(topology);
    char got[512] = "";
    esper_net net;

    give(&host, text);
    snprintf(host.slots, sizeof(host.slots), "%s", only);
    require_good(small_build(&net, &host, NULL), text);
    for (int k = 0; k < net.n_boundaries; k++)
        snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s:%d", k > 0 ? " " : "", net.boundaries[k].slot,
                 net.boundaries[k].order);
    assert_string_equal(got, expected);
    esper_net_fini(&net);
}

static void test_where_slots_stand(void **state)
{
    esper_host host = images(32);

    (void)state;
    check_slots("conv 2 | pool | conv 2 | conv 2 | pool | mean | linear", ESPER_TOPOLOGY_CNN, "",
                "r0c0:0 r1c0:3 r0c1:1 r0c2:2 r1c2:4");
    check_slots("pool | conv 2 | pool | pool | mean | linear 4 | linear", ESPER_TOPOLOGY_CNN, "",
                "r1c0:1 r0c0:0 r2c0:2 r3c0:3");
    check_slots("conv 2 bare | norm | relu | [[conv 4]x2]x2 residual | mean | linear", ESPER_TOPOLOGY_CNN, "",
                "r0c0:0 r0c1:1");
    check_slots("[conv 2 | [conv 2] residual]x2 | mean | linear", ESPER_TOPOLOGY_CNN, "",
                "r0c0:0 r0c1:1 r0c2:2 r0c3:3");
    check_slots("conv 2 | slot | pool | slot r4c4 | conv 3 | mean | linear", ESPER_TOPOLOGY_CNN, "", "r0c0:0 r4c4:1");
    check_slots("conv 2 | slot stem | pool | conv 3 | slot | conv 3 | slot late_2 | mean | linear", ESPER_TOPOLOGY_CNN,
                "", "stem:0 r0c1:1 late_2:2");
    check_slots("conv 2 | slot stem | pool | conv 3 | slot late | mean | linear", ESPER_TOPOLOGY_CNN, "late", "late:0");
    check_slots("conv 2 | pool | conv 2 | pool | mean | linear", ESPER_TOPOLOGY_CNN, "r1c1,r0c1", "r0c1:0 r1c1:1");
    check_slots("embed 4 | [layer 2]x3 | norm | linear tied", ESPER_TOPOLOGY_TRANSFORMER, "", "r0c0:0 r0c1:1 r0c2:2");
    check_slots("[norm | linear 7 bare] residual | linear 3 | linear", ESPER_TOPOLOGY_MLP, "r0c1", "r0c1:0");
    check_slots("[conv 1]x40 | mean | linear", ESPER_TOPOLOGY_CNN, "r0c39", "r0c39:0");
    give(&host, "conv 2 | pool | mean | linear");
    snprintf(host.slots, sizeof(host.slots), "r0c0,r1c1");
    check_refused(&host, "slots: the host has no slot 'r1c1'; did you mean 'r1c0'? It has r0c0, r1c0");
    give(&host, "mean | linear");
    check_refused(&host, "It has none");
}

/* ------------------------------------------------------------------------------------------------ scaling */

static void test_scaled_hosts(void **state)
{
    char text[ESPER_HOST_CHARS];
    int heads;
    float dropout;

    (void)state;
    require_good(esper_host_text_scale("conv 16 5x5 | [conv 3]x2 residual | mean | linear 10 | linear", 16, text),
                 "twice");
    assert_string_equal(text, "conv 32 5x5 | [conv 6]x2 residual | mean | linear 20 | linear");
    require_good(esper_host_text_scale("conv 16 | mean | linear", 1, text), "an eighth");
    assert_string_equal(text, "conv 2 | mean | linear");
    require_good(esper_host_text_scale("embed 24 | layer 4 | layer 6 | linear tied", 9, text), "nine eighths");
    assert_string_equal(text, "embed 36 | layer 4 | layer 6 | linear tied");
    assert_int_equal(esper_host_text_scale("conv 65536 | mean | linear", 9, text), ESPER_E_CONFIG);
    esper_host_text_layers("embed 8 | linear 4 | [attention 2 dropout 0.25] residual | layer 4 | linear", &heads,
                           &dropout);
    assert_int_equal(heads, 2);
    assert_true(dropout == 0.25f);
}

/* ------------------------------------------------------------------------------------------------ any text */

/* A random text of the grammar, with blanks, breaks and comments where they may stand. */
typedef struct writer {
    esper_rng      rng;
    esper_topology topology;
    char           text[2048];
    size_t         used;
    int            left, slots; /* stages it may still have; whether slots are written */
} writer;

static uint32_t draw(writer *w, uint32_t n)
{
    return esper_rng_below(&w->rng, n);
}

static void write(writer *w, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    w->used += (size_t)vsnprintf(w->text + w->used, sizeof(w->text) - w->used, format, args);
    va_end(args);
    assert_true(w->used < sizeof(w->text));
}

static void write_separator(writer *w)
{
    static const char *const ways[] = {" | ", "|", "\n", " # so\n", " |\n", "\n  | ", "\n\n"};

    write(w, "%s", ways[draw(w, 7)]);
}

static void write_dropout(writer *w)
{
    if (draw(w, 6) == 0)
        write(w, " dropout %g", 0.05 * (1 + draw(w, 9)));
}

static void write_stage(writer *w, int depth);

static void write_list(writer *w, int n, int depth)
{
    for (int i = 0; i < n; i++) {
        if (i > 0)
            write_separator(w);
        write_stage(w, depth);
    }
}

static void write_group(writer *w, int depth)
{
    bool residual = draw(w, 2) == 0;
    int slots = w->slots;

    write(w, "[%s", draw(w, 4) == 0 ? "\n" : "");
    w->slots = residual ? 0 : slots;
    write_list(w, 1 + (int)draw(w, 3), depth + 1);
    w->slots = slots;
    write(w, "]");
    if (residual && draw(w, 2) == 0)
        write(w, " residual "), residual = false;
    if (draw(w, 2) == 0)
        write(w, "%sx%u", draw(w, 2) == 0 ? "" : " ", 1 + draw(w, 3));
    if (residual)
        write(w, " residual");
}

static void write_stage(writer *w, int depth)
{
    uint32_t kind = draw(w, 12);

    if (w->left-- > 0 && depth < 3 && kind == 0)
        write_group(w, depth);
    else if (kind == 1)
        write(w, "norm");
    else if (kind == 2)
        write(w, draw(w, 2) == 0 ? "relu" : "gelu");
    else if (kind == 3)
        write(w, "dropout 0.%u", 1 + draw(w, 8));
    else if (w->topology == ESPER_TOPOLOGY_CNN) {
        if (kind == 4 && depth == 0)
            write(w, "pool");
        else {
            write(w, "conv %u%s%s", 1 + draw(w, 6),
                  draw(w, 4) == 0   ? " 1x1"
                  : draw(w, 6) == 0 ? " 5x5"
                                    : "",
                  draw(w, 5) == 0 ? " bare" : "");
            write_dropout(w);
        }
    } else if (w->topology == ESPER_TOPOLOGY_TRANSFORMER && kind < 10) {
        write(w, "%s %u", draw(w, 3) == 0 ? "attention" : "layer", 1 + draw(w, 2));
        write_dropout(w);
    } else {
        write(w, "linear %u%s", 2 * (1 + draw(w, 5)), draw(w, 4) == 0 ? " bare" : "");
        write_dropout(w);
    }
    if (w->slots != 0 && draw(w, 5) == 0) {
        write_separator(w);
        write(w, "slot");
        if (depth == 0 && draw(w, 3) == 0) /* not within what is repeated */
            write(w, " s_%zu", w->used);
    }
}

static void write_host(writer *w)
{
    if (w->topology == ESPER_TOPOLOGY_TRANSFORMER) {
        write(w, "embed %u", 2 * (1 + draw(w, 5)));
        write_dropout(w);
        write_separator(w);
    }
    write_list(w, 1 + (int)draw(w, 5), 0);
    write_separator(w);
    if (w->topology == ESPER_TOPOLOGY_CNN) {
        write(w, "mean");
        write_separator(w);
    }
    write(w, draw(w, 2) == 0 ? "linear" : "linear # the end\n");
}

/* A step of the network, alone; whether its loss is a number. */
static void train_a_step(const esper_host *host)
{
    small_desc desc = {.backend = "cpu", .n_threads = 1, .host = *host, .n_nets = 1};
    static small_fleet fleet;

    require_good(small_fleet_open(&fleet, &desc), host->text);
    require_good(small_fleet_step(&fleet, 0), host->text);
    if (!(small_fleet_loss(&fleet, 0) > 0.0 && small_fleet_loss(&fleet, 0) < 1e6))
        fail_msg("'%s' has the loss %g", host->text, small_fleet_loss(&fleet, 0));
    small_fleet_close(&fleet);
}

/* Parsed, printed, parsed again: equal; built, if it can be, and trained a step. What cannot be built is told. */
static bool try_text(uint32_t number)
{
    static esper_host_text first, second;
    static writer w;
    char printed[ESPER_HOST_CHARS], again[ESPER_HOST_CHARS];
    esper_host host;
    esper_net net;
    bool built;

    w = (writer){.topology = (esper_topology)(number % ESPER_N_TOPOLOGIES), .left = 12, .slots = number % 2 == 0};
    esper_rng_init(&w.rng, &(esper_rng_key){.seed = 5, .purpose = ESPER_RNG_TEST, .sample = number});
    write_host(&w);
    require_good(esper_host_text_parse(w.text, "host", ESPER_TEXT_HOST, &first), w.text);
    require_good(esper_host_text_print(&first, printed), w.text);
    require_good(esper_host_text_parse(printed, "host", ESPER_TEXT_HOST, &second), printed);
    if (!esper_host_text_equal(&first, &second))
        fail_msg("'%s' is printed as '%s', which says something else", w.text, printed);
    require_good(esper_host_text_print(&second, again), printed);
    assert_string_equal(again, printed);
    host = data_of(w.topology);
    give(&host, printed);
    esper_net_init(&net);
    built = esper_host_build(&host, &net) == ESPER_OK;
    if (!built && (strncmp(esper_last_error(), "host: ", 6) != 0 && strncmp(esper_last_error(), "the host", 8) != 0))
        fail_msg("'%s' fails with\n%s", printed, esper_last_error());
    esper_net_fini(&net);
    if (built)
        train_a_step(&host);
    return built;
}

static void test_random_texts(void **state)
{
    uint32_t n = HOST_TEXTS, n_built = 0;
    esper_mem_stats memory;

    (void)state;
    for (uint32_t i = 0; i < n; i++)
        n_built += try_text(i);
    print_message("%u texts, %u of them built and trained a step\n", n, n_built);
    assert_true(n_built > n / 2);
    esper_mem_stats_get(&memory);
    assert_int_equal(memory.n_live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printed_form),        cmocka_unit_test(test_mistakes_are_pointed_at),
        cmocka_unit_test(test_long_lines_are_cut),  cmocka_unit_test(test_hosts_that_cannot_take_the_data),
        cmocka_unit_test(test_settings_make_texts), cmocka_unit_test(test_presets_are_sound),
        cmocka_unit_test(test_where_slots_stand),   cmocka_unit_test(test_scaled_hosts),
        cmocka_unit_test(test_random_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
