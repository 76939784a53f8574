"""What is covered: parameters, buffers and optimiser state, scanned after a step and held by snapshots.

Optimiser state is more than a dict for each parameter. An optimiser may keep state under other keys
(state["global"]), and may have an optimiser inside, with a state of its own: SAM's and Lookahead's base optimiser, the
shard that ZeroRedundancyOptimizer steps. Each dict of state is a `Holder`; what lies in none of them is named in
`not_covered`.
"""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from . import _abi, _names, _tensors
from ._scan import Scanner
from ._watched import Watched

Key = Tuple[str, ...]
OWN = "optimizer"  # stands for a parameter's name where optimiser state has no parameter


class Holder:
    """One dict of optimiser state."""

    def __init__(self, tag: str, state: Dict[Any, Any]) -> None:
        self.tag = tag  # first part of keys
        self.state = state

    def own(self) -> Dict[Any, Any]:
        """What is not kept for a parameter."""
        return {key: value for key, value in self.state.items() if not isinstance(key, torch.Tensor)}

    def parts(self, parameters: Sequence[Tuple[str, torch.nn.Parameter]]) -> Iterator[Tuple[str, Any]]:
        """What is kept, by parameter's name and, under OWN, for none."""
        if not self.state:
            return
        for name, parameter in parameters:
            if parameter in self.state:
                yield name, self.state[parameter]
        own = self.own()
        if own:
            yield OWN, own


def holders(optimizers: Sequence[torch.optim.Optimizer]) -> List[Holder]:
    """Every dict of state of these optimisers and of those inside them, once."""
    found: List[Holder] = []
    seen = set()
    todo = list(optimizers)
    while todo:
        optimizer = todo.pop(0)
        state = optimizer.state
        if id(state) not in seen:
            seen.add(id(state))
            found.append(Holder("state" if not found else f"state{len(found)}", state))
        todo += [inner for inner in vars(optimizer).values()
                 if isinstance(inner, torch.optim.Optimizer) and id(inner.state) not in seen]
    return found


def beside_state(optimizers: Sequence[torch.optim.Optimizer], known: Sequence[torch.Tensor]) -> List[str]:
    """Tensors that an optimiser keeps outside of its state: a sentence for each attribute."""
    ids = set(map(id, known))
    found = []
    for optimizer in optimizers:
        for name, value in vars(optimizer).items():
            if name in ("state", "param_groups", "defaults"):
                continue
            if any(id(tensor) not in ids for tensor in tensors_in(value)):
                found.append(f"{type(optimizer).__name__}.{name}: tensors that the optimizer keeps outside of its "
                             "state are neither scanned nor rolled back")
    return found


def tensors_in(value: Any) -> List[torch.Tensor]:
    """In nested dicts, lists and tuples."""
    found, todo = [], [value]
    while todo:
        one = todo.pop()
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, (list, tuple)):
            todo += one
    return found


def extra_states(model: torch.nn.Module) -> List[Tuple[str, torch.nn.Module]]:
    """Modules with a state of their own making, get_extra_state."""
    made = torch.nn.Module.get_extra_state
    return [(_names.clean(name) or "the model", module) for name, module in _names.unwrap(model).named_modules()
            if type(module).get_extra_state is not made]


