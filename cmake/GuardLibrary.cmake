# The guard as a product of its own: libesper-guard.so, made of base/, device/ and guard/ with the C library and its
# libm alone, and what `make install` puts beside it.
#
#   esper_guard      the shared library; consumers know it as Esper::guard
#   example_guard    examples/guard.c, at examples/guard in the build folder
#   product          all that is installed
#
# Its sources are compiled once more, position-independent and with everything hidden but ESPER_API; the engine's own
# build is not touched by that.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Of base/, what serves the program and its runs stays out: configuration (which needs inih) and events.
file(GLOB_RECURSE ESPER_GUARD_SOURCES CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/src/base/*.c" "${PROJECT_SOURCE_DIR}/src/device/*.c" "${PROJECT_SOURCE_DIR}/src/guard/*.c")
list(FILTER ESPER_GUARD_SOURCES EXCLUDE REGEX "/src/base/(config|config_[a-z]+|event|sink_[a-z]+)\\.c$")

# After the engine's targets, to which it owes the header of the build's facts.
function(esper_add_guard_library)
    add_library(esper_guard SHARED ${ESPER_GUARD_SOURCES})
    target_link_libraries(esper_guard PRIVATE esper_options Threads::Threads ${CMAKE_DL_LIBS} m)
    target_include_directories(esper_guard
        PRIVATE "${PROJECT_SOURCE_DIR}/src"
        PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
    set_target_properties(esper_guard PROPERTIES
        OUTPUT_NAME esper-guard VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
        EXPORT_NAME guard C_VISIBILITY_PRESET hidden)
    target_link_options(esper_guard PRIVATE -Wl,--as-needed -Wl,-z,defs)
    add_dependencies(esper_guard build_info)
    add_library(Esper::guard ALIAS esper_guard)

    add_executable(example_guard "${PROJECT_SOURCE_DIR}/examples/guard.c")
    target_link_libraries(example_guard PRIVATE esper_options Esper::guard m)
    set_target_properties(example_guard PROPERTIES
        OUTPUT_NAME guard RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")

    add_custom_target(product DEPENDS esper esper_guard)
endfunction()

# The pkg-config file finds its prefix from where it lies, so that an installed tree may be moved.
function(esper_install_guard_library)
    set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/EsperGuard")
    set(pkgconfig_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
    file(RELATIVE_PATH ESPER_PREFIX_FROM_PC "/prefix/${pkgconfig_dir}" /prefix)
    string(REGEX REPLACE "/$" "" ESPER_PREFIX_FROM_PC "${ESPER_PREFIX_FROM_PC}")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/esper-guard.pc.in" generated/esper-guard.pc @ONLY)
    configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/EsperGuardConfig.cmake.in"
        generated/EsperGuardConfig.cmake INSTALL_DESTINATION "${package_dir}")
    write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/EsperGuardConfigVersion.cmake"
        VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)

    install(TARGETS esper RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
    if(EXISTS "${PROJECT_SOURCE_DIR}/share/esper") # the policy that `--policy learned` means: run/run_dir.c
        install(DIRECTORY "${PROJECT_SOURCE_DIR}/share/esper" DESTINATION "${CMAKE_INSTALL_DATADIR}")
    endif()
    install(TARGETS esper_guard EXPORT EsperGuardTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    install(FILES "${PROJECT_SOURCE_DIR}/include/esper.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    install(EXPORT EsperGuardTargets NAMESPACE Esper:: DESTINATION "${package_dir}")
    install(FILES "${PROJECT_BINARY_DIR}/generated/EsperGuardConfig.cmake"
        "${PROJECT_BINARY_DIR}/generated/EsperGuardConfigVersion.cmake" DESTINATION "${package_dir}")
    install(FILES "${PROJECT_BINARY_DIR}/generated/esper-guard.pc" DESTINATION "${pkgconfig_dir}")
endfunction()
