#!/usr/bin/env bash
# ctest: timeout=240 cost=30 labels=noasan
# Ranks that are killed, stopped, or cut off in the midst of a run: the others notice, save, and say how to go on.
. "$SOURCE_DIR/tests/cli/common.sh"
. "$SOURCE_DIR/tests/engine/ranks_common.sh"

long=(grow synth --epochs 100000 --max-steps 6 --batch 24 --policy none --progress none --checkpoint-every 0 --threads 1)

# begin N DIR FLAGS...: a long job in the background, once it has finished an epoch.
begin() {
    local n=$1 dir=$2
    shift 2
    last="mpirun -n $n esper ${long[*]} --run-dir $dir $*"
    RANKS_SECONDS=60 bash "$SOURCE_DIR/tests/dist/ranks.sh" "$n" "$ESPER" "${long[@]}" --run-dir "$dir" "$@" \
        >"$dir.out" 2>"$dir.err" </dev/null &
    job=$!
    wait_for 60 has_epochs "$dir" || bad "$last" "no two epochs in 60 s" "$(cat "$dir.err")"
}

# has_epochs DIR: two are over. The second began with a snapshot of its own, so there is something to save.
has_epochs() {
    [ "$(grep -c epoch_ended "$1/events.jsonl")" -ge 2 ]
}

# expect_end DIR SECONDS: the job is over by then, and has not ended well. Its errors in $err.
expect_end() {
    local began=$EPOCHREALTIME
    wait "$job"
    code=$?
    took=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    err=$(cat "$1.err")
    n_checks=$((n_checks + 2))
    [ "$code" -ne 0 ] || bad "$last" "exit status 0"
    awk -v t="$took" -v most="$2" 'BEGIN { exit !(t <= most) }' || bad "$last" "it took $took s, expected $2 at most" "$err"
    echo "$1: over after $took s"
}

# expect_resumed DIR N: goes on with N ranks from behind the first checkpoint, which is the one that was named, by the last
# to save.
expect_resumed() {
    local steps named
    steps=$("$ESPER" inspect "$1" | sed -n 's/^cursor .* step \([0-9]*\).*/\1/p')
    named=$(grep -oE "Step [0-9]+, in|checkpoint of step [0-9]+," <<<"$err" | grep -oE "[0-9]+" | sort -n | tail -1)
    expect_equal "$1: the step on disk, and the one named" "$steps" "$named"
    n_checks=$((n_checks + 1))
    [ "${steps:-0}" -gt 0 ] || bad "$last" "the checkpoint is of step '$steps'" "$err"
    on_ranks "$2" grow --resume "$1" --epochs $((steps / 6 + 2)) --progress none
    expect_code 0
}

# ---------------------------------------------------------------------------- killed

begin 3 killed
kill -9 "$(pid_of 1 killed)"
expect_end killed 20
case $err in # on a busy machine the launcher may be the first to see it
*"the launcher has ended the job"*) expect_words err "since it lost rank 1" ;;
*) expect_words err "rank 1 ended or left the job" ;;
esac
expect_words err "is saved: --resume killed"
expect_resumed killed 2

begin 2 killed-first
cp killed-first/last.safetensors killed-first/sound.safetensors # as if it had been in doubt once
kill -9 "$(pid_of 0 killed-first)" # the one that writes
expect_end killed-first 20
expect_words err "is saved: --resume killed-first"
expect_equal "checkpoints" "$(cd killed-first && echo *.safetensors)" last.safetensors
expect_equal "rows of epochs, counted by a rank that writes none" \
    "$(grep -ao 'rows\.epochs [0-9]*' killed-first/last.safetensors | cut -d ' ' -f 2)" \
    "$("$ESPER" inspect killed-first | sed -n 's/^cursor .* step \([0-9]*\).*/\1/p' | awk '{ print int($1 / 6) }')"
expect_resumed killed-first 1

# By messages a death on another machine is seen at the deadline at the latest, one on this machine at once.
export ESPER_MPI_SHARED=0
begin 3 killed-far --rank-deadline 3
kill -9 "$(pid_of 1 killed-far)"
expect_end killed-far 25
unset ESPER_MPI_SHARED
expect_words err "is saved: --resume killed-far"
case $err in
*"the launcher has ended the job"*) expect_words err "since it lost rank 1" ;;
*) expect_words err "rank 1 ended" ;;
esac
expect_resumed killed-far 2

# ---------------------------------------------------------------------------- stopped

# Also in the midst of a validation, where the loss is met between batches, and told behind it.
begin 3 stopped --rank-deadline 3
kill -STOP "$(pid_of 2 stopped)"
expect_end stopped 25
expect_words err "rank 2" "is saved: --resume stopped"
expect_resumed stopped 3

