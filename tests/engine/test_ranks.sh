#!/usr/bin/env bash
# ctest: timeout=300 cost=25 labels=noasan
# Training and growing on several ranks: the same as on one, the same again, together in faults, and never a hang.
. "$SOURCE_DIR/tests/cli/common.sh"
. "$SOURCE_DIR/tests/engine/ranks_common.sh"

# ---------------------------------------------------------------------------- the same losses on any number of ranks

n_losses=${RANKS_LOSSES:-30} loss_part=${RANKS_LOSS_PART:-1e-5} n_traffic=${RANKS_TRAFFIC:-300} # more of them: test_ranks_all.sh

# An epoch of one step has that step's loss. At a rate at which training does not magnify the last bits. Validation, which
# none of this looks at, is kept short.
for n in 1 2 3 4; do
    on_ranks $n train synth --epochs $n_losses --max-steps 1 --optimizer adamw --lr 3e-4 --sync-norm --checkpoint-every 0 \
        --valid-fraction 0.01 --run-dir sync-$n --progress none
    expect_code 0
    losses_of sync-$n >sync-$n.txt
    expect_close sync-1.txt sync-$n.txt $n_losses $loss_part
done

# Whole blocks of sixteen samples on a power of two of ranks: the same bits, at whatever rate.
for n in 1 2 4; do
    on_ranks $n train synth --epochs 2 --max-steps 5 --batch 64 --lr 0.05 --sync-norm --run-dir bits-$n --progress none
    expect_code 0
    losses_of bits-$n >bits-$n.txt
    expect_same "losses on 1 and $n ranks" bits-1.txt bits-$n.txt
    expect_equal "weights on 1 and $n ranks" "$(weights_of bits-1)" "$(weights_of bits-$n)"
done

# Without it norms are each rank's own: another network, but one for all ranks.
on_ranks 3 train synth --epochs 2 --max-steps 5 --batch 32 --run-dir own-norm --progress none
expect_code 0
expect_words out "accuracy"

# Text has no batch norm.
for n in 1 4; do
    on_ranks $n train synth_text --epochs 20 --max-steps 1 --batch 8 --layers 2 --width 16 --context 16 --dropout 0.1 \
        --checkpoint-every 0 --valid-fraction 0.01 --run-dir text-$n --progress none
    expect_code 0
    losses_of text-$n >text-$n.txt
done
expect_close text-1.txt text-4.txt 20 1e-4

# ---------------------------------------------------------------------------- growing, and the same again

cat >script.txt <<'END'
1 r0c0 germinate blueprint=conv_light style=linear_add tempo=3
2 r0c0 advance
13 r0c0 advance
16 r1c1 germinate blueprint=norm
END
grow=(grow synth --length epochs --epochs 18 --max-steps 4 --batch 24 --blocks 2 --channels 4 --gates permissive --policy scripted
    --decisions script.txt --progress none)
for again in 1 2; do
    on_ranks 3 "${grow[@]}" --run-dir grown-$again
    expect_code 0
done
expect_same "decisions of two runs" grown-1/decisions.jsonl grown-2/decisions.jsonl
expect_equal "weights of two runs" "$(weights_of grown-1)" "$(weights_of grown-2)"
on_ranks 3 replay grown-1 --progress none
expect_code 0
expect_words out "weights equal"
on_ranks 2 replay grown-1 --progress none
expect_code 2
expect_words err "3 ranks" "mpirun -n 3"

# A seed that learns aside has norms of its own, which count the batches of all ranks where the host's do.
head -n 2 script.txt >aside.txt
for n in 1 2; do
    on_ranks $n grow synth --epochs 6 --max-steps 4 --batch 32 --blocks 2 --channels 4 --gates permissive --policy scripted \
        --decisions aside.txt --sync-norm --run-dir aside-$n --progress none
    expect_code 0
done
expect_equal "weights with a seed aside on 1 and 2 ranks" "$(weights_of aside-1)" "$(weights_of aside-2)"

