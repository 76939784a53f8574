#!/usr/bin/env bash
# ctest: timeout=120 cost=8 labels=noasan
# Ranks that do not join: they never come, end before, are stopped or killed. The others leave in time, and name them. All at
# once, as they mostly wait.
set -uo pipefail

. "$SOURCE_DIR/tests/dist/common.sh"

# begin NAME N RANK:HOW...: a job in a folder of its own.
begin() {
    mkdir "$1"
    (cd "$1" && RANKS_SECONDS=60 exec bash "$runner" "$2" "$programs/test_join" "${@:3}" >log.txt 2>&1) &
}

# expect NAME RANK WORDS...: what that rank was told.
expect() {
    local name=$1 rank=$2 told word
    told=$(cat "$name/told.$rank" 2>&1)
    shift 2
    echo "$name, rank $rank: $told"
    for word in "in time" "$@"; do
        case $told in
        *"$word"*) ;;
        *)
            cp "$name/log.txt" log.txt
            bad "$name: rank $rank is not told '$word': $told"
            ;;
        esac
    done
}

begin absent 2 1:never
begin ended 2 0:exit
# The launcher leaves time for one that is deaf to it, which would otherwise be ended in its sleep.
OMPI_MCA_odls_base_sigkill_timeout=3 begin pair 4 1:stop 2:stop-within 3:nap
begin killed 3 1:kill-within
bash "$runner" 1 "$ESPER" grow synth --epochs 1 --max-steps 2 --progress none --run-dir helped --join-deadline 2 \
    : -n 1 "$ESPER" grow --help >/dev/null 2>log.txt
code=$?
cat log.txt
[ $code -eq 1 ] || bad "a rank that prints its help and ends well: exit status $code"
grep -q "rank 0: mpi: the ranks have not all joined within 2 s: rank 1 has not come" log.txt || bad "it is not named"
[ ! -e helped ] || bad "a run was begun without all ranks"
wait
expect absent 0 "not all joined within 1.5 s: rank 1 has not come"
expect ended 1 "not all joined within 1.5 s: rank 0 has not come"
for rank in 0 3; do # the first to leave ends the other's wait
    expect pair $rank "rank 1 has not come; rank 2" # which came and does not move, or on a busy machine was stopped before
done
for rank in 0 2; do
    expect killed $rank "rank 1 has" # ended; or not come, where it was too slow
done

[ "$n_bad" -eq 0 ] || echo "$n_bad checks failed"
[ "$n_bad" -eq 0 ]
