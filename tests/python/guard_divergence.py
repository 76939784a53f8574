#!/usr/bin/env python3
"""Healthy noisy trainings, which are to trip no rule, and real divergences, which are to.

    usage: guard_divergence.py [--healthy STEPS] [--divergences COUNT]

Healthy are six kinds, high rates among them, STEPS in all. A divergence is a healthy training to which something is
done after some hundred steps: its rate times thirty, labels that are all wrong, batches that are poisoned. It is real
when the loss becomes NaN or Inf, or its median over the hundred steps after is above twice that of the hundred before.
It is seen when a rule tells before the loss is not finite, or, where it always is, within fifty steps of its exceeding
twice its median of the last hundred.
"""
import argparse
import math
import statistics
import sys

import guard_cases  # noqa: F401: the package's path
import torch
import torch.nn.functional as F
from torch import nn

import esper


class Training:
    """A model, its optimiser, and one batch after the other. trouble: None, or what is done to it from now on."""

    rate = 1e-2

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.chance = torch.Generator().manual_seed(seed + 1)
        self.trouble = None
        self.lines = []
        self.build()
        self.guard = esper.Guard(self.model, self.optimizer, "report", spikes=esper.Spikes(), state_every=0,
                                 log=self.lines.append).attach()

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.chance)

    def spoil(self, x, y=None):
        """A batch as trouble leaves it."""
        if self.trouble == "poison":
            x = x * 100 + 30 * self.normal(*x.shape)
        elif self.trouble == "labels" and y is not None:
            y = (y + 1 + torch.randint(9, y.shape, generator=self.chance)) % 10 if y.dtype == torch.int64 else -9 * y
        return x, y

    def begin(self, trouble):
        self.trouble = trouble
        if trouble == "rate":
            for group in self.optimizer.param_groups:
                group["lr"] *= 30

    def step(self):
        """Gives the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        self.guard.loss(loss)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def alarmed(self):
        report = self.guard.last
        return report is not None and not report.ok

    def close(self):
        self.guard.detach()


class Edge(Training):
    """Small batches with wrong labels among them, SGD at a rate near the edge."""

    def build(self):
        self.model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.8)
        self.centres = 2 * self.normal(10, 20)

    def loss(self):
        y = torch.randint(10, (8,), generator=self.chance)
        x = self.centres[y] + self.normal(8, 20)
        wrong = torch.rand(8, generator=self.chance) < 0.1
        y = torch.where(wrong, torch.randint(10, (8,), generator=self.chance), y)
        x, y = self.spoil(x, y)
        return F.cross_entropy(self.model(x), y)


class Heavy(Training):
    """Regression with noise that has heavy tails, and a squared loss."""

    def build(self):
        self.model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.truth = self.normal(16)

    def loss(self):
        x = self.normal(4, 16)
        noise = self.normal(4) / (self.normal(3, 4).pow(2).mean(0).sqrt() + 1e-3)  # Student's t, three degrees
        y = torch.tanh(x @ self.truth) + 0.3 * noise
        x, y = self.spoil(x, y)
        return F.mse_loss(self.model(x)[:, 0], y)


class Recurrent(Training):
    """An LSTM that is not clipped, at a high rate."""

    def build(self):
        self.embed, self.rnn, self.head = nn.Embedding(10, 12), nn.LSTM(12, 24, batch_first=True), nn.Linear(24, 10)
        self.model = nn.ModuleList([self.embed, self.rnn, self.head])
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-2)

    def loss(self):
        start = torch.randint(10, (4, 1), generator=self.chance)
        pace = torch.randint(1, 4, (4, 1), generator=self.chance)
        y = (start + pace * torch.arange(9)) % 10
        y = torch.where(torch.rand(4, 9, generator=self.chance) < 0.05, (y + 3) % 10, y)
        x, target = y[:, :-1], y[:, 1:]
        hidden = self.embed(x)
        hidden, target = self.spoil(hidden, target.reshape(-1))
        return F.cross_entropy(self.head(self.rnn(hidden)[0]).reshape(-1, 10), target)


class Adversarial(Training):
    """The discriminator of a small GAN; the generator has an optimiser of its own."""

    def build(self):
        self.model = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2),
                                   nn.Linear(32, 1))
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.other = torch.optim.Adam(self.generator.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def real(self):
        angle = 6.28 * torch.rand(16, 1, generator=self.chance)
        return torch.cat([angle.cos(), angle.sin()], 1) + 0.1 * self.normal(16, 2)

    def loss(self):
        self.other.zero_grad(set_to_none=True)
        F.softplus(-self.model(self.generator(self.normal(16, 4)))).mean().backward()
        self.other.step()
        self.optimizer.zero_grad(set_to_none=True)
        real, _ = self.spoil(self.real())
        fake = self.generator(self.normal(16, 4)).detach()
        return F.softplus(-self.model(real)).mean() + F.softplus(self.model(fake)).mean()


class Policy(Training):
    """A policy gradient: the loss is of either sign, and mostly noise."""

    def build(self):
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 5))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.worth = self.normal(8, 5)
        self.baseline = 0.0

    def loss(self):
        x, _ = self.spoil(self.normal(16, 8))
        log = torch.log_softmax(self.model(x), -1)
        action = torch.multinomial(log.detach().exp(), 1, generator=self.chance)
        reward = (x @ self.worth).gather(1, action)[:, 0] + self.normal(16)
        advantage = reward - self.baseline
        self.baseline += 0.05 * float(advantage.mean())
        entropy = -(log.exp() * log).sum(-1).mean()
        return -(log.gather(1, action)[:, 0] * advantage).mean() - 0.01 * entropy


class Transformer(Training):
    """A small language model with warm-up and dropout, at a high rate."""

    def build(self):
        self.embed = nn.Embedding(10, 32)
        self.place = nn.Parameter(0.1 * torch.randn(8, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
        self.head = nn.Linear(32, 10)
        self.model = nn.ModuleList([self.embed, self.layer, self.head])
        self.model.register_parameter("place", self.place)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.warm = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 50))
        self.register = torch.full((8, 8), float("-inf")).triu(1)

    def loss(self):
        start = torch.randint(10, (8, 2), generator=self.chance)
        rows = [start[:, 0], start[:, 1]]
        for _ in range(7):
            rows.append((rows[-1] + rows[-2]) % 10)
        y = torch.stack(rows, 1)
        y = torch.where(torch.rand(8, 9, generator=self.chance) < 0.05, (y + 3) % 10, y)
        hidden, target = self.spoil(self.embed(y[:, :-1]), y[:, 1:].reshape(-1))
        return F.cross_entropy(self.head(self.layer(hidden + self.place, self.register)).reshape(-1, 10), target)

    def step(self):
        value = super().step()
        if self.trouble != "rate":
            self.warm.step()
        return value


KINDS = (Edge, Heavy, Recurrent, Adversarial, Policy, Transformer)
TROUBLES = {Edge: ("rate", "labels", "poison"), Heavy: ("rate", "labels", "poison"),
            Recurrent: ("rate", "labels", "poison"), Adversarial: ("rate", "poison"),
            Transformer: ("rate", "labels", "poison")}


def healthy(kind, steps, seed=0):
    """Alarms, as lines."""
    training = kind(seed)
    found = []
    for step in range(steps):
        training.step()
        if training.alarmed():
            found.append(f"{kind.__name__}, step {step}: {training.guard.last}")
    training.close()
    return found


class Outcome:
    """What became of one training: when trouble began, when the loss went wrong, when somebody told."""

    def __init__(self, kind, trouble, seed, before=300, after=160):
        self.what = f"{kind.__name__}, {trouble}, seed {seed}"
        training = kind(seed)
        self.losses, self.told, self.told_early = [], None, None
        for step in range(before + after):
            if step == before:
                training.begin(trouble)
            self.losses.append(training.step())
            if training.alarmed():
                if step < before:
                    self.told_early = step
                elif self.told is None and not (training.guard.last.n_bad or not math.isfinite(self.losses[-1])):
                    self.told, self.sentence = step, str(training.guard.last)
        training.close()
        self.begun = before
        self.lost = next((i for i in range(before, len(self.losses)) if not math.isfinite(self.losses[i])), None)
        self.doubled = next((i for i in range(before, len(self.losses)) if self.losses[i] >
                             2 * statistics.median(self.losses[i - 100:i])), None)

    @property
    def is_real(self):
        if self.lost is not None:
            return True
        after = statistics.median(self.losses[self.begun:self.begun + 100])
        return self.doubled is not None and after > 2 * statistics.median(self.losses[self.begun - 100:self.begun])

    @property
    def is_seen(self):
        if self.told is None:
            return False
        return self.told < self.lost if self.lost is not None else self.told <= self.doubled + 50

    def __str__(self):
        return (f"{self.what}: begun {self.begun}, twice the median {self.doubled}, not finite {self.lost}, told "
                f"{self.told}")


def divergences(count):
    """So many real ones, of every kind and trouble in turn."""
    found, seed = [], 0
    while len(found) < count:
        seed += 1
        if seed > 4 * count:
            raise RuntimeError(f"only {len(found)} of {count} are real")
        for kind, troubles in TROUBLES.items():
            for trouble in troubles:
                if len(found) < count:
                    outcome = Outcome(kind, trouble, seed)
                    if outcome.is_real:
                        found.append(outcome)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--healthy", type=int, default=20000)
    parser.add_argument("--divergences", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    alarms = [line for kind in KINDS for line in healthy(kind, -(-options.healthy // len(KINDS)))]
    print(*alarms, sep="\n")
    print(f"{options.healthy:,} healthy steps of {len(KINDS)} kinds: {len(alarms)} false alarms")
    outcomes = divergences(options.divergences)
    missed = [outcome for outcome in outcomes if not outcome.is_seen]
    early = [outcome for outcome in outcomes if outcome.told_early is not None]
    for outcome in missed:
        print(f"not seen in time: {outcome}")
    for outcome in early:
        print(f"told at step {outcome.told_early}, before trouble began: {outcome}")
    print(f"{len(outcomes)} divergences ({sum(outcome.lost is not None for outcome in outcomes)} end in NaN or Inf): "
          f"{len(outcomes) - len(missed)} seen in time")
    return 0 if not alarms and not early and len(missed) <= len(outcomes) // 10 else 1


if __name__ == "__main__":
    sys.exit(main())
