# ctest: timeout=200
"""spikes=esper.Spikes() and guard.loss(): divergence that is still finite. guard_divergence.py has the full counts."""
import math
import random
import unittest

import guard_cases as cases
import guard_divergence
import torch
from test_guard_policy import FlagSGD, scalers

import esper
from esper._spikes import MAX_PARTS, MIN_HISTORY, RECENT, Judge, Signal

INF, NAN = float("inf"), float("nan")


def signal(jumps=True, drifts=False, **options):
    return Signal("loss" if drifts else "gradient norm", esper.Spikes(**options), jumps, drifts)


def fed(one, values):
    """The alarms, by place."""
    return [i for i, value in enumerate(values) if one.judge(value) is not None]


class TestRules(unittest.TestCase):
    def setUp(self):
        self.chance = random.Random(1)

    def noise(self, count, middle=1.0, width=0.3):
        return [middle * math.exp(width * self.chance.gauss(0, 1)) for _ in range(count)]

    def test_a_jump(self):
        one = signal()
        self.assertEqual(fed(one, self.noise(200)), [])
        self.assertRegex(one.judge(1e4), r"^the gradient norm jumps to 1e\+04; its median was \d\.\d+$")
        self.assertEqual(fed(one, self.noise(200)), [])

    def test_a_run(self):
        for jumps, drifts in ((False, False), (False, True)):
            one = signal(jumps, drifts)
            self.assertEqual(fed(one, self.noise(200) + [9.0, 9.0] + self.noise(50) + [90.0, 90.0, 90.0]), [254])
        self.assertIn("is far too high 3 times in a row", signal_after(self.noise(200) + [9, 9], 9.0))

    def test_a_drift(self):
        one = signal(False, True)
        values = self.noise(300, width=0.1) + self.noise(60, 2.2, 0.1)
        found = fed(one, values)
        self.assertTrue(315 <= found[0] <= 330, found[:3])
        self.assertIn(f"in half of {RECENT} steps", one.judge(2.2))

    def test_noise_of_every_kind(self):
        """Twenty thousand values of each: normal, with heavy tails, of both signs, falling, rising slowly."""
        kinds = {
            "normal": lambda i: math.exp(0.5 * self.chance.gauss(0, 1)),
            "wide": lambda i: math.exp(2 * self.chance.gauss(0, 1)),
            "heavy": lambda i: self.chance.gauss(0, 1) ** 2 / (self.chance.gauss(0, 1) ** 2 + 0.1),
            "signs": lambda i: self.chance.gauss(0, 1) + 0.1,
            "heavy signs": lambda i: self.chance.gauss(0, 1) / (abs(self.chance.gauss(0, 1)) + 0.2),
            "falling": lambda i: math.exp(-i / 2000 + 0.3 * self.chance.gauss(0, 1)),
            "rising": lambda i: math.exp(i / 2000 + 0.3 * self.chance.gauss(0, 1)),
            "constant": lambda i: 1.0,
            "zeros now and then": lambda i: max(0.0, self.chance.gauss(0, 1)),
        }
        for name, draw in kinds.items():
            for jumps, drifts in ((True, False), (False, True)):
                with self.subTest(name, jumps=jumps):
                    one = signal(jumps, drifts)
                    self.assertEqual(fed(one, (draw(i) for i in range(20000)))[:3], [])

    def test_too_early_to_say(self):
        one = signal()
        self.assertEqual(fed(one, [1.0] * (MIN_HISTORY - 1) + [1e9]), [])

    def test_what_stays_becomes_the_norm(self):
        """Where nobody does anything about it: told, and after a window's length not any more."""
        one = signal(False, False, window=40)
        found = fed(one, self.noise(200) + self.noise(400, 50.0))
        self.assertEqual(found[0], 202)
        self.assertLess(found[-1], 260)

    def test_when_the_first_is_judged(self):
        """What is on its way into the window is not in it yet."""
        for drifts, first in ((False, 33), (True, 70)):
            for before in (first - 1, first):
                one = signal(False, drifts)
                fed(one, [1.0] * before)
                one.judge(1e9)
                self.assertEqual(one.calm, before < first, (drifts, before))

    def test_calm(self):
        one = signal(False, True)
        fed(one, self.noise(200, width=0.1))
        self.assertTrue(one.calm)
        one.judge(9.0)  # the first of a run
        self.assertFalse(one.calm)
        self.assertEqual(fed(one, self.noise(20, width=0.1)), [])
        self.assertTrue(one.calm)
        self.assertEqual(fed(one, self.noise(8, 2.2, 0.1)), [])  # a drift that nobody has told of yet
        self.assertFalse(one.calm)

    def test_state_goes_on(self):
        values = self.noise(150) + [20.0] * 2 + self.noise(20) + [30.0] * 5
        for split in (10, 60, 151, 152, 160, 174):
            one, two = signal(False, True), signal(False, True)
            before = fed(one, values[:split])
            two.load_state_dict(one.state_dict())
            self.assertEqual(before + [split + i for i in fed(two, values[split:])], fed(signal(False, True), values))

    def test_arguments(self):
        for wrong, kind in (({"window": 10}, ValueError), ({"window": 2.5}, ValueError),
                            ({"sensitivity": "6"}, TypeError), ({"sensitivity": 0.5}, ValueError),
                            ({"norm": False, "loss": False}, ValueError)):
            with self.assertRaises(kind):
                esper.Spikes(**wrong)
        self.assertIn("window=150", repr(esper.Spikes()))