class Cover:
    """The state of a model and its optimisers, looked up anew each time: optimisers make theirs in their first step."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._scanner: Optional[Scanner] = None
        self.not_covered: List[str] = []
        self._buffers: List[Tuple[Dict[str, Any], str]] = []
        self._n_tensors = -1
        self._readable: List[int] = []  # which of the tensors are scanned
        self._ids: List[int] = []  # of those, when they were last looked at
        self._forms: Tuple[List[int], List[int], List[torch.dtype]] = ([], [], [])
        self._plain = False
        self._nested = False
        self._holds = False  # the scanner's items have their tensors
        self._of = watched.version
        self.not_judged: Dict[str, str] = {}  # buffers by name, each with a sentence
        self._beside: List[str] = []
        self.look()

    def look(self) -> None:
        """At what cannot be covered. Buffers that are not finite now hold NaN or Inf on purpose, as a causal mask does:
        they are not judged. They are in snapshots as the others are."""
        self.not_judged = {}
        for name, buffer in _names.buffers(self.watched.model):
            item = _tensors.make(name, _abi.BUFFER, buffer)
            if isinstance(item, _tensors.Item) and not bool(torch.isfinite(item.tensor).all()):
                kind = "NaN" if bool(torch.isnan(item.tensor).any()) else "Inf"
                self.not_judged[name] = f"{name} holds {kind} from the start: not judged"
        self._beside = beside_state(self.watched.optimizers, self.watched.tensors)
        self._beside += [f"{name}: get_extra_state has no set_extra_state beside it, so that a rollback leaves it alone"
                         for name, module in extra_states(self.watched.model)
                         if type(module).set_extra_state is torch.nn.Module.set_extra_state]
        self.not_covered = list(self.not_judged.values()) + self._beside
        self._n_tensors = -1

    def holders(self) -> List[Holder]:
        return holders(self.watched.optimizers)

    def tensors(self) -> Iterator[Tuple[Key, int, torch.Tensor]]:
        """Every tensor with a key that is the same from step to step, and its role. Optimiser state comes first: a bad
        moment spoils its parameter at the next step, not the other way round, and the first one named is to be the
        origin."""
        for holder in self.holders():
            for name, part in holder.parts(self.watched.parameters):
                for key, value in flat(part):
                    if isinstance(value, torch.Tensor):
                        yield (holder.tag, name, *key), _abi.MOMENT, value
        for name, parameter in self.watched.parameters:
            yield ("param", name), _abi.PARAM, parameter
        for name, buffer in _names.buffers(self.watched.model):
            if buffer is not None:
                yield ("buffer", name), _abi.BUFFER, buffer

    def scanner(self, validate: bool = True) -> Optional[Scanner]:
        """Ready to be launched; None where nothing can be scanned. Without `validate` the model is believed to have the
        parameters that it had."""
        version = self.watched.look()
        grew = version != self._of
        if validate or self._n_tensors < 0:
            self.watched.validate()
            self._buffers = _names.buffer_places(self.watched.model)
        tensors = [tensor for _, _, tensor in self.tensors()] if self._nested else self._gather()
        if grew or not self._is_known(tensors):
            self._look_anew(tensors)
        self._of = version
        return self._scanner if self._readable else None

    def _gather(self) -> List[torch.Tensor]:
        """As `tensors`, quickly, for optimisers that keep tensors in plain dicts, one for a parameter."""
        found: List[torch.Tensor] = []
        for holder in self.holders():
            state = holder.state
            if state:  # a tensor's hash is a call of Python's: none for an optimiser that keeps nothing
                kept = [state[parameter] for parameter in self.watched.tensors if parameter in state]
                if len(kept) != len(state):
                    return [tensor for _, _, tensor in self.tensors()]
                for part in kept:
                    found += [value for value in part.values() if isinstance(value, torch.Tensor)]
        found += self.watched.tensors
        found += [buffers[name] for buffers, name in self._buffers if buffers.get(name) is not None]
        return found

    def _is_known(self, tensors: List[torch.Tensor]) -> bool:
        """Whether these are the tensors of the last time, of the same forms. Their addresses are taken up if so."""
        if len(tensors) != self._n_tensors or not self._plain or self._scanner is None:
            return False
        readable = tensors if len(self._readable) == len(tensors) else [tensors[i] for i in self._readable]
        counts, devices, dtypes = self._forms
        if list(map(torch.Tensor.numel, readable)) != counts:
            return False
        ids, addresses = list(map(id, readable)), _tensors.addresses(readable)
        if ids == self._ids and addresses == self._scanner.pointers:
            return True  # the same objects at the same places, of the same sizes
        if ([tensor.get_device() for tensor in readable] != devices
                or [tensor.dtype for tensor in readable] != dtypes
                or not all([tensor.is_contiguous() for tensor in readable])):
            return False
        self._scanner.move(addresses)
        self._ids = ids
        return True

    def _look_anew(self, tensors: List[torch.Tensor]) -> None:
        self._n_tensors = -1  # until all of this is done
        named = list(self.tensors())
        found = [self.not_judged[key[1]] if role == _abi.BUFFER and key[1] in self.not_judged
                 else _tensors.make(".".join(key[1:]), role, tensor) for key, role, tensor in named]
        items, not_covered = _tensors.sort(found)
        tell_apart(items)
        self.not_covered = not_covered + self._beside + self._of_others()
        self._nested = [id(tensor) for _, _, tensor in named] != [id(tensor) for tensor in tensors]
        self._ids = []
        self._readable = [i for i, item in enumerate(found) if isinstance(item, _tensors.Item)]
        self._forms = ([item.count for item in items], [item.device for item in items],
                       [item.tensor.dtype for item in items])
        # what is not read where it lies, or is not all of its tensor, is looked up each time
        self._plain = all(item.layout is None and item.tensor.data_ptr() == named[i][2].data_ptr()
                          and item.count == named[i][2].numel() for i, item in zip(self._readable, items)
                          ) if not any(hasattr(tensor, "_local_tensor") for _, _, tensor in named) else False
        if items:
            self._holds = True
            if self._scanner is None:
                self._scanner = Scanner(items)
            else:
                self._scanner.update(items)
        self._n_tensors = len(named)

    def _of_others(self) -> List[str]:
        """Optimiser state of parameters that are not watched: of some that were taken out of the groups."""
        known = set(map(id, self.watched.tensors))
        count = sum(isinstance(key, torch.Tensor) and id(key) not in known
                    for holder in self.holders() for key in holder.state)
        return [f"optimizer state of {count} tensors that are no parameters of model or optimizer"] if count else []

    def drop(self) -> None:
        """The scan was launched: nothing is to be kept from being freed."""
        if self._scanner is not None and self._holds:
            for item in self._scanner.items:
                item.tensor = None
            self._holds = False


def tell_apart(items: List[_tensors.Item]) -> None:
    """Names are unique within a role: an optimiser inside another may have the same for the same parameter."""
    seen: Dict[Tuple[int, str], int] = {}
    for item in items:
        count = seen[item.role, item.name] = seen.get((item.role, item.name), 0) + 1
        if count > 1:
            item.name = f"{item.name} ({count})"


def flat(value: Any, key: Key = ()) -> Iterator[Tuple[Key, Any]]:
    """What is in nested dicts and lists, with the way to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flat(inner, (*key, str(name)))
    elif isinstance(value, (list, tuple)) and any(isinstance(inner, torch.Tensor) for inner in value):
        for i, inner in enumerate(value):
            yield from flat(inner, (*key, str(i)))
    else:
        yield key, value


def put(container: Any, key: Key, value: Any) -> None:
    """Sets what `flat` told the way to, in dicts and lists that are there."""
    for part in key[:-1]:
        container = container[int(part)] if isinstance(container, list) else container[_own(container, part)]
    if isinstance(container, list):
        container[int(key[-1])] = value
    else:
        container[_own(container, key[-1])] = value


def _own(container: Dict[Any, Any], part: str) -> Any:
    """The container's key with this text: optimisers have numbers among theirs."""
    return next((name for name in container if not isinstance(name, torch.Tensor) and str(name) == part), part)
