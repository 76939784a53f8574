# What the tests of several ranks share: . "$SOURCE_DIR/tests/dist/common.sh"
: "${ESPER:?the program to test}" "${SOURCE_DIR:?the source tree}"
programs=$(dirname "$ESPER")/tests/dist
runner=$SOURCE_DIR/tests/dist/ranks.sh
n_bad=0

. "$SOURCE_DIR/tests/dist/need_mpi.sh"

# job N SHARED PROGRAM [ARGUMENT]: output in log.txt.
job() {
    local n=$1 shared=$2
    shift 2
    ESPER_TEST_COMM=mpi ESPER_TEST_RANKS=$n ESPER_MPI_SHARED=$shared RANKS_SECONDS=60 \
        bash "$runner" "$n" "$programs/$1" "${@:2}" >log.txt 2>&1
}

bad() {
    n_bad=$((n_bad + 1))
    echo "FAILED: $1"
    sed 's/^/    /' log.txt
}
