/* Embeds the kernels: always their source, and where the build had a CUDA compiler (ESPER_GUARD_FATBIN names its
 * output) the compiled image. The assembler does it, as no C array of this size compiles fast; it finds the source on
 * the include path. */
#include "guard/cuda_image.h"

/* clang-format off */
__asm__(".section .rodata\n"
        ".balign 16\n"
        "esper_guard_source:\n"
        ".incbin \"guard/cuda/scan_types.h\"\n"
        ".incbin \"guard/cuda/scan.cu\"\n"
        ".byte 0\n"
#ifdef ESPER_GUARD_FATBIN
        ".balign 16\n"
        "esper_guard_fatbin:\n"
        ".incbin \"" ESPER_GUARD_FATBIN "\"\n"
        ".balign 16\n"
#endif
        ".previous\n");
/* clang-format on */

extern const char esper_guard_source[] __attribute__((visibility("hidden")));
#ifdef ESPER_GUARD_FATBIN
extern const char esper_guard_fatbin[] __attribute__((visibility("hidden")));
#endif

const esper_cuda_image esper_guard_image = {
    .name = "scan.cu",
    .source = esper_guard_source,
#ifdef ESPER_GUARD_FATBIN
    .binary = esper_guard_fatbin,
#endif
};
