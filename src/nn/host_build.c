/* The builder: repeats are written out, slots are named, then every stage appends its operations. */
#include "nn/host_build.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/suggest.h"
#include "nn/layer.h"

enum { MOST_STEPS = 256, MOST_SLOTS = 256, NO_SLOT = -1 };

/* A stage with repeats written out; of residual groups both ends. */
typedef struct step {
    int   stage;
    short ends;     /* 1: a residual block begins here, -1: it ends; 0 = a stage of its own */
    short slot;     /* index of the slot behind it, or NO_SLOT */
} step;

typedef struct slot {
    char name[ESPER_SLOT_CHARS];
    int  row, col;
    int  step;  /* it stands behind; -1: it takes new channels for `block` */
    int  block;
    bool kept; /* the host's `slots` have it */
} slot;

typedef struct builder {
    const esper_host *host;
    const char       *text;
    esper_host_text   parsed;
    step              steps[MOST_STEPS];
    int               n_steps;
    slot              slots[MOST_SLOTS];
    int               n_slots, n_cols; /* cols: slots in row 0 */
    esper_net        *net;
    int               table;           /* embedding, or ESPER_NO_TENSOR */
    int               n_blocks, n_layers, n_norms, n_attentions, n_shortcuts; /* so far */
    int               layers_at_slot;  /* n_layers at the last slot */
    const slot       *wide;            /* that takes new channels for the block before; NULL = none, or not yet */
    esper_wide        new_channels;    /* their way so far */
    int               width;           /* of a blueprint's stream; 0 = a host's */
    const float      *shrink;          /* of the linear layer that is being added; NULL = born as usual */
} builder;

static esper_status fail_at(const builder *b, const esper_host_stage *stage, const char *why)
{
    return esper_host_text_fail(ESPER_E_CONFIG, b->text, b->width > 0 ? "blueprint" : "host", stage->at, stage->length,
                                "%s", why);
}

/* ------------------------------------------------------------------------------------------------ repeats */

static esper_status push_step(builder *b, int stage, short ends)
{
    if (b->n_steps == MOST_STEPS)
        return fail_at(b, &b->parsed.stages[stage], "with all repeats the host has more stages than can be built");
    b->steps[b->n_steps++] = (step){.stage = stage, .ends = ends, .slot = NO_SLOT};
    return ESPER_OK;
}

