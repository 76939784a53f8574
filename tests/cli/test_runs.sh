#!/usr/bin/env bash
# ctest: timeout=120 cost=8
# A run from the outside: what it prints, what it leaves, what eval and inspect say of it, and how it is named.
. "$SOURCE_DIR/tests/cli/common.sh"

have_python=no
python3 -c 'import json' 2>/dev/null && have_python=yes

# Every line of the text is one JSON object with these members.
expect_json() { # TEXT MEMBER...
    local text=$1 line member
    shift
    while IFS= read -r line; do
        for member in "$@"; do
            n_checks=$((n_checks + 1))
            grep -q "\"$member\":" <<<"$line" || bad "$last" "no \"$member\" in: $line"
        done
    done <<<"$text"
    n_checks=$((n_checks + 1))
    if [ $have_python = yes ]; then
        python3 -c 'import json, sys
for line in sys.stdin: assert isinstance(json.loads(line), dict)' <<<"$text" 2>/dev/null ||
            bad "$last" "not JSON: $text"
    else
        ! grep -qv '^{.*}$' <<<"$text" || bad "$last" "not JSON: $text"
    fi
}
[ $have_python = yes ] || echo "skipped: python3 is not here to read JSON; looked at its shape only"

# ---- a run
esper train synth "${small[@]}"
expect_code 0
expect_equal "standard error of a run" "$err" ""
expect_words out "synth: small synthetic images" "network   2 blocks of 2-4 channels, 3x3 kernels" \
    "parameters; a step of 8" "1,800 images to train on, 200 to validate, 500 to test" \
    " 1/2 " " 2/2 " "test      loss" "weights" "saved     runs/synth-"
