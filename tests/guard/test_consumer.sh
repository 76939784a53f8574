#!/usr/bin/env bash
# ctest: labels=noasan timeout=180
# `make install`, and a stranger's project against it: by CMake, by pkg-config, as C99 and as C++; moved to another
# place; and the program shown in docs/guard.md.
. "$SOURCE_DIR/tests/guard/library.sh"
for tool in cmake make cc pkg-config; do
    command -v $tool >/dev/null || skip "$tool is not here"
done
[ -f "$build/cmake_install.cmake" ] || skip "$build is not a CMake build folder"

# ---- install, in two steps as for a package: DESTDIR before the prefix
expect_run "install" env DESTDIR="$PWD/stage" cmake --install "$build" --prefix /opt/esper || finish
files="bin/esper include/esper.h lib/libesper-guard.so lib/libesper-guard.so.0 lib/pkgconfig/esper-guard.pc
       lib/cmake/EsperGuard/EsperGuardConfig.cmake lib/cmake/EsperGuard/EsperGuardConfigVersion.cmake
       lib/cmake/EsperGuard/EsperGuardTargets.cmake"
if [ -d "$build/man" ]; then # where the build found a Python
    files="$files share/man/man1/esper.1 share/man/man1/esper-grow.1 share/bash-completion/completions/esper"
fi
[ ! -f "$build/libesper-mpi.so" ] || files="$files lib/esper/libesper-mpi.so"
for file in $files; do
    expect "installed $file" "$([ -e "stage/opt/esper/$file" ] && echo there)" there
done
expect "nothing outside the prefix" "$(ls stage stage/opt | tr '\n' ' ')" "stage: opt  stage/opt: esper "
mv stage/opt/esper prefix # an installed tree may be moved
prefix=$PWD/prefix
expect "no trace of where it was built" \
    "$(grep -rlF -e "$build" -e "$SOURCE_DIR" prefix/lib/cmake prefix/lib/pkgconfig prefix/include)" ""
expect_run "esper --version" prefix/bin/esper --version

# ---- pkg-config
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
version=$(sed -n 's/^#define ESPER_VERSION "\(.*\)"/\1/p' prefix/include/esper.h)
expect "version in the pkg-config file" "$(pkg-config --modversion esper-guard)" "$version"
expect_run "build by make" make -f "$SOURCE_DIR/tests/consumer/Makefile" consumer
expect_run "consumer by make" env LD_LIBRARY_PATH="$prefix/lib" ./consumer
expect_says "consumer" "esper-guard $version: NaN in weight"

# ---- CMake
expect_run "configure" cmake -S "$SOURCE_DIR/tests/consumer" -B by-cmake -DCMAKE_PREFIX_PATH="$prefix"
expect_run "build by cmake" cmake --build by-cmake
expect_run "consumer by cmake" by-cmake/consumer # finds the library by its build's own search path
expect_says "consumer" "NaN in weight"
if [ -e by-cmake/consumer_cpp ]; then
    expect_run "consumer in C++" by-cmake/consumer_cpp
    expect_says "consumer in C++" "first bad element: 7"
else
    echo "skipped: no C++ compiler here"
fi
cp -R "$SOURCE_DIR/tests/consumer" later
sed -i 's/EsperGuard 0.1/EsperGuard 0.99/' later/CMakeLists.txt
expect "a later version is asked for" \
    "$(cmake -S later -B by-cmake-later -DCMAKE_PREFIX_PATH="$prefix" >later.txt 2>&1 || echo refused)" refused

# ---- what the page shows is what compiles
page=$SOURCE_DIR/docs/guard.md
if [ -f "$page" ]; then
    awk '/^```c program$/ { on = 1; next } /^```$/ { on = 0 } on' "$page" >page.c
    expect "the page has a program" "$([ -s page.c ] && echo yes)" yes
    # shellcheck disable=SC2046  # flags are several words
    expect_run "compile the page's program" cc -std=c99 -pedantic -Wall -Wextra -Werror -o page page.c \
        $(pkg-config --cflags --libs esper-guard) -Wl,-rpath,"$prefix/lib" -lm
    expect_run "run the page's program" ./page
    awk '/^```text program$/ { on = 1; next } /^```$/ { on = 0 } on' "$page" >page.txt
    expect "what it prints" "$out" "$(cat page.txt)"
else
    echo "skipped: docs/guard.md is not here"
fi
finish
