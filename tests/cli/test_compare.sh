#!/usr/bin/env bash
# ctest: timeout=120 cost=9 labels=noasan
# esper compare from the outside: runs as processes, what is kept and gone on with, and what is refused.
. "$SOURCE_DIR/tests/cli/common.sh"

fixed=("${small[@]}" --checkpoint-every 0)
quick=("${fixed[@]}" --gates permissive)

# The value of a key in the JSON line that holds all the words: field KEY WORD...
field() {
    local key=$1 lines=$out word
    shift
    for word in "$@"; do
        lines=$(grep -F -e "$word" <<<"$lines")
    done
    sed -n "s/.*\"$key\":\"\{0,1\}\([^,\"}]*\).*/\1/p" <<<"$lines"
}

expect_file() {
    n_checks=$((n_checks + 1))
    [ -e "$1" ] || bad "$last" "$1 is not there"
}

# ---- refused
refused 2 "nothing to compare is called 'heuristik'|did you mean 'heuristic'" compare synth --policies none,heuristik
refused 2 "none stands there twice" compare synth --policies none,none
refused 2 "static-final is made after a network that has grown" compare synth --policies none,static-final
refused 2 "--seeds: '0' is no whole number from 1 to" compare synth --seeds 0
refused 2 "--seeds: 'many' is no whole number" compare synth --seeds many
refused 2 "--jobs: '0' is no whole number" compare synth --jobs 0
refused 2 "no task is called 'sinth'|did you mean 'synth'" compare sinth
refused 2 "one task at a time: 'chars' is too much" compare synth chars
refused 2 "takes no --policy" compare synth --policy none
refused 2 "takes no --run-dir" compare synth --run-dir here
refused 2 "--out wants a file" compare synth --out ""
refused 2 "kernel 4" compare synth --kernel 4
refused 2 "epochs is 0" compare synth --epochs 0
refused 2 "--against: 'random' is not compared|none, heuristic" compare synth --policies none,heuristic --against random
refused 2 "--policies: |nowhere/policy.safetensors" compare synth --policies none,nowhere/policy.safetensors
refused 2 "--first-seed: 'soon' is no seed" compare synth --first-seed soon
refused 2 "--first-seed and --seed are the same" compare synth --first-seed 3 --seed 4

# ---- a policy that grows, and all controls. The plan keeps a seed on every seed of the run.
cat >plan.txt <<END
1   r0c0  germinate  blueprint=conv_heavy tempo=3
2   r0c0  advance
13  r0c0  advance
18  r0c0  advance
20  r0c0  fossilize
END
grown=("${quick[@]}" --epochs 45 --decisions plan.txt --policies none,scripted,static-final,static-equal --seeds 2 --seed 3)
esper compare synth "${grown[@]}" --jobs 2 --dir grown --out table.md
expect_code 0
expect_equal "standard error" "$err" ""
expect_words out "compare   synth: none scripted static-final static-equal" "8, 2 at a time, in grown; gates permissive" \
    "8/8" "0 left" "At equal training FLOPs, " "for each, what 45 epochs of the host cost" "over none" \
    "static-final, seed 3: r0c0:conv_heavy:add" "static-equal, seed 4: channels 3, 331 parameters" "(scripted ended with 270)" \
    "scripted less each other line, on the same seeds" "written   grown/report.html, table.md"
expect_no_word out "not counted"
table=$(cat table.md)
expect_words table "### synth: 2 seeds from 3, gates permissive for all" "|---|---:|" "| static-final | 2 | "
for run in none-3 scripted-4 static-final-4 static-equal-3; do
    expect_file grown/$run/store.sqlite
    expect_file grown/$run.log
done
printed=$(sed -n '/^synth:/,/^of test/p' <<<"$out")

