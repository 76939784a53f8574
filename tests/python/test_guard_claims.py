# ctest: timeout=200
"""What the guard says has happened: "rolled back" when all came back, "untouched" when nothing was touched, and what it
cannot cover refused or named."""
import copy
import itertools
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from guard_cases import PACKAGE, Case, Net, backward, seeded, state_of, train
from test_guard_policy import FlagSGD, PlainScaler

import torch
from torch.optim import lr_scheduler

import esper

NAN = float("nan")


def tiny():
    return torch.nn.Sequential(torch.nn.Linear(4, 4))


class NoCheck(torch.optim.Optimizer):
    """Steps every parameter, whether it has a gradient or not."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


class Global(torch.optim.SGD):
    """Keeps state under a key that is no parameter."""

    @torch.no_grad()
    def step(self, closure=None):
        state = self.state["global"]
        state["t"] = state.get("t", 0) + 1
        state.setdefault("d", torch.ones(()))
        state["d"] *= 0.9
        self.state["plain"] = state["t"]
        return super().step(closure)


class Within(torch.optim.Optimizer):
    """Has an optimiser inside, which keeps the moments, as SAM, Lookahead and ZeRO-1 do."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.base = torch.optim.AdamW(self.param_groups, lr=lr)
        self.average = torch.zeros(3)

    def step(self, closure=None):
        return self.base.step(closure)


class Extra(torch.nn.Linear):
    n = 0

    def get_extra_state(self):
        return {"n": self.n}

    def set_extra_state(self, state):
        self.n = state["n"]

    def forward(self, x):
        self.n += 1
        return super().forward(x)


