#!/usr/bin/env bash
# ctest: timeout=120
# bench prints one JSON object a line: name, value, unit, limit, ratio. What it measures is nobody's business here.
. "$SOURCE_DIR/tests/cli/common.sh"

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
finish
