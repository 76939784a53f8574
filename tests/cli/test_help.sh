#!/usr/bin/env bash
# ctest: cost=20
# Help tells of everything that exists and of nothing that does not; info tells what is in force and where it came from.
. "$SOURCE_DIR/tests/cli/common.sh"

# ---- the front page
esper --help
expect_code 0
expect_words out "usage: esper COMMAND" "esper grow fashion" "esper COMMAND --help"
front=$out
esper -h
expect_equal "esper -h" "$out" "$front"
esper help
expect_equal "esper help" "$out" "$front"
esper
expect_code 2
expect_equal "esper alone" "$out" "$front"
for flag in --version -V version; do
    esper $flag
    expect_code 0
    expect_words out "esper 0."
done

# ---- commands: those that are listed, and no others that a reader might look for
commands=$(sed -n 's/^  esper \([a-z]*\) .*/\1/p' <<<"$front")
expect_equal "commands" "$(tr '\n' ' ' <<<"$commands")" "grow learn train eval inspect predict export report replay compare runs watch serve info bench "
for command in infer; do
    expect_no_word front "esper $command "
    esper "$command"
    expect_code 2
    expect_words err "no command is called '$command'"
done

esper help trian
expect_code 2
expect_words err "no command is called 'trian'" "did you mean 'train'"

# ---- each flag that a command's help names is taken, and only asks for its value
brief=no
is_brief && brief=yes # one start of the program for each flag: some commands have a hundred
for command in $commands; do
    esper "$command" --help
    expect_code 0
    expect_words out "usage: esper $command"
    help=$out
    esper "$command" -h
    expect_equal "esper $command -h" "$out" "$help"
    esper help "$command"
    expect_equal "esper help $command" "$out" "$help"
    case "$brief $command" in "yes grow" | "yes learn" | "yes train" | "yes compare") continue ;; esac
    for flag in $(grep -oE '(^|[ (])--[a-z][a-z0-9-]*' <<<"$help" | tr -d ' (' | sort -u); do
        case $flag in
        --no-*) esper "$command" --help "$flag" ;; # --help with it, so that nothing is run
        *) esper "$command" --help "$flag=1" ;;
        esac
        expect_no_word err "there is no option"
        expect_no_word err "takes no $flag"
    done
done

# ---- every key of the configuration is a flag of the commands whose runs it can change, and of no others
for flags in "train" "grow --grow" "learn --learn"; do
    read -r command flags <<<"$flags"
    esper info config --all $flags
    expect_equal "keys of the configuration" "$(($(grep -c '^[a-z_0-9]* *= ' <<<"$out") > 70))" 1
    taken=$(grep -v "that is a setting of" <<<"$out" | sed -n 's/^\([a-z_0-9]*\) *= .*/\1/p')
    others=$(grep "that is a setting of" <<<"$out" | sed -n 's/^\([a-z_0-9]*\) *= .*/\1/p')
    esper $command --help
    for key in $taken; do
        expect_words out "--${key//_/-}"
    done
    for key in $others; do
        expect_no_word out "  --${key//_/-} "
    done
    [ "$command" != grow ] || of_growth=$taken
done
esper compare --help
for key in $of_growth; do
    case $key in
    policy | patience | run_dir | progress | comm | rank_deadline | join_deadline | sync_norm) expect_no_word out "  --${key//_/-} " ;;
    *) expect_words out "--${key//_/-}" ;;
    esac
done
esper learn --help
expect_words out "--resume RUN" "--envs N" "[default 16"
# its own defaults, where they are not those of grow
words=$(tr -s ' \n' ' ' <<<"$out")
expect_words words "merit, permissive its safety alone. [default permissive]" "Empty: runs/learn-<task>-<date>-<n>."
expect_no_word words "[default trials]"
expect_no_word words "Empty: runs/<task>"
expect_no_word words "Sets policy = command"
esper grow --help
words=$(tr -s ' \n' ' ' <<<"$out")
expect_words words "merit, permissive its safety alone. [default strict]" "Empty: runs/<task>-<date>-<n>." "[default trials]"
esper grow --help
expect_words out "trials " "heuristic " "scripted " "G2" "--static-control" "--reward-weights" "--trial-share X"
for command in grow compare train; do
    esper $command synth --ppo-lr 0.1
    expect_code 2
    expect_words err "esper $command takes no --ppo-lr: that is a setting of \`esper learn\`"