# Once all is trained, the test is what is left: nothing is lost, and who it was is told.
last="mpirun -n 2 esper train, rank 1 stopped while testing"
RANKS_SECONDS=60 bash "$SOURCE_DIR/tests/dist/ranks.sh" 2 "$ESPER" train synth --backend ref --batch 8 --channels 24 \
    --train-limit 8 --valid-fraction 0.05 --epochs 1 --rank-deadline 2 --threads 1 --progress none --run-dir tested \
    >tested.out 2>tested.err </dev/null &
job=$!
wait_for 60 grep -q '"checkpoint_saved".*"epoch":1' tested/events.jsonl || bad "$last" "no end of training in 60 s"
kill -STOP "$(pid_of 1 tested)"
expect_end tested 20
expect_words err "rank 1" "its test is not: esper eval tested"

# ---------------------------------------------------------------------------- told to leave

begin 2 told
for pid in $(pid_of 0 told) $(pid_of 1 told); do kill -TERM "$pid"; done # as mpirun does
expect_end told 20
expect_words err "is saved: --resume told"
expect_resumed told 2

begin 2 asked
kill -INT "$(pid_of 1 asked)" # one rank's wish is everybody's
wait "$job"
code=$?
n_checks=$((n_checks + 1))
[ "$code" -ne 0 ] || bad "$last" "exit status 0, and it was broken off"
out=$(cat asked.out)
expect_words out "go on with" "asked"

# ---------------------------------------------------------------------------- cut off

# Two ranks in network namespaces of their own, over TCP. Where the machine lets us make them.
near=esper-a-$$ far=esper-b-$$
temporary=$(mktemp -d) # below /tmp: a path of sockets is short
cleanup() {
    local pid
    for pid in $(ip netns pids "$near" 2>/dev/null; ip netns pids "$far" 2>/dev/null); do
        kill -9 "$pid" 2>/dev/null # the far half of the launcher, which waits for its near one
    done
    rm -rf "$temporary"
    ip netns del "$near" 2>/dev/null
    ip netns del "$far" 2>/dev/null
}
connect() {
    ip netns add "$near" && ip netns add "$far" &&
        ip link add veth0 netns "$near" type veth peer name veth0 netns "$far" &&
        ip -n "$near" addr add 10.97.31.1/24 dev veth0 && ip -n "$far" addr add 10.97.31.2/24 dev veth0 &&
        ip -n "$near" link set veth0 up && ip -n "$far" link set veth0 up &&
        ip -n "$near" link set lo up && ip -n "$far" link set lo up
}
if [ "$(id -u)" -ne 0 ] || ! command -v ip >/dev/null || ! connect 2>netns.txt; then
    echo "skipped: the part with network namespaces, which cannot be made here: $(head -1 netns.txt 2>/dev/null)"
    cleanup
    finish
fi
trap cleanup EXIT
cat >agent <<END
#!/bin/bash
# In place of ssh: HOST COMMAND... Each host has temporary files of its own, as machines have: daemons that make the
# same directory at once fail now and then.
host=\$1
shift
mkdir -p "$temporary/\$host"
export TMPDIR="$temporary/\$host"
exec ip netns exec \$([ "\$host" = near ] && echo "$near" || echo "$far") bash -c "\$*"
END
chmod +x agent
apart=(timeout -k 5 120 ip netns exec "$near" mpirun --allow-run-as-root --mca plm rsh --mca plm_rsh_agent "$PWD/agent"
    --mca btl tcp,self --mca btl_tcp_if_include 10.97.31.0/24 --mca oob_tcp_if_include 10.97.31.0/24 --bind-to none
    --mca rtc_hwloc_vmhole none --host near:1,far:1 -n 2)

last="${apart[*]} esper train"
"${apart[@]}" "$ESPER" train synth --epochs 2 --max-steps 4 --batch 24 --progress none --threads 1 --run-dir apart \
    >apart.out 2>apart.err </dev/null
code=$?
out=$(cat apart.out) err=$(cat apart.err)
expect_code 0
expect_words out "accuracy"

last="${apart[*]} esper ${long[*]}"
"${apart[@]}" "$ESPER" "${long[@]}" --run-dir cut --rank-deadline 5 >cut.out 2>cut.err </dev/null &
job=$!
wait_for 60 has_epochs cut || bad "$last" "no two epochs in 60 s" "$(cat cut.err)"
ip -n "$near" link set veth0 down
for pid in $(pid_of 1 cut) $(pid_of 0 cut); do
    wait_for 20 eval "! kill -0 $pid" || bad "$last" "process $pid still waits, 20 s after the line was cut"
done
n_checks=$((n_checks + 2))
kill -TERM "$job" 2>/dev/null # mpirun itself waits for word of its far half
wait "$job"
err=$(cat cut.err)
expect_words err "is saved: --resume cut"
expect_resumed cut 1

finish
