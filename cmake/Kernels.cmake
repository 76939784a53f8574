# The kernels, compiled once for each set (see src/tensor/kernel.h). All come from src/tensor/ref/, but where
# src/tensor/cpu/ has a file of the same name, the sets of the cpu backend take that one instead.
#
#   ref        the definition of correct: float, baseline instructions, nothing fused
#   ref64      the same in double, for finite differences; linked into tests only
#   portable   what the cpu backend runs where it has nothing better
#   avx2       the cpu backend on x86-64 with AVX2 and FMA
#   avx512     the cpu backend on x86-64 with AVX-512
#
# The sets of the cpu backend also have what is in src/tensor/cpu/blocks/.
#
# No set is allowed to reorder sums (no -ffast-math). They may forget errno and floating-point traps, which changes no
# result and lets loops vectorise.

file(GLOB ref_kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/tensor/ref/*.c")
file(GLOB cpu_own_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/tensor/cpu/*.c")
list(FILTER ref_kernel_sources EXCLUDE REGEX "/backend_[a-z]+\\.c$")
list(FILTER cpu_own_sources EXCLUDE REGEX "/backend_[a-z]+\\.c$")
set(cpu_kernel_sources ${ref_kernel_sources} ${cpu_own_sources})
foreach(source ${cpu_own_sources})
    get_filename_component(name "${source}" NAME)
    list(REMOVE_ITEM cpu_kernel_sources "${PROJECT_SOURCE_DIR}/src/tensor/ref/${name}")
endforeach()
file(GLOB block_kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/tensor/cpu/blocks/*.c")
list(APPEND cpu_kernel_sources ${block_kernel_sources})
set(ESPER_KERNEL_SOURCES # none of them is compiled plainly
    ${ref_kernel_sources} ${cpu_own_sources} ${block_kernel_sources})

set(ESPER_X86_KERNELS NO)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(ESPER_X86_KERNELS YES)
endif()

# The sets that the cpu backend of this build has. Fuzzing is for parsers. Under a sanitizer a set that this processor
# cannot run would be compiled for nothing, and slowly; in a test the sanitizer's own code, compiled for the set, too,
# would run before the test could see that the processor lacks it.
set(ESPER_CPU_SETS portable)
if(ESPER_X86_KERNELS AND NOT ESPER_FUZZ)
    list(APPEND ESPER_CPU_SETS avx2)
    set(has_avx512 "")
    if(EXISTS /proc/cpuinfo)
        file(STRINGS /proc/cpuinfo has_avx512 REGEX "^flags.* avx512dq" LIMIT_COUNT 1)
    endif()
    if(has_avx512 OR NOT ESPER_SANITIZE)
        list(APPEND ESPER_CPU_SETS avx512)
    endif()
endif()

set(kernel_real_ref float)
set(kernel_flags_ref -ffp-contract=off)
set(kernel_real_ref64 double)
set(kernel_flags_ref64 -ffp-contract=off)
set(kernel_real_portable float)
set(kernel_flags_portable -ffp-contract=off)
set(kernel_real_avx2 float)
set(kernel_flags_avx2 -mavx2 -mfma -ffp-contract=fast)
set(kernel_real_avx512 float)
set(kernel_flags_avx512
    -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mprefer-vector-width=512 -ffp-contract=fast)

# Compiles a set; its objects are then in $<TARGET_OBJECTS:kernels_SET>.
function(esper_compile_kernels set)
    if(set MATCHES "^ref")
        add_library(kernels_${set} OBJECT ${ref_kernel_sources})
    else()
        add_library(kernels_${set} OBJECT ${cpu_kernel_sources})
        target_compile_definitions(kernels_${set} PRIVATE ESPER_HAS_BLOCKS)
    endif()
    # The set's own flags are linked last: esper_options forbids fused multiply-adds, and the last word counts.
    add_library(kernel_options_${set} INTERFACE)
    target_compile_options(kernel_options_${set} INTERFACE
        $<IF:$<CONFIG:Debug>,-O1,-O3> -fno-math-errno -fno-trapping-math ${kernel_flags_${set}})
    if(ESPER_FUZZ) # see bystanders in CMakeLists.txt
        target_compile_options(kernel_options_${set} INTERFACE -O0 -fno-sanitize=all)
    endif()
    target_link_libraries(kernels_${set} PRIVATE esper_options esper_includes kernel_options_${set})
    target_compile_definitions(kernels_${set} PRIVATE ESPER_KERNELS=${set} ESPER_REAL=${kernel_real_${set}})
endfunction()

# Compiles sets and puts them into a target.
function(esper_add_kernels target)
    foreach(set ${ARGN})
        esper_compile_kernels(${set})
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:kernels_${set}>)
    endforeach()
endfunction()
