/* Checkpoints. Tensors are named <family>/<tensor>, everything else is text in the file's notes. */
#include "run/checkpoint.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/build_info.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "nn/blueprint_text.h"
#include "nn/init.h"

enum { NOTE_CHARS = 128, MAX_NOTES = 25 };

/* The families that are saved; gradients are not state. */
static const esper_family families[] = {ESPER_FAMILY_PARAM, ESPER_FAMILY_BUFFER, ESPER_FAMILY_MOMENT1,
                                        ESPER_FAMILY_MOMENT2};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

#define ALL_BUT_GRADIENTS (~ESPER_FAMILY_BIT(ESPER_FAMILY_GRAD))

/* Calls `visit` for every (family, tensor) the network's state consists of, with its values in the slab or in a mirror of it. */
typedef esper_status (*state_visitor)(void *context, esper_family family, const esper_tensor *tensor, float *values);

static esper_status visit_state(const esper_network *network, const esper_slab *slab, state_visitor visit,
                                void *context)
{
    for (int f = 0; f < N_FAMILIES; f++)
        for (int t = 0; t < network->net.n_tensors; t++) {
            const esper_tensor *tensor = &network->net.tensors[t];
            float *values = NULL;

            if (tensor->role == ESPER_ROLE_PARAM || tensor->role == ESPER_ROLE_BUFFER)
                values = esper_slab_at(slab, families[f], tensor);
            if (values != NULL)
                ESPER_TRY(visit(context, families[f], tensor, values));
        }
    return ESPER_OK;
}

static void state_name(char *name, size_t chars, esper_family family, const esper_tensor *tensor)
{
    snprintf(name, chars, "%s/%s", esper_family_name(family), tensor->name);
}

static void shape_of(const esper_tensor *tensor, uint64_t *shape)
{
    for (int i = 0; i < tensor->rank; i++)
        shape[i] = (uint64_t)tensor->dim[i];
}

/* What the network was trained on; not in checkpoints of 0.1. */
static const char data_note[] = "data_hash";
/* Names of its classes; not in checkpoints of text, nor in older ones. */
static const char classes_note[] = "classes";
/* What is to be known of the data to use the network without it (data/dataset.h); not in older ones. */
static const char about_data_note[] = "data";

/* ------------------------------------------------------------------------------------------------ hashing */

/* The hash over everything in a file but itself, notes first: damage that the format cannot show is found here, be it
 * in a weight, a moment, the cursor or the configuration. Its note is the last one. */
static const char contents_hash_note[] = "contents_hash";

static uint64_t hash_text(const char *text, uint64_t hash)
{
    return XXH64(text, strlen(text) + 1, hash); /* with the zero at its end: "ab" "c" is not "a" "bc" */
}

static uint64_t hash_note(const esper_safetensors_note *note, uint64_t hash)
{
    return hash_text(note->value, hash_text(note->key, hash));
}

static uint64_t hash_tensor(const esper_safetensors_tensor *tensor, uint64_t n_bytes, uint64_t hash)
{
    hash = hash_text(tensor->name, hash);
    hash = XXH64(tensor->shape, (size_t)tensor->rank * sizeof(tensor->shape[0]), hash);
    return XXH64(tensor->data, (size_t)n_bytes, hash);
}

/* ------------------------------------------------------------------------------------------------ saving */

/* Everything a file is written from. */
typedef struct draft {
    esper_slab mirror; /* what the tensors' data points into */
    esper_safetensors_tensor *tensors;
    char (*names)[ESPER_NAME_CHARS + 16];
    size_t n_tensors;
    char   config[ESPER_CONFIG_RECORD_CHARS];
    char   texts[MAX_NOTES][NOTE_CHARS];
    esper_safetensors_note notes[MAX_NOTES];
    size_t n_notes;
    esper_page optim, detour, slots, classes,
        data; /* notes of any length; but for the first "": there is no such note */
    esper_page parts[ESPER_MAX_PARTS];
} draft;

