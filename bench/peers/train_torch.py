#!/usr/bin/env python3
"""The trainer's peers: the networks of `esper bench train`, trained with PyTorch.

Started by bench/vs_torch. Makes one network, says so in a JSON line, then answers each line of standard input, the name
of a form, with one measurement (ms for a step) as a JSON line; so two programs can take turns.

  usage: train_torch.py NET           NET: cnn_small, cnn_100k, cnn_wide, lm_tiny, lm_384
         train_torch.py --forms       the forms, one a line

A step is what a user writes: gradients cleared, forward, cross-entropy, backward, optimiser. Images are channels-last,
attention is PyTorch's own where it has one. On the CPU it runs with OMP_NUM_THREADS threads.
"""
import json
import math
import statistics
import sys
import time

LEAST_STEPS, MOST_STEPS, LEAST_SECONDS, WARM_STEPS = 3, 100, 0.5, 3

FORMS = ("eager", "compile")

# images: channels of the first block, blocks, batch; sequences: width, heads, layers, tokens, batch
CNNS = {"cnn_small": (8, 3, 128), "cnn_100k": (8, 5, 128), "cnn_wide": (32, 3, 128)}
LMS = {"lm_tiny": (128, 4, 4, 128, 16), "lm_384": (384, 6, 4, 128, 16)}
VOCABULARY, CLASSES, SIDE = 256, 10, 32


def make_cnn(torch, channels, blocks):
    nn, layers, width = torch.nn, [], 3
    for block in range(blocks):
        out = channels << block
        layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
                   nn.MaxPool2d(2)]
        width = out
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def make_lm(torch, width, heads, n_layers, tokens):
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.register_buffer("mask", torch.full((tokens, tokens), -math.inf).triu(1), persistent=False)

        def attend(self, x):
            n, t, _ = x.shape
            q, k, v = self.qkv(x).view(n, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            if hasattr(functional, "scaled_dot_product_attention"):
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads) + self.mask
                y = torch.softmax(scores, -1) @ v
            return self.join(y.transpose(1, 2).reshape(n, t, width))

        def forward(self, x):
            x = x + self.attend(self.norm_1(x))
            return x + self.down(functional.gelu(self.up(self.norm_2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
            self.layers = nn.Sequential(*[Layer() for _ in range(n_layers)])
            self.norm = nn.LayerNorm(width)
            for table in (self.tokens, self.places):
                nn.init.normal_(table.weight, std=0.02)

        def forward(self, ids):
            y = self.norm(self.layers(self.tokens(ids) + self.places.weight))
            return functional.linear(y, self.tokens.weight).flatten(0, 1)  # the head is the embedding

    return Model()


class Peer:
    def __init__(self, torch, net):
        self.torch, self.net = torch, net
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.steps = {}
        torch.manual_seed(1)
        if net in CNNS:
            batch = CNNS[net][2]
            self.x = torch.randn(batch, 3, SIDE, SIDE, device=self.device).to(memory_format=torch.channels_last)
            self.y = torch.randint(0, CLASSES, (batch,), device=self.device)
        else:
            tokens, batch = LMS[net][3:]
            self.x = torch.randint(0, VOCABULARY, (batch, tokens), device=self.device)
            self.y = torch.randint(0, VOCABULARY, (batch * tokens,), device=self.device)

    def make(self):
        torch = self.torch
        if self.net in CNNS:
            model = make_cnn(torch, *CNNS[self.net][:2]).to(self.device)
            return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        model = make_lm(torch, *LMS[self.net][:4]).to(self.device)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def make_step(self, form):
        model, optimiser = self.make()
        forward = self.torch.compile(model) if form == "compile" else model
        loss_of = self.torch.nn.functional.cross_entropy

        def step():
            optimiser.zero_grad(set_to_none=True)
            loss_of(forward(self.x), self.y).backward()
            optimiser.step()

        for _ in range(WARM_STEPS):
            step()
        return step

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def measure(self, form):
        """The median step of half a second's, at least three, after one that does not count."""
        if form not in self.steps:
            self.steps[form] = self.make_step(form)
        step, times = self.steps[form], []
        step()
        self.wait()
        while len(times) < LEAST_STEPS or (sum(times) < LEAST_SECONDS and len(times) < MOST_STEPS):
            began = time.perf_counter()
            step()
            self.wait()
            times.append(time.perf_counter() - began)
        return 1e3 * statistics.median(times)

    def answer(self, form):
        if form not in FORMS:
            return {"form": form, "error": "no such form"}
        try:
            return {"form": form, "value": self.measure(form), "unit": "ms"}
        except Exception as error:  # this torch has no such function: an answer too
            return {"form": form, "error": " ".join(str(error).split())[:160] or repr(error)}


def blas_in_use():
    """What matrix products are computed with, by the libraries that are loaded: "reference" is many times slower."""
    try:
        with open("/proc/self/maps") as maps:
            loaded = maps.read()
    except OSError:
        return "unknown"
    for name in ("openblas", "mkl", "blis", "atlas"):
        if f"lib{name}" in loaded or f"{name}_" in loaded:
            return name
    return "reference" if "/libblas.so" in loaded else "unknown"


def say(**fields):
    print(json.dumps(fields), flush=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--forms":
        print(*FORMS, sep="\n")
        return
    if sys.argv[1] not in CNNS and sys.argv[1] not in LMS:
        sys.exit(f"train_torch.py: no network is called '{sys.argv[1]}'")
    import torch

    peer = Peer(torch, sys.argv[1])
    device = torch.cuda.get_device_name() if peer.device == "cuda" else "cpu"
    say(ready=True, torch=torch.__version__, device=peer.device, device_name=device, threads=torch.get_num_threads(),
        blas=blas_in_use(), params=sum(p.numel() for p in peer.make()[0].parameters()))
    for line in sys.stdin:
        say(**peer.answer(line.strip()))


if __name__ == "__main__":
    main()
