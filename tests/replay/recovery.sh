# What the tests of runs that are killed while they recover share: . "$SOURCE_DIR/tests/replay/recovery.sh"
. "$SOURCE_DIR/tests/cli/common.sh"

# A policy that grows something, and kills the run when it is asked for the second time from that epoch on which the file `kill`
# names: behind the checkpoint of that epoch, wherever the run has gone back to since.
cat >policy.sh <<'POLICY'
n=0
while read -r view; do
    epoch=$(sed -n 's/.*"epoch":\([0-9]*\).*/\1/p' <<<"${view%%\"slots\"*}")
    [ ! -e kill ] || [ "$epoch" -lt "$(cat kill)" ] || n=$((n + 1))
    if [ $n -eq 2 ]; then
        rm kill
        kill -KILL $PPID
        exit
    fi
    case $epoch in
    2) echo '{"epoch":2,"op":"germinate","slot":"r0c0","blueprint":"conv_light"}' ;;
    3) echo '{"epoch":3,"op":"advance","slot":"r0c0"}' ;;
    *) echo "{\"epoch\":$epoch,\"op\":\"wait\"}" ;;
    esac
done
POLICY

flags=("${small[@]}" --max-steps 6 --epochs 9 --gates permissive --gate-epochs 1 --policy-cmd "exec bash policy.sh"
    --progress none)

# Every row of a store, but for clocks and speeds.
cat >rows.py <<'PYTHON'
import sqlite3, sys
store = sqlite3.connect(sys.argv[1])
for (table,) in store.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall():
    columns = [row[1] for row in store.execute("PRAGMA table_info(%s)" % table)]
    told = [c for c in columns if c not in ("time", "seconds", "samples_per_s", "began", "ended", "n_resumed", "name", "config")]
    for row in store.execute("SELECT %s FROM %s ORDER BY 1, 2" % (", ".join(told), table)):
        print(table, *row, sep="|")
PYTHON

hash_of() { "$ESPER" inspect "$1" | sed -n 's/^weight_hash *//p'; }

make_whole() { # FLAGS
    rm -rf whole kill
    esper grow synth "${flags[@]}" "$@" --run-dir whole
    expect_code 0
}

kill_behind_epoch() { # EPOCH FLAGS
    local epoch=$1
    shift
    rm -rf broken
    echo "$epoch" >kill
    esper grow synth "${flags[@]}" "$@" --run-dir broken 2>/dev/null
    expect_code 137
    esper grow --resume broken --policy-cmd "exec bash policy.sh" --progress none
    expect_code 0
}

expect_same() { # WHAT
    expect_equal "$1: weights" "$(hash_of broken)" "$(hash_of whole)"
    expect_equal "$1: decision log" "$(diff whole/decisions.jsonl broken/decisions.jsonl | head -5)" ""
    command -v python3 >/dev/null || return 0
    python3 rows.py whole/store.sqlite >whole.rows
    python3 rows.py broken/store.sqlite >broken.rows
    expect_equal "$1: rows of the store" "$(diff whole.rows broken.rows | head -5)" ""
}