static esper_status write_out(builder *b, int first, int end)
{
    for (int i = first; i < end; i++) {
        const esper_host_stage *stage = &b->parsed.stages[i];

        if (stage->kind != ESPER_HOST_STAGE_GROUP) {
            ESPER_TRY(push_step(b, i, 0));
            continue;
        }
        for (int copy = 0; copy < stage->repeat; copy++) {
            if (stage->residual)
                ESPER_TRY(push_step(b, i, 1));
            ESPER_TRY(write_out(b, i + 1, stage->end));
            if (stage->residual)
                ESPER_TRY(push_step(b, i, -1));
        }
        i = stage->end - 1;
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ slots */

static bool is_taken(const builder *b, int row, int col)
{
    for (int k = 0; k < b->n_slots; k++)
        if (b->slots[k].row == row && b->slots[k].col == col)
            return true;
    return false;
}

/* Whether the host's setting has it. */
static bool is_kept(const char *names, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = names; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return true;
    return names[0] == '\0';
}

/* `name` "": by its place. */
static esper_status push_slot(builder *b, int at, int row, int col, const char *name)
{
    slot *new;

    if (b->n_slots == MOST_SLOTS)
        return fail_at(b, &b->parsed.stages[b->steps[at].stage], "the host has more slots than can be counted");
    new = &b->slots[b->n_slots];
    *new = (slot){.row = row, .col = col, .step = at};
    if (name[0] != '\0')
        snprintf(new->name, sizeof(new->name), "%s", name);
    else
        snprintf(new->name, sizeof(new->name), "r%dc%d", row, col);
    new->kept = is_kept(b->host->slots, new->name);
    b->steps[at].slot = (short)b->n_slots++;
    b->n_cols += row == 0;
    return ESPER_OK;
}

/* Whether what a block makes is added up by one layer, through nothing but pools: a convolution, or the mean's linear layer. */
static bool feeds_one_layer(const builder *b, int from)
{
    bool meant = false;

    for (int s = from + 1; s < b->n_steps && b->steps[s].ends == 0; s++) {
        const esper_host_stage *stage = &b->parsed.stages[b->steps[s].stage];

        if (stage->kind == ESPER_HOST_STAGE_CONV)
            return !meant;
        if (stage->kind == ESPER_HOST_STAGE_LINEAR)
            return meant && !stage->tied && stage->size == 0;
        meant |= stage->kind == ESPER_HOST_STAGE_MEAN;
        if (stage->kind != ESPER_HOST_STAGE_POOL && stage->kind != ESPER_HOST_STAGE_SLOT &&
            stage->kind != ESPER_HOST_STAGE_MEAN)
            return false;
    }
    return false;
}

/* wide0 for blocks.0 and so on, in row 2. A shortcut would have to be widened, too: not inside residual blocks. */
static esper_status place_wide_slots(builder *b)
{
    int depth = 0, block = 0;

    for (int s = 0; s < b->n_steps; s++) {
        const esper_host_stage *stage = &b->parsed.stages[b->steps[s].stage];
        bool is_conv = b->steps[s].ends == 0 && stage->kind == ESPER_HOST_STAGE_CONV;
        slot new = {.row = 2, .col = block, .step = -1, .block = block};

        depth += b->steps[s].ends;
        block += is_conv || (b->steps[s].ends == 0 && stage->kind == ESPER_HOST_STAGE_LINEAR);
        if (!is_conv || stage->bare || stage->dropout > 0.0f || depth > 0 || !feeds_one_layer(b, s))
            continue;
        if (b->n_slots == MOST_SLOTS)
            return fail_at(b, stage, "the host has more slots than can be counted");
        while (is_taken(b, new.row, new.col))
            new.row++;
        snprintf(new.name, sizeof(new.name), "wide%d", block - 1);
        new.kept = is_kept(b->host->slots, new.name);
        b->slots[b->n_slots++] = new;
    }
    return ESPER_OK;
}

/* Row 0: behind blocks and layers, one column after the other. Below it, in the column of the block before: behind pools. A
 * name that is a place says where; a word leaves the place as it is. */
static esper_status name_slot(builder *b, int at, bool is_pool)
{
    const esper_host_stage *stage = &b->parsed.stages[b->steps[at].stage];
    int row = is_pool ? 1 : 0, col = is_pool && b->n_cols > 0 ? b->n_cols - 1 : 0;

    if (esper_host_slot_place(stage->slot, &row, &col)) {
        if (is_taken(b, row, col))
            return fail_at(b, stage, "another slot has that place already: name that one by a place, too");
        return push_slot(b, at, row, col, "");
    }
    while (is_taken(b, row, col))
        *(is_pool ? &row : &col) += 1;
    return push_slot(b, at, row, col, stage->slot);
}

/* Where slots stand, where the text does not say: behind what is whole by itself, but not where a shortcut goes past, nor where
 * the stream has lost the shape that blueprints keep. */
static esper_status place_slots(builder *b)
{
    bool named = false, flat = false, begun = false;
    int depth = 0;

    for (int i = 0; i < b->parsed.n; i++)
        named |= b->parsed.stages[i].kind == ESPER_HOST_STAGE_SLOT;
    for (int s = 0; s < b->n_steps; s++) {
        const esper_host_stage *stage = &b->parsed.stages[b->steps[s].stage];
        bool is_pool = stage->kind == ESPER_HOST_STAGE_POOL, is_slot = stage->kind == ESPER_HOST_STAGE_SLOT, here;

        depth += b->steps[s].ends;
        flat |= stage->kind == ESPER_HOST_STAGE_MEAN;
        here = is_pool || stage->kind == ESPER_HOST_STAGE_LAYER || stage->kind == ESPER_HOST_STAGE_ATTENTION ||
               b->steps[s].ends < 0 ||
               ((stage->kind == ESPER_HOST_STAGE_CONV || stage->kind == ESPER_HOST_STAGE_LINEAR) && !stage->bare &&
                stage->size > 0);
        if (is_slot && !begun)
            return fail_at(b, stage, "a slot stands behind a stage");
        begun |= !is_slot && b->steps[s].ends == 0;
        if (is_slot && flat)
            return fail_at(b, stage, "behind mean nothing can grow: seeds of images keep height and width");
        if (is_slot && s > 0 && b->steps[s - 1].slot != NO_SLOT)
            return fail_at(b, stage, "there is a slot at this place already");
        if (is_slot || (!named && here && depth == 0 && !flat))
            ESPER_TRY(name_slot(b, s, is_pool));
    }
    return ESPER_OK;
}

static int count_kept(const builder *b)
{
    int n = 0;

    for (int k = 0; k < b->n_slots; k++)
        n += b->slots[k].kept;
    return n;
}

/* Every name of the setting is a slot's, and no more slots are left than there is room for. */
static esper_status check_slots(const builder *b)
{
    char all[256] = "", name[ESPER_SLOT_CHARS], hint[ESPER_SUGGEST_TEXT_CHARS];
    int n_kept = count_kept(b);

    for (int k = 0; k < b->n_slots; k++)
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", k > 0 ? ", " : "", b->slots[k].name);
    for (const char *at = b->host->slots; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        esper_suggest suggest;
        bool found = false;

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, ","), at);
        esper_suggest_init(&suggest, name);
        for (int k = 0; k < b->n_slots; k++) {
            found |= strcmp(b->slots[k].name, name) == 0 && strcspn(at, ",") == strlen(name);
            esper_suggest_offer(&suggest, b->slots[k].name);
        }
        if (!found)
            return ESPER_FAIL(ESPER_E_CONFIG, "slots: the host has no slot '%s'%s It has %s", name,
                              suggest.best != NULL ? esper_suggest_text(&suggest, "", hint) : ".",
                              b->n_slots > 0 ? all : "none");
    }
    if (n_kept >= ESPER_MAX_REGIONS)
        return ESPER_FAIL(
            ESPER_E_CONFIG,
            "the host has %d slots, and %d at most can grow: put `slot` where they are wanted, or name some "
            "with --slots",
            n_kept, ESPER_MAX_REGIONS - 1);
    if (n_kept * (b->host->stack + 1) >= ESPER_MAX_REGIONS)
        return ESPER_FAIL(ESPER_E_CONFIG,
                          "stack = %d: %d slots that open again so often are %d, and %d at most can grow: a smaller "
                          "--stack, or fewer slots, named with --slots",
                          b->host->stack, n_kept, n_kept * (b->host->stack + 1), ESPER_MAX_REGIONS - 1);
    return ESPER_OK;
}

