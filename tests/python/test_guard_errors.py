# ctest: timeout=120
"""Bad input: each an exception with a sentence that says what to do."""
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import types
import unittest

from guard_cases import PACKAGE, Case, Net, backward, needs, seeded, train

import torch

import esper


class TestModel(Case):
    def met(self, kind, words, run):
        with self.assertRaises(kind) as met:
            run()
        self.assertIn(words, str(met.exception))

    def test_replaced(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, state_every=2).attach()
        train(model, optimizer, 2)
        model.second = torch.nn.Linear(16, 8)
        self.met(esper.ModelChanged, "second.weight is not the parameter that was registered",
                 lambda: train(model, optimizer, 1))
        optimizer.param_groups[0]["params"] = list(model.parameters())
        guard.refresh()
        train(model, optimizer, 5)

    def test_cut_where_it_lies(self):
        """A parameter that became shorter at the same address, in a scan of state and gradients: nothing is read
        beyond its end, and the scan of the state that came first is in nobody's way."""
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer)
        both = ("grad", "param")
        for _ in range(3):
            backward(model, 0)
            self.assertTrue(guard.launch(both).result().ok)
        bias = model.second.bias
        whole = bias.data
        whole[-1] = float("nan")
        bias.data = whole[:-1]
        self.assertEqual(bias.data_ptr(), whole.data_ptr())
        self.assertEqual(guard.launch(("param",)).result().bad, [])
        bias.grad = torch.zeros_like(bias)
        self.met(esper.ModelChanged, "second.bias was resized", lambda: guard.launch(both))
        self.met(esper.ModelChanged, "second.bias was resized", lambda: guard.launch(both))
        bias.data = whole
        bias.grad = torch.zeros_like(bias)
        report = guard.launch(both).result()
        self.assertEqual([bad.name for bad in report.bad], ["second.bias"])

    def test_gradients_are_named_first(self):
        """Though the state is launched before them."""
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer)
        backward(model, 0)
        guard.inject("first.weight", at=3)
        guard.inject("second.weight.grad", at=5)
        report = guard.launch(("param", "grad")).result()
        self.assertEqual([bad.name for bad in report.bad], ["second.weight.grad", "first.weight"])

    def test_replaced_in_the_optimizer(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, state_every=100).attach()
        train(model, optimizer, 2)
        model.second = torch.nn.Linear(16, 8)
        optimizer.param_groups[0]["params"] = list(model.parameters())
        self.met(esper.ModelChanged, "second.weight is not the parameter that was registered",
                 lambda: train(model, optimizer, 1))
        guard.refresh()
        train(model, optimizer, 2)
        optimizer.param_groups[0]["params"][1] = torch.nn.Parameter(torch.ones(16))
        self.met(esper.ModelChanged, "another parameter instead of first.bias", lambda: train(model, optimizer, 1))
        guard.refresh()
        train(model, optimizer, 2)
        optimizer.param_groups[0]["params"].pop()  # fewer are no fault
        train(model, optimizer, 2)

    def test_resized(self):
        model, optimizer = seeded(Net)
        self.guard(model, optimizer).attach()
        train(model, optimizer, 2)
        model.last.weight.data = torch.zeros(5, 8)
        model.last.bias.data = torch.zeros(5)
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(2, 6)).sum().backward()
        self.met(esper.ModelChanged, "last.weight was resized from (3, 8) to (5, 8)", optimizer.step)

    def test_converted(self):
        model, optimizer = seeded(Net)
        self.guard(model, optimizer).attach()
        train(model, optimizer, 2)
        model.double()
        optimizer.zero_grad(set_to_none=True)
        model(torch.ones(2, 6).double()).sum().backward()
        self.met(esper.ModelChanged, "first.weight was torch.float32 and is torch.float64", optimizer.step)

    def test_added(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, state_every=1).attach()
        train(model, optimizer, 1)
        model.more = torch.nn.Linear(2, 2)
        self.met(esper.ModelChanged, "more.weight is a parameter that was not there",
                 lambda: train(model, optimizer, 2))
        guard.refresh()
        train(model, optimizer, 2)

    @needs(torch.cuda.is_available(), "CUDA")
    def test_moved(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer).attach()
        train(model, optimizer, 2)
        model.cuda()
        optimizer.zero_grad(set_to_none=True)
        backward(model, 0, "cuda")
        self.met(esper.ModelChanged, "first.weight was moved from cpu to cuda:0", optimizer.step)
        optimizer.state.clear()
        guard.refresh()
        train(model, optimizer, 2, "cuda")
        self.assertTrue(guard.last.ok)

    def test_moved_as_the_guard_sees_it(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer)
        guard._watched.forms[2] = (guard._watched.forms[2][0], torch.device("cuda", 1), torch.float32)
        backward(model, 0)
        self.met(esper.ModelChanged, "second.weight was moved from cuda:1 to cpu: move the model before",
                 lambda: guard.step(optimizer))

    def test_two_guards(self):
        model, optimizer = seeded(Net)
        first = self.guard(model, optimizer)
        self.met(esper.GuardError, "already watched by another esper.Guard", lambda: esper.Guard(model, optimizer))
        first.detach()
        second = self.guard(model, optimizer)
        del second
        self.doCleanups()
        self.guard(model, optimizer)

    def test_a_guard_that_comes_back(self):
        model, optimizer = seeded(Net)
        first = self.guard(model, optimizer).attach()
        first.detach()
        second = self.guard(model, optimizer).attach()
        for use in (first.attach, first.step, first.launch):
            self.met(esper.GuardError, "already watched by another esper.Guard", use)
        train(model, optimizer, 1)
        self.assertEqual((first.steps, second.steps), (0, 1))
        second.detach()
        first.attach()
        train(model, optimizer, 1)
        self.assertEqual((first.steps, second.steps), (1, 1))

    def test_detached(self):
        """It keeps and restores nothing that is another's by now, and claims nothing."""
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback").attach()
        train(model, optimizer, 1)
        guard.detach()
        self.met(esper.GuardError, "snapshot: this guard is detached", guard.snapshot)
        self.met(esper.GuardError, "rollback: this guard is detached", guard.rollback)
        self.guard(model, optimizer).detach()
        guard.refresh()
        self.assertTrue(guard.attach().snapshot())
        self.assertEqual(guard.rollback(), 1)

    def test_groups_added_later_are_taken(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer).attach()
        train(model, optimizer, 1)
        more = torch.nn.Linear(2, 2)
        optimizer.add_param_group({"params": more.parameters()})
        train(model, optimizer, 1)
        self.met(esper.GuardError, "weight is already watched by another esper.Guard",
                 lambda: esper.Guard(more, torch.optim.SGD(more.parameters(), lr=0.1)))
        other = torch.nn.Linear(2, 2)
        theirs = self.guard(other, torch.optim.SGD(other.parameters(), lr=0.1))
        optimizer.add_param_group({"params": other.parameters()})
        self.met(esper.GuardError, "already watched by another esper.Guard", lambda: train(model, optimizer, 1))
        theirs.detach()
        train(model, optimizer, 1)
        self.assertEqual(guard.last.step, 4)

    def test_one_that_fails_takes_nothing(self):
        model, optimizer = seeded(Net)
        model.register_buffer("odd", torch.ones(2))
        model.odd.detach = None  # trouble in the middle
        with self.assertRaises(TypeError) as met:
            esper.Guard(model, optimizer)
        del model.odd.detach
        self.guard(model, optimizer)
        del met

    def test_rollback_before_the_first_snapshot(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots())
        self.met(esper.NoSnapshot, "guard.snapshot() before the first step", guard.rollback)
        guard.detach()
        guard = self.guard(model, optimizer)
        self.met(esper.NoSnapshot, "snapshot=esper.Snapshots()", guard.rollback)
        self.met(esper.GuardError, "snapshot=esper.Snapshots()", guard.snapshot)

    def test_rollback_asked_for_without_snapshots(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, lambda report: "rollback").attach()
        guard.inject("first.weight")
        self.met(esper.NoSnapshot, "nothing to roll back to", lambda: train(model, optimizer, 1))


