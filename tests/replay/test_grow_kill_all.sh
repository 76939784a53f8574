#!/usr/bin/env bash
# ctest: timeout=1200 labels=soak
# Fifty runs that grow, killed at random moments.
. "$SOURCE_DIR/tests/replay/grow_kill.sh"

kill_runs 50
finish