class TestRolledBack(Case):
    def guarded(self, model, optimizer, every=5, **options):
        return self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=every),
                          **options).attach()

    def run_to(self, model, optimizer, steps, before=None):
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(2, 4, generator=torch.Generator().manual_seed(step))).pow(2).sum().backward()
            if before is not None:
                before(step)
            optimizer.step()

    def test_parameters_added_after_the_snapshot(self):
        model, optimizer = seeded(tiny)
        guard = self.guarded(model, optimizer, 10)
        self.run_to(model, optimizer, 12)
        model.add_module("head", torch.nn.Linear(4, 4))
        optimizer.add_param_group({"params": model.head.parameters()})
        born = model.head.weight.detach().clone()
        model.head.weight.data[0, 0] = NAN  # before the first step with it
        with self.assertRaisesRegex(esper.BadState, "NaN in head.weight, .*not in the snapshot: not rolled back"):
            self.run_to(model, optimizer, 1)
        model.head.weight.data.copy_(born)
        self.run_to(model, optimizer, 1)
        steps = guard.steps
        model.head.weight.data[0, 0] = NAN
        self.run_to(model, optimizer, 1)
        self.assertIn("NaN in head.weight, 1 of 16, first at 0; rolled back to step", self.lines[-1])
        self.assertLessEqual(guard.steps, steps)
        self.assertTrue(esper.check(model, optimizer).ok)

    def test_a_snapshot_when_parameters_come(self):
        model, optimizer = seeded(tiny)
        guard = self.guarded(model, optimizer, 10)
        self.run_to(model, optimizer, 12)
        model.add_module("head", torch.nn.Linear(4, 4))
        optimizer.add_param_group({"params": model.head.parameters()})
        born = model.head.weight.detach().clone()
        self.run_to(model, optimizer, 1)
        self.assertFalse(torch.equal(born, model.head.weight))
        guard.inject("head.weight")
        self.run_to(model, optimizer, 1)
        self.assertTrue(torch.equal(born, model.head.weight), "as it was before its first step")

    def test_expanded_buffer(self):
        model, optimizer = seeded(tiny)
        model.register_buffer("scale", torch.tensor(2.0).expand(4))
        guard = self.guarded(model, optimizer, 2)
        self.run_to(model, optimizer, 5)
        model.scale[:1].fill_(NAN)  # all four are one number in memory
        self.run_to(model, optimizer, 1)
        self.assertEqual((guard.n_rollbacks, model.scale.tolist(), model.scale.stride()), (1, [2.0] * 4, (0,)))

    def test_overlapping_memory_is_refused(self):
        model, optimizer = seeded(tiny)
        model.register_buffer("windows", torch.arange(6.0).as_strided((4, 3), (1, 1)))
        with self.assertRaisesRegex(esper.Unsupported, "windows: its elements overlap in memory"):
            self.guarded(model, optimizer)

    def test_state_without_a_parameter(self):
        model, optimizer = seeded(tiny, optimizer=Global)
        guard = self.guarded(model, optimizer)
        self.run_to(model, optimizer, 7)
        guard.inject("optimizer.global.d")
        self.run_to(model, optimizer, 1)
        self.assertIn("NaN in optimizer.global.d, 1 of 1", self.lines[-1])
        self.assertEqual((guard.steps, optimizer.state["global"]["t"], optimizer.state["plain"]), (5, 5, 5))
        self.assertAlmostEqual(float(optimizer.state["global"]["d"]), 0.9**5, delta=1e-6)
        optimizer.state["global"]["d"].fill_(NAN)
        self.assertEqual(esper.check(model, optimizer).first_bad, "optimizer.global.d")

    def test_an_optimizer_inside(self):
        model, optimizer = seeded(tiny, optimizer=Within)
        guard = self.guarded(model, optimizer)
        self.assertTrue(any("Within.average: tensors that the optimizer keeps outside of its state" in sentence
                            for sentence in guard.not_covered), guard.not_covered)
        self.run_to(model, optimizer, 5)
        before = copy.deepcopy(optimizer.base.state_dict())
        self.run_to(model, optimizer, 2)
        guard.inject("0.weight.exp_avg", 3)
        self.run_to(model, optimizer, 1)
        self.assertIn("NaN in 0.weight.exp_avg, 1 of 16, first at 3", self.lines[-1])
        after = optimizer.base.state_dict()
        self.assertEqual(float(after["state"][0]["step"]), 5)
        self.assertTrue(torch.equal(before["state"][0]["exp_avg"], after["state"][0]["exp_avg"]))

    def test_extra_state(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(Extra(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = self.guarded(model, optimizer)
        self.run_to(model, optimizer, 7)
        guard.inject("0.weight")
        self.run_to(model, optimizer, 1)
        self.assertEqual((guard.steps, model[0].n), (5, 5))

    def test_extra_state_that_cannot_be_set(self):
        class OneWay(torch.nn.Linear):
            def get_extra_state(self):
                return 3

        model = torch.nn.Sequential(OneWay(4, 4))
        guard = self.guard(model, torch.optim.SGD(model.parameters(), lr=0.1), snapshot=esper.Snapshots())
        self.assertIn("0: get_extra_state has no set_extra_state beside it", guard.not_covered[0])

    def test_gradients_are_of_the_state_before(self):
        model, optimizer = seeded(tiny)
        guard = self.guarded(model, optimizer)
        self.run_to(model, optimizer, 6)
        guard.inject("0.weight")
        self.run_to(model, optimizer, 1)
        self.assertEqual(float(sum(parameter.grad.abs().sum() for parameter in model.parameters())), 0.0)

    def test_a_rollback_that_is_broken_off_is_made(self):
        model, optimizer = seeded(tiny)
        guard = self.guarded(model, optimizer, lr_backoff=0.5)
        self.run_to(model, optimizer, 5)
        before = state_of(model, optimizer)
        self.run_to(model, optimizer, 2)
        ring = guard._machine.ring
        whole, calls = ring.restore, []

        def broken(asked):
            calls.append(asked)
            if len(calls) == 1:
                model[0].weight.data.zero_()  # half done
                raise KeyboardInterrupt
            return whole(asked)

        ring.restore = broken
        guard.inject("0.weight")
        self.assertRaises(KeyboardInterrupt, self.run_to, model, optimizer, 1)
        self.assertEqual((len(calls), guard.steps, guard.n_rollbacks, guard.lr_factor), (2, 5, 1, 0.5))
        self.assertSameState(before, state_of(model, optimizer))

    def test_something_that_cannot_go_back(self):
        """It is named, told, and raised once; the guard goes on, or gives the parameters up."""
        class Loader:
            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                raise RuntimeError("cannot rewind")

        model, optimizer = seeded(Net)
        events = []
        guard = self.guarded(model, optimizer, state={"loader": Loader()}, on_event=events.append)
        train(model, optimizer, 3)
        guard.inject("first.weight")
        with self.assertRaises(esper.NotRestored) as met:
            train(model, optimizer, 1)
        self.assertIn(r"state['loader'].load_state_dict raised RuntimeError: cannot rewind", str(met.exception))
        self.assertIsInstance(met.exception.__cause__.__cause__, RuntimeError)
        self.assertIn("step 4: NaN in first.weight", str(met.exception))
        self.assertEqual((events[-1].kind, str(events[-1].report)), ("raise", str(met.exception)))
        train(model, optimizer, 2)
        self.assertEqual(guard.steps, 6)
        with self.assertRaisesRegex(esper.NotRestored, "rollback: not rolled back: state..loader"):
            guard.rollback()
        guard.detach()
        self.guard(model, optimizer)

    def test_detach_gives_up_whatever_is_raised(self):
        for error, where in itertools.product((RuntimeError, KeyboardInterrupt), ("enter", "settle")):
            model, optimizer = seeded(Net)
            guard = self.guarded(model, optimizer)
            train(model, optimizer, 1)

            def fail(*args):
                raise error

            setattr(guard._machine, where, fail)
            self.assertRaises(error, guard.detach)
            delattr(guard._machine, where)
            self.guard(model, optimizer).detach()
            guard.attach()

    def test_budget_of_a_window(self):
        model, optimizer = seeded(tiny)
        guard = self.guarded(model, optimizer, 1, max_rollbacks=2, rollback_window=10)
        for i in range(8):  # one in six steps
            self.run_to(model, optimizer, 5)
            guard.inject("0.weight")
            self.run_to(model, optimizer, 1)
        self.assertEqual(guard.n_rollbacks, 8)
        with self.assertRaisesRegex(esper.BadState, "2 rollbacks made already: max_rollbacks=2 within 10 steps"):
            for i in range(3):
                guard.inject("0.weight")
                self.run_to(model, optimizer, 1)

    def test_budget_of_a_life(self):
        model, optimizer = seeded(tiny)
        guard = self.guarded(model, optimizer, 1, max_rollbacks=1, rollback_window=None)
        for i in range(2):
            guard.inject("0.weight")
            if i == 1:
                with self.assertRaisesRegex(esper.BadState, "max_rollbacks=1 in all"):
                    self.run_to(model, optimizer, 1)
            else:
                self.run_to(model, optimizer, 10)
        self.assertEqual(guard.n_rollbacks, 1)


class TestUntouched(Case):
    def test_a_step_that_is_skipped_is_not_called(self):
        model, optimizer = seeded(tiny, optimizer=NoCheck)
        guard = self.guard(model, optimizer, "skip").attach()
        for bad in (True, False):
            optimizer.zero_grad()
            model(torch.full((1, 4), NAN if bad else 1.0)).sum().backward()
            optimizer.step()
            self.assertEqual((guard.stepped, optimizer.param_groups[0]["k"]), (not bad, int(not bad)))
        self.assertIn("step skipped, optimizer untouched", self.lines[-1])

    def test_lbfgs(self):
        for line_search in (None, "strong_wolfe"):
            for on_bad in ("skip", "raise", "rollback"):
                model, _ = seeded(Net)
                optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6, line_search_fn=line_search)
                options = {"snapshot": esper.Snapshots(every=1)} if on_bad == "rollback" else {}
                guard = self.guard(model, optimizer, on_bad, **options).attach()
                n_evaluated, bad = [0], [False]

                def closure():
                    optimizer.zero_grad()
                    loss = backward(model, 0)
                    n_evaluated[0] += 1
                    if bad[0] and n_evaluated[0] == 3:
                        guard.inject("first.weight.grad")
                        if on_bad == "rollback":
                            guard.inject("last.weight")
                    return loss

                optimizer.step(closure)
                optimizer.step(closure)
                before = state_of(model, optimizer)
                n_evaluated[0], bad[0] = 0, True
                try:
                    optimizer.step(closure)
                    self.assertNotEqual(on_bad, "raise")
                except esper.BadGradient:
                    self.assertEqual(on_bad, "raise")
                self.assertSameState(before, state_of(model, optimizer))
                bad[0] = False
                optimizer.step(closure)
                guard.detach()

    def test_a_closure_of_sgd_costs_no_copy(self):
        model, optimizer = seeded(tiny, optimizer=torch.optim.SGD)
        guard = self.guard(model, optimizer, "skip").attach()

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(1, 4)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        self.assertEqual(guard._machine._slot, {})


class TestSchedulers(Case):
    def loop(self, make, style, named, plateau=False):
        """A loop whose parameter goes bad once; gives guard, optimiser and scheduler at step 8."""
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        scheduler = make(optimizer)
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=5),
                           state={"s": scheduler} if named else None).attach()
        once, rates = True, []
        while guard.steps < 8:
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            if guard.steps == 6 and once:
                once = False
                guard.inject("weight")
            rates.append((guard.steps, optimizer.param_groups[0]["lr"]))
            optimizer.step()
            if style == "always" or (guard.stepped if style == "stepped" else guard.last.ok):
                scheduler.step(1.0) if plateau else scheduler.step()
        guard.detach()
        return guard, optimizer, scheduler, rates

    def test_the_same_step_whether_the_loop_steps_it_or_not(self):
        for make in (lambda o: lr_scheduler.ExponentialLR(o, 0.5), lambda o: lr_scheduler.StepLR(o, 3),
                     lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=20),
                     lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
                     lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o),
                                                             lr_scheduler.ExponentialLR(o, 0.9)], [4])):
            for style in ("always", "last.ok", "stepped"):
                guard, optimizer, scheduler, _ = self.loop(make, style, True)
                self.assertEqual((guard.n_rollbacks, scheduler.last_epoch), (1, 8), (type(scheduler).__name__, style))
                plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.9)
                plain_scheduler = make(plain)
                for _ in range(8):
                    plain.step()
                    plain_scheduler.step()
                self.assertAlmostEqual(optimizer.param_groups[0]["lr"], plain.param_groups[0]["lr"], delta=1e-12,
                                       msg=(type(scheduler).__name__, style))

    def test_cyclic(self):
        guard, optimizer, scheduler, _ = self.loop(lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-1, 3), "always", True)
        self.assertEqual((guard.n_rollbacks, scheduler.last_epoch), (1, 8))

    def test_plateau_that_is_not_named(self):
        model, optimizer = seeded(tiny)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=10)).attach()
        for step in range(12):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        scheduler.step(1.0)
        scheduler.step(2.0)
        rate = optimizer.param_groups[0]["lr"]
        guard.inject("0.weight")
        optimizer.step()
        self.assertEqual((guard.steps, optimizer.param_groups[0]["lr"]), (10, rate))
        self.assertTrue(any("a scheduler that is not in state= sets the learning rate" in line for line in self.lines))

    def test_what_the_optimizer_itself_sets_comes_back(self):
        class Falling(torch.optim.SGD):
            def step(self, closure=None):
                super().step(closure)
                for group in self.param_groups:
                    group["lr"] = group["lr"] * 0.5

        model, optimizer = seeded(tiny, optimizer=Falling, lr=1.0)
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=2)).attach()
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        guard.inject("0.weight")
        optimizer.step()
        self.assertEqual((guard.steps, optimizer.param_groups[0]["lr"]), (2, 0.25))


