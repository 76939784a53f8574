"""The learning rate as rollbacks have lowered it.

The factor is in the optimiser's groups while it steps, and at no other time: a scheduler computes with its own numbers,
from its own formula or from the rate before, and cannot undo it, add to it or make it drift.
"""

from typing import Any, Dict, List, Tuple

import torch


class Rate:
    """Multiplies the learning rates of an optimiser for the time of a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.factor = 1.0
        self._changed: List[Tuple[Dict[str, Any], Any, Any]] = []  # a group, what its rate was, what it is now

    def lower(self, factor: float) -> None:
        """From the next step on."""
        self.factor *= factor

    def apply(self) -> None:
        """A step begins."""
        self.undo()
        if self.factor == 1.0:
            return
        seen = set()
        for group in self._optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, torch.Tensor):
                if id(rate) not in seen:  # groups may share one
                    seen.add(id(rate))
                    self._changed.append((group, rate.clone(), rate))
                    rate.mul_(self.factor)
            elif rate is not None:
                group["lr"] = rate * self.factor
                self._changed.append((group, rate, group["lr"]))

    def undo(self) -> None:
        """It is over, or was broken off. A rate that somebody has set meanwhile stays."""
        changed, self._changed = self._changed, []
        for group, before, now in changed:
            if isinstance(now, torch.Tensor):
                now.copy_(before)
            elif group.get("lr") is now:
                group["lr"] = before
