#!/usr/bin/env bash
# ctest: timeout=240 cost=30 labels=noasan
# Jobs in which rank 1 gets lost: stopped, killed, gone, late, or elsewhere. Every other rank must notice in time and leave
# what it was told. By shared memory and by messages.
set -uo pipefail

. "$SOURCE_DIR/tests/dist/common.sh"

# expect_noticed N SHARED HOW WORDS
expect_noticed() {
    local n=$1 shared=$2 how=$3 words=$4 rank

    for _ in 1 2 3; do # on a busy machine one may be late before it is asked to be
        rm -f survivor.*
        job "$n" "$shared" test_lost "$how"
        grep -q "before anything happened" log.txt || break
    done
    for ((rank = 0; rank < n; rank++)); do
        [ $rank -ne 1 ] || continue
        if grep -q "$words" survivor.$rank 2>/dev/null; then
            echo "$how, $n ranks, shared memory $shared: $(cat survivor.$rank)"
        else
            bad "$how with $n ranks, shared memory $shared: rank $rank: $(cat survivor.$rank 2>&1)"
        fi
    done
}

every_way() {
    local n=$1

    expect_noticed $n 1 never "rank 1 did not come to a sum within 0.9 s"
    expect_noticed $n 1 stop "rank 1 did not come to a sum within 0.9 s"
    expect_noticed $n 1 exit "rank 1 ended or left the job"
    expect_noticed $n 1 kill "rank 1 ended or left the job"
    expect_noticed $n 1 close "rank 1 has ended its part of the job"
    expect_noticed $n 1 other "rank 1 is at a gather, this one at a sum"
    expect_noticed $n 1 abort "stopped by request in a sum, while rank 1 had not come"
    expect_noticed $n 1 told "stopped by request in a sum, while rank 1 had not come"
    expect_noticed $n 0 never "rank 1 did not come within 0.9 s, nor answer"
    expect_noticed $n 0 stop "rank 1 did not come within 0.9 s, nor answer"
    expect_noticed $n 0 close "rank 1 has ended its part of the job"
    expect_noticed $n 0 abort "stopped by request while waiting for rank"
    expect_noticed $n 0 told "stopped by request while waiting for rank"
}

# With others that wait beside the one that notices: what looks different to them.
some_ways() {
    local n=$1

    expect_noticed $n 1 stop "rank 1 did not come to a sum within 0.9 s"
    expect_noticed $n 1 kill "rank 1 ended or left the job"
    expect_noticed $n 1 other "rank 1 is at a gather, this one at a sum"
    expect_noticed $n 1 told "stopped by request in a sum, while rank 1 had not come"
    expect_noticed $n 0 never "rank 1 did not come within 0.9 s, nor answer"
    expect_noticed $n 0 close "rank 1 has ended its part of the job"
    expect_noticed $n 0 told "stopped by request while waiting for rank"
}

every_way 2
"${LOST_FOUR:-some_ways}" 4

[ "$n_bad" -eq 0 ] || echo "$n_bad checks failed"
[ "$n_bad" -eq 0 ]
