"""The guard: between gradients and optimiser, and behind it."""

import atexit
import functools
import os
import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from . import _abi, _log, _names, _optim, _refuse, _tensors, _watched
from ._dist import Peers
from ._errors import GuardError, NoSnapshot, Unsupported
from ._grads import Gradients
from ._policy import OnBad, Policy
from ._report import Report
from ._scan import Reading, Scanner
from ._snapshots import Entry, Ring, Snapshots
from ._state import State

_STATE_ROLES = ("param", "moment", "buffer")


_attached: "weakref.WeakSet[Guard]" = weakref.WeakSet()


@atexit.register
def _read_at_exit() -> None:
    """What the last steps have launched and nobody has read is logged."""
    for guard in list(_attached):
        guard._read_quietly("found when Python ended: nothing was done about it")


def is_off() -> bool:
    """ESPER_GUARD=0, false, off or no."""
    return os.environ.get("ESPER_GUARD", "").strip().lower() in ("0", "false", "off", "no")


def _roles(where: str, scan: Sequence[str]) -> Tuple[str, ...]:
    """The roles that `scan` names; one alone may be given as a string."""
    roles = (scan,) if isinstance(scan, str) else tuple(scan)
    if any(role not in ("grad", *_STATE_ROLES) for role in roles):
        raise ValueError(f"{where}scan={scan!r}: expected some of 'grad', 'param', 'moment' and 'buffer'")
    return roles


def _is_count(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool) and value >= 0


class Pending:
    """A scan that was launched. `result()` waits for it; one in a CUDA graph may be asked after every replay."""

    def __init__(self, guard: "Guard", step: int, scanners: Sequence[Scanner], captured: bool = False) -> None:
        self.step = step
        self.flagged = False  # the optimiser was told on the device
        self.scaled = False  # GradScaler steps
        self.scale: Optional[torch.Tensor] = None
        self._guard = guard
        self._scanners = list(scanners)
        self._captured = captured
        self._report: Optional[Report] = None

    def read(self) -> List[Reading]:
        return [scanner.read() for scanner in self._scanners]

    def result(self) -> Report:
        """The report; waits if the scan is not done."""
        if self._report is None or self._captured:
            self._report = Report(self.step, self.read(), self._guard.not_covered)
            if self._guard._newest is self and not self._captured:
                self._guard._newest = None
            self._guard.last = self._report
        return self._report


class _Deep:
    """A scan of the state that was launched, and the snapshot that it is to judge."""

    def __init__(self, step: int, scanner: Optional[Scanner], entry: Optional[Entry]) -> None:
        self.step = step
        self.scanner = scanner
        self.entry = entry