class TestCovered(Case):
    def test_complex_index(self):
        model = torch.nn.Module()
        model.w = torch.nn.Parameter(torch.zeros(2, 3, dtype=torch.complex64))
        model.w.data[1, 1] = complex(1, NAN)
        bad = esper.check(model).bad[0]
        self.assertEqual((bad.first, bad.n_bad, bad.count, str(bad)), (4, 1, 6, "NaN in w, 1 of 6, first at 4"))
        model.w.data[0, 1] = complex(NAN, NAN)
        self.assertEqual(str(esper.check(model).bad[0]), "NaN in w, at least 2 of 6, first at 1")

    def test_state_counts_as_memory(self):
        model, optimizer = seeded(tiny)
        ema = torch.nn.Linear(100, 100)
        options = {"on_bad": "rollback", "state": {"ema": ema}}
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(every=1, max_bytes=1000), **options)
        self.assertRaisesRegex(esper.GuardError, "more than max_bytes", guard.attach)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(every=1), **options).attach()
        train_tiny(model, optimizer, 3)
        held = sum(t.numel() * 4 for entry in guard._machine.ring.good for t in entry.extras["ema"].values())
        self.assertEqual(held, 2 * 4 * 100 * 101)
        self.assertGreater(guard.memory()["host"], held)

    def test_lazy_modules_are_refused(self):
        model = torch.nn.Sequential(torch.nn.LazyLinear(4))
        with self.assertRaisesRegex(esper.Unsupported, "0.weight has no shape yet .a lazy module.: pass one batch"):
            esper.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def test_state_without_snapshots_is_refused(self):
        model, optimizer = seeded(tiny)
        with self.assertRaisesRegex(ValueError, "state= is what a rollback restores"):
            esper.Guard(model, optimizer, "skip", state={"x": model})

    def test_a_callback_that_only_wants_to_know(self):
        model, optimizer = seeded(tiny)
        told = []
        guard = self.guard(model, optimizer, told.append).attach()
        model(torch.full((1, 4), NAN)).sum().backward()
        optimizer.step()
        self.assertEqual((len(told), told[0].first_bad, guard.stepped), (1, "0.weight.grad", True))

    def test_steps_that_go_round(self):
        for zeroes in (True, False):
            model, optimizer = seeded(tiny, optimizer=torch.optim.SGD)
            step = optimizer.step
            guard = self.guard(model, optimizer, "skip").attach()
            if hasattr(optimizer, "register_step_pre_hook"):
                train_tiny(model, optimizer, 3, step)  # hooks meet it
                self.assertEqual(guard.steps, 3)
                guard.detach()
                continue
            train_tiny(model, optimizer, 5, step, zeroes)
            if zeroes:
                self.assertIn("parameters change, but SGD.step() is not called: nothing is guarded", self.lines[-1])
                self.assertIn("SGD.step() is not called", guard.not_covered[-1])
            guard.detach()
            self.assertEqual(sum("is not called: nothing is guarded" in line for line in self.lines), 1)
            self.lines.clear()

    def test_other_methods_than_step(self):
        class Two(torch.optim.SGD):
            def second_step(self):
                torch.optim.SGD.step(self)

        model, optimizer = seeded(tiny, optimizer=Two)
        guard = self.guard(model, optimizer, "skip").attach()
        train_tiny(model, optimizer, 5, optimizer.second_step)
        if not hasattr(optimizer, "register_step_pre_hook"):
            self.assertIn("give the guard the optimizer whose step() is called", self.lines[-1])
        guard.detach()

    def test_loops_that_change_parameters_themselves(self):
        model, optimizer = seeded(tiny, optimizer=torch.optim.SGD)
        self.guard(model, optimizer, "skip").attach()
        for _ in range(8):
            train_tiny(model, optimizer, 1)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.5, 0.5)
        self.assertFalse([line for line in self.lines if "is not called" in line])


