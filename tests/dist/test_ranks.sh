#!/usr/bin/env bash
# ctest: timeout=240 cost=11 labels=noasan
# Jobs of 1, 2, 3 and 4 ranks on this machine: what every communicator promises, random lifecycle traffic with an agreement
# after each epoch. Each by shared memory and by messages. And launchers that MPI does not know.
set -uo pipefail

. "$SOURCE_DIR/tests/dist/common.sh"

# ---- every rank passes everything
for n in 1 2 3 4; do
    for shared in 1 0; do
        for program in test_comm test_traffic; do
            [ "$program $n" != "test_traffic 1" ] || continue
            if job $n $shared $program && [ "$(grep -c '  PASSED  ' log.txt)" -eq $n ]; then
                echo "$program: $n ranks, shared memory $shared"
            else
                bad "$program with $n ranks, shared memory $shared"
            fi
        done
    done
done

# ---- the benchmark: every rank takes part, one prints
for n in 2 3; do
    bash "$runner" $n "$ESPER" bench gate --json --quick >log.txt 2>&1
    [ "$(grep -c "\"unit\":\"us\".*\"ranks\":$n,\"comm\":\"mpi\"" log.txt)" -eq 2 ] || bad "esper bench gate with $n ranks"
done

# ---- a launcher that MPI does not know, and MPI that is not there
for sign in OMPI_COMM_WORLD_SIZE PMI_SIZE SLURM_STEP_NUM_TASKS; do
    if env $sign=4 ESPER_TEST_COMM=auto "$programs/test_comm" >log.txt 2>&1; then
        bad "$sign=4 without a launcher was taken for a job of one"
    elif ! grep -q "the launcher started 4 processes ($sign), but MPI sees 1" log.txt; then
        bad "$sign=4 without a launcher"
    fi
done
mkdir -p alone/a/b
cp "$programs/test_comm" alone/a/b/
if env OMPI_COMM_WORLD_SIZE=4 ESPER_TEST_COMM=auto alone/a/b/test_comm >log.txt 2>&1; then
    bad "a job of 4 without a module was taken for a job of one"
elif ! grep -q "a launcher started this process as one of several (OMPI_COMM_WORLD_SIZE is set), but MPI cannot be used: \
this build has no libesper-mpi.so: install Open MPI (Debian: apt-get install" log.txt; then
    bad "a job of 4 without a module"
fi
ESPER_TEST_COMM=auto alone/a/b/test_comm >log.txt 2>&1 || bad "alone, without a module"

[ "$n_bad" -eq 0 ] || echo "$n_bad checks failed"
[ "$n_bad" -eq 0 ]
