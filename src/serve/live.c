/* Channels, their messages, and the thread that looks. */
#include "serve/live.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "serve/answers.h"

enum {
    MOST_MESSAGES = 64, /* that a channel keeps */
    LOOK_MS = 300,      /* between two looks at a store, which is written a few times a second */
    LIST_MS = 2000,
    BEAT_MS = 15000, /* something is sent at least so often, so that both ends notice when the other has gone */
};

/* Shared by the listeners that have yet to send it. */
typedef struct message {
    int    n_uses;
    size_t bytes;
    char   text[];
} message;

typedef struct channel {
    struct channel       *next;
    esper_live_listener  *listeners;
    bool                  of_list;
    bool                  spent; /* the store is not what it was: it takes no new listeners, and those it has are ended */
    esper_catalogue_entry entry;
    esper_source          source; /* of a run, open while is_open */
    bool                  is_open;
    esper_page            runs;   /* the rows of its runs as they were told last */
    uint64_t              version; /* of the list */
    double                due, beat_due; /* when to look, and to send something, by esper_clock_seconds */
    message              *messages[MOST_MESSAGES]; /* number i lies at i % MOST_MESSAGES */
    uint64_t              n_messages;
} channel;

struct esper_live_listener {
    esper_live          *live;
    channel             *on;
    esper_live_listener *next;
    void                *connection;
    uint64_t             next_message;
    message             *current;
    size_t               sent; /* bytes of it */
    bool                 asleep, ended;
};

struct esper_live {
    pthread_mutex_t  mutex;
    pthread_cond_t   changed; /* somebody came, or it is over */
    pthread_t        watcher;
    esper_catalogue *catalogue;
    esper_live_ops   ops;
    channel         *channels;
    bool             over;
};

/* ------------------------------------------------------------------------------------------------ messages */

static void release(message *one)
{
    if (one != NULL && --one->n_uses == 0)
        esper_mem_free(one);
}

static message *message_of(const char *text, size_t bytes)
{
    message *one = esper_mem_alloc(sizeof(*one) + bytes);

    if (one != NULL) {
        one->n_uses = 1;
        one->bytes = bytes;
        memcpy(one->text, text, bytes);
    }
    return one;
}

/* A message that finds no memory ends everybody: they come again, and catch up. The ring has no gap then, as nobody reads it. */
static void push(esper_live *live, channel *to, const char *text, size_t bytes)
{
    message *one = message_of(text, bytes), **place = &to->messages[to->n_messages % MOST_MESSAGES];

    release(*place);
    *place = one;
    to->n_messages += one != NULL ? 1 : MOST_MESSAGES + 1;
    to->beat_due = esper_clock_seconds() + BEAT_MS * 1e-3;
    for (esper_live_listener *l = to->listeners; l != NULL; l = l->next)
        if (l->asleep) {
            l->asleep = false;
            live->ops.wake(l->connection);
        }
}

static void frame(esper_page *page, const esper_mark *mark, const char *event)
{
    char id[ESPER_MARK_CHARS];

    if (mark != NULL)
        esper_page_print(page, "id: %s\n", esper_mark_write(mark, id));
    esper_page_print(page, "event: %s\ndata: ", event);
}

static void push_word(esper_live *live, channel *to, const char *event)
{
    esper_page page = {0};

    frame(&page, NULL, event);
    esper_page_print(&page, "{}\n\n");
    if (page.status == ESPER_OK)
        push(live, to, page.text, page.used);
    esper_page_fini(&page);
}

/* ------------------------------------------------------------------------------------------------ looking */

static bool is_behind(const esper_mark *a, const esper_mark *b)
{
    return a->seq < b->seq || a->seq_control < b->seq_control;
}

/* What its runs are now, in the channel's words; true: they are not what they were. */
static bool compare_runs(channel *on)
{
    esper_page now = {0};
    bool changed;

    esper_answer_run(&on->source.run, on->entry.running, &now);
    if (on->source.has_control)
        esper_answer_run(&on->source.control, on->entry.running, &now);
    changed = now.status == ESPER_OK && (on->runs.text == NULL || strcmp(now.text, on->runs.text) != 0);
    if (changed) {
        esper_page_fini(&on->runs);
        on->runs = now;
    } else {
        esper_page_fini(&now);
    }
    return changed;
}

/* News behind `from`, framed; E_NOTFOUND and the like are the caller's to tell. */
static esper_status compose(channel *on, const esper_mark *from, bool with_runs, esper_page *page)
{
    frame(page, &on->source.mark, "rows");
    ESPER_TRY(esper_answer_news(&on->source, from, with_runs, on->entry.running, page));
    esper_page_print(page, "\n\n");
    return page->status;
}

