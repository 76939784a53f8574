# generated/c99_kernels.h in the build folder: src/nn/c99_kernels.inc as bytes, for src/nn/c99_export.c, which writes parts of it into
# the C files of `esper export --c`.

set(c99_kernels "${PROJECT_SOURCE_DIR}/src/nn/c99_kernels.inc")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${c99_kernels}")
file(READ "${c99_kernels}" c99_hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" c99_hex "${c99_hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," c99_hex "${c99_hex}")
set(c99_text "/* Written by the build. */\n#ifndef ESPER_GENERATED_C99_KERNELS_H\n#define ESPER_GENERATED_C99_KERNELS_H\n\n")
string(APPEND c99_text "static const char c99_kernels[] = {\n${c99_hex}0};\n\n#endif\n")
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/c99_kernels.h" CONTENT "${c99_text}" @ONLY)
set_source_files_properties("${PROJECT_SOURCE_DIR}/src/nn/c99_export.c" PROPERTIES
    INCLUDE_DIRECTORIES "${PROJECT_BINARY_DIR}")
set_source_files_properties("${PROJECT_SOURCE_DIR}/src/nn/infer_run.c" "${PROJECT_SOURCE_DIR}/src/nn/fixed_run.c" PROPERTIES
    OBJECT_DEPENDS "${c99_kernels}")
