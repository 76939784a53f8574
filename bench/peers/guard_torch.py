#!/usr/bin/env python3
"""The guard's peers: what PyTorch offers to check parameters and gradients, and to get back.

Started by bench/vs_torch. Makes one model's tensors, says so in a JSON line, then answers each line of standard input,
the name of a form, with one measurement as a JSON line; so two programs can take turns. On the GPU when there is one;
on the CPU with one thread or with one for each core, whichever is faster.

  usage: guard_torch.py MODEL         MODEL: gpt2, 1b, small100; append /8 to the name for an eighth of the width
         guard_torch.py --forms       the forms, one a line, with what they read: all, grads or weights

All forms over "all" read parameters and gradients. Each is written as its users would write it at its best.
"""
import json
import os
import statistics
import sys
import time

LEAST_CALLS, LEAST_SECONDS, MOST_CALLS = 3, 0.05, 301

FORMS = {
    "before": "all",            # four questions for each parameter, each waiting for its answer
    "after": "all",             # the same questions, the answers fetched together
    "foreach": "all",           # norms by one multi-tensor call; finite or not, tensor by tensor
    "foreach_compiled": "all",  # the same through torch.compile
    "amp_check": "grads",       # GradScaler's own: one flag, no names
    "total_norm": "grads",      # clip_grad_norm_'s number
    "grads_cat": "grads",       # statistics over a flat copy of all gradients
    "grads_perparam": "grads",  # statistics gradient by gradient
    "rollback_clones": "weights",  # parameters from clones on the same device
    "rollback_pinned": "weights",  # from pinned host memory: GPU only
}


def transformer(vocabulary, context, width, layers):
    shapes = [(vocabulary, width), (context, width)]
    for _ in range(layers):
        shapes += [(width,), (width,)]
        shapes += [(3 * width, width), (3 * width,), (width, width), (width,)]
        shapes += [(width,), (width,)]
        shapes += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return shapes + [(width,), (width,)]


