#!/usr/bin/env bash
# ctest: timeout=120 cost=6
# All runs together: listed while they run and afterwards, compared, tagged, asked and deleted; what is wrong is said.
. "$SOURCE_DIR/tests/cli/common.sh"

esper runs
expect_code 0
expect_words out "no runs yet"
expect_equal "nothing is made for a look" "$(ls)" "$(printf 'err.txt\nout.txt')"
esper runs --json
expect_equal "no runs as JSON" "$(tr -d '\n' <<<"$out")" "[]"

"$ESPER" grow synth "${small[@]}" --policy random --run-dir runs/one --progress none >/dev/null 2>&1
"$ESPER" train synth "${small[@]}" --run-dir runs/two --progress none >/dev/null 2>&1
"$ESPER" grow synth "${small[@]}" --policy none --seed 2 --run-dir runs/three --progress none >/dev/null 2>&1

esper runs
expect_code 0
expect_words out "one " "two " "three " "random" "done"
expect_equal "lines" "$(wc -l <out.txt)" 4
expect_equal "no file of SQLite is left" "$(find runs -name '*-wal' -o -name '*-shm')" ""
esper runs --json --sort run
expect_words out '"kind":"train"' '"rng_seed":"2"' '"acc_test":'
if python3 -c 'import json' 2>/dev/null; then
    expect_equal "JSON" "$(python3 -c 'import json, sys; print([row["run"] for row in json.load(sys.stdin)])' <<<"$out")" \
        "['one', 'three', 'two']"
fi
esper runs --filter kind=train --json
expect_words out '"run":"two"'
expect_no_word out '"run":"one"'
esper runs --filter run=nothing
expect_words out "no run below runs/ is like that"

# ---- tags
esper runs tag one good better
expect_code 0
esper runs tag last good
expect_code 0
esper runs --filter tag=better
expect_words out "one" "better,good"
expect_equal "lines" "$(wc -l <out.txt)" 2
esper runs untag one better
esper runs --filter tag=better
expect_words out "no run below"

# ---- beside each other
esper runs compare one three
expect_code 0
expect_words out "* policy" "  task" "* rng_seed"

# ---- SQL
esper runs sql "SELECT count(*) AS n FROM runs WHERE kind = 'grow'"
expect_code 0
expect_words out '"n":2'

# ---- a run that goes on is running, and cannot be deleted; killed, it is cut off
"$ESPER" grow synth --threads 1 --batch 8 --blocks 2 --channels 2 --epochs 100000 --policy none --run-dir runs/long \
    --progress none >/dev/null 2>&1 &
pid=$!
for _ in $(seq 200); do
    esper runs --filter run=long --json
    grep -q '"epochs":[1-9]' <<<"$out" && break
    sleep 0.1
done
expect_words out '"state":"running"'
esper runs delete long --yes
expect_code 1
expect_words err "is running"
kill -KILL $pid
wait $pid 2>/dev/null
esper runs --filter run=long --json
expect_words out '"state":"cut off"'

# ---- deleting
mkdir outside
ln -s "$PWD/outside" runs/long/link
echo kept >outside/file
esper runs delete long
expect_words out "would delete" "--yes"
expect_equal "nothing is deleted" "$([ -d runs/long ] && echo there)" there
esper runs delete long --yes
expect_code 0
expect_words out "deleted runs/long"
expect_equal "it is gone" "$([ -e runs/long ] && echo there)" ""
expect_equal "a link is not followed" "$(cat outside/file)" kept
esper runs --filter run=long
expect_words out "no run below"
for what in outside .. runs /; do
    esper runs delete "$what" --yes
    expect_equal "delete $what" "$((code != 0))" 1
done
expect_equal "others stay" "$(ls -d runs/one runs/two runs/three outside | wc -l)" 4

# ---- a cache
rm runs/index.db
echo rubbish >runs/index.db
esper runs
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 4
if be_nobody; then
    rm runs/index.db
    esper runs
    expect_code 0
    expect_words out "one " "three "
    expect_equal "no index where nobody may write" "$([ -e runs/index.db ] && echo there)" ""
    prefix=()
fi

# ---- what is wrong is said
esper runs what
expect_code 2
expect_words err "'what' is nothing to do with runs" "compare"
esper runs --filter nothing=1
expect_code 2
expect_words err "'nothing' is no column" "acc_test"
esper runs --filter acc_test=much
expect_code 2
expect_words err "is a number"
esper runs --sort nothing
expect_code 2
expect_words err "'nothing' is no column"
esper runs --most -3
expect_code 2
esper runs compare one
expect_code 2
expect_words err "two runs or more"
esper runs compare one nobody
expect_code 1
esper runs tag one "two words"
expect_code 2
expect_words err "is no tag"
esper runs sql "DELETE FROM runs"
expect_code 2
expect_words err "one SELECT"
finish