/* A slot's number for policies: by row, then column, of those that are kept. */
static int order_of(const builder *b, const slot *of)
{
    int order = 0;

    for (int k = 0; k < b->n_slots; k++)
        order += b->slots[k].kept &&
                 (b->slots[k].row < of->row || (b->slots[k].row == of->row && b->slots[k].col < of->col));
    return order;
}

/* The slots that open behind it, one behind the other, at the same place: r0c1, r0c1_2, r0c1_3. To policies they come behind all
 * others, so that these have the numbers they always had. */
static int offer_stack(builder *b, esper_boundary boundary, int x)
{
    char first[ESPER_SLOT_CHARS];
    int n_kept = count_kept(b);

    memcpy(first, boundary.slot, sizeof(first));
    for (int level = 0; level <= b->host->stack; level++) {
        if (level > 0 && snprintf(boundary.slot, sizeof(boundary.slot), "%.*s_%d", (int)sizeof(first), first,
                                  level + 1) >= (int)sizeof(boundary.slot)) {
            if (b->net->status == ESPER_OK)
                b->net->status = ESPER_FAIL(ESPER_E_CONFIG, "slot %s cannot open again: its name is too long for %s_%d",
                                            first, first, level + 1);
            return ESPER_NO_TENSOR;
        }
        x = esper_net_boundary(b->net, boundary, x);
        boundary.order += n_kept;
    }
    return x;
}

