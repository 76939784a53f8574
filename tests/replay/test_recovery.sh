#!/usr/bin/env bash
# ctest: timeout=180 cost=6 labels=noasan
# A run that meets faults is killed (SIGKILL) at a definite moment around its recovery from them, and resumed: it goes back to the
# same snapshots as the unbroken one, so that weights, decision log and the rows of its store are the same; and it is replayed. Random moments are in
# test_recovery_all.sh.
. "$SOURCE_DIR/tests/replay/recovery.sh"

# 24 is the first step of the fifth epoch, in whose beginning a checkpoint and a snapshot are made.
for faults in 24:host:param:nan,25:host:param:nan 23:host:moment:inf,24:host:param:nan 30:host:buffer:nan,33:host:param:exponent; do
    make_whole --inject $faults
    for epoch in 4 5; do
        kill_behind_epoch $epoch --inject $faults
        expect_same "faults $faults, killed behind epoch $epoch"
    done
    esper replay broken --progress none
    expect_code 0
done

# Left in doubt: a gradient of the last step was bad, so that no snapshot is taken where the next epoch begins. It goes on from the
# checkpoint before. Entries say which share of the run was spent, and this one was to be shorter.
in_doubt=(--length epochs --inject 23:host:grad:nan,24:host:param:nan)
entries() { tail -n +2 "$1/decisions.jsonl" | sed 's/"share":[^,]*,//'; }
make_whole "${in_doubt[@]}"
rm -rf broken
esper grow synth "${flags[@]}" "${in_doubt[@]}" --epochs 4 --run-dir broken
expect_code 0
expect_equal "checkpoints" "$(cd broken && echo *.safetensors)" "best.safetensors last.safetensors sound.safetensors"
esper grow --resume broken --policy-cmd "exec bash policy.sh" --epochs 9 --progress none
expect_code 0
expect_equal "left in doubt: checkpoints" "$(cd broken && echo *.safetensors)" "best.safetensors last.safetensors"
expect_equal "left in doubt: weights" "$(hash_of broken)" "$(hash_of whole)"
expect_equal "left in doubt: decision log" "$(diff <(entries whole) <(entries broken) | head -5)" ""
finish
