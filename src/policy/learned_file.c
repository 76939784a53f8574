/* A learned policy's file: the learner (ppo_file.c), the statistics of its observations, and notes that say what it is for. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/status.h"
#include "policy/features.h"
#include "policy/learned.h"

#define STATISTICS_NAME "policy/observations"

enum {
    SLOT_CHARS = ESPER_POLICY_MAX_SLOTS * ESPER_POLICY_ID_CHARS,
    MAX_NET = 65536,
    MAX_FEATURES = 1 << 20,
};

struct esper_learned_file {
    esper_safetensors     *content;
    esper_learned_identity identity;
    uint64_t               hash;
};

/* ------------------------------------------------------------------------------------------------ saving */

/* "r0c0 r1c0" */
static const char *list_slots(const esper_learned_identity *identity, char text[SLOT_CHARS])
{
    size_t at = 0;

    text[0] = '\0';
    for (int s = 0; s < identity->n_slots; s++)
        at += (size_t)snprintf(text + at, SLOT_CHARS - at, "%s%s", s > 0 ? " " : "", identity->slots[s]);
    return text;
}

/* Whether learner, identity and statistics go together. */
static esper_status check_parts(const esper_ppo *ppo, const esper_learned_identity *identity,
                                const esper_normaliser *norm)
{
    const esper_policy_net_desc *net = &esper_ppo_desc_of(ppo)->net;
    esper_policy_net_desc wanted;

    esper_learned_net(identity, &wanted);
    if (net->n_features != wanted.n_features || net->n_slot_features != wanted.n_slot_features ||
        net->n_heads != wanted.n_heads || net->width != wanted.width || net->hidden != wanted.hidden ||
        net->layers != wanted.layers)
        return ESPER_FAIL(
            ESPER_E_ARG,
            "a policy's file: a network of %d features, %d of a slot, width %d, %d times %d hidden is not "
            "that of %d and %d, width %d, %d times %d",
            net->n_features, net->n_slot_features, net->width, net->layers, net->hidden, wanted.n_features,
            wanted.n_slot_features, wanted.width, wanted.layers, wanted.hidden);
    if (norm->n != wanted.n_features)
        return ESPER_FAIL(ESPER_E_ARG, "a policy's file: statistics of %d observations, and it has %d features",
                          norm->n, wanted.n_features);
    return ESPER_OK;
}

/* "cnn mlp" */
static void list_topologies(const esper_learned_identity *identity, char text[ESPER_LEARNED_NAME_CHARS])
{
    size_t at = 0;

    text[0] = '\0';
    for (int t = 0; t < ESPER_N_TOPOLOGIES && at < ESPER_LEARNED_NAME_CHARS; t++)
        if (t == (int)identity->topology || (identity->topologies >> t & 1u) != 0)
            at += (size_t)snprintf(text + at, ESPER_LEARNED_NAME_CHARS - at, "%s%s", at > 0 ? " " : "",
                                   esper_topology_name((esper_topology)t));
}

