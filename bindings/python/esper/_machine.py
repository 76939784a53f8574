"""The guard as a state machine: what it is doing, and the one function that moves it.

                 attach                     begin                     may step
    DETACHED ──────────────> BETWEEN ──────────────> JUDGING ──────────────────> STEPPING
        ^                     ^ │ │ │                 │   ^                        │   │
        │       detach        │ │ │ └────────┐        │   └── a closure's gradients┘   │ end
        └─────────────────────┼─┘ │ rollback │        │ passed over                    v
                              │   │          v        v                             KEEPING
                              │   │      RESTORING <──┴────── bad state ──────────────┤
                              │   │          │                                        │
                              └───┼──────────┴────────────────────────────────────────┘
                                  └── snapshot ──> KEEPING

    DETACHED    the optimiser steps unseen; no parameter is claimed
    BETWEEN     nothing is half done. Scans may be on their way, to be acted on when the next step begins
    JUDGING     gradients are scanned, ranks asked; the optimiser has not been let near them
    STEPPING    the optimiser is at work: the learning rate is lowered, its flag is set
    KEEPING     the state is scanned, a snapshot may be taken of it
    RESTORING   a rollback is under way. `_restoring` says to where: it is made again if it is broken off

Any of these may be broken off by an exception, Ctrl-C first of all, between any two instructions. So every call begins
with `enter`: when the phase is none in which nothing is half done, `recover` puts in order what was left. It may be
broken off too, and made again.

Where it comes to a decision, verdicts have three sources: the scan of gradients, the scan of the state, and `sources`,
functions of a report on gradients that give a sentence where finite numbers are out of the question (a spike).
"""

import enum
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from . import _abi, _copy, _optim, _ranks, _tensors
from ._copy import Copy, Slot
from ._cover import Cover
from ._errors import BadState, BadTensor, GuardError, NoSnapshot, Unsupported
from ._grads import Gradients
from ._order import Order
from ._pending import SHARDED, Deep, Pending
from ._policy import Policy
from ._ranks import Peers
from ._rate import Rate
from ._report import Report
from ._scan import Scanner
from ._spikes import Judge
from ._snapshots import Restored, Ring
from ._watched import Watched

Tell = Callable[..., None]  # (kind, text, report=None)
Source = Callable[[Report], Optional[str]]


class Phase(enum.Enum):
    DETACHED = "detached"
    BETWEEN = "between steps"
    JUDGING = "judging gradients"
    STEPPING = "stepping"
    KEEPING = "looking at the state"
    RESTORING = "rolling back"


MOVES = {
    Phase.DETACHED: {Phase.BETWEEN},
    Phase.BETWEEN: {Phase.JUDGING, Phase.STEPPING, Phase.KEEPING, Phase.RESTORING, Phase.DETACHED},
    Phase.JUDGING: {Phase.STEPPING, Phase.BETWEEN, Phase.KEEPING, Phase.RESTORING},
    Phase.STEPPING: {Phase.JUDGING, Phase.KEEPING, Phase.RESTORING, Phase.BETWEEN},
    Phase.KEEPING: {Phase.BETWEEN, Phase.JUDGING, Phase.RESTORING},
    Phase.RESTORING: {Phase.BETWEEN, Phase.JUDGING, Phase.KEEPING},
}
_WHOLE = (Phase.BETWEEN, Phase.DETACHED)  # nothing is half done


class Rollback:
    """What a rollback is to bring about. All of it is known before it begins, so that it can be made again."""

    def __init__(self, report: Optional[Report], rng: bool, factor: float) -> None:
        self.report = report  # why; None when guard.rollback() asks for it
        self.rng = rng
        self.factor = factor  # of the learning rate, afterwards


