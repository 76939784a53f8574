#!/usr/bin/env bash
# ctest: timeout=180 cost=15 labels=noasan
# A run with trials on two ranks: they hold the same ones, with the same draws of weights, agree on what came of them, and their
# log makes the run again.
. "$SOURCE_DIR/tests/cli/common.sh"
. "$SOURCE_DIR/tests/engine/ranks_common.sh"

flags=(--batch 32 --max-steps 20 --channels 2 --kernel 1 --blocks 3 --schedule hold --lr 0.05 --flops 6e9
    --blueprints conv_light --trial-share 0.6 --trial-first 0.05 --trial-price 0 --trial-rounds 1 --birth first --progress none)

for name in once again; do
    on_ranks 2 grow synth "${flags[@]}" --run-dir $name
    expect_code 0
done
grep -q '"source":"trial"' once/decisions.jsonl || bad "no trial was held"
grep -q '"op":"germinate"' once/decisions.jsonl || bad "no trial was won"
expect_same "the log of the same run again" once/decisions.jsonl again/decisions.jsonl
expect_equal "its weights" "$(weights_of again)" "$(weights_of once)"
on_ranks 2 replay once
expect_code 0
expect_words out "weights equal"

finish
