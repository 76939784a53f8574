#!/usr/bin/env bash
# ctest: timeout=900 cost=17 labels=noasan
# esper grow and replay from the outside: a run with seeds of every kind, resumed, replayed, compared with its fixed host,
# exported; and what is refused.
. "$SOURCE_DIR/tests/cli/common.sh"

fixed=(--threads 1 --batch 8 --blocks 2 --channels 4 --max-steps 10 --progress none)
tiny=("${fixed[@]}" --gates permissive)

weights_of() { # of what the last command printed
    sed -n 's/^weights *\([0-9a-f]*\).*/\1/p' <<<"$out"
}

# Three seeds: r0c0 is kept, r0c1 has a gate network and stays in blending, r1c0 is on its way with alpha below 1.
cat >plan.txt <<'END'
1  r0c0 germinate blueprint=conv_light style=sigmoid_add tempo=1 target=1
2  r0c0 advance
3  r0c1 germinate blueprint=conv_light style=gated_gate tempo=1 target=1
4  r0c1 advance
5  r1c0 germinate blueprint=norm style=linear_add tempo=8 target=1
6  r1c0 advance
14 r0c0 advance
15 r0c1 advance
16 r0c0 advance
17 r1c0 advance
18 r0c0 fossilize
END
scripted=("${tiny[@]}" --length epochs --epochs 20 --policy scripted --decisions plan.txt)

# ---- a run, with its static control
esper grow synth "${scripted[@]}" --run-dir grown --static-control
expect_code 0
expect_equal "standard error of a run" "$err" ""
expect_words out "static host    grown host    difference" "test accuracy" "training FLOPs" "fossilized 18" "blending" \
    "grown/last.safetensors" "grown/report.html" "replay grown" "export grown" "dependence"
expect_no_word out "what its decisions earned" # nobody asked
hash=$(weights_of)
expect_equal "files of the run" "$(ls grown | tr '\n' ' ')" \
    "best.safetensors config.ini control decisions.jsonl events.jsonl last.safetensors report.html store.sqlite "
expect_equal "decisions in the log" "$(grep -c '"source":"policy"' grown/decisions.jsonl)" 20
expect_equal "files of the control" "$(ls grown/control | tr '\n' ' ')" \
    "best.safetensors config.ini decisions.jsonl events.jsonl last.safetensors "
expect_equal "settings that differ in the control" \
    "$(diff grown/config.ini grown/control/config.ini | sed -n 's/^> \([a-z_]*\) =.*/\1/p' | tr '\n' ' ')" \
    "run_dir policy decisions "
page=$(cat grown/report.html)
expect_words page "conv_light" "static" "</html>"
esper grow --resume grown --static-control --progress none # all of it is done: it is shown again
expect_code 0
expect_words out "static host    grown host" "fossilized 18"
esper grow synth --resume grown --static-control --progress none --reward gain
expect_code 0
expect_words out "return    " "points of test accuracy over the static control" " parameters, and not " "FLOP of training, and not "
esper grow --resume grown
expect_code 1
expect_words err "has had 20 epochs" "--epochs N"

# ---- what it earned
esper grow synth "${tiny[@]}" --length epochs --epochs 1 --run-dir paid --reward shaped
expect_words out "what its decisions earned"
esper grow --resume paid --epochs 2 --progress none # as it was begun
expect_code 0
expect_words out "what its decisions earned"

# ---- a control that was left in doubt goes on from before
esper grow --resume paid --static-control --progress none
expect_code 0
cp paid/control/last.safetensors sound.safetensors # of 2 epochs
esper grow --resume paid --epochs 3 --static-control --progress none
expect_code 0
mv sound.safetensors paid/control
esper grow --resume paid --epochs 4 --static-control --progress none
expect_code 0
expect_equal "what the control went on from" \
    "$(grep run_resumed paid/control/events.jsonl | grep -oE '[a-z]+\.safetensors' | tr '\n' ' ')" \
    "last.safetensors sound.safetensors "
rm -rf paid

# ---- what is shown on the way
esper grow synth "${scripted[@]}" --run-dir shown --progress plain --reward gain
expect_code 0
expect_words out "return    not known: gain is held against the host alone"
expect_equal "weights do not depend on who watches" "$(weights_of)" "$hash"
expect_words out "growth    4 slots from r0c0 to r1c1; scripted decides, permissive gates" " 20/20 " \
    "r0c0 conv_light germinated, 156 parameters" "r0c0 conv_light passed G2 to blending" \
    "r0c0 conv_light fossilized after 17 epochs"
