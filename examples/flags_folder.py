#!/usr/bin/env python3
"""Makes a folder of colour JPEG files of many sizes, one folder for each class: flags before a background, in changing light.

    python3 examples/flags_folder.py DIR [COUNT]

COUNT images in all (600 unless said). Needs Python alone: every 8x8 block of a picture has one colour, so that of the whole of
JPEG only the mean of a block is to be written."""
import os
import random
import struct
import sys

BLUE, WHITE, RED, GREEN, ORANGE, YELLOW = (0, 60, 160), (240, 240, 240), (205, 35, 45), (0, 140, 70), (255, 135, 60), (255, 215, 0)
VERTICAL, HORIZONTAL, DISC = range(3)
FLAGS = {"France": (VERTICAL, (BLUE, WHITE, RED)), "Italia": (VERTICAL, (GREEN, WHITE, RED)),
         "Éire": (VERTICAL, (GREEN, WHITE, ORANGE)), "Österreich": (HORIZONTAL, (RED, WHITE, RED)),
         "Україна": (HORIZONTAL, (BLUE, YELLOW)), "日本": (DISC, (WHITE, RED))}


def segment(marker, data):
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def jpeg(blocks):
    """A baseline JPEG of rows of (red, green, blue), each a block of 8x8 pixels."""
    height, width = 8 * len(blocks), 8 * len(blocks[0])
    bits, last = [], [0, 0, 0]
    for r, g, b in (block for row in blocks for block in row):
        y = 0.299 * r + 0.587 * g + 0.114 * b
        for k, value in enumerate((y - 128, 0.564 * (b - y), 0.713 * (r - y))):
            value = max(-128, min(127, round(value)))
            step, last[k] = value - last[k], value
            size = abs(step).bit_length()  # 4 bits say how long the step is, then it follows, then a 0: nothing but a mean
            bits.append(f"{size:04b}" + (f"{step if step > 0 else step + (1 << size) - 1:0{size}b}" if size else "") + "0")
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    data = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")
    components = bytes([1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0])
    return (b"\xff\xd8" + segment(0xDB, b"\0" + bytes([8] * 64)) +  # steps of 8: a mean counts 8 times
            segment(0xC0, struct.pack(">BHHB", 8, height, width, 3) + components) +
            segment(0xC4, b"\x00" + bytes([0, 0, 0, 9] + [0] * 12) + bytes(range(9))) +  # nine codes of 4 bits: sizes
            segment(0xC4, b"\x10" + bytes([1] + [0] * 15) + b"\0") +  # one code of 1 bit: the end of a block
            segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])) + data + b"\xff\xd9")


def colour_at(kind, colours, u, v):
    """Of a flag, at shares u of its width and v of its height."""
    if kind == DISC:
        return colours[(u - 0.5) ** 2 * 2.2 + (v - 0.5) ** 2 < 0.09]
    return colours[int((u if kind == VERTICAL else v) * len(colours))]


def picture(rng, kind, colours):
    width, height = rng.randint(12, 32), rng.randint(9, 22)
    w, h = rng.uniform(0.5, 1) * width, rng.uniform(0.5, 1) * height
    left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
    light, background = rng.uniform(0.45, 1.1), [rng.randint(20, 235) for _ in range(3)]
    blocks = []
    for y in range(height):
        blocks.append([])
        for x in range(width):
            u, v = (x + 0.5 - left) / w, (y + 0.5 - top) / h
            colour = colour_at(kind, colours, u, v) if 0 <= u < 1 and 0 <= v < 1 else background
            blocks[-1].append([max(0, min(255, light * c + rng.gauss(0, 14))) for c in colour])
    return jpeg(blocks)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    rng = random.Random(1)
    for i in range(int(sys.argv[2]) if len(sys.argv) == 3 else 600):
        name = list(FLAGS)[i % len(FLAGS)]
        os.makedirs(os.path.join(sys.argv[1], name), exist_ok=True)
        with open(os.path.join(sys.argv[1], name, f"IMG_{i:04d}.JPG"), "wb") as file:
            file.write(picture(rng, *FLAGS[name]))


main()
