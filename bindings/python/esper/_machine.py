"""What the guard does around a step: judges, lets step or not, keeps, rolls back. `_phase` has the phases.

Verdicts have three sources: the scan of gradients, the scan of the state, and `sources`, functions of a report on
gradients that give a sentence where finite numbers are out of the question (a spike). What is done about them,
`_policy` says.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from . import _abi, _copy, _optim, _ranks
from ._copy import Copy, Slot
from ._errors import BadState, GuardError, NoSnapshot, NotRestored, Unsupported
from ._phase import WHOLE, Phase, Phased
from ._pending import Pending
from ._policy import Policy
from ._rate import Rate
from ._report import Report
from ._round import Round, Unseen
from ._scan import Scanner
from ._spikes import Judge
from ._snapshots import Restored, Ring
from ._underway import Underway, capturing

Source = Callable[[Report], Optional[str]]


class Rollback:
    """What a rollback is to bring about. All of it is known before it begins, so that it can be made again."""

    def __init__(self, report: Optional[Report], factor: float, resumed: bool = False) -> None:
        self.report = report  # why; None when guard.rollback() or resume() asks for it
        self.resumed = resumed
        self.factor = factor  # of the learning rate, afterwards
        self.spike = False  # for numbers that are finite, as those of the snapshot are


class Machine(Phased):
    """Comes between gradients and optimisers, and behind them."""

    def __init__(self, underway: Underway, policy: Policy, rate: Rate, ring: Optional[Ring],
                 tell: Callable[..., None], *, scan_grads: bool, state_every: int, lr_backoff: float) -> None:
        super().__init__()
        self.underway, self.policy, self.rate, self.ring = underway, policy, rate, ring
        self.watched, self.cover, self.peers = underway.watched, underway.cover, underway.peers
        self.optimizers = self.watched.optimizers
        self.unseen = Unseen(self.optimizers, tell)
        self.sources: List[Source] = []
        self._tell = tell
        self._scan_grads = scan_grads
        self._state_every = state_every
        self._lr_backoff = lr_backoff

        self.steps = 0  # asked for; a rollback sets it back
        self.n_asked_ever = 0  # no rollback sets this back
        self.n_rollbacks_asked = 0
        self.was_away = False  # steps may have been made that the guard has not seen
        self.wants_first = False  # snapshots begin anew: one is to be taken before the next step
        self._goes_without = False  # the state at the start was bad, and only reported
        self._is_due = False  # a snapshot that was to be taken behind a step which was not made, or a doubtful one
        self._spiked_to: Optional[Copy] = None  # where the last rollback because of a spike went
        self._of = self.watched.version  # the parameters of which there is a snapshot
        self._ready_for = -1  # the version of the gradients for all of which the optimiser has state
        self._restoring: Optional[Rollback] = None

        # about the step that is being made, or the last one
        self._round: Optional[Round] = None
        self._stepped = False
        self._scaling = False  # GradScaler makes it
        self._scaler_went = False  # and has called the optimiser
        self._withheld = False  # this rank leaves a step out that others pass over on the device
        self._is_first = True  # not a closure's second evaluation, which may try anything
        self._before: Optional[Copy] = None  # the state before a step with a closure
        self._slot: Slot = {}  # where that lies

        self.mode = ""
        self.waits = self.may_flag = self.at_once = False
        self.choose_mode()

    def choose_mode(self) -> None:
        """How the verdict reaches the optimiser. The same on every rank: nothing that ranks may differ in counts."""
        deaf = next((type(one).__name__ for one in self.optimizers if not _optim.takes_flag(one)), None)
        self.may_flag = False
        if self.policy.decides_before:
            self.mode = "one wait a step: the verdict is known before the optimizer steps"
        elif self.peers.shards:
            self.mode = "one wait a step: gradients are sharded, and looked at over all ranks together"
        elif not self.policy.may_skip:
            self.mode = "no wait: reports follow one step later"
        elif self.sources:
            self.mode = "one wait a step: spikes are judged before the optimizer steps"
        elif deaf is not None:
            self.mode = f"one wait a step: {deaf} has no found_inf to be told on the device (fused ones have)"
        else:
            self.may_flag = True
            names = " and ".join(dict.fromkeys(type(optimizer).__name__ for optimizer in self.optimizers))
            self.mode = (f"no wait: {names} {'is' if len(self.optimizers) == 1 else 'are'} told on the device through "
                         "found_inf; reports follow one step later")
        self.waits = self.mode.startswith("one wait")
        if self.underway.clip > 0 and not self.waits:
            self.mode += " (clip= waits where gradients are sparse, views with gaps or on several devices)"
        self._on_cuda = any(form[1].type == "cuda" for form in self.watched.forms)
        self.at_once = self.waits or all(form[1].type == "cpu" for form in self.watched.forms)

    def look_for_spikes(self, judge: Judge) -> None:
        """From now on losses and norms are judged, too."""
        self.underway.judge = judge
        self.sources.append(judge.source)
        self.choose_mode()

    # ---------------------------------------------------------------------------------------------- calls, broken off

    def enter(self) -> None:
        """A call begins. GradScaler's call of the optimiser is within one."""
        if self.phase not in WHOLE and not self._scaling:
            self.recover()

    def broke_off(self) -> None:
        """An exception is on its way to the caller, who may go on with whatever he likes."""
        if self.phase not in WHOLE or self._restoring is not None:
            self.recover()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Around what users call between steps."""
        self.enter()
        try:
            yield
        except BaseException:
            self.broke_off()
            raise

    def recover(self) -> None:
        """After an exception at any point: the optimiser as if the call had not been, and a rollback that had begun is
        made. Scans, snapshots and lists of tensors are safe by themselves: each is done, or will be done again."""
        self.take_back()
        self.underway.take_flags()
        self._round, self._scaling, self._withheld = None, False, False
        self.phase = Phase.BETWEEN
        if self._restoring is not None:
            self._restore()

    def model_changed(self) -> None:
        """On purpose: takes it as it is now."""
        self.peers.look(self.watched.model)
        self.underway.model_changed()
        self.unseen.begin()
        self._round = None
        self._of = self.watched.version
        self.choose_mode()

    def detached(self) -> None:
        """Hooks are gone."""
        self.rate.undo()
        self.underway.order.stop()
        self.underway.take_flags()
        self.was_away = True

    # ---------------------------------------------------------------------------------------------- before the step

    def begin(self, optimizer: torch.optim.Optimizer, first: bool = True) -> bool:
        """Whether the optimiser may step, as far as is known; where nothing is known yet it is told on the device.
        first: this is not a closure's second evaluation."""
        if self._scaling:
            self._scaler_went = True
            return True
        within = self.phase is Phase.STEPPING  # a closure, whose step has to be ended before nothing is half done
        self.move(Phase.JUDGING)
        if first and self._round is not None and self._round.has(optimizer):
            go = self._round.go
            if self._round.flagged:
                self.underway.flag.give(optimizer)
        else:
            go = (not first or self._close_round()) and self._judge(optimizer, first)
            if first and len(self.optimizers) > 1:
                self._round = Round(go, self.optimizers, go and self._is_flagged())
        self.move(Phase.STEPPING if go else Phase.JUDGING if within else Phase.BETWEEN)
        return go

    def _judge(self, optimizer: torch.optim.Optimizer, first: bool) -> bool:
        self._withheld, self._is_first = False, first
        self.underway.take_flags()  # of a step that was broken off: they are not a GradScaler's
        captured = self.capturing()
        if captured:
            self.underway.check_capture()
        elif first and not self._come_back():
            return False
        if first:
            self.steps += 1
            self.n_asked_ever += 1
        if not self._scan_grads:
            return True
        self.underway.order.settle()
        scanners = self.underway.grads.collect(captured)
        if self.watched.version != self._of and not captured and not self._snapshot_of_more():
            return False
        if not scanners and not self.peers:
            self._drop_losses()
            return True
        scaled = hasattr(optimizer, "found_inf")
        if scaled and self.underway.clip > 0 and getattr(optimizer, "grad_scale", None) is not None:
            raise Unsupported("clip= and a fused optimizer under GradScaler: gradients are still scaled here. Give the "
                              "scaler to attach(scaler=...) or guard.step(optimizer, scaler)")
        if captured:  # nothing is known on the host when it is replayed
            self.underway.launch_captured(self.steps, scanners, scaled or self.may_flag)
            if self.underway.captured[-1].flag is not None:
                self.underway.flag.give(optimizer)
            return True
        return self._scan_and_judge(scanners, scaled, optimizer)

    def _drop_losses(self) -> None:
        """Of a step without gradients: they are not the next one's."""
        if self.underway.judge is not None:
            self.underway.judge.losses_of_step()

    def _is_flagged(self) -> bool:
        """Whether the verdict on the step that is being judged is a flag on the device."""
        if self.capturing():
            return any(one.step == self.steps and one.flag is not None for one in self.underway.captured[-1:])
        return self.underway.gradients is not None and self.underway.gradients.flagged

    def capturing(self) -> bool:
        return self._on_cuda and capturing()

    def _come_back(self) -> bool:
        """The loop is here again: what the step before has launched is acted on. False: the state was rolled back, and
        these gradients are of the one before."""
        if self.ring is not None:
            self.ring.come_back()
        if self.peers.within_join and not self.peers.told_of_join:
            self.peers.told_of_join = True
            self._tell("note", "DDP.join(): a rank without inputs cannot be asked, so each decides by the gradients "
                       "that DDP has made the same on all; a rollback is not made here, what would need one raises")
        if self.wants_first:  # an exception has come between refresh() and its snapshot
            self.snapshot_first()
            self.move(Phase.JUDGING)
        return self.settle()

    def _snapshot_of_more(self) -> bool:
        """Parameters have come (add_param_group): there is to be a way back with them before the first is spoilt."""
        if self.ring is None or not self.ring.good or self.watched.n_added == 0:
            self._of = self.watched.version
            return True
        self.move(Phase.KEEPING)
        self.underway.launch_state(self.steps, self.ring, self.at_once)
        self.underway.read()
        good = self._act_on_state()
        if good:
            self._of = self.watched.version
            self.move(Phase.JUDGING)
        return good

    def _scan_and_judge(self, scanners: List[Scanner], scaled: bool, optimizer: torch.optim.Optimizer) -> bool:
        """As `mode` says. Over ranks the way depends on nothing that is this rank's alone: every one of them votes."""
        underway = self.underway
        one = underway.one_launch(scanners)
        if scaled or (self.may_flag and (self.peers or (one and self._ready()))):
            scale = getattr(optimizer, "grad_scale", None) if scaled else None
            underway.launch_flagged(self.steps, scanners, scaled, scale)
            underway.flag.give(optimizer)
            if scaled or not self.peers or self._ready():
                return True
            # this rank's optimiser cannot pass over its first step by itself; all is acted on later, as on the others
            self._withheld = underway.flag.first_rank() is not None
            return not self._withheld
        if self.waits or self.may_flag:
            return self._decide(underway.launch(self.steps, scanners, clip=True))
        pending = underway.gradients = underway.launch(self.steps, scanners, clip=True)  # on_bad="report"
        if underway.clip > 0 and not one:
            underway.clip_now(pending.report())
        return True

    def _ready(self) -> bool:
        """Whether the optimisers have state for all gradients, so that they can pass over a step by themselves."""
        version = self.underway.grads.version
        if self._ready_for != version or not all(optimizer.state for optimizer in self.optimizers):
            self._ready_for = version if all(map(_optim.has_state, self.optimizers)) else -1
        return self._ready_for >= 0

    # ------------------------------------------------------------------------------------------------- the decision

    def _decide(self, pending: Pending, scaled: bool = False) -> bool:
        """The verdict is waited for, and that of the other ranks."""
        report = self.underway.note(pending.report())
        self.underway.sum_shards(report)
        self._consult(report)
        self.underway.reduce(report)
        if not report.ok:
            self.underway.look_at_versions(report)
            return self._act_on_bad(report, untouched=True, scaled=scaled) == "go"
        self.policy.healthy()
        self.underway.clip_now(report)
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

    def _act_on_bad(self, report: Report, untouched: bool, scaled: bool) -> str:
        """What is done about bad gradients: "go", "skip" or "rollback". When the state is bad although no step was made
        with them (untouched: then all ranks are here), that is why."""
        if untouched and not self._act_on_state():  # the state behind that step is on its way already
            return "rollback"
        state = self.underway.look_at_state(report.step) if untouched else None
        if state is not None and not state.ok:
            report = self.underway.last = state
            answer = self.policy.of_state(state, untouched=True)
        else:
            answer = self.policy.of_gradients(report, untouched, scaled)
        if answer == "rollback":
            self.forget_underway()
            self._roll_back(report)
        return answer

    # What is on its way is forgotten when it was acted on, and not before: whatever breaks that off, it is not lost.

    def settle(self) -> bool:
        """Reads what was launched in the step before and acts on it. False: the state was rolled back."""
        if not self.underway:
            return True
        self.underway.read()
        return self._act_on_gradients() and self._act_on_state()

    def _act_on_gradients(self) -> bool:
        pending, answer = self.underway.gradients, "go"
        if pending is None:
            return True
        try:
            report = pending.report()
            self._consult(report)
            if report.ok:
                self.policy.healthy()
            else:
                untouched = pending.flagged and not report.bits & _abi.BAD_SPIKE  # the device knows of no spikes
                answer = self._act_on_bad(report, untouched, scaled=pending.scaled)
        except Exception:
            self.underway.gradients = None
            raise
        self.underway.gradients = None
        return answer != "rollback"

    def _act_on_state(self) -> bool:
        state, answer = self.underway.state, "go"
        if state is None:
            return True
        try:
            if state.entry is not None:
                self.ring.judge(state.entry, state.reading, state.report.ok)
            if not state.report.ok:
                self.underway.last = state.report
                answer = self.policy.of_state(state.report)
                if answer == "rollback":
                    self._roll_back(state.report)
        except Exception:
            self.underway.state = None
            raise
        self.underway.state = None
        return answer == "go"

    def forget_underway(self) -> None:
        """What is on its way is read, and nothing is done about it: the state it is of will be another."""
        self.underway.read()
        self.underway.gradients = None
        state = self.underway.state
        if state is not None and state.entry is not None:
            self.ring.judge(state.entry, state.reading, state.report.ok)
        self.underway.state = None

    def read_and_forget(self, action: str) -> Tuple[Optional[Report], Optional[Report]]:
        """What is on its way and bad, gradients and state, with `action` said of it. Other ranks are not asked."""
        pending, deep = self.underway.gradients, self.underway.state
        self.forget_underway()
        gradients, state = None, None
        if pending is not None and not pending.scaled and not pending.report().ok:  # GradScaler sees to its own
            gradients = pending.report()
            gradients.action = "step skipped, optimizer untouched" if pending.flagged else action
        if deep is not None and not deep.report.ok:
            state = deep.report
            state.action = action
        return gradients, state

    def read(self) -> Optional[Report]:
        """The newest report, waited for. Acted on where no other rank has to be there for it."""
        underway = self.underway
        if self.peers:
            underway.read()
            if underway.last is not None and not underway.last.ok and not underway.last.action:
                underway.last.action = "to be acted on at the next step"
        else:
            self.settle()
        if underway.captured:
            try:
                return underway.captured[-1].result()
            except GuardError as error:
                if not underway.eager or "no replay" not in str(error):
                    raise
        return underway.last

    # ----------------------------------------------------------------------------------------------- the step itself

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimiser is called now."""
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
        if self._before is not None:
            _copy.put_back(self._before, self.cover, _copy.Extras({}, self.cover), set())
        self._before = None

    def end(self, optimizer: torch.optim.Optimizer, went: bool) -> None:
        """Behind the optimiser."""
        self.underway.take_flags()
        self._before = None
        if not self._scaling:
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

    @property
    def stepped(self) -> bool:
        """Whether the last step that was asked for was made. Waits where only the device knows."""
        pending = self.underway.gradients
        if pending is not None and pending.flagged:
            self.underway.read()
            return self._stepped and pending.report().ok
        return self._stepped

    def passed_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are zeroed. A closure does so within a step, where parameters may move."""
        if self.phase is Phase.BETWEEN:
            self.unseen.zeroed()

    # ----------------------------------------------------------------------------------------- behind the optimiser

    def _keep(self, went: bool) -> bool:
        """Looks at the state and takes a snapshot, when they are due. False: the state was bad, and rolled back."""
        self.unseen.stepped()
        if self.capturing():
            self.move(Phase.BETWEEN)
            return True
        ring, good = self.ring, True
        due = ring is not None and (self._is_due or self.steps % ring.config.every == 0)
        holds = went and due and not self._is_calm()
        if not went:
            self._is_due = due and not (ring.good and ring.good[-1].step == self.steps)
        elif holds:
            self._is_due, due = True, False
        if went and (due or (self._state_every and self.steps % self._state_every == 0)):
            self.move(Phase.KEEPING)
            self.underway.launch_state(self.steps, ring if due else None, self.at_once)
            self._is_due = holds
            if self.at_once:  # a checkpoint may be next
                good = self.settle()
        elif went and ring is not None and not ring.knows_state and any(one.state for one in self.optimizers):
            ring.plan_ahead()
        self.move(Phase.BETWEEN)
        return good

    def _is_calm(self) -> bool:
        """Whether no rank is counting what may turn out to be a divergence: a snapshot of one would be no way back.
        Where a snapshot is due, it is so on all ranks, and all ask."""
        judge = self.underway.judge
        return judge is None or self.peers.agree(judge.calm, _ranks.CALM)

    @property
    def needs_first(self) -> bool:
        """Whether a step is about to be made from a state that there is no way back to."""
        if self.ring is None or self._round is not None:
            return False
        return self.was_away or not (self.ring.good or self._goes_without)

    def snapshot(self) -> bool:
        """Takes one now, judged before this returns. False: the state is not finite."""
        try:
            self.settle()
        except BadState as error:
            self._tell("bad", str(error), error.report)
            return False
        self.move(Phase.KEEPING)
        self.underway.launch_state(self.steps, self.ring, self.at_once)
        self.underway.read()
        state = self.underway.state
        self.ring.judge(state.entry, state.reading, state.report.ok)
        self.underway.state = None
        self.move(Phase.BETWEEN)
        if not state.report.ok:
            self.underway.last = state.report
            state.report.action = "no snapshot was taken of it"
            self._tell("bad", str(state.report), state.report)
            return False
        self.ring.close_iteration()
        self.was_away = self._is_due = self.wants_first = False
        self._of = self.watched.version
        return True

    def snapshot_first(self) -> None:
        """There is to be a way back from the start, and not to before steps that were made while nobody looked."""
        if self.ring is None or (self.ring.good and not self.was_away) or self.snapshot():
            return
        report = self.underway.last
        if self.policy.of_state(report) == "rollback":
            if not self.ring.good:
                report.action = "and there is no snapshot from before that"
                raise BadState(str(report), report)
            self._roll_back(report)
        else:
            self._goes_without = True

    # ---------------------------------------------------------------------------------------------------- rollbacks

    def roll_back_now(self) -> int:
        """Because guard.rollback() asks for it."""
        self.forget_underway()
        self._restoring = Rollback(None, self.rate.factor * self._lr_backoff)
        return self._restore()

    def resume(self, entry: Copy) -> int:
        """To a snapshot from disk, of an earlier job: nothing of this one is worth keeping."""
        self.forget_underway()
        self.ring.adopt(entry)
        self._restoring = Rollback(None, self.rate.factor, resumed=True)
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
        wanted = Rollback(report, self.rate.factor * self._lr_backoff)
        wanted.spike = report.only_spikes if self.peers else bool(report.spike)  # the same on every rank
        self._restoring = wanted
        self._restore()

    def _restore(self) -> int:
        """Makes the rollback that `_restoring` says. Made again, it comes to the same."""
        wanted = self._restoring
        self.move(Phase.RESTORING)
        self._before = None
        step = self.steps
        try:
            self._drop_what_diverges(wanted)
            restored = self.ring.restore(asked=wanted.report is None)
            self._check(restored)
        except Exception as error:  # made again, it would come to the same. Not so after Ctrl-C
            self._restoring = None
            self.move(Phase.BETWEEN)
            if isinstance(error, GuardError) and not isinstance(error, NotRestored):
                raise
            raise self._not_restored(wanted, error) from error
        self.underway.gradients = self.underway.state = None  # of the state that is gone
        self.steps = restored.entry.step
        self.rate.factor = wanted.factor
        self._ready_for = -1  # state may have gone
        self._stepped = self.was_away = self._is_due = False
        if self._round is not None:
            self._round.undo()
        self.policy.forget()
        if self.underway.judge is not None:
            self.underway.judge.restart()
        self._spiked_to = restored.entry if wanted.spike else None
        self._restoring = None
        self._tell_rollback(wanted, restored, step)
        self.move(Phase.BETWEEN)
        return restored.entry.step

    def _drop_what_diverges(self, wanted: Rollback) -> None:
        """A snapshot from which a spike has led back to it is of a divergence that had begun: an older one is not."""
        good = self.ring.good
        if wanted.spike and len(good) > 1 and good[-1] is self._spiked_to:
            self.ring.good = good[:-1]
            self._tell("snapshot", f"rollback: from the snapshot of step {good[-1].step} there was a spike again; "
                       "taking an older one")

    def _not_restored(self, wanted: Rollback, error: Exception) -> NotRestored:
        """What a rollback puts back has raised: a state= object, most likely."""
        what = str(error) if isinstance(error, NotRestored) else f"{type(error).__name__}: {error}"
        said = f"not rolled back: {what}. The state is put back in part: load a checkpoint"
        if wanted.report is None:
            said = f"rollback: {said}"
            self._tell("raise", said)
            return NotRestored(said)
        wanted.report.action = said
        self._tell("raise", str(wanted.report), wanted.report)
        return NotRestored(str(wanted.report))

    def _check(self, restored: Restored) -> None:
        """Every tensor is finite now, or it is no rollback: one that came after the snapshot may be the bad one."""
        now = self.underway.report_of_state(restored.entry.step, restored.readings)
        if now.ok:
            return
        self.underway.last = now
        which = "which is not in the snapshot" if now.first_bad in restored.left else "after the snapshot was put back"
        now.action = f"{which}: not rolled back. Load a checkpoint, or mend it and call guard.refresh()"
        raise BadState(str(now), now)

    def _tell_rollback(self, wanted: Rollback, restored: Restored, step: int) -> None:
        if wanted.resumed:
            self._tell("rollback", f"step {restored.entry.step}: resumed from the snapshot on disk")
            return
        stays = ""
        if restored.left:
            more = f" and {len(restored.left) - 1} more" if len(restored.left) > 1 else ""
            stays = f"; {restored.left[0]}{more} came after that snapshot and stay as they are"
        if self.watched.n_of_others:
            stays += ("; parameters of another guard's optimizer do not go back: Guard(model, [optimizer, ...]) is for "
                      "both")
        if wanted.report is None:
            self.n_rollbacks_asked += 1
            report = self.underway.last = Report(restored.entry.step, restored.readings, self.underway.not_covered)
            report.of_state = True
            report.action = f"put back at step {step}, as guard.rollback() asked for{stays}"
            self._tell("rollback", str(report), report)
        else:
            self.policy.rolled_back(wanted.report, restored.entry.step, stays)
        if self._lr_backoff != 1.0:
            graphs = "; that does not reach steps in a CUDA graph: capture them again" if self.underway.captured else ""
            self._tell("rate", f"the learning rate is multiplied by {self.rate.factor:g} from now on (lr_backoff)"
                       + graphs)

    # -------------------------------------------------------------------------------------------------- GradScaler

    def scaled_step(self, scaler: Any, optimizer: torch.optim.Optimizer, do: Callable[[], Any]) -> Any:
        """A step that GradScaler makes: gradients are unscaled first, what the scan finds goes into its found-inf."""
        self._scaling = False
        self.enter()
        try:
            self.move(Phase.JUDGING)
            self._withheld, self._is_first = False, True
            same = self._round is not None and self._round.has(optimizer)
            self._check_unscaled(scaler, optimizer, same)
            if same:
                go = self._round.go
            else:
                unscaled = self._unscale(scaler)
                go = self._close_round() and self._judge_scaled(scaler)
                if len(self.optimizers) > 1:
                    self._round = Round(go, self.optimizers, unscaled=unscaled)
            result = None
            if go:
                self.move(Phase.STEPPING)
                self._scaling, self._scaler_went = True, False
                try:
                    result = do()
                finally:
                    self._scaling = False
            self._end_of_one(optimizer, go and self._scaler_went)
        except BaseException:
            self.broke_off()
            raise
        return result

    def _unscale(self, scaler: Any) -> Dict[int, Any]:
        """All gradients that are not unscaled yet; what GradScaler has noted of them then."""
        scaled = [one for one in self.optimizers if not _optim.unscaled(scaler, one) and _optim.has_gradients(one)]
        for one in scaled:
            scaler.unscale_(one)
        return {id(one): _optim.scaler_state(scaler, one) for one in scaled}

    def _check_unscaled(self, scaler: Any, optimizer: torch.optim.Optimizer, same: bool) -> None:
        """The gradients of all optimisers were unscaled at the first one's step. GradScaler unscales once between its
        updates: others that have come since would be stepped as they are, the same behind an update be unscaled twice.
        """
        noted = self._round.unscaled.get(id(optimizer)) if self._round is not None else None
        if noted is None or same == (noted is _optim.scaler_state(scaler, optimizer)):
            return
        why = "scaler.update() came" if same else "there are other gradients, and no scaler.update() came,"
        raise GuardError(f"{why} between the steps of optimizers that have one guard: call it when all have stepped, "
                         "once behind each backward pass, or make a guard for each optimizer")

    def _judge_scaled(self, scaler: Any) -> bool:
        """False: rolled back, and these gradients are of the state before. All else GradScaler decides."""
        if not self._come_back():
            return False
        self.steps += 1
        self.n_asked_ever += 1
        self.underway.order.settle()
        scanners = self.underway.grads.collect() if self._scan_grads else []
        if not scanners and not (self._scan_grads and self.peers):
            self._drop_losses()
            return True
        found = [tensor for optimizer in self.optimizers for tensor in _optim.found_infs(scaler, optimizer)]
        if not self.peers.shards and not self.sources and (self.peers or self.underway.one_launch(scanners)):
            self.underway.launch_flagged(self.steps, scanners, scaled=True)
            for tensor in found:
                torch.maximum(tensor, self.underway.flag.found.to(tensor.device).expand_as(tensor), out=tensor)
            return True
        pending = self.underway.launch(self.steps, scanners, clip=True)
        go = self._decide(pending, scaled=True)
        report = pending.report()
        if not go or not (report.ok or report.spike or report.only_spikes):
            for tensor in found:
                tensor.fill_(1.0)
        return True

    # ---------------------------------------------------------------------------------------------------- to resume

    def state_dict(self) -> Dict[str, Any]:
        return {"steps": self.steps, "asked_ever": self.n_asked_ever, "rollbacks_asked": self.n_rollbacks_asked}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._goes_without = False
        self.steps = int(state["steps"])
        self.n_asked_ever = int(state["asked_ever"])
        self.n_rollbacks_asked = int(state["rollbacks_asked"])