class TestAttach(Case):
    def test_one_that_fails_leaves_nothing_behind(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "raise", snapshot=esper.Snapshots(max_bytes=1))
        scaler = type("Scaler", (), {"step": lambda self, optimizer: None, "unscale_": None})()
        for _ in range(2):
            with self.assertRaises(esper.GuardError):
                guard.attach(scaler)
            self.assertEqual(guard._attachments, [])
            self.assertNotIn("step", {**vars(optimizer), **vars(scaler)})
            self.assertFalse(getattr(optimizer, "_optimizer_step_pre_hooks", None))
        train(model, optimizer, 1)
        self.assertEqual(guard.steps, 0)
        guard._machine.ring.config.max_bytes = None
        guard.attach()
        train(model, optimizer, 1)
        self.assertEqual(guard.steps, 1)

    def test_bad_from_the_start(self):
        model, optimizer = seeded(Net)
        with torch.no_grad():
            model.first.weight[0, 0] = float("nan")
        guard = self.guard(model, optimizer, "skip", snapshot=esper.Snapshots())
        with self.assertRaises(esper.BadState):
            guard.attach()
        self.assertEqual(guard._attachments, [])

    def test_not_a_scaler(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer)
        with self.assertRaises(TypeError) as met:
            guard.attach(optimizer)
        self.assertIn("attach(AdamW): that is no GradScaler", str(met.exception))
        guard.attach()


