# ctest: timeout=120
"""lr_backoff: what rollbacks make of the learning rate, whatever scheduler sets it."""
import unittest

from guard_cases import Case, Net, backward, seeded

import torch
from torch.optim import lr_scheduler

import esper


class Recording(torch.optim.SGD):
    """Notes the rates with which it steps."""

    def step(self, closure=None):
        if not hasattr(self, "rates"):
            self.rates = []
        self.rates.append([float(group["lr"]) for group in self.param_groups])
        return super().step(closure)


SCHEDULES = {
    "none": lambda optimizer: None,
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.5),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 20),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
}
FACTOR = 0.25


class TestBackoff(Case):
    def run_once(self, make, faults, named, **options):
        """Rates with which was stepped, those that the scheduler saw, and the guard."""
        model, optimizer = seeded(Net, optimizer=Recording, lr=0.01, **options)
        schedule = make(optimizer)
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=4),
                           lr_backoff=FACTOR, state={"schedule": schedule} if schedule is not None and named else {})
        guard.attach()
        seen = []
        for step in range(14):
            optimizer.zero_grad()
            backward(model, step)
            if step in faults:
                guard.inject("first.weight", 2)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            seen.append(optimizer.param_groups[0]["lr"])
        guard.detach()
        return [rates[0] for rates in optimizer.rates], seen, guard

    def test_schedulers(self):
        """The scheduler's own numbers are those of a run without faults; steps are made with them times the factor."""
        for name, make in SCHEDULES.items():
            with self.subTest(schedule=name):
                plain, plain_seen, _ = self.run_once(make, (), False)
                rates, seen, guard = self.run_once(make, (5, 9), False)
                self.assertEqual(guard.n_rollbacks, 2)
                self.assertEqual(seen, plain_seen)
                factors = [1.0] * 6 + [FACTOR] * 4 + [FACTOR**2] * 4  # the step that is undone was made before
                for step, (rate, expected, factor) in enumerate(zip(rates, plain, factors)):
                    self.assertAlmostEqual(rate, expected * factor, delta=1e-12, msg=f"step {step}")
                self.assertEqual(guard.lr_factor, FACTOR**2)

    def test_schedulers_in_the_state(self):
        """A scheduler that goes back with the rollback does so to its own numbers."""
        for name, make in SCHEDULES.items():
            if name == "none":
                continue
            with self.subTest(schedule=name):
                plain, plain_seen, _ = self.run_once(make, (), False)
                rates, seen, guard = self.run_once(make, (5,), True)
                self.assertEqual(guard.n_rollbacks, 1)
                # at step index 5 everything is as after four steps; the scheduler, as it was inside the fourth
                self.assertAlmostEqual(seen[5], plain_seen[3], delta=1e-12)
                self.assertAlmostEqual(rates[6], plain_seen[3] * FACTOR, delta=1e-12)
                self.assertAlmostEqual(seen[9], plain_seen[7], delta=1e-12)

    def test_a_damaged_snapshot_does_not_raise_it(self):
        model, optimizer = seeded(Net, optimizer=Recording, lr=0.5)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(keep=3), lr_backoff=0.5).attach()

        def step():
            optimizer.zero_grad()
            backward(model, 0)
            optimizer.step()
            return optimizer.rates[-1][0]

        step()
        guard.snapshot()
        for expected in (0.25, 0.125):
            guard.rollback()
            self.assertEqual(step(), expected)
        guard._machine.ring.good[-1].slot[("param", "first.weight")][0, 0] += 1.0
        self.assertEqual(guard.rollback(), 0)
        self.assertEqual(step(), 0.0625)
        self.assertEqual(sum("the learning rate is multiplied by" in line for line in self.lines), 3)

    def test_rates_that_are_tensors(self):
        model, optimizer = seeded(Net, optimizer=Recording, lr=0.5)
        shared = torch.tensor(0.5)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
        for group in optimizer.param_groups:
            group["lr"] = shared  # both have the same one
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(), lr_backoff=0.5).attach()
        guard.rollback()
        backward(model, 0)
        optimizer.step()
        self.assertEqual(optimizer.rates[-1], [0.25, 0.25])
        self.assertEqual(float(shared), 0.5)
        self.assertIs(optimizer.param_groups[0]["lr"], shared)

    def test_a_step_that_breaks_off(self):
        model, optimizer = seeded(Net, optimizer=Recording, lr=0.5)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(), lr_backoff=0.5).attach()
        guard.rollback()
        for closure in (lambda: 1 / 0, lambda: (backward(model, 0), guard.inject("first.weight.grad"))):
            with self.assertRaises((ZeroDivisionError, esper.BadGradient)):
                optimizer.step(closure)
            self.assertEqual(optimizer.param_groups[0]["lr"], 0.5)
        optimizer.zero_grad()
        optimizer.step(lambda: backward(model, 0))  # the rate that LBFGS reads before the closure's first evaluation
        self.assertEqual((optimizer.rates[-1], optimizer.param_groups[0]["lr"]), ([0.25], 0.5))

    def test_without_attach(self):
        model, optimizer = seeded(Net, optimizer=Recording, lr=0.5)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(), lr_backoff=0.5)
        backward(model, 0)
        guard.step(optimizer)
        guard.rollback()
        guard.step(optimizer)
        self.assertEqual((optimizer.rates, optimizer.param_groups[0]["lr"]), ([[0.5], [0.25]], 0.5))

    def test_no_rate(self):
        class Fixed(torch.optim.Optimizer):
            def __init__(self, params, lr=None):
                super().__init__(params, {})

            def step(self, closure=None):
                pass

        model, optimizer = seeded(Net, optimizer=Fixed)
        with self.assertRaisesRegex(ValueError, "Fixed has no learning rate"):
            esper.Guard(model, optimizer, lr_backoff=0.5)
        self.guard(model, optimizer)


if __name__ == "__main__":
    unittest.main()
