#!/usr/bin/env bash
# ctest: timeout=3600 cost=300 labels=soak,noasan
# A microcontroller's story: a network grown on Fashion-MNIST, exported in whole numbers, compiled for ARM with -Os, and run under
# qemu-user on the whole test split: the engine's answers on 99.5 % of the images, at least. STORY_IMAGES says how many (10000), STORY_RUN of which run.
. "$SOURCE_DIR/tests/cli/common.sh"

for tool in arm-linux-gnueabihf-gcc qemu-arm python3; do
    command -v $tool >/dev/null || {
        echo "skipped: there is no $tool (on Debian: apt-get install gcc-arm-linux-gnueabihf libc6-dev-armhf-cross qemu-user python3)"
        exit 77
    }
done
images=/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz
[ -f $images ] || {
    echo "skipped: Fashion-MNIST is not at $images (on Debian: apt-get install dataset-fashion-mnist)"
    exit 77
}
n=${STORY_IMAGES:-10000}

if [ -z "${STORY_RUN:-}" ]; then
    esper grow fashion --run-dir grown
    expect_code 0
    STORY_RUN=grown
fi
esper export "$STORY_RUN" --c firmware --int8
expect_code 0
grep -E '^(takes|int8)' <<<"$out"
esper predict "$STORY_RUN" --split test --json
expect_code 0
head -n "$n" out.txt >answers.json
arm-linux-gnueabihf-gcc -std=c99 -Os -Wall -Wextra -Wpedantic -Werror -static -o classify firmware/main.c firmware/model.c -lm ||
    bad "firmware does not compile for ARM"
qemu-arm ./classify || bad "the test of the firmware"
zcat $images | tail -c +17 >all.raw
head -c $((784 * n)) all.raw >pixels.raw
qemu-arm ./classify pixels.raw >classes.txt || bad "the firmware fails"
python3 - <<'EOP' || bad "fewer than 99.5 % of the answers are the engine's"
import json
wanted = [json.loads(line)["index"] for line in open("answers.json")]
found = [int(line.split()[0]) for line in open("classes.txt")]
assert len(wanted) == len(found) > 0
same = sum(a == b for a, b in zip(wanted, found))
print(f"{same} of {len(found)} answers are the engine's")
assert same >= 0.995 * len(found)
EOP
if command -v arm-none-eabi-gcc >/dev/null; then
    for cpu in "cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16" cortex-m0plus; do
        # shellcheck disable=SC2086  # the processor's flags are several words
        arm-none-eabi-gcc -mthumb -mcpu=$cpu -std=c99 -Os -c -o model.o firmware/model.c && arm-none-eabi-size model.o
    done
fi
finish
