/* Blueprints as text: their names, and their place in the lists. */
#include "nn/blueprint_text.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "nn/blueprint.h"

/* Written once, before anything computes; the lists point into it. (Whoever reads a log, a decision file or a slot table knows a
 * blueprint by its name alone, so names mean the same everywhere in a process, as those that are compiled in do.) */
static struct {
    char            name[ESPER_BLUEPRINT_NAME_CHARS], text[ESPER_HOST_CHARS];
    esper_blueprint blueprints[ESPER_N_TOPOLOGIES];
    bool            used;
} added[ESPER_BLUEPRINT_TEXTS];

/* One of several: where its name and its text stand. */
typedef struct entry {
    char name[ESPER_BLUEPRINT_NAME_CHARS];
    char text[ESPER_HOST_CHARS]; /* printed */
} entry;

/* "wide =" at `text`: where the text behind it begins, 0 = no name stands here. */
static size_t find_name(const char *text, size_t *name_length)
{
    size_t n = 0, at;

    while (isalnum((unsigned char)text[n]) || text[n] == '_')
        n++;
    at = n + strspn(text + n, " \t");
    *name_length = n;
    return n > 0 && text[at] == '=' ? at + 1 : 0;
}

/* Where an entry ends: at a ';', or before a line that begins with another name. */
static size_t find_end(const char *text)
{
    size_t unused;

    for (size_t i = 0;; i++) {
        if (text[i] == '#')
            i += strcspn(text + i, "\n");
        if (text[i] == '\0' || text[i] == ';')
            return i;
        if (text[i] == '\n' && find_name(text + i + 1 + strspn(text + i + 1, " \t"), &unused) > 0)
            return i;
    }
}

static esper_status read_entry(const char *text, size_t length, const char *name, entry *out)
{
    char *copy = esper_mem_alloc(length + 1);
    esper_host_text *parsed = esper_mem_alloc(sizeof(*parsed));
    esper_status status = ESPER_OK;

    if (copy == NULL || parsed == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "blueprint %s", name);
    else {
        memcpy(copy, text, length);
        status = esper_host_text_parse(copy, name, ESPER_TEXT_BLUEPRINT, parsed);
    }
    if (status == ESPER_OK)
        status = esper_host_text_print(parsed, out->text);
    esper_mem_free(copy);
    esper_mem_free(parsed);
    return status;
}

/* "wide = conv 2w | conv w; thin = ..." into entries. */
static esper_status read_all(const char *text, entry entries[ESPER_BLUEPRINT_TEXTS], int *n_out)
{
    char called[ESPER_BLUEPRINT_NAME_CHARS + 16];

    *n_out = 0;
    for (;;) {
        size_t length, begin, end;

        for (; text[strspn(text, " \t\n;")] == '#'; text += strcspn(text, "\n"))
            text += strspn(text, " \t\n;");
        text += strspn(text, " \t\n;");
        if (*text == '\0')
            return *n_out > 0 ? ESPER_OK : ESPER_FAIL(ESPER_E_CONFIG, "add_blueprints: there is none in it");
        begin = find_name(text, &length);
        if (begin == 0)
            return ESPER_FAIL(
                ESPER_E_CONFIG,
                "add_blueprints: expected a name and its text, such as wide = conv 2w | conv w, not '%.40s'", text);
        if (*n_out == ESPER_BLUEPRINT_TEXTS)
            return ESPER_FAIL(ESPER_E_CONFIG, "add_blueprints: at most %d can be added", ESPER_BLUEPRINT_TEXTS);
        if (length >= ESPER_BLUEPRINT_NAME_CHARS)
            return ESPER_FAIL(ESPER_E_CONFIG, "add_blueprints: a name has at most %d characters, not '%.*s'",
                              ESPER_BLUEPRINT_NAME_CHARS - 1, (int)length, text);
        snprintf(entries[*n_out].name, sizeof(entries[*n_out].name), "%.*s", (int)length, text);
        snprintf(called, sizeof(called), "blueprint %s", entries[*n_out].name);
        for (int i = 0; i < *n_out; i++)
            if (strcmp(entries[i].name, entries[*n_out].name) == 0)
                return ESPER_FAIL(ESPER_E_CONFIG, "add_blueprints: '%s' stands there twice", entries[i].name);
        end = begin + find_end(text + begin);
        ESPER_TRY(read_entry(text + begin, end - begin, called, &entries[*n_out]));
        text += end;
        (*n_out)++;
    }
}

static esper_status print_all(const entry *entries, int n, char texts[ESPER_HOST_CHARS])
{
    size_t used = 0;

    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(used < ESPER_HOST_CHARS ? texts + used : NULL,
                                 used < ESPER_HOST_CHARS ? ESPER_HOST_CHARS - used : 0, "%s%s = %s", i > 0 ? "; " : "",
                                 entries[i].name, entries[i].text);
    if (used >= ESPER_HOST_CHARS)
        return ESPER_FAIL(ESPER_E_CONFIG, "add_blueprints: %zu characters on one line, and %d at most are kept", used,
                          ESPER_HOST_CHARS - 1);
    return ESPER_OK;
}

