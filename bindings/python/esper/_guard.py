"""The guard: what users call. What it does at a step is in `_machine`."""

import atexit
import contextlib
import os
import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar, Union

import torch

from . import _abi, _cover, _former, _inject, _log, _names, _optim, _options, _ranks, _refuse
from ._errors import BadState, GuardError, NoSnapshot, Unsupported
from ._events import Event, Teller
from ._locate import Location, locate
from ._machine import Machine
from ._pending import NoPending, Pending
from ._phase import WHOLE, Phase
from ._policy import OnBad, Policy, check_on_bad
from ._rate import Rate
from ._report import Report
from ._scan import Scanner
from ._snapshots import Ring, Snapshots
from ._spikes import Judge, Spikes
from ._underway import Underway
from ._watched import Watched

_attached: "weakref.WeakSet[Guard]" = weakref.WeakSet()
_FORMAT = 1  # of state_dict
Loss = TypeVar("Loss", float, torch.Tensor)


@atexit.register
def _read_at_exit() -> None:
    """What the last steps have launched and nobody has read is logged."""
    for guard in list(_attached):
        guard._read_quietly("found when Python ended: nothing was done about it")
        guard._machine.unseen.end(guard._machine.n_asked_ever)


def is_off() -> bool:
    """ESPER_GUARD=0, false, off or no."""
    return os.environ.get("ESPER_GUARD", "").strip().lower() in ("0", "false", "off", "no")


