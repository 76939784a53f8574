# ctest: timeout=300
"""What is done about a bad tensor, on every path: waiting, told on the device, with GradScaler."""
import collections
import os
import types
import unittest

from guard_cases import DEVICES, HAS_HOOKS, Case, Net, backward, can_fuse, seeded, state_of, train

import torch

import esper


class FlagSGD(torch.optim.Optimizer):
    """An optimiser that is told through found_inf, for versions of torch whose own are not."""

    _step_supports_amp_scaling = True

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.seen = []

    @torch.no_grad()
    def step(self, closure=None):
        found = getattr(self, "found_inf", None)
        self.seen.append(None if found is None else float(found))
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1
                    if not self.seen[-1]:
                        parameter.add_(parameter.grad, alpha=-group["lr"])


class PlainScaler:
    """What of GradScaler the guard and the loop use, on the CPU, for versions of torch that have none there."""

    def __init__(self):
        self._scale = 1024.0
        self._per_optimizer_states = collections.defaultdict(lambda: {"found_inf_per_device": {}})

    def is_enabled(self):
        return True

    def scale(self, loss):
        return loss * self._scale

    def unscale_(self, optimizer):
        bad = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(1 / self._scale)
                bad = bad or not bool(torch.isfinite(parameter.grad).all())
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {"cpu": torch.full((1,), float(bad))}

    def step(self, optimizer):
        state = self._per_optimizer_states[id(optimizer)]
        if not state["found_inf_per_device"]:
            self.unscale_(optimizer)
        if not any(bool(t) for t in state["found_inf_per_device"].values()):
            optimizer.step()

    def update(self):
        found = any(bool(t) for s in self._per_optimizer_states.values() for t in s["found_inf_per_device"].values())
        self._scale *= 0.5 if found else 1.0
        self._per_optimizer_states.clear()


def scalers():
    """(device, maker) for every GradScaler there is here."""
    found = [("cpu", PlainScaler)]
    if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        found += [(device, lambda device=device: torch.amp.GradScaler(device, init_scale=1024.0)) for device in DEVICES]
    elif torch.cuda.is_available():
        found.append(("cuda", lambda: torch.cuda.amp.GradScaler(init_scale=1024.0)))
    return found


