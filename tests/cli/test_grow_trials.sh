#!/usr/bin/env bash
# ctest: timeout=120 cost=5 labels=noasan
# What esper grow says of trials: while they last, when they are over, at the end, and on the page.
. "$SOURCE_DIR/tests/cli/common.sh"

flags=(--threads 1 --batch 32 --max-steps 20 --channels 2 --kernel 1 --blocks 3 --schedule hold --lr 0.05 --flops 2e10
    --blueprints conv_light --trial-share 0.9 --trial-first 0.05 --trial-price 0)

esper grow synth "${flags[@]}" --run-dir tried --progress plain --reward escrow
expect_code 0
expect_words out "  1/~630 " "trial of 6 seeds: " " conv_light wins, gain +" " nats, and joins with 156 parameters" \
    "part of trials" " of 6 " "dependence +" "gain: validation loss" "dependence: accuracy" \
    "born: its epoch, and the run's FLOPs spent by then" \
    ", what its decisions earned" "rent" "terminal"
expect_no_word out "germinated," # the line of its trial has told it
expect_no_word err "no seed can be kept" # what wins joins at once
last=$(grep -o '^ *[0-9]*/[0-9]* ' <<<"$out" | tail -1) # growing is over: the epochs are known
expect_equal "the last epoch" "${last#*/}" "$(sed 's,^ *\([0-9]*\)/.*,\1 ,' <<<"$last")"
page=$(cat tried/report.html)
expect_no_word page "less than nothing"
expect_words page " below the fork without a seed (error " "training FLOPs spent by its end" 'id="trials"' "conv_light in " " wins</h3>" "<td colspan=\"2\">nothing</td>" "<b>Learning rate</b>"

# On a terminal: what is being tried, and how much of the run is spent.
esper grow synth "${flags[@]}" --run-dir bar --progress bar
expect_code 0
expect_words out "trying 6 seeds" "trying 3 seeds" "trying 2 seeds" "spent "
expect_no_word out "what its decisions earned"

# None pays: a price that nothing can bring.
esper grow synth "${flags[@]}" --trial-price 100 --run-dir dear --progress plain
expect_code 0
expect_words out "trial of 6 seeds: none pays; the best was " "no seed germinated" "part of trials"
page=$(cat dear/report.html)
expect_words page ": none pays</h3>"

# ---- a run that is too short for one says so, on the terminal and on the page
esper grow synth "${small[@]}" --policy trials --run-dir short
expect_code 0
expect_words out "no seed germinated: Too short a run for a trial"
page=$(cat short/report.html)
expect_words page "<p>No trial was held: Too short a run for a trial of "
finish