static esper_status add_tensor(void *context, esper_family family, const esper_tensor *tensor, float *values)
{
    draft *out = context;
    esper_safetensors_tensor *entry = &out->tensors[out->n_tensors];
    char *name = out->names[out->n_tensors];

    state_name(name, sizeof(out->names[0]), family, tensor);
    *entry =
        (esper_safetensors_tensor){.name = name, .dtype = ESPER_SAFETENSORS_F32, .rank = tensor->rank, .data = values};
    shape_of(tensor, entry->shape);
    out->n_tensors++;
    return ESPER_OK;
}

static void add_note(draft *out, const char *key, const char *value)
{
    assert(out->n_notes < MAX_NOTES);
    out->notes[out->n_notes++] = (esper_safetensors_note){key, value};
}

__attribute__((format(printf, 3, 4))) static void add_number(draft *out, const char *key, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(out->texts[out->n_notes], NOTE_CHARS, format, args);
    va_end(args);
    add_note(out, key, out->texts[out->n_notes]);
}

/* Over tensors and notes as they will be read again: all tensors have one type, so the file keeps their order. */
static uint64_t hash_draft(const draft *out)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < out->n_notes; i++)
        hash = hash_note(&out->notes[i], hash);
    for (size_t i = 0; i < out->n_tensors; i++) {
        const esper_safetensors_tensor *tensor = &out->tensors[i];
        uint64_t n_bytes = sizeof(float);

        for (int d = 0; d < tensor->rank; d++)
            n_bytes *= tensor->shape[d];
        hash = hash_tensor(tensor, n_bytes, hash);
    }
    return hash;
}

/* The network's hash, of the copy that is written: a device that is lost meanwhile cannot be asked. */
static uint64_t hash_weights(const esper_net *net, const esper_slab *mirror)
{
    uint64_t hash = 0;

    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        esper_family family = tensor->role == ESPER_ROLE_PARAM ? ESPER_FAMILY_PARAM : ESPER_FAMILY_BUFFER;

        if (tensor->role == ESPER_ROLE_PARAM || tensor->role == ESPER_ROLE_BUFFER)
            hash = esper_weight_hash_add(hash, tensor, esper_slab_at(mirror, family, tensor));
    }
    return hash;
}

static void add_notes(draft *out, const esper_network *network)
{
    const esper_cursor *cursor = &network->cursor;
    const esper_tally *tally = &network->tally;
    char loss[ESPER_NUMBER_CHARS], lr[ESPER_NUMBER_CHARS], grad_norm[ESPER_NUMBER_CHARS];

    esper_config_write(&network->engine->config, out->config);
    esper_number_write_real(tally->loss, loss);
    esper_number_write_real(network->lr, lr);
    esper_number_write_real(network->grad_norm, grad_norm);
    add_note(out, "format", ESPER_CHECKPOINT_FORMAT);
    add_number(out, "format_version", "%d", ESPER_CHECKPOINT_VERSION);
    add_note(out, "esper_version", ESPER_VERSION);
    add_note(out, "commit", esper_build_commit());
    add_note(out, "task", network->engine->task);
    add_note(out, "config", out->config);
    add_note(out, "kernels", esper_backend_identity(network->engine->backend));
    add_number(out, data_note, "%016" PRIx64, esper_dataset_hash(network->engine->data));
    add_number(out, "seed", "%" PRIu64, network->seed);
    add_number(out, "cursor", "epoch %" PRIu32 " batch %" PRIu32 " step %" PRIu64 " spent %" PRIu64 " of %" PRIu64,
               cursor->epoch, cursor->batch, cursor->step, cursor->spent, network->budget);
    add_number(out, "tally", "loss %s correct %" PRIu64 " targets %" PRIu64 " samples %" PRIu64, loss, tally->correct,
               tally->targets, tally->samples);
    /* Not needed to go on, but the end of an epoch tells of it, and a run may have been stopped right before that. */
    add_number(out, "last_step", "lr %s grad_norm %s", lr, grad_norm);
    add_note(out, "optim", out->optim.text);
    if (out->detour.used > 0)
        add_note(out, "detour", out->detour.text);
    if (out->slots.used > 0)
        add_note(out, "slots", out->slots.text);
    if (out->classes.used > 0)
        add_note(out, classes_note, out->classes.text);
    add_note(out, about_data_note, out->data.text);
    for (int i = 0; i < network->n_parts; i++)
        if (out->parts[i].used > 0)
            add_note(out, network->parts[i].name, out->parts[i].text);
    add_number(out, "weight_hash", "%016" PRIx64, hash_weights(&network->net, &out->mirror));
    add_number(out, contents_hash_note, "%016" PRIx64, hash_draft(out));
}

