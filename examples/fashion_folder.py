#!/usr/bin/env python3
"""Makes a folder of small PNG files out of Fashion-MNIST, one folder for each class, as people have images of their own.

    python3 examples/fashion_folder.py DIR [COUNT]

COUNT images (2,000 unless said; more than there are begin anew) from Debian's package dataset-fashion-mnist. Needs Python
alone."""
import gzip
import os
import struct
import sys
import zlib

PLACE = "/usr/share/datasets/fashion-mnist"
NAMES = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
SIDE = 28


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels):
    rows = b"".join(b"\0" + pixels[i * SIDE:(i + 1) * SIDE] for i in range(SIDE))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def read(name, head_bytes):
    with gzip.open(os.path.join(PLACE, name)) as file:
        return file.read()[head_bytes:]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) == 3 else 2000
    if not os.path.isdir(PLACE):
        sys.exit(f"{PLACE} is not there: apt-get install dataset-fashion-mnist")
    images, labels = read("train-images-idx3-ubyte.gz", 16), read("train-labels-idx1-ubyte.gz", 8)
    for name in NAMES:
        os.makedirs(os.path.join(sys.argv[1], name), exist_ok=True)
    for i in range(count):
        k = i % len(labels)
        path = os.path.join(sys.argv[1], NAMES[labels[k]], f"{i:06d}.png")
        with open(path, "wb") as file:
            file.write(png(images[k * SIDE * SIDE:(k + 1) * SIDE * SIDE]))


main()
