# libesper-mpi.so: ranks through MPI, as a module that the program loads when a launcher started it, so that the program
# itself needs no MPI. It lies beside the program, and is installed below the libraries, in esper/: nobody links with it.
#
#   esper_mpi_module    the module
#   esper_engine        looks for it relative to the program; how, is told here

include(GNUInstallDirs)

function(esper_tell_where_modules_are target)
    file(RELATIVE_PATH from_bin "/prefix/${CMAKE_INSTALL_BINDIR}" "/prefix/${CMAKE_INSTALL_LIBDIR}/esper")
    string(REGEX REPLACE "/$" "" from_bin "${from_bin}")
    set_source_files_properties("${PROJECT_SOURCE_DIR}/src/dist/module.c" PROPERTIES
        COMPILE_DEFINITIONS "ESPER_MODULE_FROM_BIN=\"${from_bin}\"")
endfunction()

# base/clock.c comes along: all else the engine hands over at run time.
function(esper_add_mpi_module)
    file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/dist/mpi/*.c")
    add_library(esper_mpi_module MODULE ${sources} "${PROJECT_SOURCE_DIR}/src/base/clock.c")
    target_link_libraries(esper_mpi_module PRIVATE esper_options esper_includes esper_mpi)
    target_compile_options(esper_mpi_module PRIVATE $<$<CONFIG:Release>:-O3>) # sums of gradients are made here
    set_target_properties(esper_mpi_module PROPERTIES
        OUTPUT_NAME esper-mpi C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
    if(TARGET product)
        add_dependencies(product esper_mpi_module)
    endif()
    add_dependencies(esper esper_mpi_module)
    install(TARGETS esper_mpi_module LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/esper")
endfunction()
