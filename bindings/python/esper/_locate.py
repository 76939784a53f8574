"""Where a bad value is born: one step once more, with every operation looked at.

Three things watch, each for what it sees best:

    module hooks    which module is at work, and which nodes of the autograd graph it has made
    a dispatch mode every operation of the forward pass: finite inputs and an output that is not are a birth. What is
                    bad carries its birth along, so that an Inf which is made on purpose and absorbed again (a mask
                    before a softmax) is not taken for the fault: what counts is what reaches the loss
    node hooks      every node of the backward pass: finite gradients in and others out are a birth; or, where the node
                    had kept a bad value of the forward pass, the end of that one's way

What the step changes is put back: gradients, buffers, random state. The optimiser's step does nothing meanwhile.
"""

import contextlib
import math
import os
import random
import re
import sys
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.nn.modules import module as torch_module
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from . import _names, _tensors

_OURS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, __file__))


class Location(NamedTuple):
    """Where a value that is not finite was born. True when there was one."""

    when: str = ""  #: "forward" or "backward"; empty: everything was finite this time
    module: Optional[str] = None  #: its name in the model, "" for the model itself; None: outside of the model
    module_kind: str = ""  #: the module's class
    operation: str = ""  #: "sqrt", "log_softmax", a Function's name; "parameter weight", "buffer mean" or "input"
    kind: str = ""  #: "NaN", "Inf" or "NaN and Inf"
    n_bad: int = 0
    count: int = 0  # type: ignore[assignment]
    where: str = ""  #: the line that called the operation, as "train.py:31: h = h.sqrt()"

    def __bool__(self) -> bool:
        return bool(self.when)

    def __str__(self) -> str:
        if not self.when:
            return ("everything was finite this time: if chance has a part in it (dropout, noise), let the closure set "
                    "the seed of the bad step")
        line = f" ({self.where})" if self.where else ""
        return f"{self.kind} is born in the {self.when} pass, {self._place()}, {self._by()}{line}"

    def _place(self) -> str:
        if self.module is None:
            return f"outside of the model, in {self.module_kind}" if self.module_kind else "outside of the model"
        return (f"in {self.module} ({self.module_kind})" if self.module
                else f"in {self.module_kind}'s own forward, outside of its parts")

    def _by(self) -> str:
        if self.operation == "input":
            return f"which was given it: {self.n_bad:,} of {self.count:,}"
        if self.operation.startswith(("parameter ", "buffer ")):
            return f"whose {self.operation} holds it: {self.n_bad:,} of {self.count:,}"
        return f"by {self.operation}: {self.n_bad:,} of {self.count:,}"


class _Birth:
    """A value that was not finite, made of values that were."""

    def __init__(self, location: Location, on_purpose: bool) -> None:
        self.location = location
        self.on_purpose = on_purpose  # an Inf that somebody has written down: a fault only if it reaches the loss


def locate(model: torch.nn.Module, optimizers: List[torch.optim.Optimizer], closure: Callable[[], Any]) -> Location:
    """Runs the closure, a forward pass and its backward pass, and says where the first bad value that reached the loss
    or a gradient was born. A closure that only returns the loss is enough."""
    watch = _Watch(model)
    with _put_back(model, optimizers), watch.watching():
        try:
            loss = closure()
            if not watch.n_backward and isinstance(loss, torch.Tensor) and loss.requires_grad:
                loss.sum().backward()
        except Exception:
            if watch.first() is None:
                raise  # not ours to hide; where a bad value was seen before, that is the likelier reason
    birth = watch.first()
    return Location() if birth is None else birth.location


# ------------------------------------------------------------------------------------------------- what is looked at

