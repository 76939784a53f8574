#!/usr/bin/env bash
# ctest: timeout=240 cost=20
# A disk that is full while a run grows or learns: training goes on, what could not be written is written when there is room again, and
# where there never is, the run ends with its result, a sentence and exit status 1, and goes on later from what was saved. First a limit
# on the size of files (anybody), then a small file system of our own (root alone).
. "$SOURCE_DIR/tests/cli/common.sh"

# Decides, and in two epochs of its choice says that the disk is full and that it has room: a run asks it once an epoch, so both come
# at the same place each time.
cat >policy.sh <<'END'
while read -r view; do
    epoch=$(printf '%s' "$view" | sed -nE 's/^\{[^{]*"epoch": ?([0-9]+).*/\1/p')
    [ "$epoch" != "${FULL:-}" ] || . ./full.sh
    [ "$epoch" != "${ROOM:-}" ] || . ./room.sh
    case $epoch in
    3) echo "{\"epoch\":$epoch,\"op\":\"germinate\",\"slot\":\"r0c0\",\"blueprint\":\"norm\"}" ;;
    12) echo "{\"epoch\":$epoch,\"op\":\"prune\",\"slot\":\"r0c0\",\"reason\":\"while the disk is full\"}" ;;
    *) echo "{\"epoch\":$epoch,\"op\":\"wait\",\"reason\":\"for the sake of a log that takes some pages of a disk\"}" ;;
    esac
done
END
n_epochs=40
flags=("${small[@]}" --epochs $n_epochs --length epochs --schedule constant --policy-cmd "exec sh ./policy.sh" --progress none)

hash_of() { "$ESPER" inspect "$1" | sed -n 's/^weight_hash *//p'; }
entries_of() { grep -c '"number"' "$1/decisions.jsonl"; }

# Its output goes through pipes: a limit on the size of files would meet it, too.
grow() { # EPOCH_FULL EPOCH_ROOM ARGUMENTS
    export FULL=$1 ROOM=$2
    shift 2
    last="esper grow $*, full in epoch $FULL, room in epoch $ROOM"
    { err=$({ "$ESPER" grow "$@" </dev/null 2>&3 | cat >&4; exit "${PIPESTATUS[0]}"; } 3>&1); code=$?; } 4>out.txt
    out=$(cat out.txt)
    unset FULL ROOM
}

grow "" "" synth "${flags[@]}" --run-dir whole
expect_code 0
whole=$(hash_of whole)
expect_equal "whole: entries" "$(entries_of whole)" $n_epochs

expect_whole() { # RUN
    expect_equal "$1: weights" "$(hash_of "$1")" "$whole"
    expect_equal "$1: entries" "$(entries_of "$1")" $n_epochs
    cmp -s whole/decisions.jsonl "$1/decisions.jsonl" || bad "$1: its log is not that of the run on a good disk"
    esper replay "$1"
    expect_code 0
}

try_grow() { # WHERE
    grow 8 30 synth "${flags[@]}" --run-dir "$1/back" # there is room again, in the middle
    expect_code 1 # for the events alone, which were lost
    expect_words out "weights   $whole"
    expect_words err "The run goes on" "decisions.jsonl: there is no room on the disk" "the run is saved again, as of epoch 30" \
        "$1/back/events.jsonl: " " events lost"
    expect_equal "$1/back: lines that say the same" "$(sort <<<"$err" | uniq -d)" ""
    expect_whole "$1/back"

    grow 8 "" synth "${flags[@]}" --run-dir "$1/never"
    expect_code 1
    expect_words out "accuracy" "weights   $whole"
    expect_words err "the run came to its end, but its weights are not saved, nor the last" "--resume $1/never goes on from epoch"
    n=$(entries_of "$1/never")
    [ "$n" -ge 7 ] && [ "$n" -lt $n_epochs ] || bad "$1/never: $n entries on a disk that was full from epoch 8 on"
    cmp -s <(head -n $((n + 1)) whole/decisions.jsonl) "$1/never/decisions.jsonl" || bad "$1/never: the log is not whole as far as it goes"
    . ./room.sh
    grow "" "" --resume "$1/never" --policy-cmd "exec sh ./policy.sh" --progress none
    expect_code 0
    expect_whole "$1/never"
}

# ---- a limit on the size of files
if command -v prlimit >/dev/null; then
    echo 'prlimit --pid $PPID --fsize=1:' >full.sh
    echo '[ -z "${ROOM:-}" ] || prlimit --pid $PPID --fsize=unlimited:' >room.sh
    mkdir limited
    try_grow limited
else
    echo "skipped: a limit on the size of files, since there is no prlimit here"
fi

# ---- room for checkpoints and none for the log: no file is made of decisions that it does not have
cat >wordy.sh <<'END'
while read -r view; do
    epoch=$(printf '%s' "$view" | sed -nE 's/^\{[^{]*"epoch": ?([0-9]+).*/\1/p')
    echo "{\"epoch\":$epoch,\"op\":\"wait\",\"reason\":\"$(printf '%0150d' 0)\"}"
done
END
wordy=(grow synth "${small[@]}" --lr 0.003 --length epochs --policy-cmd "exec sh ./wordy.sh" --progress none)
esper "${wordy[@]}" --epochs 1 --run-dir short
room=$(($(stat -c %s short/last.safetensors) / 1024 + 3)) # a checkpoint, and half of the log
(trap '' XFSZ && ulimit -f "$room" && exec "$ESPER" "${wordy[@]}" --epochs 60 --checkpoint-every 1000 --run-dir log) \
    >out.txt 2>err.txt </dev/null
code=$? err=$(cat err.txt) last="esper grow, with a log that is full"
expect_code 1
expect_words err "the best network so far is not kept" "decisions.jsonl"
n=$(entries_of log)
logged=$("$ESPER" inspect log/best.safetensors | sed -n 's/.*facts\.n_logged \([0-9]*\).*/\1/p')
[ "$n" -ge 20 ] && [ "$n" -lt 60 ] && [ "${logged:-99}" -le "$n" ] || bad "$last" "$n entries, and the best network knows of ${logged:-none}"

# ---- a small file system
mkdir disk
if ! mount -t tmpfs -o size=3m tmpfs disk 2>/dev/null; then
    echo "skipped: a full disk, since no file system can be mounted here"
    finish
fi
trap 'umount disk' EXIT
echo 'head -c 8M /dev/zero >disk/filler 2>/dev/null' >full.sh
echo 'rm -f disk/filler' >room.sh
try_grow disk
rm -rf disk/*

learning=(learn synth --threads 1 --batch 8 --channels 2 --blocks 2 --max-steps 2 --epochs 3 --rounds 12 --envs 2 --progress none)
esper "${learning[@]}" --run-dir learned
expect_code 0
"$ESPER" "${learning[@]}" --run-dir disk/learned >out.txt 2>err.txt </dev/null &
learner=$!
until [ -s disk/learned/policy.safetensors ] || ! kill -0 $learner; do
    sleep 0.005
done
. ./full.sh
wait $learner
code=$? err=$(cat err.txt) out=$(cat out.txt) last="esper learn, on a disk that is full"
expect_code 1
expect_words out "learned   12 rounds" "return"
expect_words err "The learning goes on" "but its policy is not saved" "--resume disk/learned goes on from round"
. ./room.sh
esper learn --resume disk/learned --progress none
expect_code 0
cmp -s learned/policy.safetensors disk/learned/policy.safetensors || bad "disk/learned: its policy is not that of a good disk"
finish
