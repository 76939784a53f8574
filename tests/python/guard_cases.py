"""What the tests of the guard for PyTorch share: where the package is, devices, small models, a loop."""
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "bindings", "python")
if PACKAGE not in sys.path:
    sys.path.insert(0, PACKAGE)

import torch

import esper
from esper import _optim
from esper._cover import flat

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
HAS_HOOKS = hasattr(torch.optim.Optimizer, "register_step_pre_hook")


def version():
    """(2, 11) of "2.11.0+cu130"."""
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in torch.__version__.split(".")[:2])


def needs(condition, what):
    """Skips a test, with a sentence, where something is not there."""
    return unittest.skipUnless(condition, f"needs {what}; this is torch {torch.__version__}"
                               f"{' with' if torch.cuda.is_available() else ' without'} CUDA")


def can_fuse(device):
    """Whether fused AdamW works there and is told through found_inf: CUDA from 2.1 on, the CPU from 2.4 on."""
    try:
        parameter = torch.nn.Parameter(torch.ones(2, device=device))
        return _optim.takes_flag(torch.optim.AdamW([parameter], fused=True))
    except Exception:
        return False


class Net(torch.nn.Module):
    """Three kinds of layers, small enough for thousands of steps."""

    def __init__(self, norm=False):
        super().__init__()
        self.first = torch.nn.Linear(6, 16)
        self.norm = torch.nn.BatchNorm1d(16) if norm else torch.nn.Identity()
        self.second = torch.nn.Linear(16, 8)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.relu(self.second(self.norm(torch.relu(self.first(x))))))


def seeded(kind, device="cpu", **options):
    """A model and its optimiser, the same each time; AdamW unless said."""
    torch.manual_seed(3)
    model = kind().to(device)
    optimizer = options.pop("optimizer", torch.optim.AdamW)(model.parameters(), lr=options.pop("lr", 1e-2), **options)
    return model, optimizer


def backward(model, step, device="cpu"):
    """One batch, the same for the same step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(12, 6, generator=generator).to(device)
    y = torch.randn(12, 3, generator=generator).to(device)
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    return loss.detach()


def train(model, optimizer, steps, device="cpu", start=0, before=None):
    """The plain loop; before(step) is called between backward and step."""
    for step in range(start, start + steps):
        optimizer.zero_grad(set_to_none=True)
        backward(model, step, device)
        if before is not None:
            before(step)
        optimizer.step()


def state_of(model, optimizer):
    """Copies of everything that training changes."""
    found = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for i, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for key, value in flat(optimizer.state.get(parameter, {})):
            found[f"{i}." + ".".join(key)] = value.clone() if isinstance(value, torch.Tensor) else value
    return found


class Case(unittest.TestCase):
    """Collects the guard's lines, and takes guards away at the end."""

    def setUp(self):
        self.lines = []

    def guard(self, model, optimizer, *args, **options):
        options.setdefault("log", self.lines.append)
        guard = esper.Guard(model, optimizer, *args, **options)
        self.addCleanup(self._detach, guard)
        return guard

    @staticmethod
    def _detach(guard):
        try:
            guard.detach()
        except esper.GuardError:
            pass

    def assertSameState(self, one, two):
        self.assertEqual(one.keys(), two.keys())
        for name, value in one.items():
            same = torch.equal(value, two[name]) if isinstance(value, torch.Tensor) else value == two[name]
            self.assertTrue(same, f"{name} differs:\n{value}\n{two[name]}")