# ---- again: all is there, and says the same
esper compare synth "${grown[@]}" --jobs 1 --dir grown
expect_code 0
expect_equal "runs that were there" "$(grep -c "(was there)" <<<"$out")" 8
expect_equal "tables of both" "$(sed -n '/^synth:/,/^of test/p' <<<"$out")" "$printed"
esper compare synth "${grown[@]}" --dir grown --json
expect_code 0
expect_words err "(was there)"
expect_no_word out "At equal"
expect_equal "objects" "$(wc -l <<<"$out")" $((8 + 4 + 3))
expect_equal "seeds of a pair" "$(field acc_test_n '"pair":"scripted"' '"less":"static-final"')" 2
expect_equal "parameters of a pair" "$(field params '"pair":"scripted"' '"less":"static-final"')" 0
expect_equal "parameters of static-final" "$(field params '"static-final"' '"seed":"3"')" 270
expect_equal "what static-final was given" "$(field plant '"line":"static-final"' '"seed":"4"')" "r0c0:conv_heavy:add"
budget=$(field budget '"line":"none"' '"seed":"3"')
for line in none scripted static-final static-equal; do # each has spent it, and no more than a step and its last attribution
    over=$(($(field flops_train "\"line\":\"$line\"" '"seed":"3"') * 100 / budget))
    [ "$over" -ge 100 ] && [ "$over" -le 103 ] || bad "$line spent $over % of its budget"
done
expect_equal "budget of static-equal" "$(field budget '"line":"static-equal"' '"seed":"4"')" "$budget"
refused 2 "grown/scripted-3 holds a run with lr = 0.05, and 0.1 is wanted now" compare synth "${grown[@]}" --dir grown --lr 0.1 --json

# ---- the page: well-formed, with every run in the plot
page=$(cat grown/report.html)
expect_words page "synth: 4 ways compared" "Test accuracy against parameters" "</html>"
expect_equal "runs in the plot" "$(grep -c '<path class="run ' grown/report.html)" 8
expect_equal "curves, and their means" "$(grep -c '<path class="dots ' grown/report.html) $(grep -c '<path class="course ' grown/report.html)" "8 4"
n_checks=$((n_checks + 1))
if command -v xmllint >/dev/null; then
    xmllint --noout grown/report.html 2>err.txt || bad "grown/report.html is not well-formed" "$(head -n 5 err.txt)"
fi

# ---- a comparison is no run
refused 1 "grown is a comparison, not a run|report.html" report grown
refused 1 "grown is a comparison, not a run" inspect grown

# ---- learned policies, made by the test of comparisons: by name of file or directory, on seeds of their own, held against others
maker=$(dirname "$ESPER")/tests/run/test_compare
if [ -x "$maker" ]; then
    mkdir made
    (cd made && "$maker" >maker.txt 2>&1) || bad "$maker" "$(tail -n 20 made/maker.txt)"
    both=("${small[@]}" --checkpoint-every 0 --seeds 2 --first-seed 30)
    esper compare synth "${both[@]}" --policies none,made/a/policy.safetensors,made/b/policy.safetensors --jobs 2 --dir ab
    expect_code 0
    expect_words out "compare   synth: none a b" "2 seeds from 30" "a less each other line" "trained by the reward escrow" \
        "trained by the reward sparse" "gates strict for all"
    was=$(cat ab/{a,b,none}-3[01]/decisions.jsonl | cksum)
    refused 2 "--policies: grown is a directory without a policy.safetensors|\`esper learn\`" compare synth "${both[@]}" --policies none,grown
    esper compare synth "${both[@]}" --policies none,made/a,made/b/ --jobs 1 \
        --threads 2 --dir ab1 --against none --json
    expect_code 0
    expect_equal "decisions with other jobs and threads" "$(cat ab1/{a,b,none}-3[01]/decisions.jsonl | cksum)" "$was"
    expect_equal "who is held against" "$(field less '"pair":"none"' '"less":"b"')" b
    expect_equal "what b was trained by" "$(field trained_by '"policy":"b"')" sparse
    esper compare synth "${both[@]}" --seeds 1 --policies none,random,made/a,static-final --jobs 2 --dir finals
    expect_code 0
    expect_words out "compare   synth: none random learned static-final-random static-final-learned" \
        "static-final-learned, seed 30: "
    esper compare synth "${both[@]}" --seeds 1 --policies none,random,made/a,static-final --dir finals --json
    expect_equal "whose network it is" "$(field follows '"line":"static-final-learned"')" learned
    expect_equal "parameters of both" "$(field params '"line":"static-final-learned"')" \
        "$(field params '"line":"learned"')"
    esper compare synth "${both[@]}" --policies none,made/loose.safetensors --dir loose --jobs 2
    expect_code 0
    expect_words out "gates permissive for all" "learned-31"
    cp made/one.safetensors made/loose.safetensors
    refused 2 "loose/learned-30 holds a run with gates = permissive" compare synth "${both[@]}" \
        --policies none,made/loose.safetensors --dir loose --json
    esper compare synth "${both[@]}" --policies made/loose.safetensors --dir loose --gates permissive --json
    expect_code 2
    expect_words err "loose/learned-30 holds a run by another policy than made/loose.safetensors is now"
