/* Signs of launchers. The first that is set counts. */
#include "dist/launch.h"

#include <limits.h>
#include <stdlib.h>

/* A variable that only a launched process has, and those that tell the size and the rank, if there are such. A Slurm batch script has
 * SLURM_NTASKS without being one of them; SLURM_STEP_NUM_TASKS is of a step that srun started. PMIX_RANK stands last: it
 * says nothing of the size, which Slurm's own variable may. */
static const struct {
    const char *sign, *size, *rank;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"PMI_SIZE", "PMI_SIZE", "PMI_RANK"},
    {"MPI_LOCALNRANKS", NULL, "PMI_RANK"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
    {"PMI_RANK", NULL, "PMI_RANK"},
    {"PMIX_RANK", NULL, "PMIX_RANK"},
};

static const char *value_of(const char *name)
{
    const char *value = name != NULL ? getenv(name) : NULL;

    return value != NULL ? value : "";
}

/* A variable as a number from 0 on; -1: there is none. */
static int number_of(const char *name)
{
    const char *text = value_of(name);
    char *end;
    long number = strtol(text, &end, 10);

    return end != text && number >= 0 && number <= INT_MAX ? (int)number : -1;
}

/* srun says less: not how many are on this machine. */
static void look_around(esper_launcher *launcher)
{
    int n_here = number_of("OMPI_COMM_WORLD_LOCAL_SIZE");

    launcher->here = number_of("OMPI_COMM_WORLD_LOCAL_RANK");
    launcher->n_here = n_here > 0 && launcher->here >= 0 && launcher->here < n_here ? n_here : 0;
    launcher->dir = getenv("PMIX_SERVER_TMPDIR");
    launcher->job = getenv("PMIX_NAMESPACE");
}

esper_launcher esper_launcher_look(void)
{
    esper_launcher launcher = {.rank = -1};

    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]) && !launcher.launched; i++)
        if (value_of(launchers[i].sign)[0] != '\0') {
            long size = strtol(value_of(launchers[i].size), NULL, 10);

            launcher.launched = true;
            launcher.size = size > 0 ? (int)size : 0;
            launcher.sign = launchers[i].sign;
            launcher.rank = number_of(launchers[i].rank);
            look_around(&launcher);
        }
    return launcher;
}