class Guard(_former.Names):
    """Watches the training of a model.

    model, optimizer: what is trained. The model may be compiled, in DistributedDataParallel, or sharded (FSDP2).
    Several optimisers that step after one backward pass are given as a list: one verdict, one rollback for all.
    on_bad: "raise" (unless said), "report", "skip", "rollback", or a function of the Report that returns one of these.
    scan: what is scanned at every step: "grad"; "param", "moment" and "buffer" too for the state after every step.
    state_every: parameters, buffers and optimiser state are scanned after every so many steps; 0 is never.
    clip: the largest norm of the gradients; they are scaled down to it by the scan, without a pass of their own.
    snapshot: esper.Snapshots(...), to be able to roll back. With on_bad="rollback" there is one unless said.
    state: more that a rollback restores, by name: objects with state_dict and load_state_dict (scheduler, sampler).
    group: "auto" (that of DDP or of the mesh, else all ranks), None, or the process group whose ranks decide together.
    max_rollbacks: how many are made within rollback_window steps before a bad tensor raises after all (None: in all).
    lr_backoff: what each multiplies the learning rate by, while the optimiser steps: schedulers do not see it.
    max_skips: so many bad steps in a row are passed over, one more is worse.
    spikes: esper.Spikes(...): losses (guard.loss) and gradient norms that are finite, and out of the question, are bad.
    log: a function of a line, a path, or a logger; logging's "esper.guard" unless said, or stderr while that has no
    handlers. on_event: a function of every esper.Event, which has the sentence, its kind, step, rank and report.
    """

    def __init__(self, model: torch.nn.Module,
                 optimizer: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]], on_bad: OnBad = "raise", *,
                 scan: _options.Roles = ("grad",), state_every: Optional[int] = 100,
                 clip: Optional[float] = None, snapshot: Optional[Snapshots] = None,
                 state: Optional[Dict[str, Any]] = None, group: Any = "auto", max_rollbacks: int = 3,
                 rollback_window: Optional[int] = 1000, lr_backoff: float = 1.0, max_skips: int = 10,
                 spikes: Optional[Spikes] = None, log: _log.Log = None,
                 on_event: Optional[Callable[[Event], object]] = None, deep_every: Optional[int] = None) -> None:
        where = "Guard(model, optimizer)"
        optimizers = _options.optimizers(where, model, optimizer)
        check_on_bad(on_bad)
        if deep_every is not None:
            _former.warn("Guard(deep_every=...)", "state_every")
            state_every = deep_every
        roles = _options.roles("", scan)
        _options.counts(state_every=state_every or 0, max_skips=max_skips, max_rollbacks=max_rollbacks,
                        rollback_window=1 if rollback_window is None else rollback_window)
        if snapshot is None and on_bad == "rollback":
            snapshot = Snapshots()
        _options.kept(snapshot, state)
        _options.judged(spikes, Spikes, roles)
        _options.is_group(group)
        self._clip = _options.norm(clip)
        lr_backoff = _options.backoff(lr_backoff, optimizers)
        told = _options.backs_off(lr_backoff, on_bad, snapshot)
        if on_event is not None and not callable(on_event):
            raise TypeError(f"on_event={on_event!r}: expected a function of an esper.Event")
        self._tell = Teller(log, on_event)
        self.optimizers = tuple(optimizers)
        self.enabled = not is_off()
        self._model = model
        self._on_bad = on_bad
        self._attachments: List[_optim.Attachment] = []
        self._scaler: Optional[_optim.ScalerAttachment] = None
        self._told_off = False
        self._rate = Rate(optimizers)
        if self.enabled:
            _abi.load()
            notes = _refuse.check(model, optimizers)
        _options.belong(where, model, optimizers)
        if not self.enabled:
            return
        peers = _ranks.Peers(model, group)
        self._tell.rank, self._tell.world = _ranks.own_rank(), peers.world
        policy = Policy(on_bad, max_skips, max_rollbacks, rollback_window, self._tell, peers)
        self._watched = Watched(model, optimizers)
        try:
            cover = _cover.Cover(self._watched)
            underway = Underway(self._watched, cover, peers, self._clip, self._tell)
            underway.notes = notes
            ring = None if snapshot is None else Ring(snapshot, cover, state or {}, peers, self._rate, self._tell)
            state_every = 1 if any(role in roles for role in _options.STATE_ROLES) else state_every or 0
            self._machine = Machine(underway, policy, self._rate, ring, self._tell, scan_grads="grad" in roles,
                                    state_every=state_every, lr_backoff=lr_backoff)
            machine = weakref.ref(self._machine)
            self._tell.step_of = lambda: machine().steps if machine() is not None else 0
            if ring is not None:
                me = weakref.ref(self)
                ring.guard_state = lambda: me().state_dict() if me() is not None else {}
            self._resumed = False
            self._parts: Dict[str, Any] = {"machine": self._machine, "policy": policy, "rate": self._rate}
            if spikes is not None:
                self._parts["spikes"] = judge = Judge(spikes)
                self._machine.look_for_spikes(judge)
            self._tell_not_judged()
            if told is not None:
                self._tell("note", told)
        except BaseException:
            self._watched.release()
            raise

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser, or the first of them."""
        return self.optimizers[0]

    # ------------------------------------------------------------------------------------------------------- telling

    def _tell_not_judged(self) -> None:
        sentences = list(self._machine.cover.not_judged.values())
        if len(sentences) > 2:
            sentences[1:] = [f"so do {len(sentences) - 1} other buffers: not_covered names them"]
        for sentence in sentences:
            self._tell("note", sentence)

    def _tell_off(self) -> None:
        """That nothing is watched is not to be found out at the end of a long run."""
        if not self.enabled and not self._told_off:
            self._told_off = True
            self._tell("note", f"off: ESPER_GUARD={os.environ.get('ESPER_GUARD', '')} is in the environment; nothing "
                       "is watched" + (", clip= clips as clip_grad_norm_ does" if self._clip else ""))

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
        if self._attachments:
            if scaler is not None and (self._scaler is None or self._scaler.scaler is not scaler):
                raise GuardError("attach(scaler): this guard is attached already, without that scaler: call detach() "
                                 "first")
            return self
        try:
            self._take_up()
            stepper: Any = self._machine if self.enabled else _Off(self)
            for optimizer in self.optimizers:
                self._attachments.append(_optim.Attachment(optimizer, stepper, self))
            if scaler is not None:
                self._scaler = _optim.ScalerAttachment(scaler, self.optimizers, stepper.scaled_step)
            if self.enabled:
                self._machine.underway.order.listen()
                self._tell("note", self._machine.mode)
                if self._machine.peers.guessed:
                    self._tell("note", f"torch.distributed has {self._machine.peers.world} ranks, which decide "
                               "together (group='auto'); where they train apart from each other, make the guard with "
                               "group=None")
                self._tell_of_disk()
                self._machine.snapshot_first()
                self._machine.unseen.begin()
                _attached.add(self)
        except BaseException:
            self._unhook()
            if self.enabled:
                self._machine.broke_off()
                self._watched.release()
            raise
        return self

    def _tell_of_disk(self) -> None:
        """That a job goes on from the start, over what the one before has left, is not to be found out later."""
        ring = self._machine.ring
        if ring is not None and ring.disk is not None and not self._resumed and not ring.good:
            step = ring.disk.newest_step()
            if step is not None:
                self._tell("alarm", f"{ring.disk.folder} has a snapshot of step {step} of an earlier job, which "
                           "new ones replace: guard.resume() before attach() goes back to it")

    def _take_up(self) -> None:
        """After detach(), which has given the parameters up; and after a call that an exception has broken off."""
        if not self.enabled:
            return
        self._machine.enter()
        if not self._watched.active:
            self._watched.register()
            self._machine.underway.grads.forget()
        if self._machine.phase is Phase.DETACHED:
            self._machine.move(Phase.BETWEEN)

    def detach(self) -> None:
        """Reads what is still on its way, takes the hooks away, and leaves the parameters to others. Over ranks nobody
        else is asked: what is bad then is raised, and not rolled back."""
        was_attached = bool(self._attachments)
        self._unhook()
        if not self.enabled:
            return
        machine = self._machine
        if was_attached:
            machine.unseen.end(machine.n_asked_ever)
        try:
            try:
                machine.enter()
            finally:
                machine.detached()
            if machine.peers:
                self._leave()
            else:
                machine.settle()
        finally:  # whatever was raised, nobody is kept from these parameters
            self._watched.release()
            if machine.ring is not None and machine.ring.disk is not None:
                machine.ring.close_iteration()
                machine.ring.disk.close()
            if machine.phase in WHOLE:
                machine.move(Phase.DETACHED)

    def _leave(self) -> None:
        gradients, state = self._machine.read_and_forget("found when the guard was detached: nothing was done about it")
        for report in (gradients, state):
            if report is not None:
                self._tell("bad", str(report), report)
        if state is not None and not self._machine.policy.only_reports:
            raise BadState(str(state), state)

    def _unhook(self) -> None:
        _attached.discard(self)
        while self._attachments:
            self._attachments[-1].detach()
            self._attachments.pop()
        self._rate.undo()
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

    def _read_quietly(self, action: str) -> None:
        """What is on its way is read and logged if it is bad. Nothing is raised."""
        try:
            self._machine.enter()
            for report in self._machine.read_and_forget(action):
                if report is not None:
                    self._machine.underway.last = report
                    self._tell("bad", str(report), report)
        except Exception as error:  # the device may be gone
            print(f"esper: what was on its way could not be read: {error}", file=sys.stderr)

    def step(self, optimizer: Optional[torch.optim.Optimizer] = None, scaler: Any = None) -> Optional[Report]:
        """Instead of optimizer.step(), or scaler.step(optimizer), for who does not attach. Gives the newest report."""
        if optimizer is not None and not any(optimizer is one for one in self.optimizers):
            raise GuardError("guard.step(optimizer): that is not the optimizer this guard was made for")
        for one in self.optimizers if optimizer is None else [optimizer]:
            self._step(one, scaler)
        return self.last

    def _step(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        self._take_up()
        if self.enabled and self._machine.needs_first:
            self._machine.snapshot_first()
        if self._attachments or (not self.enabled and not self._clip):
            optimizer.step() if scaler is None else scaler.step(optimizer)
            return
        stepper: Any = self._machine if self.enabled else _Off(self)

        def made() -> Any:
            stepper.step_begins(optimizer)
            result = optimizer.step() if scaler is None else scaler.step(optimizer)
            stepper.step_ended(optimizer)
            return result

        if scaler is not None and scaler.is_enabled():
            stepper.scaled_step(scaler, optimizer, lambda: stepper.begin(optimizer) and made())
            return
        try:
            went = stepper.begin(optimizer)
            if went:
                made()
            stepper.end(optimizer, went)
        except BaseException:
            stepper.broke_off()
            raise

    # ------------------------------------------------------------------------------------------------ one scan more

    def launch(self, scan: _options.Roles = ("grad",)) -> Pending:
        """Scans the gradients as they are now, and other roles that are asked for. Under capture the scan becomes part
        of the CUDA graph; only gradients can be scanned there."""
        roles = 0
        if scan != ("grad",):
            found = _options.roles("launch: ", scan)
            roles = sum(1 << _abi.ROLES.index(role) for role in found if role in _options.STATE_ROLES)
        if not self.enabled:
            return NoPending()
        self._take_up()
        machine = self._machine
        captured = machine.capturing()
        if captured:
            machine.underway.check_capture()
            if roles:
                raise Unsupported(f"launch: scan={scan!r} under capture: a CUDA graph holds scans of gradients only. "
                                  "Launch the scan of the others outside of it, after a replay")
        elif machine.underway:
            machine.underway.read()
        # the state first: fewer questions are asked about it, and a device reads it while gradients are looked up
        state = self._launch_state(roles) if roles else None
        gradients = machine.underway.grads.collect(captured) if "grad" in scan else []
        pending = machine.underway.launch(machine.steps, gradients, captured)
        if state is not None:
            pending._scanners.append(state)
        if not captured:
            machine.underway.asked = pending
        return pending

    def _launch_state(self, roles: int) -> Optional[Scanner]:
        """A scan of the state as it is now, by parts of it. None where there is nothing to scan."""
        cover = self._machine.cover
        scanner = cover.scanner(validate=False)
        if scanner is not None:
            scanner.launch(roles=roles)
            cover.drop()
        return scanner

    def result(self) -> Optional[Report]:
        """Waits for the newest scan and gives its report; after a replay, that of the scan in the graph. What is bad is
        acted on; over ranks that is left to the next step, for which all of them are there."""
        if not self.enabled:
            return None
        with self._machine.call():
            return self._machine.read()

    def loss(self, loss: Loss) -> Loss:
        """Takes the loss of this step, to be judged with its gradients (spikes=esper.Spikes()), and gives it back. Does
        not wait for it. Where gradients are accumulated each part may be given: their mean is judged. It belongs to the
        next step(), whatever comes between: where the loop may leave that out, give the loss behind the question."""
        if self.enabled:
            judge = self._machine.underway.judge
            if judge is None:
                raise GuardError("loss(): this guard judges no losses: make it with spikes=esper.Spikes()")
            judge.take(loss)
        return loss

    # ------------------------------------------------------------------------------------------------ what is known

    @property
    def last(self) -> Optional[Report]:
        """Of the previous step, or of this one where the guard waits; never waits itself."""
        return self._machine.underway.last if self.enabled else None

    @property
    def steps(self) -> int:
        """Steps of the optimiser that were asked for; a rollback sets it back."""
        return self._machine.steps if self.enabled else 0

    @steps.setter
    def steps(self, value: int) -> None:
        if self.enabled:
            self._machine.steps = value

    @property
    def stepped(self) -> bool:
        """Whether the last step that was asked for was made, and neither passed over nor rolled back: `if
        guard.stepped: scheduler.step()`. Waits for the verdict where only the device knows it."""
        return self._machine.stepped if self.enabled else True

    @property
    def mode(self) -> str:
        """How the verdict reaches the optimiser."""
        return self._machine.mode if self.enabled else "off (ESPER_GUARD)"

    @property
    def not_covered(self) -> List[str]:
        """What is not scanned, and why: a sentence each."""
        return self._machine.underway.not_covered + self._machine.unseen.not_covered if self.enabled else []

    @property
    def lr_factor(self) -> float:
        """What rollbacks multiply the learning rate by, with lr_backoff. It is in the optimiser's groups only while it
        steps."""
        return self._rate.factor

    @property
    def n_skipped(self) -> int:
        """Steps that were passed over."""
        return self._machine.policy.n_skipped if self.enabled else 0

    @property
    def n_rollbacks(self) -> int:
        """Rollbacks that the guard made by itself."""
        return self._machine.policy.n_rollbacks if self.enabled else 0

    @property
    def n_rollbacks_asked(self) -> int:
        """Calls of rollback(), which do not count among `n_rollbacks`."""
        return self._machine.n_rollbacks_asked if self.enabled else 0

    def memory(self) -> Dict[str, int]:
        """Bytes of snapshots, on devices and in host memory."""
        if not self.enabled or self._machine.ring is None:
            return {"device": 0, "host": 0}
        return self._machine.ring.memory()

    # --------------------------------------------------------------------------------------------------- snapshots

    def snapshot(self) -> bool:
        """Takes a snapshot now and waits until it was judged. False: the state is not finite, and there is none; the
        log and `last` tell what is bad. (Bad gradients of the step before that nobody has read yet are acted on first,
        and may raise BadGradient.) Over ranks all of them call it, and it counts when it is good on all."""
        if not self.enabled:
            return True
        if self._machine.ring is None:
            raise GuardError("snapshot: this guard has no snapshots: make it with snapshot=esper.Snapshots()")
        self._refuse_detached("snapshot")
        with self._machine.call():
            return self._machine.snapshot()

    def rollback(self) -> Optional[int]:
        """Puts the newest good snapshot back: model, optimiser, random state, what `state` named. Gives its step (None
        while ESPER_GUARD=0: nothing was put back). It is logged, `last` tells of it, and it counts in
        `n_rollbacks_asked`, not against max_rollbacks. (Rollbacks that the guard makes by itself leave the random state
        alone, so that a loop which draws its batches from it goes on with the next one.)"""
        if not self.enabled:
            return None
        if self._machine.ring is None:
            raise NoSnapshot("rollback: this guard has no snapshots: make it with snapshot=esper.Snapshots()")
        self._refuse_detached("rollback")
        with self._machine.call():
            self._take_up()
            return self._machine.roll_back_now()

    def _refuse_detached(self, what: str) -> None:
        """After detach() the parameters are others'."""
        if self._machine.phase is Phase.DETACHED:
            raise GuardError(f"{what}: this guard is detached, and the parameters may be another's by now: call "
                             "attach() first")

    def refresh(self) -> None:
        """The model was changed on purpose (moved, resized, parameters replaced): takes it as it is now. Snapshots of
        what it was are dropped."""
        if not self.enabled:
            return
        machine = self._machine
        with machine.call():
            self._take_up()
            machine.forget_underway()
            known_forms = list(zip(map(id, self._watched.tensors), self._watched.forms))
            self._watched.release()
            self._watched.register()
            same = known_forms == list(zip(map(id, self._watched.tensors), self._watched.forms))
            known = machine.cover.not_judged
            machine.cover.look()
            if machine.cover.not_judged != known:
                self._tell_not_judged()
            machine.model_changed()
            self._begin_snapshots_anew(same)

    def _begin_snapshots_anew(self, same: bool = True) -> None:
        """Those that there are do not belong to the model any more. same: they would still fit, and are dropped when
        there is a new one."""
        ring = self._machine.ring
        if ring is not None and same:
            if self.snapshot():
                ring.good = ring.good[-1:]
        elif ring is not None:
            if ring.disk is not None:
                ring.disk.close()
            self._machine.wants_first = True
            self._machine.ring = Ring(ring.config, self._machine.cover, ring.extras.items, self._machine.peers,
                                      self._rate, self._tell)
            self._machine.ring.guard_state = ring.guard_state
            self.snapshot()

    # ------------------------------------------------------------------------------------------------------ to resume

    def state_dict(self) -> Dict[str, Any]:
        """Counters, step, rate factor: what a guard needs to go on where this one is, beside the checkpoint of model
        and optimiser. Plain numbers, dicts and lists."""
        parts = {name: part.state_dict() for name, part in self._parts.items()} if self.enabled else {}
        return {"format": _FORMAT, **parts}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """After model and optimiser were loaded. Snapshots of what was before are dropped, and one is taken."""
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise GuardError(f"load_state_dict: that is not what the state_dict of a guard gives (format {_FORMAT})")
        if not self.enabled:
            return
        with self._machine.call():
            self._machine.forget_underway()
            for name, part in self._parts.items():
                if name in state:  # an earlier version, or one with ESPER_GUARD=0, may have had less
                    part.load_state_dict(state[name])
            if self._attachments:
                self._begin_snapshots_anew()
            elif self._machine.ring is not None:  # attach() or the first step() takes one
                self._machine.ring.good = []

    def resume(self) -> Optional[int]:
        """Goes back to the newest snapshot that an earlier job has left in Snapshots(directory=...): model, optimiser,
        random state, what `state` named, and the guard's own. Gives its step; None where there is none. Call it before
        attach(), and on all ranks; the newest that every rank has is taken."""
        if not self.enabled:
            return None
        machine = self._machine
        if machine.ring is None or machine.ring.disk is None:
            raise GuardError("resume: this guard has no snapshots on disk: make it with "
                             "snapshot=esper.Snapshots(directory=...)")
        with machine.call():
            self._take_up()
            disk = machine.ring.disk
            number = machine.peers.common(disk.numbers())
            if number is None:
                return None
            newest = machine.peers.most(disk.newest())
            entry = disk.read(number)
            disk.begin(newest)
            machine.resume(entry)
            for name in machine.ring.extras.items:
                if name not in entry.extras and name not in entry.schedule:
                    self._tell("alarm", f"resume: state[{name!r}] is not in the snapshot on disk, and stays as it is")
            for name, part in self._parts.items():
                if name in entry.guard:
                    part.load_state_dict(entry.guard[name])
            self._resumed = True
        return entry.step

    # ---------------------------------------------------------------------------------------------------------- other

    def inject(self, name: str, at: int = 0, fault: _inject.Fault = "nan", bit: int = 0) -> None:
        """Spoils one element of a tensor, named as in reports, now: to see how your training takes it. fault: "nan",
        "inf", "-inf", or "exponent" and "mantissa", which flip a bit."""
        _inject.check_fault(fault)
        if self.enabled:
            _inject.spoil(name, self._watched, self._machine.cover, at, fault, bit)

    def locate(self, closure: Callable[[], Any]) -> Location:
        """Runs one step once more, with every operation looked at, and says where the first value that is not finite
        was born: module, operation and line. The closure makes the forward and the backward pass of the bad batch, or
        the forward pass alone and gives the loss. Gradients, buffers and random state are put back afterwards."""
        if not self.enabled:
            return Location()
        judge = self._machine.underway.judge
        with judge.aside() if judge is not None else contextlib.nullcontext():
            return locate(self._model, list(self.optimizers), closure)

    def __repr__(self) -> str:
        how = "off" if not self.enabled else "attached" if self._attachments else "not attached"
        on_bad = getattr(self._on_bad, "__name__", "a function") if callable(self._on_bad) else repr(self._on_bad)
        names = " and ".join(type(optimizer).__name__ for optimizer in self.optimizers)
        return (f"<esper.Guard of {type(_names.unwrap(self._model)).__name__} and {names}, "
                f"on_bad={on_bad}, {how}, step {self.steps}>")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an esper.Guard cannot be copied or pickled: it belongs to one model and one optimizer in this "
                        "process. Save their state_dict, and its own, and make a guard for the copy")


class _Off:
    """While ESPER_GUARD=0: a loop that leaves clipping to the guard is to go on as it did."""

    def __init__(self, guard: Guard) -> None:
        self._model, self._optimizers, self._clip = guard._model, guard.optimizers, guard._clip
        self._scaling = False

    def enter(self) -> None:
        pass

    def begin(self, optimizer: torch.optim.Optimizer, first: bool = True) -> bool:
        if not self._scaling:
            known = _names.parameters(self._model)
            parameters = [parameter for _, parameter in known + _names.of_optimizers(self._optimizers, known)]
            torch.nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], self._clip)
        return True

    def scaled_step(self, scaler: Any, optimizer: torch.optim.Optimizer, do: Any) -> Any:
        if not _optim.unscaled(scaler, optimizer):
            scaler.unscale_(optimizer)
        self._scaling = False
        self.begin(optimizer)
        self._scaling = True
        try:
            return do()
        finally:
            self._scaling = False

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        pass

    def end(self, optimizer: torch.optim.Optimizer, went: bool) -> None:
        pass

    def broke_off(self) -> None:
        self._scaling = False

    step_ended = remember = passed_by = step_begins

    def take_back(self) -> None:
        pass
