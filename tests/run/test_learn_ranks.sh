#!/usr/bin/env bash
# ctest: timeout=240 cost=12 labels=noasan
# Learning on several ranks: the same policy, byte for byte; together in faults; never a hang.
. "$SOURCE_DIR/tests/cli/common.sh"
. "$SOURCE_DIR/tests/engine/ranks_common.sh"

learn=(learn synth --batch 8 --blocks 2 --channels 2 --max-steps 2 --epochs 3 --envs 4 --policy-width 8 --ppo-chunk 3
    --ppo-epochs 2 --rounds 3 --progress none)

# ---------------------------------------------------------------------------- the same bytes on any number of ranks

for n in ${LEARN_RANKS:-1 2}; do
    on_ranks $n "${learn[@]}" --run-dir ranks-$n
    expect_code 0
    expect_equal "lines of the closing on $n ranks" "$(grep -c '^saved ' out.txt)" 1
    expect_same "policies of 1 and $n ranks" ranks-1/policy.safetensors ranks-$n/policy.safetensors
done
esper "${learn[@]}" --threads 1 --run-dir alone
expect_code 0
expect_same "policies with and without mpirun" ranks-1/policy.safetensors alone/policy.safetensors
on_ranks 2 "${learn[@]}" --run-dir shown --progress plain
expect_code 0
expect_words out "4 environments on 1 thread of each of 2 ranks"
expect_equal "lines of rounds" "$(grep -cE '^ +[1-3]/3 ' out.txt)" 3

# Episodes of several tasks, of different lengths: every rank knows which.
tasks="synth blocks=3 channels=2 batch=8 epochs=2, synth_table batch=8 epochs=4 drawn=2, synth_table batch=8 epochs=4 drawn=3 draws=all"
for n in 1 2; do
    on_ranks $n "${learn[@]}" --tasks "$tasks" --curriculum ladder --run-dir tasks-$n
    expect_code 0
done
expect_same "policies of 1 and 2 ranks, of several tasks" tasks-1/policy.safetensors tasks-2/policy.safetensors

# A fault of one environment: it alone goes back, and all ranks learn the same of it.
for n in 1 2; do
    on_ranks $n "${learn[@]}" --inject 3:host:param:nan --run-dir drill-$n
    expect_code 0
done
expect_same "policies of 1 and 2 ranks, with faults" drill-1/policy.safetensors drill-2/policy.safetensors

# Begun on one number of ranks, gone on with on another.
for n in 2 1; do
    on_ranks $n "${learn[@]}" --rounds 2 --run-dir half-$n
    expect_code 0
    on_ranks $((3 - n)) learn --resume half-$n --rounds 4 --progress none
    expect_code 0
done
expect_same "two rounds on 1 rank and two on 2, and the reverse" half-1/policy.safetensors half-2/policy.safetensors

# ---------------------------------------------------------------------------- what cannot be

on_ranks 2 "${learn[@]}" --envs 5 --run-dir uneven
expect_code 2
expect_words err "5 environments cannot be spread evenly over 2 ranks: set envs to 6"
on_ranks 2 "${learn[@]}" --run-dir ranks-1
[ "$code" -ne 0 ] || bad "$last" "exit status 0"
expect_words err "ranks-1 already holds a run"
last="mpirun -n 1 esper ${learn[*]} --ppo-lr 0.1 : -n 1 esper ${learn[*]} --ppo-lr 0.2"
bash "$SOURCE_DIR/tests/dist/ranks.sh" 1 "$ESPER" "${learn[@]}" --threads 1 --ppo-lr 0.1 --run-dir two \
    : -n 1 "$ESPER" "${learn[@]}" --threads 1 --ppo-lr 0.2 --run-dir two >out.txt 2>err.txt </dev/null
code=$? out=$(cat out.txt) err=$(cat err.txt)
expect_code 2
expect_words err "ppo_lr = '0.1' on rank 0 and '0.2' on rank 1"
mkdir -p elsewhere # a table of the same name is another one
for at in . elsewhere; do
    awk -v at=$at 'BEGIN { print "a,kind"; for (i = 0; i < 200; i++) printf "%d,%s\n", i * i % 17, i % 3 < (at == "." ? 1 : 2) ? "x" : "y" }' >$at/rows.csv
done
listed=("${learn[@]}" --threads 1 --tasks "synth channels=3, table data=rows.csv target=kind batch=8" --cache kept --run-dir two)
last="mpirun -n 1 esper ${listed[*]} : -n 1 -wdir elsewhere esper ${listed[*]}"
bash "$SOURCE_DIR/tests/dist/ranks.sh" 1 "$ESPER" "${listed[@]}" : -n 1 -wdir "$PWD/elsewhere" "$ESPER" "${listed[@]}" \
    >out.txt 2>err.txt </dev/null
