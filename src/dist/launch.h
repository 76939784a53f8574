/* Internal. Whether a launcher (mpirun, srun, ...) started this process, told by what it put into the environment. */
#ifndef ESPER_DIST_LAUNCH_H
#define ESPER_DIST_LAUNCH_H

#include <stdbool.h>

typedef struct esper_launch {
    bool        launched;
    int         size; /* of the job; 0 = launched, and it is not said */
    const char *sign; /* the variable that told */
} esper_launch;

esper_launch esper_launch_look(void);

#endif
