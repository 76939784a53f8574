#!/usr/bin/env bash
# ctest: timeout=120 cost=5
# Data that is missing, cut short, of the wrong kind or unreadable: a clear message, exit status 1, no trace.
. "$SOURCE_DIR/tests/cli/common.sh"

# idx_images COUNT SIDE, idx_labels COUNT: IDX files of zeros. Counts and sides are below 256.
idx_size() { printf "\\0\\0\\0\\x$(printf %02x "$1")"; }
idx_images() {
    printf '\0\0\x08\x03' && idx_size "$1" && idx_size "$2" && idx_size "$2"
    head -c $(($1 * $2 * $2)) /dev/zero
}
idx_labels() { printf '\0\0\x08\x01' && idx_size "$1" && head -c "$1" /dev/zero; }

make_mnist() { # DIR
    mkdir -p "$1"
    idx_images 60 8 >"$1/train-images-idx3-ubyte"
    idx_labels 60 >"$1/train-labels-idx1-ubyte"
    idx_images 20 8 >"$1/t10k-images-idx3-ubyte"
    idx_labels 20 >"$1/t10k-labels-idx1-ubyte"
}

# ---- a good one first: the files are what they should be, plain and packed
make_mnist good
esper train mnist --data good "${small[@]}" --run-dir good-run
expect_code 0
expect_words out "54 images to train on, 6 to validate, 20 to test"
gzip -k good/*
rm good/*ubyte
esper train mnist --data good "${small[@]}" --run-dir packed-run
expect_code 0
expect_equal "packed data: weights" "$(grep -o 'weights [0-9a-f]*' out.txt)" \
    "$("$ESPER" inspect good-run | sed -n 's/weight_hash */weights /p')"
rm -rf good-run packed-run

# ---- missing: which files, where, and what works instead
offer="esper train synth|--data"
package="dataset-fashion-mnist|$offer"
mkdir empty-dir
refused 1 "train-images-idx3-ubyte|t10k-labels-idx1-ubyte|data/mnist|$package" train mnist
refused 1 "empty-dir|train-images-idx3-ubyte|$offer" train fashion --data empty-dir
refused 1 "data_batch_1.bin|test_batch.bin|data/cifar-10-batches-bin|$package" train cifar_baseline
refused 1 "train.bin|valid.bin|uint16|data/tinystories|$offer" train tinystories
refused 1 "absent.txt|UTF-8|$offer" train chars --data absent.txt
refused 1 "no-such-dir|train-images" train mnist --data no-such-dir
make_mnist half && rm half/t10k-labels-idx1-ubyte
refused 1 "half/t10k-labels-idx1-ubyte" train mnist --data half

# ---- IDX: cut short, of the wrong kind, lying
broken() { # "words" FILE COMMAND...: makes good data with one file replaced by the command's output
    local words=$1 file=$2
    shift 2
    rm -rf broken && make_mnist broken
    "$@" >broken/"$file"
    refused 1 "broken/$file|$words" train mnist --data broken
}
broken "truncated" train-images-idx3-ubyte eval 'idx_images 60 8 | head -c 2000'
broken "truncated" train-images-idx3-ubyte eval 'idx_images 60 8 | head -c 10'
broken "truncated" train-labels-idx1-ubyte eval 'idx_labels 60 | head -c 30'
broken "truncated" t10k-images-idx3-ubyte true
broken "trailing bytes" t10k-labels-idx1-ubyte eval 'idx_labels 20; echo more'
broken "not an IDX file" train-images-idx3-ubyte echo "This is not an IDX file at all"
broken "only unsigned bytes" train-images-idx3-ubyte eval 'printf "\x00\x00\x0d\x03"; head -c 5000 /dev/zero'
broken "rank 2" train-images-idx3-ubyte eval 'printf "\x00\x00\x08\x02"; head -c 5000 /dev/zero'
broken "mixed up" train-images-idx3-ubyte idx_labels 60
broken "label 200" train-labels-idx1-ubyte eval 'idx_labels 59 | sed "s/\x3b/\x3c/"; printf "\xc8"'
broken "its head lies" train-images-idx3-ubyte printf '\0\0\x08\x03\xff\xff\xff\xff\0\0\x0f\xff\0\0\x0f\xff'
rm -rf broken && make_mnist broken && idx_labels 61 >broken/train-labels-idx1-ubyte
refused 1 "60 images|61 labels" train mnist --data broken
rm -rf broken && make_mnist broken && idx_images 20 9 >broken/t10k-images-idx3-ubyte
refused 1 "8 x 8|9 x 9" train mnist --data broken

# ---- gzip: cut short, damaged, followed by something
packed() { # "words" FILTER
    rm -rf broken && make_mnist broken && gzip broken/train-images-idx3-ubyte
    eval "$2" <broken/train-images-idx3-ubyte.gz >changed && mv changed broken/train-images-idx3-ubyte.gz
    refused 1 "broken/train-images-idx3-ubyte.gz|$1" train mnist --data broken
}
packed "truncated" 'head -c 40'
packed "truncated" 'head -c -4'
packed "damaged gzip" 'head -c 30; printf "\xff\xff\xff\xff\xff\xff"; head -c 100 /dev/zero'
packed "follow" 'cat; echo more'

# ---- CIFAR-10: one file too short, one label too large
mkdir cifar
for name in data_batch_{1..5} test_batch; do truncate -s 30730000 cifar/$name.bin; done # sparse: takes no room
truncate -s 30729999 cifar/data_batch_4.bin
refused 1 "cifar/data_batch_4.bin|30729999 bytes|30730000" train cifar_baseline --data cifar
truncate -s 30730000 cifar/data_batch_4.bin
printf '\x0b' | dd of=cifar/data_batch_2.bin bs=1 seek=$((3073 * 5)) conv=notrunc status=none
refused 1 "cifar/data_batch_2.bin|label 11 of sample 5" train cifar_baseline --data cifar
rm -rf cifar

# ---- text: empty, not UTF-8, shorter than a context
: >empty.txt
refused 1 "no text" train chars --data empty.txt
refused 1 "no text" train chars --data empty-dir
printf 'caf\xe9 au lait\n' >latin1.txt
refused 1 "latin1.txt|not UTF-8 at byte 3|0xe9|iconv" train chars --data latin1.txt --context 2
head -c 200 /dev/zero | tr '\0' 'a' >short.txt
refused 2 "too little data|200 bytes give 1 of the 3 windows of 150 + 1|--context 66" train chars --data short.txt --context 150
refused 2 "too little data|shorter context|--context 66" train chars --data short.txt --context 200
mkfifo a-pipe
refused 1 "a-pipe|neither a file nor a directory" train chars --data a-pipe

# ---- tokens: half a token, too large a token
printf 'abc' >odd.bin
refused 1 "odd.bin|uint16" train tinystories --data odd.bin
head -c 4000 /dev/zero | tr '\0' '\377' >large.bin
refused 1 "large.bin|token 65535|50256" train tinystories --data large.bin --context 8

# ---- a file where a directory is wanted, and what may not be read
refused 1 "short.txt" train mnist --data short.txt
refused 1 "short.txt" train cifar_baseline --data short.txt
mkdir closed && chmod 000 closed
if be_nobody; then
    refused 1 "closed|ermission" train chars --data closed
    refused 1 "closed|ermission" train mnist --data closed
    refused 1 "closed|ermission" train cifar_baseline --data closed
else
    echo "skipped: unreadable directories: root reads them all, and cannot become somebody else here"
fi
chmod 700 closed

finish
