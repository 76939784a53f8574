#!/usr/bin/env bash
# ctest: timeout=180 cost=4 labels=noasan
# Wherever a run was ended, it is finished by the same command or by --resume; and a store that is damaged, cut short or gone costs
# it nothing but rows, which are counted.
. "$SOURCE_DIR/tests/cli/common.sh"

grow=(grow synth "${small[@]}" --channels 8 --policy random --gates permissive --gate-epochs 1 --progress none --run-dir r)

sql() { # STATEMENT
    python3 - "$1" <<'PYTHON'
import sqlite3, sys
store = sqlite3.connect("r/store.sqlite")
print(";".join("|".join(map(str, row)) for row in store.execute(sys.argv[1])))
store.commit()
PYTHON
}

# Before the first checkpoint, which does not fit: the same command begins anew. What is not ours stays.
(ulimit -f 8; "$ESPER" "${grow[@]}" >out.txt 2>err.txt)
expect_equal "a disk that is full at once" "$? $([ -e r/last.safetensors ] && echo saved)" "1 "
esper grow --resume r
expect_code 1
expect_words err "no checkpoint yet: the command that started it, with --run-dir, begins it there anew"
esper "${grow[@]}"
expect_code 0
cp -r r good
esper "${grow[@]}"
expect_code 2
expect_words err "already holds a run"
mkdir other
echo "lr = 0.1" >other/config.ini
esper "${grow[@]}" --run-dir other
expect_code 2
expect_words err "is there already"
rm -rf other
cp -r good other
rm other/last.safetensors # somebody did: its log has entries
esper "${grow[@]}" --run-dir other
expect_code 2
expect_words err "already holds a run"

rm -rf other
cp -r good other # nor is a checkpoint of another name a reason to remove what stands beside it
mv other/last.safetensors other/renamed.safetensors
sed -i '/"checkpoint_saved"/d; /"epoch_ended"/d' other/events.jsonl
head -1 good/decisions.jsonl >other/decisions.jsonl
began=$(head -1 other/events.jsonl)
esper grow --resume other/renamed.safetensors --epochs 3 --progress none
expect_equal "its first event" "$(head -1 other/events.jsonl)" "$began"
esper train synth "${small[@]}" --progress none --run-dir other/t
rm other/t/last.safetensors
esper train synth "${small[@]}" --progress none --run-dir other/t
expect_code 2
expect_words err "already holds a run"
mkdir other/copy
cp good/config.ini other/copy
esper "${grow[@]}" --run-dir other/copy
expect_code 2
expect_words err "other/copy/config.ini is there already"
expect_equal "the copy" "$(diff good/config.ini other/copy/config.ini)" ""

# Behind the last checkpoint: --resume tests it, and tells its end; once only.
sed -i '/"run_ended"/d' r/events.jsonl
esper grow --resume r --progress none
expect_code 0
expect_words out "weights   " "next      "
expect_equal "the last event" "$(tail -1 r/events.jsonl | grep -c run_ended)" 1
expect_equal "weights" "$("$ESPER" inspect r | grep weight_hash)" "$("$ESPER" inspect good | grep weight_hash)"
esper grow --resume r --progress none
expect_code 1
expect_words err "spent all that was asked for"
if command -v python3 >/dev/null; then
    sql "UPDATE runs SET ended = NULL, status = NULL" >/dev/null
    esper grow --resume r --progress none
    expect_code 0
    expect_equal "its row" "$(sql "SELECT status, ended > 0, acc_test > 0 FROM runs")" "ESPER_OK|1|1"
fi
esper train synth "${small[@]}" --progress none --run-dir t
sed -i '/"run_ended"/d' t/events.jsonl
esper train --resume t --progress none
expect_code 0
expect_words out "test      loss"

# A comparison that is killed: the same command goes on at once, whatever its runs were doing, and ends as if nothing had been.
compare=(compare synth "${small[@]}" --max-steps 20 --epochs 6 --policies none,random --seeds 1 --jobs 2 --json)
results() { grep '^{"line"' out.txt | sed 's/"seconds":[^,]*,//' | sort; }
esper "${compare[@]}" --dir unbroken
expect_code 0
wanted=$(results)
for ready in '[ -e c/none-1/config.ini ]' '[ -e c/none-1/last.safetensors ]' 'grep -q epoch_ended c/random-1/events.jsonl'; do
    break_off KILL "$ready" c "${compare[@]}" --dir c
    expect_code 137
    esper "${compare[@]}" --dir c
    expect_code 0
    expect_equal "results after a kill when $ready" "$(results)" "$wanted"
done

command -v python3 >/dev/null || finish
longer=(grow --resume r --epochs 3 --progress none)

# A power cut: the checkpoint is there, rows that it covers are not.
rm -rf r && cp -r good r
sql "DELETE FROM epochs WHERE epoch = 2" >/dev/null
sql "DELETE FROM decisions" >/dev/null
esper "${longer[@]}"
expect_code 0
expect_equal "drops" "$(sql "SELECT records, n FROM drops ORDER BY 1")" "decisions|2;epochs|1"
expect_equal "later rows" "$(sql "SELECT (SELECT group_concat(epoch) FROM epochs), (SELECT min(number) FROM decisions)")" "1,3|2"

# A store of a later version is sound: it stays where it is.
rm -rf r && cp -r good r
sql "PRAGMA user_version = 99" >/dev/null
esper "${longer[@]}"
expect_code 0
expect_words err "is not recorded in a store" "schema version 99"
expect_equal "the store" "$(ls r | grep -c damaged) $(sql "PRAGMA user_version") $(sql "SELECT count(*) FROM epochs")" "0 99 2"

# One letter of the schema is another.
rm -rf r && cp -r good r
python3 - <<'PYTHON'
text = open("r/store.sqlite", "rb").read()
at = text.index(b"germinations_standing")
open("r/store.sqlite", "wb").write(text[:at + 14] + b"p" + text[at + 15:])
PYTHON
esper "${longer[@]}"
expect_code 0
expect_words out "weights   " "training FLOPs"
expect_words err "a new store is begun" "r/store-damaged-1.sqlite"
expect_equal "the old one" "$([ -e r/store-damaged-1.sqlite ] && echo kept)" kept
expect_equal "drops" "$(sql "SELECT n FROM drops WHERE records = 'epochs'")" 2
expect_equal "the first number" "$(sql "SELECT min(seq) = (SELECT sum(n) FROM drops) FROM (SELECT min(seq) AS seq FROM epochs
    UNION SELECT min(seq) FROM decisions UNION SELECT min(seq) FROM rewards UNION SELECT min(seq) FROM stages
    UNION SELECT min(seq) FROM seed_epochs UNION SELECT min(seq) FROM gates UNION SELECT min(seq) FROM attributions)")" 1
finish
