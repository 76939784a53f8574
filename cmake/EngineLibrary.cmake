# libesper.so: the engine as a library, for those who use it from other languages. What it shows is include/esper.h, the experimental
# part (src/run/grow_env*.c) and the guard with it, and nothing else.
#
#   esper_library   the shared library; consumers know it as Esper::esper
#   fleet_player    bench/fleet_player.c
#
# It is made of the objects of the engine itself, so these are position-independent and hide what is not ESPER_API. The linker takes
# of them what is needed: no database, no web server.

include(GNUInstallDirs)

# Of the engine's own targets, kernels included.
function(esper_hide_engine)
    set(targets esper_engine kernels_ref)
    foreach(set ${ESPER_CPU_SETS})
        list(APPEND targets kernels_${set})
    endforeach()
    set_target_properties(${targets} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
endfunction()

function(esper_add_engine_library)
    file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/run/grow_env*.c")
    add_library(esper_library SHARED ${sources})
    target_link_libraries(esper_library PRIVATE esper_options esper_engine)
    target_include_directories(esper_library
        PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
    set_target_properties(esper_library PROPERTIES
        OUTPUT_NAME esper VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} C_VISIBILITY_PRESET hidden)
    # Its own functions are its own, also where a program has libesper-guard.so loaded, too, which has some of the same names.
    target_link_options(esper_library PRIVATE -Wl,--as-needed -Wl,-z,defs -Wl,-Bsymbolic)
    if(ESPER_KIT)
        set_target_properties(esper_library PROPERTIES BUILD_RPATH "$ORIGIN/lib")
    endif()
    add_library(Esper::esper ALIAS esper_library)
    add_dependencies(product esper_library)

    # What bench/grow_env holds it against; built by that script alone.
    add_executable(fleet_player EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/bench/fleet_player.c")
    target_link_libraries(fleet_player PRIVATE esper_options esper_engine)
    set_target_properties(fleet_player PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bench")
endfunction()

# As with the guard, the pkg-config file finds its prefix from where it lies.
function(esper_install_engine_library)
    set(pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
    file(RELATIVE_PATH ESPER_PREFIX_FROM_PC "/prefix/${pkgconfig_dir}" /prefix)
    string(REGEX REPLACE "/$" "" ESPER_PREFIX_FROM_PC "${ESPER_PREFIX_FROM_PC}")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/esper.pc.in" generated/esper.pc @ONLY)
    install(TARGETS esper_library LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    install(FILES "${PROJECT_BINARY_DIR}/generated/esper.pc" DESTINATION "${pkgconfig_dir}")
endfunction()
