#!/usr/bin/env bash
# ctest: timeout=3600 labels=soak,noasan
# Jobs in which ranks fail at the start, in joining, in a step, in validation, while saving and at the end, alone and in pairs;
# by shared memory and by messages. Each is over within the deadline plus ten seconds, and names a rank that failed. A line for
# each, and a summary. FAULT_JOBS: how many at a time (4); FAULT_JOIN, FAULT_DEADLINE: seconds (12, 5); FAULT_ONLY: a pattern.
set -uo pipefail

. "$SOURCE_DIR/tests/dist/common.sh"
. "$SOURCE_DIR/tests/engine/ranks_common.sh"

join=${FAULT_JOIN:-12} deadline=${FAULT_DEADLINE:-5} grace=10 # seconds; on a busy machine MPI itself may take longer to join
if ! ${CC:-cc} -shared -fPIC -O1 -o faults.so "$SOURCE_DIR/tests/dist/faults.c" -ldl 2>cc.txt; then
    echo "skipped: there is no compiler here for what lets ranks fail: $(head -1 cc.txt)"
    exit 77
fi
export LD_PRELOAD_FAULTS=$PWD/faults.so

# length PLACE: steps, validation and saving each have runs that are made of little else.
length() {
    case $1 in
    valid) echo "--epochs 100000 --max-steps 1 --valid-fraction 0.45 --checkpoint-every 0" ;;
    step) echo "--epochs 100000 --max-steps 30 --valid-fraction 0.01 --checkpoint-every 0" ;;
    save) echo "--epochs 100000 --max-steps 2 --valid-fraction 0.01 --checkpoint-every 1" ;;
    *) echo "--epochs 2 --max-steps 2 --valid-fraction 0.01" ;;
    esac
}

# strike PLACE RANK HOW DIR: from outside, while a run is at that place.
strike() {
    local signal=$3
    case $1 in
    save) wait_for 150 test -e struck.0 ;; # rank 0 is at it, slowly
    *) wait_for 150 eval '[ "$(grep -c epoch_ended run/events.jsonl)" -ge 2 ]' ;;
    esac
    [ "$signal" != exit ] || signal=USR1
    kill -"${signal^^}" "$(pid_of "$2" run)"
}

# one NAME SHARED RANKS FAULT...: a job with those faults, RANK:PLACE:HOW. Its line goes to NAME.line. Places of a run itself are
# struck from outside, all others by the preloaded library.
one() {
    local name=$1 shared=$2 n=$3 place=start fault rank how faults='' named='' began over limit code outside=() words
    shift 3
    local n_faults=$#
    mkdir "$name" && cd "$name" || return
    for fault in "$@"; do
        IFS=: read -r rank place how <<<"$fault"
        case $place in
        step | valid) outside+=("$fault") ;;
        save) if [ "$rank" = 0 ]; then faults+=,$fault; else outside+=("$fault") faults+=,0:save:slow; fi ;;
        *) faults+=,$fault ;;
        esac
    done
    began=$EPOCHREALTIME
    ESPER_MPI_SHARED=$shared RANKS_SECONDS=240 bash "$runner" "$n" -x RANK_FAULTS="${faults#,}" -x LD_PRELOAD="$LD_PRELOAD_FAULTS" \
        "$ESPER" grow synth $(length "$place") --batch 24 --policy none --threads 1 --progress none --run-dir run \
        --join-deadline $join --rank-deadline $deadline >out.txt 2>err.txt </dev/null &
    for fault in "${outside[@]}"; do
        IFS=: read -r rank place how <<<"$fault"
        strike "$place" "$rank" "$how"
        began=$EPOCHREALTIME
    done
    if [ ${#outside[@]} -eq 0 ]; then # from where the last of them fails
        wait_for 150 eval '[ "$(ls | grep -c struck)" -ge $n_faults ]'
        began=$EPOCHREALTIME
    fi
    wait $!
    code=$?
    case $place in
    step | valid | save | finish) limit=$deadline ;;
    *) limit=$join ;;
    esac
    over=$(awk -v a="$began" -v b="$EPOCHREALTIME" -v d=$limit 'BEGIN { printf "%.1f", b - a - d }')
    for fault in "$@"; do
        words="ranks? ([0-9]+, )*${fault%%:*}( |,|;|:|\$)"
        if grep "^esper" err.txt | grep -v "^esper: rank ${fault%%:*}:" | grep -qE "$words"; then
            named+=" ${fault%%:*}"
        elif grep -qE "mpirun (noticed that|has exited due to) process rank ${fault%%:*} " err.txt; then
            named+=" ${fault%%:*}(mpirun)"
        fi
    done
    words=ok
    [ -n "$named" ] || words="NOT NAMED"
    awk -v o="$over" -v g=$grace 'BEGIN { exit !(o <= g) }' || words="LATE $words"
    [ "$code" -ne 0 ] || words="ENDED WELL $words"
    printf '%-28s shared %s  %s ranks  exit %3d  %6s s over the deadline  named:%s  %s\n' "$name" "$shared" "$n" "$code" "$over" "$named" \
        "$words" >"../$name.line"
    cat "../$name.line"
}

