/* The fork that got nothing. */
#include "learn/twin.h"

#include <assert.h>
#include <pthread.h>
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
    esper_network_remove(twin->fork);
    esper_mem_free(twin->accuracy);
    esper_mem_free(twin);
}

void esper_twin_move(esper_twin *twin, esper_backend_stream *stream)
{
    if (twin->fork != NULL)
        twin->fork->stream = stream;
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

/* A curve has no epochs behind those of an episode, and nobody asks for them. */
esper_status esper_twin_accuracy(esper_twin *twin, uint32_t epoch, double own, double *accuracy_out)
{
    assert(epoch >= 1);
    ESPER_TRY(make_room(twin, epoch));
    if (!twin->parted) {
        twin->accuracy[epoch - 1] = own;
        twin->n_known = epoch;
    }
    for (; twin->n_known < epoch; twin->n_known++) {
        double *accuracy = &twin->accuracy[twin->n_known];

        if (twin->fork != NULL)
            ESPER_TRY(train(twin->fork, accuracy));
        else
            *accuracy = twin->curve->accuracy[twin->n_known];
    }
    *accuracy_out = twin->accuracy[epoch - 1];
    return ESPER_OK;
}
