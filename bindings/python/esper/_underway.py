"""Scans of a guard: launched, on their way, read. Nothing is decided here.

Three may be on their way at once: `gradients` of a step, the `state` behind it, and one that the user has asked for.
Each stays here until it was acted on, so that an exception in between loses none. Where the optimiser is told on the
device, a flag goes with the scan.
"""

import sys
from typing import Any, Callable, List, Optional

import torch

from . import _abi, _optim, _ranks, _tensors
from ._cover import Cover
from ._errors import GuardError
from ._grads import Gradients
from ._order import Order
from ._pending import SHARDED, Deep, Pending
from ._ranks import Peers
from ._report import Report
from ._scan import Scanner
from ._snapshots import Ring
from ._spikes import Judge
from ._watched import Watched


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Underway:
    """What was launched and not acted on yet."""

    def __init__(self, watched: Watched, cover: Cover, peers: Peers, clip: float, tell: Callable[..., None]) -> None:
        self.watched, self.cover, self.peers = watched, cover, peers
        self.grads = Gradients(watched)
        self.clip = clip
        self._tell = tell
        self.notes: List[str] = []  # of what is not covered, beside what scans find out
        self.last: Optional[Report] = None  # the newest
        self.gradients: Optional[Pending] = None  # of a step
        self.state: Optional[Deep] = None  # and a snapshot that is to be judged by it
        self.asked: Optional[Pending] = None  # by launch(), and not read yet
        self.flag: Optional[_optim.DeviceFlag] = None  # of gradients
        self._state_flag: Optional[_optim.DeviceFlag] = None
        self.captured: List[Pending] = []  # in CUDA graphs, which may be replayed as long as this is there
        self.eager = True  # there was a scan outside of graphs since the last capture
        self.order = Order(watched)
        self.judge: Optional[Judge] = None  # of losses and norms

    @property
    def not_covered(self) -> List[str]:
        count = self.watched.n_of_others
        others = [f"{count:,} parameter{'' if count == 1 else 's'} of the model: another guard's optimizer steps "
                  f"{'it' if count == 1 else 'them'}"] if count else []
        return self.notes + others + self.grads.not_covered + self.cover.not_covered

    def model_changed(self) -> None:
        """On purpose."""
        self.grads.forget()
        self.order.listen()
        self.flag = self._state_flag = None

    def check_capture(self) -> None:
        """GuardError where a scan from before a capture would be read in it."""
        unread = [one for one in (self.gradients, self.asked) if one is not None and one._report is None]
        if unread or (self.state is not None and self.state.report is None):
            raise GuardError("a scan from before the capture was not read yet: call guard.result() before capturing")

    # ----------------------------------------------------------------------------------------------------- gradients

    def one_launch(self, scanners: List[Scanner]) -> bool:
        """Whether one launch sees all gradients."""
        return len(scanners) == 1 and self.grads.plain and not self.peers.shards

    def launch(self, step: int, scanners: List[Scanner], captured: bool = False, flag: Optional[int] = None,
               clip: bool = False) -> Pending:
        """One scan over all gradients. Clipping is part of it where all of them are seen by one launch."""
        clips = clip and self.clip > 0 and self.one_launch(scanners)
        for scanner in scanners:
            scanner.launch(self.clip if clips else 0.0, flag)
        self.grads.drop()
        pending = Pending(self, step, scanners, captured)
        if clip and self.judge is not None:
            pending.losses = self.judge.losses_of_step()
        if captured:
            self.grads.forget_captured()
            self.captured.append(pending)
            self.eager = False
        return pending

    def launch_flagged(self, step: int, scanners: List[Scanner], scaled: bool,
                       scale: Optional[torch.Tensor] = None) -> None:
        """A scan whose verdict is on the device, and on all ranks, when it is done. Where one launch does not see all
        gradients, or there are none here, the host knows first. scale: what they are still multiplied by."""
        flag = self.flag = self.flag or _optim.DeviceFlag(self.device(), self.peers)
        one = self.one_launch(scanners) and scanners[0].devices == [_index(flag.device)]
        pending = self.gradients = self.launch(step, scanners, flag=flag.pointer if one else None, clip=True)
        pending.flagged, pending.scaled = True, scaled
        pending.scale = scale.clone() if isinstance(scale, torch.Tensor) else None  # update() writes into it
        if one:
            flag.convert()
        else:
            report = pending.report()
            flag.say(not report.ok)
            self.clip_now(report)

    def launch_captured(self, step: int, scanners: List[Scanner], flags: bool) -> None:
        """A scan that becomes part of a CUDA graph."""
        flags = flags and self.one_launch(scanners)
        if flags and self.flag is None:
            self.flag = _optim.DeviceFlag(self.device(), self.peers)
        pending = self.launch(step, scanners, True, self.flag.pointer if flags else None, clip=True)
        if flags:
            pending.flag = self.flag  # as long as the graph may be replayed
            self.flag.convert()
        does = "passes over a bad one on the device" if flags else "makes the step, bad or not"
        self._tell("note", f"this step is in a CUDA graph: a replay {does}, and guard.result() after it tells")

    def device(self) -> torch.device:
        """Where the optimiser works."""
        return _tensors.local(self.watched.optimizers[0].param_groups[0]["params"][0]).device

    def clip_now(self, report: Report) -> None:
        """Where the scan could not: its norm is known on the host."""
        if self.clip > 0 and report.ok and report.clip_factor == 1.0 and report.total_norm > self.clip:
            factor = self.clip / report.total_norm
            for _, parameter in self.watched.parameters:
                if parameter.grad is not None:
                    grad = _tensors.local(parameter.grad.detach())
                    (grad._values() if grad.is_sparse else grad).mul_(factor)

    def reduce(self, report: Report, about: int = _ranks.GRADIENTS) -> None:
        """A report on all ranks, which are here."""
        if about == _ranks.GRADIENTS:
            self.sum_shards(report)
        if self.peers:
            found, report.first_rank = self.peers.verdict(report.bits, about)
            report.world = self.peers.world
            report.only_spikes = found == _abi.BAD_SPIKE

    def sum_shards(self, report: Report) -> None:
        """The norm of sharded gradients is everybody's: all ranks are here."""
        if self.peers.shards and report.sum_of_squares is None:
            report.sum_of_squares = self.peers.sum_of_squares(report.readings)
            report.sharded = False
            report.not_covered = [sentence for sentence in report.not_covered if sentence != SHARDED]

    def look_at_versions(self, report: Report) -> None:
        """Of the step that is being judged: whether something has written into all gradients since they came, and
        whether the loop is one that clips."""
        grads = [_tensors.local(parameter.grad) for parameter in self.watched.tensors if parameter.grad is not None]
        report.rewritten = all(not grad.is_inference() and grad._version > 0 for grad in grads)
        frame: Any = sys._getframe(1)
        while frame is not None and not report.clips:
            report.clips, frame = "clip_grad_norm_" in frame.f_code.co_names, frame.f_back

    # ----------------------------------------------------------------------------------------------------- the state

    def launch_state(self, step: int, ring: Optional[Ring], wait: bool) -> None:
        """The state as it is now, with a snapshot of it or without: judged before the next step at the latest. Ranks
        tell each other now, while all are here: on the device where nobody is to wait."""
        scanner = self.cover.scanner()
        entry = ring.take(step) if ring is not None else None  # which may not have the memory: before the launch
        flag = None
        if self.peers and not wait:
            flag = self._state_flag = self._state_flag or _optim.DeviceFlag(self.device(), self.peers)
        one = flag is not None and scanner is not None and scanner.devices == [_index(flag.device)]
        if scanner is not None:
            scanner.launch(flag=flag.pointer if one else None, checksum=1 if ring is not None else 0)
            self.cover.drop()
        state = self.state = Deep(step, scanner, entry)
        if one:
            flag.convert()
        elif flag is not None:
            state.reading = scanner.read() if scanner is not None else None
            flag.say(state.reading is not None and state.reading.bad != 0)
        elif self.peers:
            self._read_state(state)
        state.exchanged = flag is not None

    def _read_state(self, state: Deep) -> Report:
        if state.reading is None and state.scanner is not None:
            state.reading = state.scanner.read()
        report = Report(state.step, [] if state.reading is None else [state.reading], self.not_covered)
        report.of_state = True
        if state.exchanged:
            report.first_rank, report.world = self._state_flag.first_rank(), self.peers.world
        else:
            self.reduce(report, _ranks.STATE)
        state.report = report
        return report

    def look_at_state(self, step: Optional[int]) -> Report:
        """A report on the state as it is now, on all ranks, waited for."""
        scanner = self.cover.scanner()
        readings = []
        if scanner is not None:
            scanner.launch()
            self.cover.drop()
            readings = [scanner.read()]
        return self.report_of_state(step, readings)

    def report_of_state(self, step: Optional[int], readings: List) -> Report:
        report = Report(step, readings, self.not_covered)
        report.of_state = True
        self.reduce(report, _ranks.STATE)
        return report

    # ------------------------------------------------------------------------------------------------------- reading

    def __bool__(self) -> bool:
        return self.gradients is not None or self.state is not None or self.asked is not None

    def note(self, report: Report) -> Report:
        """The newest report."""
        self.last = report
        self.eager = True
        return report

    def was_read(self, pending: Pending) -> None:
        """By who has launched it."""
        self.last = pending._report
        if self.asked is pending:
            self.asked = None

    def read(self) -> None:
        """Waits for what is on its way, and asks no other rank."""
        if self.asked is not None:
            if self.asked._report is None:
                report = self.note(self.asked.report())
                if not report.ok:
                    report.action = "found by launch(): nothing is done about it"
                    self._tell("bad", str(report), report)
            self.asked = None
        pending = self.gradients
        if pending is not None and not pending.noted:
            report = self.note(pending.report())
            if pending.flagged and self.peers:
                report.first_rank, report.world = self.flag.first_rank(), self.peers.world
            pending.noted = True
        if self.state is not None and self.state.report is None:
            state = self._read_state(self.state)
            if not state.ok:
                self.note(state)

    def take_flags(self) -> None:
        """From the optimisers."""
        if self.flag is not None:
            self.flag.take()


def _index(device: torch.device) -> int:
    """As the library counts: -1 is the host."""
    return -1 if device.type == "cpu" else device.index or 0