static bool is_ahead(const esper_place *place, const esper_network *network)
{
    const esper_cursor *cursor = &network->cursor;

    return place->draw == network->detour.draw &&
           (place->epoch > cursor->epoch || (place->epoch == cursor->epoch && place->batch >= cursor->batch));
}

/* Only where there is one: "draw 0 lr_scale 0x1p+0 pass 3:17 3:18". Batches behind the cursor no longer matter. */
static void write_detour(esper_page *out, const esper_network *network)
{
    const esper_detour *detour = &network->detour;
    uint32_t n_ahead = 0;

    for (uint32_t i = 0; i < detour->n_passed; i++)
        n_ahead += is_ahead(&detour->passed[i], network);
    if (n_ahead == 0 && detour->draw == 0 && detour->lr_scale >= 1.0)
        return;
    esper_page_print(out, "draw %" PRIu32 " lr_scale %a pass", detour->draw, detour->lr_scale);
    for (uint32_t i = 0; i < detour->n_passed; i++)
        if (is_ahead(&detour->passed[i], network))
            esper_page_print(out, " %" PRIu32 ":%" PRIu32, detour->passed[i].epoch, detour->passed[i].batch);
}

/* The slot table, where a seed is or was in it: two hexadecimal digits for each byte. */
static esper_status write_slots(esper_page *out, const esper_slots *slots)
{
    size_t n = esper_slots_pack_bytes(slots);
    uint8_t *bytes;
    bool used = false;

    for (int k = 0; k < slots->n; k++)
        used = used || slots->slot[k].n_seeds > 0;
    if (!used)
        return ESPER_OK;
    bytes = esper_mem_alloc(n);
    if (bytes == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "checkpoint: %d slots", slots->n);
    esper_slots_pack(slots, bytes);
    for (size_t i = 0; i < n; i++)
        esper_page_print(out, "%02x", bytes[i]);
    esper_mem_free(bytes);
    return ESPER_OK;
}

/* The names of what it tells apart, a JSON list. */
static esper_status write_classes(esper_page *out, const esper_dataset *data)
{
    const esper_dataset_info *info = esper_dataset_info_get(data);
    size_t room = 16;
    esper_json json;
    char *text;

    if (info->kind == ESPER_DATASET_TOKENS)
        return ESPER_OK;
    for (int c = 0; c < info->classes; c++)
        room += 6 * strlen(esper_dataset_class_name(data, c)) + 8;
    text = esper_mem_alloc(room);
    if (text == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "checkpoint: names of %d classes", info->classes);
    esper_json_init(&json, text, room);
    esper_json_array_begin(&json);
    for (int c = 0; c < info->classes; c++)
        esper_json_text(&json, esper_dataset_class_name(data, c));
    esper_json_array_end(&json);
    assert(!json.overflow);
    esper_page_print(out, "%s", text);
    esper_mem_free(text);
    return ESPER_OK;
}

