"""Which step it is: rounds of several optimisers, and steps that go round the guard."""

from typing import Callable, List, Optional, Sequence, Tuple

import torch


class Round:
    """One step of all optimisers: the gradients are judged at the first, and the verdict is everybody's, as long as no
    other gradients have come since."""

    def __init__(self, go: bool, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.go = go
        self.went = False  # at least one was let go
        self.done: List[int] = []
        self._of = {id(optimizer): _mark(optimizer) for optimizer in optimizers}

    def has(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this optimiser's step belongs to the round."""
        return id(optimizer) not in self.done and self._of.get(id(optimizer)) == _mark(optimizer)


def _mark(optimizer: torch.optim.Optimizer) -> Tuple[int, int]:
    """Changes when another backward pass has come."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return id(parameter.grad), parameter.grad._version
    return 0, 0


class Unseen:
    """Notices that parameters change from one iteration to the next although no step came by the guard: a bound method
    that was taken before attach(), an optimiser with other methods than step()."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], tell: Callable[..., None]) -> None:
        self._optimizers = optimizers
        self._tell = tell
        self._version: Optional[int] = None  # of a parameter, when a step or gradients that were zeroed came by
        self._count = 0
        self._told = False
        self._parameter: Optional[torch.Tensor] = None

    def begin(self) -> None:
        """From now on."""
        self._parameter = next((parameter for optimizer in self._optimizers for group in optimizer.param_groups
                                for parameter in group["params"] if parameter.requires_grad), None)
        self.stepped()

    def stepped(self) -> None:
        """A step came by."""
        self._version, self._count = self._now(), 0

    def zeroed(self) -> None:
        """Gradients are zeroed: an iteration is over, or begins. Others may change parameters too, now and then."""
        version = self._now()
        if version != self._version:
            self._version = version
            self._count += 1
            if self._count == 3 and not self._told:
                self.tell()

    def end(self, n_steps: int) -> None:
        """Nothing comes by any more."""
        if n_steps == 0 and not self._told and (self._count or self._now() != self._version):
            self.tell()

    def tell(self) -> None:
        self._told = True
        self._tell("alarm", self.sentence)

    @property
    def not_covered(self) -> List[str]:
        return [self.sentence] if self._told and self._count else []

    @property
    def sentence(self) -> str:
        name = type(self._optimizers[0]).__name__
        return (f"parameters change, but {name}.step() is not called: nothing is guarded. Call optimizer.step() itself, "
                "not a method taken from it before attach(), and give the guard the optimizer whose step() is called")

    def _now(self) -> int:
        """Counts the changes of a parameter in place."""
        return self._parameter._version if self._parameter is not None else -1
