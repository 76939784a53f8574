#!/usr/bin/env bash
# ctest: timeout=180 cost=8
# esper predict from the outside: the classes that esper eval counts, for images, tables, arrays and texts, from a run or a checkpoint
# alone, its data gone; and the same text from the same seed.
. "$SOURCE_DIR/tests/cli/common.sh"

command -v python3 >/dev/null || {
    echo "skipped: there is no python3 to make files with"
    exit 77
}

# field KEY, of each JSON line of standard input.
field() {
    python3 -c 'import json, sys
for line in sys.stdin:
    it = json.loads(line).get(sys.argv[1])
    print(float(it) if isinstance(it, int) else it)' "$1"
}

# ---- a table: every row of it, found by names or by places, has the class that eval counts
make_table() { # ROWS SEED
    awk -v n="$1" -v seed="$2" 'BEGIN {
        srand(seed); print "name,x,town,y,zero,kind,a = b"
        for (i = 0; i < n; i++) {
            x = rand() * 4 - 2; y = rand() * 4 - 2; town = int(rand() * 3)
            printf "n%d,%s,%s,%.3f,0,%s,%s\n", i, rand() < 0.05 ? "" : sprintf("%.3f", x), \
                rand() < 0.03 ? "NA" : substr("OsloRomeLima", 4 * town + 1, 4), y, (x * y > 0.5 ? "up" : x * y > -0.5 ? "<level>" : "down \"\\"), \
                rand() < 0.5 ? "c" : "c = d"
        }
    }' | sed 's/down "\\/"down ""\\"/'
}
make_table 600 7 >t.csv
esper train t.csv --target kind --threads 1 --epochs 8 --run-dir table
expect_code 0
esper eval table --json
expect_code 0
accuracy=$(field accuracy <<<"$out")
confusion=$(python3 -c 'import json, sys
it = json.loads(sys.stdin.read()); rows = it["confusion"]
assert [sum(row) for row in rows] == [c["samples"] for c in it["classes"]]
assert [rows[i][i] for i in range(len(rows))] == [c["correct"] for c in it["classes"]]
print(sum(map(sum, rows)))' <<<"$out")
expect_equal "samples in the confusion of 600 rows" "$confusion" 60
esper predict table --split test --json --top 2
expect_code 0
right=$(python3 -c 'import json, sys
lines = [json.loads(line) for line in sys.stdin]
assert all(len(l["top"]) == 2 and l["top"][0]["class"] == l["class"] and l["probability"] >= l["top"][1]["probability"] for l in lines)
print(100.0 * sum(l["class"] == l["label"] for l in lines) / len(lines))' <<<"$out")
expect_equal "accuracy of the answers to the test split" "$right" "$accuracy"
esper predict table t.csv --json
expect_code 0
expect_equal "answers" "$(wc -l <out.txt)" 600
by_name=$(field class <out.txt | cksum)
probabilities=$(field probability <out.txt)

mv t.csv gone.csv # the data need not be there
python3 - <<'EOP'
import csv
rows = list(csv.reader(open("gone.csv")))
order = [3, 6, 1, 2] # other columns, in another order, the class not among them
csv.writer(open("mixed.csv", "w")).writerows([[row[i] for i in order] for row in rows])
csv.writer(open("bare.csv", "w")).writerows([row[:5] + row[6:] for row in rows[1:]]) # no names, no class
csv.writer(open("bad.csv", "w")).writerows([["x", "y"], ["1", "2"]])
csv.writer(open("strange.csv", "w")).writerows([rows[0], ["n", "1", "Paris", "0.5", "0", "up", "c"]])
csv.writer(open("words.csv", "w")).writerows([rows[0], ["n", "one", "Rome", "0.5", "0", "up", "c"]])
EOP
for file in gone.csv mixed.csv bare.csv; do
    esper predict table/last.safetensors $file --json
    expect_code 0
    expect_equal "classes of $file" "$(field class <out.txt | cksum)" "$by_name"
    expect_equal "probabilities of $file" "$(field probability <out.txt)" "$probabilities"
done
esper predict table strange.csv
expect_code 0
expect_words err "1 word that training had not" "'Paris' in the column 'town'"
esper predict table bad.csv
expect_code 1
expect_words err "columns that are not there: " "'town'"
esper predict table words.csv
expect_code 1
expect_words err "line 2, column 'x': 'one' is no number"
esper predict table nothing.csv
expect_code 1
esper predict table
expect_code 2
expect_words err "which files?"
esper predict table gone.csv --sample 3
expect_code 2
esper predict table gone.csv --top 0
expect_code 2
esper predict table --split tests
expect_code 2
esper export table --torch exported # nor for this
expect_code 0

# 2040 characters that JSON writes with six each
deep=$(printf '%255s/' '' '' '' '' '' '' '' '' | tr ' ' '\001')
mkdir -p "$deep"
cp gone.csv "${deep}gone.csv"
esper predict table "${deep}gone.csv" --json
expect_code 0
expect_equal "files of whole lines" "$(field file <out.txt | sort -u)" "${deep}gone.csv"

# ---- the same numbers out of arrays are the same samples
python3 -c 'import numpy' 2>/dev/null && {
    python3 - <<'EOP'
import numpy as np
rng = np.random.default_rng(3)
x = rng.normal(size=(300, 4)).astype(np.float32)
x[5, 1] = np.nan
np.savez("rows.npz", X=x, y=(x[:, 0] > 0).astype(np.int64))
np.save("alone.npy", x)
np.savez("test_only.npz", x_test=x)
EOP
    esper train rows.npz --threads 1 --epochs 3 --run-dir rows
    expect_code 0
    mv rows.npz moved.npz
    mkdir large beside
    cp alone.npy large/X.NPY
    cp alone.npy beside/X.NPY
    python3 -c 'import numpy as np; [np.save(f"beside/{name}.npy", np.zeros((3, 4), np.float32)) for name in "xX"]'
    for file in moved.npz alone.npy test_only.npz large/X.NPY beside/X.NPY; do
        esper predict rows $file --json
        expect_code 0
        field probability <out.txt >$file.txt
        expect_equal "answers to $file" "$(cksum <$file.txt)" "$(cksum <moved.npz.txt)"
    done

    # images of two channels are nobody's grey or colours
    python3 - <<'EOP'
import numpy as np
rng = np.random.default_rng(4)
y = np.arange(60) % 2
two = rng.integers(0, 90, size=(60, 2, 8, 8)) + 150 * y[:, None, None, None]
np.savez("two.npz", X=two.astype(np.uint8), y=y)
np.savez("one.npz", X=two[:, :1].astype(np.uint8))
np.savez("three.npz", X=np.repeat(two[:, :1], 3, axis=1).astype(np.uint8))
EOP
    esper train two.npz "${small[@]}" --run-dir two
    expect_code 0
    esper predict two two.npz --json
    expect_code 0
    expect_equal "answers to two channels" "$(wc -l <out.txt)" 60
    for file in one.npz three.npz; do
        esper predict two $file --json
        expect_code 1
        expect_words err "the network takes images of 2 channels"
        expect_equal "answers to $file" "$out" ""
    done
}

# ---- images: one and all of a folder, whatever their names
if "$ESPER" info data . 2>&1 | grep -q "no PNG"; then
    echo "skipped: this build decodes no PNG"
else
    python3 - <<'EOP'
import os, random, struct, zlib
random.seed(1)
def png(path, pixels):
    rows = b"".join(b"\0" + bytes(row) for row in pixels)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 0, 0, 0, 0)
    open(path, "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
for c, name in enumerate(["up", "\"down\"; rm -rf", "<b>left&"]):
    os.makedirs(f"photos/{name}")
    for i in range(40):
        png(f"photos/{name}/{i} $(touch x).png", [[(random.randrange(60) + (190 if (y if c == 0 else 15 - y if c == 1 else x) < 8 else 0)) for x in range(16)] for y in range(16)])
EOP
    esper train photos --threads 1 --epochs 6 --run-dir images
    expect_code 0
    esper predict images --split test
    expect_code 0
    expect_words out "% of 12 right"
    esper eval images --json
    same=$(python3 -c 'import json, sys; print("%.2f %% of 12 right" % json.loads(sys.stdin.read())["accuracy"])' <<<"$out")
    esper predict images --split test
    expect_words out "$same"
    esper predict images photos --json
    expect_code 0
    expect_equal "answers to a folder" "$(wc -l <out.txt)" 120
    first=$(head -1 out.txt)
    mv photos away
    esper predict images "away/\"down\"; rm -rf/0 \$(touch x).png" --json
    expect_code 0
    expect_equal "answer to one of them" "$(field probability <<<"$out")" "$(field probability <<<"$first")"
    esper predict images/last.safetensors away
    expect_code 0
    ln -s . away/round # links in a folder are not followed to folders, and may lead nowhere
    ln -s nowhere away/lost
    ln -s "\"down\"; rm -rf/0 \$(touch x).png" away/again.png
    esper predict images away --json
    expect_code 0
    expect_equal "answers to a folder of links" "$(wc -l <out.txt)" 121
    ln -s nowhere away/lost.png
    esper predict images away
    expect_code 1
    expect_words err "away/lost.png"
    rm away/round away/lost away/lost.png away/again.png
    esper predict images gone.csv
    expect_code 2
    expect_words err "takes images"
    echo "no picture" >broken.png
    esper predict images broken.png
    expect_code 1
    [ ! -e x ] || bad "a file's name was run as a command"
fi

# ---- text: perplexity is the loss, and a sample is the same each time
esper train synth_text "${small_text[@]}" --run-dir tokens
expect_code 0
esper predict tokens --sample 12 --json
expect_code 0
once=$out
esper predict tokens --sample 12 --json
expect_equal "the same tokens again" "$out" "$once"
esper predict tokens --sample 12 --json --threads 2
expect_equal "the same tokens on two threads" "$out" "$once"
esper predict tokens --sample 12 --json --seed 4
[ "$out" != "$once" ] || bad "another seed draws the same tokens"
esper predict tokens --sample 5 --prompt "a"
expect_code 2
yes "a text, line by line; and then another" | head -c 6000 >book.txt
esper train book.txt "${small_text[@]}" --epochs 30 --lr 0.01 --run-dir text
expect_code 0
mv book.txt novel.txt
esper predict text novel.txt --json
expect_code 0
loss=$(python3 -c 'import json, math, sys; it = json.loads(sys.stdin.read())
assert abs(math.log(it["perplexity"]) - it["loss"]) < 1e-9 and it["tokens"] == 5999; print(it["loss"] < 4)' <<<"$out")
expect_equal "a loss that has been learned" "$loss" True
esper predict text novel.txt
expect_code 0
expect_words out "perplexity" "nats" "a byte, over 5,999"
esper predict text --sample 30 --prompt "a te" --temperature 0
expect_code 0
expect_equal "how a sample begins" "${out:0:4}" "a te"
calm=$out
esper predict text --sample 30 --prompt "a te" --temperature 0 --seed 9
expect_equal "without temperature the seed is nothing" "$out" "$calm"
esper predict text --sample 400 --temperature 50
expect_code 0
if printf '%s' "$out" | LC_ALL=C grep -q "$(printf '\033')"; then
    bad "a sample commands the terminal"
fi
cp novel.txt "${deep}novel.txt"
esper predict text "${deep}novel.txt" --json
expect_code 0
expect_equal "the file of a whole line" "$(field file <out.txt)" "${deep}novel.txt"
printf 'ab%.0s' {1..3000} >turns.txt
esper train turns.txt "${small_text[@]}" --context 1 --epochs 30 --lr 0.01 --run-dir turns
expect_code 0
for prompt in a ba; do # the network sees one byte at a time
    esper predict turns --sample 9 --prompt $prompt --temperature 0
    expect_code 0
    expect_equal "what follows $prompt" "$out" "${prompt}babababab"
done
esper predict text --split test
expect_code 2
esper predict text
expect_code 2
: >empty.txt
esper predict text empty.txt
expect_code 1

# ---- a checkpoint that does not keep what its data was like asks for the data
python3 - <<'EOP'
import json, struct
raw = open("table/last.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head = json.loads(raw[8:8 + n])
assert head["__metadata__"].pop("data")
text = json.dumps(head).encode()
text += b" " * (n - len(text))
open("old.safetensors", "wb").write(raw[:8] + text + raw[8 + n:])
EOP
esper predict old.safetensors gone.csv
expect_code 1
expect_words err "old.safetensors"
finish