static esper_status write_draft(draft *out, const esper_network *network, const char *path)
{
    size_t most = (size_t)network->net.n_tensors * N_FAMILIES;
    bool failed;

    out->tensors = esper_mem_alloc(most * sizeof(*out->tensors));
    out->names = esper_mem_alloc(most * sizeof(*out->names));
    if (out->tensors == NULL || out->names == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "checkpoint of %zu tensors", most);
    ESPER_TRY(esper_slab_mirror(&network->slab, ALL_BUT_GRADIENTS, &out->mirror));
    ESPER_TRY(visit_state(network, &out->mirror, add_tensor, out));
    assert(out->n_tensors <= most);
    /* The steps every region's group has taken. They are state of their own: a group that is off does not age. */
    esper_page_print(&out->optim, "t");
    for (int r = 0; network->optim != NULL && r < network->slab.n_regions; r++)
        esper_page_print(&out->optim, " %" PRIu32, esper_optim_group(network->optim, 0, r)->t);
    write_detour(&out->detour, network);
    ESPER_TRY(write_slots(&out->slots, &network->slots));
    ESPER_TRY(write_classes(&out->classes, network->engine->data));
    ESPER_TRY(esper_dataset_describe(network->engine->data, &out->data));
    failed = out->classes.status != ESPER_OK || out->optim.status != ESPER_OK || out->detour.status != ESPER_OK ||
             out->slots.status != ESPER_OK;
    for (int i = 0; i < network->n_parts; i++) {
        ESPER_TRY(network->parts[i].write(network->parts[i].context, &out->parts[i]));
        failed = failed || out->parts[i].status != ESPER_OK;
    }
    if (failed)
        return ESPER_FAIL(ESPER_E_NOMEM, "checkpoint: its notes");
    add_notes(out, network);
    return esper_safetensors_write(path, out->tensors, out->n_tensors, out->notes, out->n_notes);
}

esper_status esper_checkpoint_save(esper_network *network, const char *path)
{
    esper_status status;
    draft *out;

    if (network->program != esper_splice_key(&network->splice))
        return ESPER_FAIL(ESPER_E_STATE, "the network is not what its slots say: such a checkpoint could not be read");
    ESPER_TRY(esper_network_read(network));
    out = esper_mem_alloc(sizeof(*out));
    if (out == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "checkpoint");
    status = write_draft(out, network, path);
    esper_slab_fini(&out->mirror);
    esper_mem_free(out->tensors);
    esper_mem_free(out->names);
    esper_page_fini(&out->optim);
    esper_page_fini(&out->detour);
    esper_page_fini(&out->slots);
    esper_page_fini(&out->classes);
    esper_page_fini(&out->data);
    for (int i = 0; i < ESPER_MAX_PARTS; i++)
        esper_page_fini(&out->parts[i]);
    esper_mem_free(out);
    return status;
}

/* ------------------------------------------------------------------------------------------------ opening */

