"""One look at a model, without a guard."""

from typing import List, Optional, Union

import torch

from . import _abi, _names, _options, _tensors
from ._report import Report
from ._scan import Reading, Scanner, Stat
from ._cover import flat, holders, tell_apart


def check(model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None) -> Report:
    """Scans parameters, gradients, buffers and, with an optimiser, its state, once. Waits; changes nothing. The report
    is true where all of it is finite. A buffer of nothing but zeros and Inf is a mask: it is named in not_covered.
    While ESPER_GUARD=0 nothing is looked at, and the report says so."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"check: the model is a {type(model).__name__}, expected a torch.nn.Module")
    if optimizer is not None:
        _options.is_kind("check", model, optimizer)
        _options.belong("check", model, [optimizer])
    from ._guard import is_off
    if is_off():
        return Report(None, [], ["everything: ESPER_GUARD is off"])
    found: List[Union[_tensors.Item, str, None]] = []
    parameters = _names.parameters(model)
    if optimizer is not None:
        parameters = parameters + _names.of_optimizers([optimizer], parameters)
    for name, parameter in parameters:
        found.append(_tensors.make(name, _abi.PARAM, parameter))
        if parameter.grad is not None:
            found.append(_tensors.make(name, _abi.GRAD, parameter.grad))
    for holder in holders([optimizer]) if optimizer is not None else []:
        for name, part in holder.parts(parameters):
            found += [_tensors.make(".".join((name, *key)), _abi.MOMENT, value) for key, value in flat(part)
                      if isinstance(value, torch.Tensor)]
    found += [_tensors.make(name, _abi.BUFFER, buffer) for name, buffer in _names.buffers(model)]
    items, not_covered = _tensors.sort(found)
    tell_apart(items)
    if not items:
        return Report(None, [], not_covered)
    reading = _scanned(items)
    masks = {i for i, (item, stat) in enumerate(zip(items, reading.stats())) if _is_mask(item, stat)}
    if masks:
        not_covered += [f"{items[i].name} holds nothing but Inf and zeros, as a mask does: not judged"
                        for i in sorted(masks)]
        items = [item for i, item in enumerate(items) if i not in masks]
        reading = _scanned(items) if items else None
    for item in items:
        item.tensor = None
    return Report(None, [] if reading is None else [reading], not_covered)


def _scanned(items: List[_tensors.Item]) -> Reading:
    scanner = Scanner(items)
    scanner.launch()
    return scanner.read()


def _is_mask(item: _tensors.Item, stat: Stat) -> bool:
    n_inf = stat.n_pos_inf + stat.n_neg_inf
    return item.role == _abi.BUFFER and n_inf > 0 and n_inf + stat.n_zero == item.count