static void look_at_run(esper_live *live, channel *on)
{
    esper_mark before = on->source.mark;
    esper_catalogue_entry now;
    esper_page page = {0};
    esper_status status;
    bool changed;

    status = esper_catalogue_find(live->catalogue, on->entry.id, &now);
    if (status == ESPER_OK) {
        on->entry = now;
        status = esper_source_look(&on->source, on->entry.store);
    }
    if (status != ESPER_OK) { /* it is gone, or another: who comes again finds out which */
        push_word(live, on, "gone");
        on->spent = true;
        return;
    }
    if (on->source.mark.generation != before.generation) {
        compare_runs(on);
        push_word(live, on, "reset");
        return;
    }
    changed = compare_runs(on);
    if (!changed && !is_behind(&before, &on->source.mark))
        return;
    if (compose(on, &before, changed, &page) == ESPER_OK)
        push(live, on, page.text, page.used);
    else
        on->source.mark = before; /* again next time */
    esper_page_fini(&page);
}

static void look_at_list(esper_live *live, channel *on)
{
    uint64_t version;
    esper_page page = {0};

    if (esper_catalogue_refresh(live->catalogue, &version) != ESPER_OK || version == on->version)
        return;
    on->version = version;
    frame(&page, NULL, "runs");
    esper_page_print(&page, "{\"version\":%" PRIu64 "}\n\n", version);
    if (page.status == ESPER_OK)
        push(live, on, page.text, page.used);
    esper_page_fini(&page);
}

static void channel_close(channel *one)
{
    for (int i = 0; i < MOST_MESSAGES; i++)
        release(one->messages[i]);
    if (one->is_open)
        esper_source_close(&one->source);
    esper_page_fini(&one->runs);
    esper_mem_free(one);
}

/* Channels that nobody listens to any more go. */
static void sweep(esper_live *live)
{
    channel **at = &live->channels;

    while (*at != NULL) {
        channel *one = *at;

        if (one->listeners == NULL) {
            *at = one->next;
            channel_close(one);
        } else {
            at = &one->next;
        }
    }
}

/* The clock that conditions wait by. */
static void wait_ms(esper_live *live, int ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&live->changed, &live->mutex, &until);
}

