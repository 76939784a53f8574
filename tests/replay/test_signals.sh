#!/usr/bin/env bash
# ctest: timeout=180 cost=25
# Runs that are interrupted from the outside, politely (SIGINT, SIGTERM) or not (SIGKILL, at random moments), and
# resumed: they end as the unbroken run ends, bit for bit. Each begins with far more epochs than it gets to, so that no
# machine is fast enough to be done before the signal; where it stood when it was stopped decides where both runs end.
. "$SOURCE_DIR/tests/cli/common.sh"

flags=(--threads 2 --batch 16 --blocks 2 --channels 3 --max-steps 12 --crop 2 --flip)

# The tensors with their values in short, moments included, and where the run stands.
state_of() { "$ESPER" inspect "$1" | grep -E '^(param|buffer|moment|cursor|tally|weight_hash)'; }

# What each epoch came to, without what the clock says. An epoch that was trained twice must say the same twice.
epochs_of() {
    grep '"event":"epoch_ended"' "$1/events.jsonl" |
        sed -E 's/"(seq|time|samples_per_s|seconds)":[^,}]*,?//g' | sort -u
}

saved_epoch_of() { "$ESPER" inspect "$1" | sed -n 's/^cursor *epoch \([0-9]*\) .*/\1/p'; }

begin() { # RUN: starts it in the background; its number in $pid
    "$ESPER" train synth "${flags[@]}" --epochs 1000000 --run-dir "$1" >"$1.txt" 2>&1 </dev/null &
    pid=$!
}

wait_for_epoch() { # RUN: until its first epoch is over
    until grep -q '"event":"epoch_ended"' "$1/events.jsonl" 2>/dev/null; do
        kill -0 $pid 2>/dev/null || return 1
        sleep 0.02
    done
}

# Lets the run go on for two epochs more, and holds it against a run of as many epochs that nobody disturbed.
expect_same_end() { # RUN
    local n=$(($(saved_epoch_of "$1") + 2))
    esper train --resume "$1" --epochs $n
    expect_code 0
    expect_words out " $n/$n " "test      loss"
    esper train synth "${flags[@]}" --epochs $n --run-dir "$1-whole"
    expect_code 0
    expect_equal "$1: state after $n epochs" "$(state_of "$1")" "$(state_of "$1-whole")"
    expect_equal "$1: epochs" "$(epochs_of "$1")" "$(epochs_of "$1-whole")"
    expect_equal "$1: number of epochs" "$(epochs_of "$1" | grep -o '"epoch":[0-9]*' | sort -u | wc -l)" $n
}

# ---- asked to stop: saves, says how to go on, exits with 130
for signal in INT TERM; do
    run=stopped-$signal
    begin $run
    wait_for_epoch $run || bad "SIG$signal: the run ended too soon" "$(cat $run.txt)"
    kill -$signal $pid
    wait $pid
    code=$? last="train, SIG$signal" out=$(cat $run.txt) err=
    expect_code 130
    expect_words out " 1/1000000 " "stopped in epoch " " of 12 batches" "saved in $run" "$ESPER train --resume $run"
    expect_equal "$run: its last event" "$(tail -n 1 $run/events.jsonl | grep -o '"status":"[A-Z_]*"')" \
        '"status":"ESPER_E_STOPPED"'
    expect_same_end $run
done

# ---- asked to stop while it tests, which takes far longer here than training
slow=(--threads 1 --backend ref --batch 8 --channels 16 --train-limit 8 --valid-fraction 0.5 --epochs 1)
stop_in() { # RUN WORD: stops a run once its bar says so
    local word=$2
    break_off INT 'grep -q "$word" out.txt' "$1" train synth "${slow[@]}" --progress bar --run-dir "$1"
    expect_code 130
}
stop_in in-test testing
expect_words out "stopped before the end of the test" "saved in in-test" "$ESPER eval in-test"
esper eval in-test --backend cpu # the quick one: this is not about the time it takes
expect_code 0
expect_words out "in-test/last.safetensors after epoch 1: "

# ---- asked to stop in the midst of a step that takes far longer than a second: leaves with what was saved last
long=(--threads 1 --backend ref --batch 512 --channels 48 --epochs 3 --progress none)
begin_long() { # RUN ARGUMENTS: starts it in the background; its number in $pid
    "$ESPER" "${@:2}" >"$1.txt" 2>&1 </dev/null &
    pid=$!
    until [ -e "$1/last.safetensors" ] || [ -e "$1/policy.safetensors" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.02; done
    sleep 0.2
}
ends_soon() { # WHAT: a busy machine may be late by a little
    local began=$SECONDS
    wait $pid
    code=$? last="$1" out=$(cat "$1.txt") err=
    expect_code 130
    [ $((SECONDS - began)) -le 3 ] || bad "$1: it took $((SECONDS - began)) seconds to leave"
}
for command in train grow learn; do
    begin_long long-$command $command synth "${long[@]}" --run-dir long-$command
    kill -TERM $pid
    ends_soon long-$command
    expect_words out "stopped in the midst of a long step"
done
esper inspect long-train
expect_words out "epoch 0 batch 0 step 0"
begin_long long-asked train synth "${long[@]}" --run-dir long-asked
kill -INT $pid # a person is told, and may insist
for try in $(seq 100); do
    grep -q "Ctrl-C again leaves at once" long-asked.txt && break
    sleep 0.05
done
kill -INT $pid
ends_soon long-asked
expect_words out "the run is saved when it is done" "Ctrl-C again leaves at once"

# ---- killed: goes on from the last epoch that was saved
run=killed
delays=
n_tries=6
is_brief && n_tries=3
begin $run
wait_for_epoch $run || bad "the run ended too soon" "$(cat $run.txt)"
for try in $(seq $n_tries); do
    delay=0.$(printf %02d $((RANDOM % 40)))
    delays="$delays $delay"
    sleep $delay
    kill -KILL $pid
    wait $pid 2>/dev/null
    code=$? last="train, killed after$delays s" out=$(cat $run.txt) err=
    expect_code 137
    [ "$try" -lt $n_tries ] || break
    "$ESPER" train --resume $run >$run.txt 2>&1 </dev/null &
    pid=$!
done
touch $run/last.safetensors.123-0.tmp # as a run leaves it that is killed while it saves
expect_same_end $run
expect_equal "$run: its files" "$(ls $run | tr '\n' ' ')" "best.safetensors config.ini events.jsonl last.safetensors "
echo "killed after$delays s"

finish
