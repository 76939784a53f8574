#!/usr/bin/env bash
# ctest: timeout=240 cost=12
# esper export --c and --onnx from the outside: the files compile without a warning, give the engine's answers for every sample of a
# test split, in whole numbers nearly always; nothing is left where they are refused. Hostile names are data.
. "$SOURCE_DIR/tests/cli/common.sh"

command -v cc >/dev/null || {
    echo "skipped: there is no cc here"
    exit 77
}
strict=(-std=c99 -O2 -Wall -Wextra -Wpedantic -Werror)

build() { # DIR NAME
    cc "${strict[@]}" -o "$1/test" "$1/main.c" "$1/$2.c" -lm || bad "$1 does not compile"
    "$1/test" >"$1/said" || bad "the test of $1" "$(cat "$1/said")"
}

esper train synth --threads 1 --batch 32 --blocks 2 --channels 4 --epochs 2 --plant r1c0:conv_light --run-dir images
expect_code 0
esper train synth_table --threads 1 --epochs 2 --max-steps 60 --run-dir rows
expect_code 0
esper train synth_text "${small_text[@]}" --run-dir tokens
expect_code 0
for run in images rows tokens; do
    esper export $run --c c/$run --onnx $run.onnx
    expect_code 0
    expect_equal "standard error" "$err" ""
    expect_words out "written   c/$run/model.c, c/$run/model.h and c/$run/main.c" "of weights (flash)" "$run.onnx"
    expect_equal "what to type next" "$(sed -n 's/^next *//p' <<<"$out")" \
        "cc -O2 -o test c/$run/main.c c/$run/model.c -lm && ./test"
    build c/$run model
    esper export $run --c c8/$run --int8 --name net
    expect_code 0
    expect_words out "int8 " "on the validation split"
    build c8/$run net
    expect_equal "files of $run" "$(ls -A c/$run | tr '\n' ' ')" "main.c model.c model.h said test "
done
esper export images --c again
expect_equal "exported twice" "$(cat again/*.[ch] | cksum)" "$(cat c/images/*.[ch] | cksum)"
header=$(cat c/images/model.h)
expect_words header "Weights of images/last.safetensors" "constant (flash)" "(RAM)" "multiplications with an addition" "MODEL_CLASSES 10"

# ---- a folder of images with names from hell, to a running C program
if command -v python3 >/dev/null && ! "$ESPER" info data . 2>&1 | grep -q "no PNG"; then
    python3 - <<'EOP'
import os, random, struct, zlib
random.seed(2)
def png(path, pixels):
    rows = b"".join(b"\0" + bytes(row) for row in pixels)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 0, 0, 0, 0)
    open(path, "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
names = ["\"};system(\"touch x\");\n#error", "*\\??\\", "%s%n*_ no end", "\u202eplain"]
for c, name in enumerate(names):
    os.makedirs(f"photos */ error()/{name}")
    for i in range(60):
        png(f"photos */ error()/{name}/{i}.png", [[random.randrange(90) + (160 if (y, 15 - y, x, 15 - x)[c] < 6 else 0) for x in range(16)] for y in range(16)])
EOP
    esper train "photos */ error()" --threads 1 --epochs 8 --run-dir "a */ run"
    expect_code 0
    esper export "a */ run" --c "out put" --onnx "out put.onnx" --torch module
    expect_code 0
    expect_words out "cc -O2 -o test 'out put'/main.c"
    esper export "a */ run" --c int8 --int8
    expect_code 0
    esper predict "a */ run" "photos */ error()" --json
    expect_code 0
    cp out.txt answers.json
    build "out put" model
    build int8 model
    ! command -v c++ >/dev/null || c++ -x c++ "${strict[@]:1}" -o cpp "out put/main.c" "out put/model.c" -lm || bad "not C++"
    ! command -v clang >/dev/null || clang "${strict[@]}" -o cl "out put/main.c" "out put/model.c" -lm || bad "not clang's C"
    python3 - <<'EOP'
import json, subprocess, zlib
answers = [json.loads(line) for line in open("answers.json")]
pixels = b""
for a in answers:
    raw = open(a["file"], "rb").read()
    at, data = 8, b""
    while at < len(raw):
        n = int.from_bytes(raw[at:at + 4], "big")
        data += raw[at + 8:at + 8 + n] if raw[at + 4:at + 8] == b"IDAT" else b""
        at += 12 + n
    rows = zlib.decompress(data)
    pixels += b"".join(rows[17 * y + 1:17 * y + 17] for y in range(16))
def said(program):
    out = subprocess.run([program, "-"], input=pixels, capture_output=True, check=True).stdout
    return [int(line.split(b" ")[0]) for line in out.split(b"\n") if line[:1].isdigit()]
for program, wrong in (("out put/test", 0), ("int8/test", 1)):
    found = said(program)
    off = sum(a["index"] != b for a, b in zip(answers, found))
    assert len(found) >= len(answers) and off <= wrong, f"{program}: {off} of {len(answers)} answers are not the engine's"
print("answers agree")
EOP
    expect_equal "answers of the compiled files" $? 0
    [ ! -e x ] || bad "a name was run as code"
    ! command -v python3 >/dev/null || python3 -m py_compile module/model.py || bad "model.py does not compile"
    if python3 -c 'import onnx' 2>/dev/null; then
        python3 -c 'import onnx, json; m = onnx.load("out put.onnx"); onnx.checker.check_model(m, full_check=True)
assert any("system" in name for name in json.loads({p.key: p.value for p in m.metadata_props}["classes"]))' ||
            bad "the ONNX model of hostile names"
    fi
fi

# ---- refusals leave nothing
esper export images --c c/images
expect_code 2
expect_words err "is there already: --force replaces it"
esper export images --c c/images --force
expect_code 0
esper export images --onnx images.onnx
expect_code 2
esper export images --onnx images/last.safetensors --force
expect_code 2
expect_words err "the checkpoint itself"
esper export images --int8
expect_code 2
esper export images --c new --name "9 lives"
expect_code 2
esper export images --c new --name main
expect_code 2
esper export images --c ""
expect_code 2
[ ! -e new ] || bad "a refused export left a folder"
mkdir ro && : >ro/file
esper export images --c ro/file
expect_code 1
finish
