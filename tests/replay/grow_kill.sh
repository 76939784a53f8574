# What the tests of killed runs share: . "$SOURCE_DIR/tests/replay/grow_kill.sh" and then kill_runs N.
#
# A run that grows by a decision file is killed (SIGKILL) at a random moment, resumed, killed again half of the time, resumed,
# until it is done. It ends as the unbroken run: weights, and the decision log byte for byte; its store has no row twice.
. "$SOURCE_DIR/tests/cli/common.sh"

cat >plan.txt <<'PLAN'
1  r0c0 germinate blueprint=conv_light tempo=2
2  r0c0 advance
13 r0c0 advance
16 r0c0 advance
17 r0c0 fossilize
18 r0c1 germinate blueprint=conv_light
19 r0c1 advance
24 r0c1 prune
PLAN
flags=(--threads 1 --batch 16 --blocks 2 --channels 4 --max-steps 12 --epochs 60 --gates permissive --policy scripted
    --decisions plan.txt --checkpoint-every 1 --snapshot-every 5 --inject 100:host:param:nan)

hash_of() { "$ESPER" inspect "$1" | sed -n 's/^weight_hash *//p'; }

# How many rows of a table stand there more than once, by what makes them one.
doubled() { # STORE
    python3 - "$1" <<'PYTHON'
import sqlite3, sys
store = sqlite3.connect("file:%s?mode=ro" % sys.argv[1], uri=True)
wrong = []
for table, key in (("runs", "name"), ("epochs", "run, epoch"), ("decisions", "run, number"),
                   ("seeds", "run, seed"), ("attributions", "run, epoch, measure, slot, seed, other_seed")):
    columns = {row[1] for row in store.execute("PRAGMA table_info(%s)" % table)}
    named = [word.strip() for word in key.split(",")]
    if not columns:
        continue
    missing = [word for word in named if word not in columns]
    if missing:
        wrong.append("%s has no %s" % (table, missing))
        continue
    rows = store.execute("SELECT %s, count(*) FROM %s%s GROUP BY %s HAVING count(*) > 1" % (
        key, table, "_standing" if table == "epochs" else "", key)).fetchall()
    if rows:
        wrong.append("%s: %s" % (table, rows[:3]))
print("; ".join(wrong) or "none")
PYTHON
}

# Runs the program and kills it after so many milliseconds, unless it is done before. The exit status is in $code.
run_and_kill() { # MILLISECONDS ARGUMENTS
    local ms=$1 pid
    shift
    "$ESPER" "$@" >out.txt 2>err.txt </dev/null &
    pid=$!
    sleep $((ms / 1000)).$(printf %03d $((ms % 1000)))
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    code=$?
}

kill_runs() { # N
    local n=$1 i tries killed=0 began took
    began=$(date +%s%N)
    esper grow synth "${flags[@]}" --run-dir whole
    took=$((($(date +%s%N) - began) / 1000000))
    expect_code 0
    for i in $(seq "$n"); do
        rm -rf broken
        run_and_kill $((RANDOM % took)) grow synth "${flags[@]}" --run-dir broken
        tries=0
        while [ "$code" -ne 0 ]; do
            [ "$code" -eq 137 ] || { bad "run $i" "exit status $code" "$(cat err.txt)"; break; }
            killed=$((killed + 1))
            tries=$((tries + 1))
            if [ ! -e broken/last.safetensors ]; then # nothing to go on from yet: the same command takes the place
                set -- grow synth "${flags[@]}" --run-dir broken
            else
                set -- grow --resume broken
            fi
            if [ $((RANDOM % 2)) -eq 0 ] && [ $tries -lt 4 ]; then
                run_and_kill $((RANDOM % took)) "$@"
            else
                "$ESPER" "$@" >out.txt 2>err.txt </dev/null
                code=$?
            fi
            if grep -q "spent all that was asked for" err.txt; then code=0; fi # it was killed behind its end
        done
        expect_equal "run $i: weights" "$(hash_of broken)" "$(hash_of whole)"
        cmp -s whole/decisions.jsonl broken/decisions.jsonl ||
            bad "run $i: decision log" "$(diff whole/decisions.jsonl broken/decisions.jsonl | head -5)"
        n_checks=$((n_checks + 1))
        if command -v python3 >/dev/null; then
            expect_equal "run $i: rows that stand there twice" "$(doubled broken/store.sqlite)" none
        fi
    done
    echo "$n runs, killed $killed times within $took ms each"
    [ "$killed" -gt 0 ] || bad "no run was killed"
}
