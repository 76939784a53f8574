#!/usr/bin/env bash
# Learning to grow on a machine with many cores, from the folder that dev/gpu/pack.sh has packed: how long 1,600 episodes take, and what the
# policy is worth on seeds, hosts and data that it has not met. Every part has a time limit; what counts is printed, logs are in a file.
#   usage: dev/gpu/learn.sh [PART...]       from the repository's root there; learn, compare and unseen, unless some are named
#     learn     esper learn TASK, ROUNDS rounds of ENVS environments, timed; SEEDS of them (1), those after the first side by side
#     wide      the same number of episodes in a quarter of the rounds of four times the environments: threads wait less for the longest
#     ship      a policy of many tasks (TASKS): SHIP_ROUNDS rounds (100) of SHIP_ENVS environments (32), for share/esper
#     compare   the policies beside none, heuristic and trials on HELD_OUT seeds (100) of TASK: returns, and returns for a TFLOP
#     unseen    the policy of `ship`, or else the first, with half the FLOPs, beside trials with all: on `fashion`, a folder of images and a table
# Environment: KIT (build/gpu-kit); DATA, Fashion-MNIST (build/fm, else what is packed); OUT, a folder for logs and policies; WORK, where
# runs are kept; TASK (fashion_fast), ROUNDS (100), ENVS (16), THREADS (all cores), HOST_SEEDS (64; 0: a seed of its own for each
# episode), FLAGS, more of `esper learn`; POLICY, one that is there already, in the place of the part `learn`.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
kit=$(cd "${KIT:-$root/build/gpu-kit}" && pwd) || exit 1
data=${DATA:-$root/build/fm}
[ -d "$data" ] || data=$kit/data
[ -d "$data" ] || data=/usr/share/datasets/fashion-mnist
threads=${THREADS:-$(nproc)}
work=${WORK:-$(mktemp -d)}
task=${TASK:-fashion_fast}
export LD_LIBRARY_PATH=$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} XDG_CACHE_HOME=$work/cache
mkdir -p "$work/logs" "$work/cache"
esper=$kit/esper
[ $# -gt 0 ] || set -- learn compare unseen

# tell SECONDS LOG COMMAND...: with a time limit, its output in a log, and how long it took.
tell() {
    local limit=$1 log=$work/logs/$2.log name=$2 began status
    shift 2
    began=$(date +%s.%N)
    timeout "$limit" "$@" >"$log" 2>&1
    status=$?
    python3 -c "import sys, time; print('%-16s status %s, %.1f s' % (sys.argv[1], sys.argv[2], time.time() - float(sys.argv[3])))" \
        "$name" "$status" "$began"
    return $status
}

# learn_one NAME SEED THREADS ROUNDS ENVS FLAGS...: a policy at $work/learn-NAME.
learn_one() {
    local name=$1 seed=$2 threads=$3 rounds=$4 envs=$5
    shift 5
    # shellcheck disable=SC2086
    tell "${LEARN_LIMIT:-200}" "learn-$name" "$esper" learn "$task" --rounds "$rounds" --envs "$envs" --threads "$threads" \
        --seed "$seed" --host-seeds "${HOST_SEEDS:-64}" --data "$data" --run-dir "$work/learn-$name" "$@" ${FLAGS:-}
    set -- "$name"
    grep -hE '^(learned|return|time) ' "$work/logs/learn-$1.log" | sed 's/^/    /'
    grep -hE '^ +[0-9]+/' "$work/logs/learn-$1.log" | grep -v round | awk 'NR % 20 == 1 { print "    " $0 }'
}

part_learn() {
    local n=${SEEDS:-1} seed

    learn_one 1 1 "$threads" "${ROUNDS:-100}" "${ENVS:-16}"
    for ((seed = 2; seed <= n; seed++)); do
        learn_one "$seed" "$seed" $(((threads + n - 2) / (n - 1))) "${ROUNDS:-100}" "${ENVS:-16}" &
    done
    wait
}

part_wide() {
    learn_one wide 1 "$threads" $((${ROUNDS:-100} / 4)) $((${ENVS:-16} * 4))
}

# Hosts, data and budgets that are drawn, of two kinds, of images and of a table: episodes of the latter cost next to
# nothing.
part_ship() {
    learn_one ship 1 "$threads" "${SHIP_ROUNDS:-100}" "${SHIP_ENVS:-32}" \
        --tasks "${TASKS:-fast}"
}

policies() {
    [ -z "${POLICY:-}" ] || echo "$POLICY"
    [ -n "${POLICY:-}" ] || for run in "$work"/learn-*/policy.safetensors; do [ ! -f "$run" ] || echo "$run"; done
}

part_compare() {
    local list
    list=none,heuristic,trials,$(policies | paste -sd,)

    tell "${COMPARE_LIMIT:-150}" compare "$esper" compare "$task" --policies "$list" --seeds "${HELD_OUT:-100}" --first-seed 1001 \
        --threads "$threads" --jobs "$threads" --data "$data" --dir "$work/compare" --out "$work/logs/compare.md"
    sed -n '/At equal/,$p' "$work/logs/compare.md" 2>/dev/null | cut -c1-220
}

# A folder of small images and a table, made of the data: no machine has others for sure.
make_data() {
    python3 - "$data" "$work" <<'PYTHON'
import gzip, os, struct, sys, zlib
source, work = sys.argv[1:]

def read(name, head):
    for path, way in ((name, open), (name + ".gz", gzip.open)):
        if os.path.exists(os.path.join(source, path)):
            with way(os.path.join(source, path), "rb") as file:
                return file.read()[head:]
    sys.exit("no %s in %s" % (name, source))

pixels, labels = read("train-images-idx3-ubyte", 16), read("train-labels-idx1-ubyte", 8)

def image(i):
    return pixels[784 * i:784 * (i + 1)]

def png(rows):
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    raw = b"".join(b"\0" + rows[28 * y:28 * (y + 1)] for y in range(28))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(raw, 1)) + chunk(b"IEND", b""))

