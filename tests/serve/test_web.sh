#!/usr/bin/env bash
# ctest: timeout=300 cost=30 labels=noasan
# The page in a browser, where there is one: scripts/test-web.
set -uo pipefail
"$SOURCE_DIR/scripts/test-web" "$ESPER"
