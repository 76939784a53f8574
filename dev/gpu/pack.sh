#!/usr/bin/env bash
# Packs what dev/gpu/fleet.sh needs into build/gpu-kit, below 40 MiB, to carry to a machine with a GPU and without our packages: the
# program, the tests that run on a device, their libraries, recorded vectors, PyTorch's side of comparisons, and labs. Kernels are
# those of one architecture. Then, there: build/gpu-kit/fleet.sh
#   usage: dev/gpu/pack.sh
# Environment: KIT, where to (build/gpu-kit); TREE, the build folder to use (build/gpu-tree); ARCH, the architecture (90);
# GOLDEN, recorded vectors (../shared/golden, else tests/golden); DATA=yes takes Fashion-MNIST along, 30 MB more.
set -euo pipefail

cd "$(dirname "$0")/../.."
tree=${TREE:-build/gpu-tree}
kit=${KIT:-build/gpu-kit}
arch=${ARCH:-90}
PATH=$PATH:/usr/local/cuda/bin

cmake -S . -B "$tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DESPER_CUDA=ON "-DESPER_CUDA_ARCHS=$arch" -DESPER_TESTS=ON >/dev/null
# Tests on the backend cuda over a driver (the label of tests/CMakeLists.txt), whose driver may be the machine's.
mapfile -t tests < <(grep -E '\|([^|]*,)?driver(,[^|]*)?$' "$tree/tests/list" | cut -d'|' -f2)
[ ${#tests[@]} -gt 0 ] || {
    echo "pack.sh: $tree has no tests over a driver" >&2
    exit 1
}
cmake --build "$tree" --target esper "${tests[@]}" -- --quiet

rm -rf "$kit"
mkdir -p "$kit/lib" "$kit/tests" "$kit/peers" "$kit/labs"
cp "$tree/esper" "$kit/"
for test in "${tests[@]}"; do # tests/cuda/test_random is tests/cuda_random there
    folder=$(basename "$(dirname "$test")")
    cp "$tree/$test" "$kit/tests/${folder}_$(basename "$test" | sed s/^test_//)"
done
strip "$kit/esper" "$kit"/tests/*
find "$kit/esper" "$kit/tests" -type f -exec ldd {} + | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    while read -r library; do
        case "${library##*/}" in
        libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | ld-*) ;;
        *) cp -L "$library" "$kit/lib/" ;;
        esac
    done

cc -O2 -fPIC -shared -o "$kit/lib/lose_device.so" dev/gpu/lose_device.c

# Those of networks: what the device's tests compare with.
golden=${GOLDEN:-../shared/golden}
[ -d "$golden" ] || golden=tests/golden
mkdir "$kit/golden"
cp -RL "$golden/nets" "$golden/blueprints.jsonl" "$golden/blend.jsonl" "$kit/golden/"
chmod -R u+w "$kit/golden"
cp bench/peers/train_torch.py bench/peers/train_gpu.py "$kit/peers/"
for lab in dev/gpu/*_lab.cu; do
    [ -f "$lab" ] || continue
    name=$(basename "$lab" .cu)
    # How it wants to be compiled stands in its head.
    read -ra how <<<"$(sed -nE "s/^ \*   (nvcc .*) -o $name .*/\1/p" "$lab" | head -n 1)"
    [ ${#how[@]} -gt 0 ] || how=(nvcc "-arch=sm_$arch" -O3 -std=c++17 -Isrc -Iinclude -cudart static)
    "${how[@]}" -o "$kit/labs/$name" "$lab" ||
        echo "pack.sh: $lab does not compile and stays here" >&2
done
# Programs of tests are much the same engine each: together they take a third of the room. fleet.sh unpacks them.
tar -C "$kit" -cJf "$kit/tests.tar.xz" tests
rm -r "$kit/tests"
if [ "${DATA:-no}" = yes ]; then
    cp -RL /usr/share/datasets/fashion-mnist "$kit/data"
fi
install dev/gpu/fleet.sh dev/gpu/grow.sh "$kit/"
echo "$kit: $(du -sh "$kit" | cut -f1), ${#tests[@]} programs of tests. There: $kit/fleet.sh [PART...]"