def train_tiny(model, optimizer, steps, step=None, zeroes=True):
    for _ in range(steps):
        if zeroes:
            optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        (step or optimizer.step)()


class TestTogether(Case):
    """One guard for several optimisers: one verdict, one rollback."""

    def pair(self, first=lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
             second=lambda others: torch.optim.AdamW(others, lr=0.01), **options):
        torch.manual_seed(0)
        model = Net()
        optimizers = [first([p for p in model.parameters() if p.ndim > 1]),
                      second([p for p in model.parameters() if p.ndim == 1])]
        return model, optimizers, self.guard(model, optimizers, **options).attach()

    def step(self, model, optimizers, step, before=None):
        model.zero_grad()
        backward(model, step)
        if before is not None:
            before()
        for optimizer in optimizers:
            optimizer.step()

    def state(self, model, optimizers):
        return [state_of(model, optimizer) for optimizer in optimizers]

    def same(self, one, two):
        for left, right in zip(one, two):
            self.assertSameState(left, right)

    def test_one_verdict(self):
        for where in ("first.weight.grad", "last.bias.grad"):  # of the first, of the second
            model, optimizers, guard = self.pair(on_bad="skip")
            for i in range(3):
                self.step(model, optimizers, i)
            before = self.state(model, optimizers)
            self.step(model, optimizers, 3, lambda: guard.inject(where))
            self.same(before, self.state(model, optimizers))
            self.assertEqual((guard.steps, guard.n_skipped, guard.stepped), (4, 1, False))
            self.step(model, optimizers, 4)
            self.assertTrue(guard.stepped)
            guard.detach()

    def test_bad_from_the_start_is_told_once(self):
        """guard.step() with on_bad="report": no snapshot is possible, and that is not tried at every step."""
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "report", state_every=0, snapshot=esper.Snapshots(every=100))
        guard.inject("first.weight")
        for step in range(5):
            optimizer.zero_grad()
            guard.step()
        self.assertEqual(sum("no snapshot was taken" in line for line in self.lines), 1)

    def test_one_rollback(self):
        for where in ("first.weight", "last.bias", "first.weight.momentum_buffer", "last.bias.exp_avg"):
            model, optimizers, guard = self.pair(on_bad="rollback", state_every=1, snapshot=esper.Snapshots(every=10))
            for i in range(10):
                self.step(model, optimizers, i)
            before = self.state(model, optimizers)
            for i in range(7):
                self.step(model, optimizers, 10 + i)
            guard.inject(where)
            self.step(model, optimizers, 17)
            self.assertIn(f"NaN in {where}, ", self.lines[-1])
            self.same(before, self.state(model, optimizers))
            self.assertEqual((guard.steps, guard.n_rollbacks), (10, 1))
            guard.detach()

    def test_one_that_steps_now_and_then(self):
        model, optimizers, guard = self.pair(on_bad="rollback", state_every=1, snapshot=esper.Snapshots(every=2))
        for i in range(8):
            self.step(model, optimizers if i % 2 else optimizers[:1], i)
        self.assertEqual(guard.steps, 8)
        guard.inject("first.weight")
        self.step(model, optimizers, 9)
        self.assertEqual(guard.n_rollbacks, 1)
        self.assertTrue(esper.check(model).ok)

    def alternate(self, set_to_none, spoil):
        """Each optimiser has backward passes of its own; the gradients of one are spoilt, once."""
        model, optimizers, guard = self.pair(on_bad="skip")
        for i in range(4):
            for n, optimizer in enumerate(optimizers):
                model.zero_grad(set_to_none=set_to_none)
                backward(model, 2 * i + n)
                if i == 2 and n == 1:
                    spoil(model, guard)
                optimizer.step()
        self.assertEqual((guard.n_skipped, guard.steps, guard.stepped), (1, 8, True))
        self.assertTrue(all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()))
        guard.detach()

    def test_alternating_backward_passes(self):
        """Each is judged by its own gradients where other ones have come, in the same memory or elsewhere."""
        for set_to_none in (False, True):
            with self.subTest(set_to_none=set_to_none):
                self.alternate(set_to_none, lambda model, guard: guard.inject("last.bias.grad"))

    def test_gradients_that_come_between(self):
        """Behind the first one's step: written into, exchanged, come anew, dropped and made anew, or not to be told."""
        def write(bias):
            bias.grad[1] = NAN

        def exchange(bias):
            bias.grad = torch.full_like(bias, NAN)

        def make_anew(bias):
            for parameter in model.parameters():
                parameter.grad = None
            backward(model, 3)
            bias.grad[1] = NAN

        for come in (write, exchange, make_anew):
            for absent in (False, True):
                with self.subTest(come=come.__name__, absent=absent):
                    model, optimizers, guard = self.pair(on_bad="skip")
                    for i in range(3):
                        self.step(model, optimizers, i)
                    model.zero_grad(set_to_none=True)
                    backward(model, 3)
                    bias = model.last.bias
                    if absent:
                        bias.grad = None
                    optimizers[0].step()
                    before = self.state(model, optimizers)
                    if absent and come is write:
                        bias.grad = torch.zeros_like(bias)
                    come(bias)
                    optimizers[1].step()
                    self.same(before, self.state(model, optimizers))
                    self.assertEqual((guard.steps, guard.n_skipped, guard.stepped), (5, 1, False))
                    self.assertEqual(guard.last.first_bad, "last.bias.grad")
                    guard.detach()

    def test_gradients_whose_changes_torch_does_not_count(self):
        model, optimizers, guard = self.pair(on_bad="skip")
        backward(model, 0)
        with torch.inference_mode():
            model.last.bias.grad = torch.zeros(3)
        optimizers[0].step()
        with torch.inference_mode():
            model.last.bias.grad[1] = NAN
        optimizers[1].step()
        self.assertEqual((guard.steps, guard.n_skipped, guard.stepped), (2, 1, False))
        self.assertTrue(bool(torch.isfinite(model.last.bias).all()))

    def test_a_closure_that_makes_them_anew(self):
        """The second one's, whose gradients are not those that were judged at the first one's step."""
        model, optimizers, guard = self.pair(on_bad="skip")
        for i in range(4):
            model.zero_grad(set_to_none=True)
            backward(model, i)
            optimizers[0].step()

            def closure():
                model.zero_grad(set_to_none=True)
                loss = backward(model, i)
                if i == 2:
                    guard.inject("last.bias.grad")
                return loss

            optimizers[1].step(closure)
        self.assertEqual((guard.n_skipped, guard.stepped), (1, True))
        self.assertTrue(all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()))

    def test_told_on_the_device(self):
        """Both are, whatever is asked between their steps."""
        for ask in (lambda guard: None, lambda guard: guard.result(), lambda guard: guard.stepped):
            model, optimizers, guard = self.pair(FlagSGD, FlagSGD, on_bad="skip")
            self.assertIn("found_inf", guard.mode)
            for i in range(5):
                model.zero_grad(set_to_none=True)
                backward(model, i)
                if i == 3:
                    guard.inject("last.bias.grad")
                optimizers[0].step()
                ask(guard)
                optimizers[1].step()
                self.assertEqual([optimizer.seen[-1] or 0.0 for optimizer in optimizers], [float(i == 3)] * 2)
            self.assertEqual(guard.steps, 5)
            self.assertTrue(all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()))
            guard.detach()

    def test_a_rollback_between_their_steps(self):
        """What the first has done is undone, so the second does nothing."""
        model, optimizers, guard = self.pair(on_bad="rollback", snapshot=esper.Snapshots(every=2))
        for i in range(2):
            self.step(model, optimizers, i)
        before = self.state(model, optimizers)
        model.zero_grad(set_to_none=True)
        backward(model, 2)
        optimizers[0].step()
        self.assertEqual(guard.rollback(), 2)
        optimizers[1].step()
        self.same(before, self.state(model, optimizers))
        self.step(model, optimizers, 2)
        self.assertEqual((guard.steps, guard.stepped), (3, True))

    def scaled(self, model, optimizer, scaler, step):
        model.zero_grad(set_to_none=True)
        scaler.scale((model(torch.ones(2, 6)) - step).pow(2).mean()).backward()
        scaler.step(optimizer)

    def test_a_scaler_and_backward_passes_of_their_own(self):
        """GradScaler unscales once between its updates, and the guard has it unscale the gradients of all."""
        states = []
        for guarded in (True, False):
            scaler = PlainScaler()
            model, optimizers, guard = self.pair(on_bad="skip")
            guard.detach()
            if guarded:
                guard.attach(scaler)
            for i in range(6):
                self.scaled(model, optimizers[i % 2], scaler, i)
                scaler.update()
            states.append(self.state(model, optimizers))
            guard.detach()
        self.same(*states)
        guard.attach(scaler)
        self.scaled(model, optimizers[0], scaler, 0)
        before = self.state(model, optimizers)
        with self.assertRaisesRegex(esper.GuardError, "there are other gradients, and no scaler.update"):
            self.scaled(model, optimizers[1], scaler, 1)
        scaler.update()
        self.scaled(model, optimizers[0], scaler, 0)
        scaler.update()
        with self.assertRaisesRegex(esper.GuardError, "scaler.update.. came between the steps"):
            scaler.step(optimizers[1])
        self.assertTrue(torch.equal(before[1]["last.bias"], model.last.bias))

    def test_the_same_bits(self):
        runs = []
        for guarded in (False, True):
            model, optimizers, guard = self.pair(on_bad="skip")
            if not guarded:
                guard.detach()
            for i in range(20):
                self.step(model, optimizers, i)
            runs.append(self.state(model, optimizers))
        self.same(*runs)

    def test_what_is_refused(self):
        model, optimizer = seeded(Net)
        for wrong in ([], [optimizer, optimizer]):
            self.assertRaises(ValueError, esper.Guard, model, wrong)
        with self.assertRaisesRegex(esper.GuardError, "first.weight is in two of the optimizers"):
            esper.Guard(model, [optimizer, torch.optim.SGD(model.parameters(), lr=0.1)])

    def test_two_guards_say_that_half_goes_back(self):
        torch.manual_seed(0)
        model = Net()
        one = torch.optim.SGD([model.first.weight, model.second.weight, model.last.weight], lr=0.01)
        two = torch.optim.AdamW([model.first.bias, model.second.bias, model.last.bias], lr=0.01)
        options = {"on_bad": "rollback", "state_every": 1, "snapshot": esper.Snapshots(every=2)}
        guards = [self.guard(model, optimizer, **options).attach() for optimizer in (one, two)]
        for i in range(3):
            self.step(model, (one, two), i)
        guards[0].inject("first.weight")
        self.step(model, (one, two), 4)
        self.assertTrue(any("parameters of another guard's optimizer do not go back" in line for line in self.lines))


