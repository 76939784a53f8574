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

# ---- stopped by a mistake in its script when the second slot has opened, and gone on with when that is mended
cp script.txt good.txt
sed 's/^8 .*/8 r0c1_3 germinate blueprint=norm/' good.txt >script.txt
esper "${grow[@]}" --epochs 14 --run-dir parts
expect_code 1
expect_words err "r0c1_3 needs a kept seed in the slot before it"
cp good.txt script.txt
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

# ---- and one whose layers have taken new channels, twice
esper train synth "${small[@]}" --channels 4 --stack 1 --widen --plant wide0:wide,wide0_2:wide,wide1:wide,r0c0:conv_light \
    --run-dir widened
expect_code 0
esper inspect widened
expect_words out "param/wide0.out.weight" "F32  8x2x3x3" "param/wide0_2.conv.weight" "param/wide1.out.weight" "F32  10x4"
esper eval widened
expect_code 0
esper export widened --torch torch_widened --onnx widened.onnx --c c_widened
expect_code 0
model=$(cat torch_widened/model.py)
expect_words model "self.wide0.conv(" "self.wide0.out(" "self.wide1.out("
if command -v cc >/dev/null; then
    cc -std=c99 -O2 -Wall -Wextra -Werror -o c_widened/test c_widened/main.c c_widened/model.c -lm || bad "widened C does not compile"
    c_widened/test >said || bad "the test of the widened C" "$(cat said)"
fi
cat >widen.txt <<'END'
1 wide1 germinate blueprint=wide tempo=1
2 wide1 advance
5 wide1 advance
7 wide1 advance
8 r0c1 germinate blueprint=conv_light tempo=1
END
esper grow synth --threads 1 --batch 8 --blocks 2 --channels 4 --max-steps 4 --length epochs --epochs 10 --widen --policy scripted \
    --decisions widen.txt --gates permissive --gate-epochs 1 --progress plain --run-dir widening
expect_code 0
expect_words out "wide1 wide germinated"
esper replay widening
expect_code 0
expect_words out "weights equal"
page=$(sed 's/<[^>]*>/\n/g' widening/report.html)
expect_words page "wide1 wide"

# ---- what cannot be
esper train synth --stack 1 --plant r0c1_2:norm
expect_code 2
expect_words err "r0c1_2 opens behind a seed in r0c1"
esper grow synth --blocks 5 --stack 7
expect_code 2
expect_words err "10 slots that open again so often are 80, and 32 at most can grow"

finish
