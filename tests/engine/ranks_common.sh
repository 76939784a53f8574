# What the tests of training on several ranks share, after tests/cli/common.sh.
. "$SOURCE_DIR/tests/dist/need_mpi.sh"

# on_ranks N COMMAND...: exit status in $code, output in $out and $err, as `esper` does.
on_ranks() {
    local n=$1
    shift
    last="mpirun -n $n esper $*"
    RANKS_SECONDS=${RANKS_SECONDS:-60} bash "$SOURCE_DIR/tests/dist/ranks.sh" "$n" "$ESPER" "$@" --threads 1 \
        >out.txt 2>err.txt </dev/null
    code=$?
    out=$(cat out.txt)
    err=$(cat err.txt)
}

# two_kinds FLAGS FLAGS: a rank with the first, and one with the second. $second: what mpirun is told of that one; $program: what
# it runs; $task: what both do.
two_kinds() {
    local all="train ${task:-synth} --epochs 1 --max-steps 2 --progress none --run-dir two"

    last="mpirun -n 1 esper $all $1 : -n 1 esper $all $2"
    # shellcheck disable=SC2086 # flags are words
    bash "$SOURCE_DIR/tests/dist/ranks.sh" 1 "$ESPER" $all $1 : -n 1 ${second:-} "${program:-$ESPER}" $all $2 \
        >out.txt 2>err.txt </dev/null
    code=$?
    out=$(cat out.txt)
    err=$(cat err.txt)
}

# two_resumed RUN RUN: a rank that goes on with the first, and one with the second.
two_resumed() {
    last="mpirun -n 1 esper train --resume $1 : -n 1 esper train --resume $2"
    bash "$SOURCE_DIR/tests/dist/ranks.sh" 1 "$ESPER" train --resume "$1" --epochs 4 --progress none \
        : -n 1 "$ESPER" train --resume "$2" --epochs 4 --progress none >out.txt 2>err.txt </dev/null
    code=$?
    out=$(cat out.txt)
    err=$(cat err.txt)
}

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    local seconds=$1 i
    shift
    for ((i = 0; i < seconds * 20; i++)); do
        "$@" 2>/dev/null && return
        sleep 0.05
    done
    return 1
}

# pid_of RANK DIR: of this test's own, whatever else runs on the machine.
pid_of() {
    local pid
    for pid in $(pgrep -x esper); do # no pipes: who is read from dies of a reader that leaves early
        [ "/proc/$pid/cwd" -ef . ] && grep -qxz "OMPI_COMM_WORLD_RANK=$1" "/proc/$pid/environ" 2>/dev/null || continue
        case "$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") " in
        *"--run-dir $2 "*)
            echo "$pid"
            return
            ;;
        esac
    done
    echo "there is no rank $1 of $2" >&2
    echo 99999999
}

# losses_of RUN: the training loss of every epoch, a line each.
losses_of() {
    grep '"epoch_ended"' "$1/events.jsonl" | sed 's/.*"loss_train":\([^,]*\),.*/\1/'
}

weights_of() {
    "$ESPER" inspect "$1" | sed -n 's/^weight_hash *//p'
}

# expect_close A B N PART: N numbers each, equal to within a part of their size.
expect_close() {
    n_checks=$((n_checks + 1))
    paste "$1" "$2" | awk -v n="$3" -v part="$4" '
        { d = $1 - $2; d = d < 0 ? -d : d; if (!($1 > 0) || d > part * $1) { print "line " NR ": " $0; wrong = 1 } }
        END { if (NR != n) { print NR " lines"; wrong = 1 } exit wrong }' >close.txt ||
        bad "$last" "$1 and $2 differ by more than $4:" "$(head -3 close.txt)"
}

expect_equal() {
    n_checks=$((n_checks + 1))
    [ "$2" = "$3" ] || bad "$1: '$2' and '$3'"
}

expect_same() {
    n_checks=$((n_checks + 1))
    cmp -s "$2" "$3" || bad "$1: $2 and $3 differ"
}
