"""Over a process group: whether any rank is bad, and which was first; norms of gradients that are sharded."""

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from . import _names
from ._errors import GuardError
from ._scan import Reading

_BITS = 4


def _initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _ddp(model: torch.nn.Module) -> Optional[torch.nn.Module]:
    """The DistributedDataParallel among a model's wrappers."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            return model
        if not hasattr(model, "_orig_mod"):
            return None
        model = model._orig_mod


def find_groups(model: torch.nn.Module) -> List[Any]:
    """The groups that train this model together: DDP's, or those of the mesh that its parameters are sharded over."""
    ddp = _ddp(model)
    if ddp is not None:
        return [ddp.process_group]
    for _, parameter in _names.parameters(model):
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            return [mesh.get_group(dim) for dim in range(mesh.ndim)]
    return []


class Peers:
    """The ranks that decide together. Without any, every question is answered here."""

    def __init__(self, model: torch.nn.Module, group: Any) -> None:
        if isinstance(group, str) and group != "auto":
            raise GuardError(f"group={group!r}: expected 'auto', None or a process group")
        if group is not None and group != "auto" and not _initialized():
            raise GuardError("group= is given, but torch.distributed is not initialized: init_process_group first")
        if group == "auto":
            self.groups = find_groups(model) if _initialized() else []
        else:
            self.groups = [] if group is None else [group]
        self.rank = torch.distributed.get_rank() if self.groups else 0
        self.world = torch.distributed.get_world_size() if self.groups else 1
        self.shards: Dict[str, Tuple[Tuple[Any, int], ...]] = {}
        for name, parameter in _names.parameters(model):
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is not None:
                self.shards[name] = tuple((mesh, dim) for dim, placement in enumerate(parameter.placements)
                                          if placement.is_shard())

    def __bool__(self) -> bool:
        return bool(self.groups)

    def _reduce(self, values: List[float], op: Any, groups: Sequence[Any]) -> List[float]:
        for group in groups:
            backend = str(torch.distributed.get_backend(group))
            device = "cuda" if "nccl" in backend and "gloo" not in backend else "cpu"
            tensor = torch.tensor(values, dtype=torch.float64, device=device)
            torch.distributed.all_reduce(tensor, op=op, group=group)
            values = tensor.tolist()
        return values

    def verdict(self, bits: int) -> Tuple[int, Optional[int]]:
        """The bits of all ranks together, and the lowest rank that has any."""
        if not self.groups:
            return bits, None
        values = [float(bits >> bit & 1) for bit in range(_BITS)] + [float(self.world - self.rank if bits else 0)]
        values = self._reduce(values, torch.distributed.ReduceOp.MAX, self.groups)
        found = sum(1 << bit for bit in range(_BITS) if values[bit])
        return found, self.world - int(values[_BITS]) if found else None

    def agree(self, good: bool) -> bool:
        """Whether it is good on every rank."""
        if not self.groups:
            return good
        return self._reduce([float(good)], torch.distributed.ReduceOp.MIN, self.groups)[0] == 1.0

    def spread(self, flag: torch.Tensor) -> None:
        """A flag on the device becomes the largest of all ranks', without a wait where the backend has none."""
        for group in self.groups:
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX, group=group)

    def sum_of_squares(self, readings: Sequence[Reading]) -> Optional[float]:
        """Of all gradients: of a sharded one, the squares of all shards; of a replicated one, those of one copy."""
        if not self.shards:
            return None
        sums: Dict[Tuple[Tuple[Any, int], ...], float] = {over: 0.0 for over in self.shards.values()}
        sums.setdefault((), 0.0)
        for reading in readings:
            for item, stat in zip(reading.items, reading.stats()):
                sums[self.shards.get(item.name, ())] += stat.norm * stat.norm
        total = 0.0
        for over, squares in sums.items():  # in the same order on every rank: that of the parameters
            for mesh, dim in over:
                squares = self._reduce([squares], torch.distributed.ReduceOp.SUM, [mesh.get_group(dim)])[0]
            total += squares
        return math.nan if math.isnan(total) else total
