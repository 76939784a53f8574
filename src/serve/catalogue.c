/* Runs below a directory. */
#include "serve/catalogue.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/status.h"

static const double least_pause_s = 0.5; /* between two walks that somebody's unknown name asks for */

struct esper_catalogue {
    pthread_mutex_t mutex;
    char            dir[ESPER_PATH_CHARS];
    esper_index    *index;
    uint64_t        version;
    int             n;
    double          walked; /* when, by esper_clock_seconds */
};

static esper_status refresh(esper_catalogue *catalogue)
{
    esper_index_news news;

    catalogue->walked = esper_clock_seconds();
    ESPER_TRY(esper_index_refresh(catalogue->index, &news));
    catalogue->n = news.n_runs;
    catalogue->version += news.any;
    return ESPER_OK;
}

esper_status esper_catalogue_refresh(esper_catalogue *catalogue, uint64_t *version_out)
{
    esper_status status;

    pthread_mutex_lock(&catalogue->mutex);
    status = refresh(catalogue);
    *version_out = catalogue->version;
    pthread_mutex_unlock(&catalogue->mutex);
    return status;
}

/* Whether it runs is asked of the system: between two looks at the index a run begins, or ends. */
static esper_status find(esper_catalogue *catalogue, const char *id, esper_catalogue_entry *entry)
{
    char dir[ESPER_PATH_CHARS];
    esper_status status = esper_index_find(catalogue->index, id, entry->name);

    if (status == ESPER_E_NOTFOUND && esper_clock_seconds() - catalogue->walked > least_pause_s) {
        ESPER_TRY(refresh(catalogue));
        status = esper_index_find(catalogue->index, id, entry->name);
    }
    ESPER_TRY(status);
    ESPER_TRY(esper_run_path(catalogue->dir, entry->name, dir));
    ESPER_TRY(esper_run_path(dir, ESPER_RUN_STORE, entry->store));
    snprintf(entry->id, sizeof(entry->id), "%s", id);
    entry->running = esper_index_is_running(dir);
    return ESPER_OK;
}

esper_status esper_catalogue_find(esper_catalogue *catalogue, const char *id, esper_catalogue_entry *entry_out)
{
    esper_catalogue_entry entry;
    esper_status status;

    pthread_mutex_lock(&catalogue->mutex);
    status = find(catalogue, id, &entry);
    pthread_mutex_unlock(&catalogue->mutex);
    if (status == ESPER_OK)
        *entry_out = entry;
    return status;
}

esper_status esper_catalogue_list(esper_catalogue *catalogue, esper_page *page)
{
    char dir[6 * ESPER_PATH_CHARS + 16];
    esper_json json;
    esper_status status;

    esper_json_init(&json, dir, sizeof(dir));
    esper_json_text(&json, catalogue->dir);
    pthread_mutex_lock(&catalogue->mutex);
    esper_page_print(page, "{\"version\":%" PRIu64 ",\"dir\":%s,\"runs\":", catalogue->version, dir);
    status = esper_index_ask(catalogue->index, "SELECT * FROM runs ORDER BY run", page);
    pthread_mutex_unlock(&catalogue->mutex);
    esper_page_print(page, "}");
    return status == ESPER_OK ? page->status : status;
}

int esper_catalogue_count(esper_catalogue *catalogue)
{
    int n;

    pthread_mutex_lock(&catalogue->mutex);
    n = catalogue->n;
    pthread_mutex_unlock(&catalogue->mutex);
    return n;
}

esper_status esper_catalogue_open(const char *dir, esper_catalogue **catalogue_out)
{
    esper_catalogue *catalogue = esper_mem_alloc(sizeof(*catalogue));
    size_t n = strlen(dir);
    esper_status status;

    if (catalogue == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the list of runs");
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (n >= sizeof(catalogue->dir)) {
        esper_mem_free(catalogue);
        return ESPER_FAIL(ESPER_E_ARG, "the path %.60s... is too long", dir);
    }
    memcpy(catalogue->dir, dir, n);
    pthread_mutex_init(&catalogue->mutex, NULL);
    status = esper_index_open(catalogue->dir, &catalogue->index);
    if (status == ESPER_OK)
        status = refresh(catalogue);
    if (status != ESPER_OK) {
        esper_catalogue_close(catalogue);
        return status;
    }
    *catalogue_out = catalogue;
    return ESPER_OK;
}

void esper_catalogue_close(esper_catalogue *catalogue)
{
    if (catalogue == NULL)
        return;
    esper_index_close(catalogue->index);
    pthread_mutex_destroy(&catalogue->mutex);
    esper_mem_free(catalogue);
}
