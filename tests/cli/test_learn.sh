#!/usr/bin/env bash
# ctest: timeout=300 cost=6 labels=noasan
# esper learn from the outside: its progress and closing lines, stopped and killed and gone on with bit for bit, its policy in
# a run that grows, and what is refused.
. "$SOURCE_DIR/tests/cli/common.sh"

tiny=(--threads 1 --batch 8 --blocks 2 --channels 2 --max-steps 2 --epochs 3 --envs 2 --policy-width 8 --ppo-chunk 3
    --ppo-epochs 2)
learn=(learn synth "${tiny[@]}" --rounds 4)

expect_same() { # WHAT FILE FILE
    n_checks=$((n_checks + 1))
    cmp -s "$2" "$3" || bad "$1: $2 and $3 differ" "$(cmp "$2" "$3" 2>&1)"
}

# ---- refused, with nothing left behind
refused 2 "--envs 0: out of range, expected a whole number of environments from 1 to 1024" "${learn[@]}" --envs 0
refused 2 "policy_width is 12|multiple of 8" "${learn[@]}" --policy-width 12
refused 2 "reward: no mode is called 'sprase'|did you mean 'sparse'|There are: " "${learn[@]}" --reward sprase
refused 2 "reward: no mode is called 'nonsense'|There are: |gain, |escrow" "${learn[@]}" --reward nonsense
refused 2 "reward_weights: |rent_wieght|did you mean 'rent_weight'" "${learn[@]}" --reward-weights rent_wieght=0.2
refused 2 "reward_weights: 'nonsense' is no name=value" "${learn[@]}" --reward-weights nonsense
refused 2 "reward_weights: rent_weight: 'much' is no number" "${learn[@]}" --reward-weights rent_weight=much
refused 2 "1 epochs leaves nothing to decide" "${learn[@]}" --epochs 1
refused 2 "no task is called 'sinth'|did you mean 'synth'" learn sinth
refused 2 "one task at a time: 'chars' is too much" learn synth chars
refused 2 "rounds" learn synth --rounds 0
refused 2 "takes no --policy: it says who decides, and here a policy learns to" "${learn[@]}" --policy random

