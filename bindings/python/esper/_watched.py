"""The parameters that are watched: which they are, and whether they still are what they were."""

import weakref
from typing import Any, Dict, List, Tuple

import torch

from . import _names
from ._errors import GuardError, ModelChanged
from ._tensors import local

_guarded: Dict[int, Tuple[Any, Any]] = {}  # by id of a parameter: weak references to it and to its guard


def claim(parameters: List[Tuple[str, torch.nn.Parameter]], guard: object) -> None:
    """Refuses parameters that another live guard has, then notes these as `guard`'s."""
    for name, parameter in parameters:
        mine, other = _guarded.get(id(parameter), (None, None))
        if mine is not None and mine() is parameter and other() is not None and other() is not guard:
            raise GuardError(f"{name} is already watched by another esper.Guard: use that one, or call its detach() "
                             "before making a new one")
    for _, parameter in parameters:
        _guarded[id(parameter)] = (weakref.ref(parameter), weakref.ref(guard))


def release(parameters: List[Tuple[str, torch.nn.Parameter]], guard: object) -> None:
    """Gives parameters up again."""
    for _, parameter in parameters:
        if _guarded.get(id(parameter), (None, lambda: None))[1]() in (guard, None):
            _guarded.pop(id(parameter), None)


class Watched:
    """Names, sizes and devices of a model's and an optimiser's parameters, as they were when they were registered."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.register()

    def register(self) -> None:
        """Takes the parameters as they are now."""
        self.parameters = self._list()
        self.ids_in_groups = self._ids_in_groups()
        self.forms = [self._form(parameter) for _, parameter in self.parameters]

    def _list(self) -> List[Tuple[str, torch.nn.Parameter]]:
        known = _names.parameters(self.model)
        return known + _names.of_optimizer(self.optimizer, known)

    def _ids_in_groups(self) -> List[int]:
        ids: List[int] = []
        for group in self.optimizer.param_groups:
            ids += map(id, group["params"])
        return ids

    @staticmethod
    def _form(parameter: torch.Tensor) -> Tuple[torch.Size, torch.device, torch.dtype]:
        return parameter.shape, local(parameter).device, parameter.dtype

    def grew(self) -> bool:
        """Whether the optimiser was given more parameters since (add_param_group), or fewer; that is taken up if so.
        Raises ModelChanged if it was given others."""
        ids = self._ids_in_groups()
        if ids == self.ids_in_groups:
            return False
        before = {id(parameter) for _, parameter in self.parameters}
        now = self._list()
        if not before <= {id(parameter) for _, parameter in now}:
            self.validate()
        lost, new = set(self.ids_in_groups).difference(ids), set(ids).difference(self.ids_in_groups)
        if lost and new:
            name = next(name for name, parameter in self.parameters if id(parameter) in lost)
            raise ModelChanged(f"the optimizer has another parameter instead of {name}, which was registered: call "
                               "guard.refresh() after replacing parameters")
        self.register()
        return True

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
