/* ctest: timeout=1800 labels=soak,noasan */
/* The same with ten thousand random texts. */
#define HOST_TEXTS 10000u
#include "nn/test_host_text.c"
