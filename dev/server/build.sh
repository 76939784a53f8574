#!/usr/bin/env bash
# Packs what dev/server/run.sh needs into build/server, to carry to a machine with another processor and without our
# packages: the tests of the kernels, of networks and of parity, the program, and recorded vectors.
#   usage: dev/server/build.sh
# Environment: KIT, where to (build/server); TREE, the build folder to use (build/server-tree); ESPER_GOLDEN, a whole set of
# recorded vectors, without which only tests/golden is packed.
set -euo pipefail

golden=
[ -z "${ESPER_GOLDEN:-}" ] || golden=$(cd "$ESPER_GOLDEN" && pwd)
cd "$(dirname "$0")/../.."
tree=${TREE:-build/server-tree}
out=${KIT:-build/server}
cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DESPER_TESTS=ON -DESPER_TEST_SOURCE_DIR=. >/dev/null
cmake --build "$tree"

rm -rf "$out"
mkdir -p "$out/lib" "$out/run/tests" "$out/programs"
cp "$tree/esper" "$out/"
cp -r bench "$out/"
for folder in tensor nn parity; do
    for test in "$tree/tests/$folder"/test_*; do
        case ${test##*/} in
        *_avx2 | *_portable | test_mutation | test_torch_export) ;; # what this machine can run, it has run
        *) cp "$test" "$out/programs/${folder}_${test##*/}" ;;
        esac
    done
done
strip "$out/esper" "$out"/programs/*
cp -r tests/golden "$out/run/tests/" # tests look for ./tests/golden, or where run.sh says
[ -z "$golden" ] || cp -rL "$golden" "$out/golden"
for program in "$out/esper" "$out"/programs/*; do ldd "$program"; done |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    while read -r library; do
        case "${library##*/}" in
        libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | ld-*) ;;
        *) cp -L "$library" "$out/lib/" ;;
        esac
    done
chmod -R u+w "$out"
echo "$out: $(du -sh "$out" | cut -f1). Carry it and start dev/server/run.sh there."