esper_status esper_checkpoint_check(const esper_safetensors *file, const char *path)
{
    const char *format = esper_safetensors_note_find(file, "format");
    const char *version = esper_safetensors_note_find(file, "format_version");
    size_t n_notes = esper_safetensors_note_count(file);
    esper_safetensors_note last;
    char ours[NOTE_CHARS], found[NOTE_CHARS];
    uint64_t hash = 0;
    bool is_last;

    snprintf(ours, sizeof(ours), "%d", ESPER_CHECKPOINT_VERSION);
    if (format == NULL || strcmp(format, ESPER_CHECKPOINT_FORMAT) != 0 || version == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: a safetensors file, but no Esper checkpoint", path);
    if (strcmp(version, ours) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: checkpoint format %.20s, this is Esper %s, which reads format %s", path,
                          version, ESPER_VERSION, ours);
    assert(n_notes >= 2);
    for (size_t i = 0; i + 1 < n_notes; i++) {
        esper_safetensors_note note = esper_safetensors_note_at(file, i);

        hash = hash_note(&note, hash);
    }
    for (size_t i = 0; i < esper_safetensors_count(file); i++)
        hash = hash_tensor(esper_safetensors_at(file, i), esper_safetensors_at(file, i)->n_bytes, hash);
    snprintf(found, sizeof(found), "%016" PRIx64, hash);
    last = esper_safetensors_note_at(file, n_notes - 1);
    is_last = strcmp(last.key, contents_hash_note) == 0;
    if (!is_last || strcmp(last.value, found) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: the checkpoint is damaged: its contents give the hash %s, recorded is %.20s", path,
                          found, is_last ? last.value : "none");
    return ESPER_OK;
}

/* Whose it is. */
static esper_status read_identity(esper_checkpoint *checkpoint, const char *path)
{
    const char *task = esper_safetensors_note_find(checkpoint->file, "task");
    const char *config = esper_safetensors_note_find(checkpoint->file, "config");
    esper_status status;

    ESPER_TRY(esper_checkpoint_check(checkpoint->file, path));
    checkpoint->kernels = esper_safetensors_note_find(checkpoint->file, "kernels");
    if (task == NULL || config == NULL || checkpoint->kernels == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the checkpoint does not say its task, configuration and kernels", path);
    if (esper_task_find(task, &checkpoint->task) != ESPER_OK)
        return esper_fail_within(ESPER_E_FORMAT, "%s: ", path);
    esper_config_init(&checkpoint->config);
    status = esper_config_load_text(&checkpoint->config, config, strlen(config), path);
    if (status == ESPER_OK && checkpoint->config.widen)
        esper_blueprint_add_wide();
    if (status == ESPER_OK && esper_blueprint_texts_add(checkpoint->config.add_blueprints) != ESPER_OK)
        status = esper_fail_within(ESPER_E_CONFIG, "%s: ", path);
    esper_config_withdraw(&checkpoint->config,
                          esper_config_find("cache"));         /* where to write is not for a file to say */
    return status == ESPER_E_CONFIG ? ESPER_E_FORMAT : status; /* the file is at fault, not what the user asked for */
}

esper_status esper_checkpoint_init(const char *path, esper_checkpoint *checkpoint_out)
{
    esper_checkpoint checkpoint = {0};
    esper_status status;

    ESPER_TRY(esper_safetensors_open(path, &checkpoint.file));
    status = read_identity(&checkpoint, path);
    if (status == ESPER_OK)
        *checkpoint_out = checkpoint;
    else
        esper_safetensors_close(checkpoint.file);
    return status;
}

void esper_checkpoint_fini(esper_checkpoint *checkpoint)
{
    esper_safetensors_close(checkpoint->file);
    *checkpoint = (esper_checkpoint){0};
}

/* ------------------------------------------------------------------------------------------------ restoring */

/* Where tensors come from, and whose memory they go to. */
typedef struct reading {
    const esper_safetensors *file;
    esper_backend           *backend;
} reading;

static esper_status copy_tensor(void *context, esper_family family, const esper_tensor *tensor, float *values)
{
    const reading *in = context;
    const esper_safetensors_tensor *found;
    char name[ESPER_NAME_CHARS + 16];
    uint64_t shape[ESPER_MAX_RANK];

    state_name(name, sizeof(name), family, tensor);
    shape_of(tensor, shape);
    ESPER_TRY(esper_safetensors_get(in->file, name, ESPER_SAFETENSORS_F32, tensor->rank, shape, &found));
    return esper_backend_copy_in(in->backend, NULL, values, found->data, (size_t)found->n_bytes);
}

/* A note that every checkpoint has; "" where this one has not. */
static const char *note_of(const esper_safetensors *file, const char *key)
{
    const char *text = esper_safetensors_note_find(file, key);

    return text != NULL ? text : "";
}

/* Budget and what was spent: 0 in checkpoints of version 0.1, which do not tell. */
static esper_status read_cursor(const esper_safetensors *file, esper_cursor *cursor_out, uint64_t *budget_out)
{
    esper_cursor cursor = {0};
    uint64_t budget = 0;
    int n = sscanf(note_of(file, "cursor"),
                   "epoch %" SCNu32 " batch %" SCNu32 " step %" SCNu64 " spent %" SCNu64 " of %" SCNu64, &cursor.epoch,
                   &cursor.batch, &cursor.step, &cursor.spent, &budget);

    if (n != 3 && n != 5)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the checkpoint does not say where the run stood",
                          esper_safetensors_name(file));
    *cursor_out = cursor;
    *budget_out = budget;
    return ESPER_OK;
}

/* "t" and a number for each region, neither fewer nor more. */
static bool read_ages(const char *text, uint32_t *ages, int n_regions)
{
    int n = 0;

    if (*text++ != 't')
        return false;
    for (int r = 0; r < n_regions; r++, text += n)
        if (sscanf(text, " %" SCNu32 "%n", &ages[r], &n) != 1)
            return false;
    return *text == '\0';
}

/* A number, or what has become of it: losses and gradients may be lost. */
static bool read_real(const char *text, double *value_out)
{
    bool lost = strcmp(text, "nan") == 0 || strcmp(text, "inf") == 0 || strcmp(text, "-inf") == 0;

    if (lost)
        *value_out = strtod(text, NULL);
    return lost || esper_number_read_real(text, value_out);
}

/* What a network that trains has besides: where it stands in the epoch, and the optimiser's age. */
static esper_status read_position(const esper_safetensors *file, esper_network *network)
{
    const char *name = esper_safetensors_name(file);
    esper_tally *tally = &network->tally;
    char loss[ESPER_NUMBER_CHARS], lr[ESPER_NUMBER_CHARS], grad_norm[ESPER_NUMBER_CHARS];
    uint32_t ages[ESPER_MAX_REGIONS];

    _Static_assert(ESPER_NUMBER_CHARS == 32, "the widths below leave room for the terminator");
    if (network->cursor.batch > network->engine->steps_per_epoch)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: the checkpoint stands at batch %" PRIu32 " of an epoch of %" PRIu32
                          ": was it made from other data?",
                          name, network->cursor.batch, network->engine->steps_per_epoch);
    if (sscanf(note_of(file, "tally"), "loss %31s correct %" SCNu64 " targets %" SCNu64 " samples %" SCNu64, loss,
               &tally->correct, &tally->targets, &tally->samples) != 4 ||
        !read_real(loss, &tally->loss))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the checkpoint does not say what the epoch had brought so far", name);
    if (sscanf(note_of(file, "last_step"), "lr %31s grad_norm %31s", lr, grad_norm) != 2 ||
        !read_real(lr, &network->lr) || !read_real(grad_norm, &network->grad_norm))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the checkpoint does not tell of the last step", name);
    assert(network->slab.n_regions <= ESPER_MAX_REGIONS);
    if (!read_ages(note_of(file, "optim"), ages, network->slab.n_regions))
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: the checkpoint does not say how many steps the optimiser took in each of %d regions",
                          name, network->slab.n_regions);
    for (int r = 0; r < network->slab.n_regions; r++)
        esper_optim_group(network->optim, 0, r)->t = ages[r];
    network->epoch_drawn = false;
    return ESPER_OK;
}

