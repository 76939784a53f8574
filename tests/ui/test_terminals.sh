#!/usr/bin/env bash
# ctest: timeout=180 cost=10
# What strangers' terminals get: no escapes where they are not taken, no byte beyond ASCII where characters are not UTF-8,
# commands that can be pasted, tables that fit 80 columns, and the view in a window that is made larger.
. "$SOURCE_DIR/tests/cli/common.sh"

if ! command -v script >/dev/null || ! script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    echo "skipped: no script(1) to make a pseudo terminal"
    exit 77
fi

escape=$'\033'
dir="my r"$'\303\274'"n's" # a blank, a quote, and a character beyond ASCII
grow=(grow synth --threads 1 --batch 8 --channels 4 --max-steps 4 --length epochs --epochs 7 --policy random --gates permissive
    --gate-epochs 1)

# on_terminal "NAME=VALUE..." ROWS COLUMNS ARGUMENTS: the program on a terminal of that size, in that environment alone.
on_terminal() {
    local settings=$1 rows=$2 columns=$3
    shift 3
    last="esper $* (on a terminal of $rows x $columns, $settings)"
    printf 'stty rows %d cols %d\nexec env -u TERM -u NO_COLOR -u LC_ALL -u LC_CTYPE -u LANG %s %q' "$rows" "$columns" \
        "$settings" "$ESPER" >command.sh
    printf ' %q' "$@" >>command.sh
    script -qec "bash command.sh" /dev/null >out.txt 2>err.txt </dev/null
    code=$?
    out=$(tr -d '\000' <out.txt)
    err=$(cat err.txt)
}

expect_ascii() {
    expect_equal "$last: bytes beyond ASCII" "$(tr -d '\000-\177' <out.txt | wc -c)" 0
}

# No line (that begins so) is wider than that, so none is wrapped, in a number or elsewhere; and there is one.
expect_width() { # COLUMNS [EXPRESSION]
    local lines
    lines=$(tr -d '\r' <out.txt | grep -E "^(${2:-})")
    expect_equal "$last: lines that begin with '${2:-}'" "$([ -n "$lines" ] && echo some)" some
    expect_equal "$last: lines of more than $1 columns" "$(awk -v most="$1" 'length > most' <<<"$lines")" ""
}

# ---- escapes, and characters
n=0
all_settings=("TERM=dumb LANG=C" "TERM=xterm LANG=C.UTF-8" "LANG=C" "TERM=xterm LANG=C" "TERM=dumb LANG=C.UTF-8" "LANG=C.UTF-8"
    "TERM= LANG=C" "TERM=xterm NO_COLOR=1 LANG=C")
topics=("" backends ops tasks blueprints hosts features rewards "config synth" "config synth --all" "config synth_text --learn --all"
    "net synth" "plan synth" "plan synth --time")
commands=("" grow learn train eval inspect export report replay compare runs watch info bench)
if is_brief; then
    all_settings=("${all_settings[@]:0:2}") topics=("config synth" "plan synth --time") commands=(grow)
fi
for settings in "${all_settings[@]}"; do
    n=$((n + 1))
    # shellcheck disable=SC2086
    on_terminal "$settings" 24 80 "${grow[@]}" --run-dir "$dir $n"
    expect_code 0
    case $settings in
    *TERM=xterm*) expect_words out "$escape[K" "$escape[J" ;;
    *)
        expect_no_word out "$escape"
        expect_words out "    7/7 "
        expect_width 80 ' *[0-9]+/7 ' # not the command to type, which stays in one piece
        expect_width 80 '  r[0-9]c|  slot'
        ;;
    esac
    case $settings in
    TERM=xterm\ LANG*) expect_words out "$escape[1m" ;;
    *) expect_no_word out "$escape[1m" ;;
    esac
    case $settings in
    *LANG=C)
        expect_ascii
        expect_words out "run       my r\\u00fcn's $n" "replay \$'my r\\303\\274n\\'s $n'"
        ;;
    *) expect_words out "run       $dir $n" "replay 'my r"$'\303\274'"n'\\''s $n'" ;;
    esac
