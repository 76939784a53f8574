#!/usr/bin/env bash
# ctest: cost=15
# Settings that cannot have an effect: a flag is refused with the reason and what to do, environment and files are told by name.
# (Which those are is tried setting by setting in tests/run/test_settings.c.)
. "$SOURCE_DIR/tests/cli/common.sh"

see() { echo "or see \`esper info config $* --all\`"; }

# ---- flags
refused 2 "--data has no effect on synth: its data is synthetic; leave it out, $(see synth)" train synth --data X
refused 2 "--layers has no effect on fashion: its host is convolutional; leave it out, $(see fashion)" \
    train fashion --layers 9 --width 16
refused 2 "--crop has no effect on chars: its host is a transformer; leave it out, $(see chars)" train chars --crop 2 --flip
refused 2 "--flip has no effect on synth_text" train synth_text --no-flip
refused 2 "--lr-min has no effect on synth: the schedule is constant; leave it out, give --schedule hold, $(see synth)" \
    train synth --lr-min 0.1
refused 2 "--fall has no effect on synth: the schedule does not hold the rate|give --schedule hold" \
    train synth --schedule cosine --fall 0.5
refused 2 "--flops has no effect on synth: its length is a number of epochs|give --length flops" \
    grow synth --length epochs --flops 1e9
refused 2 "--epochs has no effect on synth: its length is given in FLOPs|leave out --flops" train synth --flops 1e9 --epochs 2
refused 2 "esper train takes no --length" train synth --length epochs
echo "lr_finish = 2" >old.ini
refused 2 "lr_finish is no setting any more: set schedule = hold, and fall" train synth --config old.ini
refused 2 "--momentum has no effect on synth_text: the optimiser is adamw|give --optimizer sgd" train synth_text --momentum 0.5
refused 2 "--beta1 has no effect on synth: the optimiser is sgd" train synth --beta1 0.5
refused 2 "--snapshot-every has no effect on synth: the guard is off" train synth --no-guard --snapshot-every 5
refused 2 "--sync-norm has no effect on synth: it is a job of one process|mpirun" train synth --sync-norm
refused 2 "--rank-deadline has no effect" grow synth --rank-deadline 5
refused 2 "--plateau-epochs has no effect on synth: the heuristic does not decide|$(see synth --grow)" \
    grow synth --policy random --plateau-epochs 3
refused 2 "--gates has no effect on synth: nobody decides about seeds" grow synth --policy none --gates strict
refused 2 "--policy-deadline has no effect on synth: no program decides|name one with --policy-cmd" grow synth --policy-deadline 5
refused 2 "--ppo-lr has no effect on synth: a program learns|$(see synth --learn)" learn synth --policy-cmd true --ppo-lr 0.1
refused 2 "esper train takes no --gates: that is a setting of \`esper grow\`, \`esper learn\` and \`esper compare\`" \
    train synth --gates strict
refused 2 "esper learn takes no --checkpoint-every: that is a setting of \`esper train\`, \`esper grow\` and \`esper compare\`" \
    learn synth --checkpoint-every 2
refused 2 "esper train takes no --rounds: that is a setting of \`esper learn\`" train synth --rounds 2
refused 2 "esper compare takes no --progress" compare synth --progress none
refused 2 "--policy-cmd has no effect on synth: no program is compared|command" compare synth --policy-cmd true
refused 2 "--max-seeds has no effect on synth: nobody decides|name one that grows among --policies" \
    compare synth --policies none --max-seeds 2
refused 2 "--decisions has no effect|leave it out, name \`scripted\` among --policies, or" \
    compare synth --policies none,random --decisions X
refused 2 "--inject has no effect on synth: its first fault waits for a seed" grow synth --policy none --inject 3:seed:param:nan
refused 2 "--layers has no effect on synth" info config synth --layers 4
refused 2 "--layers has no effect on synth" info net synth --layers 4
refused 2 "--layers has no effect on synth: its host is convolutional" train synth --layers 4 # the default is refused like others

# ---- one that decides whether the host opens
refused 2 "segments" train synth_text "${small_text[@]}" --layers 3
esper train synth_text "${small_text[@]}" --layers 3 --segments 3 --run-dir divided
expect_code 0

# ---- and one that decides what a launcher's processes are
OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 esper train synth "${small[@]}" --comm self --run-dir several
expect_code 2
expect_words err "comm = self, and a launcher has started several processes"

# ---- topics of `esper info` that are the same for every task
refused 2 "--lr is for config, net, plan and data" info tasks --lr 5
refused 2 "--lr is for config, net, plan and data" info --lr 5
refused 2 "is the same for all tasks: 'synth' is too much" info backends synth
refused 2 "is the same for all tasks: 'nope' is too much" info rewards --reward sparse nope

# ---- a limit below the host
refused 2 "--max-params 100 is less than the host of synth has by itself, 6418: nothing could grow" grow synth --max-params 100
refused 2 "--max-params 100 is less" learn synth --max-params 100
refused 2 "--max-params 100 is less" compare synth --max-params 100
refused 2 "--max-params 6418 leaves no room for a seed: the host of synth has 6418 by itself, and the smallest 17: nothing could grow" \
    grow synth --max-params 6418
refused 2 "--max-params 6434 leaves no room" grow synth --max-params 6434
ESPER_MAX_PARAMS=100 refused 2 "max_params = 100 (environment ESPER_MAX_PARAMS) is less" compare synth

