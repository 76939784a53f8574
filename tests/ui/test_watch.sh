#!/usr/bin/env bash
# ctest: timeout=180 cost=10
# esper watch: runs that have ended, and those of another process, in terminals of every kind and size.
. "$SOURCE_DIR/tests/cli/common.sh"

escape=$'\033'
grow=(grow synth --threads 1 --batch 8 --channels 4 --max-steps 4 --policy random --gates permissive --gate-epochs 1
    --progress none)

# ---- a run that has ended: its end, once, wherever it is printed
"$ESPER" "${grow[@]}" --length epochs --epochs 12 --run-dir runs/done >/dev/null 2>&1
esper watch
expect_code 0
expect_words out "runs/done" "policy random" "done" "epoch 12" "valid " "test " "r0c0" "accuracy" "loss" "health  good" \
    "germinated"
expect_no_word out "$escape"
expect_equal "bytes beyond ASCII" "$(tr -d '\000-\177' <out.txt | wc -c)" 0
esper watch done --once
expect_code 0
esper watch runs/done --play
expect_code 0
expect_words out "epoch    1  valid" "epoch   12  valid"
expect_equal "files of SQLite" "$(find runs -name '*-wal' -o -name '*-shm')" ""

# ---- what cannot be watched
"$ESPER" train synth "${small[@]}" --run-dir runs/trained --progress none >/dev/null 2>&1
esper watch runs/trained
expect_code 1
expect_words err "has no run store" "esper inspect"
esper watch nobody
expect_code 1
mkdir runs/broken
cp runs/done/config.ini runs/done/events.jsonl runs/broken
head -c 5000 /dev/zero >runs/broken/store.sqlite
esper watch runs/broken
expect_code 1
expect_words err "store.sqlite"
esper watch one two
expect_code 2

# ---- one that goes on, in lines where there is no terminal
"$ESPER" "${grow[@]}" --length epochs --epochs 100000 --max-seeds 4 --run-dir runs/long >/dev/null 2>&1 &
pid=$!
until [ -f runs/long/store.sqlite ] && "$ESPER" watch runs/long --once 2>/dev/null | grep -q "epoch [1-9]"; do
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
done
timeout -s INT 1.5 "$ESPER" watch runs/long >out.txt 2>err.txt </dev/null
out=$(cat out.txt) last="esper watch runs/long, Ctrl-C"
expect_words out "running" "epoch" "valid"
expect_no_word out "$escape"

# ---- and on terminals
if command -v script >/dev/null && script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    for settings in "TERM=xterm LANG=C.UTF-8" "TERM=xterm LANG=C" "TERM=xterm NO_COLOR=1 LANG=C.UTF-8" "TERM=dumb LANG=C"; do
        printf 'stty rows 24 cols 80\nexec env -u TERM -u NO_COLOR -u LC_ALL -u LANG %s timeout -s INT 1.2 %q watch runs/long' \
            "$settings" "$ESPER" >command.sh
        script -qec "bash command.sh" /dev/null >out.txt 2>err.txt </dev/null
        last="esper watch runs/long ($settings)"
        out=$(tr -d '\000' <out.txt)
        expect_words out "running" "health"
        case $settings in
        TERM=xterm*) expect_words out "$escape[?1049h" "$escape[?1049l" "$escape[?25h" ;; # what was there comes back
        *) expect_no_word out "$escape" ;;
        esac
        case $settings in
        "TERM=xterm LANG"*) expect_words out "$escape[1m" ;;
        *) expect_no_word out "$escape[1m" ;;
        esac
        case $settings in
        *LANG=C) expect_equal "$last: bytes beyond ASCII" "$(tr -d '\000-\177' <out.txt | wc -c)" 0 ;;
        *) expect_words out "─" ;;
        esac
    done
else
    echo "no script(1): terminals are left out"
fi

# ---- the window as it is seen, and one that changes its size
if command -v tmux >/dev/null; then
    tmux=(tmux -f /dev/null -S "$PWD/tmux.socket")
    "${tmux[@]}" new-session -d -x 80 -y 24 "env LANG=C.UTF-8 LC_ALL=C.UTF-8 $ESPER watch runs/long" 2>/dev/null
    seen() { # COLUMNS ROWS
        for _ in $(seq 50); do
            sleep 0.2
            "${tmux[@]}" capture-pane -p >out.txt
            grep -q "health" out.txt && grep -q running out.txt && return
        done
    }
    seen
    last="esper watch in 80 x 24"
    out=$(cat out.txt)
    expect_words out "runs/long" "running" "accuracy" "loss" "health" "epoch"
    expect_equal "$last: lines" "$(($(wc -l <out.txt) <= 24))" 1
    expect_equal "$last: the head stands on top" "$(head -n 1 out.txt | grep -c runs/long)" 1
    "${tmux[@]}" resize-window -x 200 -y 50
    sleep 2
    seen
    last="esper watch in 200 x 50"
    out=$(cat out.txt)
    expect_words out "running" "health"
    expect_equal "$last: curves beside each other" "$(grep -c 'accuracy.*loss' out.txt)" 1
    "${tmux[@]}" kill-server
else
    echo "no tmux: windows are left out"
fi

# ---- whoever watches takes nothing away
kill -INT $pid
wait $pid
expect_equal "records lost" "$("$ESPER" runs sql "SELECT 1 AS x FROM runs WHERE run = 'long' AND state = 'stopped'" | tr -d '\n')" \
    '[{"x":1}]'
esper report runs/long
expect_code 0
expect_no_word out "did not get into the store"
finish
