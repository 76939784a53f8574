#!/bin/bash
# ctest: timeout=180 cost=8
# A folder of images becomes a run, which goes on, is repeated, scored, exported and compared from its directory alone.
. "$SOURCE_DIR/tests/cli/common.sh"

if ! command -v python3 >/dev/null || [ ! -d /usr/share/datasets/fashion-mnist ]; then
    echo "skipped: python3 or dataset-fashion-mnist is not here"
    exit 77
fi
python3 "$SOURCE_DIR/examples/fashion_folder.py" photos 200 || exit 1
quick=(--threads 1 --epochs 4 --max-steps 3 --progress plain)
growing=("${quick[@]}" --policy random --gates permissive --gate-epochs 1)

# What was seen, done and chosen is said; what was decoded is kept.
esper grow photos "${growing[@]}" --cache kept --run-dir grown
if grep -q "this build has no libpng" err.txt; then
    echo "skipped: this build has no libpng"
    exit 77
fi
expect_code 0
expect_words err "photos was not in the cache: decoded in"
expect_words out "images: $PWD/photos" "28x28" "grey" "10 classes: Ankle boot, Bag, Coat" "drawn by the seed" \
    "chosen    by the data:" "blocks 2" "valid_fraction 0.2" "deviation"
weights=$(grep '^weights' out.txt)
[ "$(ls kept/*.set | wc -l)" -eq 1 ] || bad "the cache" "$(ls -R kept)"
esper grow photos "${growing[@]}" --cache kept --run-dir again
expect_code 0
expect_no_word err "not in the cache"
expect_equal "the same run, from the cache" "$(grep '^weights' out.txt)" "$weights"

# From the run's directory alone, also elsewhere, and after the cache has gone.
rm -r kept
esper eval grown
expect_code 0
[ ! -e kept ] || bad "a run's record says where to write" "$(ls kept)"
mkdir -p far && cd far || exit 1
esper replay ../grown --cache kept
expect_code 0
esper eval ../grown --cache kept
expect_code 0
expect_words out "test split"
esper grow --resume ../grown --epochs 5 --cache kept
expect_code 0
esper export ../grown --torch exported --cache kept
expect_code 0
cd .. || exit 1

# Changed images are other data.
cp -r photos other
cp other/Bag/*.png other/Coat/
esper eval grown --data other --cache kept
expect_words err "the data is not what the network was trained on"

# Read otherwise.
esper train photos "${quick[@]}" --image-size 14x12 --grey --cache kept --run-dir small
expect_code 0
expect_words out "14x12 as asked"
refused 2 "expected HEIGHTxWIDTH" train photos --image-size large
echo nothing >photos/Bag/000001.png
refused 1 "photos/Bag/000001.png: neither PNG nor JPEG" train photos "${quick[@]}" --cache kept
esper train photos "${quick[@]}" --skip-bad --cache kept --run-dir skipped
expect_code 0
expect_words out "200 PNG" "1 damaged file left out as asked: Bag/000001.png"
cut=$(ls photos/Bag/*.png | tail -n 1) # a good head, and nothing behind it
head -c 60 "$cut" >cut.png && mv cut.png "$cut"
esper info data photos --skip-bad --seed 3 --cache kept
expect_code 0
expect_words out "199 PNG" "2 damaged files left out as asked" "grow photos --seed=3 --skip-bad --cache=kept"

# Few samples are said, and every class is in every split as far as it goes.
expect_words out "10 of 10 classes have few samples"
n_in_all=$(sed -n '/^classes/,/^memory/{/^ /p}' out.txt | awk '$1 >= 10 && $2 >= 3 && $3 >= 1' | wc -l)
expect_equal "classes that are in all splits" "$n_in_all" 10
esper train photos "${quick[@]}" --skip-bad --cache kept --run-dir few
expect_words err "classes have few samples"

# Paths that lead nowhere, and those that mean something else.
refused 1 "No such file or directory" grow ./nowhere
refused 2 "there is no folder or file of that name here, and no task is called 'phots'" grow phots
refused 2 "--target kind is for tables|holds images|folders they lie in" grow other --target kind
refused 2 "its data is not a table" train images --data other --target kind
touch other/Coat/Thumbs.db
refused 1 "other/Coat: the images lie in it|give the folder that it lies in" grow other/Coat
mkdir above && cp -r other above/
refused 1 "one level further down: give $PWD/above/other" grow above
refused 2 "leave one of them out" grow photos --data other
refused 2 "give the folder that has a folder for each class" grow "$(ls photos/Coat/*.png | head -n 1)"
refused 2 "has no effect on synth: its data is not a folder" train synth --grey
mkdir empty
refused 1 "no images: expected a folder for each class" grow empty
printf 'to be or not to be %.0s' {1..400} >play.txt
esper train play.txt "${small_text[@]}" --progress none
expect_code 0

esper learn other --batch 8 --max-steps 2 --epochs 3 --envs 2 --policy-width 8 --ppo-chunk 3 --rounds 1 --threads 1 --cache kept \
    --progress none --run-dir learned
expect_code 0
expect_words out "learned   1 round" "saved     learned/policy.safetensors"
esper compare other --epochs 1 --max-steps 2 --seeds 1 --policies none,random --threads 1 --dir compared --cache kept
expect_code 0

finish
