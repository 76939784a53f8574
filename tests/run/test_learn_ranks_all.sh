#!/usr/bin/env bash
# ctest: timeout=600 labels=soak,noasan
# The tests of learning on ranks, on more of them than a machine may have cores.
export LEARN_RANKS="1 2 4" PARTED_RANKS="2 3"
. "$SOURCE_DIR/tests/run/test_learn_ranks.sh"
