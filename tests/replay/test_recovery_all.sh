#!/usr/bin/env bash
# ctest: timeout=3600 labels=soak
# Two hundred kills (SIGKILL) at random moments during and around recoveries, of runs with faults on purpose and of runs whose rate is
# far too high. Resumed until they are done they have the weights, the decision log and the rows of the unbroken run.
# KILLS=N: so many.
. "$SOURCE_DIR/tests/replay/recovery.sh"

flags=("${small[@]}" --channels 4 --max-steps 6 --epochs 12 --gates permissive --gate-epochs 1 --policy random --max-rollbacks 20
    --progress none)
kinds=(
    "--inject 7:host:param:nan,12:host:param:inf,18:host:moment:nan,24:host:param:nan,25:host:param:nan,30:host:buffer:nan,36:host:param:nan,37:host:grad:nan"
    "--inject 6:host:grad:nan,11:host:grad:inf,12:host:param:nan,23:host:param:exponent,24:host:param:nan,41:host:grad:nan,42:host:param:nan --snapshot-every 2"
    "--seed 2 --lr 20 --clip 0"
    "--seed 3 --lr 100 --clip 0"
)
killed=0
n_runs=0
n_equal=0

# Runs the program and kills it a moment after its log has so many words of the governor's, unless it is done before.
kill_at_word() { # WORDS ARGUMENTS
    local words=$1 pid said=0
    shift
    "$ESPER" "$@" >out.txt 2>err.txt </dev/null &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ "${said:-0}" -lt "$words" ]; do
        sleep 0.002
        said=$(grep -cs '"source":"governor"' broken/decisions.jsonl)
    done
    sleep 0.0$((RANDOM % 90 + 10))
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    code=$?
    [ "$code" -ne 137 ] || killed=$((killed + 1))
}

# One run from its beginning to its end.
break_and_mend() { # FLAGS
    local words before=$n_bad tries next
    words=$(($(grep -c '"source":"governor"' whole/decisions.jsonl) + 1))
    rm -rf broken
    mkdir broken
    code=137
    for ((tries = 0; code == 137; tries++)); do
        next=(grow --resume broken --progress none)
        [ -e broken/last.safetensors ] || next=(grow synth "${flags[@]}" "$@" --run-dir broken)
        if [ $tries -lt 5 ]; then
            kill_at_word $((RANDOM % words)) "${next[@]}"
        else
            esper "${next[@]}"
        fi
    done
    n_runs=$((n_runs + 1))
    if [ "$code" -ne 0 ] && ! grep -q "spent all that was asked for" err.txt; then # that is, killed behind its end
        bad "run $n_runs: $*" "exit status $code" "$(cat err.txt)"
    fi
    expect_same "run $n_runs: $*"
    [ "$n_bad" -gt "$before" ] || n_equal=$((n_equal + 1))
}

while [ "$killed" -lt "${KILLS:-200}" ]; do
    for kind in "${kinds[@]}"; do
        read -ra given <<<"$kind"
        make_whole "${given[@]}"
        for _ in 1 2 3 4; do
            break_and_mend "${given[@]}"
        done
    done
done
echo "$killed kills in $n_runs runs, of which $n_equal are equal"
finish