def signal_after(values, value):
    one = signal(False, False)
    fed(one, values)
    return one.judge(value)


class TestGuard(cases.Case):
    """In a loop: as for NaN."""

    def loop(self, on_bad, steps=80, start=0, spoil=None, guard=None, **options):
        self.model, self.optimizer = (self.model, self.optimizer) if guard else cases.seeded(cases.Net, lr=1e-3)
        guard = guard or self.guard(self.model, self.optimizer, on_bad, spikes=esper.Spikes(), **options).attach()
        self.go_on(guard, steps, start, spoil)
        return guard

    def go_on(self, guard, steps, start=0, spoil=None):
        for step in range(start, start + steps):
            self.optimizer.zero_grad(set_to_none=True)
            loss = cases.backward(self.model, step)
            if spoil is not None and spoil(step):
                loss = loss * 1e4
                for parameter in self.model.parameters():
                    parameter.grad.mul_(1e4)
            guard.loss(loss)
            self.optimizer.step()

    def test_healthy(self):
        guard = self.loop("raise", 300)
        self.assertEqual((guard.steps, guard.last.ok), (300, True))
        self.assertAlmostEqual(guard.last.loss, float(cases.backward(self.model, 299)), delta=0.5)

    def test_skip(self):
        guard = self.loop("skip", 60)
        before = cases.state_of(self.model, self.optimizer)
        self.go_on(guard, 1, 60, lambda step: True)
        self.assertSameState(before, cases.state_of(self.model, self.optimizer))
        self.assertEqual(guard.n_skipped, 1)
        self.assertRegex(self.lines[-1], r"^step 61: the gradient norm jumps to [\d.e+]+; its median was [\d.]+; step "
                                         "skipped, optimizer untouched$")
        self.assertIn("one wait a step: spikes are judged", guard.mode)
        self.go_on(guard, 40, 61)
        self.assertEqual((guard.n_skipped, guard.last.ok), (1, True))

    def test_raise(self):
        guard = self.loop("raise", 60)
        with self.assertRaises(esper.Spike) as caught:
            self.go_on(guard, 1, 60, lambda step: True)
        self.assertIsInstance(caught.exception, esper.BadGradient)
        self.assertIn("the gradient norm jumps", caught.exception.report.spike)

    def test_report(self):
        guard = self.loop("report", 60)
        self.go_on(guard, 20, 60, lambda step: step == 65)
        told = [line for line in self.lines if line.startswith("step")]
        self.assertEqual(len(told), 1)
        self.assertIn("step 66: the gradient norm jumps", told[0])
        self.assertIn("reported only; the step was made", told[0])
        self.assertIn("no wait", guard.mode)

    def test_rollback_after_skips(self):
        guard = self.loop("rollback", 60, snapshot=esper.Snapshots(every=20), max_skips=3)
        good = cases.state_of(self.model, self.optimizer)
        self.go_on(guard, 3, 60, lambda step: True)
        self.assertEqual((guard.n_skipped, guard.n_rollbacks), (3, 0))
        self.assertSameState(good, cases.state_of(self.model, self.optimizer))
        self.go_on(guard, 1, 63, lambda step: True)
        self.assertEqual((guard.n_rollbacks, guard.steps), (1, 60))
        self.assertIn("rolled back to step 60 (1 of 3)", self.lines[-1])
        self.go_on(guard, 40, 64)
        self.assertEqual((guard.n_rollbacks, guard.last.ok), (1, True))

    def test_a_function(self):
        seen = []
        guard = self.loop(lambda report: seen.append(report.spike) or "skip", 60)
        self.go_on(guard, 2, 60, lambda step: step == 60)
        self.assertEqual(len(seen), 1)

    def test_a_loss_that_is_not_finite(self):
        guard = self.loop("skip", 3)
        self.optimizer.zero_grad()
        cases.backward(self.model, 3)
        guard.loss(INF)
        self.optimizer.step()
        self.assertIn("step 4: the loss is inf; step skipped, optimizer untouched", self.lines[-1])

    def test_without_losses(self):
        """The norm alone."""
        model, optimizer = cases.seeded(cases.Net, lr=1e-3)
        guard = self.guard(model, optimizer, "skip", spikes=esper.Spikes()).attach()
        cases.train(model, optimizer, 60)
        cases.train(model, optimizer, 1, start=60,
                    before=lambda step: [parameter.grad.mul_(1e4) for parameter in model.parameters()])
        self.assertEqual((guard.n_skipped, guard.last.loss), (1, None))

    def test_parts_of_a_step(self):
        model, optimizer = cases.seeded(cases.Net)
        guard = self.guard(model, optimizer, "skip", spikes=esper.Spikes()).attach()
        for part in (1.0, 2.0, torch.tensor(6.0)):
            cases.backward(model, 0)
            guard.loss(part)
        optimizer.step()
        self.assertEqual(guard.last.loss, 3.0)

    def test_gives_the_loss_back(self):
        guard = self.loop("skip", 1)
        loss = torch.ones((), requires_grad=True)
        self.assertIs(guard.loss(loss), loss)

    def test_wrong_ones(self):
        guard = self.loop("skip", 1)
        with self.assertRaisesRegex(TypeError, r"shape \(3,\): expected one number"):
            guard.loss(torch.ones(3))
        with self.assertRaisesRegex(TypeError, "expected a number"):
            guard.loss("high")
        with self.assertRaisesRegex(TypeError, "expected esper.Spikes"):
            esper.Guard(*cases.seeded(cases.Net), spikes=True)
        plain = self.guard(*cases.seeded(cases.Net), "skip")
        with self.assertRaisesRegex(esper.GuardError, r"make it with spikes=esper.Spikes\(\)"):
            plain.loss(1.0)

    def diverging(self, every):
        """Four steps at a rate that is thirty times too high, in a training that is good before and behind them."""
        torch.manual_seed(0)
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        guard = self.guard(model, optimizer, "rollback", spikes=esper.Spikes(),
                           snapshot=esper.Snapshots(every=every)).attach()
        weights = torch.randn(8, 1)
        for step in range(1, 401):
            optimizer.param_groups[0]["lr"] = 1.5 if 299 <= step <= 302 else 0.05
            x = torch.randn(32, 8)
            loss = guard.loss((model(x) - x @ weights).pow(2).mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return guard, float(loss), [line for line in self.lines if "rolled back to" in line]

    def test_no_snapshot_of_a_divergence(self):
        """While values are being counted a snapshot that is due waits."""
        guard, loss, told = self.diverging(every=5)
        self.assertIn("rolled back to step 295 (1 of 3)", told[0])
        self.assertEqual(guard.n_rollbacks, 1)
        self.assertLess(loss, 0.1)

    def test_an_older_snapshot_the_second_time(self):
        """One was taken behind the first bad step, whose loss nobody has seen yet. It has led to a spike again."""
        guard, loss, told = self.diverging(every=1)
        self.assertIn("rolled back to step 299 (1 of 3)", told[0])
        self.assertIn("rolled back to step 298 (2 of 3)", told[1])
        self.assertIn("from the snapshot of step 299 there was a spike again", "".join(self.lines))
        self.assertEqual(guard.n_rollbacks, 2)
        self.assertLess(loss, 0.1)

    def test_a_snapshot_that_waits_is_taken(self):
        guard = self.loop("rollback", 110, snapshot=esper.Snapshots(every=10))
        steps = lambda: [entry.step for entry in guard._machine.ring.good]
        guard._machine.underway.judge._loss.judge(1e3)  # the first of a run
        guard._machine.steps = 119
        self.optimizer.zero_grad()
        cases.backward(self.model, 119)
        self.optimizer.step()  # without a loss: nothing is known about that one
        self.assertEqual((guard.steps, steps()), (120, [100, 110]))
        self.go_on(guard, 1, 120)
        self.assertEqual((guard.steps, steps()), (121, [110, 121]))

    def test_losses_within_locate(self):
        guard = self.loop("skip", 3)
        self.optimizer.zero_grad()
        guard.loss(cases.backward(self.model, 3))
        guard.locate(lambda: guard.loss(cases.backward(self.model, 3) * NAN))
        with self.assertRaises(ZeroDivisionError):
            guard.locate(lambda: guard.loss(1.0 / 0))
        self.optimizer.step()
        self.assertEqual((guard.n_skipped, guard.stepped), (0, True))
        self.assertTrue(math.isfinite(guard.last.loss))

    def test_losses_of_a_step_without_gradients(self):
        guard = self.loop("skip", 3)
        self.optimizer.zero_grad(set_to_none=True)
        guard.loss(NAN)
        self.optimizer.step()
        self.go_on(guard, 1, 3)
        self.assertEqual((guard.n_skipped, guard.stepped), (0, True))

    def test_losses_that_no_step_takes(self):
        guard = self.loop("skip", 3)
        for _ in range(3 * MAX_PARTS):
            guard.loss(1.0)
        self.assertEqual(len(guard._machine.underway.judge._incoming), MAX_PARTS)

    def test_resumes(self):
        guard = self.loop("skip", 60)
        saved = guard.state_dict()
        guard.detach()
        other = self.guard(self.model, self.optimizer, "skip", spikes=esper.Spikes()).attach()
        other.load_state_dict(saved)
        self.go_on(other, 1, 60, lambda step: True)
        self.assertEqual(other.n_skipped, 1)

    def test_lbfgs_may_try_anything(self):
        """Only the first evaluation of a step is judged."""
        model, _ = cases.seeded(cases.Net)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
        guard = self.guard(model, optimizer, "skip", spikes=esper.Spikes()).attach()
        n_evaluated = 0

        def closure():
            nonlocal n_evaluated
            n_evaluated += 1
            optimizer.zero_grad()
            return guard.loss(cases.backward(model, 0))

        for _ in range(20):
            optimizer.step(closure)
        self.assertEqual((guard.n_skipped, guard.steps), (0, 20))
        self.assertGreater(n_evaluated, 40)
        self.assertEqual([len(signal["window"]) + len(signal["recent"])
                          for signal in guard.state_dict()["spikes"].values()], [20, 20])

    def test_bits_are_the_same(self):
        """Healthy steps with rules and without."""
        self.loop("skip", 60)
        with_rules = cases.state_of(self.model, self.optimizer)
        model, optimizer = cases.seeded(cases.Net, lr=1e-3)
        cases.train(model, optimizer, 60)
        self.assertSameState(with_rules, cases.state_of(model, optimizer))

    def scaled(self, on_bad, **options):
        """Sixty healthy steps under GradScaler, and one of far too large gradients."""
        for device, make in scalers():
            model, optimizer = cases.seeded(cases.Net, device, lr=1e-3)
            scaler = make()
            guard = self.guard(model, optimizer, on_bad, spikes=esper.Spikes(), **options).attach(scaler=scaler)
            for step in range(61):
                optimizer.zero_grad()
                chance = torch.Generator().manual_seed(step)
                x, y = (torch.randn(12, n, generator=chance).to(device) for n in (6, 3))
                loss = (model(x) - y).pow(2).mean() * (1e5 if step == 60 else 1)
                guard.loss(loss)
                scaler.scale(loss).backward()
                before = cases.state_of(model, optimizer)
                scaler.step(optimizer)
                scaler.update()
            yield guard, before, cases.state_of(model, optimizer)
            guard.detach()

    def test_under_a_scaler(self):
        for guard, before, after in self.scaled("skip"):
            self.assertSameState(before, after)
            self.assertEqual(guard.n_skipped, 1)
            self.assertIn("step 61: the gradient norm jumps", self.lines[-1])
        for guard, before, after in self.scaled("report"):
            self.assertFalse(torch.equal(before["last.weight"], after["last.weight"]))
            guard.result()
            self.assertIn("reported only", self.lines[-1])

    def test_told_on_the_device_otherwise(self):
        """An optimiser that is told on the device has to be waited for with rules, and is told of NaN as before."""
        model, optimizer = cases.seeded(cases.Net, optimizer=FlagSGD)
        self.assertIn("no wait", self.guard(model, optimizer, "skip").mode)
        model, optimizer = cases.seeded(cases.Net, optimizer=FlagSGD)
        guard = self.guard(model, optimizer, "skip", spikes=esper.Spikes()).attach()
        self.assertIn("one wait a step: spikes", guard.mode)
        cases.train(model, optimizer, 5, before=lambda step: step == 3 and guard.inject("last.bias.grad"))
        self.assertEqual(guard.n_skipped, 1)

    @cases.needs(torch.cuda.is_available(), "CUDA")
    def test_nothing_waits(self):
        """guard.loss() on a device: torch would raise at a wait."""
        model, optimizer = cases.seeded(cases.Net, "cuda")
        guard = self.guard(model, optimizer, "report", spikes=esper.Spikes()).attach()
        for step in range(5):
            loss = cases.backward(model, step, "cuda")
            guard.loss(loss)  # the first takes pinned memory
            optimizer.step()
            torch.cuda.set_sync_debug_mode("error")
            try:
                guard.loss(loss)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            optimizer.zero_grad()
        guard.result()


class TestJudge(unittest.TestCase):
    def test_parts_that_are_off(self):
        judge = Judge(esper.Spikes(loss=False))
        with self.assertRaisesRegex(esper.GuardError, "judges no losses"):
            judge.take(1.0)
        self.assertEqual(set(judge.state_dict()), {"norm"})
        self.assertEqual(set(Judge(esper.Spikes(norm=False)).state_dict()), {"loss"})


class TestTrainings(unittest.TestCase):
    """Short forms of guard_divergence.py."""

    def setUp(self):
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)

    def test_healthy(self):
        for kind in guard_divergence.KINDS:
            with self.subTest(kind.__name__):
                self.assertEqual(guard_divergence.healthy(kind, 200), [])

    def test_divergences(self):
        for kind, trouble in ((guard_divergence.Edge, "rate"), (guard_divergence.Edge, "poison"),
                              (guard_divergence.Heavy, "labels"), (guard_divergence.Recurrent, "rate")):
            outcome = guard_divergence.Outcome(kind, trouble, 1, before=200, after=80)
            self.assertTrue(outcome.is_seen, outcome)
            self.assertIsNone(outcome.told_early, outcome)


if __name__ == "__main__":
    unittest.main()
