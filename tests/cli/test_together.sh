#!/usr/bin/env bash
# ctest: timeout=300 cost=25 labels=noasan
# esper compare --together: the runs of a comparison as lanes of one process come to what they come to as processes, to the bit; one
# that fails fails alone; stopped, they go on; and on the cuda backend, over a driver made of the host, they share rounds, memory
# that has not room for all, and the fate of the device.
. "$SOURCE_DIR/tests/cli/common.sh"

# The weights that the runs in directory $1 ended with, and what was decided there.
came_to() {
    (cd "$1" && grep -H '^weights' ./*.log && for run in */; do sed 's/"kernels":"[^"]*"//' "$run/decisions.jsonl"; done)
}

same() {
    expect_equal "$1" "$(came_to "$2")" "$(came_to "$3")"
}

tiny=(compare synth_table --threads 1 --batch 8 --layers 1 --width 4 --max-steps 16 --checkpoint-every 0)
lines=(--policies none,trials,heuristic:lr=0.01,halving,static-final,static-equal --epochs 16)
more=(--trial-share 0.9 --trial-first 0.05 --trial-price 0 --gates permissive)

# ---- the same runs as processes, and side by side
n_seeds=2
for backend in cpu ref; do
    how=("${tiny[@]}" "${lines[@]}" "${more[@]}" --backend $backend --seeds $n_seeds)
    esper "${how[@]}" --dir $backend-apart --jobs 2
    expect_code 0
    esper "${how[@]}" --dir $backend-together --together --threads 2
    expect_code 0
    expect_words out "side by side in one process" "$((6 * n_seeds))/$((6 * n_seeds))"
    same "runs on $backend" $backend-apart $backend-together
    n_seeds=1
done
[ "$(came_to cpu-together | grep -c '"source":"trial"')" -ge 6 ] || bad "no forks were tried"
esper "${tiny[@]}" "${lines[@]}" "${more[@]}" --backend cpu --seeds 2 --dir cpu-together --jobs 2 # what was made together is found by processes
expect_code 0
expect_equal "runs that were there" "$(grep -c '(was there)' <<<"$out")" $((12 - $(grep -c '(as ' <<<"$out")))

(ulimit -n 90 && "$ESPER" "${tiny[@]}" --policies none,heuristic --seeds 2 --epochs 4 --dir few --together --threads 4 >said.txt 2>&1)
code=$? out=$(cat said.txt)
expect_code 0
expect_words out "no more than 2 at a time: ulimit -n" "4/4"

# ---- a frontier
front=("${tiny[@]}" --frontier --policies trials --sizes 1,2 --rates 1 --budgets 0.5,1 --seeds 2 --epochs 3)
esper "${front[@]}" --dir f-apart --jobs 2 --json
expect_code 0
table=$out
esper "${front[@]}" --dir f-together --together --threads 2 --json
expect_code 0
expect_words err "12/12" "x0.5/none-1"
strip() { sed 's/"seconds[a-z_]*":[^,}]*,\{0,1\}//g'; }
expect_equal "tables of frontiers" "$(strip <<<"$table")" "$(strip <<<"$out")"

# ---- one that fails
esper "${tiny[@]}" --policies none,none:lr=1e30 --clip 0 --optimizer sgd --seeds 2 --epochs 4 --dir bad --together --threads 2
expect_code 1
expect_equal "runs that came to something" "$(grep -c ' %, .*parameters, ' <<<"$out")" 2
expect_words out "none:lr=1e30-2: broken off: the governor stopped the run: Inf in" "0 of 2"

# ---- kinds of one line would be seen by all of a process
esper "${tiny[@]}" --policies 'random,trials:add_blueprints=own=relu' --seeds 1 --epochs 6 --together --dir own
expect_code 2
expect_words err "trials:add_blueprints=own=relu: runs side by side" "--add-blueprints as a flag" "leave out --together"

# ---- stopped, and gone on with
long=("${tiny[@]}" --policies none,trials --seeds 2 --epochs 60 --together --threads 2)
esper "${long[@]}" --dir whole
expect_code 0
for try in 1 2 3 4 5; do # again where the machine let it end first
    rm -rf stopped
    "$ESPER" "${long[@]}" --dir stopped >said.txt 2>&1 &
    child=$!
    until [ -s stopped/none-1.log ] || ! kill -0 $child 2>/dev/null; do sleep 0.01; done
    sleep 0.0$try
    kill -TERM $child
    wait $child
    code=$?
    [ $code -eq 130 ] && break
done
expect_equal "exit code of a comparison that was stopped" $code 130
out=$(cat said.txt)
expect_words out "stopped: what has ended is kept; the same command with --dir stopped goes on"
esper "${long[@]}" --dir stopped
expect_code 0
same "a comparison that was stopped and gone on with" whole stopped

# ---- on the cuda backend
if [ ! -x "${PROGRAM_ON_DRIVER:-}" ]; then
    echo "skipped: there is no C++ compiler here"
    finish
fi
ESPER=$PROGRAM_ON_DRIVER
cuda=("${tiny[@]:0:12}" --backend cuda --policies none,trials --seeds 2 --epochs 6 --trial-share 0.9 --trial-first 0.05 --trial-price 0
    --blueprints norm --checkpoint-every 1)
ESPER_CUDA_ROUNDS=1 esper "${cuda[@]}" --dir device
expect_code 0
expect_words out "side by side in one process"
[ "$(came_to device | grep -c '"source":"trial"')" -ge 4 ] || bad "no forks were tried on the device"
pages=$(sed -n 's/^rounds [1-9][0-9]* of \([0-9.]*\) .*/\1/p' <<<"$err" | tail -n 1)
n_checks=$((n_checks + 1))
[ "${pages%.*}" -ge 1 ] && [ "$pages" != 1.0 ] || bad "runs do not come together in rounds" "$err"
esper grow "${tiny[@]:1}" --backend cuda --epochs 6 --trial-share 0.9 --trial-first 0.05 --trial-price 0 --blueprints norm \
    --seed 2 --run-dir alone --progress none
expect_code 0
expect_equal "weights of a run alone" "$(grep -o '^weights .*' <<<"$out")" "$(grep '^weights' device/trials-2.log)"
ESPER_TEST_CUDA_MEMORY=200000 esper "${cuda[@]}" --dir tight
expect_code 0
expect_words out "there was room for "
same "runs that took turns for want of memory" device tight
for calls in 12000 8000 6000 4000 3000 2000; do # how many there are depends on who meets whom
    rm -rf lost
    ESPER_TEST_CUDA_LOST=$calls:700 esper "${cuda[@]}" --dir lost
    grep -q "the device is lost (" <<<"$err" && break
done
expect_code 1
expect_words err "the device is lost (" "the same command, with its --dir, goes on"
esper "${cuda[@]}" --dir lost
expect_code 0
same "runs whose device was lost" device lost
finish