/* wide: what a slot of new channels is made by; NULL = the slot is none. */
static int offer_boundary(builder *b, const slot *at, const esper_wide *wide, int x)
{
    const esper_tensor *in = x != ESPER_NO_TENSOR ? &b->net->tensors[x] : NULL;
    bool images = b->host->topology == ESPER_TOPOLOGY_CNN, text = b->host->topology == ESPER_TOPOLOGY_TRANSFORMER;
    int beside = at->row > 0 ? 1 : 0, of = images ? 2 * b->n_cols : b->n_cols,
        index = images ? 2 * at->col + 1 + beside : at->col + 1;
    esper_boundary boundary = {
        .row = at->row,
        .col = at->col,
        .order = order_of(b, at),
        .channels = in == NULL ? 1 : in->dim[in->rank == 3 ? 0 : in->rank - 1],
        .position = of > 0 && index < of ? (float)index / (float)of : 1.0f,
        .layer_begin = text ? b->layers_at_slot : at->col,
        .layer_end = text ? b->n_layers : at->col + 1,
        .surface = !images        ? ESPER_SURFACE_BLOCK_END
                   : at->row == 0 ? ESPER_SURFACE_PRE_POOL
                                  : ESPER_SURFACE_POST_POOL,
    };

    if (wide != NULL)
        boundary.wide = *wide;
    memcpy(boundary.slot, at->name, sizeof(boundary.slot));
    b->layers_at_slot = b->n_layers;
    return at->kept ? offer_stack(b, boundary, x) : x;
}

/* ------------------------------------------------------------------------------------------------ stages */

/* The tensor's rank, and a dimension; 0 and 1 once building has failed, which the net remembers. */
static int rank_of(const builder *b, int x)
{
    return x == ESPER_NO_TENSOR ? 0 : b->net->tensors[x].rank;
}

static int dim_of(const builder *b, int x, int i)
{
    return x == ESPER_NO_TENSOR ? 1 : b->net->tensors[x].dim[i];
}

/* Channels of (C,H,W), width of (T,D) and (D). */
static int width_of(const builder *b, int x)
{
    return rank_of(b, x) == 0 ? 1 : dim_of(b, x, rank_of(b, x) == 2 ? 1 : 0);
}

static const char *number_name(const char *what, int number, const char *part, char name[ESPER_NAME_CHARS])
{
    snprintf(name, ESPER_NAME_CHARS, "%s.%d%s%s", what, number, part[0] != '\0' ? "." : "", part);
    return name;
}

/* What the data is, for people. */
static const char *data_word(const builder *b)
{
    static const char *const words[ESPER_N_TOPOLOGIES] = {
        [ESPER_TOPOLOGY_CNN] = "images", [ESPER_TOPOLOGY_TRANSFORMER] = "text", [ESPER_TOPOLOGY_MLP] = "a table"};

    return words[b->host->topology];
}

static esper_status fail_data(const builder *b, const esper_host_stage *stage, const char *wants)
{
    return esper_host_text_fail(ESPER_E_CONFIG, b->text, "host", stage->at, stage->length,
                                "%s is for %s, and the data is %s", esper_host_stage_word(stage->kind), wants,
                                data_word(b));
}

/* Channels or width that a stage makes. */
static int size_of(const builder *b, const esper_host_stage *stage)
{
    int part = stage->part > 0 ? b->width / stage->part : 0;

    return stage->size > 0 ? stage->size : stage->times > 0 ? stage->times * b->width : part > 0 ? part : 1;
}

/* New channels set out from what goes into their layer ... */
static void send_new_channels(builder *b, const esper_host_stage *stage, int block, int source)
{
    b->wide = NULL;
    for (int k = 0; k < b->n_slots; k++)
        if (b->slots[k].step < 0 && b->slots[k].block == block && b->slots[k].kept)
            b->wide = &b->slots[k];
    b->new_channels = (esper_wide){.channels = size_of(b, stage), .source = source, .kernel = stage->kernel};
}

/* ... and arrive where the next one has added up its own, x. */
static int take_new_channels(builder *b, int kernel, int x)
{
    const slot *at = b->wide;

    b->wide = NULL;
    b->new_channels.next = kernel;
    return at != NULL ? offer_boundary(b, at, &b->new_channels, x) : x;
}

