/* A learner in a file: tensors <family>/<parameter>, its counters and detector as tensors of their own, and notes that say
 * what network it is. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "policy/ppo_internal.h"

enum { VERSION = 2, N_COUNTERS = 6, N_DETECTOR = 1 + ESPER_POLICY_MAX_HEADS + ESPER_N_ANOMALIES, TEXT_CHARS = 256 };

static const esper_family families[] = {ESPER_FAMILY_PARAM, ESPER_FAMILY_MOMENT1, ESPER_FAMILY_MOMENT2};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]), HASH_CHARS = 17 };

#define SAVED                                                                        \
    (ESPER_FAMILY_BIT(ESPER_FAMILY_PARAM) | ESPER_FAMILY_BIT(ESPER_FAMILY_MOMENT1) | \
     ESPER_FAMILY_BIT(ESPER_FAMILY_MOMENT2))

#define HASH_KEY "policy_hash"

/* ------------------------------------------------------------------------------------------------ a hash of it all */

static uint64_t hash_text(const char *text, uint64_t hash)
{
    return XXH64(text, strlen(text) + 1, hash);
}

/* Tensors and notes have no order of their own, so theirs are added up. */
typedef struct content_hash {
    uint64_t tensors, n_tensors, notes, n_notes;
} content_hash;

static void add_tensor(content_hash *sum, const esper_safetensors_tensor *tensor)
{
    uint64_t head[3] = {(uint64_t)tensor->dtype, (uint64_t)tensor->rank, 0}, hash;
    size_t n_bytes = esper_safetensors_dtype_bytes(tensor->dtype);

    for (int i = 0; i < tensor->rank; i++)
        n_bytes *= (size_t)tensor->shape[i];
    head[2] = n_bytes;
    hash = XXH64(head, sizeof(head), hash_text(tensor->name, 0));
    hash = XXH64(tensor->shape, (size_t)tensor->rank * sizeof(tensor->shape[0]), hash);
    sum->tensors += XXH64(tensor->data, n_bytes, hash);
    sum->n_tensors++;
}

static void add_note(content_hash *sum, const esper_safetensors_note *note)
{
    if (strcmp(note->key, HASH_KEY) == 0)
        return;
    sum->notes += hash_text(note->value, hash_text(note->key, 1));
    sum->n_notes++;
}

static uint64_t hash_of(const content_hash *sum)
{
    return XXH64(sum, sizeof(*sum), 0);
}

static uint64_t hash_file(const esper_safetensors *file)
{
    content_hash sum = {0};

    for (size_t i = 0; i < esper_safetensors_count(file); i++)
        add_tensor(&sum, esper_safetensors_at(file, i));
    for (size_t i = 0; i < esper_safetensors_note_count(file); i++) {
        esper_safetensors_note note = esper_safetensors_note_at(file, i);

        add_note(&sum, &note);
    }
    return hash_of(&sum);
}

