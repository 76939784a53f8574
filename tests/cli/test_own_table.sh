#!/bin/bash
# ctest: timeout=120 cost=4
# A table becomes a run: columns are found and told, and the run goes on, is repeated, scored and exported from its directory alone.
. "$SOURCE_DIR/tests/cli/common.sh"

# Of two products one class: known structure, with gaps, a category, a column that says nothing and one that says too much.
make_table() {
    awk -v n="$1" 'BEGIN {
        srand(7); print "name,x,y,town,zero,kind"
        for (i = 0; i < n; i++) {
            x = rand() * 4 - 2; y = rand() * 4 - 2; town = int(rand() * 3)
            s = x * y + (town == 2 ? 1 : 0)
            printf "n%d,%s,%.3f,%s,0,%s\n", i, rand() < 0.05 ? "" : sprintf("%.3f", x), y, \
                substr("OsloRomeLima", 4 * town + 1, 4), (s > 0.5 ? "up" : s > -0.5 ? "level" : "down")
        }
    }'
}
make_table 2000 >t.csv
quick=(--threads 1 --progress plain)

esper info data t.csv
expect_code 0
expect_words out "a table, 6 numbers for a row, 3 classes" "2000 rows and 6 columns, with commas" "first line names them" \
    "the target is 'kind', the last column" "name: left out: text with more than 1024 different values" \
    "zero: left out: always the same" "category of 3 values" "missing" "down" "drawn by the seed" "chosen" "grow t.csv"
esper info data t.csv --json
expect_words out '"kind":"table"' '"features":6' '"name":"town","about":"category of 3 values"' '"chosen":{'

esper grow t.csv "${quick[@]}" --epochs 300 --run-dir grown
expect_code 0
expect_words out "table: $PWD/t.csv" "3 classes: down, level, up" "MLP of 1 layer"
cp -r grown elsewhere && mkdir -p far && cd far || exit 1
esper replay ../elsewhere
expect_code 0
esper eval ../elsewhere
expect_code 0
expect_words out "test split" "% of" "level"
esper grow --resume ../elsewhere --epochs 330 --progress none
expect_code 0
esper report ../elsewhere --out page.html # told once, by the run that began
expect_code 0
page=$(cat page.html)
expect_words page "<dt>Data</dt><dd>3 classes: down, level, up</dd>"
esper inspect ../elsewhere
expect_words out '["down","level","up"]'
esper export ../elsewhere --torch exported
expect_code 0
grep -q '^    "level",$' exported/model.py || bad "classes in model.py" "$(sed -n 20,40p exported/model.py)"
grep -q '("town = Oslo", 0, 1),' exported/model.py || bad "features in model.py" "$(sed -n 20,40p exported/model.py)"
cd .. || exit 1

# A policy learns on it, goes on from its directory, and decides about a run on the same data.
learn=(--batch 8 --max-steps 2 --epochs 5 --gate-epochs 1 --envs 2 --policy-width 8 --ppo-chunk 3 --ppo-epochs 2 --rounds 2)
esper learn t.csv "${quick[@]}" "${learn[@]}" --run-dir learned
expect_code 0
expect_words out "task      table: hosts of" "--data=$PWD/t.csv" "saved     learned/policy.safetensors"
esper learn --resume learned --rounds 3 --progress none
expect_code 0
expect_words out "learned   3 rounds, 6 episodes"
page=$(cat learned/report.html)
expect_words page "<dt>Data</dt><dd>3 classes: down, level, up</dd>"
esper grow t.csv "${quick[@]}" --epochs 5 --batch 8 --max-steps 2 --gate-epochs 1 --policy learned/policy.safetensors --run-dir by_learned
expect_code 0

# Another target is other data and another network.
esper train t.csv --target town "${quick[@]}" --epochs 2 --run-dir towns
expect_code 0
expect_words out "3 classes: Lima, Oslo, Rome"
sed 's/,up$/,high/' t.csv >renamed.csv
refused 2 'tells the classes ["down","level","up"] apart, and the data has ["down","high","level"]' eval grown --data renamed.csv

