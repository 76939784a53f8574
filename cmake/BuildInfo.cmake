# generated/build_info.h in the build folder: what src/base/build_info.c tells about this build. Looked at in every
# build and rewritten only when it changes, so that a new commit recompiles that one file.
#
# The file plays two parts: included, it defines esper_add_build_info; run with `cmake -P`, it writes the header.

if(NOT CMAKE_SCRIPT_MODE_FILE)
    set(ESPER_COMMIT "" CACHE STRING "The commit to tell of where the sources are no repository: a package's")
    function(esper_add_build_info target)
        string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
        set(build_type "${CMAKE_BUILD_TYPE}")
        if(ESPER_SANITIZE)
            string(APPEND build_type " with ${ESPER_SANITIZE} sanitizers")
        endif()
        # Where it was built is nobody's affair, and the same sources give the same bytes in another folder.
        string(REGEX REPLACE "-f[a-z]+-prefix-map=[^ ]*" "" flags "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${type}}")
        string(REGEX REPLACE "  +" " " flags "${flags}")
        string(STRIP "${flags}" flags)
        set(header "${PROJECT_BINARY_DIR}/generated/build_info.h")
        add_custom_target(build_info VERBATIM BYPRODUCTS "${header}" COMMENT "Looking at the commit"
            COMMAND "${CMAKE_COMMAND}" "-DHEADER=${header}" "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}"
                "-DGIVEN_COMMIT=${ESPER_COMMIT}" "-DBUILD_TYPE=${build_type}" "-DCOMPILER=${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION} ${flags}"
                -P "${PROJECT_SOURCE_DIR}/cmake/BuildInfo.cmake")
        add_dependencies(${target} build_info)
        set_source_files_properties("${PROJECT_SOURCE_DIR}/src/base/build_info.c" PROPERTIES
            INCLUDE_DIRECTORIES "${PROJECT_BINARY_DIR}")
    endfunction()
    return()
endif()

# The commit, with "-dirty" when the tree differs from it; "unknown" outside a repository of our own (an unpacked
# archive may lie inside someone else's).
set(COMMIT unknown)
if(GIVEN_COMMIT)
    set(COMMIT "${GIVEN_COMMIT}")
endif()
execute_process(COMMAND git -C "${SOURCE_DIR}" rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
file(REAL_PATH "${SOURCE_DIR}" source)
if(failed STREQUAL "0" AND top STREQUAL source)
    execute_process(COMMAND git --no-optional-locks -C "${SOURCE_DIR}" describe --always --dirty --abbrev=12 --exclude=*
        OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(failed STREQUAL "0")
        set(COMMIT "${described}")
    endif()
endif()

set(text "/* Written by the build. */\n#ifndef ESPER_GENERATED_BUILD_INFO_H\n#define ESPER_GENERATED_BUILD_INFO_H\n\n")
string(APPEND text "#define ESPER_BUILD_COMMIT \"${COMMIT}\"\n")
string(APPEND text "#define ESPER_BUILD_TYPE \"${BUILD_TYPE}\"\n")
string(APPEND text "#define ESPER_BUILD_COMPILER \"${COMPILER}\"\n\n#endif\n")
file(CONFIGURE OUTPUT "${HEADER}" CONTENT "${text}" @ONLY)