def _tensors_in(*things: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments and results, however they are nested."""
    for thing in things:
        if isinstance(thing, torch.Tensor):
            yield thing
        elif isinstance(thing, (list, tuple)):
            yield from _tensors_in(*thing)
        elif isinstance(thing, dict):
            yield from _tensors_in(*thing.values())


def _numbers_in(*things: Any) -> Iterator[float]:
    for thing in things:
        if isinstance(thing, float):
            yield thing
        elif isinstance(thing, (list, tuple)):
            yield from _numbers_in(*thing)
        elif isinstance(thing, dict):
            yield from _numbers_in(*thing.values())


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The dense tensor in which the elements are: of a sharded one this rank's, of a sparse one its values."""
    tensor = _tensors.local(tensor)
    return tensor._values() if tensor.is_sparse else tensor


def _values(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """What can be looked at; None where there is nothing that could be bad."""
    tensor = _plain(tensor)
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return None
    return tensor.detach()


def _is_finite(tensor: torch.Tensor) -> bool:
    values = _values(tensor)
    try:
        return values is None or bool(torch.isfinite(values).all())
    except (RuntimeError, NotImplementedError):  # a type that torch itself cannot ask
        return True


def _count(tensor: torch.Tensor) -> Tuple[str, int, int]:
    """"NaN", "Inf" or both; how many; of how many."""
    values = _values(tensor)
    assert values is not None
    n_nan, n_bad = int(torch.isnan(values).sum()), int((~torch.isfinite(values)).sum())
    return ("NaN" if n_nan == n_bad else "NaN and Inf" if n_nan else "Inf"), n_bad, values.numel()


def _line() -> str:
    """The innermost line that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_OURS) and not path.startswith("<"):
            return _shown(path, frame.f_lineno)
        frame = frame.f_back
    return ""


def _line_of(node: Any) -> str:
    """The same of the call that has made a node: torch notes it while it detects anomalies."""
    for text in reversed(node.metadata.get("traceback_", [])):
        found = re.match(r'\s*File "([^"]+)", line (\d+)', text)
        if found and not found.group(1).startswith(_OURS) and not found.group(1).startswith("<"):
            return _shown(found.group(1), int(found.group(2)))
    return ""


def _shown(path: str, number: int) -> str:
    import linecache
    text = linecache.getline(path, number).strip()
    return f"{os.path.basename(path)}:{number}" + (f": {text}" if text else "")


def _name_of(function: Any) -> str:
    """"softmax" of aten._softmax.default."""
    return str(getattr(function, "__name__", function)).split(".")[0].strip("_")


def _name_of_node(node: Any) -> str:
    """"log_softmax" of LogSoftmaxBackward0; a Function of the caller's own keeps its name."""
    name = re.sub(r"Backward\d*$", "", node.name())
    if isinstance(node, torch.autograd.function.BackwardCFunction) or hasattr(torch, name.lower()):
        return name if isinstance(node, torch.autograd.function.BackwardCFunction) else name.lower()
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


# ---------------------------------------------------------------------------------------------------------- watching

class _Operations(TorchDispatchMode):
    """Passes every operation on to somebody who looks at it."""

    def __init__(self, watch: "_Watch") -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._watch.operation(func, args, kwargs or {})


class _Watch:
    """Sees modules, operations and nodes while it is entered."""

    def __init__(self, model: torch.nn.Module) -> None:
        inner = _names.unwrap(model)
        self._paths = {id(module): _names.clean(path) for path, module in inner.named_modules()}
        self._kind_of_model = type(inner).__name__
        while model is not inner:  # wrappers are the model itself
            self._paths[id(model)] = ""
            model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
        self._owned = {id(tensor): (path, module, what + name)
                       for path, module in reversed(list(inner.named_modules()))
                       for what, held in (("parameter ", module._parameters), ("buffer ", module._buffers))
                       for name, tensor in held.items() if tensor is not None}
        self._stack: List[torch.nn.Module] = []
        self._bad: Dict[int, _Birth] = {}  # by address of the memory: views have it in common
        self._kept: List[_Birth] = []  # of the values that the node at work had kept
        self._nodes: Dict[int, Any] = {}  # those that were seen: kept, for the ids to stay theirs
        self._handles: List[Any] = []
        self._found: Optional[_Birth] = None
        self._earliest: Optional[_Birth] = None
        self._in_backward = False
        self.n_backward = 0

    def first(self) -> Optional[_Birth]:
        """What has reached the loss or a gradient; while there was neither, the first fault."""
        return self._found if self._found is not None or self.n_backward else self._earliest

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.callback(self._let_go)
            stack.enter_context(torch.autograd.set_detect_anomaly(True))  # for the lines of nodes
            for name in ("backward", "grad"):
                original = getattr(torch.autograd, name)
                stack.callback(setattr, torch.autograd, name, original)
                setattr(torch.autograd, name, self._run(original))
            self._handles += [torch_module.register_module_forward_pre_hook(self._enter_module),
                              torch_module.register_module_forward_hook(self._leave_module)]
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._keep, self._fetch))
            self._operations = _Operations(self)
            self._operations.__enter__()
            stack.push(lambda *error: self._operations.__exit__(*error))
            yield

    def _let_go(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._nodes.clear()

    # -- modules

    def _enter_module(self, module: torch.nn.Module, inputs: Any) -> None:
        self._tag(tensor.grad_fn for tensor in _tensors_in(inputs))  # made by whoever calls
        self._stack.append(module)

    def _leave_module(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        self._tag(tensor.grad_fn for tensor in _tensors_in(outputs))
        while self._stack and self._stack.pop() is not module:
            pass  # one that has ended with an exception

    def _here(self) -> Tuple[Optional[str], str]:
        """The innermost module that is the model's, or the innermost at all."""
        for module in reversed(self._stack):
            if id(module) in self._paths:
                return self._paths[id(module)], self._kind(module)
        return None, type(self._stack[-1]).__name__ if self._stack else ""

    def _kind(self, module: torch.nn.Module) -> str:
        return self._kind_of_model if self._paths[id(module)] == "" else type(module).__name__

    # -- the forward pass

    def operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        births = [birth for birth in map(self._birth_of, _tensors_in(args, kwargs)) if birth is not None]
        result = func(*args, **kwargs)
        schema = getattr(func, "_schema", None)
        in_place = schema is not None and schema.name.endswith("_")
        written = _tensors_in(args, kwargs, result) if in_place else _tensors_in(result)
        for tensor in written:
            self._note(func, births, tensor, (args, kwargs))
        return result

    def _birth_of(self, tensor: torch.Tensor) -> Optional[_Birth]:
        """Of a tensor that is bad; None where it is good."""
        if _is_finite(tensor):
            return None
        birth = self._bad.get(_address(tensor))
        if birth is None:
            birth = self._bad[_address(tensor)] = self._given(tensor)
        return birth

    def _given(self, tensor: torch.Tensor) -> _Birth:
        """A bad tensor that no operation here has made."""
        kind, n_bad, count = _count(tensor)
        (module, module_kind), what, where = self._here(), "input", _line()
        if id(tensor) in self._owned:
            module, owner, what = self._owned[id(tensor)]
            module_kind = self._kind(owner)
        return self._born(Location("forward", module, module_kind, what, kind, n_bad, count, where),
                          on_purpose=kind == "Inf" and not what.startswith("parameter "))

    def _note(self, func: Any, births: List[_Birth], tensor: torch.Tensor, arguments: Any) -> None:
        """What an operation has written."""
        if _is_finite(tensor):
            if _fills_its_memory(tensor):
                self._bad.pop(_address(tensor), None)
            return
        faults = [birth for birth in births if not birth.on_purpose]
        if faults:
            birth = faults[0]
        elif births and _count(tensor)[0] == "Inf":
            birth = births[0]  # a mask that goes on
        else:  # of finite values, or NaN of an Inf that was meant
            kind, n_bad, count = _count(tensor)
            module, module_kind = self._here()
            name = _name_of(func)
            birth = self._born(Location("forward", module, module_kind, name, kind, n_bad, count, _line()),
                               on_purpose=name.find("empty") >= 0 or
                               (kind == "Inf" and any(math.isinf(number) for number in _numbers_in(*arguments))))
        self._bad[_address(tensor)] = birth

    def _born(self, location: Location, on_purpose: bool) -> _Birth:
        birth = _Birth(location, on_purpose)
        if self._earliest is None and not on_purpose:
            self._earliest = birth
        return birth

    # -- the backward pass

    def _run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch.autograd.backward or grad, with its roots looked at and its nodes watched."""
        def run(*args: Any, **kwargs: Any) -> Any:
            roots = list(_tensors_in(args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))))
            self.n_backward += 1
            if self._found is None and not self._in_backward:
                with no_dispatch():
                    self._found = next((birth for birth in map(self._birth_of, roots) if birth is not None), None)
            self._tag(root.grad_fn for root in roots)
            return self._passes(original, args, kwargs)

        return run

    def _passes(self, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._in_backward:  # a checkpoint has passes within passes
            return original(*args, **kwargs)
        torch.autograd.set_detect_anomaly(False)  # it would end the pass at the first NaN
        self._operations.__exit__(None, None, None)
        self._in_backward = True
        try:
            return original(*args, **kwargs)
        finally:
            self._in_backward = False
            self._operations = _Operations(self)
            self._operations.__enter__()
            torch.autograd.set_detect_anomaly(True)

    def _keep(self, tensor: torch.Tensor) -> Tuple[torch.Tensor, Optional[_Birth]]:
        """A value is put by for the backward pass."""
        with no_dispatch():
            return tensor, None if _is_finite(tensor) else self._bad.get(_address(tensor))

    def _fetch(self, kept: Tuple[torch.Tensor, Optional[_Birth]]) -> torch.Tensor:
        if kept[1] is not None and not kept[1].on_purpose:
            self._kept.append(kept[1])
        return kept[0]

    def _tag(self, ends: Any) -> None:
        """Nodes behind these that nobody has made before are of the module that is at work."""
        module, module_kind = self._here()
        todo = [node for node in ends if node is not None]
        while todo:
            node = todo.pop()
            if id(node) in self._nodes:
                continue
            self._nodes[id(node)] = node
            todo += [following for following, _ in node.next_functions if following is not None]
            if not hasattr(node, "variable"):  # which is where a gradient is added up
                self._handles.append(node.register_hook(self._watcher(id(node), module, module_kind)))

    def _watcher(self, key: int, module: Optional[str], module_kind: str) -> Callable[[Any, Any], None]:
        def look(grad_inputs: Any, grad_outputs: Any) -> None:
            kept, self._kept = self._kept, []
            if self._found is None:
                with no_dispatch():
                    judge(kept, grad_inputs, grad_outputs)

        def judge(kept: List[_Birth], grad_inputs: Any, grad_outputs: Any) -> None:
            if not all(map(_is_finite, _tensors_in(grad_outputs))):
                return
            bad = next((grad for grad in _tensors_in(grad_inputs) if not _is_finite(grad)), None)
            if bad is not None and kept:
                self._found = kept[0]
            elif bad is not None:
                node = self._nodes[key]
                self._found = _Birth(Location("backward", module, module_kind, _name_of_node(node), *_count(bad),
                                              _line_of(node)), on_purpose=False)

        return look


def _address(tensor: torch.Tensor) -> int:
    """Of the memory that it is a view of."""
    return int(_storage(tensor).data_ptr())


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    tensor = _plain(tensor)
    return tensor.numel() * tensor.element_size() == _storage(tensor).nbytes()


def _storage(tensor: torch.Tensor) -> Any:
    tensor = _plain(tensor)
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


# ------------------------------------------------------------------------------------------------------ putting back

@contextlib.contextmanager
def _put_back(model: torch.nn.Module, optimizers: List[torch.optim.Optimizer]) -> Iterator[None]:
    """Gradients, buffers and random state are afterwards what they were, and nobody has stepped."""
    held = {id(parameter): parameter for _, parameter in _names.parameters(model)}
    for optimizer in optimizers:
        held.update((id(parameter), parameter) for group in optimizer.param_groups for parameter in group["params"])
    shared = _names.unwrap(model) is not model  # DDP may write into the same memory again
    with contextlib.ExitStack() as stack:
        stack.callback(_set_random_states, _random_states())
        for places, name in _names.buffer_places(model):
            stack.callback(_put_buffer, places, name, places[name], places[name].detach().clone())
        for parameter in held.values():
            grad = parameter.grad
            stack.callback(_put_gradient, parameter, grad, grad.clone() if shared and grad is not None else None)
            parameter.grad = None
        for optimizer in optimizers:
            stack.callback(_put_step, optimizer, optimizer.__dict__.get("step"))
            optimizer.step = lambda *args, **kwargs: None  # type: ignore[method-assign,assignment]
        set_stance = getattr(getattr(torch, "compiler", None), "set_stance", None)
        if set_stance is not None:
            stack.enter_context(set_stance("force_eager"))  # nothing of a compiled model can be seen
        yield


def _put_gradient(parameter: torch.Tensor, grad: Optional[torch.Tensor], value: Optional[torch.Tensor]) -> None:
    if grad is not None and value is not None:
        grad.detach().copy_(value)
    parameter.grad = grad


@torch.no_grad()
def _put_buffer(places: Dict[str, Any], name: str, buffer: torch.Tensor, value: torch.Tensor) -> None:
    places[name] = buffer
    if buffer.shape == value.shape:
        buffer.copy_(value)
    else:
        buffer.set_(value)


def _put_step(optimizer: torch.optim.Optimizer, step: Any) -> None:
    del optimizer.step
    if step is not None:
        optimizer.step = step  # type: ignore[method-assign,assignment]


def _random_states() -> Tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return (torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
            random.getstate(), numpy.random.get_state() if numpy is not None else None)


def _set_random_states(states: Tuple[Any, ...]) -> None:
    cpu, cuda, python, numpy = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)