static esper_status add_conv(builder *b, const esper_host_stage *stage, int *x)
{
    char name[ESPER_NAME_CHARS];
    int block = b->n_blocks++, source = *x;

    if (rank_of(b, *x) != 3)
        return b->host->topology == ESPER_TOPOLOGY_CNN ? fail_at(b, stage, "behind mean there are no images any more")
                                                       : fail_data(b, stage, "images");
    *x = esper_layer_conv(b->net, number_name("blocks", block, "conv", name), *x,
                          (esper_conv){dim_of(b, *x, 0), size_of(b, stage), stage->kernel, 1});
    *x = take_new_channels(b, stage->kernel, *x);
    send_new_channels(b, stage, block, source);
    if (!stage->bare) {
        *x = esper_layer_batch_norm(b->net, number_name("blocks", block, "bn", name), *x, 1.0f);
        *x = esper_net_relu(b->net, *x);
    }
    *x = esper_net_dropout(b->net, *x, stage->dropout);
    return ESPER_OK;
}

static esper_status add_linear(builder *b, const esper_host_stage *stage, int *x)
{
    char name[ESPER_NAME_CHARS];
    int block = b->n_blocks++;

    if (rank_of(b, *x) == 3)
        return fail_at(b, stage, "linear takes rows, and this is a stream of images: put mean before it");
    *x = esper_layer_linear(b->net, number_name("blocks", block, "linear", name), *x,
                            (esper_linear){.in = width_of(b, *x),
                                           .out = size_of(b, stage),
                                           .bias = true,
                                           .zero = b->shrink != NULL && *b->shrink == 0.0f,
                                           .shrink = b->shrink != NULL ? *b->shrink : 0.0f});
    if (!stage->bare)
        *x = esper_net_relu(b->net, esper_layer_layer_norm(b->net, number_name("blocks", block, "norm", name), *x));
    *x = esper_net_dropout(b->net, *x, stage->dropout);
    return ESPER_OK;
}

/* The last layer: its width is what there is to tell apart. */
static esper_status add_head(builder *b, const esper_host_stage *stage, int *x)
{
    const esper_host *host = b->host;
    int out = host->topology == ESPER_TOPOLOGY_CNN           ? host->cnn.classes
              : host->topology == ESPER_TOPOLOGY_TRANSFORMER ? host->transformer.vocab
                                                             : host->mlp.classes;

    if (rank_of(b, *x) == 3)
        return fail_at(b, stage, "linear takes rows, and this is a stream of images: put mean before it");
    if (!stage->tied) {
        *x = esper_layer_linear(b->net, "classifier", *x,
                                (esper_linear){.in = width_of(b, *x), .out = out, .bias = true});
        *x = take_new_channels(b, 0, *x);
        return ESPER_OK;
    }
    if (b->table == ESPER_NO_TENSOR)
        return fail_at(b, stage, "tied: the host has no embed to share weights with");
    if (width_of(b, *x) != dim_of(b, b->table, 1))
        return esper_host_text_fail(ESPER_E_CONFIG, b->text, "host", stage->at, stage->length,
                                    "tied: the stream is %d wide here, and embed %d", width_of(b, *x),
                                    dim_of(b, b->table, 1));
    *x = esper_net_linear(b->net, *x, b->table, ESPER_NO_TENSOR); /* one tensor: gradients add up */
    return ESPER_OK;
}

static esper_status add_pool(builder *b, const esper_host_stage *stage, int *x)
{
    if (b->host->topology != ESPER_TOPOLOGY_CNN)
        return fail_data(b, stage, "images");
    if (rank_of(b, *x) != 3)
        return fail_at(b, stage, "behind mean there are no images any more");
    if (dim_of(b, *x, 1) < 2 || dim_of(b, *x, 2) < 2)
        return esper_host_text_fail(ESPER_E_CONFIG, b->text, "host", stage->at, stage->length,
                                    "the image is %dx%d here and cannot be halved: leave out this pool",
                                    dim_of(b, *x, 1), dim_of(b, *x, 2));
    *x = esper_net_max_pool(b->net, *x);
    b->new_channels.halvings++;
    return ESPER_OK;
}

