"""The exceptions of the package. The guard's are GuardError, so that one `except` is enough; GrowEnv's GrowEnvError."""

from typing import Any, Optional


class GuardError(RuntimeError):
    """The guard cannot do what was asked; the message says why, and what to do."""


class LibraryNotFound(GuardError, ImportError):
    """libesper-guard.so (for GrowEnv libesper.so) is missing, or is not the one this package was written for."""


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


class GrowEnvError(RuntimeError):
    """An environment of growing networks cannot do what was asked; the message says why. `status` is the library's name
    for it: "ESPER_E_CONFIG", "ESPER_E_STATE", ..."""

    def __init__(self, message: str, status: str = "ESPER_E_STATE") -> None:
        super().__init__(message)
        self.status = status


class IllegalAction(GrowEnvError, ValueError):
    """An action that is masked, or none. No environment has moved."""


for _kind in (GrowEnvError, IllegalAction, GuardError, LibraryNotFound, Unsupported, ModelChanged, NoSnapshot,
              NotRestored, BadTensor, BadGradient, Spike, BadState, NoSuchTensor):
    _kind.__module__ = "esper"  # as users know them
