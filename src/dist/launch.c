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

static bool is_set(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0';
}

esper_launch esper_launch_look(void)
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++)
        if (is_set(launchers[i].sign)) {
            const char *size = launchers[i].size;
            int n = size != NULL ? (int)strtol(getenv(size), NULL, 10) : 0;

            return (esper_launch){.launched = true, .size = n > 0 ? n : 0, .sign = launchers[i].sign};
        }
    return (esper_launch){0};
}
