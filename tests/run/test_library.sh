#!/usr/bin/env bash
# ctest: labels=noasan timeout=180
# libesper.so: its name, what it needs, what it shows; installed, and used by a stranger's program in C99 and C++.
. "$SOURCE_DIR/tests/guard/library.sh"
library=$build/libesper.so
[ -e "$library" ] || skip "$library is not here"
for tool in readelf nm cmake cc pkg-config; do
    command -v $tool >/dev/null || skip "$tool is not here"
done

version=$(sed -n 's/^#define ESPER_VERSION "\(.*\)"/\1/p' "$SOURCE_DIR/include/esper.h")
expect "link" "$(readlink "$library")" "libesper.so.0"
expect "link of the soname" "$(readlink "$library.0")" "libesper.so.$version"
dynamic=$(readelf -dW "$library")
expect "soname" "$(sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p' <<<"$dynamic")" "libesper.so.0"
expect "no search path of our own" "$(grep -E '\((RPATH|RUNPATH)\)' <<<"$dynamic")" ""
expect "no relocations in its code" "$(grep -F '(TEXTREL)' <<<"$dynamic")" ""
expect "no database, web server or launcher" "$(grep -E 'NEEDED.*(sqlite|microhttpd|mpi|ncurses)' <<<"$dynamic")" ""
expect_run "ldd" ldd -r "$library"
expect "symbols nobody defines" "$(grep -E 'undefined symbol|not found' <<<"$out")" ""

# ---- every function of the header, and nothing else
declared=$(sed -n 's/^ESPER_API.*[ *]\(esper_[a-z0-9_]*\)(.*/\1/p' "$SOURCE_DIR/include/esper.h" | sort)
exported=$(nm -D --defined-only "$library" | awk '{ print $3 }' | sort)
expect "as many functions as declarations" "$(wc -l <<<"$declared")" "$(grep -c '^ESPER_API' "$SOURCE_DIR/include/esper.h")"
expect "declared, not exported" "$(comm -23 <(echo "$declared") <(echo "$exported"))" ""
expect "exported, not declared" "$(comm -13 <(echo "$declared") <(echo "$exported"))" ""

# ---- installed, moved, and used; the guard's library loaded beside it keeps its functions to itself
[ -f "$build/cmake_install.cmake" ] || skip "$build is not a CMake build folder"
expect_run "install" env DESTDIR="$PWD/stage" cmake --install "$build" --prefix /opt/esper || finish
for file in lib/libesper.so lib/libesper.so.0 lib/pkgconfig/esper.pc; do
    expect "installed $file" "$([ -e "stage/opt/esper/$file" ] && echo there)" there
done
mv stage/opt/esper prefix
export PKG_CONFIG_PATH=$PWD/prefix/lib/pkgconfig LD_LIBRARY_PATH=$PWD/prefix/lib
expect "version in the pkg-config file" "$(pkg-config --modversion esper)" "$version"
# shellcheck disable=SC2046  # flags are several words
expect_run "compile as C99" cc -std=c99 -pedantic -Wall -Wextra -Werror -o player "$SOURCE_DIR/tests/consumer/player.c" \
    $(pkg-config --cflags --libs esper) && expect_run "player" ./player && expect_says "player" "4 decisions of 2 networks"
# shellcheck disable=SC2046
expect_run "with the guard before it" cc -std=c99 -o both "$SOURCE_DIR/tests/consumer/player.c" -Wl,--no-as-needed \
    $(pkg-config --cflags --libs esper-guard esper) && expect_run "both" ./both && expect_says "both" "4 decisions of 2 networks"
if command -v c++ >/dev/null; then
    # shellcheck disable=SC2046
    expect_run "compile as C++" c++ -x c++ -std=c++11 -pedantic -Wall -Wextra -Werror -o player_cpp \
        "$SOURCE_DIR/tests/consumer/player.c" $(pkg-config --cflags --libs esper) && expect_run "player in C++" ./player_cpp
fi
finish
