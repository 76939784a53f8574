#!/usr/bin/env bash
# ctest: timeout=120 cost=7
# Wrong commands, flags, values, configuration files and variables: each with a clear message, exit status 2, no trace.
. "$SOURCE_DIR/tests/cli/common.sh"

# ---- commands, tasks, topics, flags: with the nearest name that exists
refused 2 "no command is called 'trian'|did you mean 'train'|esper --help" trian
refused 2 "no command is called 'xyzzy'|esper --help" xyzzy
refused 2 "no task is called 'fashoin'|did you mean 'fashion'|cifar_baseline|synth" train fashoin
refused 2 "no task is called 'qqqq'|There are: fashion" train qqqq
refused 2 "no task is called 'synht'|synth" info config synht
refused 2 "no topic is called 'conifg'|did you mean 'config'|esper info --help" info conifg
refused 2 "no option '--epoch'|did you mean '--epochs'" train synth --epoch 3
refused 2 "no option '--xyzzy'|--help" train synth --xyzzy
refused 2 "no option '-x'" train synth -x
refused 2 "no option '--learning-rate'|did you mean '--lr'" train synth --learning-rate 0.1
refused 2 "no option '--output'|did you mean '--run-dir'" train synth --output mine
refused 2 "no option '--gpu'|did you mean '--backend'" train synth --gpu
refused 2 "--no-flip takes no value" train synth --no-flip=1
refused 2 "no option '--spilt'|did you mean '--split'" eval last --spilt test
refused 2 "no benchmark is called 'tran'|esper bench --help" bench tran
refused 2 "no split is called 'tets'|train, valid and test" eval last --split tets
refused 2 "too much|esper train --help" train synth fashion
refused 2 "too much" info config synth more
refused 2 "--grow and --learn are for config, net and plan" info ops --grow
refused 2 "--grow and --learn are for config, net and plan" info ops --learn
refused 2 "--all is for" info net synth --all
refused 2 "one of them" info config synth --grow --learn
refused 2 "--grow is for \`esper info config\`" info --grow
refused 2 "expected one run or checkpoint, got 0|esper eval --help" eval
refused 2 "expected one run or checkpoint, got 2" eval a b
refused 2 "expected one run or file, got 0" inspect
refused 2 "expected the name of a benchmark" bench

# ---- flags that exist, but not for this command
refused 2 "esper eval takes no --lr|--help" eval last --lr 0.1
refused 2 "esper eval takes no --epochs" eval last --epochs 3
refused 2 "esper inspect takes no --threads" inspect last --threads 2
refused 2 "esper bench takes no --batch" bench train --batch 7

# ---- values
refused 2 "--batch zero|a whole number of samples from 1 to 65536" train synth --batch zero
refused 2 "--batch 0|out of range|1 to 65536" train synth --batch 0
refused 2 "--batch 65537|out of range" train synth --batch=65537
refused 2 "--batch 1.5|whole number" train synth --batch 1.5
refused 2 "--batch 99999999999999999999|out of range" train synth --batch 99999999999999999999
refused 2 "--lr fast|a number" train synth --lr fast
refused 2 "--lr 0|out of range|above 0" train synth --lr 0
refused 2 "--lr nan|a number" train synth --lr nan
refused 2 "--lr inf|a number" train synth --lr inf
refused 2 "--seed -1|whole number" train synth --seed=-1
refused 2 "--optimizer adam|did you mean 'adamw'" train synth --optimizer adam
refused 2 "--backend gpu|cuda" train synth --backend gpu
refused 2 "--flip maybe|true or false" train synth --flip=maybe
refused 2 "--momentum 1|out of range|below 1" train synth --momentum 1
refused 2 "--valid-fraction 0.9|out of range" train synth --valid-fraction 0.9
refused 2 "--warmup 1e15|out of range|1000000" train synth --warmup 1e15
refused 2 "--epochs expects a value" train synth --epochs
refused 2 "--epochs expects a value, not '--lr'" train synth --epochs --lr 0.1
refused 2 "--resume expects a value" train --resume
refused 2 "--config expects a value" train synth --config
refused 2 "--json takes no value" eval last --json=yes

