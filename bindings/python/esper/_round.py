"""Which step it is: rounds of several optimisers, and steps that go round the guard."""

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

from . import _tensors


class Round:
    """One step of all optimisers: the gradients are judged at the first, and the verdict is everybody's, as long as no
    other gradients have come since."""

    def __init__(self, go: bool, optimizers: Sequence[torch.optim.Optimizer], flagged: bool = False,
                 unscaled: Optional[Dict[int, Any]] = None) -> None:
        self.go = go
        self.flagged = flagged  # where it is not known yet: each optimiser is told on the device
        self.unscaled = unscaled or {}  # what GradScaler had noted of those whose gradients it was made to unscale
        self.went = False  # at least one was let go
        self.done: List[int] = []
        self._optimizers = optimizers
        self._note_gradients()

    def _note_gradients(self) -> None:
        self._judged = {id(optimizer): _Judged(optimizer) for optimizer in self._optimizers}

    def undo(self) -> None:
        """A rollback came between two steps: who has stepped was taken back, so the others do not step. Gradients are
        zero now."""
        self.go = self.went = self.flagged = False
        self._note_gradients()

    def has(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this optimiser's step belongs to the round."""
        judged = self._judged.get(id(optimizer))
        return judged is not None and id(optimizer) not in self.done and judged.are_still(optimizer)


class _Judged:
    """The gradients of an optimiser that a verdict is about: which tensors, and how often each was written into.

    Both are needed. A gradient that was dropped leaves its address and its id() to the next one, so tensors are known
    by weak references, which keep no memory; one that is zeroed in place, or a view into DDP's bucket, stays the same
    tensor, and its version tells."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        grads = _gradients(optimizer)
        self._tensors = [None if grad is None else weakref.ref(grad) for grad in grads]
        self._versions = list(map(_version, grads))

    def are_still(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether they are all of its gradients, unchanged."""
        grads = _gradients(optimizer)
        return (len(grads) == len(self._tensors)
                and all(known is grad if known is None else grad is not None and known() is grad
                        for known, grad in zip(self._tensors, grads))
                and -1 not in self._versions
                and list(map(_version, grads)) == self._versions)


def _gradients(optimizer: torch.optim.Optimizer) -> List[Optional[torch.Tensor]]:
    return [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]


def _version(grad: Optional[torch.Tensor]) -> int:
    """Counts what is written into a gradient, be it into a rank's part of it; -1 where torch does not count."""
    if grad is None:
        return 0
    part = _tensors.local(grad)
    if grad.is_inference() or part.is_inference():
        return -1
    return grad._version if part is grad else grad._version + part._version


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
        return (f"parameters change, but {name}.step() is not called: nothing is guarded. Call optimizer.step() "
                "itself, not a method taken from it before attach(), and give the guard the optimizer whose step() is "
                "called")

    def _now(self) -> int:
        """Counts the changes of a parameter in place."""
        return self._parameter._version if self._parameter is not None else -1
