#!/usr/bin/env bash
# ctest: timeout=200 cost=15 labels=noasan
# Runs that ask for trials: made again by their logs, killed and stopped inside a trial and resumed, on two ranks; and a log that ends
# between forks and the decision that they are of.
. "$SOURCE_DIR/tests/cli/common.sh"
. "$SOURCE_DIR/tests/engine/ranks_common.sh"

# Trials take most of the time, so that most moments are inside one.
cat >asks.txt <<'END'
2   r0c0  try
4   r1c0  try
5   r0c0  germinate  blueprint=conv_light tempo=2
6   r0c0  advance
8   r0c1  try
14  r1c0  try
END
flags=(--epochs 60 --length epochs --batch 32 --max-steps 10 --channels 2 --kernel 1 --blocks 2 --policy scripted
    --decisions "$PWD/asks.txt" --gates permissive --trial-share 1 --trial-steps 40 --progress none)

hash_of() { "$ESPER" inspect "$1" | sed -n 's/^weight_hash *//p'; }

began=$(date +%s%N)
esper grow synth --threads 1 "${flags[@]}" --run-dir whole
took=$((($(date +%s%N) - began) / 1000000))
expect_code 0
expect_equal "forks" "$(grep -c '"source":"trial"' whole/decisions.jsonl)" 12
expect_equal "what comes after them" "$(grep -A1 '"source":"trial".*"blueprint":"conv' whole/decisions.jsonl | grep -c '"op":"try"')" 4
esper report whole
expect_code 0
grep -q 'asked for, and' whole/report.html || bad "the report has no trial that was asked for"

esper replay whole
expect_code 0
expect_words out "weights equal"

# A log that says otherwise of a fork is found out; one that ends within a trial is replayed up to it.
cp -r whole other
awk '/"source":"trial"/ { sub(/"fork":"./, "\"fork\":\"z"); sub(/"fork":"z/, "\"fork\":\"" (/"fork":"z0/ ? 1 : 0)) } { print }' \
    whole/decisions.jsonl >other/decisions.jsonl
esper replay other
expect_code 1
expect_words err "a fork"
cp -r whole torn
head -n $(($(grep -n '"source":"trial"' whole/decisions.jsonl | head -2 | tail -1 | cut -d: -f1))) whole/decisions.jsonl \
    >torn/decisions.jsonl
esper replay torn
expect_words out "the log ends here"

# Killed at any moment, as often as it takes.
for i in 1 2; do
    rm -rf broken
    set -- grow synth --threads 1 "${flags[@]}" --run-dir broken
    for try in 1 2 3 4; do
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
    expect_same "killed run $i: decision log" whole/decisions.jsonl broken/decisions.jsonl
done

# Stopped inside a long trial: its epoch is decided again.
echo "2 r0c0 try" >asks.txt
break_off INT "grep -q '\"epoch\":1,' stopped/decisions.jsonl && sleep 0.1" stopped \
    grow synth --threads 1 "${flags[@]}" --trial-steps 190 --run-dir stopped
esper grow --resume stopped --progress none
expect_code 0
esper replay stopped
expect_code 0
expect_words out "weights equal"

expect_equal "forks of the stopped run" "$(grep -c '"source":"trial"' stopped/decisions.jsonl)" 3

# Two ranks hold the same ones and agree on what came of them.
for name in once again; do
    on_ranks 2 grow synth "${flags[@]}" --run-dir $name
    expect_code 0
done
expect_same "the log of the same run on two ranks again" once/decisions.jsonl again/decisions.jsonl
expect_equal "forks on two ranks" "$(grep -c '"source":"trial"' once/decisions.jsonl)" 3
on_ranks 2 replay once
expect_code 0
expect_words out "weights equal"

finish
