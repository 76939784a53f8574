"""Scans that were launched and are not read yet."""

from typing import TYPE_CHECKING, List, Optional, Sequence

import torch

from . import _abi
from ._report import Report
from ._scan import Reading, Scanner
from ._copy import Copy
from ._spikes import Losses

if TYPE_CHECKING:
    from ._underway import Underway

SHARDED = ("total_norm: gradients are sharded, and the other ranks were not asked: result(over_ranks=True), called by "
           "all of them, does")


class Pending:
    """A scan that was launched. `result()` waits for it; one in a CUDA graph may be asked after every replay."""

    # What most scans leave as it is belongs to the class: one is made at every step.
    flagged = False  # the optimiser was told on the device
    scaled = False  # GradScaler steps
    scale: Optional[torch.Tensor] = None
    losses: Optional[Losses] = None  # that were given for this step
    noted = False  # the guard has read it
    flag: object = None  # kept as long as this is
    _report: Optional[Report] = None
    _reduced = False

    def __init__(self, underway: "Underway", step: int, scanners: Sequence[Scanner], captured: bool = False) -> None:
        self.step = step
        self._underway = underway
        self._scanners = list(scanners)
        self._captured = captured

    def __repr__(self) -> str:
        if self._captured:
            return f"<esper.Pending of step {self.step}, in a CUDA graph: result() after a replay>"
        return f"<esper.Pending of step {self.step}, {'not read yet' if self._report is None else self._report}>"

    def read(self) -> List[Reading]:
        return [scanner.read() for scanner in self._scanners]

    def report(self) -> Report:
        """What this rank has found; waits the first time, in a graph every time."""
        if self._report is None or self._captured:
            report = Report(self.step, self.read(), self._underway.not_covered)
            report.scale = self.scale
            report.losses = self.losses
            report.order = self._underway.order.places
            if self._underway.peers.shards and any(item.role == _abi.GRAD for reading in report.readings
                                                 for item in reading.items[:1]):
                report.sharded = True
                report.not_covered.append(SHARDED)
            self._report, self._reduced = report, False
        return self._report

    def result(self, over_ranks: bool = False) -> Report:
        """The report; waits if the scan is not done. It tells of this rank. over_ranks: of all of them, which have to
        ask together: the verdict, and the norm of sharded gradients."""
        report = self.report()
        if over_ranks and not self._reduced:
            self._underway.reduce(report)
            self._reduced = True
        self._underway.was_read(self)
        return report


class NoPending(Pending):
    """What launch gives while ESPER_GUARD=0."""

    def __init__(self) -> None:  # noqa: D107
        pass

    def __repr__(self) -> str:
        return "<esper.Pending, off (ESPER_GUARD)>"

    def result(self, over_ranks: bool = False) -> Report:
        return Report(0, [], ["everything: ESPER_GUARD is off"])


class Deep:
    """A scan of the state that was launched, and the snapshot that it is to judge."""

    def __init__(self, step: int, scanner: Optional[Scanner], entry: Optional[Copy]) -> None:
        self.step = step
        self.scanner = scanner
        self.entry = entry
        self.exchanged = False  # the ranks have told each other on the device
        self.reading: Optional[Reading] = None
        self.report: Optional[Report] = None