esper_status esper_blueprint_texts_resolve(const char *given, char texts[ESPER_HOST_CHARS])
{
    entry entries[ESPER_BLUEPRINT_TEXTS];
    struct stat found;
    char *source = NULL;
    size_t bytes;
    esper_status status;
    int n;

    if (strchr(given, '=') == NULL && stat(given, &found) != 0)
        return ESPER_FAIL(
            ESPER_E_CONFIG,
            "add_blueprints: '%.80s' is neither a file nor a name with its text, such as wide = conv 2w | conv w",
            given);
    if (strchr(given, '=') == NULL) {
        ESPER_TRY(esper_file_read(given, ESPER_HOST_SOURCE_CHARS, &source, &bytes));
        given = source;
    }
    status = read_all(given, entries, &n);
    if (status == ESPER_OK)
        status = print_all(entries, n, texts);
    esper_mem_free(source);
    return status;
}

/* ------------------------------------------------------------------------------------------------ the lists */

/* Parameters on a stream of the width that estimates are told for; -1 where it cannot be built there. */
static int64_t count_params(const esper_blueprint *blueprint)
{
    static const int widths[ESPER_N_TOPOLOGIES] = {
        [ESPER_TOPOLOGY_CNN] = 64, [ESPER_TOPOLOGY_TRANSFORMER] = 384, [ESPER_TOPOLOGY_MLP] = 64};
    int width = widths[blueprint->topology], x;
    esper_net net;
    int64_t n = -1;

    esper_net_init(&net);
    x = blueprint->topology == ESPER_TOPOLOGY_CNN   ? esper_net_input(&net, "x", ESPER_F32, 3, (int[]){width, 4, 4})
        : blueprint->topology == ESPER_TOPOLOGY_MLP ? esper_net_input(&net, "x", ESPER_F32, 1, &width)
                                                    : esper_net_input(&net, "x", ESPER_F32, 2, (int[]){4, width});
    esper_blueprint_build(blueprint, &net, x, (esper_blueprint_how){.blend = ESPER_BLEND_ADD});
    if (esper_net_status(&net) == ESPER_OK)
        n = esper_net_count_params(&net, -1);
    esper_net_fini(&net);
    return n;
}

/* The topology whose words the text has: its failure is what is told. */
static esper_topology nearest_topology(const char *text)
{
    return strstr(text, "conv") != NULL                                           ? ESPER_TOPOLOGY_CNN
           : strstr(text, "attention") != NULL || strstr(text, "layer") != NULL ? ESPER_TOPOLOGY_TRANSFORMER
                                                                                : ESPER_TOPOLOGY_MLP;
}

static esper_status add_one(const entry *new, int place)
{
    int n_topologies = 0;

    for (int topology = 0; topology < ESPER_N_TOPOLOGIES; topology++)
        for (int i = 0; esper_blueprint_list((esper_topology)topology)[i] != NULL; i++)
            if (strcmp(esper_blueprint_list((esper_topology)topology)[i]->name, new->name) == 0)
                return ESPER_FAIL(ESPER_E_CONFIG, "add_blueprints: there is a blueprint '%s' already", new->name);
    if (added[place].used)
        return ESPER_FAIL(ESPER_E_CONFIG, "add_blueprints: '%s' was added before in the place of '%s'",
                          added[place].name, new->name);
    memcpy(added[place].name, new->name, sizeof(new->name));
    memcpy(added[place].text, new->text, sizeof(new->text));
    for (int topology = 0; topology < ESPER_N_TOPOLOGIES; topology++) {
        esper_blueprint *blueprint = &added[place].blueprints[topology];
        int64_t n;

        esper_blueprint_init_text(blueprint, (esper_topology)topology, added[place].name, added[place].text, place);
        n = count_params(blueprint);
        blueprint->estimate = n > INT32_MAX ? INT32_MAX : (int)n;
        n_topologies += n >= 0;
    }
    if (n_topologies == 0) {
        (void)count_params(&added[place].blueprints[nearest_topology(new->text)]);
        return esper_fail_within(ESPER_E_CONFIG, "blueprint %s: ", new->name);
    }
    added[place].used = true;
    for (int topology = 0; topology < ESPER_N_TOPOLOGIES; topology++)
        if (added[place].blueprints[topology].estimate >= 0)
            esper_blueprint_append(&added[place].blueprints[topology]);
    return ESPER_OK;
}

esper_status esper_blueprint_texts_add(const char *texts)
{
    entry entries[ESPER_BLUEPRINT_TEXTS];
    int n;

    if (texts[0] == '\0')
        return ESPER_OK;
    ESPER_TRY(read_all(texts, entries, &n));
    for (int i = 0; i < n; i++) {
        if (added[i].used && strcmp(added[i].name, entries[i].name) == 0 && strcmp(added[i].text, entries[i].text) == 0)
            continue;
        ESPER_TRY(add_one(&entries[i], i));
    }
    return ESPER_OK;
}