# differ NAME RANK WORDS PROGRAM FLAGS ALL: that rank, the last, is another program or has other flags, all have the flags ALL; it
# is to be named with WORDS.
differ() {
    local name=$1 rank=$2 words=$3 program=$4 flags=$5 began=$EPOCHREALTIME over code good=ok
    local all="grow synth --epochs 3 --max-steps 4 --batch 24 --policy none --threads 1 --progress none --run-dir run --join-deadline $join ${6:-}"
    mkdir "$name" && cd "$name" || return
    # shellcheck disable=SC2086 # flags are words
    RANKS_SECONDS=240 bash "$runner" "$rank" "$ESPER" $all --rank-deadline $deadline : -n 1 "$program" $all --rank-deadline $deadline $flags \
        >out.txt 2>err.txt </dev/null
    code=$?
    over=$(awk -v a="$began" -v b="$EPOCHREALTIME" -v d=$join 'BEGIN { printf "%.1f", b - a - d }')
    grep "^esper" err.txt | grep -q "$words" || good="NOT NAMED"
    printf '%-28s shared 1  %s ranks  exit %3d  %6s s over the deadline  named: %s  %s\n' "$name" $((rank + 1)) "$code" "$over" "$rank" "$good" \
        >"../$name.line"
    cat "../$name.line"
}

commit=$("$ESPER" --version | sed 's/^[^(]*(\([^,]*\),.*/\1/')
mkdir other
cp "$(dirname "$ESPER")"/libesper-mpi.so other/ 2>/dev/null || cp -r "$(dirname "$ESPER")"/lib other/
sed "s/$commit/${commit//?/f}/g" "$ESPER" >other/esper
chmod +x other/esper

# Each line: ranks, shared memory, faults.
cat >jobs.txt <<'END'
3 1 1:start:exit
3 1 0:start:exit
3 1 1:start:stop
3 0 0:start:stop
3 1 2:start:kill
3 1 0:start:kill
3 1 1:start:never
3 0 2:start:never
3 1 1:init:stop
3 1 0:init:stop
3 1 1:init:kill
3 1 2:init:exit
3 0 0:init:exit
3 1 1:split:stop
3 1 0:split:kill
3 0 2:split:exit
3 1 2:window:stop
3 1 0:window:stop
3 1 1:window:kill
3 1 0:window:exit
3 1 0:step:stop
3 1 1:step:stop
3 1 2:step:stop
3 1 0:step:kill
3 1 1:step:kill
3 1 1:step:exit
3 1 2:step:exit
3 0 1:step:stop
3 0 1:step:kill
3 0 2:step:exit
3 1 0:valid:stop
3 1 2:valid:stop
3 1 1:valid:kill
3 1 0:valid:kill
3 1 1:valid:exit
3 0 2:valid:kill
3 0 1:valid:stop
3 1 0:save:stop
3 1 0:save:kill
3 1 0:save:exit
3 1 1:save:stop
3 1 1:save:kill
3 1 2:save:exit
3 0 0:save:kill
3 1 1:finish:stop
3 1 0:finish:kill
3 1 2:finish:exit
4 1 1:start:exit 2:start:stop
4 1 0:start:stop 3:start:never
4 1 1:init:stop 3:init:stop
4 1 1:init:kill 2:init:stop
4 1 1:step:stop 2:step:kill
4 1 1:valid:stop 2:valid:stop
4 1 0:save:stop 2:save:stop
4 0 1:step:exit 3:step:exit
END
while read -r n shared faults; do
    while [ "$(jobs -rp | wc -l)" -ge "${FAULT_JOBS:-4}" ]; do sleep 0.2; done
    # shellcheck disable=SC2086 # faults are words
    (one "$(tr ': ' '-+' <<<"$faults")-$shared" "$shared" "$n" $faults) &
done < <(grep -E "${FAULT_ONLY:-.}" jobs.txt)
wait
(differ other-build 1 "rank 0 and rank 1 differ: the build is" "$PWD/other/esper" "") &
(differ other-seed 2 "rank 0 and rank 2 differ: seed = " "$ESPER" "--seed 7") &
(differ other-rate 1 "rank 0 and rank 1 differ: lr = " "$ESPER" "--lr 0.7") &
wait
(differ not-a-number 1 "on rank 1: 1 element" "$ESPER" "" "--inject 3:host:grad:nan@1 --log-level warn") &
(differ another-number 2 "rank 2 of 3 differs" "$ESPER" "" "--inject 5:host:param:mantissa@2") &
wait

cat ./*.line >table.txt
n_bad=$(grep -vc ' ok$' table.txt)
awk '{ for (i = 2; i <= NF; i++) if ($i == "s" && $(i+1) == "over" && (n++ == 0 || $(i-1) > most)) most = $(i-1) }
    END { print NR " jobs; the last to end was " most " s over its deadline" }' table.txt
[ "$n_bad" -eq 0 ] || echo "$n_bad jobs are not as they should be"
[ "$n_bad" -eq 0 ]
