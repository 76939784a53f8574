# ctest: timeout=200 cost=10
"""Forty loops of other people's shape, guarded: see guard_loops.py for what is required of each."""
import copy
import unittest
import warnings

from guard_loops import LOOPS, check, loop

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler, swa_utils
from torch.utils.checkpoint import checkpoint

OPTIM = torch.optim


def net(norm=False, dropout=0.0):
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16) if norm else nn.Identity(), nn.ReLU(),
                         nn.Dropout(dropout), nn.Linear(16, 3))


def batch(i, n=12):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(n, 6, generator=generator), torch.randint(3, (n,), generator=generator)


def loss_of(model, i, n=12):
    x, y = batch(i, n)
    return F.cross_entropy(model(x), y)


def plain_loop(run, make, model=None, loss=loss_of):
    """The loop of every tutorial."""
    model = model or net()
    optimizer = make(model.parameters())
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad()
        loss(model, run.i).backward()
        run.go(optimizer)
        yield


# ---- optimisers

def with_optimizer(name, make):
    def run_it(run):
        yield from plain_loop(run, make)
    run_it.__name__ = name
    loop(run_it)


for name, make in {
        "sgd": lambda p: OPTIM.SGD(p, lr=0.1),
        "sgd_nesterov": lambda p: OPTIM.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
        "adam": lambda p: OPTIM.Adam(p, lr=1e-2),
        "adamw_amsgrad": lambda p: OPTIM.AdamW(p, lr=1e-2, amsgrad=True),
        "adam_foreach": lambda p: OPTIM.Adam(p, lr=1e-2, foreach=True),
        "adagrad": lambda p: OPTIM.Adagrad(p, lr=1e-2),
        "adadelta": lambda p: OPTIM.Adadelta(p),
        "adamax": lambda p: OPTIM.Adamax(p, lr=1e-2),
        "nadam": lambda p: OPTIM.NAdam(p, lr=1e-2),
        "radam": lambda p: OPTIM.RAdam(p, lr=1e-2),
        "rmsprop": lambda p: OPTIM.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
        "rprop": lambda p: OPTIM.Rprop(p, lr=1e-3),
        "asgd": lambda p: OPTIM.ASGD(p, lr=1e-2)}.items():
    with_optimizer(name, make)


@loop
def sparse_adam(run):
    """Embeddings with sparse gradients, an optimiser for them alone."""
    model = nn.Sequential(nn.Embedding(20, 4, sparse=True))
    yield from plain_loop(run, lambda p: OPTIM.SparseAdam(list(p), lr=1e-2), model,
                          lambda m, i: m(batch(i)[1]).pow(2).mean())


def closure_loop(run, make):
    model = net()
    optimizer = make(model.parameters())
    yield model, optimizer, {}
    while True:
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, run.i)
            loss.backward()
            return loss
        run.go(optimizer, closure)
        yield


@loop
def lbfgs(run):
    yield from closure_loop(run, lambda p: OPTIM.LBFGS(p, lr=0.1, max_iter=4))


@loop
def lbfgs_strong_wolfe(run):
    yield from closure_loop(run, lambda p: OPTIM.LBFGS(p, lr=0.5, max_iter=4, line_search_fn="strong_wolfe"))


@loop
def adam_with_closure(run):
    yield from closure_loop(run, lambda p: OPTIM.Adam(p, lr=1e-2))