next=$(sed -n 's/^next *//p' <<<"$out")
run=${next##* }
expect_equal "what to type next" "$next" "$ESPER eval $run"
expect_equal "lines of more than 78 columns" "$(grep -vF "$ESPER" out.txt | grep -cE '.{79}')" 0
trained=$(sed -n 's/^test *//p' <<<"$out")
hash=$(sed -n 's/.*weights \([0-9a-f]*\)$/\1/p' <<<"$out")
expect_equal "name of the run" "$run" "runs/synth-$(date +%Y%m%d)-1"
expect_equal "files of the run" "$(ls "$run" | tr '\n' ' ')" "best.safetensors config.ini events.jsonl last.safetensors "
expect_equal "first line of the record" "$(head -n 1 "$run/config.ini")" "# task: synth"
expect_json "$(cat "$run/events.jsonl")" v event seq time step
expect_equal "events" "$(sed 's/.*"event":"\([a-z_]*\)".*/\1/' "$run/events.jsonl" | tr '\n' ' ')" \
    "run_started checkpoint_saved epoch_ended checkpoint_saved epoch_ended checkpoint_saved run_ended "
esper info config synth --all --config "$run/config.ini" # the record is a configuration file
expect_code 0
expect_equal "record of the configuration" "$(grep -c "$run/config.ini:" <<<"$out")" "$(grep -c = "$run/config.ini")"

# ---- the record makes the same run again
esper train synth --config "$run/config.ini"
expect_code 0
expect_equal "weights of the run made again" "$(sed -n 's/.*weights \([0-9a-f]*\)$/\1/p' <<<"$out")" "$hash"
expect_equal "its name" "$(sed -n 's/^next .* eval //p' <<<"$out")" "runs/synth-$(date +%Y%m%d)-2"

# ---- eval: what train said
esper eval last
expect_code 0
expect_equal "eval of the second run" "$out" \
    "${run%1}2/last.safetensors after epoch 2: test split: $trained over 500 samples"
evaluated=${out#*: }
esper eval "$run"
expect_equal "eval of the first run" "$out" "$run/last.safetensors after epoch 2: $evaluated"
esper eval "$run/last.safetensors" --threads 3
expect_equal "eval of the file, three threads" "${out#*: }" "$evaluated"
esper eval last --batch 100
expect_equal "eval does not depend on the batch" "${out#*: }" "$evaluated"
esper eval last --split valid
expect_words out "valid split" "over 200 samples"
esper train synth "${small[@]}" --max-steps 0 --train-limit 50 --run-dir whole # validates all there is, as eval does
valid=$(sed -n 's/.*"epoch":2,.*"loss_valid":\([^,]*\),.*/\1/p' whole/events.jsonl)
esper eval whole --split valid --json
expect_json "$out" path epoch task split samples loss accuracy
expect_words out '"path":"whole/last.safetensors","epoch":2'
expect_equal "validation loss" "$(sed 's/.*"loss":\([^,]*\),.*/\1/' <<<"$out")" "$valid"
esper eval last --split train
expect_words out "train split"
esper train synth "${small[@]}" --max-steps 0 --train-limit 50 --crop 4 --flip --run-dir limited
expect_code 0
esper eval limited --split train --json # all of them, as they are: not the 48 augmented ones that an epoch trains on
expect_words out '"samples":50'
train_score=$out
esper eval limited --split train --json --batch 50
expect_equal "eval of the training split does not depend on the batch" \
    "$(cut -d, -f1-5,7 <<<"$out")" "$(cut -d, -f1-5,7 <<<"$train_score")" # all but the loss, summed in another order
esper eval last --backend ref
expect_code 0

# ---- inspect
esper inspect last
expect_code 0
expect_words out "esper-checkpoint" "format_version   1" "task             synth" "epoch 2 batch 0 step 10" \
    "weight_hash      $hash" "param/blocks.0.conv.weight" "buffer/blocks.0.bn.running_mean" \
    "moment1/classifier.bias" "tensors,"
expect_no_word out "NOT FINITE"
expect_no_word out "batch = 8"
esper inspect last --all
expect_words out "    batch = 8"

# ---- a run whose loss is lost, without a guard: said while training and at the end; what was sound before is kept
esper train synth "${small[@]}" --lr 1e30 --clip 0 --no-guard --run-dir lost
expect_code 1
expect_words out " nan "
expect_no_word out "-nan"
expect_words err "warn" "the loss is no longer finite" "lower lr" "the checkpoint of epoch 0 is kept" \
    "lost/last.safetensors holds the weights after epoch 0"
expect_equal "a warning and the end" "$(wc -l <err.txt)" 2
esper inspect lost
expect_code 0
expect_no_word out "NOT FINITE"
esper eval lost
expect_code 0
expect_words out "lost/last.safetensors after epoch 0: "

# ---- weights that are lost are seen at a glance
header='{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
{ printf "\\x$(printf %02x ${#header})\0\0\0\0\0\0\0%s\0\0\xc0\x7f\0\0\xc0\xff" "$header"; } >lost.safetensors
esper inspect lost.safetensors
expect_code 0
expect_words out "mean          -  norm          -  largest          -  2 NOT FINITE"

# ---- the same under guard: it goes back, goes back with half the rate, and gives up with a good state and the reason
esper train synth "${small[@]}" --lr 1e30 --clip 0 --run-dir given-up
expect_code 1
expect_words err "warn: guard:" "back from step" "half the learning rate" "the governor stopped the run" \
    "saved in given-up/last.safetensors"
esper inspect given-up
expect_code 0
expect_words out "detour" "lr_scale"
expect_no_word out "NOT FINITE"

# ---- names of runs
esper eval synth
expect_code 1
expect_words err "'synth' is the beginning of 2 runs; type more of the name, or \`last\`: synth-$(date +%Y%m%d)-1, synth-$(date +%Y%m%d)-2"
esper eval "synth-$(date +%Y%m%d)-1"
expect_equal "eval by the whole name" "${out#*: }" "$evaluated"
mv "$run" runs/mine-1
esper eval mine
expect_equal "eval by a unique beginning" "$out" "runs/mine-1/last.safetensors after epoch 2: $evaluated"
esper eval runs/mi # as a shell completes it
expect_equal "eval by the beginning of a path" "$out" "runs/mine-1/last.safetensors after epoch 2: $evaluated"
esper eval nothing
expect_code 1
expect_words err "'nothing' is no run"
esper train --resume nothing
expect_code 1
expect_words err "'nothing' is no run"
mkdir elsewhere
cd elsewhere || exit 1
esper eval last
expect_code 1
expect_words err "no run below runs/" "esper train"
cd .. || exit 1

# ---- where a run may not go
esper train synth "${small[@]}" --run-dir runs/mine-1
expect_code 2
expect_words err "runs/mine-1 already holds a run" "--resume runs/mine-1"
mkdir occupied && echo "lr = 0.1" >occupied/config.ini
esper train synth "${small[@]}" --config occupied/config.ini --run-dir occupied
expect_code 2
expect_words err "occupied/config.ini is there already"
expect_equal "a configuration of one's own" "$(cat occupied/config.ini)" "lr = 0.1"
echo >a-file
esper train synth "${small[@]}" --run-dir a-file
expect_code 1
expect_words err "a-file"
mkdir locked && chmod 555 locked
if be_nobody; then
    esper train synth "${small[@]}" --run-dir locked/run
    expect_code 1
    expect_words err "locked/run" "ermission"
    esper train synth "${small[@]}" --run-dir locked
    expect_code 1
    expect_words err "locked" "ermission"
else
    echo "skipped: directories that may not be written: root writes them all, and cannot become somebody else here"
fi
prefix=()

# ---- resuming
esper train --resume mine
expect_code 1
expect_words err "runs/mine-1" "has had 2 epochs, and spent all that was asked for" "--epochs N" "esper eval"
esper train --resume mine --epochs 0
expect_code 1
expect_words err "has had 2 epochs, and spent all that was asked for"
esper train --resume mine --lr 0.5
expect_code 2
expect_words err "lr is 0.05" "cannot become 0.5" "new run"
esper train --resume mine --seed 2
expect_code 2
esper train --resume mine --batch 16
expect_code 2
ESPER_BATCH=16 esper train --resume mine
expect_code 2
expect_words err "batch is 8"
esper train fashion --resume mine
expect_code 2
expect_words err "is a run of synth, not of fashion"
esper train --resume mine --epochs 3 --threads 2
expect_code 0
expect_words out " 3/3 "
expect_no_word out " 2/3 "
ESPER_KERNELS=portable esper train --resume mine --epochs 4
expect_code 0
case $("$ESPER" info backends) in
*"here: portable"*) ;;
*)
    expect_words err "was begun with cpu/" "goes on with cpu/portable"
    expect_equal "warnings among the events" \
        "$(grep -c '"event":"warning".*goes on with cpu/portable' runs/mine-1/events.jsonl)" 1
    ;;
