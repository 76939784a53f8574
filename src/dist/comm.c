/* Communicators: choosing the kind, and what all kinds have in common. */
#include "dist/comm.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "base/mem.h"
#include "base/status.h"
#include "dist/kind.h"
#include "dist/launch.h"
#include "dist/module.h"

static const char mpi_module[] = "libesper-mpi.so";

struct esper_comm {
    const esper_comm_kind *kind;
    esper_comm_link       *link;
    esper_status           broken; /* ESPER_OK, or the first failure; link->why says of what */

    const volatile sig_atomic_t *abort; /* or NULL */
    const esper_log             *log;   /* or NULL */
};

/* ------------------------------------------------------------------------------------------------ choosing the kind */

/* A job of one needs no MPI, whoever started it. */
static esper_status choose(const char *name, const esper_launcher *launch, const esper_comm_kind **kind_out)
{
    bool is_auto = strcmp(name, "auto") == 0;

    if (strcmp(name, "self") == 0 || (is_auto && (!launch->launched || launch->size == 1))) {
        *kind_out = &esper_comm_self;
        return ESPER_OK;
    }
    if (!is_auto && strcmp(name, "mpi") != 0)
        return ESPER_FAIL(ESPER_E_ARG, "no communicator is called '%s'; there are auto, self and mpi", name);
    if (esper_module_load(mpi_module, kind_out) == ESPER_OK)
        return ESPER_OK;
    if (is_auto)
        return esper_fail_within(ESPER_E_UNSUPPORTED,
                                 "a launcher started this process as one of several (%s is set), "
                                 "but MPI cannot be used: ",
                                 launch->sign);
    return esper_fail_within(ESPER_E_UNSUPPORTED, "MPI cannot be used: ");
}

/* Under a launcher that MPI does not know everybody finds itself alone. */
static esper_status check_size(const esper_comm *comm, const esper_launcher *launch)
{
    int size = comm->link->size;

    if (!launch->launched || launch->size == 0 || launch->size == size || comm->kind == &esper_comm_self)
        return ESPER_OK;
    return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                      "the launcher started %d processes (%s), but MPI sees %d: the launcher and this "
                      "MPI do not know each other. Start it with mpirun of the same Open MPI, or with srun --mpi=pmix",
                      launch->size, launch->sign, size);
}

esper_status esper_comm_open(const esper_comm_options *options, esper_comm **comm_out)
{
    char why[ESPER_COMM_WHY_CHARS] = "", build[ESPER_COMM_BUILD_CHARS];
    esper_launcher launch = esper_launcher_look();
    esper_comm_start start = {.options = options,
                              .launch = &launch,
                              .build = build,
                              .alloc = esper_mem_alloc,
                              .release = esper_mem_free,
                              .why = why};
    const esper_comm_kind *kind;
    esper_comm *comm;
    esper_status status;

    ESPER_TRY(choose(options->kind, &launch, &kind));
    comm = esper_mem_alloc(sizeof(*comm));
    if (comm == NULL)
        return ESPER_FAIL(ESPER_E_NOMEM, "communicator");
    comm->kind = kind;
    comm->abort = options->abort;
    comm->log = options->log;
    snprintf(build, sizeof(build), "%s %s, %s, %s", ESPER_VERSION, esper_build_commit(), esper_build_type(),
             esper_build_compiler());
    status = kind->open(&start, &comm->link);
    if (status != ESPER_OK)
        ESPER_FAIL(status, "%s: %s", kind->name, why);
    else
        status = check_size(comm, &launch);
    if (status != ESPER_OK) {
        esper_comm_close(comm);
        return status;
    }
    *comm_out = comm;
    return ESPER_OK;
}

void esper_comm_close(esper_comm *comm)
{
    char why[ESPER_COMM_WHY_CHARS] = "";

    if (comm == NULL)
        return;
    if (comm->link != NULL)
        comm->kind->close(comm->link, comm->broken == ESPER_OK, why);
    if (why[0] != '\0')
        esper_log_write(comm->log, ESPER_LOG_ERROR, "the job does not end in order: %s", why);
    esper_mem_free(comm);
}

esper_status esper_comm_describe(const char *kind, char *text_out, size_t chars)
{
    const esper_launcher alone = {0};
    const esper_comm_kind *found;

    ESPER_TRY(choose(kind, &alone, &found));
    found->about(text_out, chars);
    return ESPER_OK;
}

/* ---------------------------------------------------------------------------------------------------------- asking */

const char *esper_comm_name(const esper_comm *comm)
{
    return comm->kind->name;
}

int esper_comm_rank(const esper_comm *comm)
{
    return comm->link->rank;
}

int esper_comm_size(const esper_comm *comm)
{
    return comm->link->size;
}

int esper_comm_neighbours(const esper_comm *comm)
{
    return comm->link->n_here;
}

bool esper_comm_is_broken(const esper_comm *comm)
{
    return comm->broken != ESPER_OK;
}

int esper_comm_ended(const esper_comm *comm, char *text_out, size_t chars)
{
    text_out[0] = '\0';
    return comm->kind->ended != NULL ? comm->kind->ended(comm->link, text_out, chars) : 0;
}

/* ----------------------------------------------------------------------------------------------------------- calls */

/* Whether the next call is to be made. A rank that was told to stop comes to no further call: it may have left one out
 * that the others are at, and would be taken for one that has lost its way. A job of one has nothing to exchange. */
static bool may_call(esper_comm *comm)
{
    if (comm->link->size == 1)
        return false;
    if (comm->broken == ESPER_OK && comm->abort != NULL && *comm->abort != 0) {
        snprintf(comm->link->why, sizeof(comm->link->why), "stopped by request");
        comm->broken = ESPER_E_STOPPED;
    }
    return comm->broken == ESPER_OK;
}

/* Every call: nothing when broken, else the kind's own; a failure breaks the communicator. The first one is to be told: what follows
 * from it is no news. */
#define CALL(comm, function, ...)                                                                                      \
    do {                                                                                                               \
        if (may_call(comm))                                                                                            \
            (comm)->broken = (comm)->kind->function((comm)->link, ##__VA_ARGS__);                                      \
        assert((comm)->broken == ESPER_OK || (comm)->link->why[0] != '\0');                                            \
        return (comm)->broken == ESPER_OK ? ESPER_OK : ESPER_FAIL((comm)->broken, "%s", (comm)->link->why);            \
    } while (0)

esper_status esper_comm_sum_f32(esper_comm *comm, float *values, size_t count)
{
    CALL(comm, sum, values, count, ESPER_COMM_F32);
}

esper_status esper_comm_sum_f64(esper_comm *comm, double *values, size_t count)
{
    CALL(comm, sum, values, count, ESPER_COMM_F64);
}

esper_status esper_comm_or_u64(esper_comm *comm, uint64_t *words, size_t count)
{
    CALL(comm, or_u64, words, count);
}

esper_status esper_comm_broadcast(esper_comm *comm, void *bytes, size_t count, int root)
{
    if (root < 0 || root >= comm->link->size)
        return ESPER_FAIL(ESPER_E_ARG, "broadcast from rank %d, there are %d", root, comm->link->size);
    CALL(comm, broadcast, bytes, count, root);
}

esper_status esper_comm_gather(esper_comm *comm, const void *mine, size_t count, void *all_out)
{
    assert(count == 0 || (mine != NULL && all_out != NULL));
    if (comm->link->size == 1 && count > 0)
        memmove(all_out, mine, count);
    CALL(comm, gather, mine, count, all_out);
}

esper_status esper_comm_barrier(esper_comm *comm)
{
    CALL(comm, barrier);
}