else
    echo "skipped: no $maker to make policies"
fi

# ---- a seed that is still being blended in is part of what was tested, so static-final has it, too
head -n 3 plan.txt >blends.txt
esper compare synth "${quick[@]}" --length epochs --epochs 15 --decisions blends.txt --policies scripted,static-final --seeds 1 --jobs 2 \
    --dir blends --json
expect_code 0
expect_equal "what was tested" "$(field tested '"line":"scripted"')" "r0c0:conv_heavy:add"
expect_equal "what static-final was given" "$(field plant '"line":"static-final"')" "r0c0:conv_heavy:add"
expect_equal "parameters of both" "$(field params '"line":"static-final"')" "$(field params '"line":"scripted"')"

# ---- a run that was lost is run again, with the same result
hash_of() { grep -o '"weight_hash":"[0-9a-f]*"' "$1/events.jsonl" | tail -n 1; }
was=$(hash_of grown/static-equal-4)
rm grown/static-equal-4/store.sqlite
esper compare synth "${grown[@]}" --jobs 2 --dir grown
expect_code 0
expect_equal "runs that were there" "$(grep -c "(was there)" <<<"$out")" 7
expect_equal "weights of a run made again" "$(hash_of grown/static-equal-4)" "$was"

# ---- runs are those of grow, whatever the number of jobs
esper compare synth "${fixed[@]}" --policies none --seeds 1 --dir alone --jobs 1
expect_code 0
expect_words out "At equal training FLOPs, "
esper grow synth "${fixed[@]}" --policy none --run-dir by-hand
expect_equal "weights" "$(hash_of alone/none-1)" "$(hash_of by-hand)"

# ---- a directory of an earlier version is refused
if command -v python3 >/dev/null; then
    cp -r alone older
    python3 -c 'import sqlite3
db = sqlite3.connect("older/none-1/store.sqlite")
db.execute("UPDATE runs SET config = replace(config, char(10) || \"length = flops\", \"\")")
db.commit()'
    esper compare synth "${fixed[@]}" --policies none --seeds 1 --dir older --jobs 1
    expect_code 2
    expect_words err "older/none-1 holds a run of an earlier version, which had no budget of FLOPs: choose another directory"
fi

# ---- without --dir it finds a place
esper compare synth "${fixed[@]}" --policies none --seeds 1
expect_code 0
expect_words out "in runs/compare-synth-"
expect_file "$(echo runs/compare-synth-*-1/none-1/store.sqlite)"
rm -r runs

# ---- the governor breaks a run off: it is named, and in no mean
esper compare synth "${quick[@]}" --policies none,heuristic --seeds 1 --jobs 2 --dir broken --inject 3:host:param:nan \
    --max-rollbacks 0
expect_code 1
expect_words out "none-1: broken off: the governor stopped the run: NaN in" "0 of 1"
esper compare synth "${quick[@]}" --policies none,heuristic --seeds 1 --jobs 2 --dir broken --inject 3:host:param:nan \
    --max-rollbacks 0
expect_code 1
expect_words out "(was there)" "none-1: broken off: the governor stopped the run"

# ---- a process that dies ends nothing else
esper compare synth "${quick[@]}" --policies none,command --seeds 1 --jobs 1 --dir dies --policy-cmd 'kill -9 $PPID'
expect_code 1
expect_words out "command-1: failed: killed by signal 9" "2/2"
esper compare synth "${quick[@]}" --policies command,static-final --seeds 1 --jobs 1 --dir needs --policy-cmd 'kill -9 $PPID'
expect_code 1
expect_words out "static-final-1: not run: it needs command-1 (failed)" "2/2"

# ---- a place that is in use
mkdir held
n_bad_before=$n_bad
(
    flock 9
    esper compare synth "${fixed[@]}" --policies none --seeds 1 --dir held
    expect_code 1
    expect_words err "held is in use"
    exit $((n_bad > n_bad_before))
) 9>held/compare.lock || n_bad=$((n_bad + 1))

# How many processes of this test, not of another at the same time, work on runs below DIR.
processes_of() {
    local pid n=0
    for pid in $(pgrep -f -- "--run-dir=$1/"); do
        [ "/proc/$pid/cwd" -ef . ] && n=$((n + 1))
    done
    echo $n
}

