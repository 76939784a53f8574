#!/usr/bin/env bash
# ctest: timeout=240 cost=25 labels=noasan
# Training, growing, learning, comparing and exporting are killed, lose their power, and meet system calls that fail, at places drawn
# from all there are: gone on with, they end as the unbroken ones. Every place is in test_crash_all.sh.
. "$SOURCE_DIR/tests/fault/crash.sh"

trouble kill 8
trouble cut 8
trouble fail 10
jobs=(grow)
trouble kill 6 --twice
trouble fail2 8
trouble clock 3
finish
