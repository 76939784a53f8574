#!/usr/bin/env bash
# ctest: timeout=120 cost=20
# A disk that really is full while a run saves: the run comes to its end, says what is not saved, with exit status 1, and goes on once
# there is room again. First a limit on the size of files (anybody), then a small file system of our own (root alone).
. "$SOURCE_DIR/tests/cli/common.sh"

flags=("${small[@]}" --channels 16 --epochs 4) # a checkpoint of some fifty thousand bytes
esper train synth "${flags[@]}" --run-dir whole
expect_code 0
hash_of() { "$ESPER" inspect "$1" | sed -n 's/^weight_hash *//p'; }
whole=$(hash_of whole)

# Stands in for the stop in the middle: a run saved after its second epoch.
make_run() { # RUN
    esper train synth "${flags[@]}" --epochs 2 --run-dir "$1"
    expect_code 0
}

expect_goes_on() { # RUN
    expect_words err "$1/last.safetensors" "cannot be written"
    expect_equal "$1: files" "$(ls "$1" | grep -vx filler | tr '\n' ' ')" "best.safetensors config.ini events.jsonl last.safetensors "
    esper eval "$1" # what was saved before is whole
    expect_code 0
}

# ---- a limit on the size of files: SIGXFSZ must not end the run
make_run limited
size=$(stat -c %s limited/last.safetensors)
before=$(cksum <limited/last.safetensors)
(
    ulimit -f $((size / 1024 - 1)) # in units of 1024 bytes
    "$ESPER" train --resume limited --epochs 4 >out.txt 2>err.txt </dev/null
)
code=$? out=$(cat out.txt) err=$(cat err.txt) last="train --resume limited, under a limit"
expect_code 1
expect_words err "File too large"
expect_goes_on limited
expect_equal "limited: the checkpoint" "$(cksum <limited/last.safetensors)" "$before"
esper train --resume limited --epochs 4
expect_code 0
expect_equal "limited: weights" "$(hash_of limited)" "$whole"

# ---- a small file system
mkdir disk
if ! mount -t tmpfs -o size=512k tmpfs disk 2>/dev/null; then
    echo "skipped: a full disk, since no file system can be mounted here"
    finish
fi
trap 'umount disk' EXIT
make_run disk/run
before=$(cksum <disk/run/last.safetensors)
head -c 1M /dev/zero >disk/run/filler 2>/dev/null # takes all that is left
truncate -s -8K disk/run/filler                   # but for some events
esper train --resume disk/run --epochs 4
expect_code 1
expect_words err "No space left on device"
expect_goes_on disk/run
expect_equal "disk/run: the checkpoint" "$(cksum <disk/run/last.safetensors)" "$before"
head -c 1M /dev/zero >>disk/run/filler 2>/dev/null # not a byte is left: no configuration, no event
esper train --resume disk/run --epochs 4
expect_code 1
expect_words err "disk/run/" "No space left on device"
expect_equal "disk/run: the checkpoint, again" "$(cksum <disk/run/last.safetensors)" "$before"
esper train synth "${flags[@]}" --run-dir disk/new
expect_code 1
expect_words err "disk/new" "No space left on device"
rm disk/run/filler
esper train --resume disk/run --epochs 4
expect_code 0
expect_equal "disk/run: weights" "$(hash_of disk/run)" "$whole"

finish
