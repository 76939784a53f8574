#!/bin/bash
# ctest: timeout=120 cost=3
# A text, and a folder of texts, become a run, which goes on, is repeated, scored and exported from its directory alone.
. "$SOURCE_DIR/tests/cli/common.sh"

seq 900 | sed 's/$/ times: to be, or not to be, that is the question/' >play.txt
quick=(--threads 1 --progress plain --layers 2 --segments 2 --width 16 --heads 2 --context 32 --batch 8)

esper info data play.txt "${quick[@]:4}"
expect_code 0
expect_words out "kind      text, windows of 32 tokens of 256" "to train on" "by the task \`chars\`" "grow play.txt --batch=8 --layers=2 --width=16"
esper grow play.txt "${quick[@]}" --epochs 6 --max-steps 20 --policy random --gates permissive --gate-epochs 1 --run-dir grown
expect_code 0
expect_words out "chars:" "2 slots from r0c0 to r0c1" "sequences to train on"
weights=$(grep '^weights' out.txt)

# It has learned something: guessing among 256 bytes loses 5.5 nats.
esper eval grown --json
expect_code 0
loss=$(sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' out.txt)
awk -v loss="$loss" 'BEGIN { exit !(loss > 0 && loss < 4) }' || bad "what was learned" "a loss of $loss"

# From the run's directory alone, elsewhere.
mkdir -p far && cd far || exit 1
esper replay ../grown
expect_code 0
expect_words out "weights equal"
esper export ../grown --torch exported
expect_code 0
esper grow --resume ../grown --epochs 7
expect_code 0
cd .. || exit 1

# A folder of texts is one text; what is said of it by its parts is the same as of the whole.
mkdir -p parts && head -n 500 play.txt >parts/a.txt && tail -n +501 play.txt >parts/b.md
esper grow parts "${quick[@]}" --epochs 6 --max-steps 20 --policy random --gates permissive --gate-epochs 1 --run-dir together
expect_code 0
expect_equal "the weights of a text in two files" "$(grep '^weights' out.txt)" "$weights"

# Changed text is other data.
sed 's/question/answer__/' play.txt >other.txt
esper eval grown --data other.txt
expect_words err "the data is not what the network was trained on"

# Refused.
printf 'caf\xe9 %.0s' {1..2000} >latin.txt
refused 1 "latin.txt" grow latin.txt
expect_words err "UTF-8"
echo short >short.txt
refused 2 "text: too little data: 6 bytes give 0 of the 3 windows of 128 + 1 that are needed at least" grow short.txt
: >nothing.txt
refused 1 "nothing.txt" grow nothing.txt
refused 2 "--target kind is for tables" grow play.txt --target kind
refused 2 "host: a host for text begins with embed, such as embed 128" grow play.txt --host 'conv 8 | mean | linear'

finish
