#!/usr/bin/env bash
# What another processor can show: the tests of the kernels, of networks and of parity on every kernel set it can run, and
# training beside the PyTorch that is there, both on two cores. Run it where build/server (of dev/server/build.sh) is.
#   usage: dev/server/run.sh [tests|times|all]
# Environment: KIT, the folder of dev/server/build.sh (build/server); CORES, two of them ("2,3"); ROUNDS (7); SETS ("avx512
# avx2 portable"); OUT, a folder for one file with all logs.
set -uo pipefail

what=${1:-all}
kit=$(cd "${KIT:-build/server}" && pwd) || exit 1
logs=$kit/logs
cores=${CORES:-2,3}
mkdir -p "$logs"
export LD_LIBRARY_PATH="$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
[ ! -d "$kit/golden" ] || export ESPER_GOLDEN=$kit/golden
failed=0

grep -m 1 "model name" /proc/cpuinfo
grep -o -m 1 -w -e avx512f -e avx512dq -e avx512bw -e avx512vl /proc/cpuinfo | tr '\n' ' '
echo

# run_set SET: every test, its verdicts in one line each where it fails, one line for all where none does.
run_set() {
    local program name n=0 skipped=0

    for program in "$kit"/programs/*; do
        name=$(basename "$program")
        case $name in *_avx512) [ "$1" = avx512 ] || continue ;; esac
        (cd "$kit/run" && ESPER_KERNELS=$1 timeout 120 "$program") >"$logs/$1.$name.log" 2>&1
        case $? in
        0) n=$((n + 1)) ;;
        77) skipped=$((skipped + 1)) ;;
        *)
            failed=1
            echo "FAILED    $name on $1"
            tail -n 15 "$logs/$1.$name.log"
            ;;
        esac
    done
    echo "$1: $n programs passed, $skipped skipped"
}

if [ "$what" = tests ] || [ "$what" = all ]; then
    for set in ${SETS:-avx512 avx2 portable}; do
        run_set "$set"
    done
fi

if [ "$what" = times ] || [ "$what" = all ]; then
    export ESPER=$kit/esper PYTHON=${PYTHON:-python3} CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=2
    taskset -c "$cores" "$ESPER" bench train --json
    taskset -c "$cores" "$ESPER" bench fleet --json
    for net in cnn_small cnn_100k lm_tiny; do
        taskset -c "$cores" "$kit/bench/vs_torch" "train.$net" --json --rounds "${ROUNDS:-7}"
    done
fi

[ -z "${OUT:-}" ] || tail -n +1 "$logs"/*.log >"$OUT/server-logs.txt"
exit $failed