class TestForms(Case):
    def test_fsdp1(self):
        module = types.ModuleType("torch.distributed.fsdp.fully_sharded_data_parallel")
        kind = type("FullyShardedDataParallel", (Net,), {"__module__": module.__name__})
        model = torch.nn.Sequential(kind())
        with self.assertRaises(esper.Unsupported) as met:
            esper.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
        self.assertIn("use fully_shard (FSDP2)", str(met.exception))

    @needs(hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), "post-accumulate-grad hooks")
    def test_optimizer_in_backward(self):
        model, optimizer = seeded(Net)
        each = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def hook(parameter):
            each[parameter].step()
            each[parameter].zero_grad()

        model.last.weight.register_post_accumulate_grad_hook(hook)
        with self.assertRaises(esper.Unsupported) as met:
            esper.Guard(model, optimizer)
        self.assertIn("last.weight has a hook that steps an optimizer", str(met.exception))

    def test_optimizer_in_backward_of_torch(self):
        model, optimizer = seeded(Net)
        model.first.bias._in_backward_optimizers = [optimizer]
        with self.assertRaises(esper.Unsupported):
            esper.Guard(model, optimizer)

    def test_not_a_model(self):
        model, optimizer = seeded(Net)
        for arguments in ((model.parameters(), optimizer), (model, model), (model, [model])):
            with self.assertRaises(TypeError):
                esper.Guard(*arguments)
        guard = self.guard(model, optimizer)
        with self.assertRaises(esper.GuardError):
            guard.step(torch.optim.SGD(model.parameters(), lr=0.1))


class TestOptions(Case):
    def test_values(self):
        model, optimizer = seeded(Net)
        for options in ({"on_bad": "ignore"}, {"scan": ("loss",)}, {"state_every": -1}, {"clip": 0.0},
                        {"clip": float("nan")}, {"lr_backoff": 0.0}, {"lr_backoff": 2.0}, {"scan": "loss"},
                        {"scan": (), "state_every": 0}, {"scan": ()}, {"state_every": 2.5}, {"max_skips": -1},
                        {"max_skips": None}, {"max_rollbacks": "3"}, {"max_rollbacks": True}):
            with self.assertRaises(ValueError, msg=str(options)):
                esper.Guard(model, optimizer, **options)
        for options in ({"every": 0}, {"keep": 1}, {"where": "disk"}):
            with self.assertRaises(ValueError, msg=str(options)):
                esper.Snapshots(**options)
        for options in ({"clip": "much"}, {"clip": [1.0]}, {"clip": True}, {"clip": "1.0"},
                        {"lr_backoff": None}, {"lr_backoff": "half"}):
            with self.assertRaisesRegex(TypeError, "expected a number"):
                esper.Guard(model, optimizer, **options)
        for options in ({"every": 2.5}, {"keep": "3"}, {"max_bytes": "1 GB"}, {"every": None}):
            with self.assertRaisesRegex(TypeError, "expected a whole number"):
                esper.Snapshots(**options)
        for options in ({"snapshot": True}, {"snapshot": 200}, {"state": [optimizer]}, {"state": ()}):
            with self.assertRaises(TypeError, msg=str(options)):
                esper.Guard(model, optimizer, **options)
        with self.assertRaises(esper.GuardError):
            esper.Guard(model, optimizer, group="some")
        self.guard(model, optimizer)  # none of them has taken the model

    def test_spikes_without_gradients(self):
        model, optimizer = seeded(Net)
        for scan in ("param", ("moment", "buffer")):
            with self.assertRaisesRegex(ValueError, "Name 'grad' in scan"):
                esper.Guard(model, optimizer, scan=scan, spikes=esper.Spikes())
        self.guard(model, optimizer, scan=("grad", "param"), spikes=esper.Spikes())

    def test_former_names(self):
        model, optimizer = seeded(Net)
        with self.assertWarnsRegex(DeprecationWarning, "is called state_every now"):
            guard = self.guard(model, optimizer, "rollback", deep_every=3).attach()
        self.assertEqual(guard._machine._state_every, 3)
        with self.assertWarnsRegex(DeprecationWarning, "guard.commit.. is called guard.snapshot.. now"):
            self.assertTrue(guard.commit())
        with self.assertWarnsRegex(DeprecationWarning, "guard.path is called guard.mode now"):
            self.assertEqual(guard.path, guard.mode)

    def test_scan(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, scan="grad")
        backward(model, 0)
        for scan in ("loss", ("grad", "loss"), ()):
            with self.assertRaises(ValueError, msg=str(scan)) as met:
                guard.launch(scan)
            self.assertIn("launch: scan=", str(met.exception))
        guard.inject("first.weight")
        self.assertTrue(guard.launch("grad").result().ok)
        self.assertEqual(guard.launch("param").result().first_bad, "first.weight")

    def test_inject(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer)
        with self.assertRaises(KeyError):
            guard.inject("nothing.weight")
        with self.assertRaises(ValueError):
            guard.inject("first.weight", fault="fire")
        for at in (-1, 96, 10**9, 2**64, -(2**70)):
            with self.assertRaisesRegex(esper.GuardError, "first.weight has 96 elements, expected 0 to 95"):
                guard.inject("first.weight", at=at)
        for wrong in ({"at": 1.5}, {"at": None}, {"at": "3"}, {"fault": "exponent", "bit": 0.5}):
            with self.assertRaisesRegex(TypeError, "expected a whole number"):
                guard.inject("first.weight", **wrong)
        for fault, bit, words in (("exponent", 8, "float32 has 8 bits, expected 0 to 7"), ("mantissa", -1, "0 to 22"),
                                  ("mantissa", 23, "0 to 22"), ("nan", 1, "only 'exponent' and 'mantissa'")):
            with self.assertRaisesRegex(esper.GuardError, words):
                guard.inject("first.weight", fault=fault, bit=bit)
        self.assertTrue(esper.check(model).ok)

    def test_log_to_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "guard.log")
            model, optimizer = seeded(Net)
            guard = self.guard(model, optimizer, "skip", log=path).attach()
            train(model, optimizer, 2, before=lambda step: guard.inject("first.weight.grad"))
            with open(path) as file:
                self.assertEqual(file.read().count("step skipped"), 2)
        with self.assertRaises(OSError):
            esper.Guard(Net(), optimizer, log="/nowhere/at/all")