esper_status esper_learned_save(esper_ppo *ppo, const esper_learned_identity *identity, const esper_normaliser *norm,
                                const esper_learned_extra *extra, const char *path)
{
    static const esper_learned_extra none = {0};
    char version[16], slots[SLOT_CHARS], epochs[16], features_version[16], features[16], slot_features[16];
    char topologies[ESPER_LEARNED_NAME_CHARS];
    const esper_safetensors_note own[] = {
        {"learned_version", version},         {"learned_task", identity->task},
        {"learned_topology", topologies},     {"learned_slots", list_slots(identity, slots)},
        {"learned_max_epochs", epochs},       {"learned_gates", esper_config_gates_name(identity->gates)},
        {"learned_reward", identity->reward}, {"learned_features_version", features_version},
        {"learned_features", features},       {"learned_slot_features", slot_features},
    };
    const size_t n_own = sizeof(own) / sizeof(own[0]), bytes = esper_normaliser_pack_bytes(norm);
    esper_safetensors_tensor *tensors;
    esper_safetensors_note *notes;
    esper_status status;
    void *packed;

    ESPER_TRY(check_parts(ppo, identity, norm));
    extra = extra != NULL ? extra : &none;
    snprintf(version, sizeof(version), "%d", ESPER_LEARNED_VERSION);
    snprintf(epochs, sizeof(epochs), "%d", identity->max_epochs);
    snprintf(features_version, sizeof(features_version), "%d", identity->features_version);
    snprintf(features, sizeof(features), "%d", ESPER_FEATURES_RUN);
    snprintf(slot_features, sizeof(slot_features), "%d", ESPER_FEATURES_SLOT);
    list_topologies(identity, topologies);
    packed = esper_mem_alloc(bytes);
    tensors = esper_mem_alloc((1 + extra->n_tensors) * sizeof(*tensors));
    notes = esper_mem_alloc((n_own + extra->n_notes) * sizeof(*notes));
    if (packed != NULL && tensors != NULL && notes != NULL) {
        esper_normaliser_pack(norm, packed);
        tensors[0] = (esper_safetensors_tensor){
            .name = STATISTICS_NAME, .dtype = ESPER_SAFETENSORS_U8, .rank = 1, .shape = {bytes}, .data = packed};
        for (size_t i = 0; i < extra->n_tensors; i++)
            tensors[1 + i] = extra->tensors[i];
        memcpy(notes, own, sizeof(own));
        for (size_t i = 0; i < extra->n_notes; i++)
            notes[n_own + i] = extra->notes[i];
        status = esper_ppo_save(ppo, path, tensors, 1 + extra->n_tensors, notes, n_own + extra->n_notes);
    } else {
        status = ESPER_FAIL(ESPER_E_NOMEM, "%s: statistics of %d observations, %zu tensors and %zu notes", path,
                            norm->n, extra->n_tensors, extra->n_notes);
    }
    esper_mem_free(packed);
    esper_mem_free(tensors);
    esper_mem_free(notes);
    return status;
}

/* ------------------------------------------------------------------------------------------------ opening */

static esper_status read_text(const esper_safetensors *file, const char *key, const char **text_out)
{
    *text_out = esper_safetensors_note_find(file, key);
    return *text_out != NULL ? ESPER_OK
                             : ESPER_FAIL(ESPER_E_FORMAT,
                                          "%s: this is no policy that decides about growth: it has no "
                                          "note %s",
                                          esper_safetensors_name(file), key);
}

static esper_status read_name(const esper_safetensors *file, const char *key, char name[ESPER_LEARNED_NAME_CHARS])
{
    const char *text;

    ESPER_TRY(read_text(file, key, &text));
    if (text[0] == '\0' || strlen(text) >= ESPER_LEARNED_NAME_CHARS)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: note %s: '%.80s' is no name", esper_safetensors_name(file), key, text);
    snprintf(name, ESPER_LEARNED_NAME_CHARS, "%s", text);
    return ESPER_OK;
}

static esper_status read_number(const esper_safetensors *file, const char *key, int low, int high, int *number_out)
{
    const char *text;
    int64_t number;
    bool fits;

    ESPER_TRY(read_text(file, key, &text));
    if (!esper_number_read_int(text, &number, &fits) || !fits || number < low || number > high)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: note %s: '%.40s' is no whole number from %d to %d",
                          esper_safetensors_name(file), key, text, low, high);
    *number_out = (int)number;
    return ESPER_OK;
}

static esper_status read_slots(const esper_safetensors *file, esper_learned_identity *identity)
{
    const char *text, *ids[ESPER_POLICY_MAX_SLOTS];
    char words[SLOT_CHARS], *rest = words, *word;
    int n = 0;

    ESPER_TRY(read_text(file, "learned_slots", &text));
    if (snprintf(words, sizeof(words), "%s", text) >= (int)sizeof(words))
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: note learned_slots is too long", esper_safetensors_name(file));
    while ((word = strsep(&rest, " ")) != NULL && n < ESPER_POLICY_MAX_SLOTS)
        ids[n++] = word;
    if (word != NULL || esper_learned_identity_set_slots(identity, ids, n) != ESPER_OK)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: note learned_slots: '%.80s' are no slots", esper_safetensors_name(file),
                          text);
    return ESPER_OK;
}

