"""Parameters, buffers and optimiser state: what is scanned after a step, and what a snapshot holds."""

from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from . import _abi, _names, _tensors
from ._scan import Scanner
from ._watched import Watched

Key = Tuple[str, ...]


class State:
    """The state of a model and its optimiser, looked up anew each time: optimisers make theirs when they first step."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._scanner: Optional[Scanner] = None
        self.not_covered: List[str] = []

    def tensors(self) -> Iterator[Tuple[Key, int, torch.Tensor]]:
        """Every tensor with a key that is the same from step to step, and its role. Optimiser state comes first: a bad
        moment spoils its parameter at the next step, not the other way round, and the first one named is to be the
        origin."""
        for name, parameter in self.watched.parameters:
            for key, value in flat(self.watched.optimizer.state.get(parameter, {})):
                if isinstance(value, torch.Tensor):
                    yield ("state", name, *key), _abi.MOMENT, value
        for name, parameter in self.watched.parameters:
            yield ("param", name), _abi.PARAM, parameter
        for name, buffer in _names.buffers(self.watched.model):
            if buffer is not None:
                yield ("buffer", name), _abi.BUFFER, buffer

    def scanner(self) -> Optional[Scanner]:
        """Ready to be launched; None where nothing can be scanned."""
        self.watched.grew()
        self.watched.validate()
        found = [_tensors.make(".".join(key[1:]), role, tensor) for key, role, tensor in self.tensors()]
        items, self.not_covered = _tensors.sort(found)
        if not items:
            return None
        if self._scanner is None:
            self._scanner = Scanner(items)
        else:
            self._scanner.update(items)
        return self._scanner

    def drop(self) -> None:
        """The scan was launched: nothing is to be kept from being freed."""
        if self._scanner is not None:
            for item in self._scanner.items:
                item.tensor = None


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


def put(container: Dict[str, Any], key: Key, value: Any) -> None:
    """Sets what `flat` told the way to, in dicts and lists that are there."""
    for part in key[:-1]:
        container = container[int(part)] if isinstance(container, list) else container[_own(container, part)]
    if isinstance(container, list):
        container[int(key[-1])] = value
    else:
        container[_own(container, key[-1])] = value


def _own(container: Dict[Any, Any], part: str) -> Any:
    """The container's key with this text: optimisers have numbers among theirs."""
    return next((name for name in container if str(name) == part), part)
