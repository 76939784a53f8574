/* The model of the drawing, from a store or from a host, and as JSON. */
#include "ui/drawing.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"

bool esper_drawing_has_seed(const esper_drawing_part *part)
{
    return part->is_slot && esper_stage_has_seed(part->stage);
}

/* ------------------------------------------------------------------------------------------------ the model */

static void make_slot(esper_drawing_part *part)
{
    part->is_slot = true;
    part->stage = ESPER_STAGE_DORMANT;
    part->seed = ESPER_STORE_NO_INT;
    part->seq = -1;
}

static esper_drawing_part *find_slot(esper_drawing *drawing, const char *name)
{
    for (int i = 0; i < drawing->n; i++)
        if (drawing->part[i].is_slot && strcmp(drawing->part[i].name, name) == 0)
            return &drawing->part[i];
    return NULL;
}

/* Of a store that does not know its slots, one that is heard of is put where its name belongs: r0c0 before r0c1 before r1c0. */
static esper_drawing_part *take_slot(esper_drawing *drawing, const char *name)
{
    esper_drawing_part *known = find_slot(drawing, name);
    int at;

    if (known != NULL || !drawing->guessed || name[0] == '\0' || drawing->n == ESPER_HOST_MAX_PARTS)
        return known;
    for (at = drawing->n; at > 0 && drawing->part[at - 1].is_slot && strcmp(drawing->part[at - 1].name, name) > 0; at--)
        drawing->part[at] = drawing->part[at - 1];
    drawing->part[at] = (esper_drawing_part){.is_slot = false};
    make_slot(&drawing->part[at]);
    snprintf(drawing->part[at].name, sizeof(drawing->part[at].name), "%s", name);
    drawing->n++;
    return &drawing->part[at];
}

static int64_t likely(int64_t params)
{
    return params < 0 ? 0 : params; /* anything can stand in a database */
}

static void measure(esper_drawing *drawing)
{
    drawing->params_seeds = 0;
    drawing->params_largest = 1;
    for (int i = 0; i < drawing->n; i++) {
        const esper_drawing_part *part = &drawing->part[i];

        if (esper_drawing_has_seed(part) && part->params <= INT64_MAX - drawing->params_seeds)
            drawing->params_seeds += part->params;
        if ((!part->is_slot || esper_drawing_has_seed(part)) && part->params > drawing->params_largest)
            drawing->params_largest = part->params;
    }
}

void esper_drawing_of_host(const esper_net *plain, esper_drawing *drawing_out)
{
    esper_host_part parts[ESPER_HOST_MAX_PARTS];

    *drawing_out = (esper_drawing){.n = esper_parts_list(plain, parts)};
    for (int i = 0; i < drawing_out->n; i++) {
        esper_drawing_part *part = &drawing_out->part[i];

        snprintf(part->name, sizeof(part->name), "%s", parts[i].name);
        snprintf(part->shape, sizeof(part->shape), "%s", parts[i].shape);
        part->params = parts[i].params;
        drawing_out->params_host += parts[i].params;
        if (parts[i].is_slot)
            make_slot(part);
    }
    measure(drawing_out);
}

/* How much of a slot's name is that of the first one at its place: r0c1 of r0c1_2. */
static size_t first_name(const char *name)
{
    size_t n = strlen(name), all = n;

    while (n > 0 && isdigit((unsigned char)name[n - 1]))
        n--;
    return n > 1 && n < all && name[n - 1] == '_' && name[n] > (n + 1 < all ? '0' : '1') ? n - 1 : all;
}

/* Slots at one place stand beside each other, and the first of them has the name that the others begin with. */
static bool opens_behind(const char *name, const char *before)
{
    size_t n = first_name(name);

    return n < strlen(name) && strncmp(name, before, n) == 0 && (before[n] == '\0' || first_name(before) == n);
}

void esper_drawing_drop_closed(esper_drawing *drawing)
{
    int n = 0;

    for (int i = 0; i < drawing->n; i++) {
        const esper_drawing_part *part = &drawing->part[i], *before = n > 0 ? &drawing->part[n - 1] : NULL;
        bool behind = part->is_slot && before != NULL && before->is_slot && opens_behind(part->name, before->name);

        if (!behind || before->stage == ESPER_STAGE_FOSSILIZED || part->stage != ESPER_STAGE_DORMANT)
            drawing->part[n++] = *part;
    }
    drawing->n = n;
}

