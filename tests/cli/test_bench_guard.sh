#!/usr/bin/env bash
# ctest: timeout=180
# bench guard: every benchmark works on small shapes and prints what DESIGN promises; what it measures is not looked at.
. "$SOURCE_DIR/tests/cli/common.sh"

# member FILE NAME KEY: of the line about a benchmark, a number or a text.
member() {
    sed -n "/\"name\":\"$2\"/p" "$1" | sed -nE "s/.*\"$3\":(\"([^\"]*)\"|([-+0-9.e]+)).*/\2\3/p"
}

# ---- all of them, on the host
esper bench guard --quick --json --threads 2 --device host
expect_code 0
expect_equal "names" "$(sed -E 's/.*"name":"([a-z0-9_.]*)".*/\1/' out.txt | tr '\n' ' ')" \
    "guard.scan.gpt2 guard.scan.gpt2_grads guard.scan.small100 guard.scan.small100_grads guard.scan.tiny10k guard.scan.1b guard.scan.1b_grads guard.rollback.gpt2 guard.rollback.gpt2_adam guard.rollback.gpt2_pinned "
for name in scan.1b scan.1b_grads rollback.gpt2_pinned; do
    expect_equal "guard.$name without a GPU" "$(member out.txt "guard.$name" skipped)" "needs a CUDA device"
done
for name in scan.gpt2 scan.gpt2_grads scan.small100 scan.small100_grads scan.tiny10k rollback.gpt2 rollback.gpt2_adam; do
    expect_equal "guard.$name: limit / value = ratio" "$(awk -v v="$(member out.txt "guard.$name" value)" \
        -v l="$(member out.txt "guard.$name" limit)" -v r="$(member out.txt "guard.$name" ratio)" \
        'BEGIN { d = l / v - r; print (v > 0 && l > 0 && d * d < 1e-12) }')" 1
    expect_equal "guard.$name: unit" "$(member out.txt "guard.$name" unit)" ms
    expect_equal "guard.$name: device" "$(member out.txt "guard.$name" device)" host
    expect_equal "guard.$name: threads" "$(member out.txt "guard.$name" threads)" 2
    expect_equal "guard.$name: rounds" "$(member out.txt "guard.$name" rounds)" 3
done
for key in value_p10_p90 limit_p10_p90 ratio_p10_p90 ratio_paired bytes tensors gb_per_s commit; do
    expect_words out "\"$key\":"
done
# an eighth of GPT-2's width: 2,028,384 parameters in 148 tensors; small100: 50 of 64 x 8 x 3 x 3 and 50 of 64
expect_equal "bytes read of all" "$(member out.txt guard.scan.gpt2 bytes)" "$((2 * $(member out.txt guard.scan.gpt2_grads bytes)))"
expect_equal "bytes of the gradients" "$(member out.txt guard.scan.small100_grads bytes)" "$((50 * (4608 + 64) * 4))"
expect_equal "bytes with moments" "$(member out.txt guard.rollback.gpt2_adam bytes)" "$((3 * $(member out.txt guard.rollback.gpt2 bytes)))"
expect_equal "tensors of gpt2" "$(member out.txt guard.scan.gpt2 tensors)" 296
if python3 -c 'import json' 2>/dev/null; then
    expect_equal "lines that a JSON parser reads" \
        "$(python3 -c 'import json; print(sum(isinstance(json.loads(line), dict) for line in open("out.txt")))')" 10
else
    echo "skipped: python3 is not here to read JSON"
fi

# ---- for people, and one at a time
esper bench guard.scan --quick --device host --threads 1
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 7
expect_words out "guard.scan.gpt2 " "ms" "skipped: needs a CUDA device"
expect_equal "lines that say they are quick" "$(grep -c ' ms   quick$' out.txt)" 5
expect_equal "lines that claim more" "$(grep -cE 'limit|%|GB/s' out.txt)" 0
esper bench guard.scan.small100_grads --device host --threads 1
expect_words out "guard.scan.small100_grads " "ms" "limit" "%" "GB/s"
expect_equal "lines that are quick" "$(grep -c quick out.txt)" 0
esper bench --help
expect_words out "limit is the best that any program could do"
esper bench guard.scan.gpt2 --quick --device host --threads 1 --json
expect_equal "one name, one line" "$(wc -l <out.txt)" 1

# ---- in turn with another program: a line for a line
printf 'a\nb\n' >lines
"$ESPER" bench guard.scan.small100 --quick --json --paced --device host --threads 1 <lines >out.txt 2>err.txt
code=$? last="esper bench --paced"
out=$(cat out.txt) err=$(cat err.txt)
expect_code 0
expect_equal "lines" "$(wc -l <out.txt)" 3
expect_words out '"ready":true' '"value":' '"unit":"ms"'

# ---- refused
refused 2 "--device tpu|host, cuda or cuda:N" bench guard --device tpu
refused 2 "--device cuda:x|host, cuda or cuda:N" bench guard --device cuda:x
refused 2 "no benchmark is called 'guard.scna'" bench guard.scna
refused 2 "--paced|one benchmark" bench guard --paced --quick
refused 2 "no --backend|--device" bench guard --backend ref --quick
refused 2 "takes no --device" bench train --device host
refused 2 "--paced|one benchmark" bench train --paced
if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
    esper bench guard.scan.gpt2 --quick --device cuda
    expect_code 1
    expect_words err "esper: "
fi
finish
