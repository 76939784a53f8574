"""How the guard comes between gradients and optimiser: a wrapped `step`; and the device flag with which fused
optimisers pass a step over by themselves."""

import functools
import inspect
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

import torch

from ._errors import BadTensor, GuardError, Unsupported
from ._ranks import Peers


class Stepper(Protocol):
    """Who is asked around a step."""

    def enter(self) -> None: ...  # a call begins: what an exception has left half done is put in order
    def begin(self, optimizer: torch.optim.Optimizer, first: bool = True) -> bool: ...  # whether it may step
    def step_begins(self, optimizer: torch.optim.Optimizer) -> None: ...
    def step_ended(self, optimizer: torch.optim.Optimizer) -> None: ...
    def end(self, optimizer: torch.optim.Optimizer, went: bool) -> None: ...
    def broke_off(self) -> None: ...  # by an exception, whose reason is not known here
    def remember(self, optimizer: torch.optim.Optimizer) -> None: ...  # the state before a step with a closure
    def take_back(self) -> None: ...  # to that state
    def passed_by(self, optimizer: torch.optim.Optimizer) -> None: ...  # gradients are zeroed: a step may be over


class PassedOver(BaseException):
    """Ends a step from within its closure. It never leaves `Attachment`."""


def evaluates_once(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a closure is called once, before anything is changed: torch's own but LBFGS do so."""
    return type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, torch.optim.LBFGS)