def shapes_of(model):
    name, _, part = model.partition("/")
    part = int(part or 1)
    if name == "gpt2":
        return transformer(50304 // part, 1024 // part, 768 // part, 12)
    if name == "1b":
        return transformer(50304 // part, 2048 // part, 2048 // part, 18)
    if name == "small100":
        return [(64, 64 // part, 3, 3), (64,)] * 50
    sys.exit(f"guard_torch.py: no model is called '{model}'")


class Peer:
    def __init__(self, torch, model):
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        shapes = shapes_of(model)
        torch.manual_seed(1)
        self.params = [torch.randn(shape, device=self.device) for shape in shapes]
        self.grads = [torch.randn(shape, device=self.device) for shape in shapes]
        self.kept = {}
        self.threads = len(os.sched_getaffinity(0))

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    # ---- parameters and gradients

    def before(self):
        torch, found = self.torch, []
        for index, (param, grad) in enumerate(zip(self.params, self.grads)):
            if torch.isnan(param).any():
                found.append(("nan", "param", index))
            if torch.isinf(param).any():
                found.append(("inf", "param", index))
            if torch.isnan(grad).any():
                found.append(("nan", "grad", index))
            if torch.isinf(grad).any():
                found.append(("inf", "grad", index))
        return found

    def after(self):
        torch = self.torch
        rows = [[test(tensor).any() for tensor in tensors]
                for tensors in (self.params, self.grads) for test in (torch.isnan, torch.isinf)]
        return torch.stack([torch.stack(row) for row in rows]).cpu()

    def norms(self, params, grads):
        torch = self.torch
        return torch.isfinite(torch.stack(list(torch._foreach_norm(params)) + list(torch._foreach_norm(grads))))

    def foreach(self):
        return self.norms(self.params, self.grads).cpu()

    def foreach_compiled(self):
        if "compiled" not in self.kept:
            self.kept["compiled"] = self.torch.compile(self.norms)
        return self.kept["compiled"](self.params, self.grads).cpu()

    # ---- gradients alone

    def amp_check(self):
        torch = self.torch
        if "flag" not in self.kept:
            self.kept["flag"] = torch.zeros(1, device=self.device)
            self.kept["scale"] = torch.ones(1, device=self.device)
        flag = self.kept["flag"].zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(self.grads, flag, self.kept["scale"])
        return flag.cpu()

    def total_norm(self):
        torch = self.torch
        if hasattr(torch.nn.utils, "get_total_norm"):
            return torch.nn.utils.get_total_norm(self.grads, foreach=True).cpu()
        return torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(self.grads)))).cpu()

    def grads_cat(self):
        torch = self.torch
        flat = torch.cat([grad.reshape(-1) for grad in self.grads])
        norms = torch.stack(list(torch._foreach_norm(self.grads)))
        counts = [torch.isnan(flat).sum(), torch.isinf(flat).sum(), (flat.abs() < 1e-8).sum()]
        return torch.stack([count.float() for count in counts] + [flat.norm(), norms.min(), norms.max()]).cpu()

    def grads_perparam(self):
        torch = self.torch
        counts = [torch.stack([torch.isnan(grad).sum(), torch.isinf(grad).sum(), (grad.abs() < 1e-8).sum()])
                  for grad in self.grads]
        return torch.stack(counts).cpu(), torch.stack(list(torch._foreach_norm(self.grads))).cpu()

    # ---- back to a copy

    def rollback_clones(self):
        torch = self.torch
        if "clones" not in self.kept:
            self.kept["clones"] = [param.clone() for param in self.params]
        if hasattr(torch, "_foreach_copy_"):
            torch._foreach_copy_(self.params, self.kept["clones"])
        else:
            for param, clone in zip(self.params, self.kept["clones"]):
                param.copy_(clone)

    def rollback_pinned(self):
        if self.device != "cuda":
            raise RuntimeError("needs a GPU")
        if "pinned" not in self.kept:
            self.kept["pinned"] = [param.cpu().pin_memory() for param in self.params]
        for param, pinned in zip(self.params, self.kept["pinned"]):
            param.copy_(pinned, non_blocking=True)

    # ---- measuring

    def measure_calls(self, call):
        """Median of as many calls as take a twentieth of a second, at least three, after one that does not count."""
        times = []
        call()
        self.wait()
        while len(times) < LEAST_CALLS or (sum(times) < LEAST_SECONDS and len(times) < MOST_CALLS):
            began = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - began)
        return 1e3 * statistics.median(times)

    def measure(self, form):
        """In ms. On the CPU with one thread and with all of them: the better counts."""
        call = getattr(self, form)
        if form not in self.kept:
            call()  # the very first sets things up: buffers, a compiled function
            self.kept[form] = True
        if self.device == "cuda" or self.threads == 1:
            return self.measure_calls(call)
        best = []
        for threads in (1, self.threads):
            self.torch.set_num_threads(threads)
            best.append(self.measure_calls(call))
        return min(best)

    def answer(self, form):
        if form not in FORMS:
            return {"form": form, "error": "no such form"}
        try:
            return {"form": form, "value": self.measure(form), "unit": "ms"}
        except Exception as error:  # this torch has no such function: an answer too
            return {"form": form, "error": " ".join(str(error).split())[:160] or repr(error)}


def say(**fields):
    print(json.dumps(fields), flush=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--forms":
        for form, reads in FORMS.items():
            print(form, reads)
        return
    import torch

    with torch.no_grad():
        peer = Peer(torch, sys.argv[1])
        device = torch.cuda.get_device_name() if peer.device == "cuda" else "cpu"
        say(ready=True, torch=torch.__version__, device=peer.device, device_name=device, threads=peer.threads)
        for line in sys.stdin:
            say(**peer.answer(line.strip()))


main()
