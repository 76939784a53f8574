/* The fork that got nothing. */
#include "learn/twin.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "engine/guarded.h"

/* A whole curve. Once it is in the book it stays where it is. */
typedef struct twin_curve {
    struct twin_curve   *next;
    const esper_engine *engine;
    uint64_t             seed;
    double               accuracy[]; /* at the end of each epoch of an episode, percent */
} twin_curve;

struct esper_twin_book {
    pthread_mutex_t lock; /* of which curves there are */
    twin_curve     *curves;
    int             n;
};

struct esper_twin {
    esper_network   *of;
    esper_twin_book *book;
    const twin_curve *curve;   /* in the book; NULL: it is not there */
    esper_slots       begun;   /* planted seeds are part of both */
    esper_network    *fork;    /* NULL: the network is its own twin, or the curve is known */
    bool              parted, is_clean; /* the latter: what is known so far is of the engine and the seed alone */
    double           *accuracy; /* (room) at the end of each epoch, percent */
    uint32_t          n_known, room;
    /* Whoever trains it for its network's thread: */
    pthread_mutex_t lock;
    pthread_cond_t  turn;
    bool            is_served, is_idle; /* somebody is there, and waits */
    bool            dismissed;
    uint32_t        wanted;             /* epochs that are to be known; 0: nothing is being done */
    esper_backend_stream *stream;       /* of that thread */
    esper_status    status;             /* what it came to */
    char            message[512];
};

/* ------------------------------------------------------------------------------------------------ the book */

esper_status esper_twin_book_open(esper_twin_book **book_out)
{
    esper_twin_book *book = esper_mem_alloc(sizeof(*book));

    if (book == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "a book of twins");
    pthread_mutex_init(&book->lock, NULL);
    *book_out = book;
    return ESPER_OK;
}

void esper_twin_book_close(esper_twin_book *book)
{
    twin_curve *next;

    if (book == NULL)
        return;
    for (twin_curve *it = book->curves; it != NULL; it = next) {
        next = it->next;
        esper_mem_free(it);
    }
    pthread_mutex_destroy(&book->lock);
    esper_mem_free(book);
}

int esper_twin_book_count(esper_twin_book *book)
{
    int n;

    pthread_mutex_lock(&book->lock);
    n = book->n;
    pthread_mutex_unlock(&book->lock);
    return n;
}

/* The lock is held. */
static const twin_curve *find(const esper_twin_book *book, const esper_engine *engine, uint64_t seed)
{
    for (const twin_curve *it = book->curves; it != NULL; it = it->next)
        if (it->engine == engine && it->seed == seed)
            return it;
    return NULL;
}

static const twin_curve *look_up(esper_twin_book *book, const esper_network *of)
{
    const twin_curve *curve;

    pthread_mutex_lock(&book->lock);
    curve = find(book, of->engine, of->seed);
    pthread_mutex_unlock(&book->lock);
    return curve;
}

/* Two twins of one seed may have been trained side by side: the curves are the same, and the first stays. Without memory there is
 * none, and it is trained again. */
static void write_down(esper_twin_book *book, const esper_network *of, const double *accuracy, size_t n)
{
    twin_curve *curve = esper_mem_alloc(sizeof(*curve) + n * sizeof(*accuracy));

    if (curve == NULL)
        return;
    curve->engine = of->engine;
    curve->seed = of->seed;
    memcpy(curve->accuracy, accuracy, n * sizeof(*accuracy));
    pthread_mutex_lock(&book->lock);
    if (find(book, of->engine, of->seed) == NULL) {
        curve->next = book->curves;
        book->curves = curve;
        book->n++;
        curve = NULL;
    }
    pthread_mutex_unlock(&book->lock);
    esper_mem_free(curve);
}

/* ------------------------------------------------------------------------------------------------ one twin */