class Attachment:
    """Wraps an optimiser's `step`, so that a step that is not to be is not made: it returns None, or the loss of the
    closure's first evaluation. Where torch has hooks, a step that comes another way (a bound method that was taken
    before) is met by these: nothing can keep it from being made, so it is made with the gradients laid aside."""

    def __init__(self, optimizer: torch.optim.Optimizer, stepper: Stepper, owner: object) -> None:
        self._optimizer = optimizer
        self._stepper: Any = stepper
        self._owner: Any = owner  # lives as long as the optimiser
        self._aside: List[Tuple[torch.Tensor, torch.Tensor]] = []
        self._went = True
        self._outer: Tuple[int, Any] = (0, None)  # whose step is being made: the caller's frame, by id, and its code
        self._wrapped: Dict[str, Tuple[Any, Dict[str, Any]]] = {}  # ours, and what the optimiser had of its own
        self._handles: List[Any] = []
        if hasattr(optimizer, "register_step_pre_hook"):
            self._handles = [optimizer.register_step_pre_hook(self._pre), optimizer.register_step_post_hook(self._post)]
        self._wrap("step", self._step)
        self._wrap("zero_grad", self._zero_grad)

    def detach(self) -> None:
        """Nothing is called any more, and the guard is let go of."""
        self._stepper = self._owner = None
        for handle in self._handles:
            handle.remove()
        self.bring_back()
        for name, (ours, own) in self._wrapped.items():
            if self._optimizer.__dict__.get(name) is ours:
                del self._optimizer.__dict__[name]  # unless somebody has wrapped it since: then it only passes calls on
                self._optimizer.__dict__.update(own)

    def _wrap(self, name: str, instead: Callable[..., Any]) -> None:
        original = getattr(self._optimizer, name)
        own = {key: value for key, value in self._optimizer.__dict__.items() if key == name}

        @functools.wraps(original)
        def method(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            return instead(original, args, kwargs) if self._stepper is not None else original(*args, **kwargs)

        method.__dict__.pop("__wrapped__", None)  # whose signature has no self
        ours = types.MethodType(method, self._optimizer)  # schedulers look for a method
        setattr(self._optimizer, name, ours)
        self._wrapped[name] = ours, own

    # ------------------------------------------------------------------------------------------------------ the step

    def _step(self, original: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        stepper, optimizer = self._stepper, self._optimizer
        stepper.enter()
        if self._handles:
            self._outer = (id(sys._getframe(0)), sys._getframe(0).f_code)
        try:
            if (args[0] if args else kwargs.get("closure")) is not None:
                went, result = self._with_closure(original, args, kwargs)
            else:
                went, result = stepper.begin(optimizer), None
                if went:
                    stepper.step_begins(optimizer)
                    result = original(*args, **kwargs)
                    stepper.step_ended(optimizer)
            stepper.end(optimizer, went)
            self._outer = (0, None)
        except BaseException:
            self._outer = (0, None)
            stepper.broke_off()
            raise
        return result

    def _with_closure(self, original: Callable[..., Any], args: Tuple[Any, ...],
                      kwargs: Dict[str, Any]) -> Tuple[bool, Any]:
        """A step whose gradients come to be inside it, once or many times, while parameters move."""
        stepper, optimizer = self._stepper, self._optimizer
        closure = args[0] if args else kwargs["closure"]
        losses: List[Any] = []

        @functools.wraps(closure)
        def watched() -> Any:
            loss = closure()
            losses.append(loss)
            if not stepper.begin(optimizer, len(losses) == 1):
                raise PassedOver
            return loss

        if not evaluates_once(optimizer):
            stepper.remember(optimizer)
        stepper.step_begins(optimizer)
        try:
            if args:
                result = original(watched, *args[1:], **kwargs)
            else:
                result = original(**dict(kwargs, closure=watched))
        except PassedOver:
            stepper.step_ended(optimizer)
            stepper.take_back()
            return False, losses[0]
        except BadTensor:
            stepper.take_back()
            raise
        stepper.step_ended(optimizer)
        return True, result

    def _zero_grad(self, original: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        self._stepper.passed_by(self._optimizer)
        return original(*args, **kwargs)

    # ------------------------------------------------------------------------------------- steps that come another way

    def _is_within(self, frame: Any) -> bool:
        """Whether hooks are called from inside the step that is being made: ours, or that of a class that calls its
        base's, for which torch runs them too. A step that was broken off is no longer among the callers."""
        if self._outer[1] is None or (id(frame), frame.f_code) == self._outer:
            return False
        while frame.f_back is not None:
            frame = frame.f_back
            if (id(frame), frame.f_code) == self._outer:
                return True
        return False

    def _pre(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        if self._stepper is None or self._is_within(sys._getframe(1)):
            return None
        self.bring_back()
        self._stepper.enter()
        rest = args[1:] if args and args[0] is optimizer else args  # hooks are given the method's self too
        if (rest[0] if rest else kwargs.get("closure")) is not None:
            raise GuardError("a step with a closure goes round the guard: call optimizer.step(closure) itself, not a "
                             "method that was taken before attach()")
        self._outer = (id(sys._getframe(1)), sys._getframe(1).f_code)
        try:
            self._went = self._stepper.begin(self._optimizer)
            if self._went:
                self._stepper.step_begins(self._optimizer)
                return None
            self._aside = [(parameter, parameter.grad) for group in self._optimizer.param_groups
                           for parameter in group["params"] if parameter.grad is not None]
            for parameter, _ in self._aside:
                parameter.grad = None
        except BaseException:
            self._outer = (0, None)
            self._stepper.broke_off()
            raise
        return None

    def _post(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if self._stepper is None or self._is_within(sys._getframe(1)):
            return
        self._outer = (0, None)
        self.bring_back()
        try:
            if self._went:
                self._stepper.step_ended(self._optimizer)
            self._stepper.end(self._optimizer, self._went)
        except BaseException:
            self._stepper.broke_off()
            raise

    def bring_back(self) -> None:
        """Gradients that were laid aside."""
        while self._aside:
            parameter, grad = self._aside[-1]
            parameter.grad = grad
            self._aside.pop()


class ScalerAttachment:
    """Calls step(scaler, optimizer, do) instead of a GradScaler's step of one of these optimisers; do() makes it."""

    def __init__(self, scaler: Any, optimizers: Sequence[torch.optim.Optimizer],
                 step: Callable[[Any, torch.optim.Optimizer, Callable[[], Any]], Any]) -> None:
        self.scaler = scaler
        self._active = True
        self._guarded: Any = step
        self._own = {key: value for key, value in scaler.__dict__.items() if key == "step"}
        original, mine = scaler.step, list(optimizers)

        @functools.wraps(original)
        def wrapped(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active or not any(optimizer is one for one in mine) or not scaler.is_enabled():
                return original(optimizer, *args, **kwargs)
            return self._guarded(scaler, optimizer, lambda: original(optimizer, *args, **kwargs))

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
        self._given: List[torch.optim.Optimizer] = []

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
            self._given.append(optimizer)
            optimizer.found_inf = self.found

    def take(self) -> None:
        """After the step: as if nothing had been."""
        while self._given:
            if getattr(self._given[-1], "found_inf", None) is self.found:
                del self._given[-1].found_inf
            self._given.pop()


def takes_flag(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimiser passes a step over when its attribute `found_inf` is 1: a small one of its kind tells."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    if "grad_scaler" in inspect.signature(type(optimizer).step).parameters:
        return False  # an earlier way, which needs a GradScaler
    if not all(group.get("fused", True) for group in optimizer.param_groups):
        return False
    tried: List[Dict[str, Any]] = [{"fused": True}, {}]
    for options in tried:
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


def has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def scaler_state(scaler: Any, optimizer: torch.optim.Optimizer) -> Optional[Dict[str, Any]]:
    """What a GradScaler has noted of an optimiser since its last update."""
    states = getattr(scaler, "_per_optimizer_states", None)
    return None if states is None else states[id(optimizer)]


def unscaled(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler has unscaled the gradients of an optimiser since its last update."""
    noted = scaler_state(scaler, optimizer)
    if noted is None:
        raise Unsupported(f"{type(scaler).__name__} is not a GradScaler that the guard knows")
    return bool(noted["found_inf_per_device"])


def found_infs(scaler: Any, optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """Where a GradScaler notes that it has found Inf, on each device."""
    noted = scaler_state(scaler, optimizer)
    return [] if noted is None else list(noted["found_inf_per_device"].values())
