#!/usr/bin/env bash
# ctest: timeout=600 labels=soak,noasan
# The tests of training and growing on several ranks, for longer: differences have time to add up, lifecycles to meet.
export RANKS_LOSSES=100 RANKS_LOSS_PART=1e-4 RANKS_TRAFFIC=1000
. "$SOURCE_DIR/tests/engine/test_ranks.sh"