class Sam(OPTIM.Optimizer):
    """Sharpness-aware: climbs first, evaluates again there, steps from where it was by an optimiser inside."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "rho": 0.05})
        self.base_optimizer = OPTIM.SGD(self.param_groups, lr=lr, momentum=0.9)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["climb"] = climb = parameter.grad * group["rho"]
                parameter.add_(climb)
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.state[parameter]["climb"])
        self.base_optimizer.step()
        return loss


@loop
def sam(run):
    yield from closure_loop(run, lambda p: Sam(p, 0.05))


class Lookahead(OPTIM.Optimizer):
    """Slow weights behind an optimiser inside."""

    def __init__(self, inner, k=3):
        self.inner, self.k = inner, k
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups
        self.state["counts"] = {"n": 0}

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.inner.step(closure)
        self.state["counts"]["n"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", parameter.clone())
                if self.state["counts"]["n"] % self.k == 0:
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)
        return loss


@loop
def lookahead(run):
    yield from plain_loop(run, lambda p: Lookahead(OPTIM.Adam(p, lr=1e-2)))


# ---- when gradients are zeroed, and how many backward passes there are

@loop
def accumulation(run):
    model = net()
    optimizer = OPTIM.AdamW(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        for part in range(4):
            (loss_of(model, 4 * run.i + part) / 4).backward()
        run.go(optimizer)
        optimizer.zero_grad(set_to_none=True)
        yield


@loop
def zero_in_place(run):
    model = net()
    optimizer = OPTIM.AdamW(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, run.i).backward()
        run.go(optimizer)
        yield


@loop
def zero_by_the_model(run):
    model = net()
    optimizer = OPTIM.SGD(model.parameters(), lr=0.1, momentum=0.9)
    yield model, optimizer, {}
    while True:
        model.zero_grad()
        loss_of(model, run.i).backward()
        run.go(optimizer)
        yield


@loop
def two_losses(run):
    model = net()
    optimizer = OPTIM.Adam(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad()
        out = model(batch(run.i)[0])
        out.pow(2).mean().backward(retain_graph=True)
        F.cross_entropy(out, batch(run.i)[1]).backward()
        run.go(optimizer)
        yield


@loop
def autograd_grad(run):
    """Gradients by hand, through torch.autograd.grad."""
    model = net()
    optimizer = OPTIM.Adam(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        grads = torch.autograd.grad(loss_of(model, run.i), list(model.parameters()))
        for parameter, grad in zip(model.parameters(), grads):
            parameter.grad = grad
        run.go(optimizer)
        yield


@loop
def gradient_penalty(run):
    """A double backward pass, as WGAN-GP has."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = OPTIM.RMSprop(model.parameters(), lr=1e-3)
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad()
        x = batch(run.i)[0].requires_grad_()
        out = model(x).sum()
        slope = torch.autograd.grad(out, x, create_graph=True)[0].norm(dim=1)
        (out / 12 + (slope - 1).pow(2).mean()).backward()
        run.go(optimizer)
        yield


# ---- clipping

@loop
def clip_norm(run):
    model = net()
    optimizer = OPTIM.AdamW(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad()
        loss_of(model, run.i).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        run.go(optimizer)
        yield


@loop
def clip_value(run):
    model = net()
    optimizer = OPTIM.SGD(model.parameters(), lr=0.1)
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad()
        loss_of(model, run.i).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        run.go(optimizer)
        yield


@loop
def weights_clamped(run):
    """WGAN's first form: weights are clamped after the step."""
    model = net()
    optimizer = OPTIM.RMSprop(model.parameters(), lr=1e-3)
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad()
        loss_of(model, run.i).backward()
        run.go(optimizer)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.6, 0.6)
        yield


# ---- schedules

def scheduled_loop(run, make, named, when="always"):
    model = net()
    optimizer = OPTIM.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    yield model, optimizer, {"scheduler": scheduler} if named else {}
    while True:
        optimizer.zero_grad()
        loss_of(model, run.i).backward()
        run.go(optimizer)
        if when == "always" or run.stepped:
            scheduler.step(1.0) if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else scheduler.step()
        yield


@loop
def step_lr(run):
    yield from scheduled_loop(run, lambda o: lr_scheduler.StepLR(o, 2, 0.5), False)


@loop
def one_cycle(run):
    yield from scheduled_loop(run, lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=40), True)


@loop
def cyclic(run):
    yield from scheduled_loop(run, lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3), True)


@loop
def warm_up_when_stepped(run):
    yield from scheduled_loop(run, lambda o: lr_scheduler.LambdaLR(o, lambda n: min(1.0, (n + 1) / 5)), True, "stepped")


@loop
def plateau(run):
    yield from scheduled_loop(run, lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1), False)


@loop
def rate_by_hand(run):
    model = net()
    optimizer = OPTIM.AdamW(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * 0.9**run.i
        optimizer.zero_grad()
        loss_of(model, run.i).backward()
        run.go(optimizer)
        yield


# ---- models

@loop
def batch_norm_channels_last(run):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(8, 3)).to(memory_format=torch.channels_last)
    optimizer = OPTIM.SGD(model.parameters(), lr=0.1, momentum=0.9)
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad()
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(run.i)).to(
            memory_format=torch.channels_last)
        F.cross_entropy(model(x), torch.tensor([0, 1, 2, 0])).backward()
        run.go(optimizer)
        yield


@loop
def dropout(run):
    """Masks are drawn from torch's own generator."""
    yield from plain_loop(run, lambda p: OPTIM.Adam(p, lr=1e-2), net(dropout=0.3))


@loop
def tied_weights(run):
    model = nn.Module()
    model.embed, model.head = nn.Embedding(10, 6), nn.Linear(6, 10, bias=False)
    model.head.weight = model.embed.weight
    yield from plain_loop(run, lambda p: OPTIM.AdamW(p, lr=1e-2), model,
                          lambda m, i: F.cross_entropy(m.head(m.embed(batch(i)[1])), batch(i + 1)[1]))


