"""Faults that are made on purpose, to see how a training takes them."""

import difflib
from typing import Any, List, Literal, Tuple

import torch

from . import _abi, _tensors
from ._errors import GuardError, NoSuchTensor, Unsupported
from ._report import some
from ._scan import Scanner
from ._cover import Cover
from ._watched import Watched

_WIDTHS = {"exponent": (8, 5, 8, 11), "mantissa": (23, 10, 7, 52)}  # in bits, by type as in _abi.DTYPES


Fault = Literal["nan", "inf", "-inf", "exponent", "mantissa"]


def check_fault(fault: Any) -> None:
    if fault not in _abi.FAULTS:
        raise ValueError(f"inject: fault={fault!r}: expected one of {', '.join(_abi.FAULTS)}")


def spoil(name: str, watched: Watched, cover: Cover, at: int, fault: str, bit: int) -> None:
    """One element of the tensor of that name, now."""
    item = _tensors.make(name, _abi.OTHER, _find(name, watched, cover))
    if not isinstance(item, _tensors.Item) or item.copied:
        raise Unsupported(f"inject: {item if isinstance(item, str) else name + ' is not dense memory of floats'}")
    _check_place(name, item, at, fault, bit)
    scanner = Scanner([item])
    scanner.inject(0, at, _abi.FAULTS.index(fault), bit)
    if item.device >= 0:
        torch.cuda.current_stream(item.device).synchronize()
    scanner.close()


def _check_place(name: str, item: _tensors.Item, at: int, fault: str, bit: int) -> None:
    for what, value in (("at", at), ("bit", bit)):
        if not hasattr(value, "__index__"):
            raise TypeError(f"inject: {what}={value!r}: expected a whole number")
    if not 0 <= at < item.count:
        last = f"expected 0 to {item.count - 1:,}" if item.count > 1 else "expected 0"
        raise GuardError(f"inject: at={at}: {name} has {some(item.count, 'element')}, {last}")
    width = _WIDTHS[fault][item.dtype] if fault in _WIDTHS else 1
    if not 0 <= bit < width:
        raise GuardError(f"inject: bit={bit}: the {fault} of {_abi.DTYPES[item.dtype]} has {width} bits, expected "
                         f"0 to {width - 1}" if fault in _WIDTHS else
                         f"inject: bit={bit}: only 'exponent' and 'mantissa' flip a bit")


def _known(watched: Watched, cover: Cover) -> List[Tuple[str, torch.Tensor]]:
    """Every tensor that there is now, by the name that reports have for it."""
    grads = [(name + ".grad", parameter.grad) for name, parameter in watched.parameters if parameter.grad is not None]
    return grads + [(".".join(key[1:]), tensor) for key, _, tensor in cover.tensors()]


def _find(name: Any, watched: Watched, cover: Cover) -> torch.Tensor:
    known = _known(watched, cover)
    if not isinstance(name, str):
        mine = next((repr(other) for other, tensor in known if tensor is name), "as reports have them")
        raise TypeError(f"inject: expected a name ({mine}), not a {type(name).__name__}")
    for other, tensor in known:
        if other == name:
            return tensor
    if any(other + ".grad" == name for other, _ in watched.parameters):
        raise NoSuchTensor(f"inject: {name[:-len('.grad')]} has no gradient now: inject between backward() and step()")
    near = difflib.get_close_matches(name, [other for other, _ in known], 1, 0.3)
    raise NoSuchTensor(f"inject: there is no tensor {name!r} now" + (f"; did you mean {near[0]!r}?" if near else ""))
