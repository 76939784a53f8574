#!/usr/bin/env bash
# ctest: timeout=240 cost=8 labels=noasan
# esper learn on lists of tasks, from the outside: a list in a file, a folder, a table and a text of one's own with hosts and data drawn, stopped
# and gone on with to the same bytes, and the policy that was learned grows networks on them. Lists that have a name.
. "$SOURCE_DIR/tests/cli/common.sh"

if ! command -v python3 >/dev/null; then
    echo "skipped: python3 is not here to make images"
    exit 77
fi

# ---- lists with a name are shown where somebody looks, and recorded as what is in them
esper info lists
expect_code 0
lists=$out
esper learn --help
expect_words out "(--tasks)" "@FILE"
help=$out
for name in $(sed -n 's/^  \([a-z]*\)  .*/\1/p' <<<"$lists"); do
    expect_words help "  $name  "
    text=$(awk -v name="$name" '$1 == name && /^  [a-z]/ { on = 1; next } /^$/ { on = 0 } on { sub(/^ */, ""); print }' <<<"$lists" | paste -sd,)
    [ -n "$text" ] || bad "esper info lists" "nothing is in $name"
    esper info config synth --learn --tasks "$name"
    expect_code 0
    expect_equal "what $name is recorded as" "$(sed -n 's/^tasks *= *\(.*[^ ]\) *#.*/\1/p' out.txt | sed 's/, /,/g')" "$text"
done
expect_equal "how many" "$(grep -c '^  [a-z]' <<<"$lists")" 3
tiny=(--threads 1 --batch 8 --blocks 2 --channels 2 --max-steps 2 --epochs 3 --envs 4 --policy-width 8 --ppo-chunk 3 --ppo-epochs 2)
refused 2 "tasks: 'fasst' is no task, no list of tasks, and no folder or file here; did you mean 'fast'?|esper info lists" \
    learn synth "${tiny[@]}" --tasks fasst
refused 2 "tasks: absent.txt: cannot be opened" learn synth "${tiny[@]}" --tasks @absent.txt

# ---- data of one's own
cat >make.py <<'EOP'
"""Small grey images in a folder for each of four classes, which differ by where they are bright; and a table."""
import os, random, struct, zlib
random.seed(1)
chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
for k, name in enumerate(("north", "east", "south", "west")):
    os.makedirs("photos/" + name)
    for i in range(60):
        bright = lambda x, y: (y < 6, x >= 6, y >= 6, x < 6)[k]
        rows = b"".join(b"\0" + bytes(random.randrange(90) + 120 * bright(x, y) for x in range(12)) for y in range(12))
        with open("photos/%s/%02d.png" % (name, i), "wb") as file:
            file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 12, 12, 8, 0, 0, 0, 0)) +
                       chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
with open("rows.csv", "w") as file:
    file.write("a,kind,b,c\n")
    for i in range(300):
        a, b, c = (random.gauss(0, 1) for _ in range(3))
        file.write("%.3f,%s,%.3f,%.3f\n" % (a, ("red", "green", "blue")[(a > b) + (b > c)], b, c))
with open("story.txt", "w") as file:
    file.write("".join(random.choice(("the cat ", "sat. ", "a dog ", "ran. ")) for _ in range(600)))
EOP
python3 make.py || exit 1
cat >mine.txt <<'EOT'
# what a policy is to learn on
photos batch=8 drawn=2                # a folder, with hosts by chance
images data=photos batch=8 drawn=2 draws=all
rows.csv target=kind batch=8 drawn=1  # a table, by its path
table data=rows.csv target=kind batch=8 drawn=2 draws=data+budget
story.txt context=8 batch=8 drawn=1
EOT
learn=(learn synth "${tiny[@]}" --cache kept --progress plain)
esper "${learn[@]}" --rounds 2 --tasks @mine.txt --log-level debug --run-dir whole
if grep -q "this build has no libpng" err.txt; then
    echo "skipped: this build has no libpng"
    exit 77
fi
expect_code 0
expect_words out "    2/2    " "learned   2 rounds, 8 episodes"
expect_words err "task 1 of 9: synth" "task 2 of 9: images batch=8 data=$PWD/photos host='" "task 4 of 9: images epochs=" \
    "task 6 of 9: table batch=8 data=$PWD/rows.csv target=kind host='" "task 8 of 9: table epochs=" \
    "task 9 of 9: chars batch=8 data=$PWD/story.txt host='embed "
expect_equal "hosts that are drawn" "$(grep -c "debug: task .* host='" err.txt)" 6
expect_equal "data that is drawn; one drew the whole" "$(grep -cE 'debug: task .* (classes|train_limit|data_seed)=' err.txt)" 3
expect_equal "a folder and a table, each decoded once" "$(ls kept/*.set | wc -l)" 2
list="photos batch=8 drawn=2, images data=photos batch=8 drawn=2 draws=all, rows.csv target=kind batch=8 drawn=1, table data=rows.csv \
target=kind batch=8 drawn=2 draws=data+budget, story.txt context=8 batch=8 drawn=1"
expect_equal "what is recorded" "$(sed -n 's/^tasks = //p' whole/config.ini)" "$list"

# A round, and the second from its file, without the list's own: the same bytes; by the list as it was typed, too.
break_off INT 'grep -qE "^ +1/2 " out.txt' part "${learn[@]}" --rounds 2 --max-steps 30 --tasks @mine.txt --run-dir part
expect_code 130
mv mine.txt other.txt
esper learn --resume part --cache kept --progress none
expect_code 0
expect_words out "learned   2 rounds"
esper "${learn[@]}" --rounds 2 --max-steps 30 --tasks "$list" --run-dir unbroken
expect_code 0
n_checks=$((n_checks + 1))
cmp -s unbroken/policy.safetensors part/policy.safetensors || bad "stopped and resumed" "$(cmp unbroken/policy.safetensors part/policy.safetensors)"
cp -r whole longer
esper learn --resume longer --tasks @other.txt --rounds 3 --cache kept --progress none
expect_code 0
expect_words out "learned   3 rounds"
sed -i 's/drawn=2 /drawn=3 /' other.txt
esper learn --resume longer --tasks @other.txt --rounds 4 --cache kept --progress none
expect_code 2
expect_words err "tasks is" "in the run being resumed and cannot become"

# Other images are other data.
cp -r whole changed
cp photos/north/00.png photos/south/
esper learn --resume changed --rounds 3 --cache kept --progress none
expect_code 2
expect_words err "the data is not what the policy has learned on so far"
rm photos/south/00.png
cp photos/north/00.png photos/south/60.png
rm photos/south/60.png

# The policy grows networks on all three.
python3 - <<'EOP'
import os, shutil
shutil.rmtree("photos")
os.remove("rows.csv")
os.remove("story.txt")
EOP
python3 make.py || exit 1
for data in "photos --cache kept" "rows.csv --target kind --cache kept" "story.txt --context 8"; do
    dir=grown-${data%%[. ]*}
    # shellcheck disable=SC2086 # flags are words
    esper grow $data --policy whole --threads 1 --length epochs --epochs 4 --max-steps 4 --gate-epochs 1 --progress none --run-dir "$dir"
    expect_code 0
    expect_equal "who decides on $data" "$(grep -c '"source":"policy"' "$dir/decisions.jsonl")" 4
done

finish
