/* Internal. Finds a kind of communicator that lives in a module beside the program. */
#ifndef ESPER_DIST_MODULE_H
#define ESPER_DIST_MODULE_H

#include "dist/kind.h"

/* E_UNSUPPORTED, with the reason and what to install: there is none, or it cannot be loaded. What was loaded stays. */
esper_status esper_module_load(const char *file, const esper_comm_kind **kind_out);

#endif
