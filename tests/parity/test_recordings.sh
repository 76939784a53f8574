#!/usr/bin/env bash
# ctest: timeout=300 cost=6 labels=golden,noasan
# Every program that reads recorded vectors, with other recordings than the one it was written with:
#   - a folder that is not there is an error, and so is a test that reads without the label;
#   - halves of the whole set (ESPER_GOLDEN), their lines doubled and in another order, and half of the nets: all pass.
set -uo pipefail

programs=$(dirname "$ESPER") # the folder of a build, or of a kit
list=$programs/tests/list
[ -f "$list" ] || list=$programs/tests.list
whole=${ESPER_GOLDEN:-}
n_failed=0
n_run=0

fail() {
    echo "FAILED: $*"
    n_failed=$((n_failed + 1))
}

# Prints the programs that carry the label, but for the long ones.
golden_programs() {
    awk -F'|' '("," $4 ",") ~ /,golden,/ && ("," $4 ",") !~ /,soak,/ && $2 !~ /\.sh$/ { print $2 }' "$list"
}

# half_lines SEED FILE: the line that tells about the file, and about half of the others, some of them twice, shuffled.
half_lines() {
    head -n 1 "$2"
    awk -v seed="$1" 'BEGIN { srand(seed) }
        NR > 1 { for (n = int(4 * rand()) - 1; n > 0; n--) print rand() "\t" $0 }' "$2" | sort -n | cut -f 2-
}

make_half() {
    local seed=$1 to=$2 file n=0

    mkdir -p "$to/nets"
    for file in "$whole"/*.jsonl; do half_lines $((seed + n++)) "$file" >"$to/${file##*/}"; done
    printf '%s\n' "$whole"/nets/* | awk -v seed="$seed" 'BEGIN { srand(seed) } rand() < 0.5' >nets
    while read -r file; do ln -s "$file" "$to/nets/"; done <nets
    echo "recording $seed: $(cat "$to"/*.jsonl | wc -l) of $(cat "$whole"/*.jsonl | wc -l) lines, $(wc -l <nets) nets"
}

[ -n "$(golden_programs)" ] || fail "$list names no program that is labelled golden"
for program in $(golden_programs); do
    ESPER_GOLDEN=$PWD/none "$programs/$program" >log 2>&1 && fail "$program passes without the folder it was told of"
    grep -q "ESPER_GOLDEN=$PWD/none: no such folder" log || fail "$program: $(tail -n 3 log)"
    ESPER_TEST_LABELS=tsan "$programs/$program" >log 2>&1 && fail "$program passes without the label"
    grep -q "is not labelled golden" log || fail "$program: $(tail -n 3 log)"
    n_run=$((n_run + 1))
done
echo "$n_run programs refuse a folder that is not there"

if [ -z "$whole" ]; then
    echo "skipped: halves of a recording, as ESPER_GOLDEN names no whole one"
    exit $((n_failed > 0))
fi
for seed in 1 2; do
    make_half $seed "$PWD/half$seed"
    for program in $(golden_programs); do
        ESPER_GOLDEN=$PWD/half$seed "$programs/$program" >log 2>&1 ||
            fail "$program with recording $seed: $(grep -E 'ERROR|FAILED|recorded|mismatch' log | tail -n 20)"
    done
done
exit $((n_failed > 0))