static esper_status add_norm(builder *b, bool is_last, int *x)
{
    char name[ESPER_NAME_CHARS];

    if (is_last && b->host->topology == ESPER_TOPOLOGY_TRANSFORMER) {
        *x = esper_layer_layer_norm(b->net, "ln_f", *x);
        return ESPER_OK;
    }
    number_name("norms", b->n_norms++, "", name);
    *x =
        rank_of(b, *x) == 3 ? esper_layer_batch_norm(b->net, name, *x, 1.0f) : esper_layer_layer_norm(b->net, name, *x);
    return ESPER_OK;
}

static esper_status add_embed(builder *b, const esper_host_stage *stage, int *x)
{
    const esper_host_transformer *host = &b->host->transformer;
    esper_init init = {ESPER_INIT_NORMAL, host->embed_std};
    int positions;

    if (b->host->topology != ESPER_TOPOLOGY_TRANSFORMER)
        return fail_data(b, stage, "text");
    b->table = esper_net_param(b->net, "tok_emb.weight", 2, (int[]){host->vocab, stage->size}, init);
    positions = esper_net_param(b->net, "pos_emb.weight", 2, (int[]){host->context, stage->size}, init);
    *x = esper_net_dropout(b->net, esper_net_embedding(b->net, *x, b->table, positions), stage->dropout);
    return ESPER_OK;
}

/* Layers and attention alone want a stream (T,D) that their heads divide. */
static esper_status check_heads(const builder *b, const esper_host_stage *stage, int x)
{
    if (b->host->topology != ESPER_TOPOLOGY_TRANSFORMER)
        return fail_data(b, stage, "text");
    if (rank_of(b, x) == 2 && width_of(b, x) % stage->size != 0)
        return esper_host_text_fail(ESPER_E_CONFIG, b->text, "host", stage->at, stage->length,
                                    "%d heads do not divide the stream, which is %d wide here", stage->size,
                                    width_of(b, x));
    return ESPER_OK;
}

static esper_status add_layer(builder *b, const esper_host_stage *stage, int *x)
{
    char prefix[ESPER_NAME_CHARS];

    ESPER_TRY(check_heads(b, stage, *x));
    snprintf(prefix, sizeof(prefix), "layers.%d.", b->n_layers++);
    *x = esper_layer_transformer(b->net, prefix, *x,
                                 (esper_transformer){.heads = stage->size, .dropout = stage->dropout});
    return ESPER_OK;
}

static esper_status add_attention(builder *b, const esper_host_stage *stage, int *x)
{
    char name[ESPER_NAME_CHARS];
    int index = b->n_attentions++, d;

    ESPER_TRY(check_heads(b, stage, *x));
    d = width_of(b, *x);
    *x = esper_layer_linear(b->net, number_name("attentions", index, "qkv", name), *x,
                            (esper_linear){.in = d, .out = 3 * d, .bias = true});
    *x = esper_net_attention(b->net, *x, stage->size, stage->dropout);
    *x = esper_layer_linear(b->net, number_name("attentions", index, "proj", name), *x,
                            (esper_linear){.in = d, .out = d, .bias = true});
    return ESPER_OK;
}