# A program that decides is asked by rank 0 alone, and obeyed by all.
cat >policy.sh <<'END'
#!/bin/bash
echo $$ >>pids.txt
while read -r line; do echo "{$(grep -o '"epoch":[0-9]*' <<<"$line" | head -1),\"op\":\"wait\"}"; done
END
chmod +x policy.sh
on_ranks 3 grow synth --epochs 6 --max-steps 2 --batch 24 --lr 0.001 --attribution 5 --policy-cmd ./policy.sh --progress none --run-dir by-program
expect_code 0
expect_equal "programs started" "$(wc -l <pids.txt)" 1

# ---------------------------------------------------------------------------- faults on one rank

on_ranks 4 grow synth --epochs 3 --max-steps 6 --batch 24 --policy none --inject 3:host:grad:nan@2,9:host:param:nan@2 \
    --run-dir drill --progress none --log-level warn
expect_code 0
events=$(cat drill/events.jsonl)
expect_words events '"action":"skip"' '"action":"roll_back"'
expect_words err "on rank 2: 1 element"
expect_words out "1 step skipped, 1 time back"
on_ranks 4 replay drill --progress none
expect_code 0
expect_words out "weights equal"

# A flipped bit that stays a number is seen when the epoch ends, by everybody.
on_ranks 3 grow synth --epochs 3 --max-steps 4 --batch 24 --policy none --inject 5:host:param:mantissa@1 --run-dir flipped \
    --progress none
expect_code 1
expect_words err "epoch 2" "rank 1 of 3 differs" "weights" "epoch 1, on which they agreed"
on_ranks 2 grow synth --epochs 3 --max-steps 4 --batch 24 --policy none --inject 5:host:param:mantissa@1 --run-dir flipped-2 \
    --progress none
expect_code 1
expect_words err "epoch 2" "rank 0" "rank 1" "differ"

# What they last agreed on is saved then, if it was not; the run goes on from it (and meets its drill again).
on_ranks 2 grow synth --epochs 4 --max-steps 4 --batch 24 --policy none --inject 10:host:param:mantissa@0 --run-dir parted \
    --checkpoint-every 0 --progress none
expect_code 1
expect_words err "epoch 3" "differ" "epoch 2, on which they agreed, is saved: --resume parted"
out=$("$ESPER" inspect parted)
expect_words out "epoch 2 batch 0 step 8"
on_ranks 2 grow --resume parted --progress none
expect_code 1
expect_words err "epoch 3" "epoch 2, on which they agreed, is kept"

# ---------------------------------------------------------------------------- ranks that cannot work together

two_kinds "--lr 0.1" "--lr 0.2"
expect_code 2
expect_words err "lr = '0.1' on rank 0 and '0.2' on rank 1" "--lr"
two_kinds "--epochs 2" "--epochs 3"
expect_code 2
expect_words err "epochs = '2' on rank 0 and '3' on rank 1"
two_kinds "--seed 1" "--seed 2" # not the data, which follows from it
expect_code 2
expect_words err "seed = '1' on rank 0 and '2' on rank 1" "--seed"
two_kinds "--guard=true" "--guard=false"
expect_code 2
expect_words err "guard = 'true' on rank 0 and 'false' on rank 1"
two_kinds "--threads 1" "--threads 2" # these may differ
expect_code 0
on_ranks 1 train synth --epochs 1 --max-steps 2 --progress none --run-dir old-a
on_ranks 1 train synth --epochs 2 --max-steps 2 --progress none --run-dir old-b
two_resumed old-a old-b
expect_code 2
expect_words err "different checkpoints"

# Other data, and another build: one that has another commit in its text.
seq 1 3000 >here.txt
sed 's/2000/2001/' here.txt >there.txt
text="--threads 1 --batch 4 --layers 2 --width 8 --heads 2 --context 8"
rm -rf two
task=chars two_kinds "--data here.txt $text" "--data here.txt $text"
expect_code 0
rm -rf two
task=chars two_kinds "--data here.txt $text" "--data there.txt $text"
expect_code 2
expect_words err "the data has the hash" "on rank 0" "on rank 1" "--data"
commit=$("$ESPER" --version | sed 's/^[^(]*(\([^,]*\),.*/\1/')
mkdir other
cp "$(dirname "$ESPER")"/libesper-mpi.so other/ 2>/dev/null || cp -r "$(dirname "$ESPER")"/lib other/
sed "s/$commit/${commit//?/f}/g" "$ESPER" >other/esper
chmod +x other/esper
rm -rf two
program=$PWD/other/esper task=chars two_kinds "--data nowhere.txt" "--data nowhere.txt" # found before that is looked for
expect_code 2
expect_words err "the build is" "$commit, " "on rank 0" "${commit//?/f}, " "on rank 1" "install the same build everywhere"
expect_equal "directories begun" "$(ls -d two 2>/dev/null)" ""

