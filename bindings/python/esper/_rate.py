"""The learning rate: what rollbacks have lowered it by, and who else sets it.

The factor is in the optimiser's groups while it steps, and at no other time: a scheduler computes with its own numbers,
from its own formula or from the rate before, and cannot undo it, add to it or make it drift.

What schedulers set in the groups (`SCHEDULED`) is theirs: a rollback leaves it, unless a scheduler that is in state=
goes back with it, or the optimiser itself sets it when it steps.
"""

from typing import Any, Dict, List, Sequence, Set, Tuple

import torch

SCHEDULED = ("lr", "initial_lr", "max_lr", "min_lr", "momentum", "betas", "base_momentum", "max_momentum")


def is_scheduler(item: Any, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Whether an object of state= sets the learning rate."""
    if any(getattr(item, "optimizer", None) is optimizer for optimizer in optimizers):
        return True
    state = item.state_dict()
    return isinstance(state, dict) and any(key in state for key in ("last_epoch", "_last_lr", "_schedulers"))


class Rate:
    """Multiplies the learning rates of optimisers for the time of a step."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self.factor = 1.0
        self.set_inside: Set[str] = set()  # what an optimiser itself has changed while it stepped
        self._changed: List[Tuple[Dict[str, Any], Any, Any]] = []  # a group, what its rate was, what it is now
        self._seen: List[Tuple[Dict[str, Any], List[Any]]] = []

    def state_dict(self) -> Dict[str, Any]:
        return {"factor": self.factor}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.undo()
        self.factor = float(state["factor"])

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """A step begins."""
        if self._changed:
            self.undo()
        if self.factor == 1.0:
            return
        seen = set()
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, torch.Tensor):
                if id(rate) not in seen:  # groups may share one
                    seen.add(id(rate))
                    self._changed.append((group, rate.clone(), rate))  # noted before it is done
                    rate.mul_(self.factor)
            elif rate is not None:
                lowered = rate * self.factor
                self._changed.append((group, rate, lowered))
                group["lr"] = lowered

    def undo(self) -> None:
        """It is over, or was broken off. A rate that somebody has set meanwhile stays."""
        while self._changed:
            group, before, now = self._changed[-1]
            if isinstance(now, torch.Tensor):
                now.copy_(before)
            elif group.get("lr") is now:
                group["lr"] = before
            self._changed.pop()

    def look_before(self, optimizer: torch.optim.Optimizer) -> None:
        """What the groups hold as the step begins."""
        self._seen = [(group, list(map(group.get, SCHEDULED))) for group in optimizer.param_groups]

    def look_after(self) -> None:
        """Whatever is another object now the optimiser has set: a scheduler does so between steps."""
        for group, seen in self._seen:
            for key, value, now in zip(SCHEDULED, seen, map(group.get, SCHEDULED)):
                if now is not value:
                    self.set_inside.add(key)
        self._seen = []
