"""What is done about a bad tensor.

    gradients   raise, report, skip; `rollback` skips too, for the state is still good, and rolls back when there were
                more than max_skips in a row. `skip` raises then.
    state       raise, report, rollback; `skip` raises, for skipping does not mend a parameter.

While GradScaler steps, a bad gradient is its business: it passes the step over and lowers its scale. Only more than
max_skips of them in a row are an alarm.

A function as on_bad is asked on every rank, for each has a report of its own, and the most severe answer is
everybody's: raise before rollback, rollback before skip, skip before report.
"""

import inspect
from typing import Any, Callable, Dict, List, Literal, Optional, Union

from ._ranks import Peers
from ._errors import BadGradient, BadState, BadTensor, Spike
from ._report import Report, some

Answer = Literal["raise", "report", "skip", "rollback"]
OnBad = Union[Answer, Callable[[Report], Optional[str]]]
NAMES = ("raise", "report", "skip", "rollback")
_SEVERITY = ("report", "skip", "rollback", "raise")


def check_on_bad(on_bad: Any) -> None:
    """One of the words, or a function that can be called with a report."""
    if not callable(on_bad):
        if not isinstance(on_bad, str) or on_bad not in NAMES:
            raise ValueError(f"on_bad={on_bad!r}: expected one of {', '.join(NAMES)}, or a function of a report that "
                             "returns one of them")
        return
    try:
        signature = inspect.signature(on_bad)
    except (TypeError, ValueError):  # of some builtins nothing is known
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(on_bad, "__name__", type(on_bad).__name__)
        raise TypeError(f"on_bad={name}{signature}: it is called with one argument, the report ({error})") from None


class Policy:
    """Decides, counts and says so."""

    def __init__(self, on_bad: OnBad, max_skips: int, max_rollbacks: int, window: Optional[int],
                 tell: Callable[..., None], peers: Peers) -> None:
        self._on_bad = on_bad
        self.max_skips = max_skips
        self.max_rollbacks = max_rollbacks
        self.window = window  # steps within which so many rollbacks may be made; None: all that there are
        self._tell_of = tell
        self._peers = peers
        self._n_reported: Dict[str, int] = {}  # by name: how often it was bad, and reported only
        self._step: Optional[int] = None  # the last one that was bad: a closure may be evaluated more than once
        self.n_skipped = 0
        self.n_rollbacks = 0
        self.in_a_row = 0
        self._rolled_back_at: List[int] = []  # steps, as no rollback sets them back
        self._told_of_none = False

    def state_dict(self) -> Dict[str, Any]:
        return {"skipped": self.n_skipped, "rollbacks": self.n_rollbacks, "in_a_row": self.in_a_row,
                "rolled_back_at": list(self._rolled_back_at)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.n_skipped, self.n_rollbacks = int(state["skipped"]), int(state["rollbacks"])
        self.in_a_row = int(state["in_a_row"])
        self._rolled_back_at = [int(step) for step in state["rolled_back_at"]]

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
            answer = self._on_bad(report)
            if answer is None:
                answer = self._none()
            if not isinstance(answer, str) or answer not in NAMES:
                raise ValueError(f"on_bad returned {answer!r}: it has to return one of "
                                 f"{', '.join(map(repr, NAMES))}; 'report' goes on as if nothing had been")
        except BaseException as error:
            # which tensor it was is not to be lost
            self._tell_of("bad", f"{report}; then on_bad raised {type(error).__name__}", report)
            self._peers.most(_SEVERITY.index("raise"))  # the others are not to wait for this rank
            raise
        return _SEVERITY[self._peers.most(_SEVERITY.index(answer))]

    def _none(self) -> str:
        """A function that only wants to know."""
        if not self._told_of_none:
            self._told_of_none = True
            self._tell_of("note", "on_bad returned None, which is taken for 'report': nothing is done about it")
        return "report"

    def _tell(self, report: Report) -> None:
        """What is only reported may be bad from now on at every step: told at the first, and when the count of the same
        tensor's has doubled."""
        name = report.first_bad or ""
        count = self._n_reported[name] = self._n_reported.get(name, 0) + 1
        if count & (count - 1) == 0:
            self._tell_of("bad", str(report) + (f" ({count:,} times so far; told again at {2 * count:,})"
                                                if count > 1 else ""), report)

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
        if scaled and not report.spike and not report.only_spikes and self.in_a_row <= self.max_skips:
            report.action = "left to GradScaler, which passes the step over and lowers its scale"
            return "go"
        answer = self._asked(report)
        if answer == "report":
            report.action = "reported only" + ("" if untouched or scaled else "; the step was made")
            self._tell(report)
            return "go"
        if answer in ("skip", "rollback") and self.in_a_row <= self.max_skips and not untouched:
            report.action = "seen too late to pass the step over"
            self._tell_of("bad", str(report), report)
            return "go"
        if answer in ("skip", "rollback") and self.in_a_row <= self.max_skips:
            self.n_skipped += not again
            report.action = "step skipped, optimizer untouched"
            self._tell_of("skip", str(report), report)
            return "skip"
        if self.in_a_row > self.max_skips and answer != "raise":
            report.action = (f"{some(self.in_a_row, 'bad step')} in a row, more than max_skips={self.max_skips}"
                             + ("; optimizer untouched" if untouched else ""))
            if answer == "rollback":
                return "rollback"
        else:
            report.action = "optimizer untouched" if untouched else "the optimizer has stepped with it"
        raise self.error(report)

    def of_state(self, report: Report, untouched: bool = False) -> str:
        """A report that is not ok: "go" or "rollback". `untouched`: found before the step, which is not made."""
        answer = self._asked(report)
        if answer == "rollback":
            return "rollback"
        if answer == "report":
            report.action = "reported only"
            self._tell(report)
            return "go"
        if answer == "skip":
            report.action = "skipping steps cannot mend it: on_bad='rollback' could"
        if untouched:
            report.action += ("; " if report.action else "") + "optimizer untouched"
        raise self.error(report)

    def error(self, report: Report) -> BadTensor:
        """The exception that tells of a report: the same on every rank."""
        self._tell_of("raise", str(report), report)
        if report.of_state:
            return BadState(str(report), report)
        return (Spike if report.spike or report.only_spikes else BadGradient)(str(report), report)

    def rolls_back(self, report: Report, at: int) -> None:
        """Counts a rollback that is to be made, or raises when there were enough. at: the steps asked for so far."""
        if self.window is not None:
            self._rolled_back_at = [step for step in self._rolled_back_at if at - step < self.window]
        count = len(self._rolled_back_at)
        if count >= self.max_rollbacks:
            within = "in all" if self.window is None else f"within {self.window:,} steps"
            made = f"{some(count, 'rollback')} made already" if count else "no rollback"
            report.action = f"{made}: max_rollbacks={self.max_rollbacks} {within}"
            raise self.error(report)
        self._rolled_back_at.append(at)
        self.n_rollbacks += 1
        self.forget()

    def rolled_back(self, report: Report, step: int, stays: str = "") -> None:
        count = len(self._rolled_back_at)
        report.action = f"rolled back to step {step} ({count} of {self.max_rollbacks}){stays}"
        self._tell_of("rollback", str(report), report)
