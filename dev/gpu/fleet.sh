#!/usr/bin/env bash
# Checks and times the cuda backend on a machine with a GPU, from the folder that dev/gpu/pack.sh has packed. Every part has a time limit
# and goes on where another failed; what it says in detail is in a log, and what counts comes last, a few lines for each part.
#   usage: build/gpu-kit/fleet.sh [PART...]
#     check     a few steps of three tasks beside those of ref
#     tests     the tests of the backend on the device, some at a time
#     random    RANDOM_COUNT networks (3000) beside ref, and the same bits alone and in company
#     poison    64 networks, one of them poisoned POISON_COUNT times (1000)
#     golden    recorded networks
#     sanitize  compute-sanitizer's four tools over SANITIZE_COUNT random networks (100)
#     bench     esper bench train and fleet; of environments, where the program has it
#     peers     networks beside PyTorch; PRECISIONS (fp32), ROUNDS (5), NETS (all)
#     precision what fp32, tf32 and bf16 (PRECISIONS) are worth and what comes of them: fleets and single networks, the time of every
#               kernel of 64 networks, and losses and accuracies of a few hundred steps side by side
#     labs      labs of single kernels
#     bad       no device, its memory taken by somebody else, the device lost in the middle of a run (lose_device.c), which is resumed
#     grow      a whole run on Fashion-MNIST, replayed; only where the data is packed
#     frontier  grown against static networks at BUDGETS (0.25,0.5,1), for SECONDS_LEFT (280); FRONTIER, its folder, keeps what has ended, and
#               called again with more budgets or time the part goes on; only where the data is (DATA, or packed)
#   All but bad, grow, frontier, peers and precision, unless some are named.
# Environment: KIT, the folder (that of this script); OUT, a folder for one file with all logs,
# named by the parts, so that several calls at a time can share it; HOST=1 rehearses it without a device,
# over the driver made of the host, with counts to match.
set -u

