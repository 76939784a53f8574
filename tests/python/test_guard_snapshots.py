# ctest: timeout=240
"""Snapshots and the way back."""
import random
import unittest

from guard_cases import DEVICES, Case, Net, backward, seeded, state_of, train

import torch

import esper


class TestRestore(Case):
    def test_exactly(self):
        for device in DEVICES:
            for where in ("auto", "device", "host"):
                for kind, options in ((torch.optim.AdamW, {"amsgrad": True}), (torch.optim.SGD, {"momentum": 0.9}),
                                      (torch.optim.Adagrad, {}), (torch.optim.SGD, {})):
                    model, optimizer = seeded(lambda: Net(norm=True), device, optimizer=kind, **options)
                    guard = self.guard(model, optimizer, snapshot=esper.Snapshots(every=10, where=where)).attach()
                    train(model, optimizer, 4, device)
                    self.assertTrue(guard.snapshot())
                    before, noise = state_of(model, optimizer), torch.get_rng_state()
                    drawn = torch.rand(3, device=device)
                    train(model, optimizer, 3, device, 4)
                    after = state_of(model, optimizer)
                    self.assertEqual(guard.rollback(), 4)
                    self.assertSameState(before, state_of(model, optimizer))
                    if device == "cpu":
                        self.assertTrue(torch.equal(noise, torch.get_rng_state()))
                    self.assertTrue(torch.equal(drawn, torch.rand(3, device=device)))
                    train(model, optimizer, 3, device, 4)  # and again, to the same bits
                    self.assertSameState(after, state_of(model, optimizer))
                    guard.detach()

    def test_before_there_was_optimizer_state(self):
        for kind in (torch.optim.AdamW, torch.optim.LBFGS):
            model, optimizer = seeded(Net, optimizer=kind)
            guard = self.guard(model, optimizer, snapshot=esper.Snapshots()).attach()
            before = state_of(model, optimizer)

            def closure():
                optimizer.zero_grad()
                return backward(model, 0)

            optimizer.step(closure)
            optimizer.step(closure)
            after = state_of(model, optimizer)
            self.assertEqual(guard.rollback(), 0)
            self.assertSameState(before, state_of(model, optimizer))
            optimizer.step(closure)
            optimizer.step(closure)
            self.assertSameState(after, state_of(model, optimizer))
            guard.detach()

    def test_state_that_was_removed(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots()).attach()
        train(model, optimizer, 3)
        guard.snapshot()
        before = state_of(model, optimizer)
        optimizer.state.clear()
        guard.rollback()
        self.assertSameState(before, state_of(model, optimizer))

    def test_buffers_that_have_changed(self):
        """Another shape, another type, gone: the state of the snapshot comes back."""
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            model.register_buffer("queue", torch.arange(4.0, device=device))
            model.last.register_buffer("queue", model.queue)  # the same one, twice
            model.first.register_buffer("seen", torch.ones(2, device=device))
            guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots()).attach()
            train(model, optimizer, 2, device)
            guard.snapshot()
            model.queue.data = torch.zeros(7, device=device)
            model.first.seen = None
            self.assertEqual(guard.rollback(), 2)
            self.assertTrue(torch.equal(model.queue, torch.arange(4.0, device=device)))
            self.assertIs(model.last.queue, model.queue)
            self.assertTrue(torch.equal(model.first.seen, torch.ones(2, device=device)))
            model.queue = torch.zeros(3, 3, dtype=torch.float64, device=device)
            train(model, optimizer, 1, device, before=lambda step: guard.inject("first.weight"))
            self.assertEqual(guard.n_rollbacks, 1)
            self.assertTrue(torch.equal(model.queue, torch.arange(4.0, device=device)))
            train(model, optimizer, 2, device)
            self.assertTrue(guard.snapshot())
            guard.detach()

    def test_a_model_that_was_resized(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots()).attach()
        model.last.bias.data = torch.zeros(5)
        self.assertRaisesRegex(esper.ModelChanged, "last.bias was resized from", guard.rollback)

    def test_state_objects(self):
        class Cursor:
            at = 0

            def state_dict(self):
                return {"at": self.at}

            def load_state_dict(self, state):
                self.at = state["at"]

        cursor = Cursor()
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(), state={"cursor": cursor}).attach()
        cursor.at = 7
        guard.snapshot()
        cursor.at = 9
        guard.rollback()
        self.assertEqual(cursor.at, 7)
        with self.assertRaises(TypeError):
            self.guard(Net(), optimizer, state={"no": 3})


