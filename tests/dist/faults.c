/* A library to preload into ranks (LD_PRELOAD), which lets them fail at a place: tests/dist/test_faults_all.sh builds and uses it.
 *   RANK_FAULTS=RANK:PLACE:HOW,...     PLACE: start, init, split, window, save, finish; HOW: exit, stop, kill, never, slow
 * Whoever comes to its place writes the file struck.RANK first. SIGUSR1 lets a rank exit with status 0 wherever it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void strike(const char *place)
{
    const char *faults = getenv("RANK_FAULTS"), *rank = getenv("OMPI_COMM_WORLD_RANK"), *at;
    char words[64], path[64], how;
    int file;

    if (faults == NULL || rank == NULL)
        return;
    snprintf(words, sizeof(words), "%s:%s:", rank, place);
    at = strstr(faults, words);
    if (at == NULL)
        return;
    how = at[strlen(words) + 1]; /* the second letter tells them apart */
    snprintf(path, sizeof(path), "struck.%s", rank);
    file = open(path, O_CREAT | O_WRONLY, 0600);
    if (file >= 0)
        close(file);
    if (how == 'x') /* exit */
        _exit(0);
    if (how == 't') /* stop */
        raise(SIGSTOP);
    if (how == 'i') /* kill */
        raise(SIGKILL);
    if (how == 'e') /* never */
        sleep(600);
    if (how == 'l') /* slow */
        sleep(2);
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* The functions of MPI are found behind the module, which is loaded later: by name, when they are called. */
static void *of_mpi(const char *name)
{
    void *library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_NOLOAD);

    return dlsym(library, name);
}

static void leave(int number)
{
    (void)number;
    _exit(0);
}

__attribute__((constructor)) static void begin(void)
{
    signal(SIGUSR1, leave);
    strike("start");
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int (*real)(int *, char ***, int, int *) = of_mpi("PMPI_Init_thread");

    strike("init");
    return real(argc, argv, required, provided);
}

int MPI_Comm_split_type(void *comm, int type, int key, void *info, void *out)
{
    int (*real)(void *, int, int, void *, void *) = of_mpi("PMPI_Comm_split_type");

    strike("split");
    return real(comm, type, key, info, out);
}

int MPI_Win_allocate_shared(long size, int unit, void *info, void *comm, void *base, void *win)
{
    int (*real)(long, int, void *, void *, void *, void *) = of_mpi("PMPI_Win_allocate_shared");

    strike("window");
    return real(size, unit, info, comm, base, win);
}

int MPI_Finalize(void)
{
    int (*real)(void) = of_mpi("PMPI_Finalize");

    strike("finish");
    return real();
}

/* The first checkpoint is written before the first step: the second is struck. */
int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) = next("rename");
    static int n;

    if (strstr(to, "last.safetensors") != NULL && ++n == 2)
        strike("save");
    return real(from, to);
}
