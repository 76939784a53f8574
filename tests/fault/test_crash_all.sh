#!/usr/bin/env bash
# ctest: timeout=3600 cost=900 labels=soak,noasan
# As test_crash.sh, at every place.
. "$SOURCE_DIR/tests/fault/crash.sh"

jobs+=(trials)
for seed in 1 2; do
    trouble kill 0 --seed $seed
    trouble cut 0 --seed $seed
    trouble fail 0 --seed $seed
done
trouble kill 100 --twice
trouble fail2 200
trouble clock 20
finish