static void *watch(void *self)
{
    static const char beat[] = ": beat\n\n";
    esper_live *live = self;
    double refreshed = 0.0;

    pthread_mutex_lock(&live->mutex);
    while (!live->over) {
        bool any = false;

        sweep(live);
        for (channel *c = live->channels; c != NULL && !live->over; c = c->next) {
            double now = esper_clock_seconds();

            any = true;
            if (now >= c->due) {
                c->due = now + (c->of_list ? LIST_MS : LOOK_MS) * 1e-3;
                if (!c->of_list &&
                    now - refreshed > LIST_MS * 1e-3) { /* whether its process is there, among other things */
                    uint64_t version;

                    refreshed = now;
                    (void)esper_catalogue_refresh(live->catalogue, &version);
                }
                if (!c->spent)
                    (c->of_list ? look_at_list : look_at_run)(live, c);
            }
            if (now >= c->beat_due)
                push(live, c, beat, strlen(beat));
        }
        if (any)
            wait_ms(live, LOOK_MS / 2);
        else
            pthread_cond_wait(&live->changed, &live->mutex);
    }
    pthread_mutex_unlock(&live->mutex);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ listening */

static esper_status channel_open(esper_live *live, const esper_catalogue_entry *entry, channel **channel_out)
{
    channel *one = esper_mem_alloc(sizeof(*one));
    esper_status status = ESPER_OK;

    if (one == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a channel");
    one->of_list = entry == NULL;
    one->beat_due = esper_clock_seconds() + BEAT_MS * 1e-3;
    if (entry != NULL) {
        one->entry = *entry;
        status = esper_source_open(entry->store, &one->source);
        one->is_open = status == ESPER_OK;
    } else {
        status = esper_catalogue_refresh(live->catalogue, &one->version);
    }
    if (status != ESPER_OK) {
        channel_close(one);
        return status;
    }
    if (entry != NULL)
        compare_runs(one);
    one->next = live->channels;
    live->channels = one;
    *channel_out = one;
    return ESPER_OK;
}

static esper_status find_channel(esper_live *live, const esper_catalogue_entry *entry, channel **channel_out)
{
    for (channel *c = live->channels; c != NULL; c = c->next)
        if (c->of_list == (entry == NULL) && !c->spent && (entry == NULL || strcmp(c->entry.id, entry->id) == 0)) {
            *channel_out = c;
            return ESPER_OK;
        }
    return channel_open(live, entry, channel_out);
}

/* The first message of a listener: what it missed, or that it must read all anew. */
static esper_status greet(esper_live_listener *listener, const esper_mark *since)
{
    channel *on = listener->on;
    esper_page page = {0};
    esper_status status = ESPER_OK;

    esper_page_print(&page, "retry: 1000\n: hello\n\n");
    if (since != NULL && !on->of_list && since->generation != on->source.mark.generation)
        esper_page_print(&page, "event: reset\ndata: {}\n\n");
    else if (since != NULL && !on->of_list)
        status = compose(on, since, true, &page);
    else if (on->of_list)
        esper_page_print(&page, "event: runs\ndata: {\"version\":%" PRIu64 "}\n\n", on->version);
    if (status == ESPER_OK)
        status = page.status;
    listener->current = status == ESPER_OK ? message_of(page.text, page.used) : NULL;
    esper_page_fini(&page);
    if (status == ESPER_OK && listener->current == NULL)
        status = ESPER_FAIL(ESPER_E_NOMEM, "a message");
    return status;
}

static esper_status listen_locked(esper_live *live, const esper_catalogue_entry *entry, const esper_mark *since,
                                  esper_live_listener *listener)
{
    if (live->over)
        return ESPER_FAIL(ESPER_E_STATE, "the server stops");
    ESPER_TRY(find_channel(live, entry, &listener->on));
    ESPER_TRY(greet(listener, since));
    listener->next_message = listener->on->n_messages;
    listener->next = listener->on->listeners;
    listener->on->listeners = listener;
    pthread_cond_signal(&live->changed);
    return ESPER_OK;
}

esper_status esper_live_listen(esper_live *live, const esper_catalogue_entry *entry, const esper_mark *since,
                               void *connection, esper_live_listener **listener_out)
{
    esper_live_listener *listener = esper_mem_alloc(sizeof(*listener));
    esper_status status;

    if (listener == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a listener");
    listener->live = live;
    listener->connection = connection;
    pthread_mutex_lock(&live->mutex);
    status = listen_locked(live, entry, since, listener);
    pthread_mutex_unlock(&live->mutex);
    if (status != ESPER_OK) {
        release(listener->current);
        esper_mem_free(listener);
        return status;
    }
    *listener_out = listener;
    return ESPER_OK;
}

void esper_live_leave(esper_live_listener *listener)
{
    esper_live *live = listener->live;

    pthread_mutex_lock(&live->mutex);
    for (esper_live_listener **at = &listener->on->listeners; *at != NULL; at = &(*at)->next)
        if (*at == listener) {
            *at = listener->next;
            break;
        }
    release(listener->current);
    pthread_mutex_unlock(&live->mutex);
    esper_mem_free(listener);
}

void esper_live_end(esper_live *live, const void *connection)
{
    pthread_mutex_lock(&live->mutex);
    for (channel *c = live->channels; c != NULL; c = c->next)
        for (esper_live_listener *l = c->listeners; l != NULL; l = l->next)
            if (l->connection == connection && l->asleep) {
                l->asleep = false;
                l->ended = true;
                live->ops.wake(l->connection);
            }
    pthread_mutex_unlock(&live->mutex);
}

/* The next message, if there is one; it is behind when the channel does not have that any more. */
static void turn_page(esper_live_listener *listener)
{
    channel *on = listener->on;

    if (listener->current != NULL && listener->sent < listener->current->bytes)
        return;
    release(listener->current);
    listener->current = NULL;
    listener->sent = 0;
    if (on->n_messages - listener->next_message > MOST_MESSAGES) {
        listener->ended = true;
    } else if (listener->next_message < on->n_messages) {
        listener->current = on->messages[listener->next_message++ % MOST_MESSAGES];
        assert(listener->current != NULL);
        listener->current->n_uses++;
    }
}

ssize_t esper_live_read(esper_live_listener *listener, char *bytes, size_t room)
{
    esper_live *live = listener->live;
    ssize_t n = 0;

    pthread_mutex_lock(&live->mutex);
    turn_page(listener);
    if (listener->current != NULL) {
        size_t left = listener->current->bytes - listener->sent;

        n = (ssize_t)(left < room ? left : room);
        memcpy(bytes, listener->current->text + listener->sent, (size_t)n);
        listener->sent += (size_t)n;
    } else if (listener->ended || listener->on->spent || live->over) {
        n = -1;
    } else {
        listener->asleep = true;
        live->ops.sleep(listener->connection);
    }
    pthread_mutex_unlock(&live->mutex);
    return n;
}

/* ------------------------------------------------------------------------------------------------ beginning and end */

esper_status esper_live_open(esper_catalogue *catalogue, const esper_live_ops *ops, esper_live **live_out)
{
    esper_live *live = esper_mem_alloc(sizeof(*live));
    pthread_condattr_t monotonic;

    if (live == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the watcher of stores");
    live->catalogue = catalogue;
    live->ops = *ops;
    pthread_mutex_init(&live->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&live->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&live->watcher, NULL, watch, live) != 0) {
        pthread_cond_destroy(&live->changed);
        pthread_mutex_destroy(&live->mutex);
        esper_mem_free(live);
        return ESPER_FAIL(ESPER_E_IO, "a thread cannot be started: %s", strerror(errno));
    }
    *live_out = live;
    return ESPER_OK;
}

void esper_live_stop(esper_live *live)
{
    pthread_mutex_lock(&live->mutex);
    live->over = true;
    for (channel *c = live->channels; c != NULL; c = c->next)
        for (esper_live_listener *l = c->listeners; l != NULL; l = l->next)
            if (l->asleep) {
                l->asleep = false;
                live->ops.wake(l->connection);
            }
    pthread_cond_signal(&live->changed);
    pthread_mutex_unlock(&live->mutex);
    pthread_join(live->watcher, NULL);
}

void esper_live_close(esper_live *live)
{
    if (live == NULL)
        return;
    sweep(live);
    assert(live->channels == NULL);
    pthread_cond_destroy(&live->changed);
    pthread_mutex_destroy(&live->mutex);
    esper_mem_free(live);
}
