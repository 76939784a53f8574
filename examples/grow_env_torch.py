#!/usr/bin/env python3
"""Learns to grow networks, by PPO in PyTorch over esper.GrowEnv (docs/grow-env.md), and is held against chance.

    usage: grow_env_torch.py [ROUNDS] [TASK] [SETTING=VALUE...]        (25 rounds of fashion_fast)

Each round plays 16 episodes. The policy chooses an operation with its slot, and which blueprint germinates; style and
tempo stay the same. After `make`, from the root of the repository: PYTHONPATH=bindings/python /usr/bin/python3 FILE.
"""
import sys
import time

import numpy as np
import torch
from torch.distributions import Categorical

import esper

USUAL = {"slot": 0, "blueprint": 0, "style": 2, "tempo": 0, "alpha_target": 2, "alpha_speed": 0, "alpha_curve": 0, "op": 0}
GAMMA, LAMBDA, CLIP, SCALE = 0.995, 0.95, 0.2, 0.1


class Policy(torch.nn.Module):
    """What is seen, to a choice of (operation, slot), of a blueprint, and to what is expected to be earned from here."""

    def __init__(self, env, width=128):
        super().__init__()
        self.shape = (len(env.ops), len(env.slots), len(env.blueprint_names))
        ops, slots, blueprints = self.shape
        n = len(env.feature_names) + slots * (blueprints + 1)
        self.trunk = torch.nn.Sequential(torch.nn.Linear(n, width), torch.nn.Tanh(), torch.nn.Linear(width, width),
                                         torch.nn.Tanh())
        self.move = torch.nn.Linear(width, ops * slots)
        self.blueprint = torch.nn.Linear(width, slots * blueprints)
        self.value = torch.nn.Linear(width, 1)
        for head in (self.move, self.blueprint, self.value):
            torch.nn.init.uniform_(head.weight, -0.01, 0.01)

    def forward(self, seen, choice=None):
        """Draws a choice (n, 2), or judges one: (choice, log-probability, entropy, value)."""
        ops, slots, blueprints = self.shape
        here = torch.nn.functional.one_hot((seen["blueprints"] + 1).long(), blueprints + 1).flatten(1)
        h = self.trunk(torch.cat((seen["features"], here.float()), 1))
        can = seen["mask_slot"].bool().clone()
        can[:, 0, 1:] = False  # to wait is one choice, wherever
        move = Categorical(logits=self.move(h).masked_fill(~can.flatten(1), -1e9))
        first = move.sample() if choice is None else choice[:, 0]
        slot, rows = first % slots, torch.arange(len(h))
        fits = seen["mask_blueprint"].bool()[rows, slot]
        fits = fits | ~fits.any(1, keepdim=True)  # where nothing germinates it does not matter
        logits = self.blueprint(h).view(-1, slots, blueprints)[rows, slot]
        kind = Categorical(logits=logits.masked_fill(~fits, -1e9))
        second = kind.sample() if choice is None else choice[:, 1]
        plants = (first // slots == 1).float()
        return (torch.stack((first, second), 1), move.log_prob(first) + plants * kind.log_prob(second),
                move.entropy() + plants * kind.entropy(), self.value(h)[:, 0])


def tensors(observations):
    return {name: torch.from_numpy(rows) for name, rows in observations.items()}


def actions_of(env, choice):
    actions = np.tile([USUAL[head] for head in env.heads], (env.num_envs, 1))
    first, second = choice.numpy().T
    actions[:, env.heads.index("op")], actions[:, env.heads.index("slot")] = np.divmod(first, len(env.slots))
    actions[:, env.heads.index("blueprint")] = second
    return actions


def play(env, observations, policy=None):
    """An episode of each environment: steps to learn from, returns, and what is seen next. None: by chance."""
    steps = []
    for _ in range(env.episode_length):
        seen = tensors(observations)
        with torch.no_grad():
            choice, log_prob, _, value = policy(seen) if policy else (None,) * 4
        actions = actions_of(env, choice) if policy else env.sample()
        observations, rewards, over, _, infos = env.step(actions)
        cut = torch.from_numpy(over | infos["rolled_back"])  # no credit goes past either
        steps.append((seen, choice, log_prob, value, torch.from_numpy(rewards * SCALE).float(), cut))
    return steps, infos["episode"]["r"], observations


def learn(policy, optimizer, steps, n_epochs=6):
    ahead, value_next, advantages = 0.0, 0.0, []
    for seen, choice, log_prob, value, reward, cut in reversed(steps):  # generalised advantage estimation
        goes_on = (~cut).float()
        ahead = reward + GAMMA * goes_on * value_next - value + GAMMA * LAMBDA * goes_on * ahead
        value_next = value
        advantages.insert(0, ahead)
    seen = {name: torch.cat([step[0][name] for step in steps]) for name in steps[0][0]}
    choice, log_before, value = (torch.cat([step[k] for step in steps]) for k in (1, 2, 3))
    advantage = torch.cat(advantages)
    target, advantage = advantage + value, (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(n_epochs):
        for rows in torch.randperm(len(target)).chunk(4):
            part = {name: values[rows] for name, values in seen.items()}
            _, log_prob, entropy, value = policy(part, choice[rows])
            ratio, gain = (log_prob - log_before[rows]).exp(), advantage[rows]
            loss = (-torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                    + 0.5 * (value - target[rows]).pow(2).mean() - 0.01 * entropy.mean())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


def main(n_rounds=25, task="fashion_fast", *settings):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    env = esper.GrowEnv(task, 16, **{"seed": 1, "threads": 0, **dict(word.split("=", 1) for word in settings)})
    policy = Policy(env)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    began = time.monotonic()
    chance = play(env, env.reset()[0])[1]
    print(f"by chance   return {chance.mean():6.2f} +- {chance.std() / 4:.2f}", flush=True)
    observations, _ = env.reset(seed=2)
    for k in range(int(n_rounds)):
        steps, returns, observations = play(env, observations, policy)
        learn(policy, optimizer, steps)
        print(f"round {k + 1:3d}   return {returns.mean():6.2f} +- {returns.std() / 4:.2f}   "
              f"{time.monotonic() - began:4.0f} s", flush=True)
    learned = play(env, env.reset(seed=1)[0], policy)[1]  # the episodes that chance has played
    print(f"learned     return {learned.mean():6.2f} +- {learned.std() / 4:.2f}, by chance {chance.mean():.2f} on the "
          f"same {env.num_envs} episodes; better on {(learned > chance).sum()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