esper grow synth "${tiny[@]}" --epochs 3 --policy random --run-dir bars --progress bar
expect_code 0
expect_words out "blueprint" $'\033[J'

# ---- the fewest epochs in which a seed can be kept; of fewer there is word
cat >soon.txt <<'END'
1  r0c0 germinate blueprint=conv_light tempo=1
2  r0c0 advance
3  r0c0 advance
4  r0c0 advance
5  r0c0 fossilize
END
soon=("${tiny[@]}" --gates permissive --decisions soon.txt --progress none)
esper grow synth "${soon[@]}" --length epochs --epochs 5 --gate-epochs 1 --run-dir soon
expect_code 0
expect_equal "nothing to warn of" "$err" ""
expect_words out "fossilized 5"
head -n 4 soon.txt >late.txt
esper grow synth "${soon[@]}" --decisions late.txt --epochs 5 --run-dir late
expect_code 0
expect_equal "warned" "$err" "esper: warn: no seed can be kept in 5 epochs: with permissive gates and gate_epochs = 10 that takes \
14. Ask for --epochs 14, or --gate-epochs 1"
expect_equal "in the events" "$(grep -c '"event":"warning"' late/events.jsonl)" 1
expect_equal "word of the refusal" "$(grep -c '"refusal":"G2: epochs in stage 1, needs 10"' late/events.jsonl)" 1
esper replay late --progress none
expect_code 0
expect_equal "a replay is not warned" "$err" ""
esper grow synth "${fixed[@]}" --policy none --epochs 2 --run-dir stays
expect_code 0
expect_equal "a host that stays as it is" "$err" ""

# ---- replay: the same weights, at every decision and at the end
esper replay grown --progress none
expect_code 0
expect_words out "20 epochs, 20 decisions" "weights equal" "as in the checkpoint"
expect_equal "weights of the replay" "$(weights_of)" "$hash"
esper replay grown/control --threads 2
expect_code 0
expect_words out "weights equal"
expect_equal "a replay writes nothing" "$(find grown -newer grown/report.html -type f | grep -v -e store.sqlite)" ""

# ---- a log that was changed: another decision, other weights, an entry less
broken() { # NAME SED-SCRIPT: a copy of the run with a changed log
    rm -rf "$1"
    cp -r grown "$1"
    sed -i "$2" "$1/decisions.jsonl"
}
broken other-move '15s/"op":"advance"/"op":"prune"/;15s/"speed":-*[0-9]*/"speed":0/'
esper replay other-move --progress none
expect_code 1
expect_words err "other-move is not made again by its log" "the weights are" "of the log says"
broken other-weights '8s/"weights":"[0-9a-f]*"/"weights":"0123456789abcdef"/'
esper replay other-weights --progress none
expect_code 1
expect_words err "epoch 7, step 70: the weights are" "entry 6 of the log says 0123456789abcdef"
broken torn '$d'
esper replay torn --progress none
expect_code 0
expect_words out "19 epochs, 19 decisions" "the log ends here, before the run's 20 epochs"
broken renamed '1s/"task":"synth"/"task":"fashion"/'
esper replay renamed
expect_code 1
expect_words err "is of fashion, seed 1; the checkpoint is of synth"
broken no-json '5s/^/x/'
esper replay no-json
expect_code 1
expect_words err "no-json/decisions.jsonl:5: "
broken kernels '1s/"kernels":"[^"]*"/"kernels":"cpu\/none-such"/'
esper replay kernels
expect_code 1
expect_words err "computed by cpu/none-such" "ESPER_KERNELS=none-such"
rm grown/../torn/decisions.jsonl
esper replay torn
expect_code 1
expect_words err "torn/decisions.jsonl"

