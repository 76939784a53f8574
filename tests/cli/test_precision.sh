#!/usr/bin/env bash
# ctest: timeout=120 cost=2 labels=noasan
# --precision: what has fp32 alone refuses anything else; over a driver made of the host, a run in tf32 is another run, near the one in
# fp32, the same again, and no replay of it in fp32 is one.
. "$SOURCE_DIR/tests/cli/common.sh"
. "$SOURCE_DIR/tests/engine/ranks_common.sh"

for backend in cpu ref; do
    esper train synth --backend $backend --precision tf32 "${small[@]}" --run-dir none
    expect_code 2
    expect_words err "backend $backend computes in fp32 alone: tf32 is for an NVIDIA GPU (--backend cuda), or leave out --precision"
done
esper train synth --precision fp16 --run-dir none
expect_code 2
expect_words err "fp32, tf32 or bf16"
esper train synth --precision fp32 "${small[@]}" --run-dir plain --progress none
expect_code 0

if [ ! -x "${PROGRAM_ON_DRIVER:-}" ]; then
    echo "skipped: there is no C++ compiler here"
    exit 0
fi
ESPER=$PROGRAM_ON_DRIVER
for precision in fp32 tf32 bf16; do
    esper grow synth_table --backend cuda --precision $precision --policy none --length epochs --threads 1 --batch 8 --layers 1 \
        --width 8 --max-steps 2 --epochs 1 --run-dir $precision --progress none
    expect_code 0
    losses_of $precision >$precision.txt
done
for precision in tf32 bf16; do
    expect_close fp32.txt $precision.txt 1 2e-2
    n_checks=$((n_checks + 1))
    [ "$(weights_of $precision)" != "$(weights_of fp32)" ] || bad "$precision ends at the weights of fp32"
    n_checks=$((n_checks + 1))
    grep -q "\"kernels\":\"cuda/sm_[0-9]*/k[0-9a-f]*/$precision\"" $precision/events.jsonl || bad "the kernels of $precision have no name"
done
esper replay bf16 --progress none
expect_code 0
finish