# ---- environment and files are told by name, in one line for each reason, and change nothing
esper train synth "${small[@]}" --run-dir plain
expect_code 0
expect_equal "nothing to tell" "$err" ""
weights=$(grep weights <<<"$out")
printf 'layers = 9\nlr_min = 0.1\nembargo = 3\nblocks = 2\n' >my.conf
ESPER_WIDTH=16 ESPER_DROPOUT=0 esper train synth "${small[@]}" --config my.conf --run-dir told
expect_code 0
expect_words err "esper: warn: lr_min (my.conf:2) has no effect on synth: the schedule is constant" \
    "esper: warn: embargo (my.conf:3) has no effect on synth: that is a setting of \`esper grow\`" \
    "layers (my.conf:1), width (environment ESPER_WIDTH), dropout (environment ESPER_DROPOUT) have no effect on synth: its host is convolutional"
expect_equal "lines" "$(wc -l <err.txt)" 3
expect_no_word err "blocks"
expect_equal "weights" "$(grep weights <<<"$out")" "$weights"
ESPER_WIDTH=16 esper train synth "${small[@]}" --log-level error --run-dir quiet
expect_equal "--log-level error" "$err" ""
ESPER_MAX_PARAMS=100 esper grow synth "${small[@]}" --policy random --run-dir crowded --progress none --log-level warn
expect_code 0
expect_words err "max_params = 100 (environment ESPER_MAX_PARAMS) is less than the host of synth has by itself"

# ---- the record of a run is a file like others, but names every setting: only what is not usual is told
esper train synth --config plain/config.ini --run-dir again
expect_code 0
expect_equal "the record of the same task" "$err" ""
expect_equal "weights again" "$(grep weights <<<"$out")" "$weights"

# ---- what a run has on record is not judged; what is given when it is resumed is
ESPER_WIDTH=16 esper train synth "${small[@]}" --run-dir recorded 2>/dev/null
esper train --resume recorded --epochs 3
expect_code 0
expect_equal "a resumed run" "$err" ""
refused 2 "--width has no effect on synth" train --resume recorded --epochs 4 --width 16
refused 2 "--data has no effect on synth" train --resume recorded --epochs 4 --data X
ESPER_DATA=X esper train --resume recorded --epochs 4
expect_code 0
expect_words err "data (environment ESPER_DATA) has no effect on synth: its data is synthetic"
ESPER_LAYERS=9 ESPER_LR_MIN=0.1 esper train --resume recorded --epochs 5
expect_code 0
expect_words err "layers (environment ESPER_LAYERS) has no effect on synth" "lr_min (environment ESPER_LR_MIN) has no effect"
printf 'layers = 4\n' >usual.conf # as the task has it; the record may have another
ESPER_LAYERS=9 esper train synth "${small[@]}" --run-dir nine --log-level error
esper train --resume nine --epochs 3 --config usual.conf
expect_code 0
refused 2 "lr is 0.05 in the run being resumed and cannot become 0.5" train --resume recorded --epochs 6 --lr 0.5
refused 2 "plant is '' in the run being resumed and cannot become r0c0:norm" train --resume recorded --epochs 6 --plant r0c0:norm
refused 2 "--beta1 has no effect on synth: the optimiser is sgd; leave it out, or see" train --resume recorded --epochs 6 --beta1 0.5
refused 2 "is of a run that grows: go on with \`esper grow --resume\`" train --resume crowded --beta1 0.5
for command in "eval recorded" "export recorded --safetensors out.safetensors" "replay crowded"; do
    # shellcheck disable=SC2086
    ESPER_BETA1=0.5 esper $command
    expect_code 0
    expect_words err "beta1 (environment ESPER_BETA1) has no effect on synth: the optimiser is sgd"
done
refused 2 "--data has no effect on synth" eval recorded --data X
refused 2 "--data has no effect on synth" export recorded --data X --torch nowhere
refused 2 "--data has no effect on synth" replay crowded --data X
ESPER_BETA1=0.7 esper learn synth "${small[@]}" --epochs 3 --envs 1 --rounds 1 --policy-width 8 --run-dir learned --progress none --log-level error
expect_code 0
refused 2 "--data has no effect on synth" learn --resume learned --rounds 2 --data X
ESPER_POLICY_CMD=true esper learn --resume learned --rounds 2 --progress none
expect_code 0
expect_words err "policy_cmd (environment ESPER_POLICY_CMD) has no effect on synth: a program that learns is named by the flag"

# ---- what a policy has not met because it had no effect there, it does not miss
esper grow synth "${small[@]}" --epochs 3 --policy learned/policy.safetensors --batch 4 --run-dir by-learned --progress none
expect_code 0
expect_words err "the policy was trained with batch = 8, here 4"
expect_no_word err "beta1"

# ---- a comparison serves all of its lines, and its runs get what matters to each
ESPER_LAYERS=9 esper compare synth "${small[@]}" --policies none,random --seeds 1 --jobs 1 --dir compared --blocks 2 --max-seeds 1
expect_code 0
expect_words err "layers (environment ESPER_LAYERS) has no effect on synth"
esper compare synth "${small[@]}" --policies none,random --seeds 1 --jobs 1 --dir compared --blocks 2 --max-seeds 1
expect_code 0
expect_equal "runs that were there" "$(grep -c "(was there)" <<<"$out")" 2 # the third is one of them

# ---- info shows what can have an effect, and with --all the rest
esper info config synth_text
expect_code 0
expect_no_word out "no effect:"
expect_no_word out "momentum"
expect_words out "beta1 " "layers "
esper info config synth_text --all --flip
expect_code 0
expect_words out "flag --flip; no effect: its host is a transformer" "no effect: the optimiser is adamw"

finish