static esper_status read_topologies(const esper_safetensors *file, esper_learned_identity *identity)
{
    char words[ESPER_LEARNED_NAME_CHARS], *rest = words, *word;

    ESPER_TRY(read_name(file, "learned_topology", words));
    while ((word = strsep(&rest, " ")) != NULL) {
        int topology = esper_topology_find(word);

        if (topology < 0)
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: note learned_topology: '%.40s' is none",
                              esper_safetensors_name(file), word);
        if (identity->topologies == 0)
            identity->topology = (esper_topology)topology;
        identity->topologies |= 1u << topology;
    }
    return ESPER_OK;
}

static esper_status read_identity(const esper_safetensors *file, esper_learned_identity *identity)
{
    const char *name = esper_safetensors_name(file), *text;
    int version, features, slot_features;

    ESPER_TRY(read_text(file, "learned_version", &text));
    if (strcmp(text, "2") == 0)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: a learned policy of version 2, which could not ask for trials. Those of version %d can, "
                          "and see what came of them: learn it anew with `esper learn TASK`",
                          name, ESPER_LEARNED_VERSION);
    if (read_number(file, "learned_version", 0, INT32_MAX, &version) != ESPER_OK || version != ESPER_LEARNED_VERSION)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: a learned policy of version %.16s, this program reads version %d", name,
                          text, ESPER_LEARNED_VERSION);
    ESPER_TRY(read_slots(file, identity));
    ESPER_TRY(read_name(file, "learned_task", identity->task));
    ESPER_TRY(read_topologies(file, identity));
    ESPER_TRY(read_number(file, "learned_max_epochs", 0, INT32_MAX, &identity->max_epochs));
    ESPER_TRY(read_text(file, "learned_gates", &text));
    identity->gates = strcmp(text, "strict") == 0 ? ESPER_CONFIG_GATES_STRICT : ESPER_CONFIG_GATES_PERMISSIVE;
    if (strcmp(text, esper_config_gates_name(identity->gates)) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: note learned_gates: '%.40s' is neither strict nor permissive", name,
                          text);
    ESPER_TRY(read_name(file, "learned_reward", identity->reward));
    ESPER_TRY(read_number(file, "learned_features_version", 1, INT32_MAX, &identity->features_version));
    ESPER_TRY(read_number(file, "learned_features", 1, MAX_FEATURES, &features));
    ESPER_TRY(read_number(file, "learned_slot_features", 1, MAX_FEATURES, &slot_features));
    if (identity->features_version != ESPER_FEATURES_VERSION)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: a policy that sees features of version %d, and this program shows those of version %d: "
                          "learn it anew with `esper learn TASK`",
                          name, identity->features_version, ESPER_FEATURES_VERSION);
    if (features != ESPER_FEATURES_RUN || slot_features != ESPER_FEATURES_SLOT)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: %d features, and %d of a slot, are not those of version %d", name,
                          features, slot_features, ESPER_FEATURES_VERSION);
    ESPER_TRY(read_number(file, "policy_width", 1, MAX_NET, &identity->width));
    ESPER_TRY(read_number(file, "policy_hidden", 1, MAX_NET, &identity->hidden));
    return read_number(file, "policy_layers", 1, ESPER_POLICY_MAX_LAYERS, &identity->layers);
}

/* Notes are easily written: what they say of the network is believed when its weights are there, each of that shape. So a network
 * is never larger than its file. */
static esper_status check_weights(const esper_safetensors *file, const esper_learned_identity *identity)
{
    esper_policy_net_desc desc;
    esper_net net;
    esper_status status;

    esper_learned_net(identity, &desc);
    status = esper_policy_net_build(&desc, &net);
    if (status == ESPER_E_ARG || status == ESPER_E_UNSUPPORTED)
        status = esper_fail_within(ESPER_E_FORMAT, "%s: ", esper_safetensors_name(file));
    for (int t = 0; status == ESPER_OK && t < net.n_tensors; t++) {
        const esper_tensor *tensor = &net.tensors[t];
        const esper_safetensors_tensor *found;
        uint64_t shape[ESPER_MAX_RANK];
        char name[ESPER_NAME_CHARS + 16];

        if (tensor->role != ESPER_ROLE_PARAM)
            continue;
        for (int i = 0; i < tensor->rank; i++)
            shape[i] = (uint64_t)tensor->dim[i];
        snprintf(name, sizeof(name), "%s/%s", esper_family_name(ESPER_FAMILY_PARAM), tensor->name);
        status = esper_safetensors_get(file, name, ESPER_SAFETENSORS_F32, tensor->rank, shape, &found);
    }
    esper_net_fini(&net);
    if (status == ESPER_E_NOTFOUND || status == ESPER_E_FORMAT)
        return esper_fail_within(ESPER_E_FORMAT, "the policy is not of the size that its notes say: ");
    return status;
}

