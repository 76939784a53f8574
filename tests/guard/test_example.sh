#!/usr/bin/env bash
# examples/guard.c learns, is poisoned twice, names the tensor each time, and ends as well as it should.
. "$SOURCE_DIR/tests/guard/library.sh"
[ -x "$build/examples/guard" ] || skip "$build/examples/guard is not here"

expect_run "the example" "$build/examples/guard" || finish
first=$out
expect_says "the example" "Inf in layer2.weight (grad, host)"
expect_says "the example" "skipped: the weights never saw it"
expect_says "the example" "NaN in layer1.weight (param, host)"
expect_says "the example" "rolled back to step 200"
expect "its last line" "$(tail -n 1 <<<"$first" | sed 's/[0-9.]* *done/LOSS/')" "step 400  loss LOSS"
expect_run "the example again" "$build/examples/guard"
expect "the same from run to run" "$out" "$first"
finish