# ---- stopped and resumed: the unbroken run, bit for bit, and its replay
esper_stopped() { # LINES SIGNAL ARGUMENTS: stops the program once its decision log has so many lines; ends with its directory
    local lines=$1 signal=$2 dir=${*: -1}
    shift 2
    break_off "$signal" '[ "$(grep -c . "${watched:-$dir/decisions.jsonl}")" -ge "$lines" ]' "$dir" "$@"
}
esper_stopped 12 INT grow synth "${scripted[@]}" --run-dir stopped
expect_code 130
expect_words out "go on with: $ESPER grow --resume stopped"
esper train --resume stopped
expect_code 2
expect_words err "is of a run that grows" "esper grow --resume"
mv stopped moved
esper grow --resume moved --progress none
expect_code 0
expect_equal "weights of the resumed run" "$(weights_of)" "$hash"
expect_words out "fossilized 18"
esper replay moved --progress none
expect_code 0
expect_words out "20 decisions" "weights equal"
esper_stopped 9 KILL grow synth "${scripted[@]}" --run-dir killed
expect_code 137
esper grow --resume killed --progress none
expect_code 0
expect_equal "weights of the run that was killed and resumed" "$(weights_of)" "$hash"
esper_stopped 12 INT grow synth "${scripted[@]}" --run-dir there
esper grow --resume there --run-dir elsewhere --progress none # goes on in another directory
expect_code 0
expect_equal "weights of the run that moved" "$(weights_of)" "$hash"
esper replay elsewhere --progress none
expect_code 0
expect_words out "20 decisions" "weights equal"

# ---- a rate that falls goes by the budget: with more of it later it is another schedule
esper grow synth "${fixed[@]}" --schedule hold --epochs 2 --policy none --run-dir falling
esper replay falling --progress none
expect_code 0
esper grow --resume falling --epochs 3 --progress none
expect_code 0
esper replay falling --progress none
expect_code 1
expect_words err "was begun for" "FLOPs and resumed for" "its learning rate fell by two schedules"
esper grow synth "${fixed[@]}" --epochs 2 --policy none --run-dir steady # a rate that stays does not go by it
esper grow --resume steady --epochs 4 --progress none
expect_code 0
esper replay steady --progress none
expect_code 0
expect_words out "4 decisions" "weights equal"
esper grow synth "${fixed[@]}" --schedule hold --length epochs --epochs 2 --policy none --run-dir counted
esper grow --resume counted --epochs 3 --progress none
expect_code 0
esper replay counted --progress none # its log knows no budget
expect_code 1
expect_words err "is not made again by its log" "more epochs"
# ---- logs of other versions
sed -i '1s/"esper_decisions":3/"esper_decisions":2/' steady/decisions.jsonl
esper replay steady --progress none
expect_code 1
expect_words err "a decision log of version 2; this program reads version 3"

# ---- as long as its budget: in FLOPs, or in epochs of the network as it begins
head -n 6 plan.txt >begins.txt
esper grow synth "${tiny[@]}" --epochs 6 --policy scripted --decisions begins.txt --run-dir charged
expect_code 0
charged=$(weights_of)
epochs=$(grep -c '"source":"policy"' charged/decisions.jsonl)
[ "$epochs" -lt 6 ] || bad "a network that grew had $epochs epochs for what 6 of its host cost"
esper replay charged --progress none
expect_code 0
expect_words out "weights equal"
# what was looked at to decide is paid for in a replay, too: its rate goes by what is spent
esper grow synth "${fixed[@]}" --schedule hold --lr 1e-6 --policy heuristic --attribution 100 --plateau 0 --epochs 12 --run-dir probed
expect_code 0
probed=$(grep -c '"source":"policy"' probed/decisions.jsonl)
[ "$probed" -lt 12 ] || bad "a run that looked for a place had $probed epochs for what 12 of its host cost"
esper replay probed --progress none
expect_code 0
expect_words out "$probed decisions" "weights equal"
budget=$(sed -n '1s/.*"budget":"\{0,1\}\([0-9]*\).*/\1/p' charged/decisions.jsonl)
esper grow synth "${tiny[@]}" --flops "$budget" --policy scripted --decisions begins.txt --run-dir flops
expect_code 0
expect_equal "weights of a run by --flops" "$(weights_of)" "$charged"

# ---- a width that some blueprint cannot be built for: the others can
width=("${small_text[@]}" --width 6 --run-dir)
esper grow synth_text "${width[@]}" odd --epochs 6 --policy random --gates permissive --progress none
expect_code 0
expect_equal "attention in a width of 6" "$(grep -c '"blueprint":".*attention"' odd/decisions.jsonl)" 0
echo "2 r0c0 germinate blueprint=attention" >unfit.txt
esper grow synth_text "${width[@]}" unfit --policy scripted --decisions unfit.txt
expect_code 1
expect_words err "unfit.txt:1: epoch 2" "blueprint attention does not fit r0c0"
refused 2 "slot r0c0: attention cannot be built for a width of 6" train synth_text "${width[@]}" x --plant r0c0:attention

