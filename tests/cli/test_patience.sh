#!/usr/bin/env bash
# ctest: timeout=120 cost=4
# Patience and the best checkpoint: a run that is shortened, replayed, broken off and resumed; a best network that is what it was.
. "$SOURCE_DIR/tests/cli/common.sh"

waits=(--threads 1 --batch 8 --blocks 2 --channels 2 --max-steps 5 --epochs 60 --lr 0.5 --patience 3 --progress none)
hash_of() {
    "$ESPER" inspect "$1" --all | sed -n 's/^weight_hash *//p'
}

# ---- a rate that is held falls first, then the run ends, long before its budget
esper grow synth "${waits[@]}" --policy random --schedule hold --run-dir held
expect_code 0
expect_words err "epochs: the rate begins to fall" "epochs: the run ends"
expect_words out "best      held/best.safetensors of epoch"
esper replay held --progress none
expect_code 0
expect_words out "weights equal"

# ---- what is called the best is that network: its validation comes out as it was told
esper train synth "${waits[@]}" --max-steps 25 --run-dir plain
expect_code 0
expect_words err "epochs: the run ends"
told=$(sed -n 's/^best .*validation loss \([0-9.]*\),.*/\1/p' <<<"$out")
esper eval plain/best.safetensors --split valid
expect_code 0
expect_words out "loss $told"

# ---- broken off and resumed it ends where the unbroken run does
break_off INT '[ -s broken/best.safetensors ]' broken grow synth "${waits[@]}" --policy random --schedule hold --run-dir broken
esper grow --resume broken --progress none
expect_code 0
expect_equal "weights, broken off and not" "$(hash_of broken)" "$(hash_of held)"
expect_equal "the best of both" "$(hash_of broken/best.safetensors)" "$(hash_of held/best.safetensors)"

# ---- whoever asks for more gets it
esper train --resume plain --epochs 70 --patience 0 --progress none
expect_code 0
expect_words out "saved     plain/last.safetensors"

# ---- nothing is kept where nothing is to be written on the way
esper train synth "${small[@]}" --checkpoint-every 0 --run-dir bare
expect_code 0
expect_equal "a best checkpoint" "$(ls bare | grep -c best)" 0
finish
