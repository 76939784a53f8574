#!/usr/bin/env bash
# ctest: timeout=180
# bench tickets: five rows, each with both sides and where they were measured; docs/tickets.md shows the same recorded
# figures. What is measured is not looked at. tests/dist/test_tickets.sh has the ranks.
. "$SOURCE_DIR/tests/cli/common.sh"

tickets="B1-PT-02 B3-CR-05 B3-DRL-18 B7-PT-02 B7-PT-03"
page=$SOURCE_DIR/docs/tickets.md

# member TICKET KEY: a number or a text of its line.
member() {
    sed -n "/\"ticket\":\"$1\"/p" out.txt | sed -nE "s/.*\"$2\":(\"([^\"]*)\"|([-+0-9.e]+)).*/\2\3/p"
}

# check_sides TICKET: it has both figures, a ratio and a machine.
check_sides() {
    expect_equal "$1: two sides and a ratio" "$(awk -v b="$(member "$1" before)" -v a="$(member "$1" after)" \
        -v r="$(member "$1" ratio)" 'BEGIN { print (b > 0 && a > 0 && r > 0) }')" 1
    expect_equal "$1: its machine is named" "$([ -n "$(member "$1" machine)" ] && echo yes)" yes
}

# ---- on the host: two measured, three recorded, and what these need is said
esper bench tickets --quick --json --device host --threads 2
expect_code 0
expect_equal "tickets" "$(sed -nE 's/.*"ticket":"([A-Z0-9-]*)".*/\1/p' out.txt | xargs)" "$tickets"
for ticket in $tickets; do
    check_sides "$ticket"
    expect_words out "\"name\":\"tickets.$ticket\""
done
for ticket in B7-PT-02 B7-PT-03; do
    expect_equal "$ticket" "$(member "$ticket" measured)" here
    expect_equal "$ticket: machine" "$(member "$ticket" machine)" "host, 2 threads"
    expect_equal "$ticket: quick" "$(grep "$ticket" out.txt | grep -c '"quick":true')" 1
done
for ticket in B1-PT-02 B3-CR-05; do
    expect_equal "$ticket" "$(member "$ticket" measured)" recorded
    expect_equal "$ticket: needs" "$(member "$ticket" needs)" "a CUDA device"
done
expect_equal "B3-DRL-18" "$(member B3-DRL-18 measured)" recorded
expect_equal "recorded figures are never quick" "$(grep recorded out.txt | grep -c quick)" 0
expect_equal "before / after is the ratio of memory" "$(awk -v b="$(member B7-PT-03 before)" \
    -v a="$(member B7-PT-03 after)" -v r="$(member B7-PT-03 ratio)" \
    'BEGIN { d = b / a / r - 1; print (d * d < 1e-12) }')" 1
# a flat copy and a mask of an eighth of GPT-2's width: 5 bytes for each of 1.96 M gradients and a little
expect_equal "memory of the copy" "$(awk -v b="$(member B7-PT-03 before)" 'BEGIN { print (b > 9.7 && b < 9.9) }')" 1
if python3 -c 'import json' 2>/dev/null; then
    expect_equal "lines that a JSON parser reads" \
        "$(python3 -c 'import json; print(sum(isinstance(json.loads(line), dict) for line in open("out.txt")))')" 5
else
    echo "skipped: python3 is not here to read JSON"
fi

# ---- the page has the same figures
if [ -f "$page" ]; then
    for ticket in B1-PT-02 B3-CR-05 B3-DRL-18; do
        for key in before after; do
            value="$(member "$ticket" $key) $(member "$ticket" unit)"
            n_checks=$((n_checks + 1))
            sed -n "/^## $ticket/,/^## /p" "$page" | tr '\n' ' ' | grep -qF "$value" ||
                bad "docs/tickets.md, $ticket" "lacks $value"
        done
    done
else
    echo "skipped: the documentation is not here"
fi

# ---- for people, and one at a time
esper bench tickets --quick --device host --threads 1
expect_code 0
expect_equal "rows" "$(grep -cE '^B[0-9]-[A-Z]+-[0-9]+ .* x  (here|recorded): .' out.txt)" 5
expect_words out "finding" "before" "after" "ratio" "here: host, 1 thread" "quick: small shapes" "needs:  a CUDA device" "bench/vs_torch gate"
esper bench tickets.B7-PT-02 --quick --json --device host --threads 1
expect_equal "one name, one line" "$(wc -l <out.txt)" 1

# ---- refused
refused 2 "no benchmark is called 'tickets.B9'" bench tickets.B9
refused 2 "neither --backend nor --paced" bench tickets --paced --quick
refused 2 "neither --backend nor --paced" bench tickets --backend ref --quick
refused 2 "--device tpu|host, cuda or cuda:N" bench tickets.B1-PT-02 --device tpu

finish