static esper_status read_detour(const esper_safetensors *file, esper_network *network)
{
    const char *text = esper_safetensors_note_find(file, "detour");
    uint32_t draw, epoch, batch;
    double lr_scale;
    int n = 0;

    if (text == NULL)
        return ESPER_OK;
    if (sscanf(text, "draw %" SCNu32 " lr_scale %la pass%n", &draw, &lr_scale, &n) != 2 || n == 0 ||
        draw >= ESPER_SAMPLER_DRAWS || !(lr_scale >= 0.0 && lr_scale <= 1.0))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the checkpoint does not say how the run went on",
                          esper_safetensors_name(file));
    esper_network_redraw(network, draw);
    network->detour.lr_scale = lr_scale;
    for (text += n; sscanf(text, " %" SCNu32 ":%" SCNu32 "%n", &epoch, &batch, &n) == 2; text += n)
        ESPER_TRY(esper_network_pass_over(network, epoch, batch));
    return ESPER_OK;
}

static uint64_t hash_in_file(const esper_safetensors *file, const esper_net *net)
{
    uint64_t hash = 0;

    for (int t = 0; t < net->n_tensors; t++) {
        const esper_tensor *tensor = &net->tensors[t];
        bool is_param = tensor->role == ESPER_ROLE_PARAM;
        char name[ESPER_NAME_CHARS + 16];
        const esper_safetensors_tensor *found;

        if (!is_param && tensor->role != ESPER_ROLE_BUFFER)
            continue;
        state_name(name, sizeof(name), is_param ? ESPER_FAMILY_PARAM : ESPER_FAMILY_BUFFER, tensor);
        found = esper_safetensors_find(file, name);
        if (found != NULL && found->n_bytes == (uint64_t)tensor->count * sizeof(float))
            hash = esper_weight_hash_add(hash, tensor, found->data);
    }
    return hash;
}