# ---- a program that learns outside: told of episodes and rewards, and asked about every environment
learning_outside() {
cat >outside.py <<'EOP'
import json, sys
log = open("outside.log", "w")
for line in sys.stdin:
    view = json.loads(line)
    print(json.dumps(dict(view["episode"], epoch=view["epoch"])), file=log, flush=True)
    print(json.dumps({"epoch": view["epoch"], "op": "wait"}), flush=True)
EOP
esper learn synth --epochs 4 --max-steps 2 --batch 8 --envs 3 --rounds 2 --policy-cmd "python3 outside.py" --run-dir outside \
    --progress plain
expect_code 0
expect_words out "which learns by itself" "2/2" "2 rounds, 6 episodes" "records   outside/store.sqlite" \
    "next      $ESPER report outside"
expect_equal "views: 4 and the last once more, of 3 environments in 2 rounds" "$(wc -l <outside.log)" 30
expect_equal "ends of episodes" "$(grep -c '"over": true' outside.log)" 6
expect_equal "episodes" "$(grep -o '"number": [0-9]*' outside.log | sort -u | wc -l)" 6
expect_equal "first views have no reward" "$(grep '"epoch": 1}' outside.log | grep -c '"reward": null')" 6
expect_equal "all others have one" "$(grep -v '"epoch": 1}' outside.log | grep -c '"reward": null')" 0
esper learn synth --epochs 2 --max-steps 2 --batch 8 --envs 3 --rounds 2 --host-seeds 2 --policy-cmd "python3 outside.py" \
    --run-dir outside.shared --progress none
expect_code 0
expect_equal "seeds that episodes share, as it was told" "$(grep -o '"seed": "[0-9]*"' outside.log | sort -u | wc -l)" 2
esper learn --resume outside
expect_code 1
expect_words err "outside holds no run that could go on: a program learned there"
esper report outside
expect_code 0
expect_words out "run       outside, 2 rounds" "written   outside/report.html"
page=$(cat outside/report.html)
expect_words page "synth: a program that learns" "python3 outside.py" "From the first round to the last of 2 the mean return " \
    'id="return-t"' 'id="accuracy-t"' 'id="params-t"' "how it moved is not known here"
expect_no_word page 'id="entropy-t"'
expect_no_word page "Explained"
expect_no_word page nan
expect_equal "rounds on the page" "$(grep -c '<tr><td class="n">[12]</td>' outside/report.html)" 2
n_checks=$((n_checks + 1))
if command -v xmllint >/dev/null; then
    xmllint --noout outside/report.html 2>err.txt || bad "outside/report.html is not well-formed" "$(head -n 5 err.txt)"
fi
esper inspect outside
expect_code 1
expect_words err "outside is a run of \`esper learn\` in which a program learned" "esper report outside"
esper learn synth --policy-cmd "python3 outside.py" --run-dir outside
expect_code 2
expect_words err "outside already holds a run"
esper grow synth --policy outside
expect_code 2
expect_words err "policy: outside holds no policy: a program learned there" "--policy-cmd COMMAND"
# examples/learner.py learns from two rounds; and the example of a view in the docs has the members of those it was sent
esper learn synth --epochs 8 --gate-epochs 1 --max-steps 2 --batch 8 --envs 2 --rounds 2 --run-dir example --progress none \
    --policy-cmd "tee views.jsonl | python3 '$SOURCE_DIR/examples/learner.py'"
expect_code 0
expect_words out "2 rounds, 4 episodes"
expect_equal "episodes it learned from" "$(grep -c '^learner: [a-z_]* earned -\?[0-9.]*$' err.txt)" 4
cat >members.py <<'EOP'
import json, re, sys
def members(value, path=""):
    if isinstance(value, dict) and not path.endswith(".blueprints"):
        return {name for key in value for name in members(value[key], path + "." + key)}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {name for each in value for name in members(each, path + "[]")}
    return {path + ("" if value is None else ":" + ("number" if isinstance(value, float) else type(value).__name__.replace("int", "number")))}
page = open(sys.argv[1]).read()
told = members(json.loads(re.search(r"<!-- a view:.*?```json\n(.*?)```", page, re.S)[1]))
sent = {name for line in open(sys.argv[2]) for name in members(json.loads(line))}
names = lambda those: {name.split(":")[0] for name in those}
print("not sent:", sorted(told - sent), "not told:", sorted(names(sent) - names(told) - {".slots[].seed"}))
EOP
if [ -e "$SOURCE_DIR/docs/policy-protocol.md" ]; then
    expect_equal "members of the view" "$(python3 members.py "$SOURCE_DIR/docs/policy-protocol.md" views.jsonl)" "not sent: [] not told: []"
else
    echo "skipped: the documentation is not here"
fi
rm -rf example views.jsonl members.py
esper learn synth --epochs 4 --max-steps 2 --batch 8 --envs 1 --rounds 1 --policy-cmd false --run-dir silent --progress none
expect_words err "false"
rm -rf outside outside.* silent
}
if python3 -c pass 2>/dev/null; then
    learning_outside
else
    echo "skipped: python3 is not here to be the program that learns"
fi
refused 1 "'absent' is no run" learn --resume absent
refused 1 "no run below runs/ yet|esper learn" learn --resume last
refused 2 "there is no option '--rond'; did you mean '--rounds'" learn synth --rond 3

# ---- a run: what it says
flags="--length=epochs --batch=8 --max-steps=2 --blocks=2 --channels=2" # that are not the task's, and that its networks had
esper "${learn[@]}" --run-dir whole --progress plain
expect_code 0
expect_equal "standard error of a run" "$err" "esper: warn: no seed can be kept in 3 epochs: with permissive gates and \
gate_epochs = 10 that takes 14. Ask for --epochs 14, or --gate-epochs 1 --epochs 5"
expect_words out "task      synth: hosts of " "4 slots, episodes of 3 decisions, gates permissive" "policy    " \
    "parameters, recurrent; reward gain" "fleet     2 environments on 1 thread; up to 4 rounds" "run       whole" \
    "round   return    +-  accuracy  params  kept   H op slot blue    KL  expl" "    1/4    " "    4/4    " \
    "learned   4 rounds, 8 episodes, in " "return    " "time      hosts " "waiting " "saved     whole/policy.safetensors" \
    "next      $ESPER report whole" "grow synth $flags --policy whole/policy.safetensors" \
    "compare synth $flags --policies static,random,heuristic,whole/policy.safetensors --first-seed 1001"
