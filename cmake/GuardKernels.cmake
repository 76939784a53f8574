# The guard's kernels for host memory: src/guard/scan_portable.c, scan_avx2.c and scan_avx512.c are one text
# (scan_kernels.inc) for three instruction sets. Every target that compiles them does so with these flags.
#
# Nothing is fused and no sum is reordered but where the text says so: all sets give the same bits.

set(guard_kernel_flags "$<IF:$<CONFIG:Debug>,-O1,-O3>" -fno-math-errno -fno-trapping-math -ffp-contract=off)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    list(APPEND guard_kernel_flags -fno-tree-loop-distribute-patterns) # no memset for sixteen words
endif()
set(guard_kernel_flags_portable "")
set(guard_kernel_flags_avx2 -mavx2 -mfma -mf16c)
set(guard_kernel_flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)

foreach(set portable avx2 avx512)
    set(source "${PROJECT_SOURCE_DIR}/src/guard/scan_${set}.c")
    set_source_files_properties("${source}" PROPERTIES
        COMPILE_OPTIONS "${guard_kernel_flags};${guard_kernel_flags_${set}}"
        OBJECT_DEPENDS "${PROJECT_SOURCE_DIR}/src/guard/scan_kernels.inc")
    if(NOT ESPER_X86_KERNELS AND NOT set STREQUAL "portable")
        set_source_files_properties("${source}" PROPERTIES HEADER_FILE_ONLY YES) # it is not compiled
    endif()
endforeach()