class Guard:
    """Watches the training of a model.

    model, optimizer: what is trained. The model may be compiled, in DistributedDataParallel, or sharded (FSDP2).
    on_bad: "raise" (unless said), "report", "skip", "rollback", or a function of the Report that returns one of these.
    scan: what is scanned at every step: "grad"; "param", "moment" and "buffer" too for the state after every step.
    deep_every: parameters, buffers and optimiser state are scanned after every so many steps; 0 is never.
    clip: the largest norm of the gradients; they are scaled down to it by the scan, without a pass of their own.
    snapshot: esper.Snapshots(...), to be able to roll back. With on_bad="rollback" there is one unless said.
    state: more that a rollback restores, by name: objects with state_dict and load_state_dict (scheduler, sampler).
    group: "auto" (that of DDP or of the mesh), None, or the process group whose ranks decide together.
    max_rollbacks: how many are made before a bad tensor raises after all. lr_backoff: what each multiplies the
    learning rate by. max_skips: so many bad steps in a row are passed over, one more is worse.
    log: a function of a line, or a path; stderr unless said.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, on_bad: OnBad = "raise", *,
                 scan: Union[str, Sequence[str]] = ("grad",), deep_every: Optional[int] = 100,
                 clip: Optional[float] = None, snapshot: Optional[Snapshots] = None,
                 state: Optional[Dict[str, Any]] = None, group: Any = "auto", max_rollbacks: int = 3,
                 lr_backoff: float = 1.0, max_skips: int = 10, log: _log.Log = None) -> None:
        self.optimizer = optimizer
        self.last: Optional[Report] = None  #: of the previous step, or of this one where the guard waits; never waits
        self.steps = 0  #: steps of the optimiser that were asked for; a rollback sets it back
        self.enabled = not is_off()
        self._attachment: Optional[_optim.Attachment] = None
        self._scaler: Any = None
        self._within_scaler = False
        self._clip = float(clip or 0.0)
        self.path = "off (ESPER_GUARD)"
        if not self.enabled:
            self._model = model
            return
        _abi.load()
        notes = _refuse.check(model, optimizer)
        self._log = _log.make(log)
        self._policy = Policy(on_bad, max_skips, max_rollbacks, self._log)
        scan = _roles("", scan)
        counts = {"deep_every": deep_every or 0, "max_skips": max_skips, "max_rollbacks": max_rollbacks}
        self._check_options(scan, counts, clip, lr_backoff, {} if state is None else state, snapshot)
        self._scan_grads = "grad" in scan
        self._deep_every = 1 if any(role in scan for role in _STATE_ROLES) else deep_every or 0
        self._lr_backoff = lr_backoff
        self._notes = notes
        self._peers = Peers(model, group)
        self._watched = _watched.Watched(model, optimizer)
        self._gradients = Gradients(self._watched)
        self._state = State(self._watched)
        if snapshot is None and on_bad == "rollback":
            snapshot = Snapshots()
        self._ring = Ring(snapshot, self._state, state or {}, self._peers, self._log) if snapshot is not None else None
        self._flag: Optional[_optim.DeviceFlag] = None
        self._newest: Optional[Pending] = None
        self._deep: Optional[_Deep] = None
        self._went = False
        self._choose_path()
        _watched.claim(self._watched.parameters, self)
        self._tell_not_judged()

    @staticmethod
    def _check_options(scan: Sequence[str], counts: Dict[str, int], clip: Optional[float], lr_backoff: float,
                       state: Dict[str, Any], snapshot: Optional[Snapshots]) -> None:
        for name, value in counts.items():
            if not _is_count(value):
                raise ValueError(f"{name}={value!r}: expected a whole number, 0 or more")
        if not scan and not counts["deep_every"]:
            raise ValueError("scan=() and deep_every=0: nothing would be looked at. Name something to scan, as "
                             "scan=('grad',), or give deep_every a number of steps")
        if snapshot is not None and not isinstance(snapshot, Snapshots):
            raise TypeError(f"snapshot={snapshot!r}: expected esper.Snapshots(...), or None")
        if not isinstance(state, dict):
            raise TypeError(f"state is a {type(state).__name__}: expected a dict of names and objects, as "
                            "state={'scheduler': scheduler}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip={clip}: expected a norm above 0, or None")
        if not 0 < lr_backoff <= 1:
            raise ValueError(f"lr_backoff={lr_backoff}: expected above 0 and at most 1")
        for name, item in state.items():
            if not hasattr(item, "state_dict") or not hasattr(item, "load_state_dict"):
                raise TypeError(f"state[{name!r}] is a {type(item).__name__}, which has no state_dict and "
                                "load_state_dict")

    def _tell_not_judged(self) -> None:
        sentences = list(self._state.not_judged.values())
        if len(sentences) > 2:
            sentences[1:] = [f"so do {len(sentences) - 1} other buffers: not_covered names them"]
        for sentence in sentences:
            self._log(sentence)

    def _choose_path(self) -> None:
        name = type(self.optimizer).__name__
        self._may_flag = False
        if self._policy.decides_before:
            self.path = "one wait a step: the verdict is known before the optimizer steps"
        elif not self._policy.may_skip:
            self.path = "no wait: reports follow one step later"
        elif self._peers.shards:
            self.path = "one wait a step: gradients are sharded"
        elif not _optim.takes_flag(self.optimizer):
            self.path = f"one wait a step: {name} has no found_inf to be told on the device (fused ones have)"
        else:
            self._may_flag = True
            self.path = f"no wait: {name} is told on the device through found_inf; reports follow one step later"
        self._at_once = self.path.startswith("one wait") or all(form[1].type == "cpu" for form in self._watched.forms)

    # ------------------------------------------------------------------------------------------- the loop as it is

    def attach(self, scaler: Any = None) -> "Guard":
        """From now on every optimizer.step() is guarded; the loop stays as it is. Give the GradScaler if there is one:
        then its scaled gradients are judged unscaled, and steps that it passes over are named too."""
        if scaler is not None and not hasattr(scaler, "unscale_"):
            raise TypeError(f"attach({type(scaler).__name__}): that is no GradScaler: give the one of your loop, or "
                            "nothing")
        if self._attachment is not None or (not self.enabled and not self._clip):
            return self
        try:
            self._attachment = _optim.Attachment(self.optimizer, self._before, self._after)
            if scaler is not None:
                self._wrap_scaler(scaler)
            if self.enabled:
                self._log(self.path)
                self._commit_first()
                _attached.add(self)
        except BaseException:
            self._unhook()
            raise
        return self

    def _commit_first(self) -> None:
        """There is to be a way back from the start."""
        if self._ring is not None and not self._ring.good:
            self.commit()

    def detach(self) -> None:
        """Reads what is still on its way, takes the hooks away, and leaves the model to others."""
        self._unhook()
        if self.enabled:
            _watched.release(self._watched.parameters, self)
            self._settle()

    def _unhook(self) -> None:
        _attached.discard(self)
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.detach()
        if getattr(self, "_flag", None) is not None:
            self._flag.take(self.optimizer)  # of a step that was broken off
        if self._scaler is not None:
            if getattr(self._scaler.__dict__.get("step"), "__esper__", None) is self:
                del self._scaler.step
            self._scaler = None

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
        if self.enabled and self.steps == 0:
            self._commit_first()
        if self._attachment is not None or (not self.enabled and not self._clip):
            self.optimizer.step() if scaler is None else scaler.step(self.optimizer)
        elif scaler is not None and scaler.is_enabled():
            self._scaled_step(scaler, lambda: scaler.step(self.optimizer))
        else:
            went = self._before()
            if went:
                self.optimizer.step()
            self._after(went)
        return self.last

    def _wrap_scaler(self, scaler: Any) -> None:
        original = scaler.step

        @functools.wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if optimizer is not self.optimizer or self._attachment is None or not scaler.is_enabled():
                return original(optimizer, *args, **kwargs)
            return self._scaled_step(scaler, lambda: original(optimizer, *args, **kwargs))

        step.__esper__ = self
        scaler.step = step
        self._scaler = scaler

    # ------------------------------------------------------------------------------------------------ one scan more

    def launch(self, scan: Union[str, Sequence[str]] = ("grad",)) -> Pending:
        """Scans the gradients as they are now, and other roles that are asked for. Under capture the scan becomes part
        of the CUDA graph; only gradients can be scanned there."""
        if not self.enabled:
            return _NoPending()
        scan = _roles("launch: ", scan)
        if not scan:
            raise ValueError("launch: scan=(): nothing would be looked at. Name something to scan, as scan=('grad',)")
        captured = self._capturing()
        if not captured:
            self._settle()
        pending = self._launch_all(self._collect() if "grad" in scan else [], captured)
        roles = sum(1 << _abi.ROLES.index(role) for role in scan if role in _STATE_ROLES)
        if roles:
            scanner = self._state.scanner(validate=False)
            if scanner is not None:
                scanner.launch(roles=roles)
                self._state.drop()
                pending._scanners.append(scanner)
        return pending

    def result(self) -> Optional[Report]:
        """Waits for the newest scan and gives its report; after a replay, that of the scan in the graph."""
        if not self.enabled:
            return None
        if self._newest is not None and self._newest._captured:
            return self._newest.result()
        self._settle()
        return self.last

    @property
    def not_covered(self) -> List[str]:
        """What is not scanned, and why: a sentence each."""
        return self._notes + self._gradients.not_covered + self._state.not_covered if self.enabled else []

    # --------------------------------------------------------------------------------------------------- snapshots

    def commit(self) -> bool:
        """Takes a snapshot now and waits until it was judged. False: the state is not finite, and it does not count."""
        if not self.enabled:
            return True
        if self._ring is None:
            raise GuardError("commit: this guard has no snapshots: make it with snapshot=esper.Snapshots()")
        self._settle()
        self._launch_deep(self._ring)
        n_good = len(self._ring.good)
        before = self._ring.good[-1] if n_good else None
        self._settle()
        return bool(self._ring.good) and self._ring.good[-1] is not before

    def rollback(self) -> int:
        """Puts the newest good snapshot back: model, optimiser, random state, what `state` named. Gives its step.
        (Rollbacks that the guard makes by itself leave the random state alone, so that a loop which draws its batches
        from it goes on with the next one.)"""
        if not self.enabled:
            return self.steps
        if self._ring is None:
            raise NoSnapshot("rollback: this guard has no snapshots: make it with snapshot=esper.Snapshots()")
        self._forget_launched()
        entry = self._ring.restore(self._lr_backoff, rng=True)
        self.steps = entry.step
        return entry.step

    def refresh(self) -> None:
        """The model was changed on purpose (moved, resized, parameters replaced): takes it as it is now. Snapshots of
        what it was are dropped."""
        if not self.enabled:
            return
        self._forget_launched()
        _watched.release(self._watched.parameters, self)
        self._watched.register()
        _watched.claim(self._watched.parameters, self)
        known = self._state.not_judged
        self._state.look_at_buffers()
        if self._state.not_judged != known:
            self._tell_not_judged()
        self._gradients.forget()
        self._flag = None
        self._choose_path()
        if self._ring is not None:
            ring = self._ring
            self._ring = Ring(ring.config, self._state, ring._extras, self._peers, self._log)
            self.commit()

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
        if not self.enabled:
            return
        if fault not in _abi.FAULTS:
            raise ValueError(f"inject: fault={fault!r}: expected one of {', '.join(_abi.FAULTS)}")
        item = _tensors.make(name, _abi.OTHER, self._tensor_named(name))
        if not isinstance(item, _tensors.Item) or item.copied:
            raise Unsupported(f"inject: {item if isinstance(item, str) else name + ' is not dense memory of floats'}")
        scanner = Scanner([item])
        scanner.inject(0, at, _abi.FAULTS.index(fault), bit)
        if item.device >= 0:
            torch.cuda.current_stream(item.device).synchronize()
        scanner.close()

    def _tensor_named(self, name: str) -> torch.Tensor:
        for known, parameter in self._watched.parameters:
            if known + ".grad" == name and parameter.grad is not None:
                return parameter.grad
        for key, _, tensor in self._state.tensors():
            if ".".join(key[1:]) == name:
                return tensor
        raise KeyError(f"inject: there is no tensor {name!r} now; names are those of parameters, parameters with .grad "
                       "or with the optimizer's keys (.exp_avg), and buffers")

    # ---------------------------------------------------------------------------------------- before the optimiser

    def _collect(self) -> List[Scanner]:
        return self._gradients.collect()

    def _capturing(self) -> bool:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def _launch_all(self, scanners: List[Scanner], captured: bool = False, flag: Optional[int] = None) -> Pending:
        """One scan over all gradients. Clipping is part of it where all of them are seen by one launch."""
        clips = self._clip > 0 and self._one_launch(scanners)
        for scanner in scanners:
            scanner.launch(self._clip if clips else 0.0, flag)
        self._gradients.drop()
        pending = Pending(self, self.steps, scanners, captured)
        self._newest = pending
        return pending

    def _one_launch(self, scanners: List[Scanner]) -> bool:
        return len(scanners) == 1 and self._gradients.plain and not self._peers.shards

    def _before(self) -> bool:
        """Whether the optimiser may step, as far as is known; where nothing is known yet it is told on the device."""
        if self._within_scaler:
            self._went = True
            return True
        if not self.enabled:
            self._clip_as_torch_does()
            return True
        captured = self._capturing()
        if captured and (self._newest is not None and not self._newest._captured or self._deep is not None):
            raise GuardError("a scan from before the capture was not read yet: call guard.result() before capturing")
        if not captured and not self._settle():
            return False
        self.steps += 1
        scanners = self._collect() if self._scan_grads else []
        if not scanners:
            return True
        scaled = hasattr(self.optimizer, "found_inf")
        if scaled and self._clip > 0 and getattr(self.optimizer, "grad_scale", None) is not None:
            raise Unsupported("clip= and a fused optimizer under GradScaler: gradients are still scaled here. Give the "
                              "scaler to attach(scaler=...) or guard.step(optimizer, scaler)")
        if captured or scaled or self._can_go_on(scanners):
            self._launch_unread(scanners, captured, scaled)
            return True
        return self._decide(self._launch_all(scanners))

    def _can_go_on(self, scanners: List[Scanner]) -> bool:
        """Whether the step may be made before the verdict is known on the host."""
        if self._policy.decides_before or (self._clip > 0 and not self._one_launch(scanners)):
            return False
        if not self._policy.may_skip:
            return True
        return self._may_flag and self._one_launch(scanners) and _optim.has_state(self.optimizer)

    def _launch_unread(self, scanners: List[Scanner], captured: bool, scaled: bool) -> Pending:
        flag = self._flag_for(scanners) if scaled or (self._policy.may_skip and self._may_flag) else None
        pending = self._launch_all(scanners, captured, flag.pointer if flag is not None else None)
        pending.scaled = scaled
        pending.scale = getattr(self.optimizer, "grad_scale", None) if scaled else None
        if flag is not None:
            flag.convert()
            flag.give(self.optimizer)
            pending.flagged = True
        return pending

    def _flag_for(self, scanners: List[Scanner]) -> Optional[_optim.DeviceFlag]:
        if not self._one_launch(scanners):
            return None
        device = scanners[0].devices[0]
        if self._flag is None:
            self._flag = _optim.DeviceFlag(torch.device("cuda", device) if device >= 0 else torch.device("cpu"),
                                           self._peers)
        return self._flag

    def _report_of(self, pending: Pending) -> Report:
        report = Report(pending.step, pending.read(), self.not_covered)
        report.scale = pending.scale
        pending._report = report
        self._newest = None
        self.last = report
        return report

    def _decide(self, pending: Pending) -> bool:
        """The verdict is waited for."""
        report = self._report_of(pending)
        self._reduce(report)
        report.sum_of_squares = self._peers.sum_of_squares(report.readings)
        if not report.ok:
            return self._act_on_gradients(report, untouched=True, scaled=False) == "go"
        self._policy.healthy()
        if self._clip > 0 and report.total_norm > self._clip and report.clip_factor == 1.0:
            self._scale_gradients(self._clip / report.total_norm)
        return True

    def _reduce(self, report: Report) -> None:
        if self._peers:
            _, report.first_rank = self._peers.verdict(report.bits)
            report.world = self._peers.world

    def _act_on_gradients(self, report: Report, untouched: bool, scaled: bool, agreed: bool = True) -> str:
        """What is done about bad gradients: "go", "skip" or "rollback". When the state is bad although no step was made
        with them, that is why. `agreed`: all ranks are here."""
        if untouched and not self._settle_deep():  # the state behind that step is on its way already
            return "rollback"
        deeper = self._look_deeper(report.step, agreed) if untouched else None
        if deeper is not None:
            self.last = deeper
            answer, report = self._policy.of_state(deeper), deeper
        else:
            answer = self._policy.of_gradients(report, untouched, scaled)
        if answer == "rollback":
            self._forget_launched()
            self._roll_back(report)
        return answer

    def _look_deeper(self, step: int, agreed: bool) -> Optional[Report]:
        """A report on the state as it is now, if it is bad."""
        scanner = self._state.scanner()
        if scanner is None:
            return None
        scanner.launch()
        self._state.drop()
        report = Report(step, [scanner.read()], self.not_covered)
        if agreed:
            self._reduce(report)
        return None if report.ok else report

    def _scale_gradients(self, factor: float) -> None:
        for _, parameter in self._watched.parameters:
            if parameter.grad is not None:
                grad = _tensors.local(parameter.grad.detach())
                (grad._values() if grad.is_sparse else grad).mul_(factor)

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
        scanners = self._collect() if self._scan_grads else []
        if scanners:
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
        flag = self._flag_for(scanners)
        pending = self._launch_all(scanners, False, flag.pointer if flag is not None else None)
        pending.scaled = True
        if flag is not None:
            flag.convert()
            pending.flagged = True
            for tensor in found:
                torch.maximum(tensor, flag.found.to(tensor.device).expand_as(tensor), out=tensor)
            return
        report = self._report_of(pending)
        self._reduce(report)
        if not report.ok:
            self._act_on_gradients(report, untouched=True, scaled=True)
            for tensor in found:
                tensor.fill_(1.0)
        else:
            self._policy.healthy()

    # ----------------------------------------------------------------------------------------- behind the optimiser

    def _after(self, went: bool) -> None:
        if not self.enabled:
            return
        if self._flag is not None:
            self._flag.take(self.optimizer)
        if not self._within_scaler:
            self._after_step(went)

    def _after_step(self, went: bool) -> None:
        if not went or self._capturing():
            return
        if self._ring is not None and self.steps % self._ring.config.every == 0:
            self._launch_deep(self._ring)
        elif self._deep_every and self.steps % self._deep_every == 0:
            self._launch_deep(None)
        else:
            return
        if self._at_once:  # a checkpoint may be next
            self._settle()

    def _launch_deep(self, ring: Optional[Ring]) -> None:
        """The state as it is now, with a snapshot of it or without: judged before the next step at the latest."""
        scanner = self._state.scanner()
        entry = ring.take(self.steps) if ring is not None else None  # which may not have the memory: before the launch
        if scanner is not None:
            scanner.launch(checksum=1 if ring is not None else 0)
            self._state.drop()
        self._deep = _Deep(self.steps, scanner, entry)

    # ----------------------------------------------------------------------------------------- what is on its way

    def _settle(self) -> bool:
        """Reads what was launched in the step before and acts on it. False: the state was rolled back."""
        return self._settle_gradients() and self._settle_deep()

    def _settle_gradients(self) -> bool:
        pending = self._newest
        if pending is None or pending._captured:
            return True
        report = self._report_of(pending)
        if pending.flagged and self._peers:
            report.first_rank, report.world = self._flag.first_rank(), self._peers.world
        if report.ok:
            self._policy.healthy()
            return True
        answer = self._act_on_gradients(report, untouched=pending.flagged, scaled=pending.scaled,
                                        agreed=pending.flagged)
        return answer != "rollback"

    def _settle_deep(self) -> bool:
        deep, self._deep = self._deep, None
        if deep is None:
            return True
        reading = deep.scanner.read() if deep.scanner is not None else None
        report = Report(deep.step, [] if reading is None else [reading], self.not_covered)
        self._reduce(report)
        if deep.entry is not None:
            self._ring.judge(deep.entry, reading, report.ok)
        if report.ok:
            return True
        self.last = report
        answer = self._policy.of_state(report)
        if answer == "rollback":
            self._roll_back(report)
        return answer == "go"

    def _forget_launched(self) -> None:
        """What is on its way is read, and nothing is done about it: the state it is of will be another."""
        if self._newest is not None and not self._newest._captured:
            self._newest.read()
            self._newest = None
        if self._deep is not None:
            reading = self._deep.scanner.read() if self._deep.scanner is not None else None
            if self._deep.entry is not None:
                good = self._peers.agree(reading is None or reading.bad == 0)
                self._ring.judge(self._deep.entry, reading, good)
            self._deep = None

    def _read_quietly(self, action: str) -> None:
        """What is on its way is read and logged if it is bad. Nothing is raised, and other ranks are not asked."""
        try:
            reports = []
            pending = self._newest
            if pending is not None and not pending._captured:
                self._newest = None
                report = Report(pending.step, pending.read(), self.not_covered)
                report.action = "step skipped, optimizer untouched" if pending.flagged else action
                if not pending.scaled:  # GradScaler sees to its own
                    reports.append(report)
            deep, self._deep = self._deep, None
            if deep is not None and deep.scanner is not None:
                reports.append(Report(deep.step, [deep.scanner.read()], self.not_covered))
                reports[-1].action = action
            if deep is not None and deep.entry is not None:
                self._ring.judge(deep.entry, None, False)
            for report in reports:
                self.last = report
                if not report.ok:
                    self._log(str(report))
        except Exception as error:  # the device may be gone, or the log's file
            print(f"esper: what was on its way could not be read: {error}", file=sys.stderr)

    def _roll_back(self, report: Report) -> None:
        if self._ring is None:
            raise NoSnapshot(f"{report}; there is nothing to roll back to: make the guard with "
                             "snapshot=esper.Snapshots()")
        self._policy.rolls_back(report)
        entry = self._ring.restore(self._lr_backoff, rng=False)
        self.steps = entry.step
        self._policy.rolled_back(report, entry.step)


class _NoPending(Pending):
    """What launch gives while ESPER_GUARD=0."""

    def __init__(self) -> None:  # noqa: D107
        pass

    def result(self) -> Report:
        return Report(0, [])