code=$? out=$(cat out.txt) err=$(cat err.txt)
expect_code 2
expect_words err "tasks: table: ranks have different data (task 3 of 3): give all of them the same files"
last="mpirun -n 1 esper learn --resume ranks-1 : -n 1 esper learn --resume half-1"
bash "$SOURCE_DIR/tests/dist/ranks.sh" 1 "$ESPER" learn --resume ranks-1 --rounds 9 --progress none --run-dir two \
    : -n 1 "$ESPER" learn --resume half-1 --rounds 9 --progress none --run-dir two >out.txt 2>err.txt </dev/null
code=$? out=$(cat out.txt) err=$(cat err.txt)
expect_code 2
expect_words err "ranks have different policies to go on with"

# ---------------------------------------------------------------------------- a rank that learns something else

maker=$(dirname "$ESPER")/tests/run/test_learn_parted
if [ -x "$maker" ]; then
    for n in ${PARTED_RANKS:-3}; do
        rm -rf parted*
        last="mpirun -n $n test_learn_parted"
        ESPER_TEST_COMM=mpi ESPER_TEST_RANKS=$n bash "$SOURCE_DIR/tests/dist/ranks.sh" $n "$maker" >out.txt 2>&1 </dev/null
        code=$? out=$(cat out.txt) err=$(cat parted.* 2>/dev/null)
        expect_code 0
        expect_equal "ranks that were told" "$(ls parted.* 2>/dev/null | wc -l)" $n
    done
    expect_equal "who it was" "$(grep -l "round 2: rank 1 of 3 differs from the others in: weights" parted.* | wc -l)" 3
    esper learn --resume parted --progress none # from the round on which they agreed
    expect_code 0
    expect_words out "learned   3 rounds"
else
    echo "skipped: no $maker to part ranks"
fi

# ---------------------------------------------------------------------------- a rank that is killed

# lost SIGNAL RANKS DIR: sends it to those ranks of a long job once a round is saved; all leave soon, with a sentence.
lost() {
    local signal=$1 ranks=$2 dir=$3 job began rank pids=()
    last="mpirun -n 2 esper ${learn[*]}, $signal to rank $ranks"
    RANKS_SECONDS=60 bash "$SOURCE_DIR/tests/dist/ranks.sh" 2 "$ESPER" "${learn[@]}" --rounds 100000 --progress plain \
        --run-dir "$dir" --threads 1 >"$dir.out" 2>"$dir.err" </dev/null &
    job=$!
    wait_for 40 grep -qE '^ +2/100000 ' "$dir.out" || bad "$last" "no round in 40 s" "$(cat "$dir.err")"
    for rank in $ranks; do pids+=("$(pid_of "$rank" "$dir")"); done
    kill "$signal" "${pids[@]}"
    began=$EPOCHREALTIME
    wait "$job"
    code=$?
    err=$(cat "$dir.err")
    n_checks=$((n_checks + 2))
    [ "$code" -ne 0 ] || bad "$last" "exit status 0"
    awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { exit !(b - a <= 20) }' || bad "$last" "it took more than 20 s" "$err"
}

# expect_resumed DIR: it goes on, and nothing of what was saved is lost.
expect_resumed() {
    local round
    esper learn --resume "$1" --rounds 1 # says how many it has had
    round=$(sed -n 's/.* has had \([0-9]*\) rounds.*/\1/p' err.txt)
    n_checks=$((n_checks + 1))
    [ "${round:-0}" -ge 2 ] || bad "$last" "the policy has had '$round' rounds" "$err"
    on_ranks 2 learn --resume "$1" --rounds $((${round:-0} + 1)) --progress none
    expect_code 0
    expect_words out "learned   $((${round:-0} + 1)) rounds"
}

lost -9 1 lost-second
case $(cat lost-second.out) in # on a busy machine the launcher may be the first to see it
*"Go on with"*) ;;
*) expect_words err "rank 1 ended or left the job" "--resume lost-second goes on" ;;
esac
expect_resumed lost-second
for i in 1 2; do # as the launcher does, whatever they are at
    lost -TERM "0 1" told-$i
    out=$(cat told-$i.out)
    expect_words out "stopped after" "Go on with: $ESPER learn --resume told-$i"
done
expect_resumed told-1
lost -9 0 lost-first # the one that writes
expect_words err "rank 0"
expect_resumed lost-first

finish
