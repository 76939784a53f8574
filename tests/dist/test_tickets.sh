#!/usr/bin/env bash
# ctest: timeout=120 labels=noasan
# The ticket about ranks, measured by two: one line, from rank 0. The others are not for ranks.
. "$SOURCE_DIR/tests/cli/common.sh"

if ! command -v mpirun >/dev/null || ! "$ESPER" info backends | grep -q '+ mpi'; then
    echo "skipped: there is no MPI here"
    exit 77
fi

# ranks ARGUMENTS: the program as a job of two.
ranks() {
    last="mpirun -n 2 esper $*"
    bash "$SOURCE_DIR/tests/dist/ranks.sh" 2 "$ESPER" "$@" >out.txt 2>err.txt </dev/null
    code=$?
    out=$(cat out.txt) err=$(cat err.txt)
}

ranks bench tickets.B3-DRL-18 --quick --json
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 1
expect_words out '"ticket":"B3-DRL-18"' '"measured":"here"' '"machine":"2 ranks, mpi"' '"unit":"us"' '"quick":true'
expect_equal "two sides" "$(sed -nE 's/.*"before":([0-9.e+-]+),"after":([0-9.e+-]+),.*/\1 \2/p' out.txt |
    awk '{ print ($1 > 0 && $2 > 0) }')" 1
expect_no_word out '"needs"'
ranks bench tickets --quick
expect_equal "$last fails" "$((code != 0))" 1
expect_words err "ranks measure tickets.B3-DRL-18 alone"
finish
