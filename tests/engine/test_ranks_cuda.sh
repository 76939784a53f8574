#!/usr/bin/env bash
# ctest: timeout=300 cost=10 labels=noasan
# Ranks on the cuda backend, over a driver made of the host with two devices: each takes that of its local rank, sums go by the host; the
# losses of one process, the same again, the same weights everywhere, seeds and faults included. And what a device is too small for.
. "$SOURCE_DIR/tests/cli/common.sh"
. "$SOURCE_DIR/tests/engine/ranks_common.sh"
if [ ! -x "${PROGRAM_ON_DRIVER:-}" ]; then
    echo "skipped: there is no C++ compiler here"
    exit 77
fi
ESPER=$PROGRAM_ON_DRIVER

# ---------------------------------------------------------------------------- what a device has room for

esper info backends
expect_words out "device of the cuda backend here: Emulated GPU 0 (sm_90), 1.00 GiB of 1.00 GiB free" "esper info plan TASK --backend cuda"
esper info plan synth --backend cuda "${small[@]:2:6}"
expect_code 0
expect_words out "free; a network under guard takes" "fit beside this one"
ESPER_TEST_CUDA_MEMORY=600000 esper train synth --backend cuda "${small[@]}" --run-dir tight --progress none
expect_code 1
expect_words err "not one network of synth fits" "--batch"
ESPER_CUDA_DEVICE=7 esper train synth --backend cuda "${small[@]}" --run-dir none --progress none
expect_code 1
expect_words err "CUDA device 7: there are 2, from 0"

# ---------------------------------------------------------------------------- a device that is lost

esper train synth_table --backend cuda --threads 1 --batch 8 --layers 1 --width 4 --max-steps 2 --epochs 3 --run-dir whole --progress none
expect_code 0
ESPER_TEST_CUDA_LOST=1700:700 esper train synth_table --backend cuda --threads 1 --batch 8 --layers 1 --width 4 --max-steps 2 --epochs 3 \
    --run-dir lost --progress none
expect_code 1
expect_words err "the device is lost:" "(700: " "--resume lost goes on from there"
esper train --resume lost --progress none
expect_code 0

# ---------------------------------------------------------------------------- ranks

expect_equal "weights of a run that has lost its device and gone on" "$(weights_of whole)" "$(weights_of lost)"

few=(--epochs 4 --max-steps 1 --batch 8 --optimizer adamw --lr 3e-4 --sync-norm --checkpoint-every 0 --valid-fraction 0.01 --channels 2
    --blocks 2 --progress none)
for n in 1 2; do
    on_ranks $n train synth --backend cuda "${few[@]}" --run-dir sync-$n
    expect_code 0
    losses_of sync-$n >sync-$n.txt
    expect_close sync-1.txt sync-$n.txt 4 1e-4
done
on_ranks 2 train synth --backend cpu "${few[@]}" --run-dir sync-cpu
losses_of sync-cpu >sync-cpu.txt
expect_close sync-cpu.txt sync-2.txt 4 1e-4

# Seeds and decisions; a replay on the same ranks ends at the same weights.
cat >script.txt <<'END'
1 r0c0 germinate blueprint=norm style=linear_add tempo=1
2 r0c0 advance
END
on_ranks 2 grow synth --backend cuda --length epochs --epochs 3 --max-steps 2 --batch 8 --blocks 2 --channels 2 --gates permissive \
    --policy scripted --decisions script.txt --valid-fraction 0.01 --run-dir grown --progress none
expect_code 0
on_ranks 2 replay grown --progress none
expect_code 0

# Ranks that do not compute alike have no run together.
two_kinds "--backend cuda" "--backend cpu"
[ "$code" -ne 0 ] || bad "$last" "a rank on the device and one on the processor went on together"
expect_words err "the kernels are 'cuda/sm_90/"

finish
