# What the tests of crashes share: . "$SOURCE_DIR/tests/fault/crash.sh", then trouble KIND POINTS for every job.
. "$SOURCE_DIR/tests/cli/common.sh"

command -v python3 >/dev/null && python3 -c 'import sqlite3' 2>/dev/null || { echo "skipped: python3 with sqlite3 makes the crashes"; exit 77; }
[ -e "${SYSCALL_SHIM:-}" ] || { echo "skipped: the library between the program and its system calls was not built"; exit 77; }

jobs=(train grow learn compare export replace)

trouble() { # KIND POINTS (0: every one) FLAGS
    local kind=$1 points=$2 job
    shift 2
    for job in "${jobs[@]}"; do
        n_checks=$((n_checks + 1))
        python3 "$SOURCE_DIR/tests/fault/crash.py" "$kind" "$job" --points "$points" "$@" || bad "$kind $job"
    done
}
