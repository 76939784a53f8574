#!/bin/bash
# ctest: timeout=120 cost=5 labels=noasan
# The data's hash is in checkpoint, policy and decision log: who goes on with other data is told.
. "$SOURCE_DIR/tests/cli/common.sh"

head -c 60000 "$SOURCE_DIR/docs/growing.md" >one.txt
tr et te <one.txt >two.txt # as long, of the same letters
cp one.txt text
model=("${small_text[@]}" --data text --progress none)

esper train chars "${model[@]}" --run-dir trained
expect_code 0
esper grow chars "${model[@]}" --policy random --gates permissive --gate-epochs 1 --run-dir grown
expect_code 0
esper learn chars "${small_text[@]}" --data text --envs 1 --rounds 1 --gate-epochs 1 --progress none --run-dir learned
expect_code 0
expect_words out "learned"
grep -q '"data":"[0-9a-f]\{16\}"' <(head -n 1 grown/decisions.jsonl) || bad "the log's header" "$(head -n 1 grown/decisions.jsonl)"
esper inspect trained
expect_words out "data_hash"

cp two.txt text
for run in "train --resume trained" "grow --resume grown"; do
    esper $run --epochs 3 --progress none
    expect_code 2
    expect_words err "last.safetensors: the data is not what the run was trained on" "--data PATH"
done
esper learn --resume learned --rounds 2 --progress none
expect_code 2
expect_words err "policy.safetensors: the data is not what the policy has learned on"
esper replay grown --progress none
expect_code 2
expect_words err "the data is not what the run was trained on: its hash is" "the log says"
esper eval trained
expect_code 0
expect_words err "trained/last.safetensors: the data is not what the network was trained on"

# Moved data is the same data.
esper train --resume trained --epochs 3 --data one.txt --progress none
expect_code 0
esper replay grown --data one.txt --progress none
expect_code 0
esper eval trained --data one.txt
expect_code 0
expect_equal "$last: standard error" "$err" ""

# Logs from before the data was in them, and checkpoints likewise (tests/run/test_checkpoint.c), are read.
sed -i '1s/,"data":"[0-9a-f]*"//' grown/decisions.jsonl
esper replay grown --data one.txt --progress none
expect_code 0

finish