# Rank 0 alone fails at opening: everybody leaves, and nothing is written in its place.
mkdir -p blocked/config.ini
on_ranks 2 train synth --epochs 1 --max-steps 2 --progress none --run-dir blocked
[ "$code" -ne 0 ] || bad "$last" "exit status 0"
expect_words err "config.ini" "another rank had to stop"
expect_equal "checkpoints there" "$(ls blocked | grep -c safetensors)" 0

# The whole trainer without its arithmetic: hundreds of epochs of random lifecycles, agreed upon after each.
on_ranks 4 grow synth --backend null --policy random --gates permissive --length epochs --epochs $n_traffic --max-steps 1 --batch 64 \
    --checkpoint-every 0 --progress none --run-dir traffic
expect_code 0
expect_equal "epochs of traffic" "$(grep -c '"epoch_ended"' traffic/events.jsonl)" $n_traffic
[ "$(grep -c '"accepted":1' traffic/events.jsonl)" -gt $((n_traffic / 2)) ] || bad "$last" "few decisions were accepted"

# A budget of FLOPs is that of all ranks together, and all end where it is spent: in the middle of an epoch, on any number of them.
cursor_of() { "$ESPER" inspect "$1" | sed -n 's/^cursor *//p'; }
for n in 1 2; do
    on_ranks $n grow synth --policy none --epochs 2 --max-steps 3 --batch 64 --progress none --run-dir budget-$n
    expect_code 0
    spent=$(cursor_of budget-$n | sed 's/.* of //')
    on_ranks $n grow synth --policy none --flops $((spent * 5 / 6)) --schedule hold --max-steps 3 --batch 64 --progress none \
        --run-dir short-$n
    expect_code 0
    expect_equal "where the run ends on $n ranks" "$(cursor_of short-$n)" \
        "epoch 2 batch 0 step 5 spent $((spent * 5 / 6)) of $((spent * 5 / 6))"
done
expect_equal "what is spent on 1 rank and on 2" "$(cursor_of short-1)" "$(cursor_of short-2)"

# A search is one on any number of ranks: all end with the same network.
on_ranks 2 grow synth --policy halving --epochs 40 --max-steps 5 --batch 8 --blocks 2 --channels 4 --progress none --run-dir searched
expect_code 0
expect_words err "halving: round 4 of 5, 2 networks"
expect_equal "how often each round is told" "$(grep -c 'halving: round' err.txt)" 4

# A directory that holds a run already: who was to make it says so, and is not talked over.
on_ranks 2 train synth --epochs 1 --max-steps 2 --progress none --run-dir taken
expect_code 0
on_ranks 2 train synth --epochs 1 --max-steps 2 --progress none --run-dir taken
[ "$code" -ne 0 ] || bad "$last" "exit status 0" # mpirun's is that of the first to leave
expect_words err "taken already holds a run" "--resume taken"

# By messages instead of shared memory.
export ESPER_MPI_SHARED=0
on_ranks 3 train synth --epochs 2 --max-steps 3 --batch 24 --progress none --run-dir by-messages
unset ESPER_MPI_SHARED
expect_code 0
on_ranks 3 train synth --epochs 2 --max-steps 3 --batch 24 --progress none --run-dir by-memory
expect_code 0
expect_equal "weights by messages and by memory" "$(weights_of by-messages)" "$(weights_of by-memory)"
second="-x ESPER_KERNELS=portable" two_kinds "" ""
if [ "$code" -ne 0 ]; then # a processor with portable kernels alone has nothing to differ in
    expect_words err "the kernels are" "portable" "ESPER_KERNELS"
fi
on_ranks 3 train synth --batch 2 --epochs 1 --run-dir too-many --progress none
expect_code 2
expect_words err "cannot be shared by 3 ranks"
on_ranks 2 grow synth --epochs 1 --static-control --run-dir control
expect_code 2
expect_words err "--static-control"
on_ranks 2 compare synth
expect_code 2
expect_words err "one process"

finish
