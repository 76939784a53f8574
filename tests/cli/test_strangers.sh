#!/bin/bash
# ctest: timeout=120 cost=5 labels=noasan
# Files that come from somebody else: what docs/security.md promises of them, seen from the command line.
. "$SOURCE_DIR/tests/cli/common.sh"

tiny=(--threads 1 --batch 8 --max-steps 2 --progress none)

# ---- a file starts no program

cat >program.sh <<'END'
touch started
while read -r line; do
    case $line in
    *'"epoch":'*) epoch=${line#*\"epoch\":} && echo "{\"epoch\":${epoch%%[!0-9]*},\"op\":\"wait\"}" ;;
    *) echo '{"ok":true}' ;;
    esac
done
END
not_started() {
    n_checks=$((n_checks + 1))
    [ ! -e started ] || bad "$last" "the program was started"
    rm -f started
}
esper grow synth "${tiny[@]}" --epochs 1 --policy-cmd "sh program.sh" --run-dir sent
expect_code 0
expect_equal "the program" "$(ls started)" started
rm started
esper grow --resume sent --epochs 2 --progress none
expect_code 2
expect_words err "sent/last.safetensors names a program that decides, and a file starts none" "--policy-cmd 'sh program.sh'"
not_started
esper grow --resume sent --epochs 2 --progress none --config sent/config.ini
expect_code 2
expect_words err "a file starts none" "--policy-cmd 'sh program.sh'"
not_started
esper grow synth --config sent/config.ini --run-dir again
expect_code 2
expect_words err "sent/config.ini:" "a file starts none" "--policy-cmd 'sh program.sh'"
not_started
esper compare synth --threads 1 --batch 8 --max-steps 2 --epochs 1 --policies none,command --config sent/config.ini --dir compared
expect_code 2
expect_words err "a file starts none"
not_started
for command in "inspect sent" "eval sent" "replay sent --progress none" "report sent" "export sent --torch exported"; do
    esper $command
    expect_code 0
    not_started
done
esper grow --resume sent --epochs 2 --progress none --policy-cmd "sh program.sh"
expect_code 0
expect_equal "the program" "$(ls started)" started
rm started
ESPER_POLICY_CMD="sh program.sh" esper grow --resume sent --epochs 3 --progress none
expect_code 0

# ---- nothing is written through a link, or over a file that is somebody's own

mkdir mine
echo "the only copy of a log" >mine/decisions.jsonl
esper grow synth "${tiny[@]}" --epochs 1 --policy none --run-dir mine
expect_code 2
expect_words err "mine/decisions.jsonl is there already"
expect_equal "the only copy" "$(cat mine/decisions.jsonl)" "the only copy of a log"
echo "somebody's file" >victim
esper grow synth "${tiny[@]}" --epochs 1 --policy none --run-dir linked
expect_code 0
for name in events.jsonl decisions.jsonl store.sqlite; do
    mv linked/$name kept
    ln -s ../victim linked/$name
    esper grow --resume linked --epochs 2 --progress none
    [ "$code" -ne 0 ] || bad "$last" "it went on through the link linked/$name"
    expect_equal "the file behind linked/$name" "$(cat victim)" "somebody's file"
    mv kept linked/$name
done
esper grow --resume linked --epochs 2 --progress none
expect_code 0
mkdir compared-mine
ln -s ../victim compared-mine/none-1.log
esper compare synth --threads 1 --batch 8 --max-steps 2 --epochs 1 --policies none --seeds 1 --jobs 1 --dir compared-mine
expect_equal "the file behind a log" "$(cat victim)" "somebody's file"
[ "$code" -ne 0 ] || bad "$last" "it wrote through a link"

# ---- a job that opens something large ends when it is asked to: a policy this wide takes its time to be born

"$ESPER" learn synth --epochs 2 --envs 1 --rounds 1 --policy-width 1024 --run-dir wide --progress none >out.txt 2>err.txt &
pid=$!
until (((0x$(sed -n 's/^SigCgt:\t//p' /proc/$pid/status) & 0x4000) != 0)); do sleep 0.01; done
sleep 0.1
kill -TERM $pid
SECONDS=0
wait $pid
code=$? out=$(cat out.txt) err=$(cat err.txt) last="esper learn --policy-width 1024, SIGTERM"
expect_code 130
expect_words err "stopped before it had begun"
expect_equal "seconds from SIGTERM to the end, at most 3" "$((SECONDS <= 3))" 1
expect_equal "its directory" "$(ls -d wide 2>/dev/null)" ""

finish
