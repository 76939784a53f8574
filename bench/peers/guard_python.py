#!/usr/bin/env python3
"""What the guard for PyTorch costs in a training step of a GPT-2 sized model, beside other ways to look at gradients.

    usage: guard_python.py [--rounds N] [--steps N] [--tokens N,N] [--forms A,B] [--quick] [--compile]

Forms, each in turn in every round, the order changing:

    none            no check
    guard           esper.Guard(on_bad="skip") with fused AdamW: told on the device, no wait of the host
    guard_raise     on_bad="raise": one wait a step
    guard_clip      on_bad="skip" with clip=1.0: the scan clips
    clip            torch.nn.utils.clip_grad_norm_
    anomaly         torch.autograd.detect_anomaly

One JSON line for each number of tokens and form: ms a step (median of the rounds' medians, smallest and largest of
them) and `overhead`, the median over the rounds of the time against `none` in the same round, with its spread. Then
lines on what one scan costs from Python, end to end: python.100_tensors (gradients), python.gpt2 (parameters and
gradients).
Needs a package that finds its library: PYTHONPATH=bindings/python ESPER_GUARD_LIBRARY=...
"""
import argparse
import contextlib
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import esper

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        n, t, width = x.shape
        q, k, v = (part.view(n, t, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(width, dim=2))
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, width))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class GPT2(nn.Module):
    """148 tensors, 124 M parameters; the head is tied to the embedding."""

    def __init__(self, layers=12, width=768, heads=12, words=50257, length=1024):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Trainer:
    def __init__(self, model, tokens, length, compiled):
        self.plain = model
        self.model = torch.compile(model) if compiled else model
        options = {"fused": True} if DEVICE == "cuda" else {}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
        words = model.wte.weight.shape[0]
        self.batch = torch.randint(words, (max(1, tokens // length), length + 1), device=DEVICE)

    def step(self, form):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = self.model(self.batch[:, :-1], self.batch[:, 1:])
        loss.backward()
        if form == "clip":
            nn.utils.clip_grad_norm_(self.plain.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @contextlib.contextmanager
    def under(self, form):
        if form.startswith("guard"):
            on_bad = "raise" if form == "guard_raise" else "skip"
            guard = esper.Guard(self.plain, self.optimizer, on_bad, clip=1.0 if form == "guard_clip" else None,
                                log=lambda line: None).attach()
            try:
                yield guard
            finally:
                guard.detach()
        elif form == "anomaly":
            with torch.autograd.detect_anomaly():
                yield None
        else:
            yield None

    def measure(self, form, steps):
        """Median ms of a step: the whole of `steps` between two waits for the device, five times."""
        with self.under(form):
            for _ in range(3):
                self.step(form)
            times = []
            for _ in range(3):
                synchronize()
                start = time.perf_counter()
                for _ in range(steps):
                    self.step(form)
                synchronize()
                times.append((time.perf_counter() - start) / steps * 1e3)
        return statistics.median(times)


def emit(**values):
    values["torch"] = torch.__version__
    values["device"] = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    print(json.dumps(values), flush=True)


def compare(trainer, forms, tokens, options):
    rounds = {form: [] for form in forms}
    for i in range(options.rounds):
        for form in forms[i % len(forms):] + forms[:i % len(forms)]:
            rounds[form].append(trainer.measure(form, options.steps))
    for form in forms:
        times = rounds[form]
        line = {"name": "step", "tokens": tokens, "form": form, "compiled": options.compile,
                "ms": statistics.median(times), "spread": [min(times), max(times)], "rounds": options.rounds}
        if "none" in rounds:
            over = [mine / none - 1 for mine, none in zip(times, rounds["none"])]
            line.update(overhead=statistics.median(over), overhead_spread=[min(over), max(over)])
        emit(**line)


def scan_cost(name, model, scan, rounds=300):
    """us of launch and result, with new gradients each time."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = esper.Guard(model, optimizer, log=lambda line: None)
    times, issue = [], []
    for _ in range(rounds):
        for parameter in model.parameters():
            parameter.grad = None
        grads = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for parameter, grad in zip(model.parameters(), grads):
            parameter.grad = grad
        del grads
        synchronize()
        start = time.perf_counter()
        pending = guard.launch(scan)
        middle = time.perf_counter()
        good = pending.result().ok
        times.append((time.perf_counter() - start) * 1e6)
        issue.append((middle - start) * 1e6)
        assert good
    guard.detach()
    times.sort()
    emit(name=name, us=statistics.median(times), p10=times[rounds // 10], p90=times[rounds * 9 // 10],
         until_launched_us=statistics.median(issue), tensors=len(list(model.parameters())) * len(scan))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tokens", default="32768,8192")
    parser.add_argument("--forms", default="none,guard,guard_raise,guard_clip,clip,anomaly")
    parser.add_argument("--quick", action="store_true", help="a small model, to see it work")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    shape = {"layers": 2, "width": 64, "heads": 2, "words": 500, "length": 64} if options.quick else {}
    length = 64 if options.quick else 1024
    model = GPT2(**shape).to(DEVICE)
    hundred = nn.Module()
    hundred.list = nn.ParameterList([nn.Parameter(torch.randn(18000 if DEVICE == "cuda" else 64, device=DEVICE))
                                     for _ in range(100)])
    scan_cost("python.100_tensors", hundred, ("grad",))
    scan_cost("python.100_tensors_and_gradients", hundred, ("grad", "param"))
    scan_cost("python.gpt2_gradients", model, ("grad",), 50 if DEVICE == "cpu" else 300)
    scan_cost("python.gpt2", model, ("grad", "param"), 50 if DEVICE == "cpu" else 300)
    for parameter in model.parameters():
        parameter.grad = None
    for tokens in [int(count) for count in options.tokens.split(",")]:
        trainer = Trainer(model, tokens if not options.quick else 256, length, options.compile)
        compare(trainer, options.forms.split(","), tokens, options)


if __name__ == "__main__":
    main()