/* The file is sound; this tells whether its weights arrived where they were when it was written. A network that only evaluates has
 * no place for seeds without weight: those in TRAINING, and those whose alpha is 0. So what the network was that was saved is
 * asked of the file. */
static esper_status check_weights(const esper_safetensors *file, const esper_network *network)
{
    const char *recorded = esper_safetensors_note_find(file, "weight_hash");
    esper_splice splice = network->splice;
    char found[NOTE_CHARS];
    uint64_t hash;
    esper_net net;

    if (splice.training) {
        hash = esper_network_hash(network);
    } else {
        esper_status status;

        splice.training = true;
        esper_net_init(&net);
        status = esper_splice_build(&splice, &network->engine->host, &net);
        hash = status == ESPER_OK ? hash_in_file(file, &net) : 0;
        esper_net_fini(&net);
        ESPER_TRY(status);
    }
    snprintf(found, sizeof(found), "%016" PRIx64, hash);
    if (recorded == NULL || strcmp(recorded, found) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: weights of hash %.20s were recorded, but what was read gives %s: the network is another",
                          esper_safetensors_name(file), recorded != NULL ? recorded : "none", found);
    return ESPER_OK;
}

/* A note of bytes; *bytes_out NULL: there is none. */
static esper_status read_hex(const esper_safetensors *file, const char *key, uint8_t **bytes_out, size_t *n_out)
{
    const char *text = note_of(file, key);
    size_t n = strlen(text);
    uint8_t *bytes;

    *bytes_out = NULL;
    if (n == 0)
        return ESPER_OK;
    if (n % 2 != 0 || strspn(text, "0123456789abcdef") != n)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: the note %s is not what Esper writes", esper_safetensors_name(file),
                          key);
    bytes = esper_mem_alloc(n / 2);
    if (bytes == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "checkpoint: %zu bytes of %s", n / 2, key);
    for (size_t i = 0; i < n / 2; i++)
        sscanf(text + 2 * i, "%2hhx", &bytes[i]);
    *bytes_out = bytes;
    *n_out = n / 2;
    return ESPER_OK;
}

static esper_status check_slots(const esper_safetensors *file, const esper_slots *read, const esper_slots *ours)
{
    bool same = read->n == ours->n;

    for (int k = 0; same && k < read->n; k++)
        same = strcmp(read->slot[k].id, ours->slot[k].id) == 0 && read->slot[k].channels == ours->slot[k].channels &&
               read->slot[k].depth == ours->slot[k].depth;
    return same ? ESPER_OK
                : ESPER_FAIL(ESPER_E_FORMAT, "%s: its slots are those of another host", esper_safetensors_name(file));
}

/* Makes the network what it was; its seeds' weights are read like all others. */
static esper_status read_slots(const esper_safetensors *file, esper_network *network)
{
    esper_slots *slots = esper_mem_alloc(sizeof(*slots));
    uint8_t *bytes = NULL;
    size_t n = 0;
    esper_status status =
        slots != NULL ? read_hex(file, "slots", &bytes, &n) : ESPER_FAIL(ESPER_E_NOMEM, "checkpoint: slots");

    if (status == ESPER_OK && bytes != NULL) {
        status = esper_slots_unpack(bytes, n, slots);
        if (status == ESPER_OK)
            status = check_slots(file, slots, &network->slots);
        if (status == ESPER_OK) {
            network->slots = *slots;
            status = esper_network_replan(network);
        }
    }
    esper_mem_free(bytes);
    esper_mem_free(slots);
    return status;
}