/* The network has gone the way that its seed alone would have taken it. */
static bool went_straight(const esper_network *network)
{
    esper_governor_reading reading = esper_guarded_reading(network);

    return reading.n_rollbacks == 0 && reading.n_skipped == 0;
}

esper_status esper_twin_open(esper_network *of, esper_twin_book *book, esper_twin **twin_out)
{
    esper_twin *twin = esper_mem_alloc(sizeof(*twin));

    if (twin == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "the twin of an environment");
    pthread_mutex_init(&twin->lock, NULL);
    pthread_cond_init(&twin->turn, NULL);
    twin->of = of;
    twin->begun = of->slots;
    twin->book = book;
    twin->curve = book != NULL ? look_up(book, of) : NULL;
    *twin_out = twin;
    return ESPER_OK;
}

void esper_twin_close(esper_twin *twin)
{
    size_t n_epochs;

    if (twin == NULL)
        return;
    n_epochs = (size_t)twin->of->engine->config.epochs;
    if (twin->book != NULL && twin->curve == NULL && twin->n_known >= n_epochs &&
        (twin->parted ? twin->is_clean : went_straight(twin->of)))
        write_down(twin->book, twin->of, twin->accuracy, n_epochs);
    assert(!twin->is_served);
    esper_network_remove(twin->fork);
    pthread_cond_destroy(&twin->turn);
    pthread_mutex_destroy(&twin->lock);
    esper_mem_free(twin->accuracy);
    esper_mem_free(twin);
}

/* Some seed that was not planted has a part in what the host computes. */
static bool has_grown(const esper_twin *twin)
{
    const esper_network *of = twin->of;

    for (int k = 0; k < of->slots.n; k++)
        if (esper_stage_runs_seed(of->slots.slot[k].stage) && of->side[k] == NULL &&
            !esper_stage_runs_seed(twin->begun.slot[k].stage))
            return true;
    return false;
}

esper_status esper_twin_watch(esper_twin *twin)
{
    if (twin->parted || !has_grown(twin))
        return ESPER_OK;
    twin->is_clean = went_straight(twin->of);
    if (twin->curve == NULL || !twin->is_clean)
        ESPER_TRY(esper_network_fork(twin->of, &twin->begun, &twin->fork));
    twin->parted = true;
    return ESPER_OK;
}

/* An epoch of the fork, on the thread of its network. */
static esper_status train(esper_network *fork, double *accuracy_out)
{
    esper_tally valid;

    if (esper_network_epoch_done(fork))
        esper_network_next_epoch(fork);
    while (!esper_network_epoch_done(fork))
        ESPER_TRY(esper_network_queue_step(fork));
    ESPER_TRY(esper_network_evaluate(fork, ESPER_SPLIT_VALID, NULL, &valid));
    *accuracy_out = esper_tally_accuracy(&valid);
    return ESPER_OK;
}

static esper_status make_room(esper_twin *twin, uint32_t epoch)
{
    uint32_t room = twin->room == 0 ? 32 : 2 * twin->room;
    double *grown;

    if (epoch <= twin->room)
        return ESPER_OK;
    room = room > epoch ? room : epoch;
    grown = esper_mem_grow(twin->accuracy, room * sizeof(*grown));
    if (grown == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "%u epochs of a twin", room);
    twin->accuracy = grown;
    twin->room = room;
    return ESPER_OK;
}

/* Up to so many epochs. A curve has none behind those of an episode, and nobody asks for them. */
static esper_status train_to(esper_twin *twin, uint32_t epoch)
{
    for (; twin->n_known < epoch; twin->n_known++) {
        double *accuracy = &twin->accuracy[twin->n_known];

        if (twin->fork != NULL)
            ESPER_TRY(train(twin->fork, accuracy));
        else
            *accuracy = twin->curve->accuracy[twin->n_known];
    }
    return ESPER_OK;
}

/* ------------------------------------------------------------------------------------------------ by somebody else */

void esper_twin_expect(esper_twin *twin)
{
    twin->dismissed = false;
}