# ---- stopped in the control: the grown run is shown, and the control goes on later
watched=ctl/control/decisions.jsonl esper_stopped 6 INT grow synth "${scripted[@]}" --static-control --run-dir ctl
expect_code 130
expect_words out "fossilized 18" "the static control is not done" "grow --resume ctl --static-control"
expect_equal "weights of the grown run" "$(weights_of)" "$hash"
esper grow --resume ctl --static-control --progress none
expect_code 0
expect_words out "static host    grown host"
control_of() { "$ESPER" inspect "$1/control" | sed -n 's/^ *weight_hash *//p'; }
expect_equal "weights of the control that was stopped" "$(control_of ctl)" "$(control_of grown)"

# ---- the control on its own, later
rm -rf shown/control
esper grow --resume shown --static-control --progress none
expect_code 0
expect_words out "static host    grown host"
expect_equal "the control" "$(ls shown/control/last.safetensors)" shown/control/last.safetensors

# ---- a fault on purpose: found, undone, logged, and replayed
esper grow synth "${scripted[@]}" --inject 35:host:param:nan,55:seed:moment:inf,75:host:grad:nan --run-dir drill
expect_code 0
expect_words err "warn: guard: NaN in" "back from step"
expect_words out "guard     1 step skipped, 2 times back to a snapshot"
drilled=$(weights_of)
expect_equal "faults in the log" "$(grep -c '"source":"injection"' drill/decisions.jsonl)" 3
expect_equal "the governor in the log" "$(grep -c '"source":"governor"' drill/decisions.jsonl)" 3
esper replay drill --progress none --log-level error
expect_code 0
expect_words out "6 entries of guard and drills: weights equal"
expect_equal "weights of the replayed drill" "$(weights_of)" "$drilled"
sed -i 's/"action":"skip"/"action":"roll_back"/' drill/decisions.jsonl
esper replay drill --progress none --log-level error
expect_code 1
expect_words err "the governor (skip), and entry" "of the log says the governor (roll_back)"

# ---- export, with a kept seed, one on its way and one behind a gate network
esper export grown --torch exported
expect_code 0
model=$(cat exported/model.py)
expect_words model "alpha" "r0c1"
python=$(python_with_torch)
if [ -n "$python" ]; then
    said=$("$python" exported/model.py 2>&1)
    expect_words said "parameters, output (1, "
else
    echo "skipped: no python3 here can import torch; looked at the exported files only"
fi

# ---- settings that cannot be
rm -rf runs
refused 2 "policy: no policy is called 'heuristics'|did you mean 'heuristic'?|There are none, heuristic|by its file or its run" \
    grow synth --policy heuristics
refused 1 "absent.safetensors: " grow synth --policy absent.safetensors
echo "a poem about growth" >poem.txt
refused 1 "poem.txt: " grow synth --policy poem.txt
refused 2 "blueprints: |conv_heavier" grow synth --blueprints conv_light,conv_heavier
refused 2 "policy = scripted needs a decision file: give one with --decisions FILE" grow synth --policy scripted
refused 2 "policy = command needs the program: give it with --policy-cmd COMMAND" grow synth --policy command
refused 2 "policy_cmd and policy = heuristic" grow synth --policy heuristic --policy-cmd cat
refused 2 "policy_cmd and policy = random" grow synth --policy random --policy-cmd cat
refused 2 "--decisions has no effect|only the policy scripted reads a decision file" grow synth --policy random --decisions plan.txt
refused 2 "plan.txt:4: epoch 4: the run has 3 epochs" grow synth --decisions plan.txt # scripted goes without saying
refused 2 "growing needs the guard" grow synth --no-guard
refused 2 "plant: this host has no slot 'r9c9'" grow synth "${tiny[@]}" --plant r9c9:norm
refused 2 "plant: |nothing" grow synth "${tiny[@]}" --plant r0c0:nothing
refused 2 "inject: " grow synth "${tiny[@]}" --inject 5:host:param
refused 1 "none.txt" grow synth "${tiny[@]}" --policy scripted --decisions none.txt
refused 2 "one task at a time" grow synth fashion
refused 2 "esper train takes no --policy|esper grow" train synth --policy heuristic
refused 2 "esper train takes no --max-seeds" train synth --max-seeds 2
refused 2 "expected one run, got 0" replay
refused 2 "esper replay takes no --epochs" replay grown --epochs 3
refused 1 "'nowhere' is no run" replay nowhere
printf '1 r0c0 germinate blueprint=norm\n2 r7c0 advance\n' >no-slot.txt
refused 2 "no-slot.txt:2: |r7c0" grow synth "${tiny[@]}" --policy scripted --decisions no-slot.txt
printf '1 r0c0 germinate blueprint=norn\n' >no-blueprint.txt
refused 2 "no-blueprint.txt:1: |norn" grow synth "${tiny[@]}" --policy scripted --decisions no-blueprint.txt