for i in range(40000, 43000):  # beyond what fashion_fast trains on
    folder = os.path.join(work, "photos", "class%d" % labels[i])
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "%d.png" % i), "wb") as file:
        file.write(png(image(i)))
with open(os.path.join(work, "means.csv"), "w") as file:  # means of 16 patches
    file.write(",".join("p%d" % k for k in range(16)) + ",kind\n")
    for i in range(40000, 46000):
        rows = image(i)
        means = [sum(rows[28 * (7 * (k // 4) + y) + 7 * (k % 4) + x] for y in range(7) for x in range(7)) / 49
                 for k in range(16)]
        file.write(",".join("%.1f" % m for m in means) + ",class%d\n" % labels[i])
PYTHON
}

# unseen NAME WHAT FLAGS...: none and trials with the FLOPs of EPOCHS epochs of so many STEPS of the host, none and the policy with epochs of half
# as many: it decides as often as where it has learned.
unseen() {
    local name=$1 policy
    policy=$(policies | head -n 1)
    [ -n "${POLICY:-}" ] || [ ! -f "$work/learn-ship/policy.safetensors" ] || policy=$work/learn-ship/policy.safetensors
    shift
    tell "${UNSEEN_LIMIT:-100}" "$name" "$esper" compare "$@" --epochs "${EPOCHS:-24}" --max-steps "${STEPS:-32}" --policies none,trials --seeds "${UNSEEN_SEEDS:-8}" \
        --first-seed 2001 --threads "$threads" --jobs "${JOBS:-$threads}" --dir "$work/$name-all" --json
    tell "${UNSEEN_LIMIT:-100}" "$name-half" "$esper" compare "$@" --epochs "${EPOCHS:-24}" --max-steps "$((${STEPS:-32} / 2))" --policies "none,$policy" \
        --seeds "${UNSEEN_SEEDS:-8}" --first-seed 2001 --threads "$threads" --jobs "${JOBS:-$threads}" --dir "$work/$name-half" --json ||
        tail -n 2 "$work/logs/$name-half.log"
    python3 - "$name" "$work/logs/$name.log" "$work/logs/$name-half.log" <<'PYTHON'
import json, math, sys
runs = {}
for path, share in ((sys.argv[2], "all"), (sys.argv[3], "half")):
    for text in open(path, errors="replace"):
        try:
            row = json.loads(text)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("status") == "ok" and "seed" in row:
            runs.setdefault((row["line"], share), {})[row["seed"]] = row
for key, some in sorted(runs.items()):
    mean = lambda what: sum(run[what] for run in some.values()) / len(some)
    print("    %-12s %-5s %d runs: test %.2f %%, %.0f parameters, %.4g training FLOPs" %
          (*key, len(some), mean("acc_test"), mean("params"), mean("flops_train")))
def against(a, b):
    both = sorted(set(runs.get(a, {})) & set(runs.get(b, {})))
    if len(both) < 2:
        return
    off = [runs[a][s]["acc_test"] - runs[b][s]["acc_test"] for s in both]
    mean = sum(off) / len(off)
    sd = math.sqrt(sum((x - mean) ** 2 for x in off) / (len(off) - 1))
    t = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}.get(len(off) - 1, 2.0)
    print("    %s (%s) less %s (%s): %+.2f points, 95 %% %+.2f to %+.2f, %d seeds" %
          (*a, *b, mean, mean - t * sd / math.sqrt(len(off)), mean + t * sd / math.sqrt(len(off)), len(off)))
against(("learned", "half"), ("trials", "all"))
against(("learned", "half"), ("none", "half"))
against(("trials", "all"), ("none", "all"))
PYTHON
}

part_unseen() {
    make_data || return
    unseen fashion fashion --data "$data"
    unseen photos "$work/photos"
    unseen table "$work/means.csv" --target kind
}

for part in "$@"; do
    echo "--- $part"
    part_"$part"
done
if [ -n "${OUT:-}" ]; then
    for log in "$work"/logs/*; do
        printf '=== %s\n' "${log##*/}"
        cat "$log"
    done >"$OUT/learn-logs-$(echo "$*" | tr ' ' -).txt"
    for run in "$work"/learn-*/; do
        [ ! -f "$run/policy.safetensors" ] || cp "$run/policy.safetensors" "$OUT/$(basename "$run").safetensors"
    done
fi
exit 0
