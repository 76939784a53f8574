#!/usr/bin/env bash
# Grows networks on Fashion-MNIST on a machine with a GPU, several at a time, each a process of its own, and says in a line what came of each.
#   usage: build/gpu-kit/grow.sh [NAME...]
# A name is a row of the table below, or of the file VARIANTS, whose rows are `name: command and settings of esper`.
# Environment: KIT, the folder with the program (that of this script); DATA, Fashion-MNIST (KIT/data; where there is none, that which
# esper finds); SEEDS ("1 2 3"); JOBS, runs at a time (3); LIMIT, seconds for all (600): what has not ended then is
# stopped, and says how far it got; OUT, a folder for the logs and the decisions; BACKEND (cuda); MORE, settings for all.
set -u

kit=$(cd "${KIT:-$(dirname "$0")}" && pwd)
backend=${BACKEND:-cuda}
seeds=${SEEDS:-1 2 3}
jobs=${JOBS:-3}
limit=${LIMIT:-600}
out=${OUT:-$(mktemp -d)}
data=${DATA:-$kit/data}
work=$(mktemp -d)
mkdir -p "$out"
export LD_LIBRARY_PATH=$kit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$work/cache}

# What docs/results.md shows, and what could be better.
table() {
    [ -n "${VARIANTS:-}" ] && cat "$VARIANTS"
    cat <<'EOF'
below_174k: grow fashion_long --pools 1 --max-params 174000 --weight-decay 5e-4 --trial-first 0.01 --trial-rounds 1 --trial-seeds 3 --trial-steps 600 --trial-price 0 --flops 4e14
three_stages: grow fashion_long --host 'conv 24 | pool | conv 48 1x1 | pool | conv 56 1x1 | mean | linear' --max-params 174000 --weight-decay 5e-4 --trial-first 0.01 --trial-rounds 1 --trial-seeds 5 --trial-steps 400 --trial-price 0 --trial-share 0.07 --flops 4e14
below_768k: grow fashion_long --host 'conv 32 | pool | conv 64 1x1 | pool | conv 128 1x1 | mean | linear' --max-params 768000 --weight-decay 5e-4 --trial-first 0.01 --trial-rounds 1 --trial-seeds 5 --trial-steps 400 --trial-price 0 --trial-share 0.07 --flops 6e14
EOF
}

# one NAME SEED COMMAND...: a run, and the line that says what came of it.
one() {
    local name=$1 seed=$2 run=$work/$1-$2 log=$out/$1-$2.txt begin=$SECONDS status
    shift 2
    local left=$((limit - SECONDS)) options=(--backend "$backend" --seed "$seed" --threads 1 --progress plain --run-dir "$run")
    [ -d "$data" ] && options+=(--data "$data")
    if [ "$left" -lt 5 ]; then
        echo "$name seed $seed: no time left"
        return
    fi
    timeout -s INT -k 5 "$left" "$kit/esper" "$@" "${options[@]}" >"$log" 2>&1
    status=$?
    cp "$run/decisions.jsonl" "$out/$name-$seed.jsonl" 2>/dev/null
    awk -v name="$name" -v seed="$seed" -v status="$status" -v seconds=$((SECONDS - begin)) '
        /^ +[0-9,]+ parameters; a step/ && host == "" { host = $1 }
        /^ +[0-9]+\/~?[0-9]+ .*(%).*[0-9.]+ +(s|ms|[0-9]:)/ { last = $0 }
        /^  test accuracy/ { accuracy = $3 " " $4 }
        /^test +loss/ { accuracy = $(NF - 1) " %"; params = host; flops = "its FLOPs" }
        /^  parameters/ { params = $2 }
        /^  training FLOPs/ { flops = $3 " " $4 }
        /part of trials/ { trials = $4 " %" }
        /^  (r[0-9]+c|wide)[0-9_]+ / { seeds = seeds " " $1 ":" $2 "(" ($0 ~ /fossilized/ ? "" : "not ") "kept" gain($0) ")" }
        /^weights/ { hash = $2 }
        function gain(line) { return match(line, /gain [+-][0-9.]+/) ? " " substr(line, RSTART + 5, RLENGTH - 5) : "" }
        END {
            if (accuracy == "")
                printf "%s seed %s: NO RESULT (exit %s) after %d s: %s\n", name, seed, status, seconds, last
            else
                printf "%s seed %s: %s, %s parameters from %s, %s, trials %s, %d s, weights %s;%s\n", name, seed, accuracy,
                    params, host, flops, trials == "" ? "0 %" : trials, seconds, hash, seeds == "" ? " no seeds" : seeds
        }' "$log"
}

names=("$@")
[ ${#names[@]} -gt 0 ] || names=(below_174k below_768k)
for name in "${names[@]}"; do
    row=$(table | sed -n "s/^$name: *//p" | head -n 1)
    if [ -z "$row" ]; then
        echo "$name: not in the table" >&2
        continue
    fi
    eval "command=($row ${MORE:-})" # its words are quoted as for a shell
    for seed in $seeds; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
        one "$name" "$seed" "${command[@]}" &
    done
done
wait
echo "logs: $out"