esper_status esper_learned_open(const char *path, esper_learned_file **file_out)
{
    esper_learned_file *file = esper_mem_alloc(sizeof(*file));
    esper_status status;

    if (file == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: a policy's file", path);
    status = esper_safetensors_open(path, &file->content);
    if (status == ESPER_OK)
        status = esper_ppo_check_file(file->content, &file->hash);
    if (status == ESPER_OK)
        status = read_identity(file->content, &file->identity);
    if (status == ESPER_OK)
        status = check_weights(file->content, &file->identity);
    if (status != ESPER_OK) {
        esper_learned_close(file);
        return status;
    }
    *file_out = file;
    return ESPER_OK;
}

void esper_learned_close(esper_learned_file *file)
{
    if (file == NULL)
        return;
    esper_safetensors_close(file->content);
    esper_mem_free(file);
}

const esper_learned_identity *esper_learned_identity_of(const esper_learned_file *file)
{
    return &file->identity;
}

uint64_t esper_learned_hash_of(const esper_learned_file *file)
{
    return file->hash;
}

const esper_safetensors *esper_learned_content(const esper_learned_file *file)
{
    return file->content;
}

/* ------------------------------------------------------------------------------------------------ is it for this run? */

esper_status esper_learned_check(const esper_learned_file *file, const esper_learned_identity *wanted)
{
    char kinds[ESPER_LEARNED_NAME_CHARS];

    if ((file->identity.topologies >> wanted->topology & 1u) != 0)
        return ESPER_OK;
    list_topologies(&file->identity, kinds);
    return ESPER_FAIL(ESPER_E_CONFIG,
                      "%s was trained for hosts of the kind %s, this one is a %s. A policy decides about hosts of the "
                      "kinds that it has met: take another, or learn one with `esper learn`",
                      esper_safetensors_name(file->content), kinds, esper_topology_name(wanted->topology));
}

/* ------------------------------------------------------------------------------------------------ loading */

static esper_status unpack_statistics(const esper_learned_file *file, esper_normaliser *norm)
{
    const esper_safetensors_tensor *tensor = esper_safetensors_find(file->content, STATISTICS_NAME);

    if (tensor == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: holds no tensor " STATISTICS_NAME,
                          esper_safetensors_name(file->content));
    if (esper_normaliser_unpack(norm, tensor->data, (size_t)tensor->n_bytes) != ESPER_OK)
        return esper_fail_within(ESPER_E_FORMAT, "%s: ", esper_safetensors_name(file->content));
    for (int i = 0; i < norm->n; i++)
        if (!isfinite(norm->mean[i]) || !(norm->variance[i] >= 0.0 && isfinite(norm->variance[i])) ||
            !(norm->count[i] >= 0.0 && isfinite(norm->count[i])))
            return ESPER_FAIL(ESPER_E_FORMAT, "%s: statistics of observation %d: mean %g, variance %g",
                              esper_safetensors_name(file->content), i, norm->mean[i], norm->variance[i]);
    return ESPER_OK;
}

/* What can fail comes first: the statistics are read aside, then the learner's part, which changes nothing when it fails. */
esper_status esper_learned_load(const esper_learned_file *file, esper_ppo *ppo, esper_normaliser *norm, bool whole)
{
    esper_normaliser *aside;
    esper_status status;

    ESPER_TRY(esper_normaliser_open(norm->n, norm->how, norm->momentum, &aside));
    status = unpack_statistics(file, aside);
    if (status == ESPER_OK)
        status = esper_ppo_load(ppo, file->content, whole);
    if (status == ESPER_OK)
        status = unpack_statistics(file, norm);
    esper_normaliser_close(aside);
    return status;
}
