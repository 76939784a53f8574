"""One look at a model, without a guard."""

from typing import List, Optional

import torch

from . import _abi, _names, _tensors
from ._report import Report
from ._scan import Scanner
from ._state import flat


def check(model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None) -> Report:
    """Scans parameters, gradients, buffers and, with an optimiser, its state, once. Waits; changes nothing. The report
    is true where all of it is finite."""
    for what, value, kind in (("model", model, torch.nn.Module), ("optimizer", optimizer, torch.optim.Optimizer)):
        if not isinstance(value, kind) and not (what == "optimizer" and value is None):
            raise TypeError(f"check: {what} is a {type(value).__name__}, expected a torch {kind.__name__}")
    from ._guard import is_off
    if is_off():
        return Report(None, [])
    found: List[object] = []
    parameters = _names.parameters(model)
    if optimizer is not None:
        parameters = parameters + _names.of_optimizer(optimizer, parameters)
    for name, parameter in parameters:
        found.append(_tensors.make(name, _abi.PARAM, parameter))
        if parameter.grad is not None:
            found.append(_tensors.make(name, _abi.GRAD, parameter.grad))
        if optimizer is not None:
            for key, value in flat(optimizer.state.get(parameter, {})):
                if isinstance(value, torch.Tensor):
                    found.append(_tensors.make(".".join((name, *key)), _abi.MOMENT, value))
    found += [_tensors.make(name, _abi.BUFFER, buffer) for name, buffer in _names.buffers(model)]
    items, not_covered = _tensors.sort(found)
    if not items:
        return Report(None, [], not_covered)
    scanner = Scanner(items)
    scanner.launch()
    reading = scanner.read()
    for item in items:
        item.tensor = None
    return Report(None, [reading], not_covered)
