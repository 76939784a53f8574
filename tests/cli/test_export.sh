#!/usr/bin/env bash
# ctest: timeout=120 cost=12
# esper export from the outside: what it writes, what PyTorch makes of it, and what it refuses, leaving no trace.
. "$SOURCE_DIR/tests/cli/common.sh"

# What PyTorch makes of it does not depend on how this program was compiled.
python=
is_brief || python=$(python_with_torch)
[ -n "$python" ] || is_brief || echo "skipped: no python3 here can import torch; looked at the files only"

expect_files() { # DIR "NAME NAME..."
    expect_equal "files in $1" "$(ls -A "$1" 2>/dev/null | tr '\n' ' ')" "$2"
}

esper train synth "${small[@]}" --run-dir images
expect_code 0
esper train synth_text "${small_text[@]}" --run-dir texts
expect_code 0

esper train synth_table --epochs 2 --max-steps 3 --run-dir rows
expect_code 0

# ---- a module and its weights
for run in images texts rows; do
    esper export $run --torch out/$run
    expect_code 0
    expect_equal "standard error of export" "$err" ""
    expect_words out "$run/last.safetensors after epoch 2" "parameters" "out/$run/model.py" "out/$run/model.safetensors"
    expect_equal "what to type next" "$(sed -n 's/^next *//p' <<<"$out")" "python3 out/$run/model.py"
    expect_files out/$run "model.py model.safetensors "
    exported=$out
    esper inspect out/$run/model.safetensors
    expect_code 0
    expect_words out "format           pt" "weight"
    [ -n "$python" ] || continue
    n=$(sed -n 's/.* \([0-9,]*\) parameters$/\1/p' <<<"$exported")
    said=$("$python" out/$run/model.py 2>&1)
    expect_words said "$n parameters, output (1, "
done
model=$(cat out/images/model.py)
expect_words model "class CnnHost(nn.Module):" "Weights of images/last.safetensors after epoch 2, step 10" \
    "(value / 255 - mean) / std" "self.blocks[0].conv(images)"
model=$(cat out/texts/model.py)
expect_words model "class TransformerHost(nn.Module):" "at most 8 of them" "self.tok_emb(tokens)"
model=$(cat out/rows/model.py)
expect_words model "class MlpHost(nn.Module):" "Rows of 16 numbers go in" "self.blocks[0].linear(features)"
expect_equal "longest line of a module" "$(($(wc -L <out/texts/model.py) <= 110))" 1
esper inspect out/images/model.safetensors
expect_words out "blocks.1.bn.running_var" "blocks.1.bn.num_batches_tracked" "classifier.bias"
expect_no_word out "moment1"

# ---- the weights are the run's, bit for bit, and the same export gives the same files
esper inspect images --all
hash_line() { grep -F "$1" <<<"$out" | sed 's/.* F32 //'; }
ours=$(hash_line "param/blocks.0.conv.weight")
esper inspect out/images/model.safetensors
expect_equal "values of a tensor" "$(hash_line "blocks.0.conv.weight")" "$ours"
esper export images/last.safetensors --torch again
expect_code 0
expect_equal "exported twice: model.py" "$(cksum <again/model.py)" "$(cksum <out/images/model.py)"
expect_equal "exported twice: weights" "$(cksum <again/model.safetensors)" "$(cksum <out/images/model.safetensors)"

# ---- the weights alone
esper export images --safetensors alone.safetensors
expect_code 0
expect_words out "written   alone.safetensors"
expect_no_word out "model.py"
expect_equal "the weights alone" "$(cksum <alone.safetensors)" "$(cksum <again/model.safetensors)"

# ---- names are strict: the module loads its own weights and refuses another network's
if [ -n "$python" ]; then
    said=$("$python" out/images/model.py alone.safetensors 2>&1)
    expect_words said "output (1, 10)"
    said=$("$python" out/images/model.py out/texts/model.safetensors 2>&1)
    expect_words said "Missing key(s)"
fi

# ---- a folder may hold other things; ours are not replaced unless asked
mkdir used && echo mine >used/notes.txt
esper export images --torch used
expect_code 0
expect_files used "model.py model.safetensors notes.txt "
echo "# mine" >used/model.py
before=$(cksum <used/model.safetensors)
esper export texts --torch used
expect_code 2
expect_words err "used/model.py is there already" "--force"
expect_equal "a file that was refused" "$(cat used/model.py)" "# mine"
expect_equal "the file beside it" "$(cksum <used/model.safetensors)" "$before"
rm used/model.py
esper export texts --torch used
expect_code 2
expect_words err "used/model.safetensors is there already"
expect_files used "model.safetensors notes.txt "
esper export texts --torch used --force
expect_code 0
expect_equal "replaced: model.py" "$(cksum <used/model.py)" "$(cksum <out/texts/model.py)"
expect_equal "replaced: weights" "$(cksum <used/model.safetensors)" "$(cksum <out/texts/model.safetensors)"
esper export images --safetensors alone.safetensors
expect_code 2
expect_words err "alone.safetensors is there already"
before=$(cksum <images/last.safetensors)
for path in images/last.safetensors ./images/../images/last.safetensors; do
    esper export images --safetensors "$path" --force
    expect_code 2
    expect_words err "is the checkpoint itself"