void esper_drawing_set(esper_drawing *drawing, const char *slot, int stage, double alpha, const char *blueprint,
                       int64_t params)
{
    esper_drawing_part *part = find_slot(drawing, slot);

    if (part == NULL)
        return;
    part->stage = stage;
    part->alpha = alpha;
    part->params = likely(params);
    snprintf(part->blueprint, sizeof(part->blueprint), "%s", blueprint);
    measure(drawing);
}

/* ------------------------------------------------------------------------------------------------ from a store */

static void take_part(esper_drawing *drawing, const esper_store_record *record)
{
    esper_drawing_part *part = &drawing->part[drawing->n];

    if (drawing->n == ESPER_HOST_MAX_PARTS)
        return;
    *part = (esper_drawing_part){.is_slot = false};
    snprintf(part->name, sizeof(part->name), "%s", record->part.name);
    snprintf(part->shape, sizeof(part->shape), "%s", record->part.shape);
    part->params = likely(record->part.params);
    if (strcmp(record->part.what, "slot") == 0)
        make_slot(part);
    drawing->n++;
}

/* What happened last to a slot is what it is: rows come from three tables, so each goes by its number. */
static void take_row(esper_drawing *drawing, const esper_store_record *record)
{
    const char *name = record->kind == ESPER_STORE_GERMINATION ? record->germination.slot
                       : record->kind == ESPER_STORE_STAGE     ? record->stage.slot
                                                               : record->seed_epoch.slot;
    esper_drawing_part *part = take_slot(drawing, name);
    int stage;

    if (part == NULL || record->epoch > drawing->epoch)
        return;
    if (record->kind == ESPER_STORE_GERMINATION) { /* the one of the seed that is there is the last, too */
        part->seed = record->germination.seed;
        part->params = likely(record->germination.params);
        snprintf(part->blueprint, sizeof(part->blueprint), "%s", record->germination.blueprint);
    }
    if (record->seq < part->seq)
        return;
    part->seq = record->seq;
    if (record->kind == ESPER_STORE_STAGE) {
        stage = esper_stage_find(record->stage.to_stage);
        part->stage = stage >= 0 ? stage : ESPER_STAGE_UNKNOWN;
        part->alpha = record->stage.alpha;
    } else if (record->kind == ESPER_STORE_SEED_EPOCH) {
        stage = esper_stage_find(record->seed_epoch.stage);
        part->stage = stage >= 0 ? stage : ESPER_STAGE_UNKNOWN;
        part->alpha = record->seed_epoch.alpha;
        part->params = likely(record->seed_epoch.params);
        if (part->seed == ESPER_STORE_NO_INT)
            part->seed = record->seed_epoch.seed;
    } else {
        part->stage = ESPER_STAGE_GERMINATED;
        part->alpha = 0.0;
    }
}

typedef void (*take)(esper_drawing *drawing, const esper_store_record *record);

static esper_status walk(esper_store_reader *reader, esper_store_kind kind, int64_t run, take each, esper_drawing *to)
{
    esper_store_filter filter = {.run = run, .seed = ESPER_STORE_ANY, .gate = ESPER_STORE_ANY, .standing = true};
    esper_store_cursor *cursor;
    esper_store_record record;
    esper_status status;
    bool found = true;

    ESPER_TRY(esper_store_read(reader, kind, &filter, &cursor));
    while ((status = esper_store_next(cursor, &record, &found)) == ESPER_OK && found)
        each(to, &record);
    esper_store_cursor_close(cursor);
    return status;
}

/* The last epoch that anything is told of. */
static void find_last(esper_drawing *drawing, const esper_store_record *record)
{
    if (record->epoch > drawing->epoch)
        drawing->epoch = record->epoch;
}

