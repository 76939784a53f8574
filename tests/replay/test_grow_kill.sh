#!/usr/bin/env bash
# ctest: timeout=180 cost=6 labels=noasan
# Four runs that grow, killed at random moments; all 50 are in grow_kill_all.sh.
. "$SOURCE_DIR/tests/replay/grow_kill.sh"

kill_runs 4
finish
