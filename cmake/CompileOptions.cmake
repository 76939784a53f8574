# How every file is compiled: language, warnings, optimisation, sanitizers.
#
#   esper_includes   where headers are found; goes along with the engine
#   esper_options    the rest; private to each of our targets

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_FLAGS_RELEASE "-O2 -g -DNDEBUG")
set(CMAKE_C_FLAGS_DEBUG "-Og -g")
if(ESPER_SANITIZE) # their reports name lines, not variables
    set(CMAKE_C_FLAGS_DEBUG "-Og -g1")
endif()

set(ESPER_WARNINGS
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion -Wno-sign-conversion -Wpointer-arith
    -Wcast-qual -Wformat=2 -Wundef -Wvla -Wdouble-promotion)

add_library(esper_includes INTERFACE)
target_include_directories(esper_includes INTERFACE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")

add_library(esper_options INTERFACE)
target_compile_definitions(esper_options INTERFACE _GNU_SOURCE=) # empty: files may define it too
# A product and a sum stay two roundings wherever a kernel set does not say otherwise, so that results do not depend on
# what a compiler finds to fuse.
target_compile_options(esper_options INTERFACE ${ESPER_WARNINGS} -ffp-contract=off)
if(ESPER_WERROR)
    target_compile_options(esper_options INTERFACE -Werror)
endif()

# Sanitizers reach everything, kernels included, and turn each finding into a failure.
if(ESPER_SANITIZE)
    add_compile_options(-fsanitize=${ESPER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${ESPER_SANITIZE})
endif()
if(ESPER_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "ESPER_FUZZ needs clang: configure with `cmake --preset fuzz`.")
    endif()
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()
