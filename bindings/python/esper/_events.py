"""What the guard tells: every sentence is an event, and all of them go through `Teller.emit`."""

import logging
from typing import Callable, NamedTuple, Optional

from . import _log
from ._report import Report

LEVELS = {
    "note": logging.INFO,         # how it works here, and what to know about it
    "alarm": logging.WARNING,     # nothing is bad, but something is not as it is meant to be
    "snapshot": logging.INFO,     # about snapshots: their size, where they are, damage
    "bad": logging.WARNING,       # a tensor is bad, and nothing is done about it but telling
    "skip": logging.WARNING,      # a step was passed over
    "rollback": logging.WARNING,  # the state went back
    "rate": logging.INFO,         # the learning rate was lowered
    "raise": logging.ERROR,       # it ends in an exception, which is not logged beside: it tells itself
}
KINDS = tuple(LEVELS)


class Event(NamedTuple):
    """One sentence, and what it is about. It is what `on_event` is given."""

    kind: str  #: "note", "alarm", "snapshot", "bad", "skip", "rollback", "rate" or "raise"
    text: str
    step: int
    report: Optional[Report] = None
    rank: int = 0
    world: int = 1

    @property
    def level(self) -> int:
        """As of `logging`. Over ranks the first one tells what all share: of the others only the rank on which it began
        has more than DEBUG to say."""
        first = None if self.report is None else self.report.first_rank
        return LEVELS[self.kind] if self.world == 1 or self.rank in (0, first) else logging.DEBUG


class Teller:
    """Where every sentence comes by. It does not know the guard, so that a guard is freed when nobody has it."""

    def __init__(self, log: _log.Log = None, on_event: Optional[Callable[[Event], object]] = None) -> None:
        self._write = _log.make(log)
        self._on_event = on_event
        self._told = False
        self.rank, self.world = 0, 1
        self.step_of: Callable[[], int] = lambda: 0

    def __call__(self, kind: str, text: str, report: Optional[Report] = None) -> None:
        self.emit(Event(kind, text, self.step_of(), report, self.rank, self.world))

    def emit(self, event: Event) -> None:
        """Every sentence of the guard."""
        if event.kind != "raise":
            self._write(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception as error:  # whatever the caller's function does is no reason to end a training
                if not self._told:
                    self._told = True
                    self("alarm", f"on_event raised {type(error).__name__}: {error}. It is called again, and not told "
                         "of again")