class TestRing(Case):
    def test_a_bad_state_is_no_snapshot(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "report", snapshot=esper.Snapshots()).attach()
        train(model, optimizer, 2)
        self.assertTrue(guard.snapshot())
        before = state_of(model, optimizer)
        guard.inject("first.bias.exp_avg", 1)
        self.assertFalse(guard.snapshot())
        self.assertFalse(guard.snapshot())
        self.assertIn("first.bias.exp_avg", self.lines[-1])
        guard.rollback()
        self.assertSameState(before, state_of(model, optimizer))

    def test_snapshot_says_no(self):
        for on_bad in ("raise", "skip", "rollback", lambda report: "raise"):
            model, optimizer = seeded(Net)
            guard = self.guard(model, optimizer, on_bad, snapshot=esper.Snapshots(), state_every=1).attach()
            train(model, optimizer, 2)
            guard.inject("first.bias.exp_avg", 1)
            self.assertFalse(guard.snapshot())
            self.assertEqual(guard.last.first_bad, "first.bias.exp_avg")
            self.assertIn("NaN in first.bias.exp_avg, 1 of 16, first at 1; no snapshot was taken of it", self.lines[-1])
            guard.rollback()
            guard._machine.at_once = False  # as where nobody waits: bad state is on its way when snapshot is called
            train(model, optimizer, 1, before=lambda step: guard.inject("first.bias"))
            self.assertEqual(guard.snapshot(), on_bad == "rollback")  # which goes back first
            guard.rollback()
            guard.detach()

    def test_memory_of_one_that_is_not_judged_yet(self):
        model, optimizer = seeded(Net, optimizer=torch.optim.SGD)
        one = sum(p.numel() * 4 for p in model.parameters())
        guard = self.guard(model, optimizer, "skip", snapshot=esper.Snapshots(every=1, keep=2)).attach()
        guard._machine.at_once = False
        for step in range(4):
            train(model, optimizer, 1, start=step)
            self.assertEqual(guard.memory()["host"], 2 * one)

    def test_damaged_ones_are_passed_over(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(keep=3)).attach()
        states = [state_of(model, optimizer)]
        for step in range(2):
            train(model, optimizer, 1, start=step)
            guard.snapshot()
            states.append(state_of(model, optimizer))
        train(model, optimizer, 2, start=2)
        guard.result()
        newest = guard._machine.ring.good[-1]
        newest.slot[("param", "first.weight")][3, 1] += 1e-3  # still finite
        self.assertEqual(guard.rollback(), 1)
        self.assertSameState(states[1], state_of(model, optimizer))
        self.assertIn("the snapshot of step 2 was damaged", self.lines[-2])
        for entry in guard._machine.ring.good:
            entry.slot[("param", "last.bias")][0] = 77.0
        with self.assertRaises(esper.NoSnapshot) as met:
            guard.rollback()
        self.assertIn("not to be trusted", str(met.exception))

    def test_memory(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device, optimizer=torch.optim.SGD)
            one = sum(p.numel() * 4 for p in model.parameters())
            guard = self.guard(model, optimizer, snapshot=esper.Snapshots(every=1, keep=3)).attach()
            self.assertEqual(sum("snapshots: 3 of" in line for line in self.lines), 1)
            train(model, optimizer, 8, device)
            guard.result()
            self.assertEqual(guard.memory()["host" if device == "cpu" else "device"], 3 * one)
            self.assertEqual(len(guard._machine.ring.good), 3)
            self.assertEqual(sum("snapshots: 3 of" in line for line in self.lines), 1)  # said once
            guard.detach()
            self.lines.clear()

    def test_cap(self):
        model, optimizer = seeded(Net)
        one = sum(p.numel() * 4 for p in model.parameters())
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(max_bytes=2 * one - 1))
        with self.assertRaises(esper.GuardError) as met:
            guard.attach()
        self.assertIn("more than max_bytes", str(met.exception))

    def test_seen_by_torch(self):
        if not torch.cuda.is_available():
            self.skipTest("needs CUDA: torch counts no memory of the CPU")
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = torch.cuda.memory_allocated()
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots(where="device")).attach()
        guard.snapshot()
        self.assertGreaterEqual(torch.cuda.memory_allocated() - before, 2 * 4 * 1024 * 1024)


class TestRollback(Case):
    def test_every_kind_of_fault_is_undone(self):
        random.seed(5)
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            guard = self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=5), max_rollbacks=100)
            guard.attach()
            train(model, optimizer, 7, device)
            for name in ("first.weight.grad", "second.bias", "last.weight.exp_avg", "first.bias.exp_avg_sq"):
                n_lines = len(self.lines)
                train(model, optimizer, 12, device, before=lambda step: step == 3 and guard.inject(name, 1))
                told = [line for line in self.lines[n_lines:] if "NaN" in line]
                self.assertEqual(len(told), 1, told)
                self.assertIn(f"NaN in {name},", told[0])
                self.assertTrue(esper.check(model, optimizer).ok)
            guard.detach()

    def test_the_loop_goes_on_with_its_next_batch(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=4)).attach()
        batches = []
        for step in range(8):
            x = torch.randn(5, 6)
            batches.append(float(x[0, 0]))
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            if step == 5:
                guard.inject("first.weight")
            optimizer.step()
        self.assertEqual(guard.n_rollbacks, 1)
        self.assertEqual(len(set(batches)), 8)
        guard.rollback()  # asked for: what was drawn is drawn again
        self.assertIn(float(torch.randn(5, 6)[0, 0]), batches)

    def test_without_attach(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1)
        before = state_of(model, optimizer)
        for step in range(3):
            optimizer.zero_grad()
            backward(model, step)
            if step == 2:
                guard.inject("first.weight")
            guard.step(optimizer)
        self.assertEqual((guard.n_rollbacks, guard.steps), (1, 0))
        self.assertSameState(before, state_of(model, optimizer))

    def test_max_rollbacks(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", max_rollbacks=2).attach()
        with self.assertRaises(esper.BadState) as met:
            for step in range(9):
                guard.inject("second.weight")
                train(model, optimizer, 1, start=step)
        self.assertEqual(guard.n_rollbacks, 2)
        self.assertIn("2 rollbacks made already: max_rollbacks=2", str(met.exception))


if __name__ == "__main__":
    unittest.main()