@loop
def groups_without_decay(run):
    model = net(norm=True)
    decays = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = OPTIM.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-2)
    yield model, optimizer, {}
    while True:
        optimizer.zero_grad()
        loss_of(model, run.i).backward()
        run.go(optimizer)
        yield


@loop
def unfrozen_later(run):
    """A backbone that joins the optimiser at the fourth step."""
    model = net()
    model[0].requires_grad_(False)
    optimizer = OPTIM.Adam(model[4].parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        if run.i == 4:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 1e-3})
        optimizer.zero_grad()
        loss_of(model, run.i).backward()
        run.go(optimizer)
        yield


@loop
def lstm_with_carried_state(run):
    """Truncated backpropagation through time."""
    model = nn.LSTM(6, 8, batch_first=True)
    optimizer = OPTIM.Adam(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    hidden = None
    while True:
        optimizer.zero_grad()
        out, hidden = model(batch(run.i)[0].view(2, 6, 6), hidden)
        hidden = tuple(h.detach() for h in hidden)
        out.pow(2).mean().backward()
        run.go(optimizer)
        yield


@loop
def spectral_norm(run):
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 16)), nn.ReLU(), nn.Linear(16, 3))
    yield from plain_loop(run, lambda p: OPTIM.Adam(p, lr=1e-2), model)


@loop
def checkpointed(run):
    model = net()

    def loss(m, i):
        x, y = batch(i)
        return F.cross_entropy(m[4](checkpoint(m[:4], x.requires_grad_(), use_reentrant=False)), y)

    yield from plain_loop(run, lambda p: OPTIM.SGD(p, lr=0.1), model, loss)


@loop
def autocast(run):
    def loss(m, i):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_of(m, i)

    yield from plain_loop(run, lambda p: OPTIM.AdamW(p, lr=1e-2), None, loss)


@loop
def double_and_complex(run):
    model = nn.Module()
    model.wide = nn.Linear(6, 3).double()
    model.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    yield from plain_loop(run, lambda p: OPTIM.SGD(p, lr=1e-2), model,
                          lambda m, i: (m.wide(batch(i)[0].double()).pow(2).mean() * m.phase.abs().mean()))


@loop
def moving_average(run):
    """An average of the weights beside the model, in state=."""
    model = net()
    optimizer = OPTIM.Adam(model.parameters(), lr=1e-2)
    average = swa_utils.AveragedModel(model)
    yield model, optimizer, {"average": average}
    while True:
        optimizer.zero_grad()
        loss_of(model, run.i).backward()
        run.go(optimizer)
        if run.stepped:
            average.update_parameters(model)
        yield


@loop
def validation_between(run):
    model = net(norm=True, dropout=0.2)
    optimizer = OPTIM.Adam(model.parameters(), lr=1e-2)
    yield model, optimizer, {}
    while True:
        model.train()
        optimizer.zero_grad()
        loss_of(model, run.i).backward()
        run.go(optimizer)
        model.eval()
        with torch.no_grad():
            loss_of(model, 1000 + run.i)
        yield


@loop
def meta_learning(run):
    """Reptile: a copy of the model trains by an optimiser of its own, unguarded, and the model follows it."""
    model = net()
    optimizer = OPTIM.SGD(model.parameters(), lr=0.5)
    yield model, optimizer, {}
    while True:
        inner = copy.deepcopy(model)
        of_inner = OPTIM.SGD(inner.parameters(), lr=0.1)
        for k in range(2):
            of_inner.zero_grad()
            loss_of(inner, 10 * run.i + k).backward()
            of_inner.step()
        optimizer.zero_grad()
        for parameter, other in zip(model.parameters(), inner.parameters()):
            parameter.grad = parameter.detach() - other.detach()
        run.go(optimizer)
        yield


@loop
def muon_and_adamw(run):
    """Two optimisers after one backward pass, one guard."""
    model = net()
    optimizers = [OPTIM.SGD([p for p in model.parameters() if p.ndim > 1], lr=0.05, momentum=0.9),
                  OPTIM.AdamW([p for p in model.parameters() if p.ndim == 1], lr=1e-2)]
    yield model, optimizers, {}
    while True:
        model.zero_grad()
        loss_of(model, run.i).backward()
        for optimizer in optimizers:
            run.go(optimizer)
        yield


class TestLoops(unittest.TestCase):
    def test_there_are_forty(self):
        self.assertGreaterEqual(len(LOOPS), 40)


def _case(name):
    def test(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of schedulers, about loops that pass steps over
            check(self, name)
    return test


for name in list(LOOPS):
    setattr(TestLoops, "test_" + name, _case(name))

if __name__ == "__main__":
    unittest.main()