esac

# ---- checkpoints that are none
esper eval runs/mine-1/events.jsonl
expect_code 1
expect_words err "runs/mine-1/events.jsonl" "safetensors"
head -c 1000 runs/mine-1/last.safetensors >cut.safetensors
for command in "eval cut.safetensors" "inspect cut.safetensors" "train --resume cut.safetensors"; do
    esper $command
    expect_code 1
    expect_words err "cut.safetensors" "truncated"
done
sed 's/"format_version":"1"/"format_version":"9"/' runs/mine-1/last.safetensors >new.safetensors
esper inspect new.safetensors # is shown all the same
expect_code 1
expect_words out "weight_hash" "tensors,"
expect_words err "checkpoint format 9"
esper eval new.safetensors
expect_code 1
expect_words err "new.safetensors" "checkpoint format 9" "reads format 1"
esper train --resume new.safetensors
expect_code 1
expect_words err "checkpoint format 9"
cp runs/mine-1/last.safetensors flipped.safetensors
printf '\x55' | dd of=flipped.safetensors bs=1 seek=$(($(stat -c %s flipped.safetensors) - 3)) conv=notrunc status=none
for command in "eval flipped.safetensors" "inspect flipped.safetensors" "train --resume flipped.safetensors"; do
    esper $command
    expect_code 1
    expect_words err "flipped.safetensors" "damaged"
done

# ---- any safetensors file can be looked at; what is in it does not reach the terminal as a command
header='{"__metadata__":{"no\u001bte":"a\u001b[31mb"},"x\u001b[2Jy":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
{ printf "\\x$(printf %02x ${#header})\0\0\0\0\0\0\0%sab" "$header"; } >other.safetensors
esper inspect other.safetensors
expect_code 0
expect_words out "no?te" "a?[31mb" "x?[2Jy" "U8" "1 tensors, 2 bytes"
expect_no_word out $'\033'
esper eval other.safetensors
expect_code 1
expect_words err "other.safetensors" "no Esper checkpoint"

finish