static esper_status add_stage(builder *b, const esper_host_stage *stage, bool is_last, int *x)
{
    bool text = b->host->topology == ESPER_TOPOLOGY_TRANSFORMER && b->width == 0;

    if (text && b->table == ESPER_NO_TENSOR && stage->kind != ESPER_HOST_STAGE_EMBED)
        return fail_at(b, stage, "a host for text begins with embed, such as embed 128");
    switch (stage->kind) {
    case ESPER_HOST_STAGE_CONV:
        return add_conv(b, stage, x);
    case ESPER_HOST_STAGE_LINEAR:
        return stage->size + stage->times + stage->part > 0 ? add_linear(b, stage, x) : add_head(b, stage, x);
    case ESPER_HOST_STAGE_POOL:
        return add_pool(b, stage, x);
    case ESPER_HOST_STAGE_NORM:
        return add_norm(b, is_last, x);
    case ESPER_HOST_STAGE_RELU:
        *x = esper_net_relu(b->net, *x);
        return ESPER_OK;
    case ESPER_HOST_STAGE_GELU:
        *x = esper_net_gelu(b->net, *x);
        return ESPER_OK;
    case ESPER_HOST_STAGE_DROPOUT:
        *x = esper_net_dropout(b->net, *x, stage->dropout);
        return ESPER_OK;
    case ESPER_HOST_STAGE_MEAN:
        if (b->host->topology != ESPER_TOPOLOGY_CNN)
            return fail_data(b, stage, "images");
        if (rank_of(b, *x) != 3)
            return fail_at(b, stage, "there is a mean before it");
        *x = esper_net_global_mean(b->net, *x);
        return ESPER_OK;
    case ESPER_HOST_STAGE_EMBED:
        return add_embed(b, stage, x);
    case ESPER_HOST_STAGE_LAYER:
        return add_layer(b, stage, x);
    case ESPER_HOST_STAGE_ATTENTION:
        return add_attention(b, stage, x);
    default: /* a slot: the step has it */
        return ESPER_OK;
    }
}

/* y = block(x) + x, or what a linear map makes of x where the block changes its width. */
static esper_status add_shortcut(builder *b, const esper_host_stage *stage, int from, int *x)
{
    char name[ESPER_NAME_CHARS];
    bool image = rank_of(b, from) == 3;
    int in = width_of(b, from), out = width_of(b, *x);

    if (*x == from)
        return fail_at(b, stage, "this residual block does nothing");
    if (rank_of(b, from) != rank_of(b, *x) ||
        (image && (dim_of(b, from, 1) != dim_of(b, *x, 1) || dim_of(b, from, 2) != dim_of(b, *x, 2))))
        return fail_at(b, stage, "a residual block keeps height and width: put pool and mean outside");
    if (in != out && image) {
        from = esper_layer_conv(b->net, number_name("shortcuts", b->n_shortcuts, "conv", name), from,
                                (esper_conv){in, out, 1, 1});
        from = esper_layer_batch_norm(b->net, number_name("shortcuts", b->n_shortcuts++, "bn", name), from, 1.0f);
    } else if (in != out)
        from = esper_layer_linear(b->net, number_name("shortcuts", b->n_shortcuts++, "linear", name), from,
                                  (esper_linear){.in = in, .out = out});
    *x = esper_net_add(b->net, from, *x);
    return ESPER_OK;
}

static int add_input(const builder *b)
{
    const esper_host *host = b->host;
    const esper_host_transformer *text = &host->transformer;

    switch (host->topology) {
    case ESPER_TOPOLOGY_CNN:
        return esper_net_input(b->net, "images", ESPER_F32, 3,
                               (int[]){host->cnn.in_channels, host->cnn.height, host->cnn.width});
    case ESPER_TOPOLOGY_MLP:
        return esper_net_input(b->net, "features", ESPER_F32, 1, &host->mlp.features);
    default:
        return esper_net_input(b->net, "tokens", ESPER_I32, 1, text->tokens > 0 ? &text->tokens : &text->context);
    }
}

static esper_status add_all(builder *b, int *logits_out)
{
    int before[ESPER_HOST_DEPTH + 1], depth = 0, x = b->net->input = add_input(b);

    for (int s = 0; s < b->n_steps; s++) {
        const step *at = &b->steps[s];
        const esper_host_stage *stage = &b->parsed.stages[at->stage];

        ESPER_TRY(esper_net_status(b->net)); /* from here on there is a stream */
        if (at->ends > 0) {
            assert(depth < ESPER_HOST_DEPTH);
            before[depth++] = x;
        } else if (at->ends < 0)
            ESPER_TRY(add_shortcut(b, stage, before[--depth], &x));
        else
            ESPER_TRY(add_stage(b, stage, s == b->n_steps - 2, &x));
        if (at->slot != NO_SLOT)
            x = offer_boundary(b, &b->slots[at->slot], NULL, x);
    }
    *logits_out = x;
    return esper_net_status(b->net);
}

