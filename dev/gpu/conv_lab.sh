#!/usr/bin/env bash
# Builds dev/gpu/conv_lab.cu, to carry to a machine with a GPU and run there, a few seconds each:
#     conv_lab         convolutions as the library has them
#     conv_lab_fma     without tensor cores
#   usage: dev/gpu/conv_lab.sh
# Environment: KIT, where to (build/gpu); ARCH, the architecture (sm_90).
set -euo pipefail

cd "$(dirname "$0")/../.."
out=${KIT:-build/gpu}
mkdir -p "$out"
lab() {
    nvcc -arch="${ARCH:-sm_90}" -O3 -std=c++17 -diag-suppress 128 -Isrc -Iinclude -cudart static "${@:2}" \
        dev/gpu/conv_lab.cu src/tensor/cuda/block_conv.c -o "$out/$1"
}
lab conv_lab
lab conv_lab_fma -DESPER_BLOCK_CONV_TENSOR=0
echo "$out/conv_lab and $out/conv_lab_fma"
