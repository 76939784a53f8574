"""What a guard may be given: each wrong value is refused with a sentence, also while ESPER_GUARD=0."""

from typing import Any, Dict, List, Literal, Optional, Sequence, Tuple, Union

import torch

from . import _names
from ._errors import GuardError
from ._snapshots import Snapshots

Role = Literal["grad", "param", "moment", "buffer"]
Roles = Union[Role, Sequence[Role]]
STATE_ROLES = ("param", "moment", "buffer")


def optimizers(where: str, model: Any, given: Any) -> List[torch.optim.Optimizer]:
    """One optimiser, or several in a list or tuple."""
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    if not found:
        raise ValueError(f"{where}: no optimizer in the list")
    for optimizer in found:
        is_kind(where, model, optimizer)
    if len(set(map(id, found))) < len(found):
        raise ValueError(f"{where}: an optimizer is in the list twice")
    return found


def is_kind(where: str, model: Any, optimizer: Any) -> None:
    """TypeError unless these are a module and an optimiser."""
    for what, value, kind in (("model", model, torch.nn.Module), ("optimizer", optimizer, torch.optim.Optimizer)):
        if not isinstance(value, kind):
            name = "torch.nn.Module" if what == "model" else "torch.optim.Optimizer"
            raise TypeError(f"{where}: the {what} is a {type(value).__name__}, expected a {name}")


def belong(where: str, model: torch.nn.Module, given: Sequence[torch.optim.Optimizer]) -> None:
    """GuardError where an optimiser steps nothing of the model."""
    known = {id(parameter) for _, parameter in _names.parameters(model)}
    if not all(any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"])
               for optimizer in given):
        raise GuardError(f"{where}: the optimizer has no parameter of this model: give the one that was made with "
                         "model.parameters(), after the model was built or rebuilt")


def roles(where: str, scan: Any) -> Tuple[str, ...]:
    """The roles that `scan` names; one alone may be given as a string."""
    expected = "expected some of 'grad', 'param', 'moment' and 'buffer'"
    try:
        found = (scan,) if isinstance(scan, str) else tuple(scan)
    except TypeError:
        raise TypeError(f"{where}scan={scan!r}: {expected}") from None
    if any(role not in ("grad", *STATE_ROLES) for role in found):
        raise ValueError(f"{where}scan={scan!r}: {expected}")
    if not found:
        raise ValueError(f"{where}scan={scan!r}: nothing would be looked at. Name something to scan, as scan=('grad',)")
    return found


def judged(spikes: Any, kind: type, scanned: Sequence[str]) -> None:
    """What spikes are found by: the scan of gradients."""
    if spikes is None:
        return
    if not isinstance(spikes, kind):
        raise TypeError(f"spikes={spikes!r}: expected esper.Spikes(...), or None")
    if "grad" not in scanned:
        raise ValueError(f"spikes= with scan={tuple(scanned)!r}: losses and norms are judged with the scan of the "
                         "gradients, and there would be none. Name 'grad' in scan, too")


def number(name: str, value: Any) -> float:
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: expected a number") from None


def norm(value: Any) -> float:
    """clip; 0 is none."""
    if value is None:
        return 0.0
    clip = number("clip", value)
    if not clip > 0:
        raise ValueError(f"clip={value!r}: expected a norm above 0, or None")
    return clip


def backoff(value: Any, given: Sequence[torch.optim.Optimizer]) -> float:
    factor = number("lr_backoff", value)
    if not 0 < factor <= 1:
        raise ValueError(f"lr_backoff={value!r}: expected above 0 and at most 1")
    for optimizer in given:
        if factor != 1.0 and not all("lr" in parameters for parameters in optimizer.param_groups):
            raise ValueError(f"lr_backoff={value}: {type(optimizer).__name__} has no learning rate, 'lr', in its "
                             "parameter groups")
    return factor


def counts(**named: Any) -> None:
    for name, value in named.items():
        if not hasattr(value, "__index__") or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name}={value!r}: expected a whole number, 0 or more")


def is_group(group: Any) -> None:
    if isinstance(group, str) and group != "auto":
        raise GuardError(f"group={group!r}: expected 'auto', None or a process group")


def kept(snapshot: Optional[Snapshots], state: Optional[Dict[str, Any]]) -> None:
    """What snapshots are made of."""
    if snapshot is not None and not isinstance(snapshot, Snapshots):
        raise TypeError(f"snapshot={snapshot!r}: expected esper.Snapshots(...), or None")
    if state is None:
        return
    if not isinstance(state, dict):
        raise TypeError(f"state is a {type(state).__name__}: expected a dict of names and objects, as "
                        "state={'scheduler': scheduler}")
    for name, item in state.items():
        if not hasattr(item, "state_dict") or not hasattr(item, "load_state_dict"):
            raise TypeError(f"state[{name!r}] is a {type(item).__name__}, which has no state_dict and load_state_dict")
    if snapshot is None and state:
        raise ValueError("state= is what a rollback restores, and there would be none: give "
                         "snapshot=esper.Snapshots(), or use on_bad='rollback'")


def backs_off(factor: float, on_bad: Any, snapshot: Optional[Snapshots]) -> Optional[str]:
    """Where no rollback comes by itself: refused where none can come at all, else a sentence for the log."""
    if factor == 1.0 or callable(on_bad) or on_bad == "rollback":
        return None
    if snapshot is None:
        raise ValueError(f"lr_backoff={factor:g} with on_bad={on_bad!r}: there would never be a rollback to lower the "
                         "learning rate with. Use on_bad='rollback'")
    return f"lr_backoff={factor:g}: with on_bad={on_bad!r} only guard.rollback(), when you call it, lowers the rate"
