#!/usr/bin/env python3
"""What the guard for PyTorch costs in Python, for several versions of the package in turn, in one process.

    usage: guard_python_pair.py [--rounds N] [--scans N] FOLDER FOLDER...

Each folder has a package `esper` in it, as bindings/python of a checkout has (`git worktree add` makes another one).
The first is the one that others are set beside. All use the library ESPER_GUARD_LIBRARY: give the newest.

    tensors_1, tensors_100, tensors_300     launch() and result() over the gradients of so many small tensors
    both_100                                the same over parameters and gradients of 100 tensors
    step_100                                guard.step() around an optimiser that does nothing, on_bad="raise"
    gpt2_gradients, gpt2                    the model of guard_python.py: gradients; parameters and gradients (on CUDA)

One JSON line for each case and folder: us (median over the rounds of their medians), until_launched_us, and `ratio`,
the median over the rounds of the first folder's time / this one's, with its spread.
"""
import argparse
import importlib
import json
import os
import statistics
import sys
import time

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Nothing(torch.optim.Optimizer):
    """Steps nothing, so that what is timed is the guard."""

    def __init__(self, parameters):
        super().__init__(list(parameters), {})

    def step(self):
        pass


def load(folder):
    """The package of a folder, beside those of others: each keeps the modules that it has imported."""
    for name in [name for name in sys.modules if name.split(".")[0] == "esper"]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    try:
        package = importlib.import_module("esper")
        package.Guard  # which imports the rest
    finally:
        sys.path.remove(folder)
    if os.path.dirname(os.path.dirname(os.path.abspath(package.__file__))) != os.path.abspath(folder):
        sys.exit(f"{folder} has no package esper in it: give bindings/python of a checkout")
    return package


def small(count):
    model = torch.nn.Module()
    model.list = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(64, device=DEVICE)) for _ in range(count)])
    return model


def gpt2():
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import guard_python  # finds the package that was loaded last

    return guard_python.GPT2().to(DEVICE)


def renew_gradients(model):
    """As zero_grad(set_to_none=True) and a backward pass do."""
    for parameter in model.parameters():
        parameter.grad = None
    grads = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for parameter, grad in zip(model.parameters(), grads):
        parameter.grad = grad


def measure(package, model, scan, n_scans):
    """Medians in us: of all of it, and until the scan was launched. scan: None is a step."""
    guard = package.Guard(model, Nothing(model.parameters()), log=lambda line: None)
    whole, issue = [], []
    for _ in range(n_scans):
        renew_gradients(model)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        start = middle = time.perf_counter_ns()
        if scan is None:
            report = guard.step()
        else:
            pending = guard.launch(scan)
            middle = time.perf_counter_ns()
            report = pending.result()
        good = report.ok
        whole.append((time.perf_counter_ns() - start) / 1e3)
        issue.append((middle - start) / 1e3)
        assert good
    guard.detach()
    return statistics.median(whole), statistics.median(issue)


def compare(name, model, scan, folders, packages, options):
    rounds = [[] for _ in packages]
    for i in range(options.rounds):
        for k in range(len(packages)):
            k = (k + i) % len(packages)  # who begins changes
            rounds[k].append(measure(packages[k], model, scan, options.scans))
    for folder, times in zip(folders, rounds):
        ratios = [first[0] / mine[0] for first, mine in zip(rounds[0], times)]
        print(json.dumps({"name": name, "folder": folder, "us": round(statistics.median(t[0] for t in times), 1),
                          "until_launched_us": round(statistics.median(t[1] for t in times), 1),
                          "ratio": round(statistics.median(ratios), 3),
                          "spread": [round(min(ratios), 3), round(max(ratios), 3)], "rounds": options.rounds,
                          "python": sys.version.split()[0], "torch": torch.__version__, "device": DEVICE}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scans", type=int, default=200, help="in each round, for each folder and case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    packages = [load(folder) for folder in options.folders]
    cases = [(f"tensors_{count}", small(count), ("grad",)) for count in (1, 100, 300)]
    hundred = cases[1][1]
    cases += [("both_100", hundred, ("grad", "param")), ("step_100", hundred, None)]
    if DEVICE == "cuda":
        large = gpt2()
        cases += [("gpt2_gradients", large, ("grad",)), ("gpt2", large, ("grad", "param"))]
    for name, model, scan in cases:
        compare(name, model, scan, options.folders, packages, options)


if __name__ == "__main__":
    main()