# Names that would be code are data.
{ echo "x,k"; for i in $(seq 60); do echo "$i,\"a\"\"; import os #\""; echo "-$i,日本 \\"; done; } >hostile.csv
esper train hostile.csv "${quick[@]}" --epochs 2 --run-dir hostile
expect_code 0
esper export hostile --torch hostile_torch
expect_code 0
grep -qF '"a\u0022; import os #",' hostile_torch/model.py || bad "a hostile name" "$(grep -n import hostile_torch/model.py)"
grep -qF '"日本 \u005c",' hostile_torch/model.py || bad "a name in another script" "$(grep -n -A4 CLASSES hostile_torch/model.py)"
if command -v python3 >/dev/null; then
    names=$(python3 - hostile_torch/model.py <<'PYTHON'
import ast, sys
for node in ast.parse(open(sys.argv[1], encoding="utf-8").read()).body:
    if isinstance(node, ast.Assign) and node.targets[0].id == "CLASSES":
        print(ascii(ast.literal_eval(node.value)))
PYTHON
    )
    expect_equal "names that Python reads" "$names" "['a\"; import os #', '\\u65e5\\u672c \\\\']"
    # A Python without PyTorch: -I -S leaves installed packages out.
    python3 -I -S hostile_torch/model.py >out.txt 2>err.txt
    expect_equal "model.py without PyTorch" "$? $(wc -l <err.txt)" "1 1"
    err=$(cat err.txt) && expect_words err "model.py needs PyTorch"
fi

# What is shown of a long run that nobody watches: about a hundred epochs, and why nothing grew.
{ echo "x,k"; for i in $(seq 200); do echo "$i,$((i % 2))"; done; } >long.csv
esper grow long.csv --threads 1 --epochs 400 --progress plain --trial-share 0 --run-dir long
expect_code 0
n_lines=$(grep -c '^ *[0-9]*/' out.txt)
[ "$n_lines" -ge 90 ] && [ "$n_lines" -le 110 ] || bad "a long run" "$n_lines lines of epochs"
expect_words out "a row" "one slot, r0c0" "1 number for a row" "no seed germinated: "
esper train long.csv --threads 1 --epochs 300 --progress plain --run-dir long_train
trained=$(cat out.txt)
n_lines=$(grep -c '^ *[0-9]*/' out.txt)
[ "$n_lines" -ge 90 ] && [ "$n_lines" -le 110 ] || bad "a long run" "$n_lines lines of epochs"

# Which network of a run is taken, and where the other is.
esper eval long_train
expect_words out "long_train/last.safetensors after epoch 300"
expect_words out "this is the run's last network" "give long_train/best.safetensors"
esper eval long_train/best.safetensors
expect_code 0
expect_no_word out "this is the run's last network"
best=$(sed -n 's/^best .* of epoch \([0-9]*\):.*/\1/p' <<<"$trained")
expect_words out "long_train/best.safetensors after epoch $best: test split"

# Names of more than one line are shown on one.
{ printf '"height\nin m",k\n'; for i in $(seq 60); do printf '%d,"big\n%d"\n' "$i" $((i % 2)); done; } >lines.csv
esper info data lines.csv
expect_code 0
expect_words out "columns   height?in m: number" "  big?1" "'big?0' has"

# What is refused, and where it is; and nothing is said of decoding then.
printf 'a,b\n1,x\n2\n3,y\n' >ragged.csv
refused 1 "ragged.csv: line 3 has 1 field, and the first has 2" grow ragged.csv
expect_no_word err "in the cache"
printf 'a;b;k\n1,5;2;x\n-2,25;3;y\n' >commas.csv
refused 1 "the column 'a' has numbers with decimal commas, such as '1,5' in line 2" grow commas.csv
printf 'a,b,k\n1,5,2,x\n' >commas_between.csv
refused 1 "line 2 has 4 fields, and the first has 3: a field that holds a comma, a decimal comma too, needs quotes" grow commas_between.csv
printf 'Once upon a time, there was a fox.\nIt lived in a wood, far away, and was glad.\n' >prose.csv
refused 1 "If it is prose: a file whose name ends in .txt is read as text" grow prose.csv
{ echo "a,k"; for i in $(seq 100); do echo "$i,$((i % 2))"; done; echo "1x7,0"; } >mixed.csv
refused 1 "holds numbers, but for 1 of its cells; the first is '1x7' in line 102: mend it" grow mixed.csv
cp t.csv t.txt
refused 2 "--target kind is for tables, and t.txt is taken for text by its name" grow t.txt --target kind
esper info data t.csv --target kind
expect_words out "grow t.csv --target=kind"
printf 'a,b\n1,x\n2,x\n' >one.csv
refused 1 "all rows are of one class" grow one.csv
seq 400 | awk 'BEGIN { print "a,b" } { print $1 "," $1 * 1.5 }' >numbers.csv
refused 1 "that asks for a number, and only classes can be learned" grow numbers.csv
refused 2 "no column is called 'knd'|did you mean 'kind'" grow t.csv --target knd
refused 2 "--target has no effect on synth" train synth --target a
head -c 5000 /dev/urandom >noise.csv
esper grow noise.csv
[ "$code" -ne 0 ] || bad "noise was taken for a table"

finish
