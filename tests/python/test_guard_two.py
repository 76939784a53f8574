# ctest: timeout=120
"""Two guards on one model, each with an optimiser of its own, as for a generator and a discriminator."""
import gc
import unittest

from guard_cases import Case, state_of
from test_guard_policy import PlainScaler

import torch
import torch.nn as nn

import esper


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Linear(4, 4)
        self.critic = nn.Linear(4, 1)
        self.still = nn.Linear(2, 2)  # nobody's
        self.register_buffer("count", torch.zeros(1))


class TestTwo(Case):
    def pair(self, **options):
        torch.manual_seed(0)
        model = Pair()
        optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in (model.maker, model.critic)]
        guards = [self.guard(model, optimizer, **options).attach() for optimizer in optimizers]
        return model, optimizers, guards

    def step(self, model, optimizers, which, before=None):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model.critic(model.maker(torch.ones(3, 4))).mean()
        (loss if which == 0 else -loss).backward()
        if before is not None:
            before()
        optimizers[which].step()

    def test_each_watches_its_own(self):
        model, optimizers, (maker, critic) = self.pair(on_bad="skip")
        for i in range(4):
            self.step(model, optimizers, i % 2)
        self.assertEqual((maker.steps, critic.steps), (2, 2))
        self.assertEqual([row.name for row in maker.last.table], ["maker.weight.grad", "maker.bias.grad"])
        self.assertEqual([row.name for row in critic.last.table], ["critic.weight.grad", "critic.bias.grad"])
        # what is bad among the other's gradients is the other's business, and is named there
        self.step(model, optimizers, 0, lambda: critic.inject("critic.weight.grad", 2))
        self.assertEqual((maker.n_skipped, critic.n_skipped), (0, 0))
        self.step(model, optimizers, 1, lambda: critic.inject("critic.weight.grad", 2))
        self.assertEqual((maker.n_skipped, critic.n_skipped), (0, 1))
        self.assertIn("NaN in critic.weight.grad, 1 of 4, first at 2; step skipped", self.lines[-1])
        self.assertIn("2 parameters of the model: another guard's optimizer steps them", maker.not_covered)
        self.assertIn("2 parameters of the model: another guard's optimizer steps them", critic.not_covered)

    def test_what_is_nobody_s_is_watched_by_both(self):
        model, optimizers, guards = self.pair(state_every=1)
        self.step(model, optimizers, 0)
        self.step(model, optimizers, 1)
        with torch.no_grad():
            model.still.weight[1, 1] = float("nan")
        for which in range(2):
            with self.assertRaises(esper.BadState) as met:
                self.step(model, optimizers, which)
            self.assertEqual(met.exception.report.first_bad, "still.weight")

    def test_each_rolls_back_its_own(self):
        model, optimizers, (maker, critic) = self.pair(on_bad="rollback", state_every=1,
                                                       snapshot=esper.Snapshots(every=2))
        for i in range(8):
            self.step(model, optimizers, i % 2)
        before = [state_of(model, optimizer) for optimizer in optimizers]
        self.step(model, optimizers, 0, lambda: maker.inject("maker.weight", 1))
        self.assertEqual((maker.n_rollbacks, critic.n_rollbacks, maker.steps), (1, 0, 4))
        self.assertSameState(before[0], state_of(model, optimizers[0]))
        self.assertSameState(before[1], state_of(model, optimizers[1]))
        self.step(model, optimizers, 1)
        self.assertTrue(critic.snapshot() and maker.snapshot())
        self.assertEqual(maker.rollback(), 4)

    def test_the_first_has_snapshots_of_what_the_second_takes(self):
        torch.manual_seed(0)
        model = Pair()
        optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in (model.maker, model.critic)]
        maker = self.guard(model, optimizers[0], "rollback", state_every=1).attach()
        self.step(model, optimizers, 0)
        maker.snapshot()
        critic = self.guard(model, optimizers[1], "skip").attach()
        self.step(model, optimizers, 1)
        now = model.critic.weight.detach().clone()
        self.assertEqual(maker.rollback(), 1)
        self.assertTrue(torch.equal(now, model.critic.weight))
        critic.detach()
        self.step(model, optimizers, 0)
        self.assertTrue(maker.result().ok)
        self.assertEqual(len(maker.last.table), 4)  # it has them back

    def test_one_scaler_for_both(self):
        torch.manual_seed(0)
        model = Pair()
        optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in (model.maker, model.critic)]
        scaler = PlainScaler()
        guards = [self.guard(model, optimizer, "skip").attach(scaler) for optimizer in optimizers]
        for step in range(6):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(model.critic(model.maker(torch.ones(3, 4))).mean()).backward()
            if step == 3:
                guards[1].inject("critic.bias.grad")
            before = [state_of(part, optimizer) for part, optimizer in zip((model.maker, model.critic), optimizers)]
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            reports = [guard.result() for guard in guards]
            self.assertEqual([report.ok for report in reports], [True, step != 3])
            if step == 3:
                self.assertSameState(before[1], state_of(model.critic, optimizers[1]))
                self.assertEqual(reports[1].first_bad, "critic.bias.grad")
        self.assertEqual([guard.steps for guard in guards], [6, 6])

    def test_one_goes_without_a_word(self):
        model, optimizers, guards = self.pair(state_every=1)
        self.doCleanups()
        guards = [esper.Guard(model, optimizer, state_every=1, log=self.lines.append) for optimizer in optimizers]
        guards[0].attach()
        self.step(model, optimizers, 0)
        del guards[1]
        gc.collect()
        self.step(model, optimizers, 0)
        self.assertEqual(len(guards[0].last.table), 4)
        guards[0].detach()

    def test_a_parameter_in_both_is_refused(self):
        model, optimizers, guards = self.pair()
        third = torch.optim.SGD([model.still.weight, model.critic.bias], lr=0.1)
        with self.assertRaises(esper.GuardError) as met:
            esper.Guard(model, third)
        self.assertIn("critic.bias is already watched by another esper.Guard", str(met.exception))
        self.assertIn("two optimizers that have no parameter in common", str(met.exception))


if __name__ == "__main__":
    unittest.main()
