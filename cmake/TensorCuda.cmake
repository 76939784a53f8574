# The kernels of the cuda backend: every source of src/tensor/cuda/ becomes an image of its own, and all of them are embedded beside a
# list. Without a CUDA compiler (GuardCuda.cmake looks for it) the list has the sources alone.
#
# Machine code is made for the architectures of ESPER_CUDA_ARCHS, and PTX of the first of them and of 80, from which a driver makes the
# code of all others the first time that it meets them. Seven take three minutes to compile on two cores, three about one.

set(ESPER_CUDA_ARCHS "75;80;90" CACHE STRING "Architectures that the networks' kernels are compiled for")
set(tensor_cuda_options "")
if(cuda_options)
    esper_cuda_options(tensor_cuda_options ${ESPER_CUDA_ARCHS})
endif()

file(GLOB tensor_cuda_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/tensor/cuda/*.cu")
file(GLOB tensor_cuda_headers CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/src/tensor/cuda/*.h" "${PROJECT_SOURCE_DIR}/src/tensor/cuda/*.cuh")
list(APPEND tensor_cuda_headers "${PROJECT_SOURCE_DIR}/src/tensor/op.h" "${PROJECT_SOURCE_DIR}/src/base/rng.h"
    "${PROJECT_SOURCE_DIR}/include/esper.h")

# The names of a source's kernels, as macros make them up: of what the preprocessor leaves, every function that is given lanes as kernels
# are (tensor/cuda/dialect.cuh). The text is one of C to it, as the compiler need not know C++.
function(esper_kernels_of source names_out)
    execute_process(COMMAND "${CMAKE_C_COMPILER}" -E -P -x c "-I${PROJECT_SOURCE_DIR}/src" "-I${PROJECT_SOURCE_DIR}/include" "${source}"
        OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[A-Za-z0-9_]+\\(const __grid_constant__" names "${text}")
    list(TRANSFORM names REPLACE "\\(.*" "")
    if(NOT names)
        message(FATAL_ERROR "no kernels were found in ${source}")
    endif()
    list(JOIN names " " names)
    set(${names_out} "${names}" PARENT_SCOPE)
endfunction()

# Compiles the images and gives the target the list of them, with the texts that they are made of: where no image fits a device, NVRTC
# compiles those (device/cuda_module.h).
function(esper_add_tensor_cuda target)
    set(folder "${PROJECT_BINARY_DIR}/generated/cuda")
    set(list "${PROJECT_BINARY_DIR}/generated/tensor_images.c")
    set(assembly "")
    set(symbols "")
    set(rows "")
    set(headers "")
    set(images "")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tensor_cuda_sources} ${tensor_cuda_headers})
    foreach(source IN LISTS tensor_cuda_sources)
        get_filename_component(name "${source}" NAME_WE)
        set(image "${folder}/${name}.fatbin")
        string(APPEND assembly "        \"esper_tensor_source_${name}:\\n\"\n        \".incbin \\\"${source}\\\"\\n.byte 0\\n\"\n")
        list(APPEND symbols "esper_tensor_source_${name}")
        set(binary "NULL, .source = esper_tensor_source_${name}, .headers = headers},\n     NULL")
        if(tensor_cuda_options)
            add_custom_command(OUTPUT "${image}" VERBATIM DEPENDS "${source}" ${tensor_cuda_headers}
                COMMENT "Compiling CUDA kernels: ${name}"
                COMMAND "${CMAKE_COMMAND}" -E make_directory "${folder}"
                COMMAND "${ESPER_NVCC}" -fatbin -O3 -std=c++17 -diag-suppress 128 "-I${PROJECT_SOURCE_DIR}/src"
                    "-I${PROJECT_SOURCE_DIR}/include" ${tensor_cuda_options} -Xfatbin -compress-all -o "${image}" "${source}")
            list(APPEND images "${image}")
            string(APPEND assembly "        \".balign 16\\n\"\n        \"esper_tensor_image_${name}:\\n\"\n"
                "        \".incbin \\\"${image}\\\"\\n\"\n        \"esper_tensor_image_${name}_end:\\n\"\n")
            list(APPEND symbols "esper_tensor_image_${name}" "esper_tensor_image_${name}_end")
            set(binary "esper_tensor_image_${name}, .source = esper_tensor_source_${name}, .headers = headers},\n     esper_tensor_image_${name}_end")
        endif()
        esper_kernels_of("${source}" kernels)
        string(APPEND rows "    {{.name = \"${name}.cu\", .binary = ${binary},\n     \" ${kernels} \"},\n")
    endforeach()
    foreach(header IN LISTS tensor_cuda_headers)
        file(RELATIVE_PATH name "${PROJECT_SOURCE_DIR}/src" "${header}") # as it is included
        string(REPLACE "../include/" "" name "${name}")
        string(MAKE_C_IDENTIFIER "esper_tensor_header_${name}" symbol)
        string(APPEND assembly "        \"${symbol}:\\n\"\n        \".incbin \\\"${header}\\\"\\n.byte 0\\n\"\n")
        list(APPEND symbols "${symbol}")
        string(APPEND headers "    {\"${name}\", ${symbol}},\n")
    endforeach()
    if(images)
        add_custom_target(tensor_cuda_images DEPENDS ${images})
        add_dependencies(${target} tensor_cuda_images)
    endif()
    list(TRANSFORM symbols REPLACE "(.+)" "HIDDEN(\\1)" OUTPUT_VARIABLE declarations)
    list(JOIN declarations "\n" declarations)
    string(CONCAT text "/* Written by the build. */\n#include \"tensor/cuda/images.h\"\n\n"
        "__asm__(\".section .rodata\\n\"\n${assembly}        \".balign 16\\n\"\n        \".previous\\n\");\n\n"
        "#define HIDDEN(name) extern const char name[] __attribute__((visibility(\"hidden\")));\n${declarations}\n\n"
        "static const esper_cuda_header headers[] = {\n${headers}    {NULL, NULL},\n};\n\n"
        "const esper_tensor_image esper_tensor_images[] = {\n${rows}    {{.name = NULL}, NULL, NULL},\n};\n")
    file(CONFIGURE OUTPUT "${list}" CONTENT "${text}" @ONLY)
    set_source_files_properties("${list}" PROPERTIES
        OBJECT_DEPENDS "${images};${tensor_cuda_sources};${tensor_cuda_headers}")
    target_sources(${target} PRIVATE "${list}")
endfunction()
