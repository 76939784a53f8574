# Man pages and the completion for bash, made from the program's own --help by packaging/, where there is a Python to do it.
#
#   manual    build/man/*.1 and build/esper.bash-completion; part of `product`

include(GNUInstallDirs)

function(esper_add_manual)
    find_program(ESPER_PACKAGING_PYTHON python3 DOC "The Python that makes man pages and completion")
    if(NOT ESPER_PACKAGING_PYTHON OR CMAKE_CROSSCOMPILING OR ESPER_SANITIZE)
        message(STATUS "Man pages and completion are left out")
        return()
    endif()
    set(packaging "${PROJECT_SOURCE_DIR}/packaging")
    set(pages "${PROJECT_BINARY_DIR}/man")
    set(completion "${PROJECT_BINARY_DIR}/esper.bash-completion")
    add_custom_command(OUTPUT "${pages}/esper.1" "${completion}" VERBATIM COMMENT "Making man pages and completion"
        DEPENDS esper "${packaging}/help_text.py" "${packaging}/man_pages.py" "${packaging}/completion.py"
        COMMAND "${CMAKE_COMMAND}" -E rm -rf "${pages}" # a command that is no more has no page
        COMMAND "${ESPER_PACKAGING_PYTHON}" -B "${packaging}/man_pages.py" "$<TARGET_FILE:esper>" "${pages}"
        COMMAND "${ESPER_PACKAGING_PYTHON}" -B "${packaging}/completion.py" "$<TARGET_FILE:esper>" "${completion}")
    add_custom_target(manual ALL DEPENDS "${pages}/esper.1" "${completion}")
    add_dependencies(product manual)
    install(DIRECTORY "${pages}/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" FILES_MATCHING PATTERN "*.1")
    install(FILES "${completion}" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME esper)
endfunction()
