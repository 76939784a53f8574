#!/usr/bin/env bash
# How training and learning scale over the threads of a machine with many cores. Run it from the repository's root.
#   usage: dev/server/scale.sh PROGRAM [OLDER]       OLDER: another build, in turn with the first
# Environment: DATA, the folder of the Fashion-MNIST files; THREADS ("1 8 16"); ROUNDS (3); ENVS (64).
set -uo pipefail

programs=("$@")
data=${DATA:-/usr/share/datasets/fashion-mnist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -m 1 "model name" /proc/cpuinfo
nproc

# Steps of environments in a second, opening and the policy's update included, best of ROUNDS.
learn() {
    local program=$1 threads=$2 begin end
    begin=$(date +%s.%N)
    "$program" learn fashion_fast --data "$data" --envs "${ENVS:-64}" --rounds 1 --threads "$threads" --progress none \
        --run-dir "$work/$RANDOM$RANDOM" >"$work/log" 2>&1 || { tail -n 3 "$work/log"; return 1; }
    end=$(date +%s.%N)
    epochs=$("$program" info config fashion_fast --learn 2>/dev/null | sed -nE 's/^epochs *= *([0-9]+).*/\1/p')
    epochs=${epochs:-$("$program" info config fashion_fast --grow | sed -nE 's/^epochs *= *([0-9]+).*/\1/p')}
    awk -v n="${ENVS:-64}" -v e="$epochs" -v t="$(awk "BEGIN{print $end - $begin}")" 'BEGIN{printf "%.1f\n", n * e / t}'
    grep '^time' "$work/log" >"$work/time"
}

for threads in ${THREADS:-1 8 16}; do
    for round in $(seq "${ROUNDS:-3}"); do
        for program in "${programs[@]}"; do
            [ "$threads" -gt 2 ] || [ "$round" -eq 1 ] || continue
            echo "learn.fashion_fast envs=${ENVS:-64} threads=$threads $(basename "$program"): $(learn "$program" "$threads") steps/s;" \
                "$(cat "$work/time")"
        done
    done
done
for net in cnn_wide lm_384 cnn_small; do
    for round in $(seq "${ROUNDS:-3}"); do
        for threads in 1 8; do
            for program in "${programs[@]}"; do
                echo "train.$net threads=$threads $(basename "$program"): $("$program" bench "train.$net" --json --threads "$threads" |
                    sed -nE 's/.*"value": *([0-9.e+]+).*/\1/p' | head -n 1)"
            done
        done
    done
done
