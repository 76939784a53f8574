# cmake -DFILES=a;b -DOUT=header -P WebFilesWrite.cmake: files as arrays of bytes, and a list of them.

set(text "/* Written by the build. */\n#ifndef ESPER_GENERATED_WEB_FILES_H\n#define ESPER_GENERATED_WEB_FILES_H\n\n")
set(list "")
foreach(file IN LISTS FILES)
    cmake_path(GET file FILENAME name)
    string(MAKE_C_IDENTIFIER "${name}" variable)
    file(READ "${file}" bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND text "static const uint8_t web_${variable}[] = {\n${bytes}0x00};\n\n")
    string(APPEND list " \\\n    {\"${name}\", web_${variable}, sizeof(web_${variable}) - 1},")
endforeach()
file(WRITE "${OUT}" "${text}#define ESPER_WEB_FILES${list}\n\n#endif\n")
