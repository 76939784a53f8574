/* Signs of launchers. The first that is set counts. */
#include "dist/launch.h"

#include <stdlib.h>

/* A variable that only a launched process has, and the one that tells the size, if there is one. A Slurm batch script has
 * SLURM_NTASKS without being one of them; SLURM_STEP_NUM_TASKS is of a step that srun started. PMIX_RANK stands last: it
 * says nothing of the size, which Slurm's own variable may. */
static const struct {
    const char *sign, *size;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"}, {"PMI_SIZE", "PMI_SIZE"}, {"MPI_LOCALNRANKS", NULL},
    {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS"}, {"PMI_RANK", NULL},       {"PMIX_RANK", NULL},
};

static const char *value_of(const char *name)
{
    const char *value = name != NULL ? getenv(name) : NULL;

    return value != NULL ? value : "";
}

esper_launcher esper_launcher_look(void)
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++)
        if (value_of(launchers[i].sign)[0] != '\0') {
            long size = strtol(value_of(launchers[i].size), NULL, 10);

            return (esper_launcher){.launched = true, .size = size > 0 ? (int)size : 0, .sign = launchers[i].sign};
        }
    return (esper_launcher){0};
}
