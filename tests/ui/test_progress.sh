#!/usr/bin/env bash
# ctest: timeout=120 cost=14
# The bar on a real (pseudo) terminal, and plain lines everywhere else.
. "$SOURCE_DIR/tests/cli/common.sh"

escape=$'\033'
# An epoch must take longer than the tenth of a second between two bars on any machine: ref is never made fast.
steps=50
is_brief && steps=10
flags=(--backend ref --threads 1 --batch 32 --channels 4 --max-steps $steps --epochs 2)

# ---- no terminal: lines, no control characters
esper train synth "${small[@]}" --run-dir plain
expect_code 0
expect_words out " 1/2 " " 2/2 " "samples/s" "left"
expect_no_word out "$escape"
expect_no_word out $'\r'
esper train synth "${small[@]}" --run-dir silent --progress none
expect_code 0
expect_no_word out " 1/2 "
expect_equal "silent: its first line" "$(head -n 1 out.txt | cut -c 1-15)" "test      loss "
esper train synth "${flags[@]}" --run-dir forced --progress bar
expect_code 0
expect_words out "$escape[K" "[" "left" "0 %  starting" "0 %  validating" "0 %  testing"

# ---- a terminal
if ! command -v script >/dev/null || ! script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    echo "skipped: no script(1) to make a pseudo terminal"
    finish
fi

on_terminal() { # COLUMNS ARGUMENTS: like esper, but its output is a terminal that wide
    local columns=$1
    shift
    last="esper $* (on a terminal of $columns columns)"
    TERM=xterm script -qec "stty cols $columns; exec '$ESPER' $*" /dev/null >out.txt 2>err.txt </dev/null
    code=$?
    out=$(cat out.txt)
    err=$(cat err.txt)
}

# Whether a bar, as far as the line goes, is wider than the terminal: then it would be drawn below itself.
widest_bar() {
    tr '\r' '\n' <out.txt | grep '\[[=>]' | sed "s/$escape\[K//g" |
        awk '{ if (length > n) n = length } END { print n + 0 }'
}

on_terminal 100 train synth "${flags[@]}" --run-dir bar
expect_code 0
expect_words out "[=" ">" " %  loss " "/s  " " left$escape[K" " 1/2 " " 2/2 " "test      loss"
expect_equal "bars were drawn" "$(($(tr '\r' '\n' <out.txt | grep -c '\[=') > 0))" 1
expect_equal "each epoch's line stands alone" "$(tr '\r' '\n' <out.txt | grep -cE '^( |.\[K)* [12]/2   +[0-9.]+ ')" 2
on_terminal 40 train synth "${flags[@]}" --run-dir narrow
expect_code 0
n_checks=$((n_checks + 1))
width=$(widest_bar)
[ "$width" -gt 20 ] && [ "$width" -lt 40 ] || bad "$last" "the widest bar takes $width columns"
on_terminal 100 train synth "${small[@]}" --run-dir plain-on-terminal --progress plain
expect_code 0
expect_no_word out "$escape"

finish