done

# ---- what is printed can be typed: the next command, pasted
"$ESPER" report "$dir 1" | sed -n 's/^next .*xdg-open/ls/p' >next.sh
expect_equal "the next command names the page" "$(bash next.sh)" "$dir 1/report.html"
"$ESPER" "${grow[@]}" --progress none --run-dir 'a;b "c' 2>/dev/null | sed -n 's/^next *//p' >next.sh
esper_next=$(bash next.sh 2>&1)
n_checks=$((n_checks + 1))
[[ $esper_next == *"weights equal"* ]] || bad "$(cat next.sh)" "$esper_next"

"$ESPER" train synth "${small[@]}" --progress none --run-dir=-x | sed -n 's/^next *//p' >next.sh
expect_equal "$(cat next.sh)" "$(bash next.sh 2>&1 | grep -o 'test split')" "test split"
LC_ALL=C "$ESPER" learn synth --threads 1 --batch 8 --channels 4 --epochs 5 --gate-epochs 1 --max-steps 2 --envs 1 --rounds 1 \
    --policy-width 8 --progress none --run-dir "$dir l" >/dev/null 2>&1
LC_ALL=C esper eval "$dir l"
sed -n 's/.*`esper \(report .*\)` how.*/"$ESPER" \1/p' err.txt >next.sh
expect_equal "$(cat next.sh)" "$(bash next.sh 2>&1 | grep -c '^written ')" 1
LC_ALL=C esper learn --resume "$dir l"
expect_words err "--policy \$'my r\\303\\274n\\'s l/policy.safetensors'"

# ---- nothing beyond ASCII in errors and in machine's formats, which stay JSON
LC_ALL=C esper inspect "n"$'\303\266'"where"$'\377'
expect_code 1
expect_words err 'n\u00f6where\xff'
LC_ALL=C.UTF-8 esper inspect "n"$'\303\266'"where"
expect_words err "n"$'\303\266'"where"

# ---- nor anything that commands a terminal, wherever it comes from
esper eval "$escape[31mred"
expect_code 1
expect_no_word err "$escape"
expect_words err '\x1b[31mred'
LC_ALL=C.UTF-8 esper eval "a"$'\302\233'"31mb"
expect_words err 'a\u009b31mb'
cp -r "$dir 1" "a$escape[31mb"
for command in inspect eval report; do
    on_terminal "TERM=xterm LANG=C.UTF-8" 24 80 $command "a$escape[31mb"
    expect_code 0
    expect_no_word out "$escape"
    expect_words out "a?[31mb"
done
expect_words out "xdg-open \$'a\\033[31mb/report.html'"

# ---- messages are no wider than the terminal, and what is to be typed stays in one piece
for arguments in "train synth --layers 9" "train nothing" "eval" "train synth --lr-min 0.1" "grow synth --max-params 6418"; do
    # shellcheck disable=SC2086
    on_terminal "TERM=xterm LANG=C" 24 80 $arguments
    expect_code 2
    expect_width 80
done
on_terminal "TERM=xterm LANG=C" 24 80 train synth --config "nowhere/$(printf '%090d' 0)"
expect_words out "nowhere/$(printf '%090d' 0)"
on_terminal "TERM=xterm LANG=C" 24 80 train synth --layers 9
expect_words out '`esper info config synth --all`'
on_terminal "TERM=xterm LANG=C ESPER_WIDTH=16 ESPER_DROPOUT=0.1 ESPER_LAYERS=9" 24 80 train synth "${small[@]}" \
    --progress none --run-dir warned
expect_code 0
expect_width 80 'esper: warn'
expect_width 80 '[a-z(]'
on_terminal "TERM=dumb LANG=C" 24 80 train fashion_long --data nowhere
expect_width 80
on_terminal "TERM=dumb LANG=C" 24 80 train synth_text "${small_text[@]}" --run-dir a-run-whose-name-is-long
expect_code 0
expect_width 80 'synth_text: |  [a-z]'
on_terminal "TERM=dumb LANG=C" 24 80 inspect warned --all
expect_code 0
expect_width 80 ' *[^ {]' # all but the note for programs, which has no blank to break it at

