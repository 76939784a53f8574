# generated/web_files.h in the build folder: the files of web/ as bytes, for src/ui/web_files.c. They are what a browser gets:
# plain modules that need no bundler, so that building takes neither node nor a network.

file(GLOB web_files CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/web/*.html" "${PROJECT_SOURCE_DIR}/web/*.css" "${PROJECT_SOURCE_DIR}/web/*.js"
    "${PROJECT_SOURCE_DIR}/web/*.svg")
set(web_header "${PROJECT_BINARY_DIR}/generated/web_files.h")
add_custom_command(OUTPUT "${web_header}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" "-DFILES=${web_files}" "-DOUT=${web_header}" -P
        "${PROJECT_SOURCE_DIR}/cmake/WebFilesWrite.cmake"
    DEPENDS ${web_files} "${PROJECT_SOURCE_DIR}/cmake/WebFilesWrite.cmake")

# The header is made before the target's sources are compiled.
function(esper_add_web_files target)
    target_sources(${target} PRIVATE "${web_header}")
    set_source_files_properties("${PROJECT_SOURCE_DIR}/src/ui/web_files.c" PROPERTIES
        INCLUDE_DIRECTORIES "${PROJECT_BINARY_DIR}" OBJECT_DEPENDS "${web_header}")
endfunction()
