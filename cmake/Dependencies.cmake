# What Esper is linked with, each probed by pkg-config and printed with a plus or a minus. All that is missing is said
# at once, with the Debian packages to install.
#
#   esper_dependencies   what the engine needs
#   esper_cmocka         what the tests need besides; only where ESPER_HAVE_CMOCKA
#   PkgConfig::MHD       what the web server needs; only where ESPER_HAVE_MHD. ESPER_NO_SERVER: the source to leave out
#   esper_mpi            what the module for ranks needs; only where ESPER_HAVE_MPI

find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
    message(FATAL_ERROR "pkg-config is missing: install it (Debian: apt-get install pkg-config) and build again.")
endif()

set(missing_libraries "")
set(missing_packages "")

# Probes one library. Sets <target>_FOUND; adds to the two lists above when a required one is missing.
function(esper_probe target module title package required)
    pkg_check_modules(${target} QUIET IMPORTED_TARGET ${module})
    if(${target}_FOUND)
        message(STATUS "  + ${title} ${${target}_VERSION}")
    else()
        message(STATUS "  - ${title}: not found (Debian package ${package})")
        if(required)
            set(missing_libraries ${missing_libraries} ${title} PARENT_SCOPE)
            set(missing_packages ${missing_packages} ${package} PARENT_SCOPE)
        endif()
    endif()
endfunction()

set(need_cmocka NO)
if(ESPER_TESTS STREQUAL "ON" AND NOT ESPER_FUZZ)
    set(need_cmocka YES)
endif()

message(STATUS "Libraries:")
esper_probe(ZLIB zlib zlib zlib1g-dev YES)
esper_probe(JANSSON jansson jansson libjansson-dev YES)
esper_probe(XXHASH libxxhash xxHash libxxhash-dev YES)
esper_probe(INIH inih inih libinih-dev YES)
esper_probe(SQLITE sqlite3 SQLite libsqlite3-dev YES)
esper_probe(PNG libpng "libpng (images of your own)" libpng-dev NO)
esper_probe(JPEG libjpeg "libjpeg (images of your own)" libjpeg62-turbo-dev NO)
esper_probe(MPI ompi-c "Open MPI (ranks)" libopenmpi-dev NO)
esper_probe(MHD libmicrohttpd "libmicrohttpd (esper serve)" libmicrohttpd-dev NO)
esper_probe(CMOCKA cmocka "cmocka (tests)" libcmocka-dev ${need_cmocka})

if(missing_libraries)
    list(JOIN missing_libraries ", " libraries)
    list(JOIN missing_packages " " packages)
    message(FATAL_ERROR "Missing: ${libraries}. On Debian: apt-get install ${packages}")
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

add_library(esper_dependencies INTERFACE)
target_link_libraries(esper_dependencies INTERFACE
    PkgConfig::ZLIB PkgConfig::JANSSON PkgConfig::XXHASH PkgConfig::INIH PkgConfig::SQLITE Threads::Threads m)

# Readers of images: src/data/decode_X.c where the library is there, src/data/decode_X_none.c where it is not.
set(ESPER_ABSENT_READERS "")
foreach(reader png jpeg)
    string(TOUPPER ${reader} library)
    if(${library}_FOUND)
        target_link_libraries(esper_dependencies INTERFACE PkgConfig::${library})
        target_compile_definitions(esper_dependencies INTERFACE ESPER_HAVE_${library})
        list(APPEND ESPER_ABSENT_READERS decode_${reader}_none)
    else()
        list(APPEND ESPER_ABSENT_READERS decode_${reader})
    endif()
endforeach()

# xxHash's choice of vectors at run time: a part of the library that not every build of it has.
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::XXHASH)
check_c_source_compiles("
    #include <xxhash.h>
    #include <xxh_x86dispatch.h>
    int main(int argc, char **argv) { return (int)XXH3_64bits_withSeed(argv, (size_t)argc, 1); }" ESPER_HAVE_XXH_DISPATCH)
unset(CMAKE_REQUIRED_LIBRARIES)
if(ESPER_HAVE_XXH_DISPATCH)
    target_compile_definitions(esper_dependencies INTERFACE ESPER_XXH_DISPATCH)
endif()

set(ESPER_HAVE_CMOCKA ${CMOCKA_FOUND})
if(ESPER_HAVE_CMOCKA)
    add_library(esper_cmocka INTERFACE)
    target_link_libraries(esper_cmocka INTERFACE PkgConfig::CMOCKA)
endif()

set(ESPER_HAVE_MHD ${MHD_FOUND})
if(ESPER_HAVE_MHD)
    set(ESPER_NO_SERVER none)
else()
    set(ESPER_NO_SERVER mhd)
endif()

set(ESPER_HAVE_MPI ${MPI_FOUND})
if(ESPER_HAVE_MPI)
    add_library(esper_mpi INTERFACE)
    target_link_libraries(esper_mpi INTERFACE PkgConfig::MPI)
endif()
