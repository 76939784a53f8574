# What the tests of the command line share: . "$SOURCE_DIR/tests/cli/common.sh"
#
# A check that fails prints what was expected and what came, and the script goes on; `finish` gives the exit status.
set -uo pipefail

: "${ESPER:?the program to test}" "${SOURCE_DIR:?the source tree}"
unset ESPER_CONFIG ESPER_KERNELS ESPER_TUNE # of the person who runs the tests
prefix=() # put before the program
n_checks=0
n_bad=0
export LC_ALL=C

# Flags that make a run take a fraction of a second. One thread: on a busy machine threads wait long for each other.
small=(--threads 1 --batch 8 --blocks 2 --channels 2 --max-steps 5 --epochs 2)
small_text=(--threads 1 --batch 4 --layers 2 --width 8 --heads 2 --context 8 --max-steps 5 --epochs 2)

# Under a sanitizer a script does less of the same, as test programs do (tests/support/effort.h).
is_brief() {
    [ -z "${ESPER_TEST_FULL:-}" ] && "$ESPER" --version | grep -q sanitizers
}

bad() {
    n_bad=$((n_bad + 1))
    printf 'FAILED: %s\n' "$1"
    shift
    [ $# -eq 0 ] || printf '    %s\n' "$@"
}

# From here on the program runs as a user whom permissions bind; false where that cannot be.
be_nobody() {
    [ "$(id -u)" -ne 0 ] && return
    prefix=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    "${prefix[@]}" "$ESPER" --version >/dev/null 2>&1 && return
    prefix=()
    return 1
}

# Runs the program: exit status in $code, output in $out and $err.
esper() {
    last="esper $*"
    "${prefix[@]}" "$ESPER" "$@" >out.txt 2>err.txt </dev/null
    code=$?
    out=$(cat out.txt)
    err=$(cat err.txt)
}

# Runs the program as `esper` does, and sends it the signal once the command READY succeeds. On a busy machine it may have
# come to its end before that is seen: then again, from the beginning.
break_off() { # SIGNAL READY DIR ARGUMENTS, one of which has it work in DIR
    local signal=$1 ready=$2 dir=$3 try pid
    shift 3
    last="esper $*, SIG$signal"
    for try in 1 2 3 4 5 6 7 8 9; do
        rm -rf "$dir"
        : >out.txt # READY must not see what was there before
        "$ESPER" "$@" >out.txt 2>err.txt </dev/null &
        pid=$!
        until eval "$ready" 2>/dev/null || ! kill -0 $pid 2>/dev/null; do
            sleep 0.005
        done
        kill -"$signal" $pid 2>/dev/null
        wait $pid 2>/dev/null
        code=$?
        [ "$code" -eq 0 ] || break
        echo "$last: try $try came too late"
    done
    out=$(cat out.txt)
    err=$(cat err.txt)
}

expect_code() {
    n_checks=$((n_checks + 1))
    [ "$code" -eq "$1" ] || bad "$last" "exit status $code, expected $1" "out: $out" "err: $err"
}

# Every word must be in the text of that name (out or err).
expect_words() {
    local where=$1 word
    shift
    for word in "$@"; do
        n_checks=$((n_checks + 1))
        grep -qF -e "$word" <<<"${!where}" || bad "$last" "$where does not say \"$word\":" "${!where}"
    done
}

expect_no_word() {
    n_checks=$((n_checks + 1))
    ! grep -qF -e "$2" <<<"${!1}" || bad "$last" "$1 says \"$2\":" "${!1}"
}

expect_equal() {
    n_checks=$((n_checks + 1))
    [ "$2" = "$3" ] || bad "$1" "got      $2" "expected $3"
}

# refused CODE "word|word..." ARGUMENTS: a clear message on standard error, nothing on standard output, no file left.
refused() {
    local wanted=$1 words
    IFS='|' read -ra words <<<"$2"
    shift 2
    esper "$@"
    expect_code "$wanted"
    expect_words err "esper: " "${words[@]}"
    expect_equal "$last: standard output" "$out" ""
    expect_equal "$last: lines on standard error" "$(($(wc -l <err.txt) <= 6))" 1
    n_checks=$((n_checks + 1))
    if [ -e runs ]; then
        bad "$last" "left behind: $(find runs)"
        rm -rf runs
    fi
}

# A Python that has PyTorch; nothing where there is none. Debian's own comes before whatever else is on the path.
python_with_torch() {
    local candidate
    for candidate in "${PYTHON:-}" /usr/bin/python3 python3; do
        [ -n "$candidate" ] && "$candidate" -c 'import torch' 2>/dev/null || continue
        echo "$candidate"
        return
    done
}

finish() {
    echo "$n_checks checks, $n_bad failed"
    [ "$n_bad" -eq 0 ]
    exit
}