esper_status esper_checkpoint_restore_part(const esper_checkpoint *checkpoint, esper_network *network, const char *name)
{
    const char *text = esper_safetensors_note_find(checkpoint->file, name);

    esper_status status = ESPER_OK;

    for (int i = 0; i < network->n_parts && text != NULL; i++)
        if (strcmp(network->parts[i].name, name) == 0)
            status = network->parts[i].read(network->parts[i].context, text);
    if (status == ESPER_E_FORMAT)
        return esper_fail_within(status, "%s: ", esper_safetensors_name(checkpoint->file));
    return status;
}

esper_status esper_checkpoint_mark(const esper_checkpoint *checkpoint, esper_cursor *cursor_out, uint64_t *budget_out,
                                   uint64_t *weights_out)
{
    const char *text = esper_safetensors_note_find(checkpoint->file, "weight_hash");
    uint64_t weights;

    if (text == NULL || sscanf(text, "%16" SCNx64, &weights) != 1)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: no hash of the weights", esper_safetensors_name(checkpoint->file));
    ESPER_TRY(read_cursor(checkpoint->file, cursor_out, budget_out));
    *weights_out = weights;
    return ESPER_OK;
}

bool esper_checkpoint_knows_data(const esper_checkpoint *checkpoint, const esper_network *network)
{
    const char *recorded = esper_safetensors_note_find(checkpoint->file, data_note);
    char found[NOTE_CHARS];

    snprintf(found, sizeof(found), "%016" PRIx64, esper_dataset_hash(network->engine->data));
    return recorded == NULL || strcmp(recorded, found) == 0;
}

esper_status esper_checkpoint_recall_data(const esper_checkpoint *checkpoint, esper_dataset **set_out)
{
    const char *text = esper_safetensors_note_find(checkpoint->file, about_data_note);
    esper_status status;

    *set_out = NULL;
    if (text == NULL)
        return ESPER_OK;
    status = esper_dataset_recall(text, esper_safetensors_note_find(checkpoint->file, classes_note), set_out);
    return status == ESPER_E_FORMAT ? esper_fail_within(status, "%s: ", esper_safetensors_name(checkpoint->file))
                                    : status;
}

bool esper_checkpoint_has_growth(const esper_checkpoint *checkpoint)
{
    return esper_safetensors_note_find(checkpoint->file, "growth") != NULL;
}

/* Other data may be fed to a network, but what its outputs stand for stays. */
static esper_status check_classes(const esper_safetensors *file, const esper_network *network)
{
    const char *learned = esper_safetensors_note_find(file, classes_note);
    esper_page here = {0};
    esper_status status;

    if (learned == NULL)
        return ESPER_OK;
    status = write_classes(&here, network->engine->data);
    if (status == ESPER_OK)
        status = here.status;
    if (status == ESPER_OK && (here.text == NULL || strcmp(here.text, learned) != 0))
        status = ESPER_FAIL(ESPER_E_CONFIG, "%s: the network tells the classes %.200s apart, and the data has %.200s",
                            esper_safetensors_name(file), learned, here.text != NULL ? here.text : "none");
    esper_page_fini(&here);
    return status;
}

esper_status esper_checkpoint_restore(const esper_checkpoint *checkpoint, esper_network *network)
{
    reading in = {checkpoint->file, network->engine->backend};
    uint64_t budget;

    ESPER_TRY(check_classes(checkpoint->file, network));
    ESPER_TRY(read_slots(checkpoint->file, network));
    ESPER_TRY(visit_state(network, &network->slab, copy_tensor, &in));
    ESPER_TRY(check_weights(checkpoint->file, network));
    ESPER_TRY(read_cursor(checkpoint->file, &network->cursor, &budget));
    if (network->cursor.spent == 0)
        network->cursor.spent = network->cursor.step * network->step_cost; /* it was trained as it is */
    assert(network->splice.training == (network->optim != NULL));
    if (network->optim == NULL)
        return ESPER_OK;
    ESPER_TRY(read_position(checkpoint->file, network));
    return read_detour(checkpoint->file, network);
}