kit=$(cd "${KIT:-$(dirname "$0")}" && pwd)
[ $# -gt 0 ] || set -- check tests random poison golden sanitize bench labs
work=$(mktemp -d)
logs=$work/logs
mkdir -p "$logs"
verdicts=$work/verdicts
tar -C "$work" -xJf "$kit/tests.tar.xz" || python3 -m tarfile -e "$kit/tests.tar.xz" "$work" || exit 1
programs=$work/tests
export kit logs programs

# Python has libraries of its own.
alone=${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH=$kit/lib${alone:+:$alone}
export ESPER_GOLDEN=$kit/golden XDG_CACHE_HOME=$work/cache ESPER_TEST_GPU=1
backend=cuda
if [ "${HOST:-0}" = 1 ]; then
    unset ESPER_TEST_GPU
    backend=cpu # the program itself knows no such driver
    RANDOM_COUNT=${RANDOM_COUNT:-20} POISON_COUNT=${POISON_COUNT:-3} SANITIZE_COUNT=${SANITIZE_COUNT:-2}
fi

# run NAME SECONDS COMMAND...: in a folder of its own, with a time limit; its output becomes a log. Returns its status.
run() {
    local name=$1 seconds=$2 folder
    shift 2
    folder=$(mktemp -d "$work/in.XXXXXX")
    (cd "$folder" && timeout "$seconds" "$@") >"$logs/$name.log" 2>&1
}
export -f run
export work

# verdict NAME STATUS PATTERN: what counts of a log, and its end where it failed.
verdict() {
    local log=$logs/$1.log
    if [ "$2" = 0 ]; then
        echo "ok      $1"
        grep -hE "$3" "$log" | cut -c1-400 | sed 's/^/        /'
    elif [ "$2" = 77 ]; then
        echo "skipped $1: $(grep -m 1 skipped "$log" | cut -c1-200)"
    else
        echo "FAILED  $1 (exit $2)"
        grep -oE '^=+ +(Program hit|Invalid|Error|Fatal|Warning|Uninitialized|Barrier)[^.]*' "$log" | sort | uniq -c | sort -rn | head -n 8
        grep -E '"error":|^WRONG' "$log" | head -n 20 | cut -c1-300 | sed 's/^/        /'
        tail -n 12 "$log" | cut -c1-300 | sed 's/^/        /'
    fi
}

# Three tasks on ref and on the device, all at a time: losses of twelve steps in as many digits as are printed.
check() {
    local jobs=("synth --batch 50" "synth_text --dropout 0.1" "synth --plant r0c0:norm,r1c0:attention") i side
    for i in "${!jobs[@]}"; do
        for side in ref "$backend"; do
            # shellcheck disable=SC2086
            run "check_${i}_$side" 60 "$kit/esper" train ${jobs[i]} --epochs 1 --max-steps 12 --backend "$side" --progress plain \
                --run-dir "$work/check_${i}_$side" &
        done
    done
    wait
    for i in "${!jobs[@]}"; do
        for side in ref "$backend"; do
            grep -oE '(loss|accuracy|bits)[^,|]*[0-9.]+' "$logs/check_${i}_$side.log" | tail -n 4 | tr '\n' ' ' >"$work/said_$side"
        done
        if [ -s "$work/said_ref" ] && cmp -s "$work/said_ref" "$work/said_$backend"; then
            echo "ok      check: ${jobs[i]}: $(cat "$work/said_$backend")"
        else
            echo "DIFFERS check: ${jobs[i]}: ref $(cat "$work/said_ref"), $backend $(cat "$work/said_$backend")" \
                "$(tail -n 1 "$logs/check_${i}_$backend.log" | cut -c1-200)"
        fi
    done
}

tests() {
    local test name
    for test in "$programs"/*; do
        name=$(basename "$test")
        case $name in cuda_random | engine_poison | cuda_parity | policy_policy_net*) ;; *) echo "$name" ;; esac
    done | xargs -P 6 -I{} bash -c 'run test_{} 60 "$programs/{}"; echo $? >"$logs/test_{}.status"'
    for test in "$logs"/test_*.status; do
        name=$(basename "$test" .status)
        verdict "$name" "$(cat "$test")" '^\[  PASSED'
    done
}

random() {
    ESPER_TEST_COUNT=${RANDOM_COUNT:-3000} run random "${RANDOM_LIMIT:-150}" "$programs/cuda_random"
    verdict random $? '^([0-9]+ networks|differs:|more than ref)'
}

poison() {
    ESPER_TEST_COUNT=${POISON_COUNT:-1000} run poison "${POISON_LIMIT:-100}" "$programs/engine_poison"
    verdict poison $? '^[0-9]+ networks'
}

golden() {
    run golden 90 "$programs/cuda_parity"
    verdict golden $? 'values of|SKIPPED|skipped'
    for test in "$programs"/policy_policy_net*; do
        [ -f "$test" ] || continue
        run golden_policy 60 "$test"
        verdict golden_policy $? 'tolerance|skipped|PASSED'
    done
}

# One process for each tool, side by side: with a hundred networks a launch has a hundred lanes, so that is quick enough.
sanitize() {
    local tool
    command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    if ! command -v compute-sanitizer >/dev/null; then
        echo "skipped sanitize: there is no compute-sanitizer"
        return
    fi
    for tool in memcheck racecheck synccheck initcheck; do
        (
            ESPER_TEST_COUNT=${SANITIZE_COUNT:-100} ESPER_TEST_FILTER='*agree*' run "sanitize_$tool" "${SANITIZE_LIMIT:-200}" \
                compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 5 "$programs/cuda_random"
            echo $? >"$logs/sanitize_$tool.status"
        ) &
    done
    wait
    for tool in memcheck racecheck synccheck initcheck; do
        verdict "sanitize_$tool" "$(cat "$logs/sanitize_$tool.status")" 'ERROR SUMMARY|RACECHECK SUMMARY|^[0-9]+ networks'
    done
}

bench() {
    local what
    for what in train fleet env; do
        [ $what != env ] || "$kit/esper" bench --help | grep -q '^  env ' || continue
        run "bench_$what" 120 "$kit/esper" bench $what --backend "$backend" ${QUICK:+--quick}
        verdict "bench_$what" $? '^(train|fleet|env)'
    done
}

peers() {
    local precision
    for precision in ${PRECISIONS:-fp32}; do
        # shellcheck disable=SC2086
        LD_LIBRARY_PATH=$alone run "peers_$precision" "${PEERS_LIMIT:-240}" python3 "$kit/peers/train_gpu.py" --esper "$kit/esper" \
            --rounds "${ROUNDS:-5}" --precision "$precision" ${NETS:-}
        verdict "peers_$precision" $? '^\{'
    done
}

# Images are Fashion-MNIST where it is packed.
precision() {
    local precision images=(synth) step job
    [ "${HOST:-0}" != 1 ] || PRECISIONS=fp32 # the backend there has nothing else
    [ ! -d "${DATA:-$kit/data}" ] || images=(fashion --data "${DATA:-$kit/data}")
    for precision in ${PRECISIONS:-fp32 tf32 bf16}; do
        run "precision_fleet_$precision" 100 "$kit/esper" bench fleet.gpu64 --backend "$backend" --precision "$precision"
        verdict "precision_fleet_$precision" $? '^fleet'
        run "precision_train_$precision" 60 "$kit/esper" bench train --backend "$backend" --precision "$precision"
        verdict "precision_train_$precision" $? '^train'
        ESPER_CUDA_PROFILE=1 run "precision_kernels_$precision" 60 "$kit/esper" bench fleet.gpu64 --backend "$backend" \
            --precision "$precision" --quick
        verdict "precision_kernels_$precision" $? 'esper_|us|%'
    done
    for job in images text; do
        for precision in ${PRECISIONS:-fp32 tf32 bf16}; do
            if [ $job = images ]; then step=("${images[@]}"); else step=(synth_text); fi
            run "precision_${job}_$precision" 90 "$kit/esper" train "${step[@]}" --backend "$backend" --precision "$precision" --epochs 6 \
                --max-steps 100 --batch 128 --progress plain --run-dir "$work/precision_${job}_$precision"
            verdict "precision_${job}_$precision" $? 'epoch|loss|accuracy'
        done
    done
}

labs() {
    local lab
    for lab in "$kit"/labs/*; do
        [ -x "$lab" ] || continue
        run "lab_$(basename "$lab")" "${LAB_LIMIT:-40}" "$lab"
        verdict "lab_$(basename "$lab")" $? '.'
    done
}

# Every refusal is a sentence and a status other than 0 (and no signal's); a lost run goes on to the weights of one that was not.
bad() {
    local job="grow synth --backend cuda --epochs 12 --max-steps 40 --policy random --gates permissive --gate-epochs 1 --progress plain"
    local at whole resumed
    CUDA_VISIBLE_DEVICES='' run bad_no_device 30 "$kit/esper" train synth --backend cuda
    echo "no device: exit $?: $(tail -n 1 "$logs/bad_no_device.log" | cut -c1-300)"

    mkfifo "$work/hold"
    LD_LIBRARY_PATH=$alone python3 -c 'import torch, sys
free = torch.cuda.mem_get_info()[0]
taken = torch.empty(free - (700 << 20), dtype=torch.uint8, device="cuda")
print("taken", flush=True)
sys.stdin.readline()' <"$work/hold" >"$work/taken" 2>&1 &
    exec 8>"$work/hold" # opens when python does
    for _ in $(seq 300); do
        grep -q taken "$work/taken" && break
        sleep 0.1
    done
    run bad_memory 60 "$kit/esper" bench fleet.gpu1024 --backend cuda
    echo "memory too small: exit $?: $(tail -n 1 "$logs/bad_memory.log" | cut -c1-300)"
    run bad_memory_one 60 "$kit/esper" train synth --batch 65536 --backend cuda
    echo "memory too small, one network: exit $?: $(tail -n 1 "$logs/bad_memory_one.log" | cut -c1-300)"
    echo >&8
    exec 8>&-
    wait $!

    # shellcheck disable=SC2086
    run bad_whole 60 "$kit/esper" $job --run-dir "$work/whole"
    whole=$(grep '^weights' "$logs/bad_whole.log")
    for at in 100 300 500 700 900; do
        # shellcheck disable=SC2086
        LD_PRELOAD=$kit/lib/lose_device.so LOSE_AT=$at run "bad_lost_$at" 60 "$kit/esper" $job --run-dir "$work/lost_$at"
        echo "lost at launch $at: exit $?: $(grep -v '^ ' "$logs/bad_lost_$at.log" | tail -n 1 | cut -c1-300)"
        run "bad_resumed_$at" 60 "$kit/esper" grow --resume "$work/lost_$at" --progress plain
        resumed=$(grep '^weights' "$logs/bad_resumed_$at.log")
        if [ -n "$whole" ] && [ "$whole" = "$resumed" ]; then
            echo "ok      resumed: $resumed, as the run that lost nothing"
        else
            echo "DIFFERS resumed: $resumed, of the whole run: $whole"
        fi
    done
}

grow() {
    if [ ! -d "$kit/data" ]; then
        echo "skipped grow: the data is not packed (DATA=yes dev/gpu/pack.sh)"
        return
    fi
    run grow 120 "$kit/esper" grow fashion --data "$kit/data" --backend "$backend" --progress plain --run-dir "$work/grown"
    verdict grow $? 'accuracy|test|grown|alone'
    run replay 90 "$kit/esper" replay "$work/grown"
    verdict replay $? '.'
}

frontier() {
    local data dir
    data=$(realpath "${DATA:-$kit/data}") dir=$(realpath -m "${FRONTIER:-$work/frontier}")
    if [ ! -d "$data" ]; then
        echo "skipped frontier: there is no data in $data"
        return
    fi
    ESPER_CUDA_ROUNDS=1 run frontier "${SECONDS_LEFT:-280}" "$kit/esper" compare fashion --frontier --data "$data" --backend "$backend" \
        --together --budgets "${BUDGETS:-0.25,0.5,1}" --seeds "${SEEDS:-3}" --checkpoint-every 5 --dir "$dir" --json
    verdict frontier $? '"frontier":"(share|limit)"|of all training|room for|^rounds|launches of'
    cp "$logs/frontier.log" "${OUT:-$work}/frontier.jsonl"
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,memory.total --format=csv,noheader
"$kit/esper" --version
"$kit/esper" info backends | grep -E 'device of the cuda' || true
for part in "$@"; do
    case $part in
    check | tests | random | poison | golden | sanitize | bench | peers | precision | labs | bad | grow | frontier) ;;
    *)
        echo "fleet.sh: there is no part '$part'" >&2
        continue
        ;;
    esac
    began=$(date +%s%N)
    echo "==== $part" >>"$verdicts"
    $part >>"$verdicts" 2>&1
    tenths=$((($(date +%s%N) - began) / 100000000))
    echo "---- $part took $((tenths / 10)).$((tenths % 10)) s" >>"$verdicts"
done
if [ -n "${OUT:-}" ]; then
    parts=$*
    tail -n +1 "$verdicts" "$logs"/*.log >"$OUT/fleet-${parts// /-}.txt"
fi
cat "$verdicts"
! grep -qE '^(FAILED|DIFFERS)' "$verdicts"
