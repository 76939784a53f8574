/* Internal. Whether a launcher (mpirun, srun, ...) started this process, told by what it put into the environment. */
#ifndef ESPER_DIST_LAUNCH_H
#define ESPER_DIST_LAUNCH_H

#include <stdbool.h>

typedef struct esper_launcher {
    bool        launched;
    int         size; /* of the job; 0 = launched, and it is not said */
    const char *sign; /* the variable that told */
    int         rank;         /* -1 = it is not said */
    int         here, n_here; /* place among the ranks of this machine, and how many they are; 0 of them = it is not said */
    const char *dir,
        *job; /* a directory that the launcher keeps for the job on this machine, and the job's name; or NULL */
} esper_launcher;

esper_launcher esper_launcher_look(void);

#endif
