# ctest: timeout=240
"""The coverage table: each row injects a fault into one form of training and requires the right name."""
import math
import os
import subprocess
import sys
import unittest

from guard_cases import DEVICES, PACKAGE, Case, Net, backward, can_fuse, needs, seeded, state_of, train

import torch
import torch.nn as nn

import esper
from esper import _names


class TestRows(Case):
    """Rows that need nothing but a model, on every device that is there."""

    def bad_gradient(self, model, optimizer, name, run, **options):
        """Runs `run(guard)`, which is to meet BadGradient that names `name`."""
        guard = self.guard(model, optimizer, **options)
        with self.assertRaises(esper.BadGradient) as met:
            run(guard)
        self.assertEqual(met.exception.report.first_bad, name)
        self.assertIn(name, str(met.exception))
        self.assertIn("optimizer untouched", str(met.exception))
        return met.exception.report

    def test_each_gradient_by_name(self):
        for device in DEVICES:
            for name in ("first.weight", "second.bias", "last.weight"):
                model, optimizer = seeded(Net, device)
                before = state_of(model, optimizer)

                def run(guard):
                    backward(model, 0, device)
                    guard.inject(name + ".grad", 2, "inf")
                    guard.step(optimizer)

                report = self.bad_gradient(model, optimizer, name + ".grad", run)
                entry = report.bad[0]
                self.assertEqual((entry.kind, entry.n_bad, entry.first, report.n_bad), ("Inf", 1, 2, 1))
                self.assertSameState(before, state_of(model, optimizer))

    def test_text(self):
        model = nn.Sequential()
        model.add_module("c_proj", nn.Linear(768, 768, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = self.guard(model, optimizer)
        guard.steps = 846
        model(torch.ones(1, 768)).sum().backward()
        for at in (41102, 41200, 50000):
            guard.inject("c_proj.weight.grad", at)
        with self.assertRaises(esper.BadGradient) as met:
            guard.step(optimizer)
        self.assertEqual(str(met.exception), "step 847: NaN in c_proj.weight.grad, 3 of 589,824, first at 41,102; "
                         "optimizer untouched")

    def test_gradient_accumulation(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)

            def run(guard):
                for step in range(4):
                    for part in range(3):
                        backward(model, 3 * step + part, device)
                        if (step, part) == (2, 1):
                            guard.inject("second.weight.grad", 7)
                    guard.step(optimizer)
                    optimizer.zero_grad()

            report = self.bad_gradient(model, optimizer, "second.weight.grad", run)
            self.assertEqual(report.step, 3)

    def test_set_to_none_and_in_place(self):
        for device in DEVICES:
            for to_none in (True, False):
                model, optimizer = seeded(Net, device)

                def run(guard):
                    guard.attach()
                    for step in range(9):
                        optimizer.zero_grad(set_to_none=to_none)
                        backward(model, step, device)
                        if step == 6:
                            guard.inject("last.bias.grad", 1)
                        optimizer.step()

                self.assertEqual(self.bad_gradient(model, optimizer, "last.bias.grad", run).step, 7)

    def test_group_added_later(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            extra = nn.Linear(3, 2).to(device)

            def run(guard):
                guard.attach()
                train(model, optimizer, 2, device)
                optimizer.add_param_group({"params": list(extra.parameters())})
                for step in range(3):
                    optimizer.zero_grad()
                    backward(model, step, device)
                    extra(torch.ones(1, 3, device=device)).sum().backward()
                    if step == 2:
                        guard.inject("optimizer.group1.param0.grad", 5)
                    optimizer.step()

            self.bad_gradient(model, optimizer, "optimizer.group1.param0.grad", run)

    def test_group_added_before_a_snapshot(self):
        """What a scan of the state has seen, the scan of gradients is still to see."""
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, snapshot=esper.Snapshots()).attach()
        train(model, optimizer, 2)
        more = nn.Parameter(torch.ones(3))
        optimizer.add_param_group({"params": [more]})
        guard.snapshot()
        more.grad = torch.full((3,), float("nan"))
        with self.assertRaises(esper.BadGradient) as met:
            train(model, optimizer, 1, before=lambda step: setattr(more, "grad", torch.full((3,), float("nan"))))
        self.assertEqual(met.exception.report.first_bad, "optimizer.group1.param0.grad")

    def test_tied(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(10, 4)
                self.head = nn.Linear(4, 10, bias=False)
                self.head.weight = self.embedding.weight

        for device in DEVICES:
            model, optimizer = seeded(Tied, device)

            def run(guard):
                model.head(model.embedding(torch.arange(3, device=device))).sum().backward()
                guard.inject("embedding.weight.grad", 39)
                guard.step(optimizer)

            report = self.bad_gradient(model, optimizer, "embedding.weight.grad", run)
            self.assertEqual(len(report.table), 1)

    def test_none(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            guard = self.guard(model, optimizer).attach()
            for step in range(12):  # another pattern of gradients each time
                optimizer.zero_grad(set_to_none=True)
                backward(model, step, device)
                absent = [(step + i) % 6 for i in range(step % 4)]
                for i, parameter in enumerate(model.parameters()):
                    if i in absent:
                        parameter.grad = None
                optimizer.step()
                self.assertEqual(len(guard.last.table), 6 - len(absent))
            optimizer.zero_grad(set_to_none=True)
            optimizer.step()  # none at all
            backward(model, 0, device)
            model.first.weight.grad = None
            guard.inject("second.weight.grad", 3)
            with self.assertRaises(esper.BadGradient) as met:
                optimizer.step()
            self.assertEqual(met.exception.report.first_bad, "second.weight.grad")
            guard.detach()

    def test_sparse(self):
        class Sparse(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(50, 4, sparse=True)
                self.out = nn.Linear(4, 1)

        for device in DEVICES:
            model, optimizer = seeded(Sparse, device, optimizer=torch.optim.SGD)
            guard = self.guard(model, optimizer, "raise", clip=0.5).attach()
            for step in range(5):
                optimizer.zero_grad()
                words = torch.arange(2 + step, device=device) % 3  # some of them twice
                model.out(model.embedding(words)).sum().backward()
                exact = torch.cat([p.grad.to_dense().flatten() for p in model.parameters()]).double().norm()
                optimizer.step()
                self.assertAlmostEqual(guard.last.total_norm, float(exact), delta=1e-5 * float(exact))
                after = torch.cat([p.grad.to_dense().flatten() for p in model.parameters()]).norm()
                self.assertAlmostEqual(float(after), 0.5, delta=1e-4)  # clipped, the sparse one too
            optimizer.zero_grad()
            model.out(model.embedding(torch.tensor([4, 9], device=device))).sum().backward()
            model.embedding.weight.grad._values()[1, 2] = float("nan")
            with self.assertRaises(esper.BadGradient) as met:
                optimizer.step()
            self.assertEqual(met.exception.report.first_bad, "embedding.weight.grad")
            guard.detach()

    def test_channels_last(self):
        for device in DEVICES:
            torch.manual_seed(0)
            model = nn.Conv2d(3, 4, 3).to(device).to(memory_format=torch.channels_last)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def run(guard):
                x = torch.randn(2, 3, 8, 8, device=device).to(memory_format=torch.channels_last)
                model(x).sum().backward()
                model.weight.grad = model.weight.grad.to(memory_format=torch.channels_last)
                with torch.no_grad():
                    model.weight.grad[2, 1, 0, 2] = float("nan")
                guard.step(optimizer)

            report = self.bad_gradient(model, optimizer, "weight.grad", run)
            self.assertEqual(report.bad[0].first, ((2 * 3 + 1) * 3 + 0) * 3 + 2)

    def test_views_with_gaps(self):
        for device in DEVICES:
            model = nn.Linear(4, 6).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def run(guard):
                wide = torch.zeros(6, 8, device=device)
                model.weight.grad = wide[:, ::2]
                guard.step(optimizer)
                wide[3, 1] = float("nan")  # in a gap
                guard.step(optimizer)
                wide[3, 2] = float("nan")
                guard.step(optimizer)

            report = self.bad_gradient(model, optimizer, "weight.grad", run)
            self.assertEqual((report.step, report.bad[0].first), (3, 3 * 4 + 1))

    def test_half_types(self):
        for device in DEVICES:
            for dtype in (torch.bfloat16, torch.float16, torch.float64):
                model = nn.Linear(5, 5).to(device).to(dtype)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

                def run(guard):
                    for parameter in model.parameters():
                        parameter.grad = torch.ones_like(parameter)
                    guard.inject("bias.grad", 4)
                    guard.step(optimizer)

                self.bad_gradient(model, optimizer, "bias.grad", run)

    def test_complex(self):
        model = nn.Module()
        model.weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def run(guard):
            model.weight.grad = torch.tensor([1 + 1j, complex(0, float("inf")), 0])
            guard.step(optimizer)

        self.bad_gradient(model, optimizer, "weight.grad", run)

    def test_autocast(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)

            def run(guard):
                guard.attach()
                for step in range(4):
                    optimizer.zero_grad()
                    with torch.autocast(device, dtype=torch.bfloat16):
                        loss = model(torch.ones(2, 6, device=device)).float().sum()
                    loss.backward()
                    if step == 3:
                        guard.inject("first.weight.grad", 1, "-inf")
                    optimizer.step()

            self.bad_gradient(model, optimizer, "first.weight.grad", run)

    def test_closure(self):
        model, optimizer = seeded(Net, optimizer=torch.optim.LBFGS, lr=0.1)
        poison = []

        def run(guard):
            guard.attach()

            def closure():
                optimizer.zero_grad()
                loss = backward(model, 0)
                if poison:
                    guard.inject("second.bias.grad", 1)
                return loss

            optimizer.step(closure)
            poison.append(1)
            optimizer.step(closure)

        self.bad_gradient(model, optimizer, "second.bias.grad", run)

    def test_wrapped_names(self):
        class Compiled(nn.Module):  # what torch.compile makes, as far as names are concerned
            def __init__(self, inner):
                super().__init__()
                self._orig_mod = inner

        model, _ = seeded(Net)
        model.second = Compiled(model.second)
        wrapped = Compiled(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        self.assertEqual([name for name, _ in _names.parameters(wrapped)],
                         ["first.weight", "first.bias", "second.weight", "second.bias", "last.weight", "last.bias"])

        def run(guard):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            guard.inject("second.weight.grad")
            guard.step(optimizer)

        self.bad_gradient(wrapped, optimizer, "second.weight.grad", run)


class TestState(Case):
    """Parameters, buffers and optimiser state."""

    def test_each_kind_by_name(self):
        cases = {"first.weight": "param", "norm.running_var": "buffer", "second.weight.exp_avg_sq": "moment",
                 "last.bias.exp_avg": "moment"}
        for device in DEVICES:
            for name, role in cases.items():
                model, optimizer = seeded(lambda: Net(norm=True), device)
                guard = self.guard(model, optimizer, state_every=1).attach()
                train(model, optimizer, 3, device)
                with self.assertRaises(esper.BadState) as met:
                    train(model, optimizer, 2, device, before=lambda step: guard.inject(name, 1, "nan"))
                entry = met.exception.report.bad[0]
                self.assertEqual((entry.name, entry.role), (name, role))
                guard.detach()

    def test_state_every(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, state_every=10).attach()
        train(model, optimizer, 12)
        model.last.weight.requires_grad_(False)
        guard.inject("last.weight.exp_avg", 3)  # used by nobody any more: gradients stay clean
        model.last.weight.grad = None
        with self.assertRaises(esper.BadState) as met:
            train(model, optimizer, 20, start=12)
        self.assertEqual((met.exception.report.first_bad, met.exception.report.step), ("last.weight.exp_avg", 20))

    def test_judged_right_behind_the_step(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            guard = self.guard(model, optimizer, state_every=1).attach()
            with self.assertRaises(esper.BadState):
                train(model, optimizer, 1, device, before=lambda step: guard.inject("first.weight"))
            guard.detach()
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1).attach()
        train(model, optimizer, 1, before=lambda step: guard.inject("first.weight"))
        self.assertTrue(esper.check(model).ok)
        self.assertEqual((guard.n_rollbacks, guard.steps), (1, 0))

    def test_what_nobody_has_read(self):
        code = ("import sys\nfrom guard_cases import *\nmodel, optimizer = seeded(Net)\n"
                "guard = esper.Guard(model, optimizer, 'report', state_every=1)\nguard._machine.at_once = False\n"
                "guard.attach()\ntrain(model, optimizer, 1, before=lambda step: guard.inject('last.bias.grad', 2))\n"
                "print('the end', file=sys.stderr, flush=True)")
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.dirname(__file__), PACKAGE]))
        met = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
        told = met.stderr.split("the end\n")[1].splitlines()
        self.assertEqual(met.returncode, 0)
        self.assertEqual(told[0], "esper: step 1: NaN in last.bias.grad, 1 of 3, first at 2; found when Python ended: "
                         "nothing was done about it")
        self.assertIn("NaN in last.bias.exp_avg", told[1])

    def test_lazy_state(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            guard = self.guard(model, optimizer, state_every=1).attach()
            names = []
            for step in range(2):
                train(model, optimizer, 1, device, step)
                names.append({item.name for item in guard._machine.cover._scanner.items})
            guard.result()
            self.assertIn("first.weight.exp_avg", names[0])
            report = esper.check(model, optimizer)
            self.assertTrue(report.ok)
            self.assertEqual(len(report.table), 6 * 5)
            guard.detach()

    def test_scan_of_everything_each_step(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, scan=("grad", "param", "moment")).attach()
        train(model, optimizer, 3)
        with self.assertRaises(esper.BadState) as met:
            train(model, optimizer, 2, before=lambda step: guard.inject("first.bias.exp_avg"))
        self.assertEqual(met.exception.report.first_bad, "first.bias.exp_avg")

    def test_bad_parameter_is_named_rather_than_its_gradients(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            guard = self.guard(model, optimizer).attach()
            train(model, optimizer, 3, device)
            guard.inject("second.weight", 9, "nan")
            with self.assertRaises(esper.BadState) as met:
                train(model, optimizer, 1, device)
            self.assertEqual(met.exception.report.first_bad, "second.weight")
            guard.detach()


class Masked(Net):
    """Two buffers that are not finite on purpose."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        self.register_buffer("best", torch.tensor(float("inf")))
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        return super().forward(x) @ self.mask.exp() * self.scale


class TestNotCovered(Case):
    def test_buffers_that_are_not_finite_on_purpose(self):
        for device in DEVICES:
            for on_bad in ("raise", "rollback"):
                model, optimizer = seeded(Masked, device)
                guard = self.guard(model, optimizer, on_bad, state_every=1, snapshot=esper.Snapshots()).attach()
                self.assertIn("mask holds Inf from the start: not judged", guard.not_covered)
                train(model, optimizer, 3, device)
                guard.result()
                self.assertIn("mask holds Inf from the start: not judged", guard.last.not_covered)
                self.assertEqual(sum("from the start" in line for line in self.lines), 2)
                guard.snapshot()
                model.best.fill_(2.0)  # not judged, and put back all the same
                guard.rollback()
                self.assertEqual(float(model.best), float("inf"))
                guard.detach()
                self.lines.clear()
        model, optimizer = seeded(Masked)
        guard = self.guard(model, optimizer, state_every=1).attach()
        with self.assertRaises(esper.BadGradient) as met:
            train(model, optimizer, 1, before=lambda step: guard.inject("first.weight.grad"))
        self.assertEqual(met.exception.report.first_bad, "first.weight.grad")
        with self.assertRaises(esper.BadState) as met:
            train(model, optimizer, 2, before=lambda step: guard.inject("scale"))
        self.assertEqual(met.exception.report.first_bad, "scale")

    def test_buffers_are_looked_at_again_by_refresh(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, state_every=1).attach()
        train(model, optimizer, 2)
        model.register_buffer("mask", torch.full((2,), float("-inf")))
        guard.refresh()
        train(model, optimizer, 2, start=2)
        self.assertTrue(guard.result().ok)
        self.assertEqual(guard.not_covered, ["mask holds Inf from the start: not judged"])
        model.mask.zero_()
        guard.refresh()
        self.assertEqual(guard.not_covered, [])

    def test_is_told(self):
        model, _ = seeded(Net)
        if hasattr(torch, "float8_e4m3fn"):
            model.register_buffer("small", torch.zeros(3).to(torch.float8_e4m3fn))
        else:
            model.register_buffer("small", torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8))
            self.skipTest("no type of this torch's is a float that the library cannot read")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = self.guard(model, optimizer, state_every=1).attach()
        train(model, optimizer, 2)
        self.assertIn("small", " ".join(guard.not_covered))

    @needs(hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), "post-accumulate-grad hooks")
    def test_hooks_after_accumulation(self):
        model, optimizer = seeded(Net)
        model.first.weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.clamp_(-1, 1))
        self.assertIn("first.weight", self.guard(model, optimizer).not_covered[0])


class TestReport(Case):
    def test_numbers(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            guard = self.guard(model, optimizer).attach()
            train(model, optimizer, 1, device)
            report = guard.last
            exact = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
            self.assertTrue(report.ok)
            self.assertIsNone(report.first_bad)
            self.assertEqual(report.bad, [])
            self.assertAlmostEqual(report.total_norm, float(exact.norm()), delta=1e-9)
            self.assertAlmostEqual(report.norms["last.weight.grad"], float(model.last.weight.grad.double().norm()),
                                   delta=1e-9)
            self.assertIn("all 6 tensors are finite, gradient norm", str(report))
            self.assertEqual([row.name for row in report.table][:2], ["first.weight.grad", "first.bias.grad"])
            guard.detach()

    def test_check(self):
        model, optimizer = seeded(lambda: Net(norm=True))
        backward(model, 0)
        self.assertTrue(esper.check(model).ok)
        with torch.no_grad():
            model.norm.running_mean[4] = float("inf")
        report = esper.check(model)
        self.assertEqual(report.first_bad, "norm.running_mean")
        self.assertEqual(str(report), "Inf in norm.running_mean, 1 of 16, first at 4")
        self.assertFalse(report)
        for wrong in (None, model.state_dict()):
            self.assertRaisesRegex(TypeError, "expected a torch.nn.Module", lambda: esper.check(wrong))
        self.assertRaisesRegex(TypeError, "expected a torch.optim.Optimizer", lambda: esper.check(model, model))

    def test_check_and_masks(self):
        model, optimizer = seeded(Masked)
        report = esper.check(model)
        self.assertTrue(report.ok)
        self.assertEqual(len(report.not_covered), 2)
        self.assertIn("mask holds nothing but Inf and zeros, as a mask does: not judged", report.not_covered)
        with torch.no_grad():
            model.mask[0, 0] = float("nan")
        self.assertEqual(esper.check(model).first_bad, "mask")
        with torch.no_grad():
            model.mask[0, 0] = 0.0
            model.scale[1] = float("inf")
        self.assertEqual(esper.check(model).first_bad, "scale")

    def test_gradients_that_are_still_scaled(self):
        """A fused optimiser under a GradScaler that the guard was not told of; its scale changes before it is read."""
        from test_guard_policy import FlagSGD
        model, optimizer = seeded(Net, optimizer=FlagSGD, lr=0.0)
        guard = self.guard(model, optimizer, "skip", state_every=0).attach()
        train(model, optimizer, 2)
        optimizer.zero_grad()
        backward(model, 0)
        exact = {name: float(p.grad.double().norm()) for name, p in model.named_parameters()}
        scale = torch.tensor(1024.0)
        for parameter in model.parameters():
            parameter.grad *= 1024.0
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(0.0), scale
        optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale
        scale.mul_(2.0)
        report = guard.result()
        self.assertAlmostEqual(report.total_norm, math.sqrt(sum(n * n for n in exact.values())), delta=1e-6)
        for row in report.table:
            self.assertAlmostEqual(row.norm, exact[row.name[:-len(".grad")]], delta=1e-6)
        self.assertAlmostEqual(report.norms["last.bias.grad"], exact["last.bias"], delta=1e-6)
        self.assertLess(max(row.max_abs for row in report.table), 10.0)

    def test_launch_does_not_clip(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, clip=1e-3)
        backward(model, 0)
        before = model.first.weight.grad.clone()
        guard.launch().result()
        self.assertTrue(torch.equal(before, model.first.weight.grad))

    def test_launch_and_result(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            guard = self.guard(model, optimizer)
            backward(model, 0, device)
            pending = guard.launch()
            report = pending.result()
            self.assertTrue(report.ok)
            self.assertIs(pending.result(), report)
            guard.inject("first.bias.grad")
            self.assertEqual(guard.launch().result().first_bad, "first.bias.grad")

    def test_gradients_are_not_kept_alive(self):
        import weakref
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip").attach()
        train(model, optimizer, 3)
        kept = [weakref.ref(p.grad) for p in model.parameters()]
        optimizer.zero_grad(set_to_none=True)
        self.assertEqual([k() for k in kept], [None] * 6)


class TestSteps(Case):
    def test_a_result_that_the_step_has_read(self):
        for policy in ("raise", "report"):
            model, optimizer = seeded(Net)
            guard = self.guard(model, optimizer, policy).attach()
            backward(model, 0)
            pending = guard.launch()
            optimizer.step()
            self.assertTrue(pending.result().ok)
            train(model, optimizer, 2)
            guard.detach()

    def test_schedulers_made_before_and_after(self):
        for late in (False, True):
            model, optimizer = seeded(Net)
            if not late:
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            guard = self.guard(model, optimizer, "skip").attach()
            if late:
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            for step in range(3):
                train(model, optimizer, 1)
                scheduler.step()
            self.assertAlmostEqual(optimizer.param_groups[0]["lr"], 1e-2 / 8)
            self.assertEqual(guard.steps, 3)
            guard.detach()
            train(model, optimizer, 1)
            self.assertEqual(guard.steps, 3)
            self.assertEqual(int(optimizer.state[next(model.parameters())]["step"]), 4)

    def test_a_parameter_that_shrinks_where_it_is(self):
        model, optimizer = seeded(Net)
        self.guard(model, optimizer).attach()
        train(model, optimizer, 2)
        model.first.weight.grad = None
        model.first.weight.data = model.first.weight.data[:2]
        model.first.weight.grad = torch.zeros_like(model.first.weight)
        self.assertRaisesRegex(esper.ModelChanged, "first.weight", optimizer.step)

    def test_a_bad_evaluation_ends_the_step(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip")
        good = []

        class Twice(torch.optim.SGD):
            def step(self, closure):
                closure()
                with torch.enable_grad():
                    closure()
                good.append(model.first.weight.grad is not None)

        optimizer = Twice(model.parameters(), lr=0.1)
        guard.detach()
        guard = self.guard(model, optimizer, "skip").attach()
        calls = []

        def closure():
            optimizer.zero_grad()
            loss = backward(model, 0)
            calls.append(loss)
            if len(calls) == 1:
                guard.inject("first.weight.grad")
            return loss

        before = state_of(model, optimizer)
        self.assertIs(optimizer.step(closure), calls[0])
        self.assertEqual((good, len(calls), guard.stepped), ([], 1, False))
        self.assertSameState(before, state_of(model, optimizer))
        optimizer.step(closure)
        self.assertEqual((good, len(calls), guard.stepped), ([True], 3, True))

    def test_evaluations_are_not_steps(self):
        model, optimizer = seeded(Net, optimizer=torch.optim.LBFGS, lr=0.1)
        guard = self.guard(model, optimizer, "skip", max_skips=3, state_every=0).attach()
        calls = []

        def closure():
            optimizer.zero_grad()
            loss = backward(model, 0)
            calls.append(guard.steps)
            if len(calls) > 1 and bad:
                guard.inject("first.weight.grad")
            return loss

        bad = False
        optimizer.step(closure)
        optimizer.step(closure)
        self.assertGreater(len(calls), 4)
        self.assertEqual(guard.steps, 2)

        class Many(torch.optim.SGD):  # a bad step of many evaluations is one bad step
            def step(self, closure):
                for _ in range(8):
                    with torch.enable_grad():
                        closure()

        guard.detach()
        optimizer = Many(model.parameters(), lr=0.1)
        guard = self.guard(model, optimizer, "skip", max_skips=3, state_every=0).attach()
        bad = True
        for _ in range(3):
            optimizer.step(closure)
        self.assertEqual((guard.steps, guard.n_skipped), (3, 3))
        with self.assertRaises(esper.BadGradient):
            optimizer.step(closure)


class TestCompile(Case):
    @needs(hasattr(torch, "compile"), "torch.compile")
    def test_names_without_wrappers(self):
        for device in DEVICES:
            model, _ = seeded(Net, device)
            compiled = torch.compile(model, backend="aot_eager")
            optimizer = torch.optim.AdamW(compiled.parameters())
            guard = self.guard(compiled, optimizer).attach()
            train(compiled, optimizer, 3, device)
            with self.assertRaises(esper.BadGradient) as met:
                train(compiled, optimizer, 1, device, before=lambda step: guard.inject("second.weight.grad", 3))
            self.assertEqual(met.exception.report.first_bad, "second.weight.grad")
            guard.detach()


class TestGraphs(Case):
    @needs(torch.cuda.is_available(), "CUDA")
    def test_launch_in_a_graph(self):
        model, optimizer = seeded(Net, "cuda")
        guard = self.guard(model, optimizer)
        x = torch.randn(12, 6, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                model(x).pow(2).mean().backward()
                self.assertTrue(guard.launch().result().ok)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            model(x).pow(2).mean().backward()
            pending = guard.launch()
        for _ in range(3):
            graph.replay()
            self.assertTrue(pending.result().ok)
        x[3, 2] = float("nan")
        graph.replay()
        report = pending.result()
        self.assertEqual(report.first_bad, "last.bias.grad")  # all are bad: the one next to the loss
        x.zero_()
        graph.replay()
        self.assertTrue(pending.result().ok)

    @needs(can_fuse("cuda"), "CUDA and fused AdamW that is told through found_inf")
    def test_whole_step_in_a_graph(self):
        model, optimizer = seeded(Net, "cuda", fused=True, capturable=True)
        guard = self.guard(model, optimizer, "skip", state_every=0).attach()
        x = torch.randn(12, 6, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                model(x).pow(2).mean().backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(stream)
        guard.result()
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            model(x).pow(2).mean().backward()
            optimizer.step()
        graph.replay()
        self.assertTrue(guard.result().ok)
        before = state_of(model, optimizer)
        good = x.clone()
        x[0, 0] = float("inf")
        graph.replay()
        self.assertEqual(guard.result().first_bad, "last.bias.grad")
        self.assertSameState(before, state_of(model, optimizer))
        x.copy_(good)
        graph.replay()
        self.assertTrue(guard.result().ok)
        self.assertFalse(torch.equal(before["first.weight"], model.first.weight))

    @needs(can_fuse("cuda"), "CUDA and fused AdamW that is told through found_inf")
    def test_two_optimizers_in_a_graph(self):
        """Both pass over what is bad in a replay."""
        torch.manual_seed(3)
        model = Net().to("cuda")
        optimizers = [torch.optim.AdamW(part, lr=1e-2, fused=True, capturable=True) for part in (
            [*model.first.parameters(), *model.second.parameters()], model.last.parameters())]
        guard = self.guard(model, optimizers, "skip", state_every=0).attach()
        x = torch.randn(12, 6, device="cuda")

        def step():
            model(x).pow(2).mean().backward()
            for optimizer in optimizers:
                optimizer.step()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                model.zero_grad(set_to_none=True)
                step()
        torch.cuda.current_stream().wait_stream(stream)
        guard.result()
        graph = torch.cuda.CUDAGraph()
        model.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            step()
        graph.replay()
        self.assertTrue(guard.result().ok)
        before = [state_of(model, optimizer) for optimizer in optimizers]
        good = x.clone()
        x[0, 0] = float("inf")
        graph.replay()
        self.assertFalse(guard.result().ok)
        for known, optimizer in zip(before, optimizers):
            self.assertSameState(known, state_of(model, optimizer))
        x.copy_(good)
        graph.replay()
        self.assertTrue(guard.result().ok)
        for name in ("first.weight", "last.weight"):
            self.assertFalse(torch.equal(before[0][name], model.get_parameter(name)))

    @needs(torch.cuda.is_available(), "CUDA")
    def test_steps_between_replays(self):
        """A step outside of the graph, with gradients elsewhere: the graph's scan goes on reading its own."""
        model, optimizer = seeded(Net, "cuda")
        guard = self.guard(model, optimizer).attach()
        x = torch.randn(12, 6, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                model(x).pow(2).mean().backward()
                self.assertTrue(guard.launch().result().ok)
        torch.cuda.current_stream().wait_stream(stream)
        guard.result()
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            model(x).pow(2).mean().backward()
            pending = guard.launch()
        captured = [p.grad for p in model.parameters()]
        graph.replay()
        self.assertTrue(pending.result().ok)
        train(model, optimizer, 3, "cuda")  # at other addresses
        self.assertTrue(guard.result().ok)
        x[3, 2] = float("nan")
        graph.replay()
        self.assertEqual(pending.result().first_bad, "last.bias.grad")
        self.assertTrue(bool(torch.isnan(captured[0]).any()))
        train(model, optimizer, 1, "cuda")
        self.assertTrue(guard.result().ok)
        x.zero_()
        guard.refresh()
        graph.replay()
        self.assertTrue(pending.result().ok)

    def captured(self, guard, run):
        """run() as under capture, as far as the guard can tell."""
        guard._machine.capturing = lambda: True
        try:
            return run()
        finally:
            del guard._machine.capturing

    def test_captured_scans_are_left_alone(self):
        model, optimizer = seeded(Net, optimizer=torch.optim.SGD)
        guard = self.guard(model, optimizer).attach()
        train(model, optimizer, 1)
        pending = self.captured(guard, guard.launch)
        scanner = pending._scanners[0]
        addresses = list(scanner.pointers)
        kept = [p.grad for p in model.parameters()]
        self.assertEqual(addresses, [grad.data_ptr() for grad in kept])
        for step in range(40):  # more patterns than are kept
            optimizer.zero_grad(set_to_none=True)
            backward(model, step)
            for i, parameter in enumerate(model.parameters()):
                if step >> i & 1:
                    parameter.grad = None
            optimizer.step()
        guard.refresh()
        train(model, optimizer, 1)
        self.assertEqual((scanner.pointers, bool(scanner._handle)), (addresses, True))
        self.assertTrue(pending.result().ok)

    def test_a_step_in_a_graph_says_what_a_replay_does(self):
        from test_guard_policy import FlagSGD
        for kind, on_bad, words in ((torch.optim.SGD, "raise", "makes the step, bad or not"),
                                    (FlagSGD, "skip", "passes over a bad one on the device")):
            model, optimizer = seeded(Net, optimizer=kind)
            guard = self.guard(model, optimizer, on_bad, state_every=0).attach()
            train(model, optimizer, 2)
            guard.result()
            backward(model, 0)
            self.captured(guard, optimizer.step)
            self.assertIn(words, self.lines[-1])
            guard._machine.underway.captured[0].result()
            guard.detach()

    def test_all_optimizers_of_a_step_in_a_graph_are_told(self):
        from test_guard_policy import FlagSGD
        torch.manual_seed(3)
        model = Net()
        optimizers = [FlagSGD(part.parameters()) for part in (model.first, model.second, model.last)]
        guard = self.guard(model, optimizers, "skip", state_every=0).attach()
        for i in range(3):
            model.zero_grad(set_to_none=True)
            backward(model, i)
            if i < 2:
                for optimizer in optimizers:
                    optimizer.step()
        guard.result()
        guard.inject("last.bias.grad")
        self.captured(guard, lambda: [optimizer.step() for optimizer in optimizers])
        self.assertEqual([optimizer.seen[-1] for optimizer in optimizers], [1.0] * 3)
        guard._machine.underway.captured[0].result()

    def test_what_cannot_be_captured(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer)
        backward(model, 0)
        guard.launch().result()
        for scan in ("param", ("grad", "buffer")):
            with self.assertRaisesRegex(esper.Unsupported, "a CUDA graph holds scans of gradients only"):
                self.captured(guard, lambda: guard.launch(scan))
        guard.launch()
        with self.assertRaisesRegex(esper.GuardError, "was not read yet"):
            self.captured(guard, guard.launch)
        guard.result()
        model.first.weight.grad = torch.zeros(16, 12)[:, ::2]
        guard.launch().result()
        with self.assertRaisesRegex(esper.Unsupported, "first.weight: its gradient is sparse, complex or a view"):
            self.captured(guard, guard.launch)


class TestOff(Case):
    def test_environment(self):
        os.environ["ESPER_GUARD"] = "0"
        self.addCleanup(os.environ.pop, "ESPER_GUARD")
        model, optimizer = seeded(Net)
        guard = esper.Guard(model, optimizer, "rollback").attach()
        before = optimizer.__dict__.get("step")
        train(model, optimizer, 2, before=lambda step: guard.inject("first.weight.grad"))
        guard.step(optimizer)
        self.assertIsNone(before)
        self.assertIsNone(guard.last)
        self.assertTrue(guard.snapshot() and guard.launch().result().ok and esper.check(model).ok)
        self.assertEqual((guard.not_covered, guard.memory()["host"]), ([], 0))
        guard.rollback()
        guard.refresh()
        guard.detach()


if __name__ == "__main__":
    unittest.main()
