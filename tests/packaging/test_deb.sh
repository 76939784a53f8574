#!/usr/bin/env bash
# ctest: timeout=1800 cost=300 labels=soak,noasan
# The Debian packages: built twice, with the same bytes; what lies in them, and that it works where it is unpacked.
. "$SOURCE_DIR/tests/cli/common.sh"
for tool in dpkg-buildpackage dh dh_python3 git python3; do
    command -v $tool >/dev/null || {
        echo "skipped: $tool is not here (scripts/setup deb installs what packages take)"
        exit 77
    }
done
if ! (cd "$SOURCE_DIR" && [ -d packaging/debian ] && [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$PWD" ]); then
    echo "skipped: there is no repository, or no packaging/debian, here"
    exit 77
fi
ln -s "$SOURCE_DIR/packaging/debian" debian
if ! dpkg-checkbuilddeps debian/control >missing.txt 2>&1; then
    echo "skipped: $(cat missing.txt)"
    exit 77
fi

deb() { # FOLDER
    last="scripts/deb $*"
    "$SOURCE_DIR/scripts/deb" "$@" >out.txt 2>err.txt
    code=$?
    out=$(cat out.txt) err=$(cat err.txt)
}

mkdir -p mine && echo "thesis" >mine/thesis.txt
deb --no-lintian mine
expect_code 1
expect_equal "a folder of somebody's" "$(cat mine/thesis.txt)" "thesis"
echo "make: all is well" >mine/build.log # many have one
deb --no-lintian mine
expect_code 1
expect_equal "a folder of somebody's that has a build.log" "$(cat mine/thesis.txt)" "thesis"

deb one # lintian looks at these, where it is
expect_code 0
grep -q "lintian: nothing to say" <<<"$out" || echo "skipped: lintian is not here"
deb --no-lintian another/place
expect_code 0
version=$(sed -n 's/^#define ESPER_VERSION "\(.*\)"/\1/p' "$SOURCE_DIR/include/esper.h")
names=$(cd one && ls ./*.deb | grep -v dbgsym | sed 's,^./,,; s/_.*//' | sort | tr '\n' ' ')
expect_equal "packages" "$names" "esper esper-doc libesper-dev libesper-guard0 libesper0 python3-esper-guard "
for file in one/*.deb; do
    expect_equal "${file##*/} when it is built again" "$(sha256sum <"another/place/${file##*/}")" "$(sha256sum <"$file")"
    expect_equal "${file##*/}: version" "$(dpkg-deb -f "$file" Version)" "$version"
    dpkg-deb -x "$file" root
done

# ---- what is in them
expect_equal "outside of /usr" "$(ls root)" "usr"
expect_equal "scripts of ours" "$(for file in one/*.deb; do dpkg-deb --ctrl-tarfile "$file"; done | tar -tif - |
    grep -E 'pre|post' | sort -u | tr '\n' ' ')" "./postinst ./prerm " # those of Python's helper, which compiles
expect_equal "paths of the build" "$(grep -rlF -e "$PWD" -e "$SOURCE_DIR" root)" ""
program=$(realpath root/usr/bin/esper)
commands=$("$program" --help | sed -n 's/^  esper \([a-z]*\) .*/\1/p')
for command in $commands; do
    expect_equal "man page of $command" "$(zcat "root/usr/share/man/man1/esper-$command.1.gz" | grep -c '^\.SH NAME$')" 1
done
expect_equal "completion" "$(bash -c '. root/usr/share/bash-completion/completions/esper; COMP_WORDS=(esper gr); COMP_CWORD=1; _esper
    echo "${COMPREPLY[*]}"')" "grow"
expect_equal "the site" "$(python3 "$SOURCE_DIR/tests/packaging/check_site.py" root/usr/share/doc/esper/html | grep -v '^[0-9]* pages')" ""

# ---- it works, and gives the bits that a build by hand does
libraries=$(realpath "$(dirname "$(find root -name libesper-guard.so.0)")")
for by in "$program" "$ESPER"; do
    prefix=()
    ESPER=$by esper grow synth "${small[@]}" --policy random --gates permissive --gate-epochs 1 --run-dir "run-$(basename "$(dirname "$by")")"
    expect_code 0
    grep '^weights ' <<<"$out" >>weights.txt
done
expect_equal "weights" "$(sort -u weights.txt | wc -l) $(wc -l <weights.txt)" "1 2"
out=$(LD_LIBRARY_PATH=$libraries PYTHONPATH=root/usr/lib/python3/dist-packages PYTHONDONTWRITEBYTECODE=1 python3 -c '
import esper, esper._abi as abi
from importlib import metadata
print(esper.__file__, abi.load().path, esper.__version__, metadata.version("esper-guard"))' 2>&1)
expect_words out "root/usr/lib/python3/dist-packages/esper/__init__.py libesper-guard.so.0 $version $version"
finish
