"""The guard: between gradients and optimiser, and behind it."""

import atexit
import os
import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from . import _abi, _dist, _former, _inject, _log, _names, _optim, _options, _refuse, _tensors
from ._errors import BadState, GuardError, NoSnapshot, Unsupported
from ._grads import Gradients
from ._locate import Location, locate
from ._pending import SHARDED, Deep, NoPending, Pending
from ._policy import OnBad, Policy, check_on_bad
from ._rate import Rate
from ._report import Report, some
from ._scan import Scanner
from ._snapshots import Entry, Ring, Snapshots
from ._state import State
from ._watched import Watched


_attached: "weakref.WeakSet[Guard]" = weakref.WeakSet()


@atexit.register
def _read_at_exit() -> None:
    """What the last steps have launched and nobody has read is logged."""
    for guard in list(_attached):
        guard._read_quietly("found when Python ended: nothing was done about it")


def is_off() -> bool:
    """ESPER_GUARD=0, false, off or no."""
    return os.environ.get("ESPER_GUARD", "").strip().lower() in ("0", "false", "off", "no")


class Guard(_former.Names):
    """Watches the training of a model.

    model, optimizer: what is trained. The model may be compiled, in DistributedDataParallel, or sharded (FSDP2).
    on_bad: "raise" (unless said), "report", "skip", "rollback", or a function of the Report that returns one of these.
    scan: what is scanned at every step: "grad"; "param", "moment" and "buffer" too for the state after every step.
    state_every: parameters, buffers and optimiser state are scanned after every so many steps; 0 is never.
    clip: the largest norm of the gradients; they are scaled down to it by the scan, without a pass of their own.
    snapshot: esper.Snapshots(...), to be able to roll back. With on_bad="rollback" there is one unless said.
    state: more that a rollback restores, by name: objects with state_dict and load_state_dict (scheduler, sampler).
    group: "auto" (that of DDP or of the mesh), None, or the process group whose ranks decide together.
    max_rollbacks: how many are made before a bad tensor raises after all. lr_backoff: what each multiplies the
    learning rate by, while the optimiser steps: schedulers do not see it. max_skips: so many bad steps in a row are
    passed over, one more is worse.
    log: a function of a line, or a path; stderr unless said.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, on_bad: OnBad = "raise", *,
                 scan: Union[str, Sequence[str]] = ("grad",), state_every: Optional[int] = 100,
                 clip: Optional[float] = None, snapshot: Optional[Snapshots] = None,
                 state: Optional[Dict[str, Any]] = None, group: Any = "auto", max_rollbacks: int = 3,
                 lr_backoff: float = 1.0, max_skips: int = 10, log: _log.Log = None,
                 deep_every: Optional[int] = None) -> None:
        _options.is_kind("Guard(model, optimizer)", model, optimizer)
        check_on_bad(on_bad)
        if deep_every is not None:
            _former.warn("Guard(deep_every=...)", "state_every")
            state_every = deep_every
        scan = _options.roles("", scan)
        _options.counts(state_every=state_every or 0, max_skips=max_skips, max_rollbacks=max_rollbacks)
        _options.kept(snapshot, state)
        _options.is_group(group)
        self._clip = _options.norm(clip)
        self._lr_backoff = _options.backoff(lr_backoff, optimizer)
        told = _options.backs_off(self._lr_backoff, on_bad, snapshot)
        self._log = _log.make(log)
        self.optimizer = optimizer
        self.last: Optional[Report] = None  #: of the previous step, or of this one where the guard waits; never waits
        self.steps = 0  #: steps of the optimiser that were asked for; a rollback sets it back
        self.n_rollbacks_asked = 0  #: calls of rollback(), which do not count among `n_rollbacks`
        self.enabled = not is_off()
        self._model = model
        self._on_bad = on_bad
        self._attachment: Optional[_optim.Attachment] = None
        self._scaler: Optional[_optim.ScalerAttachment] = None
        self._within_scaler = False
        self._rate = Rate(optimizer)
        self.mode = "off (ESPER_GUARD)"
        self._told_off = False
        if self.enabled:
            _abi.load()
            self._notes = _refuse.check(model)
        _options.belong("Guard(model, optimizer)", model, optimizer)
        if not self.enabled:
            return
        self._peers = _dist.Peers(model, group)
        self._policy = Policy(on_bad, max_skips, max_rollbacks, self._log, self._peers)
        self._scan_grads = "grad" in scan
        self._state_every = 1 if any(role in scan for role in _options.STATE_ROLES) else state_every or 0
        self._begin()
        if snapshot is None and on_bad == "rollback":
            snapshot = Snapshots()
        self._watched = Watched(model, optimizer)
        try:
            self._gradients = Gradients(self._watched)
            self._state = State(self._watched)
            self._ring = None
            if snapshot is not None:
                self._ring = Ring(snapshot, self._state, state or {}, self._peers, self._log)
            self._choose_mode()
            self._tell_not_judged()
            if told is not None:
                self._log(told)
        except BaseException:
            self._watched.release()
            raise

    def _begin(self) -> None:
        """Nothing is on its way yet."""
        self._flag: Optional[_optim.DeviceFlag] = None  # of gradients
        self._deep_flag: Optional[_optim.DeviceFlag] = None  # of the state
        self._newest: Optional[Pending] = None  # of a step, to be acted on
        self._asked: Optional[Pending] = None  # by launch(), and not read yet
        self._captured: List[Pending] = []  # in CUDA graphs, which may be replayed as long as this is there
        self._eager = True  # there was a scan outside of graphs since the last capture
        self._deep: Optional[Deep] = None
        self._went = False  # GradScaler has called the optimiser
        self._withheld = False  # this rank leaves a step out that others pass over on the device
        self._ready_for = -1  # the version of the gradients for all of which the optimiser has state
        self._was_away = False  # steps may have been made that the guard has not seen
        self._is_due = False  # a snapshot that was to be taken behind a step which was not made

    def _tell_not_judged(self) -> None:
        sentences = list(self._state.not_judged.values())
        if len(sentences) > 2:
            sentences[1:] = [f"so do {len(sentences) - 1} other buffers: not_covered names them"]
        for sentence in sentences:
            self._log(sentence)

    def _choose_mode(self) -> None:
        """How the verdict reaches the optimiser. The same on every rank: nothing that ranks may differ in counts."""
        name = type(self.optimizer).__name__
        self._may_flag = False
        if self._policy.decides_before:
            self.mode = "one wait a step: the verdict is known before the optimizer steps"
        elif self._peers.shards:
            self.mode = "one wait a step: gradients are sharded, and looked at over all ranks together"
        elif not self._policy.may_skip:
            self.mode = "no wait: reports follow one step later"
        elif not _optim.takes_flag(self.optimizer):
            self.mode = f"one wait a step: {name} has no found_inf to be told on the device (fused ones have)"
        else:
            self._may_flag = True
            self.mode = f"no wait: {name} is told on the device through found_inf; reports follow one step later"
        self._waits = self.mode.startswith("one wait")
        if self._clip > 0 and not self._waits:
            self.mode += " (clip= waits where gradients are sparse, views with gaps or on several devices)"
        self._at_once = self._waits or all(form[1].type == "cpu" for form in self._watched.forms)

    # ------------------------------------------------------------------------------------------- the loop as it is

    def attach(self, scaler: Any = None) -> "Guard":
        """From now on every optimizer.step() is guarded; the loop stays as it is. Give the GradScaler if there is one:
        then its scaled gradients are judged unscaled, and steps that it passes over are named too."""
        if scaler is not None and not hasattr(scaler, "unscale_"):
            raise TypeError(f"attach({type(scaler).__name__}): that is no GradScaler: give the one of your loop, or "
                            "nothing")
        self._tell_off()
        if not self.enabled and not self._clip:
            return self
        if self._attachment is not None:
            if scaler is not None and (self._scaler is None or self._scaler.scaler is not scaler):
                raise GuardError("attach(scaler): this guard is attached already, without that scaler: call detach() "
                                 "first")
            return self
        try:
            self._take_up()
            self._attachment = _optim.Attachment(self.optimizer, self._before, self._after, self._rate)
            if scaler is not None:
                self._scaler = _optim.ScalerAttachment(scaler, self.optimizer, self._scaled_step)
            if self.enabled:
                self._log(self.mode)
                self._snapshot_first()
                _attached.add(self)
        except BaseException:
            self._unhook()
            if self.enabled:
                self._watched.release()
            raise
        return self

    def _tell_off(self) -> None:
        """That nothing is watched is not to be found out at the end of a long run."""
        if not self.enabled and not self._told_off:
            self._told_off = True
            self._log(f"off: ESPER_GUARD={os.environ.get('ESPER_GUARD', '')} is in the environment; nothing is watched"
                      + (", clip= clips as clip_grad_norm_ does" if self._clip else ""))

    def _take_up(self) -> None:
        """After detach(), which has given the parameters up."""
        if self.enabled and not self._watched.active:
            self._watched.register()
            self._gradients.forget()

    def _snapshot_first(self) -> None:
        """There is to be a way back from the start, and not to before steps that were made while nobody looked."""
        if self._ring is None or (self._ring.good and not self._was_away) or self.snapshot():
            return
        report = self.last
        if self._policy.of_state(report) == "rollback":
            if not self._ring.good:
                report.action = "and there is no snapshot from before that"
                raise BadState(str(report), report)
            self._roll_back(report)

    def detach(self) -> None:
        """Reads what is still on its way, takes the hooks away, and leaves the parameters to others. Over ranks nobody
        else is asked: what is bad then is raised, and not rolled back."""
        self._unhook()
        if self.enabled:
            self._was_away = True
            self._watched.release()
            if self._peers:
                self._leave()
            else:
                self._settle()

    def _leave(self) -> None:
        gradients, state = self._read_and_forget("found when the guard was detached: nothing was done about it")
        for report in (gradients, state):
            if report is not None:
                self._log(str(report))
        if state is not None and not self._policy.only_reports:
            raise BadState(str(state), state)

    def _unhook(self) -> None:
        _attached.discard(self)
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.detach()
        self._rate.undo()
        if getattr(self, "_flag", None) is not None:
            self._flag.take(self.optimizer)  # of a step that was broken off
        scaler, self._scaler = self._scaler, None
        if scaler is not None:
            scaler.detach()

    def __enter__(self) -> "Guard":
        return self.attach()

    def __exit__(self, kind: Any, *rest: Any) -> None:
        """When the loop has raised, that is what is told: what is on its way is only logged."""
        if kind is not None and self.enabled:
            self._read_quietly("found when the loop ended with an exception: nothing was done about it")
        self.detach()

    def step(self, optimizer: Optional[torch.optim.Optimizer] = None, scaler: Any = None) -> Optional[Report]:
        """Instead of optimizer.step(), or scaler.step(optimizer), for who does not attach. Gives the newest report."""
        if optimizer is not None and optimizer is not self.optimizer:
            raise GuardError("guard.step(optimizer): that is not the optimizer this guard was made for")
        self._take_up()
        if self.enabled and (self.steps == 0 or self._was_away):
            self._snapshot_first()
        if self._attachment is not None or (not self.enabled and not self._clip):
            self.optimizer.step() if scaler is None else scaler.step(self.optimizer)
        elif scaler is not None and scaler.is_enabled():
            self._scaled_step(scaler, lambda: self._rated(lambda: scaler.step(self.optimizer)))
        else:
            went = self._before()
            if went:
                self._rated(self.optimizer.step)
            self._after(went)
        return self.last

    def _rated(self, do: Callable[[], Any]) -> Any:
        """A step with the learning rate that rollbacks have left."""
        self._rate.apply()
        try:
            return do()
        finally:
            self._rate.undo()

    # ------------------------------------------------------------------------------------------------ one scan more

    def launch(self, scan: Union[str, Sequence[str]] = ("grad",)) -> Pending:
        """Scans the gradients as they are now, and other roles that are asked for. Under capture the scan becomes part
        of the CUDA graph; only gradients can be scanned there."""
        roles = 0
        if scan != ("grad",):
            scan = _options.roles("launch: ", scan)
            roles = sum(1 << _abi.ROLES.index(role) for role in scan if role in _options.STATE_ROLES)
        if not self.enabled:
            return NoPending()
        self._take_up()
        captured = self._capturing()
        if captured:
            self._check_capture()
            if roles:
                raise Unsupported(f"launch: scan={scan!r} under capture: a CUDA graph holds scans of gradients only. "
                                  "Launch the scan of the others outside of it, after a replay")
        elif self._asked is not None or self._newest is not None or self._deep is not None:
            self._read_launched()
        # the state first: fewer questions are asked about it, and a device reads it while gradients are looked up
        state = self._launch_state(roles) if roles else None
        try:
            pending = self._launch_all(self._gradients.collect(captured) if "grad" in scan else [], captured)
        except BaseException:
            if state is not None:
                state.read()  # nobody else would, and it is to be launched again
            raise
        if state is not None:
            pending._scanners.append(state)
        if not captured:
            self._asked = pending
        return pending

    def _launch_state(self, roles: int) -> Optional[Scanner]:
        """A scan of the state as it is now, by parts of it. None where there is nothing to scan."""
        scanner = self._state.scanner(validate=False)
        if scanner is not None:
            scanner.launch(roles=roles)
            self._state.drop()
        return scanner

    def result(self) -> Optional[Report]:
        """Waits for the newest scan and gives its report; after a replay, that of the scan in the graph. What is bad is
        acted on; over ranks that is left to the next step, for which all of them are there."""
        if not self.enabled:
            return None
        if self._peers:
            self._read_launched()
            if self.last is not None and not self.last.ok and not self.last.action:
                self.last.action = "to be acted on at the next step"
        else:
            self._settle()
        if self._captured:
            try:
                return self._captured[-1].result()
            except GuardError as error:
                if not self._eager or "no replay" not in str(error):
                    raise
        return self.last

    @property
    def not_covered(self) -> List[str]:
        """What is not scanned, and why: a sentence each."""
        if not self.enabled:
            return []
        count = self._watched.n_of_others
        others = [f"{some(count, 'parameter')} of the model: another guard's optimizer steps "
                  f"{'it' if count == 1 else 'them'}"] if count else []
        return self._notes + others + self._gradients.not_covered + self._state.not_covered

    @property
    def lr_factor(self) -> float:
        """What rollbacks multiply the learning rate by, with lr_backoff. It is in the optimiser's groups only while it
        steps."""
        return self._rate.factor

    # --------------------------------------------------------------------------------------------------- snapshots

    def snapshot(self) -> bool:
        """Takes a snapshot now and waits until it was judged. False: the state is not finite, and there is none; the
        log and `last` tell what is bad. (Bad gradients of the step before that nobody has read yet are acted on first,
        and may raise BadGradient.) Over ranks all of them call it, and it counts when it is good on all."""
        if not self.enabled:
            return True
        if self._ring is None:
            raise GuardError("snapshot: this guard has no snapshots: make it with snapshot=esper.Snapshots()")
        try:
            self._settle()
        except BadState as error:
            self._log(str(error))
            return False
        self._launch_deep(self._ring)
        self._read_launched()
        deep, self._deep = self._deep, None
        self._ring.judge(deep.entry, deep.reading, deep.report.ok)
        if not deep.report.ok:
            self.last = deep.report
            deep.report.action = "no snapshot was taken of it"
            self._log(str(deep.report))
            return False
        self._was_away = self._is_due = False
        return True

    def rollback(self) -> Optional[int]:
        """Puts the newest good snapshot back: model, optimiser, random state, what `state` named. Gives its step (None
        while ESPER_GUARD=0: nothing was put back). It is logged, `last` tells of it, and it counts in
        `n_rollbacks_asked`, not against max_rollbacks. (Rollbacks that the guard makes by itself leave the random state
        alone, so that a loop which draws its batches from it goes on with the next one.)"""
        if not self.enabled:
            return None
        if self._ring is None:
            raise NoSnapshot("rollback: this guard has no snapshots: make it with snapshot=esper.Snapshots()")
        self._forget_launched()
        step, entry = self.steps, self._ring.restore(rng=True)
        self.n_rollbacks_asked += 1
        report = self.last = Report(entry.step, self._ring.restored, self.not_covered)
        report.of_state = True
        report.action = f"put back at step {step}, as guard.rollback() asked for"
        self._log(str(report))
        return self._restored(entry)

    def _restored(self, entry: Entry) -> int:
        self.steps = entry.step
        self._ready_for = -1  # state may have gone
        self._was_away = self._is_due = False
        self._policy.forget()
        if self._lr_backoff != 1.0:
            self._rate.lower(self._lr_backoff)
            self._log(f"the learning rate is multiplied by {self._rate.factor:g} from now on (lr_backoff)"
                      + ("; that does not reach steps in a CUDA graph: capture them again" if self._captured else ""))
        return entry.step

    def refresh(self) -> None:
        """The model was changed on purpose (moved, resized, parameters replaced): takes it as it is now. Snapshots of
        what it was are dropped."""
        if not self.enabled:
            return
        self._forget_launched()
        self._watched.release()
        self._watched.register()
        self._peers.look(self._watched.model)
        known = self._state.not_judged
        self._state.look_at_buffers()
        if self._state.not_judged != known:
            self._tell_not_judged()
        self._gradients.forget()
        self._flag = self._deep_flag = None
        self._choose_mode()
        if self._ring is not None:
            ring = self._ring
            self._ring = Ring(ring.config, self._state, ring._extras, self._peers, self._log)
            self.snapshot()

    def memory(self) -> Dict[str, int]:
        """Bytes of snapshots, on devices and in host memory."""
        return self._ring.memory() if self.enabled and self._ring is not None else {"device": 0, "host": 0}

    @property
    def n_skipped(self) -> int:
        """Steps that were passed over."""
        return self._policy.n_skipped if self.enabled else 0

    @property
    def n_rollbacks(self) -> int:
        """Rollbacks that the guard made by itself."""
        return self._policy.n_rollbacks if self.enabled else 0

    def inject(self, name: str, at: int = 0, fault: str = "nan", bit: int = 0) -> None:
        """Spoils one element of a tensor, named as in reports, now: to see how your training takes it. fault: "nan",
        "inf", "-inf", or "exponent" and "mantissa", which flip a bit."""
        _inject.check_fault(fault)
        if self.enabled:
            _inject.spoil(name, self._watched, self._state, at, fault, bit)

    def locate(self, closure: Callable[[], Any]) -> Location:
        """Runs one step once more, with every operation looked at, and says where the first value that is not finite
        was born: module, operation and line. The closure makes the forward and the backward pass of the bad batch, or
        the forward pass alone and gives the loss. Gradients, buffers and random state are put back afterwards."""
        return locate(self._model, [self.optimizer], closure) if self.enabled else Location()

    def __repr__(self) -> str:
        how = "off" if not self.enabled else "attached" if self._attachment is not None else "not attached"
        on_bad = getattr(self._on_bad, "__name__", "a function") if callable(self._on_bad) else repr(self._on_bad)
        return (f"<esper.Guard of {type(_names.unwrap(self._model)).__name__} and {type(self.optimizer).__name__}, "
                f"on_bad={on_bad}, {how}, step {self.steps}>")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an esper.Guard cannot be copied or pickled: it belongs to one model and one optimizer in this "
                        "process. Save their state_dict, and make a guard for the copy")

    # ---------------------------------------------------------------------------------------- before the optimiser

    def _capturing(self) -> bool:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def _check_capture(self) -> None:
        unread = [pending for pending in (self._newest, self._asked) if pending is not None and pending._report is None]
        if unread or (self._deep is not None and self._deep.report is None):
            raise GuardError("a scan from before the capture was not read yet: call guard.result() before capturing")

    def _launch_all(self, scanners: List[Scanner], captured: bool = False, flag: Optional[int] = None,
                    clip: bool = False) -> Pending:
        """One scan over all gradients. Clipping is part of it where all of them are seen by one launch."""
        clips = clip and self._clip > 0 and self._one_launch(scanners)
        for scanner in scanners:
            scanner.launch(self._clip if clips else 0.0, flag)
        self._gradients.drop()
        pending = Pending(self, self.steps, scanners, captured)
        if captured:
            self._gradients.forget_captured()
            self._captured.append(pending)
            self._eager = False
        return pending

    def _one_launch(self, scanners: List[Scanner]) -> bool:
        return len(scanners) == 1 and self._gradients.plain and not self._peers.shards

    def _before(self, first: bool = True) -> bool:
        """Whether the optimiser may step, as far as is known; where nothing is known yet it is told on the device.
        first: this is not a closure's second evaluation."""
        self._withheld = False
        if self._within_scaler:
            self._went = True
            return True
        if not self.enabled:
            self._clip_as_torch_does()
            return True
        if self._flag is not None:
            self._flag.take(self.optimizer)  # of a step that was broken off: it is not a GradScaler's
        captured = self._capturing()
        if captured:
            self._check_capture()
        elif not self._settle():
            return False
        self.steps += first
        if not self._scan_grads:
            return True
        scanners = self._gradients.collect(captured)
        if not scanners and not self._peers:
            return True
        scaled = hasattr(self.optimizer, "found_inf")
        if scaled and self._clip > 0 and getattr(self.optimizer, "grad_scale", None) is not None:
            raise Unsupported("clip= and a fused optimizer under GradScaler: gradients are still scaled here. Give the "
                              "scaler to attach(scaler=...) or guard.step(optimizer, scaler)")
        return self._capture(scanners, scaled) if captured else self._judge(scanners, scaled)

    def _judge(self, scanners: List[Scanner], scaled: bool) -> bool:
        """As `mode` says. Over ranks the way depends on nothing that is this rank's alone: every one of them votes."""
        one = self._one_launch(scanners)
        if scaled or (self._may_flag and (self._peers or (one and self._ready()))):
            return self._tell_on_device(scanners, scaled)
        if self._waits or self._may_flag:
            return self._decide(self._launch_all(scanners, clip=True))
        pending = self._newest = self._launch_all(scanners, clip=True)  # on_bad="report"
        if self._clip > 0 and not one:
            self._clip_now(pending.report())
        return True

    def _ready(self) -> bool:
        """Whether the optimiser has state for all gradients, so that it can pass over a step by itself."""
        if self._ready_for != self._gradients.version or not self.optimizer.state:
            self._ready_for = self._gradients.version if _optim.has_state(self.optimizer) else -1
        return self._ready_for >= 0

    def _tell_on_device(self, scanners: List[Scanner], scaled: bool) -> bool:
        self._launch_flagged(scanners, scaled, getattr(self.optimizer, "grad_scale", None) if scaled else None)
        self._flag.give(self.optimizer)
        if scaled or not self._peers or self._ready():
            return True
        # this rank's optimiser cannot pass over its first step by itself; all is acted on later, as on the others
        self._withheld = self._flag.first_rank() is not None
        return not self._withheld

    def _launch_flagged(self, scanners: List[Scanner], scaled: bool, scale: Optional[torch.Tensor] = None) -> None:
        """A scan whose verdict is on the device, and on all ranks, when it is done. Where one launch does not see all
        gradients, or there are none here, the host knows first. scale: what they are still multiplied by."""
        flag = self._flag = self._flag or _optim.DeviceFlag(self._device(), self._peers)
        one = self._one_launch(scanners) and scanners[0].devices == [_index(flag.device)]
        pending = self._newest = self._launch_all(scanners, flag=flag.pointer if one else None, clip=True)
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
        return _tensors.local(self.optimizer.param_groups[0]["params"][0]).device

    def _capture(self, scanners: List[Scanner], scaled: bool) -> bool:
        """This step becomes part of a CUDA graph: nothing is known on the host when it is replayed."""
        flags = (scaled or self._may_flag) and self._one_launch(scanners)
        if flags and self._flag is None:
            self._flag = _optim.DeviceFlag(self._device(), self._peers)
        pending = self._launch_all(scanners, True, self._flag.pointer if flags else None, clip=True)
        if flags:
            pending.flag = self._flag  # as long as the graph may be replayed
            self._flag.convert()
            self._flag.give(self.optimizer)
        does = "passes over a bad one on the device" if flags else "makes the step, bad or not"
        self._log(f"this step is in a CUDA graph: a replay {does}, and guard.result() after it tells")
        return True

    def _decide(self, pending: Pending, scaled: bool = False) -> bool:
        """The verdict is waited for, and that of the other ranks."""
        report = self._note(pending.report())
        self._reduce(report)
        if not report.ok:
            return self._act_on_gradients(report, untouched=True, scaled=scaled) == "go"
        self._policy.healthy()
        self._clip_now(report)
        return True

    def _clip_now(self, report: Report) -> None:
        """Where the scan could not: its norm is known on the host."""
        if self._clip > 0 and report.ok and report.clip_factor == 1.0 and report.total_norm > self._clip:
            factor = self._clip / report.total_norm
            for _, parameter in self._watched.parameters:
                if parameter.grad is not None:
                    grad = _tensors.local(parameter.grad.detach())
                    (grad._values() if grad.is_sparse else grad).mul_(factor)

    def _reduce(self, report: Report, about: int = _dist.GRADIENTS) -> None:
        """A report on all ranks, which are here."""
        if self._peers:
            _, report.first_rank = self._peers.verdict(report.bits, about)
            report.world = self._peers.world
        if self._peers.shards and about == _dist.GRADIENTS:
            report.sum_of_squares = self._peers.sum_of_squares(report.readings)
            report.sharded = False
            report.not_covered = [sentence for sentence in report.not_covered if sentence != SHARDED]

    def _act_on_gradients(self, report: Report, untouched: bool, scaled: bool) -> str:
        """What is done about bad gradients: "go", "skip" or "rollback". When the state is bad although no step was made
        with them (untouched: then all ranks are here), that is why."""
        if untouched and not self._act_on_deep():  # the state behind that step is on its way already
            return "rollback"
        deeper = self._look_deeper(report.step) if untouched else None
        if deeper is not None:
            self.last = deeper
            answer, report = self._policy.of_state(deeper, untouched=True), deeper
        else:
            answer = self._policy.of_gradients(report, untouched, scaled)
        if answer == "rollback":
            self._forget_launched()
            self._roll_back(report)
        return answer

    def _look_deeper(self, step: int) -> Optional[Report]:
        """A report on the state as it is now, if it is bad."""
        scanner = self._state.scanner()
        if scanner is None and not self._peers:
            return None
        readings = []
        if scanner is not None:
            scanner.launch()
            self._state.drop()
            readings = [scanner.read()]
        report = Report(step, readings, self.not_covered)
        report.of_state = True
        self._reduce(report, _dist.STATE)
        return None if report.ok else report

    def _clip_as_torch_does(self) -> None:
        """While ESPER_GUARD=0: a loop that leaves clipping to the guard is to go on as it did."""
        known = _names.parameters(self._model)
        parameters = [parameter for _, parameter in known + _names.of_optimizer(self.optimizer, known)]
        torch.nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], self._clip)

    # -------------------------------------------------------------------------------------------------- GradScaler

    def _scaled_step(self, scaler: Any, do: Callable[[], Any]) -> Any:
        """A step that GradScaler makes: gradients are unscaled first, what the scan finds goes into its found-inf."""
        noted = _optim.scaler_state(scaler, self.optimizer)
        if noted is None:
            raise Unsupported(f"{type(scaler).__name__} is not a GradScaler that the guard knows")
        if not noted["found_inf_per_device"]:
            scaler.unscale_(self.optimizer)
        if not self.enabled:
            self._clip_as_torch_does()
            self._within_scaler = True
            try:
                return do()
            finally:
                self._within_scaler = False
        if not self._settle():
            return None  # rolled back: these gradients are of the state before
        self.steps += 1
        scanners = self._gradients.collect() if self._scan_grads else []
        if scanners or (self._scan_grads and self._peers):
            self._feed(scaler, scanners)
        self._within_scaler, self._went = True, False
        try:
            result = do()
        finally:
            self._within_scaler = False
        if self._attachment is None:
            self._went = True
        self._after_step(self._went)
        return result

    def _feed(self, scaler: Any, scanners: List[Scanner]) -> None:
        found = list(_optim.scaler_state(scaler, self.optimizer)["found_inf_per_device"].values())
        if not self._peers.shards and (self._peers or self._one_launch(scanners)):
            self._launch_flagged(scanners, scaled=True)
            for tensor in found:
                torch.maximum(tensor, self._flag.found.to(tensor.device).expand_as(tensor), out=tensor)
            return
        pending = self._launch_all(scanners, clip=True)
        self._decide(pending, scaled=True)
        if not pending.report().ok:
            for tensor in found:
                tensor.fill_(1.0)

    # ----------------------------------------------------------------------------------------- behind the optimiser

    def _after(self, went: bool) -> None:
        if not self.enabled:
            return
        if self._flag is not None:
            self._flag.take(self.optimizer)
        if not self._within_scaler:
            self._after_step(went or self._withheld)  # others have made it, as far as they know

    def _after_step(self, went: bool) -> None:
        if self._capturing():
            return
        ring = self._ring
        due = ring is not None and (self._is_due or self.steps % ring.config.every == 0)
        if not went:
            self._is_due = due and not (ring.good and ring.good[-1].step == self.steps)
            return
        if due:
            self._launch_deep(ring)
            self._is_due = False
        elif self._state_every and self.steps % self._state_every == 0:
            self._launch_deep(None)
        else:
            if ring is not None and not ring.knows_state and self.optimizer.state:
                ring.plan_ahead()
            return
        if self._at_once:  # a checkpoint may be next
            self._settle()

    def _launch_deep(self, ring: Optional[Ring]) -> None:
        """The state as it is now, with a snapshot of it or without: judged before the next step at the latest. Ranks
        tell each other now, while all are here: on the device where nobody is to wait."""
        scanner = self._state.scanner()
        entry = ring.take(self.steps) if ring is not None else None  # which may not have the memory: before the launch
        flag = None
        if self._peers and not self._at_once:
            flag = self._deep_flag = self._deep_flag or _optim.DeviceFlag(self._device(), self._peers)
        one = flag is not None and scanner is not None and scanner.devices == [_index(flag.device)]
        if scanner is not None:
            scanner.launch(flag=flag.pointer if one else None, checksum=1 if ring is not None else 0)
            self._state.drop()
        deep = self._deep = Deep(self.steps, scanner, entry)
        if one:
            flag.convert()
        elif flag is not None:
            deep.reading = scanner.read() if scanner is not None else None
            flag.say(deep.reading is not None and deep.reading.bad != 0)
        elif self._peers:
            self._read_deep(deep)
        deep.exchanged = flag is not None

    def _read_deep(self, deep: Deep) -> None:
        if deep.reading is None and deep.scanner is not None:
            deep.reading = deep.scanner.read()
        report = Report(deep.step, [] if deep.reading is None else [deep.reading], self.not_covered)
        report.of_state = True
        if deep.exchanged:
            report.first_rank, report.world = self._deep_flag.first_rank(), self._peers.world
        else:
            self._reduce(report, _dist.STATE)
        deep.report = report

    # ----------------------------------------------------------------------------------------- what is on its way

    def _note(self, report: Report) -> Report:
        self.last = report
        self._eager = True
        return report

    def _was_read(self, pending: Pending) -> None:
        """By who has launched it."""
        self.last = pending._report
        if self._asked is pending:
            self._asked = None

    def _read_launched(self) -> None:
        """Waits for what is on its way, and asks no other rank. What is to be done about it comes with `_settle`."""
        asked, self._asked = self._asked, None
        if asked is not None and asked._report is None:
            report = self._note(asked.report())
            if not report.ok:
                report.action = "found by launch(): nothing is done about it"
                self._log(str(report))
        pending = self._newest
        if pending is not None and not pending.noted:
            pending.noted = True
            report = self._note(pending.report())
            if pending.flagged and self._peers:
                report.first_rank, report.world = self._flag.first_rank(), self._peers.world
        if self._deep is not None and self._deep.report is None:
            self._read_deep(self._deep)
            if not self._deep.report.ok:
                self._note(self._deep.report)

    def _settle(self) -> bool:
        """Reads what was launched in the step before and acts on it. False: the state was rolled back."""
        if self._newest is None and self._deep is None and self._asked is None:
            return True
        self._read_launched()
        return self._act_on_newest() and self._act_on_deep()

    def _act_on_newest(self) -> bool:
        pending, self._newest = self._newest, None
        if pending is None:
            return True
        report = pending.report()
        if report.ok:
            self._policy.healthy()
            return True
        return self._act_on_gradients(report, untouched=pending.flagged, scaled=pending.scaled) != "rollback"

    def _act_on_deep(self) -> bool:
        deep, self._deep = self._deep, None
        if deep is None:
            return True
        if deep.entry is not None:
            self._ring.judge(deep.entry, deep.reading, deep.report.ok)
        if deep.report.ok:
            return True
        self.last = deep.report
        answer = self._policy.of_state(deep.report)
        if answer == "rollback":
            self._roll_back(deep.report)
        return answer == "go"

    def _forget_launched(self) -> None:
        """What is on its way is read, and nothing is done about it: the state it is of will be another."""
        self._read_launched()
        self._newest = None
        deep, self._deep = self._deep, None
        if deep is not None and deep.entry is not None:
            self._ring.judge(deep.entry, deep.reading, deep.report.ok)

    def _read_and_forget(self, action: str) -> Tuple[Optional[Report], Optional[Report]]:
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

    def _read_quietly(self, action: str) -> None:
        """What is on its way is read and logged if it is bad. Nothing is raised."""
        try:
            for report in self._read_and_forget(action):
                if report is not None:
                    self.last = report
                    self._log(str(report))
        except Exception as error:  # the device may be gone
            print(f"esper: what was on its way could not be read: {error}", file=sys.stderr)

    def _roll_back(self, report: Report) -> None:
        if self._ring is None:
            raise NoSnapshot(f"{report}; there is nothing to roll back to: make the guard with "
                             "snapshot=esper.Snapshots()")
        self._policy.rolls_back(report)
        entry = self._ring.restore(rng=False)
        self._policy.rolled_back(report, entry.step)
        self._restored(entry)


def _index(device: torch.device) -> int:
    """As the library counts: -1 is the host."""
    return -1 if device.type == "cpu" else device.index or 0
