"""What is done about a bad tensor.

    gradients   raise, report, skip; `rollback` skips too, for the state is still good, and rolls back when there were
                more than max_skips in a row. `skip` raises then.
    state       raise, report, rollback; `skip` raises, for skipping does not mend a parameter.

While GradScaler steps, a bad gradient is its business: it passes the step over and lowers its scale. Only more than
max_skips of them in a row are an alarm.

A function as on_bad is asked on every rank, for each has a report of its own, and the most severe answer is
everybody's: raise before rollback, rollback before skip, skip before report.
"""

from typing import Callable, Dict, Optional, Union

from ._dist import Peers
from ._errors import BadGradient, BadState
from ._report import Report

OnBad = Union[str, Callable[[Report], Optional[str]]]
NAMES = ("raise", "report", "skip", "rollback")
_SEVERITY = ("report", "skip", "rollback", "raise")


class Policy:
    """Decides, counts and says so."""

    def __init__(self, on_bad: OnBad, max_skips: int, max_rollbacks: int, log: Callable[[str], None],
                 peers: Peers) -> None:
        if not callable(on_bad) and on_bad not in NAMES:
            raise ValueError(f"on_bad={on_bad!r}: expected one of {', '.join(NAMES)}, or a function of a report that "
                             "returns one of them")
        self._on_bad = on_bad
        self.max_skips = max_skips
        self.max_rollbacks = max_rollbacks
        self._log = log
        self._peers = peers
        self._n_reported: Dict[str, int] = {}  # by name: how often it was bad, and reported only
        self._step: Optional[int] = None  # the last one that was bad: a closure may be evaluated more than once
        self.n_skipped = 0
        self.n_rollbacks = 0
        self.in_a_row = 0

    @property
    def decides_before(self) -> bool:
        """Whether the verdict has to be known on the host before the optimiser steps."""
        return callable(self._on_bad) or self._on_bad == "raise"

    @property
    def only_reports(self) -> bool:
        return self._on_bad == "report"

    @property
    def may_skip(self) -> bool:
        return callable(self._on_bad) or self._on_bad in ("skip", "rollback")

    def _asked(self, report: Report) -> str:
        """The answer of all ranks. All are here."""
        report.alarm = True
        if not callable(self._on_bad):
            return self._on_bad
        try:
            answer = self._on_bad(report) or "report"
            if answer not in NAMES:
                raise ValueError(f"on_bad returned {answer!r}: expected one of {', '.join(NAMES)}, or None")
        except BaseException:
            self._peers.most(_SEVERITY.index("raise"))  # the others are not to wait for this rank
            raise
        return _SEVERITY[self._peers.most(_SEVERITY.index(answer))]

    def _tell(self, report: Report) -> None:
        """What is only reported may be bad from now on at every step: told at the first, and when the count of the same
        tensor's has doubled."""
        name = report.first_bad or ""
        count = self._n_reported[name] = self._n_reported.get(name, 0) + 1
        if count & (count - 1) == 0:
            self._log(str(report) + (f" ({count:,} times so far; told again at {2 * count:,})" if count > 1 else ""))

    def healthy(self) -> None:
        self.in_a_row = 0

    def forget(self) -> None:
        """The state is another."""
        self.in_a_row = 0
        self._step = None

    def of_gradients(self, report: Report, untouched: bool, scaled: bool = False) -> str:
        """A report that is not ok: "go", "skip" or "rollback". `untouched`: no step was made with these."""
        again = report.step is not None and report.step == self._step and self.in_a_row > 0
        self._step = report.step
        self.in_a_row += not again
        if scaled and self.in_a_row <= self.max_skips:
            report.action = "left to GradScaler, which passes the step over and lowers its scale"
            return "go"
        answer = self._asked(report)
        if answer == "report":
            report.action = "reported only" + ("" if untouched or scaled else "; the step was made")
            self._tell(report)
            return "go"
        if answer in ("skip", "rollback") and self.in_a_row <= self.max_skips:
            self.n_skipped += not again
            report.action = "step skipped, optimizer untouched"
            self._log(str(report))
            return "skip"
        if self.in_a_row > self.max_skips and answer != "raise":
            report.action = f"{self.in_a_row} bad steps in a row"
            if answer == "rollback":
                return "rollback"
        else:
            report.action = "optimizer untouched" if untouched else "the optimizer has stepped with it"
        raise BadGradient(str(report), report)

    def of_state(self, report: Report) -> str:
        """A report that is not ok: "go" or "rollback"."""
        answer = self._asked(report)
        if answer == "rollback":
            return "rollback"
        if answer == "report":
            report.action = "reported only"
            self._tell(report)
            return "go"
        if answer == "skip":
            report.action = "skipping steps cannot mend it: on_bad='rollback' could"
        raise BadState(str(report), report)

    def rolls_back(self, report: Report) -> None:
        """Counts a rollback that is to be made, or raises when there were enough."""
        if self.n_rollbacks >= self.max_rollbacks:
            report.action = f"{self.n_rollbacks} rollbacks were made already"
            kind = BadState if report.of_state else BadGradient  # the same on every rank
            raise kind(str(report), report)
        self.n_rollbacks += 1
        self.forget()

    def rolled_back(self, report: Report, step: int) -> None:
        report.action = f"rolled back to step {step} ({self.n_rollbacks} of {self.max_rollbacks})"
        self._log(str(report))
