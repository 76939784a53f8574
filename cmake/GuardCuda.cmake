# The guard's CUDA kernels: src/guard/cuda/scan.cu, compiled for all architectures below into one image that
# src/guard/cuda_image.c embeds beside the source text. Without a CUDA compiler the text alone is embedded, and a
# program on a machine with a GPU compiles it when it needs it, through the NVRTC it finds there. Nothing is linked with
# CUDA either way.
#
#   ESPER_CUDA   ON: fail without a compiler; OFF: do not look; AUTO: use it where it is there, but not in sanitizer
#                builds, where it would cost more time than it tells

set(ESPER_CUDA AUTO CACHE STRING "Embed compiled CUDA kernels: ON, OFF, or AUTO (when nvcc is there)")

set(cuda_folder "${PROJECT_SOURCE_DIR}/src/guard/cuda")
set(cuda_image_source "${PROJECT_SOURCE_DIR}/src/guard/cuda_image.c")
set(cuda_texts "${cuda_folder}/scan_types.h" "${cuda_folder}/scan.cu")
set(cuda_archs 75 80 86 89 90 100 120) # machine code; PTX serves all that come later

# Sets cuda_options_out to the -gencode options for those of the architectures (the other arguments) that this nvcc knows; to
# nothing when there are none. PTX is of the first, and of 80: from there on there are tensor cores for floats.
function(esper_cuda_options cuda_options_out)
    execute_process(COMMAND "${ESPER_NVCC}" --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
    string(REPLACE "\n" ";" known "${known}")
    set(options "")
    foreach(arch IN LISTS ARGN)
        if("compute_${arch}" IN_LIST known)
            if(NOT options OR arch EQUAL 80)
                list(APPEND options -gencode "arch=compute_${arch},code=compute_${arch}")
            endif()
            list(APPEND options -gencode "arch=compute_${arch},code=sm_${arch}")
        endif()
    endforeach()
    set(${cuda_options_out} "${options}" PARENT_SCOPE)
endfunction()

function(esper_embed_cuda)
    set(image "${PROJECT_BINARY_DIR}/generated/scan.fatbin")
    add_custom_command(OUTPUT "${image}" VERBATIM DEPENDS ${cuda_texts} COMMENT "Compiling CUDA kernels"
        COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/generated"
        COMMAND "${ESPER_NVCC}" -fatbin -O3 -std=c++14 "-I${PROJECT_SOURCE_DIR}/src" ${ARGN} -Xfatbin -compress-all
            -o "${image}" "${cuda_folder}/scan.cu")
    add_custom_target(guard_cuda_image DEPENDS "${image}")
    set_source_files_properties("${cuda_image_source}" PROPERTIES
        COMPILE_DEFINITIONS "ESPER_GUARD_FATBIN=\"${image}\"" OBJECT_DEPENDS "${image};${cuda_texts}")
endfunction()

# Targets that compile cuda_image.c, in whatever folder, wait for the image: one build of it serves them all.
function(esper_await_cuda_image)
    if(TARGET guard_cuda_image)
        foreach(target IN LISTS ARGN)
            add_dependencies(${target} guard_cuda_image)
        endforeach()
    endif()
endfunction()

set(cuda_options "")
set(ESPER_NVCC ESPER_NVCC-NOTFOUND)
if(ESPER_CUDA STREQUAL "ON" OR (ESPER_CUDA STREQUAL "AUTO" AND NOT ESPER_SANITIZE AND NOT ESPER_FUZZ))
    find_program(ESPER_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin NO_CACHE)
    if(ESPER_NVCC)
        esper_cuda_options(cuda_options ${cuda_archs})
    endif()
endif()
set_source_files_properties("${cuda_image_source}" PROPERTIES OBJECT_DEPENDS "${cuda_texts}")
if(cuda_options)
    message(STATUS "  + CUDA kernels (${ESPER_NVCC})")
    esper_embed_cuda(${cuda_options})
elseif(ESPER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ESPER_CUDA is ON, but no nvcc that knows one of ${cuda_archs} was found: put it on the PATH.")
else()
    message(STATUS "  - CUDA kernels: no nvcc, or not wanted; GPUs need an NVRTC at run time")
endif()
