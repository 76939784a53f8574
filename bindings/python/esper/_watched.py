"""The parameters that are watched: which they are, and whether they still are what they were."""

import gc
import operator
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from . import _names
from ._errors import GuardError, ModelChanged
from ._tensors import local

_owners: Dict[int, Tuple[Any, Any]] = {}  # by id of a parameter: weak references to it, and to who watches its steps
_all: "weakref.WeakSet[Watched]" = weakref.WeakSet()


def _owner(parameter: torch.Tensor) -> Optional["Watched"]:
    """Who watches the optimiser that steps this parameter."""
    mine, owner = _owners.get(id(parameter), (None, None))
    return owner() if mine is not None and mine() is parameter else None


def _look_again(_: Any = None) -> None:
    """Parameters have changed hands: everybody's list may be another."""
    for watched in list(_all):
        watched.stale = True


class Watched:
    """Names, sizes and devices of the parameters that a guard watches, as they were when they were registered: those of
    its optimisers, which are its own, and those of the model that no other guard's optimiser has."""

    def __init__(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.model = model
        self.optimizers = list(optimizers)
        self.stale = False
        self.active = False
        self.n_of_others = 0
        self.version = 0
        self.n_added = 0  # parameters that came when the list was last made anew
        self.register()

    def register(self) -> None:
        """Takes the parameters as they are now. GuardError where the optimiser has some that are another guard's."""
        self.stale = True  # until all of this is done
        self._claim()
        self.parameters = self._list()
        self.tensors = [parameter for _, parameter in self.parameters]
        self._grouped = list(self._in_groups())
        self.forms = [self._form(parameter) for _, parameter in self.parameters]
        self.n_of_others = len(_names.parameters(self.model)) + len(self._unnamed) - len(self.parameters)
        self.n_added = 0
        self.version += 1
        self.stale = False

    def _claim(self) -> None:
        mine = list(self._in_groups())
        seen: Dict[int, torch.optim.Optimizer] = {}
        for optimizer in self.optimizers if len(self.optimizers) > 1 else []:
            for parameter in [parameter for group in optimizer.param_groups for parameter in group["params"]]:
                if seen.setdefault(id(parameter), optimizer) is not optimizer:
                    raise GuardError(f"{self._name(parameter)} is in two of the optimizers: each parameter is stepped "
                                     "by one")
        if self._taken(mine) is not None:
            gc.collect()  # an attached guard and its optimiser hold each other: it may be one that nobody else has
        taken = self._taken(mine)
        if taken is not None:
            raise GuardError(f"{self._name(taken)} is already watched by another esper.Guard: use that one, or call "
                             "its detach() before making a new one (`with guard:` around the loop does so at its end). "
                             "Two guards on one model are for two optimizers that have no parameter in common")
        if self.active and all(_owner(parameter) is self for parameter in mine):
            return
        owner = weakref.ref(self, _look_again)
        for parameter in mine:
            _owners[id(parameter)] = (weakref.ref(parameter), owner)
        _look_again()
        self.active = True
        _all.add(self)

    def _taken(self, mine: List[torch.Tensor]) -> Optional[torch.Tensor]:
        """The first parameter that is another guard's."""
        return next((parameter for parameter in mine if _owner(parameter) not in (None, self)), None)

    def release(self) -> None:
        """Gives parameters up again."""
        for key in [key for key, (_, owner) in _owners.items() if owner() in (self, None)]:
            del _owners[key]
        self.active = False
        _all.discard(self)
        _look_again()

    def _name(self, parameter: torch.Tensor) -> str:
        known = _names.parameters(self.model)
        return next((name for name, other in known + _names.of_optimizers(self.optimizers, known)
                     if other is parameter), "a parameter")

    def _list(self) -> List[Tuple[str, torch.nn.Parameter]]:
        known = _names.parameters(self.model)
        self._unnamed = _names.of_optimizers(self.optimizers, known)
        if len(_all) > 1:
            known = [(name, parameter) for name, parameter in known if _owner(parameter) in (None, self)]
        return known + self._unnamed

    def _in_groups(self) -> List[torch.Tensor]:
        """What the optimiser steps, group after group. Not to be kept: it may be a list of the optimiser's own."""
        if len(self.optimizers) == 1 and len(self.optimizers[0].param_groups) == 1:  # asked at every step
            return self.optimizers[0].param_groups[0]["params"]
        return [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]

    @staticmethod
    def _form(parameter: torch.Tensor) -> Tuple[torch.Size, torch.device, torch.dtype]:
        return parameter.shape, local(parameter).device, parameter.dtype

    def look(self) -> int:
        """The version of the list. It is made anew when the optimiser was given more parameters (add_param_group), or
        fewer, and when another guard took some up or gave them up. ModelChanged if the optimiser was given others."""
        grouped = self._in_groups()
        if (not self.stale and len(grouped) == len(self._grouped)
                and not any(map(operator.is_not, grouped, self._grouped))):  # asked at every step: the fastest way
            return self.version
        kept = {id(parameter) for _, parameter in self.parameters if _owner(parameter) in (None, self)}
        now = self._list()
        if not kept <= {id(parameter) for _, parameter in now}:
            self.validate()
        ids, were = set(map(id, grouped)), set(map(id, self._grouped))
        lost, new = were - ids, ids - were
        if lost and new:
            name = next(name for name, parameter in self.parameters if id(parameter) in lost)
            raise ModelChanged(f"the optimizer has another parameter instead of {name}, which was registered: call "
                               "guard.refresh() after replacing parameters")
        self.register()
        self.n_added = sum(id(parameter) not in kept for parameter in self.tensors)
        return self.version

    def validate(self) -> None:
        """Raises ModelChanged, naming the first parameter that was moved, resized or replaced."""
        now = {name: parameter for name, parameter in self._list()}
        for (name, parameter), (shape, device, dtype) in zip(self.parameters, self.forms):
            if name not in now or now[name] is not parameter:
                raise ModelChanged(f"{name} is not the parameter that was registered: it was replaced or removed. "
                                   "Give the optimizer the new one and call guard.refresh()")
            is_shape, is_device, is_dtype = self._form(parameter)
            if is_device != device:
                raise ModelChanged(f"{name} was moved from {device} to {is_device}: move the model before making the "
                                   "guard, or call guard.refresh() after moving it")
            if is_shape != shape:
                raise ModelChanged(f"{name} was resized from {tuple(shape)} to {tuple(is_shape)}: call guard.refresh() "
                                   "after changing a model")
            if is_dtype != dtype:
                raise ModelChanged(f"{name} was {dtype} and is {is_dtype}: call guard.refresh() after converting a "
                                   "model")
        if len(now) != len(self.parameters):
            new = next(name for name in now if name not in dict(self.parameters))
            raise ModelChanged(f"{name_of_new(new)}: call guard.refresh() after adding to a model")


def name_of_new(name: str) -> str:
    return f"{name} is a parameter that was not there when the guard was made"