static esper_status find_host(esper_store_reader *reader, int64_t id, int64_t *params_out)
{
    esper_store_cursor *cursor;
    esper_store_run run;
    esper_status status;
    bool found = true, has_run = false;

    ESPER_TRY(esper_store_read_runs(reader, &cursor));
    while ((status = esper_store_next_run(cursor, &run, &found)) == ESPER_OK && found)
        if (run.id == id) {
            *params_out = likely(run.params_host);
            has_run = true;
        }
    esper_store_cursor_close(cursor);
    if (status == ESPER_OK && !has_run)
        return ESPER_FAIL(ESPER_E_NOTFOUND, "the store holds no run %lld", (long long)id);
    return status;
}

static esper_status read_all(esper_store_reader *reader, int64_t run, int64_t epoch, esper_drawing *drawing)
{
    static const esper_store_kind tables[] = {ESPER_STORE_GERMINATION, ESPER_STORE_STAGE, ESPER_STORE_SEED_EPOCH};

    ESPER_TRY(find_host(reader, run, &drawing->params_host));
    ESPER_TRY(walk(reader, ESPER_STORE_PART, run, take_part, drawing));
    if (drawing->n == 0) {
        drawing->guessed = true;
        drawing->part[drawing->n++] = (esper_drawing_part){.name = "host", .params = drawing->params_host};
    }
    ESPER_TRY(walk(reader, ESPER_STORE_EPOCH, run, find_last, drawing));
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        ESPER_TRY(walk(reader, tables[i], run, find_last, drawing));
    if (epoch < drawing->epoch)
        drawing->epoch = epoch > 0 ? epoch : 0;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        ESPER_TRY(walk(reader, tables[i], run, take_row, drawing));
    measure(drawing);
    if (!drawing->guessed)
        esper_drawing_drop_closed(drawing);
    return ESPER_OK;
}

esper_status esper_drawing_read(esper_store_reader *reader, int64_t run, int64_t epoch, esper_drawing *drawing_out)
{
    *drawing_out = (esper_drawing){.n = 0};
    return read_all(reader, run, epoch, drawing_out);
}

/* ------------------------------------------------------------------------------------------------ as JSON */

static void put_text(esper_json *json, const char *key, const char *text)
{
    esper_json_key(json, key);
    esper_json_text(json, text);
}

static void put_int(esper_json *json, const char *key, int64_t value)
{
    esper_json_key(json, key);
    esper_json_int(json, value);
}

static void put_part(esper_json *json, const esper_drawing_part *part)
{
    const char *stage = esper_stage_name(part->stage);

    esper_json_object_begin(json);
    put_text(json, "what", part->is_slot ? "slot" : "block");
    put_text(json, "name", part->name);
    put_text(json, "shape", part->shape);
    if (part->is_slot)
        put_text(json, "stage", stage != NULL ? stage : "unknown");
    if (esper_drawing_has_seed(part)) {
        esper_json_key(json, "alpha");
        esper_json_real(json, part->alpha);
        if (part->seed != ESPER_STORE_NO_INT)
            put_int(json, "seed", part->seed);
        put_text(json, "blueprint", part->blueprint);
    }
    if (!part->is_slot || esper_drawing_has_seed(part))
        put_int(json, "params", part->params);
    esper_json_object_end(json);
}

void esper_drawing_json(esper_page *page, const esper_drawing *drawing)
{
    enum { PART_BYTES = 1600 }; /* a character can become six */
    size_t room = (size_t)(drawing->n + 1) * PART_BYTES;
    char *text = esper_mem_alloc(room);
    esper_json json;

    if (text == NULL) {
        if (page->status == ESPER_OK)
            page->status = ESPER_FAIL(ESPER_E_NOMEM, "drawing of %d parts", drawing->n);
        return;
    }
    esper_json_init(&json, text, room);
    esper_json_object_begin(&json);
    put_int(&json, "epoch", drawing->epoch);
    put_int(&json, "params_host", drawing->params_host);
    put_int(&json, "params_seeds", drawing->params_seeds);
    esper_json_key(&json, "guessed");
    esper_json_bool(&json, drawing->guessed);
    esper_json_key(&json, "parts");
    esper_json_array_begin(&json);
    for (int i = 0; i < drawing->n; i++)
        put_part(&json, &drawing->part[i]);
    esper_json_array_end(&json);
    esper_json_object_end(&json);
    assert(!json.overflow);
    esper_page_print(page, "%s", text);
    esper_mem_free(text);
}
