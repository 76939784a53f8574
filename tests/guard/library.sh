# What the tests of the library as a product share: . "$SOURCE_DIR/tests/guard/library.sh"
#
# They need the folder that the program was built in; a kit carries none, and there they are skipped.
set -uo pipefail

: "${ESPER:?the program}" "${SOURCE_DIR:?the source tree}"
build=$(dirname "$ESPER")
library=$build/libesper-guard.so
n_bad=0
export LC_ALL=C

skip() {
    echo "skipped: $*"
    exit 77
}

# expect WHAT GOT WANTED
expect() {
    [ "$2" = "$3" ] && return
    n_bad=$((n_bad + 1))
    printf 'FAILED: %s\n    got:      %s\n    expected: %s\n' "$1" "$2" "$3"
}

# expect_run WHAT COMMAND...: it succeeds; its output is in $out.
expect_run() {
    local what=$1
    shift
    out=$("$@" 2>&1) && return
    n_bad=$((n_bad + 1))
    printf 'FAILED: %s: status %d from: %s\n%s\n' "$what" $? "$*" "$out"
    return 1
}

# expect_says WHAT TEXT: $out contains it.
expect_says() {
    grep -qF -e "$2" <<<"$out" && return
    n_bad=$((n_bad + 1))
    printf 'FAILED: %s does not say "%s":\n%s\n' "$1" "$2" "$out"
}

finish() {
    [ "$n_bad" -eq 0 ]
    exit
}

[ -e "$library" ] || skip "$library is not here: this is not a folder it was built in"
