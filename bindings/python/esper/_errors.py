"""The exceptions of the package. All are GuardError, so that one `except` is enough."""

from typing import Any, Optional


class GuardError(RuntimeError):
    """The guard cannot do what was asked; the message says why, and what to do."""


class LibraryNotFound(GuardError, ImportError):
    """libesper-guard.so is missing, or is not the one this package was written for."""


class Unsupported(GuardError):
    """A form of training that the guard does not cover."""


class ModelChanged(GuardError):
    """The model is not the one that was registered: moved, resized, or its parameters were replaced."""


class NoSnapshot(GuardError):
    """There is no good snapshot to roll back to."""


class NotRestored(GuardError):
    """A rollback could not be ended: something that it puts back has raised. The cause is the exception's."""


class BadTensor(GuardError):
    """A tensor holds NaN or Inf. `report` tells which."""

    def __init__(self, message: str, report: Optional[Any] = None) -> None:
        super().__init__(message)
        self.report = report


class BadGradient(BadTensor):
    """A gradient holds NaN or Inf; the optimiser was not let near it."""


class Spike(BadGradient):
    """A loss or a gradient norm is finite, and out of the question; the optimiser was not let near it."""


class BadState(BadTensor):
    """A parameter, a buffer or a piece of optimiser state holds NaN or Inf."""


class NoSuchTensor(GuardError, KeyError):
    """No tensor has that name now."""

    __str__ = RuntimeError.__str__  # KeyError's would put it into quotes


for _kind in (GuardError, LibraryNotFound, Unsupported, ModelChanged, NoSnapshot, NotRestored, BadTensor, BadGradient,
              Spike, BadState, NoSuchTensor):
    _kind.__module__ = "esper"  # as users know them