next=$(sed -n 's/^ *[^ ]* \(grow synth .*\)/\1/p' out.txt)
expect_equal "lines of rounds" "$(grep -cE '^ +[1-4]/4 ' out.txt)" 4
expect_equal "files of the run" "$(ls whole | tr '\n' ' ')" "config.ini policy.safetensors report.html store.sqlite "
expect_equal "shares of the time" "$(sed -n 's/^time *//p' out.txt | grep -oE '[0-9.]+ %' | awk '{ s += $1 } END { print (s > 99.5 && s < 100.5) }')" 1
expect_no_word out nan
esper "${learn[@]}" --run-dir silent --progress none
expect_code 0
expect_no_word out "1/4"
expect_words out "learned   4 rounds"
expect_same "who watches does not matter" whole/policy.safetensors silent/policy.safetensors
ESPER_POLICY=scripted ESPER_POLICY_CMD=./absent esper "${learn[@]}" --run-dir meant-for-grow --progress none
expect_code 0
expect_words err "policy (environment ESPER_POLICY) has no effect on synth" "policy_cmd (environment ESPER_POLICY_CMD) has no effect on synth: a program that learns is named by the flag --policy-cmd alone"
expect_same "who decides elsewhere does not matter" whole/policy.safetensors meant-for-grow/policy.safetensors
esper "${learn[@]}" --epochs 5 --gate-epochs 1 --rounds 1 --run-dir long-enough --progress none
expect_code 0
expect_equal "nothing to warn of" "$err" ""
esper "${learn[@]}" --run-dir bars --progress bar
expect_code 0
expect_words out $'\r' "% " "return"
esper "${learn[@]}" --run-dir other --seed 2 --progress none
expect_code 0
n_checks=$((n_checks + 1))
cmp -s whole/policy.safetensors other/policy.safetensors && bad "two seeds gave the same policy"

esper "${learn[@]}" --envs 1 --reward-weights size_price=2 --run-dir lonely --progress plain # one episode has no error of its mean
expect_code 0
expect_words out "fleet     1 environment on 1 thread" " in the last round, validation accuracy"
expect_no_word out nan
esper report lonely
page=$(cat lonely/report.html)
expect_words page "<dt>Reward</dt><dd>gain with size_price=2</dd>" "<summary>Configuration</summary>" "reward_weights = size_price=2"
esper learn synth_text "${small_text[@]}" --envs 2 --rounds 2 --run-dir text --progress none
expect_code 0
expect_words out "learned   2 rounds" "grow synth_text --" " --context=8" " --policy text/policy.safetensors"
esper inspect whole/policy.safetensors
expect_code 0
expect_words out "learned_max_epochs" "learned_features_version"
expect_equal "keys that run into their values" "$(grep -cE '^(learned_max_epochs|learned_features_version)[^ ]' out.txt)" 0
esper report whole
expect_code 0
expect_words out "whole/report.html"
rm whole/report.html

# ---- had already; held already
esper learn --resume whole
expect_code 1
expect_words err "whole/policy.safetensors has had 4 rounds, and 4 were asked for" "--rounds N" "esper grow synth --policy"
esper "${learn[@]}" --run-dir whole
expect_code 2
expect_words err "whole already holds a run" "--resume whole"
esper train --resume whole
expect_code 1
expect_words err "whole is a run of \`esper learn\`" "policy.safetensors"
esper learn --resume whole --rounds 6 --envs 3
expect_code 2
expect_words err "envs is 2 in the run being resumed and cannot become 3"
esper learn synth_text --resume whole --rounds 6
expect_code 2
expect_words err "learned on synth, not on synth_text"
cp -r whole more
esper learn --resume more --rounds 6 --progress none
expect_code 0
expect_words out "learned   6 rounds, 12 episodes"

