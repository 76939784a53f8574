/* A thread that does one thing at a time. */
#include "dist/mpi/helper.h"

#include <assert.h>
#include <signal.h>
#include <stddef.h>

static void *live(void *argument)
{
    esper_helper *helper = argument;

    pthread_mutex_lock(&helper->mutex);
    while (!helper->must_end) {
        if (helper->work == NULL) {
            pthread_cond_wait(&helper->given, &helper->mutex);
            continue;
        }
        pthread_mutex_unlock(&helper->mutex);
        helper->work(helper->context);
        pthread_mutex_lock(&helper->mutex);
        helper->work = NULL;
    }
    pthread_mutex_unlock(&helper->mutex);
    return NULL;
}

/* Signals are for the thread that gives the work: it must not sleep through one. The threads of MPI come from this one. */
bool esper_helper_start(esper_helper *helper)
{
    sigset_t all, before;
    bool good;

    *helper = (esper_helper){.work = NULL};
    pthread_mutex_init(&helper->mutex, NULL);
    pthread_cond_init(&helper->given, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    good = pthread_create(&helper->thread, NULL, live, helper) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return good;
}

void esper_helper_stop(esper_helper *helper)
{
    pthread_mutex_lock(&helper->mutex);
    assert(helper->work == NULL);
    helper->must_end = true;
    pthread_cond_signal(&helper->given);
    pthread_mutex_unlock(&helper->mutex);
    pthread_join(helper->thread, NULL);
    pthread_cond_destroy(&helper->given);
    pthread_mutex_destroy(&helper->mutex);
}

void esper_helper_give(esper_helper *helper, void (*work)(void *context), void *context)
{
    pthread_mutex_lock(&helper->mutex);
    assert(helper->work == NULL);
    helper->work = work;
    helper->context = context;
    pthread_cond_signal(&helper->given);
    pthread_mutex_unlock(&helper->mutex);
}

bool esper_helper_is_done(esper_helper *helper)
{
    bool done;

    pthread_mutex_lock(&helper->mutex);
    done = helper->work == NULL;
    pthread_mutex_unlock(&helper->mutex);
    return done;
}