/* The backend waits for nobody who is idle. */
static void set_idle(esper_twin *twin, bool idle)
{
    if (twin->is_idle != idle)
        esper_backend_stand_by(twin->of->engine->backend, idle);
    twin->is_idle = idle;
}

void esper_twin_serve(esper_twin *twin, esper_backend_stream *stream)
{
    pthread_mutex_lock(&twin->lock);
    twin->is_served = !twin->dismissed;
    twin->stream = stream;
    for (;;) {
        uint32_t wanted;

        while (twin->wanted == 0 && !twin->dismissed) {
            set_idle(twin, true);
            pthread_cond_wait(&twin->turn, &twin->lock);
        }
        wanted = twin->wanted;
        if (wanted == 0)
            break;
        pthread_mutex_unlock(&twin->lock);
        twin->fork->stream = stream;
        twin->status = train_to(twin, wanted);
        if (twin->status != ESPER_OK)
            snprintf(twin->message, sizeof(twin->message), "%s", esper_last_error());
        pthread_mutex_lock(&twin->lock);
        twin->wanted = 0;
        pthread_cond_broadcast(&twin->turn);
    }
    set_idle(twin, false);
    twin->is_served = false;
    pthread_cond_broadcast(&twin->turn);
    pthread_mutex_unlock(&twin->lock);
}

esper_status esper_twin_begin(esper_twin *twin, uint32_t epoch)
{
    if (!twin->parted || twin->fork == NULL || twin->n_known >= epoch)
        return ESPER_OK;
    ESPER_TRY(make_room(twin, epoch));
    pthread_mutex_lock(&twin->lock);
    if (twin->is_served) {
        esper_status status = esper_network_wait(twin->of); /* of which it may be a copy on the way */

        if (status != ESPER_OK) {
            pthread_mutex_unlock(&twin->lock);
            return status;
        }
        twin->wanted = epoch;
        set_idle(twin, false); /* in its stead, so that the others wait for it from now on */
        pthread_cond_broadcast(&twin->turn);
    }
    pthread_mutex_unlock(&twin->lock);
    return ESPER_OK;
}

/* Until nothing is being done. */
static esper_status await(esper_twin *twin)
{
    esper_status status;

    pthread_mutex_lock(&twin->lock);
    if (twin->wanted > 0) {
        esper_backend_stand_by(twin->of->engine->backend, true);
        while (twin->wanted > 0)
            pthread_cond_wait(&twin->turn, &twin->lock);
        esper_backend_stand_by(twin->of->engine->backend, false);
        twin->fork->stream = twin->of->stream;
    }
    status = twin->status;
    twin->status = ESPER_OK;
    pthread_mutex_unlock(&twin->lock);
    return status == ESPER_OK ? ESPER_OK : ESPER_FAIL(status, "%s", twin->message);
}

void esper_twin_move(esper_twin *twin, esper_backend_stream *stream)
{
    (void)await(twin); /* what failed there fails again when somebody asks for it */
    if (twin->fork != NULL)
        twin->fork->stream = stream;
}

void esper_twin_dismiss(esper_twin *twin)
{
    (void)await(twin);
    pthread_mutex_lock(&twin->lock);
    twin->dismissed = true;
    pthread_cond_broadcast(&twin->turn);
    pthread_mutex_unlock(&twin->lock);
}

/* ------------------------------------------------------------------------------------------------ what it came to */

esper_status esper_twin_accuracy(esper_twin *twin, uint32_t epoch, double own, double *accuracy_out)
{
    assert(epoch >= 1);
    ESPER_TRY(await(twin));
    ESPER_TRY(make_room(twin, epoch));
    if (!twin->parted) {
        twin->accuracy[epoch - 1] = own;
        twin->n_known = epoch;
    }
    ESPER_TRY(train_to(twin, epoch));
    *accuracy_out = twin->accuracy[epoch - 1];
    return ESPER_OK;
}
