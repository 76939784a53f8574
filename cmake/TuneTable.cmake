# generated/tune_table.h in the build folder: src/tensor/tune.table as a string, for src/tensor/tune.c.

set(tune_table "${PROJECT_SOURCE_DIR}/src/tensor/tune.table")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${tune_table}")
file(STRINGS "${tune_table}" tune_lines)
set(tune_text "/* Written by the build. */\n#ifndef ESPER_GENERATED_TUNE_TABLE_H\n#define ESPER_GENERATED_TUNE_TABLE_H\n\n")
string(APPEND tune_text "#define ESPER_TUNE_TABLE")
foreach(line IN LISTS tune_lines)
    string(APPEND tune_text " \\\n    \"${line}\\n\"")
endforeach()
string(APPEND tune_text "\n\n#endif\n")
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/tune_table.h" CONTENT "${tune_text}" @ONLY)
set_source_files_properties("${PROJECT_SOURCE_DIR}/src/tensor/tune.c" PROPERTIES
    INCLUDE_DIRECTORIES "${PROJECT_BINARY_DIR}")