class TestLog(Case):
    def run_with(self, log, n_faults=3):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip", log=log).attach()
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            train(model, optimizer, n_faults, before=lambda step: guard.inject("first.weight.grad"))
            train(model, optimizer, 1)
        self.assertEqual((guard.steps, guard.n_skipped), (n_faults + 1, n_faults))
        return said.getvalue()

    def test_a_log_that_fails_does_not_end_the_training(self):
        def log(line):
            if "step" in line and "NaN" in line:
                raise ValueError("full")

        said = self.run_with(log)
        self.assertEqual(said.count("the log could not be written (ValueError: full)"), 1)
        self.assertEqual(said.count("NaN in first.weight.grad"), 3)

    def test_a_file_that_goes_away(self):
        folder = tempfile.mkdtemp()
        path = os.path.join(folder, "guard.log")
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip", log=path).attach()
        os.remove(path)
        os.rmdir(folder)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            train(model, optimizer, 2, before=lambda step: guard.inject("first.weight.grad"))
        self.assertEqual(guard.n_skipped, 2)
        self.assertEqual(said.getvalue().count("the log could not be written"), 1)

    def test_no_stderr(self):
        stderr, sys.stderr = sys.stderr, None
        try:
            self.run_with(None, 1)
        finally:
            sys.stderr = stderr


class TestLibrary(unittest.TestCase):
    def run_python(self, code, **environment):
        environment = dict(os.environ, PYTHONPATH=PACKAGE, **environment)
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True,
                              timeout=100)

    def test_missing(self):
        met = self.run_python("from esper import _abi; _abi.load()", ESPER_GUARD_LIBRARY="/nowhere/libesper-guard.so")
        self.assertIn("LibraryNotFound: libesper-guard.so was not found. Looked at: /nowhere/", met.stderr)
        self.assertIn("ESPER_GUARD_LIBRARY=", met.stderr)

    def test_not_a_library(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            met = self.run_python("from esper import _abi; _abi.load()", ESPER_GUARD_LIBRARY=file.name)
        self.assertIn("LibraryNotFound", met.stderr)

    def test_without_torch(self):
        met = self.run_python("import sys; sys.modules['torch'] = None\nimport esper; print('imported'); esper.Guard")
        self.assertIn("imported", met.stdout)
        self.assertIn("ImportError: esper needs PyTorch", met.stderr)


if __name__ == "__main__":
    unittest.main()
