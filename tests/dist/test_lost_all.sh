#!/usr/bin/env bash
# ctest: timeout=240 labels=soak,noasan
# Every way of getting lost, among four ranks too.
export LOST_FOUR=every_way
. "$SOURCE_DIR/tests/dist/test_lost.sh"
