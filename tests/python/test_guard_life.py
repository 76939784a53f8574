# ctest: timeout=120
"""From the first guard to the next: attach and detach, guards that nobody holds any more, snapshots that come late."""
import gc
import unittest
import weakref

from guard_cases import Case, Net, backward, seeded, state_of, train

import torch

import esper


class TestBack(Case):
    """attach() after detach()."""

    def test_steps_that_were_not_guarded_are_kept(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=100))
        with guard:
            train(model, optimizer, 3)
        train(model, optimizer, 5, start=3)
        between = state_of(model, optimizer)
        with guard:
            guard.inject("first.weight")
            train(model, optimizer, 1)
        self.assertEqual(guard.n_rollbacks, 1)
        self.assertSameState(between, state_of(model, optimizer))

    def test_by_step(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=100))
        backward(model, 0)
        guard.step()
        guard.detach()
        train(model, optimizer, 5)
        between = state_of(model, optimizer)
        optimizer.zero_grad(set_to_none=True)
        backward(model, 1)
        guard.step()
        guard.rollback()
        self.assertSameState(between, state_of(model, optimizer))

    def test_gone_bad_meanwhile(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=100)).attach()
        start = state_of(model, optimizer)
        train(model, optimizer, 3)
        guard.detach()
        guard.inject("first.weight")
        guard.attach()
        self.assertIn("rolled back to step 0 (1 of 3)", self.lines[-1])
        self.assertSameState(start, state_of(model, optimizer))
        for on_bad in ("raise", "skip"):
            guard.detach()
            guard = self.guard(model, optimizer, on_bad, snapshot=esper.Snapshots(every=100)).attach()
            guard.detach()
            guard.inject("first.weight")
            self.assertRaises(esper.BadState, guard.attach)
            guard.rollback()


class TestNobodys(Case):
    """A guard that is garbage claims nothing."""

    def test_a_function_that_is_called_twice(self):
        def once(model):
            optimizer = torch.optim.AdamW(model.parameters())
            guard = esper.Guard(model, optimizer, "skip", snapshot=esper.Snapshots(), log=self.lines.append).attach()
            train(model, optimizer, 2)
            return weakref.ref(guard)

        model = Net()
        gc.disable()
        self.addCleanup(gc.enable)
        first = once(model)
        second = once(model)
        self.assertIsNone(first())
        third = once(model)
        self.assertIsNone(second())
        self.assertEqual(third().steps, 2)

    def test_freed_at_once(self):
        gc.disable()
        self.addCleanup(gc.enable)
        for attached in (False, True):
            model, optimizer = seeded(Net)
            guard = esper.Guard(model, optimizer, log=self.lines.append)
            if attached:
                guard.attach()
                train(model, optimizer, 2)
                guard.detach()
            gone = weakref.ref(guard)
            del guard
            self.assertIsNone(gone(), "after detach()" if attached else "never attached")

    def test_one_that_is_held(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer).attach()
        with self.assertRaises(esper.GuardError) as met:
            esper.Guard(model, optimizer)
        for words in ("first.weight is already watched", "detach()", "`with guard:`"):
            self.assertIn(words, str(met.exception))
        self.assertTrue(guard._attachments)

    def test_an_attach_that_failed(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(max_bytes=10))
        with self.assertRaises(esper.GuardError):
            guard.attach()
        other = self.guard(model, optimizer, snapshot=esper.Snapshots()).attach()
        train(model, optimizer, 1)
        self.assertEqual((guard.steps, other.steps), (0, 1))


class TestDue(Case):
    """A snapshot that falls on a step which is passed over."""

    def test_next_good_step(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip", snapshot=esper.Snapshots(every=5)).attach()

        def spoil(step):
            if step in (4, 5):
                guard.inject("first.weight.grad")

        train(model, optimizer, 6, before=spoil)
        self.assertEqual([entry.step for entry in guard._machine.ring.good], [0])
        train(model, optimizer, 1, start=6)
        self.assertEqual([entry.step for entry in guard._machine.ring.good], [0, 7])
        train(model, optimizer, 3, start=7)
        self.assertEqual([entry.step for entry in guard._machine.ring.good], [7, 10])

    def test_not_after_a_rollback(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=5)).attach()
        train(model, optimizer, 6)
        guard.inject("first.weight")
        train(model, optimizer, 3)
        self.assertEqual([entry.step for entry in guard._machine.ring.good], [0, 5])


class TestSize(Case):
    def test_known_after_the_first_step(self):
        model, optimizer = seeded(Net)
        n_bytes = sum(4 * p.numel() for p in model.parameters())
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(every=50, max_bytes=3 * n_bytes)).attach()
        with self.assertRaises(esper.GuardError) as met:
            train(model, optimizer, 1)
        self.assertIn("more than max_bytes", str(met.exception))
        self.assertNotIn("keep fewer", str(met.exception))
        guard.detach()
        optimizer.state.clear()
        self.guard(model, optimizer, snapshot=esper.Snapshots(every=50, keep=3, max_bytes=4 * n_bytes)).attach()
        with self.assertRaisesRegex(esper.GuardError, "or keep fewer"):
            train(model, optimizer, 1)

    def test_told_once(self):
        model, optimizer = seeded(Net)
        self.guard(model, optimizer, snapshot=esper.Snapshots(every=3)).attach()
        train(model, optimizer, 1)
        self.assertEqual(len([line for line in self.lines if "from now on" in line]), 1)
        train(model, optimizer, 6)
        self.assertEqual(len([line for line in self.lines if "from now on" in line]), 1)

    def test_refused(self):
        for wrong in (0, -1):
            with self.assertRaisesRegex(ValueError, "expected 1 or more; None is no limit"):
                esper.Snapshots(max_bytes=wrong)
        with self.assertRaises(TypeError):
            esper.Snapshots(every=True)


if __name__ == "__main__":
    unittest.main()