static esper_status build(builder *b, int *logits_out)
{
    ESPER_TRY(esper_host_text_parse(b->text, "host", ESPER_TEXT_HOST, &b->parsed));
    ESPER_TRY(write_out(b, 0, b->parsed.n));
    ESPER_TRY(place_slots(b));
    if (b->host->widen && b->host->topology == ESPER_TOPOLOGY_CNN)
        ESPER_TRY(place_wide_slots(b));
    ESPER_TRY(check_slots(b));
    return add_all(b, logits_out);
}

esper_status esper_host_build_text(const esper_host *host, const char *text, esper_net *net, int *logits_out)
{
    builder *b = esper_mem_alloc(sizeof(*b));
    esper_status status;

    if (b == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "host");
    b->host = host;
    b->text = text;
    b->net = net;
    b->table = ESPER_NO_TENSOR;
    status = build(b, logits_out);
    esper_mem_free(b);
    return status;
}

/* ------------------------------------------------------------------------------------------------ blueprints */

/* Steps of a blueprint. The last one for tokens and rows is what a birth scales. */
static esper_status add_seed(builder *b, float shrink, int *x)
{
    int before[ESPER_HOST_DEPTH + 1], depth = 0, first = *x;
    const step *last = &b->steps[b->n_steps - 1];
    const esper_host_stage *end = &b->parsed.stages[last->stage];
    bool image = rank_of(b, first) == 3;

    if (!image && (last->ends != 0 || end->kind != ESPER_HOST_STAGE_LINEAR || !end->bare || end->dropout > 0.0f))
        return fail_at(b, end, "a blueprint for text or tables ends in linear w bare, which is what its birth scales");
    for (int s = 0; s < b->n_steps; s++) {
        const step *at = &b->steps[s];
        const esper_host_stage *stage = &b->parsed.stages[at->stage];

        ESPER_TRY(esper_net_status(b->net));
        if (at->ends > 0) {
            assert(depth < ESPER_HOST_DEPTH);
            before[depth++] = *x;
        } else if (at->ends < 0)
            ESPER_TRY(add_shortcut(b, stage, before[--depth], x));
        else {
            b->shrink = at == last && !image ? &shrink : NULL;
            ESPER_TRY(add_stage(b, stage, false, x));
            b->shrink = NULL;
        }
    }
    ESPER_TRY(esper_net_status(b->net));
    if (*x == first)
        return fail_at(b, end, "a blueprint has to do something");
    if (rank_of(b, *x) != rank_of(b, first) || width_of(b, *x) != b->width)
        return esper_host_text_fail(ESPER_E_CONFIG, b->text, "blueprint", end->at, end->length,
                                    "a blueprint keeps the width of the stream: it ends %d wide on one of %d",
                                    width_of(b, *x), b->width);
    return ESPER_OK;
}

static esper_status build_seed(builder *b, float shrink, int *x)
{
    ESPER_TRY(esper_host_text_parse(b->text, "blueprint", ESPER_TEXT_BLUEPRINT, &b->parsed));
    ESPER_TRY(write_out(b, 0, b->parsed.n));
    return add_seed(b, shrink, x);
}

int esper_text_build_seed(esper_net *net, const char *text, int x, float shrink)
{
    static const esper_topology topologies[] = {ESPER_TOPOLOGY_MLP, ESPER_TOPOLOGY_MLP, ESPER_TOPOLOGY_TRANSFORMER,
                                                ESPER_TOPOLOGY_CNN};
    esper_host *host = esper_mem_alloc(sizeof(*host));
    builder *b = esper_mem_alloc(sizeof(*b));
    esper_status status = ESPER_E_NOMEM;

    if (b == NULL || host == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "blueprint");
    else if (x == ESPER_NO_TENSOR)
        status = esper_net_status(net);
    else {
        host->topology = topologies[net->tensors[x].rank];
        *b = (builder){.host = host, .text = text, .net = net, .table = ESPER_NO_TENSOR};
        b->width = width_of(b, x);
        status = build_seed(b, shrink, &x);
    }
    esper_mem_free(b);
    esper_mem_free(host);
    if (status != ESPER_OK && net->status == ESPER_OK)
        net->status = status;
    return net->status == ESPER_OK ? x : ESPER_NO_TENSOR;
}
