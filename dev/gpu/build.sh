#!/usr/bin/env bash
# Packs what dev/gpu/run.sh needs into build/gpu, to carry to a machine with a GPU and without our packages: the tests
# that want a device, the program, the guard's library, and the kernel lab in some variants of how work is cut.
#   usage: dev/gpu/build.sh
# Environment: KIT, where to (build/gpu); TREE, the build folder to use (build/gpu-tree).
set -euo pipefail

cd "$(dirname "$0")/../.."
tree=${TREE:-build/gpu-tree}
out=${KIT:-build/gpu}
cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DESPER_CUDA=ON -DESPER_TESTS=ON >/dev/null
tests=()
for file in tests/*/test_*cuda*.c; do
    folder=$(basename "$(dirname "$file")")
    thing=$(basename "$file" .c)
    tests+=("$folder/$thing")
done
targets=()
for test in "${tests[@]}"; do
    targets+=("test_${test%/*}_${test#*/test_}")
done
cmake --build "$tree" --target esper esper_guard "${targets[@]}"

rm -rf "$out"
mkdir -p "$out/lib"
cp "$tree/esper" "$tree"/libesper-guard.so.? "$out/"
for test in "${tests[@]}"; do
    cp "$tree/tests/$test" "$out/"
done

# One lab for each way of cutting: chunks in all / least tiles of a chunk. The first is what the library does.
cc=(cc -std=gnu11 -O2 -g -D_GNU_SOURCE= -Iinclude -Isrc)
lab() {
    "${cc[@]}" -c src/guard/cuda_plan.c -o "$tree/cuda_plan_$1.o" ${2:-}
    "${cc[@]}" dev/gpu/scan_lab.c "$tree/cuda_plan_$1.o" "$tree/libesper_engine.a" -o "$out/scan_lab$1" \
        -lpthread -ldl -lm
}
lab ""
lab _8192 -DESPER_CUDA_CHUNKS=8192
lab _16384 -DESPER_CUDA_CHUNKS=16384
lab _tile1 -DESPER_CUDA_LEAST_TILES=1
lab _tile4 -DESPER_CUDA_LEAST_TILES=4

strip "$out"/esper "$out"/test_* "$out"/scan_lab*
find "$out" -maxdepth 1 -type f -exec ldd {} + | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    while read -r library; do
        case "${library##*/}" in
        libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | ld-* | libesper-guard*) ;;
        *) cp -L "$library" "$out/lib/" ;;
        esac
    done
echo "$out: $(du -sh "$out" | cut -f1). Carry it and start dev/gpu/run.sh there."
