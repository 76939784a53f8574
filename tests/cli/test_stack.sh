#!/usr/bin/env bash
# ctest: timeout=120 cost=8
# Slots that open again, from the outside: a run with three seeds at one place is replayed, resumed, exported, drawn and told of.
. "$SOURCE_DIR/tests/cli/common.sh"

cat >script.txt <<'END'
1 r0c1 germinate blueprint=conv_light tempo=1
2 r0c1 advance
3 r0c1 advance
4 r0c1 advance
5 r0c1 fossilize
6 r0c1_2 germinate blueprint=conv_heavy tempo=1
7 r0c1_2 advance
8 r0c1_2 advance
9 r0c1_2 advance
10 r0c1_2 fossilize
11 r0c1_3 germinate blueprint=depthwise tempo=1
12 r0c1_3 advance
END
grow=(grow synth --threads 1 --batch 8 --blocks 2 --channels 4 --max-steps 2 --length epochs --stack 2 --policy scripted
    --decisions script.txt --gates permissive --gate-epochs 1 --progress plain)

esper "${grow[@]}" --epochs 14 --run-dir whole
expect_code 0
expect_words out "4 slots from r0c0 to r1c1, open again behind kept seeds (8 more)" "r0c1_2 conv_heavy fossilized"
weights=$(sed -n 's/^weights *//p' <<<"$out")
esper replay whole
expect_code 0
expect_words out "weights equal" "$weights, as in the checkpoint"

# ---- broken off when the second slot has opened
break_off KILL '[ "$(grep -c . parts/decisions.jsonl)" -ge 7 ]' parts "${grow[@]}" --epochs 14 --checkpoint-every 1 --run-dir parts
esper grow --resume parts --progress plain
expect_code 0
expect_equal "weights of a run in two parts" "$(sed -n 's/^weights *//p' <<<"$out")" "$weights"

# ---- what becomes of it
esper inspect whole
expect_words out "param/r0c1_2.enhance.0.conv.weight" "param/r0c1_3."
esper eval whole
expect_code 0
esper report whole
page=$(sed 's/<[^>]*>/\n/g' whole/report.html)
expect_words page "r0c1_2 conv_heavy" "r0c1_3 depthwise"
expect_no_word page "r0c0_2" # closed

# ---- a network that was kept goes out as any other
esper train synth "${small[@]}" --channels 4 --stack 2 --plant r0c1:conv_light,r0c1_2:conv_heavy,r0c1_3:depthwise \
    --run-dir planted
expect_code 0
esper export planted --torch torch --onnx planted.onnx --c c
expect_code 0
model=$(cat torch/model.py)
expect_words model "r0c1_2" "r0c1_3"
if command -v cc >/dev/null; then
    cc -std=c99 -O2 -Wall -Wextra -Werror -o c/test c/main.c c/model.c -lm || bad "exported C does not compile"
    c/test >said || bad "the test of the exported C" "$(cat said)"
fi

# ---- what cannot be
esper train synth --stack 1 --plant r0c1_2:norm
expect_code 2
expect_words err "r0c1_2 opens behind a seed in r0c1"
esper grow synth --blocks 5 --stack 7
expect_code 2
expect_words err "10 slots that open again so often are 80, and 32 at most can grow"

finish
