"""What the guard tells: every sentence is an event, and all of them go through `Teller.emit`."""

from typing import Callable, NamedTuple, Optional

from ._report import Report

KINDS = (
    "note",      # how it works here, and what to know about it
    "alarm",     # nothing is bad, but something is not as it is meant to be
    "snapshot",  # about snapshots: their size, where they are, damage
    "bad",       # a tensor is bad, and nothing is done about it but telling
    "skip",      # a step was passed over
    "rollback",  # the state went back
    "rate",      # the learning rate was lowered
)


class Event(NamedTuple):
    """One sentence, and what it is about."""

    kind: str
    text: str
    step: int
    report: Optional[Report] = None


class Teller:
    """Where every sentence comes by. It does not know the guard, so that a guard is freed when nobody has it."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self.step_of: Callable[[], int] = lambda: 0

    def __call__(self, kind: str, text: str, report: Optional[Report] = None) -> None:
        self.emit(Event(kind, text, self.step_of(), report))

    def emit(self, event: Event) -> None:
        """Every sentence of the guard."""
        self._log(event.text)
