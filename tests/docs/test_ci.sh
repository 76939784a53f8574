#!/usr/bin/env bash
# ctest: labels=noasan
# .ci/run, on projects of two lines: it adds up what they print, keeps the folder of what failed and names it, takes the recorded
# vectors that ESPER_GOLDEN names, and hands on none of the caller's other settings.
export LC_ALL=C
. "$SOURCE_DIR/tests/cli/common.sh"

if [ ! -x "$SOURCE_DIR/.ci/run" ]; then
    echo "skipped: .ci/run is not here"
    exit 77
fi
unset ESPER_GOLDEN
export TMPDIR=$PWD/tmp GIT_CONFIG_GLOBAL=/dev/null

# ci SUM: .ci/run on a project whose `make test` prints that sum.
ci() {
    local project=$PWD/project
    last=".ci/run ($1)"
    rm -rf "$project" "$TMPDIR"
    mkdir -p "$project/.ci" "$project/scripts" "$TMPDIR"
    cp "$SOURCE_DIR/.ci/run" "$project/.ci/run"
    printf 'test:\n\t@env | grep ^ESPER_ ; echo a log >log.txt; echo "%s"\n' "$1" >"$project/Makefile"
    printf '#!/bin/sh\necho "vectors of $ESPER_GOLDEN"\necho "2 passed, 0 failed"\n' >"$project/scripts/test"
    chmod +x "$project/scripts/test"
    git init -q "$project" && git -C "$project" add -A &&
        git -C "$project" -c user.name=test -c user.email=test@localhost commit -qm all || exit 1
    "$project/.ci/run" >out.txt 2>&1 </dev/null
    code=$?
    out=$(cat out.txt)
    err=''
}

ESPER_LR=0.5 ci "3 passed, 0 failed"
expect_code 0
expect_equal "the sum" "$(tail -n 1 out.txt)" "3 passed, 0 failed"
expect_no_word out "ESPER_LR"
expect_words out "not run"
expect_equal "what is left" "$(ls tmp)" ""

ci "3 passed, 1 failed"
expect_code 1
expect_equal "the sum" "$(tail -n 1 out.txt)" "3 passed, 1 failed"
kept=$(sed -n 's/^kept.*: //p' out.txt)
expect_equal "the log that was kept" "$(cat "$kept/alone/esper/log.txt")" "a log"

mkdir vectors
ESPER_GOLDEN=vectors ci "3 passed, 0 failed"
expect_code 0
expect_words out "vectors of $PWD/vectors"
expect_equal "the sum" "$(tail -n 1 out.txt)" "5 passed, 0 failed"

ESPER_GOLDEN=nowhere ci "3 passed, 0 failed"
expect_code 1
expect_words out "ESPER_GOLDEN names $PWD/nowhere, which is no folder"
expect_equal "the sum" "$(tail -n 1 out.txt)" "3 passed, 1 failed"

finish
