#!/usr/bin/env bash
# The guard for PyTorch on a machine with a GPU and its own PyTorch: all tests of tests/python, the long ones too, several at
# a time; then, alone, what it costs. Run it from the repository's root, where build/gpu (of dev/gpu/build.sh) is.
#   usage: dev/gpu/python.sh [tests|times|all] [FOLDER...]     programs (*.py) of further folders are run like tests
# Environment: KIT (build/gpu); JOBS, tests at a time (6); LIMIT, seconds for one (400); BEFORE, a folder with an older package,
# to time the two in turn; OUT, a folder for one file with all logs.
set -uo pipefail

cd "$(dirname "$0")/../.."
what=${1:-all}
shift $(($# > 0))
kit=$(cd "${KIT:-build/gpu}" && pwd) || exit 1
logs=$kit/python-logs
rm -rf "$logs"
mkdir -p "$logs"
ESPER_GUARD_LIBRARY=$(ls "$kit"/libesper-guard.so.? | head -n 1) || exit 1
PYTHONPATH=$PWD/bindings/python LIMIT=${LIMIT:-400}
export ESPER_GUARD_LIBRARY PYTHONPATH LIMIT PYTHONUNBUFFERED=1 ESPER_TEST_FULL=1 logs OMP_NUM_THREADS=2

run_one() {
    local file=$1 name code begin=$SECONDS
    name=$(basename "$file" .py)
    case $file in
    tests/python/*) timeout "$LIMIT" python3 tests/python/run.py "$file" >"$logs/$name.log" 2>&1 ;;
    *) timeout "$LIMIT" python3 "$file" >"$logs/$name.log" 2>&1 ;;
    esac
    code=$?
    case $code in
    0) echo "ok        $name ($((SECONDS - begin)) s)" ;;
    77) echo "skipped   $name: $(tail -n 1 "$logs/$name.log")" ;;
    *) echo "FAILED    $name (exit $code, $((SECONDS - begin)) s)" ;;
    esac >"$logs/$name.verdict"
}
export -f run_one

python3 -c 'import torch, platform; print("torch", torch.__version__, "Python", platform.python_version(),
    torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA")'
if [ "$what" != times ]; then
    { ls -S tests/python/test_*.py; for folder in "$@"; do ls "$folder"/*.py; done; } |
        xargs -P "${JOBS:-6}" -I{} bash -c 'run_one {}'
    for verdict in "$logs"/*.verdict; do
        grep -q ^FAILED "$verdict" || continue
        echo "--- $(basename "$verdict" .verdict)"
        grep -vE '\.\.\. (ok|skipped)' "$logs/$(basename "$verdict" .verdict).log" | tail -n 30
    done
    cat "$logs"/*.verdict
    echo "$(cat "$logs"/*.log | sed -nE 's/^Ran ([0-9]+) tests?.*/\1/p' | awk '{n += $1} END {print n + 0}') cases," \
        "$(cat "$logs"/*.log | grep -c '^skipped: ') skipped"
fi
if [ "$what" != tests ]; then
    unset OMP_NUM_THREADS
    python3 bench/peers/guard_python.py 2>&1 | tee "$logs/times.log"
    [ -z "${BEFORE:-}" ] || python3 bench/peers/guard_python_pair.py "$BEFORE" "$PYTHONPATH" 2>&1 | tee "$logs/pair.log"
fi
[ -z "${OUT:-}" ] || tail -n +1 "$logs"/*.log >"$OUT/python-logs.txt"
! grep -qs ^FAILED "$logs"/*.verdict