# ---- a move that is not legal when its epoch comes: the run stops before it, and the file's future can be mended
printf '1 r0c0 germinate blueprint=norm\n3 r0c0 fossilize\n' >illegal.txt
esper grow synth "${tiny[@]}" --epochs 4 --policy scripted --decisions illegal.txt --run-dir illegal
expect_code 1
expect_words err "illegal.txt:2: epoch 3: fossilize r0c0" "--resume illegal"
printf '1 r0c0 germinate blueprint=norm\n3 r0c0 advance\n' >illegal.txt
esper grow --resume illegal --progress none
expect_code 0
esper replay illegal --progress none
expect_code 0
expect_words out "4 decisions" "weights equal"

# ---- programs that decide
cat >program.sh <<'END'
case $(cat mood) in
dies) read -r _; exit 3 ;;
hangs) exec sleep 60 ;;
babbles) while read -r _; do echo "what?"; done ;;
esac
while read -r line; do
    case $line in
    *'"epoch":'*) epoch=${line#*\"epoch\":} && echo "{\"epoch\":${epoch%%[!0-9]*},\"op\":\"wait\"}" ;;
    *) echo '{"ok":true}' ;;
    esac
done
END
while IFS='|' read -r mood deadline words; do
    echo "$mood" >mood
    esper grow synth "${tiny[@]}" --epochs 3 --policy-cmd "sh program.sh" --policy-deadline "$deadline" --run-dir "$mood"
    expect_code 1
    expect_words err "policy program 'sh program.sh', epoch 1" "$words" "--resume $mood goes on with it"
    echo answers >mood
    esper grow --resume "$mood" --policy-cmd "sh program.sh" --policy-deadline 60 --progress none
    expect_code 0
    expect_words out "no seed germinated"
done <<'END'
dies|60|it ended without an answer, exit status 3
hangs|0.3|no answer before the deadline
babbles|60|its answer is no JSON
END

# ---- runs and checkpoints of others
esper train synth "${small[@]}" --run-dir fixed
esper grow --resume fixed
expect_code 2
expect_words err "is of a run that does not grow" "esper train --resume"
esper grow --resume fixed --static-control
expect_code 2
expect_words err "is of a run that does not grow"
esper replay fixed
expect_code 2
expect_words err "does not grow"
esper grow fashion --resume moved
expect_code 2
expect_words err "is a run of synth, not of fashion"
esper grow --resume moved --lr 0.7
expect_code 2
expect_words err "lr is " "cannot become 0.7"
esper grow --resume moved --policy random
expect_code 2
expect_words err "policy is scripted" "cannot become random"

# ---- the governor remembers over a resume what it would have remembered: the second fault is met on the same rung

drill="--policy none --schedule constant --max-steps 10 --batch 32 --seed 3 --inject 4:host:param:nan,14:host:param:nan"
esper grow synth $drill --epochs 2 --run-dir two-faults --progress none
expect_code 0
hash=$(weights_of)
esper grow synth $drill --epochs 1 --run-dir one-fault --progress none
expect_code 0
esper grow --resume one-fault --epochs 2 --progress none
expect_code 0
expect_equal "weights of the run resumed between two faults" "$(weights_of)" "$hash"

# ---- a run that the governor stopped is made again up to there

esper grow synth --policy none --max-steps 10 --batch 32 --epochs 4 --max-rollbacks 1 --run-dir given-up --progress none \
    --inject 4:host:param:nan,14:host:param:nan,24:host:param:nan
expect_code 1
expect_words err "the governor stopped the run"
esper replay given-up
expect_code 0
expect_words out "weights equal"

finish
