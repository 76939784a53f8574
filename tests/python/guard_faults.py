#!/usr/bin/env python3
"""Random faults in trainings of many kinds, each beside a twin that has none.

    usage: guard_faults.py [--faults N] [--seed S]      (500 unless said)

A fault hits one element of a gradient, a parameter or a moment. It has to be named; after a bad gradient the run has to
be, bit for bit, the twin that passed over that batch, and after bad state the twin that went back to the snapshot of
the same step. Kinds: thirteen optimisers, accumulation, autocast, several optimisers, fused, compiled and GradScaler
where there are such; two ranks under DistributedDataParallel, and sharded ones (FSDP2) where torch has them. One JSON
line for each kind; exit status 1 when something failed.
"""
import argparse
import copy
import json
import random
import shutil
import sys
import tempfile

from guard_cases import DEVICES, Net, can_fuse
from test_guard_ranks import fully_shard, main as rank_main, run_job

import torch
import torch.distributed as dist

import esper
from esper import _abi

OPTIM = torch.optim
OPTIMIZERS = {
    "SGD": lambda p: OPTIM.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: OPTIM.Adam(p, lr=1e-2),
    "AdamW": lambda p: OPTIM.AdamW(p, lr=1e-2, amsgrad=True),
    "Adagrad": lambda p: OPTIM.Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: OPTIM.Adadelta(p),
    "Adamax": lambda p: OPTIM.Adamax(p, lr=1e-2),
    "NAdam": lambda p: OPTIM.NAdam(p, lr=1e-2),
    "RAdam": lambda p: OPTIM.RAdam(p, lr=1e-2),
    "RMSprop": lambda p: OPTIM.RMSprop(p, lr=1e-3, momentum=0.5),
    "Rprop": lambda p: OPTIM.Rprop(p, lr=1e-3),
    "ASGD": lambda p: OPTIM.ASGD(p, lr=1e-2),
    "SparseAdam": lambda p: OPTIM.SparseAdam(list(p), lr=1e-2),
    "LBFGS": lambda p: OPTIM.LBFGS(p, lr=0.5, max_iter=3, line_search_fn="strong_wolfe"),
}
_OVERWRITE = ("Rprop", "ASGD", "SparseAdam", "LBFGS")  # whose moments a step may put right by itself