# ---- values that do not go together
refused 2 "kernel 4|odd" train synth --kernel 4
refused 2 "width 30|4 heads" train synth_text --width 30
refused 2 "3 layers|2 segments|--segments 1 or 3" train synth_text --layers 3
refused 2 "6 pools|32x32|--pools 5 or fewer" train synth --blocks 6 --channels 1 --pools 6
refused 2 "batch norm|larger --batch" train synth --batch 1 --blocks 6 --pools 5 --channels 1

# ---- more than the memory there is
if "$ESPER" --version | grep -q sanitizers; then
    echo "skipped: sanitizers do not live with a limit on memory"
else
    limit=$(ulimit -S -v)
    ulimit -S -v 2000000
    refused 1 "bytes for the weights|smaller network" train synth --blocks 8 --channels 512 --pools 2
    refused 1 "bytes for the activations|smaller batch" train synth --batch 65536 --channels 64 --kernel 1 --blocks 2
    ulimit -S -v "$limit"
fi

# ---- a batch larger than the data is one short batch, no failure
esper train synth --threads 1 --blocks 2 --channels 1 --train-limit 10 --batch 500 --epochs 1 --run-dir large-batch
expect_code 0
expect_words out "10 images to train on" "1/1"
rm -rf large-batch runs

# ---- configuration files: the place is named
config_refused() { # "words" LINE...
    local words=$1
    shift
    printf '%s\n' "$@" >my.conf
    refused 2 "$words" train synth --config my.conf
}
config_refused "my.conf:2: there is no key 'bacth'|did you mean 'batch'" "lr = 0.1" "bacth = 3"
config_refused "my.conf:3: 'lr' is set already on line 1" "lr = 0.1" "# again" "lr = 0.2"
config_refused "my.conf:1: lr = fast|a number" "lr = fast"
config_refused "my.conf:1: batch = 0|out of range" "batch = 0"
config_refused "my.conf:1: expected a line 'key = value'" "batch"
config_refused "my.conf:1: there are no sections" "[train]" "lr = 1"
printf 'lr = 0.1\0\n' >my.conf
refused 2 "my.conf:1: a zero byte" train synth --config my.conf
refused 1 "absent.conf|No such file" train synth --config absent.conf
mkdir a-directory
refused 1 "a-directory" train synth --config a-directory

# ---- environment
variable_refused() { # NAME=VALUE "words" [ARGUMENTS]
    export "${1?}"
    refused 2 "$2" "${@:3}"
    unset "${1%%=*}"
}
variable_refused ESPER_LR=abc "environment variable ESPER_LR=abc|a number" train synth
variable_refused ESPER_BATCH=0 "ESPER_BATCH=0|out of range" train synth
variable_refused ESPER_BACTH=3 "ESPER_BACTH names no configuration key|did you mean 'ESPER_BATCH'" train synth
variable_refused ESPER_XYZZYQQ=3 "ESPER_XYZZYQQ|unset it" train synth
variable_refused ESPER_lr=0.1 "ESPER_lr|did you mean 'ESPER_LR'" train synth
variable_refused ESPER_KERNELS=nonsense "ESPER_KERNELS|portable" train synth
printf 'esper-tune 1\navx2 linear.y\n' >bad.table
variable_refused ESPER_TUNE=bad.table "bad.table:2: expected a kernel set, a work and 6 ways" train synth
printf 'batch = 3\n' >bad.table
variable_refused ESPER_TUNE=bad.table "bad.table: not a tune table" train synth
export ESPER_TUNE=absent.table
refused 1 "absent.table|No such file" train synth
unset ESPER_TUNE
refused 2 "--out is for tune" bench train.cnn_small --out x.table
refused 2 "neither --device nor --paced" bench tune --paced
refused 2 "no benchmark is called 'tune.linear.z'" bench tune.linear.z
variable_refused ESPER_BATCH=x "ESPER_BATCH=x" info
printf 'batch = 0\n' >my.conf
variable_refused ESPER_CONFIG=my.conf "my.conf:1: batch = 0" train synth

# ---- output that cannot be written
if [ -w /dev/full ]; then
    "$ESPER" info >/dev/full 2>err.txt
    code=$? err=$(cat err.txt) last="esper info >/dev/full" out=
    expect_code 1
    expect_words err "standard output"
else
    echo "skipped: /dev/full is not here"
fi

finish
