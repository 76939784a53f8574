"""A harness for training loops of other people's shape, each written as a generator.

    @loop
    def plain(run):
        model, optimizer = net(), ...
        yield model, optimizer, {}            what is guarded, and objects of state=
        while True:
            ...backward...
            run.go(optimizer)                 instead of optimizer.step(): may hit a gradient or a parameter before it
            yield                             the iteration is over

`check` runs a loop with the guard and without: healthy steps have the same bits; a bad gradient is named and the run
equals the one that passed over that batch; a bad parameter is named and the state of the last snapshot comes back.
"""
import copy
import re

import torch

import esper
from esper._cover import flat, holders

N_STEPS, AT = 9, 6  # iterations; the one that is hit (snapshots are taken after every second step)
LOOPS = {}


def loop(function=None, **traits):
    """Registers a loop. traits: passes=False where a run without one step is not comparable, whole=False where the loop
    itself changes the state between steps."""
    def register(function):
        LOOPS[function.__name__] = function, traits
        return function
    return register(function) if function is not None else register


class Run:
    """One run of a loop: plain, plain without one step, or guarded with a fault."""

    def __init__(self, name, guarded=None, fault=None, passes_over=None):
        self.function, self.traits = LOOPS[name]
        self.fault, self._passes_over = fault, passes_over
        self.i, self.lines, self.named, self.states = 0, [], None, []
        self.guard, self._was_hit = None, False
        self._made = True
        torch.manual_seed(5)
        self._loop = self.function(self)
        self.model, optimizers, state = next(self._loop)
        self.optimizers = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
        if guarded is not None:
            if guarded.get("on_bad") == "rollback" and state:
                guarded = dict(guarded, state=state)
            self.guard = esper.Guard(self.model, optimizers, log=self.lines.append, **guarded).attach()

    @property
    def stepped(self):
        """As guard.stepped, for loops that ask."""
        return self.guard.stepped if self.guard is not None else self._made

    def all(self):
        try:
            for self.i in range(1, N_STEPS + 1):
                next(self._loop)
                self.states.append((self.guard.steps if self.guard is not None else self.i, self.state()))
        finally:
            if self.guard is not None:
                self.guard.detach()
        return self

    def go(self, optimizer, closure=None):
        """optimizer.step(), after the fault that this run has."""
        if self._passes_over == self.i:
            self._made = False
            return closure() if closure is not None else None
        self._made = True
        if closure is None:
            self._hit(optimizer)
            return optimizer.step()

        def evaluate():
            loss = closure()
            self._hit(optimizer)
            return loss

        return optimizer.step(evaluate)

    def _hit(self, optimizer):
        if self.fault is None or self.i != AT or self._was_hit:
            return
        name, parameter = next((name, p) for name, p in self.guard._watched.parameters if p.grad is not None
                               and any(p is q for group in optimizer.param_groups for q in group["params"]))
        self._was_hit = True
        tensor = parameter.grad if self.fault == "grad" else parameter.data
        self.named = name + ".grad" if self.fault == "grad" else name
        tensor = tensor._values() if tensor.is_sparse else tensor
        tensor[(0,) * tensor.ndim] = float("nan")

    def state(self):
        """Copies of everything that training changes."""
        found = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()
                 if isinstance(tensor, torch.Tensor)}
        names = {id(p): str(i) for i, p in enumerate(p for o in self.optimizers for g in o.param_groups
                                                     for p in g["params"])}
        for n, holder in enumerate(holders(self.optimizers)):
            for key, value in holder.state.items():
                for way, inner in flat(value):
                    name = names.get(id(key), str(key) if not isinstance(key, torch.Tensor) else "?")
                    found[f"{n}.{name}." + ".".join(way)] = copy.deepcopy(inner)
        return found

    def alarms(self):
        return [line for line in self.lines if "NaN" in line or "Inf" in line or "not called" in line]


def _same(case, one, two, what):
    case.assertEqual(one.keys(), two.keys(), what)
    for name, value in one.items():
        same = torch.equal(value, two[name]) if isinstance(value, torch.Tensor) else value == two[name]
        case.assertTrue(same, f"{what}: {name} differs:\n{value}\n{two[name]}")


def check(case, name):
    """All that is promised of a loop."""
    traits = LOOPS[name][1]
    plain = Run(name).all()
    healthy = Run(name, {"on_bad": "skip", "state_every": 1}).all()
    case.assertEqual(healthy.alarms(), [], name)
    _same(case, plain.states[-1][1], healthy.states[-1][1], f"{name}, healthy")

    skipped = Run(name, {"on_bad": "skip"}, "grad").all()
    case.assertIn(f" in {skipped.named}, ", skipped.alarms()[0], name)
    case.assertEqual(skipped.guard.n_skipped, 1, name)
    if traits.get("passes", True):
        expected = Run(name, passes_over=AT).all()
        _same(case, expected.states[-1][1], skipped.states[-1][1], f"{name}, passed over")

    back = Run(name, {"on_bad": "rollback", "state_every": 1, "snapshot": esper.Snapshots(every=2)}, "param").all()
    # the step may have carried it on into the optimiser's state, which is named before the parameter
    case.assertRegex(back.alarms()[0], f" in {re.escape(back.named)}[,.]", name)
    case.assertIn("; rolled back to step ", back.alarms()[0], name)
    case.assertEqual((back.guard.n_rollbacks, len(back.alarms())), (1, 1), (name, back.alarms()))
    step, state = back.states[AT - 1]
    before = dict(back.states[:AT - 1])
    if traits.get("whole", True):
        _same(case, before[step], state, f"{name}, rolled back")
    case.assertTrue(all(bool(torch.isfinite(value).all()) for value in back.states[-1][1].values()
                        if isinstance(value, torch.Tensor) and value.is_floating_point()), name)
