# ctest: timeout=120
"""What the guard says: each sentence names what was wrong, and what to do."""
import copy
import math
import os
import pickle
import subprocess
import sys
import unittest

from guard_cases import PACKAGE, Case, Net, backward, seeded, state_of, train

import torch

import esper


class TestCallable(Case):
    def test_what_it_takes(self):
        model, optimizer = seeded(Net)

        class Answer:
            def __call__(self, report, why):
                return "skip"

        for wrong in (lambda: "skip", lambda report, why: "skip", Answer()):
            with self.assertRaisesRegex(TypeError, "called with one argument, the report"):
                esper.Guard(model, optimizer, wrong)
        for right in (lambda report: "skip", lambda report, why=1: "skip", lambda *all: "skip", dict({}).get):
            self.guard(model, optimizer, right).detach()

    def test_one_that_raises(self):
        def on_bad(report):
            return {}["nothing"]

        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, on_bad).attach()
        with self.assertRaises(KeyError):
            train(model, optimizer, 1, before=lambda step: guard.inject("second.bias.grad"))
        self.assertEqual(self.lines[-1], "step 1: NaN in second.bias.grad, 1 of 8, first at 0; then on_bad raised "
                                         "KeyError")


class TestNorm(Case):
    """A NaN in the batch goes through the running means of a norm before there is a gradient."""

    def run_with(self, on_bad, **options):
        model, optimizer = seeded(lambda: Net(norm=True))
        guard = self.guard(model, optimizer, on_bad, **options).attach()
        train(model, optimizer, 2)
        before = state_of(model, optimizer)
        optimizer.zero_grad(set_to_none=True)
        x = torch.ones(4, 6)
        x[0, 0] = float("nan")
        model(x).sum().backward()
        try:
            optimizer.step()
        finally:
            after = state_of(model, optimizer)
            self.same = all(torch.equal(before[name], after[name]) for name in before
                            if not name.startswith("norm.") and isinstance(before[name], torch.Tensor))
        return guard

    def test_is_bad_state(self):
        for on_bad, words in (("raise", "; optimizer untouched"), ("skip", "could; optimizer untouched")):
            with self.assertRaises(esper.BadState) as met:
                self.run_with(on_bad)
            report = met.exception.report
            self.assertEqual(report.first_bad, "norm.running_mean")
            self.assertTrue(str(met.exception).endswith(words), str(met.exception))
            self.assertTrue(math.isnan(report.total_norm))
            self.assertTrue(self.same)

    def test_is_rolled_back(self):
        guard = self.run_with("rollback", snapshot=esper.Snapshots(every=2))
        self.assertIn("rolled back to step 2 (1 of 3)", self.lines[-1])
        self.assertTrue(self.same)
        guard.optimizer.zero_grad(set_to_none=True)
        self.assertTrue(esper.check(guard._model, guard.optimizer).ok)


class TestOptions(Case):
    def test_a_stranger_s_optimizer(self):
        model, other = Net(), Net()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        for make in (esper.Guard, esper.check):
            with self.assertRaisesRegex(esper.GuardError, "the optimizer has no parameter of this model"):
                make(model, optimizer)
        optimizer.add_param_group({"params": [model.first.weight]})
        self.guard(model, optimizer)
        self.assertTrue(esper.check(model, optimizer))

    def test_backoff_without_rollbacks(self):
        model, optimizer = seeded(Net)
        for on_bad in ("raise", "report", "skip"):
            with self.assertRaisesRegex(ValueError, "there would never be a rollback"):
                esper.Guard(model, optimizer, on_bad, lr_backoff=0.5)
        self.guard(model, optimizer, "skip", lr_backoff=0.5, snapshot=esper.Snapshots())
        self.assertEqual(self.lines, ["lr_backoff=0.5: with on_bad='skip' only guard.rollback(), when you call it, "
                                      "lowers the rate"])

    def test_log(self):
        for wrong in (3, [], b"guard.log", True):
            with self.assertRaisesRegex(TypeError, "expected a function of a line, a path, a logger, or None"):
                esper.Guard(*seeded(Net), log=wrong)