# ---- Ctrl-C: what has ended is kept, what runs is saved, and the same command goes on
long=("${quick[@]}" --epochs 100 --policies none,random --seeds 1 --seed 5 --jobs 2)
for _ in 1 2 3 4 5 6 7 8 9; do # again where one was done before the other had begun, as on a busy machine
    break_off TERM '[ -e long/none-5/last.safetensors ] && [ -e long/random-5/last.safetensors ]' long \
        compare synth "${long[@]}" --dir long
    [ "$(grep -cE "^ *(none|random)-5: stopped" out.txt)" -eq 2 ] && break
done
expect_code 130
expect_words out "none-5: stopped" "random-5: stopped" "At equal training FLOPs, " "the same command with --dir long goes on"
expect_equal "processes left" "$(processes_of long)" 0
esper compare synth "${long[@]}" --dir long
expect_code 0
expect_no_word out "not counted"
expect_equal "runs that went on" "$(grep -l '"event":"run_resumed"' long/*/events.jsonl | wc -l)" 2
esper compare synth "${long[@]}" --dir unbroken
for run in none-5 random-5; do
    expect_equal "weights of $run, stopped and not" "$(hash_of long/$run)" "$(hash_of unbroken/$run)"
done

# ---- a number of epochs is that of all lines
esper compare synth "${quick[@]}" --length epochs --epochs 6 --policies none,random --seeds 1 --dir counted --json
expect_code 0
for line in none random; do
    expect_equal "epochs of $line" "$(field epochs "\"line\":\"$line\"" '"seed"')" 6
    expect_equal "budget of $line" "$(field budget "\"line\":\"$line\"" '"seed"')" null
done

# ---- the rival: 16 networks, one is left, in the FLOPs of one run
halves=("${fixed[@]}" --epochs 60 --schedule hold --max-params 3000 --policies none,halving --seeds 1)
esper compare synth "${halves[@]}" --dir halves --jobs 2
expect_code 0
expect_words out "halving, seed 1: "
log=$(cat halves/halving-1.log)
expect_words log "halving: round 1 of 5, 16 networks" "halving: round 4 of 5, 2 networks"
esper compare synth "${halves[@]}" --dir halves --json
chosen=$(sed -n 's/.*"line":"halving".*"tested":"\([^"]*\)".*/\1/p' <<<"$out")
[ "$(field params '"line":"halving"' '"seed"')" -le 3000 ] || bad "more parameters than were asked for"
budget=$(field budget '"line":"halving"')
over=$(($(field flops_train '"line":"halving"' '"seed"') * 100 / budget))
[ "$over" -ge 98 ] && [ "$over" -le 103 ] || bad "halving spent $over % of its budget"
expect_equal "what it found in its configuration" "$(sed -n 's/^plant = //p' halves/halving-1/config.ini)" "$chosen"
hash=$(hash_of halves/halving-1)
esper replay halves/halving-1 --progress none
expect_code 0
expect_words out "weights equal"
for threads in 1 3; do # stopped in the search it begins anew, and behind it goes on
    rm -rf again
    break_off TERM '[ -e again/halving-1/last.safetensors ]' again compare synth "${halves[@]}" --dir again --jobs 1 --threads $threads
    esper compare synth "${halves[@]}" --dir again --jobs 1 --threads $threads
    expect_code 0
    expect_equal "weights of a search that was stopped, $threads threads" "$(hash_of again/halving-1)" "$hash"
done
break_off TERM 'grep -q "round 1 of" early/halving-1.log 2>/dev/null' early compare synth "${halves[@]}" --dir early --jobs 1
expect_words out "the same command with --dir early goes on"
esper compare synth "${halves[@]}" --dir early --jobs 1
expect_code 0
expect_equal "weights of a search that began anew" "$(hash_of early/halving-1)" "$hash"
refused 2 "halving chooses the seeds: leave out plant" grow synth "${fixed[@]}" --policy halving --plant r0c0:norm --run-dir x
refused 2 "halving divides FLOPs among networks: set length = flops" grow synth "${fixed[@]}" --policy halving --length epochs --run-dir x
refused 2 "--gates has no effect on synth: nobody decides about seeds" grow synth --policy halving --gates strict
refused 2 "halving has divided what it may spend already" grow --resume halves/halving-1 --flops 9e12
finish
