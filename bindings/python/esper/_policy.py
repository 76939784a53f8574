"""What is done about a bad tensor.

    gradients   raise, report, skip; `rollback` skips too, for the state is still good, and rolls back when there were
                more than max_skips in a row. `skip` raises then.
    state       raise, report, rollback; `skip` raises, for skipping does not mend a parameter.

While GradScaler steps, a bad gradient is its business: it passes the step over and lowers its scale. Only more than
max_skips of them in a row are an alarm.
"""

from typing import Callable, Optional, Union

from . import _abi
from ._errors import BadGradient, BadState
from ._report import Report

OnBad = Union[str, Callable[[Report], Optional[str]]]
NAMES = ("raise", "report", "skip", "rollback")


class Policy:
    """Decides, counts and says so."""

    def __init__(self, on_bad: OnBad, max_skips: int, max_rollbacks: int, log: Callable[[str], None]) -> None:
        if not callable(on_bad) and on_bad not in NAMES:
            raise ValueError(f"on_bad={on_bad!r}: expected one of {', '.join(NAMES)}, or a function of a report that "
                             "returns one of them")
        self._on_bad = on_bad
        self.max_skips = max_skips
        self.max_rollbacks = max_rollbacks
        self._log = log
        self.n_skipped = 0
        self.n_rollbacks = 0
        self.in_a_row = 0

    @property
    def decides_before(self) -> bool:
        """Whether the verdict has to be known on the host before the optimiser steps."""
        return callable(self._on_bad) or self._on_bad == "raise"

    @property
    def may_skip(self) -> bool:
        return callable(self._on_bad) or self._on_bad in ("skip", "rollback")

    def _asked(self, report: Report) -> str:
        report.alarm = True
        if not callable(self._on_bad):
            return self._on_bad
        answer = self._on_bad(report) or "report"
        if answer not in NAMES:
            raise ValueError(f"on_bad returned {answer!r}: expected one of {', '.join(NAMES)}, or None")
        return answer

    def healthy(self) -> None:
        self.in_a_row = 0

    def of_gradients(self, report: Report, untouched: bool, scaled: bool = False) -> str:
        """A report that is not ok: "go", "skip" or "rollback". `untouched`: no step was made with these."""
        self.in_a_row += 1
        if scaled and self.in_a_row <= self.max_skips:
            report.action = "left to GradScaler, which passes the step over and lowers its scale"
            return "go"
        answer = self._asked(report)
        if answer == "report":
            report.action = "reported only" + ("" if untouched or scaled else "; the step was made")
            self._log(str(report))
            return "go"
        if answer in ("skip", "rollback") and self.in_a_row <= self.max_skips:
            self.n_skipped += 1
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
            self._log(str(report))
            return "go"
        if answer == "skip":
            report.action = "skipping steps cannot mend it: on_bad='rollback' could"
        raise BadState(str(report), report)

    def rolls_back(self, report: Report) -> None:
        """Counts a rollback that is to be made, or raises when there were enough."""
        if self.n_rollbacks >= self.max_rollbacks:
            report.action = f"{self.n_rollbacks} rollbacks were made already"
            kind = BadState if report.bits & _abi.BAD_STATE else BadGradient
            raise kind(str(report), report)
        self.n_rollbacks += 1
        self.in_a_row = 0

    def rolled_back(self, report: Report, step: int) -> None:
        report.action = f"rolled back to step {step} ({self.n_rollbacks} of {self.max_rollbacks})"
        self._log(str(report))