done
expect_equal "the checkpoint" "$(cksum <images/last.safetensors)" "$before"

# ---- what is not said, or makes no sense
refused 2 "expected one run or checkpoint, got 0|esper export --help" export
refused 2 "expected one run or checkpoint, got 2" export images texts --torch new
refused 2 "say where to|--torch DIR|--safetensors FILE" export images
refused 2 "not an empty word" export images --torch ""
refused 2 "takes no --lr" export images --torch new --lr 1
refused 2 "--torch" export images --torch
refused 1 "'nothing' is no run" export nothing --torch new
refused 1 "holds no run" export used --torch new
echo >a-file
refused 1 "a-file" export images --torch a-file
refused 1 "a-file" export images --torch a-file/below
mkdir -p taken/model.py
refused 2 "taken/model.py is a directory" export images --torch taken --force
refused 1 "no-such-dir/x.safetensors|No such file" export images --safetensors no-such-dir/x.safetensors

# ---- files that are no checkpoints, or damaged ones
refused 1 "a-file" export a-file --torch new
refused 1 "no Esper checkpoint" export alone.safetensors --torch new
head -c 1000 images/last.safetensors >cut.safetensors
refused 1 "cut.safetensors|truncated" export cut.safetensors --torch new
cp images/last.safetensors flipped.safetensors
printf '\x55' | dd of=flipped.safetensors bs=1 seek=$(($(stat -c %s flipped.safetensors) - 3)) conv=notrunc status=none
refused 1 "flipped.safetensors|damaged" export flipped.safetensors --torch new
expect_equal "nothing was written for any of these" "$(ls -d new 2>&1 | grep -c 'No such file')" 1

# ---- shapes come from what the checkpoint knows of its data, which may be gone, or from the data where it is named
for i in $(seq 60); do echo "$i green bottles hanging on the wall"; done >text.txt
esper train chars --data text.txt "${small_text[@]}" --run-dir chars
expect_code 0
mv text.txt moved.txt
esper export chars --torch bare
expect_code 0
expect_equal "standard error" "$err" ""
esper export chars --data moved.txt --torch chars-out
expect_code 0
expect_equal "the module, with the data and without" "$(cksum <bare/model.py)" "$(cksum <chars-out/model.py)"
refused 1 "nowhere.txt" export chars --data nowhere.txt --torch new
expect_files chars-out "model.py model.safetensors "

# ---- a directory that may not be written
mkdir locked && chmod 555 locked
if be_nobody; then
    refused 1 "locked|ermission" export images --torch locked
    refused 1 "locked|ermission" export images --torch locked/new
else
    echo "skipped: directories that may not be written: root writes them all, and cannot become somebody else here"
fi
prefix=()

# ---- a disk that is full: by a limit on the size of files, then by a small file system of our own
(
    ulimit -f 1 # of 1024 bytes: not even model.py fits
    "$ESPER" export images --torch limited >out.txt 2>err.txt </dev/null
)
code=$? out=$(cat out.txt) err=$(cat err.txt) last="export images, under a limit"
expect_code 1
expect_words err "limited/model" "File too large"
expect_equal "limited: nothing is left" "$(ls -d limited 2>/dev/null)" ""
mkdir disk
if ! mount -t tmpfs -o size=64k tmpfs disk 2>/dev/null; then
    echo "skipped: a full disk, since no file system can be mounted here"
    finish
fi
trap 'umount disk' EXIT
mkdir disk/old && cp out/images/* disk/old
head -c 1M /dev/zero >disk/filler 2>/dev/null
esper export images --torch disk/new
expect_code 1
expect_words err "disk/new" "No space left on device"
expect_equal "disk: nothing is left" "$(ls disk | tr '\n' ' ')" "filler old "
truncate -s -8K disk/filler # room for the module, not for the weights
esper export texts --torch disk/new
expect_code 1
expect_words err "disk/new/model.safetensors" "No space left on device"
expect_equal "disk: nothing is left again" "$(ls disk | tr '\n' ' ')" "filler old "
esper export texts --torch disk/old --force
expect_code 1
expect_equal "disk: what was there stays: model.py" "$(cksum <disk/old/model.py)" "$(cksum <out/images/model.py)"
expect_equal "disk: what was there stays: weights" "$(cksum <disk/old/model.safetensors)" \
    "$(cksum <out/images/model.safetensors)"
expect_files disk/old "model.py model.safetensors "
rm disk/filler
esper export texts --torch disk/old --force
expect_code 0

finish