class Sparse(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Embedding(12, 6, sparse=True)

    def forward(self, x):
        return self.first((x[:, 0].abs() * 100).long() % 12)[:, :3]


class Kind:
    """How a model is trained: made anew for the guarded run and for its twin."""

    def __init__(self, name, make=None, device="cpu", n_backward=1, autocast=False, compiled=False, several=False,
                 scaler=False, wrap=None):
        self.name, self.make, self.device = name, make or OPTIMIZERS["AdamW"], device
        self.n_backward, self.autocast, self.compiled = n_backward, autocast, compiled
        self.several, self.scaler, self.wrap = several, scaler, wrap
        self.by_closure = name == "LBFGS"
        self.moments = not scaler and name not in _OVERWRITE


class Training:
    def __init__(self, kind, rank):
        torch.manual_seed(3)
        self.kind, self.rank = kind, rank
        self.inner = (Sparse() if kind.name == "SparseAdam" else Net()).to(kind.device)
        self.model = kind.wrap(self.inner) if kind.wrap is not None else self.inner
        if kind.compiled:
            self.model = torch.compile(self.model, backend="aot_eager")
        parameters = list(self.model.parameters())
        if kind.several:
            self.optimizers = [OPTIM.SGD([p for p in parameters if p.ndim > 1], lr=0.05, momentum=0.9),
                               OPTIM.AdamW([p for p in parameters if p.ndim == 1], lr=1e-2)]
        else:
            self.optimizers = [kind.make(parameters)]
        self.scaler = None
        if kind.scaler:
            make = getattr(getattr(torch, "amp", None), "GradScaler", None)
            self.scaler = make(kind.device) if make is not None else torch.cuda.amp.GradScaler()

    def backward(self, i):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for part in range(self.kind.n_backward):
            # LBFGS is for one function: with another batch at every step it diverges by itself, now and then
            seed = 0 if self.kind.by_closure else (i * self.kind.n_backward + part) * 7 + self.rank
            x = torch.randn(12, 6, generator=torch.Generator().manual_seed(seed)).to(self.kind.device)
            if self.kind.autocast or self.kind.scaler:
                dtype = torch.float16 if self.kind.scaler else torch.bfloat16
                with torch.autocast(self.kind.device, dtype=dtype):
                    loss = (self.model(x).float() - x[:, :3]).pow(2).mean()
            else:
                loss = (self.model(x) - x[:, :3]).pow(2).mean()
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss

    def step(self, i, hit=None):
        if self.kind.by_closure:
            def closure():
                loss = self.backward(i)
                if hit is not None:
                    hit()
                return loss
            self.optimizers[0].step(closure)
            return
        self.backward(i)
        if hit is not None:
            hit()
        for optimizer in self.optimizers:
            optimizer.step() if self.scaler is None else self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()

    def save(self):
        return copy.deepcopy([self.inner.state_dict()] + [optimizer.state_dict() for optimizer in self.optimizers])

    def load(self, saved):
        self.inner.load_state_dict(copy.deepcopy(saved[0]))
        for optimizer, state in zip(self.optimizers, saved[1:]):
            optimizer.load_state_dict(copy.deepcopy(state))

    def bits(self):
        return [getattr(p, "_local_tensor", p).detach().clone() for p in self.inner.parameters()]


def run_kind(kind, n_faults, rng, rank=0, world=1):
    """Gives how many faults were named, and what failed. rng is the same on every rank."""
    run, twin = Training(kind, rank), Training(kind, rank)
    lines, failures, named = [], [], 0
    guard = esper.Guard(run.model, run.optimizers if kind.several else run.optimizers[0], "rollback", state_every=1,
                        max_rollbacks=10**9, snapshot=esper.Snapshots(every=3), log=lines.append)
    guard.attach(scaler=run.scaler)
    copies = {0: twin.save()}
    i = 0

    def iterate(hit=None, outcome="step"):
        nonlocal i
        i += 1
        run.step(i, hit)
        guard.result()
        if outcome == "rollback":
            if guard.steps in copies:  # else it was not rolled back, which is told below
                twin.load(copies[guard.steps])
        elif outcome == "step":
            twin.step(i)
            copies[guard.steps] = twin.save()
        elif kind.scaler:  # its scaler has to find it, too
            twin.step(i, lambda: next(twin.inner.parameters()).grad.view(-1)[0].fill_(float("nan")))
        else:
            copies[guard.steps] = twin.save()

    for _ in range(4):
        iterate()
    for n in range(n_faults):
        what = rng.choice(["grad", "grad", "param"] + (["moment"] if kind.moments else []))
        if kind.scaler:
            what = "grad"
        place, element = rng.random(), rng.random()
        values = [float("nan"), float("inf"), float("-inf")]
        value = rng.choice(values if what != "moment" else values[:2])  # a maximum heals the last one
        here = rng.randrange(world) == rank  # over ranks, on one of them
        where = []

        def hit():
            if where or not here:
                return
            found = [(name + ".grad", p.grad) for name, p in guard._watched.parameters if p.grad is not None]
            if what != "grad":
                role = _abi.PARAM if what == "param" else _abi.MOMENT
                found = [(".".join(key[1:]), t) for key, r, t in guard._machine.cover.tensors()
                         if r == role and t.is_floating_point() and t.ndim > 0]
            name, tensor = found[int(place * len(found))]
            where.append(name)
            tensor = getattr(tensor, "_local_tensor", tensor).detach()
            tensor = tensor._values() if tensor.is_sparse else tensor
            if tensor.numel():
                tensor.view(-1)[int(element * tensor.numel())] = value
            else:
                where[:] = [None]  # this rank has no part of it

        before, n_skipped = guard.n_rollbacks, guard.n_skipped
        n_lines = len(lines)
        iterate(hit, "skip" if what == "grad" else "rollback")
        if where == [None]:
            failures.append({"kind": kind.name, "fault": "on an empty shard"})
            break
        told = [line for line in lines[n_lines:] if "NaN" in line or "Inf" in line]
        expected = (guard.n_skipped - n_skipped, guard.n_rollbacks - before)
        if kind.scaler:
            fine = bool(guard.last.bad) and guard.last.bad[0].name == where[0]
        else:
            fine = bool(told) and expected == ((1, 0) if what == "grad" else (0, 1))
            if fine and here:
                # a step carries a bad parameter or moment on within its parameter: one of its tensors is named
                root = where[0] if what in ("grad", "param") else where[0].rsplit(".", 1)[0]
                fine = f" in {root}," in told[0] or f" in {root}." in told[0]
        named += fine
        same = all(torch.equal(a, b) for a, b in zip(run.bits(), twin.bits()))
        if not fine or not same:
            failures.append({"fault": what, "where": where, "told": told[:2], "same as the twin": same,
                             "skips, rollbacks": expected})
            break
        for _ in range(rng.randrange(1, 4)):
            iterate()
        if not all(torch.equal(a, b) for a, b in zip(run.bits(), twin.bits())):
            failures.append({"fault": what, "where": where, "told": told[:2], "after": "healthy steps differ"})
            break
    guard.detach()
    return named, failures


def kinds():
    for name, make in OPTIMIZERS.items():
        yield Kind(name, make)
    yield Kind("accumulation", n_backward=4)
    yield Kind("autocast", autocast=True)
    yield Kind("several optimisers", several=True)
    for device in DEVICES:
        if can_fuse(device):
            yield Kind(f"fused, {device}", lambda p: OPTIM.AdamW(p, lr=1e-2, fused=True), device)
        if device == "cuda":
            yield Kind("AdamW, cuda", None, device)
            yield Kind("GradScaler", None, device, scaler=True)
        if hasattr(torch, "compile"):
            yield Kind(f"compiled, {device}", None, device, compiled=True)


def of_rank(rank, world, wrap, name):
    import os

    count, seed = (int(number) for number in os.environ["GUARD_FAULTS"].split(","))
    named, failures = run_kind(Kind(name, wrap=wrap), count, random.Random(seed), rank, world)
    return {"named": named, "failures": failures}


def rank_ddp(rank, world):
    return of_rank(rank, world, torch.nn.parallel.DistributedDataParallel, "DDP")


def rank_fsdp2(rank, world):
    def wrap(model):
        for part in (model.first, model.second, model.last):
            fully_shard(part)
        return fully_shard(model)

    return of_rank(rank, world, wrap, "FSDP2")


def over_ranks(count, seed):
    """Two processes over gloo; gives the lines of both kinds."""
    import os

    os.environ["GUARD_FAULTS"] = f"{count},{seed}"
    names = ["ddp"] + (["fsdp2"] if fully_shard is not None else [])
    folder = tempfile.mkdtemp()
    try:
        said = run_job(folder, names, 2, __file__)
        for name in names:
            ranks = []
            for rank in range(2):
                path = os.path.join(folder, f"{name}.{rank}")
                found = {"named": 0, "failures": [said[-2000:]]}
                if os.path.exists(path):
                    with open(path) as file:
                        found = json.load(file)
                ranks.append(found)
            yield {"kind": f"{name}, 2 ranks", "faults": count, "named": min(rank["named"] for rank in ranks),
                   "failures": [failure for rank in ranks for failure in rank["failures"]][:4]}
    finally:
        shutil.rmtree(folder)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    alone = list(kinds())
    n_kinds = len(alone) + (2 if fully_shard is not None else 1)
    each = -(-options.faults // n_kinds)
    good, total = True, 0
    for n, kind in enumerate(alone):
        named, failures = run_kind(kind, each, random.Random(options.seed + n))
        good, total = good and not failures and named == each, total + named
        print(json.dumps({"kind": kind.name, "faults": each, "named": named, "failures": failures}), flush=True)
    if dist.is_available():
        for line in over_ranks(each, options.seed):
            good, total = good and not line["failures"] and line["named"] == each, total + line["named"]
            print(json.dumps(line), flush=True)
    print(json.dumps({"torch": torch.__version__, "named, recovered, equal to the twin": total}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:], globals())
    else:
        sys.exit(main())
