#!/usr/bin/env bash
# Checks and times the cuda backend on a machine with a GPU, from a folder that was packed elsewhere: program, tests over the
# driver, their libraries in lib/, data in data/. Every part has a time limit and goes on where another failed; figures come last.
#   usage: fleet.sh FOLDER [PART...]     parts: check tests bench peers grow sanitize; all of them unless named
set -u
kit=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- check tests bench peers grow sanitize
export LD_LIBRARY_PATH=$kit/lib
out=${OUT:-$(mktemp -d)}
work=$(mktemp -d)
cd "$work" || exit 1

# The loss and weights of a few steps on the device beside those of ref: equal but for rounding.
check() {
    for job in "synth" "synth --channels 16 --blocks 2" "synth --batch 50" "synth_table" "synth_text" "synth_text --dropout 0.1" \
        "synth --plant r0c0:norm,r1c0:attention,r0c1:depthwise" "synth --plant r1c1:bottleneck,r0c0:conv_heavy" \
        "synth_text --plant l0:mlp,l1:attention"; do
        for backend in ref cuda; do
            # shellcheck disable=SC2086
            timeout 60 "$kit/esper" train $job --epochs 1 --max-steps 12 --backend $backend --progress plain \
                --run-dir "$work/c-$backend-$RANDOM" >"$work/$backend.txt" 2>&1 || tail -n 2 "$work/$backend.txt"
            printf '%-62s %-5s %s\n' "$job" $backend "$(grep -E 'epoch|test' "$work/$backend.txt" | tr -s ' ' | tail -n 2 | tr '\n' '|')"
        done
    done
}

tests() {
    for test in "$kit"/test_*; do
        (cd "$(mktemp -d)" && ESPER_TEST_GPU=1 timeout 60 "$test" >"$out/$(basename "$test").log" 2>&1)
        echo "$(basename "$test"): $? $(grep -cE '       OK' "$out/$(basename "$test").log") ok $(grep -E 'FAILED|error|Error' "$out/$(basename "$test").log" | head -n 3 | tr '\n' '|')"
    done
}

bench() {
    timeout 60 "$kit/esper" bench train --backend cuda
    timeout 120 "$kit/esper" bench fleet --backend cuda
}

peers() {
    for net in "small eager,compile,graph" "b8d compile,graph" "lm compile,graph"; do
        # shellcheck disable=SC2086
        timeout 90 python3 "$kit/host_torch.py" $net 2>&1 | tail -n 3
    done
}

grow() {
    time timeout 90 "$kit/esper" grow fashion --data "$kit/data" --backend cuda --progress plain --run-dir "$work/grown" >"$out/grow.txt" 2>&1
    tail -n 12 "$out/grow.txt"
    timeout 60 "$kit/esper" replay "$work/grown" 2>&1 | tail -n 3
}

sanitize() {
    for tool in memcheck racecheck; do
        timeout 100 compute-sanitizer --tool $tool "$kit/esper" train synth --epochs 1 --max-steps 2 --backend cuda \
            --run-dir "$work/s-$tool" >"$out/$tool.txt" 2>&1
        grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$tool.txt" || tail -n 3 "$out/$tool.txt"
    done
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm --format=csv,noheader
"$kit/esper" --version
for part in "$@"; do
    echo "==== $part"
    $part
done