# ---- its policy grows networks, in the gate mode it was trained with
esper $next --run-dir followed --progress none
expect_code 0
expect_equal "what was printed fits: $next" "$(grep -v "no seed can be kept" err.txt)" ""
esper compare synth $flags --threads 1 --epochs 4 --policies whole --seeds 1 --dir compared
expect_code 0
note="the policy was trained with episodes of 3 epochs, and here 4 are for growing"
expect_equal "warned once" "$err" "esper: warn: learned: $note"
expect_words out "gates permissive for all"
expect_equal "on the page" "$(grep -cF "<p class=\"note\">learned: $note</p>" compared/report.html)" 1
expect_equal "as in the run's log" "$(grep -cF "esper: warn: $note" compared/learned-1.log)" 1
grow=(grow synth --threads 1 --batch 8 --blocks 2 --channels 2 --max-steps 2 --epochs 3 --gates permissive --progress none)
esper "${grow[@]}" --policy whole/policy.safetensors --run-dir grown
expect_code 0
expect_equal "decisions in the log" "$(grep -c '"source":"policy"' grown/decisions.jsonl)" 3
esper replay grown --progress none
expect_code 0
expect_words out "weights equal"
esper "${grow[@]}" --policy whole/ --run-dir grown-by-dir
expect_code 0
expect_words out "$("$ESPER" inspect grown | sed -n 's/^weight_hash *//p')"
expect_equal "policy in the record" "$(grep '^policy = ' grown-by-dir/config.ini)" "policy = whole/policy.safetensors"
expect_equal "lines of warning" "$(wc -l <err.txt)" 1
expect_words err "warn: no seed can be kept in 3 epochs"
esper "${grow[@]}" --policy whole --channels 4 --gates strict --run-dir grown-otherwise
expect_code 0
expect_equal "lines of warning" "$(wc -l <err.txt)" 2
expect_words err "no seed can be kept in 3 epochs: with strict gates" "the policy was trained with permissive gates, and here they are strict, as asked for; with channels = 2, here 4"
esper "${grow[@]}" --policy grown --run-dir refused
expect_code 2
expect_words err "policy: grown is a run that trained a network, and holds no policy" "\`esper learn\`"
esper "${grow[@]}" --policy whole/policy.safetensors --blocks 3 --run-dir more-slots # 6 instead of 4
expect_code 0
expect_equal "decisions about another host" "$(grep -c '"source":"policy"' more-slots/decisions.jsonl)" 3
esper grow synth_text --threads 1 --max-steps 2 --gates permissive --progress none \
    --policy whole/policy.safetensors --run-dir mismatched
[ "$code" -ne 0 ] || bad "$last" "exit status 0"
expect_words err "whole/policy.safetensors was trained for hosts of the kind cnn, this one is a transformer"

# ---- stopped and killed in the midst of a round, and gone on with: the same bytes
broken() { # SIGNAL DIR AFTER: breaks a run off once its first rounds are saved
    local after=$3
    break_off "$1" 'grep -qE "^ +$after/4 " out.txt' "$2" \
        "${learn[@]}" --max-steps 40 --run-dir "$2" --progress plain
}
esper "${learn[@]}" --max-steps 40 --run-dir unbroken --progress none
expect_code 0
broken INT stopped 1
expect_code 130
expect_words out "stopped after " " of 4 rounds; the round that was begun is lost, all before it is saved" "learn --resume stopped"
esper learn --resume stopped --progress plain
expect_code 0
expect_words out "learned   4 rounds" "    4/4    "
expect_same "stopped and resumed" unbroken/policy.safetensors stopped/policy.safetensors
for after in 1 2; do
    broken KILL killed-$after $after
    expect_code 137
    touch killed-$after/policy.safetensors.1-0.tmp # as one that was writing leaves it
    esper learn --resume killed-$after --progress none --threads 2
    expect_code 0
    expect_equal "files of the run that was killed" "$(ls killed-$after | tr '\n' ' ')" \
        "config.ini policy.safetensors report.html store.sqlite "