esper_status esper_ppo_write(const char *path, const esper_safetensors_tensor *tensors, size_t n_tensors,
                             const esper_safetensors_note *notes, size_t n_notes)
{
    esper_safetensors_note *list = esper_mem_alloc((n_notes + 1) * sizeof(*list));
    content_hash sum = {0};
    char text[HASH_CHARS];
    esper_status status;

    if (list == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%s: %zu notes", path, n_notes);
    for (size_t i = 0; i < n_tensors; i++)
        add_tensor(&sum, &tensors[i]);
    for (size_t i = 0; i < n_notes; i++) {
        add_note(&sum, &notes[i]);
        list[i] = notes[i];
    }
    snprintf(text, sizeof(text), "%016" PRIx64, hash_of(&sum));
    list[n_notes] = (esper_safetensors_note){HASH_KEY, text};
    status = esper_safetensors_write(path, tensors, n_tensors, list, n_notes + 1);
    esper_mem_free(list);
    return status;
}

/* ------------------------------------------------------------------------------------------------ what network it is */

/* One fact of the network: the note's key, what it is in words, and its text. */
typedef struct fact {
    const char *key, *words;
    char        text[TEXT_CHARS];
} fact;

enum { N_FACTS = 8 };

static void say_heads(const esper_policy_net_desc *d, char *text)
{
    size_t at = 0;

    text[0] = '\0';
    for (int head = 0; head < d->n_heads && at < TEXT_CHARS; head++) {
        const esper_policy_head *h = &d->heads[head];
        const char *between = head > 0 ? ", " : "";
        int more = h->kind == ESPER_POLICY_AMONG_SLOTS /* of any number */
                       ? snprintf(text + at, TEXT_CHARS - at, "%s%s among slots", between, h->name)
                       : snprintf(text + at, TEXT_CHARS - at, "%s%s %d%s", between, h->name, h->size,
                                  h->kind == ESPER_POLICY_OF_SLOT ? " of a slot"
                                  : h->deep                       ? " deep"
                                                                  : "");

        at += more > 0 ? (size_t)more : 0;
    }
}

static void say_facts(const esper_policy_net_desc *d, fact facts[N_FACTS])
{
    static const char *const names[N_FACTS][2] = {
        {"policy_features", "features"},
        {"policy_slots", "features and width of a slot"},
        {"policy_ids", "ids, rows and width of their table"},
        {"policy_heads", "heads"},
        {"policy_width", "width of the features"},
        {"policy_hidden", "hidden width"},
        {"policy_layers", "layers"},
        {"policy_critics", "head of the second critic, contributions"},
    };

    for (int i = 0; i < N_FACTS; i++) {
        facts[i].key = names[i][0];
        facts[i].words = names[i][1];
    }
    snprintf(facts[0].text, TEXT_CHARS, "%d", d->n_features);
    snprintf(facts[1].text, TEXT_CHARS, "%d %d", d->n_slot_features, d->slot_width);
    snprintf(facts[2].text, TEXT_CHARS, "%d %d %d", d->n_slots > 0 ? d->n_ids / d->n_slots : d->n_ids, d->id_rows,
             d->id_width);
    say_heads(d, facts[3].text);
    snprintf(facts[4].text, TEXT_CHARS, "%d", d->width);
    snprintf(facts[5].text, TEXT_CHARS, "%d", d->hidden);
    snprintf(facts[6].text, TEXT_CHARS, "%d", d->layers);
    snprintf(facts[7].text, TEXT_CHARS, "%d %d", d->q_head,
             d->n_slots > 0 ? d->n_contributions / d->n_slots : d->n_contributions);
}

esper_status esper_ppo_check_file(const esper_safetensors *file, uint64_t *hash_out)
{
    const char *version = esper_safetensors_note_find(file, "policy_version");
    const char *said = esper_safetensors_note_find(file, HASH_KEY);
    char wanted[16], found[HASH_CHARS];
    uint64_t hash;

    snprintf(wanted, sizeof(wanted), "%d", VERSION);
    if (version == NULL)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: this is no policy", esper_safetensors_name(file));
    if (strcmp(version, "1") == 0)
        return ESPER_FAIL(
            ESPER_E_FORMAT,
            "%s: a policy of form 1, which knew the slots of one host by their number. Those of form 2 "
            "know them by their properties, and decide for any host: learn it anew with `esper learn TASK`",
            esper_safetensors_name(file));
    if (strcmp(version, wanted) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT, "%s: a policy of version %s, this program reads version %s",
                          esper_safetensors_name(file), version, wanted);
    hash = hash_file(file);
    snprintf(found, sizeof(found), "%016" PRIx64, hash);
    if (said == NULL || strcmp(said, found) != 0)
        return ESPER_FAIL(ESPER_E_FORMAT,
                          "%s: damaged: its content has the hash %s, and it says %.16s. Take another copy",
                          esper_safetensors_name(file), found, said != NULL ? said : "none");
    *hash_out = hash;
    return ESPER_OK;
}

static esper_status check_facts(const esper_ppo *p, const esper_safetensors *file)
{
    uint64_t hash;
    fact facts[N_FACTS];

    ESPER_TRY(esper_ppo_check_file(file, &hash));
    say_facts(&p->desc.net, facts);
    for (int i = 0; i < N_FACTS; i++) {
        const char *found = esper_safetensors_note_find(file, facts[i].key);

        if (found == NULL || strcmp(found, facts[i].text) != 0)
            return ESPER_FAIL(ESPER_E_CONFIG, "%s: a policy for another task: %s: %s, but here %s",
                              esper_safetensors_name(file), facts[i].words, found != NULL ? found : "not said",
                              facts[i].text);
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ state as numbers */

enum { N_NUMBERS = 3 }; /* tensors of them */

typedef struct numbers {
    uint64_t       counters[N_COUNTERS];
    esper_detector detector; /* two means, then counts */
} numbers;

_Static_assert(sizeof(esper_detector) == (2 + N_DETECTOR) * 8, "a detector has no holes");

static numbers numbers_of(esper_ppo *p)
{
    return (numbers){.counters = {p->n_calls, p->n_performed, p->n_failures, p->n_skipped, p->n_passes,
                                  esper_optim_group(p->optim, 0, 0)->t},
                     .detector = p->detector};
}

uint64_t esper_ppo_hash_counts(esper_ppo *ppo)
{
    numbers n = numbers_of(ppo);

    return XXH64(&n, sizeof(n), 0);
}

static void take_numbers(esper_ppo *p, const numbers *n)
{
    p->n_calls = n->counters[0];
    p->n_performed = n->counters[1];
    p->n_failures = n->counters[2];
    p->n_skipped = n->counters[3];
    p->n_passes = n->counters[4];
    esper_optim_group(p->optim, 0, 0)->t = (uint32_t)n->counters[5];
    p->detector = n->detector;
}

static void list_numbers(const numbers *n, esper_safetensors_tensor list[N_NUMBERS])
{
    list[0] = (esper_safetensors_tensor){
        .name = "policy/counters", .dtype = ESPER_SAFETENSORS_U64, .shape = {N_COUNTERS}, .data = n->counters};
    list[1] = (esper_safetensors_tensor){
        .name = "policy/detector_means", .dtype = ESPER_SAFETENSORS_F64, .shape = {2}, .data = &n->detector.ema_norm};
    list[2] = (esper_safetensors_tensor){.name = "policy/detector_counts",
                                         .dtype = ESPER_SAFETENSORS_U64,
                                         .shape = {N_DETECTOR},
                                         .data = &n->detector.n_updates};
    for (int i = 0; i < N_NUMBERS; i++)
        list[i].rank = 1;
}

/* ------------------------------------------------------------------------------------------------ parameters */

typedef struct named {
    char   name[ESPER_NAME_CHARS + 16];
    float *values;
    size_t bytes;
    esper_safetensors_tensor tensor; /* name and data are those above */
} named;

static size_t count_named(const esper_ppo *p)
{
    const esper_net *net = esper_policy_net_program(p->net);
    size_t n = 0;

    for (int t = 0; t < net->n_tensors; t++)
        n += net->tensors[t].role == ESPER_ROLE_PARAM ? N_FAMILIES : 0;
    return n;
}

/* Of the network's slab, or of a mirror of it. The list may not move once made. */
static void list_named(const esper_ppo *p, const esper_slab *slab, named *list)
{
    const esper_net *net = esper_policy_net_program(p->net);

    for (int f = 0; f < N_FAMILIES; f++)
        for (int t = 0; t < net->n_tensors; t++) {
            const esper_tensor *tensor = &net->tensors[t];

            if (tensor->role != ESPER_ROLE_PARAM)
                continue;
            snprintf(list->name, sizeof(list->name), "%s/%s", esper_family_name(families[f]), tensor->name);
            list->values = esper_slab_at(slab, families[f], tensor);
            list->bytes = (size_t)tensor->count * sizeof(float);
            list->tensor = (esper_safetensors_tensor){
                .name = list->name, .dtype = ESPER_SAFETENSORS_F32, .rank = tensor->rank, .data = list->values};
            for (int i = 0; i < tensor->rank; i++)
                list->tensor.shape[i] = (uint64_t)tensor->dim[i];
            list++;
        }
}

/* ------------------------------------------------------------------------------------------------ saving */

esper_status esper_ppo_save(esper_ppo *ppo, const char *path, const esper_safetensors_tensor *more, size_t n_more,
                            const esper_safetensors_note *notes, size_t n_notes)
{
    numbers n = numbers_of(ppo);
    size_t n_list = count_named(ppo), n_tensors = n_list + N_NUMBERS + n_more;
    named *list = esper_mem_alloc(n_list * sizeof(*list));
    esper_safetensors_tensor *tensors = esper_mem_alloc(n_tensors * sizeof(*tensors));
    esper_safetensors_note *all_notes = esper_mem_alloc((1 + N_FACTS + n_notes) * sizeof(*all_notes));
    esper_slab mirror = {0};
    fact facts[N_FACTS];
    char version[16];
    esper_status status = ESPER_OK;

    if (list == NULL || tensors == NULL || all_notes == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "a policy's file of %zu tensors", n_list);
    if (status == ESPER_OK)
        status = esper_slab_mirror(ppo->slab, SAVED, &mirror);
    if (status == ESPER_OK) {
        snprintf(version, sizeof(version), "%d", VERSION);
        all_notes[0] = (esper_safetensors_note){"policy_version", version};
        say_facts(&ppo->desc.net, facts);
        for (int i = 0; i < N_FACTS; i++)
            all_notes[1 + i] = (esper_safetensors_note){facts[i].key, facts[i].text};
        for (size_t i = 0; i < n_notes; i++)
            all_notes[1 + N_FACTS + i] = notes[i];
        list_named(ppo, &mirror, list);
        for (size_t i = 0; i < n_list; i++)
            tensors[i] = list[i].tensor;
        list_numbers(&n, tensors + n_list);
        for (size_t i = 0; i < n_more; i++)
            tensors[n_list + N_NUMBERS + i] = more[i];
        status = esper_ppo_write(path, tensors, n_tensors, all_notes, 1 + N_FACTS + n_notes);
    }
    esper_mem_free(list);
    esper_mem_free(tensors);
    esper_mem_free(all_notes);
    esper_slab_fini(&mirror);
    return status;
}

/* ------------------------------------------------------------------------------------------------ loading */

/* Into memory aside first: a file that lacks one tensor changes nothing. */
static esper_status read_aside(const esper_safetensors *file, const named *list, size_t n, char *aside)
{
    float value;

    for (size_t i = 0; i < n; i++) {
        ESPER_TRY(esper_safetensors_copy(file, list[i].name, ESPER_SAFETENSORS_F32, list[i].tensor.rank,
                                         list[i].tensor.shape, aside));
        for (size_t k = 0; k < list[i].bytes / sizeof(value); k++, aside += sizeof(value)) {
            memcpy(&value, aside, sizeof(value));
            if (!isfinite(value))
                return ESPER_FAIL(ESPER_E_FORMAT,
                                  "%s: element %zu of %s is %g: no policy acts by that. Take an earlier copy",
                                  esper_safetensors_name(file), k, list[i].name, (double)value);
        }
    }
    return ESPER_OK;
}

/* The first n_used families of the list; the first is that of the weights. */
static esper_status load_families(esper_ppo *p, const esper_safetensors *file, int n_used)
{
    size_t n_list = count_named(p), n = n_list / N_FAMILIES * (size_t)n_used, bytes = 0;
    named *list = esper_mem_alloc(n_list * sizeof(*list));
    char *aside = NULL, *from;
    esper_status status;

    if (list != NULL) {
        list_named(p, p->slab, list);
        for (size_t i = 0; i < n; i++)
            bytes += list[i].bytes;
        aside = esper_mem_alloc(bytes);
    }
    status = aside == NULL ? ESPER_FAIL(ESPER_E_NOMEM, "a policy of %zu tensors", n) : read_aside(file, list, n, aside);
    from = aside;
    for (size_t i = 0; status == ESPER_OK && i < n; from += list[i++].bytes)
        status = esper_backend_copy_in(p->slab->backend, NULL, list[i].values, from, list[i].bytes);
    esper_mem_free(aside);
    esper_mem_free(list);
    return status;
}

esper_status esper_ppo_load(esper_ppo *ppo, const esper_safetensors *file, bool whole)
{
    numbers n;
    void *const to[N_NUMBERS] = {n.counters, &n.detector.ema_norm, &n.detector.n_updates};
    esper_safetensors_tensor list[N_NUMBERS];

    ESPER_TRY(check_facts(ppo, file));
    if (!whole)
        return load_families(ppo, file, 1);
    list_numbers(&n, list);
    for (int i = 0; i < N_NUMBERS; i++)
        ESPER_TRY(esper_safetensors_copy(file, list[i].name, list[i].dtype, 1, list[i].shape, to[i]));
    ESPER_TRY(load_families(ppo, file, N_FAMILIES));
    take_numbers(ppo, &n);
    return ESPER_OK;
}
