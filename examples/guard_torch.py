#!/usr/bin/env python3
"""A small GPT learns this very file, character by character, under the guard. On the way it is poisoned twice, on
purpose: a bad gradient costs one step; a bad weight is undone from the last good snapshot, and the loss falls on.

    make && python3 examples/guard_torch.py        (with a Python that has PyTorch; on Debian, /usr/bin/python3)
"""
import os
import sys

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch, which %s does not have. On Debian: apt-get install python3-torch, and run\n"
             "it with /usr/bin/python3; elsewhere: pip install torch" % sys.executable)
try:
    import esper
except ImportError:  # not installed: the package of this checkout
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bindings", "python"))
    import esper
if not hasattr(esper, "GuardError"):
    sys.exit("%s is another package called esper, not the guard: see docs/guard.md" % esper.__file__)

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 32, 48, 4, 2, 12
STEPS, TELL_EVERY, SNAPSHOT_EVERY, BAD_GRADIENT_AT, BAD_WEIGHT_AT = 240, 40, 20, 90, 150


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("later", torch.triu(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool), 1))

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1)) / (WIDTH // HEADS) ** 0.5
        mixed = scores.masked_fill(self.later[:t, :t], float("-inf")).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(n, t, WIDTH))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.mlp = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(),
                                       torch.nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(torch.nn.Module):
    def __init__(self, n_characters):
        super().__init__()
        self.token = torch.nn.Embedding(n_characters, WIDTH)
        self.place = torch.nn.Embedding(CONTEXT, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, n_characters, bias=False)

    def forward(self, x):
        x = self.token(x) + self.place.weight[:x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text():
    with open(os.path.abspath(__file__), encoding="utf-8") as file:
        text = file.read()
    characters = sorted(set(text))
    return torch.tensor([characters.index(one) for one in text]), len(characters)


def batch(text, step):
    """The same for the same step."""
    numbers = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(text) - CONTEXT - 1, (BATCH,), generator=numbers)
    pieces = torch.stack([text[start:start + CONTEXT + 1] for start in starts.tolist()])
    return pieces[:, :-1], pieces[:, 1:]


def main():
    torch.manual_seed(1)
    text, n_characters = read_text()
    model = GPT(n_characters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    print("a GPT of %s parameters learns %s characters" % (format(sum(p.numel() for p in model.parameters()), ","),
                                                          format(len(text), ",")))

    # ---- the guard: these lines, and nothing else below but the two faults
    guard = esper.Guard(model, optimizer, on_bad="rollback", state_every=1, log=print,
                        snapshot=esper.Snapshots(every=SNAPSHOT_EVERY))
    guard.attach()

    first = last = None
    for step in range(1, STEPS + 1):
        x, y = batch(text, step)
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        if step == BAD_GRADIENT_AT:
            guard.inject("blocks.1.mlp.0.weight.grad", at=417, fault="inf")
        if step == BAD_WEIGHT_AT:
            guard.inject("blocks.0.attn.proj.weight", at=1002, fault="nan")
        optimizer.step()
        if step == 1 or step % TELL_EVERY == 0:
            last = float(loss.detach())
            first = last if first is None else first
            print("batch %3d  loss %.3f" % (step, last))
    guard.detach()
    print("two faults, two lines: %d step skipped, %d rollback; the loss fell from %.3f to %.3f"
          % (guard.n_skipped, guard.n_rollbacks, first, last))
    return 0 if last < first else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except esper.LibraryNotFound as error:
        sys.exit(str(error))
