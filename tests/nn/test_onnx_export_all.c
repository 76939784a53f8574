/* ctest: timeout=3600 labels=soak,noasan */
/* The same with a thousand networks. */
#define NETWORKS 1000
#include "nn/test_onnx_export.c"
