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
finish