class TestPolicies(Case):
    def test_raise_leaves_the_optimizer_untouched(self):
        for device in DEVICES:
            model, optimizer = seeded(Net, device)
            guard = self.guard(model, optimizer).attach()
            train(model, optimizer, 3, device)
            before = state_of(model, optimizer)
            with self.assertRaises(esper.BadGradient):
                train(model, optimizer, 1, device, 3, lambda step: guard.inject("last.bias.grad"))
            self.assertSameState(before, state_of(model, optimizer))
            train(model, optimizer, 1, device, 3)  # who catches it may go on
            self.assertTrue(guard.last.ok)
            guard.detach()

    def test_report_goes_on(self):
        model, optimizer = seeded(Net, optimizer=torch.optim.SGD)
        guard = self.guard(model, optimizer, "report").attach()
        self.assertIn("no wait", guard.mode)
        train(model, optimizer, 3, before=lambda step: step == 1 and guard.inject("last.bias.grad"))
        guard.detach()
        told = [line for line in self.lines if "last.bias" in line]
        self.assertIn("step 2: NaN in last.bias.grad, 1 of 3, first at 0; reported only; the step was made", told)
        self.assertTrue(bool(torch.isnan(model.last.bias).any()))

    def test_report_is_told_at_powers_of_two(self):
        model, optimizer = seeded(Net, optimizer=torch.optim.SGD)
        guard = self.guard(model, optimizer, "report", state_every=0).attach()
        train(model, optimizer, 40, before=lambda step: step >= 10 and guard.inject("last.bias.grad"))
        guard.result()
        told = [line for line in self.lines if "reported only" in line]
        self.assertEqual([line.split(":")[0] for line in told],
                         ["step 11", "step 12", "step 14", "step 18", "step 26"])
        self.assertIn("NaN in last.bias.grad", told[0])
        self.assertTrue(told[2].endswith("(4 times so far; told again at 8)"), told[2])
        self.assertEqual(guard.last.step, 40)

    def test_skip_waits_for_others(self):
        for device in DEVICES:
            for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad):
                model, optimizer = seeded(Net, device, optimizer=kind)
                guard = self.guard(model, optimizer, "skip").attach()
                self.assertIn("one wait", guard.mode)
                train(model, optimizer, 3, device)
                before = state_of(model, optimizer)
                train(model, optimizer, 2, device, 3, lambda step: guard.inject("second.bias.grad", 3))
                self.assertSameState(before, state_of(model, optimizer))
                self.assertEqual((guard.n_skipped, guard.steps), (2, 5))
                self.assertTrue(torch.isnan(model.second.bias.grad[3]))  # there for who wants to look
                train(model, optimizer, 1, device, 5)
                self.assertFalse(torch.equal(before["first.weight"], model.first.weight))
                guard.detach()
        self.assertEqual(sum("step skipped, optimizer untouched" in line for line in self.lines), 8 * len(DEVICES))

    def test_skip_with_a_closure(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip").attach()
        before = state_of(model, optimizer)

        def closure():
            optimizer.zero_grad()
            loss = backward(model, 0)
            guard.inject("first.bias.grad")
            return loss

        self.assertTrue(float(optimizer.step(closure)) > 0)
        self.assertSameState(before, state_of(model, optimizer))

    def test_too_many_in_a_row(self):
        for policy in ("skip", "rollback"):
            model, optimizer = seeded(Net)
            guard = self.guard(model, optimizer, policy, max_skips=3, max_rollbacks=1).attach()
            train(model, optimizer, 2)
            with self.assertRaises(esper.BadGradient) as met:
                train(model, optimizer, 20, start=2, before=lambda step: guard.inject("second.bias.grad"))
            self.assertEqual(guard.n_rollbacks, policy == "rollback")
            self.assertIn("4 bad steps in a row" if policy == "skip" else "1 rollback made already: max_rollbacks=1",
                          str(met.exception))
            guard.detach()

    def test_skip_cannot_mend_state(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip").attach()
        train(model, optimizer, 2)
        guard.inject("first.weight")
        with self.assertRaises(esper.BadState) as met:
            train(model, optimizer, 2)
        self.assertIn("on_bad='rollback' could", str(met.exception))

    def test_callable(self):
        asked = []
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, lambda report: asked.append(report) or answers.pop(0)).attach()
        answers = ["skip", "report"]
        before = state_of(model, optimizer)
        train(model, optimizer, 1, before=lambda step: guard.inject("second.bias.grad"))
        self.assertSameState(before, state_of(model, optimizer))
        train(model, optimizer, 1, before=lambda step: guard.inject("second.bias.grad"))
        self.assertEqual([report.first_bad for report in asked], ["second.bias.grad"] * 2)
        self.assertTrue(bool(torch.isnan(model.second.bias).any()))
        for answers in (["perhaps"], [True]):
            with self.assertRaisesRegex(ValueError, "has to return one of 'raise', 'report', 'skip', 'rollback'"):
                train(model, optimizer, 1)

    def test_clip(self):
        for device in DEVICES:
            for policy in ("raise", "report", "skip"):
                model, optimizer = seeded(Net, device)
                guard = self.guard(model, optimizer, policy, clip=0.01).attach()
                train(model, optimizer, 2, device)
                report = guard.result()
                after = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
                self.assertGreater(report.total_norm, 0.01)
                self.assertAlmostEqual(float(after), 0.01, delta=1e-6)
                guard.detach()


    def test_clip_of_what_one_launch_does_not_see(self):
        """A view with gaps: scanned as a copy, clipped where it lies. With GradScaler too."""
        for on_bad in ("raise", "report", "skip"):
            for make in (lambda: None, PlainScaler):
                for kind in (torch.optim.SGD, FlagSGD):
                    model, optimizer = seeded(Net, optimizer=kind, lr=0.0)
                    scaler = make()
                    guard = self.guard(model, optimizer, on_bad, clip=0.01, state_every=0).attach(scaler)
                    for step in range(3):
                        optimizer.zero_grad(set_to_none=True)
                        backward(model, step)
                        wide = torch.zeros(8, 32)
                        wide[:, ::2] = model.second.weight.grad
                        model.second.weight.grad = wide[:, ::2]
                        exact = float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
                        if scaler is None:
                            optimizer.step()
                        else:
                            for parameter in model.parameters():
                                parameter.grad *= scaler._scale
                            scaler.step(optimizer)
                            scaler.update()
                        after = float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
                        self.assertGreater(exact, 0.02)
                        self.assertAlmostEqual(after, 0.01, delta=1e-6)
                        self.assertAlmostEqual(guard.result().total_norm, exact, delta=1e-5)
                    self.assertTrue("wait" in guard.mode and ("one wait" in guard.mode or "clip= waits" in guard.mode))
                    guard.detach()


class HookedSGD(torch.optim.SGD):
    """An optimiser with step hooks as torch 2 calls them, for versions that have none."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pre, self.post = [], []

    def register_step_pre_hook(self, hook):
        return self._register(self.pre, hook)

    def register_step_post_hook(self, hook):
        return self._register(self.post, hook)

    @staticmethod
    def _register(hooks, hook):
        hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: hooks.remove(hook))

    def step(self, *args, **kwargs):
        args = (self, *args)
        for hook in self.pre:
            args, kwargs = hook(self, args, kwargs) or (args, kwargs)
        loss = super().step(*args[1:], **kwargs)
        for hook in self.post:
            hook(self, args, kwargs)
        return loss


class TestHooks(Case):
    def test_a_method_that_was_taken_before(self):
        """Where there are hooks they meet it: the step is made whatever they say, but without gradients."""
        model, optimizer = seeded(Net, optimizer=torch.optim.SGD if HAS_HOOKS else HookedSGD)
        step = optimizer.step
        guard = self.guard(model, optimizer, "skip").attach()
        for bad in (False, True, False):
            before = state_of(model, optimizer)
            optimizer.zero_grad()
            backward(model, 0)
            if bad:
                guard.inject("first.bias.grad")
            step()
            same = torch.equal(before["first.weight"], model.first.weight)
            self.assertEqual((same, guard.stepped), (bad, not bad))
            self.assertIsNotNone(model.first.bias.grad)
        self.assertEqual((guard.steps, guard.n_skipped), (3, 1))
        self.assertRaisesRegex(esper.GuardError, "call optimizer.step.closure. itself", step, lambda: None)
        step()
        self.assertEqual(guard.steps, 4)

    def test_skip_and_detach(self):
        kind = torch.optim.SGD if HAS_HOOKS else HookedSGD
        for by_closure in (None, "positional", "keyword"):
            model, optimizer = seeded(Net, optimizer=kind)
            guard = self.guard(model, optimizer, "skip").attach()
            poison = [True]

            def closure():
                optimizer.zero_grad()
                loss = backward(model, 0)
                if poison[0]:
                    guard.inject("first.bias.grad")
                return loss

            def step():
                if by_closure is None:
                    closure()
                    optimizer.step()
                elif by_closure == "positional":
                    optimizer.step(closure)
                else:
                    optimizer.step(closure=closure)

            before = state_of(model, optimizer)
            step()
            self.assertSameState(before, state_of(model, optimizer))
            self.assertTrue(bool(torch.isnan(model.first.bias.grad[0])))
            poison[0] = False
            step()
            self.assertFalse(torch.equal(before["first.bias"], model.first.bias))
            self.assertEqual((guard.steps, guard.n_skipped), (2, 1))
            guard.detach()
            step()
            self.assertEqual(guard.steps, 2)


    def test_a_class_that_calls_its_base(self):
        """torch runs the hooks of both: it is one step all the same."""
        class Outer(torch.optim.SGD if HAS_HOOKS else HookedSGD):
            broken = False

            def step(self, *args, **kwargs):
                if HAS_HOOKS:
                    return self.inner(*args, **kwargs)
                args = (self, *args)
                for hook in self.pre:
                    args, kwargs = hook(self, args, kwargs) or (args, kwargs)
                loss = self.inner(*args[1:], **kwargs)
                for hook in self.post:
                    hook(self, args, kwargs)
                return loss

            def inner(self, *args, **kwargs):
                if self.broken:
                    raise ZeroDivisionError
                return super().step(*args, **kwargs)

        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        for by_closure in (False, True):
            model, optimizer = seeded(Net, optimizer=Outer)
            guard = self.guard(model, optimizer, "skip", state_every=1).attach()
            for step in range(6):
                optimizer.broken = step == 2
                optimizer.zero_grad()
                if not by_closure:
                    backward(model, step)
                try:
                    optimizer.step(*([lambda: backward(model, step)] if by_closure else []))
                except ZeroDivisionError:
                    pass
            broken = 1 if not by_closure else 0  # the closure had not been called yet
            self.assertEqual(guard.steps, 5 + broken)
            self.assertEqual(guard.last.step, 5 + broken)
            guard.detach()


class TestFlag(Case):
    """No wait: the optimiser is told on the device."""

    def kinds(self):
        yield "cpu", FlagSGD, {}
        for device in DEVICES:
            if can_fuse(device):
                yield device, torch.optim.AdamW, {"fused": True}
                yield device, torch.optim.Adam, {"fused": True}
                try:
                    torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device=device))], lr=0.1, fused=True)
                except (TypeError, RuntimeError):
                    continue
                yield device, torch.optim.SGD, {"fused": True, "momentum": 0.9}
                yield device, torch.optim.SGD, {"fused": True}

    def test_a_bad_step_is_passed_over_and_told_later(self):
        for device, kind, options in self.kinds():
            with self.subTest(device=device, kind=kind.__name__, **options):
                model, optimizer = seeded(Net, device, optimizer=kind, **options)
                guard = self.guard(model, optimizer, "skip").attach()
                self.assertIn("found_inf", guard.mode)
                train(model, optimizer, 3, device)
                before = state_of(model, optimizer)
                count = len(self.lines)
                train(model, optimizer, 1, device, 3, lambda step: guard.inject("second.weight.grad", 6))
                if kind is not FlagSGD:  # which counts what it passes over
                    self.assertSameState(before, state_of(model, optimizer))
                self.assertTrue(torch.equal(before["second.weight"], model.second.weight))
                self.assertEqual((len(self.lines), guard.last.step), (count, 3))  # nobody has waited
                train(model, optimizer, 1, device, 4)
                self.assertFalse(torch.equal(before["second.weight"], model.second.weight))
                self.assertEqual((guard.last.step, guard.last.first_bad), (4, "second.weight.grad"))
                self.assertIn("step 4: NaN in second.weight.grad, 1 of 128, first at 6; step skipped", self.lines[-1])
                self.assertTrue(guard.result().ok)
                self.assertFalse(hasattr(optimizer, "found_inf"))
                guard.detach()

    def test_rollback_from_there(self):
        for device, kind, options in self.kinds():
            with self.subTest(device=device, kind=kind.__name__, **options):
                model, optimizer = seeded(Net, device, optimizer=kind, **options)
                guard = self.guard(model, optimizer, "rollback", snapshot=esper.Snapshots(every=4)).attach()
                train(model, optimizer, 6, device)
                before = {}
                guard.inject("last.weight", 2)
                train(model, optimizer, 2, device, 6, lambda step: before.update(state_of(model, optimizer)))
                self.assertEqual((guard.n_rollbacks, guard.steps), (1, 4))
                self.assertTrue(esper.check(model, optimizer).ok or not torch.isfinite(model.last.weight.grad).all())
                self.assertTrue(bool(torch.isfinite(model.last.weight).all()))
                guard.detach()

    def test_a_step_that_breaks_off_leaves_no_flag(self):
        class Breaking(FlagSGD):
            def step(self, closure=None):
                if len(self.seen) == 3:
                    self.seen.append(NotImplemented)
                    raise KeyError("broken")
                super().step(closure)

        model, optimizer = seeded(Net, optimizer=Breaking)
        guard = self.guard(model, optimizer, "skip", state_every=0).attach()
        with self.assertRaises(KeyError):
            train(model, optimizer, 5)
        train(model, optimizer, 1, before=lambda step: guard.inject("last.bias.grad"))
        self.assertFalse(guard.result().ok)
        self.assertTrue(guard.last.alarm)
        self.assertIn("step skipped", self.lines[-1])

    def test_a_group_added_later_waits(self):
        """Fused SGD leaves the momentum of a first step that it passes over unset."""
        model, optimizer = seeded(Net, optimizer=FlagSGD)
        guard = self.guard(model, optimizer, "skip", state_every=0).attach()
        train(model, optimizer, 3)
        more = torch.nn.Parameter(torch.ones(3))
        optimizer.add_param_group({"params": [more]})

        def give(step):
            more.grad = torch.ones(3)

        train(model, optimizer, 2, start=3, before=give)
        more.grad = None
        train(model, optimizer, 1, start=5)
        self.assertEqual(optimizer.seen, [None, 0.0, 0.0, None, 0.0, 0.0])
        for device, kind, options in self.kinds():
            if options.get("momentum") is None:
                continue
            model, optimizer = seeded(Net, device, optimizer=kind, **options)
            guard = self.guard(model, optimizer, "skip", state_every=0).attach()
            train(model, optimizer, 3, device)
            more = torch.nn.Parameter(torch.ones(3, device=device))
            optimizer.add_param_group({"params": [more]})

            def give_on_device(step):
                more.grad = torch.ones(3, device=device)
                if step == 3:
                    guard.inject("last.bias.grad")

            train(model, optimizer, 3, device, 3, give_on_device)
            guard.result()
            self.assertEqual(guard.n_skipped, 1)
            self.assertTrue(torch.allclose(optimizer.state[more]["momentum_buffer"].cpu(), torch.full((3,), 1.9)))
            guard.detach()

    def test_first_step_waits(self):
        model, optimizer = seeded(Net, optimizer=FlagSGD)
        guard = self.guard(model, optimizer, "skip").attach()
        train(model, optimizer, 2)
        self.assertEqual(optimizer.seen, [None, 0.0])


class TestScaler(Case):
    def test_unscaled_values_and_no_alarm(self):
        for device, make in scalers():
            for attached in (True, False):
                with self.subTest(device=device, attached=attached):
                    model, optimizer = seeded(Net, device)
                    scaler = make()
                    guard = self.guard(model, optimizer, "raise")
                    if attached:
                        guard.attach(scaler=scaler)
                    self.run_scaled(model, optimizer, scaler, guard, device, attached)
                    guard.detach()
        self.assertEqual([line for line in self.lines if "NaN" in line or "Inf" in line], [])

    def run_scaled(self, model, optimizer, scaler, guard, device, attached):
        norms = []
        for step in range(8):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(12, 6, generator=generator).to(device)
            scaler.scale(model(x).pow(2).mean()).backward()
            if step == 5:
                guard.inject("second.weight.grad", 4, "inf")
            before = state_of(model, optimizer)
            if attached:
                scaler.step(optimizer)
            else:
                guard.step(optimizer, scaler)
            scaler.update()
            report = guard.result()
            self.assertEqual(report.step, step + 1)
            if step == 5:
                self.assertEqual(report.first_bad, "second.weight.grad")
                self.assertFalse(report.alarm)
                self.assertSameState(before, state_of(model, optimizer))
            else:
                self.assertTrue(report.ok)
                exact = torch.cat([p.grad.flatten() for p in model.parameters()]).double().norm()
                norms.append((report.total_norm, float(exact)))
        for told, exact in norms:
            self.assertAlmostEqual(told, exact, delta=1e-6 * exact)

    def test_bad_state_is_an_alarm(self):
        for device, make in scalers():
            model, optimizer = seeded(Net, device)
            scaler = make()
            guard = self.guard(model, optimizer, "raise").attach(scaler=scaler)
            with self.assertRaises(esper.BadState) as met:
                for step in range(6):
                    optimizer.zero_grad()
                    scaler.scale(backward_loss(model, device)).backward()
                    if step == 3:
                        guard.inject("first.weight", 1)
                        optimizer.zero_grad()
                        scaler.scale(backward_loss(model, device)).backward()
                    scaler.step(optimizer)
                    scaler.update()
            self.assertEqual(met.exception.report.first_bad, "first.weight")
            guard.detach()

    def test_backing_off_for_ever_is_an_alarm(self):
        model, optimizer = seeded(Net)
        scaler = PlainScaler()
        guard = self.guard(model, optimizer, "raise", max_skips=4).attach(scaler=scaler)
        with self.assertRaises(esper.BadGradient):
            for step in range(9):
                optimizer.zero_grad()
                scaler.scale(backward_loss(model, "cpu")).backward()
                guard.inject("first.bias.grad")
                scaler.step(optimizer)
                scaler.update()
        self.assertEqual(guard.last.step, 5)

    def test_wrapped_by_others(self):
        """Somebody wraps scaler.step after the guard, which comes and goes: every step counts once."""
        model, optimizer = seeded(Net)
        scaler = PlainScaler()
        mine = scaler.step
        scaler.step = lambda optimizer: mine(optimizer)  # and before it
        own = scaler.step
        guard = self.guard(model, optimizer).attach(scaler)
        guard.detach()
        self.assertIs(scaler.step, own)
        guard.attach(scaler)
        inner = scaler.step
        scaler.step = lambda optimizer: inner(optimizer)
        outer = scaler.step
        guard.detach()
        self.assertIs(scaler.step, outer)
        guard.attach(scaler)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(backward_loss(model, "cpu")).backward()
            scaler.step(optimizer=optimizer)
            scaler.update()
        self.assertEqual((guard.steps, guard.result().step), (3, 3))
        with self.assertRaisesRegex(esper.GuardError, "attached already, without that scaler"):
            guard.attach(PlainScaler())

    def test_fused_without_being_told_of_the_scaler(self):
        tried = 0
        for device, make in scalers():
            if make is PlainScaler or not can_fuse(device):
                continue
            tried += 1
            model, optimizer = seeded(Net, device, fused=True)
            scaler = make()
            guard = self.guard(model, optimizer, "skip").attach()
            for step in range(6):
                optimizer.zero_grad()
                scaler.scale(backward_loss(model, device)).backward()
                exact = torch.cat([p.grad.flatten() for p in model.parameters()]).double().norm() / scaler.get_scale()
                if step == 4:
                    guard.inject("first.bias.grad")
                before = state_of(model, optimizer)
                scaler.step(optimizer)
                scaler.update()
                report = guard.result()
                if step == 4:
                    self.assertEqual((report.first_bad, report.alarm), ("first.bias.grad", False))
                    self.assertSameState(before, state_of(model, optimizer))
                else:
                    self.assertAlmostEqual(report.total_norm, float(exact), delta=1e-5 * float(exact))
            guard.detach()
        if not tried:
            self.skipTest("needs a fused optimizer and a GradScaler on one device; this is torch " + torch.__version__)


def backward_loss(model, device):
    return model(torch.ones(4, 6, device=device)).pow(2).mean()


class TestWith(Case):
    def test_the_body_s_exception_comes_out(self):
        for role in ("first.weight.grad", "first.weight"):
            model, optimizer = seeded(Net)
            guard = self.guard(model, optimizer, "report", state_every=1)
            guard._machine.at_once = False
            guard._machine.policy._on_bad = "report" if role.endswith("grad") else "skip"  # which raises for bad state
            with self.assertRaises(KeyError):
                with guard:
                    train(model, optimizer, 1)
                    guard.result()
                    train(model, optimizer, 1, before=lambda step: guard.inject(role))
                    raise KeyError("mine")
            told = [line for line in self.lines if "ended with an exception" in line]
            self.assertTrue(any(f"NaN in {role}," in line for line in told), told)
            self.assertNotIn("step", vars(optimizer))
            guard.detach()

    def test_what_is_on_its_way_is_raised_otherwise(self):
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "skip", state_every=1)
        guard._machine.at_once = False
        with self.assertRaises(esper.BadState):
            with guard:
                train(model, optimizer, 1, before=lambda step: guard.inject("first.weight"))


class TestOff(Case):
    """ESPER_GUARD=0."""

    def off(self, value="0"):
        os.environ["ESPER_GUARD"] = value
        self.addCleanup(os.environ.pop, "ESPER_GUARD", None)

    def test_values(self):
        for value, enabled in (("0", False), ("False", False), ("OFF", False), ("no", False), ("", True), ("1", True)):
            self.off(value)
            self.assertEqual(esper.Guard(*seeded(Net)).enabled, enabled, value)

    def test_everything_is_there(self):
        self.off()
        model, optimizer = seeded(Net)
        guard = self.guard(model, optimizer, "rollback").attach()
        with guard:
            train(model, optimizer, 2)
        self.assertEqual((guard.mode, guard.last, guard.steps, guard.not_covered, guard.n_skipped, guard.memory()),
                         ("off (ESPER_GUARD)", None, 0, [], 0, {"device": 0, "host": 0}))
        self.assertTrue(guard.snapshot())
        self.assertIsNone(guard.result())
        self.assertNotIn("step", vars(optimizer))
        self.assertIsNone(guard.rollback())
        self.assertEqual(self.lines, ["off: ESPER_GUARD=0 is in the environment; nothing is watched"])

    def test_arguments_are_looked_at_all_the_same(self):
        self.off()
        model, optimizer = seeded(Net)
        other = torch.optim.SGD(Net().parameters(), lr=0.1)
        for wrong in ({"on_bad": "ignore"}, {"scan": ()}, {"clip": -1}, {"clip": "1"}, {"max_skips": None}, {"log": 3},
                      {"snapshot": 200}, {"state": []}, {"lr_backoff": 2}, {"group": "some"}, {"optimizer": other}):
            with self.assertRaises((TypeError, ValueError, esper.GuardError), msg=str(wrong)):
                esper.Guard(model, wrong.pop("optimizer", optimizer), **wrong)
        guard = self.guard(model, optimizer)
        self.assertRaises(ValueError, guard.launch, ())
        self.assertRaises(ValueError, guard.inject, "first.weight", fault="fire")
        report = esper.check(model)
        self.assertEqual((str(report), report.not_covered), ("nothing was scanned", ["everything: ESPER_GUARD is off"]))

    def norms(self, step, optimizer, model, guard, scaler=None):
        """Of the gradients with which steps were made."""
        found = []
        for i in range(3):
            optimizer.zero_grad()
            x = torch.full((4, 6), 100.0)
            loss = model(x).pow(2).mean()
            (loss if scaler is None else scaler.scale(loss)).backward()
            step()
            found.append(float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm()))
            if scaler is not None:
                scaler.update()
        return found

    def test_clips_all_the_same(self):
        self.off()
        for attached in (True, False):
            for make in (lambda: None, PlainScaler):
                model, optimizer = seeded(Net, optimizer=torch.optim.SGD, lr=1e-6)
                guard, scaler = self.guard(model, optimizer, clip=0.5), make()
                if attached:
                    guard.attach(scaler)
                if not attached:
                    def step():
                        guard.step(optimizer, scaler)
                elif scaler is None:
                    step = optimizer.step
                else:
                    def step():
                        scaler.step(optimizer)
                for norm in self.norms(step, optimizer, model, guard, scaler):
                    self.assertAlmostEqual(norm, 0.5, places=4)
                guard.detach()
                model, optimizer = seeded(Net, optimizer=torch.optim.SGD, lr=1e-6)
                self.assertGreater(self.norms(optimizer.step, optimizer, model, guard)[0], 10)


if __name__ == "__main__":
    unittest.main()
