"""Gradients, found anew at every step at little cost.

With set_to_none they are other tensors at other addresses each time, of the same sizes: so what is registered with the
library stays, and one call brings the addresses. Which parameters have a gradient at all may change too; for each such
pattern there is a scanner, the last few of which are kept.
"""

import operator
from collections import OrderedDict
from typing import Any, List, Optional, Tuple

import torch

from . import _abi, _tensors
from ._errors import GuardError, Unsupported
from ._scan import Scanner
from ._watched import Watched

MAX_PATTERNS = 8
_grad_of = operator.attrgetter("grad")
_data_ptr = torch.Tensor.data_ptr


class _Pattern:
    """Which parameters have dense gradients, of what form, and the scanner for them."""

    def __init__(self, dense: List[Tuple[str, torch.nn.Parameter]], items: List[_tensors.Item]) -> None:
        self.parameters = [parameter for _, parameter in dense]
        self.counts = [item.count for item in items]
        self.contiguous = [item.layout is None for item in items] if any(item.layout for item in items) else None
        self.permuted = [(i, item.layout[1]) for i, item in enumerate(items) if item.layout is not None]
        self.sharded = any(parameter.grad is not item.tensor and hasattr(parameter, "_local_tensor")
                           for parameter, item in zip(self.parameters, items))
        self.scanner: Optional[Scanner] = None
        self.homes = self._homes()

    def _homes(self) -> List[int]:
        """Where the parameters are."""
        if self.sharded:
            return _tensors.addresses(map(_tensors.local, self.parameters))
        return _tensors.addresses(self.parameters)

    def settle(self) -> None:
        """The parameters were looked at, and are as they were registered."""
        self.homes = self._homes()

    def addresses(self) -> Optional[List[int]]:
        """Where the gradients are now; None when this is not their pattern any more. torch sees to it that a gradient
        has its parameter's type and device, and those cannot change while the parameter stays where it is.

        Five questions a gradient, some 50 ns each, are most of what a scan costs in Python. Nearly all of that is
        torch's own: a loop in C that called the same functions through Python's stable ABI took 230 ns a gradient
        where this takes 290, too little for a compiled part."""
        try:
            grads = list(map(_grad_of, self.parameters))
            if self.sharded:
                grads = list(map(_tensors.local, grads))
            addresses = list(map(_data_ptr, grads))
            homes = self._homes() if self.sharded else list(map(_data_ptr, self.parameters))
            same = (homes == self.homes
                    and list(map(torch.Tensor.numel, grads)) == self.counts
                    and self._lie_as_before(grads))
        except (AttributeError, TypeError, RuntimeError):  # None, or sparse
            return None
        return addresses if same else None

    def _lie_as_before(self, grads: List[torch.Tensor]) -> bool:
        """Whether their elements lie in memory in the order in which they did."""
        if self.contiguous is None:
            return all(map(torch.Tensor.is_contiguous, grads))
        return (list(map(torch.Tensor.is_contiguous, grads)) == self.contiguous
                and all(grads[i].stride() == strides for i, strides in self.permuted))


class Gradients:
    """Scanners for the gradients that are there."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._patterns: "OrderedDict[Any, _Pattern]" = OrderedDict()
        self._odd_scanner: Optional[Scanner] = None
        self.version = 0  # counts the times that gradients were looked at anew
        self.forget()

    def forget(self) -> None:
        """Parameters were registered anew."""
        self._patterns.clear()
        self._pattern: Optional[_Pattern] = None
        self._absent: List[torch.nn.Parameter] = []
        self._odd: List[Tuple[str, torch.nn.Parameter]] = []
        self.not_covered: List[str] = []
        self._of = self.watched.version

    @property
    def plain(self) -> bool:
        """Whether all gradients of the latest collection are dense and on one device: what a device flag needs."""
        return (not self._odd and self._pattern is not None and self._pattern.scanner is not None
                and len(self._pattern.scanner.devices) == 1)

    def collect(self, captured: bool = False) -> List[Scanner]:
        """Scanners that are ready to be launched; none where there is no gradient. One that is captured becomes the
        graph's, for replays read the addresses that it has: `forget_captured` when it was launched."""
        if self.watched.look() != self._of:
            self.forget()
        addresses = self._pattern.addresses() if self._pattern is not None else None
        if addresses is None or (self._absent and any(parameter.grad is not None for parameter in self._absent)):
            self._look_anew()
        elif self._pattern.scanner is not None:
            self._pattern.scanner.move(addresses)
        scanners = [] if self._pattern.scanner is None else [self._pattern.scanner]
        if self._odd:
            if captured:
                raise Unsupported(f"{self._odd[0][0]}: its gradient is sparse, complex or a view with gaps, which "
                                  "cannot be scanned in a CUDA graph: launch the scan outside of it")
            scanners += self._bind_odd()
        return scanners

    def forget_captured(self) -> None:
        """The latest collection was launched into a CUDA graph: steps outside of it get another scanner, and nothing
        moves this one any more."""
        for key in [key for key, pattern in self._patterns.items() if pattern is self._pattern]:
            del self._patterns[key]
        self._pattern = None

    def _bind_odd(self) -> List[Scanner]:
        """Sparse gradients and views with gaps: registered anew each time, for they are never the same."""
        found = [_tensors.make(name, _abi.GRAD, parameter.grad) for name, parameter in self._odd
                 if parameter.grad is not None]
        items, self.not_covered = _tensors.sort(found)
        if not items:
            return []
        if self._odd_scanner is None:
            self._odd_scanner = Scanner(items)
        else:
            self._odd_scanner.bind(items)
        return [self._odd_scanner]

    def drop(self) -> None:
        """The scan was launched: copies are not needed any more. A later use of their memory comes behind the scan."""
        if self._odd and self._odd_scanner is not None:
            for item in self._odd_scanner.items:
                item.tensor = None

    def _look_anew(self) -> None:
        self.watched.validate()
        self.version += 1
        self._pattern = None  # until all of this is done
        dense, absent, odd = [], [], []
        items: List[_tensors.Item] = []
        for name, parameter in self.watched.parameters:
            if parameter.grad is None:
                absent.append(parameter)
                continue
            item = None
            if parameter.grad.layout is torch.strided and not parameter.grad.dtype.is_complex:
                item = _tensors.make(name, _abi.GRAD, parameter.grad)
            if isinstance(item, _tensors.Item) and not item.copied:
                dense.append((name, parameter))
                items.append(item)
            else:
                odd.append((name, parameter))
        key = tuple((item.form, item.layout) for item in items)
        pattern = self._patterns.get(key) or self._new_pattern(key, dense, items)
        self._patterns.move_to_end(key)
        pattern.settle()
        if pattern.scanner is not None:
            pattern.scanner.move([item.pointer for item in items])
        self._absent, self._odd = absent, odd
        self._pattern = pattern

    def _new_pattern(self, key: Any, dense: List[Tuple[str, torch.nn.Parameter]],
                     items: List[_tensors.Item]) -> _Pattern:
        if items and _tensors.capturing(max(item.device for item in items)):
            raise GuardError("these gradients were not scanned before, and nothing can be registered while a CUDA "
                             "graph is captured: make one or two warm-up steps with the guard before every capture")
        pattern = _Pattern(dense, items)
        if items:
            pattern.scanner = Scanner(items)
        for item in items:
            item.tensor = None
        self._patterns[key] = pattern
        if len(self._patterns) > MAX_PATTERNS:
            self._patterns.popitem(last=False)
        return pattern