class TestInject(Case):
    def met(self, kind, sentence, *arguments):
        with self.assertRaises(kind) as met:
            self.guard_.inject(*arguments)
        self.assertEqual(str(met.exception), sentence)

    def test_names(self):
        model, optimizer = seeded(Net)
        self.guard_ = self.guard(model, optimizer)
        self.met(esper.NoSuchTensor, "inject: there is no tensor 'frist.weight' now; did you mean 'first.weight'?",
                 "frist.weight")
        self.met(KeyError, "inject: there is no tensor '#' now", "#")
        self.met(KeyError, "inject: first.bias has no gradient now: inject between backward() and step()",
                 "first.bias.grad")
        self.met(TypeError, "inject: expected a name ('last.bias'), not a Parameter", model.last.bias)
        self.met(TypeError, "inject: expected a name (as reports have them), not a int", 3)
        backward(model, 0)
        self.met(TypeError, "inject: expected a name ('last.bias.grad'), not a Tensor", model.last.bias.grad)


class TestRollback(Case):
    def test_by_hand(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=2)).attach()
        train(model, optimizer, 3)
        self.assertEqual(guard.rollback(), 2)
        self.assertEqual((guard.n_rollbacks, guard.n_rollbacks_asked), (0, 1))
        self.assertTrue(guard.last.ok)
        self.assertRegex(str(guard.last), r"^step 2: all \d+ tensors are finite; put back at step 3, as guard.rollback")
        self.assertEqual(self.lines[-1], str(guard.last))

    def test_none_allowed(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1, max_rollbacks=0).attach()
        guard.inject("first.weight")
        with self.assertRaisesRegex(esper.BadState, "; no rollback: max_rollbacks=0 within 1,000 steps"):
            train(model, optimizer, 1)


class TestWords(Case):
    def test_one_and_many(self):
        model = torch.nn.Linear(1, 1, bias=False)
        self.assertEqual(str(esper.check(model)), "the one tensor is finite")
        guard = self.guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with self.assertRaisesRegex(esper.GuardError, "weight has 1 element, expected 0$"):
            guard.inject("weight", at=1)
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip", max_skips=0).attach()
        with self.assertRaisesRegex(esper.BadGradient, "; 1 bad step in a row, more than max_skips=0; optimizer unt"):
            train(model, optimizer, 1, before=lambda step: guard.inject("first.bias.grad"))

    def test_names_of_exceptions(self):
        for name in esper.__all__:
            kind = getattr(esper, name)
            if isinstance(kind, type) and issubclass(kind, Exception):
                self.assertEqual((kind.__module__, kind.__qualname__), ("esper", name))
                self.assertTrue(issubclass(kind, (esper.GuardError, esper.GrowEnvError)))
        self.assertIs(type(pickle.loads(pickle.dumps(esper.BadState("bad")))), esper.BadState)

    def test_repr(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip")
        self.assertEqual(repr(guard), "<esper.Guard of Net and AdamW, on_bad='skip', not attached, step 0>")
        guard.attach()
        train(model, optimizer, 2)
        self.assertEqual(repr(guard), "<esper.Guard of Net and AdamW, on_bad='skip', attached, step 2>")
        pending = guard.launch()
        self.assertEqual(repr(pending), "<esper.Pending of step 2, not read yet>")
        pending.result()
        self.assertRegex(repr(pending), r"^<esper.Pending of step 2, step 2: all 6 tensors are finite, gradient norm ")

    def test_copies(self):
        guard = self.guard(*seeded(Net))
        for use in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "an esper.Guard cannot be copied or pickled"):
                use(guard)

    def test_a_reader_that_stops(self):
        first = subprocess.Popen([sys.executable, "-m", "esper", "doctor", "--device", "cpu"], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=PACKAGE, PYTHONUNBUFFERED="1"))
        first.stdout.readline()
        first.stdout.close()
        said = first.stderr.read().decode()
        first.stderr.close()
        self.assertEqual((first.wait(timeout=100), said), (141, ""))


if __name__ == "__main__":
    unittest.main()
