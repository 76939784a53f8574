#!/usr/bin/env python3
"""Random faults and healthy steps, many of them.

    usage: guard_soak.py [--faults N] [--healthy N] [--seed S]      (500 and 10,000 unless said)

Each fault hits one element of a gradient, a parameter or a moment, under float32, bfloat16 autocast or, where there is
a GradScaler, float16: it has to be named by the first scan that covers it, and training has to go on finite from there.
Healthy steps, of the same kinds, must raise no alarm. One JSON line for each kind; exit status 1 when something failed.
"""
import argparse
import json
import random
import sys

from guard_cases import DEVICES, Net, can_fuse

import torch

import esper


def forms():
    """(device, type, fused) of what can be trained here."""
    for device in DEVICES:
        for dtype in ("float32", "bfloat16"):
            for fused in (False, True):
                if not fused or can_fuse(device):
                    yield device, dtype, fused
    if torch.cuda.is_available():
        yield "cuda", "float16", False
        if can_fuse("cuda"):
            yield "cuda", "float16", True


class Run:
    """A training under the guard that goes on through whatever hits it."""

    def __init__(self, device, dtype, fused, seed):
        torch.manual_seed(seed)
        self.device, self.dtype = device, dtype
        self.model = Net().to(device)
        options = {"fused": True} if fused else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **options)
        self.lines = []
        self.scaler = None
        if dtype == "float16":
            make = getattr(getattr(torch, "amp", None), "GradScaler", None)
            self.scaler = make(device) if make is not None else torch.cuda.amp.GradScaler()
        self.guard = esper.Guard(self.model, self.optimizer, "rollback", state_every=4, max_rollbacks=10**9,
                                 snapshot=esper.Snapshots(every=4), log=self.lines.append)
        self.guard.attach(scaler=self.scaler)
        self.at = 0
        self.backed_off = []  # names of what GradScaler was left with

    def backward(self):
        self.at += 1
        x = torch.randn(12, 6, generator=torch.Generator().manual_seed(self.at)).to(self.device)
        if self.dtype == "float32":
            loss = (self.model(x) - x[:, :3]).pow(2).mean()
        else:
            with torch.autocast(self.device, dtype=getattr(torch, self.dtype)):
                loss = (self.model(x).float() - x[:, :3]).pow(2).mean()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, hit=None):
        self.optimizer.zero_grad(set_to_none=True)
        self.backward()
        if hit is not None:
            hit()
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            report = self.guard.result()
            if not report.ok and not report.alarm:
                self.backed_off.append(report.first_bad)

    def told(self):
        return [line for line in self.lines if ": NaN" in line or ": Inf" in line]

    def close(self):
        self.guard.detach()


def faults(run, count, rng):
    """Injects; gives how many were named, and whether all is finite at the end."""
    named = 0
    failures = []
    names = [name for name, _ in run.model.named_parameters()]
    for _ in range(8):
        run.step()
    for _ in range(count):
        name = rng.choice(names)
        kind = rng.choice(("grad", "param", "moment"))
        where = {"grad": name + ".grad", "param": name, "moment": name + rng.choice((".exp_avg", ".exp_avg_sq"))}[kind]
        size = dict(run.model.named_parameters())[name].numel()
        n_told, n_backed_off = len(run.told()), len(run.backed_off)
        run.step(lambda: run.guard.inject(where, rng.randrange(size), rng.choice(("nan", "inf", "-inf"))))
        for _ in range(9):  # past the next scan of the state, and past a snapshot
            run.step()
        run.guard.result()
        told = run.told()[n_told:]
        backed_off = run.backed_off[n_backed_off:]
        if (told and f" in {where}," in told[0]) or (backed_off and backed_off[0] == where):
            named += 1
        else:
            failures.append({"hit": where, "told": told[:2], "backed_off": backed_off[:2]})
        if not esper.check(run.model, run.optimizer).ok:
            failures.append({"hit": where, "told": ["not finite afterwards: " + str(esper.check(run.model))]})
            break
    return named, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--healthy", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    kinds = list(forms())
    rng = random.Random(options.seed)
    good = True
    for i, kind in enumerate(kinds):
        n_faults = (options.faults + len(kinds) - 1 - i) // len(kinds)
        n_healthy = (options.healthy + len(kinds) - 1 - i) // len(kinds)
        run = Run(*kind, options.seed + i)
        named, failures = faults(run, n_faults, rng)
        run.close()
        run = Run(*kind, options.seed + i)
        for _ in range(n_healthy):
            run.step()
        run.close()
        alarms = run.told()
        good = good and not failures and not alarms
        print(json.dumps({"device": kind[0], "type": kind[1], "fused": kind[2], "torch": torch.__version__,
                          "faults": n_faults, "named": named, "failures": failures[:5], "healthy": n_healthy,
                          "alarms": alarms[:5], "backed_off": len(run.backed_off)}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
