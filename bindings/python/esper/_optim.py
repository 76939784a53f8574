"""How the guard comes between gradients and optimiser: hooks, or a wrapped `step` where torch has no hooks; and the
device flag with which fused optimisers pass a step over by themselves."""

import functools
import inspect
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ._dist import Peers
from ._rate import Rate


def _go(first: bool) -> bool:
    return True


def _nothing(went: bool) -> None:
    pass


class Attachment:
    """Calls before(first) ahead of every step and after(went) behind it. A step that is not to be is made with the
    gradients laid aside: an optimiser does nothing to a parameter without one. `first` is False for the second and
    later evaluations of a closure within one step."""

    def __init__(self, optimizer: torch.optim.Optimizer, before: Callable[[bool], bool],
                 after: Callable[[bool], None], rate: Rate) -> None:
        self._optimizer = optimizer
        self._before = before
        self._after = after
        self._rate = rate
        self._aside: List[Tuple[torch.Tensor, torch.Tensor]] = []
        self._went = True
        self._active = True
        self._outer: Tuple[int, Any] = (0, None)  # whose step is being made: the caller's frame, by id, and its code
        self._handles: List[Any] = []
        self._step: Any = None  # ours, where torch has no hooks
        self._own: Dict[str, Any] = {}  # a `step` that others had put on the optimiser before
        if hasattr(optimizer, "register_step_pre_hook"):
            self._handles = [optimizer.register_step_pre_hook(self._pre), optimizer.register_step_post_hook(self._post)]
        else:
            self._wrap()

    def detach(self) -> None:
        """Nothing is called any more, and the guard is let go of."""
        self._active = False
        self._before, self._after = _go, _nothing
        for handle in self._handles:
            handle.remove()
        self._bring_back()
        if self._step is not None and self._optimizer.__dict__.get("step") is self._step:
            del self._optimizer.step  # unless somebody has wrapped it since: then it only passes calls on
            self._optimizer.__dict__.update(self._own)

    def _wrap(self) -> None:
        original = self._optimizer.step
        self._own = {key: value for key, value in self._optimizer.__dict__.items() if key == "step"}

        @functools.wraps(original)
        def step(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            changed = self._pre(self._optimizer, args, kwargs)
            if changed is not None:
                args, kwargs = changed
            try:
                result = original(*args, **kwargs)
            except BaseException:
                self._bring_back()
                raise
            self._post(self._optimizer, args, kwargs)
            return result

        self._optimizer.step = self._step = types.MethodType(step, self._optimizer)  # schedulers look for a method

    def _pre(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if not self._active or self._is_within(sys._getframe(1)):
            return None
        self._outer = (id(sys._getframe(1)), sys._getframe(1).f_code)
        own = args[:1] if args and args[0] is optimizer else ()  # hooks are given the method's self too
        rest = args[len(own):]
        closure = rest[0] if rest else kwargs.get("closure")
        if closure is None:
            self._aside = []  # of a step that was broken off
            self._ask(True)
            self._rate.apply()
            return None
        watched = self._watch(closure)
        self._rate.apply()
        if "closure" in kwargs:
            return args, dict(kwargs, closure=watched)
        return (*own, watched, *rest[1:]), kwargs

    def _is_within(self, frame: Any) -> bool:
        """Whether hooks are called from inside the step that is being made: torch runs those of a base class's step too
        when the optimiser's own calls it. A step that was broken off is no longer among the callers."""
        if self._outer[1] is None or (id(frame), frame.f_code) == self._outer:
            return False
        while frame.f_back is not None:
            frame = frame.f_back
            if (id(frame), frame.f_code) == self._outer:
                return True
        return False

    def _watch(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """A closure by which gradients come to be inside the step."""
        n_evaluated = 0

        @functools.wraps(closure)
        def watched() -> Any:
            nonlocal n_evaluated
            self._aside = []  # of an evaluation before this one: its gradients are no longer wanted
            try:
                loss = closure()
                n_evaluated += 1
                self._ask(n_evaluated == 1)
            except BaseException:
                self._bring_back()
                raise
            return loss

        return watched

    def _ask(self, first: bool) -> None:
        self._went = self._before(first)
        if not self._went:
            self._aside = [(parameter, parameter.grad) for group in self._optimizer.param_groups
                           for parameter in group["params"] if parameter.grad is not None]
            for parameter, _ in self._aside:
                parameter.grad = None

    def _post(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if self._active and not self._is_within(sys._getframe(1)):
            self._outer = (0, None)
            self._bring_back()
            self._after(self._went)

    def _bring_back(self) -> None:
        """Gradients that were laid aside, and the learning rate."""
        self._rate.undo()
        for parameter, grad in self._aside:
            parameter.grad = grad
        self._aside = []


class ScalerAttachment:
    """Calls step(scaler, do) instead of a GradScaler's step of one optimiser; do() makes it."""

    def __init__(self, scaler: Any, optimizer: torch.optim.Optimizer,
                 step: Callable[[Any, Callable[[], Any]], Any]) -> None:
        self.scaler = scaler
        self._active = True
        self._guarded: Any = step
        self._own = {key: value for key, value in scaler.__dict__.items() if key == "step"}
        original, mine = scaler.step, optimizer

        @functools.wraps(original)
        def wrapped(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active or optimizer is not mine or not scaler.is_enabled():
                return original(optimizer, *args, **kwargs)
            return self._guarded(scaler, lambda: original(optimizer, *args, **kwargs))

        scaler.step = self._step = wrapped

    def detach(self) -> None:
        """Nothing is called any more, and the guard is let go of."""
        self._active = False
        self._guarded = None
        if self.scaler.__dict__.get("step") is self._step:
            del self.scaler.step  # unless somebody has wrapped it since: then it only passes calls on
            self.scaler.__dict__.update(self._own)


class DeviceFlag:
    """A word that a scan sets on the device, as the number, 0 or 1, that fused optimisers read; and, over a process
    group, which rank was the first to set it."""

    def __init__(self, device: torch.device, peers: Peers) -> None:
        self.device = device
        self.word = torch.zeros((), dtype=torch.int32, device=device)
        self._pair = torch.zeros(2, dtype=torch.float32, device=device)
        self.found = self._pair[0]
        self._code = self._pair[1]
        self._peers = peers
        self._told = torch.zeros(2, pin_memory=True) if device.type == "cuda" else torch.zeros(2)
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        self._set = False

    @property
    def pointer(self) -> int:
        return self.word.data_ptr()

    def convert(self) -> None:
        """The scan's word as 0 or 1, on all ranks if it is set on one."""
        self.found.copy_(self.word).clamp_(max=1.0)
        self._exchange()

    def say(self, bad: bool) -> None:
        """What the host knows already, instead of a scan's word."""
        self.found.fill_(float(bad))
        self._exchange()

    def _exchange(self) -> None:
        if self._peers:
            torch.mul(self.found, float(self._peers.world - self._peers.rank), out=self._code)
            self._peers.spread(self._pair)
            self._told.copy_(self._pair, non_blocking=True)
            if self._event is not None:
                self._event.record()

    def first_rank(self) -> Optional[int]:
        """The lowest rank that had set the flag converted last; waits for the exchange, not for what came after it."""
        if not self._peers:
            return None
        if self._event is not None:
            self._event.synchronize()
        found, code = self._told.tolist()
        return self._peers.world - int(code) if found else None

    def give(self, optimizer: torch.optim.Optimizer) -> None:
        """Hands it to the step that comes; together with GradScaler's, where there is one."""
        theirs = getattr(optimizer, "found_inf", None)
        if theirs is not None:
            optimizer.found_inf = torch.maximum(theirs.to(self.found.device), self.found)
        else:
            optimizer.found_inf = self.found
            self._set = True

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """After the step: as if nothing had been."""
        if self._set:
            del optimizer.found_inf
            self._set = False


def takes_flag(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimiser passes a step over when its attribute `found_inf` is 1: a small one of its kind tells."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    if "grad_scaler" in inspect.signature(type(optimizer).step).parameters:
        return False  # an earlier way, which needs a GradScaler
    if not all(group.get("fused", True) for group in optimizer.param_groups):
        return False
    for options in ({"fused": True}, {}):
        try:
            return _tries_out(optimizer, options)
        except Exception:  # whatever it is, that optimiser is not one to be trusted with a flag
            continue
    return False


def _tries_out(optimizer: torch.optim.Optimizer, options: Dict[str, Any]) -> bool:
    device = optimizer.param_groups[0]["params"][0].device
    parameter = torch.nn.Parameter(torch.ones(4, device=device))
    trial = type(optimizer)([parameter], lr=0.5, **options)
    seen = []
    for found in (0.0, 1.0, 0.0):
        parameter.grad = torch.ones_like(parameter)
        trial.found_inf = torch.full((), found, device=device)
        trial.step()
        seen.append(float(parameter.detach()[0]))
    return 1.0 != seen[0] == seen[1] != seen[2]


def has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimiser has stepped every parameter that has a gradient: some kinds leave what they make for one in
    a first step that is passed over unset."""
    if not optimizer.state:
        return not any(group.get("momentum") for group in optimizer.param_groups) and "momentum" in optimizer.defaults
    if "momentum" in optimizer.defaults:  # plain SGD keeps nothing
        groups = [group for group in optimizer.param_groups if group.get("momentum")]
    else:
        groups = optimizer.param_groups
    return all(optimizer.state.get(parameter) for group in groups for parameter in group["params"]
               if parameter.grad is not None)


def scaler_state(scaler: Any, optimizer: torch.optim.Optimizer) -> Optional[Dict[str, Any]]:
    """What a GradScaler has noted of an optimiser since its last update."""
    states = getattr(scaler, "_per_optimizer_states", None)
    return None if states is None else states[id(optimizer)]
