#!/usr/bin/env bash
# ctest: timeout=300 cost=20 labels=noasan
# Runs with trials: made again by their logs, killed and stopped inside a trial and resumed, on two ranks.
. "$SOURCE_DIR/tests/cli/common.sh"

# Trials take most of the time, so that most moments are inside one.
flags=(--threads 1 --batch 32 --max-steps 20 --channels 2 --kernel 1 --blocks 3 --schedule hold --lr 0.05 --flops 2e10
    --blueprints conv_light --trial-share 0.9 --trial-first 0.05 --trial-price 0 --progress none)

hash_of() { "$ESPER" inspect "$1" | sed -n 's/^weight_hash *//p'; }

began=$(date +%s%N)
esper grow synth "${flags[@]}" --run-dir whole
took=$((($(date +%s%N) - began) / 1000000))
expect_code 0
grep -q '"source":"trial"' whole/decisions.jsonl || bad "no trial was held"
grep -q '"op":"germinate"' whole/decisions.jsonl || bad "no trial was won"

esper replay whole
expect_code 0
expect_words out "weights equal"

# A log that says otherwise of a fork is found out.
cp -r whole other
sed -i '0,/"fork":"./s/"fork":"\(.\)/"fork":"z/' other/decisions.jsonl
sed -i 's/"fork":"z/"fork":"0/' other/decisions.jsonl
if ! cmp -s whole/decisions.jsonl other/decisions.jsonl; then
    esper replay other
    expect_code 1
    expect_words err "a fork"
fi

# Killed at any moment, as often as it takes.
for i in 1 2 3; do
    rm -rf broken
    set -- grow synth "${flags[@]}" --run-dir broken
    for try in 1 2 3 4 5; do
        "$ESPER" "$@" >out.txt 2>err.txt </dev/null &
        pid=$!
        sleep "$(awk "BEGIN { print $took * $((RANDOM % 60 + 10)) / 100000 }")"
        kill -KILL $pid 2>/dev/null
        wait $pid 2>/dev/null && break
        [ ! -e broken/last.safetensors ] || set -- grow --resume broken --progress none
        [ -e broken/last.safetensors ] || rm -rf broken
    done
    "$ESPER" "$@" >out.txt 2>err.txt </dev/null # what is left, if anything
    expect_equal "killed run $i: weights" "$(hash_of broken)" "$(hash_of whole)"
    cmp -s whole/decisions.jsonl broken/decisions.jsonl ||
        bad "killed run $i: decision log" "$(diff whole/decisions.jsonl broken/decisions.jsonl | head -5)"
done

# Stopped inside a trial: the epoch before it is in the log, and its own decision is not.
epoch=$(sed -n 's/.*"epoch":\([0-9]*\),.*"source":"trial".*/\1/p' whole/decisions.jsonl | head -1)
break_off INT "grep -q '\"epoch\":$((epoch - 1)),' stopped/decisions.jsonl && sleep 0.2" stopped \
    grow synth "${flags[@]}" --run-dir stopped
esper grow --resume stopped --progress none
expect_code 0
expect_equal "stopped run: weights" "$(hash_of stopped)" "$(hash_of whole)"
cmp -s whole/decisions.jsonl stopped/decisions.jsonl ||
    bad "stopped run: decision log" "$(diff whole/decisions.jsonl stopped/decisions.jsonl | head -5)"

finish