done
# The threads it was resumed with are in its file; all else is the same.
strip() { sed 's/threads = [12]\\n//; s/"policy_hash":"[0-9a-f]*"//' "$1"; }
for after in 1 2; do
    strip killed-$after/policy.safetensors >a.bin
    strip unbroken/policy.safetensors >b.bin
    expect_same "killed and resumed on two threads" a.bin b.bin
done
broken KILL killed 2
expect_code 137
esper learn --resume killed/policy.safetensors --progress none
expect_code 0
expect_same "killed and resumed" unbroken/policy.safetensors killed/policy.safetensors

# ---- by name
esper "${learn[@]}" --rounds 1 --envs 1 --progress plain
expect_code 0
expect_words out "up to 1 round" "learned   1 round, 1 episode, in "
expect_no_word out "1 rounds"
dir=$(ls -d runs/learn-synth-*-1)
expect_words out "saved     $dir/policy.safetensors"
esper report learn
page=$(cat "$dir/report.html")
expect_words page "In its one round the mean return was "
esper learn --resume last --rounds 2 --progress none
expect_code 0
expect_words out "learned   2 rounds" "$dir/policy.safetensors"
esper learn --resume learn-synth --rounds 3 --progress none
expect_code 0
for name in last learn-synth "${dir#runs/}"; do
    esper report "$name"
    expect_code 0
    expect_words out "run       $dir, 3 rounds" "written   $dir/report.html"
done
esper eval last
expect_code 1
expect_words err "no run below runs/ yet that trained a network" "esper train"
esper eval learn-synth
expect_code 1
expect_words err "$dir is a run of \`esper learn\`"
esper inspect learn-synth
expect_code 1
expect_words err "inspect $dir/policy.safetensors"
for name in last learn-synth; do
    esper "${grow[@]}" --policy $name --run-dir by-$name
    expect_code 0
    expect_equal "policy in the record" "$(grep '^policy = ' by-$name/config.ini)" "policy = $dir/policy.safetensors"
done
# One ships with a program where it lies beside the program's folder, and is told by its hash.
mkdir -p app/bin app/share/esper
cp "$ESPER" app/bin/esper
built=$ESPER
ESPER=$PWD/app/bin/esper
esper "${grow[@]}" --policy learned
expect_code 2
expect_words err "policy: 'learned' does not say which one" "none ships" "directory" "'last'" "file"
esper compare synth --policies none,learned
expect_code 2
expect_words err "a learned policy is compared by its file"
cp "$dir/policy.safetensors" app/share/esper/
esper "${grow[@]}" --policy learned --run-dir by-shipped
expect_code 0
expect_equal "policy in the record" "$(grep '^policy = ' by-shipped/config.ini)" \
    "policy = $(realpath app/share/esper/policy.safetensors)"
hash=$(grep -ohE 'learned [0-9a-f]{16}' by-shipped/events.jsonl | head -n 1 | cut -d ' ' -f 2)
esper info backends
expect_words out "ships with it (--policy learned)" "share/esper/policy.safetensors, hash ${hash:-that is told nowhere}"
ESPER=$built
# The one that lies in this tree is one that this program takes, and the documentation tells its hash.
esper "${grow[@]}" --policy "$SOURCE_DIR/share/esper/policy.safetensors" --run-dir by-tree
expect_code 0
hash=$(grep -ohE 'learned [0-9a-f]{16}' by-tree/events.jsonl | head -n 1 | cut -d ' ' -f 2)
n_checks=$((n_checks + 1))
grep -q "${hash:-no hash}" "$SOURCE_DIR/docs/learning.md" || bad "docs/learning.md does not tell the hash of the policy that ships, $hash"
esper compare synth --policies learn-synth --seeds 1 --threads 1 --batch 8 --blocks 2 --channels 2 --max-steps 2 --epochs 3 \
    --dir by-name
expect_code 0
expect_words out "learned: $dir/policy.safetensors"

finish