# ---- a warning does not stand in the live bar
on_terminal "TERM=xterm LANG=C" 24 80 learn synth --threads 1 --batch 8 --channels 4 --epochs 4 --gate-epochs 1 --gates permissive \
    --max-steps 2 --envs 1 --rounds 1 --policy-width 8 --run-dir hurried
expect_code 0
expect_words out "no seed can be kept in 4 epochs"
expect_no_word out "or --gate-epochs 1"
expect_equal "$last: the warning, then the view" "$(tr -d '\r' <out.txt | grep -nE '^(esper: warn: no seed|task  )' | sed 's/:.*warn.*/ warning/; s/:task.*/ view/; s/^[0-9]* //')" \
    $'warning\nview'

# ---- in LANG=C nothing that informs is beyond ASCII, and nothing is wider than the terminal
for topic in "${topics[@]}"; do
    # shellcheck disable=SC2086
    on_terminal "TERM=xterm LANG=C" 24 80 info $topic
    expect_code 0
    expect_ascii
    expect_no_word out "$escape"
    expect_width 80
done
on_terminal "TERM=xterm LANG=C.UTF-8" 24 80 info tasks
expect_words out $'\342\234\223 synth'
on_terminal "TERM=xterm LANG=C" 24 80 info tasks
expect_words out "+ synth"
for command in "${commands[@]}"; do
    # shellcheck disable=SC2086
    on_terminal "TERM=xterm LANG=C" 24 80 $command --help
    expect_code 0
    expect_ascii
    expect_width 80
done

# ---- tables at 80 columns
on_terminal "TERM=dumb LANG=C" 24 80 compare synth "${small[@]}" --policies none,random --seeds 2 --dir compared
expect_code 0
expect_width 80
expect_words out "over none" "training FLOPs"
on_terminal "TERM=dumb LANG=C" 24 80 learn synth --threads 1 --batch 8 --channels 4 --epochs 8 --gate-epochs 1 --max-steps 2 \
    --envs 2 --rounds 2 --run-dir learned
expect_code 0
expect_equal "learn: rounds that wrap" "$(tr -d '\r' <out.txt | grep '^ *[12]/2 ' | awk 'length > 80')" ""
on_terminal "TERM=dumb LANG=C" 24 80 bench guard --quick
expect_code 0
expect_width 80

# ---- a window that is too small, and is made larger while the run goes on
cat >resize.sh <<END
stty rows 5 cols 90
TERM=xterm LC_ALL=C '$ESPER' grow synth --backend ref --threads 1 --batch 16 --channels 4 --max-steps 40 --length epochs --epochs 400 --run-dir resized &
pid=\$!
until grep -q ' 2/400 ' resized.txt || ! kill -0 \$pid 2>/dev/null; do sleep 0.05; done
cp resized.txt before.txt
stty rows 24 cols 90
until grep -q 'blueprint' resized.txt || ! kill -0 \$pid 2>/dev/null; do sleep 0.05; done
stty rows 5 cols 90
sleep 0.3
wc -c <resized.txt >size.txt
until tail -c +\$((\$(cat size.txt) + 1)) resized.txt | grep -q '/400 ' || ! kill -0 \$pid 2>/dev/null; do sleep 0.05; done
kill -INT \$pid
wait \$pid
END
script -qfec "bash resize.sh" resized.txt >out.txt 2>err.txt </dev/null
last="a window that changes"
out=$(cat before.txt)
expect_no_word out "$escape"
expect_words out " 1/400 " " 2/400 "
out=$(cat resized.txt)
expect_words out "slot  blueprint" "$escape[J" "go on with"
out=$(tail -c +$(($(cat size.txt) + 1)) resized.txt)
expect_no_word out "$escape"

finish