class Round:
    """One step of all optimisers: the gradients are judged at the first, and the verdict is everybody's, as long as no
    other gradients have come since."""

    def __init__(self, go: bool, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.go = go
        self.went = False  # at least one was let go
        self.done: List[int] = []
        self._of = {id(optimizer): _mark(optimizer) for optimizer in optimizers}

    def has(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this optimiser's step belongs to the round."""
        return id(optimizer) not in self.done and self._of.get(id(optimizer)) == _mark(optimizer)


def _mark(optimizer: torch.optim.Optimizer) -> Tuple[int, int]:
    """Changes when another backward pass has come."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return id(parameter.grad), parameter.grad._version
    return 0, 0


class Machine:
    """Comes between gradients and optimisers, and behind them."""

    def __init__(self, watched: Watched, peers: Peers, policy: Policy, rate: Rate, tell: Tell, *, ring: Optional[Ring],
                 cover: Cover, gradients: Gradients, notes: List[str], scan_grads: bool, state_every: int, clip: float,
                 lr_backoff: float) -> None:
        self.watched, self.cover, self.gradients = watched, cover, gradients
        self.peers, self.policy, self.rate, self.ring = peers, policy, rate, ring
        self.optimizers = watched.optimizers
        self.sources: List[Source] = []
        self.order = Order(watched)
        self.judge: Optional[Judge] = None  # of losses and norms
        self._tell = tell
        self._notes = notes
        self._scan_grads = scan_grads
        self._state_every = state_every
        self._clip = clip
        self._lr_backoff = lr_backoff

        self.phase = Phase.BETWEEN
        self.steps = 0  # asked for; a rollback sets it back
        self.n_asked_ever = 0  # no rollback sets this back
        self.n_rollbacks_asked = 0
        self.last: Optional[Report] = None
        self.mode = ""
        self.waits = self.may_flag = self.at_once = False

        # what is on its way
        self._newest: Optional[Pending] = None  # gradients of a step, to be acted on
        self._asked: Optional[Pending] = None  # by launch(), and not read yet
        self._deep: Optional[Deep] = None  # the state, and a snapshot that is to be judged by it
        self._flag: Optional[_optim.DeviceFlag] = None  # of gradients
        self._deep_flag: Optional[_optim.DeviceFlag] = None  # of the state
        self.captured: List[Pending] = []  # in CUDA graphs, which may be replayed as long as this is there
        self._eager = True  # there was a scan outside of graphs since the last capture

        # about the step that is being made, and the one to come
        self._round: Optional[Round] = None
        self._stepped = False
        self._scaling = False  # GradScaler makes it
        self._scaler_went = False  # and has called the optimiser
        self._withheld = False  # this rank leaves a step out that others pass over on the device
        self._is_first = True  # not a closure's second evaluation, which may try anything
        self._before: Optional[Copy] = None  # the state before a step with a closure
        self._slot: Slot = {}  # where that lies
        self._restoring: Optional[Rollback] = None
        self._ready_for = -1  # the version of the gradients for all of which the optimiser has state
        self._of = watched.version  # the parameters of which there is a snapshot
        self.was_away = False  # steps may have been made that the guard has not seen
        self._is_due = False  # a snapshot that was to be taken behind a step which was not made
        self._version = -1  # of a parameter, as the guard's last step has left it
        self._n_unseen = 0  # times that it was another when gradients were zeroed, and there was no step between
        self.choose_mode()

    # -------------------------------------------------------------------------------------------------- the one move

    def move(self, to: Phase) -> None:
        """Every change of phase."""
        if to is not self.phase:
            assert to in MOVES[self.phase], f"{self.phase.value} to {to.value}"
            self.phase = to

    def enter(self) -> None:
        """A call begins. GradScaler's call of the optimiser is within one."""
        if self.phase not in _WHOLE and not self._scaling:
            self.recover()

    def broke_off(self) -> None:
        """An exception is on its way to the caller, who may go on with whatever he likes."""
        if self.phase not in _WHOLE or self._restoring is not None:
            self.recover()

    def recover(self) -> None:
        """After an exception at any point: the optimiser as if the call had not been, no scan half read, no snapshot
        half taken, and a rollback that had begun is made."""
        self.rate.undo()
        if self._flag is not None:
            self._flag.take()
        self._round, self._scaling, self._withheld, self._before = None, False, False, None
        self.phase = Phase.BETWEEN  # the one move that is not in the table
        if self._restoring is not None:
            self._restore()

    # ------------------------------------------------------------------------------------------------------ settings

    def choose_mode(self) -> None:
        """How the verdict reaches the optimiser. The same on every rank: nothing that ranks may differ in counts."""
        names = " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in self.optimizers))
        self.may_flag = False
        if self.policy.decides_before:
            self.mode = "one wait a step: the verdict is known before the optimizer steps"
        elif self.peers.shards:
            self.mode = "one wait a step: gradients are sharded, and looked at over all ranks together"
        elif not self.policy.may_skip:
            self.mode = "no wait: reports follow one step later"
        elif self.sources:
            self.mode = "one wait a step: spikes are judged before the optimizer steps"
        elif not all(map(_optim.takes_flag, self.optimizers)):
            name = next(type(optimizer).__name__ for optimizer in self.optimizers if not _optim.takes_flag(optimizer))
            self.mode = f"one wait a step: {name} has no found_inf to be told on the device (fused ones have)"
        else:
            self.may_flag = True
            self.mode = f"no wait: {names} {'is' if len(self.optimizers) == 1 else 'are'} told on the device through found_inf; reports follow one step later"
        self.waits = self.mode.startswith("one wait")
        if self._clip > 0 and not self.waits:
            self.mode += " (clip= waits where gradients are sparse, views with gaps or on several devices)"
        self.at_once = self.waits or all(form[1].type == "cpu" for form in self.watched.forms)

    def look_for_spikes(self, judge: Judge) -> None:
        """From now on losses and norms are judged, too."""
        self.judge = judge
        self.sources.append(judge.source)
        self.choose_mode()

    @property
    def not_covered(self) -> List[str]:
        count = self.watched.n_of_others
        others = [f"{count:,} parameter{'' if count == 1 else 's'} of the model: another guard's optimizer steps "
                  f"{'it' if count == 1 else 'them'}"] if count else []
        unseen = [self._unseen_text()] if self._n_unseen >= 3 else []
        return self._notes + others + unseen + self.gradients.not_covered + self.cover.not_covered

    def model_changed(self) -> None:
        """On purpose: takes it as it is now."""
        self.peers.look(self.watched.model)
        self.gradients.forget()
        self.order.listen()
        self._flag = self._deep_flag = None
        self._round = None
        self._of = self.watched.version
        self.choose_mode()

    def detached(self) -> None:
        """Hooks are gone."""
        self.rate.undo()
        self.order.stop()
        if self._flag is not None:
            self._flag.take()
        self.was_away = True
        self._version = -1

    # ---------------------------------------------------------------------------------------------- before the step

    def capturing(self) -> bool:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def check_capture(self) -> None:
        unread = [pending for pending in (self._newest, self._asked) if pending is not None and pending._report is None]
        if unread or (self._deep is not None and self._deep.report is None):
            raise GuardError("a scan from before the capture was not read yet: call guard.result() before capturing")

    def begin(self, optimizer: torch.optim.Optimizer, first: bool = True) -> bool:
        """Whether the optimiser may step, as far as is known; where nothing is known yet it is told on the device.
        first: this is not a closure's second evaluation."""
        if self._scaling:
            self._scaler_went = True
            return True
        self.move(Phase.JUDGING)
        if first and self._round is not None and self._round.has(optimizer):
            go = self._round.go
            if self._newest is not None and self._newest.flagged:
                self._flag.give(optimizer)
        else:
            go = (not first or self._close_round()) and self._judge(optimizer, first)
            if first and len(self.optimizers) > 1:
                self._round = Round(go, self.optimizers)
        self.move(Phase.STEPPING if go else Phase.BETWEEN)
        return go

    def _judge(self, optimizer: torch.optim.Optimizer, first: bool) -> bool:
        self._withheld = False
        self._is_first = first
        if self._flag is not None:
            self._flag.take()  # of a step that was broken off: it is not a GradScaler's
        captured = self.capturing()
        if captured:
            self.check_capture()
        elif first and not self._come_back():
            return False
        if first:
            self.steps += 1
            self.n_asked_ever += 1
        if not self._scan_grads:
            return True
        self.order.settle()
        scanners = self.gradients.collect(captured)
        if self.watched.version != self._of and not captured and not self._snapshot_of_more():
            return False
        if not scanners and not self.peers:
            return True
        scaled = hasattr(optimizer, "found_inf")
        if scaled and self._clip > 0 and getattr(optimizer, "grad_scale", None) is not None:
            raise Unsupported("clip= and a fused optimizer under GradScaler: gradients are still scaled here. Give the "
                              "scaler to attach(scaler=...) or guard.step(optimizer, scaler)")
        if captured:
            return self._capture(scanners, scaled, optimizer)
        return self._scan_and_judge(scanners, scaled, optimizer)

    def _come_back(self) -> bool:
        """The loop is here again: what the step before has launched is acted on. False: the state was rolled back, and
        these gradients are of the one before."""
        if self.ring is not None:
            self.ring.come_back()
        self._tell_of_join()
        return self.settle()

    def _snapshot_of_more(self) -> bool:
        """Parameters have come (add_param_group): there is to be a way back with them before the first is spoilt."""
        self._of = self.watched.version
        if self.ring is None or not self.ring.good or self.watched.n_added == 0:
            return True
        self.move(Phase.KEEPING)
        self._launch_deep(self.ring)
        self._read_launched()
        good = self._act_on_deep()
        if self.phase is Phase.KEEPING:
            self.move(Phase.JUDGING)
        return good

    def _tell_of_join(self) -> None:
        if self.peers.within_join and not self.peers.told_of_join:
            self.peers.told_of_join = True
            self._tell("note", "DDP.join(): a rank without inputs cannot be asked, so each decides by the gradients that "
                       "DDP has made the same on all; a rollback is not made here, what would need one raises")

    def _scan_and_judge(self, scanners: List[Scanner], scaled: bool, optimizer: torch.optim.Optimizer) -> bool:
        """As `mode` says. Over ranks the way depends on nothing that is this rank's alone: every one of them votes."""
        one = self._one_launch(scanners)
        if scaled or (self.may_flag and (self.peers or (one and self._ready()))):
            return self._tell_on_device(scanners, scaled, optimizer)
        if self.waits or self.may_flag:
            return self._decide(self._launch_step(scanners))
        pending = self._newest = self._launch_step(scanners)  # on_bad="report"
        if self._clip > 0 and not one:
            self._clip_now(pending.report())
        return True

    def _launch_step(self, scanners: List[Scanner], flag: Optional[int] = None) -> Pending:
        """The scan of a step: the losses that were given since the last one are its own."""
        pending = self.launch_all(scanners, flag=flag, clip=True)
        if self.judge is not None and self._is_first:
            pending.losses = self.judge.losses_of_step()
        return pending

    def launch_all(self, scanners: List[Scanner], captured: bool = False, flag: Optional[int] = None,
                   clip: bool = False) -> Pending:
        """One scan over all gradients. Clipping is part of it where all of them are seen by one launch."""
        clips = clip and self._clip > 0 and self._one_launch(scanners)
        for scanner in scanners:
            scanner.launch(self._clip if clips else 0.0, flag)
        self.gradients.drop()
        pending = Pending(self, self.steps, scanners, captured)
        if captured:
            self.gradients.forget_captured()
            self.captured.append(pending)
            self._eager = False
        return pending

    def _one_launch(self, scanners: List[Scanner]) -> bool:
        return len(scanners) == 1 and self.gradients.plain and not self.peers.shards

    def _ready(self) -> bool:
        """Whether the optimisers have state for all gradients, so that they can pass over a step by themselves."""
        if self._ready_for != self.gradients.version or not all(optimizer.state for optimizer in self.optimizers):
            ready = all(map(_optim.has_state, self.optimizers))
            self._ready_for = self.gradients.version if ready else -1
        return self._ready_for >= 0

    def _tell_on_device(self, scanners: List[Scanner], scaled: bool, optimizer: torch.optim.Optimizer) -> bool:
        self._launch_flagged(scanners, scaled, getattr(optimizer, "grad_scale", None) if scaled else None)
        self._flag.give(optimizer)
        if scaled or not self.peers or self._ready():
            return True
        # this rank's optimiser cannot pass over its first step by itself; all is acted on later, as on the others
        self._withheld = self._flag.first_rank() is not None
        return not self._withheld

    def _launch_flagged(self, scanners: List[Scanner], scaled: bool, scale: Optional[torch.Tensor] = None) -> None:
        """A scan whose verdict is on the device, and on all ranks, when it is done. Where one launch does not see all
        gradients, or there are none here, the host knows first. scale: what they are still multiplied by."""
        flag = self._flag = self._flag or _optim.DeviceFlag(self._device(), self.peers)
        one = self._one_launch(scanners) and scanners[0].devices == [_index(flag.device)]
        pending = self._newest = self._launch_step(scanners, flag.pointer if one else None)
        pending.flagged, pending.scaled = True, scaled
        pending.scale = scale.clone() if isinstance(scale, torch.Tensor) else None  # update() writes into it
        if one:
            flag.convert()
        else:
            report = pending.report()
            flag.say(not report.ok)
            self._clip_now(report)

    def _device(self) -> torch.device:
        """Where the optimiser works."""
        return _tensors.local(self.optimizers[0].param_groups[0]["params"][0]).device

    def _capture(self, scanners: List[Scanner], scaled: bool, optimizer: torch.optim.Optimizer) -> bool:
        """This step becomes part of a CUDA graph: nothing is known on the host when it is replayed."""
        flags = (scaled or self.may_flag) and self._one_launch(scanners)
        if flags and self._flag is None:
            self._flag = _optim.DeviceFlag(self._device(), self.peers)
        pending = self.launch_all(scanners, True, self._flag.pointer if flags else None, clip=True)
        if flags:
            pending.flag = self._flag  # as long as the graph may be replayed
            self._flag.convert()
            self._flag.give(optimizer)
        does = "passes over a bad one on the device" if flags else "makes the step, bad or not"
        self._tell("note", f"this step is in a CUDA graph: a replay {does}, and guard.result() after it tells")
        return True

    # ------------------------------------------------------------------------------------------------- the decision

    def _decide(self, pending: Pending, scaled: bool = False) -> bool:
        """The verdict is waited for, and that of the other ranks."""
        report = self._note(pending.report())
        self._sum_shards(report)
        self._consult(report)
        self.reduce(report)
        if not report.ok:
            self._look_at_versions(report)
            return self._act_on_gradients(report, untouched=True, scaled=scaled) == "go"
        self.policy.healthy()
        self._clip_now(report)
        return True

    def _consult(self, report: Report) -> None:
        """Whether finite gradients are out of the question."""
        if report.bits == 0 and self._is_first:
            for source in self.sources:
                said = source(report)
                if said:
                    report.spike = said
                    report.bits |= _abi.BAD_SPIKE
                    return

    def _clip_now(self, report: Report) -> None:
        """Where the scan could not: its norm is known on the host."""
        if self._clip > 0 and report.ok and report.clip_factor == 1.0 and report.total_norm > self._clip:
            factor = self._clip / report.total_norm
            for _, parameter in self.watched.parameters:
                if parameter.grad is not None:
                    grad = _tensors.local(parameter.grad.detach())
                    (grad._values() if grad.is_sparse else grad).mul_(factor)

    def reduce(self, report: Report, about: int = _ranks.GRADIENTS) -> None:
        """A report on all ranks, which are here."""
        if about == _ranks.GRADIENTS:
            self._sum_shards(report)
        if self.peers:
            found, report.first_rank = self.peers.verdict(report.bits, about)
            report.world = self.peers.world
            report.only_spikes = found == _abi.BAD_SPIKE

    def _sum_shards(self, report: Report) -> None:
        """The norm of sharded gradients is everybody's: all ranks are here."""
        if self.peers.shards and report.sum_of_squares is None:
            report.sum_of_squares = self.peers.sum_of_squares(report.readings)
            report.sharded = False
            report.not_covered = [sentence for sentence in report.not_covered if sentence != SHARDED]

    def _look_at_versions(self, report: Report) -> None:
        """Gradients of the step that is being judged: whether something has written into all of them since they came."""
        grads = [parameter.grad for parameter in self.watched.tensors if parameter.grad is not None]
        report.rewritten = all(_tensors.local(grad)._version > 0 for grad in grads)

    def _act_on_gradients(self, report: Report, untouched: bool, scaled: bool) -> str:
        """What is done about bad gradients: "go", "skip" or "rollback". When the state is bad although no step was made
        with them (untouched: then all ranks are here), that is why."""
        if untouched and not self._act_on_deep():  # the state behind that step is on its way already
            return "rollback"
        deeper = self._look_deeper(report.step) if untouched else None
        if deeper is not None:
            self.last = deeper
            answer, report = self.policy.of_state(deeper, untouched=True), deeper
        else:
            answer = self.policy.of_gradients(report, untouched, scaled)
        if answer == "rollback":
            self._forget_launched()
            self._roll_back(report)
        return answer

    def _look_deeper(self, step: Optional[int]) -> Optional[Report]:
        """A report on the state as it is now, if it is bad."""
        scanner = self.cover.scanner()
        if scanner is None and not self.peers:
            return None
        readings = []
        if scanner is not None:
            scanner.launch()
            self.cover.drop()
            readings = [scanner.read()]
        report = Report(step, readings, self.not_covered)
        report.of_state = True
        self.reduce(report, _ranks.STATE)
        return None if report.ok else report

    # -------------------------------------------------------------------------------------------------- the step itself

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimiser is called now."""
        if self._scaling:
            self.rate.apply(optimizer)
            return
        self.move(Phase.STEPPING)
        self.rate.apply(optimizer)
        if self.ring is not None:
            self.rate.look_before(optimizer)

    def step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """It has returned, or was ended from within its closure."""
        self.rate.look_after()
        self.rate.undo()

    def remember(self, optimizer: torch.optim.Optimizer) -> None:
        """The state before a step whose closure may be evaluated after parameters have moved."""
        if not self.capturing() and not self.policy.only_reports:
            self._before = _copy.take(self.steps, self._slot, _copy.live_tensors(self.cover), self.cover,
                                      _copy.Extras({}, self.cover), torch.empty_like)

    def take_back(self) -> None:
        """A step with a closure is not to be: everything as it was before it, unless a rollback has done more. Buffers
        too, which evaluations have changed."""
        self.rate.undo()
        before, self._before = self._before, None
        if before is not None:
            _copy.put_back(before, self.cover, _copy.Extras({}, self.cover), set())

    def end(self, optimizer: torch.optim.Optimizer, went: bool) -> None:
        """Behind the optimiser."""
        if self._flag is not None:
            self._flag.take()
        self._before = None
        if self._scaling:
            return
        self._end_of_one(optimizer, went)

    def _end_of_one(self, optimizer: torch.optim.Optimizer, went: bool) -> None:
        self._stepped = went
        if self._round is not None:
            self._round.done.append(id(optimizer))
            self._round.went = self._round.went or went
            if len(self._round.done) < len(self.optimizers):
                self.move(Phase.BETWEEN)
                return
            went, self._round = self._round.went, None
        self._keep(went or self._withheld)  # others have made it, as far as they know

    def _close_round(self) -> bool:
        """A new step begins while some optimisers were not called in the one before. False: it was rolled back."""
        unfinished, self._round = self._round, None
        if unfinished is None or not unfinished.done:
            return True
        good = self._keep(unfinished.went)
        self.move(Phase.JUDGING)
        return good

    # ----------------------------------------------------------------------------------------- behind the optimiser

    def _keep(self, went: bool) -> bool:
        """Looks at the state and takes a snapshot, when they are due. False: the state was bad, and rolled back."""
        self._n_unseen = 0
        self._version = self._version_now()
        if self.capturing():
            self.move(Phase.BETWEEN)
            return True
        ring, good = self.ring, True
        due = ring is not None and (self._is_due or self.steps % ring.config.every == 0)
        if not went:
            self._is_due = due and not (ring.good and ring.good[-1].step == self.steps)
            self.move(Phase.BETWEEN)
            return True
        if due or (self._state_every and self.steps % self._state_every == 0):
            self.move(Phase.KEEPING)
            self._launch_deep(ring if due else None)
            self._is_due = False
            if self.at_once:  # a checkpoint may be next
                good = self.settle()
        elif ring is not None and not ring.knows_state and any(optimizer.state for optimizer in self.optimizers):
            ring.plan_ahead()
        self.move(Phase.BETWEEN)
        return good

    def _launch_deep(self, ring: Optional[Ring]) -> None:
        """The state as it is now, with a snapshot of it or without: judged before the next step at the latest. Ranks
        tell each other now, while all are here: on the device where nobody is to wait."""
        scanner = self.cover.scanner()
        entry = ring.take(self.steps) if ring is not None else None  # which may not have the memory: before the launch
        flag = None
        if self.peers and not self.at_once:
            flag = self._deep_flag = self._deep_flag or _optim.DeviceFlag(self._device(), self.peers)
        one = flag is not None and scanner is not None and scanner.devices == [_index(flag.device)]
        if scanner is not None:
            scanner.launch(flag=flag.pointer if one else None, checksum=1 if ring is not None else 0)
            self.cover.drop()
        deep = self._deep = Deep(self.steps, scanner, entry)
        if one:
            flag.convert()
        elif flag is not None:
            deep.reading = scanner.read() if scanner is not None else None
            flag.say(deep.reading is not None and deep.reading.bad != 0)
        elif self.peers:
            self._read_deep(deep)
        deep.exchanged = flag is not None

    def _read_deep(self, deep: Deep) -> None:
        if deep.reading is None and deep.scanner is not None:
            deep.reading = deep.scanner.read()
        report = Report(deep.step, [] if deep.reading is None else [deep.reading], self.not_covered)
        report.of_state = True
        if deep.exchanged:
            report.first_rank, report.world = self._deep_flag.first_rank(), self.peers.world
        else:
            self.reduce(report, _ranks.STATE)
        deep.report = report

    # ----------------------------------------------------------------------------------------- what is on its way

    def _note(self, report: Report) -> Report:
        self.last = report
        self._eager = True
        return report

    def was_read(self, pending: Pending) -> None:
        """By who has launched it."""
        self.last = pending._report
        if self._asked is pending:
            self._asked = None

    @property
    def has_launched(self) -> bool:
        return self._newest is not None or self._deep is not None or self._asked is not None

    def launched(self, pending: Pending) -> None:
        """By launch(), which somebody called."""
        self._asked = pending

    def _read_launched(self) -> None:
        """Waits for what is on its way, and asks no other rank. What is to be done about it comes with `settle`."""
        asked, self._asked = self._asked, None
        if asked is not None and asked._report is None:
            report = self._note(asked.report())
            if not report.ok:
                report.action = "found by launch(): nothing is done about it"
                self._tell("bad", str(report), report)
        pending = self._newest
        if pending is not None and not pending.noted:
            pending.noted = True
            report = self._note(pending.report())
            if pending.flagged and self.peers:
                report.first_rank, report.world = self._flag.first_rank(), self.peers.world
        if self._deep is not None and self._deep.report is None:
            self._read_deep(self._deep)
            if not self._deep.report.ok:
                self._note(self._deep.report)

    def settle(self) -> bool:
        """Reads what was launched in the step before and acts on it. False: the state was rolled back."""
        if self._newest is None and self._deep is None and self._asked is None:
            return True
        self._read_launched()
        return self._act_on_newest() and self._act_on_deep()

    def read(self) -> Optional[Report]:
        """The newest report, waited for. Acted on where no other rank has to be there for it."""
        if self.peers:
            self._read_launched()
            if self.last is not None and not self.last.ok and not self.last.action:
                self.last.action = "to be acted on at the next step"
        else:
            self.settle()
        if self.captured:
            try:
                return self.captured[-1].result()
            except GuardError as error:
                if not self._eager or "no replay" not in str(error):
                    raise
        return self.last

    @property
    def stepped(self) -> bool:
        """Whether the last step that was asked for was made. Waits where only the device knows."""
        pending = self._newest
        if pending is not None and pending.flagged:
            self._read_launched()
            return self._stepped and pending.report().ok
        return self._stepped

    # What is on its way is forgotten when it was acted on, and not before: whatever breaks that off, it is not lost.

    def _act_on_newest(self) -> bool:
        pending, answer = self._newest, "go"
        if pending is None:
            return True
        try:
            report = pending.report()
            self._consult(report)
            if report.ok:
                self.policy.healthy()
            else:
                untouched = pending.flagged and not report.bits & _abi.BAD_SPIKE  # the device knows of no spikes
                answer = self._act_on_gradients(report, untouched, scaled=pending.scaled)
        except Exception:
            self._newest = None
            raise
        self._newest = None
        return answer != "rollback"

    def _act_on_deep(self) -> bool:
        deep, answer = self._deep, "go"
        if deep is None:
            return True
        try:
            if deep.entry is not None:
                self.ring.judge(deep.entry, deep.reading, deep.report.ok)
            if not deep.report.ok:
                self.last = deep.report
                answer = self.policy.of_state(deep.report)
                if answer == "rollback":
                    self._roll_back(deep.report)
        except Exception:
            self._deep = None
            raise
        self._deep = None
        return answer == "go"

    def _forget_launched(self) -> None:
        """What is on its way is read, and nothing is done about it: the state it is of will be another."""
        self._read_launched()
        self._newest = None
        deep, self._deep = self._deep, None
        if deep is not None and deep.entry is not None:
            self.ring.judge(deep.entry, deep.reading, deep.report.ok)

    def read_and_forget(self, action: str) -> Tuple[Optional[Report], Optional[Report]]:
        """What is on its way and bad, gradients and state, with `action` said of it. Other ranks are not asked."""
        pending, deep = self._newest, self._deep
        self._forget_launched()
        gradients, state = None, None
        if pending is not None and not pending.scaled and not pending.report().ok:  # GradScaler sees to its own
            gradients = pending.report()
            gradients.action = "step skipped, optimizer untouched" if pending.flagged else action
        if deep is not None and not deep.report.ok:
            state = deep.report
            state.action = action
        return gradients, state

    # ---------------------------------------------------------------------------------------- snapshots and rollbacks

    def snapshot(self) -> bool:
        """Takes one now, judged before this returns. False: the state is not finite."""
        try:
            self.settle()
        except BadState as error:
            self._tell("bad", str(error), error.report)
            return False
        self.move(Phase.KEEPING)
        self._launch_deep(self.ring)
        self._read_launched()
        deep, self._deep = self._deep, None
        self.ring.judge(deep.entry, deep.reading, deep.report.ok)
        self.move(Phase.BETWEEN)
        if not deep.report.ok:
            self.last = deep.report
            deep.report.action = "no snapshot was taken of it"
            self._tell("bad", str(deep.report), deep.report)
            return False
        self.ring.close_iteration()
        self.was_away = self._is_due = False
        self._of = self.watched.version
        return True

    def snapshot_first(self) -> None:
        """There is to be a way back from the start, and not to before steps that were made while nobody looked."""
        if self.ring is None or (self.ring.good and not self.was_away) or self.snapshot():
            return
        report = self.last
        if self.policy.of_state(report) == "rollback":
            if not self.ring.good:
                report.action = "and there is no snapshot from before that"
                raise BadState(str(report), report)
            self._roll_back(report)

    def roll_back_now(self) -> int:
        """Because guard.rollback() asks for it."""
        self._forget_launched()
        self._restoring = Rollback(None, True, self.rate.factor * self._lr_backoff)
        return self._restore()

    def _roll_back(self, report: Report) -> None:
        """Because of what a report tells. The budget is asked before anything is touched."""
        if self.ring is None:
            raise NoSnapshot(f"{report}; there is nothing to roll back to: make the guard with "
                             "snapshot=esper.Snapshots()")
        if self.peers.within_join:
            report.action = "a rollback is not made within DDP.join(), where ranks cannot go back together"
            raise self.policy.error(report)
        self.policy.rolls_back(report, self.n_asked_ever)
        self._restoring = Rollback(report, False, self.rate.factor * self._lr_backoff)
        self._restore()

    def _restore(self) -> int:
        """Makes the rollback that `_restoring` says. Made again, it comes to the same."""
        wanted = self._restoring
        self.move(Phase.RESTORING)
        self._before = None
        step = self.steps
        try:
            restored = self.ring.restore(wanted.rng)
            self._check_restored(wanted, restored)
        except GuardError:
            self._restoring = None
            self.move(Phase.BETWEEN)
            raise
        self._newest = self._deep = None  # of the state that is gone
        self.steps = restored.entry.step
        self.rate.factor = wanted.factor
        self._ready_for = -1  # state may have gone
        self._stepped = False
        self.was_away = self._is_due = False
        self.policy.forget()
        if self.judge is not None:
            self.judge.restart()
        self._restoring = None
        self._tell_rollback(wanted, restored, step)
        self.move(Phase.BETWEEN)
        return restored.entry.step

    def _check_restored(self, wanted: Rollback, restored: Restored) -> None:
        """Every tensor is finite now, or it is no rollback: one that came after the snapshot may be the bad one."""
        now = Report(restored.entry.step, restored.readings, self.not_covered)
        now.of_state = True
        self.reduce(now, _ranks.STATE)
        if now.ok:
            return
        self.last = now
        absent = f"which is not in the snapshot of step {restored.entry.step}" if now.first_bad in restored.left else \
            f"after the snapshot of step {restored.entry.step} was put back"
        now.action = f"{absent}: not rolled back; load a checkpoint, or mend it and call guard.refresh()"
        raise BadState(str(now), now)

    def _tell_rollback(self, wanted: Rollback, restored: Restored, step: int) -> None:
        stays = ""
        if restored.left:
            more = f" and {len(restored.left) - 1} more" if len(restored.left) > 1 else ""
            stays = f"; {restored.left[0]}{more} came after that snapshot and stay as they are"
        if wanted.report is None:
            self.n_rollbacks_asked += 1
            report = self.last = Report(restored.entry.step, restored.readings, self.not_covered)
            report.of_state = True
            report.action = f"put back at step {step}, as guard.rollback() asked for{stays}"
            self._tell("rollback", str(report), report)
        else:
            self.policy.rolled_back(wanted.report, restored.entry.step, stays)
        if self._lr_backoff != 1.0:
            self._tell("rate", f"the learning rate is multiplied by {self.rate.factor:g} from now on (lr_backoff)"
                       + ("; that does not reach steps in a CUDA graph: capture them again" if self.captured else ""))

    # -------------------------------------------------------------------------------------------------- GradScaler

    def scaled_step(self, scaler: Any, optimizer: torch.optim.Optimizer, do: Callable[[], Any]) -> Any:
        """A step that GradScaler makes: gradients are unscaled first, what the scan finds goes into its found-inf."""
        self._scaling = False
        self.enter()
        try:
            self.move(Phase.JUDGING)
            self._withheld, self._is_first = False, True
            for one in self.optimizers:
                if not unscaled(scaler, one):
                    scaler.unscale_(one)
            if self._round is None or not self._round.has(optimizer):
                go = self._close_round() and self._come_back()
                if go:
                    self.steps += 1
                    self.n_asked_ever += 1
                    self.order.settle()
                    scanners = self.gradients.collect() if self._scan_grads else []
                    if scanners or (self._scan_grads and self.peers):
                        self._feed(scaler, scanners)
                if len(self.optimizers) > 1:
                    self._round = Round(go, self.optimizers)
                if not go:
                    self._stepped = False
                    self.move(Phase.BETWEEN)
                    return None  # rolled back: these gradients are of the state before
            elif not self._round.go:
                self._end_of_one(optimizer, False)
                return None
            self.move(Phase.STEPPING)
            self._scaling, self._scaler_went = True, False
            try:
                result = do()
            finally:
                self._scaling = False
            self._end_of_one(optimizer, self._scaler_went)
        except BaseException:
            self.broke_off()
            raise
        return result

    def _feed(self, scaler: Any, scanners: List[Scanner]) -> None:
        found = [tensor for optimizer in self.optimizers
                 for tensor in _optim.scaler_state(scaler, optimizer)["found_inf_per_device"].values()]
        if not self.peers.shards and not self.sources and (self.peers or self._one_launch(scanners)):
            self._launch_flagged(scanners, scaled=True)
            for tensor in found:
                torch.maximum(tensor, self._flag.found.to(tensor.device).expand_as(tensor), out=tensor)
            return
        pending = self._launch_step(scanners)
        go = self._decide(pending, scaled=True)
        report = pending.report()
        if not go or not (report.ok or report.spike or report.only_spikes):
            for tensor in found:
                tensor.fill_(1.0)

    # --------------------------------------------------------------------------------- steps that go round the guard

    def _version_now(self) -> int:
        """Counts the changes of a parameter in place."""
        for group in self.optimizers[0].param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    return _tensors.local(parameter)._version
        return -1

    def passed_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are zeroed: an iteration is over, or begins. Parameters that change from one to the next without a
        step that the guard has seen are stepped by another way."""
        version = self._version_now()
        if self._version == -1 or version == self._version:
            self._version = version
            return
        self._version = version
        self._n_unseen += 1
        if self._n_unseen == 3:
            self._tell("alarm", self._unseen_text())

    def _unseen_text(self) -> str:
        name = type(self.optimizers[0]).__name__
        return (f"parameters change, but {name}.step() is not called: nothing is guarded. Call optimizer.step() itself, "
                "not a method taken from it before attach(), and give the guard the optimizer whose step() is called")

    @property
    def n_unseen(self) -> int:
        """Steps that went round the guard, as far as it has noticed, since the last one that did not."""
        return self._n_unseen + (self._version not in (-1, self._version_now()))

    # ----------------------------------------------------------------------------------------------- to and from disk

    def state_dict(self) -> Dict[str, Any]:
        return {"steps": self.steps, "asked_ever": self.n_asked_ever, "rollbacks_asked": self.n_rollbacks_asked}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.steps = int(state["steps"])
        self.n_asked_ever = int(state["asked_ever"])
        self.n_rollbacks_asked = int(state["rollbacks_asked"])


def unscaled(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler has unscaled the gradients of an optimiser since its last update."""
    noted = _optim.scaler_state(scaler, optimizer)
    if noted is None:
        raise Unsupported(f"{type(scaler).__name__} is not a GradScaler that the guard knows")
    return bool(noted["found_inf_per_device"])


def _index(device: torch.device) -> int:
    """As the library counts: -1 is the host."""
    return -1 if device.type == "cpu" else device.index or 0