done
esper train synth --reward sparse
expect_code 2
expect_words err "esper train takes no --reward: that is a setting of \`esper grow\`"
esper train --help
expect_words out "--resume" "--config" "--no-flip" "[default 128; a whole number of samples from 1 to 65536]" \
    "ESPER_WEIGHT_DECAY"

# ---- info: all, and each topic that its help names
esper info
expect_code 0
expect_words out "backends" "cpu" "ref" "null" "kernels of the cpu backend here:" "tasks" "fashion" "chars" \
    "TOPIC is backends, ops, tasks, lists, blueprints, hosts, features, rewards, config, net, plan or data"
expect_no_word out "configuration in force"
expect_no_word out "conv2d"
esper info --help
topics=$(sed -n 's/^  \([a-z]*\)  .*/\1/p; s/^  \([a-z]*\) \[TASK\].*/\1/p' <<<"$out")
expect_equal "topics" "$(echo $topics)" "backends ops tasks lists blueprints hosts features rewards config net plan"
for topic in $topics; do
    case $topic in
    config | net | plan) esper info "$topic" synth ;;
    *) esper info "$topic" ;;
    esac
    expect_code 0
    expect_equal "esper info $topic says something" "$((${#out} > 100))" 1
done
esper info config fashion --epochs 7
expect_words out "# configuration in force for fashion in \`esper train\`; others: --grow, --learn"
expect_equal "steps of an epoch when it trains" "$(sed -n 's/^max_steps *= *\([0-9]*\).*/\1/p' <<<"$out")" 0
esper info config fashion --grow --epochs 7
expect_code 0
expect_words out "# configuration in force for fashion in \`esper grow\`"
expect_equal "steps of an epoch when it grows" "$(sed -n 's/^max_steps *= *\([0-9]*\).*/\1/p' <<<"$out")" 200
expect_equal "a flag lies over both" "$(sed -n 's/^epochs *= *\([0-9]*\).*/\1/p' <<<"$out")" 7
esper info config synth --learn
expect_code 0
expect_words out "in \`esper learn\`" "rounds " "ppo_lr "
esper info net synth --grow
expect_code 0
esper info ops
expect_words out "conv2d" "softmax_xent"
esper info blueprints
expect_words out "cnn blueprints" "transformer blueprints" "conv_heavy"
esper info features
expect_code 0
expect_words out "41 values of the run and 71 of each slot" "17-23   last_op" "fork_blueprint" "30      epochs_total" "gradient_health_before"
esper info net synth
expect_words out "conv2d" "batch_norm" "max_pool" "linear" "blocks.0.conv.weight"
esper info plan synth_text --layers 4 --batch 2
expect_words out "plan of synth_text: batches of 2" "forward" "backward" "attention" "memory:"
esper info tasks
expect_words out '+ synth ' '- tinystories'
ESPER_KERNELS=portable esper info backends
expect_words out "kernels of the cpu backend here: portable"
ESPER_KERNELS=nonsense esper info backends
expect_words out "none (see ESPER_KERNELS)"

# ---- where each value came from
printf '# mine\nlr = 0.3\nbatch = 64\nmomentum = 0.5\n' >my.conf
export ESPER_BATCH=32 ESPER_WEIGHT_DECAY=0.25
esper info config synth_text --config my.conf --epochs 7 --flip --all
expect_code 0
source_of() { # KEY VALUE SOURCE
    expect_equal "source of $1" "$(sed -n "s/^$1 *= //p" <<<"$out" | tr -s ' ')" "$2 # $3"
}
expect_words out "configuration in force for synth_text"
source_of epochs 7 "flag --epochs"
source_of flip true "flag --flip; no effect: its host is a transformer"
source_of batch 32 "environment ESPER_BATCH"
source_of weight_decay 0.25 "environment ESPER_WEIGHT_DECAY"
source_of lr 0.3 "my.conf:2"
source_of momentum 0.5 "my.conf:4; no effect: the optimiser is adamw"
source_of optimizer adamw "preset synth_text"
source_of context 32 "preset synth_text"
source_of beta1 0.9 "default"
unset ESPER_BATCH ESPER_WEIGHT_DECAY
ESPER_CONFIG=my.conf esper info config synth_text
source_of lr 0.3 "my.conf:2"
source_of batch 64 "my.conf:3"
esper info config
expect_words out "configuration in force for fashion"
expect_equal "help and info leave nothing behind" "$(ls)" "$(printf 'err.txt\nmy.conf\nout.txt')"

finish
