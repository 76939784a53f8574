/* ctest: timeout=7200 labels=soak,noasan */
/* The same with a thousand networks. */
#define NETWORKS 1000
#include "nn/test_c99_export.c"
