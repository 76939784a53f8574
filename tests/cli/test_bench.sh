#!/usr/bin/env bash
# ctest: timeout=120 cost=7 labels=noasan
# bench prints one JSON object a line: name, value, unit, limit, ratio. What it measures is nobody's business here.
. "$SOURCE_DIR/tests/cli/common.sh"

kernels=() weights=() text_weights=()
export ESPER_BATCH=3 # the work behind a figure is fixed: what the environment says of it is passed over
esper bench train.cnn_small --json --threads 1
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 1
expect_words out '"name":"train.cnn_small"' '"value":' '"unit":"samples/s"' '"limit":' '"ratio":' '"kernels":"cpu/' \
    '"threads":1'
expect_equal "value / limit = ratio" "$(sed 's/[{}"]//g; s/,/\n/g' out.txt | awk -F: '
    { of[$1] = $2 }
    END { r = of["value"] / of["limit"]; d = r - of["ratio"]; print (of["value"] > 0 && d * d < 1e-12) }')" 1
if python3 -c 'import json' 2>/dev/null; then
    expect_equal "read by a JSON parser" "$(python3 -c 'import json; print(*sorted(json.load(open("out.txt"))))')" \
        "kernels limit name ratio threads unit value"
else
    echo "skipped: python3 is not here to read JSON"
fi
esper bench train.cnn_small --threads 1 --backend null
expect_code 0
expect_words out "training with null" "1 thread; limit: the multiply-add peak" "train.cnn_small" "samples/s" "limit" "%"

# ---- paced: a line when ready, and one for each line of input
printf 'round\nround\n' >rounds.txt
"$ESPER" bench train.lm_tiny --paced --quick --threads 1 --backend null <rounds.txt >out.txt
out=$(cat out.txt)
expect_equal "lines" "$(wc -l <out.txt)" 3
expect_words out '"ready":true' '"threads":1' '"unit":"ms"'

# ---- gate: alone it is a job of one; tests/dist/test_ranks.sh has more
esper bench gate --json --quick
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 1
expect_words out '"name":"gate.agree"' '"unit":"us"' '"limit":' '"ratio":' '"ranks":1' '"comm":"self"'
esper bench gate.agree --quick
expect_code 0
expect_words out "gate.agree" "us" "limit" "1 rank (self)"
esper bench gate --paced
expect_code 2
expect_words err "gate takes no --device and no --paced"
esper bench ranks
expect_code 2
expect_words err "mpirun -n 2"
esper info backends
expect_words out "communicators" "self  a job of one process" " mpi "

# ---- learn: a line for each figure, and no runs left behind
esper bench learn --quick --json
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 8
expect_words out '"name":"learn.steps"' '"unit":"steps/s"' '"name":"learn.waiting"' '"name":"learn.two"' '"limit":1.8' \
    '"name":"learn.overhead"' '"limit":10' '"ratio":' '"quick":true'
expect_equal "shares of the time" "$(sed -n 's/.*"learn\.\(hosts\|validation\|policy\|bookkeeping\|waiting\)","value":\([0-9.e-]*\),.*/\2/p' \
    out.txt | awk '{ s += $1 } END { print (NR == 5 && s > 99.9 && s < 100.1) }')" 1
esper bench learn.two --quick
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 1
expect_words out "learn.two" "times" "goal 1.8"
esper bench learn --paced
expect_code 2
expect_words err "learn takes no --device and no --paced"
expect_equal "runs of the benchmark left here" "$(ls -d runs 2>/dev/null)" ""

# ---- env: rounds of learning with what they are spent on, and no runs left behind
esper bench env --quick --json --envs 3
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 2
expect_words out '"name":"env.cifar16"' '"name":"env.fashion_fast256"' '"unit":"steps/s"' '"limit":500' '"limit":3000' \
    '"envs":3' '"rounds":2' '"whole":true' '"data":"synthetic"' '"quick":true'
expect_equal "shares of the time" "$(sed 's/.*"parts":{\([^}]*\)}.*/\1/; s/"[a-z]*"://g; s/,/ /g' out.txt |
    awk '{ s = 0; for (i = 1; i <= NF; i++) s += $i; good += NF == 6 && s > 0.999 && s < 1.001 } END { print good }')" 2
esper bench env.cifar16 --quick
expect_code 0
expect_words out "env.cifar16" "steps/s" "goal 500" "training" "bookkeeping"
esper bench env --paced
expect_code 2
expect_words err "env takes no --device and no --paced"
esper bench learn --envs 3
expect_code 2
expect_words err "--envs is for env"
expect_equal "runs of the benchmark left here" "$(ls -d runs 2>/dev/null)" ""

# ---- tune: a line for each row, and a table that the program takes
esper bench tune --quick --threads 1 --out my.table
expect_code 0
expect_words out "linear.y" "conv.dx" "GFLOP/s" "ESPER_TUNE=my.table takes it"
expect_equal "first line of the table" "$(head -1 my.table)" "esper-tune 1"
expect_equal "a note that it was quick" "$(grep -c '^# quick' my.table)" 1
esper bench tune --out absent/my.table
expect_code 1
expect_words err "absent/my.table" "cannot be written"
esper bench tune --out .
expect_code 1
expect_words err "this is a directory"
esper bench tune.linear.dw --quick --threads 1 --json
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 2
expect_words out '"name":"tune.linear.dw.64"' '"first":"tiles"' '"other":"bands"' '"unit":"GFLOP/s"' '"ratio":' \
    '"was":' '"way":'

# ---- another table is another identity and the same bits
unset ESPER_BATCH
sed 's/narrow/wide/g; s/tiles/bands/g; s/whole/split/g' my.table >second.table
sed 's/wide/narrow/g; s/bands/tiles/g; s/split/whole/g' my.table >first.table
for table in first second; do
    for task in "synth --channels 40 --blocks 2" "synth_text --width 136 --layers 2"; do
        # shellcheck disable=SC2086 # words
        ESPER_TUNE=$table.table esper train $task --threads 2 --batch 8 --epochs 1 --max-steps 2 \
            --run-dir "$table-${task%% *}"
        expect_code 0
    done
    esper inspect "$table-synth"
    kernels[${#kernels[@]}]=$(sed -n 's/^kernels *//p' out.txt)
    weights[${#weights[@]}]=$(sed -n 's/^weight_hash *//p' out.txt)
    esper inspect "$table-synth_text"
    text_weights[${#text_weights[@]}]=$(sed -n 's/^weight_hash *//p' out.txt)
done
expect_equal "weights of synth" "${weights[1]}" "${weights[0]}"
expect_equal "weights of synth_text" "${text_weights[1]}" "${text_weights[0]}"
expect_equal "two identities" "$(printf '%s\n' "${kernels[@]}" | sort -u | wc -l)" 2
ESPER_TUNE=first.table esper train --resume second-synth --epochs 2
expect_equal "warnings about bits that another table does not change" "$(grep -c 'last bits' err.txt)" 0
finish