RESUMED = """
import os, sys, torch, esper
from guard_cases import Net, backward
mode, folder = sys.argv[1:]
torch.manual_seed(0)
model = Net(norm=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
guard = esper.Guard(model, optimizer, "rollback", state_every=1, lr_backoff=0.5, state={"s": scheduler},
                    snapshot=esper.Snapshots(every=5, directory=folder), log=print)
start = guard.resume() or 0 if mode == "again" else 0
guard.attach()
at = start
while guard.steps < 30:
    optimizer.zero_grad()
    (model(torch.randn(12, 6)) ** 2).mean().backward()
    at += 1
    if at == 12 and guard.n_rollbacks == 0:
        guard.inject("first.weight")
    optimizer.step()
    scheduler.step()
    if mode == "killed" and guard.steps == 23:
        guard._machine.ring.disk.wait()
        os.kill(os.getpid(), 9)
print("told", start, guard.lr_factor, guard.n_rollbacks, scheduler.last_epoch,
      sum(float(value.double().sum()) for value in model.state_dict().values()))
"""


class TestResume(Case):
    def run_mode(self, mode, folder):
        here = os.path.dirname(os.path.abspath(__file__))
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([here, PACKAGE]), CUDA_VISIBLE_DEVICES="")
        return subprocess.run([sys.executable, "-c", RESUMED, mode, folder], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)

    def test_a_job_that_was_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            whole = self.run_mode("whole", os.path.join(folder, "a")).stdout.splitlines()
            killed = self.run_mode("killed", os.path.join(folder, "b"))
            self.assertEqual(killed.returncode, -9, killed.stdout)
            again = self.run_mode("again", os.path.join(folder, "b")).stdout.splitlines()
        self.assertIn("step 20: resumed from the snapshot on disk", again)
        told, expected = again[-1].split(), whole[-1].split()
        self.assertEqual(told[:2], ["told", "20"], again)
        self.assertEqual(told[2:], expected[2:], "the same as the job that was not killed")
        self.assertEqual(told[2:5], ["0.5", "1", "30"])

    def test_what_was_left_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            for resumes in (False, False, True):
                self.lines.clear()
                model, optimizer = seeded(Net)
                guard = self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=2, directory=folder))
                if resumes:
                    self.assertEqual(guard.resume(), 4)
                guard.attach()
                train(model, optimizer, 5)
                guard.detach()
            self.assertEqual(guard.steps, 9)
            self.lines.clear()
            model, optimizer = seeded(Net)
            self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(directory=folder)).attach().detach()
            self.assertTrue(any("a snapshot of step 8 of an earlier job" in line for line in self.lines), self.lines)

    def test_nothing_there(self):
        model, optimizer = seeded(Net)
        with tempfile.TemporaryDirectory() as folder:
            guard = self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(directory=folder))
            self.assertIsNone(guard.resume())
        guard = self.guard(*seeded(Net), "rollback")
        self.assertRaisesRegex(esper.GuardError, "directory=", guard.resume)

    @staticmethod
    def step(model, optimizer, seed):
        optimizer.zero_grad()
        backward(model, seed)
        optimizer.step()

    def job(self, folder, n_steps, every=10, resumes=False, state=None):
        """A job in that folder, to its end; gives the guard."""
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state=state,
                           snapshot=esper.Snapshots(every=every, directory=folder))
        guard.start = guard.resume() if resumes else None
        guard.attach()
        for seed in range(n_steps):
            self.step(model, optimizer, seed)
            guard._machine.ring.disk.wait()
        guard.detach()
        return guard

    def test_the_newest_job_is_gone_back_to(self):
        """And not the one that has made more steps."""
        for n_steps, expected in ((12, 10), (2, 0), (32, 30)):
            with self.subTest(n_steps=n_steps), tempfile.TemporaryDirectory() as folder:
                self.job(folder, 52)
                self.job(folder, n_steps)
                self.assertEqual(self.job(folder, 0, resumes=True).start, expected)

    def test_the_newest_after_a_rollback(self):
        """Steps are made again: the newest is not the one with the largest step."""
        with tempfile.TemporaryDirectory() as folder:
            model, optimizer = seeded(Net)
            guard = self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=4, directory=folder))
            guard.attach()
            for seed in range(9):
                self.step(model, optimizer, seed)
                guard._machine.ring.disk.wait()
            guard._machine.ring.good = guard._machine.ring.good[:1]  # as if the newer were damaged in memory
            guard.rollback()
            self.assertEqual(guard.steps, 4)
            self.step(model, optimizer, 20)
            guard.snapshot()
            guard.detach()
            self.assertEqual(self.job(folder, 0, resumes=True).start, 5)

    def test_the_previous_one_stays_while_the_newest_is_on_its_way(self):
        with tempfile.TemporaryDirectory() as folder:
            guard = self.job(folder, 5, every=2)
            disk, entry = guard._machine.ring.disk, guard._machine.ring.good[-1]
            disk.write(entry)
            disk.wait()
            before = disk.numbers()
            status = disk._ring.status
            disk._ring.status = lambda wait: (0, None) if wait == 0 else status(wait)  # a disk that is slow
            disk.write(entry)
            disk._ring.status = status
            disk.wait()
            self.assertEqual(disk.numbers()[:2], [before[0] + 1, before[1]])
            disk.write(entry)
            disk.wait()
            self.assertEqual(disk.numbers()[:2], [before[0] + 2, before[0] + 1])
            disk.close()

    def test_write_does_not_wait_for_the_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            guard = self.job(folder, 5, every=2)
            disk, entry = guard._machine.ring.disk, guard._machine.ring.good[-1]
            os.mkdir(os.path.join(disk.folder, "other"))
            disk.write(entry)
            status, waits = disk._ring.status, []
            disk._ring.status = lambda wait: (waits.append(wait), status(wait))[1]
            for _ in range(3):
                status(2)
                disk.write(entry)
            self.assertLess(max(waits), 2)
            self.assertFalse(os.path.exists(os.path.join(disk.folder, "other")), "two of this list are on disk")
            disk.close()

    def test_what_cannot_be_pickled_is_told(self):
        class Local:
            def state_dict(self):
                return {"value": lambda: None, "count": 1}

            def load_state_dict(self, state):
                pass

        class Plain(Local):
            def state_dict(self):
                return {"count": 1}

        with tempfile.TemporaryDirectory() as folder:
            self.job(folder, 9, every=2, state={"odd": Local(), "plain": Plain()})
            told = [line for line in self.lines if "is not in the snapshots on disk" in line]
            self.assertEqual(len(told), 1, self.lines)
            self.assertIn("state['odd'] cannot be pickled", told[0])
            self.lines.clear()
            guard = self.job(folder, 0, resumes=True, state={"odd": Local(), "plain": Plain(), "new": Plain()})
            self.assertEqual(guard.start, 8)
            told = [line for line in self.lines if line.startswith("resume: ") or ": resume: " in line]
            self.assertEqual(len(told), 2, self.lines)
            self.assertIn("state['odd'] is not in the snapshot on disk", told[0])
            self.assertIn("state['new'] is not in the snapshot on disk", told[1])

    def test_trouble_does_not_end_a_training(self):
        with tempfile.TemporaryDirectory() as folder:
            model, optimizer = seeded(Net)
            optimizer.param_groups[0]["rule"] = lambda: None
            guard = self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=2, directory=folder))
            guard.attach()
            train(model, optimizer, 7)
            guard.detach()
            self.assertEqual(guard.steps, 7)
            told = [line for line in self.lines if "is not on disk" in line]
            self.assertEqual(len(told), 1, self.lines)
            self.assertIn("the snapshot of step 0 is not on disk: ", told[0])
            disk = guard._machine.ring.disk
            disk._write = unittest.mock.Mock(side_effect=KeyboardInterrupt)
            self.assertRaises(KeyboardInterrupt, disk.write, guard._machine.ring.good[-1])

    def test_a_file_that_was_damaged(self):
        with tempfile.TemporaryDirectory() as folder:
            model, optimizer = seeded(Net)
            guard = self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=2, directory=folder))
            guard.attach()
            train(model, optimizer, 5)
            guard.detach()
            paths = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names if "ring" in name]
            for path in paths:
                with open(path, "r+b") as file:
                    file.seek(os.path.getsize(path) // 2)
                    file.write(b"damaged")
            guard = self.guard(*seeded(Net), "rollback", snapshot=esper.Snapshots(directory=folder))
            self.assertRaises(esper.GuardError, guard.resume)

    def test_state_dict(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1, lr_backoff=0.5,
                           snapshot=esper.Snapshots(every=2)).attach()
        train(model, optimizer, 6, before=lambda step: step == 3 and guard.inject("first.weight"))
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), guard.state_dict()))
        train(model, optimizer, 3, start=6)
        expected = state_of(model, optimizer)
        guard.detach()
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1, lr_backoff=0.5,
                           snapshot=esper.Snapshots(every=2)).attach()
        train(model, optimizer, 1)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        guard.load_state_dict(saved[2])
        self.assertEqual((guard.steps, guard.n_rollbacks, guard.lr_factor), (4, 1, 0.5))
        self.assertEqual([entry.step for entry in guard._machine.ring.good], [4])
        train(model, optimizer, 3, start=6)
        self.assertSameState(expected, state_of(model, optimizer))
        guard.detach()
        model, optimizer = seeded(Net)  # without attach()
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=100))
        backward(model, 0)
        guard.step()
        guard.load_state_dict(saved[2])
        backward(model, 0)
        guard.step()
        self.assertEqual([entry.step for entry in guard._machine.ring.good], [4])
        guard.inject("first.weight")
        guard.step()
        self.assertIn("rolled back to step 4", self.lines[-1])
        for wrong in ({}, {"format": 99}, 3):
            self.assertRaises(esper.GuardError, guard.load_state_dict, wrong)


if __name__ == "__main__":
    unittest.main()
