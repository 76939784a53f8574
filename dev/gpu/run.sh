#!/usr/bin/env bash
# Everything about the guard that only a GPU can show: tests, kernels compiled by NVRTC, compute-sanitizer, and timings,
# with a short table last. Run it from the repository's root on a machine with a GPU, where build/gpu (of
# dev/gpu/build.sh) is.
#   usage: dev/gpu/run.sh [tests|times|small|sanitize|all]     small: times of many small tensors alone
# Environment: KIT, the folder of dev/gpu/build.sh (build/gpu); OUT, a folder for one file with all logs.
set -uo pipefail

cd "$(dirname "$0")/../.."
what=${1:-all}
kit=$(cd "${KIT:-build/gpu}" && pwd) || exit 1
out=$kit/logs
mkdir -p "$out"
export LD_LIBRARY_PATH="$kit:$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
verdicts=()

# The NVRTC that PyTorch brings, unless the loader finds one anyway or ESPER_NVRTC names it.
find_nvrtc() {
    python3 - 2>/dev/null <<'PYTHON'
import glob, os, sysconfig
roots = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}
names = [name for root in sorted(roots) for name in sorted(glob.glob(root + "/nvidia/*/lib/libnvrtc.so.*[0-9]"))]
names = [name for name in names if "builtins" not in name and ".alt." not in name]
print(names[0] if names else "")
PYTHON
}

# step NAME SECONDS COMMAND...: runs it with a time limit, keeps its log, shows the end of it when it fails.
step() {
    local name=$1 seconds=$2 log="$out/$1.log" code begin=$SECONDS
    shift 2
    timeout "$seconds" "$@" >"$log" 2>&1
    code=$?
    case $code in
    0) verdicts+=("ok        $name ($((SECONDS - begin)) s)") ;;
    77) verdicts+=("skipped   $name: $(tail -n 1 "$log")") ;;
    *)
        verdicts+=("FAILED    $name (exit $code, $((SECONDS - begin)) s)")
        echo "--- $name"
        tail -n 25 "$log"
        ;;
    esac
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
nvrtc=$(find_nvrtc)
echo "NVRTC: ${nvrtc:-none found by Python}"
if [ -n "$nvrtc" ]; then
    export ESPER_NVRTC=$nvrtc LD_LIBRARY_PATH="$(dirname "$nvrtc"):$LD_LIBRARY_PATH"
fi

if [ "$what" = tests ] || [ "$what" = all ]; then
    for test in "$kit"/test_*; do
        step "$(basename "$test")" 200 "$test"
    done
    grep -h "^kernels: " "$out/test_cuda.log"
    for some in '*scan_agrees*' '*clipped_and*' '*copied*' '*captured*'; do # as if nothing had been built in
        step "nvrtc_${some//\*/}" 60 env ESPER_TEST_NO_CUBIN=1 ESPER_TEST_FILTER="$some" "$kit/test_cuda"
    done
fi

if [ "$what" = sanitize ] || [ "$what" = all ]; then
    if command -v compute-sanitizer >/dev/null; then
        step memcheck 200 env ESPER_TEST_SMALL=1 compute-sanitizer --tool memcheck --error-exitcode 9 "$kit/test_cuda"
        step racecheck 150 env ESPER_TEST_SMALL=1 compute-sanitizer --tool racecheck --error-exitcode 9 "$kit/test_cuda"
        step synccheck 150 env ESPER_TEST_SMALL=1 compute-sanitizer --tool synccheck --error-exitcode 9 "$kit/test_cuda"
        step initcheck 150 env ESPER_TEST_SMALL=1 compute-sanitizer --tool initcheck --error-exitcode 9 "$kit/test_cuda"
    else
        verdicts+=("skipped   compute-sanitizer: it is not installed")
    fi
fi

if [ "$what" = small ]; then
    for variant in "" _tile1 _tile4; do
        for model in small100 tiny10k; do
            step "scan_lab${variant}_$model" 60 "$kit/scan_lab$variant" "scan.$model"
            echo "--- scan_lab$variant $model"
            cat "$out/scan_lab${variant}_$model.log"
        done
    done
    step bench_small 60 "$kit/esper" bench guard.scan.small100 --json
    step bench_tiny 60 "$kit/esper" bench guard.scan.tiny10k --json
    cat "$out/bench_small.log" "$out/bench_tiny.log"
fi

if [ "$what" = times ] || [ "$what" = all ]; then
    step scan_lab 120 "$kit/scan_lab"
    cat "$out/scan_lab.log"
    for variant in 8192 16384 tile1 tile4; do
        step "scan_lab_$variant" 60 "$kit/scan_lab_$variant" scan.
    done
    step scan_lab_again 60 "$kit/scan_lab" scan. # the same once more: the spread
    echo
    python3 - "$out" <<'PYTHON'
import json, os, sys
columns = ["scan_lab", "scan_lab_again", "scan_lab_8192", "scan_lab_16384", "scan_lab_tile1", "scan_lab_tile4"]
table, goals = {}, {}
for column in columns:
    path = os.path.join(sys.argv[1], column + ".log")
    for line in open(path) if os.path.exists(path) else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "median_us" in row:
            table.setdefault(row["name"], {})[column] = row
            goals[row["name"]] = row["goal_us"]
heads = ["%-16s" % column.replace("scan_lab", "lab") for column in columns]
print("%-30s %9s  %s" % ("median us (GB/s)", "goal", "  ".join(heads)))
for name, cells in table.items():
    text = ["%9.2f (%4.0f)" % (cells[c]["median_us"], cells[c]["GBps"]) if c in cells else "" for c in columns]
    print("%-30s %9s  %s" % (name, "%g" % goals[name] if goals[name] else "", "  ".join("%-16s" % t for t in text)))
PYTHON
fi

if [ -n "${OUT:-}" ]; then
    for log in "$out"/*.log; do
        printf '=== %s\n' "$(basename "$log")"
        cat "$log"
    done >"$OUT/gpu-logs.txt"
fi
echo
failed=0
for verdict in "${verdicts[@]}"; do
    echo "$verdict"
    case $verdict in FAILED*) failed=1 ;; esac
done
exit $failed
